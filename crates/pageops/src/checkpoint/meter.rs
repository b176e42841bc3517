//! Costs of a writer by phase: wall time, and processor time and cycles of the thread.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::cycles::{CycleCounter, CycleKind};

/// Time of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseCost {
    /// Wall time.
    pub wall: Duration,
    /// Processor time of the thread that writes.
    pub cpu: Duration,
    /// Its cycles, if [`CheckpointCosts::counted`].
    pub cycles: u64,
}

impl PhaseCost {
    fn add(&mut self, more: PhaseCost) {
        self.wall += more.wall;
        self.cpu += more.cpu;
        self.cycles += more.cycles;
    }

    fn without(self, part: PhaseCost) -> PhaseCost {
        PhaseCost {
            wall: self.wall.saturating_sub(part.wall),
            cpu: self.cpu.saturating_sub(part.cpu),
            cycles: self.cycles.saturating_sub(part.cycles),
        }
    }
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
    /// All phases, in the order of processing.
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

/// Costs of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CheckpointCosts {
    phases: [PhaseCost; 7],
    /// Share of the scan that only finds zero pages, measured on every 16th chunk; `None` if no chunk was measured, or a device scans.
    pub zero_share: Option<f64>,
    /// Kind of cycles counted; `None` if there is no counter.
    pub counted: Option<CycleKind>,
}

impl CheckpointCosts {
    /// Cost of a phase.
    pub fn of_phase(&self, phase: Phase) -> PhaseCost {
        self.phases[phase as usize]
    }
}

/// Attributes time to phases.
pub(super) struct PhaseMeter {
    clock: ThreadClock,
    last: Moment,
    costs: CheckpointCosts,
    /// Time of zero checks alone, and of the scans of the same chunks.
    sampled: (Duration, Duration),
    chunks: u64,
}

/// Clocks of the thread that created it.
#[derive(Clone, Debug, Default)]
struct ThreadClock {
    cycles: Option<Arc<CycleCounter>>,
}

#[derive(Clone, Copy)]
struct Moment {
    wall: Instant,
    cpu: Duration,
    /// `None`: not counted, or multiplexed.
    cycles: Option<u64>,
}

impl ThreadClock {
    fn now(&self) -> Moment {
        let cycles = self.cycles.as_ref().and_then(|counter| counter.read());
        Moment { wall: Instant::now(), cpu: thread_time(), cycles }
    }
}

impl Moment {
    fn since(self, earlier: Moment) -> PhaseCost {
        let cycles = self.cycles.zip(earlier.cycles);
        PhaseCost {
            wall: self.wall.saturating_duration_since(earlier.wall),
            cpu: self.cpu.saturating_sub(earlier.cpu),
            cycles: cycles.map_or(0, |(now, earlier)| now.saturating_sub(earlier)),
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

impl PhaseMeter {
    /// Of this thread, which writes to the file.
    pub(super) fn new(file: &mut TimedFile) -> PhaseMeter {
        let clock = ThreadClock { cycles: CycleCounter::open().map(Arc::new) };
        file.clock = clock.clone();
        let (last, sampled) = (clock.now(), (Duration::ZERO, Duration::ZERO));
        PhaseMeter { clock, last, costs: CheckpointCosts::default(), sampled, chunks: 0 }
    }

    /// Starts a measurement: the caller's time since the last phase is not counted.
    pub(super) fn begin(&mut self) {
        self.last = self.clock.now();
    }

    /// Attributes the time since the last call to this phase, without the time of writes. Returns it.
    pub(super) fn lap(&mut self, phase: Phase, file: &mut TimedFile) -> Duration {
        let now = self.clock.now();
        let cost = now.since(self.last);
        self.last = now;
        let written = std::mem::take(&mut file.spent);
        let own = cost.without(written);
        self.costs.phases[Phase::Write as usize].add(written);
        self.costs.phases[phase as usize].add(own);
        own.wall
    }

    /// Whether to measure zero checks on the chunk just scanned.
    pub(super) fn samples(&mut self) -> bool {
        self.chunks += 1;
        self.chunks % 16 == 1
    }

    /// Ends the measurement of a chunk's zero check; its scan took `scan`.
    pub(super) fn sampled(&mut self, scan: Duration) {
        let now = self.clock.now();
        self.sampled.0 += now.since(self.last).wall;
        self.sampled.1 += scan;
        self.last = now;
    }

    pub(super) fn costs(&self) -> CheckpointCosts {
        let (zero, scan) = self.sampled;
        let share = zero.as_secs_f64() / scan.as_secs_f64();
        let counter = self.clock.cycles.as_ref().filter(|_| self.last.cycles.is_some());
        CheckpointCosts {
            zero_share: (!scan.is_zero()).then_some(share.min(1.0)),
            counted: counter.map(|counter| counter.counted()),
            ..self.costs
        }
    }
}

/// A file that measures its writes.
#[derive(Debug)]
pub(super) struct TimedFile {
    file: File,
    /// For streams: stop waiting for the reader when this is set.
    stop: Option<Arc<AtomicBool>>,
    clock: ThreadClock,
    /// Since it was last taken.
    spent: PhaseCost,
}

impl TimedFile {
    pub(super) fn new(file: File) -> TimedFile {
        TimedFile { file, stop: None, clock: ThreadClock::default(), spent: PhaseCost::default() }
    }

    pub(super) fn stream(file: File, stop: Arc<AtomicBool>) -> TimedFile {
        TimedFile {
            file,
            stop: Some(stop),
            clock: ThreadClock::default(),
            spent: PhaseCost::default(),
        }
    }

    fn write_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        /// Bytes that a writable pipe accepts without blocking.
        const AT_ONCE: usize = 4096;
        let Some(stop) = &self.stop else { return self.file.write(bytes) };
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            let mut poll =
                libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
            // SAFETY: one entry, which is owned here.
            if unsafe { libc::poll(&raw mut poll, 1, 100) } > 0 {
                return self.file.write(&bytes[..bytes.len().min(AT_ONCE)]);
            }
        }
    }
}

impl Write for TimedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let begin = self.clock.now();
        let written = self.write_some(bytes);
        self.spent.add(self.clock.now().since(begin));
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
