//! A save: its options, and its steps.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_cli::output::{cannot_read, is_same_file};
use vmtax_machine::Stop;
use vmtax_machine::vm::{Hardware, LEFT_STOPPED, MediumDisk, Pause, QemuVm, Ram};
use vmtax_pageops::PAGE;
use vmtax_pageops::checkpoint::{
    Accelerate, Checkpoint, CheckpointOptions, CheckpointWriter, FinishedCheckpoint, children,
};

use crate::faults::{INTERRUPTED, fault, vm_fault};
use crate::passes::{FoundChanges, KEPT, MemoryBlocks, MemoryPass, processors};
use crate::saved::{PauseTimes, Saved, SavedVm};
use crate::stream::{self, is_stream};

/// Time between two checks that the VM is still paused.
const LOOK: Duration = Duration::from_millis(100);

/// What is saved, and where.
#[derive(Clone, Debug, Default)]
pub struct Save {
    /// The checkpoint; `-` is standard output.
    pub output: PathBuf,
    /// Save the difference to this checkpoint.
    pub parent: Option<PathBuf>,
    /// Level of compression.
    pub zstd: Option<i32>,
    /// Save most of the memory while the VM runs.
    pub live: bool,
    /// Longest pause of a live save.
    pub max_pause: Option<Duration>,
    /// Leave the VM stopped.
    pub stopped: bool,
    /// From the pause on the VM writes to overlays, in this folder or beside its disks.
    pub snapshot_disks: Option<Option<PathBuf>>,
}

impl Save {
    /// Saves an image.
    ///
    /// # Errors
    /// When it cannot be read, or the checkpoint cannot be written, or a stop was requested.
    pub fn of_image(
        &self,
        image: &Path,
        scanner: &mut dyn Accelerate,
        stop: &Stop,
    ) -> anyhow::Result<Saved> {
        check_names(self, Some(image))?;
        let ram = [open_image(image)?];
        let mut writer = create(self, false, scanner, stop)?;
        let memory = MemoryBlocks::new(image, &ram, false)?;
        let pass = memory.write(&mut writer, &mut || stopping(stop))?;
        let finished = writer.finish(&mut std::io::empty(), b"").map_err(|e| fault(&e, true))?;
        let saved = Saved::new(&finished, memory.bytes(), pass.data);
        finished.publish().map_err(|e| fault(&e, true))?;
        Ok(saved)
    }

