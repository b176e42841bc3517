//! What the process that runs a VM on this computer takes while a job runs: processor time, and processor events of all its threads.
//!
//! Left out: events in the guest, which the agent counts there.

use std::fs::{self, File};
use std::io::{self, Read};

use vmtax_capture::program::{ProgramReading, unit};
use vmtax_events::Better;
use vmtax_guest::job::{EVENTS, JobCounter};
use vmtax_perf_event::{EventAttributes, Of, open};

/// The metric of the processor time of the VM's process, in user and kernel mode, vCPUs included.
const TIME: &str = "vmm-cpu-time";

/// Kind and number of each of [`EVENTS`] (include/uapi/linux/perf_event.h): instructions, branch misses; read misses of the data TLB, the L1
/// data cache and the last-level cache.
const CONFIGS: [(u32, u64); 5] =
    [(HARDWARE, 1), (HARDWARE, 5), (CACHE, 3 | MISS), (CACHE, MISS), (CACHE, 2 | MISS)];
const HARDWARE: u32 = 0;
const CACHE: u32 = 3;
/// Result 1 of operation 0, a read.
const MISS: u64 = 1 << 16;
/// Ticks of `/proc` in a second (USER_HZ, include/asm-generic/param.h).
const TICKS: f64 = 100.0;
/// Threads that a counted thread starts are counted, too.
const INHERIT: u64 = 1 << 1;
/// PERF_FORMAT_TOTAL_TIME_ENABLED and PERF_FORMAT_TOTAL_TIME_RUNNING.
const TIMES: u64 = 3;

/// A process that is being counted.
pub(crate) struct CountedProcess {
    process: u32,
    time_s: Option<f64>,
    /// By event the files of all threads, or why there are none.
    events: Vec<Result<Vec<File>, String>>,
}

impl CountedProcess {
    /// Begins to count; processor events only if wanted.
    pub(crate) fn begin(process: u32, events: bool) -> CountedProcess {
        let configs = if events { CONFIGS.as_slice() } else { &[] };
        CountedProcess {
            process,
            events: configs.iter().map(|config| all_threads(process, *config)).collect(),
            time_s: time_s(process),
        }
    }

    /// What it took since.
    pub(crate) fn end(self) -> (Option<ProgramReading>, Vec<JobCounter>) {
        let time = time_s(self.process).zip(self.time_s).map(|(now, before)| {
            ProgramReading::new(TIME, unit::SECONDS, (now - before).max(0.0), Better::Neither)
        });
        let counter = |(name, files): (&str, Result<Vec<File>, String>)| JobCounter {
            event: format!("vmm-{name}"),
            count: files.and_then(sum),
        };
        (time, EVENTS.into_iter().zip(self.events).map(counter).collect())
    }
}

fn all_threads(process: u32, (kind, config): (u32, u64)) -> Result<Vec<File>, String> {
    let attributes = EventAttributes {
        kind,
        config,
        read_format: TIMES,
        flags: INHERIT,
        ..EventAttributes::default()
    };
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.map_err(|e| format!("threads of process {process}: {e}"))?;
    let ids = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut files = Vec::new();
    for thread in ids {
        match open(&attributes, Of::Thread(thread)) {
            Ok(file) => files.push(File::from(file)),
            // It has ended since.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
            Err(error) => return Err(why(&error)),
        }
    }
    Ok(files)
}

fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "the processor, or the hypervisor below it, offers no such counter".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "the kernel does not permit it; be root, or lower kernel.perf_event_paranoid".to_owned()
        }
        _ => error.to_string(),
    }
}

/// The sum over threads. Counts are not extrapolated: an event that had no counter all the time has none.
fn sum(files: Vec<File>) -> Result<u64, String> {
    let mut all = 0u64;
    for mut file in files {
        let mut bytes = [0; 24];
        file.read_exact(&mut bytes).map_err(|e| e.to_string())?;
        let word = |at: usize| {
            let part = bytes.get(at * 8..at * 8 + 8).and_then(|part| part.try_into().ok());
            part.map_or(0, u64::from_ne_bytes)
        };
        let (count, enabled, running) = (word(0), word(1), word(2));
        if running < enabled {
            return Err("events shared a counter".to_owned());
        }
        all = all.saturating_add(count);
    }
    Ok(all)
}

/// Processor time of a process, by `/proc/PID/stat`: fields 14 and 15, in ticks.
fn time_s(process: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(ticks(&text)? as f64 / TICKS)
}

fn ticks(stat: &str) -> Option<u64> {
    // The name, field 2, can have spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    user.checked_add(fields.next()?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_user_and_kernel_mode() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 70 9 0 0 20 0";
        assert_eq!(ticks(stat), Some(79));
        assert_eq!(ticks("7 (a) S 1"), None);
        assert_eq!(ticks(""), None);
    }

    /// Each event has a count or a reason, and the time passes.
    #[test]
    fn this_process_is_counted() {
        let counted = CountedProcess::begin(std::process::id(), true);
        let mut sum = 0u64;
        while time_s(std::process::id()) <= counted.time_s {
            sum = std::hint::black_box(sum + 1);
        }
        let (time, events) = counted.end();
        assert!(time.is_some_and(|time| time.value > 0.0));
        let names: Vec<&str> = events.iter().map(|event| event.event.as_str()).collect();
        assert_eq!((names.len(), names[0]), (5, "vmm-instructions"));
        for event in &events {
            assert_ne!(event.count.as_ref().err().map(String::as_str), Some(""), "{event:?}");
        }
        let (none, nothing) = CountedProcess::begin(u32::MAX, false).end();
        assert!(none.is_none() && nothing.is_empty());
    }
}
