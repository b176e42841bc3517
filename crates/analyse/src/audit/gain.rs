//! What a run says of a setting: what its causes cost, and how much of that it could remove at most.
//!
//! A gain is the time of the exits that the setting removes, as a share of the time that the vCPUs were not
//! halted. It is an upper bound: some of these exits may stay, or others come in their place. What no exit
//! shows (misses of the TLB, waking up late) has no number here.

use vmtax_events::setting::VmProcess;
use vmtax_events::{Cause, ExitKey, Outcome, Tally, TimeRow};

use super::{AuditSubject, Check, Removes};
use crate::Ledger;
use crate::ledger::running_ns;
use crate::table::cause_of;

/// What a run says of a finding.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredGain {
    /// Only this VM's exits are counted; `None`: those of all VMs of the run.
    pub vm: Option<u32>,
    /// The causes that the setting changes.
    pub causes: Vec<CauseMeasured>,
    /// What it could remove.
    pub gain: SettingGain,
}

/// A cause in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CauseMeasured {
    pub cause: Cause,
    pub count: u64,
    /// Exits a second; `None` without times that mean anything.
    pub per_second: Option<f64>,
    /// Time in them that was not halted, ns.
    pub time_ns: Option<u64>,
    /// The same as a share of the time that was not halted.
    pub share: Option<f64>,
}

/// What changing a setting could gain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SettingGain {
    /// At most `time_ns` of `base_ns`.
    AtMost {
        /// The exits that go, at most.
        count: u64,
        /// Their time that was not halted, ns.
        time_ns: u64,
        /// Wall time less halted time of the vCPUs, ns.
        base_ns: u64,
    },
    /// At most the time that vCPUs were preempted.
    Preempted {
        time_ns: u64,
        /// Wall time less halted time of the vCPUs, ns.
        base_ns: u64,
    },
    /// The run has no times, or an emulator's: the largest number of exits that can be saved.
    Counts {
        /// The exits that go, at most.
        count: u64,
    },
    /// The setting removes no exits.
    NoExits,
    /// The run does not say.
    Unknown,
}

impl SettingGain {
    /// At most this share of the time that was not halted.
    pub fn share(&self) -> Option<f64> {
        match *self {
            SettingGain::AtMost { time_ns, base_ns, .. }
            | SettingGain::Preempted { time_ns, base_ns } => {
                (base_ns > 0).then(|| time_ns as f64 / base_ns as f64)
            }
            SettingGain::Counts { .. } | SettingGain::NoExits | SettingGain::Unknown => None,
        }
    }
}

/// The exits of a run that are looked at, with the time that they share.
struct Scope<'a> {
    ledger: &'a Ledger,
    vm: Option<u32>,
    time: TimeRow,
    /// Time of all exits by which a vCPU halted.
    halting_ns: u64,
}

