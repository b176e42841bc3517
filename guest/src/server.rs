//! The first process of a VM of QEMU on an emulated host: serves the traffic that the client sends.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use vmtax_guest::job::CardAddress;
use vmtax_guest::order::{decode, encode};
use vmtax_guest::traffic::TrafficKind;

use crate::traffic_client::{CHUNK_KIB, message, pieces, say};
use crate::{
    Result, agent, builtin, computing, devices, kallsyms, network, system, traffic_client,
};

/// The VM's disk: on virtio, IDE or NVMe.
const DISKS: [&str; 3] = ["/dev/vda", "/dev/sda", "/dev/nvme0n1"];
/// A disk that is not virtio's appears some time after its driver.
const DISK_ATTEMPTS: u32 = 100;
const DISK_PAUSE: Duration = Duration::from_millis(50);
/// A page, and a MiB.
const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// Alignment of what is read and written past the page cache.
const BLOCK: usize = 4096;

/// Serves one connection after the other until the machine ends.
pub(crate) fn serve(own: CardAddress) -> Result<()> {
    // For the facts about the bounce buffer; without it they are missing.
    let _ = system::mount("debugfs", "/sys/kernel/debug");
    system::loopback_up()?;
    network::configure(own)?;
    spread()?;
    traffic_client::serve(answer)
}

/// With two vCPUs the card's interrupts are for the first and this thread is on the second, so that each request wakes a thread on another
/// vCPU.
fn spread() -> Result<()> {
    let Ok(usable) = system::several_processors() else { return Ok(()) };
    let (first, second) = (usable[0], usable[1]);
    let table = std::fs::read_to_string("/proc/interrupts").unwrap_or_default();
    for line in table.lines().filter(|line| line.contains("virtio")) {
        if let Some((number, _)) = line.trim().split_once(':') {
            // The interrupt for changes of configuration may not move.
            let _ =
                std::fs::write(format!("/proc/irq/{number}/smp_affinity_list"), first.to_string());
        }
    }
    system::stay_on(second)
}

/// The VM's disk, as soon as there is one.
fn disk_path() -> std::io::Result<&'static str> {
    for _ in 0..DISK_ATTEMPTS {
        if let Some(path) = DISKS.into_iter().find(|path| Path::new(path).exists()) {
            return Ok(path);
        }
        std::thread::sleep(DISK_PAUSE);
    }
    Err(std::io::Error::other("there is no disk"))
}

/// So many MiB of memory that the program has not had before.
fn fresh(mib: u32) -> Vec<u8> {
    vec![0u8; mib as usize * MIB]
}

/// Touches it page by page.
fn touch(memory: &mut [u8]) {
    for page in memory.chunks_mut(PAGE) {
        if let Some(first) = page.first_mut() {
            *std::hint::black_box(first) = 1;
        }
    }
}

/// So many requests to the disk, one after the other, at increasing places; after the end from the start again.
fn disk(write: bool, bytes: usize, count: u32) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(libc::O_DIRECT);
    let mut file = options.open(disk_path()?)?;
    let places = (file.seek(SeekFrom::End(0))? / bytes as u64).max(1);
    let mut memory = vec![7; bytes + BLOCK];
    let start = memory.as_ptr().align_offset(BLOCK);
    let buffer = memory.get_mut(start..start + bytes).unwrap_or_default();
    for number in 0..u64::from(count) {
        let place = number % places * bytes as u64;
        match write {
            true => file.write_all_at(buffer, place)?,
            false => file.read_exact_at(buffer, place)?,
        }
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    say(&mut stream, &encode(&agent::facts()))?;
    let mut buffer = vec![0; CHUNK_KIB as usize * 1024];
    let mut kept = Vec::new();
    while let Some((kind, count)) = message(&mut stream).ok().and_then(|bytes| decode(&bytes)) {
        match kind {
            TrafficKind::Loaded => {
                let loaded = kallsyms::loaded_functions().map_err(std::io::Error::other)?;
                say(&mut stream, &encode(&loaded))?;
                continue;
            }
            TrafficKind::Request { bytes, .. } => {
                buffer.resize(buffer.len().max(bytes as usize), 0);
                for _ in 0..count {
                    stream.read_exact(&mut buffer[..bytes as usize])?;
                    stream.write_all(&buffer[..bytes as usize])?;
                }
                continue;
            }
            TrafficKind::Receive => pieces(count, |bytes| stream.read_exact(&mut buffer[..bytes]))?,
            TrafficKind::Send => {
                pieces(count, |bytes| stream.write_all(&buffer[..bytes]))?;
                continue;
            }
            TrafficKind::Sleep { us } => {
                for _ in 0..count {
                    std::thread::sleep(Duration::from_micros(u64::from(us)));
                }
            }
            TrafficKind::Read { bytes } | TrafficKind::Write { bytes } => {
                disk(matches!(kind, TrafficKind::Write { .. }), bytes as usize, count)
                    .map_err(|e| std::io::Error::other(format!("the VM's disk: {e}")))?;
            }
            TrafficKind::Clock => {
                for _ in 0..count {
                    std::hint::black_box(Instant::now());
                }
            }
            TrafficKind::Cpuid => {
                for _ in 0..count {
                    std::hint::black_box(builtin::cpuid());
                }
            }
            TrafficKind::RealTimeClock => devices::read_clock(count)?,
            TrafficKind::Console => devices::write_lines(count)?,
            TrafficKind::Display => devices::write_text(count)?,
            TrafficKind::Touch => touch(&mut fresh(count)),
            TrafficKind::Again => {
                if kept.len() < count as usize * MIB {
                    kept = fresh(count);
                }
                touch(&mut kept);
            }
            TrafficKind::Compute => computing::compute(count)?,
            TrafficKind::Protect => computing::protect(count)?,
            TrafficKind::Barrier => computing::barrier(count)?,
            // The host records it, and sends nothing.
            TrafficKind::Boot => {}
        }
        stream.write_all(&[1])?;
    }
    Ok(())
}
