//! Timers and clocks.

use vmtax_events::setting::{Settings, Unknown, files};

use super::view::{View, flag_fact, has_flag};
use super::{Fix, Found, idle};

pub(super) fn preemption_timer(view: &View) -> Found {
    let (on, fact) = match view.switch(files::PREEMPTION_TIMER) {
        Ok(found) => found,
        Err(found) => return found,
    };
    if view.all_tds() {
        let what = "TDs cannot use it: each arming of their timer is a TDCALL and a host timer";
        return Found::not_applicable(what).seen(fact);
    }
    if on {
        return Found::ok("guests' timers run on VMX's preemption timer").seen(fact);
    }
    match has_flag(view.host, "vmx flags", "preemption_timer") {
        Ok(false) => Found::not_applicable("the processor has none").seen(fact),
        _ => Found::costs(
            "guests' timers are timers of the host: each expiry is an interrupt of the host",
        )
        .seen(fact)
        .remedy("preemption-timer"),
    }
}

pub(super) fn tsc_deadline(_: &View, guest: &Settings) -> Found {
    let fact = flag_fact(guest, "tsc_deadline_timer");
    match has_flag(guest, "flags", "tsc_deadline_timer") {
        Ok(true) => Found::ok("the guest arms its timer with one MSR").seen(fact),
        Ok(false) if idle::is_confidential(guest) == Ok(true) => {
            let what = "the guest arms its timer through APIC registers; QEMU masks the TSC deadline for SEV-SNP, so polling (guest-haltpoll) helps instead";
            Found::costs(what).seen(fact)
        }
        Ok(false) => Found::costs(
            "the guest arms its timer through APIC registers, with more and costlier exits",
        )
        .seen(fact)
        .remedy("tsc-deadline"),
        Err(_) => Found::unread(fact),
    }
}

/// Clocks that are read without an exit, and such that are device registers.
fn clock(settings: &Settings, cheap: &[&str], fix: Fix) -> Found {
    let fact = settings.fact(files::CLOCKSOURCE);
    match fact.value.as_deref() {
        Ok(name) if cheap.contains(&name) => Found::ok(format!("the clock is {name}")).seen(fact),
        Ok("hpet" | "acpi_pm" | "pit" | "jiffies" | "refined-jiffies") => {
            Found::costs("every read of the clock is a device access").seen(fact).fix(fix)
        }
        Ok(_) => Found::strange(fact),
        Err(Unknown::Missing) => Found::not_applicable("the kernel has one clock").seen(fact),
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
