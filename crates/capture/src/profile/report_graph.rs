//! Call graphs below the rows of `perf report --stdio`.
//!
//! ```text
//!     59.97%  qemu-kvm  [kernel.kallsyms]  [k] _raw_spin_lock_irqsave
//!             |
//!             ---_raw_spin_lock_irqsave
//!                |
//!                |--99.30%--compact_checklock_irqsave
//!                |          compaction_alloc
//!                 --0.64%--...
//! ```
//!
//! A row of one share (`Overhead`) is the function's own time, and its graph tells from where it was called: from the row on outwards (`-g callee`), or from the outermost caller to the row (`-g caller`).
//! A row of two shares (`Children`, `Self`) has its own time in the second. Its graph has what it calls (or, with `-g callee`, its callers), which other rows have again: each function's own time is given
//! away once, and what no graph tells is the function's alone.
//!
//! Shares are of all samples, and of perf before 4.4 of the line above. Graphs that have a share above that of their line are read so.

use std::collections::{HashMap, HashSet};

use vmtax_events::Profile;

use super::StackSum;

/// Rows and lines of graphs that are kept, of a text, functions of one stack, and characters of a name.
const MOST: usize = 1 << 15;
const DEEPEST: usize = 128;
const LONGEST: usize = 512;
/// What rounding takes of a share, in hundredths of a percent.
const ROUNDING: u64 = 100;

/// A row of the report, or a line of its graph.
#[derive(Debug)]
struct GraphNode {
    parent: Option<usize>,
    column: usize,
    name: String,
    /// In hundredths of a percent, as printed. A line of a chain has none.
    share: Option<u64>,
    /// Of a row: its own time.
    own: Option<u64>,
}

/// The rows of a report with their graphs, in the order of the text: each node stands behind its parent.
#[derive(Debug, Default)]
pub(super) struct ReportGraphs {
    nodes: Vec<GraphNode>,
    /// Of the line before, from its row on.
    open: Vec<usize>,
}

/// A line's column, name and share.
fn line(text: &str) -> Option<(usize, &str, Option<u64>)> {
    let start = text.find(|c: char| c != '|' && c != ' ')?;
    let rest = &text[start..];
    let Some(dashed) = rest.strip_prefix("--") else {
        return Some((start, rest.trim_end(), None));
    };
    // "---name", the first line of a graph; its chain goes on three columns farther.
    if let Some(name) = dashed.strip_prefix('-') {
        return Some((start + 3, name.trim(), None));
    }
    let (share, name) = dashed.split_once("%--")?;
    let share: f64 = share.replace(',', ".").parse().ok()?;
    (0.0..=100.0).contains(&share).then_some((
        start,
        name.trim(),
        Some((share * 100.0).round() as u64),
    ))
}

impl ReportGraphs {
    /// A row with its shares: all of them where there are two, and its own time.
    pub(super) fn row(&mut self, name: &str, whole: Option<u64>, own: u64) -> bool {
        self.open.clear();
        self.push(GraphNode {
            parent: None,
            column: 0,
            name: name.chars().take(LONGEST).collect(),
            share: whole,
            own: Some(own),
        })
    }

    /// A line that is no row. Whether it is of the row's graph.
    pub(super) fn line(&mut self, text: &str) -> bool {
        let Some(row) = self.open.first() else { return false };
        // A graph begins with a bar or dashes, and is indented.
        let is_first = self.open.len() == 1 && *row + 1 == self.nodes.len();
        if !text.starts_with(' ') || is_first && !text.trim_start().starts_with(['|', '-']) {
            self.open.clear();
            return false;
        }
        let Some((column, name, share)) = line(text) else { return true };
        while let Some(top) = self.open.last().map(|at| &self.nodes[*at]) {
            // Chains go on in their column; perf before 4.4 sets them one to the left.
            let goes_on = share.is_none() && top.share.is_none() && column + 1 >= top.column;
            if self.open.len() == 1 || top.column < column || goes_on {
                break;
            }
            self.open.pop();
        }
        let parent = self.open.last().copied();
        if self.open.len() < DEEPEST {
            let name = super::one_frame(name).chars().take(LONGEST).collect();
            self.push(GraphNode { parent, column, name, share, own: None });
        }
        true
    }

    fn push(&mut self, node: GraphNode) -> bool {
        let has_room = self.nodes.len() < MOST;
        if has_room {
            self.open.push(self.nodes.len());
            self.nodes.push(node);
        }
        has_room
    }

