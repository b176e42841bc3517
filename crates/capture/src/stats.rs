//! Bytes of a list of counters -> [`Stat`]s.
//!
//! - JSON of `vmtax pages`: mapped pages of each VM;
//! - CSV of `perf stat -x,`: counters of the processor and the kernel;
//! - `NAME VALUE` lines: KVM's statistics, as debugfs and kvm_stat have them.
//!
//! What was not counted is left out: a counter that is missing is not 0.

use std::io::Read;

use serde::Deserialize;
use vmtax_events::{Losses, Stat};

use crate::Error;

/// Larger inputs are no list of counters.
const MOST_BYTES: u64 = 16 << 20;

/// Reads all of them.
///
/// # Errors
/// When nothing in the input is a counter.
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
    let is_json = text.trim_start().starts_with('{');
    let stats = if is_json { of_pages(text)? } else { of_lines(text) };
    if stats.is_empty() {
        return refuse(
            "hold none: give the JSON of vmtax pages, the CSV of perf stat -x, or lines of NAME VALUE",
        );
    }
    let mut losses = Losses::default();
    if !is_json && !text.ends_with('\n') {
        losses.notes.push(
            "counters: the last line has no end: if the file was cut there, its value is wrong"
                .to_owned(),
        );
    }
    Ok((stats, losses))
}

#[derive(Deserialize)]
struct Pages {
    schema: String,
    vms: Vec<PagesVm>,
}

#[derive(Deserialize)]
struct PagesVm {
    pid: u32,
    mapped: Mapped,
}

#[derive(Deserialize)]
struct Mapped {
    bytes_4k: Option<u64>,
    bytes_2m: Option<u64>,
    bytes_1g: Option<u64>,
}

fn of_pages(text: &str) -> Result<Vec<Stat>, Error> {
    let problem = |problem: String| Error::malformed(0, "counters", problem);
    let pages: Pages = serde_json::from_str(text)
        .map_err(|error| problem(format!("are no JSON of vmtax pages ({error})")))?;
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

fn of_lines(text: &str) -> Vec<Stat> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| of_csv(line).or_else(|| of_words(line))).collect()
}

/// A line of `perf stat -x,`: value, unit, event, and what does not matter here.
fn of_csv(line: &str) -> Option<Stat> {
    let mut fields = line.split(',');
    let value = fields.next()?.trim();
    let unit = fields.next()?.trim();
    let name = fields.next()?.trim();
    // A unit stands behind values of its own only; "<not counted>" is no value.
    stat(name, if unit.is_empty() { "count" } else { unit }, value)
}

fn of_words(line: &str) -> Option<Stat> {
    let mut words = line.split_whitespace();
    let (name, value) = (words.next()?, words.next()?);
    let unit = if Stat::PAGES.iter().any(|(known, _)| *known == name) { "pages" } else { "count" };
    stat(name, unit, value)
}

fn stat(name: &str, unit: &str, value: &str) -> Option<Stat> {
    let value: f64 = value.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)?;
    if name.is_empty() || name.len() > 256 {
        return None;
    }
    Some(Stat { time_ns: 0, vm: Stat::HOST, name: name.to_owned(), unit: unit.to_owned(), value })
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
    fn a_list_that_may_be_cut_says_so() {
        assert_eq!(named("exits 3"), [of_host("exits", "count", 3.0)]);
    }

    #[test]
    fn what_perf_stat_counts() {
        let text = "# started on Sat\n\n1234,,dTLB-load-misses,1000000,100.00,,\n<not supported>,,cycles,0,100.00,,\n\
                    12.50,msec,task-clock,12500000,100.00,0.1,CPUs utilized\n";
        let expected =
            [of_host("dTLB-load-misses", "count", 1234.0), of_host("task-clock", "msec", 12.5)];
        assert_eq!(named(text), expected);
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
    fn what_is_no_list_of_counters_is_refused() {
        for text in ["", "hello world\n", "{\"schema\":\"x\",\"vms\":[]}", "{", "a -1\n", "a NaN\n"]
        {
            assert!(read(&mut text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
