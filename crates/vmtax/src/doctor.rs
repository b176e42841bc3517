//! `vmtax doctor`: settings of a system and their costs, and pages of its VMs.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use vmtax_analyse::audit::{
    self, AuditFinding, AuditInput, CheckId, CheckVerdict, Fix, FoundSetting, ManualAdvice,
};
use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_cli::output;
use vmtax_events::setting::{Settings, System, VmProcess};
use vmtax_host::{configuration, remote};
use vmtax_machine::ssh::SshAddress;
use vmtax_report::doctor::Audit;
use vmtax_report::pages::PagesReport;
use vmtax_runs::evidence::EvidenceInput;
use vmtax_runs::{host_pages, ledger};

use crate::flags::{OutputArgs, ReadingArgs};

/// Find settings of this host, its VMs and a guest that cost time, with evidence and fix.
///
/// Nothing is changed. With RUN, a run or recording of this host, each finding shows what its cause cost there and an
/// upper bound of the gain. With a FILE that contains QEMU's command line or libvirt's XML, only that VM is checked. All
/// settings: docs/doctor-settings.md. --pages and --host-pages only show the sizes of the pages in which memory is mapped.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  vmtax doctor                                   this host and its VMs; run it as root to read more
  vmtax doctor --guest ssh:root@vm -p 4711 run   one VM with its guest, beside what a run measured
  vmtax doctor --guest-root /                    inside a guest: what it can change itself
  vmtax doctor win10.xml                         a VM by its XML (virsh dumpxml), on any machine
  vmtax doctor --root unpacked/ --format json    an archive of another host's /proc and /sys
  vmtax doctor --fix-script > fix.sh             to review; vmtax does not run it
  vmtax doctor --pages -p $(pidof qemu-system-x86_64)
  vmtax doctor --host-pages                      in a VM, without root")]
pub(crate) struct DoctorArgs {
    /// A run or recording of this host; or a VM's configuration: QEMU's command line, XML of libvirt, or Proxmox's file.
    #[arg(value_name = "RUN|FILE", value_hint = ValueHint::AnyPath)]
    run: Option<PathBuf>,

    /// Read /proc and /sys below this folder.
    #[arg(long, value_name = "DIR", default_value = "/", value_hint = ValueHint::DirPath)]
    root: PathBuf,

    /// Check a guest through ssh. Keys must be in place; ssh does not ask for a password.
    #[arg(long, value_name = "ssh:USER@HOST", value_parser = guest, conflicts_with = "guest_root")]
    guest: Option<SshAddress>,

    /// A guest's /proc and /sys below this folder; / when vmtax runs in the guest.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    guest_root: Option<PathBuf>,

    /// Only the VM of this process.
    #[arg(short, long, value_name = "PID")]
    pid: Option<u32>,

    /// Show the sizes of the pages that KVM mapped for each running VM, and the kind of its memory. They are KVM's counters in debugfs,
    /// which only root may read.
    #[arg(long, conflicts_with_all = ["run", "guest", "guest_root", "fix_script", "host_pages"])]
    pages: bool,

    /// Inside a VM, as any user: time loads to measure the size of the pages in which its host maps it (docs/doctor.md).
    #[arg(long, conflicts_with_all = ["run", "root", "pid", "guest", "guest_root", "fix_script"])]
    host_pages: bool,

    #[command(flatten)]
    to: OutputArgs,

    /// Print a shell script with the fixes instead of the findings.
    #[arg(long, conflicts_with = "format")]
    fix_script: bool,

    #[command(flatten)]
    reading: ReadingArgs,
}

