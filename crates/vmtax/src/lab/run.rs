//! `vmtax lab run`: an emulated host -> a run and its report.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use vmtax_analyse::Ledger;
use vmtax_cli::exit::{Code, CodedError, fail, say, say_more};
use vmtax_cli::output;
use vmtax_lab::paging::SimulatedProgram;
use vmtax_lab::program::ProgramImage;
use vmtax_lab::suite::{self, Definition, Suite};
use vmtax_lab::{Ability, LabPlan, PROTECTED_MODE};
use vmtax_machine::kernel::Kernel;
use vmtax_report::budget::KeptBudget;
use vmtax_runs::kernels::{is_image, named};
use vmtax_runs::lab::{DoneKernel, HostWork, fault};
use vmtax_runs::{budget, write_fault};
use vmtax_store::Claim;

use super::args::{LabRunArgs, able, chosen, countable, measurable};
use super::measure::{shown, work};
use super::{compare, flat};
use crate::flags::OutputArgs;
use crate::report::{ReportFormat, render};

pub(crate) fn run(args: &LabRunArgs) -> anyhow::Result<()> {
    check(args)?;
    let own = args
        .operation_file
        .as_deref()
        .map(|path| suite::own::read(path).map_err(|e| fault(e, None)));
    let own = own.transpose()?;
    if let Some(own) = own {
        check_levels(args, own)?;
    }
    let plan = match &args.program {
        Some(command) => {
            let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            let program =
                SimulatedProgram::read(&words, args.guest.guest()).map_err(|e| fault(e, None))?;
            let suites = vec![suite::paging::of_program(program)];
            LabPlan { suites, only: Vec::new(), batches: args.batches }
        }
        None => plan(args, own),
    };
    let arguments = args.append.as_deref().unwrap_or_default();
    let image = args.flat.as_deref().map(|path| ProgramImage::read(path, arguments));
    let image = image.transpose().map_err(|e| fault(e, None))?;
    // Claim the folder minutes before it is written, so that a second lab run with the same folder fails at its start.
    let claim = match args.kernel.len() {
        1 => claim(args.output.as_deref())?,
        _ => None,
    };
    let kernels = kernels(args)?;
    if let [_, _, ..] = kernels.as_slice() {
        return several(args, &plan, &kernels);
    }
    let Some(kernel) = kernels.first() else { return Ok(()) };
    if let Some(image) = &image {
        return flat::run(args, kernel, image, claim);
    }
    let DoneKernel { ledger, failures, .. } = one(args, &plan, kernel, claim)?;
    let measured = not_measured(&failures);
    let kept = match &args.budget {
        Some(path) if measured.is_ok() && args.bless => {
            bless(args, &plan, kernel, &ledger, path)?;
            None
        }
        Some(path) if measured.is_ok() => {
            Some(budget::check(path, args.host.host(), &ledger, args.exact)?)
        }
        _ => None,
    };
    let source = args
        .output
        .as_ref()
        .map_or_else(|| format!("lab run on {}", args.host.host()), |o| o.display().to_string());
    let class = format!("{} {}", args.host.host().name(), kernel.release);
    render(&shown(args, source), ledger, kept.clone())?;
    measured?;
    kept.map_or(Ok(()), |kept| told(args, &class, &kept))
}

/// Tells whoever started the run, a person or CI, how the budget is kept.
fn told(args: &LabRunArgs, class: &str, kept: &KeptBudget) -> anyhow::Result<()> {
    if std::env::var_os("GITHUB_ACTIONS").is_some_and(|on| on == "true") {
        // The runner takes them behind spaces too (actions/runner, ActionCommand.TryParseV2).
        vmtax_report::budget::annotations(kept).iter().for_each(|line| say_more(line));
    }
    if let Some(path) = &args.junit {
        output::write(Some(path), |out| Ok(vmtax_report::budget::junit(kept, class, out)?))?;
    }
    if kept.violations().next().is_some() {
        let message = format!("{}:", kept.title());
        return Err(CodedError::new(Code::Breach, message).detailed(kept.lines()).into());
    }
    if !kept.numbers.is_empty() {
        say(&format!("{}:", kept.title()));
        kept.lines().iter().for_each(|line| say_more(line));
    }
    Ok(())
}

/// Writes the budget. What a second run does not repeat is no number to hold a kernel to.
fn bless(
    args: &LabRunArgs,
    plan: &LabPlan,
    kernel: &Kernel,
    ledger: &Ledger,
    path: &Path,
) -> anyhow::Result<()> {
    let again = one(args, plan, kernel, None)?;
    not_measured(&again.failures)?;
    let differing = budget::bless(path, args.host.host(), ledger, &again.ledger)?;
    if !differing.is_empty() {
        say(&format!("{}: not in the budget, because two runs differ:", path.display()));
        differing.iter().for_each(|line| say_more(line));
    }
    Ok(())
}

