#[path = "../tests/support/mod.rs"]
mod support;
use std::path::Path;
use std::time::{Duration, Instant};
use vmtax_machine::*;
fn main() -> Result<(), Error> {
    let kernel = kernel::distribution(&kernel::cache_folder())?;
    let mailbox = Mailbox::new()?;
    let spec = Spec {
        emulator: Emulator::Bochs,
        kernel,
        initramfs: Initramfs::Bytes(support::initramfs()),
        command_line: String::new(),
        memory_mib: 512,
        cpus: 1,
        mailbox: mailbox.clone(),
        console: "/work/tmp/machine/console-idle.txt".into(),
        limit: Duration::from_secs(200),
    };
    let state = Path::new("/work/tmp/machine/state");
    let mut machine = Machine::restore(&spec, state)?;
    let start = Instant::now();
    let _ = machine.wait(|| (start.elapsed() > Duration::from_secs(5)).then_some(()));
    mailbox.write(512, b"Ehello")?;
    println!("{:?}", machine.wait(|| mailbox.read(1024, 6).ok().filter(|b| b == b"Ehello")));
    println!("{:?}", machine.finish());
    Ok(())
}
