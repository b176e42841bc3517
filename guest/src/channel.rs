//! The channel for orders and reports: the mailbox's disk, or the port of the outer VMM.

use vmtax_guest::layout::CHANNEL;
use vmtax_guest::mailbox::{
    Header, MailboxState, ORDER, ORDER_HEADER, REPORT, SECTOR, SECTORS, STATUS, sectors,
};
use vmtax_guest::order::{Order, Report, decode, encode};

use crate::disk::BlockMailbox;
use crate::{Result, ports};

/// Orders in, reports out.
pub(crate) enum Channel {
    /// Of the emulated host.
    Mailbox(BlockMailbox),
    /// Of a guest of the emulated host.
    Port(Io),
}

/// The instructions that a port is accessed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    /// Strings: few exits, but KVM accesses the memory.
    Strings,
    /// Through a register: an exit for each byte or four. For a guest whose memory KVM cannot access.
    Registers,
}

/// A file that goes with a report.
pub(crate) struct Attachment {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
}

impl Channel {
    /// Reports ready and waits for an order. Returns it and its number.
    pub(crate) fn next(&self) -> Result<(u32, Order)> {
        let (number, bytes) = self.hear(0)?;
        Ok((
            number,
            decode(&bytes)
                .ok_or("the order cannot be read: this program and vmtax do not belong together")?,
        ))
    }

    pub(crate) fn finish(&self, number: u32, report: &Report, files: &[Attachment]) -> Result<()> {
        self.say(number, &encode(report), files)
    }

    /// As [`Channel::next`], for requests other than orders: returns bytes, and a number above the last one.
    pub(crate) fn hear(&self, last: u32) -> Result<(u32, Vec<u8>)> {
        match self {
            Channel::Mailbox(disk) => {
                if last == 0 {
                    status(disk, 0, MailboxState::Ready, &[], "")?;
                }
                next_after(disk, last)
            }
            Channel::Port(io) => {
                // An empty report means that this guest is up.
                send(*io, &encode(&Report::default()));
                Ok((last + 1, receive(*io)))
            }
        }
    }

    /// Sends bytes while an order is executed, and waits for the acknowledgement.
    pub(crate) fn tell(&self, number: u32, bytes: &[u8]) -> Result<()> {
        let Channel::Mailbox(disk) = self else { return Ok(()) };
        disk.write(REPORT, bytes)?;
        status(disk, number, MailboxState::Running, bytes, "")?;
        let mut sector = [0; SECTOR];
        loop {
            disk.read(ORDER_HEADER, &mut sector)?;
            if Header::from_sector(&sector).is_some_and(|header| header.number > number) {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Sends an answer and its files.
    pub(crate) fn say(&self, number: u32, bytes: &[u8], files: &[Attachment]) -> Result<()> {
        let disk = match self {
            Channel::Mailbox(disk) => disk,
            Channel::Port(io) => {
                send(*io, bytes);
                return Ok(());
            }
        };
        let room = (SECTORS - REPORT) * SECTOR as u64;
        let wanted = bytes.len() + files.iter().map(|f| f.bytes.len() + SECTOR).sum::<usize>();
        if wanted as u64 > room {
            return Err(format!(
                "the report has {wanted} bytes and the mailbox room for {room}; trace fewer operations"
            ));
        }
        disk.write(REPORT, bytes)?;
        let mut sector = REPORT + sectors(bytes.len());
        for file in files {
            disk.write(sector, &file.bytes)?;
            sector += sectors(file.bytes.len());
        }
        status(disk, number, MailboxState::Done, bytes, "")
    }

    /// Reports that the order failed.
    pub(crate) fn fail(&self, number: u32, problem: &str) {
        match self {
            // If this fails too, the console has the message.
            Channel::Mailbox(disk) => {
                drop(status(disk, number, MailboxState::Failed, &[], problem))
            }
            Channel::Port(io) => send(*io, &encode(&Report::failed(problem))),
        }
    }

    /// Reports that this kernel lacks what was asked for.
    pub(crate) fn lack(&self, what: &str) {
        match self {
            Channel::Mailbox(disk) => drop(status(disk, 0, MailboxState::Lacking, &[], what)),
            Channel::Port(_) => self.fail(0, what),
        }
    }

    /// Reports that this kernel does not know an option, or refuses its value.
    pub(crate) fn misused(&self, problem: &str) {
        match self {
            Channel::Mailbox(disk) => drop(status(disk, 0, MailboxState::Misused, &[], problem)),
            Channel::Port(_) => self.fail(0, problem),
        }
    }
}

/// Waits for an order with a higher number.
fn next_after(disk: &BlockMailbox, last: u32) -> Result<(u32, Vec<u8>)> {
    let mut sector = [0; SECTOR];
    let header = loop {
        disk.read(ORDER_HEADER, &mut sector)?;
        match Header::from_sector(&sector) {
            Some(header) if header.state == MailboxState::Ordered && header.number > last => {
                break header;
            }
            // A host is saved while it waits for its first order.
            _ if last == 0 => ports::wait(),
            _ => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    };
    let length = header.length as usize;
    if sectors(length) > REPORT - ORDER {
        return Err(format!("an order of {length} bytes does not fit the mailbox"));
    }
    let mut bytes = vec![0; sectors(length) as usize * SECTOR];
    disk.read(ORDER, &mut bytes)?;
    bytes.truncate(length);
    if crc32fast::hash(&bytes) != header.crc {
        return Err("the order is damaged".into());
    }
    status(disk, header.number, MailboxState::Running, &[], "")?;
    Ok((header.number, bytes))
}

fn status(
    disk: &BlockMailbox,
    number: u32,
    state: MailboxState,
    report: &[u8],
    message: &str,
) -> Result<()> {
    let header = Header {
        number,
        state,
        length: report.len() as u32,
        crc: crc32fast::hash(report),
        message: message.to_owned(),
    };
    disk.write(STATUS, &header.to_sector())
}

fn send(io: Io, bytes: &[u8]) {
    let length = bytes.len() as u32;
    if io == Io::Strings {
        ports::write_fours(CHANNEL, &length.to_le_bytes());
        ports::write_fours(CHANNEL, bytes);
        return;
    }
    let (fours, rest) = bytes.as_chunks::<4>();
    ports::out32(CHANNEL, length);
    fours.iter().for_each(|four| ports::out32(CHANNEL, u32::from_le_bytes(*four)));
    rest.iter().for_each(|byte| ports::out8(CHANNEL, *byte));
}

fn receive(io: Io) -> Vec<u8> {
    let read = |bytes: &mut [u8]| match io {
        Io::Strings => ports::read_bytes(CHANNEL, bytes),
        Io::Registers => bytes.fill_with(|| ports::in8(CHANNEL)),
    };
    let mut length = [0; 4];
    read(&mut length);
    // Not zeros, which the allocator would leave to the first touch: what KVM has read of a string is lost where the page to write it to is not mapped.
    let mut bytes = vec![0xff; u32::from_le_bytes(length) as usize];
    read(&mut bytes);
    bytes
}
