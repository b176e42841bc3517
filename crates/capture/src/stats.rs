//! Bytes of a list of counters -> [`Stat`]s.
//!
//! - JSON of `vmtax doctor --pages`: mapped pages of each VM;
//! - what `perf stat` prints, also with `-x` and `-j`: counters of the processor and the kernel;
//! - what kvm_stat prints: its list, its screen, its log (summed), also as CSV;
//! - `NAME VALUE` lines: KVM's statistics, as debugfs has them.
//!
//! Counters without a value are omitted: a missing counter is not 0.

mod number;
mod perf_stat;

use std::io::Read;

use serde::Deserialize;
use vmtax_events::{Losses, Stat};

use crate::Error;
use crate::import::counts::{KvmStatCounters, counters, is_kvm_stat};
use perf_stat::{PerfStatCounter, PerfStatLine};

/// Most bytes of an input.
const MOST_BYTES: u64 = 16 << 20;
/// Bytes of a name or unit.
const LONGEST_NAME: usize = 256;
/// Counters that a note names.
const MOST_NAMED: usize = 20;

/// Reads all of them.
///
/// # Errors
/// When nothing in the input is a counter, and when a line that must be one cannot be read without doubt.
pub fn read(input: &mut dyn Read) -> Result<(Vec<Stat>, Losses), Error> {
    let mut bytes = Vec::new();
    let got = input.take(MOST_BYTES + 1).read_to_end(&mut bytes);
    got.map_err(|source| Error::Io { offset: 0, source })?;
    let refuse = |problem: &str| Err(Error::malformed(0, "counters", problem));
    if bytes.len() as u64 > MOST_BYTES {
        return refuse("are more than 16 MiB");
    }
    let Ok(text) = std::str::from_utf8(&bytes) else {
        return refuse("are not text");
    };
    let mut list = match text {
        _ if text.trim_start().starts_with('{') => of_json(text)?,
        _ if is_kvm_stat(text) => of_kvm_stat(text)?,
        _ => of_lines(text)?,
    };
    if list.stats.is_empty() {
        return refuse(&format!(
            "hold none{}: give the output of perf stat, the JSON of vmtax doctor --pages, or lines of NAME VALUE",
            if list.not_counted.is_empty() { "" } else { " that was counted" }
        ));
    }
    let mut losses = Losses::default();
    if !list.not_counted.is_empty() {
        list.not_counted.truncate(MOST_NAMED);
        let names = list.not_counted.join(", ");
        losses.notes.push(format!("counters: perf stat could not count {names}"));
    }
    if list.cut > 0 {
        losses.truncated.push(format!(
            "counters: {} lines of kvm_stat have not a number for each name: not counted",
            list.cut
        ));
    }
    if list.has_lines && !text.ends_with('\n') {
        losses.notes.push(
            "counters: the last line has no end: if the file was cut there, its value is wrong"
                .to_owned(),
        );
    }
    Ok((list.stats, losses))
}

/// Whether a text is kvm_stat's, and counts no exit by its reason: then it is counters alone.
pub fn are_kvm_counters(text: &str) -> bool {
    is_kvm_stat(text) && !text.contains("kvm_exit(")
}

/// The counters read.
#[derive(Default)]
struct CounterList {
    stats: Vec<Stat>,
    not_counted: Vec<String>,
    /// It is a list of lines, of which the last may be cut.
    has_lines: bool,
    /// Lines of kvm_stat that lack a number.
    cut: u64,
}

impl CounterList {
    fn add(&mut self, row: PerfStatLine) -> Result<(), String> {
        match row {
            PerfStatLine::Nothing => {}
            PerfStatLine::NotCounted(name) => self.not_counted.push(name),
            PerfStatLine::Counter(PerfStatCounter { name, unit, value }) => {
                let unit = if unit.is_empty() { "count" } else { &unit };
                self.stats.push(stat(&name, unit, value)?);
            }
        }
        Ok(())
    }
}

/// Names a line in an error.
fn at_line(number: usize) -> impl Fn(String) -> Error {
    move |problem| Error::malformed(0, "counters", format!("line {} {problem}", number + 1))
}

