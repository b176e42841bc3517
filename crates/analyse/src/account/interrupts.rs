//! Interrupts on their way to a guest, which any thread of the host may raise: the VMM's, KVM's own, one of vhost, or the vCPU's.
//!
//! They are counted as accesses of the VM, by what raised them. Whose they are is known at the end of an interval: by the thread that runs a
//! vCPU, its process, the name of KVM's thread (kvm-pit/PID), or because there is one VM.

use std::collections::HashMap;

use rustc_hash::{FxBuildHasher, FxHashMap};
use vmtax_events::event::InterruptAt;
use vmtax_events::{
    AccessKey, Detail, DetailKind, Event, Level, NO_VCPU, RowSink, apicv, interrupt,
};

use super::Accountant;
use super::counts::coarser_accesses;

/// Limits of distinct interrupts of an interval, and of VMs' threads that changed what inhibits APICv.
const MAX_ROWS: usize = 4_096;
/// KVM's thread for a VM's PIT: arch/x86/kvm/i8254.c, `kvm_create_pit`.
const PIT_THREAD: &str = "kvm-pit/";

/// Process and thread.
type Raiser = (u32, u32);

#[derive(Debug)]
pub(super) struct Interrupts {
    rows: FxHashMap<(Raiser, Detail), u64>,
    /// What inhibits APICv, by whose event told it last.
    inhibits: FxHashMap<Raiser, (u64, u64)>,
    /// Interrupts whose VM is not known.
    unplaced: u64,
}

impl Interrupts {
    pub(super) fn new() -> Interrupts {
        Interrupts {
            rows: HashMap::with_hasher(FxBuildHasher),
            inhibits: HashMap::with_hasher(FxBuildHasher),
            unplaced: 0,
        }
    }
}

impl<R: RowSink> Accountant<R> {
    /// An interrupt is raised, taken or acknowledged.
    pub(super) fn interrupted(&mut self, event: &Event, at: InterruptAt, number: u32, source: u32) {
        let by_pit =
            at == InterruptAt::Gsi && number == 0 && source >= interrupt::FIRST_SOURCE_IN_KERNEL;
        let kind = match at {
            InterruptAt::Gsi => DetailKind::Gsi,
            InterruptAt::Pic => DetailKind::PicPin,
            InterruptAt::Ioapic => DetailKind::IoapicPin,
            InterruptAt::Msi => DetailKind::MsiVector,
            InterruptAt::Apic => DetailKind::ApicVector,
            InterruptAt::Acknowledged => DetailKind::AckedPin,
        };
        let pit = if by_pit { interrupt::BY_PIT } else { 0 };
        self.raised(event, Detail::new(kind, u64::from(number) | pit));
    }

    /// What inhibits APICv changes.
    pub(super) fn apicv_changed(&mut self, event: &Event, reason: u32, inhibits: u64) {
        self.raised(event, Detail::new(DetailKind::ApicvChange, reason.into()));
        let raiser = (event.pid, event.tid);
        let seen = &mut self.interrupts.inhibits;
        if seen.len() < MAX_ROWS || seen.contains_key(&raiser) {
            let named = u64::from(reason & apicv::NAMED);
            seen.insert(raiser, (event.time_ns, inhibits & u64::from(u32::MAX) | named << 32));
        }
    }

    fn raised(&mut self, event: &Event, detail: Detail) {
        self.advance(event.time_ns);
        let stands_for = match self.known_thread(event) {
            Some(index) => std::mem::take(&mut self.threads[index].stands_for).max(1),
            None => 1,
        };
        let key = ((event.pid, event.tid), detail);
        let rows = &mut self.interrupts.rows;
        if rows.len() < MAX_ROWS || rows.contains_key(&key) {
            let count = rows.entry(key).or_default();
            *count = count.saturating_add(stands_for);
        } else {
            self.losses.accesses_dropped += 1;
        }
    }

    /// Counts the interrupts of the interval that ends.
    pub(super) fn count_interrupts(&mut self) {
        if self.interrupts.rows.is_empty() {
            return;
        }
        for ((raiser, mut detail), count) in std::mem::take(&mut self.interrupts.rows) {
            if detail == Detail::new(DetailKind::Gsi, 0) && self.is_pit(raiser) {
                detail.value |= interrupt::BY_PIT;
            }
            self.count_for(raiser, detail, count);
        }
    }

    /// Counts what inhibits APICv at the end of the recording.
    pub(super) fn count_inhibits(&mut self) {
        let mut last: FxHashMap<u32, (u64, u64)> = HashMap::with_hasher(FxBuildHasher);
        for (raiser, seen) in std::mem::take(&mut self.interrupts.inhibits) {
            if let Some(vm) = self.vm_of(raiser) {
                let latest = last.entry(vm).or_default();
                *latest = seen.max(*latest);
            }
        }
        for (vm, (_, inhibits)) in last {
            let named = inhibits >> 32;
            for bit in (0..32).filter(|bit| inhibits >> bit & 1 != 0) {
                self.count_of(vm, Detail::new(DetailKind::ApicvInhibit, bit | named), 1);
            }
        }
        if self.interrupts.unplaced > 0 {
            self.losses.missing.push(format!(
                "{} interrupts were raised by threads whose VM is not known: they are in no table. A recording with process ids (perf) tells.",
                self.interrupts.unplaced
            ));
        }
    }

    fn count_for(&mut self, raiser: Raiser, detail: Detail, count: u64) {
        match self.vm_of(raiser) {
            Some(vm) => self.count_of(vm, detail, count),
            None => self.interrupts.unplaced = self.interrupts.unplaced.saturating_add(count),
        }
    }

    fn count_of(&mut self, vm: u32, detail: Detail, count: u64) {
        let key = AccessKey { vm, vcpu: NO_VCPU, level: Level::L1, detail };
        self.accesses.add_many(&key, coarser_accesses, count, &mut self.losses.accesses_dropped);
    }

    fn is_pit(&self, (_, tid): Raiser) -> bool {
        self.vms.name_of(tid).is_some_and(|name| name.starts_with(PIT_THREAD))
    }

    fn vm_of(&self, (pid, tid): Raiser) -> Option<u32> {
        let of_pit = || self.vms.name_of(tid)?.strip_prefix(PIT_THREAD)?.parse().ok();
        let runs = self.by_tid.get(&tid).map(|index| &self.threads[*index]);
        let runs = runs.filter(|thread| thread.vcpu != NO_VCPU).map(|thread| thread.vm);
        runs.or_else(|| self.vms.of_process(pid))
            .or_else(|| self.vms.of_process(of_pit()?))
            .or_else(|| self.vms.only())
    }
}
