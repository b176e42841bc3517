//! Machines that Bochs runs: an Intel processor with VMX and EPT, or an AMD processor with SVM and nested paging.
//!
//! Bochs inherits all files as descriptors with fixed numbers, because a saved machine opens the same paths when it is restored.

mod boot_disk;
mod inherited;
mod log;
mod saved;
mod screen;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;
use std::thread;

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use self::inherited::Inherited;
use self::log::BochsLog;
use crate::console::Console;
use crate::mailbox::{memory, with_content};
use crate::process::{ChildProcess, HandedDescriptors};
use crate::recorder::MachineRecorder;
use crate::stream::Until;
use crate::{Emulator, Error, Mailbox, VmSpec};
use boot_disk::{BootContent, BootDisk};
use saved::Copy;
use screen::BochsScreen;

/// The program; `bochs` is a script around it.
pub(crate) const PROGRAM: &str = "bochs-bin";
const BIOS: &str = "/usr/share/bochs/BIOS-bochs-latest";
const VGA_BIOS: &str = "/usr/share/vgabios/vgabios.stdvga.bin";
/// Where Debian keeps the display libraries.
const PLUGINS: &str = "/usr/lib/x86_64-linux-gnu/bochs/plugins";

/// The newest models with VMX and with SVM that Debian's Bochs has. One instruction is one nanosecond of the machine's time and one tick
/// of the TSC, as under QEMU. KVM (`hardware_setup` in arch/x86/kvm/vmx/vmx.c) uses VMX's preemption timer only below 2^32 / 10 ticks a second; at
/// 400 MHz it does, but a recorder beside the suite does not end.
fn processor(svm: bool) -> &'static str {
    if svm { "model=ryzen, ips=1000000000" } else { "model=broadwell_ult, ips=1000000000" }
}

/// Kernel options that a model needs. `ryzen` reports MWAITX (221) and never wakes from it, so the kernel would wait forever in its first
/// `udelay()`; the kernel reads the last `clearcpuid` alone, so this one repeats 297 of [`crate::QUICK_BOOT`]. And it has no invariant TSC: KVM
/// would move a guest's clock whenever its thread comes back to the processor.
fn needs(emulator: Emulator) -> &'static str {
    let is_ryzen = emulator == Emulator::Bochs { svm: true };
    if is_ryzen { " clearcpuid=297,221 tsc=reliable" } else { "" }
}

/// What a saved machine depends on besides its spec.
pub(crate) fn settings(emulator: Emulator) -> String {
    let svm = emulator == Emulator::Bochs { svm: true };
    format!("{}{}", processor(svm), needs(emulator))
}

/// The date at which a machine boots, in seconds since 1970: 2026-01-01. A fixed one, so that two boots of a kernel are alike.
const DATE: u32 = 1_767_225_600;

/// Bochs's side of a machine.
#[derive(Debug)]
pub(crate) struct BochsMachine {
    emulator: Emulator,
    log: BochsLog,
    /// The X server of its window, if it can be saved.
    screen: Option<BochsScreen>,
}

impl BochsMachine {
    /// Starts Bochs with a cold machine.
    pub(crate) fn boot(
        spec: &VmSpec,
        console: &Console,
    ) -> Result<(BochsMachine, ChildProcess), Error> {
        let vmlinux = spec.kernel.vmlinux()?;
        let initramfs = spec.initramfs.bytes()?;
        let disk = BootDisk::build(&BootContent {
            vmlinux: &vmlinux,
            initramfs: &initramfs,
            command_line: &format!("{}{}", spec.command_line, needs(spec.emulator)),
            memory_mib: spec.memory_mib,
        })?;
        let start_error = |e| Error::io(Path::new(PROGRAM), "start the emulator")(e);
        let screen = match can_save() {
            Ok(()) => Some(BochsScreen::start().map_err(start_error)?),
            Err(_) => None,
        };
        let display = if screen.is_some() { "x" } else { "term" };
        let configuration = configuration(spec, disk.cylinders, display);
        let launch = || {
            let mut launch = BochsLaunch::new(spec, disk.file, console)?;
            launch.handed.give(with_content("vmtax-bochsrc", configuration.as_bytes())?);
            launch.handed.give(with_content("vmtax-bochs-commands", b"c\n")?);
            launch.command.args(["-q", "-f", &Inherited::Configuration.path()]);
            launch.start(screen)
        };
        launch().map_err(start_error)
    }

