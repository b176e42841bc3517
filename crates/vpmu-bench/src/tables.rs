//! The tables of the patch series that proposed reuse, computed: one guest script under both of its policies on the PMU in virtual time,
//! beside the published figures.
//!
//! A ratio depends on few published costs, and often also on an assumption or on the length of the script. Running the script again, with
//! other assumed costs and at half the length, shows which.

use vmtax_vpmu::{Activity, Error, Policy};

use crate::operation::{Figure, Operation};
use crate::published::{self, ASSUMED, Published};
use crate::script::{Outcome, Script};

/// The basis of a computed ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// Published costs only.
    Computed,
    /// An assumed cost too. The ratios with five times that cost and with zero; unbounded if reuse then costs nothing.
    Inferred {
        /// With [`FIVE`] times the assumed cost.
        least: Option<f64>,
        /// With no cost.
        most: Option<f64>,
    },
    /// No published figure determines it.
    Unknowable(&'static str),
}

impl Standing {
    /// Its word in tables.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Computed => "computed",
            Standing::Inferred { .. } => "inferred",
            Standing::Unknowable(_) => "unknowable",
        }
    }
}

/// Factor of the raised assumed cost, 1,000 ns: about the shortest published call of version 2 (1,100 ns, r/w fixed_ctrl).
pub const FIVE: u64 = 5;
/// Relative difference up to which two ratios are equal.
const SAME: f64 = 0.05;

/// A figure of an operation under both policies. Ratios are legacy to reuse.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The operation.
    pub operation: Operation,
    /// The figure.
    pub figure: Figure,
    /// Nanoseconds under [`Policy::Legacy`] and under [`Policy::Reuse`].
    pub ns: [u64; 2],
    /// The computed ratio; `None` if reuse does nothing.
    pub ratio: Option<f64>,
    /// The published ratio.
    pub published: f64,
    /// Basis of the ratio.
    pub standing: Standing,
}

/// Both tables and their runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Tables {
    /// A row for each published figure.
    pub rows: Vec<Row>,
    /// Operations of the host under legacy and reuse.
    pub activity: [Activity; 2],
    /// Samples that the guest took, the same under both.
    pub samples: u64,
}

type Runs = [Outcome; 2];

/// Runs the script under both policies with the published costs.
pub fn tables(script: &Script) -> Result<Tables, Error> {
    let run = |script: &Script, assumed: u64| -> Result<Runs, Error> {
        let one = |policy| script.run(policy, published::costs(assumed));
        Ok([one(Policy::Legacy)?, one(Policy::Reuse)?])
    };
    let half = Script {
        readings: script.readings / 2,
        samples: script.samples / 2,
        switches: script.switches / 2,
        ..*script
    };
    let trials = Trials {
        base: run(script, ASSUMED)?,
        none: run(script, 0)?,
        more: run(script, FIVE * ASSUMED)?,
        half: run(&half, ASSUMED)?,
    };
    let rows = published::figures().flat_map(|(operation, published)| {
        let row = |figure| trials.row(operation, figure, &published);
        Figure::ALL.into_iter().filter_map(row).collect::<Vec<_>>()
    });
    Ok(Tables {
        rows: rows.collect(),
        activity: trials.base.each_ref().map(|run| run.activity),
        samples: trials.base[1].samples,
    })
}

/// The script under both policies, and what shows whereon a ratio rests.
struct Trials {
    base: Runs,
    /// Assumed costs are zero.
    none: Runs,
    /// They are five times as much.
    more: Runs,
    /// The script is half as long.
    half: Runs,
}

impl Trials {
    /// None if the figure was not published.
    fn row(&self, operation: Operation, figure: Figure, published: &Published) -> Option<Row> {
        let ratio = published.ratio(figure)?;
        let take = |runs: &Runs| ns(runs, operation, figure, published.first_time);
        let ns = take(&self.base);
        let computed = of(ns);
        Some(Row {
            operation,
            figure,
            ns,
            ratio: computed,
            published: ratio,
            standing: self.standing(computed, |runs| of(take(runs)), ns),
        })
    }

    fn standing(
        &self,
        computed: Option<f64>,
        ratio: impl Fn(&Runs) -> Option<f64>,
        ns: [u64; 2],
    ) -> Standing {
        if ns == [0, 0] {
            return Standing::Unknowable("neither policy has the host do anything here");
        }
        if !same(computed, ratio(&self.half)) {
            return Standing::Unknowable("it grows with the length of the script");
        }
        let (least, most) = (ratio(&self.more), ratio(&self.none));
        match same(computed, least) && same(computed, most) {
            true => Standing::Computed,
            false => Standing::Inferred { least, most },
        }
    }
}

fn same(one: Option<f64>, other: Option<f64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => (one / other - 1.0).abs() <= SAME,
        (one, other) => one == other,
    }
}

fn of([legacy, reuse]: [u64; 2]) -> Option<f64> {
    (reuse > 0).then(|| legacy as f64 / reuse as f64)
}

/// Nanoseconds under both policies. The longest call of reuse is one that creates no events, unless the published one
/// does.
fn ns(runs: &Runs, operation: Operation, figure: Figure, first_time: bool) -> [u64; 2] {
    let [legacy, reuse] =
        runs.each_ref().map(|run| run.timings.get(&operation).copied().unwrap_or_default());
    match figure {
        Figure::Max if first_time => [legacy.max, reuse.max],
        Figure::Max => [legacy.max, reuse.max_settled],
        Figure::Total => [legacy.total, reuse.total],
    }
}
