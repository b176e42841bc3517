//! Flags of `vmtax report`.

use std::path::{Path, PathBuf};

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum, ValueHint};
use vmtax_analyse::{By, TableKind};
use vmtax_report::names::table_words;

use crate::flags::{Color, ReadingArgs, TableFormat, one_of};

/// Show where a VM's time went: exits by reason and cause, time split, accesses, nesting, losses.
///
/// An input is a run folder or a recording: perf.data (file, stream, or folder of --threads), trace.dat, the text output of
/// ftrace, perf script, trace-cmd report, perf kvm stat report or kvm_stat, or a bpftrace dump of exit counts. The format is
/// detected from the content.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax report perf.data
  vmtax report trace.dat --event vmexit,msr,ioport,mmio
  vmtax report RUN --event vmexit --by reason,detail,vcpu --format csv
  perf record -o - -a -e 'kvm:*' sleep 5 | vmtax report -
  vmtax report perf.data --format perfetto -o trace.pftrace      open in ui.perfetto.dev
  vmtax report monday tuesday wednesday --event cause            a column for each recording")]
pub(crate) struct ReportArgs {
    /// Run folders or recordings; `-` reads standard input. Several are shown side by side, a column for each.
    #[arg(value_name = "RUN|FILE", required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) inputs: Vec<PathBuf>,

    /// Tables to show, separated by commas. [default: those that have rows]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) event: Vec<EventTable>,

    /// Columns to group rows by, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = one_of(By::ALL, By::name))]
    pub(crate) by: Vec<By>,

    /// Only these VMs, by id or name, separated by commas.
    #[arg(long, value_name = "VM", value_delimiter = ',')]
    pub(crate) vm: Vec<String>,

    /// Only these vCPU ids, separated by commas.
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = vcpu)]
    pub(crate) vcpu: Vec<u32>,

    /// Output format.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub(crate) format: ReportFormat,

    /// Output file. [default: standard output]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// When to use colours.
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,

    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// A table of `--event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventTable {
    /// Exits or accesses.
    Of(TableKind),
    Nested,
    Operations,
    Functions,
    Starts,
}

const EVENT_TABLES: [EventTable; TableKind::ALL.len() + 4] = {
    let last = TableKind::ALL.len();
    let mut all = [EventTable::Nested; TableKind::ALL.len() + 4];
    let mut at = 0;
    while at < last {
        all[at] = EventTable::Of(TableKind::ALL[at]);
        at += 1;
    }
    all[last + 1] = EventTable::Operations;
    all[last + 2] = EventTable::Functions;
    all[last + 3] = EventTable::Starts;
    all
};

impl ValueEnum for EventTable {
    fn value_variants<'a>() -> &'a [EventTable] {
        &EVENT_TABLES
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            EventTable::Of(kind) => (kind.name(), table_words(*kind).help),
            EventTable::Nested => ("nested", "Exits of L1 per exit of L2."),
            EventTable::Operations => {
                ("operations", "Exits and path length of each operation of a lab run.")
            }
            EventTable::Functions => (
                "functions",
                "Instructions of each operation by function, of a lab run with --profile.",
            ),
            EventTable::Starts => (
                "starts",
                "How long VMs took to start, by requests of KVM (sys_enter_ioctl and sys_exit_ioctl, or sys_enter and sys_exit); alone.",
            ),
        };
        Some(PossibleValue::new(name).help(help.trim_end_matches('.')))
    }
}

impl EventTable {
    /// The table of the analysis; `None` for nested, operations, functions and starts, which have other columns.
    pub(crate) fn kind(self) -> Option<TableKind> {
        match self {
            EventTable::Of(kind) => Some(kind),
            _ => None,
        }
    }
}

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// Tables for a terminal.
    Text,
    /// For programs; docs/report.schema.json.
    Json,
    /// One line for each row of every table.
    Csv,
    /// One page that opens offline.
    Html,
    /// A timeline for ui.perfetto.dev.
    Perfetto,
    /// OpenMetrics, for Prometheus: by VM, level, cause and reason.
    Prometheus,
    /// Call trees of a lab run as folded stacks.
    Folded,
    /// Call trees of a lab run for pprof.
    Pprof,
}

impl ReportArgs {
    /// The input, or the first of several.
    pub(crate) fn input(&self) -> &Path {
        self.inputs.first().map_or(Path::new(""), PathBuf::as_path)
    }
}

impl ReportFormat {
    /// The same format of a table, where a table can be written so.
    pub(crate) fn of_tables(self) -> Option<TableFormat> {
        match self {
            ReportFormat::Text => Some(TableFormat::Text),
            ReportFormat::Json => Some(TableFormat::Json),
            ReportFormat::Csv => Some(TableFormat::Csv),
            ReportFormat::Html => Some(TableFormat::Html),
            _ => None,
        }
    }
}

fn vcpu(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| "use a number".to_owned())
}
