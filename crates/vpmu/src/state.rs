//! A vCPU's PMU registers, and their serialized state.
//!
//! A state does not depend on host or policy, so it can be restored under others.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::event::{Counter, FIXED, Programme, select};
use crate::model::PmuModel;
use crate::msr;

/// The newest version of [`State`].
const VERSION: u32 = 1;

/// The registers that a guest sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GuestRegisters {
    /// Event select registers.
    pub(crate) selects: Vec<u64>,
    /// Counters, in the model's order.
    pub(crate) values: Vec<u64>,
    pub(crate) fixed_control: u64,
    pub(crate) global_control: u64,
    pub(crate) global_status: u64,
    pub(crate) debug_control: u64,
    /// A pending interrupt.
    pub(crate) interrupt: bool,
}

impl GuestRegisters {
    /// The registers after a reset.
    pub(crate) fn reset(model: &PmuModel) -> GuestRegisters {
        GuestRegisters {
            selects: vec![0; model.general()],
            values: vec![0; model.counters().len()],
            global_control: if model.has_global() { model.general_bits() } else { 0 },
            ..GuestRegisters::default()
        }
    }

    /// A fixed counter's bits in its control register: OS, USR, AnyThread, PMI.
    fn fixed_bits(&self, i: u8) -> u64 {
        self.fixed_control >> (4 * i) & 0xf
    }

    /// The programme of a counter, if it is enabled.
    pub(crate) fn programme(&self, model: &PmuModel, counter: Counter) -> Option<Programme> {
        let global = !model.has_global() || self.global_control & counter.bit() != 0;
        if !global || self.global_status & msr::FROZEN != 0 {
            return None;
        }
        match counter {
            Counter::General(i) => {
                let select = self.selects[usize::from(i)];
                if select & select::ENABLE == 0 { None } else { model.programme(select) }
            }
            Counter::Fixed(i) => {
                let bits = self.fixed_bits(i);
                Programme::in_modes(FIXED[usize::from(i)], bits & 2 != 0, bits & 1 != 0)
            }
        }
    }

    /// Whether a counter's own enable bit is set.
    pub(crate) fn enabled(&self, counter: Counter) -> bool {
        match counter {
            Counter::General(i) => self.selects[usize::from(i)] & select::ENABLE != 0,
            Counter::Fixed(i) => self.fixed_bits(i) & 3 != 0,
        }
    }

    /// Whether a counter interrupts on overflow.
    pub(crate) fn interrupts(&self, counter: Counter) -> bool {
        match counter {
            Counter::General(i) => self.selects[usize::from(i)] & select::INTERRUPT != 0,
            Counter::Fixed(i) => self.fixed_bits(i) & 8 != 0,
        }
    }

    /// IA32_PERF_GLOBAL_INUSE: which counters are programmed, and in bit 63 whether one interrupts.
    pub(crate) fn in_use(&self, model: &PmuModel) -> u64 {
        let mut bits = 0;
        for counter in model.counters() {
            let used = match counter {
                Counter::General(i) => self.selects[usize::from(i)] & 0xff != 0,
                Counter::Fixed(_) => self.enabled(counter),
            };
            bits |= if used { counter.bit() } else { 0 };
            bits |= u64::from(self.interrupts(counter)) << 63;
        }
        bits
    }

    /// Refuses registers that a guest of this model cannot have.
    fn check(&self, model: &PmuModel) -> Result<(), Error> {
        let counters = model.counters();
        if self.selects.len() != model.general() || self.values.len() != counters.len() {
            return Err(Error::State("it has registers for another number of counters"));
        }
        let wide = |(c, v): (&Counter, &u64)| v & !model.value_mask(*c) != 0;
        if counters.iter().zip(&self.values).any(wide) {
            return Err(Error::State("a counter has more bits than its width"));
        }
        if self.selects.iter().any(|s| s & msr::select_reserved(model) != 0) {
            return Err(Error::State("an event select has reserved bits"));
        }
        let masks = [
            (self.fixed_control, msr::fixed_control_bits(model)),
            (self.global_control, msr::global_control_bits(model)),
            (self.global_status, msr::status_set_bits(model)),
            (self.debug_control, msr::debug_control_bits(model)),
        ];
        match masks.iter().any(|(value, allowed)| value & !allowed != 0) {
            true => Err(Error::State("a control register has reserved bits")),
            false => Ok(()),
        }
    }
}

/// A saved PMU, for any serde format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmuState {
    /// First in the struct and in the alphabet, so that a newer version is refused before its fields fail to parse.
    format: StateVersion,
    model: PmuModel,
    registers: GuestRegisters,
}

/// The version of a state. Reading a newer one is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32")]
struct StateVersion(u32);

impl TryFrom<u32> for StateVersion {
    type Error = Error;

    fn try_from(found: u32) -> Result<StateVersion, Error> {
        match found {
            0 => Err(Error::State("there is no version 0")),
            1..=VERSION => Ok(StateVersion(found)),
            _ => Err(Error::NewerState { found, known: VERSION }),
        }
    }
}

impl PmuState {
    /// A state of these registers.
    pub(crate) fn new(model: PmuModel, registers: GuestRegisters) -> PmuState {
        PmuState { format: StateVersion(VERSION), model, registers }
    }

    /// Its model.
    pub fn model(&self) -> &PmuModel {
        &self.model
    }

    /// Its parts, if a guest can have produced them.
    pub(crate) fn into_parts(self) -> Result<(PmuModel, GuestRegisters), Error> {
        self.model.check()?;
        self.registers.check(&self.model)?;
        Ok((self.model, self.registers))
    }
}
