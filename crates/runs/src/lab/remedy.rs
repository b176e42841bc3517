//! Remedies tried on an emulated host: one load in a VM with the symptom and in one with the remedy.
//!
//! ```text
//!   row ──> two VMs of QEMU on an emulated host ──recordings──> explanation of the first: the finding, and whether the remedy is named
//!                                                     └──> change between the two: what went, what came instead
//! ```
//! Left out on purpose: remedies of the host's boot (kvm_amd.npt) and of the lab's own VMM, which suites of operations try.

use vmtax_analyse::explain::{Change, Explanation, Fate, Subject};
use vmtax_analyse::remedy::{Effect, Figures, RemedyId, Trial, Unit};
use vmtax_analyse::{Ledger, Side};
use vmtax_events::Sample;
use vmtax_lab::network::{Category, Client, NetworkPlan, PlannedCell, Workload};

use super::network::VCPU_TIME;

/// A load in two VMs.
#[derive(Clone, Copy, Debug)]
pub struct RemedyRow {
    /// The remedy.
    pub remedy: RemedyId,
    /// The load: traffic with such a VM.
    pub workload: &'static str,
    /// The VM with the symptom.
    pub symptom: &'static str,
    /// The VM with the remedy.
    pub cured: &'static str,
    /// What an explanation must find in the first.
    pub finding: &'static str,
    /// Whether the remedy is advised without times, which an emulator has not.
    pub is_named: bool,
    /// What is counted.
    pub unit: Unit,
    /// Processors of the host.
    pub processors: u32,
    /// Repetitions differ by this part in each direction, beyond what [`Effect::of`] allows: the turns of vCPUs on processors vary.
    pub spread: f64,
}

