//! Keeps the vCPUs of a VM outside of it while one of them waits for this program.
//!
//! The others would use the one processor meanwhile, or spin on it; and an emulated host cannot be saved while a guest runs.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::kick;

/// Time between two looks at a vCPU that is to leave its guest.
const LOOK: Duration = Duration::from_micros(50);

/// The gate of a VM.
pub(crate) struct VmGate {
    state: Mutex<GateState>,
    opened: Condvar,
}

struct GateState {
    closed: bool,
    seats: Vec<Seat>,
}

struct Seat {
    /// Its thread, from its first entry on.
    thread: Option<libc::pthread_t>,
    outside: bool,
}

impl VmGate {
    /// An open one.
    pub(crate) fn new(vcpus: u32) -> VmGate {
        let seats = (0..vcpus).map(|_| Seat { thread: None, outside: true }).collect();
        VmGate { state: Mutex::new(GateState { closed: false, seats }), opened: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called by a vCPU's thread before each entry; returns when the gate is open.
    pub(crate) fn pass(&self, vcpu: u32) {
        let mut state = self.state();
        while state.closed {
            state.seats[vcpu as usize].outside = true;
            state = self.opened.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let seat = &mut state.seats[vcpu as usize];
        seat.outside = false;
        // SAFETY: asks for this thread's own handle.
        seat.thread = Some(unsafe { libc::pthread_self() });
    }

    /// Closes it and returns when all vCPUs but this one are outside.
    pub(crate) fn close(&self, vcpu: u32) {
        self.state().closed = true;
        while self.kick_all_but(vcpu) {
            std::thread::sleep(LOOK);
        }
    }

    /// Kicks the vCPUs that are inside; false if none is. A vCPU that is about to enter misses it.
    fn kick_all_but(&self, vcpu: u32) -> bool {
        // Held meanwhile: a vCPU's thread does not end before its seat is empty.
        let state = self.state();
        let mut any = false;
        for (number, seat) in (0..).zip(&state.seats) {
            if let (false, false, Some(thread)) = (number == vcpu, seat.outside, seat.thread) {
                kick(thread);
                any = true;
            }
        }
        any
    }

    pub(crate) fn open(&self) {
        self.state().closed = false;
        self.opened.notify_all();
    }

    /// A vCPU has ended and comes no more. Its thread must not be kicked.
    pub(crate) fn leave(&self, vcpu: u32) {
        let seat = &mut self.state().seats[vcpu as usize];
        *seat = Seat { thread: None, outside: true };
    }
}
