//! The real recordings against perf's own text of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use vmtax_capture::order::Sorter;
use vmtax_capture::{
    Error, ImportFormat, ImportOptions, ImportSource, Imported, Sink, import, pipeline,
};
use vmtax_events::event::{HypercallInterface, InterruptAt};
use vmtax_events::{Event, EventKind};

fn capture(path: &str) -> Vec<u8> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    let bytes = std::fs::read(root.join(path)).unwrap_or_else(|e| panic!("captures/{path}: {e}"));
    if path.ends_with(".zst") { zstd::decode_all(bytes.as_slice()).unwrap() } else { bytes }
}

fn text(path: &str) -> String {
    String::from_utf8_lossy(&capture(path)).into_owned()
}

/// What a sink is given.
#[derive(Debug, Default, PartialEq)]
struct CollectCaptures {
    events: Vec<Event>,
    names: Vec<(u32, u32, String)>,
}

impl Sink for &mut CollectCaptures {
    fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        self.events.extend_from_slice(events);
        Ok(())
    }

    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.names.push((pid, tid, name.to_owned()));
        Ok(())
    }
}

/// On one thread.
fn sorted(file: &[u8]) -> (Imported, CollectCaptures) {
    let format = ImportFormat::recognise(file).unwrap();
    let mut collect = CollectCaptures::default();
    let mut sorter = Sorter::new(&mut collect);
    let imported =
        import::import(format, ImportSource::Random(&file), ImportOptions::default(), &mut sorter)
            .unwrap();
    let (_, late) = sorter.finish().unwrap();
    assert_eq!(late, 0);
    (imported, collect)
}

/// The name in perf's text.
fn tracepoint(kind: EventKind) -> Option<&'static str> {
    Some(match kind {
        EventKind::Exit { .. } => "kvm:kvm_exit",
        EventKind::Entry => "kvm:kvm_entry",
        EventKind::Msr { .. } => "kvm:kvm_msr",
        EventKind::Pio { .. } => "kvm:kvm_pio",
        EventKind::Mmio { .. } => "kvm:kvm_mmio",
        EventKind::FastMmio { .. } => "kvm:kvm_fast_mmio",
        EventKind::Hypercall { interface: HypercallInterface::Kvm, .. } => "kvm:kvm_hypercall",
        EventKind::Hypercall { interface: HypercallInterface::HyperV, .. } => {
            "kvm:kvm_hv_hypercall"
        }
        EventKind::Hypercall { interface: HypercallInterface::Xen, .. } => "kvm:kvm_xen_hypercall",
        EventKind::PageFault { .. } => "kvm:kvm_page_fault",
        EventKind::Cpuid { .. } => "kvm:kvm_cpuid",
        EventKind::Cr { .. } => "kvm:kvm_cr",
        EventKind::Apic { .. } => "kvm:kvm_apic",
        EventKind::UserspaceExit { .. } => "kvm:kvm_userspace_exit",
        EventKind::NestedExit { .. } => "kvm:kvm_nested_vmexit",
        EventKind::NestedInject { .. } => "kvm:kvm_nested_vmexit_inject",
        EventKind::NestedEnter => "kvm:kvm_nested_vmenter",
        EventKind::Wakeup { .. } => "kvm:kvm_vcpu_wakeup",
        EventKind::Switch { .. } => "sched:sched_switch",
        // perf's own text is compared by the names of `WANTED`.
        EventKind::Woken { .. } => return None,
        EventKind::Ioctl { .. } => "syscalls:sys_enter_ioctl",
        EventKind::IoctlReturn { .. } => "syscalls:sys_exit_ioctl",
        EventKind::Interrupt { at: InterruptAt::Apic, .. } => "kvm:kvm_apic_accept_irq",
        EventKind::ApicvInhibit { .. } => "kvm:kvm_apicv_inhibit_changed",
        // perf prints these only when asked to.
        EventKind::Lost { .. } | EventKind::ThreadEnd => return None,
        other => panic!("{other:?} is in none of the recordings"),
    })
}

