//! Flags of `vmtax mem`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};

use vmtax_pageops::accel::AccelChoice;

use crate::flags::OutputArgs;

/// Scan, save and restore a VM's memory; measure page operations.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax mem scan $(pidof qemu-system-x86_64)
  vmtax mem save --qmp /run/vm.qmp -o base.ckpt
  vmtax mem save --qmp /run/vm.qmp --parent base.ckpt -o monday.ckpt
  vmtax mem restore monday.ckpt --qmp /run/new.qmp      the new QEMU runs with -incoming defer
  vmtax mem bench

The VM needs shared memory that is a file: -object memory-backend-file,id=mem,size=1G,mem-path=/dev/shm,share=on
-machine memory-backend=mem. docs/checkpoint-format.md describes the format of checkpoints.")]
pub(crate) struct MemArgs {
    #[command(subcommand)]
    pub(crate) command: MemCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MemCommand {
    Scan(ScanArgs),
    Save(SaveArgs),
    Restore(RestoreArgs),
    Verify(VerifyArgs),
    Bench(MemBenchArgs),
    /// The process that resumes a VM if the save that paused it is killed; started by `save`.
    #[command(hide = true)]
    GuardPause(GuardArgs),
}

#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// QEMU's monitor, for messages. Standard output is a connection to it.
    pub(crate) monitor: String,
}

/// Analyse a VM's memory, and estimate the size of a checkpoint and the time of a migration.
///
/// The VM is not stopped, and the scan allocates no memory in it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax mem scan 4711
  vmtax mem scan 4711 --dirty 2s --bandwidth 25
  vmtax mem scan ram.img --format csv -o pages.csv")]
pub(crate) struct ScanArgs {
    /// Process id of a VM, or a memory image.
    #[arg(value_name = "PID|IMAGE", value_hint = ValueHint::FilePath)]
    pub(crate) target: String,

    /// Measure the rate of dirtied pages for this time.
    #[arg(long, value_name = "TIME", value_parser = vmtax_cli::flags::duration)]
    pub(crate) dirty: Option<Duration>,

    /// Network bandwidth for the estimate of migration time, Gb/s.
    #[arg(long, value_name = "N", default_value_t = 10.0, value_parser = positive)]
    pub(crate) bandwidth: f64,

    #[command(flatten)]
    pub(crate) backend: AccelArgs,

    #[command(flatten)]
    pub(crate) to: OutputArgs,
}

/// Save a VM's devices and memory in one file, complete or as a difference to another checkpoint.
///
/// The VM is paused during the save and resumed afterwards; a VM that was stopped before stays stopped. With --live it
/// runs while most of its memory is saved. The file appears when it is complete and synced. If another client resumes or
/// resets the VM during the pause, nothing is written (exit code 7). If vmtax is killed (SIGKILL) during the pause, a process that it
/// started resumes the VM; if vmtax is stopped (SIGSTOP, Ctrl-Z) for 10 s, that process continues it.
///
/// A checkpoint does not contain disks. To keep the state of writable disks at the same moment, use --snapshot-disks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax mem save --qmp /run/vm.qmp -o base.ckpt
  vmtax mem save --qmp /run/vm.qmp --parent base.ckpt -o monday.ckpt --zstd
  vmtax mem save --qmp /run/vm.qmp -o monday.ckpt --snapshot-disks
  vmtax mem save --qmp /run/vm.qmp -o base.ckpt --live
  vmtax mem save --qmp /run/vm.qmp -o base.ckpt --live --max-pause 200ms
  vmtax mem save --qmp /run/vm.qmp --live -o - | ssh HOST vmtax mem restore - --qmp /run/new.qmp
  vmtax mem save --image ram.img -o ram.ckpt")]
pub(crate) struct SaveArgs {
    #[command(flatten)]
    pub(crate) machine: MachineArgs,

    /// Checkpoint to write; `-` is standard output (a pipe, ssh), and the report goes to standard error.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,

    /// Save the difference to this checkpoint.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) parent: Option<PathBuf>,

