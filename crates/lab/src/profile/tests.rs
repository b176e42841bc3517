//! Records of imaginary machines, word by word.

mod bochs;

use std::collections::BTreeMap;

use vmtax_events::{CallKind, CallRow};
use vmtax_guest::functions::{Functions, Kernels, Loaded, Part};
use vmtax_guest::layout;
use vmtax_guest::order::encode;

use super::{Batches, Clocked, Measure, Problem, Profile, names, read_record};
use crate::host::MARKS;

const KERNEL: u64 = 0xffff_ffff_8100_0000;
/// KVM_RUN's loop, with VMRUN in it; a handler; an interrupt's entry.
const RUN: u64 = KERNEL;
const HANDLER: u64 = KERNEL + 0x1000;
const TICK: u64 = KERNEL + 0x2000;
const FAULT: u64 = KERNEL + 0x3000;
/// Where VMX goes on after a guest.
const AFTER_GUEST: u64 = KERNEL + 0x5000;
const REFLECTS: u64 = KERNEL + 0x6000;
const STACK: u64 = 0xffff_c900_0001_0000;
/// Where the payload reads the clock.
const FIRST: u64 = layout::CODE + 0x10;
const LAST: u64 = layout::CODE + 0x40;
/// How far the emulator's memory of the host's kernel, of L1's and of payloads is from their addresses.
const HOST: u64 = 0x1_0000_0000;
const L1: u64 = 0x2_0000_0000;
const GUEST: u64 = 0x3_0000_0000;

const NOP: &[u8] = &[0x90];
const RDTSC: &[u8] = &[0x0f, 0x31];
const OUT: &[u8] = &[0xef];
const CPUID: &[u8] = &[0x0f, 0xa2];
const VMRUN: &[u8] = &[0x0f, 0x01, 0xd8];
const CALL: &[u8] = &[0xe8, 0, 0, 0, 0];
const RET: &[u8] = &[0xc3];
const IRET: &[u8] = &[0x48, 0xcf];
const STORE: &[u8] = &[0x89, 0x07];
const WRMSR: &[u8] = &[0x0f, 0x30];

/// A record that is written.
struct Record {
    words: Vec<u8>,
    blocks: u32,
    upper: u64,
}

impl Record {
    fn new() -> Record {
        let mut record = Record { words: b"VMTAXTCG".to_vec(), blocks: 0, upper: 0 };
        record.put(&[1, 1]);
        record
    }

    fn put(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.words.extend(word.to_le_bytes()));
    }

    /// A block of these instructions is executed.
    fn block(&mut self, address: u64, memory: u64, instructions: &[&[u8]]) {
        let code: Vec<u8> = instructions.concat();
        let (id, count) = (self.blocks, instructions.len() as u32);
        self.blocks += 1;
        self.put(&[0xffff_fffe, id, count, code.len() as u32]);
        for double in [address, address.wrapping_add(memory)] {
            self.words.extend(double.to_le_bytes());
        }
        self.words.extend(instructions.iter().map(|one| one.len() as u8));
        self.words.extend(code);
        self.words.resize(self.words.len().next_multiple_of(4), 0);
        self.put(&[id]);
    }

    /// The block before the next was left after so many instructions.
    fn partial(&mut self, done: u32) {
        self.put(&[0b100 << 29 | done]);
    }

    /// The present block's last instruction accesses memory.
    fn access(&mut self, address: u64) {
        if address >> 32 != self.upper {
            self.upper = address >> 32;
            self.put(&[0b110 << 29 | (self.upper as u32 & 0x1fff_ffff)]);
        }
        self.put(&[0b101 << 29 | (address as u32) >> 3]);
    }

    fn mark(&mut self, port: u16) {
        self.put(&[0xffff_fffc, port.into()]);
    }

    fn idle(&mut self, nanoseconds: u64) {
        self.put(&[0xffff_fffa, nanoseconds as u32, (nanoseconds >> 32) as u32]);
    }

    fn end(mut self) -> Vec<u8> {
        self.put(&[0xffff_fff8]);
        self.words
    }

    /// The payload at L1 writes the first mark and is entered again.
    fn begin(&mut self) {
        self.block(layout::CODE, GUEST, &[OUT]);
        self.mark(layout::PREPARE);
        self.partial(1);
        self.host(&[]);
        self.enter();
        self.block(layout::CODE + 1, GUEST, &[OUT]);
        self.mark(layout::begin(0));
        self.host(&[]);
        self.enter();
        self.block(FIRST - 2, GUEST, &[NOP, NOP, RDTSC]);
        self.access(0);
    }

    /// The host after an exit: the code behind VMRUN, and what else it does.
    fn host(&mut self, more: &[&[u8]]) {
        self.block(RUN + 3, HOST, &[&[NOP, NOP], more].concat());
    }

    fn enter(&mut self) {
        self.block(RUN, HOST, &[VMRUN]);
    }

    /// The host calls its handler, which has two instructions and returns.
    fn handle(&mut self) {
        self.host(&[CALL]);
        self.access(STACK + 0x800);
        self.block(HANDLER, HOST, &[NOP, RET]);
        self.access(STACK + 0x800);
    }
}

