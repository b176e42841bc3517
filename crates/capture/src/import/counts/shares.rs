//! Shares of what tracepoints of KVM said: `perf top -e kvm:kvm_exit`, `perf report --stdio -s trace`.
//!
//! ```text
//! # Samples: 432  of event 'kvm:kvm_exit'
//! # Event count (approx.): 432
//!     66.90%  vcpu 1 reason cpuid rip 0xf0062 info1 0x0 ...
//! # Samples: 32  of event 'kvm:kvm_pio'
//!     50.00%  pio_write at 0xe0 size 1 count 1 val 0xd
//! ```
//!
//! A count is its share of the events, whose number stands above, or its own column (`-n`). Where neither does, a count is a hundredth of a
//! percent.

use std::collections::BTreeMap;

use vmtax_events::event::MmioAccess;
use vmtax_events::{Detail, DetailKind, EventKind, Reason, Tally};

use super::CountsTable;
use crate::Error;
use crate::import::spelling::Spelled;
use crate::import::text::reason::Reasons;
use crate::import::tracepoint::table;

/// How the texts of the tracepoints begin that are read, and the tracepoint.
const TEXTS: [(&str, &str); 7] = [
    ("reason ", "kvm_exit"),
    ("pio_read at ", "kvm_pio"),
    ("pio_write at ", "kvm_pio"),
    ("msr_read ", "kvm_msr"),
    ("msr_write ", "kvm_msr"),
    ("mmio read ", "kvm_mmio"),
    ("mmio write ", "kvm_mmio"),
];
/// Everything, in hundredths of a percent.
const WHOLE: u64 = 100 * 100;
/// Shares that lack less than this are rounded, percent.
const ROUNDED: f64 = 1.0;

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ShareOf {
    Exit(Reason),
    Access(Detail),
}

/// A row's share in percent, its count where it has one, and what it is about.
fn row(line: &str, reasons: &mut Reasons) -> Option<(f64, Option<u64>, ShareOf)> {
    let line = line.trim_start_matches([' ', '\t', '+', '-']);
    let (share, rest) = line.split_once('%')?;
    let share: f64 = share.replace(',', ".").parse().ok()?;
    let (at, event) =
        TEXTS.iter().filter_map(|(start, event)| Some((rest.find(start)?, *event))).min()?;
    let count = rest.get(..at)?.split_whitespace().next().and_then(|word| word.parse().ok());
    let text = rest.get(at..)?.as_bytes();
    let kind = table::read(table::find(event.as_bytes())?, text, reasons)?.kind?;
    (0.0..=100.0).contains(&share).then_some((share, count, what(kind)?))
}

fn what(kind: EventKind) -> Option<ShareOf> {
    use DetailKind as D;
    let of = |write: bool, [read, wrote]: [DetailKind; 2], value: u64| {
        Some(ShareOf::Access(Detail::new(if write { wrote } else { read }, value)))
    };
    match kind {
        EventKind::Exit { reason, .. } => Some(ShareOf::Exit(Reason { flags: 0, ..reason })),
        EventKind::Pio { write, port, .. } => of(write, [D::PortIn, D::PortOut], port.into()),
        EventKind::Msr { write, index, .. } => of(write, [D::MsrRead, D::MsrWrite], index.into()),
        EventKind::Mmio { access: MmioAccess::Read, gpa, .. } => {
            of(false, [D::MmioRead, D::MmioWrite], gpa)
        }
        EventKind::Mmio { access: MmioAccess::Write, gpa, .. } => {
            of(true, [D::MmioRead, D::MmioWrite], gpa)
        }
        _ => None,
    }
}

pub(super) fn recognise(text: &str) -> bool {
    let mut reasons = Reasons::default();
    text.lines().any(|line| row(line, &mut reasons).is_some())
}

/// The rows below one line of samples.
#[derive(Default)]
struct SharesSection {
    /// Events that the shares are of.
    events: Option<u64>,
    /// Share and count of each.
    rows: BTreeMap<ShareOf, (f64, u64)>,
    /// All rows have counts.
    is_counted: bool,
}

