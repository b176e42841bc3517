//! perf.data: the recorded files against perf's own text, and small files made here for everything
//! that the recordings do not have.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its own file has failed")]

#[path = "perf_data/broken.rs"]
mod broken;
#[path = "perf_data/build.rs"]
mod build;
mod bytes;
#[path = "perf_data/captures.rs"]
mod captures;

use build::{At, Attr, Sample, Spec, TYPE_HARDWARE, TYPE_SOFTWARE, read, record, sample};
use bytes::Bytes;
use vmtax_capture::import::perf_data::{import_file, import_pipe, recognise_file, recognise_pipe};
use vmtax_capture::{Error, Feed, Imported};
use vmtax_events::{Event, EventKind, Isa, NO_PID, NO_VCPU, Reason};

/// Everything an importer hands over, in its order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct CollectAll {
    events: Vec<Event>,
    names: Vec<(u32, u32, String)>,
    /// How many events had come, and which time was released then.
    releases: Vec<(usize, u64)>,
}

impl Feed for CollectAll {
    fn event(&mut self, event: Event) -> Result<(), Error> {
        self.events.push(event);
        Ok(())
    }

    fn release(&mut self, time_ns: u64) -> Result<(), Error> {
        self.releases.push((self.events.len(), time_ns));
        Ok(())
    }

    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.names.push((pid, tid, name.to_owned()));
        Ok(())
    }
}

fn try_read(mut bytes: &[u8]) -> (Result<Imported, Error>, CollectAll) {
    let mut collect = CollectAll::default();
    let result = if recognise_pipe(bytes) {
        import_pipe(&mut bytes, 0, &mut collect)
    } else {
        import_file(&bytes, 0, &mut collect)
    };
    (result, collect)
}

fn import(bytes: &[u8]) -> (Imported, CollectAll) {
    let (imported, collect) = try_read(bytes);
    (imported.unwrap(), collect)
}

/// A file and a stream that hold the same.
fn forms(spec: &Spec) -> [Vec<u8>; 2] {
    [spec.file(), spec.pipe()]
}

const ORDERS: [bool; 2] = [false, true];

const COMMON: &str = "format:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";
const EXIT_FIELDS: &str = "\tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
    \tfield:u32 isa;\toffset:12;\tsize:4;\tsigned:0;\n\
    \tfield:u64 info1;\toffset:16;\tsize:8;\tsigned:0;\n\
    \tfield:u64 info2;\toffset:24;\tsize:8;\tsigned:0;\n\
    \tfield:unsigned int vcpu_id;\toffset:32;\tsize:4;\tsigned:0;\n";
const ENTRY_FIELDS: &str = "\tfield:unsigned int vcpu_id;\toffset:8;\tsize:4;\tsigned:0;\n";

fn format(name: &str, id: u16, fields: &str) -> String {
    format!("name: {name}\nID: {id}\n{COMMON}{fields}\nprint fmt: \"%u\", REC->x\n")
}

/// The data of a kvm_exit, of which thread 78 says that it was running.
fn exit_raw(big: bool, reason: u32) -> Vec<u8> {
    let mut out = Bytes::new(big);
    out.u16(300).u16(0).u32(78).u32(reason).u32(2).u64(5).u64(6).u32(1);
    out.bytes
}

fn exit_sample(big: bool, time: u64, cpu: u32, reason: u32) -> Sample {
    let raw = exit_raw(big, reason);
    Sample { id: 11, pid: 70, tid: 77, time, cpu, raw, ..Sample::default() }
}

fn exit_event(time_ns: u64, cpu: u32, code: u32) -> Event {
    let reason = Reason { isa: Isa::Svm, code, flags: 0 };
    let kind = EventKind::Exit { reason, info1: 5, info2: 6 };
    Event { time_ns, pid: 70, tid: 77, cpu, vcpu: 1, kind }
}

fn marker(time_ns: u64, cpu: u32, tid: u32, kind: EventKind) -> Event {
    Event { time_ns, pid: NO_PID, tid, cpu, vcpu: NO_VCPU, kind }
}

