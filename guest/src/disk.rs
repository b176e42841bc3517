//! The mailbox's disk, as this machine has it: on IDE ports, or on virtio through the kernel's driver.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use vmtax_guest::mailbox::SECTOR;

use crate::{Result, ata};

/// Word on the kernel's command line of a machine whose mailbox is on virtio.
pub(crate) const VIRTIO: &str = "vmtax.mailbox=virtio";
/// Serial number of that disk: `MailboxDisk::SERIAL` of vmtax-machine.
const SERIAL: &str = "vmtax-mailbox";
/// How long the kernel may take to find it.
const PROBE: Duration = Duration::from_secs(30);
/// Bytes that are transferred at a time.
const PIECE: usize = 64 << 10;

pub(crate) enum BlockMailbox {
    Ports(ata::AtaDisk),
    /// A block device, past the page cache: the other side changes it without the kernel's knowledge.
    Virtio(File),
}

/// Memory that a block device can read and write directly.
#[repr(align(4096))]
struct AlignedBlocks([u8; PIECE]);

impl BlockMailbox {
    pub(crate) fn open(words: &[&str]) -> Result<BlockMailbox> {
        if !words.contains(&VIRTIO) {
            return ata::AtaDisk::open().map(BlockMailbox::Ports);
        }
        let end = Instant::now() + PROBE;
        loop {
            if let Some(name) = with_serial() {
                let path = format!("/dev/{name}");
                let mut options = OpenOptions::new();
                let file = options.read(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
                return file.map(BlockMailbox::Virtio).map_err(|e| format!("{path}: {e}"));
            }
            if Instant::now() >= end {
                return Err(format!("no disk has the serial number {SERIAL}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Reads from a sector on, whole sectors.
    pub(crate) fn read(&self, sector: u64, into: &mut [u8]) -> Result<()> {
        let file = match self {
            BlockMailbox::Ports(disk) => return disk.read(sector, into),
            BlockMailbox::Virtio(file) => file,
        };
        let mut memory = Box::new(AlignedBlocks([0; PIECE]));
        for (index, part) in into.chunks_mut(PIECE).enumerate() {
            let from = &mut memory.0[..part.len()];
            file.read_exact_at(from, place(sector, index))
                .map_err(|e| format!("the mailbox: {e}"))?;
            part.copy_from_slice(from);
        }
        Ok(())
    }

    /// Writes from a sector on. The last sector is padded with zeros.
    pub(crate) fn write(&self, sector: u64, from: &[u8]) -> Result<()> {
        let file = match self {
            BlockMailbox::Ports(disk) => return disk.write(sector, from),
            BlockMailbox::Virtio(file) => file,
        };
        let mut memory = Box::new(AlignedBlocks([0; PIECE]));
        for (index, part) in from.chunks(PIECE).enumerate() {
            let (data, rest) = memory.0.split_at_mut(part.len());
            data.copy_from_slice(part);
            let whole = part.len().next_multiple_of(SECTOR);
            rest[..whole - part.len()].fill(0);
            let written = file.write_all_at(&memory.0[..whole], place(sector, index));
            written.map_err(|e| format!("the mailbox: {e}"))?;
        }
        Ok(())
    }
}

/// Where a piece begins, in bytes.
fn place(sector: u64, index: usize) -> u64 {
    sector * SECTOR as u64 + (index * PIECE) as u64
}

/// The block device with the mailbox's serial number.
fn with_serial() -> Option<String> {
    let devices = std::fs::read_dir("/sys/block").ok()?;
    devices.flatten().find_map(|device| {
        let serial = std::fs::read_to_string(device.path().join("serial")).ok()?;
        (serial.trim() == SERIAL).then(|| device.file_name().to_string_lossy().into_owned())
    })
}
