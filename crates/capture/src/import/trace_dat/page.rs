//! A page of the ring buffer -> events.
//!
//! ```text
//!  page:   time stamp (64 bit) | commit | data ...                      places: events/header_page
//!  commit: bits 0-26 length of the data, bit 30 a count of lost events follows the data,
//!          bit 31 events were lost before this page
//!  event:  type_len (5 bits) time_delta (27 bits) | ...                 little endian: type_len low
//!          0      a word with the length of word and record, then the record
//!          1-28   a record of type_len words
//!          29     padding: to the end of the page if time_delta is 0, else a word with its length
//!          30     time extend: a word with the upper bits of a long time_delta
//!          31     absolute time: as 30, but a time of 59 bits; the upper 5 bits stay
//! ```

use std::collections::{HashMap, HashSet};

use vmtax_events::{Event, EventKind, NO_PID, NO_VCPU};

use super::header::PageLayout;
use super::options::Tsc2Nsec;
use crate::import::Rips;
use crate::import::formats::EventFormats;
use crate::import::tracepoint::Endian;

const COMMIT_MASK: u64 = (1 << 27) - 1;
const LOST_BEFORE: u64 = 1 << 31;
const LOST_COUNT_STORED: u64 = 1 << 30;
const DELTA_MASK: u32 = (1 << 27) - 1;
/// The bits of a time that an absolute time stamp does not carry.
const ABSOLUTE_UPPER: u64 = 0x1f << 59;

/// How the pages of all CPUs are decoded. The threads that decode share it.
pub(super) struct PageDecoder<'a> {
    pub(super) formats: &'a EventFormats,
    pub(super) endian: Endian,
    pub(super) layout: PageLayout,
    pub(super) tsc2nsec: Option<Tsc2Nsec>,
    /// Thread -> process, if the file has it.
    pub(super) tgids: &'a HashMap<u32, u32>,
}

/// What pages hold.
#[derive(Debug, Default)]
pub(super) struct DecodedPages {
    pub(super) events: Vec<Event>,
    /// Places in `events` of those that have the time of the last record before all of these pages.
    pub(super) untimed: Vec<usize>,
    /// Threads that get a CPU, and their names.
    pub(super) names: Vec<(u32, String)>,
    named: HashSet<u32>,
    /// Which of the formats' decoders met a record.
    pub(super) seen: Vec<bool>,
    /// Records by `common_type`.
    pub(super) counts: Vec<u32>,
    /// Losses without a number, events that the recorder lost, records that cannot be decoded.
    pub(super) gaps: u64,
    pub(super) lost: u64,
    pub(super) undecodable: u64,
    /// The guest's instruction pointers of entries and exits.
    pub(super) rips: Rips,
    /// Raw time of the last record, if there was one.
    pub(super) time: Option<u64>,
}

impl DecodedPages {
    /// Forgets what it holds and keeps the room.
    pub(super) fn clear(&mut self, formats: &EventFormats) {
        self.events.clear();
        self.untimed.clear();
        self.names.clear();
        self.named.clear();
        self.rips.clear();
        self.seen.clear();
        self.seen.resize(formats.decoders.len(), false);
        self.counts.clear();
        self.counts.resize(formats.index.len(), 0);
        (self.gaps, self.lost, self.undecodable, self.time) = (0, 0, 0, None);
    }
}

/// The problem of a page, and its place.
#[derive(Debug)]
pub(super) struct PageDamage {
    pub(super) at: usize,
    pub(super) problem: &'static str,
}

