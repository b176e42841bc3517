//! The lines of one text -> a [`Feed`]: what ftrace, perf script and trace-cmd have in common.

use std::collections::HashMap;
use std::io::Read;

use vmtax_events::{Coverage, Event, EventKind, Isa, NO_PID, NO_VCPU, Recording};

use super::blocks::{LONGEST_LINE, TextBlocks};
use super::checks::Checks;
use super::decode::{Item, TextBlock, decode};
use super::format::{OtherLine, TextFormat};
use super::streams::Streams;
use super::{UNTERMINATED, words};
use crate::import::sampling::{SampleWeight, limited};
use crate::import::tracepoint::table;
use crate::import::{Imported, Rips, SeenEvents};
use crate::workers::with_workers;
use crate::{Error, Feed};

/// Events between two calls of [`Feed::release`].
const RELEASE_EVERY: u32 = 256;
/// Losses that wait for the time of the next event.
const MOST_PENDING: usize = 1024;
/// Limit of remembered thread names. Names beyond it are passed on repeatedly, which is harmless.
const MOST_THREADS: usize = 1 << 16;

/// Imports a text. `threads` additional threads decode.
pub(crate) fn import<F: TextFormat>(
    mut format: F,
    input: &mut dyn Read,
    threads: usize,
    feed: &mut impl Feed,
) -> Result<Imported, Error> {
    let mut blocks = TextBlocks::new(input);
    let mut session = TextSession::new(feed);
    let mut about = Imported {
        recording: Recording { format: F::NAME.to_owned(), ..Recording::default() },
        ..Imported::default()
    };
    with_workers(threads, decode::<F>, |workers| {
        let mut spare = Vec::new();
        let mut failed = None;
        let mut written = None;
        loop {
            let mut is_over = failed.is_some();
            while !is_over && !workers.is_full() {
                let mut block = spare.pop().unwrap_or_else(TextBlock::empty);
                block.isa = session.isa;
                match blocks.next(&mut block.bytes) {
                    Ok(Some(offset)) => {
                        block.offset = offset;
                        let (dialect, sampling) = match written {
                            Some(written) => written,
                            None => (F::dialect(&block.bytes), F::sampling(&block.bytes)?),
                        };
                        written = Some((dialect, sampling));
                        session.sampling = sampling;
                        (block.dialect, block.sampling) = (dialect, sampling);
                        workers.push(block);
                    }
                    Ok(None) => is_over = true,
                    Err(error) => {
                        // The blocks before it are processed first.
                        failed = Some(error);
                        is_over = true;
                    }
                }
            }
            match workers.pop() {
                Some(block) => spare.push(session.block(block, &mut format, &mut about)?),
                None => return failed.map_or(Ok(()), Err),
            }
        }
    })?;
    if session.is_unknown && !session.is_known {
        let problem = format!("no line reads as an event of {}", F::NAME);
        return Err(Error::malformed(0, "text", problem));
    }
    session.finish(&mut format, &mut about)?;
    if blocks.is_unterminated {
        about.losses.truncated.push(UNTERMINATED.to_owned());
    }
    Ok(about)
}

/// Facts from the lines so far.
struct TextSession<'f, F: Feed> {
    feed: &'f mut F,
    /// Vendor of the last exit reason that identifies one; whether bare numbers were read as its reasons.
    isa: Isa,
    numbers_assumed: bool,
    /// Names of threads by tid, with their process.
    names: HashMap<u32, (u32, Box<[u8]>)>,
    /// The thread of the line before, whose name was just looked at.
    last: (u32, u32, Vec<u8>),
    pending: Vec<(u32, u64)>,
    /// The latest time seen, and events since the last release.
    time_ns: u64,
    unreleased: u32,
    /// Events of each wanted tracepoint.
    counts: [u64; table::COUNT],
    /// Events of KVM that are not wanted.
    others: SeenEvents,
    rips: Rips,
    /// There are lines of this format; there are others.
    is_known: bool,
    is_unknown: bool,
    rounded: bool,
    undecodable: u64,
    cut: u64,
    lost: u64,
    gaps: u64,
    checks: Checks,
    streams: Streams,
    sampling: Option<SampleWeight>,
}

