//! Logs of benchmark programs -> the value that each is run for, or several where a program measures several things.
//!
//! iperf3 (text and JSON; what the receiver got), ping (mean round trip), memtier_benchmark, wrk, NPB, CVM_eval's
//! kernel module `bench` (what one exit takes, by instruction), and the lines
//! `Time: ...` and `Total throughput ...` that CVM_eval's programs print. A log says nothing of the VM that it is of; its
//! path does, which is the caller's.
//!
//! Left out on purpose: everything else that a log holds. `vmtax bench` runs these programs itself and keeps all of it.

use crate::program::{
    OutputRefusal, ProgramReading, after, iperf, npb, number, ping, redis, unit, wrk,
};

/// What a log says.
#[derive(Clone, Debug, PartialEq)]
pub struct LogText {
    /// What wrote it; empty where only its path says that.
    pub program: &'static str,
    /// What was measured, of which part where the program measures several.
    pub readings: Vec<(String, ProgramReading)>,
}

/// Finds the value in a text that is this program's.
type Find = fn(&str) -> Result<ProgramReading, OutputRefusal>;

/// Programs, what must stand in the log of each, and its value.
const LOGS: [(&str, &[&str], Find); 8] = [
    ("iperf-udp", &["[ ID] Interval", "Total Datagrams"], iperf::text_throughput),
    ("iperf-tcp", &["[ ID] Interval", "Bitrate"], iperf::text_throughput),
    ("iperf", &["\"test_start\"", "\"intervals\""], iperf::json_throughput),
    ("ping", &["packets transmitted", "bytes of data"], ping::latency),
    ("memtier", &["Type", "Ops/sec", "Hits/sec", "Totals"], redis::memtier_rate),
    ("wrk", &["Running", "test @", "threads and", "connections"], wrk::rate),
    ("npb", &["NAS Parallel Benchmarks", "Mop/s total"], npb::speed),
    ("throughput", &[EXAMPLES], examples),
];
const EXAMPLES: &str = "Total throughput (examples/sec):";

/// Reads a log. `None` if it is none that is known.
///
/// # Errors
/// What is missing: the log was cut, or the program failed.
pub fn read(text: &str) -> Option<Result<LogText, OutputRefusal>> {
    if let Some(exits) = bench_module(text) {
        return Some(exits);
    }
    let one = |program, reading| LogText { program, readings: vec![(String::new(), reading)] };
    let is = |words: &[&str]| words.iter().all(|word| text.contains(word));
    if let Some((program, _, find)) = LOGS.iter().find(|(_, words, _)| is(words)) {
        return Some(
            find(text).and_then(ProgramReading::possible).map(|reading| one(program, reading)),
        );
    }
    // Many programs print such a line; what it is of, its path says.
    let time = text.lines().find_map(|line| line.strip_prefix("Time: "))?;
    let seconds = seconds(time.split_whitespace().next()?).ok()?;
    let reading = ProgramReading::lower("time", unit::SECONDS, seconds).possible().ok()?;
    Some(Ok(one("", reading)))
}

/// Lines of the kernel's log that CVM_eval's module `bench` writes in the guest, those of its last run:
/// `[  104.1] bench: _cpuid_1, total_cycle 273312738, avg_cycle 2733, total_time 101228723, avg_time 1012`.
fn bench_module(text: &str) -> Option<Result<LogText, OutputRefusal>> {
    let said = |line: &str| line.split_once("bench: ").map(|(_, rest)| rest.trim().to_owned());
    let lines: Vec<String> = text.lines().filter_map(said).collect();
    if !lines.iter().any(|line| line.contains(", avg_cycle ") && line.contains(", avg_time ")) {
        return None;
    }
    let begins = lines.iter().rposition(|line| line.contains("Initializing"));
    let run = lines.get(begins.map_or(0, |at| at + 1)..).unwrap_or_default();
    if !run.iter().any(|line| line.starts_with("done")) {
        return Some(Err(OutputRefusal::missing("the line \"bench: done\"")));
    }
    let reading = |line: &String| {
        let (name, rest) = line.split_once(',')?;
        let word = rest.split_once("avg_time ")?.1.split([',', ' ']).next()?;
        let reading =
            ProgramReading::lower("time", unit::NANOSECONDS, number("avg_time", word).ok()?);
        Some((name.trim().trim_start_matches('_').to_owned(), reading.possible().ok()?))
    };
    Some(Ok(LogText { program: "exit", readings: run.iter().filter_map(reading).collect() }))
}

/// `7.30`, or `00:02.97`.
fn seconds(word: &str) -> Result<f64, OutputRefusal> {
    let (minutes, rest) = word.split_once(':').unwrap_or(("0", word));
    Ok(number("minutes", minutes)? * 60.0 + number("seconds", rest)?)
}

