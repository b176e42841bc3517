//! The gates of precision, tried on this machine: exact counts against single-stepping, conserved counts, shares of
//! samples against known ones, interrupts accounted for, samples that a policy must not lose.
//!
//! It needs no PMU: what counts is the PMU in virtual time, and a processor that steps.

use vmtax_vpmu::host::virtual_time::Costs;
use vmtax_vpmu::{Error, GeneralProtection, Policy};

use crate::precision::Sampling;
use crate::published::{self, ASSUMED};
use crate::script::Script;

/// A gate and what was found at it.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// What is tried.
    pub name: &'static str,
    /// Under this policy.
    pub policy: Policy,
    /// What was found.
    pub found: f64,
    /// What it may be.
    pub limit: Limit,
}

/// What a figure may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// At most so much.
    AtMost(f64),
    /// At least so much.
    AtLeast(f64),
}

impl Gate {
    /// Whether it holds.
    pub fn holds(&self) -> bool {
        match self.limit {
            Limit::AtMost(limit) => self.found <= limit,
            Limit::AtLeast(limit) => self.found >= limit,
        }
    }
}

/// Why the self-test could not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum SelftestError {
    /// There is no virtual PMU.
    #[error(transparent)]
    Pmu(#[from] Error),
    /// A program could not be stepped.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[error(transparent)]
    Step(#[from] vmtax_vpmu::host::step::StepError),
    /// The guest's access faulted.
    #[error("an access of the guest faulted")]
    Fault(#[from] GeneralProtection),
}

/// Tries all gates.
pub fn run() -> Result<Vec<Gate>, SelftestError> {
    let mut gates = Vec::new();
    for policy in Policy::ALL {
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        gates.push(stepped::gate(policy)?);
        gates.push(conserved(policy)?);
        gates.extend(sampled(policy)?);
    }
    Ok(gates)
}

/// What the script's guest reads must not depend on the policy or on costs.
fn conserved(policy: Policy) -> Result<Gate, Error> {
    let script = Script::default();
    let plain = script.run(Policy::Reuse, Costs::default())?;
    let other = script.run(policy, published::costs(ASSUMED))?;
    let found = other.counted.abs_diff(plain.counted)
        + other.activity.counted.abs_diff(plain.activity.counted);
    let name = "counts that differ with policy and costs";
    Ok(Gate { name, policy, found: found as f64, limit: Limit::AtMost(0.0) })
}

fn sampled(policy: Policy) -> Result<Vec<Gate>, Error> {
    let sampling = Sampling::default();
    let ideal = sampling.run(Policy::Reuse, Costs::default())?;
    let profile = sampling.run(policy, published::costs(ASSUMED))?;
    let activity = profile.activity;
    let ends = activity.delivered + activity.merged + activity.dropped;
    let lost = activity.overflows.abs_diff(ends) + profile.samples.abs_diff(activity.delivered);
    // Each share's error as a part of what it may be.
    let errors = profile.shares.iter().map(|share| share.error() / share.gate);
    let gate = |name, found, limit| Gate { name, policy, found, limit };
    let mut gates = vec![
        gate("interrupts not accounted for", lost as f64, Limit::AtMost(0.0)),
        gate("samples in a mode that is not sampled", profile.kernel as f64, Limit::AtMost(0.0)),
        gate(
            "largest error of a share, of its gate",
            errors.fold(0.0, f64::max),
            Limit::AtMost(1.0),
        ),
    ];
    // What legacy loses is its defect: it is shown, and is no gate.
    if policy != Policy::Legacy {
        let part = profile.samples as f64 / ideal.samples.max(1) as f64;
        gates.push(gate("samples of those without costs", part, Limit::AtLeast(0.95)));
    }
    Ok(gates)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stepped {
    use super::{Gate, Limit, SelftestError};
    use vmtax_vpmu::host::step::StepHost;
    use vmtax_vpmu::{Intel, Model, Pmu, Policy};

    /// How often each program's part is repeated.
    const TIMES: u32 = 200;

    /// Programs, with the instructions and branches that they take.
    fn programs() -> [(Vec<u8>, u64, u64); 5] {
        // mov ecx, TIMES
        let begin = [&[0xb9][..], &TIMES.to_le_bytes()].concat();
        let after = |code: &[u8]| [&begin[..], code].concat();
        let n = u64::from(TIMES);
        [
            // nop
            (vec![0x90; TIMES as usize], n, 0),
            // dec ecx; jnz to it
            (after(&[0xff, 0xc9, 0x75, 0xfc]), 1 + 2 * n, n),
            // loop to itself
            (after(&[0xe2, 0xfe]), 1 + n, n),
            // rep stosb: one instruction
            (after(&[0xf3, 0xaa]), 2, 0),
            // call the ret at the end; dec ecx; jnz to the call; jump over the ret
            (
                after(&[0xe8, 6, 0, 0, 0, 0xff, 0xc9, 0x75, 0xf7, 0xeb, 1, 0xc3]),
                2 + 4 * n,
                1 + 3 * n,
            ),
        ]
    }

    /// Counts that differ from those of the programs, with stops and slices in between.
    pub(super) fn gate(policy: Policy) -> Result<Gate, SelftestError> {
        let mut found = 0;
        for (code, instructions, branches) in programs() {
            let intel = Intel { fixed: 1, unavailable: !(1 << 1 | 1 << 5), ..Intel::default() };
            let mut pmu = Pmu::new(Model::Intel(intel), StepHost::new(&code)?, policy)?;
            // Branches in user mode, instructions in user mode.
            pmu.write(0x186, 0x41_00c4)?;
            pmu.write(0x38d, 2)?;
            pmu.write(0x38f, 0x1_0000_0001)?;
            while pmu.host_mut().run(13)? > 0 {
                pmu.write(0x38f, 0)?;
                pmu.slice_end();
                pmu.slice_begin();
                pmu.write(0x38f, 0x1_0000_0001)?;
            }
            found += pmu.read(0x309)?.abs_diff(instructions) + pmu.read(0xc1)?.abs_diff(branches);
        }
        let name = "counts that differ from single-stepping";
        Ok(Gate { name, policy, found: found as f64, limit: Limit::AtMost(0.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_gates_hold() {
        let gates = run().expect("the self-test runs");
        assert_eq!(gates.len(), 17);
        for gate in gates {
            assert!(gate.holds(), "{gate:?}");
        }
    }

    #[test]
    fn a_gate_can_fail() {
        let gate = |found, limit| Gate { name: "", policy: Policy::Reuse, found, limit };
        assert!(gate(0.0, Limit::AtMost(0.0)).holds());
        assert!(!gate(1.0, Limit::AtMost(0.0)).holds());
        assert!(!gate(0.94, Limit::AtLeast(0.95)).holds());
        assert!(!gate(f64::NAN, Limit::AtMost(1.0)).holds());
    }
}
