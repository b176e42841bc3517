//! Operations of a guest's perf, and their timing.

/// An operation of a guest's perf that costs the host time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Sets global control.
    EnableGlobal,
    /// Clears global control.
    DisableGlobal,
    /// Reads and writes the fixed counters' control.
    FixedControl,
    /// Writes an event select.
    EventSelect,
    /// Reads a counter.
    Rdpmc,
    /// Handles the interrupt of a sample.
    HandleInterrupt,
    /// Switches a thread with counters in.
    SwitchIn,
    /// Switches a thread with counters out.
    SwitchOut,
}

impl Operation {
    /// Its published name.
    pub fn name(self) -> &'static str {
        match self {
            Operation::EnableGlobal => "enable global_ctrl",
            Operation::DisableGlobal => "disable global_ctrl",
            Operation::FixedControl => "r/w fixed_ctrl",
            Operation::EventSelect => "r/w eventsel",
            Operation::Rdpmc => "rdpmc",
            Operation::HandleInterrupt => "handle_irq",
            Operation::SwitchIn => "context switch in",
            Operation::SwitchOut => "context switch out",
        }
    }
}

/// Nanoseconds of the host's work in all calls of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Calls.
    pub calls: u64,
    /// The longest call.
    pub max: u64,
    /// The longest call in which no event was created.
    pub max_settled: u64,
    /// All calls.
    pub total: u64,
}

impl Timing {
    /// Adds a call; `created`: it created events.
    pub(crate) fn add(&mut self, ns: u64, created: bool) {
        if !created {
            self.max_settled = self.max_settled.max(ns);
        }
        self.calls += 1;
        self.max = self.max.max(ns);
        self.total += ns;
    }
}

/// A published figure of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The longest call.
    Max,
    /// All calls together.
    Total,
}

impl Figure {
    /// Both.
    pub const ALL: [Figure; 2] = [Figure::Max, Figure::Total];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Figure::Max => "longest call",
            Figure::Total => "all calls",
        }
    }
}
