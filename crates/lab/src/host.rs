//! Boots an emulated host, up to the point where it waits for orders.
//!
//! Booting takes seconds to minutes, so the state of the waiting host is saved, and the next run with the same kernel, programs and options
//! continues from it.

mod kinds;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use vmtax_guest::layout;
use vmtax_guest::order::{LifeStep, LinuxWork, Operation, Order};
use vmtax_machine::cpio::{self, ArchiveEntry};
use vmtax_machine::kernel::{Architecture, Kernel};
use vmtax_machine::programs::{self, FilesByPath};
use vmtax_machine::{
    EXPEDITED, Emulator, Initramfs, Machine, MachineRecorder, Mailbox, Marks, QemuOptions, Stop,
    VmSpec,
};

pub use kinds::{Ability, HostKind};

use crate::conversation::Conversation;
use crate::exceptions::{self, ExceptionReading};
use crate::paging::Frames;
use crate::{Error, elf, observer};

/// The program inside, built with this crate and compressed.
const PACKED: &[u8] = include_bytes!(env!("VMTAX_GUEST_PACKED"));
/// That of the arm64 host; empty where the compiler had no standard library for it.
const PACKED_ARM: &[u8] = include_bytes!(env!("VMTAX_GUEST_ARM_PACKED"));

/// The program that runs payloads and jobs on this computer. Empty on arm64 in a build without it.
pub fn guest_program() -> &'static [u8] {
    match cfg!(target_arch = "aarch64") {
        true => program_of(HostKind::Arm).unwrap_or_default(),
        false => x86_program(),
    }
}

fn x86_program() -> &'static [u8] {
    static PROGRAM: LazyLock<Vec<u8>> =
        LazyLock::new(|| programs::unpack(PACKED).expect("the build script compressed it"));
    &PROGRAM
}

/// The program inside a host.
pub(crate) fn program_of(host: HostKind) -> Result<&'static [u8], Error> {
    static ARM: LazyLock<Vec<u8>> =
        LazyLock::new(|| programs::unpack(PACKED_ARM).expect("the build script compressed it"));
    match host.architecture() {
        Architecture::Amd64 => Ok(x86_program()),
        Architecture::Arm64 if PACKED_ARM.is_empty() => Err(Error::NotBuilt),
        Architecture::Arm64 => Ok(&ARM),
    }
}

/// Options of the kernels of host and L1.
pub const OF_ALL_KERNELS: [&str; 3] = ["mitigations", "randomize_kstack_offset", "preempt"];

/// An option of the host's kernel alone: what it believes of its TSC, kHz. KVM takes VMX's preemption timer if the timer cannot end within 10 s (`hardware_setup` in
/// arch/x86/kvm/vmx/vmx.c): with Bochs's, which counts each tick of the TSC, below 2^32 / 10 of them a second.
pub const TSC_KHZ: &str = "tsc_early_khz";

/// An option of arm64's kernels: how KVM runs. With L1 it is L1's.
const MODE_OF_KVM: &str = "kvm-arm.mode=";

/// The mode of pKVM.
pub const PROTECTED_MODE: &str = "kvm-arm.mode=protected";

/// Words of a host of several processors whose instructions are counted: its program starts the others. Linux 5.10 and 6.1 hang where they do it themselves.
pub(crate) const ONE_BY_ONE: &str = " maxcpus=1 vmtax.online";

/// A word for the program inside: VMs are protected.
pub(crate) const PROTECTED: &str = "vmtax.protected";

