//! Kinds of text that people post, each with two made-up texts and one that looks alike and must not be taken for it. What is said is exact where it is short.

use std::fs;

use super::{execute, run};

/// A kind: its texts with the verdict's id and a part of what is said; and a text that must not have it.
struct Kind {
    name: &'static str,
    texts: [(&'static str, &'static str, &'static str); 2],
    /// A text, and what must not be in its explanation.
    other: (&'static str, &'static str),
}

const STACK: &str = "[ 1.1] RIP: 0010:multi_cpu_stop+0x52/0xf0\n";
const LOCKUP: &str = "[ 4823.1] watchdog: BUG: soft lockup - CPU#2 stuck for 26s! [ksoftirqd/2:23]\n[ 4823.1] RIP: 0010:smp_call_function_many_cond+0x12c/0x390\n";
const HUNG: &str = "[  242.1] INFO: task jbd2/vda1-8:277 blocked for more than 120 seconds.\n[  242.1] Call Trace:\n[  242.1]  __schedule+0x2e3/0x740\n[  242.1]  io_schedule+0x12/0x40\n[  242.1]  jbd2_journal_commit_transaction+0x25f/0x17e0\n";

/// Rows of `perf report` below its titles.
macro_rules! concat_profile {
    ($rows:literal) => {
        concat!(
            "# Overhead  Command  Shared Object      Symbol\n# ........  .......  .................  ....................\n#\n",
            $rows
        )
    };
}

const KINDS: [Kind; 16] = [
    Kind {
        name: "a profile of an idle host",
        texts: [
            (
                concat_profile!(
                    "    91.84%  swapper  [kernel.kallsyms]  [k] xen_hypercall_sched_op\n     5.15%  kworker  [dm_thin_pool]     [k] process_discard_bio\n"
                ),
                "undecided",
                "91.8 % of it is idle time; of the rest process_discard_bio has most",
            ),
            (
                concat_profile!(
                    "    70.00%  swapper  [kernel.kallsyms]  [k] pv_native_safe_halt\n    20.00%  app      app                [.] main\n"
                ),
                "undecided",
                "70.0 % of it is idle time; of the rest main has most",
            ),
        ],
        other: (
            concat_profile!(
                "    30.00%  swapper  [kernel.kallsyms]  [k] pv_native_safe_halt\n    60.00%  app      app                [.] main\n"
            ),
            "idle time",
        ),
    },
    Kind {
        name: "two values with an arrow",
        texts: [
            (
                "boot: 1.92 s -> 1.31 s (-32 %)\n",
                "results",
                "before takes 1.5 times as much as after",
            ),
            (
                "4k reads => 121k IOPS \u{2192} 512k IOPS\nfio 4k: 121k \u{2192} 512k IOPS\n",
                "results",
                "before loses 76.4 % of after",
            ),
        ],
        other: ("eth0 -> br0\nsize -> 30\nirq 24 -> 25\n", "results"),
    },
    Kind {
        name: "labels with an arrow and no unit",
        texts: [
            (
                "dom0   => 21.5\nguest, vhost=on  => 25.9\nguest, vhost=off => 39.0\n",
                "results",
                "has 1.81 times the value of dom0; which is better the text does not say",
            ),
            ("host --> 31\nVM --> 62 (200%)\n", "results", "VM has 2.00 times the value of host"),
        ],
        other: ("width --> 31\nheight --> 62\n", "results"),
    },
    Kind {
        name: "relative changes",
        texts: [
            (
                "hackbench, 4 guests overcommitted, time reduction:\n  pipes:   -12.3%\n  sockets: -8.0%\n",
                "results",
                "changes by -12.3 % (pipes) to -8 % (sockets)",
            ),
            (
                "| Test | 1 vCPU | 4 vCPUs |\n|---|---|---|\n| exec throughput | +3.1% | -17.4% |\n",
                "results",
                "changes by -17.4 % (4 vCPUs) to +3.1 % (1 vCPU)",
            ),
        ],
        other: ("Battery is at +5% today.\n", "results"),
    },
    Kind {
        name: "exits a second by set-up",
        texts: [
            (
                "enabled  12034 exits/s\ndisabled 98033 exits/s\n",
                "results",
                "disabled takes 8.1 times as much as enabled",
            ),
            (
                "Idle guest\nwith hpet: 4021 vmexits/s\nwithout hpet: 310 vmexits/s\n",
                "results",
                "with hpet takes 13.0 times as much as without hpet",
            ),
        ],
        other: ("total: 4021 exits/s\nhlt: 310 exits/s\n", "results"),
    },
    Kind {
        name: "outputs of programs in two fences",
        texts: [
            (
                "Bare metal:\n```\nTot:             753   3966  29861\n```\nVM:\n```\nTot:             733   1991  14606\n```\n",
                "results",
                "VM loses 51.1 % of Bare metal",
            ),
            (
                "I ran it on the host first.\n```\nStarting\nevents per second:  1207.05\n```\nThen in a guest with 4 vCPUs.\n```\nStarting\nevents per second:   311.40\n```\n",
                "results",
                "loses 74.2 % of",
            ),
        ],
        other: ("One run:\n```\nTot:             753   3966  29861\n```\n", "loses"),
    },
    Kind {
        name: "figures in a sentence",
        texts: [
            (
                "Building the kernel took 45 s in the VM, 12 s on bare metal. Why?\n",
                "results",
                "VM takes 3.8 times as much as bare metal",
            ),
            (
                "Our suite takes 310 seconds inside the guest while\nthe host needs only 95 seconds.\n",
                "results",
                "guest takes 3.3 times as much as host",
            ),
        ],
        other: ("The VM boots in 3 s and the host copies the image in 12 s.\n", "times as much"),
    },
    Kind {
        name: "a factor in a sentence",
        texts: [
            (
                "Compiling anything is about 25% slower in the guest.\n",
                "results",
                "guest 25 % slower, by the text's own words",
            ),
            (
                "Disk writes inside the VM are 10 times slower than on the host.\n",
                "results",
                "VM 10 times slower",
            ),
        ],
        other: ("If the VM is 10 times slower than the host, tell us.\n", "slower, by"),
    },
    Kind {
        name: "a stack of a CPU that is stuck",
        texts: [
            (
                LOCKUP,
                "message",
                "a CPU did not leave smp_call_function_many_cond for seconds while other CPUs do not answer",
            ),
            (
                "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\nNMI backtrace for cpu 1\nRIP: 0010:io_serial_in+0x14/0x20\n",
                "message",
                "while it writes to a serial port",
            ),
        ],
        other: (STACK, "did not leave"),
    },
    Kind {
        name: "a stack of a host's CPU that is stuck in KVM",
        texts: [
            (
                "watchdog: BUG: soft lockup - CPU#2 stuck for 22s! [qemu-system-x86:9]\nRIP: 0010:mark_page_accessed+0x1/0x2\n kvm_set_pfn_accessed+0x1/0x2\n kvm_set_memslot+0x1/0x2\n",
                "message",
                "a CPU of the host was stuck for seconds as KVM changed a VM's memory slots",
            ),
            (
                "rcu: INFO: rcu_sched self-detected stall on CPU\nCall Trace:\n free_pages+0x1/0x2\n kvm_mmu_zap_all+0x1/0x2\n kvm_destroy_vm+0x1/0x2\n",
                "message",
                "as KVM freed a VM's page tables at the VM's end",
            ),
        ],
        other: ("Call Trace:\n kvm_set_memslot+0x1/0x2\n kvm_vm_ioctl+0x1/0x2\n", "was stuck"),
    },
    Kind {
        name: "a task that is blocked",
        texts: [
            (
                HUNG,
                "message",
                "jbd2_journal_commit_transaction while a disk or its file system does not answer",
            ),
            (
                "INFO: task ls:99 blocked for more than 120 seconds.\n schedule+0x1/0x2\n p9_client_rpc+0x12/0x40\n",
                "message",
                "while the host's 9p server does not answer",
            ),
        ],
        other: (
            "INFO: task CPU 0/KVM:99 blocked for more than 120 seconds.\n schedule+0x1/0x2\n p9_client_rpc+0x12/0x40\n",
            "9p",
        ),
    },
    Kind {
        name: "gaps in a boot's log",
        texts: [
            (
                "[    0.61] pci 0000:00:02.0: [8086:1237] type 00\n[    4.91] pci 0000:00:02.0: BAR 0 [mem 0xfd000000-0xfdffffff]\n[    9.21] pci 0000:00:02.0: BAR 2 [mem]\n[    9.3] pci x\n",
                "start",
                "stands still before lines of pci",
            ),
            (
                "[    1.1] ata1: SATA max UDMA/133\n[    6.9] ata1.00: qc timeout\n[   17.1] ata1.00: failed to IDENTIFY\n",
                "start",
                "stands still before lines of ata1.00",
            ),
        ],
        other: (
            "[    0.7] x: y\n[    1.1] Run /init as init process\n[   31.1] random: crng init done\n[   61.1] random: x\n",
            "stands still",
        ),
    },
    Kind {
        name: "a counter of steal that falls",
        texts: [
            (
                "steal column of /proc/stat, per second:\n-5433\n-8812\n-120\n-7712\n",
                "message",
                "counter of stolen time is wrong",
            ),
            (
                "cpu  10 0 10 100 0 0 0 400 0 0\ncpu0 10 0 10 100 0 0 0 400 0 0\ncpu  20 0 10 190 0 0 0 300 0 0\ncpu0 20 0 10 190 0 0 0 300 0 0\n",
                "message",
                "counter of stolen time is wrong",
            ),
        ],
        other: (
            "cpu  10 0 10 100 0 0 0 300 0 0\ncpu0 10 0 10 100 0 0 0 300 0 0\ncpu  20 0 10 190 0 0 0 400 0 0\ncpu0 20 0 10 190 0 0 0 400 0 0\n",
            "counter of stolen time",
        ),
    },
    Kind {
        name: "steal in words",
        texts: [
            (
                "Since this morning `top` shows 62% steal and everything crawls.\n",
                "contention",
                "gives the guest's processors to others",
            ),
            (
                "The droplet is slow, CPU steal is 35 % most of the day.\n",
                "contention",
                "gives the guest's processors to others",
            ),
        ],
        other: ("If steal is above 10% you should talk to your provider.\n", "gives the guest"),
    },
    Kind {
        name: "the old rows of perf top",
        texts: [
            (
                "samples  pcnt function  DSO\n 9121.00 61.2% native_read_tsc  [kernel.kallsyms]\n 312.00 4.7% foo [kernel.kallsyms]\n 211.00 1.0% bar /usr/bin/app\n",
                "undecided",
                "native_read_tsc",
            ),
            (
                "9121.00 51.2% hypercall_page  [kernel.kallsyms]\n 312.00 4.7% foo [kernel.kallsyms]\n 211.00 1.0% bar /usr/bin/app\n",
                "undecided",
                "hypercall_page",
            ),
        ],
        other: ("9121 51.2% of all\n 312 4.7% are red\n 211 1.0% are blue\n", "profile"),
    },
    Kind {
        name: "names of known costs",
        texts: [
            (
                "perf shows handle_ept_violation \u{2192} kvm_mmu_faultin_pfn \u{2192} hva_to_pfn\n",
                "undecided",
                "names functions by which KVM maps memory",
            ),
            (
                "strace says that all of it is one VFIO_IOMMU_MAP_DMA, what now?\n",
                "undecided",
                "mapping of the VM's memory for a passed-through device",
            ),
        ],
        other: ("My VM is slow, what now?\n", "names"),
    },
];

#[test]
fn kinds_of_posts_have_an_honest_answer() {
    for kind in &KINDS {
        let folder = tempfile::tempdir().unwrap();
        for (text, id, says) in kind.texts {
            fs::write(folder.path().join("input"), text).unwrap();
            let report = run(folder.path(), "explain input --format json")
                .unwrap_or_else(|refusal| panic!("{}: {text}: {refusal}", kind.name));
            assert_eq!(report["verdict"]["id"], id, "{}: {text}", kind.name);
            let said = report["verdict"]["says"].as_str().unwrap();
            assert!(said.contains(says), "{}: {text}: {said}", kind.name);
            let words =
                said.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric));
            assert!(words.count() <= super::MOST_WORDS, "{}: {said}", kind.name);
            // Each says what to do or to measure next.
            let shown = execute(folder.path(), "explain input").unwrap();
            assert!(shown.contains("next: ") || shown.contains("do: "), "{}: {shown}", kind.name);
        }
        let (text, unsaid) = kind.other;
        fs::write(folder.path().join("input"), text).unwrap();
        let shown = match execute(folder.path(), "explain input --format json") {
            Ok(report) => report,
            // A refusal names what to run.
            Err(refusal) => {
                assert!(refusal.contains("perf kvm stat record"), "{}: {refusal}", kind.name);
                continue;
            }
        };
        assert!(!shown.contains(unsaid), "{}: {text}: {shown}", kind.name);
    }
}
