//! Lives of VMs, from open(2) of /dev/kvm to close(2): what each step takes, and how much of that the processor was idle.
//!
//! The steps of a life are calls of this thread. Each is timed by the TSC (arm64: the generic timer); on a host whose clock counts instructions, what the processor
//! was not idle of that time are instructions. How long it was idle is the kernel's own count, `idle_sleeptime` and `iowait_sleeptime` of
//! /proc/timer_list, which is exact to the nanosecond and costs the step nothing. It is read where this thread has left the processor since
//! it was read last: on one processor nothing is idle while a thread runs. A kernel without these lines (Debian's 7.3) has the tracepoint
//! `cpu_idle`: from its entry to its exit, interrupts that end it included, and a few hundred instructions of each are added to the step.
//!
//! ```text
//! settle    read the idle time, if the thread left the processor
//! the clock, the step, the clock
//! settle    again: the difference is the step's
//! ```
//!
//! A recorded life has the thread's switches recorded in an instance of its own, each with its stack, so that each wait has a place.
//!
//! On several processors others may be idle while this thread runs: there a step has waited while the thread was on no processor, by its own
//! processor time (CLOCK_THREAD_CPUTIME_ID). The clock counts instructions of all processors, so that what is left has those of the others.

#[cfg_attr(target_arch = "x86_64", path = "life/x86.rs")]
#[cfg_attr(target_arch = "aarch64", path = "life/arm.rs")]
pub(crate) mod machine;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use kvm_bindings::{
    KVM_IRQFD_FLAG_DEASSIGN, kvm_ioeventfd, kvm_ioeventfd_flag_nr_deassign, kvm_irqfd,
    kvm_userspace_memory_region,
};
use machine::{CODE, EXITS, STORES, aim, ticks};
use vmtax_guest::layout;
use vmtax_guest::order::{LifeStep, Operation, OrderOutcome};

use crate::ports::{self, MarkCode};
use crate::trace::{self, IdleTrace, SwitchTrace, Tracer};
use crate::{Result, system};

/// A pause between lives and within them, so that no work of the one before is left (grace periods of RCU, freed memory).
const PAUSE: Duration = Duration::from_millis(300);
const SHIFT: Duration = Duration::from_micros(700);
/// cgroup2, and the group of this program.
const CGROUPS: &str = "/sys/fs/cgroup";
const OWN_GROUP: &str = "/sys/fs/cgroup/vmtax";
const EXPEDITED: &str = "/sys/kernel/rcu_expedited";
/// Why steps are not measured.
const NO_IDLE_TIME: &str = "/proc/timer_list has lost idle_sleeptime";
const NO_FAVORDYNMODS: &str = "this kernel's cgroup2 has no favordynmods (Linux 6.0)";

/// What came of a step.
#[derive(Default)]
struct StepTaken {
    /// Cycles, by life.
    cycles: Vec<u64>,
    /// Of these, idle.
    waited: Vec<u64>,
    /// Where it waited in a recorded life.
    places: Vec<(String, u64)>,
    /// When it began and ended in a recorded life.
    window: Option<(u64, u64)>,
    /// What this kernel lacks for it.
    missing: Option<String>,
}

/// Steps of VMs' lives. All are taken in each life, so that what one takes does not depend on what else was ordered.
pub(crate) fn steps(operations: &[Operation], tracer: &Tracer, record: bool) -> Vec<OrderOutcome> {
    let mut taken = measure(operations, record.then_some(tracer));
    let outcome = |one: &Operation| {
        let number = one.number;
        let step =
            one.step.and_then(|step| taken.as_mut().map(|all| all.remove(&step)).transpose());
        match step {
            Some(Ok(StepTaken { cycles, waited, places, window, missing })) => OrderOutcome {
                number,
                cycles,
                waited,
                places,
                window,
                missing,
                ..OrderOutcome::default()
            },
            Some(Err(problem)) => {
                OrderOutcome { number, failure: Some(problem.clone()), ..OrderOutcome::default() }
            }
            None => OrderOutcome { number, ..OrderOutcome::default() },
        }
    };
    operations.iter().map(outcome).collect()
}

