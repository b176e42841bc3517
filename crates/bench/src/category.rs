//! VM categories: a plain VM, and parts that each change one property of it.
//!
//! A category is written as `plain`, `snp`, `tdx` or `private` and the parts added to it: `plain+swiotlb+poll`. Its baseline is the category
//! without its last part; the baseline of the other kinds is `plain`. One table has what each part changes, and the parity check
//! permits no other difference. `nested` separates two systems: parts before it apply to the VM, parts after it to the guest inside,
//! in which the workload runs.

use std::fs;
use std::path::Path;

use vmtax_machine::{Descriptor, Options};

use crate::link::{ALONE, End, Link, Netdev, QUEUES};
use crate::target::{Accel, Target};

/// A requirement on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A KVM, on hardware or on an emulated host.
    Kvm,
    /// A KVM on an emulated host that supports nested guests.
    Nested,
    /// SEV-SNP.
    Snp,
    /// TDX.
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
}

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
    /// Additions to the guest's command line.
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
    backing: None,
    on_emulated_host: false,
};

/// Two queues in each direction of a network card.
const MULTI_QUEUE: &str = ",mq=on,vectors=6";

/// Anonymous memory for which huge pages are asked, as QEMU does: the memory of a VM of which nothing else is said.
const THP: &str = "thp";

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

