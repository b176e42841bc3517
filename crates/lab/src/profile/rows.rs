//! Checks batches against the clock, and turns the tree of one into rows.

use vmtax_events::{CallKind, CallRow, Sample};

use super::source::SourceLines;
use super::symbols::LevelSymbols;
use super::tree::{LabelList, LabelParts, Node, OtherLabel, ROOT};
use super::{DoneBatch, RecordBatches};

/// What was measured of an operation independently of the record.
#[derive(Clone, Debug)]
pub(crate) struct OperationMeasure<'a> {
    pub(crate) number: u16,
    pub(crate) workload: &'a str,
    /// Cycles of each batch; the first is the warm-up.
    pub(crate) cycles: &'a [u64],
    /// Instructions of a batch that belong to the loop, not to the operations.
    pub(crate) around: u64,
}

/// The call tree of an operation, and its totals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationProfile {
    /// Its nodes.
    pub rows: Vec<CallRow>,
    /// Instructions that began in the batch.
    pub begun: u64,
    /// Those of them that did not complete.
    pub undone: u64,
    /// Those that belong to the loop.
    pub around: u64,
    /// Idle nanoseconds, without instructions.
    pub idle: u64,
}

impl OperationProfile {
    /// The totals as metrics of samples, with their units.
    pub fn figures(&self, count: u32) -> [(&'static str, &'static str, u64); 5] {
        [
            (Sample::PROFILED, "count", count.into()),
            (Sample::PROFILE_BEGUN, "instructions", self.begun),
            (Sample::PROFILE_UNDONE, "instructions", self.undone),
            (Sample::PROFILE_LOOP, "instructions", self.around),
            (Sample::PROFILE_IDLE, "ns", self.idle),
        ]
    }
}

impl RecordBatches {
    /// The tree of the batch whose path is the median, if each batch has as many instructions as the clock says.
    pub(crate) fn profile(
        &self,
        measure: &OperationMeasure<'_>,
        symbols: &[LevelSymbols; 3],
    ) -> Result<OperationProfile, String> {
        let batches = self.done.get(&measure.number).map_or(&[][..], Vec::as_slice);
        if batches.len() != measure.cycles.len() || batches.is_empty() {
            let (recorded, measured) = (batches.len(), measure.cycles.len());
            return Err(format!("{recorded} batches were recorded and {measured} measured"));
        }
        for (number, (batch, cycles)) in batches.iter().zip(measure.cycles).enumerate() {
            batch
                .check(*cycles, self.others)
                .map_err(|problem| format!("batch {number}: {problem}"))?;
        }
        let mut order: Vec<usize> = (1..batches.len()).collect();
        order.sort_by_key(|batch| (batches[*batch].done(), *batch));
        let median = order.get(order.len().saturating_sub(1) / 2).copied().unwrap_or(0);
        batches[median].rows(measure, (&self.labels, symbols, &self.lines))
    }
}

impl DoneBatch {
    /// Instructions that completed.
    fn done(&self) -> u64 {
        self.batch.begun - self.batch.undone
    }

    /// What the clock must have gone on by.
    #[cfg(any(test, feature = "fuzz"))]
    pub(super) fn cycles(&self) -> u64 {
        self.done().saturating_add(self.idle.unwrap_or(0))
    }

    /// Compares it with the clock. Each of `others`, the host's other processors, may have one instruction more or less: QEMU begins an access to a device (of
    /// the local APIC, mostly) twice, and when a batch begins or ends on one processor, another one may stand between both.
    fn check(&self, cycles: u64, others: u64) -> Result<(), String> {
        let done = self.done();
        debug_assert_eq!(done, self.batch.tree.total());
        match self.idle {
            Some(idle) if done.saturating_add(idle).abs_diff(cycles) <= others => Ok(()),
            None if done == cycles => Ok(()),
            Some(0) => {
                Err(format!("the tree has {done} instructions, and the clock advanced by {cycles}"))
            }
            Some(idle) => Err(format!(
                "the tree has {done} instructions beside {idle} ns of waiting, and the clock advanced by {cycles}"
            )),
            None => Err(format!(
                "the tree has {done} instructions, the clock went on by {cycles}, and this emulator does not say how \
                 long it waited"
            )),
        }
    }

