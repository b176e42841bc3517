//! What a guest is shown: CPUID, registers and their reserved bits, overflows, interrupts, RDPMC, saved states.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use vmtax_vpmu::host::perf_event::{EventOptions, PerfEventHost};
use vmtax_vpmu::host::virtual_time::{EventCosts, GuestWork, VirtualHost};
use vmtax_vpmu::{
    Amd, Error, GeneralProtection, Intel, Leaf, Pmu, PmuEvent, PmuModel, PmuState, Policy,
    Privilege, Trouble,
};

const FAULT: Result<(), GeneralProtection> = Err(GeneralProtection);
/// Instructions in both modes, enabled, with an interrupt.
const INSTRUCTIONS: u64 = 0x53_00c0;

fn pmu(model: PmuModel) -> Pmu<VirtualHost> {
    Pmu::new(model, VirtualHost::new(EventCosts::default()), Policy::Reuse).unwrap()
}

fn intel(version: u8) -> Intel {
    let fixed = if version == 1 { 0 } else { 0b111 };
    Intel { version, fixed, ..Intel::default() }
}

fn v2() -> Pmu<VirtualHost> {
    pmu(PmuModel::Intel(Intel::default()))
}

fn amd(perfmon_v2: bool) -> Pmu<VirtualHost> {
    pmu(PmuModel::Amd(Amd { counters: 6, perfmon_v2 }))
}

/// Has a guest retire instructions, one unit each.
fn retire(pmu: &mut Pmu<VirtualHost>, mut n: u64) {
    let work = GuestWork::user(1, &[(PmuEvent::Instructions, 1), (PmuEvent::Cycles, 2)]);
    while n > 0 {
        n -= pmu.host_mut().run(&work, n);
        pmu.service();
    }
}

fn leaf(model: &PmuModel, number: u32) -> [u32; 4] {
    let leaves = model.cpuid();
    leaves.into_iter().find(|l| l.leaf == number).unwrap().value
}

#[test]
fn cpuid_says_what_there_is() {
    // Version, counters, width, length of EBX; events that are missing; fixed bitmap; fixed counters, AnyThread.
    let table = [
        (Intel { unavailable: 0x80, ..intel(1) }, [0x0830_0401, 0x80, 0, 0]),
        (intel(2), [0x0830_0402, 0x80, 0, 0x603]),
        (Intel { general: 8, ..intel(3) }, [0x0830_0803, 0x80, 0, 0x8603]),
        (Intel { general_width: 40, fixed_width: 40, ..intel(4) }, [0x0828_0404, 0x80, 0, 0x8503]),
        (Intel { fixed: 0b1011, unavailable: 0, ..intel(5) }, [0x0830_0405, 0, 0b1011, 0x8602]),
    ];
    for (model, expected) in table {
        assert_eq!(leaf(&PmuModel::Intel(model.clone()), 0xa), expected, "{model:x?}");
        assert_eq!(leaf(&PmuModel::Intel(model.clone()), 1)[2], 1 << 15, "PDCM");
        assert_eq!(leaf(&PmuModel::Intel(Intel { full_width: false, ..model }), 1)[2], 0);
    }
    let amd = |counters, perfmon_v2| PmuModel::Amd(Amd { counters, perfmon_v2 });
    assert_eq!(leaf(&amd(4, false), 0x8000_0001), [0; 4]);
    assert_eq!(leaf(&amd(6, false), 0x8000_0001), [0, 0, 1 << 23, 0]);
    assert_eq!(leaf(&amd(6, false), 0x8000_0022), [0; 4]);
    assert_eq!(leaf(&amd(6, true), 0x8000_0022), [1, 6, 0, 0]);
    let one = Leaf { leaf: 1, mask: [0, 0, 1 << 15, 0], value: [0; 4] };
    assert_eq!(one.merge([7, 8, u32::MAX, 9]), [7, 8, !(1 << 15), 9]);
}

