//! VM categories of a matrix: what makes a VM of one, on this computer and on vmtax's own VMM, and what it needs of its host.
//!
//! Which parts there are, and what each changes, is the table of [`vmtax_lab::category`]. The parity check permits no other difference.

mod need;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::Path;

use vmtax_lab::category::{
    Category as Kind, CategoryPart, Confidential, ConfidentialKind, DiskKind, MULTI_QUEUE, Need,
    ShownVm, THP, fill, missing,
};
use vmtax_machine::{MailboxDisk, QemuDescriptor, QemuOptions};

use crate::firmware::Firmware;
use crate::link::{ALONE, Link, Netdev, NetdevEnd, QUEUES};
use crate::target::{Accel, Target};

use need::{HostView, ON_ARM};
pub(crate) use need::{processors, tap_missing};

/// What a system says of itself, by name.
pub type SystemFacts = BTreeMap<String, String>;

/// A category of a matrix.
#[derive(Clone, Debug)]
pub struct MatrixCategory {
    kind: Kind,
    /// Memory of its VM, and the size of a bounce buffer if one is named; MiB.
    memory_mib: u32,
    bounce_mib: Option<u32>,
    /// The VM is as confidential as its parts say. Without that the rest of its machine boots anywhere.
    is_confidential: bool,
}

impl Deref for MatrixCategory {
    type Target = Kind;

    fn deref(&self) -> &Kind {
        &self.kind
    }
}

/// The identifier of the object that makes a VM confidential.
const SUPPORT: &str = "cgs0";

impl MatrixCategory {
    /// Reads `plain+poll`; the error says what is known.
    pub fn read(name: &str) -> Result<MatrixCategory, String> {
        Kind::read(name).map(MatrixCategory::new)
    }

    fn new(kind: Kind) -> MatrixCategory {
        let is_confidential = kind.parts.iter().any(|part| part.confidential.is_some());
        MatrixCategory {
            kind,
            memory_mib: Target::default().memory,
            bounce_mib: None,
            is_confidential,
        }
    }

    /// The VM with default settings.
    pub(crate) fn plain() -> MatrixCategory {
        MatrixCategory::new(Kind::plain())
    }

    /// The category that it is compared with where a matrix names no other; `None` for `plain`.
    pub fn baseline(&self) -> Option<MatrixCategory> {
        Some(MatrixCategory { kind: self.kind.baseline()?, ..self.clone() })
    }

    /// In the VMs of this target.
    pub fn of(mut self, target: &Target) -> MatrixCategory {
        (self.memory_mib, self.bounce_mib) = (target.memory, target.swiotlb);
        self
    }

    /// The same machine with what needs no hardware: nothing is confidential.
    pub fn without_hardware(mut self) -> MatrixCategory {
        self.is_confidential = false;
        self
    }

    /// What makes it confidential.
    pub fn confidential(&self) -> Option<Confidential> {
        self.parts.iter().find_map(|part| part.confidential).filter(|_| self.is_confidential)
    }

    /// Its mailbox is a virtio disk.
    pub(crate) fn has_virtio_mailbox(&self) -> bool {
        self.parts.iter().any(|part| part.confidential.is_some())
    }

    /// The firmware that its machine boots with, if not the default; the error is a sentence without its end.
    pub fn firmware(&self, target: &Target, root: &Path) -> Result<Option<Firmware>, String> {
        let confidential = self.parts.iter().find_map(|part| part.confidential);
        let find = |confidential: Confidential| {
            Firmware::find(confidential.guest, target.firmware.as_deref(), root)
        };
        confidential.map(find).transpose()
    }

    /// What the kernel of a VM with these facts lacks for it, if anything; a sentence. The facts are those of the innermost guest.
    pub(crate) fn lacks(&self, facts: &SystemFacts) -> Option<String> {
        let fact = |fact: &str| facts.get(fact).map_or("", String::as_str);
        let memory = (self.memory_mib, self.bounce_mib);
        let shown = ShownVm { fact: &fact, thread: &|_| true, memory };
        let (part, problem) = missing(self.levels().last()?, &shown)?;
        Some(format!("the VM is not {part}: {problem}"))
    }

