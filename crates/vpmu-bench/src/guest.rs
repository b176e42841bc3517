//! The PMU accesses of a Linux guest's perf.
//!
//! The order of accesses is that of Linux 5.0's driver for Intel: global control is cleared around every change, a
//! counter starts with its value and then its control, and an overflow is acknowledged before it is handled.

use vmtax_vpmu::event::select;
use vmtax_vpmu::host::virtual_time::{EventCosts, GuestWork, VirtualHost};
use vmtax_vpmu::{Error, Intel, Pmu, PmuModel, Policy, Privilege};

/// An event of the guest's perf, its counter, and its period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedEvent {
    pub(crate) place: CounterPlace,
    pub(crate) period: u64,
}

/// The counter of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CounterPlace {
    /// On a general counter: number and event select without the enable bit.
    General(u8, u64),
    /// On a fixed counter in these modes: its control.
    Fixed(u8, u64),
}

/// The period of an event that does not sample.
pub(crate) const NO_SAMPLES: u64 = WIDTH / 2;
const WIDTH: u64 = 1 << 48;

/// Registers, by their names in the Intel SDM, volume 4.
mod msr {
    pub(super) const PERFEVTSEL0: u32 = 0x186;
    pub(super) const FIXED_CTR0: u32 = 0x309;
    pub(super) const FIXED_CTR_CTRL: u32 = 0x38d;
    pub(super) const PERF_GLOBAL_STATUS: u32 = 0x38e;
    pub(super) const PERF_GLOBAL_CTRL: u32 = 0x38f;
    pub(super) const PERF_GLOBAL_OVF_CTRL: u32 = 0x390;
    pub(super) const A_PMC0: u32 = 0x4c1;
}

/// Why the guest never faults.
const OWN: &str = "the guest uses registers of its own model";

impl CounterPlace {
    /// Its value register.
    fn value(self) -> u32 {
        match self {
            CounterPlace::General(i, _) => msr::A_PMC0 + u32::from(i),
            CounterPlace::Fixed(i, _) => msr::FIXED_CTR0 + u32::from(i),
        }
    }

    /// Its index for RDPMC.
    fn index(self) -> u32 {
        match self {
            CounterPlace::General(i, _) => i.into(),
            CounterPlace::Fixed(i, _) => 1 << 30 | u32::from(i),
        }
    }

    /// Its bit in global control.
    fn bit(self) -> u64 {
        match self {
            CounterPlace::General(i, _) => 1 << i,
            CounterPlace::Fixed(i, _) => 1 << (32 + i),
        }
    }
}

/// Durations of a guest's run, in ns of its work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ways {
    /// Length of a slice of the vCPU's thread.
    pub(crate) slice: u64,
    /// Time between exits that are unrelated to the PMU: timers, devices, interrupts.
    pub(crate) exits: u64,
}

/// A guest with its perf.
#[derive(Debug)]
pub(crate) struct PerfGuest {
    pub(crate) pmu: Pmu<VirtualHost>,
    /// Sum of all values read by RDPMC.
    pub(crate) counted: u64,
    pub(crate) samples: u64,
    /// Events of the running thread.
    events: Vec<PlacedEvent>,
    /// All bits of global control.
    all: u64,
    ways: Ways,
    /// Time since the begin of the slice, ns of the guest's work.
    in_slice: u64,
    /// Time since the last exit, ns of the guest's work.
    in_guest: u64,
}

impl PerfGuest {
    /// A guest with a PMU of version 2, on a host with these costs.
    pub(crate) fn new(policy: Policy, costs: EventCosts, ways: Ways) -> Result<PerfGuest, Error> {
        let model = PmuModel::Intel(Intel::default());
        Ok(PerfGuest {
            all: model.counter_bits(),
            pmu: Pmu::new(model, VirtualHost::new(costs), policy)?,
            counted: 0,
            samples: 0,
            events: Vec::new(),
            ways,
            in_slice: 0,
            in_guest: 0,
        })
    }

