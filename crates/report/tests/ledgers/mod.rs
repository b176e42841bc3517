//! Documents, built by hand, that every renderer's test renders.

use vmtax_analyse::{
    Arranged, By, Filter, LedgerBuilder, Nested, Operations, SortedTable, TableKind,
};
use vmtax_events::{
    AccessKey, AccessRow, Better, CallKind, CallRow, Coverage, Detail, DetailKind, ExitKey,
    ExitRow, Isa, Level, Losses, Outcome, Reason, Recording, Sample, Tally, TimeRow, Vm, svm,
};
use vmtax_report::Document;
use vmtax_report::calls::ShownCalls;

const SECOND: u64 = 1_000_000_000;

/// A string that tries to act on a terminal, a spreadsheet, a CSV reader, a JSON reader or a page.
pub(crate) const EVIL: &str = "\u{1b}]0;owned\u{7}\u{1b}[31m\"a,b\"\r\n<script>alert(1)</script></style></title>--><img src=x onerror=alert(2)>'`&amp;{{x}}\u{202e}gnp.exe\0";

/// Puts rows of one second into a ledger.
struct Rows(LedgerBuilder);

impl Rows {
    fn new() -> Rows {
        Rows(LedgerBuilder::new(Filter::default(), SECOND))
    }

    fn exit(&mut self, key: ExitKey, tally: Tally) {
        self.0.exit(&ExitRow { interval_start_ns: 0, key, tally });
    }

    fn document(
        self,
        recording: Recording,
        losses: Losses,
        complete: bool,
        kinds: &[TableKind],
    ) -> Document {
        let ledger = self.0.finish(recording, losses, complete);
        let tables = kinds.iter().map(|&kind| SortedTable::new(&ledger, kind, &[])).collect();
        Document {
            source: "trace.dat".to_owned(),
            tool_version: "0.1.0".to_owned(),
            ledger,
            tables,
            operations: None,
            nested: None,
            calls: None,
            budget: None,
        }
    }
}

/// An exit of vCPU 0 of VM 1234.
fn key(code: u32, detail: Detail, outcome: Outcome) -> ExitKey {
    let reason = Reason { isa: Isa::Svm, code, flags: 0 };
    ExitKey { vm: 1234, vcpu: 0, level: Level::L1, reason, detail, outcome, ancillary_of: None }
}

fn tally(durations: &[u64]) -> Tally {
    let mut tally = Tally::default();
    durations.iter().for_each(|&ns| tally.add(ns));
    tally
}

fn untimed(count: u64) -> Tally {
    let mut tally = Tally::default();
    tally.add_untimed(count);
    tally
}

fn recording() -> Recording {
    let coverage = Coverage::ALL;
    Recording {
        format: "trace.dat".into(),
        tool: "trace-cmd 3.1.6".into(),
        command: "trace-cmd record -e kvm".into(),
        hostname: "host".into(),
        kernel: "6.1.0-30-amd64".into(),
        arch: "x86_64".into(),
        cpu: "AMD EPYC 7713P".into(),
        cpus: 4,
        clock: "mono".into(),
        coverage,
        vms: vec![Vm {
            id: 1234,
            name: "qemu-system-x86".into(),
            inferred: false,
            ..Vm::default()
        }],
        ..Recording::default()
    }
}

fn time(vcpu: u32, parts: [u64; 7]) -> TimeRow {
    let [wall_ns, guest_ns, exit_kernel_ns, exit_user_ns, halted_ns, preempted_ns, unknown_ns] =
        parts;
    TimeRow {
        vm: 1234,
        vcpu,
        wall_ns,
        guest_ns,
        exit_kernel_ns,
        exit_user_ns,
        halted_ns,
        preempted_ns,
        unknown_ns,
        ..TimeRow::default()
    }
}

