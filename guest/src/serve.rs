//! Takes an order, has it carried out, and hands back the report.

use vmtax_guest::order::{
    FollowingFile, LinuxWork, Operation, Order, OrderOutcome, Program, RecordedProgram, Report,
    encode,
};

use crate::channel::{Attachment, Channel};
use crate::init::Host;
use crate::observer::Observer;
use crate::trace::{self, Tracer};
use crate::vmm::backing::HostBacking;
use crate::vmm::linux::{Linux, MEMORY_MIB};
use crate::vmm::payload::{PayloadBatches, PayloadPlan, SharedVm, execute};
use crate::vmm::{paging, program, touched};
use crate::{Result, kallsyms, l1, life, ports, system};

/// Serves until there is nothing more to do.
pub(crate) fn run(start: Host) -> Result<()> {
    let channel = &start.channel;
    let prepared = match channel {
        Channel::Mailbox(_) => prepare(&start),
        Channel::Port(_) => Ok(None),
    };
    let guest = prepared.inspect_err(|problem| channel.fail(0, problem))?;
    let here = matches!(channel, Channel::Mailbox(_));
    let mut shared = SharedVm::default();
    loop {
        let (number, order) = channel.next().inspect_err(|problem| channel.fail(0, problem))?;
        if here {
            system::align();
        }
        let carried_out = if here {
            let tell = |guest: Option<&Linux>| {
                channel.tell(
                    number,
                    &encode(&kallsyms::kernels(
                        guest.map(|guest| |order: &Order| guest.execute(order, Tracer::Off)),
                    )?),
                )
            };
            host(&order, (guest.as_ref(), &tell), &mut shared)
        } else {
            inner(&order, &mut shared)
        };
        let (report, files) = carried_out.inspect_err(|problem| channel.fail(number, problem))?;
        channel
            .finish(number, &report, &files)
            .inspect_err(|problem| channel.fail(number, problem))?;
        if here {
            return Ok(());
        }
    }
}

fn prepare(start: &Host) -> Result<Option<Linux>> {
    trace::prepare(start.buffer_kib)?;
    start.nested.then(|| Linux::boot((MEMORY_MIB, HostBacking::Anonymous), 1, None)).transpose()
}

/// Says where functions are, and waits until that was heard.
type Tell<'a> = dyn Fn(Option<&Linux>) -> Result<()> + 'a;

