//! Recordings that are valid and unusual: sampled, without entries, recorded twice, with other columns, of several files.
//! Each is compared with what the recorder's own tool counts in it (captures/amd-sampled, captures/amd-sched), in every format.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::captures::{expected, json, report, unpack};
use crate::check::{Program, check, stdout, succeed};

type NamedCounts = BTreeMap<String, u64>;

/// What perf counts: lines of events, samples, process/thread, vCPU and reason.
fn perf(file: &str, column: usize) -> NamedCounts {
    let mut counts = NamedCounts::new();
    for line in expected("amd-sampled", file).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        *counts.entry(words[5].to_owned()).or_default() += words[column].parse::<u64>().unwrap();
    }
    counts
}

fn exits(input: &Path) -> NamedCounts {
    rows(&json(input, &["--event", "vmexit", "--by", "reason"]))
}

fn rows(report: &Value) -> NamedCounts {
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    let key = |row: &Value| match row["reason"].as_str() {
        Some(reason) => reason.to_owned(),
        None => row["detail"].to_string(),
    };
    let mut counts = NamedCounts::new();
    for row in rows {
        *counts.entry(key(row)).or_default() += row["count"].as_u64().unwrap();
    }
    counts
}

fn sampled(file: &str) -> PathBuf {
    unpack("amd-sampled", file)
}

/// A recording and the run made of it.
fn both(folder: &Path, recording: &Path) -> [PathBuf; 2] {
    let run = folder.join(recording.file_name().unwrap()).with_extension("run");
    let import = format!("import {} -o {}", recording.display(), run.display());
    succeed(&mut Program::new().command(folder, &import));
    [recording.to_owned(), run]
}

/// A part of the time of all vCPUs, ns.
fn part(page: &Value, name: &str) -> u64 {
    page["run"]["vcpus"].as_array().unwrap().iter().map(|vcpu| vcpu[name].as_u64().unwrap()).sum()
}

/// Every format says so, before it gives a number, and none gives a time.
fn says_first_and_has_no_times(input: &Path, sentence: &str) {
    let text = report(input, &[]);
    let findings: Vec<&str> = text.split("\n\n").nth(1).unwrap().lines().collect();
    assert!(findings.join(" ").starts_with(sentence), "{text}");
    assert!(!text.contains("running time") && !text.contains("Time of each vCPU"), "{text}");
    for format in ["json", "csv", "html"] {
        let page = report(input, &["--format", format]);
        assert!(page.contains(sentence), "{format}: {page}");
    }
    let metrics = report(input, &["--format", "prometheus"]);
    assert!(metrics.contains("vmtax_losses_total{what=\"missing\"} 1\n"), "{metrics}");
    assert!(!metrics.contains("\nvmtax_exit_time_seconds_total{"), "{metrics}");
    assert!(!metrics.contains("\nvmtax_tax_ratio{"), "{metrics}");
    let explained = stdout(Path::new("/"), &format!("explain {}", input.display()));
    let explained = String::from_utf8_lossy(&explained).into_owned();
    assert!(!explained.contains("counts are exact"), "{explained}");
}

#[test]
fn samples_are_counted_by_their_period_and_have_no_times() {
    let folder = tempfile::tempdir().unwrap();
    for (file, column, of) in [
        ("tenth.perf.data.zst", 0, "a sample stands for 10 events"),
        ("tenth.script.txt.zst", 0, "a sample stands for 10 events"),
        ("frequency.perf.data.zst", 0, "a sample stands for as many events as its period"),
        ("frequency.script.txt.zst", 0, "a sample stands for as many events as its period"),
        ("unknown.perf.data.zst", 1, "the recording does not say for how many events"),
    ] {
        let name = file.split('.').next().unwrap();
        let expected = perf(&format!("{name}.exits.txt"), column);
        for input in both(folder.path(), &sampled(file)) {
            assert_eq!(exits(&input), expected, "{file}");
            says_first_and_has_no_times(&input, &format!("kvm_exit was sampled: {of}"));
        }
    }
    // The kernel samples every event when samples have their period, whatever -c says: nothing is missing.
    let whole = json(&sampled("count.perf.data.zst"), &[]);
    let mut expected = perf("count.exits.txt", 0);
    // The recording ends in an exit of each VM.
    *expected.get_mut("io").unwrap() -= 2;
    assert_eq!(exits(&sampled("count.perf.data.zst")), expected);
    assert_eq!(whole["losses"]["sampled"], 0);
    assert!(report(&sampled("count.perf.data.zst"), &[]).contains("of its running time to exits"));
}

