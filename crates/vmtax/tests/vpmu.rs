//! `vmtax vpmu`: the policies of a virtual PMU side by side, and its gates.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Output};

use serde_json::Value;

fn vpmu(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_vmtax")).arg("vpmu").args(args).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&vpmu(&[args, &["--format", "json"]].concat()).stdout).unwrap()
}

#[test]
fn bench_shows_both_policies_beside_what_was_published() {
    let text = String::from_utf8(vpmu(&["bench", "--turns", "0"]).stdout).unwrap();
    let row = |name: &str| {
        let line = text.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{text}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    // A fixed event stopped and created, by the published costs of both.
    assert_eq!(row("handle_irq")[1], (2_000_000 + 25_000).to_string());
    assert_eq!(row("handle_irq")[5], "397.7x");
    // What the first call creates is not hidden.
    assert_eq!(row("context switch in")[4], (4 * 30_000_000 + 2 * 25_000).to_string());
    assert!(
        text.contains("  handle_irq: ")
            && text.contains("; shown: ")
            && text.contains("; inferred, not shown: ")
    );
    let report = json(&["bench", "--turns", "0"]);
    assert_eq!(report["schema"], "vmtax-vpmu-bench-1");
    assert_eq!(report["emulated"].as_array().unwrap().len(), 0);
    assert_eq!(report["operations"].as_array().unwrap().len(), 8);
    for operation in report["operations"].as_array().unwrap() {
        let figure = &operation["max_ns"];
        let (ratio, published) =
            (figure["ratio"].as_f64(), figure["published_ratio"].as_f64().unwrap());
        let near = ratio.is_some_and(|r| (0.5..=2.0).contains(&(r / published)));
        assert_eq!(figure["why"].is_null(), near, "{operation}");
        if let Some(shown) = figure["why"]["shown"].as_bool() {
            let varied = figure["why"]["ratio"].as_f64().unwrap() / published;
            assert_eq!(shown, (0.5..=2.0).contains(&varied), "{operation}");
        }
    }
    assert_eq!(report["steady"].as_array().unwrap().len(), 0);
}

#[test]
fn a_steady_guest_creates_no_events_under_reuse() {
    let report = json(&["bench", "--turns", "2"]);
    for event in report["steady"].as_array().unwrap() {
        // Where perf_event_open is not allowed, that is what it must say.
        match event["unknown"].as_str() {
            Some(why) => assert!(why.contains("perf_event_paranoid"), "{event}"),
            None => {
                assert_eq!(event["creates"]["legacy"], 200, "{event}");
                assert_eq!(event["creates"]["reuse"], 0, "{event}");
            }
        }
    }
}

#[test]
fn the_gates_hold() {
    let gates = json(&["selftest"]);
    assert_eq!(gates["schema"], "vmtax-vpmu-selftest-1");
    let gates = gates["gates"].as_array().unwrap();
    assert!(gates.len() >= 9);
    assert!(gates.iter().all(|g| g["holds"] == true), "{gates:?}");
}
