//! Both policies on an emulated host: the lab's suite `pmu`, as events created and path lengths.

use serde_json::{Value, json};
use vmtax_lab::suite::Suite;
use vmtax_lab::suite::pmu::{FAULTS, FUNCTIONS, PERIOD};
use vmtax_lab::{Host, Measured, Outcomes, Plan};

/// What came of a host.
pub(super) struct Emulated {
    host: Host,
    outcomes: Outcomes,
}

/// An operation under both policies, legacy first.
struct Pair<'a> {
    name: &'a str,
    /// None where it could not be done.
    creates: [Option<f64>; 2],
    paths: [Option<f64>; 2],
}

pub(super) fn run(host: Host, batches: u32) -> anyhow::Result<Emulated> {
    let suites = Suite::named("pmu").into_iter().collect();
    let plan = Plan { suites, only: Vec::new(), batches };
    Ok(Emulated { host, outcomes: crate::lab::run::suite(host, &plan)? })
}

/// Events created for one operation.
fn creates(operation: &Measured) -> Option<f64> {
    let operations = f64::from(operation.count) * operation.paths.len() as f64;
    operation.pmu.map(|pmu| pmu.creates as f64 / operations)
}

/// The median of the batches.
fn path(operation: &Measured) -> Option<f64> {
    let mut paths = operation.paths.clone();
    paths.sort_by(f64::total_cmp);
    paths.get(paths.len() / 2).copied()
}

fn ratio([legacy, reuse]: [Option<f64>; 2]) -> Option<f64> {
    legacy.zip(reuse).map(|(legacy, reuse)| legacy / reuse)
}

impl Emulated {
    fn operations(&self) -> &[Measured] {
        &self.outcomes.operations
    }

