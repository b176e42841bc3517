//! A run folder while a matrix runs: the cells that it has, and adding a cell.
//!
//! ```text
//! RUN/
//!   matrix.toml           the matrix file, and the selection of --only and --shard
//!   facts/CATEGORY.json   facts of each system
//!   cells/NNNN-*.txt      output of each cell's programs, synced before the cell is listed
//!   bench/NNNN.parquet    a segment for each cell; a listed segment is a finished cell
//!   exits/NNNN.parquet    the cell's recorded exits, as those of a VM with its name
//! ```

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use vmtax_analyse::bench::{FAILED, FAULTS, FAULTS_OF_OPERATION, NETWORK_PATH, TURNS_OF_OPERATION};
use vmtax_analyse::reasons::vm_name;
use vmtax_capture::program::ProgramReading;
use vmtax_capture::program::builtin::ROUNDS;
use vmtax_cli::exit::{Code, CodedError, fail};
use vmtax_cli::output::cannot_write;
use vmtax_durable::FileAccess;
use vmtax_events::{Better, CallRow, KeptRows, Losses, Recording, RowSink, Sample, Vm};
use vmtax_guest::job::{JobCounter, JobOutcome};
use vmtax_guest::order::KvmCounters;
use vmtax_lab::OperationProfile;
use vmtax_lab::network::Passage;
use vmtax_runs::lab::rows_of_passage;
use vmtax_runs::{create_options, read_fault, write_fault};
use vmtax_store::{Error, MANIFEST, Run, RunWriter};

use crate::category::SystemFacts;
use crate::describe;
use crate::matrix::Matrix;
use crate::recorded::RecordedRows;
use crate::request::BenchRequest;

const MATRIX: &str = "matrix.toml";
const FACTS: &str = "facts";
/// Most bytes of a run's copy of its matrix, or of the facts of a category.
const MOST: u64 = 16 << 20;
const CELLS: &str = "cells";

/// Results of a cell.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    pub(crate) values: Vec<ProgramReading>,
    pub(crate) counters: Vec<JobCounter>,
    /// KVM's page faults during the measured run of the client, and the number of operations.
    pub(crate) mapped: Option<(KvmCounters, Option<f64>)>,
    /// Exits that were recorded, of each VM.
    pub(crate) recorded: Vec<ClientExits>,
    /// A recording to keep as it is.
    pub(crate) trace: Option<Vec<u8>>,
    /// The call trees of so many operations, or why there are none.
    pub(crate) profile: Option<(u32, Result<OperationProfile, String>)>,
}

/// Exits of the recorded run of a client in one VM.
#[derive(Debug)]
pub(crate) struct ClientExits {
    pub(crate) recorded: RecordedRows,
    pub(crate) operations: Option<f64>,
    pub(crate) elapsed_ns: u64,
    /// Of the VM with the client: its number and its name among categories.
    pub(crate) peer: Option<(u32, String)>,
    /// How often threads that serve queues got a processor, for each operation.
    pub(crate) turns: Vec<(&'static str, f64)>,
}

impl Readings {
    /// Of traffic with a VM of QEMU on an emulated host: exits are the first metric.
    pub(crate) fn of_passage(
        passage: Passage,
        (workload, repeat): (&str, u32),
        numbers: [u32; 2],
    ) -> anyhow::Result<Readings> {
        let (operations, elapsed) = (f64::from(passage.count), passage.elapsed_ns as f64);
        let mut readings = Readings::default();
        for (number, vm) in numbers.into_iter().zip(&passage.vms) {
            let name = vm_name(workload, &vm.category, repeat);
            let rows = KeptRows::default();
            let (read, turns) = rows_of_passage(&passage, vm, (number, &name), rows)?;
            let recorder_lost = read.losses.recorder_lost + passage.lost;
            let losses = Losses { recorder_lost, ..read.losses };
            let is_peer = !readings.recorded.is_empty();
            let turns = [
                (Sample::VMM_TURNS, turns.vmm),
                (Sample::VHOST_TURNS, turns.vhost),
                (Sample::IO_TURNS, turns.io),
            ];
            readings.recorded.push(ClientExits {
                recorded: RecordedRows { rows: read.rows, losses, coverage: read.facts.coverage },
                operations: Some(operations),
                elapsed_ns: passage.elapsed_ns,
                peer: is_peer.then(|| (number, vm.category.clone())),
                turns: turns.map(|(metric, turns)| (metric, turns as f64 / operations)).to_vec(),
            });
        }
        readings.values = [(ROUNDS, "count", operations), (Sample::ELAPSED, "ns", elapsed)]
            .map(|(metric, unit, value)| ProgramReading::new(metric, unit, value, Better::Neither))
            .to_vec();
        readings.profile = passage.profile.map(|profile| (passage.count, profile));
        readings.trace = Some(passage.trace);
        Ok(readings)
    }
}

#[derive(Clone)]
pub(crate) struct NamedCell<'a> {
    /// Position in this part.
    pub(crate) index: usize,
    /// Number in the whole matrix.
    pub(crate) number: u32,
    pub(crate) workload: &'a str,
    pub(crate) category: &'a str,
    pub(crate) repeat: u32,
    /// The path between its client and its server, if they are on different systems.
    pub(crate) path: Option<String>,
}

