//! Every command that shows a table has every format, on standard output and in a file, and both are the same.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use crate::check::vmtax;

/// Command lines, and the first key of their CSV.
const COMMANDS: [(&str, &str); 17] = [
    ("report td --isa vmx", "table,accelerator,"),
    ("report plain td --isa vmx", "table,recording,host,kernel,"),
    ("diff plain td --isa vmx --length 10s", "table,key,per,"),
    ("explain td --against plain --isa vmx --length 10s", "id,certainty,means,"),
    ("explain --before plain --after td --isa vmx --length 10s", "subject,fate,before,"),
    ("bench compare results.csv", "workload,metric,unit,"),
    ("doctor --root root", "verdict,check,subject,"),
    ("doctor --pages --root root", "pid,name,kind,"),
    ("vpmu selftest", "gate,policy,found,at_least,at_most,holds\r\n"),
    ("vpmu bench --turns 0", "table,host,accelerator,kernel,operation,creates_legacy,"),
    ("mem bench --size 1 --rounds 1 --accel cpu", "operation,"),
    ("mem scan image", "table,bytes,why,holds,pages,share,estimate,time_ns,about\r\n"),
    (
        "bench compare memory --exits",
        "workload,category,baseline,unit,guest,reason,exits_baseline,exits,ratio\r\n",
    ),
    ("lab compare bounce bounce", "operation,level,run,"),
    ("bench compare network --exits", "workload,category,baseline,unit,guest,"),
    ("lab list", "operation,summary,suite,suite_summary,"),
    (
        "bench list",
        "table,category,is_part,inside,about,workload,metric,missing,parameters,operation,has_client\r\n",
    ),
];

#[test]
fn every_table_has_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("plain"), super::diff::PLAIN).unwrap();
    fs::write(folder.join("td"), super::diff::TD).unwrap();
    fs::create_dir(folder.join("root")).unwrap();
    fs::write(folder.join("image"), vec![7; 1 << 20]).unwrap();
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures");
    fs::copy(captures.join("published/s2.csv"), folder.join("results.csv")).unwrap();
    for (name, run) in [
        ("memory", "bench-memory/amd-7.3"),
        ("bounce", "lab-memory/amd-6.12-bounce"),
        ("network", "lab-network/vhost"),
    ] {
        symlink(captures.join(run), folder.join(name)).unwrap();
    }
    for (words, csv) in COMMANDS {
        for format in ["text", "json", "csv", "html"] {
            let words = format!("{words} --format {format}");
            let output = vmtax(folder, &words);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{words}: {said}");
            let shown = String::from_utf8(output.stdout).unwrap();
            match format {
                "json" => {
                    let document: Value = serde_json::from_str(&shown).unwrap();
                    assert!(document["schema"].as_str().unwrap().starts_with("vmtax-"), "{words}");
                }
                "csv" => assert!(shown.starts_with(csv), "{words}: {shown}"),
                "html" => assert!(shown.starts_with("<!DOCTYPE html>"), "{words}"),
                // `<0.1` is a share, `</` a page.
                _ => {
                    assert!(!shown.contains("</") && shown.lines().count() > 1, "{words}: {shown}")
                }
            }
            let output = vmtax(folder, &format!("{words} -o file"));
            assert!(output.status.success() && output.stdout.is_empty(), "{words}");
            let file = fs::read_to_string(folder.join("file")).unwrap();
            match words.starts_with("mem ") {
                // Speeds and times are measured anew.
                true => assert_eq!(shape(&file), shape(&shown), "{words}"),
                false => assert_eq!(file, shown, "{words}"),
            }
        }
    }
}

/// A text without its numbers, their units and their alignment.
fn shape(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphabetic).filter(|c| !"nmuskKMGTiB".contains(*c)).collect()
}

/// What the CSV of an explanation has is what its JSON has.
#[test]
fn findings_are_rows() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("td"), super::diff::TD).unwrap();
    let output = |format: &str| {
        let words = format!("explain td --isa vmx --length 10s --format {format}");
        String::from_utf8(vmtax(folder.path(), &words).stdout).unwrap()
    };
    let document: Value = serde_json::from_str(&output("json")).unwrap();
    let found = document["findings"].as_array().unwrap();
    let csv = output("csv");
    let rows: Vec<&str> = csv.lines().skip(1).collect();
    assert_eq!(rows.len(), found.len(), "{csv}");
    assert!(!rows.is_empty());
    for (row, finding) in rows.iter().zip(found) {
        let start = [&finding["id"], &finding["certainty"]].map(|word| word.as_str().unwrap());
        assert!(row.starts_with(&start.join(",")), "{row}: {finding}");
    }
}
