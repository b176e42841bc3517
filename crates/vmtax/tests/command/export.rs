//! `vmtax export`: what a server that asks gets is the report's OpenMetrics, and whatever else comes in does no harm.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::captures::unpack;
use crate::check::{Program, check, stdout};

/// The server closes a connection after this time.
const LONGEST: Duration = Duration::from_secs(10);

/// Does it again where the computer stood still, and the server may have ended a connection for that.
fn in_time<T>(mut exchange: impl FnMut() -> T) -> T {
    for _ in 0..10 {
        let began = Instant::now();
        let done = exchange();
        if began.elapsed() < LONGEST {
            return done;
        }
    }
    panic!("an exchange took more than {LONGEST:?}, ten times");
}

/// A server of a recording, on a port that was free.
pub(crate) struct Exporter {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Exporter {
    fn start(recording: &str) -> Exporter {
        Exporter::with(&["--listen", "127.0.0.1:0", "--replay", recording])
    }

    pub(crate) fn with(args: &[&str]) -> Exporter {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vmtax"))
            .arg("export")
            .args(args)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_once("http://").unwrap().1.split_once('/').unwrap().0;
        Exporter { child, address: address.parse().unwrap() }
    }

    /// Sends bytes; all that comes back.
    fn exchange(&self, request: &[u8]) -> Vec<u8> {
        let sent_and_answered = || {
            let mut stream = TcpStream::connect(self.address).unwrap();
            let sent = stream.write_all(request);
            let sent = sent.and_then(|()| stream.shutdown(std::net::Shutdown::Write));
            let mut answer = Vec::new();
            // A server may cut who does not speak its language.
            let _ = stream.read_to_end(&mut answer);
            (sent, answer)
        };
        let (sent, answer) = in_time(sent_and_answered);
        sent.unwrap();
        answer
    }

    fn get(&self, method: &str, path: &str) -> (String, Vec<u8>) {
        let host = self.address;
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = self.exchange(request.as_bytes());
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        (head, answer[end + 4..].to_vec())
    }

    /// Asks for its end. The exit code.
    fn end(mut self, signal: Signal) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // It has ended already where the test got so far.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn served() -> (Exporter, Vec<u8>) {
    let recording = unpack("amd-two-vms", "two-vms.perf.data.zst");
    let recording = recording.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let expected = stdout(folder.path(), &format!("report {recording} --format prometheus"));
    (Exporter::start(recording), expected)
}

#[test]
fn a_recording_is_served() {
    let (exporter, expected) = served();
    let (head, body) = exporter.get("GET", "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(
        head.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    assert_eq!(body, expected);
    assert_eq!(exporter.get("GET", "/metrics?a=b").1, expected);
    assert_eq!(exporter.get("HEAD", "/metrics"), (head, Vec::new()));
    for (method, path, code) in [
        ("GET", "/", "404"),
        ("HEAD", "/", "404"),
        ("GET", "/../etc/passwd", "404"),
        ("POST", "/metrics", "405"),
    ] {
        let (head, _) = exporter.get(method, path);
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{method} {path}: {head}");
    }
    // By an independent client.
    let page = format!("http://{}/metrics", exporter.address);
    let curl = in_time(|| Command::new("curl").args(["-sS", "--fail", &page]).output());
    match curl {
        Ok(answer) => {
            assert_eq!(answer.stdout, expected, "{}", String::from_utf8_lossy(&answer.stderr));
        }
        Err(_) => vmtax_skipped::package("curl"),
    }
    assert_eq!(exporter.end(Signal::INT), Some(0));
}

#[test]
fn misbehaving_clients_do_not_affect_others() {
    let (exporter, expected) = served();
    let long =
        format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "X: x\r\n".repeat(100));
    for (garbage, code) in [
        (&b"\r\n\r\n"[..], ""),
        (b"GET", ""),
        (&[0xff; 4096], "HTTP/1.1 400 "),
        (b"GET /metrics HTTP/9.9\r\n\r\n", "HTTP/1.1 400 "),
        (long.as_bytes(), "HTTP/1.1 431 "),
        (many.as_bytes(), "HTTP/1.1 431 "),
    ] {
        let answer = exporter.exchange(garbage);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with(code), "{}: {answer}", String::from_utf8_lossy(garbage));
    }
    // Hundreds of clients that send nothing or half a request, or do not read, block no other client, and cost only file
    // descriptors.
    let mut silent = Vec::new();
    for n in 0..300 {
        let mut stream = TcpStream::connect(exporter.address).unwrap();
        let said: &[u8] = [&b""[..], b"GET /metr", b"GET /metrics HTTP/1.1\r\n\r\n"][n % 3];
        // Who came long before has been closed already.
        let _ = stream.write_all(said);
        silent.push(stream);
    }
    assert_eq!(exporter.get("GET", "/metrics").1, expected);
    let open = std::fs::read_dir(format!("/proc/{}/fd", exporter.child.id())).unwrap().count();
    assert!(open < 100, "{open} files are open");
    let threads = std::fs::read_dir(format!("/proc/{}/task", exporter.child.id())).unwrap();
    assert_eq!(threads.count(), 1);
    // The first is gone: it reads an end and not for ever.
    silent[0].set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    assert!(!matches!(silent[0].read(&mut [0]), Ok(1..)));
    // One who says a byte now and then has so much time and no more.
    let mut slow = TcpStream::connect(exporter.address).unwrap();
    let ended = (0..3000).any(|_| {
        std::thread::sleep(Duration::from_millis(100));
        slow.write_all(b"G").is_err()
    });
    assert!(ended);
    assert_eq!(exporter.end(Signal::TERM), Some(0));
}

