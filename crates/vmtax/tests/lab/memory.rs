//! The suite `memory`: page faults for each 2 MiB and the pages that stay mapped, exactly.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::run::{json, output, path, refused, row, text};

/// Faults in the batch, and pages of 4 KiB and 2 MiB mapped by it, of four regions of 2 MiB.
type ExpectedFaults = (&'static str, u64, u64, u64);

/// What is the same on every kernel from 5.14 on, on both hosts.
const ORDINARY: &[ExpectedFaults] = &[
    ("touch-4k-thp", 4, 0, 4),
    ("touch-4k-thp-populated", 4, 0, 4),
    ("touch-2m-thp", 4, 0, 4),
    ("touch-4k-small", 2048, 2048, 0),
    ("touch-4k-small-populated", 2048, 2048, 0),
    ("touch-2m-small", 4, 4, 0),
    ("touch-4k-hugetlb", 4, 0, 4),
    ("touch-2m-hugetlb-populated", 4, 0, 4),
];

/// guest_memfd, Linux 6.18 to 7.3: no huge page anywhere, and pre-faulting moves the faults to the start.
const GUEST_MEMFD: &[ExpectedFaults] = &[
    ("touch-4k-guest-memfd", 2048, 2048, 0),
    ("touch-4k-guest-memfd-populated", 2048, 2048, 0),
    ("touch-4k-guest-memfd-prefault", 0, 2048, 0),
    ("touch-4k-guest-memfd-populated-prefault", 0, 2048, 0),
    ("touch-2m-guest-memfd", 4, 4, 0),
    ("touch-2m-guest-memfd-prefault", 0, 2048, 0),
    // Pre-faulting memory that the guest's host has not touched maps the zero page first.
    ("touch-4k-small-prefault", 4096, 2048, 0),
    ("touch-4k-small-populated-prefault", 0, 2048, 0),
    ("touch-4k-thp-prefault", 8, 0, 4),
    ("touch-4k-thp-populated-prefault", 0, 0, 4),
];

/// The same in a guest of a guest: one region, L1's KVM counts, and L1 is the one with guest_memfd.
const NESTED: &[ExpectedFaults] = &[
    ("touch-4k-thp", 1, 0, 1),
    ("touch-4k-thp-prefault", 2, 0, 1),
    ("touch-4k-small", 512, 512, 0),
    ("touch-4k-small-prefault", 1024, 512, 0),
    ("touch-4k-hugetlb", 1, 0, 1),
    ("touch-4k-guest-memfd", 512, 512, 0),
    ("touch-4k-guest-memfd-populated", 512, 512, 0),
    ("touch-4k-guest-memfd-prefault", 0, 512, 0),
    ("touch-2m-guest-memfd", 1, 1, 0),
];

/// Private memory and conversions, Linux 6.12 with software-protected VMs.
const PRIVATE: &[ExpectedFaults] = &[
    ("touch-4k-private", 2048, 2048, 0),
    ("touch-4k-private-populated", 2048, 2048, 0),
    ("touch-4k-private-prefault", 0, 2048, 0),
    ("convert-4k-shared", 0, 0, 0),
    ("convert-4k-private", 0, 0, 0),
    ("convert-2m-shared", 0, 0, 0),
    ("convert-2m-private", 0, 0, 0),
    // An access that the VMM answers, and the access again. Once all of 2 MiB is shared it is mapped as one page.
    ("convert-4k-implicit", 4096, 0, 4),
    ("shatter", 2048, 2048, 0),
    // Only the page that was converted back faults again: the large page does not come back.
    ("shatter-back", 2052, 2048, 0),
];

const NESTED_PRIVATE: &[ExpectedFaults] = &[
    ("touch-4k-thp", 1, 0, 1),
    ("touch-4k-thp-prefault", 1024, 512, 0),
    ("touch-4k-private", 512, 512, 0),
    ("touch-4k-private-prefault", 0, 512, 0),
    ("shatter", 512, 512, 0),
    ("shatter-back", 513, 512, 0),
];

fn names(expected: &[ExpectedFaults]) -> String {
    expected.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(",")
}

fn assert_memory(report: &Value, level: &str, expected: &[ExpectedFaults]) {
    let rows = report["operations"]["rows"].as_array().unwrap();
    let wrong: Vec<String> = expected
        .iter()
        .filter_map(|(name, faults, small, large)| {
            let row =
                rows.iter().find(|row| text(&row["name"]) == *name && text(&row["level"]) == level);
            let Some(row) = row else { return Some(format!("{name} {level}: is not there")) };
            let count = |key: &str| row["memory"][key].as_u64();
            let found = ["faults", "pages_4k", "pages_2m"].map(count);
            let wanted = [faults, small, large].map(|n| Some(*n));
            (found != wanted).then(|| format!("{name} {level}: {found:?}, expected {wanted:?}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn notes(report: &Value) -> String {
    report["losses"]["notes"].to_string()
}

/// The distribution's kernel: exact counts, a reason for what it lacks, and a budget that a kernel without huge pages breaks.
#[test]
fn first_touches_take_exactly_the_faults_they_must() {
    let folder = tempfile::tempdir().unwrap();
    let budget = folder.path().join("budget.toml").display().to_string();
    let operations = format!("{},touch-4k-guest-memfd,shatter", names(ORDINARY));
    let run = ["lab", "run", "--operation", &operations, "--budget", &budget];
    let report = json(&[&run[..], &["--bless"]].concat());
    assert_memory(&report, "L1", ORDINARY);
    let notes = notes(&report);
    for said in [
        "this kernel has no guest_memfd for ordinary VMs (GUEST_MEMFD_FLAG_MMAP and INIT_SHARED, Linux 6.18); skipped: touch-4k-guest-memfd\"",
        "skipped: shatter\"",
    ] {
        assert!(notes.contains(said), "{notes}");
    }
    // A kernel that gains or loses huge pages is noticed by the faults and by the pages.
    let text = fs::read_to_string(&budget).unwrap();
    let changed = text.replacen("faults = 1.0", "faults = 512.0", 1);
    assert_ne!(text, changed);
    fs::write(&budget, changed).unwrap();
    // Fewer faults are better, which fails only where the comparison is exact.
    let line = "page faults for each 2 MiB: 512 -> 1 faults (-511, -99.8 %)";
    let better = output(&run);
    let said = String::from_utf8_lossy(&better.stderr);
    assert!(better.status.success(), "{said}");
    assert!(said.contains("better than the budget; write it anew with --bless:\n"), "{said}");
    assert!(said.contains(line), "{said}");
    let (code, said) = refused(&[&run[..], &["--exact"]].concat());
    assert_eq!(code, 6, "{said}");
    assert!(said.contains(line), "{said}");
}

#[test]
fn a_guest_of_a_guest_touches_memory_too() {
    let operations = "touch-4k-thp,touch-4k-small";
    let report = json(&["lab", "run", "--nested", "--operation", operations]);
    assert_memory(&report, "L1", &[("touch-4k-thp", 4, 0, 4), ("touch-4k-small", 2048, 2048, 0)]);
    // One region there, and L1's KVM counts.
    assert_memory(&report, "L2", &[("touch-4k-thp", 1, 0, 1), ("touch-4k-small", 512, 512, 0)]);
}

/// A kernel and its modules by a variable of the environment: a kernel with guest_memfd cannot be had everywhere.
fn kernel(variable: &str) -> Option<(String, String)> {
    let words = std::env::var(variable).ok()?;
    let (image, modules) = words.split_once(' ')?;
    Some((image.to_owned(), modules.to_owned()))
}

fn measured_on(variable: &str, host: &str, expected: &[ExpectedFaults]) -> Value {
    let (image, modules) = kernel(variable)
        .unwrap_or_else(|| panic!("set {variable} to an image and a folder of modules"));
    let operations = names(expected);
    let kernel = ["--kernel", &image, "--modules", &modules, "--limit", "40m"];
    let run = ["lab", "run", "--host", host, "--operation", &operations];
    let report = json(&[&run[..], &kernel].concat());
    assert_memory(&report, "L1", expected);
    report
}

/// VMTAX_KERNEL_GUEST_MEMFD='IMAGE MODULES': Debian's 6.18 to 7.3.
#[test]
#[ignore = "needs a kernel with guest_memfd for ordinary VMs"]
fn guest_memfd_has_no_huge_page() {
    for host in ["amd", "intel"] {
        measured_on("VMTAX_KERNEL_GUEST_MEMFD", host, GUEST_MEMFD);
    }
}

/// VMTAX_KERNEL_PROTECTED='IMAGE MODULES': what `./x kvm-modules` makes.
#[test]
#[ignore = "needs modules of ./x kvm-modules"]
fn private_memory_has_no_huge_page_and_conversions_shatter() {
    for host in ["amd", "intel"] {
        let report = measured_on("VMTAX_KERNEL_PROTECTED", host, PRIVATE);
        assert!(notes(&report).contains("modules: KVM rebuilt from linux-source-"));
    }
}

/// The runs of those kernels that are kept here.
fn recorded(name: &str) -> Value {
    let folder: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "../../captures/lab-memory", name].iter().collect();
    json(&["report", folder.to_str().unwrap()])
}

#[test]
fn the_kept_runs_show_what_guest_memfd_and_private_memory_cost() {
    // What THP, guest_memfd and pre-faulting cost is the kernel's, not the processor's.
    for host in ["amd", "intel"] {
        let report = recorded(&format!("{host}-7.3"));
        assert_memory(&report, "L1", ORDINARY);
        assert_memory(&report, "L1", GUEST_MEMFD);
        assert_eq!(text(&report["run"]["kernel"]), "7.3.4+deb13-amd64");
        let report = recorded(&format!("{host}-6.12-protected"));
        assert_memory(&report, "L1", ORDINARY);
        assert_memory(&report, "L1", PRIVATE);
        // There THP is lost too.
        assert_memory(&report, "L1", &[("touch-4k-thp-prefault", 4096, 2048, 0)]);
        assert!(notes(&report).contains("CONFIG_KVM_SW_PROTECTED_VM=y"));
    }
}

#[test]
fn private_memory_has_no_huge_page_in_7_3_either() {
    let same = ["touch-4k-thp", "touch-4k-guest-memfd", "touch-4k-thp-prefault"];
    let both = ORDINARY.iter().chain(GUEST_MEMFD);
    let same: Vec<ExpectedFaults> =
        both.filter(|(name, ..)| same.contains(name)).copied().collect();
    assert_eq!(same.len(), 3);
    for run in ["amd-7.3-protected", "intel-7.3-protected"] {
        let report = recorded(run);
        assert_eq!(text(&report["run"]["kernel"]), "7.3.4+deb13-amd64");
        assert_memory(&report, "L1", PRIVATE);
        assert_memory(&report, "L1", &same);
        assert!(notes(&report).contains("CONFIG_KVM_SW_PROTECTED_VM=y"));
    }
}

#[test]
fn the_kept_runs_show_the_same_in_a_guest_of_a_guest() {
    for host in ["amd", "intel"] {
        assert_memory(&recorded(&format!("{host}-7.3")), "L2", NESTED);
    }
    for run in ["amd-6.12-protected", "intel-6.12-nested"] {
        assert_memory(&recorded(run), "L2", NESTED_PRIVATE);
    }
}

/// A bounce buffer takes one exit whatever the size; converted pages take two hypercalls and a fault for each page that is mapped.
#[test]
fn the_kept_run_shows_what_bounce_buffers_and_conversions_take() {
    let report = recorded("amd-6.12-bounce");
    let row = |name: String| row(&report, &name);
    let mut copied = 0.0;
    // The last is one huge page.
    for (size, faults) in [("4k", 1.0), ("16k", 4.0), ("64k", 16.0), ("256k", 64.0), ("2m", 1.0)] {
        let (bounced, converted) =
            (row(format!("io-bounced-{size}")), row(format!("io-converted-{size}")));
        assert_eq!(bounced["exits_per_operation"], 1.0, "{size}");
        assert_eq!(converted["exits_per_operation"], 3.0 + faults, "{size}");
        assert!(path(converted) > path(bounced) && path(bounced) > copied, "{size}");
        copied = path(bounced);
    }
    let folder: PathBuf =
        [env!("CARGO_MANIFEST_DIR"), "../../captures/lab-memory/amd-6.12-bounce"].iter().collect();
    let shown = output(&["report", folder.to_str().unwrap()]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("Bounce buffer or conversion: one I/O of each size"), "{shown}");
    let page = output(&["report", folder.to_str().unwrap(), "--format", "html"]);
    let page = String::from_utf8(page.stdout).unwrap();
    assert_eq!(page.matches("<polyline").count(), 4);
}
