//! The one interface by which rows travel: from the accounting, a run folder or the live recorder to whatever keeps them.

use crate::{
    AccessRow, CallRow, Event, Exit, ExitRow, PreemptedRow, Profile, Recording, Sample,
    ScheduledRow, Stat, TimeRow, Vm,
};

/// Takes rows. A sink implements what it keeps; the rest is ignored.
pub trait RowSink {
    /// Exits of one key in one interval.
    fn exit(&mut self, row: &ExitRow) {
        let _ = row;
    }
    /// Accesses of one key in one interval.
    fn access(&mut self, row: &AccessRow) {
        let _ = row;
    }
    /// The time of one vCPU in one interval.
    fn time(&mut self, row: &TimeRow) {
        let _ = row;
    }
    /// The threads that had the CPU of preempted vCPUs in one interval.
    fn preempted(&mut self, row: &PreemptedRow) {
        let _ = row;
    }
    /// What vCPUs waited in a recording of the scheduler alone.
    fn scheduled(&mut self, row: &ScheduledRow) {
        let _ = row;
    }
    fn sample(&mut self, sample: &Sample) {
        let _ = sample;
    }
    fn stat(&mut self, stat: &Stat) {
        let _ = stat;
    }
    /// A node of a call tree. Those of a workload come in order, a parent before its children.
    fn call(&mut self, row: &CallRow) {
        let _ = row;
    }
    fn profile(&mut self, profile: Profile) {
        let _ = profile;
    }
    /// Raw events, before they are counted.
    fn events(&mut self, events: &[Event]) {
        let _ = events;
    }
    /// The name of a thread. Hostile text.
    fn thread_name(&mut self, tid: u32, name: &str) {
        let _ = (tid, name);
    }
    /// A VM with its first event; its name may become known later.
    fn appeared(&mut self, vm: &Vm) {
        let _ = vm;
    }
    /// An exit as it ends, before it is counted.
    #[inline]
    fn ended(&mut self, exit: &Exit) {
        let _ = exit;
    }
    /// The recording's facts, before its end.
    fn described(&mut self, recording: &Recording) {
        let _ = recording;
    }
    /// Whether a row could not be written, so that reading on is useless. The sink keeps the error.
    fn has_failed(&self) -> bool {
        false
    }
}

/// A sink that keeps rows, in the order in which they come.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptRows {
    pub exits: Vec<ExitRow>,
    pub accesses: Vec<AccessRow>,
    pub times: Vec<TimeRow>,
    /// Threads that had the CPUs of preempted vCPUs.
    pub preempted: Vec<PreemptedRow>,
    pub samples: Vec<Sample>,
}

impl RowSink for KeptRows {
    fn exit(&mut self, row: &ExitRow) {
        self.exits.push(row.clone());
    }
    fn access(&mut self, row: &AccessRow) {
        self.accesses.push(row.clone());
    }
    fn time(&mut self, row: &TimeRow) {
        self.times.push(*row);
    }
    fn preempted(&mut self, row: &PreemptedRow) {
        self.preempted.push(row.clone());
    }
    fn sample(&mut self, sample: &Sample) {
        self.samples.push(sample.clone());
    }
}
