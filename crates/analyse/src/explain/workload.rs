//! The results of a workload of benchmarks.

use vmtax_events::Better;

use super::certainty::Certainty;
use crate::remedy::VmKind;

/// Losses under this are not looked into.
pub const LOSS: f64 = 0.05;
/// Part of a loss that is called most of it.
pub const MOST: f64 = 0.5;
/// Minimum repetitions of each to conclude that one is larger than the other if all values are: with five and
/// five, the chance for that among equals is 2 in 252 (the exact rank-sum test; Wilcoxon, Biometrics Bulletin 1, 1945).
pub const ENOUGH: usize = 5;

/// The result of one category of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct CategoryResult {
    /// The category.
    pub category: String,
    /// The median.
    pub value: f64,
    /// Values.
    pub runs: usize,
    /// The plain VM with the same options; without one, and beside a plain VM, the host. Of set-ups with names of their own the best.
    pub plain: Option<CategoryBeside>,
    /// The same category without its last option.
    pub baseline: Option<CategoryBeside>,
}

/// A category beside which another is.
#[derive(Clone, Debug, PartialEq)]
pub struct CategoryBeside {
    /// Its name.
    pub category: String,
    /// Its median.
    pub value: f64,
    /// The part of its median that the other loses (negative: gains), by the shift that `vmtax bench compare` shows as overhead.
    pub loss: f64,
    /// The values of the two are told apart: by the rank-sum test, or because they do not overlap.
    pub differs: bool,
    /// By the rank-sum test, with at least [`ENOUGH`] values of each.
    pub proven: bool,
}

impl CategoryBeside {
    /// The other loses so much that it is looked into.
    pub(super) fn is_loss(&self) -> bool {
        self.differs && self.loss >= LOSS
    }
}

/// The results of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadResults {
    /// What ran, and what was measured.
    pub name: String,
    /// Unit of the values.
    pub unit: String,
    /// Categories are kinds of VM and options; else they are set-ups with names of their own, each beside the best.
    pub has_kinds: bool,
    /// Values are changes against something that the text does not show, in percent or as factors.
    pub is_relative: bool,
    /// Which values are good.
    pub better: Better,
    /// The category that loses most against a plain VM with the same options, from [`LOSS`] on.
    pub worst: Option<CategoryResult>,
    /// The part of that loss that a plain VM with a bounce buffer has too.
    pub bounce: Option<f64>,
    /// Where no category has a plain VM beside it: the one whose last option changes most, from [`LOSS`] on.
    pub changed: Option<CategoryResult>,
    /// Options that got most of a loss back.
    pub recovered: Vec<Recovered>,
    /// Every category.
    pub rows: Vec<CategoryResult>,
}

impl WorkloadResults {
    /// The category that the verdict is about is proven to differ, and so is what an option got back of it.
    pub fn is_proven(&self) -> bool {
        let worst = self.worst.as_ref().and_then(|row| row.plain.as_ref());
        let beside = worst.or(self.changed.as_ref().and_then(|row| row.baseline.as_ref()));
        let sure = |one: &Recovered| one.certainty == Certainty::Likely;
        beside.is_some_and(|beside| beside.proven) && self.recovered.iter().all(sure)
    }

    /// The set-ups with the smallest and the largest value.
    pub fn ends(&self) -> Option<(&CategoryResult, &CategoryResult)> {
        let order = |a: &&CategoryResult, b: &&CategoryResult| a.value.total_cmp(&b.value);
        Some((self.rows.iter().min_by(order)?, self.rows.iter().max_by(order)?))
    }

    /// The category that seems to lose most, from [`LOSS`] on, where none is proven to: its runs and those of the best overlap.
    pub fn unproven(&self) -> Option<(&CategoryResult, &CategoryBeside)> {
        let beside = self.rows.iter().filter_map(|row| Some((row, row.plain.as_ref()?)));
        let open = beside.filter(|(_, plain)| !plain.differs && plain.loss >= LOSS);
        open.max_by(|a, b| a.1.loss.total_cmp(&b.1.loss)).filter(|_| self.worst.is_none())
    }

    /// How far the values are apart: of changes the largest, else by how much the largest is above the smallest.
    pub(super) fn span(&self) -> f64 {
        let Some((least, most)) = self.ends() else { return 0.0 };
        match self.is_relative {
            true => least.value.abs().max(most.value.abs()) / 100.0,
            false if least.value > 0.0 => most.value / least.value - 1.0,
            false => 0.0,
        }
    }

    /// The largest loss against a plain VM with the same options; 0 where there is none.
    pub fn loss(&self) -> f64 {
        let plain = self.worst.as_ref().and_then(|row| row.plain.as_ref());
        plain.map_or(0.0, |plain| plain.loss)
    }
}

/// An option that got most of a loss back.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovered {
    /// The option.
    pub option: String,
    /// The category without it.
    pub category: String,
    /// The part of the loss that it got back.
    pub part: f64,
    /// The loss, as a part of the plain VM's value.
    pub loss: f64,
    /// How sure that is.
    pub certainty: Certainty,
    pub(super) kind: VmKind,
}
