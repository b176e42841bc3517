//! A VM of a category: its kernel and initramfs, and communication with its agent through the mailbox.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vmtax_guest::job::{JobAnswer, JobRequest};
use vmtax_guest::order::{decode, encode};
use vmtax_lab::Conversation;
use vmtax_machine::cpio::{self, ArchiveEntry};
use vmtax_machine::kernel::Kernel;
use vmtax_machine::programs::{self, FilesByPath};
use vmtax_machine::{
    Emulator, Initramfs, Machine, Mailbox, QUICK_BOOT, QemuDescriptor, QemuOptions, Stop, VmSpec,
    qemu_arguments,
};

use crate::Error;
use crate::category::{MatrixCategory, SystemFacts, processors};
use crate::error::{at, strange};
use crate::link::NetdevEnd;
use crate::target::{Accel, Target};
use crate::toolchain;
use crate::workload::Workload;

/// Size of the disk of workloads that use one.
const DISK_MIB: usize = 64;
/// Time for an agent's answer beyond its job's own limit: connecting, and ending programs.
const GRACE: Duration = Duration::from_secs(60);
/// Compilers, which have helpers, headers and libraries.
const COMPILERS: [&str; 2] = ["gcc", "cc"];
/// Timeout of booting a VM; emulators on a busy machine are slow.
const BOOT: Duration = Duration::from_secs(300);
/// Modules of every guest.
const MODULES: [&str; 2] = ["virtio_pci", "virtio_net"];
/// For programs that look up users.
const PASSWD: &str = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";

/// Timeout of a request to an agent.
pub(crate) fn time_of(request: &JobRequest) -> Duration {
    match request {
        JobRequest::Facts | JobRequest::Kernels | JobRequest::Network(_) | JobRequest::End => GRACE,
        JobRequest::Do(job) | JobRequest::Serve(job) => GRACE + Duration::from_millis(job.limit_ms),
    }
}

/// Common properties of the VMs of a matrix on this computer.
#[derive(Debug)]
pub struct MatrixVms {
    target: Target,
    kernel: Kernel,
    program: &'static [u8],
    files: FilesByPath,
    console: PathBuf,
    accel: Accel,
    stop: Stop,
    /// The file of the disk, if a workload uses one.
    disk: Option<QemuDescriptor>,
}

/// Everything that VMs have in common besides the target.
#[derive(Clone, Copy, Debug)]
pub struct Purpose<'a> {
    pub program: &'static [u8],
    /// Workloads to run in them.
    pub workloads: &'a [&'a Workload],
    /// The file for consoles.
    pub console: &'a Path,
    /// Hypervisor or emulator.
    pub accel: Accel,
    pub stop: &'a Stop,
}

impl MatrixVms {
    /// Collects the programs that the workloads need.
    pub fn new(target: &Target, kernel: Kernel, purpose: &Purpose<'_>) -> Result<MatrixVms, Error> {
        let files = files(target, purpose.workloads)?;
        let has_disk = purpose.workloads.iter().any(|workload| workload.has_disk());
        let folder = purpose.console.parent().unwrap_or(Path::new("."));
        let disk = if has_disk { Some(disk(folder)?) } else { None };
        Ok(MatrixVms {
            target: target.clone(),
            kernel,
            program: purpose.program,
            files,
            console: purpose.console.to_owned(),
            accel: purpose.accel,
            stop: purpose.stop.clone(),
            disk,
        })
    }

    /// Starts a VM of a category with this end of a network; it is ready when [`Vm::ready`] returns.
    pub(crate) fn boot(
        &self,
        category: &MatrixCategory,
        end: &NetdevEnd,
        console: PathBuf,
    ) -> Result<BenchVm, Error> {
        let (spec, mailbox) = self.spec(category, end, console)?;
        let mut machine = Machine::boot(&spec)?;
        if category.is_pinned() {
            machine.pin(&processors())?;
        }
        Ok(BenchVm::new(category, machine, mailbox))
    }

    /// The facts of a VM of a category, which is started whatever this computer lacks: the error is that of QEMU, or of its KVM.
    pub fn attempt(&self, category: &MatrixCategory) -> Result<SystemFacts, Error> {
        let end = NetdevEnd::default();
        let (spec, mailbox) = self.spec(category, &end, self.console.clone())?;
        let machine = Machine::offer(&spec)?;
        let mut vm = BenchVm::new(category, machine, mailbox);
        vm.ready(&end)?;
        vm.ask(&JobRequest::Facts)?.facts().ok_or_else(|| strange(&vm.name))
    }