    fn pairs(&self) -> Vec<Pair<'_>> {
        let timed = self.operations().iter().filter(|o| !is_profile(o));
        let pair = |legacy: &'_ Measured| {
            let name = legacy.name.strip_suffix("-legacy")?;
            let reuse =
                self.operations().iter().find(|o| o.name.strip_suffix("-reuse") == Some(name))?;
            let both = [legacy, reuse];
            Some(Pair { name, creates: both.map(creates), paths: both.map(path) })
        };
        timed.filter_map(pair).collect()
    }

    fn profiles(&self) -> impl Iterator<Item = &Measured> {
        self.operations().iter().filter(|o| is_profile(o))
    }

    /// What must fault, with how often it did, of how many.
    fn faults(&self) -> Vec<(&'static str, u64, u64)> {
        let Some(operation) = self.operations().iter().find(|o| o.name == "pmu-faults") else {
            return Vec::new();
        };
        let Some(pmu) = operation.pmu else { return Vec::new() };
        // The batch that warms up is among them.
        let times = u64::from(operation.count) * (operation.paths.len() as u64 + 1);
        let faults = FAULTS.into_iter().zip(&pmu.profile[1..]);
        faults.map(|(what, faulted)| (what, *faulted, times)).collect()
    }

    fn failures(&self) -> impl Iterator<Item = (&str, &str)> {
        self.operations().iter().filter_map(|o| Some((o.name, o.failure.as_deref()?)))
    }

    pub(super) fn text(&self) -> String {
        let mut out = format!(
            "\nA guest of KVM on an emulated host ({}, kernel {}): not hardware. Its events count hypercalls by a \
             tracepoint of the kernel\n\n",
            self.host.emulator(),
            self.outcomes.release
        );
        out.push_str(&format!(
            "{:<18}{:>16}{:>8}{:>23}{:>9}{:>9}\n",
            "of one operation",
            "creates, legacy",
            "reuse",
            "instructions, legacy",
            "reuse",
            "ratio"
        ));
        let shown = |value: Option<f64>, digits: usize| {
            value.map_or("unknown".to_owned(), |v| format!("{v:.digits$}"))
        };
        for Pair { name, creates, paths } in self.pairs() {
            let ratio = ratio(paths).map_or("unknown".to_owned(), |r| format!("{r:.2}x"));
            out.push_str(&format!(
                "{name:<18}{:>16}{:>8}{:>23}{:>9}{ratio:>9}\n",
                shown(creates[0], 1),
                shown(creates[1], 1),
                shown(paths[0], 0),
                shown(paths[1], 0),
            ));
        }
        out.push('\n');
        for operation in self.profiles() {
            out.push_str(&profile(operation));
        }
        let faults = self.faults();
        let parts: Vec<String> =
            faults.iter().map(|(what, n, of)| format!("{what} {n} of {of}")).collect();
        out.push_str(&format!("{:<20}{}\n", "pmu-faults", parts.join(", ")));
        for (name, problem) in self.failures() {
            out.push_str(&format!("{name} was not measured: {problem}\n"));
        }
        out
    }

    pub(super) fn json(&self) -> Value {
        let operations = self.pairs().into_iter().map(|pair| {
            json!({
                "operation": pair.name,
                "creates": { "legacy": pair.creates[0], "reuse": pair.creates[1] },
                "path": { "legacy": pair.paths[0], "reuse": pair.paths[1] },
                "path_ratio": ratio(pair.paths),
            })
        });
        let profiles = self.profiles().filter_map(|operation| {
            let pmu = operation.pmu?;
            let shares = FUNCTIONS.iter().zip(shares(&pmu.profile)).map(
                |((function, calls), share)| json!({ "function": function, "known": known(*calls), "sampled": share }),
            );
            Some(json!({
                "operation": operation.name,
                "period": PERIOD,
                "counted": pmu.counted,
                "creates": pmu.creates,
                "interrupts": pmu.interrupts,
                "delivered": pmu.delivered,
                "merged": pmu.merged,
                "dropped": pmu.dropped,
                "throttles": pmu.throttles,
                "troubles": pmu.troubles,
                "samples_outside": pmu.profile[0],
                "shares": shares.collect::<Vec<_>>(),
            }))
        });
        let failures =
            self.failures().map(|(name, problem)| json!({ "operation": name, "problem": problem }));
        let faults = self
            .faults()
            .into_iter()
            .map(|(what, faulted, of)| json!({ "what": what, "faulted": faulted, "of": of }));
        json!({
            "host": self.host.name(),
            "accelerator": format!("emulated:{}", self.host.emulator()),
            "kernel": self.outcomes.release,
            "operations": operations.collect::<Vec<_>>(),
            "profiles": profiles.collect::<Vec<_>>(),
            "faults": faults.collect::<Vec<_>>(),
            "failures": failures.collect::<Vec<_>>(),
        })
    }
}

fn is_profile(operation: &Measured) -> bool {
    operation.name.starts_with("pmu-profile")
}

/// A function's part of the program.
fn known(calls: u32) -> f64 {
    f64::from(calls) / f64::from(FUNCTIONS.iter().map(|(_, calls)| calls).sum::<u32>())
}

/// Each function's part of the samples.
fn shares(profile: &[u64; 4]) -> [f64; 3] {
    let all: u64 = profile[1..].iter().sum();
    std::array::from_fn(|i| profile[i + 1] as f64 / all.max(1) as f64)
}

fn profile(operation: &Measured) -> String {
    let Some(pmu) = operation.pmu else { return String::new() };
    let parts: Vec<String> = FUNCTIONS
        .iter()
        .zip(shares(&pmu.profile))
        .map(|((name, calls), share)| {
            format!("{name} {:.2} % of {:.0} %", 100.0 * share, 100.0 * known(*calls))
        })
        .collect();
    format!(
        "{:<20}creates {:>5}  counted {}  interrupts {} (delivered {}, merged {}, dropped {})  {}\n",
        operation.name,
        pmu.creates,
        pmu.counted,
        pmu.interrupts,
        pmu.delivered,
        pmu.merged,
        pmu.dropped,
        parts.join(", ")
    )
}
