//! Axes: round steps, and where their ticks lie.

use crate::numbers;

/// Ticks from 0 at round steps (1, 2 or 5 times a power of ten); the last is at or above `max`, so
/// a chart can end on it. Integral steps when `whole`, for counts.
pub(super) fn ticks_to(max: f64, about: usize, whole: bool) -> Vec<f64> {
    let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
    let mut step = round_step(max / about.max(1) as f64);
    if whole {
        step = step.max(1.0);
    }
    let last = (max / step - 1e-9).ceil().max(1.0) as usize;
    (0..=last).map(|i| i as f64 * step).collect()
}

/// Ticks from 0 at round steps that stay at or below `max`.
pub(super) fn ticks_within(max: f64, about: usize) -> Vec<f64> {
    let mut ticks = ticks_to(max, about, false);
    ticks.retain(|&t| t <= max * (1.0 + 1e-9));
    ticks
}

fn round_step(raw: f64) -> f64 {
    let power = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|m| m * power >= raw * (1.0 - 1e-9));
    step.unwrap_or(10.0) * power
}

/// Times on an axis, all in the unit that suits the largest: its name and its length in ns.
pub(super) fn time_unit(max_ns: f64) -> (&'static str, f64) {
    match max_ns {
        m if m < 1e3 => ("ns", 1.0),
        m if m < 1e6 => ("µs", 1e3),
        m if m < 1e9 => ("ms", 1e6),
        m if m < 600e9 => ("s", 1e9),
        m if m < 36_000e9 => ("min", 60e9),
        _ => ("h", 3_600e9),
    }
}

/// A tick's number, without the digits that the step does not have.
pub(super) fn tick_label(value: f64) -> String {
    let rounded = value.round();
    if (value - rounded).abs() < 1e-9 * value.abs().max(1.0) && rounded >= 0.0 {
        match rounded as u64 {
            n if n >= 1_000_000 && n % 1_000_000 == 0 => {
                format!("{}M", numbers::count(n / 1_000_000))
            }
            n if n >= 1_000_000 && n % 100_000 == 0 => {
                format!("{}.{}M", numbers::count(n / 1_000_000), n / 100_000 % 10)
            }
            n if n >= 10_000 && n % 1_000 == 0 => format!("{}k", numbers::count(n / 1_000)),
            n => numbers::count(n),
        }
    } else {
        let text = format!("{value:.6}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_maximum() {
        assert_eq!(ticks_to(43.0, 4, true), [0.0, 20.0, 40.0, 60.0]);
        assert_eq!(ticks_to(3.0, 4, true), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(ticks_to(0.0, 4, true), [0.0, 1.0]);
        assert_eq!(ticks_to(100.0, 4, false), [0.0, 50.0, 100.0]);
        assert_eq!(ticks_within(9.9, 5), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert!(ticks_to(u64::MAX as f64, 4, true).len() < 8);
        assert!(ticks_to(f64::NAN, 4, true).len() < 8);
    }

    #[test]
    fn labels_are_short() {
        for (value, expected) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (2_000.0, "2,000"),
            (20_000.0, "20k"),
            (1_500_000.0, "1.5M"),
            (2_000_000.0, "2M"),
            (50_000_000.0, "50M"),
        ] {
            assert_eq!(tick_label(value), expected);
        }
    }
}
