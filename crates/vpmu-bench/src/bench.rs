//! The whole of `vmtax vpmu bench`: figures measured on emulated hosts, then computed ones, then this machine's software events.

use serde_json::{Value, json};
use vmtax_vpmu::host::MsrAccesses;
use vmtax_vpmu::host::perf_event::Software;

use crate::Error;
use crate::computed::Computed;
use crate::emulated::{Recording, mediated_exit};
use crate::steady::{Steady, SteadyError, measure};

/// Name and version of the JSON's shape.
const SCHEMA: &str = "vmtax-vpmu-bench-3";

const EVENTS: [(&str, Software); 3] = [
    ("task-clock", Software::TaskClock),
    ("context-switches", Software::ContextSwitches),
    ("page-faults", Software::PageFaults),
];

/// A software event and its steady state.
type Measured = (&'static str, Result<Steady, SteadyError>);

/// Figures of the policies.
#[derive(Debug)]
pub struct Bench {
    recording: Recording,
    /// The recording is the shipped one.
    recorded: bool,
    /// Accesses that the mediated figures of the recording lack.
    lacks: MsrAccesses,
    computed: Computed,
    steady: Vec<Measured>,
}

impl Bench {
    /// Of a recording measured now, or of the shipped one. Then come alternating policies on the kernel's software events,
    /// `turns` of each, which take real time; 0 leaves them out.
    ///
    /// # Errors
    /// When a virtual PMU cannot be made.
    pub fn new(measured: Option<Recording>, turns: u64) -> Result<Bench, Error> {
        let recorded = measured.is_none();
        let events = if turns > 0 { &EVENTS[..] } else { &[] };
        Ok(Bench {
            recording: measured.map_or_else(Recording::shipped, Ok)?,
            recorded,
            lacks: mediated_exit()?,
            computed: Computed::run()?,
            steady: events.iter().map(|(name, event)| (*name, measure(*event, turns))).collect(),
        })
    }

    /// Tables for people.
    pub fn text(&self) -> String {
        let recording = self.recording.text(self.recorded, self.lacks);
        [recording, self.computed.text(), steady_text(&self.steady)].concat()
    }

    /// For programs; docs/json.md.
    pub fn json(&self) -> Value {
        json!({
            "schema": SCHEMA,
            "emulated": {
                "recorded": self.recorded,
                "mediated_lacks": { "reads": self.lacks.reads, "writes": self.lacks.writes },
                "recording": self.recording,
            },
            "computed": self.computed.json(),
            "steady": self.steady.iter().map(steady_json).collect::<Vec<_>>(),
        })
    }
}

fn steady_text(measured: &[Measured]) -> String {
    let mut out = String::new();
    if !measured.is_empty() {
        out.push_str(
            "\nThis kernel's software events under a profiling guest's steady state, legacy -> reuse; times are this machine's\n\n",
        );
    }
    for (name, result) in measured {
        match result {
            Ok(steady) => {
                let Steady { rounds, creates, time } = steady;
                out.push_str(&format!(
                    "{name:<18}{rounds} rounds: creates {} -> {}, a round {:.1?} -> {:.1?} ({:.1}x)\n",
                    creates[0],
                    creates[1],
                    time[0],
                    time[1],
                    time_ratio(steady)
                ));
            }
            Err(error) => out.push_str(&format!("{name:<18}unknown: {error}\n")),
        }
    }
    out
}

fn time_ratio(steady: &Steady) -> f64 {
    steady.time[0].as_secs_f64() / steady.time[1].as_secs_f64()
}

fn steady_json((name, result): &Measured) -> Value {
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
