//! How guest counters are mapped to the host's events, and what that costs.
//!
//! The guest sees the same under all policies; they differ in the operations on the host. Registers are not known here: the caller
//! passes each counter's event and distance to overflow.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Notice, Trouble};
use crate::event::{Counter, Programme};
use crate::host::{EventHost, EventId, EventRequest, MsrAccesses};

/// When the host's events are created and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Policy {
    /// As KVM did until Linux 5.5: a change of an event select, of a fixed counter's control or of a counter's bit in
    /// global control closes the event and creates one anew; so does an overflow.
    Legacy,
    /// An event is kept as long as its counter counts the same: it is enabled and disabled, saved at the end of a slice, and closed when
    /// the guest did not use it for a whole slice.
    Reuse,
    /// As KVM's mediated PMU does since Linux 7.0: no events at all. While the guest runs the host's counters are its own;
    /// they are saved and loaded at each exit ([`crate::mediated`]), and the host's events do not count then. Only a host
    /// that gives its counters can do so ([`EventHost::gives_counters`]): a model, or a kernel, but no VMM.
    Mediated,
}

impl Policy {
    /// All of them, the oldest first.
    pub const ALL: [Policy; 3] = [Policy::Legacy, Policy::Reuse, Policy::Mediated];

    /// Its word in tables.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Legacy => "legacy",
            Policy::Reuse => "reuse",
            Policy::Mediated => "mediated",
        }
    }
}

/// Operations on the host, and outcomes of interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Exits of the guest: accesses, counter interrupts, and those reported by [`crate::Pmu::exited`].
    pub exits: u64,
    /// Accesses without an exit.
    pub passes: u64,
    /// Slices that ended.
    pub slices: u64,
    /// Accesses of the processor's MSRs to save and load the guest's own counters.
    pub world_switches: MsrAccesses,
    /// Events created.
    pub creates: u64,
    /// Events that the host refused to create.
    pub refusals: u64,
    /// Events closed.
    pub closes: u64,
    /// Events enabled.
    pub enables: u64,
    /// Events disabled.
    pub disables: u64,
    /// Events read.
    pub reads: u64,
    /// Periods set.
    pub periods: u64,
    /// Readings added to counters.
    pub counted: u64,
    /// Overflows.
    pub overflows: u64,
    /// Interrupts requested, including one in a restored state. Each is delivered, merged, dropped (also by a reset), or pending.
    pub interrupts: u64,
    /// Interrupts that the VMM injected.
    pub delivered: u64,
    /// Interrupts requested while one was pending.
    pub merged: u64,
    /// Interrupts that found LVTPC masked.
    pub dropped: u64,
    /// Events that the host throttled.
    pub throttles: u64,
}

/// A host's event for a guest's counter.
#[derive(Clone, Copy, Debug)]
struct Backed {
    id: EventId,
    programme: Programme,
    /// The event's count at the last reading.
    base: u64,
    /// The event's count at which it reports an overflow.
    overflow: u64,
    /// Time enabled but not running, ns, at the last reading.
    away: u64,
    running: bool,
}

/// A guest's counter.
#[derive(Clone, Copy, Debug)]
struct CounterSlot {
    counter: Counter,
    event: Option<Backed>,
    /// The guest touched it in this slice.
    used: bool,
}

/// All counters of a vCPU and their events.
#[derive(Debug)]
pub(crate) struct CounterBacking<H> {
    pub(crate) host: H,
    pub(crate) policy: Policy,
    pub(crate) activity: Activity,
    slots: Vec<CounterSlot>,
    notices: BTreeMap<(Counter, Trouble), u64>,
}

impl<H: EventHost> CounterBacking<H> {
    pub(crate) fn new(counters: &[Counter], host: H, policy: Policy) -> CounterBacking<H> {
        let slot = |c: &Counter| CounterSlot { counter: *c, event: None, used: false };
        CounterBacking {
            host,
            policy,
            activity: Activity::default(),
            slots: counters.iter().map(slot).collect(),
            notices: BTreeMap::new(),
        }
    }

    /// Marks a counter as used.
    pub(crate) fn touch(&mut self, slot: usize) {
        self.slots[slot].used = true;
    }

    /// Whether a counter's event is enabled.
    pub(crate) fn is_running(&self, slot: usize) -> bool {
        self.slots[slot].event.is_some_and(|e| e.running)
    }

    /// Whether a counter's event has to stand still before the counter goes on as wanted. `written`: the guest changed
    /// a register of it.
    pub(crate) fn must_stop(&self, slot: usize, wanted: Option<Programme>, written: bool) -> bool {
        let Some(event) = self.slots[slot].event.filter(|e| e.running) else { return false };
        match self.policy {
            Policy::Legacy => written,
            Policy::Reuse | Policy::Mediated => wanted != Some(event.programme),
        }
    }

    /// Stops counting; returns the count since the last reading.
    pub(crate) fn stop(&mut self, slot: usize) -> u64 {
        if !self.is_running(slot) {
            return 0;
        }
        match self.policy {
            Policy::Legacy | Policy::Mediated => {
                let delta = self.fold(slot);
                self.release(slot);
                delta
            }
            Policy::Reuse => {
                if let Some(event) = &mut self.slots[slot].event {
                    event.running = false;
                    self.activity.disables += 1;
                    let result = self.host.disable(event.id);
                    self.note(slot, result);
                }
                self.fold(slot)
            }
        }
    }

