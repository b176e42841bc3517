//! Interrupts on their way to a guest, which any thread of the host may raise: the VMM's, KVM's own, one of vhost, or the vCPU's.
//!
//! They are counted as accesses of the VM, by what raised them. Whose they are is known at the end of an interval, or of a later one: by the
//! thread that runs a vCPU, its process, the name of KVM's thread (kvm-pit/PID); at the end of the recording also because there is one VM.

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

type Raiser = (u32, u32);

#[derive(Debug)]
pub(super) struct Interrupts {
    rows: FxHashMap<(Raiser, Detail), u64>,
    /// What inhibits APICv, by whose event told it last.
    inhibits: FxHashMap<Raiser, (u64, u64)>,
}

impl Interrupts {
    pub(super) fn new() -> Interrupts {
        Interrupts {
            rows: HashMap::with_hasher(FxBuildHasher),
            inhibits: HashMap::with_hasher(FxBuildHasher),
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

    /// Counts the interrupts of the interval that ends, but those whose VM is not known yet.
    pub(super) fn count_interrupts(&mut self) {
        if self.interrupts.rows.is_empty() {
            return;
        }
        for ((raiser, detail), count) in std::mem::take(&mut self.interrupts.rows) {
            match self.vm_of(raiser) {
                Some(vm) => self.count_of(vm, self.by_pit(raiser, detail), count),
                None => _ = self.interrupts.rows.insert((raiser, detail), count),
            }
        }
    }

    /// Counts what is left at the end of the recording, and what inhibits APICv then.
    pub(super) fn count_inhibits(&mut self) {
        let mut unplaced: u64 = 0;
        for ((raiser, detail), count) in std::mem::take(&mut self.interrupts.rows) {
            match self.vm_of(raiser).or_else(|| self.vms.only()) {
                Some(vm) => self.count_of(vm, self.by_pit(raiser, detail), count),
                None => unplaced = unplaced.saturating_add(count),
            }
        }
        let mut last: FxHashMap<u32, (u64, u64)> = HashMap::with_hasher(FxBuildHasher);
        for (raiser, seen) in std::mem::take(&mut self.interrupts.inhibits) {
            // Of a recording without exits no VM is known.
            let unknown = self.threads.iter().all(|thread| thread.vcpu == NO_VCPU).then_some(0);
            if let Some(vm) = self.vm_of(raiser).or_else(|| self.vms.only()).or(unknown) {
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
        // Without a VM the recording has no exits, and says so.
        if unplaced > 0 && self.threads.iter().any(|thread| thread.vcpu != NO_VCPU) {
            self.losses.missing.push(format!(
                "{unplaced} interrupts were raised by threads whose VM is not known: they are in no table. A recording with process ids (perf) tells."
            ));
        }
    }

    fn count_of(&mut self, vm: u32, detail: Detail, count: u64) {
        let key = AccessKey { vm, vcpu: NO_VCPU, level: Level::L1, detail };
        self.accesses.add_many(&key, coarser_accesses, count, &mut self.losses.accesses_dropped);
    }

    /// A line 0 that KVM's thread for the PIT raised is the PIT's.
    fn by_pit(&self, (_, tid): Raiser, mut detail: Detail) -> Detail {
        let is_pit = |name: &str| name.starts_with(PIT_THREAD);
        if detail == Detail::new(DetailKind::Gsi, 0) && self.vms.name_of(tid).is_some_and(is_pit) {
            detail.value |= interrupt::BY_PIT;
        }
        detail
    }

    fn vm_of(&self, (pid, tid): Raiser) -> Option<u32> {
        let of_pit = || self.vms.name_of(tid)?.strip_prefix(PIT_THREAD)?.parse().ok();
        let runs = self.by_tid.get(&tid).map(|index| &self.threads[*index]);
        let runs = runs.filter(|thread| thread.vcpu != NO_VCPU).map(|thread| thread.vm);
        runs.or_else(|| self.vms.of_process(pid)).or_else(|| self.vms.of_process(of_pit()?))
    }
}
