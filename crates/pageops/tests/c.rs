//! The C interface: its header is what the code says, and programs in C build and run, both ways of linking.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use vmtax_pageops::capi::checkpoint::{
    PageopsCheckpointOptions, PageopsContents, PageopsMemory, PageopsSummary,
};
use vmtax_pageops::capi::direct::PageopsFacts;
use vmtax_pageops::capi::engine::{self, PageopsCounts, PageopsOp, PageopsOutcome};
use vmtax_pageops::capi::{self, PAGEOPS_ABI};
use vmtax_pageops::checkpoint::Checkpoint;

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

const SOURCES: [&str; 4] = ["capi.rs", "capi/direct.rs", "capi/engine.rs", "capi/checkpoint.rs"];

#[test]
fn the_header_is_up_to_date() {
    let folder = crate_folder();
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    // As one file: cbindgen would look for the modules of capi.rs beside it, where others have their names.
    let mut interface = String::new();
    for source in SOURCES {
        let text = std::fs::read_to_string(folder.join("src").join(source)).unwrap();
        let modules = |line: &&str| !line.starts_with("mod ") && !line.starts_with("pub mod ");
        let items = text.lines().filter(|line| !line.starts_with("//!")).filter(modules);
        items.for_each(|line| writeln!(interface, "{line}").unwrap());
    }
    let dir = tempfile::tempdir().unwrap();
    let joined = dir.path().join("capi.rs");
    std::fs::write(&joined, interface).unwrap();
    let builder = cbindgen::Builder::new().with_config(config).with_src(joined);
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    let path = folder.join("include/vmtax_pageops.h");
    if std::env::var_os("VMTAX_BLESS").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let committed = std::fs::read(&path).unwrap_or_default();
    assert!(committed == header, "run VMTAX_BLESS=1 cargo test -p vmtax-pageops --test c");
}

/// Every function of the header says which threads may call it.
#[test]
fn the_header_documents_thread_safety() {
    let header = std::fs::read_to_string(crate_folder().join("include/vmtax_pageops.h")).unwrap();
    let functions = header.split_once("extern \"C\" {").unwrap().1;
    let mut count = 0;
    for part in functions.split("/*\n").skip(1) {
        let (comment, function) = part.split_once("*/").unwrap();
        let name = function.trim().lines().next().unwrap();
        if !name.contains("pageops_") {
            continue;
        }
        count += 1;
        assert!(comment.contains(" Threads: "), "{name} says nothing of threads");
    }
    let source = |name| std::fs::read_to_string(crate_folder().join("src").join(name)).unwrap();
    let exported: usize =
        SOURCES.map(|name| source(name).matches("no_mangle").count()).iter().sum();
    assert_eq!(count, exported);
}

/// The libraries of this build, laid out as an installation is: docs/pageops-vmm.md.
struct Installed {
    dir: tempfile::TempDir,
}

