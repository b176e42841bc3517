//! Compiles the programs that run in the kernel, and makes Rust's side of their structs from what the compiler says of
//! them. Needs clang, and no headers: what the programs use of the kernel's and libbpf's they declare themselves.

use std::env::var;
use std::path::Path;

use libbpf_cargo::SkeletonBuilder;

const PROGRAMS: &str = "src/kvm_exit.bpf.c";
/// Name and `ISA`. The structs are the same in both.
const KINDS: [(&str, u32); 2] = [("vmx", 1), ("svm", 2)];

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let folder = var("OUT_DIR").expect("cargo sets OUT_DIR");
    for (name, isa) in KINDS {
        let object = Path::new(&folder).join(format!("kvm_exit.{name}.o"));
        let mut builder = SkeletonBuilder::new();
        builder
            .source(PROGRAMS)
            .clang(&clang)
            .obj(&object)
            // v3 has 32-bit instructions; kernels know it since 5.1.
            .clang_args(["-mcpu=v3", "-Wall", "-Wextra", "-Werror", &format!("-DISA={isa}")]);
        if let Err(error) = builder.build() {
            panic!(
                "{clang} could not compile {PROGRAMS}; install clang, or name it in CLANG: {error:#}"
            );
        }
        if name == KINDS[0].0 {
            let rust = Path::new(&folder).join("kvm_exit.skel.rs");
            builder.generate(&rust).unwrap_or_else(|error| panic!("{PROGRAMS}: {error:#}"));
        }
    }
}