#[test]
fn impossible_models_are_refused() {
    let models = [
        PmuModel::Intel(intel(0)),
        PmuModel::Intel(intel(6)),
        PmuModel::Intel(Intel { general: 0, ..intel(2) }),
        PmuModel::Intel(Intel { general: 9, ..intel(2) }),
        PmuModel::Intel(Intel { general_width: 31, ..intel(2) }),
        PmuModel::Intel(Intel { general_width: 64, ..intel(2) }),
        PmuModel::Intel(Intel { fixed_width: 49, ..intel(2) }),
        PmuModel::Intel(Intel { fixed: 0x1f, ..intel(2) }),
        PmuModel::Intel(Intel { fixed: 0b101, ..intel(4) }),
        PmuModel::Intel(Intel { fixed: 1, ..intel(1) }),
        PmuModel::Amd(Amd { counters: 5, perfmon_v2: false }),
        PmuModel::Amd(Amd { counters: 4, perfmon_v2: true }),
    ];
    for model in models {
        let result = Pmu::new(model.clone(), VirtualHost::default(), Policy::Reuse);
        assert!(matches!(result, Err(Error::Model(_))), "{model:?}");
    }
}

#[test]
fn a_model_must_not_promise_more_than_the_host_has() {
    let new = |host| Pmu::new(PmuModel::Intel(intel(2)), host, Policy::Legacy).map(|_| ());
    let host = VirtualHost::default();
    assert_eq!(new(host.clone().limited(7, &[])), Ok(()));
    assert_eq!(new(host.clone().limited(6, &[])), Err(Error::Counters { model: 7, host: 6 }));
    assert_eq!(
        new(host.clone().limited(7, &[PmuEvent::CacheMisses])),
        Err(Error::Event { event: PmuEvent::CacheMisses, trouble: Trouble::NoSuchEvent })
    );
    // Version 2 has no slots, so that they need not be there.
    assert_eq!(new(host.limited(7, &[PmuEvent::Slots])), Ok(()));
}

#[test]
fn reserved_bits_fault_on_intel() {
    let mut pmu = v2();
    let table = [
        (0x186, 0xffdf_ffff, 0x20_0000),
        (0x186, 0, 1 << 32),
        (0x186, 0, 1 << 63),
        (0x4c1, 0xffff_ffff_ffff, 1 << 48),
        (0x309, 0xffff_ffff_ffff, 1 << 48),
        (0x38d, 0xbbb, 1 << 2),
        (0x38d, 0, 1 << 12),
        (0x38f, 0x7_0000_000f, 1 << 4),
        (0x38f, 0, 1 << 35),
        (0x390, 0xc000_0007_0000_000f, 1 << 61),
        (0x390, 0, 1 << 59),
        (0x1d9, 1 << 12, 1 << 11),
    ];
    for (msr, allowed, reserved) in table {
        assert_eq!(pmu.write(msr, allowed), Ok(()), "{msr:#x}");
        let before = pmu.read(msr);
        assert_eq!(pmu.write(msr, reserved), FAULT, "{msr:#x} {reserved:#x}");
        assert_eq!(pmu.read(msr), before, "{msr:#x} changed by a write that faulted");
    }
    for read_only in [0x345, 0x38e] {
        assert_eq!(pmu.write(read_only, 0), FAULT);
        assert!(pmu.read(read_only).is_ok());
    }
    // Neighbours, and what only later versions or AMD have.
    for unknown in [0xc0, 0xc5, 0x185, 0x18a, 0x30c, 0x391, 0x392, 0x4c5, 0xc001_0000, 0xc000_0300]
    {
        assert_eq!((pmu.read(unknown), pmu.write(unknown, 0)), (Err(GeneralProtection), FAULT));
        assert!(!pmu.owns(unknown));
    }
}

#[test]
fn reserved_bits_vanish_on_amd() {
    let mut pmu = amd(true);
    let table = [
        (0xc001_0200, 0x0000_000f_ffd7_ffff),
        (0xc001_0201, 0xffff_ffff_ffff),
        (0xc000_0301, 0x3f),
        (0xc000_0303, 0),
        (0x1d9, 1 << 12),
    ];
    for (msr, kept) in table {
        assert_eq!(pmu.write(msr, u64::MAX), Ok(()));
        assert_eq!(pmu.read(msr), Ok(kept), "{msr:#x}");
    }
    // Setting the status did; a write of the status itself is ignored.
    assert_eq!(pmu.read(0xc000_0300), Ok(0x3f | 1 << 59));
    assert_eq!(pmu.write(0xc000_0300, 0), Ok(()));
    assert_eq!(pmu.write(0xc000_0302, 0x1f | 1 << 59), Ok(()));
    assert_eq!(pmu.read(0xc000_0300), Ok(0x20));
}

