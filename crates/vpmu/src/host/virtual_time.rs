//! A PMU in software with its own clock. The caller defines the guest's events, the costs of the host's work and its faults, so every
//! run gives the same result.
//!
//! It has no default costs and takes no real time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{EventHost, EventId, EventReading, EventRequest, MsrAccesses};
use crate::error::Trouble;
use crate::event::{Counter, PmuEvent, Programme};

/// Costs of operations on an event, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCost {
    /// Creating.
    pub create: u64,
    /// Closing.
    pub close: u64,
    /// Enabling.
    pub enable: u64,
    /// Disabling.
    pub disable: u64,
    /// Reading.
    pub read: u64,
    /// Setting its period.
    pub set_left: u64,
}

/// Costs of events on the two kinds of counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCosts {
    /// On general counters.
    pub general: EventCost,
    /// On fixed counters.
    pub fixed: EventCost,
    /// Of an MSR access when a guest's own counters are saved or loaded.
    pub msr: u64,
}

/// Limits and faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VirtualFaults {
    /// Number of hardware counters; more events are multiplexed, rotated at every slice.
    pub counters: Option<usize>,
    /// Events that may not be created.
    pub denied: BTreeSet<PmuEvent>,
    /// Events that can be open at a time.
    pub files: Option<usize>,
    /// Overflows of one event in a slice, at which it is stopped until the next.
    pub throttle: Option<u64>,
}

/// A unit of a guest's work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestWork {
    /// Its time, ns.
    pub ns: u64,
    /// It runs in user mode.
    pub user: bool,
    /// Its events and their numbers.
    pub events: Vec<(PmuEvent, u64)>,
}

impl GuestWork {
    /// Work in user mode.
    pub fn user(ns: u64, events: &[(PmuEvent, u64)]) -> GuestWork {
        GuestWork { ns, user: true, events: events.to_vec() }
    }

    /// Work in kernel mode.
    pub fn kernel(ns: u64, events: &[(PmuEvent, u64)]) -> GuestWork {
        GuestWork { ns, user: false, events: events.to_vec() }
    }

    /// Number of these events in a unit.
    fn count(&self, programme: &Programme) -> u64 {
        let mode = if self.user { programme.user } else { programme.kernel };
        let these = self.events.iter().filter(|(event, _)| mode && *event == programme.event);
        these.map(|(_, n)| n).sum()
    }
}

/// An event of the virtual host.
#[derive(Clone, Debug)]
struct CountingEvent {
    request: EventRequest,
    reading: EventReading,
    /// Count at which it overflows next.
    overflow: u64,
    /// Its period.
    period: u64,
    enabled: bool,
    taken: bool,
    throttled: bool,
    /// On a hardware counter of the guest's own.
    owned: bool,
    /// Overflows in this slice.
    overflows: u64,
}

/// A PMU in software.
#[derive(Clone, Debug, Default)]
pub struct VirtualHost {
    now: u64,
    spent: u64,
    counted: u64,
    costs: EventCosts,
    faults: VirtualFaults,
    events: BTreeMap<EventId, CountingEvent>,
    capacity: Option<usize>,
    missing: BTreeSet<PmuEvent>,
    created: u64,
    turn: usize,
    ended: bool,
    /// The guest has the hardware counters while it runs.
    lent: bool,
    /// Nanoseconds of the guest's work, and those of them that events of the host's own can count.
    worked: u64,
    seen: u64,
    overflowed: VecDeque<EventId>,
    throttled: VecDeque<EventId>,
}

impl VirtualHost {
    /// A host with these costs.
    pub fn new(costs: EventCosts) -> VirtualHost {
        VirtualHost { costs, ..VirtualHost::default() }
    }

    /// With these limits and faults.
    pub fn limited(self, counters: usize, missing: &[PmuEvent]) -> VirtualHost {
        VirtualHost { capacity: Some(counters), missing: missing.iter().copied().collect(), ..self }
    }

    /// Its clock: work of guest and host, ns.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Time of operations on events, ns.
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Nanoseconds of the guest's work, and those of them that events of the host's own can count: a host that has lent its
    /// counters sees nothing of its guest.
    pub fn seen(&self) -> (u64, u64) {
        (self.seen, self.worked)
    }

    /// Sum of all counts of its events.
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Whether an event is open and enabled.
    pub fn is_counting(&self) -> bool {
        self.events.values().any(|event| event.enabled)
    }

    /// Events that are open.
    pub fn open(&self) -> usize {
        self.events.len()
    }

    /// Sets limits and faults.
    pub fn set_faults(&mut self, faults: VirtualFaults) {
        self.faults = faults;
    }

    /// Takes the hardware counters of all open events away. An event gets one again when it is enabled.
    pub fn take_counters(&mut self) {
        self.events.values_mut().for_each(|e| e.taken = true);
    }

    /// Ends the vCPU's thread: events stop, and none can be created.
    pub fn end_thread(&mut self) {
        self.ended = true;
    }

    /// Advances to the host's next tick: multiplexed events are rotated, throttled ones continue.
    pub fn tick(&mut self) {
        self.turn += 1;
        for event in self.events.values_mut() {
            event.throttled = false;
            event.overflows = 0;
        }
    }