/// 180 RDMSRs were executed; one in ten was recorded, each for ten.
#[test]
fn accesses_of_samples_are_counted_by_their_period() {
    for file in ["tenth.perf.data.zst", "tenth.script.txt.zst"] {
        let msrs = rows(&json(&sampled(file), &["--event", "msr"]));
        assert_eq!(msrs.values().sum::<u64>(), 180, "{file}: {msrs:?}");
    }
}

#[test]
fn exits_without_entries_are_counted_by_their_recorded_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let sentence = "The recording has no kvm_entry: exits are counted by their recorded reasons";
    for input in both(folder.path(), &sampled("exits.perf.data.zst")) {
        assert_eq!(exits(&input), perf("exits.exits.txt", 0));
        says_first_and_has_no_times(&input, sentence);
        assert_eq!(json(&input, &[])["losses"]["unpaired_exits"], 0);
    }
    let case = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../captures/cases/h7-only-kvm-exit/input");
    let text = fs::read_to_string(&case).unwrap();
    let mut expected = NamedCounts::new();
    for line in text.lines() {
        let (_, rest) = line.split_once(" reason ").unwrap();
        let reason = rest.split(' ').next().unwrap();
        *expected.entry(reason.to_owned()).or_default() += 1;
    }
    assert_eq!(expected["EPT_MISCONFIG"], 413);
    assert_eq!(exits(&case), expected);
    says_first_and_has_no_times(&case, sentence);
    // Which MSR an access was of stays with its exit.
    let msrs = folder.path().join("msrs.txt");
    let line = |n: u32, event: &str| format!("vmm 10/11 [000] 1.{n:06}: kvm:{event}\n");
    let pair = |n| {
        line(n, "kvm_exit: reason MSR_WRITE rip 0x1 info 0 0")
            + &line(n + 1, "kvm_msr: msr_write 830 = 0x1")
    };
    fs::write(&msrs, (0..9).map(|n| pair(10 * n)).collect::<String>()).unwrap();
    let causes = json(&msrs, &["--event", "cause"]);
    let row = &causes["tables"][0]["rows"][0];
    assert_eq!((&row["cause"], &row["count"]), (&Value::from("ipi"), &Value::from(9)));
}

/// kvm_exit with a filter leaves entries without exits.
#[test]
fn entries_without_exits_show_a_filter() {
    let page = json(&sampled("filter.perf.data.zst"), &[]);
    let missing = page["losses"]["missing"][0].as_str().unwrap();
    assert!(missing.contains("of 1500 kvm_entry have no kvm_exit before them"), "{missing}");
}

#[test]
fn tracepoints_that_were_recorded_twice_count_once() {
    let folder = tempfile::tempdir().unwrap();
    for input in both(folder.path(), &sampled("twice.perf.data.zst")) {
        assert_eq!(rows(&json(&input, &["--event", "msr"])).values().sum::<u64>(), 180);
        assert_eq!(json(&input, &[])["losses"]["unpaired_exits"], 2);
        let page = report(&input, &[]);
        assert!(page.contains("kvm_msr was recorded twice"), "{page}");
    }
    // trace-cmd record -e kvm -B again -e kvm_msr -e kvm_exit
    let page = json(&sampled("twice.trace.dat"), &["--event", "vmexit", "--by", "reason"]);
    assert_eq!(rows(&page)["msr"], 180);
    assert_eq!(page["losses"]["unpaired_exits"], 2);
    let notes = page["losses"]["notes"].to_string();
    assert!(notes.contains("\\\"again\\\" (1680 events)"), "{notes}");
    // Their texts do not tell the two apart.
    for (file, sentence) in [
        ("twice.script.txt.zst", "events: kvm_msr was recorded twice *: give the recording itself"),
        (
            "instances.trace-cmd.txt.zst",
            "streams: kvm_exit is in two of them, \"\" and \"again\": *",
        ),
    ] {
        refused_at_its_start(&sampled(file), sentence);
    }
}

/// A recording that cannot be read at all.
fn refused_at_its_start(recording: &Path, sentence: &str) {
    let command = format!("report {}", recording.display());
    let sentence = format!("{}: at byte 0: {sentence}", recording.display());
    let folder = tempfile::tempdir().unwrap();
    check(&Program::new(), folder.path(), &[(&command, 4, &sentence)]);
}

