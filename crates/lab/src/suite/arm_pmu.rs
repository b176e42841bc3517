//! The suite `pmu` on arm64: a guest's accesses to the counters of KVM's own virtual PMU, which are those of the emulated processor.
//!
//! KVM makes an event of the host's perf of each counter, so that every access to a PMU register is an exit (`MDCR_EL2.TPM`). Registers are
//! accessed in the order of Linux's driver (`drivers/perf/arm_pmu.c`, `arm_pmuv3.c`), without its barriers.
//!
//! Left out: PMSELR_EL0 with PMXEVTYPER_EL0, which Linux does not use.

use vmtax_guest::layout::arm;

use super::arm::{GICR_SGI, ICC_EOIR1_EL1, ICC_IAR1_EL1, enable_interrupts, one, whole};
use super::definition::{CountedValue, Counters, Definition, GuestCode, OnArm};
use crate::payload::arm::{
    ArmCode, CodeWords, KEPT, Register, SystemRegister, VECTORS, nothing as nothing_before,
};

const PMCR_EL0: SystemRegister = (3, 3, 9, 12, 0);
const PMCNTENSET_EL0: SystemRegister = (3, 3, 9, 12, 1);
const PMCNTENCLR_EL0: SystemRegister = (3, 3, 9, 12, 2);
const PMOVSCLR_EL0: SystemRegister = (3, 3, 9, 12, 3);
const PMSWINC_EL0: SystemRegister = (3, 3, 9, 12, 4);
const PMUSERENR_EL0: SystemRegister = (3, 3, 9, 14, 0);
const PMCCNTR_EL0: SystemRegister = (3, 3, 9, 13, 0);
const PMINTENSET_EL1: SystemRegister = (3, 0, 9, 14, 1);
const PMINTENCLR_EL1: SystemRegister = (3, 0, 9, 14, 2);
const IC_IALLU: SystemRegister = (1, 0, 7, 5, 0);
const PMCCFILTR_EL0: SystemRegister = (3, 3, 14, 15, 7);

/// PMCR_EL0: counters run (E); the cycle counter overflows at 64 bits (LC); all counters become zero (P, C).
const RUN: u64 = 1 | STOPPED;
const STOPPED: u64 = 1 << 6;
const RESET: u64 = (3 << 1) | STOPPED;
/// Events: SW_INCR, INST_RETIRED, CPU_CYCLES, STALL_FRONTEND and STALL_BACKEND. The emulated processor has these and STALL alone.
const SOFTWARE: u64 = 0;
const INSTRUCTIONS: u64 = 8;
const EVENTS: [u64; 5] = [INSTRUCTIONS, 0x11, 0x23, 0x24, SOFTWARE];
/// Operations in a batch that change nothing.
const COUNT: u32 = 20;
const ZERO: Register = 31;
/// The bit of the cycle counter.
const CYCLES: u32 = 31;
/// Six counters: one for each of [`EVENTS`], and the cycle counter.
const SIX: u64 = (1 << CYCLES) | ((1 << EVENTS.len()) - 1);

/// What Linux gives counters that do not sample.
const FAR: u64 = 1 << 31;
const FAR_CYCLES: u64 = 1 << 63;

/// Instructions from one sample to the next, and rounds of a loop of two, which are more.
const PERIOD: u32 = 64;
const LOOP: u32 = 50;
/// The counter's value then: it has 32 bits.
const BEFORE_OVERFLOW: u64 = (1 << 32) - PERIOD as u64;
/// Rounds of the loops that are counted.
const ROUNDS: [u32; 3] = [2_000, 20_000, 200_000];

type Assembly = fn(&mut CodeWords);

