//! `vmtax vpmu run`: a command in a Linux guest that has the virtual PMU, on an emulated host.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_guest::job::{Job, JobAnswer, JobOutcome, JobRequest};
use vmtax_guest::order::{PmuCounting, PmuOrder};
use vmtax_lab::{HostKind, VmLevel, VmPlan, VmSetup};
use vmtax_machine::Stop;
use vmtax_machine::programs::{self, FilesByPath};
use vmtax_report::numbers;
use vmtax_runs::lab::guest;
use vmtax_vpmu::Policy;

use super::args::VpmuRunArgs;

/// Wall-clock limit of booting the host and its guest.
const BOOT: Duration = Duration::from_secs(20 * 60);
/// Wall-clock time per time of an emulated guest, upper bound.
const SLOWER: u32 = 20;
/// Folder of the programs in the guest.
const BIN: &str = "bin";
/// The guest's first process loads modules in the order of their names.
const MODULE: &str = "modules/zz-vmtax_rdpmc.ko";

pub(super) fn run(args: &VpmuRunArgs) -> anyhow::Result<()> {
    let host = args.host.host();
    if !matches!(host, HostKind::Amd | HostKind::Intel) {
        return fail(
            Code::Usage,
            format!("--host {host}: a guest with the virtual PMU needs the host amd or intel"),
        );
    }
    let files = files(args)?;
    let (outcome, notes) = guest(
        host,
        |kernel, cache, console| VmSetup {
            plan: VmPlan {
                host,
                options: Vec::new(),
                // The watchdog would use a counter.
                levels: vec![VmLevel {
                    words: vec!["nowatchdog".to_owned()],
                    modules: Vec::new(),
                    backing: None,
                }],
                memory_mib: args.memory,
                processors: 1,
                cpus: 1,
                pmu: Some(PmuOrder {
                    amd: host == HostKind::Amd,
                    reuse: args.policy.policy() == Policy::Reuse,
                }),
            },
            kernel,
            files,
            cache,
            fresh: false,
            console,
            limit: BOOT,
            answer: args.limit.saturating_mul(SLOWER),
            profile: false,
            annotate: Vec::new(),
            stop: Stop::default(),
        },
        &JobRequest::Do(Job {
            client: args.command.clone(),
            limit_ms: u64::try_from(args.limit.as_millis()).unwrap_or(u64::MAX),
            ..Job::default()
        }),
    )?;
    for note in notes {
        writeln!(std::io::stderr(), "vmtax: {note}")?;
    }
    match outcome {
        JobAnswer::Done(outcome) => show(args.policy.policy(), &outcome),
        JobAnswer::Facts(_) | JobAnswer::Kernels(_) => {
            fail(Code::Machine, "the guest sent facts instead of the result of the command")
        }
    }
}

fn show(policy: Policy, outcome: &JobOutcome) -> anyhow::Result<()> {
    vmtax_cli::output::write(None, |out| Ok(out.write_all(&outcome.stdout)?))?;
    if outcome.problem.is_empty() {
        // perf stat prints its results there.
        let mut errors = std::io::stderr();
        errors.write_all(&outcome.stderr)?;
        if let Some(pmu) = &outcome.pmu {
            writeln!(errors, "{}", activity(policy, pmu))?;
        }
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&outcome.stderr);
    let lines = errors.lines().map(str::to_owned).collect();
    Err(CodedError::new(Code::Machine, format!("in the guest: {}", outcome.problem))
        .detailed(lines)
        .into())
}

/// What the guest's counters count: no number that perf prints there is one of a processor.
const COUNTED: &str = "vmtax: emulated processors have no counters: cycles are nanoseconds of the vCPU's thread, and every other event (instructions, branches, ...) counts the guest's CPUID instructions";

/// Activity of the virtual PMU while the command ran, in two lines.
fn activity(policy: Policy, pmu: &PmuCounting) -> String {
    let count = numbers::count;
    format!(
        "{COUNTED}\nvmtax: virtual PMU ({}): {} host events created, {} closed before the command ended; {} counter interrupts: {} delivered, {} merged, {} dropped",
        policy.name(),
        count(pmu.creates),
        count(pmu.closes),
        count(pmu.interrupts),
        count(pmu.delivered),
        count(pmu.merged),
        count(pmu.dropped)
    )
}

/// The command's program, the files of --bring, and the module.
fn files(args: &VpmuRunArgs) -> anyhow::Result<FilesByPath> {
    let mut files = FilesByPath::new();
    let first = args.command.first().map(PathBuf::from);
    for name in first.iter().chain(&args.bring) {
        let shown = name.display().to_string();
        let Some(path) = programs::find(&shown) else {
            return fail(
                Code::Input,
                format!("{shown}: no such program on this computer; install it, or give its path"),
            );
        };
        let Some(last) = name.file_name() else { continue };
        let inside = Path::new(BIN).join(last);
        if let Err(error) = programs::add(&mut files, &shown, &path, &inside) {
            return fail(Code::Input, error.to_string());
        }
    }
    if let Some(module) = &args.module {
        match fs::read(module) {
            Ok(bytes) => files.insert(MODULE.to_owned(), bytes),
            Err(error) => {
                return fail(Code::Input, format!("{}: cannot be read: {error}", module.display()));
            }
        };
    }
    Ok(files)
}
