//! The suite `primitives` on arm64: what guests do that may take an exit.

use vmtax_guest::layout::{self, arm};
use vmtax_guest::order::{Backing, Touch};

use super::definition::{
    Definition, ExpectedExits, GuestCode, OnArm, clean, given_back, line, nothing,
};
use super::primitives::{PAGE_2M, PAGE_4K};
use crate::payload::arm::{
    ArmCode, CNTVCT_EL0, CodeWords, KEPT, SystemRegister, nothing as nothing_before,
};

const COUNT: u32 = 20;
const TOUCHES_2M: u32 = 2;

/// Functions of the SMC calling convention: Arm DEN0028 and DEN0022.
const SMCCC_VERSION: u64 = 0x8000_0000;
const PSCI_VERSION: u64 = 0x8400_0000;

const ACTLR_EL1: SystemRegister = (3, 0, 1, 0, 1);
const OSLAR_EL1: SystemRegister = (2, 0, 1, 0, 4);
const ID_AA64MMFR0_EL1: SystemRegister = (3, 0, 0, 7, 0);
const TLBI_VMALLE1IS: SystemRegister = (1, 0, 8, 3, 0);
const CNTV_CTL_EL0: SystemRegister = (3, 3, 14, 3, 1);
const CNTV_CVAL_EL0: SystemRegister = (3, 3, 14, 3, 2);
const ICC_SRE_EL1: SystemRegister = (3, 0, 12, 12, 5);
const ICC_PMR_EL1: SystemRegister = (3, 0, 4, 6, 0);
const ICC_IGRPEN1_EL1: SystemRegister = (3, 0, 12, 12, 7);
const ICC_SGI1R_EL1: SystemRegister = (3, 0, 12, 11, 5);
pub(super) const ICC_IAR1_EL1: SystemRegister = (3, 0, 12, 12, 0);
pub(super) const ICC_EOIR1_EL1: SystemRegister = (3, 0, 12, 12, 1);

/// Registers of the GIC: Arm IHI 0069, chapter 12.
const GICD_IIDR: u64 = arm::DISTRIBUTOR + 8;
const GICR_WAKER: u64 = arm::REDISTRIBUTOR + 0x14;
pub(super) const GICR_SGI: u64 = arm::REDISTRIBUTOR + 0x1_0000;
/// The virtual timer's interrupt.
const VIRTUAL_TIMER: u32 = 27;
/// Between the setting of a timer and its interrupt: a number that one ADD has room for.
const SLEEP_NS: u32 = 5 << 12;

/// Nothing, of which a loop is left.
pub(super) const EMPTY: OnArm = {
    let code = ArmCode { setup: nothing_before, batch: nothing_before, body: nothing_before };
    OnArm { code, exits: None, straight: true, hypervisor: false, counters: None }
};
pub(super) const TOUCH_4K: OnArm = touch(|out| first_store(out, PAGE_4K));
/// Loads from a page of 4 KiB, and a load and then a store.
pub(super) const READ_4K: OnArm = touch(|out| {
    out.load(0, (KEPT, 0));
    out.add(KEPT, KEPT, PAGE_4K);
});
pub(super) const READ_WRITE_4K: OnArm = touch(|out| {
    out.load(0, (KEPT, 0));
    first_store(out, PAGE_4K);
});
pub(super) const TOUCH_2M: OnArm = touch(|out| first_store(out, PAGE_2M));

pub(super) const OPERATIONS: &[Definition] = &[
    one("hvc-psci", "HVC, PSCI_VERSION", Some("HVC64"), hvc_psci),
    one("hvc-smccc", "HVC, SMCCC_VERSION", Some("HVC64"), |out| {
        out.set(0, SMCCC_VERSION);
        out.hvc();
    }),
    one("smc-psci", "SMC, PSCI_VERSION", Some("SMC64"), |out| {
        out.set(0, PSCI_VERSION);
        out.smc();
    }),
    one("mmio-read", "load from a device of the VMM", Some("DABT_LOW"), |out| {
        out.set(0, arm::address(layout::DEVICE_PORT));
        out.load(1, (0, 0));
    }),
    one("mmio-write", "store to a device of the VMM", Some("DABT_LOW"), |out| {
        out.set(0, arm::address(layout::DEVICE_PORT));
        out.store(1, (0, 0));
    }),
    one("id-register", "read of ID_AA64MMFR0_EL1", Some("SYS64"), |out| {
        out.read(0, ID_AA64MMFR0_EL1);
    }),
    one("actlr", "read of ACTLR_EL1", Some("SYS64"), |out| out.read(0, ACTLR_EL1)),
    one("oslar", "write of OSLAR_EL1", Some("SYS64"), |out| {
        out.set(0, 0);
        out.write(OSLAR_EL1, 0);
    }),
    on_gic(
        "gic-read",
        "read of GICD_IIDR of KVM's interrupt controller",
        Some("DABT_LOW"),
        |out| {
            out.set(0, GICD_IIDR);
            out.load(1, (0, 0));
        },
    ),
    whole(on_gic(
        "sgi-self",
        "an interrupt to itself, acknowledged and ended",
        Some("SYS64"),
        |out| {
            out.set(0, 1);
            out.write(ICC_SGI1R_EL1, 0);
            out.synchronize();
            out.read(0, ICC_IAR1_EL1);
            out.write(ICC_EOIR1_EL1, 0);
        },
    )),
    whole(on_gic(
        "timer-irq",
        "the virtual timer's interrupt, due at once, acknowledged and ended",
        None,
        |out| {
            arm_timer(out);
            take_interrupt(out);
        },
    )),
    whole(on_gic("wfi-pending", "WFI with an interrupt that is pending and masked", None, |out| {
        arm_timer(out);
        out.wait_for_interrupt();
        out.write(CNTV_CTL_EL0, 31);
    })),
    waiting(on_gic(
        "timer-sleep",
        "WFI until the virtual timer's interrupt, 20,480 ns",
        None,
        |out| {
            out.read(0, CNTVCT_EL0);
            out.add(0, 0, SLEEP_NS);
            out.write(CNTV_CVAL_EL0, 0);
            out.put_system(CNTV_CTL_EL0, 1);
            out.synchronize();
            out.wait_for_interrupt();
            take_interrupt(out);
        },
    )),
    one("wfe", "WFE", None, CodeWords::wait_for_event),
    one("tlbi", "TLBI VMALLE1IS and its completion", None, |out| {
        out.system(TLBI_VMALLE1IS);
        out.finish_invalidation();
        out.synchronize();
    }),
    mapping(
        "map-4k",
        "first store to a 4 KiB page that the host has",
        (COUNT, PAGE_4K),
        Backing::Small,
        TOUCH_4K,
    ),
    mapping(
        "map-2m",
        "first store to a 2 MiB page that the host has",
        (TOUCHES_2M, PAGE_2M),
        Backing::Thp,
        TOUCH_2M,
    ),
];

