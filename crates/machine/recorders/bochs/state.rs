//! The recorder that the hooks share.

use std::cell::UnsafeCell;

use crate::record::Recorder;

/// State shared by all hooks. Bochs calls them from its single emulation thread.
pub(crate) struct HookState(pub(crate) UnsafeCell<Option<Recorder>>);

// SAFETY: see the type.
unsafe impl Sync for HookState {}

pub(crate) static SHARED: HookState = HookState(UnsafeCell::new(None));

/// # Safety
/// No reference returned earlier may still be in use: each hook calls this once.
#[inline]
pub(crate) unsafe fn recorder<'a>() -> Option<&'a mut Recorder> {
    // SAFETY: one thread, and the caller guarantees that there is no other reference.
    unsafe { (*SHARED.0.get()).as_mut() }
}
