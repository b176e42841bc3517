//! Runs a job: folder, server, warm-up, client, and cleanup.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use vmtax_guest::job::{AGENT, Busy, DIR, Job, JobOutcome, PORT};

use crate::counters::ClientCounters;
use crate::trace::Tracer;
use crate::{Result, system};

/// Most bytes of an output. A program that writes more is ended, before it fills the disk.
const OUTPUT_MOST: u64 = 16 << 20;
/// Most bytes kept of the server's output.
const SERVER_MOST: u64 = 64 << 10;
/// Time between two polls of a program.
const LOOK: Duration = Duration::from_millis(2);
/// Time for a server to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// Everything to be removed at the end of the job, however it ends.
static LEFT: Mutex<Left> = Mutex::new(Left { programs: Vec::new(), folder: None });

struct Left {
    programs: Vec<u32>,
    folder: Option<PathBuf>,
}

/// Ends every program of the job, and what those started, and removes its folder.
pub(crate) fn clean_up() {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    left.programs.drain(..).for_each(system::kill_group);
    if let Some(folder) = left.folder.take() {
        // Errors cannot be handled here.
        let _ = fs::remove_dir_all(folder);
    }
}

/// Runs the job. Errors are part of the outcome.
pub(crate) fn run(job: &Job, tracer: &Tracer) -> JobOutcome {
    let mut outcome = JobOutcome::default();
    if let Err(problem) = try_run(job, tracer, &mut outcome) {
        outcome.problem = problem;
    }
    clean_up();
    outcome
}

struct ProgramPlace {
    folder: PathBuf,
    port: u16,
    deadline: Instant,
}

/// A server whose clients are on another system. It runs until it is ended.
pub(crate) struct Served {
    before: Option<Busy>,
    place: ProgramPlace,
    server: Option<RunningProgram>,
}

impl Served {
    /// Starts the server of a job and waits until it listens.
    pub(crate) fn start(job: &Job) -> Result<Served> {
        let started = ProgramPlace::new(job).and_then(|place| {
            let server = place.serve(&job.server)?;
            Ok(Served { before: processors(), place, server })
        });
        started.inspect_err(|_| clean_up())
    }

    /// Ends it: what it wrote, and whether it had ended by itself.
    pub(crate) fn end(mut self) -> JobOutcome {
        let mut outcome =
            JobOutcome { busy: busy_since(self.before).map(Box::new), ..JobOutcome::default() };
        if let Some(mut server) = self.server.take() {
            match server.ended() {
                Ok(None) => server.end(),
                Ok(Some(status)) => {
                    outcome.problem = format!("the server ended while it was measured ({status})");
                }
                Err(problem) => outcome.problem = problem,
            }
        }
        outcome.server = tail(&self.place.folder.join("server.txt"), SERVER_MOST);
        clean_up();
        outcome
    }
}

fn try_run(job: &Job, tracer: &Tracer, outcome: &mut JobOutcome) -> Result<()> {
    let place = ProgramPlace::new(job)?;
    let mut server = place.serve(&job.server)?;
    let done = place.clients((job, tracer), &mut server, outcome);
    if let Some(server) = &mut server {
        server.end();
        outcome.server = tail(&place.folder.join("server.txt"), SERVER_MOST);
    }
    done
}

