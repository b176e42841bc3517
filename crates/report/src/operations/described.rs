//! The operations of a lab run, described once: a row for each for JSON, text and pages, and lines for CSV.

use std::collections::BTreeMap;

use vmtax_analyse::operations::{WaitPlace, Waited};
use vmtax_analyse::{OperationExit, OperationRow, Operations, Path};
use vmtax_events::{Level, Recording};

use super::{exit_list, factor, instructions, no_exits, path_cell, place, shares, waited};
use crate::keys::{detail_columns, detail_object, reason_fields};
use crate::table::{
    BarSlice, CSV, Cell, Column, CsvLine, JSON, PAGE, PEOPLE, TEXT, Table, sort_key,
};
use crate::{mapping, names, paging};

/// Instructions of an operation at a level that hardware does not execute.
pub(crate) type EmulatedInstructions = BTreeMap<(String, Level), f64>;

/// For CSV: an operation, then its exits.
pub(crate) fn lines(recording: &Recording, operations: &Operations) -> Vec<CsvLine> {
    let rows = operations.rows.iter();
    let of_row = |row: &OperationRow| {
        let exits = row.exits.iter().map(|exit| exit_line(recording, row, exit));
        std::iter::once(operation_line(recording, row)).chain(exits).collect::<Vec<_>>()
    };
    rows.flat_map(of_row).collect()
}

