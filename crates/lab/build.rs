//! Builds `vmtax-guest`, the program inside emulated hosts, as a static program for `include_bytes!`, compressed.
//!
//! It is built apart because it must be linked statically, and with optimisation whatever this crate is built with: its
//! instructions are executed by an emulator. `VMTAX_GUEST` names one that is built already.
//!
//! The same of `vmtax-guest-arm`, for the arm64 host, where the compiler has a standard library for it; `VMTAX_GUEST_ARM` names one. An
//! empty file stands for none.

use std::env::var_os;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// A program, how it is built, and where its name goes.
struct BuiltProgram {
    name: &'static str,
    feature: &'static str,
    target: &'static str,
    flags: &'static [&'static str],
    /// The variable that names one that is built already.
    built: &'static str,
    packed: &'static str,
}

const OF_X86: BuiltProgram = BuiltProgram {
    name: "vmtax-guest",
    feature: "init",
    target: "x86_64-unknown-linux-gnu",
    flags: &["-Ctarget-feature=+crt-static", "-Crelocation-model=static", "-Cstrip=symbols"],
    built: "VMTAX_GUEST",
    packed: "VMTAX_GUEST_PACKED",
};

/// Linked by what Rust brings, so that no C compiler for arm64 is needed.
const OF_ARM: BuiltProgram = BuiltProgram {
    name: "vmtax-guest-arm",
    feature: "init-arm",
    target: "aarch64-unknown-linux-musl",
    flags: &[
        "-Clinker=rust-lld",
        "-Clink-self-contained=yes",
        "-Crelocation-model=static",
        "-Cstrip=symbols",
    ],
    built: "VMTAX_GUEST_ARM",
    packed: "VMTAX_GUEST_ARM_PACKED",
};

/// The release profile of this workspace, which a package outside of it does not have.
const PROFILE: [&str; 2] = ["profile.release.lto=\"thin\"", "profile.release.codegen-units=1"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for program in [OF_X86, OF_ARM] {
        println!("cargo::rerun-if-env-changed={}", program.built);
        let packed = out().join(program.name).with_extension("z");
        let built = var_os(program.built).map(PathBuf::from);
        let bytes = match built.or_else(|| program.can_be_built().then(|| build(&program))) {
            Some(path) => {
                compressed(&fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
            }
            None => Vec::new(),
        };
        fs::write(&packed, bytes).expect("OUT_DIR can be written to");
        println!("cargo::rustc-env={}={}", program.packed, packed.display());
    }
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("memory can be written to");
    encoder.finish().expect("memory can be written to")
}

fn out() -> PathBuf {
    PathBuf::from(var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
}

impl BuiltProgram {
    /// The program for x86 has to be; another one can be where its target is installed.
    fn can_be_built(&self) -> bool {
        let mut compiler = Command::new(var_os("RUSTC").expect("cargo sets RUSTC"));
        let library = ["--target", self.target, "--print", "target-libdir"];
        let output = compiler.args(library).output().expect("rustc runs");
        let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        self.target == OF_X86.target || Path::new(&folder).exists()
    }
}

fn build(program: &BuiltProgram) -> PathBuf {
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
    cargo.args(["build", "--release", "--quiet", "--features", program.feature]);
    cargo.args(["--target", program.target, "--bin", program.name]);
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
        .env("CARGO_ENCODED_RUSTFLAGS", program.flags.join("\x1f"))
        .status()
        .expect("cargo runs");
    assert!(status.success(), "{} could not be built", program.name);
    out.join(program.target).join("release").join(program.name)
}

/// In this repository the versions of `Cargo.lock`, and no others.
fn locked(package: &Path) -> Option<&'static str> {
    package.join("../Cargo.lock").exists().then_some("--locked")
}