/// Both programs write objects, perf one in each line.
fn of_json(text: &str) -> Result<CounterList, Error> {
    let is_perf = text.lines().next().is_some_and(|line| line.contains("\"counter-value\""));
    if !is_perf {
        return Ok(CounterList { stats: of_pages(text)?, ..CounterList::default() });
    }
    let mut list = CounterList { has_lines: true, ..CounterList::default() };
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at_line = at_line(number);
        let object = serde_json::from_str(line).map_err(|error| {
            // perf prints 100,00 where the locale has a decimal comma.
            at_line(format!("is no JSON ({error}): run perf stat -j with LC_ALL=C"))
        })?;
        list.add(perf_stat::object(&object).map_err(&at_line)?).map_err(&at_line)?;
    }
    Ok(list)
}

#[derive(Deserialize)]
struct StatsPages {
    schema: String,
    vms: Vec<PagesVm>,
}

#[derive(Deserialize)]
struct PagesVm {
    pid: u32,
    mapped: MappedPages,
}

#[derive(Deserialize)]
struct MappedPages {
    bytes_4k: Option<u64>,
    bytes_2m: Option<u64>,
    bytes_1g: Option<u64>,
}

fn of_pages(text: &str) -> Result<Vec<Stat>, Error> {
    let problem = |problem: String| Error::malformed(0, "counters", problem);
    let pages: StatsPages = serde_json::from_str(text)
        .map_err(|error| problem(format!("are no JSON of vmtax doctor --pages ({error})")))?;
    if pages.schema != "vmtax-pages-1" {
        return Err(problem(format!("are of the schema {:?}, not vmtax-pages-1", pages.schema)));
    }
    let of_vm = |vm: &PagesVm| {
        let bytes = [vm.mapped.bytes_4k, vm.mapped.bytes_2m, vm.mapped.bytes_1g];
        let stats = Stat::PAGES.into_iter().zip(bytes).filter_map(|((name, size), bytes)| {
            Some(Stat {
                time_ns: 0,
                vm: vm.pid,
                name: name.to_owned(),
                unit: "pages".to_owned(),
                value: (bytes? / size) as f64,
            })
        });
        stats.collect::<Vec<_>>()
    };
    Ok(pages.vms.iter().flat_map(of_vm).collect())
}

/// Counters of kvm_stat; its log has a line each second, which are summed.
fn of_kvm_stat(text: &str) -> Result<CounterList, Error> {
    let KvmStatCounters { sums: counters, cut, .. } = counters(text);
    let each = |(name, count): (&str, u64)| {
        let unit =
            if Stat::PAGES.iter().any(|(known, _)| *known == name) { "pages" } else { "count" };
        stat(name, unit, count as f64).map_err(|problem| Error::malformed(0, "kvm_stat", problem))
    };
    let stats = counters.into_iter().map(each).collect::<Result<_, _>>()?;
    Ok(CounterList { stats, has_lines: true, cut, ..CounterList::default() })
}

fn of_lines(text: &str) -> Result<CounterList, Error> {
    let mut list = CounterList { has_lines: true, ..CounterList::default() };
    // Behind the head of perf's table only its rows are counters.
    let has_table = text.lines().any(perf_stat::is_head);
    // Counters of tables above: a second table counts other events.
    let mut above = 0;
    for (number, line) in text.lines().enumerate() {
        let at_line = at_line(number);
        if perf_stat::is_head(line) {
            above = list.stats.len();
        }
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if perf_stat::is_row(line) {
            list.add(perf_stat::row(line).map_err(&at_line)?).map_err(&at_line)?;
            let (others, own) = list.stats.split_at(above);
            if own.last().is_some_and(|new| others.iter().any(|known| known.name == new.name)) {
                let problem = "is of a second table of perf stat: give each in a file of its own";
                return Err(at_line(problem.to_owned()));
            }
            continue;
        }
        perf_stat::check_part(line, has_table).map_err(&at_line)?;
        if !has_table && let Some(stat) = of_words(line).map_err(&at_line)? {
            list.stats.push(stat);
        }
    }
    Ok(list)
}

