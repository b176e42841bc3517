//! Exits over time by cause: how many, and how long, in two charts on the same time axis.
//!
//! The drawing is bounded however long the recording was: one area per series and one hit area per
//! slot, at most 600 of them. Numbers stand in the slots' titles, which the script also reads out
//! below the chart.

use std::fmt::Write as _;

use maud::{Markup, html};
use vmtax_analyse::{Slot, Timeline};
use vmtax_events::Cause;

use super::series::{self, PictureSeries};
use super::{axis, figures};
use crate::{Document, numbers};

/// Height of a plot, px. The style sheet gives `svg.inner` the same.
const HEIGHT: f64 = 150.0;
/// Width of a plot in its own units; it stretches to the page.
const WIDTH: f64 = 1000.0;
/// Longer timelines than this many slots do not exist; a broken one is not drawn.
const MAX_SLOTS: u64 = 4_000;

/// What a chart shows of a slot.
#[derive(Clone, Copy, PartialEq)]
enum Quantity {
    Count,
    Time,
}

impl Quantity {
    fn of(self, (count, time): (u64, u64)) -> u64 {
        match self {
            Quantity::Count => count,
            Quantity::Time => time,
        }
    }

    fn text(self, value: u64) -> String {
        match self {
            Quantity::Count => numbers::count(value),
            Quantity::Time => figures::duration(value as f64),
        }
    }
}

/// Legend and both charts.
pub(super) fn section(doc: &Document) -> Markup {
    let timeline = &doc.ledger.timeline;
    html! {
        h2 #timeline-title { "Exits over time, by cause" }
        @match frame(timeline) {
            None => p.empty { "The source has no times of exits." },
            Some(frame) => {
                @let ranked = series::ranked(timeline);
                ul.legend {
                    @for (i, series) in ranked.iter().enumerate() {
                        li {
                            (series::swatch(&series::class(i))) b { (series.name()) } " "
                            span.aside {
                                (numbers::counted(series.count, "exit")) ", "
                                (figures::duration(series.time_ns as f64))
                            }
                        }
                    }
                }
                (chart(&frame, &ranked, Quantity::Count))
                (chart(&frame, &ranked, Quantity::Time))
                p.note {
                    "Each slot is " (figures::duration(frame.step_ns as f64))
                    " wide. An exit counts in the slot it ends in, so a slot can hold more time than its width."
                }
            }
        }
    }
}

/// The time axis that both charts share.
struct TimeAxis<'a> {
    timeline: &'a Timeline,
    first_ns: u64,
    step_ns: u64,
    slots: u64,
}

fn frame(timeline: &Timeline) -> Option<TimeAxis<'_>> {
    let (&first_ns, _) = timeline.slots.first_key_value()?;
    let (&last_ns, _) = timeline.slots.last_key_value()?;
    let step_ns = timeline.step_ns;
    let slots = (last_ns - first_ns).checked_div(step_ns)? + 1;
    (slots <= MAX_SLOTS).then_some(TimeAxis { timeline, first_ns, step_ns, slots })
}

impl TimeAxis<'_> {
    fn slot(&self, index: u64) -> Option<&Slot> {
        self.timeline.slots.get(&(self.first_ns + index * self.step_ns))
    }

    fn span_ns(&self) -> f64 {
        self.slots as f64 * self.step_ns as f64
    }

    /// When a slot begins, from the first one on.
    fn moment(&self, index: u64) -> String {
        match index {
            0 => "0\u{a0}s".to_owned(),
            index => figures::duration(index as f64 * self.step_ns as f64),
        }
    }

    fn x(&self, index: u64) -> f64 {
        index as f64 / self.slots as f64 * WIDTH
    }
}

fn chart(frame: &TimeAxis<'_>, ranked: &[PictureSeries], quantity: Quantity) -> Markup {
    let sums: Vec<u64> = (0..frame.slots).map(|i| slot_sum(frame.slot(i), quantity)).collect();
    let peak = sums.iter().copied().max().unwrap_or(0);
    let (unit, unit_ns) = match quantity {
        Quantity::Count => ("", 1.0),
        Quantity::Time => axis::time_unit(peak as f64),
    };
    let ticks = axis::ticks_to(peak as f64 / unit_ns, 4, quantity == Quantity::Count);
    let top = ticks.last().copied().unwrap_or(1.0) * unit_ns;
    let per_slot = figures::duration(frame.step_ns as f64);
    let caption = match quantity {
        Quantity::Count => format!("Exits per {per_slot}"),
        Quantity::Time => format!("Time of exits, {unit} per {per_slot}"),
    };
    let peak_at = sums.iter().position(|&s| s == peak).unwrap_or(0) as u64;
    let peak_time = frame.moment(peak_at);
    let spoken = format!("{caption}, by cause. Peak {} at {peak_time}.", quantity.text(peak));
    html! {
        figure.chart {
            figcaption { (caption) }
            div.plot tabindex="0" role="img" aria-label=(spoken) data-readout {
                (value_axis(&ticks, top / unit_ns))
                svg.inner viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" aria-hidden="true" focusable="false" {
                    @for tick in &ticks {
                        @let y = figures::coordinate(HEIGHT - tick * unit_ns / top * HEIGHT);
                        line x2=(WIDTH) y1=(y) y2=(y) {}
                    }
                    (areas(frame, ranked, quantity, top))
                    (hits(frame, &sums, ranked, quantity))
                }
                (time_axis(frame))
            }
            p.readout aria-hidden="true" { "peak " (quantity.text(peak)) " at " (peak_time) }
        }
    }
}

