//! Interrupts that are accounted for, under contention too, and the policies over the same guests. Shares and lost samples are
//! gates, which `vmtax vpmu selftest` tries.

use vmtax_vpmu::Policy;
use vmtax_vpmu::host::virtual_time::EventCosts;
use vmtax_vpmu_bench::compare::{ComparedGuest, compare};
use vmtax_vpmu_bench::contention::contended;
use vmtax_vpmu_bench::precision::{FUNCTIONS, Sampling};
use vmtax_vpmu_bench::published::{self, ASSUMED};
use vmtax_vpmu_bench::script::GuestScript;

#[test]
fn the_program_has_the_published_functions() {
    assert_eq!(FUNCTIONS.iter().map(|(_, share)| share).sum::<u64>(), 1000);
    assert_eq!(FUNCTIONS.map(|(name, _)| name), published::FUNCTIONS);
}

#[test]
fn a_biased_sampler_is_detected() {
    // A period of exactly one round meets the same function every time.
    let profile = Sampling { period: 55 * 1000, ..Sampling::default() }
        .run(Policy::Reuse, EventCosts::default())
        .unwrap();
    assert!(!profile.precise());
}

#[test]
fn every_period_is_an_interrupt() {
    for policy in Policy::ALL {
        let profile = Sampling::default().run(policy, published::costs(ASSUMED)).unwrap();
        let a = profile.activity;
        // A sample begins where the last one was taken: at the end of the unit that it fell in.
        let expected = a.counted / Sampling::default().period.next_multiple_of(55);
        assert_eq!(a.delivered + a.merged + a.dropped, expected, "{policy:?}");
        assert_eq!(profile.samples, expected, "{policy:?}");
    }
}

#[test]
fn a_host_that_holds_counters_costs_events_but_for_a_mediated_pmu() {
    let all = contended(&Sampling { time: 1_000_000_000, ..Sampling::default() }).unwrap();
    let find = |policy, taken| {
        all.iter().find(|c| c.policy == policy && c.taken == taken).map(|c| &c.profile).unwrap()
    };
    for policy in Policy::ALL {
        assert_eq!(find(policy, 0).counted, 1.0, "{policy:?}");
    }
    let [shared, own] = [Policy::Reuse, Policy::Mediated].map(|policy| find(policy, 2));
    // Six events take turns on five counters.
    assert!((shared.counted - 5.0 / 6.0).abs() < 0.02, "{}", shared.counted);
    assert!(shared.samples * 10 < find(Policy::Reuse, 0).samples * 9);
    assert_eq!((own.counted, own.samples), (1.0, find(Policy::Mediated, 0).samples));
    // What the host pays for it.
    assert_eq!((shared.seen.0, own.seen.0), (shared.seen.1, 0));
}

#[test]
fn the_policies_are_compared_over_the_same_guests() {
    let all = compare(&GuestScript {
        readings: 10,
        samples: 100,
        switches: 10,
        ..GuestScript::default()
    });
    let all = all.unwrap();
    let of = |guest: &str| -> [&ComparedGuest; 3] {
        let of = |policy| all.iter().find(|c| c.guest == guest && c.policy == policy).unwrap();
        Policy::ALL.map(of)
    };
    let [legacy, reuse, mediated] = of("samples");
    // Each sample creates two events under legacy: at the overflow, and when the handler sets global control.
    assert!(legacy.activity.creates >= 200 && reuse.activity.creates <= 6);
    assert_eq!(mediated.activity.creates, 0);
    for [legacy, reuse, mediated] in ["counts six events", "samples", "switches threads"].map(of) {
        assert_eq!((legacy.activity.passes, reuse.activity.passes), (0, 0));
        assert!(mediated.activity.exits < reuse.activity.exits, "{}", mediated.guest);
        assert_eq!(
            mediated.activity.exits + mediated.activity.passes,
            reuse.activity.exits,
            "{}",
            mediated.guest
        );
        // Saving and loading at every exit is more than perf does for a change now and then.
        assert!(mediated.accesses.total() > reuse.accesses.total());
        assert_eq!((legacy.seen, reuse.seen, mediated.seen), (1.0, 1.0, 0.0));
    }
}
