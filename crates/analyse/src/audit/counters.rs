//! Performance counters: guests' and the watchdog's.

use vmtax_events::Cause;
use vmtax_events::setting::{Settings, Unknown, VmProcess, files};

use super::view::View;
use super::vmm::{is_off, options, property};
use super::{Fix, Found};
use crate::grouped::count;
use crate::table::cause_of;

pub(super) fn enable_pmu(view: &View) -> Found {
    let (on, fact) = match view.switch(files::ENABLE_PMU) {
        Ok(found) => found,
        Err(found) => return found,
    };
    if !on {
        return Found::ok("guests have no performance counters").seen(fact);
    }
    let off = |vm: &VmProcess| {
        options(vm, "cpu").iter().any(|value| property(value, "pmu").is_some_and(is_off))
    };
    if view.all_vms(off) {
        return Found::ok("all VMs are started without performance counters (pmu=off)").seen(fact);
    }
    let Some(ledger) = view.ledger else {
        let what = "guests have performance counters; a run shows whether they use them";
        return Found::unknown(what).seen(fact);
    };
    let uses = ledger.exits.iter().filter(|(key, _)| cause_of(key) == Cause::Pmu);
    let uses = uses.fold(0u64, |sum, (_, tally)| sum.saturating_add(tally.count));
    if uses > 0 {
        return Found::ok(format!(
            "guests use their performance counters: {} exits in the run",
            count(uses)
        ))
        .seen(fact);
    }
    Found::costs("guests have performance counters and did not touch them in the run: KVM switches them at each entry")
        .seen(fact)
        .fix(Fix::Vmm("-cpu ...,pmu=off"))
}

fn watchdog(settings: &Settings, costs: &str) -> Found {
    let fact = settings.fact(files::NMI_WATCHDOG);
    match fact.value.as_deref() {
        Ok("0") => Found::ok("no watchdog occupies a counter").seen(fact),
        Ok("1") => Found::costs(costs).seen(fact).remedy("guest-nmi-watchdog"),
        Ok(_) => Found::strange(fact),
        Err(Unknown::Missing) => {
            Found::not_applicable("the kernel has no such watchdog").seen(fact)
        }
        Err(_) => Found::unread(fact),
    }
}

pub(super) fn nmi_watchdog(view: &View) -> Found {
    watchdog(
        view.host,
        "the watchdog occupies one counter of each CPU, and interrupts guests with NMIs",
    )
}

pub(super) fn guest_nmi_watchdog(_: &View, guest: &Settings) -> Found {
    watchdog(
        guest,
        "the guest's watchdog keeps a counter of each vCPU busy: exits to arm it, and counters that KVM must switch",
    )
}
