//! Rows and runs that the tests write.

use std::fs;
use std::path::Path;

use vmtax_events::event::{HypercallInterface, InterruptAt, MmioAccess};
use vmtax_events::{
    AccessKey, AccessRow, Better, Detail, DetailKind, Event, EventKind, ExitKey, ExitRow, Isa,
    Level, Losses, NO_VCPU, Outcome, PreemptedRow, Reason, Recording, Sample, Tally, TimeRow,
};
use vmtax_store::{CreateOptions, ReadReport, Run, RunWriter};

pub(crate) const LEVELS: [Level; 3] = [Level::L1, Level::L2, Level::Unknown];
pub(crate) const OUTCOMES: [Outcome; 5] =
    [Outcome::Kernel, Outcome::User, Outcome::Halted, Outcome::L1, Outcome::Unknown];
pub(crate) const ISAS: [Isa; 4] = Isa::ALL;

pub(crate) fn options() -> CreateOptions {
    CreateOptions {
        tool_version: "0.1.0-test".to_owned(),
        command: vec!["vmtax".to_owned(), "import".to_owned(), "x".to_owned()],
        interval_ns: 1_000,
        raw_events: true,
        labels: [("workload".to_owned(), "redis".to_owned())].into(),
    }
}

/// A different value for every `n`, in every column.
pub(crate) fn tally(n: u64) -> Tally {
    let mut tally = Tally::default();
    for i in 0..n % 5 {
        tally.add(n << i);
    }
    tally.add_untimed(n);
    tally
}

fn vcpu(n: u64) -> u32 {
    if n % 7 == 6 { NO_VCPU } else { (n % 7) as u32 }
}

fn detail(n: u64) -> Detail {
    Detail::new(DetailKind::from_u8((n % 21) as u8).unwrap(), n)
}

pub(crate) fn exit(n: u64) -> ExitRow {
    let isa = ISAS[(n % 3) as usize];
    let ancillary = Reason { isa, code: n as u32, flags: (n % 2) as u32 };
    ExitRow {
        interval_start_ns: n,
        key: ExitKey {
            vm: (n % 3) as u32,
            vcpu: vcpu(n),
            level: LEVELS[(n / 3 % 3) as usize],
            reason: Reason { isa, code: (n % 70) as u32, flags: (n % 4) as u32 },
            detail: detail(n),
            outcome: OUTCOMES[(n % 5) as usize],
            ancillary_of: (n % 4 == 3).then_some(ancillary),
        },
        tally: tally(n),
    }
}

pub(crate) fn access(n: u64) -> AccessRow {
    AccessRow {
        interval_start_ns: n,
        key: AccessKey {
            vm: (n % 3) as u32,
            vcpu: vcpu(n),
            level: LEVELS[(n % 3) as usize],
            detail: detail(n),
        },
        tally: tally(n),
    }
}

pub(crate) fn time(n: u64) -> TimeRow {
    let row = TimeRow {
        interval_start_ns: n,
        vm: 1,
        vcpu: vcpu(n),
        wall_ns: n + 1,
        ..TimeRow::default()
    };
    with_parts(row, |part| n + 2 + part)
}

/// With a number for each part of the time.
pub(crate) fn with_parts(mut row: TimeRow, ns: impl Fn(u64) -> u64) -> TimeRow {
    for (number, part) in (0..).zip(TimeRow::PARTS) {
        *(part.of_mut)(&mut row) = ns(number);
    }
    row
}

pub(crate) fn preempted(n: u64) -> PreemptedRow {
    PreemptedRow {
        interval_start_ns: n,
        key: exit(n).key,
        by: ["stress-ng", "", "CPU 0/KVM", "a\u{1b}[31m"][(n % 4) as usize].into(),
        by_vcpu: [None, Some((7, NO_VCPU)), Some((0, 0))][(n % 3) as usize],
        count: n,
        time_ns: u64::MAX - n,
    }
}

pub(crate) fn sample(n: u64) -> Sample {
    Sample {
        workload: format!("work\"load\n{n}"),
        category: ["L1", "L2", ""][(n % 3) as usize].to_owned(),
        repeat: n as u32,
        metric: format!("metric {}", n % 5),
        unit: "µs".to_owned(),
        value: n as f64 / 7.0 - 3.0,
        better: Better::ALL[(n / 3 % 3) as usize],
    }
}

pub(crate) fn event(n: u64) -> Event {
    let kinds = every_kind();
    Event {
        time_ns: n,
        pid: n as u32,
        tid: n as u32 + 1,
        cpu: (n % 64) as u32,
        vcpu: vcpu(n),
        kind: kinds[n as usize % kinds.len()],
    }
}

