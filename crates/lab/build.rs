//! Builds `vmtax-guest`, the program inside emulated hosts, as a static program for `include_bytes!`, compressed.
//!
//! It is built apart because it must be linked statically, and with optimisation whatever this crate is built with: its
//! instructions are executed by an emulator. `VMTAX_GUEST` names one that is built already.

use std::env::var_os;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::ZlibEncoder;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The release profile of this workspace, which a package outside of it does not have.
const PROFILE: [&str; 2] = ["profile.release.lto=\"thin\"", "profile.release.codegen-units=1"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=VMTAX_GUEST");
    let program = var_os("VMTAX_GUEST").map_or_else(build, PathBuf::from);
    let packed = out().join("vmtax-guest.z");
    let bytes = fs::read(&program).unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&bytes).expect("memory can be written to");
    fs::write(&packed, encoder.finish().expect("memory can be written to"))
        .expect("OUT_DIR can be written to");
    println!("cargo::rustc-env=VMTAX_GUEST_PACKED={}", packed.display());
}

fn out() -> PathBuf {
    PathBuf::from(var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
}

fn build() -> PathBuf {
    // From the build script of vmtax-guest, which this crate depends on for the protocol: the same source as the program.
    let package = PathBuf::from(
        var_os("DEP_VMTAX_GUEST_FOLDER").expect("the build script of vmtax-guest names its folder"),
    );
    println!("cargo::rerun-if-changed={}", package.display());
    // In this repository; a package from a registry never changes.
    for part in [
        "../crates/vpmu/src",
        "../crates/perf-event/src",
        "../crates/page-tables/src",
        "../Cargo.lock",
    ]
    .map(|part| package.join(part))
    {
        if part.exists() {
            println!("cargo::rerun-if-changed={}", part.display());
        }
    }
    let out = out().join("guest");
    let mut cargo = Command::new(var_os("CARGO").expect("cargo sets CARGO"));
    cargo.args(["build", "--release", "--quiet", "--features", "init", "--target", TARGET]);
    for option in PROFILE {
        cargo.args(["--config", option]);
    }
    let status = cargo
        .arg("--target-dir")
        .arg(&out)
        .arg("--manifest-path")
        .arg(package.join("Cargo.toml"))
        .args(["--package", "vmtax-guest"])
        .args(locked(&package))
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

/// In this repository the versions of `Cargo.lock`, and no others.
fn locked(package: &Path) -> Option<&'static str> {
    package.join("../Cargo.lock").exists().then_some("--locked")
}