const fn row(
    remedy: RemedyId,
    workload: &'static str,
    [symptom, cured]: [&'static str; 2],
    finding: &'static str,
) -> RemedyRow {
    RemedyRow {
        remedy,
        workload,
        symptom,
        cured,
        finding,
        is_named: true,
        unit: Unit::Exits,
        processors: 1,
        spread: 0.0,
    }
}

const fn in_unit(unit: Unit, row: RemedyRow) -> RemedyRow {
    RemedyRow { unit, ..row }
}

const fn varying(row: RemedyRow) -> RemedyRow {
    RemedyRow { spread: 0.1, ..row }
}

const fn of_two(row: RemedyRow) -> RemedyRow {
    RemedyRow { processors: 2, ..row }
}

const fn unnamed(row: RemedyRow) -> RemedyRow {
    RemedyRow { is_named: false, ..row }
}

/// Every row. What each does to the count is said by [`RemedyId::trial`].
pub const ROWS: &[RemedyRow] = &[
    row(RemedyId::VirtioDisk, "read", ["plain+pc+ide", "plain+pc"], "ide-disk"),
    row(RemedyId::GuestClocksource, "clock", ["plain+pc+acpi-pm", "plain+pc"], "clock-reads"),
    row(RemedyId::HugePages, "touch", ["plain-thp", "plain"], "memory-faults"),
    row(RemedyId::ParavirtualDevice, "read", ["plain+pc+nvme", "plain+pc"], "nvme-doorbells"),
    row(RemedyId::Msi, "read", ["plain+pc+nomsi", "plain+pc"], "level-interrupts"),
    row(RemedyId::GuestLapicTimer, "timer", ["plain+pc+hpet-timer", "plain+pc"], "hpet-timer"),
    row(RemedyId::Ioeventfd, "read", ["plain-ioeventfd", "plain"], "notifications-to-vmm"),
    row(RemedyId::PvEoi, "timer", ["plain", "plain+pv-eoi"], "no-virtual-apic"),
    row(
        RemedyId::HvVapic,
        "timer",
        ["plain+pc+hyperv", "plain+pc+hyperv+hv-vapic"],
        "no-virtual-apic",
    ),
    row(RemedyId::TscDeadline, "timer", ["plain-tsc-deadline", "plain"], "apic-timer"),
    row(RemedyId::X2apic, "timer", ["plain-x2apic", "plain"], "xapic"),
    unnamed(row(RemedyId::HaltPoll, "short-timer", ["plain", "plain+halt_poll_ns"], "halts")),
    unnamed(row(RemedyId::GuestIdlePoll, "short-timer", ["plain", "plain+poll"], "halts")),
    in_unit(
        Unit::Instructions,
        unnamed(row(RemedyId::NoHaltPoll, "short-timer", ["plain+halt_poll_ns", "plain"], "halts")),
    ),
    in_unit(
        Unit::Waiting,
        row(RemedyId::FewerVcpus, "compute", ["plain+smp", "plain"], "contention"),
    ),
    in_unit(Unit::Waiting, row(RemedyId::KsmOff, "compute", ["plain+ksm", "plain"], "contention")),
    unnamed(row(
        RemedyId::ResidentMemory,
        "again",
        ["plain-thp+swapped", "plain-thp+locked+swapped"],
        "memory-faults",
    )),
    unnamed(row(
        RemedyId::NoKvmapf,
        "again",
        ["plain-thp+swapped", "plain-thp-kvmapf+swapped"],
        "memory-faults",
    )),
    unnamed(row(
        RemedyId::BounceSize,
        "send",
        ["plain+swiotlb-small", "plain+swiotlb"],
        "notifications",
    )),
    unnamed(row(
        RemedyId::HvTlbflush,
        "protect",
        ["plain+pc+smp+hyperv", "plain+pc+smp+hyperv+hv-tlbflush"],
        "contention",
    )),
    varying(unnamed(row(
        RemedyId::PvIpi,
        "barrier",
        ["plain+smp4-pv-ipi", "plain+smp4"],
        "contention",
    ))),
    unnamed(row(
        RemedyId::HugetlbMemory,
        "touch",
        ["plain+fragmented+thp-defer", "plain+fragmented+thp-defer+hugetlb"],
        "memory-faults",
    )),
    of_two(in_unit(
        Unit::Waiting,
        row(
            RemedyId::VcpuPinning,
            "compute",
            ["plain+smp+vcpus-on-0", "plain+smp+vcpus-apart"],
            "contention",
        ),
    )),
    of_two(in_unit(
        Unit::Waiting,
        row(
            RemedyId::CpuIsolation,
            "compute",
            ["plain+rival+rival-on-0+vcpus-on-0", "plain+rival+rival-on-0+vcpu0-on-1"],
            "contention",
        ),
    )),
    of_two(in_unit(
        Unit::Waiting,
        row(
            RemedyId::IothreadPinning,
            "request",
            ["plain+poll+io-on-0+vcpus-on-0", "plain+poll+io-on-0+vcpu0-on-1"],
            "contention",
        ),
    )),
    of_two(varying(unnamed(row(
        RemedyId::PvSpinHint,
        "barrier",
        ["plain+smp+vcpus-apart", "plain+smp+vcpus-apart+spin-hint"],
        "no-virtual-apic",
    )))),
    of_two(unnamed(row(
        RemedyId::HostNohzFull,
        "compute",
        ["plain+vcpus-on-0", "plain+vcpu0-on-1"],
        "host-interrupts",
    ))),
    of_two(unnamed(row(
        RemedyId::GuestNohzFull,
        "compute",
        ["plain+smp+vcpus-apart", "plain+smp+vcpus-apart+nohz-full"],
        "guest-timer",
    ))),
];

/// What a trial showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// Of [`RemedyRow::unit`], before and after: of an operation, or in all where the unit is a part.
    pub counts: [f64; 2],
    /// What the remedy did to it.
    pub effect: Effect,
    /// What the table of remedies says that it does; `None` of an untried one.
    pub expected: Option<Effect>,
    /// The explanation of the symptom has the finding.
    pub found: bool,
    /// It names the remedy.
    pub named: bool,
    /// What went: subject, before and after.
    pub gone: Vec<(Subject, f64, f64)>,
    /// What came instead, and what there is more of.
    pub instead: Vec<(Subject, f64, f64)>,
}

