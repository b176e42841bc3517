//! Call trees of workloads in VMs of the lab's own VMM: a compile at L1 and L2 on the emulated AMD and Intel hosts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{csv, matrix, name, ok, trees_are_whole};

const CODES: [&str; 3] = ["host", "hypervisor in the VM", "workload's guest"];

/// Functions and their instructions in the baseline, if it can have them, and in the category, by code; `all` is their sum.
pub(crate) type ByFunction = BTreeMap<(String, String), (Option<f64>, f64)>;

fn functions(run: &Path, workload: &str) -> ByFunction {
    let rows = csv(&ok(&["compare", name(run), "--functions", "--format", "csv"]));
    let mut found = ByFunction::new();
    for row in rows.iter().filter(|row| row["workload"] == workload) {
        let entry = found.entry((row["code"].clone(), row["function"].clone())).or_default();
        let base = row["instructions_baseline"].parse::<f64>().ok();
        *entry = (
            base.map(|base| base + entry.0.unwrap_or_default()),
            entry.1 + row["instructions"].parse::<f64>().unwrap(),
        );
    }
    found
}

/// Compiles and links one C file in a VM and in its guest, on hosts that boot.
fn compiled(folder: &Path, accel: &str, number: u32) -> PathBuf {
    let tree = folder.join("tree");
    fs::create_dir_all(&tree).unwrap();
    fs::write(tree.join("one.c"), "int main(void) { return 0; }\n").unwrap();
    fs::write(tree.join("Makefile"), "one: one.c\n\t$(CC) -o one one.c\n").unwrap();
    let text = format!(
        "repeats = 1\nwarmup = false\nlimit_seconds = 600\ncategories = [\"plain\", \"plain+nested\"]\n[vm]\naccel = \"{accel}\"\nmemory = 704\n\
         [[workload]]\nuse = \"compile\"\nset = {{ tree = \"{}\", target = \"one\", jobs = 1 }}\n",
        tree.display()
    );
    let path = matrix(folder, &text);
    let run = folder.join(format!("{accel}-{number}"));
    ok(&["run", name(&path), "--profile", "--fresh", "-o", name(&run)]);
    run
}

/// The functions of a workload, whose trees add up in each code.
pub(crate) fn adds_up(run: &Path, workload: &str) -> ByFunction {
    trees_are_whole(run);
    let functions = functions(run, workload);
    for code in CODES {
        let sum = functions.iter().filter(|((of, name), _)| of == code && name != "all");
        let sum: f64 = sum.map(|(_, (_, own))| own).sum();
        let (base, all) = functions[&(code.to_owned(), "all".to_owned())];
        assert!(all > 0.0 && (sum - all).abs() < 1e-3 * all, "{workload} {code}: {sum} of {all}");
        assert_eq!(base.is_none(), code == "hypervisor in the VM", "{workload} {code}");
    }
    functions
}

/// Two boots: the guest's instructions at L1 and L2, and those of all levels in both.
fn profiled(accel: &str) {
    let folder = tempfile::tempdir().unwrap();
    let runs = [1, 2].map(|number| adds_up(&compiled(folder.path(), accel, number), "compile"));
    for code in CODES {
        let all = |run: &ByFunction| run[&(code.to_owned(), "all".to_owned())];
        let [(base, one), (again, two)] = [all(&runs[0]), all(&runs[1])];
        // Ticks of the clocks fall elsewhere, which hypervisors have more of.
        let most = if code == "workload's guest" { 0.01 } else { 0.03 };
        assert!((one - two).abs() < most * one, "{code}: {one} and {two}");
        if let (Some(base), Some(again)) = (base, again) {
            assert!((base - again).abs() < most * base, "{code}: {base} and {again}");
        }
    }
    // The guest executes the same for a compile at both levels, and the host many times as much.
    let of = |code: &str, function: &str| runs[0][&(code.to_owned(), function.to_owned())];
    let (base, own) = of("workload's guest", "all");
    assert!((base.unwrap() - own).abs() < 0.03 * own, "{base:?} {own}");
    let (base, own) = of("host", "all");
    assert!(own > 3.0 * base.unwrap(), "{base:?} {own}");
    let enters = if accel == "amd" { "svm_vcpu_run" } else { "vmx_vcpu_run" };
    assert!(of("hypervisor in the VM", enters).1 > 0.0 && of("host", enters).1 > 0.0);
}

#[test]
#[ignore = "minutes: gcc runs in a VM and in its guest, twice, and all that the emulator executes is recorded"]
fn a_compile_has_its_functions_at_each_level_on_amd() {
    profiled("amd");
}

#[test]
#[ignore = "minutes: gcc runs in a VM and in its guest, twice, and all that the emulator executes is recorded"]
fn a_compile_has_its_functions_at_each_level_on_intel() {
    profiled("intel");
}
