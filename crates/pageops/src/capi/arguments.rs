//! What C hands in, checked before it is believed, and what goes back.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{PAGEOPS_EINVAL, PAGEOPS_EPANIC};

/// Why a call did nothing.
pub(super) struct CallFailure {
    /// PAGEOPS_EINVAL, ...
    pub(super) code: i32,
    /// One sentence.
    pub(super) what: String,
}

/// An argument is invalid.
pub(super) fn invalid(what: impl Into<String>) -> CallFailure {
    CallFailure { code: PAGEOPS_EINVAL, what: what.into() }
}

/// Runs the body of a function of C: its result, or an error's code. No panic leaves it.
pub(super) fn guarded<T: From<i32>>(body: impl FnOnce() -> Result<T, CallFailure>) -> T {
    caught(body).unwrap_or_else(|failure| T::from(failure.code))
}

/// As [`guarded`], with the error in words.
///
/// # Safety
///
/// `error` has room for `room` bytes, or is NULL.
pub(super) unsafe fn told<T: From<i32>>(
    error: *mut c_char,
    room: usize,
    body: impl FnOnce() -> Result<T, CallFailure>,
) -> T {
    caught(body).unwrap_or_else(|failure| {
        // SAFETY: by the contract.
        unsafe { put_text(&failure.what, error, room) };
        T::from(failure.code)
    })
}

/// As [`told`], of a function that gives a handle: NULL on an error.
///
/// # Safety
///
/// `error` has room for `room` bytes, or is NULL.
pub(super) unsafe fn handle<T>(
    error: *mut c_char,
    room: usize,
    body: impl FnOnce() -> Result<*mut T, CallFailure>,
) -> *mut T {
    caught(body).unwrap_or_else(|failure| {
        // SAFETY: by the contract.
        unsafe { put_text(&failure.what, error, room) };
        std::ptr::null_mut()
    })
}

fn caught<T>(body: impl FnOnce() -> Result<T, CallFailure>) -> Result<T, CallFailure> {
    // What a panic leaves half done is behind locks that then refuse, or is dropped.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|payload| {
        // Dropping what was thrown may panic too.
        std::mem::forget(payload);
        let what = "a defect of libvmtax_pageops: the message on standard error names the place";
        Err(CallFailure { code: PAGEOPS_EPANIC, what: what.to_owned() })
    })
}

/// Bytes from `p` on that can be one block: none, or not at NULL and not past the end of memory.
pub(super) fn block(name: &str, p: *const u8, len: usize) -> Result<(), CallFailure> {
    if len == 0 {
        return Ok(());
    }
    if p.is_null() {
        return Err(invalid(format!("{name} is NULL and has {len} bytes")));
    }
    let fits = isize::try_from(len).is_ok() && p.addr().checked_add(len).is_some();
    if fits {
        Ok(())
    } else {
        Err(invalid(format!("{name} of {len} bytes goes past the end of memory")))
    }
}

/// Two blocks of which one is written share no byte.
pub(super) fn apart(
    (one, p, p_len): (&str, *const u8, usize),
    (other, q, q_len): (&str, *const u8, usize),
) -> Result<(), CallFailure> {
    block(one, p, p_len)?;
    block(other, q, q_len)?;
    let overlap =
        p_len > 0 && q_len > 0 && p.addr() < q.addr() + q_len && q.addr() < p.addr() + p_len;
    if overlap { Err(invalid(format!("{one} and {other} overlap"))) } else { Ok(()) }
}

/// Bytes that are read.
///
/// # Safety
///
/// `len` bytes can be read at `p`, and are not written to while the slice lives, unless the address is wrong in a way
/// that [`block`] sees.
pub(super) unsafe fn bytes<'a>(
    name: &str,
    p: *const u8,
    len: usize,
) -> Result<&'a [u8], CallFailure> {
    block(name, p, len)?;
    // SAFETY: by the contract.
    Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(p, len) } })
}

/// Bytes that are written.
///
/// # Safety
///
/// `len` bytes can be written at `p`, and no other code accesses them while the slice lives, unless the address is wrong in a
/// way that [`block`] sees.
pub(super) unsafe fn bytes_mut<'a>(
    name: &str,
    p: *mut u8,
    len: usize,
) -> Result<&'a mut [u8], CallFailure> {
    block(name, p, len)?;
    // SAFETY: by the contract.
    Ok(if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(p, len) } })
}

/// An array of `count` at `p` that can be one.
pub(super) fn array<T>(name: &str, p: *const T, count: usize) -> Result<(), CallFailure> {
    if count > 0 && !p.is_aligned() {
        return Err(invalid(format!("{name} is not aligned to {} bytes", align_of::<T>())));
    }
    let len = count.checked_mul(size_of::<T>());
    let len =
        len.ok_or_else(|| invalid(format!("{name} has {count} entries, which fit in no memory")))?;
    block(name, p.cast(), len)
}

/// A C string.
///
/// # Safety
///
/// `p` is NULL or a C string that does not change while the slice lives.
pub(super) unsafe fn text<'a>(name: &str, p: *const c_char) -> Result<&'a [u8], CallFailure> {
    if p.is_null() {
        return Err(invalid(format!("{name} is NULL")));
    }
    // SAFETY: by the contract.
    Ok(unsafe { CStr::from_ptr(p) }.to_bytes())
}

/// As [`text`], of UTF-8.
///
/// # Safety
///
/// As for [`text`].
pub(super) unsafe fn utf8<'a>(name: &str, p: *const c_char) -> Result<&'a str, CallFailure> {
    // SAFETY: by the contract.
    let bytes = unsafe { text(name, p) }?;
    std::str::from_utf8(bytes).map_err(|_| invalid(format!("{name} is not UTF-8")))
}

/// Writes a C string, cut between characters if it must be.
///
/// # Safety
///
/// `to` has room for `room` bytes, or is NULL.
pub(super) unsafe fn put_text(text: &str, to: *mut c_char, room: usize) {
    if to.is_null() || room == 0 {
        return;
    }
    let mut len = text.len().min(room - 1);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    // SAFETY: by the contract.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, len);
        to.add(len).write(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(guarded::<i64>(|| panic!("on purpose")), i64::from(PAGEOPS_EPANIC));
        let mut text = [1u8; 40];
        // SAFETY: as many bytes as are said.
        let code: i32 = unsafe { told(text.as_mut_ptr().cast(), 40, || panic!("on purpose")) };
        assert_eq!(code, PAGEOPS_EPANIC);
        assert_eq!(
            &text[..39],
            &b"a defect of libvmtax_pageops: the message on standard error"[..39]
        );
        assert_eq!(text[39], 0);
        // SAFETY: no room.
        let none = unsafe { handle::<u8>(std::ptr::null_mut(), 0, || panic!("on purpose")) };
        assert!(none.is_null());
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let mut text = [1u8; 4];
        // SAFETY: as many bytes as are said.
        unsafe { put_text("aéé", text.as_mut_ptr().cast(), 3) };
        assert_eq!(text, [b'a', 0, 1, 1]);
    }
}
