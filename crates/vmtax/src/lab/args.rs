//! Flags of `vmtax lab`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use vmtax_cli::exit::{Code, fail};
use vmtax_lab::network::NetworkSetup;
use vmtax_lab::paging::ProgramGuest;
use vmtax_lab::suite::{Definition, SUITES, Suite};
use vmtax_lab::{Ability, HostKind, HostSetup, OF_ALL_KERNELS, TSC_KHZ};
use vmtax_machine::Stop;
use vmtax_machine::kernel::{Architecture, Kernel};
use vmtax_runs::kernels;

use super::remedy::RemedyArgs;
use crate::flags::{OutputArgs, TableFormat};
use crate::report::ReportFormat;

/// Measure KVM on an emulated host: exact exit counts and path lengths, without virtualization hardware.
#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) verb: LabVerb,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum LabVerb {
    Run(Box<LabRunArgs>),
    Compare(LabCompareArgs),
    Series(Box<SeriesArgs>),
    BisectStep(Box<BisectArgs>),
    Remedy(Box<RemedyArgs>),
    List(LabListArgs),
    Layout(LayoutArgs),
}

/// The host of VMs of QEMU.
#[derive(Debug, Args)]
pub(crate) struct VmHostArgs {
    /// The kernel of host and VMs, as for `vmtax lab run`.
    #[arg(long, value_name = "IMAGE", default_value = "distribution", value_hint = ValueHint::FilePath)]
    kernel: PathBuf,

    /// The folder with the modules of a kernel image.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    modules: Option<PathBuf>,

    /// Boot the host again, and replace its saved state.
    #[arg(long)]
    fresh: bool,

    /// Wall-clock timeout of the host's start, and of each VM with its load.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = vmtax_cli::flags::duration)]
    limit: Duration,
}

impl VmHostArgs {
    /// The host with this kernel, or the one that was asked for, as soon as there are a cache and a file for its console.
    pub(super) fn setup(
        &self,
        kernel: Option<&str>,
    ) -> anyhow::Result<impl FnOnce(PathBuf, PathBuf) -> NetworkSetup> {
        let kernel = self.kernel(Architecture::Amd64, kernel)?;
        let (fresh, limit) = (self.fresh, self.limit);
        Ok(move |cache, console| NetworkSetup {
            host: HostKind::Amd,
            profile: false,
            annotate: Vec::new(),
            kernel,
            cache,
            fresh,
            console,
            limit,
            stop: Stop::default(),
        })
    }

    /// This kernel, or the one that was asked for.
    fn kernel(&self, architecture: Architecture, name: Option<&str>) -> anyhow::Result<Kernel> {
        let (name, modules) = match name {
            Some(name) => (Path::new(name), &[][..]),
            None => (self.kernel.as_path(), self.modules.as_slice()),
        };
        kernels::named(architecture, name, &mut modules.iter())
    }

    /// The same kernel on a host of `vmtax lab run`, or this one.
    pub(super) fn lab(
        &self,
        host: HostKind,
        kernel: Option<&str>,
    ) -> anyhow::Result<impl FnOnce(PathBuf, PathBuf) -> HostSetup> {
        let kernel = self.kernel(host.architecture(), kernel)?;
        let (fresh, limit) = (self.fresh, self.limit);
        Ok(move |cache, console| HostSetup {
            fresh,
            limit,
            ..HostSetup::plain(host, kernel, cache, console)
        })
    }
}

/// Boot an emulated host, or restore its saved state, run suites of operations in guests of its KVM, and report.
///
/// A real Linux kernel with its real KVM runs under an emulator: QEMU's (an AMD processor with SVM) or Bochs (an Intel
/// processor with VMX, or an AMD processor). Each operation runs many times in a bare guest. Counts and path lengths are exact; times are the
/// emulator's and do not reflect hardware.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax lab run                                    distribution kernel, AMD, L1
  vmtax lab run --nested -o run                    L1 and L2, kept as a run
  vmtax lab run --kernel bzImage --modules lib/modules/6.9 --budget kvm.toml
  vmtax lab run --operation cpuid --observe 'perf kvm stat record -a -o /dev/null'
  vmtax lab run --flat vmexit.flat --append cpuid -o run
  vmtax lab run --host intel --nested --option kvm_intel.enable_shadow_vmcs=0")]
