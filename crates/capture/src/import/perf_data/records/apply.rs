//! Decoded spans in the order of the file -> the feed, and the records that are no samples.

use vmtax_events::{Event, EventKind, NO_PID, NO_VCPU};

use super::RecordReader;
use crate::feed::{Cut, one_by_one};
use crate::import::perf_data::plan::SampleLayout;
use crate::import::perf_data::profile;
use crate::import::perf_data::record::{HEADER, kind, record_type};
use crate::import::perf_data::samples::{MarkKind, RecordSpan};
use crate::{Error, Feed, ProfileRecord};

/// LOST_SAMPLES with this flag were filtered out on purpose, by a BPF filter.
const MISC_LOST_SAMPLES_BPF: u16 = 1 << 15;

impl<F: Feed> RecordReader<'_, '_, '_, F> {
    /// Feeds the events of a span, and does what its marks ask for.
    pub(super) fn apply(&mut self, span: &mut RecordSpan<'_>) -> Result<(), Error> {
        let RecordSpan { plan, block, decoded, .. } = span;
        self.session.add(decoded);
        self.in_round = decoded.in_round || (self.in_round && !decoded.ends_round);
        let mut cuts = std::mem::take(&mut self.cuts);
        cuts.clear();
        // The events before it are fed.
        let mut from = 0;
        for mark in &decoded.marks {
            self.round_max = self.round_max.max(mark.latest);
            match &mark.what {
                MarkKind::Round if !self.has_rounds => {}
                MarkKind::Round => {
                    cuts.push(Cut { at: mark.at - from, release: self.previous_max });
                    self.previous_max = self.round_max;
                }
                MarkKind::Name(tid, name) => {
                    if !self.session.is_unnamed(*tid) {
                        continue;
                    }
                    // The name precedes the events that are not passed on yet, and follows the others.
                    if !cuts.is_empty() {
                        one_by_one(self.feed, &decoded.events[from..mark.at], &cuts)?;
                        cuts.clear();
                        from = mark.at;
                    }
                    let name = String::from_utf8_lossy(&block[name.clone()]);
                    self.feed.thread_name(NO_PID, *tid, &name)?;
                }
                MarkKind::Record(record) => {
                    one_by_one(self.feed, &decoded.events[from..mark.at], &cuts)?;
                    cuts.clear();
                    from = mark.at;
                    let record = &block[record.clone()];
                    match plan.layout(record) {
                        SampleLayout::Other(layout)
                            if record_type(record, plan.bytes) == kind::SAMPLE =>
                        {
                            profile::sample(layout, record, plan.bytes, self.feed)?;
                        }
                        _ => self.rare(record)?,
                    }
                }
            }
        }
        self.round_max = self.round_max.max(decoded.latest);
        if from == 0 {
            if !self.has_rounds {
                // They were sorted between the ends of rounds, which are no releases here.
                decoded.events.sort_by_key(|event| event.time_ns);
            }
            self.feed.block(&mut decoded.events, &cuts)?;
        } else {
            one_by_one(self.feed, &decoded.events[from..], &cuts)?;
        }
        self.cuts = cuts;
        Ok(())
    }

    /// Records that a recording has few of.
    #[cold]
    fn rare(&mut self, record: &[u8]) -> Result<(), Error> {
        let bytes = self.session.bytes;
        let kind = record_type(record, bytes);
        let word = |at: usize| bytes.u64(record, at).unwrap_or(0);
        match kind {
            kind::LOST => {
                let count = word(HEADER + 8);
                self.session.lost(count);
                self.marker(record, 0, EventKind::Lost { count })?;
            }
            kind::LOST_SAMPLES => {
                let is_filter = bytes.u16(record, 4).unwrap_or(0) & MISC_LOST_SAMPLES_BPF != 0;
                self.session.lost_samples(if is_filter { 0 } else { word(HEADER) });
            }
            kind::READ => {
                let lost = self.session.plan.trailer().and_then(|l| l.lost_of_read(record, bytes));
                if let Some((id, count)) = lost {
                    self.session.lost_read(id, count);
                }
            }
            kind::COMM => {
                let (pid, tid) = (bytes.u32(record, HEADER), bytes.u32(record, HEADER + 4));
                let name = record.get(HEADER + 8..).unwrap_or_default();
                let name = name.split(|&b| b == 0).next().unwrap_or_default();
                let name = String::from_utf8_lossy(&name[..name.len().min(256)]);
                if let (Some(pid), Some(tid)) = (pid, tid) {
                    self.session.is_unnamed(tid);
                    self.feed.thread_name(pid, tid, &name)?;
                    if F::WANTS_PROFILE {
                        let id = self.session.plan.trailer().map(|l| l.sample_id(record, bytes));
                        let time_ns = id.and_then(|id| id.time).unwrap_or(0);
                        self.feed.profiled(ProfileRecord::Name { tid, time_ns, name: &name })?;
                    }
                }
            }
            kind::EXIT => {
                let tid = bytes.u32(record, HEADER + 8).unwrap_or(0);
                self.marker(record, tid, EventKind::ThreadEnd)?;
            }
            _ if F::WANTS_PROFILE && profile::is_of(kind) => {
                let time_ns = self
                    .session
                    .plan
                    .trailer()
                    .and_then(|layout| layout.sample_id(record, bytes).time)
                    .unwrap_or(0);
                profile::record(kind, record, bytes, time_ns, self.feed)?;
            }
            kind::ID_INDEX => self.session.id_index(record),
            _ => {}
        }
        Ok(())
    }

    /// An event made of a record that is not a sample. Without a time of its own it gets the
    /// latest time seen.
    fn marker(&mut self, record: &[u8], tid: u32, kind: EventKind) -> Result<(), Error> {
        let id = self
            .session
            .plan
            .trailer()
            .map(|l| l.sample_id(record, self.session.bytes))
            .unwrap_or_default();
        // perf writes 0 where an event has no time (those it makes up itself at the start).
        let time_ns = id.time.filter(|&t| t > 0).unwrap_or(self.round_max);
        self.round_max = self.round_max.max(time_ns);
        let cpu = id.cpu.unwrap_or(u32::MAX);
        self.feed.event(Event { time_ns, pid: NO_PID, tid, cpu, vcpu: NO_VCPU, kind })
    }
}