    /// Saves the VM of the QEMU with this monitor. `guard` is the command of the process that resumes it if this one is killed.
    ///
    /// # Errors
    /// When the VM cannot be saved, the checkpoint cannot be written, the pause would be too long, or a stop was requested. The
    /// VM then runs as before, unless the error says otherwise.
    pub fn of_vm(
        &self,
        socket: &Path,
        guard: Command,
        scanner: &mut dyn Accelerate,
        stop: &Stop,
    ) -> anyhow::Result<Saved> {
        check_names(self, None)?;
        let mut vm = QemuVm::connect(socket, stop.clone()).map_err(vm_fault)?;
        // Slow or fallible steps come before the pause if possible.
        let ram = vm.ram(false).map_err(vm_fault)?;
        vm.check_skips(&ram).map_err(vm_fault)?;
        check_memory(self, &ram)?;
        let hardware = vm.hardware().map_err(vm_fault)?;
        let devices = vm.device_names().map_err(vm_fault)?;
        disks(self, &mut vm)?;
        // A stopped VM writes nothing.
        let live = self.live && vm.status().map_err(vm_fault)? == "running";
        let memory = MemoryBlocks::new(socket, &ram, live)?;
        let mut writer = create(self, live, scanner, stop)?;
        let passes = match live {
            true => memory.write_live(&mut writer, self.max_pause, &mut || stopping(stop))?,
            false => Vec::new(),
        };
        check_prediction(self, &passes)?;
        vm.start_guard(guard).map_err(vm_fault)?;
        let began = Instant::now();
        let mut pause = Pause::begin(&mut vm, self.stopped).map_err(vm_fault)?;
        let goes_on = pause.goes_on();
        let mut paused = PausedVm {
            args: self,
            stop,
            memory: &memory,
            live,
            pause: &mut pause,
            looked: Instant::now(),
        };
        let (mut saved, times, vm_disks) = if live && goes_on {
            let captured = paused.capture(&mut writer, &ram, hardware, &devices);
            let captured = captured.and_then(|captured| {
                paused.keep_disks(&captured.disks)?;
                Ok(captured)
            });
            // The state of the pause is copied; it is written and synced while the VM runs.
            let mut captured = end(pause, captured, "is not written, and", self)?;
            let times = captured.times(began);
            let saved = captured.finish(writer, &memory, stop).and_then(|(finished, saved)| {
                finished.publish().map_err(|e| fault(&e, true))?;
                Ok(saved)
            });
            (saved.map_err(|error| overlays_stay(error, &captured.disks))?, times, captured.disks)
        } else {
            let captured = paused.capture(&mut writer, &ram, hardware, &devices);
            let done = captured.and_then(|mut captured| {
                let (finished, saved) = captured.finish(writer, &memory, stop)?;
                // The last step before publishing: from here on the VM writes to other files.
                paused.keep_disks(&captured.disks)?;
                let published = finished.publish().map_err(|e| fault(&e, true));
                published.map_err(|error| overlays_stay(error, &captured.disks))?;
                Ok((saved, captured))
            });
            let (saved, captured) = end(pause, done, "is written, but", self)?;
            let times = captured.times(began);
            (saved, times, captured.disks)
        };
        saved.vm = Some(SavedVm { disks: vm_disks, goes_on, live, passes, times });
        Ok(saved)
    }
}

/// The new checkpoint must not replace its input, or a checkpoint that others are based on. `Writer::create` checks its parents.
fn check_names(args: &Save, image: Option<&Path>) -> anyhow::Result<()> {
    if is_stream(&args.output) {
        return Ok(());
    }
    let name = args.output.display();
    for (flag, input) in [("--parent", args.parent.as_deref()), ("--image", image)] {
        if input.is_some_and(|input| is_same_file(input, &args.output)) {
            return fail(Code::Usage, format!("{name}: is also {flag}; choose another output"));
        }
    }
    // An output that does not exist, or is not a checkpoint, has no children.
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

/// Nor may it replace the VM's memory.
fn check_memory(args: &Save, ram: &[Ram]) -> anyhow::Result<()> {
    let output = match is_stream(&args.output) {
        true => Path::new("/dev/stdout").metadata(),
        false => args.output.metadata(),
    };
    let Ok(output) = output else { return Ok(()) };
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
    // A pipe without a writer is opened at once, and refused.
    let mut options = File::options();
    options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) => return Err(cannot_read(&name.to_string(), &error).into()),
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return fail(Code::Input, format!("{name}: is not a file; an image of memory is needed"));
    }
    if metadata.len() == 0 || !metadata.len().is_multiple_of(PAGE as u64) {
        let what =
            format!("{name}: its size of {} bytes is not a multiple of 4096", metadata.len());
        return fail(Code::Data, what);
    }
    Ok(Ram::image("image", metadata.len(), file))
}

/// An error if the pause would be longer than allowed.
fn check_prediction(args: &Save, passes: &[MemoryPass]) -> anyhow::Result<()> {
    let (Some(max), Some(last)) = (args.max_pause, passes.last()) else { return Ok(()) };
    let predicted = last.predicts();
    if predicted <= max {
        return Ok(());
    }
    let what = format!(
        "{}: is not written: after {} passes the pause would be {} ms and --max-pause allows {max:?} \
         (the last pass found {} changed pages); allow more, or save when the VM writes less",
        stream::name(&args.output),
        passes.len(),
        predicted.as_millis(),
        last.pages,
    );
    fail(Code::Breach, what)
}

