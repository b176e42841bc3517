//! The key columns of rows: once for people, in the requested order, and once for programs.

use vmtax_analyse::{By, Value};
use vmtax_events::{Detail, DetailKind, NO_VCPU, Reason};

use crate::names;
use crate::table::{CSV, Cell, Column, JSON};

/// The columns of a key for programs, in the order of the JSON.
pub(crate) fn columns(by: &[By]) -> Vec<Column> {
    let has = |one| by.contains(&one);
    let mut columns = Vec::new();
    if has(By::Reason) {
        columns.extend(reason_columns());
    }
    for (one, key) in [(By::Level, "level"), (By::Cause, "cause")] {
        columns.extend(has(one).then(|| Column::data(key)));
    }
    if has(By::Detail) {
        columns.extend(detail_columns());
    }
    columns.extend(has(By::Outcome).then(|| Column::data("outcome")));
    columns.extend((has(By::Vm) || has(By::Vcpu)).then(|| Column::data("vm")));
    columns.extend(has(By::Vcpu).then(|| Column::data("vcpu")));
    columns
}

/// A cell for each of [`columns`].
pub(crate) fn cells(by: &[By], key: &[Value]) -> Vec<Cell> {
    let of = |one: By| by.iter().zip(key).find(|(by, _)| **by == one).map(|(_, value)| *value);
    let mut cells = Vec::new();
    if let Some(Value::Reason(reason)) = of(By::Reason) {
        cells.extend(reason_cells(reason));
    }
    if let Some(Value::Level(level)) = of(By::Level) {
        cells.push(Cell::Word(level.name()));
    }
    if let Some(Value::Cause(cause)) = of(By::Cause) {
        cells.push(Cell::Word(cause.name()));
    }
    if let Some(Value::Detail(detail)) = of(By::Detail) {
        cells.extend(detail_cells(detail));
    }
    if let Some(Value::Outcome(outcome)) = of(By::Outcome) {
        cells.push(Cell::Word(outcome.name()));
    }
    match (of(By::Vm), of(By::Vcpu)) {
        (_, Some(Value::Vcpu(vm, vcpu))) => {
            let vcpu = (vcpu != NO_VCPU).then_some(vcpu);
            cells.extend([Cell::Count(vm.into()), Cell::of(vcpu, |n| Cell::Count(n.into()))]);
        }
        (Some(Value::Vm(vm)), _) => cells.push(Cell::Count(vm.into())),
        _ => {}
    }
    cells
}

/// The columns of a reason for programs.
pub(crate) fn reason_columns() -> [Column; 4] {
    let numbers = ["reason_code", "reason_flags", "isa"].map(|key| Column::data(key).only(JSON));
    let [code, flags, isa] = numbers;
    [Column::data("reason"), code, flags, isa]
}

/// A cell for each of [`reason_columns`].
pub(crate) fn reason_cells(reason: Reason) -> [Cell; 4] {
    [
        Cell::Name(names::reason(reason)),
        Cell::Count(reason.code.into()),
        Cell::Count(reason.flags.into()),
        Cell::Word(reason.isa.name()),
    ]
}

/// A reason as fields of an object.
pub(crate) fn reason_fields(reason: Reason) -> Vec<(&'static str, Cell)> {
    let keys = reason_columns().map(|column| column.key);
    keys.into_iter().zip(reason_cells(reason)).collect()
}

/// The columns of a detail for programs.
pub(crate) fn detail_columns() -> [Column; 4] {
    [
        Column::data("detail").only(JSON),
        Column::data("detail_kind").only(CSV),
        Column::data("detail").only(CSV),
        Column::data("detail_name").only(CSV),
    ]
}

/// A cell for each of [`detail_columns`].
pub(crate) fn detail_cells(detail: Detail) -> [Cell; 4] {
    let name = || Cell::of(names::detail_name(detail), Cell::Name);
    let kind = Cell::Word(detail.kind.name());
    let object = Cell::Object(vec![
        ("kind", kind.clone()),
        ("value", Cell::Count(detail.value)),
        ("hex", Cell::Hex(detail.value)),
        ("name", name()),
    ]);
    if detail.kind == DetailKind::None {
        return [object, Cell::Empty, Cell::Empty, Cell::Empty];
    }
    [object, kind, Cell::Hex(detail.value), name()]
}
