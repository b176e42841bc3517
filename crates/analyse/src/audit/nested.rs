//! What makes nesting cheaper.

use vmtax_events::setting::{Fact, files};

use super::view::View;
use super::{Fix, Found, Seen, Vendor, What};
use crate::remedy::RemedyId;

/// Whether some guest runs guests, and what says so.
enum Nesting {
    Yes(Fact<Seen>),
    No,
    Unknown,
}

fn nesting(view: &View) -> Nesting {
    if view.ledger.is_some_and(crate::Ledger::has_nesting) {
        return Nesting::Yes(Fact::new("the run", Ok(Seen::NestedExits)));
    }
    let counters: Vec<Fact<u64>> = view.vms.iter().map(|vm| vm.counter("nested_run")).collect();
    if let Some(fact) = counters.iter().find(|fact| fact.value.as_ref().is_ok_and(|runs| *runs > 0))
    {
        return Nesting::Yes(fact.clone().map(Seen::NestedEntries));
    }
    let known =
        view.complete && !counters.is_empty() && counters.iter().all(|fact| fact.value.is_ok());
    if known { Nesting::No } else { Nesting::Unknown }
}

pub(super) fn nested(view: &View) -> Found {
    let path =
        if view.vendor == Some(Vendor::Amd) { files::NESTED_AMD } else { files::NESTED_INTEL };
    match view.switch(path) {
        Ok((true, fact)) => Found::ok(What::Nesting).seen(fact),
        Ok((false, fact)) => Found::not_applicable(What::NestingOff).seen(fact),
        Err(found) => found,
    }
}

/// A parameter that matters where L2 runs.
fn helps(view: &View, path: &str, ok: What, costs: What, fix: Option<Fix>) -> Found {
    let (on, fact) = match view.switch(path) {
        Ok(found) => found,
        Err(found) => return found,
    };
    match (on, nesting(view)) {
        (true, _) => Found::ok(ok).seen(fact),
        (false, Nesting::Yes(seen)) => Found { fix, ..Found::costs(costs).seen(fact).seen(seen) },
        (false, Nesting::No) => Found::not_applicable(What::NobodyNests).seen(fact),
        (false, Nesting::Unknown) => {
            let what = What::OffNestingUnknown;
            Found { fix, ..Found::unknown(what).seen(fact) }
        }
    }
}

pub(super) fn shadow_vmcs(view: &View) -> Found {
    helps(
        view,
        files::SHADOW_VMCS,
        What::ShadowVmcs,
        What::NoShadowVmcs,
        Fix::of_remedy(RemedyId::ShadowVmcs),
    )
}

pub(super) fn vls(view: &View) -> Found {
    helps(view, files::VLS, What::Vls, What::NoVls, Fix::of_remedy(RemedyId::Vls))
}

pub(super) fn vgif(view: &View) -> Found {
    helps(view, files::VGIF, What::Vgif, What::NoVgif, Fix::of_remedy(RemedyId::Vgif))
}

pub(super) fn mbec(view: &View) -> Found {
    let (path, module, option) = match view.vendor {
        Some(Vendor::Amd) => (files::GMET, "kvm_amd", "gmet=1"),
        _ => (files::MBEC, "kvm_intel", "mbec=1"),
    };
    helps(view, path, What::Mbec, What::NoMbec, Some(Fix::Module { module, option }))
}

pub(super) fn vnmi(view: &View) -> Found {
    let fix = Fix::Module { module: "kvm_amd", option: "vnmi=1" };
    helps(view, files::VNMI, What::Vnmi, What::NoVnmi, Some(fix))
}