/// What all lines of an operation have.
fn first_cells(
    recording: &Recording,
    row: &OperationRow,
    (table, level): (&'static str, Level),
) -> CsvLine {
    let name = row.vm.and_then(|vm| names::vm_name(recording, vm));
    vec![
        ("table", Cell::Word(table)),
        ("level", Cell::Word(level.name())),
        ("vm", Cell::of(row.vm, |vm| Cell::Count(vm.into()))),
        ("vm_name", Cell::of(name, |name| Cell::Name(name.to_owned()))),
        ("operation", Cell::Name(row.name.clone())),
    ]
}

fn number(value: Option<f64>) -> Cell {
    Cell::of(value, Cell::Number)
}

fn operation_line(recording: &Recording, row: &OperationRow) -> CsvLine {
    let path = |part: fn(&Path) -> f64| number(row.path.as_ref().map(part));
    let to_l1 = (row.level == Level::L2).then_some(row.to_l1);
    let mut line = first_cells(recording, row, ("operation", row.level));
    line.extend([
        ("to_l1", Cell::of(to_l1, Cell::Count)),
        ("count", Cell::Count(row.count)),
        ("per_operation", Cell::Ratio(row.exits_per_operation())),
        ("path", path(|path| path.median)),
        ("path_min", path(|path| path.min)),
        ("path_max", path(|path| path.max)),
        ("batches", Cell::of(row.path.map(|path| path.batches), Cell::Count)),
        ("l2_over_l1", number(row.l2_over_l1)),
        ("share_l0", number(row.share_l0())),
        ("share_l1", number(row.share_l1())),
        ("share_l2", number(row.share_l2())),
    ]);
    if let Some(of) = &row.waited {
        line.extend([
            ("waited", Cell::Number(of.median)),
            ("waited_min", Cell::Number(of.min)),
            ("waited_max", Cell::Number(of.max)),
            ("waits_in", Cell::of(place(of), Cell::Name)),
        ]);
    }
    line
}

fn exit_line(recording: &Recording, row: &OperationRow, exit: &OperationExit) -> CsvLine {
    let mut line = first_cells(recording, row, ("operation-exit", exit.level));
    line.extend([
        ("count", Cell::Count(exit.count)),
        ("per_operation", Cell::Ratio(row.per_operation(exit.count))),
        ("l2_reason", Cell::of(exit.ancillary_of, |of| Cell::Name(names::reason(of)))),
        ("reason", Cell::Name(names::reason(exit.reason))),
    ]);
    let detail = detail_columns().into_iter().filter(|(column, _)| column.is_on(CSV));
    line.extend(detail.map(|(column, cell)| (column.key, cell(&Some(exit.detail)))));
    line
}

/// What has the time of an operation's window: class of its colour, name, explanation, share.
pub(crate) struct WindowPart {
    pub(crate) class: &'static str,
    pub(crate) name: &'static str,
    pub(crate) explain: &'static str,
    share: fn(&OperationRow) -> Option<f64>,
}

/// All of them; the last has no column of its own.
#[rustfmt::skip]
pub(crate) const PARTS: [WindowPart; 4] = [
    WindowPart { class: "kernel", name: "L0", explain: "the host, handling exits", share: OperationRow::share_l0 },
    WindowPart { class: "s2", name: "L1", explain: "the guest, or the guest's hypervisor", share: OperationRow::share_l1 },
    WindowPart { class: "guest", name: "L2", explain: "the guest's guest", share: OperationRow::share_l2 },
    WindowPart { class: "halted", name: "halted", explain: "waiting for an interrupt", share: OperationRow::share_halted },
];

/// A row for each operation. `emulated` is what hardware does not execute, where call trees say so.
pub(crate) fn table(operations: &Operations, emulated: &EmulatedInstructions) -> Table {
    let json = |key| Column::data(key).only(JSON);
    let mut table = Table::of(&operations.rows)
        .column(json("name"), |row| Cell::Name(row.name.clone()))
        .column(json("vm"), |row| Cell::of(row.vm, |vm| Cell::Count(vm.into())))
        .column(json("level"), |row| Cell::Word(row.level.name()))
        .column(json("count"), |row| Cell::Count(row.count))
        .column(json("recorded"), |row| Cell::Flag(row.recorded))
        .column(json("exits"), |row| {
            Cell::List(row.exits.iter().map(|exit| exit_object(row, exit)).collect())
        })
        .column(json("exits_per_operation"), |row| Cell::Ratio(row.exits_per_operation()))
        .column(json("l2_exits"), |row| Cell::Count(row.l2_exits()))
        .column(json("to_l1"), |row| Cell::Count(row.to_l1))
        .column(json("ancillary_exits"), |row| Cell::Count(row.ancillary()))
        .column(json("ancillary_per_exit"), |row| Cell::Ratio(row.ancillary_per_exit()))
        .column(json("path"), |row| Cell::of(row.path.as_ref(), path_object))
        .column(json("l2_over_l1"), |row| number(row.l2_over_l1))
        .column(json("window"), window_object);
    if operations.rows.iter().any(|row| row.memory.is_some()) {
        table = table.column(json("memory"), |row| Cell::of(row.memory.as_ref(), mapping::object));
    }
    if operations.rows.iter().any(|row| row.paging.is_some()) {
        table = table.column(json("paging"), |row| {
            Cell::of(row.paging.as_ref(), |of| paging::object(row, of))
        });
    }
    if operations.rows.iter().any(|row| row.hidden.is_some()) {
        table = table
            .column(json("hidden"), |row| Cell::of(row.hidden.as_ref(), |of| hidden_list(row, of)));
    }
    let has_el2 = operations.rows.iter().any(|row| row.at_el2.is_some());
    if has_el2 {
        table = table.column(json("at_el2"), |row| number(row.at_el2));
    }
    let waits = operations.rows.iter().any(|row| row.waited.is_some());
    if waits {
        table = table.column(json("waited"), |row| Cell::of(row.waited.as_ref(), waited_object));
    }
    let people = |column: Column| column.only(PEOPLE);
    table = table
        .column(people(Column::words("", "operation")), |row| Cell::Name(row.name.clone()))
        .column(people(Column::words("", "level")), |row| Cell::Word(row.level.name()))
        .column(
            people(Column::number("", "exits"))
                .help("exits of one operation, ancillary ones included")
                .strong(),
            |row| Cell::Ratio(row.exits_per_operation()),
        )
        .column(Column::words("", "of which").only(PAGE).class("described list"), exits_in_words)
        .column(
            people(Column::number("", "path"))
                .help("instructions, median of the batches; ±: how far off the path of another run may be, 0.5 % where none is shown")
                .strong(),
            |row| Cell::of(row.path.as_ref(), path_with_range),
        )
        .column(
            people(Column::minor("", "EL2 %", 2))
                .help("the part of the path at EL2: KVM's code below the host's kernel")
                .shown_if(has_el2),
            |row| {
                let part = row.at_el2.zip(row.path.as_ref()).map(|(at, path)| at / path.median);
                part.map_or(Cell::Empty, Cell::Percent)
            },
        )
        .column(
            people(Column::number("waited", "waited"))
                .help("time that the processor was idle, which is not in the path: least, most and median of the VMs")
                .strong()
                .shown_if(waits),
            |row| {
                let written = |of| Cell::Written(waited(of), sort_key(of.median));
                row.waited.as_ref().map_or(Cell::Empty, written)
            },
        )
        .column(
            people(Column::words("waits_in", "waits in"))
                .help("the function that waits, and its callers; where a step waits in several, the longest wait")
                .shown_if(waits),
            |row| Cell::of(row.waited.as_ref().and_then(place), Cell::Name),
        )
        .column(
            people(Column::number("not_on_hardware", "not on hw"))
                .help("the part of the path that hardware does not execute, from the call tree")
                .shown_if(!emulated.is_empty()),
            |row| {
                let unreal = emulated.get(&(row.name.clone(), row.level)).copied();
                unreal.map_or(Cell::Empty, Cell::Instructions)
            },
        )
        .column(
            people(Column::minor("spread", "spread %", 2)).help("(max - min) / median of the batches"),
            |row| Cell::of(row.path.as_ref().and_then(Path::spread), Cell::Percent),
        )
        .column(Column::minor("shares", "% L0/L1/L2", 1).only(TEXT), |row| Cell::Name(shares(row)))
        .column(
            Column::number("", "window").only(PAGE).help("share of the traced time").class("picture"),
            |row| Cell::Stack(PARTS.iter().map(|part| slice(part, row)).collect()),
        );
    for part in &PARTS[..3] {
        table = table.column(Column::number("", part.name).only(PAGE), |row| {
            (part.share)(row).map_or(Cell::Empty, Cell::Percent)
        });
    }
    table
        .column(
            Column::number("", "traced").only(PAGE).help("executions in the traced window"),
            |row| Cell::Count(row.count),
        )
        .column(Column::list("", "of which").only(TEXT), exits_in_words)
        .table()
}

/// The title of the next table, and what is below it.
pub(crate) const BESIDE: (&str, &str) = (
    "Nested beside L1",
    "L2/L1: path at L2 over path at L1. exits: per execution, at L2 those of L1 to handle them included.",
);

/// A row for each operation that ran at both levels: what nesting multiplies. `None` if there is none.
pub(crate) fn beside(operations: &Operations, emulated: &EmulatedInstructions) -> Option<Table> {
    let of_level = |level| operations.rows.iter().filter(move |row| row.level == level);
    let nested = of_level(Level::L2).filter(|row| row.l2_over_l1.is_some());
    let pairs: Vec<[&OperationRow; 2]> = nested
        .filter_map(|inner| Some([of_level(Level::L1).find(|row| row.name == inner.name)?, inner]))
        .collect();
    if pairs.is_empty() {
        return None;
    }
    let path = |row: &OperationRow| Cell::of(row.path.as_ref(), path_with_range);
    let exits = |row: &OperationRow| Cell::Ratio(row.exits_per_operation());
    let unreal = |row: &OperationRow| {
        let part = emulated.get(&(row.name.clone(), row.level)).copied();
        part.map_or(Cell::Empty, Cell::Instructions)
    };
    let table = Table::of(&pairs)
        .column(Column::words("", "operation"), |[row, _]| Cell::Name(row.name.clone()))
        .column(
            Column::number("", "L2/L1").help("path at L2 over path at L1").strong(),
            |[_, row]| {
                let written = |times| Cell::Written(factor(times), sort_key(times));
                row.l2_over_l1.map_or(Cell::Empty, written)
            },
        )
        .column(Column::number("", "path L1").help("instructions"), |[row, _]| path(row))
        .column(Column::number("", "path L2").help("instructions"), |[_, row]| path(row))
        .column(
            Column::number("", "not on hw L2")
                .help("the part of the path that hardware does not execute, from the call tree")
                .shown_if(!emulated.is_empty()),
            |[_, row]| unreal(row),
        )
        .column(Column::number("", "exits L1").help("of one operation"), |[row, _]| exits(row))
        .column(
            Column::number("", "exits L2").help("of one operation, ancillary ones included"),
            |[_, row]| exits(row),
        );
    Some(table.table())
}

fn exits_in_words(row: &&OperationRow) -> Cell {
    let mut exits = exit_list(row);
    if exits.is_empty() {
        exits.push(no_exits(row).to_owned());
    }
    Cell::Words(exits)
}

fn path_with_range(path: &Path) -> Cell {
    let range = [path.min, path.max].map(instructions).join(" to ");
    path_cell(path).titled(format!("{range} instructions in {} batches", path.batches))
}

fn slice(part: &WindowPart, row: &OperationRow) -> BarSlice {
    BarSlice {
        class: part.class.to_owned(),
        title: part.name.to_owned(),
        share: (part.share)(row).unwrap_or(0.0),
    }
}

fn exit_object(row: &OperationRow, exit: &OperationExit) -> Cell {
    let mut fields = reason_fields(exit.reason);
    fields.extend([
        ("level", Cell::Word(exit.level.name())),
        ("detail", detail_object(exit.detail)),
        ("ancillary_of", Cell::of(exit.ancillary_of, |of| Cell::Object(reason_fields(of)))),
        ("count", Cell::Count(exit.count)),
        ("per_operation", Cell::Ratio(row.per_operation(exit.count))),
    ]);
    Cell::Object(fields)
}

fn hidden_list(row: &OperationRow, hidden: &[(String, u64)]) -> Cell {
    let one = |(reason, count): &(String, u64)| {
        Cell::Object(vec![
            ("reason", Cell::Name(reason.clone())),
            ("count", Cell::Count(*count)),
            ("per_operation", Cell::Ratio(row.per_operation(*count))),
        ])
    };
    Cell::List(hidden.iter().map(one).collect())
}

fn path_object(path: &Path) -> Cell {
    Cell::Object(vec![
        ("unit", Cell::Word("instructions")),
        ("median", Cell::Number(path.median)),
        ("min", Cell::Number(path.min)),
        ("max", Cell::Number(path.max)),
        ("spread", number(path.spread())),
        ("tolerance", Cell::Number(path.tolerance())),
        ("batches", Cell::Count(path.batches)),
    ])
}

fn waited_object(of: &Waited) -> Cell {
    let place = |place: &WaitPlace| {
        let functions = place.functions.iter().map(|name| Cell::Name(name.clone())).collect();
        Cell::Object(vec![("functions", Cell::List(functions)), ("ns", Cell::Number(place.ns))])
    };
    Cell::Object(vec![
        ("unit", Cell::Word("ns")),
        ("median", Cell::Number(of.median)),
        ("min", Cell::Number(of.min)),
        ("max", Cell::Number(of.max)),
        ("lives", Cell::Count(of.lives)),
        ("places", Cell::List(of.places.iter().map(place).collect())),
    ])
}

fn window_object(row: &&OperationRow) -> Cell {
    Cell::Object(vec![
        ("wall_ns", Cell::Count(row.time.wall_ns)),
        ("l0", number(row.share_l0())),
        ("l1", number(row.share_l1())),
        ("l2", number(row.share_l2())),
        ("halted", number(row.share_halted())),
    ])
}
