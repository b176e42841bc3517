//! Exits of guests that use performance counters: with multiplexing, sampling, and thread switches.
//!
//! KVM without a PMU accepts the two oldest event selects and counters and ignores them. That suffices: each access is an exit with the MSR's
//! number. Every payload takes a timer tick each round, as a guest's kernel does.

use iced_x86::code_asm::{dword_ptr, eax, ecx, edx, qword_ptr, rax};

use super::definition::{Definition, ExpectedExits, waiting};
use super::timers::{deadline_halt, x2apic_deadline};
use crate::payload::{Assemble, Assembler, INTERRUPTS, VARIABLES};

/// Ticks.
const COUNT: u32 = 20;
/// Event selects and counters: IA32_PERFEVTSEL0, IA32_PMC0 and the next of each.
const SELECT: u32 = 0x186;
const COUNTER: u32 = 0xc1;
/// Multiplexed events of each counter: cycles and branches, instructions and branch misses. All are enabled and
/// interrupt.
const EVENTS: [[u32; 2]; 2] = [[0x53_003c, 0x53_00c4], [0x53_00c0, 0x53_00c5]];
const ENABLE: u32 = 1 << 22;
/// The event of each counter.
const PRESENT: [u64; 2] = [VARIABLES + 0x50, VARIABLES + 0x58];
/// Start value of a counter.
const RELOAD: u64 = 0xffff_0000;
/// Switches of a thread with counters between two ticks.
const SWITCHES: usize = 4;
/// Ticks per switch.
const SELDOM: u32 = 7;

pub(super) const OPERATIONS: &[Definition] = &[
    row("perf-none", "a tick, no counters", deadline_halt),
    row("perf-multiplex", "a tick, at which four events take turns on two counters", multiplex),
    row("perf-sample", "a tick, and two samples of one counter", sample),
    row("perf-switch", "a tick, and four switches of a thread with two counters", switch_often),
    row("perf-switch-seldom", "a tick, and such a switch at every seventh", switch_seldom),
];

const fn row(
    name: &'static str,
    summary: &'static str,
    body: fn(&mut Assembler) -> Assemble,
) -> Definition {
    Definition {
        name,
        summary,
        count: COUNT,
        kind: ExpectedExits::Some,
        code: waiting(setup, body),
    }
}

/// A timer, and the first event of each counter.
fn setup(asm: &mut Assembler) -> Assemble {
    x2apic_deadline(asm)?;
    for (present, events) in PRESENT.into_iter().zip(EVENTS) {
        asm.a.mov(dword_ptr(present), events[0])?;
    }
    Ok(())
}

/// Stops a counter: its event select without the enable bit; then its value is read.
fn stop(asm: &mut Assembler, i: usize) -> Assemble {
    asm.a.mov(eax, dword_ptr(PRESENT[i]))?;
    asm.a.and(eax, !ENABLE as i32)?;
    asm.a.xor(edx, edx)?;
    asm.a.mov(ecx, SELECT + i as u32)?;
    asm.a.wrmsr()?;
    asm.a.mov(ecx, COUNTER + i as u32)?;
    asm.a.rdmsr()
}

/// Starts a counter: its value, then its event select.
fn start(asm: &mut Assembler, i: usize) -> Assemble {
    asm.write_msr(COUNTER + i as u32, RELOAD)?;
    asm.a.mov(eax, dword_ptr(PRESENT[i]))?;
    asm.a.xor(edx, edx)?;
    asm.a.mov(ecx, SELECT + i as u32)?;
    asm.a.wrmsr()
}

fn multiplex(asm: &mut Assembler) -> Assemble {
    deadline_halt(asm)?;
    for i in 0..2 {
        stop(asm, i)?;
        asm.a.mov(eax, EVENTS[i][0] ^ EVENTS[i][1])?;
        asm.a.xor(dword_ptr(PRESENT[i]), eax)?;
        start(asm, i)?;
    }
    Ok(())
}

fn sample(asm: &mut Assembler) -> Assemble {
    deadline_halt(asm)?;
    for _ in 0..2 {
        asm.a.mov(ecx, COUNTER)?;
        asm.a.rdmsr()?;
        asm.write_msr(COUNTER, RELOAD)?;
    }
    Ok(())
}

fn switch(asm: &mut Assembler) -> Assemble {
    (0..2).try_for_each(|i| stop(asm, i))?;
    (0..2).try_for_each(|i| start(asm, i))
}

fn switch_often(asm: &mut Assembler) -> Assemble {
    deadline_halt(asm)?;
    (0..SWITCHES).try_for_each(|_| switch(asm))
}

fn switch_seldom(asm: &mut Assembler) -> Assemble {
    deadline_halt(asm)?;
    let mut not_now = asm.a.create_label();
    asm.a.mov(rax, qword_ptr(INTERRUPTS))?;
    asm.a.xor(edx, edx)?;
    asm.a.mov(ecx, SELDOM)?;
    asm.a.div(ecx)?;
    asm.a.test(edx, edx)?;
    asm.a.jnz(not_now)?;
    switch(asm)?;
    asm.a.set_label(&mut not_now)?;
    asm.a.nop()
}
