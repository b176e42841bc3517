//! Folded stacks: a line for each stack, its frames with semicolons between them, and the instructions of the batch.

use std::io::{self, Write};

use std::collections::{BTreeMap, HashMap};

use vmtax_analyse::{CallTree, ProfiledOperation};
use vmtax_events::{CallKind, CallRow};

use super::{frame, leaves, title};

/// More frames of a stack than any kernel has.
const DEPTH_MOST: usize = 1000;

/// Writes the stacks of all operations; the first frame is the operation.
pub fn write(all: &[(ProfiledOperation<'_>, CallTree)], out: &mut dyn Write) -> io::Result<()> {
    for (one, tree) in all {
        for line in lines(tree) {
            writeln!(out, "{};{line}", crate::names::printable(&title(one)).replace(';', ","))?;
        }
    }
    Ok(())
}

/// The stacks of a tree.
pub(crate) fn lines(tree: &CallTree) -> Vec<String> {
    let line = |(stack, own): (Vec<String>, u64)| format!("{} {own}", stack.join(";"));
    let stacks = leaves(tree).map(|(stack, node)| {
        (stack.iter().map(|label| frame(label)).collect::<Vec<_>>(), node.own)
    });
    let mut lines: Vec<String> = stacks.map(line).collect();
    lines.sort_unstable();
    lines
}

/// Reads what [`write()`] has written: the trees by operation and level, `cpuid L2`.
///
/// # Errors
/// Says which line is none of folded stacks.
pub fn read(text: &str) -> Result<BTreeMap<String, CallTree>, String> {
    let mut reading: BTreeMap<String, FoldedReading> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let parsed = line.rsplit_once(' ').and_then(|(stack, weight)| {
            let (title, frames) = stack.split_once(';')?;
            Some((title, frames, weight.parse::<u64>().ok()?))
        });
        let (title, frames, weight) = parsed
            .filter(|(_, frames, _)| frames.split(';').count() <= DEPTH_MOST)
            .ok_or_else(|| format!("line {}: is no folded stack", number + 1))?;
        reading.entry(title.to_owned()).or_default().add(frames, weight);
    }
    Ok(reading.into_iter().map(|(title, one)| (title, one.finish())).collect())
}

/// A tree that is read.
#[derive(Default)]
struct FoldedReading {
    rows: Vec<CallRow>,
    nodes: HashMap<(Option<u32>, String), u32>,
}

impl FoldedReading {
    fn add(&mut self, frames: &str, weight: u64) {
        let mut parent = None;
        for frame in frames.split(';') {
            let FoldedReading { rows, nodes } = self;
            let node = *nodes.entry((parent, frame.to_owned())).or_insert_with(|| {
                let node = rows.len() as u32;
                let above = parent.and_then(|parent| rows.get(parent as usize));
                let above = above.map_or(0, |above: &CallRow| above.level);
                rows.push(row(node, (parent, above), frame));
                node
            });
            parent = Some(node);
        }
        if let Some(row) = parent.and_then(|node| self.rows.get_mut(node as usize)) {
            row.instructions = row.instructions.saturating_add(weight);
        }
    }

    fn finish(self) -> CallTree {
        let mut tree = CallTree::default();
        self.rows.iter().for_each(|row| tree.push(row));
        tree.summed()
    }
}

/// The meaning of a frame. A line has the level of the function above it.
fn row(node: u32, (parent, above): (Option<u32>, u8), frame: &str) -> CallRow {
    let levelled = frame.strip_prefix('L').and_then(|rest| rest.split_once(' '));
    let levelled = levelled.and_then(|(level, name)| Some((level.parse::<u8>().ok()?, name)));
    let inside = |name: &str| Some(name.strip_prefix('[')?.strip_suffix(']')?.to_owned());
    let (kind, level, name) = match levelled {
        // A function in brackets is one without a name.
        Some((level, name)) => {
            match inside(name).filter(|name| !UNNAMED.contains(&name.as_str())) {
                Some(cause) => (CallKind::Cause, level, cause),
                None => (CallKind::Function, level, name.to_owned()),
            }
        }
        None if frame.contains(INSTRUCTION) => (CallKind::Instruction, above, frame.to_owned()),
        None => match frame.rsplit_once(':') {
            Some((_, line)) if line.parse::<u64>().is_ok() => {
                (CallKind::Line, above, frame.to_owned())
            }
            _ => (CallKind::Thread, 0, frame.to_owned()),
        },
    };
    CallRow {
        workload: String::new(),
        node,
        parent,
        kind,
        level,
        name,
        module: String::new(),
        calls: 0,
        instructions: 0,
    }
}

/// Between the function and the place of an instruction.
const INSTRUCTION: &str = "+0x";
/// The name for functions without a symbol.
const UNNAMED: [&str; 2] = ["unknown", "program"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_are_read_back() {
        let text = "cpuid L1;L1 payload 2\n\
                    cpuid L1;L1 payload;L1 [cpuid];L0 [program];L0 run 40\n\
                    cpuid L1;vCPU 0;L0 a;arch/x86/kvm/x86.c:12 1\n\
                    cpuid L2;L2 payload 3\n";
        let trees = read(text).unwrap();
        let mut found = String::new();
        for (title, tree) in &trees {
            lines(tree).iter().for_each(|line| found += &format!("{title};{line}\n"));
        }
        assert_eq!(found, text);
        let kinds: Vec<CallKind> =
            trees["cpuid L1"].nodes.iter().map(|node| node.label.kind).collect();
        let function = CallKind::Function;
        assert_eq!(
            kinds,
            [
                function,
                CallKind::Cause,
                function,
                function,
                CallKind::Thread,
                function,
                CallKind::Line
            ]
        );
        for (text, line) in [("a;b", 1), ("a;b 1\nb 1", 2), ("a;b x", 1), ("", 0)] {
            let problem = (line > 0).then(|| format!("line {line}: is no folded stack"));
            assert_eq!(read(text).err(), problem, "{text:?}");
        }
        assert!(read(&format!("a{} 1", ";b".repeat(5000))).is_err());
    }
}
