//! The system of a category's cells, and recording of exits there.

use vmtax_guest::job::{Job, JobAnswer, JobOutcome, JobRequest};
use vmtax_lab::{HostKind, LabVm, OperationProfile};
use vmtax_runs::lab::fault as lab_fault;
use vmtax_runs::record;

use crate::category::MatrixCategory;
use crate::category::SystemFacts;
use crate::error::{fault, strange};
use crate::link::in_one_system;
use crate::linked::Linked;
use crate::matrix::{Matrix, Where};
use crate::place::Place;
use crate::recorded::RecordedRows;
use crate::target::Accel;

/// A system with an agent.
pub(crate) enum AgentSystem {
    /// This computer, a system reached by ssh, or a VM on this computer.
    Place(Place),
    /// A VM on this computer, with a client or server on the host or in a second VM.
    Linked(Box<Linked>),
    /// A VM on an emulated host, and whether it is nested.
    Emulated { vm: Box<LabVm>, nested: bool },
}

/// An error of a place, as a sentence.
type SystemProblem = anyhow::Error;

impl AgentSystem {
    pub(crate) fn facts(&mut self) -> Result<SystemFacts, SystemProblem> {
        match self {
            AgentSystem::Place(place) => place.facts().map_err(|e| fault(&e).into()),
            AgentSystem::Linked(linked) => linked.facts().map_err(|e| fault(&e).into()),
            AgentSystem::Emulated { vm, .. } => {
                ask(vm, &JobRequest::Facts)?.0.facts().ok_or_else(unasked)
            }
        }
    }

    /// The process that runs the VM, where it is one of this computer.
    pub(crate) fn process(&self) -> Option<u32> {
        match self {
            AgentSystem::Place(Place::Vm(vm)) => Some(vm.process()),
            AgentSystem::Linked(linked) => Some(linked.process()),
            AgentSystem::Place(_) | AgentSystem::Emulated { .. } => None,
        }
    }

    pub(crate) fn execute(&mut self, job: &Job) -> Result<JobOutcome, SystemProblem> {
        match self {
            AgentSystem::Place(place) => {
                place.execute(&in_one_system(job)).map_err(|e| fault(&e).into())
            }
            AgentSystem::Linked(linked) => linked.execute(job).map_err(|e| fault(&e).into()),
            AgentSystem::Emulated { vm, .. } => {
                let answer = ask(vm, &JobRequest::Do(in_one_system(job)))?.0;
                answer.outcome().ok_or_else(unasked)
            }
        }
    }

    /// Runs a job once more, without warm-up, and records the exits as those of a VM with this number. The inner error says why
    /// nothing was recorded.
    pub(crate) fn record(
        &mut self,
        job: &Job,
        number: u32,
    ) -> Result<(JobOutcome, Result<RecordedRows, String>), SystemProblem> {
        let job = Job { warmups: Vec::new(), ..job.clone() };
        let AgentSystem::Emulated { vm, nested } = self else {
            return self.record_live(&job, number);
        };
        let (answer, trace, lost) =
            ask(vm, &JobRequest::Do(in_one_system(&Job { record: true, counters: false, ..job })))?;
        let outcome = answer.outcome().ok_or_else(unasked)?;
        let recorded = match (lost, trace) {
            (0, Some(trace)) => RecordedRows::of_trace(&trace, number, *nested)?,
            (0, None) => Err("the emulated host gave no recording".to_owned()),
            (lost, _) => Err(format!(
                "the trace buffer of the emulated host overflowed by {lost} events; make the workload shorter"
            )),
        };
        Ok((outcome, recorded))
    }

    /// Runs a job once more, without warm-up, while the emulator of its host records all that it executes: the call trees, or why there are none.
    pub(crate) fn profile(
        &mut self,
        job: &Job,
        workload: &str,
    ) -> Result<(JobOutcome, Result<OperationProfile, String>), SystemProblem> {
        let AgentSystem::Emulated { vm, .. } = self else {
            return Ok((JobOutcome::default(), Err("it is on no emulated host".to_owned())));
        };
        let job = Job { warmups: Vec::new(), counters: false, ..job.clone() };
        vm.profile(&in_one_system(&job), workload).map_err(|error| lab_fault(error, None))
    }

    /// Records with eBPF in the running kernel: the exits of the VM, or of all VMs if this computer itself is measured.
    fn record_live(
        &mut self,
        job: &Job,
        number: u32,
    ) -> Result<(JobOutcome, Result<RecordedRows, String>), SystemProblem> {
        let mut recorder = match record::recorder(self.process()) {
            Ok(recorder) => recorder,
            Err(problem) => return Ok((JobOutcome::default(), Err(problem))),
        };
        recorder.start();
        let outcome = self.execute(job)?;
        let coverage = recorder.coverage();
        let recorded = match recorder.finish() {
            Ok((rows, _, losses)) => {
                Ok(RecordedRows { coverage, ..RecordedRows::of_rows(rows, losses, number) })
            }
            Err(problem) => Err(problem.to_string()),
        };
        Ok((outcome, recorded))
    }
}

fn ask(
    vm: &mut LabVm,
    request: &JobRequest,
) -> Result<(JobAnswer, Option<Vec<u8>>, u64), SystemProblem> {
    let answered = vm.ask(request).map_err(|error| lab_fault(error, None))?;
    Ok((answered.answer, answered.trace, answered.lost))
}

fn unasked() -> SystemProblem {
    fault(&strange("the agent")).into()
}

/// The emulated host of an accelerator.
pub(crate) fn host(accel: Accel) -> Option<HostKind> {
    match accel {
        Accel::Amd => Some(HostKind::Amd),
        Accel::Intel => Some(HostKind::Intel),
        Accel::Arm => Some(HostKind::Arm),
        Accel::Kvm | Accel::Tcg => None,
    }
}

/// Parameters of the modules of a category's emulated host, and other words for its kernel.
pub(crate) fn host_options(category: &MatrixCategory) -> Vec<String> {
    let option = |(file, value): (&str, &str)| {
        let name = file.strip_prefix("/sys/module/")?.replace("/parameters/", ".");
        Some(format!("{name}={value}"))
    };
    let words = category.parts.iter().flat_map(|part| part.host_words);
    let words = words.map(|word| (*word).to_owned());
    category.host_settings().into_iter().filter_map(option).chain(words).collect()
}

/// Why a category's exits are not recorded; `None` if they are.
pub(crate) fn why_not(matrix: &Matrix, place: &Where, accel: Accel) -> Option<String> {
    if !matrix.exits {
        return Some("the matrix excludes them (exits = false)".to_owned());
    }
    match (place, accel) {
        (Where::Ssh { .. }, _) => {
            Some("the recorder is on this computer; run vmtax record there, beside it".to_owned())
        }
        (Where::Vm(_), Accel::Tcg) => Some(
            "QEMU's emulator runs VMs without KVM, so there are no exits; accel = \"amd\" runs them on the KVM of an emulated host"
                .to_owned(),
        ),
        (Where::Vm(_), Accel::Amd | Accel::Intel | Accel::Arm) => None,
        (Where::Vm(_), Accel::Kvm) | (Where::Host, _) => record::recorder(None).err(),
    }
}
