//! The formats of the recorded tracepoints, as `trace.dat` and `perf.data` both carry them.
//!
//! The TRACING_DATA of a `perf.data` is what a `trace.dat` of version 6 begins with: magic, version, byte
//! order, then header_page, header_event, the ftrace formats, the formats of each system, and more that
//! is not needed to decode.

use vmtax_events::Coverage;

use crate::Error;
use crate::import::architecture;
use crate::import::cursor::{Cursor, MAX_TEXT, text};
use crate::import::seen::SeenEvents;
use crate::import::tracepoint::{self, Endian, RecordDecoder};

/// 17 08 44 and "tracing".
pub(in crate::import) const MAGIC: [u8; 10] = *b"\x17\x08\x44tracing";

/// Bounds of counts, far above what a kernel has.
const MAX_SYSTEMS: u32 = 4096;
const MAX_EVENTS: u32 = 1 << 16;
/// More event systems than a recording of chosen events has: the file then holds the formats of
/// everything the kernel knows (`trace-cmd extract`), and their presence says nothing.
const ALL_SYSTEMS: u32 = 40;
/// In [`Formats::index`]: described, but of no interest to the analysis.
const UNWANTED: u16 = u16::MAX;
/// At most this many formats are named that could not be understood.
const MAX_NOT_UNDERSTOOD: usize = 32;

/// The event formats of the file that the analysis wants.
#[derive(Clone, Debug, Default)]
pub(in crate::import) struct EventFormats {
    pub(in crate::import) decoders: Vec<RecordDecoder>,
    /// `common_type` -> index into `decoders` plus one; [`UNWANTED`] for events that are described and
    /// not wanted, 0 for those that are not described.
    pub(in crate::import) index: Vec<u16>,
    /// The tracepoints that the recording describes, of the systems kvm, sched and vmtax.
    pub(in crate::import) described: Coverage,
    /// Names of tracepoints of those systems whose format could not be understood.
    pub(in crate::import) not_understood: Vec<String>,
    /// Names of KVM's events by their `common_type`.
    kvm: Vec<(u16, String)>,
    /// The architecture that fields or names of KVM's events show, if it is not x86.
    pub(in crate::import) architecture: Option<&'static str>,
    /// Event systems in the file.
    systems: u32,
}

impl EventFormats {
    /// The decoder for records of this `common_type`, if the analysis wants them.
    #[inline]
    pub(in crate::import) fn decoder(&self, common_type: u16) -> Option<&RecordDecoder> {
        let slot = *self.index.get(usize::from(common_type))?;
        self.decoders.get(usize::from(slot).checked_sub(1)?)
    }

    /// There is a format for records of this `common_type`, wanted or not.
    pub(in crate::import) fn describes(&self, common_type: u16) -> bool {
        self.index.get(usize::from(common_type)).is_some_and(|&slot| slot != 0)
    }

    /// The formats were chosen with the events: trace-cmd stores those of the systems and events that
    /// were asked for. Files with the formats of the whole kernel do not tell.
    pub(in crate::import) fn were_chosen(&self) -> bool {
        self.systems <= ALL_SYSTEMS
    }

    /// How often each of KVM's events occurs, of counts by `common_type`.
    pub(in crate::import) fn seen(&self, counts: &[u64]) -> SeenEvents {
        let mut seen = SeenEvents::default();
        for (id, name) in &self.kvm {
            seen.add(name, counts.get(usize::from(*id)).copied().unwrap_or(0));
        }
        seen
    }

    fn add(&mut self, system: &str, format: &str, endian: Endian) {
        let ours = matches!(system, "kvm" | "sched" | "vmtax");
        let name = format.lines().find_map(|l| l.strip_prefix("name: ")).unwrap_or_default().trim();
        // PowerPC has systems kvm_hv and kvm_pr.
        if system.starts_with("kvm") {
            self.add_kvm(name, format);
        }
        // It comes last: without it fields can be missing, and some of those would be read as 0.
        let is_whole = format.contains("print fmt:");
        match RecordDecoder::parse(format, endian).filter(|_| is_whole) {
            Some(decoder) => {
                if ours {
                    self.described.add(name);
                }
                self.insert(decoder);
            }
            None if ours && self.not_understood.len() < MAX_NOT_UNDERSTOOD => {
                self.not_understood.push(name.to_owned());
            }
            None => {}
        }
    }

