//! Exits of a matrix's own cells: VMs under the KVM of an emulated host, and the message if there are none.

use std::fs;
use std::path::Path;

use crate::{matrix, name, ok, refused, row, rows, vmtax};

const MATRIX: &str = r#"
name = "exits"
repeats = 1
warmup = false
categories = ["plain", "plain+poll"]
[vm]
accel = "amd"
memory = 160
[[workload]]
use = "cpuid"
set = { seconds = 0.005 }
[[workload]]
use = "timer"
set = { seconds = 0.005 }
"#;

/// Exits of a VM of a run: reason, detail, how many.
pub(crate) fn exits(run: &Path, cell: &str) -> Vec<(String, String, u64)> {
    let report = vmtax(&["report", name(run), "--by", "vm,reason,detail", "--format", "csv"]);
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let text = String::from_utf8(report.stdout).unwrap();
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().unwrap();
    let column = |wanted: &str| head.iter().position(|name| *name == wanted).unwrap();
    let [table, vm, reason, detail, count] =
        ["table", "vm_name", "reason", "detail_name", "count"].map(column);
    lines
        .filter(|line| line[table] == "vmexit" && line[vm] == cell)
        .map(|line| {
            (line[reason].to_owned(), line[detail].to_owned(), line[count].parse().unwrap())
        })
        .collect()
}

/// One run of a matrix: each cell has the exits of its client's window, by reason and address, and what they cost.
#[test]
fn each_cell_records_its_exits() {
    let folder = tempfile::tempdir().unwrap();
    let path = matrix(folder.path(), MATRIX);
    // In two parts, put together: their exits too.
    let parts = ["1/2", "2/2"].map(|shard| {
        let part = folder.path().join(shard.replace('/', "-"));
        ok(&["run", name(&path), "--shard", shard, "-o", name(&part)]);
        part
    });
    let run = folder.path().join("run");
    let text = ok(&["merge", name(&parts[0]), name(&parts[1]), "-o", name(&run)]);
    assert!(text.contains("Emulated (KVM on an emulated AMD host (QEMU TCG))"), "{text}");
    assert!(!text.contains("failed ("), "{text}");
    let found = rows(&run);
    let median = |workload: &str, metric: &str, category: &str| -> f64 {
        row(&found, workload, metric, category)["median"].parse().unwrap()
    };
    for category in ["plain", "plain+poll"] {
        // An exit each, and some for the program's start and the clock's ticks.
        let each = median("cpuid", "exits", category);
        assert!((1.0..1.5).contains(&each), "{each} in {category}");
        let recorded = exits(&run, &format!("cpuid in {category} (repeat 0)"));
        let cpuid: u64 =
            recorded.iter().filter(|(reason, ..)| reason == "cpuid").map(|(.., count)| count).sum();
        let all: u64 = recorded.iter().map(|(.., count)| count).sum();
        // The program does whole hundreds of them.
        assert!(cpuid > 500 && cpuid * 10 > all * 7, "{recorded:?}");
        let timer = exits(&run, &format!("timer in {category} (repeat 0)"));
        let armed = timer.iter().filter(|(_, detail, _)| detail.contains("IA32_TSC_DEADLINE"));
        assert!(armed.map(|(.., count)| count).sum::<u64>() > 20, "{timer:?}");
        let halts = timer.iter().filter(|(reason, ..)| reason == "hlt").count();
        assert_eq!(halts == 0, category == "plain+poll", "{timer:?}");
    }
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("timer in plain+poll: "), "{text}");
    assert!(said.contains(" ns more than in plain: "), "{text}");
    assert!(said.contains(" (a CPUID exit here) = "), "{text}");
}

const TWO: &str = r#"
name = "two"
repeats = 1
warmup = false
categories = ["plain"]
[vm]
accel = "amd"
memory = 160
[[workload]]
use = "ipi"
set = { seconds = 0.02 }
"#;

/// A VM with two vCPUs: each wake-up is the sender's write of the ICR, the receiver's end of interrupt and its halt, and a round
/// has two; unless the ball comes back before the other vCPU has halted.
#[test]
fn two_vcpus_wake_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = ok(&["run", name(&matrix(folder.path(), TWO)), "-o", name(&run)]);
    assert!(!text.contains("failed ("), "{text}");
    let found = rows(&run);
    let median =
        |metric: &str| -> f64 { row(&found, "ipi", metric, "plain")["median"].parse().unwrap() };
    let each = median("exits");
    assert!((4.5..7.5).contains(&each), "{each}");
    let recorded = exits(&run, "ipi in plain (repeat 0)");
    let count = |wanted: &dyn Fn(&str, &str) -> bool| -> f64 {
        let alike = recorded.iter().filter(|(reason, detail, _)| wanted(reason, detail));
        alike.map(|(.., count)| *count as f64).sum()
    };
    let rounds = recorded.iter().map(|(.., count)| *count as f64).sum::<f64>() / each;
    assert!(rounds > 50.0, "{rounds}");
    let sent = count(&|_, detail| detail == "X2APIC_ICR");
    let ended = count(&|_, detail| detail == "X2APIC_EOI");
    let halted = count(&|reason, _| reason == "hlt");
    for (what, found) in [("sent", sent), ("ended", ended), ("halted", halted)] {
        assert!((1.4..2.4).contains(&(found / rounds)), "{what}: {found} in {rounds} rounds");
    }
    // What is sent is ended, and what is ended beside that is a timer's, which had to be armed.
    let armed = count(&|_, detail| detail == "IA32_TSC_DEADLINE");
    assert!((-2.0..=armed + 2.0).contains(&(ended - sent)), "{recorded:?}");
}

