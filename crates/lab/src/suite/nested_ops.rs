//! A hypervisor's instructions in L1. Each is an exit to L0, unless the processor supports it.
//!
//! L1 is a bare hypervisor in 64-bit mode; its guest, L2, executes CPUID in a loop and shares its page tables.

use iced_x86::code_asm::{
    AsmMemoryOperand, CodeLabel, cr0, cr3, cr4, dword_ptr, eax, ecx, edx, ptr, qword_ptr, rax, rbx,
    rcx, rdx, rsp, word_ptr,
};
use vmtax_events::Isa;

use super::definition::{Definition, ExpectedExits, GuestCode, line, with_setup};
use crate::payload::{Assemble, Assembler, PAGES};

const COUNT: u32 = 20;

pub(super) const OPERATIONS: &[Definition] = &[
    vmx("vmread-exit-reason", "VMREAD VM_EXIT_REASON", vmread::<0x4402>),
    vmx("vmread-guest-rip", "VMREAD GUEST_RIP", vmread::<0x681e>),
    vmx("vmread-guest-cr3", "VMREAD GUEST_CR3", vmread::<0x6802>),
    vmx("vmread-msr-bitmap", "VMREAD MSR_BITMAP", vmread::<0x2004>),
    vmx("vmread-host-rip", "VMREAD HOST_RIP", vmread::<0x6c16>),
    vmx("vmwrite-guest-rip", "VMWRITE GUEST_RIP", vmwrite::<0x681e>),
    vmx("vmwrite-guest-cr3", "VMWRITE GUEST_CR3", vmwrite::<0x6802>),
    vmx("vmwrite-host-cr3", "VMWRITE HOST_CR3", vmwrite::<0x6c02>),
    vmx("vmwrite-tsc-offset", "VMWRITE TSC_OFFSET", vmwrite::<0x2010>),
    Definition {
        kind: ExpectedExits::Each { svm: ("", 0), vmx: ("VMPTRLD", 1) },
        ..vmx("vmptrld", "VMPTRLD of the current VMCS", vmptrld)
    },
    Definition {
        kind: ExpectedExits::Each { svm: ("", 0), vmx: ("INVEPT", 1) },
        ..vmx("invept", "INVEPT, all contexts", invept)
    },
    Definition {
        name: "vmresume",
        summary: "VMRESUME, CPUID of L2, and back",
        count: COUNT,
        kind: ExpectedExits::Each { svm: ("", 0), vmx: ("VMRESUME", 1) },
        code: GuestCode {
            isa: Some(Isa::Vmx),
            straight: false,
            ..with_setup(hypervisor_vmx, resume)
        },
    },
    svm("vmload", "VMLOAD", vmload),
    svm("vmsave", "VMSAVE", vmsave),
    svm("stgi", "STGI", stgi),
    svm("clgi", "CLGI", clgi),
    Definition {
        name: "vmrun",
        summary: "VMRUN, CPUID of L2, and back",
        count: COUNT,
        kind: ExpectedExits::Each { svm: ("vmrun", 1), vmx: ("", 0) },
        code: GuestCode {
            isa: Some(Isa::Svm),
            straight: false,
            ..with_setup(hypervisor_svm, vmrun)
        },
    },
];

/// Fields may be shadowed by the processor, so no number of exits is expected.
const fn vmx(
    name: &'static str,
    summary: &'static str,
    body: fn(&mut Assembler) -> Assemble,
) -> Definition {
    let code = GuestCode { setup: hypervisor_vmx, isa: Some(Isa::Vmx), ..line(body) };
    Definition { name, summary, count: COUNT, kind: ExpectedExits::Measured, code }
}

/// The processor may execute some of these without an exit (virtual VMLOAD and VMSAVE, virtual GIF).
const fn svm(
    name: &'static str,
    summary: &'static str,
    body: fn(&mut Assembler) -> Assemble,
) -> Definition {
    let code = GuestCode { setup: hypervisor_svm, isa: Some(Isa::Svm), ..line(body) };
    Definition { name, summary, count: COUNT, kind: ExpectedExits::Measured, code }
}

