//! `vmtax mem bench`: speed of the page operations.

use anyhow::Context;
use serde_json::json;
use vmtax_analyse::samples::median;
use vmtax_cli::exit::{Code, fail};
use vmtax_events::setting::cpuinfo;
use vmtax_pageops::speed::{MeasuredSpeed, SpeedMemory, measure};
use vmtax_pageops::{Cpu, memory};
use vmtax_report::numbers::size;
use vmtax_report::table::{Cell, Column, Table};
use vmtax_report::tables::{Tables, TitledTable};

use super::accel::OpenedBackend;
use super::flags::MemBenchArgs;

/// Memory needed at a time, as a multiple of --size: [`SpeedMemory`] and the memory of a device's test.
const COPIES: u64 = 5;

/// Bytes of memory available without swapping.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

const IN_RAM: &str =
    "/proc/self/smaps_rollup, which tells whether memory is in RAM, cannot be read";

/// The memory must be in RAM: pages never written to are all mapped to one page of zeros, which is read from the cache.
fn check_in_ram(before: u64, needed: u64) -> anyhow::Result<()> {
    let found = memory::in_ram().context(IN_RAM)?.saturating_sub(before);
    // The program itself may have released a few pages.
    if found + needed / 256 >= needed {
        return Ok(());
    }
    let (found, needed) = (size(found), size(needed));
    let what = format!("{found} of the {needed} to be measured are in RAM, so no speed is shown");
    fail(Code::Unexpected, format!("{what}; free some memory, or choose a smaller --size"))
}

/// Speeds are those of this processor: its name, or its model by number where it hides its name, and how many there are.
fn processor(info: &str) -> String {
    let part = |name| cpuinfo::field(info, name).unwrap_or("unknown");
    format!(
        "{} (family {}, model {}), {} CPUs",
        part("model name"),
        part("cpu family"),
        part("model"),
        cpuinfo::count(info)
    )
}

/// A line of the table: GB/s of each backend.
struct BackendSpeeds {
    operation: &'static str,
    speeds: Vec<Option<f64>>,
}

pub(super) fn run(args: &MemBenchArgs) -> anyhow::Result<()> {
    if let Some(free) = available()
        && COPIES * (args.size << 20) > free
    {
        let (needed, free) = (size(COPIES * (args.size << 20)), size(free));
        let what = format!("--size {}: takes {needed} and {free} are free", args.size);
        return fail(Code::Usage, format!("{what}; choose a smaller one"));
    }
    let before = memory::in_ram().context(IN_RAM)?;
    let mut memory = SpeedMemory::new((args.size << 20) as usize);
    let needed = memory.bytes();
    check_in_ram(before, needed)?;
    let backends = Cpu::variants();
    let mut names: Vec<&'static str> = backends.iter().map(Cpu::name).collect();
    let measured = measure(&backends, &mut memory, args.rounds);
    let mut rows: Vec<BackendSpeeds> =
        measured.iter().map(|one| row(one, args.size << 20)).collect();
    // None of it was swapped out meanwhile.
    check_in_ram(before, needed)?;
    drop(memory);
    if let Some((name, speeds)) =
        OpenedBackend::new(&args.backend.accel)?.bench((args.size << 20) as usize, args.rounds)
    {
        names.push(name);
        for row in &mut rows {
            row.speeds.push(speeds.iter().find(|s| s.0 == row.operation).map(|s| s.1));
        }
    }
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    args.to.write(&tables(args, &processor(&info), &names, &rows))
}

/// Medians of the rounds, over this many bytes.
fn row(measured: &MeasuredSpeed, bytes: u64) -> BackendSpeeds {
    let speed = |seconds: &Vec<f64>| Some(bytes as f64 / median(seconds)? / 1e9);
    BackendSpeeds {
        operation: measured.operation,
        speeds: measured.seconds.iter().map(speed).collect(),
    }
}

fn tables(
    args: &MemBenchArgs,
    processor: &str,
    names: &[&'static str],
    rows: &[BackendSpeeds],
) -> Tables {
    let mut table = Table::of(rows)
        .column(Column::words("operation", "operation"), |row| Cell::Word(row.operation));
    for (at, name) in names.iter().enumerate() {
        table = table.column(Column::number(name, *name), |row| {
            Cell::of(row.speeds.get(at).copied().flatten(), Cell::Quotient)
        });
    }
    let table = table.table();
    let title = format!("GB/s over {} MiB, median of {}", args.size, args.rounds);
    Tables {
        command: "mem bench",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: vec![("processor", processor.to_owned())],
        answer: Vec::new(),
        emulation: None,
        sections: vec![TitledTable { id: "operations", title, notes: Vec::new(), table }],
        json: as_json(args, processor, names, rows),
    }
}

fn as_json(
    args: &MemBenchArgs,
    processor: &str,
    names: &[&'static str],
    rows: &[BackendSpeeds],
) -> serde_json::Value {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let speeds: serde_json::Map<String, serde_json::Value> = names
                .iter()
                .map(|name| (*name).to_owned())
                .zip(row.speeds.iter().map(|s| json!(s)))
                .collect();
            json!({ "operation": row.operation, "gb_per_second": speeds })
        })
        .collect();
    json!({
        "schema": "vmtax-mem-bench-1",
        "processor": processor,
        "bytes": args.size << 20,
        "rounds": args.rounds,
        "operations": rows,
    })
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use vmtax_pageops::PAGE;

    use super::*;

    #[test]
    fn the_processor_is_named() {
        let info = "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 167\nmodel name\t: Intel(R) Xeon(R) Processor\n\nprocessor\t: 1\n";
        assert_eq!(processor(info), "Intel(R) Xeon(R) Processor (family 6, model 167), 2 CPUs");
        assert_eq!(processor(""), "unknown (family unknown, model unknown), 0 CPUs");
    }

    /// More than other tests of this program have at a time.
    const LEN: usize = 256 << 20;

    #[test]
    fn measured_memory_is_resident() {
        let before = memory::in_ram().expect("told");
        // As the compiler makes it of a vector that is filled with zeros.
        let untouched = vec![0u8; LEN];
        assert!(black_box(&untouched).iter().step_by(PAGE).all(|byte| *byte == 0));
        let error =
            check_in_ram(before, LEN as u64).expect_err("pages of nobody were taken for memory");
        assert!(error.to_string().contains("no speed is shown"), "{error}");
        drop(untouched);
        let before = memory::in_ram().expect("told");
        let memory = SpeedMemory::new(LEN / 4);
        // A test that ends meanwhile gives its memory back.
        let found = memory::in_ram().expect("told") - before;
        assert!(found > memory.bytes() * 9 / 10, "{found} of {}", memory.bytes());
    }
}
