//! Built-in workloads: each repeats one operation for some time and prints the time per operation.
//!
//! ```text
//! vmtax-builtin cpuid
//! ns_per_operation 71.25
//! operations 1400000
//! ```
//!
//! Workloads that measure a latency add its percentiles: `latency_p99_ns 81000`.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__cpuid;
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::latency::Latencies;
use crate::{Result, system};

/// Longest allowed duration.
const LONGEST: f64 = 3600.0;
/// Time that the timer workload sleeps.
const WAIT: Duration = Duration::from_micros(50);
/// Memory touched at a time.
const TOUCHED: usize = 32 << 20;
const PAGE: usize = 4096;
/// Threads that [`wakeup`] wakes.
const WORKERS: usize = 2;
/// Memory that nobody used before, touched at a time: all rounds of a guest must have room.
#[cfg(target_arch = "aarch64")]
const NEW: usize = 8 << 20;

/// How long a workload runs.
#[derive(Clone, Copy)]
enum Until {
    Time(Duration),
    Rounds(u64),
}

impl Until {
    fn is_over(self, started: Instant, rounds: u64) -> bool {
        match self {
            Until::Time(time) => started.elapsed() >= time,
            Until::Rounds(most) => rounds >= most,
        }
    }
}

/// Number of operations, and their time.
struct DoneOperations {
    operations: u64,
    time: Duration,
}

/// CPUID, whatever it says.
#[cfg(target_arch = "x86_64")]
#[expect(unused_unsafe, reason = "safe to call in newer Rust; Cargo.toml takes older ones")]
pub(crate) fn cpuid() -> u32 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { __cpuid(0) }.eax
}

/// Runs a workload for this number of seconds and prints the result.
pub(crate) fn run(name: &str, seconds: &str) -> Result<()> {
    let time = seconds_of(name, seconds)?;
    let mut latencies = Latencies::default();
    let done = carry_out(name, Until::Time(time), &mut latencies)?;
    println!("vmtax-builtin {name}");
    println!("ns_per_operation {}", done.time.as_nanos() as f64 / done.operations.max(1) as f64);
    println!("operations {}", done.operations);
    if latencies.count() > 0 {
        latencies.print();
    }
    Ok(())
}

/// So many rounds of a workload. Nothing is printed.
#[cfg_attr(target_arch = "x86_64", expect(dead_code, reason = "the arm64 program counts rounds"))]
pub(crate) fn rounds(name: &str, rounds: u32) -> Result<()> {
    carry_out(name, Until::Rounds(rounds.into()), &mut Latencies::default()).map(drop)
}

fn carry_out(name: &str, until: Until, latencies: &mut Latencies) -> Result<DoneOperations> {
    match name {
        #[cfg(target_arch = "x86_64")]
        "cpuid" => Ok(repeated(until, 100, || {
            black_box(cpuid());
        })),
        "timer" => Ok(timer(until, latencies)),
        "wakeup" => wakeup(until, latencies, None),
        "wakeup-across" => wakeup(until, latencies, Some(apart()?)),
        "ipi" => ping_pong(until),
        "matmul" => Ok(matmul(until)),
        "touch-4k" => touch(until, false),
        "touch-2m" => touch(until, true),
        #[cfg(target_arch = "aarch64")]
        "touch-new" => touch_new(until),
        "loopback" => loopback(until),
        _ => Err(format!("there is no built-in workload {name:?}")),
    }
}

