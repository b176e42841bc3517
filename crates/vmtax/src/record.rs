//! `vmtax record`: the running kernel -> a run folder.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use vmtax_cli::flags::{duration, label, live_interval};
use vmtax_live::{LiveOptions, Raw};
use vmtax_runs::record::{self, RecordPlan, Retention, StartsPlan};

use crate::flags::{OutputArgs, TableFormat, WhichArgs};

/// Count VM exits in the running kernel, at low enough overhead to leave on.
///
/// eBPF programs count exits by reason, detail, level and outcome, with times and histograms. The counts of each
/// interval are written as a segment of the run, so that a crash loses at most the current interval. Ctrl-C ends the
/// recording. Requirements and overhead: docs/record.md.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax record -o run                            all VMs, until Ctrl-C
  vmtax record --vm web1 --duration 60s -o run
  vmtax record -o run -- ssh guest make -j8      while a command runs
  vmtax record --starts --duration 60s           how long VMs take to start, and in which calls
  vmtax record --tree /var/lib/vmtax --keep 30d  one run after another, as a service
  vmtax report run")]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    which: WhichArgs,

    /// Stop after this time: 90s, 15m, 1h.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<Duration>,

    /// Length of the intervals in which exits are counted, each a segment of the run: 100ms, 1s, ...
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = interval)]
    interval: Duration,

    /// Also store every event, for a timeline (`vmtax report --format perfetto`) or a recount (`vmtax import RUN`).
    #[arg(long)]
    raw: bool,

    /// With --raw: store the events of every Nth exit of a vCPU. Tables still contain all exits.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "raw", value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,

    /// With --raw: store the events of exits that took at least this long: 100us, 5ms. Tables still contain all exits.
    #[arg(long, value_name = "TIME", requires = "raw", value_parser = duration)]
    slower_than: Option<Duration>,

    /// Also count cycles, instructions and cache misses of the host's processors, inside and outside guests, once a second.
    /// This uses PMU counters, which guests and profilers may need.
    #[arg(long)]
    pmu: bool,

    /// Time the starts of VMs instead: the KVM calls that set up each VM created during the recording, from KVM_CREATE_VM to its first
    /// KVM_RUN, and those that destroy it, with the functions that wait. Prints tables, and writes no run.
    #[arg(long, conflicts_with_all = ["interval", "raw", "pmu", "labels", "tree"])]
    starts: bool,

    /// With --starts: output format.
    #[arg(long, value_enum, default_value_t = TableFormat::Text, requires = "starts")]
    format: TableFormat,

    /// A label of the run; repeatable.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,

    /// Run folder to create, which must not exist, or be empty [default: run]. With --starts: the file for the tables [default: standard output].
    #[arg(short, long, value_name = "RUN", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,

    /// Record for months: one run after another, as TREE/host=H/date=D/TIME, where `vmtax query` reads each as soon as it is
    /// closed. Runs that a power failure left open are closed at the start. While the disk is full, recording waits.
    #[arg(long, value_name = "TREE", value_hint = ValueHint::DirPath, conflicts_with_all = ["output", "command"])]
    tree: Option<PathBuf>,

    /// With --tree: close a run when it is this old.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration, requires = "tree")]
    rotate: Duration,

    /// With --tree: close a run when it takes this much disk space: 64M, 1G, ...
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size, requires = "tree")]
    rotate_size: u64,

    /// With --tree: remove closed runs older than this: 30d, ... [default: keep them until --disk-share is reached]
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "tree")]
    keep: Option<Duration>,

    /// With --tree: percent of the file system that the runs of this host may take. The oldest closed runs are removed before
    /// they take more.
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent, requires = "tree")]
    disk_share: f64,

    /// Maximum number of keys; for tests.
    #[arg(long, value_name = "N", hide = true)]
    most_keys: Option<u32>,

    /// Maximum number of vCPU threads at a time; for tests.
    #[arg(long, value_name = "N", hide = true)]
    most_threads: Option<u32>,

    /// Size of the event buffer, in KiB; for tests.
    #[arg(long, value_name = "KIB", hide = true)]
    buffer: Option<u32>,

    /// Record while this command runs.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The run folder, if none is named.
const RUN: &str = "run";

impl RecordArgs {
    fn plan(&self) -> RecordPlan {
        RecordPlan {
            which: self.which.which(),
            duration: self.duration,
            interval: self.interval,
            pmu: self.pmu,
            limits: self.limits(),
            labels: self.labels.clone(),
            output: self
                .tree
                .as_ref()
                .or(self.output.as_ref())
                .map_or_else(|| RUN.into(), Clone::clone),
            command: self.command.clone(),
        }
    }

    /// Limits of the recorder.
    fn limits(&self) -> LiveOptions {
        let (usual, raw) = (LiveOptions::default(), Raw::default());
        let raw = Raw {
            sample: self.sample,
            slower: self.slower_than.unwrap_or(raw.slower),
            buffer: self.buffer.map_or(raw.buffer, |kib| kib.saturating_mul(1024)),
        };
        LiveOptions {
            most_keys: self.most_keys.unwrap_or(usual.most_keys),
            most_threads: self.most_threads.unwrap_or(usual.most_threads),
            raw: self.raw.then_some(raw),
            ..usual
        }
    }
}

/// A size of at least a MiB.
fn size(text: &str) -> Result<u64, String> {
    let help = || "use a number with M or G, such as 64M or 1G".to_owned();
    let (digits, unit) = text.split_at(text.len() - text.chars().last().map_or(0, char::len_utf8));
    let number: u64 = digits.parse().map_err(|_| help())?;
    let unit: u64 = match unit {
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return Err(help()),
    };
    number.checked_mul(unit).filter(|bytes| *bytes > 0).ok_or_else(help)
}

/// Percent as a part of one.
fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent / 100.0),
        _ => Err("use a number above 0 and at most 100".to_owned()),
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    duration(text).and_then(live_interval)
}

/// Prints how long VMs took to start.
fn starts(args: &RecordArgs) -> anyhow::Result<()> {
    let (which, command) = (args.which.which(), args.command.clone());
    let plan = StartsPlan { which, duration: args.duration, command };
    let (recorded, status) = record::starts(&plan)?;
    let to = OutputArgs { format: args.format, output: args.output.clone() };
    to.write(&vmtax_report::starts::tables(&recorded, args.format == TableFormat::Text)?)?;
    record::command_ended(status)
}

pub(crate) fn run(args: &RecordArgs) -> anyhow::Result<()> {
    if args.starts {
        return starts(args);
    }
    if args.tree.is_none() {
        return record::record(&args.plan());
    }
    let retention = Retention {
        rotate: args.rotate,
        rotate_bytes: args.rotate_size,
        keep: args.keep,
        share: args.disk_share,
    };
    record::serve(&args.plan(), retention)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares_have_a_range() {
        assert_eq!((size("64M"), size("1G")), (Ok(64 << 20), Ok(1 << 30)));
        for wrong in ["", "M", "64", "0M", "-1M", "64K", "9999999999999G", "6\u{b5}"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!((percent("5"), percent("100%")), (Ok(0.05), Ok(1.0)));
        for wrong in ["", "0", "101", "-1", "NaN", "half"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}
