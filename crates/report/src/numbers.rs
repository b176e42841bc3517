//! How numbers are written for people: one spelling for every renderer.

use vmtax_analyse::Ratio;

pub use vmtax_analyse::grouped::count;
pub use vmtax_events::size;

/// A number with as many digits after the point, and thousands separators: `1,036.40`.
pub fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    let (sign, text) = text.strip_prefix('-').map_or(("", text.as_str()), |text| ("-", text));
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    match whole.parse() {
        Ok(whole) => format!("{sign}{}{rest}", count(whole)),
        // Infinite, or more than counts are.
        Err(_) => format!("{sign}{text}"),
    }
}

/// A whole number: `34,509`.
pub fn whole(value: f64) -> String {
    fixed(value, 0)
}

/// A number that is mostly whole: `2`, and `1.97` with its two digits where it is not.
pub fn plain(value: f64) -> String {
    fixed(value, if value.fract() == 0.0 { 0 } else { 2 })
}

/// A quotient of counts: `1`, `1.50`, `<0.01`, `-` when there is nothing to divide by. What only rounds to a
/// whole number has a digit more: `1.005`.
pub fn ratio(ratio: Ratio) -> String {
    match (ratio.exact(), ratio.value()) {
        (Some(whole), _) => count(whole),
        (None, Some(value)) if value < 0.005 => "<0.01".to_owned(),
        (None, Some(value)) if value < 1000.0 => match format!("{value:.2}") {
            whole if whole.ends_with(".00") => format!("{value:.3}"),
            text => text,
        },
        (None, Some(value)) => count(value.round() as u64),
        (None, None) => "-".to_owned(),
    }
}

/// A path length in instructions: `1,036`, or `1,036.4` where a median is no whole number.
pub fn instructions(n: f64) -> String {
    let tenths = (n * 10.0).round() / 10.0;
    if tenths.fract() == 0.0 || tenths >= 1e15 {
        count(tenths as u64)
    } else {
        format!("{}.{:.0}", count(tenths.trunc() as u64), tenths.fract() * 10.0)
    }
}

/// A duration in ns with three significant digits and the unit that suits it: `987 ns`, `12.3 µs`,
/// `1.72 s`. From 1,000 s on whole seconds.
pub fn duration(ns: f64) -> String {
    if ns < 999.5 {
        return format!("{ns:.0} ns");
    }
    let mut value = ns;
    for unit in ["µs", "ms", "s"] {
        value /= 1000.0;
        if value < 9.995 {
            return format!("{value:.2} {unit}");
        }
        if value < 99.95 {
            return format!("{value:.1} {unit}");
        }
        if value < 999.5 {
            return format!("{value:.0} {unit}");
        }
    }
    format!("{} s", whole(value))
}

/// `part` of `whole`; `None` when there is no whole.
pub fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// A share in percent with one digit, without the sign: `12.3`; `<0.1` for what would round to
/// nothing but is not.
pub fn percent_digits(share: f64) -> String {
    // An empty sum is -0.0.
    let percent = share * 100.0 + 0.0;
    if percent > 0.0 && percent < 0.05 { "<0.1".to_owned() } else { format!("{percent:.1}") }
}

/// A share in percent with one digit: `12.3 %`.
pub fn percent(share: f64) -> String {
    format!("{} %", percent_digits(share))
}

/// A number with three significant digits, and separators from a thousand on: `0.0123`, `12.3`, `34,509`.
pub fn significant(value: f64) -> String {
    let size = value.abs();
    if size >= 999.5 {
        return whole(value);
    }
    if size == 0.0 {
        return "0".to_owned();
    }
    let before = size.log10().floor() as i32 + 1;
    let places = (3 - before).clamp(0, 6) as usize;
    format!("{value:.places$}")
}

/// As [`significant`], and without a point where there is nothing behind it: counts are whole.
pub fn of_count(value: f64) -> String {
    if value.fract() == 0.0 { whole(value) } else { significant(value) }
}

