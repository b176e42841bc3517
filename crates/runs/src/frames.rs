//! A run or a recording as frames.

use std::path::Path;
use std::time::Duration;

use vmtax_analyse::{Frames, IntervalFrame, KeepFrames, Ledger};
use vmtax_events::{ExitRow, Losses, PreemptedRow, Recording, RowSink, TimeRow};

use crate::ledger::{self, check_reading};
use crate::{Input, ReadOptions, convert, read_fault};

/// The frames of an input, and its facts.
#[derive(Debug)]
pub struct Replay {
    /// One for each interval.
    pub frames: Frames,
    /// Facts of the recording.
    pub recording: Recording,
    pub losses: Losses,
    /// Whether the run was finished.
    pub complete: bool,
}

/// Reads a run or a recording.
pub fn of_path(path: &Path, reading: &ReadOptions) -> anyhow::Result<Replay> {
    let input = Input::open(path)?;
    check_reading(reading, &input)?;
    Ok(match input {
        Input::Run(run) => {
            let manifest = run.manifest();
            let mut rows = ToFrames(Frames::new(KeepFrames::All, manifest.interval_ns));
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
            let rows = ToFrames(Frames::new(KeepFrames::All, reading.interval_ns()));
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

/// A recording that is played again and again, and counts as the running kernel would: its sums only grow.
#[derive(Debug)]
pub struct Played {
    replay: Replay,
    /// Start of the frame that is being played.
    at: Option<u64>,
    sums: IntervalFrame,
    /// The recording's losses, once for each time that it was played to its end.
    losses: Losses,
}

impl Played {
    /// From its beginning, with nothing counted.
    pub fn new(replay: Replay) -> Played {
        let Losses { missing, truncated, notes, .. } = replay.losses.clone();
        let losses = Losses { missing, truncated, notes, ..Losses::default() };
        Played { at: replay.frames.first(), replay, sums: IntervalFrame::default(), losses }
    }

    /// How long the frame takes that is being played, with what is empty behind it; nothing if the recording is empty.
    pub fn length(&self) -> Option<Duration> {
        let frame = self.replay.frames.at(self.at?)?;
        let until = self.replay.frames.after(frame.start_ns);
        let until = until.unwrap_or(frame.start_ns + frame.length_ns);
        Some(Duration::from_nanos(until - frame.start_ns).max(SHORTEST))
    }

    /// Counts the frame that is being played, and goes on to the next, or to the beginning.
    pub fn step(&mut self) {
        let frames = &self.replay.frames;
        if let Some(frame) = self.at.and_then(|at| frames.at(at)) {
            self.sums.merge(frame);
            self.at = frames.after(frame.start_ns).or_else(|| {
                let none = Vec::new;
                let once = Losses {
                    missing: none(),
                    truncated: none(),
                    notes: none(),
                    ..self.replay.losses.clone()
                };
                self.losses.merge(&once);
                frames.first()
            });
        }
    }

    /// All that was counted.
    pub fn ledger(&self) -> Ledger {
        let Replay { recording, complete, .. } = &self.replay;
        let taken_by = &self.sums.taken_by;
        ledger::of_sums(
            &self.sums.exits,
            self.sums.time.values(),
            taken_by.iter().map(|((vm, vcpu, taker), taken)| ((*vm, *vcpu), taker, *taken)),
            (recording, self.losses.clone(), *complete),
        )
    }
}

/// A frame without a length is shown so long.
const SHORTEST: Duration = Duration::from_millis(1);

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
