//! `vmtax record`: the running kernel -> a run folder.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use vmtax_cli::flags::{duration, label, live_interval};
use vmtax_live::{Options, Raw};
use vmtax_runs::record::{self, Plan};

use crate::flags::WhichArgs;

/// Record the running kernel's exits: counted in the kernel, so cheap that it can stay on.
///
/// Exits are counted where they happen by eBPF programs, by reason, detail, level and outcome, with times and
/// histograms. What was counted is read at the end of each interval and written as a segment of the run, so that a crash
/// costs no more than the open one. Ctrl-C ends the recording. docs/record.md says what it needs and what it costs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax record -o run                            all VMs, until Ctrl-C
  vmtax record --vm web1 --duration 60s -o run
  vmtax record -o run -- ssh guest make -j8      while a command runs
  vmtax report run")]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    which: WhichArgs,

    /// End after this time: 90s, 15m, 1h.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,

    /// Length of the intervals that exits are counted in, each a segment of the run: 100ms, 1s, ...
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = interval)]
    interval: Duration,

    /// Keep single events too, for a timeline (`vmtax report --format perfetto`) or to count them anew (`vmtax import RUN`).
    #[arg(long)]
    raw: bool,

    /// With --raw: the events of one exit in so many of each vCPU. The tables have all.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "raw", value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,

    /// With --raw: the events of exits that took at least so long: 100us, 5ms. The tables have all.
    #[arg(long, value_name = "TIME", requires = "raw", value_parser = duration)]
    slower_than: Option<Duration>,

    /// Count cycles, instructions and cache misses of the host's processors too, in guests and outside of them, once a
    /// second. It takes counters that guests and profilers may want.
    #[arg(long)]
    pmu: bool,

    /// A label of the run; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,

    /// The run folder to make. It must not exist yet, or be empty.
    #[arg(short, long, value_name = "RUN", default_value = "run", value_hint = ValueHint::DirPath)]
    output: PathBuf,

    /// So many keys are told apart; for tests.
    #[arg(long, value_name = "N", hide = true)]
    most_keys: Option<u32>,

    /// So many vCPU threads are known at a time; for tests.
    #[arg(long, value_name = "N", hide = true)]
    most_threads: Option<u32>,

    /// Room for single events that are on their way, in KiB; for tests.
    #[arg(long, value_name = "KIB", hide = true)]
    buffer: Option<u32>,

    /// Watch by classic tracepoints, as on kernels without types; for tests.
    #[arg(long, hide = true)]
    classic: bool,

    /// Record while this command runs.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RecordArgs {
    fn plan(&self) -> Plan {
        Plan {
            which: self.which.which(),
            duration: self.duration,
            interval: self.interval,
            pmu: self.pmu,
            limits: self.limits(),
            labels: self.labels.clone(),
            output: self.output.clone(),
            command: self.command.clone(),
        }
    }

    /// What is bounded, and by how much.
    fn limits(&self) -> Options {
        let (usual, raw) = (Options::default(), Raw::default());
        let raw = Raw {
            sample: self.sample,
            slower: self.slower_than.unwrap_or(raw.slower),
            buffer: self.buffer.map_or(raw.buffer, |kib| kib.saturating_mul(1024)),
        };
        Options {
            most_keys: self.most_keys.unwrap_or(usual.most_keys),
            most_threads: self.most_threads.unwrap_or(usual.most_threads),
            raw: self.raw.then_some(raw),
            classic: self.classic,
            ..usual
        }
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    duration(text).and_then(live_interval)
}

pub(crate) fn run(args: &RecordArgs) -> anyhow::Result<()> {
    record::record(&args.plan(), env!("CARGO_PKG_VERSION"))
}
