//! Remedies tried on an emulated host: one load with the symptom, and with the remedy.
//!
//! ```text
//!   row ──> two VMs of QEMU on a host, or an  ──recordings──> explanation of the first: the finding, and whether the remedy is named
//!           operation of `vmtax lab run`, on             └──> change between the two: what went, what came instead
//!           two hosts or in two forms
//! ```

mod rows;

use vmtax_analyse::explain::{ChangeRow, Explanation, Fate, LoadChange, Subject};
use vmtax_analyse::remedy::{Figures, RemedyId, Trial, TrialEffect, TrialUnit};
use vmtax_analyse::samples::median;
use vmtax_analyse::{DiffSide, Ledger};
use vmtax_events::Sample;
use vmtax_lab::network::{Category, ClientPlace, NetworkPlan, NetworkWorkload, PlannedCell};
use vmtax_lab::suite::{self, Definition, SUITES};
use vmtax_lab::{HostKind, LabPlan};

use super::network::VCPU_TIME;
pub use rows::ROWS;

/// How a remedy is tried.
#[derive(Clone, Copy, Debug)]
pub struct RemedyRow {
    pub remedy: RemedyId,
    /// What runs without it and with it.
    pub load: TrialLoad,
    /// What an explanation must find without it.
    pub finding: Option<&'static str>,
    /// Whether the remedy is advised without times, which an emulator has not.
    pub is_named: bool,
    pub unit: TrialUnit,
    /// Repetitions differ by this part in each direction, beyond what [`TrialEffect::of`] allows: the turns of vCPUs on processors vary.
    pub spread: f64,
}

/// What runs without and with a remedy.
#[derive(Clone, Copy, Debug)]
pub enum TrialLoad {
    /// The workload and the VM with the symptom, and those with the remedy.
    Vms([(&'static str, &'static str); 2], VmsHost),
    /// An operation of `vmtax lab run` on this host, without and with it: `cpuid@L2`, and options of the host's kernel; with this kernel, if another shows
    /// nothing.
    Operations(HostKind, Option<&'static str>, [(&'static str, &'static [&'static str]); 2]),
}

/// An emulated host with QEMU as the VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmsHost {
    pub processors: u32,
    /// Its kernel and that of its VMs, if another shows nothing.
    pub kernel: Option<&'static str>,
}

impl VmsHost {
    const ONE: VmsHost = VmsHost { processors: 1, kernel: None };
    const TWO: VmsHost = VmsHost { processors: 2, kernel: None };
}