fn examples(text: &str) -> Result<ProgramReading, OutputRefusal> {
    let rate = number(EXAMPLES, after(text, EXAMPLES)?)?;
    Ok(ProgramReading::higher("throughput", unit::PER_SECOND, rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UDP: &str = "[ ID] Interval           Transfer     Bitrate         Total Datagrams\n\
        [SUM]   9.00-10.00  sec   942 MBytes  7.90 Gbits/sec  676437\n\
        [ ID] Interval           Transfer     Bitrate         Jitter    Lost/Total Datagrams\n\
        [  5]   0.00-10.21  sec  83.8 MBytes  68.9 Mbits/sec  0.159 ms  746983/807198 (93%)  receiver\n\
        [SUM]   0.00-10.00  sec  9.08 GBytes  7.80 Gbits/sec  0.000 ms  0/6677361 (0%)  sender\n\
        [SUM]   0.00-10.21  sec   719 MBytes   591 Mbits/sec  0.134 ms  6160580/6676821 (92%)  receiver\n\niperf Done.\n";
    const PING: &str = "PING 172.44.0.2 (172.44.0.2) 64(92) bytes of data.\n\
        72 bytes from 172.44.0.2: icmp_seq=1 ttl=64 time=0.579 ms\n\n\
        300 packets transmitted, 300 received, 0% packet loss, time 31099ms\n\
        rtt min/avg/max/mdev = 0.273/0.356/0.829/0.064 ms\n";
    const MEMTIER: &str = "Type         Ops/sec     Hits/sec   Misses/sec    Avg. Latency\n\
        Sets        47686.59          ---          ---        62.87207\n\
        Totals     524028.51         0.00    476341.91        62.44752\n";
    const WRK: &str = "Running 10s test @ http://172.44.0.2\n  2 threads and 10 connections\n\
        \x20 4674 requests in 10.01s, 1.16MB read\nRequests/sec:    467.10\nTransfer/sec:    118.60KB\n";
    const NPB: &str = " NAS Parallel Benchmarks (NPB3.4-OMP) - BT Benchmark\n\
        \x20Verification being performed for class A\n Class           =                        A\n\
        \x20Mop/s total     =                  4185.36\n Verification    =               SUCCESSFUL\n";

    #[test]
    fn each_program_has_its_value() {
        for (text, program, value) in [
            (UDP, "iperf-udp", 591e6),
            (PING, "ping", 356.0),
            (MEMTIER, "memtier", 524_028.51),
            (WRK, "wrk", 467.1),
            (NPB, "npb", 4185.36),
            ("Total throughput (examples/sec): 9.25\n", "throughput", 9.25),
            ("Fra:1\nTime: 00:02.97 (Saving: 00:00.07)\n", "", 2.97),
            ("Time: 7.30 seconds\n", "", 7.3),
        ] {
            let log = read(text).unwrap().unwrap();
            let [(_, reading)] = &log.readings[..] else { panic!("{text}") };
            assert_eq!((log.program, reading.value), (program, value), "{text}");
        }
    }

    #[test]
    fn iperf_counts_what_was_received() {
        let json =
            |end: &str| format!(r#"{{"start":{{"test_start":{{}}}},"intervals":[],"end":{end}}}"#);
        let value = |end: &str| read(&json(end)).unwrap().map(|log| log.readings[0].1.value);
        let sum = r#""sum":{"bits_per_second":800,"packets":10,"lost_packets":4}"#;
        assert_eq!(value(&format!("{{{sum}}}")), Ok(480.0));
        assert_eq!(
            value(&format!(r#"{{{sum},"sum_received":{{"bits_per_second":470}}}}"#)),
            Ok(470.0)
        );
        assert!(value(r#"{"sum":{"bits_per_second":800}}"#).is_err());
        assert!(value(r#"{"sum":{"bits_per_second":800,"packets":4,"lost_packets":9}}"#).is_err());
    }

    #[test]
    fn the_module_bench_has_a_value_for_each_exit() {
        let log = "[1.0] bench: Initializing\n[1.1] bench: _cpuid_1, total_cycle 9, avg_cycle 9, total_time 9, avg_time 9\n\
            [2.0] bench: Initializing\n[2.1] bench: _cpuid_1, total_cycle 24, avg_cycle 2734, total_time 10, avg_time 1012\n\
            [2.2] bench: snp_cpuid_1, total_cycle 24, avg_cycle 734, total_time 10, avg_time 312\n[2.3] bench: done\n";
        let readings = read(log).unwrap().unwrap().readings;
        let values: Vec<(&str, f64)> =
            readings.iter().map(|(part, r)| (&**part, r.value)).collect();
        assert_eq!(values, [("cpuid_1", 1012.0), ("snp_cpuid_1", 312.0)]);
        assert!(read(&log[..log.len() - 20]).unwrap().is_err());
    }

    #[test]
    fn cut_logs_are_refused_and_others_are_none() {
        for text in [&UDP[..UDP.len() - 60], &PING[..150], &WRK[..80]] {
            assert!(read(text).is_some_and(|reading| reading.is_err()), "{text}");
        }
        let unverified = NPB.replace("SUCCESSFUL", "UNSUCCESSFUL");
        assert!(matches!(read(&unverified), Some(Err(OutputRefusal::Unverified(_)))));
        assert_eq!(read("hello\n"), None);
    }
}
