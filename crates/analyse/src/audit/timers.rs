//! Timers and clocks.

use vmtax_events::setting::{Settings, Unknown, VmProcess, files};

use super::view::{View, flag_fact, has_flag};
use super::vmm::{is_off, is_qemu, is_windows, options, property, said};
use super::windows::like_windows;
use super::{Fix, Found, Seen, Start, What, idle};
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
    let cheap =
        ["tsc", "tsc-early", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
    clock(view.host, &cheap, Fix::Write { path: files::CLOCKSOURCE.to_owned(), value: "tsc" })
}

pub(super) fn guest_clocksource(_: &View, guest: &Settings) -> Found {
    let cheap = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
    clock(guest, &cheap, Fix::Write { path: files::CLOCKSOURCE.to_owned(), value: "kvm-clock" })
}

/// QEMU's HPET is on unless it is turned off (QEMU qemu-options.hx, -machine hpet): its timers are QEMU's, which wakes for each tick, also
/// while the guest is idle. systemd/mkosi pull request 3811: an idle guest took 9 % of a CPU, and 0.6 % without. Windows without Hyper-V's timers
/// needs it all the more: it would use the RTC.
pub(super) fn hpet(_: &View, vm: &VmProcess) -> Found {
    if vm.arguments.value.is_err() {
        return Found::unread(said(vm, String::new()));
    }
    let words = vm.arguments.value.as_deref().unwrap_or_default();
    let machines = || options(vm, "machine").into_iter().chain(options(vm, "M"));
    let is_pc = |value: &str| {
        let kind = value.split(',').next().unwrap_or_default();
        let kind = kind.strip_prefix("type=").unwrap_or(kind);
        kind.starts_with("pc") || kind.starts_with("q35")
    };
    let is_taken_away = machines().any(|value| property(value, "hpet").is_some_and(is_off))
        || words.iter().any(|word| word.trim_start_matches('-') == "no-hpet");
    let has_pc = machines().any(is_pc);
    if !is_qemu(vm) || vm.is_part() || !has_pc || is_taken_away {
        return Found::not_applicable(What::NoHpet);
    }
    if is_windows(vm) || like_windows(vm).is_some() {
        return Found::not_applicable(What::HpetOfWindows);
    }
    let seen = said(vm, Seen::Without("hpet=off"));
    // Linux stops it after its boot; firmware and other guests may not.
    Found::unknown(What::HpetOn).seen(seen).fix(Fix::Vmm(Start::With(
        "-machine ...,hpet=off (libvirt: <timer name='hpet' present='no'/>)",
    )))
}

/// QEMU hw/rtc/mc146818rtc.c: with lost_tick_policy=slew (-rtc driftfix=slew), or for a guest that keeps local time as Windows does, missed ticks of a
/// clock that follows the host's are delivered later. `-rtc clock=vm` is libvirt's `track='guest'`.
pub(super) fn rtc_catch_up(_: &View, vm: &VmProcess) -> Found {
    if vm.arguments.value.is_err() {
        return Found::unread(said(vm, String::new()));
    }
    let rtc = options(vm, "rtc");
    let is =
        |name: &str, wanted: &str| rtc.iter().any(|value| property(value, name) == Some(wanted));
    let slews = is("driftfix", "slew")
        || options(vm, "global")
            .iter()
            .any(|value| value.contains("mc146818rtc.lost_tick_policy=slew"));
    if !is_qemu(vm) || is("clock", "vm") || !(slews || is("base", "localtime")) {
        return Found::not_applicable(What::RtcDoesNot);
    }
    let seen = said(vm, Seen::Without("-rtc clock=vm"));
    Found::unknown(What::RtcCatchesUp).seen(seen).fix(Fix::Vmm(Start::With(
        "-rtc ...,clock=vm (libvirt: <timer name='rtc' track='guest'/>), if it is slow after such a pause",
    )))
}
