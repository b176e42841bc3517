//! A block of lines -> what the session is to do, in their order. Nothing here depends on other blocks, so that it can be done on several
//! threads, but for the vendor of bare numbers of reasons: a block says if it used what it was given.

use vmtax_events::{Event, Isa, Kind, NO_VCPU};

use super::line::{Line, Time};
use super::lines::{LONGEST_LINE, newline};
use super::payload;
use super::reason::Reasons;
use super::session::Format;
use super::words::Words;
use crate::Error;
use crate::import::{Seen, architecture};

/// Whole lines, and what they say.
pub(super) struct Block {
    pub(super) bytes: Vec<u8>,
    /// Its place in the input.
    pub(super) offset: u64,
    /// The vendor of the reasons before it, as far as is known.
    pub(super) isa: Isa,
    pub(super) said: Said,
}

/// What a block says.
#[derive(Default)]
pub(super) struct Said {
    pub(super) items: Vec<Item>,
    /// Names of threads, one behind the other.
    names: Vec<u8>,
    pub(super) reasons: Reasons,
    /// Events of each wanted tracepoint.
    pub(super) counts: [u64; payload::COUNT],
    /// Events of KVM that are not wanted.
    pub(super) others: Seen,
    /// A line is an event's.
    pub(super) has_event: bool,
    /// Times of events have six digits behind the point.
    pub(super) is_rounded: bool,
    pub(super) undecodable: u64,
    /// Lines that were longer than [`LONGEST_LINE`].
    pub(super) cut: u64,
}

/// What lines say, in their order.
pub(super) enum Item {
    Event(Event),
    /// The time of the first event's line behind a line that is none.
    Time(u64),
    /// The name of a line's thread, if it is not that of the event before.
    Name {
        pid: u32,
        tid: u32,
        name: Text,
    },
    /// The name of the thread that gets the CPU.
    NameOfNext {
        tid: u32,
        name: Text,
    },
    /// A line that is not an event's: it is in the block. Whether it speaks of an event that is wanted.
    Other {
        line: Text,
        names_tracepoint: bool,
    },
    /// Nothing behind this can be read.
    Fail(Box<Error>),
}

/// A part of a block, or of its names.
#[derive(Clone, Copy)]
pub(super) struct Text {
    from: u32,
    to: u32,
}

impl Text {
    fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.from as usize..self.to as usize).unwrap_or_default()
    }
}

impl Block {
    pub(super) fn empty() -> Block {
        Block { bytes: Vec::new(), offset: 0, isa: Isa::Unknown, said: Said::default() }
    }

    pub(super) fn line(&self, line: Text) -> &[u8] {
        line.of(&self.bytes)
    }
}

impl Said {
    pub(super) fn name(&self, name: Text) -> &[u8] {
        name.of(&self.names)
    }

    fn keep(&mut self, name: &[u8]) -> Text {
        let from = self.names.len() as u32;
        self.names.extend_from_slice(name);
        Text { from, to: self.names.len() as u32 }
    }
}

/// Reads the lines of a block.
pub(super) fn decode<F: Format>(mut block: Block) -> Block {
    let Block { bytes, offset, isa, said } = &mut block;
    said.clear(*isa);
    let mut lines = Decoder { said, last: None, is_behind_other: true };
    let mut from = 0;
    while from < bytes.len() {
        let rest = bytes.get(from..).unwrap_or_default();
        let len = newline(rest).unwrap_or(rest.len());
        let whole = rest.get(..len).unwrap_or_default();
        let line = whole.get(..LONGEST_LINE).unwrap_or(whole);
        lines.said.cut += u64::from(line.len() < whole.len());
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let at = Text { from: from as u32, to: (from + line.len()) as u32 };
        if let Err(error) = lines.line::<F>(line, at, *offset + from as u64) {
            lines.said.items.push(Item::Fail(Box::new(error)));
            break;
        }
        from += len + 1;
    }
    block
}

struct Decoder<'b> {
    said: &'b mut Said,
    /// Process, thread and name of the event before.
    last: Option<(u32, u32, Text)>,
    /// The line before, which may be in another block, may be no event's.
    is_behind_other: bool,
}

