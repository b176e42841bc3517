//! Processor time that a host gave to others, and memory that goes to swap: top, mpstat, sar, iostat and vmstat, `/proc/stat`, words.

use std::collections::BTreeMap;

use vmtax_events::observed::Observed;

use super::{MOST_COLUMNS, lines, mean, number, part};

/// `%Cpu(s): 12.0 us, ..., 40.2 st`, of older ones `Cpu(s): 12.0%us, ..., 40.2%st`.
pub(super) fn top(text: &str) -> Option<Vec<Observed>> {
    let of_line = |line| part(&stolen(line)?);
    let steal: Vec<f64> = lines(text).filter_map(of_line).collect();
    Some(vec![Observed::Steal(mean(&steal)?)])
}

/// The number of such a line; it may stand close behind the one before, with a sign.
fn stolen(line: &str) -> Option<String> {
    let (head, rest) = line.split_once(':')?;
    head.trim_start_matches('%').to_ascii_lowercase().starts_with("cpu").then_some(())?;
    let field = rest.split(", ").map(str::trim).find(|field| field.ends_with("st"))?;
    let field = field.trim_end_matches("st").trim().trim_start_matches('+');
    let signed = field.rsplit_once(",-").map(|(_, number)| format!("-{number}"));
    Some(signed.unwrap_or_else(|| field.to_owned()))
}

/// Differences of a counter of stolen time by second, most of which are negative, or two lines of /proc/stat of which the second has less of it. The words
/// before the figures say that they are of steal.
pub(super) fn falling(text: &str) -> Option<Vec<Observed>> {
    const FALLS: usize = 3;
    const STEAL: usize = 8;
    // A tick is a hundredth of a second: less than nothing by rounding is nothing.
    let stolen: Vec<f64> = lines(text)
        .filter(|line| line.contains("id"))
        .filter_map(|line| stolen(line)?.trim_end_matches('%').parse().ok())
        .collect();
    let below = stolen.iter().filter(|value| value.is_finite() && **value <= -1.0).count();
    if 2 * below > stolen.len() {
        return Some(vec![Observed::StealFalls]);
    }
    let mut is_of_steal = false;
    let (mut falls, mut others) = (0usize, 0usize);
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    let mut decreases = false;
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(16).collect();
        match words.as_slice() {
            [one] if one.parse::<i64>().is_ok() => {
                if is_of_steal {
                    falls += usize::from(one.starts_with('-'));
                    others += usize::from(!one.starts_with('-'));
                }
            }
            [name, ..] if name.starts_with("cpu") && words.len() > STEAL => {
                if let Ok(steal) = words[STEAL].parse::<u64>() {
                    decreases |= last.insert(name, steal).is_some_and(|before| steal < before);
                }
            }
            [] => {}
            _ if line.starts_with("```") || line == "..." || line.contains("test $num") => {}
            _ => {
                is_of_steal = line.to_ascii_lowercase().contains("steal")
                    || is_of_steal && line.starts_with('#')
            }
        }
    }
    (falls >= FALLS && falls > others || decreases).then(|| vec![Observed::StealFalls])
}

/// `top showed 95% steal`, `steal time: 40 %`: of a sentence that supposes nothing.
pub(super) fn in_words(text: &str) -> Option<Vec<Observed>> {
    /// Words by which it is advice or a bound.
    const SUPPOSING: [&str; 11] = [
        "if", "when", "should", "would", "could", "may", "might", "above", "over", "exceeds",
        "than",
    ];
    let clean = |word: &str| {
        word.trim_matches(|c: char| !c.is_alphanumeric() && c != '%').to_ascii_lowercase()
    };
    let mut found = Vec::new();
    for line in lines(text) {
        for sentence in line.split(". ") {
            let mut words: Vec<String> = Vec::new();
            for word in sentence.split_whitespace().take(64).map(clean) {
                match words.last_mut().filter(|_| word == "%") {
                    Some(number) => number.push('%'),
                    None if word.is_empty() => {}
                    None => words.push(word),
                }
            }
            if words.iter().any(|word| SUPPOSING.contains(&word.as_str())) {
                continue;
            }
            for (at, word) in words.iter().enumerate() {
                let Some(share) = word.strip_suffix('%').and_then(part) else { continue };
                let is = |word: Option<&String>| {
                    word.is_some_and(|word| ["steal", "stolen", "st"].contains(&word.as_str()))
                };
                let before = |n: usize| at.checked_sub(n).and_then(|at| words.get(at));
                let of = |word: Option<&String>| {
                    word.is_some_and(|word| ["time", "of", "is", "at"].contains(&word.as_str()))
                };
                if is(words.get(at + 1))
                    || is(before(1)) && before(2).is_none_or(|word| word == "cpu")
                    || of(before(1)) && is(before(2))
                    || of(before(1)) && of(before(2)) && is(before(3))
                {
                    found.push(share);
                }
            }
        }
    }
    Some(vec![Observed::Steal(mean(&found)?)])
}

