//! The C interface: include/vmtax_pageops.h is made of this file and those beside it (tests/c.rs compares them).
//!
//! One rule for results: a negative number is an error, and nothing was done; 0 or more is the result. Functions that give a
//! handle give NULL instead. Arguments that cannot be right (NULL with bytes, blocks that overlap or go past the end of
//! memory, arrays that are not aligned, handles that this library did not give or that were freed) are errors. Handles are
//! numbers that are looked up, never addresses that are followed. A panic is caught and becomes [`PAGEOPS_EPANIC`].

mod arguments;
pub mod checkpoint;
pub mod direct;
pub mod engine;
mod handles;

use std::ffi::c_char;

/// Version of this interface, and the number in the shared library's name. It rises when programs compiled with an older header
/// would no longer work.
pub const PAGEOPS_ABI: u32 = 2;

/// An argument is invalid.
pub const PAGEOPS_EINVAL: i32 = -22;
/// A file cannot be read or written, or is invalid; the error sentence names the file and the reason.
pub const PAGEOPS_EIO: i32 = -5;
/// The result does not fit into the given buffer.
pub const PAGEOPS_EOVERFLOW: i32 = -75;
/// The delta does not belong to this block.
pub const PAGEOPS_EBADMSG: i32 = -74;
/// The engine has ended, or an earlier call failed: this handle can only be freed.
pub const PAGEOPS_EDEAD: i32 = -32;
/// A defect of this library. The message is on standard error.
pub const PAGEOPS_EPANIC: i32 = -131;

/// The version that the library was compiled with: PAGEOPS_ABI of its header. If it differs from the program's PAGEOPS_ABI, the
/// two are incompatible.
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn pageops_abi() -> u32 {
    PAGEOPS_ABI
}

/// Version of the library, such as "0.1.0".
///
/// Threads: any, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn pageops_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
