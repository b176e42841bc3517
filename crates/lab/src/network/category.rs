//! Categories of VMs of `vmtax lab network`: a plain VM, and parts that each change one property of it.

use std::collections::BTreeSet;

use vmtax_events::setting::files;
use vmtax_guest::traffic::{Pin, Pressure, Role, Seen};

use super::site::VM_MIB;
use crate::vm_parts::{HALT_POLL_NS, HPOLL, NO_TSC_DEADLINE, POLL, SWIOTLB, VHOST, VmPart, fill};

/// A part of a category.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its word in a category's name, with its sign.
    pub name: &'static str,
    /// Description.
    pub about: &'static str,
    /// Added to `-cpu host`.
    cpu: &'static str,
    /// It has KVM's PV EOI.
    pv_eoi: bool,
    /// The machine, if not [`MICROVM`].
    machine: Option<&'static str>,
    /// The card's device, if not virtio's.
    card_model: Option<&'static str>,
    /// The disk's device, if not virtio's.
    disk_model: Option<&'static str>,
    /// Added to the devices, network card and disk.
    device: &'static str,
    /// Added to the disk.
    disk: &'static str,
    /// Further arguments of QEMU.
    arguments: &'static [&'static str],
    /// Added to the tap's netdev.
    netdev: &'static str,
    /// Words on the kernel's command line.
    words: &'static [&'static str],
    /// vCPUs, if not one.
    vcpus: Option<u32>,
    /// Modules that the VM loads beside those of every VM.
    modules: &'static [&'static str],
    /// Settings of the host: file and content.
    settings: &'static [(&'static str, &'static str)],
    /// The host's free memory is in pieces.
    fragmented: bool,
    /// The host writes the VM's memory to swap between warm-up and recording.
    swaps: bool,
    /// The host has two NUMA nodes.
    two_nodes: bool,
    /// Threads of the host that compute.
    rivals: u32,
    /// Threads of QEMU or rivals, by how their names start, and their only processor.
    pins: &'static [(&'static str, u32)],
    /// The processor of the host that a device interrupts.
    interrupted: Option<u32>,
    /// What shows that the VM has it.
    shows: Shows,
    /// It can be before `+nested`: it is not about card and disk, which no workload uses in L1.
    before_nested: bool,
}

