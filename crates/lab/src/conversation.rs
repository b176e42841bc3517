//! Orders to the agent in a machine and its answers, through the mailbox.

use std::path::{Component, Path};

use vmtax_guest::mailbox::{
    Header, MailboxState, ORDER, ORDER_HEADER, REPORT, SECTOR, STATUS, sectors,
};
use vmtax_guest::order::{FollowingFile, Order, Report, decode, encode};
use vmtax_machine::{Machine, Mailbox};

use crate::Error;

/// Our side of the conversation.
#[derive(Debug)]
pub struct Conversation {
    mailbox: Mailbox,
    /// Number of the last order.
    last: u32,
    /// Number of an order that was sent before the machine ran, and is to be executed.
    early: Option<u32>,
}

pub(crate) struct GuestAnswer {
    pub(crate) report: Report,
    pub(crate) files: Vec<(String, Vec<u8>)>,
}

const BYTES: u64 = SECTOR as u64;

impl Conversation {
    /// Begins it with a machine that has this mailbox.
    pub fn new(mailbox: Mailbox) -> Conversation {
        Conversation { mailbox, last: 0, early: None }
    }

    /// Waits until the agent is ready for an order.
    pub fn ready(&self, machine: &mut Machine) -> Result<(), Error> {
        self.wait(machine, 0, |header| header.state == MailboxState::Ready).map(drop)
    }

    /// Sends an order to a saved machine before it goes on: then it arrives at the same moment of the machine's time in each run.
    pub(crate) fn send_early(&mut self, order: &Order) -> Result<(), Error> {
        self.early = Some(self.order(&encode(order))?);
        Ok(())
    }

    /// Takes back what was sent to a machine that did not go on.
    pub(crate) fn withdraw(&mut self) -> Result<(), Error> {
        self.mailbox.clear()?;
        *self = Conversation::new(self.mailbox.clone());
        Ok(())
    }

