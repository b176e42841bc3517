//! Latency histograms: how long exits take, reason by reason, on one logarithmic axis.

use maud::{Markup, html};
use vmtax_analyse::statistics::{Quantile, quantile};
use vmtax_analyse::{SortedRow, SortedTable, TableKind};
use vmtax_events::{OCTAVES, Tally, octave_bounds};

use super::figures::{self, coordinate};
use crate::{Document, names, numbers};

/// Reasons that get a picture.
const MAX_PICTURES: usize = 8;
/// Buckets that the axis has at least.
const MIN_BUCKETS: usize = 8;
/// Height of the bars' area, px. The style sheet gives `svg.bars` the same.
const HEIGHT: f64 = 84.0;
/// Width of one bucket in the drawing's own units.
const BUCKET: f64 = 10.0;

/// Small multiples of the rows with the most time.
pub(super) fn section(doc: &Document) -> Markup {
    let own;
    let table = match doc.tables.iter().find(|t| t.kind == TableKind::Vmexit) {
        Some(table) => table,
        None => {
            own = SortedTable::new(&doc.ledger, TableKind::Vmexit, &[]);
            &own
        }
    };
    let rows: Vec<&SortedRow> =
        table.rows.iter().filter(|row| row.tally.timed > 0).take(MAX_PICTURES).collect();
    html! {
        h2 #latency-title { "Durations of exits" }
        @match span(&rows) {
            None => p.empty { "The source has no durations." },
            Some(span) => {
                p.note {
                    "The " (numbers::counted(rows.len() as u64, "row"))
                    " of the exit table with the most time. Each bar is a bucket twice as wide as the one before;"
                    " its height is its share of the exits, and the tallest of each picture fills it."
                }
                div.multiples {
                    @for row in rows { (picture(row, &span)) }
                }
            }
        }
    }
}

/// Buckets on the common axis.
struct BucketSpan {
    first: usize,
    last: usize,
}

impl BucketSpan {
    fn buckets(&self) -> f64 {
        (self.last - self.first + 1) as f64
    }

    /// Position of a duration on the axis, 0 to 1.
    fn place(&self, ns: f64) -> f64 {
        // Bucket i ends at 2^i; bucket 0, which holds 0 ns, is drawn as wide as the others.
        let position = if ns < 1.0 { 0.5 } else { ns.log2() + 1.0 };
        ((position - self.first as f64) / self.buckets()).clamp(0.0, 1.0)
    }
}

fn span(rows: &[&SortedRow]) -> Option<BucketSpan> {
    let octaves: Vec<_> = rows.iter().map(|row| row.tally.durations.octaves()).collect();
    let filled = |bucket: &usize| octaves.iter().any(|all| all[*bucket] > 0);
    let first = (0..OCTAVES).find(filled)?;
    let last = (0..OCTAVES).rfind(filled)?;
    // The axis starts at the shortest exit. A single bucket would fill the picture, so it goes on behind the longest.
    Some(BucketSpan { first, last: last.max(first + MIN_BUCKETS - 1).min(OCTAVES - 1) })
}

fn picture(row: &SortedRow, span: &BucketSpan) -> Markup {
    let tally = &row.tally;
    let name: Vec<String> = row.key.iter().map(|&v| figures::text(&names::value(v))).collect();
    let name = name.join(" · ");
    let quantiles: Vec<(&str, Quantile)> = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)]
        .into_iter()
        .filter_map(|(name, q)| Some((name, quantile(tally, q)?)))
        .collect();
    let bounds: Vec<String> = quantiles
        .iter()
        .map(|(name, q)| format!("{name} at most {}", figures::duration(q.high_ns as f64)))
        .collect();
    let spoken = format!("Latency of {name}: {}.", bounds.join(", "));
    html! {
        figure.latency {
            figcaption {
                b { (name) } " "
                span.aside {
                    (numbers::counted(tally.count, "exit")) ", " (figures::duration(tally.time_ns as f64))
                }
            }
            p.bounds {
                @for (name, q) in &quantiles { span { small { (name) " ≤ " } (figures::duration(q.high_ns as f64)) } }
            }
            div.layers role="img" aria-label=(spoken) {
                (decades(span))
                svg.bars viewBox={ "0 0 " (span.buckets() * BUCKET) " " (HEIGHT) } preserveAspectRatio="none"
                    aria-hidden="true" focusable="false"
                {
                    (bars(tally, span))
                }
                (markers(&quantiles, span))
            }
        }
    }
}

