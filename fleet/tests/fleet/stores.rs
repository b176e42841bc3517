//! Runs in an object store: a real S3 server on the loopback interface, over a folder, that wants its requests signed.

use std::collections::HashSet;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::SimpleAuth;
use s3s::path::S3Path;
use s3s::service::S3ServiceBuilder;
use s3s::{S3ErrorCode, S3Result};
use s3s_fs::FileSystem;
use serde_json::{Value, json};

use crate::compact::{SUMS, fleet, rounded};
use crate::damage::{COUNT, counts_as_text};
use crate::questions::NAMES;
use crate::recorded::{
    NESTED, PLAIN, SaidRun, import, program, refuses, rows, rows_of, run, stderr,
};

const KEY: &str = "AKIDOFTHETESTS";
const SECRET: &str = "secret/of+the+tests";

/// What was asked of a server, and what it will not give.
#[derive(Default)]
struct Door {
    /// `LIST bucket/`, `GET bucket/key`.
    asked: Mutex<Vec<String>>,
    closed: Mutex<HashSet<String>>,
    /// Objects are not to be had at the moment; lists are.
    busy: Mutex<bool>,
}

struct StoresGuard(Arc<Door>);

#[async_trait::async_trait]
impl S3Access for StoresGuard {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let what = match context.s3_path() {
            S3Path::Root => "ROOT".to_owned(),
            S3Path::Bucket { bucket } => format!("LIST {bucket}"),
            S3Path::Object { bucket, key } => format!("{} {bucket}/{key}", context.method()),
        };
        let list = what.starts_with("LIST");
        let closed = self.0.closed.lock().unwrap().contains(&what);
        self.0.asked.lock().unwrap().push(what);
        match context.credentials() {
            Some(_) if !closed && *self.0.busy.lock().unwrap() && !list => {
                Err(S3ErrorCode::SlowDown.into())
            }
            Some(_) if !closed => Ok(()),
            _ => Err(S3ErrorCode::AccessDenied.into()),
        }
    }
}

/// A server whose buckets are the folders in `buckets`.
struct BucketServer {
    folder: tempfile::TempDir,
    address: SocketAddr,
    door: Arc<Door>,
    _runtime: tokio::runtime::Runtime,
}

impl BucketServer {
    fn start() -> BucketServer {
        let folder = tempfile::tempdir().unwrap();
        let buckets = folder.path().join("buckets");
        fs::create_dir_all(buckets.join("bucket")).unwrap();
        let door = Arc::new(Door::default());
        let mut builder = S3ServiceBuilder::new(FileSystem::new(&buckets).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        builder.set_access(StoresGuard(Arc::clone(&door)));
        let service = builder.build().into_shared();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    // A client that disconnects is ignored.
                    let _ =
                        http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        BucketServer { folder, address, door, _runtime: runtime }
    }

    /// Where the working folder of the program is.
    fn here(&self) -> &Path {
        self.folder.path()
    }

    fn bucket(&self, path: &str) -> PathBuf {
        self.folder.path().join("buckets").join(path)
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
        ]
    }

    fn program(&self, args: &[&str]) -> Command {
        let mut command = program(self.here());
        command.args(args).envs(self.environment());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut all = vec!["query", "--format", "json"];
        all.extend(args);
        self.program(&all).output().unwrap()
    }

    fn rows(&self, args: &[&str]) -> Vec<Vec<Value>> {
        let output = self.run(args);
        let said = stderr(&output);
        assert!(output.status.success() && said.is_empty(), "{args:?}: {said}");
        rows_of(&output)
    }

    /// What a query asked of the server.
    fn asked(&self, args: &[&str]) -> Vec<String> {
        self.door.asked.lock().unwrap().clear();
        self.rows(args);
        self.door.asked.lock().unwrap().clone()
    }
}

