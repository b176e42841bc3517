//! Which events of a recording belong to which operation.
//!
//! A payload writes to a port before and after each batch, and those writes are exits that the recording has. From the
//! entry that follows the first to the exit of the second all that the VM does belongs to the batch:
//!
//! ```text
//!  L1 │ OUT begin  entry │ exit entry exit entry ... │ OUT end
//!     │            ▲──────────── window ────────────▲│
//!  L2 │ OUT begin  (L1's exits)  nested enter  entry │ exit entry ... │ OUT end
//!     │                                        ▲───── window ────────▲│
//! ```
//! In the window events get a process and threads of their own, so that the analysis, which knows nothing of
//! operations, takes each operation for a VM.

use std::collections::HashMap;

use vmtax_events::{Event, Isa, Kind, Reason};
use vmtax_guest::layout;

/// Thread ids of an operation's events start here, times its VM's id.
const THREADS: u32 = 0x100;

/// `SVM_EXIT_IOIO` and `EXIT_REASON_IO_INSTRUCTION`.
const SVM_IO: u32 = 0x7b;
const VMX_IO: u32 = 30;

/// The windows of a recording; events go in in time order.
#[derive(Debug, Default)]
pub struct Windows {
    state: State,
    /// The threads of the present window, in order of appearance.
    threads: HashMap<u32, u32>,
}

#[derive(Debug, Default, Clone, Copy)]
enum State {
    #[default]
    Outside,
    /// Begin was seen on this thread; the window opens at its entry.
    Opening {
        operation: u16,
        tid: u32,
        level: Level,
    },
    Inside {
        operation: u16,
    },
}

/// Where the begin was executed, and what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    /// In L1, as far as is known: the next entry opens.
    One,
    /// In L2: L1 has to resume L2 first.
    Two,
    /// L1 has; the next entry opens.
    Resumed,
}

/// The VM id of an operation.
pub fn vm_of(operation: u16) -> u32 {
    u32::from(operation) + 1
}

impl Windows {
    /// The event as one of its operation's, or `None` when it belongs to none.
    pub fn place(&mut self, event: &Event) -> Option<Event> {
        if let Kind::Exit { reason, info1, .. } = event.kind
            && let Some((operation, begins)) = mark(reason, info1)
        {
            self.threads.clear();
            self.state = if begins {
                State::Opening { operation, tid: event.tid, level: Level::One }
            } else {
                State::Outside
            };
            return None;
        }
        match self.state {
            State::Outside => None,
            State::Opening { operation, tid, level } => {
                if event.tid != tid {
                    return None;
                }
                let level = match event.kind {
                    Kind::NestedExit { .. } => Level::Two,
                    Kind::NestedEnter if level == Level::Two => Level::Resumed,
                    Kind::Entry if level != Level::Two => {
                        self.state = State::Inside { operation };
                        return Some(self.moved(event, operation));
                    }
                    _ => level,
                };
                self.state = State::Opening { operation, tid, level };
                None
            }
            State::Inside { operation } => Some(self.moved(event, operation)),
        }
    }

    fn moved(&mut self, event: &Event, operation: u16) -> Event {
        let vm = vm_of(operation);
        let mut tid = |tid: u32| {
            let next = self.threads.len() as u32;
            vm * THREADS + *self.threads.entry(tid).or_insert(next)
        };
        let mut moved = Event { pid: vm, tid: tid(event.tid), ..*event };
        if let Kind::Switch { next_tid, preempted } = event.kind {
            moved.kind = Kind::Switch { next_tid: tid(next_tid), preempted };
        }
        moved
    }
}

/// Which mark an exit is. Both processors have the port in bits 16 to 31 of the first information word.
fn mark(reason: Reason, info1: u64) -> Option<(u16, bool)> {
    let io = match reason.isa {
        Isa::Svm => SVM_IO,
        Isa::Vmx => VMX_IO,
        Isa::Unknown => return None,
    };
    (reason.code == io).then(|| layout::mark((info1 >> 16) as u16)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(time_ns: u64, tid: u32, kind: Kind) -> Event {
        Event { time_ns, pid: 0, tid, cpu: 0, vcpu: 0, kind }
    }

    fn exit(code: u32, port: u16) -> Kind {
        Kind::Exit {
            reason: Reason { isa: Isa::Svm, code, flags: 0 },
            info1: u64::from(port) << 16,
            info2: 0,
        }
    }

    /// Times of the events that are in a window, with their VM.
    fn placed(events: &[Event]) -> Vec<(u64, u32, u32)> {
        let mut windows = Windows::default();
        events.iter().filter_map(|e| windows.place(e)).map(|e| (e.time_ns, e.pid, e.tid)).collect()
    }

    #[test]
    fn a_window_is_between_the_marks() {
        let events = [
            event(1, 7, exit(0x72, 0)),
            event(2, 7, Kind::Entry),
            event(3, 7, exit(SVM_IO, layout::begin(4))),
            event(4, 8, Kind::Entry),
            event(5, 7, Kind::Entry),
            event(6, 7, exit(0x72, 0)),
            event(7, 8, exit(0x78, 0)),
            event(8, 7, Kind::Entry),
            event(9, 7, exit(SVM_IO, layout::end(4))),
            event(10, 7, Kind::Entry),
        ];
        assert_eq!(placed(&events), [(5, 5, 0x500), (6, 5, 0x500), (7, 5, 0x501), (8, 5, 0x500)]);
    }

    #[test]
    fn in_l2_it_opens_when_l1_has_resumed_l2() {
        let reason = Reason { isa: Isa::Svm, code: SVM_IO, flags: 0 };
        let events = [
            event(1, 7, exit(SVM_IO, layout::begin(0))),
            event(2, 7, Kind::NestedExit { reason }),
            event(3, 7, Kind::NestedInject { reason }),
            event(4, 7, Kind::Entry),
            event(5, 7, exit(0x80, 0)),
            event(6, 7, Kind::NestedEnter),
            event(7, 7, Kind::Entry),
            event(8, 7, exit(0x72, 0)),
            event(9, 7, exit(SVM_IO, layout::end(0))),
        ];
        assert_eq!(placed(&events), [(7, 1, 0x100), (8, 1, 0x100)]);
    }
}
