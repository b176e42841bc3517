//! Runs a query in a child process, because it can exceed limits or crash.
//!
//! ```text
//! parent: creates the spill folder             ──> child: limits its memory, runs the query, writes rows
//!         holds its standard input open        ──> end of input: the parent has ended, so remove the folder and end
//!         reads its standard error             <── messages, forwarded if it exits normally
//! ```
//!
//! `--memory` limits operators only. Functions can create texts and lists of any length, a plan can overflow the stack, the engine
//! panics on some input, and a join can run for years. Then the child ends, by itself or by the parent, which reports it in one sentence. The folder is
//! removed however the query ends; if both processes are killed at once, the next query removes it.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{
    PidfdFlags, Resource, Rlimit, Signal, getrlimit, pidfd_open, pidfd_send_signal, setrlimit,
};
use signal_hook::consts::{SIGABRT, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::{self, Code, CodedError};
use crate::query;
use vmtax_fleet_flags::QueryArgs;

/// The variable with the folder, which also marks a process as the child.
const SPILL: &str = "VMTAX_QUERY_SPILL";
/// Stack for planning, which recurses over the plan.
const STACK: usize = 256 << 20;
/// Memory of the child in addition to --memory: the program, files being decoded, rows being written.
const BESIDE: u64 = 512 << 20;
/// Bytes kept of the child's messages.
const MESSAGES: u64 = 1 << 20;

/// The first panic of this process.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// The folder, if this process is the child. Other paths than those of a parent are ignored, because the child removes the folder.
pub(crate) fn spill() -> Option<PathBuf> {
    let folder = std::env::var_os(SPILL).map(PathBuf::from)?;
    let name = folder.file_name()?.as_bytes();
    let is_ours =
        folder.parent() == Some(&std::env::temp_dir()) && name.starts_with(b".vmtax-query.");
    is_ours.then_some(folder)
}

/// Runs the query in a child, and returns its outcome.
pub(crate) fn supervise(args: &QueryArgs) -> anyhow::Result<ExitCode> {
    let spill = crate::scratch("vmtax-query")?;
    let program = std::env::current_exe().context("this program's file")?;
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("signals")?;
    let mut child = Command::new(&program)
        .args(words)
        .env(SPILL, spill.path())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{}: cannot be started", program.display()))?;
    let signal = Arc::new(AtomicI32::new(0));
    let handle = signals.handle();
    let process = rustix::process::Pid::from_child(&child);
    let process =
        Arc::new(pidfd_open(process, PidfdFlags::empty()).context("the query's process")?);
    let killer = {
        let (signal, process) = (Arc::clone(&signal), Arc::clone(&process));
        std::thread::spawn(move || {
            if let Some(number) = signals.forever().next() {
                signal.store(number, Ordering::SeqCst);
                // The child may have ended.
                let _ = pidfd_send_signal(&*process, Signal::KILL);
            }
        })
    };
    let (tell_end, has_ended) = mpsc::channel::<()>();
    let id = child.id();
    let (ended, limit) = std::thread::scope(|scope| {
        let watcher = scope.spawn(move || watch(args, id, &has_ended, &process));
        let ended = end(&mut child);
        drop(tell_end);
        (ended, watcher.join().unwrap_or_default())
    });
    handle.close();
    // The thread only panics if the library does.
    let _ = killer.join();
    drop(spill);
    let number = signal.load(Ordering::SeqCst);
    if number != 0 {
        // End by the same signal, for the parent of this process.
        signal_hook::low_level::emulate_default_handler(number).context("signals")?;
    }
    let (status, said) = ended.context("the query's process")?;
    if let Some(limit) = limit.filter(|_| status.signal() == Some(9)) {
        return Err(CodedError::new(Code::Unexpected, exceeded(limit, args)).into());
    }
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) if code <= Code::Machine as u8 => {
            // Standard error may be closed.
            let _ = io::stderr().write_all(&said);
            Ok(ExitCode::from(code))
        }
        _ => Err(died(status, &String::from_utf8_lossy(&said), args).into()),
    }
}

/// How often a terminal is told that a query still runs.
const STILL_RUNS: Duration = Duration::from_secs(5);
/// How often the child's memory is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Why the parent ended the child.
#[derive(Clone, Copy, Debug)]
enum ChildLimit {
    Time,
    Memory,
}

/// Waits until the child has ended, or ends it at a limit. A terminal is told how long it runs.
fn watch(
    args: &QueryArgs,
    child: u32,
    has_ended: &Receiver<()>,
    process: &OwnedFd,
) -> Option<ChildLimit> {
    let (timeout, most) = (args.timeout, args.limits.memory as u64 + BESIDE);
    let shown = |time: Duration| vmtax_report::numbers::duration(time.as_nanos() as f64);
    let began = Instant::now();
    let mut told = Duration::ZERO;
    loop {
        let left = timeout.saturating_sub(began.elapsed());
        match has_ended.recv_timeout(left.min(LOOK)) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return None,
        }
        let runs = began.elapsed();
        let limit = if runs >= timeout {
            ChildLimit::Time
        } else if resident(child).is_some_and(|bytes| bytes > most) {
            ChildLimit::Memory
        } else {
            if runs >= told + STILL_RUNS && io::stderr().is_terminal() {
                told = Duration::from_secs(runs.as_secs());
                let sentence = format!(
                    "the query runs for {}; --timeout ends it after {}",
                    shown(told),
                    shown(timeout)
                );
                exit::say(&sentence);
            }
            continue;
        };
        // The child may have ended.
        let _ = pidfd_send_signal(process, Signal::KILL);
        return Some(limit);
    }
}

