//! Progress on the terminal that standard error is. Silent in a pipe.

mod reading;

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
pub use reading::{InputShare, ReadingProgress};

/// How often a bar is painted while nothing changes.
const TICK: Duration = Duration::from_millis(200);

/// A bar, or a spinner; removed when it is dropped. Clones are the same bar.
#[derive(Clone, Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// Removes the bar with the last clone.
    _end: std::sync::Arc<BarEnd>,
}

#[derive(Debug)]
struct BarEnd(ProgressBar);

impl Drop for BarEnd {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Progress {
    pub fn hidden() -> Progress {
        Progress::of(ProgressBar::hidden())
    }

    /// A bar of this many bytes.
    pub fn bytes(len: u64) -> Progress {
        Progress::styled(
            || ProgressBar::new(len),
            "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        )
    }

    /// A bar of this many of something, with a message.
    pub fn count(len: u64, unit: &str) -> Progress {
        Progress::styled(
            || ProgressBar::new(len),
            &format!("{{bar:30}} {{pos}} of {{len}} {unit}, {{msg}}"),
        )
    }

    /// A spinner with a message, for work of unknown length.
    pub fn spinner() -> Progress {
        Progress::styled(ProgressBar::new_spinner, "{spinner} {msg} ({elapsed})")
    }

    fn styled(make: impl FnOnce() -> ProgressBar, template: &str) -> Progress {
        if !io::stderr().is_terminal() {
            return Progress::hidden();
        }
        let bar = make();
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(TICK);
        Progress::of(bar)
    }

    fn of(bar: ProgressBar) -> Progress {
        Progress { _end: std::sync::Arc::new(BarEnd(bar.clone())), bar }
    }

    /// How far the work is.
    pub fn at(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// One more is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// What is being done.
    pub fn say(&self, what: impl Into<String>) {
        self.bar.set_message(what.into());
    }

    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
