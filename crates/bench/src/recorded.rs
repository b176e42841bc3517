//! Exits recorded while a cell's client runs once more, as the rows of a VM that represents the cell.

use std::io::{Seek, Write};

use vmtax_analyse::bench::{AN_OPERATION, EXITS};
use vmtax_events::{
    AccessRow, Better, Coverage, ExitRow, KeptRows, Losses, Recording, Sample, TimeRow,
};
use vmtax_lab::Window;
use vmtax_live::IntervalRows;
use vmtax_runs::convert::{self, Assignment};
use vmtax_runs::{ReadOptions, input, record};

/// Rows of a cell's VM.
#[derive(Debug, Default)]
pub(crate) struct RecordedRows {
    pub(crate) rows: KeptRows,
    pub(crate) losses: Losses,
    /// Facts of the recorder.
    pub(crate) coverage: Coverage,
}

impl RecordedRows {
    /// From the `trace.dat` of an emulated host. The inner error names what is missing.
    pub(crate) fn of_trace(
        trace: &[u8],
        vm: u32,
        nested: bool,
    ) -> anyhow::Result<Result<RecordedRows, String>> {
        let mut file = tempfile::tempfile()?;
        file.write_all(trace)?;
        file.rewind()?;
        let recording = input::open_file(file, "the emulated host's recording".to_owned())?;
        let mut window = Window::new(vm, nested);
        let assignment = Assignment {
            names: &[],
            assign: &mut |event, each| {
                if let Some(placed) = window.place(event) {
                    each(event, &placed);
                }
            },
        };
        let done = convert::run_assigned(
            recording,
            &ReadOptions::default(),
            assignment,
            KeptRows::default(),
        )?;
        if let Some(problem) = window.problem() {
            return Ok(Err(problem.to_owned()));
        }
        let Recording { coverage, .. } = done.facts;
        Ok(Ok(RecordedRows { rows: done.rows, losses: done.losses, coverage }))
    }

    /// From the counts of the running kernel. All VMs belong to the cell.
    pub(crate) fn of_rows(rows: IntervalRows, losses: Losses, vm: u32) -> RecordedRows {
        let interval = ReadOptions::default().interval_ns().max(1);
        let now = record::now_ns();
        let interval_start_ns = now - now % interval;
        let mut exits: Vec<ExitRow> = rows
            .exits
            .into_iter()
            .map(|(mut key, tally)| {
                key.vm = vm;
                ExitRow { interval_start_ns, key, tally }
            })
            .collect();
        exits.sort_by_key(|row| row.key);
        let mut accesses: Vec<AccessRow> = rows
            .accesses
            .into_iter()
            .map(|(mut key, tally)| {
                key.vm = vm;
                AccessRow { interval_start_ns, key, tally }
            })
            .collect();
        accesses.sort_by_key(|row| row.key);
        let times = rows.times.into_iter().map(|time| TimeRow { interval_start_ns, vm, ..time });
        let rows = KeptRows { exits, accesses, times: times.collect(), ..KeptRows::default() };
        RecordedRows { rows, losses, coverage: Coverage::default() }
    }

    fn count(&self) -> u64 {
        self.rows.exits.iter().map(|row| row.tally.count).sum()
    }

    /// The sample for tables: exits per operation, or per second. Lower is better.
    pub(crate) fn sample(
        &self,
        (workload, category, repeat): (&str, &str, u32),
        operations: Option<f64>,
        elapsed_ns: u64,
    ) -> Option<Sample> {
        let (unit, whole) = match operations {
            Some(operations) => (AN_OPERATION, operations),
            None => ("exits/s", elapsed_ns as f64 / 1e9),
        };
        (whole > 0.0).then(|| Sample {
            workload: workload.to_owned(),
            category: category.to_owned(),
            repeat,
            metric: EXITS.to_owned(),
            unit: unit.to_owned(),
            value: self.count() as f64 / whole,
            better: Better::Lower,
        })
    }
}
