//! Assembles bare payloads for arm64: the same steps as on x86, with words in memory for ports.
//!
//! The operation may use x0 to x18 and [`KEPT`], which is its own from set-up to the last batch. Encodings are those of the Arm ARM, C6.2;
//! a test holds them against the words of an assembler.

use vmtax_guest::layout::{self, arm};

use super::Payload;

/// A general register, x0 to x30, or 31 for zero.
pub(crate) type Register = u32;

/// The register that an operation keeps over batches.
pub(crate) const KEPT: Register = 25;
const ZERO: Register = 31;
/// Number of the batch; operations left in it; its start; where the parameters are.
const BATCH: Register = 19;
const LEFT: Register = 20;
const START: Register = 21;
const PARAMETERS: Register = 22;
/// Free for addresses and values.
const FIRST: Register = 9;
const SECOND: Register = 10;

/// A system register or instruction: op0, op1, CRn, CRm, op2.
pub(crate) type SystemRegister = (u32, u32, u32, u32, u32);

/// The virtual counter.
pub(crate) const CNTVCT_EL0: SystemRegister = (3, 3, 14, 0, 2);
const VBAR_EL1: SystemRegister = (3, 0, 12, 0, 0);
const ESR_EL1: SystemRegister = (3, 0, 5, 2, 0);
const CPACR_EL1: SystemRegister = (3, 0, 1, 0, 2);

/// Words of code that are being assembled.
#[derive(Debug, Default)]
pub(crate) struct CodeWords(Vec<u32>);

/// A place in the code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CodeLabel(usize);

impl CodeWords {
    pub(crate) fn word(&mut self, word: u32) {
        self.0.push(word);
    }

    /// The next instruction's place.
    pub(crate) fn here(&self) -> CodeLabel {
        CodeLabel(self.0.len())
    }

    fn distance(&self, to: CodeLabel) -> u32 {
        (to.0 as i64 - self.0.len() as i64) as u32
    }

    /// A value into a register: one to four instructions.
    pub(crate) fn set(&mut self, register: Register, value: u64) {
        self.word(0xd280_0000 | (value as u32 & 0xffff) << 5 | register);
        for part in 1..4 {
            let bits = (value >> (16 * part)) as u32 & 0xffff;
            if bits != 0 {
                self.word(0xf280_0000 | part << 21 | bits << 5 | register);
            }
        }
    }

    /// Adds a number below 4096, or one that is a multiple of 4096.
    pub(crate) fn add(&mut self, to: Register, from: Register, number: u32) {
        let (shift, number) = if number < 4096 { (0, number) } else { (1, number >> 12) };
        self.word(0x9100_0000 | shift << 22 | number << 10 | from << 5 | to);
    }

    fn subtract(&mut self, to: Register, from: Register, less: Register) {
        self.word(0xcb00_0000 | less << 16 | from << 5 | to);
    }

    /// Adds a register to itself.
    pub(crate) fn double(&mut self, register: Register) {
        self.word(0x8b00_0000 | register << 16 | register << 5 | register);
    }

    fn compare(&mut self, left: Register, right: Register) {
        self.word(0xeb00_0000 | right << 16 | left << 5 | ZERO);
    }

    /// Subtracts 1, with flags.
    fn decrement(&mut self, register: Register) {
        self.word(0xf100_0000 | 1 << 10 | register << 5 | register);
    }

    fn branch_unless_zero(&mut self, to: CodeLabel) {
        self.branch_if(1, to);
    }

    fn branch_if_below(&mut self, to: CodeLabel) {
        self.branch_if(3, to);
    }

    fn branch_if(&mut self, condition: u32, to: CodeLabel) {
        self.word(0x5400_0000 | (self.distance(to) & 0x7_ffff) << 5 | condition);
    }

    /// Branches back if a bit of a register is set.
    pub(crate) fn branch_if_bit(&mut self, (register, bit): (Register, u32), to: CodeLabel) {
        self.word(0x3700_0000 | bit << 19 | (self.distance(to) & 0x3fff) << 5 | register);
    }

    fn branch(&mut self, to: CodeLabel) {
        self.word(0x1400_0000 | self.distance(to) & 0x3ff_ffff);
    }

    /// Loads 32 bits.
    pub(crate) fn load(&mut self, to: Register, (base, offset): (Register, u32)) {
        self.word(0xb940_0000 | (offset / 4) << 10 | base << 5 | to);
    }

    /// Stores 32 bits.
    pub(crate) fn store(&mut self, from: Register, (base, offset): (Register, u32)) {
        self.word(0xb900_0000 | (offset / 4) << 10 | base << 5 | from);
    }

    /// Stores 64 bits in the entry of a table.
    pub(crate) fn store_entry(&mut self, from: Register, table: Register, entry: Register) {
        self.word(0xf820_7800 | entry << 16 | table << 5 | from);
    }

    /// Stores 64 bits.
    fn store_double(&mut self, from: Register, base: Register) {
        self.word(0xf900_0000 | base << 5 | from);
    }

