//! trace.dat: the recorded file against trace-cmd's own report, and small files made here for
//! everything that one recording does not have.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its own file has failed")]

#[path = "trace_dat/build.rs"]
mod build;
mod bytes;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use build::{Buffer, Codec, Page, Spec};
use bytes::Bytes;
use vmtax_capture::import::trace_dat::{import, recognise, together};
use vmtax_capture::{Error, Feed, Imported};
use vmtax_events::event::{HypercallInterface, InterruptAt};
use vmtax_events::{Event, EventKind, NO_PID, NO_VCPU, RecordedGuest, Together};

fn capture(path: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    std::fs::read(root.join(path)).unwrap_or_else(|e| panic!("captures/{path}: {e}"))
}

fn expected(path: &str) -> String {
    let text = String::from_utf8(capture(path)).unwrap();
    text.lines().filter(|l| !l.starts_with('#')).fold(String::new(), |all, l| all + l + "\n")
}

/// Collects, and holds the importer to the contract of [`Feed`].
#[derive(Debug, Default)]
struct CollectFeed {
    events: Vec<Event>,
    names: Vec<(u32, u32, String)>,
    released: u64,
    /// Events that came although their time had been released.
    late: usize,
}

impl Feed for CollectFeed {
    fn event(&mut self, event: Event) -> Result<(), Error> {
        self.late += usize::from(self.released != 0 && event.time_ns <= self.released);
        self.events.push(event);
        Ok(())
    }

    fn release(&mut self, time_ns: u64) -> Result<(), Error> {
        assert!(time_ns > self.released, "released {time_ns} after {}", self.released);
        self.released = time_ns;
        Ok(())
    }

    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.names.push((pid, tid, name.to_owned()));
        Ok(())
    }
}

fn try_read(mut bytes: &[u8]) -> (Result<Imported, Error>, CollectFeed) {
    let mut collect = CollectFeed::default();
    // A slice is the simplest ReadAt.
    let source: &mut &[u8] = &mut bytes;
    (import(source, 0, &mut collect), collect)
}

fn read(bytes: &[u8]) -> (Imported, CollectFeed) {
    let (imported, collect) = try_read(bytes);
    (imported.unwrap(), collect)
}

fn in_order(collect: &CollectFeed) -> Vec<Event> {
    let mut events = collect.events.clone();
    events.sort_by_key(|e| (e.time_ns, e.cpu));
    events
}

fn tracepoint(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Exit { .. } => "kvm_exit",
        EventKind::Entry => "kvm_entry",
        EventKind::Msr { .. } => "kvm_msr",
        EventKind::Pio { .. } => "kvm_pio",
        EventKind::Mmio { .. } => "kvm_mmio",
        EventKind::FastMmio { .. } => "kvm_fast_mmio",
        EventKind::Hypercall { interface: HypercallInterface::Kvm, .. } => "kvm_hypercall",
        EventKind::Hypercall { interface: HypercallInterface::HyperV, .. } => "kvm_hv_hypercall",
        EventKind::Hypercall { interface: HypercallInterface::Xen, .. } => "kvm_xen_hypercall",
        EventKind::Hypercall { interface: HypercallInterface::Smccc, .. } => "kvm_hvc_arm64",
        EventKind::Sysreg { .. } => "kvm_handle_sys_reg",
        EventKind::Wait { .. } => "kvm_wfx_arm64",
        EventKind::Runs => "kvm_get_timer_map",
        EventKind::PageFault { .. } => "kvm_page_fault",
        EventKind::MapRequest { .. } => "kvm_mmu_spte_requested",
        EventKind::SetAttributes { .. } => "kvm_vm_set_mem_attributes",
        EventKind::Cpuid { .. } => "kvm_cpuid",
        EventKind::Cr { .. } => "kvm_cr",
        EventKind::Apic { .. } => "kvm_apic",
        EventKind::GhcbEnter { .. } => "kvm_vmgexit_enter",
        EventKind::GhcbMsr { .. } => "kvm_vmgexit_msr_protocol_enter",
        EventKind::Tdvmcall { .. } => "tdvmcall",
        EventKind::VmcsField { write: false, .. } => "vmcs_read",
        EventKind::VmcsField { write: true, .. } => "vmcs_write",
        EventKind::Information { .. } => "information",
        EventKind::UserspaceExit { .. } => "kvm_userspace_exit",
        EventKind::NestedExit { .. } => "kvm_nested_vmexit",
        EventKind::NestedInject { .. } => "kvm_nested_vmexit_inject",
        EventKind::NestedEnter => "kvm_nested_vmenter",
        EventKind::Wakeup { .. } => "kvm_vcpu_wakeup",
        EventKind::Switch { .. } => "sched_switch",
        EventKind::Woken { .. } => "sched_wakeup",
        EventKind::Ioctl { .. } => "sys_enter_ioctl",
        EventKind::IoctlReturn { .. } => "sys_exit_ioctl",
        EventKind::Interrupt { at: InterruptAt::Gsi, .. } => "kvm_set_irq",
        EventKind::Interrupt { at: InterruptAt::Pic, .. } => "kvm_pic_set_irq",
        EventKind::Interrupt { at: InterruptAt::Ioapic, .. } => "kvm_ioapic_set_irq",
        EventKind::Interrupt { at: InterruptAt::Msi, .. } => "kvm_msi_set_irq",
        EventKind::Interrupt { at: InterruptAt::Apic, .. } => "kvm_apic_accept_irq",
        EventKind::Interrupt { at: InterruptAt::Acknowledged, .. } => "kvm_ack_irq",
        EventKind::ApicvInhibit { .. } => "kvm_apicv_inhibit_changed",
        EventKind::Lost { .. } => "lost",
        EventKind::ThreadEnd => "sched_process_exit",
        EventKind::Sampled { .. } => panic!("trace.dat has no samples"),
    }
}