#[test]
fn the_k7s_registers_are_the_first_four() {
    let mut pmu = amd(false);
    for i in 0..4 {
        pmu.write(0xc001_0000 + i, 0xc0 + u64::from(i)).unwrap();
        pmu.write(0xc001_0004 + i, 1000 + u64::from(i)).unwrap();
        assert_eq!(pmu.read(0xc001_0200 + 2 * i), Ok(0xc0 + u64::from(i)));
        assert_eq!(pmu.read(0xc001_0201 + 2 * i), Ok(1000 + u64::from(i)));
    }
    assert!(!pmu.owns(0xc000_0300), "no PerfMonV2");
    let mut k7 = self::pmu(PmuModel::Amd(Amd { counters: 4, perfmon_v2: false }));
    assert!(k7.owns(0xc001_0007) && !k7.owns(0xc001_0200));
    // Without global control an event select is all that it takes.
    k7.write(0xc001_0003, INSTRUCTIONS).unwrap();
    k7.write(0xc001_0007, (1 << 48) - 10).unwrap();
    retire(&mut k7, 15);
    assert_eq!(k7.read(0xc001_0007), Ok(5));
    assert!(k7.deliver(false));
}

#[test]
fn msrs_are_listed_in_rows() {
    let intel = PmuModel::Intel(intel(2)).msrs();
    let rows = [(0xc1, 4), (0x186, 4), (0x309, 3), (0x345, 1), (0x38d, 4), (0x4c1, 4)];
    assert_eq!(intel, rows);
    let amd = PmuModel::Amd(Amd { counters: 6, perfmon_v2: true }).msrs();
    assert_eq!(amd, [(0xc000_0300, 4), (0xc001_0000, 8), (0xc001_0200, 12)]);
    // They are all, but for DEBUGCTL.
    for (msr, other) in [(0x1d8, false), (0x1d9, true), (0x1da, false)] {
        assert_eq!(v2().owns(msr), other);
    }
    let pmu = v2();
    let owned = (0..0x2000).chain(0xc000_0000..0xc002_0000).filter(|msr| pmu.owns(*msr)).count();
    assert_eq!(owned as u32, rows.iter().map(|(_, n)| n).sum::<u32>() + 1);
}

#[test]
fn counters_are_written_narrow_or_wide() {
    let mut pmu = v2();
    for (written, read) in [(5, 5), (0x1_2345_6789, 0x2345_6789), (0x8000_0000, 0xffff_8000_0000)] {
        pmu.write(0xc2, written).unwrap();
        assert_eq!(pmu.read(0xc2), Ok(read));
        assert_eq!(pmu.read(0x4c2), Ok(read));
    }
    pmu.write(0x4c2, 0x1234_5678_9abc).unwrap();
    assert_eq!(pmu.read(0xc2), Ok(0x1234_5678_9abc));
    assert_eq!(pmu.read(0x345), Ok(1 << 13));
    let narrow = self::pmu(PmuModel::Intel(Intel { full_width: false, ..intel(2) }));
    assert!(!narrow.owns(0x4c1) && !narrow.owns(0x345));
}