    /// The row of each node, and its share of all samples.
    fn shares(&self) -> (Vec<usize>, Vec<u64>) {
        let whole = |row: &GraphNode| row.share.or(row.own).unwrap_or(0);
        let absolute = |relative: bool| {
            let mut all: Vec<u64> = Vec::with_capacity(self.nodes.len());
            for node in &self.nodes {
                let share = match (node.parent, node.share) {
                    (None, _) => whole(node),
                    (Some(parent), None) => all[parent],
                    (Some(parent), Some(share)) if relative => {
                        all[parent] * share / super::perf_report::WHOLE
                    }
                    (Some(_), Some(share)) => share,
                };
                all.push(share);
            }
            all
        };
        let printed = absolute(false);
        let mut sums = vec![0_u64; self.nodes.len()];
        let mut rows = Vec::with_capacity(self.nodes.len());
        for (at, node) in self.nodes.iter().enumerate() {
            rows.push(node.parent.map_or(at, |parent| rows[parent]));
            if let (Some(parent), Some(share)) = (node.parent, node.share) {
                sums[parent] = sums[parent].saturating_add(share);
            }
        }
        let is_relative =
            sums.iter().zip(&printed).any(|(sum, share)| *sum > share.saturating_add(ROUNDING));
        (rows, if is_relative { absolute(true) } else { printed })
    }

