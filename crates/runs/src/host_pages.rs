//! Measures inside a VM in what pages its host maps it, and judges.

use vmtax_analyse::host_pages::{Judged, judge};
use vmtax_events::setting::host_pages::HostPages;

/// Measurements at most.
const ATTEMPTS: usize = 3;

/// Looks at this system. What was too noisy for a verdict is measured again.
pub fn of_this_system() -> (HostPages, Judged) {
    let mut found = once();
    for _ in 1..ATTEMPTS {
        if !found.1.is_noisy() {
            break;
        }
        let took_ns = found.0.took_ns;
        found = once();
        found.0.took_ns += took_ns;
    }
    found
}

fn once() -> (HostPages, Judged) {
    let pages = vmtax_host::host_pages::this_system();
    let judged = judge(&pages);
    (pages, judged)
}
