//! What guests do that may take an exit, one thing at a time.

use iced_x86::code_asm::{
    al, cr0, cr4, dr0, dword_ptr, dx, eax, ebx, ecx, edi, edx, ptr, qword_ptr, r8, rax, rbx, rcx,
    rdi, rdx,
};

use super::arm;
use super::definition::{
    Definition, ExpectedExits, GuestCode, clean, each, given_back, line, nothing, waiting, whole,
    with_setup,
};
use crate::payload::{
    APIC, Assemble, Assembler, INTERRUPTS, VARIABLES, VECTOR, handle_apic, handle_x2apic,
    skip_two_bytes,
};
use vmtax_guest::layout;
use vmtax_guest::order::Backing;

/// Operations in a batch: few enough that most batches see no tick of the host's clock.
const COUNT: u32 = 20;
pub(super) const PAGE_4K: u32 = 4 << 10;
pub(super) const PAGE_2M: u32 = 2 << 20;
const TOUCHES_4K: u32 = COUNT;
const TOUCHES_2M: u32 = 2;
/// KVM (6.1) without APICv lets the guest try an access to the APIC's page a second time before it emulates it
/// (`retry_instruction` in `arch/x86/kvm/x86.c`).
const TWICE: u32 = 2;
/// QEMU's TCG (7.2) does not know the XSETBV intercept; AMD processors exit.
const XSETBV_ON_TCG: u32 = 0;
/// Between timer interrupts: the shortest period KVM allows by default (`min_timer_period_us`).
const PERIOD_NS: u32 = 200_000;