const WANTED: [&str; 21] = [
    "kvm:kvm_exit",
    "kvm:kvm_entry",
    "kvm:kvm_msr",
    "kvm:kvm_pio",
    "kvm:kvm_mmio",
    "kvm:kvm_fast_mmio",
    "kvm:kvm_hypercall",
    "kvm:kvm_hv_hypercall",
    "kvm:kvm_xen_hypercall",
    "kvm:kvm_page_fault",
    "kvm:kvm_cpuid",
    "kvm:kvm_cr",
    "kvm:kvm_apic",
    "kvm:kvm_userspace_exit",
    "kvm:kvm_nested_vmexit",
    "kvm:kvm_nested_vmexit_inject",
    "kvm:kvm_nested_vmenter",
    "kvm:kvm_vcpu_wakeup",
    "kvm:kvm_apic_accept_irq",
    "kvm:kvm_apicv_inhibit_changed",
    "sched:sched_switch",
];

/// Name, CPU, thread and microseconds of an event, as perf's text has them.
type PerfLine = (String, u32, u32, u64);

/// `  CPU 0/KVM   129 [000]     8.455713:     kvm:kvm_exit: ...`; the name may hold spaces.
fn parse(line: &str) -> Option<PerfLine> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let cpu_of = |w: &str| w.strip_prefix('[')?.strip_suffix(']')?.parse::<u32>().ok();
    let (at, cpu) = words.iter().enumerate().find_map(|(i, w)| Some((i, cpu_of(w)?)))?;
    let (seconds, micros) = words.get(at + 1)?.strip_suffix(':')?.split_once('.')?;
    let time = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
    let name = words.get(at + 2)?.strip_suffix(':')?;
    // Not INIT and start-up messages, which have no vector.
    let is_message = line.contains("(INIT|") || line.contains("(SIPI|");
    (WANTED.contains(&name) && !is_message).then_some(())?;
    // The kernel has no number any more for a thread that leaves the CPU for the last time.
    let tid = match words[at - 1] {
        "-1" => words.iter().find_map(|w| w.strip_prefix("prev_pid="))?,
        tid => tid,
    };
    Some((name.to_owned(), cpu, tid.parse().ok()?, time))
}

fn lines(events: &[Event]) -> Vec<PerfLine> {
    let line = |e: &Event| Some((tracepoint(e.kind)?.to_owned(), e.cpu, e.tid, e.time_ns / 1000));
    events.iter().filter_map(line).collect()
}

/// How often each tracepoint occurs.
fn counts(lines: &[PerfLine]) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    for (name, ..) in lines {
        *counts.entry(name.as_str()).or_insert(0) += 1;
    }
    counts
}

/// Exits as `expected/*.exits.txt` has them: (process/thread, vCPU, reason) -> how many.
fn exits(events: &[Event]) -> BTreeMap<(String, u32, String), u64> {
    let mut exits = BTreeMap::new();
    for e in events {
        let EventKind::Exit { reason, .. } = e.kind else { continue };
        let who = format!("{}/{}", e.pid, e.tid);
        *exits.entry((who, e.vcpu, reason.name().into_owned())).or_insert(0) += 1;
    }
    exits
}

fn expected_exits(path: &str) -> BTreeMap<(String, u32, String), u64> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [count, who, "vcpu", vcpu, reason] = words[..] else { panic!("{path}: {line:?}") };
        ((who.to_owned(), vcpu.parse().unwrap(), reason.to_owned()), count.parse().unwrap())
    };
    text(path).lines().filter(|l| !l.trim().is_empty()).map(row).collect()
}

/// Every recording with its text: folder, name, how it was recorded.
const RECORDINGS: [(&str, &str, ImportFormat); 10] = [
    ("amd-pipe", "pipe", ImportFormat::PerfPipe),
    ("amd-pipe", "pipe-zstd", ImportFormat::PerfPipe),
    ("amd-pipe", "pipe-kvmstat", ImportFormat::PerfPipe),
    ("intel-cpuid", "intel", ImportFormat::PerfFile),
    ("intel-nested", "intel-nested", ImportFormat::PerfFile),
    ("amd-midrun", "midrun", ImportFormat::PerfFile),
    ("amd-nested-exact", "nested-exact", ImportFormat::PerfFile),
    ("amd-same-workload", "workload", ImportFormat::PerfFile),
    ("amd-sched", "sched", ImportFormat::PerfFile),
    ("amd-two-vms", "two-vms", ImportFormat::PerfFile),
];

