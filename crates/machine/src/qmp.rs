//! The QEMU Machine Protocol: commands, their answers, and events of the VM.
//!
//! The other end may be a QEMU under load, one that another client controls too, or not a QEMU. A message has a size limit, and a
//! command a deadline for all that is received until its answer, events included.

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg, socket_with,
};
use serde_json::{Value, json};

use crate::Stop;
use crate::stream::{LineReader, StreamError, Until, write_all};

/// Timeout of a command. QEMU usually answers within milliseconds, but not while it flushes disks, loads a kernel, or the host is
/// busy.
const PATIENCE: Duration = Duration::from_secs(120);
/// Timeout of the greeting, which is not sent while another client is connected.
const GREETING: Duration = Duration::from_secs(20);
/// Timeout of a command that undoes something: another one has failed before.
const UNDO: Duration = Duration::from_secs(30);
/// The same after a stop request.
const HASTE: Duration = Duration::from_secs(1);
/// The same when the previous one was not answered either: it is still sent, in case QEMU executes it later.
const HOPELESS: Duration = Duration::from_millis(50);
/// Most bytes of a message. The longest answer expected is the list of CPU properties, 40 KB.
const LONGEST_LINE: usize = 4 << 20;
/// Most characters shown of QEMU's messages.
const LONGEST_WORDS: usize = 400;

/// Events of the VM since the connection was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QmpEvents {
    /// STOP: it ran and was stopped.
    pub stops: u64,
    /// RESUME: it was stopped and continues.
    pub resumes: u64,
    pub resets: u64,
    /// WAKEUP: it was suspended and continues.
    pub wakeups: u64,
    /// Why it shut down: `guest-shutdown`, `guest-reset`, `guest-panic`, `host-qmp-quit`, ...
    pub shutdown: Option<String>,
}

/// A connection to one QEMU.
#[derive(Debug)]
pub struct Qmp {
    name: String,
    reader: LineReader<UnixStream>,
    stop: Stop,
    /// A command that undoes something was not answered in time.
    is_mute: bool,
    /// Number of the last command. An answer carries the number of its command.
    sent: u64,
    events: QmpEvents,
}

/// A connection that failed, or a command that was refused.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct QmpError {
    pub name: String,
    #[source]
    pub problem: QmpProblem,
}

impl QmpError {
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.problem, QmpProblem::Refused { .. })
    }

    fn is_timed_out(&self) -> bool {
        matches!(self.problem, QmpProblem::TimedOut(_))
    }
}

