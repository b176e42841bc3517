//! Findings: what exits, time, profiles and counters show, each with its cost and the remedies that its conditions allow.

mod contention;
mod counters;
mod guest;
mod memory;

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{Cause, Detail, DetailKind, ExitKey, Outcome, Reason, Tally};

use super::memory as mapping;
use super::subject::{self, Subject};
use super::{Certainty, percent};
use crate::Ledger;
use crate::ledger::running_ns;
use crate::remedy::{self, Applies, Context, Remedy, VmKind};

use crate::table::cause_of;

pub(super) use contention::{contention, is_throttled, lasting_contention};
pub(super) use counters::of_counters;
pub(super) use guest::of_profiles;
pub(super) use memory::{of_memory, of_tlb, refaults, shattered, small_by_faults};

/// A subject's part of the running time from which on it is a finding.
const WORTH: f64 = 0.01;
/// The same as a part of all exits, where there are no times.
const WORTH_OF_COUNT: f64 = 0.10;
/// Fewer exits than this are no sign of anything that lasts.
const FEW: u64 = 20;
/// Addresses that are named.
const NAMED: usize = 4;
/// Rates of a kernel's tick, a second and vCPU: CONFIG_HZ is 100 to 1000.
const TICK: std::ops::RangeInclusive<f64> = 80.0..=1100.0;
/// Accesses of the VMCS for an entry of L2 that a hypervisor has at least without shadowing. With it some fields remain (3 in
/// "profiling nested KVM", KVM Forum 2017).
const WITHOUT_SHADOW: f64 = 8.0;
/// A fault that takes as long on average waits for the memory's content: clearing 2 MiB takes 100 to 300 us.
const WAITS_NS: u64 = 400_000;
/// An interrupt that takes as long on average: a tick and its softirqs take some microseconds, a scheduler's turn milliseconds.
const LONG_INTERRUPT_NS: u64 = 500_000;
/// An exit that takes less on average did not go to the VMM: the way to user space and back alone takes a microsecond, and QEMU's
/// main lock and dispatch more.
const WITHOUT_VMM_NS: u64 = 2_000;
/// KVM's default of `halt_poll_ns` on x86.
pub(super) const POLL_NS: u64 = 200_000;

/// What something costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cost {
    /// Time of running time: from `low_ns` to `high_ns` of `base_ns`.
    Time {
        /// At least.
        low_ns: u64,
        /// At most.
        high_ns: u64,
        /// Wall time less halted time of the vCPUs.
        base_ns: u64,
        /// Exits, or times that a vCPU waited.
        count: u64,
    },
    /// Time in exits that do not halt, where the running time is unknown: `time_ns` of the `all_ns` of all of them.
    Spent {
        /// In these.
        time_ns: u64,
        /// In all that do not halt.
        all_ns: u64,
        /// How many.
        count: u64,
    },
    /// Exits whose time is not known.
    Count {
        /// How many.
        count: u64,
    },
    /// Not counted by exits.
    Unknown,
}

impl Cost {
    /// At most this share of the running time.
    pub fn share(&self) -> Option<f64> {
        match *self {
            Cost::Time { high_ns, base_ns, .. } if base_ns > 0 => {
                Some(high_ns as f64 / base_ns as f64)
            }
            _ => None,
        }
    }
}

/// A remedy, and the condition under which it helps where that is not known.
pub struct Advice {
    /// The row.
    pub remedy: &'static Remedy,
    /// The condition.
    pub condition: Option<&'static str>,
}

/// Something that was found.
pub struct Finding {
    /// Its word. These words never change.
    pub id: &'static str,
    /// What it means, without its full stop.
    pub means: String,
    /// How sure it is.
    pub certainty: Certainty,
    /// What it rests on, with numbers and addresses.
    pub evidence: Vec<String>,
    /// What it costs.
    pub cost: Cost,
    /// What may help.
    pub remedies: Vec<Advice>,
    /// What does not help here, and why: remedies that others would name.
    pub refused: Vec<(&'static str, &'static str)>,
    /// What would show that it is not so.
    pub disproof: &'static str,
    /// What to record to know more.
    pub next: &'static str,
    /// What it is ranked by.
    pub(super) weight: f64,
}