/// Lines of tracepoint, CPU and count.
fn counts(events: &[Event]) -> String {
    let mut counts = BTreeMap::new();
    // Of other interrupts some records are no events.
    let is_other =
        |kind| matches!(kind, EventKind::Interrupt { at, .. } if at != InterruptAt::Apic);
    for event in events.iter().filter(|event| !is_other(event.kind)) {
        *counts.entry((tracepoint(event.kind), event.cpu)).or_insert(0) += 1;
    }
    let mut text = String::new();
    for ((name, cpu), n) in counts {
        writeln!(text, "{name} {cpu:03} {n}").unwrap();
    }
    text
}

/// The lines of `counts` that the analysis wants, of a table of everything.
fn wanted(table: &str) -> String {
    const WANTED: &[&str] = &[
        "kvm_exit",
        "kvm_entry",
        "kvm_msr",
        "kvm_pio",
        "kvm_mmio",
        "kvm_fast_mmio",
        "kvm_hypercall",
        "kvm_hv_hypercall",
        "kvm_xen_hypercall",
        "kvm_page_fault",
        "kvm_cpuid",
        "kvm_cr",
        "kvm_apic",
        "kvm_vmgexit_enter",
        "kvm_vmgexit_msr_protocol_enter",
        "kvm_userspace_exit",
        "kvm_nested_vmexit",
        "kvm_nested_vmexit_inject",
        "kvm_nested_vmenter",
        "kvm_vcpu_wakeup",
        "kvm_apic_accept_irq",
        "kvm_apicv_inhibit_changed",
        "sched_switch",
        "sched_process_exit",
    ];
    let lines = table.lines().filter(|l| WANTED.iter().any(|w| l.split(' ').next() == Some(w)));
    lines.fold(String::new(), |all, l| all + l + "\n")
}

/// The checksum and length of POSIX cksum(1).
fn cksum(bytes: &[u8]) -> String {
    let mut length = bytes.len();
    let mut tail = Vec::new();
    while length != 0 {
        tail.push(length as u8);
        length >>= 8;
    }
    let crc = bytes.iter().chain(&tail).fold(0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| {
            if crc >> 31 == 1 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 }
        })
    });
    format!("{} {}\n", !crc, bytes.len())
}

/// Every exit as a line, as expected/v7-trace-cmd-report-exits.cksum lists them.
fn exits(events: &[Event]) -> String {
    let mut text = String::new();
    for e in events {
        let EventKind::Exit { reason, info1, info2 } = e.kind else { continue };
        let isa = if reason.isa == vmtax_events::Isa::Svm { 2 } else { 1 };
        let (time, cpu, tid, code, vcpu) = (e.time_ns, e.cpu, e.tid, reason.code, e.vcpu);
        writeln!(text, "{time} {cpu:03} {tid} {code} {isa} {info1:#018x} {info2:#018x} {vcpu}")
            .unwrap();
    }
    text
}

#[test]
fn recognises_its_magic_only() {
    assert!(recognise(&capture("amd-nested/input/v7.trace.dat")));
    assert!(!recognise(b"\x17\x08\x44tracin"));
    assert!(!recognise(b"PERFILE2"));
}

