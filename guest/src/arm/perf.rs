//! What a Linux guest with counters does: its thread computes, or takes turns with another one, while events of perf count or sample it.
//!
//! The events are opened as `perf stat` and `perf record` open them, for a thread and without a group, but by this program: the distribution's
//! perf would need its libraries.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use vmtax_guest::layout;
use vmtax_guest::order::{LinuxPerf, Operation, PerfBatch};
use vmtax_perf_event::{EventAttributes, Of};

use super::ports;
use super::vmm::ArmPlan;
use crate::Result;
use crate::life::machine::ticks;

/// `PERF_TYPE_HARDWARE` and `PERF_TYPE_RAW` (include/uapi/linux/perf_event.h, as the next ones).
const HARDWARE: u32 = 0;
const RAW: u32 = 4;
/// Cycles, instructions; STALL_FRONTEND, STALL_BACKEND and STALL, and cycles once more, on a counter of events.
const EVENTS: [(u32, u64); 6] =
    [(HARDWARE, 0), (HARDWARE, 1), (RAW, 0x23), (RAW, 0x24), (RAW, 0x3c), (RAW, 0x11)];
const DISABLED: u64 = 1;
const FREQUENCY: u64 = 1 << 10;
const EXCLUDE_USER_AND_KERNEL: u64 = 1 << 4 | 1 << 5;
const EXCLUDE_GUEST: u64 = 1 << 20;
/// IP, TID, TIME, CPU and PERIOD: what `perf record` takes.
const SAMPLE: u64 = 1 | 2 | 4 | 0x80 | 0x100;
/// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `PERF_FORMAT_TOTAL_TIME_RUNNING`.
const TIMES: u64 = 3;
const ENABLE: u64 = 0x2400;
const DISABLE: u64 = 0x2401;
const RECORD_SAMPLE: u32 = 9;
/// Rounds of a loop of two instructions in a batch, and before it.
const ROUNDS: u64 = 10_000_000;
const WARM_UP: u64 = 2_000_000;

/// Runs all batches of an operation: the cycles of each, and what perf found.
pub(crate) fn execute(
    operation: &Operation,
    perf: LinuxPerf,
    plan: &ArmPlan<'_>,
) -> Result<(Vec<u64>, Vec<PerfBatch>)> {
    // Handlers take longer on an emulator than perf allows, and it would lower its rate.
    let file = "/proc/sys/kernel/perf_cpu_time_max_percent";
    fs::write(file, "0").map_err(|e| format!("{file}: {e}"))?;
    let peer = if perf.turns { Some(Peer::start()?) } else { None };
    let (mut cycles, mut found) = (Vec::new(), Vec::new());
    for batch in 0..plan.batches {
        let events = (0..perf.events as usize)
            .map(|index| PerfEvent::open(index, perf.frequency))
            .collect::<Result<Vec<_>>>()?;
        events.iter().try_for_each(|event| event.control(ENABLE))?;
        compute(WARM_UP);
        let before = events.iter().map(PerfEvent::samples).sum::<u64>();
        let is_traced = plan.traced == Some(batch);
        if is_traced {
            plan.tracer.record(true);
        }
        ports::out32(layout::begin(operation.number), batch);
        let start = ticks();
        match &peer {
            Some(peer) => peer.take_turns(operation.count)?,
            None => compute(ROUNDS),
        }
        cycles.push(ticks() - start);
        ports::out32(layout::end(operation.number), batch);
        if is_traced {
            plan.tracer.record(false);
        }
        events.iter().try_for_each(|event| event.control(DISABLE))?;
        let samples = events.iter().map(PerfEvent::samples).sum::<u64>() - before;
        let shared = events
            .iter()
            .map(PerfEvent::running_permille)
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .min()
            .unwrap_or(1000);
        found.push(PerfBatch { host: 0, samples, running_permille: shared });
    }
    Ok((cycles, found))
}

/// Two instructions, so many times.
fn compute(rounds: u64) {
    // SAFETY: counts a register down.
    unsafe {
        std::arch::asm!("1: subs {0}, {0}, #1", "b.ne 1b", inout(reg) rounds => _, options(nomem, nostack));
    }
}

/// An event of this thread.
struct PerfEvent {
    file: OwnedFd,
    /// Where its samples go.
    buffer: Option<SampleBuffer>,
}

impl PerfEvent {
    fn open(index: usize, frequency: u32) -> Result<PerfEvent> {
        let (kind, config) = EVENTS[index % EVENTS.len()];
        // The first one samples.
        let frequency = if index == 0 { u64::from(frequency) } else { 0 };
        let samples = frequency > 0;
        let attributes = EventAttributes {
            kind,
            config,
            sample_period: frequency,
            sample_type: if samples { SAMPLE } else { 0 },
            read_format: TIMES,
            flags: DISABLED | if samples { FREQUENCY } else { 0 },
            ..EventAttributes::default()
        };
        let file = vmtax_perf_event::open(&attributes, Of::ThisThread)
            .map_err(|e| format!("perf_event_open of event {kind}/{config:#x}: {e}"))?;
        let buffer = if samples { Some(SampleBuffer::map(&file)?) } else { None };
        Ok(PerfEvent { file, buffer })
    }

