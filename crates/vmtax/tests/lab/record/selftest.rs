//! `vmtax selftest` in the emulated hosts: everything agrees there, and what is put in is found.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{arm, observe_script};

/// The lab interrupts the shell alone, possibly before it is done.
const SCRIPT: &str = "
trap asked=1 INT
./vmtax selftest --bundle report.tar.zst --format json -o whole.json >whole.said 2>&1; echo $? >whole.code
./vmtax selftest --format text -o whole.txt
./vmtax selftest --fault miscounted --format json -o miscounted.json >miscounted.said 2>&1; echo $? >miscounted.code
mkdir small; mount -t tmpfs -o size=16k none small
./vmtax selftest --bundle small/report.tar.zst --format json -o full.json >full.said 2>&1; echo $? >full.code
ls -A small >full.left
./vmtax selftest --fault lost --format json -o lost.json >lost.said 2>&1; echo $? >lost.code
DENIED
while [ -z \"$asked\" ]; do sleep 1; done
";

/// Without the right to record; of busybox, setpriv knows no such option.
const DENIED: &str = "setpriv --bounding-set -all --inh-caps -all ./vmtax selftest >denied.said 2>&1; echo $? >denied.code";

fn text(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn document(folder: &Path, name: &str) -> Value {
    serde_json::from_str(&text(folder, name)).unwrap()
}

/// Rows of a table: their name, and one of their cells.
fn cells<'a>(
    document: &'a Value,
    table: &str,
    name: &str,
    cell: &str,
) -> Vec<(&'a str, &'a Value)> {
    let rows = document[table].as_array().unwrap();
    rows.iter().map(|row| (row[name].as_str().unwrap(), &row[cell])).collect()
}

fn outcomes<'a>(document: &'a Value, table: &str, name: &str) -> Vec<(&'a str, &'a str)> {
    let cells = cells(document, table, name, "outcome").into_iter();
    cells.map(|(name, outcome)| (name, outcome.as_str().unwrap())).collect()
}

/// Each known exit is counted once by everyone.
fn agrees(host: &str) {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--host", host, "--operation", "cpuid"];
    let left = observe_script(
        folder.path(),
        &SCRIPT.replace("DENIED", DENIED),
        &["/usr/bin/perf", "/usr/bin/mount", "/usr/bin/ls"],
        &arguments,
    );
    let whole = agreed(&left, ("CPUID leaf 0", "L1,cpuid,"));
    let exits = outcomes(&whole, "exits", "what");
    assert_eq!(exits.len(), 8, "{exits:?}");
    let counts = cells(&whole, "exits", "what", "perf");
    assert!(counts[..5].iter().all(|(_, count)| **count == 4000), "{counts:?}");
    let checks = outcomes(&whole, "checks", "check");
    // Neither a PMU nor DSA, and times of an emulator say nothing of pages.
    assert!(checks[1..].iter().all(|(_, outcome)| *outcome == "not here"), "{checks:?}");
    assert_ne!(text(&left, "denied.code").trim(), "0");
    assert_eq!(text(&left, "denied.said").lines().count(), 1, "{}", text(&left, "denied.said"));
}

