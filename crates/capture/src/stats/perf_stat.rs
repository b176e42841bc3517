//! What `perf stat` writes: its table for people, its `-x` fields, its `-j` objects.
//!
//! ```text
//!  345,678,901      cycles                   #    1.234 GHz      ( +-  0.77% )  (83.33%)
//!         1.03 msec task-clock               #    0.018 CPUs utilized
//!  <not supported>  instructions
//! 345678901,,cycles,[VARIANCE%,]1030341,100.00,1.234,GHz
//! {"counter-value" : "1.03", "unit" : "msec", "event" : "task-clock", ...}
//! ```
//!
//! A line says of itself which form it has; the separator of `-x` and the locale of the numbers are inferred, and a
//! line that can be read in two ways is refused. Left out on purpose: metrics, which perf derives from the counts.
//! Counts of intervals (`-I`) and of parts of the system (`-A`, `--per-socket`, `--for-each-cgroup`) are not totals
//! and are refused.

use serde_json::{Map, Value};

use super::number;

/// A parsed line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PerfStatLine {
    /// A counter and its total.
    Counter(PerfStatCounter),
    /// A counter that perf could not count.
    NotCounted(String),
    /// No counter: a metric, the time elapsed, a comment.
    Nothing,
}

/// One counter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PerfStatCounter {
    pub(super) name: String,
    /// Empty for a plain count.
    pub(super) unit: String,
    pub(super) value: f64,
}

/// Said of counts of intervals.
const INTERVALS: &str =
    "has a count of an interval (perf stat -I), and vmtax reads totals: run perf stat without -I";
/// Keys of objects that are counts of parts of the system.
const PARTS: [&str; 9] =
    ["cpu", "core", "socket", "die", "cluster", "cache", "node", "thread", "cgroup"];
/// Separators that `-x` is commonly given.
const SEPARATORS: [char; 7] = [',', ';', '\t', '|', ':', ' ', '~'];

/// The line before the table.
pub(super) fn is_head(line: &str) -> bool {
    line.trim_start().starts_with("Performance counter stats for ")
}

/// Whether a line must be one of perf's: names of counters do not begin so.
pub(super) fn is_row(line: &str) -> bool {
    line.starts_with(|c: char| c.is_ascii_digit()) || line.starts_with("<not ")
}

/// Reads a line for which [`is_row`], without spaces at its ends.
///
/// # Errors
/// The problem of a line, to follow its number.
pub(super) fn row(line: &str) -> Result<PerfStatLine, String> {
    if is_elapsed(line) {
        return Ok(PerfStatLine::Nothing);
    }
    if is_interval(line) {
        return Err(INTERVALS.to_owned());
    }
    let mut readings: Vec<PerfStatLine> = of_text(line)?.into_iter().collect();
    for separator in separators(line) {
        readings.extend(of_fields(line, separator)?);
    }
    readings.dedup();
    match readings.as_slice() {
        [row] => Ok(row.clone()),
        [] => Err("begins with a number and is no counter of perf stat".to_owned()),
        _ => Err("can be read in two ways: give the output of perf stat -x ';'".to_owned()),
    }
}

/// Refuses a line that gives the count of one processor, socket, thread or control group.
pub(super) fn check_part(line: &str, is_table: bool) -> Result<(), String> {
    let refuse = |part: &str| {
        Err(format!(
            "has a count of {:?} alone, and vmtax reads totals: run perf stat without -A, --per-socket, --per-thread and the like",
            part.trim().chars().take(40).collect::<String>()
        ))
    };
    for separator in SEPARATORS {
        let Some((part, rest)) = line.split_once(separator) else { continue };
        // The part may be followed by its number of processors.
        let behind = rest.split_once(separator).map(|(_, rest)| rest);
        for rest in std::iter::once(rest).chain(behind) {
            if is_row(rest) && matches!(of_fields(rest, separator), Ok(Some(_))) {
                return refuse(part);
            }
        }
    }
    if is_table && let Some((part, rest)) = line.split_once("  ") {
        let rest = rest.trim_start();
        let behind = rest.split_once("  ").map(|(_, rest)| rest.trim_start());
        if std::iter::once(rest).chain(behind).any(|rest| is_row(rest) && of_text(rest) != Ok(None))
        {
            return refuse(part);
        }
    }
    Ok(())
}

