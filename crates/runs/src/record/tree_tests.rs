use std::collections::BTreeSet;

use vmtax_events::{ExitKey, ExitRow, Isa, Losses, Reason, Recording, Tally};
use vmtax_store::CreateOptions;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

/// All of the disk.
fn retention() -> Retention {
    Retention { rotate: HOUR, rotate_bytes: u64::MAX, keep: None, share: 1.0 }
}

/// A run with one row, closed or not.
fn run(folder: &Path, is_closed: bool) {
    let mut writer = RunWriter::create(folder, &CreateOptions::default()).unwrap();
    let key = ExitKey::of(1, Reason { isa: Isa::Svm, code: 0x72, flags: 0 });
    let row = ExitRow { interval_start_ns: 0, key, tally: Tally { count: 7, ..Tally::default() } };
    writer.exit(&row).unwrap();
    if is_closed {
        writer.finish(&Recording::default(), &Losses::default()).unwrap();
    } else {
        writer.segment().unwrap();
    }
}

fn runs_of(tree: &RunTree) -> BTreeSet<String> {
    let name = |run: &Closed| run.folder.strip_prefix(&tree.folder).unwrap().display().to_string();
    tree.closed.iter().map(name).collect()
}

/// A tree in a folder, with these runs by their time; the later the newer.
fn tree_with(folder: &Path, names: &[&str], retention: Retention) -> RunTree {
    let tree = RunTree::open(folder, "web 1", retention).unwrap();
    let date = tree.folder.join("date=2026-01-31");
    fs::create_dir_all(&date).unwrap();
    for (at, name) in names.iter().enumerate() {
        run(&date.join(name), true);
        let manifest =
            fs::File::options().append(true).open(date.join(name).join(MANIFEST)).unwrap();
        let at = SystemTime::now() - HOUR * (names.len() - at) as u32;
        manifest.set_modified(at).unwrap();
    }
    drop(tree);
    RunTree::open(folder, "web 1", retention).unwrap()
}

#[test]
fn a_run_goes_where_queries_look_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let tree = RunTree::open(folder.path(), "../web 1", retention()).unwrap();
    let first = tree.next_run().unwrap();
    let path = first.strip_prefix(folder.path()).unwrap().display().to_string();
    let parts: Vec<&str> = path.split('/').collect();
    let [host, date, time] = parts[..] else { panic!("{path}") };
    assert_eq!(host, "host=.._web_1");
    assert!(date.starts_with("date=20") && date.len() == "date=2026-01-31".len(), "{date}");
    assert!(time.ends_with('Z') && time.len() == "120000Z".len(), "{time}");
    // Names that were given are not given again.
    let names: BTreeSet<PathBuf> = (0..5)
        .map(|_| {
            let next = tree.next_run().unwrap();
            run(&next, true);
            next
        })
        .collect();
    assert_eq!(names.len(), 5);
}

#[test]
fn unfinished_runs_are_closed_with_a_loss() {
    let folder = tempfile::tempdir().unwrap();
    let tree = tree_with(folder.path(), &["a"], retention());
    let date = tree.folder.join("date=2026-01-31");
    drop(tree);
    run(&date.join("killed"), false);
    // Killed before the first interval, before the manifest, and a folder that is none of ours.
    drop(RunWriter::create(&date.join("empty"), &CreateOptions::default()).unwrap());
    fs::create_dir(date.join("bare")).unwrap();
    fs::create_dir(date.join("other")).unwrap();
    fs::write(date.join("other/file"), "").unwrap();
    let tree = RunTree::open(folder.path(), "web 1", retention()).unwrap();
    let named = ["a", "killed"].map(|name| format!("date=2026-01-31/{name}"));
    assert_eq!(runs_of(&tree), BTreeSet::from(named));
    let killed = Run::open(&date.join("killed")).unwrap();
    assert!(killed.is_complete());
    assert_eq!(killed.manifest().losses.truncated, [INTERRUPTED]);
    assert!(Run::open(&date.join("a")).unwrap().manifest().losses.truncated.is_empty());
    assert_eq!(killed.manifest().segments.len(), 1);
    assert!(!date.join("empty").exists() && !date.join("bare").exists());
    assert!(date.join("other/file").exists());
}

#[test]
fn one_recorder_at_a_time_records_into_the_tree_of_a_host() {
    let folder = tempfile::tempdir().unwrap();
    let first = RunTree::open(folder.path(), "a", retention()).unwrap();
    let error = RunTree::open(folder.path(), "a", retention()).map(drop).unwrap_err().to_string();
    assert!(error.contains("host=a: is being recorded into by process "), "{error}");
    RunTree::open(folder.path(), "b", retention()).unwrap();
    drop(first);
    RunTree::open(folder.path(), "a", retention()).unwrap();
}

#[test]
fn old_runs_are_removed_and_others_kept() {
    let folder = tempfile::tempdir().unwrap();
    let limits = Retention { keep: Some(HOUR * 2 + HOUR / 2), ..retention() };
    let mut tree = tree_with(folder.path(), &["a", "b", "c", "d"], limits);
    fs::write(tree.folder.join("note"), "").unwrap();
    tree.make_room(0).unwrap();
    let named = ["c", "d"].map(|name| format!("date=2026-01-31/{name}"));
    assert_eq!(runs_of(&tree), BTreeSet::from(named));
    assert!(!tree.folder.join("date=2026-01-31/a").exists());
    assert!(tree.folder.join("note").exists());
}

#[test]
fn the_oldest_runs_make_room_and_their_day_goes_with_the_last() {
    let folder = tempfile::tempdir().unwrap();
    let mut tree = tree_with(folder.path(), &["a", "b", "c", "d"], retention());
    let system = statvfs(folder.path()).unwrap();
    let disk = (system.f_blocks * system.f_frsize) as f64;
    let one = tree.closed[0].bytes;
    // Room for two runs and a half, besides the reserve.
    let most = (one * 5 / 2 * RESERVE / (RESERVE - 1)) as f64;
    tree.retention.share = most / disk;
    tree.make_room(0).unwrap();
    let named = ["c", "d"].map(|name| format!("date=2026-01-31/{name}"));
    assert_eq!(runs_of(&tree), BTreeSet::from(named));
    // The open run needs room too.
    tree.make_room(one).unwrap();
    assert_eq!(runs_of(&tree), BTreeSet::from(["date=2026-01-31/d".to_owned()]));
    // A run that somebody else removed is not counted any more.
    remove(&tree.folder.join("date=2026-01-31/d")).unwrap();
    assert!(!tree.folder.join("date=2026-01-31").exists());
    tree.make_room(0).unwrap();
    assert!(tree.closed.is_empty());
    // A run is closed long before it takes all of the share.
    assert!(tree.is_full_run(Duration::ZERO, one).unwrap());
    assert!(!tree.is_full_run(Duration::ZERO, one / 8).unwrap());
    assert!(tree.is_full_run(HOUR, 0).unwrap());
}
