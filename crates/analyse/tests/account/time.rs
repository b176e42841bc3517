//! Who handled an exit, and where its time went.

use vmtax_analyse::{AccountOptions, Accountant};

use super::script::{ScriptRows, check, run, script};

#[test]
fn outcomes() {
    for (what, events, rows) in [
        (
            "the VMM",
            "10 exit io; 11 out 0x80; 14 user 2; 20 entry",
            "exit io port-out=0x80 user : 10
             access port-out=0x80 : 9
             time kernel=4 user=6",
        ),
        (
            "twice in the VMM: from the first on",
            "10 exit io; 14 user 2; 16 user 10; 20 entry",
            "exit io port-out=0 user : 10
             time kernel=4 user=6",
        ),
        (
            "a halt, wakeups not recorded",
            "10 exit hlt; 90 entry",
            "exit hlt halted : 80
             time halted=80",
        ),
        (
            "a halt with its wakeup",
            "10 exit HLT; 88 wakeup 70; 90 entry",
            "exit HLT halt=1 halted : 80
             time kernel=10 halted=70",
        ),
        (
            "two wakeups in one exit add up",
            "10 exit HLT; 40 wakeup 20; 88 wakeup 30; 90 entry",
            "exit HLT halt=1 halted : 80
             time kernel=30 halted=50",
        ),
        (
            "a wakeup that says more than the exit lasted",
            "10 exit HLT; 88 wakeup 900; 90 entry",
            "exit HLT halt=1 halted : 80
             time halted=80",
        ),
        (
            "wakeups are recorded, and this halt has none: it did not wait",
            "10 exit hlt; 88 wakeup 70; 90 entry; 100 exit idle-halt; 105 entry",
            "exit hlt halt=1 halted : 80
             exit idle-halt halted : 5
             time kernel=15 halted=70 guest=10",
        ),
        (
            "the VMM emulates the halt",
            "10 exit hlt; 14 user 5; 90 entry",
            "exit hlt halted : 80
             time halted=80",
        ),
        (
            "the same with wakeups recorded",
            "1 exit hlt; 2 wakeup 1; 4 entry; 10 exit hlt; 14 user 5; 90 entry",
            "exit hlt halt=1 halted : 3
             exit hlt halted : 80
             time kernel=6 halted=77 guest=6",
        ),
        (
            "a halt that a signal ends in the VMM",
            "10 exit hlt; 60 wakeup 45; 65 user 10; 90 entry",
            "exit hlt halt=1 halted : 80
             time kernel=10 halted=45 user=25",
        ),
        (
            "a halt of an SNP guest",
            "10 exit vmgexit; 11 ghcb 0x78; 90 entry",
            "exit vmgexit ghcb=0x78 halted : 80
             time halted=80",
        ),
        (
            "a halt of a TDX guest, older kernels",
            "10 exit TDCALL; 11 tdvmcall 0xc; 90 entry",
            "exit TDCALL tdvmcall=0xc halted : 80
             time halted=80",
        ),
    ] {
        check(what, events, rows);
    }
}

