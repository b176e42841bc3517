//! The arm64 host.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::profile::{Trees, assert_adds_up, below, trees};
use crate::run::{
    assert_exits, assert_versioned, assert_within, cache, count, exits, json, parsed, path, paths,
    refused, row, text, vmtax,
};

/// Exits of one operation. QEMU's TCG does not trap WFI with a pending interrupt: that exit is the interrupt.
const L1: &[(&str, &str)] = &[
    ("touch-4k L1", "L1 DABT_LOW 1"),
    ("touch-2m L1", "L1 DABT_LOW 1"),
    ("map-4k L1", "L1 DABT_LOW 1"),
    ("map-2m L1", "L1 DABT_LOW 1"),
    ("hvc-psci L1", "L1 HVC64 PSCI_VERSION 1"),
    ("hvc-smccc L1", "L1 HVC64 SMCCC_VERSION 1"),
    ("smc-psci L1", "L1 SMC64 1"),
    ("mmio-read L1", "L1 DABT_LOW 1"),
    ("mmio-write L1", "L1 DABT_LOW 1"),
    ("gic-read L1", "L1 DABT_LOW 1"),
    ("id-register L1", "L1 SYS64 ID_AA64MMFR0_EL1 1"),
    ("actlr L1", "L1 SYS64 ACTLR_EL1 1"),
    ("oslar L1", "L1 SYS64 OSLAR_EL1 1"),
    ("sgi-self L1", "L1 SYS64 ICC_SGI1R_EL1 1"),
    ("timer-irq L1", "L1 IRQ 1"),
    ("wfe L1", ""),
    ("tlbi L1", ""),
];

/// Exits of one access of a guest to the counters of KVM's own PMU, and of what Linux's driver does with them.
const COUNTERS: &[(&str, &str)] = &[
    ("vpmu-evtyper L1", "L1 SYS64 PMEVTYPER0_EL0 1"),
    ("vpmu-ccfiltr L1", "L1 SYS64 PMCCFILTR_EL0 1"),
    ("vpmu-counter-on L1", "L1 SYS64 PMCNTENSET_EL0 1"),
    ("vpmu-counter-off L1", "L1 SYS64 PMCNTENCLR_EL0 1"),
    ("vpmu-all-on L1", "L1 SYS64 PMCR_EL0 1"),
    ("vpmu-all-off L1", "L1 SYS64 PMCR_EL0 1"),
    ("vpmu-pmcr-read L1", "L1 SYS64 PMCR_EL0 1"),
    ("vpmu-ccntr-read L1", "L1 SYS64 PMCCNTR_EL0 1"),
    ("vpmu-evcntr-read L1", "L1 SYS64 PMEVCNTR0_EL0 1"),
    ("vpmu-evcntr-write L1", "L1 SYS64 PMEVCNTR0_EL0 1"),
    ("vpmu-ovsclr-write L1", "L1 SYS64 PMOVSCLR_EL0 1"),
    ("vpmu-intenset-write L1", "L1 SYS64 PMINTENSET_EL1 1"),
    ("vpmu-swinc L1", "L1 SYS64 PMSWINC_EL0 1"),
    (
        "vpmu-count-400k L1",
        "L1 SYS64 PMCNTENCLR_EL0 1, L1 SYS64 PMCNTENSET_EL0 1, L1 SYS64 PMEVCNTR0_EL0 2",
    ),
];
/// Of these an event of the host's is a part, whose memory may be there already.
const CREATE: [&str; 6] = [
    "vpmu-evtyper",
    "vpmu-ccfiltr",
    "vpmu-evcntr-write",
    "vpmu-switch-in",
    "vpmu-sample",
    "vpmu-count-",
];

/// Of these the kernel's memory management or user space is a part, whose work depends on what came before.
const VARY: [&str; 6] = ["touch-4k", "touch-2m", "map-4k", "map-2m", "mmio-read", "mmio-write"];
const MOST: f64 = 0.03;

/// Whether the program of the arm64 host is in this vmtax; otherwise the test is skipped.
pub(crate) fn is_built() -> bool {
    let (_, said) = refused(&["lab", "run", "--host", "arm", "--operation", "hvc-psci"]);
    let is_built = !said.contains("built without the program of the arm64 host");
    if !is_built {
        vmtax_skipped::system("Rust's standard library for arm64 was not there");
    }
    is_built
}

