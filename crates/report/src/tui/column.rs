//! Columns: a heading, a number to sort by, and how it is written.

use vmtax_analyse::{ledger, statistics};
use vmtax_events::{Coverage, TimeRow};

use super::rows::{Sums, View};
use crate::numbers;

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Tax,
    Exits,
    Mean,
    Slow,
    Longest,
    Guest,
    L2,
    Kernel,
    User,
    Preempted,
    Halted,
    Unknown,
    Vcpus,
    Id,
    Name,
}

use Column::*;

/// In the order of the screen.
const TIMED: [Column; 15] = [
    Id, Tax, Exits, Mean, Slow, Longest, Guest, L2, Kernel, User, Preempted, Halted, Unknown,
    Vcpus, Name,
];
const COUNTED: [Column; 6] = [Tax, Exits, Mean, Slow, Longest, Name];

/// What a row is measured by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    /// Rates are over it; `None` shows counts.
    pub(super) length_ns: Option<u64>,
    /// Time not halted of all vCPUs.
    pub(super) base_ns: u64,
    pub(super) coverage: Coverage,
}

/// A row's number in a column and how it is written.
pub(super) struct Cell {
    pub(super) number: Option<f64>,
    pub(super) text: String,
}

impl Cell {
    fn of(number: Option<f64>, text: impl Fn(f64) -> String) -> Cell {
        Cell { number, text: number.map_or_else(|| "-".to_owned(), text) }
    }
}

impl Column {
    /// The columns of a view that have room in so many cells.
    pub(super) fn fitting(view: View, width: u16) -> Vec<Column> {
        let all = if view.has_time() { &TIMED[..] } else { &COUNTED[..] };
        let wanted = |column: &&Column| match column {
            Slow | Longest if view.has_time() => width >= 110,
            L2 | Unknown => width >= 130,
            Vcpus => view == View::Vms && width >= 90,
            _ => true,
        };
        all.iter().filter(wanted).copied().collect()
    }

    pub(super) fn heading(self, measure: &Measure) -> &'static str {
        match self {
            Tax => "TAX%",
            Exits if measure.length_ns.is_some() => "EXITS/s",
            Exits => "EXITS",
            Mean => "MEAN",
            Slow => "P99",
            Longest => "MAX",
            Guest => "GUEST%",
            L2 => "L2%",
            Kernel => "KERN%",
            User => "USER%",
            Preempted => "PREE%",
            Halted => "HALT%",
            Unknown => "UNKN%",
            Vcpus => "VCPUS",
            Id => "ID",
            Name => "",
        }
    }

    /// Cells that it takes; the last takes what is left.
    pub(super) fn width(self) -> usize {
        match self {
            Tax | L2 | Kernel | User | Preempted | Halted | Unknown | Vcpus => 5,
            Guest => 6,
            Exits => 10,
            Mean | Slow | Longest | Id => 7,
            Name => 0,
        }
    }

    /// Largest first, but for those that are read like a list.
    pub(super) fn is_descending(self) -> bool {
        !matches!(self, Id | Name)
    }

    pub(super) fn cell(self, row: &Sums, view: View, measure: &Measure) -> Cell {
        let percent = |share: f64| numbers::percent_digits(share);
        let of_wall = |part: fn(&TimeRow) -> u64, is_known: bool| {
            let share = numbers::share(part(&row.time), row.time.wall_ns);
            Cell::of(share.filter(|_| is_known), percent)
        };
        let coverage = measure.coverage;
        match self {
            Tax if view.has_time() => Cell::of(ledger::tax(&row.time), percent),
            Tax => {
                let share = numbers::share(row.taxed_ns, measure.base_ns);
                Cell::of(share.filter(|_| row.has_taxed), percent)
            }
            Exits => match measure.length_ns {
                Some(ns) => Cell::of(Some(row.tally.count as f64 * 1e9 / ns.max(1) as f64), rate),
                None => Cell::of(Some(row.tally.count as f64), |_| fitting(row.tally.count)),
            },
            Mean => Cell::of(statistics::mean_ns(&row.tally), numbers::duration),
            Slow => {
                let slow = statistics::quantile(&row.tally, 0.99);
                Cell::of(slow.map(|within| within.high_ns as f64), numbers::duration)
            }
            Longest => {
                let longest = (row.tally.timed > 0).then_some(row.tally.max_ns as f64);
                Cell::of(longest, numbers::duration)
            }
            Guest => of_wall(|time| time.guest_ns, true),
            L2 => of_wall(|time| time.l2_ns, coverage.nested),
            Kernel => of_wall(|time| time.exit_kernel_ns, true),
            User => of_wall(|time| time.exit_user_ns, coverage.userspace),
            Preempted => of_wall(|time| time.preempted_ns, coverage.sched),
            Halted => of_wall(|time| time.halted_ns, true),
            Unknown => of_wall(|time| time.unknown_ns, true),
            Vcpus => Cell::of(Some(row.vcpus as f64), |_| numbers::count(row.vcpus as u64)),
            // These are the row's, not of what it counts.
            Id | Name => Cell { number: None, text: String::new() },
        }
    }
}

/// Exits a second.
pub(super) fn rate(rate: f64) -> String {
    if rate < 9.95 && rate > 0.0 {
        return if rate < 0.05 { "<0.1".to_owned() } else { format!("{rate:.1}") };
    }
    fitting(rate.round() as u64)
}

/// A count that has room in its column.
fn fitting(count: u64) -> String {
    match count {
        0..=99_999_999 => numbers::count(count),
        _ => format!("{:.3e}", count as f64),
    }
}