/// One VM of two vCPUs that talks to a device, with a few losses.
pub(crate) fn small() -> Document {
    let mut rows = Rows::new();
    let port = Detail::new(DetailKind::PortIn, 0xcfc);
    let pio: Vec<u64> = (0..2000).map(|i| 40_000 + i % 7 * 1_000).collect();
    rows.exit(key(svm::IOIO, port, Outcome::User), tally(&pio));
    let deadline = Detail::new(DetailKind::MsrWrite, 0x6e0);
    rows.exit(key(svm::MSR, deadline, Outcome::Kernel), tally(&[1_500; 400]));
    rows.exit(key(svm::CPUID, Detail::NONE, Outcome::Kernel), tally(&[1_100, 1_200, 1_300]));
    let mut second = key(svm::HLT, Detail::NONE, Outcome::Halted);
    second.vcpu = 1;
    rows.exit(second, tally(&[300_000_000, 200_000_000]));
    for (detail, durations) in [(port, &pio[..]), (deadline, &[1_400; 400][..])] {
        let key = AccessKey { vm: 1234, vcpu: 0, level: Level::L1, detail };
        rows.0.access(&AccessRow { interval_start_ns: 0, key, tally: tally(durations) });
    }
    rows.0.time(&time(0, [900_000_000, 813_393_400, 606_600, 85_000_000, 0, 1_000_000, 0]));
    rows.0.time(&time(1, [900_000_000, 395_000_000, 0, 0, 500_000_000, 0, 5_000_000]));
    let losses = Losses {
        recorder_lost: 47,
        unpaired_exits: 1,
        truncated: vec!["trace.dat ends inside the record at offset 4096.".into()],
        notes: vec!["The importer skipped 3 host events.".into()],
        ..Losses::default()
    };
    let kinds = [TableKind::Vmexit, TableKind::Ioport, TableKind::Msr, TableKind::Cause];
    rows.document(recording(), losses, false, &kinds)
}

/// A VM with a guest of its own, on an emulated host.
pub(crate) fn nesting() -> Document {
    let mut rows = Rows::new();
    let cpuid = Reason { isa: Isa::Svm, code: svm::CPUID, flags: 0 };
    let mut l2 = key(svm::CPUID, Detail::NONE, Outcome::L1);
    l2.level = Level::L2;
    rows.exit(l2, tally(&[2_000; 100]));
    let ancillary =
        [(svm::VMRUN, Detail::NONE, 100), (svm::MSR, Detail::new(DetailKind::MsrRead, 0x1d9), 150)];
    for (code, detail, count) in ancillary {
        let key = ExitKey { ancillary_of: Some(cpuid), ..key(code, detail, Outcome::Kernel) };
        rows.exit(key, tally(&vec![3_000; count]));
    }
    let recording = Recording { emulated: Some("QEMU TCG".into()), ..recording() };
    let mut document = rows.document(recording, Losses::default(), true, &[TableKind::Vmexit]);
    document.nested = Some(Nested::new(&document.ledger));
    document
}

/// A lab run of four operations, one of them at L2 too.
pub(crate) fn lab() -> Document {
    let vms = [(1, "cpuid"), (2, "hlt-timer"), (3, "rdtsc"), (4, "touch-4k"), (101, "cpuid@L2")];
    lab_run(&vms, Recording { emulated: Some("QEMU TCG (icount)".into()), ..recording() })
}

/// The same with names with terminal escapes and markup.
pub(crate) fn hostile_lab() -> Document {
    let evil = format!("=cmd|{EVIL}");
    let vms = [(1, evil.as_str()), (2, "@x"), (3, "-x"), (4, "+x"), (101, "=x@L2")];
    lab_run(&vms, Recording { emulated: Some(EVIL.into()), ..recording() })
}

