//! The key columns of rows: once for people, in the requested order, and once for programs.

use vmtax_analyse::{By, KeyValue};
use vmtax_events::{Detail, DetailKind, NO_VCPU, Reason};

use crate::names;
use crate::table::{CSV, Carrying, Cell, Column, JSON};

/// The columns of a key for programs, in the order of the JSON. They are made of the values in the order of `by`; without any they are blank.
pub(crate) fn columns<'a>(by: &[By]) -> Vec<Carrying<'a, &'a [KeyValue]>> {
    let at = |one: By| by.iter().position(|by| *by == one);
    let mut columns: Vec<Carrying<'a, &'a [KeyValue]>> = Vec::new();
    if let Some(at) = at(By::Reason) {
        let reason = move |key: &&[KeyValue]| match key.get(at) {
            Some(KeyValue::Reason(reason)) => Some(*reason),
            _ => None,
        };
        columns.extend(
            reason_columns().map(|(column, cell)| column.of(move |key| cell(&reason(key)))),
        );
    }
    for (one, key) in [(By::Level, "level"), (By::Cause, "cause")] {
        columns.extend(at(one).map(|at| word_column(key, at)));
    }
    if let Some(at) = at(By::Detail) {
        let detail = move |key: &&[KeyValue]| match key.get(at) {
            Some(KeyValue::Detail(detail)) => Some(*detail),
            _ => None,
        };
        columns.extend(
            detail_columns().map(|(column, cell)| column.of(move |key| cell(&detail(key)))),
        );
    }
    columns.extend(at(By::Outcome).map(|at| word_column("outcome", at)));
    if let Some(at) = at(By::Vcpu).or(at(By::Vm)) {
        columns.push(Column::data("vm").of(move |key: &&[KeyValue]| match key.get(at) {
            Some(KeyValue::Vm(vm) | KeyValue::Vcpu(vm, _)) => Cell::Count((*vm).into()),
            _ => Cell::Empty,
        }));
    }
    columns.extend(at(By::Vcpu).map(|at| {
        Column::data("vcpu").of(move |key: &&[KeyValue]| match key.get(at) {
            Some(KeyValue::Vcpu(_, vcpu)) if *vcpu != NO_VCPU => Cell::Count((*vcpu).into()),
            _ => Cell::Absent,
        })
    }));
    columns
}

fn word_column<'a>(key: &'static str, at: usize) -> Carrying<'a, &'a [KeyValue]> {
    Column::data(key).of(move |values: &&[KeyValue]| match values.get(at) {
        Some(KeyValue::Level(level)) => Cell::Word(level.name()),
        Some(KeyValue::Cause(cause)) => Cell::Word(cause.name()),
        Some(KeyValue::Outcome(outcome)) => Cell::Word(outcome.name()),
        _ => Cell::Empty,
    })
}

/// The columns of a reason for programs; blank where there is none.
pub(crate) fn reason_columns<'c>() -> [Carrying<'c, Option<Reason>>; 4] {
    let json = |key| Column::data(key).only(JSON);
    [
        Column::data("reason")
            .of(|reason| Cell::of(*reason, |it: Reason| Cell::Name(names::reason(it)))),
        json("reason_code")
            .of(|reason| Cell::of(*reason, |it: Reason| Cell::Count(it.code.into()))),
        json("reason_flags")
            .of(|reason| Cell::of(*reason, |it: Reason| Cell::Count(it.flags.into()))),
        json("isa").of(|reason| Cell::of(*reason, |it: Reason| Cell::Word(it.isa.name()))),
    ]
}

/// A reason as fields of an object.
pub(crate) fn reason_fields(reason: Reason) -> Vec<(&'static str, Cell)> {
    reason_columns().map(|(column, cell)| (column.key, cell(&Some(reason)))).to_vec()
}

/// The columns of a detail for programs; blank where there is none.
pub(crate) fn detail_columns<'c>() -> [Carrying<'c, Option<Detail>>; 4] {
    let csv = |key| Column::data(key).only(CSV);
    let known = |detail: &Option<Detail>| detail.filter(|detail| detail.kind != DetailKind::None);
    [
        Column::data("detail").only(JSON).of(|detail| Cell::of(*detail, detail_object)),
        csv("detail_kind")
            .of(move |detail| Cell::of(known(detail), |it| Cell::Word(it.kind.name()))),
        csv("detail").of(move |detail| Cell::of(known(detail), |it| Cell::Hex(it.value))),
        csv("detail_name")
            .of(move |detail| Cell::of(known(detail).and_then(names::detail_name), Cell::Name)),
    ]
}

/// A detail in JSON.
pub(crate) fn detail_object(detail: Detail) -> Cell {
    Cell::Object(vec![
        ("kind", Cell::Word(detail.kind.name())),
        ("value", Cell::Count(detail.value)),
        ("hex", Cell::Hex(detail.value)),
        ("name", Cell::of(names::detail_name(detail), Cell::Name)),
    ])
}
