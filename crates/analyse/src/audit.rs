//! Settings, and what a run measured -> what costs time, and what would change it.
//!
//! `rules` is the one table: a row for each thing to look at, and for each check in it the causes of the ledger
//! that it changes. A check looks at [`vmtax_events::setting`] and gives one of four verdicts with its evidence;
//! with a run `gain` adds what the cause cost there and how much of it the setting could remove at most. All
//! results are values; their words are in `vmtax-report`.
//!
//! Left out on purpose: reading anything, and guessing. What is not known is [`CheckVerdict::Unknown`], a gain that
//! no exit shows has no number.

mod arm64;
mod counters;
mod devices;
mod features;
mod found;
mod gain;
mod host_pages;
mod idle;
mod interrupts;
mod nested;
mod pages;
mod placement;
mod power;
mod rules;
mod start;
mod timers;
mod versions;
mod view;
mod vmm;
mod windows;

use vmtax_events::setting::{Kvm, Settings, VmProcess};
use vmtax_events::{Cause, ExitKey, Isa};

use crate::Ledger;
use crate::host_pages::Judged;
use crate::remedy::{self, Applies, Context, VmKind};

pub use found::{
    CheckFound, CheckVerdict, Fix, FoundSetting, Inhibit, ManualAdvice, QemuStart, Refused,
    SeenSetting, Vendor,
};
pub use gain::{CauseMeasured, MeasuredGain, SettingGain, at_most};
pub use host_pages::{PagesFound, PagesSeen, found as found_of_pages};
pub use rules::{CheckId, RULES, RuleId};
pub use vmm::kind;

use view::AuditView;

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuditSubject {
    Host,
    /// A VM, by its process.
    Vm(u32),
    /// The guest that was named.
    Guest,
}

/// What a setting can remove of a run.
#[derive(Clone, Copy, Debug)]
pub enum Removes {
    /// No exits: what it changes shows elsewhere.
    Nothing,
    /// At most these exits.
    Exits(fn(&ExitKey) -> bool),
    /// At most the time that vCPUs were preempted.
    Preemption,
}

/// Looks at a setting.
#[derive(Clone, Copy)]
enum Judge {
    Host(fn(&AuditView) -> CheckFound),
    Vm(fn(&AuditView, &VmProcess) -> CheckFound),
    Guest(fn(&AuditView, &Settings) -> CheckFound),
    /// What a guest measures itself.
    Inside(fn(&AuditView) -> Option<CheckFound>),
}

/// The ISAs that have a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isas {
    Any,
    /// x86.
    X86,
    /// arm64.
    Arm64,
}

impl Isas {
    /// Whether this one is among them. One that is not known is taken for x86.
    pub fn have(self, isa: Isa) -> bool {
        match self {
            Isas::Any => true,
            Isas::X86 => isa.facts().is_x86(),
            Isas::Arm64 => isa == Isa::Arm,
        }
    }
}

/// A row of the table: something to look at.
pub struct AuditRule {
    pub id: RuleId,
    /// The settings that it consists of.
    pub checks: &'static [Check],
}

/// One setting of a rule.
pub struct Check {
    pub id: CheckId,
    /// The files that it is read from.
    pub files: &'static str,
    /// The causes of exits that it changes.
    pub causes: &'static [Cause],
    /// What it can remove at most.
    pub removes: Removes,
    /// The ISAs that have it.
    pub isas: Isas,
    /// It is about TDX or SEV-SNP, and has never been tried on such hardware.
    pub confidential: bool,
    judge: Judge,
}

