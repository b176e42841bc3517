//! Exits of one request to a server or disk, KiB or sleep, by cause: a row for each VM, a group for each workload. And those of nested VMs by reason, at
//! both levels.

use vmtax_analyse::Ledger;
use vmtax_analyse::traffic::{LevelsRow, TrafficRow, levels, traffic};
use vmtax_events::Cause;

use crate::keys::{detail_columns, reason_columns};
use crate::names;
use crate::numbers::significant;
use crate::table::{Cell, Column, PEOPLE, Table};

/// The heading in a report.
pub(crate) const TITLE: &str = "Traffic: exits of one operation by cause";

/// Said with the table in a report.
pub(crate) const NOTE: &str = "`vmtax lab network --show RUN` says what an operation and a column is. Counts are those of the real KVM, QEMU and \
                               Linux on the emulated host; its rates are not shown.";

/// The heading of exits by level.
pub const LEVELS_TITLE: &str = "Nested VMs: exits of one operation by level";

/// Said with them.
pub const LEVELS_NOTE: &str = "at L1: of the same VM as a guest of the host; with a peer, of both VMs together, as in the other columns. L2: of the guest's guest. its L1: of the VM that it runs in, for one operation of the guest's guest. KVM names no MSR where L1 handles the exit.";

/// Causes with a column of their own, their keys and titles; all others are one column.
pub(crate) const CAUSES: [(Cause, &str, &str); 8] = [
    (Cause::Idle, "idle", "HLT"),
    (Cause::TimerArm, "timer_arm", "timer arm"),
    (Cause::Ipi, "ipi", "IPI"),
    (Cause::Apic, "apic", "EOI, APIC"),
    (Cause::DeviceMmio, "device_mmio", "notify"),
    (Cause::IrqWindow, "irq_window", "window"),
    (Cause::HostInterrupt, "host_interrupt", "host intr"),
    (Cause::NestedEntry, "nested_entry", "enter L2"),
];

/// How a VM is called: `plain+vhost`, and of a nested one each level.
pub(crate) fn vm_name(row: &TrafficRow) -> String {
    match row.is_nested {
        true => format!("{} {}", row.category, row.level.name()),
        false => row.category.clone(),
    }
}

/// Whether a run has traffic.
pub fn is_traffic(ledger: &Ledger) -> bool {
    !traffic(ledger).is_empty()
}

/// For a report; `None` for a run without traffic.
pub(crate) fn of_report(ledger: &Ledger) -> Option<Table> {
    let table = table(std::slice::from_ref(ledger), |_| None);
    (!table.rows.is_empty()).then_some(table)
}

/// Exits of one operation of all causes without a column of their own.
pub(crate) fn others(row: &TrafficRow) -> f64 {
    let is_other = |cause: &Cause| CAUSES.iter().all(|(known, ..)| known != cause);
    let others = row.causes.iter().filter(|(cause, _)| is_other(cause));
    row.each(others.map(|(_, count)| *count).fold(0, u64::saturating_add) as f64)
}

