//! Signs: what a recording shows of a setting, without anybody having read the setting.
//!
//! Each sign is a row of the table: the exits that it is about, and what must hold of them. A sign that is not there
//! proves nothing, and is not mentioned.

use std::collections::BTreeMap;

use vmtax_events::{Cause, Detail, DetailKind, ExitKey, Isa, Level, Outcome, apic, svm, vmx};

use super::Certainty;
use crate::Ledger;
use crate::table::cause_of;

/// IA32_TSC_DEADLINE.
const TSC_DEADLINE: u64 = 0x6e0;
/// Faults in one region of 2 MiB, on average, from which on it is mapped in 4 KiB pages: with a page of 2 MiB there
/// would be one, and a few when the mapping is taken away now and then.
const FAULTS_OF_4K: u64 = 8;
/// Regions that must have been touched before that is said.
const REGIONS: usize = 1;
/// Exits of L1 to access VMCS fields, for each exit of L2 that L1 handled, from which on shadowing is not at work: with
/// it Linux 6.1 takes none or one.
const VMCS_ACCESSES: f64 = 3.0;
/// Part of the exits to the VMM that go to one address, from which on it is one device's notification.
const ONE_ADDRESS: f64 = 0.5;
/// Part of the timers that a base arms, for which it must halt, to be a guest that has nothing else to do.
const HALTS: f64 = 0.1;
/// Writes of an event select for each timer that is armed, where it is changed at every tick: a counter that gets another
/// event is stopped and started, which are two, and a kernel whose rotation has a timer of its own arms two for a tick.
/// Threads with counters that are switched about once a tick leave the same counts: more than "possible" it cannot be.
const ROTATED: std::ops::RangeInclusive<f64> = 0.8..=2.5;
/// Fewer exits than this are no sign of anything that lasts.
const FEW: u64 = 20;

/// The sign of memory that is mapped in small pages.
pub(super) const FAULTS_SIGN: &str = "small-pages";

/// How sure a sign is, and why; `None` where it is not there.
type Seen = Option<(Certainty, String)>;
/// Looks for a sign in a recording, beside a base if there is one.
type Look = fn(&Ledger, Option<&Ledger>) -> Seen;

/// A row of the table.
pub struct Sign {
    /// Its word. These words never change.
    pub id: &'static str,
    /// What it means.
    pub means: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// The exits that would go, at most.
    pub exits: fn(&ExitKey) -> bool,
    /// What the change gains that no exit shows.
    pub beside_exits: Option<&'static str>,
    /// How sure it is and why, if the sign is there: in the recording, beside a base if there is one.
    pub(super) look: Look,
}

