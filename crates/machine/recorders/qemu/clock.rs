//! How long the machine has been idle: time by which its clock advanced without executing instructions.
//!
//! With `-icount`, QEMU's clock is the number of instructions plus the time skipped while the vCPU waited. Two of its functions
//! return the clock and the number. On the vCPU's thread they may only be called between blocks, which excludes callbacks; on any
//! other thread they return the values that the vCPU last published, whose difference is the same.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use crate::api::symbol;

type ReadClock = unsafe extern "C" fn() -> i64;

/// The thread that calls them.
pub(crate) struct TcgClock {
    ask: SyncSender<()>,
    answers: Receiver<u64>,
}

impl TcgClock {
    /// `None` if this QEMU does not export the functions.
    pub(crate) fn start() -> Option<TcgClock> {
        let [clock, instructions] = [c"icount_get", c"icount_get_raw"].map(|name| {
            // SAFETY: both take nothing and return an int64_t.
            symbol(name).map(|found| unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, ReadClock>(found)
            })
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
        Some(TcgClock { ask, answers })
    }

    /// Total idle time in nanoseconds.
    pub(crate) fn idle(&self) -> Option<u64> {
        self.ask.send(()).ok()?;
        self.answers.recv().ok()
    }
}