/// What shows in a VM's facts, or on the host, that it has a part.
#[derive(Clone, Copy, Debug)]
enum Shows {
    Nothing,
    /// This fact has this word.
    Word(&'static str, &'static str),
    /// This fact does not have this word.
    NoWord(&'static str, &'static str),
    /// A thread of the host with this role, which is so called.
    Thread(Role, &'static str),
}

const NONE: Part = Part {
    name: "",
    about: "",
    cpu: "",
    pv_eoi: false,
    machine: None,
    card_model: None,
    disk_model: None,
    device: "",
    disk: "",
    arguments: &[],
    netdev: "",
    words: &[],
    vcpus: None,
    modules: &[],
    settings: &[],
    fragmented: false,
    swaps: false,
    two_nodes: false,
    rivals: 0,
    pins: &[],
    interrupted: None,
    shows: Shows::Nothing,
    before_nested: false,
};

/// A part that `vmtax bench` has, too.
const fn common(name: &'static str, part: &VmPart) -> Part {
    Part {
        name,
        about: part.about,
        cpu: part.cpu,
        device: part.device,
        netdev: part.netdev,
        words: part.guest,
        modules: part.modules,
        settings: part.host,
        shows: match part.shows {
            Some((fact, word)) => Shows::Word(fact, word),
            None => Shows::Nothing,
        },
        ..NONE
    }
}

/// PCI for interrupts by message (MSI-X); none of the devices of a PC that would take exits of their own.
const MICROVM: &str = "microvm,pcie=on,pit=off,pic=off,rtc=off";

/// Settings of the host of every VM. No polling unless a part wants it: it replaces waking a thread by using the processor. QEMU asks for huge pages for
/// the VM's memory.
const SETTINGS: [(&str, &str); 3] =
    [(files::HALT_POLL, "0"), (files::THP, "madvise"), (files::THP_DEFRAG, "madvise")];

/// The part that makes the VM a guest of L1. It divides a category: parts before it are L1's, parts after it the VM's.
const NESTED: &str = "+nested";

/// The kind of VM to which parts are added.
pub const PLAIN: &str = "plain";

/// Parts. Source: the categories of "Performance analysis of confidential VMs" (TU Munich, 2024).
pub const PARTS: &[Part] = &[
    Part { shows: Shows::Thread(Role::Vhost, "vhost thread"), ..common("+vhost", &VHOST) },
    common("+swiotlb", &SWIOTLB),
    Part { before_nested: true, ..common("+poll", &POLL) },
    common("+hpoll", &HPOLL),
    Part { before_nested: true, ..common("+halt_poll_ns", &HALT_POLL_NS) },
    Part {
        name: "+smp",
        about: "two vCPUs: the card's interrupts are for the first, and the server runs on the second",
        vcpus: Some(2),
        shows: Shows::Word("processors", "2"),
        ..NONE
    },
    Part {
        name: "+smp4",
        about: "four vCPUs",
        vcpus: Some(4),
        shows: Shows::Word("processors", "4"),
        ..NONE
    },
    Part {
        name: "+iothread",
        about: "a thread of its own serves the disk's queue, not QEMU's main loop",
        disk: ",iothread=io0",
        arguments: &["-object", "iothread,id=io0"],
        shows: Shows::Thread(Role::Io, "I/O thread of QEMU"),
        ..NONE
    },
    Part {
        name: "-ioeventfd",
        about: "each notification of card and disk is handled by the vCPU's thread in QEMU, and not turned into an eventfd by KVM",
        device: ",ioeventfd=off",
        ..NONE
    },
    Part {
        shows: Shows::NoWord("processor flags", "tsc_deadline_timer"),
        before_nested: true,
        ..common("-tsc-deadline", &NO_TSC_DEADLINE)
    },
    Part {
        name: "-x2apic",
        about: "the APIC's registers are in memory (MMIO), and not MSRs",
        cpu: ",-x2apic",
        shows: Shows::NoWord("processor flags", "x2apic"),
        before_nested: true,
        ..NONE
    },
    Part {
        name: "+pv-eoi",
        about: "the VM ends interrupts in memory that it shares with KVM (kvm-pv-eoi, which is on by default outside the lab)",
        pv_eoi: true,
        ..NONE
    },
    Part {
        name: "-thp",
        about: "the host backs the VM with pages of 4 KiB (transparent_hugepage=never)",
        settings: &[(files::THP, "never")],
        ..NONE
    },
    Part {
        name: "+pc",
        about: "the machine is a PC, with HPET, PIT, real-time clock and IDE",
        machine: Some("pc,vmport=off"),
        // A ROM of kvmvapic makes QEMU write all registers back. The type of the TSS is then one (11, busy) with which TCG's `check_io`
        // refuses port accesses of the guest's programs, and the first process makes one.
        arguments: &["-global", "apic-common.vapic=off"],
        ..NONE
    },
    Part {
        name: "+ide",
        about: "the disk is on IDE (needs +pc)",
        disk_model: Some("ide-hd,drive=disk0,bus=ide.0"),
        modules: &["ata_piix", "sd_mod"],
        ..NONE
    },
    Part {
        name: "+nvme",
        about: "the disk is on NVMe",
        disk_model: Some("nvme,drive=disk0,serial=vmtax"),
        modules: &["nvme"],
        ..NONE
    },
    Part {
        name: "+e1000",
        about: "the card is an e1000 (needs +pc)",
        card_model: Some("e1000,netdev=net0,romfile="),
        modules: &["e1000"],
        ..NONE
    },
    Part {
        name: "+nomsi",
        about: "devices signal by lines and not by messages (pci=nomsi; needs +pc)",
        words: &["pci=nomsi"],
        shows: Shows::Word("command line", "pci=nomsi"),
        ..NONE
    },
    Part {
        name: "+noapic",
        about: "interrupts of devices come by the PIC (noapic; needs +pc)",
        words: &["noapic"],
        shows: Shows::Word("command line", "noapic"),
        ..NONE
    },
    Part {
        name: "+acpi-pm",
        about: "the VM's clock is the ACPI power management timer (needs +pc)",
        words: &["clocksource=acpi_pm"],
        shows: Shows::Word("clocksource", "acpi_pm"),
        ..NONE
    },
    Part {
        name: "+hpet",
        about: "the VM's clock is the HPET (needs +pc)",
        words: &["clocksource=hpet"],
        shows: Shows::Word("clocksource", "hpet"),
        ..NONE
    },
    Part {
        name: "+hpet-timer",
        about: "the VM's timer is the HPET's and not its APIC's (nolapic_timer; needs +pc)",
        words: &["nolapic_timer"],
        shows: Shows::Word("command line", "nolapic_timer"),
        ..NONE
    },
    Part {
        name: "+hyperv",
        about: "the VM sees Hyper-V and not KVM, with Hyper-V's clock (hv-time), as Windows does (needs +pc)",
        cpu: ",kvm=off,hv-relaxed,hv-vpindex,hv-time",
        ..NONE
    },
    Part {
        name: "+hv-vapic",
        about: "and ends interrupts in memory that it shares with KVM (hv-vapic; needs +hyperv)",
        cpu: ",hv-vapic",
        ..NONE
    },
    Part {
        name: "+hv-frequencies",
        about: "and reads the frequencies of TSC and APIC timer in place of measuring them (hv-frequencies; needs +hyperv)",
        cpu: ",hv-frequencies",
        ..NONE
    },
    Part {
        name: "+hv-ipi",
        about: "and sends interrupts to other vCPUs by hypercall (hv-ipi; needs +hyperv)",
        cpu: ",hv-ipi",
        ..NONE
    },
    Part {
        name: "+hv-stimer",
        about: "and has Hyper-V's timers (hv-synic, hv-stimer, hv-stimer-direct; needs +hyperv)",
        cpu: ",hv-synic,hv-stimer,hv-stimer-direct",
        ..NONE
    },
    Part {
        name: "+hv-tlbflush",
        about: "and flushes TLBs of other vCPUs by hypercall (hv-tlbflush; needs +hyperv)",
        cpu: ",hv-tlbflush",
        ..NONE
    },
    Part {
        name: "-pv-ipi",
        about: "no hypercall for interrupts to many vCPUs (-kvm-pv-ipi)",
        cpu: ",-kvm-pv-ipi",
        ..NONE
    },
    Part {
        name: "-pv-tlb-flush",
        about: "flushes of the TLBs of preempted vCPUs are not left to KVM (-kvm-pv-tlb-flush)",
        cpu: ",-kvm-pv-tlb-flush",
        ..NONE
    },
    Part {
        name: "+spin-hint",
        about: "the VM is told that its vCPUs are not preempted (kvm-hint-dedicated=on)",
        cpu: ",kvm-hint-dedicated=on",
        ..NONE
    },
    Part {
        name: "-kvmapf",
        about: "no asynchronous page faults (no-kvmapf)",
        words: &["no-kvmapf"],
        shows: Shows::Word("command line", "no-kvmapf"),
        ..NONE
    },
    Part {
        name: "+swiotlb-small",
        about: "the same as +swiotlb, with a buffer of 2 MiB",
        device: ",iommu_platform=on",
        words: &["swiotlb=1024,force"],
        shows: Shows::Word("command line", "swiotlb=1024,force"),
        ..NONE
    },
    Part {
        name: "+ksm",
        about: "the host merges equal pages without a pause",
        settings: &[
            ("/sys/kernel/mm/ksm/pages_to_scan", "10000"),
            ("/sys/kernel/mm/ksm/sleep_millisecs", "0"),
            (files::KSM_RUN, "1"),
        ],
        ..NONE
    },
    Part {
        name: "+swapped",
        about: "the host writes the VM's memory to swap (zram) between warm-up and recording",
        swaps: true,
        ..NONE
    },
    Part {
        name: "+locked",
        about: "QEMU locks the VM's memory (-overcommit mem-lock=on)",
        arguments: &["-overcommit", "mem-lock=on"],
        ..NONE
    },
    Part {
        name: "+fragmented",
        about: "the host's free memory is in pieces of less than 64 KiB",
        fragmented: true,
        ..NONE
    },
    Part {
        name: "+thp-defer",
        about: "a page fault of the host does not make room for a huge page (transparent_hugepage/defrag=defer)",
        settings: &[(files::THP_DEFRAG, "defer")],
        ..NONE
    },
    Part {
        name: "+hugetlb",
        about: "the VM's memory is of huge pages that the host reserved before (vm.nr_hugepages, hugetlbfs)",
        settings: &[("/proc/sys/vm/nr_hugepages", "128")],
        arguments: &[
            "-object",
            "memory-backend-memfd,id=ram,size=256M,hugetlb=on,hugetlbsize=2M",
            "-machine",
            "memory-backend=ram",
        ],
        ..NONE
    },
    Part {
        name: "+numa-balancing",
        about: "the host has two NUMA nodes, and looks each 6 ms of a vCPU's time whether its memory is on the right one (kernel.numa_balancing)",
        two_nodes: true,
        settings: &[
            ("/sys/kernel/debug/sched/numa_balancing/scan_delay_ms", "1"),
            ("/sys/kernel/debug/sched/numa_balancing/scan_period_min_ms", "1"),
            // The kernel looks at most once in 1 s / (2560 MiB / this).
            ("/sys/kernel/debug/sched/numa_balancing/scan_size_mb", "16"),
            ("/proc/sys/kernel/numa_balancing", "1"),
        ],
        ..NONE
    },
    Part {
        name: "-numa-balancing",
        about: "the host has two NUMA nodes, and leaves memory where it is (kernel.numa_balancing=0)",
        two_nodes: true,
        settings: &[("/proc/sys/kernel/numa_balancing", "0")],
        ..NONE
    },
    Part { name: "+rival", about: "a thread of the host computes all the time", rivals: 1, ..NONE },
    Part {
        name: "+vcpus-on-0",
        about: "all vCPUs run on the host's processor 0",
        pins: &[("CPU ", 0)],
        ..NONE
    },
    Part {
        name: "+vcpu0-on-1",
        about: "vCPU 0 runs on the host's processor 1 (needs a host of two)",
        pins: &[("CPU 0/", 1)],
        ..NONE
    },
    Part {
        name: "+vcpus-apart",
        about: "vCPU 0 runs on the host's processor 0, and vCPU 1 on 1 (needs +smp, and a host of two)",
        pins: &[("CPU 0/", 0), ("CPU 1/", 1)],
        ..NONE
    },
    Part {
        name: "+nohz-full",
        about: "vCPU 1 has no tick while one thread alone runs there (nohz_full=1; needs +smp)",
        words: &["nohz_full=1"],
        shows: Shows::Word("command line", "nohz_full=1"),
        ..NONE
    },
    Part {
        name: "+rival-on-0",
        about: "the rival runs on the host's processor 0 (needs +rival)",
        pins: &[("rival", 0)],
        ..NONE
    },
    Part {
        name: "+io-on-0",
        about: "QEMU's main loop runs on the host's processor 0",
        pins: &[("qemu", 0)],
        ..NONE
    },
    Part {
        name: "+device-on-0",
        about: "a device of the host (its HPET) interrupts processor 0 four thousand times a second",
        interrupted: Some(0),
        ..NONE
    },
    Part {
        name: "+device-on-1",
        about: "the same, and the host's processor 1 (needs a host of two)",
        interrupted: Some(1),
        ..NONE
    },
    Part {
        name: NESTED,
        about: "the VM is a guest's guest (L2): QEMU with it runs in a VM of the host (L1), and so does its client. Parts before it are L1's, parts after it the VM's",
        ..NONE
    },
];

/// A category.
#[derive(Clone, Debug)]
pub struct Category {
    /// `plain+vhost`
    pub name: String,
    /// L1, if the VM is a guest of one.
    pub(super) outer: Option<Parts>,
    /// The VM under test.
    pub(super) vm: Parts,
}

/// Sets of modules that a VM of most categories can load beside those of every VM: one saved state is for all of these.
pub(super) fn module_sets() -> BTreeSet<BTreeSet<&'static str>> {
    let usual = PARTS.iter().filter(|part| part.disk_model.or(part.card_model).is_none());
    let sets = usual.map(|part| part.modules.iter().copied().collect());
    sets.chain([BTreeSet::new()]).collect()
}

