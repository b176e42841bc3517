//! The QEMU Machine Protocol, as far as it is needed: commands, their answers, and the event that
//! says why a machine stopped. Over one end of a socket pair: nothing listens anywhere.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

/// QEMU answers within milliseconds; it does nothing else while it loads a kernel.
const PATIENCE: Duration = Duration::from_secs(20);
/// No answer to what is asked here is longer.
const LONGEST_LINE: usize = 1 << 20;

/// Our end of the connection.
#[derive(Debug)]
pub(crate) struct Qmp {
    stream: UnixStream,
    unread: Vec<u8>,
    /// Why the guest stopped, when QEMU said so: `guest-shutdown`, `guest-reset`, `guest-panic`.
    shutdown: Option<String>,
}

impl Qmp {
    /// A connection, and the end that QEMU has to inherit.
    pub(crate) fn new() -> io::Result<(Qmp, OwnedFd)> {
        let (mut ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(PATIENCE))?;
        ours.set_write_timeout(Some(PATIENCE))?;
        // QEMU reads this when it comes to it, and sends events from then on.
        ours.write_all(b"{\"execute\":\"qmp_capabilities\"}\n")?;
        Ok((Qmp { stream: ours, unread: Vec::new(), shutdown: None }, theirs.into()))
    }

    /// Runs a command and returns what it returns.
    pub(crate) fn run(&mut self, command: &str, arguments: Value) -> io::Result<Value> {
        self.send(command, arguments, None)?;
        self.answer(command)
    }

    /// As [`Qmp::run`], with a file descriptor that goes along.
    pub(crate) fn run_with_fd(
        &mut self,
        command: &str,
        arguments: Value,
        fd: BorrowedFd<'_>,
    ) -> io::Result<Value> {
        self.send(command, arguments, Some(fd))?;
        self.answer(command)
    }

    fn send(
        &mut self,
        command: &str,
        arguments: Value,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        let message = json!({"execute": command, "arguments": arguments, "id": command});
        let line = format!("{message}\n");
        let Some(fd) = fd else { return self.stream.write_all(line.as_bytes()) };
        let fds = [fd];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        let slices = [IoSlice::new(line.as_bytes())];
        let sent = sendmsg(self.stream.as_fd(), &slices, &mut ancillary, SendFlags::NOSIGNAL)?;
        self.stream.write_all(&line.as_bytes()[sent..])
    }

    fn answer(&mut self, command: &str) -> io::Result<Value> {
        loop {
            let mut message = self.message()?;
            self.note(&message);
            if message.get("id").and_then(Value::as_str) != Some(command) {
                continue;
            }
            if let Some(error) = message.get("error") {
                let text = error.get("desc").and_then(Value::as_str).unwrap_or("no reason given");
                return Err(io::Error::other(format!("QEMU refused {command}: {text}")));
            }
            return Ok(message.get_mut("return").map(Value::take).unwrap_or_default());
        }
    }

    fn message(&mut self) -> io::Result<Value> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(io::Error::other);
            }
            let mut buffer = [0; 4096];
            let n = self.stream.read(&mut buffer)?;
            if n == 0 || self.unread.len() > LONGEST_LINE {
                return Err(io::Error::other("QEMU closed its control connection"));
            }
            self.unread.extend_from_slice(&buffer[..n]);
        }
    }

    fn note(&mut self, message: &Value) {
        if message.get("event").and_then(Value::as_str) == Some("SHUTDOWN") {
            let reason = message.pointer("/data/reason").and_then(Value::as_str);
            self.shutdown = Some(reason.unwrap_or("no reason given").to_owned());
        }
    }

    /// Why the guest stopped, once QEMU is gone.
    pub(crate) fn shutdown(&mut self) -> Option<&str> {
        // QEMU's end is closed, so this ends without waiting.
        while let Ok(message) = self.message() {
            self.note(&message);
        }
        self.shutdown.as_deref()
    }
}
