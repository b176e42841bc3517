//! Hosts and guests that trace-cmd's agent recorded together (captures/amd-guests): exits are the host's, and nothing of a guest is taken for them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::captures::{expected, json, unpack};
use crate::check::{Program, check, succeed};

type GuestCounts = BTreeMap<String, u64>;

fn input(file: &str) -> PathBuf {
    unpack("amd-guests", file)
}

fn page(input: &Path) -> Value {
    json(input, &["--event", "vmexit", "--by", "reason"])
}

/// What `trace-cmd report` counts: count, thread, reason.
fn trace_cmd(file: &str) -> GuestCounts {
    let mut counts = GuestCounts::new();
    for line in expected("amd-guests", file).lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        *counts.entry(words[2].to_owned()).or_default() += words[0].parse::<u64>().unwrap();
    }
    counts
}

fn counts(page: &Value) -> GuestCounts {
    let mut counts = GuestCounts::new();
    for row in page["tables"][0]["rows"].as_array().unwrap() {
        let reason = row["reason"].as_str().unwrap().to_owned();
        *counts.entry(reason).or_default() += row["count"].as_u64().unwrap();
    }
    counts
}

/// The counts are those of `trace-cmd report`, but for exits without an entry, which are losses.
fn agrees(page: &Value, file: &str) {
    let (ours, theirs) = (counts(page), trace_cmd(file));
    assert!(ours.keys().eq(theirs.keys()), "{ours:?} {theirs:?}");
    assert!(ours.iter().all(|(reason, count)| *count <= theirs[reason]), "{ours:?} {theirs:?}");
    let missing = theirs.values().sum::<u64>() - ours.values().sum::<u64>();
    assert_eq!(page["losses"]["unpaired_exits"], missing, "{file}");
}

fn notes(page: &Value) -> String {
    page["losses"]["notes"].to_string()
}

/// The GUEST option says which thread of the host runs the guest's vCPU.
#[test]
fn a_vm_has_the_name_of_its_guest() {
    for (file, clock) in [("kvm.trace.dat", "tsc2nsec"), ("kvm-v6.trace.dat.zst", "x86-tsc")] {
        let page = page(&input(file));
        agrees(&page, "kvm.exits.txt");
        let run = &page["run"];
        assert_eq!(run["vms"][0]["name"], "g1");
        assert_eq!(run["vms"][0]["inferred"], false);
        assert_eq!((run["clock"].as_str(), run["cpus"].as_u64()), (Some(clock), Some(2)), "{file}");
        let notes = notes(&page);
        assert!(notes.contains("made together with guests (g1)"), "{notes}");
        assert!(!notes.contains("clock"), "{notes}");
        // A cycle of the TSC is 2,216,258,584 / 2^31 ns.
        let wall = run["vcpus"][0]["wall_ns"].as_u64().unwrap();
        assert!((8_600_000_000..8_800_000_000).contains(&wall), "{wall}");
    }
    // Without a comparison of the clocks, trace-cmd does not look for the threads. Of a guest over the network they are -1.
    for name in ["none", "net"] {
        let page = page(&input(&format!("{name}.trace.dat")));
        agrees(&page, &format!("{name}.exits.txt"));
        assert_eq!(page["run"]["vms"][0]["inferred"], true, "{name}");
        assert_eq!(page["run"]["clock"], "mono");
    }
}

#[test]
fn a_guest_alone_says_where_its_exits_are() {
    let guest = page(&input("kvm-g1.trace.dat"));
    assert_eq!(guest["tables"][0]["rows"].as_array().unwrap().len(), 0);
    let missing = guest["losses"]["missing"].to_string();
    assert!(
        missing.contains("is a guest's (trace-cmd record -A) and holds no event of KVM: exits are in the recording of its host"),
        "{missing}"
    );
    // A guest that runs guests of its own has their exits: of each 5 x 20 CPUID, 5 x 2 OUT and one that ends it.
    let nested = page(&input("two-g2.trace.dat"));
    agrees(&nested, "two-g2.exits.txt");
    let counts = counts(&nested);
    assert_eq!((counts["cpuid"], counts["io"]), (2 * 100, 2 * 11 - 2));
    assert_eq!(nested["losses"]["missing"].as_array().unwrap().len(), 0);
    let sentence = "is a guest's (trace-cmd record -A): times are those of the guest's clock";
    assert!(notes(&nested).contains(sentence), "{}", notes(&nested));
    // Nothing in a file without a comparison of the clocks says that it is a guest's.
    let guest = page(&input("none-g1.trace.dat"));
    let missing = guest["losses"]["missing"].to_string();
    assert!(missing.contains("holds no event of KVM, so exits are not known"), "{missing}");
}

