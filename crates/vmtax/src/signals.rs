//! SIGINT, SIGTERM and SIGHUP as a stop request, for commands that have something to undo.

use std::io;
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use vmtax_machine::Stop;

/// From now on the first of these signals is a request and the second one ends the program. Signals that are ignored, as
/// nohup has it, stay ignored.
pub(crate) fn catch(stop: &Stop) -> io::Result<()> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = ignored(&status);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if ignored & (1 << (signal - 1)) == 0 {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(stop.flag()))?;
            signal_hook::flag::register(signal, Arc::clone(stop.flag()))?;
        }
    }
    Ok(())
}

/// A bit for each ignored signal, from the text of `/proc/PID/status`.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_known() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000001001\n"), 1 << 12 | 1 << (SIGHUP - 1));
        assert_eq!(ignored("Name:\tx\n"), 0);
    }
}