#[test]
fn preemption() {
    for (what, events, rows) in [
        (
            "in the kernel",
            "10 exit npf; 20 preempt 7; 50 t7 preempt 101; 60 entry",
            "exit npf kernel : 20
             time kernel=20 preempted=30",
        ),
        (
            "in the VMM",
            "10 exit io; 20 user 2; 30 preempt 7; 50 t7 block 101; 60 entry",
            "exit io port-out=0 user : 30
             time kernel=10 user=20 preempted=20",
        ),
        (
            "in both",
            "10 exit io; 11 preempt 7; 15 t7 block 101; 20 user 2; 30 preempt 7; 50 t7 block 101; 60 entry",
            "exit io port-out=0 user : 26
             time kernel=6 user=20 preempted=24",
        ),
        (
            "the VMM waits for a device: its own time",
            "10 exit io; 20 user 2; 30 block 7; 50 t7 block 101; 60 entry",
            "exit io port-out=0 user : 50
             time kernel=10 user=40",
        ),
        (
            "halted, then preempted, then woken",
            "10 exit hlt; 15 block 7; 50 t7 block 101; 52 preempt 7; 56 t7 block 101; 58 wakeup 42; 60 entry",
            "exit hlt halt=1 halted : 46
             time halted=42 kernel=4 preempted=4",
        ),
        (
            "at the very moment that the VMM takes over",
            "10 exit io; 20 user 2; 20 preempt 7; 50 t7 block 101; 60 entry",
            "exit io port-out=0 user : 20
             time kernel=10 user=10 preempted=30",
        ),
        (
            "for longer than there is time",
            "10 exit npf; 0 preempt 7; 0xffffffffffffffff t7 preempt 101;
             0 preempt 7; 0xffffffffffffffff t7 preempt 101; 60 entry",
            "exit npf kernel : 0
             time preempted=50",
        ),
        (
            "other threads",
            "10 exit npf; 20 t7 preempt 8; 50 t8 preempt 7; 60 entry",
            "exit npf kernel : 50
             time kernel=50",
        ),
        (
            "another vCPU",
            "5 t102 entry; 10 exit npf; 20 t102 preempt 7; 50 t7 preempt 102; 60 entry; 70 t102 exit npf",
            "exit npf kernel : 50
             time 100/1 guest=65
             time kernel=50
             lost exits=1",
        ),
        (
            "from one vCPU to the next",
            "10 exit npf; 20 t102 exit npf; 30 preempt 102; 40 t102 preempt 101; 50 entry; 60 t7 block 102; 70 t102 entry",
            "exit npf kernel : 30
             exit 100/1 npf kernel : 30
             time kernel=30 preempted=10
             time 100/1 kernel=30 preempted=20",
        ),
        (
            "a switch away whose switch back is missing: it is back with its next event",
            "10 exit npf; 20 preempt 7; 60 entry; 70 exit npf; 75 entry",
            "exit npf kernel : 10 5
             time guest=10 kernel=15 preempted=40",
        ),
        (
            "a switch back whose switch away is lost",
            "10 exit npf; 50 t7 preempt 101; 60 entry",
            "exit npf kernel : 50
             time kernel=50",
        ),
    ] {
        check(what, events, rows);
    }
}

#[test]
fn ambiguous_time_is_unknown() {
    for (what, events, rows) in [
        (
            "an entry is missing",
            "10 exit npf; 30 exit hlt; 60 entry; 70 exit cpuid; 75 entry",
            "exit hlt halted : 30
             exit cpuid kernel : 5
             time unknown=20 halted=30 guest=10 kernel=5
             lost exits=1",
        ),
        (
            "an exit is missing",
            "10 exit npf; 30 entry; 60 entry; 70 exit npf; 75 entry",
            "exit npf kernel : 20 5
             time kernel=25 unknown=30 guest=10
             lost entries=1",
        ),
        (
            "events were lost in the guest",
            "10 exit npf; 30 entry; 40 lost 1; 60 exit npf; 75 entry",
            "exit npf kernel : 20 15
             time kernel=35 unknown=30",
        ),
        (
            "time goes backwards: the exit counts, its time does not",
            "10 exit npf; 30 entry; 50 exit cpuid; 45 entry; 60 exit npf; 70 entry",
            "exit npf kernel : 20 10
             exit cpuid kernel : -
             time kernel=30 guest=30",
        ),
        (
            "an exit comes too late: it counts, its time was given to others already",
            "10 exit npf; 30 entry; 20 exit cpuid; 45 entry; 60 exit npf; 70 entry",
            "exit npf kernel : 20 10
             exit cpuid kernel : -
             time kernel=30 unknown=15 guest=15",
        ),
    ] {
        check(what, events, rows);
    }
}

