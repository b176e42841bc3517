//! How long the machine has been idle: time that its clock went on without instructions.
//!
//! A QEMU that counts instructions (`-icount`) has a clock that is their number and what was skipped while the vCPU waited. Two of its
//! functions give the clock and the number. On the vCPU's thread they may be called between blocks only, which no callback is;
//! any other thread gets what they were when the vCPU last looked, and their difference is the same.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::api::symbol;

type Read = unsafe extern "C" fn() -> i64;

/// The thread that asks.
pub(crate) struct Clock {
    ask: SyncSender<()>,
    answers: Receiver<u64>,
}

impl Clock {
    /// `None` where this QEMU does not export the functions.
    pub(crate) fn start() -> Option<Clock> {
        let [clock, instructions] = [c"icount_get", c"icount_get_raw"].map(|name| {
            // SAFETY: both take nothing and return an int64_t.
            symbol(name)
                .map(|found| unsafe { std::mem::transmute::<*mut std::ffi::c_void, Read>(found) })
        });
        let (clock, instructions) = (clock?, instructions?);
        let (ask, asked) = sync_channel::<()>(0);
        let (answer, answers) = sync_channel(0);
        let body = move || {
            for () in asked {
                // SAFETY: they read under QEMU's own lock; the vCPU's thread waits meanwhile.
                let idle = unsafe { clock().wrapping_sub(instructions()) };
                if answer.send(idle.cast_unsigned()).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("vmtax-clock".to_owned()).spawn(body).ok()?;
        Some(Clock { ask, answers })
    }

    /// Nanoseconds in all.
    pub(crate) fn idle(&self) -> Option<u64> {
        self.ask.send(()).ok()?;
        self.answers.recv().ok()
    }
}