fn slot_sum(slot: Option<&Slot>, quantity: Quantity) -> u64 {
    slot.map_or(0, |s| s.by_cause.values().fold(0, |sum, &v| sum.saturating_add(quantity.of(v))))
}

/// What each series has in a slot, in the order of the series.
fn stack(slot: Option<&Slot>, ranked: &[PictureSeries], quantity: Quantity) -> Vec<u64> {
    let mut values = vec![0u64; ranked.len()];
    let Some(slot) = slot else { return values };
    let place = |cause: Cause| {
        let own = ranked.iter().position(|s| s.cause == Some(cause));
        own.or_else(|| ranked.iter().position(|s| s.cause.is_none()))
    };
    for (&cause, &pair) in &slot.by_cause {
        if let Some(value) = place(cause).and_then(|i| values.get_mut(i)) {
            *value = value.saturating_add(quantity.of(pair));
        }
    }
    values
}

/// One stepped area per series, each on top of the ones before.
fn areas(frame: &TimeAxis<'_>, ranked: &[PictureSeries], quantity: Quantity, top: f64) -> Markup {
    let stacks: Vec<Vec<u64>> =
        (0..frame.slots).map(|i| stack(frame.slot(i), ranked, quantity)).collect();
    let y = |value: f64| HEIGHT - value / top * HEIGHT;
    let mut floor = vec![0.0f64; stacks.len()];
    let mut paths = Vec::new();
    for index in 0..ranked.len() {
        let ceiling: Vec<f64> =
            floor.iter().zip(&stacks).map(|(f, values)| f + values[index] as f64).collect();
        let mut path = String::new();
        // A run of slots in which this series has something is one closed outline.
        let mut slot = 0;
        while slot < stacks.len() {
            if stacks[slot][index] == 0 {
                slot += 1;
                continue;
            }
            let start = slot;
            while slot < stacks.len() && stacks[slot][index] > 0 {
                slot += 1;
            }
            outline(&mut path, frame, start..slot, |i| y(ceiling[i]), |i| y(floor[i]));
        }
        paths.push((series::class(index), path));
        floor = ceiling;
    }
    html! {
        @for (class, path) in &paths {
            @if !path.is_empty() { path class=(class) d=(path) {} }
        }
    }
}

fn outline(
    path: &mut String,
    frame: &TimeAxis<'_>,
    slots: std::ops::Range<usize>,
    ceiling: impl Fn(usize) -> f64,
    floor: impl Fn(usize) -> f64,
) {
    let c = figures::coordinate;
    // Writing to a String does not fail.
    let _ = write!(path, "M{} {}", c(frame.x(slots.start as u64)), c(floor(slots.start)));
    for i in slots.clone() {
        let _ = write!(path, "V{}H{}", c(ceiling(i)), c(frame.x(i as u64 + 1)));
    }
    for i in slots.rev() {
        let _ = write!(path, "V{}H{}", c(floor(i)), c(frame.x(i as u64)));
    }
    path.push('Z');
}

/// An invisible area per slot that has exits: what the pointer and the keyboard read.
fn hits(
    frame: &TimeAxis<'_>,
    sums: &[u64],
    ranked: &[PictureSeries],
    quantity: Quantity,
) -> Markup {
    let width = figures::coordinate(WIDTH / frame.slots as f64);
    html! {
        @for (i, &sum) in (0u64..).zip(sums) {
            @if frame.slot(i).is_some() {
                rect.hit x=(figures::coordinate(frame.x(i))) width=(width) height=(HEIGHT) {
                    title { (slot_title(frame, i, sum, ranked, quantity)) }
                }
            }
        }
    }
}

fn slot_title(
    frame: &TimeAxis<'_>,
    index: u64,
    sum: u64,
    ranked: &[PictureSeries],
    quantity: Quantity,
) -> String {
    let at = frame.moment(index);
    let mut title = format!("at {at}: {}", quantity.text(sum));
    let values = stack(frame.slot(index), ranked, quantity);
    let mut separator = " = ";
    for (series, value) in ranked.iter().zip(values).filter(|&(_, value)| value > 0) {
        let _ = write!(title, "{separator}{} {}", series.name(), quantity.text(value));
        separator = " + ";
    }
    title
}

fn value_axis(ticks: &[f64], top: f64) -> Markup {
    html! {
        svg.yaxis width="52" height=(HEIGHT) aria-hidden="true" focusable="false" {
            @for tick in ticks {
                text x="46" y=(figures::coordinate(HEIGHT - tick / top * HEIGHT)) dy="0.32em" text-anchor="end" {
                    (axis::tick_label(*tick))
                }
            }
        }
    }
}

fn time_axis(frame: &TimeAxis<'_>) -> Markup {
    let span = frame.span_ns();
    let (unit, unit_ns) = axis::time_unit(span);
    let ticks = axis::ticks_within(span / unit_ns, 6);
    html! {
        svg.xaxis width="100%" height="22" aria-hidden="true" focusable="false" {
            @for (i, tick) in ticks.iter().enumerate() {
                @let x = figures::coordinate(tick * unit_ns / span * 100.0);
                line x1={ (x) "%" } x2={ (x) "%" } y1="0" y2="4" {}
                // Too near to the right edge, a label would be cut off.
                @let anchor = match i { 0 => "start", _ if tick * unit_ns / span > 0.97 => "end", _ => "middle" };
                text x={ (x) "%" } y="17" text-anchor=(anchor) {
                    (axis::tick_label(*tick)) @if i == 0 || i + 1 == ticks.len() { " " (unit) }
                }
            }
        }
    }
}