pub(super) const fn one(
    name: &'static str,
    summary: &'static str,
    exits: Option<&'static str>,
    body: fn(&mut CodeWords),
) -> Definition {
    let code = ArmCode { setup: nothing_before, batch: nothing_before, body };
    let on_arm = OnArm { code, exits, straight: true, hypervisor: false, counters: None };
    let code = GuestCode { arm: Some(on_arm), ..clean(line(nothing)) };
    Definition {
        name,
        summary,
        count: COUNT,
        kind: ExpectedExits::Measured,
        code: code.only_on_arm(),
    }
}

/// With interrupts as far as the processor's interface; they stay masked.
pub(super) const fn on_gic(
    name: &'static str,
    summary: &'static str,
    exits: Option<&'static str>,
    body: fn(&mut CodeWords),
) -> Definition {
    let code = ArmCode { setup: enable_interrupts, batch: nothing_before, body };
    let one = one(name, summary, exits, body);
    let arm = OnArm { code, exits, straight: true, hypervisor: false, counters: None };
    let code = GuestCode { arm: Some(arm), shares: false, ..one.code };
    Definition { code, ..one }
}

/// All of its body is the operation.
pub(super) const fn whole(one: Definition) -> Definition {
    let arm = match one.code.arm {
        Some(arm) => Some(OnArm { straight: false, ..arm }),
        None => None,
    };
    Definition { code: GuestCode { arm, ..one.code }, ..one }
}

/// Its body waits for time to pass.
const fn waiting(one: Definition) -> Definition {
    let one = whole(one);
    Definition { code: GuestCode { waits: true, ..one.code }, ..one }
}

const fn mapping(
    name: &'static str,
    summary: &'static str,
    (count, page): (u32, u32),
    backing: Backing,
    arm: OnArm,
) -> Definition {
    let touch = Touch { populated: true, ..given_back(page * count, backing) };
    let code = GuestCode { arm: Some(arm), touch: Some(touch), ..line(nothing) };
    Definition { name, summary, count, kind: ExpectedExits::Measured, code: code.only_on_arm() }
}

const fn touch(body: fn(&mut CodeWords)) -> OnArm {
    let code = ArmCode { setup: nothing_before, batch: start_touching, body };
    OnArm { code, exits: Some("DABT_LOW"), straight: true, hypervisor: false, counters: None }
}

fn start_touching(out: &mut CodeWords) {
    out.set(KEPT, arm::TOUCH);
}

fn first_store(out: &mut CodeWords, page: u32) {
    out.store(KEPT, (KEPT, 0));
    out.add(KEPT, KEPT, page);
}

fn hvc_psci(out: &mut CodeWords) {
    out.set(0, PSCI_VERSION);
    out.hvc();
}

/// The distributor with affinity routing, this processor's redistributor awake, SGI 0 and the virtual timer in group 1 and enabled.
pub(super) fn enable_interrupts(out: &mut CodeWords) {
    out.put(arm::DISTRIBUTOR, 0x12);
    out.put(GICR_WAKER, 0);
    let asleep = out.here();
    out.set(0, GICR_WAKER);
    out.load(1, (0, 0));
    out.branch_if_bit((1, 2), asleep);
    out.put(GICR_SGI + 0x80, u32::MAX);
    out.put(GICR_SGI + 0x100, 1 << VIRTUAL_TIMER | 1);
    out.put_system(ICC_SRE_EL1, 7);
    out.synchronize();
    out.put_system(ICC_PMR_EL1, 0xf0);
    out.put_system(ICC_IGRPEN1_EL1, 1);
    out.synchronize();
}

/// Sets the virtual timer to a time that is over.
fn arm_timer(out: &mut CodeWords) {
    out.write(CNTV_CVAL_EL0, 31);
    out.put_system(CNTV_CTL_EL0, 1);
    out.synchronize();
}

/// Acknowledges the pending interrupt, switches the timer off and ends it.
fn take_interrupt(out: &mut CodeWords) {
    out.read(0, ICC_IAR1_EL1);
    out.write(CNTV_CTL_EL0, 31);
    out.write(ICC_EOIR1_EL1, 0);
}
