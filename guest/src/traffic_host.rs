//! An emulated host with QEMU: starts VMs ([`crate::site`]), has traffic sent to them, and records KVM meanwhile.

use std::time::{Duration, Instant};

use vmtax_guest::order::{File as Named, decode, encode};
use vmtax_guest::traffic::{Cell, Outcome};

use crate::Result;
use crate::channel::{Attachment, Channel};
use crate::site::{Vms, console};
use crate::trace::{self, Tracer};

/// Time without traffic before a recording: delayed acknowledgements and timers of the connection have passed.
const QUIET: Duration = Duration::from_millis(100);

/// Carries out cells until the machine ends.
pub(crate) fn serve(channel: &Channel, buffer_kib: u32) -> Result<()> {
    trace::prepare(buffer_kib).inspect_err(|problem| channel.fail(0, problem))?;
    let mut last = 0;
    loop {
        let (number, bytes) = channel.hear(last)?;
        last = number;
        let cell: Cell = decode(&bytes)
            .ok_or("the cell cannot be read: this program and vmtax do not belong together")?;
        let mut outcome = Outcome::default();
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

fn carry_out(cell: &Cell, outcome: &mut Outcome, files: &mut Vec<Attachment>) -> Result<()> {
    let mut vms = Vms::start(&cell.site)?;
    outcome.vms.clone_from(&vms.seen);
    let traffic = cell.traffic;
    if traffic.warm_up > 0 {
        vms.send(traffic, traffic.warm_up)?;
    }
    vms.before_recording()?;
    std::thread::sleep(QUIET);
    trace::clear()?;
    let tracer = Tracer::arm(false, false)?;
    tracer.record(true);
    let started = Instant::now();
    let sent = vms.send(traffic, traffic.count);
    outcome.elapsed_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    tracer.record(false);
    tracer.disarm()?;
    sent?;
    vms.check()?;
    *files = trace::collect()?;
    Ok(())
}