pub(crate) struct LabRunArgs {
    /// Emulated host.
    #[arg(long, value_enum, default_value_t = HostWord::Amd)]
    pub(crate) host: HostWord,

    /// Suites, separated by commas; `vmtax lab list` lists them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "primitives", value_parser = suite)]
    pub(crate) suite: Vec<&'static Suite>,

    /// Only these operations, of any suite, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = operation)]
    pub(crate) operation: Vec<&'static Definition>,

    /// Operations of your own, in a TOML file with assembly text or bytes (docs/lab-operations.md); no suite runs then unless --operation names others.
    #[arg(long, value_name = "FILE", conflicts_with = "suite", value_hint = ValueHint::FilePath)]
    pub(crate) operation_file: Option<PathBuf>,

    /// In --suite paging, run this static x86-64 Linux program with its arguments instead of the patterns; words are split at spaces. If the program
    /// contains two marker instructions (SSC marks 0x111 and 0x222, as for Intel's SDE), only the part between them counts.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["operation", "operation_file", "batches"])]
    pub(crate) program: Option<String>,

    /// Guest in which --program runs: with nothing but the program, or with Linux (the host's kernel) and the program as a process.
    #[arg(long, value_enum, default_value_t = GuestWord::Bare, requires = "program", conflicts_with_all = ["nested", "observe"])]
    pub(crate) guest: GuestWord,

    /// Run this multiboot program, such as a .flat file of kvm-unit-tests, as a guest instead of operations. Its exits are recorded; its
    /// output and verdict are printed, and with -o kept. A failed test gives exit code 6.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
        conflicts_with_all = ["suite", "operation", "operation_file", "program", "nested", "batches", "profile", "observe", "budget"])]
    pub(crate) flat: Option<PathBuf>,

    /// Arguments of the program of --flat, as QEMU's -append.
    #[arg(long, value_name = "ARGUMENTS", requires = "flat", allow_hyphen_values = true)]
    pub(crate) append: Option<String>,

    /// Also measure at L2: in a guest of a Linux guest that runs KVM.
    #[arg(long)]
    pub(crate) nested: bool,

    /// Run operations in protected VMs of pKVM, whose memory the host cannot access. On the arm64 host, with Linux 7.3; sets
    /// kvm-arm.mode=protected, and without this flag VMs of that mode are ordinary ones.
    #[arg(long, conflicts_with_all = ["nested", "observe", "operation_file", "flat"])]
    pub(crate) protected: bool,

    /// The kernel: an image (bzImage or vmlinux), `host` for the running one, `distribution`, or a version in
    /// Debian's archive (6.12, or debian:6.12). Repeatable: each
    /// kernel gets a run, and the report compares them, one column per kernel.
    #[arg(long, value_name = "IMAGE", default_value = "distribution", value_hint = ValueHint::FilePath)]
    pub(crate) kernel: Vec<PathBuf>,

    /// The folder with the modules of a kernel image; once for each image.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) modules: Vec<PathBuf>,

    /// Another kernel for Linux guests of the arm64 host, an image that has all drivers in it (crates/lab/guest-kernel.sh makes one).
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["nested", "profile"], value_hint = ValueHint::FilePath)]
    pub(crate) guest_kernel: Option<PathBuf>,

    /// A parameter of a KVM module (kvm_amd.npt=0), mitigations=VALUE, randomize_kstack_offset=VALUE, preempt=VALUE or tsc_early_khz=KHZ; repeatable.
    #[arg(long, value_name = "NAME=VALUE", value_parser = option)]
    pub(crate) option: Vec<String>,

    /// Measured batches of each operation.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(5..=100))]
    pub(crate) batches: u32,

    /// In --suite paging, scatter the frames of -24g operations over this many MiB of guest-physical memory instead of 24 GiB.
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(32..=61_440))]
    pub(crate) scattered: Option<u32>,

    /// In --suite paging, give -24g operations the frames of a process; FILE is the output of `vmtax lab layout PID`.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "scattered")]
    pub(crate) layout: Option<PathBuf>,

    /// Record all instructions that the emulated host executes, as a call tree of each operation.
    #[arg(long)]
    pub(crate) profile: bool,

    /// Debug information of the kernel (vmlinux) or of one of its modules (kvm.ko), for source lines in call trees. Repeatable.
    #[arg(long, value_name = "FILE", requires = "profile", value_hint = ValueHint::FilePath)]
    pub(crate) debug_info: Vec<PathBuf>,

    /// Count each instruction of this function of a kernel, in call trees and below the functions. Repeatable.
    #[arg(long, value_name = "FUNCTION", requires = "profile")]
    pub(crate) annotate: Vec<String>,

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

    /// Processors of the emulated AMD host, with --suite start: its paths then have instructions of all processors. (With --observe, for tests of observers:
    /// cycles are not instructions.)
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with_all = ["budget", "nested"], value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) processors: u32,

    /// Additional memory of the host, in MiB; for observers that need more.
    #[arg(long, value_name = "MIB", hide = true, default_value_t = 0, requires = "observe", value_parser = clap::value_parser!(u32).range(0..=65536))]
    pub(crate) memory: u32,

    /// Check the run against this budget; a number above it gives exit code 6.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) budget: Option<PathBuf>,

    /// Also give exit code 6 for a number below the budget.
    #[arg(long, requires = "budget")]
    pub(crate) exact: bool,

    /// Also write the result of the budget check to this file, as JUnit XML with a test for each operation.
    #[arg(long, value_name = "FILE", requires = "budget", conflicts_with = "bless", value_hint = ValueHint::FilePath)]
    pub(crate) junit: Option<PathBuf>,

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
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    pub(crate) format: ReportFormat,
}

