//! Documents to render: one like a real recording, and the ones that are hard to render well.

use vmtax_analyse::{By, Filter, LedgerBuilder, Nested, SortedTable, TableKind};
use vmtax_events::{
    AccessKey, AccessRow, Coverage, Detail, DetailKind, ExitKey, ExitRow, Isa, Level, Losses,
    Outcome, Reason, Recording, Tally, TimeRow, Vm,
};
use vmtax_report::Document;

/// Length of an interval, ns.
const INTERVAL: u64 = 100_000_000;
/// When the demo recording starts on its clock, ns.
const START: u64 = 5_000 * INTERVAL;

/// Everything that could break out of the place it is put in.
pub(crate) const HOSTILE: &str = "<script>alert(1)</script></style></title>--><img src=x onerror=alert(2)>\"'`&amp;\u{202e}gnp.exe\u{1b}[31m\u{0}\n{{x}}";

/// A small deterministic generator (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// About lognormal around `median`, a tail to the right.
    fn duration(&mut self, median: f64, spread: f64) -> u64 {
        let normal = (0..6).map(|_| self.unit()).sum::<f64>() - 3.0;
        (median * (normal * spread).exp()) as u64
    }
}

pub(crate) fn svm(code: u32) -> Reason {
    Reason { isa: Isa::Svm, code, flags: 0 }
}

pub(crate) fn vmx(code: u32) -> Reason {
    Reason { isa: Isa::Vmx, code, flags: 0 }
}

pub(crate) fn exit_key(vcpu: u32, reason: Reason) -> ExitKey {
    ExitKey {
        vm: 4242,
        vcpu,
        level: Level::L1,
        reason,
        detail: Detail::NONE,
        outcome: Outcome::Kernel,
        ancillary_of: None,
    }
}

pub(crate) fn finish(
    builder: LedgerBuilder,
    recording: Recording,
    losses: Losses,
    complete: bool,
) -> Document {
    let ledger = builder.finish(recording, losses, complete);
    let tables = TableKind::ALL.iter().map(|&kind| SortedTable::new(&ledger, kind, &[])).collect();
    let nested = Some(Nested::new(&ledger));
    Document {
        source: "run".to_owned(),
        tool_version: "0.1.0".to_owned(),
        ledger,
        tables,
        operations: None,
        nested,
        calls: None,
        budget: None,
    }
}

/// Nothing was recorded.
pub(crate) fn empty() -> Document {
    finish(
        LedgerBuilder::new(Filter::default(), INTERVAL),
        Recording::default(),
        Losses::default(),
        true,
    )
}

/// Counts without times, as a bpftrace map gives them: the plain VM of "tuning oneDNN on TDX".
pub(crate) fn count_only() -> Document {
    let mut builder = LedgerBuilder::new(Filter::default(), INTERVAL);
    let counts = [
        (0, 14),
        (1, 143_007),
        (12, 146),
        (18, 1),
        (31, 63),
        (32, 143_258),
        (49, 267),
        (52, 142_929),
        (56, 182),
    ];
    for (code, count) in counts {
        let mut tally = Tally::default();
        tally.add_untimed(count);
        let key = ExitKey { outcome: Outcome::Unknown, ..exit_key(u32::MAX, vmx(code)) };
        builder.exit(&ExitRow { interval_start_ns: 0, key, tally });
    }
    let coverage = Coverage { exits: true, ..Coverage::default() };
    let recording =
        Recording { format: "bpftrace text".to_owned(), coverage, ..Recording::default() };
    let mut doc = finish(builder, recording, Losses::default(), true);
    doc.source = "exits.txt".to_owned();
    doc
}

/// Every string of the recording hostile, every badge lit.
pub(crate) fn hostile() -> Document {
    let mut builder = LedgerBuilder::new(Filter::default(), INTERVAL);
    let mut tally = Tally::default();
    tally.add(u64::MAX);
    tally.add(0);
    let key = ExitKey {
        detail: Detail::new(DetailKind::MsrWrite, u64::MAX),
        ..exit_key(0, svm(0xffff_fffe))
    };
    builder.exit(&ExitRow { interval_start_ns: u64::MAX - INTERVAL, key, tally: tally.clone() });
    builder.exit(&ExitRow { interval_start_ns: 0, key: exit_key(u32::MAX, vmx(9_999)), tally });
    builder.time(&TimeRow {
        vm: 4242,
        wall_ns: 1,
        guest_ns: u64::MAX,
        unknown_ns: u64::MAX,
        ..TimeRow::default()
    });
    let hostile = || HOSTILE.to_owned();
    let recording = Recording {
        format: hostile(),
        tool: hostile(),
        command: HOSTILE.repeat(50),
        hostname: hostile(),
        kernel: hostile(),
        arch: hostile(),
        cpu: hostile(),
        cpus: 3,
        clock: hostile(),
        emulated: Some(hostile()),
        choice: Some(hostile()),
        coverage: Coverage::ALL,
        vms: vec![
            Vm { id: 4242, name: hostile(), inferred: true, ..Vm::default() },
            Vm { id: 7, name: hostile(), inferred: false, ..Vm::default() },
        ],
        ..Recording::default()
    };
    let losses = Losses {
        recorder_lost: 7,
        recorder_gaps: 1,
        truncated: vec![hostile()],
        notes: vec![hostile()],
        ..Losses::default()
    };
    let mut doc = finish(builder, recording, losses, false);
    doc.source = hostile();
    doc.tool_version = hostile();
    let by = [By::Vm, By::Vcpu, By::Reason, By::Detail];
    doc.tables.push(SortedTable::new(&doc.ledger, TableKind::Vmexit, &by));
    doc
}