/// The wall-clock limit of a host for which none is given.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Configuration of a host.
#[derive(Clone, Debug)]
pub struct HostSetup {
    /// The host.
    pub host: HostKind,
    /// Its kernel, and that of L1 and of other Linux guests.
    pub kernel: Kernel,
    /// The image of theirs, if it is another one. It has all that they need, as they load no modules then.
    pub guest_kernel: Option<PathBuf>,
    /// Also boot L1, a Linux guest with KVM.
    pub nested: bool,
    /// Module parameters as on a kernel command line: `kvm_intel.enable_shadow_vmcs=0`; one of [`OF_ALL_KERNELS`], which L1's kernel gets too; or [`TSC_KHZ`].
    pub options: Vec<String>,
    /// Operations run in protected VMs of pKVM. Its option `kvm-arm.mode=protected` is among [`HostSetup::options`].
    pub protected: bool,
    /// A program of this computer that runs beside the suite, and its arguments.
    pub observer: Vec<String>,
    /// Files and programs that the observer needs.
    pub brought: Vec<PathBuf>,
    /// Processors. With more than one, cycles are not instructions, so there are no path lengths, and only an observer's recording is kept; but of steps
    /// of a VM's life and first accesses to memory, during which instructions of all processors are counted.
    pub processors: u32,
    /// Additional memory beyond the needs of the host and the observer's files, MiB.
    pub memory_mib: u32,
    /// Where operations whose frames are scattered over 24 GiB by their names have them instead.
    pub frames: Option<Frames>,
    /// Folder for saved states.
    pub cache: PathBuf,
    /// Boot again, and replace the saved state.
    pub fresh: bool,
    /// Record the instructions that it executes, for call trees.
    pub profile: bool,
    /// Files with debug information of its kernel and modules, for source lines in call trees.
    pub debug_info: Vec<PathBuf>,
    /// Functions whose instructions call trees have.
    pub annotate: Vec<String>,
    /// The file for the console.
    pub console: PathBuf,
    /// Wall-clock limit.
    pub limit: Duration,
    /// Probes that name the VMCS fields of VMREADs and VMWRITEs. Without, the recording does not name them.
    pub vmcs_probes: Option<VmcsProbes>,
}

/// Makes definitions for the kernel's `kprobe_events` of the module `kvm_intel`, an ELF file.
pub type VmcsProbes = fn(&[u8]) -> Result<Vec<String>, String>;

/// How a host came up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostStart {
    /// From a saved state.
    pub restored: bool,
    /// From the start to ready, restoring included.
    pub time: Duration,
    /// The emulator with its version: `QEMU TCG 7.2.22 (icount)`.
    pub emulator: String,
    /// Notes: why its state could not be saved or used, or why it could not be fully observed.
    pub notes: Vec<String>,
}

/// A host that waits for an order.
pub(crate) struct Ready {
    pub(crate) machine: Machine,
    pub(crate) conversation: Conversation,
    pub(crate) start: HostStart,
    /// The recorder of its instructions, if requested.
    pub(crate) recorded: Option<HostRecord>,
    /// The reader of its exceptions, if it has code at EL2 that handles exits by itself.
    pub(crate) exceptions: Option<ExceptionReading>,
}

/// The record of a running host.
#[derive(Debug)]
pub(crate) struct HostRecord {
    pub(crate) record: File,
    /// The functions of its kernels as reported by the host; empty if an observer will run.
    pub(crate) kernels: Vec<u8>,
    /// Theirs.
    pub(crate) architecture: Architecture,
}

impl HostSetup {
    /// A host with one processor, without nesting, options, observer and call trees, whose saved state may be used.
    pub fn plain(host: HostKind, kernel: Kernel, cache: PathBuf, console: PathBuf) -> HostSetup {
        HostSetup {
            host,
            kernel,
            guest_kernel: None,
            nested: false,
            options: Vec::new(),
            protected: false,
            observer: Vec::new(),
            brought: Vec::new(),
            processors: 1,
            memory_mib: 0,
            frames: None,
            cache,
            fresh: false,
            profile: false,
            debug_info: Vec::new(),
            annotate: Vec::new(),
            console,
            limit: LIMIT,
            vmcs_probes: None,
        }
    }

    /// The same, whose VMs start later, by an amount that depends on how many attempts at this were lost.
    pub fn later(&self, lost: usize) -> HostSetup {
        let mut setup = self.clone();
        setup.options.extend(later(lost));
        setup
    }

    /// With counted instructions a processor runs until it halts, spins with PAUSE, or a timer expires, which steps and accesses to memory do not notice.
    fn emulator(&self, has_steps: bool) -> Emulator {
        match self.host.emulator() {
            Emulator::Tcg { .. } if self.processors > 1 => Emulator::Tcg { icount: has_steps },
            emulator => emulator,
        }
    }