    /// Runs this number of units of the guest's work, or until the first overflow. Returns the number run.
    pub fn run(&mut self, work: &GuestWork, units: u64) -> u64 {
        if self.ended {
            return 0;
        }
        let running = self.running();
        let mut done = units;
        for id in &running {
            let event = &self.events[id];
            let each = work.count(&event.request.programme);
            if each > 0 {
                let left = event.overflow - event.reading.count;
                done = done.min(left.div_ceil(each));
            }
        }
        let ns = done * work.ns;
        self.now += ns;
        self.worked += ns;
        self.seen += if self.lent { 0 } else { ns };
        for (id, event) in self.events.iter_mut().filter(|(_, e)| e.enabled) {
            event.reading.enabled += ns;
            if !running.contains(id) {
                continue;
            }
            event.reading.running += ns;
            let count = done * work.count(&event.request.programme);
            event.reading.count += count;
            self.counted += count;
            if event.reading.count < event.overflow {
                continue;
            }
            event.overflow +=
                event.period * (1 + (event.reading.count - event.overflow) / event.period);
            event.overflows += 1;
            self.overflowed.push_back(*id);
            if self.faults.throttle.is_some_and(|limit| event.overflows >= limit) {
                event.throttled = true;
                self.throttled.push_back(*id);
            }
        }
        done
    }

    /// The events that have a hardware counter now.
    fn running(&self) -> Vec<EventId> {
        let wants = |e: &CountingEvent| e.enabled && !e.taken && !e.throttled;
        let with = |owned: bool| {
            let these = self.events.iter().filter(move |(_, e)| wants(e) && e.owned == owned);
            these.map(|(id, _)| *id).collect::<Vec<_>>()
        };
        // The guest's own counters are not multiplexed.
        let (own, mut ids) = (with(true), with(false));
        if let Some(counters) = self.faults.counters.filter(|c| *c < ids.len()) {
            let turn = self.turn % ids.len();
            ids.rotate_left(turn);
            ids.truncate(counters);
        }
        [own, ids].concat()
    }

    /// Accounts for the time of an operation on an event.
    fn pay(&mut self, counter: Counter, cost: impl Fn(&EventCost) -> u64) {
        self.spend(match counter {
            Counter::General(_) => cost(&self.costs.general),
            Counter::Fixed(_) => cost(&self.costs.fixed),
        });
    }

    fn spend(&mut self, ns: u64) {
        self.now += ns;
        self.spent += ns;
    }

    fn open_event(&mut self, request: &EventRequest, owned: bool) -> EventId {
        self.created += 1;
        let id = EventId(self.created);
        let event = CountingEvent {
            request: *request,
            reading: EventReading::default(),
            overflow: request.left.max(1),
            period: request.left.max(1),
            enabled: true,
            taken: false,
            throttled: false,
            owned,
            overflows: 0,
        };
        self.events.insert(id, event);
        id
    }

    /// An open event, after accounting for the time of an operation.
    fn event(
        &mut self,
        id: EventId,
        cost: impl Fn(&EventCost) -> u64,
    ) -> Result<&mut CountingEvent, Trouble> {
        let event = self.events.get(&id).ok_or(Trouble::NoSuchEvent)?;
        let (counter, owned) = (event.request.counter, event.owned);
        if !owned {
            self.pay(counter, cost);
        }
        self.events.get_mut(&id).ok_or(Trouble::NoSuchEvent)
    }
}

impl EventHost for VirtualHost {
    fn create(&mut self, request: &EventRequest) -> Result<EventId, Trouble> {
        self.pay(request.counter, |c| c.create);
        if self.ended {
            return Err(Trouble::ThreadGone);
        }
        if self.faults.denied.contains(&request.programme.event) {
            return Err(Trouble::Denied);
        }
        if self.faults.files.is_some_and(|limit| self.events.len() >= limit) {
            return Err(Trouble::TooManyFiles);
        }
        Ok(self.open_event(request, false))
    }

    fn enable(&mut self, id: EventId) -> Result<(), Trouble> {
        let event = self.event(id, |c| c.enable)?;
        event.enabled = true;
        event.taken = false;
        Ok(())
    }

    fn disable(&mut self, id: EventId) -> Result<(), Trouble> {
        self.event(id, |c| c.disable)?.enabled = false;
        Ok(())
    }

    fn read(&mut self, id: EventId) -> Result<EventReading, Trouble> {
        let event = self.event(id, |c| c.read)?;
        if event.taken { Err(Trouble::Taken) } else { Ok(event.reading) }
    }

    fn set_left(&mut self, id: EventId, left: u64) -> Result<(), Trouble> {
        let event = self.event(id, |c| c.set_left)?;
        event.period = left.max(1);
        event.overflow = event.reading.count + event.period;
        Ok(())
    }

    fn close(&mut self, id: EventId) {
        if let Some(event) = self.events.remove(&id).filter(|event| !event.owned) {
            self.pay(event.request.counter, |c| c.close);
        }
    }

    fn take_overflow(&mut self) -> Option<EventId> {
        self.overflowed.pop_front()
    }

    fn take_throttled(&mut self) -> Option<EventId> {
        self.throttled.pop_front()
    }

    fn probe(&self, event: PmuEvent) -> Result<(), Trouble> {
        if self.missing.contains(&event) { Err(Trouble::NoSuchEvent) } else { Ok(()) }
    }

    fn capacity(&self) -> Option<usize> {
        self.capacity
    }

    fn gives_counters(&self) -> bool {
        true
    }

    fn claim(&mut self, request: &EventRequest) -> Result<EventId, Trouble> {
        match self.ended {
            true => Err(Trouble::ThreadGone),
            false => Ok(self.open_event(request, true)),
        }
    }

    fn world_switched(&mut self, accesses: MsrAccesses) {
        self.lent = true;
        self.spend(accesses.total() * self.costs.msr);
    }
}