fn kernels() -> Vec<u8> {
    let functions = [
        (RUN, "kvm_arch_vcpu_ioctl_run"),
        (HANDLER, "msr_interception"),
        (TICK, "asm_sysvec_apic_timer_interrupt"),
        (FAULT, "asm_exc_page_fault"),
        (FAULT + 0x1000, "__switch_to"),
        (AFTER_GUEST, "vmx_vmexit"),
        (REFLECTS, "nested_vmx_vmexit"),
    ];
    let mut before = 0;
    let steps =
        functions.map(|(at, name)| (at - std::mem::replace(&mut before, at), name.to_owned()));
    let part = Part { name: String::new(), functions: steps.to_vec() };
    let functions = Functions { parts: vec![part] };
    let (host, guest) = (Loaded::default(), Some(Loaded::default()));
    encode(&Kernels { functions, host, guest })
}

/// The tree of a record whose only batch took so many cycles, one of which is the loop's.
fn profile(record: &[u8], level: u8, cycles: u64) -> Result<Result<Profile, String>, Problem> {
    let symbols = names(&kernels()).unwrap();
    let operation = Clocked { level, clock: (FIRST, LAST) };
    let mut batches = Batches::new(MARKS, BTreeMap::from([(0, operation)]));
    read_record(record, &symbols, &mut batches)?;
    let measure = Measure { number: 0, workload: "x", cycles: &[cycles], around: 1 };
    Ok(batches.profile(&measure, &symbols))
}

/// `payload;[cpuid];kvm_arch_vcpu_ioctl_run 7`, with the level before each name but the payload's.
fn folded(rows: &[CallRow]) -> Vec<String> {
    let name = |row: &CallRow| match row.kind {
        CallKind::Function if row.name == "payload" => row.name.clone(),
        CallKind::Function => format!("{}:{}", row.level, row.name),
        CallKind::Cause => format!("[{}]", row.name),
        CallKind::Thread | CallKind::Line => format!("({})", row.name),
    };
    let line = |row: &CallRow| {
        let mut stack = vec![name(row)];
        let mut at = row.parent;
        while let Some(above) = at.and_then(|at| rows.get(at as usize)) {
            stack.insert(0, name(above));
            at = above.parent;
        }
        format!("{} {}", stack.join(";"), row.instructions)
    };
    rows.iter().filter(|row| row.instructions > 0).map(line).collect()
}

fn tree(record: Record, level: u8, cycles: u64) -> Vec<String> {
    folded(&profile(&record.end(), level, cycles).unwrap().unwrap().rows)
}

const HOST_RUN: &str = "0:kvm_arch_vcpu_ioctl_run";

#[test]
fn what_an_exit_takes_hangs_under_its_instruction() {
    let mut record = Record::new();
    record.begin();
    // Two instructions, of which CPUID is not done; the host's 3 + 2, one more, and VMRUN.
    record.block(FIRST + 2, GUEST, &[NOP, CPUID, NOP]);
    record.partial(2);
    record.handle();
    record.block(RUN + 0x100, HOST, &[NOP]);
    record.enter();
    record.block(LAST - 1, GUEST, &[NOP, RDTSC]);
    record.block(LAST + 2, GUEST, &[NOP]);
    let expected = [
        // The NOP before CPUID, the one before RDTSC, and RDTSC, less the loop's.
        "payload 2".to_owned(),
        format!("payload;[cpuid];{HOST_RUN} 5"),
        format!("payload;[cpuid];{HOST_RUN};0:msr_interception 2"),
    ];
    assert_eq!(tree(record, 1, 10), expected);
}

