//! Traffic between an emulated host and a VM of QEMU (`vmtax lab network`): exits of one operation by cause, for each VM.
//!
//! An operation is a request to a server or to the disk, a KiB of a stream, or a sleep. A workload with one VM is a VM of the run, called `request plain+vhost`.

use std::collections::BTreeMap;

use vmtax_events::{Cause, Outcome, Sample};

use crate::Ledger;
use crate::cause::cause_of;
use crate::operations::Operations;

/// One workload with one VM.
#[derive(Clone, Debug, PartialEq)]
pub struct TrafficRow {
    /// The workload. Hostile text.
    pub workload: String,
    /// The category of the VM. Hostile text.
    pub category: String,
    /// Operations in the recording, at least one.
    pub count: u64,
    /// Exits by cause.
    pub causes: BTreeMap<Cause, u64>,
    /// Exits that the VMM handled, in user space.
    pub to_vmm: u64,
    /// How often the VMM's main loop got a processor; `None` if the run does not say.
    pub vmm_turns: Option<f64>,
    /// How often vhost's worker in the host's kernel got a processor.
    pub vhost_turns: Option<f64>,
    /// How often the VMM's thread for the disk's queue got a processor; `None` of runs before there was a disk.
    pub io_turns: Option<f64>,
    /// Run time by the host's clock, ns.
    pub elapsed_ns: Option<f64>,
}

impl TrafficRow {
    /// All exits.
    pub fn exits(&self) -> u64 {
        self.causes.values().sum()
    }

    /// So many for each operation.
    pub fn each(&self, count: f64) -> f64 {
        count / self.count as f64
    }

    /// Exits of this cause for each operation.
    pub fn cause(&self, cause: Cause) -> f64 {
        self.each(self.causes.get(&cause).copied().unwrap_or(0) as f64)
    }
}

/// The traffic of a run, in its order; empty for any other run.
pub fn traffic(ledger: &Ledger) -> Vec<TrafficRow> {
    let value = |workload: &str, metric: &str| {
        let found = ledger.samples.iter().find(|s| s.workload == workload && s.metric == metric);
        found.map(|sample| sample.value).filter(|value| value.is_finite())
    };
    let mut rows = Vec::new();
    for operation in Operations::new(ledger).rows {
        let name = &operation.name;
        let Some(vmm_turns) = value(name, Sample::VMM_TURNS) else { continue };
        let (Some((workload, category)), Some(vm)) = (name.split_once(' '), operation.vm) else {
            continue;
        };
        if operation.count == 0 {
            continue;
        }
        let mut row = TrafficRow {
            workload: workload.to_owned(),
            category: category.to_owned(),
            count: operation.count,
            causes: BTreeMap::new(),
            to_vmm: 0,
            vmm_turns: Some(vmm_turns),
            vhost_turns: value(name, Sample::VHOST_TURNS),
            io_turns: value(name, Sample::IO_TURNS),
            elapsed_ns: value(name, Sample::ELAPSED),
        };
        for (key, tally) in ledger.exits.iter().filter(|(key, _)| key.vm == vm) {
            let count = row.causes.entry(cause_of(key)).or_default();
            *count = count.saturating_add(tally.count);
            if key.outcome == Outcome::User {
                row.to_vmm = row.to_vmm.saturating_add(tally.count);
            }
        }
        rows.push(row);
    }
    rows
}
