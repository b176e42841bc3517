//! The timeline, read back and asserted slice by slice. A trace with all fields was also read, without an unknown field, by
//! the bindings in Perfetto's own Python package (0.59.1).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use prost::Message;
use vmtax_events::{
    Detail, DetailKind, Exit, ExitKey, Isa, Level, NO_VCPU, Outcome, Reason, Vm, svm,
};
use vmtax_report::perfetto::PerfettoWriter;
use vmtax_report::perfetto::message::{
    DebugAnnotation, Trace, TracePacket, TrackDescriptor, TrackEvent,
};

/// A slice or an instant, put together as Perfetto does.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TrackSlice {
    track: String,
    depth: usize,
    start: u64,
    /// `None` for an instant.
    end: Option<u64>,
    name: String,
    category: String,
    annotations: Vec<(String, String)>,
}

#[derive(Default)]
struct ProtoReader {
    tracks: HashMap<u64, String>,
    categories: HashMap<u64, String>,
    names: HashMap<u64, String>,
    annotation_names: HashMap<u64, String>,
    strings: HashMap<u64, String>,
    open: HashMap<u64, Vec<TrackSlice>>,
    done: Vec<TrackSlice>,
}

impl ProtoReader {
    fn packet(&mut self, packet: TracePacket) {
        assert_eq!(packet.trusted_packet_sequence_id, Some(1));
        if let Some(new) = packet.interned_data {
            for (known, entries) in [
                (&mut self.categories, new.event_categories),
                (&mut self.names, new.event_names),
                (&mut self.annotation_names, new.debug_annotation_names),
                (&mut self.strings, new.debug_annotation_string_values),
            ] {
                for entry in entries {
                    let before = known.insert(entry.iid.unwrap(), entry.name.unwrap());
                    assert_eq!(before, None, "an iid is declared once");
                }
            }
        }
        if let Some(track) = packet.track_descriptor {
            self.track(track);
        }
        if let Some(event) = packet.track_event {
            assert_eq!(packet.sequence_flags, Some(2), "names need the state before");
            self.event(packet.timestamp.unwrap(), event);
        }
    }

    fn track(&mut self, track: TrackDescriptor) {
        let own = match (&track.process, &track.thread) {
            (Some(p), None) => {
                format!("{} [{}] {:?}", p.process_name(), p.pid(), p.process_labels)
            }
            (None, Some(t)) => format!("{} [{}/{}]", t.thread_name(), t.pid(), t.tid()),
            _ => track.name().to_owned(),
        };
        let path = match track.parent_uuid {
            Some(parent) => format!("{} > {own}", self.tracks[&parent]),
            None => own,
        };
        assert_eq!(self.tracks.insert(track.uuid.unwrap(), path), None, "one descriptor a track");
    }

    fn event(&mut self, time: u64, event: TrackEvent) {
        let uuid = event.track_uuid.unwrap();
        let open = self.open.entry(uuid).or_default();
        if event.r#type == Some(2) {
            let mut slice = open.pop().expect("an end has a begin");
            slice.end = Some(time);
            self.done.push(slice);
            return;
        }
        let annotation = |a: DebugAnnotation| {
            let value = match (a.uint_value, a.string_value, a.string_value_iid) {
                (Some(n), None, None) => n.to_string(),
                (None, Some(text), None) => text,
                (None, None, Some(iid)) => self.strings[&iid].clone(),
                other => panic!("one value: {other:?}"),
            };
            (self.annotation_names[&a.name_iid.unwrap()].clone(), value)
        };
        let slice = TrackSlice {
            track: self.tracks[&uuid].clone(),
            depth: open.len(),
            start: time,
            end: None,
            name: self.names[&event.name_iid.unwrap()].clone(),
            category: self.categories[&event.category_iids[0]].clone(),
            annotations: event.debug_annotations.into_iter().map(annotation).collect(),
        };
        match event.r#type {
            Some(1) => open.push(slice),
            Some(3) => self.done.push(slice),
            other => panic!("{other:?}"),
        }
    }
}

