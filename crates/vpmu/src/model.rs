//! The PMU that a guest sees: counters, MSRs, CPUID leaves.
//!
//! A model is only a description. Creating a [`crate::Pmu`] of it checks what the host can count.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::event::{AMD, Counter, FIXED, INTEL, PmuEvent, Programme, select};

/// Most general counters of Intel: the MSRs of more would overlap others.
pub const INTEL_GENERAL: u8 = 8;
/// Bits of AMD's counters.
const AMD_WIDTH: u8 = 48;

/// A guest's PMU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PmuModel {
    /// Intel's architectural PerfMon.
    Intel(Intel),
    /// AMD's.
    Amd(Amd),
}

/// Intel's architectural PerfMon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intel {
    /// Version, 1 to 5.
    pub version: u8,
    /// General counters, 1 to 8.
    pub general: u8,
    /// Their bits, 32 to 48.
    pub general_width: u8,
    /// Fixed counters, a bit each. None in version 1; without gaps before version 5.
    pub fixed: u8,
    /// Their bits, 32 to 48.
    pub fixed_width: u8,
    /// Unavailable architectural events, a bit each as in CPUID.0AH:EBX.
    pub unavailable: u8,
    /// General counters can be written at full width.
    pub full_width: bool,
}

/// AMD's PMU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amd {
    /// Number of counters: 4 (K7), or 6, of which the first 4 have the K7's MSRs too.
    pub counters: u8,
    /// PerfMonV2: global control and status.
    pub perfmon_v2: bool,
}

/// The bits of a CPUID leaf that describe the PMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Number.
    pub leaf: u32,
    /// Masks of EAX, EBX, ECX and EDX.
    pub mask: [u32; 4],
    /// Their values.
    pub value: [u32; 4],
}

impl Leaf {
    /// The leaf with these bits replaced.
    pub fn merge(&self, registers: [u32; 4]) -> [u32; 4] {
        std::array::from_fn(|i| registers[i] & !self.mask[i] | self.value[i])
    }
}

impl Default for Intel {
    /// Version 2 with four general and three fixed counters of 48 bits, as most guests have.
    fn default() -> Intel {
        Intel {
            version: 2,
            general: 4,
            general_width: 48,
            fixed: 0b111,
            fixed_width: 48,
            // Slots came later than version 2.
            unavailable: 0x80,
            full_width: true,
        }
    }
}

