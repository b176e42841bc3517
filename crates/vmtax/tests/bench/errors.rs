//! Bad input: one sentence, the documented exit code, and nothing half made.

use std::fs;

use crate::{matrix, name, ok, refused};

const GOOD: &str = "repeats = 1\nwarmup = false\ncategories = [\"host\"]\n[[workload]]\nname = \"w\"\ncommand = [\"true\"]\n";

#[test]
fn invalid_matrices() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    for (from, to, says) in [
        ("repeats = 1", "repeats = 0", "repeats = 0"),
        ("repeats = 1", "repeats = -1", "invalid value"),
        ("repeats = 1", "repeat = 1", "unknown field"),
        ("\"host\"", "\"host\", \"host\"", "twice"),
        ("\"host\"", "\"vm\"", "is not one of plain, snp, tdx"),
        ("\"host\"", "\"plain+fast\"", "is not one of +vhost"),
        ("\"host\"", "", "at least one category"),
        ("command = [\"true\"]", "", "either `use`"),
        ("command = [\"true\"]", "use = \"minesweeper\"", "no such adapter"),
        ("command = [\"true\"]", "use = \"redis\"\nset = { speed = 11 }", "no parameter"),
        // 0 to iperf3, and so for ever.
        (
            "command = [\"true\"]",
            "use = \"iperf-udp\"\nset = { seconds = 0.2 }",
            "iperf-udp takes a whole number above zero for seconds, not \"0.2\"",
        ),
        (
            "command = [\"true\"]",
            "use = \"hackbench\"\nset = { loops = 0 }",
            "hackbench takes a whole number above zero for loops, not \"0\"",
        ),
        (
            "command = [\"true\"]",
            "use = \"cpuid\"\nset = { seconds = 0 }",
            "cpuid takes a number above zero for seconds, not \"0\"",
        ),
        (
            "command = [\"true\"]",
            "command = [\"true\"]\npattern = '('\nmetric = \"m\"\nunit = \"s\"\nbetter = \"lower\"",
            "pattern",
        ),
        (
            "command = [\"true\"]",
            "command = [\"true\"]\npattern = '(1)'\nmetric = \"m\"\nunit = \"s\"",
            "direction",
        ),
        ("\"host\"]", "\"x\"]\nssh = { x = \"-oProxyCommand=evil\" }", "an address is USER@HOST"),
        (
            "\"host\"]",
            "\"host\"]\nssh = { far = \"me@far\" }",
            "\"far\" is not among the categories",
        ),
        ("\"host\"]", "\"x/y\"]\nssh = { \"x/y\" = \"me@far\" }", "letters, digits"),
        ("name = \"w\"", "name = \"w\\u001b[31m\"", "control character"),
        ("[[workload]]", "[vm]\nprocessors = 9\n[[workload]]", "vm.processors = 9: use 1 to 8"),
        (
            "[[workload]]",
            "[vm]\naccel = \"intel\"\nprocessors = 2\n[[workload]]",
            "workload \"w\": vm.processors = 2: only the emulated AMD host has several; use accel = \"amd\", not \"intel\"",
        ),
        (
            "[[workload]]",
            "[vm]\naccel = \"amd\"\nvmm = \"qemu\"\nprocessors = 2\n[[workload]]",
            "leave everything out of [vm] but accel, vmm, kernel and modules",
        ),
        ("[[workload]]", "[[workload", "expected"),
    ] {
        let text = GOOD.replace(from, to);
        assert_ne!(text, GOOD);
        let (code, sentence) =
            refused(&["run", name(&matrix(folder.path(), &text)), "-o", name(&run)]);
        assert_eq!(code, 4, "{to}: {sentence}");
        assert!(sentence.contains(says), "{to}: {sentence}");
        assert_eq!(sentence.lines().count(), 1, "{sentence}");
        assert!(!run.exists(), "{to}");
    }
    let (code, _) = refused(&["run", "/nonexistent/m.toml", "-o", name(&run)]);
    assert_eq!(code, 3);
    let path = matrix(folder.path(), GOOD);
    fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    assert_eq!(refused(&["run", name(&path), "-o", name(&run)]).0, 4);
}

#[test]
fn missing_requirements_are_reported_before_the_first_cell() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = GOOD.replace("\"true\"", "\"no-such-program-here\"");
    let (code, sentence) = refused(&["run", name(&matrix(folder.path(), &text)), "-o", name(&run)]);
    assert_eq!(code, 3);
    assert!(
        sentence.contains("workload w: no-such-program-here is not installed here"),
        "{sentence}"
    );
    let text =
        GOOD.replace("\"host\"", "\"plain+hpoll\", \"plain+nested\"") + "[vm]\naccel = \"tcg\"\n";
    let path = matrix(folder.path(), &text);
    let (code, sentence) = refused(&["run", name(&path), "-o", name(&run)]);
    assert_eq!(code, 7);
    assert!(sentence.contains("category plain+hpoll: +hpoll: needs KVM"), "{sentence}");
    assert!(sentence.contains("category plain+nested: +nested: "), "{sentence}");
    assert!(!run.exists());
    // A dry run says the same, and what would run.
    let text = ok(&["run", name(&path), "--dry-run"]);
    for part in [
        "missing: category plain+hpoll: +hpoll: needs KVM",
        "cpuidle_haltpoll.force=Y",
        "-accel tcg",
        "EMULATED",
        "baseline: plain",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[test]
fn runs_that_are_there_already() {
    let folder = tempfile::tempdir().unwrap();
    let (run, path) = (folder.path().join("run"), matrix(folder.path(), GOOD));
    let words = ["run", name(&path), "-o", name(&run)];
    ok(&words);
    let (code, sentence) = refused(&words);
    assert_eq!(code, 5);
    assert!(sentence.contains("--resume"), "{sentence}");
    // A run that was stopped is gone on with by its own matrix alone.
    let manifest = run.join("run.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"complete\": true", "\"complete\": false")).unwrap();
    matrix(folder.path(), &GOOD.replace("repeats = 1", "repeats = 2"));
    let (code, sentence) = refused(&["run", name(&path), "-o", name(&run), "--resume"]);
    assert_eq!(code, 2);
    assert!(sentence.contains("another matrix"), "{sentence}");
    assert_eq!(refused(&["compare", name(folder.path())]).0, 3);
    assert_eq!(refused(&["compare", "/nonexistent"]).0, 3);
    assert_eq!(refused(&["run", name(&path), "-o", name(&run), "--shard", "0/2"]).0, 2);
    assert_eq!(refused(&["run", name(&path)]).0, 2);
}

#[test]
fn the_list_names_all() {
    let text = ok(&["list"]);
    for word in [
        "plain",
        "snp",
        "tdx",
        "pkvm",
        "protected",
        "touch-new",
        "+swiotlb",
        "+nested",
        "redis-memtier",
        "benchdnn",
        "schbench",
        "npb",
        "cpuid",
        "requests=20000",
    ] {
        assert!(text.contains(word), "{word}");
    }
}
