//! Exits of one operation of a benchmark by cause: a row for each VM, a group for each workload.

use vmtax_analyse::Ledger;
use vmtax_analyse::traffic::{TrafficRow, traffic};
use vmtax_events::Cause;

use crate::table::{Cell, Column, PEOPLE, Table};

pub(crate) const TITLE: &str = "Exits of one operation by cause";

/// Said with the table.
pub(crate) const NOTE: &str = "notify: the VM tells a device of new buffers. EOI, APIC: ends of interrupts, and other uses of the interrupt controller. window: the VM \
                               becomes ready for an interrupt that waits. host intr: an interrupt of the host arrives while the VM runs. to VMM: exits that the VMM \
                               handled, in user space. VMM turns, vhost turns, I/O turns: how often the VMM's main loop, vhost's thread and the VMM's thread for the \
                               disk got a processor.";

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

/// Exits of all causes without a column of their own.
pub(crate) fn others(row: &TrafficRow) -> f64 {
    let is_other = |cause: &Cause| CAUSES.iter().all(|(known, ..)| known != cause);
    row.causes.iter().filter(|(cause, _)| is_other(cause)).map(|(_, count)| count).sum()
}

/// The table of a run; without rows where no exits of operations were recorded.
pub(crate) fn table(ledger: &Ledger) -> Table {
    let rows = traffic(ledger);
    let has_nested = rows.iter().any(|row| row.is_nested);
    let has_turns = rows.iter().any(|row| row.turns[0].is_some());
    let turns = |key, title, help| Column::number(key, title).help(help).shown_if(has_turns);
    let mut table = Table::of(&rows)
        .grouped(|row| row.workload.clone())
        .column(Column::data("workload"), |row| Cell::Name(row.workload.clone()))
        .column(Column::data("vm"), |row| Cell::Name(row.category.clone()))
        .column(Column::short("", "VM").only(PEOPLE), |row| Cell::Name(vm_name(row)))
        .column(Column::number("exits", "exits").help("exits for each operation"), |row| {
            Cell::Number(row.exits())
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
            |row| Cell::Number(row.to_vmm),
        )
        .column(
            turns("vmm_turns", "VMM turns", "how often the VMM's main loop got a processor"),
            |row| Cell::of(row.turns[0], Cell::Number),
        )
        .column(
            turns("vhost_turns", "vhost turns", "how often vhost's thread got a processor"),
            |row| Cell::of(row.turns[1], Cell::Number),
        )
        .column(
            turns("io_turns", "I/O turns", "how often the VMM's disk thread got a processor"),
            |row| Cell::of(row.turns[2], Cell::Number),
        )
        .column(Column::data("level"), |row| Cell::Word(row.level.name()))
        .table()
}
