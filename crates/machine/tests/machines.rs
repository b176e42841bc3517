//! Real machines on QEMU: they boot, are saved and restored, and end in every way that a machine can
//! end in. All but two go on from one state, which takes a tenth of a second instead of seconds.

mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{ECHO, HANG, PANIC, initramfs};
use vmtax_machine::kernel::{self, Kernel};
use vmtax_machine::{
    Emulator, Error, Initramfs, Machine, Mailbox, QUICK_BOOT, QemuOptions, Stop, VmSpec,
};

const ORDER: u64 = 512;
const ANSWER: u64 = 1024;

fn distribution() -> Kernel {
    static KERNEL: OnceLock<Kernel> = OnceLock::new();
    let fetch = || kernel::distribution(&kernel::cache_folder()).expect("apt gives a kernel");
    KERNEL.get_or_init(fetch).clone()
}

fn spec(folder: &Path) -> VmSpec {
    VmSpec {
        emulator: Emulator::Tcg { icount: true },
        kernel: distribution(),
        initramfs: Initramfs::Bytes(initramfs().into()),
        command_line: format!("console=ttyS0 panic=-1 {QUICK_BOOT}"),
        memory_mib: 256,
        cpus: 1,
        mailbox: Mailbox::new().expect("there is memory"),
        console: folder.join("console"),
        limit: Duration::from_secs(600),
        stop: Stop::default(),
        options: QemuOptions::default(),
    }
}

/// A saved machine that waits for an order. Tests are processes of their own: the first makes it and the others restore it, which
/// fails if it was made by another emulator, of another kernel or initramfs.
fn state() -> PathBuf {
    static STATE: OnceLock<PathBuf> = OnceLock::new();
    // Below the build's folder, because it is not removed after the last test.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let make = || {
        let lock = File::create(folder.join("machine-state.lock")).expect("a file can be made");
        lock.lock().expect("a file can be locked");
        let state = folder.join("state, with = and spaces");
        let console = tempfile::tempdir().expect("a folder can be made");
        let spec = spec(console.path());
        if Machine::restore(&spec, &state).is_ok() {
            return state;
        }
        let mut machine = Machine::boot(&spec).expect("QEMU starts");
        machine
            .wait(|| spec.mailbox.read(0, 5).ok().filter(|text| text == b"READY"))
            .expect("the machine gets ready");
        machine.save(&state).expect("there is space");
        assert!(emulators(&spec.console).is_empty());
        state
    };
    STATE.get_or_init(make).clone()
}

/// The processes that have this console open, of another program than this one: children that tests start have it until they are
/// programs of their own.
fn emulators(console: &Path) -> Vec<u32> {
    let own = fs::read_link("/proc/self/exe").expect("there is /proc");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("there is /proc").flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(fds) = fs::read_dir(entry.path().join("fd")) else { continue };
        let holds = fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to == console));
        if holds && fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe != own) {
            found.push(pid);
        }
    }
    found
}

fn order(mailbox: &Mailbox, letter: u8, text: &str) {
    mailbox.write(ORDER, &[&[letter], text.as_bytes()].concat()).expect("it fits");
}

#[test]
fn restored_machines_see_what_the_mailbox_holds_now() {
    let state = state();
    for (text, before) in [("first", true), ("second", false)] {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(folder.path());
        if before {
            order(&spec.mailbox, ECHO, text);
        }
        let mut machine = Machine::restore(&spec, &state).unwrap();
        order(&spec.mailbox, ECHO, text);
        let found = machine
            .wait(|| spec.mailbox.read(ANSWER, 1 + text.len()).ok().filter(|found| found[0] != 0))
            .unwrap();
        assert_eq!(found[1..], *text.as_bytes());
        machine.finish().unwrap();
        assert!(emulators(&spec.console).is_empty());
    }
}

#[test]
fn a_machine_that_powers_off_has_ended_too_early() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    order(&spec.mailbox, ECHO, "");
    let mut machine = Machine::restore(&spec, &state()).unwrap();
    let error = machine.wait(|| None::<()>).unwrap_err();
    assert!(matches!(&error, Error::Ended { .. }), "{error}");
    assert!(error.to_string().contains("the guest powered off"), "{error}");
}

#[test]
fn a_panic_is_an_error_with_the_console() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    order(&spec.mailbox, PANIC, "");
    let mut machine = Machine::restore(&spec, &state()).unwrap();
    let error = machine.wait(|| None::<()>).unwrap_err();
    let Error::Failed { failure, console, .. } = &error else { panic!("{error}") };
    assert!(
        failure.starts_with("Kernel panic - not syncing: Attempted to kill init!"),
        "{failure}"
    );
    assert_eq!(console.path, spec.console);
    assert!(console.lines.iter().any(|line| line.contains("Attempted to kill init")));
}

