//! Exits as a timeline that <https://ui.perfetto.dev> opens: a stream of `TracePacket`s.
//!
//! ```text
//!  process track (VM)
//!    └─ thread track (vCPU)      reason ├──────────────────────┤   category: cause
//!        │                              user         ├─────────┤   the VMM's part
//!        │                              halted           ├─────┤   where the vCPU waited
//!        └─ track (vCPU, L2)     exits of the guest's guest
//!  track "lost events"           one instant for each loss
//! ```
//!
//! How long a vCPU was halted is known, not when: "halted" is drawn at the end of its exit, just before
//! the vCPU is entered again. Annotations of a slice give detail, outcome and exact times.
//!
//! Nothing is kept but names, so that a trace of any length can be written. Packets of different vCPUs
//! need not be in time order: Perfetto sorts. Time stamps are those of the recorder's clock, declared as
//! the trace's own (BOOTTIME), since a file of one clock needs no other.

mod field;
mod wire;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Write};

use vmtax_analyse::{Exit, table};
use vmtax_events::{Level, NO_VCPU, Vm};

use self::wire::Message;
use crate::names;

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug)]
enum Type {
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
}

/// `BuiltinClock.BUILTIN_CLOCK_BOOTTIME`.
const BOOTTIME: u64 = 6;
/// All packets are of one sequence.
const SEQUENCE: u64 = 1;
/// `SEQ_INCREMENTAL_STATE_CLEARED`: names are declared anew from here.
const STATE_CLEARED: u64 = 1;
/// `SEQ_NEEDS_INCREMENTAL_STATE`: names declared before are used.
const NEEDS_STATE: u64 = 2;
/// Details beyond this many are written out each time instead of being kept in memory.
const MOST_NAMES: usize = 1 << 16;

/// Writes a Perfetto trace.
#[derive(Debug)]
pub struct PerfettoWriter<W: Write> {
    out: W,
    source: String,
    vm_names: HashMap<u32, String>,
    tracks: HashMap<Track, u64>,
    names: HashMap<u32, HashMap<String, u64>>,
    /// Names that the next packet declares.
    declared: Message,
}

/// What has a track of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Track {
    Vm(u32),
    /// `tid` tells threads apart whose vCPU is not known; else it is 0.
    Vcpu {
        vm: u32,
        vcpu: u32,
        tid: u32,
    },
    L2 {
        vm: u32,
        vcpu: u32,
        tid: u32,
    },
    Losses,
}

/// An annotation's value.
enum Value<'a> {
    Number(u64),
    Text(&'a str),
}

impl<W: Write> PerfettoWriter<W> {
    /// Starts a trace. `source` is what the exits were read from; each VM is labelled with it.
    pub fn new(out: W, source: &str) -> io::Result<Self> {
        let mut writer = PerfettoWriter {
            out,
            source: names::printable(source),
            vm_names: HashMap::new(),
            tracks: HashMap::new(),
            names: HashMap::new(),
            declared: Message::new(),
        };
        let defaults = Message::new().uint(field::packet::TIMESTAMP_CLOCK_ID, BOOTTIME);
        let first = Message::new()
            .uint(field::packet::SEQUENCE_ID, SEQUENCE)
            .uint(field::packet::SEQUENCE_FLAGS, STATE_CLEARED | NEEDS_STATE)
            .message(field::packet::DEFAULTS, &defaults);
        writer.out.write_all(&first.framed(field::trace::PACKET))?;
        Ok(writer)
    }

    /// Names a VM. Has an effect until the VM's first exit is written.
    pub fn vm(&mut self, vm: &Vm) -> io::Result<()> {
        self.vm_names.insert(vm.id, names::printable(&vm.name));
        Ok(())
    }

