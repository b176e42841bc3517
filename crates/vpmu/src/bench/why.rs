//! Why a computed ratio differs from the published one: a reason, and the script run once more with what the reason
//! names varied.
//!
//! A reason is shown if that brings the ratio to within a factor of two of the published one. Others are inferences, and
//! are called so. Nothing is varied to fit: each variation is a figure that was published, or a simple multiple.

use std::collections::BTreeMap;

use super::published::{self, Published};
use super::script::{Outcome, Script};
use super::{Figure, Operation, Row};
use crate::error::Error;
use crate::host::virtual_time::Costs;
use crate::policy::Policy;

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Variation {
    /// Each access takes [`published::ACCESS`] more.
    Access,
    /// The guest leaves global control set while it changes counters.
    GlobalStays,
    /// Both of these.
    AccessAndGlobalStays,
    /// Half of the script.
    Half,
    /// Creating an event costs twice as much.
    Create,
    /// Reading one costs ten times as much.
    Read,
}

impl Variation {
    const ALL: [Variation; 6] = [
        Variation::Access,
        Variation::GlobalStays,
        Variation::AccessAndGlobalStays,
        Variation::Half,
        Variation::Create,
        Variation::Read,
    ];

    /// In words, behind "with".
    pub fn says(self) -> &'static str {
        match self {
            Variation::Access => {
                "1,100 ns more for each access (published: r/w fixed_ctrl, version 2)"
            }
            Variation::GlobalStays => "global control left set",
            Variation::AccessAndGlobalStays => {
                "global control left set and 1,100 ns more for each access"
            }
            Variation::Half => "half of the script",
            Variation::Create => "creations at twice the cost",
            Variation::Read => "readings at ten times the cost",
        }
    }

    fn apply(self, script: &Script, costs: Costs) -> (Script, Costs) {
        let (mut script, mut costs) = (*script, costs);
        let kinds = [&mut costs.general, &mut costs.fixed];
        match self {
            Variation::Access => script.access = published::ACCESS,
            Variation::GlobalStays => script.clears_global = false,
            Variation::AccessAndGlobalStays => {
                (script.access, script.clears_global) = (published::ACCESS, false);
            }
            Variation::Half => {
                script.readings /= 2;
                script.samples /= 2;
                script.switches /= 2;
            }
            Variation::Create => kinds.into_iter().for_each(|cost| cost.create *= 2),
            Variation::Read => kinds.into_iter().for_each(|cost| cost.read *= 10),
        }
        (script, costs)
    }
}

/// Why a ratio differs.
#[derive(Clone, Debug, PartialEq)]
pub struct Why {
    /// The reason.
    pub reason: &'static str,
    /// What was varied.
    pub varied: Variation,
    /// The ratio that came of it.
    pub ratio: Option<f64>,
    /// Whether that is within a factor of two of the published one: then the reason is shown, else it is inferred.
    pub shown: bool,
}

/// The script under both policies in all variations.
pub(super) struct Trials(BTreeMap<Variation, [Outcome; 2]>);

impl Trials {
    pub(super) fn run(script: &Script) -> Result<Trials, Error> {
        let both = |variation: Variation| {
            let (script, costs) = variation.apply(script, published::costs());
            let run = |policy| script.run(policy, costs);
            Ok((variation, [run(Policy::Legacy)?, run(Policy::Reuse)?]))
        };
        Ok(Trials(Variation::ALL.into_iter().map(both).collect::<Result<_, Error>>()?))
    }

    /// Why a figure of an operation differs.
    pub(super) fn why(&self, operation: Operation, figure: Figure, published: Published) -> Why {
        let (reason, varied) = reason(operation, figure);
        let row = self.0.get(&varied).map(|runs| Row::of(operation, published, runs));
        Why {
            reason,
            varied,
            ratio: row.as_ref().and_then(|row| row.ratio(figure)),
            shown: row.is_some_and(|row| row.agrees(figure) == Some(true)),
        }
    }
}

fn reason(operation: Operation, figure: Figure) -> (&'static str, Variation) {
    match (operation, figure) {
        (Operation::EnableGlobal, Figure::Max) => (
            "in its first call each policy creates the same events, so that no cost of events sets them apart; the \
             published calls took about two creations under legacy and about half of one under version 2",
            Variation::Create,
        ),
        (Operation::EnableGlobal, Figure::Total) => (
            "reuse pays for events once and legacy every time: the ratio grows with the length of the script",
            Variation::Half,
        ),
        (Operation::FixedControl, _) => (
            "the script's guest clears global control first, so that neither policy has the host do anything here; \
             the published calls of legacy took no stop of a fixed event either, at 2,000,000 ns",
            Variation::AccessAndGlobalStays,
        ),
        (Operation::EventSelect, _) => (
            "the script's guest clears global control first, so that neither policy has the host do anything here; \
             the published longest call of legacy is about one stop, which is for a guest whose counters run",
            Variation::AccessAndGlobalStays,
        ),
        (Operation::Rdpmc, _) => (
            "both policies read an event that counts and need not ask for one that stands still, so that the cost of \
             reading does not set them apart",
            Variation::Read,
        ),
        (_, _) => (
            "what was published was timed with the exits of the accesses, which are not among the basic costs, and of \
             reuse little else remains",
            Variation::Access,
        ),
    }
}
