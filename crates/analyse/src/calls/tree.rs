//! A call tree, and its instructions by function.

use std::collections::BTreeMap;

use vmtax_events::{CallKind, CallRow};

/// No tree is deeper: a kernel's stack has 16 KiB.
const DEPTH_MOST: usize = 1000;

/// A call tree. A parent comes before the nodes below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTree {
    pub nodes: Vec<CallNode>,
    /// Numbers of the nodes, as stored.
    numbers: Vec<u32>,
    /// How many nodes are above each.
    depths: Vec<usize>,
    /// A row was out of order, or named a node that is not there.
    pub(super) damaged: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallNode {
    /// The one above.
    pub parent: Option<usize>,
    pub label: NodeLabel,
    /// How often it was entered.
    pub calls: u64,
    /// Instructions of its own.
    pub own: u64,
    /// And of all nodes below.
    pub total: u64,
}

/// The meaning of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeLabel {
    /// What kind of thing.
    pub kind: CallKind,
    /// Whose code: 0 is the host.
    pub level: u8,
    /// Hostile text.
    pub name: String,
    /// Hostile text.
    pub module: String,
}

/// How a tree is arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Arranged {
    /// What handles an instruction of a guest hangs under that instruction.
    #[default]
    ByCause,
    /// Each level has a tree of its own.
    ByLevel,
}

/// What a function has of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionCost {
    /// The function, or the cause.
    pub label: NodeLabel,
    /// How often it was entered.
    pub calls: u64,
    /// Its own instructions.
    pub own: u64,
    /// And those of what it calls; of calls of itself the outermost counts.
    pub total: u64,
}

impl CallTree {
    pub fn push(&mut self, row: &CallRow) {
        let parent = row.parent.map(|parent| self.numbers.binary_search(&parent).ok());
        self.damaged |=
            parent == Some(None) || self.numbers.last().is_some_and(|last| *last >= row.node);
        let parent = parent.flatten();
        let depth = parent.map_or(0, |parent| self.depths[parent] + 1);
        // A deeper one hangs at the top: who walks a tree goes no further down.
        let parent = parent.filter(|_| depth <= DEPTH_MOST);
        self.damaged |= depth > DEPTH_MOST;
        self.depths.push(parent.map_or(0, |_| depth));
        self.numbers.push(row.node);
        self.nodes.push(CallNode {
            parent,
            label: NodeLabel {
                kind: row.kind,
                level: row.level,
                name: row.name.clone(),
                module: row.module.clone(),
            },
            calls: row.calls,
            own: row.instructions,
            total: 0,
        });
    }

    /// With the sums of its nodes.
    #[must_use]
    pub fn summed(mut self) -> CallTree {
        self.nodes.iter_mut().for_each(|node| node.total = node.own);
        for index in (0..self.nodes.len()).rev() {
            let total = self.nodes[index].total;
            if let Some(above) = self.nodes[index].parent.and_then(|at| self.nodes.get_mut(at)) {
                above.total = above.total.saturating_add(total);
            }
        }
        self
    }

    /// All its instructions.
    pub fn total(&self) -> u64 {
        self.nodes.iter().fold(0, |sum, node| sum.saturating_add(node.own))
    }

    /// Labels from the top down to a node.
    pub fn stack(&self, node: usize) -> Vec<&NodeLabel> {
        let mut stack = Vec::new();
        let mut at = Some(node);
        while let Some(found) = at.and_then(|at| self.nodes.get(at)) {
            stack.push(&found.label);
            at = found.parent;
        }
        stack.reverse();
        stack
    }

    /// Instructions of the code of each level.
    pub fn levels(&self) -> BTreeMap<u8, u64> {
        let mut levels = BTreeMap::new();
        for node in self.nodes.iter().filter(|node| node.own > 0) {
            let sum: &mut u64 = levels.entry(node.label.level).or_default();
            *sum = sum.saturating_add(node.own);
        }
        levels
    }

