//! `vmtax record --tree` on an emulated host: one run after another, through SIGKILL, on a disk that is too small, and on a full one.

use std::fs;
use std::path::{Path, PathBuf};

use super::{counts, losses, observe_script};
use crate::run::{json, output};

/// Three services beside a recorder of the whole suite. The first is killed as soon as it has stored something, and started anew.
const SERVICES: &str = r#"
mkdir small full
mount -t tmpfs -o size=320k none small
mount -t tmpfs -o size=24k none full
record() {
    at=$1; shift
    ./vmtax record --tree $at --interval 300ms --most-keys 1000 "$@" >>$at.said 2>&1
    echo $? >$at.code
}
./vmtax record -o whole --interval 500ms --most-keys 1000 >whole.said 2>&1 & whole=$!
./vmtax record --tree tree --interval 300ms --most-keys 1000 >first.said 2>&1 & first=$!
record small --rotate-size 1M --disk-share 100 & small=$!
record full --disk-share 100 & full=$!
second=
stored() { for file in tree/host=*/date=*/*/exits/000001.parquet; do [ -e $file ] && return; done; return 1; }
end() {
    kill -TERM $(pidof vmtax)
    wait
    cp -r small small.kept
    exit 0
}
trap end INT
until stored; do sleep 1; done
kill -KILL $first
record tree --rotate 2s & second=$!
while kill -0 $whole; do wait $whole; done
"#;

/// The runs of a tree, in order.
fn runs_of(tree: &Path) -> Vec<PathBuf> {
    let below = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut runs: Vec<PathBuf> = below(tree.to_owned()).flat_map(below).flat_map(below).collect();
    runs.sort();
    runs
}

fn exits(run: &Path) -> u64 {
    let all = counts(run);
    all.iter().filter(|(key, _)| key.contains(" vmexit,")).map(|(_, count)| count).sum()
}

#[test]
fn a_service_goes_on_through_kills_and_full_disks() {
    let folder = tempfile::tempdir().unwrap();
    let found = observe_script(folder.path(), SERVICES, &["/usr/bin/mount", "/usr/bin/cp"], &[]);
    let said = |name: &str| fs::read_to_string(found.join(name)).unwrap_or_default();
    let all = ["whole", "first", "tree", "small", "full"].map(|name| said(&format!("{name}.said")));
    let all = all.concat();
    for name in ["tree", "small", "full"] {
        assert_eq!(said(&format!("{name}.code")).trim(), "0", "{name}: {all}");
    }
    let whole = exits(&found.join("whole"));

    // The killed run was closed with its loss, all others without.
    let runs = runs_of(&found.join("tree"));
    assert!(runs.len() >= 3, "{runs:?}: {all}");
    let truncated = |run: &PathBuf| losses(run)["truncated"].as_array().unwrap().len();
    let interrupted: Vec<usize> = runs.iter().map(truncated).collect();
    assert_eq!((interrupted[0], interrupted.iter().sum::<usize>()), (1, 1), "{interrupted:?}");
    let sum: u64 = runs.iter().map(|run| exits(run)).sum();
    assert!(sum > whole / 2 && sum <= whole, "{sum} of {whole}");
    // Their reports stand side by side.
    let names: Vec<&str> = runs.iter().map(|run| run.to_str().unwrap()).collect();
    let beside = json(&[&["report"], &names[..]].concat());
    assert_eq!(beside["recordings"].as_array().unwrap().len(), runs.len());

    // The small disk never was full: its oldest runs made room.
    assert_eq!(said("small.said"), "");
    let kept = runs_of(&found.join("small.kept"));
    assert!(!kept.is_empty() && kept.iter().all(|run| truncated(run) == 0), "{kept:?}");
    let sum: u64 = kept.iter().map(|run| exits(run)).sum();
    assert!(sum > 0 && sum < whole, "{sum} of {whole}");
    // No run fits on the full one, which is waited for.
    let waits = said("full.said");
    assert!(waits.contains("recording continues when there is room"), "{waits}");
    assert_eq!(waits.lines().count(), 1, "{waits}");
    let report = output(&["report", found.join("tree").to_str().unwrap()]);
    assert_eq!(report.status.code(), Some(3));
}