/// Lets VMs live, and measures the steps of these operations. With a tracer it is one, whose exits are recorded, and whose waits have places.
fn measure(
    operations: &[Operation],
    tracer: Option<&Tracer>,
) -> Result<BTreeMap<LifeStep, StepTaken>> {
    let most = operations.iter().map(|one| one.batches).max().unwrap_or(0);
    let lives = if tracer.is_some() { 1 } else { most };
    enter_group()?;
    trace::mount()?;
    let numbers: BTreeMap<LifeStep, u16> =
        operations.iter().filter_map(|one| Some((one.step?, one.number))).collect();
    let ports = numbers.values().flat_map(|number| [layout::begin(*number), layout::end(*number)]);
    let mut clock = StepClock {
        source: IdleSource::open()?,
        marks: MarkCode::new(ports.chain([layout::PREPARE, layout::DONE]).collect())?,
        numbers,
        idle: 0,
        switches: -1,
        taken: BTreeMap::new(),
        windows: Vec::new(),
    };
    let boots = operations.iter().find(|one| one.step == Some(LifeStep::BootLinux));
    let boots = boots.map(|one| one.protected);
    for life in 0..lives {
        // Each life begins at another time between two clock ticks, on which grace periods depend.
        std::thread::sleep(PAUSE + SHIFT * life);
        let Some(tracer) = tracer else {
            clock.live(boots)?;
            continue;
        };
        let switches = SwitchTrace::start()?;
        tracer.record(true);
        let lived = clock.live(boots);
        tracer.record(false);
        let waits = switches.finish()?;
        lived?;
        clock.place(&waits);
        if let Tracer::Here(_) = tracer {
            clock.date();
        }
    }
    Ok(clock.taken)
}

/// Has cgroup2, and this program in a group of its own, as a VMM of a service or a container is.
fn enter_group() -> Result<()> {
    system::mount("cgroup2", CGROUPS)?;
    fs::create_dir_all(OWN_GROUP).map_err(|e| format!("{OWN_GROUP}: {e}"))?;
    join(OWN_GROUP)
}

fn join(group: &str) -> Result<()> {
    let path = format!("{group}/cgroup.procs");
    fs::write(&path, "0").map_err(|e| format!("{path}: {e}"))
}

/// Measures steps.
struct StepClock {
    source: IdleSource,
    /// Tell a recorder in the emulator of each step, outside of the time that is measured.
    marks: MarkCode,
    /// Operations that are to be told.
    numbers: BTreeMap<LifeStep, u16>,
    /// Idle time when the thread had left the processor so often.
    idle: u64,
    switches: i64,
    taken: BTreeMap<LifeStep, StepTaken>,
    /// Beginnings and ends of the steps of this life.
    windows: Vec<(LifeStep, u64, u64)>,
}

impl StepClock {
    /// A life with all steps, or the boot of Linux in a VM that is protected or is not.
    fn live(&mut self, boots: Option<bool>) -> Result<()> {
        self.marks.write(layout::PREPARE);
        match boots {
            Some(is_protected) => machine::boot(self, is_protected)?,
            None => {
                one(self)?;
                starts(self)?;
            }
        }
        self.marks.write(layout::DONE);
        Ok(())
    }

    /// Takes a step.
    fn step<T>(&mut self, step: LifeStep, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.settle()?;
        let (idle, left) = (self.idle, self.switches);
        self.mark(step, layout::begin);
        let ran = self.source.own_time();
        let began = ticks();
        let done = call();
        let ended = ticks();
        let ran =
            self.source.own_time().zip(ran).map(|(after, before)| after.saturating_sub(before));
        self.mark(step, layout::end);
        self.settle()?;
        let done = done?;
        let cycles = ended.saturating_sub(began);
        let waited = match ran {
            None => self.idle.saturating_sub(idle),
            // A thread that stayed on its processor has not waited; what reading the clocks takes is less than this.
            Some(_) if switches()? == left => 0,
            Some(ran) => cycles.saturating_sub(ran),
        };
        let taken = self.taken.entry(step).or_default();
        taken.cycles.push(cycles);
        taken.waited.push(waited);
        self.windows.push((step, began, ended));
        Ok(done)
    }

