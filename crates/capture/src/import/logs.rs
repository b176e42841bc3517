//! Logs of benchmark programs -> the value that each is run for, or several where a program measures several things.
//!
//! iperf3 (text and JSON; what the receiver got), ping (mean round trip), memtier_benchmark, wrk, NPB, CVM_eval's
//! kernel module `bench` (what one exit takes, by instruction), and the lines
//! `Time: ...` and `Total throughput ...` that CVM_eval's programs print. A log says nothing of the VM that it is of; its
//! path does, which is the caller's.
//!
//! Left out on purpose: everything else that a log holds. `vmtax bench` runs these programs itself and keeps all of it.

use serde_json::Value;
use vmtax_events::Better;

/// What a log says.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// What wrote it.
    pub program: &'static str,
    /// Which of its measurements, where it makes several.
    pub part: String,
    /// What was measured.
    pub metric: &'static str,
    /// In which unit.
    pub unit: &'static str,
    /// How much.
    pub value: f64,
    /// Which values are good news.
    pub better: Better,
}

/// Finds the value in a text that is this program's, or says what is missing.
type Find = fn(&str) -> Result<f64, &'static str>;

/// A program, what must stand in its log, and where the value is.
struct Log {
    program: &'static str,
    words: &'static [&'static str],
    metric: &'static str,
    unit: &'static str,
    better: Better,
    find: Find,
}

const LOGS: [Log; 9] = [
    Log {
        program: "iperf-udp",
        words: &["[ ID] Interval", "Total Datagrams"],
        metric: "throughput",
        unit: "bit/s",
        better: Better::Higher,
        find: iperf,
    },
    Log {
        program: "iperf-udp",
        words: &["[ ID] Interval", "Lost/Total Datagrams"],
        metric: "throughput",
        unit: "bit/s",
        better: Better::Higher,
        find: iperf,
    },
    Log {
        program: "iperf-tcp",
        words: &["[ ID] Interval", "Bitrate"],
        metric: "throughput",
        unit: "bit/s",
        better: Better::Higher,
        find: iperf,
    },
    Log {
        program: "iperf",
        words: &["\"test_start\"", "\"intervals\""],
        metric: "throughput",
        unit: "bit/s",
        better: Better::Higher,
        find: iperf_json,
    },
    Log {
        program: "ping",
        words: &["packets transmitted", "bytes of data"],
        metric: "latency",
        unit: "us",
        better: Better::Lower,
        find: ping,
    },
    Log {
        program: "memtier",
        words: &["Type", "Ops/sec", "Hits/sec", "Totals"],
        metric: "rate",
        unit: "1/s",
        better: Better::Higher,
        find: memtier,
    },
    Log {
        program: "wrk",
        words: &["Running", "test @", "threads and", "connections"],
        metric: "rate",
        unit: "1/s",
        better: Better::Higher,
        find: wrk,
    },
    Log {
        program: "npb",
        words: &["NAS Parallel Benchmarks", "Mop/s total"],
        metric: "speed",
        unit: "Mop/s",
        better: Better::Higher,
        find: npb,
    },
    Log {
        program: "throughput",
        words: &["Total throughput (examples/sec):"],
        metric: "throughput",
        unit: "1/s",
        better: Better::Higher,
        find: examples,
    },
];

/// Reads a log. `None` if it is none that is known.
///
/// # Errors
/// What is missing: the log was cut, or the program failed.
pub fn read(text: &str) -> Option<Result<Vec<Reading>, &'static str>> {
    if let Some(exits) = bench_module(text) {
        return Some(exits);
    }
    let is = |log: &&Log| log.words.iter().all(|word| text.contains(word));
    if let Some(log) = LOGS.iter().find(is) {
        let reading = |value| {
            vec![Reading {
                program: log.program,
                part: String::new(),
                metric: log.metric,
                unit: log.unit,
                value,
                better: log.better,
            }]
        };
        return Some((log.find)(text).map(reading));
    }
    // Many programs print such a line; what it is of, its path says.
    let time = text.lines().find_map(|line| line.strip_prefix("Time: "))?;
    let value = seconds(time.split_whitespace().next()?)?;
    Some(Ok(vec![Reading {
        program: "",
        part: String::new(),
        metric: "time",
        unit: "s",
        value,
        better: Better::Lower,
    }]))
}