impl RemedyRow {
    /// The rows of these remedies; if none is given, all on a host of one processor.
    ///
    /// # Errors
    /// A sentence: a word is no remedy of a row, or the rows need several hosts.
    pub fn chosen(words: &[String]) -> Result<Vec<&'static RemedyRow>, String> {
        let names = |rows: &mut dyn Iterator<Item = &RemedyRow>| {
            rows.map(|row| row.remedy.name()).collect::<Vec<_>>().join(", ")
        };
        for word in words {
            if !ROWS.iter().any(|row| row.remedy.name() == word) {
                let known = names(&mut ROWS.iter());
                return Err(format!("{word}: is not tried here; what is: {known}"));
            }
        }
        let is_wanted = |row: &&RemedyRow| match words {
            [] => row.processors == 1,
            words => words.iter().any(|word| row.remedy.name() == word),
        };
        let rows: Vec<&RemedyRow> = ROWS.iter().filter(is_wanted).collect();
        let (two, one): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.processors == 2);
        if !two.is_empty() && !one.is_empty() {
            let two = names(&mut two.into_iter());
            return Err(format!(
                "{two}: tried on a host of two processors; give it without the others"
            ));
        }
        Ok(rows)
    }

    /// Its two VMs.
    fn cells(&self) -> Result<[PlannedCell; 2], String> {
        let unknown = || format!("{}: {} is no workload", self.remedy, self.workload);
        let workload = Workload::named(self.workload).ok_or_else(unknown)?;
        let cell = |name: &str| {
            let category = Category::read(name)?;
            Ok::<_, String>(PlannedCell {
                category,
                client: Client::Host,
                workload,
                operations: None,
            })
        };
        Ok([cell(self.symptom)?, cell(self.cured)?])
    }

    /// What the run shows of it; `None` if one of its VMs was not measured.
    pub fn judge(&self, ledger: &Ledger) -> Option<Tried> {
        let [before, after] = [self.symptom, self.cured]
            .map(|category| of_vm(ledger, &format!("{} {category}", self.workload)));
        let (before, after) = (before?, after?);
        let instructions = [&before, &after].map(|vm| vm.vcpu_ns / vm.operations as f64);
        let waited = [&before, &after].map(|vm| vm.ledger.contention().unwrap_or(0.0) * 100.0);
        let labels = Default::default();
        let [before_side, after_side] = [&before, &after].map(|vm| Side {
            source: "",
            ledger: &vm.ledger,
            labels: &labels,
            seconds: None,
        });
        let operations = before.operations.min(after.operations);
        let change = Change::new(&before_side, &after_side, Some(operations));
        let explanation = Explanation::new(&before_side, None);
        let finding = explanation.findings.iter().find(|one| one.id() == self.finding);
        let named = finding
            .is_some_and(|one| one.remedies.iter().any(|advice| advice.remedy.id == self.remedy));
        let counts = match self.unit {
            Unit::Waiting => waited,
            Unit::Instructions => instructions,
            Unit::Exits | Unit::Accesses | Unit::Faults => change.total.map(|cell| cell.rate),
        };
        let (less, more) = (1.0 - self.spread, 1.0 + self.spread);
        let figures = |rate: f64| Figures { least: rate * less, most: rate * more };
        let of = |fates: [Fate; 2]| {
            let rows = change.rows.iter().filter(|row| fates.contains(&row.fate()));
            let cell = |row: &vmtax_analyse::explain::ChangeRow| {
                Some((row.subject?, row.before.rate, row.after.rate))
            };
            rows.filter_map(cell).collect()
        };
        Some(Tried {
            counts,
            effect: Effect::of(figures(counts[0]), figures(counts[1])),
            expected: match self.remedy.trial() {
                Trial::Tried(tried) => Some(tried.effect()),
                Trial::Untried(_) => None,
            },
            found: finding.is_some(),
            named,
            gone: of([Fate::Gone, Fate::Fewer]),
            instead: of([Fate::Instead, Fate::More]),
        })
    }

    /// What contradicts the table of remedies; empty if nothing does.
    pub fn contradicts(&self, tried: &Tried) -> Vec<String> {
        let mut all = Vec::new();
        if !tried.found {
            all.push(format!("explain does not find {}", self.finding));
        }
        if self.is_named && tried.found && !tried.named {
            all.push(format!("explain does not name {}", self.remedy));
        }
        // Halts come and go with the host's scheduler: what counts is whether exits are removed.
        let removes = |effect: Effect| effect == Effect::Fewer;
        let other = |expected: &Effect| removes(*expected) != removes(tried.effect);
        if let Some(expected) = tried.expected.filter(other) {
            let effect = tried.effect;
            let unit = self.unit;
            all.push(format!("{unit}: {effect}, and the table of remedies says {expected}"));
        }
        let subject = Subject::from_name(self.finding);
        let stays = |subject: &Subject| !tried.gone.iter().any(|(gone, ..)| gone == subject);
        if tried.effect == Effect::Fewer
            && self.unit == Unit::Exits
            && let Some(subject) = subject.filter(stays)
        {
            all.push(format!("exits of {subject} stay"));
        }
        all
    }
}

