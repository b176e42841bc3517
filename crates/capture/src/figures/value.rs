//! Values with their units, as people and programs write them.

use vmtax_events::Better;

/// Units, as they are written.
const UNITS: &[(&str, Better)] = &[
    ("ns", Better::Lower),
    ("us", Better::Lower),
    ("\u{b5}s", Better::Lower),
    ("\u{3bc}s", Better::Lower),
    ("usec", Better::Lower),
    ("ms", Better::Lower),
    ("msec", Better::Lower),
    ("s", Better::Lower),
    ("sec", Better::Lower),
    ("secs", Better::Lower),
    ("seconds", Better::Lower),
    ("second", Better::Lower),
    ("min", Better::Lower),
    ("mins", Better::Lower),
    ("minute", Better::Lower),
    ("minutes", Better::Lower),
    ("hours", Better::Lower),
    ("cycles", Better::Lower),
    ("exits/s", Better::Lower),
    ("exits/sec", Better::Lower),
    ("vmexit/s", Better::Lower),
    ("vmexits/s", Better::Lower),
    ("iops", Better::Higher),
    ("bit/s", Better::Higher),
    ("bits/s", Better::Higher),
    ("bits/sec", Better::Higher),
    ("kbit/s", Better::Higher),
    ("kbits/s", Better::Higher),
    ("kbits/sec", Better::Higher),
    ("kbps", Better::Higher),
    ("mbit/s", Better::Higher),
    ("mbits/s", Better::Higher),
    ("mbits/sec", Better::Higher),
    ("mb/s", Better::Higher),
    ("mbps", Better::Higher),
    ("gbit/s", Better::Higher),
    ("gbits/s", Better::Higher),
    ("gbits/sec", Better::Higher),
    ("gb/s", Better::Higher),
    ("gbps", Better::Higher),
    ("b/s", Better::Higher),
    ("kb/s", Better::Higher),
    ("kib/s", Better::Higher),
    ("mib/s", Better::Higher),
    ("gib/s", Better::Higher),
    ("kb/sec", Better::Higher),
    ("mb/sec", Better::Higher),
    ("gb/sec", Better::Higher),
    ("kib/sec", Better::Higher),
    ("mib/sec", Better::Higher),
    ("gib/sec", Better::Higher),
    ("req/s", Better::Higher),
    ("req/sec", Better::Higher),
    ("requests/s", Better::Higher),
    ("requests/sec", Better::Higher),
    ("ops/s", Better::Higher),
    ("ops/sec", Better::Higher),
    ("events/s", Better::Higher),
    ("packets/s", Better::Higher),
    ("pps", Better::Higher),
    ("kpps", Better::Higher),
    ("mpps", Better::Higher),
    ("mips", Better::Higher),
    ("mwips", Better::Higher),
    ("lps", Better::Higher),
    ("lpm", Better::Higher),
    ("mflops", Better::Higher),
    ("gflops", Better::Higher),
    ("points", Better::Higher),
    ("tps", Better::Higher),
    ("qps", Better::Higher),
    ("fps", Better::Higher),
];

/// A value with its unit; without one it has that of its column or title.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Value {
    pub(super) number: f64,
    pub(super) unit: Option<String>,
}

/// Without Markdown's marks.
pub(super) fn plain(text: &str) -> String {
    text.replace(['*', '`'], "").trim().to_owned()
}

/// Bare digits, with a point or with groups of three: `40,074`, `0.092668`.
pub(super) fn digits(text: &str) -> Option<f64> {
    let groups: Vec<&str> = text.split(',').collect();
    let is_grouped = match groups.as_slice() {
        [_] => true,
        [first, rest @ ..] => {
            let last = rest.len() - 1;
            (1..=3).contains(&first.len())
                && rest.iter().enumerate().all(|(at, group)| match at == last {
                    true => group.split('.').next().is_some_and(|whole| whole.len() == 3),
                    false => group.len() == 3,
                })
        }
        [] => false,
    };
    let bare = text.replace(',', "");
    let is_number = bare.starts_with(|c: char| c.is_ascii_digit())
        && bare.chars().all(|c| c.is_ascii_digit() || c == '.');
    (is_grouped && is_number).then(|| bare.parse().ok())?
}

/// A number, with k, M or G for thousands.
pub(super) fn number(word: &str) -> Option<f64> {
    let factor = match word.chars().last()? {
        'k' | 'K' => 1e3,
        'M' => 1e6,
        'G' => 1e9,
        _ => return digits(word),
    };
    Some(digits(&word[..word.len() - 1])? * factor)
}

