//! The overhead of a kind of memory as page faults: KVM's counts of a benchmark's cells, and the cost of one fault from a lab run of the
//! same kernel on the same emulated host.
//!
//! ```text
//! time more than the baseline = faults x cost of one - faults of the baseline x cost of one there + the rest
//! ```
//! The counts are measured in each cell. That each fault of a cell costs what one of the lab's operation costs is the model: a fault that
//! maps 2 MiB clears them, and in a cell some faults of huge-page memory map 4 KiB. The clock of an emulated host is one nanosecond for each
//! instruction, so instructions of the lab are nanoseconds of a cell.
//!
//! Left out: TLB misses and page walks, which no count of instructions contains; the lab's suite `paging` simulates them.

use vmtax_events::Level;

use crate::bench::{BenchTable, FAULTS, FAULTS_OF_OPERATION, ResultRow};
use crate::{Ledger, Operations};

/// Kinds of memory: how a category's name begins or ends, and the lab's operation that measures a fault on it.
const KINDS: [(&str, &str); 3] = [
    ("plain", "touch-4k-thp"),
    ("plain+gmem", "touch-4k-guest-memfd"),
    ("private", "touch-4k-private"),
];

/// What one page fault costs, by kind of memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultCosts(Vec<FaultCost>);

/// The cost of a fault on a kind of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FaultCost {
    category: &'static str,
    operation: &'static str,
    instructions: f64,
}

impl FaultCosts {
    /// From a lab run of the suite `memory`; empty for another ledger.
    pub fn of_lab(ledger: &Ledger) -> FaultCosts {
        let operations = Operations::new(ledger);
        let cost = |(category, operation): (&'static str, &'static str)| {
            let row = operations
                .rows
                .iter()
                .find(|row| row.name == operation && row.level == Level::L1)?;
            let faults = row.memory?.faults.filter(|faults| *faults > 0)?;
            let path = row.path.as_ref()?.median;
            let instructions = path * row.count as f64 / faults as f64;
            Some(FaultCost { category, operation, instructions })
        };
        FaultCosts(KINDS.into_iter().filter_map(cost).collect())
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of a category. Parts that do not change its memory may be added to it; in a nested guest other faults occur.
    fn of_category(&self, category: &str) -> Option<&FaultCost> {
        let mut parts = category.split('+');
        let kind = parts.next()?;
        let rest: Vec<&str> = parts.collect();
        if rest.contains(&"nested") || rest.contains(&"hugepages") {
            return None;
        }
        let name = if rest.contains(&"gmem") { format!("{kind}+gmem") } else { kind.to_owned() };
        self.0.iter().find(|cost| cost.category == name)
    }
}

/// An overhead in parts, of one operation of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultParts {
    pub workload: String,
    pub category: String,
    /// Beside which.
    pub baseline: String,
    /// Nanoseconds more than the baseline.
    pub difference: f64,
    /// The category's faults.
    pub own: Faults,
    pub base: Faults,
}

/// Page faults of one operation, and the cost of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// How many.
    pub count: f64,
    /// Instructions of one.
    pub cost: f64,
    /// The lab's operation that says so.
    pub operation: &'static str,
}

impl Faults {
    /// Instructions of all.
    pub fn all(&self) -> f64 {
        self.count * self.cost
    }
}

impl FaultParts {
    /// What the faults come to, beyond those of the baseline.
    pub fn of_faults(&self) -> f64 {
        self.own.all() - self.base.all()
    }

    /// What they do not explain.
    pub fn rest(&self) -> f64 {
        self.difference - self.of_faults()
    }
}

/// The overhead of each category whose memory is of another kind than its baseline's.
pub fn parts(bench: &BenchTable, costs: &FaultCosts) -> Vec<FaultParts> {
    let faults = |workload: &str, category: &str| {
        let row = bench.rows.iter().find(|row| {
            (&*row.workload, &*row.category, &*row.metric, &*row.unit)
                == (workload, category, FAULTS, FAULTS_OF_OPERATION)
        })?;
        let cost = costs.of_category(category)?;
        Some(Faults { count: row.median.value, cost: cost.instructions, operation: cost.operation })
    };
    let in_parts = |row: &ResultRow| {
        let against = row.against.as_ref()?;
        let own = faults(&row.workload, &row.category)?;
        let base = faults(&row.workload, &against.baseline)?;
        (own.operation != base.operation).then(|| FaultParts {
            workload: row.workload.clone(),
            category: row.category.clone(),
            baseline: against.baseline.clone(),
            difference: against.shift.value,
            own,
            base,
        })
    };
    let times = bench.rows.iter().filter(|row| (&*row.metric, &*row.unit) == ("time", "ns"));
    times.filter_map(in_parts).collect()
}

#[cfg(test)]
mod tests {
    use vmtax_events::{Better, Sample};

    use super::*;
    use crate::bench::table;

    #[test]
    fn an_overhead_is_faults_and_the_rest() {
        let sample = |category: &str, metric: &str, unit: &str, value: f64| Sample {
            workload: "touch-4k".to_owned(),
            category: category.to_owned(),
            repeat: 0,
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            value,
            better: Better::Lower,
        };
        let of = |category, time, faults| {
            [
                sample(category, "time", "ns", time),
                sample(category, FAULTS, FAULTS_OF_OPERATION, faults),
            ]
        };
        let samples = [
            of("plain", 3000.0, 0.002),
            of("plain+gmem", 9500.0, 1.0),
            of("plain+poll", 3100.0, 0.002),
            of("plain+gmem+nested", 90_000.0, 1.0),
            of("private", 9000.0, 1.0),
        ]
        .concat();
        let bench = table(&samples, false).unwrap();
        let cost =
            |(category, operation), instructions| FaultCost { category, operation, instructions };
        let costs = FaultCosts(vec![cost(KINDS[0], 500_000.0), cost(KINDS[1], 7000.0)]);
        let parts = parts(&bench, &costs);
        // Polling changes no memory, a nested guest has other faults, and nothing is known of private memory.
        assert_eq!(parts.len(), 1, "{parts:?}");
        assert_eq!((&*parts[0].category, &*parts[0].baseline), ("plain+gmem", "plain"));
        assert_eq!(parts[0].difference, 6500.0);
        assert_eq!(parts[0].of_faults(), 6000.0);
        assert_eq!(parts[0].rest(), 500.0);
    }
}