    /// Starts counting, unless it counts already. `left`: events until the overflow.
    pub(crate) fn start(&mut self, slot: usize, programme: Programme, left: u64) {
        match self.slots[slot].event {
            Some(event) if event.programme == programme => {
                self.set_left(slot, left);
                if !event.running {
                    self.activity.enables += 1;
                    let result = self.host.enable(event.id);
                    self.note(slot, result);
                    if let Some(event) = &mut self.slots[slot].event {
                        event.running = true;
                    }
                }
            }
            _ => {
                self.release(slot);
                self.create(slot, programme, left);
            }
        }
    }

    /// Creates an event; if the host refuses it, the counter does not advance.
    fn create(&mut self, slot: usize, programme: Programme, left: u64) {
        let request = EventRequest { counter: self.slots[slot].counter, programme, left };
        let created = match self.policy {
            Policy::Mediated => self.host.claim(&request),
            Policy::Legacy | Policy::Reuse => self.host.create(&request),
        };
        match created {
            Ok(id) => {
                self.activity.creates += self.work();
                let event =
                    Backed { id, programme, base: 0, overflow: left, away: 0, running: true };
                self.slots[slot].event = Some(event);
            }
            Err(trouble) => {
                self.activity.refusals += 1;
                self.note(slot, Err(trouble));
            }
        }
    }

    /// Sets the period of a running counter's event.
    pub(crate) fn set_left(&mut self, slot: usize, left: u64) {
        let Some(event) = &mut self.slots[slot].event else { return };
        let overflow = event.base + left;
        if event.overflow == overflow {
            return;
        }
        event.overflow = overflow;
        self.activity.periods += u64::from(self.policy != Policy::Mediated);
        let result = self.host.set_left(event.id, left);
        self.note(slot, result);
    }

    /// Reads a counter's event; returns what was counted since the last reading.
    pub(crate) fn fold(&mut self, slot: usize) -> u64 {
        let Some(mut event) = self.slots[slot].event else { return 0 };
        self.activity.reads += self.work();
        let mut reading = self.host.read(event.id);
        if reading == Err(Trouble::Taken) {
            // What it counted before is still there, and comes back when it is enabled again.
            self.note(slot, Err(Trouble::Taken));
            self.activity.enables += 1;
            let enabled = self.host.enable(event.id);
            reading = enabled.and_then(|()| {
                self.activity.reads += 1;
                self.host.read(event.id)
            });
            if !event.running {
                self.activity.disables += 1;
                let result = self.host.disable(event.id);
                self.note(slot, result);
            }
        }
        let Ok(reading) = reading else {
            self.note(slot, reading.map(|_| ()));
            return 0;
        };
        let away = reading.enabled.saturating_sub(reading.running);
        if std::mem::replace(&mut event.away, away) < away {
            self.note(slot, Err(Trouble::Multiplexed));
        }
        let delta = reading.count.saturating_sub(event.base);
        event.base += delta;
        self.slots[slot].event = Some(event);
        self.activity.counted += delta;
        delta
    }

    /// Closes a counter's event. What it counted must have been read.
    pub(crate) fn release(&mut self, slot: usize) {
        if let Some(event) = self.slots[slot].event.take() {
            self.activity.closes += self.work();
            self.host.close(event.id);
        }
    }

    /// What an operation on an event is counted as: on a counter of the guest's own it is nothing that the host does.
    fn work(&self) -> u64 {
        u64::from(self.policy != Policy::Mediated)
    }

    /// The guest's own counters were saved and loaded again, or will be.
    pub(crate) fn world_switched(&mut self, accesses: MsrAccesses) {
        self.activity.world_switches += accesses;
        self.host.world_switched(accesses);
    }

    /// A new slice begins. Events that were not used in the whole last one are closed, unless the guest has their
    /// counters enabled.
    pub(crate) fn begin_slice(&mut self, enabled: impl Fn(Counter) -> bool) {
        for i in 0..self.slots.len() {
            let slot = self.slots[i];
            let idle = !slot.used && !enabled(slot.counter);
            if self.policy == Policy::Reuse && idle {
                self.release(i);
            }
            self.slots[i].used = false;
        }
    }

    /// A counter whose event reported an overflow.
    pub(crate) fn take_overflow(&mut self) -> Option<usize> {
        while let Some(id) = self.host.take_throttled() {
            self.activity.throttles += 1;
            if let Some(slot) = self.slot_of(id) {
                self.note(slot, Err(Trouble::Throttled));
            }
        }
        // Reports of events closed in the meantime are ignored.
        loop {
            let id = self.host.take_overflow()?;
            if let Some(slot) = self.slot_of(id) {
                return Some(slot);
            }
        }
    }

    fn slot_of(&self, id: EventId) -> Option<usize> {
        self.slots.iter().position(|s| s.event.is_some_and(|e| e.id == id))
    }

    fn note(&mut self, slot: usize, result: Result<(), Trouble>) {
        if let Err(trouble) = result {
            *self.notices.entry((self.slots[slot].counter, trouble)).or_default() += 1;
        }
    }

    /// Troubles of counters since the last call.
    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        let notices = std::mem::take(&mut self.notices);
        let notice = |((counter, trouble), times)| Notice { counter, trouble, times };
        notices.into_iter().map(notice).collect()
    }
}
