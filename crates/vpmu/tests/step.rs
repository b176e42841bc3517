//! Counts of real programs, without error: what a guest's counters say of a stepped program must be what its algorithm
//! takes, however the counters are stopped, sampled, saved and moved on the way.
//!
//! The two sides know nothing of each other: one is the processor stepping machine code, the other a formula, or the
//! same algorithm in Rust that counts what each of its parts costs.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions, FlowControl, IcedError};
use vmtax_vpmu::host::step::{InstructionKind, StepError, StepHost};
use vmtax_vpmu::{EventHost, Intel, Pmu, PmuModel, Policy};

type AssembledStep = Result<(), IcedError>;

/// Instructions and branches.
type StepCounts = (u64, u64);

/// A program for a number, and what it takes.
struct ProgramFamily {
    name: &'static str,
    program: fn(&mut CodeAssembler, u32) -> AssembledStep,
    takes: fn(u64) -> StepCounts,
    numbers: [u32; 3],
}

const FAMILIES: [ProgramFamily; 16] = [
    family("straight line", nops, |n| (n, 0), [1, 10, 500]),
    family("loop", counted_loop, |n| (1 + 2 * n, n), [1, 9, 400]),
    family("branch to itself", own_loop, |n| (1 + n, n), [1, 7, 600]),
    family("nested loops", nested, |n| (1 + n * (3 + 2 * 5), n * 6), [1, 6, 40]),
    family("calls", calls, |n| (2 + 4 * n, 1 + 3 * n), [1, 8, 150]),
    family("recursion", recursion, |n| (2 + 4 * n, 1 + 3 * n), [1, 5, 120]),
    family("calls through a register", indirect, |n| (3 + 4 * n, 1 + 3 * n), [1, 4, 100]),
    family("branches not taken", not_taken, |n| (2 * n, n), [1, 12, 200]),
    family(
        "every other branch taken",
        alternating,
        |n| (1 + 4 * n + n.div_ceil(2), 2 * n),
        [1, 10, 151],
    ),
    family("repeated store", repeated_store, |_| (2, 0), [0, 1, 900]),
    family("repeated search", repeated_search, |_| (3, 0), [0, 2, 300]),
    family("loop of repeated stores", repeated_loop, |n| (1 + 4 * n, n), [1, 3, 30]),
    family("Fibonacci", fibonacci, fibonacci_takes, [1, 5, 9]),
    family("Collatz", collatz, collatz_takes, [2, 7, 27]),
    family("Euclid", euclid, euclid_takes, [1, 144, 1001]),
    family("sieve", sieve, sieve_takes, [4, 30, 100]),
];

const fn family(
    name: &'static str,
    program: fn(&mut CodeAssembler, u32) -> AssembledStep,
    takes: fn(u64) -> StepCounts,
    numbers: [u32; 3],
) -> ProgramFamily {
    ProgramFamily { name, program, takes, numbers }
}

fn nops(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    (0..n).try_for_each(|_| a.nop())
}

/// Does something n times, counted down in ecx.
fn times(
    a: &mut CodeAssembler,
    n: u32,
    body: impl FnOnce(&mut CodeAssembler) -> AssembledStep,
) -> AssembledStep {
    let mut top = a.create_label();
    a.mov(ecx, n)?;
    a.set_label(&mut top)?;
    body(a)?;
    a.dec(ecx)?;
    a.jnz(top)
}

/// Calls a function once, which follows the call and is skipped at the end. The body gets its label.
fn one_call(
    a: &mut CodeAssembler,
    body: impl FnOnce(&mut CodeAssembler, CodeLabel) -> AssembledStep,
) -> AssembledStep {
    let (mut function, mut end) = (a.create_label(), a.create_label());
    a.call(function)?;
    a.jmp(end)?;
    a.set_label(&mut function)?;
    body(a, function)?;
    a.ret()?;
    a.set_label(&mut end)?;
    a.zero_bytes()
}

fn counted_loop(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    times(a, n, |_| Ok(()))
}

fn own_loop(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    let mut top = a.create_label();
    a.mov(ecx, n)?;
    a.set_label(&mut top)?;
    a.loop_(top)
}

fn nested(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    times(a, n, |a| {
        let mut inner = a.create_label();
        a.mov(edx, 5)?;
        a.set_label(&mut inner)?;
        a.dec(edx)?;
        a.jnz(inner)
    })
}

