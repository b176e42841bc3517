//! One vCPU's PMU: accesses of registers, overflows of counters, interrupts.
//!
//! The APIC belongs to the VMM, which calls [`Pmu::deliver`] before it enters the guest, with the mask bit of LVTPC.

use crate::error::{Error, GeneralProtection, Notice};
use crate::event::Counter;
use crate::host::EventHost;
use crate::mediated;
use crate::model::PmuModel;
use crate::msr::{self, FREEZE, FROZEN, FULL_WIDTH, MsrRegister};
use crate::policy::{Activity, CounterBacking, Policy};
use crate::state::{GuestRegisters, PmuState};

/// One vCPU's PMU.
///
/// ```text
/// guest:   RDMSR/WRMSR/RDPMC ─> read, write, rdpmc ──┐
/// host:    an event overflowed ─> service ───────────┤──> counters, status, an interrupt that is due
/// slices:  slice_end, slice_begin ───────────────────┘                                  │
/// before the guest is entered:  deliver(LVTPC masked?) <────────────────────────────────┘
/// ```
///
/// Before an access is answered, overflows reported by the host are processed, because they belong to the previous programming.
#[derive(Debug)]
pub struct Pmu<H> {
    model: PmuModel,
    counters: Vec<Counter>,
    registers: GuestRegisters,
    backing: CounterBacking<H>,
    /// Between slices, when nothing counts.
    out: bool,
    /// A requested interrupt will freeze the counters.
    freeze: bool,
}

/// Processor state that RDPMC depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privilege {
    /// Current privilege level.
    pub cpl: u8,
    /// CR4.PCE: every level may.
    pub pce: bool,
    /// CR0.PE: without it there are no levels.
    pub protected: bool,
}

impl<H: EventHost> Pmu<H> {
    /// A PMU after a reset. Fails if no processor has such a model, or the host lacks a promised feature.
    pub fn new(model: PmuModel, host: H, policy: Policy) -> Result<Pmu<H>, Error> {
        model.check()?;
        let registers = GuestRegisters::reset(&model);
        Pmu::with_registers(model, registers, host, policy)
    }

    /// A PMU as it was saved, perhaps elsewhere and under another policy. Between slices: [`Pmu::slice_begin`] has it
    /// count.
    pub fn restore(state: PmuState, host: H, policy: Policy) -> Result<Pmu<H>, Error> {
        let (model, registers) = state.into_parts()?;
        let mut pmu = Pmu::with_registers(model, registers, host, policy)?;
        pmu.out = true;
        pmu.backing.activity.interrupts = u64::from(pmu.registers.interrupt);
        Ok(pmu)
    }

    fn with_registers(
        model: PmuModel,
        registers: GuestRegisters,
        host: H,
        policy: Policy,
    ) -> Result<Pmu<H>, Error> {
        if policy == Policy::Mediated && !host.gives_counters() {
            return Err(Error::Mediated);
        }
        let counters = model.counters();
        if let Some(capacity) = host.capacity().filter(|c| *c < counters.len()) {
            return Err(Error::Counters { model: counters.len(), host: capacity });
        }
        for event in model.events() {
            host.probe(event).map_err(|trouble| Error::Event { event, trouble })?;
        }
        let backing = CounterBacking::new(&counters, host, policy);
        Ok(Pmu { model, counters, registers, backing, out: false, freeze: false })
    }

    /// Its model.
    pub fn model(&self) -> &PmuModel {
        &self.model
    }

    /// Its activity on the host.
    pub fn activity(&self) -> Activity {
        self.backing.activity
    }

    /// Troubles of its counters since the last call.
    pub fn notices(&mut self) -> Vec<Notice> {
        self.backing.take_notices()
    }

    /// The host.
    pub fn host(&self) -> &H {
        &self.backing.host
    }

