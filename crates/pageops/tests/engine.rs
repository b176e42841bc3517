//! The engine on model devices: every result right, every fault counted, nothing hangs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use vmtax_pageops::checkpoint::Accelerate;
use vmtax_pageops::delta::{self, Delta};
use vmtax_pageops::device::idxd::{self, Roots};
use vmtax_pageops::device::model::{self, DeviceModel, FaultScript, ModelFault as Wrong};
use vmtax_pageops::device::{Descriptor, Portal, QueueLimits, Status, Submit};
use vmtax_pageops::engine::{
    BackendPolicy, Choice, Dispatcher, EngineConfig, Op, OperationOutcome, OperationValue,
    PageEngine, QueueSpread, SeenFault, ThreadedEngine,
};
use vmtax_pageops::{Cpu, PAGE, PageFacts};

/// Pages and room for results, and operations on them with what they must give.
struct EngineWork {
    pages: Vec<u8>,
    changed: Vec<u8>,
    copies: Vec<u8>,
    records: Vec<u8>,
    ops: Vec<Op>,
    expected: Vec<OperationValue>,
    /// Operations that a device takes: not empty deltas.
    for_device: u64,
}

const RECORD: usize = 2 * PAGE;

impl EngineWork {
    /// Operations of every kind in turn, one for each page.
    fn new(count: usize) -> EngineWork {
        let mut state = 7u64;
        let mut noise = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32
        };
        let mut pages = vec![0; count * PAGE];
        for (i, page) in pages.chunks_exact_mut(PAGE).enumerate() {
            if i % 3 != 0 {
                page.iter_mut().for_each(|b| *b = noise() as u8);
            }
        }
        let mut changed = pages.clone();
        for (i, page) in changed.chunks_exact_mut(PAGE).enumerate() {
            // Every kind of operation has equal pages and others.
            if i % 3 != 2 {
                (0..i % 70).for_each(|_| page[noise() as usize % PAGE] ^= 1 + (i % 200) as u8);
            }
        }
        let copies = vec![0xee; count * PAGE];
        let records = vec![0; count * RECORD];
        let mut work = EngineWork {
            pages,
            changed,
            copies,
            records,
            ops: Vec::new(),
            expected: Vec::new(),
            for_device: 0,
        };
        work.plan(count);
        let empty = |op: &&Op| matches!(op, Op::DeltaApply { size: 0, .. });
        work.for_device = (count - work.ops.iter().filter(empty).count()) as u64;
        work
    }

    fn plan(&mut self, count: usize) {
        let cpu = Cpu::scalar();
        for i in 0..count {
            let range = i * PAGE..(i + 1) * PAGE;
            let (page, changed) = (&self.pages[range.clone()], &self.changed[range.clone()]);
            let copy = self.copies[range].as_mut_ptr();
            let record = self.records[i * RECORD..].as_mut_ptr();
            let (src, new, len) = (page.as_ptr(), changed.as_ptr(), PAGE);
            let mut scratch = [0; RECORD];
            let (op, value) = match i % 8 {
                0 => (
                    Op::Compval { src, len, word: 0 },
                    OperationValue::Equal(page.iter().all(|b| *b == 0)),
                ),
                1 => (Op::Compare { a: src, b: new, len }, OperationValue::Equal(page == changed)),
                2 => (Op::Copy { src, dst: copy, len }, OperationValue::Done),
                3 => {
                    (Op::Fill { dst: copy, len, word: 0x0102_0304_0506_0708 }, OperationValue::Done)
                }
                4 => (Op::Crc { src, len, seed: 0 }, OperationValue::Crc(cpu.crc32c(0, page))),
                5 => (
                    Op::CopyCrc { src, dst: copy, len, seed: 9 },
                    OperationValue::Crc(cpu.crc32c(9, page)),
                ),
                6 => {
                    // Room for eight entries, or for more than there can be.
                    let cap = if i % 5 == 0 { 80 } else { RECORD as u32 };
                    let made =
                        cpu.delta_create(page, changed, &mut scratch[..cap as usize]).unwrap();
                    (
                        Op::DeltaCreate { old: src, new, len, record, cap },
                        OperationValue::Delta(made),
                    )
                }
                _ => {
                    let made = cpu.delta_create(page, changed, &mut scratch).unwrap();
                    let size = match made {
                        Delta::Differs(size) => size,
                        _ => 0,
                    };
                    self.records[i * RECORD..][..size].copy_from_slice(&scratch[..size]);
                    self.copies[i * PAGE..][..PAGE].copy_from_slice(page);
                    (
                        Op::DeltaApply { record, size: size as u32, region: copy, len },
                        OperationValue::Done,
                    )
                }
            };
            self.ops.push(op);
            self.expected.push(value);
        }
    }

    fn check(&self, outcomes: &[OperationOutcome]) {
        assert_eq!(outcomes.len(), self.ops.len());
        let mut scratch = [0; RECORD];
        for (i, outcome) in outcomes.iter().enumerate() {
            // Hardware may say of a record that just fits that it overflows, and writes as much as it likes of one that does.
            let is_cut =
                |value: OperationValue| matches!(value, OperationValue::Delta(Delta::Overflow(_)));
            let just_fits = match (self.ops[i], self.expected[i]) {
                (Op::DeltaCreate { cap: 80, .. }, OperationValue::Delta(Delta::Differs(_))) => true,
                (_, expected) => is_cut(expected),
            };
            assert!(
                outcome.value == self.expected[i] || (just_fits && is_cut(outcome.value)),
                "operation {i}: {:?}, {outcome:?}, not {:?}",
                self.ops[i],
                self.expected[i]
            );
            let range = i * PAGE..(i + 1) * PAGE;
            let (page, changed) = (&self.pages[range.clone()], &self.changed[range.clone()]);
            let copy = &self.copies[range];
            match i % 8 {
                2 | 5 => assert!(copy == page, "operation {i}: copied wrongly, {outcome:?}"),
                3 => {
                    assert!(copy.chunks(8).all(|w| w == [8, 7, 6, 5, 4, 3, 2, 1]), "operation {i}")
                }
                6 => {
                    if let OperationValue::Delta(Delta::Differs(size)) = outcome.value {
                        let mut region = page.to_vec();
                        delta::apply(&self.records[i * RECORD..][..size], &mut region).unwrap();
                        assert!(region == changed, "operation {i}: wrong delta");
                    }
                    let made = Cpu::scalar().delta_create(page, changed, &mut scratch);
                    assert!(made.is_ok());
                }
                7 => assert!(copy == changed, "operation {i}: applied wrongly"),
                _ => {}
            }
        }
    }
}

