//! Findings: what exits, time, profiles and counters show, each with its cost and the remedies that its conditions allow.

use std::collections::BTreeMap;

use vmtax_events::{Cause, Detail, DetailKind, ExitKey, Outcome, Place, Profile, Stat, Tally};

use super::subject::{self, Subject};
use super::{Certainty, memory, percent};
use crate::Ledger;
use crate::ledger::running_ns;
use crate::remedy::{self, Applies, Context, Remedy, VmKind};
use crate::table::cause_of;

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
/// KVM's default of `halt_poll_ns` on x86.
pub(super) const POLL_NS: u64 = 200_000;
/// Faults in one region of 2 MiB from which on it is mapped in 4 KiB pages.
const FAULTS_OF_4K: u64 = 8;
/// How much more a counter must count than in the base.
const MORE: f64 = 1.5;

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
            match (remedy.applies)(context) {
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
    user: u64,
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
}

impl Sums {
    pub(super) fn new(ledger: &Ledger) -> Sums {
        let time = ledger.time_total();
        let base_ns = running_ns(&time);
        let timed = ledger.recording.emulated.is_none() && base_ns > 0;
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
            if !matches!(key.detail.kind, DetailKind::None | DetailKind::Halt) {
                *sum.details.entry(key.detail).or_default() += tally.count;
            }
            if key.outcome == Outcome::User {
                sum.user += tally.count;
            }
        }
        several_queues(&mut sums);
        let placed: u64 = ledger.preempted.values().fold(0, |sum, ns| sum.saturating_add(*ns));
        Sums {
            by_subject: sums,
            base_ns,
            wall_ns: time.wall_ns,
            unplaced_ns: time.preempted_ns.saturating_sub(placed),
            timed,
            total,
        }
    }

    /// How many a second and vCPU.
    pub(super) fn rate(&self, count: u64) -> Option<f64> {
        let seconds = self.wall_ns as f64 / 1e9;
        (self.timed && seconds > 0.0).then(|| count as f64 / seconds)
    }

    pub(super) fn cost(&self, sum: &Sum) -> Cost {
        if !self.timed {
            return Cost::Count { count: sum.count };
        }
        let low_ns = sum.high_ns.saturating_sub(self.unplaced_ns);
        Cost::Time { low_ns, high_ns: sum.high_ns, base_ns: self.base_ns, count: sum.count }
    }
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

