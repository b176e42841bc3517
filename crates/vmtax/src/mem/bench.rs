//! `vmtax mem bench`: the operations on pages, measured.

use std::hint::black_box;
use std::time::Instant;

use anyhow::Context;
use serde_json::json;
use vmtax_cli::exit::{Code, fail};
use vmtax_pageops::{Cpu, PAGE, PageFacts, delta, memory, xbzrle};

use super::flags::BenchArgs;
use super::{print, size};

/// Times the size that is needed at once: [`Memory`], and what a device works on.
const COPIES: u64 = 5;

/// Bytes of memory that can be had without swapping.
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

const IN_RAM: &str =
    "/proc/self/smaps_rollup, which tells whether memory is in RAM, cannot be read";

/// What is measured is memory: pages that nobody wrote to are one page of zeros, and read at the speed of a cache.
fn check_in_ram(before: u64, needed: u64) -> anyhow::Result<()> {
    let found = memory::in_ram().context(IN_RAM)?.saturating_sub(before);
    // What the program itself gives back meanwhile is a few pages.
    if found + needed / 256 >= needed {
        return Ok(());
    }
    let (found, needed) = (size(found), size(needed));
    let what = format!("{found} of the {needed} to be measured are in RAM, so no speed is shown");
    fail(Code::Unexpected, format!("{what}; free some memory, or choose a smaller --size"))
}

/// One line of the table: GB/s of each backend, in their order.
struct Row {
    operation: &'static str,
    speeds: Vec<Option<f64>>,
}

pub(super) fn run(args: &BenchArgs) -> anyhow::Result<()> {
    if let Some(free) = available()
        && COPIES * (args.size << 20) > free
    {
        let (needed, free) = (size(COPIES * (args.size << 20)), size(free));
        let what = format!("--size {}: takes {needed} and {free} are free", args.size);
        return fail(Code::Usage, format!("{what}; choose a smaller one"));
    }
    let before = memory::in_ram().context(IN_RAM)?;
    let mut memory = Memory::new((args.size << 20) as usize);
    let needed = memory.bytes();
    check_in_ram(before, needed)?;
    let backends = Cpu::variants();
    let mut names: Vec<String> = backends.iter().map(|cpu| cpu.name().to_owned()).collect();
    let mut rows = cpu_rows(&backends, &mut memory, args.rounds);
    // Nothing of it was swapped out or given back meanwhile.
    check_in_ram(before, needed)?;
    drop(memory);
    if let Some((name, speeds)) =
        args.work.accel.open()?.bench((args.size << 20) as usize, args.rounds)
    {
        names.push(name);
        for row in &mut rows {
            row.speeds.push(speeds.iter().find(|s| s.0 == row.operation).map(|s| s.1));
        }
    }
    print(args.work.format, || text(args, &names, &rows), || as_json(args, &names, &rows))
}

/// What is worked on: zeros, noise, noise a little changed, and room for results.
struct Memory {
    zero: Vec<u8>,
    noise: Vec<u8>,
    changed: Vec<u8>,
    copy: Vec<u8>,
    facts: Vec<PageFacts>,
}

impl Memory {
    fn new(len: usize) -> Memory {
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
        // Else the compiler makes zeroed memory of these two lines, which has no page of its own.
        black_box(zero.as_mut_slice()).fill(0);
        black_box(zero.as_mut_slice());
        let facts = vec![PageFacts::default(); len / PAGE];
        Memory { zero, copy: noise.clone(), noise, changed, facts }
    }

    fn bytes(&self) -> u64 {
        [&self.zero, &self.noise, &self.changed, &self.copy]
            .map(|part| part.len() as u64)
            .iter()
            .sum()
    }
}

/// Measures every operation by every variant; rounds go over all of them, so that what disturbs one disturbs all.
fn cpu_rows(backends: &[Cpu], memory: &mut Memory, rounds: u32) -> Vec<Row> {
    type Operation = (&'static str, fn(Cpu, &mut Memory));
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
    let bytes = memory.noise.len() as f64;
    operations
        .into_iter()
        .map(|(operation, run)| {
            let mut times = vec![Vec::new(); backends.len()];
            // The first round warms up.
            for round in 0..=rounds {
                for (times, cpu) in times.iter_mut().zip(backends) {
                    if operation == "compare" {
                        memory.copy.copy_from_slice(&memory.noise);
                    }
                    let start = Instant::now();
                    run(*cpu, memory);
                    if round > 0 {
                        times.push(start.elapsed().as_secs_f64());
                    }
                }
            }
            let speeds = times.into_iter().map(|t| Some(bytes / median(&t) / 1e9)).collect();
            Row { operation, speeds }
        })
        .collect()
}

fn pages(memory: &[u8], mut each: impl FnMut(&[u8])) {
    black_box(memory).chunks_exact(PAGE).for_each(&mut each);
}

/// The median of the rounds; there is at least one.
pub(super) fn median(times: &[f64]) -> f64 {
    vmtax_analyse::samples::median(times).unwrap_or(f64::NAN)
}

fn text(args: &BenchArgs, names: &[String], rows: &[Row]) -> String {
    let mut out = format!("GB/s over {} MiB, median of {}\n\n{:<16}", args.size, args.rounds, "");
    for name in names {
        out.push_str(&format!("{name:>14}"));
    }
    out.push('\n');
    for row in rows {
        out.push_str(&format!("{:<16}", row.operation));
        for speed in &row.speeds {
            match speed {
                Some(speed) => out.push_str(&format!("{speed:>14.1}")),
                None => out.push_str(&format!("{:>14}", "-")),
            }
        }
        out.push('\n');
    }
    out
}

fn as_json(args: &BenchArgs, names: &[String], rows: &[Row]) -> serde_json::Value {
    let rows: Vec<_> = rows
        .iter()
        .map(|row| {
            let speeds: serde_json::Map<String, serde_json::Value> =
                names.iter().cloned().zip(row.speeds.iter().map(|s| json!(s))).collect();
            json!({ "operation": row.operation, "gb_per_second": speeds })
        })
        .collect();
    json!({ "bytes": args.size << 20, "rounds": args.rounds, "operations": rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than other tests of this program have at a time.
    const LEN: usize = 256 << 20;

    #[test]
    fn what_is_measured_is_in_ram() {
        let before = memory::in_ram().expect("told");
        // As the compiler makes it of a vector that is filled with zeros.
        let untouched = vec![0u8; LEN];
        assert!(black_box(&untouched).iter().step_by(PAGE).all(|byte| *byte == 0));
        let error =
            check_in_ram(before, LEN as u64).expect_err("pages of nobody were taken for memory");
        assert!(error.to_string().contains("no speed is shown"), "{error}");
        drop(untouched);
        let before = memory::in_ram().expect("told");
        let memory = Memory::new(LEN / 4);
        assert!(memory.zero.iter().all(|byte| *byte == 0));
        // A test that ends meanwhile gives its memory back.
        let found = memory::in_ram().expect("told") - before;
        assert!(found > memory.bytes() * 9 / 10, "{found} of {}", memory.bytes());
    }
}