/// The error for operations that were not measured; the report of the others comes first.
fn not_measured(failures: &[String]) -> anyhow::Result<()> {
    let what = match failures.len() {
        0 => return Ok(()),
        1 => "1 operation was not measured:".to_owned(),
        many => format!("{many} operations were not measured:"),
    };
    Err(CodedError::new(Code::Machine, what).detailed(failures.to_vec()).into())
}

/// A run of each kernel, and their comparison.
fn several(args: &LabRunArgs, plan: &LabPlan, kernels: &[Kernel]) -> anyhow::Result<()> {
    if let Some(folder) = &args.output {
        fs::create_dir_all(folder)
            .map_err(|e| output::cannot_write(&folder.display().to_string(), &e))?;
    }
    let mut runs: Vec<(String, Ledger)> = Vec::new();
    let mut failures = Vec::new();
    for kernel in kernels {
        let alike = runs.iter().filter(|(_, run)| run.recording.kernel == kernel.release).count();
        let name = match alike {
            0 => kernel.release.clone(),
            before => format!("{}-{}", kernel.release, before + 1),
        };
        let output = args.output.as_ref().map(|folder| folder.join(&name));
        let done = one(args, plan, kernel, claim(output.as_deref())?)?;
        failures.extend(done.failures.iter().map(|failure| format!("{name}: {failure}")));
        runs.push((name, done.ledger));
    }
    let columns: Vec<(String, &Ledger)> =
        runs.iter().map(|(name, ledger)| (name.clone(), ledger)).collect();
    let format = args.format.of_tables().unwrap_or_default();
    compare::show(&columns, Vec::new(), &OutputArgs { format, output: None })?;
    not_measured(&failures)
}

/// Creates and locks the folder of the run.
fn claim(output: Option<&Path>) -> anyhow::Result<Option<Claim>> {
    Ok(output.map(Claim::new).transpose().map_err(write_fault)?)
}

/// What an image of arm64 has in its header, and where (Linux `Documentation/arch/arm64/booting.rst`).
const ARM64_MAGIC: [u8; 4] = *b"ARM\x64";
const ARM64_MAGIC_AT: usize = 56;

/// Checks everything that is known before the host boots.
fn check(args: &LabRunArgs) -> anyhow::Result<()> {
    let images = args.kernel.iter().filter(|kernel| is_image(kernel)).count();
    if !args.modules.is_empty() && args.modules.len() != images {
        return fail(
            Code::Usage,
            format!(
                "--modules was given {} times for {images} kernel images; give one for each image",
                args.modules.len()
            ),
        );
    }
    let asked = [
        (args.nested, "--nested", Ability::Nest),
        (args.profile, "--profile", Ability::Profile),
        (args.observe.is_some(), "--observe", Ability::Observe),
        (args.operation_file.is_some(), "--operation-file", Ability::Own),
        (args.flat.is_some(), "--flat", Ability::Program),
        (args.protected, "--protected", Ability::Protect),
    ];
    able(args.host.host(), &asked)?;
    let all = chosen(&args.suite, &args.operation);
    if args.protected {
        protectable(args)?;
    }
    if args.program.is_some() && !matches!(args.suite[..], [one] if one.name == "paging") {
        let message = "--program: takes the place of patterns; give --suite paging, and no other";
        return fail(Code::Usage, message);
    }
    if args.program.as_ref().is_some_and(|command| command.trim().is_empty()) {
        return fail(Code::Usage, "--program: names no program");
    }
    if let Some(image) = &args.guest_kernel {
        let has_linux = |one: &&Definition| one.linux_guest().is_some();
        if args.host.host() != vmtax_lab::HostKind::Arm || !all.iter().any(has_linux) {
            let message = "--guest-kernel: is for Linux guests of --host arm; choose --suite boot, workloads, first-touch or devices";
            return fail(Code::Usage, message);
        }
        let mut header = [0; ARM64_MAGIC_AT + ARM64_MAGIC.len()];
        match fs::File::open(image).and_then(|mut file| file.read_exact(&mut header)) {
            Ok(()) if header.ends_with(&ARM64_MAGIC) => {}
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return fail(Code::Input, format!("--guest-kernel {}: {error}", image.display()));
            }
            Ok(()) | Err(_) => {
                let message = format!("--guest-kernel {}: is no Image of arm64", image.display());
                return fail(Code::Data, message);
            }
        }
    }
    let simulated = all.iter().find(|one| one.is_simulated());
    if let Some(one) = simulated.filter(|one| !one.is_for(args.host.host(), 1)) {
        return fail(
            Code::Usage,
            format!("{}: accesses to memory are recorded on --host amd alone", one.name),
        );
    }
    if args.flat.is_none() && (args.operation_file.is_none() || !args.operation.is_empty()) {
        let asked = (args.profile, args.nested);
        measurable(args.host.host(), asked, (&args.suite, &args.operation))?;
    }
    let counted = match &args.operation_file {
        // An observer's recording is all that is kept.
        _ if args.observe.is_some() => Vec::new(),
        Some(_) if args.operation.is_empty() => vec![&suite::EMPTY],
        _ => chosen(&args.suite, &args.operation),
    };
    countable(args.processors, &[args.host.host()], counted)?;
    if args.kernel.len() > 1 && args.flat.is_some() {
        return fail(Code::Usage, "--flat: runs on one kernel; give one --kernel");
    }
    if args.kernel.len() > 1 && args.budget.is_some() {
        return fail(Code::Usage, "--budget: is for one kernel; give one --kernel");
    }
    if args.format == ReportFormat::Perfetto {
        return fail(
            Code::Usage,
            "--format perfetto: keep the run with -o and run `vmtax report` on its trace.dat",
        );
    }
    if args.kernel.len() > 1 && args.format.of_tables().is_none() {
        return fail(
            Code::Usage,
            "--format: the comparison of several kernels is written as text, csv, json or html; keep the runs with -o \
             and give each to `vmtax report`",
        );
    }
    // For a single run, creating the folder reports the error.
    if args.kernel.len() > 1
        && let Some(folder) = args.output.as_ref().filter(|folder| !is_free(folder))
    {
        return fail(
            Code::Output,
            format!("{}: exists already; name a folder that does not", folder.display()),
        );
    }
    if let Some(path) = args.budget.as_deref().filter(|_| !args.bless) {
        budget::open(path, args.host.host())?;
    }
    vmtax_machine::check(args.host.host().emulator()).map_err(|e| fault(e.into(), None))
}

