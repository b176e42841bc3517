//! Where a writer's time goes: wall time and the thread's processor time of each phase.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Wall time.
    pub wall: Duration,
    /// Processor time of the thread that writes.
    pub cpu: Duration,
}

/// Phases of writing pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The caller's memory is copied.
    Copy,
    /// Fingerprints of a live save.
    Fingerprint,
    /// Zero pages and checksums, in one pass.
    Scan,
    /// Pages are compared with the parent's, and deltas made; pages of one repeated word are found.
    Compare,
    /// zstd.
    Compress,
    /// The file is written.
    Write,
    /// The file is synced.
    Sync,
}

impl Phase {
    /// All, in the order in which a page goes through them.
    pub const ALL: [Phase; 7] = [
        Phase::Copy,
        Phase::Fingerprint,
        Phase::Scan,
        Phase::Compare,
        Phase::Compress,
        Phase::Write,
        Phase::Sync,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Copy => "copy",
            Phase::Fingerprint => "fingerprint",
            Phase::Scan => "scan",
            Phase::Compare => "compare",
            Phase::Compress => "compress",
            Phase::Write => "write",
            Phase::Sync => "sync",
        }
    }
}

/// What a checkpoint cost its writer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    phases: [Cost; 7],
    /// Share of the scan that only finds zero pages, measured on every 16th chunk; `None` if no chunk was measured, or a device scans.
    pub zero_share: Option<f64>,
}

impl Costs {
    /// Of a phase.
    pub fn of_phase(&self, phase: Phase) -> Cost {
        self.phases[phase as usize]
    }
}

/// Attributes time to phases.
pub(super) struct Meter {
    last: Moment,
    costs: Costs,
    /// Time of zero checks alone, and of the scans of the same chunks.
    sampled: (Duration, Duration),
    chunks: u64,
}

#[derive(Clone, Copy)]
struct Moment {
    wall: Instant,
    cpu: Duration,
}

impl Moment {
    fn now() -> Moment {
        Moment { wall: Instant::now(), cpu: thread_time() }
    }

    fn since(self, earlier: Moment) -> Cost {
        Cost {
            wall: self.wall.saturating_duration_since(earlier.wall),
            cpu: self.cpu.saturating_sub(earlier.cpu),
        }
    }
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to `time` alone.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl Meter {
    pub(super) fn new() -> Meter {
        let sampled = (Duration::ZERO, Duration::ZERO);
        Meter { last: Moment::now(), costs: Costs::default(), sampled, chunks: 0 }
    }

    /// What follows begins now: the caller's time in between is no phase's.
    pub(super) fn begin(&mut self) {
        self.last = Moment::now();
    }

    /// The time since the last call was this phase's, but for what was written meanwhile. Returns it.
    pub(super) fn lap(&mut self, phase: Phase, file: &mut TimedFile) -> Duration {
        let now = Moment::now();
        let cost = now.since(self.last);
        self.last = now;
        let written = std::mem::take(&mut file.spent);
        self.add(Phase::Write, written);
        let own = Cost {
            wall: cost.wall.saturating_sub(written.wall),
            cpu: cost.cpu.saturating_sub(written.cpu),
        };
        self.add(phase, own);
        own.wall
    }

    fn add(&mut self, phase: Phase, cost: Cost) {
        let sum = &mut self.costs.phases[phase as usize];
        sum.wall += cost.wall;
        sum.cpu += cost.cpu;
    }

    /// Whether zero checks are to be measured on the chunk that was just scanned.
    pub(super) fn samples(&mut self) -> bool {
        self.chunks += 1;
        self.chunks % 16 == 1
    }

    /// The zero check of a chunk took until now, and its scan took `scan`.
    pub(super) fn sampled(&mut self, scan: Duration) {
        let now = Moment::now();
        self.sampled.0 += now.since(self.last).wall;
        self.sampled.1 += scan;
        self.last = now;
    }

    pub(super) fn costs(&self) -> Costs {
        let (zero, scan) = self.sampled;
        let share = zero.as_secs_f64() / scan.as_secs_f64();
        Costs { zero_share: (!scan.is_zero()).then_some(share.min(1.0)), ..self.costs }
    }
}

/// A file that measures its writes.
#[derive(Debug)]
pub(super) struct TimedFile {
    file: File,
    /// Of a stream: whoever reads may be slow, and is waited for only until this is set.
    stop: Option<Arc<AtomicBool>>,
    /// Since it was last taken.
    spent: Cost,
}

impl TimedFile {
    pub(super) fn new(file: File) -> TimedFile {
        TimedFile { file, stop: None, spent: Cost::default() }
    }

    pub(super) fn stream(file: File, stop: Arc<AtomicBool>) -> TimedFile {
        TimedFile { file, stop: Some(stop), spent: Cost::default() }
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        /// What a pipe that can be written to takes without waiting.
        const AT_ONCE: usize = 4096;
        let Some(stop) = &self.stop else { return self.file.write(bytes) };
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            let mut poll =
                libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
            // SAFETY: one entry, which is ours.
            if unsafe { libc::poll(&raw mut poll, 1, 100) } > 0 {
                return self.file.write(&bytes[..bytes.len().min(AT_ONCE)]);
            }
        }
    }
}

impl Write for TimedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let begin = Moment::now();
        let written = self.write_some(bytes);
        let cost = Moment::now().since(begin);
        self.spent.wall += cost.wall;
        self.spent.cpu += cost.cpu;
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
