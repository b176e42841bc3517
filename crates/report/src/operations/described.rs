//! The operations of a lab run for programs, described once.

use vmtax_analyse::{OperationExit, OperationRow, Operations};
use vmtax_events::{Level, Recording};

use crate::keys::{detail_cells, detail_columns, reason_fields};
use crate::names;
use crate::table::{CSV, Cell, Column, JSON, Table};

/// For CSV: an operation, then its exits.
pub(crate) fn lines(recording: &Recording, operations: &Operations) -> Table {
    let csv = |key| Column::data(key).only(CSV);
    let mut columns: Vec<Column> = [
        "table",
        "level",
        "vm",
        "vm_name",
        "to_l1",
        "count",
        "operation",
        "per_operation",
        "path",
        "path_min",
        "path_max",
        "batches",
        "l2_over_l1",
        "share_l0",
        "share_l1",
        "share_l2",
        "l2_reason",
        "reason",
    ]
    .map(csv)
    .to_vec();
    columns.extend(detail_columns());
    let mut table = Table::new(columns);
    for row in &operations.rows {
        table.row(operation_line(recording, row));
        row.exits.iter().for_each(|exit| table.row(exit_line(recording, row, exit)));
    }
    table
}

fn whose(recording: &Recording, row: &OperationRow) -> [Cell; 2] {
    let name = row.vm.and_then(|vm| names::vm_name(recording, vm));
    [
        Cell::of(row.vm, |vm| Cell::Count(vm.into())),
        Cell::of(name, |name| Cell::Name(name.to_owned())),
    ]
}

fn operation_line(recording: &Recording, row: &OperationRow) -> Vec<Cell> {
    let path = row.path.as_ref();
    let number = |value: Option<f64>| Cell::of(value, Cell::Number);
    let [vm, vm_name] = whose(recording, row);
    let to_l1 = (row.level == Level::L2).then_some(row.to_l1);
    let mut cells = vec![
        Cell::Word("operation"),
        Cell::Word(row.level.name()),
        vm,
        vm_name,
        Cell::of(to_l1, Cell::Count),
        Cell::Count(row.count),
        Cell::Name(row.name.clone()),
        number(row.exits_per_operation().value()),
        number(path.map(|path| path.median)),
        number(path.map(|path| path.min)),
        number(path.map(|path| path.max)),
        Cell::of(path.map(|path| path.batches), Cell::Count),
        number(row.l2_over_l1),
        number(row.share_l0()),
        number(row.share_l1()),
        number(row.share_l2()),
    ];
    cells.extend(vec![Cell::Empty; 2 + detail_columns().len()]);
    cells
}

fn exit_line(recording: &Recording, row: &OperationRow, exit: &OperationExit) -> Vec<Cell> {
    let [vm, vm_name] = whose(recording, row);
    let mut cells = vec![
        Cell::Word("operation-exit"),
        Cell::Word(exit.level.name()),
        vm,
        vm_name,
        Cell::Empty,
        Cell::Count(exit.count),
        Cell::Name(row.name.clone()),
        Cell::of(row.per_operation(exit.count).value(), Cell::Number),
    ];
    cells.extend(vec![Cell::Empty; 8]);
    cells.push(Cell::of(exit.ancillary_of, |of| Cell::Name(names::reason(of))));
    cells.push(Cell::Name(names::reason(exit.reason)));
    cells.extend(detail_cells(exit.detail));
    cells
}

/// For JSON: an object for each operation.
pub(crate) fn objects(operations: &Operations) -> Table {
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
    let mut table = Table::new(keys.map(|key| Column::data(key).only(JSON)).to_vec());
    let number = |value: Option<f64>| Cell::of(value, Cell::Number);
    for row in &operations.rows {
        let exit = |exit: &OperationExit| {
            let mut fields = reason_fields(exit.reason);
            fields.extend([
                ("level", Cell::Word(exit.level.name())),
                ("detail", detail_cells(exit.detail)[0].clone()),
                ("ancillary_of", Cell::of(exit.ancillary_of, |of| Cell::Object(reason_fields(of)))),
                ("count", Cell::Count(exit.count)),
                ("per_operation", number(row.per_operation(exit.count).value())),
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
        table.row(vec![
            Cell::Name(row.name.clone()),
            Cell::of(row.vm, |vm| Cell::Count(vm.into())),
            Cell::Word(row.level.name()),
            Cell::Count(row.count),
            Cell::Flag(row.recorded),
            Cell::List(row.exits.iter().map(exit).collect()),
            number(row.exits_per_operation().value()),
            Cell::Count(row.l2_exits()),
            Cell::Count(row.to_l1),
            Cell::Count(row.ancillary()),
            number(row.ancillary_per_exit().value()),
            path,
            number(row.l2_over_l1),
            window,
        ]);
    }
    table
}
