//! The mailbox: its sectors, and the two headers.
//!
//! ```text
//! sector 0       vmtax writes: a header, then
//! sector 8..     the order
//! sector 4       the guest writes: a header, then
//! sector 8192..  its report, then its files one after the other, each from a new sector on
//! ```
//! A header is written after the data that it announces. Its number increases with each use, so that data from before a saved state is not
//! mistaken for new data.

/// Bytes of a sector.
pub const SECTOR: usize = 512;
/// Sector of the order's header.
pub const ORDER_HEADER: u64 = 0;
/// First sector of the order.
pub const ORDER: u64 = 8;
/// Sector of the guest's status.
pub const STATUS: u64 = 4;
/// First sector of the report.
pub const REPORT: u64 = 8192;
/// Sectors of the whole mailbox: the disk that `vmtax-machine` makes.
pub const SECTORS: u64 = 130 * 16 * 63;

const MAGIC: [u8; 8] = *b"vmtaxbox";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Increases by one with every order; the answer has the order's number.
    pub number: u32,
    pub state: MailboxState,
    /// Bytes of the order or report.
    pub length: u32,
    /// CRC-32 of these bytes.
    pub crc: u32,
    /// The error message, if the state is failed, lacking or misused.
    pub message: String,
}

/// The state announced by a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MailboxState {
    /// vmtax: there is an order.
    Ordered = 1,
    /// Guest: up, and waits for an order.
    Ready = 2,
    /// Guest: at work.
    Running = 3,
    /// Guest: there is a report.
    Done = 4,
    /// Guest: it failed; the message says why.
    Failed = 5,
    /// Guest: its kernel lacks what was asked for; the message names it.
    Lacking = 6,
    /// Guest: its kernel does not know an option of its command line, or refuses the value; the message names it.
    Misused = 7,
}

impl Header {
    /// As a sector. Long messages are truncated.
    pub fn to_sector(&self) -> [u8; SECTOR] {
        let mut sector = [0; SECTOR];
        let mut message = self.message.as_str();
        while message.len() > SECTOR - 32 {
            let last = message.char_indices().next_back().map_or(0, |(at, _)| at);
            message = &message[..last];
        }
        sector[..8].copy_from_slice(&MAGIC);
        let length = u32::try_from(message.len()).unwrap_or(0);
        let words = [self.number, self.state as u32, self.length, self.crc, length];
        for (place, word) in sector[8..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        sector[28..28 + message.len()].copy_from_slice(message.as_bytes());
        sector
    }

    /// The inverse of [`Header::to_sector`]; `None` when there is no header in it.
    pub fn from_sector(sector: &[u8]) -> Option<Header> {
        let word = |index: usize| {
            let bytes = sector.get(8 + 4 * index..12 + 4 * index)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        if sector.get(..8)? != MAGIC {
            return None;
        }
        let state = match word(1)? {
            1 => MailboxState::Ordered,
            2 => MailboxState::Ready,
            3 => MailboxState::Running,
            4 => MailboxState::Done,
            5 => MailboxState::Failed,
            6 => MailboxState::Lacking,
            7 => MailboxState::Misused,
            _ => return None,
        };
        let message = sector.get(28..28 + word(4)? as usize)?;
        Some(Header {
            number: word(0)?,
            state,
            length: word(2)?,
            crc: word(3)?,
            message: String::from_utf8_lossy(message).into_owned(),
        })
    }
}

/// Sectors needed for this number of bytes.
pub const fn sectors(bytes: usize) -> u64 {
    bytes.div_ceil(SECTOR) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_there_and_back() {
        let header = Header {
            number: 7,
            state: MailboxState::Failed,
            length: 9,
            crc: 0x1234_5678,
            message: "no".into(),
        };
        assert_eq!(Header::from_sector(&header.to_sector()), Some(header));
        assert_eq!(Header::from_sector(&[0; SECTOR]), None);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let header = Header {
            number: 0,
            state: MailboxState::Failed,
            length: 0,
            crc: 0,
            message: "\u{e4}".repeat(400),
        };
        let read = Header::from_sector(&header.to_sector()).map(|h| h.message);
        assert_eq!(read, Some("\u{e4}".repeat(240)));
    }
}