const VMXON: u64 = PAGES;
const VMCS: u64 = PAGES + 0x1000;
const VMCB: u64 = PAGES;
const HOST_SAVE: u64 = PAGES + 0x1000;
const TSS: u64 = PAGES + 0x2000;
/// Flat code, flat data, and the TSS that VMX wants.
const GDT: u64 = PAGES + 0x3000;
/// Operands in memory.
const POINTER: u64 = PAGES + 0x4000;
const L2_STACK: u64 = PAGES + 0x6000;

fn at(address: u64) -> AsmMemoryOperand {
    qword_ptr(address)
}

fn field(asm: &mut Assembler, number: u32, value: u64) -> Assemble {
    asm.a.mov(rax, value)?;
    field_rax(asm, number)
}

/// Writes rax to a field.
fn field_rax(asm: &mut Assembler, number: u32) -> Assemble {
    asm.a.mov(edx, number)?;
    asm.a.vmwrite(rdx, rax)
}

fn field_label(asm: &mut Assembler, number: u32, label: CodeLabel) -> Assemble {
    asm.a.lea(rax, ptr(label))?;
    field_rax(asm, number)
}

/// A control field: the bits wanted and those that its capability MSR makes fixed.
fn control(asm: &mut Assembler, number: u32, capability: u32, wanted: u32) -> Assemble {
    asm.a.mov(ecx, capability)?;
    asm.a.rdmsr()?;
    asm.a.or(eax, wanted)?;
    asm.a.and(eax, edx)?;
    field_rax(asm, number)
}

/// Turns the payload into a VMX hypervisor whose guest has been launched once.
fn hypervisor_vmx(asm: &mut Assembler) -> Assemble {
    let (mut launched, mut guest, mut over) =
        (asm.a.create_label(), asm.a.create_label(), asm.a.create_label());
    asm.a.mov(rax, cr4)?;
    asm.a.or(rax, 0x2000)?;
    asm.a.mov(cr4, rax)?;
    asm.a.mov(rax, cr0)?;
    asm.a.or(rax, 0x20)?;
    asm.a.mov(cr0, rax)?;
    // IA32_FEATURE_CONTROL: VMX outside SMX, locked, unless it is locked already.
    asm.a.mov(ecx, 0x3a)?;
    asm.a.rdmsr()?;
    let mut locked = asm.a.create_label();
    asm.a.test(eax, 1)?;
    asm.a.jnz(locked)?;
    asm.a.or(eax, 5)?;
    asm.a.wrmsr()?;
    asm.a.set_label(&mut locked)?;
    asm.a.nop()?;
    task_register(asm)?;
    // The revision, then VMXON, VMCLEAR, VMPTRLD.
    asm.a.mov(ecx, 0x480)?;
    asm.a.rdmsr()?;
    asm.a.and(eax, 0x7fff_ffff)?;
    asm.a.mov(dword_ptr(VMXON), eax)?;
    asm.a.mov(dword_ptr(VMCS), eax)?;
    asm.a.mov(rax, VMXON)?;
    asm.a.mov(at(POINTER), rax)?;
    asm.a.vmxon(at(POINTER))?;
    asm.a.mov(rax, VMCS)?;
    asm.a.mov(at(POINTER), rax)?;
    asm.a.vmclear(at(POINTER))?;
    asm.a.vmptrld(at(POINTER))?;
    controls(asm)?;
    host_state(asm)?;
    guest_state(asm)?;
    field_label(asm, 0x681e, guest)?;
    field_label(asm, 0x6c16, launched)?;
    asm.a.vmlaunch()?;
    fail(asm)?;
    asm.a.set_label(&mut guest)?;
    asm.a.xor(eax, eax)?;
    asm.a.cpuid()?;
    asm.a.jmp(guest)?;
    asm.a.set_label(&mut launched)?;
    asm.a.jmp(over)?;
    asm.a.set_label(&mut over)?;
    // The operand of INVEPT: all zero is good for all contexts.
    asm.a.mov(dword_ptr(POINTER + 16), 0)
}

/// Ends in a triple fault: the VMM reports the place.
fn fail(asm: &mut Assembler) -> Assemble {
    asm.a.mov(word_ptr(POINTER + 32), 0)?;
    asm.a.lidt(ptr(POINTER + 32))?;
    asm.a.ud2()
}

