//! Waiting: who polls before a vCPU sleeps.

use vmtax_events::setting::{Fact, Settings, Unknown, files};
use vmtax_events::{OCTAVES, Outcome, Tally, octave_bounds};

use super::view::{AuditView, argument, argument_fact, has_flag};
use super::{CheckFound, Fix, FoundSetting, ManualAdvice, SeenSetting, placement};
use crate::remedy::RemedyId;

/// KVM's default of `halt_poll_ns` on x86.
const DEFAULT_POLL_NS: u64 = 200_000;

/// How a guest waits.
pub(super) enum Waits {
    /// It polls; the settings that say so.
    Polls(Fact<SeenSetting>),
    Halts,
    /// It is not known; the setting that could not be read.
    Unknown(Fact<String>),
}

pub(super) fn waits(guest: &Settings) -> Waits {
    match guest.text(files::CMDLINE) {
        Ok(cmdline) if argument(cmdline, "idle") == Some("poll") => {
            return Waits::Polls(argument_fact(guest, "idle"));
        }
        Ok(_) => {}
        Err(_) => return Waits::Unknown(guest.fact(files::CMDLINE)),
    }
    let driver = guest.fact(files::IDLE_DRIVER);
    match (driver.value.as_deref(), guest.text(files::GUEST_HALT_POLL)) {
        (Ok("haltpoll"), Ok("0")) => Waits::Halts,
        (Ok("haltpoll"), _) => Waits::Polls(driver.map(SeenSetting::Text)),
        (Ok(_) | Err(Unknown::Missing), _) => Waits::Halts,
        (Err(_), _) => Waits::Unknown(driver),
    }
}

/// Halts of the run that were shorter than KVM's default polling time, of how many. The histogram is one of
/// powers of two: those that are certainly shorter.
fn short_halts(view: &AuditView) -> Option<(u64, u64)> {
    let ledger = view.ledger.filter(|ledger| ledger.recording.emulated.is_none())?;
    let mut halts = Tally::default();
    ledger
        .exits
        .iter()
        .filter(|(k, _)| k.outcome == Outcome::Halted)
        .for_each(|(_, t)| halts.merge(t));
    let is_short =
        |bucket: &usize| octave_bounds(*bucket).1.is_some_and(|end| end <= DEFAULT_POLL_NS);
    let octaves = halts.durations.octaves();
    let short = (0..OCTAVES).filter(is_short).map(|octave| octaves[octave]).sum();
    (halts.timed > 0).then_some((short, halts.timed))
}

pub(super) fn halt_poll(view: &AuditView) -> CheckFound {
    let fact = match view.parameter(files::HALT_POLL) {
        Ok(fact) => fact,
        Err(found) => return found,
    };
    let Some(ns) = fact.value.as_deref().ok().and_then(|text| text.parse::<u64>().ok()) else {
        return CheckFound::strange(fact);
    };
    let guest = view.guest.map(waits);
    match guest {
        Some(Waits::Polls(polls)) if ns > 0 => {
            return CheckFound::costs(FoundSetting::GuestAndKvmPoll)
                .seen(fact)
                .seen(polls)
                .fix(Fix::Write { path: files::HALT_POLL.to_owned(), value: "0" });
        }
        Some(Waits::Unknown(unread)) => {
            return CheckFound::unknown(FoundSetting::GuestPollingUnknown).seen(fact).seen(unread);
        }
        Some(Waits::Polls(polls)) => {
            return CheckFound::ok(FoundSetting::OnlyGuestPolls).seen(fact).seen(polls);
        }
        _ => {}
    }
    if ns > 0 {
        return polling(view, fact, ns);
    }
    match (short_halts(view), guest) {
        (Some((short, all)), _) if short * 2 > all => {
            CheckFound::costs(FoundSetting::ShortHalts { short, all })
                .seen(fact)
                .remedy(RemedyId::HaltPoll)
        }
        (Some((short, all)), _) => {
            CheckFound::ok(FoundSetting::FewShortHalts { short, all }).seen(fact)
        }
        (None, Some(_)) => CheckFound::unknown(FoundSetting::NobodyPolls).seen(fact),
        (None, None) => CheckFound::unknown(FoundSetting::KvmPollingOff).seen(fact),
    }
}