fn models(count: usize, config: impl Fn(usize) -> model::ModelConfig) -> Vec<DeviceModel> {
    (0..count)
        .map(|i| DeviceModel::new(model::ModelConfig { name: format!("model{i}"), ..config(i) }))
        .collect()
}

fn portals(models: &[DeviceModel]) -> Vec<Box<dyn Portal>> {
    models.iter().map(|m| Box::new(m.portal().unwrap()) as Box<dyn Portal>).collect()
}

/// Patience that a busy machine does not use up: where nothing is lost or dead, nothing is waited for.
fn devices() -> EngineConfig {
    EngineConfig {
        policy: BackendPolicy::Device,
        patience: Duration::from_secs(600),
        drain: Duration::from_secs(600),
        ..EngineConfig::default()
    }
}

/// Tries of what depends on time: a thread of a device may be held for longer than is waited for it.
const TRIES: usize = 8;

/// Where something dies, and is waited for.
fn hasty() -> EngineConfig {
    EngineConfig {
        patience: Duration::from_millis(500),
        drain: Duration::from_secs(2),
        ..devices()
    }
}

/// Runs work of so many operations; gives how many a device takes.
fn run(dispatcher: &mut Dispatcher, count: usize) -> u64 {
    let work = EngineWork::new(count);
    // SAFETY: the work lives until its outcomes are here, and no other code touches it.
    let outcomes = unsafe { dispatcher.run(&work.ops) };
    work.check(&outcomes);
    work.for_device
}

