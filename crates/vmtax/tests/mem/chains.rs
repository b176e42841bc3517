//! A checkpoint never takes the place of one that it, or another, is based on; chains that are cycles are named.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::guest::{RunningGuest, check};
use super::{child_of, image, name, ok, refused};

/// `FOLDER/a/gp.ckpt`, its child `FOLDER/b/parent.ckpt`, and that one's child `FOLDER/b/child.ckpt`.
struct CheckpointChain {
    folder: tempfile::TempDir,
}

impl CheckpointChain {
    fn new() -> CheckpointChain {
        let chain = CheckpointChain { folder: tempfile::tempdir().unwrap() };
        for folder in ["a", "b"] {
            fs::create_dir(chain.path(folder)).unwrap();
        }
        let image = chain.image(0);
        ok(&["save", "--image", name(&image), "-o", name(&chain.path("a/gp.ckpt"))]);
        for (age, parent, child) in
            [(1, "a/gp.ckpt", "b/parent.ckpt"), (2, "b/parent.ckpt", "b/child.ckpt")]
        {
            let image = chain.image(age);
            ok(&child_of(&chain.path(parent), &image, &chain.path(child)));
        }
        chain
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn image(&self, age: u8) -> PathBuf {
        let path = self.path(&format!("{age}.img"));
        let mut bytes = image(64, 1);
        bytes.iter_mut().step_by(9000).for_each(|b| *b ^= age);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn files(&self) -> Vec<Vec<u8>> {
        ["a/gp.ckpt", "b/parent.ckpt", "b/child.ckpt"]
            .map(|f| fs::read(self.path(f)).unwrap())
            .into()
    }
}

#[test]
fn no_ancestor_is_written_over_under_any_name() {
    let chain = CheckpointChain::new();
    let image = chain.image(3);
    let gp = chain.path("a/gp.ckpt");
    symlink(&gp, chain.path("symbolic")).unwrap();
    symlink("symbolic", chain.path("symbolic2")).unwrap();
    symlink("a", chain.path("folder")).unwrap();
    fs::hard_link(&gp, chain.path("hard")).unwrap();
    let before = chain.files();
    let names = ["a/gp.ckpt", "b/../a/gp.ckpt", "symbolic", "symbolic2", "folder/gp.ckpt", "hard"];
    for parent in ["b/parent.ckpt", "b/child.ckpt"] {
        for output in names {
            let (code, said) = refused(&child_of(&chain.path(parent), &image, &chain.path(output)));
            assert_eq!(code, 2, "{parent} {output}: {said}");
            assert!(said.contains("gp.ckpt, which the new checkpoint would be based on"), "{said}");
            // The other way round: the image that a restore writes.
            let (parent, output) = (chain.path(parent), chain.path(output));
            let (code, said) = refused(&["restore", name(&parent), "--image", name(&output)]);
            assert_eq!(code, 2, "{said}");
            assert!(said.contains("gp.ckpt, which is restored"), "{said}");
        }
    }
    // A relative name, from the folder itself.
    let relative = Command::new(env!("CARGO_BIN_EXE_vmtax"))
        .current_dir(chain.path("a"))
        .arg("mem")
        .args(child_of(Path::new("../b/child.ckpt"), Path::new("../0.img"), Path::new("gp.ckpt")))
        .output()
        .unwrap();
    assert_eq!(relative.status.code(), Some(2), "{}", String::from_utf8_lossy(&relative.stderr));
    assert!(chain.files() == before, "a refused save changed the chain");
    let kept = |path: &str| chain.path(path).symlink_metadata().unwrap().is_symlink();
    assert!(kept("symbolic") && kept("symbolic2"));
    ok(&["verify", name(&chain.path("b/child.ckpt"))]);
    assert_eq!(fs::read_dir(chain.path("a")).unwrap().count(), 1, "a refused save left a file");
    // Another output is none of the chain.
    ok(&child_of(&chain.path("b/child.ckpt"), &image, &chain.path("a/next.ckpt")));
    ok(&["verify", name(&chain.path("a/next.ckpt"))]);
}

#[test]
fn no_ancestor_is_written_over_where_it_is_mounted_too() {
    let chain = CheckpointChain::new();
    let image = chain.image(3);
    fs::create_dir(chain.path("mounted")).unwrap();
    let before = chain.files();
    let (child, output) = (chain.path("b/child.ckpt"), chain.path("mounted/gp.ckpt"));
    let (from, to) = (chain.path("a"), chain.path("mounted"));
    let script = "mount --bind \"$1\" \"$2\" || exit 99; shift 2; exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh", name(&from), name(&to)])
        .args([env!("CARGO_BIN_EXE_vmtax"), "mem"])
        .args(child_of(&child, &image, &output))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(99) || said.starts_with("unshare:") {
        eprintln!("SKIPPED: nothing can be mounted here");
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("which the new checkpoint would be based on"), "{said}");
    assert!(chain.files() == before);
}