/// As [`significant`], with a sign where it is more than nothing.
pub fn signed(value: f64) -> String {
    format!("{}{}", if value > 0.0 { "+" } else { "" }, significant(value))
}

/// A difference with its sign and at most two digits after the point: `+1,668`, `-0.25`.
pub fn delta(delta: f64) -> String {
    let hundredths = (delta * 100.0).round().abs() as u64;
    let sign = if delta < 0.0 && hundredths > 0 { '-' } else { '+' };
    let whole = count(hundredths / 100);
    match hundredths % 100 {
        0 => format!("{sign}{whole}"),
        part => format!("{sign}{whole}.{}", format!("{part:02}").trim_end_matches('0')),
    }
}

/// A count with its noun: `1 exit`, `2 exits`.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_ratios_are_integers() {
        for (part, whole, expected) in [
            (200, 200, "1"),
            (1_000, 200, "5"),
            (0, 200, "0"),
            (301, 200, "1.50"),
            (201, 200, "1.005"),
            (10_001, 10_000, "1.000"),
            (1, 2_000, "<0.01"),
            (u64::MAX, 2, "9,223,372,036,854,775,808"),
            (u64::MAX, 1, "18,446,744,073,709,551,615"),
            (7, 0, "-"),
        ] {
            assert_eq!(ratio(Ratio { part, whole }), expected);
        }
    }

    #[test]
    fn path_lengths_have_at_most_one_decimal() {
        for (n, expected) in [
            (0.0, "0"),
            (1_036.0, "1,036"),
            (1_036.04, "1,036"),
            (1_036.44, "1,036.4"),
            (999.96, "1,000"),
            (1e300, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(instructions(n), expected);
        }
    }

    #[test]
    fn decimals_have_separators_before_the_point() {
        let cases = [
            (0.4, 0, "0"),
            (999.6, 0, "1,000"),
            (-1_234.6, 0, "-1,235"),
            (1e6, 0, "1,000,000"),
            (1_036.4, 2, "1,036.40"),
            (0.126, 2, "0.13"),
            (f64::INFINITY, 1, "inf"),
        ];
        for (value, digits, expected) in cases {
            assert_eq!(fixed(value, digits), expected);
        }
        assert_eq!((plain(2_000.0), plain(1_000.5)), ("2,000".into(), "1,000.50".into()));
    }

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [
            (0.0, "0"),
            (0.012_34, "0.0123"),
            (1.0, "1.00"),
            (12.34, "12.3"),
            (-123.4, "-123"),
            (34_509.4, "34,509"),
            (-1_234.0, "-1,234"),
            (1e-9, "0.000000"),
        ];
        for (value, expected) in cases {
            assert_eq!(significant(value), expected);
        }
    }

    #[test]
    fn durations_keep_three_digits_across_units() {
        let cases = [
            (0.0, "0 ns"),
            (999.4, "999 ns"),
            (999.5, "1.00 µs"),
            (9_994.0, "9.99 µs"),
            (9_994.9, "9.99 µs"),
            (9_995.1, "10.0 µs"),
            (99_949.0, "99.9 µs"),
            (999_499.0, "999 µs"),
            (999_500.0, "1.00 ms"),
            (1.72e9, "1.72 s"),
            (999.4e9, "999 s"),
            (999.6e9, "1,000 s"),
            (u64::MAX as f64, "18,446,744,074 s"),
        ];
        for (ns, expected) in cases {
            assert_eq!(duration(ns), expected, "{ns}");
        }
    }

    #[test]
    fn small_percents_are_not_shown_as_zero() {
        let cases =
            [(0.0, "0.0"), (0.0004, "<0.1"), (0.0005, "0.1"), (0.1234, "12.3"), (1.0, "100.0")];
        for (share, expected) in cases {
            assert_eq!(percent_digits(share), expected);
        }
        assert_eq!(share(1, 0), None);
    }

    #[test]
    fn nouns_follow_their_number() {
        assert_eq!(
            (counted(1, "exit"), counted(2000, "exit")),
            ("1 exit".into(), "2,000 exits".into())
        );
    }
}