/// A TSS, which VMX wants the task register to hold.
fn task_register(asm: &mut Assembler) -> Assemble {
    asm.a.mov(rax, 0x00af_9b00_0000_ffff_u64)?;
    asm.a.mov(at(GDT + 8), rax)?;
    asm.a.mov(rax, 0x00cf_9300_0000_ffff_u64)?;
    asm.a.mov(at(GDT + 16), rax)?;
    asm.a.mov(rax, (TSS & 0xff_ffff) << 16 | 0x67 | 0x89 << 40)?;
    asm.a.mov(at(GDT + 24), rax)?;
    asm.a.mov(dword_ptr(POINTER), 39 | (GDT as u32) << 16)?;
    asm.a.mov(dword_ptr(POINTER + 4), (GDT >> 16) as u32)?;
    asm.a.lgdt(ptr(POINTER))?;
    asm.a.mov(eax, 24)?;
    asm.a.ltr(iced_x86::code_asm::ax)
}

fn controls(asm: &mut Assembler) -> Assemble {
    control(asm, 0x4000, 0x481, 0)?;
    // HLT exits.
    control(asm, 0x4002, 0x482, 1 << 7)?;
    // 64-bit host, 64-bit guest.
    control(asm, 0x400c, 0x483, 1 << 9)?;
    control(asm, 0x4012, 0x484, 1 << 9)?;
    for zero in [0x4004, 0x400e, 0x4010, 0x4014, 0x4016, 0x400a, 0x6000, 0x6002, 0x2010] {
        field(asm, zero, 0)?;
    }
    field(asm, 0x2800, u64::MAX)
}

fn host_state(asm: &mut Assembler) -> Assemble {
    for selector in [0x0c00, 0x0c04, 0x0c06, 0x0c08, 0x0c0a] {
        field(asm, selector, 16)?;
    }
    field(asm, 0x0c02, 8)?;
    field(asm, 0x0c0c, 24)?;
    control_registers(asm, 0x6c00)?;
    for (number, value) in [
        (0x6c06, 0),
        (0x6c08, 0),
        (0x6c0a, TSS),
        (0x6c0c, GDT),
        (0x6c0e, crate::payload::IDT),
        (0x4c00, 0),
        (0x6c10, 0),
        (0x6c12, 0),
    ] {
        field(asm, number, value)?;
    }
    asm.a.mov(rax, rsp)?;
    field_rax(asm, 0x6c14)
}

fn control_registers(asm: &mut Assembler, first: u32) -> Assemble {
    asm.a.mov(rax, cr0)?;
    field_rax(asm, first)?;
    asm.a.mov(rax, cr3)?;
    field_rax(asm, first + 2)?;
    asm.a.mov(rax, cr4)?;
    field_rax(asm, first + 4)
}

fn guest_state(asm: &mut Assembler) -> Assemble {
    // ES, CS, SS, DS, FS, GS: selector, limit, rights, base.
    for segment in 0..6 {
        let code = segment == 1;
        field(asm, 0x0800 + 2 * segment, if code { 8 } else { 16 })?;
        field(asm, 0x4800 + 2 * segment, 0xffff_ffff)?;
        field(asm, 0x4814 + 2 * segment, if code { 0xa09b } else { 0xc093 })?;
        field(asm, 0x6806 + 2 * segment, 0)?;
    }
    // LDTR unusable, TR busy, tables, then registers.
    for (number, value) in [
        (0x080c, 0),
        (0x480c, 0),
        (0x4820, 0x1_0000),
        (0x6812, 0),
        (0x080e, 24),
        (0x480e, 0x67),
        (0x4822, 0x8b),
        (0x6814, TSS),
        (0x4810, 39),
        (0x6816, GDT),
        (0x4812, 0xfff),
        (0x6818, crate::payload::IDT),
        (0x681a, 0x400),
        (0x2802, 0),
        (0x482a, 0),
        (0x6824, 0),
        (0x6826, 0),
        (0x4824, 0),
        (0x4826, 0),
        (0x6822, 0),
        (0x681c, L2_STACK),
        (0x6820, 2),
    ] {
        field(asm, number, value)?;
    }
    control_registers(asm, 0x6800)
}

