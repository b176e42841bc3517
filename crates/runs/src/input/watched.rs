//! Inputs that show how much of them is read.

use std::io::{self, Read};

use vmtax_capture::source::ReadAt;
use vmtax_cli::progress::{InputShare, ReadingProgress};

pub(crate) struct WatchedFile<'a> {
    source: &'a dyn ReadAt,
    share: InputShare,
}

impl<'a> WatchedFile<'a> {
    pub(crate) fn new(source: &'a dyn ReadAt, progress: &ReadingProgress) -> WatchedFile<'a> {
        WatchedFile { source, share: progress.begin(Some(source.len())) }
    }
}

impl ReadAt for WatchedFile<'_> {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.source.read_at(offset, buf)?;
        self.share.advance(got as u64);
        Ok(got)
    }
}

pub(crate) struct Watched<R> {
    stream: R,
    share: InputShare,
}

impl<R> Watched<R> {
    pub(crate) fn new(stream: R, progress: &ReadingProgress) -> Watched<R> {
        Watched { stream, share: progress.begin(None) }
    }
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.stream.read(buf)?;
        self.share.advance(got as u64);
        Ok(got)
    }
}
