//! A span of records -> events in the order of time. This is the work of the threads that decode.
//!
//! ```text
//!  records  s s s s R s s c s s R ...        s sample, R end of a round, c another record
//!  events   ───────── ─── ─────              sorted between two marks
//!  marks            R   c     R              left to the thread that applies spans in their order
//! ```
//!
//! A span is decoded without knowledge of those before it. State from before the span (names, the latest time, the rounds)
//! becomes a mark. Blocks are of equal length, so a record may begin in one and end in the next: where the first whole record
//! of a block begins is guessed from its bytes, and checked when the block before is applied.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use vmtax_events::{Event, EventKind, NO_PID};

use super::layout::OrderedBytes;
use super::plan::{DecodePlan, SampleLayout};
use super::record::{After, MAX_RECORD, are_records, kind, next_record, record_type};
use crate::import::Rips;
use crate::import::sampling::stands_for_others;
use crate::import::tracepoint::Endian;
use crate::source::ReadAt;

/// A block of records, and room for what is made of them.
pub(super) struct RecordSpan<'s> {
    pub(super) plan: Arc<DecodePlan>,
    /// Where the block is still to be read from.
    pub(super) source: Option<(&'s dyn ReadAt, u64)>,
    pub(super) block: Vec<u8>,
    /// Bytes of the block that are to be read, or were.
    pub(super) len: usize,
    /// The input ended in the block.
    pub(super) is_last: bool,
    /// Why the input ended.
    pub(super) failed: Option<io::Error>,
    /// Where in the block the first record begins; `None` if that depends on the blocks before.
    pub(super) start: Option<usize>,
    /// The whole records that were decoded.
    pub(super) range: Range<usize>,
    pub(super) after: After,
    /// It was decompressed: whole records, of which those that change how others are read were handled.
    pub(super) is_plain: bool,
    /// Samples of other events than tracepoints are wanted, and the records about memory.
    pub(super) is_profile: bool,
    pub(super) decoded: DecodedSpan,
}

/// What a span holds.
#[derive(Debug, Default)]
pub(super) struct DecodedSpan {
    pub(super) events: Vec<Event>,
    pub(super) marks: Vec<Mark>,
    /// The latest time of a sample, 0 if there is none.
    pub(super) latest: u64,
    pub(super) undecodable: u64,
    /// Samples of an event that is not listed.
    pub(super) unlisted: u64,
    /// Samples of tracepoints that are recorded twice, by `common_type`.
    pub(super) again: BTreeMap<u16, u64>,
    /// Samples by `common_type`.
    pub(super) counts: Vec<u32>,
    /// The guest's instruction pointers of entries and exits.
    pub(super) rips: Rips,
    /// A round ends in it.
    pub(super) ends_round: bool,
    /// There is an event behind the last end of a round.
    pub(super) in_round: bool,
    /// Threads that a mark names.
    named: HashSet<u32>,
    /// The latest events, which are not in `events` yet.
    near: Vec<Event>,
}

/// Events that are copied at once. `events` was last in the cache of the processor that analysed it: written number by number, each
/// of its lines is waited for; copied, many are fetched at once.
const NEAR: usize = 128;

/// Something between the events of a span.
#[derive(Debug)]
pub(super) struct Mark {
    /// It precedes the event of this index.
    pub(super) at: usize,
    /// The latest time of the samples before it, 0 if there is none.
    pub(super) latest: u64,
    pub(super) what: MarkKind,
}

/// The kind of mark.
#[derive(Debug)]
pub(super) enum MarkKind {
    /// The end of a round.
    Round,
    /// The name of a thread that gets a CPU, in the block.
    Name(u32, Range<usize>),
    /// A record that is read in its order, in the block.
    Record(Range<usize>),
}

impl DecodedSpan {
    /// Forgets what it holds and keeps the room.
    pub(super) fn clear(&mut self) {
        self.events.clear();
        self.marks.clear();
        self.named.clear();
        self.counts.fill(0);
        self.again.clear();
        self.rips.clear();
        (self.latest, self.undecodable, self.unlisted) = (0, 0, 0);
        (self.ends_round, self.in_round) = (false, false);
    }

    fn mark(&mut self, what: MarkKind) {
        self.flush();
        self.marks.push(Mark { at: self.events.len(), latest: self.latest, what });
    }
}