    fn mark(&self, step: LifeStep, port: fn(u16) -> u16) {
        if let Some(number) = self.numbers.get(&step) {
            self.marks.write(port(*number));
        }
    }

    /// Reads the idle time, if this thread has left the processor since.
    fn settle(&mut self) -> Result<()> {
        if switches()? != self.switches {
            self.idle = self.source.idle_time()?;
            // Reading does not wait, so nothing was idle meanwhile.
            self.switches = switches()?;
        }
        Ok(())
    }

    fn lacks(&mut self, step: LifeStep, what: &str) {
        self.taken.entry(step).or_default().missing = Some(what.to_owned());
    }

    /// Says when the steps were, by the clock of the recording.
    fn date(&mut self) {
        let ahead = ports::trace_clock_ahead();
        for (step, began, ended) in &self.windows {
            let window = (began.wrapping_add_signed(ahead), ended.wrapping_add_signed(ahead));
            self.taken.entry(*step).or_default().window = Some(window);
        }
    }

    /// Gives each wait to the step in which it began.
    fn place(&mut self, waits: &[(u64, u64, String)]) {
        for (from, until, place) in waits {
            let within =
                |(_, began, ended): &&(LifeStep, u64, u64)| (*began..*ended).contains(from);
            let Some((step, ..)) = self.windows.iter().find(within) else { continue };
            let places = &mut self.taken.entry(*step).or_default().places;
            let waited = until.saturating_sub(*from);
            match places.iter_mut().find(|(known, _)| known == place) {
                Some((_, sum)) => *sum += waited,
                None => places.push((place.clone(), waited)),
            }
        }
    }
}

/// How often this thread has left the processor.
fn switches() -> Result<i64> {
    // SAFETY: a structure of numbers, which the call fills.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        match libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) {
            0 => Ok(usage.ru_nvcsw + usage.ru_nivcsw),
            _ => Err(format!("getrusage: {}", std::io::Error::last_os_error())),
        }
    }
}

/// Where the idle time comes from.
enum IdleSource {
    /// The thread's processor time; there are several processors.
    Thread,
    /// /proc/timer_list.
    Kernel,
    /// The tracepoint.
    Traced(IdleTrace),
}

impl IdleSource {
    fn open() -> Result<IdleSource> {
        if fs::exists("/sys/devices/system/cpu/cpu1").unwrap_or(false) {
            return Ok(IdleSource::Thread);
        }
        match idle_time_of(&timer_list()) {
            Some(_) => Ok(IdleSource::Kernel),
            None => IdleTrace::start().map(IdleSource::Traced),
        }
    }

    /// How long this thread was on a processor until now, ns, where that is what counts.
    fn own_time(&self) -> Option<u64> {
        if !matches!(self, IdleSource::Thread) {
            return None;
        }
        // SAFETY: a structure of numbers, which the call fills.
        let time = unsafe {
            let mut time: libc::timespec = std::mem::zeroed();
            libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
            time
        };
        Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// How long the processor was idle until now, ns.
    fn idle_time(&mut self) -> Result<u64> {
        match self {
            IdleSource::Thread => Ok(0),
            IdleSource::Kernel => {
                idle_time_of(&timer_list()).ok_or_else(|| NO_IDLE_TIME.to_owned())
            }
            IdleSource::Traced(trace) => trace.idle_time(),
        }
    }
}

fn timer_list() -> String {
    fs::read_to_string("/proc/timer_list").unwrap_or_default()
}

/// From the lines `  .idle_sleeptime : 1234 nsecs` and `.iowait_sleeptime`.
fn idle_time_of(text: &str) -> Option<u64> {
    let value = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let is_idle = matches!(name.trim(), ".idle_sleeptime" | ".iowait_sleeptime");
        is_idle.then(|| value.trim().strip_suffix(" nsecs")?.parse::<u64>().ok()).flatten()
    };
    text.lines().filter_map(value).reduce(u64::saturating_add)
}