/// Ends the pause, after success or failure. `but` describes the checkpoint in the message that the VM may be left stopped.
fn end<T>(pause: Pause<'_>, done: anyhow::Result<T>, but: &str, args: &Save) -> anyhow::Result<T> {
    match (done, pause.end()) {
        (Ok(done), Ok(())) => Ok(done),
        (Ok(_), Err(error)) => {
            let what = format!("{} {but} {LEFT_STOPPED}: {error}", stream::name(&args.output));
            fail(Code::Machine, what)
        }
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(_)) => Err(left_stopped(&error)),
    }
}

/// A paused VM, to be saved.
struct PausedVm<'a, 'vm> {
    args: &'a Save,
    stop: &'a Stop,
    memory: &'a MemoryBlocks<'a>,
    /// Most of the memory was written while it ran.
    live: bool,
    pause: &'a mut Pause<'vm>,
    /// When it was last checked.
    looked: Instant,
}

/// QEMU's facts of a paused VM.
struct PausedQemu {
    state: Vec<u8>,
    description: Vec<u8>,
    disks: Vec<MediumDisk>,
    state_time: Duration,
}

/// The state taken from a VM during the pause.
struct Captured {
    state: Vec<u8>,
    description: Vec<u8>,
    disks: Vec<MediumDisk>,
    state_time: Duration,
    pass: MemoryPass,
    /// Changes copied and not yet written.
    rest: Option<FoundChanges>,
}

impl Captured {
    /// Times of a pause that began at this time and ends now.
    fn times(&self, began: Instant) -> PauseTimes {
        PauseTimes { pause: began.elapsed(), state: self.state_time, pass: self.pass }
    }

    /// Completes the file and syncs it.
    fn finish(
        &mut self,
        mut writer: CheckpointWriter<'_>,
        memory: &MemoryBlocks<'_>,
        stop: &Stop,
    ) -> anyhow::Result<(FinishedCheckpoint, Saved)> {
        if let Some(rest) = self.rest.take() {
            memory.write_found(&mut writer, rest, &mut || stopping(stop))?;
        }
        let finished = writer.finish(&mut &self.state[..], &self.description);
        let finished = finished.map_err(|e| fault(&e, true))?;
        let saved = Saved::new(&finished, memory.bytes(), self.pass.data);
        Ok((finished, saved))
    }
}

impl PausedVm<'_, '_> {
    /// Saves the state of its devices, and all memory that the writer lacks. The VM is paused until all of it is copied.
    fn capture(
        &mut self,
        writer: &mut CheckpointWriter<'_>,
        ram: &[Ram],
        hardware: Hardware,
        devices: &BTreeSet<String>,
    ) -> anyhow::Result<Captured> {
        let memory = self.memory;
        if !self.live {
            let machine = self.machine(ram, hardware, devices)?;
            let pass = memory.write(writer, &mut || self.look())?;
            return self.captured(machine, pass, None);
        }
        // QEMU's own migration takes the last of the memory before the devices, so they do not write to it when they are saved.
        let (machine, found) = std::thread::scope(|scope| {
            let latest = writer.latest();
            let search = latest.map(|latest| memory.search(scope, latest, processors(), KEPT));
            let search = search.transpose()?;
            let machine = self.machine(ram, hardware, devices)?;
            let found = search.map(|search| search.finish(&mut || self.look())).transpose()?;
            anyhow::Ok((machine, found.unwrap_or_default()))
        })?;
        if found.is_copied() {
            return self.captured(machine, found.pass(), Some(found));
        }
        let pass = memory.write_found(writer, found, &mut || self.look())?;
        self.captured(machine, pass, None)
    }

    /// Saves the state of its devices.
    fn machine(
        &mut self,
        ram: &[Ram],
        mut hardware: Hardware,
        devices: &BTreeSet<String>,
    ) -> anyhow::Result<PausedQemu> {
        let began = Instant::now();
        let state = self.pause.vm().save_state().map_err(vm_fault)?;
        let state_time = began.elapsed();
        if self.pause.vm().device_names().map_err(vm_fault)? != *devices {
            // A device was plugged or unplugged just before the pause.
            hardware = self.pause.vm().hardware().map_err(vm_fault)?;
        }
        self.pause.vm().check_ram(ram).map_err(vm_fault)?;
        hardware.disks = disks(self.args, self.pause.vm())?;
        let description = serde_json::to_vec(&hardware)?;
        Ok(PausedQemu { state, description, disks: hardware.disks, state_time })
    }

