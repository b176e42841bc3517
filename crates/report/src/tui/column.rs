//! Columns: a heading, a number to sort by, and how it is written.

use vmtax_analyse::{ledger, statistics};
use vmtax_events::{Coverage, TimeRow};

use super::rows::{Sums, View};
use crate::numbers;
use crate::table::{Cell, sort_key};

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Tax,
    Exits,
    Mean,
    Slow,
    Longest,
    /// A part of the time, by its place in [`TimeRow::PARTS`].
    Part(usize),
    Vcpus,
    Id,
    Name,
}

use Column::*;

/// What a row is measured by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    /// Rates are over it; `None` shows counts.
    pub(super) length_ns: Option<u64>,
    /// Time not halted of all vCPUs.
    pub(super) base_ns: u64,
    pub(super) coverage: Coverage,
}

impl Column {
    /// The columns of a view, in the order of the screen.
    fn all(view: View) -> Vec<Column> {
        let mut all = vec![Tax, Exits, Mean, Slow, Longest];
        if view.has_time() {
            all.insert(0, Id);
            all.extend((0..TimeRow::PARTS.len()).map(Part));
        }
        all.extend((view == View::Vms).then_some(Vcpus));
        all.push(Name);
        all
    }

    /// The columns of a view that have room in so many cells, and those that have none. Of the parts of time outside the
    /// guest the largest always has room.
    pub(super) fn fitting(view: View, width: u16, time: &TimeRow) -> (Vec<Column>, Vec<Column>) {
        // In the order in which they give way where they are equal: the first is unknown time.
        let whole = TimeRow::PARTS.iter().enumerate().filter(|(_, part)| part.within.is_none());
        let mut parts: Vec<(usize, u64)> =
            whole.skip(1).map(|(at, part)| (at, (part.of)(time))).collect();
        parts.reverse();
        let largest = parts.iter().max_by_key(|(_, ns)| ns);
        let dispensable = match largest {
            Some((at, 1..)) if Some(*at) == parts.first().map(|(first, _)| *first) => {
                parts.iter().min_by_key(|(_, ns)| ns)
            }
            _ => parts.first(),
        };
        let has_room = |column: &Column| match column {
            Slow | Longest if view.has_time() => width >= 110,
            Part(at) if TimeRow::PARTS[*at].within.is_some() => width >= 130,
            Part(at) if dispensable.is_some_and(|(part, _)| part == at) => width >= 130,
            Vcpus => width >= 90,
            _ => true,
        };
        Column::all(view).into_iter().partition(has_room)
    }

    pub(super) fn heading(self, measure: &Measure) -> String {
        match self {
            Tax => "TAX%",
            Exits if measure.length_ns.is_some() => "EXITS/s",
            Exits => "EXITS",
            Mean => "MEAN",
            Slow => "P99",
            Longest => "MAX",
            Part(at) => {
                let name = TimeRow::PARTS[at].name.trim_start_matches("exit-").to_uppercase();
                let letters: String = name.chars().take(self.width() - 1).collect();
                return format!("{letters}%");
            }
            Vcpus => "VCPUS",
            Id => "ID",
            Name => "",
        }
        .to_owned()
    }

    /// Cells that it takes; the last takes what is left.
    pub(super) fn width(self) -> usize {
        match self {
            // Time in the guest is mostly the largest part: a sign more.
            Part(0) => 6,
            Tax | Part(_) | Vcpus => 5,
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
        match self {
            Tax if view.has_time() => Cell::of(ledger::tax(&row.time), Cell::Percent),
            Tax => {
                let share = numbers::share(row.taxed_ns, measure.base_ns);
                Cell::of(share.filter(|_| row.has_taxed), Cell::Percent)
            }
            Exits => {
                let count = row.tally.count;
                let per_second = |ns: u64| count as f64 * 1e9 / ns.max(1) as f64;
                let (number, text) = match measure.length_ns {
                    Some(ns) => (per_second(ns), rate(per_second(ns))),
                    None => (count as f64, fitting(count)),
                };
                Cell::Written(text, sort_key(number))
            }
            Mean => Cell::of(statistics::mean_ns(&row.tally), Cell::Mean),
            Slow => {
                let slow = statistics::quantile(&row.tally, 0.99);
                Cell::of(slow, |within| Cell::Quantile(within.low_ns, within.high_ns))
            }
            Longest => Cell::of((row.tally.timed > 0).then_some(row.tally.max_ns), Cell::Time),
            Part(at) => {
                let ns = TimeRow::PARTS[at].told(&row.time, &measure.coverage);
                let share = ns.and_then(|ns| numbers::share(ns, row.time.wall_ns));
                Cell::of(share, Cell::Percent)
            }
            Vcpus => Cell::Count(row.vcpus as u64),
            // These are the row's, not of what it counts.
            Id | Name => Cell::Empty,
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
        let parts = || (1..TimeRow::PARTS.len()).filter(|at| TimeRow::PARTS[*at].within.is_none());
        for largest in parts() {
            let mut time = TimeRow::default();
            for (n, at) in (1..).zip(parts()) {
                *(TimeRow::PARTS[at].of_mut)(&mut time) = if at == largest { 500 } else { 10 * n };
            }
            for width in 80..200 {
                for view in View::ALL {
                    let (columns, left_out) = Column::fitting(view, width, &time);
                    assert!(
                        !view.has_time() || columns.contains(&Part(largest)),
                        "{width} {view:?}"
                    );
                    assert!(columns.contains(&Name) && columns.contains(&Tax));
                    let room: usize = columns.iter().map(|column| column.width() + 1).sum();
                    assert!(room < usize::from(width), "{width} {view:?}: {columns:?}");
                    assert!(left_out.iter().all(|column| !columns.contains(column)));
                    let all = if view.has_time() { 7 + TimeRow::PARTS.len() } else { 6 };
                    let of_vms = usize::from(view == View::Vms);
                    assert_eq!(columns.len() + left_out.len(), all + of_vms);
                }
            }
        }
    }

    #[test]
    fn headings_of_parts() {
        let measure = Measure { length_ns: None, base_ns: 0, coverage: Coverage::default() };
        let headings: Vec<String> = (0..7).map(|at| Part(at).heading(&measure)).collect();
        assert_eq!(headings, ["GUEST%", "L2%", "KERN%", "USER%", "HALT%", "PREE%", "UNKN%"]);
    }
}