    fn add_kvm(&mut self, name: &str, format: &str) {
        let id = format.lines().find_map(|line| line.strip_prefix("ID: ")?.trim().parse().ok());
        if let Some(id) = id {
            self.kvm.push((id, name.to_owned()));
        }
        if self.architecture.is_none() {
            self.architecture = match name {
                "kvm_exit" => architecture::of_exit_fields(tracepoint::field_names(format)),
                _ => architecture::of_event(name.as_bytes()),
            };
        }
    }

    fn insert(&mut self, decoder: RecordDecoder) {
        let id = usize::from(decoder.id);
        if self.index.len() <= id {
            self.index.resize(id + 1, 0);
        }
        let Some(slot) = self.index.get_mut(id) else { return };
        let next = u16::try_from(self.decoders.len() + 1).ok().filter(|&n| n != UNWANTED);
        let known = usize::from(*slot).checked_sub(1).and_then(|n| self.decoders.get_mut(n));
        if !decoder.is_wanted() {
            *slot = UNWANTED;
        } else if let Some(known) = known {
            *known = decoder;
        } else if let Some(n) = next {
            self.decoders.push(decoder);
            *slot = n;
        }
    }
}

fn count(c: &mut Cursor<'_>, most: u32, item: &'static str) -> Result<u32, Error> {
    let at = c.at;
    match c.u32(item)? {
        n if n <= most => Ok(n),
        n => Err(c.malformed_at(at, item, format!("{n}, more than {most}"))),
    }
}

/// The FTRACE_EVENTS: formats of ftrace's own records, none of which is about exits.
pub(in crate::import) fn skip_ftrace_formats(c: &mut Cursor<'_>) -> Result<(), Error> {
    let count = count(c, MAX_EVENTS, "count of ftrace event formats")?;
    for _ in 0..count {
        let len = c.u64("size of an ftrace event format")?;
        c.skip(len, "ftrace event format")?;
    }
    Ok(())
}

/// The EVENT_FORMATS.
pub(in crate::import) fn event_formats(
    c: &mut Cursor<'_>,
    formats: &mut EventFormats,
) -> Result<(), Error> {
    let systems = count(c, MAX_SYSTEMS, "count of event systems")?;
    formats.systems = formats.systems.saturating_add(systems);
    for _ in 0..systems {
        let system = c.string("name of an event system")?;
        let events = count(c, MAX_EVENTS, "count of events of a system")?;
        for _ in 0..events {
            let len = c.u64("size of an event format")?;
            let format = c.bytes(len, MAX_TEXT, "event format")?;
            formats.add(&system, &text(&format), c.endian);
        }
    }
    Ok(())
}

/// The formats in the TRACING_DATA of a `perf.data`, at byte `offset` of the input.
pub(in crate::import) fn of_tracing_data(
    payload: &[u8],
    offset: u64,
) -> Result<EventFormats, Error> {
    let mut c = Cursor::embedded(&payload, offset, Endian::Little);
    c.expect(&MAGIC, "magic of the tracing data")?;
    c.string("version of the tracing data")?;
    c.endian = if c.u8("byte order")? == 0 { Endian::Little } else { Endian::Big };
    c.u8("long size")?;
    c.u32("page size")?;
    for item in ["header_page", "header_event"] {
        c.string(item)?;
        let len = c.u64(item)?;
        c.skip(len, item)?;
    }
    let mut formats = EventFormats::default();
    // perf can record ftrace's own events, and nothing is lost when they are not decoded.
    for _ in 0..count(&mut c, MAX_EVENTS, "count of ftrace event formats")? {
        let len = c.u64("size of an ftrace event format")?;
        let format = c.bytes(len, MAX_TEXT, "ftrace event format")?;
        formats.add("ftrace", &text(&format), c.endian);
    }
    event_formats(&mut c, &mut formats)?;
    Ok(formats)
}
