//! Operations of a file, beside those of the suites.

use std::fs;

use serde_json::Value;

use crate::run::{exits, json, paths, refused};

const OPERATIONS: &str = r#"
[[operation]]
name = "own-cpuid"
code = "xor eax, eax\ncpuid"
exits = { amd = "cpuid", intel = "CPUID" }

[[operation]]
name = "own-rdmsr"
setup = "mov ecx, 0x1b"
bytes = "0f 32"
exits = { amd = "msr" }
"#;

#[test]
fn operations_of_a_file_are_measured_as_those_of_a_suite() {
    let folder = tempfile::tempdir().unwrap();
    let [file, budget] =
        ["op.toml", "budget.toml"].map(|name| folder.path().join(name).display().to_string());
    fs::write(&file, OPERATIONS).unwrap();
    let report = json(&["lab", "run", "--operation-file", &file, "--operation", "cpuid"]);
    let (exits, paths) = (exits(&report), paths(&report));
    assert_eq!(exits.keys().collect::<Vec<_>>(), ["cpuid L1", "own-cpuid L1", "own-rdmsr L1"]);
    assert_eq!(exits["own-cpuid L1"], exits["cpuid L1"]);
    assert!(
        exits["own-rdmsr L1"].starts_with("L1 msr") && exits["own-rdmsr L1"].ends_with(" 1"),
        "{exits:?}"
    );
    // The instruction that only prepares is no part of the path.
    assert!((paths["own-cpuid L1"] - paths["cpuid L1"]).abs() < 15.0, "{paths:?}");
    let blessed = json(&["lab", "run", "--operation-file", &file, "--budget", &budget, "--bless"]);
    assert_eq!(blessed["operations"]["rows"].as_array().map(Vec::len), Some(2), "{blessed}");
    assert!(fs::read_to_string(&budget).unwrap().contains("name = \"own-rdmsr\""));
    let kept: Value = json(&["lab", "run", "--operation-file", &file, "--budget", &budget]);
    assert_eq!(kept["operations"]["rows"].as_array().map(Vec::len), Some(2), "{kept}");
}

#[test]
fn operations_that_cannot_run_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("op.toml");
    let file_text = file.to_str().unwrap();
    let run = |text: &str, more: &[&str]| {
        fs::write(&file, text).unwrap();
        refused(&[&["lab", "run", "--operation-file", file_text], more].concat())
    };
    let one = |rest: &str| format!("[[operation]]\nname = \"own\"\n{rest}");
    let (code, said) = run(&one("bytes = \"0g\""), &[]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("operation \"own\": bytes: are two hexadecimal digits"), "{said}");
    let (code, said) = run(&one("bytes = \"90\"\nhost = \"intel\""), &[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("is not for this host and level"), "{said}");
    let (code, said) = run(&one("bytes = \"90\"\nlevels = [2]"), &[]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("--nested measures L2"), "{said}");
    // It must exit, and does not.
    let (code, said) = run(&one("bytes = \"90\"\nexits = { amd = \"cpuid\" }"), &[]);
    assert_eq!(code, 7, "{said}");
    assert!(
        said.contains("own: 0 exits were recorded, and at least 20 (cpuid) must be taken"),
        "{said}"
    );
    // It ends the guest: an invalid instruction, for which there is no handler.
    let (code, said) = run(&one("bytes = \"0f 0b\""), &[]);
    assert_eq!(code, 7, "{said}");
    assert!(said.contains("own: the guest ended in a triple fault"), "{said}");
    let (code, said) = refused(&["lab", "run", "--operation-file", "/nonexistent/op.toml"]);
    assert_eq!(code, 3, "{said}");
}
