//! Exits by subject, with the time that each subject cost.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{Detail, DetailKind, ExitKey, OCTAVES, Outcome, Reason, Tally, octave_bounds};

use super::beside::ExitsBeside;
use super::finding::{Evidence, FindingCost};
use super::subject::Subject;
use crate::Ledger;
use crate::ledger::running_ns;

/// A tax from which on exits are called the bottleneck: what a few percent of noise cannot hide.
pub const TAX_MATTERS: f64 = 0.05;
/// Causes, functions and kinds of ancillary exits that are named.
pub(super) const NAMED: usize = 5;
/// A subject's part of the running time from which on it is a finding.
pub(super) const WORTH: f64 = 0.01;
/// The same as a part of all exits, where there are no times.
const WORTH_OF_COUNT: f64 = 0.10;
/// Fewer exits than this are no sign of anything that lasts.
pub(super) const FEW: u64 = 20;
/// An interrupt that takes as long on average: a tick and its softirqs take some microseconds, a scheduler's turn milliseconds.
const LONG_INTERRUPT_NS: u64 = 500_000;
/// An exit that takes less on average did not go to the VMM: the way to user space and back alone takes a microsecond, and QEMU's
/// main lock and dispatch more.
const WITHOUT_VMM_NS: u64 = 2_000;
/// A fault that takes as long on average waits for the memory's content: clearing 2 MiB takes 100 to 300 us.
const WAITS_NS: u64 = 400_000;
/// KVM's default of `halt_poll_ns` on x86.
pub(super) const POLL_NS: u64 = 200_000;

/// Adds up. Counts of a stored run can be anything.
pub(super) fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

/// The sum of counts, likewise.
pub(super) fn total(counts: impl IntoIterator<Item = u64>) -> u64 {
    counts.into_iter().fold(0, u64::saturating_add)
}

/// At least half.
pub(super) fn is_half(part: u64, all: u64) -> bool {
    u128::from(part) * 2 >= u128::from(all)
}

/// More than half.
pub(super) fn is_most(part: u64, all: u64) -> bool {
    u128::from(part) * 2 > u128::from(all)
}

/// The exits of one subject.
#[derive(Default)]
pub(super) struct SubjectSum {
    pub(super) count: u64,
    pub(super) high_ns: u64,
    pub(super) tally: Tally,
    /// How often, and for how long, ns.
    pub(super) details: BTreeMap<Detail, (u64, u64)>,
    pub(super) reasons: BTreeMap<Reason, u64>,
    user: u64,
}

impl SubjectSum {
    fn merge(&mut self, other: SubjectSum) {
        self.count = self.count.saturating_add(other.count);
        self.high_ns = self.high_ns.saturating_add(other.high_ns);
        self.user = self.user.saturating_add(other.user);
        self.tally.merge(&other.tally);
        for (detail, (count, ns)) in other.details {
            let sum = self.details.entry(detail).or_default();
            add(&mut sum.0, count);
            add(&mut sum.1, ns);
        }
        for (reason, count) in other.reasons {
            add(self.reasons.entry(reason).or_default(), count);
        }
    }
}

/// Everything that the findings are made of.
pub(super) struct RecordingSums {
    pub(super) by_subject: BTreeMap<Subject, SubjectSum>,
    pub(super) base_ns: u64,
    pub(super) wall_ns: u64,
    /// Time preempted whose exits are not known.
    unplaced_ns: u64,
    /// Times are those of hardware, as far as the recording shows.
    pub(super) timed: bool,
    pub(super) total: u64,
    /// Time in exits that do not halt, where exits have times and the running time is unknown (the text of `perf kvm stat
    /// report`).
    pub(super) spent_ns: Option<u64>,
}

