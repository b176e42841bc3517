//! Numbers as programs print them: plain, or with the separators of a locale.
//!
//! A reader cannot know the locale, but a number often shows it: `345.678.901` can only be grouped, `1.234,56` can
//! only be a decimal comma. What stays ambiguous is not read.

/// Separators of groups and decimals in the locales of glibc: comma, point, apostrophes, and spaces that do not
/// break. U+066B and U+066C are the Arabic decimal and thousands separators.
const SEPARATORS: [char; 10] =
    [',', '.', '\'', '\u{2019}', ' ', '\u{a0}', '\u{2009}', '\u{202f}', '\u{66b}', '\u{66c}'];
/// Those of them that can separate decimals.
const DECIMAL: [char; 3] = [',', '.', '\u{66b}'];

/// A number in parts: the first digits, then each separator with the digits behind it.
struct NumberParts<'a> {
    first: &'a str,
    more: Vec<(char, &'a str)>,
}

/// The number at the front of a line of `perf stat`, and what follows it.
///
/// perf prints counts without decimals and scaled values with two (before Linux 3.14: six), so three digits behind a
/// single separator are a group.
pub(super) fn of_perf_text(line: &str) -> Option<(f64, &str)> {
    let (parts, rest) = NumberParts::split(line)?;
    let value = match parts.more.as_slice() {
        [(separator, digits)] if DECIMAL.contains(separator) && matches!(digits.len(), 2 | 6) => {
            parse(parts.first, digits)
        }
        [(_, digits)] if digits.len() != 3 => None,
        _ => parts.value(),
    };
    Some((value?, rest))
}

/// A number without groups: digits, and decimals behind a point or a comma.
pub(super) fn without_groups(word: &str) -> Option<f64> {
    let (parts, rest) = NumberParts::split(word)?;
    match parts.more.as_slice() {
        _ if !rest.is_empty() => None,
        [] => parse(parts.first, "0"),
        [(separator, digits)] if DECIMAL.contains(separator) => parse(parts.first, digits),
        _ => None,
    }
}

/// A number of a list that programs write: as in C, or grouped in a way that leaves no doubt.
pub(super) fn of_list(word: &str) -> Option<f64> {
    let is_plain = word.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    if let Some(value) = word.parse().ok().filter(|value: &f64| is_plain && value.is_finite()) {
        return Some(value);
    }
    let (parts, rest) = NumberParts::split(word)?;
    if parts.more.len() < 2 || !rest.is_empty() { None } else { parts.value() }
}

impl<'a> NumberParts<'a> {
    fn split(text: &'a str) -> Option<(NumberParts<'a>, &'a str)> {
        let (first, mut rest) = digits(text)?;
        let mut more = Vec::new();
        while let Some(separator) = rest.chars().next().filter(|c| SEPARATORS.contains(c)) {
            let Some((group, after)) = digits(&rest[separator.len_utf8()..]) else { break };
            // Words are separated by spaces too; among numbers only groups of three digits are.
            if separator == ' ' && group.len() != 3 {
                break;
            }
            more.push((separator, group));
            rest = after;
        }
        Some((NumberParts { first, more }, rest))
    }

    /// The value if only one reading is possible: all separators group, or all but the last.
    fn value(&self) -> Option<f64> {
        let Some((&(last, decimals), groups)) = self.more.split_last() else {
            return parse(self.first, "0");
        };
        let is_decimal = groups.first().is_some_and(|&(separator, _)| separator != last);
        if is_decimal && DECIMAL.contains(&last) {
            parse(&self.joined(groups)?, decimals)
        } else {
            parse(&self.joined(&self.more)?, "0")
        }
    }

