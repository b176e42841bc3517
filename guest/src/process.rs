//! The first process of a Linux guest that runs a user's program as another process, between two marks, while a recorder in the emulator records what it
//! accesses.
//!
//! The program gets no environment; its addresses are not randomized; its output goes to a file, so that nothing else runs beside it. Left out:
//! standard input, and files other than the kernel's own.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use vmtax_guest::layout;
use vmtax_guest::order::{Operation, Order, OrderOutcome, RecordedProgram, Report, UserProcess};

use crate::channel::Channel;
use crate::ports::MarkCode;
use crate::trace::Tracer;
use crate::{Result, system};

const PROGRAM: &str = "/tmp/program";
const OUTPUT: &str = "/tmp/output";
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";
/// Emulated seconds of processor time that a run may take, seconds in all, and bytes that it may write to a file.
const SECONDS_MOST: u64 = 60;
const SECONDS_IN_ALL: u32 = 120;
const OUTPUT_MOST: u64 = 32 << 20;
/// The batch that is recorded.
const RECORDED: u32 = 1;
/// Most bytes of output that a failure tells.
const SAID_MOST: usize = 200;

/// Runs what is ordered until the machine ends.
pub(crate) fn serve(channel: &Channel) -> Result<()> {
    loop {
        let (number, order) = channel.next()?;
        let outcomes = order.operations.iter().map(|one| outcome(one, &order)).collect();
        let report = Report { outcomes, release: system::release(), ..Report::default() };
        channel.finish(number, &report, &[])?;
    }
}

fn outcome(operation: &Operation, order: &Order) -> OrderOutcome {
    let (cycles, failure) = match run(operation, order) {
        Ok(cycles) => (cycles, None),
        Err(problem) => (Vec::new(), Some(problem)),
    };
    OrderOutcome { number: operation.number, cycles, failure, ..OrderOutcome::default() }
}

/// All batches; the cycles of each.
fn run(operation: &Operation, order: &Order) -> Result<Vec<u64>> {
    let Some(RecordedProgram::Process(process)) = &order.simulated else {
        return Err("the order has no program".to_owned());
    };
    let failed = |path: &str, error: std::io::Error| format!("{path}: {error}");
    fs::write(PROGRAM, &process.file).map_err(|e| failed(PROGRAM, e))?;
    fs::set_permissions(PROGRAM, fs::Permissions::from_mode(0o755))
        .map_err(|e| failed(PROGRAM, e))?;
    huge_pages(operation.paging.is_some_and(|paging| paging.large))?;
    limits()?;
    let (begin, end) = (layout::begin(operation.number), layout::end(operation.number));
    let marks = MarkCode::clocked(vec![begin, end])?;
    let batch = |number: u32| {
        let is_traced = order.trace && number == RECORDED;
        if is_traced {
            Tracer::Outside.record(true);
        }
        let began = marks.write(begin);
        let status = spawn(process).and_then(wait);
        let ended = marks.write(end);
        clear_up()?;
        if is_traced {
            Tracer::Outside.record(false);
        }
        check(status?)?;
        Ok(ended.saturating_sub(began))
    };
    let batches = if order.trace { RECORDED + 1 } else { operation.batches };
    (0..batches).map(batch).collect()
}

/// Anonymous memory is in huge pages wherever it can be, from its first touch on, or nowhere.
fn huge_pages(large: bool) -> Result<()> {
    let write = |file: &str, word: &str| {
        let path = format!("{HUGE_PAGES}/{file}");
        fs::write(&path, word).map_err(|e| format!("{path}: {e}"))
    };
    if large {
        // The thread that collapses pages later would do it at some time.
        write("khugepaged/scan_sleep_millisecs", "4000000")?;
        write("defrag", "always")?;
    }
    write("enabled", if large { "always" } else { "never" })
}

/// What this process and its children may take. Its own signals of this do not end the first process.
fn limits() -> Result<()> {
    let failed = |what: &str| format!("{what}: {}", std::io::Error::last_os_error());
    for (resource, most) in [(libc::RLIMIT_CPU, SECONDS_MOST), (libc::RLIMIT_FSIZE, OUTPUT_MOST)] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the structure is on the stack.
        if unsafe { libc::setrlimit(resource, &limit) } != 0 {
            return Err(failed("setrlimit"));
        }
    }
    // Without SA_RESTART: a wait ends.
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: the structure is on the stack, and its handler does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        if libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) != 0 {
            return Err(failed("sigaction"));
        }
    }
    const ADDR_NO_RANDOMIZE: libc::c_ulong = 0x0004_0000;
    // SAFETY: changes how programs are loaded, and nothing here.
    if unsafe { libc::personality(ADDR_NO_RANDOMIZE) } < 0 {
        return Err(failed("personality"));
    }
    Ok(())
}

