//! The table of kinds of VM and of parts that are added to them: what each changes, stated once for all that run VMs.

use vmtax_events::setting::files;
use vmtax_guest::traffic::Role;

use crate::host::{PROTECTED, PROTECTED_MODE};

/// A property of the disk of workloads that use one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// QEMU's cache mode.
    Cache(&'static str),
    /// How QEMU reads and writes the disk's file.
    Aio(&'static str),
    /// A thread of its own works on the disk's queue.
    Thread,
}

/// A confidential guest, which firmware is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfidentialKind {
    Snp,
    Tdx,
}

/// What makes a VM confidential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confidential {
    /// QEMU's object, without its identifier.
    pub object: &'static str,
    /// What its firmware is for.
    pub guest: ConfidentialKind,
}

/// A requirement on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A KVM, on hardware or on an emulated host.
    Kvm,
    /// A KVM on an emulated host that supports nested guests.
    Nested,
    Snp,
    Tdx,
    /// `/dev/vhost-net`.
    Vhost,
    /// A network card on a tap.
    Tap,
    /// A program that works on the queues of a network card (vhost-user).
    VhostUser,
    /// Free huge pages for all of the VM's memory.
    HugePages,
    /// A processor for each vCPU.
    Processors,
    /// Permission to set `kvm.halt_poll_ns`.
    HaltPoll,
    /// A VMM that gives an ordinary VM memory of guest_memfd.
    GuestMemfd,
    /// A VMM that makes software-protected VMs.
    Protected,
    /// QEMU on an emulated host.
    Inside,
    /// KVM of arm64 on an emulated host.
    Arm,
}

/// What shows in a VM's facts, or on its host, that it has a part.
#[derive(Clone, Copy, Debug)]
pub enum Shows {
    Nothing,
    /// This fact has this word.
    Word(&'static str, &'static str),
    /// This fact does not have this word.
    NoWord(&'static str, &'static str),
    /// A thread of the host with this role, which is so called.
    Thread(Role, &'static str),
}

/// A part of a category.
#[derive(Clone, Copy, Debug)]
pub struct CategoryPart {
    /// Its word in a category's name, with its sign.
    pub name: &'static str,
    pub about: &'static str,
    /// `-machine`, if not that of plain VMs.
    pub machine: Option<&'static str>,
    /// `-cpu`, if not the accelerator's default.
    pub cpu: Option<&'static str>,
    /// Added to it.
    pub cpu_flags: &'static str,
    /// The VM is confidential: QEMU's object for it, its firmware.
    pub confidential: Option<Confidential>,
    /// Further arguments of QEMU; `{memory}` is the VM's memory.
    pub arguments: &'static [&'static str],
    /// Options of each virtio device.
    pub device: &'static str,
    /// The network card's device, if not virtio's.
    pub card_model: Option<&'static str>,
    /// The disk's device, if not virtio's.
    pub disk_model: Option<&'static str>,
    /// Additions to `-netdev`, which is a tap.
    pub tap: &'static str,
    /// Several queues of the network card.
    pub queues: bool,
    /// The property of the disk that it changes.
    pub disk: Option<DiskKind>,
    /// Additions to the guest's command line, [to be filled in](super::fill).
    pub guest: &'static [&'static str],
    /// Modules loaded in the guest.
    pub modules: &'static [&'static str],
    /// vCPUs, if it says how many.
    pub vcpus: Option<u32>,
    /// Settings of the host while the VM runs: a file and its content.
    pub host: &'static [(&'static str, &'static str)],
    /// Words on the command line of the host's kernel, if the host is emulated.
    pub host_words: &'static [&'static str],
    /// The host's free memory is in pieces.
    pub fragmented: bool,
    /// The host writes the VM's memory to swap between warm-up and recording.
    pub swaps: bool,
    /// The host has two NUMA nodes.
    pub two_nodes: bool,
    /// The processor of the host that a device interrupts.
    pub interrupted: Option<u32>,
    /// Threads of the host that compute.
    pub rivals: u32,
    /// The part of a processor that the VMM may use, percent, if there is a limit.
    pub quota: Option<u32>,
    /// Threads of QEMU or rivals, by how their names start, and their only processor.
    pub pins: &'static [(&'static str, u32)],
    /// Each vCPU thread is pinned to a processor of its own.
    pub pinned: bool,
    /// Requirements of VMs on this computer.
    pub needs: &'static [Need],
    /// Facts of the guest that may differ from the baseline's, in addition to the command line.
    pub changes: &'static [&'static str],
    /// What shows that a VM has it.
    pub shows: Shows,
    /// With vmtax's own VMM on an emulated host: what its memory is, if not transparent huge pages.
    pub backing: Option<&'static str>,
    /// Whether that VMM supports it on a host of x86, and on one of arm64.
    pub on_emulated_host: bool,
    pub on_arm: bool,
    /// Whether a VM of QEMU on an emulated host supports it.
    pub inside: bool,
    /// And whether L1 does, before `+nested`: it is not about card and disk, which no workload uses in L1.
    pub before_nested: bool,
    /// QEMU's VM is Xen, and the VM of the category its PVH dom0, which Xen runs as a guest (L2).
    pub xen: bool,
}

