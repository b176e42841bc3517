//! A span of records -> events in the order of time. This is the work of the threads that decode.
//!
//! ```text
//!  records  s s s s R s s c s s R ...        s sample, R end of a round, c another record
//!  events   ───────── ─── ─────              sorted between two marks
//!  marks            R   c     R              left to the thread that applies spans in their order
//! ```
//!
//! A span is decoded without knowledge of those before it. State from before the span (names, the latest time, the rounds)
//! becomes a mark.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use vmtax_events::{Event, Kind, NO_PID};

use super::layout::Bytes;
use super::plan::{Plan, SampleLayout};
use super::record::{kind, next_record, record_type};
use crate::import::tracepoint::Endian;

/// A stretch of whole records, and room for what is made of them.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) plan: Arc<Plan>,
    pub(super) block: Arc<Vec<u8>>,
    /// The records within the block.
    pub(super) range: Range<usize>,
    /// Samples of other events than tracepoints are wanted, and the records about memory.
    pub(super) is_profile: bool,
    pub(super) decoded: Decoded,
}

/// What a span holds.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    pub(super) events: Vec<Event>,
    pub(super) marks: Vec<Mark>,
    /// The latest time of a sample, 0 if there is none.
    pub(super) latest: u64,
    pub(super) undecodable: u64,
    /// Samples of an event that is not listed.
    pub(super) unlisted: u64,
    /// Samples by `common_type`.
    pub(super) counts: Vec<u32>,
    /// Threads that a mark names.
    named: HashSet<u32>,
}

/// Something between the events of a span.
#[derive(Debug)]
pub(super) struct Mark {
    /// It precedes the event of this index.
    pub(super) at: usize,
    /// The latest time of the samples before it, 0 if there is none.
    pub(super) latest: u64,
    pub(super) what: What,
}

/// The kind of mark.
#[derive(Debug)]
pub(super) enum What {
    /// The end of a round.
    Round,
    /// The name of a thread that gets a CPU, in the block.
    Name(u32, Range<usize>),
    /// A record that is read in its order, in the block.
    Record(Range<usize>),
}

impl Decoded {
    /// Forgets what it holds and keeps the room.
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.marks.clear();
        self.named.clear();
        self.counts.fill(0);
        (self.latest, self.undecodable, self.unlisted) = (0, 0, 0);
    }

    fn mark(&mut self, what: What) {
        self.marks.push(Mark { at: self.events.len(), latest: self.latest, what });
    }
}

/// Decodes the samples of a span, and sorts its events between two marks.
pub(super) fn decode(mut span: Span) -> Span {
    span.decoded.clear();
    span.decoded.counts.resize(span.plan.types(), 0);
    // Each byte order has a copy of the loop.
    match span.plan.bytes.0 {
        Endian::Little => span.records(Endian::Little),
        Endian::Big => span.records(Endian::Big),
    }
    span.sort();
    span
}

impl Span {
    #[inline(always)]
    fn records(&mut self, endian: Endian) {
        let Span { plan, block, range, is_profile, decoded } = self;
        let bytes = Bytes(endian);
        let records = block.get(..range.end).unwrap_or_default();
        let mut at = range.start;
        while let Some(Ok(record)) = next_record(records.get(at..).unwrap_or_default(), bytes) {
            let place = at..at + record.len();
            at = place.end;
            match record_type(record, bytes) {
                kind::SAMPLE => decoded.sample(plan, record, place, bytes, *is_profile),
                kind::FINISHED_ROUND => decoded.mark(What::Round),
                other if kind::matters(other, *is_profile) => decoded.mark(What::Record(place)),
                _ => {}
            }
        }
    }

    /// The sort is stable, as that of the whole recording is.
    fn sort(&mut self) {
        let Decoded { events, marks, .. } = &mut self.decoded;
        let mut from = 0;
        for mark in marks.iter().filter(|mark| !matches!(mark.what, What::Name(..))) {
            if let Some(events) = events.get_mut(from..mark.at) {
                events.sort_by_key(|event| event.time_ns);
            }
            from = mark.at;
        }
        if let Some(events) = events.get_mut(from..) {
            events.sort_by_key(|event| event.time_ns);
        }
    }
}

impl Decoded {
    #[inline(always)]
    fn sample(
        &mut self,
        plan: &Plan,
        record: &[u8],
        place: Range<usize>,
        bytes: Bytes,
        is_profile: bool,
    ) {
        let layout = match plan.layout(record) {
            SampleLayout::Tracepoint(layout) => layout,
            SampleLayout::Other(_) => {
                if is_profile {
                    self.mark(What::Record(place));
                }
                return;
            }
            SampleLayout::Unlisted => {
                self.unlisted += 1;
                return;
            }
        };
        let Some(sample) = layout.sample(record, bytes) else {
            self.undecodable += u64::from(layout.is_usable());
            return;
        };
        self.latest = self.latest.max(sample.time);
        let id = bytes.u16(sample.raw, 0).map(usize::from);
        if let Some(count) = id.and_then(|id| self.counts.get_mut(id)) {
            *count += 1;
        }
        let Some(decoder) = plan.decoder(sample.raw, bytes) else {
            self.undecodable += u64::from(!plan.describes(sample.raw));
            return;
        };
        let decoded = match sample.tid {
            // The last switch of a thread that has ended has -1 for both: only the tracepoint knows it.
            Some((pid, tid)) if tid != u32::MAX => {
                decoder.kind(sample.raw).map(|(vcpu, kind)| (pid, tid, vcpu, kind))
            }
            _ => decoder.decode(sample.raw).map(|d| (NO_PID, d.tid, d.vcpu, d.kind)),
        };
        let Some((pid, tid, vcpu, kind)) = decoded else {
            self.undecodable += 1;
            return;
        };
        if let Kind::Switch { next_tid, .. } = kind
            && let Some(name) = decoder.next_name(sample.raw)
            && self.named.insert(next_tid)
        {
            // Both are slices of the block.
            let start = place.start + (name.as_ptr().addr() - record.as_ptr().addr());
            self.mark(What::Name(next_tid, start..start + name.len()));
        }
        let cpu = sample.cpu.unwrap_or(u32::MAX);
        self.events.push(Event { time_ns: sample.time, pid, tid, cpu, vcpu, kind });
    }
}