/// More rows than the page shows, and as many vCPUs as KVM has.
pub(crate) fn large() -> Document {
    let mut builder = LedgerBuilder::new(Filter::default(), INTERVAL);
    let mut random = Random(0x9e37_79b9);
    for i in 0..10_000u64 {
        let mut tally = Tally::default();
        tally.add(1_000 + i * 7);
        let interval_start_ns = i * INTERVAL;
        let detail = Detail::new(DetailKind::PageFault, i << 21);
        let key = ExitKey { detail, ..exit_key((i % 256) as u32, svm(0x400)) };
        builder.exit(&ExitRow { interval_start_ns, key, tally: tally.clone() });
        let detail = Detail::new(DetailKind::MmioWrite, 0xfe00_0000 + i * 4);
        let key = AccessKey { vm: 4242, vcpu: 0, level: Level::L1, detail };
        builder.access(&AccessRow { interval_start_ns, key, tally });
    }
    for vcpu in 0..256 {
        builder.time(&split(4242, vcpu, &mut random));
    }
    let recording = Recording {
        coverage: Coverage::ALL,
        vms: vec![Vm {
            id: 4242,
            name: "qemu-system-x86".to_owned(),
            inferred: false,
            ..Vm::default()
        }],
        ..Recording::default()
    };
    let mut doc = finish(builder, recording, Losses::default(), true);
    doc.tables = vec![
        SortedTable::new(&doc.ledger, TableKind::Vmexit, &[By::Reason, By::Detail, By::Vcpu]),
        SortedTable::new(&doc.ledger, TableKind::Mmio, &[]),
    ];
    doc
}

fn split(vm: u32, vcpu: u32, random: &mut Random) -> TimeRow {
    let wall_ns = 1_000 * INTERVAL;
    let mut left = wall_ns;
    let mut take = |fraction: f64| {
        let part = (left as f64 * fraction) as u64;
        left -= part;
        part
    };
    let halted_ns = take(random.unit() * 0.6);
    let exit_kernel_ns = take(0.03 + random.unit() * 0.2);
    let exit_user_ns = take(0.02 + random.unit() * 0.1);
    let preempted_ns = take(random.unit() * 0.05);
    let unknown_ns = take(0.004);
    TimeRow {
        interval_start_ns: START,
        vm,
        vcpu,
        wall_ns,
        guest_ns: left,
        exit_kernel_ns,
        exit_user_ns,
        halted_ns,
        preempted_ns,
        unknown_ns,
        ..TimeRow::default()
    }
}

/// Exits of one kind in the demo: reason, detail, count, median ns, spread, share of the recording
/// they happen in (from, to).
type DemoExits = (u32, Detail, Level, Outcome, Option<u32>, u64, f64, f64, (f64, f64));