const NONE: CategoryPart = CategoryPart {
    name: "",
    about: "",
    machine: None,
    cpu: None,
    cpu_flags: "",
    confidential: None,
    arguments: &[],
    device: "",
    card_model: None,
    disk_model: None,
    tap: "",
    queues: false,
    disk: None,
    guest: &[],
    modules: &[],
    vcpus: None,
    host: &[],
    host_words: &[],
    fragmented: false,
    swaps: false,
    two_nodes: false,
    interrupted: None,
    rivals: 0,
    quota: None,
    pins: &[],
    pinned: false,
    needs: &[],
    changes: &[],
    shows: Shows::Nothing,
    backing: None,
    on_emulated_host: false,
    on_arm: false,
    inside: false,
    before_nested: false,
    xen: false,
};

/// The part of a PC whose guest has the real-time clock, which others do not look for.
pub(crate) const RTC: &str = "+rtc";

/// A part of VMs of QEMU on an emulated host alone.
const INSIDE: CategoryPart = CategoryPart { needs: &[Need::Inside], inside: true, ..NONE };

/// A kind of VM of arm64.
const ON_ARM: CategoryPart = CategoryPart { needs: &[Need::Arm], on_arm: true, ..NONE };

/// Two queues in each direction of a network card.
pub const MULTI_QUEUE: &str = ",mq=on,vectors=6";

/// Anonymous memory for which huge pages are asked, as QEMU does: the memory of a VM of which nothing else is said.
pub const THP: &str = "thp";

/// Facts that a confidential VM changes.
const CONFIDENTIAL: &[&str] = &[
    "processor",
    "processor flags",
    "clocksource",
    "devices",
    "memory",
    "bounce buffer slots",
    "idle driver",
    "idle governor",
];

/// For the agent, whose programs cannot do port I/O there.
const VIRTIO_MAILBOX: &[&str] = &["vmtax.mailbox=virtio"];

