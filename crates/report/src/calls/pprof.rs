//! A file for pprof: samples whose value is the instructions of the batch, with the operation as a label.
//!
//! The format is described in pprof's `proto/profile.proto`: names and field numbers are from there. pprof reads it with and without
//! compression. The level precedes the name, which distinguishes functions of equal names.

use std::collections::BTreeMap;
use std::io::{self, Write};

use prost::Message;
use vmtax_analyse::calls::NodeLabel as Node;
use vmtax_analyse::{CallTree, ProfiledOperation};

use super::{frame, leaves, title};
use crate::names::printable;

#[derive(Clone, PartialEq, Message)]
struct PprofProfile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<PprofSample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<PprofFunction>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    r#type: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PprofSample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<PprofLabel>,
}

#[derive(Clone, PartialEq, Message)]
struct PprofLabel {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<PprofLine>,
}

#[derive(Clone, PartialEq, Message)]
struct PprofLine {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PprofFunction {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// A profile whose texts, functions and locations are each there once.
#[derive(Default)]
struct GrowingProfile {
    profile: PprofProfile,
    texts: BTreeMap<String, i64>,
    /// By name and file.
    functions: BTreeMap<(i64, i64), u64>,
    /// By function and line.
    locations: BTreeMap<(u64, i64), u64>,
}

impl GrowingProfile {
    fn text(&mut self, text: &str) -> i64 {
        let table = &mut self.profile.string_table;
        *self.texts.entry(text.to_owned()).or_insert_with(|| {
            table.push(text.to_owned());
            table.len() as i64 - 1
        })
    }

    /// Of a function at a line, or anywhere in it.
    fn location(&mut self, function: &Node, line: Option<&Node>) -> u64 {
        let (file, line) = line.map(|line| place(&line.name)).unwrap_or_default();
        let (name, file) = (self.text(&frame(function)), self.text(&file));
        let functions = &mut self.profile.function;
        let function = *self.functions.entry((name, file)).or_insert_with(|| {
            let id = functions.len() as u64 + 1;
            functions.push(PprofFunction { id, name, system_name: name, filename: file });
            id
        });
        let line = i64::try_from(line).unwrap_or(i64::MAX);
        let locations = &mut self.profile.location;
        *self.locations.entry((function, line)).or_insert_with(|| {
            let id = locations.len() as u64 + 1;
            locations.push(Location { id, line: vec![PprofLine { function_id: function, line }] });
            id
        })
    }
}

pub fn write(all: &[(ProfiledOperation<'_>, CallTree)], out: &mut dyn Write) -> io::Result<()> {
    let mut growing = GrowingProfile::default();
    // The first text is empty.
    growing.text("");
    let (instructions, count) = (growing.text("instructions"), growing.text("count"));
    growing.profile.sample_type.push(ValueType { r#type: instructions, unit: count });
    let key = growing.text("operation");
    for (one, tree) in all {
        let name = printable(&title(one));
        let comment = growing.text(&format!("{name}: {} operations", one.operations));
        growing.profile.comment.push(comment);
        let operation = growing.text(&name);
        for (stack, node) in leaves(tree) {
            let mut location_id: Vec<u64> = Vec::with_capacity(stack.len());
            let mut line = None;
            // From the leaf down.
            for label in stack.iter().rev() {
                if label.kind.is_part() {
                    line = Some(*label);
                } else {
                    location_id.push(growing.location(label, line.take()));
                }
            }
            growing.profile.sample.push(PprofSample {
                location_id,
                value: vec![i64::try_from(node.own).unwrap_or(i64::MAX)],
                label: vec![PprofLabel { key, str: operation }],
            });
        }
    }
    out.write_all(&growing.profile.encode_to_vec())
}

/// `arch/x86/kvm/x86.c:123` as file and line.
fn place(text: &str) -> (String, u64) {
    let (file, line) = text.rsplit_once(':').unwrap_or((text, ""));
    (printable(file), line.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use vmtax_events::{CallKind, CallRow, Level};

    use super::*;

    #[test]
    fn samples_add_up_and_have_functions_and_lines() {
        let row = |node, parent, kind, name: &str, instructions| CallRow {
            workload: "cpuid".to_owned(),
            node,
            parent,
            kind,
            level: 0,
            name: name.to_owned(),
            module: String::new(),
            calls: 1,
            instructions,
        };
        let mut tree = CallTree::default();
        for row in [
            row(0, None, CallKind::Function, "run", 5),
            row(1, Some(0), CallKind::Function, "handle", 2),
            row(2, Some(1), CallKind::Line, "virt/kvm.c:12", 30),
            row(3, Some(0), CallKind::Line, "virt/kvm.c:7", 4),
        ] {
            tree.push(&row);
        }
        let tree = tree.summed();
        let one = ProfiledOperation {
            cell: None,
            name: "cpuid".to_owned(),
            level: Level::L1,
            operations: 1,
            begun: 41,
            undone: 0,
            around: 0,
            idle: 0,
            waited: None,
            tree: &tree,
        };
        let mut bytes = Vec::new();
        write(&[(one, tree.clone())], &mut bytes).unwrap();
        let profile = PprofProfile::decode(&bytes[..]).unwrap();
        let text = |at: i64| profile.string_table[at as usize].as_str();
        assert_eq!((text(0), text(profile.comment[0])), ("", "cpuid L1: 1 operations"));
        assert_eq!(text(profile.sample_type[0].r#type), "instructions");
        let frame = |id: &u64| {
            let line = &profile.location[*id as usize - 1].line[0];
            let function = &profile.function[line.function_id as usize - 1];
            format!("{} {}:{}", text(function.name), text(function.filename), line.line)
        };
        let shown: Vec<String> = profile
            .sample
            .iter()
            .map(|sample| {
                let stack: Vec<String> = sample.location_id.iter().map(frame).collect();
                let label = text(sample.label[0].str);
                format!("{label}: {} = {}", stack.join(" < "), sample.value[0])
            })
            .collect();
        assert_eq!(
            shown,
            [
                "cpuid L1: L0 run :0 = 5",
                "cpuid L1: L0 handle :0 < L0 run :0 = 2",
                "cpuid L1: L0 handle virt/kvm.c:12 < L0 run :0 = 30",
                "cpuid L1: L0 run virt/kvm.c:7 = 4",
            ]
        );
    }
}
