//! Call trees of real operations: each has one, it adds up, and it says what is known of the operation.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::record::stripped;
use crate::run::{
    assert_close, assert_exits, assert_versioned, json, paths, printed, refused, text,
};

/// Instructions by stack of each operation: `cpuid L2`.
pub(crate) type Trees = BTreeMap<String, Vec<(Vec<String>, u64)>>;

pub(crate) fn trees(run: &str) -> Trees {
    let mut trees = Trees::new();
    for line in printed(&["report", run, "--format", "folded"]).lines() {
        let (stack, weight) = line.rsplit_once(' ').unwrap();
        let mut frames = stack.split(';').map(str::to_owned);
        let name = frames.next().unwrap();
        trees.entry(name).or_default().push((frames.collect(), weight.parse().unwrap()));
    }
    trees
}

/// Instructions of the stacks with these frames in this order, with any frames in between.
pub(crate) fn below(tree: &[(Vec<String>, u64)], frames: &[&str]) -> u64 {
    let has = |stack: &[String]| {
        let mut left = stack.iter();
        frames.iter().all(|frame| left.any(|one| one == frame))
    };
    tree.iter().filter(|(stack, _)| has(stack)).map(|(_, weight)| weight).sum()
}

/// Each operation with a path has as many instructions in its tree, exactly.
pub(crate) fn assert_adds_up(report: &Value, trees: &Trees) {
    for row in report["operations"]["rows"].as_array().unwrap() {
        let name = format!("{} {}", text(&row["name"]), text(&row["level"]));
        let tree = trees.get(&name).unwrap_or_else(|| panic!("{name} has no call tree"));
        let sum: u64 = tree.iter().map(|(_, weight)| weight).sum();
        let Some(path) = row["path"]["median"].as_f64() else { continue };
        let of_one = sum as f64 / row["count"].as_f64().unwrap();
        assert!((of_one - path).abs() < 1e-9 * path.max(1.0), "{name}: tree {of_one}, path {path}");
    }
    let notes = report["losses"]["notes"].as_array().unwrap();
    assert!(!notes.iter().any(|note| text(note).contains("call tree")), "{notes:?}");
}

/// Recording adds no instruction. Paths of any two runs differ a little, with and without it: a machine waits for its disk while the computer works, so it goes
/// on at another moment, its kernel has other objects at other addresses, and checks of an address take an instruction more or less. The two threads of
/// `context-switch` take turns by the time.
fn assert_unchanged(plain: &Value, profiled: &Value) {
    let (mut plain, mut profiled) = (paths(plain), paths(profiled));
    for paths in [&mut plain, &mut profiled] {
        paths.retain(|name, _| !name.starts_with("context-switch"));
        assert!(paths.contains_key("cpuid L1") && paths.contains_key("cpuid L2"));
    }
    assert_close(&plain, &profiled);
    for paths in [&mut plain, &mut profiled] {
        // A first touch takes pages from the kernel's lists.
        paths.retain(|name, _| !name.starts_with("touch-"));
    }
    let off = |(name, path): &(&String, &f64)| (*path - profiled[*name]).abs() > 0.001 * *path;
    let off: Vec<_> = plain.iter().filter(off).collect();
    assert!(off.is_empty(), "{off:?} with {profiled:?}");
}

#[test]
fn every_operation_has_a_tree_that_adds_up() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let operations =
        "cpuid,wrmsr,touch-4k,mmio-user,hlt-timer,ud2,context-switch,vmrun,ring-bounced";
    let arguments = ["lab", "run", "--nested", "--operation", operations];
    let plain = json(&arguments);
    let report = json(&[&arguments[..], &["--profile", "-o", run]].concat());
    let trees = trees(run);
    assert_adds_up(&report, &trees);
    assert_unchanged(&plain, &report);

    let cpuid = &trees["cpuid L1"];
    let sum: u64 = cpuid.iter().map(|(_, weight)| weight).sum();
    assert_eq!(below(cpuid, &["L1 payload", "L1 [cpuid]", "L0 kvm_arch_vcpu_ioctl_run"]), sum);
    assert!(below(cpuid, &["L0 kvm_emulate_cpuid"]) > 0);
    let nested = &trees["cpuid L2"];
    for exit in ["L1 [vmload]", "L1 [vmsave]", "L1 [vmrun]", "L1 [rdmsr]"] {
        let frames =
            ["L2 [cpuid]", "L1 kvm_arch_vcpu_ioctl_run", exit, "L0 kvm_arch_vcpu_ioctl_run"];
        assert!(below(nested, &frames) > 5 * 2000, "{exit}");
    }
    assert!(below(nested, &["L2 [cpuid]", "L0 nested_svm_vmexit"]) > 0);
    // Two vCPUs, two threads, at both levels.
    for level in ["L1", "L2"] {
        let tree = &trees[&format!("context-switch {level}")];
        for vcpu in ["vCPU 0", "vCPU 1"] {
            let payload = format!("{level} payload");
            assert!(
                below(tree, &[vcpu, &payload, &format!("{level} [wrmsr]")]) > 0,
                "{level} {vcpu}"
            );
        }
    }
    // What waits has a tree too.
    assert!(below(&trees["hlt-timer L1"], &["L1 [hlt]", "L0 kvm_vcpu_halt"]) > 0);

    formats(run);
}

