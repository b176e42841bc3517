//! Interference of hosts with counters: the VMM gets a notice, the guest sees counters that do not advance, and no count is
//! lost or invented.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;

use proptest::prelude::*;
use vmtax_vpmu::host::virtual_time::{GuestWork, VirtualFaults, VirtualHost};
use vmtax_vpmu::{Counter, Intel, Pmu, PmuEvent, PmuModel, Policy, Trouble};

const BOTH: [Policy; 2] = [Policy::Legacy, Policy::Reuse];
const ALL: u64 = 0x7_0000_000f;

fn pmu(policy: Policy) -> Pmu<VirtualHost> {
    Pmu::new(PmuModel::Intel(Intel::default()), VirtualHost::default(), policy).unwrap()
}

fn work() -> GuestWork {
    GuestWork::user(
        1,
        &[(PmuEvent::Instructions, 1), (PmuEvent::Branches, 1), (PmuEvent::Cycles, 1)],
    )
}

/// Instructions, branches and cycles on general counters 0 to 2.
fn program(pmu: &mut Pmu<VirtualHost>) {
    for (i, code) in [0xc0, 0xc4, 0x3c].into_iter().enumerate() {
        pmu.write(0x186 + i as u32, 0x53_0000 | code).unwrap();
    }
}

fn counts(pmu: &mut Pmu<VirtualHost>) -> [u64; 3] {
    [0xc1, 0xc2, 0xc3].map(|msr| pmu.read(msr).unwrap())
}

fn troubles(pmu: &mut Pmu<VirtualHost>) -> Vec<(Counter, Trouble)> {
    pmu.notices().into_iter().map(|n| (n.counter, n.trouble)).collect()
}

#[test]
fn a_denied_event_does_not_count() {
    for policy in BOTH {
        let mut pmu = pmu(policy);
        let denied = BTreeSet::from([PmuEvent::Branches]);
        pmu.host_mut().set_faults(VirtualFaults { denied, ..VirtualFaults::default() });
        program(&mut pmu);
        pmu.host_mut().run(&work(), 50);
        assert_eq!(counts(&mut pmu), [50, 0, 50], "{policy:?}");
        assert_eq!(troubles(&mut pmu), [(Counter::General(1), Trouble::Denied)]);
        assert!(pmu.notices().is_empty(), "said once");
        assert_eq!(pmu.activity().refusals, 1);
        // The registers are as the guest wrote them.
        assert_eq!(pmu.read(0x187), Ok(0x53_00c4));
    }
}

#[test]
fn events_beyond_the_file_limit_do_not_count() {
    for policy in BOTH {
        let mut pmu = pmu(policy);
        pmu.host_mut().set_faults(VirtualFaults { files: Some(2), ..VirtualFaults::default() });
        program(&mut pmu);
        pmu.host_mut().run(&work(), 50);
        assert_eq!(counts(&mut pmu), [50, 50, 0], "{policy:?}");
        assert_eq!(troubles(&mut pmu), [(Counter::General(2), Trouble::TooManyFiles)]);
        // Once there is room the counter goes on: here when the guest gives up another one.
        pmu.write(0x186, 0).unwrap();
        for _ in 0..2 {
            pmu.slice_end();
            pmu.slice_begin();
        }
        pmu.host_mut().run(&work(), 10);
        assert_eq!(counts(&mut pmu), [50, 60, 10], "{policy:?}");
    }
}

#[test]
fn shared_counters_count_what_they_counted() {
    for policy in BOTH {
        let mut pmu = pmu(policy);
        pmu.host_mut().set_faults(VirtualFaults { counters: Some(2), ..VirtualFaults::default() });
        program(&mut pmu);
        for _ in 0..3 {
            pmu.host_mut().run(&work(), 10);
            pmu.host_mut().tick();
        }
        // Each stood still for one of three turns. Nothing is scaled: that would be made up.
        assert_eq!(counts(&mut pmu), [20, 20, 20], "{policy:?}");
        assert_eq!(pmu.activity().counted, 60);
        let expected: Vec<_> =
            (0..3).map(|i| (Counter::General(i), Trouble::Multiplexed)).collect();
        assert_eq!(troubles(&mut pmu), expected);
        // It is over, and not said again.
        pmu.host_mut().set_faults(VirtualFaults::default());
        pmu.host_mut().run(&work(), 10);
        assert_eq!(counts(&mut pmu), [30, 30, 30], "{policy:?}");
        assert!(troubles(&mut pmu).is_empty());
    }
}

