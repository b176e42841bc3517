use std::process::Command;

use vmtax_guest::functions::{
    CodePart as Functioned, HostKernels, KernelFunctions, LoadedAddresses,
};

use super::*;

const CODE: &str = "\
int first(int a)
{
\treturn a * 3;
}

int second(int a)
{
\tint b = first(a);

\treturn b ^ 7;
}
";
/// Where the line tables place a kernel, and where it runs.
const LINKED: u64 = 0xffff_ffff_8100_0000;
const RUNS: u64 = 0xffff_ffff_9c00_0000;
const MODULE: u64 = 0xffff_ffff_c000_0000;
const GUEST: u64 = 0xffff_ffff_c123_4000;

/// A file of real debug information, made here.
struct Made {
    folder: tempfile::TempDir,
    path: PathBuf,
}

impl Made {
    fn new(compile: &[&str], link: &[&str]) -> Made {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        std::fs::write(folder.path().join("sub/code.c"), CODE).unwrap();
        let run = |program: &str, words: &[&str]| {
            let done = Command::new(program).current_dir(&folder).args(words).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        };
        let plain = ["-g", "-O0", "-mcmodel=kernel", "-fno-pic", "-fcf-protection=none"];
        let words = [&plain[..], compile, &["-c", "sub/code.c", "-o", "code.o"]].concat();
        run("cc", &words);
        run("ld", &[link, &["--build-id", "code.o", "-o", "linked"]].concat());
        let path = folder.path().join("linked");
        Made { folder, path }
    }

    fn module() -> Made {
        Made::new(&["-ffunction-sections"], &["-r"])
    }

    fn kernel() -> Made {
        Made::new(&[], &["-Ttext", "0xffffffff81000000", "-e", "first"])
    }

    fn open(&self) -> Result<Vec<DebugSource>, Error> {
        DebugSource::open(std::slice::from_ref(&self.path))
    }

    /// The address of a function as the file has it.
    fn address(&self, name: &str) -> u64 {
        let source = &self.open().unwrap()[0];
        source.functions.iter().find(|one| one.0 == name).unwrap().2
    }

    fn problem(&self) -> String {
        self.open().map(|_| ()).unwrap_err().to_string()
    }
}

fn kernels(name: &str, build: &[u8], functions: [(&str, u64); 2]) -> HostKernels {
    let mut before = 0;
    let steps = functions
        .map(|(name, at)| (at - std::mem::replace(&mut before, at), name.to_owned()))
        .to_vec();
    let loaded = |at| LoadedAddresses {
        notes: 1,
        modules: vec![("demo".to_owned(), at)],
        builds: vec![(String::new(), vec![0xab; 20]), (name.to_owned(), build.to_vec())],
        own: Vec::new(),
    };
    let part = Functioned { name: name.to_owned(), functions: steps };
    HostKernels {
        functions: KernelFunctions { parts: vec![part] },
        host: loaded(MODULE),
        guest: Some(loaded(GUEST)),
        inner: None,
    }
}

fn text(lines: &mut SourceLines, level: usize, address: u64) -> String {
    let (number, range) = lines.find(level, address);
    assert!(range.contains(&address), "{address:#x} in {range:x?}");
    lines.text(number).1
}

#[test]
fn a_modules_sections_are_found_where_they_are_loaded() {
    let made = Made::module();
    let sources = made.open().unwrap();
    let (first, second) = (MODULE + 0x7000, MODULE + 0x100);
    let kernels = kernels("demo", &sources[0].build, [("second", second), ("first", first)]);
    let mut lines = SourceLines::new(&sources, &kernels).unwrap();
    assert_eq!(text(&mut lines, 0, first), "sub/code.c:2");
    assert_eq!(text(&mut lines, 0, second), "sub/code.c:7");
    // L1 has it elsewhere.
    let moved = GUEST - MODULE;
    assert_eq!(text(&mut lines, 1, first + moved), "sub/code.c:2");
    assert_eq!(text(&mut lines, 1, first), "");
    assert_eq!(text(&mut lines, 2, first), "");
    // Before, between and behind them there is nothing.
    for nothing in [0x40_0000, MODULE, MODULE + 0x6000, MODULE + 0x10_0000] {
        assert_eq!(text(&mut lines, 0, nothing), "");
    }
    // Each address of a range has the line that its first one has.
    let (number, range) = lines.find(0, first);
    for at in range {
        assert_eq!(lines.find(0, at).0, number);
    }
    let seen: Vec<String> = (second..second + 0x20).map(|at| text(&mut lines, 0, at)).collect();
    assert!(seen.contains(&"sub/code.c:10".to_owned()), "{seen:?}");
}

