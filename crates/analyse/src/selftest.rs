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
    /// `perf stat`.
    Perf,
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
        let outcomes = exits.map(Exits::outcome).chain([self.counters(), self.whole()]);
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
    fn a_count_that_nothing_is_held_against_shows_nothing() {
        assert_eq!(exits(None, &[Some(7), None, None]), Outcome::NotHere);
        assert_eq!(exits(None, &[]), Outcome::NotHere);
        assert_eq!(exits(Some(7), &[None, None, None]), Outcome::NotHere);
    }
}
