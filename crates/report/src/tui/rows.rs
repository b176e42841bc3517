//! A frame grouped into rows: what one line of the screen is about.

use std::collections::BTreeMap;

use vmtax_analyse::{Filter, IntervalFrame, KeyValue, LedgerBuilder, table};
use vmtax_events::{Cause, Coverage, ExitKey, ExitRow, Losses, Outcome, Recording, Tally, TimeRow};

vmtax_events::words! {
    pub(super) enum View {
        Vms = "VMs",
        Vcpus = "vCPUs",
        Causes = "causes",
        Exits = "exits",
    }
}

impl View {
    /// Its rows have a split of time.
    pub(super) fn has_time(self) -> bool {
        matches!(self, View::Vms | View::Vcpus)
    }

    fn key(self, key: &ExitKey) -> Vec<KeyValue> {
        match self {
            View::Vms => vec![KeyValue::Vm(key.vm)],
            View::Vcpus => vec![KeyValue::Vcpu(key.vm, key.vcpu)],
            View::Causes => vec![KeyValue::Cause(table::cause_of(key))],
            View::Exits => {
                vec![
                    KeyValue::Reason(key.reason),
                    KeyValue::Detail(key.detail),
                    KeyValue::Level(key.level),
                ]
            }
        }
    }
}

/// What rows are limited to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Within {
    pub(super) vm: Option<u32>,
    pub(super) vcpu: Option<u32>,
    pub(super) cause: Option<Cause>,
}

impl Within {
    pub(super) fn row(mut self, key: &[KeyValue]) -> Within {
        match key.first() {
            Some(KeyValue::Vm(vm)) => self.vm = Some(*vm),
            Some(KeyValue::Vcpu(vm, vcpu)) => (self.vm, self.vcpu) = (Some(*vm), Some(*vcpu)),
            Some(KeyValue::Cause(cause)) => self.cause = Some(*cause),
            _ => {}
        }
        self
    }

    /// The views that still tell something apart.
    pub(super) fn views(&self) -> Vec<View> {
        let is_open = |view: &View| match view {
            View::Vms => self.vm.is_none(),
            View::Vcpus => self.vcpu.is_none(),
            View::Causes => self.cause.is_none(),
            View::Exits => true,
        };
        View::ALL.into_iter().filter(is_open).collect()
    }

    pub(super) fn holds_vcpu(&self, vm: u32, vcpu: u32) -> bool {
        self.vm.is_none_or(|own| own == vm) && self.vcpu.is_none_or(|own| own == vcpu)
    }

    pub(super) fn holds(&self, key: &ExitKey) -> bool {
        self.holds_vcpu(key.vm, key.vcpu)
            && self.cause.is_none_or(|cause| cause == table::cause_of(key))
    }
}

/// What a row counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowSums {
    pub(super) tally: Tally,
    /// Time in exits that did not halt.
    pub(super) taxed_ns: u64,
    pub(super) has_taxed: bool,
    pub(super) time: TimeRow,
    pub(super) vcpus: usize,
}

impl RowSums {
    fn exit(&mut self, key: &ExitKey, tally: &Tally) {
        self.tally.merge(tally);
        if key.outcome != Outcome::Halted && tally.timed > 0 {
            self.taxed_ns = self.taxed_ns.saturating_add(tally.time_ns);
            self.has_taxed = true;
        }
    }

    fn time(&mut self, time: &TimeRow) {
        self.time.add(time);
        self.vcpus += 1;
    }
}

/// A frame's rows.
#[derive(Debug, Default)]
pub(super) struct Grouped {
    pub(super) rows: BTreeMap<Vec<KeyValue>, RowSums>,
    /// All of them together.
    pub(super) whole: RowSums,
    /// Some exit came from the nested guest, or the level is unknown.
    pub(super) has_levels: bool,
}

/// Groups a frame. What the recording could not see becomes unknown as in any report.
pub(super) fn group(
    frame: &IntervalFrame,
    coverage: Coverage,
    within: &Within,
    view: View,
) -> Grouped {
    let mut builder = LedgerBuilder::new(Filter::default(), 1);
    for (key, tally) in frame.exits.iter().filter(|(key, _)| within.holds(key)) {
        builder.exit(&ExitRow { interval_start_ns: 0, key: *key, tally: tally.clone() });
    }
    let recording = Recording { coverage, ..Recording::default() };
    let ledger = builder.finish(recording, Losses::default(), true);
    let mut grouped = Grouped { has_levels: ledger.has_nesting(), ..Grouped::default() };
    for (key, tally) in &ledger.exits {
        grouped.rows.entry(view.key(key)).or_default().exit(key, tally);
        grouped.whole.exit(key, tally);
    }
    for ((vm, vcpu), time) in
        frame.time.iter().filter(|((vm, vcpu), _)| within.holds_vcpu(*vm, *vcpu))
    {
        grouped.whole.time(time);
        if view.has_time() {
            let key =
                if view == View::Vms { KeyValue::Vm(*vm) } else { KeyValue::Vcpu(*vm, *vcpu) };
            grouped.rows.entry(vec![key]).or_default().time(time);
        }
    }
    grouped
}

/// Exits of one row in a frame.
pub(super) fn count(frame: &IntervalFrame, within: &Within, view: View, row: &[KeyValue]) -> u64 {
    let of_row = |key: &ExitKey| within.holds(key) && view.key(key) == row;
    frame.exits.iter().filter(|(key, _)| of_row(key)).map(|(_, tally)| tally.count).sum()
}