pub(super) const OPERATIONS: &[Definition] = &[
    Definition {
        name: "cpuid",
        summary: "CPUID leaf 0",
        count: COUNT,
        kind: each("cpuid", "CPUID"),
        code: clean(line(cpuid)),
    },
    Definition {
        name: "hypercall",
        summary: "VMCALL or VMMCALL, KVM_HC_VAPIC_POLL_IRQ",
        count: COUNT,
        kind: each("hypercall", "VMCALL"),
        code: clean(line(hypercall)),
    },
    Definition {
        name: "rdmsr",
        summary: "RDMSR IA32_APIC_BASE",
        count: COUNT,
        kind: each("msr", "MSR_READ"),
        code: clean(line(rdmsr)),
    },
    Definition {
        name: "wrmsr",
        summary: "WRMSR IA32_PAT",
        count: COUNT,
        kind: each("msr", "MSR_WRITE"),
        code: clean(line(wrmsr)),
    },
    Definition {
        name: "tsc-deadline",
        summary: "WRMSR IA32_TSC_DEADLINE, far in the future",
        count: COUNT,
        kind: each("msr", "MSR_WRITE"),
        code: clean(with_setup(deadline_mode, arm_far)),
    },
    Definition {
        name: "timer-tick",
        summary: "a tick of the local APIC's periodic timer, 200 us, with its EOI",
        count: 20,
        kind: ExpectedExits::Some,
        code: clean(waiting(periodic, wait_for_tick)),
    },
    Definition {
        name: "x2apic-self-ipi",
        summary: "x2APIC ICR to itself, interrupt, EOI",
        count: COUNT,
        kind: ExpectedExits::EachByApic { svm: ("msr", 2), vmx: ("MSR_WRITE", 2) },
        code: clean(whole(x2apic, self_ipi)),
    },
    Definition {
        name: "xapic-read",
        summary: "read of the local APIC's TPR in memory",
        count: COUNT,
        kind: ExpectedExits::EachByApic { svm: ("npf", 1), vmx: ("EPT_VIOLATION", TWICE) },
        code: clean(with_setup(Assembler::enable_apic, read_tpr)),
    },
    Definition {
        name: "pio-user",
        summary: "OUT to a port of the VMM",
        count: COUNT,
        kind: each("io", "IO_INSTRUCTION"),
        code: clean(line(pio_user)),
    },
    Definition {
        name: "pio-pit",
        summary: "IN from KVM's timer chip (0x40)",
        count: COUNT,
        kind: each("io", "IO_INSTRUCTION"),
        code: clean(line(pio_pit)),
    },
    Definition {
        name: "pio-pic",
        summary: "IN from KVM's interrupt controller (0x21)",
        count: COUNT,
        kind: each("io", "IO_INSTRUCTION"),
        code: clean(line(pio_pic)),
    },
    Definition {
        name: "mmio-user",
        summary: "store to a device of the VMM",
        count: COUNT,
        kind: each("npf", "EPT_MISCONFIG"),
        code: clean(line(mmio_user)),
    },
    Definition {
        name: "touch-4k",
        summary: "first store to a 4 KiB page",
        count: TOUCHES_4K,
        kind: each("npf", "EPT_VIOLATION"),
        code: GuestCode {
            arm: Some(arm::TOUCH_4K),
            ..touching(PAGE_4K, TOUCHES_4K, Backing::Small, touch_4k)
        },
    },
    Definition {
        name: "touch-2m",
        summary: "first store to a 2 MiB page",
        count: TOUCHES_2M,
        kind: each("npf", "EPT_VIOLATION"),
        code: GuestCode {
            arm: Some(arm::TOUCH_2M),
            ..touching(PAGE_2M, TOUCHES_2M, Backing::Thp, touch_2m)
        },
    },
    Definition {
        name: "hlt-timer",
        summary: "one-shot timer of the local APIC, HLT, interrupt, EOI",
        count: 20,
        kind: ExpectedExits::Each { svm: ("hlt", 1), vmx: ("HLT", 1) },
        code: clean(waiting(one_shot, halt)),
    },
    Definition {
        name: "pause",
        summary: "PAUSE in a loop",
        count: COUNT,
        kind: ExpectedExits::Measured,
        code: line(pause),
    },
    Definition {
        name: "cr4-write",
        summary: "MOV to CR4 that changes VME",
        count: COUNT,
        kind: each("write_cr4", "CR_ACCESS"),
        code: clean(with_setup(load_cr4, write_cr4)),
    },
    Definition {
        name: "cr0-write",
        summary: "MOV to CR0 that changes AM",
        count: COUNT,
        kind: each("cr0_sel_write", "CR_ACCESS"),
        code: clean(with_setup(load_cr0, write_cr0)),
    },
    Definition {
        name: "dr-write",
        summary: "MOV to DR0; KVM intercepts only the first",
        count: COUNT,
        kind: ExpectedExits::Some,
        code: clean(line(write_dr)),
    },
    Definition {
        name: "wbinvd",
        summary: "WBINVD",
        count: COUNT,
        kind: each("wbinvd", "WBINVD"),
        code: clean(line(wbinvd)),
    },
    Definition {
        name: "xsetbv",
        summary: "XSETBV of the same value",
        count: COUNT,
        kind: ExpectedExits::Each { svm: ("xsetbv", XSETBV_ON_TCG), vmx: ("XSETBV", 1) },
        code: GuestCode { xsave: true, ..with_setup(os_xsave, xsetbv) },
    },
    Definition {
        name: "rdtsc",
        summary: "RDTSC",
        count: COUNT,
        kind: ExpectedExits::None,
        code: clean(line(rdtsc)),
    },
    Definition {
        name: "invlpg",
        summary: "INVLPG",
        count: COUNT,
        kind: ExpectedExits::None,
        code: clean(line(invlpg)),
    },
    Definition {
        name: "ud2",
        summary: "#UD, which KVM intercepts, and its handler",
        count: COUNT,
        kind: each("UD excp", "EXCEPTION_NMI"),
        code: clean(with_setup(ud_gate, ud2)),
    },
    Definition {
        name: "context-switch",
        summary: "IPI to another vCPU and back: two IPIs, two HLTs",
        count: 20,
        kind: ExpectedExits::Some,
        code: GuestCode { second: Some(answer), ..whole(ping_pong, ping) },
    },
];

const fn touching(
    page: u32,
    count: u32,
    backing: Backing,
    body: fn(&mut Assembler) -> Assemble,
) -> GuestCode {
    GuestCode {
        batch: start_touching,
        touch: Some(given_back(page * count, backing)),
        ..with_setup(nothing, body)
    }
}

fn cpuid(asm: &mut Assembler) -> Assemble {
    asm.a.xor(eax, eax)?;
    asm.a.cpuid()
}