/// A cell with one value: `~175 MB/s`, `**297.7 ms**`, `253k (??)`, `4488ms`, `43.1MiB/s`.
pub(super) fn value(cell: &str) -> Option<Value> {
    let cell = plain(cell);
    let cell = cell.trim_start_matches(['~', '\u{2248}', ' ']);
    let (cell, bracketed) = match cell.split_once('(') {
        Some((before, inside)) => (before.trim(), Some(inside.strip_suffix(')')?)),
        None => (cell, None),
    };
    let cell = cell.split('\u{b1}').next()?.trim();
    if let Some(number) = number(cell) {
        // 690(MiB/s).
        let unit = bracketed.filter(|unit| known(unit).is_some()).map(str::to_owned);
        return Some(Value { number, unit });
    }
    if let Some(number) = several_units(cell) {
        return Some(Value { number, unit: Some("s".to_owned()) });
    }
    let end = cell.find(|c: char| !c.is_ascii_digit() && c != '.' && c != ',')?;
    let (digit, rest) = cell.split_at(end);
    let unit = |rest: &str| known(rest.trim()).map(|_| rest.trim().to_owned());
    let (factor, unit) = match unit(rest) {
        Some(unit) => (1.0, unit),
        // 12.9k IOPS.
        None => (number(&format!("1{}", rest.get(..1)?))?, unit(rest.get(1..)?)?),
    };
    // 1,250 s are some twenty minutes in English, and a second and a quarter in German.
    let is_either = digit.matches(',').count() == 1 && !digit.contains('.');
    if is_either && ["s", "sec", "secs", "second", "seconds", "min", "minutes"].contains(&&*unit) {
        return None;
    }
    Some(Value { number: digits(digit)? * factor, unit: Some(unit) })
}

/// Seconds of a time in more than one unit, the larger first: `8m52s`, `1min5sec`, `1h 02m 3.5s`.
fn several_units(text: &str) -> Option<f64> {
    const NAMES: [(&[&str], f64); 3] = [
        (&["h", "hr", "hour", "hours"], 3600.0),
        (&["m", "min", "mins", "minute", "minutes"], 60.0),
        (&["s", "sec", "secs", "second", "seconds"], 1.0),
    ];
    let (mut rest, mut sum, mut parts, mut before) = (text, 0.0, 0, f64::INFINITY);
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (digit, behind) = rest.split_at(end);
        let behind = behind.trim_start();
        let end = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
        let unit = behind[..end].to_lowercase();
        let (_, factor) = NAMES.iter().find(|(names, _)| names.contains(&unit.as_str()))?;
        if *factor >= before {
            return None;
        }
        sum += digits(digit)? * factor;
        (before, parts) = (*factor, parts + 1);
        rest = behind[end..].trim_start();
    }
    (parts > 1).then_some(sum)
}

/// Which values of a unit are good, if it is one.
pub(super) fn known(unit: &str) -> Option<Better> {
    let unit = unit.to_lowercase();
    let found = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, better)| *better);
    // `cpuid_rate`: how many in some time.
    found.or_else(|| unit.ends_with("_rate").then_some(Better::Higher))
}

/// The unit that a head or a title names.
pub(super) fn unit_in(text: &str) -> Option<String> {
    let is_mark = |c: char| c.is_whitespace() || ",()[].-_".contains(c);
    let is_enclosed =
        |word: &str| text.contains(&format!("({word})")) || text.contains(&format!("[{word}]"));
    let mut words = text.split(is_mark).filter_map(|word| {
        // Milliseconds of a file: ms/file.
        let is_time =
            |(time, _): &(&str, &str)| known(time).is_some_and(|better| better == Better::Lower);
        match known(word) {
            Some(_) => Some(word),
            None => word.split_once('/').filter(is_time).map(|(time, _)| time),
        }
    });
    // A single letter may be anything, and so may these.
    let is_other = |word: &str| ["min", "points", "second"].contains(&word.to_lowercase().as_str());
    words.find(|word| word.len() > 1 && !is_other(word) || is_enclosed(word)).map(str::to_owned)
}

/// A relative change as it is posted: `+6.65%`, `**-47.6%** (-72.8% to -22.3%)`; without a sign where `bare`.
pub(super) fn change(cell: &str, bare: bool) -> Option<f64> {
    let cell = plain(cell);
    let cell = cell.split('(').next()?.trim().strip_suffix('%')?.trim();
    let (sign, rest) = match cell.chars().next()? {
        '+' => (1.0, &cell[1..]),
        '-' => (-1.0, &cell[1..]),
        // The signs of typesetters: minus, and a short dash.
        c @ ('\u{2212}' | '\u{2013}') => (-1.0, &cell[c.len_utf8()..]),
        _ if bare => (1.0, cell),
        _ => return None,
    };
    Some(sign * digits(rest.trim())?)
}
