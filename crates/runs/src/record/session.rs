//! A recording from its start to its end.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::time::{ClockId, clock_gettime};
use vmtax_cli::exit::{Code, CodedError};
use vmtax_cli::signals::Signals;
use vmtax_events::{AccessRow, ExitRow, PreemptedRow, Recording as Facts, Stat, TimeRow, Vm};
use vmtax_live::{ExitRecorder, HostCounters, IntervalRows};
use vmtax_store::{Claim, CreateOptions, Error, RunWriter, remove_empty_run};

use super::{ROOT, RecordPlan, fault, open, processes};
use crate::{create_options, write_fault};

/// Records until the duration is over, the command ends, or a signal asks for it.
///
/// # Errors
/// Why nothing can be recorded or written, as one sentence.
pub fn record(plan: &RecordPlan) -> anyhow::Result<()> {
    let stop = Signals::new()?;
    let processes = processes(&plan.which)?;
    let created_folder = !plan.output.exists();
    let claim = Claim::new(&plan.output).map_err(write_fault)?;
    let recorder = open(Path::new(ROOT), processes, plan.limits.clone())?;
    let writer = RunWriter::begin(claim, &options(plan)).map_err(write_fault)?;
    let result = run(plan, recorder, writer, &stop);
    if result.is_err() {
        remove_empty_run(&plan.output, created_folder);
    }
    result
}

/// Records a process that waits to run VMs, from when `begin` lets it go on until it ends. The run does not name this computer.
pub fn record_process(
    plan: &RecordPlan,
    child: &mut Child,
    begin: impl FnOnce(&mut Child) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let stop = Signals::new()?;
    let claim = Claim::new(&plan.output).map_err(write_fault)?;
    let recorder = open(Path::new(ROOT), Some(BTreeSet::from([child.id()])), plan.limits.clone())?;
    let writer = RunWriter::begin(claim, &options(plan)).map_err(write_fault)?;
    let mut session = RecordSession::new(plan, recorder, writer);
    session.facts.hostname.clear();
    session.recorder.start();
    session.describe();
    let ended = begin(child)
        .and_then(|()| session.run((&stop, None), Some(child), &mut |_| Ok(false)).map(drop));
    if ended.is_err() || child.try_wait()?.is_none() {
        // Asked to end: the process is this one's.
        child.kill()?;
    }
    let finished = session.finish(|| {});
    ended.and(finished)
}

/// How the runs of a plan are made.
pub(super) fn options(plan: &RecordPlan) -> CreateOptions {
    let interval_ns = u64::try_from(plan.interval.as_nanos()).unwrap_or(u64::MAX);
    let options = create_options(interval_ns, plan.labels.iter().cloned());
    CreateOptions { raw_events: plan.limits.raw.is_some(), ..options }
}

fn run(
    plan: &RecordPlan,
    recorder: ExitRecorder,
    writer: RunWriter,
    stop: &Signals,
) -> anyhow::Result<()> {
    let mut session = RecordSession::new(plan, recorder, writer);
    session.recorder.start();
    session.describe();
    // Where it does not start nothing was recorded, and nothing is left.
    let mut child = start(&plan.command)?;
    let end_at = plan.duration.and_then(|duration| Instant::now().checked_add(duration));
    let ended = session.run((stop, end_at), child.as_mut(), &mut |_| Ok(false));
    // Whatever happened, the command is not left alone, and what was counted is kept.
    let status = child.as_mut().map(|child| end(child, stop)).transpose();
    let finished = session.finish(|| {});
    ended.and(finished)?;
    command_ended(status?)
}

/// Tells of a command that failed.
///
/// # Errors
/// A sentence, if it did.
pub fn command_ended(status: Option<ExitStatus>) -> anyhow::Result<()> {
    match status {
        Some(status) if !status.success() => {
            Err(anyhow::anyhow!("the recording is complete, but the command ended with {status}"))
        }
        _ => Ok(()),
    }
}

pub(super) fn start(command: &[OsString]) -> anyhow::Result<Option<Child>> {
    let Some((program, arguments)) = command.split_first() else { return Ok(None) };
    let child = Command::new(program).args(arguments).spawn().map_err(|e| {
        CodedError::new(Code::Input, format!("{}: does not start: {e}", program.to_string_lossy()))
    })?;
    Ok(Some(child))
}

/// Interrupts the command if it still runs, as Ctrl-C would, and waits for it; asked once more it is killed.
pub(super) fn end(child: &mut Child, stop: &Signals) -> io::Result<ExitStatus> {
    if let Some(status) = child.try_wait()? {
        return Ok(status);
    }
    if let Some(pid) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
        // It may have ended just now.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
    }
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if stop.wait(Instant::now() + Duration::from_secs(1))? {
            child.kill()?;
        }
    }
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// A signal asked for it, the command ended, or the duration is over.
    Asked,
    /// The run is to be closed, and the next one begun.
    Rotation,
}

