//! A benchmark as a page: overhead by category, every repeat as a point, exits beside overhead, and the tables.

use maud::{Markup, html};
use vmtax_analyse::bench::{EXITS, Row};

use super::axis::{tick_label, ticks_to};
use super::frame::{Frame, Section, closing, framed, shell_word};
use super::{TableSection, described, figures, losses};
use crate::bench::{Benchmark, direction, overhead};
use crate::numbers::significant;

/// Width of a chart's drawing, and of the names left of it.
const WIDTH: f64 = 620.0;
const NAMES: f64 = 230.0;
/// Width of the values right of it.
const VALUES: f64 = 190.0;
/// Width of the whole drawing.
const ALL: f64 = NAMES + WIDTH + VALUES;
/// Height of a category's line.
const LINE: f64 = 24.0;

/// The whole page.
pub(crate) fn page(shown: &Benchmark<'_>) -> Markup {
    let mut sections = vec![Section {
        id: "overhead".to_owned(),
        label: "Overhead".to_owned(),
        body: overheads(shown),
    }];
    let mut scatters = html! {};
    for group in shown.groups() {
        scatters = html! { (scatters) (scatter(group)) };
    }
    let body = html! { h2 #repeats-title { "Every repeat" } (scatters) };
    sections.push(Section { id: "repeats".to_owned(), label: "Repeats".to_owned(), body });
    if let Some(body) = correlation(shown) {
        sections.push(Section { id: "exits".to_owned(), label: "Exits".to_owned(), body });
    }
    if !shown.reasons.is_empty() {
        sections.push(Section {
            id: "reasons".to_owned(),
            label: "Reasons".to_owned(),
            body: by_reason(shown),
        });
    }
    sections.push(Section {
        id: "results".to_owned(),
        label: "Results".to_owned(),
        body: table(shown),
    });
    let subject = crate::Subject { source: shown.source, ledger: shown.ledger };
    sections.push(losses::sides(&[("Run", subject)]));
    let command =
        format!("vmtax bench compare {} --format html", shell_word(&figures::text(shown.source)));
    let others = html! { code { "--format csv" } ", or the Parquet files of the run" };
    let frame = Frame {
        title: format!("vmtax bench – {}", figures::text(shown.source)),
        tool_version: shown.tool_version,
        header: header(shown),
        notice: None,
        footer: closing(shown.tool_version, &command, &others, true),
    };
    framed(&frame, &sections)
}

fn header(shown: &Benchmark<'_>) -> Markup {
    html! {
        header.top {
            div.title { h1 { span.brand { "vmtax" } " benchmark" } }
            dl.facts {
                div {
                    dt { "Run" }
                    dd {
                        (figures::text(shown.source))
                        @if let Some(which) = &shown.ledger.recording.emulated {
                            " " span.badge.warn { "EMULATED: " (figures::text(which)) }
                        }
                    }
                }
                div { dt { "Host processor" } dd { (figures::text(&shown.ledger.recording.cpu)) } }
                div { dt { "Host kernel" } dd { (figures::text(&shown.ledger.recording.kernel)) } }
            }
        }
    }
}

fn overheads(shown: &Benchmark<'_>) -> Markup {
    html! {
        h2 #overhead-title { "Overhead by category" }
        @for warning in shown.warnings() { p.notice { (figures::text(&warning)) } }
        @for group in shown.groups() { (bars(group)) }
        @if !shown.findings.is_empty() {
            h3 { "Conclusions" }
            ul { @for finding in shown.findings { li { (figures::text(finding)) } } }
        }
    }
}

fn title(head: &Row) -> String {
    figures::text(&format!(
        "{}: {}, {}, {}",
        head.workload,
        head.metric,
        head.unit,
        direction(head.better)
    ))
}

/// A bar for each category that has a baseline, with the interval as a line over it.
fn bars(group: &[Row]) -> Markup {
    let compared: Vec<(&Row, f64, f64, f64)> = group
        .iter()
        .filter_map(|row| {
            let worse = row.against.as_ref()?.overhead?;
            let end = |value: f64| if value.is_finite() { value } else { worse.value };
            Some((row, worse.value * 100.0, end(worse.low) * 100.0, end(worse.high) * 100.0))
        })
        .collect();
    let Some((head, ..)) = compared.first() else { return html! {} };
    let least = compared.iter().map(|c| c.1.min(c.2)).fold(0.0, f64::min);
    let most = compared.iter().map(|c| c.1.max(c.3)).fold(0.0, f64::max);
    let scale = Scale::new(least, most);
    let height = LINE * compared.len() as f64;
    html! {
        figure.bench {
            figcaption {
                b { (title(head)) } " " span.aside { "% against the baseline: " }
                span.key.worse {} " worse " span.key.better {} " better; a line is the 95 % interval"
            }
            svg viewBox={ "0 0 " (ALL) " " (height + 22.0) } role="img"
                aria-label={ "Overhead of " (title(head)) }
            {
                (scale.grid(height))
                @for (index, (row, value, low, high)) in compared.iter().enumerate() {
                    @let top = index as f64 * LINE;
                    @let (from, to) = (scale.x(value.min(0.0)), scale.x(value.max(0.0)));
                    text.name x=(NAMES - 8.0) y=(top + 16.0) text-anchor="end" { (label(row, group)) }
                    rect.worse[*value >= 0.0].better[*value < 0.0] x=(figures::coordinate(from)) y=(top + 5.0) width=(figures::coordinate((to - from).max(1.0)))
                        height=(LINE - 10.0)
                    {
                        title { (figures::text(&row.category)) ": " (overhead(*value / 100.0)) @if is_bounded(row) { ", " (significant(*low)) " to " (significant(*high)) " %" } }
                    }
                    text.value x=(NAMES + WIDTH + 8.0) y=(top + 16.0) {
                        (overhead(*value / 100.0)) " (" (significant(row.median.value)) ")"
                    }
                    line.whisker x1=(figures::coordinate(scale.x(*low))) x2=(figures::coordinate(scale.x(*high)))
                        y1=(top + LINE / 2.0) y2=(top + LINE / 2.0) {}
                }
            }
        }
    }
}

/// A category's name, with its path where the chart has several.
fn label(row: &Row, group: &[Row]) -> String {
    match group.iter().any(|other| other.path != row.path) {
        true if !row.path.is_empty() => figures::text(&format!("{} ({})", row.category, row.path)),
        _ => figures::text(&row.category),
    }
}

fn is_bounded(row: &Row) -> bool {
    row.against.as_ref().and_then(|against| against.overhead).is_some_and(|e| e.is_bounded())
}

/// A point for each repeat; outliers are rings.
fn scatter(group: &[Row]) -> Markup {
    let Some(head) = group.first() else { return html! {} };
    let most = group.iter().flat_map(|row| &row.values).copied().fold(0.0, f64::max);
    let scale = Scale::new(0.0, most);
    let height = LINE * group.len() as f64;
    html! {
        figure.bench {
            figcaption { b { (title(head)) } " " span.aside { "each repeat; a ring is an outlier, a line the median" } }
            svg viewBox={ "0 0 " (ALL) " " (height + 22.0) } role="img" aria-label={ "Repeats of " (title(head)) } {
                (scale.grid(height))
                @for (index, row) in group.iter().enumerate() {
                    @let middle = index as f64 * LINE + LINE / 2.0;
                    @let at = figures::coordinate(scale.x(row.median.value));
                    text.name x=(NAMES - 8.0) y=(middle + 4.0) text-anchor="end" { (label(row, group)) }
                    text.value x=(NAMES + WIDTH + 8.0) y=(middle + 4.0) {
                        (significant(row.median.value)) " " (figures::text(&row.unit))
                    }
                    line.whisker x1=(at) x2=(at) y1=(middle - 8.0) y2=(middle + 8.0) {}
                    @for (repeat, value) in row.values.iter().enumerate() {
                        circle.s0.ring[row.outliers.contains(&repeat)] cx=(figures::coordinate(scale.x(*value)))
                            cy=(middle - 4.0 + (repeat % 5) as f64 * 2.0) r="3.5"
                        {
                            title { (figures::text(&row.category)) ", repeat " (repeat) ": " (significant(*value)) " " (figures::text(&row.unit)) }
                        }
                    }
                }
            }
        }
    }
}

/// Exits that a category adds, beside what it loses; nothing where no exits were recorded.
fn correlation(shown: &Benchmark<'_>) -> Option<Markup> {
    let points = vmtax_analyse::bench::exits_and_overhead(shown.bench);
    let most = points.iter().map(|point| point.exits).fold(0.0, f64::max);
    let least = points.iter().map(|point| point.exits).fold(0.0, f64::min);
    points.first()?;
    let (low, high) = (
        points.iter().map(|point| point.overhead * 100.0).fold(0.0, f64::min),
        points.iter().map(|point| point.overhead * 100.0).fold(0.0, f64::max),
    );
    let across = Scale::new(least, most);
    // Points at the ends are drawn whole.
    let (height, margin) = (220.0, 6.0);
    let y = |value: f64| {
        height - margin - (value - low) / (high - low).max(1e-9) * (height - 2.0 * margin)
    };
    Some(html! {
        h2 #exits-title { "Exits and overhead" }
        p { "Each point is a workload in a category: the exits that one operation takes more than in the baseline (" code { (EXITS) } "), and the overhead." }
        figure.bench {
            svg viewBox={ "0 0 " (ALL) " " (height + 30.0) } role="img" aria-label="Exits and overhead" {
                (across.grid(height))
                text.name x=(NAMES - 8.0) y="12" text-anchor="end" { (significant(high)) " %" }
                text.name x=(NAMES - 8.0) y=(height) text-anchor="end" { (significant(low)) " %" }
                @for point in &points {
                    circle.s0 cx=(figures::coordinate(across.x(point.exits))) cy=(figures::coordinate(y(point.overhead * 100.0))) r="4" {
                        title {
                            (figures::text(&point.workload)) " in " (figures::text(&point.category)) ": " (significant(point.exits))
                            " exits, " (significant(point.overhead * 100.0)) " %"
                        }
                    }
                }
            }
        }
        div.scroll tabindex="0" role="region" aria-label="Exits and overhead" {
            table {
                thead { tr { th scope="col" { "Workload" } th scope="col" { "Category" } th.n scope="col" { "Exits added" } th.n scope="col" { "Overhead" } } }
                tbody {
                    @for point in &points {
                        tr {
                            th scope="row" { (figures::text(&point.workload)) }
                            td { (figures::text(&point.category)) }
                            td.n { (significant(point.exits)) }
                            td.n { (significant(point.overhead * 100.0)) " %" }
                        }
                    }
                }
            }
        }
    })
}

fn table(shown: &Benchmark<'_>) -> Markup {
    let legend =
        "*: differs from the baseline, rank-sum test, p below 5 %. o: outliers, which are kept.";
    let table = crate::bench::table(shown, &shown.bench.rows);
    let notes = vec![legend.to_owned()];
    html! {
        h2 #results-title { "Results" }
        (described::whole(&TableSection { id: "results", title: "results", notes, table: &table }, "--format csv"))
    }
}

fn by_reason(shown: &Benchmark<'_>) -> Markup {
    use crate::bench::reasons::{NOTE, TITLE, table};
    let table = table(shown.reasons);
    let notes = vec![NOTE.to_owned()];
    html! {
        h2 #reasons-title { (TITLE) }
        (described::whole(&TableSection { id: "reasons", title: TITLE, notes, table: &table }, "--exits --format csv"))
    }
}

/// From values to places.
struct Scale {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Scale {
    /// From `least`, which is 0 or below, to `most`, which is 0 or above.
    fn new(least: f64, most: f64) -> Scale {
        let size = most.max(-least);
        let steps = ticks_to(size, 5, false);
        let step = steps.get(1).copied().unwrap_or(1.0);
        let low = if least < 0.0 { (least / step).floor() * step } else { 0.0 };
        let high =
            if most > 0.0 || least == 0.0 { (most / step).ceil().max(1.0) * step } else { 0.0 };
        let count = ((high - low) / step).round() as usize;
        Scale { low, high, ticks: (0..=count.min(20)).map(|i| low + i as f64 * step).collect() }
    }

    fn x(&self, value: f64) -> f64 {
        NAMES
            + ((value - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
                * WIDTH
    }

    fn grid(&self, height: f64) -> Markup {
        html! {
            @for tick in &self.ticks {
                @let x = figures::coordinate(self.x(*tick));
                line.gridline x1=(x) x2=(x) y1="0" y2=(height) {}
                text.tick x=(x) y=(height + 16.0) text-anchor="middle" {
                    @if *tick < 0.0 { "−" (tick_label(-tick)) } @else { (tick_label(*tick)) }
                }
            }
        }
    }
}
