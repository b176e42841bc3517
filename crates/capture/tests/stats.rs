//! Counters: what the real `perf stat` printed in several locales and forms (captures/perf-stat).

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use vmtax_capture::stats;
use vmtax_events::{Losses, Stat};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/perf-stat/input")
}

fn text(file: &str) -> String {
    fs::read_to_string(folder().join(file)).unwrap()
}

fn read(text: &str) -> Result<(Vec<Stat>, Losses), String> {
    stats::read(&mut text.as_bytes()).map_err(|error| error.to_string())
}

/// Values by name and unit.
fn values(stats: &[Stat]) -> BTreeMap<(&str, &str), f64> {
    stats.iter().map(|stat| ((stat.name.as_str(), stat.unit.as_str()), stat.value)).collect()
}

/// What a person reads in the files: msec of task-clock, context switches, page faults, TSC cycles.
const TOTALS: [(&str, [f64; 4]); 15] = [
    ("text-C.txt", [2019.79, 901.0, 47351.0, 5251439795.0]),
    ("text-de_CH.txt", [2020.74, 830.0, 60097.0, 5253919220.0]),
    ("text-de_DE.txt", [2040.47, 710.0, 39033.0, 5305211257.0]),
    ("text-en_IN.txt", [2014.46, 1594.0, 75654.0, 5237599402.0]),
    ("text-en_US.txt", [2062.20, 779.0, 48929.0, 5361719433.0]),
    ("text-fr_FR.txt", [2046.02, 1271.0, 61905.0, 5319658452.0]),
    ("fields-C.txt", [825.16, 391.0, 28819.0, 2145431340.0]),
    ("fields-de_DE.txt", [837.14, 1051.0, 23961.0, 2176596983.0]),
    ("fields-de_DE-semicolon.txt", [829.62, 319.0, 15811.0, 2157035183.0]),
    ("fields-C-space.txt", [835.31, 369.0, 24117.0, 2171783324.0]),
    ("fields-C-tab.txt", [831.65, 1234.0, 45546.0, 2162296010.0]),
    ("repeat-en_US.txt", [1.02, 1.0, 83.0, 2624782.0]),
    ("repeat-de_DE-fields.txt", [1.05, 1.0, 84.0, 2716006.0]),
    ("repeat-C-table.txt", [0.87, 1.0, 56.0, 2239898.0]),
    ("json-C.txt", [0.785798, 1.0, 58.0, 2022996.0]),
];

#[test]
fn totals_in_every_form_and_locale() {
    for (file, [task_clock, switches, faults, tsc]) in TOTALS {
        let (stats, losses) = read(&text(file)).unwrap();
        let expected = BTreeMap::from([
            (("task-clock", "msec"), task_clock),
            (("context-switches", "count"), switches),
            (("page-faults", "count"), faults),
            (("msr/tsc/", "count"), tsc),
        ]);
        assert_eq!(values(&stats), expected, "{file}");
        assert_eq!(losses.notes, ["counters: perf stat could not count cycles"], "{file}");
    }
}

#[test]
fn names_and_units() {
    for (file, expected) in [
        (
            "fields-C-name.txt",
            vec![
                (("msr/event=0x0,config1=0x1/", "count"), 2101796536.0),
                (("page-faults", "count"), 18292.0),
            ],
        ),
        ("times-en_US.txt", vec![(("duration_time", "ns"), 55961097.0)]),
    ] {
        let (stats, _) = read(&text(file)).unwrap();
        assert_eq!(values(&stats), expected.into_iter().collect(), "{file}");
    }
    // As perf 4.9 prints it.
    let old = "          1.234567      task-clock (msec)         #    0.5 CPUs utilized   ( +-  0.77% )\n";
    assert_eq!(values(&read(old).unwrap().0), BTreeMap::from([(("task-clock", "msec"), 1.234567)]));
}

#[test]
fn outputs_without_a_total_are_rejected_by_name() {
    for (file, words) in [
        ("interval-C.txt", "line 2 has a count of an interval (perf stat -I)"),
        ("interval-C-fields.txt", "line 1 has a count of an interval (perf stat -I)"),
        ("interval-C-json.txt", "line 1 has a count of an interval (perf stat -I)"),
        ("interval-en_US-summary.txt", "line 2 has a count of an interval (perf stat -I)"),
        ("cpus-C.txt", "line 4 has a count of \"CPU0\" alone"),
        ("cpus-C-fields.txt", "line 1 has a count of \"CPU0\" alone"),
        ("cpus-C-json.txt", "line 1 has a count of one cpu"),
        ("socket-C.txt", "line 4 has a count of \"S0\" alone"),
        ("socket-C-fields.txt", "line 1 has a count of \"S0\" alone"),
        ("threads-C.txt", "line 4 has a count of \"sleep-11043\" alone"),
        ("threads-C-fields.txt", "line 1 has a count of \"sleep-11043\" alone"),
        ("cgroup-C.txt", "line 4 has a count of task-clock in the control group \"/\" alone"),
        (
            "cgroup-C-fields.txt",
            "line 1 has a count of task-clock in the control group \"/\" alone",
        ),
        ("json-de_DE.txt", "run perf stat -j with LC_ALL=C"),
    ] {
        let error = read(&text(file)).unwrap_err();
        assert!(error.contains(words), "{file}: {error}");
    }
    let two = text("text-C.txt") + &text("text-en_US.txt");
    assert!(read(&two).unwrap_err().contains("is of a second table"));
}

#[test]
fn numbers_in_doubt_are_refused() {
    for text in [
        // The same as -x, would print 345,,678 for: nothing tells.
        "345,678,901,cycles\n",
        "1,2345      cycles\n",
        "12,34,56      cycles\n",
        "0,123      cycles\n",
        "345,678,901,,cycles,1000,100.00,,\n",
        "exits 1,234\n",
        "exits 12kB\n",
        "exits -1\n",
        "12 monkeys\n34\n",
        "CPU0                    67.68 msec task-clock\n",
        "S0        4             221.10 msec task-clock\n",
    ] {
        let error = read(text).unwrap_err();
        assert!(error.contains("line "), "{text:?}: {error}");
    }
    let text = "exits 1,234,567\npages_4k 12\nkvm_entry  7466   1244\n";
    let expected = [
        (("exits", "count"), 1234567.0),
        (("kvm_entry", "count"), 7466.0),
        (("pages_4k", "pages"), 12.0),
    ];
    assert_eq!(values(&read(text).unwrap().0), BTreeMap::from(expected));
}

/// A truncation is reported in a note; the data before it is as in the complete file.
#[test]
fn every_cut_and_every_flip() {
    let mut files: Vec<_> =
        fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 30);
    for path in files {
        let whole = fs::read(&path).unwrap();
        let (all, _) = stats::read(&mut whole.as_slice()).unwrap_or_default();
        for at in 0..whole.len() {
            if let Ok((some, losses)) = stats::read(&mut &whole[..at]) {
                let is_noted = losses.notes.iter().any(|note| note.contains("has no end"));
                let said = if is_noted { &some[..some.len() - 1] } else { &some[..] };
                assert!(all.starts_with(said), "{} cut at {at}: {some:?}", path.display());
            }
            let mut flipped = whole.clone();
            flipped[at] ^= 0x81;
            // Whatever it makes of it, it ends.
            let _ = stats::read(&mut flipped.as_slice());
        }
    }
}
