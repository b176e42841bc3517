//! Where the time of each vCPU went, described once.

use vmtax_analyse::{Ledger, ledger};
use vmtax_events::{NO_VCPU, TimePart, TimeRow};

use crate::numbers::{duration, share};
use crate::table::{BarSlice, Cell, Column, JSON, PAGE, PEOPLE, Table};
use crate::text::layout::ColumnRoom;
use crate::{exits, names};

/// The class of a part's colour on a page.
pub(crate) fn class(part: &TimePart) -> String {
    part.name.trim_start_matches("exit-").to_ascii_lowercase()
}

/// The parts that are worth a column: those of a guest's guest only where there is one.
pub(crate) fn parts(ledger: &Ledger) -> Vec<&'static TimePart> {
    let ran = |part: &TimePart| ledger.time.values().any(|time| (part.of)(&time.sum) > 0);
    TimeRow::PARTS.iter().filter(|part| part.within.is_none() || ran(part)).collect()
}

/// A row for each vCPU: wall time, each part of it as the recording can tell it, and the shares.
pub(crate) fn table(ledger: &Ledger) -> Table {
    let recording = &ledger.recording;
    let coverage = &recording.coverage;
    let whole = ledger.time_total();
    let json = |key: &'static str| Column::data(key).only(JSON);
    let known = |vcpu: u32| (vcpu != NO_VCPU).then_some(vcpu);
    // All together are no vCPU.
    let rows = ledger.time.iter().map(|(of, time)| (Some(*of), &time.sum));
    let mut table = Table::of(rows)
        .total((ledger.time.len() > 1).then_some((None, &whole)))
        .column(json("vm"), |(of, _)| Cell::of(*of, |(vm, _)| Cell::Count(vm.into())))
        .column(json("vcpu"), |(of, _)| {
            Cell::of(of.and_then(|(_, vcpu)| known(vcpu)), |vcpu| Cell::Count(vcpu.into()))
        })
        .column(json("wall_ns"), |(_, time)| Cell::Count(time.wall_ns));
    for part in TimeRow::PARTS {
        table = table.column(json(part.column), |(_, time)| {
            Cell::of(part.told(time, coverage), Cell::Count)
        });
    }
    table = table
        .column(json("tax"), |(_, time)| Cell::of(ledger::tax(time), Cell::Share))
        .column(json("contention"), |(_, time)| {
            Cell::of(ledger::contention(time).filter(|_| coverage.sched), Cell::Share)
        })
        .column(Column::words("", "VM").only(PEOPLE), |(of, _)| match *of {
            Some((vm, _)) => Cell::Name(exits::vm_text(recording, vm)),
            None => Cell::Word("all"),
        })
        .column(Column::number("", "vCPU").only(PEOPLE), |(of, _)| match *of {
            Some((vm, vcpu)) => Cell::Written(names::vcpu_name(vcpu), exits::vcpu_key(vm, vcpu)),
            None => Cell::Empty,
        })
        .column(Column::number("", "wall").only(PEOPLE), |(_, time)| Cell::Time(time.wall_ns))
        .column(
            Column::number("", "where its time went").only(PAGE).class("picture wide"),
            |(_, time)| stack(time),
        );
    let rooms = rooms(&whole);
    for part in parts(ledger) {
        let room = rooms.iter().find(|(other, _)| *other == part.name).map(|(_, room)| *room);
        let column = Column::part(part.name, room.unwrap_or(ColumnRoom::Keep)).help(part.explain);
        let column = column.only(if part.within.is_none() { PEOPLE } else { PAGE });
        table = table.column(column, |(_, time)| match part.told(time, coverage) {
            None => Cell::Absent.titled("not recorded, so counted elsewhere".to_owned()),
            Some(ns) => {
                Cell::of(share(ns, time.wall_ns), Cell::Percent).titled(duration(ns as f64))
            }
        });
    }
    table
        .column(Column::number("", "tax").only(PEOPLE).strong(), |(_, time)| {
            Cell::of(ledger::tax(time), Cell::Percent)
        })
        .table()
}

/// The smallest parts give way first in a narrow terminal; guest mode and the largest of the others stay.
fn rooms(total: &TimeRow) -> Vec<(&'static str, ColumnRoom)> {
    let mut others: Vec<&TimePart> = TimeRow::whole_parts().skip(1).collect();
    others.sort_by_key(|part| std::cmp::Reverse((part.of)(total)));
    let dropped = (1..).zip(others.into_iter().skip(1));
    dropped.map(|(rank, part)| (part.name, ColumnRoom::Drop(rank))).collect()
}

/// The parts of a time as a bar.
fn stack(time: &TimeRow) -> Cell {
    // Spans are counted where they end, so the parts can exceed the wall time of a recording that was cut.
    let parts_ns = TimeRow::PARTS.iter().fold(0u64, |sum, part| sum.saturating_add(part.own(time)));
    let whole = parts_ns.max(time.wall_ns);
    let slices = TimeRow::PARTS.iter().filter(|part| part.own(time) > 0).map(|part| BarSlice {
        class: class(part),
        title: format!("{}: {}", part.name, duration(part.own(time) as f64)),
        share: share(part.own(time), whole).unwrap_or(0.0),
    });
    Cell::Stack(slices.collect())
}
