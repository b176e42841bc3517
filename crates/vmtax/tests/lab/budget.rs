//! Budgets: kept by the same kernel, broken by a worse configuration, which is named.

use std::fs;

use crate::run::{printed, refused, vmtax};

#[test]
fn a_worse_configuration_breaks_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let budget = folder.path().join("budget.toml");
    let budget = budget.to_str().unwrap();
    let operations = "cpuid,invlpg,touch-4k";
    let run = ["lab", "run", "--operation", operations, "--budget", budget];
    printed(&[&run[..], &["--bless"]].concat());
    assert!(fs::read_to_string(budget).unwrap().contains("name = \"invlpg\""));
    printed(&run);
    // Without nested paging INVLPG is an exit, and touching a page is more of them.
    let (code, said) = refused(&[&run[..], &["--option", "kvm_amd.npt=0"]].concat());
    assert_eq!(code, 6, "{said}");
    assert!(said.contains("\n  invlpg L1: L1 invlpg: 0 -> 20 exits (+20)\n"), "{said}");
    assert!(!said.contains("was made with"), "{said}");
    another_emulator(budget, operations);
    let (code, said) =
        refused(&["lab", "run", "--host", "intel", "--operation", operations, "--budget", budget]);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("is a budget for --host amd"), "{said}");
}

/// A budget of another version of the emulator says so, and only when it is broken.
fn another_emulator(budget: &str, operations: &str) {
    let text = fs::read_to_string(budget).unwrap();
    let line = text.lines().find(|line| line.starts_with("emulator = ")).unwrap();
    let version = line.strip_prefix("emulator = \"QEMU TCG ").unwrap();
    assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{line}");
    fs::write(budget, text.replace(line, "emulator = \"QEMU TCG 1.0 (icount)\"")).unwrap();
    let run = ["lab", "run", "--operation", operations, "--budget", budget];
    printed(&run);
    let (code, said) = refused(&[&run[..], &["--option", "kvm_amd.npt=0"]].concat());
    assert_eq!(code, 6, "{said}");
    let first = said.lines().nth(1).unwrap();
    assert!(
        first.starts_with(
            "  the budget was made with QEMU TCG 1.0 (icount), this run with QEMU TCG "
        ) && first.contains(version.trim_end_matches('"')),
        "{said}"
    );
}

/// Under a second version of QEMU, whose folder of programs the variable names, all operations are measured, budgets hold, and one of the first version
/// that breaks says so.
#[test]
#[ignore = "needs a second QEMU: VMTAX_SECOND_QEMU=/folder/usr/bin"]
fn a_second_version_of_qemu() {
    let Some(programs) = std::env::var_os("VMTAX_SECOND_QEMU") else {
        return vmtax_skipped::system("VMTAX_SECOND_QEMU names no second QEMU");
    };
    let usual = std::env::var_os("PATH").unwrap();
    let all = std::iter::once(programs.into()).chain(std::env::split_paths(&usual));
    let path = std::env::join_paths(all).unwrap();
    let second = |arguments: &[&str]| {
        let output = vmtax(arguments).env("PATH", &path).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let folder = tempfile::tempdir().unwrap();
    let [first, own] =
        ["first.toml", "own.toml"].map(|name| folder.path().join(name).display().to_string());
    let emulator = |budget: &str| {
        let text = fs::read_to_string(budget).unwrap();
        text.lines().find(|line| line.starts_with("emulator = ")).unwrap().to_owned()
    };
    let one = ["lab", "run", "--operation", "touch-4k", "--budget", first.as_str()];
    printed(&[&one[..], &["--bless"]].concat());
    let (code, said) = second(&[&one[..], &["--option", "kvm_amd.npt=0"]].concat());
    assert_eq!(code, 6, "{said}");
    assert!(
        said.lines().nth(1).unwrap().starts_with("  the budget was made with QEMU TCG "),
        "{said}"
    );
    let nested = ["lab", "run", "--nested", "--budget", own.as_str()];
    let (code, said) = second(&[&nested[..], &["--bless"]].concat());
    assert_eq!(code, 0, "{said}");
    assert_ne!(emulator(&own), emulator(&first));
    let (code, said) = second(&nested);
    assert_eq!(code, 0, "{said}");
    // Trees add up there, too, or a note says why there is none.
    let run = folder.path().join("run").display().to_string();
    let (code, said) = second(&["lab", "run", "--operation", "cpuid", "--profile", "-o", &run]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(crate::profile::trees(&run).len(), 1, "{said}");
}

/// With call trees the functions that break a budget are named, those of an operation that keeps it are not.
#[test]
fn the_functions_that_break_a_budget_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let [budget, calls] = ["budget.toml", "budget.toml.folded"]
        .map(|name| folder.path().join(name).display().to_string());
    let run = ["lab", "run", "--operation", "touch-4k", "--budget", &budget];
    printed(&[&run[..], &["--bless", "--profile"]].concat());
    assert!(fs::read_to_string(&calls).unwrap().starts_with("touch-4k L1;L1 payload"));
    let broken = [&run[..], &["--profile", "--option", "kvm_amd.npt=0"]].concat();
    let (code, said) = refused(&broken);
    assert_eq!(code, 6, "{said}");
    let mut lines = said.lines().skip_while(|line| !line.starts_with("  touch-4k L1: path: "));
    let path = lines.next().expect("a path that is longer");
    let number = |word: &str| word.replace(',', "").parse::<f64>().unwrap();
    let words: Vec<&str> = path.split_whitespace().collect();
    let longer = number(words[5]) - number(words[3]);
    let functions = lines.next().expect("functions");
    assert!(
        functions.starts_with("    +") && functions.contains("L0 kvm_mmu_page_fault +"),
        "{said}"
    );
    let sum = functions.trim_start().trim_start_matches('+').split(':').next().unwrap();
    assert!((number(sum) - longer).abs() <= 0.15, "{said}");
    fs::write(&calls, "none").unwrap();
    let (code, said) = refused(&broken);
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("budget.toml.folded: line 1: is no folded stack"), "{said}");
    // Without call trees a budget has none beside it.
    printed(&[&run[..], &["--bless"]].concat());
    assert!(!std::path::Path::new(&calls).exists());
}

#[test]
fn without_shadow_vmcs_the_fields_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let budget = folder.path().join("budget.toml");
    let budget = budget.to_str().unwrap();
    let operations = "vmread-guest-rip,vmwrite-guest-rip";
    let arguments =
        ["lab", "run", "--host", "intel", "--operation", operations, "--budget", budget];
    printed(&[&arguments[..], &["--bless"]].concat());
    let (code, said) =
        refused(&[&arguments[..], &["--option", "kvm_intel.enable_shadow_vmcs=0"]].concat());
    assert_eq!(code, 6, "{said}");
    assert!(
        said.contains(
            "\n  vmread-guest-rip L1: L1 VMREAD VMCS field GUEST_RIP: 0 -> 20 exits (+20)\n"
        ),
        "{said}"
    );
    assert!(
        said.contains(
            "\n  vmwrite-guest-rip L1: L1 VMWRITE VMCS field GUEST_RIP: 0 -> 20 exits (+20)\n"
        ),
        "{said}"
    );
}

#[test]
fn a_host_without_nesting_is_reported() {
    let run = ["lab", "run", "--nested", "--operation", "cpuid"];
    let (code, said) = refused(&[&run[..], &["--option", "kvm_amd.nested=0"]].concat());
    assert_eq!(code, 7, "{said}");
    assert!(said.contains("L1"), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}
