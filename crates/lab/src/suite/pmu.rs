//! Operations of a guest's perf on its counters, under both policies of a virtual PMU in user space (`vmtax-vpmu`), and an approximation of
//! KVM's mediated PMU without counters.
//!
//! The guest has Intel's PMU of version 2 on either host, so that its operations are those of the series that proposed
//! reuse; one payload has AMD's. Registers are accessed in the order of Linux's perf. The counted events are
//! hypercalls ([`vmtax_guest::order::PmuOrder`]).

use iced_x86::code_asm::{eax, ebx, ecx, edx, qword_ptr, r8, rax, rbx, rcx, rdi, rdx, rsp};
use vmtax_guest::layout::PROFILE;
use vmtax_guest::order::PmuOrder;

use super::definition::{Definition, ExpectedExits, GuestCode, each, waiting, whole, with_setup};
use crate::payload::{Assemble, Assembler, INTERRUPTS, VECTOR};

/// Operations in a batch: few, as one of them takes long.
const COUNT: u32 = 4;
/// Rounds of the program that profiles itself, in a batch.
const ROUNDS: u32 = 20;
/// Sampling period, in hypercalls.
pub const PERIOD: u64 = 7;
/// The functions of the program that profiles itself, with their hypercalls in a round.
pub const FUNCTIONS: [(&str, u32); 3] = [("foo", 31), ("bar", 22), ("qux", 47)];
/// Accesses that must fault in `pmu-faults`, in the order of its results.
pub const FAULTS: [&str; 3] = ["reserved bits", "unknown register", "RDPMC"];

const SELECT: u32 = 0x186;
const FIXED: u32 = 0x309;
const FIXED_CONTROL: u32 = 0x38d;
const STATUS: u32 = 0x38e;
const CONTROL: u32 = 0x38f;
const STATUS_CLEAR: u32 = 0x390;
/// Of version 4.
const STATUS_SET: u32 = 0x391;
const COUNTER: u32 = 0x4c1;
/// AMD's global registers, and its first event select and counter.
const AMD_STATUS: u32 = 0xc000_0300;
const AMD_CONTROL: u32 = 0xc000_0301;
const AMD_STATUS_CLEAR: u32 = 0xc000_0302;
const AMD_SELECT: u32 = 0xc001_0200;
const AMD_COUNTER: u32 = 0xc001_0201;
/// The APIC's entry for counters, its end of interrupt and its interrupt of itself, as MSRs.
const LVTPC: u32 = 0x834;
const EOI: u32 = 0x80b;
const SELF_IPI: u32 = 0x83f;
/// LVTPC that raises a non-maskable interrupt.
const NMI: u32 = 0x400;

/// Six counters: general ones with events of cache and branches, fixed ones with instructions and cycles.
const GENERAL: [u64; 4] = [0x53_4f2e, 0x53_412e, 0x53_00c4, 0x53_00c5];
const ENABLE: u64 = 1 << 22;
const FIXED_ON: u64 = 0xbb;
const ALL: u64 = 0x3_0000_000f;
const WIDTH: u64 = 1 << 48;
/// A value too far from the overflow for any test to reach it.
const FAR: u64 = WIDTH / 2;

const LEGACY: bool = false;
const REUSE: bool = true;

