//! Waiting: who polls before a vCPU sleeps.

use vmtax_events::setting::{Fact, Settings, Unknown, files};
use vmtax_events::{HIST_BUCKETS, Outcome, Tally};

use super::view::{View, argument, argument_fact, has_flag};
use super::{Advice, Fix, Found, Seen, What, placement};
use crate::remedy::RemedyId;

/// KVM's default of `halt_poll_ns` on x86.
const DEFAULT_POLL_NS: u64 = 200_000;

/// How a guest waits.
pub(super) enum Waits {
    /// It polls; the settings that say so.
    Polls(Fact<Seen>),
    /// It halts.
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
        (Ok("haltpoll"), _) => Waits::Polls(driver.map(Seen::Text)),
        (Ok(_) | Err(Unknown::Missing), _) => Waits::Halts,
        (Err(_), _) => Waits::Unknown(driver),
    }
}

/// Halts of the run that were shorter than KVM's default polling time, of how many. The histogram is one of
/// powers of two: those that are certainly shorter.
fn short_halts(view: &View) -> Option<(u64, u64)> {
    let ledger = view.ledger.filter(|ledger| ledger.recording.emulated.is_none())?;
    let mut halts = Tally::default();
    ledger
        .exits
        .iter()
        .filter(|(k, _)| k.outcome == Outcome::Halted)
        .for_each(|(_, t)| halts.merge(t));
    let is_short =
        |bucket: &usize| Tally::bucket_bounds(*bucket).1.is_some_and(|end| end <= DEFAULT_POLL_NS);
    let short = (0..HIST_BUCKETS).filter(is_short).map(|bucket| halts.hist[bucket]).sum();
    (halts.timed > 0).then_some((short, halts.timed))
}

pub(super) fn halt_poll(view: &View) -> Found {
    let fact = match view.parameter(files::HALT_POLL) {
        Ok(fact) => fact,
        Err(found) => return found,
    };
    let Some(ns) = fact.value.as_deref().ok().and_then(|text| text.parse::<u64>().ok()) else {
        return Found::strange(fact);
    };
    let guest = view.guest.map(waits);
    match guest {
        Some(Waits::Polls(polls)) if ns > 0 => {
            return Found::costs(What::GuestAndKvmPoll)
                .seen(fact)
                .seen(polls)
                .fix(Fix::Write { path: files::HALT_POLL.to_owned(), value: "0" });
        }
        Some(Waits::Unknown(unread)) => {
            return Found::unknown(What::GuestPollingUnknown).seen(fact).seen(unread);
        }
        Some(Waits::Polls(polls)) => {
            return Found::ok(What::OnlyGuestPolls).seen(fact).seen(polls);
        }
        _ => {}
    }
    if ns > 0 {
        return polling(view, fact, ns);
    }
    match (short_halts(view), guest) {
        (Some((short, all)), _) if short * 2 > all => {
            Found::costs(What::ShortHalts { short, all }).seen(fact).remedy(RemedyId::HaltPoll)
        }
        (Some((short, all)), _) => Found::ok(What::FewShortHalts { short, all }).seen(fact),
        (None, Some(_)) => Found::unknown(What::NobodyPolls).seen(fact),
        (None, None) => Found::unknown(What::KvmPollingOff).seen(fact),
    }
}

/// KVM polls: whether in vain is in its counters.
fn polling(view: &View, fact: Fact<String>, ns: u64) -> Found {
    let sum = |name: &str| {
        view.vms
            .iter()
            .try_fold(0u64, |sum, vm| vm.counter(name).value.map(|n| sum.saturating_add(n)))
    };
    let path = "/sys/kernel/debug/kvm/*/halt_poll_{success,fail}_ns";
    match (sum("halt_poll_success_ns"), sum("halt_poll_fail_ns")) {
        (Ok(hit), Ok(missed)) if hit > 0 || missed > 0 => {
            let counters = Fact::new(path, Ok(Seen::Polled(hit, missed)));
            if missed > hit {
                Found::costs(What::PollingWasted)
                    .seen(fact)
                    .seen(counters)
                    .fix(Fix::Write { path: files::HALT_POLL.to_owned(), value: "50000" })
            } else {
                Found::ok(What::PollingSuccessful).seen(fact).seen(counters)
            }
        }
        (Ok(_), Ok(_)) => Found::ok(What::NotYetPolled(ns)).seen(fact),
        (Err(why), _) | (_, Err(why)) => {
            let counters: Fact<Seen> = Fact::new(path, Err(why));
            Found::unknown(What::PollingUnknown(ns)).seen(fact).seen(counters)
        }
    }
}

pub(super) fn guest_haltpoll(_: &View, guest: &Settings) -> Found {
    let driver = guest.fact(files::IDLE_DRIVER);
    let governor = guest.fact(files::IDLE_GOVERNOR);
    let poll_ns = guest.fact(files::GUEST_HALT_POLL);
    match waits(guest) {
        Waits::Unknown(unread) => return Found::unread(unread),
        Waits::Polls(fact) if fact.path == files::CMDLINE => {
            return Found::not_applicable(What::GuestHasIdlePoll).seen(fact);
        }
        Waits::Polls(_) => {
            return Found::ok(What::GuestPolls).seen(driver).seen(governor);
        }
        Waits::Halts => {}
    }
    if driver.value.as_deref() == Ok("haltpoll") {
        return Found::costs(What::HaltpollOfZero)
            .seen(driver)
            .seen(poll_ns)
            .fix(Fix::Write { path: files::GUEST_HALT_POLL.to_owned(), value: "200000" });
    }
    match is_confidential(guest) {
        Ok(true) => {
            Found::costs(What::ConfidentialGuestHalts).seen(driver).remedy(RemedyId::GuestHaltpoll)
        }
        Ok(false) => Found::unknown(What::GuestHalts).seen(driver).remedy(RemedyId::GuestHaltpoll),
        Err(_) => Found::unread(guest.fact(files::CPUINFO)),
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
pub(super) fn guest_tick(_: &View, guest: &Settings) -> Found {
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
        (Err(_), _) => Found::unread(guest.fact(files::CMDLINE)),
        (Ok(_), Some(fact)) => {
            Found::costs(What::TickWhileIdle).seen(fact).fix(Fix::Advice(Advice::StopTick))
        }
        (Ok(_), None) => Found::ok(What::TickStops).seen(argument_fact(guest, "nohz")),
    }
}

pub(super) fn guest_idle_poll(view: &View, guest: &Settings) -> Found {
    let fact = argument_fact(guest, "idle");
    match guest.text(files::CMDLINE) {
        Err(_) => Found::unread(fact),
        Ok(cmdline) if argument(cmdline, "idle") != Some("poll") => {
            Found::ok(What::NoIdlePoll).seen(fact)
        }
        Ok(_) => {
            let [vm] = view.vms else {
                return Found::unknown(What::IdlePollOfSomeVm).seen(fact);
            };
            match placement::pinning(vm) {
                Ok(pinned) if pinned.is_one_to_one() => Found::ok(What::IdlePollPinned).seen(fact),
                Ok(_) => Found::costs(What::IdlePollShared)
                    .seen(fact)
                    .fix(Fix::Advice(Advice::PinOrHaltpoll)),
                Err(unread) => Found::unknown(What::IdlePollUnknown).seen(fact).seen(unread),
            }
        }
    }
}
