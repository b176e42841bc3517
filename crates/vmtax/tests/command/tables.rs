//! Tables: several at once equal one by one, groups add up, and CSV holds JSON's numbers.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::captures::{json, report, unpack};

const EVENTS: [&str; 7] = ["vmexit", "cause", "msr", "ioport", "mmio", "cpuid", "hypercall"];
const INPUTS: [(&str, &str); 4] = [
    ("amd-nested", "all.perf.data.zst"),
    ("amd-two-vms", "two-vms.perf.data.zst"),
    ("intel-nested", "intel-nested.perf.data.zst"),
    ("amd-bpftrace", "names.bpftrace.txt"),
];

#[test]
fn tables_at_once_equal_tables_one_by_one() {
    for (capture, input) in INPUTS {
        let input = unpack(capture, input);
        let all = EVENTS.join(",") + ",nested";
        let at_once = json(&input, &["--event", &all]);
        for (n, event) in EVENTS.iter().enumerate() {
            let alone = json(&input, &["--event", event]);
            assert_eq!(at_once["tables"][n], alone["tables"][0], "{capture}: {event}");
            assert_eq!(alone["tables"][0]["event"], *event);
            assert!(alone["nested"].is_null());
            for part in ["run", "losses"] {
                assert_eq!(at_once[part], alone[part], "{capture}: {event}: {part}");
            }
        }
        let nested = json(&input, &["--event", "nested"]);
        assert_eq!(nested["nested"], at_once["nested"]);
        assert_eq!(nested["tables"], Value::Array(Vec::new()));
        // In the order asked for.
        let swapped = json(&input, &["--event", "msr,vmexit"]);
        assert_eq!(swapped["tables"][0], at_once["tables"][2]);
        assert_eq!(swapped["tables"][1], at_once["tables"][0]);
    }
}

#[test]
fn groups_add_up_to_the_total() {
    let groups = [
        "reason",
        "level",
        "cause",
        "detail",
        "outcome",
        "vm",
        "vcpu",
        "vm,vcpu",
        "reason,detail",
        "reason,level,cause,detail,outcome,vm,vcpu",
    ];
    for (capture, input) in INPUTS {
        let input = unpack(capture, input);
        for event in EVENTS {
            let usual = json(&input, &["--event", event]);
            let total = &usual["tables"][0]["total"];
            for by in groups {
                let is_exits = event == "vmexit" || event == "cause";
                let is_of_exits = by.contains("reason") || by.contains("cause") || by == "outcome";
                if is_of_exits && !is_exits {
                    continue;
                }
                let report = json(&input, &["--event", event, "--by", by]);
                let table = &report["tables"][0];
                let what = format!("{capture} {event} by {by}");
                assert_eq!(&table["total"], total, "{what}");
                let rows = table["rows"].as_array().unwrap();
                for field in ["count", "timed", "time_ns"] {
                    let sum: u64 = rows.iter().map(|row| row[field].as_u64().unwrap()).sum();
                    assert_eq!(Some(sum), total[field].as_u64(), "{what}: {field}");
                }
                let least = rows.iter().filter_map(|row| row["min_ns"].as_u64()).min();
                assert_eq!(least, total["min_ns"].as_u64(), "{what}");
                let most = rows.iter().filter_map(|row| row["max_ns"].as_u64()).max();
                assert_eq!(most, total["max_ns"].as_u64(), "{what}");
            }
        }
    }
}

/// A line of CSV by column.
type TableLine = BTreeMap<String, String>;

#[test]
fn csv_holds_the_numbers_of_json() {
    const NUMBERS: [&str; 10] = [
        "count",
        "timed",
        "time_ns",
        "min_ns",
        "max_ns",
        "mean_ns",
        "stderr_ns",
        "p50_ns",
        "p90_ns",
        "p99_ns",
    ];
    for (capture, input) in INPUTS {
        let input = unpack(capture, input);
        let flags = ["--event", &EVENTS.join(","), "--by", "reason,level,detail,vm,vcpu"];
        let lines = csv(&report(&input, &[&flags[..], &["--format", "csv"]].concat()));
        let json = json(&input, &flags);
        for table in json["tables"].as_array().unwrap() {
            let event = table["event"].as_str().unwrap();
            let lines: Vec<&TableLine> =
                lines.iter().filter(|line| line["table"] == event).collect();
            let rows = table["rows"].as_array().unwrap();
            assert_eq!(lines.len(), rows.len(), "{capture} {event}");
            for (line, row) in lines.iter().zip(rows) {
                for field in NUMBERS {
                    // A percentile is between two powers of 2; CSV has room for the upper one.
                    let json = row[field]["high"].as_f64().or(row[field].as_f64());
                    let csv = line[field].parse::<f64>().ok();
                    let is_same = match (csv, json) {
                        // CSV has three digits after the point.
                        (Some(csv), Some(json)) => (csv - json).abs() <= 0.0005,
                        (None, None) => true,
                        // Of what was not timed CSV says nothing, and the schema's sum is 0.
                        (None, Some(json)) => {
                            field == "time_ns" && json == 0.0 && row["timed"] == 0
                        }
                        _ => false,
                    };
                    assert!(is_same, "{capture} {event} {field}: {:?} {}", line[field], row[field]);
                }
                for field in ["reason", "level"] {
                    assert_eq!(line[field], row[field].as_str().unwrap_or(""), "{capture} {event}");
                }
                let detail = &row["detail"];
                let is_none = detail["kind"] == "none";
                let detail = if is_none { "" } else { detail["hex"].as_str().unwrap() };
                assert_eq!(line["detail"], detail, "{capture} {event}");
                assert_eq!(
                    line["vcpu"],
                    row["vcpu"].as_u64().map_or(String::new(), |id| id.to_string())
                );
            }
        }
    }
}

/// RFC 4180 as far as a report needs it: commas, quotes doubled in quotes, lines of equal length.
fn csv(text: &str) -> Vec<TableLine> {
    let mut lines = text.lines().map(fields);
    let header = lines.next().unwrap();
    let lines: Vec<TableLine> = lines
        .map(|fields| {
            assert_eq!(fields.len(), header.len(), "{fields:?}");
            header.iter().cloned().zip(fields).collect()
        })
        .collect();
    assert!(!lines.is_empty());
    lines
}

fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    for c in line.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            c => fields.last_mut().unwrap().push(c),
        }
    }
    assert!(!is_quoted, "{line}");
    fields
}
