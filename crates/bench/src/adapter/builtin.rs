//! Workloads that are part of the agent.

use super::text::{after, number};
use super::{Output, ROUNDS, Reading, Refusal, sane, unit};
use vmtax_events::Better;

pub(super) fn parse(output: &Output<'_>) -> Result<Vec<Reading>, Refusal> {
    after(output.stdout, "vmtax-builtin")?;
    let operations = number("operations", after(output.stdout, "operations")?)?;
    if operations < 1.0 {
        return Err(Refusal::Failed("nothing was done in the time given".to_owned()));
    }
    let time = number("ns_per_operation", after(output.stdout, "ns_per_operation")?)?;
    sane(vec![
        Reading::lower("time", unit::NANOSECONDS, time),
        Reading::new(ROUNDS, unit::COUNT, operations, Better::Neither),
    ])
}