fn read(bytes: &[u8]) -> Vec<TrackSlice> {
    let trace = Trace::decode(bytes).unwrap();
    assert_eq!(trace.encode_to_vec().len(), bytes.len(), "nothing is written that is not read");
    let first = &trace.packet[0];
    assert_eq!(first.sequence_flags, Some(3));
    assert_eq!(first.trace_packet_defaults.as_ref().unwrap().timestamp_clock_id, Some(6));
    let mut reader = ProtoReader::default();
    trace.packet.into_iter().for_each(|packet| reader.packet(packet));
    assert!(reader.open.values().all(Vec::is_empty), "every slice ends");
    reader.done
}

fn exit(code: u32, level: Level, start_ns: u64, end_ns: u64) -> Exit {
    Exit {
        key: ExitKey { level, ..ExitKey::of(1234, Reason { isa: Isa::Svm, code, flags: 0 }) },
        tid: 1240,
        cpu: 3,
        start_ns,
        end_ns,
        user_start_ns: None,
        halted_ns: 0,
        preempted_ns: 0,
    }
}

fn write(exits: &[Exit]) -> Vec<u8> {
    let mut writer = PerfettoWriter::new(Vec::new(), "trace.dat").unwrap();
    let vm = Vm { id: 1234, name: "qemu\u{1b}".into(), inferred: false, ..Vm::default() };
    writer.vm(&vm).unwrap();
    for exit in exits {
        writer.exit(exit).unwrap();
    }
    writer.finish().unwrap()
}

const VCPU_0: &str = r#"qemu\u{1b} [1234] ["trace.dat"] > vCPU 0 [1234/1240]"#;

fn slice(
    track: &str,
    depth: usize,
    [start, end]: [u64; 2],
    [name, category]: [&str; 2],
    annotations: &[(&str, &str)],
) -> TrackSlice {
    let annotations = annotations.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    TrackSlice {
        track: track.into(),
        depth,
        start,
        end: Some(end),
        name: name.into(),
        category: category.into(),
        annotations,
    }
}

#[test]
fn an_exit_is_a_slice_with_its_parts_inside() {
    let mut pio = exit(svm::IOIO, Level::L1, 1_000, 9_000);
    pio.key.detail = Detail::new(DetailKind::PortIn, 0xcfc);
    pio.key.outcome = Outcome::User;
    pio.user_start_ns = Some(3_000);
    pio.preempted_ns = 250;
    let mut hlt = exit(svm::HLT, Level::L1, 10_000, 20_000);
    hlt.key.outcome = Outcome::Halted;
    hlt.halted_ns = 7_000;
    let slices = read(&write(&[pio, hlt]));
    let expected = [
        slice(VCPU_0, 1, [3_000, 9_000], ["user", "device-pio"], &[]),
        slice(
            VCPU_0,
            0,
            [1_000, 9_000],
            ["io", "device-pio"],
            &[
                ("detail", "port in 0xcfc PCI config data"),
                ("outcome", "user"),
                ("level", "L1"),
                ("host cpu", "3"),
                ("preempted_ns", "250"),
            ],
        ),
        slice(VCPU_0, 1, [13_000, 20_000], ["halted", "idle"], &[]),
        slice(
            VCPU_0,
            0,
            [10_000, 20_000],
            ["hlt", "idle"],
            &[("outcome", "halted"), ("level", "L1"), ("host cpu", "3"), ("halted_ns", "7000")],
        ),
    ];
    assert_eq!(slices, expected);
}