/// Reads an object of `-j`.
pub(super) fn object(object: &Map<String, Value>) -> Result<PerfStatLine, String> {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    if object.contains_key("interval") {
        return Err(INTERVALS.to_owned());
    }
    if let Some(part) = PARTS.into_iter().find(|part| object.contains_key(*part)) {
        return Err(format!("has a count of one {part}, and vmtax reads totals"));
    }
    let (Some(value), Some(name)) = (text("counter-value"), text("event")) else {
        return Ok(PerfStatLine::Nothing);
    };
    counter(value, text("unit").unwrap_or_default(), name)
        .ok_or_else(|| format!("gives {value:?} for {name}, which is no number"))
}

/// A value, `<not counted>` or `<not supported>`, with its unit and name.
fn counter(value: &str, unit: &str, name: &str) -> Option<PerfStatLine> {
    if matches!(value, "<not counted>" | "<not supported>") {
        return Some(PerfStatLine::NotCounted(name.to_owned()));
    }
    let value = number::without_groups(value)?;
    Some(PerfStatLine::Counter(PerfStatCounter {
        name: name.to_owned(),
        unit: unit.to_owned(),
        value,
    }))
}

/// `0.102411999 seconds time elapsed`, with `+-` or not, and the lines of `--table`.
fn is_elapsed(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    matches!(words.as_slice(), [_, "seconds", ..] | [_, "+-", _, "seconds", ..])
        || words.get(1).is_some_and(|word| word.starts_with("(+") || word.starts_with("(-"))
}

/// Lines of `-I` begin with a time with nine decimals.
fn is_interval(line: &str) -> bool {
    let end = line.find(|c: char| !c.is_ascii_digit()).unwrap_or(line.len());
    let (_, rest) = line.split_at(end);
    let decimals = rest.strip_prefix(['.', ',']).unwrap_or_default();
    let digits = decimals.find(|c: char| !c.is_ascii_digit()).unwrap_or(decimals.len());
    digits == 9
}

fn of_group(name: &str, group: &str) -> String {
    format!(
        "has a count of {name} in the control group {group:?} alone, and vmtax reads totals: run perf stat without --for-each-cgroup"
    )
}

/// A line of the table. `None` if it is none.
fn of_text(line: &str) -> Result<Option<PerfStatLine>, String> {
    let (value, rest) = match line.strip_prefix('<').and_then(|line| line.split_once('>')) {
        Some((_, rest)) => (None, rest),
        None => match number::of_perf_text(line) {
            Some((value, rest)) => (Some(value), rest),
            None => return Ok(None),
        },
    };
    if !rest.starts_with([' ', '\t']) {
        return Ok(None);
    }
    // The column of units is one space behind the number, and empty for plain counts.
    let has_unit = !rest[1..].starts_with([' ', '\t']);
    let before_metric = rest.split('#').next().unwrap_or_default();
    let mut words = Vec::new();
    let mut unit = "";
    for word in before_metric.split_whitespace() {
        if let Some(inside) = word.strip_prefix('(') {
            // "task-clock (msec)" before Linux 4.17; else "( +-  0.77% )" or "(83.33%)".
            let inside = inside.strip_suffix(')').unwrap_or_default();
            if inside.starts_with(|c: char| c.is_ascii_alphabetic()) {
                unit = inside;
                continue;
            }
            break;
        }
        words.push(word);
    }
    let (name, group) = match (words.as_slice(), has_unit) {
        ([name], _) => (name, None),
        ([of_value, name], true) => {
            unit = of_value;
            (name, None)
        }
        ([name, group], false) | ([_, name, group], true) => (name, Some(group)),
        _ => return Ok(None),
    };
    if let Some(group) = group.filter(|group| !group.starts_with(|c: char| c.is_ascii_digit())) {
        return Err(of_group(name, group));
    }
    Ok(Some(match value {
        None => PerfStatLine::NotCounted((*name).to_owned()),
        Some(value) => PerfStatLine::Counter(PerfStatCounter {
            name: (*name).to_owned(),
            unit: unit.to_owned(),
            value,
        }),
    }))
}

