//! The operations of a lab run, described once: a row for each for JSON, text and pages, and lines for CSV.

use std::collections::BTreeMap;

use vmtax_analyse::{OperationExit, OperationRow, Operations, Path};
use vmtax_events::{Level, Recording};

use super::{exit_list, factor, instructions, no_exits, path_cell, shares};
use crate::keys::{detail_cells, detail_columns, reason_fields};
use crate::table::{CSV, Cell, Column, JSON, Line, PAGE, PEOPLE, Slice, TEXT, Table, sort_key};
use crate::{memory, names};

/// Instructions of an operation at a level that hardware does not execute.
pub(crate) type Emulated = BTreeMap<(String, Level), f64>;

/// For CSV: an operation, then its exits.
pub(crate) fn lines(recording: &Recording, operations: &Operations) -> Vec<Line> {
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
) -> Line {
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

fn operation_line(recording: &Recording, row: &OperationRow) -> Line {
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
    line
}

fn exit_line(recording: &Recording, row: &OperationRow, exit: &OperationExit) -> Line {
    let mut line = first_cells(recording, row, ("operation-exit", exit.level));
    line.extend([
        ("count", Cell::Count(exit.count)),
        ("per_operation", Cell::Ratio(row.per_operation(exit.count))),
        ("l2_reason", Cell::of(exit.ancillary_of, |of| Cell::Name(names::reason(of)))),
        ("reason", Cell::Name(names::reason(exit.reason))),
    ]);
    let detail = detail_columns().into_iter().zip(detail_cells(exit.detail));
    line.extend(
        detail.filter(|(column, _)| column.is_on(CSV)).map(|(column, cell)| (column.key, cell)),
    );
    line
}

/// What has the time of an operation's window: class of its colour, name, explanation, share.
pub(crate) struct Part {
    pub(crate) class: &'static str,
    pub(crate) name: &'static str,
    pub(crate) explain: &'static str,
    share: fn(&OperationRow) -> Option<f64>,
}

/// All of them; the last has no column of its own.
#[rustfmt::skip]
pub(crate) const PARTS: [Part; 4] = [
    Part { class: "kernel", name: "L0", explain: "the host, handling exits", share: OperationRow::share_l0 },
    Part { class: "s2", name: "L1", explain: "the guest, or the guest's hypervisor", share: OperationRow::share_l1 },
    Part { class: "guest", name: "L2", explain: "the guest's guest", share: OperationRow::share_l2 },
    Part { class: "halted", name: "halted", explain: "waiting for an interrupt", share: OperationRow::share_halted },
];

/// A row for each operation. `emulated` is what hardware does not execute, where call trees say so.
pub(crate) fn table(operations: &Operations, emulated: &Emulated) -> Table {
    let keys = [
        "name",
        "vm",
        "level",
        "count",
        "recorded",
        "exits",
        "exits_per_operation",
        "l2_exits",
        "to_l1",
        "ancillary_exits",
        "ancillary_per_exit",
        "path",
        "l2_over_l1",
        "window",
    ];
    let mut columns = keys.map(|key| Column::data(key).only(JSON)).to_vec();
    let with_memory = operations.rows.iter().any(|row| row.memory.is_some());
    columns.extend(with_memory.then(|| Column::data("memory").only(JSON)));
    columns.extend(columns_for_people(operations, emulated));
    let mut table = Table::new(columns);
    for row in &operations.rows {
        let mut cells = cells_of_json(row);
        cells.extend(with_memory.then(|| Cell::of(row.memory.as_ref(), memory::object)));
        cells.extend(cells_for_people(row, emulated));
        table.row(cells);
    }
    table
}

fn columns_for_people(operations: &Operations, emulated: &Emulated) -> Vec<Column> {
    let nests = operations.rows.iter().any(|row| row.level != Level::L1);
    let people = |column: Column| column.only(PEOPLE);
    let mut columns = vec![
        people(Column::words("", "operation")),
        people(Column::words("", "level")),
        people(Column::number("", "exits"))
            .help("exits of one operation, ancillary ones included")
            .strong(),
        Column::words("", "of which").only(PAGE).class("described list"),
        people(Column::number("", "path"))
            .help("instructions, median of the batches; ±: how far off the path of another run may be, 0.5 % where none is shown")
            .strong(),
        people(Column::number("not_on_hardware", "not on hw"))
            .help("the part of the path that hardware does not execute, from the call tree")
            .shown_if(!emulated.is_empty()),
        people(Column::minor("spread", "spread %", 2)).help("(max - min) / median of the batches"),
        people(Column::minor("", "L2/L1", 0))
            .help("path at L2 over path at L1")
            .strong()
            .shown_if(nests),
        Column::minor("shares", "% L0/L1/L2", 1).only(TEXT),
        Column::number("", "window").only(PAGE).help("share of the traced time").class("picture"),
    ];
    columns.extend(PARTS[..3].iter().map(|part| Column::number("", part.name).only(PAGE)));
    columns.extend([
        Column::number("", "traced").only(PAGE).help("executions in the traced window"),
        Column::list("", "of which").only(TEXT),
    ]);
    columns
}

fn cells_for_people(row: &OperationRow, emulated: &Emulated) -> Vec<Cell> {
    let path = row.path.as_ref();
    let range = |path: &Path| {
        let range = [path.min, path.max].map(instructions).join(" to ");
        path_cell(path).titled(format!("{range} instructions in {} batches", path.batches))
    };
    let mut exits = exit_list(row);
    if exits.is_empty() {
        exits.push(no_exits(row).to_owned());
    }
    let unreal = emulated.get(&(row.name.clone(), row.level)).copied();
    let slices = PARTS.iter().map(|part| Slice {
        class: part.class.to_owned(),
        title: part.name.to_owned(),
        share: (part.share)(row).unwrap_or(0.0),
    });
    let mut cells = vec![
        Cell::Name(row.name.clone()),
        Cell::Word(row.level.name()),
        Cell::Ratio(row.exits_per_operation()),
        Cell::Words(exits.clone()),
        Cell::of(path, range),
        unreal.map_or(Cell::Empty, Cell::Instructions),
        Cell::of(path.and_then(Path::spread), Cell::Percent),
        row.l2_over_l1.map_or(Cell::Empty, |times| Cell::Written(factor(times), sort_key(times))),
        Cell::Name(shares(row)),
        Cell::Stack(slices.collect()),
    ];
    cells
        .extend(PARTS[..3].iter().map(|part| (part.share)(row).map_or(Cell::Empty, Cell::Percent)));
    cells.extend([Cell::Count(row.count), Cell::Words(exits)]);
    cells
}

fn cells_of_json(row: &OperationRow) -> Vec<Cell> {
    let exit = |exit: &OperationExit| {
        let mut fields = reason_fields(exit.reason);
        fields.extend([
            ("level", Cell::Word(exit.level.name())),
            ("detail", detail_cells(exit.detail)[0].clone()),
            ("ancillary_of", Cell::of(exit.ancillary_of, |of| Cell::Object(reason_fields(of)))),
            ("count", Cell::Count(exit.count)),
            ("per_operation", Cell::Ratio(row.per_operation(exit.count))),
        ]);
        Cell::Object(fields)
    };
    let path = Cell::of(row.path.as_ref(), |path| {
        Cell::Object(vec![
            ("unit", Cell::Word("instructions")),
            ("median", Cell::Number(path.median)),
            ("min", Cell::Number(path.min)),
            ("max", Cell::Number(path.max)),
            ("spread", number(path.spread())),
            ("tolerance", Cell::Number(path.tolerance())),
            ("batches", Cell::Count(path.batches)),
        ])
    });
    let window = Cell::Object(vec![
        ("wall_ns", Cell::Count(row.time.wall_ns)),
        ("l0", number(row.share_l0())),
        ("l1", number(row.share_l1())),
        ("l2", number(row.share_l2())),
        ("halted", number(row.share_halted())),
    ]);
    vec![
        Cell::Name(row.name.clone()),
        Cell::of(row.vm, |vm| Cell::Count(vm.into())),
        Cell::Word(row.level.name()),
        Cell::Count(row.count),
        Cell::Flag(row.recorded),
        Cell::List(row.exits.iter().map(exit).collect()),
        Cell::Ratio(row.exits_per_operation()),
        Cell::Count(row.l2_exits()),
        Cell::Count(row.to_l1),
        Cell::Count(row.ancillary()),
        Cell::Ratio(row.ancillary_per_exit()),
        path,
        number(row.l2_over_l1),
        window,
    ]
}
