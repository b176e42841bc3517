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
    threads: Threads,
}

/// The threads of a window, in order of appearance.
#[derive(Debug, Default)]
struct Threads(HashMap<u32, u32>);

impl Threads {
    /// The event as one of this VM's.
    fn moved(&mut self, event: &Event, vm: u32) -> Event {
        let mut tid = |tid: u32| {
            let next = self.0.len() as u32;
            vm.saturating_mul(THREADS).saturating_add(*self.0.entry(tid).or_insert(next))
        };
        let mut moved = Event { pid: vm, tid: tid(event.tid), ..*event };
        if let Kind::Switch { next_tid, preempted } = event.kind {
            moved.kind = Kind::Switch { next_tid: tid(next_tid), preempted };
        }
        moved
    }
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
            self.threads.0.clear();
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
        self.threads.moved(event, vm_of(operation))
    }
}

/// A recording that a VM's agent started and stopped, by a write to a port each: all of it is one VM's.
#[derive(Debug)]
pub struct Window {
    vm: u32,
    state: Stretch,
    threads: Threads,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stretch {
    /// The VM that started it was not entered yet. A guest's guest is so by its host.
    Starting {
        nested: bool,
    },
    Inside,
    Over,
}

impl Window {
    /// Whose events they are to be, and whether the agent runs in a guest's guest.
    pub fn new(vm: u32, nested: bool) -> Window {
        Window { vm, state: Stretch::Starting { nested }, threads: Threads::default() }
    }

    /// The event as one of the VM's, or `None` when it belongs to starting or stopping.
    pub fn place(&mut self, event: &Event) -> Option<Event> {
        if let Kind::Exit { reason, info1, .. } = event.kind
            && port(reason, info1) == Some(layout::TRACE)
            && self.state == Stretch::Inside
        {
            self.state = Stretch::Over;
        }
        match (self.state, event.kind) {
            (Stretch::Starting { nested: true }, Kind::NestedEnter) => {
                self.state = Stretch::Starting { nested: false };
                return None;
            }
            (Stretch::Starting { nested: false }, Kind::Entry) => self.state = Stretch::Inside,
            _ => {}
        }
        (self.state == Stretch::Inside).then(|| self.threads.moved(event, self.vm))
    }
}

/// Which mark an exit is.
fn mark(reason: Reason, info1: u64) -> Option<(u16, bool)> {
    port(reason, info1).and_then(layout::mark)
}

/// The port of an exit for one. Both processors have it in bits 16 to 31 of the first information word.
fn port(reason: Reason, info1: u64) -> Option<u16> {
    let io = match reason.isa {
        Isa::Svm => SVM_IO,
        Isa::Vmx => VMX_IO,
        Isa::Unknown => return None,
    };
    (reason.code == io).then_some((info1 >> 16) as u16)
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
    fn an_agent_starts_and_stops_a_recording() {
        let events = [
            event(1, 7, exit(0x72, 0)),
            event(2, 7, Kind::Entry),
            event(3, 9, exit(0x72, 0)),
            event(4, 7, Kind::NestedEnter),
            event(5, 7, Kind::Entry),
            event(6, 7, exit(SVM_IO, layout::TRACE)),
            event(7, 7, Kind::Entry),
        ];
        let placed = |nested| {
            let mut window = Window::new(70_000, nested);
            let placed = events.iter().filter_map(|e| window.place(e));
            placed.map(|e| (e.time_ns, e.pid, e.tid - 70_000 * THREADS)).collect::<Vec<_>>()
        };
        assert_eq!(placed(false), [2, 3, 4, 5].map(|t| (t, 70_000, u32::from(t == 3))));
        assert_eq!(placed(true), [(5, 70_000, 0)]);
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
