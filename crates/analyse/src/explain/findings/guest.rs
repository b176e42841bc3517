//! What a guest's profile shows: polling, a bounce buffer, readings of a device's clock.

use vmtax_events::{Place, Profile};

use super::super::{Certainty, percent, subject};
use super::Finding;
use crate::Ledger;
use crate::remedy::Context;

/// Functions in which a guest waits without halting. Linux kernel/sched/idle.c, drivers/cpuidle.
const POLLS: [&str; 4] =
    ["cpu_idle_poll", "poll_idle", "haltpoll_enter_idle", "default_enter_idle"];
/// Functions that read a device's clock. Linux arch/x86/kernel/hpet.c, drivers/clocksource/acpi_pm.c, i8253.c.
const CLOCKS: [&str; 5] =
    ["read_hpet", "acpi_pm_read", "acpi_pm_read_verified", "i8253_read", "pit_read"];

/// The part of a profile's samples whose stack has a function that fits.
fn part_of(profile: &Profile, fits: impl Fn(&str) -> bool) -> f64 {
    let all = profile.total().max(1) as f64;
    let with = profile.stacks.iter().filter(|(stack, _)| stack.split(Profile::BETWEEN).any(&fits));
    with.map(|(_, weight)| *weight).fold(0, u64::saturating_add) as f64 / all
}

fn most(profile: &Profile, fits: impl Fn(&str) -> bool) -> String {
    let functions = profile.functions();
    let mut named: Vec<(&str, u64)> =
        functions.iter().filter(|(name, _)| fits(name)).map(|(name, w)| (*name, w.own)).collect();
    named.sort_by_key(|(_, own)| std::cmp::Reverse(*own));
    let all = profile.total().max(1) as f64;
    let line = |(name, own): &(&str, u64)| format!("{name} {}", percent(*own as f64 / all));
    named.iter().take(3).map(line).collect::<Vec<_>>().join(", ")
}

/// What a guest's profile shows.
pub(in crate::explain) fn of_profiles(ledger: &Ledger, context: &Context) -> Vec<Finding> {
    let Some(profile) = ledger.profiles.get(&Place::Guest) else { return Vec::new() };
    let mut found = Vec::new();
    let mut add = |id: &'static str,
                   means: &str,
                   share: f64,
                   fits: &dyn Fn(&str) -> bool,
                   ids: &[&'static str],
                   disproof,
                   next| {
        let mut finding = Finding::new(id, means, Certainty::Likely);
        finding.evidence.push(format!(
            "{} of the guest's samples: {}",
            percent(share),
            most(profile, fits)
        ));
        finding.weight = share;
        (finding.disproof, finding.next) = (disproof, next);
        finding.advise(ids, context);
        found.push(finding);
    };
    let polls = |name: &str| POLLS.contains(&name);
    let share = part_of(profile, polls);
    if share >= 0.3 {
        let forced = profile.functions().contains_key("cpu_idle_poll");
        let ids: &[&'static str] = if forced { &["no-idle-poll"] } else { &[] };
        add(
            "guest-polls",
            "the guest is idle and polls: its processors are busy, and nothing is waited for by exits",
            share,
            &polls,
            ids,
            "the guest has work all the time",
            "the guest's command line (idle=), its cpuidle driver",
        );
    }
    let bounces = |name: &str| name.starts_with("swiotlb_");
    let share = part_of(profile, bounces);
    if share >= 0.03 {
        add(
            "bounce-buffer",
            "the guest copies what its devices read and write through the bounce buffer (swiotlb)",
            share,
            &bounces,
            &["no-forced-bounce", "bounce-size"],
            "the same load without the buffer is as slow",
            "debugfs swiotlb/io_tlb_{nslabs,used_hiwater} in the guest, at high and at low load",
        );
    }
    let clocks = |name: &str| CLOCKS.contains(&name);
    let share = part_of(profile, clocks);
    if share >= 0.02 && !found.iter().any(|finding: &Finding| finding.id == "clock-reads") {
        let mut finding =
            Finding::new("clock-reads", subject::find("clock-reads").means, Certainty::Certain);
        finding.evidence.push(format!(
            "{} of the guest's samples: {}",
            percent(share),
            most(profile, clocks)
        ));
        finding.weight = share;
        finding.disproof = subject::find("clock-reads").disproof;
        finding.next = subject::find("clock-reads").next;
        finding.advise(&["guest-clocksource"], context);
        found.push(finding);
    }
    found
}