impl PageDecoder<'_> {
    /// A time stamp of the ring on the recording's clock.
    pub(super) fn ns(&self, raw: u64) -> u64 {
        match self.tsc2nsec {
            None => raw,
            Some(tsc) => tsc.apply(raw),
        }
    }

    /// Decodes one page. An inconsistent page gives the records before the inconsistency.
    pub(super) fn page(&self, page: &[u8], cpu: u32, out: &mut DecodedPages) -> Option<PageDamage> {
        match self.endian {
            Endian::Little => self.page_in::<false>(page, cpu, out),
            Endian::Big => self.page_in::<true>(page, cpu, out),
        }
    }

    fn page_in<const BIG: bool>(
        &self,
        page: &[u8],
        cpu: u32,
        out: &mut DecodedPages,
    ) -> Option<PageDamage> {
        let layout = self.layout;
        let (Some(start), Some(commit), Some(data)) = (
            u64_at::<BIG>(page, layout.time_at),
            long_at::<BIG>(page, layout.commit_at, layout.commit_size),
            page.get(layout.data_at..),
        ) else {
            return Some(PageDamage { at: 0, problem: "the page is cut in its header" });
        };
        let length = usize::try_from(commit & COMMIT_MASK).unwrap_or(usize::MAX);
        if commit & LOST_BEFORE != 0 {
            let stored = (commit & LOST_COUNT_STORED != 0)
                .then(|| long_at::<BIG>(data, length, layout.commit_size))
                .flatten();
            self.lost(stored.unwrap_or(0), cpu, start, out);
        }
        if length == 0 {
            // An empty page has a time all the same, one that never reached the disk has nothing.
            let is_blank = start == 0 && commit == 0;
            return is_blank.then_some(PageDamage { at: 0, problem: "the page is blank" });
        }
        let cut = length > data.len();
        let data = data.get(..length).unwrap_or(data);
        let mut time = start;
        let damage = self.records::<BIG>(data, cpu, &mut time, out);
        out.time = Some(time);
        let damage = damage.map(|d| PageDamage { at: layout.data_at + d.at, ..d });
        damage.or(cut.then_some(PageDamage {
            at: layout.commit_at,
            problem: "the page has less data than it says",
        }))
    }

    /// The loss of `count` events (0: unknown) before the time `raw`.
    fn lost(&self, count: u64, cpu: u32, raw: u64, out: &mut DecodedPages) {
        match count {
            0 => out.gaps += 1,
            n => out.lost = out.lost.saturating_add(n),
        }
        out.events.push(self.marker(count, cpu, raw));
    }

    /// Marks that events are missing behind the last record, without counting it as the recorder's loss.
    pub(super) fn gap(&self, cpu: u32, out: &mut DecodedPages) {
        if out.time.is_none() {
            out.untimed.push(out.events.len());
        }
        out.events.push(self.marker(0, cpu, out.time.unwrap_or(0)));
    }

    fn marker(&self, count: u64, cpu: u32, raw: u64) -> Event {
        let kind = EventKind::Lost { count };
        Event { time_ns: self.ns(raw), pid: NO_PID, tid: 0, cpu, vcpu: NO_VCPU, kind }
    }

    /// The hot loop: records of one page.
    fn records<const BIG: bool>(
        &self,
        data: &[u8],
        cpu: u32,
        time: &mut u64,
        out: &mut DecodedPages,
    ) -> Option<PageDamage> {
        let formats = self.formats;
        let tsc2nsec = self.tsc2nsec;
        let damaged = |at, problem| Some(PageDamage { at, problem });
        let mut last_tgid = (0, NO_PID);
        let mut now = *time;
        let mut at = 0;
        while let Some(word) = u32_at::<BIG>(data, at) {
            let (type_len, delta) =
                if BIG { (word >> 27, word & DELTA_MASK) } else { (word & 31, word >> 5) };
            let (record_at, len) = match type_len {
                1..=28 => {
                    now = now.wrapping_add(u64::from(delta));
                    (at + 4, type_len as usize * 4)
                }
                29 if delta == 0 => break,
                _ => {
                    let Some(word) = u32_at::<BIG>(data, at + 4) else {
                        *time = now;
                        return damaged(at, "an event is cut");
                    };
                    let long = (u64::from(word) << 27).wrapping_add(u64::from(delta));
                    match type_len {
                        30 => {
                            now = now.wrapping_add(long);
                            at += 8;
                            continue;
                        }
                        31 => {
                            now = absolute(long, now);
                            at += 8;
                            continue;
                        }
                        29 => {
                            now = now.wrapping_add(u64::from(delta));
                            // The length counts from the length's own word.
                            at = at.saturating_add(4).saturating_add(word as usize);
                            continue;
                        }
                        _ => {
                            now = now.wrapping_add(u64::from(delta));
                            let Some(len) = word.checked_sub(4) else {
                                *time = now;
                                return damaged(at, "an event is shorter than its length");
                            };
                            (at + 8, (len as usize).saturating_add(3) & !3)
                        }
                    }
                }
            };
            let Some(record) = data.get(record_at..record_at.saturating_add(len)) else {
                *time = now;
                return damaged(at, "an event reaches over the end of its page");
            };
            at = record_at + len;
            // Every record begins with its common_type.
            let Some(id) = u16_at::<BIG>(record) else { continue };
            if let Some(count) = out.counts.get_mut(usize::from(id)) {
                *count += 1;
            }
            let slot = match formats.index.get(usize::from(id)) {
                Some(&slot) if slot != 0 => usize::from(slot) - 1,
                _ => continue,
            };
            let Some(decoder) = formats.decoders.get(slot) else { continue };
            let Some(decoded) = decoder.decode(record) else {
                out.undecodable += u64::from(!decoder.skips(record));
                continue;
            };
            if let Some(seen) = out.seen.get_mut(slot) {
                *seen = true;
            }
            let time_ns = match tsc2nsec {
                None => now,
                Some(tsc) => tsc.apply(now),
            };
            let tid = decoded.tid;
            if let Some(rip) = decoder.rip(record, self.endian) {
                out.rips.add(tid, rip);
            }
            if !self.tgids.is_empty() && last_tgid.0 != tid {
                last_tgid = (tid, self.tgids.get(&tid).copied().unwrap_or(NO_PID));
            }
            let (vcpu, kind) = (decoded.vcpu, decoded.kind);
            // The list of names that the kernel saved is short.
            if let EventKind::Switch { next_tid, .. } = kind
                && next_tid != 0
                && let Some(name) = decoder.next_name(record)
                && out.named.insert(next_tid)
            {
                out.names.push((next_tid, String::from_utf8_lossy(name).into_owned()));
            }
            out.events.push(Event { time_ns, pid: last_tgid.1, tid, cpu, vcpu, kind });
        }
        *time = now;
        None
    }
}