/// Compare runs of different kernels, options or observers.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax lab compare run-6.1 run-6.9")]
pub(crate) struct LabCompareArgs {
    /// Runs of the lab; the first is the baseline.
    #[arg(value_name = "RUN", required = true, num_args = 2.., value_hint = ValueHint::DirPath)]
    pub(crate) runs: Vec<PathBuf>,

    #[command(flatten)]
    pub(crate) to: OutputArgs,
}

/// Measure a series of kernels, or of options, and show what changes from one to the next.
///
/// Each kernel gets a run on each host, and with each combination of the options to vary, in a subfolder. Existing runs are not repeated, so a series that
/// was interrupted continues, and kernels can be added. The folder also gets index.html, series.csv and series.json.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax lab series --kernel 6.1,6.12,7.3 --nested -o series              versions in Debian's archive
  vmtax lab series --kernel debian:all --host amd,intel --nested --profile -o series
  vmtax lab series --kernel old/bzImage,new/bzImage --modules old/lib --modules new/lib -o series
  vmtax lab series --kernel 6.1 --vary kvm_amd.npt=0,1 --vary mitigations=off,auto -o options
  vmtax lab series --tree linux --kernel v6.8,v6.9 --build 'make -j4 bzImage modules &&
    cp arch/x86/boot/bzImage $OUT/vmlinuz && make INSTALL_MOD_PATH=$OUT/modules modules_install' -o series
  vmtax lab series --no-run --nested -o series                           what is there")]
pub(crate) struct SeriesArgs {
    /// Kernels, separated by commas: a version in Debian's archive (6.12), `debian:all` for the newest of each version there, `distribution`, `host`, or
    /// an image. With --tree, commits or tags of it.
    #[arg(long, value_name = "KERNELS", value_delimiter = ',', required_unless_present = "no_run", value_hint = ValueHint::FilePath)]
    pub(crate) kernel: Vec<PathBuf>,

    /// The folder with the modules of a kernel image; once for each image.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) modules: Vec<PathBuf>,

