//! A Linux under QEMU's TCG that counts and prints a hash of its memory (counter.c).

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vmtax_machine::cpio::{self, ArchiveEntry};
use vmtax_machine::kernel;

/// How long a guest may take to boot, or to count on. TCG on a busy machine is slow, and may stand still.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// Kernel and initramfs, made once in a process.
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
        // Other tests, which are processes of their own, make the same: each appears whole.
        let init = folder.join(format!("counter-{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mem/counter.c");
        let gcc =
            Command::new("gcc").args(["-O2", "-static", "-o"]).arg(&init).arg(&source).status();
        assert!(gcc.expect("gcc").success(), "counter.c does not compile");
        let program = fs::read(&init).unwrap();
        fs::remove_file(init).unwrap();
        let entries = [
            ArchiveEntry::folder("dev"),
            ArchiveEntry::device("dev/console", 5, 1),
            ArchiveEntry::file("init", 0o755, &program),
        ];
        let initramfs = folder.join("counter.cpio");
        let part = folder.join(format!("counter-{}.cpio", std::process::id()));
        fs::write(&part, cpio::archive(&entries).unwrap()).unwrap();
        fs::rename(part, &initramfs).unwrap();
        Boot { kernel, initramfs }
    })
}

pub(super) struct RunningGuest {
    child: Child,
    pub(super) qmp: PathBuf,
    /// A second monitor, for another client.
    other: PathBuf,
    serial: PathBuf,
}

/// A line of a guest that checks its memory (`check=MIB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CheckPass {
    pub(super) pass: u64,
    pub(super) bad: u64,
}

/// A line of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuestCount {
    pub(super) count: u64,
    pub(super) hash: u64,
}

impl RunningGuest {
    /// Boots one, or with `incoming` starts a QEMU that waits for a state.
    pub(super) fn start(
        folder: &Path,
        name: &str,
        memory: &str,
        more: &str,
        incoming: bool,
    ) -> RunningGuest {
        let more_arguments: &[&str] = if incoming { &["-incoming", "defer"] } else { &[] };
        RunningGuest::with(folder, name, memory, more, more_arguments)
    }

    /// As [`Guest::start`], with more arguments of QEMU; they win over those before.
    pub(super) fn with(
        folder: &Path,
        name: &str,
        memory: &str,
        more: &str,
        arguments: &[&str],
    ) -> RunningGuest {
        let boot = boot();
        let path = |what: &str| folder.join(format!("{name}.{what}"));
        let (qmp, other, serial) = (path("qmp"), path("other"), path("serial"));
        // Output of an earlier guest of this name would be read as this one's.
        for old in [&qmp, &other, &serial] {
            let _ = fs::remove_file(old);
        }
        // As the documents recommend, for any version of QEMU.
        let backend =
            format!("memory-backend-file,id=mem,size={memory},mem-path=/dev/shm,share=on");
        // On a busy computer the emulated timer may not tick in time for the kernel's check of it, which panics. Where it stood still the
        // kernel complains of itself, in the middle of a line of the guest; a panic is printed all the same.
        let append = format!(
            "console=ttyS0 loglevel=1 nowatchdog rcupdate.rcu_cpu_stall_suppress=1 panic=-1 no_timer_check {more}"
        );
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
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", other.display()))
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(fs::File::create(path("stdout")).unwrap());
        let child = command.spawn().expect("qemu-system-x86_64");
        let guest = RunningGuest { child, qmp, other, serial };
        // Bound is not yet listening.
        guest.until(|| listens(&guest.qmp) && listens(&guest.other));
        guest
    }

    /// A connection of another client.
    pub(super) fn monitor(&self) -> Monitor {
        Monitor::connect(&self.other).unwrap()
    }

    /// The file of its memory. Not while another client uses the second monitor: QEMU serves one client.
    pub(super) fn memory(&self) -> PathBuf {
        // QEMU listens before it has memory, and answers when it has.
        self.monitor().status();
        let open = fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().flatten();
        let is_memory = |path: &PathBuf| {
            let link = fs::read_link(path);
            link.is_ok_and(|l| l.to_string_lossy().starts_with("/dev/shm/qemu_back_mem."))
        };
        open.map(|e| e.path()).find(is_memory).unwrap()
    }

