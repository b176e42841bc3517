//! Recordings and results as one-line scripts.
//!
//! Events, separated by `;`: `TIME [tTID] [cCPU] [pPID] [vVCPU] WORD ARGUMENTS`. Thread 101 runs vCPU 0
//! of process 100 on CPU 0, thread 102 vCPU 1, thread 201 vCPU 0 of process 200; `t`, `c`, `p` and `v`
//! say otherwise (`p-`, `v-`: the event does not say). As in Linux only kvm_exit and kvm_entry carry the
//! vCPU. Lower-case reasons are SVM's, upper-case ones VMX's.
//!
//! Results, one per line: `exit [@INTERVAL] [VM/VCPU] [L2] REASON [KIND=VALUE] OUTCOME [of:REASON] : DURATIONS`
//! with a duration `-` for what is counted untimed; `access` likewise; `time guest=.. kernel=.. ...`, whose
//! wall time is the sum of its parts, of which `l2` is a part of `guest`; `lost exits=.. entries=..`, all zero when absent.

use vmtax_analyse::{AccountOptions, Accountant};
use vmtax_events::event::{HypercallInterface, MmioAccess};
use vmtax_events::{
    AccessKey, AccessRow, Detail, DetailKind, Event, EventKind, Exit, ExitKey, ExitRow, Isa, Level,
    Losses, NO_PID, NO_VCPU, Outcome, PreemptedRow, Reason, RowSink, Tally, TimeRow, Vm,
};

/// Everything that an accounting gave.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ScriptRows {
    pub(crate) exits: Vec<ExitRow>,
    pub(crate) accesses: Vec<AccessRow>,
    pub(crate) times: Vec<TimeRow>,
    pub(crate) losses: Losses,
    pub(crate) vms: Vec<Vm>,
    pub(crate) appeared: Vec<u32>,
    pub(crate) ended: Vec<Exit>,
    pub(crate) preempted: Vec<PreemptedRow>,
}

impl RowSink for ScriptRows {
    fn exit(&mut self, row: &ExitRow) {
        self.exits.push(row.clone());
    }
    fn access(&mut self, row: &AccessRow) {
        self.accesses.push(row.clone());
    }
    fn time(&mut self, row: &TimeRow) {
        self.times.push(*row);
    }
    fn preempted(&mut self, row: &PreemptedRow) {
        self.preempted.push(row.clone());
    }
    fn appeared(&mut self, vm: &Vm) {
        self.appeared.push(vm.id);
    }
    fn ended(&mut self, exit: &Exit) {
        self.ended.push(*exit);
    }
}

/// Accounts for events.
pub(crate) fn run(interval_ns: u64, events: &[Event]) -> ScriptRows {
    let mut accountant = Accountant::new(
        AccountOptions { interval_ns, ..AccountOptions::default() },
        ScriptRows::default(),
    );
    for event in events {
        accountant.event(event);
    }
    let (mut rows, vms, losses) = accountant.finish();
    (rows.vms, rows.losses) = (vms, losses);
    rows
}

/// Runs a script in intervals of 1 ms and compares. Time rows are compared when `expected` has any.
pub(crate) fn check(name: &str, events: &str, expected: &str) {
    check_intervals(name, 1_000_000, events, expected);
}

pub(crate) fn check_intervals(name: &str, interval_ns: u64, events: &str, expected: &str) {
    let got = run(interval_ns, &script(events));
    let want = rows(expected);
    let shown = format!("{name}: {events}\n{}", show(&got));
    assert_eq!(got.exits, want.exits, "{shown}");
    assert_eq!(got.accesses, want.accesses, "{shown}");
    assert_eq!(got.losses, want.losses, "{shown}");
    if !want.times.is_empty() {
        assert_eq!(got.times, want.times, "{shown}");
    }
    for row in &got.times {
        assert_eq!(row.wall_ns, parts(row), "{shown}");
    }
}

/// What the wall time of a row must be.
pub(crate) fn parts(t: &TimeRow) -> u64 {
    t.guest_ns + t.exit_kernel_ns + t.exit_user_ns + t.halted_ns + t.preempted_ns + t.unknown_ns
}

fn show(rows: &ScriptRows) -> String {
    let tally = |t: &Tally| format!("{} of {} timed, {} ns", t.timed, t.count, t.time_ns);
    let mut text = String::new();
    for r in &rows.exits {
        text += &format!("@{} {:?}: {}\n", r.interval_start_ns, r.key, tally(&r.tally));
    }
    for r in &rows.accesses {
        text += &format!("@{} {:?}: {}\n", r.interval_start_ns, r.key, tally(&r.tally));
    }
    for r in &rows.times {
        text += &format!("{r:?}\n");
    }
    text + &format!("{:?}\n{:?}", rows.losses, rows.vms)
}

pub(crate) fn number(word: &str) -> u64 {
    match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    }
    .unwrap_or_else(|_| panic!("not a number: {word}"))
}

fn number32(word: &str) -> u32 {
    number(word).try_into().unwrap()
}