#[test]
fn agrees_with_trace_cmd_report() {
    let (imported, collect) = read(&capture("amd-nested/input/v7.trace.dat"));
    assert!(imported.losses.is_empty(), "{:?}", imported.losses);
    assert_eq!(imported.losses.notes, Vec::<String>::new());
    assert_eq!(collect.late, 0);
    let table = expected("amd-nested/expected/v7-trace-cmd-report-counts.txt");
    assert_eq!(counts(&collect.events), wanted(&table));
    let sum = expected("amd-nested/expected/v7-trace-cmd-report-exits.cksum");
    assert_eq!(cksum(exits(&in_order(&collect)).as_bytes()), sum);
}

#[test]
fn tells_what_the_recording_says_of_itself() {
    let (imported, collect) = read(&capture("amd-nested/input/v7.trace.dat"));
    let r = &imported.recording;
    assert_eq!((r.format.as_str(), r.tool.as_str()), ("trace.dat", "trace-cmd 3.1.6"));
    assert_eq!((r.kernel.as_str(), r.arch.as_str()), ("6.1.0-56-amd64", "x86_64"));
    // The host's name was not set: uname said "(none)".
    assert_eq!((r.hostname.as_str(), r.clock.as_str(), r.cpus), ("", "global", 2));
    assert!(r.coverage.exits && r.coverage.nested && !r.coverage.sched);
    // Never seen, but recorded: trace-cmd was asked for the system kvm.
    assert!(r.coverage.hypercall);
    assert!(collect.names.contains(&(NO_PID, 130, "qemu-system-x86".to_owned())));
}

/// The recorded file taken apart, to be written in other forms.
fn recorded() -> Spec {
    let file = capture("amd-nested/input/v7.trace.dat");
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let unpack =
        |at: usize| zstd::bulk::decompress(&file[at + 8..][..word(at)], word(at + 4)).unwrap();
    // Places as `trace-cmd dump --options` lists them; a section's head has 16 bytes.
    let section = |at: usize| unpack(at + 16);
    let cpu = |mut at: usize| {
        let chunks = word(at);
        at += 4;
        (0..chunks).fold(Vec::new(), |mut pages, _| {
            pages.extend(unpack(at));
            at += 8 + word(at);
            pages
        })
    };
    let buffer = Buffer { name: "", cpus: vec![(0, cpu(962_560)), (1, cpu(970_752))] };
    Spec {
        page_size: 4096,
        header_info: section(37),
        event_formats: section(2090),
        cmdlines: String::from_utf8(section(959_867)[8..].to_vec()).unwrap(),
        options: vec![(4, b"local [global] counter\0".to_vec()), (8, vec![2, 0, 0, 0])],
        buffers: vec![buffer],
        ..Spec::default()
    }
}

#[test]
fn every_form_of_a_recording_reads_the_same() {
    let (imported, original) = read(&capture("amd-nested/input/v7.trace.dat"));
    let spec = recorded();
    let forms = [
        ("v6", spec.v6()),
        ("v7 plain", spec.v7(Codec::None)),
        ("v7 zlib", spec.v7(Codec::Zlib)),
        ("v7 zstd", spec.v7(Codec::Zstd)),
    ];
    for (form, bytes) in forms {
        let (other, collect) = read(&bytes);
        assert_eq!(collect.late, 0, "{form}");
        assert_eq!(in_order(&collect), in_order(&original), "{form}");
        assert_eq!(collect.names, original.names, "{form}");
        assert_eq!(other.recording.coverage, imported.recording.coverage, "{form}");
        assert_eq!(other.recording.clock, "global", "{form}");
        assert_eq!(other.losses, imported.losses, "{form}");
    }
}

const EXIT: &str = "name: kvm_exit\nID: 300\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    \tfield:unsigned int exit_reason;\toffset:8;\tsize:4;\tsigned:0;\n\
    \tfield:u32 isa;\toffset:12;\tsize:4;\tsigned:0;\n\n\
    print fmt: \"reason %u\", REC->exit_reason\n";
const OTHER: &str = "name: kvm_other\nID: 301\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n\
    \tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
    print fmt: \"x\"\n";

fn exit(big: bool, reason: u32) -> Vec<u8> {
    let mut out = Bytes::new(big);
    out.u16(300).u16(0).u32(77).u32(reason).u32(2);
    out.bytes
}

