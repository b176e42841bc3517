//! Compiles the programs that run in the kernel, and makes Rust's side of their structs from what the compiler says of
//! them. Needs clang, and no headers: what the programs use of the kernel's and libbpf's they declare themselves.

use std::env::var;
use std::path::Path;

use libbpf_cargo::SkeletonBuilder;

const PROGRAMS: &str = "src/kvm_exit.bpf.c";
/// Alike for all processors but for the registers of a function's arguments.
const STARTS: &str = "src/vm_start.bpf.c";
const ARM: u32 = 3;
/// Name and `ISA`. The structs are the same in all.
const KINDS: [(&str, u32); 3] = [("vmx", 1), ("svm", 2), ("arm", ARM)];

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let folder = var("OUT_DIR").expect("cargo sets OUT_DIR");
    let folder = Path::new(&folder);
    for (name, isa) in KINDS {
        let object = folder.join(format!("kvm_exit.{name}.o"));
        let mut builder = compile(&clang, PROGRAMS, &object, isa);
        if name == KINDS[0].0 {
            structs(&mut builder, &folder.join("kvm_exit.skel.rs"));
        }
    }
    let is_arm = var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("aarch64");
    let isa = if is_arm { ARM } else { 0 };
    let mut builder = compile(&clang, STARTS, &folder.join("vm_start.o"), isa);
    structs(&mut builder, &folder.join("vm_start.skel.rs"));
}

fn compile(clang: &str, source: &str, object: &Path, isa: u32) -> SkeletonBuilder {
    let mut builder = SkeletonBuilder::new();
    builder
        .source(source)
        .clang(clang)
        .obj(object)
        // v3 has 32-bit instructions; kernels know it since 5.1.
        .clang_args(["-mcpu=v3", "-Wall", "-Wextra", "-Werror", &format!("-DISA={isa}")]);
    if let Err(error) = builder.build() {
        panic!("{clang} could not compile {source}; install clang, or name it in CLANG: {error:#}");
    }
    builder
}

/// Rust's side of the structs.
fn structs(builder: &mut SkeletonBuilder, rust: &Path) {
    builder.generate(rust).unwrap_or_else(|error| panic!("{}: {error:#}", rust.display()));
}