impl RecordingSums {
    pub(super) fn new(ledger: &Ledger) -> RecordingSums {
        let time = ledger.time_total();
        let base_ns = running_ns(&time);
        let timed = ledger.recording.emulated.is_none() && base_ns > 0 && !lacks_entries(ledger);
        let halting: u64 = ledger
            .exits
            .iter()
            .filter(|(key, _)| key.outcome == Outcome::Halted)
            .fold(0, |sum, (_, tally)| sum + u128::from(tally.time_ns))
            .try_into()
            .unwrap_or(u64::MAX);
        let mut sums: BTreeMap<Subject, SubjectSum> = BTreeMap::new();
        let beside = ExitsBeside::new(ledger);
        let mut total = 0u64;
        for (key, tally) in &ledger.exits {
            let sum = sums.entry(beside.subject(key)).or_default();
            total = total.saturating_add(tally.count);
            sum.count = sum.count.saturating_add(tally.count);
            let ns = net_ns(key, tally, &time, halting);
            add(&mut sum.high_ns, ns);
            sum.tally.merge(tally);
            add(sum.reasons.entry(key.reason).or_default(), tally.count);
            if !matches!(key.detail.kind, DetailKind::None | DetailKind::Halt) {
                let detail = sum.details.entry(key.detail).or_default();
                add(&mut detail.0, tally.count);
                add(&mut detail.1, ns);
            }
            if key.outcome == Outcome::User {
                add(&mut sum.user, tally.count);
            }
        }
        no_legacy_queue(&mut sums);
        several_queues(&mut sums);
        if timed {
            handled_by_the_kernel(&mut sums);
        }
        let all = ledger.total();
        let has_times = ledger.recording.emulated.is_none()
            && u128::from(all.timed) * 10 >= u128::from(all.count) * 9;
        let not_halting = sums.iter().filter(|(word, _)| **word != Subject::Halts);
        let spent_ns: u64 =
            not_halting.map(|(_, sum)| sum.tally.time_ns).fold(0, u64::saturating_add);
        let placed: u64 = ledger.preempted.values().fold(0, |sum, ns| sum.saturating_add(*ns));
        RecordingSums {
            by_subject: sums,
            base_ns,
            wall_ns: time.wall_ns,
            unplaced_ns: time.preempted_ns.saturating_sub(placed),
            timed,
            total,
            spent_ns: Some(spent_ns).filter(|ns| *ns > 0 && has_times && !timed),
        }
    }

    /// What an interrupt of the host takes on average where that is no time to handle one in, and who ran meanwhile was not
    /// recorded. Only if these interrupts matter beside the other exits.
    pub(super) fn interrupts_wait(&self, ledger: &Ledger) -> Option<u64> {
        let sum = self.by_subject.get(&Subject::HostInterrupts)?;
        let all = self.by_subject.iter().filter(|(word, _)| **word != Subject::Halts);
        let all = all.fold(0u64, |all, (_, sum)| all.saturating_add(sum.high_ns));
        let waits = !ledger.recording.coverage.sched
            && (self.timed || self.spent_ns.is_some())
            && sum.count >= FEW
            && mean_ns(sum) >= LONG_INTERRUPT_NS
            && is_half(sum.high_ns, all)
            && self.matters(sum);
        waits.then(|| mean_ns(sum))
    }

    /// Whether exits of a subject are enough to be a finding.
    pub(super) fn matters(&self, sum: &SubjectSum) -> bool {
        let of_wall = sum.high_ns as f64 / self.wall_ns.max(1) as f64;
        match self.cost(sum) {
            FindingCost::Time { high_ns, base_ns, .. } => {
                high_ns as f64 >= base_ns as f64 * WORTH && of_wall >= WORTH / 2.0
            }
            FindingCost::Spent { time_ns, all_ns, .. } => {
                time_ns as f64 >= all_ns as f64 * WORTH_OF_COUNT && sum.count >= FEW
            }
            _ => sum.count as f64 >= self.total as f64 * WORTH_OF_COUNT && sum.count >= FEW,
        }
    }

    /// What it is ranked by: a part of the time, else of the exits.
    pub(super) fn weight(&self, sum: &SubjectSum) -> f64 {
        match self.cost(sum) {
            FindingCost::Time { high_ns, base_ns, .. } => high_ns as f64 / base_ns.max(1) as f64,
            FindingCost::Spent { time_ns, all_ns, .. } => time_ns as f64 / all_ns.max(1) as f64,
            _ => sum.count as f64 / self.total.max(1) as f64,
        }
    }

    /// How many a second and vCPU.
    pub(super) fn rate(&self, count: u64) -> Option<f64> {
        let seconds = self.wall_ns as f64 / 1e9;
        (self.timed && seconds > 0.0).then(|| count as f64 / seconds)
    }

    /// The exits' time and that of all that do not halt, where the running time is unknown.
    pub(super) fn spent_ns(&self, sum: &SubjectSum) -> Option<(u64, u64)> {
        // A halt's time is the guest's own.
        let halts = sum.reasons.keys().any(|reason| is_halt(*reason));
        self.spent_ns.filter(|_| !halts && !self.timed).map(|all_ns| (sum.tally.time_ns, all_ns))
    }

    pub(super) fn cost(&self, sum: &SubjectSum) -> FindingCost {
        let count = sum.count;
        if !self.timed {
            let spent = self.spent_ns(sum);
            return spent.map_or(FindingCost::Count { count }, |(time_ns, all_ns)| {
                FindingCost::Spent { time_ns, all_ns, count }
            });
        }
        let low_ns = sum.high_ns.saturating_sub(self.unplaced_ns);
        FindingCost::Time { low_ns, high_ns: sum.high_ns, base_ns: self.base_ns, count }
    }
}

