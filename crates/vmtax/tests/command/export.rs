//! `vmtax export`: what a server that asks gets is the report's OpenMetrics, and whatever else comes in does no harm.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::captures::unpack;
use crate::check::{Program, check, stdout};

/// A server of a recording, on a port that was free.
struct Exporter {
    child: Child,
    address: SocketAddr,
}

impl Exporter {
    fn start(recording: &str) -> Exporter {
        let mut child = Command::new(env!("CARGO_BIN_EXE_vmtax"))
            .args(["export", "--listen", "127.0.0.1:0", "--replay", recording])
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
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // A server may cut who does not speak its language.
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    fn get(&self, method: &str, path: &str) -> (String, Vec<u8>) {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = self.exchange(request.as_bytes());
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        (head, answer[end + 4..].to_vec())
    }

    /// Ctrl-C. The exit code.
    fn interrupt(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
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

#[test]
fn a_recording_is_served() {
    let recording = unpack("amd-two-vms", "two-vms.perf.data.zst");
    let recording = recording.to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let expected = stdout(folder.path(), &format!("report {recording} --format prometheus"));
    let exporter = Exporter::start(recording);
    let (head, body) = exporter.get("GET", "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(
        head.contains("Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    assert_eq!(body, expected);
    assert_eq!(exporter.get("GET", "/metrics?a=b").1, expected);
    for (method, path, code) in
        [("GET", "/", "404"), ("GET", "/../etc/passwd", "404"), ("POST", "/metrics", "405")]
    {
        let (head, _) = exporter.get(method, path);
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{method} {path}: {head}");
    }
    for garbage in [&b"\r\n\r\n"[..], b"GET", &[0xff; 4096], b"GET /metrics HTTP/9.9\r\n\r\n"] {
        exporter.exchange(garbage);
    }
    // Somebody who says nothing keeps nobody waiting.
    let silent = TcpStream::connect(exporter.address).unwrap();
    assert_eq!(exporter.get("GET", "/metrics").1, expected);
    drop(silent);
    assert_eq!(exporter.interrupt(), Some(0));
}

#[test]
fn mistakes_are_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("dump"), super::diff::PLAIN).unwrap();
    check(
        &Program::new(),
        folder.path(),
        &[
            (
                &format!("export --replay dump --isa vmx --listen {address}"),
                5,
                &format!("--listen {address}: cannot listen there: *"),
            ),
            ("export --replay none", 3, "none: there is no such file or folder; check its name"),
            ("export --listen here", 2, "*"),
            ("export --replay dump --pid 1", 2, "*"),
        ],
    );
}
