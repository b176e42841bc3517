//! One row of a table of perf kvm stat: its name, its count, and its times where it still has them.
//!
//! perf prints every share and time with two decimals, so the digits behind the last separator are decimals in any locale.

use vmtax_events::{Detail, DetailKind, Tally, msr};

/// Longer lines are no rows.
pub(super) const LONGEST_ROW: usize = 4096;

/// What a row counts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PerfKvmRow {
    /// `HLT`, `0x70:POUT`.
    pub(super) name: String,
    /// Its count, and its times.
    pub(super) tally: Tally,
    /// Percent of the samples.
    pub(super) share: f64,
    /// It ends before its times.
    pub(super) is_cut: bool,
    /// Percent of the time, where that is all that it says of times.
    pub(super) time_share: Option<f64>,
}

impl PerfKvmRow {
    /// `NAME SAMPLES SAMPLES% TIME% MIN MAX AVG ( +- ERROR% )`, or `NAME SAMPLES SAMPLE% TIME TIME% MAX MIN MEAN` in ns. `None` for any
    /// other line.
    pub(super) fn read(line: &str) -> Option<PerfKvmRow> {
        if line.len() > LONGEST_ROW {
            return None;
        }
        let words = with_units(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let is_count = |at: &usize| {
            words.get(at + 1).is_some_and(|word| percent(word).is_some())
                && words.get(*at).is_some_and(|word| count(word).is_some())
        };
        let at = (1..words.len()).find(is_count)?;
        let name = words.get(..at)?.join(" ");
        let count = count(words.get(at)?)?;
        let share = percent(words.get(at + 1)?)?;
        let rest = words.get(at + 2..)?;
        let times = match rest.first().and_then(|word| percent(word)) {
            Some(_) => by_mean(count, rest)?,
            None if rest.first().is_some_and(|word| self::count(word).is_none()) => return None,
            None => by_sum(count, rest)?,
        };
        let is_cut = times.is_none();
        let time_share = rest.first().and_then(|word| percent(word)).filter(|_| is_cut);
        let tally = times.unwrap_or_else(|| untimed(count));
        Some(PerfKvmRow { name, tally, share, is_cut, time_share })
    }

    /// The access that its name says, of a table with this heading.
    pub(super) fn access(&self, heading: &str) -> Option<AccessObject> {
        let (number, direction) = self.name.split_once(':')?;
        let value = u64::from_str_radix(number.strip_prefix("0x")?, 16).ok()?;
        let is_mmio = heading.contains("MMIO");
        Some(match direction {
            "PIN" => AccessObject::Sure(Detail::new(DetailKind::PortIn, value)),
            "POUT" => AccessObject::Sure(Detail::new(DetailKind::PortOut, value)),
            "R" if is_mmio => AccessObject::Sure(Detail::new(DetailKind::MmioRead, value)),
            "W" if is_mmio => AccessObject::Sure(Detail::new(DetailKind::MmioWrite, value)),
            "R" | "W" if heading.contains("MSR") => AccessObject::Sure(msr_of(value, direction)),
            "R" | "W" => AccessObject::MsrOrMmio { value, is_write: direction == "W" },
            _ => return None,
        })
    }
}

/// The words of a line, units joined to their numbers: `0.92 us`.
fn with_units(line: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        match words.last_mut() {
            Some(last) if matches!(word, "us" | "µs" | "ms" | "ns" | "%") => last.push_str(word),
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// The object of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessObject {
    Sure(Detail),
    /// perf from 6.4 on prints the same heading over both tables.
    MsrOrMmio {
        value: u64,
        is_write: bool,
    },
}

impl AccessObject {
    /// The detail, where the table's rows are all of MSRs or not.
    pub(super) fn detail(self, are_msrs: bool) -> Detail {
        match self {
            AccessObject::Sure(detail) => detail,
            AccessObject::MsrOrMmio { value, is_write } => match (are_msrs, is_write) {
                (true, true) => Detail::new(DetailKind::MsrWrite, value),
                (true, false) => Detail::new(DetailKind::MsrRead, value),
                (false, true) => Detail::new(DetailKind::MmioWrite, value),
                (false, false) => Detail::new(DetailKind::MmioRead, value),
            },
        }
    }

    /// Whether it is a port.
    pub(super) fn is_port(self) -> bool {
        let AccessObject::Sure(detail) = self else { return false };
        matches!(detail.kind, DetailKind::PortIn | DetailKind::PortOut)
    }

    /// Whether it is an MSR by the heading of its table.
    pub(super) fn is_msr(self) -> bool {
        let AccessObject::Sure(detail) = self else { return false };
        matches!(detail.kind, DetailKind::MsrRead | DetailKind::MsrWrite)
    }

    /// Whether it may be an MSR: its number is one that has a name.
    pub(super) fn can_be_msr(self) -> bool {
        match self {
            AccessObject::Sure(_) => false,
            AccessObject::MsrOrMmio { value, .. } => {
                u32::try_from(value).is_ok_and(|index| msr::name(index).is_some())
            }
        }
    }
}

fn msr_of(value: u64, direction: &str) -> Detail {
    let kind = if direction == "W" { DetailKind::MsrWrite } else { DetailKind::MsrRead };
    Detail::new(kind, value)
}

fn untimed(count: u64) -> Tally {
    let mut tally = Tally::default();
    tally.add_untimed(count);
    tally
}

/// Separators of groups of three digits.
const GROUPS: [char; 6] = [',', '.', '\'', '\u{2019}', '_', '\u{202f}'];

/// Digits without the separators of their groups, which must fit: `1.234.567`, not `12.34`.
fn ungrouped(word: &str) -> Option<String> {
    let mut groups = word.split(GROUPS);
    let first = groups.next()?;
    let digits = |group: &str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit());
    let mut all = first.to_owned();
    for group in groups {
        if group.len() != 3 || first.len() > 3 || !digits(group) {
            return None;
        }
        all.push_str(group);
    }
    digits(first).then_some(all)
}

/// A count, plain or in groups of three digits.
pub(in crate::import::counts) fn count(word: &str) -> Option<u64> {
    ungrouped(word)?.parse().ok()
}

/// A number with at most two decimals, in any locale.
fn decimal(word: &str) -> Option<f64> {
    let number = match word.rfind([',', '.']) {
        Some(at) if word.len() - at <= 3 => {
            let (whole, decimals) = (word.get(..at)?, word.get(at + 1..)?);
            let is_number = decimals.bytes().all(|b| b.is_ascii_digit());
            format!("{}.{}", ungrouped(whole)?, Some(decimals).filter(|_| is_number)?)
        }
        _ => ungrouped(word)?,
    };
    number.parse().ok()
}

/// `12.34%`.
fn percent(word: &str) -> Option<f64> {
    decimal(word.strip_suffix('%')?)
}

/// `12.34us` as ns; copies may be in other units, with other digits.
fn nanoseconds(word: &str) -> Option<u64> {
    let digits = word.trim_end_matches(char::is_alphabetic);
    let ns = match word.get(digits.len()..)? {
        "us" | "µs" => decimal(digits)? * 1e3,
        "ns" => count(digits)? as f64,
        "ms" => digits.replace(',', ".").parse::<f64>().ok()? * 1e6,
        _ => return None,
    };
    (0.0..1e18).contains(&ns).then(|| ns.round() as u64)
}

/// `Time%  Min  Max  Avg ( +- error of the mean% )`; `Some(None)` if the row ends before its mean.
fn by_mean(count: u64, rest: &[&str]) -> Option<Option<Tally>> {
    let [_, min, max, mean, ..] = *rest else { return Some(None) };
    // The first versions of perf had the mean alone, without which there is no shortest and longest.
    if nanoseconds(min).is_some() && max == "(" {
        return Some(None);
    }
    let (min_ns, max_ns, mean_ns) = (nanoseconds(min)?, nanoseconds(max)?, nanoseconds(mean)?);
    let relative = rest.iter().rev().find_map(|word| percent(word.trim_start_matches("+-")));
    let relative = relative.filter(|_| rest.len() > 4).unwrap_or(0.0);
    let time_ns = mean_ns.checked_mul(count)?;
    timed(count, time_ns, (min_ns, max_ns), relative / 100.0).map(Some)
}

/// `Time (ns)  Time%  Max (ns)  Min (ns)  Mean (ns)`; the same.
fn by_sum(count: u64, rest: &[&str]) -> Option<Option<Tally>> {
    let [time, _, max, min, ..] = *rest else { return Some(None) };
    let ns = |word: &str| self::count(word);
    timed(count, ns(time)?, (ns(min)?, ns(max)?), 0.0).map(Some)
}

fn timed(
    count: u64,
    time_ns: u64,
    (min_ns, max_ns): (u64, u64),
    relative_error: f64,
) -> Option<Tally> {
    let mut tally = Tally::default();
    if count == 0 {
        return Some(tally);
    }
    if min_ns > max_ns || !(0.0..=1e6).contains(&relative_error) {
        return None;
    }
    let (n, mean) = (count as f64, time_ns as f64 / count as f64);
    // The error of the mean is the root of the sample variance over n.
    let variance = (relative_error * mean).powi(2) * n;
    (tally.count, tally.timed) = (count, count);
    (tally.time_ns, tally.min_ns) = (time_ns, min_ns.min(mean as u64));
    tally.max_ns = max_ns.max(mean as u64).min(time_ns);
    if relative_error > 0.0 || count == 1 {
        let of_equals = (u128::from(time_ns) * u128::from(time_ns)).div_ceil(u128::from(count));
        tally.sum_sq = of_equals.saturating_add((variance * (n - 1.0)) as u128);
    }
    Some(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_locales() {
        for (word, expected) in [
            ("760998", Some(760_998)),
            ("760,998", Some(760_998)),
            ("1.027.227", Some(1_027_227)),
            ("1'027'227", Some(1_027_227)),
            ("12.34", None),
            ("7609,98", None),
            ("", None),
            ("12a", None),
        ] {
            assert_eq!(count(word), expected, "{word:?}");
        }
        for (word, expected) in [
            ("0.92us", Some(920)),
            ("0,92us", Some(920)),
            ("31765,89us", Some(31_765_890)),
            ("31.765,89us", Some(31_765_890)),
            ("31,765.89us", Some(31_765_890)),
            ("12us", Some(12_000)),
            ("0.0136ms", Some(13_600)),
            ("13,630ns", Some(13_630)),
            ("1.2.3us", None),
            ("1.23", None),
        ] {
            assert_eq!(nanoseconds(word), expected, "{word:?}");
        }
    }

    #[test]
    fn rows_of_both_forms() {
        let of = |line: &str| {
            let row = PerfKvmRow::read(line)?;
            Some((row.name, row.tally.count, row.tally.time_ns, row.tally.max_ns, row.is_cut))
        };
        let hlt = |time, max, cut| Some(("hlt".to_owned(), 39, time, max, cut));
        assert_eq!(
            of(" hlt  39  0.09%  2.63%  18.39us 12998.04us 3227.76us ( +-  12.79% )"),
            hlt(125_882_640, 12_998_040, false)
        );
        // As a mail cuts it.
        assert_eq!(
            of(" hlt  39  0.09%  2.63%  18.39us 12998.04us 3227.76us ( +-  12.79%"),
            hlt(125_882_640, 12_998_040, false)
        );
        assert_eq!(
            of("hlt 39 0.09 % 2.63 % 18.39 us 12998.04 us 3227.76 us ( +- 12.79 % )"),
            hlt(125_882_640, 12_998_040, false)
        );
        assert_eq!(of("hlt 39 0.09% 2.63% 18.39us"), hlt(0, 0, true));
        assert_eq!(of("hlt 39 0.09%"), hlt(0, 0, true));
        assert_eq!(of("hlt 39 0.09% 900 1.00% 50 5 23"), hlt(900, 50, false));
        assert_eq!(of("hlt 39 0.09% 2.63% 18.39us 12.0 3227.76us"), None);
        assert_eq!(of("it fell by 13 percent"), None);
    }

    #[test]
    fn names_of_accesses() {
        let of = |name: &str, heading| {
            let (tally, share, is_cut) = (Tally::default(), 1.0, false);
            PerfKvmRow { name: name.to_owned(), tally, share, is_cut, time_share: None }
                .access(heading)
        };
        let sure = |kind, value| Some(AccessObject::Sure(Detail::new(kind, value)));
        assert_eq!(of("0x70:POUT", "IO Port Access"), sure(DetailKind::PortOut, 0x70));
        assert_eq!(of("0x6e0:W", "MSR Access"), sure(DetailKind::MsrWrite, 0x6e0));
        assert_eq!(of("0xfee00300:W", "MMIO Access"), sure(DetailKind::MmioWrite, 0xfee0_0300));
        let either = of("0x6e0:R", "Event name").unwrap();
        assert!(either.can_be_msr());
        assert_eq!(either.detail(true), Detail::new(DetailKind::MsrRead, 0x6e0));
        assert_eq!(of("hlt", "VM-EXIT"), None);
        assert_eq!(of("0xzz:W", "MSR Access"), None);
    }
}