pub(crate) struct BenchSession {
    folder: PathBuf,
    writer: RunWriter,
    done: HashSet<(String, String, u32)>,
    /// Notes on what was not recorded.
    notes: BTreeSet<String>,
    /// Losses of the recorder, without its notes.
    losses: Losses,
    recording: Recording,
}

impl BenchSession {
    /// Creates a run, or continues one.
    pub(crate) fn open(
        folder: &Path,
        text: &str,
        request: &BenchRequest,
        matrix: &Matrix,
    ) -> anyhow::Result<BenchSession> {
        // The run may have been stopped before it was created.
        let resumes = request.resume && folder.join(MANIFEST).exists();
        let options = create_options(1_000_000_000, labels(request, matrix));
        let mut notes: BTreeSet<String> = describe::not_captured(matrix).into_iter().collect();
        let mut recording = describe::recording(matrix);
        let mut losses = Losses::default();
        // The writer holds the lock, so nothing is read or written before.
        let (writer, done) = if resumes {
            let writer = RunWriter::resume(folder).map_err(|e| cannot_resume(folder, &e))?;
            let run = Run::open(folder).map_err(|e| read_fault(&e))?;
            let mut done = DoneCells::default();
            run.read(&mut done).map_err(|e| read_fault(&e))?;
            losses = run.manifest().losses.clone();
            notes.extend(losses.notes.drain(..));
            let Recording { vms, coverage, .. } = &run.manifest().recording;
            (recording.vms, recording.coverage) = (vms.clone(), *coverage);
            (writer, done.0)
        } else {
            (RunWriter::create(folder, &options).map_err(|e| exists(folder, &e))?, HashSet::new())
        };
        check_matrix(folder, &described(text, request))?;
        for name in [FACTS, CELLS] {
            let path = folder.join(name);
            match fs::create_dir(&path) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(cannot_write(&path.display().to_string(), &e).into());
                }
                _ => {}
            }
        }
        let folder = folder.to_owned();
        let mut session = BenchSession { folder, writer, done, notes, losses, recording };
        session.describe();
        Ok(session)
    }

    /// The console file of the running VM.
    pub(crate) fn console(&self) -> PathBuf {
        self.folder.join("console.txt")
    }

    /// Whether a cell is done.
    pub(crate) fn holds(&self, workload: &str, category: &str, repeat: u32) -> bool {
        self.done.contains(&(workload.to_owned(), category.to_owned(), repeat))
    }

    /// Facts of a category.
    pub(crate) fn facts(&self, name: &str) -> anyhow::Result<Option<SystemFacts>> {
        let path = self.folder.join(FACTS).join(format!("{}.json", file_name(name)));
        match vmtax_durable::read_small(&path, MOST) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(vmtax_cli::output::cannot_read(&path.display().to_string(), &e).into()),
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(facts) => Ok(Some(facts)),
                Err(e) => fail(
                    Code::Data,
                    format!(
                        "{}: is damaged ({e}); remove it, and it is written again",
                        path.display()
                    ),
                ),
            },
        }
    }

    pub(crate) fn keep_facts(&mut self, name: &str, facts: &SystemFacts) -> anyhow::Result<()> {
        let path = self.folder.join(FACTS).join(format!("{}.json", file_name(name)));
        let mut bytes = serde_json::to_vec_pretty(facts)?;
        bytes.push(b'\n');
        write_private(&path, &bytes)
    }

    /// Adds a cell to the run.
    pub(crate) fn save(
        &mut self,
        cell: NamedCell<'_>,
        outcome: &JobOutcome,
        readings: Result<Readings, String>,
    ) -> anyhow::Result<()> {
        let NamedCell { index, number, workload, category, repeat, path } = cell;
        let name =
            format!("{index:05}-{}-{}-{repeat}.txt", file_name(workload), file_name(category));
        let problem = readings.as_ref().err().map(String::as_str);
        write_private(&self.folder.join(CELLS).join(&name), &transcript(outcome, problem))?;
        let sample = |metric: &str, unit: &str, value: f64, better: Better| Sample {
            workload: workload.to_owned(),
            category: category.to_owned(),
            repeat,
            metric: metric.to_owned(),
            unit: unit.to_owned(),
            value,
            better,
        };
        let mut samples = Vec::new();
        match readings {
            Ok(readings) => {
                let path = path.map(|path| sample(NETWORK_PATH, &path, 1.0, Better::Neither));
                samples.extend(path);
                let values =
                    readings.values.iter().map(|r| sample(&r.metric, &r.unit, r.value, r.better));
                // Of traffic nothing but exits is measured.
                let (before, after) = match readings.trace {
                    Some(_) => (Vec::new(), values.collect()),
                    None => (values.collect(), Vec::new()),
                };
                samples.extend(before);
                for exits in readings.recorded {
                    let ClientExits { recorded, operations, elapsed_ns, peer, turns } = exits;
                    let (id, category) = peer.unwrap_or((number, category.to_owned()));
                    let name = (workload, &*category, repeat);
                    samples.extend(recorded.sample(name, operations, elapsed_ns));
                    samples.extend(turns.into_iter().map(|(metric, turns)| Sample {
                        category: category.clone(),
                        ..sample(metric, TURNS_OF_OPERATION, turns, Better::Neither)
                    }));
                    let name = vm_name(workload, &category, repeat);
                    self.keep(recorded, Vm { id, name, inferred: false, ..Vm::default() })?;
                }
                samples.extend(after);
                if let Some(trace) = readings.trace {
                    let path = self.folder.join(CELLS).join(name.replace(".txt", ".dat"));
                    write_private(&path, &trace)?;
                }
                match readings.profile {
                    None => {}
                    Some((count, Ok(profile))) => {
                        let figures = profile.figures(count).into_iter();
                        samples.extend(figures.map(|(metric, unit, value)| {
                            sample(metric, unit, value as f64, Better::Neither)
                        }));
                        let name = vm_name(workload, category, repeat);
                        for row in profile.rows {
                            let row = CallRow { workload: name.clone(), ..row };
                            self.writer.call(&row).map_err(write_fault)?;
                        }
                    }
                    Some((_, Err(problem))) => {
                        self.notes.insert(format!(
                            "no call trees of {workload} in {category}: {problem}"
                        ));
                    }
                }
                if let Some((counters, operations)) = readings.mapped {
                    samples.extend(mapped(counters, operations, &sample));
                }
                for counter in readings.counters {
                    match counter.count {
                        Ok(count) => samples.push(sample(
                            &counter.event,
                            "count",
                            count as f64,
                            Better::Neither,
                        )),
                        Err(reason) => {
                            self.notes.insert(format!(
                                "{} in {category}: not available: {reason}",
                                counter.event
                            ));
                        }
                    }
                }
            }
            Err(_) => samples.push(sample(FAILED, "count", 1.0, Better::Neither)),
        }
        self.describe();
        for sample in &samples {
            self.writer.sample(sample).map_err(write_fault)?;
        }
        self.writer.segment().map_err(write_fault)?;
        self.done.insert((workload.to_owned(), category.to_owned(), repeat));
        Ok(())
    }

    /// The recorded exits of a cell, as those of a separate VM.
    fn keep(&mut self, recorded: RecordedRows, vm: Vm) -> anyhow::Result<()> {
        self.writer.rows(&recorded.rows).map_err(write_fault)?;
        self.recording.coverage = recorded.coverage;
        // A run killed before may have left this file.
        self.recording.vms.retain(|known| known.id != vm.id);
        self.recording.vms.push(vm);
        self.losses.merge(&recorded.losses);
        self.notes.extend(self.losses.notes.drain(..));
        Ok(())
    }

    pub(crate) fn note(&mut self, note: String) {
        self.notes.insert(note);
    }

    /// Updates the facts written with the next segment.
    fn describe(&mut self) {
        self.writer.describe(&self.recording, &self.losses());
    }

    fn losses(&self) -> Losses {
        Losses { notes: self.notes.iter().cloned().collect(), ..self.losses.clone() }
    }

    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let losses = self.losses();
        self.writer.finish(&self.recording, &losses).map_err(|e| write_fault(e).into())
    }
}