fn bars(tally: &Tally, span: &BucketSpan) -> Markup {
    let octaves = tally.durations.octaves();
    let peak = octaves.iter().copied().max().unwrap_or(1).max(1);
    html! {
        @for bucket in span.first..=span.last {
            @let n = octaves[bucket];
            @if n > 0 {
                // One exit among millions still shows.
                @let height = (n as f64 / peak as f64 * HEIGHT).max(2.0);
                rect x=(coordinate((bucket - span.first) as f64 * BUCKET + 0.4)) y=(coordinate(HEIGHT - height))
                    width=(coordinate(BUCKET - 0.8)) height=(coordinate(height))
                {
                    title {
                        (bucket_range(bucket)) ": " (numbers::counted(n, "exit")) ", "
                        (figures::percent(figures::share(n, tally.timed)))
                    }
                }
            }
        }
    }
}

fn bucket_range(bucket: usize) -> String {
    let (low, high) = octave_bounds(bucket);
    let text = |ns: u64| figures::duration(ns as f64);
    match high {
        _ if bucket == 0 => text(0),
        Some(high) => format!("{} to {}", text(low), text(high)),
        None => format!("{} and more", text(low)),
    }
}

/// Grid lines at powers of ten, labelled where there is room.
fn decades(span: &BucketSpan) -> Markup {
    let ticks: Vec<(usize, f64)> = (0..12)
        .map(|power| (power, 10f64.powi(power as i32)))
        .filter(|&(_, ns)| {
            let bucket = ns.log2() + 1.0;
            bucket >= span.first as f64 && bucket <= span.last as f64 + 1.0
        })
        .collect();
    let every = if ticks.len() > 5 { 3 } else { 1 };
    html! {
        svg.decades aria-hidden="true" focusable="false" {
            @for (power, ns) in ticks {
                @let x = coordinate(span.place(ns) * 100.0);
                @let labelled = power % every == 0;
                line.minor[!labelled] x1={ (x) "%" } x2={ (x) "%" } y1="36" y2="124" {}
                @if labelled {
                    text x={ (x) "%" } y="136" text-anchor="middle" { (decade_label(power)) }
                }
            }
        }
    }
}

fn decade_label(power: usize) -> String {
    let unit = ["ns", "µs", "ms", "s"][(power / 3).min(3)];
    format!("{} {unit}", 10u64.pow((power - 3 * (power / 3).min(3)) as u32))
}

/// A line at each quantile's upper bound; its name on a height of its own, so that none overlap.
fn markers(quantiles: &[(&str, Quantile)], span: &BucketSpan) -> Markup {
    html! {
        svg.markers aria-hidden="true" focusable="false" {
            @for (tier, (name, q)) in quantiles.iter().enumerate() {
                @let x = coordinate(span.place(q.high_ns as f64) * 100.0);
                @let y = 9 + tier * 10;
                line x1={ (x) "%" } x2={ (x) "%" } y1=(y - 8) y2="120" {}
                text x={ (x) "%" } y=(y) dx="4" { (name) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span_of(filled: &[usize]) -> Option<(usize, usize)> {
        let mut tally = Tally::default();
        filled.iter().for_each(|&bucket| tally.durations.add_octave(bucket, 1));
        let row = SortedRow { key: Vec::new(), tally };
        span(&[&row]).map(|span| (span.first, span.last))
    }

    #[test]
    fn the_axis_starts_at_the_first_bucket_with_an_exit() {
        assert_eq!(span_of(&[]), None);
        assert_eq!(span_of(&[12]), Some((12, 19)));
        assert_eq!(span_of(&[12, 15]), Some((12, 19)));
        assert_eq!(span_of(&[12, 25]), Some((12, 25)));
        assert_eq!(span_of(&[0]), Some((0, 7)));
        let last = OCTAVES - 1;
        assert_eq!(span_of(&[last]), Some((last, last)));
    }
}
