//! An imagined host with a few functions, and its records, word by word: for tests and fuzzing of what reads records.

#![expect(clippy::new_without_default, reason = "of tests")]

pub mod bochs;

use std::collections::BTreeMap;

use vmtax_events::CallRow;
use vmtax_guest::functions::{CodePart, HostKernels, KernelFunctions, LoadedAddresses};
use vmtax_guest::layout;
use vmtax_machine::kernel::Architecture;

use super::source::SourceLines;
use super::symbols::levels;
use super::{BatchClock, Clocked, OperationMeasure, RecordBatches, read_record};
use crate::host::MARKS;

pub const KERNEL: u64 = 0xffff_ffff_8100_0000;
/// KVM_RUN's loop, with VMRUN in it; a handler; an interrupt's entry.
pub const RUN: u64 = KERNEL;
pub const HANDLER: u64 = KERNEL + 0x1000;
pub const TICK: u64 = KERNEL + 0x2000;
pub const FAULT: u64 = KERNEL + 0x3000;
/// Where VMX goes on after a guest.
pub const AFTER_GUEST: u64 = KERNEL + 0x5000;
/// Hands an exit of L2 to L1, with VMX and with SVM.
pub const REFLECTS: u64 = KERNEL + 0x6000;
pub const REFLECTS_SVM: u64 = KERNEL + 0x7000;
pub const STACK: u64 = 0xffff_c900_0001_0000;
/// Where the payload reads the clock.
pub const FIRST: u64 = layout::CODE + 0x10;
pub const LAST: u64 = layout::CODE + 0x40;
/// How far the emulator's memory of the host's kernel, of L1's and of payloads is from their addresses.
pub const HOST: u64 = 0x1_0000_0000;
pub const L1: u64 = 0x2_0000_0000;
pub const GUEST: u64 = 0x3_0000_0000;

pub const NOP: &[u8] = &[0x90];
pub const RDTSC: &[u8] = &[0x0f, 0x31];
pub const OUT: &[u8] = &[0xef];
pub const CPUID: &[u8] = &[0x0f, 0xa2];
pub const VMRUN: &[u8] = &[0x0f, 0x01, 0xd8];
pub const CALL: &[u8] = &[0xe8, 0, 0, 0, 0];
pub const RET: &[u8] = &[0xc3];
pub const IRET: &[u8] = &[0x48, 0xcf];
pub const STORE: &[u8] = &[0x89, 0x07];
pub const WRMSR: &[u8] = &[0x0f, 0x30];

/// A record that is written.
pub struct TcgRecord {
    pub words: Vec<u8>,
    pub blocks: u32,
    pub upper: u64,
}

impl TcgRecord {
    pub fn new() -> TcgRecord {
        TcgRecord::with(1)
    }

    /// With these flags.
    pub fn with(flags: u32) -> TcgRecord {
        let mut record = TcgRecord { words: b"VMTAXTCG".to_vec(), blocks: 0, upper: 0 };
        record.put(&[4, flags]);
        record
    }

    pub fn put(&mut self, words: &[u32]) {
        words.iter().for_each(|word| self.words.extend(word.to_le_bytes()));
    }

