//! Registers of the vCPU, by the function with which QEMU's gdb stub reads them: versions of the API before 4 (QEMU 9) have none.
//!
//! Control registers are always current. General registers are where a translated block begins: QEMU keeps them in its structure between blocks.

use std::ffi::{c_int, c_uint, c_void};

use crate::api::function;

/// `GByteArray`.
#[repr(C)]
struct Bytes {
    data: *const u8,
    length: c_uint,
}

/// Their numbers, those of gdb's `org.gnu.gdb.i386.core` on x86-64.
const CR3: c_int = 29;
const CR4: c_int = 30;
/// By the numbers of the instruction set: RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI.
const GENERAL: [c_int; 8] = [0, 2, 3, 1, 7, 6, 4, 5];

pub(crate) struct Registers {
    cpu: unsafe extern "C" fn(c_int) -> *mut c_void,
    read: unsafe extern "C" fn(*mut c_void, *mut Bytes, c_int) -> c_int,
    resize: unsafe extern "C" fn(*mut Bytes, c_uint) -> *mut Bytes,
    bytes: *mut Bytes,
}

impl Registers {
    /// Looks the functions up; the error is the name of a missing one.
    pub(crate) fn find() -> Result<Registers, &'static str> {
        // SAFETY: the types are those of QEMU's and GLib's headers.
        unsafe {
            let new: unsafe extern "C" fn() -> *mut Bytes = function(c"g_byte_array_new")?;
            Ok(Registers {
                cpu: function(c"qemu_get_cpu")?,
                read: function(c"x86_cpu_gdb_read_register")?,
                resize: function(c"g_byte_array_set_size")?,
                bytes: new(),
            })
        }
    }

    /// Of the first vCPU.
    fn of(&self, number: c_int) -> u64 {
        // SAFETY: called on the vCPU's thread; the array is this structure's alone, and has as many bytes as it says.
        let bytes = unsafe {
            (self.resize)(self.bytes, 0);
            (self.read)((self.cpu)(0), self.bytes, number);
            std::slice::from_raw_parts((*self.bytes).data, (*self.bytes).length.min(8) as usize)
        };
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    pub(crate) fn cr3(&self) -> u64 {
        self.of(CR3)
    }

    pub(crate) fn cr4(&self) -> u64 {
        self.of(CR4)
    }

    /// By its number in instructions.
    pub(crate) fn general(&self, number: u8) -> u64 {
        self.of(GENERAL.get(usize::from(number)).copied().unwrap_or(c_int::from(number)))
    }
}
