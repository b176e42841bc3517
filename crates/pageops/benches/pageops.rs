//! Ratios that must hold, each of two programs measured in turn in one run: `./x bench pageops [ROUNDS] [WORDS]`.
//!
//! A ratio is the median over the rounds of the ratio within a round. Lines end in "ok" or "MISSED". With words only
//! lines that have one of them are measured.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]

#[path = "peers/isal.rs"]
mod isal;

use std::cell::RefCell;
use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use isal::Isal;
use vmtax_pageops::device::Portal;
use vmtax_pageops::device::model::{self, DeviceModel};
use vmtax_pageops::engine::{self, BackendPolicy, Choice, Dispatcher, Op};
use vmtax_pageops::{Cpu, PAGE, PageFacts};

const FIRST_CACHE: usize = 16 << 10;
const CACHE: usize = 256 << 10;
const MEMORY: usize = 1 << 30;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let rounds = args.iter().filter_map(|a| a.parse().ok()).next().unwrap_or(9);
    let words = args.into_iter().filter(|a| a.parse::<usize>().is_err()).collect();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cpu = Cpu::best();
    println!("{}: variant {}, {rounds} rounds, load {}", processor(), cpu.name(), load.trim());
    let Some(isal) = Isal::open() else {
        println!("libisal.so.2 is missing; install libisal-dev");
        return ExitCode::FAILURE;
    };
    let mut bench = PageBench { rounds, words, missed: false };
    let zero_cache = touched(CACHE, 0);
    let zero = touched(MEMORY, 0);
    let mut noise = touched(MEMORY, 1);
    let mut sparse = touched(MEMORY, 0);
    for page in sparse.chunks_exact_mut(PAGE) {
        page[PAGE - 1] = 1;
    }
    let mut half = touched(MEMORY, 1);
    for page in half.chunks_exact_mut(2 * PAGE) {
        page[..PAGE].fill(0);
    }
    let mut copy = touched(MEMORY, 1);
    let mut facts = vec![PageFacts::default(); MEMORY / PAGE];

    let pages = |memory: &[u8], is_zero: &dyn Fn(&[u8]) -> bool| {
        let all = memory.chunks_exact(PAGE).filter(|page| is_zero(page)).count();
        black_box(all);
    };
    let read = |memory: &[u8]| {
        black_box(cpu.read(black_box(memory)));
    };
    let scan = |memory: &[u8]| {
        let mut all = 0;
        cpu.zero_pages(black_box(memory), PAGE, &mut |_| all += 1);
        black_box(all);
    };

    bench.must(
        "zero scan / read-only sum, 1 GiB",
        0.95,
        MEMORY,
        (&mut || scan(&zero), &mut || read(&zero)),
    );
    bench.must(
        "zero scan / read-only sum, 256 KiB",
        0.95,
        CACHE,
        (&mut || scan(&zero_cache), &mut || read(&zero_cache)),
    );
    bench.must(
        "zero scan / ISA-L, 16 KiB",
        1.4,
        FIRST_CACHE,
        (&mut || scan(&zero_cache[..FIRST_CACHE]), &mut || {
            pages(black_box(&zero_cache[..FIRST_CACHE]), &|p| isal.is_zero(p))
        }),
    );
    bench.must_or_read(
        "zero scan / ISA-L, 256 KiB",
        1.4,
        CACHE,
        (&mut || scan(&zero_cache), &mut || pages(black_box(&zero_cache), &|p| isal.is_zero(p))),
        &mut || read(&zero_cache),
    );
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        bench.must(
            "zero scan / QEMU's AVX2 loop, 256 KiB",
            1.0,
            CACHE,
            (
                &mut || scan(&zero_cache),
                // SAFETY: AVX2 was found.
                &mut || pages(black_box(&zero_cache), &|p| unsafe { qemu::is_zero(p) }),
            ),
        );
    }
    let crc = |memory: &[u8]| {
        for page in memory.chunks_exact(PAGE) {
            black_box(cpu.crc32c(0, page));
        }
    };
    let crc_isal = |memory: &[u8]| {
        for page in memory.chunks_exact(PAGE) {
            black_box(isal.crc32c(page));
        }
    };
    bench.must(
        "crc32c / ISA-L, 256 KiB, pages",
        0.8,
        CACHE,
        (&mut || crc(black_box(&noise[..CACHE])), &mut || crc_isal(black_box(&noise[..CACHE]))),
    );
    bench.must(
        "crc32c / ISA-L, 256 KiB, whole",
        0.8,
        CACHE,
        (
            &mut || {
                black_box(cpu.crc32c(0, black_box(&noise[..CACHE])));
            },
            &mut || {
                black_box(isal.crc32c(black_box(&noise[..CACHE])));
            },
        ),
    );
    bench.must(
        "crc32c / ISA-L, 1 GiB, pages",
        0.8,
        MEMORY,
        (&mut || crc(&noise), &mut || crc_isal(&noise)),
    );
    // Pages of noise; pages whose only nonzero byte is the last; every other page zero.
    for (name, memory) in [("noise", &noise), ("nonzero at the end", &sparse), ("half zero", &half)]
    {
        let copies = RefCell::new((&mut copy, &mut facts));
        let mut fused = || {
            let (copy, facts) = &mut *copies.borrow_mut();
            cpu.copy_scan(copy, black_box(memory), facts);
        };
        let mut passes = || {
            let (copy, _) = &mut *copies.borrow_mut();
            scan(memory);
            crc(memory);
            copy.copy_from_slice(black_box(memory));
        };
        let name = format!("scan+crc+copy fused / three passes, 1 GiB {name}");
        bench.must(&name, 1.6, MEMORY, (&mut fused, &mut passes));
    }
    // One byte in 128 changed; then whole words; then every other byte.
    for (name, stride, run) in [
        ("1 byte in 128", 128, 1),
        ("8 bytes in 512", 512, 8),
        ("half of each page", PAGE, PAGE / 2),
    ] {
        let old = noise[..CACHE].to_vec();
        for at in (0..CACHE).step_by(stride) {
            for byte in &mut noise[at..at + run] {
                *byte ^= 0x5a;
            }
        }
        let new = &noise[..CACHE];
        let each = |encode: &mut dyn FnMut(&[u8], &[u8])| {
            for (old, new) in old.chunks_exact(PAGE).zip(new.chunks_exact(PAGE)) {
                encode(black_box(old), black_box(new));
            }
        };
        let (mut ours, mut theirs) = (vec![0; PAGE], vec![0; PAGE]);
        bench.must(
            &format!("xbzrle encode / byte loop, {name}"),
            3.0,
            CACHE,
            (
                &mut || {
                    each(&mut |old, new| {
                        let _ = black_box(cpu.xbzrle_encode(old, new, &mut ours));
                    })
                },
                &mut || {
                    each(&mut |old, new| {
                        black_box(byte_loop(old, new, &mut theirs));
                    })
                },
            ),
        );
    }
    engines(&mut bench);
    if bench.missed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The processor, as the kernel names it. A hypervisor may hide its model; the family and model numbers remain.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        let line =
            text.lines().find(|line| line.split(':').next().is_some_and(|k| k.trim() == key));
        line.and_then(|line| line.split_once(':')).map_or("?", |(_, value)| value.trim())
    };
    format!("{}, family {}, model {}", value("model name"), value("cpu family"), value("model"))
}

