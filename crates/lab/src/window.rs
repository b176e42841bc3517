//! Which events of a recording belong to which operation.
//!
//! A payload writes to a port before and after each batch, and those writes are exits that the recording has. From the
//! entry that follows the first to the exit of the second all that the VM does belongs to the batch:
//!
//! ```text
//!  L1 │ OUT begin  entry │ exit entry exit entry ... │ OUT end
//!     │            ▲──────────── window ────────────▲│
//!  L2 │ OUT begin  (L1's exits)  VMRESUME exit, entry │ exit entry ... │ OUT end
//!     │                                          ▲───── window ────────▲│
//! ```
//! The exit of VMRUN, VMLAUNCH or VMRESUME shows that L1 enters L2: `kvm_nested_vmenter` is absent on VMX before
//! Linux 6.1. On arm64 `kvm_nested_eret` does.
//!
//! In the window events get a process and threads of their own, so that the analysis, which knows nothing of
//! operations, takes each operation for a VM.

use std::collections::{BTreeMap, HashMap, VecDeque};

use vmtax_events::{Event, EventKind, Isa, Reason, arm, svm, vmx};
use vmtax_guest::layout;

use crate::exceptions::CountedExits;

/// Thread ids of an operation's events start here, times its VM's id.
const THREADS: u32 = 0x100;

/// The windows of a recording; events go in in time order.
#[derive(Debug, Default)]
pub struct Windows {
    state: WindowState,
    threads: WindowThreads,
    seen: HashMap<u16, SeenWindow>,
    levels: MappedLevels,
    /// Windows of which the times are known and no marks: beginnings, ends and operations, the next one last.
    dated: Vec<(u64, u64, u16)>,
    step: StepWindow,
}

/// What is open of a window whose times are known.
#[derive(Debug, Default)]
struct StepWindow {
    is_open: bool,
    /// Threads that have entered a guest in it.
    entered: Vec<u32>,
    /// The exit with which the last one left its guest.
    left: Option<Event>,
}

/// What a recording shows of an operation.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SeenWindow {
    /// How far its window got.
    pub extent: Extent,
    /// Exits of L1 and L2 in it.
    pub exits: SeenExits,
    /// Those of them that came from L2.
    pub nested: SeenExits,
    /// Events were lost between its marks.
    pub lost: bool,
    /// How often it began: one batch is recorded.
    pub begun: u32,
    /// Page faults of the second-level page table in it.
    pub faults: u64,
    /// Guest pages of 4 KiB, 2 MiB and 1 GiB that KVM mapped from the start of the recording to the end of the window, each
    /// counted at its last level; `None` where the recording does not have `kvm_mmu_spte_requested`.
    pub mapped: Option<[u64; 3]>,
}

/// How much of a window was seen.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    #[default]
    Nothing,
    /// The begin mark, and no entry of the guest after it.
    Begin,
    /// It opened, and no end mark came.
    Open,
    Whole,
}

/// Exits in a window.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SeenExits {
    pub all: u64,
    /// Interrupts of the host, which it gets whatever the guest does.
    pub interrupts: u64,
}

impl SeenExits {
    fn add(&mut self, reason: Reason) {
        self.all += 1;
        self.interrupts += u64::from(is_of_the_host(reason));
    }

    /// Those that the emulator counted.
    pub(crate) fn of_counted(counted: &CountedExits) -> SeenExits {
        let mut exits = SeenExits::default();
        for (reason, count) in counted {
            exits.all += count;
            exits.interrupts += if is_of_the_host(*reason) { *count } else { 0 };
        }
        exits
    }

    /// Those that the guest caused.
    pub fn caused(self) -> u64 {
        self.all - self.interrupts
    }
}

/// The threads of a window, in order of appearance.
#[derive(Debug, Default)]
struct WindowThreads(HashMap<u32, u32>);

impl WindowThreads {
    /// The event as one of this VM's.
    fn moved(&mut self, event: &Event, vm: u32) -> Event {
        let mut tid = |tid: u32| {
            let next = self.0.len() as u32;
            vm.saturating_mul(THREADS).saturating_add(*self.0.entry(tid).or_insert(next))
        };
        let mut moved = Event { pid: vm, tid: tid(event.tid), ..*event };
        if let EventKind::Switch { next_tid, preempted } = event.kind {
            moved.kind = EventKind::Switch { next_tid: tid(next_tid), preempted };
        }
        moved
    }
}

