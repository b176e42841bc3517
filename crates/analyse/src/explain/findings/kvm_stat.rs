//! What KVM's own counters show where there is no recording: which events most of the exits go with. Counts, no costs.

use super::super::certainty::Certainty;
use super::super::finding::{Evidence, Finding, FoundKind};
use super::super::step::Says;
use super::super::subject::Subject;
use crate::Ledger;
use crate::remedy::Context;

/// A part from which on events go with most of the others.
const MOST: f64 = 0.5;
/// The same of events that come one by one.
const NEARLY_ALL: f64 = 0.8;
/// The same of others that are named beside.
const SOME: f64 = 0.01;
/// What is found, the part of the exits, and the counters that show it.
type ShownCounters = (FoundKind, f64, Vec<(&'static str, f64)>);

/// A process that ran as long, in ms, would have entered its guest.
const BUSY_MS: f64 = 1000.0;

/// Fewer exits than these show nothing.
const ENOUGH: f64 = 1000.0;

/// Counters by name: tracepoints of KVM, or files of its debugfs.
struct KvmStatCounts<'a>(&'a Ledger);

impl KvmStatCounts<'_> {
    /// The first of these that was counted.
    fn of(&self, names: &[&'static str]) -> Option<(&'static str, f64)> {
        names.iter().find_map(|wanted| {
            // perf stat puts the system before a tracepoint's name.
            let is_it = |name: &str| name.strip_prefix("kvm:").unwrap_or(name) == *wanted;
            let stat = self.0.stats.iter().find(|stat| is_it(&stat.name))?;
            Some((*wanted, stat.value))
        })
    }

    fn sum(&self, names: &[&'static str]) -> f64 {
        names.iter().filter_map(|name| self.of(&[name])).map(|(_, value)| value).sum()
    }

    /// Those of these that were counted.
    fn all(&self, names: &[&'static str]) -> Vec<(&'static str, f64)> {
        names.iter().filter_map(|name| self.of(&[name])).filter(|(_, value)| *value > 0.0).collect()
    }
}

const EXITS: [&str; 2] = ["kvm_exit", "exits"];
/// Exits that KVM hands on to the VMM.
const TO_THE_VMM: [&str; 1] = ["kvm_userspace_exit"];
const WAKE_UPS: [&str; 2] = ["kvm_vcpu_wakeup", "halt_wakeup"];
const INTERRUPTS: [&str; 2] = ["kvm_apic_accept_irq", "kvm_inj_virq"];
/// Interrupts that somebody else sends than the guest's own timer.
const SENT: [&str; 3] = ["kvm_set_irq", "kvm_msi_set_irq", "kvm_apic_ipi"];
/// KVM runs the guest's timer on VMX's preemption timer (arch/x86/kvm/lapic.c, start_hv_timer).
const TIMER: &str = "kvm_hv_timer_state";

/// What exits are about if these count most of them, by the counters that say so.
const ABOUT: &[(&[&str], Subject)] = &[
    (&["kvm_pio", "io_exits"], Subject::UnnamedDevice),
    (&["kvm_mmio", "mmio_exits"], Subject::UnnamedDevice),
    (&["kvm_page_fault", "pf_taken"], Subject::MemoryFaults),
    (&["kvm_cpuid"], Subject::Cpuid),
    (&["kvm_hypercall", "kvm_hv_hypercall", "hypercalls"], Subject::Hypercalls),
    (&["irq_exits"], Subject::HostInterrupts),
];

/// How many exits a counter has, if one has some.
pub(in crate::explain) fn counted_exits(ledger: &Ledger) -> Option<Says> {
    let counts = KvmStatCounts(ledger);
    let counted = |names: &[&'static str]| counts.of(names).filter(|(_, exits)| *exits >= 1.0);
    let (name, exits) = counted(&EXITS).or_else(|| counted(&TO_THE_VMM))?;
    // Linux arch/x86/include/asm/kvm_host.h, `struct kvm_vcpu_stat`: each is a part of `exits`.
    let parts = counts.all(PARTS).into_iter().filter(|(_, part)| *part <= exits);
    let most = parts.max_by(|one, other| one.1.total_cmp(&other.1)).filter(|_| name == EXITS[1]);
    Some(Says::Counted(name, exits as u64, most.map(|(part, count)| (part, count as u64))))
}

/// Kinds of exits that KVM counts apart.
const PARTS: &[&str] = &[
    "io_exits",
    "mmio_exits",
    "irq_exits",
    "halt_exits",
    "signal_exits",
    "nmi_window_exits",
    "request_irq_exits",
];

/// What the counters show. No remedies: which device, which timer and what it costs are in a recording.
pub(in crate::explain) fn of_kvm_counters(ledger: &Ledger, context: &Context) -> Vec<Finding> {
    let counts = KvmStatCounts(ledger);
    // perf stat of a process that ran, in which KVM entered no guest.
    if counts.of(&["kvm_entry"]).is_some_and(|(_, entries)| entries == 0.0)
        && counts.of(&["kvm_exit"]).is_some_and(|(_, exits)| exits == 0.0)
        && counts.of(&["task-clock"]).is_some_and(|(_, ms)| ms >= BUSY_MS)
    {
        let mut finding = Finding::new(FoundKind::NoKvm, Certainty::Likely);
        let counters = vec![("kvm_entry", 0.0)];
        finding.evidence.push(Evidence::KvmCounters { exits: 0.0, counters });
        finding.weight = 1.0;
        return vec![finding];
    }
    let Some((_, exits)) = counts.of(&EXITS).filter(|(_, exits)| *exits >= ENOUGH) else {
        return Vec::new();
    };
    let mut found: Vec<ShownCounters> = Vec::new();
    found.extend(interrupts(&counts, exits));
    for (names, subject) in ABOUT {
        let part = counts.sum(names) / exits;
        if part >= MOST {
            let mut counters = counts.all(names);
            // Beside interrupts: exits to devices, whose tracepoints name them.
            if *subject == Subject::HostInterrupts {
                let devices = counts.all(&["io_exits", "mmio_exits"]);
                counters.extend(devices.into_iter().filter(|(_, value)| *value >= exits * SOME));
            }
            found.push((FoundKind::Exits(*subject), part, counters));
        }
    }
    let finding = |(found, part, counters): ShownCounters| {
        let mut finding = Finding::new(found, Certainty::Possible);
        finding.evidence.push(Evidence::KvmCounters { exits, counters });
        finding.weight = part.min(1.0);
        finding.advise(&[], context);
        finding
    };
    found.into_iter().map(finding).collect()
}

/// Exits that come with each interrupt of the guest: arming, expiry, EOI.
fn interrupts(counts: &KvmStatCounts<'_>, exits: f64) -> Option<ShownCounters> {
    let (name, taken) = counts.of(&INTERRUPTS)?;
    // Each takes at least an exit for arming or sending it, and one to be taken.
    let part = 2.0 * taken / exits;
    if part < MOST {
        return None;
    }
    let (_, ipis) = counts.of(&["kvm_apic_ipi"]).unwrap_or(("", 0.0));
    let (_, timer) = counts.of(&[TIMER]).unwrap_or(("", 0.0));
    let (_, woken) = counts.of(&WAKE_UPS).unwrap_or(("", 0.0));
    let mut counters = vec![(name, taken)];
    counters.extend(counts.all(&[
        TIMER,
        "kvm_msr",
        "kvm_vcpu_wakeup",
        "kvm_eoi",
        "kvm_apic_ipi",
        "kvm_set_irq",
        "kvm_msi_set_irq",
    ]));
    let found = if ipis >= taken * MOST {
        FoundKind::Exits(Subject::Ipi)
    } else if timer < taken * NEARLY_ALL || counts.sum(&SENT) > taken * (1.0 - NEARLY_ALL) {
        return None;
    } else if woken >= taken * NEARLY_ALL {
        FoundKind::PeriodicTimer { armed: true }
    } else {
        FoundKind::Exits(Subject::GuestTimer)
    };
    Some((found, part, counters))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Filter, LedgerBuilder};
    use vmtax_events::{Losses, Recording, Stat};

    fn found(stats: &[(&str, u64)]) -> Vec<&'static str> {
        let mut ledger = LedgerBuilder::new(Filter::default(), 1);
        for (name, value) in stats {
            let stat = Stat {
                name: (*name).to_owned(),
                unit: "count".to_owned(),
                value: *value as f64,
                time_ns: 0,
                vm: Stat::HOST,
            };
            ledger.stat(&stat);
        }
        let ledger = ledger.finish(Recording::default(), Losses::default(), true);
        let context = super::super::super::kind::context(&ledger);
        of_kvm_counters(&ledger, &context)
            .iter()
            .map(|finding| match &finding.found {
                FoundKind::Exits(subject) => subject.name(),
                other => other.id(),
            })
            .collect()
    }

    #[test]
    fn counters_tell_what_most_exits_go_with() {
        for (stats, expected) in [
            // An idle guest whose tick does not stop: Martins3.github.io, on nohz=off.
            (
                &[
                    ("kvm_exit", 13_988),
                    ("kvm_hv_timer_state", 13_938),
                    ("kvm_msr", 6985),
                    ("kvm_apic_accept_irq", 6960),
                    ("kvm_vcpu_wakeup", 6962),
                    ("kvm_set_irq", 440),
                ][..],
                &["periodic-timer"][..],
            ),
            // A guest that never halts: Launchpad bug 1831225.
            (
                &[
                    ("kvm_exit", 5_198_976),
                    ("kvm_hv_timer_state", 1_731_780),
                    ("kvm_msr", 1_732_101),
                    ("kvm_apic_accept_irq", 1_731_900),
                    ("kvm_eoi", 1_731_900),
                ],
                &["guest-timer"],
            ),
            (
                &[("kvm_exit", 10_000), ("kvm_apic_accept_irq", 4000), ("kvm_apic_ipi", 3900)],
                &["ipi"],
            ),
            // Who sent the interrupts is not known.
            (
                &[("kvm_exit", 10_000), ("kvm_apic_accept_irq", 4000), ("kvm_msi_set_irq", 3900)],
                &[],
            ),
            (&[("exits", 27_665), ("io_exits", 15_047), ("halt_exits", 4316)], &["unnamed-device"]),
            (&[("exits", 900), ("io_exits", 900)], &[]),
            (&[("io_exits", 9000)], &[]),
        ] {
            assert_eq!(found(stats), expected, "{stats:?}");
        }
    }
}