/// A line of NAME VALUE. `None` when its second word does not begin as a number.
fn of_words(line: &str) -> Result<Option<Stat>, String> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(value)) = (words.next(), words.next()) else { return Ok(None) };
    if !value.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(None);
    }
    let value = number::of_list(value).filter(|value| *value >= 0.0).ok_or_else(|| {
        format!("gives {value:?} for {name}, which is no count without doubt: write it without separators")
    })?;
    // kvm_stat prints the count of the last second behind the total.
    if let Some(word) = words.find(|word| number::of_list(word).is_none()) {
        return Err(format!("has {word:?} behind NAME VALUE"));
    }
    let unit = if Stat::PAGES.iter().any(|(known, _)| *known == name) { "pages" } else { "count" };
    stat(name, unit, value).map(Some)
}

fn stat(name: &str, unit: &str, value: f64) -> Result<Stat, String> {
    if name.len() > LONGEST_NAME || unit.len() > LONGEST_NAME {
        return Err(format!("has a name of more than {LONGEST_NAME} bytes"));
    }
    Ok(Stat { time_ns: 0, vm: Stat::HOST, name: name.to_owned(), unit: unit.to_owned(), value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Vec<(u32, String, String, f64)> {
        let (stats, losses) = read(&mut text.as_bytes()).unwrap();
        assert_eq!(losses.notes.is_empty(), text.starts_with('{') || text.ends_with('\n'));
        stats.into_iter().map(|stat| (stat.vm, stat.name, stat.unit, stat.value)).collect()
    }

    fn of_host(name: &str, unit: &str, value: f64) -> (u32, String, String, f64) {
        (Stat::HOST, name.to_owned(), unit.to_owned(), value)
    }

    #[test]
    fn what_kvm_counts() {
        let expected = [of_host("pages_4k", "pages", 12.0), of_host("exits", "count", 34.0)];
        assert_eq!(named("pages_4k 12\nexits      34\nno number\n"), expected);
    }

    #[test]
    fn logs_of_kvm_stat_are_summed() {
        let csv = "timestamp,kvm_exit,kvm_entry,halt_wakeup\n2024-05-01 10:00:00,10,11,1\n2024-05-01 10:00:01,20,21,2\n";
        let log = "kvm_exit kvm_entry halt_wakeup\n2024-05-01 10:00:00        10        11         1\n2024-05-01 10:00:01        20        21         2\n";
        let expected = [
            of_host("halt_wakeup", "count", 3.0),
            of_host("kvm_entry", "count", 32.0),
            of_host("kvm_exit", "count", 30.0),
        ];
        assert_eq!(named(csv), expected);
        assert_eq!(named(log), expected);
        let screen = "kvm statistics - summary\n\n Event                     Total %Total CurAvg/s\n kvm_exit   10   33.3   1\n kvm_entry     11   34.0   2\n Total  21   3\n";
        assert_eq!(
            named(screen),
            [of_host("kvm_entry", "count", 11.0), of_host("kvm_exit", "count", 10.0)]
        );
    }

    #[test]
    fn a_list_that_may_be_cut_says_so() {
        assert_eq!(named("exits 3"), [of_host("exits", "count", 3.0)]);
    }

    #[test]
    fn what_vmtax_pages_writes() {
        let text = r#"{"schema":"vmtax-pages-1","vms":[{"pid":7,"name":"a","mapped":{"bytes_4k":8192,"bytes_2m":4194304,"bytes_1g":null}}]}"#;
        let expected = [
            (7, "pages_4k".to_owned(), "pages".to_owned(), 2.0),
            (7, "pages_2m".to_owned(), "pages".to_owned(), 2.0),
        ];
        assert_eq!(named(text), expected);
    }

    #[test]
    fn invalid_counter_lists_are_refused() {
        for text in ["", "hello world\n", "{\"schema\":\"x\",\"vms\":[]}", "{", "a -1\n", "a NaN\n"]
        {
            assert!(read(&mut text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
