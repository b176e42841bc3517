//! Recordings of confidential guests, without such hardware: records are built with the format files of a real kernel
//! (`captures/confidential/7.3.formats`, Debian's 7.3.4) and values by a table with a source for each line, and written as
//! perf.data, trace.dat and, by the kernel's own print formats, as text. All have to read the same.
//!
//! The same printing serves a property: any record of any tracepoint reads the same from its bytes and from its text.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its own file has failed")]

mod bytes;
#[path = "perf_data/build.rs"]
#[expect(dead_code, reason = "the tests of perf.data use all of it")]
mod perf_build;
#[path = "confidential/printing.rs"]
mod printing;
#[path = "trace_dat/build.rs"]
#[expect(dead_code, reason = "the tests of trace.dat use all of it")]
mod trace_build;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use printing::{PrintFormat, PrintedValue};
use proptest::prelude::*;
use trace_build::{Buffer, Codec, Page, event_formats, header_info};
use vmtax_capture::import::text::{ftrace_text, perf_script, trace_cmd_report};
use vmtax_capture::import::tracepoint::{Endian, RecordDecoder};
use vmtax_capture::import::{perf_data, trace_dat};
use vmtax_capture::{Error, Feed, Imported};
use vmtax_events::{Event, EventKind, NO_PID, NO_VCPU, RipCounts};

fn captures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../captures")
}

fn file(name: &str) -> String {
    let path = captures().join("confidential").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The formats of a kernel, by the names of their tracepoints.
fn formats() -> BTreeMap<String, PrintFormat> {
    let text = file("7.3.formats") + "\n" + &file("kvm_tdvmcall.format");
    each_format(&text).into_iter().map(|format| (format.name.clone(), format)).collect()
}

fn each_format(text: &str) -> Vec<PrintFormat> {
    let starts: Vec<usize> = text.match_indices("name: ").map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| PrintFormat::parse(&text[*start..end])).collect()
}

/// The formats of arm64 that differ from x86's, of two kernels (`captures/arm64`).
fn formats_of_arm64() -> Vec<PrintFormat> {
    let of = |name| each_format(&file(&format!("../arm64/{name}.formats")));
    ["6.1", "7.3"].into_iter().flat_map(of).collect()
}

/// All, of which some have the same names.
fn all_formats() -> Vec<PrintFormat> {
    formats().into_values().chain(formats_of_arm64()).collect()
}

#[derive(Default)]
struct KeptRecords(Vec<Event>);

impl Feed for KeptRecords {
    fn event(&mut self, event: Event) -> Result<(), Error> {
        self.0.push(event);
        Ok(())
    }
}

/// One record.
struct MadeRecord<'f> {
    time_ns: u64,
    vcpu: u32,
    format: &'f PrintFormat,
    values: BTreeMap<String, PrintedValue>,
}

const TID: u32 = 4001;
const CYCLES: usize = 40;

impl MadeRecord<'_> {
    fn tid(&self) -> u32 {
        TID + self.vcpu
    }

    fn raw(&self) -> Vec<u8> {
        self.format.record(self.tid(), &self.values)
    }

    fn text(&self) -> String {
        self.format.print(&self.values)
    }

    fn system(&self) -> &'static str {
        match self.format.name.as_str() {
            "sched_switch" => "sched",
            "kvm_mmu_spte_requested" => "kvmmmu",
            _ => "kvm",
        }
    }
}

/// The records of a table, again and again, on two vCPUs.
fn recording<'f>(table: &str, formats: &'f BTreeMap<String, PrintFormat>) -> Vec<MadeRecord<'f>> {
    let mut records = Vec::new();
    for vcpu in 0..2 {
        let mut now = 1_000_000_000 + u64::from(vcpu) * 1_000;
        for n in 0..CYCLES {
            for line in table.lines().filter(|line| !line.starts_with('#')) {
                let (fields, source) = line.split_once('|').expect("FIELDS | SOURCE");
                assert!(!source.contains('|'), "{line}");
                let fields = fields.replace("{n:03x}", &format!("{n:03x}"));
                let mut words = fields.split_whitespace();
                let format = &formats[words.next().unwrap()];
                let mut values: BTreeMap<String, PrintedValue> = words
                    .map(|word| {
                        let (name, value) = word.split_once('=').unwrap();
                        assert!(format.has(name), "{} has no {name}", format.name);
                        (name.to_owned(), printing::number(value))
                    })
                    .collect();
                if format.has("vcpu_id") {
                    values.insert("vcpu_id".to_owned(), PrintedValue::Number(vcpu.into()));
                }
                now += match format.name.as_str() {
                    "kvm_exit" => 20_000,
                    "kvm_vcpu_wakeup" => 91_000,
                    _ => 2_000,
                };
                records.push(MadeRecord { time_ns: now, vcpu, format, values });
            }
        }
    }
    records.sort_by_key(|record| (record.time_ns, record.vcpu));
    records
}

