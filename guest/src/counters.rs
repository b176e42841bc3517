//! Processor events of a client and its children, from the client's first instruction on.
//!
//! The events belong to the thread that starts the client, which inherits them. `perf stat` is not used: it loses the exit code of a
//! program that ends early.

use vmtax_guest::job::{EVENTS, JobCounter};
use vmtax_vpmu::host::perf_event::{EventOptions, EventSource, PerfEventHost};
use vmtax_vpmu::host::{EventHost, EventId, EventReading, EventRequest};
use vmtax_vpmu::{Counter as Register, PmuEvent, Programme, Trouble};

/// The kernel's events for [`EVENTS`]. The caches by their numbers in include/uapi/linux/perf_event.h; operation 0 is a
/// read, result 1 a miss.
const SOURCES: [EventSource; 5] = [
    EventSource::Hardware(1),
    EventSource::Hardware(5),
    EventSource::Cache { cache: 3, operation: 0, result: 1 },
    EventSource::Cache { cache: 0, operation: 0, result: 1 },
    EventSource::Cache { cache: 2, operation: 0, result: 1 },
];

/// Events of the client that this thread will start.
pub(crate) struct ClientCounters(Vec<OpenedEvents>);

struct OpenedEvents {
    name: &'static str,
    host: PerfEventHost,
    /// The event and whether it counts kernel mode too, or why it could not be created.
    event: Result<(EventId, bool), Trouble>,
}

impl ClientCounters {
    pub(crate) fn open() -> ClientCounters {
        ClientCounters(
            EVENTS.into_iter().zip(SOURCES).map(|(name, source)| opened(name, source)).collect(),
        )
    }

    /// The counts, once the client has ended.
    pub(crate) fn read(self) -> Vec<JobCounter> {
        let counter = |mut opened: OpenedEvents| {
            let read = opened.event.and_then(|(id, whole)| Ok((opened.host.read(id)?, whole)));
            let whole = read.as_ref().map_or(true, |(_, whole)| *whole);
            JobCounter {
                event: if whole { opened.name.to_owned() } else { format!("{}:u", opened.name) },
                count: read.map_err(why).and_then(|(reading, _)| count(reading)),
            }
        };
        self.0.into_iter().map(counter).collect()
    }
}

fn opened(name: &'static str, source: EventSource) -> OpenedEvents {
    let options = EventOptions { inherit: true, on_exec: true, ..EventOptions::default() };
    let stands_for = PmuEvent::Raw(0);
    let mut host = PerfEventHost::this_thread(options).with_source(stands_for, source);
    let mut create = |kernel| {
        let programme = Programme { event: stands_for, user: true, kernel };
        // No period: it is only read at the end.
        let request = EventRequest { counter: Register::General(0), programme, left: 0 };
        host.create(&request).map(|id| (id, kernel))
    };
    // Counting kernel mode needs more privileges.
    let event = create(true).or_else(|trouble| match trouble {
        Trouble::Denied => create(false),
        other => Err(other),
    });
    OpenedEvents { name, host, event }
}

fn count(reading: EventReading) -> Result<u64, String> {
    let EventReading { count, enabled, running } = reading;
    match running {
        _ if running == enabled && enabled > 0 => Ok(count),
        0 => Err("the event was never scheduled on a counter".to_owned()),
        // Counts are not extrapolated.
        _ => Err(format!(
            "counted only {:.1}% of the time: events shared a counter",
            running as f64 / enabled as f64 * 100.0
        )),
    }
}

fn why(trouble: Trouble) -> String {
    match trouble {
        Trouble::NoSuchEvent => {
            "the processor, or the hypervisor below it, offers no such counter".to_owned()
        }
        Trouble::Denied => {
            "the kernel does not permit it; be root there, or lower kernel.perf_event_paranoid"
                .to_owned()
        }
        other => other.to_string(),
    }
}