impl Finding {
    pub(super) fn new(id: &'static str, means: impl Into<String>, certainty: Certainty) -> Finding {
        Finding {
            id,
            means: means.into(),
            certainty,
            evidence: Vec::new(),
            cost: Cost::Unknown,
            remedies: Vec::new(),
            refused: Vec::new(),
            disproof: "",
            next: "",
            weight: 0.0,
        }
    }

    /// Adds remedies as their conditions allow.
    pub(super) fn advise(&mut self, ids: &[&'static str], context: &Context) {
        for remedy in ids.iter().filter_map(|id| remedy::find(id)) {
            match remedy.applies_to(context) {
                Applies::Yes => self.remedies.push(Advice { remedy, condition: None }),
                Applies::If(condition) => {
                    self.remedies.push(Advice { remedy, condition: Some(condition) });
                }
                Applies::No(why) => self.refused.push((remedy.id, why)),
            }
        }
    }
}

/// The exits of one subject.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) count: u64,
    pub(super) high_ns: u64,
    pub(super) tally: Tally,
    pub(super) details: BTreeMap<Detail, u64>,
    reasons: BTreeMap<Reason, u64>,
    user: u64,
}

impl Sum {
    fn merge(&mut self, other: Sum) {
        self.count = self.count.saturating_add(other.count);
        self.high_ns = self.high_ns.saturating_add(other.high_ns);
        self.user = self.user.saturating_add(other.user);
        self.tally.merge(&other.tally);
        for (detail, count) in other.details {
            *self.details.entry(detail).or_default() += count;
        }
        for (reason, count) in other.reasons {
            *self.reasons.entry(reason).or_default() += count;
        }
    }
}

