//! QEMU on an emulated host, with a small Linux VM, and traffic between the host and that VM.
//!
//! ```text
//!   vmtax ──mailbox──> emulated host (L0): client, tap ──virtio-net──> VM of QEMU (L1): server
//!                      records KVM's tracepoints and the scheduler's
//! ```
//! The VMM is this computer's QEMU, copied into the host with its libraries and firmware. The host has one processor, as every host whose
//! instructions are counted: vCPUs, VMM, vhost and client take turns on it.
//!
//! Left out: what the exits mean (`vmtax-analyse`), storing and printing.

mod category;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use vmtax_events::{Event, Kind as EventKind};
use vmtax_guest::order::{decode, encode};
use vmtax_guest::traffic::{Cell, DISK, Kind, Outcome, Role, Thread, Traffic};
use vmtax_machine::cpio::{self, Entry};
use vmtax_machine::kernel::Kernel;
use vmtax_machine::programs::{self, Files};
use vmtax_machine::{Initramfs, Machine, Mailbox, Options, QUICK_BOOT, Spec, Stop};

pub use self::category::{Category, PARTS, PLAIN, Part};
use crate::conversation::{Conversation, strange};
use crate::host::{Booting, Host, Ready, Start, base, modules};
use crate::{Error, elf, trace_dat};

/// The VMM's program.
const QEMU: &str = "qemu-system-x86_64";
/// Where it finds its firmware in the host.
const FIRMWARE: &str = "usr/share/qemu";
/// Folders of this computer with QEMU's firmware.
const FIRMWARE_FOLDERS: [&str; 3] = ["/usr/share/qemu", "/usr/share/seabios", "/usr/lib/ipxe/qemu"];
/// The firmware that a microvm needs.
const FIRMWARE_FILES: [&str; 4] =
    ["bios-microvm.bin", "pvh.bin", "linuxboot_dma.bin", "kvmvapic.bin"];
/// Modules of the host beside KVM's.
const HOST_MODULES: [&str; 2] = ["tun", "vhost_net"];
/// Modules of every VM.
const VM_MODULES: [&str; 3] = ["virtio_pci", "virtio_net", "virtio_blk"];
/// Memory of the VM, MiB.
const VM_MIB: u32 = 256;
/// Memory of the host, without that of its VM and of unpacked files, MiB.
const HOST_MIB: u32 = 256;
/// Bytes of the VM's disk.
const DISK_BYTES: u64 = 8 << 20;
/// Size of the trace buffer, KiB; what it holds of all traffic of a cell must fit in the mailbox.
const BUFFER_KIB: u32 = 32 << 10;
/// Timeout of a VM's start and of each traffic, in the host's time.
const LIMIT: Duration = Duration::from_secs(60);

/// A word for both kernels: IPv6 sends packets that nobody asked for.
const QUIET: &str = "ipv6.disable=1";

/// A word for the VM's kernel, which would wait a second for the real-time clock that it does not have.
const NO_CLOCK: &str = "initcall_blacklist=cmos_init";

/// Traffic by its name.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its word.
    pub name: &'static str,
    /// What one operation is.
    pub operation: &'static str,
    traffic: Traffic,
}