fn lab_run(vms: &[(u32, &str); 5], recording: Recording) -> Document {
    use DetailKind as D;
    let names = vms.map(|(_, name)| name);
    let mut rows = Rows::new();
    let cpuid = Reason { isa: Isa::Svm, code: svm::CPUID, flags: 0 };
    let d = Detail::new;
    let leaf = d(D::Cpuid, 0);
    let mut exit = |vm: u32, level, code, detail, outcome, of: Option<Reason>, n: usize, ns| {
        let key = ExitKey { vm, level, ancillary_of: of, ..key(code, detail, outcome) };
        rows.exit(key, tally(&vec![ns; n]));
    };
    use Level::{L1, L2};
    exit(1, L1, svm::CPUID, leaf, Outcome::Kernel, None, 200, 1_000);
    exit(1, L1, svm::INTR, Detail::NONE, Outcome::Kernel, None, 1, 9_000);
    exit(2, L1, svm::HLT, Detail::NONE, Outcome::Halted, None, 20, 100_000);
    exit(2, L1, svm::MSR, d(D::MsrWrite, 0x6e0), Outcome::Kernel, None, 30, 3_000);
    exit(4, L1, svm::NPF, d(D::PageFault, 0x20_0000), Outcome::Kernel, None, 60, 4_000);
    exit(4, L1, svm::NPF, d(D::PageFault, 0x40_0000), Outcome::Kernel, None, 40, 4_000);
    exit(101, L2, svm::CPUID, leaf, Outcome::L1, None, 200, 2_000);
    let debugctl = d(D::MsrRead, 0x1d9);
    exit(101, L1, svm::VMLOAD, Detail::NONE, Outcome::Kernel, Some(cpuid), 400, 1_500);
    exit(101, L1, svm::VMSAVE, Detail::NONE, Outcome::Kernel, Some(cpuid), 200, 1_500);
    exit(101, L1, svm::MSR, debugctl, Outcome::Kernel, Some(cpuid), 200, 2_500);
    exit(101, L1, svm::VMRUN, Detail::NONE, Outcome::Kernel, Some(cpuid), 200, 8_000);
    let time = |vm, guest_ns, l2_ns, exit_kernel_ns, halted_ns| TimeRow {
        vm,
        wall_ns: guest_ns + exit_kernel_ns + halted_ns,
        guest_ns,
        l2_ns,
        exit_kernel_ns,
        halted_ns,
        ..TimeRow::default()
    };
    for row in [
        time(1, 6_000, 0, 209_000, 0),
        time(2, 60_000, 0, 90_000, 2_000_000),
        time(4, 80_000, 0, 400_000, 0),
        time(101, 1_500_000, 10_000, 3_400_000, 0),
    ] {
        rows.0.time(&row);
    }
    let paths: [(&str, u64, &[f64]); 5] = [
        (names[0], 200, &[1_036.0, 1_036.5, 1_035.5]),
        (names[1], 20, &[14_820.0, 15_000.0]),
        (names[2], 1_000, &[1.0, 1.0, 1.0]),
        (names[3], 100, &[]),
        (names[4], 200, &[24_120.25, 24_119.0, 24_150.0]),
    ];
    for (workload, count, lengths) in paths {
        let category = if workload.ends_with("@L2") { "L2" } else { "L1" };
        let mut sample = Sample {
            workload: workload.to_owned(),
            category: category.to_owned(),
            repeat: 0,
            metric: Sample::OPERATIONS.to_owned(),
            unit: "count".to_owned(),
            value: count as f64,
            better: Better::Neither,
        };
        rows.0.sample(&sample);
        for (repeat, &length) in lengths.iter().enumerate() {
            sample.repeat = repeat as u32;
            sample.metric = Sample::PATH.to_owned();
            sample.unit = "instructions".to_owned();
            (sample.value, sample.better) = (length, Better::Lower);
            rows.0.sample(&sample);
        }
    }
    let vm = |&(id, name): &(u32, &str)| Vm {
        id,
        name: name.to_owned(),
        inferred: false,
        ..Vm::default()
    };
    let recording =
        Recording { clock: "x86-tsc".into(), vms: vms.iter().map(vm).collect(), ..recording };
    let mut document = rows.document(recording, Losses::default(), true, &[]);
    document.operations = Some(Operations::new(&document.ledger));
    document.nested = Some(Nested::new(&document.ledger));
    document
}

