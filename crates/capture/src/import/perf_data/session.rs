//! What is known of a recording while its records are read: layouts, decoders, facts, losses.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use vmtax_events::{Losses, Recording};

use super::layout::{AttributeLayout, OrderedBytes};
use super::plan::{Attr, AttrKind, DecodePlan};
use super::sampled::{Again, kind_of};
use super::samples::DecodedSpan;
use crate::Error;
use crate::import::formats;
use crate::import::tracepoint::Endian;
use crate::import::{Imported, Rips, architecture};

const TYPE_SOFTWARE: u32 = 1;
const TYPE_TRACEPOINT: u32 = 2;
const SW_DUMMY: u64 = 9;

/// More processors than a kernel has, and so more rings and files of a folder.
pub(super) const MAX_PARTS: usize = 1 << 13;

/// More events, ids of events and sentences about formats than a recording has. A stream can go on for
/// ever, so all of them have to be bounded.
const MAX_ATTRS: usize = 1 << 16;
const MAX_IDS: usize = 1 << 22;
const MAX_NOTES: usize = 100;

/// Feature bits (linux/tools/perf/util/header.h).
pub(super) mod feature {
    pub(in super::super) const TRACING_DATA: u64 = 1;
    pub(in super::super) const HOSTNAME: u64 = 3;
    pub(in super::super) const OSRELEASE: u64 = 4;
    pub(in super::super) const VERSION: u64 = 5;
    pub(in super::super) const ARCH: u64 = 6;
    pub(in super::super) const NRCPUS: u64 = 7;
    pub(in super::super) const CPUDESC: u64 = 8;
    pub(in super::super) const CMDLINE: u64 = 11;
    pub(in super::super) const DIR_FORMAT: u64 = 24;
}

/// State of one import.
#[derive(Debug)]
pub(super) struct PerfDataSession {
    pub(super) bytes: OrderedBytes,
    pub(super) recording: Recording,
    pub(super) losses: Losses,
    /// What samples are decoded by.
    pub(super) plan: Arc<DecodePlan>,
    lost_records: u64,
    lost_samples: u64,
    lost_reads: HashMap<u64, u64>,
    without_attr: u64,
    /// Tracepoints that several events record.
    again: Again,
    rips: Rips,
    /// Samples by `common_type`, once the formats are known.
    counts: Vec<u64>,
    /// Threads that have a name.
    named: HashSet<u32>,
    /// An architecture that is not x86, and where it shows.
    foreign: Option<(&'static str, u64)>,
    /// The file is one of a folder, by its feature DIR_FORMAT.
    pub(super) is_folder: bool,
    /// Processors whose rings were read.
    pub(super) rings: HashSet<u64>,
    /// The prefix of messages about a part of a folder.
    pub(super) place: String,
}

/// Threads whose names are remembered.
const MOST_NAMED: usize = 1 << 16;

impl PerfDataSession {
    /// Whether a thread has no name yet; it has one from now on.
    pub(super) fn is_unnamed(&mut self, tid: u32) -> bool {
        tid != 0 && self.named.len() < MOST_NAMED && self.named.insert(tid)
    }

    pub(super) fn new(endian: Endian, format: &str) -> PerfDataSession {
        PerfDataSession {
            bytes: OrderedBytes(endian),
            recording: Recording { format: format.to_owned(), ..Recording::default() },
            losses: Losses::default(),
            plan: Arc::new(DecodePlan::new(OrderedBytes(endian))),
            lost_records: 0,
            lost_samples: 0,
            lost_reads: HashMap::new(),
            without_attr: 0,
            again: Again::default(),
            rips: Rips::default(),
            counts: Vec::new(),
            named: HashSet::new(),
            foreign: None,
            is_folder: false,
            rings: HashSet::new(),
            place: String::new(),
        }
    }

    /// Refuses a recording of another architecture, as soon as that is known.
    pub(super) fn check_architecture(&self) -> Result<(), Error> {
        self.foreign.map_or(Ok(()), |(name, offset)| Err(architecture::refuse(name, offset)))
    }

    /// Adds what a span of records holds.
    pub(super) fn add(&mut self, decoded: &DecodedSpan) {
        self.losses.undecodable = self.losses.undecodable.saturating_add(decoded.undecodable);
        self.without_attr = self.without_attr.saturating_add(decoded.unlisted);
        self.again.add(&decoded.again);
        self.rips.add_all(&decoded.rips);
        for (sum, count) in self.counts.iter_mut().zip(&decoded.counts) {
            *sum += u64::from(*count);
        }
    }

