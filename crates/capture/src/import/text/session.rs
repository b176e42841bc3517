//! The lines of one text -> a [`Feed`]: what ftrace, perf script and trace-cmd have in common.

use std::collections::HashMap;
use std::io::Read;

use vmtax_events::{Coverage, Event, Isa, Kind, NO_PID, NO_VCPU, Recording};

use super::line::{Dialect, Line, Time};
use super::lines::{LONGEST_LINE, Lines};
use super::payload;
use super::reason::Reasons;
use super::{UNTERMINATED, words};
use crate::import::{Imported, Seen, architecture};
use crate::{Error, Feed};

/// Events between two calls of [`Feed::release`].
const RELEASE_EVERY: u32 = 256;
/// Losses that wait for the time of the next event.
const MOST_PENDING: usize = 1024;
/// Limit of remembered thread names. Names beyond it are passed on repeatedly, which is harmless.
const MOST_THREADS: usize = 1 << 16;

/// A line that is not an event.
pub(crate) enum Other {
    /// Nothing that matters: a comment, a call chain, an empty line.
    Skip,
    /// The recorder lost events of this CPU, 0 if it does not say how many.
    Lost { cpu: u32, count: u64 },
    /// The text identifies its writer, so it is of this format even if no event follows.
    Header,
}

/// Differences between the formats.
pub(crate) trait Format {
    /// `ftrace text`, ...
    const NAME: &'static str;
    /// How threads are written.
    const DIALECT: Dialect;

    /// A line that starts with `#`, or is not an event.
    fn other(&mut self, line: &[u8], about: &mut Imported) -> Result<Other, Error>;

    /// An event that is not a tracepoint (perf's own records).
    fn record(&mut self, _line: &Line<'_>) -> Option<Kind> {
        None
    }

    /// After the last line; `counted` is how many events the loss lines gave.
    fn finish(&mut self, _counted: u64, _about: &mut Imported) {}
}

/// Reads a whole text.
pub(crate) fn import<F: Format>(
    mut format: F,
    input: &mut dyn Read,
    feed: &mut impl Feed,
) -> Result<Imported, Error> {
    let mut lines = Lines::new(input);
    let mut session = Session::new(feed);
    let mut about = Imported {
        recording: Recording { format: F::NAME.to_owned(), ..Recording::default() },
        ..Imported::default()
    };
    // A text of this format, and something else that is not.
    let (mut known, mut unknown) = (false, false);
    loop {
        let offset = lines.offset();
        let Some(text) = lines.next()? else { break };
        let line = if text.first() == Some(&b'#') { None } else { Line::read(text, F::DIALECT) };
        match line {
            Some(Line { time: Time::Count, .. }) => {
                return Err(Error::Unsupported {
                    offset,
                    item: "time stamp",
                    problem:
                        "it has no decimal point, so it is a count of a clock of unknown speed; \
                              record with a trace clock in nanoseconds (local, global, mono, boot)"
                            .to_owned(),
                });
            }
            Some(line) => {
                known = true;
                session.event(&mut format, &line, offset)?;
            }
            None => match format.other(text, &mut about)? {
                Other::Skip if words::trim(text).is_empty() => {}
                Other::Skip => {
                    unknown = true;
                    let comment = text.first() == Some(&b'#');
                    session.undecodable += u64::from(!comment && names_tracepoint(text));
                }
                Other::Lost { cpu, count } => {
                    known = true;
                    session.lost(cpu, count)?;
                }
                Other::Header => known = true,
            },
        }
    }
    if unknown && !known {
        let problem = format!("no line reads as an event of {}", F::NAME);
        return Err(Error::malformed(0, "text", problem));
    }
    let (cut, unterminated) = (lines.cut, lines.unterminated);
    session.finish(&mut format, &mut about)?;
    about.losses.undecodable += cut;
    if cut > 0 {
        about.losses.notes.push(format!("{cut} lines longer than {LONGEST_LINE} bytes were cut"));
    }
    if unterminated {
        about.losses.truncated.push(UNTERMINATED.to_owned());
    }
    Ok(about)
}

/// Whether a line that does not read as an event's speaks of one that is wanted.
fn names_tracepoint(line: &[u8]) -> bool {
    words::Words::new(line).any(|word| {
        let Some(name) = word.strip_suffix(b":") else { return false };
        let name = name.rsplit(|&b| b == b':').next().unwrap_or(name);
        payload::tracepoint(name).is_some()
    })
}

/// Facts from the lines so far.
struct Session<'f, F: Feed> {
    feed: &'f mut F,
    reasons: Reasons,
    /// Names of threads by tid, with their process.
    names: HashMap<u32, (u32, Box<[u8]>)>,
    /// The thread of the line before, whose name was just looked at.
    last: (u32, u32, Vec<u8>),
    pending: Vec<(u32, u64)>,
    /// The latest time seen, and events since the last release.
    time_ns: u64,
    unreleased: u32,
    /// Events of each wanted tracepoint.
    counts: [u64; payload::COUNT],
    /// Events of KVM that are not wanted.
    others: Seen,
    rounded: bool,
    undecodable: u64,
    lost: u64,
    gaps: u64,
}

