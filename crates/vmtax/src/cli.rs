//! The command line: a flag set for each subcommand.

use clap::{Parser, Subcommand};

/// Measure, explain and reduce the virtualization tax: the time that a VM loses to virtualization.
#[derive(Debug, Parser)]
#[command(name = "vmtax", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  perf kvm stat record -a -o perf.data sleep 10    record with existing tools
  vmtax report perf.data                           where the time went
  vmtax report perf.data --format html -o report.html

Exit codes: 0 done, 1 unexpected, 2 usage, 3 input, 4 data, 5 output, 6 breach, 7 machine; see docs/commands.md.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Report(crate::report::ReportArgs),
    Import(crate::import::ImportArgs),
    Record(crate::record::RecordArgs),
    Top(crate::top::TopArgs),
    Export(crate::export::ExportArgs),
    Explain(crate::explain::ExplainArgs),
    Diff(crate::diff::DiffArgs),
    Bench(crate::bench::args::BenchArgs),
    Mem(crate::mem::MemArgs),
    Vpmu(crate::vpmu::VpmuArgs),
    Lab(crate::lab::args::LabArgs),
    Doctor(crate::doctor::DoctorArgs),
    Selftest(crate::selftest::SelftestArgs),
    Query(crate::fleet::QueryCommandArgs),
    Fleet(crate::fleet::FleetArgs),
    #[command(hide = true)]
    Completions(crate::shell::CompletionsArgs),
    #[command(hide = true)]
    Man(crate::shell::ManArgs),
    /// Print the version.
    #[command(hide = true)]
    Version,
}
