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
    (&["CPU", "%usr", "%sys", "%idle"], concat!("mpstat's output, which has no exits", exits!())),
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
    (&["fio-3.", "rw=", "iodepth="], concat!("fio's log, which has no exits", results!())),
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
        &["# Overhead", "Symbol"],
        "perf report's text, which has no exits: give it to `vmtax import --host-profile` or `--guest-profile`, beside a recording",
    ),
    (
        &["# Children", "Self", "Symbol"],
        "perf report's text, which has no exits: give it to `vmtax import --host-profile` or `--guest-profile`, beside a recording",
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
        ] {
            assert!(tool(text).is_some_and(|what| what.starts_with(name)), "{text}");
        }
        assert_eq!(tool("hello world\n"), None);
    }
}