fn hypercall(asm: &mut Assembler) -> Assemble {
    asm.a.mov(eax, 1)?;
    asm.hypercall()
}

fn rdmsr(asm: &mut Assembler) -> Assemble {
    asm.a.mov(ecx, 0x1b)?;
    asm.a.rdmsr()
}

fn wrmsr(asm: &mut Assembler) -> Assemble {
    // The value after reset.
    asm.write_msr(0x277, 0x0007_0406_0007_0406)
}

fn deadline_mode(asm: &mut Assembler) -> Assemble {
    asm.enable_apic()?;
    // TSC-deadline mode, masked: the timer never interrupts.
    asm.write_apic(0x320, 0x5_0000 | u32::from(VECTOR))
}

fn arm_far(asm: &mut Assembler) -> Assemble {
    asm.a.rdtsc()?;
    asm.a.add(edx, 0x100)?;
    asm.a.mov(ecx, 0x6e0)?;
    asm.a.wrmsr()
}

/// Interrupts of the APIC in memory.
fn apic(asm: &mut Assembler) -> Assemble {
    asm.enable_apic()?;
    asm.gate(VECTOR, handle_apic)
}

fn periodic(asm: &mut Assembler) -> Assemble {
    apic(asm)?;
    asm.write_apic(0x3e0, 0xb)?;
    asm.write_apic(0x320, 0x2_0000 | u32::from(VECTOR))?;
    asm.a.sti()?;
    asm.write_apic(0x380, PERIOD_NS)
}

fn wait_for_tick(asm: &mut Assembler) -> Assemble {
    asm.a.mov(r8, qword_ptr(INTERRUPTS))?;
    asm.spin(false)
}

fn x2apic(asm: &mut Assembler) -> Assemble {
    asm.enable_x2apic()?;
    asm.gate(VECTOR, handle_x2apic)?;
    asm.a.sti()
}

fn self_ipi(asm: &mut Assembler) -> Assemble {
    asm.a.mov(r8, qword_ptr(INTERRUPTS))?;
    // Fixed, to itself.
    asm.write_msr(0x830, 0x4_4000 | u64::from(VECTOR))?;
    asm.spin(false)
}

fn read_tpr(asm: &mut Assembler) -> Assemble {
    asm.a.mov(edi, (APIC + 0x80) as u32)?;
    asm.a.mov(eax, dword_ptr(rdi))
}

fn pio_user(asm: &mut Assembler) -> Assemble {
    asm.a.mov(edx, u32::from(layout::DEVICE_PORT))?;
    asm.a.out(dx, al)
}

fn pio_pit(asm: &mut Assembler) -> Assemble {
    asm.a.in_(al, 0x40)
}

fn pio_pic(asm: &mut Assembler) -> Assemble {
    asm.a.in_(al, 0x21)
}

fn mmio_user(asm: &mut Assembler) -> Assemble {
    asm.a.mov(edi, layout::DEVICE as u32)?;
    asm.a.mov(dword_ptr(rdi), eax)
}

pub(super) fn start_touching(asm: &mut Assembler) -> Assemble {
    asm.a.mov(ebx, layout::TOUCH as u32)
}

pub(super) fn touch_4k(asm: &mut Assembler) -> Assemble {
    asm.a.mov(dword_ptr(rbx), eax)?;
    asm.a.add(rbx, PAGE_4K as i32)
}

pub(super) fn touch_2m(asm: &mut Assembler) -> Assemble {
    asm.a.mov(dword_ptr(rbx), eax)?;
    asm.a.add(rbx, PAGE_2M as i32)
}

fn one_shot(asm: &mut Assembler) -> Assemble {
    apic(asm)?;
    asm.write_apic(0x3e0, 0xb)?;
    asm.write_apic(0x320, u32::from(VECTOR))
}

fn halt(asm: &mut Assembler) -> Assemble {
    asm.write_apic(0x380, PERIOD_NS)?;
    asm.halt()
}

fn pause(asm: &mut Assembler) -> Assemble {
    asm.a.pause()
}

fn load_cr4(asm: &mut Assembler) -> Assemble {
    asm.a.mov(rbx, cr4)
}

