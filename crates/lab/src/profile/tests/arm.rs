//! Records of an imagined arm64 machine.

use std::collections::BTreeMap;

use vmtax_guest::functions::HostKernels;
use vmtax_guest::layout::{self, arm};
use vmtax_machine::kernel::Architecture;

use super::super::imagined::{GUEST, HOST, L1, TcgRecord, kernels_with};
use super::super::source::SourceLines;
use super::super::symbols::levels;
use super::super::{BatchClock, Clocked, OperationMeasure, RecordBatches, read_record};
use super::folded;
use crate::host::MARKS;

const KERNEL: u64 = 0xffff_8000_0800_0000;
const RUN: u64 = KERNEL;
const ENTER: u64 = KERNEL + 0x1000;
const HYP: u64 = KERNEL + 0x2000;
const VECTORS: u64 = KERNEL + 0x3000;
const ABORT: u64 = KERNEL + 0x4000;
const NVHE_HYP: u64 = KERNEL + 0x5000;
const NVHE_ENTER: u64 = KERNEL + 0x6000;
const NVHE_HOST: u64 = KERNEL + 0x7000;
const NVHE_TRAP: u64 = KERNEL + 0x8000;
const TICK: u64 = KERNEL + 0x9000;
/// How far EL2's addresses of the kernel's code are from the kernel's.
const AT_EL2: u64 = 0x0000_4000_1000_0000_u64.wrapping_sub(KERNEL);
const STACK: u64 = 0xffff_8000_0a01_0000;
const PAYLOAD: u64 = arm::MEMORY;
const FIRST: u64 = PAYLOAD + 0x104;
const LAST: u64 = PAYLOAD + 0x204;

const NOP: &[u8] = &0xd503_201f_u32.to_le_bytes();
const CLOCK: &[u8] = &0xd53b_e049_u32.to_le_bytes();
const HVC: &[u8] = &0xd400_0002_u32.to_le_bytes();
const ERET: &[u8] = &0xd69f_03e0_u32.to_le_bytes();
const BL: &[u8] = &0x9400_0004_u32.to_le_bytes();
const RET: &[u8] = &0xd65f_03c0_u32.to_le_bytes();
const PUSH: &[u8] = &0xa9bf_7bfd_u32.to_le_bytes();
const POP: &[u8] = &0xa8c1_7bfd_u32.to_le_bytes();
const STORE: &[u8] = &0xb900_0133_u32.to_le_bytes();
const ID: &[u8] = &0xd538_0700_u32.to_le_bytes();

fn kernels() -> HostKernels {
    let functions = [
        (RUN, "kvm_arch_vcpu_ioctl_run"),
        (ENTER, "__guest_enter"),
        (HYP, "__kvm_hyp_vector"),
        (VECTORS, "vectors"),
        (ABORT, "kvm_handle_guest_abort"),
        (NVHE_HYP, "__kvm_nvhe___kvm_hyp_vector"),
        (NVHE_ENTER, "__kvm_nvhe___guest_enter"),
        (NVHE_HOST, "__kvm_nvhe___kvm_hyp_host_vector"),
        (NVHE_TRAP, "__kvm_nvhe_handle_trap"),
        (TICK, "el1h_64_irq_handler"),
    ];
    kernels_with(&functions)
}

fn tree(record: TcgRecord, level: u8, cycles: u64) -> Vec<String> {
    let symbols = levels(&kernels(), Architecture::Arm64).unwrap();
    let operation = Clocked { level, clock: BatchClock::Payload(FIRST, LAST) };
    let operations = BTreeMap::from([(0, operation)]);
    let mut batches = RecordBatches::new(MARKS, operations, SourceLines::default());
    read_record(&record.end()[..], &symbols, &mut batches).unwrap();
    let measure = OperationMeasure { number: 0, workload: "x", cycles: &[cycles], around: 1 };
    folded(&batches.profile(&measure, &symbols).unwrap().rows)
}

impl TcgRecord {
    fn of_arm() -> TcgRecord {
        TcgRecord::with(3)
    }

    /// The present block stores or loads a frame record.
    fn frame(&mut self, address: u64, is_load: bool) {
        self.upper(address);
        self.put(&[0xffff_fff4, address as u32 | u32::from(is_load)]);
    }

