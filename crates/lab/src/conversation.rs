//! Orders to the emulated host and its answers, through the mailbox.

use vmtax_guest::mailbox::{Header, ORDER, ORDER_HEADER, REPORT, SECTOR, STATUS, State, sectors};
use vmtax_guest::order::{Order, Report, decode, encode};
use vmtax_machine::{Machine, Mailbox};

use crate::Error;

/// One side of it.
pub(crate) struct Conversation {
    mailbox: Mailbox,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) report: Report,
    /// Name and content.
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

const BYTES: u64 = SECTOR as u64;

impl Conversation {
    pub(crate) fn new(mailbox: Mailbox) -> Conversation {
        Conversation { mailbox }
    }

    /// Waits until the host waits.
    pub(crate) fn ready(&self, machine: &mut Machine) -> Result<(), Error> {
        self.wait(machine, State::Ready, 0).map(drop)
    }

    /// Has an order carried out.
    pub(crate) fn execute(&self, machine: &mut Machine, order: &Order) -> Result<Answer, Error> {
        let bytes = encode(order);
        let number = 1;
        let header = Header {
            number,
            state: State::Ordered,
            length: bytes.len() as u32,
            crc: crc32fast::hash(&bytes),
            message: String::new(),
        };
        self.mailbox.write(ORDER * BYTES, &bytes)?;
        self.mailbox.write(ORDER_HEADER * BYTES, &header.to_sector())?;
        let header = self.wait(machine, State::Done, number)?;
        self.read(&header)
    }

    fn wait(&self, machine: &mut Machine, state: State, number: u32) -> Result<Header, Error> {
        let mut sector = [0; SECTOR];
        let header = machine.wait(|| {
            self.mailbox.read_into(STATUS * BYTES, &mut sector).ok()?;
            let header = Header::from_sector(&sector)?;
            (header.state == State::Failed || (header.state == state && header.number == number))
                .then_some(header)
        })?;
        if header.state == State::Failed {
            return Err(Error::Guest { message: header.message });
        }
        Ok(header)
    }

    fn read(&self, header: &Header) -> Result<Answer, Error> {
        let length = header.length as usize;
        let bytes = self.mailbox.read(REPORT * BYTES, length)?;
        if crc32fast::hash(&bytes) != header.crc {
            return Err(Error::Report { problem: "its checksum is wrong".to_owned() });
        }
        let report: Report = decode(&bytes).ok_or_else(|| Error::Report {
            problem: "it has another form than this vmtax writes and reads".to_owned(),
        })?;
        let mut files = Vec::new();
        let mut sector = REPORT + sectors(length);
        for file in &report.files {
            let length = file.length as usize;
            files.push((file.name.clone(), self.mailbox.read(sector * BYTES, length)?));
            sector += sectors(length);
        }
        Ok(Answer { report, files })
    }
}