/// Everything that the findings are made of.
pub(super) struct Sums {
    pub(super) by_subject: BTreeMap<&'static str, Sum>,
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

impl Sums {
    pub(super) fn new(ledger: &Ledger) -> Sums {
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
        let mut sums: BTreeMap<&'static str, Sum> = BTreeMap::new();
        let deadline = ledger
            .exits
            .keys()
            .any(|key| key.detail.kind == DetailKind::MsrWrite && key.detail.value == 0x6e0);
        let mut total = 0u64;
        for (key, tally) in &ledger.exits {
            let word = match subject::of(key) {
                // Who arms by both arms by choice.
                "apic-timer" if deadline => "guest-timer",
                word => word,
            };
            let sum = sums.entry(word).or_default();
            total = total.saturating_add(tally.count);
            sum.count = sum.count.saturating_add(tally.count);
            sum.high_ns = sum.high_ns.saturating_add(net_ns(ledger, key, tally, &time, halting));
            sum.tally.merge(tally);
            *sum.reasons.entry(key.reason).or_default() += tally.count;
            if !matches!(key.detail.kind, DetailKind::None | DetailKind::Halt) {
                *sum.details.entry(key.detail).or_default() += tally.count;
            }
            if key.outcome == Outcome::User {
                sum.user += tally.count;
            }
        }
        no_legacy_queue(&mut sums);
        several_queues(&mut sums);
        if timed {
            handled_by_the_kernel(&mut sums);
        }
        let all = ledger.total();
        let has_times = ledger.recording.emulated.is_none() && all.timed * 10 >= all.count * 9;
        let not_halting = sums.iter().filter(|(word, _)| **word != "halts");
        let spent_ns: u64 =
            not_halting.map(|(_, sum)| sum.tally.time_ns).fold(0, u64::saturating_add);
        let placed: u64 = ledger.preempted.values().fold(0, |sum, ns| sum.saturating_add(*ns));
        Sums {
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
        let sum = self.by_subject.get("host-interrupts")?;
        let all = self.by_subject.iter().filter(|(word, _)| **word != "halts");
        let all = all.fold(0u64, |all, (_, sum)| all.saturating_add(sum.high_ns));
        let waits = !ledger.recording.coverage.sched
            && self.timed
            && sum.count >= FEW
            && mean_ns(sum) >= LONG_INTERRUPT_NS
            && sum.high_ns * 2 >= all
            && self.matters(sum);
        waits.then(|| mean_ns(sum))
    }

    /// Whether exits of a subject are enough to be a finding.
    pub(super) fn matters(&self, sum: &Sum) -> bool {
        let of_wall = sum.high_ns as f64 / self.wall_ns.max(1) as f64;
        match self.cost(sum) {
            Cost::Time { high_ns, base_ns, .. } => {
                high_ns as f64 >= base_ns as f64 * WORTH && of_wall >= WORTH / 2.0
            }
            Cost::Spent { time_ns, all_ns, .. } => {
                time_ns as f64 >= all_ns as f64 * WORTH_OF_COUNT && sum.count >= FEW
            }
            _ => sum.count as f64 >= self.total as f64 * WORTH_OF_COUNT && sum.count >= FEW,
        }
    }

    /// What it is ranked by: a part of the time, else of the exits.
    fn weight(&self, sum: &Sum) -> f64 {
        match self.cost(sum) {
            Cost::Time { high_ns, base_ns, .. } => high_ns as f64 / base_ns.max(1) as f64,
            Cost::Spent { time_ns, all_ns, .. } => time_ns as f64 / all_ns.max(1) as f64,
            _ => sum.count as f64 / self.total.max(1) as f64,
        }
    }

    /// How many a second and vCPU.
    pub(super) fn rate(&self, count: u64) -> Option<f64> {
        let seconds = self.wall_ns as f64 / 1e9;
        (self.timed && seconds > 0.0).then(|| count as f64 / seconds)
    }

    pub(super) fn cost(&self, sum: &Sum) -> Cost {
        if !self.timed {
            // A halt's time is the guest's own.
            let halts = sum.reasons.keys().any(|reason| is_halt(*reason));
            return match self.spent_ns.filter(|_| !halts) {
                Some(all_ns) => {
                    Cost::Spent { time_ns: sum.tally.time_ns, all_ns, count: sum.count }
                }
                None => Cost::Count { count: sum.count },
            };
        }
        let low_ns = sum.high_ns.saturating_sub(self.unplaced_ns);
        Cost::Time { low_ns, high_ns: sum.high_ns, base_ns: self.base_ns, count: sum.count }
    }
}

/// Exits without entries: most of the time between them is unknown.
pub(super) fn lacks_entries(ledger: &Ledger) -> bool {
    let time = ledger.time_total();
    time.unknown_ns > time.wall_ns / 2
}

/// Time of a key's exits in which their vCPU was neither halted nor preempted.
fn net_ns(
    ledger: &Ledger,
    key: &ExitKey,
    tally: &Tally,
    time: &vmtax_events::TimeRow,
    halting: u64,
) -> u64 {
    let mut ns = tally.time_ns;
    if key.outcome == Outcome::Halted && halting > 0 {
        // Halted time is known by vCPU and not by exit: these exits have their part of it.
        let part = u128::from(time.halted_ns) * u128::from(tally.time_ns) / u128::from(halting);
        ns = ns.saturating_sub(u64::try_from(part).unwrap_or(u64::MAX));
    }
    ns.saturating_sub(ledger.preempted.get(key).copied().unwrap_or(0))
}

fn is_halt(reason: Reason) -> bool {
    use vmtax_events::{Isa, svm, vmx};
    matches!((reason.isa, reason.code), (Isa::Vmx, vmx::HLT) | (Isa::Svm, svm::HLT | svm::IDLE_HLT))
}

/// Notifications that are over before a VMM could have been asked end in the kernel, also where kvm_userspace_exit was not recorded.
fn handled_by_the_kernel(sums: &mut BTreeMap<&'static str, Sum>) {
    let is_short = |sum: &Sum| sum.count >= FEW && mean_ns(sum) < WITHOUT_VMM_NS;
    if sums.get("queue-notifications").is_some_and(is_short)
        && let Some(sum) = sums.remove("queue-notifications")
    {
        sums.entry("notifications").or_default().merge(sum);
    }
}

/// Registers of one page that are written and never read, several of them, are queues' notifications.
fn several_queues(sums: &mut BTreeMap<&'static str, Sum>) {
    let Some(sum) = sums.get("device-registers") else { return };
    let only_written = sum.details.keys().all(|detail| detail.is_write() == Some(true));
    let pages: BTreeSet<u64> = sum.details.keys().map(|detail| detail.value >> 12).collect();
    let handled = sum.user == sum.count;
    if only_written
        && sum.details.len() > 1
        && pages.len() == 1
        && handled
        && let Some(sum) = sums.remove("device-registers")
    {
        sums.insert("notifications-to-vmm", sum);
    }
}

/// A port that looks like legacy virtio's QUEUE_NOTIFY among other registers of its device is one of them: while virtio runs, only
/// its interrupt status is read (offset 19).
fn no_legacy_queue(sums: &mut BTreeMap<&'static str, Sum>) {
    const BLOCK: u64 = 0x40;
    const STATUS: u64 = 0x13;
    let is_port = |detail: &Detail| matches!(detail.kind, DetailKind::PortIn | DetailKind::PortOut);
    let Some(registers) = sums.get("device-registers") else { return };
    let mut by_block: BTreeMap<u64, u64> = BTreeMap::new();
    for (detail, count) in &registers.details {
        if is_port(detail) && detail.value % 0x20 != STATUS {
            *by_block.entry(detail.value / BLOCK).or_default() += count;
        }
    }
    for word in ["notifications-to-vmm", "queue-notifications"] {
        let is_register = |sum: &Sum| {
            let in_block = |(detail, count): (&Detail, &u64)| {
                is_port(detail) && by_block.get(&(detail.value / BLOCK)) >= Some(count)
            };
            sum.details.iter().all(in_block) && !sum.details.is_empty()
        };
        if sums.get(word).is_some_and(is_register)
            && let Some(sum) = sums.remove(word)
        {
            sums.entry("device-registers").or_default().merge(sum);
        }
    }
}

/// `port in 0x608`, with the device where it has a name.
fn name(detail: Detail) -> String {
    let what = detail.kind.name().replace('-', " ");
    match vmtax_events::Device::of(detail) {
        Some(device) => format!("{what} {:#x} ({})", detail.value, device.name()),
        None => format!("{what} {}", detail.label()),
    }
}

/// The findings of exits: one for each subject that matters.
pub(super) fn of_exits(ledger: &Ledger, context: &Context, sums: &Sums) -> Vec<Finding> {
    let mut found = Vec::new();
    for (word, sum) in &sums.by_subject {
        if !sums.matters(sum) {
            continue;
        }
        let subject = subject::find(word);
        let mut finding = Finding::new(subject.id, subject.means, certainty(word, sum));
        finding.weight = sums.weight(sum);
        finding.cost = sums.cost(sum);
        finding.disproof = subject.disproof;
        finding.next = subject.next;
        if *word == "other" {
            finding.means = format!("exits without a rule: {}", reasons(sum));
        }
        finding.evidence.push(counted(sum, sums));
        finding.evidence.extend(addresses(sum));
        if *word == "memory-faults" && faults_wait(ledger, sums) {
            finding.means =
                "the guest touches memory whose content the host must fetch first: from swap, a migration's source, a file"
                    .to_owned();
            finding.disproof =
                "the VMM's major faults (/proc/PID/stat) stand still, and it uses no userfaultfd";
            finding.next =
                "VmSwap in /proc/PID/status of the VMM; `vmstat 1` (si, so); QEMU's `info migrate`";
        }
        let remedies = fitting(ledger, context, subject, sum, sums, &mut finding.evidence);
        finding.advise(&remedies, context);
        if *word == "memory-faults" && mapping::is_small(ledger).is_none() {
            memory::only_if_mapping(&mut finding);
        }
        found.push(finding);
    }
    found.extend(xapic(ledger, context));
    found
}

fn certainty(word: &str, sum: &Sum) -> Certainty {
    match word {
        "device-registers" | "host-interrupts" | "counters" => Certainty::Possible,
        "notifications-to-vmm" | "halts" | "spinning" | "guest-timer" => Certainty::Likely,
        _ if sum.details.is_empty() && sum.tally.timed == 0 => Certainty::Likely,
        _ => Certainty::Certain,
    }
}

fn counted(sum: &Sum, sums: &Sums) -> String {
    let names = reasons(sum);
    match (sums.rate(sum.count), sums.cost(sum)) {
        (Some(rate), _) => format!("{} exits ({names}), {rate:.0} a second and vCPU", sum.count),
        (None, Cost::Spent { time_ns, all_ns, .. }) => format!(
            "{} of {} exits ({names}), {} ms of the {} ms in exits that do not halt",
            sum.count,
            sums.total,
            time_ns / 1_000_000,
            all_ns / 1_000_000
        ),
        (None, _) => format!("{} of {} exits ({names})", sum.count, sums.total),
    }
}

/// The exits' reasons, most first.
fn reasons(sum: &Sum) -> String {
    let mut all: Vec<(&Reason, &u64)> = sum.reasons.iter().collect();
    all.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), **reason));
    let more = if all.len() > NAMED { ", ..." } else { "" };
    let names: Vec<String> =
        all.iter().take(NAMED).map(|(reason, _)| reason.name().into_owned()).collect();
    format!("{}{more}", names.join(", "))
}

