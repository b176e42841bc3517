//! Recordings without an exit that could be read: a KVM that reports none, a recorder that was not asked for them,
//! another architecture. None of them may look as if the guest had never left.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its own file has failed")]

mod bytes;
#[path = "perf_data/build.rs"]
#[expect(dead_code, reason = "these files need few of its records")]
mod perf;
#[path = "trace_dat/build.rs"]
#[expect(dead_code, reason = "these files need few of its records")]
mod trace;

use std::path::Path;

use vmtax_capture::order::Sorter;
use vmtax_capture::{Error, ImportFormat, ImportOptions, ImportSource, Imported, Sink, import};
use vmtax_events::{Event, EventKind};

/// Counts exits.
#[derive(Default)]
struct CountedExits(u64);

impl Sink for &mut CountedExits {
    fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        self.0 += events.iter().filter(|e| matches!(e.kind, EventKind::Exit { .. })).count() as u64;
        Ok(())
    }
}

fn read(bytes: &[u8]) -> Result<(Imported, u64), Error> {
    let format = ImportFormat::recognise(&bytes[..bytes.len().min(64 << 10)])?;
    let mut exits = CountedExits::default();
    let mut sorter = Sorter::new(&mut exits);
    let imported = import::import(
        format,
        ImportSource::Random(&bytes),
        ImportOptions::default(),
        &mut sorter,
    )?;
    sorter.finish()?;
    Ok((imported, exits.0))
}

fn capture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    let bytes = std::fs::read(folder.join(name)).unwrap();
    if name.ends_with(".zst") { zstd::decode_all(bytes.as_slice()).unwrap() } else { bytes }
}

const RECORD: &str =
    "record them with `perf record -a -e 'kvm:*' -e sched:sched_switch -o perf.data sleep 10`.";

#[test]
fn the_events_that_are_there_and_what_to_record() {
    // Counts as `perf script | grep -c` gives them; captures/pvm/README.md.
    for (name, start, end) in [
        (
            "pvm/input/pvm.perf.data.zst",
            "kvm_exit was recorded and did not occur among 1914 events of KVM (kvm_emulate_insn 1285, kvm_cpuid 256, kvm_unmap_hva_range 103, kvm_age_hva 91, kvm_fpu 68, kvm_userspace_exit 34, kvm_vcpu_wakeup 32, kvm_msi_set_irq 24 and 6 more), so exits are not known:",
            "record on one with kvm_intel or kvm_amd.",
        ),
        (
            "pvm/input/pvm.script.txt",
            "The recording holds 60 events of KVM (kvm_unmap_hva_range 54, kvm_track_tsc 2, kvm_write_tsc_offset 2, kvm_apicv_inhibit_changed 1, kvm_update_master_clock 1) and no kvm_exit,",
            RECORD,
        ),
        (
            "pvm/input/cpuid.perf.data.zst",
            "The recording holds 256 events of KVM (kvm_cpuid 256) and no kvm_exit, so exits are not known:",
            RECORD,
        ),
        (
            "arm64/input/7.3-vhe.kvm-all.script.txt.zst",
            "The text holds 187 events of KVM on arm64 (kvm_userspace_exit 132, kvm_mmio 50, kvm_age_hva 3, kvm_get_timer_map 2) and no kvm_exit: perf script leaves out samples that it takes for the guest's, which kvm_exit and kvm_entry are among. `perf script --guest-code` prints them all; or give the recording itself (perf.data).",
            "If kvm_exit was not recorded: `perf record -a -e 'kvm:*' -e sched:sched_switch -o perf.data sleep 10`.",
        ),
        (
            "pvm/input/sched.perf.data.zst",
            "The recording holds no event of KVM, so exits are not known:",
            RECORD,
        ),
    ] {
        let (imported, exits) = read(&capture(name)).unwrap();
        let [missing] = imported.losses.missing.as_slice() else {
            panic!("{name}: {:?}", imported.losses)
        };
        assert!(missing.starts_with(start) && missing.ends_with(end), "{name}: {missing}");
        assert!(!imported.losses.is_empty(), "{name}");
        assert_eq!(exits, 0, "{name}");
    }
}

