//! VMs of the emulated arm64 host: ordinary, on a protected host, and protected.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{bench, csv, exits, matrix, name, ok, program, refused, row, rows};

/// Touches 2,048 pages.
const TOUCH_NEW: &str = "use = \"touch-new\"";
const PAGES: f64 = 2_048.0;

fn of(categories: &str, kernel: &str, workloads: &[&str]) -> String {
    let each = |workload: &&str| format!("[[workload]]\n{workload}\n");
    let workloads: String = workloads.iter().map(each).collect();
    format!(
        "repeats = 1\nwarmup = false\ncategories = [{categories}]\n[vm]\naccel = \"arm\"\nmemory = 256\nkernel = \"{kernel}\"\n{workloads}"
    )
}

/// What a run of a matrix prints; nothing where the program for arm64 is not in this vmtax.
fn ran(folder: &Path, text: &str, run: &Path) -> Option<String> {
    let output = bench(&["run", name(&matrix(folder, text)), "--profile", "-o", name(run)]);
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("built without the program of the arm64 host") {
        vmtax_skipped::system("Rust's standard library for arm64 was not there");
        return None;
    }
    assert!(output.status.success(), "{:?} {error}", output.status);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("failed (") && !text.contains("no call trees"), "{text}");
    assert!(text.contains("Emulated (KVM on an emulated arm64 host (QEMU TCG))"), "{text}");
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Recorded exits of a cell with this reason and kind of detail.
fn count(run: &Path, cell: &str, reason: &str, detail: &str) -> f64 {
    let found = exits::exits(run, &format!("{cell} (repeat 0)"));
    let alike = found.iter().filter(|one| one.0 == reason && one.1.contains(detail));
    alike.map(|one| one.2 as f64).sum()
}

/// A static program of arm64: `mov x0, 0; mov x8, 93; svc 0`, which is exit(0).
fn arm_program(path: &Path) {
    const AT: u64 = 0x40_0000;
    let code: [u32; 3] = [0xd280_0000, 0xd280_0ba8, 0xd400_0001];
    let length = 64 + 56 + 4 * code.len() as u64;
    let halves =
        |words: &[u16]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let numbers =
        |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let bytes = [
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
        // An executable of AArch64, of version 1.
        halves(&[2, 183, 1, 0]),
        numbers(&[AT + 64 + 56, 64, 0]),
        halves(&[0, 0, 64, 56, 1, 64, 0, 0]),
        // PT_LOAD, to be read and executed.
        halves(&[1, 0, 5, 0]),
        numbers(&[0, AT, AT, length, length, 0x1_0000]),
        code.iter().flat_map(|word| word.to_le_bytes()).collect(),
    ];
    fs::write(path, bytes.concat()).unwrap();
}

/// The distribution's kernel makes no protected VMs: that category is skipped, and the others are measured.
#[test]
fn ordinary_vms_of_arm64_have_their_exits_on_both_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let own = folder.path().join("own");
    arm_program(&own);
    let own = format!("name = \"own\"\ncommand = [{:?}]", name(&own));
    let timer = "use = \"timer\"\nset = { seconds = 0.02 }";
    let categories = "\"plain\", \"pkvm\", \"protected\"";
    let text = of(categories, "distribution", &[TOUCH_NEW, timer, &own]);
    let Some(said) = ran(folder.path(), &text, &run) else { return };
    for sentence in [
        "category protected: skipped: KVM of this host makes no protected VMs",
        "and they take Linux 7.3 or newer in protected mode",
        "exits in pkvm: those that code at EL2 handles by itself are not recorded",
    ] {
        assert!(said.contains(sentence), "{said}");
    }
    let found = rows(&run);
    for category in ["plain", "pkvm"] {
        let median = |workload: &str, metric: &str| -> f64 {
            row(&found, workload, metric, category)["median"].parse().unwrap()
        };
        assert_eq!(median("touch-new", "rounds"), PAGES);
        // In pages of 2 MiB.
        let faults = count(&run, &format!("touch-new in {category}"), "DABT_LOW", "");
        assert!((1.0..PAGES / 100.0).contains(&faults), "{faults} in {category}");
        // Each sleep is a wait for an interrupt, and the clock ticks.
        let each = median("timer", "exits");
        assert!((1.0..1.5).contains(&each), "{each} in {category}");
        let waits = count(&run, &format!("timer in {category}"), "WFx", "");
        assert!(waits > 50.0, "{waits} in {category}");
        assert!(median("own", "time") < 0.1, "{category}");
    }
    // Each tree has as many instructions as the clock, or it would be missing.
    let rows = csv(&ok(&["compare", name(&run), "--functions", "--format", "csv"]));
    let polls = rows
        .iter()
        .find(|row| row["workload"] == "timer" && row["function"] == "kvm_vcpu_check_block");
    let polls = polls.unwrap_or_else(|| panic!("{rows:?}"));
    assert_eq!((polls["category"].as_str(), polls["code"].as_str()), ("pkvm", "host"));
    let calls: f64 = polls["calls"].parse().unwrap();
    assert!(calls > 100.0, "{calls}");
    let facts =
        |category: &str| fs::read_to_string(run.join(format!("facts/{category}.json"))).unwrap();
    assert!(facts("plain").contains("\"processor\": \"implementer "), "{}", facts("plain"));
    assert_eq!(facts("plain"), facts("pkvm"));
    let json = ok(&["compare", name(&run), "--exits", "--format", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let of = |category: &str| rows.iter().filter(|row| row["category"] == category).count();
    assert_eq!(of("plain") + of("pkvm"), rows.len(), "{json}");
    assert_eq!(of("plain"), of("pkvm"), "{json}");
    let label = "emulated:KVM on an emulated arm64 host (QEMU TCG)";
    assert!(rows.iter().all(|row| row["accelerator"] == label), "{json}");
}

/// A page that a protected VM touches for the first time is a fault.
#[test]
fn a_protected_vm_faults_once_for_each_page() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let text = of("\"protected\"", "debian:7.3", &[TOUCH_NEW]);
    let Some(said) = ran(folder.path(), &text, &run) else { return };
    assert!(
        said.contains("category protected: protected VMs are experimental in the kernel"),
        "{said}"
    );
    let found = rows(&run);
    assert_eq!(row(&found, "touch-new", "rounds", "protected")["median"], "2048");
    let faults = count(&run, "touch-new in protected", "DABT_LOW", "");
    // Some pages are of those that the guest's kernel used and gave back.
    assert!((PAGES * 0.7..PAGES * 1.02).contains(&faults), "{faults}");
}