    /// The host, mutable.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.backing.host
    }

    /// Closes all events and returns the host.
    pub fn into_host(mut self) -> H {
        for slot in 0..self.counters.len() {
            self.backing.release(slot);
        }
        self.backing.host
    }

    /// Whether an MSR is one of the model's PMU.
    pub fn owns(&self, msr: u32) -> bool {
        msr::register(&self.model, msr).is_some()
    }

    /// RDMSR.
    pub fn read(&mut self, msr: u32) -> Result<u64, GeneralProtection> {
        let register = msr::register(&self.model, msr).ok_or(GeneralProtection)?;
        self.accessed(register);
        let registers = &self.registers;
        Ok(match register {
            MsrRegister::Select(i) => {
                let value = registers.selects[usize::from(i)];
                self.backing.touch(usize::from(i));
                value
            }
            MsrRegister::Counter { counter, .. } => self.count(counter)?,
            MsrRegister::Capabilities => FULL_WIDTH,
            MsrRegister::FixedControl => registers.fixed_control,
            MsrRegister::Status => registers.global_status,
            MsrRegister::Control => registers.global_control,
            MsrRegister::StatusClear | MsrRegister::StatusSet => 0,
            MsrRegister::InUse => registers.in_use(&self.model),
            MsrRegister::DebugControl => registers.debug_control,
        })
    }

    /// WRMSR. Of DEBUGCTL only the bit that freezes counters is known here; a VMM that has others sends that one alone.
    pub fn write(&mut self, msr: u32, value: u64) -> Result<(), GeneralProtection> {
        let register = msr::register(&self.model, msr).ok_or(GeneralProtection)?;
        self.accessed(register);
        match register {
            MsrRegister::Select(i) => {
                let value = self.allowed(value, !msr::select_reserved(&self.model))?;
                let slot = usize::from(i);
                self.backing.touch(slot);
                if std::mem::replace(&mut self.registers.selects[slot], value) != value {
                    self.update(slot, true);
                }
            }
            MsrRegister::Counter { counter, narrow } => {
                self.write_counter(counter, narrow, value)?
            }
            MsrRegister::FixedControl => {
                let value = self.allowed(value, msr::fixed_control_bits(&self.model))?;
                let changed = std::mem::replace(&mut self.registers.fixed_control, value) ^ value;
                for slot in self.model.general()..self.counters.len() {
                    let Counter::Fixed(i) = self.counters[slot] else { continue };
                    if changed >> (4 * i) & 0xf != 0 {
                        self.backing.touch(slot);
                        self.update(slot, true);
                    }
                }
            }
            MsrRegister::Control => {
                let value = self.allowed(value, msr::global_control_bits(&self.model))?;
                self.write_control(value);
            }
            MsrRegister::StatusClear => {
                let value = self.allowed(value, msr::status_clear_bits(&self.model))?;
                self.write_status(self.registers.global_status & !value);
            }
            MsrRegister::StatusSet => {
                let value = self.allowed(value, msr::status_set_bits(&self.model))?;
                self.write_status(self.registers.global_status | value);
            }
            MsrRegister::DebugControl => {
                self.registers.debug_control =
                    self.allowed(value, msr::debug_control_bits(&self.model))?;
            }
            // Intel's can only be read; AMD's status takes a write and ignores it.
            MsrRegister::Status if matches!(self.model, PmuModel::Amd(_)) => {}
            MsrRegister::Status | MsrRegister::Capabilities | MsrRegister::InUse => {
                return Err(GeneralProtection);
            }
        }
        self.settle();
        Ok(())
    }

    /// RDPMC with this index in ECX.
    pub fn rdpmc(&mut self, index: u32, privilege: Privilege) -> Result<u64, GeneralProtection> {
        if privilege.protected && privilege.cpl > 0 && !privilege.pce {
            return Err(GeneralProtection);
        }
        // Bit 30 says fixed. Bit 31 asked for a fast read before PMUs were architectural; like any other bit it makes
        // an index that is not there.
        let fixed = matches!(self.model, PmuModel::Intel(_)) && index & 1 << 30 != 0;
        let number = if fixed { index & !(1 << 30) } else { index };
        let number = u8::try_from(number).map_err(|_| GeneralProtection)?;
        let counter = if fixed { Counter::Fixed(number) } else { Counter::General(number) };
        self.accessed(MsrRegister::Counter { counter, narrow: false });
        self.count(counter)
    }

    /// Accounts for an access of the guest: an exit, or a pass.
    fn accessed(&mut self, register: MsrRegister) {
        self.service();
        match self.backing.policy == Policy::Mediated && !mediated::exits(register) {
            true => self.backing.activity.passes += 1,
            false => self.exited(),
        }
    }

    /// Accounts for an exit that is not an access of the PMU. A mediated PMU is saved and loaded at each; the other policies do
    /// nothing.
    pub fn exited(&mut self) {
        self.backing.activity.exits += 1;
        self.world_switch();
    }

    fn world_switch(&mut self) {
        if self.backing.policy == Policy::Mediated {
            let (registers, backing) = (&self.registers, &self.backing);
            let counts = |slot: usize| registers.values[slot] != 0 || backing.is_running(slot);
            let accesses = mediated::world_switch(&self.model, registers, counts);
            self.backing.world_switched(accesses);
        }
    }

    /// Processes reports of the host. A VMM calls it when an event's signal made the vCPU exit.
    pub fn service(&mut self) {
        while let Some(slot) = self.backing.take_overflow() {
            match self.backing.policy {
                Policy::Legacy => self.update(slot, true),
                Policy::Reuse | Policy::Mediated => {
                    self.fold(slot);
                    let left = self.left(slot);
                    self.backing.set_left(slot, left);
                }
            }
        }
        self.settle();
    }

    /// Whether an interrupt is pending.
    pub fn interrupt_due(&mut self) -> bool {
        self.service();
        self.registers.interrupt
    }

    /// Whether to inject an interrupt now, by the delivery mode of LVTPC; the VMM then sets the mask bit there, as the
    /// APIC does. If it is set already the interrupt is lost.
    pub fn deliver(&mut self, masked: bool) -> bool {
        self.service();
        if !std::mem::take(&mut self.registers.interrupt) {
            return false;
        }
        // A counter's interrupt is the host's: the guest left for it.
        self.exited();
        let activity = &mut self.backing.activity;
        let counted = if masked { &mut activity.dropped } else { &mut activity.delivered };
        *counted += 1;
        !masked
    }

    /// The vCPU's thread leaves the processor: its counters are saved. A host that does so by itself, as the kernel does,
    /// is left alone ([`EventHost::saves_at_switch`]).
    pub fn slice_end(&mut self) {
        self.service();
        self.backing.activity.slices += 1;
        if !self.backing.host.saves_at_switch() {
            self.out = true;
            // Legacy leaves its events to the host's scheduler.
            if self.backing.policy != Policy::Legacy {
                self.update_all(false);
            }
        }
        self.settle();
    }

    /// The vCPU's thread is back on a processor: its counters go on, and events that the guest did not use for a whole
    /// slice are closed.
    pub fn slice_begin(&mut self) {
        self.world_switch();
        self.out = false;
        let registers = &self.registers;
        self.backing.begin_slice(|counter| registers.enabled(counter));
        self.update_all(false);
        self.settle();
    }

    /// The processor's RESET.
    pub fn reset(&mut self) {
        for slot in 0..self.counters.len() {
            // What it counted is gone with the registers, but it was counted.
            self.backing.stop(slot);
            self.backing.release(slot);
        }
        while self.backing.take_overflow().is_some() {}
        self.backing.activity.dropped += u64::from(self.registers.interrupt);
        self.registers = GuestRegisters::reset(&self.model);
        self.freeze = false;
    }

    /// The present registers. Counting continues.
    pub fn save(&mut self) -> PmuState {
        self.service();
        for slot in 0..self.counters.len() {
            if self.backing.is_running(slot) {
                self.fold(slot);
            }
        }
        self.settle();
        PmuState::new(self.model.clone(), self.registers.clone())
    }

    /// A value with reserved bits: a fault on Intel; AMD ignores these bits.
    fn allowed(&self, value: u64, bits: u64) -> Result<u64, GeneralProtection> {
        match self.model {
            PmuModel::Intel(_) if value & !bits != 0 => Err(GeneralProtection),
            _ => Ok(value & bits),
        }
    }

    fn slot(&self, counter: Counter) -> Result<usize, GeneralProtection> {
        self.counters.iter().position(|c| *c == counter).ok_or(GeneralProtection)
    }

    /// A counter's present value.
    fn count(&mut self, counter: Counter) -> Result<u64, GeneralProtection> {
        let slot = self.slot(counter)?;
        self.backing.touch(slot);
        if self.backing.is_running(slot) {
            self.fold(slot);
            self.settle();
        }
        Ok(self.registers.values[slot])
    }

    fn write_counter(
        &mut self,
        counter: Counter,
        narrow: bool,
        value: u64,
    ) -> Result<(), GeneralProtection> {
        let slot = self.slot(counter)?;
        let mask = self.model.value_mask(counter);
        let value = match narrow {
            true => i64::from(value as i32) as u64 & mask,
            false => self.allowed(value, mask)?,
        };
        self.backing.touch(slot);
        let running = self.backing.is_running(slot);
        if running {
            self.fold(slot);
        }
        self.registers.values[slot] = value;
        if running {
            let left = self.left(slot);
            self.backing.set_left(slot, left);
        }
        Ok(())
    }

    fn write_control(&mut self, value: u64) {
        let changed = std::mem::replace(&mut self.registers.global_control, value) ^ value;
        for slot in 0..self.counters.len() {
            if changed & self.counters[slot].bit() != 0 {
                self.update(slot, true);
            }
        }
    }

    fn write_status(&mut self, value: u64) {
        let changed = std::mem::replace(&mut self.registers.global_status, value) ^ value;
        if changed & FROZEN != 0 {
            self.update_all(true);
        }
    }

    /// Updates a counter's event after a change of registers.
    fn update(&mut self, slot: usize, written: bool) {
        let wanted = match self.out {
            true => None,
            false => self.registers.programme(&self.model, self.counters[slot]),
        };
        if self.backing.must_stop(slot, wanted, written) {
            let delta = self.backing.stop(slot);
            self.absorb(slot, delta);
        }
        let Some(wanted) = wanted.filter(|_| !self.backing.is_running(slot)) else { return };
        let left = self.left(slot);
        self.backing.start(slot, wanted, left);
    }

    fn update_all(&mut self, written: bool) {
        for slot in 0..self.counters.len() {
            self.update(slot, written);
        }
    }

    /// Events until a counter overflows.
    fn left(&self, slot: usize) -> u64 {
        (1 << self.model.width(self.counters[slot])) - self.registers.values[slot]
    }

    fn fold(&mut self, slot: usize) {
        let delta = self.backing.fold(slot);
        self.absorb(slot, delta);
    }

    /// Adds a count to a counter. The status is set whether or not an interrupt is enabled.
    fn absorb(&mut self, slot: usize, delta: u64) {
        let counter = self.counters[slot];
        let width = self.model.width(counter);
        let sum = u128::from(self.registers.values[slot]) + u128::from(delta);
        self.registers.values[slot] = sum as u64 & self.model.value_mask(counter);
        let overflows = (sum >> width) as u64;
        if overflows == 0 {
            return;
        }
        if self.model.has_global() {
            self.registers.global_status |= counter.bit();
        }
        let activity = &mut self.backing.activity;
        activity.overflows += overflows;
        if !self.registers.interrupts(counter) {
            return;
        }
        activity.interrupts += overflows;
        let waiting = std::mem::replace(&mut self.registers.interrupt, true);
        activity.merged += overflows - u64::from(!waiting);
        self.freeze = self.registers.debug_control & FREEZE != 0;
    }

    /// Freezes the counters if an interrupt was asked for that freezes them. All that overflowed at the same time has
    /// been taken in before.
    fn settle(&mut self) {
        if !std::mem::take(&mut self.freeze) {
            return;
        }
        if self.model.has_freeze_status() {
            self.write_status(self.registers.global_status | FROZEN);
        } else {
            self.write_control(0);
        }
        // What these readings found belongs to the same freeze.
        self.freeze = false;
    }
}