    /// The host's code with VHE: the vector of this offset, back to the loop; 4 instructions.
    fn left(&mut self, vector: u64) {
        self.block(HYP + vector, HOST, &[NOP, RET]);
        self.block(RUN + 8, HOST, &[NOP, NOP]);
    }

    /// The loop enters the guest: 4 instructions.
    fn entered(&mut self) {
        self.block(RUN, HOST, &[NOP, BL]);
        self.block(ENTER, HOST, &[NOP, ERET]);
    }

    /// A payload's first marks and its clock.
    fn begins(&mut self, left: fn(&mut TcgRecord), entered: fn(&mut TcgRecord)) {
        self.block(PAYLOAD + 0x80, GUEST, &[NOP, STORE, NOP]);
        self.mark(layout::PREPARE);
        self.partial(2);
        left(self);
        entered(self);
        self.block(PAYLOAD + 0x88, GUEST, &[NOP, STORE, NOP]);
        self.mark(layout::begin(0));
        self.partial(2);
        left(self);
        entered(self);
        self.block(FIRST, GUEST, &[CLOCK]);
    }

    fn ends(&mut self) {
        self.block(LAST, GUEST, &[CLOCK]);
        self.block(LAST + 4, GUEST, &[NOP]);
    }
}

const TOP: &str = "0:kvm_arch_vcpu_ioctl_run";

fn with_vhe() -> TcgRecord {
    let mut record = TcgRecord::of_arm();
    record.begins(|record| record.left(0x400), TcgRecord::entered);
    record
}

#[test]
fn a_call_of_the_hypervisor_has_all_that_the_host_does_below_it() {
    let mut record = with_vhe();
    record.block(FIRST + 4, GUEST, &[NOP, HVC]);
    record.left(0x400);
    record.entered();
    record.ends();
    let expected = [
        "payload 2".to_owned(),
        format!("payload;[hvc];{TOP} 4"),
        format!("payload;[hvc];{TOP};0:__guest_enter 2"),
        format!("payload;[hvc];{TOP};0:__kvm_hyp_vector 2"),
    ];
    assert_eq!(sorted(tree(record, 1, 11)), sorted(expected.to_vec()));
}

