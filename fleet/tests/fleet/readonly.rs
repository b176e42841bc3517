//! A query cannot write anywhere, nor read what it was not given.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::recorded::{NESTED, PLAIN, import, refuses, run, stderr};

/// Every file below a folder, with its bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path))
        } else {
            drop(found.insert(path.clone(), fs::read(&path).unwrap()))
        }
    }
    found
}

#[test]
fn sql_that_writes_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    import(NESTED, &folder.path().join("run"), PLAIN);
    let before = files(folder.path());
    for sql in [
        "COPY exits TO 'stolen.parquet'",
        "COPY (SELECT 1) TO 'stolen.csv' STORED AS CSV",
        "EXPLAIN ANALYZE COPY exits TO 'stolen.parquet'",
        "INSERT INTO exits SELECT * FROM exits",
        "INSERT OVERWRITE exits SELECT * FROM exits",
        "UPDATE exits SET count = 0",
        "DELETE FROM exits",
        "TRUNCATE exits",
        "DROP TABLE exits",
        "CREATE TABLE t AS SELECT 1",
        "CREATE VIEW v AS SELECT 1",
        "CREATE SCHEMA s",
        "CREATE FUNCTION f() RETURNS INT RETURN 1",
        "SELECT 1 INTO t",
        "SET datafusion.execution.batch_size = 1",
        "RESET datafusion.execution.batch_size",
        "PREPARE p AS SELECT 1",
        "SELECT 1; DROP TABLE exits",
    ] {
        refuses(folder.path(), &["query", sql, "run"], 2, &["the SQL cannot be asked"]);
    }
    assert_eq!(files(folder.path()), before);
}

#[test]
fn sql_that_reads_other_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    import(NESTED, &folder.path().join("run"), PLAIN);
    import(NESTED, &folder.path().join("other"), PLAIN);
    fs::write(folder.path().join("secret.csv"), "word\nxyzzy\n").unwrap();
    let other = folder.path().join("other/exits/000001.parquet");
    for sql in [
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'secret.csv'".to_owned(),
        "SELECT * FROM 'secret.csv'".to_owned(),
        "SELECT * FROM '/etc/passwd'".to_owned(),
        format!("SELECT * FROM '{}'", other.display()),
        format!("SELECT * FROM \"file://{}\"", other.display()),
        "SELECT * FROM read_csv('secret.csv')".to_owned(),
        "SELECT * FROM read_parquet('other/exits/000001.parquet')".to_owned(),
        "SELECT * FROM parquet_metadata('other/exits/000001.parquet')".to_owned(),
        "SELECT * FROM glob('*')".to_owned(),
        "SELECT read_text('secret.csv')".to_owned(),
        "SELECT * FROM information_schema.files".to_owned(),
    ] {
        refuses(folder.path(), &["query", &sql, "run"], 2, &["the SQL cannot be asked"]);
    }
    for sql in ["SELECT * FROM runs", "SHOW TABLES", "SHOW ALL", "SHOW FUNCTIONS", "DESCRIBE exits"]
    {
        let output = run(folder.path(), &["query", sql, "run", "--format", "csv"]);
        assert!(output.status.success(), "{sql}: {}", stderr(&output));
        assert!(!String::from_utf8_lossy(&output.stdout).contains("xyzzy"));
    }
}

#[test]
fn links_do_not_lead_out() {
    let folder = tempfile::tempdir().unwrap();
    import(NESTED, &folder.path().join("outside/run"), PLAIN);
    let tree = folder.path().join("tree");
    import(NESTED, &tree.join("mine"), PLAIN);
    // A link to a run, a link in place of a table's folder, and one in place of a file.
    std::os::unix::fs::symlink("../outside/run", tree.join("linked")).unwrap();
    for (name, path) in [("folder", "exits"), ("file", "exits/000001.parquet")] {
        let run = tree.join(name);
        import(NESTED, &run, PLAIN);
        let aside = folder.path().join("outside").join(name);
        fs::rename(run.join(path), &aside).unwrap();
        std::os::unix::fs::symlink(&aside, run.join(path)).unwrap();
    }
    let output = run(folder.path(), &["query", "SELECT run FROM runs", "tree", "--format", "csv"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "run\r\nmine\r\n");
    let said = stderr(&output);
    assert!(said.contains("2 runs or folders were left out"), "{said}");
    assert!(
        said.contains("is no folder in it") && said.contains("is not a regular file"),
        "{said}"
    );
}

#[test]
fn values_are_not_part_of_the_sql() {
    let folder = tempfile::tempdir().unwrap();
    import(NESTED, &folder.path().join("run"), PLAIN);
    let sql = "SELECT count(*) AS n FROM exits WHERE level = $level";
    let with = |value: &str| {
        let output =
            run(folder.path(), &["query", sql, "run", "--param", value, "--format", "csv"]);
        assert!(output.status.success(), "{value}: {}", stderr(&output));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    assert_eq!(with("level=' OR 1=1 --"), "n\r\n0");
    assert_ne!(with("level=L1"), "n\r\n0");
    refuses(folder.path(), &["query", sql, "run"], 2, &["$level has no value"]);
}
