//! Results of benchmarks by set-up, as people post them: tables with a column or a row for each set-up, and figures below a title each.
//!
//! ```text
//! | vhost | IOMMU | TCP BW      |        Without patch:                 === write, MiB/s
//! |-------|-------|-------------|        boot: 0.092668 seconds             plain   999.6 982.2 977.4
//! | on    | on    | 0.68 MB/s   |        With patch:                        shared  455.9 451.0 436.5
//! | on    | off   | 518.94 MB/s |        boot: 0.064787 seconds
//! ```
//!
//! ```text
//! text ──blocks──> tables ──tables──> samples
//!                  lines  ──lines──>
//!                  changes ──tables─>            prose, where nothing else compares
//! ```
//! Only values whose unit is known are read, but for tables whose rows name set-ups and whose columns are numbers; a cell that holds more than one value is none. What compares no values may state relative changes
//! (`+6.65%`, `1.03x`) or compare in sentences: these are read where there is nothing else. Left out: what the figures mean.

mod blocks;
mod lines;
mod programs;
mod prose;
mod setup;
mod spaced;
mod tables;
mod value;

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{Better, Sample};

use self::blocks::{Blocks, PostedTable, blocks};
use self::lines::of_lines;
use self::tables::{of_changes, of_table, of_titled};
use self::value::known;

/// More values than a post has.
const VALUES: usize = 10_000;
/// Parts of words that name what was measured, and no set-up.
const METRICS: &[&str] = &[
    "read",
    "write",
    "iops",
    "latency",
    "bandwidth",
    "throughput",
    "time",
    "mean",
    "median",
    "average",
    "duration",
    "speed",
];
/// The same, as whole words.
const METRIC_WORDS: &[&str] = &[
    "metric", "lat", "bw", "avg", "min", "max", "p50", "p90", "p95", "p99", "run", "run1", "run2",
    "run3", "tx", "rx", "send", "recv", "value", "boot", "total", "stddev",
];

/// The values of a post, with set-ups as categories; `None` if it compares none.
pub fn read(text: &str) -> Option<Vec<Sample>> {
    // Two moments of one migration are no set-ups.
    if text.contains("transferred ram:") {
        return None;
    }
    let Blocks { mut tables, lines, changes } = blocks(text);
    // A table that is quoted is no other run.
    let mut seen = BTreeSet::new();
    tables.retain(|table| seen.insert((table.head.clone(), table.rows.clone())));
    let mut samples = of_lines(&lines);
    if !of_titled(&tables, &mut samples) {
        for (at, table) in tables.iter().enumerate() {
            // Of several tables with one head the title tells what was measured, or the number.
            let like = |other: &&PostedTable| other.head == table.head;
            let same = |other: &&PostedTable| like(other) && other.title == table.title;
            let of_which = match tables.iter().filter(like).count() {
                0 | 1 => String::new(),
                _ if tables.iter().filter(same).count() == 1 => table.title.clone(),
                _ if table.title.is_empty() => format!("table {}", at + 1),
                _ => format!("{} (table {})", table.title, at + 1),
            };
            of_table(table, &of_which, &mut samples);
        }
    }
    let ends = |samples: &mut Vec<Sample>| {
        samples.retain(|one| one.value.is_finite() && !one.category.is_empty());
        samples.truncate(VALUES);
    };
    ends(&mut samples);
    if compares(&samples) {
        return Some(samples);
    }
    let mut samples = of_changes(&tables, &changes);
    ends(&mut samples);
    if samples.len() > 1 {
        return Some(samples);
    }
    let mut samples = prose::read(text);
    ends(&mut samples);
    (!samples.is_empty()).then_some(samples)
}

/// Whether something has values of several set-ups.
fn compares(samples: &[Sample]) -> bool {
    let mut setups: BTreeMap<(&str, &str, &str), BTreeSet<&str>> = BTreeMap::new();
    for one in samples {
        let key = (one.workload.as_str(), one.metric.as_str(), kind_of(&one.unit));
        setups.entry(key).or_default().insert(&one.category);
    }
    setups.values().any(|all| all.len() > 1)
}

