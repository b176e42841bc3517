//! The policies on emulated hosts, by the lab's suite `pmu`: events created and path lengths. Measured now, or read from the
//! recording that this crate contains.

use serde::{Deserialize, Serialize};
use vmtax_analyse::samples::median;
use vmtax_lab::suite::Suite;
use vmtax_lab::suite::pmu::{FAULTS, FUNCTIONS, PERIOD};
use vmtax_lab::{HostKind, LabPlan, MeasuredOperation, Outcomes};
use vmtax_report::numbers;
use vmtax_report::table::{Cell, Column, Described, Table};
use vmtax_report::tables::TitledTable;
use vmtax_vpmu::host::MsrAccesses;
use vmtax_vpmu::host::virtual_time::{EventCosts, VirtualHost};
use vmtax_vpmu::{Intel, Pmu, PmuModel, Policy};

use crate::Error;

/// The recording of both hosts: `vmtax vpmu bench --emulated amd,intel --record crates/vpmu-bench/src/recorded.json`.
const RECORDED: &str = include_str!("recorded.json");
/// Name and version of a recording's shape.
const SCHEMA: &str = "vmtax-vpmu-recording-1";

/// The measurements of one or more emulated hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmulatedRecording {
    schema: String,
    /// The version of vmtax that measured.
    vmtax: String,
    /// The day of the measurement (UTC), as in 2026-01-31.
    day: String,
    hosts: Vec<EmulatedHost>,
}

/// The measurements of one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmulatedHost {
    host: String,
    accelerator: String,
    kernel: String,
    operations: Vec<EmulatedOperation>,
    profiles: Vec<GuestProfile>,
    faults: Vec<Faulted>,
    failures: Vec<OperationFailure>,
}

/// A figure under each policy; `None` where it was not measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Each {
    legacy: Option<f64>,
    reuse: Option<f64>,
    mediated: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct EmulatedOperation {
    operation: String,
    /// Events created for one operation.
    creates: Each,
    /// Instructions of one operation: the median of the batches.
    path: Each,
    /// The path under legacy divided by that under reuse.
    path_ratio: Option<f64>,
}

/// A guest that profiled itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct GuestProfile {
    operation: String,
    period: u64,
    counted: u64,
    creates: u64,
    interrupts: u64,
    delivered: u64,
    merged: u64,
    dropped: u64,
    throttles: u64,
    troubles: u64,
    samples_outside: u64,
    shares: Vec<EmulatedShare>,
}

/// A function's share of the program and of the samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct EmulatedShare {
    function: String,
    known: f64,
    sampled: f64,
}

/// Accesses that must fault: how many of them did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Faulted {
    what: String,
    faulted: u64,
    of: u64,
}

/// An operation that could not be measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct OperationFailure {
    operation: String,
    problem: String,
}

/// The plan of the lab that measures the policies, with this many batches of each operation.
pub fn plan(batches: u32) -> LabPlan {
    LabPlan { suites: Suite::named("pmu").into_iter().collect(), only: Vec::new(), batches }
}

impl EmulatedRecording {
    /// The recording that this crate contains.
    pub fn shipped() -> Result<EmulatedRecording, Error> {
        Ok(serde_json::from_str(RECORDED)?)
    }

    /// Hosts measured on this `day` (UTC), as in 2026-01-31.
    pub fn new(hosts: Vec<EmulatedHost>, day: String) -> EmulatedRecording {
        let vmtax = env!("CARGO_PKG_VERSION").to_owned();
        EmulatedRecording { schema: SCHEMA.to_owned(), vmtax, day, hosts }
    }

