//! Timers and clocks.

use vmtax_events::setting::{Settings, Unknown, files};

use super::view::{View, flag_fact, has_flag};
use super::{Fix, Found, What, idle};
use crate::remedy::RemedyId;

pub(super) fn preemption_timer(view: &View) -> Found {
    let (on, fact) = match view.switch(files::PREEMPTION_TIMER) {
        Ok(found) => found,
        Err(found) => return found,
    };
    if view.all_tds() {
        return Found::not_applicable(What::TdTimer).seen(fact);
    }
    if on {
        return Found::ok(What::PreemptionTimer).seen(fact);
    }
    match has_flag(view.host, "vmx flags", "preemption_timer") {
        Ok(false) => Found::not_applicable(What::NoPreemptionTimer).seen(fact),
        _ => Found::costs(What::HostTimers).seen(fact).remedy(RemedyId::PreemptionTimer),
    }
}

pub(super) fn tsc_deadline(_: &View, guest: &Settings) -> Found {
    let fact = flag_fact(guest, "tsc_deadline_timer");
    match has_flag(guest, "flags", "tsc_deadline_timer") {
        Ok(true) => Found::ok(What::TscDeadline).seen(fact),
        Ok(false) if idle::is_confidential(guest) == Ok(true) => {
            Found::costs(What::MaskedTscDeadline).seen(fact)
        }
        Ok(false) => Found::costs(What::NoTscDeadline).seen(fact).remedy(RemedyId::TscDeadline),
        Err(_) => Found::unread(fact),
    }
}

/// Clocks that are read without an exit, and such that are device registers.
fn clock(settings: &Settings, cheap: &[&str], fix: Fix) -> Found {
    let fact = settings.fact(files::CLOCKSOURCE);
    match fact.value.as_deref() {
        Ok(name) if cheap.contains(&name) => Found::ok(What::Clock(name.to_owned())).seen(fact),
        Ok("hpet" | "acpi_pm" | "pit" | "jiffies" | "refined-jiffies") => {
            Found::costs(What::DeviceClock).seen(fact).fix(fix)
        }
        Ok(_) => Found::strange(fact),
        Err(Unknown::Missing) => Found::not_applicable(What::OneClock).seen(fact),
        Err(_) => Found::unread(fact),
    }
}

pub(super) fn host_clocksource(view: &View) -> Found {
    let cheap = ["tsc", "tsc-early", "kvm-clock", "hyperv_clocksource_tsc_page"];
    clock(view.host, &cheap, Fix::Write { path: files::CLOCKSOURCE.to_owned(), value: "tsc" })
}

pub(super) fn guest_clocksource(_: &View, guest: &Settings) -> Found {
    let cheap = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];
    clock(guest, &cheap, Fix::Write { path: files::CLOCKSOURCE.to_owned(), value: "kvm-clock" })
}
