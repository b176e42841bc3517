//! What a guest's profile shows: polling, a bounce buffer, readings of a device's clock.

use vmtax_events::{Place, Profile};

use super::super::certainty::Certainty;
use super::super::finding::{Evidence, Finding, Found};
use super::super::subject::Subject;
use crate::Ledger;
use crate::remedy::{Context, RemedyId};

/// Functions in which a guest waits without halting. Linux kernel/sched/idle.c, drivers/cpuidle.
const POLLS: [&str; 4] =
    ["cpu_idle_poll", "poll_idle", "haltpoll_enter_idle", "default_enter_idle"];
/// Functions that read a device's clock. Linux arch/x86/kernel/hpet.c, drivers/clocksource/acpi_pm.c, i8253.c.
const CLOCKS: [&str; 5] =
    ["read_hpet", "acpi_pm_read", "acpi_pm_read_verified", "i8253_read", "pit_read"];

/// Functions that are named.
const NAMED: usize = 3;

/// The part of a profile's samples whose stack has a function that fits.
fn part_of(profile: &Profile, fits: impl Fn(&str) -> bool) -> f64 {
    let all = profile.total().max(1) as f64;
    let with = profile.stacks.iter().filter(|(stack, _)| stack.split(Profile::BETWEEN).any(&fits));
    with.map(|(_, weight)| *weight).fold(0, u64::saturating_add) as f64 / all
}

/// The functions that fit, with their own shares, largest first.
fn most(profile: &Profile, fits: impl Fn(&str) -> bool) -> Vec<(String, f64)> {
    let functions = profile.functions();
    let mut named: Vec<(&str, u64)> =
        functions.iter().filter(|(name, _)| fits(name)).map(|(name, w)| (*name, w.own)).collect();
    named.sort_by_key(|(_, own)| std::cmp::Reverse(*own));
    let all = profile.total().max(1) as f64;
    let share = |(name, own): &(&str, u64)| ((*name).to_owned(), *own as f64 / all);
    named.iter().take(NAMED).map(share).collect()
}

/// What a guest's profile shows.
pub(in crate::explain) fn of_profiles(ledger: &Ledger, context: &Context) -> Vec<Finding> {
    let Some(profile) = ledger.profiles.get(&Place::Guest) else { return Vec::new() };
    let forced = profile.functions().contains_key("cpu_idle_poll");
    let no_poll: &[RemedyId] = if forced { &[RemedyId::NoIdlePoll] } else { &[] };
    let polls = |name: &str| POLLS.contains(&name);
    let bounces = |name: &str| name.starts_with("swiotlb_");
    let clocks = |name: &str| CLOCKS.contains(&name);
    let finding = |found, certainty, least: f64, fits: &dyn Fn(&str) -> bool, ids: &[_]| {
        let share = part_of(profile, fits);
        (share >= least).then(|| {
            let mut finding = Finding::new(found, certainty);
            finding.evidence.push(Evidence::GuestSamples(share, most(profile, fits)));
            finding.weight = share;
            finding.advise(ids, context);
            finding
        })
    };
    let clock = Found::Exits(Subject::ClockReads);
    let all = [
        finding(Found::GuestPolls, Certainty::Likely, 0.3, &polls, no_poll),
        finding(
            Found::BounceBuffer,
            Certainty::Likely,
            0.03,
            &bounces,
            &[RemedyId::NoForcedBounce, RemedyId::BounceSize],
        ),
        finding(clock, Certainty::Certain, 0.02, &clocks, &[RemedyId::GuestClocksource]),
    ];
    all.into_iter().flatten().collect()
}
