//! Whether the columns of a text are what they are read as: contradictions with its own events show that they are not.
//!
//! | text | shows by |
//! |---|---|
//! | processes in the column of threads (`perf script -F pid`) | `prev_pid` of sched_switch; threads that are several vCPUs in turn |
//! | differences in the column of times (`perf script --deltatime`) | times that go back again and again |
//! | a TSC below 1 GHz (`trace-cmd report` reads `mult` of TSC2NSEC as a signed number) | times beyond 292 years, which run backwards |
//! | a tracepoint that was recorded twice | pairs of equal events, one right behind the other |
//! | two texts in one file (`cat a.txt b.txt`) | a time that goes back by most of the time before it, on the same processor |
//! | samples that begin behind the first lines | a period above 1 |

use std::collections::{BTreeMap, HashMap, HashSet};

use vmtax_events::event::HypercallInterface;
use vmtax_events::{Event, EventKind, NO_VCPU};

use super::decode::DecodedBlock;
use crate::Error;

/// Fewer contradictions may be damage.
const FEW: u64 = 8;
/// A shorter way back is that of a recorder that empties one ring after the other, ns.
const FAR_NS: u64 = 100_000_000;
/// Threads that are followed.
const MOST_THREADS: usize = 1 << 16;

/// What `perf script` has to print.
const COLUMNS: &str = "print it with perf script -F comm,pid,tid,cpu,time,event,trace";

/// Counts of contradictions.
#[derive(Default)]
pub(super) struct Checks {
    switches: u64,
    foreign_switches: u64,
    is_sampled_late: bool,
    /// Times, and those that are earlier than the one before.
    times: u64,
    steps_back: u64,
    first_ns: u64,
    last_ns: u64,
    /// Processors, and the first time that went far back on one of them: from and to.
    cpus: HashSet<u32>,
    joined: Option<(u64, u64)>,
    /// Events that name their vCPU, and those of another vCPU than their thread's before.
    vcpus: u64,
    other_vcpus: u64,
    threads: HashMap<u32, CheckedThread>,
    /// Events by tracepoint, and those that equal the one before of their thread.
    kinds: BTreeMap<&'static str, (u64, u64)>,
}

/// A thread's last event, and its last vCPU.
struct CheckedThread {
    last: EventKind,
    vcpu: u32,
}

impl Checks {
    /// Adds what a block counts.
    pub(super) fn block(&mut self, decoded: &DecodedBlock) {
        self.switches += decoded.switches;
        self.foreign_switches += decoded.foreign_switches;
        self.is_sampled_late |= decoded.is_sampled_late;
    }

    /// The next event.
    pub(super) fn event(&mut self, event: &Event) {
        if event.time_ns > 0 {
            self.times += 1;
            if event.time_ns < self.last_ns {
                self.goes_back(event);
            }
            if self.times == 1 {
                self.first_ns = event.time_ns;
            }
            if self.cpus.len() < MOST_THREADS {
                self.cpus.insert(event.cpu);
            }
            self.last_ns = event.time_ns;
        }
        self.vcpus += u64::from(event.vcpu != NO_VCPU);
        let mut is_again = false;
        if let Some(thread) = self.threads.get_mut(&event.tid) {
            is_again = thread.last == event.kind;
            thread.last = event.kind;
            if event.vcpu != NO_VCPU {
                let before = std::mem::replace(&mut thread.vcpu, event.vcpu);
                self.other_vcpus += u64::from(before != NO_VCPU && before != event.vcpu);
            }
        } else if self.threads.len() < MOST_THREADS {
            let thread = CheckedThread { last: event.kind, vcpu: event.vcpu };
            self.threads.insert(event.tid, thread);
        }
        if let Some(name) = tracepoint(&event.kind) {
            let sum = self.kinds.entry(name).or_default();
            *sum = (sum.0 + 1, sum.1 + u64::from(is_again));
        }
    }

