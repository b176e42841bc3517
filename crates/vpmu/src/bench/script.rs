//! What a Linux guest's perf does to its PMU, in three parts: counting with six events, sampling, and switching between
//! a thread that is counted and one that is not.
//!
//! The order of accesses is that of Linux 5.0's driver for Intel: global control is cleared around every change, a
//! counter starts with its value and then its control, and an overflow is acknowledged before it is handled.

use std::collections::BTreeMap;

use super::{Operation, Timing};
use crate::error::{Error, GeneralProtection};
use crate::event::{Event, select};
use crate::host::Host;
use crate::host::virtual_time::{Costs, VirtualHost, Work};
use crate::model::{Intel, Model};
use crate::pmu::{Pmu, Privilege};
use crate::policy::{Activity, Policy};

/// How much of each part there is. Times are in microseconds of the guest's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// Times that the six counters are read while they count.
    pub readings: u64,
    /// Samples.
    pub samples: u64,
    /// Cycles from sample to sample.
    pub period: u64,
    /// Times that the counted thread is switched in and out.
    pub switches: u64,
    /// How long a thread of the guest runs, and the other one after it.
    pub guest_slice: u64,
    /// How long the vCPU's thread runs.
    pub host_slice: u64,
}

impl Default for Script {
    /// 4,000 samples a second, which is perf's default, and a tick of 250 Hz, which is a distribution's. The host's
    /// slices are longer than the time for which a thread of the guest is away: then reuse need not create anew.
    fn default() -> Script {
        let (guest_slice, host_slice) = (4_000, 10_000);
        let period = MICROSECOND[0].1 * 250;
        Script { readings: 100, samples: 1000, period, switches: 100, guest_slice, host_slice }
    }
}

/// What happens in a microsecond of the guest's work, at 2.2 GHz. Only cycles bear on the tables.
const MICROSECOND: [(Event, u64); 6] = [
    (Event::Cycles, 2200),
    (Event::Instructions, 2000),
    (Event::Branches, 400),
    (Event::BranchMisses, 8),
    (Event::CacheReferences, 20),
    (Event::CacheMisses, 2),
];

/// What a run came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Host's time by operation. Operations that are part of others count in both.
    pub timings: BTreeMap<Operation, Timing>,
    /// What the host did.
    pub activity: Activity,
    /// Samples taken.
    pub samples: u64,
    /// What the guest counted: all values that it read, added up.
    pub counted: u64,
}

/// An event of the guest's perf on its counter.
#[derive(Clone, Copy)]
enum Placed {
    /// On a general counter: number and event select without the enable bit.
    General(u8, u64),
    /// On a fixed counter.
    Fixed(u8),
}

/// Cycles and instructions go to fixed counters, as Linux does it.
const CYCLES: Placed = Placed::Fixed(1);
const SIX: [Placed; 6] = [
    CYCLES,
    Placed::Fixed(0),
    Placed::General(0, 0x13_4f2e),
    Placed::General(1, 0x13_412e),
    Placed::General(2, 0x13_00c4),
    Placed::General(3, 0x13_00c5),
];

/// OS, USR and PMI.
const FIXED_ENABLE: u64 = 0b1011;
const WIDTH: u64 = 1 << 48;

/// Why a guest of this script never faults.
const OWN: &str = "the script uses registers of its own model";

impl Placed {
    /// Its value register.
    fn value(self) -> u32 {
        match self {
            Placed::General(i, _) => 0x4c1 + u32::from(i),
            Placed::Fixed(i) => 0x309 + u32::from(i),
        }
    }

    /// Its index for RDPMC.
    fn index(self) -> u32 {
        match self {
            Placed::General(i, _) => i.into(),
            Placed::Fixed(i) => 1 << 30 | u32::from(i),
        }
    }

    /// Its bit in global control.
    fn bit(self) -> u64 {
        match self {
            Placed::General(i, _) => 1 << i,
            Placed::Fixed(i) => 1 << (32 + i),
        }
    }
}

impl Script {
    /// Runs it under a policy, on a host with these costs.
    pub fn run(&self, policy: Policy, costs: Costs) -> Result<Outcome, Error> {
        let model = Model::Intel(Intel::default());
        let all = model.counter_bits();
        let pmu = Pmu::new(model, VirtualHost::new(costs), policy)?;
        let work = Work::user(1000, &MICROSECOND);
        let mut guest = Guest {
            pmu,
            script: *self,
            work,
            all,
            in_slice: 0,
            timings: BTreeMap::new(),
            counted: 0,
            samples: 0,
        };
        guest.count();
        guest.sample();
        guest.switch();
        Ok(Outcome {
            timings: guest.timings,
            activity: guest.pmu.activity(),
            samples: guest.samples,
            counted: guest.counted,
        })
    }
}

/// A round of what a profiling guest does all the time: it takes a sample from general counter 0, and switches to
/// a thread without counters and back. `event` is its event select. Its counter goes on from `value`.
pub fn steady_round<H: Host>(
    pmu: &mut Pmu<H>,
    event: u64,
    value: u64,
) -> Result<(), GeneralProtection> {
    let on = pmu.model().counter_bits();
    // The sample.
    pmu.write(0x38f, 0)?;
    let status = pmu.read(0x38e)?;
    pmu.write(0x390, status)?;
    pmu.read(0xc1)?;
    pmu.write(0x4c1, value)?;
    pmu.write(0x38f, on)?;
    // Out.
    pmu.write(0x38f, 0)?;
    pmu.write(0x186, event & !select::ENABLE)?;
    pmu.write(0x38f, on)?;
    // In.
    pmu.write(0x38f, 0)?;
    pmu.write(0x4c1, value)?;
    pmu.write(0x186, event | select::ENABLE)?;
    pmu.write(0x38f, on)
}