    /// Writes an exit.
    pub fn exit(&mut self, exit: &Exit) -> io::Result<()> {
        let track = self.track_of(exit)?;
        let start = exit.start_ns;
        let end = exit.end_ns.max(start);
        let name = names::reason(exit.reason());
        let cause = table::cause_of(&exit.key).name();
        let annotations = self.annotations(exit);
        let begin = self.event(Type::SliceBegin, track, Some((&name, cause)), annotations);
        self.packet(start, begin)?;
        let user = exit.user_start_ns.map(|user| user.clamp(start, end));
        if let Some(user) = user {
            let begin = self.event(Type::SliceBegin, track, Some(("user", cause)), Vec::new());
            self.packet(user, begin)?;
        }
        if exit.halted_ns > 0 {
            let halted = end.saturating_sub(exit.halted_ns).max(user.unwrap_or(start));
            let begin = self.event(Type::SliceBegin, track, Some(("halted", cause)), Vec::new());
            self.packet(halted, begin)?;
        }
        let open = 1 + usize::from(user.is_some()) + usize::from(exit.halted_ns > 0);
        for _ in 0..open {
            let event = self.event(Type::SliceEnd, track, None, Vec::new());
            self.packet(end, event)?;
        }
        Ok(())
    }

    /// Marks a point at which the recorder lost events of a host CPU; `count` 0 when it does not say how many.
    pub fn lost(&mut self, time_ns: u64, cpu: u32, count: u64) -> io::Result<()> {
        let track = self
            .track(Track::Losses, |_| Ok(Message::new().text(field::track::NAME, "lost events")))?;
        let mut annotations = vec![self.annotation("cpu", Value::Number(cpu.into()))];
        if count > 0 {
            annotations.push(self.annotation("count", Value::Number(count)));
        }
        let event = self.event(Type::Instant, track, Some(("lost", "losses")), annotations);
        self.packet(time_ns, event)
    }

