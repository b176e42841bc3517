//! Records of imaginary machines, word by word.

mod arm;
mod bochs;

use std::collections::BTreeMap;

use vmtax_events::{CallKind, CallRow};
use vmtax_guest::layout;
use vmtax_machine::kernel::Architecture;

use super::imagined::*;
use super::source::SourceLines;
use super::symbols::levels;
use super::{
    BatchClock, Clocked, OperationMeasure, OperationProfile, RecordBatches, RecordProblem,
    read_record,
};
use crate::host::MARKS;

/// The tree of a record whose only batch took so many cycles, one of which is the loop's.
fn profile(
    record: &[u8],
    level: u8,
    cycles: u64,
) -> Result<Result<OperationProfile, String>, RecordProblem> {
    profile_lines(record, level, cycles, SourceLines::default())
}

fn profile_lines(
    record: &[u8],
    level: u8,
    cycles: u64,
    lines: SourceLines,
) -> Result<Result<OperationProfile, String>, RecordProblem> {
    let symbols = levels(&kernels(), Architecture::Amd64).unwrap();
    let operation = Clocked { level, clock: BatchClock::Payload(FIRST, LAST) };
    let mut batches = RecordBatches::new(MARKS, BTreeMap::from([(0, operation)]), lines);
    read_record(record, &symbols, &mut batches)?;
    let measure = OperationMeasure { number: 0, workload: "x", cycles: &[cycles], around: 1 };
    Ok(batches.profile(&measure, &symbols))
}