fn addresses(sum: &Sum) -> Option<String> {
    let mut all: Vec<(&Detail, &u64)> = sum.details.iter().collect();
    all.sort_by_key(|(detail, count)| (std::cmp::Reverse(**count), **detail));
    let names: Vec<String> = all
        .iter()
        .take(NAMED)
        .filter(|(detail, _)| detail.kind != DetailKind::Overflow)
        .map(|(detail, count)| format!("{} x {count}", name(**detail)))
        .collect();
    let more = all.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!names.is_empty()).then(|| format!("{}{more}", names.join(", ")))
}

/// The remedies of a subject that its numbers allow.
fn fitting(
    ledger: &Ledger,
    context: &Context,
    subject: &Subject,
    sum: &Sum,
    sums: &Sums,
    evidence: &mut Vec<String>,
) -> Vec<&'static str> {
    let mut ids = subject.remedies.to_vec();
    match subject.id {
        "guest-timer" => {
            let arms = arms(ledger);
            let of_tick = sums.rate(arms).is_some_and(|rate| TICK.contains(&rate));
            let busy = sums.base_ns as f64 >= sums.wall_ns as f64 * 0.5;
            if !of_tick || !busy {
                ids.clear();
            }
        }
        "host-interrupts" if sums.interrupts_wait(ledger).is_some() => {
            evidence.push(format!(
                "{} us each on average: without sched:sched_switch, time in which the vCPU was preempted is part of it",
                mean_ns(sum) / 1000
            ));
            ids.clear();
        }
        "host-interrupts" => {
            let expiries = context.vendor == vmtax_events::Isa::Svm
                || context.kind == VmKind::Tdx
                || sums.total == 0;
            let others = if expiries { sum.count.saturating_sub(arms(ledger)) } else { sum.count };
            match sums.rate(others) {
                Some(rate) if rate < *TICK.start() => ids.clear(),
                Some(rate) if TICK.contains(&rate) => ids.retain(|id| *id == "host-nohz-full"),
                Some(rate) => {
                    let injected =
                        sums.by_subject.get("no-virtual-apic").map_or(0, |sum| sum.count);
                    if injected * 2 >= others {
                        evidence.push(format!(
                            "the guest takes {injected} interrupts of its own by exits: without a virtual APIC each may stop the vCPU once"
                        ));
                        ids.clear();
                    } else {
                        evidence.push(format!(
                            "{rate:.0} a second and vCPU are more than a tick: devices or IPIs"
                        ));
                        ids.retain(|id| *id == "irq-affinity");
                    }
                }
                None => ids.clear(),
            }
        }
        "halts" => match short_halts(ledger) {
            Some((short, all)) if sums.timed && short * 2 > all => {
                evidence.push(format!(
                    "{short} of {all} halts ended within {} us, KVM's usual polling time; polling for all of them costs at most {} of the time",
                    POLL_NS / 1000,
                    percent(polling_ns(ledger) as f64 / sums.wall_ns.max(1) as f64)
                ));
            }
            _ => ids.clear(),
        },
        "notifications" if sums.timed && !ledger.recording.coverage.userspace => {
            evidence.push(format!(
                "{:.1} us each on average: an exit to the VMM takes several",
                mean_ns(sum) as f64 / 1000.0
            ));
        }
        // A register that is read is no queue's notification.
        "device-registers" if sum.details.keys().any(|one| one.is_write() != Some(true)) => {
            ids.retain(|id| *id != "ioeventfd");
        }
        "memory-faults" if faults_wait(ledger, sums) => {
            evidence.push(format!(
                "{} us each on average: a fault that only maps memory takes a few, and as many as 300 to clear 2 MiB",
                mean_ns(sum) / 1000
            ));
            ids = vec!["resident-memory"];
        }
        "memory-faults" if refaults(ledger).is_some() => {
            evidence.extend(refaults(ledger));
            evidence.push("something takes them away or write-protects them: dirty logging of a migration, page merging (ksmd), NUMA balancing, a balloon".to_owned());
            ids.clear();
        }
        "memory-faults" => match small_by_faults(ledger) {
            Some(line) => evidence.push(line),
            None if mapping::is_small(ledger) == Some(true) => {}
            None => ids.clear(),
        },
        "counters" if rotated(ledger) => {
            evidence
                .push("event selects change at each tick: more events than counters".to_owned());
            ids.retain(|id| *id == "fewer-events");
        }
        // A lock whose owner runs, or an idle guest that polls: no vCPU waits for a processor.
        "spinning" if ledger.contention().is_some_and(|share| share < WORTH) => {
            evidence.push(
                "no vCPU was preempted: the lock's owner runs, or the guest polls".to_owned(),
            );
            ids.clear();
        }
        "vmcs-accesses" => {
            if let Some(each) = accesses_per_entry(ledger).filter(|each| *each < WITHOUT_SHADOW) {
                evidence.push(format!(
                    "{each:.1} for each entry of L2: without a shadow VMCS there would be dozens"
                ));
                ids.clear();
            }
        }
        "no-virtual-apic" | "ipi" if context.vendor == vmtax_events::Isa::Unknown => ids.clear(),
        _ => {}
    }
    if sum.count < FEW && !ids.is_empty() {
        evidence.push(format!("{} exits are too few for advice", sum.count));
        ids.clear();
    }
    ids
}

