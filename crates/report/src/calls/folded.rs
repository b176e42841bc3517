//! Folded stacks: a line for each stack, its frames with semicolons between them, and the instructions of the batch.

use std::io::{self, Write};

use vmtax_analyse::{CallTree, Profiled};

use super::{frame, leaves, title};

/// Writes the stacks of all operations; the first frame is the operation.
pub fn write(all: &[(Profiled<'_>, CallTree)], out: &mut dyn Write) -> io::Result<()> {
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
