//! The parts of a matrix as one run.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use vmtax_cli::exit::{Code, fail};
use vmtax_events::{KeptRows, Losses, Recording};
use vmtax_runs::{create_options, read_fault, write_fault};
use vmtax_store::{Claim, Run, RunWriter};

/// Writes the parts of one matrix into one run folder.
///
/// # Errors
/// When a part cannot be read, is unfinished or is of another matrix; when the run cannot be written.
pub fn merge(runs: &[PathBuf], output: &Path) -> anyhow::Result<()> {
    let claim = Claim::new(output).map_err(write_fault)?;
    let mut parts = Vec::new();
    for path in runs {
        parts.push(part(path)?);
    }
    let mut seen: HashSet<(String, String, u32)> = HashSet::new();
    for (path, part) in runs.iter().zip(&parts) {
        let cells: HashSet<_> = part
            .rows
            .samples
            .iter()
            .map(|s| (s.workload.clone(), s.category.clone(), s.repeat))
            .collect();
        if let Some((workload, category, repeat)) = cells.iter().find(|cell| seen.contains(*cell)) {
            let cell = format!("{workload} in {category}, repeat {repeat}");
            return fail(
                Code::Data,
                format!(
                    "{}: holds {cell}, which another part has too; give each part once",
                    path.display()
                ),
            );
        }
        seen.extend(cells);
    }
    let first = &parts[0];
    if let Some(other) = parts.iter().position(|part| part.matrix != first.matrix) {
        let (one, two) = (runs[0].display(), runs[other].display());
        return fail(Code::Data, format!("{one} and {two}: are parts of different matrices"));
    }
    if let Some(other) =
        parts.iter().position(|part| part.recording.emulated != first.recording.emulated)
    {
        let (one, two) = (runs[0].display(), runs[other].display());
        return fail(
            Code::Data,
            format!(
                "{one} and {two}: ran on different accelerators; merge only parts with the same"
            ),
        );
    }
    write(claim, &parts)
}

fn write(claim: Claim, parts: &[RunPart]) -> anyhow::Result<()> {
    let labels = parts[0].matrix.iter().map(|name| ("matrix".to_owned(), name.clone()));
    let options = create_options(1_000_000_000, labels);
    let mut writer = RunWriter::begin(claim, &options).map_err(write_fault)?;
    let mut losses = Losses::default();
    let mut hosts: BTreeMap<String, usize> = BTreeMap::new();
    let mut recording = parts[0].recording.clone();
    for part in parts {
        writer.rows(&part.rows).map_err(write_fault)?;
        // A cell's exits are those of a VM whose number is the cell's in the whole matrix: none is in two parts.
        let known: HashSet<u32> = recording.vms.iter().map(|vm| vm.id).collect();
        let vms = part.recording.vms.iter().filter(|vm| !known.contains(&vm.id));
        recording.vms.extend(vms.cloned());
        if part.recording.coverage != Default::default() {
            recording.coverage = part.recording.coverage;
        }
        losses.merge(&part.losses);
        *hosts
            .entry(format!(
                "{} ({}, {})",
                part.recording.hostname, part.recording.cpu, part.recording.kernel
            ))
            .or_default() += 1;
    }
    losses.notes.sort();
    losses.notes.dedup();
    if hosts.len() > 1 {
        let names: Vec<String> = hosts.into_keys().collect();
        losses.notes.push(format!(
            "its parts ran on {} systems, all categories of a workload on the same one; do not compare workloads with each other: {}",
            names.len(),
            names.join("; ")
        ));
    }
    writer.finish(&recording, &losses).map_err(|e| write_fault(e).into())
}

struct RunPart {
    recording: Recording,
    losses: Losses,
    matrix: Option<String>,
    rows: KeptRows,
}

fn part(path: &Path) -> anyhow::Result<RunPart> {
    let run = Run::open(path).map_err(|e| read_fault(&e))?;
    if !run.is_complete() {
        return fail(
            Code::Data,
            format!(
                "{}: is not finished; continue it with `vmtax bench run --resume`",
                path.display()
            ),
        );
    }
    let mut rows = KeptRows::default();
    let read = run.read(&mut rows).map_err(|e| read_fault(&e))?;
    if read.damaged > 0 {
        return fail(
            Code::Data,
            format!("{}: is damaged: {}", path.display(), read.losses.truncated.join("; ")),
        );
    }
    let manifest = run.manifest();
    Ok(RunPart {
        recording: manifest.recording.clone(),
        losses: read.losses,
        matrix: manifest.labels.get("matrix").cloned(),
        rows,
    })
}
