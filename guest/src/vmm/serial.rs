//! The first serial port, which guests write to by polling.

/// Its first I/O port; it has eight.
pub(super) const COM1: u16 = 0x3f8;

/// Nobody waits for an interrupt of it.
pub(super) struct NoTrigger;

impl vm_superio::Trigger for NoTrigger {
    type E = std::io::Error;

    fn trigger(&self) -> std::io::Result<()> {
        Ok(())
    }
}
