//! Flags of `vmtax vpmu`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum, ValueHint};
use vmtax_vpmu::Policy;

use crate::flags::OutputArgs;
use crate::lab::args::HostWord;

/// Compare how a virtual PMU can use the host's counters, test its precision, and try it in a Linux guest.
///
/// There are three policies: legacy creates a host event for every change of a guest's counter, as KVM did until 5.5; reuse
/// keeps events; mediated gives the host's counters to the guest, as KVM can since 7.0.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax vpmu bench
  vmtax vpmu bench --emulated amd,intel            measure the emulated hosts here
  vmtax vpmu bench --kvm debian:6.1,debian:7.3     KVM's own virtual PMU on arm64
  vmtax vpmu bench --format json
  vmtax vpmu selftest
  vmtax vpmu module rdpmc/                         source of the guest's module
  vmtax vpmu run --module rdpmc/vmtax_rdpmc.ko --bring true -- perf stat -e cycles true

VMMs in Rust can use the virtual PMU as a library: crates/vpmu.")]
pub(crate) struct VpmuArgs {
    #[command(subcommand)]
    pub(super) command: VpmuCommand,
}

#[derive(Debug, Subcommand)]
pub(super) enum VpmuCommand {
    Bench(VpmuBenchArgs),
    Selftest(SelftestArgs),
    Run(VpmuRunArgs),
    Module(ModuleArgs),
}

/// Show what a guest's perf costs under each policy: measured on emulated hosts, then computed.
///
/// The first tables show the events created and the instructions executed for each operation of a guest of KVM on emulated
/// hosts, then those of KVM's own virtual PMU on arm64, each from a recording that is part of vmtax, or measured now with --emulated
/// and --kvm. One table has published rows beside measured and computed ones. The other tables are computed in virtual
/// time: the policies with the same guests, and their precision.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("measures").args(["emulated", "kvm"]).multiple(true))]
pub(super) struct VpmuBenchArgs {
    /// Measure on these emulated hosts instead of showing the recording; separated by commas. The first run on a host boots
    /// it, which takes seconds (amd) or minutes (intel).
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', value_enum)]
    pub(super) emulated: Vec<HostWord>,

    /// Measure KVM's own virtual PMU on the emulated arm64 host with these kernels instead of showing the recording; separated by
    /// commas, each as for `vmtax lab run --kernel`.
    #[arg(long, value_name = "KERNELS", value_delimiter = ',')]
    pub(super) kvm: Vec<PathBuf>,

    /// Measured batches of each operation. The kernel frees the memory of closed events at its next tick, so with fewer batches
    /// the median under legacy may differ by more than half a percent between runs.
    #[arg(long, value_name = "N", default_value_t = 11, requires = "measures", value_parser = clap::value_parser!(u32).range(5..=100))]
    pub(super) batches: u32,

    /// Write the measurements to this file, in the format of the recording: those of --emulated or those of --kvm.
    #[arg(long, value_name = "FILE", requires = "measures", value_hint = ValueHint::FilePath)]
    pub(super) record: Option<PathBuf>,

    /// Alternating turns of legacy and reuse on this machine's software events, measured in real time; 0 skips this.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=100_000))]
    pub(super) turns: u64,

    #[command(flatten)]
    pub(super) to: OutputArgs,
}

/// Test the gates of precision under each policy: exact counts, conserved counts, shares of samples, interrupts.
///
/// A failed check gives exit code 6.
#[derive(Debug, Args)]
pub(super) struct SelftestArgs {
    #[command(flatten)]
    pub(super) to: OutputArgs,
}

/// Run a command in a Linux guest that has the virtual PMU, on an emulated host.
///
/// The guest runs the distribution's kernel. Emulated processors have no PMU: its cycles and instructions count nanoseconds of
/// the vCPU's thread, and all other events count its CPUID instructions. The command's output is passed through; the last line
/// on standard error shows the activity of the virtual PMU.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax vpmu run --module vmtax_rdpmc.ko -- perf stat -e cycles,branches true
  vmtax vpmu run --host intel --module vmtax_rdpmc.ko --bring perf --bring ./app -- sh -c 'perf record app; perf report'")]
pub(super) struct VpmuRunArgs {
    /// Emulated host.
    #[arg(long, value_enum, default_value_t = HostWord::Amd)]
    pub(super) host: HostWord,

    /// Policy of the virtual PMU.
    #[arg(long, value_enum, default_value_t = PolicyWord::Reuse)]
    pub(super) policy: PolicyWord,

    /// The guest's module, built from the source that `vmtax vpmu module` writes, for the guest's kernel. With it the kernel
    /// reads counters by RDMSR.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "without_module")]
    pub(super) module: Option<PathBuf>,

    /// Run without the module: RDPMC then faults in the guest's kernel (intel) or reads zero (amd).
    #[arg(long, conflicts_with = "module")]
    pub(super) without_module: bool,

    /// Copy this program and its libraries, or this file, to /bin of the guest: a path, or a name to find in PATH. Repeatable.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(super) bring: Vec<PathBuf>,

    /// Memory of the guest, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(128..=2048))]
    pub(super) memory: u32,

    /// Timeout of the command, in time of the guest.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = vmtax_cli::flags::duration)]
    pub(super) limit: Duration,

    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(super) command: Vec<String>,
}

/// Write the source of the module that a Linux guest needs, to be built in the guest.
///
/// Linux reads counters by RDPMC, which KVM does not forward to a VMM. The module makes the guest read them by RDMSR.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax vpmu module rdpmc/ && make -C /lib/modules/$(uname -r)/build M=$PWD/rdpmc modules && insmod rdpmc/vmtax_rdpmc.ko")]
pub(super) struct ModuleArgs {
    /// Folder to write to; it is created if needed.
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(super) folder: PathBuf,
}

/// `--policy` of a VMM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum PolicyWord {
    /// Create a host event at each change of a counter.
    Legacy,
    /// Create host events once.
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
