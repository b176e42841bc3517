//! Differences of two call trees: the functions that make one path longer than the other.
//!
//! Two kernels, or two compilers, put the same work into other functions: one is inlined here and called there, or has another
//! name. As a list of functions that is a long row of pairs, one less and one more. So trees are compared from the top down:
//!
//! 1. What handles an instruction of a guest hangs under that instruction alone, whichever function of the guest executed it.
//! 2. A function that one tree lacks, while what it calls is there one step higher, is inlined there: it becomes a part of its caller.
//! 3. Two functions under the same caller that call the same are one with two names.
//! 4. What is left of both trees under one caller is one line, the caller's: their lowest common ancestor.
//! 5. What only one tree has is a line of each function.
//!
//! Lines of one function are added up, so work that moves to another caller cancels out. Whatever the rules do, the lines' sum is
//! the difference of the paths.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::CallKind;

use super::{CallTree, Label, Profiled};

/// A function that makes a difference, with what it stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The function, or the instruction of a guest.
    pub label: Label,
    /// More (or, negative, fewer) instructions of one operation.
    pub delta: f64,
    /// Functions below it that only the first tree has, where they are part of this line.
    pub gone: Vec<String>,
    /// That only the second has.
    pub new: Vec<String>,
    /// Its name in the first tree, where that is another one.
    pub was: Option<String>,
}

/// The difference of two call trees of one operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Instructions of one operation in the first.
    pub before: f64,
    /// In the second.
    pub after: f64,
    /// Largest first. Their sum is `after` - `before`.
    pub lines: Vec<Line>,
}

/// What two trees differ in.
pub fn difference(before: &Profiled<'_>, after: &Profiled<'_>) -> Difference {
    // In parts that both numbers of operations divide, all is whole.
    let (a, b) = (i128::from(before.operations.max(1)), i128::from(after.operations.max(1)));
    let (first, second) = (Node::of(before.tree, b), Node::of(after.tree, a));
    let mut lines = Lines::default();
    first.compare(second, &mut lines);
    let parts = (a * b) as f64;
    let mut found: Vec<Line> = lines
        .0
        .into_iter()
        .filter(|(_, sum)| sum.delta != 0)
        .map(|(label, sum)| Line {
            label,
            delta: sum.delta as f64 / parts,
            gone: sum.gone.into_iter().collect(),
            new: sum.new.into_iter().collect(),
            was: sum.was,
        })
        .collect();
    found.sort_by(|x, y| y.delta.abs().total_cmp(&x.delta.abs()));
    Difference {
        before: before.of_one(before.tree.total()),
        after: after.of_one(after.tree.total()),
        lines: found,
    }
}

/// What was found of each function.
#[derive(Default)]
struct Lines(BTreeMap<Label, Sum>);

#[derive(Default)]
struct Sum {
    delta: i128,
    gone: BTreeSet<String>,
    new: BTreeSet<String>,
    was: Option<String>,
}

impl Lines {
    fn add(&mut self, label: &Label, delta: i128) -> &mut Sum {
        let sum = self.0.entry(plain(label)).or_default();
        sum.delta += delta;
        sum
    }
}

/// Without the module: functions move between modules.
fn plain(label: &Label) -> Label {
    Label { module: String::new(), ..label.clone() }
}

/// A node of a tree that is compared.
struct Node {
    label: Label,
    own: i128,
    children: BTreeMap<Label, Node>,
}

impl Node {
    /// A tree whose instructions are taken so many times.
    fn of(tree: &CallTree, times: i128) -> Node {
        let top =
            Label { kind: CallKind::Thread, level: 0, name: String::new(), module: String::new() };
        let mut root = Node { label: top, own: 0, children: BTreeMap::new() };
        // Where each node goes: the labels from the root.
        let mut paths: Vec<Vec<Label>> = Vec::with_capacity(tree.nodes.len());
        for node in &tree.nodes {
            let above = node.parent.map_or(&[][..], |parent| paths[parent].as_slice());
            let mut path = match node.label.kind {
                // An instruction of L1 hangs under that of L2, an instruction of a payload under the payload.
                CallKind::Cause => {
                    let keep = above.iter().rposition(|label| label.kind == CallKind::Cause);
                    let keep = keep.map_or(above.len(), |at| at + 1);
                    above[..keep].to_vec()
                }
                _ => above.to_vec(),
            };
            if node.label.kind != CallKind::Line {
                path.push(plain(&node.label));
            }
            root.at(&path).own += i128::from(node.own) * times;
            paths.push(path);
        }
        root
    }

    fn at(&mut self, path: &[Label]) -> &mut Node {
        let mut node = self;
        for label in path {
            node = node.children.entry(label.clone()).or_insert_with(|| Node {
                label: label.clone(),
                own: 0,
                children: BTreeMap::new(),
            });
        }
        node
    }

    fn total(&self) -> i128 {
        self.own + self.children.values().map(Node::total).sum::<i128>()
    }

