//! Phrases that several sentences have.

use vmtax_analyse::explain::Most;
use vmtax_events::Reason;

use crate::numbers::percent;

pub(super) const SMALL_PAGES: &str = "the guest's memory is mapped in pages of 4 KiB";
pub(super) const REPETITIONS_OF_EACH: &str = "each setup at least five times";

/// A part of a loss; more than all of it is called so.
pub(super) fn part(part: f64) -> String {
    if part > 1.0 { "all".to_owned() } else { percent(part) }
}

/// Reasons of exits.
pub(super) fn reasons(most: &Most<Reason>) -> String {
    let names: Vec<String> = most.named.iter().map(|reason| reason.name().into_owned()).collect();
    let more = if most.more > 0 { ", ..." } else { "" };
    format!("{}{more}", names.join(", "))
}