/// What an observer adds is in the tree, by its own functions, and the difference to a run without it is all that it adds.
#[test]
fn the_observers_functions_are_in_the_tree() {
    let folder = tempfile::tempdir().unwrap();
    let program = stripped(folder.path());
    let [plain, observed] = ["plain", "observed"].map(|name| folder.path().join(name));
    let [plain, observed] = [&plain, &observed].map(|path| path.to_str().unwrap());
    let arguments = ["lab", "run", "--operation", "cpuid", "--profile", "-o"];
    let alone = json(&[&arguments[..], &[plain]].concat());
    let observer = format!("{} record -o run", program.display());
    let report = json(&[&arguments[..], &[observed, "--observe", &observer]].concat());
    let trees = trees(observed);
    assert_adds_up(&report, &trees);
    let cpuid = &trees["cpuid L1"];
    let has = |part: &str| cpuid.iter().any(|(stack, _)| stack.last().unwrap().contains(part));
    for part in ["_on_kvm_exit", "_on_kvm_cpuid", "_on_kvm_entry", "L0 bpf_trace_run2"] {
        assert!(has(part), "{part}: {cpuid:?}");
    }
    let compared = printed(&["lab", "compare", plain, observed, "--format", "json"]);
    let compared: Value = serde_json::from_str(&compared).unwrap();
    let functions = &compared["rows"][0]["runs"][1]["functions"];
    let lines = functions.as_array().unwrap_or_else(|| panic!("{compared}"));
    let sum: f64 = lines.iter().map(|line| line["delta"].as_f64().unwrap()).sum();
    let added = paths(&report)["cpuid L1"] - paths(&alone)["cpuid L1"];
    assert!(added > 500.0 && (sum - added).abs() < 1e-6, "{added} {sum}");
}

/// The tables of the recorder's own instructions, and of programs that do nothing, in docs/measured/record-overhead.md are those of the kept comparison.
#[test]
fn the_recorders_parts_are_computed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/measured/record-overhead.md")).unwrap();
    for table in ["--of", "--nothing"] {
        let printed = Command::new("python3")
            .args(["benches/recorder", table, "captures/observer/vmtax-record.json"])
            .current_dir(&root)
            .output()
            .unwrap();
        assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
        let table = String::from_utf8(printed.stdout).unwrap();
        assert!(table.lines().count() > 5, "{table}");
        assert!(page.contains(&table), "{table}");
    }
}

/// What is read out of a run in other formats.
fn formats(run: &str) {
    let shown = printed(&["report", run, "--vm", "cpuid@L2"]);
    assert!(shown.contains("of which not on hardware"), "{shown}");
    assert!(shown.contains("VMLOAD and VMSAVE exits"), "{shown}");
    let by_level =
        printed(&["report", run, "--vm", "cpuid@L2", "--event", "functions", "--by", "level"]);
    assert!(by_level.contains("nested_svm_vmexit") && !by_level.contains("[vmload]"), "{by_level}");
    let csv = printed(&["report", run, "--event", "functions", "--format", "csv", "--vm", "cpuid"]);
    assert!(
        csv.starts_with(
            "operation,level,self,total,share,calls,code_level,kind,function,module\r\n"
        )
    );
    assert!(csv.contains("L0,function,kvm_emulate_cpuid,kvm\r\n"), "{csv}");
    let page = printed(&["report", run, "--format", "html", "--vm", "cpuid@L2"]);
    assert!(page.contains("L1 [vmload]"));
}

