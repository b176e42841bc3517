//! Call stacks of threads, reconstructed from the calls and returns of the processors that execute them.
//!
//! A frame has the stack address of its return address. So a return finds its frame whatever happened in between (calls that never
//! return, switched stacks), and a return to a frame of another thread means that the processor has switched to that thread.
//! Calls from before the record are unknown: a return to one begins a new stack. Processors have the threads' stacks in common, so a thread may
//! go on on another one.

mod links;

use rustc_hash::FxHashMap;

use super::tree::Label;

/// No frame.
pub(crate) const NONE: u32 = u32::MAX;
/// A kernel's stacks begin at multiples of this many bytes (`THREAD_SIZE`).
const STACK: u32 = 14;
/// Limit on frames and threads, more than any machine here has: a record that exceeds it is damaged, and all stacks are dropped.
const MOST: usize = 1 << 20;
const THREADS_MOST: u32 = 1 << 12;

/// How a frame was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameEntry {
    Call,
    /// A system call or an exception, which the code above caused.
    Gate,
    /// An interrupt, which nothing here caused.
    Interrupt,
}

/// Reference to a frame: its slot, and the generation of the slot's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRef {
    at: u32,
    serial: u32,
}

/// A function that was entered and has not returned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackFrame {
    parent: FrameRef,
    serial: u32,
    /// The function, once an instruction of it was executed.
    pub(crate) label: Option<Label>,
    pub(crate) entry: FrameEntry,
    pub(crate) thread: u32,
    slot: u64,
    /// Where it is to return to, if its call left that in a register.
    back: u64,
    /// Its node in the present tree, if it is of this generation.
    pub(crate) node: u32,
    pub(crate) generation: u32,
}

/// Stacks of processors that share their threads, of which one is on.
#[derive(Debug)]
pub(crate) struct Stacks {
    frames: Vec<StackFrame>,
    free: Vec<u32>,
    /// Frames by the place of their return address.
    slots: FxHashMap<u64, FrameRef>,
    /// Threads by their stack.
    threads: FxHashMap<u64, u32>,
    count: u32,
    /// The processor that is on, and its place.
    processor: usize,
    on: StackPlace,
    /// Places of all processors, once they were on.
    places: Vec<Option<StackPlace>>,
}

/// Where a processor is.
#[derive(Clone, Copy, Debug)]
struct StackPlace {
    current: u32,
    last_stack: u64,
    /// The kernel is on another thread's stack, and has not returned there yet.
    switching: bool,
}

const UNKNOWN_PLACE: StackPlace =
    StackPlace { current: NONE, last_stack: u64::MAX, switching: false };

const NOWHERE: FrameRef = FrameRef { at: NONE, serial: 0 };

impl Stacks {
    /// One thread, with an unknown stack.
    pub(crate) fn new() -> Stacks {
        let mut stacks = Stacks {
            frames: Vec::new(),
            free: Vec::new(),
            slots: FxHashMap::default(),
            threads: FxHashMap::default(),
            count: 1,
            processor: 0,
            on: UNKNOWN_PLACE,
            places: Vec::new(),
        };
        stacks.begin(0);
        stacks
    }

    /// Another processor is on. One that is for the first time has a thread of its own, with an unknown stack.
    pub(crate) fn turn(&mut self, processor: usize) {
        if self.places.len() <= self.processor.max(processor) {
            self.places.resize(self.processor.max(processor) + 1, None);
        }
        self.places[self.processor] = Some(self.on);
        self.processor = processor;
        if let Some(place) = self.places[processor] {
            self.on = place;
            return;
        }
        self.on = UNKNOWN_PLACE;
        self.count += 1;
        self.begin(self.count - 1);
    }

    /// Drops all stacks, of all processors.
    fn reset(&mut self) {
        let processor = self.processor;
        *self = Stacks::new();
        self.processor = processor;
    }

    /// Where the processor is.
    pub(crate) fn current(&self) -> u32 {
        self.on.current
    }

    /// The thread that it executes.
    pub(crate) fn thread(&self) -> u32 {
        self.get(self.on.current).thread
    }

    pub(crate) fn get(&self, frame: u32) -> &StackFrame {
        &self.frames[frame as usize]
    }

    pub(crate) fn get_mut(&mut self, frame: u32) -> &mut StackFrame {
        &mut self.frames[frame as usize]
    }

    /// The frame that called this one, or [`NONE`].
    pub(crate) fn caller(&self, frame: u32) -> u32 {
        self.alive(self.get(frame).parent).unwrap_or(NONE)
    }

    fn alive(&self, place: FrameRef) -> Option<u32> {
        let frame = self.frames.get(place.at as usize)?;
        (frame.serial == place.serial).then_some(place.at)
    }

