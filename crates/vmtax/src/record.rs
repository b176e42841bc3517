//! `vmtax record`: the running kernel -> a run folder, a segment for each interval.

mod args;
mod session;
mod watch;

pub(crate) use args::{RecordArgs, WhichArgs, check_interval};
pub(crate) use session::{Stop, drain, now_ns, signals};
pub(crate) use watch::Watch;

use std::collections::BTreeSet;
use std::path::Path;

use vmtax_events::Isa;
use vmtax_events::setting::KvmServer;
use vmtax_live::{Options, Recorder, VmcsPlace};
use vmtax_store::{Claim, CreateOptions, Writer, remove_empty_run};

use crate::exit::{Code, Fault, fail};
use crate::import::output_fault;
use crate::input::cannot_read;

/// Where the system is that is recorded.
const ROOT: &str = "/";

pub(crate) fn run(args: &RecordArgs) -> anyhow::Result<()> {
    let stop = session::Stop::new()?;
    let root = Path::new(ROOT);
    let processes = processes(&args.which)?;
    let created_folder = !args.output.exists();
    let claim = Claim::new(&args.output).map_err(output_fault)?;
    let recorder = open(root, processes, args.limits())?;
    let writer = Writer::begin(claim, &create_options(args)).map_err(output_fault)?;
    let result = session::record(args, recorder, writer, &stop);
    if result.is_err() {
        remove_empty_run(&args.output, created_folder);
    }
    result
}

/// A recorder for this process's VM, or for all VMs; the error is a sentence.
pub(crate) fn recorder(process: Option<u32>) -> Result<Recorder, String> {
    let processes = process.map(|pid| BTreeSet::from([pid]));
    open(Path::new(ROOT), processes, Options::default()).map_err(|error| error.to_string())
}

/// A recorder of the KVM that serves here, if exits of it are known.
fn open(
    root: &Path,
    processes: Option<BTreeSet<u32>>,
    options: Options,
) -> anyhow::Result<Recorder> {
    let kvm = vmtax_host::kvm(root).map_err(|e| cannot_read(&root.display().to_string(), &e))?;
    let isa = match (kvm.server(), vmtax_report::kvm::not_recordable(&kvm)) {
        (KvmServer::Hardware(isa, _), _) => isa,
        (_, why) => return fail(Code::Input, why.unwrap_or_default()),
    };
    let options = Options { processes, vmcs: vmcs_places(root, isa), ..options };
    Recorder::new(root, isa, &options).map_err(|error| fault(&error))
}

/// Where KVM's code has the fields of VMREADs and VMWRITEs, or why that is not known.
fn vmcs_places(root: &Path, isa: Isa) -> Result<Vec<VmcsPlace>, String> {
    if isa != Isa::Vmx {
        return Ok(Vec::new());
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let folder = root.join("lib/modules").join(release);
    let module = vmtax_machine::kernel::module(&folder, "kvm_intel")
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let modules: Vec<_> = module.into_iter().collect();
    if modules.is_empty() {
        return Err(format!("{} has no module kvm_intel", folder.display()));
    }
    let place = |place: vmtax_lab::FieldPlace| VmcsPlace {
        write: place.write,
        function: place.function,
        offset: place.offset,
        register: place.register,
    };
    Ok(vmtax_lab::field_places(&modules)?.into_iter().map(place).collect())
}

/// What an error of the recorder means for the exit code.
fn fault(error: &vmtax_live::Error) -> anyhow::Error {
    use vmtax_live::Error;
    match error {
        Error::NoTypes { .. }
        | Error::NoFormats { .. }
        | Error::Types { .. }
        | Error::Privilege { .. } => Fault::new(Code::Input, error.to_string()).into(),
        other => anyhow::anyhow!("{other}"),
    }
}

/// The processes that are meant; `None` for all.
fn processes(args: &WhichArgs) -> anyhow::Result<Option<BTreeSet<u32>>> {
    if args.pid.is_empty() && args.vm.is_empty() {
        return Ok(None);
    }
    for pid in &args.pid {
        if !Path::new(ROOT).join("proc").join(pid.to_string()).exists() {
            return fail(Code::Input, format!("--pid {pid}: there is no such process"));
        }
    }
    let mut wanted: BTreeSet<u32> = args.pid.iter().copied().collect();
    let running = match args.vm.as_slice() {
        [] => Vec::new(),
        _ => vmtax_host::running(Path::new(ROOT))?,
    };
    for name in &args.vm {
        let before = wanted.len();
        wanted.extend(running.iter().filter(|(_, vm)| vm == name).map(|(pid, _)| pid));
        if wanted.len() == before {
            let names: Vec<&str> = running.iter().map(|(_, vm)| vm.as_str()).collect();
            let there = match names.as_slice() {
                [] => "no VM runs here that this user may see".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            return fail(Code::Input, format!("--vm {name}: no running VM has that name; {there}"));
        }
    }
    Ok(Some(wanted))
}

fn create_options(args: &RecordArgs) -> CreateOptions {
    CreateOptions {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
        interval_ns: args.interval_ns(),
        raw_events: args.raw,
        labels: args.labels.iter().cloned().collect(),
    }
}
