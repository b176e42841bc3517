//! Whether a run shows what the suite's table says it must.
//!
//! An operation that must exit and shows no exit was not measured: that its recording is missing is a failure, never a zero.
//! Left out: how many exits are right. That depends on the kernel, and is what budgets are for.

use vmtax_events::Isa;
use vmtax_guest::order::{Operation, OrderOutcome};

use crate::measured::MeasuredOperation;
use crate::suite::{CountedValue, Least};
use crate::window::{Extent, SeenExits, SeenWindow};

/// What a recording lacks of an operation, as the reason why it was not measured.
///
/// `apic_may_be_virtual`: the host's processor may have APICv or AVIC.
pub(crate) fn missing(
    measured: &MeasuredOperation,
    seen: &SeenWindow,
    isa: Isa,
    apic_may_be_virtual: bool,
) -> Option<String> {
    let exits = if measured.level < 2 { seen.exits } else { seen.nested };
    let at = format!("L{}", measured.level);
    match seen.extent {
        Extent::Nothing => {
            return Some("its batch is not in the recording: the begin mark is missing".to_owned());
        }
        Extent::Begin => {
            return Some(format!(
                "its batch is not in the recording: no VM entry of {at} follows the begin mark"
            ));
        }
        Extent::Open => {
            return Some(format!(
                "its batch is cut off in the recording: the end mark is missing after {} exits at {at}",
                exits.all
            ));
        }
        Extent::Whole if seen.lost => {
            return Some(format!(
                "events were lost in its recorded batch: {} exits at {at} are left",
                exits.all
            ));
        }
        Extent::Whole if seen.begun > 1 => {
            return Some(format!("{} batches of it are in the recording instead of 1", seen.begun));
        }
        Extent::Whole => {}
    }
    let least = measured.definition.least_exits(isa, measured.level, apic_may_be_virtual)?;
    // Those that EL2 handled by itself are in no recording.
    let exits = measured.exceptions.as_ref().map_or(exits, SeenExits::of_counted);
    too_few(least, exits)
        .map(|found| format!("{found} by its {} executions at {at}", measured.count))
}

/// The recording cannot have an exit that the emulator has not, but an interrupt: one that is pending keeps EL2 from entering the guest, and KVM has an exit all the
/// same (`isr_el1` in `__guest_enter`).
pub(crate) fn uncounted(measured: &MeasuredOperation, seen: &SeenWindow) -> Option<String> {
    let counted = SeenExits::of_counted(measured.exceptions.as_ref()?);
    (counted.caused() < seen.exits.caused()).then(|| {
        let [seen, counted] = [seen.exits, counted].map(SeenExits::caused);
        format!("{seen} exits were recorded, and the emulator has {counted}")
    })
}

/// Where KVM's own counters and the recording of the same batch differ. At L2 they are of two kernels: L1's KVM counts, and L0's is
/// recorded.
pub(crate) fn differs(measured: &MeasuredOperation, seen: &SeenWindow) -> Option<String> {
    let memory = measured.memory.as_ref()?;
    let came = memory.mapping.hypercalls + memory.mapping.memory_faults;
    if came < measured.definition.conversions_at(measured.level) {
        return Some(format!("only {came} conversions came to the VMM"));
    }
    if measured.level > 1 {
        return None;
    }
    let counters = memory.mapping.counters?;
    if counters.faults != seen.faults {
        return Some(format!(
            "KVM counted {} page faults (pf_taken) and {} are in the recording",
            counters.faults, seen.faults
        ));
    }
    // A conversion drops what is mapped, and the tracepoint does not say so: the pages are known once they are touched again.
    if memory.mapping.hypercalls > 0 && (counters.faults == 0 || counters.pages == [0; 3]) {
        return None;
    }
    // Without that tracepoint, or without a fault, the recording says nothing.
    let traced = seen.mapped.filter(|traced| *traced != counters.pages)?;
    let list = |[small, large, largest]: [u64; 3]| {
        format!("{small} of 4K, {large} of 2M, {largest} of 1G")
    };
    Some(format!(
        "KVM's counters have pages mapped: {}; by the recording they are {}",
        list(counters.pages),
        list(traced)
    ))
}

