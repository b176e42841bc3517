//! `vmtax mem save`.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use vmtax_cli::exit::{Code, Fault, fail, say};
use vmtax_cli::output::cannot_read;
use vmtax_cli::output::is_same_file;
use vmtax_cli::progress::Progress;
use vmtax_cli::signals;
use vmtax_machine::Stop;
use vmtax_machine::vm::{Disk, Hardware, LEFT_STOPPED, Pause, Ram, Vm};
use vmtax_pageops::PAGE;
use vmtax_pageops::checkpoint::{Accelerate, Checkpoint, Id, Options, Summary, Writer, children};
use vmtax_pageops::memory::{self, Map};

use super::flags::SaveArgs;
use super::{INTERRUPTED, fault, print, size, vm_fault};

/// Memory given to the writer at a time: what is between two looks at the signals.
const PIECE: u64 = 8 << 20;

/// Between two looks at whether the VM still stands.
const LOOK: Duration = Duration::from_millis(100);

/// What a saved checkpoint came to.
struct Saved {
    summary: Summary,
    id: Id,
    sizes: Sizes,
    seconds: f64,
    accel: String,
    vm: Option<SavedVm>,
}

/// Bytes of memory, and of what of it is no hole.
struct Sizes {
    memory: u64,
    data: u64,
}

/// What became of the VM.
struct SavedVm {
    disks: Vec<Disk>,
    /// It runs now.
    goes_on: bool,
}

pub(super) fn run(args: &SaveArgs) -> anyhow::Result<()> {
    check_names(args)?;
    let stop = Stop::default();
    signals::catch(stop.flag())?;
    let start = Instant::now();
    let mut saved = match (&args.machine.qmp, &args.machine.image) {
        (Some(socket), _) => save_vm(args, socket, &stop)?,
        (None, Some(image)) => save_image(args, image, &stop)?,
        (None, None) => return fail(Code::Usage, "name a VM with --qmp or an image with --image"),
    };
    saved.seconds = start.elapsed().as_secs_f64();
    if let Some(vm) = &saved.vm {
        warn_of_disks(args, vm);
    }
    print(args.work.format, || text(args, &saved), || as_json(args, &saved))
}

/// The new checkpoint must not take the place of what it is made from, nor of one that others are based on. Its parents are
/// looked at by `Writer::create`.
fn check_names(args: &SaveArgs) -> anyhow::Result<()> {
    let name = args.output.display();
    for (flag, input) in [("--parent", &args.parent), ("--image", &args.machine.image)] {
        if input.as_ref().is_some_and(|input| is_same_file(input, &args.output)) {
            return fail(
                Code::Usage,
                format!("{name}: is given as {flag} too; name another output"),
            );
        }
    }
    // An output that is not there, or that is no checkpoint, has no children.
    match children(&args.output).unwrap_or_default().as_slice() {
        [] => Ok(()),
        [child, ..] => fail(
            Code::Usage,
            format!(
                "{name}: {} is based on it; name another output, or remove that one first",
                child.display()
            ),
        ),
    }
}

/// Nor that of the VM's memory.
fn check_memory(args: &SaveArgs, ram: &[Ram]) -> anyhow::Result<()> {
    let Ok(output) = args.output.metadata() else { return Ok(()) };
    for block in ram {
        let memory = block.file.metadata()?;
        if (memory.dev(), memory.ino()) == (output.dev(), output.ino()) {
            let name = args.output.display();
            return fail(
                Code::Usage,
                format!("{name}: is the VM's memory ({}); name another output", block.name),
            );
        }
    }
    Ok(())
}

fn open_image(path: &Path) -> anyhow::Result<Ram> {
    let name = path.display();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => return Err(cannot_read(&name.to_string(), &error).into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return fail(Code::Input, format!("{name}: is not a file; an image of memory is needed"));
    }
    if metadata.len() == 0 || !metadata.len().is_multiple_of(PAGE as u64) {
        let what = format!("{name}: has {} bytes, which is no number of pages", metadata.len());
        return fail(Code::Data, what);
    }
    Ok(Ram { name: "image".to_owned(), bytes: metadata.len(), file })
}

fn save_image(args: &SaveArgs, image: &Path, stop: &Stop) -> anyhow::Result<Saved> {
    let ram = [open_image(image)?];
    let mut accel = args.work.accel.open()?;
    let mut writer = create(args, accel.scanner())?;
    let sizes = write_pages(image, &mut writer, &ram, &mut || stopping(stop))?;
    let finished = writer.finish(&mut std::io::empty(), b"").map_err(|e| fault(&e, true))?;
    let (summary, id) = (finished.summary(), finished.id());
    finished.publish().map_err(|e| fault(&e, true))?;
    Ok(Saved { summary, id, sizes, seconds: 0.0, accel: accel.describe(), vm: None })
}

