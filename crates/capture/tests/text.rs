//! The importers of texts, against real texts, and against every known spelling of a payload.

#[path = "text/bpftrace_dumps.rs"]
mod bpftrace_dumps;
#[path = "text/payloads.rs"]
mod payloads;

use std::io::Read;

use proptest::prelude::*;
use vmtax_capture::import::text::{ftrace_text, perf_script, trace_cmd_report};
use vmtax_capture::import::{Imported, bpftrace};
use vmtax_capture::{Error, Feed};
use vmtax_events::{Event, EventKind, ExitRow, Isa, NO_PID, NO_VCPU, Reason, vmx};

const PERF_SCRIPT: &str = include_str!("../../../captures/amd-nested/input/perf-script.txt");
const PERF_LOST: &str = include_str!("../../../captures/amd-nested/input/perf-script-lost.txt");
const TRACE_CMD: &str = include_str!("../../../captures/amd-nested/input/trace-cmd-report.txt");
const TRACE_CMD_RAW: &str =
    include_str!("../../../captures/amd-nested/input/trace-cmd-report-R.txt");
const TRACE_CMD_LATENCY: &str =
    include_str!("../../../captures/amd-nested/input/trace-cmd-report-l.txt");

/// Keeps what it is fed.
#[derive(Default)]
struct KeptText {
    events: Vec<Event>,
    rows: Vec<ExitRow>,
    names: Vec<(u32, u32, String)>,
    released: u64,
}

impl Feed for KeptText {
    fn event(&mut self, event: Event) -> Result<(), Error> {
        self.events.push(event);
        Ok(())
    }

    fn release(&mut self, time_ns: u64) -> Result<(), Error> {
        assert!(time_ns >= self.released);
        self.released = time_ns;
        Ok(())
    }

    fn counted(&mut self, row: ExitRow) -> Result<(), Error> {
        self.rows.push(row);
        Ok(())
    }

    fn thread_name(&mut self, pid: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.names.push((pid, tid, name.to_owned()));
        Ok(())
    }
}

type Import = fn(&mut dyn Read, &mut KeptText) -> Result<Imported, Error>;

fn ftrace(input: &mut dyn Read, feed: &mut KeptText) -> Result<Imported, Error> {
    ftrace_text::import(input, 0, feed)
}

fn perf(input: &mut dyn Read, feed: &mut KeptText) -> Result<Imported, Error> {
    perf_script::import(input, 0, feed)
}

fn trace_cmd(input: &mut dyn Read, feed: &mut KeptText) -> Result<Imported, Error> {
    trace_cmd_report::import(input, 0, feed)
}

fn import(import: Import, text: &str) -> (KeptText, Imported) {
    let mut kept = KeptText::default();
    let imported = import(&mut text.as_bytes(), &mut kept).expect("a text");
    (kept, imported)
}

fn import_error(import: Import, text: &str) -> String {
    import(&mut text.as_bytes(), &mut KeptText::default()).expect_err("no text").to_string()
}

fn svm(code: u32) -> Reason {
    Reason { isa: Isa::Svm, code, flags: 0 }
}

fn vmx(code: u32) -> Reason {
    Reason { isa: Isa::Vmx, code, flags: 0 }
}

fn exit(reason: Reason, info1: u64, info2: u64) -> EventKind {
    EventKind::Exit { reason, info1, info2 }
}

fn switch(next_tid: u32, preempted: bool) -> EventKind {
    EventKind::Switch { next_tid, preempted }
}

