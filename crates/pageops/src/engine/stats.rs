//! What an engine tells of its work: where operations were done and why, and what went wrong.

use std::collections::BTreeMap;

use super::OperationValue;
use crate::device::Status;

/// Why an operation was done where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Choice {
    /// On a device.
    Device,
    /// On the CPU: the policy says so.
    CpuByPolicy,
    /// On the CPU: too little to hand over.
    CpuSmall,
    /// On the CPU: all queues were full.
    CpuBusy,
    /// On the CPU: larger than a device takes.
    CpuTooLarge,
    /// On the CPU: no device takes it (no bytes, or a delta of other sizes or addresses than the specification allows).
    CpuUnfit,
    /// On the CPU: the device did not finish it.
    CpuAfterFault,
    /// On the CPU: no queue is left.
    CpuNoQueue,
}

/// A fault that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SeenFault {
    /// A status other than success.
    Status(Status),
    /// No record came, though the queue was drained.
    Lost,
    /// The record came after the bound.
    Late,
    /// It was in a queue that was given up.
    QueueDead,
}

/// One queue's part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Its name.
    pub name: String,
    /// Operations handed over.
    pub operations: u64,
    /// Of how many bytes.
    pub bytes: u64,
    /// Tries that found it full.
    pub retries: u64,
    /// Times it was drained.
    pub drains: u64,
    /// Why it was taken out, if it was.
    pub dead: Option<String>,
}

/// What an engine did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Operations by where they were finished, and why there.
    pub choices: BTreeMap<Choice, u64>,
    /// Faults by kind, one for each operation that had one.
    pub faults: BTreeMap<SeenFault, u64>,
    /// Batches handed over.
    pub batches: u64,
    /// Queues.
    pub queues: Vec<QueueStats>,
}

impl EngineStats {
    /// In words: who did how much, why, and what went wrong.
    pub fn describe(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        for (choice, count) in &self.choices {
            let what = match choice {
                Choice::Device => "on devices",
                Choice::CpuByPolicy => "on the CPU as asked",
                Choice::CpuSmall => "on the CPU (too little to hand over)",
                Choice::CpuBusy => "on the CPU (queues full)",
                Choice::CpuTooLarge => "on the CPU (larger than a device takes)",
                Choice::CpuUnfit => "on the CPU (not as devices take it)",
                Choice::CpuAfterFault => "on the CPU after a fault",
                Choice::CpuNoQueue => "on the CPU (no queue left)",
            };
            parts.push(format!("{count} {what}"));
        }
        for (fault, count) in &self.faults {
            parts.push(format!("{count} x {fault:?}"));
        }
        for queue in &self.queues {
            if let Some(why) = &queue.dead {
                parts.push(format!("{} was taken out: {why}", queue.name));
            }
        }
        parts.join(", ")
    }
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationOutcome {
    /// Its result.
    pub value: OperationValue,
    /// Where it was finished.
    pub choice: Choice,
    /// What went wrong on the way.
    pub fault: Option<SeenFault>,
}
