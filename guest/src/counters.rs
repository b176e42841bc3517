//! Processor events of a client and its children, from the client's first instruction on.
//!
//! The events belong to the thread that starts the client, which inherits them. `perf stat` is not used: it loses the exit code of a
//! program that ends early.

use vmtax_guest::job::{Counter, EVENTS};
use vmtax_vpmu::host::perf_event::{Options, PerfEventHost, Source};
use vmtax_vpmu::host::{EventId, Host, Reading, Request};
use vmtax_vpmu::{Counter as Register, Event, Programme, Trouble};

/// The kernel's events for [`EVENTS`]. The caches by their numbers in include/uapi/linux/perf_event.h; operation 0 is a
/// read, result 1 a miss.
const SOURCES: [Source; 5] = [
    Source::Hardware(1),
    Source::Hardware(5),
    Source::Cache { cache: 3, operation: 0, result: 1 },
    Source::Cache { cache: 0, operation: 0, result: 1 },
    Source::Cache { cache: 2, operation: 0, result: 1 },
];

/// Events of the client that this thread will start.
pub(crate) struct Counters(Vec<Opened>);

struct Opened {
    name: &'static str,
    host: PerfEventHost,
    /// The event and whether it counts kernel mode too, or why it could not be created.
    event: Result<(EventId, bool), Trouble>,
}

impl Counters {
    pub(crate) fn open() -> Counters {
        Counters(
            EVENTS.into_iter().zip(SOURCES).map(|(name, source)| opened(name, source)).collect(),
        )
    }

    /// The counts, once the client has ended.
    pub(crate) fn read(self) -> Vec<Counter> {
        let counter = |mut opened: Opened| {
            let read = opened.event.and_then(|(id, whole)| Ok((opened.host.read(id)?, whole)));
            let whole = read.as_ref().map_or(true, |(_, whole)| *whole);
            Counter {
                event: if whole { opened.name.to_owned() } else { format!("{}:u", opened.name) },
                count: read.map_err(why).and_then(|(reading, _)| count(reading)),
            }
        };
        self.0.into_iter().map(counter).collect()
    }
}

fn opened(name: &'static str, source: Source) -> Opened {
    let options = Options { inherit: true, on_exec: true, ..Options::default() };
    let stands_for = Event::Raw(0);
    let mut host = PerfEventHost::this_thread(options).with_source(stands_for, source);
    let mut create = |kernel| {
        let programme = Programme { event: stands_for, user: true, kernel };
        // No period: it is only read at the end.
        let request = Request { counter: Register::General(0), programme, left: 0 };
        host.create(&request).map(|id| (id, kernel))
    };
    // Counting kernel mode needs more privileges.
    let event = create(true).or_else(|trouble| match trouble {
        Trouble::Denied => create(false),
        other => Err(other),
    });
    Opened { name, host, event }
}

fn count(reading: Reading) -> Result<u64, String> {
    let Reading { count, enabled, running } = reading;
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