/// Kinds of VM. Source of the flags: QEMU's documentation of `sev-snp-guest` and `tdx-guest`; of the kernel's words its
/// kernel-parameters.txt.
pub const KINDS: &[CategoryPart] = &[
    CategoryPart {
        name: "plain",
        about: "a VM with default settings",
        on_emulated_host: true,
        on_arm: true,
        inside: true,
        ..NONE
    },
    CategoryPart {
        name: "snp",
        about: "a confidential VM: AMD SEV-SNP",
        machine: Some("q35,memory-backend=ram0"),
        cpu: Some("EPYC-v4,host-phys-bits=true"),
        confidential: Some(Confidential {
            object: "sev-snp-guest,cbitpos=51,reduced-phys-bits=1",
            guest: ConfidentialKind::Snp,
        }),
        guest: VIRTIO_MAILBOX,
        arguments: &["-object", "memory-backend-memfd,id=ram0,size={memory}M,share=true"],
        device: ",iommu_platform=on,disable-legacy=on",
        needs: &[Need::Kvm, Need::Snp],
        changes: CONFIDENTIAL,
        ..NONE
    },
    CategoryPart {
        name: "tdx",
        about: "a confidential VM: Intel TDX",
        machine: Some("q35,kernel_irqchip=split"),
        cpu: Some("host,pmu=off"),
        confidential: Some(Confidential { object: "tdx-guest", guest: ConfidentialKind::Tdx }),
        guest: VIRTIO_MAILBOX,
        device: ",iommu_platform=on,disable-legacy=on",
        needs: &[Need::Kvm, Need::Tdx],
        changes: CONFIDENTIAL,
        ..NONE
    },
    CategoryPart {
        name: "private",
        about: "a software-protected VM (KVM_X86_SW_PROTECTED_VM): data of programs is in private memory, the kernel's is shared",
        // Data of programs is movable, and at the upper end; text of programs in a ramfs is not. The last word is for the agent.
        guest: &["kernelcore=50%", "rootfstype=ramfs", "vmtax.private"],
        backing: Some("private"),
        needs: &[Need::Protected],
        on_emulated_host: true,
        ..NONE
    },
    CategoryPart {
        name: "pkvm",
        about: "an ordinary VM on a protected arm64 host (pKVM: kvm-arm.mode=protected), emulated; accel = \"arm\" alone has it",
        host_words: &[PROTECTED_MODE],
        ..ON_ARM
    },
    CategoryPart {
        name: "protected",
        about: "a protected VM of such a host, which cannot access its memory: Linux 7.3 or newer, and experimental in the kernel; accel = \"arm\" alone has it",
        guest: &[PROTECTED],
        host_words: &[PROTECTED_MODE, PROTECTED],
        // With Linux 7.3 it has 2 MB more; why was not looked into.
        changes: &["processor flags", "memory"],
        ..ON_ARM
    },
];

/// The part that separates the VM from the guest inside: parts before it are the VM's, parts after it the guest's.
pub const NESTED: &str = "+nested";

/// The part that has KVM's PV EOI, which VMs on emulated hosts otherwise have not.
pub(crate) const PV_EOI: &str = "+pv-eoi";

