//! `vmtax explain`: why a VM is slow, as far as its exits tell.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::captures::unpack;
use crate::check::{Program, check, stdout};

fn explained(folder: &Path, words: &str) -> Value {
    serde_json::from_slice(&stdout(folder, &format!("explain {words} --format json"))).unwrap()
}

fn answers(report: &Value) -> Vec<[&str; 2]> {
    let steps = report["steps"].as_array().unwrap();
    steps.iter().map(|s| [s["step"].as_str().unwrap(), s["answer"].as_str().unwrap()]).collect()
}

/// Source S0: the confidential VM is slow, and takes the exits of the plain one.
#[test]
fn a_td_that_exits_as_often_as_a_plain_vm_is_not_slow_for_its_exits() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plain"), super::diff::PLAIN).unwrap();
    fs::write(folder.path().join("td"), super::diff::TD).unwrap();
    let report = explained(folder.path(), "td --against plain --isa vmx --length 10s");
    let unknown = |step| [step, "unknown"];
    assert_eq!(
        answers(&report),
        [
            ["exits", "no"],
            ["causes", "yes"],
            unknown("host"),
            unknown("guest"),
            unknown("instructions"),
            unknown("memory")
        ]
    );
    assert_eq!(report["conclusion"], "exits are not the bottleneck");
    assert_eq!(
        report["steps"][0]["says"],
        "exits are not the bottleneck, if the base is fast: 98.7 % of them are of causes that it has as often"
    );
    assert_eq!(
        report["steps"][0]["evidence"][0],
        "timer-tick: 271561 here, 285936 in the base: about equal, not tested"
    );
    assert_eq!(report["findings"], json!([]));
    // Without the base nothing is claimed.
    let report = explained(folder.path(), "td --isa vmx");
    assert_eq!(answers(&report)[0], ["exits", "unknown"]);
}

fn published(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/published");
    folder.join(file).display().to_string()
}

/// Imports what source S0 published of one VM.
fn import_s0(folder: &Path, which: &str, what: &[&str]) {
    let mut words =
        format!("import {} -o {which} --isa vmx", published(&format!("s0-{which}.txt")));
    for what in what {
        let (flag, file) = match *what {
            "host" => ("--host-profile", "host.folded"),
            "instructions" => ("--guest-instructions", "annotate"),
            _ => ("--stats", "pages"),
        };
        words += &format!(" {flag} {}", published(&format!("s0-{which}.{file}")));
    }
    stdout(folder, &words);
}

