//! The line that a benchmark program prints for its result. Each is a row: what must stand in the line, its name, and where the value is.

use super::value::{Value, digits, number, value};

fn with_unit(number: f64, unit: &str) -> Option<Value> {
    Some(Value { number, unit: Some(unit.to_owned()) })
}

/// The first number behind these words, in this unit.
fn behind(line: &str, words: &str, unit: &str) -> Option<Value> {
    let (_, rest) = line.split_once(words)?;
    let word = rest.split_whitespace().find(|word| *word != "=" && *word != ":")?;
    with_unit(digits(word.trim_end_matches([',', ';']))?, unit)
}

/// The last number of the line, in this unit.
fn at_end(line: &str, unit: &str) -> Option<Value> {
    with_unit(number(line.split_whitespace().last()?)?, unit)
}

/// Seconds of `1min 4.6s`, `4.625s`, `312ms`.
fn seconds(text: &str) -> Option<f64> {
    let mut sum = 0.0;
    let mut is_time = false;
    for word in text.split_whitespace() {
        let (number, factor) = match word {
            _ if word.ends_with("min") => (word.strip_suffix("min")?, 60.0),
            _ if word.ends_with("ms") => (word.strip_suffix("ms")?, 1e-3),
            _ => (word.strip_suffix('s')?, 1.0),
        };
        sum += digits(number)? * factor;
        is_time = true;
    }
    is_time.then_some(sum)
}

/// The words that begin a line, without more than one space between them.
fn begins(line: &str, word: &str) -> bool {
    line.split_whitespace().next() == Some(word)
}

/// `inl_from_qemu 6856`, in cycles, of kvm-unit-tests (x86/vmexit.c).
fn vmexit(line: &str) -> Option<(String, Value)> {
    let (name, cycles) = line.split_once(' ')?;
    let is_known = EXITS.contains(&name) || OTHER_EXITS.contains(&name);
    let cycles: u32 = cycles.trim().parse().ok().filter(|_| is_known)?;
    Some((name.to_owned(), with_unit(cycles.into(), "cycles")?))
}

/// Names of its tests.
const EXITS: [&str; 10] = [
    "mov_from_cr8",
    "mov_to_cr8",
    "inl_from_pmtimer",
    "inl_from_qemu",
    "inl_from_kernel",
    "outl_to_kernel",
    "ple_round_robin",
    "wr_kernel_gs_base",
    "wr_tsc_adjust_msr",
    "rd_tsc_adjust_msr",
];
/// Names that other programs have too, with counts.
const OTHER_EXITS: [&str; 2] = ["cpuid", "vmcall"];

/// Whether a text has results of these tests; else the value with this label is none of them.
pub(super) fn is_of_tests(text: &str, label: &str) -> bool {
    !OTHER_EXITS.contains(&label) || EXITS.iter().any(|name| text.contains(name))
}

