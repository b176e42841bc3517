//! The first process of a VM of `vmtax lab network`: serves the traffic that the host sends.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use vmtax_guest::order::encode;
use vmtax_guest::traffic::{HEADER, Kind, PORT, Traffic, VM};

use crate::traffic_host::{CHUNK_KIB, pieces};
use crate::{Result, agent, system};

/// The VM's network card.
const CARD: &str = "eth0";
/// The VM's disk.
const DISK: &str = "/dev/vda";
/// Alignment of what is read and written past the page cache.
const BLOCK: usize = 4096;
/// Time for the kernel to find it.
const LIMIT: Duration = Duration::from_secs(30);

/// Serves one connection after the other until the machine ends.
pub(crate) fn serve() -> Result<()> {
    // For the facts about the bounce buffer; without it they are missing.
    let _ = system::mount("debugfs", "/sys/kernel/debug");
    let started = Instant::now();
    while !Path::new("/sys/class/net").join(CARD).exists() {
        if started.elapsed() > LIMIT {
            return Err(format!("there is no {CARD}: the kernel found no virtio network card"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    system::loopback_up()?;
    let card = system::Interface::new(CARD)?;
    card.address(VM, 24)?;
    card.up()?;
    spread()?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT));
    let listener = listener.map_err(|e| format!("port {PORT}: {e}"))?;
    loop {
        let (stream, _) = listener.accept().map_err(|e| format!("port {PORT}: {e}"))?;
        if let Err(e) = answer(stream) {
            system::say(&format!("vmtax-guest: a connection ended: {e}"));
        }
    }
}

/// With two vCPUs the card's interrupts are for the first and this thread is on the second, so that each request wakes a thread on another
/// vCPU.
fn spread() -> Result<()> {
    let Ok([first, second]) = system::two_processors() else { return Ok(()) };
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

/// So many requests to the disk, one after the other, at increasing places; after the end from the start again.
fn disk(write: bool, bytes: usize, count: u32) -> std::io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(libc::O_DIRECT);
    let mut file = options.open(DISK)?;
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
    stream.set_nodelay(true)?;
    let facts = encode(&agent::facts());
    stream.write_all(&(facts.len() as u32).to_le_bytes())?;
    stream.write_all(&facts)?;
    let mut header = [0; HEADER];
    let mut buffer = vec![0; CHUNK_KIB as usize * 1024];
    while stream.read_exact(&mut header).is_ok() {
        let Some((kind, count)) = Traffic::of_header(&header) else { return Ok(()) };
        match kind {
            Kind::Request { bytes, .. } => {
                buffer.resize(buffer.len().max(bytes as usize), 0);
                for _ in 0..count {
                    stream.read_exact(&mut buffer[..bytes as usize])?;
                    stream.write_all(&buffer[..bytes as usize])?;
                }
                continue;
            }
            Kind::Receive => pieces(count, |bytes| stream.read_exact(&mut buffer[..bytes]))?,
            Kind::Send => {
                pieces(count, |bytes| stream.write_all(&buffer[..bytes]))?;
                continue;
            }
            Kind::Sleep { us } => {
                for _ in 0..count {
                    std::thread::sleep(Duration::from_micros(u64::from(us)));
                }
            }
            Kind::Read { bytes } | Kind::Write { bytes } => {
                disk(matches!(kind, Kind::Write { .. }), bytes as usize, count)
                    .map_err(|e| std::io::Error::other(format!("{DISK}: {e}")))?;
            }
        }
        stream.write_all(&[1])?;
    }
    Ok(())
}
