//! `vmtax vpmu selftest`: the gates of precision.

use serde_json::{Value, json};
use vmtax_cli::exit::{Code, Fault};
use vmtax_vpmu_bench::gates::{Gate, Limit};

use super::{SelftestArgs, print};

pub(super) fn run(args: &SelftestArgs) -> anyhow::Result<()> {
    let gates = vmtax_vpmu_bench::gates::run()?;
    print(args.format, || text(&gates), || as_json(&gates))?;
    let broken: Vec<String> = gates.iter().filter(|g| !g.holds()).map(line).collect();
    match broken.is_empty() {
        true => Ok(()),
        false => {
            let message = format!("{} of {} gates do not hold", broken.len(), gates.len());
            Err(Fault::new(Code::Breach, message).detailed(broken).into())
        }
    }
}

fn line(gate: &Gate) -> String {
    let limit = match gate.limit {
        Limit::AtMost(limit) => format!("at most {limit}"),
        Limit::AtLeast(limit) => format!("at least {limit}"),
    };
    format!("{:<10}{:<44}{:>8.3}  {limit}", gate.policy.name(), gate.name, gate.found)
}

fn text(gates: &[Gate]) -> String {
    let verdict = |gate: &Gate| if gate.holds() { "holds" } else { "BROKEN" };
    gates.iter().map(|gate| format!("{:<8}{}\n", verdict(gate), line(gate))).collect()
}

fn as_json(gates: &[Gate]) -> Value {
    let gate = |gate: &Gate| {
        let (bound, limit) = match gate.limit {
            Limit::AtMost(limit) => ("at_most", limit),
            Limit::AtLeast(limit) => ("at_least", limit),
        };
        json!({
            "gate": gate.name,
            "policy": gate.policy.name(),
            "found": gate.found,
            (bound): limit,
            "holds": gate.holds(),
        })
    };
    json!({ "schema": "vmtax-vpmu-selftest-1", "gates": gates.iter().map(gate).collect::<Vec<_>>() })
}
