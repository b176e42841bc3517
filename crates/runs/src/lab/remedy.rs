//! Remedies tried on an emulated host: one load in a VM with the symptom and in one with the remedy.
//!
//! ```text
//!   row ──> two VMs of `vmtax lab network` ──recordings──> explanation of the first: the finding, and whether the remedy is named
//!                                                     └──> change between the two: what went, what came instead
//! ```
//! Left out on purpose: remedies of the host's boot (kvm_amd.npt) and of the lab's own VMM, which suites of operations try.

use vmtax_analyse::explain::{Change, Explanation, Fate, Subject};
use vmtax_analyse::remedy::{Effect, Figures, RemedyId, Trial};
use vmtax_analyse::{Ledger, Side};
use vmtax_events::Sample;
use vmtax_lab::network::{Category, Client, NetworkPlan, PlannedCell, Workload};

/// A load in two VMs.
#[derive(Clone, Copy, Debug)]
pub struct RemedyRow {
    /// The remedy.
    pub remedy: RemedyId,
    /// The load, a workload of `vmtax lab network`.
    pub workload: &'static str,
    /// The VM with the symptom.
    pub symptom: &'static str,
    /// The VM with the remedy.
    pub cured: &'static str,
    /// What an explanation must find in the first.
    pub finding: &'static str,
    /// Whether the remedy is advised without times, which an emulator has not.
    pub is_named: bool,
}

const fn row(
    remedy: RemedyId,
    workload: &'static str,
    [symptom, cured]: [&'static str; 2],
    finding: &'static str,
) -> RemedyRow {
    RemedyRow { remedy, workload, symptom, cured, finding, is_named: true }
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
];

/// What a trial showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    /// Exits of an operation, before and after.
    pub exits: [f64; 2],
    /// What the remedy did to them.
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
    /// The rows of these remedies; all of them if none is given.
    ///
    /// # Errors
    /// With the word that is no remedy of a row.
    pub fn chosen(words: &[String]) -> Result<Vec<&'static RemedyRow>, String> {
        for word in words {
            if !ROWS.iter().any(|row| row.remedy.name() == word) {
                return Err(word.clone());
            }
        }
        let is_wanted = |row: &&RemedyRow| {
            words.is_empty() || words.iter().any(|word| row.remedy.name() == word)
        };
        Ok(ROWS.iter().filter(is_wanted).collect())
    }

    /// Its two VMs.
    fn cells(&self) -> Result<[PlannedCell; 2], String> {
        let unknown = || format!("{}: {} is no workload", self.remedy, self.workload);
        let workload = Workload::named(self.workload).ok_or_else(unknown)?;
        let cell = |name: &str| {
            let category = Category::read(name)?;
            Ok::<_, String>(PlannedCell { category, client: Client::Host, workload })
        };
        Ok([cell(self.symptom)?, cell(self.cured)?])
    }

    /// What the run shows of it; `None` if one of its VMs was not measured.
    pub fn judge(&self, ledger: &Ledger) -> Option<Tried> {
        let [before, after] = [self.symptom, self.cured]
            .map(|category| of_vm(ledger, &format!("{} {category}", self.workload)));
        let (before, after) = (before?, after?);
        let labels = Default::default();
        let [before_side, after_side] = [&before, &after].map(|(vm, _)| Side {
            source: "",
            ledger: vm,
            labels: &labels,
            seconds: None,
        });
        let operations = before.1.min(after.1);
        let change = Change::new(&before_side, &after_side, Some(operations));
        let explanation = Explanation::new(&before_side, None);
        let finding = explanation.findings.iter().find(|one| one.id() == self.finding);
        let named = finding
            .is_some_and(|one| one.remedies.iter().any(|advice| advice.remedy.id == self.remedy));
        let [before, after] = change.total.map(|cell| cell.rate);
        let figures = |rate: f64| Figures { least: rate, most: rate };
        let of = |fates: [Fate; 2]| {
            let rows = change.rows.iter().filter(|row| fates.contains(&row.fate()));
            let cell = |row: &vmtax_analyse::explain::ChangeRow| {
                Some((row.subject?, row.before.rate, row.after.rate))
            };
            rows.filter_map(cell).collect()
        };
        Some(Tried {
            exits: [before, after],
            effect: Effect::of(figures(before), figures(after)),
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
            all.push(format!("the exits are {effect}, and the table of remedies says {expected}"));
        }
        let subject = Subject::from_name(self.finding);
        let stays = |subject: &Subject| !tried.gone.iter().any(|(gone, ..)| gone == subject);
        if tried.effect == Effect::Fewer
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
/// When a row names no VM or workload of `vmtax lab network`.
pub fn plan(rows: &[&RemedyRow]) -> Result<NetworkPlan, String> {
    let mut cells: Vec<PlannedCell> = Vec::new();
    for row in rows {
        for cell in row.cells()? {
            if !cells.iter().any(|known| known.name() == cell.name()) {
                cells.push(cell);
            }
        }
    }
    Ok(NetworkPlan { cells, operations: None })
}

/// The exits of this VM of a run, and its operations.
fn of_vm(ledger: &Ledger, name: &str) -> Option<(Ledger, u64)> {
    let vm = ledger.recording.vms.iter().find(|vm| vm.name == name)?;
    let count = |sample: &&Sample| sample.workload == name && sample.metric == Sample::OPERATIONS;
    let operations = ledger.samples.iter().find(count)?.value as u64;
    // The samples are those of operations, and no benchmark's.
    let only = Ledger { samples: Vec::new(), ..ledger.of_vm(vm.id) };
    (operations > 0).then_some((only, operations))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_contradicts_the_table_where_it_removes_other_exits() {
        let row = &ROWS[0];
        let tried = Tried {
            exits: [28.3, 2.8],
            effect: Effect::Fewer,
            expected: Some(Effect::Fewer),
            found: true,
            named: true,
            gone: vec![(Subject::IdeDisk, 16.0, 0.0)],
            instead: Vec::new(),
        };
        assert_eq!(row.contradicts(&tried), Vec::<String>::new());
        let same = Tried { effect: Effect::Same, gone: Vec::new(), ..tried.clone() };
        let says = ["the exits are same, and the table of remedies says fewer"];
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
        let all: Vec<&RemedyRow> = ROWS.iter().collect();
        let plan = plan(&all).expect("VMs of every row");
        let mut names: Vec<String> = plan.cells.iter().map(PlannedCell::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), plan.cells.len(), "each VM once");
        for row in ROWS {
            let is_known = Subject::from_name(row.finding).is_some() || row.finding == "xapic";
            assert!(is_known, "{}: {}", row.remedy, row.finding);
        }
        assert!(RemedyRow::chosen(&["virtio-disk".to_owned()]).is_ok_and(|rows| rows.len() == 1));
        assert_eq!(RemedyRow::chosen(&["npt".to_owned()]).err().as_deref(), Some("npt"));
    }
}