/// Columns of mpstat, sar and iostat (`%steal`), and of vmstat (`si`, `so`, `st`), by their places from the end: the times before are of
/// several words.
pub(super) fn tables(text: &str) -> Option<Vec<Observed>> {
    let mut header: Option<Vec<&str>> = None;
    let mut steal = Vec::new();
    let (mut swap_in, mut swap_out) = (Vec::new(), Vec::new());
    for line in lines(text) {
        let words: Vec<&str> = line.split_whitespace().take(MOST_COLUMNS).collect();
        if words.contains(&"%steal") || words.contains(&"si") && words.contains(&"so") {
            // iostat puts a name before its columns.
            header = Some(words.into_iter().filter(|word| *word != "avg-cpu:").collect());
            continue;
        }
        let Some(names) = &header else { continue };
        let at = |name: &str| {
            let back = names.len() - names.iter().position(|one| *one == name)?;
            let place = words.len().checked_sub(back)?;
            words.get(place).copied()
        };
        let is_row = words.last().is_some_and(|word| number(word).is_some())
            && words.len() <= names.len() + 1
            && words.len() + 1 >= names.len();
        if !is_row {
            header = header.filter(|_| !words.is_empty() && words.len() < 3);
            continue;
        }
        // One line for each processor, and one for all: that alone.
        let of_one = names.contains(&"CPU") && at("CPU").is_some_and(|cpu| cpu != "all");
        if !of_one {
            steal.extend(at("%steal").or_else(|| at("st")).and_then(part));
            swap_in.extend(at("si").and_then(number));
            swap_out.extend(at("so").and_then(number));
        }
    }
    // vmstat's first line is of the time since the boot.
    for all in [&mut swap_in, &mut swap_out] {
        if all.len() > 1 {
            all.remove(0);
        }
    }
    let mut found = Vec::new();
    found.extend(mean(&steal).map(Observed::Steal));
    if let (Some(back), Some(out)) = (mean(&swap_in), mean(&swap_out))
        && back + out > 0.0
    {
        found.push(Observed::Swapping { out, back });
    }
    (!found.is_empty()).then_some(found)
}

/// Processor time that a host gave to others, by the counters since the boot. A counter that holds more than all others of its line a hundred times over
/// shows no time: the others hold the time of the line.
pub(super) fn proc_stat(text: &str) -> Option<Vec<Observed>> {
    const STEAL: usize = 7;
    let mut cpus = 0;
    let mut whole = None;
    for line in lines(text) {
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let Some(cpu) = name.strip_prefix("cpu") else { continue };
        let values: Option<Vec<u64>> = words.take(10).map(|word| word.parse().ok()).collect();
        let Some(values) = values.filter(|values| values.len() > STEAL) else { continue };
        if cpu.is_empty() {
            whole = Some(values);
        } else if cpu.parse::<u32>().is_ok() {
            cpus += 1;
        }
    }
    let values = whole.filter(|_| cpus > 0)?;
    let steal = values[STEAL];
    // Time in guests is in that of users, too.
    let others = values.iter().take(STEAL).fold(0u64, |sum, value| sum.saturating_add(*value));
    if steal / 100 > others {
        return Some(vec![Observed::StealCounter]);
    }
    let all = steal.saturating_add(others);
    (all > 0).then(|| vec![Observed::Steal(steal as f64 / all as f64)])
}