    /// A git tree whose commits --kernel names; --build builds each.
    #[arg(long, value_name = "DIR", requires = "build", conflicts_with = "modules", value_hint = ValueHint::DirPath)]
    pub(crate) tree: Option<PathBuf>,

    /// Shell command that builds a commit in its folder, and leaves $OUT/vmlinuz and $OUT/modules.
    #[arg(long, value_name = "COMMAND", requires = "tree")]
    pub(crate) build: Option<String>,

    /// Emulated hosts, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "amd")]
    pub(crate) host: Vec<HostWord>,

    /// Suites, separated by commas; `vmtax lab list` lists them.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "primitives", value_parser = suite)]
    pub(crate) suite: Vec<&'static Suite>,

    /// Only these operations, of any suite, separated by commas.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = operation)]
    pub(crate) operation: Vec<&'static Definition>,

    /// Also measure at L2: in a guest of a Linux guest that runs KVM.
    #[arg(long)]
    pub(crate) nested: bool,

    /// Record all instructions that the emulated host executes: changes are then attributed to functions.
    #[arg(long)]
    pub(crate) profile: bool,

    /// A parameter of a KVM module (kvm_amd.npt=0), mitigations=VALUE, randomize_kstack_offset=VALUE or preempt=VALUE, for all runs; repeatable.
    #[arg(long, value_name = "NAME=VALUE", value_parser = option)]
    pub(crate) option: Vec<String>,

    /// Measure with each of these values of a parameter; with several --vary, with each combination.
    #[arg(long, value_name = "NAME=VALUE,...", value_parser = varied)]
    pub(crate) vary: Vec<(String, Vec<String>)>,

    /// Processors of the emulated AMD host, with --suite start, as for `vmtax lab run`.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "nested", value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) processors: u32,

    /// Measured batches of each operation.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(5..=100))]
    pub(crate) batches: u32,

    /// Wall-clock timeout of one emulated host.
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = vmtax_cli::flags::duration)]
    pub(crate) limit: Duration,

    /// Run nothing; show the existing runs.
    #[arg(long)]
    pub(crate) no_run: bool,

    /// The folder of the series.
    #[arg(short, long, value_name = "FOLDER", required = true, value_hint = ValueHint::DirPath)]
    pub(crate) output: PathBuf,

    /// Output format of the standard output.
    #[arg(long, value_enum, default_value_t = TableFormat::Text)]
    pub(crate) format: TableFormat,
}

/// A step of `git bisect run`: measure one operation and report the kernel as good or bad.
///
/// Exit codes are those that git expects: 0 good, 1 bad, 125 cannot be measured (it does not build, boot or run).
#[derive(Debug, Args)]
#[command(after_help = "Example:
  git bisect start v6.9 v6.8
  git bisect run vmtax lab bisect-step --operation cpuid --level 2 --between 27807,29474 \\
    --build 'make -j4 bzImage modules' --kernel arch/x86/boot/bzImage --modules .")]
pub(crate) struct BisectArgs {
    /// The operation; `vmtax lab list` lists them.
    #[arg(long, value_name = "NAME", value_parser = operation)]
    pub(crate) operation: &'static Definition,

    /// 1, or 2 for a guest of a Linux guest.
    #[arg(long, value_name = "LEVEL", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) level: u8,

    /// Metric to compare.
    #[arg(long, value_enum, default_value_t = Metric::Path)]
    pub(crate) metric: Metric,

    /// Values of a good and of a bad kernel; a kernel is classified by the nearer one.
    #[arg(long, value_name = "GOOD,BAD", value_parser = between)]
    pub(crate) between: (f64, f64),

    /// Shell command to run first.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) build: Option<String>,

    /// Emulated host.
    #[arg(long, value_enum, default_value_t = HostWord::Amd)]
    pub(crate) host: HostWord,

    /// The kernel, as of `vmtax lab run`.
    #[arg(long, value_name = "IMAGE", default_value = "distribution", value_hint = ValueHint::FilePath)]
    pub(crate) kernel: PathBuf,

    /// The folder with its modules.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) modules: Option<PathBuf>,

