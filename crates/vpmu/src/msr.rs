//! The PMU's MSRs: their numbers, registers and reserved bits. [`crate::Pmu`] implements the accesses.

use crate::event::Counter;
use crate::model::PmuModel;

/// Frozen by an interrupt: in Intel's status from version 4, in AMD's with PerfMonV2.
pub(crate) const FROZEN: u64 = 1 << 59;
/// Overflow of the debug store's buffer, in Intel's status. Never set here but by the guest itself.
const BUFFER: u64 = 1 << 62;
/// Change of the counters' condition, in Intel's status. Never set here.
const CONDITION: u64 = 1 << 63;
/// IA32_DEBUGCTL, which both vendors have.
pub(crate) const DEBUG_CONTROL: u32 = 0x1d9;
/// Its bit that freezes the counters when one interrupts.
pub(crate) const FREEZE: u64 = 1 << 12;
/// IA32_PERF_CAPABILITIES: general counters can be written at full width.
pub(crate) const FULL_WIDTH: u64 = 1 << 13;

/// Intel's numbers (Intel SDM volume 4, "Architectural MSRs").
mod intel {
    pub(super) const COUNTER: u32 = 0xc1;
    pub(super) const SELECT: u32 = 0x186;
    pub(super) const FIXED: u32 = 0x309;
    pub(super) const CAPABILITIES: u32 = 0x345;
    pub(super) const FIXED_CONTROL: u32 = 0x38d;
    pub(super) const STATUS: u32 = 0x38e;
    pub(super) const CONTROL: u32 = 0x38f;
    pub(super) const STATUS_CLEAR: u32 = 0x390;
    pub(super) const STATUS_SET: u32 = 0x391;
    pub(super) const IN_USE: u32 = 0x392;
    pub(super) const FULL_WIDTH_COUNTER: u32 = 0x4c1;
}

/// AMD's numbers (AMD APM volume 2, appendix A).
mod amd {
    pub(super) const K7_SELECT: u32 = 0xc001_0000;
    pub(super) const K7_COUNTER: u32 = 0xc001_0004;
    pub(super) const K7_COUNTERS: u32 = 4;
    /// Event selects at even offsets, counters at odd ones.
    pub(super) const EXTENDED: u32 = 0xc001_0200;
    pub(super) const STATUS: u32 = 0xc000_0300;
    pub(super) const CONTROL: u32 = 0xc000_0301;
    pub(super) const STATUS_CLEAR: u32 = 0xc000_0302;
    pub(super) const STATUS_SET: u32 = 0xc000_0303;
}

/// A register of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MsrRegister {
    /// Event select of a general counter.
    Select(u8),
    /// A counter; a write of a general one sign-extends 32 bits if `narrow`.
    Counter {
        counter: Counter,
        narrow: bool,
    },
    Capabilities,
    FixedControl,
    Status,
    Control,
    StatusClear,
    StatusSet,
    InUse,
    DebugControl,
}

