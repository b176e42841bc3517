//! Tells the build scripts of dependents where this package is: `vmtax-lab` builds the program from it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::metadata=folder={}", env!("CARGO_MANIFEST_DIR"));
}
