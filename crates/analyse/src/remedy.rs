//! Remedies: the one table of what can be changed, with the conditions under which it helps.
//!
//! `explain` and `doctor` read it: a remedy that its condition rules out for a kind of VM, a vendor or a VMM is shown by
//! neither. A condition has three answers ([`Applies`]): what is not known is shown as a condition and not as a fact.

mod conditions;
mod context;
mod id;
mod row;
mod table;
mod trial;

use vmtax_events::Isa;

use crate::audit::CheckId;

use table::{OF_ANY_ISA, OF_LINUX, OPPOSITES};

pub(crate) use conditions::{CONTRADICTED, COSTS_MORE, IF_MAPPED_SMALL, IF_NOT_LOGGED};
pub use context::{Applies, Context, VmKind};
pub use id::RemedyId;
pub use row::{Remedy, RemedyPlace, Setting};
pub use table::REMEDIES;
pub use trial::{Figures, Trial, TrialEffect, TrialHost, TrialUnit, TrialVmm, Tried, Untried};

impl Remedy {
    /// Whether it is known on this ISA at all.
    pub fn is_of(&self, isa: Isa) -> bool {
        isa.facts().is_x86() || OF_ANY_ISA.contains(&self.id)
    }

    /// Whether it helps, the guest's system considered.
    pub fn applies_to(&self, context: &Context) -> Applies {
        if !self.is_of(context.vendor) {
            return Applies::No("nobody has shown that the remedy helps on this architecture");
        }
        if context.is_of_other_host && self.place != RemedyPlace::Guest {
            return Applies::No("the host does not run KVM");
        }
        if context.is_windows && OF_LINUX.contains(&self.id) {
            return Applies::No(
                "it is a setting of Linux guests, and this one uses Hyper-V's interface as Windows does",
            );
        }
        (self.applies)(context)
    }
}

/// Whether two remedies contradict each other.
pub fn are_opposites(a: RemedyId, b: RemedyId) -> bool {
    OPPOSITES.contains(&(a, b)) || OPPOSITES.contains(&(b, a))
}

impl RemedyId {
    /// Its row of the table.
    pub fn row(self) -> &'static Remedy {
        &REMEDIES[self as usize]
    }
}

