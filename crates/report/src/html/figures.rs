//! What only a page needs of numbers and text: cells, bars, coordinates. How they are spelled is
//! the business of [`crate::numbers`] and [`crate::names`].

use maud::{Markup, html};

use crate::{names, numbers};

/// Text from a recording is cut after this many characters: the page shows it, it does not archive it.
const MAX_TEXT: usize = 400;

/// Text from a recording, for a person: hidden characters spelled out, length bounded. What is
/// left is escaped where it is put into the page.
pub(super) fn text(hostile: &str) -> String {
    at_most(hostile, MAX_TEXT)
}

/// A note of several sentences, such as what columns mean.
pub(super) fn note(hostile: &str) -> String {
    at_most(hostile, 10 * MAX_TEXT)
}

fn at_most(hostile: &str, most: usize) -> String {
    match hostile.char_indices().nth(most) {
        Some((end, _)) => names::printable(&hostile[..end]) + "…",
        None => names::printable(hostile),
    }
}

/// A duration in running text, on one line: `49.7 µs`.
pub(super) fn duration(ns: f64) -> String {
    numbers::duration(ns).replace(' ', "\u{a0}")
}

/// A duration in a table cell: the unit has its own fixed width, so that digits align.
pub(super) fn duration_cell(ns: f64) -> Markup {
    let text = numbers::duration(ns);
    let (digits, unit) = text.split_once(' ').unwrap_or((&text, ""));
    html! { (digits) " " small { (unit) } }
}

/// A share of a whole as a fraction of 1; 0 when there is no whole.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    numbers::share(part, whole).unwrap_or(0.0)
}

/// A fraction as `12.3 %`, on one line.
pub(super) fn percent(fraction: f64) -> String {
    numbers::percent(fraction).replace(' ', "\u{a0}")
}

/// A coordinate or length in a drawing: at most two decimals, no trailing zeros.
pub(super) fn coordinate(x: f64) -> String {
    let text = format!("{x:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" || text.is_empty() { "0".to_owned() } else { text.to_owned() }
}

/// A bar as long as `fraction` of its box, for the eye only: the figure is beside it.
pub(super) fn bar(fraction: f64) -> Markup {
    let width = coordinate(fraction.clamp(0.0, 1.0) * 100.0);
    html! {
        svg.bar viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            rect width=(width) height="8" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_short() {
        for (x, expected) in
            [(0.0, "0"), (1.5, "1.5"), (-0.001, "0"), (100.0, "100"), (3.456, "3.46")]
        {
            assert_eq!(coordinate(x), expected);
        }
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(text("short"), "short");
        assert_eq!(text(&"é".repeat(500)).chars().count(), MAX_TEXT + 1);
    }
}
