//! L2: whose exit it was, who handled it, and what L1 did on its behalf.

use super::script::{check, check_intervals};

#[test]
fn exits_of_l2_are_told_by_the_event_after_them() {
    check(
        "handled by the host",
        "10 exit npf; 11 nexit npf; 20 entry; 30 exit npf; 35 entry",
        "exit L2 npf kernel : 10
         exit npf kernel : 5",
    );
    check(
        "an access of L2",
        "10 exit msr; 11 nexit msr; 12 wrmsr 0x10; 20 entry",
        "exit L2 msr msr-write=0x10 kernel : 10
         access L2 msr-write=0x10 : 8",
    );
    check(
        "a fast-path re-entry of L2",
        "10 exit msr i1=1; 11 nexit msr; 12 wrmsr 0x10; 20 exit npf; 30 entry",
        "exit L2 msr msr-write=0x10 kernel : -
         exit npf kernel : 10
         access L2 msr-write=0x10 : -",
    );
}

#[test]
fn exits_of_l1_until_it_resumes_l2_are_ancillary() {
    check(
        "from cpuid of L2 to vmrun and on",
        "10 exit cpuid; 11 nexit cpuid; 12 inject cpuid; 20 entry;
         30 exit msr; 31 rdmsr 0x10; 34 entry;
         40 exit msr; 41 wrmsr 0x10; 43 entry;
         50 exit vmrun; 55 nenter; 60 entry;
         70 exit npf; 71 nexit npf; 80 entry;
         90 exit hlt; 95 entry",
        "exit L2 cpuid l1 : 10
         exit msr msr-read=0x10 kernel of:cpuid : 4
         exit msr msr-write=0x10 kernel of:cpuid : 3
         exit vmrun kernel of:cpuid : 10
         exit L2 npf kernel : 10
         exit hlt halted : 5
         access msr-read=0x10 : 3
         access msr-write=0x10 : 2
         time kernel=37 halted=5 guest=43 l2=10",
    );
    check(
        "the reason is the one L2 left for, not the one L1 is told",
        "10 exit INTERRUPT_WINDOW; 11 nexit INTERRUPT_WINDOW; 12 inject EXTERNAL_INTERRUPT; 20 entry;
         30 exit VMREAD; 34 entry",
        "exit L2 INTERRUPT_WINDOW l1 : 10
         exit VMREAD kernel of:INTERRUPT_WINDOW : 4",
    );
    check(
        "a halt of L2 that L1 handles is no halt",
        "10 exit hlt; 11 nexit hlt; 12 inject hlt; 20 entry; 30 exit hlt; 40 entry",
        "exit L2 hlt l1 : 10
         exit hlt halted of:hlt : 10",
    );
    check(
        "one vCPU's nesting is not another's",
        "10 exit cpuid; 11 nexit cpuid; 12 inject cpuid; 20 entry; 30 t102 exit msr; 34 t102 entry",
        "exit L2 cpuid l1 : 10
         exit 100/1 msr kernel : 4",
    );
    check(
        "an exit of L2 is nobody's ancillary exit, even when the resume is missing",
        "10 exit cpuid; 11 nexit cpuid; 12 inject cpuid; 20 entry;
         30 exit npf; 31 nexit npf; 34 entry; 40 exit msr; 44 entry",
        "exit L2 cpuid l1 : 10
         exit L2 npf kernel : 4
         exit msr kernel of:cpuid : 4",
    );
}

#[test]
fn guest_time_is_l2s_when_its_exit_is() {
    check(
        "what the exit ended, not what follows it",
        "10 exit cpuid; 20 entry; 50 exit npf; 51 nexit npf; 60 entry; 67 exit npf; 70 entry",
        "exit cpuid kernel : 10
         exit L2 npf kernel : 10
         exit npf kernel : 3
         time guest=37 l2=30 kernel=23",
    );
    check(
        "said twice, it counts once",
        "10 exit npf; 20 entry; 50 exit npf; 51 nexit npf; 52 nexit npf; 60 entry",
        "exit npf kernel : 10
         exit L2 npf kernel : 10
         time guest=30 l2=30 kernel=20",
    );
    check(
        "time before an exit without an entry is nobody's",
        "10 exit npf; 20 exit npf; 21 nexit npf; 30 entry",
        "exit L2 npf kernel : 10
         time unknown=10 kernel=10
         lost exits=1",
    );
    check(
        "nothing is known of what was lost",
        "10 exit npf; 20 entry; 30 lost 1; 40 exit npf; 41 nexit npf; 50 entry",
        "exit npf kernel : 10
         exit L2 npf kernel : 10
         time unknown=20 kernel=20",
    );
    check(
        "the guest time stays L2's when its exit never ends",
        "10 exit npf; 20 entry; 40 exit npf; 41 nexit npf",
        "exit npf kernel : 10
         time guest=20 l2=20 kernel=10
         lost exits=1",
    );
}

#[test]
fn an_interval_may_end_between_an_exit_and_the_word_that_it_was_of_l2() {
    check_intervals(
        "each part in the interval in which it is known",
        100,
        "10 exit npf; 20 entry; 90 exit npf; 99 t102 entry; 105 t102 exit npf; 110 nexit npf; 120 t102 entry",
        "exit @0 npf kernel : 10
         exit @100 100/1 npf kernel : 15
         time @0 guest=70 kernel=10
         time @100 100/0 l2=70
         time @100 100/1 guest=6 kernel=15
         lost exits=1",
    );
}

#[test]
fn injections_without_an_exit_of_l2() {
    check(
        "within an exit of L1: the reason is L1's, the outcome the kernel's",
        "10 exit vmrun; 12 inject npf; 20 entry; 30 exit msr; 34 entry",
        "exit vmrun kernel : 10
         exit msr kernel of:npf : 4",
    );
    check(
        "outside any exit",
        "5 entry; 12 inject npf; 30 exit msr; 34 entry",
        "exit msr kernel of:npf : 4",
    );
    check(
        "of a thread that is not known",
        "12 inject npf; 30 exit msr; 34 entry",
        "exit msr kernel : 4",
    );
}

#[test]
fn a_loss_ends_the_handling_by_l1() {
    for end in ["25 lost 3", "25 end"] {
        check(
            "the resume may be what is missing",
            &format!(
                "10 exit cpuid; 11 nexit cpuid; 12 inject cpuid; 20 entry; {end}; 30 exit msr; 34 entry"
            ),
            "exit L2 cpuid l1 : 10
             exit msr kernel : 4",
        );
    }
}