/// One tracepoint event with these sample fields, and the formats of kvm_exit and kvm_entry.
fn spec(big: bool, sample_type: u64) -> Spec {
    Spec {
        big,
        attrs: vec![Attr::tracepoint(sample_type, &[11, 12])],
        formats: vec![
            format("kvm_exit", 300, EXIT_FIELDS),
            format("kvm_entry", 301, ENTRY_FIELDS),
            format("kvm_other", 302, ""),
        ],
        ..Spec::default()
    }
}

fn u32s(big: bool, numbers: &[u32]) -> Vec<u8> {
    let mut out = Bytes::new(big);
    numbers.iter().for_each(|&n| _ = out.u32(n));
    out.bytes
}

/// A bit of everything that a recording has, and what is to come of it.
fn everything(big: bool) -> (Spec, CollectAll) {
    let mut s = spec(big, sample::USUAL);
    s.attrs[0].clock = Some(1);
    let nr_cpus = u32s(big, &[8, 4]);
    let command = [u32s(big, &[2]), s.text("perf"), s.text("record")].concat();
    let resolution = s.bytes().u64(4_000_000).bytes.clone();
    s.features = vec![
        (3, s.text("host1")),
        (4, s.text("6.1.0")),
        (5, s.text("6.1.187")),
        (6, s.text("x86_64")),
        (7, nr_cpus),
        (8, s.text("QEMU Virtual CPU")),
        (11, command),
        (23, resolution),
    ];
    let name = |pid, tid, name: &[u8]| [&u32s(big, &[pid, tid])[..], name].concat();
    s.side(record::COMM, 0, &name(70, 77, b"CPU 0/KVM\0\0\0\0\0\0\0"), At::default());
    s.side(record::MMAP, 0, &[0xff; 40], At { time: 90, ..At::default() });
    s.sample(0, &exit_sample(big, 100, 0, 0x72));
    let mut entry = s.bytes();
    entry.u16(301).u16(0).u32(78).u32(3);
    let sample = exit_sample(big, 200, 1, 0);
    s.sample(0, &Sample { raw: entry.bytes, id: 12, ..sample.clone() });
    // An unused tracepoint, and one without a format.
    for id in [302, 999] {
        let mut other = s.bytes();
        other.u16(id).u16(0).u32(78).u64(0);
        s.sample(0, &Sample { raw: other.bytes, ..sample.clone() });
    }
    s.words(record::FINISHED_ROUND, 0, &[]);
    s.words(200, 0, &[1, 2, 3]).words(79, 0, &[]);
    s.sample(0, &exit_sample(big, 150, 1, 0x78));
    s.side(record::LOST, 0, &s.clone().bytes().u64(11).u64(9).bytes, at(0, 160, 1));
    s.side(record::COMM, 0, &name(70, 79, b"a\xffb\0"), At::default());
    s.side(record::EXIT, 0, &exit_body(big, 77), at(77, 210, 0));
    s.words(record::FINISHED_ROUND, 0, &[]);
    let entry = Event { vcpu: 3, kind: EventKind::Entry, ..exit_event(200, 1, 0) };
    let events = vec![
        exit_event(100, 0, 0x72),
        entry,
        exit_event(150, 1, 0x78),
        marker(160, 1, 0, EventKind::Lost { count: 9 }),
        marker(210, 0, 77, EventKind::ThreadEnd),
    ];
    let names = vec![(70, 77, "CPU 0/KVM".to_owned()), (70, 79, "a\u{fffd}b".to_owned())];
    (s, CollectAll { events, names, releases: vec![(2, 0), (5, 200)] })
}

fn at(tid: u32, time: u64, cpu: u32) -> At {
    At { tid, time, cpu }
}

/// pid, parent, thread, its parent, time.
fn exit_body(big: bool, tid: u32) -> Vec<u8> {
    [u32s(big, &[70, 1, tid, 1]), vec![0; 8]].concat()
}

