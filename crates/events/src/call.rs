//! Call trees: where the instructions of an operation's path go.

use crate::words::words;

/// A node of an operation's call tree.
///
/// A workload has one tree, of one batch: all that was executed between its two readings of the clock, but for the payload's
/// own loop. [`CallRow::instructions`] of all nodes over the operations of the batch ([`crate::Sample::PROFILED`]) is the path of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallRow {
    /// The operation, as in [`crate::Sample::workload`].
    pub workload: String,
    /// Number within the workload, from 0 in order.
    pub node: u32,
    /// The node above: its number is smaller. `None` at the top.
    pub parent: Option<u32>,
    /// Kind of the node.
    pub kind: CallKind,
    /// Whose code: 0 is the host, 1 its guest, 2 the guest's guest. Of a cause, whose instruction.
    pub level: u8,
    /// Function, instruction, line. Hostile text.
    pub name: String,
    /// The module of a function; empty for the kernel's own and for all that is no function. Hostile text.
    pub module: String,
    /// How often it was entered within the batch.
    pub calls: u64,
    /// Instructions of the node itself, without those below.
    pub instructions: u64,
}

words! {
    /// Kind of a node of a call tree.
    pub enum CallKind {
        Function = "function",
        /// An instruction or event of a guest, with its handlers below, one level down.
        Cause = "cause",
        /// A thread or a vCPU, where there are several.
        Thread = "thread",
        /// A line of the function above, `file:line`. Its instructions are the function's own.
        Line = "line",
        /// An instruction of the function above, `function+0x01c mov rax,[rdi]`. It is counted in the function's own.
        Instruction = "instruction",
    }
}

impl CallKind {
    /// A part of the function above, whose instructions are the function's own.
    pub fn is_part(self) -> bool {
        matches!(self, CallKind::Line | CallKind::Instruction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words are stored: one that changes makes old runs unreadable.
    #[test]
    fn words() {
        assert_eq!(
            CallKind::ALL.map(CallKind::name),
            ["function", "cause", "thread", "line", "instruction"]
        );
        for kind in CallKind::ALL {
            assert_eq!(CallKind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(CallKind::from_name("Line"), None);
    }
}