/// VMREADs and VMWRITEs of L1 for each entry of L2.
fn accesses_per_entry(ledger: &Ledger) -> Option<f64> {
    use vmtax_events::{Isa, vmx};
    let count = |codes: [u32; 2]| {
        let of = |key: &ExitKey| key.reason.isa == Isa::Vmx && codes.contains(&key.reason.code);
        let exits = ledger.exits.iter().filter(|(key, _)| of(key));
        exits.fold(0u64, |sum, (_, tally)| sum.saturating_add(tally.count))
    };
    let entries = count([vmx::VMRESUME, vmx::VMLAUNCH]);
    (entries >= FEW).then(|| count([vmx::VMREAD, vmx::VMWRITE]) as f64 / entries as f64)
}

/// A fault's own time on average, ns.
fn mean_ns(sum: &Sum) -> u64 {
    let ns = if sum.high_ns > 0 { sum.high_ns } else { sum.tally.time_ns };
    ns / sum.count.max(1)
}

/// Faults take longer than mapping and clearing memory does: the host gets the memory back from somewhere.
pub(super) fn faults_wait(ledger: &Ledger, sums: &Sums) -> bool {
    let has_times = sums.timed || sums.spent_ns.is_some();
    let faults = sums.by_subject.get("memory-faults");
    ledger.recording.emulated.is_none()
        && has_times
        && faults.is_some_and(|sum| sum.count >= FEW && mean_ns(sum) >= WAITS_NS)
}