impl<'f, F: Feed> Session<'f, F> {
    fn new(feed: &'f mut F) -> Self {
        Session {
            feed,
            reasons: Reasons::new(),
            names: HashMap::new(),
            last: (0, NO_PID, Vec::new()),
            pending: Vec::new(),
            time_ns: 0,
            unreleased: 0,
            counts: [0; payload::COUNT],
            others: Seen::default(),
            rounded: false,
            undecodable: 0,
            lost: 0,
            gaps: 0,
        }
    }

    /// `offset` is the line's position.
    fn event<T: Format>(
        &mut self,
        format: &mut T,
        line: &Line<'_>,
        offset: u64,
    ) -> Result<(), Error> {
        let Time::Ns(time_ns, digits) = line.time else { return Ok(()) };
        let tracepoint = payload::tracepoint(line.event);
        let said = match tracepoint {
            Some(index) => {
                self.counts[index] += 1;
                let said = payload::read(index, line.payload, &mut self.reasons);
                if said.is_none() {
                    self.undecodable += 1;
                    if line.event == b"kvm_exit"
                        && let Some(name) = architecture::of_exit_text(line.payload)
                    {
                        return Err(architecture::refuse(name, offset));
                    }
                }
                said
            }
            None => {
                if let Some(name) = architecture::of_event(line.event) {
                    return Err(architecture::refuse(name, offset));
                }
                if line.event.starts_with(b"kvm_") {
                    self.others.add(&String::from_utf8_lossy(line.event), 1);
                }
                format.record(line).map(|kind| (NO_VCPU, kind))
            }
        };
        self.flush_lost(time_ns)?;
        self.name(line)?;
        let Some((vcpu, kind)) = said else { return Ok(()) };
        self.rounded |= digits == 6;
        self.time_ns = self.time_ns.max(time_ns);
        if let Kind::Lost { count } = kind {
            self.count_lost(count);
        }
        if let Kind::Switch { .. } = kind
            && let Some((tid, name)) = payload::next_of_switch(line.payload)
        {
            self.name_of_next(tid, name)?;
        }
        let &Line { pid, tid, cpu, .. } = line;
        self.feed.event(Event { time_ns, pid, tid, cpu, vcpu, kind })?;
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

    /// Hands on the name of a thread when it is new or has changed.
    fn name(&mut self, line: &Line<'_>) -> Result<(), Error> {
        let (tid, pid, comm) = &self.last;
        if line.comm.is_empty() || (*tid == line.tid && *pid == line.pid && comm == line.comm) {
            return Ok(());
        }
        self.last.0 = line.tid;
        self.last.1 = line.pid;
        self.last.2.clear();
        self.last.2.extend_from_slice(line.comm);
        let known = self.names.get(&line.tid);
        if known.is_some_and(|(pid, comm)| *pid == line.pid && **comm == *line.comm) {
            return Ok(());
        }
        if self.names.len() >= MOST_THREADS {
            self.names.clear();
        }
        self.names.insert(line.tid, (line.pid, line.comm.into()));
        self.feed.thread_name(line.pid, line.tid, &String::from_utf8_lossy(line.comm))
    }

    /// The same for a thread that gets a CPU, which may have no other line.
    fn name_of_next(&mut self, tid: u32, name: &[u8]) -> Result<(), Error> {
        if tid == 0 || self.names.contains_key(&tid) || self.names.len() >= MOST_THREADS {
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
            let kind = Kind::Lost { count };
            self.feed.event(Event { time_ns, pid: NO_PID, tid: 0, cpu, vcpu: NO_VCPU, kind })?;
        }
        Ok(())
    }

    fn finish<T: Format>(mut self, format: &mut T, about: &mut Imported) -> Result<(), Error> {
        self.flush_lost(self.time_ns)?;
        let losses = &mut about.losses;
        losses.recorder_lost = losses.recorder_lost.saturating_add(self.lost);
        losses.recorder_gaps += self.gaps;
        losses.undecodable += self.undecodable;
        if self.rounded {
            losses.notes.push("times in this text are rounded to 1 µs".to_owned());
        }
        let vendor = match self.reasons.assumed() {
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
        for (name, count) in payload::names().zip(self.counts).filter(|(_, count)| *count > 0) {
            coverage.add(name);
            if name.starts_with("kvm_") {
                about.seen.add(name, count);
            }
        }
        about.recording.coverage = coverage;
        format.finish(self.lost, about);
        Ok(())
    }
}