impl Check {
    /// `host`, `VM` or `guest`: whose setting it is.
    pub fn place(&self) -> &'static str {
        match self.judge {
            Judge::Host(_) => "host",
            Judge::Vm(_) => "VM",
            Judge::Guest(_) | Judge::Inside(_) => "guest",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct AuditInput<'a> {
    pub host: &'a Settings,
    pub kvm: &'a Kvm,
    /// The VMs to look at.
    pub vms: &'a [VmProcess],
    /// There are no others that matter.
    pub complete: bool,
    /// A guest, when one was named.
    pub guest: Option<&'a Settings>,
    /// What this system measured of itself, if it was asked.
    pub inside: Option<&'a Judged>,
    /// A run on this host, when one was named.
    pub ledger: Option<&'a Ledger>,
}

/// A verdict about one setting of one subject.
pub struct AuditFinding {
    pub rule: &'static AuditRule,
    pub check: &'static Check,
    pub subject: AuditSubject,
    pub found: CheckFound,
    /// What the run says of it, where that was given and the verdict is not good.
    pub measured: Option<MeasuredGain>,
}

/// Every check of the table: first what costs, most measured time first, then what is unknown, what is good, and
/// what does not apply. Without a run the order is the table's.
pub fn audit(input: AuditInput<'_>) -> Vec<AuditFinding> {
    let view = AuditView::new(input);
    let mut findings = Vec::new();
    for rule in RULES {
        for check in rule.checks {
            let found: Vec<(AuditSubject, CheckFound)> = match check.judge {
                Judge::Host(judge) => vec![(AuditSubject::Host, judge(&view))],
                Judge::Vm(judge) => input
                    .vms
                    .iter()
                    .map(|vm| (AuditSubject::Vm(vm.pid), judge(&view, vm)))
                    .collect(),
                Judge::Guest(judge) => input
                    .guest
                    .iter()
                    .map(|guest| (AuditSubject::Guest, judge(&view, guest)))
                    .collect(),
                Judge::Inside(judge) => {
                    judge(&view).map(|found| (AuditSubject::Guest, found)).into_iter().collect()
                }
            };
            let of_isa =
                |(subject, _): &(AuditSubject, CheckFound)| check.isas.have(view.isa(*subject));
            for (subject, mut found) in found.into_iter().filter(of_isa) {
                found.fix = found.fix.map(|fix| fix.for_kernel(input.kvm));
                allow(&mut found, check, subject, input, &view);
                let is_bad = matches!(found.verdict, CheckVerdict::Costs | CheckVerdict::Unknown);
                let measured = input
                    .ledger
                    .filter(|_| is_bad)
                    .map(|ledger| gain::measure(ledger, check, subject, input.vms));
                findings.push(AuditFinding { rule, check, subject, found, measured });
            }
        }
    }
    // Stable: equal ones stay in the table's order.
    let share = |f: &AuditFinding| f.measured.as_ref().and_then(|m| m.gain.share()).unwrap_or(-1.0);
    findings
        .sort_by(|a, b| a.found.verdict.cmp(&b.found.verdict).then(share(b).total_cmp(&share(a))));
    findings
}

/// Takes away a fix that the table of remedies rules out for this VM, or that is in the words of another VMM.
fn allow(
    found: &mut CheckFound,
    check: &Check,
    subject: AuditSubject,
    input: AuditInput<'_>,
    view: &AuditView<'_>,
) {
    if found.fix.is_none() {
        return;
    }
    let vm = match (subject, input.vms) {
        (AuditSubject::Vm(pid), vms) => vms.iter().find(|vm| vm.pid == pid),
        (_, [only]) => Some(only),
        _ => None,
    };
    if let (Some(Fix::Vmm(_)), Some(vm)) = (&found.fix, vm)
        && vm.arguments.value.is_ok()
        && !vmm::is_qemu(vm)
    {
        return found.refuse(Refused::OtherVmm);
    }
    let context = Context {
        kind: vm.map_or(VmKind::Unknown, vmm::kind),
        vendor: match view.vendor {
            Some(Vendor::Intel) => Isa::Vmx,
            Some(Vendor::Amd) => Isa::Svm,
            None => {
                Some(view.isa(subject)).filter(|isa| !isa.facts().is_x86()).unwrap_or(Isa::Unknown)
            }
        },
        has_virtual_apic: false,
        is_contended: false,
        polls: false,
        guest_memfd: vm.is_some_and(|vm| vm.guest_memfd),
        converts: false,
        logs_writes: false,
        may_shadow: false,
        is_windows: vm.is_some_and(vmm::is_windows),
        has_hyperv_timer: false,
        is_of_other_host: false,
    };
    if let Some(remedy) = remedy::of_check(check.id)
        && let Applies::No(why) = remedy.applies_to(&context)
    {
        found.refuse(Refused::Remedy(why));
    }
}
