//! The gates of precision, checked on this machine: counts equal to single-stepping, counts conserved across policies, shares of
//! samples near the known ones, interrupts accounted for, samples not lost.
//!
//! No PMU is needed: the counters are those of the PMU in virtual time, and of a single-stepped processor.

use serde_json::{Value, json};
use vmtax_report::table::{Cell, Column, Table};
use vmtax_report::tables::{Tables, TitledTable};
use vmtax_vpmu::Policy;
use vmtax_vpmu::host::virtual_time::EventCosts;

use crate::Error;
use crate::precision::Sampling;
use crate::published::{self, ASSUMED};
use crate::script::GuestScript;

/// A gate and the figure found.
#[derive(Clone, Debug, PartialEq)]
pub struct FigureGate {
    pub name: &'static str,
    pub policy: Policy,
    /// The figure.
    pub found: f64,
    pub limit: FigureLimit,
}

/// The limit of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FigureLimit {
    AtMost(f64),
    AtLeast(f64),
}

impl FigureGate {
    pub fn holds(&self) -> bool {
        match self.limit {
            FigureLimit::AtMost(limit) => self.found <= limit,
            FigureLimit::AtLeast(limit) => self.found >= limit,
        }
    }

    fn line(&self) -> String {
        let limit = match self.limit {
            FigureLimit::AtMost(limit) => format!("at most {limit}"),
            FigureLimit::AtLeast(limit) => format!("at least {limit}"),
        };
        format!("{:<10}{:<44}{:>8.3}  {limit}", self.policy.name(), self.name, self.found)
    }

    fn json(&self) -> Value {
        let (bound, limit) = match self.limit {
            FigureLimit::AtMost(limit) => ("at_most", limit),
            FigureLimit::AtLeast(limit) => ("at_least", limit),
        };
        json!({
            "gate": self.name,
            "policy": self.policy.name(),
            "found": self.found,
            (bound): limit,
            "holds": self.holds(),
        })
    }
}

/// All gates in every format; docs/json.md.
pub fn tables(gates: &[FigureGate]) -> Tables {
    let holding = gates.iter().filter(|gate| gate.holds()).count();
    let (id, title, notes) = ("gates", "Gates".to_owned(), Vec::new());
    Tables {
        command: "vpmu selftest",
        tool_version: env!("CARGO_PKG_VERSION"),
        facts: vec![("Gates that hold", format!("{holding} of {}", gates.len()))],
        answer: Vec::new(),
        emulation: None,
        sections: vec![TitledTable { id, title, notes, table: table(gates) }],
        json: json!({
            "schema": "vmtax-vpmu-selftest-1",
            "gates": gates.iter().map(FigureGate::json).collect::<Vec<_>>(),
        }),
    }
}

/// A row for each gate.
fn table(gates: &[FigureGate]) -> Table {
    Table::of(gates)
        .column(Column::words("gate", "gate"), |gate| Cell::Word(gate.name))
        .column(Column::words("policy", "policy"), |gate| Cell::Word(gate.policy.name()))
        .column(Column::number("found", "found"), |gate| Cell::Number(gate.found))
        .column(Column::number("at_least", "at least"), |gate| match gate.limit {
            FigureLimit::AtLeast(limit) => Cell::Number(limit),
            FigureLimit::AtMost(_) => Cell::Empty,
        })
        .column(Column::number("at_most", "at most"), |gate| match gate.limit {
            FigureLimit::AtMost(limit) => Cell::Number(limit),
            FigureLimit::AtLeast(_) => Cell::Empty,
        })
        .column(Column::short("holds", "holds"), |gate| Cell::Flag(gate.holds()))
        .table()
}

/// A line for each gate that does not hold.
pub fn broken(gates: &[FigureGate]) -> Vec<String> {
    gates.iter().filter(|gate| !gate.holds()).map(FigureGate::line).collect()
}

/// Tries all gates.
pub fn run() -> Result<Vec<FigureGate>, Error> {
    let mut gates = Vec::new();
    for policy in Policy::ALL {
        #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
        gates.push(stepped::gate(policy)?);
        gates.push(conserved(policy)?);
        gates.extend(sampled(policy)?);
    }
    Ok(gates)
}

/// Values read by the script's guest must not depend on policy and costs.
fn conserved(policy: Policy) -> Result<FigureGate, Error> {
    let script = GuestScript::default();
    let plain = script.run(Policy::Reuse, EventCosts::default())?;
    let other = script.run(policy, published::costs(ASSUMED))?;
    let found = other.counted.abs_diff(plain.counted)
        + other.activity.counted.abs_diff(plain.activity.counted);
    let name = "counts that differ with policy and costs";
    Ok(FigureGate { name, policy, found: found as f64, limit: FigureLimit::AtMost(0.0) })
}

fn sampled(policy: Policy) -> Result<Vec<FigureGate>, Error> {
    let sampling = Sampling::default();
    let ideal = sampling.run(Policy::Reuse, EventCosts::default())?;
    let profile = sampling.run(policy, published::costs(ASSUMED))?;
    let activity = profile.activity;
    let ends = activity.delivered + activity.merged + activity.dropped;
    let lost = activity.overflows.abs_diff(ends) + profile.samples.abs_diff(activity.delivered);
    // Each share's error relative to its gate.
    let errors = profile.shares.iter().map(|share| share.error() / share.gate);
    let gate = |name, found, limit| FigureGate { name, policy, found, limit };
    let mut gates = vec![
        gate("interrupts not accounted for", lost as f64, FigureLimit::AtMost(0.0)),
        gate(
            "samples in a mode that is not sampled",
            profile.kernel as f64,
            FigureLimit::AtMost(0.0),
        ),
        gate(
            "largest error of a share, of its gate",
            errors.fold(0.0, f64::max),
            FigureLimit::AtMost(1.0),
        ),
    ];
    // The samples that legacy loses are shown in the benchmark, and are not a gate.
    if policy != Policy::Legacy {
        let part = profile.samples as f64 / ideal.samples.max(1) as f64;
        gates.push(gate("samples of those without costs", part, FigureLimit::AtLeast(0.95)));
    }
    Ok(gates)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod stepped {
    use super::{Error, FigureGate, FigureLimit};
    use vmtax_vpmu::host::step::StepHost;
    use vmtax_vpmu::{Intel, Pmu, PmuModel, Policy};

    /// Repetitions in each program.
    const TIMES: u32 = 200;

    /// Programs with their numbers of instructions and branches.
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

    /// Sum of differences from the programs' numbers, with stops and slices in between.
    pub(super) fn gate(policy: Policy) -> Result<FigureGate, Error> {
        let mut found = 0;
        for (code, instructions, branches) in programs() {
            let intel = Intel { fixed: 1, unavailable: !(1 << 1 | 1 << 5), ..Intel::default() };
            let mut pmu = Pmu::new(PmuModel::Intel(intel), StepHost::new(&code)?, policy)?;
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
        Ok(FigureGate { name, policy, found: found as f64, limit: FigureLimit::AtMost(0.0) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_can_fail() {
        let gate = |found, limit| FigureGate { name: "", policy: Policy::Reuse, found, limit };
        assert!(gate(0.0, FigureLimit::AtMost(0.0)).holds());
        assert!(!gate(1.0, FigureLimit::AtMost(0.0)).holds());
        assert!(!gate(0.94, FigureLimit::AtLeast(0.95)).holds());
        assert!(!gate(f64::NAN, FigureLimit::AtMost(1.0)).holds());
    }
}
