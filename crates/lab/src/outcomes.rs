//! Results of a run: operations that were measured, or a program that ran in their place, and the recording.

use vmtax_events::Reason;
use vmtax_guest::order::Ran;

use crate::check;
use crate::host::{HostKind, HostStart};
use crate::measured::MeasuredOperation;
use crate::window::{Extent, Windows};

/// Results of a run.
#[derive(Debug)]
pub struct Outcomes {
    pub operations: Vec<MeasuredOperation>,
    /// What the program did that ran in place of operations.
    pub program: Option<EndedProgram>,
    /// Id and name of every VM in the recording: the operations', and that of the empty loop at each level.
    pub vms: Vec<(u32, String)>,
    /// The recording of one batch of each, a `trace.dat`; none when an observer ran.
    pub trace: Option<Vec<u8>>,
    /// Events that the recording's buffer had no room for.
    pub trace_lost: u64,
    /// What the observer left, by name.
    pub files: Vec<(String, Vec<u8>)>,
    /// Kernel of the host.
    pub release: String,
    /// Processor of the host, as it sees itself.
    pub processor: String,
    /// How the host came up.
    pub start: HostStart,
}

impl Outcomes {
    /// The windows of the recording, those of steps by their times.
    pub fn windows(&self) -> Windows {
        let of_step = |one: &MeasuredOperation| Some((one.vm, one.window?));
        Windows::with(self.operations.iter().filter_map(of_step))
    }

    /// Holds the operations against what the import of their recording showed: one whose exits are missing was not measured.
    pub fn check_recording(&mut self, host: HostKind, windows: &Windows) {
        if self.trace.is_none() {
            return;
        }
        let ran = |one: &&mut MeasuredOperation| one.failure.is_none() && one.missing.is_none();
        for one in self.operations.iter_mut().filter(ran) {
            let seen = windows.of_vm(one.vm);
            if one.definition.step().is_some() {
                // Most have no exits, so nothing can be missing.
                one.recorded = seen.extent == Extent::Whole && !seen.lost;
                continue;
            }
            if let Some(memory) = &mut one.memory {
                memory.traced = seen.mapped;
            }
            one.failure = check::missing(one, &seen, host.isa(), host == HostKind::Kvm)
                .or_else(|| check::uncounted(one, &seen))
                .or_else(|| check::differs(one, &seen));
        }
    }

    /// What the kernel lacks, and the operations that were skipped for it.
    pub fn skipped(&self) -> Vec<String> {
        let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
        for one in &self.operations {
            let Some(reason) = one.missing.as_deref() else { continue };
            match reasons.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, names)) => names.push(one.workload()),
                None => reasons.push((reason, vec![one.workload()])),
            }
        }
        let said = |(reason, names): (&str, Vec<String>)| {
            format!("{reason}; skipped: {}", names.join(", "))
        };
        reasons.into_iter().map(said).collect()
    }

    /// Each operation that was not measured, and why.
    pub fn failures(&self) -> Vec<String> {
        let failed = |one: &MeasuredOperation| {
            Some(format!("{}: {}", one.workload(), one.failure.as_ref()?))
        };
        self.operations.iter().filter_map(failed).collect()
    }
}

/// What a program did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedProgram {
    pub name: String,
    /// What it wrote to the serial port and the debug console.
    pub output: String,
    /// Bytes of output that were not kept.
    pub dropped: u64,
    /// Its exit code, if it ended by the exit port.
    pub code: Option<u32>,
    /// Why it ended otherwise.
    pub failure: Option<String>,
    /// Devices that it accessed and the VMM lacks, with the number of accesses.
    pub absent: Vec<(String, u64)>,
    /// All exits of the recorded run, most frequent first; `None` if the kernel cannot count them.
    pub exits: Option<Vec<(Reason, u64)>>,
    /// How the recorded run ended, if it ended otherwise.
    pub recorded: Option<String>,
}

/// The judgement of a program about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramVerdict {
    /// Exit code 0.
    Passed,
    /// Exit code 38: nothing of it can run here.
    Skipped,
    /// Any other exit code.
    Failed,
    /// It ended without one.
    None,
}

