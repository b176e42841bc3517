//! From what processors execute to call trees: who runs at which level, on whose behalf, and in which function.
//!
//! ```text
//!  L2  payload ─┬─ exit ┌─> payload
//!  L1           │       │     kvm ──┬─ vmload ┌─> kvm
//!  L0           └─> kvm ┘  (reflects) └─> kvm ┘
//! ```
//! What a level does after an exit of the one above it hangs under the instruction that left: L0's work for L1's VMLOAD under that
//! VMLOAD, and L1's, with all that it causes, under L2's instruction. Where the operation is a step of a program, the tree is that of
//! the program's calls, and what its level does after exits is part of them. The readers of records ([`super::tcg`], [`super::bochs`])
//! say what happens; here is what it means.

use super::BatchClock;
use super::stacks::{FrameEntry, NONE, Stacks};
use super::symbols::{CodeGate, LevelSymbols};
use super::tree::{CauseName, Label, LabelList, OtherLabel, ROOT, RecordedTree};

/// Frames above this function are the same for all exits, and are left out: `KVM_RUN` of the VMM.
const TOP: &str = "kvm_arch_vcpu_ioctl_run";

/// The kernel's function that goes over to another thread: on arm64 it returns there.
const SWITCH: &str = "__switch_to";
const SWITCH_ARM: &str = "cpu_switch_to";

/// Threads of a host and of L1, where the batch is of a workload: those of vCPUs, and others; and the thread that has it carried out.
const VCPU_THREADS: [&str; 2] = ["L0 vCPU threads", "L1 vCPU threads"];
const OTHER_THREADS: [&str; 2] = ["L0 other threads", "L1 other threads"];
const CLIENT: &str = "L0 client";

/// KVM's handlers of exits that no instruction of the guest makes.
const OF_NO_INSTRUCTION: [&str; 4] =
    ["intr_interception", "nmi_interception", "smi_interception", "interrupt_window_interception"];

/// Whether KVM (SVM) executes this function only for an exit that an instruction of the guest makes.
fn is_handler(name: &str) -> bool {
    let is_interception = name.ends_with("_interception") && !OF_NO_INSTRUCTION.contains(&name);
    is_interception
        || name.starts_with("kvm_emulate_")
        || name.starts_with("handle_fastpath_")
        // Of L2: exits for interrupts are the host's before it is called.
        || name == "nested_svm_exit_handled"
}

/// Instructions that were executed one after the other in a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FunctionRun {
    pub(crate) function: u32,
    /// Their source line, if it is known: [`super::source::Lines`].
    pub(crate) line: u32,
    pub(crate) count: u32,
}

/// A call tree of one batch, and what it is of.
#[derive(Debug)]
pub(crate) struct BatchTree {
    pub(crate) tree: RecordedTree,
    /// Instructions that began.
    pub(crate) begun: u64,
    /// Those of them that were not done: intercepted, or begun again after a fault.
    pub(crate) undone: u64,
}

/// A thread of a processor, and the guest that it runs.
#[derive(Debug, Default)]
struct FlowThread {
    /// Of the nodes of its frames. It changes when what they hang under does.
    generation: u32,
    /// The node that its frames hang under, of this generation.
    base: Option<u32>,
    guest: Option<FlowGuest>,
}

/// A vCPU as the thread that runs it sees it.
#[derive(Clone, Copy, Debug)]
struct FlowGuest {
    /// Its processor.
    cpu: usize,
    /// The processor that left it last: its own, or that of its guest.
    left: usize,
    /// Why.
    cause: Option<Label>,
    /// It runs a guest of its own now.
    nested: bool,
    /// An exit of that one is handed to it.
    reflected: bool,
}

/// A processor of a level.
#[derive(Debug)]
struct LevelCpu {
    level: u8,
    number: u32,
    stacks: Stacks,
    threads: Vec<FlowThread>,
    /// Processor and thread that run it.
    host: Option<(usize, u32)>,
}

/// What a processor of the host leaves when another one is on.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    at: usize,
    last: Option<u32>,
    undecided: Option<u32>,
}