#[test]
fn an_initramfs_without_init_is_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = spec(folder.path());
    spec.emulator = Emulator::Tcg { icount: false };
    spec.initramfs = Initramfs::Bytes(vmtax_machine::cpio::archive(&[]).unwrap().into());
    let mut machine = Machine::boot(&spec).unwrap();
    let error = machine.wait(|| None::<()>).unwrap_err();
    assert!(matches!(&error, Error::Failed { .. }), "{error}");
    assert!(error.to_string().contains("Unable to mount root fs"), "{error}");
    spec.initramfs = Initramfs::File("/nonexistent/initramfs".into());
    let error = Machine::boot(&spec).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/initramfs: cannot open the initramfs"), "{error}");
}

#[test]
fn a_machine_that_hangs_meets_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    order(&spec.mailbox, HANG, "");
    let mut machine = Machine::restore(&spec, &state()).unwrap();
    machine.wait(|| spec.mailbox.read(0, 4).ok().filter(|text| text == b"HUNG")).unwrap();
    // From now on, since restoring takes long on a busy computer.
    machine.allow(Duration::from_secs(1));
    let start = Instant::now();
    let error = machine.wait(|| None::<()>).unwrap_err();
    assert!(matches!(&error, Error::Limit { .. }), "{error}");
    // Its first limit was 600 s.
    assert!(start.elapsed() < Duration::from_secs(300));
    assert!(emulators(&spec.console).is_empty());
}

#[test]
fn a_killed_emulator_and_a_dropped_machine_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    let mut machine = Machine::restore(&spec, &state()).unwrap();
    let [pid] = emulators(&spec.console)[..] else { panic!("one emulator") };
    Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    let error = machine.wait(|| None::<()>).unwrap_err();
    assert!(error.to_string().contains("it was killed by signal 9"), "{error}");

    let machine = Machine::restore(&spec, &state()).unwrap();
    assert_eq!(emulators(&spec.console).len(), 1);
    drop(machine);
    assert!(emulators(&spec.console).is_empty());
}

/// Its other half: it holds a machine until it is killed. Alone it does nothing.
#[test]
fn holds_a_machine() {
    let Some(state) = std::env::var_os("VMTAX_TEST_STATE") else { return };
    let folder = PathBuf::from(std::env::var_os("VMTAX_TEST_FOLDER").unwrap());
    let spec = spec(&folder);
    // From a thread that ends: the machine is not to end with it.
    let restore = move || (Machine::restore(&spec, Path::new(&state)).unwrap(), spec);
    let (_machine, _spec) = std::thread::spawn(restore).join().unwrap();
    fs::write(folder.join("running"), "").unwrap();
    sleep(Duration::from_secs(3600));
}

#[test]
fn a_kill_of_this_process_takes_the_emulator_along() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holds_a_machine"])
        .env("VMTAX_TEST_STATE", state())
        .env("VMTAX_TEST_FOLDER", folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let console = folder.path().join("console");
    let until = |what: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(600);
        while !what() {
            assert!(Instant::now() < end);
            sleep(Duration::from_millis(5));
        }
    };
    until(&|| folder.path().join("running").exists());
    until(&|| emulators(&console).len() == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    until(&|| emulators(&console).is_empty());
}

#[test]
fn damaged_and_foreign_states_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for file in ["machine.json", "memory"] {
        fs::copy(state().join(file), copy.join(file)).unwrap();
    }
    let refused = |spec: &VmSpec, words: &str| {
        let error = Machine::restore(spec, &copy).unwrap_err();
        assert!(matches!(&error, Error::State { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let spec = spec(folder.path());
    refused(&VmSpec { memory_mib: 257, ..spec.clone() }, "another kind of machine");
    let mut memory = fs::read(copy.join("memory")).unwrap();
    let middle = memory.len() / 2;
    memory[middle] ^= 1;
    fs::write(copy.join("memory"), memory).unwrap();
    refused(&spec, "memory is damaged");
    fs::write(copy.join("machine.json"), "{").unwrap();
    refused(&spec, "machine.json is damaged");
    fs::remove_file(copy.join("machine.json")).unwrap();
    refused(&spec, "machine.json cannot be read");
}

#[test]
fn kvm_without_hardware_is_reported() {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap();
    let hardware = info.split_whitespace().any(|word| word == "svm" || word == "vmx");
    match vmtax_machine::check(Emulator::Kvm) {
        Err(error) if !hardware => assert!(error.to_string().contains("neither svm nor vmx")),
        result => assert!(hardware, "{result:?}"),
    }
}
