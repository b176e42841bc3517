//! Differences of two call trees: the functions that make one path longer than the other.
//!
//! Each function has the difference of its own instructions, so the lines' sum is the difference of the paths, and work that moves to
//! another caller cancels out. Two kernels, or two compilers, also put the same work into other functions: one is inlined here and called there,
//! or has another name. As a list of functions that is a long row of pairs, one less and one more. So:
//!
//! 1. An exit that only one tree has is a line, with all that handles it.
//! 2. A function that only one tree has belongs to the nearest caller that both have: their lowest common ancestor.
//! 3. Of those that belong to one caller, two that call the same, at least by half, or are called alike, are one with two names.
//! 4. If what is left there is more in one function and about as much less in another, the caller included, it is one line, the caller's. If
//!    not, each function is a line.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use vmtax_events::CallKind;

use super::{CallTree, NodeLabel, ProfiledOperation};

/// More pairs of functions than two versions of a kernel have under one caller.
const PAIRS_MOST: usize = 1 << 16;
/// The less of what is more and what is less must be this part of the other (1/4) to be the same work.
const ALIKE: i128 = 4;

/// A function that makes a difference, with the functions that it includes.
#[derive(Clone, Debug, PartialEq)]
pub struct DifferenceLine {
    /// The function, or the instruction of a guest.
    pub label: NodeLabel,
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
pub struct TreeDifference {
    /// Instructions of one operation in the first.
    pub before: f64,
    pub after: f64,
    /// Largest first. Their sum is `after` - `before`.
    pub lines: Vec<DifferenceLine>,
}

/// What two trees differ in.
pub fn difference(before: &ProfiledOperation<'_>, after: &ProfiledOperation<'_>) -> TreeDifference {
    // In parts that both numbers of operations divide, all is whole.
    let (a, b) = (i128::from(before.operations.max(1)), i128::from(after.operations.max(1)));
    let mut exits = GuestExits::default();
    let (first, second) =
        (Places::of(before.tree, b, &mut exits), Places::of(after.tree, a, &mut exits));
    let mut lines = FunctionLines::default();
    compare((&first, &second), &exits, &mut lines);
    let parts = (a * b) as f64;
    let mut found: Vec<DifferenceLine> = lines
        .0
        .into_iter()
        .filter(|(_, sum)| sum.delta != 0)
        .map(|(label, sum)| DifferenceLine {
            label,
            delta: sum.delta as f64 / parts,
            gone: sum.gone.into_iter().collect(),
            new: sum.new.into_iter().collect(),
            was: sum.was,
        })
        .collect();
    found.sort_by(|x, y| y.delta.abs().total_cmp(&x.delta.abs()));
    TreeDifference {
        before: before.of_one(before.tree.total()),
        after: after.of_one(after.tree.total()),
        lines: found,
    }
}

/// What was found of each function.
#[derive(Default)]
struct FunctionLines(BTreeMap<NodeLabel, FunctionSum>);

#[derive(Default)]
struct FunctionSum {
    delta: i128,
    gone: BTreeSet<String>,
    new: BTreeSet<String>,
    was: Option<String>,
}

impl FunctionLines {
    fn add(&mut self, label: &NodeLabel, delta: i128) -> &mut FunctionSum {
        let sum = self.0.entry(label.clone()).or_default();
        sum.delta += delta;
        sum
    }
}

/// Without the module: functions move between modules.
fn plain(label: &NodeLabel) -> NodeLabel {
    NodeLabel { module: String::new(), ..label.clone() }
}

/// Instructions of guests in instructions of guests: `[cpuid]`, `[cpuid]` and in it `[vmload]`. Whichever function of the guest executed
/// them, they are the same in both trees.
#[derive(Default)]
struct GuestExits {
    numbers: HashMap<(usize, NodeLabel), usize>,
    /// The parent of each, and its label. The first is none.
    list: Vec<(usize, NodeLabel)>,
}

/// Not in an exit.
const NONE: usize = 0;

impl GuestExits {
    fn number(&mut self, inside: usize, label: &NodeLabel) -> usize {
        if self.list.is_empty() {
            self.list.push((NONE, label.clone()));
        }
        let GuestExits { numbers, list } = self;
        *numbers.entry((inside, label.clone())).or_insert_with(|| {
            list.push((inside, label.clone()));
            list.len() - 1
        })
    }

