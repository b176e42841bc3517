//! Requests to the agent of benchmarks, and its answers.
//!
//! The same program carries jobs out in a VM (through the mailbox, [`crate::mailbox`]), on another computer (through its
//! standard input, over ssh) and on this one, so that all results are measured in the same way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::functions::HostKernels;
use crate::order::{FollowingFile, KvmCounters, PmuCounting};

/// In a word of a command or in a file: the job's private folder.
pub const DIR: &str = "{dir}";
/// In a word of a command or in a file: a free TCP and UDP port.
pub const PORT: &str = "{port}";
/// In a word of a command: the agent itself, for its built-in workloads.
pub const AGENT: &str = "{agent}";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobRequest {
    /// Send the facts of this system.
    Facts,
    Do(Job),
    /// Say where the kernels here have their functions, for a recorder in the emulator. Only a guest of an emulated host is asked.
    Kernels,
    /// Give the first network card an address.
    Network(CardAddress),
    /// Start the job's server, and leave it running.
    Serve(Job),
    /// End that server.
    End,
}

/// The address of a network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardAddress {
    /// IPv4.
    pub address: [u8; 4],
    /// Bits of its network.
    pub prefix: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobAnswer {
    /// Name and value of each fact.
    Facts(Vec<(String, String)>),
    /// The outcome of the job; for a server, of starting or ending it.
    Done(JobOutcome),
    /// What the answering system has loaded, and the systems in it. Only the emulated host tells all functions.
    Kernels(HostKernels),
}

impl JobAnswer {
    /// The facts, if it is an answer of facts.
    pub fn facts(self) -> Option<BTreeMap<String, String>> {
        match self {
            JobAnswer::Facts(facts) => Some(facts.into_iter().collect()),
            JobAnswer::Done(_) | JobAnswer::Kernels(_) => None,
        }
    }

    /// The outcome, if it is one of a job.
    pub fn outcome(self) -> Option<JobOutcome> {
        match self {
            JobAnswer::Done(outcome) => Some(outcome),
            JobAnswer::Facts(_) | JobAnswer::Kernels(_) => None,
        }
    }
}

/// A client to measure, and optionally a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Files to create in the folder: name and content.
    pub files: Vec<(String, String)>,
    /// The server, which runs meanwhile. It must listen on [`PORT`] before the others start.
    pub server: Vec<String>,
    /// Restart the server after the warm-up.
    pub server_anew: bool,
    /// Warm-up commands; their output is discarded.
    pub warmups: Vec<Vec<String>>,
    /// The client to measure.
    pub client: Vec<String>,
    /// Timeout of the job, ms.
    pub limit_ms: u64,
    /// Record this system's exits while the client runs. Only in a guest of an emulated host, which records them.
    pub record: bool,
    /// Have the emulator record all that it executes while the client runs, and no exits. Only in a guest of an emulated host.
    pub profile: bool,
    /// Count [`EVENTS`] of the client and its children.
    pub counters: bool,
    /// The value of [`PORT`], if it is not to be chosen here.
    pub port: Option<u16>,
}

/// Processor events, by their names in perf: instructions, and misses of branches, data TLB, L1 data cache and last-level cache. Source: "Performance analysis of confidential VMs" (TU Munich, 2024).
pub const EVENTS: [&str; 5] = [
    "instructions",
    "branch-misses",
    "dTLB-load-misses",
    "L1-dcache-load-misses",
    "LLC-load-misses",
];

/// The count of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCounter {
    /// Its name in perf; with `:u` if kernel mode could not be counted.
    pub event: String,
    /// Its count, or why there is none.
    pub count: Result<u64, String>,
}

/// Time of all processors, in ticks of `/proc/stat`. A processor that polls because it is idle (`idle=poll`) is not busy: the kernel
/// polls in its idle task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    /// Not idle.
    pub busy: u64,
    pub total: u64,
}

/// The outcome of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobOutcome {
    /// Why it failed or was stopped; empty if the client ran to its end.
    pub problem: String,
    /// The client's exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Run time of the client.
    pub elapsed_ns: u64,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Output of the server.
    pub server: Vec<u8>,
    /// Time of the system's processors while the client ran, or the server.
    pub busy: Option<Box<Busy>>,
    /// Counts of processor events, if requested.
    pub counters: Vec<JobCounter>,
    /// Activity of the vCPU's virtual PMU during the job, if it has one.
    pub pmu: Option<Box<PmuCounting>>,
    /// Cycles of the emulated host's clock between the marks around the client, if the emulator recorded it.
    pub profiled: Option<u64>,
    /// KVM's page faults while the client ran, and the pages that it has mapped for the VM; only of a guest of an emulated host.
    pub mapped: Option<KvmCounters>,
    /// Files that follow the answer in the mailbox, in this order: the recording of an emulated host.
    pub files: Vec<FollowingFile>,
}