#[test]
fn files_and_streams_of_both_byte_orders_read_the_same() {
    for big in ORDERS {
        let (spec, expected) = everything(big);
        let names = ["perf.data", "perf.data (stream)"];
        for (bytes, name) in forms(&spec).into_iter().zip(names) {
            assert_eq!(recognise_file(&bytes), name == "perf.data");
            let (imported, collect) = import(&bytes);
            assert_eq!(collect, expected, "{name} {big}");
            let (r, losses) = (&imported.recording, &imported.losses);
            assert_eq!((losses.recorder_lost, losses.undecodable), (9, 1), "{losses:?}");
            assert!(losses.truncated.is_empty() && losses.notes.is_empty(), "{losses:?}");
            assert_eq!((r.format.as_str(), r.tool.as_str()), (name, "perf 6.1.187"));
            assert_eq!((r.hostname.as_str(), r.kernel.as_str()), ("host1", "6.1.0"));
            assert_eq!((r.arch.as_str(), r.cpu.as_str()), ("x86_64", "QEMU Virtual CPU"));
            // Feature 23 is the clock's resolution, not its number.
            assert_eq!((r.command.as_str(), r.clock.as_str()), ("perf record", "monotonic"));
            assert_eq!(r.cpus, 4);
            assert!(r.coverage.exits && !r.coverage.msr);
        }
    }
}

#[test]
fn every_combination_of_fixed_fields() {
    use sample as bit;
    let optional = [
        bit::IDENTIFIER,
        bit::IP,
        bit::TID,
        bit::ADDR,
        bit::ID,
        bit::STREAM_ID,
        bit::CPU,
        bit::PERIOD,
    ];
    for (big, chosen) in ORDERS.into_iter().flat_map(|big| (0..256u32).map(move |c| (big, c))) {
        let fields = optional.iter().enumerate().filter(|(i, _)| chosen >> i & 1 == 1);
        let sample_type = fields.fold(bit::TIME | bit::RAW, |all, (_, bit)| all | bit);
        let mut s = spec(big, sample_type);
        s.sample(0, &exit_sample(big, 100, 3, 0x72));
        s.side(record::LOST, 0, &s.clone().bytes().u64(11).u64(9).bytes, at(77, 50, 2));
        let (imported, collect) = import(&s.file());
        let mut exit = exit_event(100, 3, 0x72);
        let mut lost = marker(50, 2, 0, EventKind::Lost { count: 9 });
        if sample_type & bit::TID == 0 {
            // The tracepoint's own word for it.
            (exit.pid, exit.tid) = (NO_PID, 78);
        }
        if sample_type & bit::CPU == 0 {
            (exit.cpu, lost.cpu) = (u32::MAX, u32::MAX);
        }
        assert_eq!(collect.events, [exit, lost], "{sample_type:#x}");
        assert_eq!(imported.losses.undecodable, 0);
    }
}

/// The words of READ as the kernel lays them out for this format.
fn read_words(format: u64) -> Vec<u64> {
    let has = |bit: u64| format & bit != 0;
    let times = [read::TIME_ENABLED, read::TIME_RUNNING].into_iter().filter(|&b| has(b));
    let each = [read::ID, read::LOST].into_iter().filter(|&b| has(b));
    let one: Vec<u64> = std::iter::once(1).chain(each).collect();
    if has(read::GROUP) {
        std::iter::once(3).chain(times).chain(one.repeat(3)).collect()
    } else {
        let (value, rest) = one.split_at(1);
        value.iter().copied().chain(times).chain(rest.iter().copied()).collect()
    }
}

#[test]
fn every_read_format_and_call_chains_before_the_data() {
    for (big, format) in ORDERS.into_iter().flat_map(|big| (0..32).map(move |f| (big, f))) {
        for (extra, chain) in [
            (sample::READ, vec![]),
            (sample::CALLCHAIN, vec![]),
            (sample::CALLCHAIN, vec![1, 2, 3]),
            (sample::READ | sample::CALLCHAIN, vec![u64::MAX; 127]),
        ] {
            let mut s = spec(big, sample::USUAL | extra);
            s.attrs[0].read_format = format;
            let read = read_words(format);
            let sample = exit_sample(big, 100, 3, 0x72);
            s.sample(0, &Sample { read, callchain: chain, ..sample });
            let (imported, collect) = import(&s.file());
            assert_eq!(collect.events, [exit_event(100, 3, 0x72)], "{format:#x} {extra:#x}");
            assert_eq!(imported.losses.undecodable, 0);
        }
    }
}

#[test]
fn impossible_counts_drop_the_sample() {
    let mut group = exit_sample(false, 100, 3, 0x72);
    group.read = vec![u64::MAX, 0];
    let mut chain = group.clone();
    chain.read = vec![0];
    chain.callchain = vec![];
    let mut s = spec(false, sample::USUAL | sample::READ | sample::CALLCHAIN);
    s.attrs[0].read_format = read::GROUP;
    s.sample(0, &group).sample(0, &chain);
    // The call chain's count precedes size and data of 44 bytes in all.
    let len = s.records.len();
    s.records[len - 48..len - 40].fill(0xff);
    let (imported, collect) = import(&s.file());
    assert_eq!(collect.events, []);
    assert_eq!(imported.losses.undecodable, 2);
}