/// Registers of one page that are written and never read, several of them, are queues' notifications.
fn several_queues(sums: &mut BTreeMap<&'static str, Sum>) {
    let Some(sum) = sums.get("device-registers") else { return };
    let only_written = sum.details.keys().all(|detail| detail.is_write() == Some(true));
    let pages: std::collections::BTreeSet<u64> =
        sum.details.keys().map(|detail| detail.value >> 12).collect();
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
        let cost = sums.cost(sum);
        let of_wall = sum.high_ns as f64 / sums.wall_ns.max(1) as f64;
        let matters = match cost.share() {
            Some(share) => share >= WORTH && of_wall >= WORTH / 2.0,
            None => sum.count as f64 >= sums.total as f64 * WORTH_OF_COUNT && sum.count >= FEW,
        };
        if !matters {
            continue;
        }
        let subject = subject::find(word);
        let mut finding = Finding::new(subject.id, subject.means, certainty(word, sum));
        finding.weight = cost.share().unwrap_or(sum.count as f64 / sums.total.max(1) as f64);
        finding.cost = cost;
        finding.disproof = subject.disproof;
        finding.next = subject.next;
        finding.evidence.push(counted(sum, sums));
        finding.evidence.extend(addresses(sum));
        let remedies = fitting(ledger, context, subject, sum, sums, &mut finding.evidence);
        finding.advise(&remedies, context);
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
    match sums.rate(sum.count) {
        Some(rate) => format!("{} exits, {rate:.0} a second and vCPU", sum.count),
        None => format!("{} of {} exits", sum.count, sums.total),
    }
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
        "host-interrupts" => {
            let expiries = context.vendor == vmtax_events::Isa::Svm
                || context.kind == VmKind::Tdx
                || sums.total == 0;
            let others = if expiries { sum.count.saturating_sub(arms(ledger)) } else { sum.count };
            match sums.rate(others) {
                Some(rate) if rate < *TICK.start() => ids.clear(),
                Some(rate) if TICK.contains(&rate) => ids.retain(|id| *id == "host-nohz-full"),
                Some(rate) => {
                    evidence.push(format!(
                        "{rate:.0} a second and vCPU are more than a tick: devices or IPIs"
                    ));
                    ids.retain(|id| *id == "irq-affinity");
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
        "memory-faults" => match small_by_faults(ledger) {
            Some(line) => evidence.push(line),
            None if memory::is_small(ledger) == Some(true) => {}
            None => ids.clear(),
        },
        "counters" if rotated(ledger) => {
            evidence
                .push("event selects change at each tick: more events than counters".to_owned());
            ids.retain(|id| *id == "fewer-events");
        }
        "no-virtual-apic" | "ipi" if context.vendor == vmtax_events::Isa::Unknown => ids.clear(),
        _ => {}
    }
    ids
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

/// Regions of 2 MiB that fault often are mapped in small pages.
pub(super) fn small_by_faults(ledger: &Ledger) -> Option<String> {
    let mut regions: BTreeMap<Detail, u64> = BTreeMap::new();
    for (key, tally) in &ledger.exits {
        if key.detail.kind == DetailKind::PageFault {
            *regions.entry(key.detail).or_default() += tally.count;
        }
    }
    let often = regions.values().filter(|count| **count >= FAULTS_OF_4K).count();
    (often > 0 && often * 2 >= regions.len()).then(|| {
        format!(
            "{often} of {} regions of 2 MiB faulted {FAULTS_OF_4K} times and more",
            regions.len()
        )
    })
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

/// What classes of threads take processors.
fn remedies_of_takers(takers: &[(&str, crate::ledger::Taken)]) -> Vec<&'static str> {
    let all: u64 = takers.iter().map(|(_, taken)| taken.time_ns).sum();
    let part = |is: fn(&str) -> bool| {
        let ns: u64 = takers.iter().filter(|(name, _)| is(name)).map(|(_, t)| t.time_ns).sum();
        ns as f64 >= all as f64 * 0.2 && ns > 0
    };
    let is_vcpu = |name: &str| {
        name.starts_with("CPU ") && name.contains("/KVM")
            || name.starts_with("vcpu")
            || name.starts_with("fc_vcpu")
            || name.starts_with("crosvm_vcpu")
    };
    let is_io = |name: &str| {
        name.starts_with("vhost-")
            || name.starts_with("IO ")
            || name.starts_with("iothread")
            || name.starts_with("qemu")
            || name.starts_with("worker")
    };
    let is_ksm = |name: &str| name == "ksmd";
    let mut ids = vec!["vcpu-pinning"];
    if part(is_vcpu) {
        ids.push("fewer-vcpus");
    }
    if part(is_io) {
        ids.push("iothread-pinning");
    }
    if part(is_ksm) {
        ids.push("ksm-off");
    }
    if takers.is_empty() || part(|name| !name.starts_with("CPU ")) {
        ids.push("cpu-isolation");
    }
    ids
}

/// vCPUs wait for processors.
pub(super) fn contention(ledger: &Ledger, context: &Context) -> Option<Finding> {
    let share = ledger.contention().filter(|_| ledger.recording.emulated.is_none())?;
    if share < WORTH {
        return None;
    }
    let time = ledger.time_total();
    let takers = ledger.takers();
    let count = takers.iter().map(|(_, taken)| taken.count).sum();
    let mut finding = Finding::new(
        "contention",
        "vCPUs wait for a processor that others have: not a cost of exits",
        Certainty::Certain,
    );
    let named: Vec<String> = takers
        .iter()
        .take(3)
        .map(|(name, taken)| {
            format!("{name} {}", percent(taken.time_ns as f64 / time.preempted_ns.max(1) as f64))
        })
        .collect();
    finding.evidence.push(format!(
        "preempted {} ms of {} ms that the vCPUs were not halted",
        time.preempted_ns / 1_000_000,
        running_ns(&time) / 1_000_000
    ));
    if !named.is_empty() {
        finding.evidence.push(format!("their processors ran: {}", named.join(", ")));
    }
    let worst = ledger.time.iter().filter_map(|((_, vcpu), t)| Some((t.contention()?, vcpu)));
    if let Some((most, vcpu)) = worst.max_by(|a, b| a.0.total_cmp(&b.0))
        && ledger.time.len() > 1
    {
        finding.evidence.push(format!("most: vCPU {vcpu}, {}", percent(most)));
    }
    let time_ns = time.preempted_ns;
    finding.cost =
        Cost::Time { low_ns: time_ns, high_ns: time_ns, base_ns: running_ns(&time), count };
    finding.weight = share;
    finding.disproof = "the vCPU threads' nonvoluntary_ctxt_switches stand still";
    finding.next = if takers.is_empty() {
        "sched:sched_switch of all processors (perf record -a), which names who runs"
    } else {
        "`vmtax doctor` says how the vCPUs are pinned"
    };
    finding.advise(&remedies_of_takers(&takers), context);
    Some(finding)
}

/// Functions in which a guest waits without halting. Linux kernel/sched/idle.c, drivers/cpuidle.
const POLLS: [&str; 4] =
    ["cpu_idle_poll", "poll_idle", "haltpoll_enter_idle", "default_enter_idle"];
/// Functions that read a device's clock. Linux arch/x86/kernel/hpet.c, drivers/clocksource/acpi_pm.c, i8253.c.
const CLOCKS: [&str; 5] =
    ["read_hpet", "acpi_pm_read", "acpi_pm_read_verified", "i8253_read", "pit_read"];

/// The part of a profile's samples whose stack has a function that fits.
fn part_of(profile: &Profile, fits: impl Fn(&str) -> bool) -> f64 {
    let all = profile.total().max(1) as f64;
    let with = profile.stacks.iter().filter(|(stack, _)| stack.split(Profile::BETWEEN).any(&fits));
    with.map(|(_, weight)| *weight).fold(0, u64::saturating_add) as f64 / all
}

fn most(profile: &Profile, fits: impl Fn(&str) -> bool) -> String {
    let functions = profile.functions();
    let mut named: Vec<(&str, u64)> =
        functions.iter().filter(|(name, _)| fits(name)).map(|(name, w)| (*name, w.own)).collect();
    named.sort_by_key(|(_, own)| std::cmp::Reverse(*own));
    let all = profile.total().max(1) as f64;
    let line = |(name, own): &(&str, u64)| format!("{name} {}", percent(*own as f64 / all));
    named.iter().take(3).map(line).collect::<Vec<_>>().join(", ")
}

/// What a guest's profile shows.
pub(super) fn of_profiles(ledger: &Ledger, context: &Context) -> Vec<Finding> {
    let Some(profile) = ledger.profiles.get(&Place::Guest) else { return Vec::new() };
    let mut found = Vec::new();
    let mut add = |id: &'static str,
                   means: &str,
                   share: f64,
                   fits: &dyn Fn(&str) -> bool,
                   ids: &[&'static str],
                   disproof,
                   next| {
        let mut finding = Finding::new(id, means, Certainty::Likely);
        finding.evidence.push(format!(
            "{} of the guest's samples: {}",
            percent(share),
            most(profile, fits)
        ));
        finding.weight = share;
        (finding.disproof, finding.next) = (disproof, next);
        finding.advise(ids, context);
        found.push(finding);
    };
    let polls = |name: &str| POLLS.contains(&name);
    let share = part_of(profile, polls);
    if share >= 0.3 {
        let forced = profile.functions().contains_key("cpu_idle_poll");
        let ids: &[&'static str] = if forced { &["no-idle-poll"] } else { &[] };
        add(
            "guest-polls",
            "the guest is idle and polls: its processors are busy, and nothing is waited for by exits",
            share,
            &polls,
            ids,
            "the guest has work all the time",
            "the guest's command line (idle=), its cpuidle driver",
        );
    }
    let bounces = |name: &str| name.starts_with("swiotlb_");
    let share = part_of(profile, bounces);
    if share >= 0.03 {
        add(
            "bounce-buffer",
            "the guest copies what its devices read and write through the bounce buffer (swiotlb)",
            share,
            &bounces,
            &["no-forced-bounce", "bounce-size"],
            "the same load without the buffer is as slow",
            "debugfs swiotlb/io_tlb_{nslabs,used_hiwater} in the guest, at high and at low load",
        );
    }
    let clocks = |name: &str| CLOCKS.contains(&name);
    let share = part_of(profile, clocks);
    if share >= 0.02 && !found.iter().any(|finding: &Finding| finding.id == "clock-reads") {
        let mut finding =
            Finding::new("clock-reads", subject::find("clock-reads").means, Certainty::Certain);
        finding.evidence.push(format!(
            "{} of the guest's samples: {}",
            percent(share),
            most(profile, clocks)
        ));
        finding.weight = share;
        finding.disproof = subject::find("clock-reads").disproof;
        finding.next = subject::find("clock-reads").next;
        finding.advise(&["guest-clocksource"], context);
        found.push(finding);
    }
    found
}

/// A counter: for a thousand instructions where those are counted in both.
fn counter(ledger: &Ledger, wanted: &str) -> Option<f64> {
    let stem = |name: &str| name.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let stat = |stat: &&Stat| stem(&stat.name) == wanted;
    ledger.stats.iter().find(stat).map(|stat| stat.value)
}

/// What counters show beside a base.
pub(super) fn of_counters(ledger: &Ledger, base: Option<&Ledger>) -> Option<Finding> {
    let base = base?;
    let ratio = |name: &str| {
        let (here, there) = (counter(ledger, name)?, counter(base, name)?);
        (there > 0.0).then_some((here, there, here / there))
    };
    let (here, there, times) = ratio("branch-misses")?;
    let same_work = ratio("instructions").map_or(1.0, |(.., times)| times);
    if times < MORE * same_work {
        return None;
    }
    let mut finding = Finding::new(
        "branch-misses",
        "the guest's branches are predicted worse than in the base: not a cost of exits",
        Certainty::Likely,
    );
    finding
        .evidence
        .push(format!("branch-misses: {here:.0} here, {there:.0} in the base, x {times:.2}"));
    for name in ["dtlb-load-misses", "l1-dcache-load-misses", "llc-load-misses", "instructions"] {
        if let Some((here, there, times)) = ratio(name) {
            finding
                .evidence
                .push(format!("{name}: {here:.0} here, {there:.0} in the base, x {times:.2}"));
        }
    }
    finding.weight = 0.02;
    finding.disproof = "the same number of instructions was not run on both sides";
    finding.next = "mitigations in both guests (/sys/devices/system/cpu/vulnerabilities/*); perf record -e branch-misses in both";
    Some(finding)
}

/// Memory that is mapped in small pages.
pub(super) fn of_memory(ledger: &Ledger, context: &Context) -> Option<Finding> {
    let small = memory::is_small(ledger);
    let private = matches!(context.kind, VmKind::Tdx | VmKind::Snp);
    if small == Some(false) || small.is_none() && !private {
        let faults = small_by_faults(ledger).filter(|_| small.is_none())?;
        let mut finding = Finding::new(
            "small-pages",
            "the guest's memory is mapped in pages of 4 KiB",
            Certainty::Likely,
        );
        finding.evidence.push(faults);
        return Some(finish_memory(finding, context));
    }
    let mut finding = match (small, private) {
        (Some(true), _) => Finding::new(
            "small-pages",
            "the guest's memory is mapped in pages of 4 KiB",
            Certainty::Certain,
        ),
        _ => Finding::new(
            "small-pages",
            "the guest's memory is private, which Linux maps in pages of 4 KiB",
            Certainty::Likely,
        ),
    };
    if let Some((small, all)) = memory::mapped(ledger) {
        finding.evidence.push(format!(
            "{} of {:.0} MiB mapped in pages of 4 KiB, by KVM's counters",
            percent(small / all),
            all / 1_048_576.0
        ));
    }
    if private {
        finding.evidence.push(format!(
            "it is a {} guest: Linux up to 7.3 maps guest_memfd in pages of 4 KiB",
            context.kind.name()
        ));
    }
    Some(finish_memory(finding, context))
}

fn finish_memory(mut finding: Finding, context: &Context) -> Finding {
    finding.disproof = "`vmtax pages` shows 2M and 1G";
    finding.next = "`vmtax pages` on the host while the VM runs; dTLB-load-misses in the guest; perf annotate of its hottest function";
    finding.weight = 0.015;
    finding.advise(&["huge-pages"], context);
    finding
}