/// What a program's line says: what was measured, and the value.
pub(super) fn read(line: &str) -> Option<(String, Value)> {
    let named = |name: &str, found: Option<Value>| Some((name.to_owned(), found?));
    if let Some(found) = vmexit(line) {
        return Some(found);
    }
    // iperf and iperf3: each line of an interval, the receiver's apart.
    if line.starts_with('[') && line.contains(" sec ") && line.contains("/sec") {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| word.ends_with("its/sec"))?;
        let rate = digits(words.get(at.checked_sub(1)?)?)?;
        let name =
            match (line.contains("SUM"), line.ends_with("receiver"), line.ends_with("sender")) {
                (_, _, true) => "iperf, sender",
                (_, true, _) => "iperf, receiver",
                (true, ..) => "iperf, sum",
                _ => "iperf",
            };
        return named(name, with_unit(rate, words[at]));
    }
    if let Some((name, rest)) = line
        .split_once(" requests per second")
        .map(|(name, _)| name.rsplit_once(": ").unwrap_or((name, "")))
    {
        // redis-benchmark; ab has the number behind.
        if let Some(rate) = digits(rest.trim()) {
            return named(name.trim(), with_unit(rate, "requests/s"));
        }
    }
    if line.starts_with("Requests per second:") {
        return named("requests", behind(line, "Requests per second:", "requests/s"));
    }
    if line.starts_with("Requests/sec:") {
        return named("requests", behind(line, "Requests/sec:", "requests/s"));
    }
    if line.starts_with("events per second:") {
        return named("sysbench", behind(line, "events per second:", "events/s"));
    }
    if let Some((_, rest)) = line.split_once("transferred (") {
        return named("sysbench", value(rest.trim_end_matches(')')));
    }
    if line.starts_with("tps = ") {
        return named("pgbench", behind(line, "tps = ", "tps"));
    }
    if let Some((_, rest)) = line.split_once(" copied, ") {
        let (seconds, rate) = rest.rsplit_once(", ")?;
        return (seconds.contains('s')).then(|| named("dd", value(rate)))?;
    }
    if line.starts_with("Timing ") && line.contains(" seconds = ") {
        let (name, _) = line.split_once(':')?;
        return named(name, value(line.rsplit_once("= ")?.1));
    }
    if line.starts_with("rtt min/avg/max") || line.starts_with("round-trip min/avg/max") {
        let mean = line.split_once("= ")?.1.split('/').nth(1)?;
        return named("ping", with_unit(digits(mean)?, "ms"));
    }
    if line.starts_with("Startup finished in ") {
        return named(
            "boot",
            with_unit(seconds(line.rsplit_once("= ")?.1.trim_end_matches('.'))?, "s"),
        );
    }
    // zsh's time.
    if let Some((before, rest)) = line.split_once("% cpu ") {
        let total = rest.strip_suffix(" total")?;
        let time = match total.split_once(':') {
            Some((minutes, seconds)) => 60.0 * digits(minutes)? + digits(seconds)?,
            None => digits(total)?,
        };
        return before.contains(" user ").then(|| named("total", with_unit(time, "s")))?;
    }
    if let Some((_, time)) = line.split_once("(h:mm:ss or m:ss): ") {
        let parts: Option<Vec<f64>> = time.split(':').map(digits).collect();
        let time = parts?.iter().fold(0.0, |sum, part| 60.0 * sum + part);
        return named("elapsed", with_unit(time, "s"));
    }
    for name in ["Single-Core Score", "Multi-Core Score", "System Benchmarks Index Score"] {
        if line.starts_with(name) {
            return named(name, at_end(line, "points"));
        }
    }
    // 7-Zip's benchmark: the last number is the rating of compressing and decompressing.
    if begins(line, "Tot:") && line.split_whitespace().skip(1).all(|word| digits(word).is_some()) {
        return named("7-Zip", at_end(line, "MIPS"));
    }
    // STREAM: the best rate is first.
    for name in ["Copy:", "Scale:", "Add:", "Triad:"] {
        if begins(line, name) && line.split_whitespace().count() == 5 {
            return named(name.trim_end_matches(':'), behind(line, name, "MB/s"));
        }
    }
    // openssl speed: thousands of bytes a second by the size of the block.
    let words: Vec<&str> = line.split_whitespace().collect();
    let thousands = |word: &&str| word.strip_suffix('k').and_then(digits);
    if let [name @ .., _, _, _, _, last] = words.as_slice()
        && words[name.len()..].iter().all(|word| thousands(word).is_some())
        && let Some(first) = name.first()
    {
        let unnumbered: Vec<&str> =
            name.iter().copied().filter(|one| thousands(one).is_none()).collect();
        let name = if unnumbered.is_empty() { (*first).to_owned() } else { unnumbered.join(" ") };
        return Some((name, with_unit(thousands(last)? * 1e3, "B/s")?));
    }
    // fio: `read: IOPS=12.3k, BW=48.1MiB/s (50.4MB/s)(2886MiB/60001msec)`.
    if let Some((before, rest)) = line.split_once("IOPS=") {
        let rate = number(rest.split(',').next()?.trim())?;
        let name = before.trim_end_matches([':', ' ', ',']).trim();
        return named(if name.is_empty() { "IOPS" } else { name }, with_unit(rate, "IOPS"));
    }
    // Intel's Memory Latency Checker: `3:1 Reads-Writes :      105536.8`.
    if (line.starts_with("ALL Reads") || line.contains(" Reads-Writes"))
        && let Some((name, rate)) = line.rsplit_once(':')
    {
        return named(name.trim(), with_unit(digits(rate.trim())?, "MB/s"));
    }
    // criterion: the lower bound, the estimate and the upper bound.
    if let Some((name, rest)) = line.split_once("time:")
        && let Some(bounds) = rest.trim().strip_prefix('[').and_then(|rest| rest.split(']').next())
        && let [_, _, estimate, unit, _, _] = bounds.split_whitespace().collect::<Vec<_>>()[..]
    {
        let name = if name.trim().is_empty() { "time" } else { name.trim() };
        return named(name, value(&format!("{estimate} {unit}")));
    }
    if line.starts_with("T:") && line.contains(" Act:") {
        return named("cyclictest, worst", behind(line, "Max:", "us"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as iperf 2.1, iperf3 3.16, redis-benchmark 7, ab 2.4, wrk 4.2, sysbench 1.0, pgbench 16, dd 9, hdparm 9.65, ping 20240117, systemd-analyze 255, zsh 5.9,
    /// time 1.9, Geekbench 6, UnixBench 5, 7-Zip 23, STREAM 5.10, openssl 3.0, fio 3.36, cyclictest 2.6, Intel MLC 3.11a and criterion 0.5 print them.
    #[test]
    fn each_program_has_its_line() {
        for (line, expected) in [
            ("[  3]  0.0-10.0 sec  1.10 GBytes   941 Mbits/sec", "iperf 941 Mbits/sec"),
            (
                "[  5]   0.00-10.00  sec  10.9 GBytes  9.38 Gbits/sec                  receiver",
                "iperf, receiver 9.38 Gbits/sec",
            ),
            ("GET: 123456.79 requests per second, p50=0.215 msec", "GET 123456.79 requests/s"),
            ("Requests per second:    1234.56 [#/sec] (mean)", "requests 1234.56 requests/s"),
            ("Requests/sec:    467.10", "requests 467.1 requests/s"),
            ("events per second:  1207.05", "sysbench 1207.05 events/s"),
            ("102400.00 MiB transferred (20231.12 MiB/sec)", "sysbench 20231.12 MiB/sec"),
            ("tps = 1023.456 (without initial connection time)", "pgbench 1023.456 tps"),
            ("1073741824 bytes (1.1 GB, 1.0 GiB) copied, 2.1 s, 512 MB/s", "dd 512 MB/s"),
            (
                "Timing buffered disk reads: 512 MB in  3.00 seconds = 170.53 MB/sec",
                "Timing buffered disk reads 170.53 MB/sec",
            ),
            ("rtt min/avg/max/mdev = 0.273/0.356/0.829/0.064 ms", "ping 0.356 ms"),
            (
                "Startup finished in 1.5s (kernel) + 3.125s (userspace) = 1min 4.625s.",
                "boot 64.625 s",
            ),
            ("make -j8  21.04s user 4.41s system 260% cpu 9.755 total", "total 9.755 s"),
            ("Elapsed (wall clock) time (h:mm:ss or m:ss): 1:45.5", "elapsed 105.5 s"),
            ("inl_from_pmtimer 6770", "inl_from_pmtimer 6770 cycles"),
            ("Single-Core Score             1234", "Single-Core Score 1234 points"),
            (
                "System Benchmarks Index Score                       1705.5",
                "System Benchmarks Index Score 1705.5 points",
            ),
            ("Tot:             722   4120  29735", "7-Zip 29735 MIPS"),
            ("Triad:          12345.6     0.019     0.018     0.020", "Triad 12345.6 MB/s"),
            (
                "aes-256-gcm     412345.67k   912345.00k  1912345.67k  2512345.67k  2712345.00k  2742345.00k",
                "aes-256-gcm 2742345000 B/s",
            ),
            ("read: IOPS=12.5k, BW=48.1MiB/s (50.4MB/s)(2886MiB/60001msec)", "read 12500 IOPS"),
            (
                "T: 0 ( 1234) P:99 I:1000 C:  10000 Min:      3 Act:    5 Avg:    7 Max:     120",
                "cyclictest, worst 120 us",
            ),
            ("3:1 Reads-Writes :      105536.8", "3:1 Reads-Writes 105536.8 MB/s"),
            ("ALL Reads        :      73182.9", "ALL Reads 73182.9 MB/s"),
            (
                "boot/first              time:   [1.8367 ms 1.8681 ms 1.9014 ms]",
                "boot/first 1.8681 ms",
            ),
        ] {
            let found = read(line).map(|(name, value)| {
                format!("{name} {} {}", value.number, value.unit.unwrap_or_default())
            });
            assert_eq!(found.as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn other_lines_are_none() {
        for line in [
            "",
            "[",
            "Tot:",
            "Tot: x",
            "copied, ",
            "a copied, b",
            "Copy: 1",
            "tps = ",
            "IOPS=",
            "Startup finished in = ",
            "k k k k k",
            "1k 2k 3k 4k 5k x",
            "% cpu ",
            " user % cpu  total",
            "T: Act:",
            " requests per second",
            "time: [1 2 3]",
            "time: [",
            "ALL Reads : x",
            "[  5] local 10.0.0.1 port 5201 connected to 10.0.0.2 port 34567",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
