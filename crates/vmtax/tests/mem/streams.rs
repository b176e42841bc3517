//! Checkpoints through a pipe: from VM to VM without a file, cut, and not read.

use std::fs::{self, File};
use std::io::Read;
use std::process::{Child, Command, Stdio};

use super::clients::{CHECK, MEMORY, files};
use super::guest::RunningGuest;
use super::{ended, image, name, ok};

fn piped(args: &[&str], input: Stdio) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmtax"));
    command.arg("mem").args(args).stdin(input);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_vm_goes_from_one_qemu_to_another_through_a_pipe() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let guest = RunningGuest::start(dir.path(), "vm", MEMORY, CHECK, false);
    guest.passed(2);
    for more in [&["--live"][..], &["--zstd"]] {
        let new = RunningGuest::start(dir.path(), "new", MEMORY, "", true);
        let args = ["save", "--qmp", name(&guest.qmp), "-o", "-"];
        let mut save = piped(&[&args[..], more].concat(), Stdio::null());
        let stream = Stdio::from(save.stdout.take().unwrap());
        let restore = piped(&["restore", "-", "--qmp", name(&new.qmp)], stream);
        let (code, said) = ended(save);
        assert_eq!(code, 0, "{said}");
        assert!(said.starts_with("standard output: ") && said.contains("pause: "), "{said}");
        let (code, said) = ended(restore);
        assert_eq!(code, 0, "{said}");
        let passes = new.passed(3);
        assert!(passes.iter().all(|pass| pass.bad == 0), "{more:?}: {passes:?}");
        guest.passed(1);
    }
    assert_eq!(files(dir.path()), []);
}

#[test]
fn a_stream_that_is_cut_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = |file: &str| dir.path().join(file);
    fs::write(path("ram"), image(300, 1)).unwrap();
    let mut save = piped(&["save", "--image", name(&path("ram")), "-o", "-"], Stdio::null());
    let mut whole = Vec::new();
    save.stdout.take().unwrap().read_to_end(&mut whole).unwrap();
    assert_eq!(ended(save).0, 0);
    for len in [0, 100, whole.len() / 2, whole.len() - 128, whole.len() - 1, whole.len()] {
        fs::write(path("stream"), &whole[..len]).unwrap();
        let input = || Stdio::from(File::open(path("stream")).unwrap());
        let (code, said) = ended(piped(&["restore", "-", "--image", name(&path("out"))], input()));
        let (verified, _) = ended(piped(&["verify", "-"], input()));
        if len == whole.len() {
            assert_eq!((code, verified), (0, 0), "{said}");
            assert!(fs::read(path("out")).unwrap() == image(300, 1));
        } else {
            assert_eq!((code, verified), (4, 4), "cut at {len}: {said}");
            assert!(said.contains("standard input: ") && said.lines().count() == 1, "{said}");
            assert!(!path("out").exists());
        }
    }
}

/// The VM goes on, and the save does not call it a success.
#[test]
fn a_reader_that_ends_early_gets_no_checkpoint() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let guest = RunningGuest::start(dir.path(), "vm", MEMORY, CHECK, false);
    guest.passed(1);
    for more in [&["--live"][..], &[]] {
        let args = ["save", "--qmp", name(&guest.qmp), "-o", "-"];
        let mut save = piped(&[&args[..], more].concat(), Stdio::null());
        let mut some = [0; 10_000];
        let mut stream = save.stdout.take().unwrap();
        stream.read_exact(&mut some).unwrap();
        drop(stream);
        let (code, said) = ended(save);
        assert_eq!(code, 5, "{said}");
        assert!(said.contains("its reader ended") && said.lines().count() == 1, "{said}");
        guest.passed(1);
    }
    // The next save is none the worse for it.
    ok(&["save", "--qmp", name(&guest.qmp), "-o", name(&dir.path().join("x.ckpt"))]);
}