#[test]
fn real_perf_script() {
    let (kept, imported) = import(perf, PERF_SCRIPT);
    let count = |f: fn(&EventKind) -> bool| kept.events.iter().filter(|e| f(&e.kind)).count();
    // Counted with grep.
    assert_eq!(count(|k| matches!(k, EventKind::Exit { .. })), 107);
    assert_eq!(count(|k| matches!(k, EventKind::NestedExit { .. })), 4);
    assert_eq!(imported.losses.undecodable, 0);
    assert!(imported.losses.is_empty());
    assert_eq!(imported.recording.format, "perf script");
    let coverage = imported.recording.coverage;
    assert!(coverage.exits && coverage.nested && coverage.userspace && coverage.pio);
    assert!(!coverage.sched && !coverage.hypercall);
    assert_eq!(imported.losses.notes[0], "times in this text are rounded to 1 µs");
    let name = "qemu-system-x86".to_owned();
    let named = |tid| (NO_PID, tid, name.clone());
    assert_eq!(kept.names, [named(105), named(109), named(107)]);
    assert!(kept.released > 0 && kept.released < kept.events.last().unwrap().time_ns);
}

#[test]
fn real_trace_cmd_report() {
    let (kept, imported) = import(trace_cmd, TRACE_CMD);
    let exits = kept.events.iter().filter(|e| matches!(e.kind, EventKind::Exit { .. })).count();
    assert_eq!(exits, 104);
    assert!(imported.losses.is_empty(), "{:?}", imported.losses);
    assert_eq!((imported.recording.cpus, imported.recording.tool.as_str()), (2, "trace-cmd"));
    assert!(imported.recording.coverage.nested);
}

/// The same lines of one recording in three forms. The plugin's form has no vCPU in `kvm_exit`.
#[test]
fn forms_of_trace_cmd_agree() {
    let (raw, imported) = import(trace_cmd, TRACE_CMD_RAW);
    assert!(imported.losses.is_empty(), "{:?}", imported.losses);
    let without_vcpu = |events: &[Event]| -> Vec<Event> {
        let plain = |e: &Event| match e.kind {
            EventKind::Exit { .. } => Event { vcpu: NO_VCPU, ..*e },
            _ => *e,
        };
        events.iter().map(plain).collect()
    };
    let raw_events = without_vcpu(&raw.events);
    assert!(raw_events.len() > 150);
    let (plain, _) = import(trace_cmd, TRACE_CMD);
    let start = plain.events.len() - raw_events.len();
    assert_eq!(without_vcpu(&plain.events[start..]), raw_events);
    let (latency, _) = import(trace_cmd, TRACE_CMD_LATENCY);
    assert_eq!(without_vcpu(&latency.events), raw_events);
}

#[test]
fn losses_of_perf() {
    let (kept, imported) = import(perf, PERF_LOST);
    assert_eq!((imported.losses.recorder_lost, imported.losses.recorder_gaps), (8, 0));
    let lost = kept.events.iter().find(|e| matches!(e.kind, EventKind::Lost { .. })).unwrap();
    assert_eq!(
        (lost.time_ns, lost.cpu, lost.kind),
        (43_107_971_000, 1, EventKind::Lost { count: 8 })
    );
    assert_eq!(imported.losses.notes.len(), 1);

    let text = "Warning:\nProcessed 84286 events and lost 2 chunks!\n\nCheck IO/CPU overload!\n";
    let (_, imported) = import(perf, text);
    assert_eq!((imported.losses.recorder_lost, imported.losses.recorder_gaps), (0, 2));
}

#[test]
fn threads_of_perf() {
    let text = " vmm   120/121 [001]    43.107971: PERF_RECORD_EXIT(120:121):(1:1)\n\
                 vmm   120/122 [001]    43.107972: PERF_RECORD_COMM: vmm:120/122\n\
                 :123    -1/123 [001]    43.107972: kvm:kvm_entry: vcpu 0\n";
    let (kept, _) = import(perf, text);
    let ended = Event {
        time_ns: 43_107_971_000,
        pid: 120,
        tid: 121,
        cpu: 1,
        vcpu: NO_VCPU,
        kind: EventKind::ThreadEnd,
    };
    assert_eq!(kept.events[0], ended);
    assert_eq!((kept.events[1].pid, kept.events[1].tid), (NO_PID, 123));
    assert_eq!(kept.names, [(120, 121, "vmm".to_owned()), (120, 122, "vmm".to_owned())]);
}