    /// Writes the lines that lead from this node to the other, which stands for the same.
    fn compare(mut self, mut other: Node, lines: &mut Lines) {
        let mut inlined = (Vec::new(), Vec::new());
        while self.inline_into(&other, &mut inlined.1) || other.inline_into(&self, &mut inlined.0) {
        }
        let mut only_after = BTreeMap::new();
        for (label, after) in std::mem::take(&mut other.children) {
            match self.children.remove(&label) {
                Some(before) => before.compare(after, lines),
                None => {
                    only_after.insert(label, after);
                }
            }
        }
        let mut only_before = std::mem::take(&mut self.children);
        for (before, after) in renamed(&only_before, &only_after) {
            if let (Some(x), Some(y)) = (only_before.remove(&before), only_after.remove(&after)) {
                lines.add(&after, 0).was = Some(before.name);
                x.compare(y, lines);
            }
        }
        let own = other.own - self.own;
        let causes = |label: &Label| label.kind != CallKind::Function;
        // Exits that only one has are lines of their own.
        for (nodes, sign) in [(&mut only_before, -1), (&mut only_after, 1)] {
            nodes.retain(|label, node| {
                if causes(label) {
                    lines.add(label, sign * node.total());
                }
                !causes(label)
            });
        }
        let is_one = !inlined.0.is_empty()
            || !inlined.1.is_empty()
            || (!only_before.is_empty() && !only_after.is_empty())
            || (own < 0 && !only_after.is_empty())
            || (own > 0 && !only_before.is_empty());
        if !is_one {
            lines.add(&other.label, own);
            only_before.values().for_each(|node| node.each(-1, lines));
            only_after.values().for_each(|node| node.each(1, lines));
            return;
        }
        let total = |nodes: &BTreeMap<Label, Node>| nodes.values().map(Node::total).sum::<i128>();
        let sum = lines.add(&other.label, own + total(&only_after) - total(&only_before));
        sum.gone.extend(inlined.1.into_iter().chain(only_before.into_keys().map(|l| l.name)));
        sum.new.extend(inlined.0.into_iter().chain(only_after.into_keys().map(|l| l.name)));
    }

    /// Makes functions part of this node that the other node lacks, while it has what they call.
    fn inline_into(&mut self, other: &Node, names: &mut Vec<String>) -> bool {
        let is_inlined = |(label, child): (&Label, &Node)| {
            label.kind == CallKind::Function
                && !other.children.contains_key(label)
                && child.children.keys().any(|below| {
                    other.children.contains_key(below) && !self.children.contains_key(below)
                })
        };
        let found =
            self.children.iter().find(|one| is_inlined(*one)).map(|(label, _)| label.clone());
        let Some(child) = found.and_then(|label| self.children.remove(&label)) else {
            return false;
        };
        names.push(child.label.name.clone());
        self.own += child.own;
        for (label, below) in child.children {
            match self.children.get_mut(&label) {
                Some(same) => same.merge(below),
                None => {
                    self.children.insert(label, below);
                }
            }
        }
        true
    }

    fn merge(&mut self, other: Node) {
        self.own += other.own;
        for (label, below) in other.children {
            match self.children.get_mut(&label) {
                Some(same) => same.merge(below),
                None => {
                    self.children.insert(label, below);
                }
            }
        }
    }

    /// A line of each function.
    fn each(&self, sign: i128, lines: &mut Lines) {
        if self.label.kind != CallKind::Function {
            lines.add(&self.label, sign * self.total());
            return;
        }
        lines.add(&self.label, sign * self.own);
        self.children.values().for_each(|child| child.each(sign, lines));
    }
}

/// Pairs of functions that are one with two names: they call the same, or are called alike.
fn renamed(before: &BTreeMap<Label, Node>, after: &BTreeMap<Label, Node>) -> Vec<(Label, Label)> {
    let mut pairs: Vec<(usize, &Label, &Label)> = Vec::new();
    for (old, x) in before {
        for (new, y) in after {
            if old.kind != CallKind::Function || new.kind != old.kind || new.level != old.level {
                continue;
            }
            let shared = x.children.keys().filter(|label| y.children.contains_key(*label)).count();
            let alike = usize::from(stem(&old.name) == stem(&new.name));
            if shared + alike > 0 {
                pairs.push((2 * shared + 3 * alike, old, new));
            }
        }
    }
    pairs.sort_by_key(|(score, old, new)| (std::cmp::Reverse(*score), *old, *new));
    let (mut used_old, mut used_new) = (BTreeSet::new(), BTreeSet::new());
    let mut found = Vec::new();
    for (_, old, new) in pairs {
        if !used_old.contains(old) && !used_new.contains(new) {
            used_old.insert(old);
            used_new.insert(new);
            found.push((old.clone(), new.clone()));
        }
    }
    found
}

