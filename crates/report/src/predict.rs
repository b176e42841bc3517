//! A prediction -> text or JSON.

use std::io::{self, Write};

use serde::Serialize;
use vmtax_analyse::predict::{Prediction, Remedy, Row, What};

use crate::json::shape::Losses;
use crate::names::printable;
use crate::numbers::{count, duration, percent, significant};
use crate::text::Page;
use crate::text::layout::{Column, Grid, Paint, Room, Style, wrap};
use crate::{Subject, losses};

/// Name and version of the JSON's shape.
pub const SCHEMA: &str = "vmtax-predict-1";

/// Settings that the text shows.
const REMEDIES: usize = 8;

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
        if let Some(which) = self.run.emulated() {
            let text =
                format!("Recorded under {}: how often is known, not how long.", printable(which));
            say(out, Style::Warning, &text)?;
        }
        paint.line(out, Style::Plain, "")?;
        for sentence in self.sentences() {
            say(out, Style::Plain, &sentence)?;
        }
        paint.line(out, Style::Plain, "")?;
        grid(prediction).write(out, paint, width)?;
        if !prediction.remedies.is_empty() {
            paint.line(out, Style::Plain, "")?;
            paint.line(
                out,
                Style::Heading,
                "With each setting of docs/doctor.md that removes some of these exits",
            )?;
            remedies(&prediction.remedies).write(out, paint, width)?;
            let text = "Exits: those that the setting removes at most. Added: what stays of the added time that is known.";
            say(out, Style::Faint, text)?;
        }
        let source =
            prediction.to.source().map_or_else(String::new, |source| format!("Costs: {source}. "));
        say(out, Style::Faint, &format!("{source}{}.", prediction.to.remark()))?;
        Page { paint, width, out }.losses("losses", &losses::all(self.run.ledger))
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
            rows: prediction.rows.iter().map(shaped).collect(),
            remedies: prediction
                .remedies
                .iter()
                .map(|remedy| ShapedRemedy {
                    check: remedy.check.id,
                    title: remedy.rule.title,
                    exits: remedy.count,
                    added_ns_per_second: remedy.added_without,
                })
                .collect(),
            losses: crate::json::losses(self.run.ledger),
        };
        crate::json::write(&object, out)
    }
}

fn grid(prediction: &Prediction) -> Grid {
    let mut grid = Grid::new(vec![
        Column::key("exits"),
        Column::number("count", Room::Drop(1)),
        Column::number("a second", Room::Keep),
        Column::number("one now", Room::Keep),
        Column::number("one there", Room::Keep),
        Column::number("added a second", Room::Keep),
    ]);
    for row in &prediction.rows {
        let none = || "-".to_owned();
        let cells = vec![
            word(row.what).to_owned(),
            count(row.count),
            row.per_second.map_or_else(none, significant),
            row.now_ns.map_or_else(none, duration),
            row.there_ns.map_or_else(|| "unknown".to_owned(), duration),
            row.added_per_second().map_or_else(none, duration),
        ];
        grid.row(Style::Plain, cells);
    }
    grid
}

fn remedies(remedies: &[Remedy]) -> Grid {
    let mut grid = Grid::new(vec![
        Column::key("setting"),
        Column::number("exits", Room::Keep),
        Column::number("added a second", Room::Keep),
    ]);
    for remedy in remedies.iter().take(REMEDIES) {
        let added = remedy.added_without.map_or_else(|| "-".to_owned(), duration);
        grid.row(Style::Plain, vec![remedy.check.id.to_owned(), count(remedy.count), added]);
    }
    grid
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
    rows: Vec<ShapedRow>,
    remedies: Vec<ShapedRemedy>,
    losses: Losses<'a>,
}

#[derive(Serialize)]
struct ShapedRow {
    exits: &'static str,
    count: u64,
    per_second: Option<f64>,
    now_ns: Option<f64>,
    there_ns: Option<f64>,
    added_ns: Option<f64>,
    added_ns_per_second: Option<f64>,
}

#[derive(Serialize)]
struct ShapedRemedy {
    check: &'static str,
    title: &'static str,
    exits: u64,
    added_ns_per_second: Option<f64>,
}

fn shaped(row: &Row) -> ShapedRow {
    ShapedRow {
        exits: word(row.what),
        count: row.count,
        per_second: row.per_second,
        now_ns: row.now_ns,
        there_ns: row.there_ns,
        added_ns: row.added_ns(),
        added_ns_per_second: row.added_per_second(),
    }
}
