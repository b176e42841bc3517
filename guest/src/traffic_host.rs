//! An emulated host with QEMU: starts VMs ([`crate::site`]), has traffic sent to them, and records KVM meanwhile.

use std::cell::Cell;
use std::time::{Duration, Instant};

use vmtax_guest::functions::{HostKernels, LoadedAddresses};
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
        return boot(cell, tell, outcome, files);
    }
    let mut vms = RunningVms::start(&cell.site, &mut || ())?;
    outcome.vms.clone_from(&vms.seen);
    let traffic = cell.traffic;
    if traffic.warm_up > 0 {
        vms.send(traffic, traffic.warm_up)?;
    }
    vms.before_recording()?;
    std::thread::sleep(QUIET);
    ((), outcome.elapsed_ns) = record(files, |begin| {
        begin();
        vms.send(traffic, traffic.count)
    })?;
    vms.check()?;
    if cell.profiled {
        tell(&kernels(vms.loaded()?)?)?;
        std::thread::sleep(QUIET);
        ((), outcome.profiled) = profile(|begin| {
            begin();
            vms.send(traffic, traffic.count)
        })?;
        vms.check()?;
    }
    Ok(())
}

/// A VM that starts is the workload. Its second start has the addresses of the first.
fn boot(
    cell: &TrafficCell,
    tell: &dyn Fn(&HostKernels) -> Result<()>,
    outcome: &mut CellOutcome,
    files: &mut Vec<Attachment>,
) -> Result<()> {
    let start = |begin: &mut dyn FnMut()| RunningVms::start(&cell.site, begin);
    let (mut vms, elapsed) = record(files, start)?;
    outcome.vms.clone_from(&vms.seen);
    outcome.elapsed_ns = elapsed;
    if cell.profiled {
        let loaded = vms.loaded()?;
        drop(vms);
        tell(&kernels(loaded.clone())?)?;
        std::thread::sleep(QUIET);
        (vms, outcome.profiled) = profile(start)?;
        if vms.loaded()? != loaded {
            return Err("the VM that was started again has its modules at other addresses".into());
        }
    }
    Ok(())
}

/// The kernels of this host and of VMs that have loaded this.
fn kernels([guest, inner]: [Option<LoadedAddresses>; 2]) -> Result<HostKernels> {
    Ok(HostKernels { functions: kallsyms::functions()?, host: kallsyms::loaded(), guest, inner })
}

/// Has a recorder in the emulator record this, from where it calls what it is given: the cycles between the readings of the clock that the marks make, the last
/// of which nothing follows.
fn profile<T>(run: impl FnOnce(&mut dyn FnMut()) -> Result<T>) -> Result<(T, Option<u64>)> {
    let marks = WorkloadMarks::new()?;
    let result = run(&mut || marks.record(true));
    marks.record(false);
    ports::unrecorded();
    result.map(|result| (result, Some(marks.cycles().unwrap_or_default())))
}

/// Records KVM while this runs, from where it calls what it is given: its result and its time, ns. The recording is the files.
fn record<T>(
    files: &mut Vec<Attachment>,
    run: impl FnOnce(&mut dyn FnMut()) -> Result<T>,
) -> Result<(T, u64)> {
    trace::clear()?;
    let tracer = Tracer::arm(false, false)?;
    let mut started = Instant::now();
    let result = run(&mut || {
        tracer.record(true);
        started = Instant::now();
    });
    let elapsed = started.elapsed();
    tracer.record(false);
    tracer.disarm()?;
    let result = result?;
    *files = trace::collect()?;
    Ok((result, u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)))
}