/// Source S0, whole: not the exits, but pages of 4 KiB, and each step says why.
#[test]
fn a_td_in_small_pages_is_slow_for_them() {
    let folder = tempfile::tempdir().unwrap();
    for which in ["plain", "td"] {
        import_s0(folder.path(), which, &["host", "instructions", "pages"]);
    }
    let report = explained(folder.path(), "td --against plain --length 10s");
    assert_eq!(
        report["conclusion"],
        "exits are not the bottleneck; 4K pages are: the guest waits for memory, which is mapped in them"
    );
    assert_eq!(
        answers(&report),
        [
            ["exits", "no"],
            ["causes", "yes"],
            ["host", "yes"],
            ["guest", "unknown"],
            ["instructions", "yes"],
            ["memory", "yes"]
        ]
    );
    let evidence = |step: usize| {
        let lines = report["steps"][step]["evidence"].as_array().unwrap();
        lines.iter().map(|line| line.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        evidence(0)[..2],
        [
            "timer-tick: 271561 here, 285936 in the base: about equal, not tested",
            "timer-arm: 137299 here, 143258 in the base: about equal, not tested"
        ]
    );
    assert_eq!(
        evidence(2)[0],
        "__seamcall_saved_ret: 34.8 % itself, 34.8 % in all; base 0.0 % and 0.0 %"
    );
    assert_eq!(
        report["steps"][4]["says"],
        "73.0 % of compute_ref_matmul is on accesses of memory or right behind a load, in the base 62.0 %; \
         of what instructions gained, 100.0 % is there: pxor %xmm0,%xmm0 from 0.0 % to 32.0 %"
    );
    assert_eq!(
        evidence(5)[..2],
        [
            "100.0 % of 65536 MiB mapped in pages of 4 KiB",
            "base: 0.0 % of 65536 MiB mapped in pages of 4 KiB"
        ]
    );
    assert_eq!(report["findings"].as_array().unwrap().len(), 1);
    assert_eq!(report["findings"][0]["sign"], "small-pages");
    // The plain VM beside the TD: nothing of it is small, and nothing is claimed.
    let report = explained(folder.path(), "plain --against td --length 10s");
    assert_eq!(report["conclusion"], "exits are not the bottleneck");
    assert_eq!(report["findings"], json!([]));
}

/// With less evidence less is said.
#[test]
fn small_pages_alone_are_a_suspicion() {
    let folder = tempfile::tempdir().unwrap();
    import_s0(folder.path(), "plain", &["pages"]);
    import_s0(folder.path(), "td", &["pages"]);
    let report = explained(folder.path(), "td --against plain --length 10s");
    assert_eq!(
        report["conclusion"],
        "exits are not the bottleneck; 4K pages may be: whether the guest waits for memory was not seen"
    );
    // Where the base is mapped as small, pages are not what differs.
    let report = explained(folder.path(), "td --against td --length 10s");
    assert_eq!(report["conclusion"], "exits are not the bottleneck");
}

/// Counters of the TLB stand in for a look at instructions.
#[test]
fn misses_of_the_tlb_say_that_the_guest_waits() {
    let folder = tempfile::tempdir().unwrap();
    let counters = |name: &str, misses: u64, pages: &str| {
        let text =
            format!("{misses},,dTLB-load-misses,1,100.00,,\n1000000,,instructions:u,1,100.00,,\n");
        fs::write(folder.path().join(format!("{name}.csv")), text).unwrap();
        let exits = published(&format!("s0-{pages}.txt"));
        let pages = published(&format!("s0-{pages}.pages"));
        stdout(
            folder.path(),
            &format!("import {exits} -o {name} --isa vmx --stats {name}.csv --stats {pages}"),
        );
    };
    counters("slow", 9000, "td");
    counters("fast", 500, "plain");
    counters("same", 8000, "plain");
    let report = explained(folder.path(), "slow --against fast --length 10s");
    assert_eq!(
        report["conclusion"],
        "exits are not the bottleneck; 4K pages are: the guest waits for memory, which is mapped in them"
    );
    let evidence = report["steps"][5]["evidence"].as_array().unwrap();
    assert!(
        evidence.contains(&json!("dTLB-load-misses: 9.00 for a thousand instructions")),
        "{evidence:?}"
    );
    assert!(evidence.contains(&json!("base: dTLB-load-misses: 0.50 for a thousand instructions")));
    // The base misses as often, so that is not what differs.
    let report = explained(folder.path(), "slow --against same --length 10s");
    assert_eq!(
        report["conclusion"],
        "exits are not the bottleneck; 4K pages may be: whether the guest waits for memory was not seen"
    );
}

/// Source S2: polling gets most of the UDP loss of SNP back, the bounce buffer is not it, and all of it stands on
/// one run each.
#[test]
fn polling_explains_the_udp_loss_of_snp_and_the_bounce_buffer_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let report = explained(folder.path(), &published("s2.csv"));
    assert_eq!(answers(&report), [["results", "yes"]]);
    let says = report["steps"][0]["says"].as_str().unwrap();
    for expected in [
        "SNP loses 82.6 % at iperf-udp throughput (one run each): poll gets back 94.7 % of it, haltpoll gets back 87.5 % of it, \
         the bounce buffer does not explain it (30.3 %)",
        "SNP+vhost loses 84.4 % at iperf-udp throughput (one run each): poll gets back 97.0 % of it, haltpoll gets back 79.3 % of it, \
         the bounce buffer does not explain it (30.9 %)",
    ] {
        assert!(says.contains(expected), "{expected}: {says}");
    }
    assert!(report["conclusion"].as_str().unwrap().starts_with("SNP+vhost loses 84.4 %"));
    let evidence = report["steps"][0]["evidence"].as_array().unwrap();
    assert_eq!(
        evidence[0],
        "iperf-udp throughput: SNP+vhost loses 84.4 % of VM+vhost: 0.561 of 3.6 Gb/s (one run each)"
    );
    assert_eq!(
        report["steps"][0]["next"],
        "each set-up at least five times: one run has no spread, and says little"
    );
    let findings = report["findings"].as_array().unwrap();
    let polls: Vec<_> = findings.iter().map(|one| one["sign"].as_str().unwrap()).collect();
    assert!(polls.contains(&"poll") && polls.contains(&"haltpoll"), "{polls:?}");
    assert!(findings.iter().all(|one| one["certainty"] == "possible"), "one run each");
    // What polling costs a latency is no remedy.
    let of_ping = findings.iter().filter(|one| one["evidence"].as_str().unwrap().contains(" ms"));
    assert!(of_ping.clone().all(|one| one["recovered"].as_f64().unwrap() > 0.5));
}