/// The register of an MSR in a model, if it belongs to the PMU.
pub(crate) fn register(model: &PmuModel, msr: u32) -> Option<MsrRegister> {
    // How far an MSR is into a row of `count`.
    let row = |first: u32, count: u32| {
        let i = msr.checked_sub(first)?;
        (i < count).then_some(i as u8)
    };
    let global = model.has_global();
    let general = model.general() as u32;
    match model {
        PmuModel::Intel(m) => {
            if let Some(i) = row(intel::COUNTER, general) {
                return Some(MsrRegister::Counter { counter: Counter::General(i), narrow: true });
            }
            if let Some(i) = row(intel::FULL_WIDTH_COUNTER, general) {
                let register = MsrRegister::Counter { counter: Counter::General(i), narrow: false };
                return m.full_width.then_some(register);
            }
            if let Some(i) = row(intel::SELECT, general) {
                return Some(MsrRegister::Select(i));
            }
            if let Some(i) = row(intel::FIXED, 4) {
                let register = MsrRegister::Counter { counter: Counter::Fixed(i), narrow: false };
                return (m.fixed >> i & 1 != 0).then_some(register);
            }
            match msr {
                intel::CAPABILITIES if m.full_width => Some(MsrRegister::Capabilities),
                intel::FIXED_CONTROL if global => Some(MsrRegister::FixedControl),
                intel::STATUS if global => Some(MsrRegister::Status),
                intel::CONTROL if global => Some(MsrRegister::Control),
                intel::STATUS_CLEAR if global => Some(MsrRegister::StatusClear),
                intel::STATUS_SET if m.version >= 4 => Some(MsrRegister::StatusSet),
                intel::IN_USE if m.version >= 4 => Some(MsrRegister::InUse),
                DEBUG_CONTROL if global => Some(MsrRegister::DebugControl),
                _ => None,
            }
        }
        PmuModel::Amd(_) => {
            if let Some(i) = row(amd::K7_SELECT, amd::K7_COUNTERS) {
                return Some(MsrRegister::Select(i));
            }
            let counter = |i| MsrRegister::Counter { counter: Counter::General(i), narrow: false };
            if let Some(i) = row(amd::K7_COUNTER, amd::K7_COUNTERS) {
                return Some(counter(i));
            }
            if let Some(i) = row(amd::EXTENDED, 2 * general) {
                let extended = general > amd::K7_COUNTERS;
                let register = if i % 2 == 0 { MsrRegister::Select(i / 2) } else { counter(i / 2) };
                return extended.then_some(register);
            }
            match msr {
                amd::STATUS if global => Some(MsrRegister::Status),
                amd::CONTROL if global => Some(MsrRegister::Control),
                amd::STATUS_CLEAR if global => Some(MsrRegister::StatusClear),
                amd::STATUS_SET if global => Some(MsrRegister::StatusSet),
                DEBUG_CONTROL if global => Some(MsrRegister::DebugControl),
                _ => None,
            }
        }
    }
}

impl PmuModel {
    /// Ranges of its MSRs (first, count) in order, which a VMM intercepts. DEBUGCTL, which has other bits too, is not included.
    pub fn msrs(&self) -> Vec<(u32, u32)> {
        // Where either vendor has some.
        let places = [
            0xc1..0x100,
            0x180..0x1a0,
            0x300..0x400,
            0x4c1..0x500,
            0xc000_0300..0xc000_0400,
            0xc001_0000..0xc001_0300,
        ];
        let mut rows: Vec<(u32, u32)> = Vec::new();
        for msr in places.into_iter().flatten().filter(|msr| register(self, *msr).is_some()) {
            match rows.last_mut() {
                Some((first, count)) if *first + *count == msr => *count += 1,
                _ => rows.push((msr, 1)),
            }
        }
        rows
    }
}

/// Reserved bits of an event select. Intel: AnyThread and the bits above 31. AMD: bits 19 and 21 and the bits
/// above the event's upper bits.
pub(crate) fn select_reserved(model: &PmuModel) -> u64 {
    match model {
        PmuModel::Intel(_) => 0xffff_ffff_0020_0000,
        PmuModel::Amd(_) => 0xffff_fff0_0028_0000,
    }
}

/// Bits that the fixed counters' control has: OS, USR and PMI of each; AnyThread is reserved.
pub(crate) fn fixed_control_bits(model: &PmuModel) -> u64 {
    let fixed = |c: &Counter| match c {
        Counter::General(_) => 0,
        Counter::Fixed(i) => 0b1011 << (4 * i),
    };
    model.counters().iter().fold(0, |bits, c| bits | fixed(c))
}

/// Bits that global control has.
pub(crate) fn global_control_bits(model: &PmuModel) -> u64 {
    if model.has_global() { model.counter_bits() } else { 0 }
}

/// Bits of the status that writes to the clearing register may name.
pub(crate) fn status_clear_bits(model: &PmuModel) -> u64 {
    let frozen = if model.has_freeze_status() { FROZEN } else { 0 };
    match model {
        PmuModel::Intel(_) => model.counter_bits() | frozen | BUFFER | CONDITION,
        PmuModel::Amd(_) => model.counter_bits() | frozen,
    }
}

/// Valid bits of the status.
pub(crate) fn status_set_bits(model: &PmuModel) -> u64 {
    if !model.has_global() {
        return 0;
    }
    let frozen = if model.has_freeze_status() { FROZEN } else { 0 };
    match model {
        PmuModel::Intel(m) if m.version >= 4 => model.counter_bits() | frozen | BUFFER,
        _ => model.counter_bits() | frozen,
    }
}

/// The PMU's bits of DEBUGCTL.
pub(crate) fn debug_control_bits(model: &PmuModel) -> u64 {
    if model.has_global() { FREEZE } else { 0 }
}
