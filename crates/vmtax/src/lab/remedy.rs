//! `vmtax lab remedy`: remedies tried on an emulated host.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::Value;
use vmtax_analyse::explain::Subject;
use vmtax_cli::exit::{Code, Fault, fail};
use vmtax_report::table::{CSV, Cell, Column, JSON, PAGE, Table};
use vmtax_report::tables::{Section, Tables};
use vmtax_runs::lab::remedy::{ROWS, RemedyRow, Tried, plan};
use vmtax_runs::lab::{Done, measure_network};
use vmtax_runs::write_fault;
use vmtax_store::Claim;

use super::args::VmHostArgs;
use crate::flags::OutputArgs;

/// Try remedies of `vmtax explain` on an emulated host: the same load in a VM with the symptom and in one with the remedy.
///
/// The VMs are those of QEMU on an emulated host (docs/bench-traffic.md). Of each remedy: whether `explain` finds the symptom and names the remedy, the exits of an operation before and
/// after, what went and what came instead, and whether that is what the table of remedies (docs/remedies.md) says. Counts are those of the real KVM,
/// QEMU and Linux; times under an emulator do not reflect hardware.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax lab remedy virtio-disk guest-clocksource huge-pages
  vmtax lab remedy --keep run && vmtax report run       the exits of every VM")]
pub(crate) struct RemedyArgs {
    /// Remedies to try; without any all of these on a host of one processor.
    #[arg(value_name = "REMEDY", long_help = remedies())]
    remedies: Vec<String>,

    #[command(flatten)]
    host: VmHostArgs,

    /// Keep the run in this folder.
    #[arg(long, value_name = "RUN", value_hint = ValueHint::AnyPath)]
    keep: Option<PathBuf>,

    #[command(flatten)]
    to: OutputArgs,
}

fn remedies() -> String {
    let mut text =
        "Remedies to try; without any all of these on a host of one processor\n".to_owned();
    for row in ROWS {
        let RemedyRow { remedy, workload, symptom, cured, processors, .. } = row;
        let host = if *processors == 2 { ", on a host of two processors" } else { "" };
        text.push_str(&format!("\n- {remedy}: {workload} with {symptom}, then {cured}{host}"));
    }
    text
}

pub(super) fn run(args: &RemedyArgs) -> anyhow::Result<()> {
    let rows = match RemedyRow::chosen(&args.remedies) {
        Ok(rows) => rows,
        Err(problem) => return fail(Code::Usage, problem),
    };
    let plan = match plan(&rows) {
        Ok(plan) => plan,
        Err(problem) => return fail(Code::Usage, problem),
    };
    let claim = args.keep.as_deref().map(Claim::new).transpose().map_err(write_fault)?;
    let Done { ledger, failures, .. } = measure_network(args.host.setup()?, &plan, claim)?;
    let tried: Vec<(&RemedyRow, Option<Tried>)> =
        rows.iter().map(|row| (*row, row.judge(&ledger))).collect();
    let emulator = ledger.recording.emulated.clone().unwrap_or_default();
    let host = format!("Linux {} on {emulator}", ledger.recording.kernel);
    args.to.write(&shown(&tried, host)?)?;
    let mut problems = failures;
    for (row, tried) in &tried {
        if tried.is_none() && problems.is_empty() {
            problems.push(format!("{}: one of its VMs took no exits", row.remedy));
        }
        let contradicted = tried.iter().flat_map(|tried| row.contradicts(tried));
        problems.extend(contradicted.map(|what| format!("{}: {what}", row.remedy)));
    }
    match problems.len() {
        0 => Ok(()),
        count => Err(Fault::new(Code::Machine, format!("{count} contradictions or failures:"))
            .detailed(problems)
            .into()),
    }
}

const EMULATED: &str = "Counted on an emulated AMD host: exits of an operation, where no other unit is given. Times under an emulator do not reflect hardware.";

fn shown(tried: &[(&RemedyRow, Option<Tried>)], host: String) -> serde_json::Result<Tables> {
    let (id, title) = ("remedies", "Remedies".to_owned());
    let tables = Tables {
        command: "lab remedy",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: vec![("Host", host)],
        answer: Vec::new(),
        emulation: Some(EMULATED.to_owned()),
        sections: vec![Section { id, title, notes: Vec::new(), table: table(tried) }],
        json: Value::default(),
    };
    tables.with_rows_as_json("vmtax-remedy-1")
}

type Row<'a> = (&'a RemedyRow, Option<Tried>);

fn table(tried: &[Row<'_>]) -> Table {
    let all = |column: Column| column.only(PAGE | CSV | JSON);
    let counts = |at: usize| {
        move |row: &&Row<'_>| Cell::of(row.1.as_ref(), |tried| Cell::Number(tried.counts[at]))
    };
    let flag = |of: fn(&Tried) -> bool| {
        move |row: &&Row<'_>| Cell::of(row.1.as_ref(), |tried| Cell::Flag(of(tried)))
    };
    let subjects = |of: fn(&Tried) -> &[(Subject, f64, f64)]| {
        move |row: &&Row<'_>| {
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
        .column(Column::words("workload", "load"), |row| Cell::Word(row.0.workload))
        .column(all(Column::words("symptom", "symptom")), |row| Cell::Word(row.0.symptom))
        .column(all(Column::words("cured", "with it")), |row| Cell::Word(row.0.cured))
        .column(Column::short("found", "found"), flag(|tried| tried.found))
        .column(Column::short("named", "named"), flag(|tried| tried.named))
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
