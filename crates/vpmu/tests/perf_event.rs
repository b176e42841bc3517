//! The kernel's software events behind a guest's counters: they need no PMU.
//!
//! A machine that allows no perf_event_open at all (a container's filter) cannot run these, and says so.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::{Duration, Instant};

use vmtax_vpmu::event::select;
use vmtax_vpmu::host::perf_event::{EventOptions, EventSource, PerfEventHost, Software};
use vmtax_vpmu::host::{EventHost, EventRequest};
use vmtax_vpmu::{
    Counter, GeneralProtection, Intel, Pmu, PmuEvent, PmuModel, Policy, Programme, Trouble,
};

const BOTH: [Policy; 2] = [Policy::Legacy, Policy::Reuse];
/// Enabled in both modes with an interrupt: page faults and the thread's time, by the names the guest has for them.
const FAULTS: u64 = 0x53_00c0;
const CLOCK: u64 = 0x53_003c;
const WIDTH: u64 = 1 << 48;

/// Instructions are page faults, cycles the thread's nanoseconds, and other events are not there.
fn pmu(policy: Policy, options: EventOptions) -> Option<Pmu<PerfEventHost>> {
    let intel = Intel { fixed: 0, unavailable: !0b11, ..Intel::default() };
    let host = PerfEventHost::this_thread(options)
        .with_source(PmuEvent::Instructions, EventSource::Software(Software::PageFaults))
        .with_source(PmuEvent::Cycles, EventSource::Software(Software::TaskClock));
    let mut pmu = Pmu::new(PmuModel::Intel(intel), host, policy).ok()?;
    // Kernel mode too: that takes more rights.
    pmu.write(0x189, CLOCK).unwrap();
    let denied = pmu.notices().iter().any(|n| n.trouble == Trouble::Denied);
    pmu.write(0x189, 0).unwrap();
    if denied {
        vmtax_skipped::system("perf_event_open is not allowed here");
    }
    (!denied).then_some(pmu)
}

/// What a profiling guest does all the time: it takes a sample, and its thread goes and comes.
fn round(pmu: &mut Pmu<PerfEventHost>) -> Result<(), GeneralProtection> {
    for control in [0, 0xf] {
        pmu.write(0x38f, control)?;
    }
    for select in [CLOCK & !select::ENABLE, CLOCK] {
        pmu.write(0x38f, 0)?;
        pmu.write(0x4c1, 0)?;
        pmu.write(0x186, select)?;
        pmu.write(0x38f, 0xf)?;
    }
    Ok(())
}

/// Minor and major page faults of this thread so far.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // Fields 10 and 12 of the file; the third is the first behind the name.
    [fields[7], fields[9]].iter().map(|f| f.parse::<u64>().unwrap()).sum()
}

/// Fresh memory, touched. It must live on, or the allocator has it ready the next time.
fn touch(bytes: usize) -> Vec<u8> {
    std::hint::black_box(vec![1u8; bytes])
}

fn busy(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Takes this much of a processor's time, however long that is on a busy computer.
fn computes(time: Duration) {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let begin = now();
    while now() - begin < rustix::time::Timespec::try_from(time).unwrap() {
        std::hint::spin_loop();
    }
}

#[test]
fn page_faults_are_those_that_the_kernel_knows_of() {
    for policy in BOTH {
        let Some(mut pmu) = pmu(policy, EventOptions::default()) else { return };
        let outer = faults();
        pmu.write(0x186, FAULTS).unwrap();
        let inner = faults();
        // With stops in between, which must not lose any.
        let mut memory = Vec::new();
        for _ in 0..20 {
            memory.push(touch(1 << 20));
            pmu.write(0x38f, 0).unwrap();
            pmu.write(0x38f, 0xf).unwrap();
        }
        let inner = faults() - inner;
        let counted = pmu.read(0xc1).unwrap();
        let outer = faults() - outer;
        assert!(inner >= 20, "fresh memory faults: {inner}");
        // Under legacy no event is there while one is created.
        let slack = if policy == Policy::Legacy { 20 } else { 0 };
        assert!(
            (inner.saturating_sub(slack)..=outer).contains(&counted),
            "{policy:?} {inner} {counted} {outer}"
        );
        assert!(pmu.notices().is_empty());
    }
}

#[test]
fn the_threads_time_overflows_and_interrupts() {
    // The kernel can count the moment in which a period is set twice: 20 periods added up to 40 us to 10 ms in 700 runs. So it is tried again
    // if that comes to more than a twentieth of the time.
    for policy in BOTH {
        let mut differences = Vec::new();
        while differences.len() < 10 {
            match overflows(policy) {
                Some(Ok(())) => break,
                Some(Err(difference)) => differences.push(difference),
                None => return,
            }
        }
        assert!(differences.len() < 10, "{policy:?}: {differences:#?}");
    }
}

/// Ten overflows of the thread's time: what was counted if it is more than that time. `None` where no event can be opened.
fn overflows(policy: Policy) -> Option<Result<(), String>> {
    let mut pmu = pmu(policy, EventOptions::default())?;
    // A second event of the same kind measures how long the thread ran, by the clock that the kernel counts with.
    let mut whole = PerfEventHost::this_thread(EventOptions::default())
        .with_source(PmuEvent::Cycles, EventSource::Software(Software::TaskClock));
    let programme = Programme { event: PmuEvent::Cycles, user: true, kernel: true };
    let request = EventRequest { counter: Counter::General(0), programme, left: 0 };
    let id = whole.create(&request).unwrap();
    let period = 1_000_000;
    pmu.write(0x4c1, WIDTH - period).unwrap();
    let begin = Instant::now();
    pmu.write(0x186, CLOCK).unwrap();
    let mut samples = 0;
    while samples < 10 && begin.elapsed() < Duration::from_secs(300) {
        busy(Duration::from_micros(100));
        if pmu.deliver(false) {
            assert_eq!(pmu.read(0x38e), Ok(1));
            pmu.write(0x390, 1).unwrap();
            pmu.write(0x4c1, WIDTH - period).unwrap();
            samples += 1;
        }
    }
    let ran = whole.read(id).unwrap().count;
    assert_eq!(samples, 10, "{policy:?}");
    let activity = pmu.activity();
    assert_eq!(activity.interrupts, activity.delivered + activity.merged + activity.dropped);
    assert!(activity.counted >= 10 * period, "{policy:?}: {activity:?}");
    let is_more = activity.counted > ran + ran / 20;
    Some(if is_more { Err(format!("{activity:?} {ran}")) } else { Ok(()) })
}

#[test]
fn threads_that_are_started_count_if_inherited() {
    for inherit in [false, true] {
        let Some(mut pmu) = pmu(Policy::Reuse, EventOptions { inherit, ..EventOptions::default() })
        else {
            return;
        };
        pmu.write(0x4c1, WIDTH - 20_000_000).unwrap();
        pmu.write(0x186, CLOCK).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| computes(Duration::from_millis(60)));
        });
        // Its own part of this is small.
        assert_eq!(pmu.read(0x38e), Ok(u64::from(inherit)), "inherit {inherit}");
        assert_eq!(pmu.deliver(false), inherit);
    }
}

