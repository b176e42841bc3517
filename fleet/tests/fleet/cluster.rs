//! A real scheduler and two executors on the loopback interface: the same rows as here, or a sentence.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::compact::fleet;
use crate::questions::NAMES;
use crate::recorded::{program, refuses, rows, rows_of, run, stderr};

/// A scheduler and executors, ended with the test.
pub(crate) struct Cluster {
    pub(crate) url: String,
    scheduler: Child,
    executors: Vec<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.executors.iter_mut().chain([&mut self.scheduler]) {
            // Best effort: one of them may be dead already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A port without a listener. Below those that Linux gives to connections and to who asks for any: it is taken later.
pub(crate) fn port() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = std::process::id().wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 20_000 + (next % 12_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port.to_string();
        }
    }
}

impl Cluster {
    /// What executors are to find in their environment can be given.
    pub(crate) fn start(folder: &Path, environment: &[(&str, &str)]) -> Cluster {
        let address = format!("127.0.0.1:{}", port());
        let log = folder.join("cluster.log");
        let said = || fs::read_to_string(&log).unwrap_or_default();
        let start = |args: &[&str]| {
            let log = File::options().create(true).append(true).open(&log).unwrap();
            program(folder)
                .args(args)
                .env("TMPDIR", folder)
                .envs(environment.iter().copied())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .unwrap()
        };
        // An executor that stands still for so long is taken for dead.
        let scheduler = start(&["scheduler", "--listen", &address, "--timeout", "20"]);
        let mut cluster =
            Cluster { url: format!("df://{address}"), scheduler, executors: Vec::new() };
        let begin = Instant::now();
        while std::net::TcpStream::connect(&address).is_err() {
            let elapsed = begin.elapsed();
            assert!(
                elapsed < Duration::from_secs(600),
                "the scheduler does not listen: {}",
                said()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        for _ in 0..2 {
            let (listen, control) = (format!("127.0.0.1:{}", port()), port());
            let args = [
                "executor",
                "--scheduler",
                &address,
                "--listen",
                &listen,
                "--control-port",
                &control,
                "--tasks",
                "2",
            ];
            cluster.executors.push(start(&args));
        }
        while !cluster.sees_both(folder) {
            let elapsed = begin.elapsed();
            assert!(elapsed < Duration::from_secs(600), "the executors do not come: {}", said());
            std::thread::sleep(Duration::from_millis(200));
        }
        cluster
    }

    fn sees_both(&self, folder: &Path) -> bool {
        let output = run(folder, &["check", "template", "--cluster", &self.url]);
        String::from_utf8_lossy(&output.stdout).matches("  127.0.0.1:").count() == 2
    }
}

/// Fractions are added in another order there.
pub(crate) fn close(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(b.abs()),
        _ => a == b,
    }
}

#[test]
fn the_same_rows_here_and_on_a_cluster_and_when_an_executor_dies() {
    let folder = tempfile::tempdir().unwrap();
    fleet(folder.path(), "4", "4");
    let mut cluster = Cluster::start(folder.path(), &[]);
    let check = run(folder.path(), &["check", "tree", "--cluster", &cluster.url]);
    assert!(check.status.success(), "{}", stderr(&check));
    assert!(
        String::from_utf8_lossy(&check.stdout).contains("They see the exits of 16 runs."),
        "{check:?}"
    );
    same_rows(folder.path(), &cluster, "tree");
    let compacted = run(folder.path(), &["compact", "tree", "--date", "2026-01-01"]);
    assert!(compacted.status.success(), "{}", stderr(&compacted));
    same_rows(folder.path(), &cluster, "tree");
    dies(folder.path(), &mut cluster);
}

fn same_rows(folder: &Path, cluster: &Cluster, tree: &str) {
    let mut some = 0;
    for name in NAMES {
        // Half of the days on either side.
        let params: &[&str] =
            if name == "tax-rose" { &["--param", "since=2026-01-03"] } else { &[] };
        let here = [&["--question", name, tree], params].concat();
        let there = [&here[..], &["--cluster", &cluster.url]].concat();
        let (here, there) = (rows(folder, &here), rows(folder, &there));
        let equal = here.len() == there.len()
            && here.iter().zip(&there).all(|(a, b)| a.iter().zip(b).all(|(a, b)| close(a, b)));
        assert!(equal, "{name}:\n{here:?}\n{there:?}");
        some += usize::from(!here.is_empty());
    }
    assert!(some >= 3, "most questions have no rows");
}

/// A query that takes a while, in whose middle one of two executors is killed.
fn dies(folder: &Path, cluster: &mut Cluster) {
    let sql = "SELECT host, count(*) AS n, sum(count + length(k.detail_kind)) AS s FROM exits CROSS JOIN detail_kinds k GROUP BY host ORDER BY 1";
    let expected = rows(folder, &[sql, "tree"]);
    assert_eq!(expected.len(), 4);
    let begin = Instant::now();
    let whole = rows(folder, &[sql, "tree", "--cluster", &cluster.url]);
    let took = begin.elapsed();
    assert_eq!(whole, expected);
    let child = program(folder)
        .args(["query", "--format", "json", sql, "tree", "--cluster", &cluster.url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(took / 2);
    let mut victim = cluster.executors.remove(0);
    victim.kill().unwrap();
    victim.wait().unwrap();
    let output = child.wait_with_output().unwrap();
    match output.status.code() {
        Some(0) => assert_eq!(rows_of(&output), expected, "other rows after an executor died"),
        _ => {
            let said = stderr(&output);
            assert!(said.starts_with("vmtax: ") && !said.contains("panicked"), "{said}");
        }
    }
    // The other goes on alone, once the scheduler knows.
    let begin = Instant::now();
    loop {
        let output =
            run(folder, &["query", "--format", "json", sql, "tree", "--cluster", &cluster.url]);
        if output.status.success() {
            assert_eq!(rows_of(&output), expected);
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(600), "{}", stderr(&output));
    }
}

#[test]
fn invalid_cluster_addresses() {
    let folder = tempfile::tempdir().unwrap();
    crate::recorded::import(
        crate::recorded::NESTED,
        &folder.path().join("run"),
        crate::recorded::PLAIN,
    );
    // Where no test listens: only root may.
    let nobody = "df://127.0.0.1:1";
    for command in [&["query", "SELECT count(*) FROM exits", "run"][..], &["check", "run"]] {
        let ask = |url: &str| {
            [command, &["--cluster", url]]
                .concat()
                .into_iter()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for (url, code, words) in [
            (nobody, 3, "cannot be reached"),
            ("http://a:1", 2, "use df://HOST:PORT"),
            ("df://a", 2, "use df://HOST:PORT"),
        ] {
            let args = ask(url);
            refuses(
                folder.path(),
                &args.iter().map(String::as_str).collect::<Vec<_>>(),
                code,
                &[words],
            );
        }
    }
}