/// See the module.
pub(crate) struct Flow<'a> {
    symbols: &'a [LevelSymbols; 3],
    /// [`TOP`] of each level.
    tops: [Option<Label>; 3],
    /// [`SWITCH`] of each level.
    switches: [Option<u32>; 3],
    /// [`SWITCH_ARM`] of each level.
    returning: [Option<Label>; 3],
    pub(crate) labels: LabelList,
    /// The first is the host's: all its processors, as they share its threads.
    cpus: Vec<LevelCpu>,
    /// Which of them executes.
    at: usize,
    /// The host's processor that is on, and where the others are.
    processor: usize,
    others: Vec<Turn>,
    generation: u32,
    batch: Option<BatchTree>,
    /// The operation's level: that of its payload or program.
    operation_level: u8,
    /// The program's thread.
    program: Option<u32>,
    /// The batch is of a workload: threads are told apart by what they do, at all levels. The name of the program's thread then.
    of_workload: Option<&'static str>,
    /// Where the last instruction was counted.
    last: Option<u32>,
    /// Where an instruction was counted that was not done if the host handles it.
    undecided: Option<u32>,
}

impl<'a> Flow<'a> {
    pub(crate) fn new(symbols: &'a [LevelSymbols; 3]) -> Flow<'a> {
        let top =
            |level: u8| symbols[usize::from(level)].id(TOP).map(|id| Label::function(level, id));
        let mut flow = Flow {
            symbols,
            tops: [top(0), top(1), None],
            switches: std::array::from_fn(|level| {
                symbols[level].id(SWITCH).filter(|_| !symbols[level].is_arm())
            }),
            returning: std::array::from_fn(|level| {
                symbols[level].id(SWITCH_ARM).map(|id| Label::function(level as u8, id))
            }),
            labels: LabelList::default(),
            cpus: Vec::new(),
            at: 0,
            processor: 0,
            others: Vec::new(),
            generation: 0,
            batch: None,
            operation_level: 1,
            program: None,
            of_workload: None,
            last: None,
            undecided: None,
        };
        flow.restart();
        flow
    }

    /// Forgets everything: the machine executes the host now, and has just left a guest.
    pub(crate) fn restart(&mut self) {
        self.forget();
        self.guest_of(0, 0, 1);
    }

    /// Forgets everything: the machine executes the host.
    pub(crate) fn forget(&mut self) {
        self.cpus.clear();
        self.cpus.push(LevelCpu::new(0, 0, None));
        (self.at, self.batch, self.last, self.undecided) = (0, None, None, None);
        self.others.clear();
        self.cpus[0].stacks.turn(self.processor);
    }

    /// Another processor of the host is on.
    pub(crate) fn turn(&mut self, processor: usize) {
        if processor == self.processor {
            return;
        }
        if self.others.len() <= self.processor.max(processor) {
            self.others.resize(self.processor.max(processor) + 1, Turn::default());
        }
        self.others[self.processor] =
            Turn { at: self.at, last: self.last, undecided: self.undecided };
        Turn { at: self.at, last: self.last, undecided: self.undecided } = self.others[processor];
        self.cpus[0].stacks.turn(processor);
        self.processor = processor;
    }

    /// The level that executes.
    pub(crate) fn level(&self) -> u8 {
        self.cpus[self.at].level
    }

    /// A batch begins after what was executed so far, by a payload of this level or by a program of it.
    pub(crate) fn begin(&mut self, operation_level: u8, clock: BatchClock) {
        self.operation_level = operation_level;
        let is_program = !matches!(clock, BatchClock::Payload(..));
        self.program = is_program.then(|| self.cpus[self.at].stacks.thread());
        self.of_workload = match clock {
            BatchClock::Workload => Some(CLIENT),
            // It has not entered its guest yet.
            BatchClock::Vmm => Some(VCPU_THREADS[0]),
            BatchClock::Payload(..) | BatchClock::Program => None,
        };
        self.batch = Some(BatchTree { tree: RecordedTree::default(), begun: 0, undone: 0 });
        self.last = None;
        self.undecided = None;
        for other in &mut self.others {
            (other.last, other.undecided) = (None, None);
        }
        for cpu in 0..self.cpus.len() {
            for thread in 0..self.cpus[cpu].threads.len() {
                self.renew(cpu, thread as u32);
            }
        }
    }

    /// It has ended with what was executed so far.
    pub(crate) fn end(&mut self) -> Option<BatchTree> {
        self.undecided = None;
        for other in &mut self.others {
            other.undecided = None;
        }
        let mut batch = self.batch.take()?;
        batch.tree.end();
        Some(batch)
    }

    /// The node where the last instruction was counted.
    pub(crate) fn last(&self) -> Option<u32> {
        self.last
    }

    /// The current size of the tree.
    pub(crate) fn nodes(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.tree.nodes.len())
    }