    /// Ends the trace and gives the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn annotations(&mut self, exit: &Exit) -> Vec<Message> {
        let mut list = Vec::new();
        let detail = names::detail(exit.key.detail);
        if !detail.is_empty() {
            list.push(self.annotation("detail", Value::Text(&detail)));
        }
        list.push(self.annotation("outcome", Value::Text(exit.key.outcome.name())));
        list.push(self.annotation("level", Value::Text(exit.level().name())));
        if let Some(of) = exit.key.ancillary_of {
            list.push(self.annotation("on behalf of L2 exit", Value::Text(&names::reason(of))));
        }
        list.push(self.annotation("host cpu", Value::Number(exit.cpu.into())));
        for (name, ns) in [("halted_ns", exit.halted_ns), ("preempted_ns", exit.preempted_ns)] {
            if ns > 0 {
                list.push(self.annotation(name, Value::Number(ns)));
            }
        }
        list
    }

    fn annotation(&mut self, name: &str, value: Value<'_>) -> Message {
        use field::annotation;
        let name = self.interned(field::interned::ANNOTATION_NAMES, name);
        let message = Message::new().uint(annotation::NAME_IID, name);
        match value {
            Value::Number(n) => message.uint(annotation::UINT, n),
            Value::Text(text) if self.has_room_for(text) => {
                let iid = self.interned(field::interned::ANNOTATION_STRINGS, text);
                message.uint(annotation::STRING_IID, iid)
            }
            Value::Text(text) => message.text(annotation::STRING, text),
        }
    }

    fn event(
        &mut self,
        kind: Type,
        track: u64,
        name_and_category: Option<(&str, &str)>,
        annotations: Vec<Message>,
    ) -> Message {
        let mut event = Message::new();
        if let Some((_, category)) = name_and_category {
            let iid = self.interned(field::interned::CATEGORIES, category);
            event = event.uint(field::event::CATEGORY_IIDS, iid);
        }
        for annotation in &annotations {
            event = event.message(field::event::ANNOTATIONS, annotation);
        }
        event = event.uint(field::event::TYPE, kind as u64);
        if let Some((name, _)) = name_and_category {
            let iid = self.interned(field::interned::EVENT_NAMES, name);
            event = event.uint(field::event::NAME_IID, iid);
        }
        event.uint(field::event::TRACK_UUID, track)
    }

    /// Writes an event with the names declared since the last one.
    fn packet(&mut self, time_ns: u64, event: Message) -> io::Result<()> {
        let mut packet = Message::new()
            .uint(field::packet::TIMESTAMP, time_ns)
            .uint(field::packet::SEQUENCE_ID, SEQUENCE)
            .message(field::packet::TRACK_EVENT, &event);
        let declared = std::mem::take(&mut self.declared);
        if !declared.is_empty() {
            packet = packet.message(field::packet::INTERNED_DATA, &declared);
        }
        packet = packet.uint(field::packet::SEQUENCE_FLAGS, NEEDS_STATE);
        self.out.write_all(&packet.framed(field::trace::PACKET))
    }

    fn has_room_for(&self, text: &str) -> bool {
        let known = self.names.get(&field::interned::ANNOTATION_STRINGS);
        known.is_none_or(|known| known.len() < MOST_NAMES || known.contains_key(text))
    }

    /// The number of a name among its kind (a field of `InternedData`).
    fn interned(&mut self, kind: u32, name: &str) -> u64 {
        let known = self.names.entry(kind).or_default();
        if let Some(&iid) = known.get(name) {
            return iid;
        }
        let iid = known.len() as u64 + 1;
        known.insert(name.to_owned(), iid);
        let entry =
            Message::new().uint(field::interned::IID, iid).text(field::interned::NAME, name);
        self.declared = std::mem::take(&mut self.declared).message(kind, &entry);
        iid
    }

    fn track_of(&mut self, exit: &Exit) -> io::Result<u64> {
        let (vm, vcpu) = (exit.key.vm, exit.key.vcpu);
        let tid = if vcpu == NO_VCPU { exit.tid } else { 0 };
        let name = format!("vCPU {}", names::vcpu_name(vcpu));
        let thread = self.track(Track::Vcpu { vm, vcpu, tid }, |writer| {
            let parent = writer.vm_track(vm)?;
            let track = Message::new();
            Ok(match (system_id(vm), system_id(exit.tid)) {
                (Some(pid), Some(tid)) => track.message(
                    field::track::THREAD,
                    &Message::new()
                        .uint(field::thread::PID, pid)
                        .uint(field::thread::TID, tid)
                        .text(field::thread::NAME, &name),
                ),
                _ => track.text(field::track::NAME, &name),
            }
            .uint(field::track::PARENT, parent))
        })?;
        if exit.level() != Level::L2 {
            return Ok(thread);
        }
        self.track(Track::L2 { vm, vcpu, tid }, |_| {
            Ok(Message::new()
                .text(field::track::NAME, &format!("{name} (L2)"))
                .uint(field::track::PARENT, thread))
        })
    }

    fn vm_track(&mut self, vm: u32) -> io::Result<u64> {
        self.track(Track::Vm(vm), |writer| {
            let name = writer.vm_names.get(&vm).filter(|name| !name.is_empty());
            let name = name.cloned().unwrap_or_else(|| format!("VM {vm}"));
            Ok(match system_id(vm) {
                Some(pid) => Message::new().message(
                    field::track::PROCESS,
                    &Message::new()
                        .uint(field::process::PID, pid)
                        .text(field::process::NAME, &name)
                        .text(field::process::LABELS, &writer.source),
                ),
                None => Message::new().text(field::track::NAME, &name),
            })
        })
    }

    /// The uuid of a track; its descriptor is written when it is first asked for.
    fn track(
        &mut self,
        track: Track,
        descriptor: impl FnOnce(&mut Self) -> io::Result<Message>,
    ) -> io::Result<u64> {
        if let Some(&uuid) = self.tracks.get(&track) {
            return Ok(uuid);
        }
        let descriptor = descriptor(self)?;
        let next = self.tracks.len() as u64 + 1;
        let uuid = match self.tracks.entry(track) {
            Entry::Occupied(known) => return Ok(*known.get()),
            Entry::Vacant(free) => *free.insert(next),
        };
        let packet = Message::new()
            .uint(field::packet::SEQUENCE_ID, SEQUENCE)
            .message(field::packet::TRACK_DESCRIPTOR, &descriptor.uint(field::track::UUID, uuid));
        self.out.write_all(&packet.framed(field::trace::PACKET))?;
        Ok(uuid)
    }
}

/// A process or thread id that Perfetto takes: a positive int32 (0 is the idle task to it).
fn system_id(id: u32) -> Option<u64> {
    (id > 0 && i32::try_from(id).is_ok()).then_some(u64::from(id))
}