pub(super) const OPERATIONS: &[Definition] = &[
    Definition {
        name: "pmu-global-legacy",
        summary: "clears and sets global control, six counters on; events recreated",
        count: COUNT,
        kind: write(2),
        code: pmu(with_setup(six_on::<HERE>, global::<HERE>), LEGACY),
    },
    Definition {
        name: "pmu-global-reuse",
        summary: "clears and sets global control, six counters on; events reused",
        count: COUNT,
        kind: write(2),
        code: pmu(with_setup(six_on::<HERE>, global::<HERE>), REUSE),
    },
    Definition {
        name: "pmu-eventsel-legacy",
        summary: "clears and sets an event select, global control set; events recreated",
        count: COUNT,
        kind: write(2),
        code: pmu(with_setup(six_on::<HERE>, event_select::<HERE>), LEGACY),
    },
    Definition {
        name: "pmu-eventsel-reuse",
        summary: "clears and sets an event select, global control set; events reused",
        count: COUNT,
        kind: write(2),
        code: pmu(with_setup(six_on::<HERE>, event_select::<HERE>), REUSE),
    },
    Definition {
        name: "pmu-fixed-ctrl-legacy",
        summary: "reads and writes the fixed counters' control, off and on; events recreated",
        count: COUNT,
        kind: ExpectedExits::Some,
        code: pmu(with_setup(six_on::<HERE>, fixed_control::<HERE>), LEGACY),
    },
    Definition {
        name: "pmu-fixed-ctrl-reuse",
        summary: "reads and writes the fixed counters' control, off and on; events reused",
        count: COUNT,
        kind: ExpectedExits::Some,
        code: pmu(with_setup(six_on::<HERE>, fixed_control::<HERE>), REUSE),
    },
    Definition {
        name: "pmu-read-legacy",
        summary: "reads an enabled counter; events recreated",
        count: COUNT,
        kind: each("msr", "MSR_READ"),
        code: pmu(with_setup(six_on::<HERE>, read::<HERE>), LEGACY),
    },
    Definition {
        name: "pmu-read-reuse",
        summary: "reads an enabled counter; events reused",
        count: COUNT,
        kind: each("msr", "MSR_READ"),
        code: pmu(with_setup(six_on::<HERE>, read::<HERE>), REUSE),
    },
    Definition {
        name: "pmu-sample-legacy",
        summary: "a hypercall, a counter overflow interrupt, and its handler; events recreated",
        count: COUNT,
        kind: ExpectedExits::Some,
        code: pmu(whole(sampled, sample), LEGACY),
    },
    Definition {
        name: "pmu-sample-reuse",
        summary: "a hypercall, a counter overflow interrupt, and its handler; events reused",
        count: COUNT,
        kind: ExpectedExits::Some,
        code: pmu(whole(sampled, sample), REUSE),
    },
    Definition {
        name: "pmu-switch-legacy",
        summary: "a thread with six counters is switched out and in; events recreated",
        count: COUNT,
        kind: ExpectedExits::Some,
        code: pmu(with_setup(six_on::<HERE>, switch::<HERE>), LEGACY),
    },
    Definition {
        name: "pmu-switch-reuse",
        summary: "a thread with six counters is switched out and in; events reused",
        count: COUNT,
        kind: ExpectedExits::Some,
        code: pmu(with_setup(six_on::<HERE>, switch::<HERE>), REUSE),
    },
    Definition {
        name: "pmu-global-mediated",
        summary: "clears and sets global control, in registers that represent passed-through ones",
        count: COUNT,
        kind: ExpectedExits::None,
        code: mediated(with_setup(six_on::<STANDS>, global::<STANDS>)),
    },
    Definition {
        name: "pmu-eventsel-mediated",
        summary: "clears and sets an event select, which KVM emulates",
        count: COUNT,
        kind: write(2),
        code: mediated(with_setup(six_on::<STANDS>, event_select::<STANDS>)),
    },
    Definition {
        name: "pmu-fixed-ctrl-mediated",
        summary: "reads and writes the fixed counters' control, which KVM emulates",
        count: COUNT,
        kind: ExpectedExits::Some,
        code: mediated(with_setup(six_on::<STANDS>, fixed_control::<STANDS>)),
    },
    Definition {
        name: "pmu-read-mediated",
        summary: "reads a counter, in a register that represents a passed-through one",
        count: COUNT,
        kind: ExpectedExits::None,
        code: mediated(with_setup(six_on::<STANDS>, read::<STANDS>)),
    },
    Definition {
        name: "pmu-sample-mediated",
        summary: "an interrupt that KVM raises, and its handler with passed-through registers",
        count: COUNT,
        kind: ExpectedExits::Some,
        code: mediated(whole(interrupted, interrupt)),
    },
    Definition {
        name: "pmu-switch-mediated",
        summary: "a thread with six counters is switched out and in, in registers that represent passed-through ones",
        count: COUNT,
        kind: ExpectedExits::Some,
        code: mediated(with_setup(six_on::<STANDS>, switch::<STANDS>)),
    },
    Definition {
        name: "pmu-profile-legacy",
        summary: "a program that profiles itself by NMIs; events recreated",
        count: ROUNDS,
        kind: ExpectedExits::Some,
        code: pmu(waiting(profiled, program), LEGACY),
    },
    Definition {
        name: "pmu-profile-reuse",
        summary: "a program that profiles itself by NMIs; events reused",
        count: ROUNDS,
        kind: ExpectedExits::Some,
        code: pmu(waiting(profiled, program), REUSE),
    },
    Definition {
        name: "pmu-profile-amd",
        summary: "the same with AMD's PerfMonV2 and an APIC in memory; events reused",
        count: ROUNDS,
        kind: ExpectedExits::Some,
        code: GuestCode {
            pmu: Some(PmuOrder { amd: true, reuse: REUSE }),
            ..waiting(profiled_amd, program)
        },
    },
    Definition {
        name: "pmu-faults",
        summary: "accesses that must fault: reserved bits, a register of a later version, RDPMC",
        count: COUNT,
        kind: ExpectedExits::Some,
        code: pmu(whole(faulting, faults), REUSE),
    },
];

