//! One VM of QEMU on an emulated host, by the parts of its category: QEMU's words, and what its host does.

use std::collections::BTreeSet;

use vmtax_events::setting::files;
use vmtax_guest::traffic::{Pin, Pressure, SeenVm};

use super::site::VM_MIB;
use crate::category::{
    Category, CategoryPart, DiskKind, PARTS, PV_EOI, RTC, ShownVm, fill, missing,
};

/// A word for the VM's kernel.
const NO_CLOCK: &str = " initcall_blacklist=cmos_init";

/// PCI for interrupts by message (MSI-X); none of the devices of a PC that would take exits of their own.
const MICROVM: &str = "microvm,pcie=on,pit=off,pic=off,rtc=off";

/// Settings of the host of every VM. No polling unless a part wants it: it replaces waking a thread by using the processor. QEMU asks for huge pages for
/// the VM's memory.
const SETTINGS: [(&str, &str); 3] =
    [(files::HALT_POLL, "0"), (files::THP, "madvise"), (files::THP_DEFRAG, "madvise")];

/// Sets of modules that a VM of most categories can load beside those of every VM: one saved state is for all of these.
pub(super) fn module_sets() -> BTreeSet<BTreeSet<&'static str>> {
    let usual = PARTS.iter().filter(|part| part.inside && part.on_emulated_host);
    let sets = usual.map(|part| part.modules.iter().copied().collect());
    sets.chain([BTreeSet::new()]).collect()
}

/// Why these VMs, from the outermost on, are not those of this category, if so.
pub(super) fn missing_of(category: &Category, vms: &[SeenVm]) -> Option<String> {
    let names = if category.is_nested() { &["L1", "the VM"][..] } else { &["the VM"] };
    let mut seen = vms.iter();
    names.iter().zip(category.levels()).find_map(|(name, parts)| match seen.next() {
        Some(seen) => SiteParts(parts).missing(name, seen),
        None => Some(format!("the host did not say what {name} is")),
    })
}

/// Parts of one VM.
#[derive(Clone, Copy, Debug)]
pub(super) struct SiteParts<'a>(pub(super) &'a [&'static CategoryPart]);

impl SiteParts<'_> {
    fn all(&self, of: impl Fn(&CategoryPart) -> &'static str) -> String {
        self.0.iter().map(|part| of(part)).collect()
    }

    /// The model of its processors. PV EOI is off for the reason that docs/measured/lab-method.md states of all Linux guests.
    pub(super) fn cpu(&self) -> String {
        let pv_eoi =
            if self.0.iter().any(|part| part.name == PV_EOI) { "" } else { ",-kvm-pv-eoi" };
        format!("host{pv_eoi}{}", self.all(|part| part.cpu_flags))
    }

    pub(super) fn machine(&self) -> &'static str {
        self.0.iter().find_map(|part| part.machine).unwrap_or(MICROVM)
    }

    /// It is not a microvm: its firmware is another.
    pub(super) fn is_pc(&self) -> bool {
        self.machine() != MICROVM
    }

    /// Its kernel runs as a guest of Xen.
    pub(super) fn is_in_xen(&self) -> bool {
        self.0.iter().any(|part| part.xen)
    }

    /// Words for its kernel, without which it would wait a second for a real-time clock that is not there.
    pub(super) fn clock(&self) -> &'static str {
        if self.0.iter().any(|part| part.name == RTC) { "" } else { NO_CLOCK }
    }

    /// QEMU's netdev and device, on this tap.
    pub(super) fn network(&self, tap: &str) -> [String; 2] {
        let netdev = self.all(|part| part.tap);
        let netdev = format!("tap,id=net0,ifname={tap},script=no,downscript=no{netdev}");
        if let Some(card) = self.0.iter().find_map(|part| part.card_model) {
            return [netdev, card.to_owned()];
        }
        let device = self.all(|part| part.device);
        [netdev, format!("virtio-net-pci,netdev=net0,romfile=,disable-legacy=on{device}")]
    }

    pub(super) fn disk(&self) -> String {
        if let Some(disk) = self.0.iter().find_map(|part| part.disk_model) {
            return disk.to_owned();
        }
        let thread = if self.has_io_thread() { ",iothread=io0" } else { "" };
        let device = self.all(|part| part.device);
        format!("virtio-blk-pci,drive=disk0,disable-legacy=on{device}{thread}")
    }

    fn has_io_thread(&self) -> bool {
        self.0.iter().any(|part| part.disk == Some(DiskKind::Thread))
    }

    /// Further arguments of QEMU.
    pub(super) fn arguments(&self) -> impl Iterator<Item = String> {
        let thread: &[&str] =
            if self.has_io_thread() { &["-object", "iothread,id=io0"] } else { &[] };
        let own = self.0.iter().flat_map(|part| part.arguments);
        thread.iter().chain(own).map(|word| (*word).to_owned())
    }

    pub(super) fn vcpus(&self) -> u32 {
        self.0.iter().find_map(|part| part.vcpus).unwrap_or(1)
    }

    /// Words on the kernel's command line.
    pub(super) fn words(&self) -> String {
        let words = self.0.iter().flat_map(|part| part.guest);
        words.map(|word| format!(" {}", fill(word, VM_MIB, None))).collect()
    }

    /// Modules that the VM loads beside those of every VM.
    pub(super) fn modules(&self) -> BTreeSet<&'static str> {
        self.0.iter().flat_map(|part| part.modules).copied().collect()
    }

    /// Settings of the host: those of all VMs, and of the parts, which win.
    pub(super) fn settings(&self) -> Vec<(String, String)> {
        let mut all: Vec<(&str, &str)> = SETTINGS.to_vec();
        for (path, content) in self.0.iter().flat_map(|part| part.host) {
            all.retain(|(known, _)| *known != *path);
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
            quota: self.0.iter().find_map(|part| part.quota),
            interrupted: self.0.iter().find_map(|part| part.interrupted),
            pins: pins.map(|(name, cpu)| Pin { name: (*name).to_owned(), cpu: *cpu }).collect(),
        }
    }

    /// Its host writes memory to swap.
    pub(super) fn swaps(&self) -> bool {
        self.0.iter().any(|part| part.swaps)
    }

    /// Why this VM does not have them, if so.
    fn missing(&self, name: &str, seen: &SeenVm) -> Option<String> {
        let fact = |fact: &str| {
            let found = seen.facts.iter().find(|(name, _)| name == fact);
            found.map_or("", |(_, value)| value.as_str())
        };
        let thread = |role| seen.threads.iter().any(|one| one.role == role && !one.of_peer);
        let shown = ShownVm { fact: &fact, thread: &thread, memory: (VM_MIB, None) };
        let (part, problem) = missing(self.0, &shown)?;
        Some(format!("{name} is not {part}: {problem}"))
    }
}
