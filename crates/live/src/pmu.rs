//! The host's own performance counters, of all its processors together: what ran in guests apart from what ran on the host.
//!
//! They count and do not sample. Where the processor has fewer counters than are asked for, the kernel takes turns, and what it
//! says of the time that each counted scales the number.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use vmtax_perf_event::{
    BRANCHES_OF_A_TURN, EventAttributes, INSTRUCTIONS_OF_A_TURN, Of, known_loop,
};

/// `PERF_COUNT_HW_*` of Linux `include/uapi/linux/perf_event.h`, and names.
const EVENTS: [(u64, &str); 3] = [(0, "cycles"), (1, "instructions"), (3, "cache_misses")];

/// Bits of `perf_event_attr`, from the first of its bit fields on.
const EXCLUDE_HOST: u64 = 1 << 19;
const EXCLUDE_GUEST: u64 = 1 << 20;

/// Where events count, beside their names.
const PLACES: [(u64, &str); 2] = [(EXCLUDE_HOST, "guest"), (EXCLUDE_GUEST, "host")];

/// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `PERF_FORMAT_TOTAL_TIME_RUNNING`.
const TIMES: u64 = 1 | 2;

/// A hostile root may name any number of processors.
const MOST_PROCESSORS: u32 = 8192;

/// Counters that are open.
#[derive(Debug, Default)]
pub struct HostCounters(Vec<LiveCounter>);

#[derive(Debug)]
struct LiveCounter {
    name: String,
    /// One file for each processor.
    files: Vec<File>,
}

impl HostCounters {
    /// Opens what this host has, and says in one sentence what it has not.
    pub fn open(root: &Path) -> (HostCounters, Option<String>) {
        let online = std::fs::read_to_string(root.join("sys/devices/system/cpu/online"));
        let processors = processors(online.unwrap_or_default().trim());
        let (mut counters, mut problems) = (Vec::new(), Vec::new());
        for (event, name) in EVENTS {
            for (place, of) in PLACES {
                let name = format!("pmu_{of}_{name}");
                let files = processors.iter().map(|&processor| file(event, place, processor));
                match files.collect::<std::io::Result<Vec<File>>>() {
                    Ok(files) => counters.push(LiveCounter { name, files }),
                    Err(error) => problems.push((name, error)),
                }
            }
        }
        let note = problems.first().map(|(_, error)| {
            let names: Vec<&str> = problems.iter().map(|(name, _)| name.as_str()).collect();
            format!(
                "counters of the host's processors are not there: {} ({error})",
                names.join(", ")
            )
        });
        (HostCounters(counters), note)
    }

    /// What each has counted since it was opened.
    pub fn read(&mut self) -> Vec<(&str, f64)> {
        let sum = |counter: &mut LiveCounter| counter.files.iter_mut().filter_map(count).sum();
        self.0
            .iter_mut()
            .map(|counter| (sum(counter), counter.name.as_str()))
            .map(|(n, s)| (s, n))
            .collect()
    }
}

/// What counters of the processor say of a loop whose instructions are known.
#[derive(Debug)]
pub struct LoopCount {
    /// The counter.
    pub event: &'static str,
    pub known: u64,
    /// What it counted, or why it counts nothing.
    pub counted: Result<u64, std::io::Error>,
}

/// Turns of the short and of the long loop. Their difference is counted: what reading the counter takes is in both.
const TURNS: [u64; 2] = [1_000, 10_001_000];
const PINNED: u64 = 1 << 2;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;

/// Counts a loop of this thread with counters of its own.
pub fn count_known_loop() -> [LoopCount; 2] {
    // PERF_COUNT_HW_INSTRUCTIONS and PERF_COUNT_HW_BRANCH_INSTRUCTIONS.
    [("instructions", 1, INSTRUCTIONS_OF_A_TURN), ("branches", 4, BRANCHES_OF_A_TURN)].map(
        |(event, config, of_a_turn)| LoopCount {
            event,
            known: of_a_turn * (TURNS[1] - TURNS[0]),
            counted: count_loops(config),
        },
    )
}

fn count_loops(config: u64) -> std::io::Result<u64> {
    let flags = PINNED | EXCLUDE_KERNEL | EXCLUDE_HV;
    let attributes = EventAttributes { config, flags, ..EventAttributes::default() };
    let mut counter = File::from(vmtax_perf_event::open(&attributes, Of::ThisThread)?);
    let mut read = || {
        let mut bytes = [0; 8];
        // A pinned counter that has no place on the processor reads as an end of file.
        counter.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
    };
    let mut counts = [0; 3];
    counts[0] = read()?;
    for (i, turns) in TURNS.into_iter().enumerate() {
        known_loop(turns);
        counts[i + 1] = read()?;
    }
    let [begun, short, long] = counts;
    Ok(long.wrapping_sub(short).wrapping_sub(short.wrapping_sub(begun)))
}

/// `0-3,8`
fn processors(list: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse::<u32>().ok()?.min(MOST_PROCESSORS))
    };
    list.split(',').filter_map(range).flatten().collect()
}

fn file(event: u64, place: u64, processor: u32) -> std::io::Result<File> {
    let attributes = EventAttributes {
        config: event,
        read_format: TIMES,
        flags: place,
        ..EventAttributes::default()
    };
    vmtax_perf_event::open(&attributes, Of::Processor(processor)).map(File::from)
}

/// The count, the time that it was wanted and the time that it counted.
fn count(file: &mut File) -> Option<f64> {
    let mut bytes = [0; 24];
    file.read_exact(&mut bytes).ok()?;
    let word = |at: usize| bytes[8 * at..].first_chunk().map(|word| u64::from_le_bytes(*word));
    scaled([word(0)?, word(1)?, word(2)?])
}

fn scaled([count, wanted, counted]: [u64; 3]) -> Option<f64> {
    (counted > 0).then(|| count as f64 * (wanted as f64 / counted as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(processors("0-2,5"), [0, 1, 2, 5]);
        assert_eq!(processors(""), []);
        assert_eq!(processors("x,3-1,7"), [7]);
    }

    #[test]
    fn a_count_of_part_of_the_time_is_scaled() {
        assert_eq!(scaled([10, 100, 50]), Some(20.0));
        assert_eq!(scaled([10, 100, 100]), Some(10.0));
        assert_eq!(scaled([10, 100, 0]), None);
    }

    #[test]
    fn a_known_loop_is_counted_or_the_reason_is_given() {
        for LoopCount { event, known, counted } in count_known_loop() {
            assert!(known == 20_000_000 || event == "branches" && known == 10_000_000);
            match counted {
                // Interrupts add a few.
                Ok(counted) => {
                    assert!(counted.abs_diff(known) < known / 1000, "{event}: {counted}")
                }
                Err(error) => assert_ne!(error.to_string(), "", "{event}"),
            }
        }
    }

    #[test]
    fn each_counter_is_present_or_reported_missing() {
        let (mut counters, note) = HostCounters::open(Path::new("/"));
        let said = note.unwrap_or_default();
        let names: Vec<String> =
            counters.read().iter().map(|(name, _)| (*name).to_owned()).collect();
        for (_, name) in EVENTS {
            for (_, of) in PLACES {
                let name = format!("pmu_{of}_{name}");
                assert!(names.contains(&name) != said.contains(&name), "{name}: {names:?}, {said}");
            }
        }
    }
}