#[test]
fn status_is_set_with_or_without_an_interrupt() {
    let mut pmu = v2();
    pmu.write(0x38f, 0x1_0000_0003).unwrap();
    pmu.write(0x186, INSTRUCTIONS & !(1 << 20)).unwrap();
    pmu.write(0xc1, -10i64 as u64).unwrap();
    retire(&mut pmu, 9);
    assert_eq!((pmu.read(0x38e), pmu.read(0xc1)), (Ok(0), Ok((1 << 48) - 1)));
    retire(&mut pmu, 1);
    assert_eq!((pmu.read(0x38e), pmu.read(0xc1)), (Ok(1), Ok(0)));
    assert!(!pmu.deliver(false));
    pmu.write(0x187, INSTRUCTIONS).unwrap();
    pmu.write(0xc2, -10i64 as u64).unwrap();
    pmu.write(0x38d, 0xb).unwrap();
    pmu.write(0x309, (1 << 48) - 20).unwrap();
    retire(&mut pmu, 30);
    assert_eq!(pmu.read(0x38e), Ok(0x1_0000_0003));
    // One interrupt for both.
    assert!(pmu.deliver(false) && !pmu.deliver(false));
    assert_eq!(pmu.activity().merged, 1);
    pmu.write(0x390, 0x1_0000_0000).unwrap();
    assert_eq!(pmu.read(0x38e), Ok(3));
}

#[test]
fn an_overflow_that_is_served_late_is_one() {
    let mut pmu = v2();
    pmu.write(0x186, INSTRUCTIONS).unwrap();
    pmu.write(0xc1, -10i64 as u64).unwrap();
    // The host reports each of its own periods until it gets another one.
    let work = GuestWork::user(1, &[(PmuEvent::Instructions, 1)]);
    let done: Vec<u64> = [25, 15, 5].map(|n| pmu.host_mut().run(&work, n)).into();
    assert_eq!(done, [10, 10, 5]);
    assert!(pmu.deliver(false) && !pmu.deliver(false));
    assert_eq!((pmu.read(0xc1), pmu.read(0x38e)), (Ok(15), Ok(1)));
    let activity = pmu.activity();
    assert_eq!((activity.overflows, activity.interrupts, activity.merged), (1, 1, 0));
}

#[test]
fn an_interrupt_that_finds_lvtpc_masked_is_lost() {
    let mut pmu = v2();
    pmu.write(0x186, INSTRUCTIONS).unwrap();
    for (i, masked) in [false, true, true, false, false].into_iter().enumerate() {
        pmu.write(0xc1, -100i64 as u64).unwrap();
        retire(&mut pmu, 100);
        assert_eq!(pmu.deliver(masked), !masked, "{i}");
        assert!(!pmu.deliver(false), "it does not come back");
    }
    let activity = pmu.activity();
    assert_eq!((activity.interrupts, activity.delivered, activity.dropped), (5, 3, 2));
}

#[test]
fn counters_freeze_as_their_version_has_it() {
    for version in [2, 3, 4, 5] {
        let mut pmu = pmu(PmuModel::Intel(intel(version)));
        pmu.write(0x38f, 0x2_0000_0001).unwrap();
        pmu.write(0x38d, 0xb0).unwrap();
        pmu.write(0x186, INSTRUCTIONS).unwrap();
        pmu.write(0xc1, -10i64 as u64).unwrap();
        pmu.write(0x1d9, 1 << 12).unwrap();
        retire(&mut pmu, 25);
        assert_eq!((pmu.read(0xc1), pmu.read(0x30a)), (Ok(0), Ok(20)), "version {version}");
        if version < 4 {
            assert_eq!((pmu.read(0x38f), pmu.read(0x38e)), (Ok(0), Ok(1)));
            pmu.write(0x38f, 0x2_0000_0001).unwrap();
        } else {
            assert_eq!((pmu.read(0x38f), pmu.read(0x38e)), (Ok(0x2_0000_0001), Ok(1 << 59 | 1)));
            pmu.write(0x390, 1 << 59).unwrap();
        }
        retire(&mut pmu, 5);
        assert_eq!((pmu.read(0xc1), pmu.read(0x30a)), (Ok(5), Ok(30)), "version {version}");
    }
}

#[test]
fn version_4_says_what_is_in_use() {
    let mut pmu = pmu(PmuModel::Intel(intel(4)));
    assert_eq!(pmu.read(0x392), Ok(0));
    pmu.write(0x187, 0xc0).unwrap();
    pmu.write(0x38d, 0x300).unwrap();
    assert_eq!(pmu.read(0x392), Ok(1 << 34 | 2));
    pmu.write(0x38d, 0x308).unwrap();
    assert_eq!(pmu.read(0x392), Ok(1 << 63 | 1 << 34 | 2));
    assert_eq!(pmu.write(0x392, 0), FAULT);
    pmu.write(0x391, 0x1_0000_0002).unwrap();
    assert_eq!(pmu.read(0x38e), Ok(0x1_0000_0002));
}