    /// Compress pages with zstd where it saves space; with an optional level.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, default_missing_value = "1", require_equals = true,
        value_parser = clap::value_parser!(i32).range(1..=19))]
    pub(crate) zstd: Option<i32>,

    /// Save most of the memory while the VM runs, in passes: each pass writes the pages that changed since they were written. The
    /// VM is paused only for the last pass. This takes more time and processor time than a save of a stopped VM.
    #[arg(long, conflicts_with = "image")]
    pub(crate) live: bool,

    /// Longest pause of a live save. Passes go on until the next one would take no longer; if none does, the VM is not stopped and
    /// nothing is written (exit code 6). QEMU's device state is not part of the prediction.
    #[arg(long, value_name = "TIME", requires = "live", value_parser = vmtax_cli::flags::duration)]
    pub(crate) max_pause: Option<Duration>,

    /// Leave the VM stopped.
    #[arg(long)]
    pub(crate) stopped: bool,

    /// Preserve the disks at the moment of the pause: from then on the VM writes to new qcow2 overlays, beside the disks or
    /// in DIR (QEMU's blockdev-snapshot-sync). The checkpoint records them.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, conflicts_with = "image",
        value_hint = ValueHint::DirPath)]
    pub(crate) snapshot_disks: Option<Option<PathBuf>>,

    #[command(flatten)]
    pub(crate) work: WorkArgs,
}

/// Restore a checkpoint into a new QEMU, which continues from there, or into an image.
///
/// The new QEMU must be started with `-incoming defer` and the machine type, CPU, memory and devices of the saved one,
/// with the disks of that moment. If they differ, the differences are listed and nothing is restored (exit code 4).
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  qemu-system-x86_64 ... -incoming defer -qmp unix:/run/new.qmp,server=on,wait=off &
  vmtax mem restore monday.ckpt --qmp /run/new.qmp
  vmtax mem restore ram.ckpt --image ram.img")]
pub(crate) struct RestoreArgs {
    /// Checkpoint to restore; `-` is standard input, which is copied to the temporary folder (TMPDIR) and checked first.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) checkpoint: PathBuf,

    #[command(flatten)]
    pub(crate) machine: MachineArgs,

    /// Leave the VM stopped.
    #[arg(long)]
    pub(crate) stopped: bool,

    /// Restore into a QEMU whose CPU, devices or disks differ. The guest may crash, or damage its disks.
    #[arg(long, conflicts_with = "image")]
    pub(crate) force: bool,

    /// Output format.
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) format: OutputFormat,
}

/// Read a checkpoint and its parents, and verify every page.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax mem verify monday.ckpt")]
pub(crate) struct VerifyArgs {
    /// Checkpoint to verify; `-` is standard input.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) checkpoint: PathBuf,

    /// Output format.
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) format: OutputFormat,
}

/// Measure each page operation, in GB/s, and memcpy and a plain read in the same run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax mem bench
  vmtax mem bench --size 64 --accel model")]
pub(crate) struct MemBenchArgs {
    /// Memory to work on, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65536))]
    pub(crate) size: u64,

    /// Measurements of each operation; the median is shown.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    #[command(flatten)]
    pub(crate) backend: AccelArgs,

    #[command(flatten)]
    pub(crate) to: OutputArgs,
}

/// A VM or an image.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct MachineArgs {
    /// QEMU's monitor: the socket of its `-qmp unix:...,server=on,wait=off`.
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub(crate) qmp: Option<PathBuf>,

    /// A memory image instead of a VM.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) image: Option<PathBuf>,
}

/// Backend of page operations.
#[derive(Debug, Args)]
pub(crate) struct AccelArgs {
    /// Backend of the page operations: auto, cpu, model (a device in software), or queues of Intel DSA: dsa:/dev/dsa/wq0.0,dsa:/dev/dsa/wq1.0
    #[arg(long, value_name = "BACKEND", default_value = "auto", value_parser = AccelChoice::parse)]
    pub(crate) accel: AccelChoice,
}

/// Backend of page operations, and output format.
#[derive(Debug, Args)]
pub(crate) struct WorkArgs {
    #[command(flatten)]
    pub(crate) backend: AccelArgs,

    /// Output format.
    #[arg(long, value_enum, default_value_t = OutputFormat::Text)]
    pub(crate) format: OutputFormat,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For a terminal.
    Text,
    /// For programs; docs/json.md.
    Json,
}

impl OutputFormat {
    /// Writes `text` for people or `json` for programs.
    pub(super) fn print(
        self,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> serde_json::Value,
    ) -> anyhow::Result<()> {
        let text = match self {
            OutputFormat::Text => text(),
            OutputFormat::Json => format!("{:#}\n", json()),
        };
        vmtax_cli::output::write(None, |out| Ok(out.write_all(text.as_bytes())?))
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("use a number above 0".to_owned()),
    }
}
