//! Tables of other public tools: bcc's `kvmexit`, SystemTap's `kvm_service_time.stp`, and perf-prof's `kvm-exit`.
//!
//! ```text
//! TGID     TID      KVM_EXIT_REASON                     COUNT
//! 1274253  1274261  EXIT_REASON_IO_INSTRUCTION          214032
//!
//! reason:    count  sum(us)  min(us)  avg(us)  max(us)
//!     12:      182 29145513       58   160140   500054
//!
//! exit_reason             calls        total(us)   min(us)   avg(us)      max(us)  %gsys
//! -------------------- -------- ---------------- --------- --------- ------------ ------
//! HLT                      1208       903477.145     1.061   747.911     4621.338 100.00
//! ```

use vmtax_events::{Detail, Isa, Reason, Tally};

use super::{CountsTable, at_line};
use crate::Error;
use crate::import::spelling::{Spelled, spelled};

/// SVM's physical interrupt, 0x60, and halt, 0x78: a table of an AMD host has one of them, and VMX has no such reasons.
const LEAST_OF_SVM: u32 = 0x60;

fn is_bcc(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    // "STAT" in its own example file. kvmexit-aarch64 has the mean time too.
    matches!(
        words[..],
        [.., "KVM_EXIT_REASON", "COUNT" | "STAT"] | [.., "KVM_EXIT_REASON", "COUNT", "AVG_TIME"]
    )
}

fn is_systemtap(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words == ["reason:", "count", "sum(us)", "min(us)", "avg(us)", "max(us)"]
}

pub(super) fn recognise_bcc(text: &str) -> bool {
    text.lines().any(is_bcc)
}

pub(super) fn recognise_systemtap(text: &str) -> bool {
    text.lines().any(is_systemtap)
}

pub(super) fn read_bcc(text: &str, table: &mut CountsTable) -> Result<(), Error> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| !is_bcc(line));
    let has_times = text.lines().any(|line| is_bcc(line) && line.trim_end().ends_with("AVG_TIME"));
    for (number, line) in lines.filter(|(_, line)| !is_bcc(line)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if has_times {
            if let [.., name, count, mean] = words[..]
                && (name.starts_with("EC_") || name == "UNKNOWN_EC")
            {
                let row = of_arm(name, count, mean, table).ok_or_else(|| {
                    at_line(number, "is no row of the table: REASON COUNT AVG_TIME")
                })?;
                table.add(row.0, Detail::NONE, &row.1);
            }
            continue;
        }
        let (name, count) = match words[..] {
            [] => continue,
            [.., name, count] => (name, count.parse::<u64>()),
            // How the script was ended.
            [_] => continue,
        };
        let count = count.map_err(|_| at_line(number, "is no row of the table: REASON COUNT"))?;
        let name = spelled(name).ok_or_else(|| {
            at_line(number, &format!("has {name:?}, which is no exit reason of x86"))
        })?;
        table.count(name, Detail::NONE, count);
    }
    table.notes.push("kvmexit counts by thread: threads were added up".to_owned());
    Ok(())
}

/// A row of kvmexit-aarch64 (bcc's pull request 4570): `EC_WFx 7 503369309.4`, the mean in ns; `UNKNOWN_EC` is no trap.
fn of_arm(
    name: &str,
    count: &str,
    mean: &str,
    table: &mut CountsTable,
) -> Option<(Spelled, Tally)> {
    let reason = match name {
        "UNKNOWN_EC" => {
            if !table.notes.iter().any(|note| note == super::kvm_stat::NO_TRAP) {
                table.notes.push(super::kvm_stat::NO_TRAP.to_owned());
            }
            "IRQ"
        }
        _ => name.strip_prefix("EC_")?,
    };
    let (count, mean): (u64, f64) = (count.parse().ok()?, mean.parse().ok()?);
    let longest = u64::MAX as f64 / count.max(1) as f64;
    if count == 0 || !(0.0..longest).contains(&mean) {
        return None;
    }
    let mut tally = Tally::default();
    (tally.count, tally.timed) = (count, count);
    tally.time_ns = (mean * count as f64) as u64;
    // The table has the means alone.
    (tally.min_ns, tally.max_ns) = (mean as u64, mean as u64);
    Some((spelled(reason)?, tally))
}

