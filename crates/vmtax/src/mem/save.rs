//! `vmtax mem save`.

use std::io::Write;
use std::time::{Duration, Instant};

use vmtax_checkpoint::stream::{self, is_stream};
use vmtax_checkpoint::{Save, SavedVm};
use vmtax_cli::exit::{Code, fail, say};
use vmtax_cli::signals;
use vmtax_machine::Stop;
use vmtax_machine::vm::MediumDisk;

use super::accel::OpenedBackend;
use super::flags::{OutputFormat, SaveArgs};
use super::guard;
use super::saved::SaveReport;

pub(super) fn run(args: &SaveArgs) -> anyhow::Result<()> {
    let stop = Stop::default();
    signals::catch(stop.flag())?;
    let start = Instant::now();
    let mut accel = OpenedBackend::new(&args.work.backend.accel)?;
    let save = Save {
        output: args.output.clone(),
        parent: args.parent.clone(),
        zstd: args.zstd,
        live: args.live,
        max_pause: args.max_pause,
        stopped: args.stopped,
        snapshot_disks: args.snapshot_disks.clone(),
    };
    let saved = match (&args.machine.qmp, &args.machine.image) {
        (Some(socket), _) => save.of_vm(socket, guard::command(socket), accel.scanner(), &stop)?,
        (None, Some(image)) => save.of_image(image, accel.scanner(), &stop)?,
        (None, None) => return fail(Code::Usage, "name a VM with --qmp or an image with --image"),
    };
    let (wall, cpu) = (start.elapsed(), process_time());
    let report = SaveReport { args, saved: &saved, wall, cpu, accel: accel.describe() };
    if let Some(vm) = &saved.vm {
        warn_of_disks(args, vm);
        warn_of_pause(args, vm);
    }
    if is_stream(&args.output) {
        let text = match args.work.format {
            OutputFormat::Text => report.text(),
            OutputFormat::Json => format!("{:#}\n", report.json()),
        };
        // Standard output is the checkpoint. A failure to report is not an error of the save.
        let _ = std::io::stderr().write_all(text.as_bytes());
        return Ok(());
    }
    args.work.format.print(|| report.text(), || report.json())
}

/// Processor time of this process until now.
fn process_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Warns of disks that the checkpoint does not contain, with advice.
fn warn_of_disks(args: &SaveArgs, vm: &SavedVm) {
    let kept = |disk: &&MediumDisk| disk.writable && disk.overlay.is_none();
    let names: Vec<String> = vm
        .disks
        .iter()
        .filter(kept)
        .map(|disk| format!("{} ({})", disk.name, disk.file()))
        .collect();
    if names.is_empty() {
        return;
    }
    let (names, output) = (names.join(", "), stream::name(&args.output));
    let advice = match vm.goes_on {
        true => {
            "the VM goes on writing to them, so they match this checkpoint at this moment only; \
             --snapshot-disks keeps them as they are"
        }
        false => {
            "copy or snapshot them before the VM goes on: until then only do they match this checkpoint"
        }
    };
    say(&format!("{output}: the disks {names} are not in it; {advice}"));
}

/// Warns that the pause was longer than allowed. The checkpoint is complete.
fn warn_of_pause(args: &SaveArgs, vm: &SavedVm) {
    let Some(max) = args.max_pause.filter(|max| vm.live && vm.goes_on && vm.times.pause > *max)
    else {
        return;
    };
    let output = stream::name(&args.output);
    let (was, state) = (vm.times.pause.as_millis(), vm.times.state.as_millis());
    say(&format!(
        "{output}: the VM was paused for {was} ms and --max-pause allows {max:?}; its device state alone took {state} ms"
    ));
}
