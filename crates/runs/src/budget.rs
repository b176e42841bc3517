//! The budget file of a lab run: written from a run, or compared with one. The call trees of the run are kept beside it, so that a
//! violation names the functions that made the difference.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use vmtax_analyse::calls::difference::difference;
use vmtax_analyse::calls::profiled;
use vmtax_analyse::operations::{OperationExit, OperationRow, Operations};
use vmtax_analyse::{Ledger, ProfiledOperation};
use vmtax_cli::exit::{Code, fail};
use vmtax_events::{DetailKind, Isa, Level, Simulated, printable, vmx};
use vmtax_lab::HostKind;
use vmtax_lab::budget::{Allowance, Breach, Budget, BudgetUnit, RACE_TOLERANCE, TOLERANCE};
use vmtax_report::budget::{KeptBudget, Number};
use vmtax_report::calls::difference::sentence;
use vmtax_report::calls::folded;
use vmtax_report::numbers::instructions;

use crate::lab::fault;

/// The VMCS field of the host's stack pointer.
const HOST_RSP: u64 = 0x6c14;
/// Tolerance of a path with exits that chance decides on: a write of HOST_RSP less in a batch of five is 0.66 % of a port access of L2 (Linux 6.18).
const CHANCE_TOLERANCE: f64 = 0.01;
/// Larger than the call trees of any run.
const CALLS_MOST: u64 = 256 << 20;

/// Writes the budget at `path` from a run, of what a second run of the same kernel repeats. Returns a sentence for each number that it does not, and that
/// is not in the budget.
pub fn bless(
    path: &Path,
    host: HostKind,
    ledger: &Ledger,
    again: &Ledger,
) -> anyhow::Result<Vec<String>> {
    let (operations, differing) = repeated(&allowances(ledger), &allowances(again));
    let budget = Budget {
        host: host.name().to_owned(),
        kernel: ledger.recording.kernel.clone(),
        emulator: emulator(ledger),
        operations,
    };
    let text = budget.to_text();
    vmtax_cli::output::write(Some(path), |out| Ok(out.write_all(text.as_bytes())?))?;
    bless_calls(path, ledger)?;
    Ok(differing)
}

/// What two runs have in common, and a sentence for each number that they do not. A path gets a tolerance of twice the difference, and at least that of its batches.
fn repeated(first: &[Allowance], second: &[Allowance]) -> (Vec<Allowance>, Vec<String>) {
    let (mut common, mut differing) = (Vec::new(), Vec::new());
    for one in first {
        let title = format!("{} {}", one.name, one.level);
        let mut kept = one.clone();
        let Some(other) =
            second.iter().find(|other| other.name == one.name && other.level == one.level)
        else {
            differing.push(format!("{title}: the second run did not measure it"));
            continue;
        };
        let exact = Budget {
            host: String::new(),
            kernel: String::new(),
            emulator: String::new(),
            operations: vec![Allowance { path: None, ..one.clone() }],
        };
        let breaches = exact.breaches(&[Allowance { path: None, ..other.clone() }]);
        if !breaches.is_empty() {
            (kept.exits, kept.faults, kept.pages) = (None, None, None);
            (kept.waited, kept.walks, kept.references) = (None, None, None);
            let said = breaches.iter().map(|one| {
                format!(
                    "{}: {} and {}",
                    one.what,
                    instructions(one.allowed),
                    instructions(one.found)
                )
            });
            differing.extend(said.map(|said| format!("{title}: {said}")));
        }
        match (one.path, other.path) {
            (Some(path), Some(now)) if path > 0.0 => {
                let apart = 2.0 * (now - path).abs() / path;
                if apart > MOST_APART {
                    differing.push(format!(
                        "{title}: path: {} and {}",
                        instructions(path),
                        instructions(now)
                    ));
                    (kept.path, kept.tolerance) = (None, None);
                } else {
                    let parts = [Some(rounded_up(apart)), one.tolerance, other.tolerance];
                    let tolerance = parts.into_iter().flatten().fold(0.0, f64::max);
                    kept.tolerance = Some(tolerance).filter(|part| *part > TOLERANCE);
                }
            }
            (Some(path), None) => {
                differing.push(format!("{title}: path: {} and none", instructions(path)));
                kept.path = None;
            }
            _ => {}
        }
        let holds = kept.path.is_some()
            || kept.exits.is_some()
            || kept.faults.is_some()
            || kept.waited.is_some()
            || kept.walks.is_some()
            || kept.pages.is_some();
        common.extend(holds.then_some(kept));
    }
    (common, differing)
}

/// A part, to a tenth of a percent.
fn rounded_up(part: f64) -> f64 {
    (part * 1000.0).ceil() / 1000.0
}

/// A path that two runs do not repeat to within this part is no number to hold a kernel to.
const MOST_APART: f64 = 0.1;