impl<'a> Scope<'a> {
    fn new(ledger: &'a Ledger, vm: Option<u32>) -> Scope<'a> {
        let mut time = TimeRow::default();
        let of_scope = |id: u32| vm.is_none_or(|vm| vm == id);
        for ((_, _), row) in ledger.time.iter().filter(|((id, _), _)| of_scope(*id)) {
            time.add(&row.sum);
        }
        let halting =
            ledger.exits.iter().filter(|(k, _)| of_scope(k.vm) && k.outcome == Outcome::Halted);
        let halting_ns = halting.fold(0u64, |sum, (_, tally)| sum.saturating_add(tally.time_ns));
        Scope { ledger, vm, time, halting_ns }
    }

    fn base_ns(&self) -> u64 {
        running_ns(&self.time)
    }

    /// Its times are those of hardware, as far as the recording shows.
    fn has_times(&self) -> bool {
        self.ledger.recording.emulated.is_none() && self.base_ns() > 0
    }

    fn seconds(&self) -> f64 {
        self.ledger.length_ns().map_or(0.0, |ns| ns as f64 / 1e9)
    }

    /// Count of the exits that are wanted, and their time that was not halted.
    fn sum(&self, wanted: impl Fn(&ExitKey) -> bool) -> (u64, u64) {
        let (mut all, mut halting) = (Tally::default(), 0u64);
        for (key, tally) in &self.ledger.exits {
            if self.vm.is_some_and(|vm| vm != key.vm) || !wanted(key) {
                continue;
            }
            all.merge(tally);
            if key.outcome == Outcome::Halted {
                halting = halting.saturating_add(tally.time_ns);
            }
        }
        // Halted time is known by vCPU and not by exit: these exits have their part of it.
        let halted = match self.halting_ns {
            0 => 0,
            whole => {
                let part =
                    u128::from(self.time.halted_ns) * u128::from(halting) / u128::from(whole);
                u64::try_from(part).unwrap_or(u64::MAX).min(halting)
            }
        };
        (all.count, all.time_ns.saturating_sub(halted))
    }

    fn cause(&self, cause: Cause) -> CauseMeasured {
        let (count, time_ns) = self.sum(|key| cause_of(key) == cause);
        let has_times = self.has_times();
        let seconds = self.seconds();
        CauseMeasured {
            cause,
            count,
            per_second: (has_times && seconds > 0.0).then(|| count as f64 / seconds),
            time_ns: has_times.then_some(time_ns),
            share: has_times.then(|| time_ns as f64 / self.base_ns() as f64),
        }
    }

    fn gain(&self, removes: Removes) -> SettingGain {
        let base_ns = self.base_ns();
        match removes {
            Removes::Nothing => SettingGain::NoExits,
            Removes::Exits(wanted) => match self.sum(wanted) {
                (count, time_ns) if self.has_times() => {
                    SettingGain::AtMost { count, time_ns, base_ns }
                }
                (count, _) => SettingGain::Counts { count },
            },
            Removes::Preemption if self.has_times() && self.ledger.recording.coverage.sched => {
                SettingGain::Preempted { time_ns: self.time.preempted_ns, base_ns }
            }
            Removes::Preemption => SettingGain::Unknown,
        }
    }
}

/// What a run without these exits could gain.
pub fn at_most(ledger: &Ledger, exits: fn(&ExitKey) -> bool) -> SettingGain {
    Scope::new(ledger, None).gain(Removes::Exits(exits))
}

/// What a run says of a check.
pub(super) fn measure(
    ledger: &Ledger,
    check: &Check,
    subject: AuditSubject,
    vms: &[VmProcess],
) -> MeasuredGain {
    let process = match (subject, vms) {
        (AuditSubject::Vm(pid), _) => Some(pid),
        // One VM was asked for: the guest and the host's settings are looked at for its sake.
        (_, [only]) => Some(only.pid),
        _ => None,
    };
    // The run knows VMs by process where its recording did.
    let known = |pid: &u32| ledger.exits.keys().any(|key| key.vm == *pid);
    let scope = Scope::new(ledger, process.filter(known));
    MeasuredGain {
        vm: scope.vm,
        causes: check.causes.iter().map(|cause| scope.cause(*cause)).collect(),
        gain: scope.gain(check.removes),
    }
}

#[cfg(test)]
mod tests {
    use vmtax_events::{Coverage, Detail, DetailKind, ExitRow, Isa, Losses, Reason, Recording};

    use super::super::RULES;
    use super::*;
    use crate::{Filter, LedgerBuilder};

    /// Registers and ports that the rules know, and one that none knows.
    const VALUES: [u64; 12] = [
        0x40,
        0x3f8,
        0x608,
        0x1a0,
        0x38f,
        0x6e0,
        0x80b,
        0x830,
        0x838,
        0xfed0_00f0,
        0xfee0_0300,
        0x1234,
    ];