/// A page of another name that resolves to this computer gets nothing.
#[test]
fn only_requests_for_this_server_are_answered() {
    let recording = unpack("amd-two-vms", "two-vms.perf.data.zst");
    let recording = recording.to_str().unwrap();
    let exporter = Exporter::with(&[
        "--listen",
        "127.0.0.1:0",
        "--allow-host",
        "metrics.example.org",
        "--replay",
        recording,
    ]);
    let port = exporter.address.port();
    for (version, headers, code) in [
        ("1.1", format!("Host: 127.0.0.1:{port}\r\n"), "200"),
        ("1.1", format!("host: LocalHost:{port}\r\n"), "200"),
        ("1.1", "Host: [::1]\r\n".to_owned(), "200"),
        ("1.1", "Host: metrics.example.org\r\n".to_owned(), "200"),
        ("1.0", "Host: localhost\r\n".to_owned(), "200"),
        // Clients without the header are no browsers, which always send it.
        ("1.0", String::new(), "200"),
        ("1.1", String::new(), "400"),
        ("1.1", "Host: localhost\r\nHost: evil.example\r\n".to_owned(), "400"),
        ("1.1", format!("Host: evil.example:{port}\r\n"), "421"),
        ("1.0", "Host: evil.example\r\n".to_owned(), "421"),
        ("1.1", "Host: localhost.evil.example\r\n".to_owned(), "421"),
        ("1.1", "Host: 192.0.2.1\r\n".to_owned(), "421"),
        ("1.1", "Host:\r\n".to_owned(), "421"),
        ("1.1", "Host: \u{e4}\r\n".to_owned(), "421"),
    ] {
        let answer =
            exporter.exchange(format!("GET /metrics HTTP/{version}\r\n{headers}\r\n").as_bytes());
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code} ")),
            "{version} {headers:?}: {answer}"
        );
        // Neither what is measured nor a name of a VM is in a refusal.
        assert_eq!(answer.contains("vmtax_exits"), code == "200", "{version} {headers:?}");
    }
    let answer = exporter.exchange(b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    let answer = String::from_utf8_lossy(&answer);
    assert!(
        answer.ends_with("this server has another name; --allow-host adds names\n"),
        "{answer}"
    );
    assert_eq!(exporter.end(Signal::TERM), Some(0));
}