/// It fails with this code, and says this, in one sentence without credentials.
fn fails(mut command: Command, code: i32, words: &[&str]) {
    let output = command.output().unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(
        output.stdout.is_empty() && said.starts_with("vmtax: ") && said.lines().count() == 1,
        "{said}"
    );
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said:?}");
    }
    for secret in [KEY, SECRET, "hunter2", "panicked", "<"] {
        assert!(!said.contains(secret), "{secret:?} is in {said:?}");
    }
}

/// What every kind of query says of a tree.
fn answers(ask: &dyn Fn(&[&str]) -> Vec<Vec<Value>>, tree: &str) -> Vec<String> {
    let mut answers: Vec<_> = SUMS.iter().map(|sql| ask(&[sql, tree])).collect();
    answers.push(ask(&["SELECT * FROM runs ORDER BY run", tree]));
    for name in NAMES {
        let question = ["--question", name, tree, "--param", "since=2026-01-02"];
        answers.push(ask(if name == "tax-rose" { &question } else { &question[..3] }));
    }
    assert!(answers.iter().filter(|rows| !rows.is_empty()).count() > 6, "most have no rows");
    rounded(&answers)
}

#[test]
fn the_same_rows_from_a_store_as_from_a_disk() {
    let server = BucketServer::start();
    fleet(server.here(), "3", "3");
    fs::rename(server.here().join("tree"), server.bucket("bucket/tree")).unwrap();
    let here = |args: &[&str]| rows(server.here(), args);
    let there = |args: &[&str]| server.rows(args);
    let expected = answers(&here, "buckets/bucket/tree");
    assert_eq!(answers(&there, "s3://bucket/tree"), expected);
    assert_eq!(answers(&there, "s3://bucket/tree/"), expected);
    assert_eq!(answers(&there, "s3a://bucket/tree"), expected);
    let compact = ["compact", "buckets/bucket/tree", "--date", "2026-01-02", "--remove"];
    let compacted = run(server.here(), &compact);
    assert!(compacted.status.success(), "{}", stderr(&compacted));
    assert_eq!(answers(&here, "buckets/bucket/tree"), expected);
    assert_eq!(answers(&there, "s3://bucket/tree"), expected, "a day is compacted");
    // Its files are what was read.
    let asked = server
        .asked(&["SELECT sum(count) FROM exits WHERE date = '2026-01-02'", "s3://bucket/tree"]);
    let files = asked.iter().filter(|what| what.ends_with(".parquet"));
    assert!(
        files.clone().all(|what| what.contains("/compacted/")) && files.count() > 0,
        "{asked:?}"
    );
    // A run is a path too, and the whole bucket is one.
    let run = "s3://bucket/tree/host=h000001/date=2026-01-01/000";
    assert_eq!(there(&["SELECT run, host, date FROM runs", run]), [[run, "h000001", "2026-01-01"]]);
    assert_eq!(
        there(&["SELECT count(*), min(run) FROM runs", "s3://bucket"]),
        [[json!(9), json!("host=h000000/date=2026-01-02/000")]]
    );
}

