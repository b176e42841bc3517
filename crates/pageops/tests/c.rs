//! The C interface: its header is what the code says, and the example in C builds and runs, both ways of linking.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_header_is_up_to_date() {
    let folder = crate_folder();
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new()
        .with_config(config)
        .with_src(folder.join("src/capi.rs"))
        .generate();
    let mut header = Vec::new();
    made.unwrap().write(&mut header);
    let path = folder.join("include/vmtax_pageops.h");
    if std::env::var_os("VMTAX_BLESS").is_some() {
        std::fs::write(&path, &header).unwrap();
    }
    let committed = std::fs::read(&path).unwrap_or_default();
    assert!(committed == header, "run VMTAX_BLESS=1 cargo test -p vmtax-pageops --test c");
}

/// Where cargo put the libraries of this build: beside this test.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_owned()
}

#[test]
fn the_example_in_c_builds_and_runs() {
    let built = libraries();
    // Laid out as an installation is.
    let dir = tempfile::tempdir().unwrap();
    for folder in ["lib/pkgconfig", "include"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    let copy = |from: PathBuf, to: &str| {
        std::fs::copy(&from, dir.path().join(to))
            .unwrap_or_else(|e| panic!("{}: {e}", from.display()));
    };
    for library in ["libvmtax_pageops.so", "libvmtax_pageops.a"] {
        copy(built.join(library), &format!("lib/{library}"));
    }
    copy(crate_folder().join("include/vmtax_pageops.h"), "include/vmtax_pageops.h");
    copy(crate_folder().join("pkgconfig/vmtax-pageops.pc"), "lib/pkgconfig/vmtax-pageops.pc");
    let flags = |kind: &[&str]| {
        let output = Command::new("pkg-config")
            .env("PKG_CONFIG_PATH", dir.path().join("lib/pkgconfig"))
            .arg(format!("--define-variable=prefix={}", dir.path().display()))
            .args(kind)
            .arg("vmtax-pageops")
            .output()
            .expect("pkg-config");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let example = crate_folder().join("examples/checkpoint.c");
    for (name, link) in [("shared", flags(&["--libs"])), ("static", flags(&["--libs", "--static"]))]
    {
        let program = dir.path().join(name);
        let mut link = link;
        if name == "static" {
            // The archive by its name, or the linker would prefer the shared library beside it.
            let archive = dir.path().join("lib/libvmtax_pageops.a").display().to_string();
            link.iter_mut().filter(|f| *f == "-lvmtax_pageops").for_each(|f| *f = archive.clone());
        }
        let compiled = Command::new("gcc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .arg(&program)
            .arg(&example)
            .args(flags(&["--cflags"]))
            .args(link)
            .output()
            .expect("gcc");
        assert!(compiled.status.success(), "{name}: {}", String::from_utf8_lossy(&compiled.stderr));
        let run =
            Command::new(&program).env("LD_LIBRARY_PATH", dir.path().join("lib")).output().unwrap();
        let (out, error) =
            (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{name}: {out}{error}");
        for line in [
            "64 of 256 pages are zero",
            "page 5 changed: a delta of 3 bytes",
            "256 on devices",
            "without hardware: wq99.0:",
        ] {
            assert!(out.contains(line), "{name} lacks {line:?}: {out}");
        }
    }
}