/// A duration from the command line.
pub(crate) fn seconds_of(name: &str, seconds: &str) -> Result<Duration> {
    let seconds: f64 = seconds.parse().unwrap_or(0.0);
    if !(seconds > 0.0 && seconds <= LONGEST) {
        return Err(format!("{name}: give a number of seconds, at most {LONGEST}"));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Runs `one` in batches until it is over.
fn repeated(until: Until, batch: u32, mut one: impl FnMut()) -> DoneOperations {
    let (started, mut operations) = (Instant::now(), 0);
    loop {
        for _ in 0..batch {
            one();
        }
        operations += u64::from(batch);
        if until.is_over(started, operations) {
            return DoneOperations { operations, time: started.elapsed() };
        }
    }
}

/// Wake-up latency of a sleeping thread.
fn timer(until: Until, latencies: &mut Latencies) -> DoneOperations {
    let (started, mut late, mut operations) = (Instant::now(), Duration::ZERO, 0);
    while !until.is_over(started, operations) {
        let before = Instant::now();
        std::thread::sleep(WAIT);
        let latency = before.elapsed().saturating_sub(WAIT);
        latencies.add(latency);
        late += latency;
        operations += 1;
    }
    DoneOperations { operations, time: late }
}

/// A processor for the messenger, and others for the workers of [`wakeup`].
fn apart() -> Result<[usize; 1 + WORKERS]> {
    let usable = system::several_processors()?;
    let others = usable.len() - 1;
    Ok(std::array::from_fn(|thread| match thread.checked_sub(1) {
        None => usable[0],
        Some(worker) => usable[1 + worker % others],
    }))
}

/// Wake-up latency of worker threads: a messenger notes the time and wakes one after the other, as schbench does. Each sleeps in a futex, and
/// takes the time when it runs. The messenger and the workers stay on these processors, or are where the kernel puts them.
fn wakeup(
    until: Until,
    latencies: &mut Latencies,
    places: Option<[usize; 1 + WORKERS]>,
) -> Result<DoneOperations> {
    let stay_on = |thread: usize| places.map_or(Ok(()), |places| system::stay_on(places[thread]));
    let mut placed = Ok(());
    let started = Instant::now();
    let over = AtomicBool::new(false);
    // When each was woken, in ns after the start; 0 while it sleeps.
    let woken: [AtomicU64; WORKERS] = Default::default();
    let now = || u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1);
    let found = std::thread::scope(|scope| {
        let messenger = std::thread::current();
        let workers: Vec<_> = woken
            .iter()
            .enumerate()
            .map(|(worker, mine)| {
                // A thread starts on the processor of the one that starts it.
                placed = placed.clone().and(stay_on(1 + worker));
                let (messenger, over) = (messenger.clone(), &over);
                scope.spawn(move || {
                    let mut latencies = Latencies::default();
                    while !over.load(Ordering::Acquire) {
                        match mine.load(Ordering::Acquire) {
                            0 => std::thread::park(),
                            sent => {
                                latencies.add(Duration::from_nanos(now().saturating_sub(sent)));
                                mine.store(0, Ordering::Release);
                                messenger.unpark();
                            }
                        }
                    }
                    latencies
                })
            })
            .collect();
        placed = placed.clone().and(stay_on(0));
        let mut rounds = 0;
        while placed.is_ok() && !until.is_over(started, rounds) {
            rounds += 1;
            for (worker, theirs) in workers.iter().zip(&woken) {
                theirs.store(now(), Ordering::Release);
                worker.thread().unpark();
            }
            // All have run before the next round, so that each wake-up finds a sleeping thread.
            while woken.iter().any(|theirs| theirs.load(Ordering::Acquire) != 0) {
                std::thread::park_timeout(Duration::from_millis(100));
            }
        }
        over.store(true, Ordering::Release);
        workers.iter().for_each(|worker| worker.thread().unpark());
        let joined = workers.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.collect::<std::result::Result<Vec<_>, _>>()
    });
    placed?;
    for theirs in found.map_err(|_| "a worker failed".to_owned())? {
        latencies.merge(&theirs);
    }
    Ok(DoneOperations { operations: latencies.count(), time: latencies.total() })
}

/// Two threads on two processors wake each other in turn: each wake-up of an idle processor is an interrupt.
fn ping_pong(until: Until) -> Result<DoneOperations> {
    let usable = system::several_processors()?;
    let (first, second) = (usable[0], usable[1]);
    let ball = Arc::new(AtomicU32::new(0));
    let over = Arc::new(AtomicBool::new(false));
    system::stay_on(first)?;
    let me = std::thread::current();
    let (theirs, ended) = (Arc::clone(&ball), Arc::clone(&over));
    let other = std::thread::spawn(move || -> Result<()> {
        system::stay_on(second)?;
        while !ended.load(Ordering::Acquire) {
            if theirs.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                me.unpark();
            } else {
                std::thread::park();
            }
        }
        Ok(())
    });
    let done = repeated(until, 1, || {
        ball.store(1, Ordering::Release);
        other.thread().unpark();
        while ball.load(Ordering::Acquire) == 1 && !other.is_finished() {
            std::thread::park_timeout(Duration::from_millis(100));
        }
    });
    over.store(true, Ordering::Release);
    other.thread().unpark();
    other.join().map_err(|_| "the second thread failed".to_owned())??;
    Ok(done)
}

