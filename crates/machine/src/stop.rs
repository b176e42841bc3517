//! The user's request to stop, which every wait checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that a signal handler sets. Clones are the same flag; the default one is never set.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag, for signal handlers and [`crate::stream::Until`].
    pub fn flag(&self) -> &Arc<AtomicBool> {
        &self.0
    }
}