/// Lines of the kernel's log that CVM_eval's module `bench` writes in the guest, those of its last run:
/// `[  104.1] bench: _cpuid_1, total_cycle 273312738, avg_cycle 2733, total_time 101228723, avg_time 1012`.
fn bench_module(text: &str) -> Option<Result<Vec<Reading>, &'static str>> {
    let said = |line: &str| line.split_once("bench: ").map(|(_, rest)| rest.trim().to_owned());
    let lines: Vec<String> = text.lines().filter_map(said).collect();
    if !lines.iter().any(|line| line.contains(", avg_cycle ") && line.contains(", avg_time ")) {
        return None;
    }
    let begins = lines.iter().rposition(|line| line.contains("Initializing"));
    let run = lines.get(begins.map_or(0, |at| at + 1)..).unwrap_or_default();
    if !run.iter().any(|line| line.starts_with("done")) {
        return Some(Err("its line \"bench: done\" is missing: the log was cut"));
    }
    let reading = |line: &String| {
        let (name, rest) = line.split_once(',')?;
        let value = number(rest.split_once("avg_time ")?.1.split([',', ' ']).next()?)?;
        Some(Reading {
            program: "exit",
            part: name.trim().trim_start_matches('_').to_owned(),
            metric: "time",
            unit: "ns",
            value,
            better: Better::Lower,
        })
    };
    Some(Ok(run.iter().filter_map(reading).collect()))
}

/// `7.30`, or `00:02.97`.
fn seconds(word: &str) -> Option<f64> {
    let (minutes, rest) = word.split_once(':').unwrap_or(("0", word));
    let value = minutes.parse::<f64>().ok()? * 60.0 + rest.parse::<f64>().ok()?;
    sane(value)
}

fn sane(value: f64) -> Option<f64> {
    (value.is_finite() && value >= 0.0).then_some(value)
}

fn number(word: &str) -> Option<f64> {
    sane(word.parse().ok()?)
}

/// The receiver's line: of the sum where there are several streams.
fn iperf(text: &str) -> Result<f64, &'static str> {
    let missing = "the receiver's line is missing: the log was cut, or iperf3 failed";
    let received: Vec<&str> =
        text.lines().filter(|line| line.trim_end().ends_with("receiver")).collect();
    let sum = received.iter().find(|line| line.starts_with("[SUM]"));
    // A log of several streams that was cut before their sum still has a stream's line.
    let is_single = received.len() == 1 && !text.contains("[SUM]");
    let line = sum.or(received.first().filter(|_| is_single)).ok_or(missing)?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words
        .iter()
        .position(|word| word.ends_with("bits/sec"))
        .filter(|at| *at > 0)
        .ok_or(missing)?;
    let scale = match words[at] {
        "bits/sec" => 1.0,
        "Kbits/sec" => 1e3,
        "Mbits/sec" => 1e6,
        "Gbits/sec" => 1e9,
        _ => return Err(missing),
    };
    number(words[at - 1]).map(|value| value * scale).ok_or(missing)
}

/// What the receiver got. Without `sum_received` (UDP of older versions) `sum` counts what was sent, and how much of it was lost.
fn iperf_json(text: &str) -> Result<f64, &'static str> {
    let document: Value = serde_json::from_str(text).map_err(|_| "its JSON is cut")?;
    let field = |name: &str| document.pointer(&format!("/end/{name}"))?.as_f64();
    let of_sum = || {
        let (packets, lost) = (field("sum/packets")?, field("sum/lost_packets")?);
        let is_believable = packets > 0.0 && (0.0..=packets).contains(&lost);
        let rate = field("sum/bits_per_second").filter(|_| is_believable)?;
        Some(rate * (packets - lost) / packets)
    };
    let rate = field("sum_received/bits_per_second").or_else(of_sum);
    rate.and_then(sane).ok_or("end.sum_received.bits_per_second is missing: iperf3 failed")
}