/// The same on the other emulator, whose record is another.
#[test]
fn the_intel_host_has_trees_that_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let operations = "cpuid,wrmsr,touch-4k,pio-user,hlt-timer,ud2,context-switch,vmresume";
    let arguments = ["lab", "run", "--host", "intel", "--nested", "--operation", operations];
    let plain = json(&arguments);
    let report = json(&[&arguments[..], &["--profile", "-o", run]].concat());
    let trees = trees(run);
    assert_adds_up(&report, &trees);
    assert_unchanged(&plain, &report);
    // KVM reads no memory of the guest for it.
    assert_eq!(paths(&plain)["cpuid L1"], paths(&report)["cpuid L1"]);
    let nested = &trees["cpuid L2"];
    for exit in ["L1 [vmresume]", "L1 [vmread]", "L1 [rdmsr]"] {
        let frames =
            ["L2 [cpuid]", "L1 kvm_arch_vcpu_ioctl_run", exit, "L0 kvm_arch_vcpu_ioctl_run"];
        assert!(below(nested, &frames) > 5 * 800, "{exit}");
    }
    assert!(below(nested, &["L2 [cpuid]", "L0 nested_vmx_vmexit"]) > 0);
    // The payload is a hypervisor itself.
    let vmresume = &trees["vmresume L1"];
    assert!(below(vmresume, &["L1 [vmresume]", "L0 nested_vmx_enter_non_root_mode"]) > 0);
    for vcpu in ["vCPU 0", "vCPU 1"] {
        assert!(below(&trees["context-switch L2"], &[vcpu, "L2 payload"]) > 0, "{vcpu}");
    }
    assert!(below(&trees["hlt-timer L1"], &["L1 [hlt]", "L0 kvm_vcpu_halt"]) > 0);
}

/// The second AMD host has next-RIP save, so KVM skips an instruction without a decode of it: the path is what QEMU's is without that part.
#[test]
fn the_amd_host_on_bochs_decodes_no_instruction() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let operations = "cpuid,rdmsr,pio-pit,touch-4k,xsetbv,ud2";
    let arguments = ["lab", "run", "--host", "amd-bochs", "--operation", operations];
    let report = json(&[&arguments[..], &["--profile", "-o", run]].concat());
    assert_versioned(&report["run"]["accelerator"], "emulated:Bochs ", " (ryzen)");
    let expected = [
        ("cpuid L1", "L1 cpuid 1"),
        ("rdmsr L1", "L1 msr IA32_APIC_BASE 1"),
        ("pio-pit L1", "L1 io PIT channel 0 1"),
        ("touch-4k L1", "L1 npf 1"),
        ("xsetbv L1", "L1 xsetbv 1"),
        ("ud2 L1", "L1 UD excp 1"),
    ];
    assert_exits(&report, &expected);
    let trees = trees(run);
    assert_adds_up(&report, &trees);
    for name in ["cpuid L1", "rdmsr L1", "xsetbv L1"] {
        assert_eq!(below(&trees[name], &["L0 x86_decode_insn"]), 0, "{name}");
    }
    assert!(below(&trees["cpuid L1"], &["L1 [cpuid]", "L0 kvm_emulate_cpuid"]) > 20 * 100);
    assert!(below(&trees["rdmsr L1"], &["L1 [rdmsr]", "L0 kvm_emulate_rdmsr"]) > 20 * 100);
    assert!(
        below(&trees["touch-4k L1"], &["L1 [memory access]", "L0 kvm_mmu_page_fault"]) > 20 * 100
    );
    let shown = printed(&["report", run]);
    assert!(!shown.contains("instruction decode"), "{shown}");
}

/// A kept run of all its operations: the exits of QEMU's host, XSETBV's besides, trees that are as long as the paths, and the paths of the table in the docs.
#[test]
fn a_kept_run_of_the_amd_host_on_bochs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/nrips");
    let run = folder.join("amd-bochs");
    let run = run.to_str().unwrap();
    let report = json(&["report", run]);
    assert_exits(&report, crate::amd::L1);
    assert_exits(&report, &[("xsetbv L1", "L1 xsetbv 1")]);
    let (paths, trees) = (paths(&report), trees(run));
    assert_eq!(trees.len(), 38);
    assert_adds_up(&report, &trees);
    let table = std::fs::read_to_string(folder.join("paths.csv")).unwrap();
    let rows: Vec<Vec<&str>> =
        table.lines().skip(1).map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 23);
    for row in rows {
        let [name, qemu, decode, bochs] = row[..] else { panic!("{row:?}") };
        let [qemu, decode, bochs] = [qemu, decode, bochs].map(|cell| cell.parse::<f64>().unwrap());
        let name = format!("{name} L1");
        assert!((paths[&name] - bochs).abs() < 1e-6, "{name}: {bochs}");
        if decode > 0.0 && name != "context-switch L1" {
            // Its path differs between runs: 1,877, 1,922.
            let bound = if name == "tsc-deadline L1" { 51.0 } else { 23.0 };
            assert!((qemu - decode - bochs).abs() <= bound, "{name}");
            assert_eq!(below(&trees[&name], &["L0 x86_decode_insn"]), 0, "{name}");
        }
    }
}