    fn spec(
        &self,
        category: &MatrixCategory,
        end: &NetdevEnd,
        console: PathBuf,
    ) -> Result<(VmSpec, Mailbox), Error> {
        let mailbox = Mailbox::new()?;
        let firmware = category.firmware(&self.target, Path::new("/"));
        let firmware = firmware.map_err(|problem| at(&category.name, problem))?;
        let spec = VmSpec {
            emulator: emulator(self.accel),
            kernel: self.kernel.clone(),
            initramfs: Initramfs::Bytes(self.initramfs(category)?.into()),
            command_line: command_line(category),
            memory_mib: self.target.memory,
            cpus: self.target.cpus,
            mailbox: mailbox.clone(),
            console,
            limit: BOOT,
            stop: self.stop.clone(),
            options: category.options(firmware.as_ref(), end, self.disk.as_ref()),
        };
        Ok((spec, mailbox))
    }

    /// What the matrix says of them.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    pub(crate) fn program(&self) -> &'static [u8] {
        self.program
    }

    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// The console file of the VM under test.
    pub(crate) fn console(&self) -> &Path {
        &self.console
    }

    fn initramfs(&self, category: &MatrixCategory) -> Result<Vec<u8>, Error> {
        let disk = self.disk.iter().map(|_| "virtio_blk");
        let mailbox =
            category.has_virtio_mailbox().then_some("virtio_blk").filter(|_| self.disk.is_none());
        let names = MODULES.into_iter().chain(disk).chain(mailbox).chain(category.modules());
        let names: Vec<&str> = names.collect();
        let mut modules = self.kernel.modules_for(&names)?;
        modules.iter_mut().for_each(vmtax_machine::kernel::KernelModule::strip_signature);
        let paths: Vec<String> = modules
            .iter()
            .enumerate()
            .map(|(index, module)| format!("modules/{index:02}-{}.ko", module.name))
            .collect();
        let mut entries = vec![
            ArchiveEntry::folder("dev"),
            ArchiveEntry::device("dev/console", 5, 1),
            ArchiveEntry::folder("modules"),
            ArchiveEntry::folder("tmp"),
            ArchiveEntry::file("init", 0o755, self.program),
        ];
        for (path, module) in paths.iter().zip(&modules) {
            entries.push(ArchiveEntry::file(path.clone(), 0o644, &module.bytes));
        }
        entries.extend(programs::entries(&self.files));
        Ok(cpio::archive(&entries)?)
    }
}

/// The programs that workloads need in a VM, their libraries, and files that those read.
pub fn files(target: &Target, workloads: &[&Workload]) -> Result<FilesByPath, Error> {
    let mut files = FilesByPath::new();
    for workload in workloads {
        for program in workload.programs() {
            bring(&mut files, &program)?;
        }
        for path in &workload.brought() {
            let inside = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            if inside.is_dir() {
                toolchain::folder(&mut files, &inside)?;
                continue;
            }
            programs::add(&mut files, &path.display().to_string(), path, &inside)?;
        }
    }
    let most = target.memory / 2;
    if programs::memory_mib(&files) > most {
        let problem = format!(
            "the programs of its workloads need {} MiB of the VM's memory while it boots, and it has {}; raise vm.memory",
            programs::memory_mib(&files) * 2,
            target.memory
        );
        return Err(at("vm", problem));
    }
    for (name, text) in [("etc/passwd", PASSWD), ("etc/group", GROUP)] {
        files.entry(name.to_owned()).or_insert_with(|| text.as_bytes().to_vec());
    }
    Ok(files)
}

/// The file of a disk, with data in it. It has no name, so nothing of it is left when vmtax is killed.
fn disk(folder: &Path) -> Result<QemuDescriptor, Error> {
    const BLOCK: usize = 1 << 20;
    let make = || {
        let mut file = tempfile::tempfile_in(folder)?;
        let block: Vec<u8> = (0..BLOCK).map(|at| (at % 251) as u8).collect();
        (0..DISK_MIB).try_for_each(|_| file.write_all(&block))?;
        file.sync_all()?;
        std::io::Result::Ok(std::os::fd::OwnedFd::from(file).into())
    };
    make().map_err(|e| at("vm", format!("{}: a disk cannot be made there: {e}", folder.display())))
}

