//! Programs that never end or print without end: their cells fail with the reason, the others do not.

use std::fs;
use std::process::Command;

use crate::{matrix, name, row, rows};

const MATRIX: &str = r#"
repeats = 1
warmup = false
exits = false
limit_seconds = 600
categories = ["host"]
[[workload]]
name = "output"
command = ["cat", "/dev/zero"]
[[workload]]
name = "errors"
command = ["sh", "-c", "exec cat /dev/zero >&2"]
[[workload]]
name = "much"
command = ["head", "-c", "20000000", "/dev/zero"]
[[workload]]
name = "fine"
command = ["head", "-c", "10000000", "/dev/zero"]
"#;

const SILENT: &str = r#"
repeats = 1
warmup = false
exits = false
limit_seconds = 1
categories = ["host"]
[[workload]]
name = "silent"
command = ["sleep", "1000"]
"#;

/// What the file of a workload's only cell says of its problem.
fn problem(run: &std::path::Path, workload: &str) -> String {
    let cells = fs::read_dir(run.join("cells")).unwrap().flatten();
    let cell = cells.map(|e| e.path()).find(|path| path.to_str().unwrap().contains(workload));
    let bytes = fs::read(cell.unwrap()).unwrap();
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(1000)]).into_owned();
    text.lines().find_map(|line| line.strip_prefix("problem: ")).unwrap().to_owned()
}

#[test]
fn programs_without_end_cost_their_own_cells() {
    for (text, code, expected) in [
        (
            MATRIX,
            0,
            &[
                ("output", "it wrote more than 16 MiB of output, and was ended"),
                ("errors", "it wrote more than 16 MiB of output, and was ended"),
                ("much", "it wrote more than 16 MiB of output, and was ended"),
                ("fine", "none"),
            ][..],
        ),
        // No cell was measured.
        (SILENT, 7, &[("silent", "it took longer than its limit, and was ended")]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (run, temporary) = (folder.path().join("run"), folder.path().join("temporary"));
        fs::create_dir(&temporary).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_vmtax"))
            .args(["bench", "run", name(&matrix(folder.path(), text)), "-o", name(&run)])
            .env("TMPDIR", &temporary)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert_eq!(error.contains("no cell was measured"), code == 7, "{error}");
        let found = rows(&run);
        for (workload, says) in expected {
            assert_eq!(problem(&run, workload), *says, "{workload}");
            if *says == "none" {
                assert_eq!(row(&found, workload, "time", "host")["failed"], "0");
            }
        }
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "something was left behind");
    }
}
