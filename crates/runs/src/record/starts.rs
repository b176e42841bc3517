//! How long VMs take to start: calls of KVM that are timed until the end, and put together as VMs.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use vmtax_analyse::starts::Starts;
use vmtax_cli::exit::Code;
use vmtax_cli::exit::fail;
use vmtax_cli::output::cannot_read;
use vmtax_cli::signals::Signals;
use vmtax_events::setting::KvmServer;
use vmtax_events::start::KvmCall;
use vmtax_host::symbols::Symbols;
use vmtax_report::starts::Recorded;

use super::session::{end, processor, start};
use super::{ROOT, Which, fault, processes};
use crate::starts::OTHERS;

#[derive(Debug)]
pub struct StartsPlan {
    pub which: Which,
    pub duration: Option<Duration>,
    /// While this command runs.
    pub command: Vec<OsString>,
}

/// How often calls are taken from the kernel's buffer. The name and the cgroup of a process are read then.
const EVERY: Duration = Duration::from_millis(200);

/// Times the starts of VMs until the duration is over, the command ends, or a signal asks for it. Also how the command ended.
///
/// # Errors
/// Why nothing can be recorded, as one sentence.
pub fn starts(plan: &StartsPlan) -> anyhow::Result<(Recorded, Option<ExitStatus>)> {
    let stop = Signals::new()?;
    let kvm = vmtax_host::kvm(Path::new(ROOT)).map_err(|e| cannot_read(ROOT, &e))?;
    if !matches!(kvm.server(), KvmServer::Hardware(..)) {
        return fail(Code::Input, vmtax_report::kvm::not_recordable(&kvm).unwrap_or_default());
    }
    let processes = processes(&plan.which)?;
    let mut recorder =
        vmtax_live::Starts::new(Path::new(ROOT), processes.as_ref()).map_err(|e| fault(&e))?;
    let mut session = Session::new()?;
    let mut child = start(&plan.command)?;
    let began = Instant::now();
    let until = plan.duration.and_then(|duration| began.checked_add(duration));
    let status = loop {
        let next = Instant::now() + EVERY;
        let is_asked = stop.wait(until.map_or(next, |until| until.min(next)))?;
        session.take(recorder.calls().map_err(|e| fault(&e))?);
        let is_over = until.is_some_and(|until| Instant::now() >= until);
        let status = child.as_mut().map(std::process::Child::try_wait).transpose()?.flatten();
        if is_asked || is_over || status.is_some() {
            break child.as_mut().map(|child| end(child, &stop)).transpose()?;
        }
    };
    recorder.stop();
    session.take(recorder.calls().map_err(|e| fault(&e))?);
    Ok((session.finish(began.elapsed(), recorder.lost()), status))
}

struct Session {
    starts: Starts,
    symbols: Symbols,
    names: Vec<String>,
    cgroups: Vec<String>,
}

impl Session {
    fn new() -> anyhow::Result<Session> {
        let mut symbols = Symbols::new(Path::new(ROOT))?;
        // Reads the kernel's symbols before there is anything to time.
        symbols.running(0);
        Ok(Session { starts: Starts::default(), symbols, names: Vec::new(), cgroups: Vec::new() })
    }

    fn take(&mut self, calls: Vec<KvmCall>) {
        for call in calls {
            if call.creates_vm() {
                self.names.push(name(&call));
                self.cgroups.push(cgroup(call.pid));
            }
            let functions = call.stack.iter().map(|address| {
                self.symbols.running(*address).unwrap_or_else(|| format!("{address:#x}"))
            });
            let place = place(functions);
            self.starts.add(call, place);
        }
    }

    fn finish(self, ran: Duration, lost: u64) -> Recorded {
        let (vms, dropped, of_others) = self.starts.finish();
        let losses = lost_calls([
            (lost, "calls found no room and are missing"),
            (dropped, "further VMs are not shown"),
            (of_others, OTHERS),
        ]);
        let ns = u64::try_from(ran.as_nanos()).unwrap_or(u64::MAX);
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let names = distinct(self.names);
        let emulated = vmtax_events::Recording::emulator_of_cpu(&processor());
        let cgroups = self.cgroups;
        Recorded { vms, names, cgroups, ns, kernel, emulated, has_off_cpu: true, losses }
    }
}

/// A sentence for each number that is not 0.
pub(crate) fn lost_calls<const N: usize>(counts: [(u64, &str); N]) -> Vec<String> {
    let all = counts.into_iter().filter(|(count, _)| *count > 0);
    all.map(|(count, what)| format!("{count} {what}")).collect()
}

/// The VM's name, or that of the thread if the process has ended.
fn name(call: &KvmCall) -> String {
    let name = vmtax_host::vm_name(Path::new(ROOT), call.pid).unwrap_or_default();
    if name.is_empty() { call.name.clone() } else { name }
}

/// The path of a process's cgroup in cgroup2; empty if there is none, or the process has ended.
fn cgroup(pid: u32) -> String {
    let text = fs::read_to_string(format!("{ROOT}proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

/// Names with a number where one comes again.
pub(crate) fn distinct(mut names: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashMap::<String, u32>::new();
    for name in &mut names {
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        if *count > 1 {
            *name = format!("{name} #{count}");
        }
    }
    names
}

/// Functions between a switch of threads and what waits.
const OF_WAITING: [&str; 10] = [
    "__schedule",
    "schedule",
    "preempt_schedule_common",
    "__cond_resched",
    "schedule_timeout",
    "wait_for_completion",
    "wait_for_completion_killable",
    "__wait_for_common",
    "do_wait_for_common",
    "wait_for_common",
];
/// Functions of the recorder.
const OF_RECORDING: [&str; 5] = ["bpf_", "__bpf_", "__traceiter_", "trace_", "perf_"];
/// Where KVM begins.
const OF_KVM: [&str; 5] =
    ["kvm_dev_ioctl", "kvm_vm_ioctl", "kvm_vcpu_ioctl", "kvm_vm_release", "kvm_vcpu_release"];

/// What waits, with its callers up to the call of KVM.
fn place(functions: impl Iterator<Item = String>) -> Vec<String> {
    let is_before = |name: &String| {
        OF_WAITING.contains(&name.as_str())
            || OF_RECORDING.iter().any(|part| name.starts_with(part))
    };
    let mut place = Vec::new();
    for name in functions.skip_while(is_before) {
        let is_last = OF_KVM.contains(&name.as_str());
        place.push(name);
        if is_last {
            break;
        }
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_of_kvm_alone() {
        let stack = "bpf_trace_run4 __traceiter_sched_switch __schedule schedule __synchronize_srcu kvm_swap_active_memslots kvm_vm_ioctl \
                     __x64_sys_ioctl do_syscall_64";
        let functions = stack.split_whitespace().map(str::to_owned);
        assert_eq!(
            place(functions),
            ["__synchronize_srcu", "kvm_swap_active_memslots", "kvm_vm_ioctl"]
        );
        assert!(place(std::iter::empty()).is_empty());
    }

    #[test]
    fn vms_of_one_name_have_numbers() {
        let names = ["web", "db", "web"].map(str::to_owned).to_vec();
        assert_eq!(distinct(names), ["web", "db", "web #2"]);
    }
}