    /// Tables of all hosts. `exit`: the accesses that the mediated columns lack ([`mediated_exit`]).
    pub(crate) fn sections(&self, shipped: bool, exit: MsrAccesses) -> Vec<TitledTable> {
        let from = match shipped {
            true => format!(
                "A recording of {} (vmtax {}), replayed; --emulated amd,intel measures here.",
                self.day, self.vmtax
            ),
            false => "Measured now.".to_owned(),
        };
        let MsrAccesses { reads, writes } = exit;
        let lower_bound = format!(
            "Mediated instructions are a lower bound. Included: accesses that stay in the guest, and exits of those that KVM answers, on \
             other registers in place of the counters'. Not included, at each exit: saving and loading the counters, event selects, \
             global and fixed control, status and LVTPC, and perf switching its contexts. With six counters on (Intel) that is {reads} reads \
             (RDPMC, RDMSR) and {writes} WRMSR (computed), so at least {} instructions more for each exit.",
            reads + writes
        );
        let counted = "The guest's events count its hypercalls (tracepoint kvm_hypercall of the host's kernel): emulated processors have no PMU.";
        let sampled = format!(
            "A guest that samples itself at every {PERIOD}th hypercall; amd: AMD's model, reused. Shares: sampled of known."
        );
        let faults = "Accesses that fault (#GP) of those tried; RDPMC reads zero on AMD hosts before Linux 6.9.";
        let section = |id, title: &str, notes: Vec<String>, table| TitledTable {
            id,
            title: title.to_owned(),
            notes,
            table,
        };
        let notes = vec![from, counted.to_owned(), lower_bound];
        let mut sections = vec![
            section("emulated", "Measured on emulated hosts", notes, self.operations()),
            section(
                "emulated-samples",
                "Samples on emulated hosts",
                vec![sampled],
                self.profiles(),
            ),
            section(
                "emulated-faults",
                "Faults on emulated hosts",
                vec![faults.to_owned()],
                self.faults(),
            ),
        ];
        if self.hosts.iter().any(|host| !host.failures.is_empty()) {
            sections.push(section(
                "emulated-failures",
                "Not measured",
                Vec::new(),
                self.failures(),
            ));
        }
        sections
    }

    /// A table whose rows are told apart by their host.
    fn by_host<T>(&self, rows: fn(&EmulatedHost) -> &[T]) -> Described<(&EmulatedHost, &T)> {
        let of = move |host| rows(host).iter().map(move |row| (host, row));
        Table::of(self.hosts.iter().flat_map(of))
            .grouped(|(of, _)| {
                let emulator = of.accelerator.trim_start_matches("emulated:");
                format!("{}: {emulator}, Linux {}; not hardware", of.host, of.kernel)
            })
            .column(Column::data("host"), |(of, _)| Cell::Name(of.host.clone()))
            .column(Column::data("accelerator"), |(of, _)| Cell::Name(of.accelerator.clone()))
            .column(Column::data("kernel"), |(of, _)| Cell::Name(of.kernel.clone()))
    }

    fn operations(&self) -> Table {
        let events = |n: Option<f64>| n.map_or(Cell::Unknown("?"), Cell::Instructions);
        let path = |n: Option<f64>| n.map_or(Cell::Unknown("?"), |n| Cell::Count(n.round() as u64));
        self.by_host(|host| &host.operations)
            .column(Column::words("operation", "one operation"), |(_, row)| {
                Cell::Name(row.operation.clone())
            })
            .column(
                Column::number("creates_legacy", "events, legacy")
                    .named("events created under legacy"),
                |(_, row)| events(row.creates.legacy),
            )
            .column(
                Column::number("creates_reuse", "reuse").named("events created under reuse"),
                |(_, row)| events(row.creates.reuse),
            )
            .column(
                Column::number("creates_mediated", "mediated")
                    .named("events created under mediated"),
                |(_, row)| events(row.creates.mediated),
            )
            .column(Column::number("path_legacy", "instructions, legacy"), |(_, row)| {
                path(row.path.legacy)
            })
            .column(
                Column::number("path_reuse", "reuse").named("instructions under reuse"),
                |(_, row)| path(row.path.reuse),
            )
            .column(
                Column::number("path_mediated", "mediated").named("instructions under mediated"),
                |(_, row)| path(row.path.mediated),
            )
            .column(
                Column::number("path_ratio", "legacy/reuse").help("of the instructions"),
                |(_, row)| row.path_ratio.map_or(Cell::Unknown("?"), Cell::Quotient),
            )
            .table()
    }