/// Starts the program by posix_spawn(3): until it executes the program the new process has the tables of this one, by which the recorder knows it.
fn spawn(process: &UserProcess) -> Result<libc::pid_t> {
    let word = |word: &String| CString::new(word.as_bytes()).map_err(|e| e.to_string());
    let words = process.words.iter().map(word).collect::<Result<Vec<CString>>>()?;
    let mut arguments: Vec<*mut libc::c_char> =
        words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    arguments.push(std::ptr::null_mut());
    let environment = [std::ptr::null_mut()];
    let [program, output] = [PROGRAM, OUTPUT].map(|path| CString::new(path).unwrap_or_default());
    let mut pid = 0;
    // SAFETY: the actions are initialised before they are used, and destroyed; all strings live until the call returns.
    let error = unsafe {
        let mut actions: libc::posix_spawn_file_actions_t = std::mem::zeroed();
        libc::posix_spawn_file_actions_init(&mut actions);
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND;
        libc::posix_spawn_file_actions_addopen(
            &mut actions,
            0,
            c"/dev/null".as_ptr(),
            libc::O_RDONLY,
            0,
        );
        libc::posix_spawn_file_actions_addopen(&mut actions, 1, output.as_ptr(), flags, 0o600);
        libc::posix_spawn_file_actions_adddup2(&mut actions, 1, 2);
        let error = libc::posix_spawn(
            &mut pid,
            program.as_ptr(),
            &actions,
            std::ptr::null(),
            arguments.as_ptr(),
            environment.as_ptr(),
        );
        libc::posix_spawn_file_actions_destroy(&mut actions);
        error
    };
    match error {
        0 => Ok(pid),
        error => Err(format!(
            "the guest's kernel does not start the program: {}",
            std::io::Error::from_raw_os_error(error)
        )),
    }
}

/// Waits for its end, as long as a run may take in all.
fn wait(pid: libc::pid_t) -> Result<ExitStatus> {
    let mut status = 0;
    // SAFETY: writes the status only; the alarm's handler does nothing.
    let found = unsafe {
        libc::alarm(SECONDS_IN_ALL);
        let found = libc::waitpid(pid, &mut status, 0);
        libc::alarm(0);
        found
    };
    let error = std::io::Error::last_os_error();
    match found {
        found if found == pid => Ok(ExitStatus::from_raw(status)),
        _ if error.kind() == std::io::ErrorKind::Interrupted => {
            Err(format!("the program did not end within {SECONDS_IN_ALL} s"))
        }
        _ => Err(format!("waitpid: {error}")),
    }
}

/// Ends what the program has left, and takes its files away: the next run finds what this one found.
fn clear_up() -> Result<()> {
    // SAFETY: all processes but this one, the first, which a signal to all spares.
    unsafe {
        libc::kill(-1, libc::SIGKILL);
        while libc::waitpid(-1, std::ptr::null_mut(), 0) > 0 {}
    }
    let failed = |error: std::io::Error| format!("/tmp: {error}");
    for entry in fs::read_dir("/tmp").map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path != Path::new(PROGRAM) && path != Path::new(OUTPUT) {
            let is_folder = path.symlink_metadata().map_err(failed)?.is_dir();
            if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) }
                .map_err(failed)?;
        }
    }
    Ok(())
}

fn check(status: ExitStatus) -> Result<()> {
    let said = fs::read(OUTPUT).unwrap_or_default();
    let end = &said[said.len().saturating_sub(SAID_MOST)..];
    let end = String::from_utf8_lossy(end);
    let line = end.lines().rfind(|line| !line.trim().is_empty());
    let line = line.map(|line| format!("; its last line: {}", line.trim())).unwrap_or_default();
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(format!("the program exited with code {code}{line}")),
        (None, Some(libc::SIGXCPU)) => {
            Err(format!("the program did not end within {SECONDS_MOST} s of emulated time{line}"))
        }
        (None, signal) => Err(format!(
            "the program raised signal {}{line}",
            signal.map_or_else(|| "?".to_owned(), |signal| signal.to_string())
        )),
    }
}
