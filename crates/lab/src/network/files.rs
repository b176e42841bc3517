//! The files of an emulated host with QEMU in it: QEMU, what its VMs boot, and the same once more for an L1.

use std::path::Path;
use std::sync::Arc;

use vmtax_machine::cpio::{self, ArchiveEntry};
use vmtax_machine::programs::{self, FilesByPath};
use vmtax_machine::{Emulator, Initramfs, Mailbox, QUICK_BOOT, QemuOptions, VmSpec};

use super::parts::{SiteParts, module_sets};
use super::site::{FIRMWARE, L1, L1_MIB, QEMU, QUIET, VM_MIB, VMLINUX, XEN, XEN_MIB, initramfs};
use super::{Category, ClientPlace, NetworkPlan, NetworkSetup};
use crate::host::{HostKind, base, modules};
use crate::{Error, elf};

/// Folders of this computer with QEMU's firmware.
const FIRMWARE_FOLDERS: [&str; 3] = ["/usr/share/qemu", "/usr/share/seabios", "/usr/lib/ipxe/qemu"];
/// The firmware that a microvm needs.
const FIRMWARE_FILES: [&str; 4] =
    ["bios-microvm.bin", "pvh.bin", "linuxboot_dma.bin", "kvmvapic.bin"];
const PC_FIRMWARE: [&str; 1] = ["bios-256k.bin"];
/// And a PC that starts Xen.
const XEN_FIRMWARE: [&str; 1] = ["multiboot_dma.bin"];
/// Modules of a host beside KVM's.
const HOST_MODULES: [&str; 2] = ["tun", "vhost_net"];
/// And of one with a peer.
const PEER_MODULE: &str = "bridge";
/// And of one that writes memory to swap.
const SWAP_MODULE: &str = "zram";
/// Modules of every VM.
const VM_MODULES: [&str; 3] = ["virtio_pci", "virtio_net", "virtio_blk"];
/// Memory of the host, without that of its VMs and of unpacked files, MiB.
const HOST_MIB: u32 = 256;
/// Size of the trace buffer, KiB; what it holds of all traffic of a cell must fit in the mailbox.
const BUFFER_KIB: u32 = 32 << 10;

/// Memory of a second NUMA node, MiB: all that runs has room in the first, where the processors are.
const SECOND_NODE_MIB: u32 = 64;

/// On this machine QEMU's HPET interrupts by line 2 alone, which is the PIT's: these are the lines that it has on a Q35.
const HPET_LINES: [&str; 2] = ["-global", "hpet.hpet-intcap=0xff0104"];

/// Words for a host of two processors: the second one has no tick while one thread alone runs there.
const NO_TICK: &str = " nohz_full=1 rcu_nocbs=1";

/// Of a host of two NUMA nodes, which balances them otherwise. VMs that want it switch it on.
const NO_BALANCING: &str = " numa_balancing=disable";

/// What a plan needs beyond QEMU and the files of all categories. Plans with the same needs have one saved state.
#[derive(Clone, Copy)]
struct Needs {
    l1: bool,
    peer: bool,
    pc: bool,
    xen: bool,
    swap: bool,
    two_nodes: bool,
    device: bool,
}

impl Needs {
    fn of(plan: &NetworkPlan) -> Needs {
        let any = |is: fn(&Category) -> bool| plan.cells.iter().any(|cell| is(&cell.category));
        Needs {
            l1: any(Category::is_nested),
            peer: plan.cells.iter().any(|cell| cell.client == ClientPlace::Peer),
            pc: any(|category| category.levels().iter().any(|level| SiteParts(level).is_pc())),
            xen: any(Category::is_in_xen),
            swap: any(|category| SiteParts(&category.parts).swaps()),
            two_nodes: any(|category| category.parts.iter().any(|part| part.two_nodes)),
            device: any(|category| category.parts.iter().any(|part| part.interrupted.is_some())),
        }
    }

    /// Words for its kernel.
    fn words(self, cpus: u32) -> String {
        let words = [(cpus > 1, NO_TICK), (self.two_nodes, NO_BALANCING)];
        words.into_iter().filter(|(is_needed, _)| *is_needed).map(|(_, words)| words).collect()
    }

    /// Modules of a host, and those of a host that is an L1.
    fn modules(self, host: HostKind, is_l1: bool) -> Vec<&'static str> {
        let mut names: Vec<&str> = HOST_MODULES.into_iter().chain([host.module()]).collect();
        names.extend(self.peer.then_some(PEER_MODULE));
        names.extend(self.swap.then_some(SWAP_MODULE));
        names.extend(VM_MODULES.iter().filter(|_| is_l1));
        names
    }

    /// Memory of the VMs of a host, MiB.
    fn vms_mib(self) -> u32 {
        let others = if self.peer { VM_MIB } else { 0 };
        others + if self.xen { XEN_MIB } else { VM_MIB }
    }
}

