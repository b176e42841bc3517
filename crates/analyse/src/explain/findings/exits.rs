//! What exits show: a finding for each subject that matters.

use std::collections::BTreeMap;

use vmtax_events::apicv::ApicvInhibit;
use vmtax_events::tdx::{self, Reporting};
use vmtax_events::{
    Cause, Detail, DetailKind, Device, ExitKey, Isa, OCTAVES, Reason, apic, octave_bounds,
};

use super::super::certainty::Certainty;
use super::super::finding::{Evidence, Finding, FoundKind, Most};
use super::super::interrupts::{
    inhibits, lines_are_a_timers, of_inhibits, of_line_timer, wakers, wakes,
};
use super::super::mapping;
use super::super::subject::{Subject, register_in_memory};
use super::super::sums::{
    FEW, POLL_NS, RecordingSums, SubjectSum, TICK, WORTH, add, faults_wait, halts, halts_return,
    is_half, is_most, mean_ns, periodic_wake_ups, short_halts, total,
};
use super::small_pages::{only_if_mapping, refaults, small_by_faults};
use crate::Ledger;
use crate::remedy::{Context, RemedyId, VmKind};
use crate::table::cause_of;

/// Addresses and reasons that are named.
const NAMED: usize = 4;
/// Part of the host interrupts that expired guest timers must leave over for it to be more than their variation.
const OTHERS: f64 = 0.1;
/// Accesses of the VMCS for an entry of L2 that a hypervisor has at least without shadowing. With it some fields remain (3 in
/// "profiling nested KVM", KVM Forum 2017).
const WITHOUT_SHADOW: f64 = 8.0;
/// The findings of exits: one for each subject that matters.
pub(in crate::explain) fn of_exits(
    ledger: &Ledger,
    context: &Context,
    sums: &RecordingSums,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let at_once = halts_return(ledger, sums);
    for (&subject, sum) in &sums.by_subject {
        if !sums.matters(sum) {
            continue;
        }
        let what = match subject {
            Subject::Other => FoundKind::OtherExits(reasons(sum)),
            Subject::MemoryFaults if faults_wait(ledger, sums) => FoundKind::FaultsWait,
            Subject::Halts if at_once.is_some() => FoundKind::HaltsReturn,
            _ => FoundKind::Exits(subject),
        };
        let mut finding = Finding::new(what, certainty(subject, sum));
        finding.weight = sums.weight(sum);
        finding.cost = sums.cost(sum);
        finding.evidence.push(Evidence::Exits {
            count: sum.count,
            total: sums.total,
            reasons: reasons(sum),
            rate: sums.rate(sum.count),
            spent_ns: sums.spent_ns(sum),
        });
        finding.evidence.extend(details(sum, sums.timed));
        if subject == Subject::Halts {
            finding.evidence.extend(at_once.clone());
            finding.evidence.extend(wakers(ledger, sums));
        }
        let remedies = fitting(ledger, context, subject, sum, sums, &mut finding.evidence);
        finding.advise(&remedies, context);
        if subject == Subject::MemoryFaults && mapping::is_small(ledger).is_none() {
            only_if_mapping(&mut finding);
        }
        found.push(finding);
    }
    found.extend(xapic(ledger, context));
    // What a recording shows needs no guess.
    let timer = of_line_timer(ledger, sums, context);
    found.extend(timer.or_else(|| periodic(ledger, sums)));
    found.extend(of_inhibits(ledger, sums, context));
    found.extend(slow(sums));
    found
}

/// Ticks of kernels (CONFIG_HZ), a second.
const HZ: [f64; 4] = [100.0, 250.0, 300.0, 1000.0];
/// How far from that a rate may be, and the part of the time that an idle guest is halted.
const NEAR: f64 = 0.03;
const IDLE: f64 = 0.9;

