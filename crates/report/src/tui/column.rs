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
    /// The columns of a view that have room in so many cells, and those that have none. Of the parts of time outside the
    /// guest the largest always has room.
    pub(super) fn fitting(view: View, width: u16, time: &TimeRow) -> (Vec<Column>, Vec<Column>) {
        let all = if view.has_time() { &TIMED[..] } else { &COUNTED[..] };
        // In the order in which they give way where they are equal.
        let parts = [
            (Unknown, time.unknown_ns),
            (Preempted, time.preempted_ns),
            (Halted, time.halted_ns),
            (User, time.exit_user_ns),
            (Kernel, time.exit_kernel_ns),
        ];
        let largest = parts.iter().max_by_key(|(_, ns)| ns);
        let dispensable = match largest {
            Some((Unknown, 1..)) => parts.iter().min_by_key(|(_, ns)| ns),
            _ => parts.first(),
        };
        let has_room = |column: &&Column| match column {
            Slow | Longest if view.has_time() => width >= 110,
            L2 => width >= 130,
            Vcpus => width >= 90,
            other if dispensable.is_some_and(|(part, _)| part == *other) => width >= 130,
            _ => true,
        };
        let of_view = |column: &&Column| **column != Vcpus || view == View::Vms;
        all.iter().filter(of_view).partition(has_room)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_part_has_room_and_the_rest_is_named() {
        const PARTS: [Column; 5] = [Kernel, User, Preempted, Halted, Unknown];
        for (largest, part) in PARTS.into_iter().enumerate() {
            let mut parts = [10, 20, 30, 40, 50];
            parts[largest] = 500;
            let [exit_kernel_ns, exit_user_ns, preempted_ns, halted_ns, unknown_ns] = parts;
            let time = TimeRow {
                exit_kernel_ns,
                exit_user_ns,
                preempted_ns,
                halted_ns,
                unknown_ns,
                ..TimeRow::default()
            };
            for width in 80..200 {
                for view in View::ALL {
                    let (columns, left_out) = Column::fitting(view, width, &time);
                    assert!(!view.has_time() || columns.contains(&part), "{width} {view:?}");
                    assert!(columns.contains(&Name) && columns.contains(&Tax));
                    let room: usize = columns.iter().map(|column| column.width() + 1).sum();
                    assert!(room < usize::from(width), "{width} {view:?}: {columns:?}");
                    assert!(left_out.iter().all(|column| !columns.contains(column)));
                    let all = if view.has_time() { TIMED.len() } else { COUNTED.len() };
                    let of_vms = usize::from(view == View::Vcpus);
                    assert_eq!(columns.len() + left_out.len(), all - of_vms);
                }
            }
        }
    }
}
