//! The first steps, and the order: everything without recording, for the path lengths; then once more with it.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use vmtax_guest::order::{
    FollowingFile, LinuxWork, Operation, Order, OrderOutcome, Report, encode,
};

use crate::channel::Io;
use crate::channel::{Attachment, Channel};
use crate::disk::BlockMailbox;
use crate::l1::L1Line;
use crate::l1::lock;
use crate::linux::{AGENT, COUNTING, MEMORY_MIB, SpentByHost, WORKING};
use crate::observer::Observer;
use crate::relay::JobGuest;
use crate::trace::{self, Tracer};
use crate::vmm::{ArmPlan, ArmSharedVm, execute, execute_alone};
use crate::{
    Result, agent, awake, boot, io, kallsyms, l1, life, linux, options, perf, ports, protected,
    relay, system, virtio, workload,
};

/// KiB of trace buffer where the command line has no `vmtax.buffer=`.
const BUFFER_KIB: u32 = 16 << 10;

/// The kernel is to let VMs have hypervisors.
const NESTED: &str = "kvm-arm.mode=nested";

/// A host that hands jobs on to the agent in its guest.
const RELAY: &str = "vmtax.role=relay";

/// Makes the machine ready and carries out one order; as L1, orders until its host ends; jobs likewise.
pub(crate) fn run() -> Result<()> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        system::mount(kind, target)?;
    }
    system::folder("/tmp")?;
    let line =
        std::fs::read_to_string("/proc/cmdline").map_err(|e| format!("/proc/cmdline: {e}"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    if words.contains(&boot::ROLE) {
        system::power_off();
    }
    let is_guest = words.contains(&"vmtax.role=guest") || words.contains(&AGENT);
    let has_devices = words.contains(&virtio::WORD);
    let modules = match is_guest && has_devices && !io::may_probe(&words)? {
        true => Vec::new(),
        false => modules(),
    };
    let refused = options::load(&modules, &words)?;
    for file in ["enabled", "defrag"] {
        // An operation on a huge page looks whether this worked.
        let _ = std::fs::write(format!("/sys/kernel/mm/transparent_hugepage/{file}"), "madvise");
    }
    system::leave_console()?;
    let channel = if is_guest {
        let is_protected = words.contains(&protected::WORD);
        ports::open(is_protected)?;
        Channel::Port(if is_protected { Io::Registers } else { Io::Strings })
    } else {
        Channel::Mailbox(BlockMailbox::open(&words)?)
    };
    // A kernel that does not know the word would only refuse it.
    if words.contains(&NESTED)
        && Path::new("/dev/kvm").exists()
        && let Some(what) = linux::missing().inspect_err(|problem| channel.fail(0, problem))?
    {
        channel.lack(&what);
        return Err(what);
    }
    if words.contains(&protected::WORD)
        && Path::new("/dev/kvm").exists()
        && let Some(what) = protected::missing(mode_of_kvm().as_deref())
            .inspect_err(|problem| channel.fail(0, problem))?
    {
        channel.lack(&what);
        return Err(what);
    }
    if words.contains(&RELAY)
        && words.contains(&protected::MODE)
        && let Some(mode) = mode_of_kvm().filter(|mode| !mode.starts_with("Protected"))
    {
        let release = system::release();
        let what =
            format!("Linux {release} runs KVM in {mode} mode here, and not in protected mode");
        channel.lack(&what);
        return Err(what);
    }
    if let Some(problem) = refused.or_else(|| options::unknown(&words)) {
        channel.misused(&problem);
        return Err(problem);
    }
    if words.contains(&AGENT) {
        return agent::serve(&channel);
    }
    let is_linux = words.contains(&COUNTING) || words.contains(&WORKING);
    let is_last = is_linux && matches!(channel, Channel::Port(_));
    if !is_last && !Path::new("/dev/kvm").exists() {
        let problem = "the kernel offers no /dev/kvm: KVM did not find virtualization in this emulated processor";
        channel.fail(0, problem);
        return Err(problem.into());
    }
    match channel {
        Channel::Mailbox(_) if words.contains(&RELAY) => forward(&channel, &words),
        Channel::Mailbox(_) => outermost(&channel, &words),
        Channel::Port(_) => inner(&channel),
    }
}

/// A number on the command line.
fn number<T: FromStr>(words: &[&str], key: &str) -> Option<T> {
    words.iter().find_map(|word| word.strip_prefix(key)?.parse().ok())
}

/// Tracepoints, before the machine is saved.
fn prepare_tracing(words: &[&str]) -> Result<()> {
    trace::mount()?;
    trace::prepare(number(words, "vmtax.buffer=").unwrap_or(BUFFER_KIB))
}

/// The emulated host of a guest with an agent.
fn forward(channel: &Channel, words: &[&str]) -> Result<()> {
    let failed = |problem: &String| channel.fail(0, problem);
    prepare_tracing(words).inspect_err(failed)?;
    system::align();
    let memory_mib = number(words, "vmtax.memory=").unwrap_or(MEMORY_MIB);
    let guest = linux::boot(memory_mib, &SpentByHost::default(), false).inspect_err(failed)?;
    relay::forward(channel, &guest, |last| {
        // Otherwise time would jump while nobody computes, for the guest too.
        let heard = awake::during(|| channel.hear(last));
        if last == 0 {
            awake::align();
        }
        heard
    })
}

impl JobGuest for L1Line {
    fn ask(&self, request: &[u8], tracer: Tracer, limit: Duration) -> Result<(Vec<u8>, Tracer)> {
        L1Line::ask(self, request, tracer, limit)
    }
}

/// The emulated host.
fn outermost(channel: &Channel, words: &[&str]) -> Result<()> {
    let failed = |problem: &String| channel.fail(0, problem);
    prepare_tracing(words).inspect_err(failed)?;
    let spent = SpentByHost::default();
    let linux = ["vmtax.nested", COUNTING, WORKING];
    let guest = if linux.iter().any(|word| words.contains(word)) {
        // Where its ticks are between those of this kernel is the same in each boot then.
        system::align();
        let has_el2 = mode_of_kvm().is_some_and(|mode| !mode.starts_with("VHE"));
        Some(linux::boot(MEMORY_MIB, &spent, has_el2).inspect_err(failed)?)
    } else {
        None
    };
    let (number, order) = awake::during(|| channel.next()).inspect_err(failed)?;
    awake::align();
    if order.functions {
        let inner = guest.as_ref().map(|guest| |order: &Order| guest.execute(order, Tracer::Off));
        kallsyms::kernels(inner)
            .and_then(|kernels| channel.tell(number, &encode(&kernels)))
            .inspect_err(|problem| channel.fail(number, problem))?;
    }
    host(&order, guest.as_ref(), &spent)
        .and_then(|(report, files)| channel.finish(number, &report, &files))
        .inspect_err(|problem| channel.fail(number, problem))
}

/// L1: what runs here is L2.
fn inner(channel: &Channel) -> Result<()> {
    let mut shared = ArmSharedVm::inner();
    loop {
        let (number, order) = channel.next().inspect_err(|problem| channel.fail(0, problem))?;
        let outcomes = some(&order.operations, &Tracer::Outside, order.trace, &mut shared);
        let loaded = order.functions.then(kallsyms::loaded);
        channel.finish(number, &Report { outcomes, loaded, ..Report::default() }, &[])?;
    }
}

/// Modules in the order of their file names.
fn modules() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/modules").into_iter().flatten();
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// Everything without recording, then once more with it.
fn host(
    order: &Order,
    guest: Option<&L1Line>,
    spent: &SpentByHost,
) -> Result<(Report, Vec<Attachment>)> {
    let mut shared = ArmSharedVm::default();
    let observer = Observer::start(&order.observer)?;
    let mut report = Report {
        outcomes: all(order, guest, Tracer::Off, &mut shared)?,
        release: system::release(),
        processor: processor(),
        ..Report::default()
    };
    for outcome in all(&last(order), guest, Tracer::Off, &mut shared)? {
        let place = report.outcomes.iter_mut().find(|one| one.number == outcome.number);
        *place.ok_or("an operation that comes last has no outcome")? = outcome;
    }
    ports::unrecorded();
    for outcome in &mut report.outcomes {
        let spent = lock(spent);
        let own = spent.iter().filter(|batch| batch.operation == outcome.number);
        let batches = outcome.perf.iter_mut().zip(own.clone());
        batches.for_each(|(batch, own)| batch.host = own.counted);
        if outcome.perf.is_empty() && own.clone().next().is_some() {
            // What the guest was idle is no cycle of its vCPU's thread.
            outcome.cycles = own.clone().map(|batch| batch.counted).collect();
            outcome.at_el2 = own.filter_map(|batch| batch.at_el2).collect();
        }
    }
    let mut files = observer.map(Observer::finish).transpose()?.unwrap_or_default();
    if order.trace {
        let tracer = Tracer::arm(false, false)?;
        let traced = all(order, guest, tracer, &mut shared)?;
        for (outcome, traced) in report.outcomes.iter_mut().zip(traced) {
            outcome.failure = outcome.failure.take().or(traced.failure);
            (outcome.places, outcome.window) = (traced.places, traced.window);
            outcome.missing = outcome.missing.take().or(traced.missing);
        }
        files.extend(trace::collect()?);
    }
    // The machine ends now, and they need not before.
    std::mem::forget(shared);
    let named = |file: &Attachment| FollowingFile {
        name: file.name.clone(),
        length: file.bytes.len() as u32,
    };
    report.files = files.iter().map(named).collect();
    Ok((report, files))
}

/// The operations that come after all others.
fn last(order: &Order) -> Order {
    let late = order.operations.iter().filter(|operation| operation.last && operation.batches > 0);
    let operations = late.map(|operation| Operation { last: false, ..operation.clone() });
    Order { operations: operations.collect(), ..Order::default() }
}

/// All operations once, each at its level, in order.
fn all(
    order: &Order,
    guest: Option<&L1Line>,
    tracer: Tracer,
    shared: &mut ArmSharedVm,
) -> Result<Vec<OrderOutcome>> {
    let here = |run: &[Operation], tracer: &Tracer, record| some(run, tracer, record, shared);
    l1::by_level(
        order,
        tracer,
        here,
        guest.map(|guest| move |inner: &Order, tracer| guest.execute(inner, tracer)),
    )
    .map(|(outcomes, _)| outcomes)
}

/// Operations that are all steps of lives, or none of them is.
fn some(
    operations: &[Operation],
    tracer: &Tracer,
    record: bool,
    shared: &mut ArmSharedVm,
) -> Vec<OrderOutcome> {
    if operations.iter().all(|one| one.step.is_some()) {
        // A VM of other operations would have work of its own.
        *shared = ArmSharedVm::default();
        return life::steps(operations, tracer, record);
    }
    operations.iter().map(|one| measure(one, tracer, record, shared)).collect()
}

/// As a program on a host: an order from standard input, its report on standard output. Nothing is recorded, and each operation has a VM of
/// its own.
pub(crate) fn from_input() -> Result<()> {
    let order: Order = system::from_input()?;
    let one = |operation: &Operation| {
        let number = operation.number;
        let plan = ArmPlan { batches: operation.batches, traced: None, tracer: &Tracer::Off };
        match execute_alone(operation, &plan) {
            Ok((cycles, statistics)) => {
                OrderOutcome { number, cycles, statistics, ..OrderOutcome::default() }
            }
            Err(failure) => {
                OrderOutcome { number, failure: Some(failure), ..OrderOutcome::default() }
            }
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

/// One operation: its batches, or, to be recorded, one to warm up and one that is recorded.
fn measure(
    operation: &Operation,
    tracer: &Tracer,
    record: bool,
    shared: &mut ArmSharedVm,
) -> OrderOutcome {
    let number = operation.number;
    if !record && (operation.last || operation.batches == 0) {
        return OrderOutcome { number, ..OrderOutcome::default() };
    }
    if operation.hypervisor {
        match linux::missing() {
            Ok(None) => {}
            Ok(missing) => return OrderOutcome { number, missing, ..OrderOutcome::default() },
            Err(problem) => {
                return OrderOutcome { number, failure: Some(problem), ..OrderOutcome::default() };
            }
        }
    }
    let plan = if record {
        ArmPlan { batches: 2, traced: Some(1), tracer }
    } else {
        ArmPlan { batches: operation.batches, traced: None, tracer }
    };
    if let Some(work) = operation.linux {
        let done = match work {
            LinuxWork::Perf(perf) => perf::execute(operation, perf, &plan),
            LinuxWork::Process => Err("processes are recorded on x86".to_owned()),
            LinuxWork::Workload(rounds) => workload::execute(operation, rounds, &plan),
            LinuxWork::Device(rounds) => match io::execute(operation, rounds, &plan) {
                Ok(Ok(cycles)) => Ok((cycles, Vec::new())),
                Ok(Err(missing)) => {
                    let missing = Some(missing.to_owned());
                    return OrderOutcome { number, missing, ..OrderOutcome::default() };
                }
                Err(problem) => Err(problem),
            },
        };
        return match done {
            Ok((cycles, perf)) => OrderOutcome { number, cycles, perf, ..OrderOutcome::default() },
            Err(problem) => {
                tracer.record(false);
                OrderOutcome { number, failure: Some(problem), ..OrderOutcome::default() }
            }
        };
    }
    match execute(operation, &plan, shared) {
        Ok((cycles, counted)) => {
            OrderOutcome { number, cycles, counted, ..OrderOutcome::default() }
        }
        Err(problem) => {
            // The next one must not be recorded from its first batch on.
            tracer.record(false);
            OrderOutcome { number, failure: Some(problem), ..OrderOutcome::default() }
        }
    }
}

/// Implementer, part and variant of the processor, as MIDR_EL1 has them, as arm64 has no names; and KVM's mode.
pub(crate) fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name| system::cpuinfo_field(&info, name).unwrap_or("unknown");
    let (implementer, part) = (field("CPU implementer"), field("CPU part"));
    let mode = mode_of_kvm().map(|mode| format!(", KVM in {mode} mode"));
    let variant = field("CPU variant");
    format!("implementer {implementer}, part {part}, variant {variant}{}", mode.unwrap_or_default())
}

/// How KVM of arm64 runs, as it says itself: `kvm [1]: VHE mode initialized successfully`.
fn mode_of_kvm() -> Option<String> {
    const SAYS: &str = " mode initialized";
    options::log().iter().find_map(|line| {
        let before = line.split_once(SAYS)?.0;
        before.rsplit_once("]: ").map(|(_, mode)| mode.to_owned())
    })
}