/// A timer wakes an idle guest at a fixed rate: one that runs by itself, or the guest's tick. No rate proves which.
fn periodic(ledger: &Ledger, sums: &RecordingSums) -> Option<Finding> {
    let (rate, armed) = periodic_wake_ups(ledger, sums, arms(ledger))?;
    let is_tick = HZ.iter().any(|hz| (rate - hz).abs() <= hz * NEAR);
    let is_idle = ledger.time_total().halted_ns as f64 >= sums.wall_ns as f64 * IDLE;
    let found = if armed < rate * OTHERS {
        FoundKind::PeriodicTimer { armed: false }
    } else if armed > rate * (1.0 - OTHERS) && is_tick && is_idle {
        FoundKind::PeriodicTimer { armed: true }
    } else {
        return None;
    };
    let mut finding = Finding::new(found, Certainty::Possible);
    finding.evidence.push(Evidence::PeriodicWakeUps(rate, armed));
    finding.evidence.extend(wakers(ledger, sums));
    finding.weight = 0.001;
    Some(finding)
}

/// An access that takes the VMM as long on average is slow: others take some microseconds, with QEMU's main lock some tens.
const SLOW_NS: u64 = 200_000;

/// Registers that take the VMM far longer than registers do.
fn slow(sums: &RecordingSums) -> Option<Finding> {
    let is_device = |detail: &Detail| {
        use DetailKind as K;
        matches!(detail.kind, K::PortIn | K::PortOut | K::MmioRead | K::MmioWrite)
    };
    let details = sums.by_subject.values().flat_map(|sum| &sum.details);
    let mut slow: Vec<(Detail, u64, u64)> = details
        .filter(|(detail, (count, ns))| {
            sums.timed && is_device(detail) && *count >= FEW && ns / (*count).max(1) >= SLOW_NS
        })
        .map(|(detail, (count, ns))| (*detail, *ns, ns / (*count).max(1)))
        .collect();
    slow.sort_by_key(|(detail, ns, _)| (std::cmp::Reverse(*ns), *detail));
    let all: u64 = slow.iter().fold(0, |sum, (_, ns, _)| sum.saturating_add(*ns));
    let matters = all as f64 >= sums.base_ns as f64 * WORTH;
    (matters && !slow.is_empty()).then(|| {
        let mut finding = Finding::new(FoundKind::SlowRegisters, Certainty::Certain);
        let lines = slow.iter().take(NAMED);
        let isa = sums.by_subject.values().map(isa_of).find(|isa| *isa != Isa::Unknown);
        let isa = isa.unwrap_or(Isa::Unknown);
        finding
            .evidence
            .extend(lines.map(|(detail, _, each)| Evidence::SlowAccess(isa, *detail, *each)));
        finding.weight = 0.001;
        finding
    })
}

fn certainty(subject: Subject, sum: &SubjectSum) -> Certainty {
    match subject {
        Subject::DeviceRegisters
        | Subject::NvmeDoorbells
        | Subject::HostInterrupts
        | Subject::Counters => Certainty::Possible,
        Subject::NotificationsToVmm | Subject::Halts | Subject::Spinning | Subject::GuestTimer => {
            Certainty::Likely
        }
        _ if sum.details.is_empty() && sum.tally.timed == 0 => Certainty::Likely,
        _ => Certainty::Certain,
    }
}

/// The exits' reasons, most first.
fn reasons(sum: &SubjectSum) -> Most<Reason> {
    let mut all: Vec<(&Reason, &u64)> = sum.reasons.iter().collect();
    all.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), **reason));
    Most::of(all.into_iter().map(|(reason, _)| *reason).collect(), NAMED)
}

/// Some of the addresses are those of virtio devices, as far as their place says so.
fn has_virtio(sum: &SubjectSum) -> bool {
    let isa = isa_of(sum);
    sum.details.keys().any(|detail| Device::of(isa, *detail) == Some(Device::VirtioMmio))
}

fn isa_of(sum: &SubjectSum) -> Isa {
    sum.reasons.keys().next().map_or(Isa::Unknown, |reason| reason.isa)
}

