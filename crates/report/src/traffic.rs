//! Exits of one request to a server or disk, KiB or sleep, by cause: a row for each VM, a group for each workload. And those of nested VMs by reason, at
//! both levels.

use vmtax_analyse::Ledger;
use vmtax_analyse::traffic::{LevelsRow, TrafficRow, levels, traffic};
use vmtax_events::Cause;

use crate::keys::{detail_cells, detail_columns, reason_cells, reason_columns};
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
    let mut table = Table::new(columns(rows.iter().any(|row| row.is_nested)));
    let mut last = None;
    for row in &rows {
        if last == Some(&row.workload) {
            table.row(cells(row));
        } else {
            let group = match about(&row.workload) {
                Some(about) => format!("{}: for each {about}", row.workload),
                None => row.workload.clone(),
            };
            table.first_of(group, cells(row));
        }
        last = Some(&row.workload);
    }
    table
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

fn columns(has_nested: bool) -> Vec<Column> {
    let mut columns = vec![
        Column::data("workload"),
        Column::data("vm"),
        Column::short("", "VM").only(PEOPLE),
        Column::data("operations"),
        Column::number("exits", "exits").help("exits for each operation"),
    ];
    let is_shown = |cause| has_nested || cause != Cause::NestedEntry;
    columns.extend(
        CAUSES.map(|(cause, key, title)| Column::number(key, title).shown_if(is_shown(cause))),
    );
    columns.extend([
        Column::number("other", "other").help("exits of all other causes"),
        Column::number("to_vmm", "to VMM").help("exits that the VMM handled, in user space"),
        Column::number("vmm_turns", "VMM turns")
            .help("how often the VMM's main loop got a processor, for each operation"),
        Column::number("vhost_turns", "vhost turns").help(
            "how often vhost's thread of the host's kernel got a processor, for each operation",
        ),
        Column::number("io_turns", "I/O turns").help(
            "how often QEMU's thread for the disk's queue got a processor, for each operation",
        ),
    ]);
    columns.push(Column::data("level"));
    columns
}

fn cells(row: &TrafficRow) -> Vec<Cell> {
    let each = |count: f64| Cell::Number(row.each(count));
    let maybe = |count: Option<f64>| count.map_or(Cell::Absent, each);
    let mut cells = vec![
        Cell::Name(row.workload.clone()),
        Cell::Name(row.category.clone()),
        Cell::Name(vm_name(row)),
        Cell::Count(row.count),
        each(row.exits() as f64),
    ];
    cells.extend(CAUSES.map(|(cause, ..)| Cell::Number(row.cause(cause))));
    cells.push(Cell::Number(others(row)));
    cells.extend([
        each(row.to_vmm as f64),
        maybe(row.vmm_turns),
        maybe(row.vhost_turns),
        maybe(row.io_turns),
        Cell::Word(row.level.name()),
    ]);
    cells
}

/// Exits of nested VMs by reason at both levels, beside those of the same VMs that are not nested; without rows if there is no nested VM.
pub fn levels_table(ledgers: &[Ledger]) -> Table {
    let mut columns = vec![Column::data("workload"), Column::data("vm")];
    columns.extend(reason_columns());
    columns.extend(detail_columns());
    columns.extend([
        Column::words("", "exit").only(PEOPLE),
        Column::number("alone", "at L1")
            .help("exits for each operation of the same VM as a guest of the host"),
        Column::number("l2", "L2").help("exits of the guest's guest for each operation"),
        Column::number("l1", "its L1")
            .help("exits of the VM that the guest's guest runs in, for each operation"),
    ]);
    let mut table = Table::new(columns);
    let mut last = None;
    for row in levels(ledgers) {
        let name = format!("{} {}", row.workload, row.category);
        if last.as_ref() == Some(&name) {
            table.row(level_cells(&row));
        } else {
            table.first_of(name.clone(), level_cells(&row));
        }
        last = Some(name);
    }
    table
}

fn level_cells(row: &LevelsRow) -> Vec<Cell> {
    let mut cells = vec![Cell::Name(row.workload.clone()), Cell::Name(row.category.clone())];
    match row.exit {
        Some((reason, detail)) => {
            cells.extend(reason_cells(reason));
            cells.extend(detail_cells(detail));
        }
        None => {
            let count = reason_columns().len() + detail_columns().len();
            cells.extend(std::iter::repeat_n(Cell::Absent, count));
        }
    }
    let name = row.exit.map_or_else(
        || "rarer ones".to_owned(),
        |(reason, detail)| {
            format!("{} {}", names::reason(reason), names::detail(detail)).trim_end().to_owned()
        },
    );
    cells.extend([
        Cell::Name(name),
        Cell::of(row.alone, Cell::Number),
        Cell::Number(row.l2),
        Cell::Number(row.l1),
    ]);
    cells
}
