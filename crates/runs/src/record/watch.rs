//! The running kernel as a ledger that goes on: what was counted since it began.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use vmtax_analyse::ledger::{TakenTime, Taker};
use vmtax_analyse::{IntervalFrame, Ledger};
use vmtax_events::{ExitKey, Losses, NO_VCPU, PreemptedRow, Recording as Facts, Tally, TimeRow};
use vmtax_live::{ExitRecorder, IntervalRows, LiveOptions};

use crate::ledger;

use super::{ROOT, Which, fault, open, processes, session};

/// The sums of an ended VM are kept this long, so that a scrape each minute still sees its last state.
const KEPT: Duration = Duration::from_secs(60);

/// With more keys than this, those that have ended make room at once.
const MOST_KEYS: usize = 65_536;

/// Kinds of threads that took the processors of one VM: those that come later are `others`, so that sums only grow.
const MOST_TAKERS: usize = 24;

/// Counts of the running kernel, added up since the start.
pub struct CountsWatch {
    recorder: ExitRecorder,
    facts: Facts,
    exits: BTreeMap<ExitKey, Tally>,
    times: HashMap<(u32, u32), TimeRow>,
    /// Who had the processors of preempted vCPUs, by VM.
    taken_by: BTreeMap<u32, BTreeMap<Taker, TakenTime>>,
    /// VMs that did nothing and whose process is gone, and since when.
    ended: BTreeMap<u32, Instant>,
    /// The run's clock when the open interval began.
    began_ns: u64,
}

impl CountsWatch {
    /// Begins to count.
    ///
    /// # Errors
    /// Why nothing can be recorded, as one sentence.
    pub fn new(which: &Which) -> anyhow::Result<CountsWatch> {
        let mut recorder = open(Path::new(ROOT), processes(which)?, LiveOptions::default())?;
        recorder.start();
        let facts = session::facts(&recorder);
        Ok(CountsWatch {
            recorder,
            facts,
            exits: BTreeMap::new(),
            times: HashMap::new(),
            taken_by: BTreeMap::new(),
            ended: BTreeMap::new(),
            began_ns: session::now_ns(),
        })
    }

    /// Adds what was counted since the last step, and returns it.
    pub fn step(&mut self) -> anyhow::Result<IntervalFrame> {
        let rows = self.recorder.interval().map_err(|e| fault(&e))?;
        let now_ns = session::now_ns();
        let mut frame = IntervalFrame {
            start_ns: self.began_ns,
            length_ns: now_ns.saturating_sub(self.began_ns).max(1),
            ..IntervalFrame::default()
        };
        self.began_ns = now_ns;
        self.notice_ends(&rows);
        self.forget();
        session::name(&mut self.facts, &rows);
        for (key, tally) in rows.exits {
            self.exits.entry(key).or_default().merge(&tally);
            frame.exit(key, &tally);
        }
        for row in rows.times {
            let sum = self.times.entry((row.vm, row.vcpu)).or_insert_with(|| TimeRow {
                vm: row.vm,
                vcpu: row.vcpu,
                ..TimeRow::default()
            });
            sum.add(&row);
            frame.time(&row);
        }
        for row in rows.preempted {
            frame.preempted(&row);
            add_taker(self.taken_by.entry(row.key.vm).or_default(), &row);
        }
        Ok(frame)
    }

    /// All since the start, but for VMs that ended long ago.
    pub fn ledger(&self) -> Ledger {
        let taken_by = self.taken_by.iter().flat_map(|(vm, takers)| {
            takers.iter().map(|(taker, taken)| ((*vm, NO_VCPU), taker, *taken))
        });
        ledger::of_sums(
            &self.exits,
            self.times.values(),
            taken_by,
            (&self.facts, self.recorder.losses(), true),
        )
    }

    /// The host, what can be counted there, and the VMs seen.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What could not be counted so far.
    pub fn losses(&self) -> Losses {
        self.recorder.losses()
    }

    /// VMs that have ended and are still known.
    pub fn ended(&self) -> BTreeSet<u32> {
        self.ended.keys().copied().collect()
    }

    /// A VM that did nothing and whose process is gone has ended.
    fn notice_ends(&mut self, rows: &IntervalRows) {
        let active: BTreeSet<u32> = rows
            .exits
            .keys()
            .map(|key| key.vm)
            .chain(rows.times.iter().map(|time| time.vm))
            .chain(rows.appeared.iter().map(|vcpu| vcpu.vm))
            .collect();
        let runs = |vm: u32| Path::new(ROOT).join("proc").join(vm.to_string()).exists();
        for vm in self.facts.vms.iter().map(|vm| vm.id) {
            if active.contains(&vm) || runs(vm) {
                self.ended.remove(&vm);
            } else {
                self.ended.entry(vm).or_insert_with(Instant::now);
            }
        }
    }

    /// On a host where VMs come and go the sums of those that ended would stay for ever.
    fn forget(&mut self) {
        let is_full = self.exits.len() > MOST_KEYS;
        let is_over = |since: &Instant| is_full || since.elapsed() >= KEPT;
        let over: BTreeSet<u32> =
            self.ended.iter().filter(|(_, since)| is_over(since)).map(|(vm, _)| *vm).collect();
        if over.is_empty() {
            return;
        }
        self.facts.vms.retain(|vm| !over.contains(&vm.id));
        self.exits.retain(|key, _| !over.contains(&key.vm));
        self.times.retain(|(vm, _), _| !over.contains(vm));
        self.taken_by.retain(|vm, _| !over.contains(vm));
        self.ended.retain(|vm, _| !over.contains(vm));
    }
}

fn add_taker(takers: &mut BTreeMap<Taker, TakenTime>, row: &PreemptedRow) {
    let mut taker = Taker::of(row).group();
    if takers.len() >= MOST_TAKERS && !takers.contains_key(&taker) {
        taker = Taker { name: "others".into(), vcpu: None, is_own: false };
    }
    takers.entry(taker).or_default().add(TakenTime { count: row.count, time_ns: row.time_ns });
}

#[cfg(test)]
mod tests {
    use vmtax_events::{Isa, Reason};

    use super::*;

    /// A host where any number of names come and go makes no more sums than the limit, and nothing is lost.
    #[test]
    fn takers_are_bounded_and_their_times_add_up() {
        let key = ExitKey::of(7, Reason { isa: Isa::Vmx, code: 1, flags: 0 });
        let row = |by: &str, by_vcpu| PreemptedRow {
            interval_start_ns: 0,
            key,
            by: by.into(),
            by_vcpu,
            count: 1,
            time_ns: 10,
        };
        let mut takers = BTreeMap::new();
        add_taker(&mut takers, &row("CPU 1/KVM", Some((7, 1))));
        add_taker(&mut takers, &row("CPU 1/KVM", Some((8, 1))));
        (0..50).for_each(|n| add_taker(&mut takers, &row(&format!("kworker/u{n}:2"), None)));
        let names: Vec<String> = takers.keys().map(|taker| taker.name.to_string()).collect();
        assert_eq!(names, ["kworker", "vCPU of another VM", "vCPU of the same VM"]);
        (0..500).for_each(|n| add_taker(&mut takers, &row(&format!("job-{n}"), None)));
        assert_eq!(takers.len(), MOST_TAKERS + 1);
        assert_eq!(takers.values().map(|taken| taken.time_ns).sum::<u64>(), 5520);
    }
}