/// What the exits accessed, what takes most first; `None` where no detail is known.
fn details(sum: &SubjectSum, timed: bool) -> Option<Evidence> {
    let of_time = |ns: u64| if timed { ns } else { 0 };
    let mut all: Vec<(Detail, u64, u64)> =
        sum.details.iter().map(|(d, (count, ns))| (*d, *count, of_time(*ns))).collect();
    all.sort_by_key(|(detail, count, ns)| {
        (std::cmp::Reverse(*ns), std::cmp::Reverse(*count), *detail)
    });
    let each = |(detail, count, ns)| (detail, count, timed.then(|| ns / u64::max(count, 1)));
    let mut most = Most::of(all.into_iter().map(each).collect(), NAMED);
    most.named.retain(|(detail, ..)| detail.kind != DetailKind::Overflow);
    (!most.named.is_empty()).then_some(Evidence::Details(isa_of(sum), most))
}

/// Writes to port 0x402 that a release build of firmware does at a boot: Debian's SeaBIOS 1.16.2 wrote 145 to 712 times on an emulated
/// host.
const RELEASE_WRITES: u64 = 1_000;

/// Accesses of the RTC a second by the fastest clock of Windows, 2048 Hz.
const FASTEST_TICKS: f64 = 2.0 * 2048.0;

/// The remedies of a subject that its numbers allow.
fn fitting(
    ledger: &Ledger,
    context: &Context,
    subject: Subject,
    sum: &SubjectSum,
    sums: &RecordingSums,
    evidence: &mut Vec<Evidence>,
) -> Vec<RemedyId> {
    let mut ids = subject.remedies().to_vec();
    match subject {
        Subject::GuestTimer => {
            let arms = arms(ledger);
            let of_tick = sums.rate(arms).is_some_and(|rate| TICK.contains(&rate));
            let busy = sums.base_ns as f64 >= sums.wall_ns as f64 * 0.5;
            if !of_tick || !busy {
                ids.clear();
            }
        }
        Subject::Halts if is_at_once(evidence) => ids = vec![RemedyId::NoKvmapf],
        Subject::HostInterrupts | Subject::HostTick => {
            of_interrupts(ledger, context, (sum, sums), &mut ids, evidence)
        }
        Subject::Halts if wakes(ledger, sums).is_some() => {
            evidence.extend(wakes(ledger, sums).map(Evidence::TimerWakes));
            ids.clear();
        }
        Subject::LevelInterrupts if lines_are_a_timers(ledger, sums) => ids.clear(),
        Subject::Halts => match short_halts(ledger) {
            Some((short, all)) if sums.timed && is_most(short, all) => {
                let polling = polling_ns(ledger) as f64 / sums.wall_ns.max(1) as f64;
                let within_ns = POLL_NS;
                evidence.push(Evidence::ShortHalts { short, all, within_ns, polling });
            }
            _ => ids.clear(),
        },
        Subject::Notifications if sums.timed && !ledger.recording.coverage.userspace => {
            evidence.push(Evidence::ShortNotifications(mean_ns(sum)));
        }
        // A register that is read is no queue's notification.
        Subject::DeviceRegisters if sum.details.keys().any(|one| one.is_write() != Some(true)) => {
            ids.retain(|id| {
                *id != RemedyId::Ioeventfd
                    && !(has_virtio(sum) && *id == RemedyId::ParavirtualDevice)
            });
        }
        Subject::MemoryFaults => {
            of_faults(ledger, (sum, sums), &mut ids, evidence);
            if context.kind.is_private() && ids.contains(&RemedyId::HugePages) {
                ids.push(RemedyId::PreFault);
            }
        }
        Subject::Requests if context.kind == VmKind::Tdx => {
            evidence.push(Evidence::Tdcalls(reporting(ledger)));
        }
        Subject::DebugConsole if sum.count <= RELEASE_WRITES => {
            evidence.push(Evidence::FewDebugWrites(sum.count));
            ids.clear();
        }
        Subject::Counters if rotated(ledger) => {
            evidence.push(Evidence::RotatedCounters);
            ids.retain(|id| *id == RemedyId::FewerEvents);
        }
        // A lock whose owner runs, or an idle guest that polls: no vCPU waits for a processor.
        Subject::Spinning if ledger.contention().is_some_and(|share| share < WORTH) => {
            evidence.push(Evidence::NoPreemption);
            ids.clear();
        }
        Subject::VmcsAccesses => {
            if let Some(each) = accesses_per_entry(ledger).filter(|each| *each < WITHOUT_SHADOW) {
                evidence.push(Evidence::ShadowedVmcs(each));
                ids.clear();
            }
        }
        Subject::NoVirtualApic | Subject::Ipi if context.vendor == Isa::Unknown => ids.clear(),
        // Windows of interrupts and task priorities are no ends of interrupts.
        Subject::NoVirtualApic if !is_half(ends(sum), sum.count) => {
            ids.retain(|id| !matches!(id, RemedyId::PvEoi | RemedyId::HvVapic));
        }
        Subject::Ipi if context.kind.is_confidential() => {
            ids.extend([RemedyId::PvIpi, RemedyId::GuestHaltpoll]);
        }
        Subject::Ipi if context.is_windows => ids.extend([RemedyId::HvIpi, RemedyId::HvTlbflush]),
        // A clock of Windows ticks at most so often, by one pair of accesses: to read the time takes eleven pairs.
        Subject::Rtc if sums.rate(sum.count).is_some_and(|rate| rate <= FASTEST_TICKS) => {
            ids.retain(|id| *id != RemedyId::RtcReads);
            if sums.rate(sum.count).is_some_and(|rate| rate < *TICK.start()) {
                ids.clear();
            }
        }
        Subject::Nesting if context.is_windows => {
            ids.extend([RemedyId::HvEvmcs, RemedyId::NestedMbec])
        }
        _ => {}
    }
    // To switch on what something else inhibits changes nothing.
    if inhibits(ledger).iter().any(|(_, one)| *one != Some(ApicvInhibit::Disabled)) {
        ids.retain(|id| !matches!(id, RemedyId::Apicv | RemedyId::Avic | RemedyId::Ipiv));
    }
    if sum.count < FEW && !ids.is_empty() {
        evidence.push(Evidence::TooFewExits(sum.count));
        ids.clear();
    }
    ids
}

