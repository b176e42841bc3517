//! The runs of a series, and what changed between neighbours.

use std::collections::BTreeMap;

use vmtax_analyse::calls::difference::difference;
use vmtax_analyse::calls::profiled;
use vmtax_analyse::operations::{OperationRow, Operations, Path, Waited};
use vmtax_analyse::{Ledger, ProfiledOperation};
use vmtax_events::Level;

use crate::calls::difference::{brief, sentence};
use crate::numbers::plain;
use crate::operations::compared::CountsByName;

/// A run of the series.
pub struct SeriesPoint<'a> {
    /// The kernel's name in the series. Hostile text.
    pub kernel: String,
    /// `amd`, `intel` or `kvm`.
    pub host: String,
    /// Options of the modules and the kernel; empty where none was given. Hostile text.
    pub options: String,
    /// The run's folder in that of the series.
    pub folder: String,
    pub ledger: &'a Ledger,
}

/// A run with what is computed of it once.
pub(super) struct ShownRun<'a> {
    pub(super) point: SeriesPoint<'a>,
    pub(super) rows: Vec<OperationRow>,
    trees: Vec<ProfiledOperation<'a>>,
}

impl<'a> ShownRun<'a> {
    pub(super) fn new(point: SeriesPoint<'a>) -> ShownRun<'a> {
        let rows = Operations::new(point.ledger).rows;
        let trees = profiled(point.ledger).0;
        ShownRun { point, rows, trees }
    }

    pub(super) fn row(&self, name: &str, level: Level) -> Option<&OperationRow> {
        self.rows.iter().find(|row| row.name == name && row.level == level)
    }
}

/// An operation that is not the same in two neighbours.
pub(super) struct OperationChange {
    /// Indices of the runs.
    pub(super) steps: (usize, usize),
    pub(super) name: String,
    pub(super) level: Level,
    pub(super) exits: [Option<f64>; 2],
    pub(super) paths: [Option<Path>; 2],
    /// How long the step waited, where that is the change: every life of one run longer than every life of the other.
    pub(super) waits: Option<[Waited; 2]>,
    /// Exits of one operation that differ, by name.
    pub(super) kinds: Vec<String>,
    /// Functions by which the path differs, where both runs have call trees.
    pub(super) functions: Option<String>,
    /// The largest of them.
    pub(super) brief: Option<String>,
}

impl OperationChange {
    pub(super) fn ratio(&self) -> Option<f64> {
        let [before, after] = self.paths.map(|path| path.map(|path| path.median));
        Some(after? / before.filter(|before| *before > 0.0)?)
    }

    /// How far the paths may be apart without a change, as a part of the first.
    pub(super) fn tolerance(&self) -> Option<f64> {
        let [before, after] = self.paths;
        let (before, after) = (before?, after?);
        let allowed = before.tolerance() * before.median + after.tolerance() * after.median;
        Some(allowed / before.median).filter(|part| part.is_finite())
    }

    /// By how much the path changed, as a part of it; of a step that waits, path and waiting together.
    pub(super) fn size(&self) -> f64 {
        if let (Some([before, after]), [Some(then), Some(now)]) = (&self.waits, self.paths) {
            let all = |path: Path, waited: &Waited| path.median + waited.median;
            return (all(now, after) / all(then, before) - 1.0).abs();
        }
        self.ratio().map_or(f64::INFINITY, |ratio| (ratio - 1.0).abs())
    }
}

/// Pairs of runs that differ in the kernel or the options alone, and follow each other.
pub(super) fn steps(points: &[ShownRun<'_>]) -> Vec<(usize, usize)> {
    let mut steps = Vec::new();
    for (after, one) in points.iter().enumerate() {
        let before = |is: &dyn Fn(&SeriesPoint<'_>) -> bool| {
            points[..after]
                .iter()
                .rposition(|other| other.point.host == one.point.host && is(&other.point))
        };
        let same_options =
            before(&|other| other.options == one.point.options && other.kernel != one.point.kernel);
        let same_kernel =
            before(&|other| other.kernel == one.point.kernel && other.options != one.point.options);
        steps.extend(same_options.into_iter().chain(same_kernel).map(|before| (before, after)));
    }
    steps
}

pub(super) fn tree<'a, 'b>(
    one: &'b ShownRun<'a>,
    name: &str,
    level: Level,
) -> Option<&'b ProfiledOperation<'a>> {
    one.trees.iter().find(|tree| tree.name == name && tree.level == level)
}

/// The operations that are not the same, the largest change first.
pub(super) fn changes(
    points: &[ShownRun<'_>],
    steps: (usize, usize),
    kinds: CountsByName,
) -> Vec<OperationChange> {
    let (before, after) = (&points[steps.0], &points[steps.1]);
    let mut found = Vec::new();
    for now in &after.rows {
        let Some(then) = before.row(&now.name, now.level) else { continue };
        let differ = differ(then, now, kinds);
        let mut change = OperationChange {
            steps,
            name: now.name.clone(),
            level: now.level,
            exits: [then, now]
                .map(|row| row.exits_per_operation().value().filter(|_| row.recorded)),
            paths: [then.path, now.path],
            waits: waits(then, now),
            kinds: differ,
            functions: None,
            brief: None,
        };
        let is_path = then.path.zip(now.path).is_some_and(|(then, now)| then.differs(&now));
        if !is_path && change.kinds.is_empty() && change.waits.is_none() {
            continue;
        }
        let trees = tree(before, &now.name, now.level).zip(tree(after, &now.name, now.level));
        if let Some(difference) = trees.map(|(one, other)| difference(one, other)) {
            change.functions = sentence(&difference);
            change.brief = brief(&difference);
        }
        found.push(change);
    }
    found.sort_by(|a, b| b.size().total_cmp(&a.size()));
    found
}

fn waits(then: &OperationRow, now: &OperationRow) -> Option<[Waited; 2]> {
    let (before, after) = (then.waited.as_ref()?, now.waited.as_ref()?);
    before.differs(after).then(|| [before.clone(), after.clone()])
}

/// Exits of one operation that differ: `L1 msr 1, was 0`.
fn differ(then: &OperationRow, now: &OperationRow, kinds: CountsByName) -> Vec<String> {
    let (Some(before), Some(after)) = (kinds(then), kinds(now)) else { return Vec::new() };
    let each = |kinds: &BTreeMap<String, u64>, name: &str, row: &OperationRow| {
        kinds.get(name).copied().unwrap_or(0) as f64 / row.count.max(1) as f64
    };
    let names: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let pairs =
        names.into_iter().map(|name| (name, each(&before, name, then), each(&after, name, now)));
    // A tick of a clock or a page that is touched once is less than one of each operation.
    pairs
        .filter(|(_, was, is)| (was - is).abs() >= 0.5)
        .map(|(name, was, is)| format!("{name} {}, was {}", plain(is), plain(was)))
        .collect()
}
