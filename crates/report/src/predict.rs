//! A prediction -> text, CSV, JSON or a page.

use std::io::{self, Write};

use serde::Serialize;
use vmtax_analyse::predict::{Prediction, Remedy, What};

use crate::html::{TablePage, TableSection};
use crate::json::shape::Losses;
use crate::names::printable;
use crate::numbers::{count, duration, percent};
use crate::table::{Cell, Column, Table};
use crate::text::Page;
use crate::text::layout::{Paint, Style, wrap};
use crate::{Subject, losses};

/// Name and version of the JSON's shape.
pub const SCHEMA: &str = "vmtax-predict-1";

/// Settings that the text shows.
const REMEDIES: usize = 8;
const REMEDIES_TITLE: &str = "With each setting of docs/doctor.md that removes some of these exits";
const REMEDIES_NOTE: &str = "Exits: those that the setting removes at most. Added: what stays of the added time that is known.";

/// What a prediction shows.
pub struct Predicted<'a> {
    /// Version of this tool.
    pub tool_version: &'a str,
    /// The run.
    pub run: Subject<'a>,
    /// The prediction.
    pub prediction: &'a Prediction,
}

fn word(what: What) -> &'static str {
    match what {
        What::Kind(kind) => kind.name(),
        What::Cause(cause) => cause.name(),
    }
}

impl Predicted<'_> {
    /// For a terminal of this width.
    pub fn text(&self, color: bool, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
        let paint = Paint { color };
        let prediction = self.prediction;
        let say = |out: &mut dyn Write, style: Style, text: &str| -> io::Result<()> {
            wrap(text, width, "", "").iter().try_for_each(|line| paint.line(out, style, line))
        };
        let title = format!(
            "vmtax {}: {} as {}",
            printable(self.tool_version),
            printable(self.run.source),
            prediction.to.name()
        );
        say(out, Style::Heading, &title)?;
        if let Some(text) = self.notice() {
            say(out, Style::Warning, &text)?;
        }
        paint.line(out, Style::Plain, "")?;
        for sentence in self.sentences() {
            say(out, Style::Plain, &sentence)?;
        }
        paint.line(out, Style::Plain, "")?;
        costs(prediction).text(usize::MAX, (paint, width), out)?;
        if !prediction.remedies.is_empty() {
            paint.line(out, Style::Plain, "")?;
            paint.line(out, Style::Heading, REMEDIES_TITLE)?;
            remedies(&prediction.remedies).text(REMEDIES, (paint, width), out)?;
            say(out, Style::Faint, REMEDIES_NOTE)?;
        }
        say(out, Style::Faint, &self.remark())?;
        Page { paint, width, out }.losses("losses", &losses::all(self.run.ledger))
    }

    fn notice(&self) -> Option<String> {
        let which = self.run.emulated()?;
        Some(format!("Recorded under {}: how often is known, not how long.", printable(which)))
    }

    /// Where the costs come from.
    fn remark(&self) -> String {
        let to = self.prediction.to;
        let source = to.source().map_or_else(String::new, |source| format!("Costs: {source}. "));
        format!("{source}{}.", to.remark())
    }

    /// The costs for a spreadsheet.
    pub fn csv(&self, out: &mut dyn Write) -> io::Result<()> {
        costs(self.prediction).csv(out)
    }

    /// One page that opens offline.
    pub fn html(&self, out: &mut dyn Write) -> io::Result<()> {
        let (costs, left) = (costs(self.prediction), remedies(&self.prediction.remedies));
        let notes = self.sentences().into_iter().chain([self.remark()]).collect();
        let mut parts =
            vec![TableSection { id: "costs", title: "Costs there", notes, table: &costs }];
        if !left.rows.is_empty() {
            let notes = [REMEDIES_TITLE, REMEDIES_NOTE].map(str::to_owned).into();
            parts.push(TableSection {
                id: "settings",
                title: "With a setting",
                notes,
                table: &left,
            });
        }
        let notes = losses::all(self.run.ledger);
        let facts = vec![
            ("Run", self.run.source.to_owned()),
            ("As", self.prediction.to.name().to_owned()),
            ("Losses", if notes.is_empty() { "none known".to_owned() } else { notes.join(" ") }),
        ];
        let page = TablePage {
            command: "predict",
            tool_version: self.tool_version,
            facts,
            notice: self.notice(),
        };
        page.write(&parts, out)
    }

    fn sentences(&self) -> Vec<String> {
        let prediction = self.prediction;
        let (known, all) = prediction.known();
        let part = known as f64 / all.max(1) as f64;
        let mut said = Vec::new();
        said.push(match (known, prediction.added_per_second()) {
            (0, _) => "Nothing can be predicted: of none of these exits is a cost known there.".to_owned(),
            (_, Some(added)) => format!(
                "At least {} of a second more, every second: {} of the exits ({}) have a known cost there.",
                duration(added),
                percent(part),
                count(known)
            ),
            (_, None) => format!(
                "{} of the exits ({}) have a known cost there; how long the recording took is not known: give --length.",
                percent(part),
                count(known)
            ),
        });
        if known < all {
            said.push(format!(
                "Of the other {} nothing is published, so the whole is unknown.",
                count(all - known)
            ));
        }
        said
    }

    /// For programs: the shape [`SCHEMA`].
    pub fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        let prediction = self.prediction;
        let (known, all) = prediction.known();
        let object = Object {
            schema: SCHEMA,
            source: self.run.source,
            emulated: self.run.emulated(),
            to: prediction.to.name(),
            costs: prediction.to.source(),
            remark: prediction.to.remark(),
            seconds: prediction.seconds,
            exits: all,
            exits_with_cost: known,
            added_ns_per_second: prediction.added_per_second(),
            rows: costs(prediction),
            remedies: remedies(&prediction.remedies),
            losses: crate::json::losses(self.run.ledger),
        };
        crate::json::write(&object, out)
    }
}