/// How the host's kernel reports what a TD asks for.
fn reporting(ledger: &Ledger) -> Option<&'static Reporting> {
    let is_native = |key: &ExitKey| key.reason.isa == Isa::Vmx && tdx::is_native(key.reason.code);
    tdx::reporting(&ledger.recording.kernel, ledger.exits.keys().any(is_native))
}

/// Ends of interrupts: IA32_X2APIC_EOI, and the same register in memory.
fn ends(sum: &SubjectSum) -> u64 {
    let is_end = |detail: &Detail| {
        detail.kind == DetailKind::MsrWrite && detail.value == 0x80b
            || register_in_memory(*detail) == Some(u64::from(apic::EOI))
    };
    let ends = sum.details.iter().filter(|(detail, _)| is_end(detail));
    total(ends.map(|(_, (count, _))| *count))
}

fn is_at_once(evidence: &[Evidence]) -> bool {
    evidence.iter().any(|line| matches!(line, Evidence::HaltsAtOnce { .. }))
}

/// Interrupts of the host: a tick, devices, or time in which others ran.
fn of_interrupts(
    ledger: &Ledger,
    context: &Context,
    (sum, sums): (&SubjectSum, &RecordingSums),
    ids: &mut Vec<RemedyId>,
    evidence: &mut Vec<Evidence>,
) {
    if sums.interrupts_wait(ledger).is_some() {
        evidence.push(Evidence::LongInterrupts(mean_ns(sum)));
        ids.clear();
        return;
    }
    let expiries = context.vendor == Isa::Svm || context.kind == VmKind::Tdx || sums.total == 0;
    let others = if expiries { sum.count.saturating_sub(arms(ledger)) } else { sum.count };
    // What expired timers leave over is the difference of two counts that vary.
    if (others as f64) < sum.count as f64 * OTHERS {
        ids.clear();
        return;
    }
    match sums.rate(others) {
        Some(rate) if rate < *TICK.start() => ids.clear(),
        Some(rate) if TICK.contains(&rate) => ids.retain(|id| *id == RemedyId::HostNohzFull),
        Some(rate) => {
            let injected = sums.by_subject.get(&Subject::NoVirtualApic).map_or(0, |sum| sum.count);
            if is_half(injected, others) {
                evidence.push(Evidence::InjectedInterrupts(injected));
                ids.clear();
            } else {
                evidence.push(Evidence::InterruptRate(rate));
                ids.retain(|id| *id == RemedyId::IrqAffinity);
            }
        }
        None => ids.clear(),
    }
}

