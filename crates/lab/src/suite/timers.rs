//! One workload in several ways: wait for a timer of 200 us, 20 times.
//!
//! The variants are those of "Performance analysis of confidential VMs" (TU Munich, 2024): the clock (TSC deadline or initial count), the APIC
//! mode, and the idle loop.

use iced_x86::code_asm::{ecx, qword_ptr, r8};

use super::definition::{Definition, ExpectedExits, waiting};
use crate::payload::{Assemble, Assembler, INTERRUPTS, VECTOR, handle_apic, handle_x2apic};

const COUNT: u32 = 20;
/// The wait.
const WAIT_NS: u32 = 200_000;
/// A wait short enough to end while the guest polls.
const SHORT_NS: u32 = 5_000;
/// Iterations of the guest's polling loop before it halts.
const POLLS: u32 = 4_000;
/// KVM's MSR by which a polling guest disables polling by the host.
const KVM_POLL_CONTROL: u32 = 0x4b56_4d05;

pub(super) const OPERATIONS: &[Definition] = &[
    row("count-xapic-hlt", "initial count, APIC in memory, HLT", xapic_count, count_xapic_halt),
    row("count-x2apic-hlt", "initial count, x2APIC, HLT", x2apic_count, count_x2apic_halt),
    row("deadline-xapic-hlt", "TSC deadline, APIC in memory, HLT", xapic_deadline, deadline_halt),
    row("deadline-x2apic-hlt", "TSC deadline, x2APIC, HLT", x2apic_deadline, deadline_halt),
    row("deadline-x2apic-poll", "TSC deadline, x2APIC, idle=poll", x2apic_deadline, deadline_poll),
    row(
        "deadline-x2apic-haltpoll",
        "TSC deadline, x2APIC, haltpoll whose polling is too short: HLT after it",
        haltpoll,
        deadline_haltpoll,
    ),
    row("short-x2apic-hlt", "a TSC deadline of 5 us, x2APIC, HLT", x2apic_deadline, short_halt),
    row(
        "short-x2apic-haltpoll",
        "a TSC deadline of 5 us, x2APIC, haltpoll that sees it come",
        haltpoll,
        short_haltpoll,
    ),
];

const fn row(
    name: &'static str,
    summary: &'static str,
    setup: fn(&mut Assembler) -> Assemble,
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

fn xapic_count(asm: &mut Assembler) -> Assemble {
    asm.enable_apic()?;
    asm.gate(VECTOR, handle_apic)?;
    asm.write_apic(0x3e0, 0xb)?;
    asm.write_apic(0x320, u32::from(VECTOR))
}

fn x2apic_count(asm: &mut Assembler) -> Assemble {
    asm.enable_x2apic()?;
    asm.gate(VECTOR, handle_x2apic)?;
    asm.write_msr(0x83e, 0xb)?;
    asm.write_msr(0x832, u64::from(VECTOR))
}

fn xapic_deadline(asm: &mut Assembler) -> Assemble {
    asm.enable_apic()?;
    asm.calibrate()?;
    asm.gate(VECTOR, handle_apic)?;
    asm.write_apic(0x320, 0x4_0000 | u32::from(VECTOR))
}

pub(super) fn x2apic_deadline(asm: &mut Assembler) -> Assemble {
    asm.enable_apic()?;
    asm.calibrate()?;
    asm.enable_x2apic()?;
    asm.gate(VECTOR, handle_x2apic)?;
    asm.write_msr(0x832, 0x4_0000 | u64::from(VECTOR))
}

fn haltpoll(asm: &mut Assembler) -> Assemble {
    x2apic_deadline(asm)?;
    asm.write_msr(KVM_POLL_CONTROL, 0)
}

fn sleep(asm: &mut Assembler) -> Assemble {
    asm.halt()
}

fn count_xapic_halt(asm: &mut Assembler) -> Assemble {
    asm.write_apic(0x380, WAIT_NS)?;
    sleep(asm)
}

fn count_x2apic_halt(asm: &mut Assembler) -> Assemble {
    asm.write_msr(0x838, u64::from(WAIT_NS))?;
    sleep(asm)
}

pub(super) fn deadline_halt(asm: &mut Assembler) -> Assemble {
    asm.arm_deadline(WAIT_NS)?;
    sleep(asm)
}

fn short_halt(asm: &mut Assembler) -> Assemble {
    asm.arm_deadline(SHORT_NS)?;
    sleep(asm)
}

fn deadline_poll(asm: &mut Assembler) -> Assemble {
    asm.a.mov(r8, qword_ptr(INTERRUPTS))?;
    asm.arm_deadline(WAIT_NS)?;
    asm.a.sti()?;
    asm.spin(true)?;
    asm.a.cli()
}

fn deadline_haltpoll(asm: &mut Assembler) -> Assemble {
    asm.a.mov(r8, qword_ptr(INTERRUPTS))?;
    asm.arm_deadline(WAIT_NS)?;
    poll_then_halt(asm)
}

fn short_haltpoll(asm: &mut Assembler) -> Assemble {
    asm.a.mov(r8, qword_ptr(INTERRUPTS))?;
    asm.arm_deadline(SHORT_NS)?;
    poll_then_halt(asm)
}

/// Polls for the interrupt, then halts if there is none.
fn poll_then_halt(asm: &mut Assembler) -> Assemble {
    let (mut again, mut seen) = (asm.a.create_label(), asm.a.create_label());
    asm.a.sti()?;
    asm.a.mov(ecx, POLLS)?;
    asm.a.set_label(&mut again)?;
    asm.a.cmp(qword_ptr(INTERRUPTS), r8)?;
    asm.a.jne(seen)?;
    asm.a.pause()?;
    asm.a.dec(ecx)?;
    asm.a.jnz(again)?;
    asm.a.cli()?;
    asm.a.cmp(qword_ptr(INTERRUPTS), r8)?;
    asm.a.jne(seen)?;
    asm.halt()?;
    asm.a.set_label(&mut seen)?;
    asm.a.cli()
}
