//! Assembles bare payloads: the operation and the code around it.
//!
//! ```text
//!   stack, descriptor tables          once
//!   the operation's own set-up        once
//!   for each batch:
//!     OUT prepare                     memory is freed, recording starts
//!     the operation's batch set-up
//!     OUT begin(n)                    the window opens when the guest continues
//!     RDTSC
//!     count times: the operation
//!     RDTSC
//!     OUT end(n)                      the window closes at this exit
//!   OUT done
//! ```
//! The operation may use every register but r12 to r15. Addresses are [`vmtax_guest::layout`]'s.

pub(crate) mod arm;

use iced_x86::code_asm::{
    CodeAssembler, CodeLabel, dword_ptr, dx, eax, ecx, edi, edx, ptr, qword_ptr, r12, r13, r14,
    r14d, r15, r15d, rax, rcx, rdi, rdx, rsp,
};
use iced_x86::{BlockEncoderOptions, IcedError};
use vmtax_events::Isa;
use vmtax_guest::layout;

/// The interrupt descriptor table: the first page of the payload's tables.
pub(crate) const IDT: u64 = layout::TABLES;
/// 256 gates of 16 bytes.
const IDT_LIMIT: u16 = 0xfff;
const GDT: u64 = layout::TABLES + 0x1000;
/// The operand of LIDT.
const IDT_POINTER: u64 = layout::TABLES + 0x1100;
/// The operand of LGDT.
const GDT_POINTER: u64 = layout::TABLES + 0x1110;
/// Counters and values shared by set-up and operation.
pub(crate) const VARIABLES: u64 = layout::TABLES + 0x1200;
/// Number of interrupts handled.
pub(crate) const INTERRUPTS: u64 = VARIABLES;
/// Cycles in a tick of the local APIC's timer, 16 fraction bits.
pub(crate) const CYCLES_PER_TICK: u64 = VARIABLES + 8;
/// From here on a payload's own tables: whole pages.
pub(crate) const PAGES: u64 = layout::TABLES + 0x2000;

/// The local APIC's registers in memory.
pub(crate) const APIC: u64 = 0xfee0_0000;
/// Vector of the payloads' interrupts.
pub(crate) const VECTOR: u8 = 0x40;

/// Bytes that the assembler takes at a time.
const MOST_DATA: usize = 16;

/// A function that assembles code.
pub(crate) type Assemble = Result<(), IcedError>;

/// A payload being assembled.
pub(crate) struct Assembler {
    pub(crate) a: CodeAssembler,
    /// Vendor of the instructions.
    pub(crate) isa: Isa,
    /// Code after the end, for interrupts and further vCPUs.
    handlers: Vec<(CodeLabel, Handler)>,
}

type Handler = fn(&mut Assembler) -> Assemble;

/// The parts that differ between operations.
pub(crate) struct PayloadParts<'a> {
    /// Number of the operation in its marks.
    pub(crate) number: u16,
    /// Vendor of the instructions.
    pub(crate) isa: Isa,
    /// Code run once.
    pub(crate) setup: &'a dyn Fn(&mut Assembler) -> Assemble,
    /// Code run before each batch.
    pub(crate) batch: &'a dyn Fn(&mut Assembler) -> Assemble,
    pub(crate) body: &'a dyn Fn(&mut Assembler) -> Assemble,
    /// Code of a second vCPU.
    pub(crate) second: Option<&'a dyn Fn(&mut Assembler) -> Assemble>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Payload {
    pub(crate) code: Vec<u8>,
    /// Entries of further vCPUs.
    pub(crate) entries: Vec<u32>,
    /// Instructions of the operation, including the measured one.
    pub(crate) instructions: usize,
    /// Addresses of the two instructions that read the clock, before a batch and after it.
    pub(crate) clock: (u64, u64),
}

