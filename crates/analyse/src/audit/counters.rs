//! Performance counters: guests' and the watchdog's.

use vmtax_events::Cause;
use vmtax_events::setting::{Settings, Unknown, VmProcess, files};

use super::view::View;
use super::vmm::{is_off, options, property};
use super::{Fix, Found, Start, What};
use crate::remedy::RemedyId;
use crate::table::cause_of;

pub(super) fn enable_pmu(view: &View) -> Found {
    let (on, fact) = match view.switch(files::ENABLE_PMU) {
        Ok(found) => found,
        Err(found) => return found,
    };
    if !on {
        return Found::ok(What::NoCounters).seen(fact);
    }
    let off = |vm: &VmProcess| {
        options(vm, "cpu").iter().any(|value| property(value, "pmu").is_some_and(is_off))
    };
    if view.all_vms(off) {
        return Found::ok(What::CountersOffInAllVms).seen(fact);
    }
    let Some(ledger) = view.ledger else {
        return Found::unknown(What::CountersPerhapsUsed).seen(fact);
    };
    let uses = ledger.exits.iter().filter(|(key, _)| cause_of(key) == Cause::Pmu);
    let uses = uses.fold(0u64, |sum, (_, tally)| sum.saturating_add(tally.count));
    if uses > 0 {
        return Found::ok(What::CountersUsed(uses)).seen(fact);
    }
    Found::costs(What::CountersUnused).seen(fact).fix(Fix::Vmm(Start::With("-cpu ...,pmu=off")))
}

fn watchdog(settings: &Settings, costs: What) -> Found {
    let fact = settings.fact(files::NMI_WATCHDOG);
    match fact.value.as_deref() {
        Ok("0") => Found::ok(What::NoWatchdog).seen(fact),
        Ok("1") => Found::costs(costs).seen(fact).remedy(RemedyId::GuestNmiWatchdog),
        Ok(_) => Found::strange(fact),
        Err(Unknown::Missing) => Found::not_applicable(What::NoSuchWatchdog).seen(fact),
        Err(_) => Found::unread(fact),
    }
}

pub(super) fn nmi_watchdog(view: &View) -> Found {
    watchdog(view.host, What::HostWatchdog)
}

pub(super) fn guest_nmi_watchdog(_: &View, guest: &Settings) -> Found {
    watchdog(guest, What::GuestWatchdog)
}