#[test]
fn a_tree_that_does_not_add_up_is_refused() {
    let record = || {
        let mut record = Record::new();
        record.begin();
        record.block(LAST, GUEST, &[RDTSC]);
        record.block(LAST + 2, GUEST, &[NOP]);
        record.end()
    };
    assert!(profile(&record(), 1, 1).unwrap().is_ok());
    let problem = profile(&record(), 1, 2).unwrap().unwrap_err();
    assert_eq!(problem, "batch 0: the tree has 1 instructions, and the clock went on by 2");
    // At another level its clock is not looked at.
    let problem = profile(&record(), 2, 1).unwrap().unwrap_err();
    assert_eq!(problem, "0 batches were recorded and 1 measured");
}

#[test]
fn waiting_is_counted_beside_the_tree() {
    let mut record = Record::new();
    record.idle(1000);
    record.begin();
    record.block(FIRST + 2, GUEST, &[NOP]);
    record.idle(1500);
    record.block(LAST, GUEST, &[RDTSC]);
    record.block(LAST + 2, GUEST, &[NOP]);
    let found = profile(&record.end(), 1, 502).unwrap().unwrap();
    assert_eq!((found.begun, found.undone, found.around, found.idle), (2, 0, 1, 500));
}

#[test]
fn interrupts_of_the_host_are_nobodys_call() {
    let mut record = Record::new();
    record.begin();
    // The guest is interrupted after a whole block.
    record.block(FIRST + 2, GUEST, &[NOP, NOP]);
    record.host(&[]);
    record.block(TICK, HOST, &[NOP, NOP, IRET]);
    record.block(RUN + 5, HOST, &[NOP]);
    record.enter();
    record.block(LAST, GUEST, &[RDTSC]);
    record.block(LAST + 2, GUEST, &[NOP]);
    let expected = [
        "payload 2".to_owned(),
        format!("payload;[interrupt];{HOST_RUN} 4"),
        "payload;[interrupt];[interrupt];0:asm_sysvec_apic_timer_interrupt 3".to_owned(),
    ];
    assert_eq!(tree(record, 1, 10), expected);
}

#[test]
fn faults_take_their_instruction_back() {
    let mut record = Record::new();
    record.begin();
    record.block(FIRST + 2, GUEST, &[CPUID]);
    // The host's store faults, and is begun again after the exception.
    record.host(&[STORE, NOP]);
    record.partial(3);
    record.block(FAULT, HOST, &[NOP, IRET]);
    record.block(RUN + 5, HOST, &[STORE, NOP]);
    record.enter();
    record.block(LAST, GUEST, &[RDTSC]);
    record.block(LAST + 2, GUEST, &[NOP]);
    let expected = [
        format!("payload;[cpuid];{HOST_RUN} 5"),
        format!("payload;[cpuid];{HOST_RUN};0:asm_exc_page_fault 2"),
    ];
    assert_eq!(tree(record, 1, 8), expected);
}

/// A WRMSR at the end of a block was intercepted if the host handles an MSR, whatever comes first.
#[test]
fn an_intercepted_msr_is_told_from_one_before_an_interrupt() {
    let record = |handled: bool| {
        let mut record = Record::new();
        record.begin();
        record.block(FIRST + 2, GUEST, &[WRMSR]);
        record.host(&[]);
        record.block(TICK, HOST, &[IRET]);
        if handled {
            record.block(RUN + 5, HOST, &[CALL]);
            record.access(STACK + 0x800);
            record.block(HANDLER, HOST, &[RET]);
            record.access(STACK + 0x800);
        } else {
            record.block(RUN + 5, HOST, &[NOP, NOP]);
        }
        record.enter();
        record.block(LAST, GUEST, &[RDTSC]);
        record.block(LAST + 2, GUEST, &[NOP]);
        record.end()
    };
    assert_eq!(profile(&record(true), 1, 7).unwrap().unwrap().undone, 1);
    assert_eq!(profile(&record(false), 1, 8).unwrap().unwrap().undone, 0);
}

