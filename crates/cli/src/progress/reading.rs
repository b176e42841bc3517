//! Progress of reading inputs: one line for all that a command reads, one after the other or at once.

use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::TICK;

/// Reading that takes less time shows nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// How much of the inputs is read, at which rate, and the time left. Clones are the same line.
#[derive(Clone, Debug, Default)]
pub struct ReadingProgress(Arc<Mutex<ReadingState>>);

#[derive(Debug, Default)]
struct ReadingState {
    /// Bytes of all inputs, as far as they were announced.
    announced: u64,
    /// Bytes of the inputs that began.
    begun: u64,
    /// An input of unknown length began.
    endless: bool,
    read: u64,
    /// Inputs that are being read.
    open: usize,
    started: Option<Instant>,
    bar: Option<ProgressBar>,
    is_shown: bool,
}

impl ReadingProgress {
    /// The bytes of several inputs that are read one after the other.
    pub fn announce(&self, bytes: u64) {
        self.lock().announced = bytes;
    }

    /// Begins an input of this many bytes; `None` for a pipe.
    pub fn begin(&self, bytes: Option<u64>) -> InputShare {
        let mut state = self.lock();
        state.begun = state.begun.saturating_add(bytes.unwrap_or(0));
        state.endless |= bytes.is_none();
        state.open += 1;
        state.started.get_or_insert_with(Instant::now);
        state.resize();
        drop(state);
        InputShare { of: self.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, ReadingState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadingState {
    fn total(&self) -> Option<u64> {
        (!self.endless).then(|| self.announced.max(self.begun))
    }

    /// The bar measures the rate from the beginning, though it is shown later.
    fn resize(&mut self) {
        if !io::stderr().is_terminal() {
            return;
        }
        let total = self.total();
        let bar = self.bar.get_or_insert_with(|| {
            ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden())
        });
        let template = match total {
            Some(total) => {
                bar.set_length(total);
                "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left"
            }
            None => "{spinner} {bytes} read, {bytes_per_sec}, {elapsed}",
        };
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    }

    fn advance(&mut self, bytes: u64) {
        self.read = self.read.saturating_add(bytes);
        let Some(bar) = &self.bar else { return };
        bar.set_position(self.total().map_or(self.read, |total| self.read.min(total)));
        if !self.is_shown && self.started.is_some_and(|at| at.elapsed() >= PATIENCE) {
            self.is_shown = true;
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(TICK);
        }
    }

    /// The line is removed when nothing is left to read.
    fn end(&mut self) {
        self.open -= 1;
        if self.open == 0
            && self.begun >= self.announced
            && let Some(bar) = self.bar.take()
        {
            bar.finish_and_clear();
            self.is_shown = false;
        }
    }
}

/// One input that is being read. It ends when it is dropped.
#[derive(Debug)]
pub struct InputShare {
    of: ReadingProgress,
}

impl InputShare {
    /// This many bytes more are read.
    pub fn advance(&self, bytes: u64) {
        self.of.lock().advance(bytes);
    }
}

impl Drop for InputShare {
    fn drop(&mut self) {
        self.of.lock().end();
    }
}
