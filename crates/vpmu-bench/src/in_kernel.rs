//! KVM's own virtual PMU, by running it: the lab's suite `pmu` on arm64 hosts, over kernels. Measured now, or read from the recording that
//! this crate contains.
//!
//! KVM of arm64 answers a guest's accesses with events of the host's perf, as KVM of x86 does with `enable_mediated_pmu=0`. No emulator of x86 has
//! counters that Linux accepts, so the rows of x86 are published and computed ones alone (`src/rows.rs`).

use serde::{Deserialize, Serialize};
use vmtax_analyse::Ledger;
use vmtax_analyse::operations::{OperationRow, Operations};
use vmtax_events::Sample;
use vmtax_lab::LabPlan;
use vmtax_lab::suite::{self, CountedValue, Suite};
use vmtax_report::table::{Cell, Column, Table};
use vmtax_report::tables::TitledTable;

use crate::Error;

/// The recording: `vmtax vpmu bench --kvm debian:6.1,debian:6.12,debian:7.3 --record crates/vpmu-bench/src/in_kernel.json`.
const RECORDED: &str = include_str!("in_kernel.json");
/// Name and version of a recording's shape.
const SCHEMA: &str = "vmtax-vpmu-kvm-1";

/// The measurements of one or more kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelRecording {
    schema: String,
    /// The version of vmtax that measured.
    vmtax: String,
    /// The day of the measurement (UTC), as in 2026-01-31.
    day: String,
    pub(crate) kernels: Vec<MeasuredKernel>,
}

/// The measurements of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredKernel {
    pub(crate) kernel: String,
    pub(crate) accelerator: String,
    processor: String,
    pub(crate) operations: Vec<KernelOperation>,
    counts: Vec<CountedLoop>,
    failures: Vec<String>,
}

/// An operation of the guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KernelOperation {
    pub(crate) operation: String,
    /// What it does.
    about: String,
    /// Exits by accesses to system registers, for one operation.
    accesses: Option<f64>,
    /// Exits by interrupts of the host in the recorded batch, for one operation.
    interrupts: Option<f64>,
    /// Instructions of one operation: the median of the batches, and the shortest and the longest.
    pub(crate) path: f64,
    shortest: f64,
    longest: f64,
}

/// A loop whose instructions a guest counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CountedLoop {
    operation: String,
    /// Instructions of the guest while the counter ran.
    executed: u64,
    /// What its counter had, by batch.
    counted: Vec<u64>,
}

/// The plan of the lab that measures them, with this many batches of each operation.
pub fn plan(batches: u32) -> LabPlan {
    LabPlan { suites: Suite::named("pmu").into_iter().collect(), only: Vec::new(), batches }
}

impl KernelRecording {
    /// The recording that this crate contains.
    pub fn shipped() -> Result<KernelRecording, Error> {
        Ok(serde_json::from_str(RECORDED)?)
    }

    /// Kernels measured on this `day` (UTC), as in 2026-01-31.
    pub fn new(kernels: Vec<MeasuredKernel>, day: String) -> KernelRecording {
        let vmtax = env!("CARGO_PKG_VERSION").to_owned();
        KernelRecording { schema: SCHEMA.to_owned(), vmtax, day, kernels }
    }

    /// Where its figures come from, in a sentence.
    fn source(&self, shipped: bool) -> String {
        if shipped {
            format!(
                "A recording of {} (vmtax {}), replayed; --kvm debian:6.1,debian:7.3 measures here.",
                self.day, self.vmtax
            )
        } else {
            "Measured now.".to_owned()
        }
    }