impl<'f, F: Feed> TextSession<'f, F> {
    fn new(feed: &'f mut F) -> Self {
        TextSession {
            feed,
            isa: Isa::Unknown,
            numbers_assumed: false,
            names: HashMap::new(),
            last: (0, NO_PID, Vec::new()),
            pending: Vec::new(),
            time_ns: 0,
            unreleased: 0,
            counts: [0; table::COUNT],
            others: SeenEvents::default(),
            rips: Rips::default(),
            is_known: false,
            is_unknown: false,
            rounded: false,
            undecodable: 0,
            cut: 0,
            lost: 0,
            gaps: 0,
            checks: Checks::default(),
            streams: Streams::default(),
            sampling: None,
        }
    }

    /// Processes the items of a block and returns it for reuse.
    fn block<T: TextFormat>(
        &mut self,
        mut block: TextBlock,
        format: &mut T,
        about: &mut Imported,
    ) -> Result<TextBlock, Error> {
        if block.decoded.reasons.used_given_isa() && block.isa != self.isa {
            block.isa = self.isa;
            block = decode::<T>(block);
        }
        let mut items = std::mem::take(&mut block.decoded.items);
        let decoded = &block.decoded;
        for item in items.drain(..) {
            match item {
                Item::Event(event) => self.event(event)?,
                Item::Stream(name) => self.streams.enter(decoded.name(name)),
                Item::Time(time_ns) => self.flush_lost(time_ns)?,
                Item::Name { pid, tid, name } => self.name(pid, tid, decoded.name(name))?,
                Item::NameOfNext { tid, name } => self.name_of_next(tid, decoded.name(name))?,
                Item::Other { line, names_tracepoint } => {
                    let line = block.line(line);
                    self.other(format.other(line, about)?, line, names_tracepoint)?;
                }
                Item::Fail(error) => return Err(*error),
            }
        }
        self.isa = decoded.reasons.last_isa().unwrap_or(self.isa);
        self.numbers_assumed |= decoded.reasons.assumed_numbers();
        for (sum, more) in self.counts.iter_mut().zip(&decoded.counts) {
            *sum += more;
        }
        self.others.add_all(&decoded.others);
        self.rips.add_all(&decoded.rips);
        self.is_known |= decoded.has_event;
        self.rounded |= decoded.is_rounded;
        self.undecodable += decoded.undecodable;
        self.cut += decoded.cut;
        self.checks.block(decoded);
        block.decoded.items = items;
        Ok(block)
    }

    fn event(&mut self, event: Event) -> Result<(), Error> {
        if !self.streams.takes(&event) {
            return Ok(());
        }
        self.checks.event(&event);
        self.time_ns = self.time_ns.max(event.time_ns);
        if let EventKind::Lost { count } = event.kind {
            self.count_lost(count);
        }
        self.feed.event(event)?;
        self.unreleased += 1;
        if self.unreleased >= RELEASE_EVERY {
            self.unreleased = 0;
            // Times are rounded, so the next event may have this very time.
            if let Some(before) = self.time_ns.checked_sub(1) {
                self.feed.release(before)?;
            }
        }
        Ok(())
    }

    fn other(
        &mut self,
        other: OtherLine,
        line: &[u8],
        names_tracepoint: bool,
    ) -> Result<(), Error> {
        match other {
            OtherLine::Skip if words::trim(line).is_empty() => {}
            OtherLine::Skip => {
                self.is_unknown = true;
                self.undecodable += u64::from(names_tracepoint);
            }
            OtherLine::Lost { cpu, count } => {
                self.is_known = true;
                self.lost(cpu, count)?;
            }
            OtherLine::Header => self.is_known = true,
            OtherLine::File => {
                self.is_known = true;
                self.streams.are_files();
            }
        }
        Ok(())
    }

