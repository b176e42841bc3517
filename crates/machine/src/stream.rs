//! Pipes and sockets whose other end is another program, which may stay silent, send without end, or send a line without an end.
//!
//! Every read and write ends when the deadline passes or the stop flag is set, whatever the other end does. A deadline
//! is a point in time, not a time per read, so a peer that sends single bytes cannot extend it.
//!
//! Left out on purpose: the meaning of the bytes, and regular files, whose reads do not wait.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// The stop flag is looked at this often. A signal handler that sets it ends the wait at once, as a rule: this is for
/// the signal that arrives between the look and the wait.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes read at a time.
const BLOCK: usize = 16 << 10;
/// Bytes that a pipe or socket takes without a wait once it can be written to: the kernel's PIPE_BUF.
const ROOM: usize = 4096;

/// When to give up.
#[derive(Clone, Copy, Debug)]
pub struct Until<'a> {
    deadline: Instant,
    stop: Option<&'a AtomicBool>,
}

impl<'a> Until<'a> {
    /// At this point in time.
    pub fn deadline(deadline: Instant) -> Until<'a> {
        Until { deadline, stop: None }
    }

    /// After this time from now.
    pub fn after(time: Duration) -> Until<'a> {
        // A time beyond the clock's range never passes; a year has the same effect.
        let never = Duration::from_secs(365 * 24 * 3600);
        Until::deadline(Instant::now() + time.min(never))
    }

    /// Also when this flag is set.
    pub fn or_stopped(self, stop: &'a AtomicBool) -> Until<'a> {
        Until { stop: Some(stop), ..self }
    }

    /// The time that is left, or why there is none.
    pub fn left(&self) -> Result<Duration, StreamError> {
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(StreamError::Stopped);
        }
        match self.deadline.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(StreamError::TimedOut),
        }
    }

    /// Sleeps for `time`, or less: until the deadline.
    pub fn sleep(&self, time: Duration) -> Result<(), StreamError> {
        std::thread::sleep(time.min(self.left()?).min(LOOK));
        self.left().map(drop)
    }

    /// Waits until a descriptor is ready to be read, or has no writer any more.
    pub fn readable(&self, fd: BorrowedFd<'_>) -> Result<(), StreamError> {
        self.ready(fd, PollFlags::IN)
    }

    /// Waits until a descriptor takes PIPE_BUF bytes, or has no reader any more.
    pub fn writable(&self, fd: BorrowedFd<'_>) -> Result<(), StreamError> {
        self.ready(fd, PollFlags::OUT)
    }

    fn ready(&self, fd: BorrowedFd<'_>, what: PollFlags) -> Result<(), StreamError> {
        loop {
            let slice = self.left()?.min(LOOK);
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(slice.subsec_nanos()) };
            match poll(&mut [PollFd::from_borrowed_fd(fd, what)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(StreamError::Io(errno.into())),
            }
        }
    }
}

/// Why a stream cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The stop flag was set.
    #[error("interrupted by a signal")]
    Stopped,
    #[error("timed out")]
    TimedOut,
    /// More than this number of bytes without an end.
    #[error("sent more than {0} bytes without an end")]
    TooLong(usize),
    /// Closed within a line.
    #[error("closed in the middle of a line")]
    Cut,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<StreamError> for io::Error {
    fn from(error: StreamError) -> io::Error {
        let kind = match error {
            StreamError::Io(error) => return error,
            StreamError::Stopped => io::ErrorKind::Interrupted,
            StreamError::TimedOut => io::ErrorKind::TimedOut,
            StreamError::TooLong(_) => io::ErrorKind::InvalidData,
            StreamError::Cut => io::ErrorKind::UnexpectedEof,
        };
        io::Error::new(kind, error)
    }
}

/// Reads lines of at most `limit` bytes.
#[derive(Debug)]
pub struct LineReader<S> {
    stream: S,
    limit: usize,
    /// Bytes read and not yet given out.
    unread: Vec<u8>,
    /// Number of these that were searched for the end of a line.
    searched: usize,
}

impl<S: Read + AsFd> LineReader<S> {
    /// A reader that holds at most `limit` bytes of a line, and one block more.
    pub fn new(stream: S, limit: usize) -> LineReader<S> {
        LineReader { stream, limit, unread: Vec::new(), searched: 0 }
    }