    fn rows(
        &self,
        measure: &OperationMeasure<'_>,
        (labels, symbols, lines): (&LabelList, &[LevelSymbols; 3], &SourceLines),
    ) -> Result<OperationProfile, String> {
        let mut nodes = self.batch.tree.nodes.clone();
        let payload = self.payload.and_then(|payload| nodes.get_mut(payload as usize));
        let Some(payload) = payload.filter(|payload| payload.count >= measure.around) else {
            return Err("the payload has fewer instructions than its loop".to_owned());
        };
        payload.count -= measure.around;
        let kept = kept(&nodes);
        let only = only_vcpu(&nodes, &kept, labels);
        let mut numbers = vec![None; nodes.len()];
        let mut rows = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            if !kept[index] || Some(index) == only {
                continue;
            }
            let parent = numbers.get(node.parent as usize).copied().flatten();
            let number = rows.len() as u32;
            numbers[index] = Some(number);
            let above = nodes.get(node.parent as usize);
            let (kind, level, name, module) = describe((node, above), labels, symbols, lines);
            rows.push(CallRow {
                workload: measure.workload.to_owned(),
                node: number,
                parent,
                kind,
                level,
                name,
                module,
                calls: node.calls,
                instructions: node.count,
            });
        }
        Ok(OperationProfile {
            rows,
            begun: self.batch.begun,
            undone: self.batch.undone,
            around: measure.around,
            idle: self.idle.unwrap_or(0),
        })
    }
}

/// Which nodes have instructions, or a node below that has.
fn kept(nodes: &[Node]) -> Vec<bool> {
    let mut kept: Vec<bool> = nodes.iter().map(|node| node.count > 0).collect();
    for index in (0..nodes.len()).rev() {
        let parent = nodes[index].parent as usize;
        if kept[index] && parent < index {
            kept[parent] = true;
        }
    }
    kept
}

/// The only root node, if it is a vCPU: its name adds no information then.
fn only_vcpu(nodes: &[Node], kept: &[bool], labels: &LabelList) -> Option<usize> {
    let mut tops = (0..nodes.len()).filter(|index| kept[*index] && nodes[*index].parent == ROOT);
    let top = tops.next().filter(|_| tops.next().is_none())?;
    let LabelParts::Other(place) = nodes[top].label.parts() else { return None };
    let other = labels.get(place)?;
    matches!(other, OtherLabel::Vcpu { .. }).then_some(top)
}

fn describe(
    (node, above): (&Node, Option<&Node>),
    labels: &LabelList,
    symbols: &[LevelSymbols; 3],
    lines: &SourceLines,
) -> (CallKind, u8, String, String) {
    let plain = |kind, level, name: String| (kind, level, name, String::new());
    match node.label.parts() {
        LabelParts::Function { level, id } => {
            let name = symbols[usize::from(level.min(2))].name(id);
            (CallKind::Function, level, name.function.clone(), name.module.clone())
        }
        LabelParts::Line(number) => {
            // Of the function's level.
            let level = match above.map(|above| above.label.parts()) {
                Some(LabelParts::Function { level, .. }) => level,
                _ => 0,
            };
            let (kind, text) = lines.text(number);
            plain(kind, level, text)
        }
        LabelParts::Other(place) => match labels.get(place) {
            Some(OtherLabel::Cause { level, name }) => {
                plain(CallKind::Cause, level, name.to_string())
            }
            Some(OtherLabel::Vcpu { level, number }) => {
                plain(CallKind::Thread, level, format!("vCPU {number}"))
            }
            Some(OtherLabel::Thread { level, number }) => {
                plain(CallKind::Thread, level, format!("thread {number}"))
            }
            Some(OtherLabel::Threads { level, name }) => {
                plain(CallKind::Thread, level, name.to_owned())
            }
            None => plain(CallKind::Function, 0, "[unknown]".to_owned()),
        },
    }
}