/// Requests of KVM, by Linux's `include/uapi/linux/kvm.h`.
mod request {
    pub(super) const CREATE_VM: u32 = 0xae01;
    pub(super) const VCPU_MMAP_SIZE: u32 = 0xae04;
    pub(super) const CREATE_VCPU: u32 = 0xae41;
    pub(super) const SET_MEMORY: u32 = 0x4020_ae46;
    pub(super) const IRQFD: u32 = 0x4020_ae76;
    pub(super) const IOEVENTFD: u32 = 0x4040_ae79;
    pub(super) const RUN: u32 = 0xae80;
}

/// One system call and no more, as the crates for KVM do not promise: a request with a number.
fn call(file: &OwnedFd, request: u32, number: usize) -> Result<i32> {
    assert!(request >> 16 == 0, "a request with a structure");
    // SAFETY: these requests take a number.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, number) };
    answered(request, answer)
}

/// A request with a structure.
fn with<T>(file: &impl AsRawFd, request: u32, structure: *mut T) -> Result<i32> {
    assert_eq!((request >> 16 & 0x3fff) as usize, size_of::<T>(), "another structure");
    // SAFETY: the structure is the request's, by its size, and the callers' own; what follows one with a number of entries is there.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), request as libc::Ioctl, structure) };
    answered(request, answer)
}

fn answered(request: u32, answer: i32) -> Result<i32> {
    match answer {
        -1 => Err(format!("KVM request {request:#x}: {}", std::io::Error::last_os_error())),
        answer => Ok(answer),
    }
}

fn owned(descriptor: i32) -> OwnedFd {
    // SAFETY: KVM has just made it, and nobody else has it.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn open_kvm() -> Result<OwnedFd> {
    let file = File::options().read(true).write(true).open("/dev/kvm");
    file.map(OwnedFd::from).map_err(|e| format!("/dev/kvm: {e}"))
}

fn eventfd() -> Result<OwnedFd> {
    // SAFETY: takes numbers; the descriptor is new.
    match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) } {
        -1 => Err(format!("eventfd: {}", std::io::Error::last_os_error())),
        descriptor => Ok(owned(descriptor)),
    }
}

/// Anonymous memory.
struct AnonymousPages {
    start: *mut libc::c_void,
    bytes: usize,
}

impl AnonymousPages {
    fn new(bytes: usize) -> Result<AnonymousPages> {
        let start = system::map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        // SAFETY: within the mapping. A kernel without huge pages refuses, and has small ones.
        unsafe { libc::madvise(start, bytes, libc::MADV_NOHUGEPAGE) };
        Ok(AnonymousPages { start, bytes })
    }

    fn address(&self) -> u64 {
        self.start as u64
    }
}