/// Its L2: exits of L2 and of L1, and L0's work under the instructions of L1 that cause it.
#[test]
#[ignore = "boots a nested host on Bochs; ./x soak runs it"]
fn the_amd_host_on_bochs_nests() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    let arguments = ["lab", "run", "--host", "amd-bochs", "--nested", "--profile", "-o", run];
    assert_nests(&json(&arguments), run);
}

/// A kept run of it.
#[test]
fn a_kept_nested_run_of_the_amd_host_on_bochs() {
    let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../../captures/nrips/amd-bochs-nested");
    let report = json(&["report", run]);
    assert_nests(&report, run);
    assert_eq!(paths(&report)["cpuid L2"], 21_337.0);
}

fn assert_nests(report: &Value, run: &str) {
    let trees = trees(run);
    assert_adds_up(report, &trees);
    let back = "L1 clgi 1, L1 msr IA32_DEBUGCTL 1, L1 stgi 1, L1 vmload 2, L1 vmrun 1, L1 vmsave 1";
    assert_exits(report, &[("cpuid L2", &format!("{back}, L2 cpuid 1"))]);
    let nested = &trees["cpuid L2"];
    for exit in ["vmrun", "vmload", "vmsave", "stgi", "clgi", "rdmsr"] {
        let exit = format!("L1 [{exit}]");
        let frames =
            ["L2 [cpuid]", "L1 kvm_arch_vcpu_ioctl_run", &exit, "L0 kvm_arch_vcpu_ioctl_run"];
        assert!(below(nested, &frames) > 5 * 1_000, "{exit}");
    }
    assert!(below(nested, &["L2 [cpuid]", "L0 nested_svm_vmexit"]) > 0);
    let shown = printed(&["report", run, "--vm", "cpuid@L2"]);
    for part in ["VMLOAD and VMSAVE exits", "STGI and CLGI exits"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!shown.contains("instruction decode"), "{shown}");
}

/// An option makes one path longer; the functions that do are named, and what they add is the difference, exactly.
#[test]
fn functions_that_differ_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (base, npt0, page) = (path("base"), path("npt0"), path("page.html"));
    let run = ["lab", "run", "--profile", "--operation", "cpuid,touch-4k", "-o"];
    printed(&[&run[..], &[&base]].concat());
    printed(&[&run[..], &[&npt0, "--option", "kvm_amd.npt=0"]].concat());
    let compare = ["lab", "compare", &base, &npt0];
    let shown = printed(&compare);
    let named = |line: &&str| line.starts_with("    npt0: +") || line.starts_with("    npt0: -");
    let lines: Vec<&str> = shown.lines().filter(named).collect();
    // Shadow paging handles the fault.
    assert_eq!(lines.len(), 2, "{shown}");
    assert!(lines[1].contains("L0 kvm_mmu_page_fault +"), "{shown}");
    let found = json(&compare);
    for row in found["rows"].as_array().unwrap() {
        let functions = row["runs"][1]["functions"].as_array().unwrap();
        let sum: f64 = functions.iter().map(|one| one["delta"].as_f64().unwrap()).sum();
        let path = |run: usize| row["runs"][run]["path"].as_f64().unwrap();
        assert!((sum - (path(1) - path(0))).abs() < 1e-6, "{row}");
        assert!(row["runs"][0]["functions"].is_null(), "{row}");
    }
    printed(&[&compare[..], &["--format", "html", "-o", &page]].concat());
    let page = std::fs::read_to_string(page).unwrap();
    assert!(
        page.contains("Where paths differ") && page.contains("<title>kvm_arch_vcpu_ioctl_run (")
    );
    // vmtax diff names the same functions.
    let diff = printed(&["diff", &base, &npt0]);
    for (name, line) in ["cpuid", "touch-4k"].iter().zip(&lines) {
        let same = format!("  {name} L1: {}", line.trim_start().trim_start_matches("npt0: "));
        assert!(diff.lines().any(|line| line == same), "{same}\n{diff}");
    }
    // A run is as long as itself, and no function differs.
    let same = printed(&["lab", "compare", &base, &base]);
    assert!(!same.contains("    base: "), "{same}");
}