/// Writes of MSRs.
const fn write(times: u32) -> ExpectedExits {
    ExpectedExits::Each { svm: ("msr", times), vmx: ("MSR_WRITE", times) }
}

/// Code with Intel's PMU. All of it is the operation.
const fn pmu(code: GuestCode, reuse: bool) -> GuestCode {
    GuestCode { pmu: Some(PmuOrder { amd: false, reuse }), straight: false, ..code }
}

/// Code of a guest with a mediated PMU, which is KVM's. Emulated processors have no counters to give to a guest, so other
/// registers are used in their place.
const fn mediated(code: GuestCode) -> GuestCode {
    GuestCode { straight: false, ..code }
}

/// Accesses of the PMU's registers, or of those used in their place.
const HERE: bool = false;
const STANDS: bool = true;

/// A register in place of one of the PMU's, that costs the guest what a mediated PMU's does: those that do not leave the guest
/// are KERNEL_GS_BASE, which KVM does not intercept; those that do are IA32_BIOS_SIGN_ID, which KVM emulates itself
/// (which is which: `vmtax_vpmu::mediated`).
fn register<const S: bool>(index: u32) -> u32 {
    const PASSES: u32 = 0xc000_0102;
    const ANSWERED: u32 = 0x8b;
    match index {
        _ if S == HERE => index,
        FIXED_CONTROL => ANSWERED,
        _ if (SELECT..SELECT + 4).contains(&index) => ANSWERED,
        _ => PASSES,
    }
}

fn write_msr<const S: bool>(asm: &mut Assembler, index: u32, value: u64) -> Assemble {
    // A base has to be an address.
    let value = if S == STANDS { value & 0xffff_ffff } else { value };
    asm.write_msr(register::<S>(index), value)
}

fn read_msr<const S: bool>(asm: &mut Assembler, index: u32) -> Assemble {
    asm.a.mov(ecx, register::<S>(index))?;
    asm.a.rdmsr()
}

/// Starts six counters, far from overflow.
fn six_on<const S: bool>(asm: &mut Assembler) -> Assemble {
    six::<S>(asm, true)?;
    write_msr::<S>(asm, CONTROL, ALL)
}

/// Sets or clears each counter's own enable bit. A counter starts with its value.
fn six<const S: bool>(asm: &mut Assembler, on: bool) -> Assemble {
    for (i, select) in (0..).zip(GENERAL) {
        if on {
            write_msr::<S>(asm, COUNTER + i, FAR)?;
        }
        write_msr::<S>(asm, SELECT + i, if on { select } else { select & !ENABLE })?;
        if !on {
            read_msr::<S>(asm, COUNTER + i)?;
        }
    }
    for i in 0..2 {
        if on {
            write_msr::<S>(asm, FIXED + i, FAR)?;
        }
        // One counter at a time, as perf does.
        let both = [FIXED_ON & 0xf, FIXED_ON];
        let value = if on { both[i as usize] } else { both[1 - i as usize] & !0xf };
        write_msr::<S>(asm, FIXED_CONTROL, value)?;
        if !on {
            read_msr::<S>(asm, FIXED + i)?;
        }
    }
    Ok(())
}

fn global<const S: bool>(asm: &mut Assembler) -> Assemble {
    write_msr::<S>(asm, CONTROL, 0)?;
    write_msr::<S>(asm, CONTROL, ALL)
}

