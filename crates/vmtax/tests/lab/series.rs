//! A series of options of one kernel, and of a git tree: what changes is sized and attributed; it goes on after it was interrupted. A bisection of the same options.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::run::{cache, output, printed, refused, text};

/// One operation with and without nested paging: the kernel that was made slower on purpose.
fn series(folder: &str, more: &[&str]) -> Vec<String> {
    let flags =
        ["lab", "series", "--operation", "touch-4k", "--profile", "-o", folder, "--format", "json"];
    flags.iter().chain(more).map(|word| (*word).to_owned()).collect()
}

fn made(arguments: &[String]) -> (Value, String) {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = output(&words);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

#[test]
fn a_slower_kernel_is_detected_measured_and_attributed() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("series");
    let home_text = home.to_str().unwrap();
    let vary = ["--kernel", "distribution", "--vary", "kvm_amd.npt=1,0"];
    let (first, said) = made(&series(home_text, &vary));
    assert!(said.contains("2 of 2: "), "{said}");
    assert_eq!(first["schema"], "vmtax-lab-series-1");
    let change = &first["changes"][0];
    assert_eq!((text(&change["operation"]), text(&change["level"])), ("touch-4k", "L1"));
    let number = |key: &str| change[key].as_f64().unwrap();
    let size = number("path") / number("path_before") - 1.0;
    assert!(size > 0.2 && (number("change") - size).abs() < 1e-6, "{change}");
    assert!(text(&change["functions"]).contains("L0 kvm_mmu_page_fault +"), "{change}");
    assert!(text(&change["kinds"]).contains("L1 PF excp page fault"), "{change}");
    let csv = fs::read_to_string(home.join("series.csv")).unwrap();
    assert_eq!(csv.lines().count(), 3, "{csv}");
    links_lead_somewhere(&home);
    // A run that was cut off is made again, the other is kept, and no number changes.
    let runs: Vec<&str> =
        first["runs"].as_array().unwrap().iter().map(|run| text(&run["run"])).collect();
    let kept = fs::metadata(home.join(runs[0]).join("run.json")).unwrap().modified().unwrap();
    let manifest = home.join(runs[1]).join("run.json");
    let cut =
        fs::read_to_string(&manifest).unwrap().replace("\"complete\": true", "\"complete\": false");
    fs::write(&manifest, cut).unwrap();
    let (second, said) = made(&series(home_text, &vary));
    assert!(said.contains("1 of 1: ") && said.contains("npt=0"), "{said}");
    assert_eq!(
        fs::metadata(home.join(runs[0]).join("run.json")).unwrap().modified().unwrap(),
        kept
    );
    assert_eq!(second["values"], first["values"]);
    // All are there: nothing runs.
    let (third, said) = made(&series(home_text, &["--no-run"]));
    assert_eq!((third, said.as_str()), (second, ""));
    other_plans_are_refused(home_text);
}

/// Each link of the page is a file beside it.
fn links_lead_somewhere(home: &Path) {
    let page = fs::read_to_string(home.join("index.html")).unwrap();
    let names = page.split("href=\"./").skip(1).filter_map(|rest| rest.split('"').next());
    let names: Vec<String> =
        names.map(|name| name.replace("%3D", "=").replace("%2B", "+")).collect();
    assert!(!names.is_empty(), "no link");
    for name in names {
        let step = fs::read_to_string(home.join(&name)).unwrap();
        assert!(step.contains("kvm_mmu_page_fault"), "{name}");
    }
}

fn other_plans_are_refused(home: &str) {
    let (code, said) = refused(&["lab", "series", "--no-run", "-o", home]);
    assert_eq!(code, 2, "{said}");
    assert!(
        said.contains("--operation touch-4k --profile --batches 5; use the same flags"),
        "{said}"
    );
    let other = tempfile::tempdir().unwrap();
    fs::write(other.path().join("thesis.txt"), "").unwrap();
    let (code, said) =
        refused(&["lab", "series", "--no-run", "-o", other.path().to_str().unwrap()]);
    assert_eq!(code, 5, "{said}");
    assert!(said.contains("holds something that is no series"), "{said}");
}

/// A kernel that cannot be had does not keep the others from being measured.
#[test]
fn an_invalid_kernel_is_named_and_others_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("series");
    let image = folder.path().join("bzImage");
    fs::write(&image, vec![0x5a; 100_000]).unwrap();
    let kernels = format!("{},distribution", image.display());
    let series = ["lab", "series", "--operation", "cpuid"];
    let flags = [&series[..], &["--kernel", &kernels, "-o", home.to_str().unwrap()]].concat();
    let output = output(&flags);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(
        said.contains("1 of the series could not be measured") && said.contains("bzImage"),
        "{said}"
    );
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("cpuid") && shown.contains("missing: "), "{shown}");
}