#[test]
fn results_are_right_on_every_shape_of_device() {
    for (count, batch, depth, shared) in [
        (1, 32, 128, false),
        (4, 32, 128, true),
        (3, 2, 3, false),
        (2, 5, 2, true),
        (2, 0, 16, false),
    ] {
        for spread in [QueueSpread::LeastLoaded, QueueSpread::RoundRobin] {
            let models = models(count, |i| model::ModelConfig {
                batch,
                depth,
                shared,
                engines: 1 + i % 2,
                ..Default::default()
            });
            let mut dispatcher =
                Dispatcher::new(EngineConfig { spread, ..devices() }, portals(&models));
            let taken = run(&mut dispatcher, 1500);
            let stats = dispatcher.stats();
            assert!(taken > 1400, "{taken}");
            assert_eq!(stats.choices.get(&Choice::Device), Some(&taken), "{}", stats.describe());
            assert_eq!(stats.choices.get(&Choice::CpuUnfit), Some(&(1500 - taken)));
            assert!(stats.faults.is_empty(), "{}", stats.describe());
            assert_eq!(stats.queues.iter().map(|q| q.operations).sum::<u64>(), taken);
            for model in &models {
                assert_eq!(model.seen().overflows, 0, "more was handed over than the queue holds");
                assert!(model.seen().descriptors > 0, "a queue was left idle");
                assert_eq!(model.seen().batches > 0, batch >= 2);
            }
        }
    }
}

#[test]
fn results_are_right_when_one_job_in_a_hundred_fails() {
    let faults = [
        Wrong::PageFault { done: 100, write: false },
        Wrong::PageFault { done: 30, write: true },
        Wrong::PageFault { done: 0, write: true },
        Wrong::Status(0x10),
        Wrong::Status(0x11),
        Wrong::Status(0x13),
        Wrong::Status(0x16),
        Wrong::Status(0x1a),
        Wrong::Status(0x7f),
        Wrong::Lost,
    ];
    let attempt = |_| {
        let models = models(4, |i| model::ModelConfig {
            script: FaultScript::default().random(100, 40 + i as u64, &faults),
            ..Default::default()
        });
        let drain = Duration::from_secs(15);
        let config = EngineConfig { patience: Duration::from_secs(2), drain, ..devices() };
        let mut dispatcher = Dispatcher::new(config, portals(&models));
        run(&mut dispatcher, 8000);
        let stats = dispatcher.stats();
        let injected: u64 = models.iter().map(|m| m.seen().faults).sum();
        assert!((40..160).contains(&injected), "{injected}");
        // More of them are late where a device was held.
        (stats.faults.values().sum::<u64>() == injected).then_some((stats, injected))
    };
    let found = (0..TRIES).find_map(attempt);
    let (stats, injected) = found.expect("as many faults as were injected");
    assert_eq!(stats.choices.get(&Choice::CpuAfterFault), Some(&injected), "{}", stats.describe());
    assert!(stats.faults.get(&SeenFault::Lost).is_some_and(|n| *n > 0), "{}", stats.describe());
    assert!(stats.faults.contains_key(&SeenFault::Status(Status::PageFault)));
    assert!(stats.queues.iter().all(|q| q.dead.is_none()), "{}", stats.describe());
}