fn guest(text: &str) -> Result<SshAddress, String> {
    let address = text.strip_prefix("ssh:").and_then(|address| address.parse().ok());
    address.ok_or_else(|| "use ssh:USER@HOST, of letters, digits and @ . : _ - % [ ]".to_owned())
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    if args.pages || args.host_pages {
        return pages(args);
    }
    let inputs: Vec<&Path> = args.run.as_deref().into_iter().collect();
    output::check(&inputs, args.to.output.as_deref())?;
    let evidence = args.run.as_deref().map(EvidenceInput::open).transpose()?;
    if let (Some(path), Some(evidence)) = (&args.run, &evidence)
        && let Some(system) = configuration(path, evidence)?
    {
        return of_configuration(args, path, &system);
    }
    let reading = args.reading.reading();
    if let (None, Some(flag)) = (&args.run, reading.given()) {
        return fail(Code::Usage, format!("{flag}: is for recordings; name one"));
    }
    let system = system(&args.root)?;
    let vms = chosen(&system, args.pid)?;
    let (guest_name, guest) = guest_settings(args)?.unzip();
    let read =
        |mut run: EvidenceInput| ledger::of_opened(run.input()?, &reading, Default::default());
    let ledger = evidence.map(read).transpose()?;
    let inside = is_of_this_system(args).then(host_pages::of_this_system);
    let findings = audit::audit(AuditInput {
        host: &system.settings,
        kvm: &system.kvm,
        vms,
        complete: args.pid.is_some() || system.knows_all_vms(),
        guest: guest.as_ref(),
        inside: inside.as_ref().map(|(_, judged)| judged),
        ledger: ledger.as_ref(),
    });
    let run_name = args.run.as_ref().map(|run| run.display().to_string());
    let audit = Audit {
        tool_version: VERSION,
        root: &args.root.display().to_string(),
        guest: guest_name.as_deref(),
        run: run_name.as_deref().zip(ledger.as_ref()),
        system: &system,
        vms,
        findings: &findings,
    };
    if args.fix_script {
        return output::write(args.to.output.as_deref(), |out| Ok(audit.script(out)?));
    }
    args.to.write(&audit)
}

/// What a file configures: a VM, or parameters of KVM.
pub(crate) fn configuration(
    path: &Path,
    evidence: &EvidenceInput,
) -> anyhow::Result<Option<System>> {
    let name = path.display().to_string();
    let Some(text) = evidence.text() else { return Ok(None) };
    if let Some(settings) = configuration::parameters(text) {
        return Ok(Some(System { settings, ..System::default() }));
    }
    match configuration::vm(text, &name) {
        None => Ok(None),
        Some(Ok(vm)) => Ok(Some(System { vms: vec![vm], listed: true, ..System::default() })),
        Some(Err(problem)) => fail(Code::Data, format!("{name}: {problem}")),
    }
}

/// The checks that a configuration alone decides.
fn of_configuration(args: &DoctorArgs, path: &Path, system: &System) -> anyhow::Result<()> {
    let given = [
        ("--root", args.root != Path::new("/")),
        ("--guest", args.guest.is_some()),
        ("--guest-root", args.guest_root.is_some()),
        ("--pid", args.pid.is_some()),
    ];
    let given = given.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag);
    is_alone(path, given.or(args.reading.reading().given()))?;
    let findings = alone(system);
    let name = path.display().to_string();
    let audit = of_file(&name, system, &findings);
    if args.fix_script {
        return output::write(args.to.output.as_deref(), |out| Ok(audit.script(out)?));
    }
    args.to.write(&audit)
}

/// No flag for something else was given.
fn is_alone(path: &Path, flag: Option<&str>) -> anyhow::Result<()> {
    let Some(flag) = flag else { return Ok(()) };
    let text = format!("{flag}: {} is a configuration, which is checked alone", path.display());
    fail(Code::Usage, text)
}

/// Writes the checks of a configuration; `flag` is one that was given for a recording.
pub(crate) fn check(
    path: &Path,
    system: &System,
    flag: Option<&str>,
    to: &OutputArgs,
) -> anyhow::Result<()> {
    is_alone(path, flag)?;
    to.write(&of_file(&path.display().to_string(), system, &alone(system)))
}