/// Exits are there, or could have been: nothing is missing.
#[test]
fn recordings_with_exits_lack_nothing() {
    for (name, kvm_exit) in [
        ("amd-sched/input/sched.perf.data.zst", 1550),
        ("amd-sched/input/sched.script.txt.zst", 1550),
        ("amd-same-workload/input/workload-v6.trace.dat.zst", 800),
        ("amd-same-workload/input/workload.ftrace.txt.zst", 800),
    ] {
        let (imported, exits) = read(&capture(name)).unwrap();
        assert_eq!(imported.losses.missing, [""; 0], "{name}");
        assert_eq!(imported.seen.of("kvm_exit"), exits, "{name}");
        assert!(exits >= kvm_exit, "{name}: {exits}");
    }
    // A host without VMs: kvm_exit was watched and did not occur.
    let idle = perf_file("", X86, &[], &[]);
    assert_eq!(read(&idle).unwrap().0.losses.missing, [""; 0]);
}

const COMMON: &str = "\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n";

const X86: &[(&str, &str)] =
    &[("kvm_exit", "unsigned int exit_reason,u32 isa,unsigned int vcpu_id")];

/// A format whose fields (`type name`, separated by commas) have four bytes each.
fn format(id: usize, name: &str, fields: &str) -> String {
    let mut text = format!("name: {name}\nID: {}\nformat:\n{COMMON}", 300 + id);
    for (at, field) in fields.split(',').filter(|field| !field.is_empty()).enumerate() {
        text += &format!("\tfield:{field};\toffset:{};\tsize:4;\tsigned:0;\n", 8 + 4 * at);
    }
    text + "\nprint fmt: \"\"\n"
}

fn formats(events: &[(&str, &str)]) -> Vec<String> {
    events.iter().enumerate().map(|(id, (name, fields))| format(id, name, fields)).collect()
}

/// A perf.data with these events, one sample of the first, and an architecture if it says one.
fn spec(machine: &str, events: &[(&str, &str)], big: bool) -> perf::Spec {
    let mut spec = perf::Spec {
        big,
        attrs: vec![perf::Attr::tracepoint(perf::sample::USUAL, &[11])],
        formats: formats(events),
        ..perf::Spec::default()
    };
    if !machine.is_empty() {
        spec.features = vec![(6, spec.text(machine))];
    }
    let mut raw = bytes::Bytes::new(big);
    raw.u16(300).u16(0).u32(78).u32(0x24).u32(1).u32(2).u32(3).u32(4).u32(5);
    let raw = raw.bytes;
    spec.sample(
        0,
        &perf::Sample { id: 11, pid: 70, tid: 78, time: 100, raw, ..perf::Sample::default() },
    );
    spec
}

fn perf_file(
    machine: &str,
    events: &[(&str, &str)],
    features: &[(u64, Vec<u8>)],
    records: &[u8],
) -> Vec<u8> {
    let mut spec = spec(machine, events, false);
    spec.features.extend(features.iter().cloned());
    // A record that says nothing: the data section must not be empty.
    spec.records = records.to_vec();
    spec.raw(perf::record::LOST_SAMPLES, 0, &[0; 8]);
    spec.file()
}

fn trace_dat(machine: &str, events: &[(&str, &str)], big: bool) -> [Vec<u8>; 2] {
    let formats = formats(events);
    let formats: Vec<&str> = formats.iter().map(String::as_str).collect();
    let mut record = bytes::Bytes::new(big);
    record.u16(300).u16(0).u32(78).u32(0x24).u32(1).u32(2).u32(3);
    let page = trace::Page::new(big, 8, 1000).record(0, &record.bytes).finish(1024);
    let spec = trace::Spec {
        big,
        page_size: 1024,
        header_info: trace::header_info(big, 8, 1024),
        event_formats: trace::event_formats(big, "kvm", &formats),
        cmdlines: "78 qemu\n".to_owned(),
        options: vec![(5, format!("Linux host 6.9.0 {machine}\0").into_bytes())],
        buffers: vec![trace::Buffer { name: "", cpus: vec![(0, page)] }],
    };
    [spec.v6(), spec.v7(trace::Codec::Zstd)]
}

/// Names of events, each with its fields.
type MadeEvents = &'static [(&'static str, &'static str)];

const OLD_ARM: &str = "32-bit Arm (or arm64, by an old kernel)";

