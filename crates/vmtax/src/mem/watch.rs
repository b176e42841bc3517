//! What a person sees of long work, and how it is stopped: a bar on the terminal, and Ctrl-C that cleans up.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
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

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on Ctrl-C and SIGTERM are asked for with [`stopping`] and do not end the program at once.
pub(super) fn catch_signals() -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    if STOP.set(Arc::clone(&stop)).is_ok() {
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // A second one ends the program as usual.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
            signal_hook::flag::register(signal, Arc::clone(&stop))?;
        }
    }
    Ok(())
}

/// An error if someone wants this to end.
pub(super) fn stopping() -> anyhow::Result<()> {
    match STOP.get() {
        Some(stop) if stop.load(Ordering::Relaxed) => anyhow::bail!("stopped; nothing was written"),
        _ => Ok(()),
    }
}
