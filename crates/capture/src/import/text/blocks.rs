//! A stream of bytes -> blocks of whole lines, which several threads can decode.

use std::io::{self, Read};

use crate::Error;

/// Longer lines are cut: no event's line comes near it.
pub(crate) const LONGEST_LINE: usize = 64 << 10;
/// Bytes that are read at a time; more than [`LONGEST_LINE`].
const BLOCK: usize = 128 << 10;

/// Reads blocks, each up to its last line end.
pub(super) struct TextBlocks<'r> {
    input: &'r mut dyn Read,
    /// Start of a line that ends in the next block.
    part: Vec<u8>,
    /// Offset in the input of the next block.
    pub(super) offset: u64,
    at_end: bool,
    failed: Option<io::Error>,
    /// The rest of a cut line is being skipped.
    is_skipping: bool,
    /// The input does not end with a line end: its last line may be incomplete.
    pub(super) is_unterminated: bool,
}

impl<'r> TextBlocks<'r> {
    /// Reads from here on.
    pub(super) fn new(input: &'r mut dyn Read) -> TextBlocks<'r> {
        TextBlocks {
            input,
            part: Vec::new(),
            offset: 0,
            at_end: false,
            failed: None,
            is_skipping: false,
            is_unterminated: false,
        }
    }

    /// Fills `block` with whole lines and returns its offset in the input, or `None` at the end. A line longer than a block
    /// becomes one block that is truncated, but still longer than [`LONGEST_LINE`].
    pub(super) fn next(&mut self, block: &mut Vec<u8>) -> Result<Option<u64>, Error> {
        block.clear();
        block.append(&mut self.part);
        self.fill(block);
        while self.is_skipping && !block.is_empty() {
            let end = newline(block).map(|at| at + 1);
            let skipped = end.unwrap_or(block.len());
            self.is_skipping = end.is_none();
            self.offset += skipped as u64;
            block.drain(..skipped);
            self.fill(block);
        }
        let whole = block.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        if whole == 0 && block.len() >= BLOCK {
            let offset = self.offset;
            self.offset += block.len() as u64;
            self.is_skipping = true;
            block.truncate(LONGEST_LINE + 1);
            return Ok(Some(offset));
        }
        // Lines before a read error are returned first.
        if let Some(source) = self.failed.take_if(|_| whole == 0) {
            return Err(Error::Io { offset: self.offset + block.len() as u64, source });
        }
        if self.at_end && self.failed.is_none() {
            self.is_unterminated |= whole < block.len();
        } else {
            self.part.extend_from_slice(block.get(whole..).unwrap_or_default());
            block.truncate(whole);
        }
        let offset = self.offset;
        self.offset += block.len() as u64;
        Ok((!block.is_empty()).then_some(offset))
    }

    /// Reads until the block is full, or the input ends or fails.
    fn fill(&mut self, block: &mut Vec<u8>) {
        let room = BLOCK.saturating_sub(block.len()) as u64;
        if self.at_end || room == 0 {
            return;
        }
        block.reserve_exact(room as usize);
        match Read::take(&mut self.input, room).read_to_end(block) {
            Ok(got) => self.at_end = (got as u64) < room,
            Err(error) => {
                self.at_end = true;
                self.failed = Some(error);
            }
        }
    }
}

/// The first line of a block, or of the rest of one.
pub(super) struct First<'t> {
    /// Without its line end, and not longer than [`LONGEST_LINE`].
    pub(super) line: &'t [u8],
    /// Offset of the next line.
    pub(super) len: usize,
    pub(super) is_cut: bool,
}

impl First<'_> {
    pub(super) fn of(lines: &[u8]) -> First<'_> {
        let len = newline(lines).unwrap_or(lines.len());
        let whole = lines.get(..len).unwrap_or_default();
        let line = whole.get(..LONGEST_LINE).unwrap_or(whole);
        let is_cut = line.len() < whole.len();
        First { line: line.strip_suffix(b"\r").unwrap_or(line), len: len + 1, is_cut }
    }
}

