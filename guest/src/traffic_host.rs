//! An emulated host with QEMU: starts VMs ([`crate::site`]), has traffic sent to them, and records KVM meanwhile.

use std::time::{Duration, Instant};

use vmtax_guest::order::{FollowingFile as Named, decode, encode};
use vmtax_guest::traffic::{CellOutcome, TrafficCell, TrafficKind};

use crate::Result;
use crate::channel::{Attachment, Channel};
use crate::site::{RunningVms, console};
use crate::system;
use crate::trace::{self, Tracer};

/// Time without traffic before a recording: delayed acknowledgements and timers of the connection have passed.
const QUIET: Duration = Duration::from_millis(100);

/// Carries out cells until the machine ends.
pub(crate) fn serve(channel: &Channel, buffer_kib: u32) -> Result<()> {
    // Some settings are there; a kernel without it has none of them.
    let _ = system::mount("debugfs", "/sys/kernel/debug");
    trace::prepare(buffer_kib).inspect_err(|problem| channel.fail(0, problem))?;
    let mut last = 0;
    loop {
        let (number, bytes) = channel.hear(last)?;
        last = number;
        let cell: TrafficCell = decode(&bytes)
            .ok_or("the cell cannot be read: this program and vmtax do not belong together")?;
        let mut outcome = CellOutcome::default();
        let mut files = Vec::new();
        if let Err(problem) = carry_out(&cell, &mut outcome, &mut files) {
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
    vms.check()
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