fn arms(ledger: &Ledger) -> u64 {
    let arms = ledger.exits.iter().filter(|(key, _)| cause_of(key) == Cause::TimerArm);
    arms.fold(0, |sum, (_, tally)| sum.saturating_add(tally.count))
}

/// Halts that blocked and ended within KVM's polling time, of how many.
pub(super) fn short_halts(ledger: &Ledger) -> Option<(u64, u64)> {
    let halts = halts(ledger);
    let is_short =
        |bucket: &usize| Tally::bucket_bounds(*bucket).1.is_some_and(|end| end <= POLL_NS * 4 / 3);
    let short = (0..vmtax_events::HIST_BUCKETS).filter(is_short).map(|b| halts.hist[b]).sum();
    (halts.timed >= FEW).then_some((short, halts.timed))
}

pub(super) fn halts(ledger: &Ledger) -> Tally {
    let mut halts = Tally::default();
    let of_halts = ledger.exits.iter().filter(|(key, _)| key.outcome == Outcome::Halted);
    of_halts.for_each(|(_, tally)| halts.merge(tally));
    halts
}

/// What polling for each halt would cost: at most the polling time, or the halt.
fn polling_ns(ledger: &Ledger) -> u64 {
    let halts = halts(ledger);
    let each = |bucket: usize| {
        let end = Tally::bucket_bounds(bucket).1.unwrap_or(POLL_NS).min(POLL_NS);
        halts.hist[bucket].saturating_mul(end)
    };
    (0..vmtax_events::HIST_BUCKETS).map(each).fold(0, u64::saturating_add)
}

