//! A call tree under construction: nodes with labels and counts of instructions.

use std::fmt;

use rustc_hash::FxHashMap;
use vmtax_events::arm::registers;

/// The meaning of a node. Functions are numbers of [`super::symbols::Symbols`]; other things are listed in [`Labels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Label(u32);

impl Label {
    const OTHER: u32 = 3;
    const LINE: u32 = 1 << 29;

    /// A function of a level.
    pub(crate) fn function(level: u8, id: u32) -> Label {
        Label(u32::from(level) << 30 | id & 0x3fff_ffff)
    }

    /// Whether it is code of a program.
    pub(crate) fn is_program(self) -> bool {
        matches!(self.parts(), LabelParts::Function { id: super::symbols::PROGRAM, .. })
    }

    /// A source line, by its number in [`super::source::Lines`].
    pub(crate) fn line(number: u32) -> Label {
        Label(Label::OTHER << 30 | Label::LINE | number & (Label::LINE - 1))
    }

    pub(crate) fn parts(self) -> LabelParts {
        let value = self.0 & 0x3fff_ffff;
        match self.0 >> 30 {
            Label::OTHER if value & Label::LINE != 0 => LabelParts::Line(value & (Label::LINE - 1)),
            Label::OTHER => LabelParts::Other(value as usize),
            level => LabelParts::Function { level: level as u8, id: value },
        }
    }
}

/// A label taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelParts {
    Function {
        level: u8,
        id: u32,
    },
    /// The number of a source line.
    Line(u32),
    /// The place in [`Labels`].
    Other(usize),
}

/// What leaves a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CauseName {
    Word(&'static str),
    /// An access to a system register of arm64, or a system instruction, by [`registers::id`].
    Register {
        number: u16,
        write: bool,
    },
}

impl From<&'static str> for CauseName {
    fn from(word: &'static str) -> CauseName {
        CauseName::Word(word)
    }
}

impl fmt::Display for CauseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            CauseName::Word(word) => f.write_str(word),
            CauseName::Register { number, write } => {
                let way = match (registers::is_instruction(number.into()), write) {
                    (true, _) => "",
                    (false, true) => "msr ",
                    (false, false) => "mrs ",
                };
                write!(f, "{way}{}", registers::name(number.into()))
            }
        }
    }
}

/// A label that is not a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum OtherLabel {
    /// An instruction of a guest, or an event in it, that the level below handles.
    Cause { level: u8, name: CauseName },
    /// A vCPU of the guest at a level.
    Vcpu { level: u8, number: u32 },
    /// A thread of a kernel that runs no vCPU.
    Thread { level: u8, number: u32 },
    /// Threads of a kernel that are not told apart.
    Threads { level: u8, name: &'static str },
}

/// The list of labels that are not functions.
#[derive(Debug, Default)]
pub(crate) struct LabelList(Vec<OtherLabel>);

impl LabelList {
    pub(crate) fn of(&mut self, other: OtherLabel) -> Label {
        let place = self.0.iter().position(|one| *one == other).unwrap_or_else(|| {
            self.0.push(other);
            self.0.len() - 1
        });
        Label(Label::OTHER << 30 | place as u32)
    }

    pub(crate) fn get(&self, place: usize) -> Option<OtherLabel> {
        self.0.get(place).copied()
    }
}

/// A node: its parent, its label, how often it was entered, and its instructions without those of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) parent: u32,
    pub(crate) label: Label,
    pub(crate) calls: u64,
    pub(crate) count: u64,
}

/// The tree. A parent's number is smaller than its children's.
#[derive(Debug, Default)]
pub(crate) struct RecordedTree {
    pub(crate) nodes: Vec<Node>,
    children: FxHashMap<u64, u32>,
}

/// The parent of root nodes.
pub(crate) const ROOT: u32 = u32::MAX;

impl RecordedTree {
    /// The child with this label.
    pub(crate) fn child(&mut self, parent: u32, label: Label) -> u32 {
        let RecordedTree { nodes, children } = self;
        *children.entry(u64::from(parent) << 32 | u64::from(label.0)).or_insert_with(|| {
            nodes.push(Node { parent, label, calls: 0, count: 0 });
            nodes.len() as u32 - 1
        })
    }

    /// Nothing more is added: it takes less room.
    pub(crate) fn end(&mut self) {
        self.children = FxHashMap::default();
    }

    pub(crate) fn add(&mut self, node: u32, count: u64) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.count += count;
        }
    }

    pub(crate) fn enter(&mut self, node: u32) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.calls += 1;
        }
    }

    /// Uncounts an instruction that did not complete.
    pub(crate) fn take(&mut self, node: u32) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.count = node.count.saturating_sub(1);
        }
    }

    pub(crate) fn total(&self) -> u64 {
        self.nodes.iter().map(|node| node.count).sum()
    }
}
