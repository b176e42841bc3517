//! Which exits and accesses there are, whose they are, and what they are about.

use vmtax_analyse::{AccountOptions, Accountant};
use vmtax_events::{NO_VCPU, Vm};

use super::script::{ScriptRows, check, check_intervals, rows, run, script};

#[test]
fn exits_are_paired_with_the_next_entry_of_their_thread() {
    check(
        "one",
        "5 entry; 10 exit cpuid; 30 entry; 31 exit cpuid; 35 entry",
        "exit cpuid kernel : 20 4
         time guest=6 kernel=24",
    );
    check(
        "interleaved threads",
        "10 t101 exit cpuid; 11 t102 exit npf; 14 t102 entry; 20 t101 entry",
        "exit 100/1 npf kernel : 3
         exit cpuid kernel : 10",
    );
    check("a thread that migrates", "10 c0 exit cpuid; 30 c3 entry", "exit cpuid kernel : 20");
    check("no time at all", "10 exit cpuid; 10 entry", "exit cpuid kernel : 0");
}

#[test]
fn vcpus_of_two_processes_are_apart() {
    check(
        "vCPU 0 twice",
        "10 t101 exit cpuid; 11 t201 exit cpuid; 14 t201 entry; 20 t101 entry",
        "exit 200/0 cpuid kernel : 3
         exit 100/0 cpuid kernel : 10
         time 100/0 kernel=10
         time 200/0 kernel=3",
    );
    let rows = run(1000, &script("10 t201 exit cpuid; 11 t101 exit cpuid; 12 t101 entry"));
    let vm = |id| Vm { id, name: String::new(), inferred: false, ..Vm::default() };
    assert_eq!(rows.vms, [vm(100), vm(200)]);
    assert_eq!(rows.appeared, [200, 100]);
}

#[test]
fn a_vm_is_named_after_its_process_and_counted_rows_pass_through() {
    let mut accountant = Accountant::new(AccountOptions::default(), ScriptRows::default());
    accountant.thread_name(101, "CPU 0/KVM");
    accountant.thread_name(100, "qemu");
    accountant.event(&script("10 entry")[0]);
    let row = &rows("exit @5 300/0 npf kernel : - -").exits[0];
    accountant.counted(row);
    let (rows, vms, losses) = accountant.finish();
    assert_eq!(vms, [Vm { id: 100, name: "qemu".to_owned(), inferred: false, ..Vm::default() }]);
    assert_eq!(rows.exits, std::slice::from_ref(row));
    assert!(losses.is_empty());
}

#[test]
fn vms_without_process_ids_are_inferred() {
    let text = "10 t101 p- exit cpuid; 11 t201 p- exit cpuid; 12 t102 p- exit hlt;
        14 t201 p- entry; 15 t102 p- entry; 20 t101 p- entry";
    check(
        "neighbouring threads",
        text,
        "exit 201/0 cpuid kernel : 3
         exit 101/1 hlt halted : 3
         exit 101/0 cpuid kernel : 10",
    );
    let rows = run(1000, &script(text));
    assert_eq!(
        rows.vms.iter().map(|v| (v.id, v.inferred)).collect::<Vec<_>>(),
        [(101, true), (201, true)]
    );
}

#[test]
fn two_vms_of_one_process_are_told_apart() {
    check(
        "the second is named after its first thread",
        "10 t101 exit cpuid; 11 t151 p100 v0 exit cpuid; 14 t151 p100 v0 entry; 20 t101 entry",
        "exit 151/0 cpuid kernel : 3
         exit 100/0 cpuid kernel : 10",
    );
}

#[test]
fn the_entry_alone_can_name_the_vcpu() {
    check(
        "an old kernel",
        "10 t102 v- exit msr; 12 t102 wrmsr 0x6e0; 20 t102 entry; 30 t102 v- exit npf; 35 t102 entry",
        "exit 100/1 msr msr-write=0x6e0 kernel : 10
         exit 100/1 npf kernel : 5
         access 100/1 msr-write=0x6e0 : 8
         time 100/1 kernel=15 guest=10",
    );
    check(
        "never named: the thread stands for the VM",
        "10 t102 v- exit npf; 20 t102 v- entry",
        "exit 102/- npf kernel : 10
         time 102/- kernel=10",
    );
    assert_eq!(script("10 v- entry")[0].vcpu, NO_VCPU);
}

