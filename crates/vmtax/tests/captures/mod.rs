//! The shipped captures, unpacked, and `vmtax report` on them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../captures")
}

pub(crate) fn expected(capture: &str, file: &str) -> String {
    let path = root().join(capture).join("expected").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// An input as a file that can be read as it is; `.zst` is unpacked, once per test process.
pub(crate) fn unpack(capture: &str, file: &str) -> PathBuf {
    static UNPACKED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let packed = root().join(capture).join("input").join(file);
    let Some(name) = file.strip_suffix(".zst") else { return packed };
    let mut unpacked = UNPACKED.lock().unwrap_or_else(|e| e.into_inner());
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{capture}-{name}"));
    if unpacked.insert(path.clone()) {
        let packed =
            std::fs::File::open(&packed).unwrap_or_else(|e| panic!("{}: {e}", packed.display()));
        // Other test processes may be reading or writing the same: it appears whole.
        let part = folder.join(format!("{}-{capture}-{name}", std::process::id()));
        zstd::stream::copy_decode(packed, std::fs::File::create(&part).unwrap()).unwrap();
        std::fs::rename(part, &path).unwrap();
    }
    path
}

/// What `vmtax report INPUT ARGS` prints; it must succeed.
pub(crate) fn report(input: &Path, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_vmtax"))
        .arg("report")
        .arg(input)
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `vmtax report INPUT --format json ARGS`.
pub(crate) fn json(input: &Path, args: &[&str]) -> Value {
    let mut all = vec!["--format", "json"];
    all.extend(args);
    serde_json::from_str(&report(input, &all)).unwrap()
}
