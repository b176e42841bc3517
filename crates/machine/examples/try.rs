#[path = "../tests/support/mod.rs"]
mod support;
use std::path::Path;
use std::time::{Duration, Instant};
use vmtax_machine::*;

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().collect();
    let emulator = match args[1].as_str() {
        "amd" => Emulator::Tcg { icount: true },
        "fast" => Emulator::Tcg { icount: false },
        "kvm" => Emulator::Kvm,
        _ => Emulator::Bochs,
    };
    let kernel = if args[2] == "dist" {
        kernel::distribution(&kernel::cache_folder())?
    } else {
        kernel::files(Path::new(&args[2]), None)?
    };
    let extra = args.get(3).cloned().unwrap_or_default();
    let mailbox = Mailbox::new()?;
    let spec = Spec {
        emulator,
        kernel,
        initramfs: Initramfs::Bytes(support::initramfs()),
        command_line: format!("console=ttyS0 panic=-1 {QUICK_BOOT} {extra}"),
        memory_mib: 512,
        cpus: 1,
        mailbox: mailbox.clone(),
        console: "/work/tmp/machine/console.txt".into(),
        limit: Duration::from_secs(200),
    };
    let state = Path::new("/work/tmp/machine/state");
    let start = Instant::now();
    let mut machine = Machine::boot(&spec)?;
    let result = machine.wait(|| mailbox.read(0, 5).ok().filter(|b| b == b"READY"));
    println!("{:?} ready: {result:?}", start.elapsed());
    println!("tsc {}", mailbox.read(8, 8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).unwrap());
    if std::env::var_os("BOOT").is_some() { return Ok(()); }
    if let Err(e) = &result {
        println!("{e}\n{}", e.console().map(|c| c.lines.join("\n")).unwrap_or_default());
        return Ok(());
    }
    if let Err(e) = can_save(emulator) {
        println!("{e}");
        mailbox.write(512, b"Ehello")?;
        println!("{:?}", machine.wait(|| mailbox.read(1024, 6).ok().filter(|b| b == b"Ehello")));
        println!("finish {:?} {:?}", machine.finish(), start.elapsed());
        return Ok(());
    }
    let start = Instant::now();
    machine.save(state)?;
    println!("{:?} saved", start.elapsed());
    for i in 0..2 {
        let mailbox = Mailbox::new()?;
        let spec = Spec { mailbox: mailbox.clone(), console: format!("/work/tmp/machine/console{i}.txt").into(), ..spec.clone() };
        let text = format!("Ehello{i}");
        let start = Instant::now();
        mailbox.write(512, text.as_bytes())?;
        let mut machine = Machine::restore(&spec, state)?;
        println!("{:?} restored", start.elapsed());
        let r = machine.wait(|| mailbox.read(1024, 7).ok().filter(|b| b == text.as_bytes()));
        println!("{:?} answer {r:?}", start.elapsed());
        if let Err(e) = &r {
            println!("{e}\n{}", e.console().map(|c| c.lines.join("\n")).unwrap_or_default());
        }
        println!("finish {:?} {:?}", machine.finish(), start.elapsed());
    }
    Ok(())
}