    /// A parameter of a KVM module (kvm_amd.npt=0), mitigations=VALUE, randomize_kstack_offset=VALUE or preempt=VALUE; repeatable.
    #[arg(long, value_name = "NAME=VALUE", value_parser = option)]
    pub(crate) option: Vec<String>,

    /// Wall-clock timeout of the emulated host.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = vmtax_cli::flags::duration)]
    pub(crate) limit: Duration,
}

/// `--metric` of a bisection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Metric {
    /// Instructions of one operation.
    Path,
    /// Exits of one operation.
    Exits,
}

/// List suites and operations.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  vmtax lab list
  vmtax lab list --format json")]
pub(crate) struct LabListArgs {
    #[command(flatten)]
    pub(crate) to: OutputArgs,
}

/// Write which guest-physical pages a process has, for `vmtax lab run --layout`. Needs root in the VM of the process.
#[derive(Debug, Args)]
pub(crate) struct LayoutArgs {
    /// The process.
    #[arg(value_name = "PID")]
    pub(crate) pid: u32,

    /// Output file. [default: standard output]
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

/// `--host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostWord {
    /// QEMU TCG with SVM.
    Amd,
    /// Bochs with SVM and next-RIP save, which QEMU TCG lacks.
    AmdBochs,
    /// Bochs with VMX.
    Intel,
    /// QEMU TCG of arm64 with EL2; operations at L1.
    Arm,
    /// QEMU with this computer's KVM: exits are real; cycles are not instructions.
    Kvm,
}

/// `--guest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GuestWord {
    /// A bare guest: the VMM carries out the few system calls of a program's start.
    Bare,
    /// A Linux guest: the program is a process.
    Linux,
}

impl GuestWord {
    pub(crate) fn guest(self) -> ProgramGuest {
        match self {
            GuestWord::Bare => ProgramGuest::Bare,
            GuestWord::Linux => ProgramGuest::Linux,
        }
    }
}