fn calls(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    call_loop(a, n, false)
}

fn indirect(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    call_loop(a, n, true)
}

/// A loop of calls to an empty function, and a jump over it at the end.
fn call_loop(a: &mut CodeAssembler, n: u32, through_register: bool) -> AssembledStep {
    let (mut function, mut end) = (a.create_label(), a.create_label());
    if through_register {
        a.lea(rax, ptr(function))?;
    }
    times(a, n, |a| if through_register { a.call(rax) } else { a.call(function) })?;
    a.jmp(end)?;
    a.set_label(&mut function)?;
    a.ret()?;
    a.set_label(&mut end)?;
    a.zero_bytes()
}

fn recursion(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    a.mov(ecx, n)?;
    one_call(a, |a, function| {
        let mut done = a.create_label();
        a.dec(ecx)?;
        a.jz(done)?;
        a.call(function)?;
        a.set_label(&mut done)
    })
}

fn not_taken(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    let mut end = a.create_label();
    for _ in 0..n {
        a.test(eax, eax)?;
        a.jnz(end)?;
    }
    a.set_label(&mut end)?;
    a.zero_bytes()
}

fn alternating(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    times(a, n, |a| {
        let mut even = a.create_label();
        a.test(ecx, 1)?;
        a.jz(even)?;
        a.nop()?;
        a.set_label(&mut even)
    })
}

fn repeated_store(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    a.mov(ecx, n)?;
    a.rep().stosb()
}

/// For a byte that is not there.
fn repeated_search(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    a.mov(eax, 1)?;
    a.mov(ecx, n)?;
    a.repne().scasb()
}

fn repeated_loop(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    let mut top = a.create_label();
    a.mov(edx, n)?;
    a.set_label(&mut top)?;
    a.mov(ecx, 17)?;
    a.rep().stosq()?;
    a.dec(edx)?;
    a.jnz(top)
}

/// By the definition: a function that calls itself twice.
fn fibonacci(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    a.mov(edx, n)?;
    one_call(a, |a, function| {
        let mut done = a.create_label();
        a.cmp(edx, 2)?;
        a.jb(done)?;
        a.push(rdx)?;
        a.dec(edx)?;
        a.call(function)?;
        a.pop(rdx)?;
        a.sub(edx, 2)?;
        a.call(function)?;
        a.set_label(&mut done)
    })
}

fn fibonacci_takes(n: u64) -> StepCounts {
    fn function(n: u64) -> StepCounts {
        if n < 2 {
            return (3, 2);
        }
        let (one, two) = (function(n - 1), function(n - 2));
        (9 + one.0 + two.0, 4 + one.1 + two.1)
    }
    let (instructions, branches) = function(n);
    (3 + instructions, 2 + branches)
}

fn collatz(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    let (mut top, mut odd, mut next) = (a.create_label(), a.create_label(), a.create_label());
    a.mov(eax, n)?;
    a.set_label(&mut top)?;
    a.test(eax, 1)?;
    a.jnz(odd)?;
    a.shr(eax, 1)?;
    a.jmp(next)?;
    a.set_label(&mut odd)?;
    a.lea(eax, ptr(rax + rax * 2 + 1))?;
    a.set_label(&mut next)?;
    a.cmp(eax, 1)?;
    a.jne(top)
}

fn collatz_takes(mut n: u64) -> StepCounts {
    let mut counts = (1, 0);
    while n != 1 {
        let odd = n % 2 == 1;
        n = if odd { 3 * n + 1 } else { n / 2 };
        let (instructions, branches) = if odd { (5, 2) } else { (6, 3) };
        counts = (counts.0 + instructions, counts.1 + branches);
    }
    counts
}

/// The greatest common divisor with 89.
fn euclid(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    let mut top = a.create_label();
    a.mov(eax, n)?;
    a.mov(ecx, 89)?;
    a.set_label(&mut top)?;
    a.xor(edx, edx)?;
    a.div(ecx)?;
    a.mov(eax, ecx)?;
    a.mov(ecx, edx)?;
    a.test(ecx, ecx)?;
    a.jnz(top)
}

fn euclid_takes(n: u64) -> StepCounts {
    let (mut a, mut b, mut rounds) = (n, 89, 0);
    loop {
        (a, b) = (b, a % b);
        rounds += 1;
        if b == 0 {
            assert_eq!(a, if n.is_multiple_of(89) { 89 } else { 1 });
            return (2 + 6 * rounds, rounds);
        }
    }
}

