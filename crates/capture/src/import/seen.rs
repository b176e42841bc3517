//! Which events of KVM a recording holds, and what that means when no exit is among them.
//!
//! A report without exits looks as if the guest had never left, so its reason is a loss: `kvm_exit` was not recorded,
//! or the host's KVM does not report its exits by it (PVM's does not).

use std::collections::BTreeMap;

use super::Imported;

/// Different events that are counted. A kernel has about a hundred.
const MOST_NAMES: usize = 1024;
/// Events that the sentence names, those that occur most.
const MOST_NAMED: usize = 8;

/// How to record what the analysis needs.
pub(crate) const RECORD: &str =
    "perf record -a -e 'kvm:*' -e sched:sched_switch -o perf.data sleep 10";

/// An event that no other architecture has.
const OF_ARM64: &str = "kvm_get_timer_map";

/// Counts of KVM's events by the name of their tracepoint, wanted or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenEvents {
    counts: BTreeMap<String, u64>,
}

impl SeenEvents {
    /// Counts `n` more of one event.
    pub(crate) fn add(&mut self, name: &str, n: u64) {
        if let Some(count) = self.counts.get_mut(name) {
            *count = count.saturating_add(n);
        } else if n > 0 && self.counts.len() < MOST_NAMES {
            self.counts.insert(name.to_owned(), n);
        }
    }

    /// Counts those of a part of the recording.
    pub(crate) fn add_all(&mut self, part: &SeenEvents) {
        part.counts.iter().for_each(|(name, n)| self.add(name, *n));
    }

    /// How often an event occurs.
    pub fn of(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    fn total(&self) -> u64 {
        self.counts.values().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// `kvm_cpuid 256, kvm_userspace_exit 110`, those that occur most first.
    fn list(&self) -> String {
        let mut counts: Vec<(&String, u64)> =
            self.counts.iter().map(|(name, n)| (name, *n)).collect();
        counts.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let named = counts.iter().take(MOST_NAMED).map(|(name, n)| format!("{name} {n}"));
        let mut list = named.collect::<Vec<_>>().join(", ");
        if counts.len() > MOST_NAMED {
            list += &format!(" and {} more", counts.len() - MOST_NAMED);
        }
        list
    }
}

/// Says why a recording of events has no exits.
pub(super) fn check(imported: &mut Imported) {
    let Imported { recording, losses, seen, .. } = imported;
    if seen.of("kvm_exit") > 0 {
        return;
    }
    let total = seen.total();
    let sentence = match (total, recording.coverage.exits) {
        // The events that are left were recorded outside of the guest's context.
        _ if recording.format == "perf script" && seen.of(OF_ARM64) > 0 => format!(
            "The text holds {total} events of KVM on arm64 ({}) and no kvm_exit: perf script leaves out samples that it takes for the guest's, which kvm_exit and kvm_entry are among. `perf script --guest-code` prints them all; or give the recording itself (perf.data). If kvm_exit was not recorded: `{RECORD}`.",
            seen.list()
        ),
        (0, _) if recording.together.host.is_some() => {
            "The recording is a guest's (trace-cmd record -A) and holds no event of KVM: exits are in the recording of its host.".to_owned()
        }
        // Recorded, and nothing of KVM happened: no VM ran.
        (0, true) => return,
        (0, false) => format!(
            "The recording holds no event of KVM, so exits are not known: record them with `{RECORD}`."
        ),
        (_, true) => format!(
            "kvm_exit was recorded and did not occur among {total} events of KVM ({}), so exits are not known: some hosts do not report them by it (kvm_pvm does not); record on one with kvm_intel or kvm_amd.",
            seen.list()
        ),
        (_, false) => format!(
            "The recording holds {total} events of KVM ({}) and no kvm_exit, so exits are not known: record them with `{RECORD}`.",
            seen.list()
        ),
    };
    losses.missing.push(sentence);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_bounded_and_in_order() {
        let mut seen = SeenEvents::default();
        for n in 0..2000 {
            seen.add(&format!("kvm_{n}"), n);
        }
        seen.add("kvm_5", 10_000);
        assert_eq!(seen.counts.len(), MOST_NAMES);
        let list = seen.list();
        assert!(list.starts_with("kvm_5 10005, kvm_1024 1024, kvm_1023 1023, "), "{list}");
        assert!(list.ends_with(" and 1016 more"), "{list}");
    }
}