/// Refuses what protected VMs cannot do.
fn protectable(args: &LabRunArgs) -> anyhow::Result<()> {
    if args.option.iter().any(|option| option.starts_with("kvm-arm.mode=")) {
        let message = format!("--protected: is {PROTECTED_MODE}; leave out --option kvm-arm.mode");
        return fail(Code::Usage, message);
    }
    let does = |all: &[Definition]| all.iter().any(Definition::is_for_protected);
    let suites =
        args.suite.iter().filter(|suite| args.operation.is_empty() && !does(suite.operations));
    let operations = args.operation.iter().filter(|one| !one.is_for_protected());
    match operations.map(|one| one.name).chain(suites.map(|suite| suite.name)).next() {
        None => Ok(()),
        Some(name) => fail(
            Code::Usage,
            format!(
                "--protected: {name} is nothing that a protected VM does; --suite primitives, boot, workloads and devices are"
            ),
        ),
    }
}

fn is_free(folder: &Path) -> bool {
    folder.symlink_metadata().is_err()
        || fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

fn kernels(args: &LabRunArgs) -> anyhow::Result<Vec<Kernel>> {
    let mut modules = args.modules.iter();
    let mut kernels = Vec::new();
    for name in &args.kernel {
        kernels.push(named(args.host.host().architecture(), name, &mut modules)?);
    }
    Ok(kernels)
}

/// Measures one kernel, and writes the run if it has a folder.
fn one(
    args: &LabRunArgs,
    plan: &LabPlan,
    kernel: &Kernel,
    claim: Option<Claim>,
) -> anyhow::Result<DoneKernel> {
    work(args, kernel, HostWork::Operations(plan), claim)
}

/// The selected suites and operations; with --operation those of all suites, since names of operations are unique, and of the user's file.
fn plan(args: &LabRunArgs, own: Option<&'static Suite>) -> LabPlan {
    let suites = match own {
        own if !args.operation.is_empty() => suite::SUITES.iter().chain(own).collect(),
        Some(own) => vec![own],
        None => args.suite.clone(),
    };
    let own = own.filter(|_| !args.operation.is_empty());
    let only = args.operation.iter().copied().chain(own.into_iter().flat_map(|own| own.operations));
    LabPlan { suites, only: only.collect(), batches: args.batches }
}

/// An own operation that this run would leave out without a word is refused.
fn check_levels(args: &LabRunArgs, own: &Suite) -> anyhow::Result<()> {
    let host = args.host.host();
    let runs = |one: &Definition| one.is_for(host, 1) || (args.nested && one.is_for(host, 2));
    let Some(left_out) = own.operations.iter().find(|one| !runs(one)) else { return Ok(()) };
    let nested = if left_out.is_for(host, 2) { "; --nested measures L2" } else { "" };
    fail(
        Code::Usage,
        format!(
            "operation {:?} of the file is not for this host and level{nested}; leave it out, or use another --host",
            left_out.name
        ),
    )
}