impl Installed {
    fn new() -> Installed {
        let dir = tempfile::tempdir().unwrap();
        let installed = Installed { dir };
        for folder in ["lib/pkgconfig", "include", "run", "out"] {
            std::fs::create_dir_all(installed.path(folder)).unwrap();
        }
        // Cargo put them beside this test.
        let built = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        let copy = |from: PathBuf, to: &str| {
            std::fs::copy(&from, installed.path(to))
                .unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        };
        let name = format!("libvmtax_pageops.so.{PAGEOPS_ABI}");
        copy(built.join("libvmtax_pageops.so"), &format!("lib/{name}"));
        std::os::unix::fs::symlink(&name, installed.path("lib/libvmtax_pageops.so")).unwrap();
        // Programs run with nothing but the name that is in them.
        copy(built.join("libvmtax_pageops.so"), &format!("run/{name}"));
        copy(built.join("libvmtax_pageops.a"), "lib/libvmtax_pageops.a");
        copy(crate_folder().join("include/vmtax_pageops.h"), "include/vmtax_pageops.h");
        copy(crate_folder().join("pkgconfig/vmtax-pageops.pc"), "lib/pkgconfig/vmtax-pageops.pc");
        installed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let output = Command::new("pkg-config")
            .env("PKG_CONFIG_PATH", self.path("lib/pkgconfig"))
            .arg(format!("--define-variable=prefix={}", self.dir.path().display()))
            .args(arguments)
            .arg("vmtax-pageops")
            .output()
            .expect("pkg-config");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program and runs it in both ways of linking: its output.
    fn run(&self, source: &Path, arguments: &[&Path]) -> [String; 2] {
        ["shared", "static"].map(|way| {
            let mut link = self.pkg_config(&["--libs", &format!("--{way}")]);
            if way == "static" {
                // The archive by its name, or the linker would prefer the shared library beside it.
                let archive = self.path("lib/libvmtax_pageops.a").display().to_string();
                let named = link.iter_mut().filter(|f| *f == "-lvmtax_pageops");
                named.for_each(|f| *f = archive.clone());
            }
            let program = self.path("out").join(way);
            let compiled = Command::new("gcc")
                .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread", "-o"])
                .arg(&program)
                .arg(source)
                .args(self.pkg_config(&["--cflags"]))
                .args(link)
                .output()
                .expect("gcc");
            let error = String::from_utf8_lossy(&compiled.stderr);
            assert!(compiled.status.success(), "{way}: {error}");
            let run = Command::new(&program)
                .args(arguments)
                .env("LD_LIBRARY_PATH", self.path("run"))
                .output()
                .unwrap();
            let (out, error) =
                (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
            assert!(run.status.success(), "{way}: {}: {out}{error}", run.status);
            out.into_owned()
        })
    }
}

#[test]
fn the_example_in_c_builds_and_runs() {
    let installed = Installed::new();
    assert_eq!(installed.pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let out = installed.path("out");
    for text in installed.run(&crate_folder().join("examples/checkpoint.c"), &[&out]) {
        for line in [
            "64 of 256 pages are zero",
            "256 on devices",
            "saved: 64 zero, 0 unchanged, 0 delta, 192 others",
            "page 5 changed: a delta of 3 bytes, a record of 10",
            "saved: 0 zero, 255 unchanged, 1 delta, 0 others",
            "restored: the same memory",
            "without hardware: wq99.0:",
        ] {
            assert!(text.contains(line), "no {line:?}: {text}");
        }
    }
    // What C wrote is a checkpoint for everybody.
    let child = Checkpoint::open(&out.join("child.ckpt")).unwrap();
    child.verify(&mut |_| ()).unwrap();
    assert_eq!((child.totals().deltas, child.state_len()), (1, 10));
}

#[test]
fn wrong_arguments_are_errors() {
    let installed = Installed::new();
    for text in installed.run(&crate_folder().join("tests/c/hostile.c"), &[&installed.path("out")])
    {
        assert_eq!(text, "every wrong argument was refused\n");
    }
}

#[test]
fn threads_share_an_engine() {
    let installed = Installed::new();
    for text in installed.run(&crate_folder().join("tests/c/threads.c"), &[]) {
        assert_eq!(text, "8 threads, 0 wrong outcomes\n");
    }
}

/// Sizes, places of members and constants, as the header has them for C and as the library has them.
#[test]
fn the_header_lays_out_what_the_library_does() {
    let mut expected = Vec::new();
    let mut program =
        "#include <stdio.h>\n#include \"vmtax_pageops.h\"\nint main(void) {\n".to_owned();
    let mut say = |expression: &str, value: i64| {
        writeln!(program, "printf(\"%s %lld\\n\", \"{expression}\", (long long)({expression}));")
            .unwrap();
        expected.push(format!("{expression} {value}"));
    };
    macro_rules! layout {
        ($($kind:ident { $($member:ident),* })*) => { $(
            say(concat!("sizeof(", stringify!($kind), ")"), size_of::<$kind>() as i64);
            say(concat!("_Alignof(", stringify!($kind), ")"), align_of::<$kind>() as i64);
            $(
                let name = concat!("offsetof(", stringify!($kind), ", ", stringify!($member), ")");
                say(name, offset_of!($kind, $member) as i64);
            )*
        )* };
    }
    layout! {
        PageopsFacts { zero, crc }
        PageopsOp { kind, src, dst, len, word, record, record_len }
        PageopsOutcome { value, result, on_device, had_fault }
        PageopsCounts { on_device, on_cpu, faults, batches, queues, dead_queues }
        PageopsCheckpointOptions { zstd, parent, engine }
        PageopsSummary { bytes, raw, compressed, deltas, filled, zero, unchanged }
        PageopsMemory { at, bytes }
        PageopsContents { state, state_len, description, description_len }
    }
    macro_rules! constants {
        ($($module:ident: $($name:ident)*;)*) => { $($( say(stringify!($name), i64::from($module::$name)); )*)* };
    }
    constants! {
        capi: PAGEOPS_ABI PAGEOPS_EINVAL PAGEOPS_EIO PAGEOPS_EOVERFLOW PAGEOPS_EBADMSG PAGEOPS_EDEAD PAGEOPS_EPANIC;
        engine: PAGEOPS_ZERO PAGEOPS_COMPARE PAGEOPS_COPY PAGEOPS_FILL PAGEOPS_CRC32C PAGEOPS_COPY_CRC32C PAGEOPS_DELTA_CREATE
            PAGEOPS_DELTA_APPLY;
    }
    program.push_str("return 0; }\n");
    // No constant and no structure of the header is left out here.
    let header = std::fs::read_to_string(crate_folder().join("include/vmtax_pageops.h")).unwrap();
    for name in header.lines().filter_map(|line| line.strip_prefix("#define PAGEOPS_")) {
        let name = format!("PAGEOPS_{}", name.split_once(' ').unwrap().0);
        assert!(expected.iter().any(|line| line.starts_with(&format!("{name} "))), "{name}");
    }
    for name in header.lines().filter_map(|line| line.strip_prefix("} ")?.strip_suffix(';')) {
        assert!(expected.iter().any(|line| line.starts_with(&format!("sizeof({name})"))), "{name}");
    }
    let installed = Installed::new();
    let source = installed.path("layout.c");
    std::fs::write(&source, program).unwrap();
    for text in installed.run(&source, &[]) {
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }
}
