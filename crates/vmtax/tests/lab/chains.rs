//! Chains of dependent loads on this processor, and the same ones simulated: in the frames that this VM's kernel gave a process, by `--layout`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::run::{json, printed, row};

/// Cycles of a load on Zen 4.
fn simulated(report: &Value, name: &str) -> f64 {
    let paging = &row(report, name)["paging"];
    let all = paging["processors"].as_array().unwrap();
    let on = all.iter().find(|one| one["name"] == "zen4").unwrap();
    on["cycles"].as_f64().unwrap() / paging["accesses"].as_f64().unwrap()
}

/// Needs root in a VM on Zen 4 whose host maps it in pages of 4 KiB: `./x bench chains`.
#[test]
#[ignore = "measures this processor"]
fn chains_beyond_the_tlb_take_what_is_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (program, file) = (place("chain"), place("layout.csv"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/chain.c");
    let built = Command::new("gcc").args(["-O2", "-o", &program]).arg(source).status();
    assert!(built.expect("gcc").success(), "chain.c does not compile");
    let mut far = Vec::new();
    println!(
        "{:8} {:>7} {:>8} {:>9} {:>9} {:>6}",
        "pages", "process", "regions", "measured", "simulated", "ratio"
    );
    for process in 1..=6 {
        let is_huge = process == 6;
        let mut command = Command::new(&program);
        command.args(is_huge.then_some("huge")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let measured: f64 = line.trim().parse().expect("cycles of a load");
        let layout = printed(&["lab", "layout", &child.id().to_string()]);
        drop(child.stdin.take());
        child.wait().unwrap();
        std::fs::write(&file, &layout).unwrap();
        let frames = layout.lines().skip(1).filter_map(|line| line.split(',').next()?.parse().ok());
        let mut regions: Vec<u64> = frames.map(|frame: u64| frame / 512).collect();
        regions.sort_unstable();
        regions.dedup();
        let simulated = if is_huge {
            simulated(&json(&["lab", "run", "--operation", "chase-2m-on-4k"]), "chase-2m-on-4k")
        } else {
            let name = "chase-4k-on-4k-24g";
            let run = json(&["lab", "run", "--operation", name, "--layout", &file]);
            simulated(&run, name)
        };
        let (pages, ratio) = (if is_huge { "2M on 4K" } else { "4K on 4K" }, simulated / measured);
        println!(
            "{pages:8} {process:7} {:8} {measured:9.1} {simulated:9.1} {ratio:6.2}",
            regions.len()
        );
        far.extend((!(0.85..=1.15).contains(&ratio)).then_some(process));
    }
    assert!(far.is_empty(), "not within 15 %: {far:?}");
}