fn other(big: bool) -> Vec<u8> {
    let mut out = Bytes::new(big);
    out.u16(301).u16(0).u32(77);
    out.bytes
}

/// Two CPUs and an instance, with every kind of record that a ring can hold.
fn small(big: bool, long: u32) -> Spec {
    let page = |start| Page::new(big, long, start);
    let first = page(1_000)
        .record(0, &exit(big, 1))
        .record(7, &other(big))
        .special(30, 5, 2, &[])
        .record(3, &exit(big, 2))
        .special(29, 4, 8, &[0xff; 4])
        .long_record(6, &exit(big, 3))
        .special(29, 0, 0, &[0xff; 8]);
    let second = page(400_000_000)
        .lost(Some(41))
        .special(31, 9, 4, &[])
        .record(0, &exit(big, 4))
        .record(1, &exit(big, 5));
    let third = page(700_000_000).lost(None).record(0, &exit(big, 6));
    let cpu0 = [first, second, third].map(|p| p.finish(4096)).concat();
    let cpu1 = page(500).record(0, &exit(big, 7)).finish(4096);
    let instance = page(600).record(2, &exit(big, 8)).finish(4096);
    let mut guest = Bytes::new(big);
    guest.put(b"vm\0").u64(5).u32(2).u32(0).u32(77).u32(1).u32(78);
    let mut number = Bytes::new(big);
    number.u64(9);
    let mut shift = Bytes::new(big);
    // One comparison of one CPU: flags, CPUs, count, time, offset, scaling, fraction.
    shift.u64(3).u32(1).u32(1).u32(1).u64(100).u64(7).u64(1).u64(0);
    let mut stat = Bytes::new(big);
    stat.put(b"CPU: 0\nentries: 8\noverrun: 41\ndropped events: 2\n\0");
    Spec {
        big,
        page_size: 4096,
        header_info: build::header_info(big, long, 4096),
        event_formats: build::event_formats(big, "kvm", &[EXIT, OTHER]),
        cmdlines: "77 cpu 0/KVM\n".to_owned(),
        options: vec![
            (2, stat.bytes),
            (5, b"Linux host1 6.9.0 x86_64\0".to_vec()),
            (11, number.bytes),
            (12, shift.bytes),
            (13, guest.bytes),
            (32, b"77 70\n\0".to_vec()),
        ],
        buffers: vec![
            Buffer { name: "", cpus: vec![(0, cpu0), (1, cpu1)] },
            Buffer { name: "extra", cpus: vec![(0, instance)] },
        ],
    }
}

const ALL: [(bool, u32); 3] = [(false, 8), (true, 8), (true, 4)];

/// In version 6 and 7, in every compression.
fn forms(spec: &Spec) -> Vec<Vec<u8>> {
    let mut forms = vec![spec.v6()];
    forms.extend([Codec::None, Codec::Zlib, Codec::Zstd].map(|c| spec.v7(c)));
    forms
}

#[test]
fn every_kind_of_record_in_both_byte_orders_and_word_sizes() {
    for (big, long) in ALL {
        for file in forms(&small(big, long)) {
            let (imported, collect) = read(&file);
            let seen: Vec<_> = in_order(&collect)
                .into_iter()
                .map(|e| match e.kind {
                    EventKind::Exit { reason, .. } => (e.time_ns, e.cpu, reason.code),
                    EventKind::Lost { count } => (e.time_ns, e.cpu, 1000 + count as u32),
                    _ => panic!("{e:?}"),
                })
                .collect();
            let extended = 1_007 + 5 + (2 << 27);
            let absolute = 9 + (4 << 27);
            assert_eq!(
                seen,
                [
                    (500, 1, 7),
                    (602, 0, 8),
                    (1_000, 0, 1),
                    (extended + 3, 0, 2),
                    (extended + 13, 0, 3),
                    (400_000_000, 0, 1041),
                    (absolute, 0, 4),
                    (absolute + 1, 0, 5),
                    (700_000_000, 0, 1000),
                    (700_000_000, 0, 6),
                ]
            );
            let exit =
                collect.events.iter().find(|e| matches!(e.kind, EventKind::Exit { .. })).unwrap();
            assert_eq!((exit.pid, exit.tid, exit.vcpu), (70, 77, NO_VCPU));
            let names = [(0, 0, "swapper"), (70, 77, "cpu 0/KVM")];
            assert_eq!(collect.names, names.map(|(pid, tid, name)| (pid, tid, name.to_owned())));
            let losses = &imported.losses;
            // 41 marked in a page, and 2 that the kernel's counters have.
            assert_eq!((losses.recorder_lost, losses.recorder_gaps), (43, 1), "{losses:?}");
            assert!(losses.truncated.is_empty(), "{losses:?}");
            assert!(losses.notes.iter().any(|n| n.contains("guests (vm)")), "{losses:?}");
            let vm = RecordedGuest { name: "vm".to_owned(), id: 5, threads: vec![77, 78] };
            let expected = Together { id: 9, host: Some(3), guests: vec![vm] };
            assert_eq!(imported.recording.together, expected);
            assert_eq!(together(&file.as_slice()).unwrap(), expected);
            assert_eq!(imported.recording.hostname, "host1");
            assert_eq!(imported.recording.arch, "x86_64");
        }
    }
}

