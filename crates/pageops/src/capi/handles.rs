//! Handles: numbers for objects. A number that was never given, or was freed, is found in no table.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::PAGEOPS_EINVAL;
use super::arguments::CallFailure;

/// Objects of one kind. Numbers are never given twice.
pub(super) struct Handles<T> {
    /// What errors call the kind.
    kind: &'static str,
    live: RwLock<BTreeMap<usize, Arc<T>>>,
}

/// Shared by all kinds, so that a job's number is no engine's; small numbers are none.
static NEXT: AtomicUsize = AtomicUsize::new(1 << 20);

impl<T> Handles<T> {
    pub(super) const fn new(kind: &'static str) -> Handles<T> {
        Handles { kind, live: RwLock::new(BTreeMap::new()) }
    }

    /// Keeps an object until its handle is freed.
    pub(super) fn put<Opaque>(&self, object: T) -> *mut Opaque {
        // Odd, so that no address of an object of C is one.
        let number = NEXT.fetch_add(1, Ordering::Relaxed) * 2 + 1;
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        live.insert(number, Arc::new(object));
        std::ptr::without_provenance_mut(number)
    }

    /// The object of a handle.
    pub(super) fn get<Opaque>(&self, handle: *const Opaque) -> Result<Arc<T>, CallFailure> {
        let live = self.live.read().unwrap_or_else(PoisonError::into_inner);
        live.get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle.is_null()))
    }

    /// Ends a handle. The object lives until the last call that uses it returns.
    pub(super) fn remove<Opaque>(&self, handle: *const Opaque) -> Result<Arc<T>, CallFailure> {
        let mut live = self.live.write().unwrap_or_else(PoisonError::into_inner);
        live.remove(&handle.addr()).ok_or_else(|| self.unknown(handle.is_null()))
    }

    fn unknown(&self, null: bool) -> CallFailure {
        let kind = self.kind;
        let what = match null {
            true => format!("the {kind} is NULL"),
            false => format!("this is no {kind}, or it was freed"),
        };
        CallFailure { code: PAGEOPS_EINVAL, what }
    }
}