/// Position of the first line end. Whole blocks are compared without a branch per byte.
fn newline(text: &[u8]) -> Option<usize> {
    let (blocks, _) = text.as_chunks::<32>();
    let mut from = 0;
    for block in blocks {
        if block.iter().fold(false, |found, &b| found | (b == b'\n')) {
            break;
        }
        from += block.len();
    }
    let rest = text.get(from..)?;
    rest.iter().position(|&b| b == b'\n').map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives at most `step` bytes at a time, and an error at the end if `fails`.
    struct Dribble<'a> {
        text: &'a [u8],
        step: usize,
        fails: bool,
    }

    impl Read for Dribble<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            if self.text.is_empty() && self.fails {
                return Err(io::Error::other("no more"));
            }
            let (now, later) = self.text.split_at(buf.len().min(self.step).min(self.text.len()));
            buf[..now.len()].copy_from_slice(now);
            self.text = later;
            Ok(now.len())
        }
    }

    type Placed = Vec<(u64, Vec<u8>)>;

    /// The blocks with their offsets, and whether the last line is incomplete; or the offset of an error.
    fn blocks(text: &[u8], step: usize, fails: bool) -> (Placed, Result<bool, u64>) {
        let mut input = Dribble { text, step, fails };
        let mut blocks = TextBlocks::new(&mut input);
        let (mut all, mut block) = (Vec::new(), Vec::new());
        loop {
            match blocks.next(&mut block) {
                Ok(Some(offset)) => all.push((offset, block.clone())),
                Ok(None) => return (all, Ok(blocks.is_unterminated)),
                Err(Error::Io { offset, .. }) => return (all, Err(offset)),
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn blocks_are_whole_lines_wherever_reads_end() {
        let line = [&[b'x'; 99][..], b"\n"].concat();
        let text = line.repeat(4000);
        for step in [1000, BLOCK - 1, BLOCK, 1 << 20] {
            for cut in [text.len(), text.len() - 1, text.len() - 50] {
                let (all, end) = blocks(&text[..cut], step, false);
                assert_eq!(end, Ok(cut < text.len()));
                let mut next = 0;
                for (offset, block) in &all {
                    assert_eq!((*offset, block.len() <= BLOCK), (next as u64, true));
                    next += block.len();
                    assert!(block.ends_with(b"\n") || next == cut, "{offset}");
                }
                assert_eq!(
                    all.into_iter().flat_map(|(_, block)| block).collect::<Vec<u8>>(),
                    text[..cut]
                );
            }
        }
    }

    #[test]
    fn a_line_longer_than_a_block_is_cut() {
        for len in [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK] {
            let text = [&b"a\n"[..], &vec![b'x'; len], b"\nb\n"].concat();
            let (all, end) = blocks(&text, 5000, false);
            assert_eq!(end, Ok(false));
            assert_eq!(all.first().unwrap(), &(0, b"a\n".to_vec()));
            let (offset, last) = all.last().unwrap();
            assert_eq!(offset + last.len() as u64, text.len() as u64);
            assert!(last.ends_with(b"\nb\n") || last == b"b\n");
            let long = all.iter().find(|(offset, _)| *offset == 2).unwrap();
            assert!(long.1.len() > LONGEST_LINE && long.1.starts_with(&[b'x'; LONGEST_LINE + 1]));
        }
        // Without a line end, nothing follows it.
        let (all, end) = blocks(&vec![b'x'; 2 * BLOCK], 5000, false);
        assert_eq!((all.len(), end), (1, Ok(false)));
    }

    #[test]
    fn lines_before_an_error_come_before_it() {
        assert_eq!(blocks(b"a\nbc", 1, true), (vec![(0, b"a\n".to_vec())], Err(4)));
        assert_eq!(blocks(b"", 1, true), (vec![], Err(0)));
    }
}