    fn profiles(&self) -> Table {
        let share = |share: &EmulatedShare| {
            let [sampled, known] = [share.sampled, share.known].map(numbers::percent);
            format!("{} {sampled} of {known}", share.function)
        };
        self.by_host(|host| &host.profiles)
            .column(Column::words("operation", "operation"), |(_, it)| {
                Cell::Name(it.operation.clone())
            })
            .column(Column::number("creates", "creates"), |(_, it)| Cell::Count(it.creates))
            .column(Column::number("counted", "counted"), |(_, it)| Cell::Count(it.counted))
            .column(Column::number("interrupts", "interrupts"), |(_, it)| {
                Cell::Count(it.interrupts)
            })
            .column(Column::number("delivered", "delivered"), |(_, it)| Cell::Count(it.delivered))
            .column(Column::number("merged", "merged"), |(_, it)| Cell::Count(it.merged))
            .column(Column::number("dropped", "dropped"), |(_, it)| Cell::Count(it.dropped))
            .column(Column::list("shares", "shares"), |(_, it)| {
                let shares = it.shares.iter().map(share).collect::<Vec<_>>().join(", ");
                Cell::Words(shares.split(' ').map(str::to_owned).collect())
            })
            .table()
    }

    fn faults(&self) -> Table {
        self.by_host(|host| &host.faults)
            .column(Column::words("access", "access"), |(_, it)| Cell::Name(it.what.clone()))
            .column(Column::number("faulted", "faulted"), |(_, it)| Cell::Count(it.faulted))
            .column(Column::number("tried", "tried"), |(_, it)| Cell::Count(it.of))
            .table()
    }

    fn failures(&self) -> Table {
        self.by_host(|host| &host.failures)
            .column(Column::words("operation", "operation"), |(_, it)| {
                Cell::Name(it.operation.clone())
            })
            .column(Column::words("problem", "problem"), |(_, it)| Cell::Name(it.problem.clone()))
            .table()
    }
}

/// Accesses of the processor's MSRs at one exit under a mediated Intel PMU with six counters on: it saves and loads them.
pub(crate) fn mediated_exit() -> Result<MsrAccesses, Error> {
    let host = VirtualHost::new(EventCosts::default());
    let mut pmu = Pmu::new(PmuModel::Intel(Intel::default()), host, Policy::Mediated)?;
    // Four general counters and two fixed ones, by their MSRs: values, event selects, fixed control, global control.
    for i in 0..4 {
        pmu.write(0xc1 + i, 1)?;
        pmu.write(0x186 + i, 0x53_003c)?;
    }
    pmu.write(0x309, 1)?;
    pmu.write(0x30a, 1)?;
    pmu.write(0x38d, 0xbb)?;
    pmu.write(0x38f, 3 << 32 | 0xf)?;
    let before = pmu.activity().world_switches;
    pmu.exited();
    let after = pmu.activity().world_switches;
    Ok(MsrAccesses { reads: after.reads - before.reads, writes: after.writes - before.writes })
}

impl EmulatedHost {
    /// The measurements of a [`plan`].
    pub fn new(host: HostKind, outcomes: &Outcomes) -> EmulatedHost {
        let all = &outcomes.operations;
        let failure = |o: &MeasuredOperation| {
            let problem = o.failure.clone()?;
            Some(OperationFailure { operation: o.name.to_owned(), problem })
        };
        let names = all.iter().filter_map(|o| o.name.strip_suffix("-legacy"));
        EmulatedHost {
            host: host.name().to_owned(),
            accelerator: format!("emulated:{}", outcomes.start.emulator),
            kernel: outcomes.release.clone(),
            operations: names
                .filter(|name| *name != PROFILE)
                .map(|name| operation(name, all))
                .collect(),
            profiles: all.iter().filter_map(profile).collect(),
            faults: all.iter().flat_map(faults).collect(),
            failures: all.iter().filter_map(failure).collect(),
        }
    }
}

/// Prefix of the operations that profile a guest.
const PROFILE: &str = "pmu-profile";