    /// Starts Bochs with a saved machine, whose instructions a recorder may record, and waits until it has restored it.
    pub(crate) fn restore(
        spec: &VmSpec,
        (folder, recorder): (&Path, Option<MachineRecorder>),
        console: &Console,
        until: Until<'_>,
    ) -> Result<(BochsMachine, ChildProcess), Error> {
        let start_error = |e| Error::io(Path::new(PROGRAM), "start the emulator")(e);
        let copy = Copy::of(&spec.mailbox).map_err(start_error)?;
        let launch = || {
            let mut launch = BochsLaunch::new(spec, saved::boot_disk(folder)?, console)?;
            launch.handed.give(File::open(folder)?);
            launch.handed.give(with_content("vmtax-bochs-commands", b"c\n")?);
            launch.handed.give(copy.file.try_clone()?);
            launch.command.args(["-q", "-r", &Inherited::Configuration.path()]);
            if let Some(recorder) = recorder {
                let svm = spec.emulator == (Emulator::Bochs { svm: true });
                launch.command.envs(recorder.preload(&mut launch.handed, svm)?);
            }
            launch.start(None)
        };
        let (bochs, mut process) = launch().map_err(start_error)?;
        let restored = copy.wait(&spec.mailbox, (&mut process, &bochs.log), until);
        let path = folder.to_owned();
        restored.map_err(|problem| Error::State { path, problem })?;
        Ok((bochs, process))
    }

    /// Stops the machine and has Bochs write it into an empty folder.
    pub(crate) fn save(
        &mut self,
        process: &mut ChildProcess,
        folder: &Path,
        until: Until<'_>,
    ) -> Result<(), Error> {
        let saved = match &self.screen {
            Some(screen) => saved::save((screen, &self.log), process, folder, until),
            None => Err("a machine that was itself restored, or was booted without a screen \
                         (Xvfb, xdotool and bochs-x), cannot be saved"
                .to_owned()),
        };
        let (emulator, what) = (self.emulator, "save the machine");
        saved.map_err(|problem| Error::Control { emulator, what, problem })
    }

    /// Why Bochs panicked; it may still run and show a dialog. A power-off is a panic too.
    pub(crate) fn panic(&self) -> Option<String> {
        Some(match self.log.panic()? {
            text if text.contains("soft power off") => "the guest powered off".to_owned(),
            text => format!("Bochs says: {text}"),
        })
    }
}

/// A Bochs that is about to start.
struct BochsLaunch {
    emulator: Emulator,
    command: Command,
    handed: HandedDescriptors,
    log: File,
}

impl BochsLaunch {
    /// With the descriptors that every Bochs gets; the caller adds others.
    fn new(spec: &VmSpec, boot_disk: File, console: &Console) -> io::Result<BochsLaunch> {
        let log = memory("vmtax-bochs-log")?;
        let mut handed = HandedDescriptors::default();
        handed.give(spec.mailbox.file().try_clone()?);
        handed.give(boot_disk);
        handed.give(console.file().try_clone()?);
        handed.give(log.try_clone()?);
        Ok(BochsLaunch { emulator: spec.emulator, command: Command::new(PROGRAM), handed, log })
    }

    fn start(mut self, screen: Option<BochsScreen>) -> io::Result<(BochsMachine, ChildProcess)> {
        // Debian's Bochs stops in its debugger first, which gets the command to continue.
        self.command.args(["-rc", &Inherited::Commands.path()]);
        self.command.env("LTDL_LIBRARY_PATH", PLUGINS);
        attach_terminal(&mut self.command)?;
        if let Some(screen) = &screen {
            screen.show(&mut self.command, &mut self.handed)?;
        }
        let process = ChildProcess::spawn(self.command, self.handed)?;
        Ok((BochsMachine { emulator: self.emulator, log: BochsLog(self.log), screen }, process))
    }
}

