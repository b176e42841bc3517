//! The tables of a comparison, described once for every format.

use vmtax_analyse::diff::{Confidence, DiffRow, DiffTable, Verdict};
use vmtax_analyse::{Diff, Per, diff};

use crate::numbers::percent;
use crate::table::{CSV, Cell, Column, JSON, PEOPLE, Table};
use crate::{Comparison, Subject, keys, losses, names};

/// Exits of both sides, a row for each kind.
pub(crate) fn exits(diff: &Diff, table: &DiffTable) -> Table {
    let is_tested = |row: &DiffRow| matches!(row.confidence, Confidence::Interval(_));
    let is_timed = |row: &DiffRow| row.base.time_ns.or(row.other.time_ns).is_some();
    let tested = table.rows.iter().any(is_tested);
    let timed = diff.times && table.rows.iter().any(is_timed);
    let csv = |key| Column::data(key).only(CSV);
    let json = |key| Column::data(key).only(JSON);
    let mut columns = vec![csv("table"), csv("key"), csv("per")];
    columns.extend(keys::columns(&table.by).into_iter().map(|column| column.only(JSON)));
    let shown = table.by.iter();
    columns.extend(shown.map(|by| Column::words("", names::heading(*by)).only(PEOPLE)));
    columns.extend([
        json("base"),
        json("other"),
        Column::number("base", "base").only(PEOPLE | CSV),
        Column::number("other", "other").only(PEOPLE | CSV),
        Column::number("ratio", "x").help("other over base"),
        Column::number("difference", "difference"),
        Column::data("low"),
        Column::data("high"),
        Column::minor("", "at 95 %", 2).only(PEOPLE).shown_if(tested),
        json("untested"),
        csv("base_count"),
        csv("other_count"),
        Column::minor("base_time_ns", "time, base", 1).only(PEOPLE | CSV).shown_if(timed),
        Column::minor("other_time_ns", "time, other", 1).only(PEOPLE | CSV).shown_if(timed),
        Column::short("verdict", "verdict"),
    ]);
    let mut described = Table::new(columns);
    for row in &table.rows {
        let cells = cells(diff, table, row);
        match row.verdict() {
            Verdict::More | Verdict::Fewer => described.strong(cells),
            _ => described.row(cells),
        }
    }
    described
}

fn cells(diff: &Diff, table: &DiffTable, row: &DiffRow) -> Vec<Cell> {
    let by: Vec<&str> = table.by.iter().map(|by| by.name()).collect();
    let key: Vec<String> = row.key.iter().map(|value| names::value(*value)).collect();
    let rate = |rate: f64| match diff.per {
        Per::Recording => Cell::Count(rate as u64),
        _ => Cell::Number(rate),
    };
    let time = |side: diff::Cell| Cell::of(side.time_ns.filter(|_| diff.times), Cell::Nanoseconds);
    let object = |side: diff::Cell| {
        Cell::Object(vec![
            ("count", Cell::Count(side.count)),
            ("rate", Cell::Number(side.rate)),
            ("time_ns", time(side)),
        ])
    };
    let (low, high, between, untested) = match row.confidence {
        Confidence::Interval(i) => {
            (Cell::Number(i.low), Cell::Number(i.high), Cell::Between(i.low, i.high), Cell::Absent)
        }
        Confidence::None(why) => (Cell::Absent, Cell::Absent, Cell::Absent, Cell::Word(why)),
    };
    let mut cells =
        vec![Cell::Name(by.join("+")), Cell::Name(key.join(" ")), Cell::Word(diff.per.name())];
    cells.extend(keys::cells(&table.by, &row.key));
    cells.extend(key.into_iter().map(Cell::Name));
    cells.extend([
        object(row.base),
        object(row.other),
        rate(row.base.rate),
        rate(row.other.rate),
        row.ratio().map_or(Cell::Unknown("new"), Cell::Quotient),
        Cell::Signed(row.difference()),
        low,
        high,
        between,
        untested,
        Cell::Count(row.base.count),
        Cell::Count(row.other.count),
        time(row.base),
        time(row.other),
        Cell::Word(row.verdict().name()),
    ]);
    cells
}

/// Exit tax and contention of a side, in words.
pub(crate) fn shares(diff: &Diff, side: Subject<'_>) -> String {
    let ledger = side.ledger;
    let Some(tax) = ledger.tax() else {
        return "no times: tax and contention are not known".to_owned();
    };
    let emulated = ledger.recording.emulated.as_deref();
    if !diff.times {
        return match emulated {
            Some(which) => {
                format!("times of an emulated host ({which}), which are not compared with others")
            }
            None => "times that are not compared with those of the other side".to_owned(),
        };
    }
    let contention = match ledger.contention().filter(|_| ledger.recording.coverage.sched) {
        Some(share) => percent(share),
        None => "not recorded (sched_switch)".to_owned(),
    };
    let of = emulated.map_or_else(String::new, |which| format!(" ({which}: not hardware)"));
    format!("exit tax {}, contention {contention}{of}", percent(tax))
}

/// What differs between the set-ups.
pub(crate) fn setup(diff: &Diff) -> Table {
    let mut table = Table::new(vec![
        Column::data("table").only(CSV),
        Column::data("key").only(CSV),
        Column::words("what", "what").only(PEOPLE | JSON),
        Column::words("base", "base"),
        Column::words("other", "other"),
    ]);
    for one in &diff.setup {
        let said = |text: &String| match text.is_empty() {
            true => Cell::Unknown("not said"),
            false => Cell::Name(text.clone()),
        };
        let what = Cell::Name(one.what.clone());
        table.row(vec![Cell::Word("setup"), what.clone(), what, said(&one.base), said(&one.other)]);
    }
    table
}

/// A row for each sentence on what a side lacks, and "yes" where it is of that side.
pub(crate) fn lacks(comparison: &Comparison<'_>) -> Table {
    let mut table = Table::new(["table", "key", "base", "other"].map(Column::data).to_vec());
    let yes = || Cell::Word("yes");
    let sides = [(comparison.base, [yes(), Cell::Empty]), (comparison.other, [Cell::Empty, yes()])];
    for (side, [base, other]) in sides {
        for sentence in losses::all(side.ledger) {
            let first = [Cell::Word("losses"), Cell::Name(sentence)];
            table.row(first.into_iter().chain([base.clone(), other.clone()]).collect());
        }
    }
    table
}

/// Why differences were not tested, if they were not.
pub(crate) fn untested(table: &DiffTable) -> Option<&'static str> {
    table.rows.iter().find_map(|row| match row.confidence {
        Confidence::None(why) => Some(why),
        Confidence::Interval(_) => None,
    })
}
