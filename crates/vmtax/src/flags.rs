//! Flags that several commands take.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum, ValueHint};
use vmtax_cli::exit::{Code, fail};
use vmtax_cli::flags::{duration, live_interval};
use vmtax_cli::output;
use vmtax_events::Isa;
use vmtax_report::tables::AllFormats;
use vmtax_report::text::TextLayout;
use vmtax_runs::ReadOptions;
use vmtax_runs::record::Which;

/// Flags for reading recordings.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ReadingArgs {
    /// Length of the intervals in which exits are counted: 10ms, 1s, ... [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) interval: Option<Duration>,

    /// Kind of processor that the numeric exit reasons in a bpftrace dump belong to.
    #[arg(long, value_name = "intel|amd|arm64", value_parser = isa)]
    pub(crate) isa: Option<Isa>,

    /// Mark the recording as made under this emulator: its times do not reflect hardware. QEMU TCG is detected in
    /// perf.data; other recordings do not contain this.
    #[arg(long, value_name = "NAME")]
    pub(crate) emulated: Option<String>,
}

impl ReadingArgs {
    pub(crate) fn reading(&self) -> ReadOptions {
        let ReadingArgs { interval, isa, emulated } = self.clone();
        ReadOptions { interval, isa, emulated, ..ReadOptions::default() }
    }

    /// Checks the flags of a command that reads the running kernel: those of recordings are refused, and intervals have a range.
    pub(crate) fn check_live(&self) -> anyhow::Result<()> {
        let usage = |message| fail(Code::Usage, message);
        if self.isa.is_some() || self.emulated.is_some() {
            let flag = if self.isa.is_some() { "--isa" } else { "--emulated" };
            return usage(format!("{flag} is for recordings; it needs --replay"));
        }
        match self.interval.map(live_interval) {
            Some(Err(range)) => usage(format!("--interval: {range}")),
            _ => Ok(()),
        }
    }
}

/// Format and file of tables.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct OutputArgs {
    /// Output format.
    #[arg(long, value_enum, default_value_t = TableFormat::Text)]
    pub(crate) format: TableFormat,

    /// Output file. [default: standard output]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

impl OutputArgs {
    /// Writes what is shown, in the format and to the place asked for.
    pub(crate) fn write(&self, shown: &dyn AllFormats) -> anyhow::Result<()> {
        let to = self.output.as_deref();
        let look = TextLayout { color: color(Color::Auto, to), width: width(to) };
        output::write(to, |out| {
            Ok(match self.format {
                TableFormat::Text => shown.text(look, out),
                TableFormat::Json => shown.json(out),
                TableFormat::Csv => shown.csv(out),
                TableFormat::Html => shown.html(out),
            }?)
        })
    }
}

/// Output format of a command that shows tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableFormat {
    /// For a terminal.
    #[default]
    Text,
    /// For programs; docs/json.md.
    Json,
    /// For a spreadsheet: one line for each row of every table.
    Csv,
    /// One page that opens offline.
    Html,
}

/// Selection of running VMs.
#[derive(Debug, Args)]
pub(crate) struct WhichArgs {
    /// Only the VMs of this process; repeatable.
    #[arg(short, long, value_name = "PID")]
    pid: Vec<u32>,

    /// Only the VM with this name (-name of QEMU and libvirt, --id of Firecracker, ...); repeatable.
    #[arg(long, value_name = "NAME")]
    vm: Vec<String>,

    /// All VMs, including those that start later. This is the default.
    #[arg(short, long, conflicts_with_all = ["pid", "vm"])]
    all: bool,
}

impl WhichArgs {
    pub(crate) fn which(&self) -> Which {
        Which { pids: self.pid.clone(), names: self.vm.clone() }
    }
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

/// Whether to use colours in this output.
pub(crate) fn color(color: Color, to: Option<&Path>) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => to.is_none() && output::has_colors(),
    }
}

/// Width of the terminal, if the output goes there.
pub(crate) fn width(to: Option<&Path>) -> Option<usize> {
    to.is_none().then(output::width).flatten()
}

fn isa(word: &str) -> Result<Isa, String> {
    match word {
        "intel" | "vmx" => Ok(Isa::Vmx),
        "amd" | "svm" => Ok(Isa::Svm),
        "arm64" => Ok(Isa::Arm),
        _ => Err("use intel (VMX), amd (SVM) or arm64".to_owned()),
    }
}

/// Parses the name of one of these values. Help and errors list the names.
pub(crate) fn one_of<T: Clone + Send + Sync + 'static>(
    all: impl IntoIterator<Item = T>,
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    let all: Vec<(&'static str, T)> = all.into_iter().map(|one| (name(one.clone()), one)).collect();
    PossibleValuesParser::new(all.iter().map(|(name, _)| *name)).try_map(move |word| {
        let known = all.iter().find(|(name, _)| *name == word);
        known.map(|(_, one)| one.clone()).ok_or("unknown name")
    })
}