/// The problem of a connection or a command.
#[derive(Debug, thiserror::Error)]
pub enum QmpProblem {
    /// There is no such socket, or no program listens.
    #[error("{}", not_connected(.0))]
    Connect(io::Error),
    /// The other end does not speak QMP.
    #[error("does not speak QEMU's monitor protocol: {0}")]
    Foreign(&'static str),
    /// The other end closed the connection.
    #[error("QEMU closed its monitor; is another client connected, or did it end?")]
    Closed,
    #[error("QEMU sent no greeting within {} s; another client may hold its monitor", .0.as_secs())]
    Silent(Duration),
    /// A command without an answer.
    #[error("QEMU did not answer {0} in time; it hangs, or this computer is overloaded")]
    TimedOut(String),
    /// A command that QEMU refused.
    #[error("QEMU refused {command}: {why}")]
    Refused {
        command: String,
        /// QEMU's message. It may contain anything.
        why: String,
    },
    /// The stop flag was set.
    #[error("interrupted by a signal")]
    Stopped,
    #[error("its monitor cannot be used: {0}")]
    Io(io::Error),
}

fn not_connected(error: &io::Error) -> String {
    let hint = "is a QEMU with `-qmp unix:...,server=on,wait=off` running there?";
    match error.kind() {
        io::ErrorKind::NotFound => format!("there is no such socket; {hint}"),
        io::ErrorKind::ConnectionRefused => format!("nobody listens there; {hint}"),
        io::ErrorKind::PermissionDenied => {
            "permission denied; run vmtax as the user of the VM, or as root".to_owned()
        }
        _ => format!("{error}; {hint}"),
    }
}

/// A command with its arguments.
pub type QmpRequest = (&'static str, Value);

impl Qmp {
    /// A connection, and the end that a QEMU to be started has to inherit.
    pub(crate) fn pair(stop: Stop) -> io::Result<(Qmp, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut qmp = Qmp::over(ours, "its monitor".to_owned(), stop);
        // QEMU reads this later, and sends events from then on. The answer is not awaited.
        let line = qmp.line("qmp_capabilities", &json!({}));
        write_all(qmp.reader.stream(), &line, Until::after(PATIENCE)).map_err(io::Error::from)?;
        Ok((qmp, theirs.into()))
    }

    /// Connects to a QEMU that listens at a socket. Waits end as soon as `stop` is set.
    pub fn connect(socket: &Path, stop: Stop) -> Result<Qmp, QmpError> {
        let name = socket.display().to_string();
        let until = Until::after(GREETING).or_stopped(stop.flag());
        let stream = match connect(socket, until) {
            Ok(stream) => stream,
            Err(problem) => return Err(QmpError { name, problem }),
        };
        let mut qmp = Qmp::over(stream, name, stop);
        qmp.greeting()?;
        qmp.run("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    fn over(stream: UnixStream, name: String, stop: Stop) -> Qmp {
        Qmp::numbered(stream, name, stop, 0)
    }

    /// Commands have numbers above `sent`.
    pub(crate) fn numbered(stream: UnixStream, name: String, stop: Stop, sent: u64) -> Qmp {
        let reader = LineReader::new(stream, LONGEST_LINE);
        Qmp { name, reader, stop, is_mute: false, sent, events: QmpEvents::default() }
    }

    fn greeting(&mut self) -> Result<(), QmpError> {
        let stop = self.stop.clone();
        let message = self.message(Until::after(GREETING).or_stopped(stop.flag()));
        match message {
            Ok(message) if message.get("QMP").is_some() => Ok(()),
            Ok(_) => Err(self.error(QmpProblem::Foreign("it does not begin with a greeting"))),
            Err(MessageFailure::Failed(StreamError::TimedOut)) => {
                Err(self.error(QmpProblem::Silent(GREETING)))
            }
            Err(failure) => Err(self.failed(failure, "the connection")),
        }
    }

    /// Runs a command and returns what it returns.
    pub fn run(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let stop = self.stop.clone();
        self.run_until(command, arguments, Until::after(PATIENCE).or_stopped(stop.flag()))
    }

    /// As [`Qmp::run`], with another timeout.
    pub fn run_until(
        &mut self,
        command: &str,
        arguments: Value,
        until: Until<'_>,
    ) -> Result<Value, QmpError> {
        let line = self.line(command, &arguments);
        self.send(command, &line, until)?;
        self.answer(command, self.sent, until)
    }

    /// As [`Qmp::run`], for a command that undoes something: it is sent though the stop flag is set, and then waited
    /// for only a moment.
    pub fn run_anyway(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let stop = self.stop.clone();
        let (undo, haste) = if self.is_mute { (HOPELESS, HOPELESS) } else { (UNDO, HASTE) };
        let line = self.line(command, &arguments);
        let number = self.sent;
        let answer = self.send(command, &line, Until::after(haste)).and_then(|()| {
            self.answer(command, number, Until::after(undo).or_stopped(stop.flag()))
        });
        let answer = match answer {
            Err(QmpError { problem: QmpProblem::Stopped, .. }) => {
                self.answer(command, number, Until::after(haste))
            }
            answer => answer,
        };
        self.is_mute |= answer.as_ref().is_err_and(|error| error.is_timed_out());
        answer
    }

    /// Runs commands that do not depend on each other, faster than one by one. A command that QEMU refuses gives
    /// `None`.
    pub fn run_all(&mut self, requests: &[QmpRequest]) -> Result<Vec<Option<Value>>, QmpError> {
        /// Commands sent before their answers are read. QEMU takes 8 and leaves the rest in the socket.
        const TOGETHER: usize = 32;
        let stop = self.stop.clone();
        let mut answers = Vec::with_capacity(requests.len());
        for requests in requests.chunks(TOGETHER) {
            let until = Until::after(PATIENCE).or_stopped(stop.flag());
            let first = self.sent + 1;
            let lines: Vec<Vec<u8>> = requests.iter().map(|(c, a)| self.line(c, a)).collect();
            self.send("its commands", &lines.concat(), until)?;
            for ((command, _), number) in requests.iter().zip(first..) {
                answers.push(match self.answer(command, number, until) {
                    Ok(value) => Some(value),
                    Err(QmpError { problem: QmpProblem::Refused { .. }, .. }) => None,
                    Err(error) => return Err(error),
                });
            }
        }
        Ok(answers)
    }

    /// Gives QEMU a descriptor under a name, for `fd:NAME` in a later command.
    pub fn give_fd(
        &mut self,
        name: &str,
        fd: BorrowedFd<'_>,
        until: Until<'_>,
    ) -> Result<(), QmpError> {
        let line = self.line("getfd", &json!({ "fdname": name }));
        let fds = [fd];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        let slices = [IoSlice::new(&line)];
        let stream = self.reader.stream();
        let sent = until.writable(stream.as_fd()).and_then(|()| {
            let sent = sendmsg(stream.as_fd(), &slices, &mut ancillary, SendFlags::NOSIGNAL);
            sent.map_err(|errno| StreamError::Io(errno.into()))
        });
        let rest = sent.and_then(|sent| write_all(stream, &line[sent..], until));
        rest.map_err(|e| self.failed(MessageFailure::Failed(e), "getfd"))?;
        self.answer("getfd", self.sent, until).map(drop)
    }

    /// Run state: running, paused, inmigrate, ...
    pub fn status(&mut self) -> Result<String, QmpError> {
        let status = self.run("query-status", json!({}))?;
        Ok(status["status"].as_str().unwrap_or("unknown").to_owned())
    }

    /// Events until the last answer.
    pub fn events(&self) -> &QmpEvents {
        &self.events
    }

    /// As the user names it.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        self.reader.stream()
    }

    pub(crate) fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// The process at the other end.
    pub fn pid(&self) -> Result<u32, QmpError> {
        let peer = rustix::net::sockopt::socket_peercred(self.reader.stream());
        let peer = peer.map_err(|errno| self.error(QmpProblem::Io(errno.into())))?;
        Ok(peer.pid.as_raw_nonzero().get().cast_unsigned())
    }

    /// Why the guest stopped, once QEMU is gone.
    pub(crate) fn shutdown(&mut self) -> Option<&str> {
        // QEMU's end is closed, so this ends as soon as all is read.
        while self.message(Until::after(HASTE)).is_ok() {}
        self.events.shutdown.as_deref()
    }

    fn line(&mut self, command: &str, arguments: &Value) -> Vec<u8> {
        self.sent += 1;
        let mut request = json!({ "execute": command, "id": self.sent });
        if arguments.as_object().is_none_or(|map| !map.is_empty()) {
            request["arguments"] = arguments.clone();
        }
        format!("{request}\n").into_bytes()
    }

    fn send(&self, command: &str, line: &[u8], until: Until<'_>) -> Result<(), QmpError> {
        let sent = write_all(self.reader.stream(), line, until);
        sent.map_err(|e| self.failed(MessageFailure::Failed(e), command))
    }

    /// The answer to command `number`. Answers to earlier ones, which were not waited for, are dropped.
    fn answer(&mut self, command: &str, number: u64, until: Until<'_>) -> Result<Value, QmpError> {
        loop {
            let mut message = match self.message(until) {
                Ok(message) => message,
                Err(failure) => return Err(self.failed(failure, command)),
            };
            if message.get("event").is_some() || message.get("QMP").is_some() {
                continue;
            }
            let id = message.get("id").map(Value::as_u64);
            if id.flatten().is_some_and(|id| id < number) {
                continue;
            }
            // A command that QEMU could not even parse is refused without its number.
            if let (Some(error), true) =
                (message.get("error"), id.is_none_or(|id| id == Some(number)))
            {
                let why = error["desc"].as_str().unwrap_or("no reason given");
                let why = why.chars().take(LONGEST_WORDS).collect();
                return Err(self.error(QmpProblem::Refused { command: command.to_owned(), why }));
            }
            return match message.get_mut("return").map(Value::take) {
                Some(value) if id.flatten() == Some(number) => Ok(value),
                _ => {
                    let what = "it answers what was not asked";
                    Err(self.error(QmpProblem::Foreign(what)))
                }
            };
        }
    }

    /// The next message; an event is noted.
    fn message(&mut self, until: Until<'_>) -> Result<Value, MessageFailure> {
        let line = self
            .reader
            .line(until)
            .map_err(MessageFailure::Failed)?
            .ok_or(MessageFailure::Closed)?;
        let message: Value = serde_json::from_slice(&line).map_err(|_| MessageFailure::NoJson)?;
        if let Some(event) = message.get("event").and_then(Value::as_str) {
            self.note(event, &message);
        }
        Ok(message)
    }

    fn note(&mut self, event: &str, message: &Value) {
        match event {
            "STOP" => self.events.stops += 1,
            "RESUME" => self.events.resumes += 1,
            "RESET" => self.events.resets += 1,
            "WAKEUP" => self.events.wakeups += 1,
            "SHUTDOWN" => {
                let reason = message.pointer("/data/reason").and_then(Value::as_str);
                let reason = reason.unwrap_or("no reason given");
                self.events.shutdown = Some(reason.chars().take(LONGEST_WORDS).collect());
            }
            _ => {}
        }
    }

    fn failed(&self, failure: MessageFailure, command: &str) -> QmpError {
        self.error(match failure {
            MessageFailure::Closed | MessageFailure::Failed(StreamError::Cut) => QmpProblem::Closed,
            MessageFailure::NoJson => QmpProblem::Foreign("a line is no JSON"),
            MessageFailure::Failed(StreamError::Stopped) => QmpProblem::Stopped,
            MessageFailure::Failed(StreamError::TimedOut) => {
                QmpProblem::TimedOut(command.to_owned())
            }
            MessageFailure::Failed(StreamError::TooLong(_)) => {
                QmpProblem::Foreign("a line is longer than any answer")
            }
            MessageFailure::Failed(StreamError::Io(error)) => match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => QmpProblem::Closed,
                _ => QmpProblem::Io(error),
            },
        })
    }

    fn error(&self, problem: QmpProblem) -> QmpError {
        QmpError { name: self.name.clone(), problem }
    }
}

/// Connects. connect(2) would block forever if the listener does not accept.
fn connect(socket: &Path, until: Until<'_>) -> Result<UnixStream, QmpProblem> {
    let refused = |errno: Errno| QmpProblem::Connect(errno.into());
    let address = SocketAddrUnix::new(socket).map_err(refused)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let fd = fd.map_err(refused)?;
        match rustix::net::connect(&fd, &address) {
            Ok(()) => {
                let stream = UnixStream::from(fd);
                stream.set_nonblocking(false).map_err(QmpProblem::Io)?;
                return Ok(stream);
            }
            // Its queue of connections is full.
            Err(Errno::AGAIN) => match until.sleep(Duration::from_millis(20)) {
                Ok(()) => {}
                Err(StreamError::Stopped) => return Err(QmpProblem::Stopped),
                Err(_) => return Err(QmpProblem::Silent(GREETING)),
            },
            Err(errno) => return Err(refused(errno)),
        }
    }
}

/// Why reading a message failed.
enum MessageFailure {
    Closed,
    NoJson,
    Failed(StreamError),
}