/// With runs enough, all of one beyond all of the other, the same is likely; with overlap it is not.
#[test]
fn repeated_results_are_surer() {
    let folder = tempfile::tempdir().unwrap();
    for (name, spread, expected) in [("apart", 0.01, "likely"), ("mixed", 0.9, "possible")] {
        let mut text = String::from("workload,category,repeat,metric,unit,value,better\n");
        for (category, value) in [("VM", 10.0), ("SNP", 5.0), ("SNP+poll", 9.0)] {
            for repeat in 0..5 {
                let value = value * (1.0 + spread * (f64::from(repeat) - 2.0) / 2.0);
                text += &format!("w,{category},{repeat},speed,1/s,{value},higher\n");
            }
        }
        fs::write(folder.path().join(name), text).unwrap();
        let report = explained(folder.path(), name);
        assert_eq!(report["findings"][0]["certainty"], expected, "{name}");
        assert!((report["findings"][0]["recovered"].as_f64().unwrap() - 0.8).abs() < 1e-9);
        // A run keeps them.
        stdout(folder.path(), &format!("import {name} -o {name}-run"));
        assert_eq!(explained(folder.path(), &format!("{name}-run"))["steps"], report["steps"]);
    }
}

/// The page holds what the text says, the profiles are in it, and nothing of a hostile name runs.
#[test]
fn the_page_has_the_evidence_and_the_profiles() {
    let folder = tempfile::tempdir().unwrap();
    for which in ["plain", "td"] {
        import_s0(folder.path(), which, &["host", "instructions", "pages"]);
    }
    let page = stdout(folder.path(), "explain td --against plain --length 10s --format html");
    let page = String::from_utf8(page).unwrap();
    for expected in [
        "Exits are not the bottleneck; 4K pages are: the guest waits for memory, which is mapped in them.",
        "timer-tick: 271561 here, 285936 in the base",
        "id=\"profile-host\"",
        "id=\"profile-instructions\"",
        "__seamcall_saved_ret",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    assert_eq!(page.matches("<script").count(), 1);
    let page = stdout(folder.path(), "diff plain td --length 10s --format html");
    let page = String::from_utf8(page).unwrap();
    for expected in [
        "timer-tick",
        "mapped in pages of 4 KiB",
        "100 % of 65536 MiB",
        "Not recorded, and so not compared: memory backing, pinning",
        "28594",
        "27156",
    ] {
        let plain = page.replace(',', "");
        assert!(page.contains(expected) || plain.contains(expected), "{expected}");
    }
    // The report of a run with profiles has them too.
    let page = stdout(folder.path(), "report td --format html");
    assert!(String::from_utf8(page).unwrap().contains("id=\"profile-host\""));
}

/// A VM that exits all the time, and one that hardly does, with known times.
#[test]
fn the_tax_decides_where_times_are_known() {
    let folder = tempfile::tempdir().unwrap();
    for (name, exit_us) in [("busy", 400), ("idle", 2)] {
        let mut text = String::new();
        for at in 0..1000 {
            let line =
                |event: &str, us: u32| format!("CPU 0/KVM 1234 [000] 100.{us:06}: {event}\n");
            text += &line(
                "kvm:kvm_exit: vcpu 0 reason CPUID rip 0x1000 info1 0x0 info2 0x0 intr_info 0x0 error_code 0x0",
                at * 1000,
            );
            text += &line("kvm:kvm_entry: vcpu 0, rip 0x1002", at * 1000 + exit_us);
        }
        fs::write(folder.path().join(name), text).unwrap();
    }
    let report = explained(folder.path(), "busy");
    assert_eq!(answers(&report)[0], ["exits", "yes"]);
    assert_eq!(
        report["steps"][0]["says"],
        "without any exit at most 40.0 % of the time would be gained"
    );
    let report = explained(folder.path(), "idle");
    assert_eq!(answers(&report)[0], ["exits", "no"]);
    let report = explained(folder.path(), "busy --emulated it");
    assert_eq!(answers(&report)[0], ["exits", "unknown"]);
}

#[test]
fn nested_recordings_have_a_step_of_their_own() {
    let recording = unpack("amd-nested", "all.perf.data.zst");
    let folder = recording.parent().unwrap();
    let report = explained(folder, recording.file_name().unwrap().to_str().unwrap());
    let steps: Vec<&str> = answers(&report).iter().map(|answer| answer[0]).collect();
    assert_eq!(steps, ["exits", "causes", "host", "guest", "instructions", "memory", "nesting"]);
    assert_eq!(answers(&report)[6], ["nesting", "yes"]);
}

#[test]
fn what_cannot_be_explained() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("td"), super::diff::TD).unwrap();
    check(
        &Program::new(),
        folder.path(),
        &[
            ("explain td", 2, "td: holds bare exit numbers; say whose with --isa vmx or --isa svm"),
            ("explain none", 3, "none: cannot be read: No such file*"),
            ("explain td --isa vmx --against none", 3, "none: cannot be read: No such file*"),
            ("explain td --isa vmx --vm nobody", 4, "--vm nobody: there is no such VM*"),
        ],
    );
}