const WITHOUT: &str =
    "an event was recorded without time stamps or raw data; it is left out (record with -R -T)";

#[test]
fn samples_without_time_or_data_are_losses() {
    for missing in [sample::TIME, sample::RAW] {
        let mut s = spec(false, sample::USUAL & !missing);
        // Two such events need one sentence only.
        s.attrs.push(s.attrs[0].clone());
        s.sample(0, &exit_sample(false, 100, 0, 0x72));
        for bytes in forms(&s) {
            let (imported, collect) = import(&bytes);
            assert_eq!(collect.events, []);
            assert_eq!(imported.losses.notes, [WITHOUT]);
            assert_eq!(imported.losses.undecodable, 0);
        }
    }
}

#[test]
fn a_thread_that_has_ended_is_named_by_the_tracepoint() {
    let sample = exit_sample(false, 100, 3, 0x72);
    let mut s = spec(false, sample::USUAL);
    s.sample(0, &Sample { pid: u32::MAX, tid: u32::MAX, ..sample });
    let (_, collect) = import(&s.file());
    assert_eq!(collect.events, [Event { pid: NO_PID, tid: 78, ..exit_event(100, 3, 0x72) }]);
}

/// Events of one recording, what is decoded of one sample each (by CPU), and how many are not listed.
fn attr_cases() -> Vec<(&'static str, Vec<Attr>, Vec<u32>, u64)> {
    use sample as bit;
    let usual = Attr::tracepoint(bit::USUAL, &[1]);
    let other = Attr::tracepoint(bit::USUAL | bit::ADDR | bit::CALLCHAIN, &[2, 3]);
    let bare = Attr::tracepoint(bit::USUAL & !bit::IDENTIFIER, &[4]);
    let bare_other = Attr::tracepoint(bit::TIME | bit::CPU | bit::TID | bit::RAW, &[5]);
    let hardware = Attr { event_type: TYPE_HARDWARE, ids: vec![6], ..usual.clone() };
    let dummy = Attr {
        event_type: TYPE_SOFTWARE,
        config: 9,
        ids: vec![7],
        sample_type: 0,
        ..usual.clone()
    };
    let usual_dummy = Attr { sample_type: bit::USUAL, ..dummy.clone() };
    let again = Attr { ids: vec![8], config: 308, ..usual.clone() };
    vec![
        ("one", vec![usual.clone()], vec![0], 0),
        ("one, without identifier", vec![bare.clone()], vec![0], 0),
        ("same layout", vec![usual.clone(), again.clone()], vec![0, 1], 0),
        ("same layout, no identifier", vec![bare.clone(), bare.clone()], vec![0, 1], 0),
        ("a silent event beside", vec![bare.clone(), dummy], vec![0], 0),
        ("a silent event first", vec![usual_dummy, usual.clone()], vec![1], 0),
        ("two layouts", vec![usual.clone(), other.clone(), again.clone()], vec![0, 1, 2], 0),
        ("another kind last", vec![usual.clone(), other, hardware.clone()], vec![0, 1], 0),
        ("another kind between", vec![usual.clone(), hardware.clone(), again], vec![0, 2], 0),
        ("another kind first", vec![hardware.clone(), usual], vec![1], 0),
        ("another kind only", vec![hardware], vec![], 0),
        ("two layouts, no identifier", vec![bare, bare_other], vec![], 2),
    ]
}

