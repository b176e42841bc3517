//! Machines that QEMU runs: TCG with SVM, counting instructions or not, TCG of arm64, and KVM.

mod board;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::console::Console;
use crate::mailbox::memory;
use crate::process::{ChildProcess, HandedDescriptors};
use crate::qmp::Qmp;
use crate::recorder::MachineRecorder;
use crate::state::NewState;
use crate::stream::Until;
use crate::{Emulator, Error, MailboxDisk, QemuOptions, VmSpec};

pub(crate) use board::board;

/// QEMU's richest processor, as a Zen 3: `max` calls itself a family whose timers Linux takes for unreliable in idle
/// (erratum 400), and then uses the PIT. Without FSRM, which QEMU has from version 8 on: Linux expects ERMS where there is FSRM, and [`crate::QUICK_BOOT`] takes
/// ERMS away; Linux 6.1 then hangs.
const CPU: &str = "max,+svm,-fsrm,family=25,model=33,stepping=2";

/// The model of the arm64 host. Its timer counts nanoseconds, which are instructions.
const CPU_ARM: &str = "max,cntfrq=1000000000";

pub(crate) const MEMORY: &str = "memory";

/// QEMU's side of a machine.
#[derive(Debug)]
pub(crate) struct QemuMachine {
    emulator: Emulator,
    qmp: Qmp,
    /// What it writes to standard error, which is one line if it refuses to start.
    words: File,
}

/// What a machine starts from.
pub(crate) enum StartFrom<'a> {
    /// The kernel's image: an ELF file with a PVH note, or a bzImage.
    Boot(&'a Path),
    /// A saved state, positioned at its start.
    State(File),
}