/// All workloads.
pub const WORKLOADS: [Workload; 8] = [
    Workload {
        name: "request",
        operation: "request of 64 B and its answer, one after the other",
        traffic: Traffic {
            kind: Kind::Request { bytes: 64, pause_us: 0 },
            warm_up: 20,
            count: 200,
        },
    },
    Workload {
        name: "paced",
        operation: "request of 64 B and its answer, 1 ms after the one before",
        traffic: Traffic {
            kind: Kind::Request { bytes: 64, pause_us: 1000 },
            warm_up: 10,
            count: 100,
        },
    },
    Workload {
        name: "receive",
        operation: "KiB of a TCP stream to the VM",
        traffic: Traffic { kind: Kind::Receive, warm_up: 1024, count: 4096 },
    },
    Workload {
        name: "send",
        operation: "KiB of a TCP stream from the VM",
        traffic: Traffic { kind: Kind::Send, warm_up: 1024, count: 4096 },
    },
    Workload {
        name: "timer",
        operation: "sleep of 1 ms of a thread in the VM",
        traffic: Traffic { kind: Kind::Sleep { us: 1000 }, warm_up: 10, count: 100 },
    },
    Workload {
        name: "short-timer",
        operation: "sleep of 50 us of a thread in the VM",
        traffic: Traffic { kind: Kind::Sleep { us: 50 }, warm_up: 20, count: 200 },
    },
    Workload {
        name: "read",
        operation: "read of 4 KiB from the VM's disk, past its page cache",
        traffic: Traffic { kind: Kind::Read { bytes: 4096 }, warm_up: 20, count: 200 },
    },
    Workload {
        name: "write",
        operation: "write of 4 KiB to the VM's disk, past its page cache",
        traffic: Traffic { kind: Kind::Write { bytes: 4096 }, warm_up: 20, count: 200 },
    },
];

impl Workload {
    /// The workload of this name.
    pub fn named(name: &str) -> Option<&'static Workload> {
        WORKLOADS.iter().find(|workload| workload.name == name)
    }
}

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct NetworkPlan {
    /// The VMs.
    pub categories: Vec<Category>,
    /// The traffic with each. Each traffic has a VM of its own.
    pub workloads: Vec<&'static Workload>,
}

/// Configuration of the host.
#[derive(Clone, Debug)]
pub struct NetworkSetup {
    /// Its kernel, and that of its VMs.
    pub kernel: Kernel,
    /// Folder for saved states.
    pub cache: PathBuf,
    /// Boot again, and replace the saved state.
    pub fresh: bool,
    /// The file for the console.
    pub console: PathBuf,
    /// Wall-clock limit of the start of the host, and of each cell.
    pub limit: Duration,
}

/// One workload with one VM.
#[derive(Debug)]
pub struct Passage {
    /// Id of the VM in the run: from 1 on.
    pub vm: u32,
    /// The workload.
    pub workload: &'static Workload,
    /// Name of the category.
    pub category: String,
    /// Run time by the host's clock.
    pub elapsed_ns: u64,
    /// The recording, a `trace.dat`.
    pub trace: Vec<u8>,
    /// Events lost in its buffers.
    pub lost: u64,
    /// Threads of the host that take part.
    pub threads: Vec<Thread>,
}

/// What came of a run.
#[derive(Debug)]
pub struct Passages {
    /// In order of categories, then workloads.
    pub done: Vec<Passage>,
    /// Cells that were not measured: name and reason.
    pub failures: Vec<String>,
    /// How the host came up.
    pub start: Start,
    /// Version of the VMM.
    pub vmm: String,
}

impl Passage {
    /// Its name in tables: `request plain+vhost`.
    pub fn name(&self) -> String {
        name(self.workload.name, &self.category)
    }

    /// Operations in the recording.
    pub fn count(&self) -> u32 {
        self.workload.traffic.count
    }
}

/// The name of a passage.
pub fn name(workload: &str, category: &str) -> String {
    format!("{workload} {category}")
}

/// How often threads that serve virtio queues got a processor. (QEMU's worker threads, which read and write the disk's file, are not counted.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// QEMU's main loop.
    pub vmm: u64,
    /// The kernel's worker.
    pub vhost: u64,
    /// QEMU's thread for the disk's queue.
    pub io: u64,
}

impl Turns {
    /// Counts a switch to one of these threads.
    pub fn count(&mut self, threads: &[Thread], event: &Event) {
        let EventKind::Switch { next_tid, .. } = event.kind else { return };
        match threads.iter().find(|thread| thread.tid == next_tid).map(|thread| thread.role) {
            Some(Role::Vmm) => self.vmm += 1,
            Some(Role::Vhost) => self.vhost += 1,
            Some(Role::Io) => self.io += 1,
            Some(Role::Vcpu) | None => {}
        }
    }
}

