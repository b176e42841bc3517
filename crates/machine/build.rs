//! Builds the recorders that run inside the emulators, as shared libraries for `include_bytes!`, compressed.
//!
//! They are compiled apart, with optimisation whatever this crate is built with: they run for every block that is executed.
//! They depend on nothing but the standard library, so the compiler is called directly. `VMTAX_RECORDERS` names a folder with both,
//! built already.

use std::env::{var, var_os};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::ZlibEncoder;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const RECORDERS: [&str; 2] = ["qemu", "bochs"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=recorders");
    println!("cargo::rerun-if-env-changed=VMTAX_RECORDERS");
    let folder = var_os("VMTAX_RECORDERS").map_or_else(build, PathBuf::from);
    for recorder in RECORDERS {
        let library = folder.join(format!("lib{}.so", crate_name(recorder)));
        let packed = out().join(format!("{recorder}.z"));
        let bytes = fs::read(&library).unwrap_or_else(|e| panic!("{}: {e}", library.display()));
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&bytes).expect("memory can be written to");
        fs::write(&packed, encoder.finish().expect("memory can be written to"))
            .expect("OUT_DIR can be written to");
        println!(
            "cargo::rustc-env=VMTAX_RECORDER_{}={}",
            recorder.to_uppercase(),
            packed.display()
        );
    }
}

fn out() -> PathBuf {
    PathBuf::from(var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
}

fn crate_name(recorder: &str) -> String {
    format!("vmtax_recorder_{recorder}")
}

fn build() -> PathBuf {
    let out = out();
    for recorder in RECORDERS {
        let mut compiler = Command::new(var_os("RUSTC").expect("cargo sets RUSTC"));
        compiler
            .args(["--edition", "2024", "--crate-type", "cdylib", "--target", TARGET])
            .args(["--crate-name", &crate_name(recorder)])
            .args([
                "-Copt-level=3",
                "-Ccodegen-units=1",
                "-Clto=thin",
                "-Cpanic=abort",
                "-Cstrip=symbols",
            ])
            // The workspace's, which this source expects.
            .arg("-Dunsafe_code")
            .arg("--out-dir")
            .arg(&out)
            .arg(Path::new("recorders").join(recorder).join("lib.rs"));
        // That of another architecture links nothing of this one.
        let linker = var("RUSTC_LINKER").ok().filter(|_| var("TARGET").as_deref() == Ok(TARGET));
        if let Some(linker) = linker {
            compiler.arg(format!("-Clinker={linker}"));
        }
        let status = compiler.status().expect("rustc runs");
        assert!(status.success(), "the recorder of {recorder} could not be built");
    }
    out
}
