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

/// Equal counts do not mean equal cost: of a TD and a plain VM they decide nothing.
#[test]
fn counts_of_a_td_beside_a_plain_vm_decide_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("plain"), super::diff::PLAIN).unwrap();
    fs::write(folder.path().join("td"), super::diff::TD).unwrap();
    let report = explained(folder.path(), "td --against plain --isa vmx --length 10s");
    assert_eq!(answers(&report)[0], ["exits", "unknown"]);
    assert_eq!(report["verdict"]["id"], "undecided");
    let says = report["steps"][0]["says"].as_str().unwrap();
    assert!(says.starts_with("counts decide nothing: 98.7 % of the exits"), "{says}");
    assert_eq!(
        report["steps"][0]["evidence"][0],
        "timer-tick and host-interrupt: 271,561 here, 285,936 in the base: about equal, not tested"
    );
    // The same kind of VM with the same exits: they are not what differs.
    let report = explained(folder.path(), "plain --against plain --isa vmx --length 10s");
    assert_eq!(report["verdict"]["id"], "not-exits");
    // Without the base nothing is claimed.
    let report = explained(folder.path(), "td --isa vmx");
    assert_eq!(answers(&report)[0], ["exits", "unknown"]);
}

fn published(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/published");
    folder.join(file).display().to_string()
}

/// Imports what the oneDNN-on-TDX report published of one VM.
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

/// A TD whose hot function waits for memory: its private memory is mapped in small pages, and no setting changes that.
#[test]
fn a_td_waiting_for_memory_has_small_pages() {
    let folder = tempfile::tempdir().unwrap();
    for which in ["plain", "td"] {
        import_s0(folder.path(), which, &["host", "instructions"]);
    }
    let report = explained(folder.path(), "td --against plain --length 10s");
    assert_eq!((&report["verdict"]["id"], &report["kind"]), (&json!("memory"), &json!("TDX")));
    let findings = report["findings"].as_array().unwrap();
    let pages = findings.iter().find(|one| one["id"] == "small-pages").unwrap();
    let remedies = pages["remedies"].as_array().unwrap();
    let remedies: Vec<&str> = remedies.iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!(remedies, ["pre-fault", "private-huge-pages"]);
    assert_eq!(pages["refused"][0]["id"], "huge-pages");
    assert_eq!(
        report["steps"][4]["says"],
        "73.0 % of compute_ref_matmul is on accesses of memory or right behind a load, in the base 62.0 %; \
         of what instructions gained, 100.0 % is there: pxor %xmm0,%xmm0 from 0.0 % to 32.0 %"
    );
    // The plain VM beside the TD: nothing of it is small.
    let report = explained(folder.path(), "plain --against td --length 10s");
    assert_eq!(report["verdict"]["id"], "undecided");
}

/// Each workload has its verdict, the worst first, and at most five sentences are the answer.
#[test]
fn results_are_judged_by_workload() {
    let folder = tempfile::tempdir().unwrap();
    let report = explained(folder.path(), &published("s2.csv"));
    let workloads = report["workloads"].as_array().unwrap();
    let names: Vec<&str> = workloads.iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["iperf-udp throughput", "iperf-tcp throughput", "ping latency"]);
    let says = workloads[0]["says"].as_str().unwrap();
    for expected in [
        "SNP+vhost loses 84.4 % of VM+vhost",
        "one run each",
        "poll gets back 97.0 % of it",
        "the bounce buffer alone does not explain it (30.9 %)",
    ] {
        assert!(says.contains(expected), "{expected}: {says}");
    }
    // mq is an option like any other: its plain VM is the one with mq.
    let rows = workloads[0]["rows"].as_array().unwrap();
    let mq = rows.iter().find(|row| row["category"] == "SNP+vhost+mq").unwrap();
    assert!((mq["loss_to_plain"].as_f64().unwrap() - (1.0 - 3.01 / 6.48)).abs() < 1e-9);
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().all(|one| one["certainty"] == "possible"), "one run each");
}

