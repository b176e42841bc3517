//! What a process must be allowed in order to record.

use rustix::thread::{CapabilitySet, capabilities};

use crate::Error;

/// Before Linux 5.8 there were no capabilities of their own for this.
const NEEDED: [(CapabilitySet, &str); 2] =
    [(CapabilitySet::BPF, "CAP_BPF"), (CapabilitySet::PERFMON, "CAP_PERFMON")];

/// Says what is missing.
pub(crate) fn check() -> Result<(), Error> {
    let Ok(sets) = capabilities(None) else { return Ok(()) };
    let missing = missing(sets.effective);
    if missing.is_empty() { Ok(()) } else { Err(Error::Privilege { missing }) }
}

fn missing(has: CapabilitySet) -> String {
    if has.contains(CapabilitySet::SYS_ADMIN) {
        return String::new();
    }
    let words: Vec<&str> =
        NEEDED.iter().filter(|(one, _)| !has.contains(*one)).map(|(_, word)| *word).collect();
    words.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_named() {
        let both = CapabilitySet::BPF | CapabilitySet::PERFMON;
        assert_eq!(missing(both), "");
        assert_eq!(missing(CapabilitySet::SYS_ADMIN), "");
        assert_eq!(missing(CapabilitySet::BPF), "CAP_PERFMON");
        assert_eq!(missing(CapabilitySet::empty()), "CAP_BPF and CAP_PERFMON");
    }
}