fn vmread<const FIELD: u32>(asm: &mut Assembler) -> Assemble {
    asm.a.mov(edx, FIELD)?;
    asm.a.vmread(rax, rdx)
}

fn vmwrite<const FIELD: u32>(asm: &mut Assembler) -> Assemble {
    // The fields stay valid, because L2 is not entered again.
    asm.a.mov(edx, FIELD)?;
    asm.a.vmwrite(rdx, rax)
}

fn vmptrld(asm: &mut Assembler) -> Assemble {
    asm.a.vmptrld(at(POINTER))
}

fn invept(asm: &mut Assembler) -> Assemble {
    asm.a.mov(ecx, 2)?;
    asm.a.invept(rcx, iced_x86::code_asm::xmmword_ptr(POINTER + 64))
}

fn resume(asm: &mut Assembler) -> Assemble {
    let mut back = asm.a.create_label();
    field_label(asm, 0x6c16, back)?;
    asm.a.vmresume()?;
    fail(asm)?;
    asm.a.set_label(&mut back)?;
    asm.a.nop()
}

fn hypervisor_svm(asm: &mut Assembler) -> Assemble {
    let (mut guest, mut over) = (asm.a.create_label(), asm.a.create_label());
    asm.a.mov(ecx, 0xc000_0080_u32)?;
    asm.a.rdmsr()?;
    asm.a.or(eax, 0x1000)?;
    asm.a.wrmsr()?;
    asm.write_msr(0xc001_0117, HOST_SAVE)?;
    // CPUID and VMRUN are intercepted; ASID 1.
    for (offset, value) in [(0x0c, 1 << 18), (0x10, 1), (0x58, 1_u32)] {
        asm.a.mov(dword_ptr(VMCB + offset), value)?;
    }
    // ES, CS, SS, DS, GDTR, then IDTR: selector and rights, limit.
    for (offset, selector, rights) in [
        (0x00, 16, 0xc93),
        (0x10, 8, 0xa9b),
        (0x20, 16, 0xc93),
        (0x30, 16, 0xc93),
        (0x40, 16, 0xc93),
        (0x50, 16, 0xc93),
    ] {
        asm.a.mov(dword_ptr(VMCB + 0x400 + offset), selector | rights << 16_u32)?;
        asm.a.mov(dword_ptr(VMCB + 0x404 + offset), u32::MAX)?;
    }
    for (offset, register) in [(0x558, cr0), (0x550, cr3), (0x548, cr4)] {
        asm.a.mov(rax, register)?;
        asm.a.mov(at(VMCB + offset), rax)?;
    }
    for (offset, value) in [
        (0x4d0, 0x1500),
        (0x560, 0x400),
        (0x568, 0xffff_0ff0),
        (0x570, 2),
        (0x5d8, L2_STACK as u32),
    ] {
        asm.a.mov(dword_ptr(VMCB + offset), value)?;
    }
    asm.a.lea(rax, ptr(guest))?;
    asm.a.mov(at(VMCB + 0x578), rax)?;
    asm.a.jmp(over)?;
    asm.a.set_label(&mut guest)?;
    asm.a.xor(eax, eax)?;
    asm.a.cpuid()?;
    asm.a.jmp(guest)?;
    asm.a.set_label(&mut over)?;
    asm.a.mov(rbx, VMCB)
}

fn vmload(asm: &mut Assembler) -> Assemble {
    asm.a.mov(eax, VMCB as u32)?;
    asm.a.vmload()
}

fn vmsave(asm: &mut Assembler) -> Assemble {
    asm.a.mov(eax, VMCB as u32)?;
    asm.a.vmsave()
}

fn stgi(asm: &mut Assembler) -> Assemble {
    asm.a.stgi()
}

fn clgi(asm: &mut Assembler) -> Assemble {
    asm.a.clgi()
}

fn vmrun(asm: &mut Assembler) -> Assemble {
    asm.a.mov(eax, VMCB as u32)?;
    asm.a.vmrun()
}