/// What may be the separator of `-x`: what follows the first number, with its decimals or without.
fn separators(line: &str) -> Vec<char> {
    if let Some((_, rest)) = line.split_once('>') {
        return rest.chars().next().into_iter().collect();
    }
    let Some((first, rest)) = behind_digits(line) else { return Vec::new() };
    let second = behind_digits(rest).filter(|_| matches!(first, '.' | ','));
    let second = second.filter(|_| rest.starts_with(|c: char| c.is_ascii_digit()));
    let mut found = vec![first];
    found.extend(second.map(|(separator, _)| separator).filter(|separator| *separator != first));
    found
}

/// The character behind the digits at the front of a text, and what follows it.
fn behind_digits(text: &str) -> Option<(char, &str)> {
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let mut chars = rest.chars();
    chars.next().map(|c| (c, chars.as_str()))
}

/// The fields of `-x`: value, unit, event, then variance, run time, per cent and metric where they are printed.
fn of_fields(line: &str, separator: char) -> Result<Option<PerfStatLine>, String> {
    let mut fields: Vec<&str> = line.split(separator).collect();
    // "<not counted>", where the separator may be a space.
    if line.starts_with('<') {
        let Some((value, rest)) = line.split_once('>') else { return Ok(None) };
        let Some(rest) = rest.strip_prefix(separator) else { return Ok(None) };
        fields = vec![&line[..=value.len()]];
        fields.extend(rest.split(separator));
    }
    let mut found: Option<PerfStatLine> = None;
    // With a comma for both, the decimals of the value are a field of their own.
    let split = matches!(separator, ',' | '.');
    for value_fields in 1..=if split { 2 } else { 1 } {
        if fields.len() < value_fields + 2 {
            break;
        }
        let value = fields[..value_fields].join(".");
        let [unit, rest @ ..] = &fields[value_fields..] else { continue };
        let (name, rest) = event_name(rest, separator);
        let is_word = |word: &str| !word.starts_with(|c: char| c.is_ascii_digit() || c == '<');
        if name.is_empty() || !is_word(&name) || !is_word(unit) || !fits_behind(rest, &name)? {
            continue;
        }
        if let Some(row) = counter(&value, unit, &name) {
            if found.is_some() {
                return Err(
                    "can be read in two ways: give the output of perf stat -x ';'".to_owned()
                );
            }
            found = Some(row);
        }
    }
    Ok(found)
}

/// The event's name; `cpu/event=0xc0,umask=0x1/` contains separators.
fn event_name<'f, 'a>(fields: &'f [&'a str], separator: char) -> (String, &'f [&'a str]) {
    let is_open = |name: &str| name.matches('/').count() % 2 == 1;
    let mut name = String::new();
    for (at, field) in fields.iter().enumerate() {
        name.push_str(field);
        if !is_open(&name) {
            return (name, &fields[at + 1..]);
        }
        name.push(separator);
    }
    // It has a slash and no end: the name is the first field.
    let first = fields.first().copied().unwrap_or_default();
    (first.to_owned(), fields.get(1..).unwrap_or_default())
}

/// Whether this can follow the event: nothing, or a run time, optionally after the variance of `-r`.
fn fits_behind(mut fields: &[&str], name: &str) -> Result<bool, String> {
    let is_number = |field: &str| !field.is_empty() && field.bytes().all(|b| b.is_ascii_digit());
    let is_per_cent =
        |field: &str| field.strip_suffix('%').is_some_and(|n| number::without_groups(n).is_some());
    // "3.10%", or the two fields of "3,10%".
    match fields {
        [per_cent, ..] if is_per_cent(per_cent) => fields = &fields[1..],
        [whole, per_cent, ..] if is_number(whole) && is_per_cent(per_cent) => fields = &fields[2..],
        [group, run_time, ..] if !group.is_empty() && !is_number(group) && is_number(run_time) => {
            return Err(of_group(name, group));
        }
        _ => {}
    }
    Ok(fields.first().is_none_or(|run_time| is_number(run_time)))
}
