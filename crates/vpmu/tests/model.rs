//! The guest cannot tell the policies apart, nor from a simple reference: random accesses, overflows, slices, saves.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "model/reference.rs"]
mod reference;

use std::cell::Cell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use reference::Reference;
use vmtax_vpmu::host::virtual_time::{EventCost, EventCosts, GuestWork, VirtualHost};
use vmtax_vpmu::{Activity, Amd, Intel, Pmu, PmuEvent, PmuModel, PmuState, Policy, Privilege};

/// Something that happens to a vCPU: which thing, and two numbers to choose its details by.
type VcpuStep = (u8, u8, u64);

fn models() -> Vec<PmuModel> {
    let v2 = Intel::default();
    vec![
        PmuModel::Intel(Intel {
            version: 1,
            general: 2,
            fixed: 0,
            full_width: false,
            ..v2.clone()
        }),
        PmuModel::Intel(v2.clone()),
        PmuModel::Intel(Intel {
            version: 3,
            general: 8,
            general_width: 40,
            fixed_width: 40,
            ..v2.clone()
        }),
        PmuModel::Intel(Intel { version: 4, general_width: 32, unavailable: 0x1c, ..v2.clone() }),
        PmuModel::Intel(Intel { version: 5, fixed: 0b1011, general: 6, unavailable: 0, ..v2 }),
        PmuModel::Amd(Amd { counters: 4, perfmon_v2: false }),
        PmuModel::Amd(Amd { counters: 6, perfmon_v2: false }),
        PmuModel::Amd(Amd { counters: 6, perfmon_v2: true }),
    ]
}

/// MSRs of either vendor, and some beside them.
const MSRS: [u32; 55] = [
    0xc0,
    0xc1,
    0xc2,
    0xc3,
    0xc4,
    0xc8,
    0xc9,
    0x186,
    0x187,
    0x188,
    0x189,
    0x18d,
    0x18e,
    0x309,
    0x30a,
    0x30b,
    0x30c,
    0x30d,
    0x345,
    0x38c,
    0x38d,
    0x38e,
    0x38f,
    0x390,
    0x391,
    0x392,
    0x393,
    0x4c0,
    0x4c1,
    0x4c2,
    0x4c3,
    0x4c8,
    0x4c9,
    0x1d9,
    0xc001_0000,
    0xc001_0001,
    0xc001_0003,
    0xc001_0004,
    0xc001_0005,
    0xc001_0007,
    0xc001_0008,
    0xc001_01ff,
    0xc001_0200,
    0xc001_0201,
    0xc001_0202,
    0xc001_0203,
    0xc001_0207,
    0xc001_020a,
    0xc001_020b,
    0xc001_020c,
    0xc000_0300,
    0xc000_0301,
    0xc000_0302,
    0xc000_0303,
    0xc000_0304,
];

/// Those that matter most to a vendor's guests.
const INTEL: [u32; 16] = [
    0xc1, 0xc2, 0x186, 0x187, 0x186, 0x187, 0x309, 0x30a, 0x4c1, 0x38d, 0x38d, 0x38f, 0x390, 0x390,
    0x391, 0x1d9,
];
const AMD: [u32; 12] = [
    0xc001_0000,
    0xc001_0001,
    0xc001_0200,
    0xc001_0202,
    0xc001_0004,
    0xc001_0005,
    0xc001_0201,
    0xc000_0301,
    0xc000_0302,
    0xc000_0302,
    0xc000_0303,
    0x1d9,
];

fn msr(model: &PmuModel, choice: u8) -> u32 {
    let choice = usize::from(choice);
    match model {
        _ if choice < MSRS.len() => MSRS[choice],
        PmuModel::Intel(_) => INTEL[choice % INTEL.len()],
        PmuModel::Amd(_) => AMD[choice % AMD.len()],
    }
}

const CODES: [u64; 14] =
    [0x3c, 0xc0, 0x13c, 0x4f2e, 0x412e, 0xc4, 0xc5, 0x1a4, 0x76, 0xc2, 0xc3, 0x1234, 0, 0xff];

