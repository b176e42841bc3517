//! Single events of a choice of exits are those, and all of those.

use std::collections::BTreeMap;
use std::path::Path;

use vmtax_events::{
    AccessRow, Detail, Event, EventKind, ExitRow, Level, Reason, RowSink, Tally, TimeRow, octave,
};
use vmtax_store::Run;

use super::observe_script;
use crate::run::printed;

/// A bound of a histogram: how many exits took so long is known from tables in which the kernel counted them.
const SLOW: u64 = 1 << 16;

const WATCHERS: &str = "
./vmtax record -o whole --raw --most-keys 4000 >whole.said 2>&1 &
./vmtax record -o third --raw --sample 3 --most-keys 4000 >third.said 2>&1 &
./vmtax record -o slow --raw --slower-than SLOWns --most-keys 4000 >slow.said 2>&1 &
end() {
    kill -TERM $(pidof vmtax)
    wait
    exit 0
}
trap end INT
while true; do sleep 1000 & wait $!; done
";

/// Exits by what they are, and of each vCPU's.
#[derive(Default)]
struct RecordedExits {
    kinds: BTreeMap<(Level, Reason, Detail), Tally>,
    vcpus: BTreeMap<(u32, u32), u64>,
    times: usize,
}

impl RowSink for RecordedExits {
    fn exit(&mut self, row: &ExitRow) {
        let kind = (row.key.level, row.key.reason, row.key.detail);
        self.kinds.entry(kind).or_default().merge(&row.tally);
        *self.vcpus.entry((row.key.vm, row.key.vcpu)).or_default() += row.tally.count;
    }
    fn access(&mut self, _: &AccessRow) {}
    fn time(&mut self, _: &TimeRow) {
        self.times += 1;
    }
}

fn exits(run: &Path) -> RecordedExits {
    let mut exits = RecordedExits::default();
    Run::open(run).unwrap().read(&mut exits).unwrap();
    exits
}

/// The exits among the single events, by thread, in order.
fn single(run: &Path) -> BTreeMap<u32, Vec<(Reason, u64, u64)>> {
    let mut exits: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    let each = &mut |events: &[Event]| {
        for event in events {
            if let EventKind::Exit { reason, info1, info2 } = event.kind {
                exits.entry(event.tid).or_default().push((reason, info1, info2));
            }
        }
    };
    Run::open(run).unwrap().read_events(each, &|_| {}).unwrap();
    exits
}

#[test]
fn chosen_single_events_are_those_of_the_choice() {
    let folder = tempfile::tempdir().unwrap();
    let script = WATCHERS.replace("SLOW", &SLOW.to_string());
    let found = observe_script(folder.path(), &script, &[], &["--suite", "primitives,timers"]);
    let (whole, third, slow) = (found.join("whole"), found.join("third"), found.join("slow"));
    let again = |run: &Path| {
        let anew = run.with_extension("again");
        printed(&["import", run.to_str().unwrap(), "-o", anew.to_str().unwrap()]);
        anew
    };
    // Every third of each thread, from its first one on.
    let all = single(&whole);
    assert!(all.len() > 10 && all.values().map(Vec::len).sum::<usize>() > 3000);
    let thirds: BTreeMap<u32, Vec<_>> = all
        .iter()
        .map(|(thread, exits)| (*thread, exits.iter().copied().step_by(3).collect()))
        .collect();
    assert_eq!(single(&third), thirds);
    // As many of each kind as the kernel has counted in the parts of its histograms beyond.
    let bucket = octave(SLOW);
    let mut slow_ones: BTreeMap<_, u64> = BTreeMap::new();
    for (kind, tally) in &exits(&slow).kinds {
        slow_ones.insert(*kind, tally.durations.octaves()[bucket..].iter().sum());
    }
    slow_ones.retain(|_, count| *count > 0);
    assert!(slow_ones.len() >= 3 && slow_ones.values().sum::<u64>() > 100, "{slow_ones:?}");
    let of_events = exits(&again(&slow));
    let counted: BTreeMap<_, u64> =
        of_events.kinds.iter().map(|(kind, tally)| (*kind, tally.count)).collect();
    assert_eq!(counted, slow_ones);
    assert!(of_events.kinds.values().all(|tally| tally.min_ns >= SLOW));
    // The tables have all exits, whatever the choice; a choice alone does not say where time went.
    for run in [&third, &slow] {
        assert_eq!(exits(run).vcpus, exits(&whole).vcpus);
        assert!(exits(run).times > 0);
    }
    assert_eq!((of_events.times, exits(&again(&third)).times), (0, 0));
}
