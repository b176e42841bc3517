//! The wire format of protocol buffers, as far as a writer of a trace needs it.
//!
//! <https://protobuf.dev/programming-guides/encoding/>

/// A message being put together.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

const VARINT: u64 = 0;
const LENGTH_DELIMITED: u64 = 2;

impl Message {
    pub(super) fn new() -> Message {
        Message::default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The message behind its tag and length, as a field of the one that holds it all.
    pub(super) fn framed(&self, field: u32) -> Vec<u8> {
        Message::new().message(field, self).bytes
    }

    /// An unsigned integer, an enum or a non-negative int32/int64.
    pub(super) fn uint(mut self, field: u32, value: u64) -> Message {
        self.tag(field, VARINT);
        self.varint(value);
        self
    }

    /// A string or bytes.
    pub(super) fn text(mut self, field: u32, text: &str) -> Message {
        self.delimited(field, text.as_bytes());
        self
    }

    /// A message.
    pub(super) fn message(mut self, field: u32, message: &Message) -> Message {
        self.delimited(field, &message.bytes);
        self
    }

    fn delimited(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, LENGTH_DELIMITED);
        self.varint(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    fn tag(&mut self, field: u32, wire_type: u64) {
        self.varint(u64::from(field) << 3 | wire_type);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification() {
        // message Test1 { int32 a = 1; } with a = 150; message Test2 { string b = 2; } with "testing";
        // message Test3 { Test1 c = 3; }.
        let test1 = Message::new().uint(1, 150);
        assert_eq!(test1.bytes, [0x08, 0x96, 0x01]);
        let test2 = Message::new().text(2, "testing");
        assert_eq!(test2.bytes, b"\x12\x07testing");
        assert_eq!(Message::new().message(3, &test1).bytes, [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(test1.framed(3), [0x1a, 0x03, 0x08, 0x96, 0x01]);
    }

    #[test]
    fn the_largest_integer_takes_ten_bytes() {
        let bytes = Message::new().uint(1, u64::MAX).bytes;
        assert_eq!(bytes, [8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
    }
}
