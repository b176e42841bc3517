//! Texts in which another tool printed how many exits there were: no events, so they become rows.
//!
//! | text | holds |
//! |---|---|
//! | `perf kvm stat report` | a line for each reason: count, least, longest and mean time; tables of accesses |
//! | `perf top -e kvm:kvm_exit`, `perf report -s trace` | shares of exits and accesses |
//! | perf-prof's `kvm-exit` | a line for each reason, with times |
//! | `kvm_stat -1`, its screen, `-l`, `-l -c` | `kvm_exit(REASON)`, among other counters |
//! | `NAME: COUNT` lines | the bpftrace scripts of CVM_eval, as a total or second by second |
//! | bcc's `kvmexit`, SystemTap's `kvm_service_time.stp` | a line for each reason, the latter with times |
//! | DTrace on bhyve | a line for each reason of SVM, port and faulting address |
//! | `reason=48 isa=1 rip=...` for each exit | what a bpftrace program of one's own prints |
//! | a reason and its count in each row | tables without titles |
//! | columns of reasons, MSRs or TDVMCALL leaves | the same scripts, a line each second |
//!
//! A table has sums and no single durations: [`vmtax_events::Tally`]'s histogram stays empty, and quantiles are unknown.

mod bare;
mod columns;
mod dtrace;
mod kvm_stat;
mod named;
mod perf_kvm;
mod printed;
mod scripts;
mod shares;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read;

use vmtax_events::{
    AccessKey, AccessRow, Coverage, Detail, DetailKind, ExitKey, ExitRow, Isa, Level, NO_VCPU,
    Outcome, Reason, Recording, Tally,
};

use super::Imported;
use super::spelling::{Spelled, vendor};
use super::text::{UNTERMINATED, is_text};
use crate::{Error, Feed};

pub(crate) use kvm_stat::{KvmStatCounters, counters, is_kvm_stat};

/// Larger texts are no tables of exits.
const MOST_BYTES: u64 = 64 << 20;

/// A text that is read, by its first bytes.
#[derive(Clone, Copy)]
struct TextKind {
    /// Format and tool of the recording.
    tool: &'static str,
    recognise: fn(&str) -> bool,
    read: fn(&str, &mut CountsTable) -> Result<(), Error>,
}

const KINDS: [TextKind; 11] = [
    TextKind { tool: "perf kvm stat", recognise: perf_kvm::recognise, read: perf_kvm::read },
    TextKind { tool: "perf report", recognise: shares::recognise, read: shares::read },
    TextKind {
        tool: "perf-prof",
        recognise: scripts::recognise_perf_prof,
        read: scripts::read_perf_prof,
    },
    TextKind { tool: "kvm_stat", recognise: kvm_stat::recognise, read: kvm_stat::read },
    TextKind { tool: "bcc kvmexit", recognise: scripts::recognise_bcc, read: scripts::read_bcc },
    TextKind {
        tool: "SystemTap",
        recognise: scripts::recognise_systemtap,
        read: scripts::read_systemtap,
    },
    TextKind { tool: "DTrace", recognise: dtrace::recognise, read: dtrace::read },
    TextKind { tool: "bpftrace", recognise: columns::recognise, read: columns::read },
    TextKind { tool: "bpftrace", recognise: named::recognise, read: named::read },
    TextKind { tool: "bpftrace", recognise: printed::recognise, read: printed::read },
    TextKind { tool: "rows without titles", recognise: bare::recognise, read: bare::read },
];

/// The text without the spaces that all its lines begin with: an indented list has lines below others all the same.
fn dedented(text: &str) -> Cow<'_, str> {
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let indent = |line: &str| line.len() - line.trim_start_matches(' ').len();
    match lines().map(indent).min() {
        None | Some(0) => Cow::Borrowed(text),
        Some(most) => Cow::Owned(
            text.split_inclusive('\n')
                .map(
                    |line| {
                        if line.trim().is_empty() { "\n" } else { line.get(most..).unwrap_or("") }
                    },
                )
                .collect(),
        ),
    }
}

fn kind(head: &[u8]) -> Option<TextKind> {
    let text = String::from_utf8_lossy(head);
    is_text(head).then(|| KINDS.into_iter().find(|kind| (kind.recognise)(&text)))?
}

/// Whether a file that begins with these bytes is such a text.
pub fn recognise(head: &[u8]) -> bool {
    kind(head).is_some()
}

/// Reads the whole text. `isa` says whose the names are that either vendor has.
///
/// # Errors
/// When it has no exits, or a line that must be one cannot be read without doubt.
pub fn import(input: &mut dyn Read, isa: Isa, feed: &mut impl Feed) -> Result<Imported, Error> {
    let mut bytes = Vec::new();
    let got = input.take(MOST_BYTES + 1).read_to_end(&mut bytes);
    got.map_err(|source| Error::Io { offset: 0, source })?;
    if bytes.len() as u64 > MOST_BYTES {
        let problem = "is more than 64 MiB".to_owned();
        return Err(Error::Unsupported { offset: MOST_BYTES, item: "table of exits", problem });
    }
    let head = bytes.get(..super::HEAD).unwrap_or(&bytes);
    let kind = kind(head)
        .ok_or_else(|| Error::malformed(0, "table of exits", "is of no tool that is known"))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut table = CountsTable::default();
    (kind.read)(&dedented(&text), &mut table)?;
    let mut about = Imported {
        recording: Recording {
            format: format!("{} text", kind.tool),
            tool: kind.tool.to_owned(),
            ..Recording::default()
        },
        ..Imported::default()
    };
    if !text.ends_with('\n') {
        about.losses.truncated.push(UNTERMINATED.to_owned());
    }
    table.deliver(isa, feed, &mut about)?;
    Ok(about)
}