/// Linux 6.12 prefers other threads than 6.1, which a restored host, whose kernel has lost its timer, depends on: the second run of it goes on from the
/// state that the series saved.
#[test]
fn a_series_of_arm64_kernels_shows_the_longer_exits_of_6_12() {
    if !is_built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("series");
    let operations = ["--host", "arm", "--operation", "hvc-psci,id-register"];
    let home_text = home.to_str().unwrap();
    let flags = ["lab", "series", "--kernel", "6.1,6.12", "-o", home_text];
    json(&[&flags[..], &operations].concat());
    let csv = std::fs::read_to_string(home.join("series.csv")).unwrap();
    let path = |kernel: &str, operation: &str| -> f64 {
        let row = csv.lines().find(|row| {
            row.starts_with(kernel) && row.contains(&format!(",arm,,{operation},L1,1,"))
        });
        row.and_then(|row| row.split(',').nth(6)?.parse().ok()).unwrap_or_else(|| panic!("{csv}"))
    };
    let again = json(&[&["lab", "run", "--kernel", "debian:6.12"][..], &operations].concat());
    let again = paths(&again);
    for operation in ["hvc-psci", "id-register"] {
        let (old, new) = (path("6.1.", operation), path("6.12.", operation));
        assert!(new > old * 1.05, "{operation}: {old} and {new}");
        assert_eq!(again[&format!("{operation} L1")], new, "{operation}");
    }
}

/// Two runs, of which the second at least goes on from the saved host, have the same tables.
#[test]
fn on_arm64_operations_take_exactly_the_exits_they_must() {
    if !is_built() {
        return;
    }
    let report = json(&["lab", "run", "--host", "arm"]);
    assert_exits(&report, L1);
    let run = &report["run"];
    assert_versioned(&run["accelerator"], "emulated:QEMU TCG ", " (arm64, max, icount)");
    assert!(text(&run["cpu"]).contains("KVM in VHE mode"), "{run}");
    let again = json(&["lab", "run", "--host", "arm"]);
    assert_eq!(exits(&report), exits(&again));
    let (one, other) = (paths(&report), paths(&again));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (name, path) in &one {
        let varies = VARY.iter().any(|vary| name.starts_with(vary));
        let most = if varies { path * MOST } else { 0.0 };
        assert!((path - other[name]).abs() <= most, "{name}: {path} and {}", other[name]);
    }
}

/// A VM as wide as the processor allows ends after minutes there: Linux walks all that its addresses can be.
#[test]
fn the_newest_kernel_takes_the_same_exits() {
    if is_built() {
        assert_exits(&json(&["lab", "run", "--host", "arm", "--kernel", "debian:7.3"]), L1);
    }
}

/// Accesses of system registers of one operation.
fn registers(row: &Value) -> u64 {
    count(row, |exit| exit["reason"] == "SYS64") / row["count"].as_u64().unwrap()
}

/// Data aborts in all batches.
fn aborts(row: &Value) -> u64 {
    count(row, |exit| exit["reason"] == "DABT_LOW")
}

/// Page faults in all batches.
fn faults(row: &Value) -> u64 {
    count(row, |exit| exit["detail"]["kind"] == "page-fault")
}

/// A run in which a guest counts another number of instructions than it executed, or gets no interrupt of its counter, fails.
#[test]
fn counters_of_kvm_on_arm64_are_exact_and_cost_the_same_in_each_run() {
    if !is_built() {
        return;
    }
    let suite =
        |kernel: &str| json(&["lab", "run", "--host", "arm", "--kernel", kernel, "--suite", "pmu"]);
    let report = suite("debian:6.1");
    assert_exits(&report, COUNTERS);
    let registers = |name| registers(row(&report, name));
    assert_eq!(["vpmu-switch-out", "vpmu-switch-in", "vpmu-sample"].map(registers), [26, 35, 9]);
    let (one, other) = (paths(&report), paths(&suite("debian:6.1")));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    for (name, path) in &one {
        let creates = CREATE.iter().any(|one| name.starts_with(one));
        let most = if creates { path * 0.05 } else { 0.0 };
        assert!((path - other[name]).abs() <= most, "{name}: {path} and {}", other[name]);
    }
    let newest = suite("debian:7.3");
    assert_exits(&newest, COUNTERS);
    // Exits are longer there.
    assert!(paths(&newest)["vpmu-pmcr-read L1"] > one["vpmu-pmcr-read L1"] * 1.5);
}

/// The part of an operation's instructions that is below a function of the host.
fn share_of(trees: &Trees, name: &str, function: &str) -> f64 {
    let tree = &trees[&format!("{name} L1")];
    let within =
        |stack: &[String]| stack.iter().any(|one| one.strip_prefix("L0 ") == Some(function));
    let below: u64 = tree.iter().filter(|(stack, _)| within(stack)).map(|(_, count)| *count).sum();
    below as f64 / tree.iter().map(|(_, count)| *count).sum::<u64>() as f64
}