/// More workloads than a few sentences hold are a table, the worst first, in ten lines.
#[test]
fn many_workloads_are_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let mut table = "workload,category,metric,unit,value,better\n".to_owned();
    for number in 1..=9 {
        let slow = 100 - 10 * number;
        table += &format!(
            "w{number},plain,speed,1/s,100,higher\nw{number},snp,speed,1/s,{slow},higher\nw{number},snp+poll,speed,1/s,95,higher\n"
        );
    }
    fs::write(folder.path().join("results.csv"), table).unwrap();
    let output = Program::new().command(folder.path(), "explain results.csv").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() <= 10, "{text}");
    assert!(
        lines[0].starts_with("9 of 9 workloads lose; worst is w9 speed: snp loses 90.0 % of plain"),
        "{text}"
    );
    let words = |at: usize| lines[at].split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(1), "workload worst loss measured recovered of it by bounce buffer");
    assert_eq!(words(2), "w9 speed snp 90.0 % 10/s of 100/s 94.4 % by poll -");
    assert!(words(3).starts_with("w8 speed snp 80.0 %"), "{text}");
    assert!(text.contains("idle=poll") && text.ends_with("More, and the evidence: -v\n"), "{text}");
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
        "The guest waits for memory",
        ": 271,561 here, 285,936 in the base",
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
        "host-interrupt",
        "mapped in pages of 4 KiB",
        "100 % of 64.0 GiB",
        "Not recorded, and so not compared: memory backing, pinning",
        "14301",
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
    // Exits as long as those of hardware: others are taken for an emulator's.
    for (name, period_us, exit_us) in [("busy", 20, 8), ("idle", 1000, 2)] {
        let mut text = String::new();
        for at in 0..1000 {
            let line =
                |event: &str, us: u32| format!("CPU 0/KVM 1234 [000] 100.{us:06}: {event}\n");
            text += &line(
                "kvm:kvm_exit: vcpu 0 reason CPUID rip 0x1000 info1 0x0 info2 0x0 intr_info 0x0 error_code 0x0",
                at * period_us,
            );
            text += &line("kvm:kvm_entry: vcpu 0, rip 0x1002", at * period_us + exit_us);
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
    // The answer fits a screen, whatever there is to say.
    let text = String::from_utf8(stdout(folder.path(), "explain busy")).unwrap();
    assert!(text.starts_with("Exits take 40.0 % of the running time"), "{text}");
    assert!(text.lines().count() <= 10, "{text}");
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
fn inputs_that_cannot_be_explained() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("td"), super::diff::TD).unwrap();
    fs::write(folder.path().join("plain"), super::diff::PLAIN).unwrap();
    check(
        &Program::new(),
        folder.path(),
        &[
            (
                "explain td --against plain",
                2,
                "plain: has numeric exit reasons, which differ between Intel, AMD and arm64; name it with --isa intel, --isa amd or --isa arm64",
            ),
            ("explain none", 3, "none: cannot be read: No such file*"),
            ("explain td --isa vmx --against none", 3, "none: cannot be read: No such file*"),
            ("explain td --isa vmx --vm nobody", 4, "--vm nobody: no such VM*"),
        ],
    );
}