/// A value that makes sense there, most of the time.
fn value(msr: u32, choice: u64) -> u64 {
    let kind = choice & 0xff;
    let detail = choice >> 8;
    let select = match msr {
        0x186..0x18e | 0xc001_0000..0xc001_0004 => true,
        0xc001_0200..0xc001_020c => msr.is_multiple_of(2),
        _ => false,
    };
    match msr {
        _ if kind < 4 => detail.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        _ if kind < 6 => u64::MAX,
        _ if kind < 12 => 0,
        // Mostly enabled, in all modes, with an interrupt.
        _ if select => {
            let code = CODES[detail as usize % CODES.len()];
            let modes = [1, 2, 3, 3][(detail >> 8 & 3) as usize] << 16;
            let on = u64::from(detail >> 10 & 7 != 0) << 22;
            let interrupt = u64::from(detail >> 13 & 3 != 0) << 20;
            let odd = [1 << 18, 1 << 21, 1 << 23, 1 << 24, 1 << 32][(detail >> 15) as usize % 5];
            code | modes | on | interrupt | if kind < 24 { odd } else { 0 }
        }
        0x38d => detail & 0xbbb,
        // Masks of counters: all of a small model's, some of them, or any.
        0x38f | 0x390 | 0x391 | 0xc000_0301..0xc000_0304 => {
            let frozen = if kind & 3 == 0 && msr != 0x38f { 1 << 59 } else { 0 };
            let some = [0x7_0000_0003, 0x3, 0xf, 0x7_0000_000f, 0xf_0000_00ff & detail];
            frozen | some[(detail >> 40) as usize % some.len()]
        }
        0x1d9 => (detail & 1) << 12,
        // Counters: shortly before an overflow, in each of the widths.
        _ => (1 << [31, 32, 40, 48][(kind & 3) as usize]) - (1 + detail % 24),
    }
}

fn works() -> [GuestWork; 3] {
    let events = [
        (PmuEvent::Cycles, 3),
        (PmuEvent::Instructions, 2),
        (PmuEvent::ReferenceCycles, 1),
        (PmuEvent::Branches, 1),
        (PmuEvent::Slots, 5),
        (PmuEvent::Raw(0x1234), 1),
        (PmuEvent::Raw(0x1_0000_00c0), 2),
    ];
    let other = [
        (PmuEvent::CacheReferences, 2),
        (PmuEvent::CacheMisses, 1),
        (PmuEvent::BranchMisses, 1),
        (PmuEvent::Raw(1 << 18 | 0xc0), 1),
    ];
    let instruction = [(PmuEvent::Instructions, 1), (PmuEvent::Cycles, 1)];
    [GuestWork::user(7, &events), GuestWork::kernel(5, &other), GuestWork::kernel(1, &instruction)]
}

/// What a PMU did before its state moved to another one.
#[derive(Default)]
struct PmuSums {
    counted: u64,
    overflows: u64,
}

/// One policy's vCPU.
struct ModelVcpu {
    pmu: Pmu<VirtualHost>,
    before: PmuSums,
}

impl ModelVcpu {
    fn new(model: &PmuModel, policy: Policy) -> ModelVcpu {
        ModelVcpu {
            pmu: Pmu::new(model.clone(), host(), policy).unwrap(),
            before: PmuSums::default(),
        }
    }

    fn run(&mut self, work: &GuestWork, mut units: u64) {
        while units > 0 {
            units -= self.pmu.host_mut().run(work, units);
            self.pmu.service();
        }
    }

    /// As it is sent to another host.
    fn save(&mut self) -> PmuState {
        let state = self.pmu.save();
        let activity = self.pmu.activity();
        assert!(activity.creates >= activity.closes);
        let settled = activity.delivered + activity.merged + activity.dropped;
        assert!(activity.interrupts - settled <= 1, "{activity:?}");
        self.before.counted += activity.counted;
        self.before.overflows += activity.overflows;
        state
    }

    fn restore(&mut self, state: PmuState, policy: Policy) {
        let open = {
            let mut pmu = Pmu::restore(state, host(), policy).unwrap();
            pmu.slice_begin();
            std::mem::replace(&mut self.pmu, pmu).into_host().open()
        };
        assert_eq!(open, 0, "events stay open");
    }
}

/// Costs must not show in what the guest reads.
fn host() -> VirtualHost {
    let cost = EventCost { create: 1000, close: 70, enable: 30, disable: 20, read: 5, set_left: 3 };
    VirtualHost::new(EventCosts { general: cost, fixed: cost, msr: 11 })
}

/// What the sequences met so far: a check of nothing would pass too.
#[derive(Clone, Copy, Debug, Default)]
struct Met {
    overflows: u64,
    delivered: u64,
    merged: u64,
    dropped: u64,
    frozen: u64,
    /// Events created by each policy.
    creates: [u64; 3],
    enables: u64,
    /// Accesses that do not leave a guest with a mediated PMU.
    passes: u64,
}

impl Met {
    fn and(mut self, all: &[Activity; 3], reference: &Reference) -> Met {
        let [_, reuse, mediated] = all;
        self.overflows += reference.overflows;
        self.delivered += reuse.delivered;
        self.merged += reuse.merged;
        self.dropped += reuse.dropped;
        self.frozen += u64::from(reference.frozen());
        for (creates, activity) in self.creates.iter_mut().zip(all) {
            *creates += activity.creates;
        }
        self.enables += reuse.enables;
        self.passes += mediated.passes;
        self
    }
}