/// Words of sentences and titles about what is set, wished or supposed, and not measured.
const NOT_MEASURED: &[&str] = &[
    "timeout",
    "timeouts",
    "limit",
    "limits",
    "period",
    "interval",
    "default",
    "defaults",
    "threshold",
    "range",
    "uptime",
    "tick",
    "heartbeat",
    "sla",
    "goal",
    "goals",
    "target",
    "targets",
    "config",
    "deadline",
    "bandwidth-limit",
    "if",
    "should",
    "would",
    "might",
    "could",
    "may",
    "not",
    "never",
    "cannot",
    "claims",
    "claimed",
    "claim",
    "hoped",
    "hope",
    "expect",
    "expected",
    "suppose",
];

/// Whether words are about something that was not measured.
fn is_unmeasured(text: &str) -> bool {
    text.split_whitespace().any(|word| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
        NOT_MEASURED.contains(&word.as_str())
            || word.ends_with("n't")
            || word.ends_with("n\u{2019}t")
    })
}

/// Units of one kind are converted: bits, bytes, times.
fn kind_of(unit: &str) -> &str {
    match unit {
        _ if ["bits/sec", "bits/s", "bit/s", "bps"].iter().any(|end| unit.ends_with(end)) => "bits",
        // Mb/s are bits, MB/s bytes; mb/s may be either.
        _ if ["Kb/s", "Mb/s", "Gb/s"].contains(&unit) => "bits",
        _ if unit.ends_with("B/s") || unit.ends_with("B/sec") => "bytes",
        "ns" | "us" | "usec" | "ms" | "msec" | "s" | "sec" | "secs" | "second" | "seconds"
        | "min" | "mins" | "minute" | "minutes" | "hours" => "time",
        other => other,
    }
}

fn names_metric(text: &str) -> bool {
    // Threads are nothing that is read.
    let text = text.to_lowercase().replace("thread", "");
    let mut words = text.split(|c: char| !c.is_alphanumeric());
    METRICS.iter().any(|part| text.contains(part)) || words.any(|word| METRIC_WORDS.contains(&word))
}

fn sample(setup: &str, (workload, metric): (&str, &str), (unit, number): (&str, f64)) -> Sample {
    Sample {
        workload: workload.to_owned(),
        category: setup.to_owned(),
        repeat: 0,
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        value: number,
        better: known(unit).unwrap_or(Better::Neither),
    }
}

#[cfg(test)]
mod tests {
    use super::value::value;
    use super::*;

    /// Set-ups with their values by what was measured.
    fn read_values(text: &str) -> Vec<String> {
        let samples = read(text).unwrap_or_default();
        let shown = |one: &Sample| {
            format!("{} {}: {} {} {}", one.workload, one.metric, one.category, one.value, one.unit)
        };
        samples.iter().map(shown).collect()
    }