pub(super) struct RecordSession {
    pub(super) recorder: ExitRecorder,
    pub(super) writer: RunWriter,
    facts: Facts,
    interval: Duration,
    takes_events: bool,
    /// The run's clock at the start of the open interval.
    began_ns: u64,
    /// The host's counters, if they were asked for.
    pmu: HostCounters,
    /// Why there are none, and other things that do not change.
    notes: Vec<String>,
    /// When counters of others are read again.
    next_stats: Instant,
}

/// Most VMs whose names are kept, on a host where VMs start and end for months; further ones are shown by number.
const MOST_VMS: usize = 16_384;

/// How often single events are taken at most from the kernel's buffer.
const EVENTS_EVERY: Duration = Duration::from_millis(50);

/// How often counters that KVM and the host keep are read.
const STATS_EVERY: Duration = Duration::from_secs(1);

impl RecordSession {
    pub(super) fn new(
        plan: &RecordPlan,
        recorder: ExitRecorder,
        writer: RunWriter,
    ) -> RecordSession {
        let facts = facts(&recorder);
        let (pmu, problem) =
            if plan.pmu { HostCounters::open(Path::new(ROOT)) } else { Default::default() };
        let notes = problem.into_iter().chain(facts.note_of_choice()).collect();
        RecordSession {
            recorder,
            writer,
            facts,
            interval: plan.interval,
            takes_events: plan.limits.raw.is_some(),
            began_ns: now_ns(),
            pmu,
            notes,
            next_stats: Instant::now(),
        }
    }

    /// Interval after interval, until the end; `rotates` is asked after each. An error ends it, like a signal.
    pub(super) fn run(
        &mut self,
        (stop, end): (&Signals, Option<Instant>),
        mut child: Option<&mut Child>,
        rotates: &mut dyn FnMut(&RunWriter) -> anyhow::Result<bool>,
    ) -> anyhow::Result<SessionEnd> {
        let mut next = Instant::now() + self.interval;
        loop {
            let until = end.map_or(next, |end| end.min(next));
            // Events come by themselves, but are taken some at a time.
            let is_asked = match self.recorder.readiness() {
                Some(events) => {
                    stop.wait(until.min(Instant::now() + EVENTS_EVERY))?
                        || stop.wait_beside(
                            &mut [PollFd::from_borrowed_fd(events, PollFlags::IN)],
                            until,
                        )?
                }
                None => stop.wait(until)?,
            };
            if is_asked {
                return Ok(SessionEnd::Asked);
            }
            if let Some(child) = &mut child
                && child.try_wait()?.is_some()
            {
                return Ok(SessionEnd::Asked);
            }
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                return Ok(SessionEnd::Asked);
            }
            if self.takes_events {
                self.events()?;
            }
            if now < next {
                continue;
            }
            self.interval()?;
            if rotates(&self.writer)? {
                return Ok(SessionEnd::Rotation);
            }
            // Intervals that were slept through are not made up for.
            while next <= now {
                next += self.interval;
            }
        }
    }

    /// Takes the single events that are there.
    fn events(&mut self) -> anyhow::Result<()> {
        for event in self.recorder.events().map_err(|e| fault(&e))? {
            self.writer.event(&event).map_err(write_fault)?;
        }
        Ok(())
    }

    /// Ends an interval: what it brought becomes a segment.
    fn interval(&mut self) -> anyhow::Result<()> {
        let rows = self.recorder.interval().map_err(|e| fault(&e))?;
        if rows.is_empty() {
            // No VM ran: there is nothing to add.
            self.began_ns = now_ns();
            return Ok(());
        }
        self.store(rows).map_err(write_fault)?;
        if Instant::now() >= self.next_stats {
            self.next_stats = Instant::now() + STATS_EVERY;
            stats(&mut self.writer, &self.facts, &mut self.pmu).map_err(write_fault)?;
        }
        self.describe();
        self.writer.segment().map_err(write_fault)?;
        Ok(())
    }

    /// Completes the run. `counted` is called as soon as nothing is counted any more, before anything is written.
    pub(super) fn finish(mut self, counted: impl FnOnce()) -> anyhow::Result<()> {
        let recorder = self.recorder;
        let (rows, events, mut losses) = recorder.finish().map_err(|e| fault(&e))?;
        counted();
        losses.notes.extend(self.notes);
        name(&mut self.facts, &rows);
        for event in events {
            self.writer.event(&event).map_err(write_fault)?;
        }
        store(&mut self.writer, rows, self.began_ns, self.interval).map_err(write_fault)?;
        stats(&mut self.writer, &self.facts, &mut self.pmu).map_err(write_fault)?;
        self.writer.finish(&self.facts, &losses).map_err(write_fault)?;
        Ok(())
    }

    fn store(&mut self, rows: IntervalRows) -> Result<(), Error> {
        name(&mut self.facts, &rows);
        store(&mut self.writer, rows, self.began_ns, self.interval)?;
        self.began_ns = now_ns();
        Ok(())
    }

    pub(super) fn describe(&mut self) {
        let mut losses = self.recorder.losses();
        losses.notes.extend(self.notes.iter().cloned());
        self.writer.describe(&self.facts, &losses);
    }
}