/// The VMs of these rows, each once.
///
/// # Errors
/// When a row names no VM or load.
pub fn plan(rows: &[&RemedyRow]) -> Result<NetworkPlan, String> {
    let mut cells: Vec<PlannedCell> = Vec::new();
    let processors = rows.first().map_or(1, |row| row.processors);
    for row in rows {
        for cell in row.cells()? {
            if !cells.iter().any(|known| known.name() == cell.name()) {
                cells.push(cell);
            }
        }
    }
    Ok(NetworkPlan { cells, processors })
}

/// A VM of a run.
struct OfVm {
    ledger: Ledger,
    operations: u64,
    vcpu_ns: f64,
}

/// The exits of this VM of a run, its operations, and the time of its vCPUs.
fn of_vm(ledger: &Ledger, name: &str) -> Option<OfVm> {
    let vm = ledger.recording.vms.iter().find(|vm| vm.name == name)?;
    let value = |metric: &str| {
        let is = |sample: &&Sample| sample.workload == name && sample.metric == metric;
        ledger.samples.iter().find(is).map(|sample| sample.value)
    };
    let operations = value(Sample::OPERATIONS)? as u64;
    let vcpu_ns = value(VCPU_TIME).unwrap_or_default();
    // The samples are those of operations, and no benchmark's.
    let ledger = Ledger { samples: Vec::new(), ..ledger.of_vm(vm.id) };
    (operations > 0).then_some(OfVm { ledger, operations, vcpu_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_contradicts_the_table_where_it_removes_other_exits() {
        let row = &ROWS[0];
        let tried = Tried {
            counts: [28.3, 2.8],
            effect: Effect::Fewer,
            expected: Some(Effect::Fewer),
            found: true,
            named: true,
            gone: vec![(Subject::IdeDisk, 16.0, 0.0)],
            instead: Vec::new(),
        };
        assert_eq!(row.contradicts(&tried), Vec::<String>::new());
        let same = Tried { effect: Effect::Same, gone: Vec::new(), ..tried.clone() };
        let says = ["exits: same, and the table of remedies says fewer"];
        assert_eq!(row.contradicts(&same), says);
        let stays = Tried { gone: Vec::new(), ..tried.clone() };
        assert_eq!(row.contradicts(&stays), ["exits of ide-disk stay"]);
        let silent = Tried { named: false, ..tried.clone() };
        assert_eq!(row.contradicts(&silent), ["explain does not name virtio-disk"]);
        let blind = Tried { found: false, named: false, ..tried };
        assert_eq!(row.contradicts(&blind), ["explain does not find ide-disk"]);
    }

    #[test]
    fn rows_name_vms_and_findings() {
        for processors in [1, 2] {
            let is_there = |row: &&RemedyRow| row.processors == processors;
            let rows: Vec<&RemedyRow> = ROWS.iter().filter(is_there).collect();
            let plan = plan(&rows).expect("VMs of every row");
            assert_eq!(plan.processors, processors);
            let mut names: Vec<String> = plan.cells.iter().map(PlannedCell::name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), plan.cells.len(), "each VM once");
        }
        for row in ROWS {
            let is_known = Subject::from_name(row.finding).is_some()
                || ["xapic", "contention"].contains(&row.finding);
            assert!(is_known, "{}: {}", row.remedy, row.finding);
        }
        assert!(RemedyRow::chosen(&["virtio-disk".to_owned()]).is_ok_and(|rows| rows.len() == 1));
        let refused = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            RemedyRow::chosen(&words).expect_err("refused")
        };
        assert!(refused(&["npt"]).starts_with("npt: is not tried here; what is: virtio-disk, "));
        assert!(refused(&["msi", "vcpu-pinning"]).starts_with("vcpu-pinning: tried on a host of"));
    }
}
