//! Runs of the shipped recordings, the ledgers that they should come to, and the program.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use vmtax_analyse::Accountant;
use vmtax_capture::import::{ImportFormat, ImportOptions};
use vmtax_capture::source::RandomFile;
use vmtax_capture::{Error, ImportSource, Sink, pipeline};
use vmtax_events::{AccessRow, Event, ExitRow, Recording, RowSink, TimeRow};
use vmtax_store::{CreateOptions, RunWriter};

/// What is to be said of a run besides its rows.
#[derive(Clone, Copy)]
pub(crate) struct SaidRun<'a> {
    pub(crate) host: &'a str,
    pub(crate) kernel: &'a str,
    pub(crate) labels: &'a [(&'a str, &'a str)],
    pub(crate) emulated: Option<&'a str>,
}

pub(crate) const PLAIN: SaidRun<'static> =
    SaidRun { host: "h", kernel: "6.1", labels: &[], emulated: None };

/// A recording of a nested guest on an emulated AMD host.
pub(crate) const NESTED: &str = "amd-nested/input/v7.trace.dat";
/// A recording of an emulated Intel host.
pub(crate) const INTEL: &str = "intel-cpuid/input/intel-v7-zstd.trace.dat";

struct KeepRows {
    writer: RunWriter,
    exits: Vec<ExitRow>,
    time: Vec<TimeRow>,
}

impl RowSink for KeepRows {
    fn exit(&mut self, row: &ExitRow) {
        self.writer.exit(row).unwrap();
        self.exits.push(row.clone());
    }
    fn access(&mut self, row: &AccessRow) {
        self.writer.access(row).unwrap();
    }
    fn time(&mut self, row: &TimeRow) {
        self.writer.time(row).unwrap();
        self.time.push(*row);
    }
}

struct RecordedCount(Accountant<KeepRows>);

impl Sink for &mut RecordedCount {
    fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        for event in events {
            self.0.sink_mut().writer.event(event).unwrap();
            self.0.event(event);
        }
        Ok(())
    }
    fn counted(&mut self, row: &ExitRow) -> Result<(), Error> {
        self.0.counted(row);
        Ok(())
    }
    fn thread_name(&mut self, _: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.0.thread_name(tid, name);
        Ok(())
    }
}

pub(crate) struct CountedImport {
    pub(crate) exits: Vec<ExitRow>,
    pub(crate) time: Vec<TimeRow>,
}

/// Imports a recording into a run that says this of itself.
pub(crate) fn import(recording: &str, run: &Path, said: SaidRun<'_>) -> CountedImport {
    std::fs::create_dir_all(run.parent().unwrap()).unwrap();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../captures").join(recording);
    let file = RandomFile::new(File::open(path).unwrap()).unwrap();
    let interval_ns = 1_000_000;
    let labels = said.labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let options =
        CreateOptions { interval_ns, labels, raw_events: true, ..CreateOptions::default() };
    let writer = RunWriter::create(run, &options).unwrap();
    let keep = KeepRows { writer, exits: Vec::new(), time: Vec::new() };
    let mut count = RecordedCount(Accountant::new(
        vmtax_analyse::AccountOptions { interval_ns, ..Default::default() },
        keep,
    ));
    let source = ImportSource::Random(&file);
    let imported =
        pipeline::run(ImportFormat::TraceDat, source, ImportOptions::default(), &mut count)
            .unwrap();
    let (keep, vms, _) = count.0.finish();
    let recording = Recording {
        hostname: said.host.to_owned(),
        kernel: said.kernel.to_owned(),
        emulated: said.emulated.map(str::to_owned),
        vms,
        ..imported.recording
    };
    keep.writer.finish(&recording, &imported.losses).unwrap();
    CountedImport { exits: keep.exits, time: keep.time }
}

/// The program, in a folder, with a time zone and a terminal of its own.
pub(crate) fn program(folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmtax-fleet"));
    command.current_dir(folder).stdin(Stdio::null());
    command
}

pub(crate) fn run(folder: &Path, args: &[&str]) -> Output {
    program(folder).args(args).output().unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The rows of a query, as lists in the order of its columns; it must succeed without a word.
pub(crate) fn rows(folder: &Path, args: &[&str]) -> Vec<Vec<Value>> {
    let mut all = vec!["query", "--format", "json"];
    all.extend(args);
    let output = run(folder, &all);
    assert!(output.status.success() && output.stderr.is_empty(), "{args:?}: {}", stderr(&output));
    rows_of(&output)
}

pub(crate) fn rows_of(output: &Output) -> Vec<Vec<Value>> {
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["schema"], "vmtax-query-1");
    let columns = answer["columns"].as_array().unwrap();
    let names: Vec<&str> = columns.iter().map(|c| c["name"].as_str().unwrap()).collect();
    let row = |row: &Value| names.iter().map(|name| row[name].clone()).collect();
    answer["rows"].as_array().unwrap().iter().map(row).collect()
}

/// The command fails with this code, and its one sentence has these words.
pub(crate) fn refuses(folder: &Path, args: &[&str], code: i32, words: &[&str]) {
    let output = run(folder, args);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
    assert!(output.stdout.is_empty(), "{args:?}");
    assert!(said.starts_with("vmtax: ") && !said.contains("panicked"), "{args:?}: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?}: {word:?} is not in {said:?}");
    }
}
