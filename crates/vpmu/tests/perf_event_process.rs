//! The kernel's events where the process itself is changed: its limit of files, its signals. One test, as the process
//! is one.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(unsafe_code, reason = "limits and signals of a process have no safe form")]

use std::time::Duration;

use vmtax_vpmu::host::perf_event::{EventOptions, EventSource, PerfEventHost, Software};
use vmtax_vpmu::{Counter, Intel, Pmu, PmuEvent, PmuModel, Policy, Trouble};

const CLOCK: u64 = 0x53_003c;

fn pmu(options: EventOptions) -> Pmu<PerfEventHost> {
    let intel = Intel { fixed: 0, unavailable: !1, ..Intel::default() };
    let host = PerfEventHost::this_thread(options)
        .with_source(PmuEvent::Cycles, EventSource::Software(Software::TaskClock));
    Pmu::new(PmuModel::Intel(intel), host, Policy::Reuse).unwrap()
}

fn denied(pmu: &mut Pmu<PerfEventHost>) -> bool {
    pmu.notices().iter().any(|n| n.trouble == Trouble::Denied)
}

/// The limit of open files, or what it was before it is set.
fn set_files(limit: u64) -> u64 {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one structure.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut old) }, 0);
    let new = libc::rlimit { rlim_cur: limit, ..old };
    // SAFETY: the kernel reads one structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const new) }, 0);
    old.rlim_cur
}

/// Blocks a signal in this thread, and returns how to wait for it.
fn block(signal: i32) -> impl Fn(Duration) -> bool {
    // SAFETY: all zeros is a set of signals, which the two calls make the empty one and add to.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        set
    };
    // SAFETY: reads one set; the old one is not asked for.
    let blocked =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    assert_eq!(blocked, 0);
    move |time| {
        let time =
            libc::timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        // SAFETY: reads a set and a time.
        let got =
            unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const time) };
        got == signal
    }
}

#[test]
fn signals_and_the_limit_of_files() {
    let mut pmu = pmu(EventOptions { signal: Some(libc::SIGUSR1), ..EventOptions::default() });
    let wait = block(libc::SIGUSR1);
    pmu.write(0x4c1, (1 << 48) - 20_000_000).unwrap();
    pmu.write(0x186, CLOCK).unwrap();
    if denied(&mut pmu) {
        return vmtax_skipped::system("perf_event_open is not allowed here");
    }
    // Spins until the counter is beyond its overflow: then the signal must have been sent.
    assert!(!wait(Duration::ZERO), "nothing overflowed yet");
    // A processor's time, which is what it counts.
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let until = now() + rustix::time::Timespec { tv_sec: 0, tv_nsec: 60_000_000 };
    while now() < until {
        std::hint::spin_loop();
    }
    assert!(wait(Duration::from_secs(300)), "no signal");
    assert!(pmu.deliver(false));

    let limit = set_files(0);
    pmu.write(0x187, CLOCK).unwrap();
    set_files(limit);
    let notices = pmu.notices();
    assert_eq!(
        (notices[0].counter, notices[0].trouble),
        (Counter::General(1), Trouble::TooManyFiles)
    );
    assert_eq!(pmu.read(0xc2), Ok(0));
    // The next change of the register finds a file.
    pmu.write(0x187, CLOCK & !(1 << 17)).unwrap();
    std::hint::black_box((0..1000).sum::<u64>());
    assert!(pmu.read(0xc2).unwrap() > 0);
    assert!(pmu.notices().is_empty());
}