    /// Boots or restores it. A restored host has the order from its first moment on; it is executed by [`Conversation::execute`].
    pub(crate) fn start(&self, order: &Order, progress: &dyn Fn(&str)) -> Result<Ready, Error> {
        let is_of_memory = |one: &Operation| one.touch.is_some_and(|touch| touch.counted);
        let waits = order.operations.iter().any(|operation| {
            operation.step.is_some() || (self.processors > 1 && is_of_memory(operation))
        });
        let linux = linux_word(order);
        let boots = order.operations.iter().any(|one| one.step == Some(LifeStep::BootLinux));
        let programs = Programs::of(self, (waits, boots, linux))?;
        let nests = self.nested || order.operations.iter().any(|operation| operation.hypervisor);
        let mut spec = self.spec((Mailbox::new()?, waits, nests), &programs);
        if let Some(word) = linux {
            spec.command_line.push_str(&format!(" {word} vmtax.buffer=49152"));
            spec.memory_mib += LINUX_MIB;
        }
        spec.memory_mib += probed_mib(order);
        if boots {
            spec.memory_mib += BOOTED_MIB;
            spec.command_line.push_str(" vmtax.buffer=49152");
        }
        let mut exceptions = None;
        if self.has_hidden_exits() {
            let (reading, into) = ExceptionReading::start()
                .map_err(Error::io(Path::new("the log of exceptions"), "make a pipe"))?;
            spec.options.arguments = exceptions::ARGUMENTS.map(str::to_owned).to_vec();
            spec.options.descriptors = vec![into.into()];
            exceptions = Some(reading);
        }
        let what = if self.nested { "the host and its guest" } else { "the host" };
        // L1's kernel is made of the image, independent of the name.
        let named = programs.archive(&[])?;
        let archive = || {
            let has_inner = self.nested || boots || linux.is_some();
            let kernel = match (&self.guest_kernel, has_inner) {
                (_, false) => Vec::new(),
                (Some(image), true) => {
                    std::fs::read(image).map_err(Error::io(image, "read the kernel"))?
                }
                (None, true) => inner_kernel(self.host, &self.kernel)?,
            };
            programs.archive(&kernel)
        };
        let progress = |doing: &str| progress(&format!("{doing} {what}"));
        let is_simulated = order.operations.iter().any(|operation| operation.paging.is_some());
        if is_simulated && self.profile {
            return Err(Error::Profiled);
        }
        if self.profile {
            check_recorded(spec.emulator, self.processors)?;
        }
        let recorded = match (self.profile, is_simulated) {
            (false, false) => None,
            (_, true) => Some(What::Accesses { of_processes: linux == Some(PROCESSES) }),
            (true, false) => Some(What::Code),
        };
        let booting = Booting {
            spec: &spec,
            cache: &self.cache,
            fresh: self.fresh,
            recorded,
            observed: !self.observer.is_empty(),
            order: Some(order),
            has_guests: self.nested || boots || linux.is_some(),
        };
        Ok(Ready { exceptions, ..booting.start((&named, &archive), &progress)? })
    }

