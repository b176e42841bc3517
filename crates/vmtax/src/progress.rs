//! A progress bar on the terminal, for inputs that take a while. Silent in a pipe.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use vmtax_capture::source::ReadAt;

/// Inputs below this size are done before a bar could be read.
const LARGE: u64 = 256 << 20;

/// Shows how far into a file the import is.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar for an input of this length, or nothing if it is small or nobody watches.
    pub(crate) fn new(len: u64) -> Progress {
        if len < LARGE || !io::stderr().is_terminal() {
            return Progress { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::new(len);
        let style = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar }
    }

    /// Watches reads of `source`.
    pub(crate) fn watch<'a>(&self, source: &'a dyn ReadAt) -> Watched<'a> {
        Watched { source, bar: self.bar.clone(), read: Arc::default() }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A source whose reads move the bar.
pub(crate) struct Watched<'a> {
    source: &'a dyn ReadAt,
    bar: ProgressBar,
    read: Arc<AtomicU64>,
}

impl ReadAt for Watched<'_> {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.source.read_at(offset, buf)?;
        if !self.bar.is_hidden() {
            let read = self.read.fetch_add(got as u64, Ordering::Relaxed) + got as u64;
            self.bar.set_position(read.min(self.source.len()));
        }
        Ok(got)
    }
}
