//! Windows of recordings that are whole, and of ones that are not.

use vmtax_events::event::MmioAccess;

use super::*;

/// Pages are counted at their last level; a page takes the place of what was there.
#[test]
fn pages_are_counted_at_their_last_level() {
    let counted = |requests: &[(u64, u8)]| {
        let mut levels = MappedLevels::default();
        requests.iter().for_each(|(gfn, level)| levels.map(*gfn, *level));
        levels.take()
    };
    const FIRST: u64 = 0x40000;
    for (requests, expected) in [
        (&[][..], None),
        (&[(FIRST, 1), (FIRST + 1, 1), (FIRST, 1)], Some([2, 0, 0])),
        // By any frame in it.
        (&[(FIRST + 5, 2), (FIRST + 511, 2), (FIRST + 512, 2)], Some([0, 2, 0])),
        // A large page that is broken up, and small ones that become one.
        (&[(FIRST, 2), (FIRST + 7, 1)], Some([1, 0, 0])),
        (&[(FIRST, 1), (FIRST + 7, 1), (FIRST + 600, 1), (FIRST + 9, 2)], Some([1, 1, 0])),
        (&[(FIRST + 3, 3), (FIRST + 700, 2)], Some([0, 1, 0])),
        (&[(FIRST + 700, 2), (FIRST + 3, 3)], Some([0, 0, 1])),
        // No level of x86.
        (&[(FIRST, 0), (FIRST, 4), (FIRST, 255)], Some([0, 0, 0])),
        (&[(u64::MAX, 3)], Some([0, 0, 1])),
    ] {
        assert_eq!(counted(requests), expected, "{requests:x?}");
    }
}

fn event(time_ns: u64, tid: u32, kind: EventKind) -> Event {
    Event { time_ns, pid: 0, tid, cpu: 0, vcpu: 0, kind }
}

fn exit(code: u32, port: u16) -> EventKind {
    EventKind::Exit {
        reason: Reason { isa: Isa::Svm, code, flags: 0 },
        info1: u64::from(port) << 16,
        info2: 0,
    }
}

/// Times of the events that are in a window, with their VM.
fn placed(events: &[Event]) -> Vec<(u64, u32, u32)> {
    let mut windows = Windows::default();
    events.iter().filter_map(|e| windows.place(e)).map(|e| (e.time_ns, e.pid, e.tid)).collect()
}

#[test]
fn a_window_is_between_the_marks() {
    let events = [
        event(1, 7, exit(0x72, 0)),
        event(2, 7, EventKind::Entry),
        event(3, 7, exit(svm::IOIO, layout::begin(4))),
        event(4, 8, EventKind::Entry),
        event(5, 7, EventKind::Entry),
        event(6, 7, exit(0x72, 0)),
        event(7, 8, exit(0x78, 0)),
        event(8, 7, EventKind::Entry),
        event(9, 7, exit(svm::IOIO, layout::end(4))),
        event(10, 7, EventKind::Entry),
    ];
    assert_eq!(placed(&events), [(5, 5, 0x500), (6, 5, 0x500), (7, 5, 0x501), (8, 5, 0x500)]);
}

#[test]
fn an_agent_starts_and_stops_a_recording() {
    let events = [
        event(1, 7, exit(0x72, 0)),
        event(2, 7, EventKind::Entry),
        event(3, 7, exit(svm::VMRUN, 0)),
        event(4, 7, EventKind::NestedEnter),
        event(5, 7, EventKind::Entry),
        event(6, 7, exit(svm::IOIO, layout::TRACE)),
        event(7, 7, EventKind::Entry),
    ];
    let placed = |nested| {
        let mut window = Window::new(70_000, nested);
        let placed = events.iter().filter_map(|e| window.place(e));
        placed.map(|e| (e.time_ns, e.pid, e.tid - 70_000 * THREADS)).collect::<Vec<_>>()
    };
    assert_eq!(placed(false), [2, 3, 4, 5].map(|t| (t, 70_000, 0)));
    assert_eq!(placed(true), [(5, 70_000, 0)]);
}

