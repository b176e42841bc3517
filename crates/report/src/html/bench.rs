//! A benchmark as a page: overhead by category, every repeat as a point, exits beside overhead, and the tables.

use maud::{Markup, html};
use vmtax_analyse::bench::{EXITS, ResultRow};

use super::frame::{PageFact, PageFrame, PageSection, closing, framed, shell_word};
use super::lines::{LINE, Scale, line, part};
use super::{TableSection, described, figures, losses};
use crate::bench::{Benchmark, direction, overhead};
use crate::numbers::significant;

pub(crate) fn page(shown: &Benchmark<'_>) -> Markup {
    let mut sections = vec![PageSection {
        id: "conclusions".to_owned(),
        label: "Conclusions".to_owned(),
        body: conclusions(shown),
    }];
    sections.push(PageSection {
        id: "overhead".to_owned(),
        label: "Overhead".to_owned(),
        body: overheads(shown),
    });
    let mut scatters = html! {};
    for group in shown.groups() {
        scatters = html! { (scatters) (scatter(group)) };
    }
    let body = html! { h2 #repeats-title { "Every repeat" } (scatters) };
    sections.push(PageSection { id: "repeats".to_owned(), label: "Repeats".to_owned(), body });
    if let Some(body) = correlation(shown) {
        sections.push(PageSection { id: "exits".to_owned(), label: "Exits".to_owned(), body });
    }
    if let Some(body) = super::traffic::section(shown.ledger) {
        sections.push(PageSection { id: "traffic".to_owned(), label: "Causes".to_owned(), body });
    }
    if !shown.reasons.is_empty() {
        sections.push(PageSection {
            id: "reasons".to_owned(),
            label: "Reasons".to_owned(),
            body: by_reason(shown),
        });
    }
    if !shown.functions.is_empty() {
        sections.push(PageSection {
            id: "functions".to_owned(),
            label: "Functions".to_owned(),
            body: by_function(shown),
        });
    }
    sections.push(PageSection {
        id: "results".to_owned(),
        label: "Results".to_owned(),
        body: table(shown),
    });
    let subject = crate::RunSubject { source: shown.source, ledger: shown.ledger };
    sections.push(losses::sides(&[("Run", subject)]));
    let command =
        format!("vmtax bench compare {} --format html", shell_word(&figures::text(shown.source)));
    let others = html! { code { "--format csv" } ", or the Parquet files of the run" };
    let frame = PageFrame {
        title: format!("vmtax bench – {}", figures::text(shown.source)),
        tool_version: shown.tool_version,
        name: "bench",
        subject: figures::text(shown.source),
        badges: html! {},
        emulation: shown.emulation(),
        facts: vec![
            PageFact::new("run", shown.source),
            PageFact::new("host processor", &shown.ledger.recording.cpu),
            PageFact::new("host kernel", &shown.ledger.recording.kernel),
        ],
        footer: closing(shown.tool_version, &command, &others, true),
    };
    framed(&frame, &sections)
}

/// What the numbers prove, what they only indicate, then what limits them.
fn conclusions(shown: &Benchmark<'_>) -> Markup {
    use crate::bench::conclusions::{INDICATIONS, PARTS, sentences};
    let warnings = shown.limits();
    let said = sentences(shown);
    html! {
        h2 #conclusions-title { "Conclusions" }
        @if said.is_empty() {
            p.empty { "Nothing is proven: no difference from a baseline was measured often enough, or there is no baseline." }
        } @else {
            ul.sentences { @for one in &said { li { (figures::text(one)) } } }
        }
        @for (title, sentences) in [(INDICATIONS, shown.results.unproven.as_slice()), (PARTS, shown.parts)] {
            @if !sentences.is_empty() {
                h3 { (title) }
                ul.sentences { @for one in sentences { li { (figures::text(one)) } } }
            }
        }
        @if !warnings.is_empty() {
            ul.notes { @for warning in &warnings { li { (figures::text(warning)) } } }
        }
    }
}

fn overheads(shown: &Benchmark<'_>) -> Markup {
    html! {
        h2 #overhead-title { "Overhead by category" }
        @for group in shown.groups() { (bars(group)) }
    }
}

fn title(head: &ResultRow) -> String {
    figures::text(&format!(
        "{}: {}, {}, {}",
        head.workload,
        head.metric,
        head.unit,
        direction(head.better)
    ))
}

/// A bar for each category that has a baseline, with the interval as a line over it.
fn bars(group: &[ResultRow]) -> Markup {
    let compared: Vec<(&ResultRow, f64, f64, f64)> = group
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
    html! {
        figure.bench {
            figcaption {
                b { (title(head)) } " " span.aside { "% against the baseline: " }
                span.key.worse {} " worse " span.key.better {} " better; a line is the 95 % interval"
            }
            @for (row, value, low, high) in &compared {
                @let (from, to) = (scale.x(value.min(0.0)), scale.x(value.max(0.0)));
                @let bar = html! {
                    rect.worse[*value >= 0.0].better[*value < 0.0] x=(part(from)) y="5" width=(part((to - from).max(0.2))) height=(LINE - 10.0) {
                        title { (figures::text(&row.category)) ": " (overhead(*value / 100.0)) @if is_bounded(row) { ", " (significant(*low)) " to " (significant(*high)) " %" } }
                    }
                    line.whisker x1=(part(scale.x(*low))) x2=(part(scale.x(*high))) y1=(LINE / 2.0) y2=(LINE / 2.0) {}
                };
                @let value = format!("{} ({})", overhead(*value / 100.0), significant(row.median.value));
                (line(&scale, &label(row, group), &bar, &value))
            }
            (scale.axis())
        }
    }
}

/// A category's name, with its path where the chart has several.
fn label(row: &ResultRow, group: &[ResultRow]) -> String {
    match group.iter().any(|other| other.path != row.path) {
        true if !row.path.is_empty() => figures::text(&format!("{} ({})", row.category, row.path)),
        _ => figures::text(&row.category),
    }
}

fn is_bounded(row: &ResultRow) -> bool {
    row.against.as_ref().and_then(|against| against.overhead).is_some_and(|e| e.is_bounded())
}

/// A point for each repeat; outliers are rings.
fn scatter(group: &[ResultRow]) -> Markup {
    let Some(head) = group.first() else { return html! {} };
    let most = group.iter().flat_map(|row| &row.values).copied().fold(0.0, f64::max);
    let scale = Scale::new(0.0, most);
    let middle = LINE / 2.0;
    html! {
        figure.bench {
            figcaption { b { (title(head)) } " " span.aside { "each repeat; a ring is an outlier, a line the median" } }
            @for row in group {
                @let at = part(scale.x(row.median.value));
                @let points = html! {
                    line.whisker x1=(at) x2=(at) y1=(middle - 8.0) y2=(middle + 8.0) {}
                    @for (repeat, value) in row.values.iter().enumerate() {
                        circle.s0.ring[row.outliers.contains(&repeat)] cx=(part(scale.x(*value)))
                            cy=(middle - 4.0 + (repeat % 5) as f64 * 2.0) r="3.5"
                        {
                            title { (figures::text(&row.category)) ", repeat " (repeat) ": " (significant(*value)) " " (figures::text(&row.unit)) }
                        }
                    }
                };
                @let value = format!("{} {}", significant(row.median.value), figures::text(&row.unit));
                (line(&scale, &label(row, group), &points, &value))
            }
            (scale.axis())
        }
    }
}

/// More points are not named in the picture: their names would lie over each other.
const MOST_NAMED: usize = 12;

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
            div.line {
            span.name {}
            svg.plane height=(height) role="img" aria-label="Exits and overhead" {
                (across.grid(height))
                text.name x="100%" y="12" text-anchor="end" { (significant(high)) " %" }
                text.name x="100%" y=(height - 4.0) text-anchor="end" { (significant(low)) " %" }
                @for point in points.iter().filter(|_| points.len() <= MOST_NAMED) {
                    // Beside the point, on the side that has room.
                    @let is_left = point.exits < (least + most) / 2.0;
                    text.name x=(part(across.x(point.exits))) dx=(if is_left { "8" } else { "-8" })
                        y=(figures::coordinate(y(point.overhead * 100.0).clamp(12.0, height - 4.0)))
                        text-anchor=(if is_left { "start" } else { "end" })
                    {
                        (figures::text(&point.workload)) ", " (figures::text(&point.category))
                    }
                }
                @for point in &points {
                    circle.s0 cx=(part(across.x(point.exits))) cy=(figures::coordinate(y(point.overhead * 100.0))) r="4" {
                        title {
                            (figures::text(&point.workload)) " in " (figures::text(&point.category)) ": " (significant(point.exits))
                            " exits, " (significant(point.overhead * 100.0)) " %"
                        }
                    }
                }
            }
            span.value {}
            }
            (across.axis())
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

fn by_function(shown: &Benchmark<'_>) -> Markup {
    use crate::bench::functions::{NOTE, TITLE, most, table};
    let table = table(&most(shown.functions));
    let notes = vec![NOTE.to_owned()];
    html! {
        h2 #functions-title { (TITLE) }
        (described::whole(&TableSection { id: "functions", title: TITLE, notes, table: &table }, "--functions --format csv"))
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