    /// Whole lines of a guest that checks its memory.
    pub(super) fn passes(&self) -> Vec<CheckPass> {
        let text = self.text();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let pass = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ["pass", pass, "bad", bad] = words[..] else { return None };
            Some(CheckPass { pass: pass.parse().ok()?, bad: bad.parse().ok()? })
        };
        whole.lines().filter_map(pass).collect()
    }

    /// Waits for so many passes more.
    pub(super) fn passed(&self, more: usize) -> Vec<CheckPass> {
        let before = self.passes().len();
        self.until(|| self.passes().len() >= before + more);
        self.passes()
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.serial).unwrap_or_default()).into_owned()
    }

    /// Whole lines that it printed.
    pub(super) fn counts(&self) -> Vec<GuestCount> {
        let text = self.text();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let count = |line: &str| {
            let mut words = line.trim().split(' ');
            let (Some("count"), Some(count), Some("hash"), Some(hash), None) =
                (words.next(), words.next(), words.next(), words.next(), words.next())
            else {
                return None;
            };
            Some(GuestCount {
                count: count.parse().ok()?,
                hash: u64::from_str_radix(hash, 16).ok()?,
            })
        };
        whole.lines().filter_map(count).collect()
    }

    /// Waits until it has printed so many counts.
    pub(super) fn counted(&self, lines: usize) -> Vec<GuestCount> {
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

    /// Its status, some time after the last command; `None` when QEMU has ended.
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

    /// Ends it, and gives what QEMU itself printed.
    pub(super) fn quit(mut self) -> String {
        self.monitor().run("quit", json!({}));
        self.child.wait().unwrap();
        fs::read_to_string(self.serial.with_extension("stdout")).unwrap()
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for RunningGuest {
    fn drop(&mut self) {
        // It may have been killed by the test already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the QEMU of this process, which has `-name vm,debug-threads=on`, has a migration under way.
pub(super) fn is_migrating(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let name = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("comm"));
    // Named mig/src/main since QEMU 9.1.
    threads.map(name).any(|n| n.is_ok_and(|n| n.contains("migration") || n.starts_with("mig/")))
}

/// What counter.c prints for counts from 1 on.
pub(super) fn expected(last: u64) -> Vec<GuestCount> {
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
            GuestCount { count, hash: memory.iter().fold(count, mix) }
        })
        .collect()
}

/// The counts are those that counter.c must print, one after the other.
pub(super) fn check(counts: &[GuestCount]) {
    let first = counts.first().unwrap().count;
    let last = counts.last().unwrap().count;
    let expected = expected(last);
    assert_eq!(counts, &expected[first as usize - 1..], "the guest's memory is not what it was");
}

/// Whether a socket accepts connections. The check does not connect.
pub(super) fn listens(socket: &Path) -> bool {
    const ACCEPTS: &str = "00010000";
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], [_, _, _, flags, .., path] if flags == ACCEPTS && Path::new(path) == socket)
    })
}

/// Runs monitor commands and gives the last answer.
pub(super) fn qmp(socket: &Path, commands: &[&str]) -> Value {
    ask(socket, commands).unwrap()
}

/// As [`qmp`], of a QEMU that may be gone.
fn ask(socket: &Path, commands: &[&str]) -> io::Result<Value> {
    let mut monitor = Monitor::connect(socket)?;
    let mut last = Value::Null;
    for command in commands {
        last = monitor.send(command)?;
        assert!(last.get("error").is_none(), "{last}");
        last = last["return"].take();
    }
    Ok(last)
}

/// A client of a QEMU.
pub(super) struct Monitor {
    reader: BufReader<UnixStream>,
    /// Names of events that were not waited for yet.
    events: Vec<String>,
}

impl Monitor {
    pub(super) fn connect(socket: &Path) -> io::Result<Monitor> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut monitor = Monitor { reader: BufReader::new(stream), events: Vec::new() };
        monitor.read("QMP")?;
        monitor.send("{\"execute\":\"qmp_capabilities\"}")?;
        Ok(monitor)
    }

    /// Runs a command, and gives what it returned.
    pub(super) fn run(&mut self, command: &str, arguments: Value) -> Value {
        let line = json!({ "execute": command, "arguments": arguments }).to_string();
        let mut answer = self.send(&line).unwrap();
        assert!(answer.get("error").is_none(), "{line}: {answer}");
        answer["return"].take()
    }

    /// Runs a command that QEMU may refuse; whether it did it.
    pub(super) fn attempt(&mut self, command: &str) -> bool {
        let line = json!({ "execute": command }).to_string();
        self.send(&line).unwrap().get("error").is_none()
    }

    /// Resumes the VM, as soon as QEMU does that: a migration that was cancelled may still be ending.
    pub(super) fn resume(&mut self) {
        let start = Instant::now();
        while !self.attempt("cont") {
            assert!(start.elapsed() < PATIENCE, "QEMU does not resume the VM");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What has happened until now is not waited for.
    pub(super) fn forget(&mut self) {
        self.status();
        self.events.clear();
    }

    /// Whether an event has come until now.
    pub(super) fn has_seen(&mut self, event: &str) -> bool {
        self.status();
        self.events.iter().any(|seen| seen == event)
    }

    /// Waits until an event has come.
    pub(super) fn wait(&mut self, event: &str) {
        while !self.events.iter().any(|seen| seen == event) {
            self.read("event").unwrap();
        }
        self.events.clear();
    }

    pub(super) fn status(&mut self) -> String {
        self.run("query-status", json!({}))["status"].as_str().unwrap().to_owned()
    }

    fn send(&mut self, command: &str) -> io::Result<Value> {
        let mut stream = self.reader.get_ref();
        stream.write_all(format!("{command}\n").as_bytes())?;
        loop {
            let message = self.read("")?;
            if message.get("event").is_none() {
                return Ok(message);
            }
        }
    }

    /// The next message that has this in it.
    fn read(&mut self, wanted: &str) -> io::Result<Value> {
        loop {
            let mut line = String::new();
            if self.reader.read_line(&mut line)? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            let message: Value = serde_json::from_str(&line)?;
            self.events.extend(message["event"].as_str().map(str::to_owned));
            if wanted.is_empty() || message.get(wanted).is_some() {
                return Ok(message);
            }
        }
    }
}