    fn goes_back(&mut self, event: &Event) {
        self.steps_back += 1;
        let back = self.last_ns - event.time_ns;
        let is_far = back > FAR_NS && back > self.last_ns.saturating_sub(self.first_ns) / 2;
        // Texts of single processors may stand behind one another.
        if is_far && self.cpus.contains(&event.cpu) {
            self.joined.get_or_insert((self.last_ns, event.time_ns));
        }
    }

    /// The first contradiction that is no damage.
    pub(super) fn finish(&self) -> Result<(), Error> {
        self.check_signs()?;
        if self.is_sampled_late {
            return refuse(
                "columns of perf script",
                "some events stand for several (their period is above 1), and the first do not: give the recording (perf.data) itself".to_owned(),
            );
        }
        if self.foreign_switches >= 2 && self.foreign_switches > self.switches / 50 {
            return refuse(
                "columns",
                format!(
                    "the column that is read as the thread is not: {} of {} sched_switch have another prev_pid (perf script -F pid prints the process); {COLUMNS}",
                    self.foreign_switches, self.switches
                ),
            );
        }
        if self.other_vcpus >= FEW && self.other_vcpus > self.vcpus / 10 {
            return refuse(
                "columns",
                format!(
                    "the column that is read as the thread is not: {} of {} events are of another vCPU than the one before of the same thread (perf script -F pid prints the process); {COLUMNS}",
                    self.other_vcpus, self.vcpus
                ),
            );
        }
        if self.steps_back >= FEW && self.steps_back > self.times / 10 {
            return refuse(
                "times",
                format!(
                    "{} of {} events are earlier than the event before: the times are differences (perf script --deltatime); print it without",
                    self.steps_back, self.times
                ),
            );
        }
        if let Some((from, to)) = self.joined {
            let seconds = |ns: u64| ns as f64 / 1e9;
            return refuse(
                "times",
                format!(
                    "they go back from {:.6} to {:.6} s: another text begins there; give each in a file of its own",
                    seconds(from),
                    seconds(to)
                ),
            );
        }
        self.pairs()
    }

    fn check_signs(&self) -> Result<(), Error> {
        if i64::try_from(self.first_ns).is_ok() {
            return Ok(());
        }
        refuse(
            "times",
            "they are negative: trace-cmd report takes a TSC below 1 GHz for one that runs backwards; give the recording itself (trace.dat)".to_owned(),
        )
    }

    /// With exits and entries between them, an event does not equal the one right before it.
    fn pairs(&self) -> Result<(), Error> {
        if !self.kinds.contains_key(EXIT) || !self.kinds.contains_key(ENTRY) {
            return Ok(());
        }
        let is_twice = |(all, again): (u64, u64)| again >= FEW && again * 2 >= all - all / 20;
        match self.kinds.iter().find(|(_, counts)| is_twice(**counts)) {
            Some((name, _)) => Err(twice(name)),
            None => Ok(()),
        }
    }
}

const EXIT: &str = "kvm_exit";
const ENTRY: &str = "kvm_entry";

/// The tracepoint of an event that an exit or an entry separates from the next of its kind.
pub(super) fn tracepoint(kind: &EventKind) -> Option<&'static str> {
    match kind {
        EventKind::Exit { .. } => Some(EXIT),
        EventKind::Entry => Some(ENTRY),
        EventKind::Msr { .. } => Some("kvm_msr"),
        EventKind::Cpuid { .. } => Some("kvm_cpuid"),
        EventKind::Hypercall { interface, .. } if *interface != HypercallInterface::Smccc => {
            Some("kvm_hypercall")
        }
        _ => None,
    }
}

/// A tracepoint was recorded twice, and a text does not tell the two apart.
pub(super) fn twice(name: &str) -> Error {
    let name = name.strip_prefix("kvm:").unwrap_or(name);
    Error::Unsupported {
        offset: 0,
        item: "events",
        problem: format!(
            "{name} was recorded twice (as with -e 'kvm:*' -e kvm:{name}), and a text does not tell its two events apart: give the recording itself"
        ),
    }
}

fn refuse(item: &'static str, problem: String) -> Result<(), Error> {
    Err(Error::Unsupported { offset: 0, item, problem })
}