/// Parts of one VM.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts(Vec<&'static Part>);

impl Category {
    /// Reads `plain+vhost-x2apic`; the error lists what is known.
    ///
    /// # Errors
    /// When it does not start with `plain`, has an unknown part, one twice, or one before `+nested` that L1 cannot have.
    pub fn read(name: &str) -> Result<Category, String> {
        let known = || PARTS.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
        let mut rest = name
            .strip_prefix(PLAIN)
            .ok_or_else(|| format!("starts with `plain`, and then has parts: {}", known()))?;
        let mut category = Category { name: name.to_owned(), outer: None, vm: Parts::default() };
        while !rest.is_empty() {
            // The longest name: one can start as another does.
            let found = PARTS.iter().filter(|part| rest.starts_with(part.name));
            let Some(part) = found.max_by_key(|part| part.name.len()) else {
                return Err(format!("{rest:?} is not one of {}", known()));
            };
            category.add(part)?;
            rest = rest.get(part.name.len()..).unwrap_or_default();
        }
        Ok(category)
    }

    fn add(&mut self, part: &'static Part) -> Result<(), String> {
        let is_nested = part.name == NESTED;
        if self.vm.has(part) || is_nested && self.outer.is_some() {
            return Err(format!("{:?} is there twice", part.name));
        }
        if !is_nested {
            self.vm.0.push(part);
            return Ok(());
        }
        if let Some(other) = self.vm.0.iter().find(|part| !part.before_nested) {
            let can = PARTS.iter().filter(|part| part.before_nested).map(|part| part.name);
            return Err(format!(
                "{:?} is about card, disk or server, which L1 does not use: put it after {NESTED}; before it can be {}",
                other.name,
                can.collect::<Vec<_>>().join(", ")
            ));
        }
        self.outer = Some(std::mem::take(&mut self.vm));
        Ok(())
    }