    /// What its VMs are, where there are two kinds.
    pub fn vms(&self) -> &'static str {
        match (self.protected, self.has_hidden_exits()) {
            (true, _) => "protected",
            (false, true) => "ordinary",
            (false, false) => "",
        }
    }

    /// Whether code at EL2 may handle exits that KVM's tracepoints in the host's kernel do not see: pKVM's does.
    fn has_hidden_exits(&self) -> bool {
        let is_protected = |option: &String| option == PROTECTED_MODE;
        self.host == HostKind::Arm && !self.nested && self.options.iter().any(is_protected)
    }

    /// Whether an option is L1's alone: a host of arm64 that nests has no other mode of KVM.
    fn is_inner(&self, option: &str) -> bool {
        self.nested && option.starts_with(MODE_OF_KVM)
    }

    /// The spec of the machine, without programs. Where `waits`, grace periods take as long as they do without the lab; where `nests`, VMs can have
    /// hypervisors.
    fn spec(&self, (mailbox, waits, nests): (Mailbox, bool, bool), programs: &Programs) -> VmSpec {
        let line = waiting(self.host.command_line(), waits);
        let mut command_line = format!("{line} panic=-1 vmtax.role=host");
        if waits && self.processors > 1 {
            command_line.push_str(ONE_BY_ONE);
        }
        if self.nested {
            command_line.push_str(" vmtax.nested vmtax.buffer=49152");
        }
        if nests && self.host.architecture() == Architecture::Arm64 {
            command_line.push_str(&format!(" {MODE_OF_KVM}nested"));
        }
        if self.protected {
            command_line.push_str(&format!(" {PROTECTED}"));
        }
        for option in self.options.iter().filter(|option| !self.is_inner(option)) {
            command_line.push(' ');
            command_line.push_str(option);
            if option.starts_with(TSC_KHZ) {
                // No other clock is compared with it.
                command_line.push_str(" tsc=reliable");
            }
        }
        VmSpec {
            emulator: self.emulator(waits),
            kernel: self.kernel.clone(),
            initramfs: Initramfs::Bytes(Arc::default()),
            command_line,
            memory_mib: if self.nested { 1024 } else { 512 }
                + programs::memory_mib(&programs.files)
                + self.memory_mib,
            cpus: self.processors,
            mailbox,
            console: self.console.clone(),
            limit: self.limit,
            stop: Stop::default(),
            options: QemuOptions { mailbox: self.host.mailbox(), ..QemuOptions::default() },
        }
    }
}

/// Fails if plugins of the installed QEMU cannot count the instructions of this number of processors.
pub fn check_recorded(emulator: Emulator, processors: u32) -> Result<(), Error> {
    vmtax_machine::counts_one_vcpu(emulator)
        .filter(|_| processors > 1)
        .map_or(Ok(()), |version| Err(Error::Several { version }))
}

/// The option of a host that starts its VMs later. With counted instructions a machine does the same each time, the defects of its emulator included; this
/// moves the ticks of a guest against those of its host, which are 4 ms apart in both.
pub(crate) fn later(lost: usize) -> Option<String> {
    /// No part of 4 ms.
    const LATER_US: usize = 1_300;
    (lost > 0).then(|| format!("vmtax.later={}", lost * LATER_US))
}

/// As below, of a guest that has a disk and a network card besides.
const WITH_DEVICES: &str = "vmtax.working vmtax.devices";
/// Of a guest for each program whose accesses are recorded.
const PROCESSES: &str = "vmtax.processes";
/// Modules of the devices' drivers in the guest, and of their other end.
const DRIVERS: [&str; 2] = ["virtio_net", "tun"];

/// The word by which the program inside is told that a Linux guest with counters, or one that runs workloads, carries out operations.
fn linux_word(order: &Order) -> Option<&'static str> {
    let words = order.operations.iter().filter_map(|one| one.linux).map(|work| match work {
        LinuxWork::Perf(_) => "vmtax.counting",
        LinuxWork::Workload(_) => "vmtax.working",
        LinuxWork::Device(_) => WITH_DEVICES,
        LinuxWork::Process => PROCESSES,
    });
    // They are of one kind, as a guest has one.
    words.max()
}

/// Memory for a Linux guest that carries out operations, MiB.
const LINUX_MIB: u32 = 512;

/// A command line; where `waits`, without short grace periods.
fn waiting(line: String, waits: bool) -> String {
    if waits { line.replace(EXPEDITED, "") } else { line }
}

/// Memory for chains of loads, which have more than all others, MiB.
fn probed_mib(order: &Order) -> u32 {
    let probed = order.operations.iter().filter_map(|operation| operation.paging);
    let bytes = probed.filter(|paging| paging.probed.is_some()).map(|paging| paging.bytes).max();
    // A whole number of pieces, so that a saved state serves several orders.
    bytes.unwrap_or(0).next_multiple_of(256 << 20) >> 20
}

/// Memory for a Linux guest that boots, and for its files, MiB.
const BOOTED_MIB: u32 = 512;

