//! One run: a host, suites, and their results.

use vmtax_events::Isa;
use vmtax_guest::order::{Operation, Order, OrderOutcome};

use crate::conversation::GuestAnswer;
use crate::exceptions::ExceptionReading;
use crate::host::{self, HostKind, HostSetup, Ready};
use crate::measured::{MeasuredMemory, MeasuredOperation, workload};
use crate::outcomes::Outcomes;
use crate::paging::{self, Frames, Paging, RecordedCode};
use crate::profile::{
    BatchClock, Clocked, DebugSource, OperationMeasure, RecordReading, WholeRecord,
};
use crate::suite::{Definition, EMPTY, LIVES_LEAST, Ordered, Suite};
use crate::{Error, check, trace_dat, window};

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct LabPlan {
    /// Suites, in order; that of a user's file is one of them.
    pub suites: Vec<&'static Suite>,
    /// Single operations; when there are any, others of the suites are left out.
    pub only: Vec<&'static Definition>,
    /// Measured batches of each operation; one more warms up.
    pub batches: u32,
}

impl LabPlan {
    /// The least number of batches.
    pub const LEAST_BATCHES: u32 = 5;
}

/// Batches before those that count.
const WARM_UP: u32 = 1;

/// What the kernel says of protected VMs (Linux 7.3, arch/arm64/kvm/arm.c), and what they lack there.
const EXPERIMENTAL: &str = "protected VMs are experimental in this kernel, which taints itself for them; they map memory in pages of 4 KiB, which stay theirs until they \
                            end, so each batch touches other pages; ACTLR_EL1 is undefined there, and actlr left out";

/// What an emulated processor lacks that shows at L2.
const NO_PML: &str = "Bochs has no page-modification logging, and without it Linux does not shadow GUEST_PML_INDEX: each exit of \
                      L2 takes a VMREAD of it, which hardware with PML should not show";

/// Boots or restores a host and has it do the plan.
///
/// # Errors
/// When the host does not come up or cannot do its work. An operation that fails alone is an outcome.
pub fn run(setup: &HostSetup, plan: &LabPlan, progress: &dyn Fn(&str)) -> Result<Outcomes, Error> {
    let tasks = tasks(setup, plan)?;
    let sources = DebugSource::open(&setup.debug_info)?;
    let (probes, unnamed) = probes(setup);
    let program = tasks.iter().find_map(|task| task.definition.program());
    let order = Order {
        operations: tasks.iter().map(|task| task.operation().clone()).collect(),
        functions: setup.profile && !setup.observer.is_empty(),
        trace: setup.observer.is_empty(),
        probes,
        observer: setup.observer.clone(),
        program: None,
        simulated: program.map(|one| one.ordered.clone()),
    };
    let Ready { mut machine, mut conversation, mut start, recorded, exceptions } =
        setup.start(&order, progress)?;
    start.notes.extend(setup.protected.then(|| EXPERIMENTAL.to_owned()));
    start.notes.extend(unnamed);
    start.notes.extend(program.map(|one| format!("the program is {}", one.name)));
    start.notes.extend(setup.frames.as_ref().map(|frames| {
        let by = "frames that are scattered over 24 GiB by their operation's name are";
        match frames {
            Frames::Within(mib) => format!("{by} scattered over {mib} MiB"),
            Frames::Of(layout) => format!("{by} those of {}", layout.name),
        }
    }));
    let mut recorded = recorded;
    let mut reading = None;
    let accesses = match &recorded {
        Some(_) if !setup.profile => recorded.take(),
        _ => None,
    };
    let accesses = accesses.map(|made| paging::Reading::start(made.record)).transpose()?;
    if setup.observer.is_empty() {
        reading = recorded
            .take()
            .map(|made| read_record(made, &tasks, (&sources, &setup.annotate)))
            .transpose()?;
    }
    // An observer brings code of its own, so that functions are known when it has.
    let mut functions = |kernels: &[u8]| {
        let made =
            recorded.take().map(|made| host::HostRecord { kernels: kernels.to_vec(), ..made });
        reading =
            made.map(|made| read_record(made, &tasks, (&sources, &setup.annotate))).transpose()?;
        Ok(())
    };
    progress("running the suite");
    if setup.nested && setup.host == HostKind::Intel {
        start.notes.push(NO_PML.to_owned());
    }
    let GuestAnswer { report, files } =
        conversation.execute(&mut machine, &order, &mut functions)?;
    machine.finish()?;
    let numbers = tasks.iter().map(|task| task.operation().number);
    report.check(numbers).map_err(|problem| Error::Report { problem })?;
    let calls = reading.map(RecordReading::finish);
    let accesses = accesses.map(paging::Reading::finish);
    let exceptions = exceptions.map(ExceptionReading::finish).transpose()?;
    start
        .notes
        .extend(report.refused.iter().map(|probe| format!("VMCS fields are not named: {probe}")));
    let (trace, files): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|(name, _)| name.starts_with("trace/"));
    let trace_lost = trace_dat::lost(&trace);
    let trace =
        if trace.is_empty() { None } else { Some(trace_dat::assemble(&trace, &report.release)?) };
    let mut operations = measured(&tasks, &report.outcomes, (calls.as_ref(), accesses.as_ref()))?;
    if let Some(exceptions) = &exceptions {
        for (one, task) in operations.iter_mut().zip(tasks.iter().filter(|task| task.counts())) {
            one.exceptions = exceptions.of(task.operation().number).cloned();
        }
    }
    let named = |task: &Task| (window::vm_of(task.operation().number), task.workload());
    Ok(Outcomes {
        operations,
        program: None,
        vms: tasks.iter().map(named).collect(),
        trace,
        trace_lost,
        files,
        release: report.release,
        processor: report.processor,
        start,
    })
}