    /// Stores 32 bits at an address.
    pub(crate) fn store_at(&mut self, address: u64, from: Register) {
        self.set(FIRST, address);
        self.store(from, (FIRST, 0));
    }

    /// Stores a number of 32 bits at an address.
    pub(crate) fn put(&mut self, address: u64, number: u32) {
        self.set(SECOND, number.into());
        self.store_at(address, SECOND);
    }

    pub(crate) fn read(&mut self, to: Register, from: SystemRegister) {
        self.word(0xd520_0000 | system(from) | to);
    }

    pub(crate) fn write(&mut self, to: SystemRegister, from: Register) {
        self.word(0xd500_0000 | system(to) | from);
    }

    /// Writes a number to a system register.
    pub(crate) fn put_system(&mut self, to: SystemRegister, number: u64) {
        self.set(SECOND, number);
        self.write(to, SECOND);
    }

    /// A system instruction such as TLBI.
    pub(crate) fn system(&mut self, what: SystemRegister) {
        self.word(0xd500_0000 | system(what) | ZERO);
    }

    /// What follows sees what came before.
    pub(crate) fn synchronize(&mut self) {
        self.word(0xd503_3fdf);
    }

    pub(crate) fn hvc(&mut self) {
        self.word(0xd400_0002);
    }

    pub(crate) fn smc(&mut self) {
        self.word(0xd400_0003);
    }

    /// Into the mode and to the address that the registers of this exception level have.
    pub(crate) fn exception_return(&mut self) {
        self.word(0xd69f_03e0);
    }

    /// The address of the instruction behind the next one into a register.
    pub(crate) fn set_return(&mut self, register: Register) {
        // Of memory's first pages an address takes two instructions.
        self.set(register, arm::MEMORY + 4 * (self.0.len() as u64 + 3));
    }

    pub(crate) fn wait_for_interrupt(&mut self) {
        self.word(0xd503_207f);
    }

    pub(crate) fn wait_for_event(&mut self) {
        self.word(0xd503_205f);
    }

    /// Waits until invalidations have been done.
    pub(crate) fn finish_invalidation(&mut self) {
        self.word(0xd503_3b9f);
    }

    /// Writes the batch's number to the word of a port.
    fn mark(&mut self, port: u16) {
        self.store_at(arm::address(port), BATCH);
    }

    /// Puts a value into the word of this batch in a table of 64-bit words.
    pub(crate) fn store_of_batch(&mut self, table: u64, value: Register) {
        self.set(FIRST, table);
        self.store_entry(value, FIRST, BATCH);
    }

    /// A loop of two instructions, so many times.
    pub(crate) fn spin(&mut self, times: u32) {
        self.set(SECOND, times.into());
        let again = self.here();
        self.decrement(SECOND);
        self.branch_unless_zero(again);
    }

    /// The counter, when all before it has been done.
    fn time(&mut self, to: Register) {
        self.synchronize();
        self.read(to, CNTVCT_EL0);
    }

    /// An exception that nobody expects is told to the VMM, from each of the 16 vectors.
    fn vectors(&mut self) {
        const BYTES: usize = 2048;
        const VECTOR: usize = 128;
        let before = (VECTORS - arm::MEMORY) as usize / 4;
        assert!(self.0.len() <= before, "operations of this suite are short");
        self.0.resize(before, 0);
        for _ in 0..BYTES / VECTOR {
            let first = self.0.len();
            self.read(SECOND, ESR_EL1);
            self.store_at(arm::address(layout::FAULT), SECOND);
            let here = self.here();
            self.branch(here);
            self.0.resize(first + VECTOR / 4, 0);
        }
    }
}

/// Where the exception vectors are: behind the first page, which has all other code.
pub(crate) const VECTORS: u64 = arm::MEMORY + 0x1000;

fn system((op0, op1, crn, crm, op2): SystemRegister) -> u32 {
    op0 << 19 | op1 << 16 | crn << 12 | crm << 8 | op2 << 5
}

/// What an operation executes on arm64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArmCode {
    /// Once, before the first batch.
    pub(crate) setup: fn(&mut CodeWords),
    pub(crate) batch: fn(&mut CodeWords),
    pub(crate) body: fn(&mut CodeWords),
}

/// Code that is not there.
pub(crate) const fn nothing(_: &mut CodeWords) {}

