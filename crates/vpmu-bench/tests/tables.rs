//! The published tables, computed, and what each ratio rests on.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use vmtax_vpmu::Policy;
use vmtax_vpmu::host::virtual_time::Costs;
use vmtax_vpmu_bench::operation::{Figure, Operation};
use vmtax_vpmu_bench::published::{self, ASSUMED};
use vmtax_vpmu_bench::script::Script;
use vmtax_vpmu_bench::tables::{Row, Standing, Tables, tables};

fn row(tables: &Tables, operation: Operation, figure: Figure) -> &Row {
    let is = |r: &&Row| r.operation == operation && r.figure == figure;
    tables.rows.iter().find(is).unwrap()
}

#[test]
fn the_costs_of_an_operation_are_those_of_the_hosts_work_in_it() {
    let tables = tables(&Script::default()).unwrap();
    let ns = |operation| row(&tables, operation, Figure::Max).ns;
    // Four general and two fixed events, by the published costs of creating and stopping one.
    let (create, stop) = (4 * 30_000_000 + 2 * 25_000, 4 * 30_000 + 2 * 2_000_000);
    // Reuse creates them too, the first time; that is what was published of it.
    assert_eq!(ns(Operation::EnableGlobal), [create, create]);
    assert_eq!(ns(Operation::DisableGlobal)[0], stop);
    // Six events of which each is disabled and read, or enabled and given the value the guest wrote.
    assert_eq!(ns(Operation::SwitchOut), [stop, 6 * (ASSUMED + 200)]);
    assert_eq!(ns(Operation::SwitchIn), [create, 6 * 2 * ASSUMED]);
    // One fixed event: stopped and created by the guest's handler. Disabled and read; another distance, enabled.
    assert_eq!(ns(Operation::HandleInterrupt), [2_025_000, 3 * ASSUMED + 200]);
}

#[test]
fn a_ratio_has_its_source() {
    let tables = tables(&Script::default()).unwrap();
    assert_eq!(tables.rows.len(), 12);
    let standing = |operation, figure| row(&tables, operation, figure).standing;
    // Both policies read an event, at the published cost.
    assert_eq!(standing(Operation::Rdpmc, Figure::Max), Standing::Computed);
    assert_eq!(standing(Operation::Rdpmc, Figure::Total), Standing::Computed);
    // It is the number of times that legacy creates.
    let Standing::Unknowable(why) = standing(Operation::EnableGlobal, Figure::Total) else {
        panic!("the length of the script is not published");
    };
    assert!(why.contains("length of the script"), "{why}");
    for operation in [Operation::FixedControl, Operation::EventSelect] {
        for figure in Figure::ALL {
            assert!(matches!(standing(operation, figure), Standing::Unknowable(_)));
            assert_eq!(row(&tables, operation, figure).ns, [0, 0]);
        }
    }
    // Nothing but the assumed cost is in reuse's part.
    let Standing::Inferred { least, most } = standing(Operation::SwitchIn, Figure::Max) else {
        panic!("enabling and setting a period were not published");
    };
    assert_eq!((least, most), (Some(120_050_000.0 / (12.0 * 5.0 * 200.0)), None));
    // The ratio is between those with other costs; the published one need not be.
    let handled = row(&tables, Operation::HandleInterrupt, Figure::Max);
    let Standing::Inferred { least, most } = handled.standing else { panic!("{handled:?}") };
    assert!(least < handled.ratio && handled.ratio < most, "{handled:?}");
}

#[test]
fn the_published_ratios_are_those_of_the_published_figures() {
    let tables = tables(&Script::default()).unwrap();
    let near = |operation, figure, expected: f64| {
        let published = row(&tables, operation, figure).published;
        assert!((published / expected - 1.0).abs() < 0.03, "{published} {expected}");
    };
    near(Operation::HandleInterrupt, Figure::Max, 400.0);
    near(Operation::SwitchIn, Figure::Max, 87.0);
    near(Operation::SwitchOut, Figure::Max, 275.0);
    near(Operation::EventSelect, Figure::Total, 921.0);
    near(Operation::EnableGlobal, Figure::Total, 25.0);
}

#[test]
fn the_guest_of_the_script_sees_the_same_under_all_policies_and_any_costs() {
    let script = Script::default();
    let paid = Policy::ALL.map(|policy| script.run(policy, published::costs(ASSUMED)).unwrap());
    let free = script.run(Policy::Reuse, Costs::default()).unwrap();
    for run in paid.iter().chain([&free]) {
        assert_eq!((run.samples, run.counted), (free.samples, free.counted));
        let activity = run.activity;
        assert_eq!(activity.interrupts, script.samples);
        assert_eq!(activity.delivered, script.samples);
    }
    assert!(free.timings.values().all(|t| t.total == 0), "all time is the host's");
    // Steady sampling and switching create nothing under reuse.
    let [legacy, reuse, mediated] = paid.map(|run| run.activity.creates);
    assert!(reuse * 100 < legacy && mediated == 0, "{legacy} {reuse} {mediated}");
}

#[test]
fn twice_the_script_is_twice_the_creations_under_legacy_only() {
    let creates =
        |script: Script, policy| script.run(policy, Costs::default()).unwrap().activity.creates;
    let script = Script { switches: 200, samples: 100, ..Script::default() };
    let longer = Script { switches: 400, ..script };
    let more = creates(longer, Policy::Legacy) - creates(script, Policy::Legacy);
    assert_eq!(more, 200 * 6);
    assert_eq!(creates(longer, Policy::Reuse), creates(script, Policy::Reuse));
}