pub(super) const OPERATIONS: &[Definition] = &[
    counters("vpmu-evtyper", "write of PMEVTYPER0_EL0, counter off", 6, all_off, |out| {
        out.put_system(event_type(0), INSTRUCTIONS);
    }),
    counters("vpmu-ccfiltr", "write of PMCCFILTR_EL0, counter off", 6, all_off, |out| {
        out.put_system(PMCCFILTR_EL0, 0);
    }),
    counters("vpmu-counter-on", "PMCNTENSET_EL0 starts one counter of five", 5, next_on, |out| {
        out.write(PMCNTENSET_EL0, KEPT);
        out.double(KEPT);
    }),
    counters("vpmu-counter-off", "PMCNTENCLR_EL0 stops one counter of five", 5, next_off, |out| {
        out.write(PMCNTENCLR_EL0, KEPT);
        out.double(KEPT);
    }),
    counters("vpmu-all-on", "PMCR_EL0.E starts six counters", 1, enabled, |out| {
        out.put_system(PMCR_EL0, RUN);
    }),
    counters("vpmu-all-off", "PMCR_EL0.E stops six counters", 1, all_on, |out| {
        out.put_system(PMCR_EL0, STOPPED);
    }),
    counters("vpmu-pmcr-read", "read of PMCR_EL0", COUNT, all_on, |out| out.read(0, PMCR_EL0)),
    counters("vpmu-ccntr-read", "read of PMCCNTR_EL0, six counters on", COUNT, all_on, |out| {
        out.read(0, PMCCNTR_EL0);
    }),
    counters("vpmu-evcntr-read", "read of PMEVCNTR0_EL0, six counters on", COUNT, all_on, |out| {
        out.read(0, counter(0));
    }),
    counters("vpmu-evcntr-write", "write of PMEVCNTR0_EL0, six counters on", 6, all_on, |out| {
        out.write(counter(0), ZERO);
    }),
    counters("vpmu-ovsclr-write", "write of PMOVSCLR_EL0", COUNT, all_on, |out| {
        out.put_system(PMOVSCLR_EL0, 1);
    }),
    counters("vpmu-intenset-write", "write of PMINTENSET_EL1", COUNT, all_on, |out| {
        out.put_system(PMINTENSET_EL1, 1);
    }),
    counters(
        "vpmu-swinc",
        "write of PMSWINC_EL0: a software increment, which KVM counts itself",
        COUNT,
        all_on,
        |out| out.put_system(PMSWINC_EL0, 1 << 4),
    ),
    whole(counters(
        "vpmu-switch-out",
        "a thread with six events is switched out, as by Linux's driver",
        1,
        all_on,
        switch_out,
    )),
    whole(counters(
        "vpmu-switch-in",
        "a thread with six events is switched in, as by Linux's driver",
        1,
        all_off,
        switch_in,
    )),
    whole(known(
        counters(
            "vpmu-sample",
            "100 instructions in which a counter overflows, its interrupt, and a handler as Linux's",
            4,
            next_sample,
            sample,
        ),
        sampling,
        CountedValue::Interrupt(arm::PMU_INTERRUPT),
    )),
    counting(
        "vpmu-count-4k",
        "2,000 rounds of a loop, whose instructions are counted",
        count::<0>,
        0,
    ),
    counting("vpmu-count-40k", "20,000 rounds of it", count::<1>, 1),
    counting("vpmu-count-400k", "200,000 rounds of it", count::<2>, 2),
];

const fn event_type(number: u32) -> SystemRegister {
    (3, 3, 14, 12 + (number >> 3), number & 7)
}

const fn counter(number: u32) -> SystemRegister {
    (3, 3, 14, 8 + (number >> 3), number & 7)
}

/// An operation of a guest that has programmed six counters; each takes an exit at least.
const fn counters(
    name: &'static str,
    summary: &'static str,
    count: u32,
    batch: Assembly,
    body: Assembly,
) -> Definition {
    const EXITS: Option<&str> = Some("SYS64");
    let one = one(name, summary, EXITS, body);
    let arm = OnArm {
        code: ArmCode { setup: program_six, batch, body },
        exits: EXITS,
        straight: true,
        hypervisor: false,
        counters: Some(Counters::Programmed),
    };
    Definition { count, code: GuestCode { arm: Some(arm), shares: false, ..one.code }, ..one }
}

/// With another set-up, and a value that the guest must find in each batch.
const fn known(one: Definition, setup: Assembly, value: CountedValue) -> Definition {
    let arm = match one.code.arm {
        Some(arm) => {
            let counters = Some(Counters::Known(value));
            Some(OnArm { code: ArmCode { setup, ..arm.code }, counters, ..arm })
        }
        None => None,
    };
    Definition { code: GuestCode { arm, ..one.code }, ..one }
}

/// A loop of two instructions whose instructions a counter counts.
const fn counting(
    name: &'static str,
    summary: &'static str,
    body: Assembly,
    index: usize,
) -> Definition {
    let one = counters(name, summary, 1, nothing_before, body);
    whole(known(one, one_off, CountedValue::Instructions(executed(ROUNDS[index]))))
}

/// Instructions from the access that starts the counter, not counted, to the one that stops it: a number of rounds into a register, one instruction
/// for each 16 bits that are not zero; the loop; the bit of the counter into a register; and the access itself, which traps: QEMU counts
/// it as retired.
const fn executed(rounds: u32) -> u64 {
    let number = if rounds >> 16 == 0 { 1 } else { 2 };
    number + 2 * rounds as u64 + 2
}

fn count<const INDEX: usize>(out: &mut CodeWords) {
    out.write(counter(0), ZERO);
    out.put_system(PMCNTENSET_EL0, 1);
    out.spin(ROUNDS[INDEX]);
    out.put_system(PMCNTENCLR_EL0, 1);
    out.read(0, counter(0));
    out.store_of_batch(arm::COUNTED, 0);
}

/// One counter of instructions, off.
fn one_off(out: &mut CodeWords) {
    out.put_system(PMCR_EL0, RESET);
    out.put_system(event_type(0), INSTRUCTIONS);
    out.put_system(PMCR_EL0, RUN);
    out.synchronize();
}

