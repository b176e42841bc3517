//! What is missing from a recording, and what that costs the result.

use vmtax_events::Vm;

use super::script::{check, run, script};

#[test]
fn lost_events_end_what_was_open_on_their_cpu() {
    check(
        "one CPU of two",
        "10 c0 exit npf; 11 t102 c1 exit npf; 20 c0 lost 5; 30 c0 entry; 31 t102 c1 entry",
        "exit 100/1 npf kernel : 20
         time unknown=20
         time 100/1 kernel=20
         lost exits=1",
    );
    check(
        "a CPU nobody knows: all",
        "10 c0 exit npf; 11 t102 c1 exit npf; 20 c- lost 5; 30 c0 entry; 31 t102 c1 entry",
        "lost exits=2",
    );
    check(
        "a gap of unknown size counts as a gap",
        "10 c0 exit npf; 20 c0 lost 0; 21 c5 lost 0; 30 c0 entry; 40 exit hlt; 41 entry",
        "exit hlt halted : 1
         lost exits=1 gaps=2",
    );
    check(
        "an access goes with its exit",
        "10 exit npf; 12 wrmsr 0x10; 20 lost 5; 30 entry",
        "lost exits=1",
    );
    check(
        "a thread is where it was seen last: by its exit",
        "10 c0 exit npf; 20 c0 entry; 30 c1 exit npf; 35 c0 lost 5; 40 c1 entry",
        "exit npf kernel : 10 10",
    );
    check(
        "by an event within the exit",
        "10 c0 exit npf; 12 c1 fault 0; 20 c0 lost 5; 30 c1 entry; 40 c0 exit npf; 41 c1 fault 0; 42 c1 lost 5; 50 c1 entry",
        "exit npf page-fault=0 kernel : 20
         lost exits=1",
    );
    check(
        "by the scheduler",
        "10 c0 exit npf; 12 c0 preempt 7; 15 t7 c1 preempt 101; 20 c0 lost 5; 30 c1 entry",
        "exit npf kernel : 17",
    );
    check(
        "preemption across a loss is not counted",
        "10 exit npf; 12 preempt 7; 13 lost 1; 15 exit npf; 20 t7 preempt 101; 30 entry",
        "exit npf kernel : 15
         lost exits=1",
    );
}

#[test]
fn an_entry_without_an_exit_counts_unless_it_was_announced() {
    check("the first of a vCPU", "10 entry", "");
    check("the second", "10 entry; 20 entry; 30 entry", "lost entries=2");
    check("after a loss", "10 entry; 15 lost 1; 20 entry; 30 entry", "lost entries=1");
    check("of another thread", "10 entry; 15 t102 entry", "");
}

#[test]
fn an_exit_without_an_entry_is_in_no_row() {
    check(
        "another exit came first",
        "10 exit npf; 20 exit npf; 30 entry",
        "exit npf kernel : 10
         lost exits=1",
    );
    check("the recording ended", "9 t201 entry; 10 exit npf; 11 t102 exit hlt", "lost exits=2");
    check("the thread ended", "10 exit npf; 20 end; 30 entry", "lost exits=1");
}

#[test]
fn the_fast_path_enters_the_guest_without_an_entry() {
    // SVM says in exit_info_1 that the access is a write; reads have no fast path.
    for (reason, info) in [("MSR_WRITE", ""), ("PREEMPTION_TIMER", ""), ("msr", "i1=1")] {
        check(
            "counted, without a time",
            &format!("10 exit {reason} {info}; 20 exit {reason} {info}; 30 exit hlt; 40 entry"),
            &format!(
                "exit {reason} kernel : - -
                 exit hlt halted : 10
                 time unknown=20 halted=10"
            ),
        );
        check(
            "after a loss there is no telling",
            &format!("10 exit {reason} {info}; 15 lost 1; 20 exit hlt; 40 entry"),
            "exit hlt halted : 20
             lost exits=1",
        );
    }
    for reason in ["MSR_READ", "msr"] {
        check(
            "a read has no fast path",
            &format!("10 exit {reason}; 20 exit hlt; 30 entry"),
            "exit hlt halted : 10
             lost exits=1",
        );
    }
}