/// A lab run of one operation that has a call tree, of names with terminal escapes and markup.
pub(crate) fn called() -> Document {
    let mut rows = Rows::new();
    let sample = |metric: &str, value: f64| Sample {
        workload: "cpuid".to_owned(),
        category: "L1".to_owned(),
        repeat: 0,
        metric: metric.to_owned(),
        unit: "count".to_owned(),
        value,
        better: Better::Neither,
    };
    let samples = [
        (Sample::OPERATIONS, 20.0),
        (Sample::PROFILED, 20.0),
        (Sample::PROFILE_BEGUN, 60_040.0),
        (Sample::PROFILE_UNDONE, 20.0),
        (Sample::PROFILE_LOOP, 20.0),
        (Sample::PATH, 3_000.0),
    ];
    samples.iter().for_each(|(metric, value)| rows.0.sample(&sample(metric, *value)));
    let calls = [
        (CallKind::Cause, 1, "cpuid", 0),
        (CallKind::Function, 0, "kvm_arch_vcpu_ioctl_run", 40_000),
        (CallKind::Function, 0, "\u{1b}[31m</script>", 20_000),
    ];
    for (node, (kind, level, name, instructions)) in (0_u32..).zip(calls) {
        rows.0.call(&CallRow {
            workload: "cpuid".to_owned(),
            node,
            parent: node.checked_sub(1),
            kind,
            level,
            name: name.to_owned(),
            module: if level == 0 { "kvm".to_owned() } else { String::new() },
            calls: 20,
            instructions,
        });
    }
    let vms = vec![Vm { id: 1, name: "cpuid".to_owned(), inferred: false, ..Vm::default() }];
    let recording =
        Recording { emulated: Some("QEMU TCG 7.2.22 (icount)".into()), vms, ..recording() };
    let mut document = rows.document(recording, Losses::default(), true, &[]);
    document.calls = Some(ShownCalls { arranged: Arranged::ByCause, most: 100 });
    document
}

/// Counts without times, as a bpftrace map gives them.
pub(crate) fn counts() -> Document {
    let mut rows = Rows::new();
    for (code, count) in [(svm::IOIO, 143_258), (svm::INTR, 143_007), (svm::HLT, 146)] {
        rows.exit(key(code, Detail::NONE, Outcome::Kernel), untimed(count));
    }
    let recording = Recording { format: "bpftrace text".into(), ..Recording::default() };
    rows.document(recording, Losses::default(), true, &[TableKind::Vmexit])
}

pub(crate) fn empty() -> Document {
    let kinds = [TableKind::Vmexit, TableKind::Msr];
    let mut document = Rows::new().document(Recording::default(), Losses::default(), true, &kinds);
    document.nested = Some(Nested::new(&document.ledger));
    document.operations = Some(Operations::new(&document.ledger));
    document
}

pub(crate) fn hostile() -> Document {
    let evil = EVIL.to_owned();
    let mut rows = Rows::new();
    rows.exit(key(0xdead, Detail::NONE, Outcome::Kernel), tally(&[1_000]));
    let recording = Recording {
        format: evil.clone(),
        tool: evil.clone(),
        command: evil.clone(),
        hostname: evil.clone(),
        kernel: evil.clone(),
        arch: evil.clone(),
        cpu: evil.clone(),
        clock: evil.clone(),
        emulated: Some(format!("=cmd|{evil}")),
        vms: vec![Vm { id: 1234, name: format!("=1+1{evil}"), inferred: true, ..Vm::default() }],
        ..recording()
    };
    let losses =
        Losses { truncated: vec![evil.clone()], notes: vec![evil.clone()], ..Losses::default() };
    let mut document = rows.document(recording, losses, true, &[TableKind::Vmexit]);
    document.tables.push(SortedTable::new(&document.ledger, TableKind::Vmexit, &[By::Vm]));
    document.source = evil.clone();
    document.tool_version = evil;
    document
}