/// Boots or restores the host and carries out the plan. A VM that does not start or stops answering is tried once more, and then is a failure of the
/// result.
///
/// # Errors
/// When the host does not come up or ends.
pub fn run_network(
    setup: &NetworkSetup,
    plan: &NetworkPlan,
    progress: &dyn Fn(&str),
) -> Result<Passages, Error> {
    let (spec, archive) = setup.spec()?;
    let booting = Booting {
        spec: &spec,
        cache: &setup.cache,
        fresh: setup.fresh,
        marks: None,
        observed: false,
        order: None,
    };
    let say = |doing: &str| progress(&format!("{doing} the host"));
    let ready = booting.start((&archive, &|| Ok(archive.clone())), &say)?;
    let Ready { mut machine, mut conversation, start, .. } = ready;
    let mut passages = Passages {
        done: Vec::new(),
        failures: Vec::new(),
        start,
        vmm: version().unwrap_or_default(),
    };
    for category in &plan.categories {
        for workload in &plan.workloads {
            let name = name(workload.name, &category.name);
            progress(&format!("running {name}"));
            let cell = cell(category, workload);
            let mut ask = || {
                machine.allow(setup.limit);
                ask(&mut machine, &mut conversation, &cell)
            };
            let mut answer = ask()?;
            if !answer.0.problem.is_empty() {
                let note = format!("{name}: {}; tried again", told(&answer.0));
                passages.start.notes.push(note);
                answer = ask()?;
            }
            let (outcome, files) = answer;
            if let Some(problem) = problem(&outcome, category) {
                passages.failures.push(format!("{name}: {problem}"));
                continue;
            }
            let files = of_passage(&files, 0);
            passages.done.push(Passage {
                vm: passages.done.len() as u32 + 1,
                workload,
                category: category.name.clone(),
                elapsed_ns: outcome.elapsed_ns.first().copied().unwrap_or_default(),
                lost: trace_dat::lost(&files),
                trace: trace_dat::assemble(&files, &setup.kernel.release)?,
                threads: outcome.threads,
            });
        }
    }
    Ok(passages)
}

/// Why the cell was not measured, if it was not.
fn problem(outcome: &Outcome, category: &Category) -> Option<String> {
    if !outcome.problem.is_empty() {
        return Some(told(outcome));
    }
    if outcome.elapsed_ns.len() != 1 {
        return Some("the host did not carry out the traffic".to_owned());
    }
    category.missing(&outcome.facts, &outcome.threads)
}

/// A cell's problem, with the last line of the VM's console.
fn told(outcome: &Outcome) -> String {
    match outcome.console.lines().map(str::trim).rfind(|line| !line.is_empty()) {
        Some(line) => format!("{}; the VM's console ends: {line}", outcome.problem),
        None => outcome.problem.clone(),
    }
}

/// Files by name.
type Named = Vec<(String, Vec<u8>)>;

fn ask(
    machine: &mut Machine,
    conversation: &mut Conversation,
    cell: &Cell,
) -> Result<(Outcome, Named), Error> {
    let bytes = conversation.ask(machine, &encode(cell))?;
    let outcome: Outcome = decode(&bytes).ok_or_else(strange)?;
    let files = conversation.files(bytes.len(), &outcome.files)?;
    Ok((outcome, files))
}

/// The files of one traffic: `2/trace/cpu0` of number 2 is `trace/cpu0`.
fn of_passage(files: &[(String, Vec<u8>)], number: usize) -> Vec<(String, Vec<u8>)> {
    let own = format!("{number}/");
    let mine = files
        .iter()
        .filter_map(|(name, bytes)| Some((name.strip_prefix(&own)?.to_owned(), bytes.clone())));
    mine.collect()
}