    /// Hands on the name of a thread when it is new or has changed.
    fn name(&mut self, pid: u32, tid: u32, comm: &[u8]) -> Result<(), Error> {
        if self.streams.is_guest() {
            return Ok(());
        }
        let last = &mut self.last;
        if last.0 == tid && last.1 == pid && last.2 == comm {
            return Ok(());
        }
        (last.0, last.1) = (tid, pid);
        last.2.clear();
        last.2.extend_from_slice(comm);
        let known = self.names.get(&tid);
        if known.is_some_and(|(of, name)| *of == pid && **name == *comm) {
            return Ok(());
        }
        if self.names.len() >= MOST_THREADS {
            self.names.clear();
        }
        self.names.insert(tid, (pid, comm.into()));
        self.feed.thread_name(pid, tid, &String::from_utf8_lossy(comm))
    }

    /// The same for a thread that gets a CPU, which may have no other line.
    fn name_of_next(&mut self, tid: u32, name: &[u8]) -> Result<(), Error> {
        let is_guest = self.streams.is_guest();
        if is_guest || tid == 0 || self.names.contains_key(&tid) || self.names.len() >= MOST_THREADS
        {
            return Ok(());
        }
        self.names.insert(tid, (NO_PID, name.into()));
        self.feed.thread_name(NO_PID, tid, &String::from_utf8_lossy(name))
    }

    /// A loss that the text puts before the next event.
    fn lost(&mut self, cpu: u32, count: u64) -> Result<(), Error> {
        self.count_lost(count);
        if self.pending.len() >= MOST_PENDING {
            self.flush_lost(self.time_ns)?;
        }
        self.pending.push((cpu, count));
        Ok(())
    }

    fn count_lost(&mut self, count: u64) {
        self.lost = self.lost.saturating_add(count);
        self.gaps += u64::from(count == 0);
    }

    fn flush_lost(&mut self, time_ns: u64) -> Result<(), Error> {
        for (cpu, count) in self.pending.drain(..) {
            let kind = EventKind::Lost { count };
            self.feed.event(Event { time_ns, pid: NO_PID, tid: 0, cpu, vcpu: NO_VCPU, kind })?;
        }
        Ok(())
    }

    fn finish<T: TextFormat>(mut self, format: &mut T, about: &mut Imported) -> Result<(), Error> {
        self.flush_lost(self.time_ns)?;
        let losses = &mut about.losses;
        losses.recorder_lost = losses.recorder_lost.saturating_add(self.lost);
        losses.recorder_gaps += self.gaps;
        losses.undecodable += self.undecodable + self.cut;
        if self.rounded {
            losses.notes.push("times in this text are rounded to 1 µs".to_owned());
        }
        let vendor = match self.numbers_assumed.then_some(self.isa) {
            Some(Isa::Vmx) => Some("VMX"),
            Some(Isa::Svm) => Some("SVM"),
            _ => None,
        };
        if let Some(vendor) = vendor {
            losses.notes.push(format!(
                "exit reasons that this text gives as numbers were read as {vendor} reasons, because \
                 the reasons with names are {vendor} reasons"
            ));
        }
        let mut coverage = Coverage::default();
        about.seen = self.others;
        about.rips = self.rips;
        for (name, count) in table::names().zip(self.counts).filter(|(_, count)| *count > 0) {
            coverage.add(name);
            if name.starts_with("kvm_") {
                about.seen.add(name, count);
            }
        }
        about.recording.coverage = coverage;
        self.streams.finish(about)?;
        self.checks.finish()?;
        if let Some(weight) = self.sampling {
            about.recording.coverage = limited(about.recording.coverage);
            weight.note(&mut about.losses);
        }
        format.finish(self.lost, about);
        if self.cut > 0 {
            let note = format!("lines cut at {LONGEST_LINE} bytes: {}", self.cut);
            about.losses.notes.push(note);
        }
        Ok(())
    }
}