#[test]
fn invalid_patterns_and_places() {
    let server = BucketServer::start();
    for host in ["a", "b", "c"] {
        for day in ["01", "02"] {
            let path = format!("bucket/tree/host={host}/date=2026-01-{day}/0");
            import(NESTED, &server.bucket(&path), SaidRun { host, ..PLAIN });
        }
    }
    // In progress, and too deep.
    import(NESTED, &server.bucket("bucket/tree/.host=d/0"), PLAIN);
    import(NESTED, &server.bucket("bucket/deep/1/2/3/4/5/6/7/8/9"), PLAIN);
    import(NESTED, &server.bucket("bucket/odd/[x] y%20/run"), PLAIN);
    fs::create_dir_all(server.bucket("bucket/nothing/here")).unwrap();
    fs::write(server.bucket("bucket/nothing/here/file"), "x").unwrap();
    let sql = "SELECT run FROM runs ORDER BY run";
    for (path, found) in [
        (
            "s3://bucket/tree/host=[ab]/date=*-02",
            &["host=a/date=2026-01-02/0", "host=b/date=2026-01-02/0"][..],
        ),
        (
            "s3://bucket/t*/host=c",
            &["tree/host=c/date=2026-01-01/0", "tree/host=c/date=2026-01-02/0"],
        ),
        ("s3://bucket/tree/host=c/date=2026-01-01/*", &["0"]),
        ("s3://bucket/tree/host=c/date=2026-01-01", &["0"]),
        // What has such a name is meant itself.
        ("s3://bucket/odd/[x] y%20", &["run"]),
    ] {
        let names: Vec<_> = found.iter().map(|name| vec![json!(name)]).collect();
        assert_eq!(server.rows(&[sql, path]), names, "{path}");
    }
    assert_eq!(server.rows(&[sql, "s3://bucket/tree"]).len(), 6);
    let deep = server.run(&[sql, "s3://bucket/deep", "s3://bucket/tree"]);
    assert!(
        deep.status.success()
            && stderr(&deep)
                .contains("s3://bucket/deep/1/2/3/4/5/6/7/8: is more than 8 folders deep"),
        "{}",
        stderr(&deep)
    );
    for (path, code, words) in [
        ("s3://bucket/tree/host=z*", 3, "s3://bucket/tree/host=z*: no folder matches it"),
        ("s3://bucket/tree/host=[a", 3, "is no pattern"),
        (
            "s3://bucket/nowhere",
            3,
            "s3://bucket/nowhere: there is nothing below it; check the path",
        ),
        ("s3://bucket/nothing", 4, "s3://bucket/nothing: there is no run in it"),
        ("s3://none/tree", 3, "s3://none/tree: there is no such bucket; check its name"),
        ("s3://bucket/tree/../x", 3, "cannot be a place in a store"),
        ("s3://me:hunter2@bucket/tree", 3, "has no user, password or query string"),
        ("s3://bucket/tree?X-Amz-Signature=hunter2", 3, "has no user, password or query string"),
        ("s3:///tree", 3, "it names no store"),
        ("ftp://h/tree", 3, "there is no such kind of store; use s3://"),
        ("file:///tree", 3, "the plain path of a folder"),
    ] {
        fails(server.program(&["query", sql, path]), code, &[words]);
    }
    fails(server.program(&["compact", "s3://bucket/tree"]), 3, &["store"]);
    // Nor is anything read there that was not named.
    for sql in [
        "SELECT * FROM 's3://bucket/tree/host=a/date=2026-01-01/0/exits/000001.parquet'",
        "COPY runs TO 's3://bucket/x.parquet'",
    ] {
        fails(
            server.program(&["query", sql, "s3://bucket/tree/host=b"]),
            2,
            &["the SQL cannot be asked"],
        );
    }
}

#[test]
fn a_query_asks_for_what_it_wants_alone() {
    let server = BucketServer::start();
    fleet(server.here(), "4", "2");
    fs::rename(server.here().join("tree"), server.bucket("bucket/tree")).unwrap();
    let asked = server.asked(&[
        "SELECT sum(count), count(DISTINCT run) FROM exits WHERE host = 'h000002' AND date = '2026-01-01'",
        "s3://bucket/tree",
    ]);
    let run = "bucket/tree/host=h000002/date=2026-01-01/000/";
    let count = |what: &dyn Fn(&str) -> bool| asked.iter().filter(|asked| what(asked)).count();
    assert_eq!(count(&|what| what.starts_with("LIST")), 1, "{asked:?}");
    assert_eq!(count(&|what| what.ends_with("/run.json")), 1, "{asked:?}");
    // Every file of it: its end, and what is wanted of it.
    let files = fs::read_dir(server.bucket(run).join("exits")).unwrap().count();
    let segments = count(&|what| what.starts_with(&format!("GET {run}exits/")));
    assert!(segments >= files && segments <= 2 * files, "{asked:?}");
    assert_eq!(asked.len(), 2 + segments, "{asked:?}");
    // What only run.json says is read of all, and their files are left alone.
    let asked = server
        .asked(&["SELECT sum(count) FROM exits WHERE labels LIKE '%rack=r3%'", "s3://bucket/tree"]);
    assert_eq!(asked.iter().filter(|what| what.ends_with("/run.json")).count(), 8, "{asked:?}");
    let other = |what: &&String| what.contains("parquet") && !what.contains("host=h000003");
    assert_eq!(asked.iter().filter(other).count(), 0, "{asked:?}");
    // Two paths of one bucket, and a question of runs alone.
    let asked = server.asked(&[
        "SELECT count(*) FROM runs",
        "s3://bucket/tree/host=h000001",
        "s3://bucket/tree/host=h000002/date=2026-01-02/000",
    ]);
    assert_eq!(asked.len(), 2 + 3, "{asked:?}");
}

