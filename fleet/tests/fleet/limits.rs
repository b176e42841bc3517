//! Whatever SQL asks for, the program ends with one sentence and a documented code, and leaves nothing in TMPDIR.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::recorded::{NESTED, PLAIN, import, program, stderr};

/// A run, and a folder for what is spilled.
struct SpillFolder {
    folder: tempfile::TempDir,
}

impl SpillFolder {
    fn new() -> SpillFolder {
        let folder = tempfile::tempdir().unwrap();
        import(NESTED, &folder.path().join("run"), PLAIN);
        fs::create_dir(folder.path().join("tmp")).unwrap();
        SpillFolder { folder }
    }

    fn tmp(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    fn query(&self, sql: &str, memory: &str) -> Command {
        let mut command = program(self.folder.path());
        command.args(["query", sql, "run", "--format", "csv", "--memory", memory]);
        command.env("TMPDIR", self.tmp()).stdin(Stdio::null());
        command
    }

    /// Names of the entries of TMPDIR.
    fn left(&self) -> Vec<PathBuf> {
        fs::read_dir(self.tmp()).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

/// A join of five tables that would run for years ends at its deadline, and leaves nothing behind.
#[test]
fn a_query_ends_at_its_deadline() {
    let place = SpillFolder::new();
    let tables = ["exits a", "exits b", "exits c", "exits d", "exits e"].join(", ");
    let sql = format!("SELECT sum(a.count * b.count * c.count * d.count * e.count) FROM {tables}");
    let mut command = place.query(&sql, "1G");
    let output = command.args(["--timeout", "2s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("did not end within 2.00 s") && said.contains("--timeout"), "{said}");
    assert_eq!(place.left(), Vec::<PathBuf>::new());
}

/// The limit holds for what is resident: a value that fits into the room for stacks, which are reserved and not used, is too large too.
#[test]
fn resident_memory_is_limited() {
    let place = SpillFolder::new();
    for sql in ["SELECT length(repeat('x', 2000000000))", "SELECT length(repeat('x', 1300000000))"]
    {
        let output = place.query(sql, "512M").output().unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{sql}: {said}");
        assert!(said.contains("needs more memory than --memory 512"), "{sql}: {said}");
    }
}

#[test]
fn impossible_orders_are_errors() {
    let place = SpillFolder::new();
    let many = |what: &str, between: &str, n: usize| vec![what; n].join(between);
    let nested = |open: &str, close: &str, n: usize| {
        format!("SELECT {}1{}", open.repeat(n), close.repeat(n))
    };
    let doubled: String = (1..40)
        .map(|i| format!(", a{i} AS (SELECT * FROM a{0} UNION ALL SELECT * FROM a{0})", i - 1))
        .collect();
    const MEMORY: &str = "needs more memory than --memory";
    const ENGINE: &str = "the engine cannot carry it out";
    let cases: &[(String, &[i32], &str)] = &[
        // Functions that make values of any length.
        ("SELECT length(repeat('x', 2000000000))".into(), &[1], MEMORY),
        ("SELECT array_length(array_repeat(1, 4000000000))".into(), &[1], MEMORY),
        ("SELECT translate(repeat('x', 1500000000), 'x', 'y')".into(), &[1], MEMORY),
        (
            "SELECT array_to_string(array_repeat('x', 100000000), repeat('y', 1000))".into(),
            &[1],
            MEMORY,
        ),
        ("SELECT array_length(array_agg(repeat('x', 9000000))) FROM exits".into(), &[1], ""),
        ("SELECT unnest(range(0, 2000000000))".into(), &[1, 4], ""),
        ("SELECT generate_series(-9223372036854775808, 9223372036854775807)".into(), &[1, 4], ""),
        (format!("WITH a0 AS (SELECT 1){doubled} SELECT * FROM a39"), &[1, 2], ""),
        // Statements by which the engine panics.
        ("SELECT nth_value(count, -9223372036854775808) OVER () FROM exits".into(), &[1, 4], ""),
        (
            "SELECT approx_percentile_cont(count, 0.5, 9223372036854775807) FROM exits".into(),
            &[1],
            ENGINE,
        ),
        ("SELECT array_resize([1], 9223372036854775807)".into(), &[1, 4], ""),
        (
            "SELECT date_trunc('year', to_timestamp_nanos(-9223372036854775808))".into(),
            &[1],
            ENGINE,
        ),
        (
            "SELECT * FROM generate_series(9223372036854775806, 9223372036854775807)".into(),
            &[0, 1],
            "",
        ),
        // Plans that are too large, or too deep.
        (
            many("SELECT 1", " UNION ALL ", 5000),
            &[2],
            "has 5000 SELECTs, and at most 500 can be planned",
        ),
        (many("SELECT 1", " UNION ", 501), &[2], "at most 500 can be planned"),
        (many("SELECT 1", " UNION ALL ", 500), &[0], ""),
        (format!("SELECT {}", many("1", "+", 3000)), &[2], "at most 2000 can be planned"),
        (format!("SELECT 1{}", "::INT".repeat(3000)), &[2], "at most 2000 can be planned"),
        (
            format!(
                "SELECT count(*) FROM {}",
                many("exits e", " JOIN exits f ON true CROSS JOIN ", 80)
            ),
            &[2],
            "",
        ),
        (nested("(", ")", 10000), &[2], "recursion limit"),
        (nested("abs(", ")", 5000), &[2], "recursion limit"),
        (nested("CASE WHEN true THEN ", " END", 5000), &[2], ""),
        (
            "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT count(*) FROM t"
                .into(),
            &[2],
            "Recursive CTEs",
        ),
        // Values out of range.
        ("SELECT DATE '262143-12-31' + INTERVAL '1000000' YEAR".into(), &[4], ""),
        ("SELECT make_date(2147483647, 12, 31)".into(), &[4], ""),
        ("SELECT from_unixtime(9223372036854775807)".into(), &[4], "a value cannot be written"),
        ("SELECT arrow_cast(2147483647, 'Date32')".into(), &[4], "a value cannot be written"),
        ("SELECT CAST('x' AS INT)".into(), &[4], "Cannot cast string 'x'"),
        ("SELECT arrow_cast([1], 'FixedSizeList(2147483647, Int64)')".into(), &[1, 4], ""),
        ("SELECT 1/0".into(), &[4], "Divide by zero"),
        (format!("SELECT 'x' ~ '{}'", "(a{1000}){1000}"), &[4], ""),
        (format!("SELECT 'x' ~ '{}{}'", "(".repeat(50000), ")".repeat(50000)), &[4], ""),
        ("SELECT regexp_like(repeat('a', 50), '(a*)*b')".into(), &[0], ""),
    ];
    let mut wrong = Vec::new();
    for (sql, codes, words) in cases {
        let short: String = sql.chars().take(100).collect();
        let output = place.query(sql, "256M").output().unwrap();
        let said = stderr(&output);
        let code = output.status.code();
        let is_sentence = said.lines().count() == 1 && said.starts_with("vmtax: ");
        if !code.is_some_and(|code| codes.contains(&code))
            || (code != Some(0) && !is_sentence)
            || !said.contains(words)
        {
            wrong.push(format!("{short}: {:?} {said}", output.status));
        }
        if !place.left().is_empty() {
            wrong.push(format!("{short}: left {:?}", place.left()));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Sorts more than the limit, for a very long time.
const SPILLS: &str = "SELECT a.*, b.count AS other FROM exits a, exits b, exits c, exits d \
                      ORDER BY a.count + b.count + c.count + d.count";

/// A query that has spilled something.
fn spilling(place: &SpillFolder) -> Child {
    // What an earlier one left there is not its own.
    let before = place.left();
    let mut child =
        place.query(SPILLS, "256M").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(600);
    let own = || place.left().into_iter().filter(|entry| !before.contains(entry));
    while own().map(|entry| bytes(&entry)).sum::<u64>() < 1 << 20 {
        assert!(child.try_wait().unwrap().is_none(), "the query ended");
        assert!(Instant::now() < deadline, "nothing is spilled");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

/// Bytes below a folder, from which files may be gone meanwhile.
fn bytes(folder: &Path) -> u64 {
    let mut sum = 0;
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(found) if found.is_dir() => sum += bytes(&entry.path()),
            Ok(found) => sum += found.len(),
            Err(_) => {}
        }
    }
    sum
}

/// The process that carries the query out.
fn worker(child: &Child) -> String {
    let id = child.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    children.trim().to_owned()
}

fn signal(name: &str, processes: &[&str]) {
    let status = Command::new("kill").arg(format!("-{name}")).args(processes).status().unwrap();
    assert!(status.success());
}

fn is_gone(process: &str) -> bool {
    match fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => stat.contains(") Z "),
        Err(_) => true,
    }
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(600);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_query_that_is_stopped_leaves_nothing_spilled() {
    let place = SpillFolder::new();
    for name in ["INT", "TERM", "KILL"] {
        let mut child = spilling(&place);
        let worker = worker(&child);
        signal(name, &[&child.id().to_string()]);
        child.wait().unwrap();
        wait_until("the query goes on without its parent", || is_gone(&worker));
        wait_until(&format!("{name}: {:?} is left", place.left()), || place.left().is_empty());
    }
    // Its process is killed, as the system does when memory is short.
    let mut child = spilling(&place);
    signal("KILL", &[&worker(&child)]);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(place.left(), [""; 0].map(PathBuf::from));
    // Both at once: the next query removes it, and not what another query has.
    let mut child = spilling(&place);
    let (parent, both) = (child.id().to_string(), worker(&child));
    signal("STOP", &[&both]);
    signal("KILL", &[&parent, &both]);
    child.wait().unwrap();
    wait_until("the query goes on", || is_gone(&both));
    assert_eq!(place.left().len(), 1);
    let other = spilling(&place);
    assert_eq!(place.left().len(), 1, "{:?}", place.left());
    let output = place.query("SELECT 1", "64M").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(place.left().len(), 1, "what a running query has was removed");
    signal("TERM", &[&other.id().to_string()]);
    let mut other = other;
    other.wait().unwrap();
    assert!(place.left().is_empty(), "{:?}", place.left());
}

#[test]
fn rows_do_not_take_the_place_of_a_run() {
    let place = SpillFolder::new();
    let run = place.folder.path().join("run");
    let segment = run.join("exits/000001.parquet");
    for output in [run.join("run.json"), segment] {
        let before = fs::read(&output).unwrap();
        let refused = place.query("SELECT 1", "64M").arg("-o").arg(&output).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
        assert!(stderr(&refused).contains("is part of the run"), "{}", stderr(&refused));
        assert!(fs::read(&output).unwrap() == before);
    }
    let output = place.query("SELECT 1", "64M").arg("-o").arg(run.join("x.csv")).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn a_folder_named_by_the_environment_is_not_changed() {
    let place = SpillFolder::new();
    let kept = place.folder.path().join("kept");
    fs::create_dir(&kept).unwrap();
    fs::write(kept.join("file"), "x").unwrap();
    let output = place.query("SELECT 1", "64M").env("VMTAX_QUERY_SPILL", &kept).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(kept.join("file").exists());
    assert!(place.left().is_empty(), "{:?}", place.left());
}