/// What each kind of exit, or cause, costs here and there.
fn costs(prediction: &Prediction) -> Table {
    let mut table = Table::new(vec![
        Column::words("exits", "exits"),
        Column::minor("count", "count", 1),
        Column::number("per_second", "a second"),
        Column::number("now_ns", "one now").help("mean time of one exit here"),
        Column::number("there_ns", "one there").help("published time of one exit there"),
        Column::data("added_ns"),
        Column::number("added_ns_per_second", "added a second"),
    ]);
    for row in &prediction.rows {
        table.row(vec![
            Cell::Word(word(row.what)),
            Cell::Count(row.count),
            Cell::of(row.per_second, Cell::Number),
            Cell::of(row.now_ns, Cell::Nanoseconds),
            row.there_ns.map_or(Cell::Unknown("unknown"), Cell::Nanoseconds),
            Cell::of(row.added_ns(), Cell::Nanoseconds),
            Cell::of(row.added_per_second(), Cell::Nanoseconds),
        ]);
    }
    table
}

/// What is left with each setting.
fn remedies(remedies: &[Remedy]) -> Table {
    let mut table = Table::new(vec![
        Column::words("check", "setting"),
        Column::data("title"),
        Column::number("exits", "exits"),
        Column::number("added_ns_per_second", "added a second"),
    ]);
    for remedy in remedies {
        table.row(vec![
            Cell::Word(remedy.check.id),
            Cell::Word(remedy.rule.title),
            Cell::Count(remedy.count),
            Cell::of(remedy.added_without, Cell::Nanoseconds),
        ]);
    }
    table
}

#[derive(Serialize)]
struct Object<'a> {
    schema: &'static str,
    source: &'a str,
    emulated: Option<&'a str>,
    to: &'static str,
    costs: Option<&'static str>,
    remark: &'static str,
    seconds: Option<f64>,
    exits: u64,
    exits_with_cost: u64,
    added_ns_per_second: Option<f64>,
    rows: Table,
    remedies: Table,
    losses: Losses<'a>,
}
