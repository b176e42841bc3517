//! `vmtax lab remedy`: remedies tried on an emulated host.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::Value;
use vmtax_analyse::Ledger;
use vmtax_analyse::explain::Subject;
use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_cli::output;
use vmtax_lab::HostSetup;
use vmtax_report::table::{CSV, Cell, Column, JSON, PAGE, Table};
use vmtax_report::tables::{Tables, TitledTable};
use vmtax_runs::lab::remedy::{
    ROWS, RemedyRow, TrialMachine, TrialRun, TriedPair, VmsHost, machines, network_plan,
    operations_plan,
};
use vmtax_runs::lab::{DoneKernel, HostWork, measure, measure_network};
use vmtax_runs::write_fault;
use vmtax_store::Claim;

use super::args::VmHostArgs;
use crate::flags::OutputArgs;

/// Try remedies of `vmtax explain` on emulated hosts: the same load with the symptom and with the remedy.
///
/// Loads are VMs of QEMU on an emulated host (docs/bench-traffic.md) and operations of `vmtax lab run`. The report shows for each remedy whether
/// `explain` finds the symptom and names the remedy, the exits of an operation before and after, which exits went away, which appeared instead, and
/// whether this agrees with the table of remedies (docs/remedies.md). Counts are those of the real KVM, QEMU and Linux; times under an emulator do not
/// reflect hardware.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax lab remedy virtio-disk guest-clocksource huge-pages
  vmtax lab remedy msi --keep run && vmtax report run   the exits of both VMs
  vmtax lab remedy npt ept shadow-vmcs                  parameters of KVM's modules")]
pub(crate) struct RemedyArgs {
    /// Remedies to try; without any all of these on hosts of one processor.
    #[arg(value_name = "REMEDY", long_help = remedies())]
    remedies: Vec<String>,

    #[command(flatten)]
    host: VmHostArgs,

    /// Keep the run in this folder; of several hosts, each in a subfolder.
    #[arg(long, value_name = "RUN", value_hint = ValueHint::AnyPath)]
    keep: Option<PathBuf>,

    #[command(flatten)]
    to: OutputArgs,
}

fn remedies() -> String {
    let mut text =
        "Remedies to try; without any all of these on hosts of one processor\n".to_owned();
    for row in ROWS {
        let (load, [symptom, cured]) = row.words();
        let host = match row.sides() {
            [(TrialMachine::Vms(VmsHost { processors: 2, .. }), _), _] => {
                ", on a host of two processors".to_owned()
            }
            [(TrialMachine::Vms(VmsHost { kernel: Some(kernel), .. }), _), _] => {
                format!(", with {kernel}")
            }
            [(TrialMachine::Lab(host, kernel, ..), _), _] => {
                let kernel = kernel.map_or_else(String::new, |name| format!(" with {name}"));
                format!(", on the {host} host of the lab{kernel}")
            }
            _ => String::new(),
        };
        text.push_str(&format!("\n- {}: {load} with {symptom}, then {cured}{host}", row.remedy));
    }
    text
}

pub(super) fn run(args: &RemedyArgs) -> anyhow::Result<()> {
    let rows = match RemedyRow::chosen(&args.remedies) {
        Ok(rows) => rows,
        Err(problem) => return fail(Code::Usage, problem),
    };
    let machines = machines(&rows);
    if let (Some(folder), [_, _, ..]) = (&args.keep, machines.as_slice()) {
        std::fs::create_dir_all(folder)
            .map_err(|e| output::cannot_write(&folder.display().to_string(), &e))?;
    }
    let mut runs: Vec<TrialRun> = Vec::new();
    let mut problems = Vec::new();
    for machine in &machines {
        let folder = match (&args.keep, machines.as_slice()) {
            (Some(folder), [_]) => Some(folder.clone()),
            (Some(folder), _) => Some(folder.join(name(*machine))),
            (None, _) => None,
        };
        let claim = folder.as_deref().map(Claim::new).transpose().map_err(write_fault)?;
        let done = measured(args, &rows, *machine, claim)?;
        problems.extend(done.failures);
        runs.push((*machine, done.ledger));
    }
    let tried: Vec<(&RemedyRow, Option<TriedPair>)> =
        rows.iter().map(|row| (*row, row.judge(&runs))).collect();
    args.to.write(&shown(&tried, hosts(runs.iter().map(|(_, ledger)| ledger)))?)?;
    for (row, tried) in &tried {
        if tried.is_none() && problems.is_empty() {
            problems.push(format!("{}: one of its sides was not measured", row.remedy));
        }
        let contradicted = tried.iter().flat_map(|tried| row.contradicts(tried));
        problems.extend(contradicted.map(|what| format!("{}: {what}", row.remedy)));
    }
    match problems.len() {
        0 => Ok(()),
        count => {
            Err(CodedError::new(Code::Machine, format!("{count} contradictions or failures:"))
                .detailed(problems)
                .into())
        }
    }
}