/// At which level each guest page was mapped last. A large page takes the place of the small ones in it, and the other way round:
/// KVM drops what was there before it maps another size.
#[derive(Debug, Default)]
struct MappedLevels {
    /// By first frame.
    pages: BTreeMap<u64, u8>,
    seen: bool,
}

/// The level of a 1 GiB page.
const LARGEST: u8 = 3;

impl MappedLevels {
    fn map(&mut self, gfn: u64, level: u8) {
        self.seen = true;
        let Some(frames) = frames(level) else { return };
        let first = gfn & !(frames - 1);
        for larger in level + 1..=LARGEST {
            let at = gfn & !(frames_of(larger) - 1);
            if self.pages.get(&at) == Some(&larger) {
                self.pages.remove(&at);
            }
        }
        let inside: Vec<u64> =
            self.pages.range(first..first.saturating_add(frames)).map(|(at, _)| *at).collect();
        for at in inside {
            self.pages.remove(&at);
        }
        self.pages.insert(first, level);
    }

    /// Pages by size, and nothing is known any more.
    fn take(&mut self) -> Option<[u64; 3]> {
        let pages = std::mem::take(self);
        let count =
            |level: u8| pages.pages.values().filter(|other| **other == level).count() as u64;
        pages.seen.then(|| [count(1), count(2), count(3)])
    }
}

/// Frames of a page at a level; `None` for a level that x86 does not have.
fn frames(level: u8) -> Option<u64> {
    (1..=LARGEST).contains(&level).then(|| frames_of(level))
}

fn frames_of(level: u8) -> u64 {
    1 << (9 * u32::from(level.clamp(1, LARGEST) - 1))
}

#[derive(Debug, Default, Clone, Copy)]
enum WindowState {
    #[default]
    Outside,
    /// Begin was seen on this thread; the window opens at its entry.
    Opening {
        operation: u16,
        tid: u32,
        level: BeginLevel,
    },
    Inside {
        operation: u16,
    },
}

/// Where the begin was executed, and what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BeginLevel {
    /// In L1, as far as is known: the next entry opens.
    One,
    /// In L2: L1 has to resume L2 first.
    Two,
    /// L1 has; the next entry opens.
    Resumed,
}

/// The VM id of an operation.
pub fn vm_of(operation: u16) -> u32 {
    u32::from(operation) + 1
}

impl StepWindow {
    /// Whether the event is of a thread that is a vCPU in the step: the rest of the host is in none.
    fn takes(&mut self, event: &Event) -> bool {
        match event.kind {
            EventKind::Entry => {
                self.left = None;
                if !self.entered.contains(&event.tid) {
                    self.entered.push(event.tid);
                }
            }
            EventKind::Exit { .. } => self.left = Some(*event),
            _ => {}
        }
        self.entered.contains(&event.tid) || matches!(event.kind, EventKind::Lost { .. })
    }
}

impl Windows {
    /// Windows of VMs ([`vm_of`]) whose beginnings and ends are known by the recording's clock: steps that the VMM takes, which are no exits.
    pub fn with(times: impl IntoIterator<Item = (u32, (u64, u64))>) -> Windows {
        let mut windows = Windows::default();
        for (vm, (began, ended)) in times {
            let Some(operation) = vm.checked_sub(1).and_then(|one| u16::try_from(one).ok()) else {
                continue;
            };
            windows.dated.push((began, ended, operation));
            let seen = SeenWindow { extent: Extent::Whole, begun: 1, ..SeenWindow::default() };
            windows.seen.insert(operation, seen);
        }
        windows.dated.sort_unstable_by(|a, b| b.cmp(a));
        windows
    }

    /// Opens and ends windows by their times. The step's last exit is over when the step is, which the recording does not say: an entry is
    /// returned for it, and the same as one of its operation's.
    pub fn ended(&mut self, time: u64) -> Option<(Event, Event)> {
        let mut last = None;
        while let Some((began, ended, operation)) = self.dated.last().copied() {
            if time < began {
                break;
            }
            if time < ended {
                if !self.step.is_open {
                    self.threads.0.clear();
                    self.step = StepWindow { is_open: true, ..StepWindow::default() };
                    self.state = WindowState::Inside { operation };
                }
                break;
            }
            self.dated.pop();
            if std::mem::take(&mut self.step.is_open) {
                self.state = WindowState::Outside;
                last = self.step.left.take().map(|left| {
                    let entry = Event { time_ns: ended, kind: EventKind::Entry, ..left };
                    (entry, self.moved(&entry, operation))
                });
            }
        }
        last
    }

