//! Versions, and what the processor suffers from. Little of it can be judged from files.

use std::collections::BTreeSet;

use vmtax_events::setting::{Fact, Unknown, files};

use super::view::AuditView;
use super::vmm;
use super::{CheckFound, Fix, FoundSetting, ManualAdvice, SeenSetting};
use crate::remedy::VmKind;

/// Mainline's first kernel that runs TDs, and SEV-SNP guests.
const FIRST_TDX: (u32, u32) = (6, 16);
const FIRST_SNP: (u32, u32) = (6, 11);

pub(super) fn kernel(view: &AuditView) -> CheckFound {
    let fact = view.host.fact(files::RELEASE);
    let kernel = match view.kernel() {
        Ok(kernel) => kernel,
        Err(_) => return CheckFound::unread(fact),
    };
    let kinds = view.vms.iter().map(vmm::kind);
    let needed = kinds.filter_map(|kind| match kind {
        VmKind::Tdx => Some((FIRST_TDX, kind)),
        VmKind::Snp => Some((FIRST_SNP, kind)),
        _ => None,
    });
    match needed.max() {
        Some((first, kind)) if kernel < first => {
            CheckFound::unknown(FoundSetting::Backport { kind, first }).seen(fact)
        }
        Some((_, kind)) => CheckFound::ok(FoundSetting::KernelRuns(kind)).seen(fact),
        None if !view.complete => CheckFound::unknown(FoundSetting::KernelNeedUnknown).seen(fact),
        None => CheckFound::not_applicable(FoundSetting::NoKernelNeeded).seen(fact),
    }
}

pub(super) fn microcode(view: &AuditView) -> CheckFound {
    let old = view.host.fact(files::OLD_MICROCODE);
    let info = view.host.fact(files::CPUINFO);
    let revisions: Result<BTreeSet<String>, Unknown> = info
        .value
        .as_ref()
        .map(|info| {
            let of = |line: &str| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == "microcode").then(|| value.trim().to_owned())
            };
            info.lines().filter_map(of).collect()
        })
        .map_err(Clone::clone);
    let is_mixed = revisions.as_ref().is_ok_and(|revisions| revisions.len() > 1);
    let seen =
        |revisions: BTreeSet<String>| SeenSetting::Microcode(revisions.into_iter().collect());
    let fact = Fact::new(files::CPUINFO, revisions.map(seen));
    let update = Fix::Advice(ManualAdvice::UpdateMicrocode);
    if is_mixed {
        return CheckFound::costs(FoundSetting::MicrocodeDiffers).seen(fact).fix(update);
    }
    match old.value.as_deref() {
        Ok("Not affected") => CheckFound::ok(FoundSetting::MicrocodeCurrent).seen(old).seen(fact),
        Ok(text) if text.starts_with("Vulnerable") => {
            CheckFound::costs(FoundSetting::MicrocodeOld).seen(old).seen(fact).fix(update)
        }
        Ok(text) if text.starts_with("Unknown") => {
            CheckFound::not_applicable(FoundSetting::MicrocodeOfHost).seen(old)
        }
        Ok(_) => CheckFound::strange(old),
        Err(Unknown::Missing) => CheckFound::unknown(FoundSetting::MicrocodeUnknown).seen(fact),
        Err(_) => CheckFound::unread(old),
    }
}

pub(super) fn tdx_module(view: &AuditView) -> CheckFound {
    // The module has the parameter where it was built for TDs: CONFIG_KVM_INTEL_TDX, which needs CONFIG_INTEL_TDX_HOST.
    let fact = view.host.fact(files::TDX);
    if fact.value == Err(Unknown::Missing) && view.host.text(files::PREEMPTION_TIMER).is_ok() {
        return CheckFound::not_applicable(FoundSetting::KernelWithoutTdx).seen(fact);
    }
    match view.switch(files::TDX) {
        Ok((true, _)) => {}
        Ok((false, fact)) => return CheckFound::not_applicable(FoundSetting::NoTds).seen(fact),
        Err(found) => return found,
    }
    let fact = view.host.fact(files::TDX_MODULE);
    match fact.value {
        Ok(_) => CheckFound::unknown(FoundSetting::TdxModule).seen(fact),
        Err(Unknown::Missing) => CheckFound::unknown(FoundSetting::TdxModuleUnknown).seen(fact),
        Err(_) => CheckFound::unread(fact),
    }
}

pub(super) fn snp_firmware(view: &AuditView) -> CheckFound {
    match view.switch(files::SEV_SNP) {
        Ok((true, fact)) => CheckFound::unknown(FoundSetting::SnpFirmware).seen(fact),
        Ok((false, fact)) => CheckFound::not_applicable(FoundSetting::NoSnp).seen(fact),
        Err(found) => found,
    }
}

/// Reported and not judged: they are paid for safety.
pub(super) fn mitigations(view: &AuditView) -> CheckFound {
    let facts = view.host.matching(files::VULNERABILITIES);
    let mut mitigated = 0;
    for fact in &facts {
        match &fact.value {
            Ok(text) => mitigated += usize::from(text.contains("Mitigation")),
            Err(Unknown::Missing) => {
                return CheckFound::unknown(FoundSetting::NoVulnerabilities).seen(fact.clone());
            }
            Err(_) => return CheckFound::unread(fact.clone()),
        }
    }
    let fact =
        Fact::new(files::VULNERABILITIES, Ok(SeenSetting::Mitigated(mitigated, facts.len())));
    CheckFound::ok(FoundSetting::Mitigations).seen(fact)
}
