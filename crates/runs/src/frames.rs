//! A run or a recording as frames.

use std::path::Path;

use vmtax_analyse::{Frames, Keep};
use vmtax_events::{ExitRow, Losses, PreemptedRow, Recording, RowSink, TimeRow};

use crate::ledger::check_reading;
use crate::{Input, Reading, convert, read_fault};

/// The frames of an input, and its facts.
#[derive(Debug)]
pub struct Replay {
    /// One for each interval.
    pub frames: Frames,
    /// Facts of the recording.
    pub recording: Recording,
    /// Losses.
    pub losses: Losses,
    /// Whether the run was finished.
    pub complete: bool,
}

/// Reads a run or a recording.
///
/// # Errors
/// When the input cannot be read.
pub fn of_path(path: &Path, reading: &Reading) -> anyhow::Result<Replay> {
    let input = Input::open(path)?;
    check_reading(reading, &input)?;
    Ok(match input {
        Input::Run(run) => {
            let manifest = run.manifest();
            let mut rows = ToFrames(Frames::new(Keep::All, manifest.interval_ns));
            let share = reading.progress.begin(Some(run.bytes()));
            let read = run.read_watched(&mut rows, &|bytes| share.advance(bytes));
            let read = read.map_err(|e| read_fault(&e))?;
            Replay {
                frames: rows.0,
                recording: manifest.recording.clone(),
                losses: read.losses,
                complete: run.is_complete(),
            }
        }
        Input::Recording(recording) => {
            let rows = ToFrames(Frames::new(Keep::All, reading.interval_ns()));
            let converted = convert::run(recording, reading, rows)?;
            Replay {
                frames: converted.rows.0,
                recording: converted.facts,
                losses: converted.losses,
                complete: true,
            }
        }
    })
}

/// A sink that makes frames of rows.
struct ToFrames(Frames);

impl RowSink for ToFrames {
    fn exit(&mut self, row: &ExitRow) {
        self.0.exit(row);
    }

    fn time(&mut self, row: &TimeRow) {
        self.0.time(row);
    }

    fn preempted(&mut self, row: &PreemptedRow) {
        self.0.preempted(row);
    }
}