/// A change to a run, or a denied access, and the expected message.
type StoreDamage<'a> = (&'a dyn Fn(&Path), Option<&'a str>, &'a str);

#[test]
fn damaged_and_closed_runs_are_left_out_and_named() {
    let segment = |run: &Path| run.join("exits/000001.parquet");
    let garble = |run: &Path| {
        let path = segment(run);
        let len = fs::metadata(&path).unwrap().len();
        fs::write(path, vec![7; len as usize]).unwrap();
    };
    let damages: [StoreDamage<'_>; 7] = [
        (&|run| fs::remove_file(segment(run)).unwrap(), None, "is damaged: exits"),
        (
            &|run| {
                let bytes = fs::read(segment(run)).unwrap();
                fs::write(segment(run), &bytes[..bytes.len() / 2]).unwrap();
            },
            None,
            "bytes where run.json says",
        ),
        (&garble, None, "has checksum"),
        (&|run| fs::write(run.join("run.json"), "{").unwrap(), None, "its run.json is not JSON"),
        (&|run| fs::write(run.join("run.json"), "").unwrap(), None, "its run.json is not JSON"),
        (&|_| {}, Some("GET bucket/tree/bad/run.json"), "its run.json is closed to you"),
        (
            &|_| {},
            Some("GET bucket/tree/bad/exits/000001.parquet"),
            "its exits/000001.parquet is closed to you",
        ),
    ];
    for (damage, closed, why) in damages {
        let server = BucketServer::start();
        import(NESTED, &server.bucket("bucket/tree/bad"), SaidRun { host: "bad", ..PLAIN });
        import(NESTED, &server.bucket("bucket/tree/good"), PLAIN);
        damage(&server.bucket("bucket/tree/bad"));
        server.door.closed.lock().unwrap().extend(closed.map(str::to_owned));
        for args in [&[COUNT, "s3://bucket/tree"][..], &["--verify", COUNT, "s3://bucket/tree"]] {
            let output = server.run(args);
            let said = stderr(&output);
            assert!(output.status.success(), "{why}: {said}");
            let rows = rows_of(&output);
            assert!(rows.len() == 1 && rows[0][0] == "good", "{why}: {rows:?}");
            for words in ["1 run or folder was left out", "s3://bucket/tree/bad: ", why] {
                assert!(said.contains(words), "{words:?} is not in {said:?}");
            }
        }
    }
}

#[test]
fn verify_finds_a_flipped_bit_in_a_store() {
    let server = BucketServer::start();
    import(NESTED, &server.bucket("bucket/tree/bad"), SaidRun { host: "bad", ..PLAIN });
    import(NESTED, &server.bucket("bucket/tree/good"), PLAIN);
    let path = server.bucket("bucket/tree/bad/events/000001.parquet");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).unwrap();
    // The question reads no events, so only --verify can find it.
    assert_eq!(server.rows(&[COUNT, "s3://bucket/tree"]).len(), 2);
    let output = server.run(&["--verify", COUNT, "s3://bucket/tree"]);
    assert!(
        stderr(&output)
            .contains("s3://bucket/tree/bad: is damaged: events/000001.parquet has checksum"),
        "{}",
        stderr(&output)
    );
    assert_eq!(rows_of(&output).len(), 1);
}

