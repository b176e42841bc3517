//! A matrix that is killed again and again is gone on with until it is whole, and leaves nothing running.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{matrix, name, ok, refused, row, rows, runs};

/// Moments of the kills, ms after the start: from before there is a run to the middle of cells.
const KILLS: [u64; 10] = [3, 15, 40, 90, 160, 230, 310, 420, 570, 800];

#[test]
fn a_run_that_is_killed_ten_times_becomes_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mark = format!("vmtax-kills-{}", std::process::id());
    // Cells long enough to be killed in.
    let text = format!(
        "name = \"kills\"\nrepeats = 5\nwarmup = false\ncategories = [\"host\"]\n{}",
        (0..4)
            .map(|n| format!(
                "[[workload]]\nname = \"w{n}\"\ncommand = [\"sh\", \"-c\", \"sleep 0.3; : {mark}; echo value {n}\"]\n\
                 pattern = 'value (\\d+)'\nmetric = \"value\"\nunit = \"count\"\nbetter = \"lower\"\n"
            ))
            .collect::<String>()
    );
    let matrix = matrix(folder.path(), &text);
    let run = folder.path().join("run");
    let words = ["run", name(&matrix), "-o", name(&run), "--resume"];
    for after in KILLS {
        let mut late = 0;
        loop {
            let mut vmtax = Command::new(env!("CARGO_BIN_EXE_vmtax"))
                .arg("bench")
                .args(words)
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(after));
            let ended = vmtax.try_wait().unwrap();
            vmtax.kill().unwrap();
            let error = vmtax.wait_with_output().unwrap().stderr;
            let Some(status) = ended else { break };
            // This computer slept for longer than all of it takes: once more, from its start.
            late += 1;
            let error = String::from_utf8_lossy(&error);
            assert!(status.success() && late < 5, "it ended before it was killed: {error}");
            fs::remove_dir_all(&run).unwrap();
        }
        // Nothing outlives it for long.
        for _ in 0..3000 {
            if !runs(&mark) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!runs(&mark), "a program of a cell outlives vmtax");
    }
    ok(&words);
    let found = rows(&run);
    for n in 0..4 {
        let row = row(&found, &format!("w{n}"), "value", "host");
        assert_eq!(
            (row["n"].as_str(), row["values"].as_str()),
            ("5", vec![n.to_string(); 5].join(" ").as_str())
        );
        assert_eq!(row["failed"], "0");
    }
    let (code, sentence) = refused(&words);
    assert_eq!(code, 2);
    assert!(sentence.contains("is finished"), "{sentence}");
}
