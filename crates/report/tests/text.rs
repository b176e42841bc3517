//! The terminal report, compared to the character.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[expect(dead_code, reason = "shared with the tests of other renderers")]
mod ledgers;

use vmtax_events::{Coverage, Losses};
use vmtax_report::text::TextLayout;
use vmtax_report::{Document, Renderer};

fn rendered(text: TextLayout, document: &Document) -> String {
    let mut out = Vec::new();
    text.render(document, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[track_caller]
fn check(document: &Document, width: Option<usize>, expected: &str) {
    let actual = rendered(TextLayout { color: false, width }, document);
    assert!(actual == expected, "expected:\n{expected}\nactual:\n{actual}");
}

#[test]
fn a_wide_terminal_shows_everything() {
    check(
        &ledgers::small(),
        Some(120),
        r#"vmtax 0.1.0: trace.dat
  recorded  trace.dat, by trace-cmd 3.1.6, clock mono
  host      host, kernel 6.1.0-30-amd64, x86_64, AMD EPYC 7713P, 4 CPUs

The VM lost 6.6 % of its running time to exits: <0.1 % in the kernel, 6.6 % in the VMM.
- The VM's vCPUs waited 0.1 % of their running time for a processor.
- 2 vCPUs of 1 VM took 2,405 exits in 900 ms: 2,672 per second.
- device-pio (accessing an I/O port): 2,000 exits (83.2 % of all) took 86.0 ms, 99.3 % of the time in exits other than
  idle; mostly port in 0xcfc PCI config data.
- idle: 2 exits; the vCPUs were halted for 500 ms, 27.8 % of their time, which is not counted as lost.
- The importer skipped 3 host events.
- Counts are too low. 47 events were lost by the recorder. trace.dat ends inside the record at offset 4096.

Time of each vCPU, % of its wall time
  VM                    vCPU    wall  guest  exit-kernel  exit-user  halted  preempted  unknown  tax
  1234 qemu-system-x86     0  900 ms   90.4          0.1        9.4     0.0        0.1      0.0  9.5
  1234 qemu-system-x86     1  900 ms   43.9          0.0        0.0    55.6        0.0      0.6  0.0
  all                         1.80 s   67.1         <0.1        4.7    27.8        0.1      0.3  6.6
  tax: time in exits, without preempted time, in % of known time not halted.

VM exits by reason and level
  reason  exits      %     time      %      min     mean      ±      p50      p90      p99      max
  hlt         2    0.1   500 ms   85.2   200 ms   250 ms  20.0%   200 ms   300 ms   300 ms   300 ms
  io      2,000   83.2  86.0 ms   14.7  40.0 µs  43.0 µs   0.1%  43.0 µs  46.0 µs  46.0 µs  46.0 µs
  msr       400   16.6   600 µs    0.1  1.50 µs  1.50 µs   0.0%  1.50 µs  1.50 µs  1.50 µs  1.50 µs
  cpuid       3    0.1  3.60 µs   <0.1  1.10 µs  1.20 µs   4.8%  1.21 µs  1.30 µs  1.30 µs  1.30 µs
  all     2,405  100.0   587 ms  100.0  1.10 µs   244 µs  61.4%  42.2 µs  46.1 µs  46.1 µs   300 ms

I/O port accesses by detail
  detail                         count      %     time      %      min     mean     ±      p90      p99      max
  port in 0xcfc PCI config data  2,000  100.0  86.0 ms  100.0  40.0 µs  43.0 µs  0.1%  46.0 µs  46.0 µs  46.0 µs
  not shown in 120 columns: p50

MSR accesses by detail
  detail                         count      %    time      %      min     mean     ±      p50      p90      p99      max
  wrmsr 0x6e0 IA32_TSC_DEADLINE    400  100.0  560 µs  100.0  1.40 µs  1.40 µs  0.0%  1.40 µs  1.40 µs  1.40 µs  1.40 µs

VM exits by cause
  cause       exits      %     time      %      min     mean      ±      p50      p90      p99      max
  idle            2    0.1   500 ms   85.2   200 ms   250 ms  20.0%   200 ms   300 ms   300 ms   300 ms
  device-pio  2,000   83.2  86.0 ms   14.7  40.0 µs  43.0 µs   0.1%  43.0 µs  46.0 µs  46.0 µs  46.0 µs
  timer-arm     400   16.6   600 µs    0.1  1.50 µs  1.50 µs   0.0%  1.50 µs  1.50 µs  1.50 µs  1.50 µs
  cpuid           3    0.1  3.60 µs   <0.1  1.10 µs  1.20 µs   4.8%  1.21 µs  1.30 µs  1.30 µs  1.30 µs
  all         2,405  100.0   587 ms  100.0  1.10 µs   244 µs  61.4%  42.2 µs  46.1 µs  46.1 µs   300 ms

  p50, p90, p99: upper bounds, less than 1 % above the true value.
  Times of accesses run from the access to the next entry of the vCPU (MMIO reads: from the exit to the access).

losses:
- 47 events were lost by the recorder.
- trace.dat ends inside the record at offset 4096.
- 1 unmatched exit (no following kvm_entry), excluded from all tables.
"#,
    );
}

#[test]
fn a_narrow_terminal_shows_what_matters_most() {
    check(
        &ledgers::small(),
        Some(80),
        r#"vmtax 0.1.0: trace.dat
  recorded  trace.dat, by trace-cmd 3.1.6, clock mono
  host      host, kernel 6.1.0-30-amd64, x86_64, AMD EPYC 7713P, 4 CPUs

The VM lost 6.6 % of its running time to exits: <0.1 % in the kernel, 6.6 % in
the VMM.
- The VM's vCPUs waited 0.1 % of their running time for a processor.
- 2 vCPUs of 1 VM took 2,405 exits in 900 ms: 2,672 per second.
- device-pio (accessing an I/O port): 2,000 exits (83.2 % of all) took 86.0 ms,
  99.3 % of the time in exits other than idle; mostly port in 0xcfc PCI config
  data.
- idle: 2 exits; the vCPUs were halted for 500 ms, 27.8 % of their time, which
  is not counted as lost.
- The importer skipped 3 host events.
- Counts are too low. 47 events were lost by the recorder. trace.dat ends inside
  the record at offset 4096.

Time of each vCPU, % of its wall time
  VM                    vCPU    wall  guest  exit-user  halted  unknown  tax
  1234 qemu-system-x86     0  900 ms   90.4        9.4     0.0      0.0  9.5
  1234 qemu-system-x86     1  900 ms   43.9        0.0    55.6      0.6  0.0
  all                         1.80 s   67.1        4.7    27.8      0.3  6.6
  not shown in 80 columns: exit-kernel, preempted
  tax: time in exits, without preempted time, in % of known time not halted.

VM exits by reason and level
  reason  exits      %     time      %     mean      ±      p99      max
  hlt         2    0.1   500 ms   85.2   250 ms  20.0%   300 ms   300 ms
  io      2,000   83.2  86.0 ms   14.7  43.0 µs   0.1%  46.0 µs  46.0 µs
  msr       400   16.6   600 µs    0.1  1.50 µs   0.0%  1.50 µs  1.50 µs
  cpuid       3    0.1  3.60 µs   <0.1  1.20 µs   4.8%  1.30 µs  1.30 µs
  all     2,405  100.0   587 ms  100.0   244 µs  61.4%  46.1 µs   300 ms
  not shown in 80 columns: min, p50, p90

I/O port accesses by detail
  detail                         count      %     time      %     mean     ±
  port in 0xcfc PCI config data  2,000  100.0  86.0 ms  100.0  43.0 µs  0.1%
  not shown in 80 columns: min, p50, p90, p99, max

MSR accesses by detail
  detail                         count      %    time      %     mean     ±
  wrmsr 0x6e0 IA32_TSC_DEADLINE    400  100.0  560 µs  100.0  1.40 µs  0.0%
  not shown in 80 columns: min, p50, p90, p99, max

VM exits by cause
  cause       exits      %     time      %     mean      ±      p99      max
  idle            2    0.1   500 ms   85.2   250 ms  20.0%   300 ms   300 ms
  device-pio  2,000   83.2  86.0 ms   14.7  43.0 µs   0.1%  46.0 µs  46.0 µs
  timer-arm     400   16.6   600 µs    0.1  1.50 µs   0.0%  1.50 µs  1.50 µs
  cpuid           3    0.1  3.60 µs   <0.1  1.20 µs   4.8%  1.30 µs  1.30 µs
  all         2,405  100.0   587 ms  100.0   244 µs  61.4%  46.1 µs   300 ms
  not shown in 80 columns: min, p50, p90

  p50, p90, p99: upper bounds, less than 1 % above the true value.
  Times of accesses run from the access to the next entry of the vCPU (MMIO
  reads: from the exit to the access).

losses:
- 47 events were lost by the recorder.
- trace.dat ends inside the record at offset 4096.
- 1 unmatched exit (no following kvm_entry), excluded from all tables.
"#,
    );
}

#[test]
fn nested_exits_have_a_table_and_emulated_hosts_a_label() {
    check(
        &ledgers::nesting(),
        Some(120),
        r#"vmtax 0.1.0: trace.dat
  recorded  trace.dat, by trace-cmd 3.1.6, clock mono
  host      host, kernel 6.1.0-30-amd64, x86_64, AMD EPYC 7713P, 4 CPUs
  emulated  QEMU TCG: not hardware

1 vCPU of 1 VM took 350 exits in 1.00 s: 350 per second.
- nested-ancillary (handling an exit of its own guest): 150 exits (42.9 % of all) took 450 µs, 47.4 % of the time in
  exits; mostly rdmsr 0x1d9 IA32_DEBUGCTL.
- nested-entry (entering its own guest): 100 exits (28.6 % of all) took 300 µs, 31.6 % of the time in exits.
- cpuid (executing CPUID): 100 exits (28.6 % of all) took 200 µs, 21.1 % of the time in exits.
- nested: 100 exits of L2 were forwarded to L1, which took 250 further exits to handle them, 2.50 each.
- Recorded on an emulated host (QEMU TCG): times do not reflect hardware, counts do.

VM exits by reason and level
  reason  level  exits      %    time      %      min     mean     ±      p50      p90      p99      max
  msr     L1       150   42.9  450 µs   47.4  3.00 µs  3.00 µs  0.0%  3.00 µs  3.00 µs  3.00 µs  3.00 µs
  vmrun   L1       100   28.6  300 µs   31.6  3.00 µs  3.00 µs  0.0%  3.00 µs  3.00 µs  3.00 µs  3.00 µs
  cpuid   L2       100   28.6  200 µs   21.1  2.00 µs  2.00 µs  0.0%  2.00 µs  2.00 µs  2.00 µs  2.00 µs
  all              350  100.0  950 µs  100.0  2.00 µs  2.71 µs  0.9%  3.00 µs  3.00 µs  3.00 µs  3.00 µs

  p50, p90, p99: upper bounds, less than 1 % above the true value.

Exits of L2, and the exits of L1 that handle them
  L2 exit / L1 exits                exits  to L1  per exit    time     mean      max
  cpuid                               100    100      2.50  200 µs  2.00 µs  2.00 µs
    msr: rdmsr 0x1d9 IA32_DEBUGCTL    150             1.50  450 µs  3.00 µs  3.00 µs
    vmrun                             100             1.00  300 µs  3.00 µs  3.00 µs
  per exit: exits of L1 per forwarded exit of L2, including the entry back to L2.

losses: none known
"#,
    );
}

#[test]
fn a_lab_run_shows_its_operations_first() {
    check(
        &ledgers::lab(),
        Some(100),
        r#"vmtax 0.1.0: trace.dat
  recorded  trace.dat, by trace-cmd 3.1.6, clock x86-tsc
  host      host, kernel 6.1.0-30-amd64, x86_64, AMD EPYC 7713P, 4 CPUs
  emulated  QEMU TCG (icount)

A nested cpuid takes 23.3 times the instructions of one at L1: 24,120.3 instructions and 6 exits.
- 4 operations ran at L1 and 1 at L2: 1,520 executions in all took 1,551 exits.
- Costliest at L1: hlt-timer (14,910 ±0.6 % instructions, 2.50 exits), cpuid (1,036 instructions,
  1.005 exits), rdtsc (1 instruction, 0 exits).
- Costliest at L2: cpuid (24,120.3 instructions, 6 exits).
- nested: 200 exits of L2 were forwarded to L1, which took 1,000 further exits to handle them, 5.00
  each.
- Emulated (QEMU TCG (icount)): counts and path lengths are exact; times are instructions of the
  emulator (1 ns each) and do not reflect hardware.

Nested beside L1
  operation  L2/L1  path L1   path L2  exits L1  exits L2
  cpuid       23.3    1,036  24,120.3     1.005         6
  L2/L1: path at L2 over path at L1. exits: per execution, at L2 those of L1 to handle them
  included.

Operations: exits and path length of one execution
  operation  level  exits           path  spread %  % L0/L1/L2  of which
  cpuid      L1     1.005          1,036       0.1        97/3  cpuid 1; others 0.01
  hlt-timer  L1      2.50  14,910 ±0.6 %       1.2         4/3  wrmsr IA32_TSC_DEADLINE 1.50, hlt 1
  rdtsc      L1         0              1       0.0           -  none
  touch-4k   L1         1              -         -       83/17  npf 1
  cpuid      L2         6       24,120.3       0.1    69/30/<1  cpuid 1 → vmload 2,
                                                                rdmsr IA32_DEBUGCTL 1, vmrun 1,
                                                                vmsave 1
  exits: per execution. path: instructions from the guest's instruction back to the guest, median of
  the batches. ±: how far off the path of another run may be, 0.5 % where none is shown. spread:
  (max - min) / median. % L0/L1/L2: share of the traced time in the host, the guest and the nested
  guest; the rest is halted. →: exits of L1 to handle that exit of L2.

Exits of L2, and the exits of L1 that handle them
  L2 exit / L1 exits                exits  to L1  per exit     time     mean      max
  cpuid                               200    200      5.00   400 µs  2.00 µs  2.00 µs
    vmload                            400             2.00   600 µs  1.50 µs  1.50 µs
    msr: rdmsr 0x1d9 IA32_DEBUGCTL    200             1.00   500 µs  2.50 µs  2.50 µs
    vmrun                             200             1.00  1.60 ms  8.00 µs  8.00 µs
    vmsave                            200             1.00   300 µs  1.50 µs  1.50 µs
  per exit: exits of L1 per forwarded exit of L2, including the entry back to L2.

losses: none known
"#,
    );
}

#[test]
fn lists_of_exits_are_whole_however_narrow_the_terminal() {
    for width in [None, Some(160), Some(100), Some(80), Some(60), Some(0)] {
        let text = rendered(TextLayout { color: false, width }, &ledgers::lab());
        let words: Vec<&str> = text.split_whitespace().collect();
        let list = "cpuid 1 → vmload 2, rdmsr IA32_DEBUGCTL 1, vmrun 1, vmsave 1";
        assert!(words.join(" ").contains(list), "{width:?}: {text}");
    }
}

#[test]
fn an_l1_lab_run_has_no_columns_of_l2() {
    let mut document = ledgers::lab();
    document.operations.as_mut().unwrap().rows.pop();
    document.nested = None;
    let text = rendered(TextLayout { color: false, width: None }, &document);
    assert!(!text.contains("L2/L1") && !text.contains('→'), "{text}");
    assert!(text.contains("4 operations ran at L1: 1,320 executions in all took 351 exits.\n"));
}

#[test]
fn counts_without_times_claim_no_times() {
    check(
        &ledgers::counts(),
        None,
        r#"vmtax 0.1.0: trace.dat
  recorded  bpftrace text

286,411 exits. Exits have no durations.
- device-pio (accessing an I/O port): 143,258 exits (50.0 % of all).
- host-interrupt (interrupted by the host; the recording does not say by what): 143,007 exits (49.9 % of all).
- idle: 146 exits (0.1 % of all).
- Not known of 143,007 exits: what interrupted the guest, which AMD's exits never say: `perf record -a -e irq_vectors:*,irq:irq_handler_entry` does.

VM exits by reason and level
  reason       exits      %
  io         143,258   50.0
  interrupt  143,007   49.9
  hlt            146    0.1
  all        286,411  100.0

losses: none known
"#,
    );
}

#[test]
fn an_empty_recording_is_reported() {
    check(
        &ledgers::empty(),
        None,
        r#"vmtax 0.1.0: trace.dat

The recording holds no VM exits.

Operations: exits and path length of one execution
  none: this is no lab run

VM exits by reason and level
  none

MSR accesses by detail
  none

Exits of L2, and the exits of L1 that handle them
  unknown: kvm_nested_vmexit was not recorded, so exits of L1 and L2 cannot be distinguished

losses: none known
"#,
    );
}

#[test]
fn huge_numbers_keep_every_digit() {
    check(
        &ledgers::huge(),
        None,
        r#"vmtax 0.1.0: trace.dat
  recorded  trace.dat, by trace-cmd 3.1.6, clock mono
  host      host, kernel 6.1.0-30-amd64, x86_64, AMD EPYC 7713P, 4 CPUs

1 vCPU of 2 VMs took 18,446,744,073,709,551,615 exits in 18,446,744,074 s: 1,000,000,000 per second.
- device-mmio (accessing a device register in memory): 18,446,744,073,709,551,615 exits (100.0 % of all) took 18,446,744,074 s, 100.0 % of the time in exits; mostly mmio write 0xffffffffffffffff.
- idle: the vCPU was halted for 4,611,686,018 s, 25.0 % of its time, which is not counted as lost.
- 100.0 % of the time is unknown: exits or entries are missing around it.
- 18,446,744,073,709,551,612 of 18,446,744,073,709,551,615 exits have no duration: times are those of the others.
- Counts are too low. 18,446,744,073,709,551,615 events were lost by the recorder.

Time of each vCPU, % of its wall time
  VM                    vCPU              wall  guest  exit-kernel  exit-user  halted  preempted  unknown  tax
  1234 qemu-system-x86     7  18,446,744,074 s  100.0         12.5       12.5    25.0       12.5    100.0    -
  tax: time in exits, without preempted time, in % of known time not halted.

VM exits by reason, level, cause, detail, outcome, VM and vCPU
  reason      level  cause        detail                         outcome  VM          vCPU                       exits      %              time      %   min             mean       ±               p50               p90               p99               max
  0xfffffffe  L1     device-mmio  mmio write 0xffffffffffffffff  user     4294967295  ?     18,446,744,073,709,551,615  100.0  18,446,744,074 s  100.0  1 ns  6,148,914,691 s  100.0%  18,446,744,074 s  18,446,744,074 s  18,446,744,074 s  18,446,744,074 s

  p50, p90, p99: upper bounds, less than 1 % above the true value.

losses:
- 18,446,744,073,709,551,615 events were lost by the recorder.
- 18,446,744,073,709,551,615 exits have no detail: too many different details.
"#,
    );
}

#[test]
fn no_string_of_a_recording_acts_on_the_terminal() {
    for width in [None, Some(0), Some(80), Some(120)] {
        let acts = |c: char| c != '\n' && vmtax_report::names::is_hidden(c);
        let lab = rendered(TextLayout { color: false, width }, &ledgers::hostile_lab());
        assert_eq!(lab.find(acts), None, "{lab}");
        let text = rendered(TextLayout { color: false, width }, &ledgers::hostile());
        assert_eq!(text.find(acts), None, "{text}");
        assert!(text.contains(r"\u{1b}]0;owned\u{7}"), "{text}");
    }
}

#[test]
fn rows_fit_the_terminal() {
    let documents =
        [ledgers::small(), ledgers::nesting(), ledgers::lab(), ledgers::counts(), ledgers::empty()];
    for document in documents {
        for width in [72, 80, 100, 120, 160] {
            let text = rendered(TextLayout { color: false, width: Some(width) }, &document);
            let longest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
            assert!(longest.chars().count() <= width, "{width}: {longest}");
        }
    }
}

#[test]
fn missing_evidence_is_reported_as_unknown() {
    let mut document = ledgers::small();
    document.ledger.recording.coverage = Coverage { exits: true, ..Coverage::default() };
    document.ledger.recording.vms[0].inferred = true;
    let sentences = vmtax_report::headline::sentences(&document);
    for said in [
        "The VM lost 6.6 % of its running time to exits: <0.1 % in the kernel or the VMM.",
        "kvm_userspace_exit was not recorded: time in the VMM is counted as time in the kernel.",
        "sched_switch was not recorded: time preempted is counted as time in exits.",
        "kvm_vcpu_wakeup was not recorded: the complete duration of a halting exit is counted as halted.",
        "Which threads make up VM qemu-system-x86 (1234) is inferred from thread numbers and vCPU ids: the recording has no process ids, or one process ran several VMs.",
    ] {
        assert!(sentences.iter().any(|sentence| sentence == said), "{said}\n{sentences:#?}");
    }
    let text = rendered(TextLayout { color: false, width: None }, &document);
    assert!(
        text.contains(
            "  1234 qemu-system-x86     0  900 ms   90.4          0.1          -     0.0          -"
        ),
        "{text}"
    );
}

#[test]
fn every_loss_has_a_sentence() {
    let mut document = ledgers::empty();
    document.ledger.losses = Losses {
        recorder_lost: 1,
        recorder_gaps: 2,
        unpaired_exits: 3_000,
        unpaired_entries: 1,
        out_of_order: 5,
        undecodable: 6,
        details_dropped: 7,
        accesses_dropped: 1_024,
        threads_dropped: 983_616,
        vms_merged: 8,
        missing: vec!["No kvm_exit.".to_owned()],
        ..Losses::default()
    };
    document.ledger.complete = false;
    let expected = [
        "No kvm_exit.",
        "1 event was lost by the recorder.",
        "2 places where the recorder lost events without saying how many.",
        "Limit of 16,384 vCPU threads exceeded: 983,616 events of further threads are in no table.",
        "The recording is truncated: its end is missing.",
        "3,000 unmatched exits (no following kvm_entry), excluded from all tables.",
        "1 unmatched entry (no preceding kvm_exit).",
        "5 events are out of order: durations near them may be wrong.",
        "6 records could not be decoded.",
        "7 exits have no detail: too many different details.",
        "1,024 accesses have no address or register: too many different ones.",
        "Limit of 16,384 VMs exceeded: 8 exits of further VMs are counted with the last one.",
    ];
    assert_eq!(vmtax_report::losses::sentences(&document.ledger), expected);
}

#[test]
fn colour_changes_nothing_but_colour() {
    let document = ledgers::small();
    let plain = rendered(TextLayout { color: false, width: Some(100) }, &document);
    let mut colored = rendered(TextLayout { color: true, width: Some(100) }, &document);
    assert!(colored.contains("\u{1b}[1mVM exits by reason and level\u{1b}[0m\n"));
    for code in ["0", "1", "2", "33"] {
        colored = colored.replace(&format!("\u{1b}[{code}m"), "");
    }
    assert_eq!(colored, plain);
}

/// Whatever the width, the largest part of the time outside the guest has its column, and every other is there or named.
#[test]
fn the_largest_part_of_the_time_is_always_shown() {
    const PARTS: [&str; 5] = ["exit-kernel", "exit-user", "halted", "preempted", "unknown"];
    for largest in 0..PARTS.len() {
        let mut document = ledgers::small();
        for time in document.ledger.time.values_mut() {
            let sum = &mut time.sum;
            let mut parts = [10, 20, 30, 40, 50];
            parts[largest] = 500;
            sum.wall_ns = 1000;
            sum.guest_ns = 1000 - parts.iter().sum::<u64>();
            [
                sum.exit_kernel_ns,
                sum.exit_user_ns,
                sum.halted_ns,
                sum.preempted_ns,
                sum.unknown_ns,
            ] = parts;
        }
        for width in 20..220 {
            let text = rendered(TextLayout { color: false, width: Some(width) }, &document);
            let split = text.split("Time of each vCPU").nth(1).unwrap();
            let split = split.split("VM exits by reason").next().unwrap();
            let head = split.lines().nth(1).unwrap();
            let shown: Vec<&str> = head.split_whitespace().collect();
            let flat = split.split_whitespace().collect::<Vec<_>>().join(" ");
            let left_out = flat.split("columns: ").nth(1).unwrap_or_default();
            let left_out = left_out.split(" tax: ").next().unwrap();
            assert!(shown.contains(&PARTS[largest]), "{width}: {split}");
            for part in PARTS {
                assert!(
                    shown.contains(&part) != left_out.contains(part),
                    "{width} {part}: {split}"
                );
            }
        }
    }
}

#[test]
fn functions_of_call_trees() {
    let shown = rendered(TextLayout { color: false, width: Some(120) }, &ledgers::called());
    assert!(shown.contains("cpuid L1: 3,000 instructions = L0 3,000; not counted: 1"), "{shown}");
    assert!(shown.contains("kvm_arch_vcpu_ioctl_run") && !shown.contains('\u{1b}'), "{shown}");
}
