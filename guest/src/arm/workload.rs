//! Built-in workloads of a Linux guest: so many rounds of one in each batch.

use vmtax_guest::layout;
use vmtax_guest::order::{LINUX, Operation, PerfBatch};

use super::ports;
use super::vmm::ArmPlan;
use crate::life::machine::ticks;
use crate::{Result, builtin, system};

/// Runs all batches of an operation: the cycles of each. No perf counts them.
pub(crate) fn execute(
    operation: &Operation,
    rounds: u32,
    plan: &ArmPlan<'_>,
) -> Result<(Vec<u64>, Vec<PerfBatch>)> {
    system::loopback_up()?;
    let name = operation.name.strip_prefix(LINUX).unwrap_or(&operation.name);
    let mut cycles = Vec::new();
    for batch in 0..plan.batches {
        let is_traced = plan.traced == Some(batch);
        if is_traced {
            plan.tracer.record(true);
        }
        ports::out32(layout::begin(operation.number), batch);
        let start = ticks();
        let done = builtin::rounds(name, rounds);
        cycles.push(ticks() - start);
        ports::out32(layout::end(operation.number), batch);
        if is_traced {
            plan.tracer.record(false);
        }
        done?;
    }
    Ok((cycles, Vec::new()))
}