#[test]
fn rdpmc_reads_by_index() {
    let kernel = Privilege { cpl: 0, pce: false, protected: true };
    let mut pmu = v2();
    pmu.write(0xc2, 77).unwrap();
    pmu.write(0x30b, 99).unwrap();
    assert_eq!(pmu.rdpmc(1, kernel), Ok(77));
    assert_eq!(pmu.rdpmc(1 << 30 | 2, kernel), Ok(99));
    for bad in [4, 1 << 30 | 3, 1 << 31, 1 << 31 | 1, 3 << 30, 1 << 29, 256, u32::MAX] {
        assert_eq!(pmu.rdpmc(bad, kernel), Err(GeneralProtection), "{bad:#x}");
    }
    let user = Privilege { cpl: 3, ..kernel };
    assert_eq!(pmu.rdpmc(1, user), Err(GeneralProtection));
    assert_eq!(pmu.rdpmc(1, Privilege { pce: true, ..user }), Ok(77));
    assert_eq!(pmu.rdpmc(1, Privilege { protected: false, ..user }), Ok(77));
    let mut amd = amd(true);
    amd.write(0xc001_020b, 5).unwrap();
    assert_eq!(amd.rdpmc(5, kernel), Ok(5));
    assert_eq!(amd.rdpmc(6, kernel), Err(GeneralProtection));
    assert_eq!(amd.rdpmc(1 << 30, kernel), Err(GeneralProtection));
}

#[test]
fn an_event_that_is_not_there_does_not_count() {
    let mut pmu = pmu(PmuModel::Intel(Intel { unavailable: 1 << 1, ..intel(2) }));
    pmu.write(0x186, INSTRUCTIONS).unwrap();
    pmu.write(0x187, 0x53_003c).unwrap();
    retire(&mut pmu, 10);
    assert_eq!((pmu.read(0xc1), pmu.read(0xc2)), (Ok(0), Ok(20)));
    assert_eq!(pmu.activity().creates, 1);
}

#[test]
fn modes_are_kept_apart() {
    let mut pmu = v2();
    pmu.write(0x38f, 0x7_0000_000f).unwrap();
    pmu.write(0x186, 0x41_00c0).unwrap();
    pmu.write(0x187, 0x42_00c0).unwrap();
    pmu.write(0x188, 0x40_00c0).unwrap();
    pmu.write(0x38d, 0x3).unwrap();
    let work = [(PmuEvent::Instructions, 1)];
    pmu.host_mut().run(&GuestWork::user(1, &work), 30);
    pmu.host_mut().run(&GuestWork::kernel(1, &work), 12);
    let counts = [0xc1, 0xc2, 0xc3, 0x309].map(|msr| pmu.read(msr).unwrap());
    assert_eq!(counts, [30, 12, 0, 42]);
}

#[test]
fn a_reset_leaves_general_counters_on() {
    let mut pmu = v2();
    let fresh = pmu.save();
    pmu.write(0x38f, 0x7_0000_0003).unwrap();
    pmu.write(0x38d, 0xbbb).unwrap();
    pmu.write(0x186, INSTRUCTIONS).unwrap();
    pmu.write(0xc1, -5i64 as u64).unwrap();
    retire(&mut pmu, 10);
    assert_ne!(pmu.save(), fresh);
    pmu.reset();
    assert_eq!(pmu.save(), fresh);
    assert_eq!(pmu.read(0x38f), Ok(0xf));
    assert_eq!(pmu.host().open(), 0);
    assert!(!pmu.deliver(false), "the interrupt is gone");
}