#[test]
fn runs_without_call_trees() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let run = run.to_str().unwrap();
    printed(&["lab", "run", "--operation", "cpuid", "-o", run]);
    for format in ["folded", "pprof"] {
        let (code, said) = refused(&["report", run, "--format", format]);
        assert_eq!(code, 4, "{said}");
        assert!(said.contains("has no call trees"), "{said}");
    }
    let (code, said) = refused(&["lab", "run", "--operation", "cpuid", "--by", "level"]);
    assert_eq!(code, 2, "{said}");
    let (code, said) = refused(&["lab", "run", "--operation", "cpuid", "--debug-info", "vmlinux"]);
    assert_eq!(code, 2, "{said}");
    // Debug information, and of another program.
    let other = std::env::current_exe().unwrap();
    let arguments = ["lab", "run", "--operation", "cpuid", "--profile", "--debug-info"];
    let (code, said) = refused(&[&arguments[..], &[other.to_str().unwrap()]].concat());
    assert_eq!((code, said.lines().count()), (4, 1), "{said}");
    assert!(
        said.contains("that of the kernel that runs") || said.contains("has no build id"),
        "{said}"
    );
    let (code, said) = refused(&["lab", "run", "--host", "kvm", "--profile"]);
    assert_eq!(code, 2, "{said}");
}

/// Offset and mnemonic of each instruction of a function, as binutils reads the module's file.
fn disassembled(module: &Path, function: &str) -> BTreeMap<u64, String> {
    let output = Command::new("objdump")
        .args(["-d", "-M", "intel", &format!("--disassemble={function}")])
        .arg(module)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut found = BTreeMap::new();
    let mut start = None;
    for line in text.lines() {
        let mut parts = line.split('\t');
        let address = parts.next().unwrap().trim().strip_suffix(':');
        let Some(address) = address.and_then(|hex| u64::from_str_radix(hex, 16).ok()) else {
            continue;
        };
        // A line of bytes alone goes on with an instruction.
        if let Some(instruction) = parts.nth(1) {
            let start = *start.get_or_insert(address);
            let word = instruction.split_whitespace().next().unwrap();
            found.insert(address - start, word.to_owned());
        }
    }
    found
}

/// The instructions of an annotated function are those of the module's file, each counted, and add up to the function's own.
#[test]
fn an_annotated_function_has_the_instructions_of_its_file() {
    const FUNCTION: &str = "__svm_vcpu_run";
    let folder = tempfile::tempdir().unwrap();
    let [plain, run] = ["plain", "run"].map(|name| folder.path().join(name).display().to_string());
    let arguments = ["lab", "run", "--operation", "cpuid", "--profile"];
    let report = json(&[&arguments[..], &["-o", &plain]].concat());
    let annotate = ["--annotate", FUNCTION, "-o", &run];
    let annotated = json(&[&arguments[..], &annotate].concat());
    assert_adds_up(&annotated, &trees(&run));
    let release = text(&report["run"]["kernel"]).to_owned();
    let modules = crate::run::cache().join(format!(
        "vmtax/kernels/linux-image-{release}/lib/modules/{release}/kernel/arch/x86/kvm"
    ));
    let file = disassembled(&modules.join("kvm-amd.ko"), FUNCTION);
    let tree = &trees(&run)["cpuid L1"];
    let mut own = 0;
    for (stack, weight) in tree {
        let last = stack.last().unwrap();
        let Some(place) = last.strip_prefix(&format!("{FUNCTION}+0x")) else { continue };
        assert_eq!(stack[stack.len() - 2], format!("L0 {FUNCTION}"), "{stack:?}");
        let (offset, instruction) = place.split_once(' ').unwrap();
        let offset = u64::from_str_radix(offset, 16).unwrap();
        let word = instruction.split_whitespace().next().unwrap();
        match file[&offset].as_str() {
            // The kernel replaces its jumps to the return thunk when it starts.
            "jmp" if word == "ret" => {}
            other => assert_eq!(word, other, "at {offset:#x}: {instruction}"),
        }
        own += weight;
    }
    let same =
        |stack: &[String]| stack.last().is_some_and(|last| *last == format!("L0 {FUNCTION}"));
    let of_function: u64 =
        trees(&plain)["cpuid L1"].iter().filter(|(stack, _)| same(stack)).map(|(_, n)| n).sum();
    assert!(own > 0 && own == of_function, "{own} of {of_function}");
    let (code, said) = refused(&["lab", "run", "--operation", "cpuid", "--annotate", FUNCTION]);
    assert_eq!(code, 2, "{said}");
    let (code, said) = refused(&[&arguments[..], &["--annotate", "no_such_function"]].concat());
    assert_eq!((code, said.lines().count()), (2, 1), "{said}");
    assert!(said.contains("no_such_function: no kernel of the host has"), "{said}");
}