#[test]
fn every_recording_equals_perf_script() {
    for (folder, name, format) in RECORDINGS {
        let file = capture(&format!("{folder}/input/{name}.perf.data.zst"));
        assert_eq!(ImportFormat::recognise(&file).unwrap(), format, "{name}");
        let (imported, collect) = sorted(&file);
        assert!(imported.losses.is_empty(), "{name}: {:?}", imported.losses);
        assert_eq!(imported.losses.notes, Vec::<String>::new(), "{name}");
        let ours = lines(&collect.events);
        let script = text(&format!("{folder}/input/{name}.script.txt.zst"));
        let theirs: Vec<PerfLine> = script.lines().filter_map(parse).collect();
        assert_eq!(counts(&ours), counts(&theirs), "{name}");
        // Not only as many: the same one after the other.
        let first = ours.iter().zip(&theirs).position(|(a, b)| a != b);
        assert_eq!(first, None, "{name}: {:?}", first.map(|i| (&ours[i], &theirs[i])));
        let expected = expected_exits(&format!("{folder}/expected/{name}.exits.txt"));
        assert_eq!(exits(&collect.events), expected, "{name}");
    }
}

#[test]
fn a_perf_kvm_stat_recording_equals_its_report() {
    let (imported, collect) = sorted(&capture("amd-nested/input/kvmstat.perf.data.zst"));
    assert!(imported.losses.is_empty(), "{:?}", imported.losses);
    let mut ours = BTreeMap::new();
    let mut open = BTreeMap::new();
    for e in &collect.events {
        // perf counts an exit when the entry after it comes.
        match e.kind {
            EventKind::Exit { reason, .. } => _ = open.insert(e.tid, reason),
            EventKind::Entry => {
                if let Some(reason) = open.remove(&e.tid) {
                    *ours.entry(reason.name().into_owned()).or_insert(0) += 1;
                }
            }
            _ => {}
        }
    }
    let report = text("amd-nested/expected/kvmstat.txt");
    let table = report.lines().skip_while(|l| !l.contains("VM-EXIT")).skip(2);
    let theirs: BTreeMap<String, u64> = table
        .take_while(|l| !l.trim().is_empty())
        .map(|line| {
            let (head, _) = line.split_once('%').unwrap();
            let words: Vec<&str> = head.split_whitespace().collect();
            let [reason @ .., count, _] = &words[..] else { panic!("{line:?}") };
            (reason.join(" "), count.parse().unwrap())
        })
        .collect();
    assert_eq!(theirs.values().sum::<u64>(), 43_646);
    assert_eq!(ours, theirs);
}

/// A recording through [`pipeline::run`], its source read in order if it can be.
fn piped(file: &[u8]) -> (Imported, CollectCaptures) {
    let format = ImportFormat::recognise(file).unwrap();
    let mut collect = CollectCaptures::default();
    let mut stream = file;
    let source = match format {
        ImportFormat::PerfPipe => ImportSource::Stream(&mut stream),
        _ => ImportSource::Random(&file),
    };
    let imported = pipeline::run(format, source, ImportOptions::default(), &mut collect).unwrap();
    (imported, collect)
}

#[test]
fn two_threads_deliver_what_one_does() {
    let names = RECORDINGS.map(|(folder, name, _)| format!("{folder}/input/{name}.perf.data.zst"));
    let more = ["amd-cpuid/input/lost.perf.data.zst", "amd-cpuid/input/zstd.perf.data.zst"];
    for path in names.iter().map(String::as_str).chain(more) {
        let file = capture(path);
        let (one, expected) = sorted(&file);
        let (two, collect) = piped(&file);
        assert!(!collect.events.is_empty(), "{path}");
        assert!(collect == expected, "{path}");
        assert_eq!(two.losses, one.losses, "{path}");
        assert_eq!(two.recording, one.recording, "{path}");
    }
}

#[test]
fn a_full_ring_is_a_loss() {
    let (imported, collect) = sorted(&capture("amd-cpuid/input/lost.perf.data.zst"));
    let in_place: u64 = collect
        .events
        .iter()
        .filter_map(|e| match e.kind {
            EventKind::Lost { count } => Some(count),
            _ => None,
        })
        .sum();
    assert!(in_place > 0);
    assert!(imported.losses.recorder_lost >= in_place, "{in_place} {:?}", imported.losses);
}

/// (path, clock that `-k` asked for)
const CLOCKS: [(&str, &str); 2] = [
    ("intel-cpuid/input/intel.perf.data.zst", "monotonic"),
    ("amd-pipe/input/pipe.perf.data.zst", ""),
];

#[test]
fn the_clock_is_the_one_asked_for() {
    for (path, clock) in CLOCKS {
        assert_eq!(sorted(&capture(path)).0.recording.clock, clock, "{path}");
    }
}
