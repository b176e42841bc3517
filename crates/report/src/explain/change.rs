//! A change between two recordings of one load as tables: what went, what came instead.

use serde_json::Value;
use vmtax_analyse::Per;
use vmtax_analyse::explain::{ChangeRow, Fate, FoundKind, LoadChange};

use super::{sentence, words};
use crate::RunSubject;
use crate::names::{self, printable};
use crate::numbers::{duration, percent, significant};
use crate::table::{Cell, Column, JSON, PEOPLE, Table};
use crate::tables::{Tables, TitledTable};

/// Name and version of the JSON's shape.
pub const SCHEMA: &str = "vmtax-change-1";

const EMULATED: &str =
    "Counted on an emulated host: times do not reflect hardware and are not shown.";

/// The change between two recordings.
pub fn tables(
    change: &LoadChange,
    before: RunSubject<'_>,
    after: RunSubject<'_>,
) -> serde_json::Result<Tables> {
    let answer = result(change);
    let is_emulated = [before, after].iter().any(|side| side.emulated().is_some());
    let facts = vec![
        ("Before", printable(before.source)),
        ("After", printable(after.source)),
        ("Result", answer.clone()),
    ];
    let [total_before, total_after] = change.total.map(|cell| cell.rate);
    let [units_before, units_after] = change.units;
    let json = serde_json::json!({
        "result": answer,
        "per": change.per.name(),
        "units": { "before": units_before, "after": units_after },
        "exits": { "before": total_before, "after": total_after },
        "changes": Value::Null,
    });
    let tables = Tables {
        command: "explain",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts,
        answer: vec![format!("{answer}.")],
        emulation: is_emulated.then(|| EMULATED.to_owned()),
        sections: vec![TitledTable {
            id: "changes",
            title: sentence(&format!("exits {} by what they are about", unit(change.per))),
            notes: Vec::new(),
            table: rows(change),
        }],
        json,
    };
    tables.with_rows_as_json(SCHEMA)
}

/// The change in one sentence, without its full stop.
fn result(change: &LoadChange) -> String {
    let [before, after] = change.total;
    let how = match change.remaining() {
        None => "there were none before".to_owned(),
        Some(part) if (part - 1.0).abs() < 0.01 => "as many".to_owned(),
        Some(part) if part < 1.0 => format!("{} fewer", percent(1.0 - part)),
        Some(part) => format!("{} more", percent(part - 1.0)),
    };
    let time = match (before.time_ns, after.time_ns) {
        (Some(before), Some(after)) => {
            format!("; {} in them in place of {}", duration(after), duration(before))
        }
        _ => String::new(),
    };
    let named = |fate: Fate| {
        let rows = change.rows.iter().filter(|row| row.fate() == fate);
        let names: Vec<&str> = rows.filter_map(|row| Some(row.subject?.name())).collect();
        names.join(", ")
    };
    let said = |what: &str, names: String| match names.is_empty() {
        true => String::new(),
        false => format!("; {what}: {names}"),
    };
    format!(
        "{} -> {} exits {}, {how}{time}{}{}",
        significant(before.rate),
        significant(after.rate),
        unit(change.per),
        said("gone", named(Fate::Gone)),
        said("instead", named(Fate::Instead)),
    )
}

fn unit(per: Per) -> &'static str {
    match per {
        Per::Second => "a second",
        Per::L2Exit => "for each exit of L2",
        Per::Operation => "per operation",
        Per::Recording => "in the recording",
    }
}

fn rows(change: &LoadChange) -> Table {
    let timed = change.timed;
    let rate = |rate: f64| match change.per {
        Per::Recording => Cell::Count(rate as u64),
        _ => Cell::Number(rate),
    };
    let time = |ns: Option<f64>| Cell::of(ns, Cell::Nanoseconds);
    let time_column = |key, title| Column::minor(key, title, 1).shown_if(timed);
    Table::of(&change.rows)
        .strong(|row| matches!(row.fate(), Fate::Gone | Fate::Instead))
        .column(Column::words("subject", "subject"), |row| {
            row.subject.map_or(Cell::Word("others"), |subject| Cell::Word(subject.name()))
        })
        .column(Column::short("fate", "now"), |row| Cell::Word(row.fate().name()))
        .column(Column::number("before", "before"), |row| rate(row.before.rate))
        .column(Column::number("after", "after"), |row| rate(row.after.rate))
        .column(Column::number("difference", "difference"), |row| Cell::Signed(row.difference()))
        .column(Column::data("before_count").only(JSON), |row| Cell::Count(row.before.count))
        .column(Column::data("after_count").only(JSON), |row| Cell::Count(row.after.count))
        .column(time_column("before_time_ns", "time, before"), |row| time(row.before.time_ns))
        .column(time_column("after_time_ns", "time, after"), |row| time(row.after.time_ns))
        .column(Column::words("means", "what").only(JSON), |row| Cell::Name(means(row)))
        .column(Column::words("", "most of it").only(PEOPLE), |row| Cell::Name(most(row)))
        .column(Column::data("detail").only(JSON), |row| {
            Cell::of(row.detail, |detail| Cell::Name(names::detail(detail)))
        })
        .table()
}

fn means(row: &ChangeRow) -> String {
    match row.subject {
        Some(subject) => words::finding(&FoundKind::Exits(subject)).means,
        None => "subjects with fewer than 20 exits in both".to_owned(),
    }
}

fn most(row: &ChangeRow) -> String {
    row.detail.map_or_else(String::new, names::detail)
}
