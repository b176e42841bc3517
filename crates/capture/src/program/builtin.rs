//! Workloads that are part of the agent.

use super::text::{after, number};
use super::{ClientOutput, OutputRefusal, ProgramReading, sane, unit};
use vmtax_events::Better;

/// The metric with the number of operations done.
pub const ROUNDS: &str = "rounds";

/// Percentiles of a latency, as printed and as metrics. In an output there are all of them or none.
const PERCENTILES: [(&str, &str); 5] = [
    ("latency_p50_ns", "latency-p50"),
    ("latency_p90_ns", "latency-p90"),
    ("latency_p99_ns", "latency-p99"),
    ("latency_p99.9_ns", "latency-p99.9"),
    ("latency_max_ns", "latency-max"),
];

/// A workload whose time for an operation is a latency.
pub fn latency(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let mut readings = parse(output)?;
    if !readings.iter().any(|reading| reading.metric == PERCENTILES[0].1) {
        return Err(OutputRefusal::missing(PERCENTILES[0].0));
    }
    readings.extend(lost(output)?);
    Ok(readings)
}

/// A workload that sends as much as it can.
pub fn stream(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    let bits = number("bits_per_second", after(output.stdout, "bits_per_second")?)?;
    let mut readings = sane(vec![ProgramReading::higher("throughput", unit::BITS, bits)])?;
    readings.extend(parse(output)?);
    readings.extend(lost(output)?);
    Ok(readings)
}

/// Datagrams that did not arrive, where the output has their number.
fn lost(output: &ClientOutput<'_>) -> Result<Option<ProgramReading>, OutputRefusal> {
    match after(output.stdout, "lost") {
        Ok(word) => Ok(Some(ProgramReading::lower("lost", unit::COUNT, number("lost", word)?))),
        Err(_) => Ok(None),
    }
}

/// Any workload.
pub fn parse(output: &ClientOutput<'_>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    after(output.stdout, "vmtax-builtin")?;
    let operations = number("operations", after(output.stdout, "operations")?)?;
    if operations < 1.0 {
        return Err(OutputRefusal::Failed("nothing was done in the time given".to_owned()));
    }
    let time = number("ns_per_operation", after(output.stdout, "ns_per_operation")?)?;
    let mut readings = vec![
        ProgramReading::lower("time", unit::NANOSECONDS, time),
        ProgramReading::new(ROUNDS, unit::COUNT, operations, Better::Neither),
    ];
    if after(output.stdout, PERCENTILES[0].0).is_ok() {
        for (word, metric) in PERCENTILES {
            let value = number(word, after(output.stdout, word)?)?;
            readings.push(ProgramReading::lower(metric, unit::NANOSECONDS, value));
        }
    }
    sane(readings)
}
