//! Bytes of a profiler's output -> a [`Profile`].
//!
//! - folded stacks (`a;b;c 12`), as flame graph tools write and read them;
//! - `perf.data` with samples, whose addresses become names by way of [`Symbols`];
//! - the text of `perf script`;
//! - the text of `perf report --stdio`: functions, without their callers;
//! - a call graph of their screens, or a part of it;
//! - the text of `perf annotate`: the instructions of a function.
//!
//! Left out on purpose: what ran when, and in which thread: a profile is a sum. Samples of tracepoints are events, not
//! samples of a profile.

pub mod annotate;
pub mod call_graph;
pub mod folded;
pub mod perf_data;
pub mod perf_report;
pub mod perf_script;

use std::io::Read;

use vmtax_events::{Losses, Place, Profile};

use crate::Error;
use crate::import::Source;
pub use perf_data::Symbols;

/// More stacks than this are not kept apart, and no more bytes of them.
const MOST_STACKS: usize = 1 << 20;
const MOST_BYTES: usize = 256 << 20;

/// The formats of profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A `perf.data` file.
    PerfFile,
    /// A `perf.data` stream.
    PerfPipe,
    /// The text of `perf annotate`.
    Annotate,
    /// The text of `perf report --stdio`.
    PerfReport,
    /// A call graph of a screen of perf.
    CallGraph,
    /// The text of `perf script`.
    PerfScript,
    /// Folded stacks.
    Folded,
}

/// Whether these first bytes are of one format.
type Recognise = fn(&[u8]) -> bool;

impl Format {
    /// Recognises a format from the first bytes of the input.
    pub fn recognise(head: &[u8]) -> Result<Format, Error> {
        let candidates: [(Recognise, Format); 7] = [
            (crate::import::perf_data::recognise_file, Format::PerfFile),
            (crate::import::perf_data::recognise_pipe, Format::PerfPipe),
            (annotate::recognise, Format::Annotate),
            // Its rows can stand above their graphs.
            (call_graph::recognise, Format::CallGraph),
            (perf_report::recognise, Format::PerfReport),
            (perf_script::recognise, Format::PerfScript),
            (folded::recognise, Format::Folded),
        ];
        let found = candidates.into_iter().find(|(recognise, _)| recognise(head));
        found.map(|(_, format)| format).ok_or_else(|| Error::Unrecognised {
            found: "it is no profile: no folded stacks, perf.data, or text of perf script, perf report or perf annotate"
                .to_owned(),
        })
    }

    /// Whether the format is read out of order, so that a pipe must be stored first.
    pub fn needs_seeking(self) -> bool {
        self == Format::PerfFile
    }
}

/// A profile, and its losses.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The profile.
    pub profile: Profile,
    /// Its losses.
    pub losses: Losses,
}

/// Imports a profile.
///
/// # Errors
/// When nothing can be read of it, or it has no sample.
pub fn import(
    format: Format,
    place: Place,
    source: Source<'_>,
    symbols: &mut dyn Symbols,
) -> Result<Imported, Error> {
    let is_annotation = format == Format::Annotate;
    if is_annotation != (place == Place::Instructions) {
        let problem = if is_annotation {
            "is an annotated function and no profile of stacks"
        } else {
            "is no annotated function: give the text of perf annotate"
        };
        return Err(Error::malformed(0, "profile", problem));
    }
    let imported = match (format, source) {
        (Format::PerfFile | Format::PerfPipe, source) => perf_data::import(source, place, symbols)?,
        (_, Source::Folder(..)) => {
            return Err(Error::malformed(0, "folder", "its file data is no perf.data file"));
        }
        (format, Source::Stream(input)) => text(format, place, input)?,
        (format, Source::Random(source)) => {
            text(format, place, &mut crate::import::FrontToBack { source, at: 0 })?
        }
    };
    if imported.profile.stacks.is_empty() {
        return Err(Error::malformed(0, "profile", "holds no sample"));
    }
    Ok(imported)
}

fn text(format: Format, place: Place, input: &mut dyn Read) -> Result<Imported, Error> {
    let mut sum = Sum::new(place);
    match format {
        Format::Annotate => annotate::read(input, &mut sum)?,
        Format::CallGraph => call_graph::read(input, &mut sum)?,
        Format::PerfReport => perf_report::read(input, &mut sum)?,
        Format::PerfScript => perf_script::read(input, &mut sum)?,
        _ => folded::read(input, &mut sum)?,
    }
    Ok(sum.finish())
}

/// Adds stacks up, within bounds.
#[derive(Debug)]
struct Sum {
    profile: Profile,
    bytes: usize,
    losses: Losses,
    /// Weight of stacks that there was no room for.
    dropped: u64,
}

impl Sum {
    fn new(place: Place) -> Sum {
        Sum { profile: Profile::new(place), bytes: 0, losses: Losses::default(), dropped: 0 }
    }

    fn add(&mut self, stack: &str, weight: u64) {
        if !self.profile.stacks.contains_key(stack) {
            if self.profile.stacks.len() >= MOST_STACKS || self.bytes + stack.len() > MOST_BYTES {
                self.dropped = self.dropped.saturating_add(weight);
                return;
            }
            self.bytes += stack.len();
        }
        self.profile.add(stack, weight);
    }

    fn finish(mut self) -> Imported {
        if self.dropped > 0 {
            self.losses.notes.push(format!(
                "{} profile: a weight of {} in stacks beyond the first {MOST_STACKS} is left out",
                self.profile.place.name(),
                self.dropped
            ));
        }
        Imported { profile: self.profile, losses: self.losses }
    }
}

/// The name of an unknown function: its file.
fn of_file(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    // "[kernel.kallsyms]_text", "[kvm_intel]"
    let name = match name.strip_prefix('[').and_then(|name| name.split_once(']')) {
        Some((name, _)) => name,
        None => name,
    };
    if name.is_empty() { "[unknown]".to_owned() } else { one_frame(&format!("[{name}]")) }
}

/// A name as a frame of a folded stack: without separators and line ends.
fn one_frame(name: &str) -> String {
    name.chars()
        .map(|c| {
            if c == Profile::BETWEEN {
                ':'
            } else if c.is_control() {
                ' '
            } else {
                c
            }
        })
        .collect()
}