#[test]
fn exits_of_l2_have_their_own_track() {
    let mut l2 = exit(svm::CPUID, Level::L2, 100, 200);
    l2.key.outcome = Outcome::L1;
    let mut l1 = exit(svm::VMRUN, Level::L1, 300, 400);
    l1.key.ancillary_of = Some(l2.key.reason);
    let slices = read(&write(&[l2, l1]));
    let track = format!("{VCPU_0} > vCPU 0 (L2)");
    let expected = [
        slice(
            &track,
            0,
            [100, 200],
            ["cpuid", "cpuid"],
            &[("outcome", "l1"), ("level", "L2"), ("host cpu", "3")],
        ),
        slice(
            VCPU_0,
            0,
            [300, 400],
            ["vmrun", "nested-entry"],
            &[
                ("outcome", "kernel"),
                ("level", "L1"),
                ("on behalf of L2 exit", "cpuid"),
                ("host cpu", "3"),
            ],
        ),
    ];
    assert_eq!(slices, expected);
}

#[test]
fn ids_that_perfetto_cannot_take_still_have_tracks() {
    let mut unknown = exit(svm::CPUID, Level::L1, 1, 2);
    (unknown.key.vm, unknown.key.vcpu, unknown.tid) = (0, NO_VCPU, 7);
    let mut other_thread = unknown;
    other_thread.tid = u32::MAX;
    let mut huge = exit(svm::CPUID, Level::L1, u64::MAX - 1, u64::MAX);
    huge.key.vm = u32::MAX;
    let slices = read(&write(&[unknown, other_thread, huge]));
    let tracks: Vec<&str> = slices.iter().map(|s| s.track.as_str()).collect();
    assert_eq!(tracks, ["VM 0 > vCPU ?", "VM 0 > vCPU ?", "VM 4294967295 > vCPU 0"]);
    assert_eq!((slices[2].start, slices[2].end), (u64::MAX - 1, Some(u64::MAX)));
}

#[test]
fn times_that_contradict_each_other_still_nest() {
    let mut backwards = exit(svm::HLT, Level::L1, 500, 400);
    backwards.user_start_ns = Some(9_000);
    backwards.halted_ns = u64::MAX;
    let slices = read(&write(&[backwards]));
    let times: Vec<_> =
        slices.iter().map(|s| (s.name.as_str(), s.depth, s.start, s.end.unwrap())).collect();
    assert_eq!(times, [("halted", 2, 500, 500), ("user", 1, 500, 500), ("hlt", 0, 500, 500)]);
}

#[test]
fn losses_are_instants() {
    let mut writer = PerfettoWriter::new(Vec::new(), "trace.dat").unwrap();
    writer.lost(700, 2, 47).unwrap();
    writer.lost(800, 1, 0).unwrap();
    let slices = read(&writer.finish().unwrap());
    let expected = [
        TrackSlice {
            end: None,
            ..slice(
                "lost events",
                0,
                [700, 0],
                ["lost", "losses"],
                &[("cpu", "2"), ("count", "47")],
            )
        },
        TrackSlice {
            end: None,
            ..slice("lost events", 0, [800, 0], ["lost", "losses"], &[("cpu", "1")])
        },
    ];
    assert_eq!(slices, expected);
}

#[test]
fn names_are_written_once() {
    let one = write(&[exit(svm::CPUID, Level::L1, 0, 1); 1]).len();
    let thousand = write(&[exit(svm::CPUID, Level::L1, 0, 1); 1000]).len();
    assert!((thousand - one) / 999 < 64, "{} bytes an exit", (thousand - one) / 999);
}

#[test]
fn the_table_of_details_is_bounded() {
    // More distinct details than are kept: the rest are written out, and all can be read back.
    let exits: Vec<Exit> = (0..70_000u64)
        .map(|i| {
            let mut exit = exit(svm::NPF, Level::L1, i, i);
            exit.key.detail = Detail::new(DetailKind::MmioWrite, 0x1_0000_0000 + i);
            exit
        })
        .collect();
    let slices = read(&write(&exits));
    for (i, slice) in slices.iter().enumerate() {
        let expected = format!("mmio write {:#x}", 0x1_0000_0000u64 + i as u64);
        assert_eq!(slice.annotations[0], ("detail".to_owned(), expected));
    }
    assert_eq!(slices.len(), exits.len());
}

#[test]
fn an_empty_trace_is_one_packet() {
    assert_eq!(read(&write(&[])), []);
}