/// KVM's events elsewhere (Linux arch/*/kvm/trace*.h), `uname -m`, and the name that the error gives.
const FOREIGN: &[(&str, &str, MadeEvents)] = &[
    // With a field of x86's name.
    (OLD_ARM, "armv7l", &[("kvm_exit", "unsigned int exit_reason,unsigned long vcpu_pc")]),
    (
        "RISC-V",
        "riscv64",
        &[(
            "kvm_exit",
            "unsigned long sepc,unsigned long scause,unsigned long stval,unsigned long htval",
        )],
    ),
    (
        "s390",
        "s390x",
        &[("kvm_s390_sie_exit", "int icptcode"), ("kvm_s390_sie_enter", "int cpuflags")],
    ),
    (
        "PowerPC",
        "ppc64le",
        &[
            ("kvm_guest_exit", "int vcpu_id,int trap,unsigned long pc"),
            ("kvm_guest_enter", "int vcpu_id"),
        ],
    ),
    (
        "PowerPC",
        "ppc64",
        &[("kvm_exit", "unsigned int exit_nr,unsigned long pc,unsigned long msr")],
    ),
    (
        "MIPS",
        "mips64",
        &[
            ("kvm_asid_change", "unsigned long pc"),
            ("kvm_exit", "unsigned long pc,unsigned int reason"),
        ],
    ),
    (
        "LoongArch",
        "loongarch64",
        &[
            ("kvm_exit_gspr", "unsigned int inst_word"),
            ("kvm_exit", "unsigned int vcpu_id,unsigned long pc,unsigned int reason"),
        ],
    ),
    ("MIPS or LoongArch", "", &[("kvm_exit", "unsigned long pc,unsigned int reason")]),
];

fn check_refused(bytes: &[u8], name: &str, what: &str) {
    match read(bytes) {
        Err(error @ Error::Unsupported { item: "architecture", .. }) => {
            let words = format!("the recording is of KVM on {name}, whose exits are not supported");
            assert!(error.to_string().contains(&words), "{what}: {error}");
        }
        other => panic!("{what} of {name}: {other:?}"),
    }
}

#[test]
fn other_architectures_are_refused_by_name() {
    for &(name, machine, events) in FOREIGN {
        for big in [false, true] {
            // By its events alone, by its machine alone, by both.
            let cases = [("", events), (machine, X86), (machine, events)];
            for (machine, events) in cases.into_iter().filter(|(m, e)| !m.is_empty() || *e != X86) {
                let spec = spec(machine, events, big);
                check_refused(&spec.file(), name, "perf.data");
                check_refused(&spec.pipe(), name, "perf.data (stream)");
                for file in trace_dat(machine, events, big) {
                    check_refused(&file, name, "trace.dat");
                }
            }
        }
    }
    // The same files of x86 are read.
    for big in [false, true] {
        for machine in ["", "x86_64", "i686"] {
            let spec = spec(machine, X86, big);
            assert_eq!(read(&spec.file()).unwrap().1, 1);
            assert_eq!(read(&spec.pipe()).unwrap().1, 1);
            for file in trace_dat(machine, X86, big) {
                assert_eq!(read(&file).unwrap().1, 1);
            }
        }
    }
}

#[test]
fn texts_of_other_architectures_are_refused_by_name() {
    for (name, event, text) in [
        (OLD_ARM, "kvm_exit", "exit_reason=36 vcpu_pc=0xffff80001000"),
        ("RISC-V", "kvm_exit", "SEPC:0x80200000, SCAUSE:0x15, STVAL:0x0, HTVAL:0x0, HTINST:0x0"),
        (
            "s390",
            "kvm_s390_sie_exit",
            "00[0705c00080000000-0000000000113d8e]: exit sie icptcode 4 (Instruction)",
        ),
        ("PowerPC", "kvm_guest_exit", "VCPU 0: trap=HV_DECREMENTER pc=0xc000 msr=0x8000, ceded=0"),
        (
            "PowerPC",
            "kvm_exit",
            "exit=DATA_STORAGE | pc=0xc000 | msr=0x80 | dar=0x0 | srr1=0x0 | last_inst=0x0",
        ),
        ("MIPS or LoongArch", "kvm_exit", "[TLB Miss (LD)]PC: 0x80001000"),
        ("MIPS or LoongArch", "kvm_exit", "vcpu 0 [GPSI] PC: 0x90001000"),
    ] {
        let texts = [
            format!("            vmm   109 [000]    10.659558: kvm:{event}: {text}\n"),
            format!(
                "# tracer: nop\n             vmm-109     [000] d..1.    10.659558: {event}: {text}\n"
            ),
            format!("cpus=2\n             vmm-109   [000]    10.659558: {event:<20} {text}\n")
                .replace(&format!("{event} "), &format!("{event}: ")),
        ];
        for text in texts {
            check_refused(text.as_bytes(), name, &text);
        }
    }
}