/// Parts. Sources: the categories of "Performance analysis of confidential VMs" (TU Munich, 2024), the kernel's documentation of each word.
pub const PARTS: &[CategoryPart] = &[
    CategoryPart {
        name: "+vhost",
        about: "the host's kernel works on the network card's queues (vhost_net)",
        tap: ",vhost=on",
        needs: &[Need::Vhost, Need::Tap],
        shows: Shows::Thread(Role::Vhost, "vhost thread"),
        inside: true,
        ..NONE
    },
    CategoryPart {
        name: "+vhost-user",
        about: "the network card's queues are worked on by a program of the host, such as DPDK's",
        needs: &[Need::VhostUser],
        ..NONE
    },
    CategoryPart {
        name: "+mq",
        about: "the network card has two queues in each direction",
        queues: true,
        device: MULTI_QUEUE,
        needs: &[Need::Tap],
        ..NONE
    },
    CategoryPart {
        name: "+direct",
        about: "the disk's file is read and written past the host's page cache (cache=none)",
        disk: Some(DiskKind::Cache("none")),
        ..NONE
    },
    CategoryPart {
        name: "+writethrough",
        about: "each write to the disk reaches its file before it completes in the guest (cache=writethrough)",
        disk: Some(DiskKind::Cache("writethrough")),
        ..NONE
    },
    CategoryPart {
        name: "+unsafe",
        about: "the disk ignores the guest's flushes (cache=unsafe)",
        disk: Some(DiskKind::Cache("unsafe")),
        ..NONE
    },
    CategoryPart {
        name: "+io-uring",
        about: "QEMU reads and writes the disk's file by io_uring, not by threads",
        disk: Some(DiskKind::Aio("io_uring")),
        ..NONE
    },
    CategoryPart {
        name: "+native",
        about: "QEMU reads and writes the disk's file by Linux AIO; after +direct",
        disk: Some(DiskKind::Aio("native")),
        ..NONE
    },
    CategoryPart {
        name: "+iothread",
        about: "a dedicated I/O thread serves the disk's queue instead of QEMU's main loop",
        disk: Some(DiskKind::Thread),
        shows: Shows::Thread(Role::Io, "I/O thread of QEMU"),
        inside: true,
        ..NONE
    },
    CategoryPart {
        name: "+swiotlb",
        about: "all that devices read and write goes through a bounce buffer of the size that Linux gives a confidential VM: 6 % of its memory, 64 MiB to 1 GiB",
        guest: &["swiotlb={slabs},force"],
        // Without it virtio devices do not use the DMA interface, and bypass the buffer.
        device: ",iommu_platform=on,disable-legacy=on",
        changes: &["memory", "bounce buffer slots", "devices"],
        shows: Shows::Word("command line", "swiotlb={slabs},force"),
        on_emulated_host: true,
        inside: true,
        ..NONE
    },
    CategoryPart {
        name: "+poll",
        about: "an idle vCPU polls and never halts (the guest's idle=poll)",
        guest: &["idle=poll"],
        changes: &["idle driver", "idle governor"],
        shows: Shows::Word("command line", "idle=poll"),
        on_emulated_host: true,
        inside: true,
        before_nested: true,
        ..NONE
    },
    // The name is that of the categories of the paper.
    CategoryPart {
        name: "+hpoll",
        about: "an idle vCPU polls for a while before it halts (the guest's cpuidle_haltpoll.force=Y; its kernel needs CONFIG_CPU_IDLE_GOV_HALTPOLL, which Debian's 6.1 is without)",
        guest: &["cpuidle_haltpoll.force=Y"],
        modules: &["cpuidle_haltpoll"],
        needs: &[Need::Kvm],
        changes: &["idle driver", "idle governor"],
        // The driver alone polls nothing: with another governor it always halts.
        shows: Shows::Word("idle governor", "haltpoll"),
        on_emulated_host: true,
        inside: true,
        ..NONE
    },
    CategoryPart {
        name: "+halt_poll_ns",
        about: "the host polls for up to 200 us before the thread of a halted vCPU sleeps (the host's kvm.halt_poll_ns)",
        host: &[(files::HALT_POLL, "200000")],
        needs: &[Need::Kvm, Need::HaltPoll],
        on_emulated_host: true,
        inside: true,
        before_nested: true,
        ..NONE
    },
    CategoryPart {
        name: "-tsc-deadline",
        about: "the APIC's timer counts down from an initial count; there is no TSC deadline",
        cpu_flags: ",-tsc-deadline",
        needs: &[Need::Kvm],
        changes: &["processor flags"],
        shows: Shows::NoWord("processor flags", "tsc_deadline_timer"),
        inside: true,
        before_nested: true,
        ..NONE
    },
    CategoryPart {
        name: "+hugepages",
        about: "the VM's memory lies in huge pages, taken before it starts",
        machine: Some("pc,memory-backend=ram0"),
        arguments: &[
            "-object",
            "memory-backend-memfd,id=ram0,size={memory}M,hugetlb=on,prealloc=on",
        ],
        needs: &[Need::HugePages],
        ..NONE
    },
    CategoryPart {
        name: "+gmem",
        about: "the VM's memory is a guest_memfd, as a confidential VM's is: mapped in pages of 4 KiB up to Linux 7.3",
        backing: Some("guest-memfd"),
        needs: &[Need::GuestMemfd],
        on_emulated_host: true,
        ..NONE
    },
    CategoryPart {
        name: "+pinned",
        about: "each vCPU thread is pinned to its own processor",
        pinned: true,
        needs: &[Need::Processors],
        ..NONE
    },
    CategoryPart {
        name: NESTED,
        about: "the workload runs in a guest of the VM (L2); parts before this one are the VM's (L1), parts after it the guest's",
        needs: &[Need::Nested],
        changes: &["processor", "processor flags", "clocksource", "idle driver", "idle governor"],
        on_emulated_host: true,
        inside: true,
        ..NONE
    },
    CategoryPart {
        name: "+xen",
        about: "the VM is a guest (L2) of Xen, its PVH dom0, and Xen runs in QEMU's VM (L1); devices of that VM are the guest's",
        // Xen wants an IOMMU for a PVH dom0. It takes its timer from the local APIC alone.
        machine: Some("q35,hpet=off,vmport=off"),
        arguments: &["-global", "apic-common.vapic=off", "-device", "intel-iommu,intremap=off"],
        device: ",iommu_platform=on",
        // QEMU's TCG does not know the XSETBV intercept, and takes RDTSCP for an intercepted RDTSC, whose length Xen decodes otherwise.
        cpu_flags: ",-xsave,-rdtscp",
        guest: &["console=hvc0"],
        shows: Shows::Word("hypervisor", "xen"),
        xen: true,
        ..INSIDE
    },
    CategoryPart {
        name: "+smp",
        about: "two vCPUs: the card's interrupts are for the first, and the server runs on the second",
        vcpus: Some(2),
        shows: Shows::Word("processors", "2"),
        ..INSIDE
    },
    CategoryPart {
        name: "+smp4",
        about: "four vCPUs",
        vcpus: Some(4),
        shows: Shows::Word("processors", "4"),
        ..INSIDE
    },
    CategoryPart {
        name: "-ioeventfd",
        about: "each notification of card and disk is handled by the vCPU's thread in QEMU, and not turned into an eventfd by KVM",
        device: ",ioeventfd=off",
        ..INSIDE
    },
    CategoryPart {
        name: "-x2apic",
        about: "the APIC's registers are in memory (MMIO), and not MSRs",
        cpu_flags: ",-x2apic",
        shows: Shows::NoWord("processor flags", "x2apic"),
        before_nested: true,
        ..INSIDE
    },
    CategoryPart {
        name: PV_EOI,
        about: "the VM ends interrupts in memory that it shares with KVM (kvm-pv-eoi, which is on by default outside the lab)",
        ..INSIDE
    },
    CategoryPart {
        name: "-thp",
        about: "the host backs the VM with pages of 4 KiB (transparent_hugepage=never)",
        host: &[(files::THP, "never")],
        ..INSIDE
    },
    CategoryPart {
        name: "+pc",
        about: "the machine is a PC, with HPET, PIT, real-time clock and IDE",
        machine: Some("pc,vmport=off"),
        // A ROM of kvmvapic makes QEMU write all registers back. The type of the TSS is then one (11, busy) with which TCG's `check_io`
        // refuses port accesses of the guest's programs, and the first process makes one.
        arguments: &["-global", "apic-common.vapic=off"],
        ..INSIDE
    },
    CategoryPart {
        name: "+ide",
        about: "the disk is on IDE (needs +pc)",
        disk_model: Some("ide-hd,drive=disk0,bus=ide.0"),
        modules: &["ata_piix", "sd_mod"],
        ..INSIDE
    },
    CategoryPart {
        name: "+nvme",
        about: "the disk is on NVMe",
        disk_model: Some("nvme,drive=disk0,serial=vmtax"),
        modules: &["nvme"],
        ..INSIDE
    },
    CategoryPart {
        name: "+e1000",
        about: "the card is an e1000 (needs +pc)",
        card_model: Some("e1000,netdev=net0,romfile="),
        modules: &["e1000"],
        ..INSIDE
    },
    CategoryPart {
        name: RTC,
        about: "the VM's kernel has the real-time clock (needs +pc)",
        ..INSIDE
    },
    CategoryPart {
        name: "+vga",
        about: "the VM has a display: an emulated VGA (needs +pc)",
        arguments: &["-device", "VGA,romfile="],
        ..INSIDE
    },
    CategoryPart {
        name: "+hvc",
        about: "the console is a virtio console and no serial port",
        arguments: &[
            "-chardev",
            "file,id=hvc,path=/tmp/hvc",
            "-device",
            "virtio-serial-pci,disable-legacy=on",
            "-device",
            "virtconsole,chardev=hvc",
        ],
        guest: &["console=hvc0"],
        modules: &["virtio_console"],
        shows: Shows::Word("command line", "console=hvc0"),
        ..INSIDE
    },
    CategoryPart {
        name: "+psmouse",
        about: "the VM's kernel looks for a PS/2 mouse (needs +pc)",
        modules: &["psmouse"],
        ..INSIDE
    },
    CategoryPart {
        name: "-i8042",
        about: "there is no PS/2 controller (i8042=off; needs +pc)",
        arguments: &["-machine", "i8042=off"],
        ..INSIDE
    },
    CategoryPart {
        name: "+nomsi",
        about: "devices signal by lines and not by messages (pci=nomsi; needs +pc)",
        guest: &["pci=nomsi"],
        shows: Shows::Word("command line", "pci=nomsi"),
        ..INSIDE
    },
    CategoryPart {
        name: "+noapic",
        about: "interrupts of devices come by the PIC (noapic; needs +pc)",
        guest: &["noapic"],
        shows: Shows::Word("command line", "noapic"),
        ..INSIDE
    },
    CategoryPart {
        name: "+acpi-pm",
        about: "the VM's clock is the ACPI power management timer (needs +pc)",
        guest: &["clocksource=acpi_pm"],
        shows: Shows::Word("clocksource", "acpi_pm"),
        ..INSIDE
    },
    CategoryPart {
        name: "+hpet",
        about: "the VM's clock is the HPET (needs +pc)",
        guest: &["clocksource=hpet"],
        shows: Shows::Word("clocksource", "hpet"),
        ..INSIDE
    },
    CategoryPart {
        name: "+hpet-timer",
        about: "the VM's timer is the HPET's and not its APIC's (nolapic_timer; needs +pc)",
        guest: &["nolapic_timer"],
        shows: Shows::Word("command line", "nolapic_timer"),
        ..INSIDE
    },
    CategoryPart {
        name: "+hyperv",
        about: "the VM sees Hyper-V and not KVM, with Hyper-V's clock (hv-time), as Windows does (needs +pc)",
        cpu_flags: ",kvm=off,hv-relaxed,hv-vpindex,hv-time",
        ..INSIDE
    },
    CategoryPart {
        name: "+hv-vapic",
        about: "and ends interrupts in memory that it shares with KVM (hv-vapic; needs +hyperv)",
        cpu_flags: ",hv-vapic",
        ..INSIDE
    },
    CategoryPart {
        name: "+hv-frequencies",
        about: "and reads the frequencies of TSC and APIC timer in place of measuring them (hv-frequencies; needs +hyperv)",
        cpu_flags: ",hv-frequencies",
        ..INSIDE
    },
    CategoryPart {
        name: "+hv-ipi",
        about: "and sends interrupts to other vCPUs by hypercall (hv-ipi; needs +hyperv)",
        cpu_flags: ",hv-ipi",
        ..INSIDE
    },
    CategoryPart {
        name: "+hv-stimer",
        about: "and has Hyper-V's timers (hv-synic, hv-stimer, hv-stimer-direct; needs +hyperv)",
        cpu_flags: ",hv-synic,hv-stimer,hv-stimer-direct",
        ..INSIDE
    },
    CategoryPart {
        name: "+hv-tlbflush",
        about: "and flushes TLBs of other vCPUs by hypercall (hv-tlbflush; needs +hyperv)",
        cpu_flags: ",hv-tlbflush",
        ..INSIDE
    },
    CategoryPart {
        name: "-pv-ipi",
        about: "no hypercall for interrupts to many vCPUs (-kvm-pv-ipi)",
        cpu_flags: ",-kvm-pv-ipi",
        ..INSIDE
    },
    CategoryPart {
        name: "-pv-tlb-flush",
        about: "flushes of the TLBs of preempted vCPUs are not left to KVM (-kvm-pv-tlb-flush)",
        cpu_flags: ",-kvm-pv-tlb-flush",
        ..INSIDE
    },
    CategoryPart {
        name: "+spin-hint",
        about: "the VM is told that its vCPUs are not preempted (kvm-hint-dedicated=on)",
        cpu_flags: ",kvm-hint-dedicated=on",
        ..INSIDE
    },
    CategoryPart {
        name: "-kvmapf",
        about: "no asynchronous page faults (no-kvmapf)",
        guest: &["no-kvmapf"],
        shows: Shows::Word("command line", "no-kvmapf"),
        ..INSIDE
    },
    CategoryPart {
        name: "+swiotlb-small",
        about: "the same as +swiotlb, with a buffer of 2 MiB",
        device: ",iommu_platform=on",
        guest: &["swiotlb=1024,force"],
        shows: Shows::Word("command line", "swiotlb=1024,force"),
        ..INSIDE
    },
    CategoryPart {
        name: "+ksm",
        about: "the host merges equal pages without a pause",
        host: &[
            ("/sys/kernel/mm/ksm/pages_to_scan", "10000"),
            ("/sys/kernel/mm/ksm/sleep_millisecs", "0"),
            (files::KSM_RUN, "1"),
        ],
        ..INSIDE
    },
    CategoryPart {
        name: "+swapped",
        about: "the host writes the VM's memory to swap (zram) between warm-up and recording",
        swaps: true,
        ..INSIDE
    },
    CategoryPart {
        name: "+locked",
        about: "QEMU locks the VM's memory (-overcommit mem-lock=on)",
        arguments: &["-overcommit", "mem-lock=on"],
        ..INSIDE
    },
    CategoryPart {
        name: "+fragmented",
        about: "the host's free memory is in pieces of less than 64 KiB",
        fragmented: true,
        ..INSIDE
    },
    CategoryPart {
        name: "+thp-defer",
        about: "a page fault of the host does not make room for a huge page (transparent_hugepage/defrag=defer)",
        host: &[(files::THP_DEFRAG, "defer")],
        ..INSIDE
    },
    CategoryPart {
        name: "+hugetlb",
        about: "the VM's memory is of huge pages that the host reserved before (vm.nr_hugepages, hugetlbfs)",
        host: &[("/proc/sys/vm/nr_hugepages", "128")],
        arguments: &[
            "-object",
            "memory-backend-memfd,id=ram,size=256M,hugetlb=on,hugetlbsize=2M",
            "-machine",
            "memory-backend=ram",
        ],
        ..INSIDE
    },
    CategoryPart {
        name: "+numa-balancing",
        about: "the host has two NUMA nodes, and looks each 6 ms of a vCPU's time whether its memory is on the right one (kernel.numa_balancing)",
        two_nodes: true,
        host: &[
            ("/sys/kernel/debug/sched/numa_balancing/scan_delay_ms", "1"),
            ("/sys/kernel/debug/sched/numa_balancing/scan_period_min_ms", "1"),
            // The kernel looks at most once in 1 s / (2560 MiB / this).
            ("/sys/kernel/debug/sched/numa_balancing/scan_size_mb", "16"),
            ("/proc/sys/kernel/numa_balancing", "1"),
        ],
        ..INSIDE
    },
    CategoryPart {
        name: "-numa-balancing",
        about: "the host has two NUMA nodes, and leaves memory where it is (kernel.numa_balancing=0)",
        two_nodes: true,
        host: &[("/proc/sys/kernel/numa_balancing", "0")],
        ..INSIDE
    },
    CategoryPart {
        name: "+quota",
        about: "the VMM may use 10 % of a processor (cgroup2's cpu.max)",
        quota: Some(10),
        ..INSIDE
    },
    CategoryPart {
        name: "+rival",
        about: "a thread of the host computes all the time",
        rivals: 1,
        ..INSIDE
    },
    CategoryPart {
        name: "+vcpus-on-0",
        about: "all vCPUs run on the host's processor 0",
        pins: &[("CPU ", 0)],
        ..INSIDE
    },
    CategoryPart {
        name: "+vcpu0-on-1",
        about: "vCPU 0 runs on the host's processor 1 (needs a host of two)",
        pins: &[("CPU 0/", 1)],
        ..INSIDE
    },
    CategoryPart {
        name: "+vcpus-apart",
        about: "vCPU 0 runs on the host's processor 0, and vCPU 1 on 1 (needs +smp, and a host of two)",
        pins: &[("CPU 0/", 0), ("CPU 1/", 1)],
        ..INSIDE
    },
    CategoryPart {
        name: "+nohz-full",
        about: "vCPU 1 has no tick while one thread alone runs there (nohz_full=1; needs +smp)",
        guest: &["nohz_full=1"],
        shows: Shows::Word("command line", "nohz_full=1"),
        ..INSIDE
    },
    CategoryPart {
        name: "+rival-on-0",
        about: "the rival runs on the host's processor 0 (needs +rival)",
        pins: &[("rival", 0)],
        ..INSIDE
    },
    CategoryPart {
        name: "+io-on-0",
        about: "QEMU's main loop runs on the host's processor 0",
        pins: &[("qemu", 0)],
        ..INSIDE
    },
    CategoryPart {
        name: "+device-on-0",
        about: "a device of the host (its HPET) interrupts processor 0 four thousand times a second",
        interrupted: Some(0),
        ..INSIDE
    },
    CategoryPart {
        name: "+device-on-1",
        about: "the same, and the host's processor 1 (needs a host of two)",
        interrupted: Some(1),
        ..INSIDE
    },
];