/// Logs of benchmarks in folders by kind of VM, as CVM_eval keeps them, are a table of results; two logs are compared alone.
#[test]
fn folders_of_logs_are_results() {
    let folder = tempfile::tempdir().unwrap();
    let log = |category: &str, date: &str, rate: &str| {
        let path = folder.path().join(format!("results/network/iperf/{category}/udp/{date}"));
        fs::create_dir_all(&path).unwrap();
        let text = format!(
            "[ ID] Interval           Transfer     Bitrate         Jitter    Lost/Total Datagrams\n\
             [SUM]   0.00-10.00  sec  9.08 GBytes  7.80 Gbits/sec  0.000 ms  0/6677361 (0%)  sender\n\
             [SUM]   0.00-10.21  sec   719 MBytes   {rate}  0.134 ms  6160580/6676821 (92%)  receiver\n"
        );
        fs::write(path.join("1460.log"), text).unwrap();
    };
    for (date, snp) in
        [("2025-04-21-13-23-01", "591 Mbits/sec"), ("2025-04-21-14-23-01", "601 Mbits/sec")]
    {
        log("amd-direct-medium", date, "3.40 Gbits/sec");
        log("snp-direct-medium", date, snp);
        log("snp-direct-medium-poll", date, "3.25 Gbits/sec");
    }
    let report = explained(folder.path(), "results");
    assert_eq!(report["verdict"]["id"], "results");
    let says = report["verdict"]["says"].as_str().unwrap();
    for expected in [
        "network-iperf-udp-1460 throughput: snp-direct-medium loses 82.5 % of amd-direct-medium",
        "poll gets back 94.7 % of it",
    ] {
        assert!(says.contains(expected), "{expected}: {says}");
    }
    let one = "results/network/iperf/snp-direct-medium/udp/2025-04-21-13-23-01/1460.log";
    let other = one.replace("snp", "amd");
    // diff compares exits, and says where results are compared.
    let refused = Program::new().command(folder.path(), &format!("diff {one} {other}")).output();
    let refused = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(refused.contains("`vmtax explain OTHER --against BASE` compares results"), "{refused}");
    // A pipe has no kind of VM in its name, and its log is read all the same, whatever its length.
    let mut piped = Program::new().command(folder.path(), "explain - --format json");
    let mut text = "Connecting to host 172.44.0.2, port 7175\n".repeat(4000).into_bytes();
    text.extend(fs::read(folder.path().join(one)).unwrap());
    fs::write(folder.path().join("long.log"), text).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    piped.stdin(reader).stdout(std::process::Stdio::piped());
    let child = piped.spawn().unwrap();
    drop(piped);
    std::io::copy(&mut fs::File::open(folder.path().join("long.log")).unwrap(), &mut writer)
        .unwrap();
    drop(writer);
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let says = report["verdict"]["says"].as_str().unwrap();
    assert!(says.contains("no category names a kind of VM"), "{says}");
    let report = explained(folder.path(), &format!("{one} --against {other}"));
    let says = report["verdict"]["says"].as_str().unwrap();
    assert!(says.contains("snp-direct-medium loses 82.6 % of amd-direct-medium"), "{says}");
}

/// A change of recordings of trials: the subjects with what became of each, before and after, for an operation.
fn changed(
    before: &str,
    after: &str,
    operations: u64,
) -> (String, Vec<(String, String, f64, f64)>) {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/cases");
    let words = format!(
        "explain --before remedy-{before}/run --after remedy-{after}/run --operations {operations} --format json"
    );
    let report: Value = serde_json::from_slice(&stdout(&cases, &words)).unwrap();
    assert_eq!(report["schema"], "vmtax-change-1");
    let rows = report["changes"].as_array().unwrap().iter().map(|row| {
        let word = |key: &str| row[key].as_str().unwrap().to_owned();
        let rate = |key: &str| row[key].as_f64().unwrap();
        (word("subject"), word("fate"), rate("before"), rate("after"))
    });
    (report["result"].as_str().unwrap().to_owned(), rows.collect())
}

