//! Builds `vmtax-guest`, the program inside emulated hosts, as a static program for `include_bytes!`.
//!
//! It is built apart because it must be linked statically, and with optimisation whatever this crate is built with: its
//! instructions are executed by an emulator. `VMTAX_GUEST` names one that is built already.

use std::env::{var, var_os};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

fn main() {
    println!("cargo::rerun-if-env-changed=VMTAX_GUEST");
    let program = var_os("VMTAX_GUEST").map_or_else(build, PathBuf::from);
    println!("cargo::rustc-env=VMTAX_GUEST_PROGRAM={}", program.display());
}

fn build() -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for part in ["guest", "crates/vpmu/src", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", top.join(part).display());
    }
    let out = PathBuf::from(var("OUT_DIR").expect("cargo sets OUT_DIR")).join("guest");
    let status = Command::new(var_os("CARGO").expect("cargo sets CARGO"))
        .args([
            "build",
            "--release",
            "--quiet",
            "--locked",
            "--package",
            "vmtax-guest",
            "--features",
            "init",
        ])
        .args(["--target", TARGET, "--target-dir"])
        .arg(&out)
        .arg("--manifest-path")
        .arg(top.join("guest/Cargo.toml"))
        // Flags of an outer `cargo clippy` or coverage run are not for this program.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTFLAGS")
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            "-Ctarget-feature=+crt-static\x1f-Crelocation-model=static\x1f-Cstrip=symbols",
        )
        .status()
        .expect("cargo runs");
    assert!(status.success(), "vmtax-guest could not be built");
    out.join(TARGET).join("release/vmtax-guest")
}
