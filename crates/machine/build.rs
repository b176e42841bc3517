//! Builds the recorders that run inside the emulators, as shared libraries for `include_bytes!`.
//!
//! They are built apart because they are loaded by other programs, and with optimisation whatever this crate is built with: they
//! run for every block that is executed. `VMTAX_RECORDERS` names a folder with both, built already.

use std::env::{var, var_os};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const RECORDERS: [&str; 2] = ["vmtax-recorder-qemu", "vmtax-recorder-bochs"];

fn main() {
    println!("cargo::rerun-if-env-changed=VMTAX_RECORDERS");
    let folder = var_os("VMTAX_RECORDERS").map_or_else(build, PathBuf::from);
    for recorder in RECORDERS {
        let name = recorder.replace('-', "_");
        let library = folder.join(format!("lib{name}.so"));
        println!("cargo::rustc-env={}={}", name.to_uppercase(), library.display());
    }
}

fn build() -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    println!("cargo::rerun-if-changed={}", top.join("Cargo.lock").display());
    let out = PathBuf::from(var("OUT_DIR").expect("cargo sets OUT_DIR")).join("recorders");
    let mut cargo = Command::new(var_os("CARGO").expect("cargo sets CARGO"));
    cargo.args(["build", "--release", "--quiet", "--locked", "--target", TARGET, "--target-dir"]);
    cargo.arg(&out).arg("--manifest-path").arg(top.join("Cargo.toml"));
    for recorder in RECORDERS {
        let folder = top.join("crates").join(recorder.trim_start_matches("vmtax-"));
        println!("cargo::rerun-if-changed={}", folder.display());
        cargo.args(["--package", recorder]);
    }
    let status = cargo
        // Flags of an outer `cargo clippy` or coverage run are not for these libraries.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", "-Cpanic=abort\x1f-Cstrip=symbols")
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the recorders could not be built");
    out.join(TARGET).join("release")
}
