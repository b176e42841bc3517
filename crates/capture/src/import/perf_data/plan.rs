//! How samples are decoded: what the attributes and the formats of a recording say.
//!
//! The threads that decode share one plan. It changes only while none of them works.

use std::collections::HashMap;

use super::layout::{AttributeLayout, OrderedBytes};
use crate::import::formats::EventFormats;
use crate::import::sampling::SampleWeight;
use crate::import::tracepoint::RecordDecoder;

/// What to do with a sample of one event.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attr {
    pub(super) layout: AttributeLayout,
    pub(super) kind: AttrKind,
}

/// The kinds of events that perf records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttrKind {
    /// A tracepoint of this id, each of its events.
    Tracepoint(u64),
    /// A tracepoint of this id of which some events are samples.
    Sampled(u64, SampleWeight),
    /// A tracepoint of this id that an event before it records too.
    Again(u64),
    /// Another event.
    Other,
}

/// What the attributes say of a sample.
#[derive(Clone, Copy, Debug)]
pub(super) enum SampleLayout<'a> {
    /// A tracepoint's, laid out so.
    Tracepoint(&'a AttributeLayout),
    /// A tracepoint's that stands for others too.
    Sampled(&'a AttributeLayout, SampleWeight),
    /// Of a tracepoint that another event records.
    Again(&'a AttributeLayout),
    /// Of another kind of event, laid out so.
    Other(&'a AttributeLayout),
    /// Of an event that is not listed.
    Unlisted,
}

/// Attributes and formats.
#[derive(Clone, Debug)]
pub(super) struct DecodePlan {
    pub(super) bytes: OrderedBytes,
    pub(super) attrs: Vec<Attr>,
    /// The one layout of all samples, when there is one and every sample is a tracepoint's.
    pub(super) uniform: Option<AttributeLayout>,
    /// Event id -> index in `attrs`.
    pub(super) by_id: HashMap<u64, usize>,
    pub(super) formats: Option<EventFormats>,
}

impl DecodePlan {
    pub(super) fn new(bytes: OrderedBytes) -> DecodePlan {
        DecodePlan { bytes, attrs: Vec::new(), uniform: None, by_id: HashMap::new(), formats: None }
    }

    /// The layout of this sample.
    #[inline(always)]
    pub(super) fn layout(&self, record: &[u8]) -> SampleLayout<'_> {
        match &self.uniform {
            Some(layout) => SampleLayout::Tracepoint(layout),
            None => self.layout_by_id(record),
        }
    }

    fn layout_by_id(&self, record: &[u8]) -> SampleLayout<'_> {
        let attr = match self.attrs.as_slice() {
            [only] => Some(only),
            // perf puts it at the same offset in the samples of all events.
            [first, ..] => {
                let id = first.layout.id().and_then(|at| self.bytes.u64(record, at));
                id.and_then(|id| self.by_id.get(&id)).and_then(|&i| self.attrs.get(i))
            }
            _ => None,
        };
        let Some(Attr { layout, kind }) = attr else { return SampleLayout::Unlisted };
        match kind {
            AttrKind::Tracepoint(_) => SampleLayout::Tracepoint(layout),
            AttrKind::Sampled(_, weight) => SampleLayout::Sampled(layout, *weight),
            AttrKind::Again(_) => SampleLayout::Again(layout),
            AttrKind::Other => SampleLayout::Other(layout),
        }
    }

    /// The decoder for a raw record, if the analysis wants it.
    #[inline(always)]
    pub(super) fn decoder(&self, raw: &[u8], bytes: OrderedBytes) -> Option<&RecordDecoder> {
        self.formats.as_ref()?.decoder(bytes.u16(raw, 0)?)
    }

    /// Whether the recording has the format of a raw record, wanted or not.
    pub(super) fn describes(&self, raw: &[u8]) -> bool {
        let common_type = self.bytes.u16(raw, 0);
        let formats = self.formats.as_ref();
        common_type.zip(formats).is_some_and(|(id, formats)| formats.describes(id))
    }

    /// Layout for the trailer of records that are not samples.
    pub(super) fn trailer(&self) -> Option<AttributeLayout> {
        self.attrs.first().map(|a| a.layout)
    }

    /// How many values of `common_type` there are.
    pub(super) fn types(&self) -> usize {
        self.formats.as_ref().map_or(0, |formats| formats.index.len())
    }
}
