//! Synthetic runs, made of real ones.
//!
//! Each host and day is one of the given runs, with counts and times scaled by a factor of the host and one of the day, and
//! its rows repeated or cut to the given number. The same seed gives the same rows. Each run is labelled `synthetic`.
//!
//! Left out on purpose: plausible numbers. The runs are for benchmarks and tests of queries.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use vmtax_events::{AccessRow, ExitRow, Losses, Recording, RowSink, Sample, Stat, Tally, TimeRow};
use vmtax_store::{CreateOptions, Error, Run, RunWriter, rfc3339};

/// What fleet to make.
#[derive(Clone, Debug)]
pub(crate) struct SynthOptions {
    pub(crate) hosts: u32,
    /// Days, from 2026-01-01 on.
    pub(crate) days: u32,
    /// Rows of exits in each run; 0: as many as the real one has.
    pub(crate) rows: u64,
    /// Segments of each run.
    pub(crate) segments: u32,
    /// What the factors come from.
    pub(crate) seed: u64,
    /// Stored as each run's command.
    pub(crate) command: Vec<String>,
}

/// A real run in memory.
#[derive(Debug, Default)]
pub(crate) struct Template {
    exits: Vec<ExitRow>,
    accesses: Vec<AccessRow>,
    time: Vec<TimeRow>,
    samples: Vec<Sample>,
    stats: Vec<Stat>,
    recording: Recording,
    interval_ns: u64,
    /// The label of the runs made of it.
    pub(crate) source: String,
}

impl RowSink for Template {
    fn exit(&mut self, row: &ExitRow) {
        self.exits.push(row.clone());
    }
    fn access(&mut self, row: &AccessRow) {
        self.accesses.push(row.clone());
    }
    fn time(&mut self, row: &TimeRow) {
        self.time.push(*row);
    }
    fn sample(&mut self, sample: &Sample) {
        self.samples.push(sample.clone());
    }
    fn stat(&mut self, stat: &Stat) {
        self.stats.push(stat.clone());
    }
}

impl Template {
    /// Reads a run.
    pub(crate) fn read(folder: &Path) -> Result<Template, Error> {
        let run = Run::open(folder)?;
        let manifest = run.manifest();
        let mut template = Template {
            recording: manifest.recording.clone(),
            interval_ns: manifest.interval_ns,
            source: folder.display().to_string(),
            ..Template::default()
        };
        run.read(&mut template)?;
        template.exits.sort_by_key(|row| row.interval_start_ns);
        Ok(template)
    }

    /// It has rows of exits to repeat.
    pub(crate) fn has_exits(&self) -> bool {
        !self.exits.is_empty()
    }
}