/// The spec of the machine, and its initramfs.
pub(super) fn spec(setup: &NetworkSetup, plan: &NetworkPlan) -> Result<(VmSpec, Vec<u8>), Error> {
    let (needs, cpus) = (Needs::of(plan), plan.processors);
    let mut files = vm_files(setup, plan, needs)?;
    let mut vms_mib = needs.vms_mib();
    if needs.l1 {
        let archive = below_tables(archive(setup, &files, &needs.modules(setup.host, true))?);
        files.insert(L1.to_owned(), archive);
        vms_mib = vms_mib.max(L1_MIB);
    }
    let archive = archive(setup, &files, &needs.modules(setup.host, false))?;
    let memory_mib = HOST_MIB + vms_mib + cpus * (BUFFER_KIB >> 10) + programs::memory_mib(&files);
    let mut arguments = if needs.two_nodes { nodes(memory_mib, cpus) } else { Vec::new() };
    arguments.extend(HPET_LINES.iter().filter(|_| needs.device).map(|word| (*word).to_owned()));
    let spec = VmSpec {
        // With counted instructions QEMU lets the other processor run only after a tenth of a second of the machine's time (`TCG_KICK_PERIOD`).
        emulator: if cpus > 1 { Emulator::Tcg { icount: false } } else { setup.host.emulator() },
        kernel: setup.kernel.clone(),
        command_line: format!(
            "console=ttyS0,115200 {QUICK_BOOT} panic=-1 tsc=reliable {QUIET} vmtax.role=network vmtax.buffer={BUFFER_KIB}{}",
            needs.words(cpus)
        ),
        memory_mib: memory_mib + if needs.two_nodes { SECOND_NODE_MIB } else { 0 },
        initramfs: Initramfs::Bytes(Arc::default()),
        cpus,
        mailbox: Mailbox::new()?,
        console: setup.console.clone(),
        limit: setup.limit,
        stop: setup.stop.clone(),
        options: QemuOptions { arguments, ..QemuOptions::default() },
    };
    Ok((spec, archive))
}

/// QEMU's arguments for two NUMA nodes, the first with all processors and this memory.
fn nodes(memory_mib: u32, cpus: u32) -> Vec<String> {
    let node = |number: u32, mib: u32, rest: &str| {
        let memory = format!("memory-backend-ram,id=node{number},size={mib}M");
        let node = format!("node,nodeid={number},memdev=node{number}{rest}");
        ["-object".to_owned(), memory, "-numa".to_owned(), node]
    };
    let first = node(0, memory_mib, &format!(",cpus=0-{}", cpus - 1));
    first.into_iter().chain(node(1, SECOND_NODE_MIB, "")).collect()
}

/// QEMU, and what its VMs boot: of most categories, so that one saved state is for all of them.
fn vm_files(setup: &NetworkSetup, plan: &NetworkPlan, needs: Needs) -> Result<FilesByPath, Error> {
    let mut files = FilesByPath::new();
    pack(&mut files, needs)?;
    if needs.xen {
        files.insert(XEN.to_owned(), vmtax_machine::kernel::xen(&setup.cache)?);
    }
    files.insert(VMLINUX.to_owned(), elf::trimmed_for_qemu(&setup.kernel.vmlinux()?)?);
    let mut sets = module_sets();
    let levels = plan.cells.iter().flat_map(|cell| cell.category.levels());
    sets.extend(levels.map(|level| SiteParts(level).modules()));
    for set in sets {
        let names: Vec<&str> = VM_MODULES.iter().chain(&set).copied().collect();
        let modules = modules(&setup.kernel, &names)?;
        files.insert(initramfs(&set), below_tables(cpio::archive(&base(&modules))?));
    }
    Ok(files)
}

/// The initramfs of a host with these files and modules.
fn archive(setup: &NetworkSetup, files: &FilesByPath, names: &[&str]) -> Result<Vec<u8>, Error> {
    let modules = modules(&setup.kernel, names)?;
    let mut entries: Vec<ArchiveEntry<'_>> = base(&modules);
    entries.extend([ArchiveEntry::folder("tmp"), ArchiveEntry::folder("dev/net")]);
    entries.extend(programs::entries(files));
    Ok(cpio::archive(&entries)?)
}

/// The archive with zeros after it, which Linux skips. QEMU 7.2 loads a microvm's initramfs to the last page that leaves room for it, over the ACPI
/// tables, which are the last 3 KiB of memory; with this size it ends 4095 bytes before the end.
fn below_tables(mut archive: Vec<u8>) -> Vec<u8> {
    const PAGE: usize = 4096;
    archive.resize(archive.len().next_multiple_of(PAGE) + 1, 0);
    archive
}

/// QEMU, its libraries and its firmware.
fn pack(files: &mut FilesByPath, needs: Needs) -> Result<(), Error> {
    let problem = |problem: String| Error::Observer { program: QEMU.to_owned(), problem };
    let path = programs::find(QEMU).ok_or_else(|| {
        let how = "it is not installed here; apt-get install --no-install-recommends qemu-system-x86 seabios";
        problem(how.to_owned())
    })?;
    programs::add(files, QEMU, &path, &Path::new("/usr/bin").join(QEMU))?;
    let of_pc = PC_FIRMWARE.into_iter().filter(|_| needs.pc);
    let of_xen = XEN_FIRMWARE.into_iter().filter(|_| needs.xen);
    for name in FIRMWARE_FILES.into_iter().chain(of_pc).chain(of_xen) {
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
pub(super) fn version() -> Option<String> {
    vmtax_machine::version(HostKind::Amd.emulator())
}