impl QemuMachine {
    /// Starts QEMU. It has not read anything yet when this returns.
    pub(crate) fn start(
        spec: &VmSpec,
        start: StartFrom<'_>,
        recorder: Option<MachineRecorder>,
        console: &Console,
    ) -> Result<(QemuMachine, ChildProcess), Error> {
        let board = board(spec.emulator);
        let program = Path::new(board.program);
        let start_error = |e| Error::io(program, "start the emulator")(e);
        let (qmp, theirs) = Qmp::pair(spec.stop.clone()).map_err(start_error)?;
        let said = memory("vmtax-qemu-words").map_err(|e| start_error(e.into()))?;
        let mut handed = HandedDescriptors::default();
        let mut command = Command::new(board.program);
        let mut words = arguments(spec.emulator, spec.cpus, spec.memory_mib, &spec.options);
        for (index, descriptor) in spec.options.descriptors.iter().enumerate() {
            let number = handed.give(descriptor.0.try_clone().map_err(start_error)?);
            let (place, number) = (format!("{{fd{index}}}"), number.to_string());
            words.iter_mut().for_each(|word| *word = word.replace(&place, &number));
        }
        command.args(words);
        let console = handed.give_path(console.file().try_clone().map_err(start_error)?);
        command
            .args(["-chardev", &format!("file,id=console,path={console}")])
            .args(["-serial", "chardev:console"]);
        command
            .args(["-chardev", &format!("socket,id=qmp,fd={}", handed.give(theirs))])
            .args(["-mon", "chardev=qmp,mode=control"]);
        let mailbox = handed.give_path(spec.mailbox.file().try_clone().map_err(start_error)?);
        // Nothing else opens it, so it needs no lock.
        let drive = format!("media=disk,format=raw,file.locking=off,file={mailbox}");
        if let MailboxDisk::Virtio(properties) = &spec.options.mailbox {
            let (device, serial) = (board.disk, MailboxDisk::SERIAL);
            command
                .args(["-drive", &format!("if=none,id=mailbox,{drive}")])
                .args(["-device", &format!("{device},drive=mailbox,serial={serial}{properties}")]);
        } else if spec.options.machine.as_deref().is_some_and(|machine| !machine.starts_with("pc"))
        {
            command
                .args(["-device", "isa-ide,id=second,iobase=0x170,iobase2=0x376,irq=15"])
                .args(["-drive", &format!("if=none,id=mailbox,{drive}")])
                .args(["-device", "ide-hd,bus=second.0,unit=0,drive=mailbox"]);
        } else {
            command.args(["-drive", &format!("if=ide,index=2,{drive}")]);
        }
        match start {
            StartFrom::Boot(image) => {
                let initramfs = handed.give_path(spec.initramfs.open()?);
                command.arg("-kernel").arg(image).args(["-initrd", &initramfs]);
                command.args(["-append", &spec.command_line]);
            }
            StartFrom::State(state) => {
                let source = match takes_files(spec.emulator) {
                    true => format!("file:{}", handed.give_path(state)),
                    false => format!("fd:{}", handed.give(state)),
                };
                command.args(["-incoming", &source]);
            }
        }
        if let Some(recorder) = recorder {
            let takes_turns = spec.emulator != Emulator::Tcg { icount: false };
            let words = recorder.plugin(&mut handed, spec.memory_mib, takes_turns);
            command.args(words.map_err(start_error)?);
        }
        // Messages are read here, in one language.
        command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(said.try_clone().map_err(start_error)?);
        let process = ChildProcess::spawn(command, handed).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => board.missing(),
            _ => start_error(e),
        })?;
        Ok((QemuMachine { emulator: spec.emulator, qmp, words: said }, process))
    }

    /// Stops the machine and writes its state to the folder.
    pub(crate) fn save(&mut self, state: &NewState, until: Until<'_>) -> Result<(), Error> {
        let emulator = self.emulator;
        let path = state.path().join(MEMORY);
        let file = File::create_new(&path).map_err(Error::io(&path, "save the machine"))?;
        self.migrate((&path, &file), until).map_err(|problem| Error::Control {
            emulator,
            what: "save the machine",
            problem,
        })
    }

    fn migrate(&mut self, (path, file): (&Path, &File), until: Until<'_>) -> Result<(), String> {
        self.run("stop", json!({}), until)?;
        // The machine is stopped, so there is no need to limit the bandwidth.
        self.run("migrate-set-parameters", json!({"max-bandwidth": 1u64 << 40}), until)?;
        let into = if takes_files(self.emulator) {
            let path = std::path::absolute(path).map_err(|e| e.to_string())?;
            format!("file:{}", path.to_str().ok_or("the path of its state is no text")?)
        } else {
            self.qmp.give_fd("state", file.as_fd(), until).map_err(|e| e.to_string())?;
            "fd:state".to_owned()
        };
        self.run("migrate", json!({"uri": into}), until)?;
        loop {
            let answer = self.run("query-migrate", json!({}), until)?;
            match answer.get("status").and_then(Value::as_str).unwrap_or_default() {
                "completed" => return Ok(()),
                "failed" | "cancelled" => {
                    let why = answer.get("error-desc").and_then(Value::as_str);
                    let why = why.unwrap_or("no reason given; is the file system full?");
                    return Err(format!("the transfer failed: {why}"));
                }
                _ => until
                    .sleep(Duration::from_millis(5))
                    .map_err(|e| format!("waiting for the transfer: {e}"))?,
            }
        }
    }

    /// Waits until a restored machine runs.
    pub(crate) fn resumed(&mut self, until: Until<'_>) -> Result<(), String> {
        loop {
            let answer = match self.run("query-status", json!({}), until) {
                Ok(answer) => answer,
                Err(problem) => return Err(self.last_words().unwrap_or(problem)),
            };
            match answer.get("status").and_then(Value::as_str).unwrap_or_default() {
                "inmigrate" => until
                    .sleep(Duration::from_millis(2))
                    .map_err(|e| format!("waiting for QEMU to restore it: {e}"))?,
                // It was stopped to be saved, and is restored stopped.
                "paused" => return self.run("cont", json!({}), until).map(drop),
                // It may have powered off already.
                "running" | "shutdown" => return Ok(()),
                status => return Err(format!("QEMU did not resume it (it is {status:?})")),
            }
        }
    }

    /// Runs a command with the rest of the machine's time as its timeout: a busy computer can be slow.
    fn run(&mut self, command: &str, arguments: Value, until: Until<'_>) -> Result<Value, String> {
        self.qmp.run_until(command, arguments, until).map_err(|e| e.to_string())
    }

    /// The registers of its processors, as QEMU prints them.
    pub(crate) fn registers(&mut self, until: Until<'_>) -> Result<String, String> {
        let command = json!({"command-line": "info registers -a"});
        let answer = self.run("human-monitor-command", command, until)?;
        Ok(answer.as_str().unwrap_or_default().replace('\r', ""))
    }

    /// The thread of each vCPU, in order.
    pub(crate) fn vcpu_threads(&mut self, until: Until<'_>) -> Result<Vec<u32>, String> {
        let answer = self.run("query-cpus-fast", json!({}), until)?;
        let cpus = answer.as_array().cloned().unwrap_or_default();
        let mut threads: Vec<(u64, u32)> = cpus
            .iter()
            .filter_map(|cpu| {
                let number = cpu.get("cpu-index")?.as_u64()?;
                Some((number, u32::try_from(cpu.get("thread-id")?.as_u64()?).ok()?))
            })
            .collect();
        threads.sort_unstable();
        Ok(threads.into_iter().map(|(_, thread)| thread).collect())
    }

    /// Why it ended.
    pub(crate) fn epitaph(&mut self) -> Option<String> {
        let reason = self.qmp.shutdown().map(|reason| match reason {
            "guest-shutdown" => "the guest powered off".to_owned(),
            "guest-reset" => "the guest reset itself (a reboot, a panic or a triple fault)".into(),
            other => format!("QEMU shut down ({other})"),
        });
        reason.or_else(|| self.last_words().map(|words| format!("QEMU says: {words}")))
    }

    fn last_words(&self) -> Option<String> {
        let length = self.words.metadata().ok()?.len().min(64 << 10);
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.words.read_exact_at(&mut bytes, 0).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
        let said = line.strip_prefix(board(self.emulator).program);
        Some(said.and_then(|said| said.strip_prefix(": ")).unwrap_or(line).to_owned())
    }
}

