//! Where jobs run: this computer, a system behind ssh, a VM. The same agent everywhere.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use vmtax_guest::job::{Answer, Job, Outcome, Request};
use vmtax_guest::order::{decode, encode};

use crate::Error;
use crate::facts::Facts;
use crate::vm::Vm;

/// An answer is no longer.
const ANSWER_MOST: u64 = 64 << 20;
/// Most of what ssh says that is quoted.
const WORDS_MOST: usize = 300;

/// A system with an agent.
#[derive(Debug)]
pub enum Place {
    /// This computer.
    Here(Here),
    /// Behind ssh.
    There(There),
    /// A VM that was launched.
    Vm(Box<Vm>),
}

impl Place {
    /// What this system is.
    pub fn facts(&mut self) -> Result<Facts, Error> {
        match self.ask(&Request::Facts)? {
            Answer::Facts(facts) => Ok(facts.into_iter().collect()),
            Answer::Done(_) => Err(self.strange()),
        }
    }

    /// Does a job.
    pub fn execute(&mut self, job: &Job) -> Result<Outcome, Error> {
        match self.ask(&Request::Do(job.clone()))? {
            Answer::Done(outcome) => Ok(outcome),
            Answer::Facts(_) => Err(self.strange()),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, Error> {
        match self {
            Place::Here(here) => here.ask(request),
            Place::There(there) => there.ask(request),
            Place::Vm(vm) => vm.ask(request),
        }
    }

    fn strange(&self) -> Error {
        Error::Answer {
            place: "the agent".to_owned(),
            problem: "it is one to another question".to_owned(),
        }
    }
}

/// This computer. The agent is a file without a name, so nothing of it stays.
#[derive(Debug)]
pub struct Here {
    agent: std::fs::File,
}

impl Here {
    /// With this program as the agent.
    pub fn new(program: &[u8]) -> Result<Here, Error> {
        let failed =
            |e: std::io::Error| at("host", format!("the agent cannot be kept in memory: {e}"));
        // Not closed in children: the kernel opens it by this process's number.
        let fd = memfd_create("vmtax-agent", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let mut agent = std::fs::File::from(fd);
        agent.write_all(program).map_err(failed)?;
        // The kernel does not start a file that is open for writing: this is the same one, open for reading.
        let path = format!("/proc/self/fd/{}", agent.as_raw_fd());
        let agent = std::fs::File::open(path).map_err(failed)?;
        Ok(Here { agent })
    }

    fn ask(&self, request: &Request) -> Result<Answer, Error> {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.agent.as_raw_fd());
        let mut command = Command::new(path);
        command.args(["job", &std::process::id().to_string()]);
        converse(&mut command, &encode(request), "host")
    }
}

/// A system behind ssh. The agent lies in a folder of its own there, which is removed in the end.
#[derive(Debug)]
pub struct There {
    name: String,
    address: String,
    folder: PathBuf,
}

impl There {
    /// Takes the agent there.
    pub fn new(name: &str, address: &str, program: &[u8]) -> Result<There, Error> {
        let script = "umask 077 && d=$(mktemp -d) && cat > $d/vmtax-agent && chmod 700 $d/vmtax-agent && echo $d";
        let output = talk(&mut ssh(address, script), program, name)?;
        let folder = String::from_utf8_lossy(&output).trim().to_owned();
        let plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        if !folder.starts_with('/') || !folder.chars().all(plain) || folder.contains("..") {
            return Err(at(
                name,
                "mktemp -d there gave no folder; the agent needs a shell with mktemp".to_owned(),
            ));
        }
        Ok(There { name: name.to_owned(), address: address.to_owned(), folder: folder.into() })
    }

    fn ask(&self, request: &Request) -> Result<Answer, Error> {
        let script = format!("exec {}/vmtax-agent job 0", self.folder.display());
        converse(&mut ssh(&self.address, &script), &encode(request), &self.name)
    }
}

impl Drop for There {
    fn drop(&mut self) {
        let script = format!("rm -rf {}", self.folder.display());
        // Where that fails a file stays in a folder for temporary files.
        let _ = talk(&mut ssh(&self.address, &script), &[], &self.name);
    }
}

fn ssh(address: &str, script: &str) -> Command {
    let mut command = Command::new("ssh");
    command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "--", address, script]);
    command
}

fn converse(command: &mut Command, request: &[u8], place: &str) -> Result<Answer, Error> {
    let bytes = talk(command, request, place)?;
    let problem = "it has another form than this vmtax reads".to_owned();
    decode(&bytes).ok_or_else(|| Error::Answer { place: place.to_owned(), problem })
}

/// Runs a command with this input; returns its output, if it ends with success.
fn talk(command: &mut Command, input: &[u8], place: &str) -> Result<Vec<u8>, Error> {
    let failed = |what: &str, e: std::io::Error| at(place, format!("{what}: {e}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| failed("the agent does not start", e))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let words = std::thread::spawn(move || read(stderr, 64 << 10));
    if let Some(mut stdin) = stdin {
        // One that ends without reading says why on its other end.
        let _ = stdin.write_all(input);
    }
    let bytes = read(stdout, ANSWER_MOST);
    let status = child.wait().map_err(|e| failed("waiting for the agent", e))?;
    let words = words.join().unwrap_or_default();
    if status.success() {
        return Ok(bytes);
    }
    let words = String::from_utf8_lossy(&words);
    let words: String = words.trim().chars().filter(|c| !c.is_control()).take(WORDS_MOST).collect();
    Err(at(place, format!("the agent did not do its work ({status}): {words}")))
}

fn read(from: Option<impl Read>, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        // What is missing makes the answer unreadable, and that is said.
        let _ = from.take(most).read_to_end(&mut bytes);
    }
    bytes
}

pub(crate) fn at(place: &str, problem: String) -> Error {
    Error::Agent { place: place.to_owned(), problem }
}
