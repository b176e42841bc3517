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

pub mod message;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, Write};

use prost::Message;
use vmtax_analyse::table;
use vmtax_events::{Exit, Level, NO_VCPU, Vm};

use self::message::{
    DebugAnnotation, Interned, InternedData, ProcessDescriptor, ThreadDescriptor, TracePacket,
    TracePacketDefaults, TrackDescriptor, TrackEvent,
};
use crate::names;

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug)]
enum TrackEventType {
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
}

/// `BuiltinClock.BUILTIN_CLOCK_BOOTTIME`.
const BOOTTIME: u32 = 6;
/// All packets are of one sequence.
const SEQUENCE: u32 = 1;
/// `SEQ_INCREMENTAL_STATE_CLEARED`: names are declared anew from here.
const STATE_CLEARED: u32 = 1;
/// `SEQ_NEEDS_INCREMENTAL_STATE`: names declared before are used.
const NEEDS_STATE: u32 = 2;
/// Details beyond this many are written out each time instead of being kept in memory.
const MOST_NAMES: usize = 1 << 16;

/// Writes a Perfetto trace.
#[derive(Debug)]
pub struct PerfettoWriter<W: Write> {
    out: W,
    source: String,
    vm_names: HashMap<u32, String>,
    tracks: HashMap<Track, u64>,
    names: HashMap<NameKind, HashMap<String, u64>>,
    /// Names that the next packet declares.
    declared: InternedData,
}

/// Kinds of names, each with numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NameKind {
    Category,
    Event,
    Annotation,
    AnnotationValue,
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