#[test]
fn a_damaged_day_and_a_column_of_another_type() {
    let server = BucketServer::start();
    fleet(server.here(), "2", "1");
    fs::rename(server.here().join("tree"), server.bucket("bucket/tree")).unwrap();
    let expected = server.rows(&[SUMS[0], "s3://bucket/tree"]);
    assert!(run(server.here(), &["compact", "buckets/bucket/tree"]).status.success());
    fs::remove_file(server.bucket("bucket/tree/compacted/date=2026-01-01/exits/000001.parquet"))
        .unwrap();
    let output = server.run(&[SUMS[0], "s3://bucket/tree"]);
    let said = stderr(&output);
    assert!(said.contains("s3://bucket/tree/compacted/date=2026-01-01: is damaged"), "{said}");
    assert_eq!(rows_of(&output), expected);
    counts_as_text(&server.bucket("bucket/tree/host=h000001/date=2026-01-01/000"));
    fs::remove_dir_all(server.bucket("bucket/tree/compacted")).unwrap();
    let words = [
        "s3://bucket/tree/host=h000001/date=2026-01-01/000/exits/000001.parquet: its column count is Utf8",
    ];
    fails(server.program(&["query", COUNT, "s3://bucket/tree"]), 4, &words);
}

#[test]
fn credentials_that_do_not_open_it() {
    let server = BucketServer::start();
    import(NESTED, &server.bucket("bucket/run"), PLAIN);
    for (name, value) in [
        ("AWS_SECRET_ACCESS_KEY", "hunter2"),
        ("AWS_ACCESS_KEY_ID", "hunter2"),
        ("AWS_SKIP_SIGNATURE", "true"),
    ] {
        let mut command = server.program(&["query", COUNT, "s3://bucket/run"]);
        command.env(name, value);
        fails(
            command,
            3,
            &[
                "s3://bucket/run: access is denied, or there are no credentials; check ",
                "AWS_SECRET_ACCESS_KEY",
            ],
        );
    }
    let mut plain = server.program(&["query", COUNT, "s3://bucket/run"]);
    plain.env_remove("AWS_ALLOW_HTTP");
    fails(plain, 3, &["s3://bucket/run: its endpoint is plain http; set AWS_ALLOW_HTTP=true"]);
    let mut key = server.program(&["query", COUNT, "s3://bucket/run"]);
    key.env("AWS_ALLOW_HTTP", "hunter2");
    fails(key, 3, &["s3://bucket/run: no client can be made for it"]);
}

/// A store that does not answer is no reason to wait, nor to call its runs damaged. A busy computer may stand still meanwhile.
#[test]
fn stores_that_do_not_answer() {
    let server = BucketServer::start();
    fleet(server.here(), "30", "2");
    fs::rename(server.here().join("tree"), server.bucket("bucket/tree")).unwrap();
    let bounded = |mut change: Box<dyn FnMut(&mut Command)>, words: &[&str]| {
        let mut times = (0..5).map(|_| {
            let mut command = server.program(&["query", COUNT, "s3://bucket/tree"]);
            change(&mut command);
            let begin = Instant::now();
            fails(command, 3, words);
            begin.elapsed()
        });
        assert!(times.any(|time| time < Duration::from_secs(40)), "{words:?}");
    };
    bounded(
        Box::new(|command| {
            // Where no test listens: only root may.
            command.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
        }),
        &[
            "s3://bucket/tree: its store cannot be reached (no connection); check the network, and AWS_ENDPOINT_URL",
        ],
    );
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    bounded(
        Box::new(move |command| {
            let endpoint = format!("http://{address}");
            command.env("AWS_ENDPOINT_URL", endpoint).env("AWS_TIMEOUT", "3 seconds");
        }),
        &["s3://bucket/tree: its store cannot be reached (no answer in time)"],
    );
    // It lists, and then is too busy for anything else.
    *server.door.busy.lock().unwrap() = true;
    bounded(
        Box::new(|_| {}),
        &[
            "the query failed: s3://bucket/: its store cannot be reached (it answers with status 503)",
        ],
    );
}

