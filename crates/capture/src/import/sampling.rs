//! What samples of tracepoints tell, in every format.

use vmtax_events::event::MmioAccess;
use vmtax_events::{Coverage, EventKind, Losses};

/// How many events a sample stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleWeight {
    /// So many.
    Fixed(u64),
    /// The sample says it.
    InSample,
    /// perf chose it (a frequency), and the recording does not have it.
    Unknown,
}

impl SampleWeight {
    /// Of a tracepoint that was recorded with this period or frequency; `None`: each event is a record.
    ///
    /// A kernel that notes the period of each sample makes a sample of every event, whatever the period that was asked for;
    /// only a frequency is kept to then (Linux `perf_swevent_event`, since 3.2).
    pub(crate) fn of_attribute(
        period: u64,
        is_frequency: bool,
        notes_period: bool,
    ) -> Option<SampleWeight> {
        match (is_frequency, notes_period) {
            (true, true) => Some(SampleWeight::InSample),
            (true, false) => Some(SampleWeight::Unknown),
            (false, false) if period > 1 => Some(SampleWeight::Fixed(period)),
            (false, _) => None,
        }
    }

    /// How many events a sample stands for that has this period.
    pub(crate) fn count(self, period: Option<u64>) -> u64 {
        match self {
            SampleWeight::Fixed(count) => count,
            SampleWeight::InSample => period.unwrap_or(1),
            SampleWeight::Unknown => 1,
        }
    }

    /// Says that kvm_exit was sampled.
    pub(crate) fn note(self, losses: &mut Losses) {
        let of = match self {
            SampleWeight::Fixed(count) => format!("a sample stands for {count} events"),
            SampleWeight::InSample => "a sample stands for as many events as its period".to_owned(),
            SampleWeight::Unknown => {
                "the recording does not say for how many events a sample stands: it counts as one, and counts are too low"
                    .to_owned()
            }
        };
        losses.missing.push(format!(
            "kvm_exit was sampled: {of}. Exits and accesses are counted so, and have no times. Record every event (perf record -c 1) for times."
        ));
    }
}

/// What a recording covers whose exits are samples: what the events around an exit would tell is not known.
pub(crate) fn limited(coverage: Coverage) -> Coverage {
    let (nested, userspace, sched, wakeup, page_fault) = (false, false, false, false, false);
    Coverage { nested, userspace, sched, wakeup, page_fault, ..coverage }
}

/// What can be counted of samples. Others only mean something beside the events around them.
pub(crate) fn stands_for_others(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::Exit { .. }
            | EventKind::Msr { .. }
            | EventKind::Pio { .. }
            | EventKind::Mmio { access: MmioAccess::Read | MmioAccess::Write, .. }
            | EventKind::FastMmio { .. }
            | EventKind::Hypercall { .. }
            | EventKind::Cpuid { .. }
    )
}
