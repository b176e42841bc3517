//! A call graph as the screens of `perf report` and `perf top` draw it, from which a post has a part.
//!
//! ```text
//!   - 21.26% flatview_write
//!      - 18.26% vfio_region_write
//!         - do_syscall_64
//!              17.10% vfs_write
//! ```
//!
//! Shares are of all samples. A line without a share has its caller's. A closed row of two shares counts by its second. What a line's shares leave to itself is its own; what is in no line is
//! [`REST`]. Below a symbol's row with one share, or none, stand its callers, else what it calls.

use std::collections::BTreeSet;
use std::io::Read;

use vmtax_events::Profile;

use super::StackSum;
use super::perf_report::{MARKS, REST, WHOLE};
use crate::Error;
use crate::import::text::is_text;
use crate::import::text::lines::TextLines;

/// Lines with a share, and lines, that make a call graph; lines that are kept.
const ENOUGH: usize = 1;
const LEAST: usize = 5;
const MOST: usize = 1 << 16;
/// Functions of one stack.
const DEEPEST: usize = 1024;

/// Whether these first bytes are such a text.
pub fn recognise(head: &[u8]) -> bool {
    is_text(head) && {
        let text = String::from_utf8_lossy(head);
        let lines =
            || text.lines().map(trimmed).filter(|line| !line.trim().is_empty() && !is_title(line));
        let nodes: Vec<GraphLine<'_>> = lines().filter_map(node).collect();
        let with = nodes.iter().filter(|node| node.share.is_some() && !node.is_head).count();
        let opened = nodes.iter().filter(|node| node.is_open).count();
        // A cut line or two at the end of the head.
        nodes.len() >= LEAST
            && with >= ENOUGH
            && (opened * 5 >= nodes.len() || nodes[0].is_head)
            && nodes.len() + 2 >= lines().count()
    }
}

/// Above the rows of a screen.
fn is_title(line: &str) -> bool {
    line.trim_start().starts_with("Samples:") || super::perf_report::heading(line).is_some()
}

/// A line without the frame of the screen.
fn trimmed(line: &str) -> &str {
    line.trim_end_matches(['▒', '◆', '█', '│', ' ', '\t', '\r'])
}

/// A line of the graph.
struct GraphLine<'l> {
    /// Where its text begins.
    column: usize,
    name: &'l str,
    /// In hundredths of a percent.
    share: Option<u64>,
    /// Of a symbol's row with two shares (`Children`, `Self`), the second.
    own: Option<u64>,
    is_open: bool,
    /// A symbol's row, which has more columns, and whether its callers stand below.
    is_head: bool,
    has_callers: bool,
}

fn node(line: &str) -> Option<GraphLine<'_>> {
    let start = line.trim_start_matches(' ');
    let text = start.trim_start_matches(['-', '+']).trim_start_matches(' ');
    let is_open = start.starts_with('-');
    let column = line.len() - text.len();
    let shares = text.split_whitespace().map_while(|word| word.strip_suffix('%'));
    let mark = MARKS.iter().find_map(|mark| Some((text.find(mark)?, mark.len())));
    if let Some((at, length)) = mark {
        let name = text.get(at + length..)?.split_whitespace().next()?;
        let [share, own] = [0, 1].map(|at| shares.clone().nth(at).and_then(hundredths));
        // What calls nothing has callers alone.
        let has_callers = own.is_none() || own == share;
        return Some(GraphLine {
            column: 0,
            name,
            share,
            own,
            is_open,
            is_head: true,
            has_callers,
        });
    }
    let mut words = text.split_whitespace();
    let first = words.next()?;
    let (name, share) = match first.strip_suffix('%') {
        Some(share) => (words.next()?, Some(hundredths(share)?)),
        None => (first, None),
    };
    let is_name = (name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        || name.starts_with("0x"))
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.@:~<>[]".contains(&b));
    (is_name && words.next().is_none() && column > 0).then_some(GraphLine {
        column,
        name,
        share,
        own: None,
        is_open,
        is_head: false,
        has_callers: false,
    })
}