    /// Modules of its VMs beside those of every VM, a set for each.
    pub(super) fn module_sets(&self) -> impl Iterator<Item = BTreeSet<&'static str>> {
        self.outer.iter().chain([&self.vm]).map(Parts::modules)
    }

    /// One of its VMs is a PC.
    pub(super) fn has_pc(&self) -> bool {
        self.outer.iter().chain([&self.vm]).any(Parts::is_pc)
    }

    /// The host needs a swap.
    pub(super) fn swaps(&self) -> bool {
        self.outer.iter().chain([&self.vm]).any(Parts::swaps)
    }

    /// A device of the host interrupts.
    pub(super) fn is_interrupted(&self) -> bool {
        self.outer.iter().chain([&self.vm]).any(|parts| parts.pressure().interrupted.is_some())
    }

    /// The host has two NUMA nodes.
    pub(super) fn has_two_nodes(&self) -> bool {
        let parts = self.outer.iter().chain([&self.vm]).flat_map(|parts| &parts.0);
        parts.into_iter().any(|part| part.two_nodes)
    }

    /// Whether the VM is a guest's guest.
    pub fn is_nested(&self) -> bool {
        self.outer.is_some()
    }

    /// Why these VMs, from the outermost on, are not those of this category, if so.
    pub(super) fn missing(&self, vms: &[Seen]) -> Option<String> {
        let expected = self.outer.iter().map(|outer| ("L1", outer)).chain([("the VM", &self.vm)]);
        let mut seen = vms.iter();
        expected.into_iter().find_map(|(name, parts)| match seen.next() {
            Some(seen) => parts.missing(name, seen),
            None => Some(format!("the host did not say what {name} is")),
        })
    }
}