/// A later checkpoint may be based on it, too.
#[test]
fn no_parent_is_written_over_that_has_a_child_beside_it() {
    let chain = CheckpointChain::new();
    let (image, parent) = (chain.image(3), chain.path("b/parent.ckpt"));
    let (code, said) = refused(&["save", "--image", name(&image), "-o", name(&parent)]);
    assert_eq!(code, 2, "{said}");
    assert!(said.contains("child.ckpt is based on it"), "{said}");
    // The last of a chain has none.
    ok(&child_of(&parent, &image, &chain.path("b/child.ckpt")));
    fs::remove_file(chain.path("b/child.ckpt")).unwrap();
    ok(&["save", "--image", name(&image), "-o", name(&parent)]);
    ok(&["verify", name(&parent)]);
}

/// Another program has put a descendant in the place of its ancestor.
#[test]
fn a_cycle_is_named_with_its_files() {
    let chain = CheckpointChain::new();
    let [gp, parent, child] = ["a/gp.ckpt", "b/parent.ckpt", "b/child.ckpt"].map(|f| chain.path(f));
    fs::rename(&child, &gp).unwrap();
    // In the file its parent is `parent.ckpt`, beside it.
    symlink(&parent, chain.path("a/parent.ckpt")).unwrap();
    let out = chain.path("out");
    for words in [
        &["verify", name(&gp)][..],
        &["restore", name(&gp), "--image", name(&out)],
        &child_of(&gp, &chain.path("0.img"), &out),
    ] {
        let (code, said) = refused(words);
        assert_eq!(code, 4, "{said}");
        assert!(
            said.contains("its parents lead back to it, so one of them was written over"),
            "{said}"
        );
        let named =
            format!("{gp} -> {} -> {gp}", name(&chain.path("a/parent.ckpt")), gp = name(&gp));
        assert!(said.contains(&named), "{said}");
    }
    assert!(!out.exists());
    // From another file of the cycle its parent is found to be another one first.
    let (code, said) = refused(&["verify", name(&parent)]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("gp.ckpt, which is another checkpoint than it was made from"), "{said}");
}

/// With a real QEMU: the VM goes on, and its checkpoints and its memory are as they were.
#[test]
fn a_vm_is_not_saved_over_what_it_is_saved_from() {
    let dir = tempfile::tempdir().unwrap();
    let guest = RunningGuest::start(dir.path(), "vm", "128M", "", false);
    let path = |file: &str| dir.path().join(file);
    let socket = guest.qmp.clone();
    guest.counted(2);
    fs::create_dir(path("old")).unwrap();
    let (gp, parent) = (path("old/gp.ckpt"), path("parent.ckpt"));
    ok(&["save", "--qmp", name(&socket), "-o", name(&gp)]);
    ok(&["save", "--qmp", name(&socket), "-o", name(&parent), "--parent", name(&gp)]);
    let before = [fs::read(&gp).unwrap(), fs::read(&parent).unwrap()];
    let memory = fs::read_dir(format!("/proc/{}/fd", guest.pid()))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|fd| fs::read_link(fd).is_ok_and(|to| to.starts_with("/dev/shm")));
    let memory = memory.expect("the VM's memory");
    for (output, words) in [
        (&gp, "gp.ckpt, which the new checkpoint would be based on"),
        (&parent, "is also --parent; choose another output"),
        (&memory, "is the VM's memory (mem)"),
    ] {
        let save = ["save", "--qmp", name(&socket), "--parent", name(&parent)];
        let (code, said) = refused(&[&save[..], &["-o", name(output)]].concat());
        assert_eq!(code, 2, "{said}");
        assert!(said.contains(words), "{said}");
    }
    assert!([fs::read(&gp).unwrap(), fs::read(&parent).unwrap()] == before);
    ok(&["verify", name(&parent)]);
    let counted = guest.counts().len();
    check(&guest.counted(counted + 2));
}
