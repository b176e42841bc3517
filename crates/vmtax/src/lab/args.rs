//! Flags of `vmtax lab`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use vmtax_lab::Host;
use vmtax_lab::suite::{Definition, SUITES, Suite};

use crate::flags::OutputArgs;
use crate::report::Format;

/// Measure KVM on an emulated host: exact exit counts and path lengths, without virtualization hardware.
#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) verb: LabVerb,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum LabVerb {
    Run(Box<RunArgs>),
    Compare(CompareArgs),
    List(ListArgs),
}

/// Boot an emulated host, or restore its saved state, run suites of operations in guests of its KVM, and report.
///
/// A real Linux kernel with its real KVM runs under an emulator: QEMU's (an AMD processor with SVM) or Bochs (an Intel
/// processor with VMX). Each operation runs many times in a bare guest. Counts and path lengths are exact; times are the
/// emulator's and do not reflect hardware.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax lab run                                    distribution kernel, AMD, L1
  vmtax lab run --nested -o run                    L1 and L2, kept as a run
  vmtax lab run --kernel bzImage --modules lib/modules/6.9 --budget kvm.toml
  vmtax lab run --operation cpuid --observe 'perf kvm stat record -a -o /dev/null'
  vmtax lab run --host intel --nested --option kvm_intel.enable_shadow_vmcs=0")]
pub(crate) struct RunArgs {
    /// Emulated host.
    #[arg(long, value_enum, default_value_t = HostWord::Amd)]
    pub(crate) host: HostWord,

    /// Suites, separated by commas; `vmtax lab list` lists them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "primitives", value_parser = suite)]
    pub(crate) suite: Vec<&'static Suite>,

    /// Only these operations, of any suite, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = operation)]
    pub(crate) operation: Vec<&'static Definition>,

    /// Also measure at L2: in a guest of a Linux guest that runs KVM.
    #[arg(long)]
    pub(crate) nested: bool,

    /// The kernel: an image (bzImage or vmlinux), `host` for the running one, `distribution`, or `debian:6.12` for a version in
    /// Debian's archive. Repeatable: each
    /// kernel gets a run, and the report compares them, one column per kernel.
    #[arg(long, value_name = "IMAGE", default_value = "distribution", value_hint = ValueHint::FilePath)]
    pub(crate) kernel: Vec<PathBuf>,

    /// The folder with the modules of a kernel image; once for each image.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) modules: Vec<PathBuf>,

    /// A parameter of a KVM module, such as kvm_amd.npt=0; repeatable.
    #[arg(long, value_name = "MODULE.NAME=VALUE", value_parser = option)]
    pub(crate) option: Vec<String>,

    /// Measured batches of each operation.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(5..=100))]
    pub(crate) batches: u32,

    /// Record all instructions that the emulated host executes, as a call tree of each operation.
    #[arg(long)]
    pub(crate) profile: bool,

    /// Arrangement of call trees: handlers under the guest instruction that caused the exit, or one tree per level.
    #[arg(long, value_enum, default_value_t = Arrangement::Cause, requires = "profile")]
    pub(crate) by: Arrangement,

    /// Copy this program into the emulated host and run it beside the suite; path lengths then include its overhead. Words
    /// are split at spaces. Files that it writes to its folder are copied to RUN/observer.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) observe: Option<String>,

    /// Another file that the observer needs: a script in the current folder, a program that it starts (bpftrace needs
    /// /bin/sh). Repeatable.
    #[arg(long, value_name = "FILE", requires = "observe", value_hint = ValueHint::FilePath)]
    pub(crate) bring: Vec<PathBuf>,

    /// Processors of an emulated AMD host; for tests of observers: with several, cycles are not instructions.
    #[arg(long, value_name = "N", hide = true, default_value_t = 1, requires = "observe", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) processors: u32,

    /// Additional memory of the host, in MiB; for observers that need more.
    #[arg(long, value_name = "MIB", hide = true, default_value_t = 0, requires = "observe", value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub(crate) memory: u32,

    /// Check the run against this budget; a violation gives exit code 6.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) budget: Option<PathBuf>,

    /// Write the budget from this run.
    #[arg(long, requires = "budget")]
    pub(crate) bless: bool,

    /// Boot again, and replace the saved state.
    #[arg(long)]
    pub(crate) fresh: bool,

    /// Wall-clock timeout of the emulated host.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = vmtax_cli::flags::duration)]
    pub(crate) limit: Duration,

    /// Keep the run in this folder; with several kernels, in a subfolder for each.
    #[arg(short, long, value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) output: Option<PathBuf>,

    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

/// Compare runs of different kernels, options or observers.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax lab compare run-6.1 run-6.9")]
pub(crate) struct CompareArgs {
    /// Runs of the lab; the first is the baseline.
    #[arg(value_name = "RUN", required = true, num_args = 2.., value_hint = ValueHint::DirPath)]
    pub(crate) runs: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) to: OutputArgs,
}

/// List suites and operations.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax lab list")]
pub(crate) struct ListArgs {}

/// `--host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostWord {
    /// QEMU TCG with SVM.
    Amd,
    /// Bochs with VMX.
    Intel,
    /// QEMU with this computer's KVM: exits are real; cycles are not instructions.
    Kvm,
}

impl HostWord {
    pub(crate) fn host(self) -> Host {
        match self {
            HostWord::Amd => Host::Amd,
            HostWord::Intel => Host::Intel,
            HostWord::Kvm => Host::Kvm,
        }
    }
}

/// `--by` of call trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arrangement {
    /// By the guest instruction that caused the exit.
    Cause,
    /// One tree per level.
    Level,
}

fn suite(name: &str) -> Result<&'static Suite, String> {
    let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    Suite::named(name).ok_or_else(|| format!("use one of {}", names.join(", ")))
}

fn operation(name: &str) -> Result<&'static Definition, String> {
    vmtax_lab::suite::operation(name).ok_or_else(|| "`vmtax lab list` lists them".to_owned())
}

fn option(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '=' | ',');
    let (module, rest) = text.split_once('.').unwrap_or_default();
    let known = ["kvm", "kvm_amd", "kvm_intel"].contains(&module.replace('-', "_").as_str());
    if known && rest.contains('=') && text.chars().all(plain) {
        return Ok(text.to_owned());
    }
    Err("use kvm.NAME=VALUE, kvm_amd.NAME=VALUE or kvm_intel.NAME=VALUE".to_owned())
}