    /// The outermost that the other tree, with these, has not: this one, or one that it is in.
    fn missing(&self, exit: usize, others: &BTreeSet<usize>) -> Option<&NodeLabel> {
        let (mut at, mut found) = (exit, None);
        while at != NONE {
            let (inside, label) = &self.list[at];
            if !others.contains(&at) {
                found = Some(label);
            }
            at = *inside;
        }
        found
    }
}

/// A tree that is compared.
struct Places {
    /// A parent comes before the nodes below it.
    nodes: Vec<TreePosition>,
    exits: BTreeSet<usize>,
}

struct TreePosition {
    label: NodeLabel,
    parent: Option<usize>,
    own: i128,
    /// The instruction of a guest that it handles.
    exit: usize,
}

impl Places {
    /// A tree, with its instructions multiplied by this.
    fn of(tree: &CallTree, times: i128, exits: &mut GuestExits) -> Places {
        let mut nodes: Vec<TreePosition> = Vec::with_capacity(tree.nodes.len());
        for node in &tree.nodes {
            let above = node.parent.map_or(NONE, |parent| nodes[parent].exit);
            let label = match (node.label.kind, node.parent) {
                (part, Some(parent)) if part.is_part() => nodes[parent].label.clone(),
                _ => plain(&node.label),
            };
            let exit =
                if label.kind == CallKind::Cause { exits.number(above, &label) } else { above };
            nodes.push(TreePosition {
                label,
                parent: node.parent,
                own: i128::from(node.own) * times,
                exit,
            });
        }
        let exits = nodes.iter().map(|node| node.exit).collect();
        Places { nodes, exits }
    }

    fn labels(&self) -> BTreeSet<&NodeLabel> {
        self.nodes.iter().map(|node| &node.label).collect()
    }
}

/// What belongs to a caller that both trees have.
#[derive(Default)]
struct CallerGroup<'a> {
    /// Functions that only one tree has: their instructions.
    gone: BTreeMap<&'a NodeLabel, i128>,
    new: BTreeMap<&'a NodeLabel, i128>,
}

/// What each function calls, as far as only one tree has it.
type Calls<'a> = BTreeMap<&'a NodeLabel, BTreeSet<&'a NodeLabel>>;