/// The remedy behind a check of `doctor`, where it has one in the table.
pub fn of_check(check: CheckId) -> Option<&'static Remedy> {
    let id = match check {
        CheckId::ThpEnabled
        | CheckId::ThpDefrag
        | CheckId::ThpShmem
        | CheckId::ThpBacking
        | CheckId::MappedPages => RemedyId::HugePages,
        CheckId::NohzFull => RemedyId::HostNohzFull,
        CheckId::Isolcpus => RemedyId::CpuIsolation,
        CheckId::HvEnlightenments => RemedyId::HvStimer,
        other => RemedyId::from_name(other.name())?,
    };
    Some(id.row())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts() -> Vec<Context> {
        let kinds = [
            VmKind::Plain,
            VmKind::Sev,
            VmKind::SevEs,
            VmKind::Encrypted,
            VmKind::Snp,
            VmKind::Tdx,
            VmKind::Protected,
            VmKind::Unknown,
        ];
        let mut all = Vec::new();
        for kind in kinds {
            for vendor in Isa::ALL {
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
                        has_hyperv_timer: false,
                        is_of_other_host: false,
                        may_shadow: bit(7),
                    });
                }
            }
        }
        all
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

    /// What was not tried has a reason, most often hardware.
    #[test]
    fn few_remedies_are_untried() {
        let is = |row: &&Remedy| matches!(row.id.trial(), Trial::Untried(_));
        assert_eq!(REMEDIES.iter().filter(is).count(), 12);
    }

    #[test]
    fn a_trial_says_what_it_did_to_the_count() {
        for (id, effect) in [
            (RemedyId::VirtioDisk, TrialEffect::Fewer),
            (RemedyId::GuestClocksource, TrialEffect::Fewer),
            (RemedyId::Ioeventfd, TrialEffect::More),
            (RemedyId::Vhost, TrialEffect::Same),
            (RemedyId::NoIdlePoll, TrialEffect::Same),
            (RemedyId::TscDeadline, TrialEffect::Same),
            (RemedyId::GuestHaltpoll, TrialEffect::Same),
            (RemedyId::PreemptionTimer, TrialEffect::Fewer),
            (RemedyId::GuestIdlePoll, TrialEffect::Same),
            (RemedyId::NoHvVapic, TrialEffect::More),
            (RemedyId::ThpDefer, TrialEffect::More),
            (RemedyId::BounceSize, TrialEffect::Same),
        ] {
            let Trial::Tried(tried) = id.trial() else { panic!("{id} was not tried") };
            assert_eq!(tried.effect(), effect, "{id}");
        }
        for row in REMEDIES {
            let Trial::Tried(tried) = row.id.trial() else { continue };
            for Figures { least, most } in [tried.before, tried.after] {
                assert!(least <= most, "{}", row.id);
            }
            // Exits that a remedy removes did not stay in its trial.
            let fewer = tried.effect() == TrialEffect::Fewer;
            assert!(row.removes.is_none() || fewer, "{}", row.id);
        }
    }

    #[test]
    fn opposites_differ() {
        assert!(OPPOSITES.iter().all(|(a, b)| a != b));
        assert!(
            are_opposites(RemedyId::NoIdlePoll, RemedyId::HaltPoll)
                && !are_opposites(RemedyId::Vhost, RemedyId::Ioeventfd)
        );
    }

    /// What is known to be false is ruled out, whatever else holds.
    #[test]
    fn false_remedies_cannot_be_had() {
        let no = |id: RemedyId, context: &Context| {
            matches!(id.row().applies_to(context), Applies::No(_))
        };
        for context in &contexts() {
            match context.kind {
                VmKind::Snp => {
                    assert!(no(RemedyId::TscDeadline, context) && no(RemedyId::HugePages, context));
                    assert!(no(RemedyId::Avic, context));
                }
                VmKind::Protected => assert!(no(RemedyId::HugePages, context)),
                VmKind::Tdx => {
                    assert!(
                        no(RemedyId::HugePages, context) && no(RemedyId::PreemptionTimer, context)
                    );
                    assert!(no(RemedyId::Ipiv, context));
                }
                _ => {}
            }
            if context.is_windows {
                assert!(
                    OF_LINUX.iter().all(|id| no(*id, context))
                        && no(RemedyId::TscDeadline, context)
                );
            }
            if context.guest_memfd {
                assert!(no(RemedyId::HugePages, context));
            }
            if context.is_contended {
                assert!(no(RemedyId::HaltPoll, context) && no(RemedyId::GuestIdlePoll, context));
                assert!(
                    no(RemedyId::HostNohzFull, context) && no(RemedyId::GuestNohzFull, context)
                );
            }
            if context.vendor == Isa::Arm {
                use RemedyId as R;
                for id in [R::Apicv, R::Avic, R::Ipiv, R::X2apic, R::TscDeadline, R::HvStimer] {
                    assert!(no(id, context), "{id}");
                }
                assert!(no(R::GuestIdlePoll, context) && no(R::HugePages, context));
            }
            if context.vendor == Isa::Svm {
                assert!(
                    no(RemedyId::Apicv, context)
                        && no(RemedyId::Ept, context)
                        && no(RemedyId::Ipiv, context)
                );
            }
            if context.vendor == Isa::Vmx {
                assert!(
                    no(RemedyId::Avic, context)
                        && no(RemedyId::Npt, context)
                        && no(RemedyId::Vls, context)
                );
            }
            if context.kind.is_confidential() {
                assert!(no(RemedyId::NoForcedBounce, context));
            }
        }
    }
}
