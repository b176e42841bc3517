//! Tables from elsewhere, runs side by side, parts put together, the page.

use std::fs;
use std::path::Path;

use crate::{matrix, name, ok, refused, row, rows};

fn published() -> String {
    format!("{}/../../captures/published/s2.csv", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_published_table_is_shown_with_its_findings_and_its_warning() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = ok(&["import", &published(), "-o", name(&run)]);
    assert!(text.contains("One run each: without a spread"), "{text}");
    // 3.40 Gb/s of the plain VM, 0.591 of the SNP guest, 3.25 with polling.
    let found = rows(&run);
    let udp = |category: &str| row(&found, "iperf-udp", "throughput", category);
    assert_eq!((udp("VM")["median"].as_str(), udp("SNP")["baseline"].as_str()), ("3.4", "VM"));
    let loss: f64 = udp("SNP")["overhead"].parse().unwrap();
    assert!((loss - (3.40 - 0.591) / 3.40).abs() < 1e-9, "{loss}");
    assert_eq!(udp("SNP+vhost")["baseline"], "SNP");
    assert_eq!(udp("SNP+vhost")["differs"], "false", "one run each proves nothing");
    // The JSON has the rows of the CSV.
    let json: serde_json::Value =
        serde_json::from_str(&ok(&["compare", name(&run), "--format", "json"])).unwrap();
    let of_json = json["rows"].as_array().unwrap();
    assert_eq!((&json["schema"], of_json.len()), (&"vmtax-bench-4".into(), found.len()));
    let snp = of_json.iter().find(|row| row["workload"] == "iperf-udp" && row["category"] == "SNP");
    let snp = snp.unwrap();
    assert_eq!((&snp["baseline"], &snp["differs"]), (&"VM".into(), &false.into()));
    assert_eq!(snp["overhead"].as_f64(), Some(loss));
    // Over 80 % lost, most of it got back by polling, and not by the bounce buffer.
    assert!(text.contains("SNP+vhost loses 84.4 % of VM+vhost"), "{text}");
    assert!(text.contains("poll gets back 97.0 %"), "{text}");
    assert!(text.contains("the bounce buffer alone does not explain it"), "{text}");
    // Each conclusion once.
    assert_eq!(text.matches("iperf-udp throughput: SNP+vhost loses").count(), 1, "{text}");
    // Shown only, the table is the same.
    let shown = ok(&["import", &published()]);
    assert_eq!(
        shown.lines().filter(|l| l.contains("SNP")).count(),
        text.lines().filter(|l| l.contains("SNP")).count()
    );
}

#[test]
fn a_page_holds_plots_and_no_name_of_it_is_markup() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("t.csv");
    let evil = "</title><script>alert(1)</script>";
    let mut text = "workload,category,repeat,metric,unit,value,better\n".to_owned();
    for repeat in 0..5 {
        text += &format!(
            "{evil},plain,{repeat},m,s,1{repeat},lower\n{evil},plain+x,{repeat},m,s,2{repeat},lower\n"
        );
    }
    fs::write(&table, text).unwrap();
    let page = folder.path().join("page.html");
    ok(&["compare", name(&table), "--format", "html", "-o", name(&page)]);
    let page = fs::read_to_string(&page).unwrap();
    assert!(!page.contains("<script>alert"), "a name became markup");
    assert_eq!(page.matches("<figure class=\"bench\">").count(), 2, "overhead and repeats");
    assert_eq!(page.matches("<circle").count(), 10, "a point for each repeat");
    let shown = ok(&["compare", name(&table)]);
    // All five above all five: p is 2 of 252.
    assert!(shown.contains("0.0079") && shown.contains('*'), "{shown}");
}

#[test]
fn two_runs_stand_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let table = |file: &str, add: i32| {
        let path = folder.path().join(file);
        let lines = (0..5)
            .map(|repeat| format!("w,plain,{repeat},rate,1/s,{},higher\n", 100 + repeat + add));
        fs::write(
            &path,
            "workload,category,repeat,metric,unit,value,better\n".to_owned()
                + &lines.collect::<String>(),
        )
        .unwrap();
        path
    };
    let (before, after) = (table("before.csv", 0), table("after.csv", -20));
    let text = ok(&["compare", name(&before), name(&after)]);
    assert!(text.contains("19.6 % worse"), "20 less of 102: {text}");
    let (code, sentence) = refused(&["compare", name(&before), &published()]);
    assert_eq!(code, 4, "{sentence}");
    assert!(sentence.contains("no cell is in both"), "{sentence}");
}

const PARTS: &str = r#"
name = "parts"
repeats = 2
warmup = false
categories = ["host"]
[[workload]]
name = "a"
command = ["true"]
[[workload]]
name = "b"
command = ["true"]
[[workload]]
name = "c"
command = ["true"]
"#;

fn part(folder: &Path, shard: &str) -> String {
    let run = folder.join(format!("part-{}", shard.replace('/', "-")));
    ok(&["run", name(&matrix(folder, PARTS)), "-o", name(&run), "--shard", shard]);
    name(&run).to_owned()
}

