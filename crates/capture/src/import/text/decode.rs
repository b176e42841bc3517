//! A block of lines -> items for the session, in the order of the lines. Blocks are independent, so several threads can decode them. The one
//! exception is the vendor of exit reasons that are bare numbers: a block records whether it used the vendor that it was given.

use vmtax_events::{Event, EventKind, Isa, NO_VCPU};

use super::blocks::First;
use super::format::TextFormat;
use super::line::{EventLine, ThreadDialect, Time};
use super::payload;
use super::reason::Reasons;
use super::words::TextWords;
use crate::Error;
use crate::import::sampling::{SampleWeight, stands_for_others};
use crate::import::tracepoint::table;
use crate::import::{Rips, SeenEvents, architecture};

/// Whole lines, and the items decoded from them.
pub(super) struct TextBlock {
    pub(super) bytes: Vec<u8>,
    /// Offset in the input.
    pub(super) offset: u64,
    /// Vendor of the exit reasons before this block, as far as known when decoding began.
    pub(super) isa: Isa,
    /// How threads are written, and how the events were sampled.
    pub(super) dialect: ThreadDialect,
    pub(super) sampling: Option<SampleWeight>,
    pub(super) decoded: DecodedBlock,
}

/// The contents of a block.
#[derive(Default)]
pub(super) struct DecodedBlock {
    pub(super) items: Vec<Item>,
    /// Concatenated names of threads.
    names: Vec<u8>,
    pub(super) reasons: Reasons,
    /// Events per tracepoint that the analysis uses.
    pub(super) counts: Vec<u64>,
    /// KVM events that the analysis does not use.
    pub(super) others: SeenEvents,
    /// The guest's instruction pointers of entries and exits.
    pub(super) rips: Rips,
    /// Context switches, and those of another thread than the line is of.
    pub(super) switches: u64,
    pub(super) foreign_switches: u64,
    /// An event stands for others, although the first lines' do not.
    pub(super) is_sampled_late: bool,
    /// At least one line is an event.
    pub(super) has_event: bool,
    /// At least one event's time has six decimals only.
    pub(super) is_rounded: bool,
    pub(super) undecodable: u64,
    /// Lines that were longer than [`super::blocks::LONGEST_LINE`].
    pub(super) cut: u64,
}

/// A step for the session.
pub(super) enum Item {
    Event(Event),
    /// The events from here on are of this file or instance.
    Stream(TextRange),
    /// Time of the first event after a line that is no event.
    Time(u64),
    /// Name of an event's thread, unless the event before had the same thread and name.
    Name {
        pid: u32,
        tid: u32,
        name: TextRange,
    },
    /// Name of the thread that a context switch switches to.
    NameOfNext {
        tid: u32,
        name: TextRange,
    },
    /// A line of the block that is no event, and whether it names a tracepoint that the analysis uses.
    Other {
        line: TextRange,
        names_tracepoint: bool,
    },
    /// The import fails here.
    Fail(Box<Error>),
}

/// A range of a block's bytes, or of its names.
#[derive(Clone, Copy)]
pub(super) struct TextRange {
    from: u32,
    to: u32,
}

impl TextRange {
    fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.from as usize..self.to as usize).unwrap_or_default()
    }
}

impl TextBlock {
    pub(super) fn empty() -> TextBlock {
        let (dialect, sampling) = (ThreadDialect::PerfScript, None);
        let (bytes, decoded) = (Vec::new(), DecodedBlock::default());
        TextBlock { bytes, offset: 0, isa: Isa::Unknown, dialect, sampling, decoded }
    }

    pub(super) fn line(&self, line: TextRange) -> &[u8] {
        line.of(&self.bytes)
    }
}

impl DecodedBlock {
    pub(super) fn name(&self, name: TextRange) -> &[u8] {
        name.of(&self.names)
    }

    fn keep(&mut self, name: &[u8]) -> TextRange {
        let from = self.names.len() as u32;
        self.names.extend_from_slice(name);
        TextRange { from, to: self.names.len() as u32 }
    }
}

/// Reads the lines of a block.
pub(super) fn decode<F: TextFormat>(mut block: TextBlock) -> TextBlock {
    let TextBlock { bytes, offset, isa, dialect, sampling, decoded } = &mut block;
    decoded.clear(*isa);
    let (dialect, sampling) = (*dialect, *sampling);
    let mut lines = BlockDecoder {
        decoded,
        dialect,
        sampling,
        stream: None,
        last: None,
        is_behind_other: true,
    };
    let mut from = 0;
    while from < bytes.len() {
        let First { line, len, is_cut } = First::of(bytes.get(from..).unwrap_or_default());
        lines.decoded.cut += u64::from(is_cut);
        let at = TextRange { from: from as u32, to: (from + line.len()) as u32 };
        if let Err(error) = lines.line::<F>(line, at, *offset + from as u64) {
            lines.decoded.items.push(Item::Fail(Box::new(error)));
            break;
        }
        from += len;
    }
    block
}

struct BlockDecoder<'b> {
    decoded: &'b mut DecodedBlock,
    dialect: ThreadDialect,
    sampling: Option<SampleWeight>,
    /// The stream of the event before.
    stream: Option<TextRange>,
    /// Process, thread and name of the event before.
    last: Option<(u32, u32, TextRange)>,
    /// The line before is no event, or is in another block.
    is_behind_other: bool,
}