/// Reads the record while it is made.
fn read_record(
    made: host::HostRecord,
    tasks: &[Task],
    sources: (&[DebugSource], &[String]),
) -> Result<RecordReading, Error> {
    let clocked = |task: &Task| {
        let operation = task.operation();
        let clocked = match operation.step {
            Some(_) => Clocked { level: operation.level - 1, clock: BatchClock::Program },
            None => {
                let (before, after) = task.ordered.clock;
                Clocked { level: operation.level, clock: BatchClock::Payload(before, after) }
            }
        };
        (operation.number, clocked)
    };
    RecordReading::start(made, tasks.iter().map(clocked).collect(), sources)
}

/// Probes for what KVM's tracepoints do not say, or a note why there are none and the recording says less.
fn probes(setup: &HostSetup) -> (Vec<String>, Option<String>) {
    let Some(define) = setup.vmcs_probes.filter(|_| setup.host.isa() == Isa::Vmx) else {
        return (Vec::new(), None);
    };
    let name = setup.host.module();
    let modules = setup.kernel.modules_for(&[name]).map_err(|error| error.to_string());
    let module = modules.and_then(|modules| {
        let built_in = || format!("{name} is built into this kernel, which has no symbols");
        modules.into_iter().find(|module| module.name == name).ok_or_else(built_in)
    });
    match module.and_then(|module| define(&module.bytes)) {
        Ok(probes) => (probes, None),
        Err(problem) => (Vec::new(), Some(format!("VMCS fields are not named: {problem}"))),
    }
}

struct Task {
    definition: &'static Definition,
    ordered: Ordered,
}

impl Task {
    fn operation(&self) -> &Operation {
        &self.ordered.operation
    }

    fn workload(&self) -> String {
        workload(self.definition.name, self.operation().level)
    }

    /// Whether it is an operation, and not the empty loop.
    fn counts(&self) -> bool {
        self.definition.name != EMPTY.name
    }

    /// Instructions of a batch that are no operation's: the loop's, and those of the body that only prepare. `empty` is what
    /// the empty loop of the level takes.
    fn around(&self, empty: u64) -> u64 {
        let operation = self.operation();
        if operation.step.is_some() || operation.linux.is_some() {
            return 0;
        }
        // The loop has two instructions of its own.
        let longer =
            2 * i64::from(operation.count) - 2 * i64::from(EMPTY.count_at(operation.level));
        empty.saturating_add_signed(longer) + self.ordered.around * u64::from(operation.count)
    }
}

fn tasks(setup: &HostSetup, plan: &LabPlan) -> Result<Vec<Task>, Error> {
    let isa = setup.host.isa();
    let mut tasks = Vec::new();
    let mut is_scattered = setup.frames.is_none();
    for level in 1..=if setup.nested { 2 } else { 1 } {
        for definition in definitions(plan, setup, level) {
            let number = tasks.len() as u16;
            let (batches, last) = batches(setup, plan, definition);
            let mut ordered = definition.order(isa, number, (level, setup.protected), batches)?;
            ordered.operation.last = last;
            let operation = &mut ordered.operation;
            let wide = operation.paging.as_mut().filter(|paging| paging.is_wide());
            if let (Some(paging), Some(frames)) = (wide, &setup.frames) {
                is_scattered = true;
                match frames {
                    Frames::Within(mib) => paging.scattered_mib = *mib,
                    Frames::Of(layout) => {
                        (operation.words, paging.scattered_mib) = layout.of(paging.bytes)?;
                    }
                }
            }
            tasks.push(Task { definition, ordered });
        }
    }
    if is_scattered { Ok(tasks) } else { Err(Error::Scattered) }
}

/// Batches of an operation beside the recorded one, and whether they come last. Of what waits there is no path: its batches are for
/// an observer, for what its PMU counts, and for a call tree, which takes no median. A plain run has none of them, and they are most of
/// the time. Batches for a tree alone come last, so that the paths of operations after them are those of a plain run.
fn batches(setup: &HostSetup, plan: &LabPlan, definition: &Definition) -> (u32, bool) {
    if definition.boots() {
        // It takes as long as many others.
        return (1, false);
    }
    if definition.program().is_some() {
        // Each batch is the same.
        return (WARM_UP + 1, false);
    }
    if definition.step().is_some() {
        return (WARM_UP + plan.batches.max(LIVES_LEAST), false);
    }
    let counts = !setup.observer.is_empty() || definition.pmu().is_some();
    if !definition.waits() || counts {
        (WARM_UP + plan.batches, false)
    } else {
        (if setup.profile { WARM_UP + 1 } else { 0 }, true)
    }
}