fn write_cr4(asm: &mut Assembler) -> Assemble {
    asm.a.xor(rbx, 1)?;
    asm.a.mov(cr4, rbx)
}

fn load_cr0(asm: &mut Assembler) -> Assemble {
    asm.a.mov(rbx, cr0)
}

fn write_cr0(asm: &mut Assembler) -> Assemble {
    asm.a.xor(rbx, 1 << 18)?;
    asm.a.mov(cr0, rbx)
}

fn write_dr(asm: &mut Assembler) -> Assemble {
    asm.a.mov(dr0, rax)
}

fn wbinvd(asm: &mut Assembler) -> Assemble {
    asm.a.wbinvd()
}

fn os_xsave(asm: &mut Assembler) -> Assemble {
    asm.a.mov(rax, cr4)?;
    asm.a.or(rax, 1 << 18)?;
    asm.a.mov(cr4, rax)
}

fn xsetbv(asm: &mut Assembler) -> Assemble {
    asm.a.xor(ecx, ecx)?;
    asm.a.xor(edx, edx)?;
    asm.a.mov(eax, 3)?;
    asm.a.xsetbv()
}

fn rdtsc(asm: &mut Assembler) -> Assemble {
    asm.a.rdtsc()
}

fn invlpg(asm: &mut Assembler) -> Assemble {
    asm.a.invlpg(ptr(layout::RING))
}

fn ud_gate(asm: &mut Assembler) -> Assemble {
    asm.gate(6, skip_two_bytes)
}

fn ud2(asm: &mut Assembler) -> Assemble {
    asm.a.ud2()
}

/// Interrupts that the second vCPU has seen.
const ANSWERS: u64 = VARIABLES + 0x40;
/// The second vCPU is ready.
const PRESENT: u64 = VARIABLES + 0x48;

fn ping_pong(asm: &mut Assembler) -> Assemble {
    asm.enable_x2apic()?;
    asm.gate(VECTOR, handle_x2apic)?;
    asm.gate(VECTOR + 1, handle_answer)?;
    // Tells the second vCPU that the tables are there, and waits for it.
    asm.a.mov(dword_ptr(PRESENT), 1)?;
    let mut again = asm.a.create_label();
    asm.a.set_label(&mut again)?;
    spin(asm)?;
    asm.a.cmp(dword_ptr(PRESENT), 2)?;
    asm.a.jne(again)
}

/// In a loop that waits for the other vCPU, before anything is measured: asks the VMM to let it run, with which it shares its
/// processor. Of an exit for PAUSE one cannot be sure: QEMU's emulator stops to think at each, and a guest's guest
/// takes none on Intel; and Bochs takes no interrupt of the host in so short a loop.
fn spin(asm: &mut Assembler) -> Assemble {
    asm.a.mov(edx, i32::from(layout::YIELD))?;
    asm.a.out(dx, al)
}

/// Sends an IPI to the second vCPU and halts until its answer.
fn ping(asm: &mut Assembler) -> Assemble {
    asm.write_msr(0x830, 1 << 32 | 0x4000 | u64::from(VECTOR + 1))?;
    asm.halt()
}

/// The second vCPU: halts until an IPI, answers it, again.
fn answer(asm: &mut Assembler) -> Assemble {
    let mut wait = asm.a.create_label();
    asm.a.set_label(&mut wait)?;
    spin(asm)?;
    asm.a.cmp(dword_ptr(PRESENT), 1)?;
    asm.a.jne(wait)?;
    asm.enable_x2apic()?;
    asm.load_tables()?;
    asm.a.mov(dword_ptr(PRESENT), 2)?;
    let mut again = asm.a.create_label();
    asm.a.set_label(&mut again)?;
    asm.halt()?;
    asm.write_msr(0x830, 0x4000 | u64::from(VECTOR))?;
    asm.a.jmp(again)
}

fn handle_answer(asm: &mut Assembler) -> Assemble {
    for register in [rax, rcx, rdx] {
        asm.a.push(register)?;
    }
    asm.a.inc(qword_ptr(ANSWERS))?;
    asm.write_msr(0x80b, 0)?;
    for register in [rdx, rcx, rax] {
        asm.a.pop(register)?;
    }
    asm.a.iretq()
}