/// One row of a matrix product whose right-hand side is accessed by column, as in a reference implementation: each access is one row
/// further, so most are in another page. An operation is a multiplication and an addition.
fn matmul(until: Until) -> DoneOperations {
    const INNER: usize = 1024;
    const COLUMNS: usize = 1000;
    let left: Vec<f32> = (0..INNER).map(|i| i as f32 * 0.5).collect();
    let right: Vec<f32> = (0..INNER * COLUMNS).map(|i| (i % 97) as f32).collect();
    let mut row = vec![0f32; COLUMNS];
    let done = repeated(until, 1, || {
        for (column, out) in row.iter_mut().enumerate() {
            let mut sum = 0f32;
            for (inner, factor) in left.iter().enumerate() {
                sum += factor * right[inner * COLUMNS + column];
            }
            *out = sum;
        }
        black_box(&mut row);
    });
    DoneOperations { operations: done.operations * (INNER * COLUMNS) as u64, ..done }
}

/// Fresh memory, touched once in each 4 KiB, in small pages or in huge ones.
fn touch(until: Until, huge: bool) -> Result<DoneOperations> {
    let mut problem = None;
    let done = repeated(until, 1, || match system::UntouchedMemory::new(TOUCHED, huge) {
        Ok(memory) => {
            memory.touch(PAGE);
            if huge && !memory.is_huge() {
                problem = Some(
                    "the kernel gave no huge pages; set transparent_hugepage/enabled to madvise"
                        .to_owned(),
                );
            }
        }
        Err(refused) => problem = Some(refused),
    });
    match problem {
        Some(problem) => Err(problem),
        None => {
            Ok(DoneOperations { operations: done.operations * (TOUCHED / PAGE) as u64, ..done })
        }
    }
}

/// Memory that this guest has not used before, touched once in each 4 KiB. It is kept, by this program or, as that of a job ends, by the guest's kernel: what is
/// given back is used again.
#[cfg(target_arch = "aarch64")]
fn touch_new(until: Until) -> Result<DoneOperations> {
    let mut problem = None;
    let memory = || match until {
        Until::Rounds(_) => system::UntouchedMemory::new(NEW, false),
        Until::Time(_) => system::UntouchedMemory::lasting(NEW),
    };
    let done = repeated(until, 1, || match memory() {
        Ok(memory) => {
            memory.touch(PAGE);
            std::mem::forget(memory);
        }
        Err(refused) => problem = Some(refused),
    });
    problem.map_or(Ok(()), Err)?;
    Ok(DoneOperations { operations: done.operations * (NEW / PAGE) as u64, ..done })
}

/// A byte's round trip to a server on the loopback interface.
fn loopback(until: Until) -> Result<DoneOperations> {
    let failed = |e: std::io::Error| format!("the loopback: {e}");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut byte = [0];
        while stream.read(&mut byte)? == 1 {
            stream.write_all(&byte)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let mut result = Ok(());
    let done = repeated(until, 1, || {
        let mut byte = [7];
        let round = stream.write_all(&byte).and_then(|()| stream.read_exact(&mut byte));
        if let Err(e) = round {
            result = Err(failed(e));
        }
    });
    drop(stream);
    server.join().map_err(|_| "the server failed".to_owned())?.map_err(failed)?;
    result.map(|()| done)
}
