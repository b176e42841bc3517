//! Bytes as the text of an ordinary tool (top, mpstat, /proc/interrupts, logs), and as results that people post: what they show are parts and counts that can be.
#![no_main]

use vmtax_capture::{figures, observed};
use vmtax_events::observed::Observed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let figures = figures::read(&text).unwrap_or_default();
    assert!(figures.iter().all(|one| one.value.is_finite() && !one.category.is_empty()));
    let named = observed::named_costs(&text);
    assert!(named.iter().enumerate().all(|(at, one)| !named[..at].contains(one)));
    let Some((tool, all)) = observed::read(&text) else { return };
    assert!(!tool.is_empty());
    for one in all {
        let is_possible = match one {
            Observed::Steal(part) => (0.0..=1.0).contains(&part),
            Observed::Throttled { throttled, periods } => throttled <= periods,
            Observed::Thread(_, processors) => processors.is_finite() && processors >= 0.0,
            Observed::Swapping { out, back } => out.is_finite() && back.is_finite() && out >= 0.0 && back >= 0.0,
            Observed::Disk { busy, await_ms, .. } => {
                (0.0..=1.0).contains(&busy) && await_ms.is_finite() && await_ms >= 0.0
            }
            Observed::Line { count, all, .. } => count <= all,
            Observed::LateRuns { count, .. } => count > 0,
            Observed::BootGaps { count, ns, all_ns, before } => {
                count > 0 && ns <= all_ns + 1 && !before.as_str().is_empty()
            }
            Observed::StuckIn(name) | Observed::BlockedIn(name) | Observed::VmmBlockedIn(name) => !name.as_str().is_empty(),
            _ => true,
        };
        assert!(is_possible, "{one:?}");
    }
});