#[test]
fn a_sink_sees_exits_one_by_one_as_they_end() {
    let rows = run(
        1000,
        &script(
            "10 exit io; 14 user 2; 20 preempt 7; 25 t7 block 101; 30 c2 entry;
             40 exit msr; 50 exit HLT; 58 wakeup 5; 60 entry",
        ),
    );
    let ended: Vec<_> = rows
        .ended
        .iter()
        .map(|e| (e.tid, e.cpu, e.start_ns, e.end_ns, e.user_start_ns, e.halted_ns, e.preempted_ns))
        .collect();
    // The exit at 40 has no end that is known.
    assert_eq!(ended, [(101, 2, 10, 30, Some(14), 0, 5), (101, 0, 50, 60, None, 5, 0)]);
    assert_eq!(rows.ended[0].key, rows.exits[0].key);
}

/// Who had the CPU of a preempted vCPU: name, how often, how long.
#[test]
fn preemption_names_the_threads_that_ran() {
    let cases = [
        ("one", "10 exit npf; 20 preempt 7; 50 t7 preempt 101; 60 entry", vec![("seven", 1, 30)]),
        (
            "one after the other, each its part",
            "10 exit npf; 20 preempt 8; 25 t8 block 7; 50 t7 preempt 101; 60 entry",
            vec![("seven", 1, 25), ("thread 8", 1, 5)],
        ),
        (
            "one again",
            "10 exit npf; 20 preempt 7; 25 t7 block 101; 30 preempt 7; 31 t7 block 101; 60 entry",
            vec![("seven", 2, 6)],
        ),
        (
            "moved to another CPU, whose threads are not meant",
            "10 exit npf; 20 preempt 7; 22 t9 c1 block 8; 30 t8 c1 block 101; 35 t7 preempt 9; 60 c1 entry",
            vec![("seven", 1, 10)],
        ),
        (
            "a missing switch back",
            "10 exit npf; 20 preempt 7; 60 entry; 70 t7 block 8",
            vec![("seven", 1, 40)],
        ),
        ("blocked is not preempted", "10 exit npf; 20 block 7; 50 t7 block 101; 60 entry", vec![]),
        (
            "two vCPUs wait for one CPU",
            "10 exit npf; 11 t102 exit npf; 20 preempt 102; 30 t102 preempt 7; 40 t7 preempt 101; 45 preempt 102; 60 entry; 61 t102 entry",
            vec![("seven", 1, 10), ("thread 102", 2, 25), ("seven", 1, 10), ("thread 101", 1, 5)],
        ),
    ];
    for (what, events, expected) in cases {
        let mut accountant = Accountant::new(AccountOptions::default(), ScriptRows::default());
        accountant.thread_name(7, "seven");
        for event in &script(events) {
            accountant.event(event);
        }
        let (rows, ..) = accountant.finish();
        let found: Vec<(&str, u64, u64)> =
            rows.preempted.iter().map(|row| (&*row.by, row.count, row.time_ns)).collect();
        assert_eq!(found, expected, "{what}");
        let by: u64 = rows.preempted.iter().map(|row| row.time_ns).sum();
        let all: u64 = rows.times.iter().map(|row| row.preempted_ns).sum();
        assert_eq!(by, all, "{what}");
    }
}

/// A thread that runs a vCPU is known by its id, also if its exits come later, or it ends in the interval.
#[test]
fn preemption_names_the_vcpus_that_ran() {
    let waits = "10 exit npf; 20 preempt 102; 50 t102 preempt 101; 60 entry";
    let before = format!("1 t102 exit npf; 2 t102 entry; {waits}");
    let after = format!("{waits}; 70 t102 exit npf; 80 t102 entry");
    let until = format!("{before}; 70 t102 end");
    for events in [before, after, until] {
        let rows = run(1000, &script(&events));
        let found: Vec<_> = rows.preempted.iter().map(|row| (&*row.by, row.by_vcpu)).collect();
        assert_eq!(found, [("thread 102", Some((100, 1)))], "{events}");
    }
    let rows = run(1000, &script("10 exit npf; 20 preempt 7; 50 t7 preempt 101; 60 entry"));
    assert_eq!(rows.preempted[0].by_vcpu, None);
}