    /// Gives each function's own time to the stacks that its graphs have.
    pub(super) fn deliver(self, sum: &mut StackSum) {
        let (rows, shares) = self.shares();
        let name = |at: usize| self.nodes[at].name.as_str();
        let mut left: HashMap<&str, u64> = HashMap::new();
        // The share of the first row of each function: rows stand in the order of their shares.
        let mut places: HashMap<&str, u64> = HashMap::new();
        let mut begins: HashMap<usize, usize> = HashMap::new();
        let mut within = shares.clone();
        for (at, node) in self.nodes.iter().enumerate() {
            match (node.parent, node.own) {
                (Some(parent), _) => {
                    within[parent] = within[parent].saturating_sub(shares[at]);
                    begins.entry(rows[at]).or_insert(at);
                }
                (None, own) => {
                    *left.entry(name(at)).or_default() += own.unwrap_or(0);
                    places.entry(name(at)).or_insert(shares[at]);
                }
            }
        }
        // What stands below rows of two shares: callers have larger rows than the function itself, what it calls has smaller ones.
        let (mut larger, mut smaller) = (0_u64, 0_u64);
        for (at, row) in rows.iter().copied().enumerate() {
            if self.nodes[row].share.is_some() && name(at) != name(row) {
                let place = places.get(name(at));
                larger += u64::from(place.is_some_and(|place| *place > shares[row]));
                smaller += u64::from(place.is_some_and(|place| *place < shares[row]));
            }
        }
        let mut seen: HashSet<&str> = HashSet::new();
        let mut taken: HashMap<usize, bool> = HashMap::new();
        for (at, row) in rows.iter().copied().enumerate() {
            let node = &self.nodes[row];
            let starts_here = begins.get(&row).is_some_and(|first| name(*first) == name(row));
            let has_callers = starts_here && (node.share.is_none() || larger > smaller);
            if node.share.is_some() && !has_callers {
                // Its graph is a part of one that was read.
                if at == row {
                    taken.insert(row, !seen.contains(name(row)));
                }
                if taken.get(&row) != Some(&true) {
                    continue;
                }
                seen.insert(name(at));
            }
            if at == row || within[at] == 0 {
                continue;
            }
            let mut stack: Vec<&str> = Vec::new();
            let mut next = Some(at);
            // The row itself is the graph's first line, or its last.
            while let Some(at) = next.filter(|at| *at != row) {
                stack.push(name(at));
                next = self.nodes[at].parent;
            }
            if !has_callers {
                stack.reverse();
            }
            // A chain that is cut, or ends in a function that was inlined.
            if node.share.is_none() && stack.last() != Some(&name(row)) {
                stack.push(name(row));
            }
            let (Some(leaf), mut weight) = (stack.last().copied(), within[at]) else { continue };
            // With callers the graph of a row of two shares counts what the function calls, too.
            if has_callers && node.share.is_some() {
                weight = weight * node.own.unwrap_or(0) / shares[row].max(1);
            }
            if let Some(left) = left.get_mut(leaf) {
                weight = weight.min(*left);
                *left -= weight;
            }
            if weight > 0 {
                sum.add(&stack.join(&Profile::BETWEEN.to_string()), weight);
            }
        }
        for (name, weight) in left {
            if weight > 0 {
                sum.add(name, weight);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::profile::{ProfileFormat, text};

    fn stacks(report: &str) -> Vec<(String, u64)> {
        assert_eq!(ProfileFormat::recognise(report.as_bytes()).unwrap(), ProfileFormat::PerfReport);
        let profile = text(
            ProfileFormat::PerfReport,
            vmtax_events::ProfileOrigin::Host,
            &mut report.as_bytes(),
        );
        let stacks = profile.unwrap().profile.stacks;
        stacks.into_iter().map(|(stack, weight)| (stack.to_string(), weight)).collect()
    }

    fn owned(stacks: &[(&str, u64)]) -> Vec<(String, u64)> {
        stacks.iter().map(|(stack, weight)| ((*stack).to_owned(), *weight)).collect()
    }

    /// perf 3.5, whose shares are of the line above and whose chains stand one to the left.
    #[test]
    fn callers_below_a_row_are_outside_of_it() {
        let report = "\
# Overhead          Command         Shared Object      Symbol
# ........  ...............  ....................  ..........
#
    80.00%         qemu-kvm  [kernel.kallsyms]     [k] _raw_spin_lock_irqsave                    
                   |
                   --- _raw_spin_lock_irqsave
                      |          
                      |--90.00%-- isolate_migratepages_range
                      |          compact_zone
                      |          |          
                      |          |--50.00%-- a
                      |          |          b
                      |           --50.00%-- [...]
                       --10.00%-- c
    20.00%             ksmd  [kernel.kallsyms]     [k] memcmp
";
        assert_eq!(
            stacks(report),
            owned(&[
                ("[...];compact_zone;isolate_migratepages_range;_raw_spin_lock_irqsave", 3600),
                ("b;a;compact_zone;isolate_migratepages_range;_raw_spin_lock_irqsave", 3600),
                ("c;_raw_spin_lock_irqsave", 800),
                ("memcmp", 2000),
            ])
        );
        // -g caller: the row is the last line of each chain.
        let report = "\
    90.00%  qemu  [kernel]  [k] leaf
            |
            ---root
               |          
               |--60.00%--a
               |          leaf
               |          
                --30.00%--leaf (inlined)

    10.00%  qemu  [kernel]  [k] other
    0.00%  qemu  [kernel]  [k] third
";
        assert_eq!(
            stacks(report),
            owned(&[("other", 1000), ("root;a;leaf", 6000), ("root;leaf (inlined);leaf", 3000)])
        );
    }

    /// Rows of Children and Self: parts of one graph stand below many rows, and count once.
    #[test]
    fn each_functions_own_time_counts_once() {
        let report = "\
# Children      Self  Symbol
    90.00%     0.00%  [.] main
            |
            ---main
               |          
               |--60.00%--f
               |          |          
               |           --50.00%--lock
               |          
                --30.00%--g
                          lock

    60.00%    10.00%  [k] f
            |          
            |--50.00%--lock
            |          
             --10.00%--f

    80.00%    80.00%  [k] lock
            |
            ---main
               f
               lock

    10.00%    10.00%  [k] alone
";
        assert_eq!(
            stacks(report),
            owned(&[
                ("alone", 1000),
                ("main;f", 1000),
                ("main;f;lock", 5000),
                ("main;g;lock", 3000)
            ])
        );
        // -g callee.
        let report = "\
# Children      Self  Symbol
    90.00%     0.00%  [.] main
            |
            ---main

    60.00%    10.00%  [k] f
            |
            ---f
               main

    50.00%    50.00%  [k] lock
            |
            ---lock
               |
               |--40.00%--f
               |          main
                --10.00%--main
";
        assert_eq!(
            stacks(report),
            owned(&[
                ("[not in the text]", 4000),
                ("main;f", 1000),
                ("main;f;lock", 4000),
                ("main;lock", 1000)
            ])
        );
    }

    #[test]
    fn what_follows_a_row_and_is_no_graph_is_left() {
        let report = "   60.00%  qemu  [k] f\n   prose: --5.00%--g\n   |--5.00%--h\n   30.00%  qemu  [k] g\n  5.00%  qemu [k] h\n";
        assert_eq!(
            stacks(report),
            owned(&[("[not in the text]", 500), ("f", 6000), ("g", 3000), ("h", 500)])
        );
        // Shares that cannot be, and a graph without an end.
        let deep: String =
            (0..2000).map(|at| format!("{}|--99.00%--f{at}\n", " ".repeat(at + 12))).collect();
        let report =
            format!("   60.00%  qemu  [k] f\n{deep}   30.00%  qemu  [k] g\n  1.00%  q [k] h\n");
        assert!(stacks(&report).iter().map(|(_, weight)| weight).sum::<u64>() >= 10_000);
    }
}