/// Runs a guest on the reference and under all policies. All that it can see must be the same.
fn check(model: &PmuModel, steps: &[VcpuStep], met: &Cell<Met>) -> Result<(), TestCaseError> {
    let works = works();
    let mut reference = Reference::new(model.clone());
    let mut vcpus = Policy::ALL.map(|policy| ModelVcpu::new(model, policy));
    for &(kind, a, b) in steps {
        match kind {
            0..80 => {
                let msr = msr(model, a);
                let value = value(msr, b);
                let expected = reference.write(msr, value);
                for v in &mut vcpus {
                    prop_assert_eq!(
                        v.pmu.write(msr, value),
                        expected,
                        "write {:#x} {:#x}",
                        msr,
                        value
                    );
                }
            }
            80..95 => {
                let msr = msr(model, a);
                for v in &mut vcpus {
                    prop_assert_eq!(v.pmu.read(msr), reference.read(msr), "read {:#x}", msr);
                }
            }
            95..105 => {
                let index = [
                    0,
                    1,
                    5,
                    8,
                    32,
                    0x4000_0000,
                    0x4000_0002,
                    0x4000_0003,
                    0x8000_0000,
                    0xc000_0000,
                    b as u32,
                ];
                let index = index[a as usize % index.len()];
                let privilege = Privilege {
                    cpl: (b >> 32 & 3) as u8,
                    pce: b >> 40 & 1 == 1,
                    protected: b >> 41 & 3 != 0,
                };
                let expected =
                    reference.rdpmc(index, privilege.cpl, privilege.pce, privilege.protected);
                for v in &mut vcpus {
                    prop_assert_eq!(v.pmu.rdpmc(index, privilege), expected, "rdpmc {:#x}", index);
                }
            }
            105..205 => {
                let work = &works[a as usize % works.len()];
                let units = b % 40;
                (0..units).for_each(|_| reference.run(work));
                vcpus.iter_mut().for_each(|v| v.run(work, units));
            }
            205..230 => vcpus.iter_mut().for_each(|v| {
                v.pmu.slice_end();
                v.pmu.slice_begin();
            }),
            230..245 => {
                let expected = std::mem::take(&mut reference.pending) && a & 1 == 0;
                for v in &mut vcpus {
                    prop_assert_eq!(v.pmu.deliver(a & 1 == 1), expected);
                }
            }
            // All are saved, and each goes on with another's state.
            245..252 => {
                let mut states = vcpus.each_mut().map(ModelVcpu::save);
                prop_assert_eq!(&states[0], &states[1]);
                prop_assert_eq!(&states[0], &states[2]);
                states.rotate_left(1);
                for ((v, state), policy) in vcpus.iter_mut().zip(states).zip(Policy::ALL) {
                    v.restore(state, policy);
                }
            }
            252 => vcpus.iter_mut().for_each(|v| v.pmu.exited()),
            _ => {
                reference.reset();
                vcpus.iter_mut().for_each(|v| v.pmu.reset());
            }
        }
    }
    for msr in MSRS {
        for v in &mut vcpus {
            prop_assert_eq!(v.pmu.read(msr), reference.read(msr), "read {:#x} at the end", msr);
        }
    }
    met.set(met.get().and(&vcpus.each_ref().map(|v| v.pmu.activity()), &reference));
    for v in &mut vcpus {
        v.save();
        prop_assert_eq!(v.before.counted, reference.counted, "counts are conserved");
        prop_assert_eq!(v.before.overflows, reference.overflows);
        prop_assert!(v.pmu.notices().is_empty());
        prop_assert_eq!(v.pmu.deliver(false), reference.pending);
    }
    Ok(())
}

fn check_many(cases: u32) {
    let models = models();
    let met = Cell::default();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let steps = proptest::collection::vec(any::<VcpuStep>(), 1..80);
    let result = TestRunner::new(config)
        .run(&(0..models.len(), steps), |(model, steps)| check(&models[model], &steps, &met));
    if let Err(e) = result {
        panic!("{e}");
    }
    let met = met.get();
    let rare = [
        met.overflows,
        met.delivered,
        met.merged,
        met.dropped,
        met.frozen,
        met.enables,
        met.passes,
    ];
    assert!(rare.iter().all(|n| *n > u64::from(cases) / 1000), "{met:?}");
    let [legacy, reuse, mediated] = met.creates;
    assert!(legacy > reuse && reuse > 0 && mediated == 0, "{met:?}");
}

#[test]
fn policies_and_reference_agree() {
    check_many(20_000);
}

#[test]
#[ignore = "a million sequences: with --release a minute"]
fn policies_and_reference_agree_for_long() {
    check_many(1_000_000);
}