    /// A `perf_event_attr` and its event ids.
    pub(super) fn attr(&mut self, attr: &[u8], ids: &[u8]) {
        let b = self.bytes;
        let words = (b.u64(attr, 8), b.u64(attr, 16), b.u64(attr, 24), b.u64(attr, 32));
        let (Some(config), Some(period), Some(sample_type), Some(read_format)) = words else {
            self.losses.undecodable += 1;
            return;
        };
        let (Some(event_type), Some(flags)) = (b.u32(attr, 0), b.u64(attr, 40)) else {
            self.losses.undecodable += 1;
            return;
        };
        if self.plan.attrs.len() >= MAX_ATTRS {
            self.losses.undecodable += 1;
            return;
        }
        // Bit fields fill from the low end on little-endian machines, from the high end on others.
        let flag = |at: u32| match b.0 {
            Endian::Little => flags >> at & 1 == 1,
            Endian::Big => flags >> (63 - at) & 1 == 1,
        };
        let (is_frequency, sample_id_all, use_clockid) = (flag(10), flag(18), flag(25));
        let layout = AttributeLayout::new(sample_type, read_format, sample_id_all);
        if let Some(clock) = b.u32(attr, 92).filter(|_| use_clockid) {
            self.recording.clock = clock_name(clock);
        }
        // Samples without an id do not say which of the two they are of.
        let is_again = event_type == TYPE_TRACEPOINT
            && layout.id().is_some()
            && self.again.is_recorded(config, period);
        let kind = match event_type {
            TYPE_TRACEPOINT if is_again => AttrKind::Again(config),
            TYPE_TRACEPOINT => kind_of(config, period, is_frequency, &layout),
            _ => AttrKind::Other,
        };
        let is_plain = matches!(kind, AttrKind::Tracepoint(_));
        let is_silent = event_type == TYPE_SOFTWARE && config == SW_DUMMY;
        let plan = Arc::make_mut(&mut self.plan);
        plan.uniform = match plan.uniform {
            None if plan.attrs.is_empty() && is_plain => Some(layout),
            Some(same) if (is_plain && same == layout) || is_silent => Some(same),
            _ => None,
        };
        if kind != AttrKind::Other && !layout.is_usable() {
            let note = "an event was recorded without time stamps or raw data; it is left out (record with -R -T)";
            if !self.losses.notes.iter().any(|n| n == note) {
                self.losses.notes.push(note.to_owned());
            }
        }
        let room = MAX_IDS.saturating_sub(plan.by_id.len());
        for at in (0..ids.len() / 8).map(|i| i * 8).take(room) {
            if let Some(id) = b.u64(ids, at) {
                plan.by_id.entry(id).or_insert(plan.attrs.len());
            }
        }
        plan.attrs.push(Attr { layout, kind });
    }

    pub(super) fn wants_feature(&self, id: u64) -> bool {
        use feature as f;
        matches!(
            id,
            f::TRACING_DATA
                | f::HOSTNAME
                | f::OSRELEASE
                | f::VERSION
                | f::ARCH
                | f::NRCPUS
                | f::CPUDESC
                | f::CMDLINE
                | f::DIR_FORMAT
        )
    }

