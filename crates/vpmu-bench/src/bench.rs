//! The whole of `vmtax vpmu bench`: figures measured on emulated hosts and of this machine's software events, then computed ones.

use serde_json::{Value, json};
use vmtax_report::table::{Cell, Column, Table};
use vmtax_report::tables::{Tables, TitledTable};
use vmtax_vpmu::host::MsrAccesses;
use vmtax_vpmu::host::perf_event::Software;

use crate::Error;
use crate::computed::Computed;
use crate::emulated::{EmulatedRecording, mediated_exit};
use crate::in_kernel::KernelRecording;
use crate::rows::{self, ComputedRow};
use crate::steady::{Steady, SteadyError, measure};

/// Name and version of the JSON's shape.
const SCHEMA: &str = "vmtax-vpmu-bench-5";

const EVENTS: [(&str, Software); 3] = [
    ("task-clock", Software::TaskClock),
    ("context-switches", Software::ContextSwitches),
    ("page-faults", Software::PageFaults),
];

/// A software event and its steady state.
type MeasuredEvent = (&'static str, Result<Steady, SteadyError>);

/// Figures of the policies.
#[derive(Debug)]
pub struct PolicyBench {
    recording: EmulatedRecording,
    /// The recording is the shipped one.
    recorded: bool,
    /// Accesses that the mediated figures of the recording lack.
    lacks: MsrAccesses,
    /// KVM's own PMU; true where the recording is the shipped one.
    in_kernel: (KernelRecording, bool),
    rows: Vec<ComputedRow>,
    computed: Computed,
    steady: Vec<MeasuredEvent>,
}

impl PolicyBench {
    /// Of recordings measured now, or of the shipped ones. Then come alternating policies on the kernel's software events,
    /// `turns` of each, which take real time; 0 leaves them out.
    pub fn new(
        measured: Option<EmulatedRecording>,
        in_kernel: Option<KernelRecording>,
        turns: u64,
    ) -> Result<PolicyBench, Error> {
        let recorded = measured.is_none();
        let is_shipped = in_kernel.is_none();
        let events = if turns > 0 { &EVENTS[..] } else { &[] };
        Ok(PolicyBench {
            recording: measured.map_or_else(EmulatedRecording::shipped, Ok)?,
            recorded,
            lacks: mediated_exit()?,
            in_kernel: (in_kernel.map_or_else(KernelRecording::shipped, Ok)?, is_shipped),
            rows: rows::computed()?,
            computed: Computed::run()?,
            steady: events.iter().map(|(name, event)| (*name, measure(*event, turns))).collect(),
        })
    }

    /// In every format; docs/json.md.
    pub fn tables(&self) -> Tables {
        let mut sections = self.recording.sections(self.recorded, self.lacks);
        let (in_kernel, is_shipped) = &self.in_kernel;
        sections.extend(in_kernel.sections(*is_shipped));
        sections.push(rows::section(in_kernel, &self.rows));
        sections.extend((!self.steady.is_empty()).then(|| steady(&self.steady)));
        sections.extend(self.computed.sections());
        Tables {
            command: "vpmu bench",
            tool_version: env!("CARGO_PKG_VERSION"),
            facts: Vec::new(),
            answer: Vec::new(),
            emulation: None,
            sections,
            json: self.json(),
        }
    }

    fn json(&self) -> Value {
        json!({
            "schema": SCHEMA,
            "emulated": {
                "recorded": self.recorded,
                "mediated_lacks": { "reads": self.lacks.reads, "writes": self.lacks.writes },
                "recording": self.recording,
            },
            "kvm": { "recorded": self.in_kernel.1, "recording": self.in_kernel.0 },
            "operations": rows::json(&self.rows),
            "computed": self.computed.json(),
            "steady": self.steady.iter().map(steady_json).collect::<Vec<_>>(),
        })
    }
}

fn steady(measured: &[MeasuredEvent]) -> TitledTable {
    let of = |result: &Result<Steady, SteadyError>, cell: fn(&Steady) -> Cell| {
        Cell::of(result.as_ref().ok(), cell)
    };
    let table = Table::of(measured)
        .column(Column::words("event", "event"), |(name, _)| Cell::Word(name))
        .column(Column::number("rounds", "rounds"), |(_, it)| of(it, |it| Cell::Count(it.rounds)))
        .column(Column::number("creates_legacy", "creates, legacy"), |(_, it)| {
            of(it, |it| Cell::Count(it.creates[0]))
        })
        .column(Column::number("creates_reuse", "reuse"), |(_, it)| {
            of(it, |it| Cell::Count(it.creates[1]))
        })
        .column(Column::number("round_legacy_ns", "a round, legacy"), |(_, it)| {
            of(it, |it| Cell::Time(it.time[0].as_nanos() as u64))
        })
        .column(Column::number("round_reuse_ns", "reuse"), |(_, it)| {
            of(it, |it| Cell::Time(it.time[1].as_nanos() as u64))
        })
        .column(Column::number("time_ratio", "legacy/reuse"), |(_, it)| {
            of(it, |it| Cell::Number(time_ratio(it)))
        })
        .column(Column::words("unknown", "unknown"), |(_, it)| match it {
            Ok(_) => Cell::Empty,
            Err(error) => Cell::Name(error.to_string()),
        })
        .table();
    TitledTable {
        id: "steady",
        title: "This kernel's software events under a profiling guest's steady state".to_owned(),
        notes: vec!["Times are this machine's.".to_owned()],
        table,
    }
}

fn time_ratio(steady: &Steady) -> f64 {
    steady.time[0].as_secs_f64() / steady.time[1].as_secs_f64()
}

fn steady_json((name, result): &MeasuredEvent) -> Value {
    match result {
        Ok(s) => json!({
            "event": name,
            "rounds": s.rounds,
            "creates": { "legacy": s.creates[0], "reuse": s.creates[1] },
            "round_ns": { "legacy": s.time[0].as_nanos() as u64, "reuse": s.time[1].as_nanos() as u64 },
            "time_ratio": time_ratio(s),
        }),
        Err(error) => json!({ "event": name, "unknown": error.to_string() }),
    }
}
