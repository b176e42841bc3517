//! Facts of a recording: tool, host and kernel.

use serde::{Deserialize, Serialize};

use crate::{Coverage, Vm};

/// Facts of a recording. Empty strings: unknown.
///
/// All strings come from the file and are hostile text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recording {
    /// The input's format: `perf.data`, `trace.dat`, `ftrace text`, ...
    pub format: String,
    /// The recorder and its version (`perf 6.1.192`).
    pub tool: String,
    /// The recorder's command line.
    pub command: String,
    pub hostname: String,
    pub kernel: String,
    pub arch: String,
    pub cpu: String,
    /// Online CPUs, 0 if not said.
    pub cpus: u32,
    /// The clock of the time stamps (`mono`, `local`, ...).
    pub clock: String,
    /// The emulator under which the host ran, when the recording shows one (`QEMU TCG`). Times of an
    /// emulated host are never compared with hardware times. A run folder keeps it as its accelerator.
    #[serde(skip)]
    pub emulated: Option<String>,
    /// Which exits its single events are, when they are not those of all (`of one exit in 10`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<String>,
    /// Kinds of events that were recorded.
    pub coverage: Coverage,
    pub vms: Vec<Vm>,
    /// Recordings that were made together with this one.
    #[serde(skip)]
    pub together: Together,
}

/// A host and its guests that were recorded at the same time, each in a file of its own (`trace-cmd record -A`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Together {
    /// The recording's number, 0 if it has none.
    pub id: u64,
    /// The number of the host's recording. Only a guest's recording has it, and only if trace-cmd compared the clocks.
    pub host: Option<u64>,
    /// The guests of a host's recording.
    pub guests: Vec<RecordedGuest>,
}

/// A guest that was recorded together with its host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedGuest {
    /// Its name; hostile text.
    pub name: String,
    /// The number of its recording, 0 if it has none.
    pub id: u64,
    /// The host's threads that run its vCPUs; empty if the recorder did not know them.
    pub threads: Vec<u32>,
}

impl Recording {
    /// Whether it is a table or dump of counts that another tool printed (format `TOOL text`, or a dump of bpftrace): nothing says how
    /// long it took.
    pub fn is_table(&self) -> bool {
        let of_tool = self.format.strip_suffix(" text").is_some_and(|tool| tool == self.tool);
        self.format == "bpftrace" || (of_tool && !self.tool.is_empty())
    }

    /// That the single events are not those of all exits, if so.
    pub fn note_of_choice(&self) -> Option<String> {
        self.choice.as_ref().map(|which| format!("single events are those {which}"))
    }

    /// The emulator that a CPU model string gives away.
    pub fn emulator_of_cpu(cpu: &str) -> Option<String> {
        // QEMU names its TCG-only CPU models "QEMU TCG CPU version ..."; Bochs' models carry real names.
        cpu.contains("QEMU TCG").then(|| "QEMU TCG".to_owned())
    }
}
