//! The running kernel -> a run with a segment for each interval, one run after another ([`serve`]), or running sums ([`CountsWatch`]).

mod service;
mod session;
mod starts;
mod tree;
mod watch;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_cli::output::cannot_read;
use vmtax_events::Isa;
use vmtax_events::setting::KvmServer;
use vmtax_live::{ExitRecorder, LiveOptions, VmcsPlace};

pub use service::serve;
pub use session::{command_ended, now_ns, record, record_process};
pub use starts::{StartsPlan, starts};
pub(crate) use starts::{distinct, lost_calls};
pub use tree::Retention;
pub use watch::CountsWatch;

/// Root of the system that is recorded.
const ROOT: &str = "/";

/// A selection of running VMs; all when both lists are empty.
#[derive(Clone, Debug, Default)]
pub struct Which {
    pub pids: Vec<u32>,
    pub names: Vec<String>,
}

/// Options of a recording.
#[derive(Debug)]
pub struct RecordPlan {
    pub which: Which,
    pub duration: Option<Duration>,
    /// Length of the intervals, each a segment of the run.
    pub interval: Duration,
    /// Count the host's cycles, instructions and cache misses too.
    pub pmu: bool,
    /// Limits of the recorder, and whether single events are kept.
    pub limits: LiveOptions,
    /// Labels of the run.
    pub labels: Vec<(String, String)>,
    pub output: PathBuf,
    /// Record while this command runs.
    pub command: Vec<OsString>,
}

/// A recorder for this process's VM, or for all VMs.
pub fn recorder(process: Option<u32>) -> Result<ExitRecorder, String> {
    let processes = process.map(|pid| BTreeSet::from([pid]));
    open(Path::new(ROOT), processes, LiveOptions::default()).map_err(|error| error.to_string())
}

/// A recorder of the loaded KVM, if its exits are known.
fn open(
    root: &Path,
    processes: Option<BTreeSet<u32>>,
    options: LiveOptions,
) -> anyhow::Result<ExitRecorder> {
    let kvm = vmtax_host::kvm(root).map_err(|e| cannot_read(&root.display().to_string(), &e))?;
    let isa = match (kvm.server(), vmtax_report::kvm::not_recordable(&kvm)) {
        (KvmServer::Hardware(isa, _), None) => isa,
        (_, why) => return fail(Code::Input, why.unwrap_or_default()),
    };
    let options = LiveOptions { processes, vmcs: vmcs_places(root, isa), ..options };
    ExitRecorder::new(root, isa, &options).map_err(|error| fault(&error))
}

/// The places in KVM's code with the fields of VMREADs and VMWRITEs, or why they are unknown.
fn vmcs_places(root: &Path, isa: Isa) -> Result<Vec<VmcsPlace>, String> {
    if isa != Isa::Vmx {
        return Ok(Vec::new());
    }
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let folder = root.join("lib/modules").join(release);
    let module = vmtax_machine::kernel::module(&folder, "kvm_intel")
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let module = module.ok_or_else(|| format!("{} has no module kvm_intel", folder.display()))?;
    vmtax_live::probe::places(&module.bytes)
}

/// An error of the recorder with its exit code.
fn fault(error: &vmtax_live::Error) -> anyhow::Error {
    use vmtax_live::Error;
    match error {
        Error::NoTypes { .. } | Error::Types { .. } | Error::Privilege { .. } => {
            CodedError::new(Code::Input, error.to_string()).into()
        }
        other => anyhow::anyhow!("{other}"),
    }
}

/// The disk, or the user's part of it, is full.
pub(crate) fn is_full(kind: std::io::ErrorKind) -> bool {
    matches!(kind, std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// The selected processes; `None` for all.
fn processes(which: &Which) -> anyhow::Result<Option<BTreeSet<u32>>> {
    if which.pids.is_empty() && which.names.is_empty() {
        return Ok(None);
    }
    for pid in &which.pids {
        if !Path::new(ROOT).join("proc").join(pid.to_string()).exists() {
            return fail(Code::Input, format!("--pid {pid}: no such process"));
        }
    }
    let mut wanted: BTreeSet<u32> = which.pids.iter().copied().collect();
    let running = match which.names.as_slice() {
        [] => Vec::new(),
        _ => vmtax_host::running(Path::new(ROOT))?,
    };
    for name in &which.names {
        let before = wanted.len();
        wanted.extend(running.iter().filter(|(_, vm)| vm == name).map(|(pid, _)| pid));
        if wanted.len() == before {
            let names: Vec<&str> = running.iter().map(|(_, vm)| vm.as_str()).collect();
            let there = match names.as_slice() {
                [] => "this user can see no running VM".to_owned(),
                names => format!("there are {}", names.join(", ")),
            };
            return fail(Code::Input, format!("--vm {name}: no running VM has that name; {there}"));
        }
    }
    Ok(Some(wanted))
}
