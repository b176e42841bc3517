//! Frequency and idle states of the host.

use std::collections::BTreeMap;

use vmtax_events::setting::{Fact, Unknown, files};

use super::view::AuditView;
use super::{CheckFound, Fix, FoundSetting, SeenSetting};

pub(super) fn governor(view: &AuditView) -> CheckFound {
    let facts = view.host.matching(files::GOVERNOR);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for fact in &facts {
        match &fact.value {
            Ok(name) => *counts.entry(name.clone()).or_default() += 1,
            Err(Unknown::Missing) => {
                return CheckFound::not_applicable(FoundSetting::NoFrequencies).seen(fact.clone());
            }
            Err(_) => return CheckFound::unread(fact.clone()),
        }
    }
    let is_highest = counts.keys().all(|name| name == "performance");
    let fact = Fact::new(files::GOVERNOR.replace('#', "*"), Ok(SeenSetting::Governors(counts)));
    if is_highest {
        return CheckFound::ok(FoundSetting::HighestFrequency).seen(fact);
    }
    CheckFound::costs(FoundSetting::FrequencyOfLoad)
        .seen(fact)
        .fix(Fix::WriteEach { pattern: files::GOVERNOR, value: "performance" })
}

/// Reported and not judged: a comparison needs it alike on both sides.
pub(super) fn turbo(view: &AuditView) -> CheckFound {
    let facts = [view.host.fact(files::NO_TURBO), view.host.fact(files::BOOST)];
    let [no_turbo, boost] = facts.each_ref().map(|fact| fact.value.as_deref());
    let (on, fact) = match (no_turbo, boost) {
        (Ok("0"), _) => (true, &facts[0]),
        (Ok("1"), _) => (false, &facts[0]),
        (Err(Unknown::Missing), Ok("1")) => (true, &facts[1]),
        (Err(Unknown::Missing), Ok("0")) => (false, &facts[1]),
        (Err(Unknown::Missing), Err(Unknown::Missing)) => {
            return CheckFound::not_applicable(FoundSetting::NoTurboSwitch).seen(facts[0].clone());
        }
        (Ok(_), _) => return CheckFound::strange(facts[0].clone()),
        (Err(Unknown::Missing), Ok(_)) => return CheckFound::strange(facts[1].clone()),
        (Err(Unknown::Missing), Err(_)) => return CheckFound::unread(facts[1].clone()),
        (Err(_), _) => return CheckFound::unread(facts[0].clone()),
    };
    CheckFound::ok(FoundSetting::Turbo(on)).seen(fact.clone())
}

/// Reported and not judged, for the same reason.
pub(super) fn idle_states(view: &AuditView) -> CheckFound {
    let names = view.host.matching(files::IDLE_NAME);
    let disables = view.host.matching(files::IDLE_DISABLE);
    let mut states = Vec::new();
    for name in &names {
        let word = match &name.value {
            Ok(word) => word,
            Err(Unknown::Missing) => {
                return CheckFound::not_applicable(FoundSetting::NoIdleStates).seen(name.clone());
            }
            Err(_) => return CheckFound::unread(name.clone()),
        };
        let path = name.path.trim_end_matches("name").to_owned() + "disable";
        let off = disables.iter().find(|fact| fact.path == path);
        match off.map(|fact| fact.value.as_deref()) {
            Some(Ok(text)) => states.push((word.clone(), text != "0")),
            _ => return CheckFound::unread(Fact::<SeenSetting>::new(path, Err(Unknown::Missing))),
        }
    }
    let fact = Fact::new(files::IDLE_NAME, Ok(SeenSetting::IdleStates(states)));
    CheckFound::ok(FoundSetting::IdleStates).seen(fact)
}