/// KVM's statistics as samples: page faults of an operation, or of the whole run of the client; and pages mapped by it.
fn mapped(
    counters: KvmCounters,
    operations: Option<f64>,
    sample: &dyn Fn(&str, &str, f64, Better) -> Sample,
) -> Vec<Sample> {
    let faults = counters.faults as f64;
    let (unit, faults) = match operations {
        Some(operations) if operations > 0.0 => (FAULTS_OF_OPERATION, faults / operations),
        _ => ("faults", faults),
    };
    let mut samples = vec![sample(FAULTS, unit, faults, Better::Neither)];
    let sizes = ["pages-4k", "pages-2m", "pages-1g"].into_iter().zip(counters.pages);
    samples.extend(sizes.map(|(name, pages)| sample(name, "pages", pages as f64, Better::Neither)));
    samples
}

/// Checks that a continued run has the same matrix.
fn check_matrix(folder: &Path, what: &str) -> anyhow::Result<()> {
    let path = folder.join(MATRIX);
    match vmtax_durable::read_small_text(&path, MOST) {
        Ok(before) if before == what => Ok(()),
        Ok(_) => {
            let name = folder.display();
            fail(
                Code::Usage,
                format!(
                    "{name}: was begun with another matrix, --only or --shard; give the same, or another folder"
                ),
            )
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => write_private(&path, what.as_bytes()),
        Err(e) => Err(vmtax_cli::output::cannot_read(&path.display().to_string(), &e).into()),
    }
}

/// Why a run cannot be continued.
fn cannot_resume(folder: &Path, error: &Error) -> CodedError {
    match error {
        Error::Exists { .. } => CodedError::new(
            Code::Usage,
            format!("{}: is finished; there is nothing to continue", folder.display()),
        ),
        Error::Busy { .. } => CodedError::new(Code::Output, error.to_string()),
        other => read_fault(other),
    }
}

/// The error for a folder that holds a run already.
fn exists(folder: &Path, error: &Error) -> CodedError {
    match error {
        Error::Exists { found, .. } if found.contains("run") => CodedError::new(
            Code::Output,
            format!(
                "{}: {found}; continue it with --resume, or name another folder",
                folder.display()
            ),
        ),
        other => CodedError::new(Code::Output, other.to_string()),
    }
}

/// The matrix file and the selection.
fn described(text: &str, request: &BenchRequest) -> String {
    let mut head = String::new();
    if !request.only.is_empty() {
        head.push_str(&format!("# --only {}\n", request.only.join(",").replace(['\n', '\r'], " ")));
    }
    if let Some(shard) = request.shard {
        head.push_str(&format!("# --shard {}/{}\n", shard.number, shard.of));
    }
    head + text
}

fn labels(request: &BenchRequest, matrix: &Matrix) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([("matrix".to_owned(), matrix.name.clone())]);
    if let Some(shard) = request.shard {
        labels.insert("shard".to_owned(), format!("{}/{}", shard.number, shard.of));
    }
    if matrix.target.processors > 1 {
        labels.insert("processors".to_owned(), matrix.target.processors.to_string());
    }
    for workload in &matrix.workloads {
        if let Some(version) = describe::version(workload) {
            labels.insert(format!("version of {}", workload.name), version);
        }
    }
    labels
}