/// Compares a run with the budget at `path`. Numbers that are better are no violation, unless the comparison is exact.
pub fn check(
    path: &Path,
    host: HostKind,
    ledger: &Ledger,
    exact: bool,
) -> anyhow::Result<KeptBudget> {
    let budget = open(path, host)?;
    let functions = functions(path, ledger, &budget)?;
    let number = |one: Breach| {
        let operation = (one.name.clone(), one.level.clone());
        let title = format!("{} {}", one.name, one.level);
        let is_path = one.unit == BudgetUnit::Instructions;
        Number {
            violates: exact || !one.is_better(),
            functions: functions.get(&title).filter(|_| is_path).cloned(),
            unit: one.unit.name(),
            what: one.what,
            budget: one.allowed,
            now: one.found,
            operation,
        }
    };
    let breaches = budget.breaches(&allowances(ledger));
    let mut numbers: Vec<Number> = breaches.into_iter().map(number).collect();
    numbers.sort_by_key(|one| !one.violates);
    let other = other_emulator(&budget.emulator, &emulator(ledger));
    let operations = budget.operations.iter().map(|one| (one.name.clone(), one.level.clone()));
    Ok(KeptBudget {
        file: path.display().to_string(),
        operations: operations.collect(),
        notes: other.filter(|_| numbers.iter().any(|one| one.violates)).into_iter().collect(),
        numbers,
    })
}

/// What emulated the host, with its version; empty on this computer's KVM.
fn emulator(ledger: &Ledger) -> String {
    ledger.recording.emulated.clone().unwrap_or_default()
}

/// That a budget was made with another emulator, or another version, whose paths differ with the same kernel. A budget that does not
/// say is of an earlier vmtax.
fn other_emulator(budget: &str, run: &str) -> Option<String> {
    let differs = !budget.is_empty() && budget != run;
    differs.then(|| {
        let (budget, run) = (printable(budget), printable(run));
        format!(
            "the budget was made with {budget}, this run with {run}, and their paths may differ with the same kernel: bless the budget anew"
        )
    })
}

/// The file of the call trees beside a budget.
fn calls_file(budget: &Path) -> PathBuf {
    let mut name = budget.as_os_str().to_owned();
    name.push(".folded");
    name.into()
}

