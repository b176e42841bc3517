//! Where the time of each vCPU went, described once.

use vmtax_analyse::{Ledger, ledger};
use vmtax_events::{NO_VCPU, Part, Recording, TimeRow};

use crate::numbers::{duration, share};
use crate::table::{Cell, Column, JSON, PAGE, PEOPLE, Slice, Table};
use crate::text::layout::Room;
use crate::{exits, names};

/// The class of a part's colour on a page.
pub(crate) fn class(part: &Part) -> String {
    part.name.trim_start_matches("exit-").to_ascii_lowercase()
}

/// The parts that are worth a column: those of a guest's guest only where there is one.
pub(crate) fn parts(ledger: &Ledger) -> Vec<&'static Part> {
    let ran = |part: &Part| ledger.time.values().any(|time| (part.of)(&time.sum) > 0);
    TimeRow::PARTS.iter().filter(|part| part.within.is_none() || ran(part)).collect()
}

/// A row for each vCPU: wall time, each part of it as the recording can tell it, and the shares.
pub(crate) fn table(ledger: &Ledger) -> Table {
    let total = ledger.time_total();
    let json = |key: &'static str| Column::data(key).only(JSON);
    let people = |column: Column| column.only(PEOPLE);
    let mut columns: Vec<Column> = ["vm", "vcpu", "wall_ns"].map(json).to_vec();
    columns.extend(TimeRow::PARTS.iter().map(|part| json(part.column)));
    columns.extend(["tax", "contention"].map(json));
    columns.extend([
        people(Column::words("", "VM")),
        people(Column::number("", "vCPU")),
        people(Column::number("", "wall")),
        Column::number("", "where its time went").only(PAGE).class("picture wide"),
    ]);
    let rooms = rooms(&total);
    columns.extend(parts(ledger).into_iter().map(|part| {
        let room = rooms.iter().find(|(other, _)| *other == part.name).map(|(_, room)| *room);
        let column = Column::part(part.name, room.unwrap_or(Room::Keep));
        column.help(part.explain).only(if part.within.is_none() { PEOPLE } else { PAGE })
    }));
    columns.push(people(Column::number("", "tax")).strong());
    let mut table = Table::new(columns);
    let recording = &ledger.recording;
    for (&(vm, vcpu), time) in &ledger.time {
        let mut cells = cells_of_json(recording, (vm, vcpu), &time.sum);
        cells.extend([
            Cell::Name(exits::vm_text(recording, vm)),
            Cell::Written(names::vcpu_name(vcpu), exits::vcpu_key(vm, vcpu)),
        ]);
        cells.extend(split(ledger, &time.sum));
        table.row(cells);
    }
    if ledger.time.len() > 1 {
        let mut cells = vec![Cell::Empty; 5 + TimeRow::PARTS.len()];
        cells.extend([Cell::Word("all"), Cell::Empty]);
        cells.extend(split(ledger, &total));
        table.total = Some(cells);
    }
    table
}

/// The smallest parts give way first in a narrow terminal; guest mode and the largest of the others stay.
fn rooms(total: &TimeRow) -> Vec<(&'static str, Room)> {
    let mut others: Vec<&Part> = TimeRow::whole_parts().skip(1).collect();
    others.sort_by_key(|part| std::cmp::Reverse((part.of)(total)));
    let dropped = (1..).zip(others.into_iter().skip(1));
    dropped.map(|(rank, part)| (part.name, Room::Drop(rank))).collect()
}

fn cells_of_json(recording: &Recording, (vm, vcpu): (u32, u32), time: &TimeRow) -> Vec<Cell> {
    let coverage = &recording.coverage;
    let vcpu = (vcpu != NO_VCPU).then_some(vcpu);
    let mut cells = vec![
        Cell::Count(vm.into()),
        Cell::of(vcpu, |vcpu| Cell::Count(vcpu.into())),
        Cell::Count(time.wall_ns),
    ];
    let parts = TimeRow::PARTS.iter().map(|part| part.told(time, coverage));
    cells.extend(parts.map(|ns| Cell::of(ns, Cell::Count)));
    cells.push(Cell::of(ledger::tax(time), Cell::Share));
    cells.push(Cell::of(ledger::contention(time).filter(|_| coverage.sched), Cell::Share));
    cells
}

/// Wall time, the bar, the parts and the tax.
fn split(ledger: &Ledger, time: &TimeRow) -> Vec<Cell> {
    let coverage = &ledger.recording.coverage;
    // Spans are counted where they end, so the parts can exceed the wall time of a recording that was cut.
    let parts_ns = TimeRow::PARTS.iter().fold(0u64, |sum, part| sum.saturating_add(part.own(time)));
    let whole = parts_ns.max(time.wall_ns);
    let slices = TimeRow::PARTS.iter().filter(|part| part.own(time) > 0).map(|part| Slice {
        class: class(part),
        title: format!("{}: {}", part.name, duration(part.own(time) as f64)),
        share: share(part.own(time), whole).unwrap_or(0.0),
    });
    let mut cells = vec![Cell::Time(time.wall_ns), Cell::Stack(slices.collect())];
    cells.extend(parts(ledger).into_iter().map(|part| match part.told(time, coverage) {
        None => Cell::Absent.titled("not recorded, so counted elsewhere".to_owned()),
        Some(ns) => Cell::of(share(ns, time.wall_ns), Cell::Percent).titled(duration(ns as f64)),
    }));
    cells.push(Cell::of(ledger::tax(time), Cell::Percent));
    cells
}