fn save_vm(args: &SaveArgs, socket: &Path, stop: &Stop) -> anyhow::Result<Saved> {
    let mut vm = Vm::connect(socket, stop.clone()).map_err(vm_fault)?;
    // What takes time or can fail comes before the pause, where it can.
    let ram = vm.ram(false).map_err(vm_fault)?;
    check_memory(args, &ram)?;
    let hardware = vm.hardware().map_err(vm_fault)?;
    let devices = vm.device_names().map_err(vm_fault)?;
    disks(args, &mut vm)?;
    let mut accel = args.work.accel.open()?;
    let writer = create(args, accel.scanner())?;
    let mut pause = Pause::begin(&mut vm, args.stopped).map_err(vm_fault)?;
    let goes_on = pause.goes_on();
    let paused = PausedVm { args, socket, stop, pause: &mut pause, looked: Instant::now() };
    let done = paused.save(writer, &ram, hardware, &devices);
    // Whatever came of it.
    let resumed = pause.end();
    let (summary, id, sizes, disks) = match (done, resumed) {
        (Ok(done), Ok(())) => done,
        (Ok(_), Err(error)) => {
            let what = format!("{} is written, but {LEFT_STOPPED}: {error}", args.output.display());
            return fail(Code::Machine, what);
        }
        (Err(error), Ok(())) => return Err(error),
        (Err(error), Err(_)) => return Err(left_stopped(&error)),
    };
    let vm = Some(SavedVm { disks, goes_on });
    Ok(Saved { summary, id, sizes, seconds: 0.0, accel: accel.describe(), vm })
}

/// A VM that stands still, to be saved.
struct PausedVm<'a, 'vm> {
    args: &'a SaveArgs,
    socket: &'a Path,
    stop: &'a Stop,
    pause: &'a mut Pause<'vm>,
    /// When it was last looked at.
    looked: Instant,
}

impl PausedVm<'_, '_> {
    /// Saves it. The file gets its name last, when the VM has stood still until all of it was on the disk.
    fn save(
        mut self,
        mut writer: Writer<'_>,
        ram: &[Ram],
        mut hardware: Hardware,
        devices: &BTreeSet<String>,
    ) -> anyhow::Result<(Summary, Id, Sizes, Vec<Disk>)> {
        let state = self.pause.vm().save_state().map_err(vm_fault)?;
        if self.pause.vm().device_names().map_err(vm_fault)? != *devices {
            // One was plugged in or out just before the pause.
            hardware = self.pause.vm().hardware().map_err(vm_fault)?;
        }
        hardware.disks = disks(self.args, self.pause.vm())?;
        let description = serde_json::to_vec(&hardware)?;
        let socket = self.socket;
        let sizes = write_pages(socket, &mut writer, ram, &mut || self.look())?;
        let finished = writer.finish(&mut &state[..], &description).map_err(|e| fault(&e, true))?;
        self.pause.check().map_err(vm_fault)?;
        let (summary, id) = (finished.summary(), finished.id());
        if self.args.snapshot_disks.is_some() {
            // So late that nothing but the name is missing: from here on the VM writes to other files.
            self.pause.vm().snapshot_disks(&hardware.disks).map_err(vm_fault)?;
        }
        let checked = self.pause.check().map_err(vm_fault);
        let published = checked.and_then(|()| finished.publish().map_err(|e| fault(&e, true)));
        published.map_err(|error| overlays_stay(error, &hardware.disks))?;
        Ok((summary, id, sizes, hardware.disks))
    }

    /// An error if the save is to end: somebody asked for it, or the VM does not stand still any more.
    fn look(&mut self) -> anyhow::Result<()> {
        stopping(self.stop)?;
        if self.looked.elapsed() >= LOOK {
            self.pause.check().map_err(vm_fault)?;
            self.looked = Instant::now();
        }
        Ok(())
    }
}

/// A VM's disks, with the overlays that they are to get.
fn disks(args: &SaveArgs, vm: &mut Vm) -> anyhow::Result<Vec<Disk>> {
    let mut disks = vm.disks().map_err(vm_fault)?;
    if let Some(folder) = &args.snapshot_disks {
        let name = args.output.file_stem().unwrap_or_default().to_string_lossy();
        vm.plan_overlays(&mut disks, folder.as_deref(), &name).map_err(vm_fault)?;
    }
    Ok(disks)
}

/// An error that came after the disks got overlays, which cannot be taken back while the VM stands.
fn overlays_stay(error: anyhow::Error, disks: &[Disk]) -> anyhow::Error {
    let overlays: Vec<&str> = disks.iter().filter_map(|disk| disk.overlay.as_deref()).collect();
    if overlays.is_empty() {
        return error;
    }
    let overlays = overlays.join(", ");
    let what = format!("{error:#}; the VM writes to {overlays} now (block-commit undoes that)");
    Fault::new(code(&error), what).into()
}

/// An error after which the VM may still be stopped.
fn left_stopped(error: &anyhow::Error) -> anyhow::Error {
    Fault::new(code(error), format!("{error:#}; {LEFT_STOPPED}")).into()
}

fn code(error: &anyhow::Error) -> Code {
    let fault = error.chain().find_map(|e| e.downcast_ref::<Fault>());
    fault.map_or(Code::Unexpected, Fault::code)
}

