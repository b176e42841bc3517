//! What the agent is asked to do on behalf of a benchmark, and what it answers.
//!
//! The same program carries jobs out in a VM (through the mailbox, [`crate::mailbox`]), on another computer (through its
//! standard input, over ssh) and on this one, so that what differs between two results is not how they were taken.

use serde::{Deserialize, Serialize};

use crate::order::{Counting, File};

/// In a word of a command or in a file: the folder that the job has for itself.
pub const DIR: &str = "{dir}";
/// In a word of a command or in a file: a free TCP and UDP port.
pub const PORT: &str = "{port}";
/// In a word of a command: the agent itself, for its built-in workloads.
pub const AGENT: &str = "{agent}";

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// What this system is.
    Facts,
    /// Do this.
    Do(Job),
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Name and value of each fact.
    Facts(Vec<(String, String)>),
    /// What became of the job.
    Done(Outcome),
}

/// A server, maybe, and a client that is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Files that the folder is to hold: name and content.
    pub files: Vec<(String, String)>,
    /// Runs while the others do, and must listen on [`PORT`] of 127.0.0.1 before they start.
    pub server: Vec<String>,
    /// Start the server anew for what is measured, after what runs first.
    pub server_anew: bool,
    /// Run first; their output is thrown away.
    pub warmups: Vec<Vec<String>>,
    /// What is measured.
    pub client: Vec<String>,
    /// How long all of it may take, ms.
    pub limit_ms: u64,
    /// Record the exits of this system while the client runs. Only in a guest of an emulated host, which does it.
    pub record: bool,
    /// Have the processor count [`EVENTS`] while the client runs, in it and all that it starts.
    pub counters: bool,
}

/// What a processor counts: instructions, and misses of branches, of the data TLB and of the first data cache, by
/// their names in perf. Source: "Performance analysis of confidential VMs" (TU Munich, 2024).
pub const EVENTS: [&str; 4] =
    ["instructions", "branch-misses", "dTLB-load-misses", "L1-dcache-load-misses"];

/// What an event counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Its name in perf; with `:u` where the kernel's part was not to be had.
    pub event: String,
    /// Its count, or why there is none.
    pub count: Result<u64, String>,
}

/// What became of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Why it could not be done, or was stopped; empty when the client ran to its end.
    pub problem: String,
    /// The client's exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// From the client's start to its end.
    pub elapsed_ns: u64,
    /// The client's output.
    pub stdout: Vec<u8>,
    /// Its errors.
    pub stderr: Vec<u8>,
    /// All that the server wrote.
    pub server: Vec<u8>,
    /// What the processor counted, if that was asked for.
    pub counters: Vec<Counter>,
    /// What the virtual PMU of the vCPU that did the job did meanwhile; `None` without one.
    pub pmu: Option<Box<Counting>>,
    /// What follows the answer in the mailbox, in this order: what an emulated host recorded.
    pub files: Vec<File>,
}