/// Minor and major page faults of processes that have ended and were waited for.
fn faults_of_children() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    // Fields 11 and 13 of the file; the third is the first behind the name.
    [fields[8], fields[10]].iter().map(|f| f.parse::<u64>().unwrap()).sum()
}

#[test]
fn only_a_program_that_is_started_counts_on_exec() {
    let options = EventOptions { inherit: true, on_exec: true, ..EventOptions::default() };
    let faults = PmuEvent::Raw(0x1234);
    let mut host = PerfEventHost::this_thread(options)
        .with_source(faults, EventSource::Software(Software::PageFaults));
    let programme = Programme { event: faults, user: true, kernel: false };
    let request = EventRequest { counter: Counter::General(0), programme, left: 0 };
    let id = match host.create(&request) {
        Err(Trouble::Denied) => {
            return vmtax_skipped::system("perf_event_open is not allowed here");
        }
        created => created.unwrap(),
    };
    let kept = touch(1 << 20);
    assert_eq!(host.read(id).unwrap().count, 0, "this process is not a program that is started");
    let before = faults_of_children();
    // Children of a child count, and faults in the kernel do not.
    let words = ["-c", "for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done; (exit 3)"];
    let status = std::process::Command::new("/bin/sh").args(words).status().unwrap();
    assert_eq!(status.code(), Some(3));
    let (counted, all) = (host.read(id).unwrap(), faults_of_children() - before);
    // Before the exec there are some, of the forked copy of this process.
    assert!(counted.count <= all && counted.count > all / 2, "{counted:?} of {all}");
    assert_eq!(counted.enabled, counted.running);
    drop(kept);
}

#[test]
fn events_refused_by_the_kernel_are_reported() {
    let intel = Intel { fixed: 0, unavailable: 0xff, ..Intel::default() };
    let model = PmuModel::Intel(intel);
    let nowhere = EventSource::Cache { cache: 200, operation: 0, result: 0 };
    let host = PerfEventHost::this_thread(EventOptions::default())
        .with_source(PmuEvent::Raw(0x1234), nowhere);
    let mut pmu = Pmu::new(model.clone(), host, Policy::Reuse).unwrap();
    pmu.write(0x186, 0x41_1234).unwrap();
    let notice = pmu.notices()[0];
    assert_eq!(
        (notice.counter, notice.trouble, notice.times),
        (Counter::General(0), Trouble::NoSuchEvent, 1)
    );
    assert_eq!(pmu.read(0xc1), Ok(0));
    // A thread that is not there.
    let source = EventSource::Software(Software::TaskClock);
    let host = PerfEventHost::new(i32::MAX, EventOptions::default())
        .with_source(PmuEvent::Raw(0x1234), source);
    let mut pmu = Pmu::new(model, host, Policy::Reuse).unwrap();
    pmu.write(0x186, 0x41_1234).unwrap();
    assert!(matches!(pmu.notices()[0].trouble, Trouble::ThreadGone | Trouble::Denied));
}

#[test]
fn steady_profiling_creates_nothing_under_reuse() {
    let rounds = 200;
    let mut creates = [0; 2];
    for (i, policy) in BOTH.into_iter().enumerate() {
        let Some(mut pmu) = pmu(policy, EventOptions::default()) else { return };
        round(&mut pmu).unwrap();
        let before = pmu.activity().creates;
        for _ in 0..rounds {
            round(&mut pmu).unwrap();
        }
        creates[i] = pmu.activity().creates - before;
    }
    // Global control twice a round.
    assert_eq!(creates, [2 * rounds, 0]);
}
