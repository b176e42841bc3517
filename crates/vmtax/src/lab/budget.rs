//! A run against its budget.

use std::collections::BTreeMap;

use vmtax_analyse::Ledger;
use vmtax_analyse::operations::{OperationExit, OperationRow, Operations};
use vmtax_cli::exit::{Code, Fault, fail};
use vmtax_lab::budget::{Allowance, Breach, Budget};
use vmtax_report::numbers::counted;
use vmtax_runs::lab::fault;

use super::args::RunArgs;

/// Blesses, or compares; a breach is an error whose message is a table of what is broken.
pub(super) fn check(args: &RunArgs, ledger: &Ledger) -> anyhow::Result<()> {
    let Some(path) = &args.budget else { return Ok(()) };
    let host = args.host.host().name();
    let found = allowances(ledger);
    if args.bless {
        let budget = Budget {
            host: host.to_owned(),
            kernel: ledger.recording.kernel.clone(),
            operations: found,
        };
        let text = budget.to_text();
        return vmtax_cli::output::write(Some(path), |out| Ok(out.write_all(text.as_bytes())?));
    }
    let Some(budget) = open(args)? else { return Ok(()) };
    let breaches = budget.breaches(&found);
    if breaches.is_empty() {
        return Ok(());
    }
    let message =
        format!("{}: {}:", path.display(), counted(breaches.len() as u64, "budget violation"));
    let line = |one: &Breach| {
        let (found, allowed) = (number(one.found), number(one.allowed));
        format!("{} {}: {}: {found}, budget {allowed}", one.name, one.level, one.what)
    };
    Err(Fault::new(Code::Breach, message).detailed(breaches.iter().map(line).collect()).into())
}

/// The budget to hold the run against, if there is one.
pub(super) fn open(args: &RunArgs) -> anyhow::Result<Option<Budget>> {
    let Some(path) = args.budget.as_ref().filter(|_| !args.bless) else { return Ok(None) };
    let budget = Budget::read(path).map_err(|e| fault(e, None))?;
    if budget.host != args.host.host().name() {
        return fail(
            Code::Data,
            format!("{}: is a budget for --host {}", path.display(), budget.host),
        );
    }
    Ok(Some(budget))
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

/// What a run would be allowed if it were the measure.
pub(super) fn allowances(ledger: &Ledger) -> Vec<Allowance> {
    Operations::new(ledger).rows.iter().map(allowance).collect()
}

fn allowance(row: &OperationRow) -> Allowance {
    Allowance {
        name: row.name.clone(),
        level: row.level.name().to_owned(),
        count: row.count,
        path: row.path.map(|path| (path.median * 10.0).round() / 10.0),
        tolerance: None,
        exits: steady_exits(row),
    }
}

/// Exits by name, without the host's interrupts; `None` for an operation that waits, whose exits depend on time, and for exits
/// that were not recorded.
pub(super) fn steady_exits(row: &OperationRow) -> Option<BTreeMap<String, u64>> {
    if !row.recorded {
        return None;
    }
    vmtax_lab::suite::operation(&row.name).filter(|one| !one.waits())?;
    let mut exits: BTreeMap<String, u64> = BTreeMap::new();
    for exit in row.exits.iter().filter(|exit| !vmtax_lab::is_of_the_host(exit.reason)) {
        *exits.entry(exit_name(exit)).or_default() += exit.count;
    }
    Some(exits)
}

/// `L1 vmload`, `L2 cpuid cpuid 0x0`.
fn exit_name(exit: &OperationExit) -> String {
    let detail = vmtax_report::names::detail(exit.detail);
    format!("{} {} {detail}", exit.level.name(), vmtax_report::names::reason(exit.reason))
        .trim_end()
        .to_owned()
}