fn program_six(out: &mut CodeWords) {
    out.put_system(PMCR_EL0, RESET);
    for (number, event) in (0..).zip(EVENTS) {
        out.put_system(event_type(number), event);
    }
    out.put_system(PMCCFILTR_EL0, 0);
    out.synchronize();
}

/// Six counters are enabled, and do not run yet.
fn enabled(out: &mut CodeWords) {
    out.put_system(PMCR_EL0, STOPPED);
    out.put_system(PMCNTENSET_EL0, SIX);
    out.synchronize();
}

/// Six counters run.
fn all_on(out: &mut CodeWords) {
    enabled(out);
    out.put_system(PMCR_EL0, RUN);
    out.synchronize();
}

/// None is enabled, as while Linux programs them.
fn all_off(out: &mut CodeWords) {
    out.put_system(PMCR_EL0, STOPPED);
    out.put_system(PMCNTENCLR_EL0, SIX);
    out.synchronize();
}

/// None is enabled, and the first is the next.
fn next_on(out: &mut CodeWords) {
    all_off(out);
    out.put_system(PMCR_EL0, RUN);
    out.synchronize();
    out.set(KEPT, 1);
}

/// All run, and the first is the next.
fn next_off(out: &mut CodeWords) {
    all_on(out);
    out.set(KEPT, 1);
}

/// `armpmu_del` of each event (Linux 6.1). No event is left, so that `armpmu_enable` does nothing.
fn switch_out(out: &mut CodeWords) {
    change_control(out, STOPPED);
    for number in numbers() {
        disable(out, number);
        out.read(0, value_of(number));
    }
}

/// `armpmu_add` of each event (Linux 6.1). A Linux guest takes the same exits: `linux-turn-6` of the suite `perf` has as many as this and
/// [`switch_out`] together.
fn switch_in(out: &mut CodeWords) {
    change_control(out, STOPPED);
    for number in numbers() {
        out.put_system(value_of(number), if number == CYCLES { FAR_CYCLES } else { FAR });
        out.put_system(PMCNTENCLR_EL0, 1 << number);
        match EVENTS.get(number as usize) {
            Some(event) => out.put_system(event_type(number), *event),
            None => out.put_system(PMCCFILTR_EL0, 0),
        }
        out.put_system(PMINTENSET_EL1, 1 << number);
        out.put_system(PMCNTENSET_EL0, 1 << number);
    }
    start(out);
}

/// The counters of [`SIX`].
fn numbers() -> impl Iterator<Item = u32> {
    (0..EVENTS.len() as u32).chain([CYCLES])
}

fn value_of(number: u32) -> SystemRegister {
    if number == CYCLES { PMCCNTR_EL0 } else { counter(number) }
}

/// `armv8pmu_disable_event`.
fn disable(out: &mut CodeWords, number: u32) {
    for register in [PMCNTENCLR_EL0, PMINTENCLR_EL1, PMOVSCLR_EL0] {
        out.put_system(register, 1 << number);
    }
}

/// `armv8pmu_start`: programs may not read counters, and all run.
fn start(out: &mut CodeWords) {
    out.write(PMUSERENR_EL0, ZERO);
    change_control(out, RUN);
}

/// `armv8pmu_start` and `armv8pmu_stop` read the register first.
fn change_control(out: &mut CodeWords, value: u64) {
    out.read(2, PMCR_EL0);
    out.put_system(PMCR_EL0, value);
}

/// One counter that interrupts.
fn sampling(out: &mut CodeWords) {
    enable_interrupts(out);
    out.put(GICR_SGI + 0x100, 1 << arm::PMU_INTERRUPT);
    // eret, for the exception that `sample` takes.
    out.put(VECTORS + 0x200, 0xd69f_03e0);
    out.finish_invalidation();
    out.system(IC_IALLU);
    out.finish_invalidation();
    one_off(out);
    out.put_system(PMINTENSET_EL1, 1);
    out.put_system(PMCNTENSET_EL0, 1);
    out.synchronize();
}

fn next_sample(out: &mut CodeWords) {
    out.put_system(PMCR_EL0, STOPPED);
    out.put_system(PMOVSCLR_EL0, 1);
    out.put_system(counter(0), BEFORE_OVERFLOW);
    out.put_system(PMCR_EL0, RUN);
    out.synchronize();
}

/// `armv8pmu_handle_irq`, once the interrupt is there.
fn sample(out: &mut CodeWords) {
    out.spin(LOOP);
    // svc, an exception of the guest's own. QEMU 7.2 sets its timer for one event before the overflow, sees none then, and looks again at the next
    // exception alone.
    out.word(0xd400_0001);
    out.read(0, ICC_IAR1_EL1);
    out.store_of_batch(arm::COUNTED, 0);
    out.read(1, PMOVSCLR_EL0);
    out.write(PMOVSCLR_EL0, 1);
    change_control(out, STOPPED);
    out.read(1, counter(0));
    out.put_system(counter(0), BEFORE_OVERFLOW);
    start(out);
    out.write(ICC_EOIR1_EL1, 0);
}
