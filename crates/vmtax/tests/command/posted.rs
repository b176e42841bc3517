//! Texts as people post them, and tables without a length, through the commands.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::captures::expected;
use crate::check::{Program, check, stdout, succeed};

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/posted/input").join(name)
}

fn text(folder: &Path, words: &str) -> String {
    String::from_utf8(stdout(folder, words)).unwrap()
}

fn rows(folder: &Path, words: &str) -> Vec<(String, u64)> {
    let report: Value =
        serde_json::from_slice(&stdout(folder, &format!("{words} --format json"))).unwrap();
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    let row = |row: &Value| {
        let detail = row["detail"].as_object().map_or_else(String::new, |detail| {
            format!(" {} {}", detail["kind"].as_str().unwrap(), detail["value"])
        });
        let reason = row["reason"]["name"].as_str().or(row["reason"].as_str()).unwrap();
        (format!("{reason}{detail}"), row["count"].as_u64().unwrap())
    };
    rows.iter().map(row).collect()
}

/// From a file, a pipe and a zstd file alike.
#[test]
fn quoted_mail_is_the_table_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let mail = sample("perf-kvm-quoted-wrapped.txt");
    fs::copy(&mail, folder.path().join("mail")).unwrap();
    fs::write(
        folder.path().join("mail.zst"),
        zstd::encode_all(fs::File::open(&mail).unwrap(), 3).unwrap(),
    )
    .unwrap();
    let table = [
        ("MSR_WRITE", 924_045),
        ("EXTERNAL_INTERRUPT", 29_809),
        ("VMCALL", 17_819),
        ("DR_ACCESS", 44_669),
    ];
    let table: Vec<(String, u64)> = table.map(|(name, n)| (name.to_owned(), n)).into();
    for name in ["mail", "mail.zst"] {
        assert_eq!(rows(folder.path(), &format!("report {name} --event vmexit")), table, "{name}");
    }
    let mut piped = Program::new().command(folder.path(), "report - --event vmexit --format json");
    piped.stdin(fs::File::open(&mail).unwrap());
    let piped: Value = serde_json::from_slice(&succeed(&mut piped)).unwrap();
    assert_eq!(piped["tables"][0]["rows"].as_array().unwrap().len(), table.len());
}

/// No length, no rate: of a table nothing says how long it took.
#[test]
fn tables_have_no_rate() {
    let folder = tempfile::tempdir().unwrap();
    let table = expected("intel-cpuid", "intel.kvmstat-vmexit.txt");
    fs::write(folder.path().join("a"), &table).unwrap();
    fs::write(folder.path().join("b"), table.replace("300    47.69%", "600    47.69%")).unwrap();
    for words in ["report a", "report a --format html", "explain a"] {
        let said = text(folder.path(), words);
        assert!(!said.contains("per second") && !said.contains("a second"), "{words}: {said}");
    }
    assert!(text(folder.path(), "report a").contains("1 VM took 629 exits.\n"));
    assert!(text(folder.path(), "diff a b").contains("in the whole recording"));
    assert!(text(folder.path(), "diff a b --length 10s").contains("Exits by cause, a second"));
    let several: Value =
        serde_json::from_slice(&stdout(folder.path(), "report a b --format json")).unwrap();
    let rates = several["recordings"].as_array().unwrap().iter();
    assert!(
        rates.clone().count() == 2 && rates.clone().all(|one| one["exits_per_second"].is_null())
    );
}

/// Exits have the ports and MSRs of the other tables: in one text, and in two files of an import.
#[test]
fn tables_of_accesses_tell_exits_apart() {
    let folder = tempfile::tempdir().unwrap();
    let of = |event: &str| expected("intel-cpuid", &format!("intel.kvmstat-{event}.txt"));
    fs::write(folder.path().join("exits"), of("vmexit")).unwrap();
    fs::write(folder.path().join("accesses"), of("ioport") + &of("msr")).unwrap();
    fs::write(folder.path().join("all"), of("vmexit") + &of("ioport") + &of("msr")).unwrap();
    stdout(folder.path(), "import exits accesses -o run");
    stdout(folder.path(), "import accesses exits -o other");
    for input in ["all", "run", "other"] {
        let all = rows(folder.path(), &format!("report {input} --event vmexit --by reason,detail"));
        let io: Vec<&(String, u64)> =
            all.iter().filter(|(name, _)| name.starts_with("IO_INSTRUCTION")).collect();
        assert_eq!(io.len(), 2, "{input}: {all:?}");
        assert!(io.iter().all(|(name, n)| *n == 50 && name.contains("port-")), "{input}: {io:?}");
        let said = text(folder.path(), &format!("report {input}"));
        assert!(said.contains("exits IO_INSTRUCTION are told apart"), "{input}: {said}");
    }
    let said = text(folder.path(), "report accesses --event ioport");
    assert!(
        said.contains("port out 0xe0") && said.contains("count accesses and no exits"),
        "{said}"
    );
    let sentence = "*accesses: The tables count accesses and no exits by reason: add the text of `perf kvm stat report --event=vmexit` of the same recording*";
    check(
        &Program::new(),
        folder.path(),
        &[("explain accesses", 4, sentence), ("diff exits accesses", 4, sentence)],
    );
}

/// A profile in a mail; a text that cannot be restored.
#[test]
fn posted_profiles_and_refusals() {
    let folder = tempfile::tempdir().unwrap();
    let quoted = |name: &str| -> String {
        let text = fs::read_to_string(sample(name)).unwrap();
        text.lines().map(|line| format!("> {line}\n")).collect()
    };
    fs::write(folder.path().join("exits"), quoted("s0-plain.txt")).unwrap();
    fs::write(folder.path().join("host"), quoted("s0-plain-host.txt")).unwrap();
    fs::write(folder.path().join("stats"), quoted("kvm_stat-counters.txt")).unwrap();
    stdout(folder.path(), "import exits -o run --host-profile host --stats stats");
    let said = text(folder.path(), "explain run -v");
    assert!(said.contains("vmx_vmexit: 29.3 % itself"), "{said}");
    fs::write(folder.path().join("base64"), "Content-Transfer-Encoding: base64\n\naGx0\n").unwrap();
    check(
        &Program::new(),
        folder.path(),
        &[(
            "report base64",
            4,
            "*base64: its body is base64, as some mail is sent: give the decoded text (base64 -d)*",
        )],
    );
}