    /// Instructions were executed.
    #[inline]
    pub(crate) fn run(&mut self, runs: &[FunctionRun]) {
        let level = self.cpus[self.at].level;
        for run in runs {
            let label = Label::function(level, run.function);
            let cpu = &mut self.cpus[self.at];
            let current = cpu.stacks.current();
            let frame = cpu.stacks.get_mut(current);
            let entered = frame.label.is_none();
            if frame.label != Some(label) {
                // Entered just now, or by a jump from another function.
                (frame.label, frame.generation) = (Some(label), 0);
                if self.switches[usize::from(level)] == Some(run.function) {
                    cpu.stacks.switch();
                }
                if self.undecided.is_some() && self.at == 0 {
                    self.note_handler(run.function);
                }
            }
            if self.batch.is_none() {
                continue;
            }
            let node = self.node(self.at, current);
            if let Some(batch) = &mut self.batch {
                if entered {
                    batch.tree.enter(node);
                }
                let own = match run.line {
                    super::source::UNKNOWN => node,
                    line => batch.tree.child(node, Label::line(line)),
                };
                batch.tree.add(own, run.count.into());
                batch.begun += u64::from(run.count);
                self.last = Some(own);
            }
        }
    }

    /// The last instruction was begun and not done.
    pub(crate) fn undone(&mut self) {
        if let (Some(batch), Some(node)) = (&mut self.batch, self.last) {
            batch.tree.take(node);
            batch.undone += 1;
        }
    }

    /// The last instruction was a call; its return address is at `slot`.
    pub(crate) fn call(&mut self, slot: u64) {
        self.cpus[self.at].stacks.call(slot, FrameEntry::Call);
    }

    /// It was a return by the address at `slot`.
    pub(crate) fn ret(&mut self, slot: u64) {
        self.cpus[self.at].stacks.ret(slot);
    }

    /// The last instruction was a call that is to return to `back`.
    pub(crate) fn call_back(&mut self, back: u64) {
        self.cpus[self.at].stacks.call_back(back);
    }

    /// The function stores its frame record, or loads it.
    pub(crate) fn frame_record(&mut self, slot: u64, is_load: bool) {
        let stacks = &mut self.cpus[self.at].stacks;
        if is_load { stacks.recall(slot) } else { stacks.record(slot) }
    }

    /// The last instruction was a return, to this address if it is known.
    pub(crate) fn return_to(&mut self, to: Option<u64>) {
        let LevelCpu { stacks, level, .. } = &mut self.cpus[self.at];
        let label = stacks.get(stacks.current()).label;
        if label.is_some() && label == self.returning[usize::from(*level)] {
            stacks.leave_thread(to);
        } else {
            stacks.return_to(to);
        }
    }

    /// It was a system call.
    pub(crate) fn syscall(&mut self) {
        self.cpus[self.at].stacks.enter(FrameEntry::Gate);
    }

    /// It was a return from an interrupt, exception or system call.
    pub(crate) fn gate_return(&mut self) {
        self.cpus[self.at].stacks.gate_return();
    }

    /// What comes next is entered by an interrupt or exception.
    pub(crate) fn gate(&mut self, gate: CodeGate) {
        let entry = match gate {
            CodeGate::Interrupt => FrameEntry::Interrupt,
            CodeGate::Fault => {
                self.undone();
                FrameEntry::Gate
            }
            CodeGate::Trap => FrameEntry::Gate,
        };
        self.cpus[self.at].stacks.enter(entry);
    }

    /// Whether an interrupt or exception of the present level enters there.
    pub(crate) fn gate_at(&self, address: u64) -> Option<CodeGate> {
        self.symbols[usize::from(self.level())].gate(address)
    }

    /// The guest has left, to the host that the thread of `cpu` 0 is in.
    pub(crate) fn exit(&mut self, cause: impl Into<CauseName>, completion: ExitCompletion) {
        let Some((host, thread)) = self.host_of(self.at) else { return };
        match completion {
            ExitCompletion::Done => {}
            ExitCompletion::Undone => self.undone(),
            ExitCompletion::IfHandled => self.undecided = self.last,
        }
        let level = self.level();
        let label = self.labels.of(OtherLabel::Cause { level, name: cause.into() });
        let left = self.at;
        if let Some(guest) = self.guest(host, thread) {
            (guest.left, guest.cause) = (left, Some(label));
        }
        // What L1 sees of it once it runs again.
        if let Some((one, inner)) = self.cpus[left].host.filter(|(cpu, _)| *cpu != host)
            && let Some(guest) = self.guest(one, inner)
        {
            (guest.left, guest.cause) = (left, Some(label));
        }
        self.renew(host, thread);
        self.at = host;
        if self.batch.is_some() {
            let node = self.base(host, thread);
            if let Some(batch) = &mut self.batch {
                batch.tree.enter(node);
            }
        }
    }