/// The call trees of a run as folded stacks.
fn folded_calls(ledger: &Ledger) -> anyhow::Result<String> {
    let with_tree = profiled(ledger).0.into_iter().map(|one| (one.tree.clone(), one));
    let all: Vec<_> = with_tree.map(|(tree, one)| (one, tree)).collect();
    let mut text = Vec::new();
    folded::write(&all, &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes the call trees, if the run has any. Those of an earlier budget are removed, because they do not explain this one.
fn bless_calls(budget: &Path, ledger: &Ledger) -> anyhow::Result<()> {
    let (path, text) = (calls_file(budget), folded_calls(ledger)?);
    if !text.is_empty() {
        return vmtax_cli::output::write(Some(&path), |out| Ok(out.write_all(text.as_bytes())?));
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            fail(Code::Output, format!("{}: cannot be removed: {error}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The functions by which each path differs from the budget's, where both have call trees.
fn functions(
    budget_path: &Path,
    ledger: &Ledger,
    budget: &Budget,
) -> anyhow::Result<BTreeMap<String, String>> {
    let path = calls_file(budget_path);
    let now = folded_calls(ledger)?;
    let (false, Ok(file)) = (now.is_empty(), fs::File::open(&path)) else {
        return Ok(BTreeMap::new());
    };
    let refused = |problem: &str| {
        fail(Code::Data, format!("{}: {problem}; bless the budget anew", path.display()))
    };
    let mut text = String::new();
    if file.take(CALLS_MOST + 1).read_to_string(&mut text).is_err() {
        return refused("is no text of folded stacks");
    }
    if text.len() as u64 > CALLS_MOST {
        return refused("is larger than the call trees of any run");
    }
    let (before, after) = match (folded::read(&text), folded::read(&now)) {
        (Ok(before), Ok(after)) => (before, after),
        (Err(problem), _) | (_, Err(problem)) => return refused(&problem),
    };
    let mut found = BTreeMap::new();
    for one in &budget.operations {
        let title = format!("{} {}", one.name, one.level);
        let (Some(first), Some(second)) = (before.get(&title), after.get(&title)) else { continue };
        let of = |tree| ProfiledOperation {
            cell: None,
            name: one.name.clone(),
            level: if one.level == "L2" { Level::L2 } else { Level::L1 },
            operations: one.count,
            begun: 0,
            undone: 0,
            around: 0,
            idle: 0,
            waited: None,
            tree,
        };
        if let Some(said) = sentence(&difference(&of(first), &of(second))) {
            found.insert(title, said);
        }
    }
    Ok(found)
}

/// Reads a budget for this host.
///
/// # Errors
/// When it cannot be read, or is for another host.
pub fn open(path: &Path, host: HostKind) -> anyhow::Result<Budget> {
    let budget = Budget::read(path).map_err(|e| fault(e, None))?;
    if budget.host != host.name() {
        return fail(
            Code::Data,
            format!("{}: is a budget for --host {}", path.display(), budget.host),
        );
    }
    Ok(budget)
}

/// The budget that a run just meets.
fn allowances(ledger: &Ledger) -> Vec<Allowance> {
    Operations::new(ledger).rows.iter().map(allowance).collect()
}

fn allowance(row: &OperationRow) -> Allowance {
    let exits_may_differ = left_to_chance(row);
    let chance = (!exits_may_differ.is_empty()).then_some(CHANCE_TOLERANCE);
    let spread = row.path.and_then(|path| path.plus_minus()).map(rounded_up);
    Allowance {
        name: row.name.clone(),
        level: row.level.name().to_owned(),
        count: row.count,
        path: row.path.map(|path| (path.median * 10.0).round() / 10.0),
        tolerance: row.path.and([spread, chance].into_iter().flatten().reduce(f64::max)),
        waited: row.waited.as_ref().map(|waited| [waited.min, waited.max]),
        faults: row.memory.and_then(|memory| memory.per_region(memory.faults?).value()),
        pages: row.memory.and_then(|memory| memory.pages).map(|pages| {
            let sizes = ["4K", "2M", "1G"].map(str::to_owned).into_iter();
            sizes.zip(pages).filter(|(_, n)| *n > 0).collect()
        }),
        walks: simulated(row, |counts| Some(counts.walks)),
        references: simulated(row, |counts| counts.is_timed().then(|| counts.all_references())),
        exits: steady_exits(row),
        exits_may_differ,
        exits_tolerance: vmtax_lab::suite::operation(&row.name)
            .is_some_and(|one| one.races())
            .then_some(RACE_TOLERANCE),
    }
}

/// A count of each simulated processor. Those of TLBs depend on addresses of the guest alone, and repeat on every boot; where entries are in the caches does not.
fn simulated(
    row: &OperationRow,
    count: fn(&Simulated) -> Option<u64>,
) -> Option<BTreeMap<String, u64>> {
    let processors = row.paging.as_ref()?.processors.iter();
    Some(processors.filter_map(|(name, counts)| Some((name.clone(), count(counts)?))).collect())
}

/// Exits by name, without those of clocks: the host's interrupts, and what L1 does for its own tick. `None` for an operation that waits, whose exits depend on time, and for exits
/// that were not recorded.
pub fn steady_exits(row: &OperationRow) -> Option<BTreeMap<String, u64>> {
    if !row.recorded {
        return None;
    }
    // One that is not known is of a user's file, and those do not wait.
    if vmtax_lab::suite::operation(&row.name).is_some_and(|one| one.waits()) {
        return None;
    }
    let is_of_a_clock = |exit: &&OperationExit| {
        let handles = exit.ancillary_of.is_some_and(vmtax_lab::is_of_the_host);
        let delivers = is_own(row, exit) && vmtax_lab::is_window(exit.reason);
        vmtax_lab::is_of_the_host(exit.reason) || handles || delivers
    };
    let mut exits: BTreeMap<String, u64> = BTreeMap::new();
    for exit in row.exits.iter().filter(|exit| !is_of_a_clock(exit)) {
        *exits.entry(exit_name(row, exit)).or_default() += exit.count;
    }
    Some(exits)
}

/// How much exits may be off that chance decides on: half of L1's writes of HOST_RSP. L1's KVM writes the field if the stack pointer with which it enters L2 is not that of
/// the entry before. Each return to user space and back is a new system call, whose stack Linux moves by a random number of a few bits
/// (`CONFIG_RANDOMIZE_KSTACK_OFFSET`): now and then by the same one twice.
fn left_to_chance(row: &OperationRow) -> BTreeMap<String, u64> {
    let moved = |exit: &&OperationExit| {
        is_own(row, exit)
            && (exit.reason.isa, exit.reason.code) == (Isa::Vmx, vmx::VMWRITE)
            && (exit.detail.kind, exit.detail.value) == (DetailKind::VmcsField, HOST_RSP)
    };
    let mut exits: BTreeMap<String, u64> = BTreeMap::new();
    for exit in row.exits.iter().filter(moved) {
        *exits.entry(exit_name(row, exit)).or_default() += exit.count;
    }
    exits.values_mut().for_each(|count| *count = count.div_ceil(2));
    exits
}

/// `L1 vmload`, `L2 cpuid cpuid 0x0`. Where L1 has a page of its own depends on the kernel and on what it did before, so the address of its page fault is no part of
/// the name.
fn exit_name(row: &OperationRow, exit: &OperationExit) -> String {
    let detail = match exit.detail.kind {
        kind if kind.is_fault() && is_own(row, exit) => "page fault".to_owned(),
        _ => vmtax_report::names::detail(exit.detail),
    };
    format!("{} {} {detail}", exit.level.name(), vmtax_report::names::reason(exit.reason))
        .trim_end()
        .to_owned()
}

/// Whether it is an exit of L1 for an operation of L2.
fn is_own(row: &OperationRow, exit: &OperationExit) -> bool {
    row.level == Level::L2 && exit.level == Level::L1
}
