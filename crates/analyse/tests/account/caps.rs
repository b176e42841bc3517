//! Hostile recordings: bounded tables, no panics.

use vmtax_events::{Detail, DetailKind, Event, EventKind};

use super::script::{ScriptRows, reason, run};

const MAX_THREADS: u32 = 16_384;
const MAX_KEYS: u64 = 16_384;

fn event(time_ns: u64, tid: u32, kind: EventKind) -> Event {
    Event { time_ns, pid: 100, tid, cpu: 0, vcpu: 0, kind }
}

fn exit() -> EventKind {
    EventKind::Exit { reason: reason("EXCEPTION_NMI"), info1: 0, info2: 0 }
}

/// Exits with a new detail each.
fn many_details(count: u64, detail: impl Fn(u64) -> EventKind) -> ScriptRows {
    let mut events = Vec::new();
    for i in 0..count {
        events.push(event(10 * i, 101, exit()));
        events.push(event(10 * i + 1, 101, detail(i)));
        events.push(event(10 * i + 4, 101, EventKind::Entry));
    }
    run(u64::MAX, &events)
}

#[test]
fn details_beyond_the_table_are_one_row() {
    let rows = many_details(MAX_KEYS + 5, |i| EventKind::GhcbEnter { code: i, info1: 0, info2: 0 });
    assert_eq!(rows.exits.len() as u64, MAX_KEYS + 1);
    let last = &rows.exits[MAX_KEYS as usize];
    assert_eq!(last.key.detail, Detail::new(DetailKind::Overflow, 0));
    assert_eq!((last.tally.count, last.tally.time_ns), (5, 20));
    assert_eq!(rows.exits.iter().map(|r| r.tally.count).sum::<u64>(), MAX_KEYS + 5);
    assert_eq!(rows.losses.details_dropped, 5);
    assert_eq!(rows.losses.undecodable, 0);
}

#[test]
fn accesses_beyond_the_table_are_one_row() {
    let rows = many_details(MAX_KEYS + 5, |i| EventKind::FastMmio { gpa: i });
    assert_eq!(rows.accesses.len() as u64, MAX_KEYS + 1);
    let last = &rows.accesses[MAX_KEYS as usize];
    assert_eq!(last.key.detail, Detail::new(DetailKind::Overflow, 0));
    assert_eq!((last.tally.count, last.tally.time_ns), (5, 15));
    // Each of both tables says what it dropped.
    let losses = &rows.losses;
    assert_eq!((losses.details_dropped, losses.accesses_dropped), (5, 5));
}

#[test]
fn the_table_is_bounded_over_all_intervals_and_known_details_stay() {
    let mut events = Vec::new();
    for i in 0..MAX_KEYS + 3 {
        // The first detail again in the last exit.
        let code = if i == MAX_KEYS + 2 { 0 } else { i };
        events.push(event(10 * i, 101, exit()));
        events.push(event(10 * i + 1, 101, EventKind::GhcbEnter { code, info1: 0, info2: 0 }));
        events.push(event(10 * i + 4, 101, EventKind::Entry));
    }
    let rows = run(10, &events);
    assert_eq!(rows.losses.details_dropped, 2);
    let kinds: Vec<_> = rows.exits.iter().map(|r| r.key.detail.kind).rev().take(4).collect();
    use DetailKind as K;
    assert_eq!(kinds, [K::Ghcb, K::Overflow, K::Overflow, K::Ghcb]);
}

#[test]
fn events_of_threads_beyond_the_table_are_a_loss_by_name() {
    let mut events = Vec::new();
    for tid in 1..=MAX_THREADS + 2 {
        // Entries: a thread of each, and no rows.
        events.push(Event { vcpu: tid, ..event(10, tid, EventKind::Entry) });
    }
    let ended = event(20, 1, EventKind::ThreadEnd);
    events.push(ended);
    events.push(event(1030, MAX_THREADS + 1, EventKind::Entry));
    // Joining a VM looks through its vCPUs, so threads that name none keep this test short.
    for e in &mut events {
        e.vcpu = vmtax_events::NO_VCPU;
    }
    let rows = run(1000, &events);
    // The last one got the place of the thread that ended in the interval before.
    assert_eq!((rows.losses.threads_dropped, rows.losses.undecodable), (2, 0));
}

#[test]
fn an_exit_keyed_by_a_thread_beyond_the_table_is_dropped_whole() {
    let mut events: Vec<Event> = (1..=MAX_THREADS)
        .map(|tid| Event { vcpu: vmtax_events::NO_VCPU, ..event(10, tid, EventKind::Entry) })
        .collect();
    let tid = MAX_THREADS + 1;
    events.push(event(20, tid, exit()));
    events.push(event(21, tid, EventKind::Msr { write: true, index: 0x10, data: 0 }));
    events.push(event(
        21,
        tid,
        EventKind::Mmio { access: vmtax_events::event::MmioAccess::Read, len: 4, gpa: 0 },
    ));
    events.push(event(22, tid, EventKind::GhcbMsr { value: 4 }));
    events.push(event(30, tid, EventKind::Entry));
    let rows = run(1000, &events);
    assert!(rows.exits.is_empty() && rows.accesses.is_empty());
    // Everything that would have made a thread; a detail would not.
    assert_eq!((rows.losses.threads_dropped, rows.losses.undecodable), (4, 0));
}

/// This takes minutes if each loss, or each interval, looks at each thread.
#[test]
fn losses_and_intervals_cost_the_same_however_many_threads_there_are() {
    let mut events: Vec<Event> =
        (0..MAX_THREADS).map(|tid| Event { cpu: tid % 64, ..event(10, tid, exit()) }).collect();
    for n in 0..300_000 {
        let time_ns = 20 + 1000 * u64::from(n);
        events.push(Event { time_ns, cpu: n % 32, ..event(0, 0, EventKind::Lost { count: 1 }) });
        events.push(Event { cpu: 40, ..event(time_ns + 1, MAX_THREADS - 1, EventKind::Entry) });
    }
    let rows = run(1000, &events);
    // The first entry ends the exit of its thread, all others are a surprise.
    assert_eq!(rows.losses.unpaired_exits, u64::from(MAX_THREADS) - 1);
    assert_eq!(rows.losses.unpaired_entries, 300_000 - 1);
    assert_eq!(rows.times.len(), 300_000);
}

/// This takes minutes if each new VM looks at each old one.
#[test]
fn vms_beyond_the_table_are_one_with_the_last() {
    let mut events = Vec::new();
    for pid in 1..100_000 {
        let time_ns = 10 * u64::from(pid);
        events.push(Event { pid, ..event(time_ns, 7, exit()) });
        events.push(Event { pid, ..event(time_ns + 1, 7, EventKind::Entry) });
        events.push(Event { pid, ..event(time_ns + 1, 7, EventKind::ThreadEnd) });
    }
    let rows = run(10, &events);
    assert_eq!(rows.vms.len() as u32, MAX_THREADS);
    assert_eq!(rows.vms.iter().filter(|vm| vm.inferred).count(), 1);
    let of_others = 99_999 - u64::from(MAX_THREADS);
    assert_eq!((rows.losses.vms_merged, rows.losses.threads_dropped), (of_others, 0));
}
