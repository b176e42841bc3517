//! The mailbox's disk: programmed I/O on the secondary IDE channel's first drive, polled.
//!
//! It needs no driver of the kernel and does not trigger one: the drive's interrupts are off.

use vmtax_guest::mailbox::{SECTOR, SECTORS, sectors};

use crate::{Result, ports};

const DATA: u16 = 0x170;
const COUNT: u16 = 0x172;
const LBA_LOW: u16 = 0x173;
const LBA_MID: u16 = 0x174;
const LBA_HIGH: u16 = 0x175;
const DRIVE: u16 = 0x176;
const COMMAND: u16 = 0x177;
const CONTROL: u16 = 0x376;

const READ_MULTIPLE: u8 = 0xc4;
const WRITE_MULTIPLE: u8 = 0xc5;
const SET_MULTIPLE: u8 = 0xc6;
/// Sectors transferred at a time.
const BLOCK: u64 = 16;
/// Sectors in a command.
const COMMAND_MOST: u64 = 128;

const BUSY: u8 = 0x80;
const DATA_REQUEST: u8 = 0x08;
const FAULT: u8 = 0x21;

pub(crate) struct AtaDisk(());

impl AtaDisk {
    pub(crate) fn open() -> Result<AtaDisk> {
        ports::out8(CONTROL, 2);
        ports::out8(DRIVE, 0xe0);
        if ports::in8(COMMAND) == 0xff {
            return Err("there is no drive on the secondary IDE channel".into());
        }
        let disk = AtaDisk(());
        disk.command(SET_MULTIPLE, 0, BLOCK)?;
        disk.idle()?;
        Ok(disk)
    }

    /// Reads from a sector on, whole sectors.
    pub(crate) fn read(&self, sector: u64, into: &mut [u8]) -> Result<()> {
        for (index, part) in into.chunks_mut(COMMAND_MOST as usize * SECTOR).enumerate() {
            let count = sectors(part.len());
            self.command(READ_MULTIPLE, sector + index as u64 * COMMAND_MOST, count)?;
            for block in part.chunks_mut(BLOCK as usize * SECTOR) {
                self.ready()?;
                ports::read_words(DATA, block);
            }
        }
        self.idle()
    }

    /// Writes from a sector on. The last sector is padded with zeros.
    pub(crate) fn write(&self, sector: u64, from: &[u8]) -> Result<()> {
        let whole = from.len() / SECTOR * SECTOR;
        let (body, rest) = from.split_at(whole);
        self.write_whole(sector, body)?;
        if rest.is_empty() {
            return Ok(());
        }
        let mut last = [0; SECTOR];
        last[..rest.len()].copy_from_slice(rest);
        self.write_whole(sector + sectors(whole), &last)
    }

    fn write_whole(&self, sector: u64, from: &[u8]) -> Result<()> {
        for (index, part) in from.chunks(COMMAND_MOST as usize * SECTOR).enumerate() {
            let count = sectors(part.len());
            self.command(WRITE_MULTIPLE, sector + index as u64 * COMMAND_MOST, count)?;
            for block in part.chunks(BLOCK as usize * SECTOR) {
                self.ready()?;
                ports::write_words(DATA, block);
            }
            self.idle()?;
        }
        Ok(())
    }

    fn command(&self, command: u8, sector: u64, count: u64) -> Result<()> {
        if sector + count > SECTORS {
            return Err(format!(
                "the mailbox has {SECTORS} sectors and sector {} is wanted",
                sector + count
            ));
        }
        self.idle()?;
        let [low, mid, high, top, ..] = sector.to_le_bytes();
        ports::out8(DRIVE, 0xe0 | top);
        ports::out8(COUNT, count as u8);
        ports::out8(LBA_LOW, low);
        ports::out8(LBA_MID, mid);
        ports::out8(LBA_HIGH, high);
        ports::out8(COMMAND, command);
        Ok(())
    }

    fn idle(&self) -> Result<()> {
        self.until(|status| status & BUSY == 0)
    }

    fn ready(&self) -> Result<()> {
        self.until(|status| status & (BUSY | DATA_REQUEST) == DATA_REQUEST)
    }

    fn until(&self, reached: impl Fn(u8) -> bool) -> Result<()> {
        for _ in 0..100_000_000_u32 {
            let status = ports::in8(COMMAND);
            if status & BUSY == 0 && status & FAULT != 0 {
                return Err(format!("the mailbox's drive reports status {status:#x}"));
            }
            if reached(status) {
                return Ok(());
            }
        }
        Err("the mailbox's drive does not answer".into())
    }
}