#[test]
fn cycles_become_nanoseconds() {
    let mut spec = small(false, 8);
    let mut tsc = Bytes::new(false);
    // Times 3 / 2^1.
    tsc.u32(3).u32(1).u64(0);
    spec.options = vec![(4, b"local [x86-tsc]\0".to_vec())];
    let (imported, _) = read(&spec.v6());
    assert!(imported.losses.notes.iter().any(|n| n.contains("not nanoseconds")));
    spec.options.push((14, tsc.bytes));
    let (imported, collect) = read(&spec.v6());
    assert_eq!(imported.losses.notes, Vec::<String>::new());
    assert_eq!(in_order(&collect)[0].time_ns, 750);
}

#[test]
fn a_latency_trace_is_refused_with_a_sentence() {
    let mut file = small(false, 8).v6();
    let at = file.windows(10).position(|w| w == b"flyrecord\0").unwrap();
    file[at..at + 10].copy_from_slice(b"latency  \0");
    let error = try_read(&file).0.unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("latency tracer"), "{error}");
}

#[test]
fn unknown_versions_and_algorithms_are_named() {
    let mut file = small(false, 8).v6();
    file[10] = b'9';
    let error = try_read(&file).0.unwrap_err();
    assert!(error.to_string().contains("version 9"), "{error}");
    let mut file = small(false, 8).v7(Codec::Zstd);
    let at = file.windows(4).position(|w| w == b"zstd").unwrap();
    file[at..at + 4].copy_from_slice(b"lzma");
    let error = try_read(&file).0.unwrap_err();
    assert!(error.to_string().contains("\"lzma\""), "{error}");
}

#[test]
fn a_chain_of_options_that_loops_ends() {
    let spec = small(false, 8);
    let mut file = spec.v7(Codec::None);
    // The last DONE leads back to the first options, whose place the file's head has.
    let first = file.windows(5).position(|w| w == b"none\0").unwrap() + 9;
    let (head, end) = (file[first..first + 8].to_vec(), file.len());
    file[end - 8..].copy_from_slice(&head);
    let (imported, collect) = read(&file);
    assert!(imported.losses.truncated.iter().any(|t| t.contains("loops")), "{imported:?}");
    assert_eq!(collect.events.len(), 10);
}

#[test]
fn data_of_two_cpus_in_the_same_place_is_read_once() {
    let mut spec = small(false, 8);
    spec.buffers.truncate(1);
    let mut file = spec.v6();
    let table = file.windows(10).position(|w| w == b"flyrecord\0").unwrap() + 10;
    let first = file[table..table + 16].to_vec();
    file[table + 16..table + 32].copy_from_slice(&first);
    let (imported, collect) = read(&file);
    assert_eq!(collect.events.len(), 8);
    assert!(imported.losses.truncated[0].contains("another CPU's data"), "{imported:?}");
}

#[test]
fn the_list_of_data_may_be_cut_off() {
    let file = capture("amd-nested/input/v7.trace.dat");
    let (_, whole) = read(&file);
    let (imported, cut) = read(&file[..3_000_000]);
    assert!(cut.events.len() > whole.events.len() * 8 / 10);
    let (whole, cut) = (in_order(&whole), in_order(&cut));
    assert_eq!(cut[..1000], whole[..1000]);
    let text = imported.losses.truncated.join("\n");
    assert!(text.contains("found by its place") && text.contains("cpu 1: "), "{text}");
}

/// A truncated or damaged file is rejected, or its losses are reported. Nothing panics.
fn cut(file: &[u8], len: usize) {
    match try_read(&file[..len]).0 {
        Ok(imported) => {
            assert!(!imported.losses.truncated.is_empty(), "cut at {len}: {imported:?}")
        }
        Err(Error::Malformed { .. }) => {}
        Err(other) => panic!("cut at {len}: {other}"),
    }
}

