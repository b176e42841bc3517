//! The system of a category's cells, and recording of exits there.

use vmtax_cli::exit::{Code, Fault};
use vmtax_guest::job::{Answer, Job, Outcome, Request};
use vmtax_lab::{Host, Vm};
use vmtax_runs::lab::fault as lab_fault;
use vmtax_runs::record;

use crate::category::Category;
use crate::category::Facts;
use crate::error::fault;
use crate::link::in_one_system;
use crate::linked::Linked;
use crate::matrix::{Matrix, Where};
use crate::place::Place;
use crate::recorded::Recorded;
use crate::target::Accel;

/// A system with an agent.
pub(crate) enum System {
    /// This computer, a system reached by ssh, or a VM on this computer.
    Place(Place),
    /// A VM on this computer, with a client or server on the host or in a second VM.
    Linked(Box<Linked>),
    /// A VM on an emulated host, and whether it is nested.
    Emulated { vm: Box<Vm>, nested: bool },
}

/// An error of a place, as a sentence.
type Problem = anyhow::Error;

impl System {
    /// Facts of the system.
    pub(crate) fn facts(&mut self) -> Result<Facts, Problem> {
        match self {
            System::Place(place) => place.facts().map_err(|e| fault(&e).into()),
            System::Linked(linked) => linked.facts().map_err(|e| fault(&e).into()),
            System::Emulated { vm, .. } => match ask(vm, &Request::Facts)?.0 {
                Answer::Facts(facts) => Ok(facts.into_iter().collect()),
                Answer::Done(_) => Err(strange()),
            },
        }
    }

    /// The process that runs the VM, where it is one of this computer.
    pub(crate) fn process(&self) -> Option<u32> {
        match self {
            System::Place(Place::Vm(vm)) => Some(vm.process()),
            System::Linked(linked) => Some(linked.process()),
            System::Place(_) | System::Emulated { .. } => None,
        }
    }

    /// Runs a job.
    pub(crate) fn execute(&mut self, job: &Job) -> Result<Outcome, Problem> {
        match self {
            System::Place(place) => {
                place.execute(&in_one_system(job)).map_err(|e| fault(&e).into())
            }
            System::Linked(linked) => linked.execute(job).map_err(|e| fault(&e).into()),
            System::Emulated { vm, .. } => match ask(vm, &Request::Do(in_one_system(job)))?.0 {
                Answer::Done(outcome) => Ok(outcome),
                Answer::Facts(_) => Err(strange()),
            },
        }
    }

    /// Runs a job once more, without warm-up, and records the exits as those of a VM with this number. The inner error says why
    /// nothing was recorded.
    pub(crate) fn record(
        &mut self,
        job: &Job,
        number: u32,
    ) -> Result<(Outcome, Result<Recorded, String>), Problem> {
        let job = Job { warmups: Vec::new(), ..job.clone() };
        let System::Emulated { vm, nested } = self else { return self.record_live(&job, number) };
        let (answer, trace, lost) =
            ask(vm, &Request::Do(in_one_system(&Job { record: true, counters: false, ..job })))?;
        let Answer::Done(outcome) = answer else { return Err(strange()) };
        let recorded = match (lost, trace) {
            (0, Some(trace)) => Recorded::of_trace(&trace, number, *nested)?,
            (0, None) => Err("the emulated host gave no recording".to_owned()),
            (lost, _) => Err(format!(
                "the trace buffer of the emulated host overflowed by {lost} events; make the workload shorter"
            )),
        };
        Ok((outcome, recorded))
    }

    /// Records with eBPF in the running kernel: the exits of the VM, or of all VMs if this computer itself is measured.
    fn record_live(
        &mut self,
        job: &Job,
        number: u32,
    ) -> Result<(Outcome, Result<Recorded, String>), Problem> {
        let mut recorder = match record::recorder(self.process()) {
            Ok(recorder) => recorder,
            Err(problem) => return Ok((Outcome::default(), Err(problem))),
        };
        recorder.start();
        let outcome = self.execute(job)?;
        let coverage = recorder.coverage();
        let recorded = match recorder.finish() {
            Ok((rows, _, losses)) => {
                Ok(Recorded { coverage, ..Recorded::of_rows(rows, losses, number) })
            }
            Err(problem) => Err(problem.to_string()),
        };
        Ok((outcome, recorded))
    }
}

fn ask(vm: &mut Vm, request: &Request) -> Result<(Answer, Option<Vec<u8>>, u64), Problem> {
    let answered = vm.ask(request).map_err(|error| lab_fault(error, None))?;
    Ok((answered.answer, answered.trace, answered.lost))
}

fn strange() -> Problem {
    Fault::new(Code::Machine, "the agent's answer does not belong to the request").into()
}

/// The emulated host of an accelerator.
pub(crate) fn host(accel: Accel) -> Option<Host> {
    match accel {
        Accel::Amd => Some(Host::Amd),
        Accel::Intel => Some(Host::Intel),
        Accel::Kvm | Accel::Tcg => None,
    }
}

/// Parameters of the modules of a category's emulated host.
pub(crate) fn module_options(category: &Category) -> Vec<String> {
    let option = |(file, value): (&str, &str)| {
        let name = file.strip_prefix("/sys/module/")?.replace("/parameters/", ".");
        Some(format!("{name}={value}"))
    };
    category.host_settings().into_iter().filter_map(option).collect()
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
        (Where::Vm(_), Accel::Amd | Accel::Intel) => None,
        (Where::Vm(_), Accel::Kvm) | (Where::Host, _) => record::recorder(None).err(),
    }
}