/// What a table counts, before it is known whose its names are.
#[derive(Default)]
struct CountsTable {
    rows: BTreeMap<(Spelled, Detail), Tally>,
    /// Accesses, of which an exit can make several or none.
    accesses: BTreeMap<Detail, Tally>,
    notes: Vec<String>,
    truncated: Vec<String>,
    /// Requests of guests with encrypted registers, which are exits that are counted in [`Table::rows`] already.
    requests: BTreeMap<u64, u64>,
}

impl CountsTable {
    fn add(&mut self, name: Spelled, detail: Detail, tally: &Tally) {
        self.rows.entry((name, detail)).or_default().merge(tally);
    }

    fn access(&mut self, detail: Detail, tally: &Tally) {
        self.accesses.entry(detail).or_default().merge(tally);
    }

    fn count(&mut self, name: Spelled, detail: Detail, count: u64) {
        let mut tally = Tally::default();
        tally.add_untimed(count);
        self.add(name, detail, &tally);
    }

    fn request(&mut self, code: u64, count: u64) {
        let known = self.requests.entry(code).or_default();
        *known = known.saturating_add(count);
    }

    fn deliver(
        mut self,
        isa: Isa,
        feed: &mut impl Feed,
        about: &mut Imported,
    ) -> Result<(), Error> {
        let isa = vendor(self.rows.keys().map(|(name, _)| *name), isa)?;
        let mut rows: BTreeMap<(Reason, Detail), Tally> = BTreeMap::new();
        for ((name, detail), tally) in &self.rows {
            rows.entry((name.reason(isa), *detail)).or_default().merge(tally);
        }
        tell_requests(&mut rows, &self.requests);
        rows.retain(|_, tally| tally.count > 0);
        self.accesses.retain(|_, tally| tally.count > 0);
        if rows.is_empty() && self.accesses.is_empty() {
            return Err(Error::malformed(0, "table of exits", "counts no exit"));
        }
        about.recording.coverage = coverage(!rows.is_empty(), self.accesses.keys());
        for ((reason, detail), tally) in rows {
            feed.counted(row(reason, detail, tally))?;
        }
        for (detail, tally) in self.accesses {
            feed.accessed(access(detail, tally))?;
        }
        about.losses.notes.extend(self.notes);
        about.losses.truncated.extend(self.truncated);
        Ok(())
    }
}

/// What the tables hold.
fn coverage<'a>(exits: bool, accesses: impl Iterator<Item = &'a Detail>) -> Coverage {
    let mut coverage = Coverage { exits, ..Coverage::default() };
    for detail in accesses {
        match detail.kind {
            DetailKind::MsrRead | DetailKind::MsrWrite => coverage.msr = true,
            DetailKind::PortIn | DetailKind::PortOut => coverage.pio = true,
            DetailKind::MmioRead | DetailKind::MmioWrite => coverage.mmio = true,
            _ => {}
        }
    }
    coverage
}

/// VMGEXIT exits are split by what was requested, as far as requests were counted.
pub(super) fn tell_requests(
    rows: &mut BTreeMap<(Reason, Detail), Tally>,
    requests: &BTreeMap<u64, u64>,
) {
    use vmtax_events::svm;
    let key = (Reason { isa: Isa::Svm, code: svm::VMGEXIT, flags: 0 }, Detail::NONE);
    let Some(all) = rows.get(&key).map(|tally| tally.count) else { return };
    let told: u64 = requests.values().fold(0, |sum, count| sum.saturating_add(*count));
    // Requests at the ends of the time may be without their exit. Times are known of all exits together, which a part of the count cannot carry.
    let too_many = told > all.saturating_add(all / 50);
    if told == 0 || too_many || rows.get(&key).is_some_and(|tally| tally.timed > 0) {
        return;
    }
    rows.remove(&key);
    let parts = requests.iter().map(|(code, count)| (Detail::new(DetailKind::Ghcb, *code), *count));
    for (detail, count) in parts.chain([(Detail::NONE, all.saturating_sub(told))]) {
        rows.entry((key.0, detail)).or_default().add_untimed(count);
    }
}

pub(super) fn row(reason: Reason, detail: Detail, tally: Tally) -> ExitRow {
    let key = ExitKey {
        vm: 0,
        vcpu: NO_VCPU,
        level: Level::L1,
        reason,
        detail,
        outcome: Outcome::Unknown,
        ancillary_of: None,
    };
    ExitRow { interval_start_ns: 0, key, tally }
}

fn access(detail: Detail, tally: Tally) -> AccessRow {
    let key = AccessKey { vm: 0, vcpu: NO_VCPU, level: Level::L1, detail };
    AccessRow { interval_start_ns: 0, key, tally }
}

/// A problem of a line.
fn at_line(number: usize, problem: &str) -> Error {
    Error::malformed(0, "table of exits", format!("line {} {problem}", number + 1))
}
