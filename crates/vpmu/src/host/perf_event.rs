//! The kernel's events, by perf_event_open(2), for one thread.
//!
//! Each event of the guest can be mapped to any of them, such as software events if there is no hardware PMU. The kernel saves and
//! restores them when the thread is switched.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use vmtax_perf_event::{EventAttributes, Of};

use super::sys::{self, Ring};
use super::{EventHost, EventId, EventReading, EventRequest};
use crate::error::Trouble;
use crate::event::{PmuEvent, Programme};

/// One of the kernel's events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSource {
    /// One of `PERF_COUNT_HW_*`.
    Hardware(u8),
    /// One of a cache: its number, the operation's and the result's, as in `PERF_COUNT_HW_CACHE_*`.
    Cache {
        /// L1D 0, L1I 1, LL 2, DTLB 3, ITLB 4, BPU 5, NODE 6.
        cache: u8,
        /// Read 0, write 1, prefetch 2.
        operation: u8,
        /// Access 0, miss 1.
        result: u8,
    },
    /// A raw event, as in the processor's event select.
    Raw(u64),
    /// A tracepoint, by the number in the file `id` of its folder in tracefs. It is hit in kernel mode, so it counts only for programmes
    /// that count kernel mode.
    Tracepoint(u64),
    /// A software event.
    Software(Software),
}

/// Software events: `PERF_COUNT_SW_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Software {
    /// CPU clock, ns.
    CpuClock = 0,
    /// Task clock, ns.
    TaskClock = 1,
    /// Page faults.
    PageFaults = 2,
    /// Context switches.
    ContextSwitches = 3,
    /// CPU migrations.
    Migrations = 4,
    /// Page faults without I/O.
    MinorFaults = 5,
    /// Page faults with I/O.
    MajorFaults = 6,
}

impl EventSource {
    /// The kernel's default event for an event of the guest.
    fn of(event: PmuEvent) -> EventSource {
        match event {
            PmuEvent::Cycles => EventSource::Hardware(0),
            PmuEvent::Instructions => EventSource::Hardware(1),
            PmuEvent::CacheReferences => EventSource::Hardware(2),
            PmuEvent::CacheMisses => EventSource::Hardware(3),
            PmuEvent::Branches => EventSource::Hardware(4),
            PmuEvent::BranchMisses => EventSource::Hardware(5),
            PmuEvent::ReferenceCycles => EventSource::Hardware(9),
            // Code 0 with unit mask 4 is how the kernel names the fixed counter of slots.
            PmuEvent::Slots => EventSource::Raw(0x0400),
            PmuEvent::Raw(config) => EventSource::Raw(config),
        }
    }

    /// Type and configuration in `struct perf_event_attr`.
    fn kind_and_config(self) -> (u32, u64) {
        match self {
            EventSource::Hardware(id) => (0, id.into()),
            EventSource::Software(software) => (1, software as u64),
            EventSource::Tracepoint(id) => (2, id),
            EventSource::Cache { cache, operation, result } => {
                let parts = [cache, operation, result].map(u64::from);
                (3, parts[0] | parts[1] << 8 | parts[2] << 16)
            }
            EventSource::Raw(config) => (4, config),
        }
    }
}

/// Options of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventOptions {
    /// Count only while a guest runs.
    pub exclude_host: bool,
    /// Pinned: always on a hardware counter or in error, never multiplexed.
    pub pinned: bool,
    /// Threads that the thread starts count too. Such an event has no buffer: its overflows are found by reading it.
    pub inherit: bool,
    /// Count only what a program does that is started: from the next exec on, the thread's own or, inherited, that of
    /// a process that it starts.
    pub on_exec: bool,
    /// Count in user and kernel mode, whatever the programme says. For software events and tracepoints of vCPU threads: only hardware
    /// events know the guest's mode.
    pub any_mode: bool,
    /// Signal sent to the thread at an overflow, which makes it leave the guest.
    pub signal: Option<i32>,
}

