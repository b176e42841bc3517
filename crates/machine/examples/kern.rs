use vmtax_machine::*;
use std::time::Instant;
fn main() {
    let s = Instant::now();
    let k = kernel::distribution(&kernel::cache_folder()).unwrap();
    println!("{:?} {k:?}", s.elapsed());
    let s = Instant::now();
    println!("{:?} {:?}", k.vmlinux(), s.elapsed());
    let s = Instant::now();
    println!("{:?} {:?}", k.vmlinux(), s.elapsed());
    let s = Instant::now();
    for n in ["kvm-amd", "kvm-intel", "nope"] {
    match k.modules_for(&[n]) { Ok(m) => println!("{:?}", m.iter().map(|m| (m.name.clone(), m.bytes.len())).collect::<Vec<_>>()), Err(e) => println!("{e}") }
    }
    println!("{:?}", s.elapsed());
}