    /// The event as one of its operation's, or `None` when it belongs to none.
    pub fn place(&mut self, event: &Event) -> Option<Event> {
        if let EventKind::Exit { reason, info1, .. } = event.kind
            && let Some((operation, begins)) = mark(reason, info1)
        {
            self.mark(event, operation, begins);
            return None;
        }
        if let EventKind::MapRequest { gfn, level } = event.kind {
            self.levels.map(gfn, level);
        }
        match self.state {
            WindowState::Outside => None,
            WindowState::Opening { operation, tid, level } => {
                if let EventKind::Lost { .. } = event.kind {
                    self.seen(operation).lost = true;
                }
                if event.tid != tid {
                    return None;
                }
                let level = match event.kind {
                    EventKind::NestedExit { .. } | EventKind::NestedInject { .. } => {
                        BeginLevel::Two
                    }
                    kind if level == BeginLevel::Two && enters_guest(&kind) => BeginLevel::Resumed,
                    EventKind::Entry if level != BeginLevel::Two => {
                        self.seen(operation).extent = Extent::Open;
                        self.state = WindowState::Inside { operation };
                        return Some(self.moved(event, operation));
                    }
                    _ => level,
                };
                self.state = WindowState::Opening { operation, tid, level };
                None
            }
            WindowState::Inside { operation } => {
                if self.step.is_open && !self.step.takes(event) {
                    return None;
                }
                self.count(event, operation);
                Some(self.moved(event, operation))
            }
        }
    }

    /// What the recording showed of the operation that has this VM ([`vm_of`]).
    pub fn of_vm(&self, vm: u32) -> SeenWindow {
        let operation = vm.checked_sub(1).and_then(|number| u16::try_from(number).ok());
        operation.and_then(|number| self.seen.get(&number)).copied().unwrap_or_default()
    }

    fn mark(&mut self, event: &Event, operation: u16, begins: bool) {
        self.threads.0.clear();
        self.state = if begins {
            let seen = self.seen(operation);
            *seen = SeenWindow {
                extent: Extent::Begin,
                begun: seen.begun + 1,
                ..SeenWindow::default()
            };
            WindowState::Opening { operation, tid: event.tid, level: BeginLevel::One }
        } else {
            let mapped = self.levels.take();
            let seen = self.seen(operation);
            seen.mapped = mapped;
            if seen.extent == Extent::Open {
                seen.extent = Extent::Whole;
            }
            WindowState::Outside
        };
    }

    fn count(&mut self, event: &Event, operation: u16) {
        let seen = self.seen(operation);
        match event.kind {
            EventKind::Exit { reason, .. } => seen.exits.add(reason),
            EventKind::NestedExit { reason } => seen.nested.add(reason),
            // There nothing else says that an exit is L2's; it tells of those that L0 does not handle itself.
            EventKind::NestedInject { reason } if reason.isa == Isa::Arm => {
                seen.nested.add(reason);
            }
            EventKind::Lost { .. } => seen.lost = true,
            EventKind::PageFault { .. } => seen.faults += 1,
            _ => {}
        }
    }

    fn seen(&mut self, operation: u16) -> &mut SeenWindow {
        self.seen.entry(operation).or_default()
    }

    fn moved(&mut self, event: &Event, operation: u16) -> Event {
        self.threads.moved(event, vm_of(operation))
    }
}

/// A recording that a VM's agent started and stopped, by a write to a port each: all of it is one VM's.
#[derive(Debug)]
pub struct Window {
    vm: u32,
    state: Stretch,
    threads: WindowThreads,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stretch {
    /// The VM that started it was not entered yet. A guest's guest is so by its host.
    Starting {
        nested: bool,
    },
    Inside,
    Over,
}

impl Window {
    /// Whose events they are to be, and whether the agent runs in a guest's guest.
    pub fn new(vm: u32, nested: bool) -> Window {
        Window { vm, state: Stretch::Starting { nested }, threads: WindowThreads::default() }
    }

    /// The event as one of the VM's, or `None` when it belongs to starting or stopping.
    pub fn place(&mut self, event: &Event) -> Option<Event> {
        if let EventKind::Exit { reason, info1, .. } = event.kind
            && port(reason, info1) == Some(layout::TRACE)
            && self.state == Stretch::Inside
        {
            self.state = Stretch::Over;
        }
        match (self.state, event.kind) {
            (Stretch::Starting { nested: true }, kind) if enters_guest(&kind) => {
                self.state = Stretch::Starting { nested: false };
                return None;
            }
            (Stretch::Starting { nested: false }, EventKind::Entry) => self.state = Stretch::Inside,
            _ => {}
        }
        (self.state == Stretch::Inside).then(|| self.threads.moved(event, self.vm))
    }

