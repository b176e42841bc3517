//! Lab runs to render: one like a real one, and one with names that try to act.

use vmtax_analyse::{By, Filter, LedgerBuilder, Operations, SortedTable, TableKind};
use vmtax_events::{
    Better, Coverage, Detail, DetailKind, ExitKey, ExitRow, Level, Losses, Outcome, Recording,
    Sample, Tally, TimeRow, Vm,
};
use vmtax_report::Document;

use super::documents::{HOSTILE, exit_key, finish, svm};

/// Exits and path of one operation.
struct ShownOperation {
    name: &'static str,
    /// Executions in the traced window.
    count: u32,
    /// Reason, detail and exits of one operation.
    exits: &'static [(u32, Detail, u32)],
    /// Instructions at L1 and at L2.
    path: [f64; 2],
}

const NONE: Detail = Detail::NONE;
const MSR: u32 = 0x7c;

const fn d(kind: DetailKind, value: u64) -> Detail {
    Detail { kind, value }
}

/// The AMD host's primitives, about as they come out.
const OPERATIONS: &[ShownOperation] = {
    use DetailKind as D;
    const fn op(
        name: &'static str,
        count: u32,
        path: [f64; 2],
        exits: &'static [(u32, Detail, u32)],
    ) -> ShownOperation {
        ShownOperation { name, count, exits, path }
    }
    &[
        op("cpuid", 200, [1_204.0, 21_377.0], &[(0x72, d(D::Cpuid, 0), 1)]),
        op("hypercall", 200, [1_071.0, 20_904.0], &[(0x81, d(D::Hypercall, 1), 1)]),
        op("rdmsr", 200, [1_263.0, 21_498.5], &[(MSR, d(D::MsrRead, 0x1b), 1)]),
        op("wrmsr", 200, [2_811.0, 24_012.0], &[(MSR, d(D::MsrWrite, 0x277), 1)]),
        op("tsc-deadline", 200, [3_902.0, 26_118.0], &[(MSR, d(D::MsrWrite, 0x6e0), 1)]),
        op(
            "x2apic-self-ipi",
            100,
            [7_511.0, 48_733.0],
            &[(MSR, d(D::MsrWrite, 0x830), 1), (MSR, d(D::MsrWrite, 0x80b), 1)],
        ),
        op("pio-user", 100, [9_874.0, 61_480.0], &[(0x7b, d(D::PortOut, 0x5f8), 1)]),
        op("pio-pit", 200, [2_106.0, 23_310.0], &[(0x7b, d(D::PortIn, 0x40), 1)]),
        op("mmio-user", 100, [12_407.0, 71_224.0], &[(0x400, d(D::MmioWrite, 0xd000_0000), 1)]),
        op("touch-4k", 100, [6_388.0, 38_950.0], &[(0x400, d(D::PageFault, 0x20_0000), 1)]),
        op(
            "hlt-timer",
            20,
            [31_020.0, 148_200.0],
            &[(0x78, NONE, 1), (MSR, d(D::MsrWrite, 0x6e0), 1), (MSR, d(D::MsrWrite, 0x80b), 1)],
        ),
        op("rdtsc", 1_000, [1.0, 1.0], &[]),
        op(
            "context-switch",
            50,
            [58_113.0, 301_775.0],
            &[
                (0x78, NONE, 2),
                (MSR, d(D::MsrWrite, 0x830), 2),
                (MSR, d(D::MsrWrite, 0x80b), 2),
                (0x64, NONE, 2),
            ],
        ),
    ]
};

/// What L1 takes for one exit of L2.
const ANCILLARY: [(u32, Detail, u32); 4] =
    [(0x83, NONE, 1), (0x82, NONE, 2), (MSR, d(DetailKind::MsrRead, 0x1d9), 1), (0x80, NONE, 1)];

/// A run of `vmtax lab run --host amd --nested`.
pub(crate) fn lab() -> Document {
    run(&|name| name.to_owned(), "QEMU TCG (icount)")
}

/// The same with operations of hostile names.
pub(crate) fn hostile_lab() -> Document {
    run(&|name| format!("{name}{HOSTILE}"), HOSTILE)
}