#[test]
fn a_disk_and_two_buckets_in_one_query() {
    let server = BucketServer::start();
    import(NESTED, &server.bucket("bucket/host=b/1"), PLAIN);
    import(NESTED, &server.bucket("other/x/host=c/2"), PLAIN);
    import(NESTED, &server.here().join("tree/host=here/3"), PLAIN);
    let paths = ["s3://bucket", "s3://other/x", "tree"];
    let ask = |sql: &str| server.rows(&[&[sql][..], &paths].concat());
    let exits = rows(server.here(), &["SELECT count(*) FROM exits", "tree"])[0][0].clone();
    assert_eq!(
        ask("SELECT host, run, count(*) FROM exits GROUP BY 1, 2 ORDER BY 1"),
        [
            [json!("b"), json!("host=b/1"), exits.clone()],
            [json!("c"), json!("host=c/2"), exits.clone()],
            [json!("here"), json!("host=here/3"), exits]
        ]
    );
    assert_eq!(
        ask("SELECT DISTINCT host FROM exits WHERE host > 'b' ORDER BY 1"),
        [["c"], ["here"]]
    );
    // Equal names could not be distinguished.
    import(NESTED, &server.here().join("tree/host=b/1"), PLAIN);
    fails(
        server.program(&["query", COUNT, "s3://bucket", "tree"]),
        4,
        &["s3://bucket/host=b/1 and ", "/tree/host=b/1 would both be called host=b/1"],
    );
}

#[cfg(feature = "cluster")]
#[test]
fn the_same_rows_on_a_cluster() {
    use crate::cluster::{Cluster, close};
    let server = BucketServer::start();
    fleet(server.here(), "3", "2");
    fs::rename(server.here().join("tree"), server.bucket("bucket/tree")).unwrap();
    assert!(
        run(server.here(), &["compact", "buckets/bucket/tree", "--date", "2026-01-01"])
            .status
            .success()
    );
    let environment = server.environment();
    let environment: Vec<_> = environment.iter().map(|(k, v)| (*k, v.as_str())).collect();
    let cluster = Cluster::start(server.here(), &environment);
    for sql in [SUMS[0], SUMS[1], COUNT] {
        let here = rows(server.here(), &[sql, "buckets/bucket/tree"]);
        let there = server.rows(&[sql, "s3://bucket/tree", "--cluster", &cluster.url]);
        let alike = here.iter().zip(&there).all(|(a, b)| a.iter().zip(b).all(|(a, b)| close(a, b)));
        assert!(here.len() == there.len() && !here.is_empty() && alike, "{here:?}\n{there:?}");
    }
    let check =
        server.program(&["check", "s3://bucket/tree", "--cluster", &cluster.url]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&check.stdout).contains("They see the exits of 6 runs."),
        "{check:?}"
    );
    // Executors that were given other keys say so, without showing them.
    drop(cluster);
    let wrong: Vec<_> = environment
        .iter()
        .map(|&(k, v)| (k, if k == "AWS_SECRET_ACCESS_KEY" { "hunter2" } else { v }))
        .collect();
    let cluster = Cluster::start(server.here(), &wrong);
    let sql = "SELECT host, sum(count) FROM exits WHERE date = '2026-01-02' GROUP BY 1";
    let denied = server.run(&[sql, "s3://bucket/tree", "--cluster", &cluster.url]);
    let said = stderr(&denied);
    assert!(!denied.status.success() && said.contains("access is denied"), "{said}");
    assert!(!said.contains("hunter2") && !said.contains(KEY), "{said}");
}

#[test]
fn paths_of_this_machine_ask_no_store() {
    let folder = tempfile::tempdir().unwrap();
    refuses(
        folder.path(),
        &["query", COUNT, "s3:/b"],
        3,
        &["s3:/b: there is no such file or folder"],
    );
}