pub(crate) fn assemble(parts: &PayloadParts<'_>) -> Result<Payload, IcedError> {
    let mut asm = Assembler { a: CodeAssembler::new(64)?, isa: parts.isa, handlers: Vec::new() };
    asm.tables()?;
    (parts.setup)(&mut asm)?;
    asm.a.xor(r15d, r15d)?;
    let mut next_batch = asm.a.create_label();
    asm.a.set_label(&mut next_batch)?;
    asm.mark(layout::PREPARE)?;
    (parts.batch)(&mut asm)?;
    asm.a.mov(eax, dword_ptr(layout::PARAMETERS + 4))?;
    asm.a.mov(r14d, eax)?;
    asm.mark(layout::begin(parts.number))?;
    let first = asm.a.instructions().len();
    asm.time()?;
    asm.a.mov(r12, rax)?;
    let mut again = asm.a.create_label();
    asm.a.set_label(&mut again)?;
    let before = asm.a.instructions().len();
    (parts.body)(&mut asm)?;
    let instructions = asm.a.instructions().len() - before;
    asm.a.dec(r14)?;
    asm.a.jnz(again)?;
    let last = asm.a.instructions().len();
    asm.time()?;
    asm.a.sub(rax, r12)?;
    asm.a.mov(r13, rax)?;
    asm.mark(layout::end(parts.number))?;
    asm.a.mov(qword_ptr(r15 * 8 + layout::RESULTS as i64), r13)?;
    asm.a.inc(r15)?;
    asm.a.mov(eax, dword_ptr(layout::PARAMETERS))?;
    asm.a.cmp(r15, rax)?;
    asm.a.jb(next_batch)?;
    asm.mark(layout::DONE)?;
    asm.stop()?;
    let mut second = asm.a.create_label();
    if let Some(code) = parts.second {
        asm.a.set_label(&mut second)?;
        // A separate instruction, because the code may begin with a label.
        asm.a.nop()?;
        code(&mut asm)?;
        asm.stop()?;
    }
    while let Some((mut label, handler)) = asm.handlers.pop() {
        asm.a.set_label(&mut label)?;
        handler(&mut asm)?;
    }
    let assembled = asm
        .a
        .assemble_options(layout::CODE, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    let entries = match parts.second {
        Some(_) => vec![(assembled.label_ip(&second)? - layout::CODE) as u32],
        None => Vec::new(),
    };
    let at = |instruction: usize| {
        let offset = assembled.inner.new_instruction_offsets.get(instruction);
        layout::CODE + u64::from(offset.copied().unwrap_or(0))
    };
    let clock = (at(first), at(last));
    Ok(Payload { code: assembled.inner.code_buffer, entries, instructions, clock })
}

impl Assembler {
    /// Descriptor tables: flat code at 8, flat data at 16, no gate yet.
    fn tables(&mut self) -> Assemble {
        self.a.mov(rax, 0x00af_9b00_0000_ffff_u64)?;
        self.a.mov(qword_ptr(GDT + 8), rax)?;
        self.a.mov(rax, 0x00cf_9300_0000_ffff_u64)?;
        self.a.mov(qword_ptr(GDT + 16), rax)?;
        self.a.mov(dword_ptr(IDT_POINTER), u32::from(IDT_LIMIT) | (IDT as u32) << 16)?;
        self.a.mov(dword_ptr(IDT_POINTER + 4), (IDT >> 16) as u32)?;
        self.a.mov(dword_ptr(GDT_POINTER), 23 | (GDT as u32) << 16)?;
        self.a.mov(dword_ptr(GDT_POINTER + 4), (GDT >> 16) as u32)?;
        self.load_tables()
    }

    /// Loads the descriptor tables that the first vCPU has made.
    pub(crate) fn load_tables(&mut self) -> Assemble {
        self.a.lidt(ptr(IDT_POINTER))?;
        self.a.lgdt(ptr(GDT_POINTER))
    }

    /// Writes the batch's number to one of the VMM's ports.
    fn mark(&mut self, port: u16) -> Assemble {
        self.a.mov(edx, u32::from(port))?;
        self.a.mov(eax, r15d)?;
        self.a.out(dx, eax)
    }

    /// The time-stamp counter into rax.
    pub(crate) fn time(&mut self) -> Assemble {
        self.a.rdtsc()?;
        self.a.shl(rdx, 32)?;
        self.a.or(rax, rdx)
    }

    fn stop(&mut self) -> Assemble {
        let mut here = self.a.create_label();
        self.a.set_label(&mut here)?;
        self.a.cli()?;
        self.a.hlt()?;
        self.a.jmp(here)
    }

    /// Halts until an interrupt, which it takes, with interrupts disabled before and after.
    ///
    /// QEMU's TCG carries the shadow of a host's STI over VMRUN to the guest's first instruction. In it a second STI has no shadow of its own, so that
    /// the interrupt comes before HLT, which then never ends; and CLI as first instruction leaves the interrupt pending. KVM enters guests by
    /// `sti; vmrun` where it lacks commit be45bc4eff33 (Linux 6.14; not in the 6.8 of Ubuntu 24.04). A guest is entered after the exit of an instruction, so
    /// both have a NOP before them.
    pub(crate) fn halt(&mut self) -> Assemble {
        self.a.nop()?;
        self.a.sti()?;
        self.a.hlt()?;
        self.a.nop()?;
        self.a.cli()
    }

    /// Sets the handler of a vector.
    pub(crate) fn gate(&mut self, vector: u8, handler: Handler) -> Assemble {
        let label = self.a.create_label();
        let gate = IDT + 16 * u64::from(vector);
        self.a.lea(rax, ptr(label))?;
        // Offset 0-15, selector 8, present interrupt gate, offset 16-31; the code is below 2 GiB.
        self.a.mov(ecx, eax)?;
        self.a.and(ecx, 0xffff)?;
        self.a.or(ecx, 8 << 16)?;
        self.a.mov(dword_ptr(gate), ecx)?;
        self.a.and(eax, 0xffff_0000_u32)?;
        self.a.or(eax, 0x8e00)?;
        self.a.mov(dword_ptr(gate + 4), eax)?;
        self.handlers.push((label, handler));
        Ok(())
    }

    /// Sets where SYSCALL leads.
    pub(crate) fn system_calls(&mut self, handler: Handler) -> Assemble {
        const LSTAR: u32 = 0xc000_0082;
        let label = self.a.create_label();
        self.a.lea(rax, ptr(label))?;
        self.a.xor(edx, edx)?;
        self.a.mov(ecx, LSTAR)?;
        self.handlers.push((label, handler));
        self.a.wrmsr()
    }

    pub(crate) fn write_msr(&mut self, index: u32, value: u64) -> Assemble {
        self.a.mov(ecx, index)?;
        self.a.mov(eax, value as u32)?;
        self.a.mov(edx, (value >> 32) as u32)?;
        self.a.wrmsr()
    }

    /// Writes a register of the local APIC in memory.
    pub(crate) fn write_apic(&mut self, offset: u64, value: u32) -> Assemble {
        self.a.mov(edi, (APIC + offset) as u32)?;
        self.a.mov(dword_ptr(rdi), value)
    }

    /// Switches the local APIC on, in its memory form.
    pub(crate) fn enable_apic(&mut self) -> Assemble {
        self.write_apic(0xf0, 0x1ff)
    }

    /// Switches it on in its MSR form.
    pub(crate) fn enable_x2apic(&mut self) -> Assemble {
        self.enable_apic()?;
        self.a.mov(ecx, 0x1b)?;
        self.a.rdmsr()?;
        self.a.or(eax, 0xc00)?;
        self.a.wrmsr()
    }

    /// Measures how many cycles of the time-stamp counter a tick of the local APIC's timer has (1 ns each under KVM), for
    /// payloads that set deadlines. The APIC must be on, in memory.
    pub(crate) fn calibrate(&mut self) -> Assemble {
        const SPINS: u32 = 200_000;
        self.write_apic(0x320, 0x1_0000)?;
        self.write_apic(0x3e0, 0xb)?;
        self.write_apic(0x380, u32::MAX)?;
        self.time()?;
        self.a.mov(r12, rax)?;
        self.a.mov(ecx, SPINS)?;
        let mut again = self.a.create_label();
        self.a.set_label(&mut again)?;
        self.a.dec(ecx)?;
        self.a.jnz(again)?;
        self.time()?;
        self.a.sub(rax, r12)?;
        self.a.shl(rax, 16)?;
        self.a.mov(edi, (APIC + 0x390) as u32)?;
        self.a.mov(ecx, dword_ptr(rdi))?;
        self.a.not(ecx)?;
        self.a.xor(edx, edx)?;
        self.a.div(rcx)?;
        self.a.mov(qword_ptr(CYCLES_PER_TICK), rax)?;
        self.write_apic(0x380, 0)
    }

    /// Arms the TSC-deadline timer this number of nanoseconds from now.
    pub(crate) fn arm_deadline(&mut self, nanoseconds: u32) -> Assemble {
        self.time()?;
        self.a.mov(rcx, qword_ptr(CYCLES_PER_TICK))?;
        self.a.imul_3(rcx, rcx, i32::try_from(nanoseconds).unwrap_or(i32::MAX))?;
        self.a.shr(rcx, 16)?;
        self.a.add(rax, rcx)?;
        self.a.mov(rdx, rax)?;
        self.a.shr(rdx, 32)?;
        self.a.mov(ecx, 0x6e0)?;
        self.a.wrmsr()
    }

    /// Loops until the number of handled interrupts exceeds r8.
    pub(crate) fn spin(&mut self, pause: bool) -> Assemble {
        let mut again = self.a.create_label();
        self.a.set_label(&mut again)?;
        if pause {
            self.a.pause()?;
        }
        self.a.cmp(qword_ptr(INTERRUPTS), iced_x86::code_asm::r8)?;
        self.a.je(again)
    }

    /// Machine code that is independent of its address.
    pub(crate) fn machine_code(&mut self, code: &[u8]) -> Assemble {
        code.chunks(MOST_DATA).try_for_each(|part| self.a.db(part))
    }

    pub(crate) fn hypercall(&mut self) -> Assemble {
        if self.isa == Isa::Svm { self.a.vmmcall() } else { self.a.vmcall() }
    }
}

/// Handles an interrupt: counts it and ends it at the APIC in memory.
pub(crate) fn handle_apic(asm: &mut Assembler) -> Assemble {
    asm.a.push(rdi)?;
    asm.a.inc(qword_ptr(INTERRUPTS))?;
    asm.write_apic(0xb0, 0)?;
    asm.a.pop(rdi)?;
    asm.a.iretq()
}

/// Handles an interrupt: counts it and ends it at the APIC's MSR.
pub(crate) fn handle_x2apic(asm: &mut Assembler) -> Assemble {
    for register in [rax, rcx, rdx] {
        asm.a.push(register)?;
    }
    asm.a.inc(qword_ptr(INTERRUPTS))?;
    asm.write_msr(0x80b, 0)?;
    for register in [rdx, rcx, rax] {
        asm.a.pop(register)?;
    }
    asm.a.iretq()
}

/// Continues after an invalid instruction of two bytes.
pub(crate) fn skip_two_bytes(asm: &mut Assembler) -> Assemble {
    asm.a.add(qword_ptr(rsp), 2)?;
    asm.a.iretq()
}