fn too_few(least: Least, exits: SeenExits) -> Option<String> {
    match least.reason {
        None if exits.all < least.exits => {
            Some("no exit was recorded, and some must be taken".to_owned())
        }
        Some(reason) if exits.caused() < least.exits => Some(format!(
            "{} exits were recorded, and at least {} ({reason}) must be taken",
            exits.caused(),
            least.exits
        )),
        _ => None,
    }
}

/// What an answer lacks of what was ordered.
pub(crate) fn incomplete(operation: &Operation, outcome: &OrderOutcome) -> Option<String> {
    let (batches, ordered) = (outcome.cycles.len(), operation.batches as usize);
    if batches < ordered {
        return Some(format!("{batches} of {ordered} batches came back"));
    }
    let empty = outcome.cycles.iter().position(|cycles| *cycles == 0);
    empty.map(|batch| format!("batch {} of {ordered} did not end", batch + 1))
}

/// Where a guest found something else with its counters than what it must: the first such batch.
pub(crate) fn miscounted(expected: CountedValue, counted: &[u64]) -> Option<String> {
    let (value, words) = match expected {
        CountedValue::Instructions(executed) => (executed, "instructions in its counter"),
        CountedValue::Interrupt(number) => (number.into(), "as the number of its interrupt"),
    };
    let (batch, found) = counted.iter().enumerate().find(|(_, found)| **found != value)?;
    Some(format!("in batch {} the guest found {found} {words}, and not {value}", batch + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::HostKind;
    use crate::suite;

    const WHOLE: SeenWindow = SeenWindow {
        extent: Extent::Whole,
        exits: SeenExits { all: 0, interrupts: 0 },
        nested: SeenExits { all: 0, interrupts: 0 },
        lost: false,
        begun: 1,
        faults: 0,
        mapped: None,
    };

    /// An operation of which nothing was found yet.
    fn measured(name: &'static str, level: u8) -> MeasuredOperation {
        let definition = suite::operation(name).expect("in a suite");
        MeasuredOperation {
            vm: 1,
            name,
            definition,
            level,
            count: definition.count_at(level),
            paths: Vec::new(),
            waited: Vec::new(),
            places: Vec::new(),
            window: None,
            recorded: false,
            counted: Vec::new(),
            perf: Vec::new(),
            at_el2: Vec::new(),
            exceptions: None,
            pmu: None,
            memory: None,
            paging: None,
            profile: None,
            missing: None,
            failure: None,
        }
    }

    /// What is missing of an operation of which so many exits were seen, interrupts among them.
    fn missing_of(name: &'static str, level: u8, exits: (u64, u64), apic: bool) -> Option<String> {
        let measured = measured(name, level);
        let exits = SeenExits { all: exits.0, interrupts: exits.1 };
        let seen = match level {
            1 => SeenWindow { exits, ..WHOLE },
            _ => {
                SeenWindow { nested: exits, exits: SeenExits { all: 1000, interrupts: 0 }, ..WHOLE }
            }
        };
        missing(&measured, &seen, Isa::Svm, apic)
    }

    #[test]
    fn operations_without_required_exits_are_failures() {
        for (name, level, exits, apic, is_missing) in [
            ("cpuid", 1, (20, 0), false, false),
            ("cpuid", 1, (19, 0), false, true),
            ("cpuid", 1, (0, 0), false, true),
            // Interrupts of the host are no CPUID exits.
            ("cpuid", 1, (25, 6), false, true),
            // At L2 exits of L1 do not count, and a batch is a quarter.
            ("cpuid", 2, (0, 0), false, true),
            ("cpuid", 2, (5, 0), false, false),
            ("rdtsc", 1, (0, 0), false, false),
            ("pause", 1, (0, 0), false, false),
            ("hlt-timer", 1, (0, 0), false, true),
            ("count-xapic-hlt", 1, (0, 0), false, true),
            ("count-xapic-hlt", 1, (1, 1), false, false),
            // QEMU's TCG does not intercept it.
            ("xsetbv", 1, (0, 0), false, false),
            ("xapic-read", 1, (0, 0), false, true),
            ("xapic-read", 1, (0, 0), true, false),
        ] {
            let found = missing_of(name, level, exits, apic);
            assert_eq!(found.is_some(), is_missing, "{name} L{level}: {found:?}");
        }
        assert_eq!(
            missing_of("cpuid", 2, (0, 0), false).as_deref(),
            Some(
                "0 exits were recorded, and at least 5 (cpuid) must be taken by its 5 executions at L2"
            )
        );
    }

    #[test]
    fn a_recording_without_marks_is_no_measurement() {
        let measured = measured("rdtsc", 1);
        let said = |seen| missing(&measured, &seen, Isa::Svm, false).unwrap_or_default();
        for (extent, part) in [
            (Extent::Nothing, "the begin mark is missing"),
            (Extent::Begin, "no VM entry of L1 follows"),
            (Extent::Open, "the end mark is missing after 0 exits at L1"),
            (Extent::Whole, ""),
        ] {
            let said = said(SeenWindow { extent, ..WHOLE });
            assert!(said.contains(part) && said.is_empty() == part.is_empty(), "{said}");
        }
        assert!(said(SeenWindow { lost: true, ..WHOLE }).contains("events were lost"));
        assert!(said(SeenWindow { begun: 2, ..WHOLE }).contains("2 batches of it"));
    }

    #[test]
    fn a_count_that_is_off_by_one_is_a_failure() {
        let executed = CountedValue::Instructions(4_002);
        assert_eq!(miscounted(executed, &[4_002, 4_002]), None);
        assert_eq!(
            miscounted(executed, &[4_002, 4_003]).as_deref(),
            Some("in batch 2 the guest found 4003 instructions in its counter, and not 4002")
        );
        assert_eq!(
            miscounted(CountedValue::Interrupt(23), &[1_023]).as_deref(),
            Some("in batch 1 the guest found 1023 as the number of its interrupt, and not 23")
        );
    }

    #[test]
    fn missing_batches_are_reported() {
        let operation = |batches| Operation {
            number: 0,
            name: String::new(),
            level: 1,
            code: Vec::new(),
            entries: Vec::new(),
            batches,
            last: false,
            count: 20,
            touch: None,
            shares: true,
            hypervisor: false,
            counters: false,
            linux: None,
            protected: false,
            pmu: None,
            step: None,
            paging: None,
            words: Vec::new(),
        };
        let outcome =
            |cycles: &[u64]| OrderOutcome { cycles: cycles.to_vec(), ..OrderOutcome::default() };
        assert_eq!(incomplete(&operation(3), &outcome(&[9, 8, 8])), None);
        assert_eq!(incomplete(&operation(0), &outcome(&[])), None);
        assert_eq!(
            incomplete(&operation(6), &outcome(&[9, 8, 8])).as_deref(),
            Some("3 of 6 batches came back")
        );
        assert_eq!(
            incomplete(&operation(3), &outcome(&[9, 8, 0])).as_deref(),
            Some("batch 3 of 3 did not end")
        );
    }

    #[test]
    fn every_operation_lists_its_required_exits() {
        let may_do_without = |host: HostKind| {
            suite::SUITES
                .iter()
                .flat_map(|suite| suite.operations)
                .filter(|one| {
                    one.is_for(host, 1) && one.least_exits(host.isa(), 1, false).is_none()
                })
                // Memory that was mapped before takes no fault, and what a VMM does no exit.
                .filter(|one| !one.name.contains("-prefault") && one.step().is_none())
                // Those of the suite paging have all their memory mapped.
                .filter(|one| !one.is_simulated())
                .map(|one| one.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            may_do_without(HostKind::Amd),
            [
                "pause",
                "xsetbv",
                "rdtsc",
                "invlpg",
                "vmload",
                "vmsave",
                "stgi",
                "clgi",
                // Counters that are the guest's own do not exit.
                "pmu-global-mediated",
                "pmu-read-mediated"
            ]
        );
        assert_eq!(
            may_do_without(HostKind::Intel),
            [
                "pause",
                "rdtsc",
                "invlpg",
                "vmread-exit-reason",
                "vmread-guest-rip",
                "vmread-guest-cr3",
                "vmread-msr-bitmap",
                "vmread-host-rip",
                "vmwrite-guest-rip",
                "vmwrite-guest-cr3",
                "vmwrite-host-cr3",
                "vmwrite-tsc-offset",
                "pmu-global-mediated",
                "pmu-read-mediated"
            ]
        );
    }
}