/// A host on which rows are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialMachine {
    Vms(VmsHost),
    /// With the lab's VMM: the host, its kernel if one is named, whether it has an L1, and options of its kernel.
    Lab(HostKind, Option<&'static str>, bool, &'static [&'static str]),
}

/// What ran on a host.
pub type TrialRun = (TrialMachine, Ledger);

/// What a trial showed.
#[derive(Clone, Debug, PartialEq)]
pub struct TriedPair {
    /// Of [`RemedyRow::unit`], before and after: of an operation, or in all where the unit is a part.
    pub counts: [f64; 2],
    /// What the remedy did to it.
    pub effect: TrialEffect,
    /// What the table of remedies says that it does; `None` of an untried one.
    pub expected: Option<TrialEffect>,
    /// The explanation of the symptom has the finding; `None` if it must have none.
    pub found: Option<bool>,
    /// It names the remedy.
    pub named: bool,
    /// What went: subject, before and after.
    pub gone: Vec<(Subject, f64, f64)>,
    /// What came instead, and what there is more of.
    pub instead: Vec<(Subject, f64, f64)>,
}

impl RemedyRow {
    /// The rows of these remedies; if none is given, all on hosts of one processor.
    ///
    /// # Errors
    /// A sentence: a word is no remedy of a row.
    pub fn chosen(words: &[String]) -> Result<Vec<&'static RemedyRow>, String> {
        for word in words {
            if !ROWS.iter().any(|row| row.remedy.name() == word) {
                let known: Vec<_> = ROWS.iter().map(|row| row.remedy.name()).collect();
                return Err(format!("{word}: cannot be tried here; try: {}", known.join(", ")));
            }
        }
        let is_wanted = |row: &&RemedyRow| match words {
            [] => !matches!(row.load, TrialLoad::Vms(.., VmsHost::TWO)),
            words => words.iter().any(|word| row.remedy.name() == word),
        };
        Ok(ROWS.iter().filter(is_wanted).collect())
    }

    /// Without the remedy and with it: the host, and what ran there, by the name of its VM in the recording.
    pub fn sides(&self) -> [(TrialMachine, String); 2] {
        match self.load {
            TrialLoad::Vms(vms, host) => vms.map(|(workload, category)| {
                let vm = format!("{workload} {category}");
                (TrialMachine::Vms(host), vm)
            }),
            TrialLoad::Operations(host, kernel, sides) => {
                let is_nested = sides.iter().any(|(operation, _)| operation.ends_with(AT_L2));
                sides.map(|(operation, options)| {
                    (TrialMachine::Lab(host, kernel, is_nested, options), operation.to_owned())
                })
            }
        }
    }

    /// The workload or operation, and the two sides of it, in words.
    pub fn words(&self) -> (&'static str, [String; 2]) {
        match self.load {
            TrialLoad::Vms([(workload, one), (same, other)], _) if same == workload => {
                (workload, [one, other].map(str::to_owned))
            }
            TrialLoad::Vms(vms, _) => {
                let word = |(workload, vm)| format!("{workload} {vm}");
                (vms[0].0, vms.map(word))
            }
            TrialLoad::Operations(_, _, sides) => {
                let word = |(operation, options): (&str, &[&str])| match options {
                    [] => operation.to_owned(),
                    options => format!("{operation} {}", options.join(" ")),
                };
                (sides[0].0, sides.map(word))
            }
        }
    }

    /// Its two VMs, if it has some.
    fn cells(&self) -> Result<Vec<PlannedCell>, String> {
        let TrialLoad::Vms(vms, _) = self.load else { return Ok(Vec::new()) };
        let cell = |(word, name): (&str, &str)| {
            let unknown = || format!("{}: {word} is no workload", self.remedy);
            let workload = NetworkWorkload::named(word).ok_or_else(unknown)?;
            let category = Category::read(name)?;
            Ok::<_, String>(PlannedCell {
                category,
                client: ClientPlace::Host,
                workload,
                operations: None,
            })
        };
        vms.into_iter().map(cell).collect()
    }

    /// What the runs show of it; `None` if one of its sides was not measured.
    pub fn judge(&self, runs: &[TrialRun]) -> Option<TriedPair> {
        let [before, after] = self.sides().map(|(machine, vm)| {
            let run = runs.iter().find(|(known, _)| *known == machine);
            run.and_then(|(_, ledger)| of_vm(ledger, &vm))
        });
        let (before, after) = (before?, after?);
        let labels = Default::default();
        let [before_side, after_side] = [&before, &after].map(|vm| DiffSide {
            source: "",
            ledger: &vm.ledger,
            labels: &labels,
            seconds: None,
        });
        let operations = before.operations.min(after.operations);
        let change = LoadChange::new(&before_side, &after_side, Some(operations));
        let explanation = Explanation::new(&before_side, None);
        let finding =
            self.finding.map(|wanted| explanation.findings.iter().find(|one| one.id() == wanted));
        let named = finding
            .flatten()
            .is_some_and(|one| one.remedies.iter().any(|advice| advice.remedy.id == self.remedy));
        let rates = |subject: Option<Subject>| {
            let is_one = |row: &&ChangeRow| row.subject == subject;
            let row = change.rows.iter().find(is_one);
            row.map_or([0.0; 2], |row| [row.before.rate, row.after.rate])
        };
        let counts = match self.unit {
            TrialUnit::Waiting => {
                [&before, &after].map(|vm| vm.ledger.contention().unwrap_or(0.0) * 100.0)
            }
            TrialUnit::Instructions => [before.instructions, after.instructions],
            TrialUnit::Waited => [before.waited_ms, after.waited_ms],
            TrialUnit::Interrupts => rates(Some(Subject::HostInterrupts)),
            TrialUnit::Accesses => rates(Some(Subject::Keyboard)),
            TrialUnit::Exits | TrialUnit::Faults => change.total.map(|cell| cell.rate),
        };
        let (less, more) = (1.0 - self.spread, 1.0 + self.spread);
        let figures = |rate: f64| Figures { least: rate * less, most: rate * more };
        let of = |fates: [Fate; 2]| {
            let rows = change.rows.iter().filter(|row| fates.contains(&row.fate()));
            let cell = |row: &ChangeRow| Some((row.subject?, row.before.rate, row.after.rate));
            rows.filter_map(cell).collect()
        };
        Some(TriedPair {
            counts,
            effect: TrialEffect::of(figures(counts[0]), figures(counts[1])),
            expected: match self.remedy.trial() {
                Trial::Tried(tried) => Some(tried.effect()),
                Trial::Untried(_) => None,
            },
            found: finding.map(|found| found.is_some()),
            named,
            gone: of([Fate::Gone, Fate::Fewer]),
            instead: of([Fate::Instead, Fate::More]),
        })
    }

    /// What contradicts the table of remedies; empty if nothing does.
    pub fn contradicts(&self, tried: &TriedPair) -> Vec<String> {
        let mut all = Vec::new();
        match (self.finding, tried.found) {
            (Some(finding), Some(false)) => all.push(format!("explain does not find {finding}")),
            (_, Some(true)) if self.is_named && !tried.named => {
                all.push(format!("explain does not name {}", self.remedy));
            }
            _ => {}
        }
        // Halts come and go with the host's scheduler: what counts is whether exits are removed.
        let removes = |effect: TrialEffect| effect == TrialEffect::Fewer;
        let other = |expected: &TrialEffect| removes(*expected) != removes(tried.effect);
        if let Some(expected) = tried.expected.filter(other) {
            let effect = tried.effect;
            let unit = self.unit;
            all.push(format!("{unit}: {effect}, and the table of remedies says {expected}"));
        }
        let subject = self.finding.and_then(Subject::from_name);
        let stays = |subject: &Subject| !tried.gone.iter().any(|(gone, ..)| gone == subject);
        if tried.effect == TrialEffect::Fewer
            && self.unit == TrialUnit::Exits
            && let Some(subject) = subject.filter(stays)
        {
            all.push(format!("exits of {subject} stay"));
        }
        all
    }
}