/// An absolute time of 59 bits; the missing upper ones are those of the time before it, or one more
/// if it would else go back.
fn absolute(low: u64, before: u64) -> u64 {
    let upper = before & ABSOLUTE_UPPER;
    let time = low | upper;
    if upper != 0 && time < before { time.wrapping_add(1 << 59) } else { time }
}

#[inline(always)]
fn u16_at<const BIG: bool>(data: &[u8]) -> Option<u16> {
    let raw = *data.first_chunk()?;
    Some(if BIG { u16::from_be_bytes(raw) } else { u16::from_le_bytes(raw) })
}

#[inline(always)]
fn u32_at<const BIG: bool>(data: &[u8], at: usize) -> Option<u32> {
    let raw = *data.get(at..)?.first_chunk()?;
    Some(if BIG { u32::from_be_bytes(raw) } else { u32::from_le_bytes(raw) })
}

fn u64_at<const BIG: bool>(data: &[u8], at: usize) -> Option<u64> {
    let raw = *data.get(at..)?.first_chunk()?;
    Some(if BIG { u64::from_be_bytes(raw) } else { u64::from_le_bytes(raw) })
}

/// A `long` of 4 or 8 bytes.
fn long_at<const BIG: bool>(data: &[u8], at: usize, size: usize) -> Option<u64> {
    match size {
        8 => u64_at::<BIG>(data, at),
        _ => u32_at::<BIG>(data, at).map(u64::from),
    }
}