/// `payload;[cpuid];kvm_arch_vcpu_ioctl_run 7`, with the level before each name but the payload's.
fn folded(rows: &[CallRow]) -> Vec<String> {
    let name = |row: &CallRow| match row.kind {
        CallKind::Function if row.name == "payload" => row.name.clone(),
        CallKind::Function => format!("{}:{}", row.level, row.name),
        CallKind::Cause => format!("[{}]", row.name),
        CallKind::Thread | CallKind::Line | CallKind::Instruction => format!("({})", row.name),
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

fn tree(record: TcgRecord, level: u8, cycles: u64) -> Vec<String> {
    folded(&profile(&record.end(), level, cycles).unwrap().unwrap().rows)
}

const HOST_RUN: &str = "0:kvm_arch_vcpu_ioctl_run";

#[test]
fn what_an_exit_takes_hangs_under_its_instruction() {
    let expected = [
        // The NOP before CPUID, the one before RDTSC, and RDTSC, less the loop's.
        "payload 2".to_owned(),
        format!("payload;[cpuid];{HOST_RUN} 5"),
        format!("payload;[cpuid];{HOST_RUN};0:msr_interception 2"),
    ];
    assert_eq!(tree(handled_cpuid(), 1, 10), expected);
}

/// A repeated instruction without an access is done if an interrupt comes after it, as nothing was left to repeat, and not if the host handles its access.
#[test]
fn a_repeated_instruction_is_done_where_nothing_was_left() {
    for (is_handled, cycles) in [(false, 10), (true, 9)] {
        let mut record = TcgRecord::new();
        record.begin();
        record.block(FIRST + 2, GUEST, &[NOP, &[0xf3, 0xaa]]);
        if is_handled {
            record.handle();
        } else {
            record.host(&[NOP, NOP, NOP]);
        }
        record.enter();
        record.block(LAST - 1, GUEST, &[NOP, RDTSC]);
        record.block(LAST + 2, GUEST, &[NOP]);
        let found = profile(&record.end(), 1, cycles).unwrap().unwrap();
        assert_eq!((found.begun, found.undone), (10, u64::from(is_handled)));
    }
}

/// Where the fetch of an instruction that continues in the next page faults, the one before it is done if it has made its access. One that divides may
/// have faulted itself, and so has one in the middle of a page.
#[test]
fn an_instruction_before_one_whose_fetch_faults_is_done() {
    let divides: &[u8] = &[0xf7, 0xf1];
    let cases: [(&[u8], u64, bool, u64); 6] = [
        (NOP, FAULT, false, 10),
        (divides, FAULT, false, 9),
        (STORE, FAULT, true, 10),
        (STORE, FAULT, false, 9),
        (STORE, FAULT - 0x100, true, 9),
        (NOP, FAULT - 0x100, false, 9),
    ];
    for (one, page, accesses, cycles) in cases {
        let mut record = TcgRecord::new();
        record.begin();
        record.block(FIRST + 2, GUEST, &[NOP, CPUID, NOP]);
        record.partial(2);
        record.host(&[]);
        record.block(page - 1 - one.len() as u64, HOST, &[one, STORE]);
        if accesses {
            record.access(STACK);
        }
        record.partial(1);
        record.block(FAULT, HOST, &[NOP, IRET]);
        record.block(RUN + 0x100, HOST, &[NOP]);
        record.enter();
        record.block(LAST - 1, GUEST, &[NOP, RDTSC]);
        record.block(LAST + 2, GUEST, &[NOP]);
        let found = profile(&record.end(), 1, cycles).unwrap();
        assert_eq!(found.map(|found| found.begun), Ok(11), "{one:x?} {page:x} {accesses}");
    }
}

/// What the instruction before the last one accessed, the last one did not: it faults.
#[test]
fn accesses_before_the_last_instruction_begins_are_not_its_own() {
    let mut record = TcgRecord::new();
    record.begin();
    record.block(FIRST + 2, GUEST, &[CPUID]);
    record.host(&[]);
    record.block(FAULT - 4, HOST, &[STORE, STORE]);
    record.access(STACK);
    record.last();
    record.block(FAULT, HOST, &[IRET]);
    record.block(FAULT - 2, HOST, &[STORE]);
    record.access(STACK);
    record.enter();
    record.block(LAST, GUEST, &[RDTSC]);
    record.block(LAST + 2, GUEST, &[NOP]);
    // Ten began; CPUID and a store were not done.
    let found = profile(&record.end(), 1, 7).unwrap();
    assert_eq!(found.map(|found| found.begun), Ok(9));
}

/// QEMU begins a store again, in a block of its own.
#[test]
fn a_store_that_is_begun_again_is_counted_once() {
    let mut record = TcgRecord::new();
    record.begin();
    record.block(FIRST + 2, GUEST, &[CPUID]);
    record.host(&[STORE, NOP]);
    record.partial(3);
    record.block(RUN + 5, HOST, &[STORE]);
    record.block(RUN + 7, HOST, &[NOP]);
    record.enter();
    record.block(LAST, GUEST, &[RDTSC]);
    record.block(LAST + 2, GUEST, &[NOP]);
    assert_eq!(tree(record, 1, 6), [format!("payload;[cpuid];{HOST_RUN} 5")]);
}

/// What a program of the host's does between two readings of its clock.
fn of_program(record: &[u8], clock: BatchClock, cycles: u64) -> Result<OperationProfile, String> {
    let symbols = levels(&kernels(), Architecture::Amd64).unwrap();
    let operations = BTreeMap::from([(0, Clocked { level: 0, clock })]);
    let mut batches = RecordBatches::new(MARKS, operations, SourceLines::default());
    read_record(record, &symbols, &mut batches).map_err(|problem| problem.to_string())?;
    let measure = OperationMeasure { number: 0, workload: "x", cycles: &[cycles], around: 0 };
    batches.profile(&measure, &symbols)
}

/// A program of the host's whose system call runs a guest, waits for another thread and is interrupted.
#[test]
fn a_step_of_a_program_has_the_tree_of_its_calls() {
    const PROGRAM: u64 = 0x40_1000;
    const OTHER: u64 = 0xffff_c900_0002_0000;
    let mut record = TcgRecord::new();
    record.block(PROGRAM, HOST, &[OUT]);
    record.mark(layout::PREPARE);
    record.block(PROGRAM + 1, HOST, &[OUT]);
    record.mark(layout::begin(0));
    record.block(PROGRAM + 8, HOST, &[NOP, RDTSC]);
    // The program calls a function of its own, which KVM's follows as a call, too.
    record.block(PROGRAM + 16, HOST, &[NOP, CALL]);
    record.access(0x7fff_0000);
    record.block(PROGRAM + 32, HOST, &[NOP, CALL]);
    record.access(STACK + 0x900);
    record.enter();
    record.block(0x1000, GUEST, &[NOP, CPUID, NOP]);
    record.partial(2);
    record.handle();
    record.block(RUN + 0x100, HOST, &[NOP, CALL]);
    record.access(STACK + 0x700);
    record.block(FAULT + 0x1000, HOST, &[NOP, RET]);
    record.access(OTHER + 0x700);
    record.block(REFLECTS, HOST, &[NOP, CALL]);
    record.access(OTHER + 0x6f8);
    record.idle(500);
    record.block(FAULT + 0x1000, HOST, &[NOP, RET]);
    record.access(STACK + 0x700);
    record.block(RUN + 0x108, HOST, &[NOP, RET]);
    record.access(STACK + 0x900);
    record.block(PROGRAM + 40, HOST, &[RDTSC]);
    record.block(PROGRAM + 48, HOST, &[OUT]);
    let profile = of_program(&record.end(), BatchClock::Program, 522).unwrap();
    let run = "(VMM);0:[program];0:kvm_arch_vcpu_ioctl_run";
    let expected = [
        "(VMM);0:[program] 5".to_owned(),
        // VMRUN, 3 behind it with the call of its handler, two that call and return.
        format!("{run} 8"),
        "(vCPU 0);1:[program] 1".to_owned(),
        format!("{run};0:msr_interception 2"),
        format!("{run};0:__switch_to 2"),
        "(other threads);0:nested_vmx_vmexit 2".to_owned(),
        "(other threads);0:nested_vmx_vmexit;0:__switch_to 2".to_owned(),
    ];
    assert_eq!(folded(&profile.rows), expected);
    assert_eq!((profile.begun, profile.undone, profile.idle), (23, 1, 500));
}

/// A program that waits on one processor and goes on on another.
#[test]
fn a_step_on_two_processors_has_the_instructions_of_both() {
    const PROGRAM: u64 = 0x40_1000;
    const OTHER: u64 = 0xffff_c900_0002_0000;
    const FIRST_IDLE: u64 = 0xffff_c900_0003_0000;
    let switch = FAULT + 0x1000;
    let mut record = TcgRecord::new();
    record.turn(1);
    record.block(PROGRAM, HOST, &[OUT]);
    record.mark(layout::PREPARE);
    // Another processor is on before the rest of the program.
    record.turn(0);
    record.block(HANDLER, HOST, &[NOP, NOP, NOP]);
    record.turn(1);
    record.block(PROGRAM + 1, HOST, &[OUT]);
    record.mark(layout::begin(0));
    record.block(PROGRAM + 8, HOST, &[NOP, RDTSC]);
    record.turn(0);
    record.block(HANDLER, HOST, &[NOP, NOP]);
    record.turn(1);
    record.block(PROGRAM + 16, HOST, &[NOP, CALL]);
    record.access(STACK + 0x900);
    record.block(RUN, HOST, &[NOP, CALL]);
    record.access(STACK + 0x700);
    // It waits, and its processor goes on with another thread.
    record.block(switch, HOST, &[NOP, RET]);
    record.access(OTHER + 0x700);
    record.block(REFLECTS, HOST, &[NOP]);
    record.turn(0);
    record.block(HANDLER + 2, HOST, &[NOP, CALL]);
    record.access(FIRST_IDLE + 0x700);
    record.idle(500);
    record.block(switch, HOST, &[NOP, RET]);
    record.access(STACK + 0x700);
    record.turn(1);
    record.block(REFLECTS + 1, HOST, &[NOP, NOP]);
    record.partial(1);
    record.turn(0);
    record.block(RUN + 0x108, HOST, &[NOP, RET]);
    record.access(STACK + 0x900);
    record.block(PROGRAM + 40, HOST, &[RDTSC]);
    record.turn(1);
    record.block(REFLECTS + 3, HOST, &[NOP]);
    record.turn(0);
    record.block(PROGRAM + 48, HOST, &[OUT]);
    let profile = of_program(&record.end(), BatchClock::Program, 517).unwrap();
    let expected = [
        "(other threads);0:msr_interception 4",
        "(VMM);0:[program] 3",
        "(VMM);0:[program];0:kvm_arch_vcpu_ioctl_run 4",
        "(VMM);0:[program];0:kvm_arch_vcpu_ioctl_run;0:__switch_to 2",
        "(other threads);0:nested_vmx_vmexit 2",
        "(other threads);0:msr_interception;0:__switch_to 2",
    ];
    assert_eq!(folded(&profile.rows), expected);
    assert_eq!((profile.begun, profile.undone, profile.idle), (17, 0, 500));
}

/// What programs read of the clock elsewhere does not end a workload, and threads that run guests are told apart.
#[test]
fn a_workload_is_all_between_the_readings_that_follow_its_marks() {
    const PROGRAM: u64 = 0x40_1000;
    let mut record = TcgRecord::new();
    record.block(PROGRAM, HOST, &[OUT]);
    record.mark(layout::PREPARE);
    record.block(PROGRAM + 1, HOST, &[RDTSC]);
    record.block(PROGRAM + 16, HOST, &[OUT]);
    record.mark(layout::begin(0));
    record.block(PROGRAM + 17, HOST, &[RDTSC]);
    record.block(PROGRAM + 32, HOST, &[NOP, RDTSC]);
    record.block(PROGRAM + 48, HOST, &[NOP, CALL]);
    record.access(STACK + 0x900);
    record.enter();
    record.block(FIRST, GUEST, &[NOP, CPUID, NOP]);
    record.partial(2);
    record.handle();
    record.block(RUN + 0x108, HOST, &[NOP, RET]);
    record.access(STACK + 0x900);
    record.block(PROGRAM + 64, HOST, &[OUT]);
    record.mark(layout::end(0));
    record.block(PROGRAM + 65, HOST, &[RDTSC]);
    record.block(PROGRAM + 80, HOST, &[OUT]);
    record.mark(layout::DONE);
    let record = record.end();
    let read = |record: &[u8], cycles| of_program(record, BatchClock::Workload, cycles);
    let profile = read(&record, 15).unwrap();
    assert_eq!((profile.begun, profile.undone, profile.idle), (16, 1, 0));
    let level = |level: u8| {
        let of = profile.rows.iter().filter(|row| row.level == level);
        of.map(|row| row.instructions).sum::<u64>()
    };
    assert_eq!((level(0), level(1)), (14, 1));
    let threads = profile.rows.iter().filter(|row| row.kind == CallKind::Thread);
    let names: Vec<&str> = threads.map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["L0 client", "L1 other threads", "L0 vCPU threads"]);
    let problem = read(&record, 16).unwrap_err();
    assert_eq!(problem, "batch 0: the tree has 15 instructions, and the clock advanced by 16");
    for cut in 0..record.len() {
        assert!(read(&record[..cut], 15).unwrap_err().contains("truncated"), "{cut}");
    }
}

#[test]
fn the_samples_for_fuzzing_are_whole() {
    for sample in samples() {
        assert_eq!(check_record(&sample[..sample.len() - 1]).map_err(|p| p.is_empty()), Err(false));
        assert_eq!(check_record(&sample), Ok(()));
    }
}

/// The record of the test above, in which the host's functions have source lines.
#[test]
fn lines_are_parts_of_their_functions() {
    // The handler's second instruction has another line than its first, and what follows it has none.
    let lines = SourceLines::of("svm.c", &[(HANDLER, 7), (HANDLER + 1, 8), (HANDLER + 2, 0)]);
    let profile = profile_lines(&handled_cpuid().end(), 1, 10, lines).unwrap().unwrap();
    let expected = [
        "payload 2".to_owned(),
        format!("payload;[cpuid];{HOST_RUN} 5"),
        format!("payload;[cpuid];{HOST_RUN};0:msr_interception;(svm.c:7) 1"),
        format!("payload;[cpuid];{HOST_RUN};0:msr_interception;(svm.c:8) 1"),
    ];
    assert_eq!(folded(&profile.rows), expected);
    let lines = profile.rows.iter().filter(|row| row.kind == CallKind::Line);
    assert!(lines.clone().all(|row| row.level == 0 && row.calls == 0));
}

#[test]
fn a_tree_that_does_not_add_up_is_refused() {
    let record = || {
        let mut record = TcgRecord::new();
        record.begin();
        record.block(LAST, GUEST, &[RDTSC]);
        record.block(LAST + 2, GUEST, &[NOP]);
        record.end()
    };
    assert!(profile(&record(), 1, 1).unwrap().is_ok());
    let problem = profile(&record(), 1, 2).unwrap().unwrap_err();
    assert_eq!(problem, "batch 0: the tree has 1 instructions, and the clock advanced by 2");
    // At another level its clock is not looked at.
    let problem = profile(&record(), 2, 1).unwrap().unwrap_err();
    assert_eq!(problem, "0 batches were recorded and 1 measured");
}

#[test]
fn waiting_is_counted_beside_the_tree() {
    let mut record = TcgRecord::new();
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
fn interrupts_of_the_host_are_not_calls() {
    let mut record = TcgRecord::new();
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
    let mut record = TcgRecord::new();
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
        let mut record = TcgRecord::new();
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
    let mut record = TcgRecord::new();
    let enters_l1 = |record: &mut TcgRecord| {
        record.host(&[]);
        record.enter();
        record.block(RUN + 3, L1, &[NOP, NOP, NOP]);
    };
    let resumes = |record: &mut TcgRecord| {
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
        let mut record = TcgRecord::new();
        record.begin();
        record
    };
    let refused = |bytes: &[u8]| profile(bytes, 1, 0).unwrap_err().to_string();
    let end = |mut record: TcgRecord, words: &[u32]| {
        record.put(words);
        record.words
    };
    for (bytes, problem) in [
        (Vec::new(), "byte 0 of the record: it is truncated here"),
        (b"VMTAXTCGxxxxxxxx".to_vec(), "it has version 2021161080; this program reads version 4"),
        (vec![0; 64], "it is no record of vmtax's recorders"),
        (whole().words, "it is truncated here"),
        (end(whole(), &[12345]), "block 12345 is executed before its definition"),
        (end(whole(), &[0xffff_fff0]), "0xfffffff0 is not a type of entry"),
        (end(whole(), &[0xffff_fffe, 999, 0, 0, 0, 0, 0, 0]), "block 999 is invalid"),
        (end(whole(), &[0xffff_fffe, u32::MAX >> 1, 1, 1, 0, 0, 0, 0]), "is invalid"),
        (
            end(whole(), &[0xffff_fffe, 999, 1, 1, 0, 0, 0, 0, 0x9002, 0]),
            "its instructions do not match its code",
        ),
        (end(whole(), &[0xffff_fffe, 0, 1, 1, 0, 0, 0, 0, 0x9001, 0]), "block 0 is defined twice"),
        (end(whole(), &[0b100 << 29 | 99, 0]), "instructions, not 99"),
    ] {
        let found = refused(&bytes);
        assert!(found.contains(problem), "{found:?} lacks {problem:?}");
    }
}

/// A cut anywhere is an error, and never anything worse.
#[test]
fn every_cut_is_an_error() {
    let mut record = TcgRecord::new();
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
fn corruption_anywhere_does_not_panic() {
    let mut record = TcgRecord::new();
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
