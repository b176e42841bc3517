//! Frequency and idle states of the host.

use std::collections::BTreeMap;

use vmtax_events::setting::{Fact, Unknown, files};

use super::view::View;
use super::{Fix, Found, Seen, What};

pub(super) fn governor(view: &View) -> Found {
    let facts = view.host.matching(files::GOVERNOR);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for fact in &facts {
        match &fact.value {
            Ok(name) => *counts.entry(name.clone()).or_default() += 1,
            Err(Unknown::Missing) => {
                return Found::not_applicable(What::NoFrequencies).seen(fact.clone());
            }
            Err(_) => return Found::unread(fact.clone()),
        }
    }
    let is_highest = counts.keys().all(|name| name == "performance");
    let fact = Fact::new(files::GOVERNOR.replace('#', "*"), Ok(Seen::Governors(counts)));
    if is_highest {
        return Found::ok(What::HighestFrequency).seen(fact);
    }
    Found::costs(What::FrequencyOfLoad)
        .seen(fact)
        .fix(Fix::WriteEach { pattern: files::GOVERNOR, value: "performance" })
}

/// Reported and not judged: a comparison needs it alike on both sides.
pub(super) fn turbo(view: &View) -> Found {
    let facts = [view.host.fact(files::NO_TURBO), view.host.fact(files::BOOST)];
    let [no_turbo, boost] = facts.each_ref().map(|fact| fact.value.as_deref());
    let (on, fact) = match (no_turbo, boost) {
        (Ok("0"), _) => (true, &facts[0]),
        (Ok("1"), _) => (false, &facts[0]),
        (Err(Unknown::Missing), Ok("1")) => (true, &facts[1]),
        (Err(Unknown::Missing), Ok("0")) => (false, &facts[1]),
        (Err(Unknown::Missing), Err(Unknown::Missing)) => {
            return Found::not_applicable(What::NoTurboSwitch).seen(facts[0].clone());
        }
        (Ok(_), _) => return Found::strange(facts[0].clone()),
        (Err(Unknown::Missing), Ok(_)) => return Found::strange(facts[1].clone()),
        (Err(Unknown::Missing), Err(_)) => return Found::unread(facts[1].clone()),
        (Err(_), _) => return Found::unread(facts[0].clone()),
    };
    Found::ok(What::Turbo(on)).seen(fact.clone())
}

/// Reported and not judged, for the same reason.
pub(super) fn idle_states(view: &View) -> Found {
    let names = view.host.matching(files::IDLE_NAME);
    let disables = view.host.matching(files::IDLE_DISABLE);
    let mut states = Vec::new();
    for name in &names {
        let word = match &name.value {
            Ok(word) => word,
            Err(Unknown::Missing) => {
                return Found::not_applicable(What::NoIdleStates).seen(name.clone());
            }
            Err(_) => return Found::unread(name.clone()),
        };
        let path = name.path.trim_end_matches("name").to_owned() + "disable";
        let off = disables.iter().find(|fact| fact.path == path);
        match off.map(|fact| fact.value.as_deref()) {
            Some(Ok(text)) => states.push((word.clone(), text != "0")),
            _ => return Found::unread(Fact::<Seen>::new(path, Err(Unknown::Missing))),
        }
    }
    let fact = Fact::new(files::IDLE_NAME, Ok(Seen::IdleStates(states)));
    Found::ok(What::IdleStates).seen(fact)
}