/// Reads and decodes a block.
pub(super) fn read(mut span: RecordSpan<'_>) -> RecordSpan<'_> {
    if let Some((source, at)) = span.source.take() {
        let wanted = span.len;
        match source.read_at(at, span.block.get_mut(..wanted).unwrap_or_default()) {
            Ok(got) => (span.len, span.is_last) = (got, got < wanted),
            Err(error) => (span.len, span.failed) = (0, Some(error)),
        }
    }
    span.decode();
    span
}

/// Where the records begin in a block that was cut from others anywhere, or its end. This is a guess: whoever knows the
/// blocks before compares.
fn first_record(block: &[u8], bytes: OrderedBytes) -> usize {
    let places = (0..block.len().min(MAX_RECORD)).step_by(8);
    let mut records = places.filter(|&at| are_records(block.get(at..).unwrap_or_default(), bytes));
    records.next().unwrap_or(block.len())
}

impl RecordSpan<'_> {
    /// Decodes the samples, and sorts the events between two marks.
    pub(super) fn decode(&mut self) {
        self.decoded.clear();
        self.decoded.counts.resize(self.plan.types(), 0);
        // Room of this thread's own, in its processor's cache.
        self.decoded.near = Vec::with_capacity(NEAR);
        // Each byte order has a copy of the loop.
        match self.plan.bytes.0 {
            Endian::Little => self.records(Endian::Little),
            Endian::Big => self.records(Endian::Big),
        }
        self.decoded.flush();
        self.decoded.near = Vec::new();
        self.sort();
    }

    #[inline(always)]
    fn records(&mut self, endian: Endian) {
        let RecordSpan { plan, block, len, range, decoded, .. } = self;
        let bytes = OrderedBytes(endian);
        let records = block.get(..*len).unwrap_or_default();
        let start = self.start.unwrap_or_else(|| first_record(records, bytes));
        let mut at = start;
        self.after = loop {
            let record = match next_record(records.get(at..).unwrap_or_default(), bytes) {
                None => break After::Nothing,
                Some(Err(size)) => break After::Bad(size),
                Some(Ok(record)) => record,
            };
            let place = at..at + record.len();
            match record_type(record, bytes) {
                kind::SAMPLE => {
                    decoded.in_round = true;
                    decoded.sample(plan, record, place.clone(), bytes, self.is_profile);
                }
                kind::FINISHED_ROUND => {
                    (decoded.ends_round, decoded.in_round) = (true, false);
                    decoded.mark(MarkKind::Round);
                }
                other if kind::is_structural(other) && !self.is_plain => {
                    break After::Structural(record.len());
                }
                other => {
                    decoded.in_round |= matches!(other, kind::LOST | kind::EXIT);
                    if kind::matters(other, self.is_profile) {
                        decoded.mark(MarkKind::Record(place.clone()));
                    }
                }
            }
            at = place.end;
        };
        *range = start..at;
    }

    /// The sort is stable, as that of the whole recording is.
    fn sort(&mut self) {
        let DecodedSpan { events, marks, .. } = &mut self.decoded;
        let mut from = 0;
        for mark in marks.iter().filter(|mark| !matches!(mark.what, MarkKind::Name(..))) {
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

impl DecodedSpan {
    #[inline(never)]
    fn flush(&mut self) {
        self.events.extend_from_slice(&self.near);
        self.near.clear();
    }

    #[inline(always)]
    fn push(&mut self, event: Event) {
        if self.near.len() == NEAR {
            self.flush();
        }
        self.near.push(event);
    }

    #[inline(always)]
    fn sample(
        &mut self,
        plan: &DecodePlan,
        record: &[u8],
        place: Range<usize>,
        bytes: OrderedBytes,
        is_profile: bool,
    ) {
        let mut weight = None;
        let layout = match plan.layout(record) {
            SampleLayout::Tracepoint(layout) => layout,
            SampleLayout::Sampled(layout, of) => {
                weight = Some(of.count(layout.period(record, bytes)));
                layout
            }
            SampleLayout::Again(layout) => {
                let sample = layout.sample(record, bytes);
                if let Some(id) = sample.and_then(|sample| bytes.u16(sample.raw, 0)) {
                    *self.again.entry(id).or_default() += 1;
                }
                return;
            }
            SampleLayout::Other(_) => {
                if is_profile {
                    self.mark(MarkKind::Record(place));
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
        let (pid, tid) = match sample.tid {
            // The last switch of a thread that has ended has -1 for both: only the tracepoint knows it.
            Some((pid, tid)) if tid != u32::MAX => (pid, tid),
            _ => (NO_PID, decoder.thread(sample.raw, bytes.0).unwrap_or(u32::MAX)),
        };
        let (time_ns, cpu) = (sample.time, sample.cpu.unwrap_or(u32::MAX));
        let is_event = decoder.give(sample.raw, bytes.0, |vcpu, kind| {
            if let Some(count) = weight {
                if stands_for_others(&kind) {
                    let sampled = EventKind::Sampled { count };
                    self.push(Event { time_ns, pid, tid, cpu, vcpu, kind: sampled });
                    self.push(Event { time_ns, pid, tid, cpu, vcpu, kind });
                }
                return;
            }
            if let EventKind::Switch { next_tid, .. } = kind
                && let Some(name) = decoder.next_name(sample.raw)
                && self.named.insert(next_tid)
            {
                // Both are slices of the block.
                let start = place.start + (name.as_ptr().addr() - record.as_ptr().addr());
                self.mark(MarkKind::Name(next_tid, start..start + name.len()));
            }
            self.push(Event { time_ns, pid, tid, cpu, vcpu, kind });
        });
        self.undecodable += u64::from(!is_event);
        if let Some(rip) = decoder.rip(sample.raw, bytes.0) {
            self.rips.add(tid, rip);
        }
    }
}