/// In any order, and whether or not the guest's file names its host.
#[test]
fn guests_of_an_imported_host_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["kvm", "none", "net"] {
        let (host, guest) = (format!("{name}.trace.dat"), format!("{name}-g1.trace.dat"));
        for file in [&host, &guest] {
            fs::copy(input(file), folder.path().join(file)).unwrap();
        }
        let alone = page(&folder.path().join(&host));
        for (run, files) in [("a", [&host, &guest]), ("b", [&guest, &host])] {
            let run = format!("{name}-{run}");
            let import = format!("import {} {} -o {run}", files[0], files[1]);
            succeed(&mut Program::new().command(folder.path(), &import));
            let both = page(&folder.path().join(&run));
            assert_eq!(counts(&both), counts(&alone));
            assert_eq!(both["run"]["vcpus"], alone["run"]["vcpus"]);
            let sentence = format!("{guest} is left out: it is the recording of a guest of {host}");
            assert!(notes(&both).contains(&sentence), "{}", notes(&both));
        }
    }
    // The host of another recording.
    let words = "import kvm-g1.trace.dat none.trace.dat -o other";
    let sentence = "none.trace.dat: is of another host or kernel than the recordings before it; import it into a separate run";
    check(&Program::new(), folder.path(), &[(words, 4, sentence)]);
}

/// trace-cmd report -i none.trace.dat -i none-g1.trace.dat
#[test]
fn exits_and_threads_of_a_text_of_both_are_the_hosts() {
    let page = page(&input("none.trace-cmd.txt.zst"));
    agrees(&page, "none.exits.txt");
    let notes = notes(&page);
    let sentence =
        "exits are those of none.dat; events of other files are left out: none-g1.dat (171 events)";
    assert!(notes.contains(sentence), "{notes}");
    // The vCPU's time is split as in the recording, but for times that the text rounds to microseconds.
    let recording = self::page(&input("none.trace.dat"));
    for part in ["wall_ns", "halted_ns", "preempted_ns", "exit_kernel_ns"] {
        let of = |page: &Value| page["run"]["vcpus"][0][part].as_u64().unwrap();
        assert!(of(&page).abs_diff(of(&recording)) < 4_000_000, "{part} {page} {recording}");
    }
    let thieves = |page: &Value| -> BTreeMap<String, u64> {
        let all = page["run"]["taken_by"].as_array().unwrap().iter();
        all.map(|one| (one["name"].as_str().unwrap().to_owned(), one["count"].as_u64().unwrap()))
            .collect()
    };
    assert_eq!(thieves(&page), thieves(&recording));
}

/// Each has exits, and nothing says which is the host.
#[test]
fn exits_of_two_files_in_a_text_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(input("two.trace-cmd.txt.zst"), folder.path().join("two.txt")).unwrap();
    let sentence = "two.txt: at byte 0: streams: kvm_entry is in two of them, \"two-g2.dat\" and \"two.dat\": report each by itself (trace-cmd report -i FILE)";
    check(&Program::new(), folder.path(), &[("report two.txt", 4, sentence)]);
}

/// A TSC below 1 GHz: `mult` of TSC2NSEC is above 2^31.
#[test]
fn times_that_trace_cmd_prints_as_negative_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(input("kvm.trace-cmd.txt.zst"), folder.path().join("kvm.txt")).unwrap();
    let sentence = "kvm.txt: at byte 0: times: they are negative: trace-cmd report takes a TSC below 1 GHz for one that runs backwards; give the recording itself (trace.dat)";
    check(&Program::new(), folder.path(), &[("report kvm.txt", 4, sentence)]);
}