/// Kinds of VM. Source of the flags: QEMU's documentation of `sev-snp-guest` and `tdx-guest`; of the kernel's words its
/// kernel-parameters.txt.
pub const KINDS: &[Part] = &[
    Part { name: "plain", about: "a VM with default settings", on_emulated_host: true, ..NONE },
    Part {
        name: "snp",
        about: "a confidential VM: AMD SEV-SNP",
        machine: Some("q35,memory-encryption=sev0,memory-backend=ram0"),
        cpu: Some("EPYC-v4,host-phys-bits=true"),
        arguments: &[
            "-object",
            "sev-snp-guest,id=sev0,cbitpos=51,reduced-phys-bits=1",
            "-object",
            "memory-backend-memfd,id=ram0,size={memory}M,share=true",
        ],
        device: ",iommu_platform=on,disable-legacy=on",
        needs: &[Need::Kvm, Need::Snp],
        changes: CONFIDENTIAL,
        ..NONE
    },
    Part {
        name: "tdx",
        about: "a confidential VM: Intel TDX",
        machine: Some("q35,kernel_irqchip=split,confidential-guest-support=tdx"),
        cpu: Some("host,pmu=off"),
        arguments: &["-object", "tdx-guest,id=tdx"],
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
const NESTED: &str = "nested";

/// Parts. Sources: the categories of "Performance analysis of confidential VMs" (TU Munich, 2024), the kernel's documentation of each word.
pub const PARTS: &[Part] = &[
    Part {
        name: "vhost",
        about: "the network card's queues are worked on in the host's kernel",
        tap: ",vhost=on",
        needs: &[Need::Vhost, Need::Tap],
        ..NONE
    },
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
        name: "swiotlb",
        about: "all that devices read and write goes through a bounce buffer of 64 MiB, as a confidential VM's does",
        guest: &["swiotlb=32768,force"],
        // Without it virtio devices do not use the DMA interface, and bypass the buffer.
        device: ",iommu_platform=on,disable-legacy=on",
        changes: &["memory", "bounce buffer slots", "devices"],
        on_emulated_host: true,
        ..NONE
    },
    Part {
        name: "poll",
        about: "an idle vCPU polls and never halts",
        guest: &["idle=poll"],
        changes: &["idle driver", "idle governor"],
        on_emulated_host: true,
        ..NONE
    },
    Part {
        name: "haltpoll",
        about: "an idle vCPU polls for a while before it halts",
        guest: &["cpuidle_haltpoll.force=Y"],
        modules: &["cpuidle_haltpoll"],
        needs: &[Need::Kvm],
        changes: &["idle driver", "idle governor"],
        on_emulated_host: true,
        ..NONE
    },
    Part {
        name: "hpoll",
        about: "the host polls for up to 200 us before a halted vCPU's thread sleeps",
        host: &[("/sys/module/kvm/parameters/halt_poll_ns", "200000")],
        needs: &[Need::Kvm, Need::HaltPoll],
        on_emulated_host: true,
        ..NONE
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

/// A category of a matrix.
#[derive(Clone, Debug)]
pub struct Category {
    /// As written.
    pub name: String,
    /// The kind, then what was added.
    parts: Vec<&'static Part>,
}

impl Category {
    /// Reads `plain+poll`; the error says what is known.
    pub fn read(name: &str) -> Result<Category, String> {
        let mut words = name.split('+').map(str::trim);
        let kind = words.next().unwrap_or_default();
        let known =
            |parts: &[Part]| parts.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
        let unknown = |word: &str, parts| {
            format!("category {name:?}: {word:?} is not one of {}", known(parts))
        };
        let kind =
            KINDS.iter().find(|part| part.name == kind).ok_or_else(|| unknown(kind, KINDS))?;
        let mut parts = vec![kind];
        for word in words {
            let part =
                PARTS.iter().find(|part| part.name == word).ok_or_else(|| unknown(word, PARTS))?;
            if parts.iter().any(|other| other.name == word) {
                return Err(format!("category {name:?}: {word:?} is listed twice"));
            }
            parts.push(part);
        }
        if parts.iter().filter(|part| part.backing.is_some()).count() > 1 {
            return Err(format!(
                "category {name:?}: its parts want different memory; take one of them"
            ));
        }
        if parts.iter().filter(|part| part.machine.is_some()).count() > 1 {
            return Err(format!(
                "category {name:?}: its parts want different machines; take one of them"
            ));
        }
        let name = parts.iter().map(|part| part.name).collect::<Vec<_>>().join("+");
        let disks = |kind: fn(Disk) -> bool| {
            parts.iter().filter(|part| part.disk.is_some_and(kind)).count()
        };
        if disks(|disk| matches!(disk, Disk::Cache(_))) > 1
            || disks(|disk| matches!(disk, Disk::Aio(_))) > 1
        {
            return Err(format!(
                "category {name:?}: its parts set the same property of the disk; take one of them"
            ));
        }
        let has = |word: &str| parts.iter().any(|part| part.name == word);
        if has("native") && !has("direct") {
            return Err(format!(
                "category {name:?}: native needs direct; write plain+direct+native"
            ));
        }
        Ok(Category { name, parts })
    }

    /// The VM with default settings.
    pub(crate) fn plain() -> Category {
        Category { name: KINDS[0].name.to_owned(), parts: vec![&KINDS[0]] }
    }

    /// The category that it is compared with where a matrix names no other; `None` for `plain`.
    pub fn baseline(&self) -> Option<Category> {
        let mut parts = self.parts.clone();
        let last = parts.pop()?;
        if parts.is_empty() {
            return (last.name != KINDS[0].name).then(Category::plain);
        }
        let name = parts.iter().map(|part| part.name).collect::<Vec<_>>().join("+");
        Some(Category { name, parts })
    }

    /// What its parts are.
    pub fn about(&self) -> Vec<&'static str> {
        self.parts.iter().map(|part| part.about).collect()
    }

    /// QEMU's arguments but those that every machine has.
    pub(crate) fn options(&self, memory_mib: u32, end: &End, disk: Option<&Descriptor>) -> Options {
        let mut device = String::new();
        for words in self.parts.iter().map(|part| part.device) {
            // Two parts may want the same.
            if !device.contains(words) {
                device.push_str(words);
            }
        }
        let tap: String = self.parts.iter().map(|part| part.tap).collect();
        let network = match end.netdev.as_str() {
            "" => format!("{ALONE},id=net0"),
            netdev => format!("{netdev},id=net0{tap}"),
        };
        let fill = |word: &&str| word.replace("{memory}", &memory_mib.to_string());
        let mut arguments: Vec<String> =
            self.parts.iter().flat_map(|part| part.arguments.iter().map(fill)).collect();
        arguments.extend(["-netdev".to_owned(), network]);
        let mac = if end.is_peer { ",mac=52:54:00:76:6d:02" } else { "" };
        // No option ROM: nothing boots from the network, and its package may be missing.
        let card = format!("virtio-net-pci,netdev=net0,romfile={device}{mac}");
        arguments.extend(["-device".to_owned(), card]);
        let mut descriptors = end.descriptors.clone();
        if let Some(disk) = disk {
            arguments.extend(self.disk(descriptors.len(), &device.replace(MULTI_QUEUE, "")));
            descriptors.push(disk.clone());
        }
        Options {
            machine: self.parts.iter().find_map(|part| part.machine).map(str::to_owned),
            cpu: self.parts.iter().find_map(|part| part.cpu).map(str::to_owned),
            arguments,
            descriptors,
        }
    }

    /// QEMU's arguments for a disk in the file that is this descriptor.
    fn disk(&self, descriptor: usize, device: &str) -> Vec<String> {
        let mut drive = format!(
            "if=none,id=disk0,format=raw,file.locking=off,file=/proc/self/fd/{{fd{descriptor}}}"
        );
        let mut device = format!("virtio-blk-pci,drive=disk0{device}");
        let mut arguments = Vec::new();
        for disk in self.parts.iter().filter_map(|part| part.disk) {
            match disk {
                Disk::Cache(mode) => drive.push_str(&format!(",cache={mode}")),
                Disk::Aio(kind) => drive.push_str(&format!(",aio={kind}")),
                Disk::Thread => {
                    arguments.extend(["-object".to_owned(), "iothread,id=io0".to_owned()]);
                    device.push_str(",iothread=io0");
                }
            }
        }
        arguments.extend(["-drive".to_owned(), drive, "-device".to_owned(), device]);
        arguments
    }

    /// Parts that change the disk, of a matrix without one.
    pub(crate) fn missing_disk(&self) -> Option<String> {
        let part = self.parts.iter().find(|part| part.disk.is_some())?;
        let name = part.name;
        Some(format!(
            "{name}: changes the disk, which no workload of the matrix uses; add fio-disk"
        ))
    }

    /// Queues of its network card in each direction.
    pub(crate) fn queues(&self) -> u32 {
        if self.parts.iter().any(|part| part.queues) { QUEUES } else { 1 }
    }

    /// What its network card needs and this link does not give.
    pub(crate) fn missing_link(&self, link: Option<Link>) -> Option<String> {
        let part = self.parts.iter().find(|part| part.needs.contains(&Need::Tap))?;
        let problem = match link.map(|link| link.netdev) {
            Some(Netdev::Tap) => return None,
            Some(other) => format!("needs a tap, and the workload's network is {:?}; write network = \"tap\" in [vm]", other.name()),
            None => "changes the network card, which a workload in one system does not use; give the workload client = \"host\" or \"peer\", and network = \"tap\" in [vm]".to_owned(),
        };
        Some(format!("{}: {problem}", part.name))
    }

    /// Words on the command line of the guest in which workloads run.
    pub fn guest_words(&self) -> Vec<&'static str> {
        self.levels().last().map_or(Vec::new(), |parts| words(parts))
    }

    /// Modules of that guest, besides those that every guest has.
    pub fn modules(&self) -> Vec<&'static str> {
        self.levels().last().map_or(Vec::new(), |parts| modules(parts))
    }

    /// Words, modules and kind of memory of the VM and, where it is nested, of the guest in it.
    pub fn guests(&self) -> Vec<(Vec<&'static str>, Vec<&'static str>, &'static str)> {
        let backing = |parts: &[&'static Part]| parts.iter().find_map(|part| part.backing);
        self.levels()
            .iter()
            .map(|parts| (words(parts), modules(parts), backing(parts).unwrap_or(THP)))
            .collect()
    }

    /// The parts of the VM, then those of the guest in it.
    fn levels(&self) -> Vec<&[&'static Part]> {
        self.parts.split(|part| part.name == NESTED).collect()
    }

    /// What cannot be of it on an emulated host, a sentence each.
    fn impossible(&self) -> Vec<String> {
        let cannot = |part: &&&Part| !part.on_emulated_host;
        let sentence = |part: &&Part| {
            format!(
                "{}: not available on an emulated host, which lacks the hardware and has one processor",
                part.name
            )
        };
        let mut impossible: Vec<String> = self.parts.iter().filter(cannot).map(sentence).collect();
        let has = |need: Need| self.parts.iter().any(|part| part.needs.contains(&need));
        if has(Need::Protected) && has(Need::Nested) {
            impossible.push(format!(
                "{}: the host's KVM reads the nested guest's code through the shared mapping, and it is in private memory",
                self.name
            ));
        }
        impossible
    }

    /// Settings of the host while it runs.
    pub fn host_settings(&self) -> Vec<(&'static str, &'static str)> {
        self.parts.iter().flat_map(|part| part.host.iter().copied()).collect()
    }

    /// Whether each vCPU has a processor of its own.
    pub fn is_pinned(&self) -> bool {
        self.parts.iter().any(|part| part.pinned)
    }

    /// Facts that may differ from the other category's.
    pub fn changes_against(&self, other: &Category) -> Vec<&'static str> {
        let only = |a: &Category, b: &Category| -> Vec<&'static str> {
            let parts =
                a.parts.iter().filter(|part| !b.parts.iter().any(|other| other.name == part.name));
            parts.flat_map(|part| part.changes.iter().copied()).collect()
        };
        let mut changes = only(self, other);
        changes.extend(only(other, self));
        changes
    }

    /// All that this host lacks for it; each is a sentence.
    pub fn missing(&self, accel: Accel, target: &Target, root: &Path) -> Vec<String> {
        let (cpus, memory_mib) = (target.cpus, target.memory);
        let host = HostView { root, accel, cpus, memory_mib };
        if accel.is_emulated_host() {
            // It brings its own KVM, and nothing of this host.
            return self.impossible();
        }
        let mut missing = Vec::new();
        for part in &self.parts {
            for need in part.needs {
                if let Some(problem) = need.missing(&host) {
                    missing.push(format!("{}: {problem}", part.name));
                }
            }
        }
        missing
    }
}