#[test]
fn events_between_exit_and_entry_tell_the_detail() {
    for (event, detail, duration) in [
        ("rdmsr 0x10", "msr-read=0x10", "8"),
        ("wrmsr 0x6e0", "msr-write=0x6e0", "8"),
        ("in 0x71", "port-in=0x71", "8"),
        ("out 0xcf8", "port-out=0xcf8", "8"),
        ("mmio-write 0xfee00300", "mmio-write=0xfee00300", "8"),
        ("mmio-read 0xfebd1000", "mmio-read=0xfebd1000", "2"),
        ("fast-mmio 0xfebd1000", "mmio-write=0xfebd1000", "8"),
        ("hypercall 5", "hypercall=5", "8"),
        ("hv-call 0x5c", "hyperv-hypercall=0x5c", "8"),
        ("xen-call 29", "xen-hypercall=29", "8"),
        ("cpuid 4 1", "cpuid=4:1", "8"),
        ("cpuid 1 7", "cpuid=1:0", "8"),
    ] {
        check(
            "an access is timed to the entry, an MMIO read from the exit",
            &format!("10 exit EXCEPTION_NMI; 12 {event}; 20 entry"),
            &format!(
                "exit EXCEPTION_NMI {detail} kernel : 10
                 access {detail} : {duration}"
            ),
        );
    }
    for (event, detail) in [
        ("fault 0x12345678", "page-fault=0x12200000"),
        ("rdcr 3", "cr-read=3"),
        ("wrcr 0", "cr-write=0"),
        ("rdapic 0x20", "apic-read=0x20"),
        ("wrapic 0x300", "apic-write=0x300"),
        ("ghcb 0x80000011", "ghcb=0x80000011"),
        ("ghcb 0x80000001 0xfee00390", "mmio-read=0xfee00390"),
        ("ghcb 0x80000002 0xfee00380", "mmio-write=0xfee00380"),
        ("ghcb 0x7b 0x3f80010", "port-out=0x3f8"),
        ("ghcb-msr 0x12345014", "ghcb-msr=0x14"),
        ("tdvmcall 0x10002", "tdvmcall=0x10002"),
        ("vmread 0x4402", "vmcs-field=0x4402"),
        ("vmwrite 0x681e", "vmcs-field=0x681e"),
        ("mmio-wait 0xfebd1000", "mmio-read=0xfebd1000"),
    ] {
        check(
            "a detail is no access",
            &format!("10 exit EXCEPTION_NMI; 12 {event}; 20 entry"),
            &format!("exit EXCEPTION_NMI {detail} kernel : 10"),
        );
    }
}

#[test]
fn halts_record_how_they_ended() {
    for (events, detail) in [
        ("18 poll 5", "halt=0"),
        ("18 wakeup 5", "halt=1"),
        ("14 poll 3; 18 wakeup 2", "halt=1"),
        ("14 wakeup 3; 18 poll 2", "halt=1"),
    ] {
        check(
            "a halt",
            &format!("10 exit HLT; {events}; 20 entry"),
            &format!("exit HLT {detail} halted : 10"),
        );
    }
    // What else KVM waits for in an exit is no halt of the guest.
    check(
        "no halt",
        "10 exit EXCEPTION_NMI; 18 poll 5; 20 entry",
        "exit EXCEPTION_NMI kernel : 10",
    );
}

#[test]
fn information_that_comes_later_counts() {
    check(
        "a port by the qualification",
        "10 exit IO_INSTRUCTION; 12 inform 0x3f80000; 20 entry",
        "exit IO_INSTRUCTION port-out=0x3f8 kernel : 10",
    );
}

#[test]
fn the_most_telling_detail_wins_in_any_order() {
    for (events, detail, accesses) in [
        (["fault 0xfee00300", "mmio-write 0xfee00300"], "mmio-write=0xfee00300", true),
        (["fault 0x200000", "wrapic 0x300"], "apic-write=0x300", false),
        (["wrapic 0x380", "wrmsr 0x838"], "msr-write=0x838", true),
        (["fault 0x200000", "ghcb 0x80000010"], "ghcb=0x80000010", false),
        (["wrapic 0x300", "ghcb 0x7c"], "ghcb=0x7c", false),
        (["ghcb 0x7c", "wrmsr 0x6e0"], "msr-write=0x6e0", true),
        (["ghcb-msr 0x4", "cpuid 1 0"], "cpuid=1:0", true),
        (["tdvmcall 0x20", "wrmsr 0x6e0"], "msr-write=0x6e0", true),
    ] {
        for (first, second) in [(0, 1), (1, 0)] {
            let (first, second) = (events[first], events[second]);
            // The access is the event with the winning detail; it lasts until the entry at 20.
            let at = if first == events[1] { 12 } else { 13 };
            let access =
                if accesses { format!("access {detail} : {}", 20 - at) } else { String::new() };
            check(
                "priority",
                &format!("10 exit EXCEPTION_NMI; 12 {first}; 13 {second}; 20 entry"),
                &format!("exit EXCEPTION_NMI {detail} kernel : 10\n{access}"),
            );
        }
    }
    check(
        "the first among equals",
        "10 exit EXCEPTION_NMI; 11 out 0x80; 12 in 0x71; 20 entry",
        "exit EXCEPTION_NMI port-out=0x80 kernel : 10
         access port-out=0x80 : 9
         access port-in=0x71 : 8",
    );
}