/// A VM for each workload: what a VM did before changes when the host's scheduler lets it run, and so how often it is idle.
fn cell(category: &Category, workload: &Workload) -> Cell {
    Cell {
        qemu: qemu(category),
        settings: vec![(
            "/sys/module/kvm/parameters/halt_poll_ns".to_owned(),
            category.halt_poll_ns().to_owned(),
        )],
        disk: DISK_BYTES,
        traffic: vec![workload.traffic],
        limit_ms: LIMIT.as_millis() as u64,
    }
}

/// The VMM's command line.
fn qemu(category: &Category) -> Vec<String> {
    let [netdev, card] = category.network();
    let command_line = Host::Amd.vm_command_line(&format!("{QUIET} {NO_CLOCK} vmtax.role=server"))
        + &category.words();
    let fixed = [
        "-no-user-config",
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
        "-accel",
        "kvm",
        // PCI for interrupts by message (MSI-X); none of the devices of a PC that would take exits of their own.
        "-machine",
        "microvm,pcie=on,pit=off,pic=off,rtc=off",
        "-chardev",
        "file,id=console,path=/dev/stdout,append=on",
        "-serial",
        "chardev:console",
        "-kernel",
        "/vm/vmlinux",
    ];
    let mut words = vec![format!("/usr/bin/{QEMU}")];
    words.extend(fixed.map(str::to_owned));
    words.extend([
        "-L".to_owned(),
        format!("/{FIRMWARE}"),
        "-name".to_owned(),
        "vm,debug-threads=on".to_owned(),
        "-cpu".to_owned(),
        category.cpu(),
        "-smp".to_owned(),
        category.vcpus().to_string(),
        "-m".to_owned(),
        format!("{VM_MIB}M"),
        "-initrd".to_owned(),
        format!("/{}", initramfs(&modules_of(&category.parts))),
        "-append".to_owned(),
        command_line,
        "-netdev".to_owned(),
        netdev,
        "-device".to_owned(),
        card,
        "-blockdev".to_owned(),
        format!("driver=file,filename={DISK},node-name=disk0"),
        "-device".to_owned(),
        category.disk(),
    ]);
    words.extend(category.arguments());
    words
}

