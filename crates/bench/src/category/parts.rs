//! The table of kinds of VM and of parts that are added to them.

use vmtax_lab::vm_parts::{HALT_POLL_NS, HPOLL, NO_TSC_DEADLINE, POLL, SWIOTLB, VHOST, VmPart};

use super::need::Need;
use crate::firmware::Guest;

/// A property of the disk of workloads that use one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// QEMU's cache mode.
    Cache(&'static str),
    /// How QEMU reads and writes the disk's file.
    Aio(&'static str),
    /// A thread of its own works on the disk's queue.
    Thread,
}

/// What makes a VM confidential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confidential {
    /// QEMU's object, without its identifier.
    pub object: &'static str,
    /// What its firmware is for.
    pub guest: Guest,
}

/// A part of a category.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its word in a category's name.
    pub name: &'static str,
    /// Description.
    pub about: &'static str,
    /// `-machine`, if not `pc`.
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
    /// Additions to `-netdev`, which is a tap.
    pub tap: &'static str,
    /// Several queues of the network card.
    pub queues: bool,
    /// The property of the disk that it changes.
    pub disk: Option<Disk>,
    /// Additions to the guest's command line, [to be filled in](vmtax_lab::vm_parts::fill).
    pub guest: &'static [&'static str],
    /// Modules loaded in the guest.
    pub modules: &'static [&'static str],
    /// Settings of the host while the VM runs: a file and its content.
    pub host: &'static [(&'static str, &'static str)],
    /// Each vCPU thread is pinned to a processor of its own.
    pub pinned: bool,
    /// Requirements.
    pub needs: &'static [Need],
    /// Facts of the guest that may differ from the baseline's, in addition to the command line.
    pub changes: &'static [&'static str],
    /// A fact of the guest, the word of it without which the guest does not have this part, and what its kernel then lacks.
    pub shows: Option<(&'static str, &'static str, &'static str)>,
    /// On an emulated host: what its memory is, if not transparent huge pages.
    pub backing: Option<&'static str>,
    /// Whether a VM on an emulated host supports it.
    pub on_emulated_host: bool,
}

const NONE: Part = Part {
    name: "",
    about: "",
    machine: None,
    cpu: None,
    cpu_flags: "",
    confidential: None,
    arguments: &[],
    device: "",
    tap: "",
    queues: false,
    disk: None,
    guest: &[],
    modules: &[],
    host: &[],
    pinned: false,
    needs: &[],
    changes: &[],
    shows: None,
    backing: None,
    on_emulated_host: false,
};

/// A part that `vmtax lab network` has, too.
const fn common(name: &'static str, part: &VmPart) -> Part {
    Part {
        name,
        about: part.about,
        cpu_flags: part.cpu,
        tap: part.netdev,
        device: part.device,
        guest: part.guest,
        modules: part.modules,
        ..NONE
    }
}

/// Two queues in each direction of a network card.
pub(super) const MULTI_QUEUE: &str = ",mq=on,vectors=6";

/// Anonymous memory for which huge pages are asked, as QEMU does: the memory of a VM of which nothing else is said.
pub(super) const THP: &str = "thp";

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
pub const KINDS: &[Part] = &[
    Part { name: "plain", about: "a VM with default settings", on_emulated_host: true, ..NONE },
    Part {
        name: "snp",
        about: "a confidential VM: AMD SEV-SNP",
        machine: Some("q35,memory-backend=ram0"),
        cpu: Some("EPYC-v4,host-phys-bits=true"),
        confidential: Some(Confidential {
            object: "sev-snp-guest,cbitpos=51,reduced-phys-bits=1",
            guest: Guest::Snp,
        }),
        guest: VIRTIO_MAILBOX,
        arguments: &["-object", "memory-backend-memfd,id=ram0,size={memory}M,share=true"],
        device: ",iommu_platform=on,disable-legacy=on",
        needs: &[Need::Kvm, Need::Snp],
        changes: CONFIDENTIAL,
        ..NONE
    },
    Part {
        name: "tdx",
        about: "a confidential VM: Intel TDX",
        machine: Some("q35,kernel_irqchip=split"),
        cpu: Some("host,pmu=off"),
        confidential: Some(Confidential { object: "tdx-guest", guest: Guest::Tdx }),
        guest: VIRTIO_MAILBOX,
        device: ",iommu_platform=on,disable-legacy=on",
        needs: &[Need::Kvm, Need::Tdx],
        changes: CONFIDENTIAL,
        ..NONE
    },
    Part {
        name: "private",
        about: "a software-protected VM (KVM_X86_SW_PROTECTED_VM): data of programs is in private memory, the kernel's is shared",
        // Data of programs is movable, and at the upper end; text of programs in a ramfs is not. The last word is for the agent.
        guest: &["kernelcore=50%", "rootfstype=ramfs", "vmtax.private"],
        backing: Some("private"),
        needs: &[Need::Protected],
        on_emulated_host: true,
        ..NONE
    },
];