    pub(crate) fn sections(&self, shipped: bool) -> Vec<TitledTable> {
        let notes = vec![
            self.source(shipped),
            "A bare guest of KVM on an emulated arm64 host programs counters of PMUv3; KVM makes an event of the host's perf of each. \
             Instructions are those of the host and the guest from the guest's access until it continues, median of the batches. Emulated: \
             counts, and no times of hardware."
                .to_owned(),
        ];
        let counted = "The guest reads its counter of INST_RETIRED after a loop, once for each batch. A count that differs from what was executed \
                       is a failure (exit code 7 of vmtax lab run)."
            .to_owned();
        let mut sections = vec![
            TitledTable {
                id: "kvm",
                title: "Measured: KVM's own virtual PMU on arm64".to_owned(),
                notes,
                table: self.operations(),
            },
            TitledTable {
                id: "kvm-counts",
                title: "Instructions that a guest counted on arm64, and executed".to_owned(),
                notes: vec![counted],
                table: self.counts(),
            },
        ];
        if self.kernels.iter().any(|one| !one.failures.is_empty()) {
            sections.push(TitledTable {
                id: "kvm-failures",
                title: "Not measured on arm64".to_owned(),
                notes: Vec::new(),
                table: self.failures(),
            });
        }
        sections
    }

    fn operations(&self) -> Table {
        let whole = |path: f64| Cell::Count(path.round() as u64);
        let each = |value: Option<f64>| value.map_or(Cell::Unknown("?"), Cell::Instructions);
        let rows = self
            .kernels
            .iter()
            .flat_map(|kernel| kernel.operations.iter().map(move |row| (kernel, row)));
        Table::of(rows)
            .grouped(|(kernel, _)| kernel.label())
            .column(Column::data("kernel"), |(kernel, _)| Cell::Name(kernel.kernel.clone()))
            .column(Column::data("accelerator"), |(kernel, _)| {
                Cell::Name(kernel.accelerator.clone())
            })
            .column(Column::short("operation", "one operation"), |(_, row)| {
                Cell::Name(row.operation.clone())
            })
            .column(
                Column::number("accesses", "register exits")
                    .named("exits by accesses to system registers"),
                |(_, row)| each(row.accesses),
            )
            .column(
                Column::number("interrupts", "interrupts").named("exits by interrupts of the host"),
                |(_, row)| each(row.interrupts),
            )
            .column(Column::number("path", "instructions"), move |(_, row)| whole(row.path))
            .column(Column::number("shortest", "shortest"), move |(_, row)| whole(row.shortest))
            .column(Column::number("longest", "longest"), move |(_, row)| whole(row.longest))
            .column(Column::list("about", "the guest's access"), |(_, row)| {
                Cell::Words(row.about.split(' ').map(str::to_owned).collect())
            })
            .table()
    }

    fn counts(&self) -> Table {
        let rows = self
            .kernels
            .iter()
            .flat_map(|kernel| kernel.counts.iter().map(move |row| (kernel, row)));
        let lowest = |row: &CountedLoop| row.counted.iter().copied().min();
        let highest = |row: &CountedLoop| row.counted.iter().copied().max();
        let count = |value: Option<u64>| value.map_or(Cell::Absent, Cell::Count);
        Table::of(rows)
            .grouped(|(kernel, _)| kernel.label())
            .column(Column::data("kernel"), |(kernel, _)| Cell::Name(kernel.kernel.clone()))
            .column(Column::words("operation", "loop"), |(_, row)| {
                Cell::Name(row.operation.clone())
            })
            .column(Column::number("executed", "executed"), |(_, row)| Cell::Count(row.executed))
            .column(Column::number("lowest", "counted, lowest"), move |(_, row)| count(lowest(row)))
            .column(Column::number("highest", "highest"), move |(_, row)| count(highest(row)))
            .column(Column::number("batches", "batches"), |(_, row)| {
                Cell::Count(row.counted.len() as u64)
            })
            .table()
    }

    fn failures(&self) -> Table {
        let rows = self
            .kernels
            .iter()
            .flat_map(|kernel| kernel.failures.iter().map(move |row| (kernel, row)));
        Table::of(rows)
            .column(Column::words("kernel", "kernel"), |(kernel, _)| {
                Cell::Name(kernel.kernel.clone())
            })
            .column(Column::words("problem", "problem"), |(_, it)| Cell::Name((*it).clone()))
            .table()
    }
}