pub(super) fn read(text: &str, table: &mut CountsTable) -> Result<(), Error> {
    let mut reasons = Reasons::default();
    let mut section = SharesSection { is_counted: true, ..SharesSection::default() };
    for line in text.lines() {
        if line.contains("Samples: ") && line.contains(" of event") {
            section.deliver(table);
            section = SharesSection { is_counted: true, ..SharesSection::default() };
        }
        if let Some((_, rest)) = line.split_once("Event count (approx.): ") {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            section.events = digits.parse().ok().filter(|events| *events > 0);
        }
        if let Some((share, count, what)) = row(line, &mut reasons) {
            section.is_counted &= count.is_some();
            let sum = section.rows.entry(what).or_default();
            sum.0 += share;
            sum.1 = sum.1.saturating_add(count.unwrap_or(0));
        }
    }
    section.deliver(table);
    Ok(())
}

impl SharesSection {
    /// How exact its counts are.
    fn note(&self) -> Option<String> {
        let is_of_exits = self.rows.keys().any(|what| matches!(what, ShareOf::Exit(_)));
        let note = match self.events {
            _ if self.is_counted => return None,
            // A share of two decimals then has one count.
            Some(events) if events <= WHOLE => return None,
            Some(_) => "counts are shares of the events, rounded to a hundredth of a percent",
            None if is_of_exits => {
                "the text has shares and no counts: an exit stands for a hundredth of a percent of the exits seen"
            }
            None => "shares of accesses without their number are left out",
        };
        Some(note.to_owned())
    }

    fn deliver(&self, table: &mut CountsTable) {
        if self.rows.is_empty() {
            return;
        }
        let shown: f64 = self.rows.values().map(|(share, _)| share).sum();
        if shown < 100.0 - ROUNDED {
            table.truncated.push(format!(
                "the rows are {shown:.1} % of the events: the rest is not in the text"
            ));
        }
        if let Some(note) = self.note()
            && !table.notes.contains(&note)
        {
            table.notes.push(note);
        }
        for (what, (share, count)) in &self.rows {
            let events = self.events.unwrap_or(WHOLE);
            let count = if self.is_counted {
                *count
            } else {
                (share / 100.0 * events as f64).round() as u64
            };
            match what {
                ShareOf::Exit(reason) => table.count(Spelled::Sure(*reason), Detail::NONE, count),
                ShareOf::Access(detail) if self.is_counted || self.events.is_some() => {
                    let mut tally = Tally::default();
                    tally.add_untimed(count);
                    table.access(*detail, &tally);
                }
                ShareOf::Access(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_perf_top_and_perf_report() {
        let row = |line: &str| {
            row(line, &mut Reasons::default()).map(|(share, count, what)| {
                let what = match what {
                    ShareOf::Exit(reason) => reason.name().into_owned(),
                    ShareOf::Access(detail) => format!("{:?} {:#x}", detail.kind, detail.value),
                };
                (share, count, what)
            })
        };
        let of = |share, count, what: &str| Some((share, count, what.to_owned()));
        assert_eq!(
            row("  78.98%  reason EXTERNAL_INTERRUPT rip 0x9c40d4 info 0 0"),
            of(78.98, None, "EXTERNAL_INTERRUPT")
        );
        assert_eq!(
            row("-   66,90%  289  CPU 1/KVM  vcpu 1 reason cpuid rip 0xf0062 info1 0x0 info2 0x0"),
            of(66.9, Some(289), "cpuid")
        );
        assert_eq!(
            row("    50.00%  pio_write at 0xe0 size 1 count 1 val 0xd "),
            of(50.0, None, "PortOut 0xe0")
        );
        assert_eq!(row("    25.00%  msr_write 6e0 = 0x0"), of(25.0, None, "MsrWrite 0x6e0"));
        assert_eq!(row("   26.83%  CPU 0/KVM  [kernel.kallsyms]  [k] __memcpy"), None);
        assert_eq!(row("the reason cpuid is 50% of it"), None);
    }
}
