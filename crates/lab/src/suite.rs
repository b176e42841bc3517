//! Suites: tables of operations. Each says what the guest executes, and what is known of the exits it must take.

mod bounce;
pub mod memory;
mod nested_ops;
pub mod own;
mod perf;
pub mod pmu;
mod primitives;
mod timers;

use vmtax_events::Isa;
use vmtax_guest::order::{Backing, Operation, Pmu, Touch};

use crate::Error;
use crate::payload::{Assembled, Assembler, Parts, assemble};

/// An operation of a suite.
#[derive(Debug)]
pub struct Definition {
    /// Its word, unique over all suites.
    pub name: &'static str,
    /// What the guest does, for people.
    pub summary: &'static str,
    /// Operations in a batch at L1.
    pub count: u32,
    /// What is known of its exits.
    pub kind: Kind,
    code: Code,
}

/// What is known of the exits of one operation before it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// So many exits of this reason, on SVM and on VMX; others (a timer tick of the host) may come between.
    Each {
        /// Reason and exits of an operation on SVM.
        svm: (&'static str, u32),
        /// Reason and exits of an operation on VMX.
        vmx: (&'static str, u32),
    },
    /// As `Each`, where KVM emulates the local APIC: APICv or AVIC may handle it without an exit.
    EachByApic {
        /// Reason and exits of an operation on SVM.
        svm: (&'static str, u32),
        /// Reason and exits of an operation on VMX.
        vmx: (&'static str, u32),
    },
    /// A batch has exits. How many depends on time or on the processor.
    Some,
    /// The guest does it without leaving.
    None,
    /// Whether it exits depends on the processor.
    Measured,
}

/// The fewest exits that a batch can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Least {
    /// How many.
    pub exits: u64,
    /// The reason of each; `None` when there are several.
    pub reason: Option<&'static str>,
}

/// An operation as it is ordered.
#[derive(Clone, Debug)]
pub struct Ordered {
    /// For the guest.
    pub operation: Operation,
    /// Instructions of one operation that are not part of its path.
    pub around: u64,
    /// Addresses where the payload reads the clock, before a batch and after it.
    pub clock: (u64, u64),
}

/// The same number of exits on both.
const fn each(svm: &'static str, vmx: &'static str) -> Kind {
    Kind::Each { svm: (svm, 1), vmx: (vmx, 1) }
}

/// What the guest executes.
#[derive(Debug)]
struct Code {
    setup: fn(&mut Assembler) -> Assembled,
    batch: fn(&mut Assembler) -> Assembled,
    body: fn(&mut Assembler) -> Assembled,
    second: Option<fn(&mut Assembler) -> Assembled>,
    touch: Option<Touch>,
    /// The guest has this PMU.
    pmu: Option<Pmu>,
    /// Only there.
    isa: Option<Isa>,
    /// The body is one straight line: its other instructions are not part of the path.
    straight: bool,
    /// It leaves nothing behind but memory, registers and its APIC's state.
    shares: bool,
    /// The guest waits for time to pass, so its cycles are no instructions.
    waits: bool,
    /// It needs XSAVE, which L1 of the AMD host cannot have.
    xsave: bool,
    /// Machine code of the user's, in place of the functions above.
    own: Option<&'static own::Own>,
}

fn nothing(_: &mut Assembler) -> Assembled {
    Ok(())
}

/// Memory that is only given back before each batch.
const fn given_back(bytes: u32, backing: Backing) -> Touch {
    Touch { bytes, backing, populated: false, prefault: false, counted: false }
}

/// Code that is only its body.
const fn line(body: fn(&mut Assembler) -> Assembled) -> Code {
    Code {
        setup: nothing,
        batch: nothing,
        body,
        second: None,
        touch: None,
        pmu: None,
        isa: None,
        straight: true,
        shares: false,
        waits: false,
        xsave: false,
        own: None,
    }
}

/// Code that leaves nothing behind.
const fn clean(code: Code) -> Code {
    Code { shares: true, ..code }
}

const fn with_setup(
    setup: fn(&mut Assembler) -> Assembled,
    body: fn(&mut Assembler) -> Assembled,
) -> Code {
    Code { setup, ..line(body) }
}

/// Code whose body loops or lets handlers run: all of it is the operation.
const fn whole(
    setup: fn(&mut Assembler) -> Assembled,
    body: fn(&mut Assembler) -> Assembled,
) -> Code {
    Code { straight: false, ..with_setup(setup, body) }
}

/// Code whose body waits for a timer.
const fn waiting(
    setup: fn(&mut Assembler) -> Assembled,
    body: fn(&mut Assembler) -> Assembled,
) -> Code {
    Code { waits: true, ..whole(setup, body) }
}

/// A suite.
#[derive(Debug)]
pub struct Suite {
    /// Its word.
    pub name: &'static str,
    /// What it is for.
    pub summary: &'static str,
    /// Its operations, in order.
    pub operations: &'static [Definition],
    /// It makes sense in L2 too.
    pub nests: bool,
}

/// All suites.
pub const SUITES: [Suite; 7] = [
    Suite {
        name: "primitives",
        summary: "what guests do that may take an exit",
        operations: primitives::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "nested-ops",
        summary: "the instructions of a hypervisor, as L1 issues them",
        operations: nested_ops::OPERATIONS,
        nests: false,
    },
    Suite {
        name: "timers",
        summary: "one timer workload with different clocks, APICs and idle loops",
        operations: timers::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "bounce",
        summary: "ring traffic, with and without copies through a shared buffer",
        operations: bounce::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "memory",
        summary: "first touches of memory of each kind, and what conversions between private and shared leave of it",
        operations: memory::OPERATIONS,
        nests: true,
    },
    Suite {
        name: "pmu",
        summary: "a guest's perf on a virtual PMU in user space, host events created anew and reused",
        operations: pmu::OPERATIONS,
        nests: false,
    },
    Suite {
        name: "perf",
        summary: "what KVM sees of a guest that multiplexes, samples or switches its own counters",
        operations: perf::OPERATIONS,
        nests: true,
    },
];

/// The operation that does nothing: what the loop around all others costs.
pub const EMPTY: Definition = Definition {
    name: "empty",
    summary: "the loop alone: subtracted from all others",
    count: 200,
    kind: Kind::None,
    code: clean(line(nothing)),
};

impl Suite {
    /// The suite of this name.
    pub fn named(name: &str) -> Option<&'static Suite> {
        SUITES.iter().find(|suite| suite.name == name)
    }
}

/// The operation of this name in any suite.
pub fn operation(name: &str) -> Option<&'static Definition> {
    SUITES
        .iter()
        .flat_map(|suite| suite.operations)
        .chain([&EMPTY])
        .chain(own::operations())
        .find(|definition| definition.name == name)
}