    /// L1's instruction that enters its guest has left it.
    pub(crate) fn enters_guest(&mut self) {
        let Some((host, thread)) = self.host_of(self.at) else { return };
        if let Some(guest) = self.guest(host, thread) {
            guest.nested = true;
        }
    }

    /// Whether the guest of the host's present thread runs a guest of its own.
    pub(crate) fn is_nested(&mut self) -> bool {
        let thread = self.cpus[0].stacks.thread();
        self.guest(0, thread).is_some_and(|guest| guest.nested)
    }

    /// The host's present thread hands the exit of its guest's guest to its guest.
    pub(crate) fn reflects(&mut self) {
        let thread = self.cpus[0].stacks.thread();
        if let Some(guest) = self.guest(0, thread) {
            guest.reflected = true;
        }
    }

    /// Whether the host's present thread enters its guest's guest, where it says when it hands exits on.
    pub(crate) fn enters_nested(&self) -> bool {
        let thread = self.cpus[0].stacks.thread() as usize;
        let guest = self.cpus[0].threads.get(thread).and_then(|thread| thread.guest);
        guest.is_some_and(|guest| guest.nested && !guest.reflected)
    }

    /// The host enters its guest, or that one's.
    pub(crate) fn enter(&mut self, nested: bool) {
        self.undecided = None;
        let thread = self.cpus[0].stacks.thread();
        let one = self.guest_of(0, thread, 1);
        let was_nested = self.is_nested();
        if let Some(guest) = self.guest(0, thread) {
            (guest.nested, guest.reflected) = (nested, false);
        }
        self.at = one;
        let inner = self.cpus[one].stacks.thread();
        if nested {
            self.at = self.guest_of(one, inner, 2);
        } else if was_nested {
            // The exit of L2 has reached L1.
            self.renew(one, inner);
        }
    }

    /// The record began with an exit of L2, not of L1: L1 is entered with it.
    pub(crate) fn began_nested(&mut self, cause: &'static str) {
        let cause = self.labels.of(OtherLabel::Cause { level: 2, name: cause.into() });
        let one = self.at;
        let inner = self.cpus[one].stacks.thread();
        let two = self.guest_of(one, inner, 2);
        if let Some(guest) = self.guest(one, inner) {
            (guest.left, guest.cause) = (two, Some(cause));
        }
    }

    /// The host executes this function.
    fn note_handler(&mut self, function: u32) {
        if !is_handler(&self.symbols[0].name(function).function) {
            return;
        }
        if let (Some(node), Some(batch)) = (self.undecided.take(), &mut self.batch) {
            batch.tree.take(node);
            batch.undone += 1;
        }
    }

    fn host_of(&self, cpu: usize) -> Option<(usize, u32)> {
        // L2 leaves to L0 as L1 does.
        let (host, thread) = self.cpus[cpu].host?;
        if host == 0 { Some((host, thread)) } else { self.cpus[host].host }
    }

    fn guest(&mut self, cpu: usize, thread: u32) -> Option<&mut FlowGuest> {
        self.cpus[cpu].threads.get_mut(thread as usize)?.guest.as_mut()
    }

    /// The processor that a thread runs as a vCPU.
    fn guest_of(&mut self, cpu: usize, thread: u32, level: u8) -> usize {
        self.cpus[cpu].thread(thread);
        if let Some(guest) = self.guest(cpu, thread) {
            return guest.cpu;
        }
        let number = self.cpus.iter().filter(|cpu| cpu.level == level).count() as u32;
        let new = self.cpus.len();
        self.cpus.push(LevelCpu::new(level, number, Some((cpu, thread))));
        self.cpus[cpu].threads[thread as usize].guest =
            Some(FlowGuest { cpu: new, left: new, cause: None, nested: false, reflected: false });
        new
    }

    /// What the thread's frames hang under has changed.
    fn renew(&mut self, cpu: usize, thread: u32) {
        self.generation += 1;
        let generation = self.generation;
        let thread = self.cpus[cpu].thread(thread);
        (thread.generation, thread.base) = (generation, None);
    }