impl Parts {
    fn has(&self, part: &Part) -> bool {
        self.0.iter().any(|other| other.name == part.name)
    }

    fn all(&self, of: impl Fn(&Part) -> &'static str) -> String {
        self.0.iter().map(|part| of(part)).collect()
    }

    /// The model of its processors. PV EOI is off for the reason that docs/measured/lab-method.md states of all Linux guests.
    pub(super) fn cpu(&self) -> String {
        let pv_eoi = if self.0.iter().any(|part| part.pv_eoi) { "" } else { ",-kvm-pv-eoi" };
        format!("host{pv_eoi}{}", self.all(|part| part.cpu))
    }

    /// QEMU's machine.
    pub(super) fn machine(&self) -> &'static str {
        self.0.iter().find_map(|part| part.machine).unwrap_or(MICROVM)
    }

    /// It is not a microvm: its firmware is another.
    pub(super) fn is_pc(&self) -> bool {
        self.machine() != MICROVM
    }

    /// QEMU's netdev and device, on this tap.
    pub(super) fn network(&self, tap: &str) -> [String; 2] {
        let netdev = self.all(|part| part.netdev);
        let netdev = format!("tap,id=net0,ifname={tap},script=no,downscript=no{netdev}");
        if let Some(card) = self.0.iter().find_map(|part| part.card_model) {
            return [netdev, card.to_owned()];
        }
        let device = self.all(|part| part.device);
        [netdev, format!("virtio-net-pci,netdev=net0,romfile=,disable-legacy=on{device}")]
    }

    /// QEMU's disk.
    pub(super) fn disk(&self) -> String {
        if let Some(disk) = self.0.iter().find_map(|part| part.disk_model) {
            return disk.to_owned();
        }
        let (device, disk) = (self.all(|part| part.device), self.all(|part| part.disk));
        format!("virtio-blk-pci,drive=disk0,disable-legacy=on{device}{disk}")
    }

    /// Further arguments of QEMU.
    pub(super) fn arguments(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|part| part.arguments).map(|word| (*word).to_owned())
    }

    /// vCPUs.
    pub(super) fn vcpus(&self) -> u32 {
        self.0.iter().find_map(|part| part.vcpus).unwrap_or(1)
    }

    /// Words on the kernel's command line.
    pub(super) fn words(&self) -> String {
        let words = self.0.iter().flat_map(|part| part.words);
        words.map(|word| format!(" {}", fill(word, VM_MIB, None))).collect()
    }

    /// Modules that the VM loads beside those of every VM.
    pub(super) fn modules(&self) -> BTreeSet<&'static str> {
        self.0.iter().flat_map(|part| part.modules).copied().collect()
    }

    /// Settings of the host: those of all VMs, and of the parts, which win.
    pub(super) fn settings(&self) -> Vec<(String, String)> {
        let mut all: Vec<(&str, &str)> = SETTINGS.to_vec();
        for (path, content) in self.0.iter().flat_map(|part| part.settings) {
            all.retain(|(known, _)| known != path);
            all.push((path, content));
        }
        all.into_iter().map(|(path, content)| (path.to_owned(), content.to_owned())).collect()
    }

    /// What the host does beside running the VM.
    pub(super) fn pressure(&self) -> Pressure {
        let pins = self.0.iter().flat_map(|part| part.pins);
        Pressure {
            fragmented: self.0.iter().any(|part| part.fragmented),
            swaps: self.swaps(),
            rivals: self.0.iter().map(|part| part.rivals).sum(),
            pins: pins.map(|(name, cpu)| Pin { name: (*name).to_owned(), cpu: *cpu }).collect(),
            interrupted: self.0.iter().find_map(|part| part.interrupted),
        }
    }

    fn swaps(&self) -> bool {
        self.0.iter().any(|part| part.swaps)
    }

    /// Why this VM does not have them, if so.
    fn missing(&self, name: &str, seen: &Seen) -> Option<String> {
        let value = |fact: &str| {
            let found = seen.facts.iter().find(|(name, _)| name == fact);
            found.map_or("", |(_, value)| value.as_str())
        };
        let has = |fact: &str, word: &str| value(fact).split_whitespace().any(|one| one == word);
        let is_there =
            |role: Role| seen.threads.iter().any(|thread| thread.role == role && !thread.of_peer);
        self.0.iter().find_map(|part| {
            let problem = match part.shows {
                Shows::Nothing => return None,
                Shows::Word(fact, word) if !has(fact, &fill(word, VM_MIB, None)) => {
                    let word = fill(word, VM_MIB, None);
                    format!("its {fact} is \"{}\", without {word}", value(fact))
                }
                Shows::NoWord(fact, word) if has(fact, word) => format!("its {fact} has {word}"),
                Shows::Thread(role, thread) if !is_there(role) => format!("there is no {thread}"),
                _ => return None,
            };
            Some(format!("{name} is not {}: {problem}", part.name))
        })
    }
}