/// What a test that cannot run writes to the exit port: QEMU ends with twice that plus 1, and 77 is what its callers take for skipped.
const SKIPPED: u32 = 77 >> 1;

impl EndedProgram {
    pub(crate) fn new(name: &str, ran: Ran, host: HostKind) -> EndedProgram {
        let reason = |(raw, count)| (Reason::from_trace(host.isa(), raw), count);
        let mut exits: Option<Vec<_>> =
            ran.exits.map(|exits| exits.into_iter().map(reason).collect());
        if let Some(exits) = &mut exits {
            exits.sort_by_key(|(reason, count)| (std::cmp::Reverse(*count), reason.code));
        }
        EndedProgram {
            name: name.to_owned(),
            output: String::from_utf8_lossy(&ran.output).replace("\r\n", "\n"),
            dropped: ran.dropped,
            code: ran.code,
            failure: ran.failure,
            absent: ran.absent,
            exits,
            recorded: ran.recorded,
        }
    }

    pub fn verdict(&self) -> ProgramVerdict {
        match self.code {
            Some(0) => ProgramVerdict::Passed,
            Some(SKIPPED) => ProgramVerdict::Skipped,
            Some(_) => ProgramVerdict::Failed,
            None => ProgramVerdict::None,
        }
    }

    /// The verdict as a phrase: `passed (exit code 0)`.
    pub fn said(&self) -> String {
        let word = match self.verdict() {
            ProgramVerdict::Passed => "passed",
            ProgramVerdict::Skipped => "skipped",
            ProgramVerdict::Failed => "failed",
            ProgramVerdict::None => {
                let why = self.failure.as_deref().unwrap_or("it stopped");
                return format!("no verdict: {why}");
            }
        };
        format!("{word} (exit code {})", self.code.unwrap_or_default())
    }

    /// The lines of its output by which tests report: what failed, was skipped, and the summary.
    pub fn reported(&self) -> Vec<&str> {
        let marks = ["FAIL", "SKIP", "SUMMARY"];
        let is_one = |line: &&str| marks.iter().any(|mark| line.starts_with(mark));
        self.output.lines().map(str::trim_end).filter(is_one).collect()
    }

    /// What a reader of the recording should know.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.absent.is_empty() {
            let named = |(device, count): &(String, u64)| format!("{device} ({count})");
            let named: Vec<String> = self.absent.iter().map(named).collect();
            notes.push(format!(
                "{} accessed devices that its VM does not have: {}; reads gave ones",
                self.name,
                named.join(", ")
            ));
        }
        if self.dropped > 0 {
            notes.push(format!(
                "{} bytes of the output of {} were not kept",
                self.dropped, self.name
            ));
        }
        if let Some(recorded) = &self.recorded {
            notes.push(format!("the recorded run of {} differs: {recorded}", self.name));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_of_exit_codes() {
        let ended = |code, failure: Option<&str>| EndedProgram {
            code,
            failure: failure.map(str::to_owned),
            ..EndedProgram::default()
        };
        for (one, verdict, said) in [
            (ended(Some(0), None), ProgramVerdict::Passed, "passed (exit code 0)"),
            (ended(Some(1), None), ProgramVerdict::Failed, "failed (exit code 1)"),
            (ended(Some(38), None), ProgramVerdict::Skipped, "skipped (exit code 38)"),
            (ended(Some(77), None), ProgramVerdict::Failed, "failed (exit code 77)"),
            (
                ended(None, Some("a triple fault")),
                ProgramVerdict::None,
                "no verdict: a triple fault",
            ),
        ] {
            assert_eq!((one.verdict(), one.said().as_str()), (verdict, said));
        }
    }

    #[test]
    fn tests_report_by_lines() {
        let output =
            "enabling apic\nPASS: a\nFAIL: b\n  FAIL\nSUMMARY: 2 tests, 1 unexpected failures\n";
        let ended = EndedProgram { output: output.to_owned(), ..EndedProgram::default() };
        assert_eq!(ended.reported(), ["FAIL: b", "SUMMARY: 2 tests, 1 unexpected failures"]);
    }
}