/// Every kind of event with its choices, with the smallest and the largest numbers.
pub(crate) fn every_kind() -> Vec<EventKind> {
    let mut kinds =
        vec![EventKind::Entry, EventKind::NestedEnter, EventKind::ThreadEnd, EventKind::Runs];
    for (i, n) in [0, u64::MAX].into_iter().enumerate() {
        let (n32, n16, n8) = (n as u32, n as u16, n as u8);
        let write = i == 1;
        for isa in ISAS {
            let reason = Reason { isa, code: n32, flags: n32 };
            kinds.push(EventKind::Exit { reason, info1: n, info2: !n });
            kinds.push(EventKind::NestedExit { reason });
            kinds.push(EventKind::NestedInject { reason });
        }
        for at in [
            InterruptAt::Gsi,
            InterruptAt::Pic,
            InterruptAt::Ioapic,
            InterruptAt::Msi,
            InterruptAt::Apic,
            InterruptAt::Acknowledged,
        ] {
            kinds.push(EventKind::Interrupt { at, number: n32, source: !n32 });
        }
        for access in [MmioAccess::UnsatisfiedRead, MmioAccess::Read, MmioAccess::Write] {
            kinds.push(EventKind::Mmio { access, len: n32, gpa: n });
        }
        for interface in [
            HypercallInterface::Kvm,
            HypercallInterface::HyperV,
            HypercallInterface::Xen,
            HypercallInterface::Smccc,
        ] {
            kinds.push(EventKind::Hypercall { interface, number: n });
        }
        for errno in [0, -4, i32::MIN, i32::MAX] {
            kinds.push(EventKind::UserspaceExit { reason: n32, errno });
        }
        kinds.extend([
            EventKind::Msr { write, index: n32, data: n },
            EventKind::Pio { write, size: n8, port: n16, count: n32 },
            EventKind::FastMmio { gpa: n },
            EventKind::PageFault { gpa: n, error_code: !n },
            EventKind::MapRequest { gfn: n, level: n8 },
            EventKind::SetAttributes { start: n, end: !n, attributes: n },
            EventKind::Cpuid { function: n32, index: !n32 },
            EventKind::Cr { write, number: n8, value: n },
            EventKind::Apic { write, register: n32, value: n },
            EventKind::GhcbEnter { code: n, info1: !n, info2: n },
            EventKind::GhcbMsr { value: n },
            EventKind::Tdvmcall { leaf: n },
            EventKind::VmcsField { write, field: n32 },
            EventKind::Sysreg { write, register: n32 },
            EventKind::Wait { for_event: write },
            EventKind::Wakeup { ns: n, polled: write },
            EventKind::Switch { next_tid: n32, preempted: write },
            EventKind::Woken { woken_tid: n32 },
            EventKind::Lost { count: n },
            EventKind::ApicvInhibit { reason: n32, set: write, inhibits: n },
        ]);
    }
    kinds
}

pub(crate) use vmtax_events::KeptRows as Rows;

/// The rows `0..n` of each kind.
pub(crate) fn first_rows(n: u64) -> Rows {
    Rows {
        exits: (0..n).map(exit).collect(),
        accesses: (0..n).map(access).collect(),
        times: (0..n).map(time).collect(),
        preempted: (0..n).map(preempted).collect(),
        samples: (0..n).map(sample).collect(),
    }
}

/// Adds row `n` of each kind.
pub(crate) fn add(writer: &mut RunWriter, n: u64) -> Result<(), vmtax_store::Error> {
    writer.exit(&exit(n))?;
    writer.access(&access(n))?;
    writer.time(&time(n))?;
    writer.preempted(&preempted(n))?;
    writer.sample(&sample(n))?;
    writer.event(&event(n))
}

/// A finished run with the rows `0..n` of each kind in segments of `per_segment`.
pub(crate) fn write_run(folder: &Path, n: u64, per_segment: u64) {
    let mut writer = RunWriter::create(folder, &options()).unwrap();
    for i in 0..n {
        add(&mut writer, i).unwrap();
        if (i + 1) % per_segment == 0 {
            writer.segment().unwrap();
        }
    }
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
}

pub(crate) fn read_rows(folder: &Path) -> (Rows, ReadReport) {
    let mut rows = Rows::default();
    let report = Run::open(folder).unwrap().read(&mut rows).unwrap();
    (rows, report)
}

pub(crate) fn read_events(folder: &Path) -> (Vec<Event>, ReadReport) {
    let mut events = Vec::new();
    let report = Run::open(folder)
        .unwrap()
        .read_events(&mut |some| events.extend_from_slice(some), &|_| {})
        .unwrap();
    (events, report)
}

/// Changes `run.json` as a tool that knows JSON would.
pub(crate) fn edit_manifest(folder: &Path, edit: impl FnOnce(&mut serde_json::Value)) {
    let path = folder.join("run.json");
    let mut json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut json);
    fs::write(&path, serde_json::to_vec(&json).unwrap()).unwrap();
}

/// Lists a segment with the size and checksum that it has now.
pub(crate) fn list_again(folder: &Path, segment: &str) {
    let bytes = fs::read(folder.join(segment)).unwrap();
    edit_manifest(folder, |json| {
        for entry in json["segments"].as_array_mut().unwrap() {
            if entry["path"] == segment {
                entry["bytes"] = bytes.len().into();
                entry["crc32"] = format!("{:08x}", crc32fast::hash(&bytes)).into();
            }
        }
    });
}

/// The names of all files and folders under `folder`, relative to it.
pub(crate) fn tree(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    let Ok(entries) = fs::read_dir(folder) else { return names };
    for entry in entries {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if entry.file_type().unwrap().is_dir() {
            names.extend(tree(&entry.path()).into_iter().map(|inner| format!("{name}/{inner}")));
        }
        names.push(name);
    }
    names.sort();
    names
}
