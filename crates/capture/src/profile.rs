//! Bytes of a profiler's output -> a [`Profile`].
//!
//! - folded stacks (`a;b;c 12`), as flame graph tools write and read them;
//! - `perf.data` with samples, whose addresses become names by way of [`SymbolNames`];
//! - the text of `perf script`;
//! - the text of `perf report --stdio`: functions, with their callers where it has graphs;
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
mod report_graph;

use std::io::Read;

use vmtax_events::{Losses, Profile, ProfileOrigin};

use crate::Error;
use crate::import::ImportSource;
pub use perf_data::SymbolNames;

/// More stacks than this are not kept apart, and no more bytes of them.
const MOST_STACKS: usize = 1 << 20;
const MOST_BYTES: usize = 256 << 20;

/// The formats of profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileFormat {
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
type RecogniseProfile = fn(&[u8]) -> bool;

impl ProfileFormat {
    /// Recognises a format from the first bytes of the input.
    pub fn recognise(head: &[u8]) -> Result<ProfileFormat, Error> {
        let candidates: [(RecogniseProfile, ProfileFormat); 7] = [
            (crate::import::perf_data::recognise_file, ProfileFormat::PerfFile),
            (crate::import::perf_data::recognise_pipe, ProfileFormat::PerfPipe),
            (annotate::recognise, ProfileFormat::Annotate),
            // Its rows can stand above their graphs.
            (call_graph::recognise, ProfileFormat::CallGraph),
            (perf_report::recognise, ProfileFormat::PerfReport),
            (perf_script::recognise, ProfileFormat::PerfScript),
            (folded::recognise, ProfileFormat::Folded),
        ];
        let found = candidates.into_iter().find(|(recognise, _)| recognise(head));
        found.map(|(_, format)| format).ok_or_else(|| Error::Unrecognised {
            found: "it is no profile: no folded stacks, perf.data, or text of perf script, perf report or perf annotate"
                .to_owned(),
        })
    }

    /// Whether the format is read out of order, so that a pipe must be stored first.
    pub fn needs_seeking(self) -> bool {
        self == ProfileFormat::PerfFile
    }
}

/// A profile, and its losses.
#[derive(Clone, Debug)]
pub struct ImportedProfile {
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
    format: ProfileFormat,
    place: ProfileOrigin,
    source: ImportSource<'_>,
    symbols: &mut dyn SymbolNames,
) -> Result<ImportedProfile, Error> {
    let is_annotation = format == ProfileFormat::Annotate;
    if is_annotation != (place == ProfileOrigin::Instructions) {
        let problem = if is_annotation {
            "is an annotated function and no profile of stacks"
        } else {
            "is no annotated function: give the text of perf annotate"
        };
        return Err(Error::malformed(0, "profile", problem));
    }
    let imported = match (format, source) {
        (ProfileFormat::PerfFile | ProfileFormat::PerfPipe, source) => {
            perf_data::import(source, place, symbols)?
        }
        (_, ImportSource::Folder(..)) => {
            return Err(Error::malformed(0, "folder", "its file data is no perf.data file"));
        }
        (format, ImportSource::Stream(input)) => text(format, place, input)?,
        (format, ImportSource::Random(source)) => {
            text(format, place, &mut crate::import::FrontToBack { source, at: 0 })?
        }
    };
    if imported.profile.stacks.is_empty() {
        return Err(Error::malformed(0, "profile", "holds no sample"));
    }
    Ok(imported)
}

fn text(
    format: ProfileFormat,
    place: ProfileOrigin,
    input: &mut dyn Read,
) -> Result<ImportedProfile, Error> {
    let mut sum = StackSum::new(place);
    match format {
        ProfileFormat::Annotate => annotate::read(input, &mut sum)?,
        ProfileFormat::CallGraph => call_graph::read(input, &mut sum)?,
        ProfileFormat::PerfReport => perf_report::read(input, &mut sum)?,
        ProfileFormat::PerfScript => perf_script::read(input, &mut sum)?,
        _ => folded::read(input, &mut sum)?,
    }
    Ok(sum.finish())
}

/// Adds stacks up, within bounds.
#[derive(Debug)]
struct StackSum {
    profile: Profile,
    bytes: usize,
    losses: Losses,
    /// Weight of stacks that there was no room for.
    dropped: u64,
}

impl StackSum {
    fn new(place: ProfileOrigin) -> StackSum {
        StackSum { profile: Profile::new(place), bytes: 0, losses: Losses::default(), dropped: 0 }
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

    fn finish(mut self) -> ImportedProfile {
        if self.dropped > 0 {
            self.losses.notes.push(format!(
                "{} profile: a weight of {} in stacks beyond the first {MOST_STACKS} is left out",
                self.profile.place.name(),
                self.dropped
            ));
        }
        ImportedProfile { profile: self.profile, losses: self.losses }
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