/// What git prints in a tree.
fn git(tree: &Path, arguments: &[&str]) -> String {
    let name = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
    let done = Command::new("git").args(name).args(arguments).current_dir(tree).output().unwrap();
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

/// A tree whose commits are options of modules: the one that takes nested paging away is found.
#[test]
fn git_bisect_finds_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path();
    let git = |arguments: &[&str]| git(tree, arguments);
    git(&["init", "-q"]);
    // The third cannot be measured: the module refuses its value, and has no KVM.
    let commits = [
        "kvm_amd.npt=1",
        "kvm_amd.npt=1 --option kvm.ignore_msrs=1",
        "kvm_amd.nested=bad",
        "kvm_amd.npt=0",
        "kvm_amd.npt=0 --option kvm.ignore_msrs=1",
    ];
    for options in commits {
        fs::write(tree.join("options"), format!("--option {options}\n")).unwrap();
        git(&["add", "options"]);
        git(&["commit", "-qm", options]);
    }
    git(&["bisect", "start", "HEAD", "HEAD~4"]);
    let step = format!(
        "XDG_CACHE_HOME='{}' '{}' lab bisect-step --operation touch-4k --between 6177,8250 $(cat options)",
        cache().display(),
        env!("CARGO_BIN_EXE_vmtax")
    );
    let done = Command::new("git")
        .args(["bisect", "run", "sh", "-c", &step])
        .current_dir(tree)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    // The commit that cannot be measured lies beside the one that is sought, so git names both.
    let is_bad = |line: &str| {
        line.starts_with("touch-4k L1: path 82") && line.ends_with(": bad (good 6177, bad 8250)")
    };
    assert!(said.lines().any(is_bad), "{said}");
    let found = said.contains("is the first bad commit")
        || said.contains("The first bad commit could be any of");
    assert!(found, "{said}");
    let (bad, good) = (git(&["rev-parse", "HEAD@{0}"]), git(&["rev-parse", "refs/bisect/bad"]));
    assert!(
        !bad.is_empty()
            && git(&["show", "-s", "--format=%s", good.trim()]).trim() == "kvm_amd.npt=0",
        "{said}"
    );
}

#[test]
fn the_list_of_operations_is_data() {
    let listed = output(&["lab", "list", "--format", "json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["schema"], "vmtax-lab-list-1");
    let operations = listed["operations"].as_array().unwrap();
    let find = |name: &str| operations.iter().find(|one| text(&one["operation"]) == name).unwrap();
    assert_eq!(
        (text(&find("cpuid")["suite"]), text(&find("cpuid")["levels"])),
        ("primitives", "L1 L2")
    );
    assert_eq!(text(&find("vmread-guest-rip")["hosts"]), "intel");
    assert_eq!(find("hlt-timer")["waits"], true);
}

/// The kernel of the distribution that the lab has unpacked: image and modules.
fn distribution() -> (String, String) {
    printed(&["lab", "run", "--operation", "cpuid"]);
    let image = crate::errors::find(&cache().join("vmtax/kernels"), "vmlinuz-").unwrap();
    let package = image.parent().unwrap().parent().unwrap();
    let modules = [package.join("lib/modules"), package.join("usr/lib/modules")];
    let modules = modules.iter().find(|folder| folder.exists()).unwrap();
    (image.display().to_string(), modules.display().to_string())
}

/// A tree whose build is a script of it: the kernels are the distribution's, one commit does not build, and one has a tag with a slash.
#[test]
fn commits_of_a_tree_are_built_once_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    let home = folder.path().join("series");
    let log = folder.path().join("built");
    fs::create_dir(&tree).unwrap();
    let git = |arguments: &[&str]| git(&tree, arguments);
    git(&["init", "-q"]);
    let (image, modules) = distribution();
    let build = |hz: u32| {
        let config = format!("echo CONFIG_HZ={hz} > \"$OUT/config\"");
        format!("{config}\nln -s '{modules}' \"$OUT/modules\"\ncp '{image}' \"$OUT/vmlinuz\"\n")
    };
    let commits = [
        ("next/v1", build(250)),
        ("v2", "echo 'cpuid.c:7: error: expected expression' >&2\nexit 2\n".to_owned()),
        ("v3", build(1000)),
    ];
    for (tag, script) in commits {
        fs::write(tree.join("build"), format!("echo {tag} >> '{}'\n{script}", log.display()))
            .unwrap();
        git(&["add", "build"]);
        git(&["commit", "-qm", tag]);
        git(&["tag", tag]);
    }
    let of_tree = ["--tree", tree.to_str().unwrap(), "--kernel", "next/v1,v2,v3,none"];
    let made = ["--build", "sh -e build", "--operation", "cpuid", "-o", home.to_str().unwrap()];
    let flags = [&["lab", "series"], &of_tree[..], &made, &["--format", "json"]].concat();
    let first = output(&flags);
    let said = String::from_utf8(first.stderr).unwrap();
    assert_eq!(first.status.code(), Some(7), "{said}");
    assert!(said.contains("2 of 2: v3-amd"), "{said}");
    let failed = "v2: the build failed (exit status: 2): cpuid.c:7: error: expected expression";
    assert!(said.contains(failed) && said.contains("none: "), "{said}");
    let series: Value = serde_json::from_slice(&first.stdout).unwrap();
    let runs = series["runs"].as_array().unwrap();
    let names: Vec<&str> = runs.iter().map(|run| text(&run["run"])).collect();
    assert_eq!(names, ["next_v1-amd", "v3-amd"], "{series}");
    // It is one kernel, so nothing changes.
    assert_eq!(series["changes"].as_array().map(Vec::len), Some(0), "{series}");
    assert!(home.join("kernels/next_v1/build.log").exists());
    let differ = fs::read_to_string(home.join("config-next_v1-to-v3.txt")).unwrap();
    assert_eq!(differ, "CONFIG_HZ 250 to 1000\n");
    assert_eq!(git(&["worktree", "list"]).lines().count(), 1);
    // A tag that is moved is not taken for what was measured; what failed is tried again, and nothing else.
    git(&["tag", "-f", "next/v1", "v3"]);
    let second = output(&flags);
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(
        said.contains("next/v1: is commit") && said.contains("was built under this name"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(&log).unwrap(), "next/v1\nv2\nv3\nv2\n");
}
