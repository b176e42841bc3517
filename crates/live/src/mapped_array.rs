//! Maps of the kernel's that are mapped here, as arrays of plain structs.

use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::Error;

/// Structs of which any bytes make a value.
///
/// # Safety
/// Integers only, without padding.
#[expect(unsafe_code, reason = "shared with the kernel")]
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: whole numbers.
#[expect(unsafe_code, reason = "shared with the kernel")]
unsafe impl Plain for u32 {}

/// The value at the front of these bytes; `None` when they are too few.
pub(crate) fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: as many bytes as a value has, and any bytes are a value; they need not be aligned.
    #[expect(unsafe_code, reason = "shared with the kernel")]
    Some(unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// The bytes of a value, as the kernel sees them.
pub(crate) fn bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: the bytes of a value without padding, for as long as it is borrowed.
    #[expect(unsafe_code, reason = "shared with the kernel")]
    unsafe {
        std::slice::from_raw_parts(ptr::from_ref(value).cast(), size_of::<T>())
    }
}

/// An array that programs in the kernel write too. Every access is volatile; what they write at the same moment may
/// come out torn, so callers read what is at rest.
pub(crate) struct MappedArray<T> {
    at: *mut T,
    count: usize,
    bytes: usize,
    kind: PhantomData<T>,
}

impl<T: Plain> MappedArray<T> {
    /// Maps an array of `count` values.
    pub(crate) fn new(
        fd: impl AsFd,
        map: &'static str,
        count: usize,
    ) -> Result<MappedArray<T>, Error> {
        let bytes = (count * size_of::<T>()).next_multiple_of(4096);
        // SAFETY: a new mapping, wherever the kernel puts it.
        #[expect(unsafe_code, reason = "shared with the kernel")]
        let at = unsafe {
            mmap(
                ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        };
        let at = at.map_err(|e| Error::Map { map, what: "map the memory", source: e.into() })?;
        Ok(MappedArray { at: at.cast(), count, bytes, kind: PhantomData })
    }

    fn place(&self, index: usize) -> *mut T {
        assert!(index < self.count, "{index} of {}", self.count);
        self.at.wrapping_add(index)
    }

    pub(crate) fn read(&self, index: usize) -> T {
        // SAFETY: within the mapping, which is aligned to pages; any bytes are a value.
        #[expect(unsafe_code, reason = "shared with the kernel")]
        unsafe {
            ptr::read_volatile(self.place(index))
        }
    }

    pub(crate) fn write(&self, index: usize, value: T) {
        // SAFETY: within the mapping, which is aligned to pages.
        #[expect(unsafe_code, reason = "shared with the kernel")]
        unsafe {
            ptr::write_volatile(self.place(index), value);
        }
    }

    /// Writes a part of a value.
    pub(crate) fn write_part<U: Plain>(&self, index: usize, offset: usize, value: U) {
        assert!(
            offset + size_of::<U>() <= size_of::<T>() && offset.is_multiple_of(align_of::<U>())
        );
        let place = self.place(index).cast::<u8>().wrapping_add(offset).cast::<U>();
        // SAFETY: within the value, and aligned as far as the value is.
        #[expect(unsafe_code, reason = "shared with the kernel")]
        unsafe {
            ptr::write_volatile(place, value);
        }
    }

    /// Takes `less` off a counter of the value that programs add to.
    pub(crate) fn subtract(&self, index: usize, offset: usize, less: u64) {
        assert!(offset + 8 <= size_of::<T>() && offset.is_multiple_of(8));
        let place = self.place(index).cast::<u8>().wrapping_add(offset).cast::<u64>();
        // SAFETY: within the value and aligned; other writers use atomic additions.
        #[expect(unsafe_code, reason = "shared with the kernel")]
        unsafe { AtomicU64::from_ptr(place) }.fetch_sub(less, Ordering::Relaxed);
    }
}

impl<T> Drop for MappedArray<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, which nothing refers to any more.
        #[expect(unsafe_code, reason = "shared with the kernel")]
        let _ = unsafe { munmap(self.at.cast(), self.bytes) };
    }
}
