//! docs/lab-ci.md: its snippets, as far as no forge and no build of a kernel is needed; packaging/snippets runs the rest.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::readme::{printed, repository};
use crate::run::{self, cache};

fn document() -> String {
    fs::read_to_string(repository().join("docs/lab-ci.md")).unwrap()
}

/// The commands of vmtax in the YAML below a heading.
fn commands(document: &str, heading: &str) -> Vec<String> {
    let section = document.split_once(&format!("\n## {heading}\n")).unwrap().1;
    let yaml = section.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let lines = yaml.lines().map(|line| line.trim_start_matches([' ', '-']));
    let words = lines.map(|line| line.strip_prefix("run: ").unwrap_or(line));
    words.filter(|words| words.starts_with("vmtax ")).map(str::to_owned).collect()
}

/// The distribution's kernel, which an earlier run has unpacked: its image, and its folder of modules.
fn kernel() -> (PathBuf, PathBuf) {
    run::printed(&["lab", "run", "--operation", "cpuid"]);
    let folders = fs::read_dir(cache().join("vmtax/kernels")).unwrap();
    // Its list is written last.
    let is_whole = |path: &PathBuf| path.join("SHA256SUMS").exists();
    let folder = folders.map(|entry| entry.unwrap().path()).find(is_whole).unwrap();
    let images = fs::read_dir(folder.join("boot")).unwrap().map(|entry| entry.unwrap().path());
    let is_image =
        |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("vmlinuz-");
    (images.into_iter().find(is_image).unwrap(), folder.join("lib/modules"))
}

/// Both forges run the same commands, with a kernel where the snippets build one; the budget is written as the document says.
#[test]
fn the_snippets_hold_a_budget() {
    let document = document();
    let commands_of = |heading| commands(&document, heading);
    let lines = commands_of("GitHub Actions");
    assert_eq!(lines, commands_of("GitLab CI"));
    let [measure] = &lines[..] else { panic!("{lines:?}") };
    let (image, modules) = kernel();
    let folder = tempfile::tempdir().unwrap();
    let place = |path: &str, target: &Path| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(target, path).unwrap();
    };
    place("arch/x86/boot/bzImage", &image);
    place("out/lib/modules", &modules);
    // One operation, for the sake of time.
    let measure = measure.replace("vmtax lab run", "vmtax lab run --operation cpuid");
    let bless = measure.replace("--junit kvm.xml", "--bless");
    printed(&bless, folder.path());
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    printed(&measure, folder.path());
    assert!(read("report.html").contains("the budget is kept"));
    assert!(read("kvm.xml").contains("<testcase name=\"cpuid L2\" classname=\"amd "));
    // A shorter path is asked for than the kernel has: the page, the XML and GitHub's annotation name it.
    let budget = read("kvm.toml").replace("path = ", "path = 0.5 # ");
    fs::write(folder.path().join("kvm.toml"), budget).unwrap();
    let said = printed(&format!("GITHUB_ACTIONS=true {measure} || echo $?"), folder.path());
    assert!(said.ends_with("6\n"), "{said}");
    assert!(said.contains("::error file=kvm.toml,title=cpuid L2::path: 0.5 -> "), "{said}");
    assert!(read("report.html").contains("kvm.toml: 2 budget violations"));
    assert_eq!(read("kvm.xml").matches("<failure message=\"path: 0.5 -&gt; ").count(), 2);
}

#[test]
fn the_kernel_options_are_those_of_the_file() {
    let path = repository().join("examples/lab/kernel.config");
    let file = fs::read_to_string(path).unwrap();
    let listed = document();
    let listed = listed.split("```kconfig\n").nth(1).unwrap().split("```").next().unwrap();
    assert_eq!(listed, file);
}