fn hundredths(share: &str) -> Option<u64> {
    let share: f64 = share.replace(',', ".").parse().ok()?;
    (0.0..=100.0).contains(&share).then_some((share * 100.0).round() as u64)
}

/// A node with the place of its caller, or of what it calls.
struct PlacedLine {
    parent: Option<usize>,
    column: usize,
    name: String,
    share: Option<u64>,
    own: Option<u64>,
    /// A line of a chain without branches: those that follow stand in the same column.
    is_bare: bool,
    has_callers: bool,
}

/// Nodes in the order of the text: each stands behind its parent.
#[derive(Default)]
struct Graph {
    nodes: Vec<PlacedLine>,
    open: Vec<usize>,
}

impl Graph {
    fn add(&mut self, node: &GraphLine<'_>) {
        let is_bare = node.share.is_none() && !node.is_open;
        if node.is_head {
            self.open.clear();
        }
        while let Some(top) = self.open.last().map(|at| &self.nodes[*at]) {
            // perf moves a line of a chain by one where the kernel ends.
            // One of a chain that is opened has no share either; branches have.
            let goes_on = node.share.is_none() && top.is_bare && node.column + 1 >= top.column;
            if top.column < node.column || goes_on || self.open.len() == 1 && top.column == 0 {
                break;
            }
            self.open.pop();
        }
        let parent = self.open.last().copied();
        let has_callers = match parent {
            Some(parent) => self.nodes[parent].has_callers,
            None => node.has_callers,
        };
        if self.open.len() < DEEPEST && self.nodes.len() < MOST {
            self.open.push(self.nodes.len());
            let name = super::one_frame(node.name);
            let (column, share, own) = (node.column, node.share, node.own);
            self.nodes.push(PlacedLine { parent, column, name, share, own, is_bare, has_callers });
        }
    }

    /// Where a line has more than the line above, shares are of that line (`perf report -g fractal`): they become shares of all.
    fn make_absolute(&mut self) {
        let mut above: Vec<Option<u64>> = Vec::new();
        let mut is_relative = false;
        for node in &self.nodes {
            let of_parent = node.parent.and_then(|parent| above[parent]);
            // More than what rounding takes.
            is_relative |= node.share.zip(of_parent).is_some_and(|(share, of)| share > of + 5);
            above.push(node.share.or(of_parent));
        }
        if !is_relative {
            return;
        }
        let mut whole: Vec<Option<u64>> = Vec::new();
        for node in &mut self.nodes {
            let of_parent = node.parent.and_then(|parent| whole[parent]);
            if let (Some(share), Some(of_parent)) = (node.share, of_parent) {
                node.share = Some(share * of_parent / WHOLE);
            }
            whole.push(node.share.or(of_parent));
        }
    }

    fn deliver(mut self, sum: &mut StackSum) {
        let opened: BTreeSet<usize> = self.nodes.iter().filter_map(|node| node.parent).collect();
        // What a closed row calls is in other rows.
        for (at, node) in self.nodes.iter_mut().enumerate() {
            node.share = node.own.filter(|_| !opened.contains(&at)).or(node.share);
        }
        self.make_absolute();
        for at in 0..self.nodes.len() {
            let of_parent = self.nodes[at].parent.and_then(|parent| self.nodes[parent].share);
            let node = &mut self.nodes[at];
            node.share = node.share.or(of_parent);
        }
        let mut own: Vec<u64> = self.nodes.iter().map(|node| node.share.unwrap_or(0)).collect();
        for node in &self.nodes {
            if let (Some(parent), Some(share)) = (node.parent, node.share) {
                own[parent] = own[parent].saturating_sub(share);
            }
        }
        for (at, own) in own.into_iter().enumerate().filter(|(_, own)| *own > 0) {
            let mut stack = Vec::new();
            let mut next = Some(at);
            while let Some(at) = next {
                stack.push(self.nodes[at].name.as_str());
                next = self.nodes[at].parent;
            }
            if !self.nodes[at].has_callers {
                stack.reverse();
            }
            sum.add(&stack.join(&Profile::BETWEEN.to_string()), own);
        }
    }
}