pub(crate) fn reason(word: &str) -> Reason {
    Reason::from_name(Isa::Vmx, word)
        .or_else(|| Reason::from_name(Isa::Svm, word))
        .unwrap_or_else(|| panic!("no reason: {word}"))
}

/// The events of a script.
pub(crate) fn script(text: &str) -> Vec<Event> {
    text.split(';').map(str::trim).filter(|s| !s.is_empty()).map(event).collect()
}

fn event(text: &str) -> Event {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let time_ns = number(words.remove(0));
    let (mut tid, mut cpu, mut pid, mut vcpu) = (101, 0, None, None);
    // A placement is one letter and a number (or `-`); no word of an event looks like that.
    while let Some(("t" | "c" | "p" | "v", n)) = words.first().and_then(|w| w.split_at_checked(1)) {
        if n != "-" && !n.starts_with(|c: char| c.is_ascii_digit()) {
            break;
        }
        match words.remove(0).split_at(1) {
            ("t", n) => tid = number32(n),
            ("c", "-") => cpu = u32::MAX,
            ("c", n) => cpu = number32(n),
            ("p", "-") => pid = Some(NO_PID),
            ("p", n) => pid = Some(number32(n)),
            (_, "-") => vcpu = Some(NO_VCPU),
            (_, n) => vcpu = Some(number32(n)),
        }
    }
    let kind = kind(&words);
    let carries_vcpu = matches!(kind, EventKind::Exit { .. } | EventKind::Entry);
    let usual_vcpu = if carries_vcpu { (tid % 100).saturating_sub(1) } else { NO_VCPU };
    Event {
        time_ns,
        pid: pid.unwrap_or(tid / 100 * 100),
        tid,
        cpu,
        vcpu: vcpu.unwrap_or(usual_vcpu),
        kind,
    }
}

fn kind(words: &[&str]) -> EventKind {
    let arg = |i: usize| number(words[i]);
    let arg32 = |i: usize| number32(words[i]);
    let mmio = |access| EventKind::Mmio { access, len: 4, gpa: arg(1) };
    let call = |interface| EventKind::Hypercall { interface, number: arg(1) };
    match words[0] {
        "exit" => {
            let info = |prefix| {
                words.iter().find_map(|w| w.strip_prefix(prefix)).map(number).unwrap_or_default()
            };
            EventKind::Exit { reason: reason(words[1]), info1: info("i1="), info2: info("i2=") }
        }
        "entry" => EventKind::Entry,
        "rdmsr" | "wrmsr" => {
            EventKind::Msr { write: words[0] == "wrmsr", index: arg32(1), data: 0 }
        }
        "in" | "out" => EventKind::Pio {
            write: words[0] == "out",
            size: 1,
            port: arg(1).try_into().unwrap(),
            count: 1,
        },
        "mmio-read" => mmio(MmioAccess::Read),
        "mmio-write" => mmio(MmioAccess::Write),
        "mmio-wait" => mmio(MmioAccess::UnsatisfiedRead),
        "fast-mmio" => EventKind::FastMmio { gpa: arg(1) },
        "hypercall" => call(HypercallInterface::Kvm),
        "hv-call" => call(HypercallInterface::HyperV),
        "xen-call" => call(HypercallInterface::Xen),
        "fault" => EventKind::PageFault { gpa: arg(1), error_code: 4 },
        "cpuid" => EventKind::Cpuid { function: arg32(1), index: arg32(2) },
        "rdcr" | "wrcr" => EventKind::Cr {
            write: words[0] == "wrcr",
            number: arg(1).try_into().unwrap(),
            value: 0,
        },
        "rdapic" | "wrapic" => {
            EventKind::Apic { write: words[0] == "wrapic", register: arg32(1), value: 0 }
        }
        "ghcb" => {
            let info1 = if words.len() > 2 { arg(2) } else { 0 };
            EventKind::GhcbEnter { code: arg(1), info1, info2: 0 }
        }
        "ghcb-msr" => EventKind::GhcbMsr { value: arg(1) },
        "tdvmcall" => EventKind::Tdvmcall { leaf: arg(1) },
        "vmread" | "vmwrite" => {
            EventKind::VmcsField { write: words[0] == "vmwrite", field: arg32(1) }
        }
        "attributes" => EventKind::SetAttributes { start: arg(1), end: arg(2), attributes: arg(3) },
        "map" => EventKind::MapRequest { gfn: arg(1), level: arg(2).try_into().unwrap() },
        "user" => EventKind::UserspaceExit { reason: arg32(1), errno: 0 },
        "nexit" => EventKind::NestedExit { reason: reason(words[1]) },
        "inject" => EventKind::NestedInject { reason: reason(words[1]) },
        "nenter" => EventKind::NestedEnter,
        "wakeup" => EventKind::Wakeup { ns: arg(1), polled: false },
        "poll" => EventKind::Wakeup { ns: arg(1), polled: true },
        "inform" => EventKind::Information { info1: arg(1), info2: 0 },
        "preempt" => EventKind::Switch { next_tid: arg32(1), preempted: true },
        "block" => EventKind::Switch { next_tid: arg32(1), preempted: false },
        "lost" => EventKind::Lost { count: arg(1) },
        "end" => EventKind::ThreadEnd,
        "sampled" => EventKind::Sampled { count: arg(1) },
        other => panic!("no event: {other}"),
    }
}

