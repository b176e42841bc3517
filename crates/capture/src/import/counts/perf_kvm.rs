//! The text of `perf kvm stat report`: a table of exits by reason with counts and times.
//!
//! ```text
//!              VM-EXIT    Samples  Samples%     Time%    Min Time    Max Time         Avg time
//!
//!                  hlt         39     0.09%     2.63%     18.39us  12998.04us   3227.76us ( +-  12.79% )
//!
//! Total Samples:43646, Total events handled time:4788567.41us.
//! ```
//!
//! perf from 6.4 on prints `Event name  Samples  Sample%  Time (ns)  Time%  Max Time (ns)  Min Time (ns)  Mean Time (ns)`.
//! Tables of ports, MMIO and MSRs (`--event`) are of accesses and not of exits: they are skipped, or refused where there is no
//! other.

use vmtax_events::{Detail, Tally};

use super::{Table, at_line};
use crate::Error;
use crate::import::spelling::spelled;

/// The first column of a table's header.
fn head(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "Samples")?;
    let is_head = matches!(words.get(at + 1), Some(&("Samples%" | "Sample%")));
    (is_head && line.contains("Time%")).then(|| {
        let end = line.find("Samples").unwrap_or(0);
        line.get(..end).unwrap_or_default().trim().trim_start_matches('#').trim()
    })
}

/// Heads of tables of exits.
const EXITS: [&str; 2] = ["VM-EXIT", "Event name"];

pub(super) fn recognise(text: &str) -> bool {
    text.lines().any(|line| head(line).is_some())
}

pub(super) fn read(text: &str, table: &mut Table) -> Result<(), Error> {
    let (mut inside, mut tables, mut others) = (false, 0, Vec::new());
    let mut counted = 0u64;
    let mut claimed = None;
    // `perf kvm stat live` prints a table each second, with the time above it, and begins to count anew.
    let (mut is_live, mut claimed_before) = (false, 0u64);
    for (number, line) in text.lines().enumerate() {
        if let Some(name) = head(line) {
            inside = EXITS.contains(&name);
            tables += usize::from(inside);
            if !inside {
                others.push(name.to_owned());
            } else if tables > 1 && is_live {
                claimed_before = claimed_before.saturating_add(claimed.take().unwrap_or(0));
            } else if tables > 1 {
                return Err(at_line(
                    number,
                    "begins a second table of exits: give each in a file of its own",
                ));
            }
            continue;
        }
        let line = line.trim();
        is_live |= is_time(line);
        if let Some(rest) = line.strip_prefix("Lost events: ") {
            table.truncated.push(format!("perf lost events ({rest} times): counts are too low"));
        }
        if !inside {
            continue;
        }
        if let Some(rest) = line.strip_prefix("Total Samples:") {
            let digits = rest.split(',').next().unwrap_or_default();
            claimed = digits.trim().parse::<u64>().ok();
            inside = false;
        } else if !line.is_empty() && !line.starts_with('#') {
            let (name, tally) = row(line)
                .ok_or_else(|| at_line(number, "is no row of the table: NAME SAMPLES ..."))?;
            let name = spelled(&name).ok_or_else(|| {
                at_line(number, &format!("begins with {name:?}, which is no exit reason of x86"))
            })?;
            counted = counted.saturating_add(tally.count);
            table.add(name, Detail::NONE, &tally);
        }
    }
    if is_live && tables > 1 {
        table.notes.push(format!("{tables} tables of `perf kvm stat live` were added up"));
    }
    match claimed.map(|last| last.saturating_add(claimed_before)) {
        Some(all) if all != counted && tables > 0 => {
            table
                .truncated
                .push(format!("the table's last line says {all} samples, its rows have {counted}"));
        }
        // perf from 6.4 on has no such line.
        None if tables > 0 && text.contains("VM-EXIT") => {
            table
                .truncated
                .push("the table has no line \"Total Samples\": it ends early".to_owned());
        }
        _ => {}
    }
    match (tables, others.first()) {
        (0, Some(name)) => Err(Error::malformed(
            0,
            "perf kvm stat report",
            format!(
                "is a table of accesses ({name}) and not of exits: give the text of `perf kvm stat report --event=vmexit`, or the recording (perf.data.guest) itself, which has both"
            ),
        )),
        (_, Some(_)) => {
            table.notes.push(format!("tables of accesses are left out: {}", others.join(", ")));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// `14:02:11.123456`, above a table of `perf kvm stat live`.
fn is_time(line: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit();
    line.len() == 15
        && line
            .chars()
            .zip("00:00:00.000000".chars())
            .all(|(c, pattern)| if pattern == '0' { is_digit(c) } else { c == pattern })
}

/// A row's name, and its count and times.
fn row(line: &str) -> Option<(String, Tally)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let is_count = |at: &usize| {
        let share = words.get(at + 1).is_some_and(|word| word.ends_with('%'));
        share && words.get(*at).is_some_and(|word| word.bytes().all(|b| b.is_ascii_digit()))
    };
    let at = (1..words.len()).find(is_count)?;
    let name = words.get(..at)?.join(" ");
    let count: u64 = words.get(at)?.parse().ok()?;
    let rest = words.get(at + 2..)?;
    let tally =
        if rest.first()?.ends_with('%') { by_mean(count, rest)? } else { by_sum(count, rest)? };
    Some((name, tally))
}

/// `12.34us` as ns.
fn nanoseconds(word: &str) -> Option<u64> {
    let us: f64 = word.strip_suffix("us")?.parse().ok()?;
    (0.0..1e15).contains(&us).then(|| (us * 1000.0).round() as u64)
}

/// `Time%  Min  Max  Avg ( +- error of the mean% )`.
fn by_mean(count: u64, rest: &[&str]) -> Option<Tally> {
    let [_, min, max, mean, ..] = *rest else { return None };
    let (min_ns, max_ns, mean_ns) = (nanoseconds(min)?, nanoseconds(max)?, nanoseconds(mean)?);
    let relative = rest
        .iter()
        .rev()
        .find_map(|word| word.trim_start_matches("+-").strip_suffix('%')?.parse::<f64>().ok());
    let time_ns = mean_ns.checked_mul(count)?;
    timed(count, time_ns, min_ns, max_ns, relative.unwrap_or(0.0) / 100.0)
}

/// `Time (ns)  Time%  Max (ns)  Min (ns)  Mean (ns)`.
fn by_sum(count: u64, rest: &[&str]) -> Option<Tally> {
    let [time, _, max, min, ..] = *rest else { return None };
    timed(count, time.parse().ok()?, min.parse().ok()?, max.parse().ok()?, 0.0)
}

fn timed(count: u64, time_ns: u64, min_ns: u64, max_ns: u64, relative_error: f64) -> Option<Tally> {
    let mut tally = Tally::default();
    if count == 0 {
        return Some(tally);
    }
    if min_ns > max_ns || !(0.0..=1e6).contains(&relative_error) {
        return None;
    }
    let (n, mean) = (count as f64, time_ns as f64 / count as f64);
    // The error of the mean is the root of the sample variance over n.
    let variance = (relative_error * mean).powi(2) * n;
    (tally.count, tally.timed) = (count, count);
    (tally.time_ns, tally.min_ns) = (time_ns, min_ns.min(mean as u64));
    tally.max_ns = max_ns.max(mean as u64).min(time_ns);
    if relative_error > 0.0 || count == 1 {
        let of_equals = (u128::from(time_ns) * u128::from(time_ns)).div_ceil(u128::from(count));
        tally.sum_sq = of_equals.saturating_add((variance * (n - 1.0)) as u128);
    }
    Some(tally)
}
