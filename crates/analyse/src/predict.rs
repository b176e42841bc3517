//! What a VM's exits would cost elsewhere: how often it takes them, times what is published of one.
//!
//! Little is published, so most of a prediction is "unknown", and is called that: a cost that nobody measured is not
//! invented. What stands there is a lower bound of exits that are known, on the processor of the source.
//!
//! Left out on purpose: what changes beside exits (memory encryption, misses of the TLB, bounce buffers), and exits
//! that only come there.

use std::collections::BTreeMap;

use vmtax_events::{Cause, DetailKind, ExitKey, Isa, Level, svm, vmx};

use crate::Ledger;
use crate::audit::{Check, RULES, Removes, Rule};
use crate::published::CYCLES_L2_OVER_L1;
use crate::table::cause_of;

/// Where the VM might run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// As an SEV-SNP guest.
    Snp,
    /// As a TDX guest.
    Tdx,
    /// In a VM, by KVM there.
    Nested,
}

impl To {
    /// All of them.
    pub const ALL: [To; 3] = [To::Snp, To::Tdx, To::Nested];

    /// The word of `--to` and of the JSON.
    pub fn name(self) -> &'static str {
        match self {
            To::Snp => "snp",
            To::Tdx => "tdx",
            To::Nested => "nested",
        }
    }

    /// Who published the costs, and on what; `None` where nobody did.
    pub fn source(self) -> Option<&'static str> {
        match self {
            To::Snp => Some(
                "performance analysis of confidential VMs (TU Munich, 2024) and figures published beside it: EPYC 7713P, \
                 Linux 6.8-rc5, one run each",
            ),
            To::Tdx => None,
            To::Nested => Some(
                "profiling nested KVM (KVM Forum 2017; Linux 4.13, Broadwell): cycles of a CPUID at L2 over those at L1",
            ),
        }
    }

    /// What the source says of exits beside their cost.
    pub fn remark(self) -> &'static str {
        match self {
            To::Snp => {
                "QEMU hides the TSC-deadline timer from SNP guests: timers are armed through registers of the APIC, more often"
            }
            To::Tdx => {
                "The same timers were armed and ticked as often in a TD as in a plain VM, for other reasons (TDCALL, EXTERNAL_INTERRUPT); \
                 no cost of an exit is published"
            }
            To::Nested => {
                "Each exit of L2 that L1 handles takes further exits of L1; `vmtax lab run --nested` counts them for a kernel"
            }
        }
    }
}

/// Exits whose cost somebody published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// CPUID.
    Cpuid,
    /// RDMSR; of WRMSR nothing is published.
    MsrRead,
    /// VMCALL, VMMCALL.
    Hypercall,
    /// IN; of OUT nothing is published.
    PortIn,
}

/// A cost of one exit in a plain AMD VM and in an SNP guest, ns: cpuid 0xb, rdmsr 0x1b, hypercall, in 0x40 (S2).
const SNP: [(Kind, f64, f64); 4] = [
    (Kind::Cpuid, 1232.0, 3859.0),
    (Kind::MsrRead, 1290.0, 3573.0),
    (Kind::Hypercall, 1255.0, 3553.0),
    (Kind::PortIn, 1635.0, 3885.0),
];

/// The least and the most that an exit of an SEV-SNP guest costs of the same exit of a plain VM, as published.
pub fn published_ratio() -> (f64, f64) {
    let ratios = SNP.map(|(_, plain, snp)| snp / plain);
    ratios
        .into_iter()
        .fold((f64::INFINITY, 0.0), |(least, most), ratio| (ratio.min(least), ratio.max(most)))
}

impl Kind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Cpuid => "cpuid",
            Kind::MsrRead => "rdmsr",
            Kind::Hypercall => "hypercall",
            Kind::PortIn => "port in",
        }
    }

    fn of(key: &ExitKey) -> Option<Kind> {
        let is = |intel: u32, amd: u32| match key.reason.isa {
            Isa::Vmx => key.reason.code == intel,
            Isa::Svm => key.reason.code == amd,
            Isa::Unknown => false,
        };
        match key.detail.kind {
            _ if is(vmx::CPUID, svm::CPUID) => Some(Kind::Cpuid),
            DetailKind::MsrRead => Some(Kind::MsrRead),
            _ if is(vmx::MSR_READ, u32::MAX) => Some(Kind::MsrRead),
            _ if is(vmx::VMCALL, svm::VMMCALL) => Some(Kind::Hypercall),
            DetailKind::PortIn => Some(Kind::PortIn),
            _ => None,
        }
    }
}

/// Exits that are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// Those of which a cost is published.
    Kind(Kind),
    /// The others, by cause.
    Cause(Cause),
}

/// A row of a prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Which exits.
    pub what: What,
    /// How many.
    pub count: u64,
    /// A second; `None` when the length of the recording is not known.
    pub per_second: Option<f64>,
    /// Time of one now, ns: measured here on hardware, or else the source's.
    pub now_ns: Option<f64>,
    /// Time of one there, ns; `None`: not published.
    pub there_ns: Option<f64>,
}

impl Row {
    /// What one costs more there, ns.
    pub fn added_ns(&self) -> Option<f64> {
        Some(self.there_ns? - self.now_ns?)
    }

    /// What all of a second cost more there, ns.
    pub fn added_per_second(&self) -> Option<f64> {
        Some(self.added_ns()? * self.per_second?)
    }
}