pub(super) fn read_systemtap(text: &str, table: &mut CountsTable) -> Result<(), Error> {
    let lines = text.lines().enumerate().skip_while(|(_, line)| !is_systemtap(line));
    let mut rows: Vec<(u32, Tally)> = Vec::new();
    for (number, line) in lines.filter(|(_, line)| !is_systemtap(line) && !line.trim().is_empty()) {
        let row = row(line).ok_or_else(|| {
            at_line(number, "is no row of the table: REASON: COUNT SUM MIN AVG MAX")
        })?;
        rows.push(row);
    }
    let isa = if rows.iter().any(|(code, _)| *code >= LEAST_OF_SVM) { Isa::Svm } else { Isa::Vmx };
    for (code, tally) in rows {
        table.add(Spelled::Sure(Reason { isa, code, flags: 0 }), Detail::NONE, &tally);
    }
    Ok(())
}

fn row(line: &str) -> Option<(u32, Tally)> {
    let (code, rest) = line.split_once(':')?;
    let cells: Vec<u64> =
        rest.split_whitespace().map(|cell| cell.parse().ok()).collect::<Option<_>>()?;
    let [count, sum, min, _, max] = cells[..] else { return None };
    let ns = |us: u64| us.checked_mul(1000);
    let mut tally = Tally::default();
    if count == 0 || min > max || sum < max {
        return None;
    }
    (tally.count, tally.timed) = (count, count);
    (tally.time_ns, tally.min_ns, tally.max_ns) = (ns(sum)?, ns(min)?, ns(max)?);
    let time = u128::from(tally.time_ns);
    tally.sum_sq = time.checked_mul(time)?.div_ceil(u128::from(count));
    // Whole microseconds are cut off: a minimum may be above the mean that the sum gives.
    tally.min_ns = tally.min_ns.min(tally.time_ns / count);
    Some((code.trim().parse().ok()?, tally))
}

/// Longer lines are no rows.
const LONGEST_ROW: usize = 4096;

/// Where the columns of perf-prof's table are, from the end of a row: their number differs by version and options.
struct PerfProfColumns {
    name: usize,
    calls: usize,
    total: usize,
    min: usize,
    max: usize,
}

impl PerfProfColumns {
    fn of(line: &str) -> Option<PerfProfColumns> {
        if !line.contains("exit_reason") || line.len() > LONGEST_ROW {
            return None;
        }
        let words: Vec<&str> = line.split_whitespace().rev().collect();
        let at = |name: &str| words.iter().position(|word| *word == name);
        Some(PerfProfColumns {
            name: at("exit_reason")?,
            calls: at("calls")?,
            total: at("total(us)")?,
            min: at("min(us)")?,
            max: at("max(us)")?,
        })
    }

    fn row<'a>(&self, line: &'a str) -> Option<(&'a str, Tally)> {
        if line.len() > LONGEST_ROW {
            return None;
        }
        let words: Vec<&str> = line.split_whitespace().rev().collect();
        let word = |at: usize| words.get(at).copied();
        let ns = |at: usize| {
            let us: f64 = word(at)?.parse().ok()?;
            (0.0..1e15).contains(&us).then(|| (us * 1000.0).round() as u64)
        };
        let count: u64 = word(self.calls)?.parse().ok()?;
        let (time_ns, min_ns, max_ns) = (ns(self.total)?, ns(self.min)?, ns(self.max)?);
        if count == 0 || min_ns > max_ns || time_ns < max_ns || min_ns > time_ns / count {
            return None;
        }
        let time = u128::from(time_ns);
        let sum_sq = time.checked_mul(time)?.div_ceil(u128::from(count));
        let tally =
            Tally { count, timed: count, time_ns, min_ns, max_ns, sum_sq, ..Tally::default() };
        Some((word(self.name)?, tally))
    }
}

pub(super) fn recognise_perf_prof(text: &str) -> bool {
    text.lines().any(|line| PerfProfColumns::of(line).is_some())
}

pub(super) fn read_perf_prof(text: &str, table: &mut CountsTable) -> Result<(), Error> {
    let mut columns = None;
    let mut tables = 0u64;
    for (number, line) in text.lines().enumerate() {
        if let Some(found) = PerfProfColumns::of(line) {
            columns = Some(found);
            tables += 1;
            continue;
        }
        let Some(known) = &columns else { continue };
        let Some(first) = line.split_whitespace().next() else { continue };
        let Some((name, tally)) = known.row(line) else {
            // A rule, the next interval's time, or prose.
            if spelled(first).is_some() {
                return Err(at_line(
                    number,
                    "is no row of the table: REASON CALLS TOTAL MIN AVG MAX",
                ));
            }
            continue;
        };
        let name = spelled(name).ok_or_else(|| {
            at_line(number, &format!("has {name:?}, which is no exit reason of x86"))
        })?;
        table.add(name, Detail::NONE, &tally);
    }
    if tables > 1 {
        table.notes.push(format!("{tables} tables of perf-prof were added up"));
    }
    Ok(())
}