pub(super) fn read(input: &mut dyn Read, sum: &mut StackSum) -> Result<(), Error> {
    let mut lines = TextLines::new(input);
    let mut graph = Graph::default();
    loop {
        let offset = lines.offset();
        let Some(line) = lines.next()? else { break };
        let line = String::from_utf8_lossy(line);
        if let Some(event) = super::perf_report::counted_event(&line).map(str::to_owned) {
            return Err(super::perf_report::of_no_time(offset, &event, &mut lines));
        }
        match node(trimmed(&line)) {
            Some(node) => graph.add(&node),
            None => {
                sum.losses.undecodable += u64::from(!line.trim().is_empty() && !is_title(&line))
            }
        }
    }
    sum.losses.undecodable += lines.cut;
    graph.deliver(sum);
    let shown = sum.profile.total();
    if shown > 0 && shown < WHOLE {
        sum.add(REST, WHOLE - shown);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(text: &str) -> Vec<(String, u64)> {
        assert!(recognise(text.as_bytes()), "{text}");
        let mut sum = StackSum::new(vmtax_events::ProfileOrigin::Host);
        read(&mut text.as_bytes(), &mut sum).unwrap();
        let stacks = sum.finish().profile.stacks;
        stacks.into_iter().map(|(stack, weight)| (stack.to_string(), weight)).collect()
    }

    #[test]
    fn a_graph_of_calls_becomes_stacks() {
        let text = "  - 50.00% a            ▒\n     - 40.00% b         ◆\n        - c\n           - 30.00% d\n                5.00% e\n                4.00% f\n       1.00% g\n";
        assert_eq!(
            stacks(text),
            [
                ("[not in the text]", 5000),
                ("a", 900),
                ("a;b;c", 1000),
                ("a;b;c;d", 2100),
                ("a;b;c;d;e", 500),
                ("a;b;c;d;f", 400),
                ("a;g", 100),
            ]
            .map(|(stack, weight)| (stack.to_owned(), weight))
        );
    }

    #[test]
    fn callers_below_a_symbol_are_outside_of_it() {
        let text = "- qemu  [kernel.vmlinux]  [k] f\n   - f\n      - 36.00% f\n           g\n           h\n          u\n           v\n";
        assert_eq!(
            stacks(text),
            [("[not in the text]".to_owned(), 6400), ("v;u;h;g;f;f;f".to_owned(), 3600)]
        );
        // Shares of the line above (-g fractal), below a function that calls nothing.
        let text = "-   50.00%    50.00%  [kernel]  [k] f\n   - f\n      - 80.00% g\n         - 75.00% h\n              i\n           25.00% j\n        20.00% k\n";
        let expected =
            [("[not in the text]", 5000), ("i;h;g;f;f", 3000), ("j;g;f;f", 1000), ("k;f;f", 1000)];
        assert_eq!(stacks(text), expected.map(|(stack, weight)| (stack.to_owned(), weight)));
        assert!(!recognise(
            b"   - 36.00% f\n        g\n        h\n        i\n        j\n        k\n"
        ));
        let text = "-   94.00%     1.00%  qemu  qemu  [.] f\n   - 93.00% f\n      - 48.00% g\n         - 47.00% h\n              40.00% i\n";
        assert_eq!(stacks(text)[1], ("f".to_owned(), 100));
        assert!(stacks(text).iter().any(|(stack, _)| stack == "f;f;g;h;i"));
        let text = "+   95.00%     0.01%  qemu  libc.so.6  [.] ioctl\n+   90.00%     2.00%  qemu  [kvm]  [k] enter\n-   14.00%    13.00%  qemu  [kernel]  [k] f\n     13.00% ioctl\n        g\n";
        assert_eq!(stacks(text)[1..3], [("enter".to_owned(), 200), ("f".to_owned(), 100)]);
    }

    #[test]
    fn other_texts_are_no_graph() {
        for text in [
            "",
            "- one\n- two\n- three\n- four\n- five\n",
            "words of a text\n - 5% of it is so\n - and more of these\n",
            "   12.00% a\n   11.00% b\n   10.00% c\n   9.00% d\n   8.00% e\n",
        ] {
            assert!(!recognise(text.as_bytes()), "{text}");
        }
    }
}
