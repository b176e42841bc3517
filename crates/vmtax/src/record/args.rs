//! Flags of `vmtax record`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use vmtax_live::{Options, Raw};

/// Which of the running VMs are meant.
#[derive(Debug, Args)]
pub(crate) struct WhichArgs {
    /// Only the VMs of this process; may be given several times.
    #[arg(short, long, value_name = "PID")]
    pub(super) pid: Vec<u32>,

    /// Only the VM of this name (QEMU's and libvirt's, Firecracker's --id, ...); may be given several times.
    #[arg(long, value_name = "NAME")]
    pub(super) vm: Vec<String>,

    /// All VMs, those that come later too. That is the default.
    #[arg(short, long, conflicts_with_all = ["pid", "vm"])]
    all: bool,
}

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
    pub(crate) which: WhichArgs,

    /// End after this time: 90s, 15m, 1h.
    #[arg(long, value_name = "TIME", value_parser = crate::cli::duration)]
    pub(crate) duration: Option<Duration>,

    /// Length of the intervals that exits are counted in, each a segment of the run: 100ms, 1s, ...
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = interval)]
    pub(crate) interval: Duration,

    /// Keep single events too, for a timeline (`vmtax report --format perfetto`) or to count them anew (`vmtax import RUN`).
    #[arg(long)]
    pub(crate) raw: bool,

    /// With --raw: the events of one exit in so many of each vCPU. The tables have all.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "raw", value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,

    /// With --raw: the events of exits that took at least so long: 100us, 5ms. The tables have all.
    #[arg(long, value_name = "TIME", requires = "raw", value_parser = crate::cli::duration)]
    slower_than: Option<Duration>,

    /// Count cycles, instructions and cache misses of the host's processors too, in guests and outside of them, once a
    /// second. It takes counters that guests and profilers may want.
    #[arg(long)]
    pub(crate) pmu: bool,

    /// A label of the run; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = crate::cli::label)]
    pub(crate) labels: Vec<(String, String)>,

    /// The run folder to make. It must not exist yet, or be empty.
    #[arg(short, long, value_name = "RUN", default_value = "run", value_hint = ValueHint::DirPath)]
    pub(crate) output: PathBuf,

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
    pub(crate) command: Vec<OsString>,
}

impl RecordArgs {
    pub(crate) fn interval_ns(&self) -> u64 {
        u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX)
    }

    /// What is bounded, and by how much.
    pub(super) fn limits(&self) -> Options {
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
    crate::cli::duration(text).and_then(check_interval)
}

/// A segment is a few files that are synced, and a reading has a cost: more often than that serves nobody.
pub(crate) fn check_interval(interval: Duration) -> Result<Duration, String> {
    if interval < Duration::from_millis(10) || interval > Duration::from_secs(3600) {
        return Err("use 10ms to 3600s".to_owned());
    }
    Ok(interval)
}
