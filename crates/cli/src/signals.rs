//! Signals: a flag for commands that clean up when they are stopped, and streams for commands that wait.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};

/// From now on the first SIGINT, SIGTERM or SIGHUP sets the flag and the second one ends the program. Signals that are ignored, as
/// under nohup, stay ignored.
pub fn catch(stop: &Arc<AtomicBool>) -> io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if ignored & (1 << (signal - 1)) == 0 {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(stop))?;
            signal_hook::flag::register(signal, Arc::clone(stop))?;
        }
    }
    Ok(())
}

/// A bit for each ignored signal, from the text of `/proc/PID/status`.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Requests to stop and ended children, as something to wait for.
#[derive(Debug)]
pub struct Signals {
    /// A byte for every Ctrl-C or SIGTERM.
    asked: UnixStream,
    /// A byte for every child that ended.
    children: UnixStream,
}

impl Signals {
    /// From now on SIGINT, SIGTERM and SIGHUP do not end the program.
    pub fn new() -> io::Result<Signals> {
        Ok(Signals {
            asked: bytes_of(&[SIGINT, SIGTERM, SIGHUP])?,
            children: bytes_of(&[SIGCHLD])?,
        })
    }

    /// Waits until then, or for a signal. Whether it is a request to stop.
    pub fn wait(&self, until: Instant) -> io::Result<bool> {
        self.wait_beside(&mut [], until)
    }

    /// As [`Signals::wait`], and ends when one of the others is ready; `revents` tells which.
    pub fn wait_beside<'a>(
        &'a self,
        others: &mut [PollFd<'a>],
        until: Instant,
    ) -> io::Result<bool> {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut watched = vec![
            PollFd::new(&self.asked, PollFlags::IN),
            PollFd::new(&self.children, PollFlags::IN),
        ];
        watched.extend_from_slice(others);
        match poll(&mut watched, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let came = |one: &PollFd<'_>| one.revents().contains(PollFlags::IN);
        let (asked, child) = (came(&watched[0]), came(&watched[1]));
        others.clone_from_slice(&watched[2..]);
        if child {
            drain(&self.children);
        }
        if asked {
            drain(&self.asked);
        }
        Ok(asked)
    }
}

/// A stream with a byte for each of these signals, which from now on do nothing else.
pub fn bytes_of(signals: &[i32]) -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    read.set_nonblocking(true)?;
    for &signal in signals {
        signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read)
}

/// Takes all bytes there are.
pub fn drain(mut from: &UnixStream) {
    use std::io::Read;
    let mut bytes = [0; 64];
    while from.read(&mut bytes).is_ok_and(|got| got > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_known() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000001001\n"), 1 << 12 | 1 << (SIGHUP - 1));
        assert_eq!(ignored("Name:\tx\n"), 0);
    }
}
