//! Times of each page operation by each variant of the CPU code, and of memcpy and a plain read beside them.

use std::hint::black_box;
use std::time::Instant;

use crate::{Cpu, PAGE, PageFacts, delta, xbzrle};

/// An operation measured.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredSpeed {
    /// The operation.
    pub operation: &'static str,
    /// Seconds of each round, of each variant.
    pub seconds: Vec<Vec<f64>>,
}

/// Memory to work on: zeros, noise, slightly changed noise, and room for results.
#[derive(Debug)]
pub struct SpeedMemory {
    zero: Vec<u8>,
    noise: Vec<u8>,
    changed: Vec<u8>,
    copy: Vec<u8>,
    facts: Vec<PageFacts>,
}

impl SpeedMemory {
    /// Parts of `len` bytes, a multiple of the page size, all in RAM.
    pub fn new(len: usize) -> SpeedMemory {
        let mut noise = vec![0; len];
        let mut state = 1u64;
        for word in noise.as_chunks_mut::<8>().0 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *word = (state ^ state >> 29).to_le_bytes();
        }
        let mut changed = noise.clone();
        for byte in changed.iter_mut().step_by(256) {
            *byte ^= 1;
        }
        let mut zero = vec![1; len];
        // Without this the compiler allocates zeroed memory, which is all one page of the kernel's until it is written.
        black_box(zero.as_mut_slice()).fill(0);
        black_box(zero.as_mut_slice());
        let facts = vec![PageFacts::default(); len / PAGE];
        SpeedMemory { zero, copy: noise.clone(), noise, changed, facts }
    }

    /// Bytes of all parts.
    pub fn bytes(&self) -> u64 {
        [&self.zero, &self.noise, &self.changed, &self.copy]
            .map(|part| part.len() as u64)
            .iter()
            .sum()
    }
}

/// Measures every operation by every variant. A round runs all variants, so that a disturbance affects them equally.
pub fn measure(variants: &[Cpu], memory: &mut SpeedMemory, rounds: u32) -> Vec<MeasuredSpeed> {
    type Operation = (&'static str, fn(Cpu, &mut SpeedMemory));
    let operations: [Operation; 14] = [
        ("read only", |cpu, m| drop(black_box(vec![cpu.read(black_box(&m.noise))]))),
        ("memcpy", |_, m| m.copy.copy_from_slice(black_box(&m.noise))),
        ("is zero", |cpu, m| {
            let mut all = 0;
            cpu.zero_pages(black_box(&m.zero), PAGE, &mut |_| all += 1);
            assert_eq!(all, m.facts.len(), "zeros were not found to be zero");
        }),
        ("same fill", |cpu, m| pages(&m.zero, |page| assert_eq!(cpu.same_fill(page), Some(0)))),
        ("compare", |cpu, m| {
            let both = m.noise.chunks_exact(PAGE).zip(m.copy.chunks_exact(PAGE));
            both.for_each(|(a, b)| drop(black_box(vec![cpu.compare(a, b)])));
        }),
        ("copy", |cpu, m| cpu.copy(&mut m.copy, black_box(&m.noise))),
        ("fill", |cpu, m| cpu.fill(&mut m.copy, black_box(0x0123_4567_89ab_cdef))),
        ("crc32c", |cpu, m| {
            pages(&m.noise, |page| {
                black_box(cpu.crc32c(0, page));
            })
        }),
        ("scan+crc", |cpu, m| cpu.scan(black_box(&m.noise), &mut m.facts)),
        ("scan+crc+copy", |cpu, m| cpu.copy_scan(&mut m.copy, black_box(&m.noise), &mut m.facts)),
        ("delta create", |cpu, m| {
            let mut record = [0; 2 * PAGE];
            let both = m.noise.chunks_exact(PAGE).zip(m.changed.chunks_exact(PAGE));
            both.for_each(|(a, b)| {
                let made = cpu.delta_create(a, b, &mut record);
                assert_eq!(made, Ok(delta::Delta::Differs(delta::ENTRY * PAGE / 256)));
            });
        }),
        ("delta apply", |cpu, m| {
            let mut record = [0; 2 * PAGE];
            let made = cpu.delta_create(&m.noise[..PAGE], &m.changed[..PAGE], &mut record);
            let Ok(delta::Delta::Differs(len)) = made else { panic!("no delta: {made:?}") };
            m.copy.chunks_exact_mut(PAGE).for_each(|page| {
                assert!(black_box(delta::apply(&record[..len], page)).is_ok());
            });
        }),
        ("xbzrle encode", |cpu, m| {
            let mut encoded = [0; PAGE];
            let both = m.noise.chunks_exact(PAGE).zip(m.changed.chunks_exact(PAGE));
            both.for_each(|(a, b)| assert!(cpu.xbzrle_encode(a, b, &mut encoded).is_ok()));
        }),
        ("xbzrle decode", |cpu, m| {
            let mut encoded = [0; PAGE];
            let len =
                cpu.xbzrle_encode(&m.noise[..PAGE], &m.changed[..PAGE], &mut encoded).unwrap_or(0);
            m.copy.chunks_exact_mut(PAGE).for_each(|page| {
                let _ = black_box(xbzrle::decode(&encoded[..len], page));
            });
        }),
    ];
    operations
        .into_iter()
        .map(|(operation, run)| {
            let mut seconds = vec![Vec::new(); variants.len()];
            // The first round warms up.
            for round in 0..=rounds {
                for (seconds, cpu) in seconds.iter_mut().zip(variants) {
                    if operation == "compare" {
                        memory.copy.copy_from_slice(&memory.noise);
                    }
                    let start = Instant::now();
                    run(*cpu, memory);
                    if round > 0 {
                        seconds.push(start.elapsed().as_secs_f64());
                    }
                }
            }
            MeasuredSpeed { operation, seconds }
        })
        .collect()
}

fn pages(memory: &[u8], mut each: impl FnMut(&[u8])) {
    black_box(memory).chunks_exact(PAGE).for_each(&mut each);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_measured_by_every_variant() {
        let variants = Cpu::variants();
        let mut memory = SpeedMemory::new(16 * PAGE);
        assert_eq!(memory.bytes(), 4 * 16 * PAGE as u64);
        let all = measure(&variants, &mut memory, 3);
        assert_eq!(all.len(), 14);
        for one in all {
            assert_eq!(one.seconds.len(), variants.len(), "{}", one.operation);
            assert!(one.seconds.iter().all(|rounds| rounds.len() == 3), "{}", one.operation);
        }
    }
}