impl MeasuredKernel {
    /// The measurements of a [`plan`]: the run's ledger, and what was not measured.
    pub fn new(ledger: &Ledger, accelerator: String, failures: Vec<String>) -> MeasuredKernel {
        let rows = Operations::new(ledger).rows;
        MeasuredKernel {
            kernel: ledger.recording.kernel.clone(),
            accelerator,
            processor: ledger.recording.cpu.clone(),
            operations: rows.iter().filter_map(KernelOperation::new).collect(),
            counts: rows.iter().filter_map(|row| CountedLoop::new(row, &ledger.samples)).collect(),
            failures,
        }
    }

    /// What a group of rows is headed with.
    pub(crate) fn label(&self) -> String {
        let emulator = self.accelerator.trim_start_matches("emulated:");
        format!("Linux {} on arm64: {emulator}; not hardware", self.kernel)
    }

    /// Instructions of an operation.
    pub(crate) fn path(&self, operation: &str) -> Option<f64> {
        let row = self.operations.iter().find(|row| row.operation == operation);
        row.map(|row| row.path)
    }
}

impl KernelOperation {
    fn new(row: &OperationRow) -> Option<KernelOperation> {
        let path = row.path?;
        let is_loop = suite::operation(&row.name).is_some_and(|one| expected_count(one).is_some());
        if is_loop {
            return None;
        }
        let exits = |reason: &str| {
            let counts = row.exits.iter().filter(|exit| exit.reason.name() == reason);
            row.recorded
                .then(|| row.per_operation(counts.map(|exit| exit.count).sum()).value())
                .flatten()
        };
        Some(KernelOperation {
            operation: row.name.clone(),
            about: suite::operation(&row.name).map_or("", |one| one.summary).to_owned(),
            accesses: exits("SYS64"),
            interrupts: exits("IRQ"),
            path: path.median,
            shortest: path.min,
            longest: path.max,
        })
    }
}

/// Instructions that a guest must count in an operation, if it is a loop for that.
fn expected_count(definition: &suite::Definition) -> Option<u64> {
    match definition.counted()? {
        CountedValue::Instructions(executed) => Some(executed),
        CountedValue::Interrupt(_) => None,
    }
}

impl CountedLoop {
    fn new(row: &OperationRow, all: &[Sample]) -> Option<CountedLoop> {
        let executed = expected_count(suite::operation(&row.name)?)?;
        let own =
            |sample: &&Sample| sample.workload == row.name && sample.metric == Sample::COUNTED;
        let counted = all.iter().filter(own).map(|sample| sample.value as u64).collect();
        Some(CountedLoop { operation: row.name.clone(), executed, counted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_recording_has_three_kernels_whose_counts_are_exact() {
        let recording = KernelRecording::shipped().expect("it can be read");
        assert_eq!(recording.schema, SCHEMA);
        let series: Vec<&str> = recording
            .kernels
            .iter()
            .map(|one| one.kernel.split_inclusive('.').take(2).map(str::len).sum::<usize>())
            .zip(&recording.kernels)
            .map(|(length, one)| one.kernel[..length].trim_end_matches('.'))
            .collect();
        assert_eq!(series, ["6.1", "6.12", "7.3"]);
        for kernel in &recording.kernels {
            assert!(kernel.failures.is_empty(), "{:?}", kernel.failures);
            assert!(kernel.accelerator.starts_with("emulated:QEMU"), "{}", kernel.accelerator);
            let counts: Vec<u64> = kernel.counts.iter().map(|one| one.executed).collect();
            assert_eq!(counts, [4_003, 40_003, 400_004]);
            for one in &kernel.counts {
                assert!(one.counted.len() > 5 && one.counted.iter().all(|n| *n == one.executed));
            }
        }
    }
}
