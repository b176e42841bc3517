//! `vmtax record --tree` on an emulated host: one run after another, through SIGKILL, on a disk that is too small, and on a full one.

use std::fs;
use std::path::{Path, PathBuf};

use super::losses;
use crate::record::crowd::crowd;
use crate::run::{json, output};

/// Three services beside a guest that exits all the time. The first is killed as soon as it has stored something, and started anew; the
/// second has to remove its oldest run; nothing fits on the disk of the third.
const SERVICES: &str = r#"
mkdir small full
mount -t tmpfs -o size=320k none small
mount -t tmpfs -o size=24k none full
record() {
    at=$1; shift
    ./vmtax record --tree $at --interval 100ms --most-keys 1000 "$@" >>$at.said 2>&1
    echo $? >$at.code
}
there() { [ -e "$1" ]; }
./crowd pulse 1000000 20 & load=$!
./vmtax record --tree tree --interval 100ms --most-keys 1000 >first.said 2>&1 & first=$!
record small --rotate-size 1M --disk-share 100 &
record full --disk-share 100 &
until there tree/host=*/date=*/*/exits/000001.parquet; do sleep 0.1; done
kill -KILL $first
record tree --rotate 500ms &
until there small/host=*/date=*/*/exits/000001.parquet; do sleep 0.1; done
for oldest in small/host=*/date=*/*; do break; done
while there $oldest; do sleep 0.1; done
runs() { set -- tree/host=*/date=*/*; [ $# -ge $least ]; }
least=4
until runs; do sleep 0.1; done
kill -TERM $(pidof vmtax)
wait $(pidof vmtax) 2>/dev/null
kill -KILL $load
wait
cp -r small small.kept
"#;

/// The runs of a tree, in order.
fn runs_of(tree: &Path) -> Vec<PathBuf> {
    let below = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut runs: Vec<PathBuf> = below(tree.to_owned()).flat_map(below).flat_map(below).collect();
    runs.sort();
    runs
}

fn exits(run: &Path) -> u64 {
    let report = json(&["report", run.to_str().unwrap(), "--event", "cause"]);
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    rows.iter().map(|row| row["count"].as_u64().unwrap()).sum()
}

#[test]
fn a_service_goes_on_through_kills_and_full_disks() {
    let folder = tempfile::tempdir().unwrap();
    let found = crowd(folder.path(), SERVICES, "256", &["/usr/bin/mount", "/usr/bin/cp"]);
    let said = |name: &str| fs::read_to_string(found.join(name)).unwrap_or_default();
    let all = ["first", "tree", "small", "full"].map(|name| said(&format!("{name}.said"))).concat();
    for name in ["tree", "small", "full"] {
        assert_eq!(said(&format!("{name}.code")).trim(), "0", "{name}: {all}");
    }

    // The killed run was closed with its loss, the others without; each has exits.
    let runs = runs_of(&found.join("tree"));
    assert!(runs.len() >= 4, "{runs:?}: {all}");
    let truncated = |run: &PathBuf| losses(run)["truncated"].as_array().unwrap().len();
    let interrupted: Vec<usize> = runs.iter().map(truncated).collect();
    assert_eq!((interrupted[0], interrupted.iter().sum::<usize>()), (1, 1), "{interrupted:?}");
    // The last one may have ended before its first interval.
    assert!(runs[..runs.len() - 1].iter().all(|run| exits(run) > 0), "{runs:?}");
    // Their reports stand side by side.
    let names: Vec<&str> = runs.iter().map(|run| run.to_str().unwrap()).collect();
    let beside = json(&[&["report"], &names[..]].concat());
    assert_eq!(beside["recordings"].as_array().unwrap().len(), runs.len());

    // The small disk never was full: its oldest runs made room.
    assert_eq!(said("small.said"), "");
    let kept = runs_of(&found.join("small.kept"));
    assert!(!kept.is_empty() && kept.iter().all(|run| truncated(run) == 0), "{kept:?}");
    // No run fits on the full one, which is waited for.
    let waits = said("full.said");
    assert!(waits.contains("recording continues when there is room"), "{waits}");
    assert_eq!(waits.lines().count(), 1, "{waits}");
    let report = output(&["report", found.join("tree").to_str().unwrap()]);
    assert_eq!(report.status.code(), Some(3));
}
