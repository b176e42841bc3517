//! The guest's script under all policies.

use vmtax_vpmu::Policy;
use vmtax_vpmu::host::virtual_time::EventCosts;
use vmtax_vpmu_bench::published::{self, ASSUMED};
use vmtax_vpmu_bench::script::GuestScript;

#[test]
fn the_guest_of_the_script_sees_the_same_under_all_policies_and_any_costs() {
    let script = GuestScript::default();
    let paid = Policy::ALL.map(|policy| script.run(policy, published::costs(ASSUMED)).unwrap());
    let free = script.run(Policy::Reuse, EventCosts::default()).unwrap();
    for run in paid.iter().chain([&free]) {
        assert_eq!((run.samples, run.counted), (free.samples, free.counted));
        let activity = run.activity;
        assert_eq!(activity.interrupts, script.samples);
        assert_eq!(activity.delivered, script.samples);
    }
    assert_eq!(free.spent, 0, "all time is the host's");
    // Steady sampling and switching create nothing under reuse.
    let [legacy, reuse, mediated] = paid.map(|run| run.activity.creates);
    assert!(reuse * 100 < legacy && mediated == 0, "{legacy} {reuse} {mediated}");
}

#[test]
fn twice_the_script_is_twice_the_creations_under_legacy_only() {
    let creates = |script: GuestScript, policy| {
        script.run(policy, EventCosts::default()).unwrap().activity.creates
    };
    let script = GuestScript { switches: 200, samples: 100, ..GuestScript::default() };
    let longer = GuestScript { switches: 400, ..script };
    let more = creates(longer, Policy::Legacy) - creates(script, Policy::Legacy);
    assert_eq!(more, 200 * 6);
    assert_eq!(creates(longer, Policy::Reuse), creates(script, Policy::Reuse));
}
