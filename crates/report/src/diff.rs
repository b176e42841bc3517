//! The tables of a comparison, described once for every format.

use vmtax_analyse::calls::profiled;
use vmtax_analyse::diff::{Confidence, DiffRow, DiffTable, DiffVerdict};
use vmtax_analyse::{Diff, Per, ProfiledOperation, diff};

use crate::calls::difference::ComparedOperation;
use crate::numbers::percent;
use crate::table::{CSV, Cell, Column, JSON, PEOPLE, Table, changed};
use crate::{Comparison, RunSubject, keys, losses, names};

/// Exits of both sides, a row for each kind.
pub(crate) fn exits(diff: &Diff, table: &DiffTable) -> Table {
    let is_tested = |row: &DiffRow| matches!(row.confidence, Confidence::Interval(_));
    let is_timed = |row: &DiffRow| row.base.time_ns.or(row.other.time_ns).is_some();
    let tested = table.rows.iter().any(is_tested);
    let timed = diff.times && table.rows.iter().any(is_timed);
    let csv = |key| Column::data(key).only(CSV);
    let json = |key| Column::data(key).only(JSON);
    let number = |key, title: &'static str| Column::number(key, title).only(PEOPLE | CSV);
    let minor = |key, title| Column::minor(key, title, 1).only(PEOPLE | CSV).shown_if(timed);
    let by: Vec<&str> = table.by.iter().map(|by| by.name()).collect();
    let words = |row: &DiffRow| -> Vec<String> {
        row.key.iter().map(|value| names::value(*value)).collect()
    };
    let interval = |row: &DiffRow| match row.confidence {
        Confidence::Interval(interval) => Some(interval),
        Confidence::None(_) => None,
    };
    let rate = |rate: f64| match diff.per {
        Per::Recording => Cell::Count(rate as u64),
        _ => Cell::Number(rate),
    };
    let time =
        |side: diff::DiffCell| Cell::of(side.time_ns.filter(|_| diff.times), Cell::Nanoseconds);
    let object = |side: diff::DiffCell| {
        Cell::Object(vec![
            ("count", Cell::Count(side.count)),
            ("rate", Cell::Number(side.rate)),
            ("time_ns", time(side)),
        ])
    };
    let of_json = changed(keys::columns(&table.by), |column| column.only(JSON));
    let mut described = Table::of(&table.rows)
        .strong(|row| matches!(row.verdict(), DiffVerdict::More | DiffVerdict::Fewer))
        .column(csv("table"), |_| Cell::Name(by.join("+")))
        .column(csv("key"), |row| Cell::Name(words(row).join(" ")))
        .column(csv("per"), |_| Cell::Word(diff.per.name()))
        .columns(of_json, |row| row.key.as_slice());
    for (at, by) in table.by.iter().enumerate() {
        let column = Column::words("", names::heading(*by)).only(PEOPLE);
        described = described.column(column, |row| Cell::Name(names::value(row.key[at])));
    }
    described
        .column(json("base"), |row| object(row.base))
        .column(json("other"), |row| object(row.other))
        .column(number("base", "base"), |row| rate(row.base.rate))
        .column(number("other", "other"), |row| rate(row.other.rate))
        .column(Column::number("ratio", "x").help("other over base"), |row| {
            row.ratio().map_or(Cell::Unknown("new"), Cell::Quotient)
        })
        .column(Column::number("difference", "difference"), |row| match diff.per {
            Per::Recording => Cell::Delta(row.difference()),
            Per::Second | Per::L2Exit | Per::Operation => Cell::Signed(row.difference()),
        })
        .column(Column::data("low"), |row| Cell::of(interval(row), |it| Cell::Number(it.low)))
        .column(Column::data("high"), |row| Cell::of(interval(row), |it| Cell::Number(it.high)))
        .column(Column::minor("", "at 95 %", 2).only(PEOPLE).shown_if(tested), |row| {
            Cell::of(interval(row), |it| Cell::Between(it.low, it.high))
        })
        .column(json("untested"), |row| match row.confidence {
            Confidence::Interval(_) => Cell::Absent,
            Confidence::None(why) => Cell::Word(why),
        })
        .column(csv("base_count"), |row| Cell::Count(row.base.count))
        .column(csv("other_count"), |row| Cell::Count(row.other.count))
        .column(minor("base_time_ns", "time, base"), |row| time(row.base))
        .column(minor("other_time_ns", "time, other"), |row| time(row.other))
        .column(Column::short("verdict", "verdict"), |row| Cell::Word(row.verdict().name()))
        .table()
}

/// Exit tax and contention of a side, in words.
pub(crate) fn shares(diff: &Diff, side: RunSubject<'_>) -> String {
    let ledger = side.ledger;
    let Some(tax) = ledger.tax() else {
        return "running time not known, and so neither tax nor contention".to_owned();
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
    let said = |text: &String| match text.is_empty() {
        true => Cell::Unknown("not said"),
        false => Cell::Name(text.clone()),
    };
    Table::of(&diff.setup)
        .column(Column::data("table").only(CSV), |_| Cell::Word("setup"))
        .column(Column::data("key").only(CSV), |one| Cell::Name(one.what.clone()))
        .column(Column::words("what", "what").only(PEOPLE | JSON), |one| {
            Cell::Name(one.what.clone())
        })
        .column(Column::words("base", "base"), |one| said(&one.base))
        .column(Column::words("other", "other"), |one| said(&one.other))
        .table()
}

/// A row for each sentence on what a side lacks, and "yes" where it is of that side.
pub(crate) fn lacks(comparison: &Comparison<'_>) -> Table {
    let of = |side: RunSubject<'_>, is_base: bool| {
        losses::all(side.ledger).into_iter().map(move |sentence| (sentence, is_base))
    };
    let yes = |is_so: bool| if is_so { Cell::Word("yes") } else { Cell::Empty };
    Table::of(of(comparison.base, true).chain(of(comparison.other, false)))
        .column(Column::data("table"), |_| Cell::Word("losses"))
        .column(Column::data("key"), |(sentence, _)| Cell::Name(sentence.clone()))
        .column(Column::data("base"), |(_, is_base)| yes(*is_base))
        .column(Column::data("other"), |(_, is_base)| yes(!is_base))
        .table()
}

/// Passes on the operations and workloads of which both sides have call trees, compared; nothing where there are none.
pub(crate) fn with_trees<R>(
    comparison: &Comparison<'_>,
    use_them: impl FnOnce(&[&ComparedOperation<'_>]) -> R,
) -> Option<R> {
    let (base, other) = (profiled(comparison.base.ledger).0, profiled(comparison.other.ledger).0);
    let same = |after: &&ProfiledOperation<'_>| {
        base.iter().position(|before| (&before.name, before.level) == (&after.name, after.level))
    };
    let both = other.iter().filter_map(|after| Some((&base[same(&after)?], after)));
    let compared: Vec<ComparedOperation<'_>> = both
        .map(|(before, after)| ComparedOperation::new(comparison.other.source, before, after))
        .collect();
    let compared: Vec<&ComparedOperation<'_>> = compared.iter().collect();
    (!compared.is_empty()).then(|| use_them(&compared))
}

/// Why differences were not tested, if they were not.
pub(crate) fn untested(table: &DiffTable) -> Option<&'static str> {
    table.rows.iter().find_map(|row| match row.confidence {
        Confidence::None(why) => Some(why),
        Confidence::Interval(_) => None,
    })
}