/// A name without what tells versions of a function apart: `__foo_locked.part.0` and `foo`.
fn stem(name: &str) -> &str {
    let name = name.trim_start_matches('_');
    let name = name.split('.').next().unwrap_or(name);
    ["_locked", "_fast", "_noprof", "_irqoff"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmtax_events::{CallRow, Level};

    /// Of lines such as `a;b 3`; a name in brackets is a cause.
    fn tree(lines: &[(&str, u64)]) -> CallTree {
        let mut growing = super::super::Growing::default();
        for (stack, own) in lines {
            let mut at = None;
            for name in stack.split(';') {
                let cause = name.starts_with('[');
                let kind = if cause { CallKind::Cause } else { CallKind::Function };
                let name = name.trim_matches(['[', ']']).to_owned();
                let label = Label { kind, level: 0, name, module: String::new() };
                at = Some(growing.child(at, &label));
            }
            growing.add(at.unwrap(), 1, *own);
        }
        growing.finish()
    }

    fn profiled(tree: &CallTree, operations: u64) -> Profiled<'_> {
        let name = "x".to_owned();
        Profiled {
            name,
            level: Level::L1,
            operations,
            begun: 0,
            undone: 0,
            around: 0,
            idle: 0,
            tree,
        }
    }

    fn lines(before: &[(&str, u64)], after: &[(&str, u64)]) -> Vec<(String, f64)> {
        let (before, after) = (tree(before), tree(after));
        let found = difference(&profiled(&before, 1), &profiled(&after, 1));
        let sum: f64 = found.lines.iter().map(|line| line.delta).sum();
        assert_eq!(sum, found.after - found.before);
        found.lines.into_iter().map(|line| (line.label.name, line.delta)).collect()
    }

    fn line(name: &str, delta: f64) -> (String, f64) {
        (name.to_owned(), delta)
    }

    #[test]
    fn longer_functions_and_new_ones_are_named() {
        assert_eq!(
            lines(&[("a", 5), ("a;b", 10)], &[("a", 5), ("a;b", 14), ("a;c", 3), ("a;c;d", 4)]),
            [line("b", 4.0), line("d", 4.0), line("c", 3.0)]
        );
    }

    #[test]
    fn an_inlined_function_is_no_pair() {
        assert_eq!(
            lines(&[("a", 5), ("a;b", 10), ("a;b;c", 7)], &[("a", 16), ("a;c", 7)]),
            [line("a", 1.0)]
        );
        // Without anything below it, its caller is longer by what it had.
        assert_eq!(lines(&[("a", 5), ("a;b", 10)], &[("a", 16)]), [line("a", 1.0)]);
        assert_eq!(lines(&[("a", 16)], &[("a", 5), ("a;b", 10)]), [line("a", -1.0)]);
    }

    #[test]
    fn a_renamed_function_is_no_pair() {
        assert_eq!(
            lines(&[("a;b", 10), ("a;b;c", 7)], &[("a;x", 12), ("a;x;c", 7)]),
            [line("x", 2.0)]
        );
        assert_eq!(lines(&[("a;__b", 10)], &[("a;b_noprof", 11)]), [line("b_noprof", 1.0)]);
        // Nothing in common but the caller: their lowest common ancestor.
        assert_eq!(lines(&[("a;b", 10)], &[("a;x", 11)]), [line("a", 1.0)]);
    }

    #[test]
    fn work_that_moves_cancels_out() {
        assert_eq!(
            lines(&[("a;b", 1), ("a;c", 1), ("a;b;d", 9)], &[("a;b", 1), ("a;c", 1), ("a;c;d", 9)]),
            []
        );
    }

    #[test]
    fn exits_are_compared_wherever_the_guest_made_them() {
        assert_eq!(
            lines(
                &[("p;[cpuid];one;two;[vmload];k", 10), ("p;[cpuid];one", 4)],
                &[
                    ("p;[cpuid];one;[vmload];k", 12),
                    ("p;[cpuid];one", 4),
                    ("p;[cpuid];[rdmsr];k", 8)
                ]
            ),
            [line("rdmsr", 8.0), line("k", 2.0)]
        );
    }

    #[test]
    fn different_numbers_of_operations_are_exact() {
        let (before, after) = (tree(&[("a", 10), ("b", 1)]), tree(&[("a", 10), ("b", 1)]));
        let found = difference(&profiled(&before, 3), &profiled(&after, 7));
        let deltas: Vec<f64> = found.lines.iter().map(|line| line.delta).collect();
        assert_eq!(deltas, [-40.0 / 21.0, -4.0 / 21.0]);
    }

    #[test]
    fn rows_out_of_order_are_damage() {
        let row = |node, parent| CallRow {
            workload: "x".to_owned(),
            node,
            parent,
            kind: CallKind::Function,
            level: 0,
            name: "f".to_owned(),
            module: String::new(),
            calls: 1,
            instructions: 1,
        };
        let damaged = |rows: &[CallRow]| {
            let mut tree = CallTree::default();
            rows.iter().for_each(|row| tree.push(row));
            tree.summed().damaged
        };
        assert!(!damaged(&[row(0, None), row(1, Some(0))]));
        assert!(damaged(&[row(0, Some(0))]));
        assert!(damaged(&[row(0, None), row(1, Some(2))]));
        assert!(damaged(&[row(1, None), row(1, None)]));
        let deep = |count: u32| -> Vec<CallRow> {
            (0..count).map(|node| row(node, node.checked_sub(1))).collect()
        };
        assert!(!damaged(&deep(500)));
        assert!(damaged(&deep(5000)));
    }
}
