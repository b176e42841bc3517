//! No ports: the emulated host's own program talks to nobody outside but through the mailbox. As an L1 it would store to the words of
//! [`vmtax_guest::layout::arm`].

/// The clock of recordings: nanoseconds of the generic timer, which are instructions where it has 1 GHz. Programs read it as
/// `CLOCK_MONOTONIC_RAW`.
pub(crate) const TRACE_CLOCK: &str = "mono_raw";

/// By how much it is ahead of the generic timer.
pub(crate) fn trace_clock_ahead() -> i64 {
    crate::system::clock(libc::CLOCK_MONOTONIC_RAW) - crate::life::machine::ticks() as i64
}

pub(crate) fn out8(_: u16, _: u8) {}

pub(crate) fn out32(_: u16, _: u32) {}

pub(crate) fn in8(_: u16) -> u8 {
    0
}

pub(crate) fn read_bytes(_: u16, into: &mut [u8]) {
    into.fill(0);
}

pub(crate) fn write_fours(_: u16, _: &[u8]) {}

/// No marks: no recorder reads this host's instructions.
pub(crate) struct MarkCode;

impl MarkCode {
    pub(crate) fn new(_: Vec<u16>) -> crate::Result<MarkCode> {
        Ok(MarkCode)
    }

    pub(crate) fn write(&self, _: u16) {}
}

/// There is no order yet.
pub(crate) fn wait() {
    crate::awake::looked();
}
