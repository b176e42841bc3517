//! Frequency and idle states of the host.

use std::collections::BTreeMap;

use vmtax_events::setting::{Fact, Unknown, files};

use super::view::View;
use super::{Fix, Found};

pub(super) fn governor(view: &View) -> Found {
    let facts = view.host.matching(files::GOVERNOR);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for fact in &facts {
        match &fact.value {
            Ok(name) => *counts.entry(name.clone()).or_default() += 1,
            Err(Unknown::Missing) => {
                return Found::not_applicable("the host does not set its processors' frequency")
                    .seen(fact.clone());
            }
            Err(_) => return Found::unread(fact.clone()),
        }
    }
    let words: Vec<String> = counts.iter().map(|(name, n)| format!("{name} on {n} CPUs")).collect();
    let fact = Fact::new(files::GOVERNOR.replace('#', "*"), Ok(words.join(", ")));
    if counts.keys().all(|name| name == "performance") {
        return Found::ok("processors run at their highest frequency").seen(fact);
    }
    Found::costs("the processors' frequency follows the load, which idle vCPUs hide")
        .seen(fact)
        .fix(Fix::WriteEach { pattern: files::GOVERNOR, value: "performance" })
}

/// Reported and not judged: a comparison needs it alike on both sides.
pub(super) fn turbo(view: &View) -> Found {
    let facts = [view.host.fact(files::NO_TURBO), view.host.fact(files::BOOST)];
    let [no_turbo, boost] = facts.each_ref().map(|fact| fact.value.as_deref());
    let (what, fact) = match (no_turbo, boost) {
        (Ok("0"), _) => ("turbo is on", &facts[0]),
        (Ok("1"), _) => ("turbo is off", &facts[0]),
        (Err(Unknown::Missing), Ok("1")) => ("turbo is on", &facts[1]),
        (Err(Unknown::Missing), Ok("0")) => ("turbo is off", &facts[1]),
        (Err(Unknown::Missing), Err(Unknown::Missing)) => {
            return Found::not_applicable("the host has no switch for turbo")
                .seen(facts[0].clone());
        }
        (Ok(_), _) => return Found::strange(facts[0].clone()),
        (Err(Unknown::Missing), Ok(_)) => return Found::strange(facts[1].clone()),
        (Err(Unknown::Missing), Err(_)) => return Found::unread(facts[1].clone()),
        (Err(_), _) => return Found::unread(facts[0].clone()),
    };
    Found::ok(format!("{what} (recorded, because it must be equal in comparisons)"))
        .seen(fact.clone())
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
                return Found::not_applicable(
                    "the host does not control its processors' idle states",
                )
                .seen(name.clone());
            }
            Err(_) => return Found::unread(name.clone()),
        };
        let path = name.path.trim_end_matches("name").to_owned() + "disable";
        let off = disables.iter().find(|fact| fact.path == path);
        match off.map(|fact| fact.value.as_deref()) {
            Some(Ok("0")) => states.push(word.clone()),
            Some(Ok(_)) => states.push(format!("{word} (off)")),
            _ => return Found::unread(Fact::new(path, Err(Unknown::Missing))),
        }
    }
    let fact = Fact::new(files::IDLE_NAME, Ok(states.join(", ")));
    Found::ok("idle states (recorded, because they must be equal in comparisons)").seen(fact)
}
