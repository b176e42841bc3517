//! What is refused, in which words; and who may read what is written.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use vmtax_store::{Error, Run, RunWriter, is_run};

use crate::samples::{self, edit_manifest, options, write_run};

const CHILD: &str = "VMTAX_STORE_TEST_UMASK";

fn refused(folder: &Path) -> String {
    match RunWriter::create(folder, &options()) {
        Ok(_) => panic!("{} was taken", folder.display()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn folders_that_are_taken() {
    let temp = tempfile::tempdir().unwrap();
    let run = temp.path().join("run");
    write_run(&run, 1, 1);
    let before = samples::tree(&run);
    let message = refused(&run);
    assert!(message.starts_with(run.to_str().unwrap()), "{message}");
    assert!(message.contains("already holds a run; choose another folder"), "{message}");
    assert_eq!(samples::tree(&run), before);

    let other = temp.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("thesis.tex"), "").unwrap();
    assert!(refused(&other).contains("is not empty"));
    assert!(refused(&other.join("thesis.tex")).contains("is a file"));
    assert!(refused(&temp.path().join("no/such")).contains("create the folder above it first"));

    let empty = temp.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(RunWriter::create(&empty, &options()).is_ok());
}

#[test]
fn folders_without_a_run() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("file");
    fs::write(&file, "").unwrap();
    for (folder, expected) in [
        (temp.path().to_owned(), "has no run.json"),
        (file, "is a file"),
        (temp.path().join("none"), "there is no such folder"),
    ] {
        assert!(!is_run(&folder));
        let error = Run::open(&folder).unwrap_err();
        assert!(matches!(error, Error::NotARun { .. }));
        let message = error.to_string();
        assert!(message.starts_with(folder.to_str().unwrap()), "{message}");
        assert!(message.contains(expected) && message.contains("vmtax import"), "{message}");
    }
    let folder = temp.path().join("odd");
    fs::create_dir_all(folder.join("run.json")).unwrap();
    let message = Run::open(&folder).unwrap_err().to_string();
    assert!(message.contains("is not a regular file"), "{message}");
}

#[test]
fn newer_runs() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    write_run(&folder, 1, 1);
    edit_manifest(&folder, |json| {
        *json = serde_json::json!({"format_version": 2, "tool_version": "9.0", "segments": "?"});
    });
    let message = Run::open(&folder).unwrap_err().to_string();
    assert!(message.contains("format version 2 is newer than 1"), "{message}");
    assert!(message.contains("use the vmtax that wrote it (\"9.0\")"), "{message}");
}

#[test]
fn manifests_with_fewer_and_more_fields() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("run");
    write_run(&folder, 1, 1);
    edit_manifest(&folder, |json| {
        json["new"] = serde_json::json!({"deep": [1]});
        json["recording"] = serde_json::json!({"vms": [{"id": 1, "new": 2}], "new": 3});
        json["losses"] = serde_json::json!({"new": 4});
        for gone in ["created", "command", "labels", "span", "accelerator", "tool_version"] {
            json.as_object_mut().unwrap().remove(gone);
        }
    });
    let run = Run::open(&folder).unwrap();
    assert_eq!(run.manifest().recording.vms[0].id, 1);
    assert_eq!(run.read(&mut samples::Rows::default()).unwrap().rows, 5);
    edit_manifest(&folder, |json| drop(json.as_object_mut().unwrap().remove("complete")));
    assert!(Run::open(&folder).unwrap_err().to_string().contains("complete"));
}

/// Not a test of its own: writes under the umask that [`whatever_the_umask`] sets.
#[test]
fn child() {
    if let Some(folder) = env::var_os(CHILD) {
        write_run(&PathBuf::from(folder), 3, 2);
    }
}

#[test]
fn whatever_the_umask() {
    for umask in ["000", "022", "077", "177", "777"] {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("run");
        let output = Command::new("sh")
            .args(["-c", &format!("umask {umask} && exec \"$0\" --exact refusals::child")])
            .arg(env::current_exe().unwrap())
            .env(CHILD, &folder)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let names = samples::tree(&folder);
        assert_eq!(names.len(), 1 + 6 + 6 * 2);
        for path in names.iter().map(|name| folder.join(name)).chain([folder.clone()]) {
            let metadata = fs::metadata(&path).unwrap();
            let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
            let mode = metadata.permissions().mode() & 0o777;
            assert_eq!(mode, expected, "umask {umask}: {}", path.display());
        }
    }
}
