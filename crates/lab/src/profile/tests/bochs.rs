//! The same machines under Bochs.

use std::collections::BTreeMap;

use vmtax_events::CallKind;
use vmtax_guest::layout;
use vmtax_machine::kernel::Architecture;

use super::HOST_RUN;
use super::{assert_survives_damage, folded, profile};
use crate::host::MARKS;
use crate::profile::imagined::bochs::{BochsRecord, CPUID, SVM_CPUID};
use crate::profile::imagined::{
    AFTER_GUEST, FAULT, FIRST, HANDLER, REFLECTS, REFLECTS_SVM, RUN, STACK, TICK, kernels,
};
use crate::profile::source::SourceLines;
use crate::profile::symbols::levels;
use crate::profile::{
    BatchClock, Clocked, OperationMeasure, OperationProfile, RecordBatches, RecordProblem,
    read_record,
};

const INTERRUPT: u32 = 1;
const VMRESUME: u32 = 24;
const VMRUN: u32 = 0x80;

fn tree(bytes: &[u8], level: u8, cycles: u64) -> Vec<String> {
    folded(&profile(bytes, level, cycles).unwrap().unwrap().rows)
}

#[test]
fn what_an_exit_takes_hangs_under_its_instruction() {
    let mut record = BochsRecord::new();
    record.begin();
    // A write to another port is no mark.
    record.run(FIRST + 2, 2);
    record.writes(layout::DEVICE_PORT);
    record.host(0);
    record.run(FIRST + 4, 2);
    record.leaves(CPUID, 0);
    record.run(AFTER_GUEST, 2);
    record.run(RUN, 3);
    record.branch(12, STACK + 0x800);
    record.run(HANDLER, 2);
    record.branch(14, STACK + 0x800);
    record.run(RUN + 0x100, 2);
    record.enters();
    let expected = [
        // OUT, CPUID, one before each, and the reading of the clock, less the loop's.
        "payload 4".to_owned(),
        "payload;[out];0:vmx_vmexit 1".to_owned(),
        format!("payload;[out];{HOST_RUN} 1"),
        "payload;[cpuid];0:vmx_vmexit 2".to_owned(),
        format!("payload;[cpuid];{HOST_RUN} 5"),
        format!("payload;[cpuid];{HOST_RUN};0:msr_interception 2"),
    ];
    assert_eq!(tree(&record.end(), 1, 16), expected);
}

/// An interrupt comes between two instructions and takes a tick of the clock, which is counted where it is handled.
#[test]
fn exits_between_instructions_take_a_tick() {
    let mut record = BochsRecord::new();
    record.begin();
    record.run(FIRST + 2, 1);
    record.tsc += 1;
    record.leaves(INTERRUPT, 0);
    record.run(AFTER_GUEST, 1);
    record.put(0xa2, &[0xec]);
    record.run(TICK, 2);
    record.branch(15, 0);
    record.run(RUN, 1);
    record.enters();
    let found = profile(&record.end(), 1, 7).unwrap().unwrap();
    assert_eq!((found.begun, found.undone, found.idle), (7, 0, 0));
    assert!(folded(&found.rows).contains(&"payload;[interrupt];0:vmx_vmexit 2".to_owned()));
    let interrupt =
        "payload;[interrupt];[interrupt];0:asm_sysvec_apic_timer_interrupt 2".to_owned();
    assert!(folded(&found.rows).contains(&interrupt), "{:?}", folded(&found.rows));
}

