//! Flags as the user writes them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use vmtax_analyse::{By, Per, TableKind};
use vmtax_events::Isa;

/// Measures, explains and cuts the virtualization tax: the time a virtual machine loses to being one.
#[derive(Debug, Parser)]
#[command(name = "vmtax", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  perf kvm stat record -a -o perf.data sleep 10    record with the tools you have
  vmtax report perf.data                           where the time went
  vmtax report perf.data --format html -o report.html

Exit codes: 0 done, 1 unexpected, 2 usage, 3 input, 4 data, 5 output, 6 breach, 7 machine; see docs/exit-codes.md.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Report(ReportArgs),
    Import(ImportArgs),
    Record(crate::record::RecordArgs),
    Top(crate::top::TopArgs),
    Export(crate::export::ExportArgs),
    Explain(crate::explain::ExplainArgs),
    Diff(DiffArgs),
    Bench(crate::bench::args::BenchArgs),
    Mem(crate::mem::MemArgs),
    Vpmu(crate::vpmu::VpmuArgs),
    Lab(crate::lab::args::LabArgs),
    Doctor(crate::doctor::DoctorArgs),
    Pages(crate::doctor::PagesArgs),
    Query(crate::fleet::QueryArgs),
    Fleet(crate::fleet::FleetArgs),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Say where a VM's time went: exits by reason and cause, time split, accesses, nesting, losses.
///
/// INPUT is a run folder or a recording: perf.data (file, stream, or folder of --threads), trace.dat, the text of ftrace, perf
/// script or trace-cmd report, or a bpftrace dump of exit counts. The kind is recognised from the content.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax report perf.data
  vmtax report trace.dat --event vmexit,msr,ioport,mmio
  vmtax report RUN --event vmexit --by reason,detail,vcpu --format csv
  perf record -o - -a -e 'kvm:*' sleep 5 | vmtax report -
  vmtax report perf.data --format perfetto -o trace.pftrace      open in ui.perfetto.dev")]
pub(crate) struct ReportArgs {
    /// Run folder or recording; `-` reads standard input.
    #[arg(value_name = "RUN|FILE", value_hint = ValueHint::AnyPath)]
    pub(crate) input: PathBuf,

    /// Tables to show, separated by commas. Without it: those that have rows.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) event: Vec<EventTable>,

    /// What rows are told apart by, separated by commas.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = by_parser())]
    pub(crate) by: Vec<By>,

    /// Only these VMs, by id or name, separated by commas.
    #[arg(long, value_name = "VM", value_delimiter = ',')]
    pub(crate) vm: Vec<String>,

    /// Only these vCPU ids, separated by commas.
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = vcpu)]
    pub(crate) vcpu: Vec<u32>,

    /// How to write the report.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,

    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// Colours: on a terminal, always or never.
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,

    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// Set two runs or recordings side by side: what the other does more or less often than the base.
///
/// What differs between the two set-ups is listed before any number. Rows are causes first, since the same guest leaves
/// for other reasons on other processors and in confidential VMs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax diff plain.perf.data tdx.perf.data
  vmtax diff run-6.1 run-6.9 --by reason,detail --strict
  vmtax diff plain.txt td.txt --isa vmx --length 10s           dumps of counts, each of ten seconds")]
pub(crate) struct DiffArgs {
    /// Run folder or recording to compare with.
    #[arg(value_name = "BASE", value_hint = ValueHint::AnyPath)]
    pub(crate) base: PathBuf,

    /// Run folder or recording that is compared.
    #[arg(value_name = "OTHER", value_hint = ValueHint::AnyPath)]
    pub(crate) other: PathBuf,

    /// What counts are put over. [default: operation for lab runs, else second, else recording]
    #[arg(long, value_name = "second|l2-exit|operation|recording", value_parser = per_parser())]
    pub(crate) per: Option<Per>,

    /// One table whose rows are told apart by these, separated by commas. [default: a table by cause, and one by cause
    /// and reason]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = diff_by_parser())]
    pub(crate) by: Vec<By>,

    /// How long a recording took that does not say it (a dump of counts): 10s, 500ms, ...
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) length: Option<Duration>,

    /// Set-ups that differ are an error, exit code 4, after the report.
    #[arg(long)]
    pub(crate) strict: bool,

    /// How to write it.
    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    pub(crate) format: DiffFormat,

    /// Write to this file instead of standard output.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,

    /// Colours: on a terminal, always or never.
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub(crate) color: Color,

    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// How a comparison is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiffFormat {
    /// Tables for a terminal.
    Text,
    /// For programs; docs/json.md.
    Json,
    /// One row per row of every table.
    Csv,
    /// One page that opens offline.
    Html,
}

/// Turn recordings into a run folder that every other command reads.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax import perf.data -o run
  trace-cmd report trace.dat | vmtax import - -o run
  vmtax import perf.data -o run --raw       keep the events too (for --format perfetto)
  vmtax import exits.data -o run --host-profile host.data --guest-profile guest.folded --stats pages.json")]
pub(crate) struct ImportArgs {
    /// Recordings of one host; `-` reads standard input.
    #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) inputs: Vec<PathBuf>,

    /// The run folder to make. It must not exist yet, or be empty.
    #[arg(short, long, value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) output: PathBuf,

    /// Store the single events too.
    #[arg(long)]
    pub(crate) raw: bool,

    /// A label of the run; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,

    #[command(flatten)]
    pub(crate) besides: crate::besides::BesidesArgs,

    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
}