/// The same 200 reads from an IDE disk and from virtio: its registers go, a notification comes instead.
#[test]
fn a_change_of_the_disk_shows_what_went_and_what_came_instead() {
    let (result, rows) = changed("dev-disk-ide", "dev-disk-virtio", 200);
    assert_eq!(
        result,
        "29.2 -> 3.93 exits per operation, 86.5 % fewer; gone: ide-disk, device-registers; instead: notifications"
    );
    let expected = [
        ("ide-disk", "gone", 16.0, 0.0),
        ("device-registers", "gone", 10.0, 0.0),
        ("notifications", "came instead", 0.0, 1.0),
        ("no-virtual-apic", "fewer", 1.955, 1.165),
        ("halts", "more", 0.43, 1.055),
        ("guest-timer", "fewer", 0.21, 0.18),
        ("cpuid", "same", 0.175, 0.175),
        ("serial-console", "same", 0.325, 0.325),
        ("others", "fewer", 0.065, 0.03),
    ];
    let expected = expected
        .map(|(subject, fate, before, after)| (subject.to_owned(), fate.to_owned(), before, after));
    assert_eq!(rows, expected);
    // The other way round, what came has gone.
    let (result, _) = changed("dev-disk-virtio", "dev-disk-ide", 200);
    assert_eq!(
        result,
        "3.93 -> 29.2 exits per operation, 642.0 % more; gone: notifications; instead: ide-disk, device-registers"
    );
}

/// MSI in place of lines: two exits of each read go, and nothing comes instead.
#[test]
fn a_change_to_msi_takes_two_exits_away() {
    let (result, rows) = changed("nomsi-read", "base-read", 100);
    assert_eq!(result, "6.16 -> 4.42 exits per operation, 28.2 % fewer; gone: level-interrupts");
    assert_eq!(rows[0], ("level-interrupts".to_owned(), "gone".to_owned(), 2.0, 0.0));
}

/// A recording of so many exits, one each millisecond, each of so many microseconds.
fn of_exits(count: u64, us: u64, reason: &str, event: &str) -> String {
    let at = |ns: u64, event: &str| {
        let (s, frac) = (1 + ns / 1_000_000_000, ns % 1_000_000_000);
        format!("CPU 0/KVM 4000/4001 [000] {s}.{frac:09}: {event}\n")
    };
    let mut text = at(0, "kvm:kvm_entry: vcpu 0, rip 0x1000");
    for number in 1..=count {
        let ns = number * 1_000_000;
        let exit = format!(
            "kvm:kvm_exit: vcpu 0 reason {reason} rip 0x1000 info1 0x0 info2 0x0 intr_info 0x0 error_code 0x0"
        );
        text += &at(ns, &exit);
        text += &at(ns + 100, event);
        text += &at(ns + us * 1000, "kvm:kvm_entry: vcpu 0, rip 0x1002");
    }
    text
}

/// On hardware a change has times, and without a number of operations it is over seconds.
#[test]
fn a_change_has_times_where_the_recordings_have() {
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
    put(
        "serial",
        of_exits(
            100,
            20,
            "IO_INSTRUCTION",
            "kvm:kvm_pio: pio_write at 0x3f8 size 1 count 1 val 0x41",
        ),
    );
    put("msr", of_exits(50, 2, "MSR_WRITE", "kvm:kvm_msr: msr_write 6e0 = 0x1234"));
    let report = |words: &str| -> Value {
        let words = format!("explain --before serial --after msr {words} --format json");
        serde_json::from_slice(&stdout(folder.path(), &words)).unwrap()
    };
    let each = report("--operations 50");
    assert_eq!(
        each["result"],
        "2.00 -> 1.00 exits per operation, 50.0 % fewer; 2.00 \u{b5}s in them in place of 40.0 \u{b5}s; gone: serial-console; instead: guest-timer"
    );
    assert_eq!(each["changes"][0]["before_time_ns"], 40_000.0);
    let seconds = report("");
    assert_eq!(seconds["per"], "second");
    let rates = (&seconds["exits"]["before"], &seconds["exits"]["after"]);
    let whole = |rate: &Value| rate.as_f64().unwrap().round();
    assert_eq!((whole(rates.0), whole(rates.1)), (1000.0, 1000.0));
}

/// One of two recordings shows no change.
#[test]
fn a_change_needs_both_recordings() {
    for words in ["explain --before run", "explain --after run", "explain run --before a --after b"]
    {
        let folder = tempfile::tempdir().unwrap();
        let output = Program::new().command(folder.path(), words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words}");
    }
}
