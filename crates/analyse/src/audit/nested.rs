//! What makes nesting cheaper.

use vmtax_events::setting::{Fact, files};

use super::view::AuditView;
use super::{CheckFound, Fix, FoundSetting, SeenSetting, Vendor};
use crate::remedy::RemedyId;

/// Whether some guest runs guests, and what says so.
enum Nesting {
    Yes(Fact<SeenSetting>),
    No,
    Unknown,
}

fn nesting(view: &AuditView) -> Nesting {
    if view.ledger.is_some_and(crate::Ledger::has_nesting) {
        return Nesting::Yes(Fact::new("the run", Ok(SeenSetting::NestedExits)));
    }
    let counters: Vec<Fact<u64>> = view.vms.iter().map(|vm| vm.counter("nested_run")).collect();
    if let Some(fact) = counters.iter().find(|fact| fact.value.as_ref().is_ok_and(|runs| *runs > 0))
    {
        return Nesting::Yes(fact.clone().map(SeenSetting::NestedEntries));
    }
    let known =
        view.complete && !counters.is_empty() && counters.iter().all(|fact| fact.value.is_ok());
    if known { Nesting::No } else { Nesting::Unknown }
}

pub(super) fn nested(view: &AuditView) -> CheckFound {
    let path =
        if view.vendor == Some(Vendor::Amd) { files::NESTED_AMD } else { files::NESTED_INTEL };
    match view.switch(path) {
        Ok((true, fact)) => CheckFound::ok(FoundSetting::Nesting).seen(fact),
        Ok((false, fact)) => CheckFound::not_applicable(FoundSetting::NestingOff).seen(fact),
        Err(found) => found,
    }
}

/// A parameter that matters where L2 runs.
fn helps(
    view: &AuditView,
    path: &str,
    ok: FoundSetting,
    costs: FoundSetting,
    fix: Option<Fix>,
) -> CheckFound {
    let (on, fact) = match view.switch(path) {
        Ok(found) => found,
        Err(found) => return found,
    };
    match (on, nesting(view)) {
        (true, _) => CheckFound::ok(ok).seen(fact),
        (false, Nesting::Yes(seen)) => {
            CheckFound { fix, ..CheckFound::costs(costs).seen(fact).seen(seen) }
        }
        (false, Nesting::No) => CheckFound::not_applicable(FoundSetting::NobodyNests).seen(fact),
        (false, Nesting::Unknown) => {
            let what = FoundSetting::OffNestingUnknown;
            CheckFound { fix, ..CheckFound::unknown(what).seen(fact) }
        }
    }
}

pub(super) fn shadow_vmcs(view: &AuditView) -> CheckFound {
    helps(
        view,
        files::SHADOW_VMCS,
        FoundSetting::ShadowVmcs,
        FoundSetting::NoShadowVmcs,
        Fix::of_remedy(RemedyId::ShadowVmcs),
    )
}

pub(super) fn vls(view: &AuditView) -> CheckFound {
    helps(view, files::VLS, FoundSetting::Vls, FoundSetting::NoVls, Fix::of_remedy(RemedyId::Vls))
}

pub(super) fn vgif(view: &AuditView) -> CheckFound {
    helps(
        view,
        files::VGIF,
        FoundSetting::Vgif,
        FoundSetting::NoVgif,
        Fix::of_remedy(RemedyId::Vgif),
    )
}

pub(super) fn mbec(view: &AuditView) -> CheckFound {
    let (path, module, option) = match view.vendor {
        Some(Vendor::Amd) => (files::GMET, "kvm_amd", "gmet=1"),
        _ => (files::MBEC, "kvm_intel", "mbec=1"),
    };
    helps(
        view,
        path,
        FoundSetting::Mbec,
        FoundSetting::NoMbec,
        Some(Fix::Module { module, option }),
    )
}

pub(super) fn vnmi(view: &AuditView) -> CheckFound {
    let fix = Fix::Module { module: "kvm_amd", option: "vnmi=1" };
    helps(view, files::VNMI, FoundSetting::Vnmi, FoundSetting::NoVnmi, Some(fix))
}