/// The kept trees have the shares of the table in docs/measured/vpmu-arm64.md: create, release, enable, disable, entry and exit.
#[test]
fn the_kept_trees_of_counters_are_those_of_the_docs() {
    const FUNCTIONS: [&str; 5] = [
        "perf_event_create_kernel_counter",
        "perf_event_release_kernel",
        "perf_event_enable",
        "perf_event_disable",
        "__kvm_vcpu_run_vhe",
    ];
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let trees = trees(&format!("{root}/captures/pmu-arm64"));
    let docs = fs::read_to_string(format!("{root}/docs/measured/vpmu-arm64.md")).unwrap();
    for name in [
        "vpmu-evtyper",
        "vpmu-evcntr-write",
        "vpmu-counter-on",
        "vpmu-all-on",
        "vpmu-switch-out",
        "vpmu-switch-in",
        "vpmu-sample",
    ] {
        let shares = FUNCTIONS.map(|function| match share_of(&trees, name, function) {
            0.0 => "0".to_owned(),
            share => format!("{:.0} %", share * 100.0),
        });
        let row = format!("| `{name}` | {} |", shares.join(" | "));
        assert!(docs.contains(&row), "{row}");
    }
}

/// Where KVM creates an event of perf for a counter of the guest, and where it only starts one.
#[test]
fn trees_show_where_kvm_creates_events() {
    if !is_built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let operations = "vpmu-evtyper,vpmu-evcntr-write,vpmu-all-on,vpmu-switch-in,vpmu-evcntr-read";
    let on_arm = ["lab", "run", "--host", "arm", "--kernel", "debian:6.1"];
    let report =
        json(&[&on_arm[..], &["--operation", operations, "--profile", "-o", run]].concat());
    let trees = trees(run);
    assert_adds_up(&report, &trees);
    assert_all_named(&trees);
    let share = |name: &str, function: &str| share_of(&trees, name, function);
    const CREATES: &str = "perf_event_create_kernel_counter";
    for name in ["vpmu-evtyper", "vpmu-evcntr-write", "vpmu-switch-in"] {
        assert!(share(name, CREATES) > 0.1, "{name}: {}", share(name, CREATES));
    }
    for name in ["vpmu-all-on", "vpmu-evcntr-read"] {
        assert_eq!(share(name, CREATES), 0.0, "{name}");
    }
    assert!(share("vpmu-all-on", "perf_event_enable") > 0.8);
}

/// A thread of a Linux guest that has six events is switched out and in as the bare guest does it; without events no register of the PMU is accessed, and
/// what perf costs grows with its events and its rate.
#[test]
fn perf_in_a_linux_guest_of_arm64_takes_the_accesses_of_its_driver() {
    if !is_built() {
        return;
    }
    let operations = "linux-none,linux-stat-6,linux-record-1k,linux-turn,linux-turn-1,linux-turn-6";
    let report = json(&["lab", "run", "--host", "arm", "--operation", operations]);
    let registers = |name| registers(row(&report, name));
    assert_eq!(["linux-none", "linux-turn", "linux-turn-6"].map(registers), [0, 0, 26 + 35]);
    let paths = paths(&report);
    let path = |name: &str| paths[&format!("{name} L1")];
    assert!(path("linux-none") < path("linux-stat-6"), "{paths:?}");
    assert!(path("linux-stat-6") < path("linux-record-1k"), "{paths:?}");
    assert!(path("linux-turn") * 2.0 < path("linux-turn-1"), "{paths:?}");
    assert!(path("linux-turn-1") * 2.0 < path("linux-turn-6"), "{paths:?}");
}

/// GiB by which a VM of 44 bits is wider than one of 40.
const WIDER: f64 = 15_360.0;

/// Steps that are not exits have paths of instructions and wait apart, on each of these kernels. The newest walks each GiB that a VM's addresses
/// can be when the VM ends, where the one before looks at its tables alone.
#[test]
fn lives_of_vms_have_their_steps_on_arm64() {
    if !is_built() {
        return;
    }
    let steps = |kernel: &str| {
        json(&["lab", "run", "--host", "arm", "--kernel", kernel, "--suite", "start"])
    };
    let (old, new) = (paths(&steps("debian:6.12")), steps("debian:7.3"));
    let row = |name: &str| row(&new, name);
    let waits = |name: &str| row(name)["waited"]["median"].as_f64().unwrap_or_default();
    // 7d9a0273c459, as on x86.
    assert!(waits("ioeventfd-deassign") > 1e6 && waits("ioeventfd") == 0.0, "{new}");
    let functions = row("ioeventfd-deassign")["waited"]["places"][0]["functions"].to_string();
    let expected =
        "\"__synchronize_srcu\",\"synchronize_srcu_expedited\",\"kvm_io_bus_unregister_dev\"";
    assert!(functions.contains(expected), "{functions}");
    // The store to a device, and stores to 256 pages.
    let aborts = |name| aborts(row(name));
    assert_eq!(["run-first", "run-again", "faults-256"].map(aborts), [1, 1, 257], "{new}");
    let new = paths(&new);
    assert_eq!(old.keys().collect::<Vec<_>>(), new.keys().collect::<Vec<_>>());
    for own in ["create-gic L1", "vcpu-init L1", "run-first L1", "start-memory-first L1"] {
        assert!(old.contains_key(own), "{old:?}");
    }
    assert!(!old.contains_key("set-cpuid L1"));
    let more = |paths: &BTreeMap<String, f64>| {
        (paths["destroy-wide L1"] - paths["destroy-empty L1"]) / WIDER
    };
    assert!(more(&old) < 1.0 && (200.0..300.0).contains(&more(&new)), "{old:?} {new:?}");
}