/// Files of a host, without L1's kernel.
struct Programs {
    /// The first one.
    init: &'static [u8],
    modules: Vec<(String, Vec<u8>)>,
    /// L1 has another kernel, which does not take these modules, or no KVM.
    lacks_modules: bool,
    /// The observer's.
    files: FilesByPath,
    /// Of L1, if there is one.
    inner_command_line: Option<String>,
}

impl Programs {
    /// Of a host whose operations wait, are the boot of a guest, or are of a Linux guest with this word.
    fn of(
        setup: &HostSetup,
        (waits, boots, linux): (bool, bool, Option<&str>),
    ) -> Result<Programs, Error> {
        let init = program_of(setup.host)?;
        let drivers = if linux == Some(WITH_DEVICES) { &DRIVERS[..] } else { &[] };
        let modules = modules(&setup.kernel, &[setup.host.modules(), drivers].concat())?;
        let mut files =
            observer::files(&setup.observer, &setup.brought, setup.host.architecture())?;
        if !setup.observer.is_empty() {
            // The module's path in a distribution, for programs that read it.
            let release = &setup.kernel.release;
            let found = modules.iter().filter(|(path, _)| path.ends_with("-kvm_intel.ko"));
            files.extend(found.map(|(_, bytes)| {
                (format!("lib/modules/{release}/kernel/arch/x86/kvm/kvm-intel.ko"), bytes.clone())
            }));
        }
        // The kernel of L1 has the mitigations of the host's; parameters of modules are the host's alone.
        let is_of_all = |option: &&String| {
            let is_of_all =
                option.split_once('=').is_some_and(|(name, _)| OF_ALL_KERNELS.contains(&name));
            is_of_all || setup.is_inner(option)
        };
        let own = setup.options.iter().filter(is_of_all);
        // It stands still while its host's steps wait, more than a minute, which Linux 7.3 takes for a processor that is stuck.
        let is_of_processes = linux == Some(PROCESSES);
        let role = match (boots, waits) {
            _ if is_of_processes => "vmtax.role=process",
            // What it writes to the serial port would be most of its exits.
            (true, _) => "vmtax.role=boot loglevel=1",
            (false, true) => "vmtax.role=guest nosoftlockup",
            (false, false) => "vmtax.role=guest",
        };
        // An idle Linux without a tick advances its clock in an interrupt before it ends that, which QEMU's TCG may deliver twice: it would wait for its clock's lock.
        let keeps_tick = setup.host == HostKind::Amd && (setup.nested || is_of_processes);
        let role = if keeps_tick { format!("{role} nohz=off") } else { role.to_owned() };
        let role = own.fold(role, |line, option| format!("{line} {option}"));
        let own = linux.into_iter().chain(linux.and(setup.protected.then_some(PROTECTED)));
        let mut role = own.fold(role, |line, word| format!("{line} {word}"));
        if let Some(image) = &setup.guest_kernel {
            // The saved state of a host has a kernel of its guest in it.
            let bytes = std::fs::read(image).map_err(Error::io(image, "read the kernel"))?;
            let digest = Sha256::digest(&bytes);
            let digest: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
            role.push_str(&format!(" vmtax.kernel={digest}"));
        }
        let inner_command_line = (setup.nested || boots || linux.is_some())
            .then(|| waiting(setup.host.inner_command_line(&role), waits));
        let lacks_modules = setup.guest_kernel.is_some() || is_of_processes;
        Ok(Programs { init, modules, lacks_modules, files, inner_command_line })
    }

    /// The initramfs of these files, with this kernel for L1.
    fn archive(&self, kernel: &[u8]) -> Result<Vec<u8>, Error> {
        let mut entries = base_of(self.init, &self.modules);
        let inner = match self.lacks_modules {
            true => {
                let mut entries = base_of(self.init, &[]);
                // Without a console this is what a program has for its first three files.
                entries.push(ArchiveEntry::device("dev/null", 1, 3));
                cpio::archive(&entries)?
            }
            false => cpio::archive(&entries)?,
        };
        if let Some(command_line) = &self.inner_command_line {
            entries.push(ArchiveEntry::folder("l1"));
            entries.push(ArchiveEntry::file("l1/vmlinux", 0o644, kernel));
            entries.push(ArchiveEntry::file("l1/initramfs", 0o644, &inner));
            entries.push(ArchiveEntry::file("l1/command_line", 0o644, command_line.as_bytes()));
        }
        entries.extend(programs::entries(&self.files));
        Ok(cpio::archive(&entries)?)
    }
}