/// Modules of a VM beside those of every VM.
fn modules_of(parts: &[&'static Part]) -> BTreeSet<&'static str> {
    parts.iter().flat_map(|part| part.modules).copied().collect()
}

/// The file in the host with the initramfs of VMs that load these modules too.
fn initramfs(modules: &BTreeSet<&str>) -> String {
    let suffix = modules.iter().map(|module| format!("-{module}")).collect::<String>();
    format!("vm/initramfs{suffix}")
}

impl NetworkSetup {
    /// The spec of the machine, and its initramfs. It has the files of all categories, so that one saved state is for all plans.
    fn spec(&self) -> Result<(Spec, Vec<u8>), Error> {
        let mut files = Files::new();
        pack(&mut files)?;
        files.insert("vm/vmlinux".to_owned(), elf::trimmed_for_qemu(&self.kernel.vmlinux()?)?);
        let sets =
            std::iter::once(BTreeSet::new()).chain(PARTS.iter().map(|part| modules_of(&[part])));
        for set in sets.collect::<BTreeSet<_>>() {
            let names: Vec<&str> = VM_MODULES.iter().chain(&set).copied().collect();
            let modules = modules(&self.kernel, &names)?;
            files.insert(initramfs(&set), below_tables(cpio::archive(&base(&modules))?));
        }
        let names: Vec<&str> = HOST_MODULES.into_iter().chain([Host::Amd.module()]).collect();
        let modules = modules(&self.kernel, &names)?;
        let mut entries: Vec<Entry<'_>> = base(&modules);
        entries.extend([Entry::folder("tmp"), Entry::folder("dev/net")]);
        entries.extend(programs::entries(&files));
        let archive = cpio::archive(&entries)?;
        let spec = Spec {
            emulator: Host::Amd.emulator(),
            kernel: self.kernel.clone(),
            command_line: format!(
                "console=ttyS0,115200 {QUICK_BOOT} panic=-1 tsc=reliable {QUIET} vmtax.role=network vmtax.buffer={BUFFER_KIB}"
            ),
            memory_mib: HOST_MIB + VM_MIB + (BUFFER_KIB >> 10) + programs::memory_mib(&files),
            initramfs: Initramfs::Bytes(Arc::default()),
            cpus: 1,
            mailbox: Mailbox::new()?,
            console: self.console.clone(),
            limit: self.limit,
            stop: Stop::default(),
            options: Options::default(),
        };
        Ok((spec, archive))
    }
}

/// The archive with zeros after it, which Linux skips. QEMU 7.2 loads a microvm's initramfs to the last page that leaves room for it, over the ACPI
/// tables, which are the last 3 KiB of memory; with this size it ends 4095 bytes before the end.
fn below_tables(mut archive: Vec<u8>) -> Vec<u8> {
    const PAGE: usize = 4096;
    archive.resize(archive.len().next_multiple_of(PAGE) + 1, 0);
    archive
}

/// QEMU, its libraries and its firmware.
fn pack(files: &mut Files) -> Result<(), Error> {
    let problem = |problem: String| Error::Observer { program: QEMU.to_owned(), problem };
    let path = programs::find(QEMU).ok_or_else(|| {
        let how = "it is not installed here; apt-get install --no-install-recommends qemu-system-x86 seabios";
        problem(how.to_owned())
    })?;
    programs::add(files, QEMU, &path, &Path::new("/usr/bin").join(QEMU))?;
    for name in FIRMWARE_FILES {
        let mut places = FIRMWARE_FOLDERS.iter().map(|folder| Path::new(folder).join(name));
        let found = places.find_map(|path| std::fs::read(path).ok()).ok_or_else(|| {
            problem(format!(
                "its firmware {name} is in none of {}; apt-get install qemu-system-data seabios",
                FIRMWARE_FOLDERS.join(", ")
            ))
        })?;
        files.insert(format!("{FIRMWARE}/{name}"), found);
    }
    Ok(())
}

/// The version of the VMM, which is that of the emulator.
fn version() -> Option<String> {
    vmtax_machine::version(Host::Amd.emulator())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_those_of_the_threads_that_serve_queues() {
        let threads = [
            Thread { tid: 5, role: Role::Vmm },
            Thread { tid: 6, role: Role::Vcpu },
            Thread { tid: 7, role: Role::Vhost },
            Thread { tid: 9, role: Role::Io },
        ];
        let mut turns = Turns::default();
        for next_tid in [5, 6, 7, 7, 8, 9] {
            let kind = EventKind::Switch { next_tid, preempted: false };
            turns.count(&threads, &Event { time_ns: 0, pid: 0, tid: 1, cpu: 0, vcpu: 0, kind });
        }
        assert_eq!(turns, Turns { vmm: 1, vhost: 2, io: 1 });
    }

    #[test]
    fn a_part_changes_the_vmm_alone_where_it_says_so() {
        let line = |name: &str| qemu(&Category::read(name).expect("a category")).join(" ");
        let plain = line("plain");
        assert!(!plain.contains("vhost") && !plain.contains("swiotlb"), "{plain}");
        for (name, word) in [
            ("plain+vhost", "downscript=no,vhost=on"),
            ("plain+swiotlb", "drive=disk0,disable-legacy=on,iommu_platform=on"),
            ("plain+iothread", "disable-legacy=on,iothread=io0 -object iothread,id=io0"),
            ("plain-ioeventfd", "drive=disk0,disable-legacy=on,ioeventfd=off"),
            ("plain+poll", " idle=poll"),
            ("plain+haltpoll", "-initrd /vm/initramfs-cpuidle_haltpoll"),
            ("plain-x2apic", "-kvm-pv-eoi,-x2apic"),
        ] {
            assert!(line(name).contains(word) && !plain.contains(word), "{}", line(name));
        }
    }
}