#[test]
fn a_counter_that_was_taken_away_keeps_its_count() {
    for policy in BOTH {
        let mut pmu = pmu(policy);
        program(&mut pmu);
        pmu.host_mut().run(&work(), 50);
        pmu.host_mut().take_counters();
        pmu.host_mut().run(&work(), 1000);
        assert_eq!(counts(&mut pmu), [50; 3], "{policy:?}");
        let expected: Vec<_> = (0..3).map(|i| (Counter::General(i), Trouble::Taken)).collect();
        let told = troubles(&mut pmu);
        assert!(expected.iter().all(|e| told.contains(e)), "{told:?}");
        // The reading asked for it back.
        pmu.host_mut().run(&work(), 7);
        assert_eq!(counts(&mut pmu), [57; 3], "{policy:?}");
        // And stopping does not lose it.
        pmu.host_mut().take_counters();
        pmu.write(0x38f, 0).unwrap();
        pmu.host_mut().run(&work(), 7);
        assert_eq!(counts(&mut pmu), [57; 3], "{policy:?}");
        pmu.write(0x38f, ALL).unwrap();
        pmu.host_mut().run(&work(), 3);
        assert_eq!(counts(&mut pmu), [60; 3], "{policy:?}");
    }
}

#[test]
fn a_thread_that_ended_stops_its_counters() {
    for policy in BOTH {
        let mut pmu = pmu(policy);
        program(&mut pmu);
        pmu.host_mut().run(&work(), 50);
        pmu.host_mut().end_thread();
        assert_eq!(pmu.host_mut().run(&work(), 50), 0);
        assert_eq!(counts(&mut pmu), [50; 3]);
        assert!(troubles(&mut pmu).is_empty(), "nothing was asked for that failed");
        pmu.write(0x189, 0x53_00c0).unwrap();
        assert_eq!(troubles(&mut pmu), [(Counter::General(3), Trouble::ThreadGone)]);
        let state = pmu.save();
        assert_eq!(pmu.into_host().open(), 0);
        // The state can still go where a thread is.
        let mut pmu = Pmu::restore(state, VirtualHost::default(), policy).unwrap();
        pmu.slice_begin();
        pmu.host_mut().run(&work(), 1);
        assert_eq!(counts(&mut pmu), [51; 3]);
    }
}

#[test]
fn throttling_is_counted() {
    for policy in BOTH {
        let mut pmu = pmu(policy);
        pmu.host_mut().set_faults(VirtualFaults { throttle: Some(1), ..VirtualFaults::default() });
        pmu.write(0x186, 0x53_00c0).unwrap();
        pmu.write(0xc1, -10i64 as u64).unwrap();
        assert_eq!(pmu.host_mut().run(&work(), 100), 10);
        pmu.service();
        assert_eq!(pmu.activity().throttles, 1, "{policy:?}");
        assert_eq!(troubles(&mut pmu), [(Counter::General(0), Trouble::Throttled)]);
        assert!(pmu.deliver(false));
    }
    // The one event stays stopped until the host's tick; a new one is not.
    let mut pmu = pmu(Policy::Reuse);
    pmu.host_mut().set_faults(VirtualFaults { throttle: Some(1), ..VirtualFaults::default() });
    pmu.write(0x186, 0x53_00c0).unwrap();
    pmu.write(0xc1, -10i64 as u64).unwrap();
    pmu.host_mut().run(&work(), 10);
    pmu.host_mut().run(&work(), 5);
    assert_eq!(pmu.read(0xc1), Ok(0));
    pmu.host_mut().tick();
    pmu.host_mut().run(&work(), 5);
    assert_eq!(pmu.read(0xc1), Ok(5));
}

#[test]
fn every_interrupt_is_accounted_for() {
    for policy in BOTH {
        for period in [1, 7, 1000, 4099] {
            let mut pmu = pmu(policy);
            pmu.write(0x186, 0x53_00c0).unwrap();
            pmu.write(0x4c1, (1 << 48) - period).unwrap();
            let total = 100_000;
            let mut left = total;
            while left > 0 {
                left -= pmu.host_mut().run(&work(), left);
                pmu.service();
                // A guest that reloads at once; its interrupt may be late or find LVTPC masked.
                if pmu.read(0x38e) == Ok(1) {
                    pmu.write(0x390, 1).unwrap();
                    pmu.write(0x4c1, (1 << 48) - period).unwrap();
                    if left % 3 != 0 {
                        pmu.deliver(left % 5 == 0);
                    }
                }
            }
            pmu.deliver(false);
            let a = pmu.activity();
            assert_eq!(a.delivered + a.merged + a.dropped, total / period, "{policy:?} {period}");
            assert!(a.delivered > 0 && (period > 1000 || a.merged > 0 && a.dropped > 0), "{a:?}");
        }
    }
}

