//! `vmtax mem bench`: speed of the page operations.

use anyhow::Context;
use serde_json::json;
use vmtax_analyse::samples::median;
use vmtax_cli::exit::{Code, fail};
use vmtax_events::setting::cpuinfo;
use vmtax_pageops::speed::{MeasuredSpeed, SpeedMemory, measure};
use vmtax_pageops::{Cpu, PAGE, process_memory};
use vmtax_report::numbers::size;
use vmtax_report::table::{Cell, Column, Table};
use vmtax_report::tables::{Tables, TitledTable};

use super::accel::OpenedBackend;
use super::flags::MemBenchArgs;

/// What the column of a model is, and what it is not.
const MODEL: &str = "model: descriptors executed in software by a thread of this program. Its column is the speed of that, not of a device.";

/// Seconds in which one engine of Intel DSA compared two buffers of 1 GiB in pages of 4 KiB, submitted one by one: Xeon 8457C, published on QEMU's
/// list in 2023 with the RFC that offloads zero-page checking to DSA.
const PUBLISHED: f64 = 0.089;
/// Pages of those buffers.
const PUBLISHED_PAGES: f64 = (1u64 << 30) as f64 / PAGE as f64;
/// Engines that are computed.
const ENGINES: [u32; 4] = [1, 2, 4, 8];
/// Pages of a batch that are computed.
const BATCHES: [u32; 5] = [1, 8, 32, 128, 512];

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
    let found = process_memory::in_ram().context(IN_RAM)?.saturating_sub(before);
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
    let before = process_memory::in_ram().context(IN_RAM)?;
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

/// What a device would give beside one thread of this processor, by the published time of a page. Computed.
struct PredictedDevice {
    /// Seconds that the fastest code of this processor takes to compare two pages.
    page: f64,
}

impl PredictedDevice {
    fn of(rows: &[BackendSpeeds]) -> Option<PredictedDevice> {
        let compare = rows.iter().find(|row| row.operation == "compare")?;
        // The last is the model's own.
        let processor = compare.speeds.split_last()?.1;
        let fastest = processor.iter().copied().flatten().fold(0.0, f64::max);
        (fastest > 0.0).then(|| PredictedDevice { page: PAGE as f64 / (fastest * 1e9) })
    }

    /// GB/s of this many engines, all of them busy.
    fn speed(engines: u32) -> f64 {
        f64::from(engines) * PAGE as f64 * PUBLISHED_PAGES / PUBLISHED / 1e9
    }

    /// Times as fast as one thread here.
    fn ratio(&self, engines: u32) -> f64 {
        f64::from(engines) * self.page * PUBLISHED_PAGES / PUBLISHED
    }

    /// Nanoseconds that submitting a batch and taking its results may take, if the thread is to spend less than by comparing itself.
    fn break_even(&self, pages: u32) -> f64 {
        f64::from(pages) * self.page * 1e9
    }

    fn sections(&self) -> Vec<TitledTable> {
        let engines = Table::of(&ENGINES)
            .column(Column::number("engines", "engines"), |engines| {
                Cell::Count(u64::from(**engines))
            })
            .column(Column::number("gb_per_second", "GB/s"), |engines| {
                Cell::Quotient(PredictedDevice::speed(**engines))
            })
            .column(Column::number("times_a_thread", "times a thread here"), |engines| {
                Cell::Quotient(self.ratio(**engines))
            });
        let batches = Table::of(&BATCHES)
            .column(Column::number("pages", "pages a batch"), |pages| {
                Cell::Count(u64::from(**pages))
            })
            .column(Column::number("break_even_ns", "may take, ns"), |pages| {
                Cell::Count(self.break_even(**pages) as u64)
            });
        let page = PUBLISHED / PUBLISHED_PAGES * 1e6;
        vec![
            TitledTable {
                id: "predicted-engines",
                title: "Model: comparing pages with engines that are always busy (computed)".to_owned(),
                notes: vec![format!(
                    "One engine takes {page:.2} us a page (published, Xeon 8457C); one thread here takes {:.2} us.",
                    self.page * 1e6
                )],
                table: engines.table(),
            },
            TitledTable {
                id: "predicted-batches",
                title: "Model: what a batch's submission and completion may cost (computed)".to_owned(),
                notes: vec!["A batch saves processor time only if the thread takes less than this to submit it and to take its results.".to_owned()],
                table: batches.table(),
            },
        ]
    }
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
    let is_model = names.last() == Some(&"model");
    let mut sections = vec![TitledTable {
        id: "operations",
        title,
        notes: is_model.then(|| MODEL.to_owned()).into_iter().collect(),
        table,
    }];
    let predicted = if is_model { PredictedDevice::of(rows) } else { None };
    sections.extend(predicted.iter().flat_map(PredictedDevice::sections));
    Tables {
        command: "mem bench",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: vec![("processor", processor.to_owned())],
        answer: Vec::new(),
        emulation: None,
        sections,
        json: as_json(args, processor, names, rows, predicted.as_ref()),
    }
}

fn as_json(
    args: &MemBenchArgs,
    processor: &str,
    names: &[&'static str],
    rows: &[BackendSpeeds],
    predicted: Option<&PredictedDevice>,
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
    let predicted = predicted.map(|predicted| {
        json!({
            "engines": ENGINES.map(|engines| json!({
                "engines": engines,
                "gb_per_second": PredictedDevice::speed(engines),
                "times_a_thread": predicted.ratio(engines),
            })),
            "batches": BATCHES.map(|pages| json!({ "pages": pages, "break_even_ns": predicted.break_even(pages) })),
        })
    });
    json!({
        "schema": "vmtax-mem-bench-1",
        "processor": processor,
        "bytes": args.size << 20,
        "rounds": args.rounds,
        "operations": rows,
        "predicted_device": predicted,
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

    #[test]
    fn a_device_is_predicted_from_the_published_time() {
        let row = |operation, speeds: &[f64]| BackendSpeeds {
            operation,
            speeds: speeds.iter().copied().map(Some).collect(),
        };
        // The model's own speed, which is the last, says nothing of a device.
        let rows = [row("copy", &[99.0, 99.0, 99.0]), row("compare", &[2.048, 4.096, 99.0])];
        let predicted = PredictedDevice::of(&rows).expect("there are speeds");
        assert!((predicted.page - 1e-6).abs() < 1e-12);
        assert!((PredictedDevice::speed(1) - (1u64 << 30) as f64 / 0.089 / 1e9).abs() < 1e-9);
        assert!((predicted.ratio(4) - 4.0 * 262_144.0 / 89_000.0).abs() < 1e-9);
        assert!((predicted.break_even(32) - 32_000.0).abs() < 1e-6);
        assert!(PredictedDevice::of(&rows[..1]).is_none());
    }

    /// More than other tests of this program have at a time.
    const LEN: usize = 256 << 20;

    #[test]
    fn measured_memory_is_resident() {
        let before = process_memory::in_ram().expect("told");
        // As the compiler makes it of a vector that is filled with zeros.
        let untouched = vec![0u8; LEN];
        assert!(black_box(&untouched).iter().step_by(PAGE).all(|byte| *byte == 0));
        let error =
            check_in_ram(before, LEN as u64).expect_err("pages of nobody were taken for memory");
        assert!(error.to_string().contains("no speed is shown"), "{error}");
        drop(untouched);
        let before = process_memory::in_ram().expect("told");
        let memory = SpeedMemory::new(LEN / 4);
        // A test that ends meanwhile gives its memory back.
        let found = process_memory::in_ram().expect("told") - before;
        assert!(found > memory.bytes() * 9 / 10, "{found} of {}", memory.bytes());
    }
}
