//! Calls that leave their return address in a register (arm64).
//!
//! A function that calls others stores a frame record on its stack, the caller's frame pointer and its own return address, and loads it before it
//! returns. So the address of the record tells the thread, and a return finds its frame by the address that it goes to.

use super::{FrameEntry, MOST, NONE, STACK, Stacks, THREADS_MOST};

impl Stacks {
    /// A call that is to return to `back`.
    pub(crate) fn call_back(&mut self, back: u64) {
        let thread = self.thread();
        self.push(self.place(self.on.current), FrameEntry::Call, thread, 0);
        self.get_mut(self.on.current).back = back;
        if self.frames.len() > MOST {
            self.reset();
        }
    }

    /// The function stores its frame record at `slot`.
    pub(crate) fn record(&mut self, slot: u64) {
        let current = self.on.current;
        self.drop_slot(current);
        self.get_mut(current).slot = slot;
        self.slots.insert(slot, self.place(current));
        let thread = self.thread();
        self.note_stack(slot, thread);
    }

    /// It loads its frame record from `slot`, and will return. Where that is of another thread, the processor has switched to it.
    pub(crate) fn recall(&mut self, slot: u64) {
        let found = self.slots.get(&slot).and_then(|place| self.alive(*place));
        let Some(frame) = found else { return self.recall_unseen(slot) };
        self.on.switching = false;
        if self.get(frame).thread == self.thread() {
            self.unwind(frame);
        } else {
            self.on.last_stack = u64::MAX;
        }
        self.drop_slot(frame);
        self.on.current = frame;
    }

    /// A record from before the recording.
    fn recall_unseen(&mut self, slot: u64) {
        let mine = self.thread();
        if !std::mem::take(&mut self.on.switching) {
            // Calls deeper in the stack never return.
            loop {
                let top = *self.get(self.on.current);
                let caller = self.caller(self.on.current);
                let dead = top.slot != 0 && top.slot < slot && top.slot >> STACK == slot >> STACK;
                if !dead || caller == NONE {
                    return;
                }
                self.forget(self.on.current);
                self.on.current = caller;
            }
        }
        let known = self.threads.get(&(slot >> STACK)).copied();
        let Some(thread) = known.or_else(|| self.new_thread()) else { return };
        if thread == mine {
            self.unwind(NONE);
        }
        self.on.last_stack = u64::MAX;
        self.note_stack(slot, thread);
        self.begin(thread);
    }

    /// A return, to this address if that is known.
    pub(crate) fn return_to(&mut self, to: Option<u64>) {
        let (mut at, thread) = (self.on.current, self.thread());
        while at != NONE && self.get(at).entry == FrameEntry::Call {
            let caller = self.caller(at);
            if to.is_none_or(|to| self.get(at).back == to) && caller != NONE {
                self.unwind(at);
                self.forget(at);
                self.on.current = caller;
                return;
            }
            at = caller;
        }
        // A call from before the recording, or one that the code behind a gate has not made.
        self.unwind(at);
        self.on.current = at;
        if at == NONE {
            self.begin(thread);
        }
    }

    /// The function that goes over to another thread returns there: to its own caller as that thread called it, or, in a new thread, elsewhere.
    pub(crate) fn leave_thread(&mut self, to: Option<u64>) {
        let left = *self.get(self.on.current);
        self.return_to(Some(left.back));
        self.on.switching = true;
        if to.is_some_and(|to| to != left.back)
            && let Some(thread) = self.new_thread()
        {
            self.on.last_stack = u64::MAX;
            self.on.switching = false;
            self.begin(thread);
        }
    }

    /// A thread that was not seen before; `None` if there are too many, and all are dropped.
    fn new_thread(&mut self) -> Option<u32> {
        self.count += 1;
        if self.count > THREADS_MOST {
            self.reset();
            return None;
        }
        Some(self.count - 1)
    }

    /// The frame has no record any more.
    fn drop_slot(&mut self, frame: u32) {
        let (place, slot) = (self.place(frame), self.get(frame).slot);
        if slot != 0 && self.slots.get(&slot) == Some(&place) {
            self.slots.remove(&slot);
        }
        self.get_mut(frame).slot = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{chain, name};
    use super::*;

    const A: u64 = 0xffff_8000_0801_0000;
    const B: u64 = 0xffff_8000_0802_0000;

    /// A function is called from `back - 4`, and stores its record.
    fn calls(stacks: &mut Stacks, back: u64, slot: u64, id: u32) {
        stacks.call_back(back);
        name(stacks, id);
        if slot != 0 {
            stacks.record(slot);
        }
    }

    #[test]
    fn returns_find_their_call() {
        let mut stacks = Stacks::new();
        name(&mut stacks, 1);
        calls(&mut stacks, 0x104, A + 0x800, 2);
        calls(&mut stacks, 0x204, A + 0x700, 3);
        calls(&mut stacks, 0x304, 0, 4);
        assert_eq!(chain(&stacks), [4, 3, 2, 1]);
        stacks.return_to(Some(0x304));
        assert_eq!(chain(&stacks), [3, 2, 1]);
        stacks.recall(A + 0x700);
        // It goes on as another function, which calls and returns for it.
        calls(&mut stacks, 0x404, 0, 5);
        stacks.return_to(Some(0x404));
        stacks.return_to(Some(0x204));
        assert_eq!(chain(&stacks), [2, 1]);
        // The return of 2 is not to where it was called: from before the recording.
        stacks.recall(A + 0x800);
        stacks.return_to(Some(0x999));
        assert_eq!(chain(&stacks), [0]);
    }

    #[test]
    fn threads_keep_their_stacks() {
        let mut stacks = Stacks::new();
        name(&mut stacks, 1);
        calls(&mut stacks, 0x104, A + 0x800, 2);
        // __switch_to (3) calls cpu_switch_to (4), which returns to it in another thread.
        calls(&mut stacks, 0x204, A + 0x700, 3);
        calls(&mut stacks, 0x304, 0, 4);
        stacks.leave_thread(Some(0x304));
        stacks.recall(B + 0x700);
        assert_eq!((chain(&stacks), stacks.thread()), (vec![0], 1));
        name(&mut stacks, 3);
        stacks.return_to(Some(0x204));
        name(&mut stacks, 7);
        calls(&mut stacks, 0x204, B + 0x700, 3);
        calls(&mut stacks, 0x304, 0, 4);
        stacks.leave_thread(Some(0x304));
        stacks.recall(A + 0x700);
        assert_eq!((chain(&stacks), stacks.thread()), (vec![3, 2, 1], 0));
        stacks.return_to(Some(0x204));
        assert_eq!(chain(&stacks), [2, 1]);
        // A new thread begins elsewhere.
        calls(&mut stacks, 0x204, A + 0x700, 3);
        calls(&mut stacks, 0x304, 0, 4);
        stacks.leave_thread(Some(0x900));
        assert_eq!((chain(&stacks), stacks.thread()), (vec![0], 2));
    }

    #[test]
    fn a_return_does_not_leave_a_gate() {
        let mut stacks = Stacks::new();
        name(&mut stacks, 1);
        calls(&mut stacks, 0x104, A + 0x800, 2);
        stacks.enter(FrameEntry::Interrupt);
        name(&mut stacks, 3);
        calls(&mut stacks, 0x204, A + 0x600, 4);
        stacks.return_to(Some(0x104));
        assert_eq!(chain(&stacks), [3, 2, 1]);
        stacks.gate_return();
        assert_eq!(chain(&stacks), [2, 1]);
        // An interrupt came between the return and what it leads to.
        stacks.return_to(None);
        assert_eq!(chain(&stacks), [1]);
    }
}
