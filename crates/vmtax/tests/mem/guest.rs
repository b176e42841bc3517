//! A Linux under QEMU's TCG that counts and prints a hash of its memory (counter.c).

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use vmtax_machine::cpio::{self, Entry};
use vmtax_machine::kernel;

/// How long a guest may take to boot, or to count on. TCG on a busy machine is slow.
pub(super) const PATIENCE: Duration = Duration::from_secs(240);

/// Kernel and initramfs, made once.
struct Boot {
    kernel: PathBuf,
    initramfs: PathBuf,
}

fn boot() -> &'static Boot {
    static BOOT: OnceLock<Boot> = OnceLock::new();
    BOOT.get_or_init(|| {
        let kernel =
            kernel::distribution(&kernel::cache_folder()).expect("the distribution's kernel").image;
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let init = folder.join("counter");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mem/counter.c");
        let gcc =
            Command::new("gcc").args(["-O2", "-static", "-o"]).arg(&init).arg(&source).status();
        assert!(gcc.expect("gcc").success(), "counter.c does not compile");
        let init = fs::read(init).unwrap();
        let entries = [
            Entry::folder("dev"),
            Entry::device("dev/console", 5, 1),
            Entry::file("init", 0o755, &init),
        ];
        let initramfs = folder.join("counter.cpio");
        fs::write(&initramfs, cpio::archive(&entries)).unwrap();
        Boot { kernel, initramfs }
    })
}

/// A running guest.
pub(super) struct Guest {
    child: Child,
    pub(super) qmp: PathBuf,
    serial: PathBuf,
}

/// A line of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) count: u64,
    pub(super) hash: u64,
}

impl Guest {
    /// Boots one, or with `incoming` starts a QEMU that waits for a state.
    pub(super) fn start(
        folder: &Path,
        name: &str,
        memory: &str,
        more: &str,
        incoming: bool,
    ) -> Guest {
        let boot = boot();
        let (qmp, serial) =
            (folder.join(format!("{name}.qmp")), folder.join(format!("{name}.serial")));
        // What an earlier guest of this name left would be taken for this one's.
        for old in [&qmp, &serial] {
            let _ = fs::remove_file(old);
        }
        let backend = format!("memory-backend-memfd,id=mem,size={memory},share=on");
        let append = format!("console=ttyS0 quiet panic=-1 {more}");
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args([
                "-nodefaults",
                "-display",
                "none",
                "-no-reboot",
                "-machine",
                "q35,accel=tcg,memory-backend=mem",
            ])
            .args(["-object", &backend, "-m", memory])
            .arg("-kernel")
            .arg(&boot.kernel)
            .arg("-initrd")
            .arg(&boot.initramfs)
            .args(["-append", &append, "-serial"])
            .arg(format!("file:{}", serial.display()))
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", qmp.display()))
            .stdin(Stdio::null());
        if incoming {
            command.args(["-incoming", "defer"]);
        }
        let child = command.spawn().expect("qemu-system-x86_64");
        let guest = Guest { child, qmp, serial };
        // Bound is not yet listening.
        guest.until(|| listens(&guest.qmp));
        guest
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.serial).unwrap_or_default()).into_owned()
    }

    /// Whole lines that it printed.
    pub(super) fn counts(&self) -> Vec<Count> {
        let text = self.text();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let count = |line: &str| {
            let mut words = line.trim().split(' ');
            let (Some("count"), Some(count), Some("hash"), Some(hash), None) =
                (words.next(), words.next(), words.next(), words.next(), words.next())
            else {
                return None;
            };
            Some(Count { count: count.parse().ok()?, hash: u64::from_str_radix(hash, 16).ok()? })
        };
        whole.lines().filter_map(count).collect()
    }

    /// Waits until it has printed so many counts.
    pub(super) fn counted(&self, lines: usize) -> Vec<Count> {
        self.until(|| self.counts().len() >= lines);
        self.counts()
    }

    pub(super) fn until(&self, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
            assert!(
                start.elapsed() < PATIENCE && !stat.contains(") Z "),
                "the guest does not go on; it said: {}",
                self.text()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it says it is doing, some time after it was last told something; `None` when QEMU has gone.
    pub(super) fn status(&mut self) -> Option<String> {
        // One whose state ended early is about to go; one that has it all is about to stop waiting.
        std::thread::sleep(Duration::from_millis(300));
        let start = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            if let Ok(answer) = ask(&self.qmp, &["{\"execute\":\"query-status\"}"]) {
                return Some(answer["status"].as_str().unwrap().to_owned());
            }
            assert!(start.elapsed() < PATIENCE, "QEMU neither answers nor goes");
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // It may have been killed by the test already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What counter.c prints for counts from 1 on.
pub(super) fn expected(last: u64) -> Vec<Count> {
    const PAGES: usize = 1024;
    let mut memory = vec![0u64; PAGES * 512];
    let mut state = 1u64;
    for (i, word) in memory.iter_mut().enumerate() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *word = if (i / 512).is_multiple_of(8) { 0 } else { state };
    }
    (1..=last)
        .map(|count| {
            memory[(count * 7 % PAGES as u64) as usize * 512 + (count % 512) as usize] ^= count;
            let mix = |hash: u64, word: &u64| {
                (hash ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd).wrapping_add(1)
            };
            Count { count, hash: memory.iter().fold(count, mix) }
        })
        .collect()
}

/// The counts are those that counter.c must print, one after the other.
pub(super) fn check(counts: &[Count]) {
    let first = counts.first().unwrap().count;
    let last = counts.last().unwrap().count;
    let expected = expected(last);
    assert_eq!(counts, &expected[first as usize - 1..], "the guest's memory is not what it was");
}

/// Whether somebody takes connections at a socket. Asking does not make one.
fn listens(socket: &Path) -> bool {
    const ACCEPTS: &str = "00010000";
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], [_, _, _, flags, .., path] if flags == ACCEPTS && Path::new(path) == socket)
    })
}

/// Runs monitor commands and gives the last answer.
pub(super) fn qmp(socket: &Path, commands: &[&str]) -> serde_json::Value {
    ask(socket, commands).unwrap()
}

/// As [`qmp`], of a QEMU that may be gone.
fn ask(socket: &Path, commands: &[&str]) -> io::Result<serde_json::Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut last = serde_json::Value::Null;
    let mut read = |wanted: &str| loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        let value: serde_json::Value = serde_json::from_str(&line)?;
        assert!(value.get("error").is_none(), "{value}");
        if let Some(found) = value.get(wanted) {
            return Ok(found.clone());
        }
    };
    read("QMP")?;
    for command in ["{\"execute\":\"qmp_capabilities\"}"].iter().chain(commands) {
        stream.write_all(format!("{command}\n").as_bytes())?;
        last = read("return")?;
    }
    Ok(last)
}
