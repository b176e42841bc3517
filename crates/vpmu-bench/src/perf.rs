//! MSR accesses of the host's perf for each operation on an event, on Intel.
//!
//! From Linux at commit 67f8bc848ee3, for a single event: creating and enabling also reschedule other events of the same thread
//! (kernel/events/core.c, ctx_resched), which takes more accesses.

use vmtax_vpmu::host::MsrAccesses;
use vmtax_vpmu::{Activity, Policy};

/// Around every change: global control to zero and back (arch/x86/events/intel/core.c, __intel_pmu_disable_all and
/// __intel_pmu_enable_all).
const AROUND: u64 = 2;
/// Starting: the counter (arch/x86/events/core.c, x86_perf_event_set_period) and its event select (intel_pmu_enable_event).
const START: u64 = 2;
/// Stopping: the event select (x86_pmu_disable_event); the counter is read (x86_perf_event_update).
const STOP: u64 = 1;
const READ: u64 = 1;

/// Lower bound of perf's MSR accesses for a vCPU's PMU; none for a mediated PMU, whose accesses are KVM's.
pub fn accesses(policy: Policy, activity: &Activity) -> MsrAccesses {
    let a = activity;
    // Legacy closes an event that counts, and has read it before. Reuse disables it, and then reads and closes what
    // does not advance, without any access.
    let (stops, reads) = match policy {
        Policy::Legacy => (a.closes, a.reads),
        Policy::Reuse => (a.disables, a.reads.saturating_sub(a.disables)),
        Policy::Mediated => return a.world_switches,
    };
    let starts = a.creates + a.enables;
    MsrAccesses {
        reads: READ * (stops + reads),
        writes: starts * (AROUND + START) + stops * (AROUND + STOP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mediated_pmu_has_perf_do_nothing() {
        let activity = Activity {
            creates: 2,
            closes: 2,
            reads: 2,
            enables: 0,
            world_switches: MsrAccesses { reads: 7, writes: 9 },
            ..Activity::default()
        };
        assert_eq!(accesses(Policy::Legacy, &activity), MsrAccesses { reads: 4, writes: 14 });
        assert_eq!(accesses(Policy::Mediated, &activity), MsrAccesses { reads: 7, writes: 9 });
        // Reuse: disabled, read, enabled again.
        let reused = Activity { enables: 1, disables: 1, reads: 1, ..Activity::default() };
        assert_eq!(accesses(Policy::Reuse, &reused), MsrAccesses { reads: 1, writes: 7 });
    }
}