/// Data aborts for 2,048 pages, by the way in which they come: a page that is read and then written is mapped, unmapped and mapped again.
#[test]
fn resumed_memory_faults_on_arm64_as_on_x86() {
    if !is_built() {
        return;
    }
    let operations = RESUMED.map(|(name, _)| name).join(",");
    let run = ["lab", "run", "--host", "arm", "--kernel", "debian:6.12", "--operation"];
    let report = json(&[&run[..], &[operations.as_str()]].concat());
    for (name, expected) in RESUMED {
        let row = row(&report, name);
        assert_eq!(aborts(row), expected, "{row}");
    }
}

const RESUMED: [(&str, u64); 6] = [
    ("resume-private-read", 2_048),
    ("resume-private-read-write", 6_144),
    ("resume-private-populated-read", 2_048),
    ("resume-shared-write", 2_048),
    ("resume-uffd-64k-read", 2_048),
    ("resume-hugetlb-write", 4),
];

/// Folder of the QEMU of Debian's backports, whose processor has FEAT_NV2.
pub(crate) fn newer_qemu() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let caches = [Some(cache()), home].into_iter().flatten();
    let folders = caches.map(|cache| cache.join("vmtax/second-qemu-trixie-arm/usr/bin"));
    let found = folders.into_iter().find(|folder| folder.exists());
    if found.is_none() {
        vmtax_skipped::system("there is no second QEMU: crates/lab/second-qemu.sh trixie arm");
    }
    found
}

/// What a run on the host that nests gives, with that QEMU first on PATH.
fn with_qemu(folder: &Path, arguments: &[&str]) -> Value {
    let run = ["lab", "run", "--host", "arm", "--kernel", "debian:7.3", "--format", "json"];
    let mut command: Command = vmtax(&[&run[..], arguments].concat());
    parsed(&command.env("PATH", path_with(folder)).output().unwrap())
}

/// PATH with this folder first.
pub(crate) fn path_with(folder: &Path) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder.to_path_buf()).chain(std::env::split_paths(&path));
    std::env::join_paths(folders).unwrap()
}

/// Of two boots of a host that nests an operation at L2 has one of two lengths, 451 to 504 instructions of some 57,000 apart (docs/measured/arm-modes.md).
const BOOTS: f64 = 0.01;

/// Two boots of a host that nests.
#[test]
fn the_newest_kernel_nests_exactly_on_a_newer_qemu() {
    let Some(qemu) = newer_qemu().filter(|_| is_built()) else { return };
    let operations = ["--nested", "--operation", "hvc-psci,smc-psci,id-register,actlr,oslar"];
    let one = with_qemu(&qemu, &operations);
    assert!(text(&one["run"]["cpu"]).contains("KVM in VHE+NV2 mode"), "{}", one["run"]);
    // What KVM in L1 does for each exit of L2.
    let back = "L1 ERET 1, L1 SYS64 ICH_MISR_EL2 1, L1 SYS64 MDSCR_EL1 3";
    let nested = |l2: &str| format!("{back}, L2 {l2}");
    let expected = [
        ("hvc-psci L1", "L1 HVC64 PSCI_VERSION 1".to_owned()),
        ("id-register L1", "L1 SYS64 ID_AA64MMFR0_EL1 1".to_owned()),
        ("hvc-psci L2", nested("HVC64 PSCI_VERSION 1")),
        ("smc-psci L2", nested("SMC64 1")),
        ("id-register L2", nested("SYS64 ID_AA64MMFR0_EL1 1")),
        ("actlr L2", nested("SYS64 ACTLR_EL1 1")),
    ];
    let expected: Vec<(&str, &str)> =
        expected.iter().map(|(name, exits)| (*name, exits.as_str())).collect();
    assert_exits(&one, &expected);
    let found = paths(&one);
    let factor = found["hvc-psci L2"] / found["hvc-psci L1"];
    assert!((25.0..40.0).contains(&factor), "{factor}: {found:?}");
    let again = with_qemu(&qemu, &operations);
    assert_eq!(exits(&one), exits(&again));
    assert_within(&paths(&one), &paths(&again), BOOTS);
}