    /// QEMU's arguments but those that every machine has.
    pub(crate) fn options(
        &self,
        firmware: Option<&Firmware>,
        end: &NetdevEnd,
        disk: Option<&QemuDescriptor>,
    ) -> QemuOptions {
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
        let fill = |word: &&str| word.replace("{memory}", &self.memory_mib.to_string());
        let mut arguments: Vec<String> =
            self.parts.iter().flat_map(|part| part.arguments.iter().map(fill)).collect();
        let mut machine = self.parts.iter().find_map(|part| part.machine).map(str::to_owned);
        let mut cpu = self.parts.iter().find_map(|part| part.cpu).map(str::to_owned);
        if let Some(Confidential { object, guest }) = self.confidential() {
            let takes_hashes = firmware.is_some_and(|firmware| firmware.takes_hashes);
            // The firmware of a TD measures the kernel by itself.
            let is_asked = takes_hashes && guest == ConfidentialKind::Snp;
            let hashes = if is_asked { ",kernel-hashes=on" } else { "" };
            arguments.extend(["-object".to_owned(), format!("{object},id={SUPPORT}{hashes}")]);
            machine =
                machine.map(|machine| format!("{machine},confidential-guest-support={SUPPORT}"));
        } else if self.parts.iter().any(|part| part.confidential.is_some()) {
            cpu = None;
        }
        let flags: String = self.parts.iter().map(|part| part.cpu_flags).collect();
        if !flags.is_empty() {
            cpu = Some(cpu.unwrap_or_else(|| "host".to_owned()) + &flags);
        }
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
        // Programs of a confidential guest cannot do port I/O.
        let mailbox = match self.has_virtio_mailbox() {
            true => MailboxDisk::Virtio(device.replace(MULTI_QUEUE, "")),
            false => MailboxDisk::Ide,
        };
        let firmware = firmware.map(|firmware| firmware.path.clone());
        QemuOptions { machine, cpu, arguments, descriptors, firmware, mailbox }
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
                DiskKind::Cache(mode) => drive.push_str(&format!(",cache={mode}")),
                DiskKind::Aio(kind) => drive.push_str(&format!(",aio={kind}")),
                DiskKind::Thread => {
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
    pub fn guest_words(&self) -> Vec<String> {
        self.levels().last().map_or(Vec::new(), |parts| self.words(parts))
    }

    /// Modules of that guest, besides those that every guest has.
    pub fn modules(&self) -> Vec<&'static str> {
        self.levels().last().map_or(Vec::new(), |parts| modules(parts))
    }

    /// Words, modules and kind of memory of the VM and, where it is nested, of the guest in it.
    pub fn guests(&self) -> Vec<(Vec<String>, Vec<&'static str>, &'static str)> {
        let backing = |parts: &[&'static CategoryPart]| parts.iter().find_map(|part| part.backing);
        self.levels()
            .iter()
            .map(|parts| (self.words(parts), modules(parts), backing(parts).unwrap_or(THP)))
            .collect()
    }

    /// Words of these parts on the command line of a guest.
    fn words(&self, parts: &[&'static CategoryPart]) -> Vec<String> {
        let words = parts.iter().flat_map(|part| part.guest.iter().copied());
        words.map(|word| fill(word, self.memory_mib, self.bounce_mib).into_owned()).collect()
    }

    /// What cannot be of it on an emulated host, a sentence each.
    fn impossible(&self, accel: Accel) -> Vec<String> {
        let is_arm = accel == Accel::Arm;
        let cannot =
            |part: &&&CategoryPart| !(if is_arm { part.on_arm } else { part.on_emulated_host });
        let sentence = |part: &&CategoryPart| {
            let why = match is_arm {
                true => {
                    "not available on the emulated arm64 host, whose categories are plain, pkvm and protected"
                }
                false if part.on_arm => ON_ARM,
                false => {
                    "not available on an emulated host, which lacks the hardware and has one processor"
                }
            };
            format!("{}: {why}", part.name)
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
    pub fn changes_against(&self, other: &MatrixCategory) -> Vec<&'static str> {
        let only = |a: &MatrixCategory, b: &MatrixCategory| -> Vec<&'static str> {
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
        if target.is_inside() {
            return self.impossible_inside().into_iter().collect();
        }
        if accel.is_emulated_host() {
            // It brings its own KVM, and nothing of this host.
            return self.impossible(accel);
        }
        let mut missing = Vec::new();
        for part in &self.parts {
            for need in part.needs {
                if let Some(problem) = need::missing(*need, &host) {
                    missing.push(format!("{}: {problem}", part.name));
                }
            }
        }
        if let Err(problem) = self.firmware(target, root) {
            missing.push(format!("{}: {problem}", self.parts[0].name));
        }
        missing
    }
}

fn modules(parts: &[&'static CategoryPart]) -> Vec<&'static str> {
    parts.iter().flat_map(|part| part.modules.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use vmtax_lab::category::{KINDS, PARTS};

    use super::*;

    #[test]
    fn results_have_the_baseline_of_their_category() {
        for part in PARTS {
            let category = MatrixCategory::read(&format!("plain+vhost+nested{}", part.name));
            let Ok(category) = category else { continue };
            let there = std::collections::BTreeSet::from(["plain", "plain+vhost+nested"]);
            let found = vmtax_analyse::bench::baseline(&category.name, &there);
            assert_eq!(found, category.baseline().as_ref().map(|base| base.name.as_str()));
        }
    }

    #[test]
    fn every_missing_requirement_is_named() {
        let root = std::path::Path::new("/nonexistent");
        for part in KINDS.iter().skip(1).chain(PARTS.iter().filter(|part| !part.needs.is_empty())) {
            let base = if KINDS.iter().any(|kind| kind.name == part.name) { "" } else { "plain" };
            let category = MatrixCategory::read(&format!("{base}{}", part.name)).unwrap();
            let target = Target { cpus: 1 << 20, ..Target::default() };
            let missing = category.missing(Accel::Tcg, &target, root);
            assert!(!missing.is_empty(), "{}", part.name);
        }
        for free in ["plain", "plain+poll", "plain+swiotlb"] {
            let category = MatrixCategory::read(free).unwrap();
            for accel in [Accel::Kvm, Accel::Tcg, Accel::Amd] {
                let missing = category.missing(accel, &Target::default(), root);
                assert!(missing.is_empty(), "{free}: {missing:?}");
            }
        }
    }

    #[test]
    fn an_emulated_host_has_its_own_kvm_and_no_hardware() {
        let missing = |name: &str| {
            let category = MatrixCategory::read(name).unwrap();
            category.missing(Accel::Intel, &Target::default(), std::path::Path::new("/nonexistent"))
        };
        assert!(missing("plain+hpoll+nested+poll").is_empty());
        for (name, part) in
            [("plain+pinned+poll", "+pinned"), ("snp", "snp"), ("plain+vhost", "+vhost")]
        {
            let missing = missing(name);
            assert_eq!(missing.len(), 1, "{missing:?}");
            assert!(missing[0].starts_with(&format!("{part}: not available on an emulated host")));
        }
    }

    #[test]
    fn parts_after_nested_are_those_of_the_inner_guest() {
        let words =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let category = MatrixCategory::read("plain+poll+nested+swiotlb+hpoll").unwrap();
        let guests = category.guests();
        assert_eq!(guests[0], (words(&["idle=poll"]), vec![], "thp"));
        let inner =
            (words(&["swiotlb=32768,force", "cpuidle_haltpoll.force=Y"]), vec!["cpuidle_haltpoll"]);
        assert_eq!(guests[1], (inner.0.clone(), inner.1.clone(), "thp"));
        assert_eq!((category.guest_words(), category.modules()), inner);
        assert_eq!(category.baseline().unwrap().name, "plain+poll+nested+swiotlb");
        let plain = MatrixCategory::read("plain+nested").unwrap();
        assert_eq!(plain.guests(), [(vec![], vec![], "thp"), (vec![], vec![], "thp")]);
        // Memory of guest_memfd is that of the VM it is added to.
        let gmem = MatrixCategory::read("plain+gmem+nested").unwrap();
        let private = MatrixCategory::read("private+poll").unwrap();
        let expected = words(&["kernelcore=50%", "rootfstype=ramfs", "vmtax.private", "idle=poll"]);
        assert_eq!(private.guests(), [(expected, vec![], "private")]);
        assert_eq!(MatrixCategory::read("private").unwrap().baseline().unwrap().name, "plain");
        assert_eq!(gmem.guests(), [(vec![], vec![], "guest-memfd"), (vec![], vec![], "thp")]);
        assert_eq!(gmem.baseline().unwrap().name, "plain+gmem");
    }

    #[test]
    fn a_confidential_vm_is_an_object_on_a_machine_with_firmware() {
        let line = |name: &str, takes_hashes, is_confidential| {
            let target = Target { memory: 2048, swiotlb: Some(16), ..Target::default() };
            let mut category = MatrixCategory::read(name).unwrap().of(&target);
            category.is_confidential &= is_confidential;
            let firmware = Firmware { path: "/f.fd".into(), takes_hashes };
            let options = category.options(Some(&firmware), &NetdevEnd::default(), None);
            let mailbox = options.mailbox.clone();
            let words =
                vmtax_machine::qemu_arguments(vmtax_machine::Emulator::Kvm, 2, 2048, &options);
            (words.join(" "), mailbox)
        };
        let (snp, mailbox) = line("snp", true, true);
        assert_eq!(mailbox, MailboxDisk::Virtio(",iommu_platform=on,disable-legacy=on".to_owned()));
        for word in [
            "-machine q35,memory-backend=ram0,confidential-guest-support=cgs0 ",
            "-cpu EPYC-v4,host-phys-bits=true ",
            "-bios /f.fd",
            "memory-backend-memfd,id=ram0,size=2048M,share=true",
            "-object sev-snp-guest,cbitpos=51,reduced-phys-bits=1,id=cgs0,kernel-hashes=on ",
        ] {
            assert!(snp.contains(word), "{word}: {snp}");
        }
        assert!(!line("snp", false, true).0.contains("kernel-hashes"));
        let (tdx, _) = line("tdx+poll", true, true);
        assert!(tdx.contains("-object tdx-guest,id=cgs0 -netdev"), "{tdx}");
        assert!(tdx.contains("q35,kernel_irqchip=split,confidential-guest-support=cgs0"), "{tdx}");
        let (rest, _) = line("tdx", true, false);
        assert!(
            !rest.contains("cgs0") && rest.contains("-cpu host -smp") && rest.contains("-bios")
        );
        // Its bounce buffer is there without being asked for, and of the guest's choice.
        let error = MatrixCategory::read("snp+swiotlb").unwrap_err();
        assert!(error.contains("has its bounce buffer without swiotlb"), "{error}");
        let words = |target: &Target| {
            MatrixCategory::read("plain+swiotlb").unwrap().of(target).guest_words()
        };
        let of = |memory, swiotlb| words(&Target { memory, swiotlb, ..Target::default() });
        assert_eq!(of(2048, None), ["swiotlb=62976,force"]);
        assert_eq!(of(2048, Some(16)), ["swiotlb=8192,force"]);
        // No polling of the host stands in for the guest's.
        let settings = |name: &str| MatrixCategory::read(name).unwrap().host_settings().len();
        let names = ["plain+poll", "plain+hpoll", "plain+halt_poll_ns"];
        assert_eq!(names.map(settings), [0, 0, 1]);
        let words = names.map(|name| MatrixCategory::read(name).unwrap().guest_words().join(" "));
        assert_eq!(words, ["idle=poll", "cpuidle_haltpoll.force=Y", ""]);
        assert!(MatrixCategory::read("plain+haltpoll").is_err());
    }

    /// The driver without its governor never polls, so a VM with it is not one of this category.
    #[test]
    fn a_driver_without_its_governor_is_not_haltpoll() {
        let lacks = |name: &str, governor: &str| {
            let facts = SystemFacts::from([("idle governor".to_owned(), governor.to_owned())]);
            MatrixCategory::read(name).unwrap().lacks(&facts).is_some()
        };
        assert!(lacks("plain+hpoll", "menu") && !lacks("plain+hpoll", "haltpoll"));
        // Facts are those of the guest inside.
        assert!(!lacks("plain+hpoll+nested", "menu") && lacks("plain+nested+hpoll", "menu"));
    }
}