#[test]
fn a_saved_guest_counts_on_elsewhere() {
    let mut pmu = v2();
    pmu.write(0x186, INSTRUCTIONS).unwrap();
    pmu.write(0xc1, -100i64 as u64).unwrap();
    for (round, policy) in [Policy::Legacy, Policy::Reuse, Policy::Mediated].into_iter().enumerate()
    {
        retire(&mut pmu, 30);
        let text = serde_json::to_string(&pmu.save()).unwrap();
        assert_eq!(pmu.into_host().open(), 0);
        let state: PmuState = serde_json::from_str(&text).unwrap();
        pmu = Pmu::restore(state, VirtualHost::default(), policy).unwrap();
        retire(&mut pmu, 1000);
        assert_eq!(pmu.host().open(), 0, "nothing counts before the first slice");
        pmu.slice_begin();
        assert_eq!(pmu.read(0xc1), Ok((1 << 48) - 100 + 30 * (round as u64 + 1)));
    }
    retire(&mut pmu, 10);
    assert_eq!((pmu.read(0xc1), pmu.read(0x38e)), (Ok(0), Ok(1)));
    assert!(pmu.deliver(false));
}

#[test]
fn states_that_are_newer_or_damaged_are_refused() {
    let good = serde_json::to_value(v2().save()).unwrap();
    let read = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut value = good.clone();
        edit(&mut value);
        let state: PmuState = serde_json::from_value(value).map_err(|e| e.to_string())?;
        let restored = Pmu::restore(state, VirtualHost::default(), Policy::Reuse);
        restored.map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(read(&|_| {}), Ok(()));
    // Also when its parts have changed beyond recognition.
    let newer = read(&|v| {
        v["format"] = 2.into();
        v["model"] = "?".into();
    });
    assert_eq!(
        newer.unwrap_err(),
        "the state is of version 2; this library knows versions up to 1"
    );
    assert_eq!(
        read(&|v| v["format"] = 0.into()).unwrap_err(),
        "the state is damaged: there is no version 0"
    );
    let damage: [&dyn Fn(&mut serde_json::Value); 6] = [
        &|v| v["registers"]["values"][0] = (1u64 << 48).into(),
        &|v| v["registers"]["selects"][0] = (1u64 << 40).into(),
        &|v| v["registers"]["values"] = serde_json::json!([]),
        &|v| v["registers"]["global_status"] = (1u64 << 5).into(),
        &|v| v["registers"]["fixed_control"] = 4.into(),
        &|v| v["registers"]["debug_control"] = 1.into(),
    ];
    for edit in damage {
        let error = read(edit).unwrap_err();
        assert!(error.starts_with("the state is damaged: "), "{error}");
    }
    let model = read(&|v| v["model"]["Intel"]["version"] = 9.into());
    assert_eq!(model.unwrap_err(), "no PMU is like this model: version is not 1 to 5");
}

#[test]
fn a_mediated_pmu_needs_a_host_that_gives_its_counters() {
    // The kernel's perf does not.
    let host = PerfEventHost::this_thread(EventOptions::default());
    let model = PmuModel::Intel(Intel::default());
    let error = Pmu::new(model, host, Policy::Mediated).map(|_| ()).unwrap_err();
    assert_eq!(error, Error::Mediated);
}

#[test]
fn a_mediated_guests_accesses_exit_only_for_selects_and_are_saved_then() {
    let mut pmu =
        Pmu::new(PmuModel::Intel(Intel::default()), VirtualHost::default(), Policy::Mediated)
            .unwrap();
    let switched = |pmu: &Pmu<VirtualHost>| pmu.activity().world_switches.total();
    pmu.write(0x186, INSTRUCTIONS).unwrap();
    let one = switched(&pmu);
    assert!(one > 0);
    for msr in [0xc1, 0x309, 0x38e, 0x38f] {
        pmu.read(msr).unwrap();
    }
    pmu.write(0x4c1, 5).unwrap();
    assert_eq!((switched(&pmu), pmu.activity().passes, pmu.activity().exits), (one, 5, 1));
    assert_eq!((pmu.host().open(), pmu.activity().creates), (1, 0));
    // A counter's interrupt is an exit, and so is any other.
    pmu.write(0x4c1, (1 << 48) - 1).unwrap();
    retire(&mut pmu, 1);
    assert!(pmu.deliver(false));
    pmu.exited();
    assert_eq!(pmu.activity().exits, 3);
    assert_eq!(pmu.host().seen().0, 0, "the host sees nothing of its guest");
}