/// Checks that a configuration alone decides.
fn alone(system: &System) -> Vec<AuditFinding> {
    let mut findings = audit::audit(AuditInput {
        host: &system.settings,
        kvm: &system.kvm,
        vms: &system.vms,
        complete: false,
        guest: None,
        inside: None,
        ledger: None,
    });
    findings.retain(|finding| {
        let is_known = !matches!(finding.found.what, FoundSetting::Unread(_));
        if system.vms.is_empty() {
            // What other settings and VMs decide is not known of parameters alone.
            return finding.check.place() == "host"
                && finding.found.verdict != CheckVerdict::Unknown;
        }
        // Nor what another part of a configuration has.
        let is_part = system.vms.iter().any(VmProcess::is_part);
        let is_said = !is_part
            || matches!(finding.found.verdict, CheckVerdict::Costs | CheckVerdict::Unknown);
        finding.check.place() == "VM" && is_known && is_said
    });
    for finding in &mut findings {
        // How much its disks do is not known.
        if finding.check.id == CheckId::Iothread && finding.found.verdict == CheckVerdict::Costs {
            finding.found.verdict = CheckVerdict::Unknown;
        }
        // A configuration has no threads yet.
        if let Some(Fix::Pin(_)) = finding.found.fix {
            finding.found.fix = Some(Fix::Advice(ManualAdvice::PinInConfiguration));
        }
    }
    findings
}

fn of_file<'a>(name: &'a str, system: &'a System, findings: &'a [AuditFinding]) -> Audit<'a> {
    Audit {
        tool_version: VERSION,
        root: name,
        guest: None,
        run: None,
        system,
        vms: &system.vms,
        findings,
    }
}

/// What is measured is of the system that vmtax runs on.
fn is_of_this_system(args: &DoctorArgs) -> bool {
    let is_here = |root: &Path| root == Path::new("/");
    let is_guest = args.guest.is_none() && args.guest_root.as_deref().is_none_or(is_here);
    is_here(&args.root) && is_guest && args.pid.is_none()
}

fn pages(args: &DoctorArgs) -> anyhow::Result<()> {
    if let Some(flag) = args.reading.reading().given() {
        return fail(Code::Usage, format!("{flag}: is for recordings; name one"));
    }
    if args.host_pages {
        let (pages, judged) = host_pages::of_this_system();
        return args.to.write(&vmtax_report::host_pages::tables(VERSION, &pages, &judged));
    }
    let system = system(&args.root)?;
    let pages = PagesReport {
        tool_version: VERSION,
        root: &args.root.display().to_string(),
        system: &system,
        vms: chosen(&system, args.pid)?,
    };
    args.to.write(&pages)
}

fn system(root: &Path) -> anyhow::Result<System> {
    vmtax_host::system(root)
        .map_err(|e| output::cannot_read(&root.display().to_string(), &e).into())
}

/// The VM of a process, or all.
fn chosen(system: &System, pid: Option<u32>) -> anyhow::Result<&[VmProcess]> {
    let Some(pid) = pid else { return Ok(&system.vms) };
    if let Some(at) = system.vms.iter().position(|vm| vm.pid == pid) {
        return Ok(&system.vms[at..=at]);
    }
    let known: Vec<String> =
        system.vms.iter().take(16).map(|vm| format!("{} ({})", vm.pid, vm.name)).collect();
    let known = match known.as_slice() {
        [] if system.hidden > 0 => {
            "no VM was found, and some processes are unreadable; run as root".to_owned()
        }
        [] => "no process runs a VM".to_owned(),
        _ => format!("there are: {}", known.join(", ")),
    };
    fail(Code::Data, format!("-p {pid}: this process runs no VM; {known}"))
}

fn guest_settings(args: &DoctorArgs) -> anyhow::Result<Option<(String, Settings)>> {
    if let Some(root) = &args.guest_root {
        let name = root.display().to_string();
        let settings = vmtax_host::settings(root).map_err(|e| output::cannot_read(&name, &e))?;
        return Ok(Some((name, settings)));
    }
    let Some(address) = &args.guest else { return Ok(None) };
    let name = format!("ssh:{address}");
    let settings = remote::settings(address).map_err(|e| {
        CodedError::new(Code::Input, format!("{name}: {e}; try `ssh {address} true`"))
    })?;
    Ok(Some((name, settings)))
}