/// L1 runs L0's kernel at the same addresses. What L0 does for an instruction of L1 is below it, and what L1 does is below L2's.
#[test]
fn trees_of_l2_on_arm64_have_l0_and_l1_apart() {
    let Some(qemu) = newer_qemu().filter(|_| is_built()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let operations = ["--nested", "--operation", "hvc-psci,id-register,mmio-read"];
    let plain = with_qemu(&qemu, &operations);
    let profiled = with_qemu(&qemu, &[&operations[..], &["--profile", "-o", run]].concat());
    assert_eq!(exits(&plain), exits(&profiled));
    assert_within(&paths(&plain), &paths(&profiled), BOOTS);
    let trees = trees(run);
    assert_eq!(trees.len(), 6);
    assert_adds_up(&profiled, &trees);
    assert_all_named(&trees);
    const OF_L1: [&str; 3] = ["L2 payload", "L2 [hvc]", "L1 kvm_arch_vcpu_ioctl_run"];
    const OF_L0: &str = "L0 kvm_arch_vcpu_ioctl_run";
    let nested = &trees["hvc-psci L2"];
    assert!(below(nested, &[&OF_L1[..], &["L1 handle_exit", "L1 handle_hvc"]].concat()) > 20 * 20);
    for exit in ["L1 [eret]", "L1 [mrs ICH_MISR_EL2]", "L1 [msr MDSCR_EL1]", "L1 [mrs MDSCR_EL1]"] {
        let frames = [&OF_L1[..], &[exit, OF_L0]].concat();
        assert!(below(nested, &frames) > 20 * 1_000, "{exit}: {nested:?}");
    }
    // L0 hands L2's exit to L1 before that runs, and enters L2 for its ERET.
    assert!(below(nested, &["L2 [hvc]", OF_L0, "L0 kvm_inject_nested_sync"]) > 20 * 20);
    assert!(below(nested, &["L1 [eret]", OF_L0, "L0 kvm_emulate_nested_eret"]) > 20 * 20);
    assert_eq!(below(nested, &["L1 kvm_emulate_nested_eret"]), 0);
    assert!(below(&trees["mmio-read L2"], &["L2 [memory access]", "L1 [program]"]) > 20 * 100);
    // At L1 there is no other level.
    assert!(
        trees["hvc-psci L1"]
            .iter()
            .all(|(stack, _)| !stack.iter().any(|one| one.starts_with("L2 ")))
    );
}

/// A bare hypervisor's instructions, and registers that the processor keeps in memory.
#[test]
fn instructions_of_a_hypervisor_at_el2_take_their_exits() {
    let Some(qemu) = newer_qemu().filter(|_| is_built()) else { return };
    let report = with_qemu(&qemu, &["--suite", "nested-ops"]);
    let expected = [
        ("eret L1", "L1 ERET 1, L2 HVC64 1"),
        ("mdcr-read L1", "L1 SYS64 MDCR_EL2 1"),
        ("ich-misr-read L1", "L1 SYS64 ICH_MISR_EL2 1"),
        ("cntv-ctl-el02 L1", "L1 SYS64 CNTV_CTL_EL02 1"),
        ("ich-lr-write L1", ""),
        ("cntvoff-write L1", ""),
        ("vttbr-read L1", ""),
    ];
    assert_exits(&report, &expected);
}

/// Exits of one operation in a protected VM of pKVM that have an event, and those that the emulator counted beside them.
const PROTECTED: &[(&str, &str, &str)] = &[
    ("hvc-psci", "HVC64 PSCI_VERSION 1", ""),
    ("mmio-read", "DABT_LOW 1", ""),
    ("id-register", "", "SYS64 1"),
    ("touch-4k", "DABT_LOW 1", ""),
    ("tlbi", "", ""),
];

/// Two boots. Code at EL2 answers reads of ID registers itself, so that no tracer sees their exits.
#[test]
fn exits_of_a_protected_vm_are_counted_where_no_tracer_sees_them() {
    let Some(qemu) = newer_qemu().filter(|_| is_built()) else { return };
    let names: Vec<&str> = PROTECTED.iter().map(|(name, ..)| *name).collect();
    let operations = names.join(",");
    let run =
        |flags: &[&str]| with_qemu(&qemu, &[flags, &["--operation", operations.as_str()]].concat());
    let (one, again) = (run(&["--protected"]), run(&["--protected"]));
    let run_facts = &one["run"];
    assert!(text(&run_facts["cpu"]).contains("KVM in Protected "), "{run_facts}");
    assert!(one.to_string().contains("protected VMs are experimental in this kernel"), "{one}");
    let l1 = |exits: &str| if exits.is_empty() { String::new() } else { format!("L1 {exits}") };
    let expected: Vec<(String, String)> =
        PROTECTED.iter().map(|(name, seen, _)| (format!("{name} L1"), l1(seen))).collect();
    let expected: Vec<(&str, &str)> =
        expected.iter().map(|(name, exits)| (name.as_str(), exits.as_str())).collect();
    assert_exits(&one, &expected);
    for (name, _, unseen) in PROTECTED {
        assert_eq!(hidden(&one, name), *unseen, "{name}");
    }
    assert_eq!(exits(&one), exits(&again));
    let (paths_of_one, paths_again) = (paths(&one), paths(&again));
    for (name, path) in &paths_of_one {
        let varies = VARY.iter().any(|vary| name.starts_with(vary));
        let most = path * if varies { MOST } else { 0.005 };
        assert!((path - paths_again[name]).abs() <= most, "{paths_of_one:?} {paths_again:?}");
    }
    // An ordinary VM of the same host: the host's kernel handles that exit.
    let ordinary = run(&["--option", "kvm-arm.mode=protected"]);
    assert_exits(&ordinary, &[("id-register L1", "L1 SYS64 ID_AA64MMFR0_EL1 1")]);
    assert_eq!(hidden(&ordinary, "id-register"), "");
    let ordinary = paths(&ordinary)["id-register L1"];
    assert!(ordinary > 5.0 * paths_of_one["id-register L1"], "{ordinary} {paths_of_one:?}");
}

/// Exits of one operation that have no event: `SYS64 1`.
fn hidden(report: &Value, name: &str) -> String {
    let row = row(report, name);
    let of = row["count"].as_f64().unwrap();
    let hidden = row["hidden"].as_array().unwrap_or_else(|| panic!("{row}")).iter();
    let each = hidden.map(|one| {
        let count = one["count"].as_f64().unwrap();
        format!("{} {}", text(&one["reason"]), count / of)
    });
    each.collect::<Vec<_>>().join(", ")
}

/// One Linux boots in an ordinary and in a protected VM of the same host: what differs are its page faults, as a protected VM has pages of 4 KiB.
#[test]
fn linux_boots_in_a_protected_vm_with_a_fault_for_each_small_page() {
    let Some(qemu) = newer_qemu().filter(|_| is_built()) else { return };
    let boot = |flags: &[&str]| {
        let report = with_qemu(&qemu, &[&["--suite", "boot"][..], flags].concat());
        let row = row(&report, "boot-linux");
        assert_eq!(row["recorded"], true);
        (faults(row), count(row, |exit| ["SYS64", "HVC64"].contains(&text(&exit["reason"]))))
    };
    let (ordinary, of_ordinary) = boot(&["--option", "kvm-arm.mode=protected"]);
    let (protected, of_protected) = boot(&["--protected"]);
    // 256 MiB are 128 pages of 2 MiB, and 65,536 of 4 KiB, a quarter of which the guest touches.
    assert!((1..=128).contains(&ordinary), "{ordinary}");
    assert!((13_000..20_000).contains(&(protected - ordinary)), "{protected} {ordinary}");
    // Of system registers EL2 answers most by itself.
    assert!(of_protected < of_ordinary, "{of_protected} {of_ordinary}");
}

/// A program touches memory that its guest never used, and sleeps, in an ordinary and in a protected VM of the same host. Code at EL2 gives a guest its FP registers, which no
/// tracer sees, and has less to do for a protected one.
#[test]
fn workloads_of_a_protected_linux_guest_fault_for_each_small_page() {
    let Some(qemu) = newer_qemu().filter(|_| is_built()) else { return };
    let run = |flags: &[&str], operations: &str| {
        with_qemu(&qemu, &[flags, &["--operation", operations]].concat())
    };
    let faults = |row: &Value| faults(row) as f64 / row["count"].as_f64().unwrap();
    let unseen = |row: &Value| {
        let hidden = row["hidden"].as_array().unwrap().iter();
        let of_fp = hidden.filter(|one| one["reason"] == "FP_ASIMD");
        of_fp.map(|one| one["count"].as_f64().unwrap()).sum::<f64>()
            / row["count"].as_f64().unwrap()
    };
    let at_el2 = |row: &Value| row["at_el2"].as_f64().unwrap();
    let ordinary_flags = ["--option", "kvm-arm.mode=protected"];
    let [ordinary, protected] = [&ordinary_flags[..], &["--protected"]].map(|flags| {
        ["linux-touch-new", "linux-timer"].map(|name| row(&run(flags, name), name).clone())
    });
    // A few of its pages are some that the kernel used and gave back.
    assert!(faults(&ordinary[0]) < 0.01, "{}", ordinary[0]);
    assert!((0.7..1.01).contains(&faults(&protected[0])), "{}", protected[0]);
    assert!(path(&protected[0]) > 2.0 * path(&ordinary[0]), "{} {}", ordinary[0], protected[0]);
    for sleep in [&ordinary[1], &protected[1]] {
        assert!((1.0..1.1).contains(&unseen(sleep)), "{sleep}");
    }
    // As call trees have it of a hypercall: 12,672 and 1,568.
    assert!((11_000.0..16_000.0).contains(&at_el2(&ordinary[1])), "{}", ordinary[1]);
    assert!((1_500.0..3_000.0).contains(&at_el2(&protected[1])), "{}", protected[1]);
    // The host's kernel is at EL2 itself.
    let plain = run(&[], "linux-timer");
    assert!(plain["operations"]["rows"][0].get("at_el2").is_none(), "{plain}");
}

/// The kept runs of both, which captures/pkvm-boot describes.
#[test]
fn the_kept_boots_differ_by_memory_faults() {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures/pkvm-boot"));
    let [ordinary, protected] =
        ["ordinary", "protected"].map(|name| folder.join(name).to_str().unwrap().to_owned());
    let diff = json(&["diff", &ordinary, &protected]);
    let rows = diff["tables"][0]["rows"].as_array().unwrap();
    let counts: BTreeMap<&str, [u64; 2]> = rows
        .iter()
        .map(|row| {
            let count = |side: &str| row[side]["count"].as_u64().unwrap();
            (text(&row["cause"]), [count("base"), count("other")])
        })
        .collect();
    let expected = [
        ("device-mmio", [2_065, 2_065]),
        ("host-interrupt", [155, 170]),
        ("hypercall", [23, 22]),
        ("ipi", [1, 1]),
        ("memory-fault", [42, 16_394]),
        ("sysreg", [106, 25]),
    ];
    assert_eq!(counts, BTreeMap::from(expected));
    let verdict = text(&diff["verdict"]);
    assert!(verdict.contains("Most of the difference is memory-fault"), "{verdict}");
    // Half of the regions of 2 MiB that a protected VM touches fault more often than they have pages of 16 KiB.
    for (run, by_faults) in
        [(&ordinary, None), (&protected, Some("regions of 2 MiB faulted 129 times"))]
    {
        let explained = json(&["explain", run]);
        let findings = explained["findings"].as_array().unwrap();
        let small = findings.iter().find(|one| one["id"] == "small-pages");
        assert_eq!(small.is_some(), by_faults.is_some(), "{explained}");
        let evidence = small.map(|one| one["evidence"].to_string()).unwrap_or_default();
        assert!(evidence.contains(by_faults.unwrap_or_default()), "{evidence}");
    }
}

/// Kernels, processors and operations without protected VMs.
#[test]
fn where_there_are_no_protected_vms_it_is_said() {
    if !is_built() {
        return;
    }
    let lab = ["lab", "run", "--host", "arm", "--protected", "--kernel", "debian:6.12"];
    let (code, words) = refused(&[&lab[..], &["--operation", "hvc-psci"]].concat());
    assert_ne!(code, 0);
    assert!(words.contains("makes no protected VMs") && words.contains("Linux 7.3"), "{words}");
    for (flags, said) in [
        (&["--host", "amd", "--protected"][..], "cannot be had on --host amd; use one of arm"),
        (
            &["--host", "arm", "--protected", "--suite", "start"],
            "is nothing that a protected VM does",
        ),
        (&["--host", "arm", "--protected", "--option", "kvm-arm.mode=nvhe"], "leave out --option"),
    ] {
        let (code, words) = refused(&[&["lab", "run"], flags].concat());
        assert_eq!(code, 2, "{words}");
        assert!(words.contains(said), "{words}");
    }
}

/// Without FEAT_NV2 there is no L1, and the error says what it takes.
#[test]
fn a_processor_that_cannot_nest_is_named() {
    if !is_built() {
        return;
    }
    let installed = Command::new("qemu-system-aarch64").arg("--version").output();
    let version = String::from_utf8(installed.unwrap().stdout).unwrap();
    if !version.contains("version 7.") {
        return vmtax_skipped::system("the installed QEMU is newer than 7");
    }
    let (code, words) = refused(&["lab", "run", "--host", "arm", "--nested", "--fresh"]);
    assert_ne!(code, 0);
    assert!(words.contains("FEAT_NV2") && words.contains("second-qemu.sh trixie arm"), "{words}");
}

/// Operations whose trees are looked at.
const PROFILED: &str =
    "hvc-psci,mmio-read,touch-4k,map-4k,id-register,oslar,sgi-self,timer-irq,timer-sleep";

/// Every instruction is at a function of a level's kernel, at a program or at the payload: none is where its level has no code.
pub(crate) fn assert_all_named(trees: &Trees) {
    for (name, tree) in trees {
        let unknown: Vec<_> = tree
            .iter()
            .filter(|(stack, _)| stack.iter().any(|one| one.contains("[unknown]")))
            .collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
    }
}

/// The emulator's clock is its own count of instructions: a tree has as many, exactly, and recording them adds none.
#[test]
fn trees_of_arm64_operations_add_up_with_and_without_vhe() {
    if !is_built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (mode, of_el2) in [("vhe", false), ("nvhe", true), ("protected", true)] {
        let run = folder.path().join(mode);
        let run = run.to_str().unwrap();
        let option = format!("kvm-arm.mode={mode}");
        let mut arguments = vec!["lab", "run", "--host", "arm", "--operation", PROFILED];
        if of_el2 {
            arguments.extend(["--option", &option]);
        }
        let plain = paths(&json(&arguments));
        let report = json(&[&arguments[..], &["--profile", "-o", run]].concat());
        for (name, path) in paths(&report) {
            let varies = VARY.iter().any(|vary| name.starts_with(vary));
            let most = if varies { path * MOST } else { 0.0 };
            assert!(
                (path - plain[&name]).abs() <= most,
                "{mode}: {name}: {path} and {}",
                plain[&name]
            );
        }
        let trees = trees(run);
        assert_eq!(trees.len(), PROFILED.split(',').count());
        assert_adds_up(&report, &trees);
        assert_all_named(&trees);
        assert_functions(&trees, of_el2);
    }
}

/// What each operation must execute, by KVM's sources.
fn assert_functions(trees: &Trees, of_el2: bool) {
    const RUN: &str = "L0 kvm_arch_vcpu_ioctl_run";
    let entry = if of_el2 { "L0 __kvm_nvhe___guest_enter" } else { "L0 __guest_enter" };
    for (name, cause, functions) in [
        ("hvc-psci L1", "L1 [hvc]", &["L0 handle_exit", "L0 handle_hvc"][..]),
        ("mmio-read L1", "L1 [memory access]", &["L0 kvm_handle_guest_abort", "L0 io_mem_abort"]),
        ("touch-4k L1", "L1 [memory access]", &["L0 kvm_handle_guest_abort"]),
        ("map-4k L1", "L1 [memory access]", &["L0 kvm_handle_guest_abort"]),
        ("id-register L1", "L1 [mrs ID_AA64MMFR0_EL1]", &["L0 kvm_handle_sys_reg"]),
        ("oslar L1", "L1 [msr OSLAR_EL1]", &["L0 kvm_handle_sys_reg"]),
        ("timer-sleep L1", "L1 [wfi]", &["L0 kvm_handle_wfx"]),
    ] {
        let tree = &trees[name];
        for function in functions {
            let frames = ["L1 payload", cause, RUN, function];
            assert!(below(tree, &frames) > 20 * 10, "{name}: {function} in {tree:?}");
        }
        assert!(below(tree, &["L1 payload", cause, RUN, entry]) > 20 * 5, "{name}");
    }
    // A guest at EL1 is entered from EL2, where the kernel without VHE calls.
    let of_host = ["L1 [hvc]", RUN, "L0 __kvm_nvhe_handle_trap", entry];
    assert_eq!(below(&trees["hvc-psci L1"], &of_host) > 0, of_el2);
    // The VMM answers for its device.
    assert!(below(&trees["mmio-read L1"], &["L1 [memory access]", "L0 [program]"]) > 20 * 100);
    assert_eq!(below(&trees["hvc-psci L1"], &["L0 [program]"]), 0);
}

/// The newest kernel is not saved, and its trees are those of a host that is booted while it is recorded.
#[test]
fn trees_of_a_host_that_is_not_saved_add_up() {
    if !is_built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let operations = "hvc-psci,mmio-read,touch-4k";
    let arguments =
        ["lab", "run", "--host", "arm", "--kernel", "debian:7.3", "--operation", operations];
    let report = json(&[&arguments[..], &["--profile", "-o", run]].concat());
    let trees = trees(run);
    assert_adds_up(&report, &trees);
    assert_all_named(&trees);
    assert!(
        below(&trees["touch-4k L1"], &["L1 [memory access]", "L0 kvm_handle_guest_abort"])
            > 20 * 500
    );
}

#[test]
fn what_the_arm64_host_cannot_do_is_refused() {
    let (code, words) = refused(&["lab", "run", "--host", "arm", "--operation-file", "none"]);
    assert_eq!(code, 2, "{words}");
    assert!(words.contains("cannot be had on --host arm; use one of amd,"), "{words}");
    let (code, words) = refused(&["lab", "run", "--host", "arm", "--observe", "true"]);
    assert_eq!(code, 3, "{words}");
    assert!(words.contains("true: is no program of arm64, and the host is arm64; give"), "{words}");
}