    /// The node of a frame in the present tree.
    fn node(&mut self, cpu: usize, frame: u32) -> u32 {
        let mut missing: Vec<u32> = Vec::new();
        let mut at = frame;
        let mut under = loop {
            let LevelCpu { stacks, threads, .. } = &mut self.cpus[cpu];
            let found = *stacks.get(at);
            let generation = threads.get(found.thread as usize).map_or(0, |t| t.generation);
            if found.generation == generation && generation != 0 {
                break found.node;
            }
            missing.push(at);
            let level = self.cpus[cpu].level;
            let is_top = level < self.operation_level
                && found.label.is_some()
                && found.label == self.tops[usize::from(level)];
            let caller = self.cpus[cpu].stacks.caller(at);
            if is_top || caller == NONE || found.entry == FrameEntry::Interrupt {
                break self.base(cpu, found.thread);
            }
            at = caller;
        };
        while let Some(at) = missing.pop() {
            let found = *self.cpus[cpu].stacks.get(at);
            if found.entry == FrameEntry::Interrupt {
                let level = self.cpus[cpu].level;
                let interrupt =
                    self.labels.of(OtherLabel::Cause { level, name: "interrupt".into() });
                under = self.child(under, interrupt);
            }
            if let Some(label) = found.label.filter(|label| !self.goes_on(under, *label)) {
                under = self.child(under, label);
            }
            let generation = self.cpus[cpu].thread(found.thread).generation;
            if generation == 0 {
                self.renew(cpu, found.thread);
            }
            let generation = self.cpus[cpu].thread(found.thread).generation;
            let frame = self.cpus[cpu].stacks.get_mut(at);
            (frame.node, frame.generation) = (under, generation);
        }
        under
    }

    fn child(&mut self, parent: u32, label: Label) -> u32 {
        self.batch.as_mut().map_or(ROOT, |batch| batch.tree.child(parent, label))
    }

    /// The node that a thread's frames hang under.
    fn base(&mut self, cpu: usize, thread: u32) -> u32 {
        if let Some(base) = self.cpus[cpu].thread(thread).base {
            return base;
        }
        let level = self.cpus[cpu].level;
        let hosts = level < self.operation_level;
        let guest = self.cpus[cpu].thread(thread).guest.filter(|_| hosts);
        let base = match guest.and_then(|guest| Some((guest.left, guest.cause?))) {
            Some((left, cause)) => {
                let current = self.cpus[left].stacks.current();
                let above = self.node(left, current);
                self.child(above, cause)
            }
            None => self.top(cpu, thread),
        };
        self.cpus[cpu].thread(thread).base = Some(base);
        base
    }

    /// A function of the program below another one: names of them are not known.
    fn goes_on(&self, under: u32, label: Label) -> bool {
        let above = self.batch.as_ref().and_then(|batch| batch.tree.nodes.get(under as usize));
        self.program.is_some()
            && label.is_program()
            && above.is_some_and(|above| above.label == label)
    }

    /// The node of instructions without a cause above.
    fn top(&mut self, cpu: usize, thread: u32) -> u32 {
        let LevelCpu { level, number, .. } = self.cpus[cpu];
        let mut node = ROOT;
        if let Some(program) = self.of_workload {
            let runs_guest = self.cpus[cpu].thread(thread).guest.is_some();
            let name = match (level, runs_guest) {
                (0, true) => VCPU_THREADS[0],
                (0, false) if Some(thread) == self.program => program,
                (0, false) => OTHER_THREADS[0],
                (1, true) => VCPU_THREADS[1],
                (1, false) => OTHER_THREADS[1],
                _ => "L2",
            };
            let label = self.labels.of(OtherLabel::Threads { level, name });
            return self.child(node, label);
        }
        if let Some(program) = self.program.filter(|_| level == self.operation_level) {
            // Numbers of threads, and what else runs, differ between kernels.
            let name = if thread == program { "VMM" } else { "other threads" };
            let label = self.labels.of(OtherLabel::Threads { level, name });
            return self.child(node, label);
        }
        if level > 0 {
            let vcpu = self.labels.of(OtherLabel::Vcpu { level, number });
            node = self.child(node, vcpu);
        }
        if level == 0 || thread > 0 {
            let label = self.labels.of(OtherLabel::Thread { level, number: thread });
            node = self.child(node, label);
        }
        node
    }
}

/// Whether the instruction that left a guest was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCompletion {
    Done,
    Undone,
    /// It was intercepted if the host handles such an exit. If not, an interrupt came after it.
    IfHandled,
}

impl LevelCpu {
    fn new(level: u8, number: u32, host: Option<(usize, u32)>) -> LevelCpu {
        LevelCpu { level, number, stacks: Stacks::new(), threads: Vec::new(), host }
    }

    fn thread(&mut self, thread: u32) -> &mut FlowThread {
        let index = thread as usize;
        while self.threads.len() <= index {
            self.threads.push(FlowThread::default());
        }
        &mut self.threads[index]
    }
}