fn run(name: &dyn Fn(&str) -> String, emulator: &str) -> Document {
    let mut builder = LedgerBuilder::new(Filter::default(), 1_000_000);
    let mut vms = Vec::new();
    for (level, first) in [(Level::L1, 1), (Level::L2, 101)] {
        for (vm, operation) in (first..).zip(OPERATIONS) {
            let mut workload = name(operation.name);
            if level == Level::L2 {
                workload += "@L2";
            }
            add(&mut builder, vm, level, operation);
            samples(&mut builder, &workload, level, operation);
            vms.push(Vm { id: vm, name: workload, inferred: false, ..Vm::default() });
        }
    }
    let recording = Recording {
        format: "trace.dat".to_owned(),
        tool: "vmtax lab 0.1.0".to_owned(),
        kernel: "6.1.0-37-amd64".to_owned(),
        cpus: 2,
        clock: "x86-tsc".to_owned(),
        emulated: Some(emulator.to_owned()),
        coverage: Coverage::ALL,
        vms,
        ..Recording::default()
    };
    let mut doc = finish(builder, recording, Losses::default(), true);
    doc.tables = vec![SortedTable::new(&doc.ledger, TableKind::Vmexit, &[By::Reason, By::Level])];
    doc.operations = Some(Operations::new(&doc.ledger));
    doc
}

fn add(builder: &mut LedgerBuilder, vm: u32, level: Level, operation: &ShownOperation) {
    let mut spent = 0;
    let mut exit = |key: ExitKey, n: u32, ns: u64| {
        let mut tally = Tally::default();
        (0..n).for_each(|_| tally.add(ns));
        spent += tally.time_ns;
        builder.exit(&ExitRow { interval_start_ns: 0, key: ExitKey { vm, ..key }, tally });
    };
    for &(code, detail, each) in operation.exits {
        let reason = svm(code);
        let outcome = match (level, code) {
            (Level::L2, _) => Outcome::L1,
            (_, 0x78) => Outcome::Halted,
            _ => Outcome::Kernel,
        };
        let key = ExitKey { level, detail, outcome, ..exit_key(0, reason) };
        exit(key, each * operation.count, 900);
        if level == Level::L2 {
            for (code, detail, n) in ANCILLARY {
                let key = ExitKey { detail, ancillary_of: Some(reason), ..exit_key(0, svm(code)) };
                exit(key, n * each * operation.count, 1_400);
            }
        }
    }
    // A tick of the host.
    if !operation.exits.is_empty() {
        let key = ExitKey { level, ..exit_key(0, svm(0x60)) };
        exit(key, 1, 9_000);
    }
    let path = operation.path[usize::from(level == Level::L2)];
    let wall_ns = (path * f64::from(operation.count)) as u64 + spent;
    let halted_ns = if operation.name.starts_with("hlt") { wall_ns / 3 } else { 0 };
    let exit_kernel_ns =
        if operation.exits.is_empty() { 0 } else { (wall_ns - halted_ns) * 7 / 10 };
    let guest_ns = wall_ns - halted_ns - exit_kernel_ns;
    let l2_ns = if level == Level::L2 { guest_ns / 20 } else { 0 };
    builder.time(&TimeRow {
        vm,
        wall_ns,
        guest_ns,
        l2_ns,
        exit_kernel_ns,
        halted_ns,
        ..TimeRow::default()
    });
}

fn samples(builder: &mut LedgerBuilder, workload: &str, level: Level, operation: &ShownOperation) {
    let sample = |metric: &str, repeat, value| Sample {
        workload: workload.to_owned(),
        category: level.name().to_owned(),
        repeat,
        metric: metric.to_owned(),
        unit: "instructions".to_owned(),
        value,
        better: Better::Lower,
    };
    builder.sample(&sample(Sample::OPERATIONS, 0, f64::from(operation.count)));
    for batch in 0..5 {
        let path = operation.path[usize::from(level == Level::L2)];
        let off = if batch == 3 { path / 4_096.0 } else { 0.0 };
        builder.sample(&sample(Sample::PATH, batch, (path + off).round()));
    }
}