/// What holds everywhere; the table. `first` is the operation of which one batch too many is put in, and how its exits are named in tables.
fn agreed(left: &Path, first: (&str, &str)) -> Value {
    assert_eq!(text(left, "whole.code").trim(), "0", "{}", text(left, "whole.said"));
    let whole = document(left, "whole.json");
    eprintln!("{}", text(left, "whole.txt"));
    let exits = outcomes(&whole, "exits", "what");
    assert!(exits.iter().all(|(_, outcome)| *outcome == "works"), "{whole:#}");
    for counter in ["known", "recorder", "events"] {
        let counts = cells(&whole, "exits", "what", counter);
        assert!(counts[..5].iter().all(|(_, count)| **count == 4000), "{counter}: {counts:?}");
    }
    for row in &whole["exits"].as_array().unwrap()[5..] {
        assert!(row["kvm"].as_u64().is_some_and(|all| all > 5 * 4000), "{row}");
    }
    let checks = outcomes(&whole, "checks", "check");
    assert_eq!(checks[0], ("lost by the recorder", "works"), "{checks:?}");
    let costs = cells(&whole, "costs", "what", "alone_ns");
    assert!(costs.len() == 5 && costs.iter().all(|(_, ns)| ns.as_f64() > Some(100.0)), "{costs:?}");
    assert!(text(left, "whole.txt").contains("all counts agree"), "{}", text(left, "whole.txt"));
    bundle(&left.join("report.tar.zst"), &whole, first.1);

    // The table is there, and nothing of the archive.
    assert_eq!(text(left, "full.code").trim(), "5", "{}", text(left, "full.said"));
    assert_eq!(outcomes(&document(left, "full.json"), "exits", "what"), exits);
    let said = text(left, "full.said");
    assert!(
        said.starts_with("vmtax: small/report.tar.zst: ") && said.lines().count() == 1,
        "{said}"
    );
    assert!(said.contains("No space left on device"), "{said}");
    assert_eq!(text(left, "full.left"), "");

    assert_eq!(text(left, "miscounted.code").trim(), "6", "{}", text(left, "miscounted.said"));
    let miscounted = document(left, "miscounted.json");
    let differ: Vec<_> = outcomes(&miscounted, "exits", "what");
    let differ: Vec<_> = differ.iter().filter(|(_, outcome)| *outcome == "differs").collect();
    assert_eq!(differ, [&(first.0, "differs")]);
    assert_eq!(miscounted["exits"][0]["recorder"], 4020);

    assert_eq!(text(left, "lost.code").trim(), "6", "{}", text(left, "lost.said"));
    let lost = document(left, "lost.json");
    assert_eq!(outcomes(&lost, "checks", "check")[0], ("lost by the recorder", "differs"));
    whole
}

/// The archive holds the table and recordings that can be read, and no name of the computer.
fn bundle(path: &Path, whole: &Value, exits: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = zstd::Decoder::new(fs::File::open(path).unwrap()).unwrap();
    tar::Archive::new(file).unpack(folder.path()).unwrap();
    let inside = folder.path().join("selftest");
    assert_eq!(&document(&inside, "selftest.json"), whole);
    for run in ["counts", "events"] {
        let run = inside.join(run);
        let manifest = document(&run, "run.json");
        assert_eq!(manifest["recording"]["hostname"].as_str().unwrap_or_default(), "");
        let counts = super::counts(&run);
        let mut counted = counts.iter().filter(|(key, _)| key.contains(exits));
        assert!(counted.any(|(_, count)| *count == 4000), "{counts:#?}");
    }
}

#[test]
fn selftest_agrees_on_amd() {
    agrees("amd");
}

#[test]
#[ignore = "minutes"]
fn selftest_agrees_on_intel() {
    agrees("intel");
}

#[test]
#[ignore = "minutes; after ./x package arm64"]
fn selftest_agrees_on_arm64() {
    let folder = tempfile::tempdir().unwrap();
    let script = SCRIPT.replace("DENIED", "");
    let arguments = ["--operation", "hvc-psci"];
    let Some(left) = arm::observe(folder.path(), &script, &arguments) else { return };
    let whole = agreed(&left, ("HVC, PSCI_VERSION", ",HVC64,"));
    let exits = outcomes(&whole, "exits", "what");
    assert_eq!(exits.len(), 7, "{exits:?}");
    // KVM's own counters are there where it has some.
    let counts = cells(&whole, "exits", "what", "kvm");
    let counted: Vec<_> = counts[..5].iter().filter(|(_, count)| **count == 4000).collect();
    assert_eq!(counted.len(), 2, "{counts:?}");
    let checks = outcomes(&whole, "checks", "check");
    assert!(checks.iter().all(|(_, outcome)| *outcome != "differs"), "{checks:?}");
}