/// The recorder's way around a real kernel is tested where it is; here, the message for one without anything to record.
#[test]
fn unrecorded_exits_have_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name = \"n\"\nrepeats = 1\nwarmup = false\nexits = false\ncategories = [\"host\"]\n\
                [[workload]]\nname = \"w\"\ncommand = [\"true\"]\n";
    let run = folder.path().join("run");
    let text = ok(&["run", name(&matrix(folder.path(), text)), "-o", name(&run)]);
    assert!(text.contains("not available: the matrix excludes them (exits = false)"), "{text}");
}

const NESTED: &str = r#"
name = "nested"
categories = ["plain", "plain+hpoll+nested+poll"]
[vm]
accel = "amd"
[[workload]]
use = "cpuid"
[[workload]]
use = "redis"
accel = "tcg"
"#;

#[test]
fn a_dry_run_shows_nested_command_lines() {
    let folder = tempfile::tempdir().unwrap();
    let path = matrix(folder.path(), NESTED);
    let text = ok(&["run", name(&path), "--dry-run"]);
    let host = text.lines().find(|line| line.contains("emulated host's command line")).unwrap();
    assert!(host.contains("vmtax.role=relay"), "{text}");
    let line = |whose: &str| {
        let is = |line: &&str| line.contains(&format!("  {whose} command line"));
        text.lines().rfind(is).unwrap().to_owned()
    };
    let (outer, inner) = (line("guest"), line("guest's guest"));
    assert!(outer.contains("vmtax.role=relay") || outer.contains("idle=poll"), "{outer}");
    assert!(inner.contains("vmtax.role=agent") && inner.contains("idle=poll"), "{inner}");
    assert!(!inner.contains("cpuidle_haltpoll"), "{inner}");
    assert!(text.contains("baseline: plain+hpoll+nested"), "{text}");
    // Redis would run in it on QEMU's emulator, where there is none.
    let output = folder.path().join("run");
    let (code, sentence) = refused(&["run", name(&path), "-o", name(&output)]);
    assert_eq!(code, 7, "{sentence}");
    assert!(
        sentence.contains("on tcg: +nested: ") && sentence.contains("emulated host only"),
        "{sentence}"
    );
    assert!(!fs::exists(&output).unwrap(), "nothing was begun");
}

const LACKING: &str = r#"
name = "lacking"
repeats = 1
warmup = false
exits = false
categories = ["plain", "plain+gmem", "private"]
[vm]
accel = "amd"
memory = 160
[[workload]]
use = "touch-4k"
set = { seconds = 0.005 }
"#;

/// The distribution's kernel has neither guest_memfd for ordinary VMs nor private memory: those categories are skipped, the others run.
#[test]
fn unsupported_categories_are_skipped_with_a_note() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let path = matrix(folder.path(), LACKING);
    let text = ok(&["run", name(&path), "-o", name(&run)]);
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in [
        "category plain+gmem: skipped: this kernel has no guest_memfd for ordinary VMs",
        "category private: skipped: this kernel has no software-protected VMs (CONFIG_KVM_SW_PROTECTED_VM",
    ] {
        assert!(said.contains(sentence), "{text}");
    }
    let found = rows(&run);
    assert!(found.keys().all(|(.., category)| category == "plain"), "{:?}", found.keys());
    // KVM maps 2 MiB at a fault: few faults for the 8,192 pages that the workload touches, and no small pages to speak of.
    let median = |metric: &str| -> f64 {
        row(&found, "touch-4k", metric, "plain")["median"].parse().unwrap()
    };
    let faults = median("page-faults");
    assert!(faults > 0.0 && faults < 0.1, "{faults}");
    assert!(median("pages-2m") > 0.0 && median("pages-4k") < 500.0);
    let none = folder.path().join("none");
    let (code, sentence) = refused(&["run", name(&path), "--only", "private", "-o", name(&none)]);
    assert_eq!(code, 7, "{sentence}");
    assert!(sentence.contains("CONFIG_KVM_SW_PROTECTED_VM"), "{sentence}");
}

/// A VM whose kernel has the idle driver haltpoll and not its governor, as Debian's, would not poll: the category is skipped with the reason.
#[test]
fn haltpoll_is_measured_where_it_polls() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = MATRIX.replace("[\"plain\", \"plain+poll\"]", "[\"plain+hpoll\"]");
    let output = crate::bench(&["run", name(&matrix(folder.path(), &text)), "-o", name(&run)]);
    let said = String::from_utf8_lossy(&output.stderr);
    match fs::read_to_string(run.join("facts/plain+hpoll.json")) {
        Ok(facts) => assert!(facts.contains("\"idle governor\": \"haltpoll\""), "{facts}"),
        Err(_) => {
            assert_eq!(output.status.code(), Some(7), "{said}");
            assert!(said.contains("its idle governor is \"menu\", without haltpoll"), "{said}");
        }
    }
}
