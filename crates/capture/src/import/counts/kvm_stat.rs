//! What kvm_stat (Linux `tools/kvm/kvm_stat`) prints: `-1`, its screen, `-l`, and `-l -c` as CSV.
//!
//! ```text
//! kvm_exit                                      17724        66         -1: total, and of the last second
//!  kvm_exit                 17724   51.2       66                       screen: Total  %Total  CurAvg/s
//! 2024-05-01 10:00:00      1024        12                              -l: of each second, below a line of names
//! 2024-05-01 10:00:00,1024,12                                          -l -c
//! ```
//!
//! VMMs that read KVM's statistics themselves print the same names, with a sign where they print how much they grew.
//! `kvm_exit(HLT)` is a count by reason, which there is with `kvm_stat -t -f kvm_exit`.

use std::collections::BTreeMap;

use vmtax_events::{Detail, Isa};

use super::CountsTable;
use super::perf_kvm::count;
use crate::Error;
use crate::import::spelling::{Spelled, spelled};

/// Linux arch/arm64/kvm/trace_arm.h, `kvm_exit`: `esr_ec` is 0, whose name is UNKNOWN, of every exit that is no trap.
pub(super) const NO_TRAP: &str = "UNKNOWN of arm64 counts the exits that are no traps: interrupts of the host, as which they are shown, and SErrors, which are rare";

/// Names that tell kvm_stat's lists from others: tracepoints of KVM, and its counters in debugfs.
const KNOWN: [&str; 10] = [
    "kvm_exit",
    "kvm_entry",
    "kvm_userspace_exit",
    "exits",
    "halt_exits",
    "io_exits",
    "mmio_exits",
    "irq_exits",
    "halt_wakeup",
    "insn_emulation",
];
/// Names that make a list kvm_stat's.
const ENOUGH: usize = 2;
/// The same where other lines are in the text too.
const ENOUGH_BESIDE_PROSE: usize = 3;

fn is_known(name: &str) -> bool {
    KNOWN.contains(&name) || name.starts_with("kvm_exit(")
}

/// Names of columns, where a line is a head of `-l` or `-l -c`.
fn head(line: &str) -> Option<(bool, Vec<&str>)> {
    let is_csv = line.starts_with("timestamp,");
    let names: Vec<&str> = match is_csv {
        true => line.split(',').skip(1).map(str::trim).collect(),
        false => line.split_whitespace().collect(),
    };
    let plain = names.iter().all(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()));
    let known = names.iter().filter(|name| is_known(name)).count();
    (plain && names.len() > 1 && known >= ENOUGH.min(names.len())).then_some((is_csv, names))
}

/// `NAME TOTAL [SHARE] [NOW]`.
fn line(text: &str) -> Option<(&str, u64)> {
    let mut words = text.split_whitespace();
    let (name, total) = (words.next()?, words.next()?);
    let is_number = |word: &str| word.parse::<f64>().is_ok() || count(word).is_some();
    let numbers = words.all(|word| is_number(&word.trim_end_matches('%').replace(',', "")));
    (numbers && name.starts_with(|c: char| c.is_ascii_alphabetic()))
        .then(|| Some((name, count(total.strip_prefix('+').unwrap_or(total))?)))?
}

/// Whether the text is kvm_stat's.
pub(crate) fn is_kvm_stat(text: &str) -> bool {
    let lines = || text.lines().take(512);
    if lines().any(|line| line.trim_start().starts_with("kvm statistics")) {
        return true;
    }
    let known = lines().filter_map(line).filter(|(name, _)| is_known(name)).count();
    lines().take(8).any(|line| head(line).is_some())
        || known >= ENOUGH_BESIDE_PROSE
        || known >= ENOUGH
            && lines().all(|text| {
                text.trim().is_empty() || line(text).is_some() || text.contains("%Total")
            })
}

/// What a text of kvm_stat counts.
#[derive(Default)]
pub(crate) struct KvmStatCounters<'t> {
    /// Every counter by its name, summed over seconds where each has a line.
    pub(crate) sums: BTreeMap<&'t str, u64>,
    /// Lines of counts.
    pub(crate) seconds: u64,
    /// Lines that lack a count or more, which are in no sum.
    pub(crate) cut: u64,
}