/// The host's properties that requirements are checked against.
struct HostView<'a> {
    root: &'a Path,
    accel: Accel,
    cpus: u32,
    memory_mib: u32,
}

impl HostView<'_> {
    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.root.join(file)).ok().map(|text| text.trim().to_owned())
    }

    /// Whether a module's switch is on.
    fn is_on(&self, file: &str) -> bool {
        self.read(file).is_some_and(|value| ["Y", "1"].contains(&value.as_str()))
    }
}

impl Need {
    /// What is missing, as a sentence without its end; `None` when it is there.
    fn missing(self, host: &HostView<'_>) -> Option<String> {
        let unless = |there: bool, problem: &str| (!there).then(|| problem.to_owned());
        match self {
            Need::Kvm => unless(
                host.accel == Accel::Kvm,
                "needs KVM: QEMU's emulator alone offers nothing of it (accel = \"kvm\", or \"amd\" for an emulated host)",
            ),
            Need::Nested => Some(
                "vmtax bench starts a guest in its guest on an emulated host only (accel = \"amd\" or \"intel\"); on \
                 hardware start one of your own and name it under [ssh]"
                    .to_owned(),
            ),
            Need::GuestMemfd => Some(
                "QEMU gives no ordinary VM memory of guest_memfd; vmtax's own VMM does, on an emulated host (accel = \"amd\" or \"intel\")"
                    .to_owned(),
            ),
            Need::Protected => Some(
                "QEMU makes no software-protected VMs; vmtax's own VMM does, on an emulated host (accel = \"amd\" or \"intel\") with KVM of ./x kvm-modules"
                    .to_owned(),
            ),
            Need::Snp => unless(
                host.is_on("sys/module/kvm_amd/parameters/sev_snp"),
                "/sys/module/kvm_amd/parameters/sev_snp is not Y: the processor, its firmware or the kernel has no SEV-SNP",
            ),
            Need::Tdx => unless(
                host.is_on("sys/module/kvm_intel/parameters/tdx"),
                "/sys/module/kvm_intel/parameters/tdx is not Y: the processor, its firmware or the kernel has no TDX",
            ),
            Need::Vhost => unless(
                host.root.join("dev/vhost-net").exists(),
                "/dev/vhost-net is missing: load vhost_net",
            ),
            Need::Tap => tap_missing(host.root),
            Need::VhostUser => Some(
                "vmtax starts no program that works on queues of a network card (vhost-user); use +vhost".to_owned(),
            ),
            Need::HugePages => huge_pages(host),
            Need::Processors => {
                let there = processors().len();
                (there < host.cpus as usize).then(|| {
                    format!(
                        "{} vCPUs need as many processors, and this host offers {there}",
                        host.cpus
                    )
                })
            }
            Need::HaltPoll => unless(
                fs::OpenOptions::new()
                    .write(true)
                    .open(host.root.join("sys/module/kvm/parameters/halt_poll_ns"))
                    .is_ok(),
                "/sys/module/kvm/parameters/halt_poll_ns cannot be written: load kvm, and run as root",
            ),
        }
    }
}