    /// The digits of a grouped number. Groups have three digits; in Indian locales all but the last have two.
    fn joined(&self, groups: &[(char, &str)]) -> Option<String> {
        let (&(separator, last), others) = groups.split_last()?;
        let of = |len: usize| others.iter().all(|(_, group)| group.len() == len);
        let fits = last.len() == 3
            && !self.first.starts_with('0')
            && others.iter().all(|&(other, _)| other == separator)
            && (of(3) && self.first.len() <= 3 || of(2) && self.first.len() <= 2);
        let digits = groups.iter().map(|(_, group)| *group);
        fits.then(|| std::iter::once(self.first).chain(digits).collect())
    }
}

fn digits(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

fn parse(whole: &str, decimals: &str) -> Option<f64> {
    format!("{whole}.{decimals}").parse().ok().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_of_perf() {
        for (text, expected) in [
            ("345,678,901      cycles", Some(345_678_901.0)),
            ("345.678.901      cycles", Some(345_678_901.0)),
            ("345 678 901      cycles", Some(345_678_901.0)),
            ("345\u{202f}678\u{202f}901 x", Some(345_678_901.0)),
            ("2’113’793’434      x", Some(2_113_793_434.0)),
            ("2'113'793'434      x", Some(2_113_793_434.0)),
            ("2,17,41,40,534     x", Some(2_174_140_534.0)),
            ("34,56,789 x", Some(3_456_789.0)),
            ("13.684 x", Some(13_684.0)),
            ("1,03 msec", Some(1.03)),
            ("1.03 msec", Some(1.03)),
            ("1.234,56 msec", Some(1234.56)),
            ("1\u{202f}234,56 msec", Some(1234.56)),
            ("0.527284  task-clock-msecs", Some(0.527284)),
            ("58 msec", Some(58.0)),
            ("58 100 x", Some(58_100.0)),
            // None of these is a number of any locale.
            ("1,2345 x", None),
            ("12,34,56 x", None),
            ("1234,567 x", None),
            ("0,123 x", None),
            ("1,234.567,890 x", None),
            ("1.5 x", None),
            ("x", None),
        ] {
            assert_eq!(of_perf_text(text).map(|(value, _)| value), expected, "{text:?}");
        }
    }

    #[test]
    fn numbers_of_lists() {
        for (word, expected) in [
            ("345", Some(345.0)),
            ("1.234", Some(1.234)),
            ("1e3", Some(1000.0)),
            ("1,234,567", Some(1_234_567.0)),
            ("1.234.567", Some(1_234_567.0)),
            ("1,234.5", Some(1234.5)),
            // 1234 or 1.234?
            ("1,234", None),
            ("12,5", None),
            ("12kB", None),
            ("NaN", None),
            ("inf", None),
        ] {
            assert_eq!(of_list(word), expected, "{word:?}");
        }
    }

    /// As printf's ' flag writes it.
    fn grouped(value: u64, separator: &str, indian: bool) -> String {
        let digits = value.to_string();
        let mut groups = Vec::new();
        let mut end = digits.len();
        while end > 0 {
            let len = if indian && !groups.is_empty() { 2 } else { 3 };
            let start = end.saturating_sub(len);
            groups.push(&digits[start..end]);
            end = start;
        }
        groups.reverse();
        groups.join(separator)
    }

    proptest! {
        #[test]
        fn every_locale_reads_as_the_plain_number(
            value in 0u64..1 << 53,
            cents in 0u64..100,
            (separator, decimal) in prop::sample::select(vec![
                (",", "."), (".", ","), ("’", "."), ("\u{202f}", ","), ("\u{a0}", ","), (" ", ","), ("", "."), ("", ","),
            ]),
            indian: bool,
        ) {
            let text = grouped(value, separator, indian && separator == ",");
            let line = format!("{text}      x");
            prop_assert_eq!(of_perf_text(&line), Some((value as f64, "      x")));
            // Both round values beyond 53 bits in the same way.
            let expected: f64 = format!("{value}.{cents:02}").parse().unwrap();
            let line = format!("{text}{decimal}{cents:02} msec");
            prop_assert_eq!(of_perf_text(&line), Some((expected, " msec")));
        }
    }
}