    /// The stream, for writing.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// The next line without its end; `None` when the other end closed the stream after a line.
    ///
    /// After a timeout the next call continues where this one stopped: no byte is lost.
    pub fn line(&mut self, until: Until<'_>) -> Result<Option<Vec<u8>>, StreamError> {
        loop {
            // Also when lines come faster than they are used.
            until.left()?;
            let end = self.unread[self.searched..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = end.map(|end| self.searched + end).filter(|end| *end <= self.limit) {
                let mut line: Vec<u8> = self.unread.drain(..=end).collect();
                line.pop();
                self.searched = 0;
                return Ok(Some(line));
            }
            self.searched = self.unread.len();
            if self.unread.len() > self.limit {
                // What was read stays there, so that a second call says the same.
                self.searched = 0;
                return Err(StreamError::TooLong(self.limit));
            }
            if self.more(until)? == 0 {
                return if self.unread.is_empty() { Ok(None) } else { Err(StreamError::Cut) };
            }
        }
    }

    /// All that comes until the other end closes the stream, at most `limit` bytes.
    pub fn rest(&mut self, until: Until<'_>) -> Result<Vec<u8>, StreamError> {
        while self.unread.len() <= self.limit {
            if self.more(until)? == 0 {
                self.searched = 0;
                return Ok(std::mem::take(&mut self.unread));
            }
        }
        Err(StreamError::TooLong(self.limit))
    }

    /// Reads once; 0 at the end.
    fn more(&mut self, until: Until<'_>) -> Result<usize, StreamError> {
        let mut block = [0; BLOCK];
        loop {
            until.readable(self.stream.as_fd())?;
            match self.stream.read(&mut block) {
                Ok(n) => {
                    self.unread.extend_from_slice(&block[..n]);
                    return Ok(n);
                }
                Err(e) if is_transient(&e) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

pub fn write_all(
    mut stream: impl Write + AsFd,
    mut bytes: &[u8],
    until: Until<'_>,
) -> Result<(), StreamError> {
    while !bytes.is_empty() {
        until.writable(stream.as_fd())?;
        match stream.write(&bytes[..bytes.len().min(ROOM)]) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if is_transient(&e) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    /// Far longer than any of these tests takes.
    const LONG: Duration = Duration::from_secs(600);

    fn pair() -> (LineReader<UnixStream>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (LineReader::new(ours, 64), theirs)
    }

    #[test]
    fn lines_come_as_they_were_written() {
        let (mut reader, mut theirs) = pair();
        let longest = "x".repeat(64);
        theirs.write_all(format!("one\n\n{longest}\nlast").as_bytes()).unwrap();
        drop(theirs);
        let until = Until::after(LONG);
        for expected in ["one", "", &longest] {
            assert_eq!(reader.line(until).unwrap().unwrap(), expected.as_bytes());
        }
        assert!(matches!(reader.line(until), Err(StreamError::Cut)));
        let (mut reader, mut theirs) = pair();
        theirs.write_all(b"one\n").unwrap();
        drop(theirs);
        assert_eq!(reader.line(until).unwrap().unwrap(), b"one");
        assert_eq!(reader.line(until).unwrap(), None);
    }

    #[test]
    fn a_line_has_a_limit() {
        for sent in ["x".repeat(65), "x".repeat(65) + "\n", "x".repeat(60_000)] {
            let (mut reader, mut theirs) = pair();
            theirs.write_all(sent.as_bytes()).unwrap();
            for _ in 0..2 {
                let line = reader.line(Until::after(LONG));
                assert!(matches!(line, Err(StreamError::TooLong(64))), "{line:?}");
            }
            assert!(reader.unread.len() <= 64 + BLOCK);
        }
    }

    #[test]
    fn the_rest_has_a_limit() {
        let (mut reader, mut theirs) = pair();
        theirs.write_all(b"one\ntwo\nthree").unwrap();
        assert_eq!(reader.line(Until::after(LONG)).unwrap().unwrap(), b"one");
        drop(theirs);
        assert_eq!(reader.rest(Until::after(LONG)).unwrap(), b"two\nthree");
        let (mut reader, mut theirs) = pair();
        theirs.write_all(&[b'\n'; 65]).unwrap();
        let rest = reader.rest(Until::after(LONG));
        assert!(matches!(rest, Err(StreamError::TooLong(64))), "{rest:?}");
    }

    /// A peer that sends a byte now and then does not move the deadline.
    #[test]
    fn a_deadline_is_for_the_whole_line() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut reader = LineReader::new(ours, usize::MAX);
        let writer = thread::spawn(move || {
            while theirs.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(1));
            }
        });
        let line = reader.line(Until::after(Duration::from_millis(50)));
        assert!(matches!(line, Err(StreamError::TimedOut)), "{line:?}");
        drop(reader);
        writer.join().unwrap();
    }

    #[test]
    fn a_line_goes_on_after_a_time_out() {
        let (mut reader, mut theirs) = pair();
        theirs.write_all(b"ha").unwrap();
        let line = reader.line(Until::after(Duration::from_millis(20)));
        assert!(matches!(line, Err(StreamError::TimedOut)), "{line:?}");
        theirs.write_all(b"lf\n").unwrap();
        assert_eq!(reader.line(Until::after(LONG)).unwrap().unwrap(), b"half");
    }

    #[test]
    fn the_flag_ends_every_wait() {
        let stop = AtomicBool::new(false);
        let (mut reader, mut theirs) = pair();
        theirs.write_all(b"half").unwrap();
        thread::scope(|scope| {
            let line = scope.spawn(|| reader.line(Until::after(LONG).or_stopped(&stop)));
            // This end of another pair is never read, so its buffer fills.
            let (ours, _theirs) = UnixStream::pair().unwrap();
            let stop = &stop;
            let write = scope.spawn(move || {
                write_all(&ours, &vec![0; 16 << 20], Until::after(LONG).or_stopped(stop))
            });
            stop.store(true, Ordering::Relaxed);
            let (line, write) = (line.join().unwrap(), write.join().unwrap());
            assert!(matches!(line, Err(StreamError::Stopped)), "{line:?}");
            assert!(matches!(write, Err(StreamError::Stopped)), "{write:?}");
        });
        // Lines that are there already are not given out either.
        theirs.write_all(b"\none\n").unwrap();
        let line = reader.line(Until::after(LONG).or_stopped(&stop));
        assert!(matches!(line, Err(StreamError::Stopped)), "{line:?}");
    }

    #[test]
    fn writing_has_a_deadline_and_ends_with_the_reader() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let bytes = vec![0; 16 << 20];
        let done = write_all(&ours, &bytes, Until::after(Duration::from_millis(50)));
        assert!(matches!(done, Err(StreamError::TimedOut)), "{done:?}");
        drop(theirs);
        let done = write_all(&ours, &bytes, Until::after(LONG));
        assert!(matches!(&done, Err(StreamError::Io(e)) if e.kind() == io::ErrorKind::BrokenPipe));
    }
}