fn definitions(plan: &LabPlan, setup: &HostSetup, level: u8) -> Vec<&'static Definition> {
    let suites = plan
        .suites
        .iter()
        .filter(|suite| level == 1 || suite.nests)
        .flat_map(|suite| suite.operations);
    let wanted = suites
        // A Linux guest with counters does not nest.
        .filter(|one| !(setup.nested && one.is_of_linux()))
        .filter(|one| plan.only.is_empty() || plan.only.iter().any(|only| only.name == one.name));
    std::iter::once(&EMPTY)
        .chain(wanted.filter(|one| {
            one.is_for(setup.host, level) && (!setup.protected || one.is_for_protected())
        }))
        .collect()
}

/// Instructions of an operation: those of the batch, less the loop's and the body's own.
fn measured(
    tasks: &[Task],
    outcomes: &[OrderOutcome],
    (calls, accesses): (Option<&WholeRecord>, Option<&paging::Recorded>),
) -> Result<Vec<MeasuredOperation>, Error> {
    let mut measured = Vec::new();
    let mut empty = 0;
    for (task, outcome) in tasks.iter().zip(outcomes) {
        let operation = task.operation();
        let warm_up = usize::from(!task.definition.boots());
        let cycles = outcome.cycles.get(warm_up..).unwrap_or_default();
        let failure = || {
            let incomplete = || check::incomplete(operation, outcome);
            let ran = outcome.missing.is_none();
            let miscounted = || check::miscounted(task.definition.counted()?, &outcome.counted);
            outcome.failure.clone().or_else(incomplete).or_else(miscounted).filter(|_| ran)
        };
        let paging = accesses.filter(|_| {
            operation.paging.is_some() && failure().is_none() && outcome.missing.is_none()
        });
        let paging = paging.map(|recorded| recorded.of(operation.number)).transpose();
        let code = |start| match task.definition.program() {
            Some(program) => RecordedCode::of_program(program, start),
            None => RecordedCode::Payload(&operation.code),
        };
        let with_texts = |found: Paging| {
            let code = code(found.start);
            found.with_texts(code)
        };
        let paging = paging.map(|found| found.map(with_texts));
        let (paging, differs) = match paging {
            Ok(paging) => (paging, None),
            Err(problem) => (None, Some(problem)),
        };
        if !task.counts() {
            let not_measured = || {
                let why = failure().unwrap_or_else(|| "no batch came back".to_owned());
                Error::Report { problem: format!("the empty loop was not measured: {why}") }
            };
            empty =
                upper_median(cycles).filter(|_| failure().is_none()).ok_or_else(not_measured)?;
            continue;
        }
        let count = f64::from(operation.count);
        let around = task.around(empty);
        let path = |cycles: &u64| (*cycles as f64 - around as f64) / count;
        let waited = outcome.waited.get(warm_up..).unwrap_or_default();
        let busy = |(cycles, waited): (&u64, &u64)| cycles.saturating_sub(*waited) as f64;
        let is_step = operation.step.is_some();
        let profile = |recorded: &WholeRecord| {
            let (number, cycles) = (operation.number, outcome.cycles.as_slice());
            recorded.profile(&OperationMeasure {
                number,
                workload: &task.workload(),
                cycles,
                around,
            })
        };
        measured.push(MeasuredOperation {
            vm: window::vm_of(operation.number),
            name: task.definition.name,
            definition: task.definition,
            level: operation.level,
            count: operation.count,
            paths: if task.definition.waits() {
                Vec::new()
            } else if is_step {
                cycles.iter().zip(waited).map(busy).collect()
            } else {
                cycles.iter().map(path).collect()
            },
            waited: waited.to_vec(),
            places: outcome.places.clone(),
            window: outcome.window,
            recorded: false,
            counted: outcome.counted.clone(),
            perf: outcome.perf.get(1..).unwrap_or_default().to_vec(),
            at_el2: outcome.at_el2.get(1..).unwrap_or_default().to_vec(),
            exceptions: None,
            pmu: outcome.pmu,
            memory: outcome.memory.map(|mapping| MeasuredMemory {
                regions: u64::from(operation.touch.map_or(0, |touch| touch.bytes)) >> 21,
                guest_memfd: operation.touch.is_some_and(|touch| touch.backing.is_guest_memfd()),
                mapping,
                traced: None,
            }),
            paging,
            missing: outcome.missing.clone(),
            profile: calls
                .filter(|_| failure().is_none() && outcome.missing.is_none())
                .map(profile),
            failure: failure().or(differs),
        });
    }
    Ok(measured)
}

/// A count that occurred, which the mean of two would not be.
fn upper_median(values: &[u64]) -> Option<u64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}