/// Exits without entries: most of the time between them is unknown, or all of it, of single exits that have VMs.
pub(super) fn lacks_entries(ledger: &Ledger) -> bool {
    let time = ledger.time_total();
    let has_exits = !ledger.recording.vms.is_empty() && !ledger.exits.is_empty();
    time.unknown_ns > time.wall_ns / 2 || has_exits && ledger.total().timed == 0
}

/// Time of a key's exits in which their vCPU was not halted.
fn net_ns(key: &ExitKey, tally: &Tally, time: &vmtax_events::TimeRow, halting: u64) -> u64 {
    let mut ns = tally.time_ns;
    if key.outcome == Outcome::Halted && halting > 0 {
        // Halted time is known by vCPU and not by exit: these exits have their part of it.
        let part = u128::from(time.halted_ns) * u128::from(tally.time_ns) / u128::from(halting);
        ns = ns.saturating_sub(u64::try_from(part).unwrap_or(u64::MAX));
    }
    ns
}

fn is_halt(reason: Reason) -> bool {
    reason.isa.facts().is_halt(reason.code, Detail::NONE)
}

/// Writes that are over before a VMM could have been asked end in the kernel, also where kvm_userspace_exit was not recorded.
fn handled_by_the_kernel(sums: &mut BTreeMap<Subject, SubjectSum>) {
    let is_short = |sum: &SubjectSum| {
        let only_written = sum.details.keys().all(|detail| detail.is_write() == Some(true));
        sum.count >= FEW && sum.user == 0 && only_written && mean_ns(sum) < WITHOUT_VMM_NS
    };
    for word in [Subject::QueueNotifications, Subject::DeviceRegisters] {
        if sums.get(&word).is_some_and(is_short)
            && let Some(sum) = sums.remove(&word)
        {
            sums.entry(Subject::Notifications).or_default().merge(sum);
        }
    }
}

/// Registers of one page that are written and never read, several of them, are queues' notifications.
fn several_queues(sums: &mut BTreeMap<Subject, SubjectSum>) {
    let Some(sum) = sums.get(&Subject::DeviceRegisters) else { return };
    let only_written = sum.details.keys().all(|detail| detail.is_write() == Some(true));
    let pages: BTreeSet<u64> = sum.details.keys().map(|detail| detail.value >> 12).collect();
    let handled = sum.user == sum.count;
    if only_written
        && sum.details.len() > 1
        && pages.len() == 1
        && handled
        && let Some(sum) = sums.remove(&Subject::DeviceRegisters)
    {
        sums.insert(Subject::NotificationsToVmm, sum);
    }
}

/// A port that looks like legacy virtio's QUEUE_NOTIFY among other registers of its device is one of them: while virtio runs, only
/// its interrupt status is read (offset 19).
fn no_legacy_queue(sums: &mut BTreeMap<Subject, SubjectSum>) {
    const BLOCK: u64 = 0x40;
    const STATUS: u64 = 0x13;
    let is_port = |detail: &Detail| matches!(detail.kind, DetailKind::PortIn | DetailKind::PortOut);
    let Some(registers) = sums.get(&Subject::DeviceRegisters) else { return };
    let mut by_block: BTreeMap<u64, u64> = BTreeMap::new();
    for (detail, count) in &registers.details {
        if is_port(detail) && detail.value % 0x20 != STATUS {
            add(by_block.entry(detail.value / BLOCK).or_default(), count.0);
        }
    }
    for word in [Subject::NotificationsToVmm, Subject::QueueNotifications] {
        let is_register = |sum: &SubjectSum| {
            let in_block = |(detail, count): (&Detail, &(u64, u64))| {
                is_port(detail) && by_block.get(&(detail.value / BLOCK)) >= Some(&count.0)
            };
            sum.details.iter().all(in_block) && !sum.details.is_empty()
        };
        if sums.get(&word).is_some_and(is_register)
            && let Some(sum) = sums.remove(&word)
        {
            sums.entry(Subject::DeviceRegisters).or_default().merge(sum);
        }
    }
}

/// A halt that ends in less did not wait: to sleep and to be woken alone takes some microseconds.
const AT_ONCE_NS: u64 = 4_000;
/// Halts a second and vCPU that no wait explains, and halts of a table.
const HALTS_AT_ONCE: f64 = 10_000.0;
const MANY_HALTS: u64 = 10_000;
/// In a table, halts are known by their mean, of which few long ones are most; the shortest then takes less than this, ns.
const MEAN_AT_ONCE_NS: u64 = 50_000;
const SHORTEST_AT_ONCE_NS: u64 = 1_000;