/// The table of one or more runs. `about` says what an operation of a workload is.
pub fn table(ledgers: &[Ledger], about: impl Fn(&str) -> Option<&'static str>) -> Table {
    let mut rows: Vec<TrafficRow> = ledgers.iter().flat_map(traffic).collect();
    let mut workloads: Vec<String> = Vec::new();
    for row in &rows {
        if !workloads.contains(&row.workload) {
            workloads.push(row.workload.clone());
        }
    }
    rows.sort_by_key(|row| workloads.iter().position(|workload| *workload == row.workload));
    let has_nested = rows.iter().any(|row| row.is_nested);
    let each = |row: &TrafficRow, count: f64| Cell::Number(row.each(count));
    let maybe = |row: &TrafficRow, count: Option<f64>| Cell::of(count, |count| each(row, count));
    let mut table = Table::of(&rows)
        .grouped(|row| match about(&row.workload) {
            Some(about) => format!("{}: for each {about}", row.workload),
            None => row.workload.clone(),
        })
        .column(Column::data("workload"), |row| Cell::Name(row.workload.clone()))
        .column(Column::data("vm"), |row| Cell::Name(row.category.clone()))
        .column(Column::short("", "VM").only(PEOPLE), |row| Cell::Name(vm_name(row)))
        .column(Column::data("operations"), |row| Cell::Count(row.count))
        .column(Column::number("exits", "exits").help("exits for each operation"), |row| {
            each(row, row.exits() as f64)
        });
    for (cause, key, title) in CAUSES {
        let is_shown = has_nested || cause != Cause::NestedEntry;
        table = table.column(Column::number(key, title).shown_if(is_shown), |row| {
            Cell::Number(row.cause(cause))
        });
    }
    table
        .column(Column::number("other", "other").help("exits of all other causes"), |row| {
            Cell::Number(others(row))
        })
        .column(
            Column::number("to_vmm", "to VMM").help("exits that the VMM handled, in user space"),
            |row| each(row, row.to_vmm as f64),
        )
        .column(
            Column::number("vmm_turns", "VMM turns")
                .help("how often the VMM's main loop got a processor, for each operation"),
            |row| maybe(row, row.vmm_turns),
        )
        .column(
            Column::number("vhost_turns", "vhost turns").help(
                "how often vhost's thread of the host's kernel got a processor, for each operation",
            ),
            |row| maybe(row, row.vhost_turns),
        )
        .column(
            Column::number("io_turns", "I/O turns").help(
                "how often QEMU's thread for the disk's queue got a processor, for each operation",
            ),
            |row| maybe(row, row.io_turns),
        )
        .column(Column::data("level"), |row| Cell::Word(row.level.name()))
        .table()
}

/// Exits of one operation in each VM, a sentence for each workload.
pub fn answer(ledgers: &[Ledger]) -> Vec<String> {
    let rows: Vec<TrafficRow> = ledgers.iter().flat_map(traffic).collect();
    let mut said: Vec<(String, Vec<String>)> = Vec::new();
    for row in &rows {
        let one = format!("{} in {}", significant(row.each(row.exits() as f64)), vm_name(row));
        match said.iter_mut().find(|(workload, _)| *workload == row.workload) {
            Some((_, all)) => all.push(one),
            None => said.push((row.workload.clone(), vec![one])),
        }
    }
    let one = |(workload, all): (String, Vec<String>)| {
        format!("Exits of one {workload}: {}.", all.join(", "))
    };
    said.into_iter().map(one).collect()
}

/// Exits of nested VMs by reason at both levels, beside those of the same VMs that are not nested; without rows if there is no nested VM.
pub fn levels_table(ledgers: &[Ledger]) -> Table {
    let name = |row: &LevelsRow| match row.exit {
        Some((reason, detail)) => {
            format!("{} {}", names::reason(reason), names::detail(detail)).trim_end().to_owned()
        }
        None => "rarer ones".to_owned(),
    };
    Table::of(levels(ledgers))
        .grouped(|row| format!("{} {}", row.workload, row.category))
        .column(Column::data("workload"), |row| Cell::Name(row.workload.clone()))
        .column(Column::data("vm"), |row| Cell::Name(row.category.clone()))
        .columns(reason_columns(), |row| row.exit.map(|(reason, _)| reason))
        .columns(detail_columns(), |row| row.exit.map(|(_, detail)| detail))
        .column(Column::words("", "exit").only(PEOPLE), |row| Cell::Name(name(row)))
        .column(
            Column::number("alone", "at L1")
                .help("exits for each operation of the same VM as a guest of the host"),
            |row| Cell::of(row.alone, Cell::Number),
        )
        .column(
            Column::number("l2", "L2").help("exits of the guest's guest for each operation"),
            |row| Cell::Number(row.l2),
        )
        .column(
            Column::number("l1", "its L1")
                .help("exits of the VM that the guest's guest runs in, for each operation"),
            |row| Cell::Number(row.l1),
        )
        .table()
}