/// The columns of `perf script` are those that its events confirm.
#[test]
fn columns_of_perf_script_are_decided_from_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let whole = unpack("amd-sched", "sched.script.txt.zst");
    // -L, and -F comm,tid,time,event,trace.
    for file in ["latency.script.txt.zst", "no-cpu.script.txt.zst"] {
        let by_vcpu = ["--event", "vmexit", "--by", "reason,vcpu"];
        let counts = |input: &Path| rows(&json(input, &by_vcpu));
        assert_eq!(counts(&sampled(file)), counts(&whole), "{file}");
        let time = |input: &Path| part(&json(input, &[]), "preempted_ns");
        assert_eq!(time(&sampled(file)), time(&whole), "{file}");
    }
    for (file, sentence) in [
        (
            "processes.script.txt.zst",
            "columns: the column that is read as the thread is not: *prev_pid*",
        ),
        (
            "deltatime.script.txt.zst",
            "times: * of * events are earlier than the event before: the times are differences (perf script --deltatime); *",
        ),
    ] {
        refused_at_its_start(&sampled(file), sentence);
    }
    let without =
        "qemu 8.401742: kvm:kvm_exit: vcpu 0 reason npf rip 0x1 info1 0 info2 0\n".repeat(9);
    fs::write(folder.path().join("comm.txt"), without).unwrap();
    let sentence = "comm.txt: not a recording that vmtax knows: this is perf script's text without threads or times: *";
    check(&Program::new(), folder.path(), &[("report comm.txt", 4, sentence)]);
    // Two vCPUs of one process, as -F pid has them, without a context switch.
    let line = |n: u32| {
        let vcpu = n / 2 % 2;
        let event = if n.is_multiple_of(2) {
            "exit: vcpu V reason npf rip 0x1 info1 0 info2 0"
        } else {
            "entry: vcpu V, rip 0x1"
        };
        format!("qemu 100 [000] 8.{n:06}: kvm:kvm_{}\n", event.replace('V', &vcpu.to_string()))
    };
    fs::write(folder.path().join("pid.txt"), (0..80).map(line).collect::<String>()).unwrap();
    let sentence =
        "pid.txt: at byte 0: columns: *another vCPU than the one before of the same thread*";
    check(&Program::new(), folder.path(), &[("report pid.txt", 4, sentence)]);
}

#[test]
fn differences_of_trace_cmd_are_no_events() {
    let plain = unpack("intel-cpuid", "intel.trace-cmd.txt.zst");
    assert_eq!(exits(&sampled("ts-diff.trace-cmd.txt.zst")), exits(&plain));
}

/// trace-cmd report -i host.dat -i guest.dat
#[test]
fn guests_in_a_text_of_trace_cmd_are_left_out() {
    let host = unpack("intel-cpuid", "intel-v7-zstd.trace.dat");
    let text = sampled("host-guest.trace-cmd.txt.zst");
    let page = json(&text, &["--event", "vmexit", "--by", "reason"]);
    assert_eq!(rows(&page), exits(&host));
    let notes = page["losses"]["notes"].to_string();
    assert!(
        notes.contains(
            "exits are those of host.dat; events of other files are left out: guest.dat ("
        ),
        "{notes}"
    );
    assert_eq!(page["run"]["coverage"]["sched"], false);
}

