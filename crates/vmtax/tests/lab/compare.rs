//! Runs side by side.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::run::{json as run_json, printed, refused, text};

#[test]
fn two_kernels_in_one_call() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let kept = kept.to_str().unwrap();
    let two = ["lab", "run", "--kernel", "distribution", "--kernel", "distribution"];
    let both = [&two[..], &["--operation", "cpuid,wbinvd", "-o", kept]].concat();
    let found = run_json(&both);
    assert_eq!(found["schema"], "vmtax-lab-comparison-1");
    let release = text(&found["runs"][0]["kernel"]).to_owned();
    let names: Vec<&str> =
        found["runs"].as_array().unwrap().iter().map(|run| text(&run["name"])).collect();
    assert_eq!(names, [release.clone(), format!("{release}-2")]);
    let cell = |row: &Value, column: usize| {
        let cell = &row["runs"][column];
        assert!(cell["path"].as_f64().unwrap() > 500.0, "{cell}");
        assert!((cell["path_ratio"].as_f64().unwrap() - 1.0).abs() < 0.005, "{cell}");
        assert_eq!(
            (&cell["path_differs"], &cell["path_tolerance"]),
            (&json!(false), &json!(0.005))
        );
        json!([row["operation"], row["level"], cell["exits_per_operation"], cell["differences"]])
    };
    let rows = found["rows"].as_array().unwrap();
    let cells: Vec<Value> = rows.iter().flat_map(|row| [cell(row, 0), cell(row, 1)]).collect();
    let cpuid = json!(["cpuid", "L1", 1.0, []]);
    let wbinvd = json!(["wbinvd", "L1", 1.0, []]);
    assert_eq!(cells, [cpuid.clone(), cpuid, wbinvd.clone(), wbinvd]);
    // What was kept is two runs, and their comparison is the one just printed.
    let [first, second] = [0, 1].map(|column: usize| format!("{kept}/{}", names[column]));
    assert_eq!(run_json(&["lab", "compare", &first, &second]), found);
    // Noise has no factor.
    let table = printed(&["lab", "compare", &first, &second]);
    let same = table.lines().filter(|line| line.trim_end().ends_with(" same")).count();
    assert_eq!(same, 2, "{table}");

    let (code, said) = refused(&[&two[..], &["--format", "prometheus"]].concat());
    assert_eq!(code, 2, "{said}");
    let (code, said) = refused(&[&two[..], &["--budget", "none.toml"]].concat());
    assert_eq!(code, 2, "{said}");
}

#[test]
fn what_an_option_changes_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (base, npt0) = (path("base"), path("npt0"));
    printed(&["lab", "run", "--operation", "cpuid,touch-4k", "-o", &base]);
    printed(&["lab", "run", "--operation", "touch-4k", "--option", "kvm_amd.npt=0", "-o", &npt0]);
    let table = printed(&["lab", "compare", &base, &npt0]);
    let lines: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["operation", "level", "base", "npt0"]);
    assert_eq!(lines[1][..4], ["cpuid", "L1", "1", "exit,"]);
    assert_eq!(lines[1][5..], ["not", "run"]);
    assert_eq!(lines[2][..4], ["touch-4k", "L1", "1", "exit,"]);
    assert!(lines[2].last().unwrap().starts_with("x1."), "{table}");
    let named: Vec<&str> = table.lines().filter(|line| line.starts_with("    ")).collect();
    assert_eq!(
        named,
        [
            "    npt0: L1 PF excp page fault 0x40000000 (2 MiB): 1, not 0",
            "    npt0: L1 npf page fault 0x40000000 (2 MiB): 0, not 1",
        ]
    );
    let page = printed(&["lab", "compare", &base, &npt0, "--format", "html"]);
    assert!(page.contains("Different options: base none, npt0 kvm_amd.npt=0."));
    assert!(!page.contains("Different kernel") && !page.contains("Different host"));
    let csv = printed(&["lab", "compare", &base, &npt0, "--format", "csv"]);
    let rows: Vec<[&str; 4]> = csv
        .lines()
        .map(|line| line.split(',').collect::<Vec<_>>()[..4].try_into().unwrap())
        .collect();
    assert_eq!(
        rows,
        [
            ["operation", "level", "run", "exits_per_operation"],
            ["cpuid", "L1", "base", "1"],
            ["touch-4k", "L1", "base", "1"],
            ["touch-4k", "L1", "npt0", "1"],
        ]
    );
}

#[test]
fn inputs_that_cannot_be_compared() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = folder.path().to_str().unwrap();
    let (code, said) = refused(&["lab", "compare", nothing, nothing]);
    assert_eq!(code, 3, "{said}");
    let recording = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../captures/amd-bpftrace/input/latency.bpftrace.txt"
    );
    let (code, said) = refused(&["lab", "compare", recording, recording]);
    assert_eq!(code, 2, "{said}");
    let (code, said) = refused(&["lab", "run", "-o", &format!("{nothing}/no/run")]);
    assert_eq!(code, 5, "{said}");
    assert!(said.contains("create the folder above it first"), "{said}");
}

/// A table of exact counts shows none of a damaged run.
#[test]
fn damaged_runs_are_refused() {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    let folder = tempfile::tempdir().unwrap();
    let damaged = |name: &str| {
        let to = folder.path().join(name.replace('/', "-"));
        copy(&captures.join(name), &to);
        let exits = to.join("exits/000001.parquet");
        let bytes = fs::read(&exits).unwrap();
        fs::write(&exits, &bytes[..bytes.len() / 2]).unwrap();
        to.to_str().unwrap().to_owned()
    };
    let (network, memory) = (damaged("lab-network/polling"), damaged("lab-memory/amd-7.3"));
    let bench = captures.join("bench-memory/amd-7.3").to_str().unwrap().to_owned();
    for arguments in [
        vec!["bench", "compare", &network],
        vec!["lab", "compare", &memory, &memory],
        vec!["bench", "compare", &bench, "--faults", &memory],
    ] {
        let (code, said) = refused(&arguments);
        assert_eq!(code, 4, "{arguments:?}: {said}");
        assert!(said.contains("000001.parquet is damaged"), "{arguments:?}: {said}");
        assert!(said.contains("copy the run again, or measure again"), "{arguments:?}: {said}");
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => _ = fs::copy(entry.path(), to).unwrap(),
        }
    }
}