fn compare((first, second): (&Places, &Places), exits: &GuestExits, lines: &mut FunctionLines) {
    let top =
        NodeLabel { kind: CallKind::Thread, level: 0, name: String::new(), module: String::new() };
    let labels = [first.labels(), second.labels()];
    let mut both: BTreeMap<&NodeLabel, i128> = BTreeMap::new();
    let mut groups: BTreeMap<&NodeLabel, CallerGroup<'_>> = BTreeMap::new();
    let mut calls: [Calls<'_>; 2] = Default::default();
    for (side, (places, sign)) in [(first, -1), (second, 1)].into_iter().enumerate() {
        let (others, known) = (if side == 0 { second } else { first }, &labels[1 - side]);
        for node in &places.nodes {
            if let Some(exit) = exits.missing(node.exit, &others.exits) {
                lines.add(exit, sign * node.own);
                continue;
            }
            let parent = node.parent.map(|parent| &places.nodes[parent].label);
            if let Some(caller) = parent.filter(|caller| !known.contains(caller)) {
                calls[side].entry(caller).or_default().insert(&node.label);
            }
            if known.contains(&node.label) {
                *both.entry(&node.label).or_default() += sign * node.own;
                continue;
            }
            let mut at = node.parent;
            while let Some(above) = at.filter(|at| !known.contains(&places.nodes[*at].label)) {
                at = places.nodes[above].parent;
            }
            let caller = at.map_or(&top, |at| &places.nodes[at].label);
            let group = groups.entry(caller).or_default();
            let one_side = if side == 0 { &mut group.gone } else { &mut group.new };
            *one_side.entry(&node.label).or_default() += sign * node.own;
        }
    }
    for (caller, group) in groups {
        let own = both.remove(caller).unwrap_or(0);
        group.write((caller, own), &calls, lines);
    }
    for (label, delta) in both {
        lines.add(label, delta);
    }
}

impl CallerGroup<'_> {
    /// Writes its lines, and that of the caller, which has this many more instructions outside its callees.
    fn write(
        mut self,
        (caller, own): (&NodeLabel, i128),
        calls: &[Calls<'_>; 2],
        lines: &mut FunctionLines,
    ) {
        for one_side in [&mut self.gone, &mut self.new] {
            one_side.retain(|_, own| *own != 0);
        }
        for (old, new) in renamed(&self, calls) {
            if let (Some(less), Some(more)) = (self.gone.remove(&old), self.new.remove(&new)) {
                lines.add(&new, less + more).was = Some(old.name);
            }
        }
        let parts = || self.gone.values().chain(self.new.values()).chain([&own]);
        let more: i128 = parts().filter(|part| **part > 0).sum();
        let less: i128 = parts().filter(|part| **part < 0).sum::<i128>().abs();
        if more.min(less) * ALIKE < more.max(less) || more.min(less) == 0 {
            lines.add(caller, own);
            self.gone.iter().chain(&self.new).for_each(|(label, delta)| {
                lines.add(label, *delta);
            });
            return;
        }
        let sum = lines.add(caller, more - less);
        sum.gone.extend(self.gone.into_keys().map(|label| label.name.clone()));
        sum.new.extend(self.new.into_keys().map(|label| label.name.clone()));
    }
}

/// Pairs of functions that are one with two names: they call the same, or are called alike.
fn renamed(group: &CallerGroup<'_>, calls: &[Calls<'_>; 2]) -> Vec<(NodeLabel, NodeLabel)> {
    let CallerGroup { gone, new } = group;
    if gone.len().saturating_mul(new.len()) > PAIRS_MOST {
        return Vec::new();
    }
    let nothing = BTreeSet::new();
    let mut pairs: Vec<(usize, &NodeLabel, &NodeLabel)> = Vec::new();
    for old in gone.keys() {
        for new in new.keys() {
            if old.kind != CallKind::Function || new.kind != old.kind || new.level != old.level {
                continue;
            }
            let called = |side: usize, label| calls[side].get(label).unwrap_or(&nothing);
            let (x, y) = (called(0, *old), called(1, *new));
            // Of all that either calls, both must call half.
            let shared = x.intersection(y).count();
            let shared = if 2 * shared >= x.union(y).count() { shared } else { 0 };
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
        let mut growing = super::super::tree::GrowingTree::default();
        for (stack, own) in lines {
            let mut at = None;
            for name in stack.split(';') {
                let cause = name.starts_with('[');
                let kind = if cause { CallKind::Cause } else { CallKind::Function };
                let name = name.trim_matches(['[', ']']).to_owned();
                let label = NodeLabel { kind, level: 0, name, module: String::new() };
                at = Some(growing.child(at, &label));
            }
            growing.add(at.unwrap(), 1, *own);
        }
        growing.finish()
    }

    fn profiled(tree: &CallTree, operations: u64) -> ProfiledOperation<'_> {
        let name = "x".to_owned();
        ProfiledOperation {
            cell: None,
            name,
            level: Level::L1,
            operations,
            begun: 0,
            undone: 0,
            around: 0,
            idle: 0,
            waited: None,
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
        // One of many that it calls is called by the other too.
        assert_eq!(
            lines(
                &[("a;b", 10), ("a;b;c", 7)],
                &[("a;x", 90), ("a;x;c", 7), ("a;x;d", 1), ("a;x;e", 1)]
            ),
            [line("x", 90.0), line("b", -10.0), line("d", 1.0), line("e", 1.0)]
        );
        // Nothing in common but the caller: their lowest common ancestor.
        assert_eq!(lines(&[("a;b", 10)], &[("a;x", 11)]), [line("a", 1.0)]);
    }

    /// A function that is new beside a caller that is a little shorter is no part of that caller.
    #[test]
    fn new_work_has_a_line_of_its_own() {
        assert_eq!(
            lines(&[("a", 20), ("a;b", 10)], &[("a", 17), ("a;b", 10), ("a;c;d", 334)]),
            [line("d", 334.0), line("a", -3.0)]
        );
    }

    /// A function with all it calls has another caller, which is inlined in one of both.
    #[test]
    fn a_call_that_moves_up_cancels_out() {
        assert_eq!(
            lines(
                &[("run;handle", 30), ("run;handle;skip", 7), ("run;handle;skip;decode", 1500)],
                &[("run;outer", 9), ("run;handle", 22), ("run;skip", 7), ("run;skip;decode", 1510)]
            ),
            [line("decode", 10.0), line("outer", 9.0), line("handle", -8.0)]
        );
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
