//! Numbers with units in lines of text.

use super::OutputRefusal;

/// The number, if the word is one.
pub fn number(what: &str, word: &str) -> Result<f64, OutputRefusal> {
    let word = word.trim();
    let refused = || OutputRefusal::Number { what: what.to_owned(), found: brief(word) };
    let plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E');
    if !word.chars().all(plain) {
        return Err(refused());
    }
    word.parse::<f64>().ok().filter(|value| value.is_finite()).ok_or_else(refused)
}

/// `218.37us` -> the number and `us`.
pub(super) fn split<'a>(what: &str, word: &'a str) -> Result<(f64, &'a str), OutputRefusal> {
    let word = word.trim();
    let end = word.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(word.len());
    Ok((number(what, &word[..end])?, word[end..].trim()))
}

/// A value with its unit, multiplied by the unit's factor in the table.
pub(super) fn in_unit(what: &str, word: &str, units: &[(&str, f64)]) -> Result<f64, OutputRefusal> {
    let (value, unit) = split(what, word)?;
    scaled(what, value, unit, units)
}

/// A value multiplied by its unit's factor in the table.
pub(super) fn scaled(
    what: &str,
    value: f64,
    unit: &str,
    units: &[(&str, f64)],
) -> Result<f64, OutputRefusal> {
    let factor = units.iter().find(|(name, _)| *name == unit);
    let refused = || OutputRefusal::Unit { what: what.to_owned(), unit: brief(unit) };
    factor.map(|(_, factor)| value * factor).ok_or_else(refused)
}

/// Units of time, as microseconds.
pub(super) const TIME: &[(&str, f64)] =
    &[("ns", 1e-3), ("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6), ("h", 3600e6)];

/// The rest of the first line that begins with this key.
pub(crate) fn after<'a>(text: &'a str, key: &str) -> Result<&'a str, OutputRefusal> {
    text.lines()
        .find_map(|line| line.trim().strip_prefix(key))
        .map(str::trim)
        .ok_or_else(|| OutputRefusal::missing(key))
}

/// The first word.
pub(super) fn word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

/// An excerpt of an output, for errors.
pub(super) fn brief(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(60).collect()
}
