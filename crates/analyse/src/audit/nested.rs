//! What makes nesting cheaper.

use vmtax_events::setting::{Fact, files};

use super::view::{Vendor, View};
use super::{Fix, Found};
use crate::grouped::count;

/// Whether some guest runs guests, and what says so.
enum Nesting {
    Yes(Fact<String>),
    No,
    Unknown,
}

fn nesting(view: &View) -> Nesting {
    if view.ledger.is_some_and(crate::Ledger::has_nesting) {
        return Nesting::Yes(Fact::new("the run", Ok("has exits of L2".to_owned())));
    }
    let counters: Vec<Fact<u64>> = view.vms.iter().map(|vm| vm.counter("nested_run")).collect();
    if let Some(fact) = counters.iter().find(|fact| fact.value.as_ref().is_ok_and(|runs| *runs > 0))
    {
        return Nesting::Yes(fact.clone().map(|runs| format!("{} entries of L2", count(runs))));
    }
    let known =
        view.complete && !counters.is_empty() && counters.iter().all(|fact| fact.value.is_ok());
    if known { Nesting::No } else { Nesting::Unknown }
}

pub(super) fn nested(view: &View) -> Found {
    let path =
        if view.vendor == Some(Vendor::Amd) { files::NESTED_AMD } else { files::NESTED_INTEL };
    match view.switch(path) {
        Ok((true, fact)) => Found::ok("guests may run guests").seen(fact),
        Ok((false, fact)) => Found::not_applicable("nesting is disabled").seen(fact),
        Err(found) => found,
    }
}

/// A parameter that matters where L2 runs.
fn helps(view: &View, path: &str, ok: &str, costs: &str, fix: Option<Fix>) -> Found {
    let (on, fact) = match view.switch(path) {
        Ok(found) => found,
        Err(found) => return found,
    };
    match (on, nesting(view)) {
        (true, _) => Found::ok(ok).seen(fact),
        (false, Nesting::Yes(seen)) => Found { fix, ..Found::costs(costs).seen(fact).seen(seen) },
        (false, Nesting::No) => Found::not_applicable("no VM runs guests of its own").seen(fact),
        (false, Nesting::Unknown) => {
            let what = "off; this only matters if a guest runs guests, which is unknown";
            Found { fix, ..Found::unknown(what).seen(fact) }
        }
    }
}

pub(super) fn shadow_vmcs(view: &View) -> Found {
    helps(
        view,
        files::SHADOW_VMCS,
        "most VMREADs and VMWRITEs of L1 take no exit",
        "each VMREAD and VMWRITE of L1 is an exit",
        Fix::of_remedy("shadow-vmcs"),
    )
}

pub(super) fn vls(view: &View) -> Found {
    helps(
        view,
        files::VLS,
        "VMLOAD and VMSAVE of L1 take no exit",
        "each VMLOAD and VMSAVE of L1 is an exit",
        Fix::of_remedy("vls"),
    )
}

pub(super) fn vgif(view: &View) -> Found {
    helps(
        view,
        files::VGIF,
        "STGI and CLGI of L1 take no exit",
        "each STGI and CLGI of L1 is an exit",
        Fix::of_remedy("vgif"),
    )
}

pub(super) fn vnmi(view: &View) -> Found {
    let fix = Fix::Module { module: "kvm_amd", option: "vnmi=1" };
    helps(
        view,
        files::VNMI,
        "NMIs need no single steps",
        "each NMI of a guest takes exits to detect when it can be delivered",
        Some(fix),
    )
}