/// Halts that return at once: nothing is waited for. By their lengths; in a table, because nothing else happens that a guest could
/// wait for.
pub(super) fn halts_return(ledger: &Ledger, sums: &RecordingSums) -> Option<Evidence> {
    let sum = sums.by_subject.get(&Subject::Halts)?;
    // A table does not say how exits ended.
    let halts = if sums.timed { halts(ledger) } else { sum.tally.clone() };
    let others = sums.total.saturating_sub(sum.count);
    let woken: u64 = {
        let woken = |key: &&ExitKey| key.detail.kind == DetailKind::Halt;
        total(ledger.exits.iter().filter(|(key, _)| woken(key)).map(|(_, tally)| tally.count))
    };
    let (mean_ns, min_ns) = (halts.time_ns / halts.timed.max(1), halts.min_ns);
    let at_once = if sums.timed {
        let is_short =
            |bucket: &usize| octave_bounds(*bucket).1.is_some_and(|end| end <= AT_ONCE_NS);
        let octaves = halts.durations.octaves();
        let short = total((0..OCTAVES).filter(is_short).map(|octave| octaves[octave]));
        sums.rate(sum.count)? >= HALTS_AT_ONCE
            && is_most(short, halts.timed)
            && !is_half(woken, sum.count)
    } else {
        let alone = u128::from(others) * 100 <= u128::from(sum.count);
        sums.spent_ns.is_some()
            && sum.count >= MANY_HALTS
            && alone
            && mean_ns < MEAN_AT_ONCE_NS
            && min_ns < SHORTEST_AT_ONCE_NS
    };
    at_once.then_some(Evidence::HaltsAtOnce { count: sum.count, mean_ns, min_ns, others })
}

/// Part of the halts whose lengths must be alike: in two neighbouring buckets of the histogram.
const ALIKE: f64 = 0.8;

/// Wake-ups a second and vCPU at the rate of a tick and of lengths that are alike, and how often the guest arms its timers.
pub(super) fn periodic_wake_ups(
    ledger: &Ledger,
    sums: &RecordingSums,
    arms: u64,
) -> Option<(f64, f64)> {
    let halts = halts(ledger);
    let rate = sums.rate(halts.timed).filter(|rate| TICK.contains(rate))?;
    let octaves = halts.durations.octaves();
    let pairs = octaves.windows(2).map(|pair| pair[0].saturating_add(pair[1]));
    let most = pairs.max().unwrap_or(0);
    let is_alike = most as f64 >= halts.timed as f64 * ALIKE && halts.timed >= HUNDRED;
    is_alike.then_some((rate, sums.rate(arms)?))
}

const HUNDRED: u64 = 100;
/// Rates of a kernel's tick, a second and vCPU: CONFIG_HZ is 100 to 1000.
pub(super) const TICK: std::ops::RangeInclusive<f64> = 80.0..=1100.0;

/// A fault's own time on average, ns.
pub(super) fn mean_ns(sum: &SubjectSum) -> u64 {
    let ns = if sum.high_ns > 0 { sum.high_ns } else { sum.tally.time_ns };
    ns / sum.count.max(1)
}

/// Halts that blocked and ended within KVM's polling time, of how many.
pub(super) fn short_halts(ledger: &Ledger) -> Option<(u64, u64)> {
    let halts = halts(ledger);
    let is_short =
        |bucket: &usize| octave_bounds(*bucket).1.is_some_and(|end| end <= POLL_NS * 4 / 3);
    let octaves = halts.durations.octaves();
    let short = total((0..OCTAVES).filter(is_short).map(|octave| octaves[octave]));
    (halts.timed >= FEW).then_some((short, halts.timed))
}

pub(super) fn halts(ledger: &Ledger) -> Tally {
    let mut halts = Tally::default();
    let of_halts = ledger.exits.iter().filter(|(key, _)| key.outcome == Outcome::Halted);
    of_halts.for_each(|(_, tally)| halts.merge(tally));
    halts
}

/// Faults take longer than mapping and clearing memory does: the host gets the memory back from somewhere.
pub(super) fn faults_wait(ledger: &Ledger, sums: &RecordingSums) -> bool {
    let has_times = sums.timed || sums.spent_ns.is_some();
    let faults = sums.by_subject.get(&Subject::MemoryFaults);
    ledger.recording.emulated.is_none()
        && has_times
        && faults.is_some_and(|sum| sum.count >= FEW && mean_ns(sum) >= WAITS_NS)
}