#[test]
fn small_files_may_be_cut_anywhere() {
    for (big, long) in ALL {
        let mut spec = small(big, long);
        spec.options.clear();
        for file in forms(&spec) {
            // The zeros that fill a last page are no loss, and there are many of them.
            let end = file.iter().rposition(|&b| b != 0).unwrap();
            let text = (0..6_000).chain((6_000..end).step_by(97));
            text.filter(|&len| len < end - 16).for_each(|len| cut(&file, len));
        }
    }
}

#[test]
fn a_recording_may_be_cut_anywhere() {
    let file = capture("amd-nested/input/v7.trace.dat");
    // Kallsyms, the most of the first million bytes, is not read.
    let heads = (0..13_000).step_by(1_000).chain((958_000..972_000).step_by(1_000));
    let data = (972_000..file.len() - 100).step_by(61_000);
    heads.chain(data).for_each(|len| cut(&file, len));
}

/// A generator of numbers (xorshift64*), so that a failure can be had again.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}

#[test]
fn small_files_may_have_any_bit_flipped() {
    let mut random = Random(42);
    for (big, long) in ALL {
        for file in forms(&small(big, long)) {
            let mut file = file.clone();
            for _ in 0..1_500 {
                // Most of the file is the padding of pages.
                let (at, bit) = (random.below(file.len()), 1 << random.below(8));
                let at = if file[at] == 0 { random.below(1_500) } else { at };
                file[at] ^= bit;
                let _ = try_read(&file);
                file[at] ^= bit;
            }
        }
    }
}

#[test]
fn a_recording_may_have_bits_flipped() {
    let file = capture("amd-nested/input/v7.trace.dat");
    let mut random = Random(7);
    for round in 0..60 {
        let mut file = file.clone();
        for _ in 0..=random.below(6) {
            let at = match round % 3 {
                0 => random.below(12_000),
                1 => 959_800 + random.below(900),
                _ => 962_560 + random.below(file.len() - 962_560),
            };
            file[at] ^= 1 << random.below(8);
        }
        if let Ok(imported) = try_read(&file).0 {
            let pages = imported.losses.truncated.len();
            assert!(pages < 50, "a sentence per CPU, not per page: {pages}");
        }
    }
}

/// Counts and exit times of what trace-cmd itself makes of a file.
fn report(path: &std::path::Path) -> (String, Vec<u64>) {
    let output = Command::new("trace-cmd").args(["report", "-t", "-R", "-i"]).arg(path).output();
    let output = output.expect("trace-cmd must be installed (`./x test` installs it)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let (mut counts, mut times) = (BTreeMap::new(), Vec::new());
    for line in text.lines() {
        let Some((head, rest)) = line.split_once("] ") else { continue };
        let cpu = head.rsplit('[').next().unwrap();
        let mut words = rest.split_whitespace();
        let (time, name) = (words.next().unwrap(), words.next().unwrap());
        let name = name.trim_end_matches(':');
        *counts.entry(format!("{name} {cpu}")).or_insert(0) += 1;
        if name == "kvm_exit" {
            times.push(time.replace(['.', ':'], "").parse().unwrap());
        }
    }
    times.sort_unstable();
    let lines = counts.iter().map(|(key, n)| format!("{key} {n}\n"));
    (lines.collect(), times)
}

#[test]
fn oracle_trace_cmd_reads_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace.dat");
    let mut files = vec![capture("amd-nested/input/v7.trace.dat")];
    // The files made here are files for trace-cmd too (Debian's is built without zlib).
    for big in [false, true] {
        let mut spec = small(big, 8);
        spec.options.clear();
        // Version 6 can give an instance another number of CPUs; trace-cmd then takes it for all buffers.
        spec.buffers[1].cpus.push((1, Vec::new()));
        files.extend([spec.v6(), spec.v7(Codec::None), spec.v7(Codec::Zstd)]);
    }
    for file in files {
        std::fs::write(&path, &file).unwrap();
        let (table, times) = report(&path);
        let (_, mut collect) = read(&file);
        collect.events.retain(|e| !matches!(e.kind, EventKind::Lost { .. }));
        assert_eq!(counts(&collect.events), wanted(&table));
        let exits =
            in_order(&collect).into_iter().filter(|e| matches!(e.kind, EventKind::Exit { .. }));
        assert_eq!(exits.map(|e| e.time_ns).collect::<Vec<_>>(), times);
    }
}
