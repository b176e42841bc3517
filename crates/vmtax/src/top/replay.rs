//! A run or a recording as frames.

use std::path::Path;

use vmtax_analyse::{Frames, Keep, RowSink};
use vmtax_events::{AccessRow, ExitRow, Losses, Recording, TimeRow};
use vmtax_report::losses;
use vmtax_report::tui::{Facts, Model, Source};

use crate::cli::ReadingArgs;
use crate::convert;
use crate::input::{Input, run_fault};
use crate::report::check_reading;

pub(super) fn model(path: &Path, reading: &ReadingArgs) -> anyhow::Result<Model> {
    let input = Input::open(path)?;
    check_reading(reading, &input)?;
    let (frames, recording, losses, complete) = match input {
        Input::Run(run) => {
            let manifest = run.manifest();
            let mut rows = ToFrames(Frames::new(Keep::All, manifest.interval_ns));
            let read = run.read(&mut rows).map_err(|e| run_fault(&e))?;
            (rows.0, manifest.recording.clone(), read.losses, run.is_complete())
        }
        Input::Recording(recording) => {
            let rows = ToFrames(Frames::new(Keep::All, reading.interval_ns()));
            let converted = convert::run(recording, reading, rows)?;
            (converted.rows.0, converted.facts, converted.losses, true)
        }
    };
    Ok(Model::new(Source::Replay, facts(recording, &losses, complete), frames))
}

fn facts(recording: Recording, lost: &Losses, complete: bool) -> Facts {
    Facts { recording, losses: losses::of(lost, complete) }
}

/// Rows on their way into frames.
struct ToFrames(Frames);

impl RowSink for ToFrames {
    fn exit(&mut self, row: &ExitRow) {
        self.0.exit(row);
    }

    fn access(&mut self, _: &AccessRow) {}

    fn time(&mut self, row: &TimeRow) {
        self.0.time(row);
    }
}

impl convert::Rows for ToFrames {}

impl vmtax_store::RowSink for ToFrames {
    fn exit(&mut self, row: &ExitRow) {
        self.0.exit(row);
    }

    fn access(&mut self, _: &AccessRow) {}

    fn time(&mut self, row: &TimeRow) {
        self.0.time(row);
    }
}
