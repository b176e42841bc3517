//! Bars: a histogram of durations, and a history.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use vmtax_events::{OCTAVES, Tally, octave_bounds};

/// A bar's last cell, in eighths.
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Cells of a bar of the histogram, with the gap after it.
const STEP: usize = 5;

/// Vertical bars, each this number of cells and a gap wide; the highest fills the area. A value above 0 is always visible.
fn bars(values: &[f64], width: u16, gap: u16, area: Rect, buffer: &mut Buffer) {
    let highest = values.iter().copied().fold(0.0, f64::max);
    if highest <= 0.0 {
        return;
    }
    for (index, value) in (0_u16..).zip(values) {
        let whole = f64::from(area.height) * 8.0;
        let mut left = (value / highest * whole).round() as usize;
        left = if *value > 0.0 { left.max(1) } else { 0 };
        for y in (area.top()..area.bottom()).rev() {
            let part = left.min(8);
            left -= part;
            for x in 0..width {
                let x = area.left() + index * (width + gap) + x;
                if x < area.right() {
                    buffer[(x, y)].set_char(EIGHTHS[part]);
                }
            }
        }
    }
}

/// Durations by powers of 2, from the shortest to the longest; each bar has where it begins below it.
pub(super) fn histogram(tally: &Tally, area: Rect, buffer: &mut Buffer) {
    let octaves = tally.durations.octaves();
    let used = |bucket: &usize| octaves[*bucket] > 0;
    let Some(first) = (0..OCTAVES).find(used) else { return };
    let last = (0..OCTAVES).rfind(used).unwrap_or(first);
    let room = (usize::from(area.width) / STEP).max(1);
    // As many buckets in each bar as it needs for all to have room.
    let joined = (last - first + 1).div_ceil(room);
    let starts: Vec<usize> = (first..=last).step_by(joined).collect();
    let counts: Vec<f64> = starts
        .iter()
        .map(|&start| octaves[start..(start + joined).min(OCTAVES)].iter().sum::<u64>() as f64)
        .collect();
    let above = Rect { height: area.height.saturating_sub(1), ..area };
    bars(&counts, STEP as u16 - 1, 1, above, buffer);
    for (index, start) in (0_u16..).zip(starts) {
        let x = area.left() + index * STEP as u16;
        let label = bound(octave_bounds(start).0);
        buffer.set_stringn(x, above.bottom(), label, STEP - 1, Style::new());
    }
}

/// A duration in four cells.
fn bound(ns: u64) -> String {
    let mut value = ns as f64;
    for unit in ["n", "µ", "m"] {
        if value < 999.5 {
            let is_short = unit != "n" && value < 9.95;
            return if is_short {
                format!("{value:.1}{unit}")
            } else {
                format!("{value:.0}{unit}")
            };
        }
        value /= 1000.0;
    }
    format!("{value:.0}s")
}

/// The newest values that have room, the newest last; few have wider bars.
pub(super) fn history(values: &[f64], area: Rect, buffer: &mut Buffer) {
    let room = usize::from(area.width);
    let newest = &values[values.len().saturating_sub(room)..];
    let width = (room / newest.len().max(1)).clamp(1, 3);
    bars(newest, width as u16, 0, area, buffer);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_have_four_cells() {
        let bounds: Vec<String> = [0, 1, 8, 10, 11, 14, 17, 20, 21, 24, 30, 34, 38]
            .map(|at| bound(octave_bounds(at).0))
            .into();
        assert_eq!(
            bounds,
            [
                "0n", "1n", "128n", "512n", "1.0µ", "8.2µ", "66µ", "524µ", "1.0m", "8.4m", "537m",
                "9s", "137s"
            ]
        );
    }
}
