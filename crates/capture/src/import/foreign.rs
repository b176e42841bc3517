//! Texts of other tools that hold no exits: what they are, so that they are refused by name.

/// What must stand in the text, in this order, and what it then is.
const TOOLS: &[(&[&str], &str)] = &[
    (&["CPU", "%usr", "%sys", "%idle"], "mpstat's output, which has no exits"),
    (&["%user", "%system", "%idle"], "sar's output, which has no exits"),
    (&["Device", "r/s", "w/s", "%util"], "iostat's output, which has no exits"),
    (&["procs", "memory", "swap", "io", "system", "cpu"], "vmstat's output, which has no exits"),
    (
        &["[ ID]", "Interval", "Transfer"],
        "iperf's log, which has no exits: `vmtax explain` takes results as a table (workload,category,metric,value)",
    ),
    (
        &["bytes from", "icmp_seq=", "time="],
        "ping's log, which has no exits: `vmtax explain` takes results as a table (workload,category,metric,value)",
    ),
    (
        &["Type", "Ops/sec", "Hits/sec"],
        "memtier_benchmark's log, which has no exits: `vmtax explain` takes results as a table (workload,category,metric,value)",
    ),
    (
        &["Running", "test @", "threads and"],
        "wrk's log, which has no exits: `vmtax explain` takes results as a table (workload,category,metric,value)",
    ),
    (
        &["Percent", "Disassembly of"],
        "perf annotate's text: give it to `vmtax import --guest-instructions`, beside a recording",
    ),
    (
        &["Performance counter stats for"],
        "perf stat's text, which has no exits: give it to `vmtax import --stats`, beside a recording",
    ),
    (
        &["# Overhead", "Symbol"],
        "perf report's text, which has no exits: give its perf.data to `vmtax import --host-profile` or `--guest-profile`",
    ),
    (
        &["VM-EXIT", "Samples", "Samples%", "Time%"],
        "the text of perf kvm stat report: give its recording (perf.data.guest) itself",
    ),
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
    fn tools_are_known_by_what_they_write() {
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
