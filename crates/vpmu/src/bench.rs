//! The tables of the series that proposed reuse, computed: one guest script under both policies on the PMU in virtual
//! time, beside what the series published.
//!
//! Nothing is printed here, and no figure of a policy is written down: both come from running [`script`] with
//! [`published::costs`]. What the series measured beyond those costs (exits, the guest's own code, being preempted) is
//! not in them; a ratio that comes out differently for it says so.

mod guest;
pub mod precision;
pub mod published;
pub mod script;
pub mod steady;
pub mod why;

use crate::error::Error;
use crate::policy::{Activity, Policy};
use published::Published;
use script::{Outcome, Script};
use why::{Trials, Why};

/// What the guest's perf does that costs time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Sets global control.
    EnableGlobal,
    /// Clears global control.
    DisableGlobal,
    /// Reads and writes the fixed counters' control.
    FixedControl,
    /// Writes an event select.
    EventSelect,
    /// Reads a counter.
    Rdpmc,
    /// Handles the interrupt of a sample.
    HandleInterrupt,
    /// Switches a thread with counters in.
    SwitchIn,
    /// Switches a thread with counters out.
    SwitchOut,
}

impl Operation {
    /// Its published name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::EnableGlobal => "enable global_ctrl",
            Operation::DisableGlobal => "disable global_ctrl",
            Operation::FixedControl => "r/w fixed_ctrl",
            Operation::EventSelect => "r/w eventsel",
            Operation::Rdpmc => "rdpmc",
            Operation::HandleInterrupt => "handle_irq",
            Operation::SwitchIn => "context switch in",
            Operation::SwitchOut => "context switch out",
        }
    }
}

/// Nanoseconds of the host's work in all calls of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Calls.
    pub calls: u64,
    /// The longest.
    pub max: u64,
    /// The longest in which no event was created.
    pub max_settled: u64,
    /// All together.
    pub total: u64,
}

impl Timing {
    /// One more call, and whether it created events.
    fn add(&mut self, ns: u64, created: bool) {
        if !created {
            self.max_settled = self.max_settled.max(ns);
        }
        self.calls += 1;
        self.max = self.max.max(ns);
        self.total += ns;
    }
}

/// Which figure of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The longest call.
    Max,
    /// All calls together.
    Total,
}

/// An operation under both policies. Ratios are legacy to reuse.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Which.
    pub operation: Operation,
    /// Under [`Policy::Legacy`].
    pub legacy: Timing,
    /// Under [`Policy::Reuse`].
    pub reuse: Timing,
    /// What the series published.
    pub published: Published,
    /// Why the ratio of the longest calls is not within a factor of two of the published one.
    pub why_max: Option<Why>,
    /// The same for all calls together.
    pub why_total: Option<Why>,
}

impl Row {
    /// Of one operation in a run under each policy.
    fn of(operation: Operation, published: Published, runs: &[Outcome; 2]) -> Row {
        let [legacy, reuse] =
            runs.each_ref().map(|run| run.timings.get(&operation).copied().unwrap_or_default());
        Row { operation, legacy, reuse, published, why_max: None, why_total: None }
    }

    /// The computed ratio; none if reuse spends nothing. For the longest call of reuse the first times, which create
    /// events, count if they do in the published one.
    pub fn ratio(&self, figure: Figure) -> Option<f64> {
        let (legacy, reuse) = match figure {
            Figure::Max if self.published.first_time => (self.legacy.max, self.reuse.max),
            Figure::Max => (self.legacy.max, self.reuse.max_settled),
            Figure::Total => (self.legacy.total, self.reuse.total),
        };
        (reuse > 0).then(|| legacy as f64 / reuse as f64)
    }

    /// Whether the computed ratio is within a factor of two of the published one; none if none was published.
    pub fn agrees(&self, figure: Figure) -> Option<bool> {
        let published = self.published.ratio(figure)?;
        let within = |ratio: f64| (0.5..=2.0).contains(&(ratio / published));
        Some(self.ratio(figure).is_some_and(within))
    }
}

/// Both tables and what they come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// An operation a row.
    pub rows: Vec<Row>,
    /// What [`Policy::Legacy`] had the host do.
    pub legacy: Activity,
    /// What [`Policy::Reuse`] had it do.
    pub reuse: Activity,
    /// Samples that the guest took, the same under both.
    pub samples: u64,
}

/// Runs the script under both policies with the published costs.
pub fn compare(script: &Script) -> Result<Comparison, Error> {
    let run = |policy| script.run(policy, published::costs());
    let runs = [run(Policy::Legacy)?, run(Policy::Reuse)?];
    let trials = Trials::run(script)?;
    let row = |(operation, published)| {
        let row = Row::of(operation, published, &runs);
        let why = |figure| {
            (row.agrees(figure) == Some(false)).then(|| trials.why(operation, figure, published))
        };
        Row { why_max: why(Figure::Max), why_total: why(Figure::Total), ..row }
    };
    Ok(Comparison {
        rows: published::figures().map(row).collect(),
        legacy: runs[0].activity,
        reuse: runs[1].activity,
        samples: runs[1].samples,
    })
}
