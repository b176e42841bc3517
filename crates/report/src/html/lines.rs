//! Charts of lines that have one scale: a name, a drawing, a value. A drawing is as wide as its window lets it be, and its words keep their
//! size: on a narrow window names and values are above the drawings.

use maud::{Markup, html};

use super::axis::{tick_label, ticks_to};
use super::figures;

/// Height of a line.
pub(super) const LINE: f64 = 24.0;

/// A line: its name, its drawing on the scale, its value. All are escaped.
pub(super) fn line(scale: &Scale, name: &str, drawing: &Markup, value: &str) -> Markup {
    html! {
        div.line {
            span.name { (name) }
            svg height=(LINE) aria-hidden="true" focusable="false" { (scale.grid(LINE)) (drawing) }
            span.value { (value) }
        }
    }
}

/// A place on a drawing that is as wide as its window lets it be.
pub(super) fn part(percent: f64) -> String {
    format!("{}%", figures::coordinate(percent))
}

/// From values to places.
pub(super) struct Scale {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Scale {
    /// From `least`, which is 0 or below, to `most`, which is 0 or above.
    pub(super) fn new(least: f64, most: f64) -> Scale {
        let size = most.max(-least);
        let steps = ticks_to(size, 5, false);
        let step = steps.get(1).copied().unwrap_or(1.0);
        let low = if least < 0.0 { (least / step).floor() * step } else { 0.0 };
        let high =
            if most > 0.0 || least == 0.0 { (most / step).ceil().max(1.0) * step } else { 0.0 };
        let count = ((high - low) / step).round() as usize;
        Scale { low, high, ticks: (0..=count.min(20)).map(|i| low + i as f64 * step).collect() }
    }

    /// In percent of the drawing's width.
    pub(super) fn x(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0) * 100.0
    }

    pub(super) fn grid(&self, height: f64) -> Markup {
        html! {
            @for tick in &self.ticks {
                @let x = part(self.x(*tick));
                line.gridline x1=(x) x2=(x) y1="0" y2=(height) {}
            }
        }
    }

    /// The numbers below the drawings; those at the ends stay within them.
    pub(super) fn axis(&self) -> Markup {
        let anchor = |at: usize| match at {
            0 => "start",
            at if at + 1 == self.ticks.len() => "end",
            _ => "middle",
        };
        html! {
            div.line.axis {
                svg height="18" aria-hidden="true" focusable="false" {
                    @for (at, tick) in self.ticks.iter().enumerate() {
                        text.tick x=(part(self.x(*tick))) y="12" text-anchor=(anchor(at)) {
                            @if *tick < 0.0 { "−" (tick_label(-tick)) } @else { (tick_label(*tick)) }
                        }
                    }
                }
            }
        }
    }
}
