//! A stream of bytes -> its lines, one after the other.

use std::io::Read;

use super::blocks::{First, TextBlocks};
use crate::Error;

/// Reads line by line. A line is lent out of the buffer, without its line end.
pub(crate) struct TextLines<'r> {
    blocks: TextBlocks<'r>,
    block: Vec<u8>,
    /// Offset of the block in the input, and of the next line in the block.
    base: u64,
    at: usize,
    /// Lines that were longer than [`super::blocks::LONGEST_LINE`].
    pub(crate) cut: u64,
}

impl<'r> TextLines<'r> {
    /// Reads from here on.
    pub(crate) fn new(input: &'r mut dyn Read) -> TextLines<'r> {
        TextLines { blocks: TextBlocks::new(input), block: Vec::new(), base: 0, at: 0, cut: 0 }
    }

    /// Where in the input the next line begins.
    pub(crate) fn offset(&self) -> u64 {
        if self.at < self.block.len() { self.base + self.at as u64 } else { self.blocks.offset }
    }

    /// After the last line: the input does not end with a line end, so the line may be incomplete.
    pub(crate) fn is_unterminated(&self) -> bool {
        self.blocks.is_unterminated
    }

    /// The next line, or `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, Error> {
        if self.at >= self.block.len() {
            let Some(base) = self.blocks.next(&mut self.block)? else { return Ok(None) };
            (self.base, self.at) = (base, 0);
        }
        let first = First::of(self.block.get(self.at..).unwrap_or_default());
        self.at += first.len;
        self.cut += u64::from(first.is_cut);
        Ok(Some(first.line))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::import::text::blocks::LONGEST_LINE;

    /// Gives at most `step` bytes at a time.
    struct DribbleLines<'a>(&'a [u8], usize);

    impl Read for DribbleLines<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let n = buf.len().min(self.1).min(self.0.len());
            let (now, later) = self.0.split_at(n);
            buf[..n].copy_from_slice(now);
            self.0 = later;
            Ok(n)
        }
    }

    fn lines(text: &[u8], step: usize) -> (Vec<Vec<u8>>, u64, bool) {
        let mut input = DribbleLines(text, step);
        let mut lines = TextLines::new(&mut input);
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push(line.to_vec());
        }
        assert_eq!(lines.offset(), text.len() as u64);
        (all, lines.cut, lines.is_unterminated())
    }

    #[test]
    fn line_ends() {
        for step in [1, 2, 7, 1 << 20] {
            let (all, cut, unterminated) = lines(b"a\r\n\nbc\nd", step);
            assert_eq!(all, [&b"a"[..], b"", b"bc", b"d"]);
            assert_eq!((cut, unterminated), (0, true));
        }
        assert_eq!(lines(b"", 1), (vec![], 0, false));
    }

    #[test]
    fn long_lines_are_cut() {
        let mut text = vec![b'x'; 3 * (256 << 10)];
        text.extend_from_slice(b"\nshort\n");
        text.extend(vec![b'y'; LONGEST_LINE]);
        text.push(b'\n');
        for step in [4096, 1 << 20] {
            let (all, cut, unterminated) = lines(&text, step);
            assert_eq!(
                all.iter().map(Vec::len).collect::<Vec<_>>(),
                [LONGEST_LINE, 5, LONGEST_LINE]
            );
            assert_eq!((cut, unterminated), (1, false));
        }
    }
}