fn store(
    writer: &mut RunWriter,
    rows: IntervalRows,
    began_ns: u64,
    interval: Duration,
) -> Result<(), Error> {
    let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1);
    let interval_start_ns = began_ns - began_ns % interval_ns;
    let mut exits: Vec<_> = rows.exits.into_iter().collect();
    exits.sort_by_key(|(key, _)| *key);
    for (key, tally) in exits {
        writer.exit(&ExitRow { interval_start_ns, key, tally })?;
    }
    let mut accesses: Vec<_> = rows.accesses.into_iter().collect();
    accesses.sort_by_key(|(key, _)| *key);
    for (key, tally) in accesses {
        writer.access(&AccessRow { interval_start_ns, key, tally })?;
    }
    for time in rows.times {
        writer.time(&TimeRow { interval_start_ns, ..time })?;
    }
    for row in rows.preempted {
        writer.preempted(&PreemptedRow { interval_start_ns, ..row })?;
    }
    Ok(())
}

/// Stores KVM's counters of each VM, and the steal time of this host.
fn stats(writer: &mut RunWriter, facts: &Facts, pmu: &mut HostCounters) -> Result<(), Error> {
    let time_ns = now_ns();
    // A VM is known by its process; of several in one process the first has what KVM counts of all.
    for vm in &facts.vms {
        for (name, value) in vmtax_host::counters(Path::new(ROOT), vm.id).unwrap_or_default() {
            let unit = match name {
                name if name.starts_with("pages_") => "pages",
                name if name.ends_with("_ns") => "ns",
                _ => "count",
            };
            let (name, unit) = (name.to_owned(), unit.to_owned());
            writer.stat(&Stat { time_ns, vm: vm.id, name, unit, value: value as f64 })?;
        }
    }
    let counted = pmu.read().into_iter().map(|(name, value)| (name, "count", value));
    for (name, unit, value) in counted.chain(stolen().map(|value| ("steal", "ticks", value))) {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        writer.stat(&Stat { time_ns, vm: Stat::HOST, name, unit, value })?;
    }
    Ok(())
}

/// Ticks that all CPUs of this host waited for the one outside: the eighth number of the first line.
fn stolen() -> Option<f64> {
    let text = std::fs::read_to_string(Path::new(ROOT).join("proc/stat")).ok()?;
    text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().nth(7)?.parse().ok()
}

/// Adds the VMs that were not seen before.
pub(super) fn name(facts: &mut Facts, rows: &IntervalRows) {
    for vcpu in &rows.appeared {
        let (id, state_protected) = (vcpu.vm, vcpu.state_protected);
        if let Some(vm) = facts.vms.iter_mut().find(|vm| vm.id == id) {
            vm.state_protected = vm.state_protected.or(state_protected);
        } else if facts.vms.len() < MOST_VMS {
            // A process that is gone leaves its VM without a name.
            let name = vmtax_host::vm_name(Path::new(ROOT), vcpu.pid).unwrap_or_default();
            facts.vms.push(Vm { id, name, state_protected, ..Vm::default() });
        }
    }
}

/// Time on the recorder's clock.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub(super) fn facts(recorder: &ExitRecorder) -> Facts {
    let system = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    let cpu = processor();
    Facts {
        format: "live".to_owned(),
        tool: format!("vmtax record {}", env!("CARGO_PKG_VERSION")),
        hostname: text(system.nodename()),
        kernel: text(system.release()),
        arch: text(system.machine()),
        cpus: std::thread::available_parallelism().map_or(0, |n| n.get() as u32),
        clock: "mono".to_owned(),
        emulated: Facts::emulator_of_cpu(&cpu),
        choice: recorder.choice().map(str::to_owned),
        cpu,
        coverage: recorder.coverage(),
        ..Facts::default()
    }
}

pub(super) fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    vmtax_events::setting::cpuinfo::model(&info)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first vCPU that says it decides: one whose kernel does not say changes nothing.
    #[test]
    fn a_vm_has_the_protection_of_its_vcpus() {
        let vcpu =
            |vm, tid, state_protected| vmtax_live::LiveVcpu { vm, pid: vm, tid, state_protected };
        let mut facts = Facts::default();
        for appeared in [
            vec![vcpu(1_000_000_007, 1, None), vcpu(1_000_000_008, 2, Some(false))],
            vec![vcpu(1_000_000_007, 3, Some(true)), vcpu(1_000_000_007, 4, None)],
            vec![vcpu(1_000_000_009, 5, None)],
        ] {
            name(&mut facts, &IntervalRows { appeared, ..IntervalRows::default() });
        }
        let states: Vec<Option<bool>> = facts.vms.iter().map(|vm| vm.state_protected).collect();
        assert_eq!(states, [Some(true), Some(false), None]);
    }
}
