//! Systems that run jobs: this computer, a system reached by ssh, a VM. The agent is the same on all of them.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::rand::{GetRandomFlags, getrandom};
use vmtax_guest::job::{Job, JobAnswer, JobOutcome, JobRequest};
use vmtax_guest::order::encode;
use vmtax_machine::network::Namespace;
use vmtax_machine::ssh::{self, SshAddress, SshError};
use vmtax_machine::{Stop, Tool, ToolLimits};

use crate::Error;
use crate::category::SystemFacts;
use crate::error::{at, strange};
use crate::vm::{BenchVm, answer, time_of};

/// Most bytes of an answer.
const ANSWER_MOST: usize = 64 << 20;
/// Limits of copying the agent, a few MB, to another system.
const COPYING: ToolLimits = ToolLimits { time: Duration::from_secs(120), output: 64 << 10 };
/// Limits of a short command, and of removing the agent.
const REMOVING: ToolLimits = ToolLimits { time: Duration::from_secs(20), output: 64 << 10 };
/// Limits of removing the agent after a stop request.
const REMOVING_SOON: ToolLimits = ToolLimits { time: Duration::from_secs(5), ..REMOVING };

/// A system with an agent.
#[derive(Debug)]
pub enum Place {
    Here(ThisComputer),
    /// A system reached by ssh.
    There(There),
    /// A VM that vmtax launched.
    Vm(Box<BenchVm>),
}

impl Place {
    pub fn facts(&mut self) -> Result<SystemFacts, Error> {
        self.ask(&JobRequest::Facts)?.facts().ok_or_else(|| strange("the agent"))
    }

    pub fn execute(&mut self, job: &Job) -> Result<JobOutcome, Error> {
        self.ask(&JobRequest::Do(job.clone()))?.outcome().ok_or_else(|| strange("the agent"))
    }

    fn ask(&mut self, request: &JobRequest) -> Result<JobAnswer, Error> {
        match self {
            Place::Here(here) => here.ask(request),
            Place::There(there) => there.ask(request),
            Place::Vm(vm) => vm.ask(request),
        }
    }
}

/// This computer. The agent is a file in memory (memfd), so nothing has to be removed.
#[derive(Debug)]
pub struct ThisComputer {
    agent: std::fs::File,
    stop: Stop,
    /// The network namespace in which jobs run, if not that of this process.
    namespace: Option<Namespace>,
}

impl ThisComputer {
    /// With this program as the agent.
    pub fn new(program: &[u8], stop: &Stop) -> Result<ThisComputer, Error> {
        let failed =
            |e: std::io::Error| at("host", format!("the agent cannot be kept in memory: {e}"));
        // The child opens it through this process's entry in /proc, so it may be closed on exec.
        let fd = memfd_create("vmtax-agent", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let mut agent = std::fs::File::from(fd);
        agent.write_all(program).map_err(failed)?;
        // The kernel does not execute a file that is open for writing, so it is opened again for reading.
        let path = format!("/proc/self/fd/{}", agent.as_raw_fd());
        let agent = std::fs::File::open(path).map_err(failed)?;
        Ok(ThisComputer { agent, stop: stop.clone(), namespace: None })
    }

    /// Runs its jobs in a network namespace.
    pub(crate) fn within(self, namespace: Option<Namespace>) -> ThisComputer {
        ThisComputer { namespace, ..self }
    }

    /// Runs a request to its end.
    pub(crate) fn ask(&self, request: &JobRequest) -> Result<JobAnswer, Error> {
        self.ask_until(request, &self.stop)
    }

    /// As [`Here::ask`], until this stop is requested.
    pub(crate) fn ask_until(&self, request: &JobRequest, stop: &Stop) -> Result<JobAnswer, Error> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.agent.as_raw_fd());
        let mut command = Command::new(path);
        command.args(["job", &std::process::id().to_string()]);
        if let Some(namespace) = &self.namespace {
            namespace.enter(&mut command);
        }
        let limits = ToolLimits { time: time_of(request), output: ANSWER_MOST };
        let finished = Tool::new(command, limits).input(&encode(request)).until(stop).run();
        let finished = finished.map_err(|e| at("host", format!("the agent {e}")))?;
        if !finished.status.success() {
            return Err(at("host", format!("the agent failed: {}", finished.reason())));
        }
        answer(&finished.stdout, "host")
    }
}

/// A system reached by ssh. The agent is in a temporary folder there, which is removed at the end.
///
/// This computer chooses the folder's name, so output of the other system never becomes part of a command. Only the agent's file and
/// then the folder, if empty, are removed.
#[derive(Debug)]
pub struct There {
    name: String,
    address: SshAddress,
    folder: AgentFolder,
    stop: Stop,
    /// Whether the folder may exist.
    connected: bool,
}