#[test]
fn an_idle_event_is_released_after_a_whole_slice() {
    let mut pmu = pmu(Policy::Reuse);
    program(&mut pmu);
    let slice = |pmu: &mut Pmu<VirtualHost>| {
        pmu.slice_end();
        pmu.slice_begin();
    };
    pmu.host_mut().run(&work(), 10);
    slice(&mut pmu);
    // Enabled counters stay, used or not.
    slice(&mut pmu);
    slice(&mut pmu);
    assert_eq!(pmu.host().open(), 3);
    pmu.write(0x186, 0).unwrap();
    slice(&mut pmu);
    assert_eq!(pmu.host().open(), 3, "it was used in the last slice");
    slice(&mut pmu);
    assert_eq!(pmu.host().open(), 2);
    assert_eq!(counts(&mut pmu), [10; 3]);
    // Going on with it takes an event again, and the count goes on.
    pmu.write(0x186, 0x53_00c0).unwrap();
    pmu.host_mut().run(&work(), 1);
    assert_eq!(counts(&mut pmu), [11; 3]);
    assert_eq!((pmu.activity().creates, pmu.activity().closes), (4, 1));
}

#[test]
fn reuse_creates_once_where_legacy_creates_every_time() {
    let activity = BOTH.map(|policy| {
        let mut pmu = pmu(policy);
        program(&mut pmu);
        for _ in 0..100 {
            pmu.write(0x38f, 0).unwrap();
            pmu.write(0x38f, ALL).unwrap();
            pmu.write(0x186, 0x13_00c0).unwrap();
            pmu.write(0x186, 0x53_00c0).unwrap();
            pmu.host_mut().run(&work(), 5);
        }
        assert_eq!(counts(&mut pmu), [500; 3]);
        pmu.activity()
    });
    // 3 at first, 3 with each global enable, 1 with each event select.
    assert_eq!((activity[0].creates, activity[0].closes), (403, 400));
    assert_eq!((activity[1].creates, activity[1].closes), (3, 0));
}

/// Something that a guest or its host does.
#[derive(Clone, Debug)]
enum Act {
    Run(u64),
    Select(u32, u64),
    Value(u32, u64),
    Global(u64),
    Read(u32),
    Slice,
    Reset,
    Faults(VirtualFaults),
    Tick,
    Take,
}

fn act() -> impl Strategy<Value = Act> {
    let limit = || proptest::option::of(0..4usize);
    let faults = (limit(), limit(), proptest::option::of(1..3u64), any::<bool>());
    let faults = faults.prop_map(|(counters, files, throttle, deny)| {
        let denied = deny.then_some(PmuEvent::Branches).into_iter().collect();
        Act::Faults(VirtualFaults { counters, denied, files, throttle })
    });
    let codes = proptest::sample::select(vec![0xc0u64, 0xc4, 0x3c]);
    prop_oneof![
        8 => (1..60u64).prop_map(Act::Run),
        4 => (0..4u32, codes, any::<bool>())
            .prop_map(|(i, code, on)| Act::Select(i, code | if on { 0x53_0000 } else { 0x13_0000 })),
        3 => (0..4u32, 1..40u64).prop_map(|(i, n)| Act::Value(i, (1 << 48) - n)),
        2 => (0..16u64).prop_map(Act::Global),
        2 => (0..4u32).prop_map(Act::Read),
        2 => Just(Act::Slice),
        1 => Just(Act::Reset),
        2 => faults,
        2 => Just(Act::Tick),
        2 => Just(Act::Take),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 5000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// What the host's events counted is what the guest's counters went up by, whatever happens to them.
    #[test]
    fn counts_are_conserved_under_faults(acts in proptest::collection::vec(act(), 1..60)) {
        for policy in BOTH {
            let mut pmu = pmu(policy);
            program(&mut pmu);
            for act in &acts {
                match act {
                    Act::Run(units) => {
                        let mut left = *units;
                        while left > 0 {
                            left -= pmu.host_mut().run(&work(), left);
                            pmu.service();
                        }
                    }
                    Act::Select(i, value) => pmu.write(0x186 + i, *value).unwrap(),
                    Act::Value(i, value) => pmu.write(0x4c1 + i, *value).unwrap(),
                    Act::Global(value) => pmu.write(0x38f, *value).unwrap(),
                    Act::Read(i) => {
                        pmu.read(0xc1 + i).unwrap();
                    }
                    Act::Slice => {
                        pmu.slice_end();
                        pmu.slice_begin();
                    }
                    Act::Reset => pmu.reset(),
                    Act::Faults(faults) => pmu.host_mut().set_faults(faults.clone()),
                    Act::Tick => pmu.host_mut().tick(),
                    Act::Take => pmu.host_mut().take_counters(),
                }
            }
            pmu.save();
            let activity = pmu.activity();
            prop_assert_eq!(activity.counted, pmu.host().counted(), "{:?}", policy);
            let pending = u64::from(pmu.deliver(false));
            prop_assert_eq!(
                activity.interrupts,
                activity.delivered + activity.merged + activity.dropped + pending
            );
            prop_assert_eq!(activity.creates - activity.closes, pmu.host().open() as u64);
        }
    }
}