impl PmuModel {
    /// Refuses a model that no processor has.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what| Err(Error::Model(what));
        match self {
            PmuModel::Intel(intel) => {
                let width = 32..=48;
                let gaps = intel.fixed & intel.fixed.wrapping_add(1) != 0;
                match () {
                    () if !(1..=5).contains(&intel.version) => wrong("version is not 1 to 5"),
                    () if !(1..=INTEL_GENERAL).contains(&intel.general) => {
                        wrong("general counters are not 1 to 8")
                    }
                    () if !width.contains(&intel.general_width) => {
                        wrong("general counters are not 32 to 48 bits wide")
                    }
                    () if intel.fixed >> FIXED.len() != 0 => wrong("more than 4 fixed counters"),
                    () if intel.fixed != 0 && intel.version == 1 => {
                        wrong("version 1 has no fixed counters")
                    }
                    () if intel.fixed != 0 && !width.contains(&intel.fixed_width) => {
                        wrong("fixed counters are not 32 to 48 bits wide")
                    }
                    () if gaps && intel.version < 5 => {
                        wrong("fixed counters have gaps before version 5")
                    }
                    () => Ok(()),
                }
            }
            PmuModel::Amd(amd) if amd.counters != 4 && amd.counters != 6 => {
                wrong("AMD has 4 or 6 counters")
            }
            PmuModel::Amd(amd) if amd.perfmon_v2 && amd.counters != 6 => {
                wrong("PerfMonV2 needs the 6 extended counters")
            }
            PmuModel::Amd(_) => Ok(()),
        }
    }

    /// Its counters: the general ones, then the fixed ones.
    pub fn counters(&self) -> Vec<Counter> {
        let (general, fixed) = match self {
            PmuModel::Intel(intel) => (intel.general, intel.fixed),
            PmuModel::Amd(amd) => (amd.counters, 0),
        };
        let fixed = (0..FIXED.len() as u8).filter(|i| fixed >> i & 1 != 0).map(Counter::Fixed);
        (0..general).map(Counter::General).chain(fixed).collect()
    }

    /// Number of general counters.
    pub fn general(&self) -> usize {
        match self {
            PmuModel::Intel(intel) => intel.general.into(),
            PmuModel::Amd(amd) => amd.counters.into(),
        }
    }

    /// The mask of a counter's bits.
    pub fn value_mask(&self, counter: Counter) -> u64 {
        (1 << self.width(counter)) - 1
    }

    /// A counter's width in bits.
    pub fn width(&self, counter: Counter) -> u8 {
        match (self, counter) {
            (PmuModel::Intel(intel), Counter::General(_)) => intel.general_width,
            (PmuModel::Intel(intel), Counter::Fixed(_)) => intel.fixed_width,
            (PmuModel::Amd(_), _) => AMD_WIDTH,
        }
    }

    /// Bits of global control: one for each counter.
    pub fn counter_bits(&self) -> u64 {
        self.counters().iter().fold(0, |bits, c| bits | c.bit())
    }

    /// Bits of global control that are set after a reset: those of the general counters.
    pub fn general_bits(&self) -> u64 {
        (1 << self.general()) - 1
    }

    /// Whether it has global control and status.
    pub fn has_global(&self) -> bool {
        match self {
            PmuModel::Intel(intel) => intel.version >= 2,
            PmuModel::Amd(amd) => amd.perfmon_v2,
        }
    }

    /// Whether the local APIC masks LVTPC when a counter interrupts. Intel's does (SDM volume 3, "Local vector table");
    /// AMD's does not, and Linux's driver does not unmask it there (arch/x86/events/amd/core.c, amd_pmu_v2_handle_irq).
    pub fn masks_lvtpc(&self) -> bool {
        matches!(self, PmuModel::Intel(_))
    }

    /// Whether counters that an interrupt froze are marked in the status, rather than taken out of global control.
    pub fn has_freeze_status(&self) -> bool {
        match self {
            PmuModel::Intel(intel) => intel.version >= 4,
            PmuModel::Amd(amd) => amd.perfmon_v2,
        }
    }

    /// The event of an event select register; `None` if disabled.
    pub fn programme(&self, select: u64) -> Option<Programme> {
        // Code, unit mask, edge, invert, threshold; AMD's codes go on at bit 32.
        let config = select & 0xf_ff84_ffff;
        let (table, unavailable): (&[_], u8) = match self {
            PmuModel::Intel(intel) => (&INTEL, intel.unavailable),
            PmuModel::Amd(_) => (&AMD, 0),
        };
        let event = match table.iter().position(|(code, _)| *code == config) {
            Some(i) if unavailable >> i & 1 != 0 => return None,
            Some(i) => table[i].1,
            None => PmuEvent::Raw(config),
        };
        Programme::in_modes(event, select & select::USER != 0, select & select::KERNEL != 0)
    }

    /// The architectural events that it promises.
    pub fn events(&self) -> Vec<PmuEvent> {
        match self {
            PmuModel::Intel(intel) => {
                let there = |i: &usize| intel.unavailable >> i & 1 == 0;
                let general = (0..INTEL.len()).filter(there).map(|i| INTEL[i].1);
                let fixed = (0..FIXED.len()).filter(|i| intel.fixed >> i & 1 != 0);
                let mut events: Vec<PmuEvent> = general.chain(fixed.map(|i| FIXED[i])).collect();
                events.sort_unstable();
                events.dedup();
                events
            }
            PmuModel::Amd(_) => AMD.iter().map(|(_, event)| *event).collect(),
        }
    }

    /// The CPUID leaves that show it to a guest.
    pub fn cpuid(&self) -> Vec<Leaf> {
        match self {
            PmuModel::Intel(intel) => {
                let pdcm = u32::from(intel.full_width) << 15;
                vec![
                    Leaf { leaf: 1, mask: [0, 0, 1 << 15, 0], value: [0, 0, pdcm, 0] },
                    Leaf { leaf: 0xa, mask: [u32::MAX; 4], value: intel.leaf_a() },
                ]
            }
            PmuModel::Amd(amd) => {
                let extended = u32::from(amd.counters > 4) << 23;
                let v2 = u32::from(amd.perfmon_v2);
                let counters = v2 * u32::from(amd.counters);
                vec![
                    Leaf {
                        leaf: 0x8000_0001,
                        mask: [0, 0, 1 << 23, 0],
                        value: [0, 0, extended, 0],
                    },
                    Leaf { leaf: 0x8000_0022, mask: [u32::MAX; 4], value: [v2, counters, 0, 0] },
                ]
            }
        }
    }
}

impl Programme {
    /// `None` if it counts in no mode.
    pub(crate) fn in_modes(event: PmuEvent, user: bool, kernel: bool) -> Option<Programme> {
        (user || kernel).then_some(Programme { event, user, kernel })
    }
}

impl Intel {
    /// CPUID.0AH.
    fn leaf_a(&self) -> [u32; 4] {
        let version = u32::from(self.version);
        let eax = version
            | u32::from(self.general) << 8
            | u32::from(self.general_width) << 16
            | (INTEL.len() as u32) << 24;
        let ecx = if version >= 5 { u32::from(self.fixed) } else { 0 };
        let mut edx = 0;
        if version >= 2 {
            edx = self.fixed.trailing_ones() | u32::from(self.fixed_width) << 5;
        }
        if version >= 3 {
            // AnyThread is deprecated: it would reveal other guests' activity.
            edx |= 1 << 15;
        }
        [eax, u32::from(self.unavailable), ecx, edx]
    }
}
