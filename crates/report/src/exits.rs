//! The tables of exits and accesses, and what is counted in them, described once.

use vmtax_analyse::{By, KeyValue, Ledger, SortedTable as Counted, statistics};
use vmtax_events::{Level, NO_VCPU, Recording, Tally};

use crate::numbers::share;
use crate::table::{CSV, Carrying, Cell, Column, JSON, PAGE, PEOPLE, Table, changed, sort_key};
use crate::{keys, names};

/// What a row counts, and of what it is a part.
#[derive(Clone, Copy)]
pub(crate) struct ExitCounts<'a> {
    pub(crate) tally: &'a Tally,
    pub(crate) whole: &'a Tally,
}

/// A table of exits or accesses; its total, a row without a key, is there where there are several rows.
pub(crate) fn table(recording: &Recording, counted: &Counted) -> Table {
    let in_text = shown_keys(counted);
    let noun = if counted.kind.is_exits() { "exits" } else { "count" };
    let timed = counted.total.timed > 0;
    let order = if timed { "time_ns" } else { "count" };
    let rows = counted.rows.iter().map(|row| (row.key.as_slice(), &row.tally));
    let total = (counted.rows.len() > 1).then_some((&[][..], &counted.total));
    let mut table = Table::of(rows)
        .total(total)
        .column(Column::data("table").only(CSV), |_| Cell::Word(counted.kind.name()))
        .columns(keys::columns(&counted.by), |(key, _)| *key)
        .column(Column::data("vm_name").only(CSV), |(key, _)| {
            let vm = key.iter().find_map(|value| match *value {
                KeyValue::Vm(vm) | KeyValue::Vcpu(vm, _) => names::vm_name(recording, vm),
                _ => None,
            });
            Cell::of(vm, |name| Cell::Name(name.to_owned()))
        });
    for (at, by) in counted.by.iter().enumerate() {
        let column = Column::words("", names::heading(*by));
        let column = if *by == By::Outcome { column.named("handled by") } else { column };
        let column = if *by == By::Cause { column.class("described") } else { column };
        let column = column.only(if in_text.contains(&at) { PEOPLE } else { PAGE });
        table = table.column(column, |(key, _)| match key.get(at) {
            Some(value) => key_cell(recording, *value),
            // The first is never the one that text leaves out.
            None if at == 0 => Cell::Word("all"),
            None => Cell::Empty,
        });
    }
    let sorted = |column: Column| if column.key == order { column.sorted() } else { column };
    let counts = changed(tally_columns(noun, timed), sorted);
    table.columns(counts, |(_, tally)| ExitCounts { tally, whole: &counted.total }).table()
}