/// An open event.
#[derive(Debug)]
struct OpenEvent {
    file: File,
    ring: Option<Ring>,
    /// Count at which an event without a buffer overflows.
    overflow: u64,
}

/// The kernel's events of one thread.
#[derive(Debug)]
pub struct PerfEventHost {
    thread: i32,
    options: EventOptions,
    sources: BTreeMap<PmuEvent, EventSource>,
    events: BTreeMap<EventId, OpenEvent>,
    opened: u64,
    overflowed: VecDeque<EventId>,
    throttled: VecDeque<EventId>,
}

impl PerfEventHost {
    /// Events of the calling thread.
    pub fn this_thread(options: EventOptions) -> PerfEventHost {
        PerfEventHost::new(sys::this_thread(), options)
    }

    /// Events of a thread by its id.
    pub fn new(thread: i32, options: EventOptions) -> PerfEventHost {
        PerfEventHost {
            thread,
            options,
            sources: BTreeMap::new(),
            events: BTreeMap::new(),
            opened: 0,
            overflowed: VecDeque::new(),
            throttled: VecDeque::new(),
        }
    }

    /// Maps an event of the guest to one of the kernel's.
    pub fn with_source(mut self, event: PmuEvent, source: EventSource) -> PerfEventHost {
        self.sources.insert(event, source);
        self
    }

    /// Opens the kernel's event for a programme, with a period or without.
    fn open(&self, programme: &Programme, period: u64) -> Result<OwnedFd, Trouble> {
        const ENABLED_AND_RUNNING: u64 = 1 | 2;
        let source =
            self.sources.get(&programme.event).copied().unwrap_or(EventSource::of(programme.event));
        let (kind, config) = source.kind_and_config();
        // Bits of the attribute, in the order of include/uapi/linux/perf_event.h.
        let flags = [
            (0, self.options.on_exec),
            (1, self.options.inherit),
            (2, self.options.pinned),
            (4, !programme.user && !self.options.any_mode),
            (5, !programme.kernel && !self.options.any_mode),
            // Hypervisors below this host are not the guest.
            (6, true),
            (12, self.options.on_exec),
            (19, self.options.exclude_host),
        ];
        let attr = EventAttributes {
            kind,
            config,
            sample_period: period,
            read_format: ENABLED_AND_RUNNING,
            flags: flags.iter().map(|(bit, on)| u64::from(*on) << bit).sum(),
            wakeup_events: 1,
            ..EventAttributes::default()
        };
        vmtax_perf_event::open(&attr, Of::Thread(self.thread)).map_err(trouble)
    }

    fn event(&self, id: EventId) -> Result<&OpenEvent, Trouble> {
        self.events.get(&id).ok_or(Trouble::NoSuchEvent)
    }

    /// Collects what the kernel reported about all events.
    fn collect(&mut self) {
        for (id, event) in &mut self.events {
            let records = match &event.ring {
                Some(ring) => ring.take(),
                None => {
                    let count = read(&event.file).map_or(0, |r| r.count);
                    let overflowed = count >= event.overflow;
                    if overflowed {
                        event.overflow = u64::MAX;
                    }
                    sys::Records { overflowed, throttled: false }
                }
            };
            if records.overflowed {
                self.overflowed.push_back(*id);
            }
            if records.throttled {
                self.throttled.push_back(*id);
            }
        }
    }
}

/// The trouble of an error number.
fn trouble(error: io::Error) -> Trouble {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => Trouble::Denied,
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV) => Trouble::NoSuchEvent,
        Some(libc::EMFILE | libc::ENFILE) => Trouble::TooManyFiles,
        Some(libc::ENOMEM) => Trouble::NoMemory,
        Some(libc::ESRCH) => Trouble::ThreadGone,
        other => Trouble::Other(other.unwrap_or(0)),
    }
}