/// Whether the installed QEMU migrates to files by their names, as 11 must be told to; 8.2 was the first that can.
fn takes_files(emulator: Emulator) -> bool {
    is_since((9, 1), &crate::version(emulator).unwrap_or_default())
}

/// Whether a version is this one or a later one.
fn is_since(least: (u32, u32), version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|number| number.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|found| found >= least)
}

/// The version of an installed QEMU whose plugins are not known to count the instructions of several vCPUs: 11.1 faulted in the code that counts, 9 and 10 were
/// not tried. Before 9 there was one counter.
pub fn counts_one_vcpu(emulator: Emulator) -> Option<String> {
    crate::version(emulator).filter(|version| is_since((9, 0), version))
}

/// The arguments of a machine, without those for kernel, console, control and mailbox.
pub fn arguments(
    emulator: Emulator,
    cpus: u32,
    memory_mib: u32,
    options: &QemuOptions,
) -> Vec<String> {
    let words = ["-no-user-config", "-nodefaults", "-display", "none", "-no-reboot", "-machine"];
    let mut arguments: Vec<String> = words.map(str::to_owned).to_vec();
    arguments.push(options.machine.clone().unwrap_or_else(|| board(emulator).machine.to_owned()));
    arguments.extend(accelerator(emulator).into_iter().map(str::to_owned));
    if let (Some(cpu), Some(last)) = (&options.cpu, arguments.last_mut()) {
        // The accelerator's arguments end with the processor.
        last.clone_from(cpu);
    }
    let size =
        [String::from("-smp"), cpus.to_string(), String::from("-m"), format!("{memory_mib}M")];
    arguments.extend(size);
    if let Some(firmware) = &options.firmware {
        arguments.extend(["-bios".to_owned(), firmware.display().to_string()]);
    }
    arguments.extend(options.arguments.iter().cloned());
    arguments
}

/// The options that make a machine that of this emulator; the last is the processor.
pub(crate) fn accelerator(emulator: Emulator) -> Vec<&'static str> {
    // One instruction is one nanosecond of the machine's time, and idle time is skipped. Random numbers and the date are the
    // same in each boot, so that two boots of a kernel are alike.
    const COUNTED: &[&str] = &[
        "-seed",
        "1",
        "-rtc",
        "base=2026-01-01,clock=vm",
        "-accel",
        "tcg,thread=single",
        "-icount",
        "shift=0,sleep=off",
    ];
    let (accelerator, cpu) = match emulator {
        Emulator::Tcg { icount: true } => (COUNTED, CPU),
        Emulator::TcgArm => (COUNTED, CPU_ARM),
        Emulator::Tcg { icount: false } => (&["-accel", "tcg,thread=multi"][..], CPU),
        Emulator::Kvm | Emulator::Bochs { .. } => (&["-accel", "kvm"][..], "host"),
    };
    [accelerator, &["-cpu", cpu]].concat()
}

/// Whether this computer has hardware virtualization that KVM can use.
pub(crate) fn check_kvm() -> Result<(), Error> {
    let unsupported = |reason: String| Err(Error::Unsupported { emulator: Emulator::Kvm, reason });
    let path = Path::new("/proc/cpuinfo");
    let info = std::fs::read_to_string(path).map_err(Error::io(path, "read"))?;
    let flags = info.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let device = Path::new("/dev/kvm");
    if !flags.split_whitespace().any(|flag| flag == "svm" || flag == "vmx") {
        let found = match device.exists() {
            true => {
                "/dev/kvm exists, but the processor has neither svm nor vmx, so it is not hardware KVM"
            }
            false => "the processor offers neither svm nor vmx",
        };
        return unsupported(format!("{found}; use the host amd or intel, which are emulated"));
    }
    let opened = File::options().read(true).write(true).open(device);
    match opened {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            unsupported("/dev/kvm is missing; load kvm-amd or kvm-intel".to_owned())
        }
        Err(e) => unsupported(format!("/dev/kvm does not open ({e}); join the group kvm")),
    }
}

#[cfg(test)]
mod tests {
    use super::is_since;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        for (version, expected) in [
            ("7.2.22", false),
            ("8.2.0", false),
            ("9.0.4", false),
            ("9.1.0", true),
            ("10.0.13", true),
            ("11.1.3", true),
            ("", false),
            ("x", false),
        ] {
            assert_eq!(is_since((9, 1), version), expected, "{version}");
        }
    }
}
