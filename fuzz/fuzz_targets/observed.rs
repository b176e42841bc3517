//! Bytes as the text of an ordinary tool (top, mpstat, /proc/interrupts, logs): what it shows are parts and counts that can be.
#![no_main]

use vmtax_capture::observed;
use vmtax_events::observed::Observed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((tool, all)) = observed::read(&String::from_utf8_lossy(data)) else { return };
    assert!(!tool.is_empty());
    for one in all {
        let is_possible = match one {
            Observed::Steal(part) => (0.0..=1.0).contains(&part),
            Observed::Throttled { throttled, periods } => throttled <= periods,
            Observed::Thread(_, processors) => processors.is_finite() && processors >= 0.0,
            Observed::Swapping { out, back } => out.is_finite() && back.is_finite() && out >= 0.0 && back >= 0.0,
            Observed::Line { count, all, .. } => count <= all,
            Observed::LateRuns { count, .. } => count > 0,
            _ => true,
        };
        assert!(is_possible, "{one:?}");
    }
});