    fn control(&self, what: u64) -> Result<()> {
        // SAFETY: takes no memory.
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), what as _, 0) };
        if done == 0 {
            Ok(())
        } else {
            Err(format!("perf's ioctl: {}", io::Error::last_os_error()))
        }
    }

    fn samples(&self) -> u64 {
        self.buffer.as_ref().map_or(0, SampleBuffer::samples)
    }

    /// The part of its time in which it had a counter.
    fn running_permille(&self) -> Result<u64> {
        let [_, enabled, running] = read(&self.file)?;
        Ok(if enabled == 0 { 1000 } else { running * 1000 / enabled })
    }
}

fn read<const N: usize>(file: &OwnedFd) -> Result<[u64; N]> {
    let mut words = [0; N];
    // SAFETY: the kernel writes at most so many bytes to the words.
    let got = unsafe { libc::read(file.as_raw_fd(), words.as_mut_ptr().cast(), 8 * N) };
    if got == 8 * N as isize {
        Ok(words)
    } else {
        Err(format!("reading an event: {}", io::Error::last_os_error()))
    }
}

/// What an event's samples are written to.
struct SampleBuffer(NonNull<u8>);

/// Pages of samples; none is read meanwhile.
const PAGES: usize = 128;
const PAGE: usize = 4096;
/// `data_head` of `struct perf_event_mmap_page`.
const HEAD: usize = 1024;

impl SampleBuffer {
    fn map(file: &OwnedFd) -> Result<SampleBuffer> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let file = file.as_raw_fd();
        // SAFETY: a new mapping; checked below.
        let mapping = unsafe {
            libc::mmap(std::ptr::null_mut(), PAGE * (PAGES + 1), rights, libc::MAP_SHARED, file, 0)
        };
        match NonNull::new(mapping.cast::<u8>()) {
            Some(mapping) if mapping.as_ptr().cast() != libc::MAP_FAILED => {
                Ok(SampleBuffer(mapping))
            }
            _ => Err(format!("perf's buffer: {}", io::Error::last_os_error())),
        }
    }

    /// Records of samples so far.
    fn samples(&self) -> u64 {
        let at = |offset: usize| {
            // SAFETY: callers stay within the mapping.
            unsafe { self.0.as_ptr().add(offset) }
        };
        // SAFETY: an aligned word of the first page.
        let head = unsafe { at(HEAD).cast::<u64>().read_volatile() } as usize;
        let (mut place, mut samples) = (0, 0);
        while place + 8 <= head.min(PAGES * PAGE) {
            // SAFETY: a record's header is aligned, and within the buffer.
            let header = unsafe { at(PAGE + place).cast::<u64>().read_volatile() };
            samples += u64::from(header as u32 == RECORD_SAMPLE);
            place += ((header >> 48) as usize).max(8);
        }
        samples
    }
}

impl Drop for SampleBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's.
        unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE * (PAGES + 1)) };
    }
}

/// Another thread, which answers.
struct Peer {
    to: io::PipeWriter,
    from: io::PipeReader,
}

impl Peer {
    fn start() -> Result<Peer> {
        let pipe = || io::pipe().map_err(|e| format!("pipe: {e}"));
        let ((mut there, to), (from, mut back)) = (pipe()?, pipe()?);
        let answer = move || {
            let mut byte = [0];
            while there.read_exact(&mut byte).is_ok() && back.write_all(&byte).is_ok() {}
        };
        let thread = std::thread::Builder::new().name("peer".to_owned()).spawn(answer);
        thread.map_err(|e| format!("thread: {e}"))?;
        Ok(Peer { to, from })
    }

    /// So many times this thread waits for the other one.
    fn take_turns(&self, turns: u32) -> Result<()> {
        let (mut to, mut from) = (&self.to, &self.from);
        for _ in 0..turns {
            let mut byte = [0];
            to.write_all(&byte)
                .and_then(|()| from.read_exact(&mut byte))
                .map_err(|e| format!("taking turns: {e}"))?;
        }
        Ok(())
    }
}

/// A counter of the emulated processor's, of the calling thread: that of a vCPU.
pub(crate) struct ThreadCounter(OwnedFd);

impl ThreadCounter {
    /// Instructions outside guests (INST_RETIRED), which are the host's.
    pub(crate) fn of_host() -> Result<ThreadCounter> {
        ThreadCounter::open((RAW, 8), EXCLUDE_GUEST)
    }

    /// Cycles at EL2 where the host's kernel is not: one for each instruction. The other counters stand still while a protected VM runs, as it has no PMU
    /// (MDCR_EL2.HPMN is 0).
    pub(crate) fn of_el2() -> Result<ThreadCounter> {
        ThreadCounter::open((HARDWARE, 0), EXCLUDE_USER_AND_KERNEL)
    }

    fn open((kind, config): (u32, u64), flags: u64) -> Result<ThreadCounter> {
        let attributes = EventAttributes { kind, config, flags, ..EventAttributes::default() };
        let file = vmtax_perf_event::open(&attributes, Of::ThisThread)
            .map_err(|e| format!("perf_event_open of the vCPU's thread: {e}"))?;
        Ok(ThreadCounter(file))
    }

    pub(crate) fn read(&self) -> Result<u64> {
        read::<1>(&self.0).map(|[count]| count)
    }
}
