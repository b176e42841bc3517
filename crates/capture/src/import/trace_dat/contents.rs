//! What both versions of the file come down to: everything but the trace data, and where that is.

use super::chunk::Codec;
use super::header::PageLayout;
use super::options::TraceDatOptions;
use crate::import::formats::EventFormats;

/// The trace data of one CPU in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuData {
    pub(super) cpu: u32,
    /// Number of the buffer: the top-level one, then those of instances.
    pub(super) buffer: usize,
    /// Where it starts in the file.
    pub(super) at: u64,
    /// Its bytes in the file.
    pub(super) len: u64,
    /// In chunks, each compressed for itself; else page by page.
    pub(super) chunked: bool,
    /// Size of a page (a sub-buffer of the ring).
    pub(super) page_size: usize,
}

/// A file whose metadata has been read.
pub(super) struct TraceDatContents {
    pub(super) layout: PageLayout,
    pub(super) formats: EventFormats,
    pub(super) options: TraceDatOptions,
    pub(super) codec: Codec,
    /// Thread id and name.
    pub(super) names: Vec<(u32, String)>,
    pub(super) data: Vec<CpuData>,
    /// Where what precedes the trace data ends, and in version 7 what follows it.
    pub(super) end: u64,
    /// Unreadable data, one sentence each.
    pub(super) truncated: Vec<String>,
}