/// How recordings are read.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReadingArgs {
    /// Length of the intervals that exits are counted in: 10ms, 1s, ... [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) interval: Option<Duration>,

    /// Vendor of bare exit numbers in a bpftrace dump.
    #[arg(long, value_name = "intel|amd", value_parser = isa)]
    pub(crate) isa: Option<Isa>,

    /// The host ran under this emulator, so its times say nothing about hardware. QEMU TCG is recognised in
    /// a perf.data; other recordings do not show it.
    #[arg(long, value_name = "NAME")]
    pub(crate) emulated: Option<String>,
}

impl ReadingArgs {
    /// Length of the intervals, ns.
    pub(crate) fn interval_ns(&self) -> u64 {
        let interval = self.interval.unwrap_or(Duration::from_millis(100));
        u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX)
    }

    /// What watches the running kernel has no recording to read, only intervals of a bearable length.
    pub(crate) fn check_live(&self) -> anyhow::Result<()> {
        let usage = |message| crate::exit::fail(crate::exit::Code::Usage, message);
        if self.isa.is_some() || self.emulated.is_some() {
            let flag = if self.isa.is_some() { "--isa" } else { "--emulated" };
            return usage(format!("{flag} says how a recording is read; it goes with --replay"));
        }
        match self.interval.map(crate::record::check_interval) {
            Some(Err(range)) => usage(format!("--interval: {range}")),
            _ => Ok(()),
        }
    }

    /// The first flag given. A run was read when it was imported, so none means anything to it.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let interval = self.interval.map(|_| "--interval");
        interval.or(self.isa.map(|_| "--isa")).or(self.emulated.as_ref().map(|_| "--emulated"))
    }
}

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax completions bash > /etc/bash_completion.d/vmtax")]
pub(crate) struct CompletionsArgs {
    /// Which shell.
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

/// Write the man pages into a folder.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Where to write; the folder is made if needed.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

/// A table of `--event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EventTable {
    /// Exits by reason.
    Vmexit,
    /// MSR reads and writes.
    Msr,
    /// Port reads and writes.
    Ioport,
    /// Device register reads and writes.
    Mmio,
    /// CPUID leaves.
    Cpuid,
    /// Hypercalls.
    Hypercall,
    /// Exits by what the guest was doing.
    Cause,
    /// Exits of L1 per exit of L2.
    Nested,
    /// Exits and path length of each operation of a lab run.
    Operations,
    /// Where the instructions of each operation go, of a lab run with --profile.
    Functions,
}

impl EventTable {
    /// The analysis's table; `None` for the nested one and the operations, which are of other shapes.
    pub(crate) fn kind(self) -> Option<TableKind> {
        Some(match self {
            EventTable::Vmexit => TableKind::Vmexit,
            EventTable::Msr => TableKind::Msr,
            EventTable::Ioport => TableKind::Ioport,
            EventTable::Mmio => TableKind::Mmio,
            EventTable::Cpuid => TableKind::Cpuid,
            EventTable::Hypercall => TableKind::Hypercall,
            EventTable::Cause => TableKind::Cause,
            EventTable::Nested | EventTable::Operations | EventTable::Functions => return None,
        })
    }
}

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for a terminal.
    Text,
    /// For programs; docs/report.schema.json.
    Json,
    /// One row per row of every table.
    Csv,
    /// One page that opens offline.
    Html,
    /// A timeline for ui.perfetto.dev.
    Perfetto,
    /// OpenMetrics, for Prometheus: by VM, level, cause and reason.
    Prometheus,
    /// Call trees of a lab run as folded stacks.
    Folded,
    /// The call tree of one operation of a lab run, for KCachegrind.
    Callgrind,
    /// Call trees of a lab run for speedscope.app.
    Speedscope,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

fn by_parser() -> impl clap::builder::TypedValueParser<Value = By> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(By::ALL.map(By::name)).map(|word| {
        let by = By::ALL.into_iter().find(|by| by.name() == word);
        by.unwrap_or(By::Reason)
    })
}

/// A VM of one recording has nothing to do with one of another that has its number.
fn diff_by_parser() -> impl clap::builder::TypedValueParser<Value = By> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    let words = By::ALL.into_iter().filter(|by| !matches!(by, By::Vm | By::Vcpu)).map(By::name);
    PossibleValuesParser::new(words).map(|word| {
        let by = By::ALL.into_iter().find(|by| by.name() == word);
        by.unwrap_or(By::Reason)
    })
}

fn per_parser() -> impl clap::builder::TypedValueParser<Value = Per> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(Per::ALL.map(Per::name)).map(|word| {
        let per = Per::ALL.into_iter().find(|per| per.name() == word);
        per.unwrap_or(Per::Second)
    })
}

fn vcpu(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| "use a number".to_owned())
}

fn isa(word: &str) -> Result<Isa, String> {
    match word {
        "intel" | "vmx" => Ok(Isa::Vmx),
        "amd" | "svm" => Ok(Isa::Svm),
        _ => Err("use intel (VMX) or amd (SVM)".to_owned()),
    }
}

pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("use KEY=VALUE".to_owned()),
    }
}

/// A time above zero: `100ms`, `90s`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if !time.is_zero() && u64::try_from(time.as_nanos()).is_ok() => Ok(time),
        _ => Err("use a time above zero with its unit, such as 100ms, 90s or 1h".to_owned()),
    }
}
