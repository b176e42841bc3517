//! A question, its answer, and what that rests on. Values, no sentences: those are `vmtax-report`'s.

use std::sync::Arc;

use vmtax_events::observed::Observed;
use vmtax_events::{Cause, words};

use super::finding::Evidence;
use super::workload::WorkloadResults;
use crate::remedy::VmKind;

words! {
    /// The answer to a step's question.
    pub enum StepAnswer {
        /// Yes.
        Yes = "yes",
        /// No.
        No = "no",
        /// The recording does not say.
        Unknown = "unknown",
    }
}

/// A question, its answer, and what that rests on.
#[derive(Clone, Debug, PartialEq)]
pub struct ExplainStep {
    /// The question.
    pub question: Question,
    /// The answer.
    pub answer: StepAnswer,
    /// What it says.
    pub says: Says,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
    /// What to record or give to know more.
    pub next: Option<ToRecord>,
    /// The TLB misses much more often than in the base.
    pub misses_more: bool,
}

impl ExplainStep {
    pub(super) fn new(question: Question, answer: StepAnswer, says: Says) -> ExplainStep {
        ExplainStep { question, answer, says, evidence: Vec::new(), next: None, misses_more: false }
    }

    pub(super) fn evidence(mut self, evidence: Vec<Evidence>) -> ExplainStep {
        self.evidence = evidence;
        self
    }

    pub(super) fn next(mut self, next: ToRecord) -> ExplainStep {
        self.next = Some(next);
        self
    }
}

words! {
    /// The questions.
    pub enum Question {
        /// Is handling exits the bottleneck?
        Exits = "exits",
        /// Which cause leads?
        Causes = "causes",
        /// Where does the host's time go?
        Host = "host",
        /// Where does the guest's time go?
        Guest = "guest",
        /// Does the guest wait for memory?
        Instructions = "instructions",
        /// Is memory mapped in small pages?
        Memory = "memory",
        /// What does nesting cost?
        Nesting = "nesting",
        /// Which setup changes the results?
        Results = "results",
    }
}

impl Question {
    /// It is answered by yes or no.
    pub fn is_polar(self) -> bool {
        match self {
            Question::Exits | Question::Instructions | Question::Memory => true,
            Question::Causes
            | Question::Host
            | Question::Guest
            | Question::Nesting
            | Question::Results => false,
        }
    }
}

/// A part of the time in all exits that is nothing to gain. It is small, as vCPUs that halt beside one that works make it smaller.
const LITTLE: f64 = 0.005;

/// What an answer says.
#[derive(Clone, Debug, PartialEq)]
pub enum Says {
    /// So many exits in so many ns are too few.
    TooFew(u64, u64),
    /// This share of the time is unknown for lack of entries.
    NoEntries(f64),
    /// Host interrupts take so many ns each: the scheduler was not recorded.
    LongInterrupts(u64),
    /// The exit tax, which matters.
    Tax(f64),
    /// The exit tax, which does not.
    SmallTax(f64),
    /// The running time is unknown.
    NoRunningTime {
        /// Time in exits that do not halt, ns.
        spent_ns: u64,
        /// Time in all exits, ns.
        all_ns: u64,
    },
    /// There are no exits.
    NoExits,
    /// Exits were counted, by a counter of that name, and that is all.
    Counted(&'static str, u64, Option<(&'static str, u64)>),
    /// There are no times.
    OnlyCounts {
        /// But those of an emulator.
        emulated: bool,
    },
    /// The base is of another kind.
    NotComparable,
    /// The part of exits whose causes are equally frequent, and two kinds of VM whose exits may cost different times.
    OtherKind(f64, VmKind, VmKind),
    /// The part of exits whose causes are equally frequent: most.
    SameExits(f64),
    /// The part of exits whose causes are equally frequent: not most.
    OtherExits(f64),
    /// The cause that leads.
    LeadingCause(Cause),
    /// There are no causes.
    NoCauses,
    /// There is no profile.
    NoProfile,
    /// This function leads. Hostile text, here and below.
    MostIn(String),
    /// Most of it, this part, is idle time; of the rest this function leads.
    MostlyIdle(f64, Option<String>),
    /// Most of it, this part, is in functions that the text does not list; of the others this one leads.
    Unlisted(f64, Option<String>),
    /// This function has lost most against the base.
    LessIn(String),
    /// This function has gained most against the base.
    MoreIn(String),
    /// The profile is that of the base.
    AsInBase,
    /// No function leads.
    NothingStandsOut,
    /// The part of samples on the way into the guest and out, and that of the base.
    EntersGuest(f64, Option<f64>),
    /// What a tool shows, which is no cost of a VM.
    Observed(Observed),
    /// No function was examined.
    NoInstructions,
    /// The part of a function that is on accesses of memory.
    OnMemory {
        /// The function.
        function: String,
        /// Its part.
        here: f64,
        /// In the base, and how the two compare.
        base: Option<(f64, ComparedFunction)>,
    },
    /// Memory is mapped in pages of 4 KiB.
    SmallPages {
        /// By its faults alone.
        by_faults: bool,
    },
    /// Memory is mapped in large pages.
    LargePages,
    /// Faults do not show the pages.
    UnknownPages,
    /// L1 handled no exit of L2.
    NoNesting,
    /// Exits of L1 for each exit of L2.
    Nesting(f64),
    /// The workload that loses most.
    Worst(Arc<WorkloadResults>),
}

impl Says {
    /// Whether exits that do not halt took next to nothing of the time in all exits. The vCPUs' time is at least that in exits.
    pub fn gains_nothing(&self) -> bool {
        matches!(self, Says::NoRunningTime { spent_ns, all_ns } if *spent_ns as f64 <= *all_ns as f64 * LITTLE)
    }
}

/// How a function compares with the base's.
#[derive(Clone, Debug, PartialEq)]
pub enum ComparedFunction {
    /// The code differs.
    OtherCode,
    /// No instruction gained.
    Same,
    /// Instructions gained.
    Gained {
        /// The part of it that is on accesses of memory.
        part: f64,
        /// The instruction that gained most.
        most: Option<InstructionGain>,
    },
}

/// What an instruction gained.
#[derive(Clone, Debug, PartialEq)]
pub struct InstructionGain {
    /// As objdump writes it.
    pub text: String,
    /// Its share in the base.
    pub from: f64,
    /// Its share.
    pub to: f64,
}

/// What to record or give to know more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToRecord {
    /// A longer recording.
    Longer,
    /// kvm:kvm_entry.
    Entries,
    /// sched:sched_switch.
    Sched,
    /// What the guest does between exits.
    BetweenExits,
    /// The recording that a table was made of.
    Recording,
    /// A recording with times.
    Times,
    /// A recording with times, of two that take other exits.
    TimesOfBoth,
    /// Times on both hosts, or a trial without the exits.
    TimesOrTrial,
    /// A profile of the host.
    HostProfile,
    /// A profile of the guest.
    GuestProfile,
    /// The hot function.
    HotFunction,
    /// The hot function where it is fast.
    HotFunctionOfBase,
    /// The sizes of pages.
    PageSizes,
    /// Huge pages of the VMM, where KVM has no counts.
    HugePagesOfVmm,
    /// kvm:kvm_nested_vmexit.
    NestedExits,
    /// The same of arm64: kvm:kvm_nested_eret, kvm:kvm_inject_nested_exception.
    Nested,
    /// More repetitions.
    Repetitions,
    /// Exits of two set-ups whose results differ.
    ExitsOfSetups,
}
