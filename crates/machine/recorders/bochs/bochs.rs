//! Functions of the Bochs that loaded this library.

use std::ffi::{CStr, c_char, c_void};

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `bx_dbg_get_rip()`.
const RIP: &CStr = c"_Z14bx_dbg_get_ripv";
/// `BX_CPU_C::get_TSC()`, and the processors.
const TSC: &CStr = c"_ZN8BX_CPU_C7get_TSCEv";
const PROCESSORS: &CStr = c"bx_cpu_array";
/// `BX_MEM_C::dbg_fetch_mem(BX_CPU_C *, bx_phy_address, unsigned, Bit8u *)`, which is static: Bochs has one memory.
const FETCH: &CStr = c"_ZN8BX_MEM_C13dbg_fetch_memEP8BX_CPU_CmjPh";

pub(crate) fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: looks a symbol up in the loaded objects; a null handle means the default order (RTLD_DEFAULT).
    unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) }
}

/// Functions of Bochs that the recorder calls.
pub(crate) struct BochsFunctions {
    rip: extern "C" fn() -> u64,
    tsc: extern "C" fn(*mut c_void) -> u64,
    processors: *const *const *mut c_void,
    fetch: extern "C" fn(*mut c_void, u64, u32, *mut u8) -> bool,
}

impl BochsFunctions {
    /// Looks the functions up; the error names the missing one.
    pub(crate) fn find() -> Result<BochsFunctions, String> {
        let found = |name: &CStr| {
            let at = symbol(name);
            let missing = || format!("this Bochs has no {}", name.to_string_lossy());
            (!at.is_null()).then_some(at).ok_or_else(missing)
        };
        let (rip, tsc, processors) = (found(RIP)?, found(TSC)?, found(PROCESSORS)?);
        let fetch = found(FETCH)?;
        // SAFETY: the mangled names determine the types: uint64_t (void), uint64_t (BX_CPU_C *), BX_CPU_C **,
        // bool (BX_CPU_C *, uint64_t, unsigned, uint8_t *).
        unsafe {
            Ok(BochsFunctions {
                rip: std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(rip),
                tsc: std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void) -> u64>(tsc),
                processors: processors.cast(),
                fetch: std::mem::transmute::<
                    *mut c_void,
                    extern "C" fn(*mut c_void, u64, u32, *mut u8) -> bool,
                >(fetch),
            })
        }
    }

    /// Address of the current instruction.
    #[inline]
    pub(crate) fn rip(&self) -> u64 {
        (self.rip)()
    }

    /// 64 bits of the machine's memory.
    pub(crate) fn memory(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        // SAFETY: a processor calls the hooks, so the first one is there; the buffer has room for what is asked for.
        let is_read = unsafe { (self.fetch)(**self.processors, address, 8, bytes.as_mut_ptr()) };
        is_read.then_some(u64::from_le_bytes(bytes))
    }

    /// The time-stamp counter of the first processor.
    pub(crate) fn tsc(&self) -> u64 {
        // SAFETY: a processor calls the hooks, so the first one is there.
        unsafe { (self.tsc)(**self.processors) }
    }
}
