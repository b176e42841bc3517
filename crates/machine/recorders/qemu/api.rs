//! The functions of QEMU's plugin API that the recorder uses, with their names in each version.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub(crate) type PluginId = u64;
/// A block that is being translated.
#[repr(C)]
pub(crate) struct Tb {
    _opaque: [u8; 0],
}
/// An instruction of such a block.
#[repr(C)]
pub(crate) struct Insn {
    _opaque: [u8; 0],
}

/// `qemu_info_t`, for system emulation.
#[repr(C)]
pub(crate) struct QemuInfo {
    _target: *const c_char,
    _least: c_int,
    _present: c_int,
    _system: bool,
    pub(crate) vcpus: c_int,
    _most_vcpus: c_int,
}

pub(crate) type Called = extern "C" fn(c_uint, *mut c_void);
pub(crate) type Accessed = extern "C" fn(c_uint, u32, u64, *mut c_void);
/// Gets the plugin's id and the block; since version 7 the block and what it was registered with.
pub(crate) type Translated = extern "C" fn(*mut c_void, *mut c_void);
/// Gets the plugin's id and what it was registered with; since version 7 the latter alone.
pub(crate) type ExitCallback = extern "C" fn(*mut c_void, *mut c_void);

/// `QEMU_PLUGIN_CB_NO_REGS`.
pub(crate) const NO_REGISTERS: c_int = 0;
/// `QEMU_PLUGIN_MEM_RW`.
pub(crate) const READS_AND_WRITES: c_int = 3;
/// `QEMU_PLUGIN_INLINE_ADD_U64`.
const ADD: c_int = 0;

/// `qemu_plugin_u64`: one number per vCPU.
#[repr(C)]
#[derive(Clone, Copy)]
struct PerVcpu {
    board: *mut c_void,
    offset: usize,
}

/// How instructions are counted and read.
#[derive(Clone, Copy)]
enum CountingWay {
    /// Version 1: into a variable.
    Variable {
        add: unsafe extern "C" fn(*mut Insn, c_int, *mut c_void, u64),
        data: unsafe extern "C" fn(*const Insn) -> *const u8,
    },
    /// Version 2 and later.
    PerVcpu {
        add: unsafe extern "C" fn(*mut Insn, c_int, PerVcpu, u64),
        get: unsafe extern "C" fn(PerVcpu, c_uint) -> u64,
        counter: PerVcpu,
        data: unsafe extern "C" fn(*const Insn, *mut u8, usize) -> usize,
    },
}

/// What callbacks are registered with: its address is that of no block.
static REGISTERED: u8 = 0;

/// The block that is translated, from the arguments of [`Translated`].
pub(crate) fn block_of(first: *mut c_void, second: *mut c_void) -> *mut Tb {
    let is_newer = second.cast_const().cast() == &raw const REGISTERED;
    (if is_newer { first } else { second }).cast()
}

/// Instructions executed, of version 1.
static mut EXECUTED: u64 = 0;

#[derive(Clone, Copy)]
pub(crate) struct Api {
    /// Before version 7 it takes no third argument, and ignores it.
    tb_trans_cb: unsafe extern "C" fn(PluginId, Translated, *mut c_void),
    pub(crate) tb_exec_cb: unsafe extern "C" fn(*mut Tb, Called, c_int, *mut c_void),
    pub(crate) insn_exec_cb: unsafe extern "C" fn(*mut Insn, Called, c_int, *mut c_void),
    pub(crate) mem_cb: unsafe extern "C" fn(*mut Insn, Accessed, c_int, c_int, *mut c_void),
    pub(crate) tb_n_insns: unsafe extern "C" fn(*const Tb) -> usize,
    pub(crate) tb_get_insn: unsafe extern "C" fn(*const Tb, usize) -> *mut Insn,
    pub(crate) insn_vaddr: unsafe extern "C" fn(*const Insn) -> u64,
    pub(crate) insn_haddr: unsafe extern "C" fn(*const Insn) -> *mut c_void,
    pub(crate) atexit_cb: unsafe extern "C" fn(PluginId, ExitCallback, *mut c_void),
    insn_size: unsafe extern "C" fn(*const Insn) -> usize,
    counting: CountingWay,
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A function of the program that loaded this plugin, if it has one of this name.
pub(crate) fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: looks a symbol up in the loaded objects; a null handle means the default order (RTLD_DEFAULT).
    let found = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The newest API version that both this QEMU and this plugin support.
pub(crate) fn version() -> c_int {
    if symbol(c"qemu_plugin_set_pc").is_some() {
        7
    } else if symbol(c"qemu_plugin_read_memory_vaddr").is_some() {
        4
    } else if symbol(c"qemu_plugin_scoreboard_new").is_some() {
        2
    } else {
        1
    }
}

/// The function of this name; the error is the name of a missing one.
///
/// # Safety
/// `F` must be the function's type in `qemu-plugin.h`.
pub(crate) unsafe fn function<F: Copy>(name: &'static CStr) -> Result<F, &'static str> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) }
    let found = symbol(name).ok_or(name.to_str().unwrap_or_default())?;
    // SAFETY: a pointer as a function of the type that the caller knows.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}

