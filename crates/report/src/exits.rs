//! The tables of exits and accesses, and what is counted in them, described once.

use vmtax_analyse::{By, Table as Counted, Value, statistics};
use vmtax_events::{Level, NO_VCPU, Recording, Tally};

use crate::numbers::share;
use crate::table::{CSV, Cell, Column, JSON, PAGE, PEOPLE, Table, sort_key};
use crate::{keys, names};

/// A table of exits or accesses; its total is there where there are several rows.
pub(crate) fn table(recording: &Recording, counted: &Counted) -> Table {
    let in_text = shown_keys(counted);
    let mut columns = vec![Column::data("table").only(CSV)];
    columns.extend(keys::columns(&counted.by));
    columns.push(Column::data("vm_name").only(CSV));
    let before = columns.len();
    columns.extend(counted.by.iter().enumerate().map(|(i, by)| {
        let column = Column::words("", names::heading(*by));
        let column = if *by == By::Outcome { column.named("handled by") } else { column };
        let column = if *by == By::Cause { column.class("described") } else { column };
        column.only(if in_text.contains(&i) { PEOPLE } else { PAGE })
    }));
    let noun = if counted.kind.is_exits() { "exits" } else { "count" };
    let timed = counted.total.timed > 0;
    let order = if timed { "time_ns" } else { "count" };
    columns.extend(
        tally_columns(noun, timed)
            .into_iter()
            .map(|column| if column.key == order { column.sorted() } else { column }),
    );
    let mut table = Table::new(columns);
    for row in &counted.rows {
        let mut cells = vec![Cell::Word(counted.kind.name())];
        cells.extend(keys::cells(&counted.by, &row.key));
        let vm = row.key.iter().find_map(|value| match *value {
            Value::Vm(vm) | Value::Vcpu(vm, _) => names::vm_name(recording, vm),
            _ => None,
        });
        cells.push(Cell::of(vm, |name| Cell::Name(name.to_owned())));
        cells.extend(row.key.iter().map(|value| key_cell(recording, *value)));
        cells.extend(tally_cells(&row.tally, &counted.total));
        table.row(cells);
    }
    if counted.rows.len() > 1 {
        let mut cells = vec![Cell::Empty; before + counted.by.len()];
        // The first is never the one that text leaves out.
        if let Some(first) = cells.get_mut(before) {
            *first = Cell::Word("all");
        }
        cells.extend(tally_cells(&counted.total, &counted.total));
        table.total = Some(cells);
    }
    table
}

/// Columns of counts, and of times where there are any.
pub(crate) fn tally_columns(noun: &'static str, timed: bool) -> Vec<Column> {
    let times = |column: Column| column.shown_if(timed);
    let bucket = |column: Column| times(column).help("as the upper bound of its bucket");
    vec![
        Column::number("count", noun),
        Column::minor("", "%", 2).named("% of the count").only(PEOPLE).barred(),
        Column::data("timed"),
        Column::data("time_ns").only(JSON),
        times(Column::number("time_ns", "time").only(PEOPLE | CSV)),
        times(Column::minor("", "%", 1).named("% of the time").only(PEOPLE).barred().class("time")),
        times(Column::minor("min_ns", "min", 7)),
        Column::data("max_ns"),
        times(Column::minor("mean_ns", "mean", 3)).help("arithmetic mean"),
        times(Column::minor("", "±", 4).only(PEOPLE)).help("standard error in percent of the mean"),
        Column::data("stderr_ns"),
        bucket(Column::minor("p50_ns", "p50", 9)),
        bucket(Column::minor("p90_ns", "p90", 8)),
        bucket(Column::minor("p99_ns", "p99", 6)),
        times(Column::minor("", "max", 5).only(PEOPLE)),
        Column::data("hist").only(JSON),
    ]
}

/// A cell for each of [`tally_columns`].
pub(crate) fn tally_cells(tally: &Tally, total: &Tally) -> Vec<Cell> {
    let timed = tally.timed > 0;
    let time = |ns: u64| if timed { Cell::Time(ns) } else { Cell::Absent };
    let mean = statistics::mean_ns(tally);
    let error = statistics::standard_error_ns(tally);
    let spread = match (mean, error) {
        (Some(mean), Some(error)) if mean > 0.0 => {
            let spread = error / mean;
            Cell::Written(format!("{:.1}%", spread * 100.0), sort_key(spread))
        }
        _ => Cell::Absent,
    };
    let quantile =
        |q: f64| Cell::of(statistics::quantile(tally, q), |q| Cell::Quantile(q.low_ns, q.high_ns));
    let filled = tally.hist.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
    vec![
        Cell::Count(tally.count),
        Cell::of(share(tally.count, total.count), Cell::Percent),
        Cell::Count(tally.timed),
        Cell::Count(tally.time_ns),
        time(tally.time_ns),
        Cell::of(share(tally.time_ns, total.time_ns).filter(|_| timed), Cell::Percent),
        time(tally.min_ns),
        time(tally.max_ns),
        Cell::of(mean, Cell::Mean),
        spread,
        Cell::of(error, Cell::Mean),
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
        time(tally.max_ns),
        Cell::Counts(tally.hist[..filled].to_vec()),
    ]
}

/// The fields of a tally in JSON.
pub(crate) fn tally_fields(tally: &Tally) -> Vec<(&'static str, Cell)> {
    let cells = tally_columns("", true).into_iter().zip(tally_cells(tally, tally));
    cells
        .filter(|(column, _)| column.is_on(JSON))
        .map(|(column, cell)| (column.key, cell))
        .collect()
}

/// Which key columns people see: the level is omitted if it was not requested and all exits are of L1.
fn shown_keys(table: &Counted) -> Vec<usize> {
    let asked = table.by != table.kind.default_by();
    let all_l1 = |i: usize| table.rows.iter().all(|row| row.key[i] == Value::Level(Level::L1));
    (0..table.by.len()).filter(|&i| asked || table.by[i] != By::Level || !all_l1(i)).collect()
}

/// A VM, its id first: that is what must stay when the cell is cut.
pub(crate) fn vm_text(recording: &Recording, id: u32) -> String {
    match names::vm_name(recording, id) {
        Some(name) => format!("{id} {}", names::printable(name)),
        None => id.to_string(),
    }
}

fn key_cell(recording: &Recording, value: Value) -> Cell {
    match value {
        Value::Vm(vm) => Cell::Name(vm_text(recording, vm)),
        Value::Vcpu(vm, vcpu) => vcpu_cell(recording, vm, vcpu),
        Value::Cause(cause) => Cell::Described(cause.name(), cause.describe()),
        other => match names::value(other) {
            empty if empty.is_empty() => Cell::Absent,
            label => Cell::Name(label),
        },
    }
}

/// A vCPU, which sorts by its number within its VM; with the VM's id where there is more than one.
fn vcpu_cell(recording: &Recording, vm: u32, vcpu: u32) -> Cell {
    let name = names::vcpu_name(vcpu);
    let name = if recording.vms.len() > 1 { format!("{vm}/{name}") } else { name };
    Cell::Written(name, vcpu_key(vm, vcpu))
}

/// What a vCPU sorts by; `None` where it is not known.
pub(crate) fn vcpu_key(vm: u32, vcpu: u32) -> Option<u128> {
    (vcpu != NO_VCPU).then(|| u128::from(vm) << 32 | u128::from(vcpu))
}