fn event_select<const S: bool>(asm: &mut Assembler) -> Assemble {
    write_msr::<S>(asm, SELECT, GENERAL[0] & !ENABLE)?;
    write_msr::<S>(asm, SELECT, GENERAL[0])
}

fn fixed_control<const S: bool>(asm: &mut Assembler) -> Assemble {
    for value in [FIXED_ON & !0xf, FIXED_ON] {
        read_msr::<S>(asm, FIXED_CONTROL)?;
        write_msr::<S>(asm, FIXED_CONTROL, value)?;
    }
    Ok(())
}

fn read<const S: bool>(asm: &mut Assembler) -> Assemble {
    read_msr::<S>(asm, COUNTER)
}

fn switch<const S: bool>(asm: &mut Assembler) -> Assemble {
    write_msr::<S>(asm, CONTROL, 0)?;
    six::<S>(asm, false)?;
    write_msr::<S>(asm, CONTROL, ALL)?;
    write_msr::<S>(asm, CONTROL, 0)?;
    six::<S>(asm, true)?;
    write_msr::<S>(asm, CONTROL, ALL)
}

/// A hypercall that does nothing (KVM_HC_VAPIC_POLL_IRQ): what the counters count.
fn call(asm: &mut Assembler) -> Assemble {
    asm.a.mov(eax, 1)?;
    asm.hypercall()
}

/// Cycles on fixed counter 1, interrupting at every hypercall.
fn sampled(asm: &mut Assembler) -> Assemble {
    asm.enable_x2apic()?;
    asm.gate(VECTOR, handle_sample)?;
    asm.write_msr(LVTPC, u64::from(VECTOR))?;
    asm.write_msr(FIXED + 1, WIDTH - 1)?;
    asm.write_msr(FIXED_CONTROL, 0xb0)?;
    asm.write_msr(CONTROL, 1 << 33)?;
    asm.a.sti()
}

fn sample(asm: &mut Assembler) -> Assemble {
    asm.a.mov(r8, qword_ptr(INTERRUPTS))?;
    call(asm)?;
    asm.spin(false)
}

/// An interrupt of KVM's APIC in place of a counter's: one exit, and the interrupt at the next entry.
fn interrupted(asm: &mut Assembler) -> Assemble {
    asm.enable_x2apic()?;
    asm.gate(VECTOR, handle_interrupt)?;
    asm.a.sti()
}

fn interrupt(asm: &mut Assembler) -> Assemble {
    asm.a.mov(r8, qword_ptr(INTERRUPTS))?;
    asm.write_msr(SELF_IPI, u64::from(VECTOR))?;
    asm.spin(false)
}

fn handle_sample(asm: &mut Assembler) -> Assemble {
    handle::<HERE>(asm)
}

fn handle_interrupt(asm: &mut Assembler) -> Assemble {
    handle::<STANDS>(asm)
}

/// As in Linux's perf: counters off, acknowledge, read, set for the next sample, look again, counters on.
fn handle<const S: bool>(asm: &mut Assembler) -> Assemble {
    for register in [rax, rcx, rdx] {
        asm.a.push(register)?;
    }
    asm.a.inc(qword_ptr(INTERRUPTS))?;
    asm.write_msr(LVTPC, u64::from(VECTOR))?;
    write_msr::<S>(asm, CONTROL, 0)?;
    read_msr::<S>(asm, STATUS)?;
    asm.a.mov(ecx, register::<S>(STATUS_CLEAR))?;
    asm.a.wrmsr()?;
    read_msr::<S>(asm, FIXED + 1)?;
    write_msr::<S>(asm, FIXED + 1, WIDTH - 1)?;
    read_msr::<S>(asm, STATUS)?;
    write_msr::<S>(asm, CONTROL, 1 << 33)?;
    asm.write_msr(EOI, 0)?;
    for register in [rdx, rcx, rax] {
        asm.a.pop(register)?;
    }
    asm.a.iretq()
}

/// Registers of a program that profiles itself.
struct ProfilerRegisters {
    control: u32,
    bit: u64,
    status: u32,
    clear: u32,
    counter: u32,
    x2apic: bool,
}