#[test]
fn a_dead_engine_is_taken_out_and_reported() {
    let attempt = |_| {
        let models = models(3, |i| model::ModelConfig {
            script: if i == 1 {
                FaultScript::default().at(70, Wrong::Dead)
            } else {
                FaultScript::default()
            },
            ..Default::default()
        });
        let mut dispatcher = Dispatcher::new(hasty(), portals(&models));
        run(&mut dispatcher, 3000);
        let stats = dispatcher.stats();
        assert!(stats.queues[1].dead.is_some(), "{}", stats.describe());
        let others = [0, 2].map(|i| stats.queues[i].dead.is_some());
        (others == [false; 2]).then_some((models, dispatcher, stats))
    };
    let found = (0..TRIES).find_map(attempt);
    let (_models, mut dispatcher, stats) = found.expect("only one is dead");
    assert!(
        stats.describe().contains("model1 was taken out: it did not drain in time"),
        "{}",
        stats.describe()
    );
    assert!(stats.faults.get(&SeenFault::QueueDead).is_some_and(|n| *n > 0));
    // The next work goes round it.
    let before = stats.queues[1].operations;
    run(&mut dispatcher, 500);
    assert_eq!(dispatcher.stats().queues[1].operations, before);
}

#[test]
fn with_all_devices_dead_the_cpu_does_it() {
    let models = models(2, |_| model::ModelConfig {
        script: FaultScript::default().at(0, Wrong::Dead),
        ..Default::default()
    });
    let mut dispatcher = Dispatcher::new(hasty(), portals(&models));
    run(&mut dispatcher, 2000);
    let stats = dispatcher.stats();
    assert!(stats.queues.iter().all(|q| q.dead.is_some()), "{}", stats.describe());
    assert!(stats.choices.get(&Choice::CpuNoQueue).is_some_and(|n| *n > 0), "{}", stats.describe());
    assert!(!stats.choices.contains_key(&Choice::Device));
}

#[test]
fn late_and_lost_completions_do_not_hang() {
    let late = Wrong::Late(Duration::from_millis(90));
    // A busy computer also delays records that are not lost: they must not count as late.
    let (short, long) = (Duration::from_millis(30), Duration::from_secs(3));
    for (name, wrong, fault, patience) in
        [("late", late, SeenFault::Late, short), ("lost", Wrong::Lost, SeenFault::Lost, long)]
    {
        for batch in [32, 0] {
            let script = FaultScript::default().at(40, wrong);
            let mut attempts = (0..TRIES).map(|_| {
                let models = models(1, |_| model::ModelConfig {
                    batch,
                    script: script.clone(),
                    ..Default::default()
                });
                let drain = Duration::from_secs(15);
                let config = EngineConfig { patience, drain, ..devices() };
                let mut dispatcher = Dispatcher::new(config, portals(&models));
                let start = Instant::now();
                run(&mut dispatcher, 400);
                let (stats, time) = (dispatcher.stats(), start.elapsed());
                let is_noticed = stats.faults.get(&fault).is_some_and(|n| *n > 0);
                let queue = &stats.queues[0];
                // In a batch that was lost in part the batch's own record came: nothing has to be drained.
                let is_drained = (queue.drains > 0) == (batch == 0 || name == "late");
                let is_right = is_noticed && is_drained && queue.dead.is_none();
                is_right && time < Duration::from_secs(14)
            });
            assert!(attempts.any(|is_right| is_right), "{name}, batches of {batch}");
        }
    }
}

#[test]
fn absent_pages_are_finished_by_the_cpu() {
    let models = models(1, |_| model::ModelConfig::default());
    let work = EngineWork::new(256);
    let start = work.pages.as_ptr() as u64;
    models[0].absent(start + 10 * PAGE as u64 + 1000..start + 30 * PAGE as u64);
    let start = work.copies.as_ptr() as u64;
    models[0].absent(start + 99 * PAGE as u64..start + 110 * PAGE as u64 + 64);
    let mut dispatcher = Dispatcher::new(devices(), portals(&models));
    // SAFETY: the work lives until its outcomes are here, and no other code touches it.
    let outcomes = unsafe { dispatcher.run(&work.ops) };
    work.check(&outcomes);
    let faults = dispatcher.stats().faults;
    assert!(faults[&SeenFault::Status(Status::PageFault)] >= 20, "{faults:?}");
    assert_eq!(faults.len(), 1);
}