enum AnnotationValue<'a> {
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
            declared: InternedData::default(),
        };
        writer.write(TracePacket {
            sequence_flags: Some(STATE_CLEARED | NEEDS_STATE),
            trace_packet_defaults: Some(TracePacketDefaults { timestamp_clock_id: Some(BOOTTIME) }),
            ..TracePacket::default()
        })?;
        Ok(writer)
    }

    /// Names a VM. Has an effect until the VM's first exit is written.
    pub fn vm(&mut self, vm: &Vm) -> io::Result<()> {
        self.vm_names.insert(vm.id, names::printable(&vm.name));
        Ok(())
    }

    pub fn exit(&mut self, exit: &Exit) -> io::Result<()> {
        let track = self.track_of(exit)?;
        let start = exit.start_ns;
        let end = exit.end_ns.max(start);
        let name = names::reason(exit.reason());
        let cause = table::cause_of(&exit.key).name();
        let annotations = self.annotations(exit);
        let begin =
            self.event(TrackEventType::SliceBegin, track, Some((&name, cause)), annotations);
        self.packet(start, begin)?;
        let user = exit.user_start_ns.map(|user| user.clamp(start, end));
        if let Some(user) = user {
            let begin =
                self.event(TrackEventType::SliceBegin, track, Some(("user", cause)), Vec::new());
            self.packet(user, begin)?;
        }
        if exit.halted_ns > 0 {
            let halted = end.saturating_sub(exit.halted_ns).max(user.unwrap_or(start));
            let begin =
                self.event(TrackEventType::SliceBegin, track, Some(("halted", cause)), Vec::new());
            self.packet(halted, begin)?;
        }
        let open = 1 + usize::from(user.is_some()) + usize::from(exit.halted_ns > 0);
        for _ in 0..open {
            let event = self.event(TrackEventType::SliceEnd, track, None, Vec::new());
            self.packet(end, event)?;
        }
        Ok(())
    }

    /// Marks a point at which the recorder lost events of a host CPU; `count` 0 when it does not say how many.
    pub fn lost(&mut self, time_ns: u64, cpu: u32, count: u64) -> io::Result<()> {
        let track = self.track(Track::Losses, |_| Ok(TrackDescriptor::named("lost events")))?;
        let mut annotations = vec![self.annotation("cpu", AnnotationValue::Number(cpu.into()))];
        if count > 0 {
            annotations.push(self.annotation("count", AnnotationValue::Number(count)));
        }
        let event =
            self.event(TrackEventType::Instant, track, Some(("lost", "losses")), annotations);
        self.packet(time_ns, event)
    }

    /// Ends the trace and gives the writer back.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn annotations(&mut self, exit: &Exit) -> Vec<DebugAnnotation> {
        let mut list = Vec::new();
        let detail = names::detail(exit.key.detail);
        if !detail.is_empty() {
            list.push(self.annotation("detail", AnnotationValue::Text(&detail)));
        }
        list.push(self.annotation("outcome", AnnotationValue::Text(exit.key.outcome.name())));
        list.push(self.annotation("level", AnnotationValue::Text(exit.level().name())));
        if let Some(of) = exit.key.ancillary_of {
            list.push(
                self.annotation("on behalf of L2 exit", AnnotationValue::Text(&names::reason(of))),
            );
        }
        list.push(self.annotation("host cpu", AnnotationValue::Number(exit.cpu.into())));
        for (name, ns) in [("halted_ns", exit.halted_ns), ("preempted_ns", exit.preempted_ns)] {
            if ns > 0 {
                list.push(self.annotation(name, AnnotationValue::Number(ns)));
            }
        }
        list
    }

    fn annotation(&mut self, name: &str, value: AnnotationValue<'_>) -> DebugAnnotation {
        let name_iid = Some(self.interned(NameKind::Annotation, name));
        let named = DebugAnnotation { name_iid, ..DebugAnnotation::default() };
        match value {
            AnnotationValue::Number(n) => DebugAnnotation { uint_value: Some(n), ..named },
            AnnotationValue::Text(text) if self.has_room_for(text) => {
                let iid = self.interned(NameKind::AnnotationValue, text);
                DebugAnnotation { string_value_iid: Some(iid), ..named }
            }
            AnnotationValue::Text(text) => {
                DebugAnnotation { string_value: Some(text.to_owned()), ..named }
            }
        }
    }

    fn event(
        &mut self,
        kind: TrackEventType,
        track: u64,
        name_and_category: Option<(&str, &str)>,
        debug_annotations: Vec<DebugAnnotation>,
    ) -> TrackEvent {
        let iids = name_and_category.map(|(name, category)| {
            (self.interned(NameKind::Event, name), self.interned(NameKind::Category, category))
        });
        TrackEvent {
            category_iids: iids.map(|(_, category)| category).into_iter().collect(),
            debug_annotations,
            r#type: Some(kind as i32),
            name_iid: iids.map(|(name, _)| name),
            track_uuid: Some(track),
        }
    }

    /// Writes an event with the names declared since the last one.
    fn packet(&mut self, time_ns: u64, event: TrackEvent) -> io::Result<()> {
        let declared = std::mem::take(&mut self.declared);
        self.write(TracePacket {
            timestamp: Some(time_ns),
            track_event: Some(event),
            interned_data: (declared != InternedData::default()).then_some(declared),
            sequence_flags: Some(NEEDS_STATE),
            ..TracePacket::default()
        })
    }

    /// Writes a packet as the next element of `Trace.packet`.
    fn write(&mut self, packet: TracePacket) -> io::Result<()> {
        let packet = TracePacket { trusted_packet_sequence_id: Some(SEQUENCE), ..packet };
        self.out.write_all(&message::Trace { packet: vec![packet] }.encode_to_vec())
    }

    fn has_room_for(&self, text: &str) -> bool {
        let known = self.names.get(&NameKind::AnnotationValue);
        known.is_none_or(|known| known.len() < MOST_NAMES || known.contains_key(text))
    }

    /// The number of a name among its kind.
    fn interned(&mut self, kind: NameKind, name: &str) -> u64 {
        let known = self.names.entry(kind).or_default();
        if let Some(&iid) = known.get(name) {
            return iid;
        }
        let iid = known.len() as u64 + 1;
        known.insert(name.to_owned(), iid);
        let declared = match kind {
            NameKind::Category => &mut self.declared.event_categories,
            NameKind::Event => &mut self.declared.event_names,
            NameKind::Annotation => &mut self.declared.debug_annotation_names,
            NameKind::AnnotationValue => &mut self.declared.debug_annotation_string_values,
        };
        declared.push(Interned { iid: Some(iid), name: Some(name.to_owned()) });
        iid
    }

    fn track_of(&mut self, exit: &Exit) -> io::Result<u64> {
        let (vm, vcpu) = (exit.key.vm, exit.key.vcpu);
        let tid = if vcpu == NO_VCPU { exit.tid } else { 0 };
        let name = format!("vCPU {}", names::vcpu_name(vcpu));
        let thread = self.track(Track::Vcpu { vm, vcpu, tid }, |writer| {
            let parent_uuid = Some(writer.vm_track(vm)?);
            let track = match (system_id(vm), system_id(exit.tid)) {
                (Some(pid), Some(tid)) => {
                    let thread_name = Some(name.clone());
                    let thread = ThreadDescriptor { pid: Some(pid), tid: Some(tid), thread_name };
                    TrackDescriptor { thread: Some(thread), ..TrackDescriptor::default() }
                }
                _ => TrackDescriptor::named(&name),
            };
            Ok(TrackDescriptor { parent_uuid, ..track })
        })?;
        if exit.level() != Level::L2 {
            return Ok(thread);
        }
        self.track(Track::L2 { vm, vcpu, tid }, |_| {
            let track = TrackDescriptor::named(&format!("{name} (L2)"));
            Ok(TrackDescriptor { parent_uuid: Some(thread), ..track })
        })
    }

    fn vm_track(&mut self, vm: u32) -> io::Result<u64> {
        self.track(Track::Vm(vm), |writer| {
            let name = writer.vm_names.get(&vm).filter(|name| !name.is_empty());
            let name = name.cloned().unwrap_or_else(|| format!("VM {vm}"));
            let Some(pid) = system_id(vm) else { return Ok(TrackDescriptor::named(&name)) };
            let process = ProcessDescriptor {
                pid: Some(pid),
                process_name: Some(name),
                process_labels: vec![writer.source.clone()],
            };
            Ok(TrackDescriptor { process: Some(process), ..TrackDescriptor::default() })
        })
    }

    /// The uuid of a track; its descriptor is written when it is first asked for.
    fn track(
        &mut self,
        track: Track,
        descriptor: impl FnOnce(&mut Self) -> io::Result<TrackDescriptor>,
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
        self.write(TracePacket {
            track_descriptor: Some(TrackDescriptor { uuid: Some(uuid), ..descriptor }),
            ..TracePacket::default()
        })?;
        Ok(uuid)
    }
}

impl TrackDescriptor {
    fn named(name: &str) -> TrackDescriptor {
        TrackDescriptor { name: Some(name.to_owned()), ..TrackDescriptor::default() }
    }
}

/// A process or thread id that Perfetto takes: a positive int32 (0 is the idle task to it).
fn system_id(id: u32) -> Option<i32> {
    i32::try_from(id).ok().filter(|&id| id > 0)
}