impl Decoder<'_> {
    /// `offset` is its place in the input.
    fn line<F: Format>(&mut self, text: &[u8], at: Text, offset: u64) -> Result<(), Error> {
        let is_comment = text.first() == Some(&b'#');
        let line = if is_comment { None } else { Line::read(text, F::DIALECT) };
        match line {
            Some(Line { time: Time::Count, .. }) => Err(Error::Unsupported {
                offset,
                item: "time stamp",
                problem: "it has no decimal point, so it is a count of a clock of unknown speed; \
                          record with a trace clock in nanoseconds (local, global, mono, boot)"
                    .to_owned(),
            }),
            Some(line @ Line { time: Time::Ns(time_ns, digits), .. }) => {
                self.said.has_event = true;
                let kind = self.kind::<F>(&line, offset)?;
                self.event(&line, kind, time_ns, digits);
                Ok(())
            }
            None => {
                self.is_behind_other = true;
                let names_tracepoint = !is_comment && names_tracepoint(text);
                self.said.items.push(Item::Other { line: at, names_tracepoint });
                Ok(())
            }
        }
    }

    /// The vCPU and the kind of an event that is wanted.
    fn kind<F: Format>(
        &mut self,
        line: &Line<'_>,
        offset: u64,
    ) -> Result<Option<(u32, Kind)>, Error> {
        let said = &mut *self.said;
        let Some(index) = payload::tracepoint(line.event) else {
            if let Some(name) = architecture::of_event(line.event) {
                return Err(architecture::refuse(name, offset));
            }
            if line.event.starts_with(b"kvm_") {
                said.others.add(&String::from_utf8_lossy(line.event), 1);
            }
            return Ok(F::record(line).map(|kind| (NO_VCPU, kind)));
        };
        if let Some(count) = said.counts.get_mut(index) {
            *count += 1;
        }
        let kind = payload::read(index, line.payload, &mut said.reasons);
        if kind.is_none() {
            said.undecodable += 1;
            if line.event == b"kvm_exit"
                && let Some(name) = architecture::of_exit_text(line.payload)
            {
                return Err(architecture::refuse(name, offset));
            }
        }
        Ok(kind)
    }

    fn event(&mut self, line: &Line<'_>, kind: Option<(u32, Kind)>, time_ns: u64, digits: usize) {
        if std::mem::take(&mut self.is_behind_other) {
            self.said.items.push(Item::Time(time_ns));
        }
        let &Line { comm, pid, tid, cpu, .. } = line;
        let is_last = |&(last_pid, last_tid, name): &(u32, u32, Text)| {
            last_pid == pid && last_tid == tid && self.said.name(name) == comm
        };
        if !comm.is_empty() && !self.last.as_ref().is_some_and(is_last) {
            let name = self.said.keep(comm);
            self.last = Some((pid, tid, name));
            self.said.items.push(Item::Name { pid, tid, name });
        }
        let Some((vcpu, kind)) = kind else { return };
        self.said.is_rounded |= digits == 6;
        if let Kind::Switch { .. } = kind
            && let Some((tid, name)) = payload::next_of_switch(line.payload)
        {
            let name = self.said.keep(name);
            self.said.items.push(Item::NameOfNext { tid, name });
        }
        self.said.items.push(Item::Event(Event { time_ns, pid, tid, cpu, vcpu, kind }));
    }
}

impl Said {
    fn clear(&mut self, isa: Isa) {
        let Said { items, names, reasons, counts, others, .. } = self;
        items.clear();
        names.clear();
        reasons.begin(isa);
        *counts = [0; payload::COUNT];
        *others = Seen::default();
        (self.has_event, self.is_rounded, self.undecodable, self.cut) = (false, false, 0, 0);
    }
}

/// Whether a line that does not read as an event's speaks of one that is wanted.
fn names_tracepoint(line: &[u8]) -> bool {
    Words::new(line).any(|word| {
        let Some(name) = word.strip_suffix(b":") else { return false };
        let name = name.rsplit(|&b| b == b':').next().unwrap_or(name);
        payload::tracepoint(name).is_some()
    })
}