#[test]
fn header_of_perf() {
    let text = "# ========\n# captured on    : Sat Nov 21 08:28:52 2026\n# hostname : vmhost\n\
                # os release : 6.1.0-56-amd64\n# perf version : 6.1.192\n# arch : x86_64\n\
                # nrcpus online : 2\n# cpudesc : QEMU TCG CPU version 2.5+\n\
                # cmdline : /usr/bin/perf record -a\n# ========\n#\n";
    assert!(perf_script::recognise(text.as_bytes()));
    let (_, Imported { recording, .. }) = import(perf, text);
    assert_eq!(recording.hostname, "vmhost");
    assert_eq!(recording.tool, "perf 6.1.192");
    assert_eq!((recording.kernel.as_str(), recording.cpus), ("6.1.0-56-amd64", 2));
    assert_eq!(recording.emulated.as_deref(), Some("QEMU TCG"));
    assert_eq!(recording.command, "/usr/bin/perf record -a");
}

const FTRACE: &str = "# tracer: nop
#
# entries-in-buffer/entries-written: 4/104   #P:2
#
#                                _-----=> irqs-off/BH-disabled
#                               / _----=> need-resched
#                              | / _---=> hardirq/softirq
#                              || / _--=> preempt-depth
#                              ||| / _-=> migrate-disable
#                              |||| /     delay
#           TASK-PID    TGID     CPU#  |||||  TIMESTAMP  FUNCTION
#              | |        |        |   |||||     |         |
       CPU 0/KVM-1234    (   1200) [001] d..1.   100.000001: kvm_entry: vcpu 0, rip 0xfff0
##### CPU 0 buffer started ####
CPU:0 [LOST 23 EVENTS]
            qemu-1200    (   1200) [000] .....   100.000002: kvm_set_irq: gsi 4 level 1 source 0
 kworker/u4:2-ev-99      (-------) [000] d..2.   100.000003: sched_switch: prev_comm=kworker/u4:2-ev prev_pid=99 prev_prio=120 prev_state=I ==> next_comm=swapper/0 next_pid=0 next_prio=120
       CPU 0/KVM-1234    (   1200) [001] .....   100.000004: kvm_exit: reason CPUID rip 0x1 info 0 0
";

#[test]
fn ftrace_with_groups_and_losses() {
    let (kept, imported) = import(ftrace, FTRACE);
    let line = |us: u64, pid, tid, cpu, vcpu, kind| Event {
        time_ns: 100_000_000_000 + us * 1000,
        pid,
        tid,
        cpu,
        vcpu,
        kind,
    };
    assert_eq!(
        kept.events,
        [
            line(1, 1200, 1234, 1, 0, EventKind::Entry),
            line(2, NO_PID, 0, 0, NO_VCPU, EventKind::Lost { count: 23 }),
            line(
                2,
                1200,
                1200,
                0,
                NO_VCPU,
                EventKind::Interrupt {
                    at: vmtax_events::event::InterruptAt::Gsi,
                    number: 4,
                    source: 0
                },
            ),
            line(3, NO_PID, 99, 0, NO_VCPU, switch(0, false)),
            line(4, 1200, 1234, 1, NO_VCPU, exit(vmx(10), 0, 0)),
        ]
    );
    let names: Vec<_> = kept.names.iter().map(|(p, t, n)| (*p, *t, n.as_str())).collect();
    assert_eq!(
        names,
        [(1200, 1234, "CPU 0/KVM"), (1200, 1200, "qemu"), (NO_PID, 99, "kworker/u4:2-ev")]
    );
    // 100 were overwritten, the 23 among them.
    assert_eq!(imported.losses.recorder_lost, 100);
    assert_eq!(imported.recording.cpus, 2);
    assert!(imported.recording.coverage.sched);
}

