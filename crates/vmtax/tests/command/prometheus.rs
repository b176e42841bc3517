//! The OpenMetrics of a report, read by the parser of Prometheus's own Python client: it takes them, and they hold what the
//! JSON holds.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::captures::{json, unpack};
use crate::check::stdout;

/// Reads OpenMetrics strictly, and prints each sample as JSON: name, labels, value.
const READER: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as families
for family in families(sys.stdin.read()):
    for sample in family.samples:
        print(json.dumps([sample.name, sample.labels, sample.value]))
";

/// What the parser reads of it.
pub(crate) fn read(metrics: &[u8]) -> Vec<(String, BTreeMap<String, String>, f64)> {
    let mut reader = Command::new("/usr/bin/python3")
        .args(["-c", READER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    reader.stdin.take().unwrap().write_all(metrics).unwrap();
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(metrics));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn metrics_hold_what_the_report_holds() {
    for (capture, input) in [
        ("amd-two-vms", "two-vms.perf.data.zst"),
        ("amd-nested", "kvmstat.perf.data.zst"),
        ("amd-bpftrace", "reasons.bpftrace.txt"),
    ] {
        let recording = unpack(capture, input);
        let metrics = stdout(
            recording.parent().unwrap(),
            &format!("report {} --format prometheus", recording.display()),
        );
        let samples = read(&metrics);
        let report = json(&recording, &["--event", "vmexit", "--by", "vm,level,reason,cause"]);
        let rows = report["tables"][0]["rows"].as_array().unwrap();
        let key = |row: &Value, name: &str| match &row[name] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        for (metric, field, scale) in [
            ("vmtax_exits_total", "count", 1.0),
            ("vmtax_exit_time_seconds_total", "time_ns", 1e-9),
        ] {
            let mut expected: BTreeMap<[String; 4], f64> = BTreeMap::new();
            for row in rows.iter().filter(|row| field == "count" || row["timed"] != 0) {
                let of = ["vm", "level", "reason", "cause"].map(|name| key(row, name));
                *expected.entry(of).or_default() += row[field].as_f64().unwrap() * scale;
            }
            let found: BTreeMap<[String; 4], f64> = samples
                .iter()
                .filter(|(name, ..)| name == metric)
                .map(|(_, labels, value)| {
                    (
                        ["vm_id", "level", "reason", "cause"].map(|label| labels[label].clone()),
                        *value,
                    )
                })
                .collect();
            assert_eq!(
                found.keys().collect::<Vec<_>>(),
                expected.keys().collect::<Vec<_>>(),
                "{capture}: {metric}"
            );
            for (key, value) in &expected {
                assert!((found[key] - value).abs() <= value * 1e-12, "{metric} {key:?}");
            }
        }
        // The last bucket of a histogram has all that is timed.
        let timed: f64 = rows.iter().map(|row| row["timed"].as_f64().unwrap()).sum();
        let all = |name: &str, le: Option<&str>| -> f64 {
            let wanted =
                |labels: &BTreeMap<String, String>| labels.get("le").map(String::as_str) == le;
            let of = samples.iter().filter(|(n, labels, _)| n == name && wanted(labels));
            of.map(|(.., value)| value).sum()
        };
        assert_eq!(all("vmtax_exit_duration_seconds_bucket", Some("+Inf")), timed, "{capture}");
        assert_eq!(all("vmtax_exit_duration_seconds_count", None), timed, "{capture}");
    }
}