    /// A feature section's payload at byte `offset`.
    pub(super) fn feature(&mut self, id: u64, payload: &[u8], offset: u64) -> Result<(), Error> {
        match id {
            feature::TRACING_DATA => self.tracing_data(payload, offset)?,
            feature::HOSTNAME => self.recording.hostname = self.string(payload),
            feature::OSRELEASE => self.recording.kernel = self.string(payload),
            feature::VERSION => self.recording.tool = format!("perf {}", self.string(payload)),
            feature::ARCH => {
                self.recording.arch = self.string(payload);
                let name = architecture::of_machine(&self.recording.arch);
                self.foreign = self.foreign.or(name.map(|name| (name, offset)));
            }
            feature::DIR_FORMAT => self.is_folder = true,
            feature::NRCPUS => {
                // Available, then online.
                self.recording.cpus = self.bytes.u32(payload, 4).unwrap_or(0);
            }
            feature::CPUDESC => {
                self.recording.cpu = self.string(payload);
                self.recording.emulated = Recording::emulator_of_cpu(&self.recording.cpu);
            }
            feature::CMDLINE => self.recording.command = self.strings(payload).join(" "),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn tracing_data(&mut self, payload: &[u8], offset: u64) -> Result<(), Error> {
        let formats = formats::of_tracing_data(payload, offset)?;
        let room = MAX_NOTES.saturating_sub(self.losses.notes.len());
        for name in formats.not_understood.iter().take(room) {
            self.losses
                .notes
                .push(format!("the format of the event {name:?} is not understood: skipped"));
        }
        self.recording.coverage = formats.described;
        self.counts = vec![0; formats.index.len()];
        self.foreign = self.foreign.or(formats.architecture.map(|name| (name, offset)));
        Arc::make_mut(&mut self.plan).formats = Some(formats);
        self.plan.limit(&mut self.recording.coverage);
        Ok(())
    }

    /// Whether samples can be decoded at all.
    pub(super) fn has_formats(&self) -> bool {
        self.plan.formats.is_some()
    }

    pub(super) fn truncated(&mut self, sentence: String) {
        self.losses.truncated.push(format!("{}{sentence}", self.place));
    }

    /// Notes the processors whose rings perf read: a folder has a part of each.
    pub(super) fn id_index(&mut self, record: &[u8]) {
        // The count, then id, index, processor and thread of each event.
        let count = self.bytes.u64(record, 8).and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        for entry in 0..count.min(record.len() / 32) {
            let cpu = self.bytes.u64(record, 16 + 32 * entry + 16);
            if let Some(cpu) = cpu.filter(|_| self.rings.len() < MAX_PARTS) {
                self.rings.insert(cpu);
            }
        }
    }

    pub(super) fn lost(&mut self, count: u64) {
        self.lost_records = self.lost_records.saturating_add(count);
    }

    pub(super) fn lost_samples(&mut self, count: u64) {
        self.lost_samples = self.lost_samples.saturating_add(count);
    }

    /// A running count of one event's losses.
    pub(super) fn lost_read(&mut self, id: u64, count: u64) {
        if self.lost_reads.len() < MAX_IDS || self.lost_reads.contains_key(&id) {
            let seen = self.lost_reads.entry(id).or_default();
            *seen = count.max(*seen);
        }
    }

    pub(super) fn finish(mut self) -> Imported {
        // Three ways to tell of the same losses: LOST records (in place, as far as the ring had room for
        // them), LOST_SAMPLES at the end, counts in READ records. The largest is the truth.
        let reads = self.lost_reads.values().fold(0u64, |a, &b| a.saturating_add(b));
        self.losses.recorder_lost = self.lost_records.max(self.lost_samples).max(reads);
        if self.without_attr > 0 {
            let n = self.without_attr;
            self.losses.undecodable = self.losses.undecodable.saturating_add(n);
            self.losses
                .notes
                .push(format!("{n} samples belong to an event that the file does not list"));
        }
        self.plan.limit(&mut self.recording.coverage);
        self.plan.note_sampling(&mut self.losses);
        let formats = self.plan.formats.as_ref();
        if let Some(formats) = formats {
            self.again.note(formats, &self.counts, &mut self.losses);
        }
        let seen = formats.map(|formats| formats.seen(&self.counts)).unwrap_or_default();
        Imported { recording: self.recording, losses: self.losses, seen, rips: self.rips }
    }

    fn string(&self, payload: &[u8]) -> String {
        self.strings_at(payload, 0, 1).pop().unwrap_or_default()
    }

    fn strings(&self, payload: &[u8]) -> Vec<String> {
        let count = self.bytes.u32(payload, 0).unwrap_or(0).min(4096);
        self.strings_at(payload, 4, count)
    }

    fn strings_at(&self, payload: &[u8], mut at: usize, count: u32) -> Vec<String> {
        let mut strings = Vec::new();
        for _ in 0..count {
            let Some(len) = self.bytes.u32(payload, at) else { break };
            let Some(text) = payload.get(at + 4..).and_then(|p| p.get(..len as usize)) else {
                break;
            };
            let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
            strings.push(String::from_utf8_lossy(&text[..end]).into_owned());
            at += 4 + len as usize;
        }
        strings
    }
}

fn clock_name(id: u32) -> String {
    // Linux include/uapi/linux/time.h
    match id {
        0 => "realtime".to_owned(),
        1 => "monotonic".to_owned(),
        4 => "monotonic-raw".to_owned(),
        7 => "boottime".to_owned(),
        11 => "tai".to_owned(),
        n => format!("clock {n}"),
    }
}