#[test]
fn the_policy_reports_its_choice() {
    let models = models(2, |_| model::ModelConfig {
        service: Duration::from_micros(300),
        ..Default::default()
    });
    let auto = EngineConfig {
        policy: BackendPolicy::Auto,
        in_flight: 2,
        patience: Duration::from_secs(5),
        ..EngineConfig::default()
    };
    let mut dispatcher = Dispatcher::new(auto, portals(&models));
    run(&mut dispatcher, 8);
    assert_eq!(dispatcher.stats().choices, [(Choice::CpuSmall, 8)].into());
    run(&mut dispatcher, 4000);
    let stats = dispatcher.stats();
    assert!(stats.choices.get(&Choice::Device).is_some_and(|n| *n > 0), "{}", stats.describe());
    assert!(stats.choices.get(&Choice::CpuBusy).is_some_and(|n| *n > 0), "{}", stats.describe());
    assert!(stats.describe().contains("on the CPU (queues full)"), "{}", stats.describe());

    drop(dispatcher);
    let mut dispatcher = Dispatcher::new(
        EngineConfig { policy: BackendPolicy::Cpu, ..EngineConfig::default() },
        portals(&models),
    );
    run(&mut dispatcher, 100);
    assert_eq!(dispatcher.stats().choices, [(Choice::CpuByPolicy, 100)].into());

    let small = model::ModelConfig { transfer: PAGE as u64 / 2, ..Default::default() };
    let models = [DeviceModel::new(small)];
    let mut dispatcher = Dispatcher::new(devices(), portals(&models));
    let taken = run(&mut dispatcher, 100);
    let choices = [(Choice::CpuTooLarge, taken), (Choice::CpuUnfit, 100 - taken)];
    assert_eq!(dispatcher.stats().choices, choices.into());
}

#[test]
fn near_queues_are_preferred() {
    let mut shares = (0..TRIES).map(|_| {
        let models = models(2, |i| model::ModelConfig {
            node: Some(i as u32),
            service: Duration::from_micros(500),
            ..Default::default()
        });
        let config = EngineConfig { node: Some(1), ..devices() };
        let mut dispatcher = Dispatcher::new(config, portals(&models));
        run(&mut dispatcher, 480);
        let queues = dispatcher.stats().queues;
        [queues[1].operations, queues[0].operations]
    });
    assert!(shares.any(|[near, far]| near > far), "the far queue has more");
}

#[test]
fn least_loaded_goes_round_a_slow_queue() {
    let share = |spread| {
        let models = models(2, |i| model::ModelConfig {
            service: Duration::from_micros(if i == 0 { 2000 } else { 100 }),
            ..Default::default()
        });
        let config = EngineConfig { spread, batch: 8, in_flight: 4, ..devices() };
        let mut dispatcher = Dispatcher::new(config, portals(&models));
        run(&mut dispatcher, 600);
        let queues = dispatcher.stats().queues;
        queues[0].operations as f64 / 600.0
    };
    let mut shares =
        (0..TRIES).map(|_| (share(QueueSpread::LeastLoaded), share(QueueSpread::RoundRobin)));
    let is_round = |(least, turns): (f64, f64)| least < 0.3 && least <= turns + 0.05;
    assert!(shares.any(is_round), "the slow queue gets as much");
}