    /// A block of these instructions is executed.
    pub fn block(&mut self, address: u64, memory: u64, instructions: &[&[u8]]) {
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
    pub fn partial(&mut self, done: u32) {
        self.put(&[0b100 << 29 | done]);
    }

    /// The present block's last instruction accesses memory.
    pub fn access(&mut self, address: u64) {
        self.upper(address);
        self.put(&[0b101 << 29 | (address as u32) >> 3]);
    }

    /// The present block's last instruction begins.
    pub fn last(&mut self) {
        self.put(&[0xffff_fff2]);
    }

    pub fn upper(&mut self, address: u64) {
        if address >> 32 != self.upper {
            self.upper = address >> 32;
            self.put(&[0b110 << 29 | (self.upper as u32 & 0x1fff_ffff)]);
        }
    }

    pub fn mark(&mut self, port: u16) {
        self.put(&[0xffff_fffc, port.into()]);
    }

    /// What follows is executed by this vCPU.
    pub fn turn(&mut self, vcpu: u32) {
        self.put(&[0xffff_fff6, vcpu]);
    }

    pub fn idle(&mut self, nanoseconds: u64) {
        self.put(&[0xffff_fffa, nanoseconds as u32, (nanoseconds >> 32) as u32]);
    }

    pub fn end(mut self) -> Vec<u8> {
        self.put(&[0xffff_fff8]);
        self.words
    }

    /// The payload at L1 writes the first mark and is entered again.
    pub fn begin(&mut self) {
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
    pub fn host(&mut self, more: &[&[u8]]) {
        self.block(RUN + 3, HOST, &[&[NOP, NOP], more].concat());
    }

    pub fn enter(&mut self) {
        self.block(RUN, HOST, &[VMRUN]);
    }

    /// The host calls its handler, which has two instructions and returns.
    pub fn handle(&mut self) {
        self.host(&[CALL]);
        self.access(STACK + 0x800);
        self.block(HANDLER, HOST, &[NOP, RET]);
        self.access(STACK + 0x800);
    }
}

pub fn kernels() -> HostKernels {
    let functions = [
        (RUN, "kvm_arch_vcpu_ioctl_run"),
        (HANDLER, "msr_interception"),
        (TICK, "asm_sysvec_apic_timer_interrupt"),
        (FAULT, "asm_exc_page_fault"),
        (FAULT + 0x1000, "__switch_to"),
        (AFTER_GUEST, "vmx_vmexit"),
        (REFLECTS, "nested_vmx_vmexit"),
        (REFLECTS_SVM, "nested_svm_vmexit"),
    ];
    kernels_with(&functions)
}

/// Kernels with these functions, by address.
pub(crate) fn kernels_with(functions: &[(u64, &str)]) -> HostKernels {
    let mut before = 0;
    let steps = functions
        .iter()
        .map(|&(at, name)| (at - std::mem::replace(&mut before, at), name.to_owned()));
    let part = CodePart { name: String::new(), functions: steps.collect() };
    let functions = KernelFunctions { parts: vec![part] };
    let (host, guest) = (LoadedAddresses::default(), Some(LoadedAddresses::default()));
    HostKernels { functions, host, guest, inner: None }
}

/// Two instructions, of which CPUID is not done; the host's 3 + 2, one more, and VMRUN; then the rest of the guest's.
pub(crate) fn handled_cpuid() -> TcgRecord {
    let mut record = TcgRecord::new();
    record.begin();
    record.block(FIRST + 2, GUEST, &[NOP, CPUID, NOP]);
    record.partial(2);
    record.handle();
    record.block(RUN + 0x100, HOST, &[NOP]);
    record.enter();
    record.block(LAST - 1, GUEST, &[NOP, RDTSC]);
    record.block(LAST + 2, GUEST, &[NOP]);
    record
}

/// Small records that are whole: of each emulator, a CPUID that the host handles.
pub fn samples() -> [Vec<u8>; 3] {
    let bochs = [(false, bochs::CPUID), (true, bochs::SVM_CPUID)].map(|(svm, cpuid)| {
        let mut bochs = bochs::BochsRecord::with(svm);
        bochs.begin();
        bochs.run(FIRST + 2, 2);
        bochs.leaves(cpuid, 0);
        bochs.host(3);
        bochs.end()
    });
    let [vmx, svm] = bochs;
    [handled_cpuid().end(), vmx, svm]
}

/// Reads a record as if it were of this host, whose payload is at L1 or at L2, or which has a workload, and adds up its tree.
///
/// # Errors
/// Why there is no tree.
///
/// # Panics
/// If a tree has other instructions than the record.
pub fn check_record(record: &[u8]) -> Result<(), String> {
    let payload = BatchClock::Payload(FIRST, LAST);
    let of_host = [BatchClock::Workload, BatchClock::Vmm].map(|clock| (0, clock));
    for (level, clock) in [(1, payload), (2, payload)].into_iter().chain(of_host) {
        let operation = Clocked { level, clock };
        let operations = BTreeMap::from([(0, operation)]);
        let symbols = levels(&kernels(), Architecture::Amd64)?;
        let lines = SourceLines::of("svm.c", &[(HANDLER, 7), (HANDLER + 1, 8), (HANDLER + 2, 0)]);
        let mut batches = RecordBatches::new(MARKS, operations, lines);
        read_record(record, &symbols, &mut batches).map_err(|problem| problem.to_string())?;
        let cycles: Vec<u64> =
            batches.done.get(&0).into_iter().flatten().map(|one| one.cycles()).collect();
        let measure = OperationMeasure { number: 0, workload: "x", cycles: &cycles, around: 0 };
        let profile = match batches.profile(&measure, &symbols) {
            Ok(profile) => profile,
            // Whose payload is at another level.
            Err(_) if cycles.is_empty() => continue,
            Err(problem) => return Err(problem),
        };
        let sum: u64 = profile.rows.iter().map(|row| row.instructions).sum();
        assert_eq!(sum, profile.begun - profile.undone, "the tree's instructions");
        let is_tree = |(number, row): (usize, &CallRow)| {
            row.node as usize == number && row.parent.is_none_or(|parent| parent < row.node)
        };
        assert!(profile.rows.iter().enumerate().all(is_tree), "the order of its nodes");
    }
    Ok(())
}
