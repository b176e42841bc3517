//! An emulated host with QEMU: starts VMs ([`crate::site`]), has traffic sent to them, and records KVM meanwhile.

use std::cell::Cell;
use std::time::{Duration, Instant};

use vmtax_guest::functions::HostKernels;
use vmtax_guest::order::{FollowingFile as Named, decode, encode};
use vmtax_guest::traffic::{CellOutcome, TrafficCell, TrafficKind};

use crate::channel::{Attachment, Channel};
use crate::marks::WorkloadMarks;
use crate::site::{RunningVms, console};
use crate::system;
use crate::trace::{self, Tracer};
use crate::{Result, kallsyms, ports};

/// Time without traffic before a recording: delayed acknowledgements and timers of the connection have passed.
const QUIET: Duration = Duration::from_millis(100);

/// Carries out cells until the machine ends.
pub(crate) fn serve(channel: &Channel, buffer_kib: u32) -> Result<()> {
    // Some settings are there; a kernel without it has none of them.
    let _ = system::mount("debugfs", "/sys/kernel/debug");
    trace::prepare(buffer_kib).inspect_err(|problem| channel.fail(0, problem))?;
    let last = Cell::new(0);
    loop {
        let (number, bytes) = channel.hear(last.get())?;
        last.set(number);
        let cell: TrafficCell = decode(&bytes)
            .ok_or("the cell cannot be read: this program and vmtax do not belong together")?;
        let mut outcome = CellOutcome::default();
        let mut files = Vec::new();
        let tell = |kernels: &HostKernels| {
            // The acknowledgement has a number of its own.
            last.set(number + 1);
            channel.tell(number, &encode(kernels))
        };
        if let Err(problem) = carry_out(&cell, &tell, &mut outcome, &mut files) {
            outcome.problem = problem;
        }
        outcome.console = console();
        outcome.files = files
            .iter()
            .map(|file| Named { name: file.name.clone(), length: file.bytes.len() as u32 })
            .collect();
        channel.say(number, &encode(&outcome), &files)?;
    }
}

fn carry_out(
    cell: &TrafficCell,
    tell: &dyn Fn(&HostKernels) -> Result<()>,
    outcome: &mut CellOutcome,
    files: &mut Vec<Attachment>,
) -> Result<()> {
    if cell.traffic.kind == TrafficKind::Boot {
        let (vms, elapsed) = record(files, || RunningVms::start(&cell.site))?;
        outcome.vms.clone_from(&vms.seen);
        outcome.elapsed_ns = elapsed;
        return Ok(());
    }
    let mut vms = RunningVms::start(&cell.site)?;
    outcome.vms.clone_from(&vms.seen);
    let traffic = cell.traffic;
    if traffic.warm_up > 0 {
        vms.send(traffic, traffic.warm_up)?;
    }
    vms.before_recording()?;
    std::thread::sleep(QUIET);
    ((), outcome.elapsed_ns) = record(files, || vms.send(traffic, traffic.count))?;
    vms.check()?;
    if cell.profiled {
        let [guest, inner] = vms.loaded()?;
        tell(&HostKernels {
            functions: kallsyms::functions()?,
            host: kallsyms::loaded(),
            guest,
            inner,
        })?;
        std::thread::sleep(QUIET);
        outcome.profiled = Some(profile(|| vms.send(traffic, traffic.count))?);
        vms.check()?;
    }
    Ok(())
}

/// Has a recorder in the emulator record this: the cycles between the readings of the clock that the marks make, the last of which nothing follows.
fn profile(run: impl FnOnce() -> Result<()>) -> Result<u64> {
    let marks = WorkloadMarks::new()?;
    marks.record(true);
    let result = run();
    marks.record(false);
    ports::unrecorded();
    result.map(|()| marks.cycles().unwrap_or_default())
}

/// Records KVM while this runs: its result and its time, ns. The recording is the files.
fn record<T>(files: &mut Vec<Attachment>, run: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    trace::clear()?;
    let tracer = Tracer::arm(false, false)?;
    tracer.record(true);
    let started = Instant::now();
    let result = run();
    let elapsed = started.elapsed();
    tracer.record(false);
    tracer.disarm()?;
    let result = result?;
    *files = trace::collect()?;
    Ok((result, u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)))
}