/// The part that separates the VM from the guest inside.
pub(super) const NESTED: &str = "nested";

/// Parts. Sources: the categories of "Performance analysis of confidential VMs" (TU Munich, 2024), the kernel's documentation of each word.
pub const PARTS: &[Part] = &[
    Part { needs: &[Need::Vhost, Need::Tap], ..common("vhost", &VHOST) },
    Part {
        name: "vhost-user",
        about: "the network card's queues are worked on by a program of the host, such as DPDK's",
        needs: &[Need::VhostUser],
        ..NONE
    },
    Part {
        name: "mq",
        about: "the network card has two queues in each direction",
        queues: true,
        device: MULTI_QUEUE,
        needs: &[Need::Tap],
        ..NONE
    },
    Part {
        name: "direct",
        about: "the disk's file is read and written past the host's page cache (cache=none)",
        disk: Some(Disk::Cache("none")),
        ..NONE
    },
    Part {
        name: "writethrough",
        about: "each write to the disk reaches its file before it completes in the guest (cache=writethrough)",
        disk: Some(Disk::Cache("writethrough")),
        ..NONE
    },
    Part {
        name: "unsafe",
        about: "the disk ignores the guest's flushes (cache=unsafe)",
        disk: Some(Disk::Cache("unsafe")),
        ..NONE
    },
    Part {
        name: "io-uring",
        about: "QEMU reads and writes the disk's file by io_uring, not by threads",
        disk: Some(Disk::Aio("io_uring")),
        ..NONE
    },
    Part {
        name: "native",
        about: "QEMU reads and writes the disk's file by Linux AIO; after +direct",
        disk: Some(Disk::Aio("native")),
        ..NONE
    },
    Part {
        name: "iothread",
        about: "a dedicated I/O thread serves the disk's queue instead of QEMU's main loop",
        disk: Some(Disk::Thread),
        ..NONE
    },
    Part {
        changes: &["memory", "bounce buffer slots", "devices"],
        on_emulated_host: true,
        ..common("swiotlb", &SWIOTLB)
    },
    Part {
        changes: &["idle driver", "idle governor"],
        on_emulated_host: true,
        ..common("poll", &POLL)
    },
    Part {
        needs: &[Need::Kvm],
        changes: &["idle driver", "idle governor"],
        shows: Some((
            "idle governor",
            "haltpoll",
            "this kernel has the idle driver haltpoll without its governor, and would not poll (CONFIG_CPU_IDLE_GOV_HALTPOLL)",
        )),
        on_emulated_host: true,
        ..common("hpoll", &HPOLL)
    },
    Part {
        host: HALT_POLL_NS.host,
        needs: &[Need::Kvm, Need::HaltPoll],
        on_emulated_host: true,
        ..common("halt_poll_ns", &HALT_POLL_NS)
    },
    Part {
        needs: &[Need::Kvm],
        changes: &["processor flags"],
        ..common("notscdeadline", &NO_TSC_DEADLINE)
    },
    Part {
        name: "hugepages",
        about: "the VM's memory lies in huge pages, taken before it starts",
        machine: Some("pc,memory-backend=ram0"),
        arguments: &[
            "-object",
            "memory-backend-memfd,id=ram0,size={memory}M,hugetlb=on,prealloc=on",
        ],
        needs: &[Need::HugePages],
        ..NONE
    },
    Part {
        name: "gmem",
        about: "the VM's memory is a guest_memfd, as a confidential VM's is: mapped in pages of 4 KiB up to Linux 7.3",
        backing: Some("guest-memfd"),
        needs: &[Need::GuestMemfd],
        on_emulated_host: true,
        ..NONE
    },
    Part {
        name: "pinned",
        about: "each vCPU thread is pinned to its own processor",
        pinned: true,
        needs: &[Need::Processors],
        ..NONE
    },
    Part {
        name: NESTED,
        about: "the workload runs in a guest of the VM; parts after this one are the guest's",
        needs: &[Need::Nested],
        changes: &["processor", "processor flags", "clocksource", "idle driver", "idle governor"],
        on_emulated_host: true,
        ..NONE
    },
];