/// What a setting would change of a prediction.
pub struct Remedy {
    /// The row of the table of settings.
    pub rule: &'static Rule,
    /// The setting.
    pub check: &'static Check,
    /// Exits that it removes, at most.
    pub count: u64,
    /// Time a second that would be added without them, ns, of what is known.
    pub added_without: Option<f64>,
}

/// What a VM's exits would cost elsewhere.
pub struct Prediction {
    /// Where.
    pub to: To,
    /// The rows: those with a cost first, most added time first, then the others by count.
    pub rows: Vec<Row>,
    /// Length of the recording, seconds.
    pub seconds: Option<f64>,
    /// Settings that remove exits of these, most exits first.
    pub remedies: Vec<Remedy>,
}

impl Prediction {
    /// Predicts from the exits of L1. `seconds` is the length where the recording does not say it.
    pub fn new(ledger: &Ledger, to: To, seconds: Option<f64>) -> Prediction {
        let span = ledger.end_ns.saturating_sub(ledger.start_ns);
        let seconds = if span > 0 { Some(span as f64 / 1e9) } else { seconds };
        let mut sums: BTreeMap<What, (u64, u64, u64)> = BTreeMap::new();
        for (key, tally) in exits(ledger) {
            let sum = sums.entry(what(key)).or_default();
            sum.0 = sum.0.saturating_add(tally.count);
            sum.1 = sum.1.saturating_add(tally.timed);
            sum.2 = sum.2.saturating_add(tally.time_ns);
        }
        let is_hardware = ledger.recording.emulated.is_none();
        let mut rows: Vec<Row> = sums
            .into_iter()
            .map(|(what, (count, timed, time_ns))| {
                let measured = (is_hardware && timed > 0).then(|| time_ns as f64 / timed as f64);
                let (now_ns, there_ns) = costs(to, what, measured);
                let per_second = seconds.map(|seconds| count as f64 / seconds);
                Row { what, count, per_second, now_ns, there_ns }
            })
            .collect();
        let weight = |row: &Row| row.added_ns().map_or(-1.0, |added| added * row.count as f64);
        rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)).then(b.count.cmp(&a.count)));
        let remedies = remedies(ledger, &rows, seconds);
        Prediction { to, rows, seconds, remedies }
    }

    /// Exits with a cost, and all.
    pub fn known(&self) -> (u64, u64) {
        let sum = |rows: &mut dyn Iterator<Item = &Row>| {
            rows.fold(0u64, |sum, row| sum.saturating_add(row.count))
        };
        let known = sum(&mut self.rows.iter().filter(|row| row.added_ns().is_some()));
        (known, sum(&mut self.rows.iter()))
    }

    /// Time a second that is added, ns, of what is known; `None` when nothing is.
    pub fn added_per_second(&self) -> Option<f64> {
        let added: Vec<f64> = self.rows.iter().filter_map(Row::added_per_second).collect();
        (!added.is_empty()).then(|| added.iter().sum())
    }
}

/// The exits that would be taken there too: those of L1 for itself.
fn exits(ledger: &Ledger) -> impl Iterator<Item = (&ExitKey, &vmtax_events::Tally)> {
    ledger.exits.iter().filter(|(key, _)| key.level != Level::L2 && key.ancillary_of.is_none())
}

fn what(key: &ExitKey) -> What {
    Kind::of(key).map_or_else(|| What::Cause(cause_of(key)), What::Kind)
}

/// Time of one now and there, ns.
fn costs(to: To, what: What, measured: Option<f64>) -> (Option<f64>, Option<f64>) {
    let What::Kind(kind) = what else { return (measured, None) };
    match to {
        // Both from the source: the difference is what it tells, and its processor is another one.
        To::Snp => {
            let row = SNP.iter().find(|(of, _, _)| *of == kind);
            (row.map(|row| row.1), row.map(|row| row.2))
        }
        To::Tdx => (measured, None),
        To::Nested if kind == Kind::Cpuid => {
            (measured, measured.map(|measured| measured * CYCLES_L2_OVER_L1))
        }
        To::Nested => (measured, None),
    }
}

fn remedies(ledger: &Ledger, rows: &[Row], seconds: Option<f64>) -> Vec<Remedy> {
    let added_ns =
        |key: &ExitKey| rows.iter().find(|row| row.what == what(key)).and_then(Row::added_ns);
    let all: f64 =
        exits(ledger).filter_map(|(key, tally)| Some(added_ns(key)? * tally.count as f64)).sum();
    let mut remedies = Vec::new();
    for rule in RULES {
        for check in rule.checks {
            let Removes::Exits(removes) = check.removes else { continue };
            let gone = || exits(ledger).filter(|(key, _)| removes(key));
            let count = gone().fold(0u64, |sum, (_, tally)| sum.saturating_add(tally.count));
            if count == 0 {
                continue;
            }
            let saved: f64 =
                gone().filter_map(|(key, tally)| Some(added_ns(key)? * tally.count as f64)).sum();
            let is_known = rows.iter().any(|row| row.added_ns().is_some());
            let added_without = seconds.filter(|_| is_known).map(|seconds| (all - saved) / seconds);
            remedies.push(Remedy { rule, check, count, added_without });
        }
    }
    // Stable: equal ones stay in the table's order.
    remedies.sort_by_key(|remedy| std::cmp::Reverse(remedy.count));
    remedies
}
