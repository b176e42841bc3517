//! The importers, one per format, and the recognition of a format from its first bytes.
//!
//! Each importer is a function of bytes. Formats that must be read out of order (`perf.data` files,
//! `trace.dat`) take a [`ReadAt`]; the others take a [`Read`] and can be fed from a pipe.

mod architecture;
pub mod bpftrace;
pub mod counts;
mod cursor;
mod foreign;
mod formats;
pub mod logs;
pub mod perf_data;
pub mod results;
mod rips;
mod sampling;
mod seen;
mod spelling;
pub mod text;
pub mod trace_dat;
pub mod tracepoint;

use std::io::Read;

use vmtax_events::{Isa, Losses, Recording};

use crate::source::ReadAt;
use crate::{Error, Feed};
pub use rips::Rips;
pub use seen::SeenEvents;

/// How many bytes [`ImportFormat::recognise`] wants to see. It makes do with fewer.
pub const HEAD: usize = 64 << 10;

/// The formats that can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImportFormat {
    /// `perf record` output, seekable.
    PerfFile,
    /// `perf record -o -` output: a stream.
    PerfPipe,
    /// `trace-cmd record` output.
    TraceDat,
    /// The text of ftrace's `trace` file.
    FtraceText,
    /// The text of `perf script`.
    PerfScript,
    /// The text of `trace-cmd report`.
    TraceCmdReport,
    /// A bpftrace dump of a map of exit counts.
    Bpftrace,
    /// A text in which another tool printed counts of exits.
    Counts,
    /// A table of benchmark results, as CSV.
    Results,
}

/// Whether these first bytes are of one format.
type Recognise = fn(&[u8]) -> bool;

impl ImportFormat {
    /// Recognises a format from the first bytes of the input, or says what they look like.
    pub fn recognise(head: &[u8]) -> Result<ImportFormat, Error> {
        let candidates: [(Recognise, ImportFormat); 9] = [
            (perf_data::recognise_file, ImportFormat::PerfFile),
            (perf_data::recognise_pipe, ImportFormat::PerfPipe),
            (trace_dat::recognise, ImportFormat::TraceDat),
            (text::ftrace_text::recognise, ImportFormat::FtraceText),
            (text::perf_script::recognise, ImportFormat::PerfScript),
            (text::trace_cmd_report::recognise, ImportFormat::TraceCmdReport),
            (counts::recognise, ImportFormat::Counts),
            (bpftrace::recognise, ImportFormat::Bpftrace),
            (results::recognise, ImportFormat::Results),
        ];
        let found = candidates.into_iter().find(|(recognise, _)| recognise(head));
        found.map(|(_, format)| format).ok_or_else(|| Error::Unrecognised { found: describe(head) })
    }

    /// Whether the format has to be read out of order, so that a pipe must be stored first.
    pub fn needs_seeking(self) -> bool {
        matches!(self, ImportFormat::PerfFile | ImportFormat::TraceDat)
    }
}

/// What a file of no known format looks like, for the error message.
fn describe(head: &[u8]) -> String {
    let known: [(&[u8], &str); 8] = [
        (b"\xfd7zXZ\0", "it is xz-compressed: unpack it first (xz -dk FILE)"),
        (b"\x1f\x8b", "it is gzip-compressed: unpack it first (gzip -dk FILE)"),
        (b"\x28\xb5\x2f\xfd", "it is zstd-compressed: unpack it first (zstd -dk FILE)"),
        (b"BZh", "it is bzip2-compressed: unpack it first (bzip2 -dk FILE)"),
        (
            b"PERFFILE",
            "it is a perf.data file of the format before Linux 3.x, which is not supported",
        ),
        (b"\x7fELF", "it is an ELF program"),
        (b"PK\x03\x04", "it is a zip archive"),
        (b"PAR1", "it is a single Parquet file: give the run folder that holds it"),
    ];
    if head.is_empty() {
        return "it is empty".to_owned();
    }
    if perf_data::is_part(head) {
        return "it holds records of perf without a header, as the files data.N of a folder that perf record \
                --threads wrote: give the folder"
            .to_owned();
    }
    if let Some((_, words)) = known.iter().find(|(magic, _)| head.starts_with(magic)) {
        return (*words).to_owned();
    }
    let is_text = !head.contains(&0) && std::str::from_utf8(&head[..head.len().min(4096)]).is_ok();
    if is_text && let Some(what) = foreign::tool(&String::from_utf8_lossy(head)) {
        return format!("this is {what}");
    }
    if is_text && crate::profile::annotate::recognise(head) {
        return "this is perf annotate's text: give it to `vmtax import --guest-instructions`, beside a recording".to_owned();
    }
    if is_text && crate::profile::perf_report::recognise(head) {
        return "this is perf report's text, which has no exits: `vmtax explain FILE` reads it alone, `vmtax import --host-profile` or `--guest-profile` beside a recording".to_owned();
    }
    if is_text && is_kernel_log(head) {
        return "this is a kernel's log, which has no exits: record `perf kvm stat record -a sleep 10` on the host beside it".to_owned();
    }
    if is_text {
        let what = match first_words(&String::from_utf8_lossy(head)) {
            line if line.is_empty() => "it is text without words".to_owned(),
            line => format!("it is text that begins with {line:?}"),
        };
        format!("{what} (`perf kvm stat record -a sleep 10` on the host records exits)")
    } else {
        let bytes: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
        format!("it begins with the bytes {}", bytes.join(" "))
    }
}

