//! The published rows of a guest's operations, beside those measured on arm64 and those computed in virtual time.
//!
//! Published figures are times of one Intel processor, measured ones instructions of an emulated arm64 host, and computed ones the published
//! costs of creating, stopping and reading events added up. So no ratio is formed over columns.

use vmtax_report::table::{Cell, Column, Table};
use vmtax_report::tables::TitledTable;
use vmtax_vpmu::Policy;
use vmtax_vpmu::host::virtual_time::GuestWork;

use crate::Error;
use crate::guest::{CounterPlace, NO_SAMPLES, PerfGuest, PlacedEvent, Ways};
use crate::in_kernel::KernelRecording;
use crate::published::{self, ASSUMED, OPERATIONS, PublishedOperation};
use crate::script::{CYCLES, MICROSECOND, SIX};

/// Computed times of the host for each of [`OPERATIONS`], ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComputedRow {
    pub(crate) legacy: u64,
    pub(crate) reuse: u64,
}

/// Computes them; the same in every run.
pub(crate) fn computed() -> Result<Vec<ComputedRow>, Error> {
    let (legacy, reuse) = (spent(Policy::Legacy)?, spent(Policy::Reuse)?);
    let both = legacy.into_iter().zip(reuse);
    Ok(both.map(|(legacy, reuse)| ComputedRow { legacy, reuse }).collect())
}

/// Time of the host for each of [`OPERATIONS`], in their order, of a guest whose six counters have been used before.
fn spent(policy: Policy) -> Result<Vec<u64>, Error> {
    /// Longer than the whole run, so that nothing else happens.
    const NEVER: u64 = 1 << 40;
    let ways = Ways { slice: NEVER, exits: NEVER };
    let mut guest = PerfGuest::new(policy, published::costs(ASSUMED), ways)?;
    let six = SIX.map(|place| PlacedEvent { place, period: NO_SAMPLES });
    let work = GuestWork::user(1000, &MICROSECOND);
    let mut measure = |step: &mut dyn FnMut(&mut PerfGuest)| {
        let before = guest.pmu.host().spent();
        step(&mut guest);
        guest.pmu.host().spent() - before
    };
    measure(&mut |guest| {
        guest.switch_in(&six);
        guest.run(&work, 100, || {});
    });
    let disable = measure(&mut |guest| guest.set_global(false));
    let enable = measure(&mut |guest| guest.set_global(true));
    let mut write = |place: CounterPlace| {
        measure(&mut |guest| guest.control(place, false));
        measure(&mut |guest| guest.control(place, true))
    };
    let (fixed, select) = (write(SIX[0]), write(SIX[2]));
    let read = measure(&mut |guest| guest.rdpmc(SIX[2]));
    let out = measure(&mut PerfGuest::switch_out);
    let back = measure(&mut |guest| guest.switch_in(&six));
    let sample = {
        const PERIOD: u64 = 100;
        measure(&mut |guest| {
            guest.switch_out();
            guest.switch_in(&[PlacedEvent { place: SIX[0], period: PERIOD * CYCLES }]);
        });
        measure(&mut |guest| guest.run(&work, PERIOD, || {}))
    };
    Ok(vec![enable, disable, fixed, select, read, sample, back, out])
}

/// The table: a row for each operation and kernel.
pub(crate) fn section(recording: &KernelRecording, computed: &[ComputedRow]) -> TitledTable {
    let rows = recording.kernels.iter().flat_map(|kernel| {
        OPERATIONS.iter().zip(computed).map(move |(row, computed)| (kernel, row, computed))
    });
    let table = Table::of(rows)
        .grouped(|(kernel, ..)| {
            format!("measured: {}; published and computed: Intel", kernel.label())
        })
        .column(Column::data("kernel"), |(kernel, ..)| Cell::Name(kernel.kernel.clone()))
        .column(Column::words("operation", "operation"), |(_, row, _)| Cell::Word(row.operation))
        .column(
            Column::number("published_legacy_ns", "published, legacy")
                .named("published for Intel: legacy, longest"),
            |(_, row, _)| Cell::Time(row.legacy),
        )
        .column(
            Column::number("published_version_2_ns", "version 2")
                .named("published for Intel: version 2, longest"),
            |(_, row, _)| Cell::Time(row.version_2),
        )
        .column(
            Column::number("measured_instructions", "arm64 instructions")
                .named("measured on emulated arm64: instructions"),
            |(kernel, row, _)| {
                let path = kernel.path(row.on_arm);
                path.map_or(Cell::Unknown("?"), |path| Cell::Count(path.round() as u64))
            },
        )
        .column(
            Column::number("computed_legacy_ns", "computed, legacy")
                .named("computed for Intel: legacy"),
            |(.., it)| Cell::Time(it.legacy),
        )
        .column(
            Column::number("computed_reuse_ns", "reuse").named("computed for Intel: reuse"),
            |(.., it)| Cell::Time(it.reuse),
        )
        .column(Column::words("on_arm", "on arm64"), |(_, row, _)| Cell::Word(row.on_arm))
        .table();
    let notes = vec![
        "Three bases, two architectures, two units: a row's columns show which operations are dear, and are no factors of each other."
            .to_owned(),
        format!(
            "Published: \"Intel Virtual PMU Optimization\" (RFC v2, March 2019), Linux 5.0, Xeon E5-2699 v4: the longest of a run. Measured: \
             KVM's own PMU of arm64, emulated, the operation of the last column, with six counters where it is of all. Computed: the published \
             costs of creating, stopping and reading an event, and {ASSUMED} ns (assumed) for others, summed over what the operation does under \
             each policy."
        ),
    ];
    let title = "Operations of a guest: published, measured on arm64, computed".to_owned();
    TitledTable { id: "operations", title, notes, table }
}

/// As JSON, with the rows' own names.
pub(crate) fn json(computed: &[ComputedRow]) -> serde_json::Value {
    let row = |(row, computed): (&PublishedOperation, &ComputedRow)| {
        serde_json::json!({
            "operation": row.operation,
            "on_arm": row.on_arm,
            "published_ns": { "legacy": row.legacy, "version_2": row.version_2 },
            "computed_ns": { "legacy": computed.legacy, "reuse": computed.reuse },
        })
    };
    OPERATIONS.iter().zip(computed).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::{CREATE, READ, STOP};

    /// Sums of the published costs by what a policy does: no other figure is in them.
    #[test]
    fn computed_rows_are_sums_of_the_published_costs() {
        let rows = computed().expect("the model has these registers");
        let [create, stop] = [CREATE, STOP].map(|[general, fixed]| 4 * general + 2 * fixed);
        let legacy: Vec<u64> = rows.iter().map(|row| row.legacy).collect();
        assert_eq!(legacy[..2], [create, stop]);
        assert_eq!(legacy[2..5], [CREATE[1], CREATE[0], READ]);
        // Nothing is created again.
        assert!(rows.iter().all(|row| row.reuse < CREATE[1]), "{rows:?}");
    }

    #[test]
    fn each_published_row_has_its_operation_on_arm64() {
        for row in OPERATIONS {
            let definition = vmtax_lab::suite::operation(row.on_arm);
            let is_of_arm =
                |one: &vmtax_lab::suite::Definition| one.is_for(vmtax_lab::HostKind::Arm, 1);
            assert!(definition.is_some_and(is_of_arm), "{}", row.on_arm);
        }
    }
}