#[test]
fn mistakes_are_errors() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("dump"), super::diff::PLAIN).unwrap();
    let listen = "use an IP address and a port, such as 127.0.0.1:9435";
    check(
        &Program::new(),
        folder.path(),
        &[
            (
                &format!("export --replay dump --isa vmx --listen {address}"),
                5,
                &format!("--listen {address}: another program listens there; choose another port"),
            ),
            (
                "export --replay dump --isa vmx --listen 192.0.2.1:9435",
                5,
                "--listen 192.0.2.1:9435: this computer does not have that address; choose one that it has",
            ),
            (
                "export --replay none --listen 127.0.0.1:0",
                3,
                "none: cannot be read: No such file or directory (os error 2); check its name",
            ),
            (
                "export --replay dump --isa vmx --textfile x.txt",
                2,
                "*node_exporter reads only files whose names end in .prom*",
            ),
            (
                "export --replay dump --isa vmx --textfile none/x.prom",
                5,
                "none/x.prom: there is no folder none; make it first",
            ),
            ("export --replay dump --isa vmx --textfile x.prom --listen 127.0.0.1:0", 2, "*"),
            ("export --listen here", 2, &format!("*{listen}*")),
            ("export --listen 127.0.0.1:70000", 2, &format!("*{listen}*")),
            ("export --allow-host http://x", 2, "*use a name or an address without a port*"),
            ("export --replay dump --pid 1", 2, "*"),
            ("export --loop", 2, "*--replay <RUN|FILE>*"),
            ("export --replay dump --loop --speed 0", 2, "*use a factor from 0.01 to 100*"),
            (
                "export --replay dump --isa vmx --loop --listen 127.0.0.1:0",
                2,
                "dump: cannot be played, because it has no times; leave out --loop",
            ),
            ("export --pid -1", 2, "*"),
            ("export --pid 4294967296", 2, "*"),
            (
                "export --isa vmx --listen 127.0.0.1:0",
                2,
                "--isa is for recordings; it needs --replay",
            ),
            ("export --interval 0s", 2, "*use a time above zero with its unit, such as 100ms*"),
            ("export --interval 1ns --listen 127.0.0.1:0", 2, "--interval: use 10ms to 3600s"),
            ("export --interval 2000000s --listen 127.0.0.1:0", 2, "--interval: use 10ms to 3600s"),
        ],
    );
}

/// Each counter of exits and losses by its series.
fn counters(page: &[u8]) -> BTreeMap<String, f64> {
    let page = std::str::from_utf8(page).unwrap();
    let counted = ["vmtax_exits_total{", "vmtax_losses_total{what=\"unpaired"];
    let samples = page.lines().filter(|line| counted.iter().any(|start| line.starts_with(start)));
    let parts = samples.map(|line| line.rsplit_once(' ').unwrap());
    parts.map(|(series, value)| (series.to_owned(), value.parse().unwrap())).collect()
}

/// Counters begin at nothing, never fall, and have more than the recording when it has been played twice.
#[test]
fn a_recording_is_played_again_and_again() {
    let (_, expected) = served();
    let recording = unpack("amd-two-vms", "two-vms.perf.data.zst");
    let exporter = Exporter::with(&[
        "--listen",
        "127.0.0.1:0",
        "--replay",
        recording.to_str().unwrap(),
        "--loop",
        "--speed",
        "100",
    ]);
    let once = counters(&expected);
    assert_eq!(once["vmtax_losses_total{what=\"unpaired-exits\"}"], 3.0);
    let mut before = BTreeMap::new();
    let is_twice = |now: &BTreeMap<String, f64>| {
        once.iter().all(|(series, count)| now.get(series).is_some_and(|n| *n >= 2.0 * count))
    };
    while !is_twice(&before) {
        let now = counters(&exporter.get("GET", "/metrics").1);
        for (series, count) in &before {
            assert!(now[series] >= *count, "{series}: {count}, then {}", now[series]);
        }
        assert!(now.keys().all(|series| once.contains_key(series)), "{now:?}");
        before = now;
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(exporter.end(Signal::TERM), Some(0));
}

/// A pipe without a writer is waited for until a signal comes.
#[test]
fn a_signal_ends_the_wait_for_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_vmtax"))
        .args(["export", "--listen", "127.0.0.1:0", "--replay"])
        .arg(&pipe)
        .spawn()
        .unwrap();
    // It listens before it opens what it is to serve.
    let folder = format!("/proc/{}/fd", child.id());
    let listens = || {
        let open = std::fs::read_dir(&folder).unwrap().flatten();
        let mut links = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.any(|link| link.to_string_lossy().starts_with("socket:"))
    };
    while !listens() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    let began = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if began.elapsed() > Duration::from_secs(60) => {
                child.kill().unwrap();
                panic!("SIGTERM is ignored");
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(!status.success());
}