#[test]
fn samples_go_to_the_event_that_their_id_names() {
    for (case, attrs, decoded, unlisted) in attr_cases() {
        for big in ORDERS {
            let mut s = Spec { attrs: attrs.clone(), ..spec(big, 0) };
            for (i, attr) in attrs.iter().enumerate().filter(|(_, a)| a.sample_type != 0) {
                // Other kinds of event carry the same bytes here: they must not be decoded as an exit.
                let id = *attr.ids.last().unwrap();
                s.sample(i, &Sample { id, ..exit_sample(big, 100, i as u32, 0x72) });
            }
            for bytes in forms(&s) {
                let (imported, collect) = import(&bytes);
                let cpus: Vec<u32> = collect.events.iter().map(|e| e.cpu).collect();
                assert_eq!(cpus, decoded, "{case}");
                let same = |e: &Event| *e == exit_event(100, e.cpu, 0x72);
                assert!(collect.events.iter().all(same), "{case}");
                assert_eq!(imported.losses.undecodable, unlisted, "{case}");
                assert_eq!(imported.losses.notes.len(), usize::from(unlisted > 0), "{case}");
            }
        }
    }
}

#[test]
fn a_sample_of_an_unlisted_event_is_a_loss() {
    let mut s = spec(false, sample::USUAL);
    s.attrs.push(Attr::tracepoint(sample::USUAL | sample::ADDR, &[21]));
    let listed = exit_sample(false, 100, 0, 0x72);
    s.sample(0, &listed).sample(0, &Sample { id: 99, ..listed });
    let (imported, collect) = import(&s.file());
    assert_eq!(collect.events, [exit_event(100, 0, 0x72)]);
    assert_eq!(imported.losses.undecodable, 1);
    assert_eq!(imported.losses.notes, ["1 samples belong to an event that the file does not list"]);
}

/// One way to tell of losses.
#[derive(Clone, Copy, Debug)]
enum LossKind {
    /// LOST: time (0: none), CPU, count.
    Record(u64, u32, u64),
    /// LOST_SAMPLES: misc, count.
    Samples(u16, u64),
    /// READ: id, count.
    Read(u64, u64),
}

const BPF: u16 = 1 << 15;

#[test]
fn losses_are_the_largest_of_three_counts() {
    use LossKind::{Read, Record, Samples};
    let rows: [(&[LossKind], u64); 11] = [
        (&[], 0),
        (&[Record(500, 1, 9), Record(600, 0, 4)], 13),
        (&[Record(0, 1, 9)], 9),
        (&[Samples(0, 5), Samples(0, 6)], 11),
        (&[Samples(BPF, 5)], 0),
        (&[Samples(BPF, 5), Samples(0, 2)], 2),
        // Running counts of two events.
        (&[Read(11, 3), Read(11, 7), Read(12, 2), Read(11, 6)], 9),
        (&[Record(500, 1, 9), Samples(0, 20), Read(11, 3)], 20),
        (&[Record(500, 1, 9), Samples(0, 2), Read(11, 30)], 30),
        (&[Record(500, 1, 90), Samples(0, 2), Read(11, 30)], 90),
        (&[Record(500, 1, u64::MAX), Record(500, 1, 2)], u64::MAX),
    ];
    for (losses, total) in rows {
        for (big, times, all) in [(false, 0, true), (true, 3, true), (false, 1, false)] {
            let mut s = spec(big, sample::USUAL);
            s.attrs[0].read_format |= times;
            s.attrs[0].sample_id_all = all;
            s.sample(0, &exit_sample(big, 400, 0, 0x72));
            let mut expected = vec![exit_event(400, 0, 0x72)];
            for &loss in losses {
                let mut body = s.bytes();
                match loss {
                    Record(time, cpu, count) => {
                        body.u64(11).u64(count);
                        s.side(record::LOST, 0, &body.bytes, at(0, time, cpu));
                        let latest = expected.iter().map(|e| e.time_ns).max().unwrap();
                        let time = if all && time > 0 { time } else { latest };
                        let cpu = if all { cpu } else { u32::MAX };
                        expected.push(marker(time, cpu, 0, EventKind::Lost { count }));
                    }
                    Samples(misc, count) => {
                        body.u64(count);
                        s.side(record::LOST_SAMPLES, misc, &body.bytes, At::default());
                    }
                    Read(id, count) => {
                        body.u32(70).u32(77).u64(1);
                        (0..(times as u32).count_ones()).for_each(|_| _ = body.u64(5));
                        body.u64(id).u64(count);
                        s.side(record::READ, 0, &body.bytes, At::default());
                    }
                }
            }
            let (imported, collect) = import(&s.file());
            assert_eq!(imported.losses.recorder_lost, total, "{losses:?}");
            assert_eq!(collect.events, expected, "{losses:?}");
        }
    }
}

