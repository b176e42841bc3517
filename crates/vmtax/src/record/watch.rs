//! The running kernel as a ledger that goes on: what was counted since it began.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use vmtax_analyse::{Filter, Ledger, LedgerBuilder};
use vmtax_events::{ExitKey, ExitRow, Recording as Facts, Tally, TimeRow};
use vmtax_live::{Options, Recorder, Rows};

use super::{ROOT, WhichArgs, fault, processes, session};

/// Counts by eBPF, and sums.
pub(crate) struct Watch {
    recorder: Recorder,
    facts: Facts,
    exits: BTreeMap<ExitKey, Tally>,
    times: HashMap<(u32, u32), TimeRow>,
}

impl Watch {
    /// Begins to count.
    pub(crate) fn new(which: &WhichArgs) -> anyhow::Result<Watch> {
        let options = Options { processes: processes(which)?, ..Options::default() };
        let mut recorder = Recorder::new(Path::new(ROOT), &options).map_err(|e| fault(&e))?;
        recorder.start();
        let facts = session::facts(&recorder);
        Ok(Watch { recorder, facts, exits: BTreeMap::new(), times: HashMap::new() })
    }

    /// Adds what was counted since the last time. All since the start.
    pub(crate) fn advance(&mut self) -> anyhow::Result<Ledger> {
        let rows = self.recorder.interval().map_err(|e| fault(&e))?;
        self.forget(&rows);
        session::name(&mut self.facts, &rows);
        for (key, tally) in rows.exits {
            self.exits.entry(key).or_default().merge(&tally);
        }
        for row in rows.times {
            let sum = self.times.entry((row.vm, row.vcpu)).or_insert_with(|| TimeRow {
                vm: row.vm,
                vcpu: row.vcpu,
                ..TimeRow::default()
            });
            vmtax_analyse::ledger::add_time(sum, &row);
        }
        // Sums have no place in time: one interval holds all.
        let mut builder = LedgerBuilder::new(Filter::default(), 1);
        for (key, tally) in &self.exits {
            builder.exit(&ExitRow { interval_start_ns: 0, key: *key, tally: tally.clone() });
        }
        self.times.values().for_each(|time| builder.time(time));
        Ok(builder.finish(self.facts.clone(), self.recorder.losses(), true))
    }

    /// A VM that did nothing and whose process is gone has ended: on a host where VMs come and go its sums would stay for
    /// ever.
    fn forget(&mut self, rows: &Rows) {
        let active: BTreeSet<u32> = rows
            .exits
            .keys()
            .map(|key| key.vm)
            .chain(rows.times.iter().map(|time| time.vm))
            .chain(rows.appeared.iter().map(|vcpu| vcpu.vm))
            .collect();
        let runs = |vm: u32| Path::new(ROOT).join("proc").join(vm.to_string()).exists();
        let ended: BTreeSet<u32> = self
            .facts
            .vms
            .iter()
            .map(|vm| vm.id)
            .filter(|vm| !active.contains(vm) && !runs(*vm))
            .collect();
        self.facts.vms.retain(|vm| !ended.contains(&vm.id));
        self.exits.retain(|key, _| !ended.contains(&key.vm));
        self.times.retain(|(vm, _), _| !ended.contains(vm));
    }
}