/// Overlap of the asynchronous engine: four devices in software, each of which sleeps for an
/// operation, against one of them. Wall time: the devices sleep.
fn engines(bench: &mut PageBench) {
    const OPS: usize = 4000;
    const NAME: &str = "four threads that sleep 100 us an operation / one";
    if !bench.wants(NAME) {
        return;
    }
    const SERVICE: Duration = Duration::from_micros(100);
    let memory = touched(OPS * PAGE, 1);
    let op = |page: &[u8]| Op::Crc { src: page.as_ptr(), len: PAGE, seed: 0 };
    let ops: Vec<Op> = memory.chunks_exact(PAGE).map(op).collect();
    let time = |count: usize| {
        let config = |i| model::ModelConfig {
            name: format!("model{i}"),
            service: SERVICE,
            ..Default::default()
        };
        let models: Vec<DeviceModel> = (0..count).map(|i| DeviceModel::new(config(i))).collect();
        let portals =
            models.iter().map(|m| Box::new(m.portal().expect("opened once")) as Box<dyn Portal>);
        let portals = portals.collect();
        let patience = Duration::from_secs(10);
        let config =
            engine::EngineConfig { policy: BackendPolicy::Device, patience, ..Default::default() };
        let mut dispatcher = Dispatcher::new(config, portals);
        let start = Instant::now();
        // SAFETY: the memory outlives the run and is not written to.
        let outcomes = unsafe { dispatcher.run(&ops) };
        let time = start.elapsed().as_secs_f64();
        assert!(outcomes.iter().all(|o| o.choice == Choice::Device && o.fault.is_none()));
        time
    };
    let ratio = median((0..bench.rounds.min(5)).map(|_| time(1) / time(4)));
    let verdict = if ratio >= 3.8 { "ok" } else { "MISSED" };
    bench.missed |= ratio < 3.8;
    println!("{NAME:<60} {ratio:>33.2}  (>= 3.8) {verdict}");
}

