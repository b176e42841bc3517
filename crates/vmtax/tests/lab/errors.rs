//! What goes wrong: one sentence, the documented code, nothing left running.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::run::{cache, printed, refused, vmtax};

fn one_sentence(said: &str) {
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(said.starts_with("vmtax: "), "{said}");
}

#[test]
fn invalid_kernels() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("bzImage");
    fs::write(&image, vec![0x5a; 100_000]).unwrap();
    let (code, said) = refused(&["lab", "run", "--kernel", image.to_str().unwrap()]);
    assert_eq!(code, 4, "{said}");
    one_sentence(&said);
    let (code, said) = refused(&["lab", "run", "--kernel", "/nonexistent/bzImage"]);
    assert_eq!(code, 3, "{said}");
    one_sentence(&said);
}

/// They would be left out without a word.
#[test]
fn suites_that_a_host_or_a_flag_does_not_have() {
    let cases: [(&[&str], &str); 6] = [
        (
            &["run", "--suite", "start", "--host", "amd-bochs"],
            "--suite start: cannot be measured on --host amd-bochs; use amd, intel, arm",
        ),
        (
            &["run", "--operation", "cpuid,create-vm", "--host", "kvm"],
            "--operation create-vm: cannot be measured on --host kvm; use amd",
        ),
        (
            &["run", "--suite", "primitives,start", "--profile", "--host", "intel"],
            "--profile: has call trees of --suite start on --host amd and arm alone",
        ),
        (
            &["run", "--operation", "create-vm", "--nested", "--host", "intel"],
            "--nested: --operation create-vm has VMs of a guest's on --host amd alone",
        ),
        (
            &["run", "--suite", "boot,workloads", "--host", "arm"],
            "these need several: for its boot alone, for workloads; run them",
        ),
        (
            &["series", "--kernel", "6.1", "-o", "none", "--processors", "4"],
            "--processors: only steps of a VM's life and first accesses to memory are measured",
        ),
    ];
    for (arguments, expected) in cases {
        let (code, said) = refused(&[&["lab"], arguments].concat());
        assert!(code == 2 && said.contains(expected), "{code} {said}");
        one_sentence(&said);
    }
}

#[test]
fn a_kernel_without_kvm() {
    // The distribution's image, with a folder of modules that has none.
    printed(&["lab", "run", "--operation", "cpuid"]);
    let image = find(&cache().join("vmtax/kernels"), "vmlinuz-").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let modules = folder.path().to_str().unwrap();
    let (code, said) =
        refused(&["lab", "run", "--kernel", image.to_str().unwrap(), "--modules", modules]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("kvm_amd"), "{said}");
    one_sentence(&said);
}

pub(crate) fn find(folder: &std::path::Path, start: &str) -> Option<std::path::PathBuf> {
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = find(&path, start) {
                return Some(found);
            }
        } else if entry.file_name().to_string_lossy().starts_with(start) {
            return Some(path);
        }
    }
    None
}

#[test]
fn no_emulator() {
    let output = vmtax(&["lab", "run"]).env("PATH", "/nonexistent").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("apt-get install"), "{said}");
    one_sentence(&said);
}

#[test]
fn a_host_that_takes_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let (code, said) =
        refused(&["lab", "run", "--fresh", "--limit", "1s", "-o", run.to_str().unwrap()]);
    assert_eq!(code, 7, "{said}");
    one_sentence(&said);
    assert!(said.contains("not done after 1 s"), "{said}");
    assert!(run.join("console.txt").exists());
}

#[test]
fn killed_it_leaves_no_emulator() {
    // Again if it was over before anybody looked.
    assert!((0..5).any(|_| is_killed_with_its_emulator()), "no emulator was started");
}

/// Kills it as soon as it has an emulator, which must end too. False if all of it was over.
fn is_killed_with_its_emulator() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap();
    let mut child = vmtax(&["lab", "run", "--fresh"])
        .env("TMPDIR", home)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let children = || {
        let text = Command::new("ps")
            .args(["--ppid", &pid.to_string(), "-o", "pid="])
            .output()
            .unwrap()
            .stdout;
        String::from_utf8(text).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let mut emulators = Vec::new();
    // The kernel may have to be fetched first.
    for _ in 0..6000 {
        emulators = children();
        if !emulators.is_empty() || child.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    if emulators.is_empty() {
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "no emulator was started: {error}");
        return false;
    }
    let alive = |pid: &String| fs::metadata(format!("/proc/{pid}")).is_ok() && !is_zombie(pid);
    for _ in 0..6000 {
        if !emulators.iter().any(alive) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(!emulators.iter().any(alive), "an emulator outlived its vmtax");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    true
}

fn is_zombie(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
}

#[test]
fn a_full_disk() {
    // A file system of its own for the cache, in which the kernel does not fit.
    let folder = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o "size=$1" tmpfs "$2" && shift 2 && exec "$@""#;
    let run = |size: &str, arguments: &[&str]| {
        Command::new("unshare")
            .args(["-m", "sh", "-c", script, "sh", size, folder.path().to_str().unwrap()])
            .arg(env!("CARGO_BIN_EXE_vmtax"))
            .args(arguments)
            .env("XDG_CACHE_HOME", folder.path())
            .output()
            .unwrap()
    };
    let allowed = Command::new("unshare").args(["-m", "true"]).status().unwrap().success();
    if !allowed {
        return vmtax_skipped::system("no file system can be mounted here: it needs root");
    }
    for size in ["20m", "250m"] {
        let output = run(size, &["lab", "run", "--operation", "cpuid"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(5), "{said}");
        assert!(said.contains("No space left on device"), "{said}");
        one_sentence(&said);
    }
}

#[test]
fn a_machine_is_not_saved_where_its_memory_does_not_fit() {
    let allowed = Command::new("unshare").args(["-m", "true"]).status().unwrap().success();
    if !allowed {
        return vmtax_skipped::system("no file system can be mounted here: it needs root");
    }
    // A file system of its own for the saved machines alone. Bochs does not notice that it is full.
    let script = r#"mkdir -p "$1" && mount -t tmpfs -o size=150m tmpfs "$1" && shift && "$@"; code=$?
        ls "$XDG_CACHE_HOME/vmtax/machines"; exit "$code""#;
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(cache().join("vmtax/machines"))
        .arg(env!("CARGO_BIN_EXE_vmtax"))
        .args(["lab", "run", "--host", "intel", "--operation", "cpuid"])
        .env("XDG_CACHE_HOME", cache())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("cannot save the machine: no storage space; free some space"), "{said}");
    one_sentence(&said);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "something was left");
}