/// A guest in the middle of the script.
struct Guest {
    pmu: Pmu<VirtualHost>,
    script: Script,
    /// A microsecond.
    work: Work,
    /// All bits of global control.
    all: u64,
    /// How much of the host's slice is over.
    in_slice: u64,
    timings: BTreeMap<Operation, Timing>,
    counted: u64,
    samples: u64,
}

impl Guest {
    /// Counts with six events, and reads them now and then.
    fn count(&mut self) {
        self.switch_in(&SIX, WIDTH / 2);
        for _ in 0..self.script.readings {
            self.run(self.script.guest_slice, WIDTH / 2);
            SIX.iter().for_each(|e| self.rdpmc(*e));
        }
        self.switch_out(&SIX);
    }

    /// Takes samples by cycles.
    fn sample(&mut self) {
        let before = self.samples;
        self.switch_in(&[CYCLES], self.script.period);
        while self.samples - before < self.script.samples {
            self.run(1, self.script.period);
        }
        self.switch_out(&[CYCLES]);
    }

    /// Switches between a thread with six events and one without.
    fn switch(&mut self) {
        for _ in 0..self.script.switches {
            self.switch_in(&SIX, WIDTH / 2);
            self.run(self.script.guest_slice, WIDTH / 2);
            self.switch_out(&SIX);
            self.run(self.script.guest_slice, WIDTH / 2);
        }
    }

    /// Runs for some microseconds, through ends of slices and interrupts.
    fn run(&mut self, mut microseconds: u64, period: u64) {
        while microseconds > 0 {
            let slice = self.script.host_slice - self.in_slice;
            let done = self.pmu.host_mut().run(&self.work, microseconds.min(slice));
            microseconds -= done;
            self.in_slice += done;
            if self.pmu.deliver(false) {
                self.handle_interrupt(period);
            }
            if self.in_slice == self.script.host_slice {
                self.in_slice = 0;
                self.pmu.slice_end();
                self.pmu.slice_begin();
            }
        }
    }

    /// Does something and takes the host's time for it.
    fn timed(&mut self, operation: Operation, act: impl FnOnce(&mut Guest)) {
        let (before, creates) = (self.pmu.host().spent(), self.pmu.activity().creates);
        act(self);
        let ns = self.pmu.host().spent() - before;
        let created = self.pmu.activity().creates > creates;
        self.timings.entry(operation).or_default().add(ns, created);
    }

    fn set_global(&mut self, on: bool) {
        let (operation, value) = match on {
            true => (Operation::EnableGlobal, self.all),
            false => (Operation::DisableGlobal, 0),
        };
        self.timed(operation, |g| g.write(0x38f, value));
    }

    fn switch_in(&mut self, events: &[Placed], period: u64) {
        self.timed(Operation::SwitchIn, |g| {
            g.set_global(false);
            for event in events {
                g.write(event.value(), WIDTH - period);
                g.control(*event, true);
            }
            g.set_global(true);
        });
    }

    fn switch_out(&mut self, events: &[Placed]) {
        self.timed(Operation::SwitchOut, |g| {
            g.set_global(false);
            for event in events {
                g.control(*event, false);
                g.rdpmc(*event);
            }
            g.set_global(true);
        });
    }

    fn handle_interrupt(&mut self, period: u64) {
        self.timed(Operation::HandleInterrupt, |g| {
            g.set_global(false);
            loop {
                let status = g.read(0x38e);
                if status == 0 {
                    break;
                }
                g.write(0x390, status);
                for event in SIX.iter().filter(|e| status & e.bit() != 0) {
                    g.rdpmc(*event);
                    g.write(event.value(), WIDTH - period);
                    g.samples += 1;
                }
            }
            g.set_global(true);
        });
    }

    /// Switches a counter on or off by its own control.
    fn control(&mut self, event: Placed, on: bool) {
        match event {
            Placed::General(i, event) => self.timed(Operation::EventSelect, |g| {
                let enable = if on { select::ENABLE } else { 0 };
                g.write(0x186 + u32::from(i), event | enable);
            }),
            Placed::Fixed(i) => self.timed(Operation::FixedControl, |g| {
                let others = g.read(0x38d) & !(0xf << (4 * i));
                let bits = if on { FIXED_ENABLE } else { 0 };
                g.write(0x38d, others | bits << (4 * i));
            }),
        }
    }

    fn rdpmc(&mut self, event: Placed) {
        self.timed(Operation::Rdpmc, |g| {
            let privilege = Privilege { cpl: 0, pce: false, protected: true };
            g.counted += g.pmu.rdpmc(event.index(), privilege).expect(OWN);
        });
    }

    fn read(&mut self, msr: u32) -> u64 {
        self.pmu.read(msr).expect(OWN)
    }

    fn write(&mut self, msr: u32, value: u64) {
        self.pmu.write(msr, value).expect(OWN);
    }
}