/// Marks the multiples of all numbers below n.
fn sieve(a: &mut CodeAssembler, n: u32) -> AssembledStep {
    let [mut number, mut marking, mut marked, mut next] = [(); 4].map(|()| a.create_label());
    a.mov(ecx, 2)?;
    a.set_label(&mut number)?;
    a.cmp(byte_ptr(rdi + rcx), 0)?;
    a.jne(next)?;
    a.lea(edx, ptr(rcx + rcx))?;
    a.set_label(&mut marking)?;
    a.cmp(edx, n)?;
    a.jae(marked)?;
    a.mov(byte_ptr(rdi + rdx), 1)?;
    a.add(edx, ecx)?;
    a.jmp(marking)?;
    a.set_label(&mut marked)?;
    a.nop()?;
    a.set_label(&mut next)?;
    a.inc(ecx)?;
    a.cmp(ecx, n)?;
    a.jb(number)
}

fn sieve_takes(n: u64) -> StepCounts {
    let mut composite = vec![false; n as usize];
    let (mut instructions, mut branches) = (1, 0);
    for number in 2..n as usize {
        (instructions, branches) = (instructions + 5, branches + 2);
        if composite[number] {
            continue;
        }
        // The first multiple; the last test and what follows it.
        (instructions, branches) = (instructions + 4, branches + 1);
        for multiple in (2 * number..n as usize).step_by(number) {
            composite[multiple] = true;
            (instructions, branches) = (instructions + 5, branches + 2);
        }
    }
    (instructions, branches)
}

fn assemble(family: &ProgramFamily, n: u32) -> Vec<u8> {
    let mut a = CodeAssembler::new(64).unwrap();
    (family.program)(&mut a, n).unwrap();
    a.assemble(0).unwrap()
}

fn payloads() -> impl Iterator<Item = (String, Vec<u8>, StepCounts)> {
    FAMILIES.iter().flat_map(|family| {
        family.numbers.iter().map(move |n| {
            let name = format!("{} of {n}", family.name);
            (name, assemble(family, *n), (family.takes)(u64::from(*n)))
        })
    })
}

const WIDTH: u64 = 1 << 48;
const PERIOD: u64 = 7;

/// Instructions on fixed counter 0 and by samples on general counter 1, branches on general counter 0.
fn program_counters(pmu: &mut Pmu<StepHost>) {
    pmu.write(0x186, 0x41_00c4).unwrap();
    pmu.write(0x187, 0x51_00c0).unwrap();
    pmu.write(0x4c2, WIDTH - PERIOD).unwrap();
    pmu.write(0x38d, 0x2).unwrap();
    pmu.write(0x38f, 0x1_0000_0003).unwrap();
}

/// Runs a program in pieces, between which the counters are stopped, reprogrammed, scheduled, and moved to the other
/// policy. Returns the counts and the samples.
fn profile(code: &[u8], mut policy: Policy, piece: u64) -> (StepCounts, u64) {
    let intel = Intel { fixed: 1, unavailable: !(1 << 1 | 1 << 5), ..Intel::default() };
    let mut pmu = Pmu::new(PmuModel::Intel(intel), StepHost::new(code).unwrap(), policy).unwrap();
    program_counters(&mut pmu);
    let mut samples = 0;
    let mut branches = 0;
    for round in 0.. {
        // Instruction by instruction, as a sample is taken by the guest at once.
        for _ in 0..piece {
            if pmu.host_mut().run(1).unwrap() == 0 {
                branches += pmu.read(0xc1).unwrap();
                return ((pmu.read(0x309).unwrap(), branches), samples);
            }
            if pmu.deliver(false) {
                assert_eq!(pmu.read(0x38e), Ok(2));
                pmu.write(0x390, 2).unwrap();
                pmu.write(0x4c2, WIDTH - PERIOD).unwrap();
                samples += 1;
            }
        }
        match round % 4 {
            0 => {
                pmu.write(0x38f, 0).unwrap();
                pmu.write(0x38f, 0x1_0000_0003).unwrap();
            }
            // Another event in between, and back.
            1 => {
                branches += pmu.read(0xc1).unwrap();
                pmu.write(0x186, 0x41_00c0).unwrap();
                pmu.write(0xc1, 0).unwrap();
                pmu.write(0x186, 0x41_00c4).unwrap();
            }
            2 => {
                pmu.slice_end();
                pmu.slice_begin();
            }
            _ => {
                let at = Policy::ALL.iter().position(|one| *one == policy).unwrap();
                policy = Policy::ALL[(at + 1) % Policy::ALL.len()];
                let state = pmu.save();
                pmu = Pmu::restore(state, pmu.into_host(), policy).unwrap();
                pmu.slice_begin();
            }
        }
    }
    unreachable!("the rounds do not end");
}