fn perf_spec(
    records: &[MadeRecord<'_>],
    formats: &BTreeMap<String, PrintFormat>,
) -> perf_build::Spec {
    let attrs = vec![perf_build::Attr::tracepoint(perf_build::sample::USUAL, &[11, 12])];
    let formats = formats.values().map(|format| format.text.clone()).collect();
    let mut spec = perf_build::Spec { attrs, formats, ..Default::default() };
    for record in records {
        let sample = perf_build::Sample {
            id: 11,
            pid: 4000,
            tid: record.tid(),
            time: record.time_ns,
            cpu: record.vcpu,
            raw: record.raw(),
            ..Default::default()
        };
        spec.sample(0, &sample);
    }
    spec
}

fn trace_spec(
    name: &str,
    records: &[MadeRecord<'_>],
    formats: &BTreeMap<String, PrintFormat>,
) -> trace_build::Spec {
    let kernel =
        if name == "td-2024" { "Linux 6.8.0-rc5 x86_64\0" } else { "Linux 7.3.4 x86_64\0" };
    let texts: Vec<&str> = formats.values().map(|format| format.text.as_str()).collect();
    let cpu = |vcpu: u32| {
        let own: Vec<&MadeRecord<'_>> = records.iter().filter(|one| one.vcpu == vcpu).collect();
        let page = |records: &[&MadeRecord<'_>]| {
            let mut last = records[0].time_ns;
            let page = Page::new(false, 8, last);
            let page = records.iter().fold(page, |page, record| {
                let delta = u32::try_from(record.time_ns - last).unwrap();
                last = record.time_ns;
                let mut raw = record.raw();
                raw.resize(raw.len().next_multiple_of(4), 0);
                page.record(delta, &raw)
            });
            page.finish(4096)
        };
        (vcpu, own.chunks(40).map(page).collect::<Vec<_>>().concat())
    };
    trace_build::Spec {
        page_size: 4096,
        header_info: header_info(false, 8, 4096),
        event_formats: event_formats(false, "kvm", &texts),
        cmdlines: "4001 CPU 0/KVM\n4002 CPU 1/KVM\n".to_owned(),
        options: vec![
            (4, b"local [global] counter\0".to_vec()),
            (6, kernel.as_bytes().to_vec()),
            (8, vec![2, 0, 0, 0]),
        ],
        buffers: vec![Buffer { name: "", cpus: vec![cpu(0), cpu(1)] }],
        ..Default::default()
    }
}

/// The three texts.
fn texts(records: &[MadeRecord<'_>]) -> [String; 3] {
    let [mut perf, mut ftrace, mut trace_cmd] =
        [String::new(), "# tracer: nop\n#\n".to_owned(), "cpus=2\n".to_owned()];
    for record in records {
        let (tid, cpu, name, text) =
            (record.tid(), record.vcpu, &record.format.name, record.text());
        let (s, us) = (record.time_ns / 1_000_000_000, record.time_ns % 1_000_000_000 / 1000);
        let who = format!("CPU {cpu}/KVM");
        let system = record.system();
        writeln!(perf, "{who:>16} {tid:>5} [{cpu:03}] {s:>5}.{us:06}: {system}:{name}: {text}")
            .unwrap();
        writeln!(ftrace, "{who:>16}-{tid:<7} [{cpu:03}] d..1. {s:>5}.{us:06}: {name}: {text}")
            .unwrap();
        let label = format!("{name}:");
        writeln!(trace_cmd, "{who:>16}-{tid:<5} [{cpu:03}] {s:>5}.{us:06}: {label:<20} {text}")
            .unwrap();
    }
    [perf, ftrace, trace_cmd]
}

/// Events in order of time, without what only some forms have: processes, and the vCPUs of all but exits and entries.
fn in_order(kept: KeptRecords) -> Vec<Event> {
    let mut events = kept.0;
    for event in &mut events {
        event.pid = NO_PID;
        if !matches!(event.kind, EventKind::Exit { .. } | EventKind::Entry) {
            event.vcpu = NO_VCPU;
        }
    }
    events.sort_by_key(|event| (event.time_ns, event.cpu));
    events
}

fn rips(imported: &Imported) -> Vec<(u32, RipCounts)> {
    let mut all: BTreeMap<u32, RipCounts> = BTreeMap::new();
    imported.rips.threads().for_each(|(tid, rips)| all.entry(tid).or_default().merge(rips));
    all.into_iter().collect()
}

/// All forms of a recording: their names, what was read, and the events.
fn all_forms(name: &str) -> Vec<(&'static str, Imported, Vec<Event>)> {
    let formats = formats();
    let records = recording(&file(&format!("{name}.records")), &formats);
    let (perf, trace) = (perf_spec(&records, &formats), trace_spec(name, &records, &formats));
    let mut all = Vec::new();
    let mut kept = KeptRecords::default();
    let imported = perf_data::import_file(&&perf.file()[..], 0, &mut kept).unwrap();
    all.push(("perf.data", imported, in_order(kept)));
    let mut kept = KeptRecords::default();
    let imported = perf_data::import_pipe(&mut &perf.pipe()[..], 0, &mut kept).unwrap();
    all.push(("perf.data, a stream", imported, in_order(kept)));
    for (form, bytes) in [("trace.dat 6", trace.v6()), ("trace.dat 7", trace.v7(Codec::Zstd))] {
        let mut kept = KeptRecords::default();
        let imported = trace_dat::import(&&bytes[..], 0, &mut kept).unwrap();
        all.push((form, imported, in_order(kept)));
    }
    let [perf, ftrace, trace_cmd] = texts(&records);
    for (form, text) in [("perf script", perf), ("ftrace", ftrace), ("trace-cmd report", trace_cmd)]
    {
        let mut kept = KeptRecords::default();
        let mut input = text.as_bytes();
        let imported = match form {
            "perf script" => perf_script::import(&mut input, 0, &mut kept),
            "ftrace" => ftrace_text::import(&mut input, 0, &mut kept),
            _ => trace_cmd_report::import(&mut input, 0, &mut kept),
        };
        all.push((form, imported.unwrap(), in_order(kept)));
    }
    all
}

/// Compares with a kept file, or keeps it where VMTAX_BLESS is set.
fn check(path: &str, made: &[u8]) {
    let path = captures().join(path);
    if std::env::var_os("VMTAX_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, made).unwrap();
    }
    let kept = std::fs::read(&path).unwrap_or_default();
    assert!(kept == made, "{} is not what the tables make: VMTAX_BLESS=1 keeps it", path.display());
}

#[test]
fn every_form_reads_the_same() {
    for (name, is_zero) in [("td", true), ("snp", true), ("td-2024", false)] {
        let forms = all_forms(name);
        let (_, _, expected) = &forms[0];
        for (form, imported, events) in &forms {
            let losses = &imported.losses;
            assert_eq!(losses.undecodable, 0, "{name} {form} {losses:?}");
            for (event, expected) in events.iter().zip(expected) {
                assert_eq!(event, expected, "{name} {form}");
            }
            assert_eq!(events.len(), expected.len(), "{name} {form}");
            let rips = rips(imported);
            assert_eq!(rips.len(), 2, "{name} {form}");
            let as_expected =
                |rips: &RipCounts| rips.are_encrypted() == is_zero && rips.zero + rips.other > 32;
            assert!(rips.iter().all(|(_, rips)| as_expected(rips)), "{name} {form} {rips:?}");
        }
        // The first cycle, in full.
        let lines: Vec<&str> = file(&format!("{name}.records")).lines().map(|_| "").collect();
        let mut table = String::new();
        let first = expected.iter().filter(|event| event.cpu == 0).take(lines.len());
        first.for_each(|event| writeln!(table, "{:?}", event.kind).unwrap());
        check(&format!("confidential/{name}.events"), table.as_bytes());
    }
}

/// The inputs of labelled cases are of these tables.
#[test]
fn cases_have_what_the_tables_make() {
    let formats = formats();
    for (name, case) in
        [("td", "h9-td-mainline"), ("snp", "h9-snp-requests"), ("td-2024", "h9-td-2024")]
    {
        let records = recording(&file(&format!("{name}.records")), &formats);
        let bytes = trace_spec(name, &records, &formats).v7(Codec::Zstd);
        check(&format!("cases/{case}/trace.dat"), &bytes);
    }
}

/// Values that a field can have: those that the kernel gives and its print format shows whole.
fn values_of(format: &PrintFormat, name: &str) -> BoxedStrategy<PrintedValue> {
    let number = |n: u64| PrintedValue::Number(n.into());
    let of = |all: &'static [u64]| prop::sample::select(all).prop_map(number).boxed();
    match (format.name.as_str(), name) {
        (_, "isa") => of(&[1, 2]),
        // Of both vendors' tables.
        (_, "exit_reason" | "exit_code") if !format.name.starts_with("kvm_vmgexit") => {
            of(&[0, 2, 3, 4, 8, 16, 18, 19, 20, 24, 32, 48, 49, 50, 51, 64])
        }
        ("kvm_mmio", "type") => of(&[0, 1, 2]),
        ("kvm_pio", "port") => (0..=0xffffu64).prop_map(number).boxed(),
        ("kvm_pio", "size") => of(&[1, 2, 4]),
        ("kvm_cr", "cr") => of(&[0, 3, 4, 8]),
        // A pointer, in the place of which the text has "UNKN".
        ("kvm_sys_access", "name") => of(&[0]),
        ("kvm_get_timer_map", "vcpu_id") => (0..512u64).prop_map(number).boxed(),
        ("kvm_exit", "ret") => of(&[0, 1, 2, 3, 7, 0x0bad_ca11]),
        ("kvm_inject_nested_exception", "type") => of(&[0, 0x80, 0x100, 0x180]),
        ("kvm_mmu_spte_requested", "level") => of(&[1, 2, 3]),
        // With an error, the text does not have the reason.
        ("kvm_userspace_exit", "errno") => of(&[0]),
        (_, "prev_state") => of(&[0, 1, 2, 4, 0x100]),
        (_, "next_pid" | "prev_pid") => (1..=4_000_000u64).prop_map(number).boxed(),
        (_, "prev_comm" | "next_comm") => "[a-z][a-z0-9 /:]{0,14}"
            .prop_map(|name| PrintedValue::Text(name.trim().to_owned()))
            .boxed(),
        _ => match format.size(name) {
            1 => (0..=1u64).prop_map(number).boxed(),
            2 => any::<u16>().prop_map(move |n| number(n.into())).boxed(),
            4 => any::<i32>().prop_map(move |n| number(n.unsigned_abs().into())).boxed(),
            _ => any::<u64>().prop_map(number).boxed(),
        },
    }
}

/// Of the format with this number in [`all_formats`].
fn any_record() -> impl Strategy<Value = (usize, BTreeMap<String, PrintedValue>)> {
    let formats = all_formats();
    (0..formats.len()).prop_flat_map(move |at| {
        let format = &formats[at];
        let fields: Vec<_> = format
            .fields()
            .map(|field| (Just(field.to_owned()), values_of(format, field)))
            .collect();
        (Just(at), fields.prop_map(|fields| fields.into_iter().collect()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A record of any tracepoint of the table, from its bytes and from the text that the kernel prints.
    #[test]
    fn text_and_bytes_say_the_same((at, values) in any_record()) {
        let formats = all_formats();
        let format = &formats[at];
        let record = MadeRecord { time_ns: 1_000_000_000, vcpu: 0, format, values };
        let decoder = RecordDecoder::parse(&format.text, Endian::Little).unwrap();
        let decoded = decoder.decode(&record.raw());
        prop_assert_eq!(decoded.is_some(), decoder.is_wanted());
        for (form, text) in texts(std::slice::from_ref(&record)).into_iter().enumerate() {
            let mut kept = KeptRecords::default();
            let mut input = text.as_bytes();
            let imported = match form {
                0 => perf_script::import(&mut input, 0, &mut kept),
                1 => ftrace_text::import(&mut input, 0, &mut kept),
                _ => trace_cmd_report::import(&mut input, 0, &mut kept),
            }.unwrap();
            prop_assert_eq!(imported.losses.undecodable, 0, "{}", text);
            let kinds: Vec<EventKind> = kept.0.iter().map(|event| event.kind).collect();
            let expected: Vec<EventKind> = decoded.iter().map(|decoded| decoded.kind).collect();
            prop_assert_eq!(kinds, expected, "{}", text);
        }
    }
}

/// Fields as an older libtraceevent writes them where it cannot follow a print format.
#[test]
fn fields_of_arm64_are_read_where_the_text_has_them_plain() {
    for (n, format) in formats_of_arm64().into_iter().enumerate() {
        let small = |(at, name): (usize, &str)| {
            let value = match name {
                "name" => 0xffff_8000_8123_4567,
                "vcpu" => 0xffff_0000_0456_8000,
                "vcpu_pc" => 0x4000_13a8,
                "spsr_el2" => 0x3c5,
                "hcr_el2" => 0x2_403c_807d_263f,
                _ => at as u64 % 2,
            };
            (name.to_owned(), PrintedValue::Number(value.into()))
        };
        let values: BTreeMap<String, PrintedValue> =
            format.fields().enumerate().map(small).collect();
        let plain = |(name, value): (&String, &PrintedValue)| match value {
            PrintedValue::Number(n) => format!(" {name}={n}"),
            PrintedValue::Text(_) => String::new(),
        };
        let fields: String = values.iter().map(plain).collect();
        let label = format!("{}:", format.name);
        let text = format!(
            "cpus=2\n     CPU 0/KVM-4001  [000]     1.000000: {label:<20} [FAILED TO PARSE]{fields}\n"
        );
        let record = MadeRecord { time_ns: 1_000_000_000, vcpu: 0, format: &format, values };
        let decoder = RecordDecoder::parse(&format.text, Endian::Little).unwrap();
        let expected = decoder.decode(&record.raw()).unwrap();
        let mut kept = KeptRecords::default();
        let imported = trace_cmd_report::import(&mut text.as_bytes(), 0, &mut kept).unwrap();
        assert_eq!(imported.losses.undecodable, 0, "{n} {text}");
        let said: Vec<(u32, EventKind)> =
            kept.0.iter().map(|event| (event.vcpu, event.kind)).collect();
        assert_eq!(said, [(expected.vcpu, expected.kind)], "{n} {text}");
    }
}

/// The tables name every tracepoint that the formats are of, so that none is left untried.
#[test]
fn print_formats_are_followed() {
    let formats = formats();
    let print = |name: &str, values: &[(&str, u64)]| {
        let values =
            values.iter().map(|(name, n)| ((*name).to_owned(), PrintedValue::Number((*n).into())));
        formats[name].print(&values.collect())
    };
    for (name, values, text) in [
        ("kvm_msr", &[("write", 1), ("ecx", 0x6e0), ("data", 0x10)][..], "msr_write 6e0 = 0x10"),
        (
            "kvm_exit",
            &[("exit_reason", 0x8000_0021), ("isa", 1), ("vcpu_id", 3)],
            "vcpu 3 reason INVALID_STATE FAILED_VMENTRY rip 0x0 info1 0x0000000000000000 info2 \
             0x0000000000000000 intr_info 0x00000000 error_code 0x00000000 requests 0x0000000000000000",
        ),
        (
            "kvm_vm_set_mem_attributes",
            &[("start", 0x40000), ("end", 0x40200), ("attr", 8)],
            "0x00000000040000 -- 0x00000000040200 [0x8]",
        ),
        ("kvm_apic", &[("rw", 1), ("reg", 0x380), ("val", 5)], "apic_write APIC_TMICT = 0x5"),
        ("kvm_userspace_exit", &[("reason", 2)], "reason KVM_EXIT_IO (2)"),
        (
            "kvm_tdvmcall",
            &[("exit_reason", 0x10001)],
            "rip: 0 reason: MAP_GPA p1: 0 p2: 0 p3: 0 p4: 0",
        ),
    ] {
        assert_eq!(print(name, values), text);
    }
}