/// Columns of counts, and of times where there are any.
pub(crate) fn tally_columns<'a>(
    noun: &'static str,
    timed: bool,
) -> Vec<Carrying<'a, ExitCounts<'a>>> {
    let times = |column: Column| column.shown_if(timed);
    let people = |column: Column| times(column.only(PEOPLE));
    let quantile = |key, title, rank, q| {
        let column = times(Column::minor(key, title, rank)).help("at most this");
        column.of(move |it: &ExitCounts<'a>| {
            Cell::of(statistics::quantile(it.tally, q), |q| Cell::Quantile(q.low_ns, q.high_ns))
        })
    };
    vec![
        Column::number("count", noun).of(|it: &ExitCounts<'a>| Cell::Count(it.tally.count)),
        Column::minor("", "%", 2).named("% of the count").only(PEOPLE).barred().of(
            |it: &ExitCounts<'a>| Cell::of(share(it.tally.count, it.whole.count), Cell::Percent),
        ),
        Column::data("timed").of(|it: &ExitCounts<'a>| Cell::Count(it.tally.timed)),
        Column::data("time_ns").only(JSON).of(|it: &ExitCounts<'a>| Cell::Count(it.tally.time_ns)),
        times(Column::number("time_ns", "time").only(PEOPLE | CSV))
            .of(|it: &ExitCounts<'a>| time(it.tally, it.tally.time_ns)),
        people(Column::minor("", "%", 1)).named("% of the time").barred().class("time").of(
            |it: &ExitCounts<'a>| {
                let part = share(it.tally.time_ns, it.whole.time_ns).filter(|_| it.tally.timed > 0);
                Cell::of(part, Cell::Percent)
            },
        ),
        times(Column::minor("min_ns", "min", 7))
            .of(|it: &ExitCounts<'a>| time(it.tally, it.tally.min_ns)),
        Column::data("max_ns").of(|it: &ExitCounts<'a>| time(it.tally, it.tally.max_ns)),
        times(Column::minor("mean_ns", "mean", 3))
            .help("arithmetic mean")
            .of(|it: &ExitCounts<'a>| Cell::of(statistics::mean_ns(it.tally), Cell::Mean)),
        people(Column::minor("", "±", 4))
            .help("standard error in percent of the mean")
            .of(|it: &ExitCounts<'a>| spread(it.tally)),
        Column::data("stderr_ns").of(|it: &ExitCounts<'a>| {
            Cell::of(statistics::standard_error_ns(it.tally), Cell::Mean)
        }),
        quantile("p50_ns", "p50", 9, 0.5),
        quantile("p90_ns", "p90", 8, 0.9),
        quantile("p99_ns", "p99", 6, 0.99),
        people(Column::minor("", "max", 5))
            .of(|it: &ExitCounts<'a>| time(it.tally, it.tally.max_ns)),
        Column::data("hist").only(JSON).of(|it: &ExitCounts<'a>| {
            let octaves = it.tally.durations.octaves();
            let filled = octaves.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
            Cell::Counts(octaves[..filled].to_vec())
        }),
    ]
}

/// How exact percentiles are.
pub(crate) fn precision(ledger: &Ledger) -> &'static str {
    if ledger.exits.values().any(|tally| tally.durations.has_octaves()) {
        "p50, p90, p99: upper bounds; the true value can be half as large, as the source counted by powers of 2."
    } else {
        "p50, p90, p99: upper bounds, less than 1 % above the true value."
    }
}

/// A time of a tally, if any was recorded.
pub(crate) fn time(tally: &Tally, ns: u64) -> Cell {
    Cell::of((tally.timed > 0).then_some(ns), Cell::Time)
}

/// The standard error over the mean.
fn spread(tally: &Tally) -> Cell {
    match (statistics::mean_ns(tally), statistics::standard_error_ns(tally)) {
        (Some(mean), Some(error)) if mean > 0.0 => {
            let spread = error / mean;
            Cell::Written(format!("{:.1}%", spread * 100.0), sort_key(spread))
        }
        _ => Cell::Absent,
    }
}

/// The fields of a tally in JSON.
pub(crate) fn tally_fields(tally: &Tally) -> Vec<(&'static str, Cell)> {
    let counts = ExitCounts { tally, whole: tally };
    let columns = tally_columns("", true).into_iter().filter(|(column, _)| column.is_on(JSON));
    columns.map(|(column, cell)| (column.key, cell(&counts))).collect()
}

/// Which key columns people see: the level is omitted if it was not requested and all exits are of L1.
fn shown_keys(table: &Counted) -> Vec<usize> {
    let asked = table.by != table.kind.default_by();
    let all_l1 = |i: usize| table.rows.iter().all(|row| row.key[i] == KeyValue::Level(Level::L1));
    (0..table.by.len()).filter(|&i| asked || table.by[i] != By::Level || !all_l1(i)).collect()
}

/// A VM, its id first: that is what must stay when the cell is cut.
pub(crate) fn vm_text(recording: &Recording, id: u32) -> String {
    match names::vm_name(recording, id) {
        Some(name) => format!("{id} {}", names::printable(name)),
        None => id.to_string(),
    }
}

fn key_cell(recording: &Recording, value: KeyValue) -> Cell {
    match value {
        KeyValue::Vm(vm) => Cell::Name(vm_text(recording, vm)),
        KeyValue::Vcpu(vm, vcpu) => vcpu_cell(recording, vm, vcpu),
        KeyValue::Cause(cause) => Cell::Described(cause.name(), cause.describe()),
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