    #[test]
    fn a_cell_has_one_value() {
        let of =
            |cell: &str| value(cell).map(|value| (value.number, value.unit.unwrap_or_default()));
        let is = |number: f64, unit: &str| Some((number, unit.to_owned()));
        assert_eq!(of("~175 MB/s"), is(175.0, "MB/s"));
        assert_eq!(of("**522,998 cycles**"), is(522_998.0, "cycles"));
        assert_eq!(of("253k (??)"), is(253_000.0, ""));
        assert_eq!(of("88.4k IOPS"), is(88_400.0, "IOPS"));
        assert_eq!(of("4488ms"), is(4488.0, "ms"));
        assert_eq!(of("43.1MiB/s"), is(43.1, "MiB/s"));
        for none in [
            "36,92",
            "48.5 / 49.5 ms",
            "19,095 B / 247 lines",
            "1.2.3",
            "",
            "-",
            ">210000",
            "8Gi",
            "on",
            "(",
            "1(2",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn rows_are_setups() {
        let text = "**Linux:**\n\n| vhost | IOMMU | TCP BW (64K) | Notes |\n|---|---|---|---|\n| on | off | **453.55 MB/s** | now |\n| on | on | 0.91 MB/s | ~500x |\n";
        assert_eq!(
            read_values(text),
            [
                "Linux TCP BW (64K): vhost on, IOMMU off 453.55 MB/s",
                "Linux TCP BW (64K): vhost on, IOMMU on 0.91 MB/s"
            ]
        );
    }

    #[test]
    fn rows_of_one_job_are_setups() {
        let head = "| Name | IOPS | Avg Latency (ms) |\n|--|--|--|\n";
        let two = "| 24.05 - 4k_randread | 12,025,425.08 | 422.46 |\n| Revert - 4k_randread | 14,827,449.27 | 344.49 |\n";
        let all = read_values(&format!("{head}{two}"));
        assert_eq!(all.len(), 4);
        assert_eq!(all[0], " IOPS: 24.05 - 4k_randread 12025425.08 IOPS");
        let jobs = "| 24.05 - 4k_randread | 1,200 | 4 |\n| 24.05 - 4k_randwrite | 1,400 | 3 |\n";
        assert_eq!(read_values(&format!("{head}{jobs}")), Vec::<String>::new());
        let times = "with settings (stimer)\nreal    1m49,131s\nwithout:\nreal    2m4,707s\n";
        assert_eq!(
            read_values(times),
            ["real : with settings (stimer) 109.131 s", "real : without 124.707 s"]
        );
    }

    #[test]
    fn columns_are_setups() {
        let text = "| Metric | Without vhost | With vhost |\n|--|--|--|\n| Throughput | ~175 MB/s | ~580 MB/s |\n| TCP timeouts | 25,480 | 0 |\n";
        let expected = ["Throughput : Without vhost 175 MB/s", "Throughput : With vhost 580 MB/s"];
        assert_eq!(read_values(text), expected);
    }

    /// As criterion, Intel's Memory Latency Checker and people have them; the names are made up.
    #[test]
    fn parts_and_times_of_several_units() {
        let criterion = "- Kernel A\n```\nvm/create\n        time:   [1.80 ms 1.90 ms 2.00 ms]\n```\n- Kernel B\n```\nvm/create\n        time:   [7.0 ms 8.0 ms 9.0 ms]\n```\n";
        assert_eq!(
            read_values(criterion),
            ["vm/create : Kernel A 1.9 ms", "vm/create : Kernel B 8 ms"]
        );
        let mlc = |part: &str, value: &str| {
            format!(
                "### {part}\n```\nMeasuring idle latencies for random access (in ns)...\n                Numa node\nNuma node            0\n       0         {value}\nALL Reads        :      70000.5\n```\n"
            )
        };
        assert_eq!(
            read_values(&format!("{}{}", mlc("Firmware A", "130.1"), mlc("Firmware B", "90.2"))),
            [
                "idle latency : Firmware A 130.1 ns",
                "ALL Reads : Firmware A 70000.5 MB/s",
                "idle latency : Firmware B 90.2 ns",
                "ALL Reads : Firmware B 70000.5 MB/s"
            ]
        );
        let table = "Disks | First boot | Second boot\n-- | -- | --\n1 | 50sec | 30sec\n16 | 1min20sec | 1m5s\n";
        assert_eq!(
            read_values(table),
            [
                " First boot: Disks 1 50 sec",
                " Second boot: Disks 1 30 sec",
                " First boot: Disks 16 80 s",
                " Second boot: Disks 16 65 s"
            ]
        );
        let threads = "|Threads|1|8|\n|---|-|-|\n| Host| 1485.33 | 1606.92 |\n| QEMU guest| 802.77 | 1574.90 |\n";
        assert_eq!(
            read_values(threads),
            [
                "Threads 1 : Host 1485.33 ",
                "Threads 8 : Host 1606.92 ",
                "Threads 1 : QEMU guest 802.77 ",
                "Threads 8 : QEMU guest 1574.9 "
            ]
        );
        let labels = "Timings:\n20G master:  92s\n20G master+reverts: 57s\n50G master: 526s\n50G master+reverts: 142s\n";
        assert_eq!(read_values(labels).len(), 4);
        for none in [
            "a | b | c\n- | - | -\nx | 1m | 2h3\ny | 1s2m | 4\n",
            "|n|1|2|\n|-|-|-|\n|x|3|4|\n|y|5|6|\n",
        ] {
            assert_eq!(read(none), None, "{none}");
        }
    }

    /// The first of several lines of numbers may be the columns'.
    #[test]
    fn numbers_of_columns_are_no_repetitions() {
        let rows = "IOPS by depth (Unit: KIOPS)\n\nqd         1   4  16  64\nfirst     35 121 176 153\nsecond    41 133 258 313\n";
        let all = read_values(rows);
        assert_eq!(all.len(), 8);
        assert_eq!(all[0], "IOPS by depth (Unit: KIOPS) qd 1: first 35 IOPS");
        assert_eq!(all[7], "IOPS by depth (Unit: KIOPS) qd 64: second 313 IOPS");
        for (one, other) in [("1   4  16  64", "31 140 160 150"), ("qd  ", "zero")] {
            let all = read_values(&rows.replace(one, other));
            assert!(all[0].starts_with("IOPS by depth (Unit: KIOPS) : "), "{all:?}");
        }
        let again = rows.replacen("IOPS by depth (Unit: KIOPS)\n", "", 1);
        let both =
            read_values(&format!("{rows}\n{}", again.replace("  1   4  16  64", "2 8 32 128")));
        assert_eq!(both[15], "IOPS by depth (Unit: KIOPS) qd 128: second 313 IOPS");
        assert!(both.iter().all(|one| !one.contains(": qd")), "{both:?}");
        let tests =
            "Before:\ncpuid 1313\ninl_from_qemu 6856\nAfter:\ncpuid 1291\ninl_from_qemu 6209\n";
        assert_eq!(read_values(tests)[0], "cpuid : Before 1313 cycles");
        assert_eq!(read(&tests.replace("inl_from_qemu", "hlt")), None);
        let headed = "## Offloads on\n\nI kept them.\n\n| net | rate |\n|--|--|\n| a | 1.4 Gbits/s |\n\n## Offloads off\n\nI took them away.\n\n| net | rate |\n|--|--|\n| a | 10 Gbits/s |\n";
        assert_eq!(
            read_values(headed),
            ["a rate: Offloads on 1.4 Gbits/s", "a rate: Offloads off 10 Gbits/s"]
        );
        let sentences =
            "# netperf\n\nMitigations on.\nrate: 12 Mbits/s\nMitigations off.\nrate: 34 Mbits/s\n";
        assert_eq!(
            read_values(sentences),
            ["rate : netperf 12 Mbits/s", "rate : Mitigations off. 34 Mbits/s"]
        );
    }

    /// Labels name the set-up before a dash, by a verb, or in brackets; a prompt is no title.
    #[test]
    fn setups_of_labels() {
        let dash = "Results\nmmap - Read IOPS ~52\nsync - Read IOPS ~5200\n";
        assert_eq!(
            read_values(dash),
            ["Results : mmap - Read 52 IOPS", "Results : sync - Read 5200 IOPS"]
        );
        let verbs = "Primes below 10000:\n- vm takes 38 seconds\n- non-vm takes 12 seconds\n";
        assert_eq!(
            read_values(verbs),
            ["Primes below 10000 : vm 38 seconds", "Primes below 10000 : non-vm 12 seconds"]
        );
        let times = "a boot: 1 min 23 seconds\nb boot (without acceleration): 2 min 23 seconds\nb kvm boot: 15 seconds\n";
        assert_eq!(
            read_values(times),
            ["b boot : b boot (without acceleration) 143 s", "b boot : b kvm boot 15 seconds"]
        );
        let iperf = |setting: &str, rate: &str| {
            format!(
                "root@vm:~ sysctl x={setting}\nx = {setting}\nroot@vm:~ iperf3 -c 10.0.0.1 -t 30\n[  4]   0.00-30.00  sec  72.7 GBytes  {rate} Gbits/sec       receiver\n"
            )
        };
        assert_eq!(
            read_values(&format!("{}{}", iperf("bbr", "20.8"), iperf("cubic", "37.0"))),
            [
                "iperf, receiver : x = bbr 20.8 Gbits/sec",
                "iperf, receiver : x = cubic 37 Gbits/sec"
            ]
        );
        let hosts = "In the VM:\nroot@vm:~ iperf3 -c a\n[  5]   0.00-10.00  sec  10.9 GBytes  9.40 Gbits/sec   receiver\nroot@host:~ iperf3 -c a\n[  5]   0.00-10.00  sec  45.9 GBytes  39.40 Gbits/sec   receiver\n";
        assert_eq!(
            read_values(hosts),
            ["iperf, receiver : In the VM 9.4 Gbits/sec", "iperf, receiver : host 39.4 Gbits/sec"]
        );
        let things = "Results\nmmap - Read IOPS ~5200\nmmap - Write IOPS ~90\nsync - Read IOPS ~5100\nsync - Write IOPS ~88\n";
        assert_eq!(
            read_values(things),
            [
                "Results read: mmap - Read 5200 IOPS",
                "Results read: sync - Read 5100 IOPS",
                "Results write: mmap - Write 90 IOPS",
                "Results write: sync - Write 88 IOPS"
            ]
        );
        for none in [
            "Timeouts in our config: \nguest: 30 s\nhost: 300 s\n",
            "vm: 1,250 s\nhost: 12 s\n",
            "vm takes 38 seconds\n",
            "a - b IOPS 5\n",
            "read - IOPS 52\nwrite - IOPS 60\n",
            "Random - IOPS 52\nsequential - IOPS 60\n",
            "a takes b\n",
            " takes 5 s\n",
        ] {
            assert_eq!(read(none), None, "{none}");
        }
    }

    #[test]
    fn titles_are_setups() {
        let tables = "Results using bus=virtio\n```\nsize | read-iops\n4KiB | 120,883\n```\nResults using default bus=sata\n```\nsize | read-iops\n4KiB | 20,632\n```\n";
        assert_eq!(
            read_values(tables),
            [
                "4KiB read-iops: Results using bus=virtio 120883 iops",
                "4KiB read-iops: Results using default bus=sata 20632 iops"
            ]
        );
        let times = "Emulated device:\n```\ntime cat x\n\nreal\t0m6.756s\nuser\t0m0.035s\n\nreal\t0m6.758s\n```\n\nVirtIO console\n```\ntime cat x\n\nreal\t1m0.421s\n```\n";
        assert_eq!(
            read_values(times),
            [
                "real : Emulated device 6.756 s",
                "real : Emulated device 6.758 s",
                "real : VirtIO console 60.421 s"
            ]
        );
        let fio = "9p (cache=none)\n-----\n\n   READ: bw=43.1MiB/s (45.2MB/s), io=\n3070MiB (3219MB), run=71260-71260msec\n\nvirtiofs\n---\n> READ: bw=211MiB/s (222MB/s)\n";
        assert_eq!(
            read_values(fio),
            ["READ : 9p (cache=none) 43.1 MiB/s", "READ : virtiofs 211 MiB/s"]
        );
    }

    #[test]
    fn labels_are_setups_of_repetitions() {
        let text = "=== 1000 files, mean ms/file\n    plain    0.56 0.54 0.58\n    virtiofs 0.41 0.40 0.42\n";
        let all = read_values(text);
        assert_eq!(all.len(), 6);
        assert_eq!(all[3], "1000 files, mean ms/file : virtiofs 0.41 ms");
    }

    #[test]
    fn a_title_with_a_line_under_it_may_look_like_output() {
        let text = "# VMM A queue_size=1024\n##########\n$ a --disk x\nREAD: bw=131MiB/s (137MB/s), io=7832MiB\n\n# VMM B queue_size=1024\n##########\nREAD: bw=67.3MiB/s (70.6MB/s), io=4000MiB\n";
        assert_eq!(
            read_values(text),
            ["READ : VMM A queue_size=1024 131 MiB/s", "READ : VMM B queue_size=1024 67.3 MiB/s"]
        );
    }

    /// Tables whose columns are apart by blanks: their rows or their columns are set-ups by name, or set-ups stand beside workloads.
    #[test]
    fn blanks_are_between_columns() {
        let grid = "NAME          WORKLOAD     Bandwidth    IOPS\nshared        read         35(MiB/s)    9191\nshared-own    read         55(MiB/s)    13k\n\nshared        write        22(MiB/s)    5801\nshared-own    write        30(MiB/s)    7927\n";
        let all = read_values(grid);
        assert_eq!(all.len(), 8);
        assert_eq!(all[0], "read Bandwidth: shared 35 MiB/s");
        assert_eq!(all[7], "write IOPS: shared-own 7927 IOPS");
        let named = "Host\n               build time      gain\n   Original    150.5 seconds\n   Patched     150.2 seconds   none\nTwo VMs\n               build time      gain\n   Original    900 seconds\n   Patched     354 seconds     +150%\n";
        assert_eq!(
            read_values(named),
            [
                "Host build time: Original 150.5 seconds",
                "Host build time: Patched 150.2 seconds",
                "Two VMs build time: Original 900 seconds",
                "Two VMs build time: Patched 354 seconds"
            ]
        );
        // One workload, and quoted twice.
        let one = "NAME          WORKLOAD     Bandwidth\nshared        read         35(MiB/s)\nshared-own    read         55(MiB/s)\n";
        let quoted: String = one.lines().map(|line| format!("> {line}\n")).collect();
        assert_eq!(read_values(&format!("{one}\n{quoted}")).len(), 2);
        let jobs = "1 job\tread/write\tThroughput\tIOPS\n\t\t\t(MB/s)\t\t(k)\nvanilla\tread\t\t1037\t\t253\n\t\twrite\t\t1148\t\t280\noptimized\tread\t\t1160\t\t283\n\t\twrite\t\t1195\t\t292\n";
        let all = read_values(jobs);
        assert_eq!(all[0], "1 job, read Throughput (MB/s): vanilla 1037 MB/s");
        // A list of what happened names no set-up.
        for none in [
            "Event name          Samples    Time(ns)\nFIRST_FAULT         1496       88961\nSECOND_FAULT        887        27285\n",
            "Device      Read time    Write time\nvda         10 ms        20 ms\nvdb         11 ms        21 ms\n",
            "NAME    Bandwidth\nhost    35 MiB/s\n",
            "Disk    Operation    Rate\nsda     read    35 MiB/s\nsdb    read    55 MiB/s\n",
            "NAME    CPU usage    NET I/O\nvm    90 ms   35 MiB/s\nqemu    91 ms   55 MiB/s\n",
            "VM    Uptime\nhost    30 min\nvm    3 min\n",
            "Parameter    Default    New\nlatency    3 ms    10 ms\nburst    3 ms    30 ms\n",
        ] {
            assert_eq!(read(none), None, "{none}");
        }
    }

    #[test]
    fn a_rule_between_rows_ends_no_table() {
        let bars = " test  |  after-patch   |  before-patch\n-------+----------------+---------------\n Copy  | 432906.4 KBps  |  158011.8 KBps\n Exec  |   3662.1 lps   |    2718.0 lps\n";
        let all = read_values(bars);
        assert_eq!(all.len(), 4);
        assert_eq!(all[0], "Copy : after-patch 432906.4 KBps");
        let grid = "+----+-----------+----------------+\n| L0 | r (base)  | r (patched)    |\n+====+===========+================+\n| A  | 256       | 301 (+17.3%)   |\n| B  | 180       | 203 (+12.96%)  |\n+----+-----------+----------------+\n";
        assert_eq!(read_values(grid)[1], "A r: patched 301 r");
        let reads = "| fs | read (old) | read (new) |\n|--|--|--|\n| 9p | 100 MB/s | 200 MB/s |\n";
        assert_eq!(read_values(reads), ["9p read: old 100 MB/s", "9p read: new 200 MB/s"]);
        let versions = reads.replace("read (", "version (").replace(" MB/s", "");
        assert_eq!(read(&versions), None);
    }

    #[test]
    fn figures_have_names_in_a_line() {
        let two = "- poll, before\n\t-- jobs=1 : IOPS = 339K, avg latency = 188.33us\n- poll, after\n\t-- jobs=1 : IOPS = 385K, avg latency = 165.94us\n";
        assert_eq!(
            read_values(two),
            [
                "jobs=1, IOPS : poll, before 339000 IOPS",
                "jobs=1, avg latency : poll, before 188.33 us",
                "jobs=1, IOPS : poll, after 385000 IOPS",
                "jobs=1, avg latency : poll, after 165.94 us"
            ]
        );
        assert_eq!(read(&two.replace("IOPS = ", "n = ")), None);
        let settings = "halt_poll_ns=0: avg = 3 ms, p99 = 50 ms\nhalt_poll_ns=200000: avg = 2 ms, p99 = 40 ms\n";
        assert_eq!(
            read_values(settings),
            [
                "avg : halt_poll_ns=0, avg 3 ms",
                "avg : halt_poll_ns=200000, avg 2 ms",
                "p99 : halt_poll_ns=0, p99 50 ms",
                "p99 : halt_poll_ns=200000, p99 40 ms"
            ]
        );
        assert_eq!(read("rq=1 : read = 100 MB/s, write = 10 MB/s\n"), None);
    }

    /// A list of different things compares nothing.
    #[test]
    fn what_compares_nothing_is_not_read() {
        for text in [
            "",
            "total time: 3064 ms\ndowntime: 10 ms\nsetup: 6 ms\n",
            "| metric | value |\n|--|--|\n| boot time | 3 s |\n| load time | 5 s |\n",
            "a | b\n1 | 2\n",
            "||||\n|\n| | |\n",
            "real 0m1.0s\n",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
