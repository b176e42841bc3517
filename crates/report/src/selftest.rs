//! What `vmtax selftest` shows: counts of known exits beside each other, what else was tried, and what recording costs.

use vmtax_analyse::selftest::{Costs, Counter, Exits, Outcome, Tested};

use crate::numbers::count;
use crate::table::{Cell, Column, Table};
use crate::tables::{Tables, TitledTable};

/// Something else that was tried: its name, whether it works, and what was seen.
pub type Tried = (&'static str, Outcome, String);

/// Name and version of the JSON's shape.
const SCHEMA: &str = "vmtax-selftest-1";

/// What an outcome is called.
fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Works => "works",
        Outcome::Differs => "differs",
        Outcome::NotHere => "not here",
    }
}

/// Everything, described once.
///
/// # Errors
/// When a table cannot be shaped: a defect.
pub fn tables(
    tool_version: &'static str,
    tested: &Tested,
    others: Vec<Tried>,
) -> serde_json::Result<Tables> {
    let mut tried = vec![losses(tested), counters(tested), loops(tested)];
    tried.extend(tested.perf.as_ref().err().map(|why| ("perf", Outcome::NotHere, why.clone())));
    let no_reasons = tested.no_reasons.as_ref().filter(|_| tested.perf.is_ok());
    tried.extend(no_reasons.map(|why| ("perf kvm stat", Outcome::NotHere, why.clone())));
    tried.extend(others);
    let exits: Vec<Exits> = tested.exits.iter().chain(tested.perf.as_ref().ok()).cloned().collect();
    let differ =
        exits.iter().map(Exits::outcome).chain(tried.iter().map(|(_, outcome, _)| *outcome));
    let differ = differ.filter(|outcome| *outcome == Outcome::Differs).count();
    let section = |id, title: &str, note: Option<&str>, table| TitledTable {
        id,
        title: title.to_owned(),
        notes: note.map(str::to_owned).into_iter().collect(),
        table,
    };
    let recording = &tested.recording;
    let tables = Tables {
        command: "selftest",
        tool_version,
        facts: vec![
            ("verdict", verdict(differ)),
            ("kernel", recording.kernel.clone()),
            ("processor", recording.cpu.clone()),
        ],
        answer: vec![verdict(differ)],
        emulation: recording.emulated.as_ref().map(|emulator| {
            format!(
                "This host is emulated ({emulator}): counts are exact, times are not a processor's."
            )
        }),
        sections: vec![
            section("exits", "Exits of VMs that take a known number of them", None, counts(exits)),
            section("checks", "Other checks", None, checks(tried)),
            section(
                "costs",
                "Time of one exit, as the guest sees it",
                Some(
                    "Median of the batches: alone, beside `vmtax record`, and beside `vmtax record --raw`.",
                ),
                costs(&tested.costs),
            ),
        ],
        json: serde_json::json!({
            "tool": { "name": "vmtax", "version": tool_version },
            "kernel": recording.kernel,
            "processor": recording.cpu,
            "emulated": recording.emulated,
            "differ": differ,
        }),
    };
    tables.with_rows_as_json(SCHEMA)
}

fn verdict(differ: usize) -> String {
    match differ {
        0 => "Everything that could be tried works: all counts agree.".to_owned(),
        1 => "1 check differs; send the bundle of `--bundle FILE` with a report of it.".to_owned(),
        n => format!(
            "{} checks differ; send the bundle of `--bundle FILE` with a report of them.",
            count(n as u64)
        ),
    }
}

fn losses(tested: &Tested) -> Tried {
    let said: Vec<String> = (tested.losses.counters())
        .filter(|(_, n)| *n > 0)
        .map(|(loss, n)| loss.sentence(n, count))
        .chain(tested.losses.missing.iter().chain(&tested.losses.truncated).cloned())
        .collect();
    let said = if said.is_empty() { "nothing".to_owned() } else { said.join(" ") };
    ("lost by the recorder", tested.whole(), said)
}

fn counters(tested: &Tested) -> Tried {
    let said = match &tested.instructions {
        Ok(seen) => format!("{} instructions during a recording", count(*seen)),
        Err(why) => why.clone(),
    };
    ("the host's counters (record --pmu)", tested.counters(), said)
}

fn loops(tested: &Tested) -> Tried {
    let said = tested.loops.iter().map(|one| match &one.counted {
        Ok(counted) => {
            format!("{}: {} of {} known", one.event, count(*counted), count(one.known))
        }
        Err(why) => format!("{}: {why}", one.event),
    });
    ("counters of a known loop", tested.loops(), said.collect::<Vec<_>>().join(", "))
}

fn counts(exits: Vec<Exits>) -> Table {
    let by = |counter: Counter| move |row: &Exits| row.of(counter).map_or(Cell::Empty, Cell::Count);
    Table::of(exits)
        .column(Column::words("what", "what the guest does"), |row| Cell::Name(row.what.clone()))
        .column(Column::number("known", "known"), |row| row.known.map_or(Cell::Empty, Cell::Count))
        .column(
            Column::number("recorder", "vmtax").help("counted by `vmtax record`"),
            by(Counter::Recorder),
        )
        .column(
            Column::number("events", "events").help("counted by `vmtax record --raw`"),
            by(Counter::Events),
        )
        .column(Column::number("kvm", "KVM").help("KVM's own statistics"), by(Counter::Kvm))
        .column(
            Column::number("perf", "perf").help(
                "`perf kvm stat` by reason and access; all exits: `perf stat -e kvm:kvm_exit`",
            ),
            by(Counter::Perf),
        )
        .column(Column::words("outcome", "outcome"), |row| Cell::Word(word(row.outcome())))
        .table()
}

fn checks(tried: Vec<Tried>) -> Table {
    Table::of(tried)
        .column(Column::words("check", "check"), |(name, ..)| Cell::Word(name))
        .column(Column::words("outcome", "outcome"), |(_, outcome, _)| Cell::Word(word(*outcome)))
        .column(Column::list("seen", "seen"), |(.., seen)| {
            Cell::Words(seen.split(' ').map(str::to_owned).collect())
        })
        .table()
}

fn costs(costs: &[Costs]) -> Table {
    let ns = |of: fn(&Costs) -> f64| move |row: &&Costs| Cell::Nanoseconds(of(row));
    Table::of(costs)
        .column(Column::words("what", "what the guest does"), |row| Cell::Name(row.what.clone()))
        .column(Column::number("alone_ns", "alone"), ns(|row| row.alone_ns))
        .column(Column::number("counted_ns", "counted"), ns(|row| row.counted_ns))
        .column(Column::number("events_ns", "with events"), ns(|row| row.events_ns))
        .table()
}