impl BlockDecoder<'_> {
    /// `offset` is the line's offset in the input.
    fn line<F: TextFormat>(
        &mut self,
        text: &[u8],
        at: TextRange,
        offset: u64,
    ) -> Result<(), Error> {
        let is_comment = text.first() == Some(&b'#');
        let line = if is_comment { None } else { EventLine::read(text, self.dialect) };
        match line {
            Some(EventLine { time: Time::Count, .. }) => Err(Error::Unsupported {
                offset,
                item: "time stamp",
                problem: "it has no decimal point, so it is a count of a clock of unknown speed; \
                          record with a trace clock in nanoseconds (local, global, mono, boot)"
                    .to_owned(),
            }),
            Some(line @ EventLine { time: Time::Ns(time_ns, digits), .. }) => {
                self.decoded.has_event = true;
                let kind = self.kind::<F>(&line, offset)?;
                self.event(&line, kind, time_ns, digits);
                Ok(())
            }
            None => {
                self.is_behind_other = true;
                let names_tracepoint = !is_comment && names_tracepoint(text);
                self.decoded.items.push(Item::Other { line: at, names_tracepoint });
                Ok(())
            }
        }
    }

    /// vCPU and kind of an event that the analysis uses.
    fn kind<F: TextFormat>(
        &mut self,
        line: &EventLine<'_>,
        offset: u64,
    ) -> Result<Option<(u32, EventKind)>, Error> {
        let decoded = &mut *self.decoded;
        let Some(index) = table::find(line.event) else {
            if let Some(name) = architecture::of_event(line.event) {
                return Err(architecture::refuse(name, offset));
            }
            if line.event.starts_with(b"kvm_") {
                decoded.others.add(&String::from_utf8_lossy(line.event), 1);
            }
            return Ok(F::record(line).map(|kind| (NO_VCPU, kind)));
        };
        if let Some(count) = decoded.counts.get_mut(index) {
            *count += 1;
        }
        let read = table::read(index, line.payload, &mut decoded.reasons);
        if let Some(rip) = read.and_then(|read| read.rip) {
            decoded.rips.add(line.tid, rip);
        }
        if read.is_none() {
            decoded.undecodable += 1;
            if line.event == b"kvm_exit"
                && let Some(name) = architecture::of_exit_text(line.payload)
            {
                return Err(architecture::refuse(name, offset));
            }
        }
        Ok(read.and_then(|read| Some((read.vcpu, read.kind?))))
    }

    fn event(
        &mut self,
        line: &EventLine<'_>,
        kind: Option<(u32, EventKind)>,
        time_ns: u64,
        digits: usize,
    ) {
        if std::mem::take(&mut self.is_behind_other) {
            self.decoded.items.push(Item::Time(time_ns));
        }
        let &EventLine { comm, pid, tid, cpu, period, stream, .. } = line;
        if self.stream.is_none_or(|last| self.decoded.name(last) != stream) {
            let stream = self.decoded.keep(stream);
            self.stream = Some(stream);
            self.decoded.items.push(Item::Stream(stream));
        }
        let is_last = |&(last_pid, last_tid, name): &(u32, u32, TextRange)| {
            last_pid == pid && last_tid == tid && self.decoded.name(name) == comm
        };
        // perf's name for a thread while it runs a guest (`perf script --guest-code`).
        let is_named = !comm.is_empty() && !comm.starts_with(b"[guest/");
        if is_named && !self.last.as_ref().is_some_and(is_last) {
            let name = self.decoded.keep(comm);
            self.last = Some((pid, tid, name));
            self.decoded.items.push(Item::Name { pid, tid, name });
        }
        let Some((vcpu, kind)) = kind else { return };
        self.decoded.is_rounded |= digits == 6;
        if let EventKind::Switch { .. } = kind {
            // The last switch of a thread that has ended has no thread.
            let previous = payload::previous_of_switch(line.payload).filter(|_| tid != 0);
            self.decoded.switches += 1;
            self.decoded.foreign_switches += u64::from(previous.is_some_and(|of| of != tid));
            if let Some((tid, name)) = payload::next_of_switch(line.payload) {
                let name = self.decoded.keep(name);
                self.decoded.items.push(Item::NameOfNext { tid, name });
            }
        }
        let event = Event { time_ns, pid, tid, cpu, vcpu, kind };
        let Some(weight) = self.sampling else {
            self.decoded.is_sampled_late |= period.is_some_and(|period| period > 1);
            self.decoded.items.push(Item::Event(event));
            return;
        };
        if stands_for_others(&kind) {
            let kind = EventKind::Sampled { count: weight.count(period) };
            self.decoded.items.push(Item::Event(Event { kind, ..event }));
            self.decoded.items.push(Item::Event(event));
        }
    }
}

impl DecodedBlock {
    fn clear(&mut self, isa: Isa) {
        let DecodedBlock { items, names, reasons, counts, others, rips, .. } = self;
        items.clear();
        names.clear();
        reasons.begin(isa);
        counts.clear();
        counts.resize(table::COUNT, 0);
        *others = SeenEvents::default();
        rips.clear();
        (self.has_event, self.is_rounded, self.undecodable, self.cut) = (false, false, 0, 0);
        (self.switches, self.foreign_switches, self.is_sampled_late) = (0, 0, false);
    }
}

/// Whether a line that is no event names a tracepoint that the analysis uses.
fn names_tracepoint(line: &[u8]) -> bool {
    TextWords::new(line).any(|word| {
        let Some(name) = word.strip_suffix(b":") else { return false };
        let name = name.rsplit(|&b| b == b':').next().unwrap_or(name);
        table::find(name).is_some()
    })
}