/// Count, time enabled, time running.
fn read(mut file: &File) -> Result<EventReading, Trouble> {
    let mut bytes = [0; 24];
    match file.read(&mut bytes).map_err(trouble)? {
        // End of file means that a pinned event lost its counter.
        0 => Err(Trouble::Taken),
        24 => {
            let (words, _) = bytes.as_chunks();
            let [count, enabled, running] = [0, 1, 2].map(|i| u64::from_ne_bytes(words[i]));
            Ok(EventReading { count, enabled, running })
        }
        _ => Err(Trouble::Other(0)),
    }
}

impl EventHost for PerfEventHost {
    fn create(&mut self, request: &EventRequest) -> Result<EventId, Trouble> {
        let fd = self.open(&request.programme, request.left)?;
        if let Some(signal) = self.options.signal {
            sys::signal(&fd, signal, self.thread).map_err(trouble)?;
        }
        let ring = match self.options.inherit {
            true => None,
            // The kernel answers EPERM when the user's buffers exceed their limit.
            false => Some(Ring::map(&fd, false).map_err(|_| Trouble::NoMemory)?),
        };
        self.opened += 1;
        let id = EventId(self.opened);
        self.events.insert(id, OpenEvent { file: fd.into(), ring, overflow: request.left });
        Ok(id)
    }

    fn enable(&mut self, id: EventId) -> Result<(), Trouble> {
        sys::control(&self.event(id)?.file, sys::EventIoctl::Enable).map_err(trouble)
    }

    fn disable(&mut self, id: EventId) -> Result<(), Trouble> {
        sys::control(&self.event(id)?.file, sys::EventIoctl::Disable).map_err(trouble)
    }

    fn read(&mut self, id: EventId) -> Result<EventReading, Trouble> {
        read(&self.event(id)?.file)
    }

    fn set_left(&mut self, id: EventId, left: u64) -> Result<(), Trouble> {
        let event = self.events.get_mut(&id).ok_or(Trouble::NoSuchEvent)?;
        if event.ring.is_none() {
            event.overflow = read(&event.file)?.count + left;
        }
        sys::control(&event.file, sys::EventIoctl::Period(left)).map_err(trouble)
    }

    fn close(&mut self, id: EventId) {
        self.events.remove(&id);
    }

    fn take_overflow(&mut self) -> Option<EventId> {
        if self.overflowed.is_empty() {
            self.collect();
        }
        self.overflowed.pop_front()
    }

    fn take_throttled(&mut self) -> Option<EventId> {
        self.throttled.pop_front()
    }

    fn probe(&self, event: PmuEvent) -> Result<(), Trouble> {
        self.open(&Programme { event, user: true, kernel: false }, 0).map(|_| ())
    }

    fn capacity(&self) -> Option<usize> {
        None
    }

    fn saves_at_switch(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_have_advice() {
        let table = [
            (libc::EACCES, "the host does not allow this event; see kernel.perf_event_paranoid"),
            (libc::ENOENT, "the host cannot count this event"),
            (libc::EMFILE, "the process has too many open files; raise its limit"),
            (libc::ESRCH, "the vCPU's thread has ended"),
            (libc::EBUSY, "error 16 of the host"),
        ];
        for (number, text) in table {
            assert_eq!(trouble(io::Error::from_raw_os_error(number)).to_string(), text);
        }
    }

    #[test]
    fn sources_are_the_kernels_types_and_configurations() {
        let table = [
            (EventSource::of(PmuEvent::Cycles), (0, 0)),
            (EventSource::of(PmuEvent::Branches), (0, 4)),
            (EventSource::of(PmuEvent::Raw(0x1_01c2)), (4, 0x1_01c2)),
            (EventSource::Software(Software::ContextSwitches), (1, 3)),
            (EventSource::Tracepoint(1234), (2, 1234)),
            // Misses of writes to the last level cache.
            (EventSource::Cache { cache: 2, operation: 1, result: 1 }, (3, 0x1_01_02)),
        ];
        for (source, expected) in table {
            assert_eq!(source.kind_and_config(), expected, "{source:?}");
        }
    }
}