/// Page faults: small pages, pages that are taken away, or content that comes from somewhere.
fn of_faults(
    ledger: &Ledger,
    (sum, sums): (&SubjectSum, &RecordingSums),
    ids: &mut Vec<RemedyId>,
    evidence: &mut Vec<Evidence>,
) {
    if faults_wait(ledger, sums) {
        evidence.push(Evidence::LongFaults(mean_ns(sum)));
        *ids = vec![RemedyId::ResidentMemory];
    } else if let Some(again) = refaults(ledger) {
        evidence.extend([again, Evidence::PagesTaken]);
        ids.clear();
    } else if let Some(small) = small_by_faults(ledger) {
        evidence.push(small);
    } else if mapping::is_small(ledger) != Some(true) {
        ids.clear();
    }
}

/// VMREADs and VMWRITEs of L1 for each entry of L2.
fn accesses_per_entry(ledger: &Ledger) -> Option<f64> {
    use vmtax_events::vmx;
    let count = |codes: [u32; 2]| {
        let of = |key: &ExitKey| key.reason.isa == Isa::Vmx && codes.contains(&key.reason.code);
        let exits = ledger.exits.iter().filter(|(key, _)| of(key));
        exits.fold(0u64, |sum, (_, tally)| sum.saturating_add(tally.count))
    };
    let entries = count([vmx::VMRESUME, vmx::VMLAUNCH]);
    (entries >= FEW).then(|| count([vmx::VMREAD, vmx::VMWRITE]) as f64 / entries as f64)
}

fn arms(ledger: &Ledger) -> u64 {
    let arms = ledger.exits.iter().filter(|(key, _)| cause_of(key) == Cause::TimerArm);
    arms.fold(0, |sum, (_, tally)| sum.saturating_add(tally.count))
}

/// What polling for each halt would cost: at most the polling time, or the halt.
fn polling_ns(ledger: &Ledger) -> u64 {
    let halts = halts(ledger);
    let octaves = halts.durations.octaves();
    let each = |bucket: usize| {
        let end = octave_bounds(bucket).1.unwrap_or(POLL_NS).min(POLL_NS);
        octaves[bucket].saturating_mul(end)
    };
    (0..OCTAVES).map(each).fold(0, u64::saturating_add)
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
            add(selects.entry(at).or_default(), tally.count);
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
        register_in_memory(key.detail).is_some()
            && matches!(key.detail.kind, DetailKind::MmioRead | DetailKind::MmioWrite)
            || register_in_memory(key.detail).is_some() && !context.has_virtual_apic
    });
    let by_msr = sum(&|key| {
        matches!(key.detail.kind, DetailKind::MsrRead | DetailKind::MsrWrite)
            && (0x800..0x900).contains(&key.detail.value)
    });
    (in_memory >= FEW && by_msr == 0).then(|| {
        let mut finding = Finding::new(FoundKind::Xapic, Certainty::Certain);
        finding.evidence.push(Evidence::ApicInMemory(in_memory));
        finding.advise(&[RemedyId::X2apic], context);
        finding
    })
}
