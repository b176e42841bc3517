//! The dashboard of `examples/export` in a real Prometheus, which scrapes recordings that `vmtax export --loop` plays.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::captures::unpack;
use crate::export::Exporter;
use crate::prometheus::{dashboard, title_and_query};

/// Nested exits, lost events and preemption: no single recording has all three.
const RECORDINGS: [(&str, &str); 3] = [
    ("amd-nested", "all.perf.data.zst"),
    ("amd-cpuid", "lost.perf.data.zst"),
    ("amd-sched", "sched.perf.data.zst"),
];

/// Rates need several scrapes; builds and tests beside this one make them late.
const LONGEST: Duration = Duration::from_secs(180);

/// The program, installed or as `./x test` unpacks it.
fn program() -> Option<PathBuf> {
    let unpacked =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("../tools/prometheus/usr/bin/prometheus");
    let installed = std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join("prometheus"))
        .collect::<Vec<_>>();
    [unpacked].into_iter().chain(installed).find(|path| path.is_file())
}

struct Prometheus {
    child: Child,
    address: SocketAddr,
    /// Holds its database.
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(program: &Path, exporters: &[Exporter]) -> Prometheus {
        let folder = tempfile::tempdir().unwrap();
        let targets: Vec<String> =
            exporters.iter().map(|one| format!("\"{}\"", one.address)).collect();
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: vmtax, static_configs: [{{targets: [{}]}}]}}]\n",
            targets.join(", ")
        );
        std::fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        // It cannot be asked which port it chose. Another test may take this one first: it ends then, and that is seen.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new(program)
            .current_dir(folder.path())
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Prometheus { child, address, _folder: folder }
    }

    /// The values of a query; `None` while it does not answer.
    fn ask(&mut self, query: &str) -> Option<Vec<f64>> {
        assert_eq!(self.child.try_wait().unwrap(), None, "Prometheus ended");
        let mut stream = TcpStream::connect(self.address).ok()?;
        let escape = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        };
        let query: String = query.bytes().map(escape).collect();
        write!(
            stream,
            "GET /api/v1/query?query={query} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let answer: Value = serde_json::from_str(body).ok()?;
        assert_eq!(answer["status"], "success", "{answer}");
        let series = answer["data"]["result"].as_array().unwrap();
        let value = |one: &Value| one["value"][1].as_str().unwrap().parse().unwrap();
        Some(series.iter().map(value).collect())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn each_panel_has_values_in_a_real_prometheus() {
    let Some(program) = program() else {
        return vmtax_skipped::system("there is no prometheus; `./x test` fetches it");
    };
    let exporters = RECORDINGS.map(|(capture, file)| {
        let recording = unpack(capture, file);
        let recording = recording.to_str().unwrap();
        Exporter::with(&[
            "--listen",
            "127.0.0.1:0",
            "--replay",
            recording,
            "--loop",
            "--speed",
            "4",
        ])
    });
    let mut prometheus = Prometheus::start(&program, &exporters);
    let panels = title_and_query(&dashboard());
    assert_eq!(panels.len(), 9);
    let began = Instant::now();
    let mut shown: Vec<(String, Vec<f64>)> = Vec::new();
    while shown.len() < panels.len() {
        let empty: Vec<&(String, String)> = panels
            .iter()
            .filter(|(title, _)| shown.iter().all(|(known, _)| known != title))
            .collect();
        assert!(began.elapsed() < LONGEST, "no values: {empty:?}");
        for (title, query) in empty {
            let values = prometheus.ask(query).unwrap_or_default();
            if values.iter().any(|value| value.is_finite() && *value > 0.0) {
                shown.push((title.clone(), values));
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    for (title, values) in &shown {
        eprintln!("{title}: {values:?}");
        // Shares of a VM's time.
        if title.ends_with(" by VM") {
            assert!(values.iter().all(|value| (0.0..=1.0).contains(value)), "{title}: {values:?}");
        }
    }
}