#[test]
fn the_same_time_is_imported_once() {
    let folder = tempfile::tempdir().unwrap();
    let recording = unpack("amd-sched", "sched.perf.data.zst");
    fs::copy(&recording, folder.path().join("a.data")).unwrap();
    fs::copy(&recording, folder.path().join("b.data")).unwrap();
    fs::copy(unpack("amd-sched", "sched.script.txt.zst"), folder.path().join("c.txt")).unwrap();
    for again in ["b.data", "c.txt"] {
        let output = Program::new()
            .command(folder.path(), &format!("import a.data {again} -o run"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{said}");
        // The first and the last line of `perf script`.
        let sentence = format!(
            "vmtax: {again}: covers 8.371077 to 10.865820 s, and a.data covers 8.371077 to 10.865820 s: events of the same time would be counted twice"
        );
        assert!(said.starts_with(&sentence), "{said}");
        fs::remove_dir_all(folder.path().join("run")).unwrap_or_default();
    }
}

#[test]
fn what_follows_a_recording_in_its_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (input, also) in [
        (unpack("amd-sched", "sched.perf.data.zst"), "file"),
        (unpack("amd-pipe", "pipe.perf.data.zst"), "pipe"),
        (unpack("amd-same-workload", "workload-v7-zstd.trace.dat"), "v7"),
        (unpack("amd-same-workload", "workload-v6.trace.dat.zst"), "v6"),
    ] {
        let bytes = fs::read(&input).unwrap();
        let joined = folder.path().join(also);
        fs::write(&joined, [&bytes[..], &bytes[..]].concat()).unwrap();
        let page = json(&joined, &["--event", "vmexit", "--by", "reason"]);
        assert_eq!(rows(&page), exits(&input), "{also}");
        let truncated = page["losses"]["truncated"][0].as_str().unwrap_or_default();
        let sentence =
            format!("another recording follows at byte {}, which is not read", bytes.len());
        assert!(truncated.contains(&sentence), "{also}: {page}", page = page["losses"]);
    }
}

#[test]
fn a_line_of_kvm_stat_that_lacks_a_field_is_a_loss() {
    let folder = tempfile::tempdir().unwrap();
    let head = "timestamp,kvm_exit,kvm_exit(HLT),kvm_exit(MSR_WRITE)\n";
    fs::write(folder.path().join("log.csv"), format!("{head}2024-05-01 10:00:00,100,20,80\n2024-05-01 10:00:01,110,,80\n2024-05-01 10:00:02,110,30\n")).unwrap();
    let page = json(&folder.path().join("log.csv"), &["--event", "vmexit", "--by", "reason"]);
    let expected = [("HLT", 20), ("MSR_WRITE", 80)].map(|(name, n)| (name.to_owned(), n));
    assert_eq!(rows(&page), NamedCounts::from(expected));
    assert_eq!(
        page["losses"]["truncated"][0],
        "2 lines have not a number for each name: not counted"
    );
}

/// `cat a.txt a.txt`
#[test]
fn two_texts_in_one_file_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read(unpack("amd-sched", "sched.script.txt.zst")).unwrap();
    fs::write(folder.path().join("joined.txt"), [&text[..], &text[..]].concat()).unwrap();
    let sentence = "joined.txt: at byte 0: times: they go back from 10.* to 8.* s: another text begins there; give each in a file of its own";
    check(&Program::new(), folder.path(), &[("report joined.txt", 4, sentence)]);
}

/// A run whose list of segments lacks those of exits, or of times.
#[test]
fn sums_of_a_run_that_do_not_agree_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let [_, run] = both(folder.path(), &unpack("amd-sched", "sched.perf.data.zst"));
    let manifest = run.join("run.json");
    let mut page: Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let segments = page["segments"].as_array_mut().unwrap();
    let all = segments.len();
    segments.retain(|segment| !segment.to_string().contains("exits/"));
    assert!(segments.len() < all);
    fs::write(&manifest, page.to_string()).unwrap();
    let command = format!("report {}", run.display());
    let sentence = format!(
        "{}: its exits took 0.000000 s, and its vCPUs spent * s in exits: a part of the run is missing*",
        run.display()
    );
    check(&Program::new(), folder.path(), &[(&command, 4, &sentence)]);
}

/// Times of exits are without the time that the scheduler took, in every output: perf's are with it.
#[test]
fn times_of_exits_are_without_preempted_time() {
    let folder = tempfile::tempdir().unwrap();
    for input in both(folder.path(), &unpack("amd-sched", "sched.perf.data.zst")) {
        let page = json(&input, &["--event", "vmexit", "--by", "reason"]);
        let rows = page["tables"][0]["rows"].as_array().unwrap();
        let time: u64 = rows.iter().map(|row| row["time_ns"].as_u64().unwrap()).sum();
        let spent = ["exit_kernel_ns", "exit_user_ns", "halted_ns"]
            .map(|name| part(&page, name))
            .iter()
            .sum::<u64>();
        assert_eq!(time, spent);
        // perf: "Total events handled time", of the exits that have an entry.
        let perf = expected("amd-sched", "sched.kvmstat-vmexit.txt");
        let (_, handled) = perf.split_once("handled time:").unwrap();
        let handled: f64 = handled.split("us").next().unwrap().parse().unwrap();
        let gross = (time + part(&page, "preempted_ns")) as f64 / 1e3;
        assert!((gross - handled).abs() < 1.0, "{gross} {handled}");
        let metrics = report(&input, &["--format", "prometheus"]);
        let of = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        let lines =
            metrics.lines().filter(|line| line.starts_with("vmtax_exit_time_seconds_total{"));
        assert!((lines.map(of).sum::<f64>() - spent as f64 / 1e9).abs() < 1e-9, "{metrics}");
    }
}
