//! Flags of `vmtax vpmu`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use vmtax_vpmu::Policy;

use crate::lab::args::HostWord;

/// Compare how a virtual PMU can use the host's counters, test its precision, and try it in a Linux guest.
///
/// Three policies count for the same guests: legacy creates a host event for every change of a guest's counter, as KVM
/// did until 5.5; reuse keeps events; mediated hands the host's counters to the guest, as KVM can since 7.0.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax vpmu bench
  vmtax vpmu bench --emulated amd,intel            measure the emulated hosts here
  vmtax vpmu bench --format json
  vmtax vpmu selftest
  vmtax vpmu module rdpmc/                         the source of a Linux guest's module
  vmtax vpmu run --module rdpmc/vmtax_rdpmc.ko -- perf stat -e cycles true

The virtual PMU is a library too, for VMMs in Rust: crates/vpmu.")]
pub(crate) struct VpmuArgs {
    #[command(subcommand)]
    pub(super) command: VpmuCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum VpmuCommand {
    Bench(BenchArgs),
    Selftest(SelftestArgs),
    Run(RunArgs),
    Module(ModuleArgs),
}

/// Show what a guest's perf costs under each policy: measured on emulated hosts, then computed.
///
/// First come events created and instructions of each operation, for a guest of a real KVM on emulated hosts: a recording
/// that vmtax brings, or a run of them. The rest is computed in virtual time: the policies over the same guests, their
/// precision, and the published tables with what each of their ratios rests on.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// Measure these emulated hosts here, separated by commas, in place of the recording. The first run on a host boots
    /// it, which takes seconds (amd) or minutes (intel).
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', value_enum)]
    pub(super) emulated: Vec<HostWord>,

    /// Measured batches of each operation on them. Memory that closed events give back comes at the kernel's next tick:
    /// with fewer batches the median under legacy is off by more than half a percent now and then.
    #[arg(long, value_name = "N", default_value_t = 11, requires = "emulated", value_parser = clap::value_parser!(u32).range(5..=100))]
    pub(super) batches: u32,

    /// Write what was measured on them to this file, in the form of the recording.
    #[arg(long, value_name = "FILE", requires = "emulated", value_hint = ValueHint::FilePath)]
    pub(super) record: Option<PathBuf>,

    /// Turns of legacy and reuse on this machine's software events, which take real time; 0 leaves them out.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=100_000))]
    pub(super) turns: u64,

    /// Output format.
    #[arg(long, value_enum, default_value_t = VpmuFormat::Text)]
    pub(super) format: VpmuFormat,
}

/// Test the gates of precision under each policy: exact counts, conserved counts, shares of samples, interrupts.
///
/// A failed check gives exit code 6.
#[derive(Debug, Args)]
pub(super) struct SelftestArgs {
    /// Output format.
    #[arg(long, value_enum, default_value_t = VpmuFormat::Text)]
    pub(super) format: VpmuFormat,
}

/// Run a command in a Linux guest that has the virtual PMU, on an emulated host.
///
/// The guest runs the distribution's kernel. Its cycles and instructions are nanoseconds of its vCPU's thread, and all
/// other events count its CPUID instructions: emulated processors have no PMU. The command's output is this command's; a last line
/// on standard error has what the virtual PMU did.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax vpmu run --module vmtax_rdpmc.ko -- perf stat -e cycles,branches true
  vmtax vpmu run --host intel --module vmtax_rdpmc.ko --bring perf --bring ./app -- sh -c 'perf record app; perf report'")]
pub(super) struct RunArgs {
    /// Which emulated host.
    #[arg(long, value_enum, default_value_t = HostWord::Amd)]
    pub(super) host: HostWord,

    /// When the host's events are created.
    #[arg(long, value_enum, default_value_t = PolicyWord::Reuse)]
    pub(super) policy: PolicyWord,

    /// The module that has the guest's kernel read counters by RDMSR, built from what `vmtax vpmu module` writes for the
    /// kernel that the guest runs.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "without_module")]
    pub(super) module: Option<PathBuf>,

    /// Go without the module: RDPMC then faults in the guest's kernel (intel) or reads zero (amd).
    #[arg(long, conflicts_with = "module")]
    pub(super) without_module: bool,

    /// A program that the command starts, by its path or as found on the PATH, with its libraries; or any file. They are
    /// in /bin there. Repeatable.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) bring: Vec<PathBuf>,

    /// Memory of the guest, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(128..=2048))]
    pub(super) memory: u32,

    /// How long the command may take in the guest.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = vmtax_cli::flags::duration)]
    pub(super) limit: Duration,

    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

/// Write the source of the module that a Linux guest needs, to be built in the guest.
///
/// KVM sends no RDPMC to a VMM, and Linux's perf reads its counters by it: the module reads by RDMSR instead.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax vpmu module rdpmc/ && make -C /lib/modules/$(uname -r)/build M=$PWD/rdpmc modules && insmod rdpmc/vmtax_rdpmc.ko")]
pub(super) struct ModuleArgs {
    /// The folder for it; it is made if there is none.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(super) folder: PathBuf,
}

/// `--policy` of a VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PolicyWord {
    /// Anew at each change.
    Legacy,
    /// Once.
    Reuse,
}

impl PolicyWord {
    pub(super) fn policy(self) -> Policy {
        match self {
            PolicyWord::Legacy => Policy::Legacy,
            PolicyWord::Reuse => Policy::Reuse,
        }
    }
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum VpmuFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

impl VpmuFormat {
    /// Writes `text` for people or `json` for programs.
    pub(super) fn print(
        self,
        text: impl FnOnce() -> String,
        json: impl FnOnce() -> serde_json::Value,
    ) -> anyhow::Result<()> {
        let text = match self {
            VpmuFormat::Text => text(),
            VpmuFormat::Json => format!("{:#}\n", json()),
        };
        vmtax_cli::output::write(None, |out| Ok(out.write_all(text.as_bytes())?))
    }
}
