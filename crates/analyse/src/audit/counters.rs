//! Performance counters: guests' and the watchdog's.

use vmtax_events::Cause;
use vmtax_events::setting::{Settings, Unknown, VmProcess, files};

use super::view::AuditView;
use super::vmm::{is_off, options, property};
use super::{CheckFound, Fix, FoundSetting, QemuStart};
use crate::remedy::RemedyId;
use crate::table::cause_of;

pub(super) fn enable_pmu(view: &AuditView) -> CheckFound {
    let (on, fact) = match view.switch(files::ENABLE_PMU) {
        Ok(found) => found,
        Err(found) => return found,
    };
    if !on {
        return CheckFound::ok(FoundSetting::NoCounters).seen(fact);
    }
    let off = |vm: &VmProcess| {
        options(vm, "cpu").iter().any(|value| property(value, "pmu").is_some_and(is_off))
    };
    if view.all_vms(off) {
        return CheckFound::ok(FoundSetting::CountersOffInAllVms).seen(fact);
    }
    let Some(ledger) = view.ledger else {
        return CheckFound::unknown(FoundSetting::CountersPerhapsUsed).seen(fact);
    };
    let uses = ledger.exits.iter().filter(|(key, _)| cause_of(key) == Cause::Pmu);
    let uses = uses.fold(0u64, |sum, (_, tally)| sum.saturating_add(tally.count));
    if uses > 0 {
        return CheckFound::ok(FoundSetting::CountersUsed(uses)).seen(fact);
    }
    CheckFound::costs(FoundSetting::CountersUnused)
        .seen(fact)
        .fix(Fix::Vmm(QemuStart::With("-cpu ...,pmu=off")))
}

fn watchdog(settings: &Settings, costs: FoundSetting) -> CheckFound {
    let fact = settings.fact(files::NMI_WATCHDOG);
    match fact.value.as_deref() {
        Ok("0") => CheckFound::ok(FoundSetting::NoWatchdog).seen(fact),
        Ok("1") => CheckFound::costs(costs).seen(fact).remedy(RemedyId::GuestNmiWatchdog),
        Ok(_) => CheckFound::strange(fact),
        Err(Unknown::Missing) => {
            CheckFound::not_applicable(FoundSetting::NoSuchWatchdog).seen(fact)
        }
        Err(_) => CheckFound::unread(fact),
    }
}

pub(super) fn nmi_watchdog(view: &AuditView) -> CheckFound {
    watchdog(view.host, FoundSetting::HostWatchdog)
}

pub(super) fn guest_nmi_watchdog(_: &AuditView, guest: &Settings) -> CheckFound {
    watchdog(guest, FoundSetting::GuestWatchdog)
}
