//! The OpenMetrics of a report, read by the parser of Prometheus's own Python client: it takes them, and they hold what the
//! JSON holds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::captures::{json, unpack};
use crate::check::stdout;

/// Reads OpenMetrics strictly, and prints each sample as JSON: name, labels, value.
const READER: &str = "
import json, sys, importlib
families = importlib.import_module(sys.argv[1]).text_string_to_metric_families
for family in families(sys.stdin.read()):
    for sample in family.samples:
        print(json.dumps([sample.name, sample.labels, sample.value]))
";

/// What the parser of OpenMetrics reads of it.
pub(crate) fn read(metrics: &[u8]) -> Vec<MetricSample> {
    read_by("prometheus_client.openmetrics.parser", metrics)
}

type MetricSample = (String, BTreeMap<String, String>, f64);

fn read_by(parser: &str, metrics: &[u8]) -> Vec<MetricSample> {
    let mut reader = Command::new("/usr/bin/python3")
        .args(["-c", READER, parser])
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

/// The text format has no type `info` and no units, and its parsers take a type for the sampled name.
#[test]
fn a_textfile_holds_the_same_samples() {
    let recording = unpack("amd-two-vms", "two-vms.perf.data.zst");
    let folder = tempfile::tempdir().unwrap();
    let metrics =
        stdout(folder.path(), &format!("report {} --format prometheus", recording.display()));
    let file = folder.path().join("vmtax.prom");
    let export = format!("export --replay {} --textfile {}", recording.display(), file.display());
    assert_eq!(String::from_utf8(stdout(folder.path(), &export)).unwrap(), "");
    let text = std::fs::read(&file).unwrap();
    let (mut found, mut expected) = (read_by("prometheus_client.parser", &text), read(&metrics));
    let order = |a: &MetricSample, b: &MetricSample| (&a.0, &a.1).cmp(&(&b.0, &b.1));
    found.sort_by(order);
    expected.sort_by(order);
    assert_eq!(found, expected);
    let text = String::from_utf8(text).unwrap();
    for line in text.lines().filter(|line| line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let is_known = match words[1] {
            "HELP" => true,
            "TYPE" => ["counter", "gauge", "histogram"].contains(&words[3]),
            _ => false,
        };
        assert!(is_known, "{line}");
        let sampled = |line: &str| {
            let rest = line.strip_prefix(words[2])?;
            let is_histogram = ["_bucket", "_sum", "_count"].iter().any(|s| rest.starts_with(s));
            (rest.starts_with(['{', ' ']) || is_histogram).then_some(())
        };
        assert!(text.lines().any(|line| sampled(line).is_some()), "{line}: is of no sample");
    }
}

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/export");

pub(crate) fn dashboard() -> Value {
    serde_json::from_slice(&std::fs::read(format!("{EXAMPLES}/dashboard.json")).unwrap()).unwrap()
}

/// The queries of its panels.
fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let asked: Vec<String> =
        targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    assert!(asked.len() >= 9);
    asked
}

/// The panels' titles and queries, with values in place of Grafana's variables.
pub(crate) fn title_and_query(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let queries = panel["targets"].as_array().unwrap().clone();
        queries.into_iter().map(move |target| {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
            let query = query.replace("$__range", "1h");
            (title.clone(), query.replace("$instance", ".*").replace("$vm", ".*"))
        })
    };
    panels.flat_map(of_panel).collect()
}

/// Rules and dashboard of `examples/export` ask for metrics, labels and parts of time that there are.
#[test]
fn rules_and_dashboard_ask_for_what_is_there() {
    let recording = unpack("amd-nested", "all.perf.data.zst");
    let metrics = stdout(
        recording.parent().unwrap(),
        &format!("report {} --format prometheus", recording.display()),
    );
    let samples = read(&metrics);
    let names: BTreeSet<&str> = samples.iter().map(|(name, ..)| name.as_str()).collect();
    let labels: BTreeSet<&str> =
        samples.iter().flat_map(|(_, labels, _)| labels.keys().map(String::as_str)).collect();
    let values: BTreeSet<&str> =
        samples.iter().flat_map(|(_, labels, _)| labels.values().map(String::as_str)).collect();
    let dashboard = dashboard();
    let mut asked = expressions(&dashboard);
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    asked.extend(variables.filter_map(|v| v["query"]["query"].as_str()).map(str::to_owned));
    let rules = std::fs::read_to_string(format!("{EXAMPLES}/rules.yml")).unwrap();
    asked.extend(rules.lines().filter(|l| !l.trim_start().starts_with('#')).map(str::to_owned));
    // A metric of this tool; those with a colon are the rules' own.
    let is_name = |word: &&str| word.starts_with("vmtax_") && !word.contains(':');
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
    let mut found = 0;
    for line in &asked {
        for name in line.split(word).filter(is_name) {
            assert!(names.contains(name), "{name} in {line}");
            found += 1;
        }
        for (index, _) in line.match_indices("=~\"").chain(line.match_indices("=\"")) {
            let label = line[..index].trim_end_matches('!').rsplit(word).next().unwrap();
            assert!(["instance", "job"].contains(&label) || labels.contains(label), "{line}");
            let value = line[index..].split('"').nth(1).unwrap();
            for value in value.split('|').filter(|v| !v.starts_with('$') && *v != "vmtax") {
                let is_part = vmtax_events::TimeRow::whole_parts().any(|p| p.name == value);
                assert!(values.contains(value) || is_part, "{value} in {line}");
            }
        }
    }
    assert!(found >= 20, "{found}");
}

/// What Prometheus's own program says of the rules, the queries of the dashboard and the text format.
#[test]
fn promtool_takes_the_rules_and_the_textfile() {
    let Ok(promtool) = Command::new("promtool").arg("--version").output() else {
        return vmtax_skipped::system("there is no promtool (its package starts a server)");
    };
    assert!(promtool.status.success());
    let target = tempfile::tempdir().unwrap();
    // Grafana fills in its variables; the queries are rules then.
    let mut rules = "groups: [{name: dashboard, rules: [".to_owned();
    for (number, (_, query)) in title_and_query(&dashboard()).into_iter().enumerate() {
        assert!(!query.contains('$'), "{query}");
        let query = serde_json::to_string(&query).unwrap();
        rules += &format!("{{record: 'query:{number}', expr: {query}}}, ");
    }
    let queries = target.path().join("dashboard.yml");
    std::fs::write(&queries, rules + "]}]").unwrap();
    let queries = queries.to_str().unwrap();
    let checks = [
        ["check", "rules", queries],
        ["check", "rules", "rules.yml"],
        ["test", "rules", "rules.test.yml"],
        ["check", "config", "prometheus.yml"],
    ];
    for args in checks {
        let output = Command::new("promtool").args(args).current_dir(EXAMPLES).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let recording = unpack("amd-nested", "kvmstat.perf.data.zst");
    stdout(target.path(), &format!("export --replay {} --textfile x.prom", recording.display()));
    let text = std::fs::File::open(target.path().join("x.prom")).unwrap();
    let output = Command::new("promtool").args(["check", "metrics"]).stdin(text).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