/// Assembles a payload.
///
/// # Panics
/// If it has more than a page of code: the tables of operations are tested.
pub(crate) fn assemble(number: u16, code: &ArmCode) -> Payload {
    let mut out = CodeWords::default();
    out.put_system(VBAR_EL1, VECTORS);
    out.put_system(CPACR_EL1, 3 << 20);
    out.synchronize();
    (code.setup)(&mut out);
    out.set(PARAMETERS, arm::PARAMETERS);
    out.set(BATCH, 0);
    let next_batch = out.here();
    out.mark(layout::PREPARE);
    (code.batch)(&mut out);
    out.load(LEFT, (PARAMETERS, 4));
    out.mark(layout::begin(number));
    let first = out.here();
    out.time(START);
    let again = out.here();
    (code.body)(&mut out);
    let instructions = out.here().0 - again.0;
    out.decrement(LEFT);
    out.branch_unless_zero(again);
    let last = out.here();
    out.time(FIRST);
    out.subtract(START, FIRST, START);
    out.mark(layout::end(number));
    out.set(FIRST, arm::address(layout::RESULT));
    out.store_double(START, FIRST);
    out.add(BATCH, BATCH, 1);
    out.load(FIRST, (PARAMETERS, 0));
    out.compare(BATCH, FIRST);
    out.branch_if_below(next_batch);
    out.mark(layout::DONE);
    let here = out.here();
    out.branch(here);
    out.vectors();
    let at = |place: CodeLabel| arm::MEMORY + 4 * place.0 as u64;
    Payload {
        code: out.0.iter().flat_map(|word| word.to_le_bytes()).collect(),
        entries: Vec::new(),
        instructions,
        // Of the reads of the counter, behind their ISB.
        clock: (at(first) + 4, at(last) + 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words are LLVM's, of the instructions beside them.
    #[test]
    fn instructions_are_encoded_as_an_assembler_does() {
        let mut out = CodeWords::default();
        out.set(9, 0x1_0123_4567);
        out.add(25, 25, 4 << 12);
        out.add(19, 19, 1);
        out.subtract(21, 9, 21);
        out.compare(19, 9);
        out.decrement(20);
        let here = out.here();
        out.branch_unless_zero(here);
        out.branch_if_below(here);
        out.branch_if_bit((1, 2), here);
        out.branch(here);
        out.load(20, (22, 4));
        out.store(19, (9, 0));
        out.store_double(21, 9);
        out.read(10, ESR_EL1);
        out.read(0, CNTVCT_EL0);
        out.write(VBAR_EL1, 10);
        out.write((2, 0, 1, 0, 4), 0);
        out.system((1, 0, 8, 3, 0));
        out.synchronize();
        out.hvc();
        out.smc();
        out.wait_for_interrupt();
        out.wait_for_event();
        out.finish_invalidation();
        out.exception_return();
        out.double(25);
        out.write((3, 3, 9, 12, 1), 25);
        out.read(0, (3, 3, 14, 12, 3));
        let expected = [
            0xd288_ace9, // movz x9, #0x4567
            0xf2a0_2469, // movk x9, #0x123, lsl #16
            0xf2c0_0029, // movk x9, #1, lsl #32
            0x9140_1339, // add x25, x25, #4, lsl #12
            0x9100_0673, // add x19, x19, #1
            0xcb15_0135, // sub x21, x9, x21
            0xeb09_027f, // cmp x19, x9
            0xf100_0694, // subs x20, x20, #1
            0x5400_0001, // 1: b.ne 1b
            0x54ff_ffe3, // b.lo 1b
            0x3717_ffc1, // tbnz w1, #2, 1b
            0x17ff_fffd, // b 1b
            0xb940_06d4, // ldr w20, [x22, #4]
            0xb900_0133, // str w19, [x9]
            0xf900_0135, // str x21, [x9]
            0xd538_520a, // mrs x10, esr_el1
            0xd53b_e040, // mrs x0, cntvct_el0
            0xd518_c00a, // msr vbar_el1, x10
            0xd510_1080, // msr oslar_el1, x0
            0xd508_831f, // tlbi vmalle1is
            0xd503_3fdf, // isb
            0xd400_0002, // hvc #0
            0xd400_0003, // smc #0
            0xd503_207f, // wfi
            0xd503_205f, // wfe
            0xd503_3b9f, // dsb ish
            0xd69f_03e0, // eret
            0x8b19_0339, // add x25, x25, x25
            0xd51b_9c39, // msr pmcntenset_el0, x25
            0xd53b_ec60, // mrs x0, pmevtyper3_el0
        ];
        let differing = out.0.iter().zip(expected).position(|(word, other)| *word != other);
        assert_eq!((differing, out.0.len()), (None, expected.len()));
    }

    #[test]
    fn a_return_comes_behind_the_next_instruction() {
        let mut out = CodeWords::default();
        out.word(0);
        out.set_return(17);
        out.exception_return();
        assert_eq!(out.0, [0, 0xd280_0211, 0xf2a8_0011, 0xd69f_03e0]);
        assert_eq!(out.0.len() * 4, 0x10);
    }

    #[test]
    fn exceptions_have_their_vectors_behind_every_payload() {
        let nothing: fn(&mut CodeWords) = |_| {};
        let long: fn(&mut CodeWords) = |out| (0..400).for_each(|_| out.wait_for_event());
        for body in [nothing, long] {
            let payload = assemble(3, &ArmCode { setup: nothing, batch: nothing, body });
            let vectors = (VECTORS - arm::MEMORY) as usize;
            assert_eq!(payload.code.len(), vectors + 2048);
            assert_eq!(payload.code[vectors..][..4], 0xd538_520a_u32.to_le_bytes());
        }
    }
}
