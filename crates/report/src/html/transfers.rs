//! The chart of I/O by size: instructions through a bounce buffer, and on pages that are converted for 1, 10 and 100 I/Os. Where the
//! lines cross, converting begins to pay.

use maud::{Markup, html};
use vmtax_analyse::Operations;
use vmtax_events::Level;

use super::described::{self, TableSection};
use super::figures::coordinate;
use super::series;
use crate::table::Table;
use crate::transfers::{NOTE, TITLE, Transfer, transfers};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
/// Room for labels left and below.
const LEFT: f64 = 70.0;
const BELOW: f64 = 30.0;

/// What is drawn: class, name, and I/Os for each conversion; the first is the bounce buffer.
const LINES: [(&str, &str, Option<f64>); 4] = [
    ("s0", "bounce buffer", None),
    ("s1", "converted for each I/O", Some(1.0)),
    ("s2", "converted for 10 I/Os", Some(10.0)),
    ("s3", "converted for 100 I/Os", Some(100.0)),
];

pub(super) fn section(operations: &Operations, table: &Table) -> Markup {
    let all = transfers(operations);
    let at_l1: Vec<&Transfer<'_>> = all.iter().filter(|one| one.level == Level::L1).collect();
    html! {
        h2 #transfers-title { (TITLE) }
        @if at_l1.len() > 1 { (chart(&at_l1)) }
        (described::whole(
            &TableSection { id: "transfers", title: TITLE, notes: vec![NOTE.to_owned()], table },
            "--format csv",
        ))
    }
}

fn value(transfer: &Transfer<'_>, for_each: Option<f64>) -> Option<f64> {
    let (bounced, converted) = transfer.paths(for_each.unwrap_or(1.0))?;
    Some(if for_each.is_some() { converted } else { bounced }).filter(|value| *value >= 1.0)
}

fn chart(transfers: &[&Transfer<'_>]) -> Markup {
    let values =
        || transfers.iter().flat_map(|one| LINES.iter().filter_map(|line| value(one, line.2)));
    let low = values().fold(f64::MAX, f64::min).log10().floor();
    let high = values().fold(1.0, f64::max).log10().ceil().max(low + 1.0);
    let step = (WIDTH - LEFT) / (transfers.len() - 1) as f64;
    let x = |at: usize| LEFT + at as f64 * step;
    let y = |value: f64| (high - value.log10()) / (high - low) * (HEIGHT - BELOW - 10.0) + 10.0;
    let points = |for_each| -> String {
        let point = |(at, one): (usize, &&Transfer<'_>)| {
            value(one, for_each).map(|v| format!("{},{}", coordinate(x(at)), coordinate(y(v))))
        };
        transfers.iter().enumerate().filter_map(point).collect::<Vec<_>>().join(" ")
    };
    let powers = (low as i32..=high as i32).map(|power| (power, 10f64.powi(power)));
    html! {
        ul.legend {
            @for (class, name, _) in LINES { li { (series::swatch(class)) (name) } }
        }
        div.drawn {
            svg.crossing viewBox={ "-10 0 " (WIDTH + 40.0) " " (HEIGHT) } role="img"
                aria-label="Instructions of one I/O by size, logarithmic; the table has the figures."
            {
                @for (power, value) in powers {
                    line.grid x1=(LEFT) x2=(WIDTH) y1=(coordinate(y(value))) y2=(coordinate(y(value))) {}
                    text x=(LEFT - 8.0) y=(coordinate(y(value) + 4.0)) text-anchor="end" {
                        (crate::numbers::count(10u64.saturating_pow(power.unsigned_abs())))
                    }
                }
                @for (at, one) in transfers.iter().enumerate() {
                    text x=(coordinate(x(at))) y=(HEIGHT - 8.0) text-anchor="middle" { (one.size) }
                }
                @for (class, name, for_each) in LINES {
                    polyline class={ "line-" (class) } points=(points(for_each)) { title { (name) } }
                }
            }
        }
        p.note { "Instructions of one I/O by its size, both axes logarithmic. Below the line of the bounce buffer, converting takes fewer." }
    }
}
