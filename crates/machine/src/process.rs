//! Child processes that are killed when this process ends, however it ends.
//!
//! Every child is its own process group, so a Ctrl-C on the terminal does not reach it, and asks the
//! kernel for SIGKILL when its parent dies, so it is gone even after a `kill -9` of the parent.
//! That request is bound to the *thread* that spawned the child, not to the process: a child
//! spawned by a worker would die with the worker. Hence one thread, which never ends, spawns all.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{Errno, dup2, ioctl_fionbio};
use rustix::process::{Pid, Signal, getppid, kill_process_group, set_parent_process_death_signal};

/// A running child. Dropping it kills its process group and reaps it.
#[derive(Debug)]
pub(crate) struct ChildProcess {
    child: Child,
    ended: Option<ExitStatus>,
}

impl ChildProcess {
    /// Starts `command`, which is killed when this process dies.
    pub(crate) fn spawn(command: Command, handed: HandedDescriptors) -> io::Result<ChildProcess> {
        ChildProcess::spawn_with(command, handed, Signal::KILL)
    }

    /// As [`Process::spawn`], for a program that cleans up: it gets the signal `last` when this process dies.
    pub(crate) fn spawn_with(
        mut command: Command,
        handed: HandedDescriptors,
        last: Signal,
    ) -> io::Result<ChildProcess> {
        if handed.fds.iter().any(|fd| fd.as_raw_fd() >= FIRST) {
            return Err(Errno::MFILE.into());
        }
        command.process_group(0);
        bind_to_parent(&mut command, handed, last);
        let (reply, answer) = sync_channel(1);
        keeper()?
            .send(KeeperJob { command, reply })
            .map_err(|_| io::Error::other("the spawner is gone"))?;
        let child = answer.recv().map_err(|_| io::Error::other("the spawner is gone"))??;
        Ok(ChildProcess { child, ended: None })
    }

    /// Its exit status, if it has ended.
    pub(crate) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Our ends of its pipes, set to non-blocking.
    pub(crate) fn pipes(&mut self) -> io::Result<Pipes> {
        let file = |fd: Option<OwnedFd>| {
            let Some(fd) = fd else { return Ok(None) };
            ioctl_fionbio(&fd, true)?;
            io::Result::Ok(Some(File::from(fd)))
        };
        Ok(Pipes {
            stdin: file(self.child.stdin.take().map(OwnedFd::from))?,
            stdout: file(self.child.stdout.take().map(OwnedFd::from))?,
            stderr: file(self.child.stderr.take().map(OwnedFd::from))?,
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it ends, at most until `deadline`.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            if let Some(status) = self.ended()? {
                return Ok(Some(status));
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Asks it and its process group to end, and kills them if it has not by `deadline`.
    pub(crate) fn end_gently(&mut self, deadline: Instant) {
        if self.ended.is_none()
            && let Some(group) = Pid::from_raw(self.child.id().cast_signed())
        {
            // As in `end`: the process id is still valid.
            let _ = kill_process_group(group, Signal::TERM);
            let _ = self.wait_until(deadline);
        }
        self.end();
    }

    /// Kills the process group and reaps the child.
    pub(crate) fn end(&mut self) {
        if self.ended.is_some() {
            return;
        }
        if let Some(group) = Pid::from_raw(self.child.id().cast_signed()) {
            // The child is not reaped yet, so its process id is still valid.
            let _ = kill_process_group(group, Signal::KILL);
        }
        self.ended = self.child.wait().ok();
    }
}

/// Our ends of a child's pipes, as far as they are open.
pub(crate) struct Pipes {
    pub(crate) stdin: Option<File>,
    pub(crate) stdout: Option<File>,
    pub(crate) stderr: Option<File>,
}

impl Pipes {
    pub(crate) fn are_closed(&self) -> bool {
        self.stdin.is_none() && self.stdout.is_none() && self.stderr.is_none()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.end();
    }
}

/// How a process ended, in words.
pub(crate) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it exited with code {code}"),
        (None, Some(signal)) => format!("it was killed by signal {signal}"),
        (None, None) => "it ended".to_owned(),
    }
}

/// Descriptors that a child gets, each under a number of its own; all others are closed in it. They
/// are closed here when the child has started.
#[derive(Debug, Default)]
pub(crate) struct HandedDescriptors {
    fds: Vec<OwnedFd>,
}

/// The number of the first descriptor in the child: above all that are open here, so that handing one
/// over never covers another.
const FIRST: RawFd = 700;

impl HandedDescriptors {
    /// Adds a descriptor; returns its number in the child. The first is [`Handed::number`] 0, and so on.
    pub(crate) fn give(&mut self, fd: impl Into<OwnedFd>) -> RawFd {
        self.fds.push(fd.into());
        HandedDescriptors::number(self.fds.len() - 1)
    }

    /// As [`Handed::give`]; returns a path that the child can open. No path of this process is in an
    /// option of an emulator, where a comma would cut it.
    pub(crate) fn give_path(&mut self, fd: impl Into<OwnedFd>) -> String {
        format!("/proc/self/fd/{}", self.give(fd))
    }

    /// The number that the descriptor that is given as this one has in the child.
    pub(crate) fn number(index: usize) -> RawFd {
        FIRST + RawFd::try_from(index).unwrap_or(RawFd::MAX - FIRST)
    }
}

#[expect(unsafe_code, reason = "the requests have to be made between fork and exec")]
fn bind_to_parent(command: &mut Command, handed: HandedDescriptors, last: Signal) {
    let parent = rustix::process::getpid();
    let prepare = move || {
        set_parent_process_death_signal(Some(last))?;
        // The parent may have died before the request was made.
        if getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        for (index, fd) in handed.fds.iter().enumerate() {
            // SAFETY: the descriptor number is unused in this child, which is about to become another program;
            // and what `dup2` puts there is not closed here.
            let mut target = ManuallyDrop::new(unsafe {
                OwnedFd::from_raw_fd(HandedDescriptors::number(index))
            });
            dup2(fd, &mut target)?;
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls alone: it does not allocate, lock or unwind, so it may
    // run in the child of a process with many threads.
    unsafe { command.pre_exec(prepare) };
}

struct KeeperJob {
    command: Command,
    reply: SyncSender<io::Result<Child>>,
}

/// The thread that spawns: see the top of this file.
fn keeper() -> io::Result<&'static Sender<KeeperJob>> {
    static KEEPER: OnceLock<Sender<KeeperJob>> = OnceLock::new();
    if KEEPER.get().is_none() {
        let (sender, jobs) = channel();
        thread::Builder::new().name("spawner".to_owned()).spawn(move || keep(jobs))?;
        // Where two threads come here at once, the second's spawner ends as its sender is dropped.
        let _ = KEEPER.set(sender);
    }
    KEEPER.get().ok_or_else(|| io::Error::other("the spawner is gone"))
}

fn keep(jobs: Receiver<KeeperJob>) {
    for KeeperJob { mut command, reply } in jobs {
        // The requester waits for the answer.
        let _ = reply.send(command.spawn());
    }
}