/// The table.
pub const SIGNS: &[Sign] = &[
    Sign {
        id: "no-tsc-deadline",
        means: "the guest arms its timer through the APIC's counter and not by the TSC deadline",
        remedy: "give the guest the TSC-deadline timer (QEMU: -cpu ...,+tsc-deadline)",
        exits: arms_by_counter,
        beside_exits: None,
        look: |ledger, _| {
            let (counter, deadline) = (sum(ledger, arms_by_counter), sum(ledger, arms_by_deadline));
            (counter >= FEW && deadline == 0).then(|| {
                (
                    Certainty::Certain,
                    format!(
                        "{counter} writes of the APIC's initial count, none of IA32_TSC_DEADLINE"
                    ),
                )
            })
        },
    },
    Sign {
        id: "xapic",
        means: "the guest uses its APIC through memory (xAPIC) and not through MSRs (x2APIC)",
        remedy: "give the guest x2APIC (QEMU: -cpu ...,+x2apic) and do not boot it with nox2apic",
        exits: xapic,
        beside_exits: None,
        look: |ledger, _| {
            let (memory, msrs) = (sum(ledger, xapic), sum(ledger, x2apic));
            (memory >= FEW && msrs == 0).then(|| {
                (
                    Certainty::Certain,
                    format!("{memory} accesses of the APIC's page, none of an x2APIC MSR"),
                )
            })
        },
    },
    Sign {
        id: "shadow-paging",
        means: "KVM keeps shadow page tables: the processor's nested paging (EPT, NPT) is not used",
        remedy: "load the module with kvm_intel.ept=1, or kvm_amd.npt=1",
        exits: shadow_paging,
        beside_exits: None,
        look: |ledger, _| {
            let n = sum(ledger, shadow_paging);
            (n >= FEW).then(|| {
                (Certainty::Certain, format!("{n} page faults and TLB flushes of the guest left it, which nested paging keeps inside"))
            })
        },
    },
    Sign {
        id: "no-vmcs-shadowing",
        means: "L1's accesses of its VMCS leave it: VMCS shadowing is off, or many fields are outside of it",
        remedy: "load L0's module with kvm_intel.enable_shadow_vmcs=1",
        exits: vmcs_accesses,
        beside_exits: None,
        look: |ledger, _| {
            let handled = sum(ledger, |key| key.level == Level::L2 && key.outcome == Outcome::L1);
            let n = sum(ledger, vmcs_accesses);
            let each = n as f64 / handled as f64;
            (handled > 0 && n >= FEW && each >= VMCS_ACCESSES).then(|| {
                (
                    Certainty::Certain,
                    format!(
                        "{each:.1} VMREADs and VMWRITEs of L1 for each exit of L2 that it handled"
                    ),
                )
            })
        },
    },
    Sign {
        id: FAULTS_SIGN,
        means: "the guest's memory is mapped in pages of 4 KiB",
        remedy: "back it with huge pages: hugetlbfs, or THP (`vmtax doctor` says which setting is missing)",
        exits: |key| key.detail.kind == DetailKind::PageFault,
        beside_exits: Some(
            "fewer misses of the TLB, each shorter by a level: no exit shows that, the same work with huge pages does",
        ),
        look: |ledger, _| {
            if let Some(is_small) = super::memory::is_small(ledger) {
                let (small, all) = super::memory::mapped(ledger)?;
                let evidence = format!(
                    "{} of {:.0} MiB mapped in pages of 4 KiB, by KVM's counters",
                    super::percent(small / all),
                    all / 1048576.0
                );
                return is_small.then_some((Certainty::Certain, evidence));
            }
            let mut regions: BTreeMap<Detail, u64> = BTreeMap::new();
            let faults =
                ledger.exits.iter().filter(|(key, _)| key.detail.kind == DetailKind::PageFault);
            faults.for_each(|(key, tally)| *regions.entry(key.detail).or_default() += tally.count);
            let often = regions.values().filter(|count| **count >= FAULTS_OF_4K).count();
            (often >= REGIONS && often * 2 >= regions.len()).then(|| {
                (
                    Certainty::Likely,
                    format!(
                        "{often} of {} regions of 2 MiB faulted {FAULTS_OF_4K} times and more",
                        regions.len()
                    ),
                )
            })
        },
    },
    Sign {
        id: "one-notification",
        means: "one device register wakes the VMM again and again",
        remedy: "let the kernel take it: vhost, or an ioeventfd and an iothread",
        exits: to_the_vmm,
        beside_exits: None,
        look: |ledger, _| {
            let mut addresses: BTreeMap<Detail, u64> = BTreeMap::new();
            let exits = ledger.exits.iter().filter(|(key, _)| to_the_vmm(key));
            exits.for_each(|(key, tally)| *addresses.entry(key.detail).or_default() += tally.count);
            let all: u64 = addresses.values().sum();
            let (_, most) = addresses.iter().max_by_key(|(_, count)| **count)?;
            (*most >= FEW && *most as f64 >= all as f64 * ONE_ADDRESS).then(|| {
                (
                    Certainty::Possible,
                    format!("{most} of {all} exits to the VMM are for one address"),
                )
            })
        },
    },
    Sign {
        id: "counters",
        means: "the guest uses performance counters all the time: its NMI watchdog, or a profiler",
        remedy: "in the guest: sysctl kernel.nmi_watchdog=0; or take the vPMU away (kvm.enable_pmu=0)",
        exits: |key| cause_of(key) == Cause::Pmu,
        beside_exits: None,
        look: |ledger, _| {
            let n = sum(ledger, |key| cause_of(key) == Cause::Pmu);
            let programmed = sum(ledger, programs_counter);
            (n >= FEW).then(|| {
                let kind = match programmed {
                    0 => "none of them programs an event: one that interrupts again and again, as the watchdog's does"
                        .to_owned(),
                    n => format!("{n} of them program an event"),
                };
                (Certainty::Likely, format!("{n} accesses of counters; {kind}"))
            })
        },
    },
    Sign {
        id: "multiplexing",
        means: "the guest's perf has more events than counters: they take turns at every timer tick",
        remedy: "in the guest: fewer events at a time; kernel.nmi_watchdog=0 frees a counter; or more counters for the guest",
        exits: |key| cause_of(key) == Cause::Pmu,
        beside_exits: None,
        look: |ledger, _| {
            let ticks = match sum(ledger, arms) {
                0 => sum(ledger, ticks),
                arms => arms,
            };
            let mut registers: BTreeMap<Detail, u64> = BTreeMap::new();
            let writes = ledger.exits.iter().filter(|(key, _)| programs_counter(key));
            writes
                .for_each(|(key, tally)| *registers.entry(key.detail).or_default() += tally.count);
            let rotated: Vec<u64> = registers
                .values()
                .copied()
                .filter(|n| *n >= FEW && ROTATED.contains(&(*n as f64 / ticks as f64)))
                .collect();
            // Where all of them are changed as often, it is the clock that changes them.
            (ticks >= FEW && !rotated.is_empty() && rotated.len() == registers.len()).then(|| {
                let n: u64 = rotated.iter().sum();
                let each = n as f64 / rotated.len() as f64 / ticks as f64;
                let registers = rotated.len();
                (
                    Certainty::Possible,
                    format!(
                        "{n} writes of {registers} event selects, {each:.1} of each for a timer"
                    ),
                )
            })
        },
    },
    Sign {
        id: "polling",
        means: "the guest waits for its timer without halting (idle=poll), and keeps its CPU busy",
        remedy: "idle=poll only where a CPU is the guest's alone; else cpuidle_haltpoll, which halts in the end",
        exits: ticks,
        beside_exits: None,
        // Who has work all the time does not halt either: only a base that halts for the same timers tells.
        look: |ledger, base| {
            let base = base?;
            let (arms, ticks) = (sum(ledger, arms), sum(ledger, ticks));
            let here = sum(ledger, halts);
            let there = sum(base, halts);
            let is_used_to = there >= FEW && there as f64 >= sum(base, self::arms) as f64 * HALTS;
            (arms >= FEW && ticks >= FEW && here == 0 && is_used_to).then(|| {
                (Certainty::Likely, format!("{arms} timers armed, {ticks} ticks taken and not one halt; the base halted {there} times"))
            })
        },
    },
    Sign {
        id: "spinning",
        means: "vCPUs spin on PAUSE: on a lock whose owner does not run, or by idle=poll",
        remedy: "give each vCPU a CPU of its own, or let the guest halt",
        exits: |key| is(key, vmx::PAUSE_INSTRUCTION, svm::PAUSE),
        beside_exits: None,
        look: |ledger, _| {
            let n = sum(ledger, |key| is(key, vmx::PAUSE_INSTRUCTION, svm::PAUSE));
            (n >= FEW).then(|| (Certainty::Likely, format!("{n} exits for PAUSE")))
        },
    },
];