/// Deltas that the specification does not allow never reach a device, and have right results all the same.
#[test]
fn jobs_without_a_device_run_on_the_cpu() {
    let models = models(1, |_| model::ModelConfig::default());
    let mut dispatcher = Dispatcher::new(devices(), portals(&models));
    let (old, mut new) = (vec![1u8; PAGE + 8], vec![1u8; PAGE + 8]);
    (new[8], new[800]) = (2, 3);
    let mut record = vec![0u8; 1000];
    let (a, b, to) = (old.as_ptr(), new.as_ptr(), record.as_mut_ptr());
    let create = |shift: usize, cap: u32| Op::DeltaCreate {
        old: a.wrapping_add(shift),
        new: b.wrapping_add(shift),
        len: PAGE,
        record: to,
        cap,
    };
    let differs = OperationValue::Delta(Delta::Differs(20));
    let cases = [
        (create(0, 30), differs, Choice::CpuUnfit),
        (create(4, 1000), differs, Choice::CpuUnfit),
        (create(0, 79), differs, Choice::CpuUnfit),
        (create(0, 85), differs, Choice::Device),
        (create(0, 999), differs, Choice::Device),
        (Op::Crc { src: a, len: 0, seed: 9 }, OperationValue::Crc(9), Choice::CpuUnfit),
        (
            Op::DeltaApply { record: to, size: 15, region: b.cast_mut(), len: PAGE },
            OperationValue::Invalid,
            Choice::CpuUnfit,
        ),
    ];
    for (i, (op, value, choice)) in cases.into_iter().enumerate() {
        // SAFETY: the memory lives until the outcome is here, and no other code touches it.
        let outcomes = unsafe { dispatcher.run(&[op]) };
        assert_eq!((outcomes[0].value, outcomes[0].choice), (value, choice), "case {i}");
    }
    assert!(dispatcher.stats().faults.is_empty());
}

/// On real queues: VMTAX_DSA=/dev/dsa/wq0.0,... (`./x test-dsa` sets it).
#[test]
#[ignore = "needs Intel DSA: ./x test-dsa /dev/dsa/wq0.0"]
fn real_queues_give_right_results() {
    let queues =
        std::env::var("VMTAX_DSA").expect("VMTAX_DSA names queues: /dev/dsa/wq0.0,/dev/dsa/wq0.1");
    let roots = Roots::default();
    let open = |path: &str| {
        let queue =
            idxd::find(&roots, Path::new(path)).unwrap_or_else(|problem| panic!("{problem}"));
        let portal = idxd::Idxd::open(&roots, queue).unwrap_or_else(|problem| panic!("{problem}"));
        println!("{path}: {}, {:?}", portal.way(), portal.limits());
        Box::new(portal) as Box<dyn Portal>
    };
    for spread in [QueueSpread::LeastLoaded, QueueSpread::RoundRobin] {
        let portals = queues.split(',').map(open).collect();
        let mut dispatcher = Dispatcher::new(EngineConfig { spread, ..devices() }, portals);
        let taken = run(&mut dispatcher, 20_000);
        let stats = dispatcher.stats();
        println!("{}", stats.describe());
        assert!(stats.queues.iter().all(|q| q.dead.is_none()), "{}", stats.describe());
        let done = stats.choices.get(&Choice::Device).copied().unwrap_or(0);
        assert!(
            done * 100 > taken * 99,
            "hardly anything was done by the device: {}",
            stats.describe()
        );
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test]
fn jobs_are_polled_waited_for_and_awaited() {
    let models = models(2, |_| model::ModelConfig {
        service: Duration::from_micros(30),
        ..Default::default()
    });
    let engine = ThreadedEngine::start(devices(), portals(&models));
    let work: Vec<EngineWork> = (0..3).map(|i| EngineWork::new(300 + i)).collect();
    // SAFETY: the work lives until its outcomes are here, and no other code touches it.
    let jobs: Vec<_> = work.iter().map(|w| unsafe { engine.submit(w.ops.clone()) }).collect();
    let [polled, waited, awaited] = jobs.try_into().unwrap_or_else(|_| panic!("three jobs"));

    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut awaited = pin!(awaited);
    let outcomes = loop {
        match awaited.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcomes) => break outcomes,
            Poll::Pending => std::thread::park_timeout(Duration::from_secs(20)),
        }
    };
    work[2].check(&outcomes);
    work[1].check(&waited.wait(Duration::from_secs(600)).unwrap());
    let outcomes = loop {
        match polled.poll() {
            Some(outcomes) => break outcomes,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    work[0].check(&outcomes);
    let taken = work.iter().map(|w| w.for_device).sum();
    let unfit = (Choice::CpuUnfit, 903 - taken);
    assert_eq!(engine.stats().choices, [(Choice::Device, taken), unfit].into());
    // SAFETY: no operations.
    assert_eq!(unsafe { engine.submit(Vec::new()) }.wait(Duration::ZERO), Some(Vec::new()));
}

/// A wait has a bound even while nothing comes.
/// A queue whose code panics, as a defect would.
struct Broken;

impl Portal for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn limits(&self) -> QueueLimits {
        QueueLimits { depth: 16, batch: 16, transfer: 1 << 20, node: None }
    }

    unsafe fn submit(&mut self, _: &Descriptor) -> Submit {
        panic!("on purpose");
    }

    fn close(&mut self) {}
}

