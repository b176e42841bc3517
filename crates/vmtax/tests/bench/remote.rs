//! A client or a server on another system: ssh to a server of the test's own, on the loopback interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{matrix, name, program, refused, row, rows};

const MATRIX: &str = r#"
repeats = 1
warmup = false
counters = true
limit_seconds = 600
categories = ["plain"]
[vm]
accel = "tcg"
memory = 512
remote = "REMOTE"
address = "127.0.0.1"
[[workload]]
use = "tcp-latency"
client = "remote"
set = { seconds = 1 }
"#;

/// An ssh server with a key of its own, which ends with this value.
struct Sshd {
    folder: PathBuf,
    process: Child,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Sshd {
    /// Starts it on a free port; `there` is the folder for temporary files of its users.
    fn start(folder: &Path, there: &Path) -> Sshd {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        for key in ["host", "user"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f", name(&folder.join(key))]);
            assert!(command.status().unwrap().success());
        }
        fs::copy(folder.join("user.pub"), folder.join("keys")).unwrap();
        let path = folder.display();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {path}/host\nAuthorizedKeysFile {path}/keys\nPidFile none\nUsePAM no\n\
             StrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nSetEnv TMPDIR={}\n",
            there.display()
        );
        fs::write(folder.join("sshd_config"), config).unwrap();
        let client = format!(
            "Host there\nHostName 127.0.0.1\nPort {port}\nIdentityFile {path}/user\nIdentitiesOnly yes\nUserKnownHostsFile {path}/known\n\
             GlobalKnownHostsFile /dev/null\nStrictHostKeyChecking accept-new\n"
        );
        fs::write(folder.join("ssh_config"), client).unwrap();
        let bin = folder.join("bin");
        fs::create_dir(&bin).unwrap();
        let script = format!("#!/bin/sh\nexec /usr/bin/ssh -F '{path}/ssh_config' \"$@\"\n");
        program(&bin.join("ssh"), &script);
        let serve = format!("exec /usr/sbin/sshd -D -f '{path}/sshd_config' -E '{path}/log'");
        let mut command = if rustix::process::geteuid().is_root() {
            // As root it wants an empty folder in /run; that of a mount namespace of its own leaves nothing behind.
            let mut command = Command::new("unshare");
            let own = format!("mount -t tmpfs none /run && mkdir -m 755 /run/sshd && {serve}");
            command.args(["-m", "sh", "-c", &own]);
            command
        } else {
            let mut command = Command::new("sh");
            command.args(["-c", &serve]);
            command
        };
        let process = command.stdin(Stdio::null()).spawn().unwrap();
        Sshd { folder: folder.to_owned(), process }
    }

    /// `PATH` with an ssh that knows it.
    fn path(&self) -> String {
        format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH").unwrap())
    }

    /// Waits until it admits this user; else why it does not.
    fn admits(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(300);
        loop {
            let mut command = Command::new(self.folder.join("bin/ssh"));
            let output = command.args(["-o", "BatchMode=yes", "there", "true"]).output().unwrap();
            if output.status.success() {
                return Ok(());
            }
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            // Before it listens the connection is refused.
            if !said.contains("refused") || Instant::now() > until {
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                return Err(format!("{said}; {log}"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// An ssh server of the test with a folder for what its users leave; `None`, and said, where there can be none.
fn server(folder: &Path, there: &Path) -> Option<Sshd> {
    if !Path::new("/usr/sbin/sshd").exists() {
        // Its package is not in packages.txt: where it is installed it starts a server for everybody.
        vmtax_skipped::system("there is no /usr/sbin/sshd (openssh-server)");
        return None;
    }
    fs::create_dir(there).unwrap();
    let sshd = Sshd::start(folder, there);
    if let Err(why) = sshd.admits() {
        vmtax_skipped::system(&format!("an ssh server of the test admits no user: {why}"));
        return None;
    }
    Some(sshd)
}

/// Runs a matrix with it: what it showed.
fn run_with(sshd: &Sshd, text: &str, run: &Path) -> String {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab-cache");
    let mut command = Command::new(env!("CARGO_BIN_EXE_vmtax"));
    command.args(["bench", "run", name(&matrix(&sshd.folder, text)), "-o", name(run)]);
    command.env("PATH", sshd.path()).env("XDG_CACHE_HOME", cache);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn is_empty(folder: &Path) {
    let left: Vec<_> =
        fs::read_dir(folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The client runs behind ssh, the server in the VM: the path says so, and nothing is left there.
#[test]
fn a_client_behind_ssh_reaches_the_vm() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("there");
    let Some(sshd) = server(folder.path(), &there) else { return };
    let run = folder.path().join("run");
    let shown = run_with(&sshd, &MATRIX.replace("REMOTE", "there"), &run);
    let found = rows(&run);
    let latency = row(&found, "tcp-latency", "latency-p99", "plain");
    assert_eq!((latency["path"].as_str(), latency["failed"].as_str()), ("remote > user > vm", "0"));
    // What QEMU's process took is counted, or it is said why not.
    let event = |name: &str| ("tcp-latency".to_owned(), name.to_owned(), "plain".to_owned());
    let counted = found.contains_key(&event("vmm-instructions"));
    assert!(counted || shown.contains("vmm-instructions in plain: not available: "), "{shown}");
    is_empty(&there);
}

/// The reverse: the server runs behind ssh, a new one for the warm-up and for the measured client of iperf3; nothing is left there.
#[test]
fn a_vm_reaches_a_server_behind_ssh() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("there");
    let Some(sshd) = server(folder.path(), &there) else { return };
    let run = folder.path().join("run");
    let own = "\n[[workload]]\nuse = \"iperf-tcp\"\nserver = \"remote\"\nset = { seconds = 1 }\n";
    let text = MATRIX
        .replace("REMOTE", "there")
        .replace("client = \"remote\"", "server = \"remote\"")
        .replace("address = ", "remote_address = ")
        .replace("warmup = false", "warmup = true");
    let shown = run_with(&sshd, &(text + own), &run);
    let found = rows(&run);
    for (workload, metric) in [("tcp-latency", "latency-p99"), ("iperf-tcp", "throughput")] {
        let row = row(&found, workload, metric, "plain");
        let path = (row["path"].as_str(), row["failed"].as_str());
        assert_eq!(path, ("vm > user > remote", "0"), "{shown}");
    }
    is_empty(&there);
}

#[test]
fn remote_ends_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let whole = MATRIX.replace("REMOTE", "root@192.0.2.7");
    for (from, to, code, sentence) in [
        ("address = \"127.0.0.1\"\n", "", 4, "needs remote = \"USER@HOST\""),
        ("remote = \"root@192.0.2.7\"\n", "", 4, "needs remote = \"USER@HOST\""),
        ("root@192.0.2.7", "-oProxyCommand=x", 4, "an address is USER@HOST"),
        ("127.0.0.1", "192.0.2.1", 7, "give an address of this computer"),
        ("client = \"remote\"", "server = \"remote\"", 4, "needs remote = \"USER@HOST\""),
        ("client = \"remote\"", "client = \"remote\"\nserver = \"host\"", 4, "both outside"),
        ("memory = 512", "network = \"tap\"", 4, "use network = \"user\""),
    ] {
        assert!(whole.contains(from), "{from}");
        let text = whole.replace(from, to);
        let (found, said) =
            refused(&["run", name(&matrix(folder.path(), &text)), "-o", name(&run)]);
        assert!(found == code && said.contains(sentence), "{to}: {found} {said}");
    }
}