fn sum(ledger: &Ledger, wanted: impl Fn(&ExitKey) -> bool) -> u64 {
    let wanted = ledger.exits.iter().filter(|(key, _)| wanted(key));
    wanted.fold(0u64, |sum, (_, tally)| sum.saturating_add(tally.count))
}

fn is(key: &ExitKey, intel: u32, amd: u32) -> bool {
    match key.reason.isa {
        Isa::Vmx => key.reason.code == intel,
        Isa::Svm => key.reason.code == amd,
        Isa::Unknown => false,
    }
}

/// The register of the APIC's page that an exit is about.
fn register_in_memory(detail: Detail) -> Option<u64> {
    match detail.kind {
        DetailKind::ApicRead | DetailKind::ApicWrite => Some(detail.value),
        DetailKind::MmioRead | DetailKind::MmioWrite => {
            detail.value.checked_sub(apic::XAPIC_BASE).filter(|offset| *offset < 0x1000)
        }
        _ => None,
    }
}

fn arms(key: &ExitKey) -> bool {
    cause_of(key) == Cause::TimerArm
}

fn ticks(key: &ExitKey) -> bool {
    cause_of(key) == Cause::TimerTick
}

fn halts(key: &ExitKey) -> bool {
    is(key, vmx::HLT, svm::HLT) || key.outcome == Outcome::Halted
}

fn xapic(key: &ExitKey) -> bool {
    register_in_memory(key.detail).is_some()
}

fn x2apic(key: &ExitKey) -> bool {
    matches!(key.detail.kind, DetailKind::MsrRead | DetailKind::MsrWrite)
        && (0x800..0x900).contains(&key.detail.value)
}

fn arms_by_counter(key: &ExitKey) -> bool {
    let is_write = matches!(
        key.detail.kind,
        DetailKind::MsrWrite | DetailKind::MmioWrite | DetailKind::ApicWrite
    );
    let in_memory = register_in_memory(key.detail) == Some(u64::from(apic::TMICT));
    is_write && (in_memory || x2apic(key) && key.detail.value == 0x838)
}

fn arms_by_deadline(key: &ExitKey) -> bool {
    key.detail.kind == DetailKind::MsrWrite && key.detail.value == TSC_DEADLINE
}

/// A write of an event select, or of the control of the fixed counters.
fn programs_counter(key: &ExitKey) -> bool {
    let selects =
        [0x186..=0x18d, 0x38d..=0x38d, 0xc001_0000..=0xc001_0003, 0xc001_0200..=0xc001_020b];
    let at = key.detail.value;
    // AMD's newer ones are every other register.
    let is_counter = at >= 0xc001_0200 && at & 1 == 1;
    key.detail.kind == DetailKind::MsrWrite
        && !is_counter
        && selects.iter().any(|range| range.contains(&at))
}

fn shadow_paging(key: &ExitKey) -> bool {
    is(key, vmx::INVLPG, svm::INVLPG) || is(key, u32::MAX, svm::PF_EXCP)
}

fn vmcs_accesses(key: &ExitKey) -> bool {
    key.ancillary_of.is_some()
        && (is(key, vmx::VMREAD, u32::MAX) || is(key, vmx::VMWRITE, u32::MAX))
}

fn to_the_vmm(key: &ExitKey) -> bool {
    key.outcome == Outcome::User
        && matches!(
            key.detail.kind,
            DetailKind::PortIn | DetailKind::PortOut | DetailKind::MmioRead | DetailKind::MmioWrite
        )
}