/// Has a host do what these rows need of it.
fn measured(
    args: &RemedyArgs,
    rows: &[&RemedyRow],
    machine: TrialMachine,
    claim: Option<Claim>,
) -> anyhow::Result<DoneKernel> {
    let usage = |problem| CodedError::new(Code::Usage, problem);
    match machine {
        TrialMachine::Vms(host) => {
            let plan = network_plan(rows, host).map_err(usage)?;
            measure_network(args.host.setup(host.kernel)?, &plan, claim)
        }
        TrialMachine::Lab(host, kernel, nested, options) => {
            let plan = operations_plan(rows, machine).map_err(usage)?;
            let (setup, options) =
                (args.host.lab(host, kernel)?, options.iter().map(|word| (*word).to_owned()));
            let setup = |cache, console| HostSetup {
                nested,
                options: options.collect(),
                ..setup(cache, console)
            };
            measure(host, setup, HostWork::Operations(&plan), claim)
        }
    }
}

/// The folder of a host's run below that of all: `vms-1`, `amd-kvm_amd.npt=0`.
fn name(machine: TrialMachine) -> String {
    match machine {
        TrialMachine::Vms(VmsHost { processors, kernel }) => {
            let kernel = kernel.map_or_else(String::new, |kernel| format!("-{kernel}"));
            format!("vms-{processors}{kernel}").replace(':', "-")
        }
        TrialMachine::Lab(host, kernel, nested, options) => {
            let nested = if nested { &["nested"][..] } else { &[] };
            let kernel = kernel.as_slice();
            [&[host.name()], kernel, nested, options].concat().join("-").replace(':', "-")
        }
    }
}

/// Kernels and emulators, each once.
fn hosts<'a>(ledgers: impl Iterator<Item = &'a Ledger>) -> String {
    let mut all: Vec<String> = Vec::new();
    for recording in ledgers.map(|ledger| &ledger.recording) {
        let emulator = recording.emulated.clone().unwrap_or_default();
        let host = format!("Linux {} on {emulator}", recording.kernel);
        if !all.contains(&host) {
            all.push(host);
        }
    }
    all.join(", ")
}

const EMULATED: &str = "Counted on emulated hosts: exits of an operation, where no other unit is given. Times under an emulator do not reflect hardware.";

fn shown(tried: &[(&RemedyRow, Option<TriedPair>)], host: String) -> serde_json::Result<Tables> {
    let (id, title) = ("remedies", "Remedies".to_owned());
    let tables = Tables {
        command: "lab remedy",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: vec![("Host", host)],
        answer: Vec::new(),
        emulation: Some(EMULATED.to_owned()),
        sections: vec![TitledTable { id, title, notes: Vec::new(), table: table(tried) }],
        json: Value::default(),
    };
    tables.with_rows_as_json("vmtax-remedy-1")
}

type RemedyTableRow<'a> = (&'a RemedyRow, Option<TriedPair>);

fn table(tried: &[RemedyTableRow<'_>]) -> Table {
    let all = |column: Column| column.only(PAGE | CSV | JSON);
    let counts = |at: usize| {
        move |row: &&RemedyTableRow<'_>| {
            Cell::of(row.1.as_ref(), |tried| Cell::Number(tried.counts[at]))
        }
    };
    let flag = |of: fn(&TriedPair) -> Option<bool>| {
        move |row: &&RemedyTableRow<'_>| Cell::of(row.1.as_ref().and_then(of), Cell::Flag)
    };
    let subjects = |of: fn(&TriedPair) -> &[(Subject, f64, f64)]| {
        move |row: &&RemedyTableRow<'_>| {
            Cell::of(row.1.as_ref(), |tried| {
                let one = |(subject, before, after): &(Subject, f64, f64)| {
                    format!("{subject} {before:.2} -> {after:.2}")
                };
                Cell::Name(of(tried).iter().map(one).collect::<Vec<_>>().join(", "))
            })
        }
    };
    Table::of(tried)
        .column(Column::words("remedy", "remedy"), |row| Cell::Word(row.0.remedy.name()))
        .column(Column::words("workload", "load"), |row| Cell::Word(row.0.words().0))
        .column(all(Column::words("symptom", "symptom")), |row| {
            Cell::Name(row.0.words().1[0].clone())
        })
        .column(all(Column::words("cured", "with it")), |row| {
            Cell::Name(row.0.words().1[1].clone())
        })
        .column(Column::short("found", "found"), flag(|tried| tried.found))
        .column(Column::short("named", "named"), flag(|tried| tried.found.map(|_| tried.named)))
        .column(all(Column::words("unit", "unit")), |row| Cell::Word(row.0.unit.name()))
        .column(Column::number("before", "before"), counts(0))
        .column(Column::number("after", "after"), counts(1))
        .column(Column::short("effect", "effect"), |row| {
            Cell::of(row.1.as_ref(), |tried| Cell::Word(tried.effect.name()))
        })
        .column(Column::words("gone", "went"), subjects(|tried| &tried.gone))
        .column(Column::words("instead", "came"), subjects(|tried| &tried.instead))
        .table()
}
