//! A file for KCachegrind and callgrind_annotate: one operation, instructions of its batch by function and line.
//!
//! The format is described in Valgrind's manual, "Callgrind Format Specification". Functions of equal names are distinguished
//! by their
//! level, in callgrind's field for the source file (`fl=L0`); the module is in the field for the object file.

use std::collections::BTreeMap;
use std::io::{self, Write};

use vmtax_analyse::calls::Label;
use vmtax_analyse::{CallTree, Profiled};
use vmtax_events::CallKind;

use super::title;
use crate::names::printable;

/// What a function has: its own instructions by line, and what it calls: how often, and with how many instructions.
#[derive(Default)]
struct Function {
    lines: BTreeMap<(String, u64), u64>,
    calls: BTreeMap<Label, (u64, u64)>,
}

/// Writes one operation.
pub fn write(one: &Profiled<'_>, tree: &CallTree, out: &mut dyn Write) -> io::Result<()> {
    let functions = functions(tree);
    writeln!(out, "# callgrind format\nversion: 1\ncreator: vmtax")?;
    writeln!(out, "cmd: {} ({} operations)", printable(&title(one)), one.operations)?;
    writeln!(out, "positions: line\nevents: Ir")?;
    writeln!(out, "summary: {}\n", tree.total())?;
    for (label, function) in &functions {
        writeln!(out, "ob={}\nfl=L{}\nfn={}", object(label), label.level, name(label))?;
        if function.lines.is_empty() {
            writeln!(out, "0 0")?;
        }
        for ((file, line), own) in &function.lines {
            if !file.is_empty() {
                writeln!(out, "fi={file}")?;
            }
            writeln!(out, "{line} {own}")?;
        }
        if function.lines.keys().any(|(file, _)| !file.is_empty()) {
            writeln!(out, "fe=L{}", label.level)?;
        }
        for (callee, (calls, total)) in &function.calls {
            writeln!(out, "cob={}\ncfi=L{}\ncfn={}", object(callee), callee.level, name(callee))?;
            writeln!(out, "calls={} 0\n0 {total}", (*calls).max(1))?;
        }
        writeln!(out)?;
    }
    writeln!(out, "totals: {}", tree.total())
}

fn functions(tree: &CallTree) -> BTreeMap<Label, Function> {
    let mut functions: BTreeMap<Label, Function> = BTreeMap::new();
    for node in &tree.nodes {
        let above = node.parent.map(|parent| &tree.nodes[parent].label);
        if node.label.kind == CallKind::Line {
            if let Some(above) = above {
                let line = place(&node.label.name);
                let own =
                    functions.entry(above.clone()).or_default().lines.entry(line).or_default();
                *own = own.saturating_add(node.own);
            }
            continue;
        }
        let function = functions.entry(node.label.clone()).or_default();
        if node.own > 0 {
            let own = function.lines.entry((String::new(), 0)).or_default();
            *own = own.saturating_add(node.own);
        }
        if let Some(above) = above {
            let caller = functions.entry(above.clone()).or_default();
            let (calls, total) = caller.calls.entry(node.label.clone()).or_default();
            *calls = calls.saturating_add(node.calls);
            *total = total.saturating_add(node.total);
        }
    }
    functions
}

/// `arch/x86/kvm/x86.c:123` as file and line.
pub(super) fn place(text: &str) -> (String, u64) {
    let (file, line) = text.rsplit_once(':').unwrap_or((text, ""));
    (printable(file), line.parse().unwrap_or(0))
}

fn object(label: &Label) -> String {
    match label.module.as_str() {
        "" => "kernel".to_owned(),
        module => printable(module),
    }
}

fn name(label: &Label) -> String {
    let name = printable(&label.name);
    match label.kind {
        CallKind::Cause => format!("[{name}]"),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use vmtax_events::{CallRow, Level};

    use super::*;

    #[test]
    fn lines_belong_to_their_function_and_calls_have_the_callees_instructions() {
        let row = |node, parent, kind, name: &str, module: &str, instructions| CallRow {
            workload: "cpuid".to_owned(),
            node,
            parent,
            kind,
            level: 0,
            name: name.to_owned(),
            module: module.to_owned(),
            calls: 2,
            instructions,
        };
        let mut tree = CallTree::default();
        for row in [
            row(0, None, CallKind::Function, "run", "", 5),
            row(1, Some(0), CallKind::Line, "/build/linux/virt/kvm.c:7", "", 4),
            row(2, Some(0), CallKind::Function, "handle", "kvm", 2),
            row(3, Some(2), CallKind::Line, "/build/linux/arch/x86.c:12", "", 30),
        ] {
            tree.push(&row);
        }
        let tree = tree.summed();
        let one = Profiled {
            name: "cpuid".to_owned(),
            level: Level::L1,
            operations: 1,
            begun: 41,
            undone: 0,
            around: 0,
            idle: 0,
            tree: &tree,
        };
        let mut text = Vec::new();
        write(&one, &tree, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let expected = "# callgrind format\nversion: 1\ncreator: vmtax\ncmd: cpuid L1 (1 operations)\n\
             positions: line\nevents: Ir\nsummary: 41\n\n\
             ob=kvm\nfl=L0\nfn=handle\n0 2\nfi=/build/linux/arch/x86.c\n12 30\nfe=L0\n\n\
             ob=kernel\nfl=L0\nfn=run\n0 5\nfi=/build/linux/virt/kvm.c\n7 4\nfe=L0\n\
             cob=kvm\ncfi=L0\ncfn=handle\ncalls=2 0\n0 32\n\n\
             totals: 41\n";
        assert_eq!(text, expected);
    }
}