const INTEL: ProfilerRegisters = ProfilerRegisters {
    control: CONTROL,
    bit: 1 << 33,
    status: STATUS,
    clear: STATUS_CLEAR,
    counter: FIXED + 1,
    x2apic: true,
};
const AMD: ProfilerRegisters = ProfilerRegisters {
    control: AMD_CONTROL,
    bit: 1,
    status: AMD_STATUS,
    clear: AMD_STATUS_CLEAR,
    counter: AMD_COUNTER,
    // The other form of the APIC, which a VMM has to mask by another way.
    x2apic: false,
};

fn profiled(asm: &mut Assembler) -> Assemble {
    asm.enable_x2apic()?;
    asm.gate(2, handle_profile)?;
    raise_nmi(asm, &INTEL)?;
    asm.write_msr(FIXED + 1, WIDTH - PERIOD)?;
    asm.write_msr(FIXED_CONTROL, 0xb0)?;
    asm.write_msr(CONTROL, INTEL.bit)
}

fn profiled_amd(asm: &mut Assembler) -> Assemble {
    asm.enable_apic()?;
    asm.gate(2, handle_profile_amd)?;
    raise_nmi(asm, &AMD)?;
    asm.write_msr(AMD_COUNTER, WIDTH - PERIOD)?;
    // Cycles.
    asm.write_msr(AMD_SELECT, 0x53_0076)?;
    asm.write_msr(AMD_CONTROL, AMD.bit)
}

/// Sets LVTPC to an NMI (vector 2), which masks it again.
fn raise_nmi(asm: &mut Assembler, registers: &ProfilerRegisters) -> Assemble {
    if registers.x2apic { asm.write_msr(LVTPC, NMI.into()) } else { asm.write_apic(0x340, NMI) }
}

/// The program: its functions one after the other. rbx has the number of the running function, in place of an address and symbols.
fn program(asm: &mut Assembler) -> Assemble {
    for (i, (_, calls)) in (1..).zip(FUNCTIONS) {
        let mut again = asm.a.create_label();
        asm.a.mov(ebx, i)?;
        asm.a.mov(edx, calls)?;
        asm.a.set_label(&mut again)?;
        call(asm)?;
        asm.a.dec(edx)?;
        asm.a.jnz(again)?;
    }
    asm.a.xor(ebx, ebx)
}

fn handle_profile(asm: &mut Assembler) -> Assemble {
    count(asm, &INTEL)
}

fn handle_profile_amd(asm: &mut Assembler) -> Assemble {
    count(asm, &AMD)
}

fn count(asm: &mut Assembler, registers: &ProfilerRegisters) -> Assemble {
    for register in [rax, rcx, rdx, rdi] {
        asm.a.push(register)?;
    }
    asm.a.inc(qword_ptr(rbx * 8 + PROFILE as i64))?;
    asm.write_msr(registers.control, 0)?;
    read_msr::<HERE>(asm, registers.status)?;
    asm.a.mov(ecx, registers.clear)?;
    asm.a.wrmsr()?;
    read_msr::<HERE>(asm, registers.counter)?;
    asm.write_msr(registers.counter, WIDTH - PERIOD)?;
    raise_nmi(asm, registers)?;
    asm.write_msr(registers.control, registers.bit)?;
    for register in [rdi, rdx, rcx, rax] {
        asm.a.pop(register)?;
    }
    asm.a.iretq()
}

fn faulting(asm: &mut Assembler) -> Assemble {
    asm.gate(13, handle_fault)
}

/// rbx has the number of the access, as in a profile.
fn faults(asm: &mut Assembler) -> Assemble {
    asm.a.mov(ebx, 1)?;
    asm.write_msr(CONTROL, 1 << 63)?;
    asm.a.mov(ebx, 2)?;
    read_msr::<HERE>(asm, STATUS_SET)?;
    asm.a.mov(ebx, 3)?;
    asm.a.xor(ecx, ecx)?;
    asm.a.rdpmc()?;
    asm.a.xor(ebx, ebx)
}

/// Counts a general protection fault and continues after its instruction of two bytes. The error code is on the stack.
fn handle_fault(asm: &mut Assembler) -> Assemble {
    asm.a.inc(qword_ptr(rbx * 8 + PROFILE as i64))?;
    asm.a.add(qword_ptr(rsp + 8), 2)?;
    asm.a.add(rsp, 8)?;
    asm.a.iretq()
}