#[test]
fn loss_lines() {
    let entry = " q-1 [000] 1.000000001: kvm_entry: vcpu 0\n";
    for (line, cpu, count) in [
        ("CPU:3 [LOST 12 EVENTS]\n", 3, 12),
        ("CPU:0 [LOST EVENTS]\n", 0, 0),
        ("CPU:1 [99 EVENTS DROPPED]\n", 1, 99),
        ("CPU:2 [EVENTS DROPPED]\n", 2, 0),
        ("[7 EVENTS DROPPED]\n", 0, 7),
    ] {
        for how in [ftrace as Import, trace_cmd] {
            // Before an event it has that event's time, after the last one the last time.
            for text in [format!("{line}{entry}"), format!("{entry}{line}")] {
                let (kept, imported) = import(how, &text);
                let lost =
                    kept.events.iter().find(|e| matches!(e.kind, EventKind::Lost { .. })).unwrap();
                assert_eq!((lost.time_ns, lost.cpu), (1_000_000_001, cpu), "{text}");
                assert_eq!(lost.kind, EventKind::Lost { count }, "{text}");
                let losses = imported.losses;
                assert_eq!(losses.recorder_lost, count, "{text}");
                assert_eq!(losses.recorder_gaps, u64::from(count == 0), "{text}");
            }
        }
    }
}

#[test]
fn texts_of_no_known_format() {
    for how in [ftrace as Import, perf, trace_cmd] {
        assert!(import_error(how, "hello\nworld\n").contains("no line reads"));
    }
    for text in ["", "\n\n", "# tracer: nop\n#\n", "cpus=2\nCPU 0 is empty\n"] {
        let how = if text.starts_with("cpus") { trace_cmd as Import } else { ftrace };
        let (kept, imported) = import(how, text);
        assert!(kept.events.is_empty() && imported.losses.is_empty(), "{text:?}");
    }
    let count = " q-1 [000] 12345678: kvm_entry: vcpu 0\n";
    assert!(import_error(ftrace, count).contains("count of a clock"));
    let latency = "# tracer: nop\n#\n# nop latency trace v1.1.5 on 6.1.0\n";
    assert!(import_error(ftrace, latency).contains("latency-format"));
}

#[test]
fn ends_early() {
    let text =
        " q-1 [000] 1.000000001: kvm_entry: vcpu 0\n q-1 [000] 1.000000002: kvm_exit: reason CP";
    let (kept, imported) = import(ftrace, text);
    assert_eq!(kept.events.len(), 1);
    assert_eq!(imported.losses.undecodable, 1);
    assert_eq!(imported.losses.truncated.len(), 1);
}

#[test]
fn very_long_lines() {
    let mut text = " q-1 [000] 1.000000001: kvm_entry: vcpu 0\n".to_owned();
    text.push_str(&"x".repeat(1 << 20));
    text.push_str("\n q-1 [000] 1.000000002: kvm_entry: vcpu 0\n");
    let (kept, imported) = import(ftrace, &text);
    assert_eq!((kept.events.len(), imported.losses.undecodable), (2, 1));
}

