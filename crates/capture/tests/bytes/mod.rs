//! Bytes of files that tests write.

/// Bytes in one byte order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bytes {
    pub(crate) big: bool,
    pub(crate) bytes: Vec<u8>,
}

impl Bytes {
    pub(crate) fn new(big: bool) -> Bytes {
        Bytes { big, bytes: Vec::new() }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) -> &mut Bytes {
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u16(&mut self, n: u16) -> &mut Bytes {
        let raw = if self.big { n.to_be_bytes() } else { n.to_le_bytes() };
        self.put(&raw)
    }

    pub(crate) fn u32(&mut self, n: u32) -> &mut Bytes {
        let raw = if self.big { n.to_be_bytes() } else { n.to_le_bytes() };
        self.put(&raw)
    }

    pub(crate) fn u64(&mut self, n: u64) -> &mut Bytes {
        let raw = if self.big { n.to_be_bytes() } else { n.to_le_bytes() };
        self.put(&raw)
    }

    pub(crate) fn at(&self) -> u64 {
        self.bytes.len() as u64
    }
}