    fn place(&self, frame: u32) -> FrameRef {
        self.frames
            .get(frame as usize)
            .map_or(NOWHERE, |found| FrameRef { at: frame, serial: found.serial })
    }

    fn push(&mut self, parent: FrameRef, entry: FrameEntry, thread: u32, slot: u64) {
        let mut new = StackFrame {
            parent,
            serial: 0,
            label: None,
            entry,
            thread,
            slot,
            back: 0,
            node: 0,
            generation: 0,
        };
        self.on.current = match self.free.pop() {
            Some(at) => {
                let old = &mut self.frames[at as usize];
                new.serial = old.serial;
                *old = new;
                at
            }
            None => {
                self.frames.push(new);
                self.frames.len() as u32 - 1
            }
        };
    }

    /// A new, unknown stack.
    fn begin(&mut self, thread: u32) {
        self.push(NOWHERE, FrameEntry::Call, thread, 0);
    }

    fn forget(&mut self, frame: u32) {
        let place = self.place(frame);
        let StackFrame { slot, .. } = self.frames[frame as usize];
        if slot != 0 && self.slots.get(&slot) == Some(&place) {
            self.slots.remove(&slot);
        }
        let serial = &mut self.frames[frame as usize].serial;
        *serial = serial.wrapping_add(1);
        self.free.push(frame);
    }

    /// Forgets the frames from the current one up to that one.
    fn unwind(&mut self, until: u32) {
        let mut at = self.on.current;
        while at != until && at != NONE {
            let caller = self.caller(at);
            self.forget(at);
            at = caller;
        }
    }

    /// A call whose return address is at `slot`.
    pub(crate) fn call(&mut self, slot: u64, entry: FrameEntry) {
        self.drop_overwritten(slot);
        let thread = self.thread();
        self.note_stack(slot, thread);
        self.push(self.place(self.on.current), entry, thread, slot);
        self.slots.insert(slot, self.place(self.on.current));
        if self.frames.len() > MOST {
            self.reset();
        }
    }

    /// Calls whose return address was where this one's is, or deeper, never return.
    fn drop_overwritten(&mut self, slot: u64) {
        loop {
            let top = self.get(self.on.current);
            let dead = top.slot != 0 && top.slot <= slot && top.slot >> STACK == slot >> STACK;
            let caller = self.caller(self.on.current);
            if !dead || caller == NONE {
                return;
            }
            self.forget(self.on.current);
            self.on.current = caller;
        }
    }

    /// Enters through a gate, which does not push a return address like a call's.
    pub(crate) fn enter(&mut self, entry: FrameEntry) {
        let thread = self.thread();
        self.push(self.place(self.on.current), entry, thread, 0);
    }

    /// The kernel switches threads (`__switch_to`): what it calls is on the next thread's stack, and its return leads there.
    pub(crate) fn switch(&mut self) {
        self.on.switching = true;
    }

    fn note_stack(&mut self, slot: u64, thread: u32) {
        let stack = slot >> STACK;
        if stack != self.on.last_stack && slot >> 63 == 1 && !self.on.switching {
            self.on.last_stack = stack;
            self.threads.insert(stack, thread);
        }
    }

    /// A return by the address at `slot`.
    pub(crate) fn ret(&mut self, slot: u64) {
        let found = if self.get(self.on.current).slot == slot {
            Some(self.on.current)
        } else {
            self.slots.get(&slot).and_then(|place| self.alive(*place))
        };
        let Some(frame) = found else { return self.ret_unseen(slot) };
        let (caller, thread) = (self.caller(frame), self.get(frame).thread);
        if thread == self.thread() {
            self.unwind(frame);
        } else {
            self.on.last_stack = u64::MAX;
            self.on.switching = false;
        }
        self.forget(frame);
        self.on.current = caller;
        if caller == NONE {
            self.begin(thread);
        }
    }

    /// A return to a call from before the record.
    fn ret_unseen(&mut self, slot: u64) {
        let mine = self.thread();
        let thread = match self.threads.get(&(slot >> STACK)) {
            _ if !std::mem::take(&mut self.on.switching) => mine,
            Some(thread) => *thread,
            None => {
                self.count += 1;
                self.count - 1
            }
        };
        if self.count > THREADS_MOST {
            self.reset();
            return;
        }
        if thread == mine {
            self.unwind(NONE);
        }
        self.on.last_stack = u64::MAX;
        self.note_stack(slot, thread);
        self.begin(thread);
    }