/// The rows and losses of a result script.
pub(crate) fn rows(text: &str) -> ScriptRows {
    let mut rows = ScriptRows::default();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let (head, durations) = line.split_once(" :").unwrap_or((line, ""));
        let mut words = head.split_whitespace();
        match words.next().unwrap() {
            "exit" => rows.exits.push(exit_row(words, tally(durations))),
            "access" => rows.accesses.push(access_row(words, tally(durations))),
            "time" => rows.times.push(time_row(words)),
            "lost" => rows.losses = losses(words),
            other => panic!("no row: {other}"),
        }
    }
    rows
}

fn tally(durations: &str) -> Tally {
    let mut tally = Tally::default();
    for word in durations.split_whitespace() {
        match word {
            "-" => tally.add_untimed(1),
            ns => tally.add(number(ns)),
        }
    }
    tally
}

fn vcpu(word: &str) -> Option<(u32, u32)> {
    let (vm, vcpu) = word.split_once('/')?;
    Some((number32(vm), if vcpu == "-" { NO_VCPU } else { number32(vcpu) }))
}

fn detail(word: &str) -> Option<Detail> {
    let (kind, value) = word.split_once('=')?;
    let value = match value.split_once(':') {
        Some((leaf, sub_leaf)) => number(leaf) << 32 | number(sub_leaf),
        None => number(value),
    };
    let kind = DetailKind::from_name(kind).unwrap_or_else(|| panic!("no detail: {kind}"));
    Some(Detail::new(kind, value))
}

fn outcome(word: &str) -> Option<Outcome> {
    Outcome::ALL.into_iter().find(|o| o.name() == word)
}

fn exit_row<'a>(words: impl Iterator<Item = &'a str>, tally: Tally) -> ExitRow {
    let mut key = ExitKey::of(100, reason("cpuid"));
    let mut interval_start_ns = 0;
    for word in words {
        if let Some(start) = word.strip_prefix('@') {
            interval_start_ns = number(start);
        } else if let Some(of) = word.strip_prefix("of:") {
            key.ancillary_of = Some(reason(of));
        } else if let Some(at) = vcpu(word) {
            (key.vm, key.vcpu) = at;
        } else if word == "L2" {
            key.level = Level::L2;
        } else if let Some(detail) = detail(word) {
            key.detail = detail;
        } else if let Some(outcome) = outcome(word) {
            key.outcome = outcome;
        } else {
            key.reason = reason(word);
        }
    }
    ExitRow { interval_start_ns, key, tally }
}

fn access_row<'a>(words: impl Iterator<Item = &'a str>, tally: Tally) -> AccessRow {
    let mut key = AccessKey { vm: 100, vcpu: 0, level: Level::L1, detail: Detail::NONE };
    let mut interval_start_ns = 0;
    for word in words {
        if let Some(start) = word.strip_prefix('@') {
            interval_start_ns = number(start);
        } else if let Some(at) = vcpu(word) {
            (key.vm, key.vcpu) = at;
        } else if word == "L2" {
            key.level = Level::L2;
        } else {
            key.detail = detail(word).unwrap_or_else(|| panic!("no detail: {word}"));
        }
    }
    AccessRow { interval_start_ns, key, tally }
}

fn time_row<'a>(words: impl Iterator<Item = &'a str>) -> TimeRow {
    let mut row = TimeRow { vm: 100, ..TimeRow::default() };
    for word in words {
        if let Some(start) = word.strip_prefix('@') {
            row.interval_start_ns = number(start);
        } else if let Some(at) = vcpu(word) {
            (row.vm, row.vcpu) = at;
        } else {
            let (part, ns) = word.split_once('=').unwrap();
            *match part {
                "guest" => &mut row.guest_ns,
                "l2" => &mut row.l2_ns,
                "kernel" => &mut row.exit_kernel_ns,
                "user" => &mut row.exit_user_ns,
                "halted" => &mut row.halted_ns,
                "preempted" => &mut row.preempted_ns,
                "unknown" => &mut row.unknown_ns,
                other => panic!("no part: {other}"),
            } = number(ns);
        }
    }
    row.wall_ns = parts(&row);
    row
}

fn losses<'a>(words: impl Iterator<Item = &'a str>) -> Losses {
    let mut losses = Losses::default();
    for word in words {
        let (what, count) = word.split_once('=').unwrap();
        *match what {
            "exits" => &mut losses.unpaired_exits,
            "entries" => &mut losses.unpaired_entries,
            "gaps" => &mut losses.recorder_gaps,
            "undecodable" => &mut losses.undecodable,
            "details" => &mut losses.details_dropped,
            other => panic!("no loss: {other}"),
        } = number(count);
    }
    losses
}