/// The batch is what the machine executes from after the first reading of the clock to the second one. Ports that are no marks end nothing.
#[test]
fn a_workload_is_all_between_the_marks_of_a_program_of_the_host() {
    const PROGRAM: u64 = 0x40_1000;
    let mut record = BochsRecord::of_host(PROGRAM);
    record.run(PROGRAM + 1, 2);
    record.host_writes(layout::begin(0));
    record.run(PROGRAM + 3, 1);
    record.run(PROGRAM + 4, 2);
    record.branch(17, 0);
    record.run(RUN, 2);
    record.enters();
    record.run(FIRST, 3);
    record.leaves(CPUID, 0);
    record.host(3);
    // The address of a mark's clock, by other code.
    record.run(PROGRAM + 3, 1);
    record.leaves(CPUID, 0);
    record.run(AFTER_GUEST, 1);
    record.run(RUN, 1);
    record.branch(18, 0);
    record.run(PROGRAM + 3, 3);
    record.host_writes(layout::DEVICE_PORT);
    record.run(PROGRAM + 0x20, 1);
    record.host_writes(layout::end(0));
    record.run(PROGRAM + 0x21, 1);
    record.run(PROGRAM + 0x22, 2);
    record.host_writes(layout::DONE);
    let mut bytes = record.bytes;
    bytes.push(0xff);
    let symbols = levels(&kernels(), Architecture::Amd64).unwrap();
    let operations = BTreeMap::from([(0, Clocked { level: 0, clock: BatchClock::Vmm })]);
    let mut batches = RecordBatches::new(MARKS, operations, SourceLines::default());
    read_record(&bytes[..], &symbols, &mut batches).unwrap();
    let measure = OperationMeasure { number: 0, workload: "x", cycles: &[20], around: 0 };
    let profile = batches.profile(&measure, &symbols).unwrap();
    let level = |level: u8| {
        let of = profile.rows.iter().filter(|row| row.level == level);
        of.map(|row| row.instructions).sum::<u64>()
    };
    assert_eq!((level(0), level(1), profile.begun), (16, 4, 20));
    let threads = profile.rows.iter().filter(|row| row.kind == CallKind::Thread);
    let names: Vec<&str> = threads.map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["L0 vCPU threads", "L1 other threads"]);
}

#[test]
fn halts_are_waiting_and_exceptions_are_calls() {
    let mut record = BochsRecord::new();
    record.begin();
    record.run(FIRST + 2, 1);
    record.leaves(CPUID, 0);
    record.host(1);
    record.run(FIRST + 4, 1);
    record.leaves(CPUID, 0);
    record.run(AFTER_GUEST, 1);
    record.run(RUN, 1);
    // It faults, and is begun again.
    record.clock = Some(0xa3);
    record.put(0xa2, &[14]);
    record.run(FAULT, 3);
    record.branch(15, 0);
    // The next instruction's page is not there: it has not begun.
    record.clock = Some(0xa3);
    record.tsc += 1;
    record.put(0xa2, &[14]);
    record.run(FAULT, 1);
    record.branch(15, 0);
    record.run(RUN, 1);
    // It halts.
    record.clock = Some(0xa4);
    record.tsc += 500;
    record.run(RUN + 1, 1);
    record.enters();
    let found = profile(&record.end(), 1, 515).unwrap().unwrap();
    assert_eq!((found.begun, found.idle), (15, 500));
    let rows = folded(&found.rows);
    let fault = format!("payload;[cpuid];{HOST_RUN};0:asm_exc_page_fault 5");
    assert!(rows.contains(&fault), "{rows:?}");
}

/// L2 leaves, the host hands the exit to L1, whose VMRESUME or VMRUN brings L2 back.
fn nested(svm: bool) -> Vec<u8> {
    let (reflects, cpuid, resume) =
        if svm { (REFLECTS_SVM, SVM_CPUID, VMRUN) } else { (REFLECTS, CPUID, VMRESUME) };
    let enters_l1 = |record: &mut BochsRecord| {
        record.run(AFTER_GUEST, 1);
        record.run(reflects, 1);
        record.host(0);
        record.run(AFTER_GUEST, 1);
    };
    let resumes = |record: &mut BochsRecord| {
        // The host handles an exit of L1 meanwhile, and enters L1 again.
        record.run(RUN, 1);
        record.leaves(cpuid, 0);
        record.host(0);
        record.run(RUN + 1, 1);
        record.leaves(resume, 0);
        record.host(1);
    };
    let mut record = BochsRecord::with(svm);
    enters_l1(&mut record);
    resumes(&mut record);
    record.run(layout::CODE + 1, 1);
    record.writes(layout::begin(0));
    enters_l1(&mut record);
    resumes(&mut record);
    record.run(FIRST, 1);
    record.run(FIRST + 2, 1);
    record.leaves(cpuid, 0);
    enters_l1(&mut record);
    resumes(&mut record);
    record.end()
}