#[test]
fn thread_ids_are_used_again() {
    check(
        "by a vCPU of another VM",
        "10 exit npf; 20 entry; 25 end; 30 p200 v3 exit npf; 45 p200 v3 entry",
        "exit npf kernel : 10
         exit 200/3 npf kernel : 15
         time kernel=10
         time 200/3 kernel=15",
    );
    let rows = run(1000, &script("10 exit npf; 12 end; 20 p200 v3 entry"));
    let vm = |id| Vm { id, name: String::new(), inferred: false, ..Vm::default() };
    assert_eq!(rows.vms, [vm(100), vm(200)]);
    check(
        "by the vCPU's own successor: the same VM",
        "10 exit npf; 20 entry; 25 end; 30 t109 v0 exit npf; 45 t109 v0 entry",
        "exit npf kernel : 10 15
         time kernel=10
         time kernel=15",
    );
    check("the new thread's first entry is no surprise", "10 entry; 25 end; 30 entry", "");
    check(
        "a thread that perf could not name any more (-1) is not the one that ended",
        "10 exit npf; 20 entry; 25 end; 30 t4294967295 p200 v1 exit npf; 45 t4294967295 p200 v1 entry",
        "exit npf kernel : 10
         exit 200/1 npf kernel : 15",
    );
    check(
        "a thread that ends before its vCPU is known keeps its time",
        "9 t201 entry; 10 v- exit msr i1=1; 15 v- exit msr i1=1; 20 end",
        "exit 101/- msr kernel : -
         time 101/- unknown=5
         lost exits=1",
    );
    check("the end of a thread nobody knows", "10 t7 end", "");
}

#[test]
fn a_recording_without_entries_counts_exits_without_times() {
    let rows = run(
        1_000_000,
        &script(
            "10 exit cpuid; 20 exit npf; 25 fault 0x200000; 30 t102 exit MSR_WRITE; 35 t102 wrmsr 0x6e0; 40 exit cpuid;
             50 lost 3; 60 t102 exit hlt; 1500000 end; 1500001 exit npf",
        ),
    );
    let expected = super::script::rows(
        "exit @1000000 cpuid kernel : - -
         exit @1000000 npf page-fault=0x200000 kernel : -
         exit @1000000 100/1 MSR_WRITE msr-write=0x6e0 kernel : -
         exit @1000000 100/1 hlt halted : -
         exit @1000000 npf kernel : -
         access @1000000 100/1 msr-write=0x6e0 : -",
    );
    assert_eq!(rows.exits, expected.exits);
    assert_eq!(rows.accesses, expected.accesses);
    assert_eq!((rows.times.len(), rows.losses.unpaired_exits), (0, 0));
    assert!(rows.losses.missing[0].starts_with("The recording has no kvm_entry"));
    // With one entry they have missed theirs.
    check(
        "the first entry comes late",
        "10 exit cpuid; 20 exit npf; 30 t102 entry",
        "lost exits=2",
    );
}

#[test]
fn entries_without_exits_are_said_when_they_are_many() {
    let entries = |n: u64| (0..n).map(|at| format!("{at} entry;")).collect::<String>();
    assert_eq!(run(1000, &script(&entries(20))).losses.missing, [""; 0]);
    let said = run(1000, &script(&entries(21))).losses.missing;
    assert!(said[0].starts_with("20 of 21 kvm_entry have no kvm_exit before them"), "{said:?}");
}

#[test]
fn samples_count_for_others_and_have_no_times() {
    let rows = run(
        1_000_000,
        &script(
            "10 sampled 10; 10 exit cpuid; 20 sampled 7; 20 exit hlt; 30 sampled 3; 30 wrmsr 0x10; 40 sampled 2; 40 exit cpuid",
        ),
    );
    let many = |n: usize| " -".repeat(n);
    let expected = super::script::rows(&format!(
        "exit cpuid unknown :{}\nexit hlt halted :{}\naccess msr-write=0x10 :{}",
        many(12),
        many(7),
        many(3)
    ));
    assert_eq!((rows.exits, rows.accesses), (expected.exits, expected.accesses));
    assert_eq!((rows.times.len(), rows.losses.sampled, rows.losses.missing.len()), (0, 4, 0));
}