#[test]
fn in_l2_it_opens_when_l1_has_resumed_l2() {
    let reason = Reason { isa: Isa::Svm, code: svm::IOIO, flags: 0 };
    let events = [
        event(1, 7, exit(svm::IOIO, layout::begin(0))),
        event(2, 7, EventKind::NestedExit { reason }),
        event(3, 7, EventKind::NestedInject { reason }),
        event(4, 7, EventKind::Entry),
        event(5, 7, exit(0x80, 0)),
        event(6, 7, EventKind::NestedEnter),
        event(7, 7, EventKind::Entry),
        event(8, 7, exit(0x72, 0)),
        event(9, 7, exit(svm::IOIO, layout::end(0))),
    ];
    assert_eq!(placed(&events), [(7, 1, 0x100), (8, 1, 0x100)]);
}

/// An exit on VMX, with what KVM says of it when it came from L2.
fn vmx(code: u32, port: u16) -> (Reason, EventKind) {
    let reason = Reason { isa: Isa::Vmx, code, flags: 0 };
    (reason, EventKind::Exit { reason, info1: u64::from(port) << 16, info2: 0 })
}

/// One CPUID of L2 under a kernel that has no `kvm_nested_vmenter` on VMX (5.10).
fn without_vmenter() -> Vec<Event> {
    let (io, begin) = vmx(vmx::IO_INSTRUCTION, layout::begin(0));
    let (_, end) = vmx(vmx::IO_INSTRUCTION, layout::end(0));
    let (cpuid, exit) = vmx(vmx::CPUID, 0);
    let l1 = |code| vmx(code, 0).1;
    let kinds = [
        begin,
        EventKind::NestedExit { reason: io },
        EventKind::NestedInject { reason: io },
        EventKind::Entry,
        l1(vmx::VMREAD),
        EventKind::Entry,
        l1(vmx::VMRESUME),
        EventKind::Entry,
        exit,
        EventKind::NestedExit { reason: cpuid },
        EventKind::NestedInject { reason: cpuid },
        EventKind::Entry,
        l1(vmx::VMRESUME),
        EventKind::Entry,
        end,
        EventKind::NestedExit { reason: io },
    ];
    kinds.into_iter().zip(1..).map(|(kind, time)| event(time, 7, kind)).collect()
}

#[test]
fn in_l2_it_opens_without_the_nested_enter_event() {
    let times: Vec<u64> = placed(&without_vmenter()).iter().map(|(time, ..)| *time).collect();
    assert_eq!(times, [8, 9, 10, 11, 12, 13, 14]);
}

/// What is seen of operation 0.
fn seen(events: &[Event]) -> SeenWindow {
    let mut windows = Windows::default();
    events.iter().for_each(|event| _ = windows.place(event));
    windows.of_vm(vm_of(0))
}

#[test]
fn what_is_seen_of_a_batch() {
    let events = without_vmenter();
    let whole = seen(&events);
    let count = |all| SeenExits { all, interrupts: 0 };
    assert_eq!((whole.extent, whole.exits, whole.nested), (Extent::Whole, count(2), count(1)));
    assert!(!whole.lost);
    // Cut off after so many events, from the end and from the beginning.
    for (events, extent) in [
        (&events[..14], Extent::Open),
        (&events[..7], Extent::Begin),
        (&events[1..], Extent::Nothing),
        (&[], Extent::Nothing),
    ] {
        assert_eq!(seen(events).extent, extent, "{} events", events.len());
    }
    let mut lost = events;
    lost.insert(11, event(11, 7, EventKind::Lost { count: 3 }));
    assert!(seen(&lost).lost);
}

#[test]
fn interrupts_are_not_the_guests() {
    let interrupt = exit(svm::INTR, 0);
    let events = [
        event(1, 7, exit(svm::IOIO, layout::begin(0))),
        event(2, 7, EventKind::Entry),
        event(3, 7, interrupt),
        event(4, 7, EventKind::Entry),
        event(5, 7, exit(svm::IOIO, layout::end(0))),
    ];
    let exits = seen(&events).exits;
    assert_eq!((exits, exits.caused()), (SeenExits { all: 1, interrupts: 1 }, 0));
}

