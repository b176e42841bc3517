//! Timers and clocks.

use vmtax_events::setting::{Settings, Unknown, VmProcess, files};

use super::view::{AuditView, flag_fact, has_flag};
use super::vmm::{is_off, is_qemu, is_windows, options, property, said};
use super::windows::like_windows;
use super::{CheckFound, Fix, FoundSetting, QemuStart, SeenSetting, idle};
use crate::remedy::RemedyId;

pub(super) fn preemption_timer(view: &AuditView) -> CheckFound {
    let (on, fact) = match view.switch(files::PREEMPTION_TIMER) {
        Ok(found) => found,
        Err(found) => return found,
    };
    if view.all_tds() {
        return CheckFound::not_applicable(FoundSetting::TdTimer).seen(fact);
    }
    if on {
        return CheckFound::ok(FoundSetting::PreemptionTimer).seen(fact);
    }
    match has_flag(view.host, "vmx flags", "preemption_timer") {
        Ok(false) => CheckFound::not_applicable(FoundSetting::NoPreemptionTimer).seen(fact),
        _ => {
            CheckFound::costs(FoundSetting::HostTimers).seen(fact).remedy(RemedyId::PreemptionTimer)
        }
    }
}

pub(super) fn tsc_deadline(_: &AuditView, guest: &Settings) -> CheckFound {
    let fact = flag_fact(guest, "tsc_deadline_timer");
    match has_flag(guest, "flags", "tsc_deadline_timer") {
        Ok(true) => CheckFound::ok(FoundSetting::TscDeadline).seen(fact),
        Ok(false) if idle::is_confidential(guest) == Ok(true) => {
            CheckFound::costs(FoundSetting::MaskedTscDeadline).seen(fact)
        }
        Ok(false) => {
            CheckFound::costs(FoundSetting::NoTscDeadline).seen(fact).remedy(RemedyId::TscDeadline)
        }
        Err(_) => CheckFound::unread(fact),
    }
}

/// Clocks that are read without an exit, and such that are device registers.
fn clock(settings: &Settings, cheap: &[&str], fix: Fix) -> CheckFound {
    let fact = settings.fact(files::CLOCKSOURCE);
    match fact.value.as_deref() {
        Ok(name) if cheap.contains(&name) => {
            CheckFound::ok(FoundSetting::Clock(name.to_owned())).seen(fact)
        }
        Ok("hpet" | "acpi_pm" | "pit" | "jiffies" | "refined-jiffies") => {
            CheckFound::costs(FoundSetting::DeviceClock).seen(fact).fix(fix)
        }
        Ok(_) => CheckFound::strange(fact),
        Err(Unknown::Missing) => CheckFound::not_applicable(FoundSetting::OneClock).seen(fact),
        Err(_) => CheckFound::unread(fact),
    }
}

pub(super) fn host_clocksource(view: &AuditView) -> CheckFound {
    let cheap =
        ["tsc", "tsc-early", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
    clock(view.host, &cheap, Fix::Write { path: files::CLOCKSOURCE.to_owned(), value: "tsc" })
}

pub(super) fn guest_clocksource(_: &AuditView, guest: &Settings) -> CheckFound {
    let cheap = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
    clock(guest, &cheap, Fix::Write { path: files::CLOCKSOURCE.to_owned(), value: "kvm-clock" })
}

/// QEMU's HPET is on unless it is turned off (QEMU qemu-options.hx, -machine hpet): its timers are QEMU's, which wakes for each tick, also
/// while the guest is idle. systemd/mkosi pull request 3811: an idle guest took 9 % of a CPU, and 0.6 % without. Windows without Hyper-V's timers
/// needs it all the more: it would use the RTC.
pub(super) fn hpet(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if vm.arguments.value.is_err() {
        return CheckFound::unread(said(vm, String::new()));
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
    let is_asked_for = machines().any(|value| property(value, "hpet") == Some("on"));
    let has_pc = machines().any(is_pc) && !vm.is_part() || is_asked_for;
    if !is_qemu(vm) || !has_pc || is_taken_away {
        return CheckFound::not_applicable(FoundSetting::NoHpet);
    }
    if is_windows(vm) || like_windows(vm).is_some() {
        return CheckFound::not_applicable(FoundSetting::HpetOfWindows);
    }
    let seen = said(vm, SeenSetting::Without("hpet=off"));
    // Linux stops it after its boot; firmware and other guests may not.
    CheckFound::unknown(FoundSetting::HpetOn).seen(seen).fix(Fix::Vmm(QemuStart::With(
        "-machine ...,hpet=off (libvirt: <timer name='hpet' present='no'/>)",
    )))
}

/// QEMU hw/rtc/mc146818rtc.c: with lost_tick_policy=slew (-rtc driftfix=slew), or for a guest that keeps local time as Windows does, missed ticks of a
/// clock that follows the host's are delivered later. `-rtc clock=vm` is libvirt's `track='guest'`.
pub(super) fn rtc_catch_up(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if vm.arguments.value.is_err() {
        return CheckFound::unread(said(vm, String::new()));
    }
    let rtc = options(vm, "rtc");
    let is =
        |name: &str, wanted: &str| rtc.iter().any(|value| property(value, name) == Some(wanted));
    let slews = is("driftfix", "slew")
        || options(vm, "global")
            .iter()
            .any(|value| value.contains("mc146818rtc.lost_tick_policy=slew"));
    if !is_qemu(vm) || is("clock", "vm") || !(slews || is("base", "localtime")) {
        return CheckFound::not_applicable(FoundSetting::RtcDoesNot);
    }
    let seen = said(vm, SeenSetting::Without("-rtc clock=vm"));
    CheckFound::unknown(FoundSetting::RtcCatchesUp).seen(seen).fix(Fix::Vmm(QemuStart::With(
        "-rtc ...,clock=vm (libvirt: <timer name='rtc' track='guest'/>), if it is slow after such a pause",
    )))
}
