//! What a person sees of long work: a bar on the terminal.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How far the work is. Silent in a pipe.
pub(super) struct Watch {
    bar: ProgressBar,
}

impl Watch {
    pub(super) fn new(bytes: u64) -> Watch {
        if !io::stderr().is_terminal() {
            return Watch { bar: ProgressBar::hidden() };
        }
        let bar = ProgressBar::new(bytes);
        let style = "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
        let style = ProgressStyle::with_template(style);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_millis(200));
        Watch { bar }
    }

    pub(super) fn at(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