/// A host that boots a VM, which boots a VM: the counts of captures/amd-nested-kvmstat, times drawn.
pub(crate) fn demo() -> Document {
    use DetailKind as D;
    use Level::{L1, L2};
    use Outcome::{Halted, Kernel, User};
    let d = Detail::new;
    let to_l1 = Outcome::L1;
    #[rustfmt::skip]
    let kinds: [DemoExits; 22] = [
        (0x7b, d(D::PortOut, 0xcf8), L1, User, None, 16_638, 34_000.0, 0.5, (0.03, 0.35)),
        (0x7b, d(D::PortIn, 0xcfc), L1, User, None, 16_602, 9_000.0, 0.4, (0.03, 0.35)),
        (0x7b, d(D::PortOut, 0x3f8), L1, User, None, 871, 120_000.0, 1.1, (0.0, 1.0)),
        (0x7b, d(D::PortIn, 0x3fd), L1, User, None, 398, 9_100.0, 0.3, (0.0, 1.0)),
        (0x60, Detail::NONE, L1, Kernel, None, 1_465, 21_000.0, 0.9, (0.0, 1.0)),
        (0x60, Detail::NONE, L2, Kernel, None, 600, 24_000.0, 0.8, (0.5, 1.0)),
        (0x400, d(D::PageFault, 0x0760_0000), L1, Kernel, None, 1_500, 90_000.0, 2.1, (0.0, 0.6)),
        (0x400, d(D::PageFault, 0x0fe0_0000), L2, to_l1, None, 305, 160_000.0, 1.9, (0.5, 0.9)),
        (0x7c, d(D::MsrWrite, 0x6e0), L1, Kernel, None, 1_196, 48_000.0, 0.7, (0.2, 1.0)),
        (0x7c, d(D::MsrWrite, 0x838), L1, Kernel, None, 240, 38_000.0, 0.5, (0.1, 0.5)),
        (0x7c, d(D::MsrRead, 0x1b), L1, Kernel, None, 160, 21_000.0, 0.4, (0.0, 0.3)),
        (0x72, d(D::Cpuid, 0x4000_0000 << 32), L1, Kernel, None, 729, 17_000.0, 0.5, (0.0, 0.4)),
        (0x72, d(D::Cpuid, 0xb << 32), L2, to_l1, None, 500, 18_500.0, 0.5, (0.55, 0.95)),
        (0x82, Detail::NONE, L1, Kernel, Some(0x72), 964, 20_000.0, 0.6, (0.55, 0.95)),
        (0x83, Detail::NONE, L1, Kernel, Some(0x72), 489, 23_000.0, 0.4, (0.55, 0.95)),
        (0x80, Detail::NONE, L1, Kernel, Some(0x72), 482, 31_000.0, 0.9, (0.55, 0.95)),
        (0x80, Detail::NONE, L1, Kernel, Some(0x400), 305, 31_000.0, 0.9, (0.5, 0.9)),
        (0x7c, d(D::MsrWrite, 0xc000_0101), L1, Kernel, Some(0x400), 610, 20_000.0, 0.6, (0.5, 0.9)),
        (0x64, Detail::NONE, L1, Kernel, None, 182, 25_000.0, 0.3, (0.2, 1.0)),
        (0x65, Detail::NONE, L1, Kernel, None, 145, 15_000.0, 0.7, (0.05, 0.15)),
        (0x14, Detail::NONE, L1, Kernel, None, 120, 35_000.0, 0.5, (0.05, 0.15)),
        (0x78, Detail::NONE, L1, Halted, None, 139, 3_000_000.0, 0.8, (0.6, 1.0)),
    ];
    let mut random = Random(42);
    let mut builder = LedgerBuilder::new(Filter::default(), INTERVAL);
    for (code, detail, level, outcome, of, count, median, spread, (from, to)) in kinds {
        let slots = 240;
        let mut by_slot = vec![Tally::default(); slots];
        for _ in 0..count {
            // Bursts: some slots are busier than others.
            let at = from + (to - from) * (random.unit() + random.unit().powi(3)) / 2.0;
            let slot = ((at * slots as f64) as usize).min(slots - 1);
            by_slot[slot].add(random.duration(median, spread));
        }
        for (slot, tally) in by_slot.into_iter().enumerate().filter(|(_, t)| t.count > 0) {
            let interval_start_ns = START + slot as u64 * INTERVAL;
            let key = ExitKey {
                level,
                detail,
                outcome,
                ancillary_of: of.map(svm),
                ..exit_key((slot % 2) as u32, svm(code))
            };
            if !matches!(detail.kind, D::None | D::PageFault) {
                let key = AccessKey { vm: key.vm, vcpu: key.vcpu, level, detail };
                builder.access(&AccessRow { interval_start_ns, key, tally: tally.clone() });
            }
            builder.exit(&ExitRow { interval_start_ns, key, tally });
        }
    }
    for (vcpu, halted_ms, kernel_ms, user_ms, preempted_ms) in
        [(0, 2_400, 2_310, 1_690, 210), (1, 11_900, 610, 120, 80)]
    {
        let ms = 1_000_000;
        let spent = (halted_ms + kernel_ms + user_ms + preempted_ms + 30) * ms;
        builder.time(&TimeRow {
            interval_start_ns: START,
            vm: 4242,
            vcpu,
            wall_ns: 23_981 * ms,
            guest_ns: 23_981 * ms - spent,
            exit_kernel_ns: kernel_ms * ms,
            exit_user_ns: user_ms * ms,
            halted_ns: halted_ms * ms,
            preempted_ns: preempted_ms * ms,
            unknown_ns: 30 * ms,
            ..TimeRow::default()
        });
    }
    let recording = Recording {
        format: "perf.data".to_owned(),
        tool: "perf 6.1.192".to_owned(),
        command: "perf record -e kvm:* -e sched:sched_switch -a -o boot.perf.data -- sleep 24"
            .to_owned(),
        hostname: "lab-amd".to_owned(),
        kernel: "6.12.41+deb13-amd64".to_owned(),
        arch: "x86_64".to_owned(),
        cpu: "QEMU TCG CPU version 2.5+".to_owned(),
        cpus: 4,
        clock: "local".to_owned(),
        emulated: Some("QEMU TCG".to_owned()),
        coverage: Coverage { hypercall: false, ..Coverage::ALL },
        vms: vec![Vm {
            id: 4242,
            name: "qemu-system-x86".to_owned(),
            inferred: false,
            ..Vm::default()
        }],
        ..Recording::default()
    };
    let losses = Losses {
        recorder_lost: 1_204,
        unpaired_exits: 3,
        notes: vec!["perf.data holds no CPU topology.".to_owned()],
        ..Losses::default()
    };
    let mut doc = finish(builder, recording, losses, true);
    doc.source = "captures/amd-nested-kvmstat.perf.data".to_owned();
    doc
}