impl Api {
    /// Looks all functions up; the error is the name of a missing one.
    pub(crate) fn find() -> Result<Api, &'static str> {
        // SAFETY: the fields have the types of `qemu-plugin.h`.
        unsafe {
            Ok(Api {
                tb_trans_cb: function(c"qemu_plugin_register_vcpu_tb_trans_cb")?,
                tb_exec_cb: function(c"qemu_plugin_register_vcpu_tb_exec_cb")?,
                insn_exec_cb: function(c"qemu_plugin_register_vcpu_insn_exec_cb")?,
                mem_cb: function(c"qemu_plugin_register_vcpu_mem_cb")?,
                tb_n_insns: function(c"qemu_plugin_tb_n_insns")?,
                tb_get_insn: function(c"qemu_plugin_tb_get_insn")?,
                insn_vaddr: function(c"qemu_plugin_insn_vaddr")?,
                insn_haddr: function(c"qemu_plugin_insn_haddr")?,
                atexit_cb: function(c"qemu_plugin_register_atexit_cb")?,
                insn_size: function(c"qemu_plugin_insn_size")?,
                counting: CountingWay::find()?,
            })
        }
    }

    /// Has each block that is translated told.
    ///
    /// # Safety
    /// QEMU installs the plugin now.
    pub(crate) unsafe fn translations(&self, id: PluginId, to: Translated) {
        // SAFETY: guaranteed by the caller.
        unsafe { (self.tb_trans_cb)(id, to, (&raw const REGISTERED).cast_mut().cast()) }
    }

    /// The instruction's bytes.
    ///
    /// # Safety
    /// The instruction is being translated.
    pub(crate) unsafe fn code<'a>(&self, insn: *const Insn, room: &'a mut [u8; 16]) -> &'a [u8] {
        // SAFETY: guaranteed by the caller.
        let size = unsafe { (self.insn_size)(insn) }.min(room.len());
        match self.counting {
            // SAFETY: guaranteed by the caller; QEMU's copy has `size` bytes.
            CountingWay::Variable { data, .. } => unsafe {
                room[..size].copy_from_slice(std::slice::from_raw_parts(data(insn), size));
            },
            // SAFETY: guaranteed by the caller; there is room for `size` bytes.
            CountingWay::PerVcpu { data, .. } => unsafe {
                data(insn, room.as_mut_ptr(), size);
            },
        }
        &room[..size]
    }

    /// Counts the instruction each time it begins.
    ///
    /// # Safety
    /// The instruction is being translated.
    pub(crate) unsafe fn count(&self, insn: *mut Insn) {
        match self.counting {
            // SAFETY: guaranteed by the caller; the variable is never freed.
            CountingWay::Variable { add, .. } => unsafe {
                add(insn, ADD, (&raw mut EXECUTED).cast(), 1);
            },
            // SAFETY: guaranteed by the caller.
            CountingWay::PerVcpu { add, counter, .. } => unsafe { add(insn, ADD, counter, 1) },
        }
    }

    /// Number of instructions that have begun on a vCPU; of version 1 on all of them.
    #[inline]
    pub(crate) fn executed(&self, vcpu: u32) -> u64 {
        match self.counting {
            // SAFETY: written by translated code of this thread alone.
            CountingWay::Variable { .. } => unsafe { (&raw const EXECUTED).read_volatile() },
            // SAFETY: the counter was made for it.
            CountingWay::PerVcpu { get, counter, .. } => unsafe { get(counter, vcpu) },
        }
    }
}

impl CountingWay {
    fn find() -> Result<CountingWay, &'static str> {
        // SAFETY: the types are those of `qemu-plugin.h`, of version 1 and later ones.
        unsafe {
            if version() == 1 {
                return Ok(CountingWay::Variable {
                    add: function(c"qemu_plugin_register_vcpu_insn_exec_inline")?,
                    data: function(c"qemu_plugin_insn_data")?,
                });
            }
            let board: unsafe extern "C" fn(usize) -> *mut c_void =
                function(c"qemu_plugin_scoreboard_new")?;
            Ok(CountingWay::PerVcpu {
                add: function(c"qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu")?,
                get: function(c"qemu_plugin_u64_get")?,
                counter: PerVcpu { board: board(size_of::<u64>()), offset: 0 },
                data: function(c"qemu_plugin_insn_data")?,
            })
        }
    }
}