/// The store that fails is not counted. The handler stores its frame record, is interrupted, loads it again and returns.
#[test]
fn a_failed_access_and_an_interrupted_handler() {
    let mut record = with_vhe();
    record.block(FIRST + 4, GUEST, &[NOP, STORE, NOP]);
    record.partial(2);
    record.left(0x400);
    record.block(RUN + 0x10, HOST, &[BL]);
    record.block(ABORT, HOST, &[PUSH, NOP, BL]);
    record.frame(STACK + 0x800, false);
    record.block(ABORT + 0x100, HOST, &[NOP]);
    record.block(VECTORS + 0x280, HOST, &[NOP, BL]);
    record.block(TICK, HOST, &[NOP, RET]);
    record.block(VECTORS + 0x288, HOST, &[ERET]);
    record.block(ABORT + 0x104, HOST, &[NOP, RET]);
    record.block(ABORT + 12, HOST, &[POP, RET]);
    record.frame(STACK + 0x800, true);
    record.block(RUN + 0x14, HOST, &[NOP]);
    record.entered();
    record.ends();
    let abort = format!("payload;[memory access];{TOP};0:kvm_handle_guest_abort");
    let expected = [
        "payload 1".to_owned(),
        format!("payload;[memory access];{TOP} 6"),
        format!("payload;[memory access];{TOP};0:__guest_enter 2"),
        format!("payload;[memory access];{TOP};0:__kvm_hyp_vector 2"),
        // 3 and 2, and of the one that it calls, which has its name, 1 and 2.
        format!("{abort} 5"),
        format!("{abort};0:kvm_handle_guest_abort 3"),
    ];
    let interrupt = "payload;[memory access];[interrupt];0:vectors";
    let interrupts = [format!("{interrupt} 3"), format!("{interrupt};0:el1h_64_irq_handler 2")];
    assert_eq!(
        sorted(tree(record, 1, 25)),
        sorted([expected.to_vec(), interrupts.to_vec()].concat())
    );
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

/// The emulator's clock counts the whole block of an instruction that traps as an access to a register.
#[test]
fn a_trapped_register_has_the_rest_of_its_block() {
    let mut record = with_vhe();
    record.block(FIRST + 4, GUEST, &[ID, NOP, NOP]);
    record.partial(1);
    record.left(0x400);
    record.entered();
    record.block(FIRST + 8, GUEST, &[NOP, NOP]);
    record.ends();
    let tree = tree(record, 1, 14);
    assert_eq!(tree[0], "payload 5");
    assert_eq!(tree[1], format!("payload;[mrs ID_AA64MMFR0_EL1];{TOP} 4"));
}

/// A block of the kernel's that is executed at EL2.
fn at_el2(record: &mut TcgRecord, address: u64, code: &[&[u8]]) {
    record.block(address.wrapping_add(AT_EL2), HOST.wrapping_sub(AT_EL2), code);
}

/// Without VHE the host's kernel calls KVM at EL2, whose code is the kernel's at other addresses.
#[test]
fn el2_without_vhe_is_called_by_the_kernel() {
    fn left(record: &mut TcgRecord) {
        at_el2(record, NVHE_HYP + 0x400, &[NOP, RET]);
        at_el2(record, NVHE_TRAP + 4, &[ERET]);
        record.block(RUN + 4, HOST, &[NOP]);
    }
    fn entered(record: &mut TcgRecord) {
        record.block(RUN, HOST, &[HVC]);
        at_el2(record, NVHE_HOST + 0x400, &[NOP, BL]);
        at_el2(record, NVHE_TRAP, &[BL]);
        at_el2(record, NVHE_ENTER, &[NOP, ERET]);
    }
    let mut record = TcgRecord::of_arm();
    record.begins(left, entered);
    record.block(FIRST + 4, GUEST, &[HVC]);
    left(&mut record);
    entered(&mut record);
    record.ends();
    let host = format!("payload;[hvc];{TOP};0:__kvm_nvhe___kvm_hyp_host_vector");
    let trap = format!("{host};0:__kvm_nvhe_handle_trap");
    let expected = [
        "payload 1".to_owned(),
        format!("payload;[hvc];{TOP} 2"),
        format!("{host} 2"),
        format!("{trap} 2"),
        format!("{trap};0:__kvm_nvhe___guest_enter 2"),
        format!("{trap};0:__kvm_nvhe___kvm_hyp_vector 2"),
    ];
    assert_eq!(sorted(tree(record, 1, 12)), sorted(expected.to_vec()));
}

/// L1 runs the same kernel at the same addresses, elsewhere in the emulator's memory; its ERET into L2 is an exit to L0.
#[test]
fn l1_is_told_from_l0_by_its_memory() {
    /// L0 hands L2's exit to L1, which enters L2 again.
    fn through_l1(record: &mut TcgRecord) {
        record.left(0x400);
        record.entered();
        record.block(HYP + 0x400, L1, &[NOP, RET]);
        record.block(RUN + 4, L1, &[NOP]);
        record.block(RUN, L1, &[BL]);
        record.block(ENTER, L1, &[NOP, ERET]);
        record.left(0x400);
    }
    let mut record = TcgRecord::of_arm();
    record.begins(through_l1, TcgRecord::entered);
    record.block(FIRST + 4, GUEST, &[HVC]);
    through_l1(&mut record);
    record.entered();
    record.ends();
    let one = "payload;[hvc];1:kvm_arch_vcpu_ioctl_run";
    let two = format!("{one};1:__guest_enter");
    let expected = [
        "payload 1".to_owned(),
        format!("payload;[hvc];{TOP} 4"),
        format!("payload;[hvc];{TOP};0:__guest_enter 2"),
        format!("payload;[hvc];{TOP};0:__kvm_hyp_vector 2"),
        format!("{one} 2"),
        format!("{two} 2"),
        format!("{two};[eret];{TOP} 4"),
        format!("{two};[eret];{TOP};0:__guest_enter 2"),
        format!("{two};[eret];{TOP};0:__kvm_hyp_vector 2"),
        format!("{one};1:__kvm_hyp_vector 2"),
    ];
    assert_eq!(sorted(tree(record, 2, 24)), sorted(expected.to_vec()));
}

#[test]
fn a_record_of_another_architecture_is_refused() {
    let symbols = levels(&kernels(), Architecture::Arm64).unwrap();
    let mut batches = RecordBatches::new(MARKS, BTreeMap::new(), SourceLines::default());
    let problem = read_record(&TcgRecord::new().end()[..], &symbols, &mut batches).unwrap_err();
    assert!(problem.what.contains("another architecture"), "{problem}");
}