/// VMs of one host on another one, and workloads that need what a VM of arm64 has not: nothing boots.
#[test]
fn what_a_vm_of_arm64_is_not_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let refused = |text: &str| {
        let (code, said) = refused(&["run", name(&matrix(folder.path(), text)), "-o", name(&run)]);
        assert_eq!(code, 7, "{said}");
        assert!(!run.exists(), "{said}");
        said
    };
    for (category, part) in [
        ("snp", "snp"),
        ("tdx", "tdx"),
        ("private", "private"),
        ("plain+nested", "+nested"),
        ("protected+swiotlb", "+swiotlb"),
        ("pkvm+poll", "+poll"),
    ] {
        let said = refused(&of(&format!("\"{category}\""), "distribution", &[TOUCH_NEW]));
        let sentence = format!(
            "category {category}: {part}: not available on the emulated arm64 host, whose categories are plain, pkvm and protected"
        );
        assert!(said.contains(&sentence) && said.lines().count() == 1, "{said}");
    }
    for accel in ["kvm", "tcg", "amd", "intel"] {
        for category in ["pkvm", "protected"] {
            let text = of(&format!("\"{category}\""), "distribution", &["use = \"timer\""]);
            let said = refused(&text.replace("\"arm\"", &format!("\"{accel}\"")));
            let sentence = format!(
                "category {category}: {category}: is a VM of the emulated arm64 host (accel = \"arm\")"
            );
            assert!(said.contains(&sentence), "{said}");
        }
    }
    let script = folder.path().join("script");
    program(&script, "#!/bin/sh\n");
    let script = format!("name = \"own\"\ncommand = [{:?}]", name(&script));
    for (workload, sentence) in [
        ("use = \"cpuid\"", "workload cpuid: cpuid is not there with accel = \"arm\""),
        (
            "use = \"ipi\"",
            "workload ipi: it takes 2 vCPUs, and VMs of the emulated arm64 host have one",
        ),
        ("use = \"redis\"", "workload redis: redis-server is no program of arm64 here"),
        (&script, "/script is no program of arm64 here"),
    ] {
        let said = refused(&of("\"plain\"", "distribution", &[workload]));
        assert!(said.contains(sentence) && said.lines().count() == 1, "{said}");
    }
    let text = of("\"plain\"", "distribution", &[TOUCH_NEW]).replace("\"arm\"", "\"amd\"");
    assert!(refused(&text).contains("touch-new is not there with accel = \"amd\""));
}

#[test]
fn a_dry_run_shows_the_command_lines_of_a_protected_vm() {
    let folder = tempfile::tempdir().unwrap();
    let path = matrix(folder.path(), &of("\"protected\"", "debian:7.3", &[TOUCH_NEW]));
    let text = ok(&["run", name(&path), "--dry-run"]);
    for part in [
        "EMULATED: KVM on an emulated arm64 host (QEMU TCG)",
        "baseline: plain",
        "vmtax.role=relay",
        "kvm-arm.mode=protected vmtax.protected",
        "vmtax.role=agent vmtax.port nosoftlockup vmtax.protected",
        "experimental in the kernel",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}