/// Every event select is written about as often as the timer is armed.
fn rotated(ledger: &Ledger) -> bool {
    let ticks = arms(ledger);
    let mut selects: BTreeMap<u64, u64> = BTreeMap::new();
    for (key, tally) in &ledger.exits {
        let at = key.detail.value;
        let is_select = (0x186..=0x18d).contains(&at)
            || (0xc001_0000..=0xc001_0003).contains(&at)
            || (0xc001_0200..=0xc001_020b).contains(&at) && at & 1 == 0;
        if key.detail.kind == DetailKind::MsrWrite && is_select {
            *selects.entry(at).or_default() += tally.count;
        }
    }
    let like_a_tick = |n: &u64| *n >= FEW && (0.8..=2.5).contains(&(*n as f64 / ticks as f64));
    ticks >= FEW && !selects.is_empty() && selects.values().all(like_a_tick)
}

/// The APIC is used through memory.
fn xapic(ledger: &Ledger, context: &Context) -> Option<Finding> {
    let sum = |wanted: &dyn Fn(&ExitKey) -> bool| {
        let exits = ledger.exits.iter().filter(|(key, _)| wanted(key));
        exits.fold(0u64, |sum, (_, tally)| sum.saturating_add(tally.count))
    };
    let in_memory = sum(&|key| {
        subject::register_in_memory(key.detail).is_some()
            && matches!(key.detail.kind, DetailKind::MmioRead | DetailKind::MmioWrite)
            || subject::register_in_memory(key.detail).is_some() && !context.has_virtual_apic
    });
    let by_msr = sum(&|key| {
        matches!(key.detail.kind, DetailKind::MsrRead | DetailKind::MsrWrite)
            && (0x800..0x900).contains(&key.detail.value)
    });
    (in_memory >= FEW && by_msr == 0).then(|| {
        let means =
            "the guest uses its APIC through memory (xAPIC): each access that exits is decoded";
        let mut finding = Finding::new("xapic", means, Certainty::Certain);
        finding
            .evidence
            .push(format!("{in_memory} accesses of the APIC's page, none of an x2APIC MSR"));
        finding.disproof = "the guest's /proc/cpuinfo has x2apic";
        finding.next = "/proc/cpuinfo and the command line of the guest";
        finding.advise(&["x2apic"], context);
        finding
    })
}