/// The hosts of these rows, each once.
pub fn machines(rows: &[&RemedyRow]) -> Vec<TrialMachine> {
    let mut machines = Vec::new();
    for (machine, _) in rows.iter().flat_map(|row| row.sides()) {
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    machines
}

/// The VMs of QEMU of these rows on this host, each once.
///
/// # Errors
/// When a row names no VM or workload of QEMU on an emulated host.
pub fn network_plan(rows: &[&RemedyRow], host: VmsHost) -> Result<NetworkPlan, String> {
    let mut cells: Vec<PlannedCell> = Vec::new();
    for row in rows.iter().filter(|row| matches!(row.load, TrialLoad::Vms(.., on) if on == host)) {
        for cell in row.cells()? {
            if !cells.iter().any(|known| known.name() == cell.name()) {
                cells.push(cell);
            }
        }
    }
    Ok(NetworkPlan { cells, processors: host.processors })
}

/// The operations of these rows on this host.
///
/// # Errors
/// When a row names no operation of `vmtax lab run`.
pub fn operations_plan(rows: &[&RemedyRow], on: TrialMachine) -> Result<LabPlan, String> {
    let mut only: Vec<&'static Definition> = Vec::new();
    let sides = rows.iter().flat_map(|row| row.sides());
    for (_, vm) in sides.filter(|(machine, _)| *machine == on) {
        let word = vm.strip_suffix(AT_L2).unwrap_or(&vm);
        let operation = suite::operation(word).ok_or_else(|| format!("{word} is no operation"))?;
        if !only.iter().any(|known| known.name == operation.name) {
            only.push(operation);
        }
    }
    Ok(LabPlan { suites: SUITES.iter().collect(), only, batches: LabPlan::LEAST_BATCHES })
}

/// The end of the name of an operation at L2.
const AT_L2: &str = "@L2";

/// One side of a row.
struct OfVm {
    ledger: Ledger,
    operations: u64,
    /// Of an operation: its path, or what the vCPUs' threads executed.
    instructions: f64,
    /// Of an operation, ms.
    waited_ms: f64,
}

/// What a run shows of this VM or operation.
fn of_vm(ledger: &Ledger, name: &str) -> Option<OfVm> {
    let values = |metric: &str| {
        let is = |sample: &&Sample| sample.workload == name && sample.metric == metric;
        ledger.samples.iter().filter(is).map(|sample| sample.value).collect::<Vec<f64>>()
    };
    let operations = values(Sample::OPERATIONS).first().map_or(0, |value| *value as u64);
    let vcpu_ns = values(VCPU_TIME).first().map(|ns| ns / operations as f64);
    let vm = ledger.recording.vms.iter().find(|vm| vm.name == name);
    let (instructions, waited) = (median(&values(Sample::PATH)), median(&values(Sample::WAITED)));
    // The samples are those of operations, and no benchmark's. Steps of a VM's life are not recorded.
    let of_vm = ledger.of_vm(vm.map_or(u32::MAX, |vm| vm.id));
    let ledger = Ledger { samples: Vec::new(), ..of_vm };
    let instructions = instructions.or(vcpu_ns).unwrap_or_default();
    let waited_ms = waited.unwrap_or_default() / 1e6;
    (operations > 0).then_some(OfVm { ledger, operations, instructions, waited_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_contradicts_the_table_where_it_removes_other_exits() {
        let row = &ROWS[0];
        let tried = TriedPair {
            counts: [28.3, 2.8],
            effect: TrialEffect::Fewer,
            expected: Some(TrialEffect::Fewer),
            found: Some(true),
            named: true,
            gone: vec![(Subject::IdeDisk, 16.0, 0.0)],
            instead: Vec::new(),
        };
        assert_eq!(row.contradicts(&tried), Vec::<String>::new());
        let same = TriedPair { effect: TrialEffect::Same, gone: Vec::new(), ..tried.clone() };
        let says = ["exits: same, and the table of remedies says fewer"];
        assert_eq!(row.contradicts(&same), says);
        let stays = TriedPair { gone: Vec::new(), ..tried.clone() };
        assert_eq!(row.contradicts(&stays), ["exits of ide-disk stay"]);
        let silent = TriedPair { named: false, ..tried.clone() };
        assert_eq!(row.contradicts(&silent), ["explain does not name virtio-disk"]);
        let blind = TriedPair { found: Some(false), named: false, ..tried };
        assert_eq!(row.contradicts(&blind), ["explain does not find ide-disk"]);
    }

    #[test]
    fn rows_name_vms_and_findings() {
        let rows: Vec<&RemedyRow> = ROWS.iter().collect();
        for machine in machines(&rows) {
            let mut names: Vec<String> = match machine {
                TrialMachine::Vms(host) => {
                    let plan = network_plan(&rows, host).expect("VMs of every row");
                    assert_eq!(plan.processors, host.processors);
                    plan.cells.iter().map(PlannedCell::name).collect()
                }
                TrialMachine::Lab(host, _, is_nested, _) => {
                    let plan = operations_plan(&rows, machine).expect("operations of every row");
                    let level = if is_nested { 2 } else { 1 };
                    assert!(plan.only.iter().all(|one| one.is_for(host, level)));
                    plan.only.iter().map(|one| one.name.to_owned()).collect()
                }
            };
            let count = names.len();
            assert!(count > 0, "{machine:?}");
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "{machine:?}: each once");
        }
        for row in ROWS {
            let is_known = |finding: &str| {
                Subject::from_name(finding).is_some() || ["xapic", "contention"].contains(&finding)
            };
            assert!(row.finding.is_none_or(is_known), "{}: {:?}", row.remedy, row.finding);
        }
        assert!(RemedyRow::chosen(&["virtio-disk".to_owned()]).is_ok_and(|rows| rows.len() == 1));
        let refused = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            RemedyRow::chosen(&words).expect_err("refused")
        };
        assert!(refused(&["vls"]).starts_with("vls: cannot be tried here; try: virtio-disk, "));
    }
}
