//! The gates of precision: shares of samples, samples that are lost, interrupts that are accounted for.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use vmtax_vpmu::Policy;
use vmtax_vpmu::bench::precision::{FUNCTIONS, Profile, Sampling};
use vmtax_vpmu::bench::published;
use vmtax_vpmu::host::virtual_time::Costs;

fn run(policy: Policy) -> Profile {
    Sampling::default().run(policy, published::costs()).unwrap()
}

#[test]
fn shares_are_within_their_gates_under_both_policies() {
    assert_eq!(FUNCTIONS.iter().map(|(_, share)| share).sum::<u64>(), 1000);
    for policy in [Policy::Legacy, Policy::Reuse] {
        let profile = run(policy);
        assert!(profile.precise(), "{policy:?} {profile:#?}");
        assert!(profile.samples > 1000);
    }
}

#[test]
fn a_sampler_that_prefers_a_function_is_found_out() {
    // A period of exactly one round meets the same function every time.
    let profile = Sampling { period: 55 * 1000, ..Sampling::default() }
        .run(Policy::Reuse, Costs::default())
        .unwrap();
    assert!(!profile.precise());
}

#[test]
fn reuse_delivers_the_samples_that_legacy_loses() {
    let ideal = Sampling::default().run(Policy::Reuse, Costs::default()).unwrap().samples;
    let [legacy, reuse] = [Policy::Legacy, Policy::Reuse].map(|p| run(p).samples);
    assert!(reuse * 100 >= ideal * 95, "{reuse} of {ideal}");
    assert!(legacy * 2 < ideal, "{legacy} of {ideal}");
}

#[test]
fn every_period_is_an_interrupt() {
    for policy in [Policy::Legacy, Policy::Reuse] {
        let profile = run(policy);
        let a = profile.activity;
        // A sample begins where the last one was taken: at the end of the unit that it fell in.
        let expected = a.counted / Sampling::default().period.next_multiple_of(55);
        assert_eq!(a.delivered + a.merged + a.dropped, expected, "{policy:?}");
        assert_eq!(profile.samples, expected, "{policy:?}");
    }
}