impl Drop for AnonymousPages {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; a VM that had it is gone.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

const CODE_AT: usize = 0x1000;
const LOW: u64 = 1 << 20;
/// Slots after the first: 2 MiB each, every 4 MiB.
const SLOTS: u64 = 0x100_0000;
const SLOT: u64 = 2 << 20;
const SLOTS_APART: u64 = 4 << 20;
/// Where a slot is moved to.
const MOVED: u64 = 0x2000_0000;
const PAGES_STORED: u64 = 256;
/// Where ioeventfds are.
const DEVICES: u64 = 0xd000_0000;
const PAIRS: u64 = 8;

fn slot(vm: &OwnedFd, number: u32, guest: u64, (host, bytes): (u64, u64)) -> Result<i32> {
    let mut region = kvm_userspace_memory_region {
        slot: number,
        flags: 0,
        guest_phys_addr: guest,
        memory_size: bytes,
        userspace_addr: host,
    };
    with(vm, request::SET_MEMORY, &raw mut region)
}

fn ioeventfd(vm: &OwnedFd, device: u64, event: &OwnedFd, flags: u32) -> Result<i32> {
    let mut wanted = kvm_ioeventfd {
        addr: DEVICES + device * 4096,
        len: 4,
        fd: event.as_raw_fd(),
        flags,
        ..Default::default()
    };
    with(vm, request::IOEVENTFD, &raw mut wanted)
}

fn irqfd(vm: &OwnedFd, gsi: u32, event: &OwnedFd, flags: u32) -> Result<i32> {
    let mut wanted = kvm_irqfd { fd: event.as_raw_fd() as u32, gsi, flags, ..Default::default() };
    with(vm, request::IRQFD, &raw mut wanted)
}

/// `KVM_IOEVENTFD_FLAG_DEASSIGN`.
const DEASSIGN: u32 = 1 << kvm_ioeventfd_flag_nr_deassign;

fn low() -> Result<AnonymousPages> {
    let low = AnonymousPages::new(LOW as usize)?;
    // SAFETY: the code fits into the mapping, which nothing else uses yet.
    unsafe {
        std::ptr::copy_nonoverlapping(
            CODE.as_ptr().cast::<u8>(),
            low.start.cast::<u8>().wrapping_add(CODE_AT),
            size_of_val(&CODE),
        );
    }
    Ok(low)
}

fn enter(vcpu: &OwnedFd) -> Result<i32> {
    call(vcpu, request::RUN, 0)
}

/// A life with all steps but whole starts.
fn one(clock: &mut StepClock) -> Result<()> {
    use LifeStep as S;
    let (low, events) = (low()?, eventfd()?);
    let memory = AnonymousPages::new((12 * SLOTS_APART) as usize)?;
    let part = |number: u64| (memory.address() + number * SLOTS_APART, SLOT);
    let at = |number: u64| SLOTS + number * SLOTS_APART;
    let kvm = clock.step(S::OpenKvm, open_kvm)?;
    let (vm, first, second) = machine::create(clock, &kvm, &low)?;
    aim(&first, EXITS, (0, 0))?;
    aim(&second, EXITS, (0, 0))?;
    clock.step(S::RunFirst, || enter(&first))?;
    clock.step(S::RunAgain, || enter(&first))?;
    clock.step(S::RunSecondVcpu, || enter(&second))?;
    for number in 1..12 {
        let add = || slot(&vm, number as u32, at(number), part(number));
        if number == 9 {
            clock.step(S::SlotTenth, add)?
        } else {
            add()?
        };
    }
    clock.step(S::SlotDeleted, || slot(&vm, 11, at(11), (part(11).0, 0)))?;
    // Page tables that the one before took away are there again.
    enter(&first)?;
    clock.step(S::SlotMoved, || slot(&vm, 10, MOVED, part(10)))?;
    aim(&first, STORES, (at(1), PAGES_STORED))?;
    clock.step(S::Faults, || enter(&first))?;
    clock.step(S::SlotDeletedMapped, || slot(&vm, 1, at(1), (part(1).0, 0)))?;
    clock.step(S::Irqfd, || irqfd(&vm, 5, &events, 0))?;
    clock.step(S::IrqfdDeassigned, || irqfd(&vm, 5, &events, KVM_IRQFD_FLAG_DEASSIGN))?;
    clock.step(S::Ioeventfd, || ioeventfd(&vm, 0, &events, 0))?;
    clock.step(S::IoeventfdDeassigned, || ioeventfd(&vm, 0, &events, DEASSIGN))?;
    std::thread::sleep(PAUSE);
    clock.step(S::IoeventfdPairs, || {
        (0..PAIRS).try_for_each(|device| {
            ioeventfd(&vm, device, &events, 0)?;
            ioeventfd(&vm, device, &events, DEASSIGN).map(drop)
        })
    })?;
    std::thread::sleep(PAUSE);
    aim(&first, STORES, (at(2), PAGES_STORED))?;
    enter(&first)?;
    clock.step(S::CloseVcpu, || {
        drop(second);
        Ok(())
    })?;
    drop(events);
    clock.step(S::DestroyMapped, || {
        drop(first);
        drop(vm);
        Ok(())
    })?;
    machine::ends(clock, &kvm)?;
    clock.step(S::CloseKvm, || {
        drop(kvm);
        Ok(())
    })
}

/// Whole starts, each of a VM of its own.
fn starts(clock: &mut StepClock) -> Result<()> {
    start(clock, LifeStep::StartMemoryFirst, None)?;
    start(clock, LifeStep::StartIrqchipFirst, Some(LifeStep::Destroy))?;
    join(CGROUPS)?;
    start(clock, LifeStep::StartRootCgroup, None)?;
    join(OWN_GROUP)?;
    if favor_moves(true).is_ok() {
        start(clock, LifeStep::StartFavordynmods, None)?;
        favor_moves(false)?;
    } else {
        clock.lacks(LifeStep::StartFavordynmods, NO_FAVORDYNMODS);
    }
    let expedite = |on: &str| fs::write(EXPEDITED, on).map_err(|e| format!("{EXPEDITED}: {e}"));
    let before = fs::read_to_string(EXPEDITED).map_err(|e| format!("{EXPEDITED}: {e}"))?;
    expedite("1")?;
    start(clock, LifeStep::StartExpedited, None)?;
    expedite(before.trim())
}

/// Switches cgroup2's `favordynmods` on or off. Before Linux 6.5 it is off where it is not asked for, and there is no word for that.
fn favor_moves(on: bool) -> Result<()> {
    let remount = |options| system::remount("cgroup2", CGROUPS, options);
    match on {
        true => remount("favordynmods")?,
        false => remount("nofavordynmods").or_else(|_| remount(""))?,
    }
    let mounts = fs::read_to_string("/proc/mounts").map_err(|e| format!("/proc/mounts: {e}"))?;
    let is_on =
        mounts.lines().any(|line| line.contains(" cgroup2 ") && line.contains("favordynmods"));
    if is_on == on { Ok(()) } else { Err(format!("cgroup2: favordynmods stays {is_on}")) }
}

/// A whole start and its end.
fn start(clock: &mut StepClock, step: LifeStep, end: Option<LifeStep>) -> Result<()> {
    std::thread::sleep(PAUSE);
    let memory_first = step == LifeStep::StartMemoryFirst;
    let low = low()?;
    let room = machine::room()?;
    let events: Vec<OwnedFd> = (0..5).map(|_| eventfd()).collect::<Result<_>>()?;
    let life = clock.step(step, || whole(memory_first, &events, room, low))?;
    std::thread::sleep(PAUSE);
    let Life { vcpus, vm, kvm, _room, _low } = life;
    let destroy = || {
        drop(vcpus);
        drop(vm);
        Ok(())
    };
    match end {
        Some(end) => clock.step(end, destroy)?,
        None => destroy()?,
    }
    drop((kvm, events));
    Ok(())
}

/// A VM that lives. What it has mapped is given back last.
struct Life {
    vcpus: Vec<OwnedFd>,
    vm: OwnedFd,
    kvm: OwnedFd,
    _room: machine::Room,
    _low: AnonymousPages,
}

/// Starts a VM of two vCPUs as a VMM does, with four devices that have an ioeventfd and an irqfd each.
fn whole(
    memory_first: bool,
    events: &[OwnedFd],
    mut room: machine::Room,
    low: AnonymousPages,
) -> Result<Life> {
    let kvm = open_kvm()?;
    call(&kvm, request::VCPU_MMAP_SIZE, 0)?;
    let memory = |vm: &OwnedFd| slot(vm, 0, machine::MEMORY, (low.address(), LOW)).map(drop);
    let devices = |vm: &OwnedFd| {
        (0..).zip(&events[1..]).try_for_each(|(number, event)| {
            irqfd(vm, 5 + number, event, 0)?;
            ioeventfd(vm, number.into(), &events[0], 0).map(drop)
        })
    };
    let (vm, vcpus) = machine::start(&kvm, memory_first, &mut room, &memory, &devices)?;
    aim(&vcpus[0], EXITS, (0, 0))?;
    enter(&vcpus[0])?;
    Ok(Life { vcpus, vm, kvm, _room: room, _low: low })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of Debian's Linux 6.1.
    #[test]
    fn the_idle_time_is_that_of_all_processors() {
        let text = "cpu: 0\n  .nohz_mode      : 2\n  .idle_entrytime : 3159412021 nsecs\n  .idle_sleeptime : 2113900108 nsecs\n  .iowait_sleeptime: 18000011 nsecs\n\
                    cpu: 1\n  .idle_sleeptime : 5 nsecs\n  .iowait_sleeptime: 1 nsecs\n";
        assert_eq!(idle_time_of(text), Some(2_131_900_125));
        assert_eq!(idle_time_of("  .idle_entrytime : 3159412021 nsecs\n"), None);
        assert_eq!(idle_time_of("  .idle_sleeptime : many nsecs\n"), None);
    }
}
