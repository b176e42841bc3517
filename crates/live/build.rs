//! Compiles the programs that run in the kernel. Needs clang, and nothing else: what they use of the kernel's and of
//! libbpf's headers they declare themselves.

use std::env::var;
use std::path::Path;
use std::process::Command;

const PROGRAMS: &str = "src/kvm_exit.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let folder = var("OUT_DIR").expect("cargo sets OUT_DIR");
    let kinds = [
        ("vmx", 1, ""),
        ("svm", 2, ""),
        ("vmx.classic", 1, "-DCLASSIC"),
        ("svm.classic", 2, "-DCLASSIC"),
    ];
    for (name, isa, kind) in kinds {
        let status = Command::new(&clang)
            // v3 has 32-bit instructions; kernels know it since 5.1.
            .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
            .arg(format!("-DISA={isa}"))
            .args(Some(kind).filter(|kind| !kind.is_empty()))
            .args(["-c", PROGRAMS, "-o"])
            .arg(Path::new(&folder).join(format!("kvm_exit.{name}.o")))
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(_) => panic!("{clang} could not compile {PROGRAMS}"),
            Err(error) => {
                panic!("{clang} does not run ({error}); install clang, or name it in CLANG")
            }
        }
    }
}