#[cfg(test)]
mod tests {
    use vmtax_guest::traffic::Thread;

    use super::*;

    #[test]
    fn names_are_read() {
        for name in ["plain", "plain+vhost", "plain+vhost+swiotlb-tsc-deadline-x2apic"] {
            let category = Category::read(name).expect("a category");
            assert_eq!(category.name, name);
            assert_eq!(PLAIN.to_owned() + &category.vm.all(|part| part.name), name);
        }
        let nested = Category::read("plain-x2apic+nested+vhost-x2apic").expect("a category");
        let outer = nested.outer.as_ref().map(|outer| outer.all(|part| part.name));
        assert_eq!(outer.as_deref(), Some("-x2apic"));
        assert_eq!(nested.vm.all(|part| part.name), "+vhost-x2apic");
        for (name, problem) in [
            ("", "starts with `plain`"),
            ("snp", "starts with `plain`"),
            ("plain+", "\"+\" is not one of +vhost"),
            ("plain+vhos", "is not one of"),
            ("plain+vhost+vhost", "twice"),
            ("plain+nested+nested", "twice"),
            ("plain+vhost+nested", "\"+vhost\" is about card, disk or server"),
            ("plain+smp+nested", "before it can be +poll, +halt_poll_ns, -tsc-deadline, -x2apic"),
        ] {
            let error = Category::read(name).expect_err(name);
            assert!(error.contains(problem), "{name}: {error}");
        }
    }