/// The file of a saved state with the functions of the host's kernels.
const KERNELS: &str = "kernels";

/// The ports of [`layout`] that a recorder knows.
pub(crate) const MARKS: Marks = Marks {
    on: layout::PREPARE,
    off: layout::DONE,
    end: layout::UNRECORDED,
    range: (layout::begin(0), layout::end(layout::OPERATIONS_MOST - 1)),
};

/// What a recorder in the emulator records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Instructions, for call trees.
    Code,
    /// Accesses to memory, of guests or of processes in them.
    Accesses { of_processes: bool },
}

/// A host to boot or restore.
pub(crate) struct Booting<'a> {
    pub(crate) spec: &'a VmSpec,
    pub(crate) cache: &'a Path,
    pub(crate) fresh: bool,
    /// What is recorded of what it executes.
    pub(crate) recorded: Option<What>,
    /// An observer may load code, so the functions are requested after it has started.
    pub(crate) observed: bool,
    /// The order that a restored host gets before it goes on.
    pub(crate) order: Option<&'a Order>,
    /// Whether Linux guests run there, which a defect of QEMU's TCG can leave stuck (docs/measured/lab-method.md).
    pub(crate) has_guests: bool,
}

impl Booting<'_> {
    /// Boots it, or restores it from the cache if there is a state and `fresh` is not set.
    ///
    /// A restored host has its programs in memory, so the initramfs is only made for a boot. The state is named after `named`, the inputs of the
    /// initramfs.
    pub(crate) fn start(
        &self,
        (named, initramfs): (&[u8], &dyn Fn() -> Result<Vec<u8>, Error>),
        progress: &dyn Fn(&str),
    ) -> Result<Ready, Error> {
        let started = Instant::now();
        let spec = self.spec;
        let emulator = spec.emulator.named(vmtax_machine::version(spec.emulator).as_deref());
        let state = self.cache.join(STATES).join(key(spec, &emulator, named)?);
        let mut conversation = Conversation::new(spec.mailbox.clone());
        let mut notes = Vec::new();
        if !self.fresh && state.exists() {
            progress("restoring");
            match self.restore(&state, &mut conversation) {
                Ok((machine, recorded)) => {
                    used(&state);
                    let start =
                        HostStart { restored: true, time: started.elapsed(), emulator, notes };
                    return Ok(Ready { machine, conversation, start, recorded, exceptions: None });
                }
                Err(error @ Error::Machine(vmtax_machine::Error::State { .. })) => {
                    notes.push(format!("{error}; booted afresh"));
                    conversation.withdraw()?;
                }
                Err(error) => return Err(error),
            }
        }
        progress("booting");
        let boot = VmSpec {
            initramfs: Initramfs::Bytes(initramfs()?.into()),
            // A separate file, or the console from before the save would be lost.
            console: boot_console(&spec.console),
            ..spec.clone()
        };
        let booted =
            |notes| HostStart { restored: false, time: started.elapsed(), emulator, notes };
        if spec.emulator == Emulator::TcgArm && !sets_its_timer(&spec.kernel.release) {
            notes.push(format!("the booted host was not saved: {NOT_SET}"));
            let (machine, recorded) = self.boot_unsaved(&boot, &mut conversation)?;
            return Ok(Ready {
                machine,
                conversation,
                start: booted(notes),
                recorded,
                exceptions: None,
            });
        }
        let mut machine = self.watched(Machine::boot(&boot)?);
        conversation.ready(&mut machine)?;
        if let Err(reason) = vmtax_machine::can_save(spec.emulator) {
            if self.recorded.is_some() {
                return Err(reason.into());
            }
            notes.push(format!("the booted host was not saved: {reason}"));
            return Ok(Ready {
                machine,
                conversation,
                start: booted(notes),
                recorded: None,
                exceptions: None,
            });
        }
        progress("saving");
        machine.save(&state)?;
        vmtax_machine::prune_states(&self.cache.join(STATES), STATES_MOST);
        let (machine, recorded) = self.restore(&state, &mut conversation)?;
        Ok(Ready { machine, conversation, start: booted(notes), recorded, exceptions: None })
    }

    fn restore(
        &self,
        state: &Path,
        conversation: &mut Conversation,
    ) -> Result<(Machine, Option<HostRecord>), Error> {
        let kernels = match self.recorded {
            Some(What::Code) if !self.observed => self.kernels(state)?,
            _ => Vec::new(),
        };
        if let Some(order) = self.order {
            conversation.send_early(order)?;
        }
        let Some(recorded) = self.recorded else {
            return Ok((self.watched(Machine::restore(self.spec, state)?), None));
        };
        let (recorder, record) = self.recorder(recorded)?;
        let machine = self.watched(Machine::restore_recorded(self.spec, state, recorder)?);
        Ok((machine, Some(self.record(record, kernels))))
    }

    /// A recorder of the machine, and where its record is read.
    fn recorder(&self, what: What) -> Result<(MachineRecorder, File), Error> {
        let (recorder, record) = MachineRecorder::new(MARKS)
            .map_err(Error::io(Path::new("the record"), "make a pipe"))?;
        let recorder = match what {
            What::Code => recorder,
            What::Accesses { of_processes } => recorder.of_accesses(of_processes),
        };
        let recorder = match self.architecture() {
            Architecture::Amd64 => recorder,
            Architecture::Arm64 => recorder.with_words(layout::arm::PORT_ZERO),
        };
        Ok((recorder, record))
    }

    fn watched(&self, mut machine: Machine) -> Machine {
        if self.has_guests {
            machine.watch_kernel();
        }
        machine
    }

    fn record(&self, record: File, kernels: Vec<u8>) -> HostRecord {
        HostRecord { record, kernels, architecture: self.architecture() }
    }

    fn architecture(&self) -> Architecture {
        match self.spec.emulator {
            Emulator::TcgArm => Architecture::Arm64,
            Emulator::Tcg { .. } | Emulator::Bochs { .. } | Emulator::Kvm => Architecture::Amd64,
        }
    }

    /// Boots a machine that is not saved. Where it is recorded, another one is asked for its functions before, whose addresses are the same.
    fn boot_unsaved(
        &self,
        boot: &VmSpec,
        conversation: &mut Conversation,
    ) -> Result<(Machine, Option<HostRecord>), Error> {
        let Some(what) = self.recorded else {
            let mut machine = self.watched(Machine::boot(boot)?);
            conversation.ready(&mut machine)?;
            return Ok((machine, None));
        };
        let kernels = match what {
            What::Code if !self.observed => {
                let mut machine = Machine::boot(boot)?;
                let mut asking = Conversation::new(boot.mailbox.clone());
                asking.ready(&mut machine)?;
                functions(&mut asking, machine)?
            }
            _ => Vec::new(),
        };
        self.spec.mailbox.clear()?;
        let (recorder, record) = self.recorder(what)?;
        let mut machine = self.watched(Machine::boot_recorded(boot, recorder)?);
        conversation.ready(&mut machine)?;
        Ok((machine, Some(self.record(record, kernels))))
    }

    /// The functions of the saved host's kernels. They are requested once, from a machine that is not used for measurements.
    fn kernels(&self, state: &Path) -> Result<Vec<u8>, Error> {
        if let Some(kept) = vmtax_machine::kept(state, KERNELS)? {
            return Ok(kept);
        }
        let machine = Machine::restore(self.spec, state)?;
        let kernels = functions(&mut Conversation::new(self.spec.mailbox.clone()), machine)?;
        self.spec.mailbox.clear()?;
        vmtax_machine::keep(state, KERNELS, &kernels)?;
        Ok(kernels)
    }
}