fn ping(text: &str) -> Result<f64, &'static str> {
    let line = text.lines().find_map(|line| line.split_once("min/avg/max").map(|(_, rest)| rest));
    let times = line.and_then(|rest| rest.split_once("= ")).map(|(_, times)| times);
    let mean = times
        .filter(|times| times.contains(" ms"))
        .and_then(|times| number(times.split('/').nth(1)?));
    mean.map(|ms| ms * 1000.0)
        .ok_or("the line of round trips is missing: the log was cut, or no packet came back")
}

fn memtier(text: &str) -> Result<f64, &'static str> {
    let line = text.lines().rev().find_map(|line| line.trim_start().strip_prefix("Totals"));
    line.and_then(|rest| number(rest.split_whitespace().next()?))
        .ok_or("the line Totals is missing")
}

fn wrk(text: &str) -> Result<f64, &'static str> {
    let line = text.lines().find_map(|line| line.strip_prefix("Requests/sec:"));
    line.and_then(|rest| number(rest.trim()))
        .ok_or("the line Requests/sec is missing: the log was cut")
}

fn npb(text: &str) -> Result<f64, &'static str> {
    let verified =
        text.lines().any(|line| line.contains("Verification") && line.contains("SUCCESSFUL"));
    let line = text.lines().find(|line| line.trim_start().starts_with("Mop/s total"));
    let value = line.and_then(|line| number(line.split_once('=')?.1.trim()));
    value.filter(|_| verified).ok_or("its result is missing or not verified")
}

fn examples(text: &str) -> Result<f64, &'static str> {
    let line = text.lines().find_map(|line| line.strip_prefix("Total throughput (examples/sec):"));
    line.and_then(|rest| number(rest.trim())).ok_or("its throughput is no number")
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

    #[test]
    fn each_program_has_its_value() {
        for (text, program, value) in [
            (UDP, "iperf-udp", 591e6),
            (PING, "ping", 356.0),
            (MEMTIER, "memtier", 524_028.51),
            (WRK, "wrk", 467.1),
            ("Total throughput (examples/sec): 9.25\n", "throughput", 9.25),
            ("Fra:1\nTime: 00:02.97 (Saving: 00:00.07)\n", "", 2.97),
            ("Time: 7.30 seconds\n", "", 7.3),
        ] {
            let readings = read(text).unwrap().unwrap();
            let [reading] = &readings[..] else { panic!("{text}") };
            assert_eq!((reading.program, reading.value), (program, value), "{text}");
        }
    }

    #[test]
    fn iperf_counts_what_was_received() {
        let json =
            |end: &str| format!(r#"{{"start":{{"test_start":{{}}}},"intervals":[],"end":{end}}}"#);
        let value = |end: &str| read(&json(end)).unwrap().map(|readings| readings[0].value);
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
        let readings = read(log).unwrap().unwrap();
        let values: Vec<(&str, f64)> = readings.iter().map(|r| (&*r.part, r.value)).collect();
        assert_eq!(values, [("cpuid_1", 1012.0), ("snp_cpuid_1", 312.0)]);
        assert!(read(&log[..log.len() - 20]).unwrap().is_err());
    }

    #[test]
    fn cut_logs_are_refused_and_others_are_none() {
        for text in [&UDP[..UDP.len() - 60], &PING[..150], &WRK[..80]] {
            assert!(read(text).is_some_and(|reading| reading.is_err()), "{text}");
        }
        assert_eq!(read("hello\n"), None);
    }
}
