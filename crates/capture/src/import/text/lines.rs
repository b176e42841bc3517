//! A stream of bytes -> its lines, in one buffer of fixed size.

use std::io::{self, Read};

use crate::Error;

/// Longer lines are cut: no event's line comes near it.
pub(crate) const LONGEST_LINE: usize = 64 << 10;
const BUFFER: usize = 4 * LONGEST_LINE;

/// Reads line by line. A line is lent out of the buffer, without its line end.
pub(crate) struct Lines<'r> {
    input: &'r mut dyn Read,
    buffer: Box<[u8]>,
    /// Unconsumed bytes are `buffer[start..end]`; there is no line end before `scanned`.
    start: usize,
    scanned: usize,
    end: usize,
    /// Offset of `buffer[0]` in the input.
    base: u64,
    at_end: bool,
    /// The rest of a cut line is being skipped.
    skipping: bool,
    /// Lines that were longer than [`LONGEST_LINE`].
    pub(crate) cut: u64,
    /// The last line had no line end: it may be a part of a line.
    pub(crate) unterminated: bool,
}

impl<'r> Lines<'r> {
    /// Reads from here on.
    pub(crate) fn new(input: &'r mut dyn Read) -> Lines<'r> {
        Lines {
            input,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            scanned: 0,
            end: 0,
            base: 0,
            at_end: false,
            skipping: false,
            cut: 0,
            unterminated: false,
        }
    }

    /// Where in the input the next line begins.
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// The next line, or `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<&[u8]>, Error> {
        let (from, to) = loop {
            let unread = self.buffer.get(self.scanned..self.end).unwrap_or_default();
            if let Some(at) = newline(unread) {
                let (from, to) = (self.start, self.scanned + at);
                self.start = to + 1;
                self.scanned = self.start;
                if std::mem::take(&mut self.skipping) {
                    continue;
                }
                break (from, to);
            }
            self.scanned = self.end;
            if self.skipping {
                self.start = self.end;
            } else if self.end - self.start > LONGEST_LINE {
                let from = self.start;
                self.start = self.end;
                self.skipping = true;
                self.cut += 1;
                break (from, from + LONGEST_LINE);
            }
            if self.at_end {
                if self.start == self.end {
                    return Ok(None);
                }
                let from = self.start;
                self.start = self.end;
                self.unterminated = true;
                break (from, self.end);
            }
            self.fill()?;
        };
        let line = self.buffer.get(from..to).unwrap_or_default();
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// Reads more. Unread bytes move to the front only when the buffer is full, so that a reader
    /// that gives single bytes does not make this quadratic.
    fn fill(&mut self) -> Result<(), Error> {
        if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.base += self.start as u64;
            self.end -= self.start;
            self.scanned -= self.start;
            self.start = 0;
        }
        let space = self.buffer.get_mut(self.end..).unwrap_or_default();
        match self.input.read(space) {
            Ok(0) => self.at_end = true,
            Ok(n) => self.end = (self.end + n).min(self.buffer.len()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => {
                return Err(Error::Io { offset: self.base + self.end as u64, source });
            }
        }
        Ok(())
    }
}

/// Position of the first line end. Whole blocks are compared without a branch per byte.
pub(crate) fn newline(text: &[u8]) -> Option<usize> {
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

    /// Gives at most `step` bytes at a time.
    struct Dribble<'a>(&'a [u8], usize);

    impl Read for Dribble<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let n = buf.len().min(self.1).min(self.0.len());
            let (now, later) = self.0.split_at(n);
            buf[..n].copy_from_slice(now);
            self.0 = later;
            Ok(n)
        }
    }

    fn lines(text: &[u8], step: usize) -> (Vec<Vec<u8>>, u64, bool) {
        let mut input = Dribble(text, step);
        let mut lines = Lines::new(&mut input);
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push(line.to_vec());
        }
        assert_eq!(lines.offset(), text.len() as u64);
        (all, lines.cut, lines.unterminated)
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
        let mut text = vec![b'x'; 3 * BUFFER];
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
