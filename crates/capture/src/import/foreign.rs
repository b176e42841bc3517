//! Texts of other tools that hold no exits: what they are, so that they are refused by name.

/// What to record in place of a tool's output.
macro_rules! exits {
    () => {
        ": record `perf kvm stat record -a sleep 10` on the host beside it"
    };
}

/// What to do with a benchmark's log.
macro_rules! results {
    () => {
        ": `vmtax explain` takes a folder of logs by kind of VM (RESULTS/network/iperf/snp-vhost/udp/...), or a table (workload,category,metric,value)"
    };
}

/// What must stand in the text, in this order, and what it then is.
const TOOLS: &[(&[&str], &str)] = &[
    (
        &["split lock detection:", "took a split_lock trap"],
        concat!(
            "a kernel's log of split locks, each of which delays the named thread: find the program that accesses memory across cache lines, or boot the host with split_lock_detect=off (the sysctl kernel.split_lock_mitigate=0 ends the delay alone); the log has no exits",
            exits!()
        ),
    ),
    (
        &["split lock detection:", "took a bus_lock trap"],
        concat!("a kernel's log of bus locks, which has no exits", exits!()),
    ),
    (
        &["of event 'kvm:kvm_exit'", "Overhead", "Symbol"],
        "perf report's text of kvm_exit by function, which has no exit reasons: run `perf report --stdio -s trace` on the same perf.data, or give vmtax the perf.data itself",
    ),
    (&["CPU", "%usr", "%sys", "%idle"], concat!("mpstat's output, which has no exits", exits!())),
    (
        &["\"sysstat\"", "\"cpu-load\""],
        concat!("mpstat's output in JSON, which has no exits", exits!()),
    ),
    (
        &["pidstat | grep"],
        concat!(
            "rows of pidstat without their titles, which say what its columns are: `pidstat -t -p PID` of the VMM, whole, has %wait of its vCPUs and what its vhost threads take (`pidstat -t -p TID` of a vhost-PID kernel thread): those that take no processor are not what limits a network; it has no exits",
            exits!()
        ),
    ),
    (
        &["PID", "%usr", "%guest", "Command"],
        concat!("pidstat's output, which has no exits", exits!()),
    ),
    (&["Avg_MHz", "Busy%", "Bzy_MHz"], concat!("turbostat's output, which has no exits", exits!())),
    (
        &["% time", "usecs/call", "syscall"],
        concat!("strace's table of system calls, which has no exits", exits!()),
    ),
    (&["----total-", "usage----"], concat!("dstat's output, which has no exits", exits!())),
    (&["MemTotal:", "MemFree:"], concat!("/proc/meminfo, which has no exits", exits!())),
    (&["cpu ", "intr ", "ctxt ", "btime "], concat!("/proc/stat, which has no exits", exits!())),
    (&["<domain", "type="], "libvirt's XML of a VM: `vmtax doctor FILE` checks it"),
    (
        &["Marking TSC unstable"],
        concat!(
            "a kernel's log in which the TSC is marked unstable: the guest has another clock, and if that is hpet or acpi_pm each reading is an exit: look at /sys/devices/system/clocksource/clocksource0/current_clocksource in it, and run `vmtax doctor` there; the log has no exits",
            exits!()
        ),
    ),
    (
        &["Switched to clocksource acpi_pm"],
        concat!(
            "a kernel's log of a guest whose clock is the ACPI PM timer: each reading is an exit, and kvm-clock or tsc needs none (`vmtax doctor` in the guest says more); the log has no exits",
            exits!()
        ),
    ),
    (
        &["Switched to clocksource hpet"],
        concat!(
            "a kernel's log of a guest whose clock is the HPET: each reading is an exit, and kvm-clock or tsc needs none (`vmtax doctor` in the guest says more); the log has no exits",
            exits!()
        ),
    ),
    (&["Linux version", "Command line:"], concat!("a kernel's log, which has no exits", exits!())),
    (&["%user", "%system", "%idle"], concat!("sar's output, which has no exits", exits!())),
    (&["CPU", "intr/s"], concat!("mpstat's output, which has no exits", exits!())),
    (&["Device", "r/s", "w/s", "%util"], concat!("iostat's output, which has no exits", exits!())),
    (
        &["procs", "memory", "swap", "io", "system", "cpu"],
        concat!("vmstat's output, which has no exits", exits!()),
    ),
    (
        &["K total memory", "K used memory"],
        concat!("vmstat's output, which has no exits", exits!()),
    ),
    (
        &["# hostname", "interval", "timestamp"],
        concat!("sadf's output, which has no exits", exits!()),
    ),
    (&["top - ", "load average", "%Cpu(s)"], concat!("top's output, which has no exits", exits!())),
    (
        &["CPU0", "LOC:", "Local timer interrupts"],
        concat!("/proc/interrupts, which has no exits", exits!()),
    ),
    (
        &["Client connecting to", "Interval", "Bandwidth"],
        concat!("a log of iperf (version 2), which has no exits", results!()),
    ),
    (
        &["[ ID]", "Interval", "Transfer"],
        concat!("iperf3's log without the receiver's line, which has no exits", results!()),
    ),
    (
        &["Connecting to host", "port"],
        concat!("iperf3's log without the receiver's line, which has no exits", results!()),
    ),
    (&["bytes from", "icmp_seq=", "time="], concat!("ping's log, which has no exits", results!())),
    (
        &["Type", "Ops/sec", "Hits/sec"],
        concat!("memtier_benchmark's log, which has no exits", results!()),
    ),
    (
        &["Running", "test @", "threads and"],
        concat!("wrk's log without its end, which has no exits", results!()),
    ),
    (&["HTTP/1.", "\" 200 "], concat!("a web server's access log, which has no exits", results!())),
    (&["rw=", "ioengine=", "iodepth="], concat!("fio's log, which has no exits", results!())),
    (
        &["\"fio version\"", "\"jobs\""],
        concat!("fio's log in JSON, which has no exits", results!()),
    ),
    (
        &["Running the test with following options"],
        concat!("sysbench's log, which has no exits", results!()),
    ),
    (
        &["MIGRATED", " TEST from ", "Throughput"],
        concat!("netperf's log, which has no exits", results!()),
    ),
    (&["stress-ng:", "bogo ops"], concat!("stress-ng's log, which has no exits", results!())),
    (
        &["requests completed in", "parallel clients"],
        concat!("redis-benchmark's log, which has no exits", results!()),
    ),
    (&["Benchmark 1", "Time (mean"], concat!("hyperfine's output, which has no exits", results!())),
    (
        &["checksumming:", "tcp-segmentation-offload:"],
        concat!(
            "ethtool's list of offloads, which says something where a VM's tap has none",
            exits!()
        ),
    ),
    (
        &["Per-node process memory usage"],
        "numastat's table, which says something where a VMM is named in it: `numastat -p PID` of the VMM; `vmtax doctor` on the host compares its memory with its vCPUs",
    ),
    (
        &["Disassembly of section"],
        "perf annotate's text: give it to `vmtax import --guest-instructions`, beside a recording",
    ),
    (
        &["Samples: ", " of event ", "[percent: "],
        "perf annotate's text: give it to `vmtax import --guest-instructions`, beside a recording",
    ),
    (
        &["Performance counter stats for"],
        "perf stat's text, which has no exits: give it to `vmtax import --stats`, beside a recording",
    ),
    (
        &["time", "counts", "unit", "events"],
        "perf stat's text in intervals (-I), which has no exits by reason: without -I, give it to `vmtax import --stats`, beside a recording",
    ),
    (
        &["\"counter-value\"", "\"event\""],
        "perf stat's output in JSON, which has no exits: as text or CSV (-x,), give it to `vmtax import --stats`, beside a recording",
    ),
    (
        &["Task", "Runtime ms", "delay ms"],
        "perf sched's table of latencies, which has no exits: record both at once, `perf record -a -e 'kvm:*' -e sched:sched_switch`",
    ),
    (
        &["time", "cpu", "task name", "wait time", "sch delay"],
        "perf sched's history of tasks, which has no exits: record both at once, `perf record -a -e 'kvm:*' -e sched:sched_switch`",
    ),
    (
        &["Summary of events:", "syscall", "calls"],
        concat!("perf trace's summary, which has no exits", exits!()),
    ),
    (
        &["# Overhead", "Symbol"],
        "perf report's text, which has no exits: `vmtax explain FILE` reads it alone, `vmtax import --host-profile` or `--guest-profile` beside a recording",
    ),
    (
        &["# Children", "Self", "Symbol"],
        "perf report's text, which has no exits: `vmtax explain FILE` reads it alone, `vmtax import --host-profile` or `--guest-profile` beside a recording",
    ),
    (
        &["kvm:kvm_exit: "],
        "perf script's text without threads or times: print it with perf script -F comm,pid,tid,cpu,time,event,trace",
    ),
    (
        &["ppoll([{fd=", "events=POLLIN"],
        concat!(
            "strace's lines of system calls, of which each ppoll is a turn of a loop: `strace -f -c -p PID` counts them by thread, `top -H -p PID` names the thread that is busy; they are no exits",
            exits!()
        ),
    ),
    (
        &["ioctl(", "KVM_RUN", ") = "],
        concat!(
            "strace's lines of KVM_RUN, which are the exits to the VMM alone, without reasons",
            exits!()
        ),
    ),
    (
        &[": count", "distribution", "|"],
        concat!(
            "a histogram of bcc's tools, which names no thread: `perf sched record`, then `perf sched latency` says what each vCPU waited, and `vmtax explain` reads it; exits",
            exits!()
        ),
    ),
    (
        &["contended", "total wait", "caller"],
        concat!(
            "perf lock's table by caller, which names no thread: with -t `vmtax explain` reads it; locks are no exits",
            exits!()
        ),
    ),
    (
        &["Sampling at ", " Hertz of "],
        "stacks of bcc's profile, which with -f it prints on a line each: `vmtax explain` reads those",
    ),
    (
        &["PID", "NAME", "CPU", "REFERENCE", "MISS", "HIT%"],
        concat!("llcstat's table, which has no exits", exits!()),
    ),
    (
        &["avg10=", "avg60=", "total="],
        concat!("pressure stall information, which names no VM and has no exits", exits!()),
    ),
    (
        &["virtio_pci", "negotiated features:"],
        concat!(
            "a BSD guest's kernel log of virtio devices, which has no exits: a disk whose negotiated features lack RingIndirect takes several entries of its ring for each request, so that few are under way at once (QEMU: queue-size=); one with `irq N` in place of MSI-X has an exit for each interrupt, which reads its cause",
            exits!()
        ),
    ),
    (
        &["cores: ", "memory: ", "net0: ", "ostype: "],
        "Proxmox's configuration of a VM, which `vmtax doctor FILE` checks",
    ),
    (
        &["GRUB_CMDLINE_LINUX"],
        "GRUB's settings, whose kernel's command line says what is asked for: `vmtax doctor` on that machine checks what is in use (of a host and of a guest), and `perf kvm stat record -a sleep 10` on the host records exits",
    ),
    (
        &["Id ", "Name", "State", "-----", "running"],
        "virsh's list of VMs: `virsh dumpxml VM` has each VM's settings, `vmtax doctor FILE` checks them, and `perf kvm stat record -a sleep 10` on the host records exits",
    ),
    (
        &["VCPU", "CPU Affinity"],
        "virsh's list of vCPUs: `virsh dumpxml VM` has where they run and more, and `vmtax doctor FILE` checks it",
    ),
    (
        &["total time:", "downtime:", "transferred ram:"],
        concat!(
            "QEMU's `info migrate`, which has no exits: what the migration's threads do, `perf record -g -t TID` of live_migration says",
            exits!()
        ),
    ),
    (
        &["IOPS=", "BW=", "clat"],
        concat!("fio's log without its first lines, which has no exits", results!()),
    ),
    (&["[fentry:", "]:"], concat!("bpftrace's counts of functions, which are no exits", exits!())),
];

