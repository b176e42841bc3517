//! What is refused or stopped. Saves of real VMs that are restored are tests of `vmtax mem`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vmtax_checkpoint::Save;
use vmtax_machine::Stop;
use vmtax_machine::vm::{Pause, QemuVm};
use vmtax_pageops::{Cpu, PAGE};

const MEMORY: u64 = 64 << 20;

struct SavedQemu(Child);

impl Drop for SavedQemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A VM that runs its firmware, with shared memory.
fn start(socket: &Path) -> SavedQemu {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg", "-display", "none", "-nodefaults", "-m", "64M"]);
    qemu.args(["-object", "memory-backend-file,id=mem,size=64M,mem-path=/dev/shm,share=on"]);
    qemu.args(["-machine", "q35,memory-backend=mem", "-qmp"]);
    qemu.arg(format!("unix:{},server=on,wait=off", socket.display()));
    let qemu = SavedQemu(qemu.stdout(Stdio::null()).spawn().unwrap());
    let start = Instant::now();
    // Bound is not yet listening: nobody may connect then.
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        assert!(start.elapsed() < Duration::from_secs(600), "QEMU has no monitor");
        std::thread::sleep(Duration::from_millis(20));
    }
    qemu
}

#[test]
fn a_save_that_is_stopped_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![7; 3 * PAGE]).unwrap();
    let stop = Stop::default();
    stop.flag().store(true, std::sync::atomic::Ordering::Relaxed);
    let stopped = Save { output: dir.path().join("y.ckpt"), ..Save::default() };
    let error = stopped.of_image(&image, &mut Cpu::best(), &stop).unwrap_err().to_string();
    assert!(error.contains("interrupted") && !stopped.output.exists(), "{error}");
}

/// A page that is in QEMU and not in the file is found, though the file has the right length.
#[test]
fn a_file_that_is_not_the_memory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("qmp");
    let _qemu = start(&socket);
    let mut vm = QemuVm::connect(&socket, Stop::default()).unwrap();
    let (ours, mut other) = (vm.ram(false).unwrap(), vm.ram(false).unwrap());
    let zeros = tempfile::tempfile().unwrap();
    zeros.set_len(MEMORY).unwrap();
    other[0].file = zeros;
    let began = Instant::now();
    // Until the firmware has written something.
    let error = loop {
        assert!(began.elapsed() < Duration::from_secs(600), "zeros were taken for its memory");
        let mut pause = Pause::begin(&mut vm, false).unwrap();
        pause.vm().check_ram(&ours).unwrap();
        let checked = pause.vm().check_content(&other);
        pause.end().unwrap();
        match checked {
            Ok(()) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => break error.to_string(),
        }
    };
    assert!(
        error.contains("is not in the file that was found for the memory backend \"mem\""),
        "{error}"
    );
}