/// KVM polls: whether in vain is in its counters.
fn polling(view: &AuditView, fact: Fact<String>, ns: u64) -> CheckFound {
    let sum = |name: &str| {
        view.vms
            .iter()
            .try_fold(0u64, |sum, vm| vm.counter(name).value.map(|n| sum.saturating_add(n)))
    };
    let path = "/sys/kernel/debug/kvm/*/halt_poll_{success,fail}_ns";
    match (sum("halt_poll_success_ns"), sum("halt_poll_fail_ns")) {
        (Ok(hit), Ok(missed)) if hit > 0 || missed > 0 => {
            let counters = Fact::new(path, Ok(SeenSetting::Polled(hit, missed)));
            if missed > hit {
                CheckFound::costs(FoundSetting::PollingWasted)
                    .seen(fact)
                    .seen(counters)
                    .fix(Fix::Write { path: files::HALT_POLL.to_owned(), value: "50000" })
            } else {
                CheckFound::ok(FoundSetting::PollingSuccessful).seen(fact).seen(counters)
            }
        }
        (Ok(_), Ok(_)) => CheckFound::ok(FoundSetting::NotYetPolled(ns)).seen(fact),
        (Err(why), _) | (_, Err(why)) => {
            let counters: Fact<SeenSetting> = Fact::new(path, Err(why));
            CheckFound::unknown(FoundSetting::PollingUnknown(ns)).seen(fact).seen(counters)
        }
    }
}

pub(super) fn guest_haltpoll(_: &AuditView, guest: &Settings) -> CheckFound {
    let driver = guest.fact(files::IDLE_DRIVER);
    let governor = guest.fact(files::IDLE_GOVERNOR);
    let poll_ns = guest.fact(files::GUEST_HALT_POLL);
    match waits(guest) {
        Waits::Unknown(unread) => return CheckFound::unread(unread),
        Waits::Polls(fact) if fact.path == files::CMDLINE => {
            return CheckFound::not_applicable(FoundSetting::GuestHasIdlePoll).seen(fact);
        }
        Waits::Polls(_) => {
            return CheckFound::ok(FoundSetting::GuestPolls).seen(driver).seen(governor);
        }
        Waits::Halts => {}
    }
    if driver.value.as_deref() == Ok("haltpoll") {
        return CheckFound::costs(FoundSetting::HaltpollOfZero)
            .seen(driver)
            .seen(poll_ns)
            .fix(Fix::Write { path: files::GUEST_HALT_POLL.to_owned(), value: "200000" });
    }
    match is_confidential(guest) {
        Ok(true) => CheckFound::costs(FoundSetting::ConfidentialGuestHalts)
            .seen(driver)
            .remedy(RemedyId::GuestHaltpoll),
        Ok(false) => CheckFound::unknown(FoundSetting::GuestHalts)
            .seen(driver)
            .remedy(RemedyId::GuestHaltpoll),
        Err(_) => CheckFound::unread(guest.fact(files::CPUINFO)),
    }
}

/// The guest says of itself that it is encrypted.
pub(super) fn is_confidential(guest: &Settings) -> Result<bool, Unknown> {
    if !has_flag(guest, "flags", "hypervisor")? {
        return Ok(false);
    }
    for flag in ["tdx_guest", "sev", "sev_es", "sev_snp"] {
        if has_flag(guest, "flags", flag)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A tick that never stops wakes idle CPUs.
pub(super) fn guest_tick(_: &AuditView, guest: &Settings) -> CheckFound {
    let off = |name| {
        let fact = argument_fact(guest, name);
        guest
            .text(files::CMDLINE)
            .ok()
            .and_then(|line| argument(line, name))
            .is_some_and(|v| v == "off")
            .then_some(fact)
    };
    match (guest.text(files::CMDLINE), off("nohz").or_else(|| off("highres"))) {
        (Err(_), _) => CheckFound::unread(guest.fact(files::CMDLINE)),
        (Ok(_), Some(fact)) => CheckFound::costs(FoundSetting::TickWhileIdle)
            .seen(fact)
            .fix(Fix::Advice(ManualAdvice::StopTick)),
        (Ok(_), None) => CheckFound::ok(FoundSetting::TickStops).seen(argument_fact(guest, "nohz")),
    }
}

pub(super) fn guest_idle_poll(view: &AuditView, guest: &Settings) -> CheckFound {
    let fact = argument_fact(guest, "idle");
    match guest.text(files::CMDLINE) {
        Err(_) => CheckFound::unread(fact),
        Ok(cmdline) if argument(cmdline, "idle") != Some("poll") => {
            CheckFound::ok(FoundSetting::NoIdlePoll).seen(fact)
        }
        Ok(_) => {
            let [vm] = view.vms else {
                return CheckFound::unknown(FoundSetting::IdlePollOfSomeVm).seen(fact);
            };
            match placement::pinning(vm) {
                Ok(pinned) if pinned.is_one_to_one() => {
                    CheckFound::ok(FoundSetting::IdlePollPinned).seen(fact)
                }
                Ok(_) => CheckFound::costs(FoundSetting::IdlePollShared)
                    .seen(fact)
                    .fix(Fix::Advice(ManualAdvice::PinOrHaltpoll)),
                Err(unread) => {
                    CheckFound::unknown(FoundSetting::IdlePollUnknown).seen(fact).seen(unread)
                }
            }
        }
    }
}