    /// Runs this number of units of work, with ends of slices and interrupts. `sampled` is called for each sample.
    pub(crate) fn run(&mut self, work: &GuestWork, mut units: u64, mut sampled: impl FnMut()) {
        while units > 0 {
            // A slice and the time until the next exit are rounded up to units.
            let left = (self.ways.slice - self.in_slice).min(self.ways.exits - self.in_guest);
            let done = self.pmu.host_mut().run(work, units.min(left.div_ceil(work.ns)));
            units -= done;
            self.in_slice += done * work.ns;
            self.in_guest += done * work.ns;
            let before = self.samples;
            if self.pmu.deliver(false) {
                self.handle_interrupt();
            }
            (before..self.samples).for_each(|_| sampled());
            if self.in_guest >= self.ways.exits {
                self.in_guest = 0;
                self.pmu.exited();
            }
            if self.in_slice >= self.ways.slice {
                self.in_slice = 0;
                self.pmu.slice_end();
                self.pmu.host_mut().tick();
                self.pmu.slice_begin();
            }
        }
    }

    /// Switches a thread with these events in.
    pub(crate) fn switch_in(&mut self, events: &[PlacedEvent]) {
        self.events = events.to_vec();
        self.set_global(false);
        for event in events {
            self.write(event.place.value(), WIDTH - event.period);
            self.control(event.place, true);
        }
        self.set_global(true);
    }

    pub(crate) fn switch_out(&mut self) {
        let events = std::mem::take(&mut self.events);
        self.set_global(false);
        for event in &events {
            self.control(event.place, false);
            self.rdpmc(event.place);
        }
        self.set_global(true);
    }

    /// Counts of the running thread since it was switched in.
    pub(crate) fn values(&mut self) -> Vec<u64> {
        let events = self.events.clone();
        let value = |event: &PlacedEvent| {
            let now = self.read(event.place.value());
            now.wrapping_sub(WIDTH - event.period) & (WIDTH - 1)
        };
        events.iter().map(value).collect()
    }

    /// Reads all counters of the running thread.
    pub(crate) fn read_all(&mut self) {
        for i in 0..self.events.len() {
            self.rdpmc(self.events[i].place);
        }
    }

    fn handle_interrupt(&mut self) {
        self.set_global(false);
        loop {
            let status = self.read(msr::PERF_GLOBAL_STATUS);
            if status == 0 {
                break;
            }
            self.write(msr::PERF_GLOBAL_OVF_CTRL, status);
            for i in 0..self.events.len() {
                let PlacedEvent { place, period } = self.events[i];
                if status & place.bit() != 0 {
                    self.rdpmc(place);
                    self.write(place.value(), WIDTH - period);
                    self.samples += 1;
                }
            }
        }
        self.set_global(true);
    }

    pub(crate) fn set_global(&mut self, on: bool) {
        let value = if on { self.all } else { 0 };
        self.write(msr::PERF_GLOBAL_CTRL, value);
    }

    /// Switches a counter on or off by its own control.
    pub(crate) fn control(&mut self, place: CounterPlace, on: bool) {
        match place {
            CounterPlace::General(i, event) => {
                let enable = if on { select::ENABLE } else { 0 };
                self.write(msr::PERFEVTSEL0 + u32::from(i), event | enable);
            }
            CounterPlace::Fixed(i, modes) => {
                let others = self.read(msr::FIXED_CTR_CTRL) & !(0xf << (4 * i));
                let bits = if on { modes } else { 0 };
                self.write(msr::FIXED_CTR_CTRL, others | bits << (4 * i));
            }
        }
    }

    pub(crate) fn rdpmc(&mut self, place: CounterPlace) {
        let privilege = Privilege { cpl: 0, pce: false, protected: true };
        self.counted += self.pmu.rdpmc(place.index(), privilege).expect(OWN);
    }

    fn read(&mut self, msr: u32) -> u64 {
        self.pmu.read(msr).expect(OWN)
    }

    fn write(&mut self, msr: u32, value: u64) {
        self.pmu.write(msr, value).expect(OWN);
    }
}