impl Definition {
    /// Whether it can be executed at a level on this processor.
    pub fn is_for(&self, isa: Isa, level: u8) -> bool {
        let has_xsave = level < 2 || isa != Isa::Svm;
        if self.code.own.is_some_and(|own| !own.levels.contains(&level)) {
            return false;
        }
        self.code.isa.is_none_or(|only| only == isa) && (has_xsave || !self.code.xsave)
    }

    /// Memory that a batch at this level touches, if the operation is about memory.
    pub fn memory_at(&self, level: u8) -> Option<Touch> {
        self.touch_at(level).filter(|touch| touch.counted)
    }

    /// The fewest conversions that a batch at this level makes.
    pub fn conversions_at(&self, level: u8) -> u64 {
        match (self.code.touch, self.kind) {
            (Some(touch), Kind::Each { .. }) if touch.counted => self.count_at(level).into(),
            _ => 0,
        }
    }

    /// As much of it as the operations of a batch touch.
    fn touch_at(&self, level: u8) -> Option<Touch> {
        let touch = self.code.touch?;
        let bytes = u64::from(touch.bytes) * u64::from(self.count_at(level));
        Some(Touch { bytes: (bytes / u64::from(self.count.max(1))) as u32, ..touch })
    }

    /// The PMU that the guest has in place of KVM's.
    pub fn pmu(&self) -> Option<Pmu> {
        self.code.pmu
    }

    /// Whether the guest waits for time to pass: then there is no path length.
    pub fn waits(&self) -> bool {
        self.code.waits
    }

    /// Operations in a batch. Fewer at L2, where each takes so long that most batches would see a tick of a clock.
    pub fn count_at(&self, level: u8) -> u32 {
        if level < 2 { self.count } else { self.count.div_ceil(4) }
    }

    /// The fewest exits that a batch at this level can have, interrupts of the host not counted where each operation has its
    /// own; `None` for an operation that may do without. With `apic_may_be_virtual` the processor may have APICv or AVIC.
    pub fn least_exits(&self, isa: Isa, level: u8, apic_may_be_virtual: bool) -> Option<Least> {
        let (svm, vmx) = match self.kind {
            Kind::Each { svm, vmx } => (svm, vmx),
            Kind::EachByApic { svm, vmx } if !apic_may_be_virtual => (svm, vmx),
            Kind::Some => return Some(Least { exits: 1, reason: None }),
            Kind::EachByApic { .. } | Kind::None | Kind::Measured => return None,
        };
        let (reason, exits) = if isa == Isa::Svm { svm } else { vmx };
        // Of several exits of an operation some may be spared by a later kernel; the first is what the operation is about.
        let exits = u64::from(self.count_at(level)) * u64::from(exits.min(1));
        (exits > 0).then_some(Least { exits, reason: Some(reason) })
    }

    /// As an order to the guest.
    ///
    /// # Errors
    /// When the payload does not assemble: a defect of the table.
    pub fn order(&self, isa: Isa, number: u16, level: u8, batches: u32) -> Result<Ordered, Error> {
        let code = &self.code;
        let second = code.second;
        let own_setup =
            |asm: &mut Assembler| asm.machine_code(code.own.map_or(&[], |own| &own.setup));
        let own_body =
            |asm: &mut Assembler| asm.machine_code(code.own.map_or(&[], |own| &own.body));
        let parts = Parts {
            number,
            isa,
            setup: if code.own.is_some() { &own_setup } else { &code.setup },
            batch: &code.batch,
            body: if code.own.is_some() { &own_body } else { &code.body },
            second: second.as_ref().map(|f| f as &dyn Fn(&mut Assembler) -> Assembled),
        };
        let payload =
            assemble(&parts).map_err(|error| Error::Payload { operation: self.name, error })?;
        let around = match code.own {
            Some(own) => own.around,
            None if code.straight => payload.instructions.saturating_sub(1) as u64,
            None => 0,
        };
        let operation = Operation {
            number,
            name: self.name.to_owned(),
            level,
            code: payload.code,
            entries: payload.entries,
            batches,
            last: false,
            count: self.count_at(level),
            touch: self.touch_at(level),
            shares: code.shares,
            pmu: code.pmu,
        };
        Ok(Ordered { operation, around, clock: payload.clock })
    }
}
