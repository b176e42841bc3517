//! `vmtax bench merge`: the parts of a matrix as one run.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use vmtax_events::{Losses, Recording, Sample};
use vmtax_store::{CreateOptions, Run, Writer};

use super::args::MergeArgs;
use super::compare;
use crate::exit::{Code, fail};
use crate::import::output_fault;
use crate::input::run_fault;

pub(crate) fn run(args: &MergeArgs) -> anyhow::Result<()> {
    let mut parts = Vec::new();
    for path in &args.runs {
        parts.push(part(path)?);
    }
    let mut seen: HashSet<(String, String, u32)> = HashSet::new();
    for (path, part) in args.runs.iter().zip(&parts) {
        let cells: HashSet<_> = part
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
        let (one, two) = (args.runs[0].display(), args.runs[other].display());
        return fail(Code::Data, format!("{one} and {two}: are parts of different matrices"));
    }
    if let Some(other) =
        parts.iter().position(|part| part.recording.emulated != first.recording.emulated)
    {
        let (one, two) = (args.runs[0].display(), args.runs[other].display());
        return fail(
            Code::Data,
            format!("{one} and {two}: ran on different accelerators, so they are no one run"),
        );
    }
    write(args, &parts)?;
    compare::show_run(&args.output)
}

fn write(args: &MergeArgs, parts: &[Part]) -> anyhow::Result<()> {
    let options = CreateOptions {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
        interval_ns: 1_000_000_000,
        raw_events: false,
        labels: parts[0].matrix.iter().map(|name| ("matrix".to_owned(), name.clone())).collect(),
    };
    let mut writer = Writer::create(&args.output, &options).map_err(output_fault)?;
    let mut losses = Losses::default();
    let mut hosts: BTreeMap<String, usize> = BTreeMap::new();
    for part in parts {
        for sample in &part.samples {
            writer.sample(sample).map_err(output_fault)?;
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
            "its parts ran on {} systems: each workload's categories ran on one of them; compare no workload with another: {}",
            names.len(),
            names.join("; ")
        ));
    }
    writer.finish(&parts[0].recording, &losses).map_err(|e| output_fault(e).into())
}

/// One part.
struct Part {
    recording: Recording,
    losses: Losses,
    matrix: Option<String>,
    samples: Vec<Sample>,
}

fn part(path: &Path) -> anyhow::Result<Part> {
    let run = Run::open(path).map_err(|e| run_fault(&e))?;
    if !run.is_complete() {
        return fail(
            Code::Data,
            format!(
                "{}: is not finished; go on with it by `vmtax bench run --resume`",
                path.display()
            ),
        );
    }
    let mut samples = Samples::default();
    let read = run.read(&mut samples).map_err(|e| run_fault(&e))?;
    if read.damaged > 0 {
        return fail(
            Code::Data,
            format!("{}: is damaged: {}", path.display(), read.losses.truncated.join("; ")),
        );
    }
    let manifest = run.manifest();
    Ok(Part {
        recording: manifest.recording.clone(),
        losses: read.losses,
        matrix: manifest.labels.get("matrix").cloned(),
        samples: samples.0,
    })
}

#[derive(Default)]
struct Samples(Vec<Sample>);

impl vmtax_store::RowSink for Samples {
    fn exit(&mut self, _: &vmtax_events::ExitRow) {}
    fn access(&mut self, _: &vmtax_events::AccessRow) {}
    fn time(&mut self, _: &vmtax_events::TimeRow) {}
    fn sample(&mut self, sample: &Sample) {
        self.0.push(sample.clone());
    }
}
