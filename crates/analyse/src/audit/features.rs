//! Features of the processor and of KVM that are on by default.

use vmtax_events::Cause;
use vmtax_events::setting::files;

use super::view::AuditView;
use super::{CheckFound, Fix, FoundSetting, Vendor};
use crate::remedy::RemedyId;
use crate::table::cause_of;

/// A parameter that should be on.
fn wanted(view: &AuditView, path: &str, says: [FoundSetting; 2], fix: Option<Fix>) -> CheckFound {
    let [ok, costs] = says;
    match view.switch(path) {
        Ok((true, fact)) => CheckFound::ok(ok).seen(fact),
        Ok((false, fact)) => CheckFound { fix, ..CheckFound::costs(costs).seen(fact) },
        Err(found) => found,
    }
}

fn of_nested_paging(view: &AuditView) -> (&'static str, RemedyId) {
    match view.vendor {
        Some(Vendor::Amd) => (files::NPT, RemedyId::Npt),
        _ => (files::EPT, RemedyId::Ept),
    }
}

pub(super) fn nested_paging(view: &AuditView) -> CheckFound {
    let (path, remedy) = of_nested_paging(view);
    wanted(
        view,
        path,
        [FoundSetting::NestedPaging, FoundSetting::NoNestedPaging],
        Fix::of_remedy(remedy),
    )
}

pub(super) fn vpid(view: &AuditView) -> CheckFound {
    let fix = Fix::Module { module: "kvm_intel", option: "vpid=1" };
    wanted(view, files::VPID, [FoundSetting::Vpid, FoundSetting::NoVpid], Some(fix))
}

/// KVM turns it off itself without nested paging (Linux arch/x86/kvm/mmu/tdp_mmu.c), and then it changes nothing.
pub(super) fn tdp_mmu(view: &AuditView) -> CheckFound {
    match view.switch(of_nested_paging(view).0) {
        Ok((true, _)) => {}
        Ok((false, fact)) => {
            return CheckFound::not_applicable(FoundSetting::TdpMmuNeedsNestedPaging).seen(fact);
        }
        Err(found) => return found,
    }
    let fix = Fix::Module { module: "kvm", option: "tdp_mmu=1" };
    wanted(view, files::TDP_MMU, [FoundSetting::TdpMmu, FoundSetting::NoTdpMmu], Some(fix))
}

/// Off by default: it makes entries and exits dearer, and guests that count cheaper.
pub(super) fn mediated_pmu(view: &AuditView) -> CheckFound {
    let (path, module) = match view.vendor {
        Some(Vendor::Amd) => (files::MEDIATED_PMU_AMD, "kvm_amd"),
        _ => (files::MEDIATED_PMU_INTEL, "kvm_intel"),
    };
    let (on, fact) = match view.switch(path) {
        Ok(found) => found,
        Err(found) => return found,
    };
    if on {
        return CheckFound::ok(FoundSetting::MediatedPmu).seen(fact);
    }
    let Some(ledger) = view.ledger else {
        return CheckFound::not_applicable(FoundSetting::MediatedPmuOff).seen(fact);
    };
    if ledger.exits.keys().any(|key| cause_of(key) == Cause::Pmu) {
        let fix = Fix::Module { module, option: "enable_mediated_pmu=1" };
        return CheckFound::costs(FoundSetting::CountersEmulated).seen(fact).fix(fix);
    }
    CheckFound::not_applicable(FoundSetting::MediatedPmuOff).seen(fact)
}