struct PageBench {
    rounds: usize,
    words: Vec<String>,
    missed: bool,
}

type BenchPair<'a> = (&'a mut dyn FnMut(), &'a mut dyn FnMut());

impl PageBench {
    fn wants(&self, name: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|w| name.contains(w.as_str()))
    }

    /// Runs all in turn and gives the times of each, round by round.
    fn times(&self, bytes: usize, all: &mut [&mut dyn FnMut()]) -> Vec<Vec<f64>> {
        let repeat = repeats(bytes);
        // What is over in milliseconds is measured more often.
        let rounds = if repeat > 1 { 8 * self.rounds } else { self.rounds };
        let count = all.len();
        let mut times = vec![Vec::new(); count];
        // The first round warms up.
        for round in 0..=rounds {
            // The order alternates, so that neither benefits from it.
            for i in (0..count).map(|i| (i + round) % count) {
                let start = thread_time();
                for _ in 0..repeat {
                    all[i]();
                }
                if round > 0 {
                    times[i].push((thread_time() - start).as_secs_f64() / repeat as f64);
                }
            }
        }
        times
    }

    /// The first must be `limit` times as fast as the second.
    fn must(&mut self, name: &str, limit: f64, bytes: usize, (ours, theirs): BenchPair<'_>) {
        if !self.wants(name) {
            return;
        }
        let times = self.times(bytes, &mut [ours, theirs]);
        let ratio = ratio(&times[0], &times[1]);
        let verdict = if ratio >= limit { "ok" } else { "MISSED" };
        self.missed |= ratio < limit;
        line(name, limit, bytes, &times, verdict);
    }

    /// As [`Bench::must`]; or, where a plain read is not so fast, it must be within three percent of that.
    fn must_or_read(
        &mut self,
        name: &str,
        limit: f64,
        bytes: usize,
        (ours, theirs): BenchPair<'_>,
        read: &mut dyn FnMut(),
    ) {
        if !self.wants(name) {
            return;
        }
        let times = self.times(bytes, &mut [ours, theirs, read]);
        let (ours, ceiling) = (ratio(&times[0], &times[1]), ratio(&times[2], &times[1]));
        let verdict = match ours {
            _ if ours >= limit => "ok".to_owned(),
            _ if ceiling < limit && ours >= 0.97 * ceiling => {
                format!("out of reach: a plain read of the same bytes comes to {ceiling:.2}")
            }
            _ => {
                self.missed = true;
                format!("MISSED; a plain read of the same bytes comes to {ceiling:.2}")
            }
        };
        line(name, limit, bytes, &times, &verdict);
    }
}

/// How often in a measurement, so that it takes milliseconds at least.
fn repeats(bytes: usize) -> usize {
    (256 << 20) / bytes.min(256 << 20)
}

/// How many times as fast the first is: the median over the rounds.
fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| theirs / ours))
}