    /// A return from a gate.
    pub(crate) fn gate_return(&mut self) {
        let (mut at, thread) = (self.on.current, self.thread());
        while at != NONE && self.get(at).entry == FrameEntry::Call {
            at = self.caller(at);
        }
        self.unwind(at);
        let caller = if at == NONE { NONE } else { self.caller(at) };
        if at != NONE {
            self.forget(at);
        }
        self.on.current = caller;
        if caller == NONE {
            self.begin(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::LabelParts;
    use super::*;

    const A: u64 = 0xffff_c900_0001_0000;
    const B: u64 = 0xffff_c900_0002_0000;

    /// Names of the frames from the current one up; 0 for one that has none yet.
    pub(super) fn chain(stacks: &Stacks) -> Vec<u32> {
        let mut names = Vec::new();
        let mut at = stacks.current();
        while at != NONE {
            names.push(stacks.get(at).label.map_or(0, |label| match label.parts() {
                LabelParts::Function { id, .. } => id,
                _ => 0,
            }));
            at = stacks.caller(at);
        }
        names
    }

    pub(super) fn name(stacks: &mut Stacks, id: u32) {
        let at = stacks.current();
        stacks.get_mut(at).label = Some(Label::function(0, id));
    }

    fn calls(stacks: &mut Stacks, slot: u64, id: u32) {
        stacks.call(slot, FrameEntry::Call);
        name(stacks, id);
    }

    #[test]
    fn returns_find_their_call() {
        let mut stacks = Stacks::new();
        name(&mut stacks, 1);
        calls(&mut stacks, A + 0x800, 2);
        calls(&mut stacks, A + 0x700, 3);
        calls(&mut stacks, A + 0x600, 4);
        assert_eq!(chain(&stacks), [4, 3, 2, 1]);
        stacks.ret(A + 0x600);
        assert_eq!(chain(&stacks), [3, 2, 1]);
        // The return to 2 is skipped.
        stacks.ret(A + 0x800);
        assert_eq!(chain(&stacks), [1]);
        stacks.ret(A + 0x900);
        assert_eq!(chain(&stacks), [0]);
    }

    #[test]
    fn a_call_that_never_returns_is_forgotten() {
        let mut stacks = Stacks::new();
        name(&mut stacks, 1);
        for id in 2..50 {
            calls(&mut stacks, A + 0x700, id);
        }
        assert_eq!(chain(&stacks), [49, 1]);
    }

    #[test]
    fn threads_keep_their_stacks() {
        let mut stacks = Stacks::new();
        name(&mut stacks, 1);
        calls(&mut stacks, A + 0x800, 2);
        // The scheduler calls on another stack, and returns there, where nothing is known.
        calls(&mut stacks, A + 0x700, 3);
        stacks.switch();
        calls(&mut stacks, B + 0x6f8, 4);
        stacks.ret(B + 0x6f8);
        assert_eq!((chain(&stacks), stacks.thread()), (vec![3, 2, 1], 0));
        stacks.ret(B + 0x700);
        assert_eq!((chain(&stacks), stacks.thread()), (vec![0], 1));
        name(&mut stacks, 7);
        calls(&mut stacks, B + 0x6f0, 8);
        calls(&mut stacks, B + 0x600, 9);
        stacks.switch();
        stacks.ret(A + 0x700);
        assert_eq!((chain(&stacks), stacks.thread()), (vec![2, 1], 0));
        calls(&mut stacks, A + 0x700, 3);
        stacks.switch();
        stacks.ret(B + 0x600);
        assert_eq!((chain(&stacks), stacks.thread()), (vec![8, 7], 1));
    }

    #[test]
    fn a_thread_goes_on_on_another_processor() {
        let mut stacks = Stacks::new();
        name(&mut stacks, 1);
        calls(&mut stacks, A + 0x800, 2);
        calls(&mut stacks, A + 0x700, 3);
        stacks.switch();
        stacks.ret(B + 0x700);
        name(&mut stacks, 7);
        assert_eq!((chain(&stacks), stacks.thread()), (vec![7], 1));
        // The other one has a thread of its own until it switches.
        stacks.turn(1);
        name(&mut stacks, 5);
        assert_eq!((chain(&stacks), stacks.thread()), (vec![5], 2));
        calls(&mut stacks, B + 0x1_0700, 3);
        stacks.switch();
        stacks.ret(A + 0x700);
        assert_eq!((chain(&stacks), stacks.thread()), (vec![2, 1], 0));
        stacks.turn(0);
        assert_eq!((chain(&stacks), stacks.thread()), (vec![7], 1));
        stacks.turn(1);
        stacks.ret(A + 0x800);
        assert_eq!((chain(&stacks), stacks.thread()), (vec![1], 0));
    }

    #[test]
    fn gates_are_left_whatever_was_called_in_them() {
        let mut stacks = Stacks::new();
        name(&mut stacks, 1);
        stacks.enter(FrameEntry::Interrupt);
        name(&mut stacks, 2);
        calls(&mut stacks, A + 0x700, 3);
        stacks.gate_return();
        assert_eq!(chain(&stacks), [1]);
        stacks.gate_return();
        assert_eq!(chain(&stacks), [0]);
    }
}