#[test]
fn reads_without_a_lost_count_say_nothing_of_losses() {
    for format in [0, read::ID, read::LOST, read::ID | read::LOST | read::GROUP] {
        let mut s = spec(false, sample::USUAL);
        s.attrs[0].read_format = format;
        s.words(record::READ, 0, &[0, 1, 11, 99, 99, 99]);
        assert_eq!(import(&s.file()).0.losses.recorder_lost, 0, "{format:#x}");
    }
}

#[test]
fn the_end_of_a_thread_stands_at_its_time() {
    for (all, time, expected) in
        [(true, 70, (70, 2)), (true, 0, (100, 2)), (false, 70, (100, u32::MAX))]
    {
        let mut s = spec(false, sample::USUAL);
        s.attrs[0].sample_id_all = all;
        s.sample(0, &exit_sample(false, 100, 0, 0x72));
        s.side(record::EXIT, 0, &exit_body(false, 79), at(79, time, 2));
        let (_, collect) = import(&s.file());
        assert_eq!(collect.events[1], marker(expected.0, expected.1, 79, EventKind::ThreadEnd));
    }
}

#[test]
fn a_round_releases_what_was_seen_before_the_round() {
    let mut s = spec(false, sample::USUAL);
    let mut put = |times: &[u64]| {
        times.iter().for_each(|&t| _ = s.sample(0, &exit_sample(false, t, 0, 0x72)));
        s.words(record::FINISHED_ROUND, 0, &[]);
    };
    put(&[100]);
    put(&[300, 200]);
    put(&[]);
    // This one overlaps the round before.
    put(&[250, 260]);
    put(&[900]);
    put(&[]);
    s.side(record::LOST, 0, &[0; 16], at(0, 950, 0));
    s.words(record::FINISHED_ROUND, 0, &[]).words(record::FINISHED_ROUND, 0, &[]);
    let releases = [(1, 0), (3, 100), (3, 300), (5, 300), (6, 300), (6, 900), (7, 900), (7, 950)];
    for bytes in forms(&s) {
        assert_eq!(import(&bytes).1.releases, releases);
    }
}

#[test]
fn compressed_records_hold_the_same() {
    for (big, kind) in
        ORDERS.into_iter().flat_map(|b| [record::COMPRESSED, record::COMPRESSED2].map(|k| (b, k)))
    {
        // Inner records cut at every place, and not at all.
        for cut in [1, 3, 7, 8, 50, 104, 4096] {
            let (mut spec, expected) = everything(big);
            spec.compress(kind, cut);
            for bytes in forms(&spec) {
                let (imported, collect) = import(&bytes);
                assert_eq!(collect, expected, "{kind} {cut}");
                assert!(imported.losses.truncated.is_empty(), "{kind} {cut}");
            }
        }
    }
}

#[test]
fn compressed_data_larger_than_any_buffer() {
    let mut plain = spec(false, sample::USUAL);
    for time in 1..=20_000 {
        plain.sample(0, &exit_sample(false, time, time as u32 % 4, 0x72));
    }
    let (_, expected) = import(&plain.file());
    assert_eq!(expected.events.len(), 20_000);
    let mut packed = plain.clone();
    packed.compress(record::COMPRESSED2, 1_000_000);
    assert!(packed.records.len() < plain.records.len() / 8);
    for spec in [plain, packed] {
        for bytes in forms(&spec) {
            assert!(import(&bytes).1 == expected);
        }
    }
}

#[test]
fn other_bytes_between_records_are_skipped() {
    for (big, len) in ORDERS.into_iter().flat_map(|b| [0, 8, 300_000].map(|n| (b, n))) {
        let mut s = spec(big, sample::USUAL);
        s.sample(0, &exit_sample(big, 100, 0, 1)).words(record::AUXTRACE, 0, &[len, 0, 0, 0, 0]);
        // Were they read as records, they would say that nothing after them can be read.
        s.records.extend(vec![0; len as usize]);
        s.sample(0, &exit_sample(big, 200, 0, 2)).words(record::FINISHED_ROUND, 0, &[]);
        for bytes in forms(&s) {
            let (imported, collect) = import(&bytes);
            assert_eq!(collect.events, [exit_event(100, 0, 1), exit_event(200, 0, 2)]);
            assert!(imported.losses.is_empty(), "{:?}", imported.losses);
        }
    }
}
