//! A file for speedscope.app: a sampled profile for each operation, whose weights are the instructions of its batch.
//!
//! The format is described by `https://www.speedscope.app/file-format-schema.json`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};
use vmtax_analyse::{CallTree, Profiled};

use super::{frame, leaves, title};
use crate::names::printable;

/// Writes all operations.
pub fn write(all: &[(Profiled<'_>, CallTree)], out: &mut dyn Write) -> io::Result<()> {
    let mut frames: BTreeMap<String, usize> = BTreeMap::new();
    let mut profiles: Vec<Value> = Vec::new();
    for (one, tree) in all {
        let (mut samples, mut weights, mut sum) = (Vec::new(), Vec::new(), 0_u64);
        for (stack, node) in leaves(tree) {
            let numbers = stack.iter().map(|label| {
                let next = frames.len();
                *frames.entry(frame(label)).or_insert(next)
            });
            samples.push(numbers.collect::<Vec<usize>>());
            weights.push(node.own);
            sum = sum.saturating_add(node.own);
        }
        let name = format!("{} ({} operations)", printable(&title(one)), one.operations);
        profiles.push(json!({
            "type": "sampled", "name": name, "unit": "none", "startValue": 0, "endValue": sum,
            "samples": samples, "weights": weights,
        }));
    }
    let mut names = vec![String::new(); frames.len()];
    frames.into_iter().for_each(|(name, number)| names[number] = name);
    let frames: Vec<Value> = names.into_iter().map(|name| json!({ "name": name })).collect();
    let document = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "vmtax",
        "shared": { "frames": frames },
        "profiles": profiles,
    });
    serde_json::to_writer(&mut *out, &document)?;
    writeln!(out)
}