#[test]
fn an_agents_recording_names_missing_events() {
    let trace = exit(svm::IOIO, layout::TRACE);
    let events =
        [event(1, 7, exit(svm::VMRUN, 0)), event(2, 7, EventKind::Entry), event(3, 7, trace)];
    for (events, nested, problem) in [
        (&events[..], true, None),
        (&events[..2], true, Some("ends before the VM's end mark")),
        (&events[1..], true, Some("no VMRUN, VMLAUNCH or VMRESUME of L1")),
        (&events[1..], false, None),
        (&[], false, Some("no entry of the VM")),
    ] {
        let mut window = Window::new(1, nested);
        events.iter().for_each(|event| _ = window.place(event));
        match (window.problem(), problem) {
            (None, None) => {}
            (Some(said), Some(part)) => assert!(said.contains(part), "{said}"),
            other => panic!("{other:?}"),
        }
    }
}

/// An exit of arm64, and the events of one that is an access to a page.
fn arm_exit(code: u32) -> EventKind {
    let reason = Reason { isa: Isa::Arm, code, flags: 0 };
    EventKind::Exit { reason, info1: 0, info2: 0 }
}

fn access(gpa: u64) -> [EventKind; 2] {
    [arm_exit(arm::DABT_LOW), EventKind::PageFault { gpa, error_code: 0 }]
}

/// Times of the events of operation 2, of events of arm64, and what was seen of it.
fn on_arm(kinds: Vec<EventKind>) -> (Vec<u64>, SeenWindow) {
    let (mut windows, mut ahead, mut times) = (Windows::default(), Ahead::default(), Vec::new());
    let mut each = |event: &Event| times.extend(windows.place(event).map(|event| event.time_ns));
    for (time, kind) in (0..).zip(kinds) {
        ahead.take(&event(time, 7, kind), &mut each);
    }
    ahead.finish(&mut each);
    (times, windows.of_vm(vm_of(2)))
}

/// arm64 says what an exit accessed only behind it: the exits of the marks are not the operation's, those of pages and devices are.
#[test]
fn on_arm64_marks_are_known_from_the_fault_behind_their_exit() {
    let store = |port| {
        let gpa = layout::arm::address(port);
        let store = EventKind::Mmio { access: MmioAccess::Write, gpa, len: 4 };
        [&access(gpa)[..], &[store, EventKind::Entry]].concat()
    };
    let kinds = [
        store(layout::begin(2)),
        // A page, a device of the VMM, a call.
        [&access(0x4000_0000)[..], &[EventKind::Entry]].concat(),
        store(layout::DEVICE_PORT),
        vec![arm_exit(arm::HVC64), EventKind::Entry],
        store(layout::end(2)),
        vec![arm_exit(arm::DABT_LOW)],
    ];
    let (times, seen) = on_arm(kinds.concat());
    assert_eq!(times, (3..=12).collect::<Vec<u64>>());
    assert_eq!((seen.extent, seen.exits.all, seen.faults), (Extent::Whole, 3, 2));
}

/// A tick of the host between the exit and its fault switches to another thread, which has exits of its own.
#[test]
fn on_arm64_a_mark_is_known_though_its_thread_was_preempted() {
    let [abort, fault] = access(layout::arm::address(layout::end(2)));
    let begin = access(layout::arm::address(layout::begin(2)));
    let (mut windows, mut ahead, mut seen) = (Windows::default(), Ahead::default(), 0);
    let switch = |next_tid| EventKind::Switch { next_tid, preempted: true };
    let kinds = [
        (7, begin[0]),
        (7, begin[1]),
        (7, EventKind::Entry),
        (7, arm_exit(arm::HVC64)),
        (7, EventKind::Entry),
        (7, abort),
        (7, switch(8)),
        (8, switch(7)),
        (7, fault),
        (7, EventKind::Entry),
        (7, arm_exit(arm::HVC64)),
    ];
    let mut each = |event: &Event| seen += usize::from(windows.place(event).is_some());
    for (time, (tid, kind)) in (0..).zip(kinds) {
        ahead.take(&event(time, tid, kind), &mut each);
    }
    ahead.finish(&mut each);
    let shown = windows.of_vm(vm_of(2));
    // Nothing of what follows the end is the operation's.
    assert_eq!((shown.extent, shown.exits.all, seen), (Extent::Whole, 1, 3));
}