#[test]
fn recognition() {
    type Recognise = fn(&[u8]) -> bool;
    let all: [(&str, Recognise); 4] = [
        ("ftrace", ftrace_text::recognise),
        ("perf", perf_script::recognise),
        ("trace-cmd", trace_cmd_report::recognise),
        ("bpftrace", bpftrace::recognise),
    ];
    let middle = |text: &'static str| text.get(20_007..).unwrap_or(&text[7..]);
    let mid_ftrace = FTRACE.split_once("TIMESTAMP").unwrap().1;
    for (expected, text) in [
        ("ftrace", FTRACE),
        ("ftrace", mid_ftrace),
        ("perf", PERF_SCRIPT),
        ("perf", PERF_LOST),
        ("perf", middle(PERF_SCRIPT)),
        ("trace-cmd", TRACE_CMD),
        ("trace-cmd", TRACE_CMD_RAW),
        ("trace-cmd", TRACE_CMD_LATENCY),
        ("trace-cmd", middle(TRACE_CMD)),
        ("trace-cmd", "cpus=4\nCPU 0 is empty\n"),
        ("bpftrace", "Attaching 2 probes...\n^C\n\n@reason[32]: 143258\n"),
        ("bpftrace", "@[EPT_VIOLATION]: 12\n"),
        ("", ""),
        ("", "hello\nworld\n"),
        ("", "PERFILE2\0\0\0"),
        ("", "\u{1}\u{2}\u{3}\u{4}@[1]: 2\n"),
    ] {
        for cut in [text.len().min(64 << 10), text.len().min(3000)] {
            let head = &text.as_bytes()[..cut];
            let found: Vec<_> =
                all.iter().filter(|(_, f)| f(head)).map(|(name, _)| *name).collect();
            let expected: Vec<_> = Some(expected).filter(|e| !e.is_empty()).into_iter().collect();
            assert_eq!(found, expected, "{}", &text[..text.len().min(200)]);
        }
    }
}

/// A real text with some of its bytes changed, lines cut and lines repeated.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let text = prop::sample::select(vec![
        PERF_SCRIPT,
        PERF_LOST,
        TRACE_CMD,
        TRACE_CMD_RAW,
        TRACE_CMD_LATENCY,
        FTRACE,
    ]);
    let edits =
        prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0usize..40), 1..40);
    (text, any::<prop::sample::Index>(), edits).prop_map(|(text, start, edits)| {
        let from = start.index(text.len());
        let mut bytes = text.as_bytes()[from..text.len().min(from + 6000)].to_vec();
        for (at, byte, cut) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            if cut < 30 {
                bytes[at] = byte;
            } else {
                let to = bytes.len().min(at + cut);
                bytes.drain(at..to);
            }
        }
        bytes
    })
}

fn everything(bytes: &[u8]) {
    for how in [ftrace as Import, perf, trace_cmd] {
        let _ = how(&mut &bytes[..], &mut KeptText::default());
    }
    for isa in [Isa::Vmx, Isa::Svm, Isa::Unknown] {
        let _ = bpftrace::import(&mut &bytes[..], isa, &mut KeptText::default());
    }
    ftrace_text::recognise(bytes);
    perf_script::recognise(bytes);
    trace_cmd_report::recognise(bytes);
    bpftrace::recognise(bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        everything(&bytes);
    }

    #[test]
    fn arbitrary_payloads_never_panic(
        event in prop::sample::select(vec![
            "kvm_exit", "kvm_entry", "kvm_msr", "kvm_pio", "kvm_mmio", "kvm_fast_mmio", "kvm_hypercall",
            "kvm_page_fault", "kvm_mmu_spte_requested", "kvm_vm_set_mem_attributes", "kvm_cpuid", "kvm_cr", "kvm_apic", "kvm_vmgexit_enter", "kvm_tdvmcall",
            "kvm_userspace_exit", "kvm_nested_vmexit", "kvm_nested_vmexit_inject", "kvm_vcpu_wakeup",
            "sched_switch", "PERF_RECORD_LOST",
        ]),
        payload in r"([a-z_]{1,9}|vcpu|reason:?|UNKNOWN|excp|rip|info[12]?| |=|==>|\[|\]|\(|\)|,|:|-|0x[0-9a-f]{0,18}|[0-9]{1,21}){0,24}",
    ) {
        everything(format!(" q 1-1 [000] 1.000001: {event}: {payload}\n q 1 [000] 1.000001: kvm:{event}: {payload}\n@m[{payload}]: 3\n").as_bytes());
    }

    #[test]
    fn mutated_texts_never_panic(bytes in mutated()) {
        everything(&bytes);
    }
}