/// Resident memory of a process, bytes: the second number of statm, in pages.
fn resident(pid: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages.saturating_mul(rustix::param::page_size() as u64))
}

/// Reads a child's messages until it ends.
fn end(child: &mut Child) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut said = Vec::new();
    if let Some(mut messages) = child.stderr.take() {
        messages.by_ref().take(MESSAGES).read_to_end(&mut said)?;
        io::copy(&mut messages, &mut io::sink())?;
    }
    // Not `wait`, which would close its input: to the child that means that the parent has ended.
    let input = child.stdin.take();
    let status = child.wait()?;
    drop(input);
    Ok((status, said))
}

/// What a query exceeded.
fn exceeded(limit: ChildLimit, args: &QueryArgs) -> String {
    match limit {
        ChildLimit::Time => format!(
            "the query did not end within {}; give it more time with --timeout, or ask for less",
            vmtax_report::numbers::duration(args.timeout.as_nanos() as f64)
        ),
        ChildLimit::Memory => format!(
            "the query needs more memory than --memory {} allows; give it more with --memory, or ask for less",
            vmtax_report::numbers::size(args.limits.memory as u64)
        ),
    }
}

/// The error of a child that did not exit normally.
fn died(status: ExitStatus, said: &str, args: &QueryArgs) -> CodedError {
    let memory = "give it more with --memory, or ask for less";
    if let Some(rest) = said.split_once("memory allocation of ") {
        let bytes = rest.1.split(' ').next().unwrap_or_default();
        let taken = vmtax_report::numbers::size(args.limits.memory as u64);
        return CodedError::new(
            Code::Unexpected,
            format!(
                "the query needs more memory than --memory {taken} allows: something in it asked for {bytes} bytes more; {memory}"
            ),
        );
    }
    if said.contains("has overflowed its stack") {
        return CodedError::new(
            Code::Usage,
            "the SQL cannot be asked: it is nested too deeply, or has too many parts; ask it in parts",
        );
    }
    let how = match status.signal() {
        Some(9) => {
            return CodedError::new(
                Code::Unexpected,
                format!(
                    "the query's process was killed, by the system if memory is short; {memory}"
                ),
            );
        }
        Some(SIGABRT) | None => "the engine cannot carry it out".to_owned(),
        Some(signal) => format!("the engine ended with signal {signal}"),
    };
    CodedError::new(Code::Unexpected, format!("the query failed: {how}; ask it in another way"))
}

/// Runs the query, in the child.
pub(crate) fn run(args: QueryArgs, spill: PathBuf) -> ExitCode {
    std::panic::set_hook(Box::new(|info| {
        let text = info.payload().downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| info.payload().downcast_ref::<String>().cloned());
        let mut first = PANIC.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| text.unwrap_or_default());
    }));
    limit_memory(&args);
    let folder = spill.clone();
    // The thread ends with the process.
    std::thread::spawn(move || until_alone(&folder));
    let asked =
        std::thread::Builder::new().stack_size(STACK).spawn(move || query::run(&args, &spill));
    let result = match asked.map(std::thread::JoinHandle::join) {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Ok(()),
        Err(error) => Err(anyhow::Error::new(error).context("a thread for the query")),
    };
    // A panic in another thread may have lost rows, even if the query succeeded.
    let panic = PANIC.lock().unwrap_or_else(PoisonError::into_inner).take();
    let result = match panic {
        Some(text) => {
            let text = text.lines().next().unwrap_or_default();
            let what = format!("the query failed: the engine cannot carry it out ({text})");
            Err(CodedError::new(Code::Unexpected, format!("{what}; ask it in another way")).into())
        }
        None => result,
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

/// The last limit: all written memory of the process. Reserved address space does not count.
fn limit_memory(args: &QueryArgs) {
    let limits = query::limits(&args.limits);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) + crate::BLOCKING;
    let stacks = (STACK + threads * crate::STACK) as u64;
    let wall = limits.memory as u64 + BESIDE + stacks;
    let lower = |resource: Resource, to: u64| {
        let Rlimit { current, maximum } = getrlimit(resource);
        let to = [Some(to), current, maximum].into_iter().flatten().min();
        // If the system refuses, it has its own limit, or none.
        let _ = setrlimit(resource, Rlimit { current: to, maximum });
    };
    lower(Resource::Data, wall);
    // The parent reports why the child died.
    lower(Resource::Core, 0);
}

/// Waits for the end of the parent, by the end of standard input.
fn until_alone(spill: &Path) {
    let mut byte = [0];
    while let Ok(1..) = io::stdin().read(&mut byte) {}
    // The next query removes leftovers.
    let _ = vmtax_durable::remove_folder(spill);
    std::process::exit(i32::from(Code::Unexpected as u8));
}
