//! Findings: what exits, time, profiles and counters show, each with its cost and the remedies that its conditions allow.

mod contention;
mod counters;
mod exits;
mod kvm_stat;
mod observed;
mod samples;
mod small_pages;
mod td_timer;

pub(super) use contention::{contention, is_of_io, is_throttled, lasting_contention};
pub(super) use counters::of_counters;
pub(super) use exits::of_exits;
pub(super) use kvm_stat::{counted_exits, of_kvm_counters};
pub(super) use observed::of_observed;
pub(super) use samples::of_profiles;
pub(super) use small_pages::{advise_private, of_memory, of_tlb, shattered, small_by_faults};
pub(super) use td_timer::infer_timer;