    /// Sends an order, if it was not sent before the machine ran, and waits for its report.
    ///
    /// If the order requests them, the host's functions are passed to `functions` before the first operation.
    pub(crate) fn execute(
        &mut self,
        machine: &mut Machine,
        order: &Order,
        functions: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<GuestAnswer, Error> {
        let number = match self.early.take() {
            Some(number) => number,
            None => self.order(&encode(order))?,
        };
        if order.functions {
            let told = self.wait(machine, number, |header| {
                header.state == MailboxState::Running && header.length > 0
            })?;
            functions(&self.answered(&told)?)?;
            self.last += 1;
            self.announce(self.last, &[])?;
        }
        let bytes = self.answer(machine, number)?;
        let report: Report = decode(&bytes).ok_or_else(strange)?;
        let files = self.files(bytes.len(), &report.files)?;
        Ok(GuestAnswer { report, files })
    }

    /// Sends bytes and returns the answer.
    pub fn ask(&mut self, machine: &mut Machine, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let number = self.order(bytes)?;
        self.answer(machine, number)
    }

    /// The same, of an order whose guest tells something before it goes on, if it gets that far.
    pub(crate) fn ask_told(
        &mut self,
        machine: &mut Machine,
        bytes: &[u8],
        told: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<Vec<u8>, Error> {
        let number = self.order(bytes)?;
        let header = self.wait(machine, number, |header| {
            let tells = header.state == MailboxState::Running && header.length > 0;
            tells || header.state == MailboxState::Done
        })?;
        let answer = self.answered(&header)?;
        if header.state == MailboxState::Done {
            return Ok(answer);
        }
        told(&answer)?;
        self.last += 1;
        self.announce(self.last, &[])?;
        self.answer(machine, number)
    }

    /// Sends bytes; returns the number of the order.
    fn order(&mut self, bytes: &[u8]) -> Result<u32, Error> {
        if bytes.len() as u64 > (REPORT - ORDER) * BYTES {
            let message = "what it is to do is too large for the mailbox".to_owned();
            return Err(Error::Guest { message });
        }
        self.last += 1;
        self.mailbox.write(ORDER * BYTES, bytes)?;
        self.announce(self.last, bytes)?;
        Ok(self.last)
    }

    /// Writes the header of the order.
    fn announce(&self, number: u32, bytes: &[u8]) -> Result<(), Error> {
        let header = Header {
            number,
            state: MailboxState::Ordered,
            length: bytes.len() as u32,
            crc: crc32fast::hash(bytes),
            message: String::new(),
        };
        Ok(self.mailbox.write(ORDER_HEADER * BYTES, &header.to_sector())?)
    }

    fn answer(&self, machine: &mut Machine, number: u32) -> Result<Vec<u8>, Error> {
        let header = self.wait(machine, number, |header| header.state == MailboxState::Done)?;
        self.answered(&header)
    }

    /// The report that a header announces.
    fn answered(&self, header: &Header) -> Result<Vec<u8>, Error> {
        let bytes = self.mailbox.read(REPORT * BYTES, header.length as usize)?;
        if crc32fast::hash(&bytes) != header.crc {
            return Err(Error::Report { problem: "its checksum is wrong".to_owned() });
        }
        Ok(bytes)
    }

    /// The files that follow a report of this length. Their names come from the guest and are checked to stay within a folder.
    pub(crate) fn files(
        &self,
        length: usize,
        files: &[FollowingFile],
    ) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let mut found = Vec::new();
        let mut sector = REPORT + sectors(length);
        for file in files {
            if !is_within(&file.name) {
                let problem = format!(
                    "a file of it is called {:?}, which is not a path within the run",
                    file.name
                );
                return Err(Error::Report { problem });
            }
            let length = file.length as usize;
            found.push((file.name.clone(), self.mailbox.read(sector * BYTES, length)?));
            sector += sectors(length);
        }
        Ok(found)
    }

    /// Waits for a matching header with this number, or for a failure.
    fn wait(
        &self,
        machine: &mut Machine,
        number: u32,
        is_wanted: impl Fn(&Header) -> bool,
    ) -> Result<Header, Error> {
        let mut sector = [0; SECTOR];
        let header = machine.wait(|| {
            self.mailbox.read_into(STATUS * BYTES, &mut sector).ok()?;
            let header = Header::from_sector(&sector)?;
            let is_over = matches!(
                header.state,
                MailboxState::Failed | MailboxState::Lacking | MailboxState::Misused
            );
            (is_over || (header.number == number && is_wanted(&header))).then_some(header)
        })?;
        match header.state {
            MailboxState::Failed => Err(Error::Guest { message: header.message }),
            MailboxState::Lacking => Err(Error::Lacking { what: header.message }),
            MailboxState::Misused => Err(Error::Option { problem: header.message }),
            _ => Ok(header),
        }
    }
}

/// Whether a path stays within its folder.
fn is_within(name: &str) -> bool {
    let mut parts = Path::new(name).components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// The error for an answer in the format of another version.
pub(crate) fn strange() -> Error {
    Error::Report { problem: "it has another form than this vmtax writes and reads".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_from_a_guest_stay_within_the_run() {
        let mailbox = Mailbox::new().expect("memory");
        mailbox.write(REPORT * BYTES, b"a report").expect("room");
        mailbox.write((REPORT + 1) * BYTES, b"left").expect("room");
        let conversation = Conversation::new(mailbox);
        let files = |name: &str, length: u32| {
            conversation.files(8, &[FollowingFile { name: name.to_owned(), length }])
        };
        assert_eq!(
            files("observer/a.txt", 4).expect("a file"),
            [("observer/a.txt".to_owned(), b"left".to_vec())]
        );
        for name in ["", "/", "/etc/x", "..", "../x", "a/../../x", "./x"] {
            let Err(Error::Report { problem }) = files(name, 4) else { panic!("{name:?}") };
            assert!(problem.contains(&format!("{name:?}")), "{problem}");
        }
        // More than fits in the mailbox.
        let error = files("a", u32::MAX).expect_err("it is too long");
        assert!(error.to_string().contains("beyond the end"), "{error}");
    }
}