    #[test]
    fn a_vm_without_a_required_feature_is_reported() {
        let fact = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
        let missing = |category: &str, facts: &[(String, String)], threads: &[Thread]| {
            let seen = Seen { facts: facts.to_vec(), threads: threads.to_vec() };
            Category::read(category).expect("a category").missing(&[seen])
        };
        let thread = |role| [Thread { tid: 7, role, of_peer: false }];
        let of_peer = [Thread { tid: 7, role: Role::Vhost, of_peer: true }];
        assert_eq!(missing("plain", &[], &[]), None);
        let flags = fact("processor flags", "fpu x2apic tsc_deadline_timer");
        assert!(missing("plain-x2apic", &flags, &[]).is_some());
        assert_eq!(missing("plain-x2apic", &fact("processor flags", "fpu"), &[]), None);
        assert!(missing("plain+poll", &fact("command line", "quiet"), &[]).is_some());
        assert_eq!(missing("plain+poll", &fact("command line", "a idle=poll"), &[]), None);
        let menu = missing("plain+hpoll", &fact("idle governor", "menu"), &[]);
        let said = "the VM is not +hpoll: its idle governor is \"menu\", without haltpoll";
        assert_eq!(menu.as_deref(), Some(said));
        assert_eq!(missing("plain+hpoll", &fact("idle governor", "haltpoll"), &[]), None);
        assert!(missing("plain+vhost", &[], &thread(Role::Vmm)).is_some());
        assert_eq!(missing("plain+vhost", &[], &thread(Role::Vhost)), None);
        assert!(missing("plain+vhost", &[], &of_peer).is_some());
        assert!(missing("plain+nested", &[], &[]).is_some_and(|said| said.contains("the VM")));
        assert!(missing("plain+iothread", &[], &thread(Role::Vmm)).is_some());
        assert_eq!(missing("plain+iothread", &[], &thread(Role::Io)), None);
    }
}
