//! Counts of known exits beside each other: which of them agree.

use vmtax_events::{Losses, Recording};

/// What was found on this computer.
#[derive(Clone, Debug)]
pub struct Tested {
    pub exits: Vec<Exits>,
    /// Exits counted by perf in a run of its own, or why there are none.
    pub perf: Result<Exits, String>,
    pub costs: Vec<Costs>,
    /// Instructions that the host's counters saw during a recording, or why they saw none.
    pub instructions: Result<u64, String>,
    /// The guests alone executed so many.
    pub least_instructions: u64,
    /// Why perf's counts by reason are missing, although perf counts.
    pub no_reasons: Option<String>,
    /// A known loop, counted by the processor.
    pub loops: Vec<KnownLoop>,
    /// What the recordings lost.
    pub losses: Losses,
    /// Where they were made.
    pub recording: Recording,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// `vmtax record`.
    Recorder,
    /// `vmtax record --raw`.
    Events,
    /// KVM's statistics (`KVM_GET_STATS_FD`).
    Kvm,
    /// `perf kvm stat`, by reason and access; `perf stat` of all exits.
    Perf,
}

/// A loop of known instructions, as a counter of the processor has it.
#[derive(Clone, Debug)]
pub struct KnownLoop {
    /// The counter.
    pub event: &'static str,
    pub known: u64,
    /// What it counted, or why it counts nothing.
    pub counted: Result<u64, String>,
}

/// Of how many one may be counted too many or too few: interrupts end with an instruction of the program's.
const LOOP_TOLERANCE: u64 = 10_000;

impl KnownLoop {
    pub fn outcome(&self) -> Outcome {
        match self.counted {
            Err(_) => Outcome::NotHere,
            Ok(counted) if counted.abs_diff(self.known) <= self.known / LOOP_TOLERANCE => {
                Outcome::Works
            }
            Ok(_) => Outcome::Differs,
        }
    }
}

/// Exits of one kind, as each counts them.
#[derive(Clone, Debug)]
pub struct Exits {
    /// What the guest does.
    pub what: String,
    /// How many it takes; `None` where that depends on time.
    pub known: Option<u64>,
    /// What each counted; `None` where it does not count them.
    pub counts: Vec<(Counter, Option<u64>)>,
}

/// What an exit takes, ns: median of the batches.
#[derive(Clone, Debug)]
pub struct Costs {
    /// What the guest does.
    pub what: String,
    /// Not recorded.
    pub alone_ns: f64,
    pub counted_ns: f64,
    /// With single events.
    pub events_ns: f64,
}

/// Whether something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Works,
    Differs,
    /// There is nothing to compare it with.
    NotHere,
}

impl Exits {
    /// What a counter says.
    pub fn of(&self, counter: Counter) -> Option<u64> {
        self.counts.iter().find(|(one, _)| *one == counter).and_then(|(_, count)| *count)
    }

    /// Whether all counts are the known one, or, where none is known, each other.
    pub fn outcome(&self) -> Outcome {
        let mut all: Vec<u64> = self.counts.iter().filter_map(|(_, count)| *count).collect();
        all.extend(self.known);
        match all.split_first() {
            None | Some((_, [])) => Outcome::NotHere,
            Some((first, rest)) if rest.iter().all(|one| one == first) => Outcome::Works,
            Some(_) => Outcome::Differs,
        }
    }
}

impl Tested {
    /// Whether the host's counters work: they saw at least what the guests executed.
    pub fn counters(&self) -> Outcome {
        match &self.instructions {
            Ok(seen) if *seen >= self.least_instructions => Outcome::Works,
            Ok(_) => Outcome::Differs,
            Err(_) => Outcome::NotHere,
        }
    }

    /// Whether the processor counts a known loop.
    pub fn loops(&self) -> Outcome {
        let outcomes = || self.loops.iter().map(KnownLoop::outcome);
        [Outcome::Differs, Outcome::Works]
            .into_iter()
            .find(|wanted| outcomes().any(|outcome| outcome == *wanted))
            .unwrap_or(Outcome::NotHere)
    }

    /// Whether nothing was lost but the last exit of each VM.
    pub fn whole(&self) -> Outcome {
        match self.losses.counters().any(|(loss, n)| loss.name != "unpaired_exits" && n > 0) {
            true => Outcome::Differs,
            false => Outcome::Works,
        }
    }

    /// Whether anything differs.
    pub fn differs(&self) -> bool {
        let exits = self.exits.iter().chain(self.perf.as_ref().ok());
        let outcomes =
            exits.map(Exits::outcome).chain([self.counters(), self.loops(), self.whole()]);
        outcomes.into_iter().any(|outcome| outcome == Outcome::Differs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exits(known: Option<u64>, counts: &[Option<u64>]) -> Outcome {
        let counters = [Counter::Recorder, Counter::Events, Counter::Kvm];
        let counts = counters.into_iter().zip(counts.iter().copied()).collect();
        Exits { what: String::new(), known, counts }.outcome()
    }

    #[test]
    fn one_exit_more_or_less_differs_whoever_counts_it() {
        assert_eq!(exits(Some(4000), &[Some(4000), Some(4000), None]), Outcome::Works);
        for at in 0..3 {
            for wrong in [3999, 4001, 0] {
                let mut counts = [Some(4000); 3];
                counts[at] = Some(wrong);
                assert_eq!(exits(Some(4000), &counts), Outcome::Differs);
                assert_eq!(exits(None, &counts), Outcome::Differs);
            }
        }
        assert_eq!(exits(Some(3999), &[Some(4000); 3]), Outcome::Differs);
    }

    #[test]
    fn a_loop_is_counted_but_for_interrupts() {
        let outcome =
            |counted| KnownLoop { event: "instructions", known: 20_000_000, counted }.outcome();
        assert_eq!(outcome(Ok(20_000_017)), Outcome::Works);
        for wrong in [0, 10_000_000, 19_997_999, 20_002_001] {
            assert_eq!(outcome(Ok(wrong)), Outcome::Differs, "{wrong}");
        }
        assert_eq!(outcome(Err("no counters".to_owned())), Outcome::NotHere);
    }

    #[test]
    fn a_count_that_nothing_is_held_against_shows_nothing() {
        assert_eq!(exits(None, &[Some(7), None, None]), Outcome::NotHere);
        assert_eq!(exits(None, &[]), Outcome::NotHere);
        assert_eq!(exits(Some(7), &[None, None, None]), Outcome::NotHere);
    }
}