/// Asks a machine for the functions of its kernels, and ends it.
fn functions(conversation: &mut Conversation, mut machine: Machine) -> Result<Vec<u8>, Error> {
    let order = Order { functions: true, ..Order::default() };
    let mut kernels = Vec::new();
    conversation.execute(&mut machine, &order, &mut |told| {
        kernels = told.to_vec();
        Ok(())
    })?;
    Ok(kernels)
}

/// Why a host of arm64 with a newer kernel than [`SETS_ITS_TIMER`] is booted for each run.
const NOT_SET: &str =
    "QEMU's states lack the timer of EL2, which Linux newer than 6.12 does not set anew";
/// The last version whose kernel sets its timer for a time that is over, as the program inside has it do after a restore. 7.3 does not.
const SETS_ITS_TIMER: (u32, u32) = (6, 12);

/// Whether a restored host of arm64 with this kernel goes on.
fn sets_its_timer(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse().ok());
    let version = (numbers.next().flatten(), numbers.next().flatten());
    matches!(version, (Some(major), Some(minor)) if (major, minor) <= SETS_ITS_TIMER)
}

/// The console of the boot of a host whose state is saved then, beside that of what follows.
fn boot_console(console: &Path) -> PathBuf {
    console.with_extension("boot.txt")
}

/// All that a host wrote to its consoles, its boot included where this process booted it.
pub fn console_text(console: &Path) -> Vec<u8> {
    let parts =
        [&boot_console(console), console].map(|path| std::fs::read(path).unwrap_or_default());
    parts.concat()
}