/// L2 leaves, the host hands the exit to L1, whose VMRUN brings L2 back: the same addresses at two places of the emulator's memory.
#[test]
fn the_guests_guest_and_its_hypervisor() {
    let mut record = Record::new();
    let enters_l1 = |record: &mut Record| {
        record.host(&[]);
        record.enter();
        record.block(RUN + 3, L1, &[NOP, NOP, NOP]);
    };
    let resumes = |record: &mut Record| {
        record.block(RUN, L1, &[VMRUN]);
        record.host(&[NOP]);
        record.enter();
    };
    record.block(layout::CODE, GUEST, &[OUT]);
    record.mark(layout::PREPARE);
    record.partial(1);
    enters_l1(&mut record);
    resumes(&mut record);
    record.block(layout::CODE + 1, GUEST, &[OUT]);
    record.mark(layout::begin(0));
    enters_l1(&mut record);
    resumes(&mut record);
    record.block(FIRST, GUEST, &[RDTSC]);
    record.block(FIRST + 2, GUEST, &[CPUID]);
    enters_l1(&mut record);
    resumes(&mut record);
    record.block(LAST, GUEST, &[RDTSC]);
    record.block(LAST + 2, GUEST, &[NOP]);
    let inner = "payload;[cpuid];1:kvm_arch_vcpu_ioctl_run";
    let expected = [
        format!("payload;[cpuid];{HOST_RUN} 3"),
        format!("{inner} 3"),
        format!("{inner};[vmrun];{HOST_RUN} 4"),
    ];
    assert_eq!(tree(record, 2, 11), expected);
}

#[test]
fn damaged_records_are_refused_in_a_sentence() {
    let whole = || {
        let mut record = Record::new();
        record.begin();
        record
    };
    let refused = |bytes: &[u8]| profile(bytes, 1, 0).unwrap_err().to_string();
    let end = |mut record: Record, words: &[u32]| {
        record.put(words);
        record.words
    };
    for (bytes, problem) in [
        (Vec::new(), "byte 0 of the record: it is cut off here"),
        (b"VMTAXTCGxxxxxxxx".to_vec(), "it is of version 2021161080, and 1 is known"),
        (vec![0; 64], "it is no record of vmtax's recorders"),
        (whole().words, "it is cut off here"),
        (end(whole(), &[12345]), "block 12345 is executed before it is described"),
        (end(whole(), &[0xffff_fff0]), "0xfffffff0 is no word of it"),
        (end(whole(), &[0xffff_fffe, 999, 0, 0, 0, 0, 0, 0]), "block 999 cannot be one"),
        (end(whole(), &[0xffff_fffe, u32::MAX >> 1, 1, 1, 0, 0, 0, 0]), "cannot be one"),
        (
            end(whole(), &[0xffff_fffe, 999, 1, 1, 0, 0, 0, 0, 0x9002, 0]),
            "other instructions than code",
        ),
        (end(whole(), &[0xffff_fffe, 0, 1, 1, 0, 0, 0, 0, 0x9001, 0]), "block 0 is there twice"),
        (end(whole(), &[0b100 << 29 | 99, 0]), "instructions, not 99"),
    ] {
        let found = refused(&bytes);
        assert!(found.contains(problem), "{found:?} lacks {problem:?}");
    }
}

/// A cut anywhere is an error, and never anything worse.
#[test]
fn every_cut_is_an_error() {
    let mut record = Record::new();
    record.begin();
    record.block(FIRST + 2, GUEST, &[CPUID]);
    record.handle();
    record.enter();
    record.block(LAST, GUEST, &[RDTSC]);
    record.block(LAST + 2, GUEST, &[NOP]);
    let bytes = record.end();
    for length in 0..bytes.len() {
        assert!(profile(&bytes[..length], 1, 0).is_err(), "{length}");
    }
    assert!(profile(&bytes, 1, 0).is_ok());
}

/// Reads a record with each byte damaged, and each word: it is read or refused in a sentence.
fn assert_survives_damage(bytes: &[u8], level: u8) {
    for at in 0..bytes.len() {
        for damage in [0x01, 0x10, 0x80, 0xff, bytes[at]] {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= damage;
            if let Err(problem) = profile(&damaged, level, 0) {
                assert_eq!(problem.to_string().lines().count(), 1, "{problem}");
            }
        }
        for word in [[0; 8], [0xff; 8]] {
            let mut damaged = bytes.to_vec();
            let end = bytes.len().min(at + 8);
            damaged[at..end].copy_from_slice(&word[..end - at]);
            let _ = profile(&damaged, level, 0);
        }
        // A part of it comes twice.
        let _ = profile(&[&bytes[..at], &bytes[at / 2..]].concat(), level, 0);
    }
}

#[test]
fn damage_anywhere_is_no_panic() {
    let mut record = Record::new();
    record.begin();
    record.block(FIRST + 2, GUEST, &[NOP, CPUID, NOP]);
    record.partial(2);
    record.handle();
    record.idle(7);
    record.block(TICK, HOST, &[NOP, IRET]);
    record.enter();
    record.block(LAST, GUEST, &[RDTSC]);
    record.block(LAST + 2, GUEST, &[NOP]);
    assert_survives_damage(&record.end(), 1);
}