/// Reads all counters.
pub(crate) fn counters(text: &str) -> KvmStatCounters<'_> {
    let KvmStatCounters { mut sums, mut seconds, mut cut } = KvmStatCounters::default();
    let mut columns: Option<(bool, Vec<&str>)> = None;
    for text in text.lines() {
        if let Some(found) = head(text) {
            columns = Some(found);
            continue;
        }
        let Some((is_csv, names)) = &columns else {
            if let Some((name, total)) = line(text).filter(|(name, _)| *name != "Total") {
                sums.insert(name, total);
            }
            continue;
        };
        let cells: Vec<&str> = match is_csv {
            true => text.split(',').map(str::trim).skip(1).collect(),
            false => text.split_whitespace().collect(),
        };
        // Newer versions print the time before the counts: a date and a time.
        let cells = cells.get(cells.len().saturating_sub(names.len())..).unwrap_or_default();
        let counts: Option<Vec<u64>> = cells.iter().map(|cell| count(cell)).collect();
        let Some(counts) = counts.filter(|counts| counts.len() == names.len()) else {
            cut += u64::from(cells.iter().any(|cell| cell.parse::<u64>().is_ok()));
            continue;
        };
        seconds += 1;
        for (name, count) in names.iter().copied().zip(counts) {
            let sum = sums.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
    }
    KvmStatCounters { sums, seconds, cut }
}

pub(super) fn recognise(text: &str) -> bool {
    is_kvm_stat(text)
}

pub(super) fn read(text: &str, table: &mut CountsTable) -> Result<(), Error> {
    let KvmStatCounters { sums: counters, seconds, cut } = counters(text);
    if cut > 0 {
        let what = if cut == 1 { "line has" } else { "lines have" };
        table.truncated.push(format!("{cut} {what} not a number for each name: not counted"));
    }
    let mut of_reasons = 0u64;
    let reason_of = |name: &str| -> Option<String> {
        Some(name.strip_prefix("kvm_exit(")?.strip_suffix(')')?.to_owned())
    };
    let is_arm = counters.keys().filter_map(|name| reason_of(name)).any(
        |name| matches!(spelled(&name), Some(Spelled::Sure(reason)) if reason.isa == Isa::Arm),
    );
    for (name, count) in &counters {
        let Some(reason) = reason_of(name) else { continue };
        let reason = if is_arm && reason == "UNKNOWN" {
            if *count > 0 {
                table.notes.push(NO_TRAP.to_owned());
            }
            "IRQ".to_owned()
        } else {
            reason
        };
        let Some(reason) = spelled(&reason) else {
            let problem = format!("counts {name}, which is no exit reason that vmtax knows");
            return Err(Error::malformed(0, "kvm_stat", problem));
        };
        of_reasons = of_reasons.saturating_add(*count);
        table.count(reason, Detail::NONE, *count);
    }
    if of_reasons == 0 {
        let problem = format!(
            "counts no exit by its reason{}: run `kvm_stat -1 -t -f '^kvm_exit'`, or record `perf kvm stat record -a`; beside a recording, `vmtax import --stats` takes its counters",
            largest(&counters)
        );
        return Err(Error::malformed(0, "kvm_stat", problem));
    }
    if let Some(all) = counters.get("kvm_exit").filter(|all| **all > of_reasons) {
        table.truncated.push(format!("kvm_exit counts {all} exits, its reasons {of_reasons}"));
    }
    if seconds > 1 {
        table.notes.push(format!(
            "the log has {seconds} lines of counts, which were added up: give --length"
        ));
    }
    Ok(())
}

/// Counters of kinds of exits, which are no reasons: each joins several of them. (Linux `arch/x86/kvm/x86.c`, `kvm_vcpu_stats_desc`.)
const OF_EXITS: [&str; 8] = [
    "irq_exits",
    "io_exits",
    "mmio_exits",
    "halt_exits",
    "signal_exits",
    "irq_window_exits",
    "nmi_window_exits",
    "request_irq_exits",
];
/// Counters that a refusal names.
const MOST_NAMED: usize = 3;

/// What the counters say all the same: ` (of 705683003 exits: irq_exits 443033416, io_exits 15393558)`.
fn largest(counters: &BTreeMap<&str, u64>) -> String {
    let of = |name: &'static str| Some((name, *counters.get(name)?));
    let mut known: Vec<(&str, u64)> =
        OF_EXITS.into_iter().filter_map(of).filter(|(_, count)| *count > 0).collect();
    known.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let named: Vec<String> =
        known.iter().take(MOST_NAMED).map(|(name, count)| format!("{name} {count}")).collect();
    match (named.is_empty(), counters.get("exits")) {
        (true, _) => String::new(),
        (false, Some(all)) => format!(" (of {all} exits: {})", named.join(", ")),
        (false, None) => format!(" ({})", named.join(", ")),
    }
}