/// Adds a program under the name that commands use.
fn bring(files: &mut FilesByPath, program: &str) -> Result<(), Error> {
    let named = Path::new(program);
    let problem = |problem: &str| vmtax_machine::Error::Program {
        program: program.to_owned(),
        problem: problem.to_owned(),
    };
    let path = programs::find(program)
        .ok_or_else(|| problem("is not installed here; install it, or give its path"))?;
    let inside = if named.is_absolute() {
        named.to_owned()
    } else {
        Path::new("/usr/bin").join(named.file_name().unwrap_or_default())
    };
    if !programs::add(files, program, &path, &inside)? {
        return Err(
            problem("is a script; name its interpreter first, and `bring` the script").into()
        );
    }
    if COMPILERS.iter().any(|name| inside.ends_with(name)) {
        toolchain::add(files, program, &path)?;
    }
    Ok(())
}

/// The emulator of the VMs, or of their host.
pub fn emulator(accel: Accel) -> Emulator {
    match accel {
        Accel::Kvm => Emulator::Kvm,
        Accel::Tcg => Emulator::Tcg { icount: false },
        Accel::Amd => Emulator::Tcg { icount: true },
        Accel::Intel => Emulator::Bochs { svm: false },
        Accel::Arm => Emulator::TcgArm,
    }
}

/// The guest's command line.
pub fn command_line(category: &MatrixCategory) -> String {
    let mut line = format!("console=ttyS0,115200 {QUICK_BOOT} panic=-1 vmtax.role=agent");
    for word in category.guest_words() {
        line.push(' ');
        line.push_str(&word);
    }
    line
}

/// QEMU's arguments for a category, without those for kernel, console, control and mailbox.
pub(crate) fn arguments(
    target: &Target,
    accel: Accel,
    category: &MatrixCategory,
    (end, disk): (&NetdevEnd, bool),
) -> Vec<String> {
    // A descriptor of this process stands for the file, which is not made to be shown.
    let disk = std::fs::File::open("/dev/null").ok().filter(|_| disk);
    let disk = disk.map(|file| QemuDescriptor::from(std::os::fd::OwnedFd::from(file)));
    // Missing firmware is reported separately.
    let firmware = category.firmware(target, Path::new("/")).unwrap_or_default();
    let options: QemuOptions = category.options(firmware.as_ref(), end, disk.as_ref());
    qemu_arguments(emulator(accel), target.cpus, target.memory, &options)
}

/// A running VM. It ends when dropped.
#[derive(Debug)]
pub struct BenchVm {
    name: String,
    machine: Machine,
    conversation: Conversation,
}

impl BenchVm {
    fn new(category: &MatrixCategory, machine: Machine, mailbox: Mailbox) -> BenchVm {
        let conversation = Conversation::new(mailbox);
        BenchVm { name: category.name.clone(), machine, conversation }
    }

    /// The process that runs it.
    pub fn process(&self) -> u32 {
        self.machine.process()
    }

    /// Waits until it takes requests, and gives its network card an address, if it is to have one.
    pub(crate) fn ready(&mut self, end: &NetdevEnd) -> Result<(), Error> {
        self.conversation.ready(&mut self.machine).map_err(|error| of_vm(&self.name, error))?;
        let Some(address) = end.address else { return Ok(()) };
        match self.ask(&JobRequest::Network(address))?.outcome() {
            Some(outcome) if outcome.problem.is_empty() => Ok(()),
            Some(outcome) => Err(at(&self.name, outcome.problem)),
            None => Err(strange(&self.name)),
        }
    }

    pub(crate) fn ask(&mut self, request: &JobRequest) -> Result<JobAnswer, Error> {
        self.machine.allow(time_of(request));
        let answer = self.conversation.ask(&mut self.machine, &encode(request));
        let bytes = answer.map_err(|error| of_vm(&self.name, error))?;
        self::answer(&bytes, &self.name)
    }
}

/// The agent's answer from a place.
pub(crate) fn answer(bytes: &[u8], place: &str) -> Result<JobAnswer, Error> {
    let problem = "it is in the format of another version of vmtax".to_owned();
    decode(bytes).ok_or_else(|| Error::Answer { place: place.to_owned(), problem })
}

fn of_vm(name: &str, error: vmtax_lab::Error) -> Error {
    use vmtax_lab::Error as Lab;
    match error {
        Lab::Machine(error) => Error::Machine(error),
        Lab::Report { problem } => Error::Answer { place: name.to_owned(), problem },
        Lab::Guest { message } => at(name, message),
        other => at(name, other.to_string()),
    }
}
