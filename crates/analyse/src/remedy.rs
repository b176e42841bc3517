//! Remedies: the one table of what can be changed, with the conditions under which it helps.
//!
//! `explain` and `doctor` read it: a remedy that its condition rules out for a kind of VM, a vendor or a VMM is shown by
//! neither. A condition has three answers ([`Applies`]): what is not known is shown as a condition and not as a fact.

mod conditions;
mod context;
mod row;
mod table;

use table::{OF_LINUX, OPPOSITES};

pub(crate) use conditions::{CONTRADICTED, COSTS_MORE, IF_MAPPED_SMALL, IF_NOT_LOGGED};
pub use context::{Applies, Context, VmKind};
pub use row::{Place, Remedy, Setting};
pub use table::REMEDIES;

impl Remedy {
    /// Whether it helps, the guest's system considered.
    pub fn applies_to(&self, context: &Context) -> Applies {
        if context.is_windows && OF_LINUX.contains(&self.id) {
            return Applies::No(
                "it is a setting of Linux guests, and this one uses Hyper-V's interface as Windows does",
            );
        }
        (self.applies)(context)
    }
}

/// Whether two remedies contradict each other.
pub fn are_opposites(a: &str, b: &str) -> bool {
    OPPOSITES.iter().any(|(x, y)| (*x, *y) == (a, b) || (*x, *y) == (b, a))
}

/// The remedy of this word.
pub fn find(id: &str) -> Option<&'static Remedy> {
    REMEDIES.iter().find(|remedy| remedy.id == id)
}

/// The remedy behind a check of `doctor`, where it has one in the table.
pub fn of_check(check: &str) -> Option<&'static Remedy> {
    let id = match check {
        "thp-enabled" | "thp-defrag" | "thp-shmem" | "thp-backing" | "mapped-pages" => "huge-pages",
        "nohz-full" => "host-nohz-full",
        "isolcpus" => "cpu-isolation",
        "guest-clocksource" => "guest-clocksource",
        "shadow-vmcs" => "shadow-vmcs",
        other => other,
    };
    find(id)
}

#[cfg(test)]
mod tests {
    use vmtax_events::Isa;

    use super::*;

    fn contexts() -> Vec<Context> {
        let kinds = [
            VmKind::Plain,
            VmKind::Sev,
            VmKind::Encrypted,
            VmKind::Snp,
            VmKind::Tdx,
            VmKind::Protected,
            VmKind::Unknown,
        ];
        let mut all = Vec::new();
        for kind in kinds {
            for vendor in [Isa::Vmx, Isa::Svm, Isa::Unknown] {
                for bits in 0..256 {
                    let bit = |n: u32| bits >> n & 1 == 1;
                    all.push(Context {
                        kind,
                        vendor,
                        has_virtual_apic: bit(0),
                        is_contended: bit(1),
                        polls: bit(2),
                        guest_memfd: bit(3),
                        logs_writes: bit(4),
                        converts: bit(5),
                        is_windows: bit(6),
                        may_shadow: bit(7),
                    });
                }
            }
        }
        all
    }

    #[test]
    fn words_are_unique() {
        let ids: std::collections::BTreeSet<&str> = REMEDIES.iter().map(|row| row.id).collect();
        assert_eq!(ids.len(), REMEDIES.len());
    }

    /// The setting that doctor gives as a fix is the one that the action names.
    #[test]
    fn actions_name_their_settings() {
        let count = REMEDIES.iter().filter(|row| row.setting.is_some()).count();
        assert!(count >= 15, "{count}");
        for row in REMEDIES {
            let words: Vec<&str> = match row.setting {
                Some(Setting::Module { module, option }) => vec![module, option],
                Some(Setting::Kernel(word)) => vec![word],
                Some(Setting::Qemu { words, option }) => {
                    assert!(words.contains(option), "{words}");
                    vec![option]
                }
                // A sysctl is the file's path with other separators.
                Some(Setting::File { path, value }) => {
                    vec![path.rsplit('/').next().unwrap_or(path), value]
                }
                None => continue,
            };
            for word in words {
                assert!(row.action.contains(word), "{}: {} lacks {word}", row.id, row.action);
            }
        }
    }

    #[test]
    fn opposites_are_remedies() {
        for id in OF_LINUX {
            assert!(find(id).is_some(), "{id}");
        }
        for (a, b) in OPPOSITES {
            assert!(find(a).is_some() && find(b).is_some() && a != b, "{a} {b}");
        }
        assert!(are_opposites("no-idle-poll", "halt-poll") && !are_opposites("vhost", "ioeventfd"));
    }

    /// What is known to be false is ruled out, whatever else holds.
    #[test]
    fn false_remedies_cannot_be_had() {
        let no = |id: &str, context: &Context| {
            matches!(find(id).unwrap().applies_to(context), Applies::No(_))
        };
        for context in &contexts() {
            match context.kind {
                VmKind::Snp => {
                    assert!(no("tsc-deadline", context) && no("huge-pages", context));
                    assert!(no("avic", context));
                }
                VmKind::Protected => assert!(no("huge-pages", context)),
                VmKind::Tdx => {
                    assert!(no("huge-pages", context) && no("preemption-timer", context));
                    assert!(no("ipiv", context));
                }
                _ => {}
            }
            if context.is_windows {
                assert!(OF_LINUX.iter().all(|id| no(id, context)) && no("tsc-deadline", context));
            }
            if context.guest_memfd {
                assert!(no("huge-pages", context));
            }
            if context.is_contended {
                assert!(no("halt-poll", context) && no("guest-idle-poll", context));
                assert!(no("host-nohz-full", context) && no("guest-nohz-full", context));
            }
            if context.vendor == Isa::Svm {
                assert!(no("apicv", context) && no("ept", context) && no("ipiv", context));
            }
            if context.vendor == Isa::Vmx {
                assert!(no("avic", context) && no("npt", context) && no("vls", context));
            }
            if context.kind.is_confidential() {
                assert!(no("no-forced-bounce", context));
            }
        }
    }
}
