//! Gives the shared library its name for the dynamic linker: libvmtax_pageops.so.ABI, by `PAGEOPS_ABI` of src/capi.rs.

fn main() {
    println!("cargo::rerun-if-changed=src/capi.rs");
    let text = std::fs::read_to_string("src/capi.rs").expect("src/capi.rs");
    let abi = text
        .lines()
        .find_map(|line| line.strip_prefix("pub const PAGEOPS_ABI: u32 = ")?.strip_suffix(';'))
        .expect("src/capi.rs says PAGEOPS_ABI");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libvmtax_pageops.so.{abi}");
    }
}
