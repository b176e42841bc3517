//! ISA-L (Debian's libisal2), opened at run time: a peer for benchmarks and an oracle for tests.

use std::ffi::{CStr, c_int, c_void};

/// The functions compared with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Isal {
    zero_detect: unsafe extern "C" fn(*const c_void, usize) -> c_int,
    crc32_iscsi: unsafe extern "C" fn(*const u8, c_int, u32) -> u32,
}

impl Isal {
    /// `None` if the library is not installed.
    pub(crate) fn open() -> Option<Isal> {
        let name = c"libisal.so.2";
        // SAFETY: the library's initialisers do nothing but choose functions by processor.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library stays open; the name is a C string.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        // SAFETY: the types are those of isa-l/mem_routines.h and isa-l/crc.h.
        unsafe {
            Some(Isal {
                zero_detect: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const c_void, usize) -> c_int,
                >(symbol(c"isal_zero_detect")?),
                crc32_iscsi: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*const u8, c_int, u32) -> u32,
                >(symbol(c"crc32_iscsi")?),
            })
        }
    }

    /// Whether all bytes are zero.
    pub(crate) fn is_zero(&self, bytes: &[u8]) -> bool {
        // SAFETY: the slice can be read.
        unsafe { (self.zero_detect)(bytes.as_ptr().cast(), bytes.len()) == 0 }
    }

    /// CRC-32C of all of it.
    pub(crate) fn crc32c(&self, bytes: &[u8]) -> u32 {
        let len = c_int::try_from(bytes.len()).unwrap_or(c_int::MAX);
        // SAFETY: the slice can be read.
        !unsafe { (self.crc32_iscsi)(bytes.as_ptr(), len, !0) }
    }
}