    /// What is missing of it, if anything is.
    pub fn problem(&self) -> Option<&'static str> {
        match self.state {
            Stretch::Starting { nested: true } => {
                Some("the recording shows no VMRUN, VMLAUNCH or VMRESUME of L1 after its start")
            }
            Stretch::Starting { nested: false } => {
                Some("the recording shows no entry of the VM after its start")
            }
            Stretch::Inside => Some("the recording ends before the VM's end mark"),
            Stretch::Over => None,
        }
    }
}

/// Interrupts of the host's own clock and devices: which operation they hit is chance.
pub fn is_of_the_host(reason: Reason) -> bool {
    match reason.isa {
        Isa::Svm => matches!(reason.code, svm::INTR | svm::NMI | svm::SMI),
        Isa::Vmx => reason.code == vmx::EXTERNAL_INTERRUPT,
        Isa::Arm => reason.code == arm::IRQ,
        Isa::Unknown => false,
    }
}

/// The guest can take an interrupt that waited for it.
pub fn is_window(reason: Reason) -> bool {
    match reason.isa {
        Isa::Svm => reason.code == svm::VINTR,
        Isa::Vmx => reason.code == vmx::INTERRUPT_WINDOW,
        Isa::Arm | Isa::Unknown => false,
    }
}

/// By this a hypervisor in the guest has its own guest entered. arm64's exit for it, ERET, is also how it goes on itself.
fn enters_guest(kind: &EventKind) -> bool {
    let EventKind::Exit { reason, .. } = kind else {
        return matches!(kind, EventKind::NestedEnter);
    };
    match reason.isa {
        Isa::Svm => reason.code == svm::VMRUN,
        Isa::Vmx => matches!(reason.code, vmx::VMLAUNCH | vmx::VMRESUME),
        Isa::Arm | Isa::Unknown => false,
    }
}

/// Which mark an exit is.
fn mark(reason: Reason, info1: u64) -> Option<(u16, bool)> {
    port(reason, info1).and_then(layout::mark)
}

/// The port of an exit for one. Both processors of x86 have it in bits 16 to 31 of the first information word; on arm64 [`Ahead`] puts the
/// address there.
pub(crate) fn port(reason: Reason, info1: u64) -> Option<u16> {
    let io = match reason.isa {
        Isa::Svm => svm::IOIO,
        Isa::Vmx => vmx::IO_INSTRUCTION,
        Isa::Arm if reason.code == arm::DABT_LOW => return layout::arm::port(info1),
        Isa::Arm | Isa::Unknown => return None,
    };
    (reason.code == io).then_some((info1 >> 16) as u16)
}

/// A port that begins or ends a stretch of a recording.
fn is_stop(port: u16) -> bool {
    port == layout::TRACE || layout::mark(port).is_some()
}

/// Looks ahead of exits that do not say what they access: a data abort of arm64 is held back until its thread faults, enters the guest or exits again, and gets the
/// address of a mark or of the end of recording as its first information word if it is a fault there. What comes between is of an interrupt of the host, which may
/// switch to another thread. Events stay in their order.
#[derive(Debug, Default)]
pub struct Ahead {
    held: VecDeque<Event>,
}

impl Ahead {
    /// Takes an event, and gives those that can go on.
    pub fn take(&mut self, event: &Event, each: &mut dyn FnMut(&Event)) {
        let is_abort = |kind: &EventKind| matches!(kind, EventKind::Exit { reason, .. } if reason.isa == Isa::Arm && reason.code == arm::DABT_LOW);
        let decides = matches!(
            event.kind,
            EventKind::PageFault { .. } | EventKind::Entry | EventKind::Exit { .. }
        );
        let first = self.held.front_mut();
        if let Some(first) = first.filter(|first| decides && first.tid == event.tid) {
            if let (EventKind::PageFault { gpa, .. }, EventKind::Exit { info1, .. }) =
                (event.kind, &mut first.kind)
                && layout::arm::port(gpa).is_some_and(is_stop)
            {
                *info1 = gpa;
            }
            self.finish(each);
        }
        match self.held.is_empty() && !is_abort(&event.kind) {
            true => each(event),
            false => self.held.push_back(*event),
        }
    }

    /// Gives all that is left.
    pub fn finish(&mut self, each: &mut dyn FnMut(&Event)) {
        self.held.drain(..).for_each(|event| each(&event));
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
