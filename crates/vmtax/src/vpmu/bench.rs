//! `vmtax vpmu bench`: what was measured, then what is computed, then this machine's software events.

use serde_json::{Value, json};
use vmtax_vpmu::host::perf_event::Software;
use vmtax_vpmu_bench::steady::{Steady, SteadyError, measure};

use super::computed::Computed;
use super::emulated::{Recording, mediated_exit};
use super::{BenchArgs, print};

/// A software event and what its steady state came to.
type Measured = (&'static str, Result<Steady, SteadyError>);

const EVENTS: [(&str, Software); 3] = [
    ("task-clock", Software::TaskClock),
    ("context-switches", Software::ContextSwitches),
    ("page-faults", Software::PageFaults),
];

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let shipped = args.emulated.is_empty();
    let recording = match shipped {
        true => Recording::shipped()?,
        false => {
            let hosts: Vec<_> = args.emulated.iter().map(|word| word.host()).collect();
            Recording::measured(&hosts, args.batches)?
        }
    };
    if let Some(path) = &args.record {
        let text = format!("{:#}\n", serde_json::to_value(&recording)?);
        vmtax_cli::output::write(Some(path), |out| Ok(out.write_all(text.as_bytes())?))?;
    }
    let computed = Computed::run()?;
    let exit = mediated_exit()?;
    let events = if args.turns > 0 { &EVENTS[..] } else { &[] };
    let steady: Vec<Measured> =
        events.iter().map(|(name, event)| (*name, measure(*event, args.turns))).collect();
    print(
        args.format,
        || [recording.text(shipped, exit), computed.text(), text(&steady)].concat(),
        || {
            json!({
                "schema": SCHEMA,
                "emulated": {
                    "recorded": shipped,
                    "mediated_lacks": { "reads": exit.reads, "writes": exit.writes },
                    "recording": recording,
                },
                "computed": computed.json(),
                "steady": steady.iter().map(as_json).collect::<Vec<_>>(),
            })
        },
    )
}

/// Name and version of the JSON's shape.
const SCHEMA: &str = "vmtax-vpmu-bench-3";

fn text(measured: &[Measured]) -> String {
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

fn as_json((name, result): &Measured) -> Value {
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