impl ProgramPlace {
    /// A folder with the job's files.
    fn new(job: &Job) -> Result<ProgramPlace> {
        let place = ProgramPlace {
            folder: folder()?,
            port: job.port.map_or_else(free_port, Ok)?,
            deadline: Instant::now() + Duration::from_millis(job.limit_ms),
        };
        for (name, content) in &job.files {
            let path = place.folder.join(name);
            let written = fs::write(&path, place.filled(content));
            written.map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(place)
    }

    fn filled(&self, text: &str) -> String {
        // By its process id: the agent may be a file without a name.
        let agent = format!("/proc/{}/exe", std::process::id());
        text.replace(DIR, &self.folder.to_string_lossy())
            .replace(PORT, &self.port.to_string())
            .replace(AGENT, &agent)
    }

    fn start(&self, words: &[String], out: &str, errors: &str) -> Result<RunningProgram> {
        let (program, rest) = words.split_first().ok_or("a command of no words was ordered")?;
        let program = self.filled(program);
        let file = |name: &str| {
            let path = self.folder.join(name);
            File::options()
                .create(true)
                .append(true)
                .open(&path)
                .map_err(|e| format!("{}: {e}", path.display()))
        };
        let mut command = Command::new(&program);
        command
            .args(rest.iter().map(|word| self.filled(word)))
            .env("LC_ALL", "C")
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(file(out)?)
            .stderr(file(errors)?);
        if system::is_first() {
            command.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
            command.env("HOME", "/tmp");
        }
        system::bind_to_parent(&mut command);
        let child = command.spawn().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => format!("{program} is not installed there"),
            _ => format!("{program} does not start: {e}"),
        })?;
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.programs.push(child.id());
        Ok(RunningProgram { child, ended: None })
    }

    /// Starts the server and waits until it accepts connections.
    fn serve(&self, words: &[String]) -> Result<Option<RunningProgram>> {
        if words.is_empty() {
            return Ok(None);
        }
        let mut server = self.start(words, "server.txt", "server.txt")?;
        loop {
            if let Some(status) = server.ended()? {
                let said = tail(&self.folder.join("server.txt"), 2000);
                let said = String::from_utf8_lossy(&said);
                return Err(format!(
                    "the server ended before it served ({status}): {}",
                    said.trim()
                ));
            }
            self.check_output(&["server.txt"])?;
            if is_served(self.port)? {
                return Ok(Some(server));
            }
            if Instant::now() > self.deadline {
                return Err("the server does not accept connections within the limit".to_owned());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn clients(
        &self,
        (job, tracer): (&Job, &Tracer),
        server: &mut Option<RunningProgram>,
        outcome: &mut JobOutcome,
    ) -> Result<()> {
        for warmup in &job.warmups {
            let status = self.client(warmup, server, "warmup.txt", "warmup.txt")?.0;
            if !status.success() {
                outcome.stderr = tail(&self.folder.join("warmup.txt"), OUTPUT_MOST);
                return Err(format!("the warming up failed ({status})"));
            }
        }
        if job.server_anew && !job.warmups.is_empty() {
            if let Some(mut old) = server.take() {
                old.end();
            }
            *server = self.serve(&job.server)?;
        }
        let counters = job.counters.then(ClientCounters::open);
        let before = processors();
        tracer.count(true);
        let recorder = if job.record || job.profile { tracer } else { &Tracer::Off };
        recorder.record(true);
        let done = self.client(&job.client, server, "stdout.txt", "stderr.txt");
        recorder.record(false);
        tracer.count(false);
        outcome.busy = busy_since(before).map(Box::new);
        outcome.stdout = tail(&self.folder.join("stdout.txt"), OUTPUT_MOST);
        outcome.stderr = tail(&self.folder.join("stderr.txt"), OUTPUT_MOST);
        let (status, elapsed) = done?;
        outcome.counters = counters.map_or_else(Vec::new, ClientCounters::read);
        outcome.code = status.code();
        outcome.elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        match status.success() {
            true => Ok(()),
            false => Err(format!("it failed ({status})")),
        }
    }

    /// Fails if a program has written too much.
    fn check_output(&self, names: &[&str]) -> Result<()> {
        // Jobs without a server do not have this file.
        let length =
            |name: &&str| fs::metadata(self.folder.join(name)).map_or(0, |data| data.len());
        match names.iter().any(|name| length(name) > OUTPUT_MOST) {
            true => Err(format!(
                "it wrote more than {} MiB of output, and was ended",
                OUTPUT_MOST >> 20
            )),
            false => Ok(()),
        }
    }

    fn client(
        &self,
        words: &[String],
        server: &mut Option<RunningProgram>,
        out: &str,
        errors: &str,
    ) -> Result<(ExitStatus, Duration)> {
        let started = Instant::now();
        let mut client = self.start(words, out, errors)?;
        loop {
            let ended = client.ended()?;
            let elapsed = started.elapsed();
            self.check_output(&[out, errors, "server.txt"])?;
            if let Some(status) = ended {
                return Ok((status, elapsed));
            }
            if let Some(server) = server
                && let Some(status) = server.ended()?
            {
                return Err(format!("the server ended while it was measured ({status})"));
            }
            if Instant::now() > self.deadline {
                return Err("it took longer than its limit, and was ended".to_owned());
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// A program of the job.
struct RunningProgram {
    child: Child,
    ended: Option<ExitStatus>,
}

impl RunningProgram {
    fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended =
                self.child.try_wait().map_err(|e| format!("waiting for a program: {e}"))?;
            if self.ended.is_some() {
                self.forget();
            }
        }
        Ok(self.ended)
    }

    /// Its children end with it; then its process id may be reused.
    fn forget(&self) {
        system::kill_group(self.child.id());
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        left.programs.retain(|pid| *pid != self.child.id());
    }

    /// Sends SIGTERM, so that it flushes its output, and waits a moment.
    fn end(&mut self) {
        if matches!(self.ended(), Ok(None)) {
            system::terminate(self.child.id());
            let end = Instant::now() + GRACE;
            while matches!(self.ended(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(LOOK);
            }
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        if self.ended.is_none() {
            system::kill_group(self.child.id());
            let _ = self.child.wait();
            self.forget();
        }
    }
}

/// A new private folder.
fn folder() -> Result<PathBuf> {
    let above = if system::is_first() { PathBuf::from("/tmp") } else { std::env::temp_dir() };
    let problem = |e| format!("{}: a folder cannot be made there: {e}", above.display());
    for number in 0..1000 {
        let path = above.join(format!("vmtax-job-{}-{number}", std::process::id()));
        match system::private_folder(&path) {
            Ok(()) => {
                LEFT.lock().unwrap_or_else(PoisonError::into_inner).folder = Some(path.clone());
                return Ok(path);
            }
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(problem(e)),
        }
    }
    Err(problem(std::io::ErrorKind::AlreadyExists.into()))
}

/// A port that is free for TCP and UDP.
fn free_port() -> Result<u16> {
    for _ in 0..100 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .map_err(|e| format!("the loopback: {e}"))?;
        let port = listener.local_addr().map_err(|e| format!("the loopback: {e}"))?.port();
        if UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err("the loopback has no free port".to_owned())
}

/// Whether a program listens on the TCP port, by the kernel's table. A test connection would disturb programs that serve one client at a
/// time, such as iperf3.
///
/// A line of the table is `0: 0100007F:1F90 00000000:0000 0A ...`: number, address and port of both ends, state (TCP_LISTEN
/// is 10), all in hexadecimal digits.
fn is_served(port: u16) -> Result<bool> {
    let path = "/proc/self/net/tcp";
    let table = fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
    Ok(table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().take(4).collect();
        let [_, local, _, "0A"] = words[..] else { return false };
        local.rsplit_once(':').is_some_and(|(_, at)| u16::from_str_radix(at, 16) == Ok(port))
    }))
}

/// Time of the processors since the system started.
fn processors() -> Option<Busy> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    processors_of(&text)
}

/// The first line of `/proc/stat`: `cpu` and ticks of user, nice, system, idle, iowait, irq, softirq, steal; and guest times, which are in user.
fn processors_of(stat: &str) -> Option<Busy> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let ticks: Vec<u64> = words.take(8).filter_map(|word| word.parse().ok()).collect();
    // The last is stolen time, which is neither: the processor was with others.
    let [user, nice, system, idle, waiting, interrupts, soft, _] = ticks[..] else { return None };
    let busy = user + nice + system + interrupts + soft;
    Some(Busy { busy, total: busy + idle + waiting })
}

fn busy_since(before: Option<Busy>) -> Option<Busy> {
    let (before, now) = (before?, processors()?);
    let total = now.total.checked_sub(before.total).filter(|total| *total > 0)?;
    // The kernel's sums of idle time may go back a little.
    Some(Busy { busy: now.busy.saturating_sub(before.busy).min(total), total })
}

/// The last bytes of a file; empty if it does not exist.
fn tail(path: &Path, most: u64) -> Vec<u8> {
    use std::io::{Read, Seek, SeekFrom};
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
        file.take(most).read_to_end(&mut bytes)
    });
    // Unreadable output is missing, which its parser reports.
    drop(read);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_stolen_time_is_not_busy() {
        let line = "cpu  10 1 20 300 5 2 3 40 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(processors_of(line), Some(Busy { busy: 36, total: 341 }));
        assert_eq!(processors_of("cpu  10 1 20"), None);
        assert_eq!(processors_of(""), None);
    }
}
