//! How fast devices do each operation, page by page: wall time, since the processor waits meanwhile.

use std::time::Instant;

use super::{Choice, Dispatcher, Op, OperationValue};
use crate::delta::{Delta, ENTRY};
use crate::{Cpu, PAGE};

/// Room for a delta record: with more, the page itself is shorter.
const ROOM: usize = PAGE / 2;
/// One byte in this many differs between two states.
const STRIDE: usize = 256;

/// A page as devices want it.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct AlignedPage([u8; PAGE]);

/// Bytes a second of each operation over so much memory, the median of the rounds; `None` where a device did not do all of it, or did it wrong.
pub fn speeds(
    dispatcher: &mut Dispatcher,
    bytes: usize,
    rounds: u32,
) -> Vec<(&'static str, Option<f64>)> {
    let count = (bytes / PAGE).max(1);
    let zero = vec![AlignedPage([0; PAGE]); count];
    let mut noise = AlignedPage([0; PAGE]);
    let mut state = 1u64;
    for word in noise.0.as_chunks_mut::<8>().0 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *word = (state ^ state >> 29).to_le_bytes();
    }
    let mut changed = noise;
    for byte in changed.0.iter_mut().step_by(STRIDE) {
        *byte ^= 1;
    }
    let mut record = AlignedPage([0; PAGE]);
    let cpu = Cpu::best();
    let size = ENTRY * PAGE / STRIDE;
    let delta = Delta::Differs(size);
    let crc = OperationValue::Crc(cpu.crc32c(0, &noise.0));
    if cpu.delta_create(&noise.0, &changed.0, &mut record.0[..ROOM]) != Ok(delta) {
        return Vec::new();
    }
    let (old, new) = (vec![noise; count], vec![changed; count]);
    let (mut copy, mut made, records) = (old.clone(), zero.clone(), vec![record; count]);
    let at = |pages: &[AlignedPage], i: usize| pages[i].0.as_ptr();
    let (to, made) = (copy.as_mut_ptr().cast::<u8>(), made.as_mut_ptr().cast::<u8>());
    let of = |start: *mut u8, i: usize| start.wrapping_add(i * PAGE);
    type Make<'a> = &'a dyn Fn(usize) -> Op;
    let (len, cap, size) = (PAGE, ROOM as u32, size as u32);
    let operations: [(&str, OperationValue, Make<'_>); 7] = [
        ("is zero", OperationValue::Equal(true), &|i| Op::Compval {
            src: at(&zero, i),
            len,
            word: 0,
        }),
        // The copy is not yet written to.
        ("compare", OperationValue::Equal(true), &|i| Op::Compare {
            a: at(&old, i),
            b: of(to, i),
            len,
        }),
        ("copy", OperationValue::Done, &|i| Op::Copy { src: at(&old, i), dst: of(to, i), len }),
        ("crc32c", crc, &|i| Op::Crc { src: at(&old, i), len, seed: 0 }),
        ("delta create", OperationValue::Delta(delta), &|i| Op::DeltaCreate {
            old: at(&old, i),
            new: at(&new, i),
            len,
            record: of(made, i),
            cap,
        }),
        ("delta apply", OperationValue::Done, &|i| Op::DeltaApply {
            record: at(&records, i),
            size,
            region: of(to, i),
            len,
        }),
        ("fill", OperationValue::Done, &|i| Op::Fill {
            dst: of(to, i),
            len,
            word: 0x0123_4567_89ab_cdef,
        }),
    ];
    let measure = |(name, expected, make): (&'static str, OperationValue, Make<'_>)| {
        let ops: Vec<Op> = (0..count).map(make).collect();
        let mut times = Vec::new();
        for _ in 0..rounds.max(1) {
            let start = Instant::now();
            // SAFETY: all that the operations name is memory of this function that no other code accesses; what they write to
            // does not overlap
            // what they read.
            let outcomes = unsafe { dispatcher.run(&ops) };
            times.push(start.elapsed().as_secs_f64());
            if outcomes.iter().any(|o| o.choice != Choice::Device || o.value != expected) {
                return (name, None);
            }
        }
        times.sort_by(f64::total_cmp);
        (name, Some((count * PAGE) as f64 / times[times.len() / 2]))
    };
    operations.map(measure).into()
}
