//! What an exit is about where only others of the recording say so.

use std::collections::BTreeSet;

use vmtax_events::device::{looks_like_doorbell, looks_like_notification};
use vmtax_events::{Detail, DetailKind, ExitKey, Isa};

use super::subject::{Subject, subject_of};
use super::sums::total;
use crate::Ledger;

/// The HPET's main counter (IA-PC HPET specification 1.0a, 2.3.7), whole or by halves.
const HPET_COUNTER: std::ops::RangeInclusive<u64> = 0xfed0_00f0..=0xfed0_00f7;
/// Its timers' comparators: 0x108, and one each 0x20 bytes.
const HPET_COMPARATOR: u64 = 0xfed0_0108;

/// What a recording's exits say of each other.
pub(super) struct ExitsBeside {
    /// The guest arms its timer by the TSC deadline.
    deadline: bool,
    /// The HPET's counter is read to program its comparators: Linux reads it before each and after it (arch/x86/kernel/hpet.c,
    /// `hpet_clkevt_set_next_event`).
    hpet_timer: bool,
    /// Interrupt status of virtio devices: at a fixed place before the notifications that they have.
    status: BTreeSet<Detail>,
    /// Regions of 16 KiB in which other registers than an NVMe controller's doorbells are accessed: a running one has its doorbells alone. A
    /// USB controller (xHCI) has registers at these places, too, and others beside them.
    mixed: BTreeSet<u64>,
}

/// The length of an NVMe controller's BAR.
const NVME_BAR: u64 = 0x4000;

impl ExitsBeside {
    pub(super) fn new(ledger: &Ledger) -> ExitsBeside {
        let keys = || ledger.exits.keys();
        let count = |wanted: &dyn Fn(Detail) -> bool| {
            let exits = ledger.exits.iter().filter(|(key, _)| wanted(key.detail));
            total(exits.map(|(_, tally)| tally.count))
        };
        let programmed = count(&|detail| {
            detail.kind == DetailKind::MmioWrite
                && (HPET_COMPARATOR..=0xfed0_03ff).contains(&detail.value)
                && detail.value & 0x1f == 8
        });
        let reads = count(&reads_hpet);
        ExitsBeside {
            deadline: keys()
                .any(|key| key.detail.kind == DetailKind::MsrWrite && key.detail.value == 0x6e0),
            // Two and a half, where some are read for another purpose.
            hpet_timer: reads.saturating_mul(2) <= programmed.saturating_mul(5),
            status: keys().filter_map(|key| status_of(key.reason.isa, key.detail)).collect(),
            mixed: keys()
                .filter(|key| {
                    is_mmio(key.detail) && !looks_like_doorbell(key.reason.isa, key.detail)
                })
                .map(|key| key.detail.value / NVME_BAR)
                .collect(),
        }
    }

    /// An exit's subject.
    pub(super) fn subject(&self, key: &ExitKey) -> Subject {
        match subject_of(key) {
            // Who arms by both arms by choice.
            Subject::ApicTimer if self.deadline => Subject::GuestTimer,
            Subject::ClockReads if self.hpet_timer && reads_hpet(key.detail) => Subject::HpetTimer,
            Subject::NvmeDoorbells if self.mixed.contains(&(key.detail.value / NVME_BAR)) => {
                Subject::DeviceRegisters
            }
            Subject::DeviceRegisters if self.status.contains(&key.detail) => {
                Subject::LevelInterrupts
            }
            subject => subject,
        }
    }
}

fn is_mmio(detail: Detail) -> bool {
    matches!(detail.kind, DetailKind::MmioRead | DetailKind::MmioWrite)
}

fn reads_hpet(detail: Detail) -> bool {
    detail.kind == DetailKind::MmioRead && HPET_COUNTER.contains(&detail.value)
}

/// Where a virtio device that is notified here has its interrupt status, which nobody reads with MSI-X: QEMU and crosvm have it at
/// 0x1000 and notifications at 0x3000, Cloud Hypervisor at 0x2000 and 0x6000, legacy virtio at ports 19 and 16 (virtio 1.2, 4.1.4.5; the
/// VMMs' sources).
fn status_of(isa: Isa, detail: Detail) -> Option<Detail> {
    let page = detail.value & !0xfff;
    match (detail.kind, detail.value & 0x7000) {
        _ if !isa.facts().is_x86() || !looks_like_notification(isa, detail) => None,
        (DetailKind::PortOut, _) => Some(Detail::new(DetailKind::PortIn, detail.value + 3)),
        (_, 0x3000 | 0x7000) => Some(Detail::new(DetailKind::MmioRead, page - 0x2000)),
        (_, 0x6000) => Some(Detail::new(DetailKind::MmioRead, page - 0x4000)),
        _ => None,
    }
}