#[test]
fn counts_of_every_payload_are_exact() {
    let mut payloads: Vec<_> = payloads().collect();
    assert!(payloads.len() >= 30);
    for (name, code, expected) in payloads.drain(..) {
        for policy in Policy::ALL {
            let (counts, samples) = profile(&code, policy, 11);
            assert_eq!(counts, expected, "{name} {policy:?}");
            assert_eq!(samples, expected.0 / PERIOD, "{name} {policy:?}");
        }
    }
}

#[test]
fn pieces_of_any_length_count_the_same() {
    let family = FAMILIES.iter().find(|f| f.name == "sieve").unwrap();
    let (code, expected) = (assemble(family, 30), (family.takes)(30));
    for piece in [1, 2, 3, 5, 64, 10_000] {
        assert_eq!(profile(&code, Policy::Reuse, piece).0, expected, "{piece}");
    }
}

#[test]
fn branches_are_those_that_a_disassembler_knows() {
    let mut met = [0; 2];
    for (name, code, _) in payloads() {
        let mut decoder = Decoder::new(64, &code, DecoderOptions::NONE);
        while decoder.can_decode() {
            let at = decoder.position();
            let instruction = decoder.decode();
            let repeated = instruction.is_string_instruction()
                && (instruction.has_rep_prefix() || instruction.has_repne_prefix());
            let expected = match instruction.flow_control() {
                FlowControl::Next if repeated => InstructionKind::Repeated,
                FlowControl::Next => InstructionKind::Other,
                _ => InstructionKind::Branch,
            };
            assert_eq!(InstructionKind::of(&code[at..]), expected, "{name} {instruction:?}");
            met[usize::from(expected == InstructionKind::Branch)] += 1;
        }
    }
    assert!(met.iter().all(|n| *n > 100), "{met:?}");
    // Encodings that no payload has.
    let table: [(&[u8], InstructionKind); 14] = [
        (&[0x0f, 0x84, 0, 0, 0, 0], InstructionKind::Branch),
        (&[0x2e, 0x75, 0], InstructionKind::Branch),
        (&[0x3e, 0xff, 0xe0], InstructionKind::Branch),
        (&[0x41, 0xff, 0xd0], InstructionKind::Branch),
        (&[0xf2, 0xc3], InstructionKind::Branch),
        (&[0xc2, 8, 0], InstructionKind::Branch),
        (&[0x67, 0xe3, 0], InstructionKind::Branch),
        (&[0xff, 0xc0], InstructionKind::Other),
        (&[0x48, 0xff, 0x28], InstructionKind::Far),
        (&[0x0f, 0x05], InstructionKind::Far),
        (&[0xcb], InstructionKind::Far),
        (&[0xf3, 0x48, 0xa5], InstructionKind::Repeated),
        (&[0xf3, 0x90], InstructionKind::Other),
        (&[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0], InstructionKind::Other),
    ];
    for (code, kind) in table {
        assert_eq!(InstructionKind::of(code), kind, "{code:x?}");
    }
}

#[test]
fn programs_that_leave_their_code_are_errors() {
    let run = |code: &[u8]| StepHost::new(code).unwrap().run(100);
    // UD2; a jump far behind the end; a system call; a read of address 0.
    assert!(matches!(run(&[0x90, 0x0f, 0x0b]), Err(StepError::Signal { signal: 4, offset: 1 })));
    assert!(matches!(run(&[0xeb, 0x40]), Err(StepError::Outside(0x42))));
    assert!(matches!(run(&[0x90, 0x0f, 0x05]), Err(StepError::Far(1))));
    assert!(matches!(run(&[0x8a, 0x00]), Err(StepError::Signal { signal: 11, offset: 0 })));
    assert_eq!(run(&[]).unwrap(), 0);
    let host = StepHost::new(&[0x90]).unwrap();
    assert_eq!(host.probe(vmtax_vpmu::PmuEvent::Cycles), Err(vmtax_vpmu::Trouble::NoSuchEvent));
}