/// As above, of the store that ends an agent's recording.
#[test]
fn on_arm64_a_recording_ends_with_the_agents_store() {
    let (page, stop) = (access(0x4000_0000), access(layout::arm::address(layout::TRACE)));
    let kinds = [&[EventKind::Entry][..], &page, &[EventKind::Entry], &stop].concat();
    let (mut window, mut ahead, mut times) = (Window::new(3, false), Ahead::default(), Vec::new());
    let mut each = |event: &Event| times.extend(window.place(event).map(|event| event.time_ns));
    for (time, kind) in (0..).zip(kinds) {
        ahead.take(&event(time, 7, kind), &mut each);
    }
    ahead.finish(&mut each);
    assert_eq!((times, window.problem()), (vec![0, 1, 2, 3], None));
}

/// A step has no marks: its times say which events are of it, and its last exit ends with it. What other threads do is in none.
#[test]
fn a_step_has_the_exits_of_its_time() {
    let events = [
        event(9, 7, EventKind::Entry),
        event(10, 7, EventKind::Switch { next_tid: 8, preempted: false }),
        event(11, 7, EventKind::Entry),
        event(12, 7, exit(0x400, 0)),
        event(13, 7, EventKind::Entry),
        event(14, 7, exit(svm::IOIO, 7)),
        // The next step follows at once.
        event(21, 7, EventKind::Entry),
        event(22, 7, exit(svm::IOIO, 7)),
        event(40, 8, EventKind::Switch { next_tid: 7, preempted: false }),
    ];
    let mut windows =
        Windows::with([(vm_of(3), (21, 30)), (vm_of(2), (10, 20)), (vm_of(4), (31, 32))]);
    let mut placed = Vec::new();
    for event in &events {
        placed.extend(windows.ended(event.time_ns).map(|(_, placed)| placed));
        placed.extend(windows.place(event));
    }
    let seen: Vec<(u64, u32, bool)> =
        placed.iter().map(|e| (e.time_ns, e.pid, e.kind == EventKind::Entry)).collect();
    let [two, three] = [vm_of(2), vm_of(3)];
    let expected = [
        (11, two, true),
        (12, two, false),
        (13, two, true),
        (14, two, false),
        (20, two, true),
        (21, three, true),
        (22, three, false),
        (30, three, true),
    ];
    assert_eq!(seen, expected);
    let exits = [2, 3, 4].map(|operation| windows.of_vm(vm_of(operation)).exits.all);
    assert_eq!(exits, [2, 1, 0]);
    assert_eq!(windows.of_vm(vm_of(4)).extent, Extent::Whole);
}

/// L0 hands L2's marks to L1 without an access of its own, and an ERET of L1 may stay in L1.
#[test]
fn on_arm64_the_window_of_l2_opens_when_l1_has_entered_it() {
    let reason = |code| Reason { isa: Isa::Arm, code, flags: 0 };
    let inject = |code| EventKind::NestedInject { reason: reason(code) };
    let mark = |port| {
        let access = access(layout::arm::address(port));
        [&access[..], &[inject(arm::DABT_LOW), EventKind::Entry]].concat()
    };
    let eret = |enters| vec![arm_exit(arm::ERET), enters, EventKind::Entry];
    let kinds = [
        mark(layout::begin(2)),
        eret(EventKind::Runs),
        eret(EventKind::NestedEnter),
        vec![arm_exit(arm::HVC64), inject(arm::HVC64), EventKind::Entry],
        vec![arm_exit(arm::SYS64), EventKind::Entry],
        eret(EventKind::NestedEnter),
        mark(layout::end(2)),
    ];
    let (times, seen) = on_arm(kinds.concat());
    assert_eq!(times, (9..=17).collect::<Vec<u64>>());
    assert_eq!((seen.extent, seen.exits.all, seen.nested.all), (Extent::Whole, 3, 1));
}