/// The first line that says something, cut. Empty lines, also those in place of what a post has around its text, and rules say nothing.
fn first_words(text: &str) -> String {
    let says = |line: &&str| line.chars().any(char::is_alphanumeric);
    let line = text.lines().map(str::trim).find(says).unwrap_or_default();
    line.chars().take(60).collect()
}

/// Whether most lines begin as those of dmesg: `[14031.114001] `.
fn is_kernel_log(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head);
    let lines = || text.lines().filter(|line| !line.trim().is_empty());
    let is_of_kernel = |line: &&str| {
        let time = line.strip_prefix('[').and_then(|line| line.split_once(']'));
        time.is_some_and(|(time, _)| time.contains('.') && time.trim().parse::<f64>().is_ok())
    };
    lines().filter(is_of_kernel).count() * 2 > lines().count()
}

/// Where an importer reads from.
#[expect(missing_debug_implementations, reason = "both hold a trait object")]
pub enum ImportSource<'a> {
    /// Bytes that can be read at any place.
    Random(&'a dyn ReadAt),
    /// Bytes that come one after the other.
    Stream(&'a mut (dyn Read + Send)),
    /// A folder that perf wrote: its file `data`, and the parts beside it.
    Folder(&'a dyn ReadAt, &'a [perf_data::EventsFile<'a>]),
}

/// What the user may add to what the file says.
#[derive(Clone, Copy, Debug)]
pub struct ImportOptions {
    /// Vendor of exits that a dump of counts gives by bare numbers, or by names that either vendor has.
    pub isa: Isa,
    /// Threads that decode, beside the one that reads. Results do not depend on it.
    pub threads: usize,
}

impl Default for ImportOptions {
    /// All on one thread.
    fn default() -> Self {
        ImportOptions { isa: Isa::Unknown, threads: 0 }
    }
}

/// What an import knows at its end, beside the events it delivered.
#[derive(Clone, Debug, Default)]
pub struct Imported {
    /// The recording's facts. (The list of VMs is the analysis's to fill.)
    pub recording: Recording,
    /// What was lost or could not be decoded on the way.
    pub losses: Losses,
    /// How often each event of KVM occurs. Recordings of single events have it.
    pub seen: SeenEvents,
    /// The guest's instruction pointers of each thread's entries and exits.
    pub rips: Rips,
}

/// Imports a source of a recognised format.
///
/// # Errors
/// [`Error`] when nothing can be read. A recording that ends early is no error: what precedes the
/// cut is delivered, and [`Losses::truncated`] says so.
pub fn import(
    format: ImportFormat,
    source: ImportSource<'_>,
    options: ImportOptions,
    feed: &mut impl Feed,
) -> Result<Imported, Error> {
    let mut imported = dispatch(format, source, options, feed)?;
    // A dump of counts and a table of results hold no events.
    if !matches!(format, ImportFormat::Bpftrace | ImportFormat::Counts | ImportFormat::Results) {
        seen::check(&mut imported);
    }
    Ok(imported)
}

fn dispatch(
    format: ImportFormat,
    source: ImportSource<'_>,
    options: ImportOptions,
    feed: &mut impl Feed,
) -> Result<Imported, Error> {
    match (format, source) {
        (ImportFormat::PerfFile, ImportSource::Random(source)) => {
            perf_data::import_file(source, options.threads, feed)
        }
        (ImportFormat::PerfFile, ImportSource::Folder(data, parts)) => {
            perf_data::import_folder(data, parts, feed)
        }
        (_, ImportSource::Folder(..)) => {
            Err(Error::malformed(0, "folder", "its file data is no perf.data file"))
        }
        (ImportFormat::TraceDat, ImportSource::Random(source)) => {
            trace_dat::import(source, options.threads, feed)
        }
        (ImportFormat::PerfFile | ImportFormat::TraceDat, ImportSource::Stream(_)) => {
            Err(Error::malformed(0, "input", "this format cannot be read from a stream"))
        }
        (format, ImportSource::Random(source)) => {
            stream(format, &mut FrontToBack { source, at: 0 }, options, feed)
        }
        (format, ImportSource::Stream(input)) => stream(format, input, options, feed),
    }
}

fn stream(
    format: ImportFormat,
    input: &mut dyn Read,
    options: ImportOptions,
    feed: &mut impl Feed,
) -> Result<Imported, Error> {
    match format {
        ImportFormat::PerfPipe => perf_data::import_pipe(input, options.threads, feed),
        ImportFormat::FtraceText => text::ftrace_text::import(input, options.threads, feed),
        ImportFormat::PerfScript => text::perf_script::import(input, options.threads, feed),
        ImportFormat::TraceCmdReport => {
            text::trace_cmd_report::import(input, options.threads, feed)
        }
        ImportFormat::Results => results::import(input, feed),
        ImportFormat::Counts => counts::import(input, options.isa, feed),
        _ => bpftrace::import(input, options.isa, feed),
    }
}

pub(crate) struct FrontToBack<'a> {
    pub(crate) source: &'a dyn ReadAt,
    pub(crate) at: u64,
}

impl Read for FrontToBack<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let got = self.source.read_at(self.at, buf)?;
        self.at += got as u64;
        Ok(got)
    }
}