/// The processors that this process may use, in order.
pub(crate) fn processors() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    let is_in = |number: &usize| set.as_ref().is_ok_and(|set| set.is_set(*number));
    (0..rustix::thread::CpuSet::MAX_CPU).filter(is_in).collect()
}

/// Why no tap can be made; `None` if one can.
pub(crate) fn tap_missing(root: &Path) -> Option<String> {
    if !root.join("dev/net/tun").exists() {
        return Some("/dev/net/tun is missing: load tun".to_owned());
    }
    (!rustix::process::geteuid().is_root())
        .then(|| "a tap and its network namespace need root".to_owned())
}

fn words(parts: &[&'static Part]) -> Vec<&'static str> {
    parts.iter().flat_map(|part| part.guest.iter().copied()).collect()
}

fn modules(parts: &[&'static Part]) -> Vec<&'static str> {
    parts.iter().flat_map(|part| part.modules.iter().copied()).collect()
}

fn huge_pages(host: &HostView<'_>) -> Option<String> {
    let text = host.read("proc/meminfo").unwrap_or_default();
    let number = |key: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        line.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
    };
    let (free, size) = (number("HugePages_Free:"), number("Hugepagesize:").max(1));
    let wanted = (u64::from(host.memory_mib) << 10).div_ceil(size);
    (free < wanted)
        .then(|| format!("{wanted} free huge pages are needed and {free} are there: sysctl vm.nr_hugepages={wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_are_read_and_have_baselines() {
        let name = |word: &str| Category::read(word).map(|category| category.name);
        assert_eq!(name("plain + poll").unwrap(), "plain+poll");
        for wrong in ["", "poll", "plain+", "plain+poll+poll", "plain+x", "snp+hugepages", "PLAIN"]
        {
            assert!(name(wrong).is_err(), "{wrong}");
        }
        let baseline = |word: &str| Category::read(word).unwrap().baseline().map(|c| c.name);
        assert_eq!(baseline("plain"), None);
        assert_eq!(baseline("snp").unwrap(), "plain");
        assert_eq!(baseline("snp+poll").unwrap(), "snp");
        assert_eq!(baseline("plain+swiotlb+poll").unwrap(), "plain+swiotlb");
    }

    #[test]
    fn a_host_that_lacks_everything_says_what() {
        let root = std::path::Path::new("/nonexistent");
        for part in KINDS.iter().skip(1).chain(PARTS.iter().filter(|part| !part.needs.is_empty())) {
            let base = if KINDS.iter().any(|kind| kind.name == part.name) {
                String::new()
            } else {
                "plain+".to_owned()
            };
            let category = Category::read(&format!("{base}{}", part.name)).unwrap();
            let target = Target { cpus: 1 << 20, ..Target::default() };
            let missing = category.missing(Accel::Tcg, &target, root);
            assert!(!missing.is_empty(), "{}", part.name);
        }
        for free in ["plain", "plain+poll", "plain+swiotlb"] {
            let category = Category::read(free).unwrap();
            for accel in [Accel::Kvm, Accel::Tcg, Accel::Amd] {
                let missing = category.missing(accel, &Target::default(), root);
                assert!(missing.is_empty(), "{free}: {missing:?}");
            }
        }
    }

    #[test]
    fn an_emulated_host_has_its_own_kvm_and_no_hardware() {
        let missing = |name: &str| {
            let category = Category::read(name).unwrap();
            category.missing(Accel::Intel, &Target::default(), std::path::Path::new("/nonexistent"))
        };
        assert!(missing("plain+haltpoll+nested+poll").is_empty());
        for (name, part) in
            [("plain+pinned+poll", "pinned"), ("snp", "snp"), ("plain+vhost", "vhost")]
        {
            let missing = missing(name);
            assert_eq!(missing.len(), 1, "{missing:?}");
            assert!(missing[0].starts_with(&format!("{part}: not available on an emulated host")));
        }
    }

    #[test]
    fn parts_after_nested_are_those_of_the_inner_guest() {
        let category = Category::read("plain+poll+nested+swiotlb+haltpoll").unwrap();
        let guests = category.guests();
        assert_eq!(guests[0], (vec!["idle=poll"], vec![], "thp"));
        let inner =
            (vec!["swiotlb=32768,force", "cpuidle_haltpoll.force=Y"], vec!["cpuidle_haltpoll"]);
        assert_eq!(guests[1], (inner.0.clone(), inner.1.clone(), "thp"));
        assert_eq!((category.guest_words(), category.modules()), inner);
        assert_eq!(category.baseline().unwrap().name, "plain+poll+nested+swiotlb");
        let plain = Category::read("plain+nested").unwrap();
        assert_eq!(plain.guests(), [(vec![], vec![], "thp"), (vec![], vec![], "thp")]);
        // Memory of guest_memfd is that of the VM it is added to.
        let gmem = Category::read("plain+gmem+nested").unwrap();
        let private = Category::read("private+poll").unwrap();
        let words = vec!["kernelcore=50%", "rootfstype=ramfs", "vmtax.private", "idle=poll"];
        assert_eq!(private.guests(), [(words, vec![], "private")]);
        assert_eq!(Category::read("private").unwrap().baseline().unwrap().name, "plain");
        assert!(Category::read("private+gmem").is_err());
        assert_eq!(gmem.guests(), [(vec![], vec![], "guest-memfd"), (vec![], vec![], "thp")]);
        assert_eq!(gmem.baseline().unwrap().name, "plain+gmem");
    }
}
