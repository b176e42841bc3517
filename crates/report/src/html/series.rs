//! Which causes a picture tells apart, in which colour, and the patterns that back the colours up.
//!
//! The colours are those of Okabe and Ito, chosen to stay apart under every common colour
//! blindness. Every second one also carries a hatch, and legends list series in stacking order, so
//! nothing hangs on colour alone.

use std::collections::BTreeMap;

use maud::{Markup, html};
use vmtax_analyse::Timeline;
use vmtax_events::Cause;

use super::figures;

/// Causes shown on their own; the rest are drawn together as the last series.
pub(super) const MAX_SERIES: usize = 7;

/// One cause in a picture, or all the minor ones together (`cause` is `None`).
pub(super) struct PictureSeries {
    pub(super) cause: Option<Cause>,
    pub(super) count: u64,
    pub(super) time_ns: u64,
}

impl PictureSeries {
    pub(super) fn name(&self) -> &'static str {
        self.cause.map_or("all others", Cause::name)
    }
}

/// The series of a timeline, most important first: by share of time and share of exits together,
/// so that the two charts show the same causes in the same colours.
pub(super) fn ranked(timeline: &Timeline) -> Vec<PictureSeries> {
    let mut sums: BTreeMap<Cause, (u64, u64)> = BTreeMap::new();
    for slot in timeline.slots.values() {
        for (&cause, &(count, time)) in &slot.by_cause {
            let (c, t) = sums.entry(cause).or_default();
            *c = c.saturating_add(count);
            *t = t.saturating_add(time);
        }
    }
    let total = |f: fn(&(u64, u64)) -> u64| sums.values().map(f).fold(0, u64::saturating_add);
    let (counts, times) = (total(|s| s.0), total(|s| s.1));
    let weight =
        |s: &PictureSeries| figures::share(s.count, counts) + figures::share(s.time_ns, times);
    let mut series: Vec<PictureSeries> = sums
        .iter()
        .map(|(&cause, &(count, time_ns))| PictureSeries { cause: Some(cause), count, time_ns })
        .collect();
    series.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    if series.len() > MAX_SERIES + 1 {
        let rest = series.split_off(MAX_SERIES);
        let sum = |f: fn(&PictureSeries) -> u64| rest.iter().map(f).fold(0, u64::saturating_add);
        series.push(PictureSeries {
            cause: None,
            count: sum(|s| s.count),
            time_ns: sum(|s| s.time_ns),
        });
    }
    series
}

/// Class of the `index`-th series: `s0` to `s7`.
pub(super) fn class(index: usize) -> String {
    format!("s{}", index.min(MAX_SERIES))
}

/// A legend's sample of what `class` paints.
pub(super) fn swatch(class: &str) -> Markup {
    html! {
        svg.swatch width="14" height="14" aria-hidden="true" focusable="false" {
            rect class=(class) width="14" height="14" rx="2.5" {}
        }
    }
}

/// The hatches that the style sheet refers to. Once per page.
pub(super) fn patterns() -> Markup {
    // (id, class of the ground, path of the lines)
    let hatches = [
        ("hatch-1", "f1", "M-2 2l4 -4M0 8l8 -8M6 10l4 -4"),
        ("hatch-3", "f3", "M0 4h8"),
        ("hatch-5", "f5", "M-2 6l4 4M0 0l8 8M6 -2l4 4"),
        ("hatch-7", "f7", "M2 2h.1M6 6h.1"),
        ("hatch-user", "fu", "M-2 2l4 -4M0 8l8 -8M6 10l4 -4"),
        ("hatch-preempted", "fp", "M-2 6l4 4M0 0l8 8M6 -2l4 4M-2 2l4 -4M0 8l8 -8M6 10l4 -4"),
        ("hatch-unknown", "fx", "M2 2h.1M6 6h.1"),
    ];
    html! {
        svg.patterns width="0" height="0" aria-hidden="true" focusable="false" {
            defs {
                @for (id, ground, lines) in hatches {
                    pattern id=(id) width="8" height="8" patternUnits="userSpaceOnUse" {
                        rect class=(ground) width="8" height="8" {}
                        path.hatch d=(lines) {}
                    }
                }
            }
        }
    }
}