    /// What each label of this kind has, most first; with totals, or by what is its own.
    pub fn costs(&self, kind: CallKind, by_total: bool) -> Vec<FunctionCost> {
        let mut costs: BTreeMap<&NodeLabel, (u64, u64, u64)> = BTreeMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let of = match node.label.kind {
                part if part.is_part() && part != kind => {
                    node.parent.and_then(|above| self.nodes.get(above))
                }
                _ => Some(node),
            };
            let Some(of) = of.filter(|of| of.label.kind == kind) else { continue };
            let outermost = node.label.kind == kind && !self.is_inside(index);
            let (calls, own, total) = costs.entry(&of.label).or_default();
            if node.label.kind == kind {
                *calls = calls.saturating_add(node.calls);
            }
            *own = own.saturating_add(node.own);
            if outermost {
                *total = total.saturating_add(node.total);
            }
        }
        let mut costs: Vec<FunctionCost> = costs
            .into_iter()
            .map(|(label, (calls, own, total))| FunctionCost {
                label: label.clone(),
                calls,
                own,
                total,
            })
            .collect();
        costs.sort_by_key(|cost| {
            std::cmp::Reverse(if by_total {
                (cost.total, cost.own)
            } else {
                (cost.own, cost.total)
            })
        });
        costs
    }

    /// Whether a node of the same label is above.
    fn is_inside(&self, node: usize) -> bool {
        let mut at = self.nodes[node].parent;
        while let Some(above) = at.and_then(|at| self.nodes.get(at)) {
            if above.label == self.nodes[node].label {
                return true;
            }
            at = above.parent;
        }
        false
    }

    /// As a tree of each level, without causes.
    #[must_use]
    pub fn by_level(&self) -> CallTree {
        let mut tree = GrowingTree::default();
        let mut places: Vec<Option<usize>> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let above = node.parent.map(|parent| (&self.nodes[parent], places[parent]));
            let label = &node.label;
            let place = match label.kind {
                CallKind::Cause | CallKind::Thread => None,
                CallKind::Function | CallKind::Line | CallKind::Instruction => {
                    let same = above
                        .filter(|(above, _)| above.label.level == label.level)
                        .and_then(|(_, place)| place);
                    let parent = same.unwrap_or_else(|| tree.child(None, &level_of(label.level)));
                    Some(tree.child(Some(parent), label))
                }
            };
            if let Some(place) = place {
                tree.add(place, node.calls, node.own);
            }
            places.push(place);
        }
        tree.finish()
    }

    #[must_use]
    pub fn arranged(&self, how: Arranged) -> CallTree {
        match how {
            Arranged::ByCause => self.clone(),
            Arranged::ByLevel => self.by_level(),
        }
    }
}

fn level_of(level: u8) -> NodeLabel {
    let name = format!("L{level}");
    NodeLabel { kind: CallKind::Thread, level, name, module: String::new() }
}

/// A tree whose equal nodes are one.
#[derive(Default)]
pub(crate) struct GrowingTree {
    tree: CallTree,
    children: BTreeMap<(Option<usize>, NodeLabel), usize>,
}

impl GrowingTree {
    pub(crate) fn child(&mut self, parent: Option<usize>, label: &NodeLabel) -> usize {
        let tree = &mut self.tree;
        *self.children.entry((parent, label.clone())).or_insert_with(|| {
            tree.nodes.push(CallNode { parent, label: label.clone(), calls: 0, own: 0, total: 0 });
            tree.nodes.len() - 1
        })
    }

    pub(crate) fn add(&mut self, node: usize, calls: u64, own: u64) {
        let node = &mut self.tree.nodes[node];
        node.calls = node.calls.saturating_add(calls);
        node.own = node.own.saturating_add(own);
    }

    pub(crate) fn finish(self) -> CallTree {
        self.tree.summed()
    }
}