fn operation(name: &str, all: &[MeasuredOperation]) -> EmulatedOperation {
    let find = |policy: Policy| {
        all.iter().find(|o| o.name.strip_suffix(policy.name()) == Some(&format!("{name}-")))
    };
    let each = |figure: &dyn Fn(Policy) -> Option<f64>| Each {
        legacy: figure(Policy::Legacy),
        reuse: figure(Policy::Reuse),
        mediated: figure(Policy::Mediated),
    };
    let path = each(&|policy| find(policy).and_then(path));
    EmulatedOperation {
        operation: name.to_owned(),
        creates: each(&|policy| find(policy).and_then(|operation| creates(policy, operation))),
        path,
        path_ratio: path.legacy.zip(path.reuse).map(|(legacy, reuse)| legacy / reuse),
    }
}

/// Events created for one operation. A mediated PMU has none.
fn creates(policy: Policy, operation: &MeasuredOperation) -> Option<f64> {
    let operations = f64::from(operation.count) * operation.paths.len() as f64;
    match policy {
        Policy::Mediated => (!operation.paths.is_empty()).then_some(0.0),
        _ => operation.pmu.map(|pmu| pmu.creates as f64 / operations),
    }
}

/// The median of the batches.
fn path(operation: &MeasuredOperation) -> Option<f64> {
    median(&operation.paths)
}

/// The accesses that must fault.
fn faults(operation: &MeasuredOperation) -> Vec<Faulted> {
    let Some(pmu) = operation.pmu.filter(|_| operation.name == "pmu-faults") else {
        return Vec::new();
    };
    // The batch that warms up is among them.
    let of = u64::from(operation.count) * (operation.paths.len() as u64 + 1);
    let faults = FAULTS.into_iter().zip(&pmu.profile[1..]);
    faults.map(|(what, faulted)| Faulted { what: what.to_owned(), faulted: *faulted, of }).collect()
}

fn profile(operation: &MeasuredOperation) -> Option<GuestProfile> {
    let pmu = operation.pmu.filter(|_| operation.name.starts_with(PROFILE))?;
    let calls: u32 = FUNCTIONS.iter().map(|(_, calls)| calls).sum();
    let samples: u64 = pmu.profile[1..].iter().sum();
    let share = |((function, own), sampled): (&(&str, u32), &u64)| EmulatedShare {
        function: (*function).to_owned(),
        known: f64::from(*own) / f64::from(calls),
        sampled: *sampled as f64 / samples.max(1) as f64,
    };
    Some(GuestProfile {
        operation: operation.name.to_owned(),
        period: PERIOD,
        counted: pmu.counted,
        creates: pmu.creates,
        interrupts: pmu.interrupts,
        delivered: pmu.delivered,
        merged: pmu.merged,
        dropped: pmu.dropped,
        throttles: pmu.throttles,
        troubles: pmu.troubles,
        samples_outside: pmu.profile[0],
        shares: FUNCTIONS.iter().zip(&pmu.profile[1..]).map(share).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_of_a_mediated_pmu_with_six_counters() {
        // vmtax_vpmu::mediated has the parts of both sums.
        let exit = mediated_exit().expect("the model has these registers");
        assert_eq!(exit, MsrAccesses { reads: 16, writes: 25 });
    }

    #[test]
    fn the_shipped_recording_has_both_hosts_whole() {
        let recording = EmulatedRecording::shipped().expect("it can be read");
        assert_eq!(recording.schema, SCHEMA);
        let hosts: Vec<&str> = recording.hosts.iter().map(|host| host.host.as_str()).collect();
        assert_eq!(hosts, ["amd", "intel"]);
        for host in &recording.hosts {
            assert_eq!(host.operations.len(), 6, "{}", host.host);
            assert!(host.failures.is_empty(), "{:?}", host.failures);
            for EmulatedOperation { operation, creates, path, .. } in &host.operations {
                assert_eq!(
                    (creates.reuse, creates.mediated),
                    (Some(0.0), Some(0.0)),
                    "{operation}"
                );
                assert!(path.mediated < path.reuse, "{operation}");
            }
        }
    }
}
