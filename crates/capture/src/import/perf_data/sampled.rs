//! Tracepoints of which not every event is one record: sampled ones, and those that several events of perf record.

use std::collections::{BTreeMap, HashSet};

use vmtax_events::{Coverage, Losses};

use super::layout::AttributeLayout;
use super::plan::{AttrKind, DecodePlan};
use crate::import::formats::EventFormats;
use crate::import::sampling::{SampleWeight, limited};

/// The kind of a tracepoint's attribute.
pub(super) fn kind_of(
    id: u64,
    period: u64,
    is_frequency: bool,
    layout: &AttributeLayout,
) -> AttrKind {
    match SampleWeight::of_attribute(period, is_frequency, layout.has_period()) {
        Some(weight) => AttrKind::Sampled(id, weight),
        None => AttrKind::Tracepoint(id),
    }
}

impl DecodePlan {
    /// Which tracepoints were sampled, and how.
    fn sampled(&self) -> impl Iterator<Item = (&str, SampleWeight)> {
        self.attrs.iter().filter_map(|attr| {
            let AttrKind::Sampled(id, weight) = attr.kind else { return None };
            let decoder = self.formats.as_ref()?.decoder(u16::try_from(id).ok()?)?;
            Some((decoder.name.as_str(), weight))
        })
    }

    /// Takes what samples cannot tell from what the recording covers.
    pub(super) fn limit(&self, coverage: &mut Coverage) {
        for (name, _) in self.sampled() {
            match name {
                "kvm_exit" => *coverage = limited(*coverage),
                "kvm_msr" | "kvm_pio" | "kvm_mmio" | "kvm_cpuid" | "kvm_hypercall" => {}
                other => coverage.remove(other),
            }
        }
    }

    /// Says that tracepoints were sampled.
    pub(super) fn note_sampling(&self, losses: &mut Losses) {
        if let Some((_, weight)) = self.sampled().find(|(name, _)| *name == "kvm_exit") {
            weight.note(losses);
        }
    }
}

/// Tracepoints that several events record: the first of them is read.
#[derive(Debug, Default)]
pub(super) struct Again {
    recorded: HashSet<u64>,
    /// Samples that were left out, by `common_type`.
    left_out: BTreeMap<u16, u64>,
}

impl Again {
    /// Whether an event before records this tracepoint. One without a period only counts.
    pub(super) fn is_recorded(&mut self, id: u64, period: u64) -> bool {
        period > 0 && !self.recorded.insert(id)
    }

    /// Adds what a span left out.
    pub(super) fn add(&mut self, left_out: &BTreeMap<u16, u64>) {
        for (id, count) in left_out {
            *self.left_out.entry(*id).or_default() += count;
        }
    }

    /// Says what was left out.
    pub(super) fn note(&self, formats: &EventFormats, counts: &[u64], losses: &mut Losses) {
        for (id, again) in &self.left_out {
            let Some(decoder) = formats.decoder(*id) else { continue };
            let name = &decoder.name;
            let first = counts.get(usize::from(*id)).copied().unwrap_or(0);
            if first == *again {
                losses.notes.push(format!(
                    "{name} was recorded twice (as with -e 'kvm:*' -e kvm:{name}): its {first} events are counted once"
                ));
            } else {
                losses.missing.push(format!(
                    "{name} was recorded by several events of perf, which differ (filters?): the first has {first} and is counted, the others have {again} and are left out."
                ));
            }
        }
    }
}