/// Gives a command a terminal whose output is discarded.
fn attach_terminal(command: &mut Command) -> io::Result<()> {
    let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&control)?;
    unlockpt(&control)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let terminal = File::from(ioctl_tiocgptpeer(&control, flags)?);
    let mut control = File::from(control);
    command.env("TERM", "xterm");
    command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal);
    thread::Builder::new().name("terminal".to_owned()).spawn(move || {
        let mut screen = [0; 4096];
        // The read fails when the last process has closed the terminal.
        while control.read(&mut screen).is_ok_and(|n| n > 0) {}
    })?;
    Ok(())
}

/// The `bochsrc`.
fn configuration(spec: &VmSpec, boot_cylinders: u64, display: &str) -> String {
    let (cylinders, heads, spt) = Mailbox::GEOMETRY;
    let (mib, cpus) = (spec.memory_mib, spec.cpus);
    let processor = processor(spec.emulator == (Emulator::Bochs { svm: true }));
    let (mailbox, boot) = (Inherited::Mailbox.path(), Inherited::BootDisk.path());
    let (console, log) = (Inherited::Console.path(), Inherited::Log.path());
    // Bochs's display for terminals draws to a second terminal, too, which nobody reads: in real time it is full after some minutes, and
    // Bochs waits for ever.
    format!(
        "display_library: {display}\n\
         vga: extension=vbe, update_freq=1, realtime=0\n\
         romimage: file={BIOS}, options=fastboot\n\
         vgaromimage: file={VGA_BIOS}\n\
         cpu: {processor}, count={cpus}, reset_on_triple_fault=0\n\
         memory: guest={mib}, host={mib}\n\
         ata0: enabled=1, ioaddr1=0x1f0, ioaddr2=0x3f0, irq=14\n\
         ata0-master: type=disk, path={boot}, mode=flat, cylinders={boot_cylinders}, heads=16, spt=63\n\
         ata1: enabled=1, ioaddr1=0x170, ioaddr2=0x370, irq=15\n\
         ata1-master: type=disk, path={mailbox}, mode=flat, cylinders={cylinders}, heads={heads}, spt={spt}\n\
         boot: disk\n\
         floppya: type=none\n\
         parport1: enabled=0\n\
         usb_uhci: enabled=0\n\
         com1: enabled=1, mode=file, dev={console}\n\
         sound: waveoutdrv=dummy, waveindrv=dummy, midioutdrv=dummy\n\
         clock: sync=none, time0={DATE}\n\
         log: {log}\n\
         panic: action=fatal\n\
         error: action=ignore\n\
         info: action=ignore\n\
         debug: action=ignore\n"
    )
}

/// Checks that Bochs is installed.
pub(crate) fn check() -> Result<(), Error> {
    let missing = |program: &str| Error::Missing {
        program: program.to_owned(),
        need: "emulated hosts on Bochs (intel, amd-bochs)",
        install: "apt-get install --no-install-recommends bochs bochs-term bochsbios vgabios"
            .to_owned(),
    };
    if crate::spec::find(PROGRAM).is_none() {
        return Err(missing("bochs"));
    }
    for file in [BIOS, VGA_BIOS] {
        fs::metadata(file).map_err(|_| missing(file))?;
    }
    Ok(())
}

/// Whether a machine on Bochs can be saved here.
pub(crate) fn can_save() -> Result<(), Error> {
    check()?;
    let missing = |program: String, package: &str| Error::Missing {
        program,
        need: "saving emulated hosts on Bochs (intel, amd-bochs)",
        install: format!("apt-get install --no-install-recommends {package}"),
    };
    for (program, package) in [(screen::SERVER, "xvfb"), (screen::HAND, "xdotool")] {
        if crate::spec::find(program).is_none() {
            return Err(missing(program.to_owned(), package));
        }
    }
    let library = format!("{PLUGINS}/libbx_x_gui.so");
    fs::metadata(&library).map(drop).map_err(|_| missing(library, "bochs-x"))
}