/// L1's kernel as its VMM loads it.
pub(crate) fn inner_kernel(host: HostKind, kernel: &Kernel) -> Result<Vec<u8>, Error> {
    let image = &kernel.image;
    match host.architecture() {
        Architecture::Amd64 => elf::trimmed(&kernel.vmlinux()?),
        Architecture::Arm64 => std::fs::read(image).map_err(Error::io(image, "read the kernel")),
    }
}

/// Modules and their dependencies, by their path in the initramfs.
pub(crate) fn modules(kernel: &Kernel, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let mut modules = kernel.modules_for(names)?;
    modules.iter_mut().for_each(vmtax_machine::kernel::KernelModule::strip_signature);
    let named = |(index, module): (usize, vmtax_machine::kernel::KernelModule)| {
        (format!("modules/{index:02}-{}.ko", module.name), module.bytes)
    };
    Ok(modules.into_iter().enumerate().map(named).collect())
}

/// Entries of every initramfs: the program, and modules.
pub(crate) fn base(modules: &[(String, Vec<u8>)]) -> Vec<ArchiveEntry<'_>> {
    base_of(x86_program(), modules)
}

pub(crate) fn base_of<'a>(
    init: &'a [u8],
    modules: &'a [(String, Vec<u8>)],
) -> Vec<ArchiveEntry<'a>> {
    let mut entries = vec![
        ArchiveEntry::folder("dev"),
        ArchiveEntry::device("dev/console", 5, 1),
        ArchiveEntry::folder("modules"),
        ArchiveEntry::file("init", 0o755, init),
    ];
    for (path, bytes) in modules {
        entries.push(ArchiveEntry::file(path.clone(), 0o644, bytes));
    }
    entries
}

/// Folder of the cache with saved states.
const STATES: &str = "machines";
/// Bytes of saved states kept: each has 75 to 200 MB, and a series of kernels one for each kernel and host.
const STATES_MOST: u64 = 4 << 30;

/// Marks a state as used.
fn used(state: &Path) {
    // If this fails, the state may be removed earlier.
    let _ = std::fs::File::open(state)
        .and_then(|folder| folder.set_modified(std::time::SystemTime::now()));
}

/// The name of a saved state, from its inputs.
fn key(spec: &VmSpec, emulator: &str, named: &[u8]) -> Result<String, Error> {
    let mut digest = Sha256::new();
    let image = std::fs::read(&spec.kernel.image)
        .map_err(Error::io(&spec.kernel.image, "read the kernel"))?;
    let own = spec.options.arguments.iter().map(|word| format!(" {word}")).collect::<String>();
    let what = format!("{emulator} {} {}{own}", spec.memory_mib, spec.cpus);
    for part in [what.as_bytes(), spec.command_line.as_bytes(), &image, named] {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    Ok(digest.finalize()[..12].iter().map(|byte| format!("{byte:02x}")).collect())
}