#[test]
fn information_words_complete_missing_events() {
    for (exit, row) in [
        ("io i1=0x710011", "io port-in=0x71"),
        ("IO_INSTRUCTION i1=0x3f80000", "IO_INSTRUCTION port-out=0x3f8"),
        ("npf i1=4 i2=0x12345678", "npf page-fault=0x12200000"),
        ("CR_ACCESS i1=0x13", "CR_ACCESS cr-read=3"),
        ("APIC_WRITE i1=0x380", "APIC_WRITE apic-write=0x380"),
        ("APIC_ACCESS i1=0x1300", "APIC_ACCESS apic-write=0x300"),
        ("EPT_VIOLATION i1=0x182", "EPT_VIOLATION"),
    ] {
        check("words", &format!("10 exit {exit}; 20 entry"), &format!("exit {row} kernel : 10"));
    }
    check(
        "an event is better than the words",
        "10 exit io i1=0x710011; 12 fault 0x400000; 20 entry",
        "exit io page-fault=0x400000 kernel : 10",
    );
}

#[test]
fn accesses_are_timed_one_by_one() {
    check(
        "several in one exit",
        "10 exit npf; 11 mmio-write 0x1000; 13 mmio-write 0x1000; 14 mmio-write 0x2000; 20 entry",
        "exit npf mmio-write=0x1000 kernel : 10
         access mmio-write=0x1000 : 9 7
         access mmio-write=0x2000 : 6",
    );
    check(
        "a read that user space completes",
        "10 exit npf; 11 mmio-wait 0x1000; 12 user 6; 40 mmio-read 0x1000; 45 entry",
        "exit npf mmio-read=0x1000 user : 35
         access mmio-read=0x1000 : 30
         time kernel=2 user=33",
    );
    check(
        "an MMIO read without an exit has no time",
        "10 entry; 15 mmio-read 0x1000; 20 exit npf; 30 entry",
        "exit npf kernel : 10
         access mmio-read=0x1000 : -",
    );
    check(
        "the recording began within an exit",
        "12 wrmsr 0x10; 20 entry",
        "access msr-write=0x10 : 8",
    );
    check(
        "an access without an exit does not last through the guest",
        "12 wrmsr 0x10; 20 exit hlt; 30 entry",
        "exit hlt halted : 10",
    );
    check(
        "the exit's entry is missing",
        "10 exit msr i1=1; 12 wrmsr 0x10; 20 exit npf; 30 entry",
        "exit msr msr-write=0x10 kernel : -
         exit npf kernel : 10
         access msr-write=0x10 : -",
    );
    check(
        "the recording ends within an exit",
        "9 t201 entry; 10 exit msr; 12 wrmsr 0x10; 13 mmio-read 0x1000",
        "access mmio-read=0x1000 : 3
         lost exits=1",
    );
}

#[test]
fn an_exit_times_no_more_than_256_accesses() {
    let events = (0..300).map(|i| format!("{} out 0x1f0;", 11 + i)).collect::<String>();
    let timed = (0..256).map(|i| format!(" {}", 500 - 11 - i)).collect::<String>();
    check(
        "string I/O",
        &format!("10 exit io; {events} 500 entry"),
        &format!(
            "exit io port-out=0x1f0 kernel : 490
             access port-out=0x1f0 :{timed}{}",
            " -".repeat(44)
        ),
    );
}

#[test]
fn an_exit_belongs_to_the_interval_of_its_end() {
    check_intervals(
        "rows at the boundary, then the rest",
        100,
        "10 exit cpuid; 20 entry; 90 exit cpuid; 110 entry; 199 exit cpuid; 200 entry; 450 exit hlt; 460 entry",
        "exit @0 cpuid kernel : 10
         exit @100 cpuid kernel : 20
         exit @200 cpuid kernel : 1
         exit @400 hlt halted : 10
         time @0 kernel=10 guest=70
         time @100 kernel=20 guest=89
         time @200 kernel=1
         time @400 guest=250 halted=10",
    );
    check_intervals(
        "an access ends in the interval of its own end",
        100,
        "90 exit npf; 92 out 0x80; 105 mmio-read 0x1000; 210 entry",
        "exit @200 npf port-out=0x80 kernel : 120
         access @100 mmio-read=0x1000 : 15
         access @200 port-out=0x80 : 118",
    );
    check_intervals(
        "what comes late stays in the interval that is open",
        100,
        "110 exit cpuid; 120 entry; 80 t102 exit npf; 90 t102 entry; 130 exit cpuid; 140 entry",
        "exit @100 cpuid kernel : 10 10
         exit @100 100/1 npf kernel : 10
         time @100 guest=10 kernel=20
         time @100 100/1 kernel=10",
    );
    check_intervals(
        "an interval of no length is one of 1 ns",
        0,
        "7 exit cpuid; 9 entry",
        "exit @9 cpuid kernel : 2",
    );
}