/// The emulated host: first everything without recording, for the path lengths; then once more with it.
fn host(
    order: &Order,
    (guest, tell): (Option<&Linux>, &Tell<'_>),
    shared: &mut SharedVm,
) -> Result<(Report, Vec<Attachment>)> {
    if let Some(program) = &order.program {
        return run_program(program);
    }
    shared.program.clone_from(&order.simulated);
    // An observer may want to record them too; they cost nothing until somebody does.
    let refused = trace::define(&order.probes);
    let observer = Observer::start(&order.observer)?;
    let (release, processor) = (system::release(), processor());
    let mut report = Report { release, processor, refused, ..Report::default() };
    if order.functions {
        tell(guest)?;
    }
    report.outcomes = all(order, guest, Tracer::Off, shared)?.0;
    let (late, _) = all(&last(order), guest, Tracer::Off, shared)?;
    for outcome in late {
        let place = report.outcomes.iter_mut().find(|one| one.number == outcome.number);
        *place.ok_or("an operation that comes last has no outcome")? = outcome;
    }
    ports::unrecorded();
    if observer.is_some() {
        // It may want to see KVM without VMs, or to unload it.
        shared.end();
    }
    let mut files = observer.map(Observer::finish).transpose()?.unwrap_or_default();
    if order.trace {
        let of_memory = |one: &Operation| one.touch.is_some_and(|touch| touch.counted);
        let tracer = Tracer::arm(
            report.refused.len() < order.probes.len(),
            order.operations.iter().any(of_memory),
        )?;
        let (traced, _) = all(order, guest, tracer, shared)?;
        for (outcome, traced) in report.outcomes.iter_mut().zip(traced) {
            outcome.failure = outcome.failure.take().or(traced.failure);
            outcome.missing = outcome.missing.take().or(traced.missing);
            // What is held against the recording.
            outcome.memory = traced.memory.or(outcome.memory);
            (outcome.places, outcome.window) = (traced.places, traced.window);
        }
        files.extend(trace::collect()?);
    }
    report.files = named(&files);
    Ok((report, files))
}

/// Names and lengths, for the report.
fn named(files: &[Attachment]) -> Vec<FollowingFile> {
    let file = |file: &Attachment| FollowingFile {
        name: file.name.clone(),
        length: file.bytes.len() as u32,
    };
    files.iter().map(file).collect()
}

/// A program: once without recording, for its output and what it measures itself; once more recorded.
fn run_program(program: &Program) -> Result<(Report, Vec<Attachment>)> {
    let mut ran = program::execute(program, &Tracer::Off)?;
    let tracer = Tracer::arm(false, false)?;
    // Without these counts the recording says what it has room for.
    let counts = trace::count_exits();
    let again = program::execute(program, &tracer)?;
    ran.exits = counts.and_then(|()| trace::counted_exits()).ok();
    if (again.code, &again.failure) != (ran.code, &ran.failure) {
        let code = again.code.map(|code| format!("it ended with exit code {code}"));
        ran.recorded =
            code.or(again.failure).or_else(|| Some("it ended without a code".to_owned()));
    }
    let files = trace::collect()?;
    let (release, processor) = (system::release(), processor());
    let files_named = named(&files);
    let report =
        Report { release, processor, ran: Some(ran), files: files_named, ..Report::default() };
    Ok((report, files))
}

/// The operations whose batches come last.
fn last(order: &Order) -> Order {
    let late = order.operations.iter().filter(|operation| operation.last && operation.batches > 0);
    let operations = late.map(|operation| Operation { last: false, ..operation.clone() });
    Order { operations: operations.collect(), ..Order::default() }
}

/// All operations once, each at its level, in order.
fn all(
    order: &Order,
    guest: Option<&Linux>,
    tracer: Tracer,
    shared: &mut SharedVm,
) -> Result<(Vec<OrderOutcome>, Tracer)> {
    let program = shared.program.clone();
    let here = |run: &[Operation], tracer: &Tracer, record| some(run, tracer, record, shared);
    let there = |inner: &Order, tracer| match guest {
        _ if inner.operations.iter().all(is_process) => processes(inner, program.as_ref(), tracer),
        Some(guest) => guest.execute(inner, tracer),
        None => Err(l1::NO_L1.to_owned()),
    };
    l1::by_level(order, tracer, here, Some(there))
}

fn is_process(operation: &Operation) -> bool {
    matches!(operation.linux, Some(LinuxWork::Process))
}

/// Operations that are processes of one program, each in a Linux guest of its own. Where the program fails it is not run again in the others.
fn processes(
    order: &Order,
    program: Option<&RecordedProgram>,
    mut tracer: Tracer,
) -> Result<(Report, Tracer)> {
    let mut report = Report::default();
    let mut failed = false;
    for operation in &order.operations {
        if failed {
            let failure = Some("not run, as another operation of the program failed".to_owned());
            let number = operation.number;
            report.outcomes.push(OrderOutcome { number, failure, ..OrderOutcome::default() });
            continue;
        }
        let Some(paging) = operation.paging else { return Err("a process has no memory".into()) };
        let backing = HostBacking::of_process(paging.backing);
        let backing = backing.ok_or("a Linux guest does not have this memory")?;
        if let Some(missing) = backing.missing()? {
            let (number, missing) = (operation.number, Some(missing));
            report.outcomes.push(OrderOutcome { number, missing, ..OrderOutcome::default() });
            continue;
        }
        let inner = Order {
            operations: vec![operation.clone()],
            trace: order.trace,
            simulated: program.cloned(),
            ..Order::default()
        };
        let guest = Linux::boot((paging.bytes as usize >> 20, backing), 1, None)?;
        let executed = guest.execute(&inner, tracer);
        guest.end();
        let (found, back) = executed?;
        tracer = back;
        found.check(std::iter::once(operation.number))?;
        failed = found.outcomes.iter().any(|outcome| outcome.failure.is_some());
        report.outcomes.extend(found.outcomes);
    }
    Ok((report, tracer))
}

/// Operations that are all steps of lives, or none of them is.
fn some(
    operations: &[Operation],
    tracer: &Tracer,
    record: bool,
    shared: &mut SharedVm,
) -> Vec<OrderOutcome> {
    if operations.iter().all(|one| one.step.is_some()) {
        // A VM of other operations would have work of its own.
        shared.end();
        return life::steps(operations, tracer, record);
    }
    operations.iter().map(|operation| one(operation, tracer, record, shared)).collect()
}

/// L1: what runs here is L2.
fn inner(order: &Order, shared: &mut SharedVm) -> Result<(Report, Vec<Attachment>)> {
    let outcomes = some(&order.operations, &Tracer::Outside, order.trace, shared);
    let loaded = order.functions.then(kallsyms::loaded);
    Ok((Report { outcomes, loaded, ..Report::default() }, Vec::new()))
}

/// One operation: its batches, or, to be recorded, one to warm up and one that is recorded.
fn one(
    operation: &Operation,
    tracer: &Tracer,
    record: bool,
    shared: &mut SharedVm,
) -> OrderOutcome {
    let number = operation.number;
    let failed = |failure| OrderOutcome { number, failure, ..OrderOutcome::default() };
    if !record && (operation.last || operation.batches == 0) {
        return failed(None);
    }
    let missing = match (&operation.touch, &operation.paging) {
        (Some(touch), _) => touched::missing(touch),
        (None, Some(paging)) => paging::missing(paging),
        (None, None) => Ok(None),
    };
    match missing {
        Ok(None) => {}
        Ok(missing) => return OrderOutcome { number, missing, ..OrderOutcome::default() },
        Err(problem) => return failed(Some(problem)),
    }
    let plan = if record {
        PayloadPlan { batches: 2, traced: Some(1), tracer, statistics: false }
    } else {
        PayloadPlan { batches: operation.batches, traced: None, tracer, statistics: false }
    };
    match execute(operation, &plan, shared) {
        Ok(batches) => outcome(number, batches),
        Err(problem) => {
            // It may have failed within the batch that is recorded; the next one must not be recorded from its first batch on.
            tracer.record(false);
            failed(Some(problem))
        }
    }
}

fn outcome(number: u16, batches: PayloadBatches) -> OrderOutcome {
    let PayloadBatches { cycles, pmu, memory, statistics } = batches;
    OrderOutcome { number, cycles, pmu, memory, statistics, ..OrderOutcome::default() }
}

/// As a program on a host: an order from standard input, its report on standard output. Nothing is recorded, and each operation has a VM of
/// its own.
pub(crate) fn from_input() -> Result<()> {
    let order: Order = system::from_input()?;
    let tracer = &Tracer::Off;
    let one = |operation: &Operation| {
        let plan =
            PayloadPlan { batches: operation.batches, traced: None, tracer, statistics: true };
        match execute(operation, &plan, &mut SharedVm::default()) {
            Ok(batches) => outcome(operation.number, batches),
            Err(failure) => OrderOutcome {
                number: operation.number,
                failure: Some(failure),
                ..OrderOutcome::default()
            },
        }
    };
    let report = Report {
        outcomes: order.operations.iter().map(one).collect(),
        release: system::release(),
        processor: processor(),
        ..Report::default()
    };
    system::to_output(&report)
}

/// The processor's name.
pub(crate) fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    system::cpuinfo_field(&info, "model name").unwrap_or_default().to_owned()
}