/// Numbers at the end of their range.
pub(crate) fn huge() -> Document {
    let mut rows = Rows::new();
    let detail = Detail::new(DetailKind::MmioWrite, u64::MAX);
    let mut key = key(u32::MAX - 1, detail, Outcome::User);
    (key.vm, key.vcpu) = (u32::MAX, vmtax_events::NO_VCPU);
    let mut tally = tally(&[u64::MAX, u64::MAX, 1]);
    tally.count = u64::MAX;
    rows.exit(key, tally);
    let most = u64::MAX;
    rows.0.time(&time(7, [most, most, most / 8, most / 8, most / 4, most / 8, most]));
    let losses = Losses { recorder_lost: most, details_dropped: most, ..Losses::default() };
    let mut document = rows.document(recording(), losses, true, &[]);
    document.tables.push(SortedTable::new(&document.ledger, TableKind::Vmexit, &By::ALL));
    document
}

/// A VM with a guest of its own: many kinds of exits, in each of four seconds.
pub(crate) fn busy() -> Document {
    use Level::{L1, L2};
    let mut rows = Rows::new();
    for (code, level, count, ns) in [
        (svm::IOIO, L1, 4_100, 34_000),
        (svm::INTR, L1, 366, 21_000),
        (svm::INTR, L2, 150, 24_000),
        (svm::NPF, L1, 375, 90_000),
        (svm::NPF, L2, 76, 160_000),
        (svm::MSR, L1, 400, 48_000),
        (svm::CPUID, L1, 182, 17_000),
        (svm::CPUID, L2, 125, 18_500),
        (svm::VMLOAD, L1, 241, 20_000),
        (svm::VMSAVE, L1, 122, 23_000),
        (svm::VMRUN, L1, 196, 31_000),
        (svm::HLT, L1, 34, 3_000_000),
    ] {
        for second in 0..4 {
            let outcome = if level == L2 { Outcome::L1 } else { Outcome::Kernel };
            let key = ExitKey { level, ..key(code, Detail::NONE, outcome) };
            let tally = tally(&vec![ns + 500 * second; count]);
            rows.0.exit(&ExitRow { interval_start_ns: second * SECOND, key, tally });
        }
    }
    let ms = [4_000, 2_900, 800, 100, 100, 50, 50];
    rows.0.time(&time(0, ms.map(|ms| ms * 1_000_000)));
    let kinds = [TableKind::Vmexit, TableKind::Cause];
    let mut document = rows.document(recording(), Losses::default(), true, &kinds);
    document.nested = Some(Nested::new(&document.ledger));
    document
}

/// More rows than a page shows, and as many vCPUs as KVM has.
pub(crate) fn large() -> Document {
    let mut rows = Rows::new();
    for i in 0..10_000 {
        let (interval_start_ns, tally) = (i * SECOND, tally(&[1_000 + i * 7]));
        let detail = Detail::new(DetailKind::PageFault, i << 21);
        let vcpu = (i % 256) as u32;
        let key = ExitKey { vcpu, ..key(svm::NPF, detail, Outcome::Kernel) };
        rows.0.exit(&ExitRow { interval_start_ns, key, tally: tally.clone() });
        let detail = Detail::new(DetailKind::MmioWrite, 0xfe00_0000 + i * 4);
        let key = AccessKey { vm: 1234, vcpu: 0, level: Level::L1, detail };
        rows.0.access(&AccessRow { interval_start_ns, key, tally });
    }
    for vcpu in 0..256 {
        let ms = [1_000, 500, 200, 100, 150, 40, 10];
        rows.0.time(&time(vcpu, ms.map(|ms| ms * 1_000_000)));
    }
    let mut document = rows.document(recording(), Losses::default(), true, &[TableKind::Mmio]);
    let by = [By::Reason, By::Detail, By::Vcpu];
    document.tables.insert(0, SortedTable::new(&document.ledger, TableKind::Vmexit, &by));
    document
}