/// An error if somebody wants this to end.
fn stopping(stop: &Stop) -> anyhow::Result<()> {
    if stop.is_requested() {
        anyhow::bail!(INTERRUPTED);
    }
    Ok(())
}

fn create<'a>(args: &SaveArgs, scanner: &'a mut dyn Accelerate) -> anyhow::Result<Writer<'a>> {
    let parent = match &args.parent {
        Some(path) => Some(Checkpoint::open(path).map_err(|e| fault(&e, false))?),
        None => None,
    };
    let options = Options { zstd: args.zstd, parent, live: false };
    Writer::create(&args.output, options, scanner).map_err(|e| fault(&e, true))
}

/// Gives the writer all memory but its holes; `from` is what it is of, should it be gone. `look` ends it by an error.
fn write_pages(
    from: &Path,
    writer: &mut Writer<'_>,
    ram: &[Ram],
    look: &mut dyn FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Sizes> {
    let gone = |error: std::io::Error| {
        let what = "memory cannot be read; was it made shorter, or does its disk fail?";
        Fault::new(Code::Input, format!("{}: {what}", from.display())).answered(&error)
    };
    let mut extents = Vec::new();
    for block in ram {
        extents.push(memory::extents(&block.file, block.bytes)?);
    }
    let data = extents.iter().flatten().map(|e| e.end - e.start).sum();
    let watch = Progress::bytes(data);
    let mut done = 0;
    for (block, extents) in ram.iter().zip(&extents) {
        writer.region(&block.name, block.bytes / PAGE as u64).map_err(|e| fault(&e, true))?;
        let map = Map::new(&block.file, block.bytes as usize)?;
        for extent in extents {
            let mut at = extent.start;
            while at < extent.end {
                look()?;
                let end = extent.end.min(at + PIECE);
                let range = at as usize..end as usize;
                map.populate(range.clone()).map_err(gone)?;
                let written = map.with(range.clone(), |p| writer.pages(at / PAGE as u64, p));
                map.forget(range);
                written.map_err(|e| fault(&e, true))?;
                done += end - at;
                watch.at(done);
                at = end;
            }
        }
    }
    Ok(Sizes { memory: ram.iter().map(|r| r.bytes).sum(), data })
}

/// Says what the checkpoint does not hold, and what to do about it.
fn warn_of_disks(args: &SaveArgs, vm: &SavedVm) {
    let kept = |disk: &&Disk| disk.writable && disk.overlay.is_none();
    let names: Vec<String> = vm
        .disks
        .iter()
        .filter(kept)
        .map(|disk| format!("{} ({})", disk.name, disk.file()))
        .collect();
    if names.is_empty() {
        return;
    }
    let (names, output) = (names.join(", "), args.output.display());
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

fn text(args: &SaveArgs, saved: &Saved) -> String {
    let s = &saved.summary;
    let mut parts = vec![format!("{} as they are", s.raw)];
    for (count, what) in [
        (s.compressed, "compressed"),
        (s.deltas, "as deltas"),
        (s.filled, "of one repeated word"),
        (s.zero, "zero"),
        (s.unchanged, "unchanged"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let mut text = format!(
        "{}: {} of memory, {} of it in use, in {} ({:.2} s, {}/s)\npages: {}\nby: {}\nid: {}\n",
        args.output.display(),
        size(saved.sizes.memory),
        size(saved.sizes.data),
        size(s.bytes),
        saved.seconds,
        size((saved.sizes.data as f64 / saved.seconds.max(1e-9)) as u64),
        parts.join(", "),
        saved.accel,
        saved.id,
    );
    for (disk, overlay) in overlays(saved) {
        let (name, file) = (&disk.name, disk.file());
        text.push_str(&format!("disk {name}: {file} stays as it is; the VM writes to {overlay}\n"));
    }
    if saved.vm.as_ref().is_some_and(|vm| !vm.goes_on && !args.stopped) {
        text.push_str("vm: was stopped before, and stays stopped\n");
    }
    text
}

/// Disks that stay as they are, and what the VM writes to instead.
fn overlays(saved: &Saved) -> impl Iterator<Item = (&Disk, &str)> {
    let disks = saved.vm.iter().flat_map(|vm| &vm.disks);
    disks.filter_map(|disk| Some((disk, disk.overlay.as_deref()?)))
}

fn as_json(args: &SaveArgs, saved: &Saved) -> serde_json::Value {
    let s = &saved.summary;
    json!({
        "checkpoint": args.output.display().to_string(),
        "id": saved.id.to_string(),
        "memory_bytes": saved.sizes.memory,
        "data_bytes": saved.sizes.data,
        "file_bytes": s.bytes,
        "seconds": saved.seconds,
        "accel": saved.accel,
        "pages": {
            "raw": s.raw, "compressed": s.compressed, "deltas": s.deltas, "filled": s.filled,
            "zero": s.zero, "unchanged": s.unchanged,
        },
        "disks": saved.vm.as_ref().map(|vm| &vm.disks),
        "running": saved.vm.as_ref().map(|vm| vm.goes_on),
    })
}