impl HostWord {
    pub(crate) fn host(self) -> HostKind {
        match self {
            HostWord::Amd => HostKind::Amd,
            HostWord::AmdBochs => HostKind::AmdBochs,
            HostWord::Intel => HostKind::Intel,
            HostWord::Arm => HostKind::Arm,
            HostWord::Kvm => HostKind::Kvm,
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

/// Refuses flags for what a host cannot do.
pub(super) fn able(host: HostKind, asked: &[(bool, &str, Ability)]) -> anyhow::Result<()> {
    let Some((_, flag, ability)) = asked.iter().find(|one| one.0 && !host.can(one.2)) else {
        return Ok(());
    };
    let able = HostKind::ALL.iter().filter(|host| host.can(*ability)).map(|host| host.name());
    let able = able.collect::<Vec<_>>().join(", ");
    fail(Code::Usage, format!("{flag}: cannot be had on --host {host}; use one of {able}"))
}

/// Refuses several processors where they cannot be had.
pub(super) fn countable(
    processors: u32,
    hosts: &[HostKind],
    all: impl IntoIterator<Item = &'static Definition>,
) -> anyhow::Result<()> {
    if processors == 1 {
        return Ok(());
    }
    if !all.into_iter().all(Definition::is_for_several) {
        return fail(
            Code::Usage,
            "--processors: only steps of a VM's life and first accesses to memory are measured on several; give --suite start, resume or memory",
        );
    }
    if hosts.iter().any(|host| *host != HostKind::Amd) {
        return fail(Code::Usage, "--processors: only the AMD host has several");
    }
    Ok(())
}

/// Operations that are chosen: these, or those of the suites.
pub(super) fn chosen(
    suites: &[&'static Suite],
    operations: &[&'static Definition],
) -> Vec<&'static Definition> {
    match operations {
        [] => suites.iter().flat_map(|suite| suite.operations).collect(),
        some => some.to_vec(),
    }
}

/// Refuses suites and operations that a host does not have, or not with these flags: they would be left out without a word.
pub(super) fn measurable(
    host: HostKind,
    (profile, nested): (bool, bool),
    (suites, operations): (&[&'static Suite], &[&'static Definition]),
) -> anyhow::Result<()> {
    let is_on = |one: &Definition, host: HostKind| one.is_for(host, 1) || one.is_for(host, 2);
    let of_suite = |suite: &&'static Suite| ("--suite", suite.name, suite.operations);
    let of_operation =
        |one: &&'static Definition| ("--operation", one.name, std::slice::from_ref(*one));
    let named: Vec<(&str, &str, &[Definition])> = match operations {
        [] => suites.iter().map(of_suite).collect(),
        some => some.iter().map(of_operation).collect(),
    };
    let guests: BTreeSet<&str> =
        named.iter().flat_map(|(.., all)| *all).filter_map(Definition::linux_guest).collect();
    if guests.len() > 1 {
        let guests: Vec<&str> = guests.into_iter().collect();
        let message = format!(
            "--suite, --operation: a run has one Linux guest, and these need several: for {}; run them one after the other",
            guests.join(", for ")
        );
        return fail(Code::Usage, message);
    }
    for (flag, name, all) in named {
        let any = |host: HostKind| all.iter().any(|one| is_on(one, host));
        if !any(host) {
            let hosts: Vec<&str> =
                HostKind::ALL.into_iter().filter(|host| any(*host)).map(HostKind::name).collect();
            let hosts = hosts.join(", ");
            let message =
                format!("{flag} {name}: cannot be measured on --host {host}; use {hosts}");
            return fail(Code::Usage, message);
        }
        let lacks_l2 =
            |one: &Definition| one.step().is_some() && one.is_for(host, 1) && !one.is_for(host, 2);
        if nested && all.iter().any(lacks_l2) {
            let message =
                format!("--nested: {flag} {name} has VMs of a guest's on --host amd alone");
            return fail(Code::Usage, message);
        }
        if profile
            && !matches!(host, HostKind::Amd | HostKind::Arm)
            && all.iter().any(|one| one.step().is_some())
        {
            let message = format!(
                "--profile: has call trees of {flag} {name} on --host amd and arm alone: Bochs records nothing outside of guests' marks; the report names the functions that wait"
            );
            return fail(Code::Usage, message);
        }
    }
    Ok(())
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
    let known =
        ["kvm", "kvm_amd", "kvm_intel", "kvm_arm"].contains(&module.replace('-', "_").as_str());
    let is_parameter = known && rest.contains('=');
    let is_of_kernels = |name: &str| OF_ALL_KERNELS.contains(&name) || name == TSC_KHZ;
    let of_kernels = text.split_once('=').is_some_and(|(name, _)| is_of_kernels(name));
    if (is_parameter || of_kernels) && text.chars().all(plain) {
        return Ok(text.to_owned());
    }
    let of_all = OF_ALL_KERNELS.map(|name| format!("{name}=VALUE")).join(", ");
    Err(format!(
        "use kvm.NAME=VALUE, kvm_amd.NAME=VALUE, kvm_intel.NAME=VALUE, kvm-arm.NAME=VALUE, {of_all} or {TSC_KHZ}=KHZ"
    ))
}

/// `kvm_amd.npt=0,1`: a name and its values.
fn varied(text: &str) -> Result<(String, Vec<String>), String> {
    let text = option(text)?;
    let (name, values) = text.split_once('=').unwrap_or_default();
    let values: Vec<String> = values.split(',').map(str::to_owned).collect();
    if values.len() < 2 || values.iter().any(String::is_empty) {
        return Err("give at least two values, separated by commas".to_owned());
    }
    Ok((name.to_owned(), values))
}

/// `27807,29474`: two different numbers.
fn between(text: &str) -> Result<(f64, f64), String> {
    let number =
        |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
    let pair = text.split_once(',').and_then(|(good, bad)| Some((number(good)?, number(bad)?)));
    let pair = pair.filter(|(good, bad)| good != bad);
    pair.ok_or_else(|| {
        "give two different numbers from 0 on: of a good kernel, and of a bad one".to_owned()
    })
}