impl There {
    /// Copies the agent there.
    pub fn new(
        name: &str,
        address: &SshAddress,
        program: &[u8],
        stop: &Stop,
    ) -> Result<There, Error> {
        let folder = AgentFolder::new().map_err(|e| at(name, format!("no random number: {e}")))?;
        let script = folder.receive();
        let (name, address, stop) = (name.to_owned(), address.clone(), stop.clone());
        let copied = ssh::run(&address, &script, program, COPYING, &stop);
        // Without a connection the folder was not created.
        let connected = !matches!(copied, Err(SshError::Failed(_)));
        let there = There { name, address, folder, stop, connected };
        match copied {
            Ok(_) => Ok(there),
            Err(e) => {
                let problem = format!(
                    "the agent cannot be copied there: {e}; try `ssh {} true`",
                    there.address
                );
                Err(at(&there.name, problem))
            }
        }
    }

    /// Runs a request to its end.
    pub(crate) fn ask(&self, request: &JobRequest) -> Result<JobAnswer, Error> {
        self.ask_until(request, &self.stop)
    }

    /// As [`There::ask`], until this stop is requested: then the connection ends, and what the agent started there with it.
    pub(crate) fn ask_until(&self, request: &JobRequest, stop: &Stop) -> Result<JobAnswer, Error> {
        let limits = ToolLimits { time: time_of(request), output: ANSWER_MOST };
        let script = self.folder.start();
        let said = ssh::run(&self.address, &script, &encode(request), limits, stop);
        answer(&said.map_err(|e| at(&self.name, format!("the agent: {e}")))?, &self.name)
    }

    /// A port there on which nothing listens, of TCP and UDP.
    pub(crate) fn free_port(&self) -> Result<u16, Error> {
        let ports = random_ports().map_err(|e| at(&self.name, format!("no random number: {e}")))?;
        let tries = ports.iter().map(|port| format!("{port}:{port:04X}"));
        let tries = tries.collect::<Vec<_>>().join(" ");
        let script = format!(
            "for p in {tries}; do cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 2>/dev/null | \
             grep -q \":${{p#*:}} \" || {{ echo \"${{p%:*}}\"; exit 0; }}; done; exit 1"
        );
        let said = self.shell(&script)?;
        let said = String::from_utf8_lossy(&said);
        // Only one of those that were offered is used.
        let port = ports.into_iter().find(|port| said.trim() == port.to_string());
        port.ok_or_else(|| at(&self.name, "it names no free port".to_owned()))
    }

    /// Waits up to two seconds until a program there listens on this TCP port, or none does; whether that is so.
    pub(crate) fn listens(&self, port: u16, wanted: bool) -> Result<bool, Error> {
        let not = if wanted { "" } else { "! " };
        let script = format!(
            "i=0; while [ $i -lt 40 ]; do if {not}cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -q \":{port:04X} [0-9A-F]*:0000 0A \"; \
             then echo yes; exit 0; fi; i=$((i + 1)); sleep 0.05; done; echo no"
        );
        Ok(self.shell(&script)?.starts_with(b"yes"))
    }

    fn shell(&self, script: &str) -> Result<Vec<u8>, Error> {
        let said = ssh::run(&self.address, script, &[], REMOVING, &self.stop);
        said.map_err(|e| at(&self.name, e.to_string()))
    }
}

/// Ports below those that Linux gives to connections (net.ipv4.ip_local_port_range).
fn random_ports() -> rustix::io::Result<[u16; 8]> {
    let mut random = [0; 16];
    getrandom(&mut random, GetRandomFlags::empty())?;
    let port =
        |at: usize| 20_000 + u16::from_ne_bytes([random[at * 2], random[at * 2 + 1]]) % 12_000;
    Ok(std::array::from_fn(port))
}

impl Drop for There {
    fn drop(&mut self) {
        if !self.connected {
            return;
        }
        let limits = if self.stop.is_requested() { REMOVING_SOON } else { REMOVING };
        // If this fails, the agent stays in the other system's temporary folder.
        let _ = ssh::run(&self.address, &self.folder.remove(), &[], limits, &Stop::default());
    }
}

/// The agent's folder on another system, as shell commands.
#[derive(Debug)]
struct AgentFolder(String);

impl AgentFolder {
    fn new() -> rustix::io::Result<AgentFolder> {
        let mut random = [0; 16];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(AgentFolder(format!("d=${{TMPDIR:-/tmp}}/vmtax-{digits}")))
    }

    /// Creates the folder, which must not exist, and in it the agent from standard input.
    fn receive(&self) -> String {
        format!(
            "{}; umask 077; mkdir \"$d\" && cat > \"$d/vmtax-agent\" && chmod 700 \"$d/vmtax-agent\"",
            self.0
        )
    }

    fn start(&self) -> String {
        format!("{}; exec \"$d/vmtax-agent\" job 0", self.0)
    }

    fn remove(&self) -> String {
        format!("{}; rm -f \"$d/vmtax-agent\" && rmdir \"$d\"", self.0)
    }
}