/// What a text is, where a tool is known that writes such.
pub(super) fn tool(text: &str) -> Option<&'static str> {
    let has = |words: &[&str]| {
        let mut rest = text;
        words.iter().all(|word| match rest.find(word) {
            Some(at) => {
                rest = &rest[at + word.len()..];
                true
            }
            None => false,
        })
    };
    TOOLS.iter().find(|(words, _)| has(words)).map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_recognised_by_their_output() {
        for (text, name) in [
            (
                "Linux 6.8.0 (host)\n\n10:00:01 CPU %usr %nice %sys %iowait %irq %soft %steal %guest %gnice %idle\n",
                "mpstat",
            ),
            (
                "Connecting to host 172.44.0.2, port 7175\n[ ID] Interval           Transfer     Bitrate\n",
                "iperf",
            ),
            ("72 bytes from 172.44.0.2: icmp_seq=297 ttl=64 time=0.437 ms\n", "ping"),
            ("Running 10s test @ http://172.44.0.2\n  2 threads and 10 connections\n", "wrk"),
            (" Performance counter stats for 'system wide':\n", "perf stat"),
            (
                "#           time             counts unit events\n     1.001 24,113 kvm:kvm_exit\n",
                "perf stat",
            ),
            ("r: (g=0): rw=randread, bs=4096B, ioengine=libaio, iodepth=32\nfio-3.36\n", "fio"),
            ("{\n \"sysstat\": {\"hosts\": [{\"statistics\": [{\"cpu-load\": []}]}]}}\n", "mpstat"),
            (
                "  Task                  |   Runtime ms  |  Count   | Avg delay ms    |\n",
                "perf sched",
            ),
            ("% time     seconds  usecs/call     calls    errors syscall\n", "strace"),
            (
                "[pid 1] ppoll([{fd=3, events=POLLIN}], 1, {tv_sec=0}, NULL, 8) = 0 (Timeout)\n",
                "strace",
            ),
            ("cores: 4\nmemory: 8192\nnet0: virtio=AA\nostype: l26\n", "Proxmox"),
            (
                "     usecs               : count     distribution\n         0 -> 1          : 4      |**  |\n",
                "a histogram",
            ),
            (
                "[    1.69] clocksource: Switched to clocksource acpi_pm\n",
                "a kernel's log of a guest whose clock is the ACPI PM timer",
            ),
            (
                "[    0.00] Linux version 3.10\n[    0.00] Command line: x\n[    0.35] tsc: Marking TSC unstable due to TSCs unsynchronized\n",
                "a kernel's log in which the TSC is marked unstable",
            ),
        ] {
            assert!(tool(text).is_some_and(|what| what.starts_with(name)), "{text}");
        }
        assert_eq!(tool("hello world\n"), None);
    }
}