#[test]
fn parts_make_a_whole() {
    let folder = tempfile::tempdir().unwrap();
    let parts = ["1/2", "2/2"].map(|shard| part(folder.path(), shard));
    let whole = folder.path().join("whole");
    ok(&["merge", &parts[0], &parts[1], "-o", name(&whole)]);
    let found = rows(&whole);
    // A cell that took a while has its utilisation, too.
    let times: Vec<_> = found.iter().filter(|((_, metric, _), _)| metric == "time").collect();
    let names: Vec<&str> = times.iter().map(|((workload, ..), _)| workload.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(times.iter().all(|(_, row)| row["n"] == "2"));
    let again = folder.path().join("again");
    let (code, sentence) = refused(&["merge", &parts[0], &parts[0], "-o", name(&again)]);
    assert_eq!(code, 4);
    assert!(sentence.contains("another part has too"), "{sentence}");
    assert!(!again.exists());
}

fn kept(folder: &str) -> String {
    format!("{}/../../captures/{folder}", env!("CARGO_MANIFEST_DIR"))
}

/// A kept run of a compile and of interrupts between vCPUs in a VM and in its guest: the exits of both levels beside each other.
#[test]
fn exits_at_l2_are_beside_those_at_l1() {
    let csv = ok(&["compare", &kept("bench-nested/amd-6.1"), "--exits", "--format", "csv"]);
    let head = "workload,category,baseline,unit,guest,reason,exits_baseline,exits,ratio";
    assert_eq!(csv.lines().next(), Some(head));
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let find = |workload: &str, guest: &str, reason: &str| {
        let found = rows.iter().find(|row| (row[0], row[4], row[5]) == (workload, guest, reason));
        let row = found.unwrap_or_else(|| panic!("no {workload} {guest} {reason}: {csv}"));
        assert_eq!((row[1], row[2]), ("plain+nested", "plain"));
        (row[3], row[6].parse::<f64>().ok(), row[7].parse::<f64>().unwrap())
    };
    assert_eq!(find("compile", "all", "all"), ("exits", Some(2667.0), 20381.0));
    let of_guest = |reason: &str| find("compile", "workload's guest", reason);
    assert_eq!(of_guest("all"), ("exits", Some(2667.0), 3069.0));
    // At L2 their numbers are not known, so they are one row at L1, too.
    assert_eq!(of_guest("msr"), ("exits", Some(1443.0), 1547.0));
    assert_eq!(of_guest("cpuid"), ("exits", Some(387.0), 387.0));
    let of_hypervisor = |reason: &str| find("compile", "its hypervisor", reason);
    assert_eq!(of_hypervisor("all"), ("exits", None, 17312.0));
    assert_eq!(of_hypervisor("vmrun"), ("exits", None, 2837.0));
    assert_eq!(of_hypervisor("vmload"), ("exits", None, 5674.0));
    let (unit, at_l1, at_l2) = find("ipi", "all", "all");
    assert_eq!(unit, "exits an operation");
    assert!(at_l1.is_some_and(|at_l1| (9.0..10.5).contains(&(at_l2 / at_l1))), "{at_l2}");
    let text = ok(&["compare", &kept("bench-nested/amd-6.1"), "--exits"]);
    assert!(text.contains("compile in plain+nested, beside plain, in a run"), "{text}");
    // A run whose VMs were not recorded has no such table.
    let (code, said) = refused(&["compare", &kept("published/s2.csv"), "--exits"]);
    assert!(code == 4 && said.contains("has no workload with recorded exits"), "{code} {said}");
}

/// A kept run of VMs on three kinds of memory, with the lab's cost of a fault: counted faults, and what is a model is called one.
#[test]
fn an_overhead_comes_apart_into_page_faults_and_the_rest() {
    let run = kept("bench-memory/amd-7.3");
    let text = ok(&["compare", &run, "--faults", &kept("lab-memory/amd-7.3-protected")]);
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in [
        "touch-4k in plain+gmem: 4,736 ns more than in plain: 0.711 faults x 6,760 (touch-4k-guest-memfd) less 0.00134 faults x 288,114 (touch-4k-thp) in plain = 4,418; the rest: 318",
        "touch-2m in plain+gmem: 6,695 ns more than in plain: 1.00 faults x 6,760 (touch-4k-guest-memfd) less 0.00195 faults x 288,114 (touch-4k-thp) in plain = 6,198; the rest: 498",
        "touch-2m in private: 7,324 ns more than in plain: 1.00 faults x 7,298 (touch-4k-private) less 0.00195 faults x 288,114 (touch-4k-thp) in plain = 6,736; the rest: 589",
        "Their cost is a model",
        "TLB misses and page walks are in no count of an emulated host",
        "vmtax lab run --suite paging simulates it",
    ] {
        assert!(said.contains(sentence), "{sentence}: {text}");
    }
    // The recorded exits are of a later run of the client: they do not explain the first touches.
    assert!(!said.contains("(a CPUID exit here)"), "{text}");
    // One fault maps 2 MiB in the plain VM, and 4 KiB in the others.
    let found = rows(Path::new(&run));
    let pages = |category: &str, size: &str| -> f64 {
        row(&found, "touch-2m", size, category)["median"].parse().unwrap()
    };
    assert_eq!((pages("plain", "pages-2m"), pages("plain", "pages-4k")), (16.0, 0.0));
    for small in ["plain+gmem", "private"] {
        assert_eq!((pages(small, "pages-2m"), pages(small, "pages-4k")), (0.0, 8192.0), "{small}");
    }
    for (lab, sentence) in [
        (
            "lab-memory/intel-6.12-protected",
            "give a lab run of the same kernel on the same emulated host",
        ),
        (
            "lab-memory/amd-6.12-protected",
            "give a lab run of the same kernel on the same emulated host",
        ),
        ("lab-memory/amd-6.12-bounce", "give a run of `vmtax lab run --suite memory`"),
    ] {
        let (code, said) = refused(&["compare", &run, "--faults", &kept(lab)]);
        assert_eq!(code, 4, "{said}");
        assert!(said.contains(sentence), "{said}");
    }
}
