//! Runs a query in a child process, because it can exceed limits or crash.
//!
//! ```text
//! parent: creates the spill folder             ──> child: limits its memory, runs the query, writes rows
//!         holds its standard input open        ──> end of input: the parent has ended, so remove the folder and end
//!         reads its standard error             <── messages, forwarded if it exits normally
//! ```
//!
//! `--memory` limits operators only. Functions can create texts and lists of any length, a plan can overflow the stack, and the engine
//! panics on some input. Then the child ends, and the parent reports it in one sentence. The folder is removed however the query ends; if
//! both processes are killed at once, the next query removes it.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use rustix::process::{
    PidfdFlags, Resource, Rlimit, Signal, getrlimit, pidfd_open, pidfd_send_signal, setrlimit,
};
use signal_hook::consts::{SIGABRT, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::{self, Code, Fault};
use crate::query;
use vmtax_fleet_flags::QueryArgs;

/// The variable with the folder, which also marks a process as the child.
const SPILL: &str = "VMTAX_QUERY_SPILL";
/// Stack for planning, which recurses over the plan.
const STACK: usize = 256 << 20;
/// Memory of the child in addition to 2 x --memory: the program, files being decoded, rows being written.
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
    let killer = {
        let signal = Arc::clone(&signal);
        let process = rustix::process::Pid::from_child(&child);
        let process = pidfd_open(process, PidfdFlags::empty()).context("the query's process")?;
        std::thread::spawn(move || {
            if let Some(number) = signals.forever().next() {
                signal.store(number, Ordering::SeqCst);
                // The child may have ended.
                let _ = pidfd_send_signal(&process, Signal::KILL);
            }
        })
    };
    let ended = end(&mut child);
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
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) if code <= Code::Machine as u8 => {
            // Standard error may be closed.
            let _ = io::stderr().write_all(&said);
            Ok(ExitCode::from(code))
        }
        _ => Err(died(status, &String::from_utf8_lossy(&said), args).into()),
    }
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

/// The error of a child that did not exit normally.
fn died(status: ExitStatus, said: &str, args: &QueryArgs) -> Fault {
    let memory = "give it more with --memory, or ask for less";
    if let Some(rest) = said.split_once("memory allocation of ") {
        let bytes = rest.1.split(' ').next().unwrap_or_default();
        let taken = vmtax_report::numbers::size(args.limits.memory as u64);
        return Fault::new(
            Code::Unexpected,
            format!(
                "the query needs more memory than --memory {taken} allows: something in it asked for {bytes} bytes more; {memory}"
            ),
        );
    }
    if said.contains("has overflowed its stack") {
        return Fault::new(
            Code::Usage,
            "the SQL cannot be asked: it is nested too deeply, or has too many parts; ask it in parts",
        );
    }
    let how = match status.signal() {
        Some(9) => {
            return Fault::new(
                Code::Unexpected,
                format!(
                    "the query's process was killed, by the system if memory is short; {memory}"
                ),
            );
        }
        Some(SIGABRT) | None => "the engine cannot carry it out".to_owned(),
        Some(signal) => format!("the engine ended with signal {signal}"),
    };
    Fault::new(Code::Unexpected, format!("the query failed: {how}; ask it in another way"))
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
            Err(Fault::new(Code::Unexpected, format!("{what}; ask it in another way")).into())
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
    let wall = 2 * limits.memory as u64 + BESIDE + stacks;
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