/// Makes the tree `host=H/date=D/000`.
///
/// # Errors
/// When a run cannot be written. What was written before is whole.
pub(crate) fn make(
    templates: &[Template],
    root: &Path,
    options: &SynthOptions,
) -> Result<(), Error> {
    let one = |host: u32| {
        for day in 0..options.days {
            let folder = root.join(format!("host=h{host:06}")).join(format!("date={}", date(day)));
            fs::create_dir_all(&folder).map_err(|source| Error::Io {
                path: folder.clone(),
                what: "make the folder",
                source,
            })?;
            let place = SynthPlace { host, day, folder: folder.join("000") };
            write(&templates[host as usize % templates.len()], &place, options)?;
        }
        Ok(())
    };
    let next = AtomicU32::new(0);
    let work = || {
        loop {
            let host = next.fetch_add(1, Ordering::Relaxed);
            if host >= options.hosts {
                return Ok(());
            }
            // The others stop with the host that they are at.
            one(host).inspect_err(|_| next.store(options.hosts, Ordering::Relaxed))?;
        }
    };
    // More than there are processors: each run waits for the disk when it ends.
    let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

struct SynthPlace {
    host: u32,
    day: u32,
    folder: PathBuf,
}

fn write(template: &Template, place: &SynthPlace, options: &SynthOptions) -> Result<(), Error> {
    let mut chance = Chance(
        options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ u64::from(place.host) << 20
            ^ u64::from(place.day),
    );
    // Hosts differ by up to four times, days of a host by a tenth.
    let host = 0.5 + 1.5 * Chance(options.seed ^ u64::from(place.host)).next();
    let factor = host * (0.95 + 0.1 * chance.next());
    let labels = [
        ("synthetic".to_owned(), template.source.clone()),
        ("rack".to_owned(), format!("r{}", place.host % 40)),
    ];
    let create = CreateOptions {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: options.command.clone(),
        interval_ns: template.interval_ns,
        labels: labels.into_iter().collect(),
        ..CreateOptions::default()
    };
    let mut writer = RunWriter::create(&place.folder, &create)?;
    let rows = if options.rows == 0 { template.exits.len() as u64 } else { options.rows };
    let share = rows.div_ceil(u64::from(options.segments)).max(1);
    let (mut count, mut offset) = (0u64, 0u64);
    let period = period(template);
    while count < rows {
        let left = usize::try_from(rows - count).unwrap_or(usize::MAX);
        let exits = &template.exits[..template.exits.len().min(left)];
        // What comes after the last row that is wanted belongs to no row.
        let end = if exits.len() < left { u64::MAX } else { exits[left - 1].interval_start_ns };
        for row in exits {
            let mut row = row.clone();
            row.interval_start_ns = row.interval_start_ns.saturating_add(offset);
            scale_tally(&mut row.tally, factor * (0.9 + 0.2 * chance.next()));
            writer.exit(&row)?;
            count += 1;
            if count.is_multiple_of(share) {
                writer.segment()?;
            }
        }
        for row in template.accesses.iter().filter(|row| row.interval_start_ns <= end) {
            let mut row = row.clone();
            row.interval_start_ns = row.interval_start_ns.saturating_add(offset);
            scale_tally(&mut row.tally, factor);
            writer.access(&row)?;
        }
        for row in template.time.iter().filter(|row| row.interval_start_ns <= end) {
            writer.time(&scale_time(row, offset, factor))?;
        }
        offset += period;
    }
    template.samples.iter().try_for_each(|sample| writer.sample(sample))?;
    template.stats.iter().try_for_each(|stat| writer.stat(stat))?;
    let recording = Recording {
        hostname: format!("h{:06}", place.host),
        kernel: format!("{}+{}", template.recording.kernel, place.host % 3),
        ..template.recording.clone()
    };
    writer.finish(&recording, &Losses::default())
}

/// The time that a repetition takes.
fn period(template: &Template) -> u64 {
    let starts = || template.exits.iter().map(|row| row.interval_start_ns);
    let first = starts().min().unwrap_or(0);
    starts().max().unwrap_or(0) - first + template.interval_ns
}

fn scaled(n: u64, factor: f64) -> u64 {
    (n as f64 * factor).round() as u64
}

fn scale_tally(tally: &mut Tally, factor: f64) {
    // At least one: a row of nothing is no row. Durations stay what they were.
    tally.count = scaled(tally.count, factor).max(1);
    tally.timed = scaled(tally.timed, factor).min(tally.count);
    tally.time_ns = scaled(tally.time_ns, factor);
}

fn scale_time(row: &TimeRow, offset: u64, factor: f64) -> TimeRow {
    let mut row = *row;
    row.interval_start_ns = row.interval_start_ns.saturating_add(offset);
    // More exits take their time from the guest, as far as that has any.
    let spent = row.exit_kernel_ns.saturating_add(row.exit_user_ns);
    let kernel = scaled(row.exit_kernel_ns, factor);
    let user = scaled(row.exit_user_ns, factor);
    if kernel + user <= spent + row.guest_ns {
        row.guest_ns = spent + row.guest_ns - kernel - user;
        row.l2_ns = row.l2_ns.min(row.guest_ns);
        row.exit_kernel_ns = kernel;
        row.exit_user_ns = user;
    }
    row
}

/// A day of 2026, which began this many days after 1970.
fn date(day: u32) -> String {
    const FIRST: u64 = 20_454;
    let time = UNIX_EPOCH + Duration::from_secs((FIRST + u64::from(day)) * 86_400);
    rfc3339(time)[..10].to_owned()
}

/// Numbers that look like chance: `SplitMix64`.
struct Chance(u64);

impl Chance {
    /// From 0 to below 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        for (day, expected) in [
            (0, "2026-01-01"),
            (30, "2026-01-31"),
            (31, "2026-02-01"),
            (364, "2026-12-31"),
            (365, "2027-01-01"),
        ] {
            assert_eq!(date(day), expected);
        }
    }
}