/// A name as part of a file name.
fn file_name(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_+.".contains(c) { c } else { '_' };
    name.chars().map(plain).collect()
}

/// Output of a cell's programs.
fn transcript(outcome: &JobOutcome, problem: Option<&str>) -> Vec<u8> {
    let mut text = Vec::new();
    let code = outcome.code.map_or("none".to_owned(), |code| code.to_string());
    let head = format!(
        "problem: {}\nexit code: {code}\nelapsed: {} ns\n",
        problem.unwrap_or("none"),
        outcome.elapsed_ns
    );
    text.extend(head.bytes());
    for (name, part) in
        [("output", &outcome.stdout), ("errors", &outcome.stderr), ("server", &outcome.server)]
    {
        text.extend(format!("\n--- {name} ---\n").bytes());
        text.extend(part);
    }
    text
}

fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    vmtax_durable::write(path, FileAccess::Private, bytes)
        .map_err(|e| cannot_write(&path.display().to_string(), &e).into())
}

/// Cells of a run.
#[derive(Default)]
struct DoneCells(HashSet<(String, String, u32)>);

impl RowSink for DoneCells {
    fn sample(&mut self, sample: &Sample) {
        self.0.insert((sample.workload.clone(), sample.category.clone(), sample.repeat));
    }
}