    /// The captured state, if the VM was paused until now.
    fn captured(
        &mut self,
        machine: PausedQemu,
        pass: MemoryPass,
        rest: Option<FoundChanges>,
    ) -> anyhow::Result<Captured> {
        self.pause.check().map_err(vm_fault)?;
        let PausedQemu { state, description, disks, state_time } = machine;
        Ok(Captured { state, description, disks, state_time, pass, rest })
    }

    /// Makes the VM write to overlays from now on, if requested. An error unless it was paused until now.
    fn keep_disks(&mut self, disks: &[MediumDisk]) -> anyhow::Result<()> {
        self.pause.check().map_err(vm_fault)?;
        if self.args.snapshot_disks.is_some() {
            self.pause.vm().snapshot_disks(disks).map_err(vm_fault)?;
            let checked = self.pause.check().map_err(vm_fault);
            checked.map_err(|error| overlays_stay(error, disks))?;
        }
        Ok(())
    }

    /// An error if the save must end: on a stop request, or if the VM is no longer paused.
    fn look(&mut self) -> anyhow::Result<()> {
        stopping(self.stop)?;
        if self.looked.elapsed() >= LOOK {
            self.pause.check().map_err(vm_fault)?;
            self.looked = Instant::now();
        }
        Ok(())
    }
}

/// A VM's disks, with their planned overlays.
fn disks(args: &Save, vm: &mut QemuVm) -> anyhow::Result<Vec<MediumDisk>> {
    let mut disks = vm.disks().map_err(vm_fault)?;
    if let Some(folder) = &args.snapshot_disks {
        let name = match is_stream(&args.output) {
            true => "stream".into(),
            false => args.output.file_stem().unwrap_or_default().to_string_lossy(),
        };
        vm.plan_overlays(&mut disks, folder.as_deref(), &name).map_err(vm_fault)?;
    }
    Ok(disks)
}

/// An error after the disks got overlays, which cannot be undone during the pause.
fn overlays_stay(error: anyhow::Error, disks: &[MediumDisk]) -> anyhow::Error {
    let overlays: Vec<&str> = disks.iter().filter_map(|disk| disk.overlay.as_deref()).collect();
    if overlays.is_empty() {
        return error;
    }
    let overlays = overlays.join(", ");
    let what = format!("{error:#}; the VM writes to {overlays} now (block-commit undoes that)");
    CodedError::new(code(&error), what).into()
}

/// An error after which the VM may still be stopped.
fn left_stopped(error: &anyhow::Error) -> anyhow::Error {
    CodedError::new(code(error), format!("{error:#}; {LEFT_STOPPED}")).into()
}

fn code(error: &anyhow::Error) -> Code {
    let fault = error.chain().find_map(|e| e.downcast_ref::<CodedError>());
    fault.map_or(Code::Unexpected, CodedError::code)
}

/// An error on a stop request.
fn stopping(stop: &Stop) -> anyhow::Result<()> {
    if stop.is_requested() {
        anyhow::bail!(INTERRUPTED);
    }
    Ok(())
}

fn create<'a>(
    args: &Save,
    live: bool,
    scanner: &'a mut dyn Accelerate,
    stop: &Stop,
) -> anyhow::Result<CheckpointWriter<'a>> {
    let parent = match &args.parent {
        Some(path) => Some(Checkpoint::open(path).map_err(|e| fault(&e, false))?),
        None => None,
    };
    let options = CheckpointOptions { zstd: args.zstd, parent, live };
    let writer = match is_stream(&args.output) {
        true => CheckpointWriter::stream(
            stream::output()?,
            stream::OUTPUT,
            options,
            scanner,
            stop.flag().clone(),
        ),
        false => CheckpointWriter::create(&args.output, options, scanner),
    };
    writer.map_err(|e| fault(&e, true))
}