    /// The reasons that can have a detail of this kind; the kinds that no rule looks at are left out.
    fn reasons_of(kind: DetailKind) -> &'static [(Isa, u32)] {
        use vmtax_events::{svm, vmx};
        match kind {
            DetailKind::PortIn | DetailKind::PortOut => {
                &[(Isa::Vmx, vmx::IO_INSTRUCTION), (Isa::Svm, svm::IOIO)]
            }
            DetailKind::MsrRead | DetailKind::MsrWrite => {
                &[(Isa::Vmx, vmx::MSR_READ), (Isa::Vmx, vmx::MSR_WRITE), (Isa::Svm, svm::MSR)]
            }
            DetailKind::MmioRead | DetailKind::MmioWrite => &[
                (Isa::Vmx, vmx::EPT_MISCONFIG),
                (Isa::Vmx, vmx::EPT_VIOLATION),
                (Isa::Vmx, vmx::APIC_ACCESS),
                (Isa::Svm, svm::NPF),
            ],
            _ => &[],
        }
    }

    /// One exit of each reason, without a detail and with each that it can have, for each outcome.
    fn every_exit() -> impl Iterator<Item = ExitKey> {
        let plain = [Isa::Vmx, Isa::Svm]
            .into_iter()
            .flat_map(|isa| (0..0x404).map(move |code| (isa, code, Detail::NONE)));
        let detailed = DetailKind::ALL.into_iter().flat_map(|kind| {
            reasons_of(kind).iter().flat_map(move |(isa, code)| {
                VALUES.map(|value| (*isa, *code, Detail { kind, value }))
            })
        });
        let outcomes = [Outcome::Kernel, Outcome::User, Outcome::Halted, Outcome::L1];
        plain.chain(detailed).flat_map(move |(isa, code, detail)| {
            outcomes.map(|outcome| ExitKey {
                detail,
                outcome,
                ..ExitKey::of(1, Reason { isa, code, flags: 0 })
            })
        })
    }

    #[test]
    fn a_check_removes_exits_of_its_causes_only() {
        for key in every_exit() {
            for rule in RULES {
                for check in rule.checks {
                    let Removes::Exits(removes) = check.removes else { continue };
                    assert!(
                        !removes(&key) || check.causes.contains(&cause_of(&key)),
                        "{}: removes {} {:?} {:?} of {}",
                        check.id,
                        key.reason.name(),
                        key.detail,
                        key.outcome,
                        cause_of(&key).name(),
                    );
                }
            }
        }
    }

    #[test]
    fn no_gain_exceeds_the_tax_or_the_contention() {
        let mut builder = LedgerBuilder::new(Filter::default(), 1_000_000_000);
        let (mut spent, mut halted) = (0u64, 0u64);
        for (n, key) in (1..).zip(every_exit()) {
            let mut tally = Tally::default();
            tally.add(n);
            match key.outcome {
                Outcome::Halted => halted += n,
                _ => spent += n,
            }
            builder.exit(&ExitRow { interval_start_ns: 0, key, tally });
        }
        let preempted_ns = 12_345;
        builder.time(&TimeRow {
            vm: 1,
            wall_ns: 2 * (spent + halted) + preempted_ns,
            guest_ns: spent + halted,
            exit_kernel_ns: spent,
            halted_ns: halted,
            preempted_ns,
            ..TimeRow::default()
        });
        let coverage =
            Coverage { exits: true, sched: true, userspace: true, ..Coverage::default() };
        let recording = Recording { coverage, ..Recording::default() };
        let ledger = builder.finish(recording, Losses::default(), true);
        let scope = Scope::new(&ledger, None);
        for check in RULES.iter().flat_map(|rule| rule.checks) {
            match scope.gain(check.removes) {
                SettingGain::AtMost { time_ns, .. } => {
                    assert!(time_ns <= spent, "{}: {time_ns} of {spent}", check.id)
                }
                SettingGain::Preempted { time_ns, .. } => {
                    assert_eq!(time_ns, preempted_ns, "{}", check.id)
                }
                SettingGain::NoExits => {}
                gain @ (SettingGain::Counts { .. } | SettingGain::Unknown) => {
                    panic!("{}: {gain:?}", check.id)
                }
            }
        }
    }
}