#[test]
fn the_guests_guest_and_its_hypervisor() {
    let inner = "payload;[cpuid];1:kvm_arch_vcpu_ioctl_run";
    for (svm, reflects, resume) in
        [(false, "nested_vmx_vmexit", "[vmresume]"), (true, "nested_svm_vmexit", "[vmrun]")]
    {
        let expected = [
            "payload 1".to_owned(),
            "payload;[cpuid];0:vmx_vmexit 2".to_owned(),
            format!("payload;[cpuid];0:{reflects} 1"),
            format!("payload;[cpuid];{HOST_RUN} 1"),
            "payload;[cpuid];1:vmx_vmexit 1".to_owned(),
            format!("{inner} 2"),
            format!("{inner};[cpuid];0:vmx_vmexit 1"),
            format!("{inner};[cpuid];{HOST_RUN} 1"),
            format!("{inner};{resume};0:vmx_vmexit 1"),
            format!("{inner};{resume};{HOST_RUN} 2"),
        ];
        assert_eq!(tree(&nested(svm), 2, 14), expected);
    }
}

fn refused(bytes: &[u8]) -> String {
    let found: Result<Result<OperationProfile, String>, RecordProblem> = profile(bytes, 1, 0);
    found.unwrap_err().to_string()
}

#[test]
fn damaged_records_are_refused_in_a_sentence() {
    let with = |more: &[u8]| {
        let mut record = BochsRecord::new();
        record.begin();
        record.bytes.extend(more);
        record.bytes
    };
    let header = |more: &[u8]| {
        let mut bytes = BochsRecord::new().bytes[..16].to_vec();
        bytes.extend(more);
        bytes
    };
    let clock = |tsc: u64| [&[0xa3][..], &tsc.to_le_bytes()].concat();
    let lost = [with(&clock(1002)), clock(1009)].concat();
    for (bytes, problem) in [
        (b"VMTAXBCHxxxxxxxx".to_vec(), "it has version 2021161080; this program reads version 2"),
        (with(&[]), "it is truncated here"),
        (with(&[0xb0]), "0xb0 is not a type of entry"),
        (with(&[0xa0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), "it is truncated here"),
        (with(&[0xa5, 0x72, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), "it is truncated here"),
        (with(&[0xa1]), "a guest that already runs is entered"),
        (header(&[0xa5; 13]), "a guest leaves before the record begins"),
        (header(&[1]), "an instruction begins before the record does"),
        (header(&[0xa0; 13]), "a guest leaves before the record begins"),
        (header(&[0xa1]), "a guest that already runs is entered"),
        (
            [BochsRecord::new().bytes, vec![0xa0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat(),
            "a guest that was not entered exits",
        ),
        (lost, "instructions and the clock advanced by"),
        (b"VMTAXERR\x05\0\0\0why\0\0\0\0\0".to_vec(), "why"),
        (b"VMTAXERR\xff\xff\xff\xffwhy".to_vec(), "it is truncated here"),
    ] {
        let found = refused(&bytes);
        assert!(found.contains(problem), "{found:?} lacks {problem:?}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}

/// A cut anywhere is an error, and never anything worse.
#[test]
fn every_cut_is_an_error() {
    let mut record = BochsRecord::new();
    record.begin();
    record.run(FIRST + 2, 1);
    record.leaves(CPUID, 0);
    record.host(1);
    let bytes = record.end();
    for length in 0..bytes.len() {
        assert!(profile(&bytes[..length], 1, 0).is_err(), "{length}");
    }
    assert!(profile(&bytes, 1, 0).is_ok());
}

#[test]
fn corruption_anywhere_does_not_panic() {
    let mut record = BochsRecord::new();
    record.begin();
    record.run(FIRST + 2, 2);
    record.leaves(CPUID, 0);
    record.run(AFTER_GUEST, 2);
    record.branch(12, STACK + 0x800);
    record.run(HANDLER, 2);
    record.put(0xa2, &[0xec]);
    record.run(TICK, 2);
    record.branch(15, 0);
    record.branch(14, STACK + 0x800);
    record.clock = Some(0xa4);
    record.tsc += 50;
    record.run(RUN, 2);
    record.enters();
    assert_survives_damage(&record.end(), 1);
    assert_survives_damage(&nested(false), 2);
    assert_survives_damage(&nested(true), 2);
}