/// An engine whose thread panicked says so instead of letting its jobs be waited for without end, and a scan goes on without it.
#[test]
fn an_engine_that_panicked_is_noticed() {
    let engine = Arc::new(ThreadedEngine::start(devices(), vec![Box::new(Broken)]));
    let pages: Vec<u8> = (0..4 * PAGE).map(|i| u8::from(i > PAGE)).collect();
    let op = Op::Compval { src: pages.as_ptr(), len: PAGE, word: 0 };
    // SAFETY: the pages live until the engine is gone.
    let job = unsafe { engine.submit(vec![op]) };
    let start = Instant::now();
    while !job.is_abandoned() {
        assert_eq!(job.wait(Duration::from_millis(1)), None);
        assert!(start.elapsed() < Duration::from_secs(600));
    }
    let mut found = [PageFacts::default(); 4];
    PageEngine::new(engine).scan(&pages, &mut found);
    let mut right = [PageFacts::default(); 4];
    Cpu::best().scan(&pages, &mut right);
    assert_eq!(found, right);
}

/// Outcomes stay, for a thread that gave up waiting and asks again, and for every other.
#[test]
fn outcomes_are_given_each_time() {
    let models = models(1, |_| model::ModelConfig::default());
    let engine = ThreadedEngine::start(devices(), portals(&models));
    let page = vec![0; PAGE];
    let op = Op::Compval { src: page.as_ptr(), len: PAGE, word: 0 };
    // SAFETY: the page lives until the engine is gone.
    let job = unsafe { engine.submit(vec![op; 100]) };
    let wait = || {
        while job.wait(Duration::ZERO).is_none() {
            std::thread::yield_now();
        }
        job.wait(Duration::MAX).unwrap()
    };
    let all = std::thread::scope(|scope| {
        [(); 3].map(|()| scope.spawn(wait)).map(|thread| thread.join().unwrap())
    });
    for outcomes in all {
        assert_eq!(outcomes.len(), 100);
        assert!(outcomes.iter().all(|o| o.value == OperationValue::Equal(true)));
    }
    assert_eq!(job.poll().unwrap().len(), 100);
}

#[test]
fn a_wait_ends_in_time() {
    assert!((0..TRIES).any(|_| a_wait_ends()), "a wait takes as long as the device");
}

/// Whether a wait ended long before the device had done it.
fn a_wait_ends() -> bool {
    let models =
        models(1, |_| model::ModelConfig { service: Duration::from_secs(2), ..Default::default() });
    let engine = ThreadedEngine::start(devices(), portals(&models));
    let work = EngineWork::new(2);
    // SAFETY: the work outlives the engine, which is dropped first.
    let job = unsafe { engine.submit(work.ops.clone()) };
    let start = Instant::now();
    let has_waited = job.wait(Duration::from_millis(50)).is_none();
    let time = start.elapsed();
    drop(engine);
    work.check(&job.poll().unwrap());
    has_waited && time < Duration::from_millis(1900)
}