#[test]
fn a_kernel_may_run_elsewhere_than_it_was_linked() {
    let made = Made::kernel();
    let sources = made.open().unwrap();
    let at = |name| made.address(name) - LINKED + RUNS;
    let kernels =
        kernels("", &sources[0].build, [("first", at("first")), ("second", at("second"))]);
    let mut lines = SourceLines::new(&sources, &kernels).unwrap();
    assert_eq!(text(&mut lines, 0, at("first")), "sub/code.c:2");
    assert_eq!(text(&mut lines, 0, at("second")), "sub/code.c:7");
    // L1 runs the host's kernel, at the same place.
    assert_eq!(text(&mut lines, 1, at("second")), "sub/code.c:7");
    assert_eq!(text(&mut lines, 0, LINKED), "");
}

#[test]
fn files_of_another_build_are_refused() {
    let made = Made::module();
    let sources = made.open().unwrap();
    let functions = [("second", MODULE), ("first", MODULE + 0x100)];
    let problem = |kernels: &HostKernels| {
        SourceLines::new(&sources, kernels).map(|_| ()).unwrap_err().to_string()
    };
    let text = problem(&kernels("demo", &[0xcd; 20], functions));
    assert!(text.starts_with(&made.path.display().to_string()), "{text}");
    assert!(text.contains(&format!("the kernel that runs ({})", "ab".repeat(20))), "{text}");
    let others = [("open", MODULE), ("close", MODULE + 0x100)];
    let text = problem(&kernels("demo", &sources[0].build, others));
    assert!(text.contains("none of its functions"), "{text}");
}

#[test]
fn files_without_source_lines_are_refused() {
    let none = Made::new(&["-g0"], &["-r"]);
    assert!(none.problem().contains("has no source lines"), "{}", none.problem());
    let compressed = Made::module();
    let words = ["--compress-debug-sections=zlib", "linked"];
    let done = Command::new("objcopy").current_dir(&compressed.folder).args(words).status();
    assert!(done.unwrap().success());
    assert!(compressed.problem().contains("objcopy --decompress"), "{}", compressed.problem());
    let text = Made::module();
    std::fs::write(&text.path, "no ELF").unwrap();
    assert!(text.problem().contains("no file with debug information"), "{}", text.problem());
    std::fs::remove_file(&text.path).unwrap();
    assert!(text.problem().contains("cannot open"), "{}", text.problem());
    drop(text.folder);
}

#[test]
fn paths_have_no_detours() {
    for (path, expected) in [
        ("arch/x86/kvm/../../../virt/kvm/kvm_main.c", "virt/kvm/kvm_main.c"),
        ("./include/./linux/kvm_host.h", "include/linux/kvm_host.h"),
        ("../a.c", "../a.c"),
        ("/build//linux/a.c", "/build/linux/a.c"),
        ("/a.c", "/a.c"),
    ] {
        assert_eq!(plain(path), expected);
    }
}

/// Whatever a file has, it is read or refused.
#[test]
fn damaged_files_do_not_panic() {
    for made in [Made::module(), Made::kernel()] {
        let whole = std::fs::read(&made.path).unwrap();
        let build = made.open().unwrap().remove(0).build;
        let kernels = kernels("demo", &build, [("second", MODULE), ("first", MODULE + 0x7000)]);
        let read = |bytes: &[u8]| {
            let source = DebugSource::of_elf(&made.path, bytes);
            let _ = source.map(|source| SourceLines::new(&[source], &kernels).map(|_| ()));
        };
        for cut in (0..whole.len()).step_by(7) {
            read(&whole[..cut]);
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            read(&bytes);
        }
    }
}