fn line(name: &str, limit: f64, bytes: usize, times: &[Vec<f64>], verdict: &str) {
    let speed = |times: &[f64]| bytes as f64 / median(times.iter().copied()) / 1e9;
    let (ours, theirs) = (speed(&times[0]), speed(&times[1]));
    let ratio = ratio(&times[0], &times[1]);
    println!("{name:<60} {ours:>7.1} / {theirs:>6.1} GB/s = {ratio:>6.2}  (>= {limit}) {verdict}");
}

/// Processor time of this thread: what others do on the machine stays out of it, but for their use of memory.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is owned here.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Memory that begins with a page, as a guest's does.
struct BenchMemory {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl std::ops::Deref for BenchMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }
}

impl std::ops::DerefMut for BenchMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

/// Memory of zeros or noise with every page present.
fn touched(len: usize, seed: u64) -> BenchMemory {
    let before = vmtax_pageops::process_memory::in_ram().expect("/proc/self/smaps_rollup");
    let mut bytes = vec![0u8; len + PAGE];
    let start = bytes.as_ptr().align_offset(PAGE);
    let mut state = seed;
    for word in black_box(&mut bytes[start..][..len]).as_chunks_mut::<8>().0 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(seed);
        *word = (state ^ state >> 29).to_le_bytes();
    }
    black_box(&mut bytes[..]);
    let in_ram = vmtax_pageops::process_memory::in_ram().expect("/proc/self/smaps_rollup");
    assert!(in_ram >= before + len as u64, "memory to be measured is not in RAM");
    BenchMemory { bytes, start, len }
}

/// XBZRLE a byte at a time.
fn byte_loop(old: &[u8], new: &[u8], out: &mut [u8]) -> Option<usize> {
    let (mut at, mut to) = (0, 0);
    let put = |to: &mut usize, value: usize, out: &mut [u8]| {
        if value < 0x80 {
            out[*to] = value as u8;
            *to += 1;
        } else {
            out[*to] = (value & 0x7f) as u8 | 0x80;
            out[*to + 1] = (value >> 7) as u8;
            *to += 2;
        }
    };
    while at < new.len() {
        if to + 2 > out.len() {
            return None;
        }
        let start = at;
        while at < new.len() && old[at] == new[at] {
            at += 1;
        }
        if at == new.len() {
            break;
        }
        put(&mut to, at - start, out);
        if to + 2 > out.len() {
            return None;
        }
        let start = at;
        while at < new.len() && old[at] != new[at] {
            at += 1;
        }
        put(&mut to, at - start, out);
        let run = at - start;
        if to + run > out.len() {
            return None;
        }
        out[to..to + run].copy_from_slice(&new[start..at]);
        to += run;
    }
    Some(to)
}

/// The zero check as QEMU does it: three bytes first, then 128 bytes a turn with a test each.
#[cfg(target_arch = "x86_64")]
mod qemu {
    use std::arch::x86_64::*;

    /// # Safety
    ///
    /// AVX2.
    #[target_feature(enable = "avx2")]
    pub(crate) unsafe fn is_zero(page: &[u8]) -> bool {
        let len = page.len();
        if page[0] | page[len / 2] | page[len - 1] != 0 {
            return false;
        }
        let start = page.as_ptr();
        // SAFETY: pages of at least 256 bytes: all loads lie between the first and the last byte.
        unsafe {
            let load = |p: *const u8| _mm256_loadu_si256(p.cast());
            let end = start.add(len);
            let mut t = load(start);
            let mut p = start.add(5 * 32 - (start as usize) % 32);
            while p <= end {
                _mm_prefetch::<_MM_HINT_T0>(p.cast());
                if _mm256_testz_si256(t, t) == 0 {
                    return false;
                }
                t = _mm256_or_si256(
                    _mm256_or_si256(load(p.sub(128)), load(p.sub(96))),
                    _mm256_or_si256(load(p.sub(64)), load(p.sub(32))),
                );
                p = p.add(128);
            }
            for back in [32, 64, 96, 128] {
                t = _mm256_or_si256(t, load(end.sub(back)));
            }
            _mm256_testz_si256(t, t) != 0
        }
    }
}
