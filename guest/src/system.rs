//! System calls that the standard library lacks.

use std::ffi::CString;
use std::io::{Error, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use vmtax_guest::order::{decode, encode};

use crate::Result;

fn text(string: &str) -> Result<CString> {
    CString::new(string).map_err(|_| format!("{string:?} has a NUL byte in it"))
}

/// A new mapping of memory to read and write, wherever the kernel puts it.
pub(crate) fn map(
    bytes: usize,
    flags: libc::c_int,
    file: libc::c_int,
) -> Result<*mut libc::c_void> {
    // SAFETY: a new mapping; checked below.
    let mapping = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, file, 0)
    };
    if mapping == libc::MAP_FAILED {
        return Err(format!("no memory to touch: {}", Error::last_os_error()));
    }
    Ok(mapping)
}

/// Makes a folder, if it is not there.
pub(crate) fn folder(path: &str) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|e| format!("{path}: {e}"))
}

/// `mount(2)` of a file system that has no device. Already mounted is fine.
pub(crate) fn mount(kind: &str, target: &str) -> Result<()> {
    folder(target)?;
    let (kind_c, target_c) = (text(kind)?, text(target)?);
    // SAFETY: the strings live over the call; no data is passed.
    let answer = unsafe {
        libc::mount(kind_c.as_ptr(), target_c.as_ptr(), kind_c.as_ptr(), 0, std::ptr::null())
    };
    if answer == 0 || Error::last_os_error().raw_os_error() == Some(libc::EBUSY) {
        return Ok(());
    }
    Err(format!("mounting {kind} on {target}: {}", Error::last_os_error()))
}

/// Changes options of a mounted file system.
pub(crate) fn remount(kind: &str, target: &str, options: &str) -> Result<()> {
    let (kind_c, target_c, options_c) = (text(kind)?, text(target)?, text(options)?);
    // SAFETY: the strings live over the call; the last one is what this file system reads.
    let answer = unsafe {
        libc::mount(
            kind_c.as_ptr(),
            target_c.as_ptr(),
            kind_c.as_ptr(),
            libc::MS_REMOUNT,
            options_c.as_ptr().cast(),
        )
    };
    if answer == 0 {
        return Ok(());
    }
    Err(format!("mounting {target} with {options}: {}", Error::last_os_error()))
}

/// Loads a kernel module with its parameters; false if the kernel refuses their values. Already there is fine.
pub(crate) fn load_module(path: &Path, parameters: &str) -> Result<bool> {
    let file = std::fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let parameters = text(parameters)?;
    // SAFETY: the descriptor is open and the string lives over the call.
    let answer =
        unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), parameters.as_ptr(), 0) };
    if answer == 0 || Error::last_os_error().raw_os_error() == Some(libc::EEXIST) {
        return Ok(true);
    }
    let error = Error::last_os_error();
    if error.raw_os_error() == Some(libc::EINVAL) && !parameters.is_empty() {
        return Ok(false);
    }
    Err(match error.raw_os_error() {
        Some(libc::ENOEXEC) => format!("loading {}: {}", path.display(), refused_module(path)),
        _ => format!("loading {}: {error}", path.display()),
    })
}

/// Waits until the kernel has freed what a module needed for its start alone: a worker does that after a grace period, and whether the next module gets
/// these addresses would depend on when (kernel/module/main.c, `do_free_init`).
pub(crate) fn settle() {
    const BEGINS: Duration = Duration::from_millis(20);
    const ENDS: Duration = Duration::from_millis(5);
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    std::thread::sleep(BEGINS);
    // SAFETY: it has no pointers. It waits for a grace period that begins after the worker's.
    let _ = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    std::thread::sleep(ENDS);
}

/// Why the kernel refuses a module: `Exec format error` says little.
fn refused_module(path: &Path) -> String {
    let magic = b"vermagic=";
    let bytes = std::fs::read(path).unwrap_or_default();
    let start =
        bytes.windows(magic.len()).position(|part| part == magic).map(|at| at + magic.len());
    let word =
        start.and_then(|at| bytes.get(at..)?.split(|byte| *byte == b' ' || *byte == 0).next());
    let built_for = word.map_or_else(|| "another kernel".into(), String::from_utf8_lossy);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!(
        "the kernel refuses it (\"Exec format error\"): it was built for {built_for}, and this kernel is {}; use the modules of the same build",
        release.trim()
    )
}

/// Detaches from the console's terminal.
pub(crate) fn leave_console() -> Result<()> {
    let nothing = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|e| format!("/dev/null: {e}"))?;
    for standard in 0..3 {
        // SAFETY: both descriptors are open; the standard ones belong to this process alone.
        if unsafe { libc::dup2(nothing.as_raw_fd(), standard) } < 0 {
            return Err(format!("dup2: {}", Error::last_os_error()));
        }
    }
    Ok(())
}

/// Prints a line on the console by way of the kernel's log, at a level that `quiet` lets through.
pub(crate) fn say(line: &str) {
    let written = std::fs::write("/dev/kmsg", format!("<1>{line}"));
    // Without it there is no way to report.
    drop(written);
}

/// Ends the machine.
pub(crate) fn power_off() -> ! {
    // SAFETY: plain system calls. All output has been written to the console or the mailbox.
    unsafe {
        libc::sync();
        libc::reboot(libc::RB_POWER_OFF);
    }
    loop {
        std::thread::park();
    }
}

/// Waits until the kernel's next clock tick is at least this far away, so that the following code runs undisturbed. The time must be less
/// than a period.
///
/// Ticks are a period apart, except for drift of their timer, so an observed tick predicts the next ones for some time.
pub(crate) fn away_from_tick(need: Duration) {
    let mut resolution = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &raw mut resolution) };
    let period = resolution.tv_nsec;
    if period <= 0 {
        return;
    }
    static SEEN: AtomicI64 = AtomicI64::new(i64::MIN);
    let (now, seen) = (clock(libc::CLOCK_MONOTONIC), SEEN.load(Ordering::Relaxed));
    if now.saturating_sub(seen) < MEMORY {
        let left = period - (now - seen).rem_euclid(period);
        let need = i64::try_from(need.as_nanos()).unwrap_or(i64::MAX).min(period / 10 * 9);
        if left >= need {
            return;
        }
        sleep(left - EARLY);
    }
    SEEN.store(next_tick(), Ordering::Relaxed);
}

/// Time for which an observed tick predicts the next ones, ns: a timer of 1.19 MHz has drifted by 15 us then.
const MEMORY: i64 = 250_000_000;
/// Time before a tick to wake up, ns.
const EARLY: i64 = 100_000;

/// Waits for a tick and returns its time. The coarse clock changes at each tick, but its values are rounded.
fn next_tick() -> i64 {
    let before = clock(libc::CLOCK_MONOTONIC_COARSE);
    while clock(libc::CLOCK_MONOTONIC_COARSE) == before {}
    clock(libc::CLOCK_MONOTONIC)
}

/// Sleeps until the next full tenth of a second of this kernel's time.
///
/// How many instructions it takes to read an order depends on the emulator's disk, whose requests take real time. Operations that begin at another moment in each run
/// have other paths, because the kernel did something else before. So a host looks for its first order at these moments, from which a restored one therefore goes on, and
/// carries it out at the next one.
pub(crate) fn align() {
    let now = clock(libc::CLOCK_MONOTONIC);
    sleep_until((now / ALIGNED + 1) * ALIGNED);
}

/// Sleeps until a time of this kernel.
pub(crate) fn sleep_until(next: i64) {
    const SECOND: i64 = 1_000_000_000;
    let until = libc::timespec { tv_sec: next / SECOND, tv_nsec: next % SECOND };
    // SAFETY: reads one timespec. No signal is expected; after one it returns earlier.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const until,
            std::ptr::null_mut(),
        )
    };
}

/// Time between the moments of [`align`], ns: longer than the emulator's disk takes for an order, shorter than anybody notices on hardware.
pub(crate) const ALIGNED: i64 = 100_000_000;

fn sleep(ns: i64) {
    if let Ok(ns) = u64::try_from(ns) {
        std::thread::sleep(Duration::from_nanos(ns));
    }
}

/// A clock's time, nanoseconds.
pub(crate) fn clock(which: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(which, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// A field of the first processor in the text of `/proc/cpuinfo`.
pub(crate) fn cpuinfo_field<'t>(info: &'t str, name: &str) -> Option<&'t str> {
    info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// The running kernel's release.
pub(crate) fn release() -> String {
    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned()
}

/// Interrupts a process, as Ctrl-C would.
pub(crate) fn interrupt(pid: u32) {
    // SAFETY: sends a signal to a child of ours that has not been waited for.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGINT) };
}

/// Whether this is the first process, in a machine of its own.
pub(crate) fn is_first() -> bool {
    std::process::id() == 1
}

/// Prints an error on standard error.
#[expect(
    clippy::print_stderr,
    reason = "as a program among others it speaks to whoever started it"
)]
pub(crate) fn complain(line: &str) {
    eprintln!("{line}");
}

/// Creates a folder with mode 0700.
pub(crate) fn private_folder(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).create(path)
}

/// Switches the loopback interface on.
pub(crate) fn loopback_up() -> Result<()> {
    Interface::new("lo")?.up()
}

pub(crate) struct Interface {
    name: String,
    socket: std::os::fd::OwnedFd,
}

impl Interface {
    pub(crate) fn new(name: &str) -> Result<Interface> {
        use std::os::fd::FromRawFd;
        // SAFETY: a new descriptor, which is owned from here on, or -1, which is not used.
        let socket = unsafe {
            match libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) {
                -1 => return Err(format!("socket: {}", Error::last_os_error())),
                fd => std::os::fd::OwnedFd::from_raw_fd(fd),
            }
        };
        Ok(Interface { name: name.to_owned(), socket })
    }

    pub(crate) fn up(&self) -> Result<()> {
        let mut request = self.request();
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        self.set(libc::SIOCSIFFLAGS as _, request, "switching it on")
    }

    /// Its IPv4 address and network.
    pub(crate) fn address(&self, address: [u8; 4], prefix: u8) -> Result<()> {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
        for (order, value) in
            [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, mask.to_be_bytes())]
        {
            let mut request = self.request();
            // SAFETY: an address of zeroes is valid.
            let mut socket_address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
            socket_address.sin_family = libc::AF_INET as libc::sa_family_t;
            socket_address.sin_addr.s_addr = u32::from_ne_bytes(value);
            // SAFETY: both are 16 bytes of plain memory, and the kernel reads the second by its family.
            request.ifr_ifru.ifru_addr =
                unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(socket_address) };
            self.set(order as _, request, "giving it an address")?;
        }
        Ok(())
    }

    /// Makes it, a bridge.
    pub(crate) fn make_bridge(&self) -> Result<()> {
        let name = self.request().ifr_name;
        // SAFETY: the call reads a name that ends with a zero.
        let made =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), SIOCBRADDBR as _, &raw const name) };
        self.done(made, "making the bridge")
    }

    /// Makes another one a port of it, a bridge.
    pub(crate) fn add_port(&self, port: &Interface) -> Result<()> {
        let mut request = port.request();
        // SAFETY: the call reads a name and writes a number, both in the request.
        let found = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFINDEX as _, &raw mut request)
        };
        port.done(found, "finding it")?;
        // SAFETY: the call above wrote the number.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        let mut request = self.request();
        request.ifr_ifru.ifru_ifindex = index;
        self.set(SIOCBRADDIF as _, request, "adding a port")
    }

    /// A request about it, in which the rest is zero.
    pub(crate) fn request(&self) -> libc::ifreq {
        // SAFETY: an interface request of zeroes is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // The last byte stays zero.
        let places = request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1);
        for (to, from) in places.zip(self.name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        request
    }

    fn set(&self, order: libc::Ioctl, mut request: libc::ifreq, what: &str) -> Result<()> {
        // SAFETY: the request is of the form that these orders read.
        let answer = unsafe { libc::ioctl(self.socket.as_raw_fd(), order, &raw mut request) };
        self.done(answer, what)
    }

    fn done(&self, answer: libc::c_int, what: &str) -> Result<()> {
        if answer < 0 {
            let error = Error::last_os_error();
            return Err(format!("network interface {}: {what}: {error}", self.name));
        }
        Ok(())
    }
}

/// Orders of linux/sockios.h: make a bridge, add a port to one.
const SIOCBRADDBR: u32 = 0x89a0;
const SIOCBRADDIF: u32 = 0x89a2;

/// Calls `last` and ends when the parent dies, or on a request to end.
pub(crate) fn end_with_parent(last: fn()) -> Result<()> {
    // SAFETY: sets of signals are plain memory; the mask is that of this thread and of those it starts.
    let signals = unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signals);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::sigaddset(&raw mut signals, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        signals
    };
    let waits = move || {
        let mut signal = 0;
        // SAFETY: both live over the call.
        while unsafe { libc::sigwait(&raw const signals, &raw mut signal) } != 0 {}
        last();
        std::process::exit(128 + signal);
    };
    std::thread::Builder::new().spawn(waits).map(drop).map_err(|e| format!("thread: {e}"))?;
    Ok(())
}

/// Most bytes of a request on standard input.
const REQUEST_MOST: u64 = 4 << 20;

/// What a program among others is to do.
pub(crate) fn from_input<T: for<'a> serde::Deserialize<'a>>() -> Result<T> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().take(REQUEST_MOST).read_to_end(&mut bytes);
    read.map_err(|e| format!("standard input: {e}"))?;
    decode(&bytes).ok_or_else(|| "standard input holds nothing that it could do".to_owned())
}

pub(crate) fn to_output<T: serde::Serialize>(answer: &T) -> Result<()> {
    std::io::stdout().write_all(&encode(answer)).map_err(|e| format!("standard output: {e}"))
}

/// The command gets its own process group, is killed when this process dies, and has no blocked signals.
pub(crate) fn bind_to_parent(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
    let prepare = || {
        // SAFETY: system calls on memory of this function.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls alone.
    unsafe { command.pre_exec(prepare) };
}

/// Kills a process and all of its group.
pub(crate) fn kill_group(leader: u32) {
    // SAFETY: sends a signal to a group whose leader is a child of ours that was not waited for, or just was.
    unsafe { libc::kill(-leader.cast_signed(), libc::SIGKILL) };
}

/// Sends SIGTERM to a process.
pub(crate) fn terminate(pid: u32) {
    // SAFETY: sends a signal to a child of ours that has not been waited for.
    unsafe { libc::kill(pid.cast_signed(), libc::SIGTERM) };
}

/// The processors that this program may run on, two or more.
pub(crate) fn several_processors() -> Result<Vec<usize>> {
    // SAFETY: a set of processors is plain memory, and the call writes one.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
        set
    };
    // SAFETY: the numbers are within the set.
    let is_usable = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    let usable: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(is_usable).collect();
    match usable.len() {
        0 | 1 => Err("it needs two processors, and there is one".to_owned()),
        _ => Ok(usable),
    }
}

/// Processors of this machine.
pub(crate) fn processors() -> usize {
    // SAFETY: reads a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1).max(1)
}

/// Switches on a swap with a header.
pub(crate) fn swap_on(path: &str) -> Result<()> {
    let name = text(path)?;
    // SAFETY: the string lives over the call.
    match unsafe { libc::swapon(name.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(format!("swapon {path}: {}", Error::last_os_error())),
    }
}

/// Switches it off, which reads what is still in it.
pub(crate) fn swap_off(path: &str) -> Result<()> {
    let name = text(path)?;
    // SAFETY: the string lives over the call.
    match unsafe { libc::swapoff(name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(format!("swapoff {path}: {}", Error::last_os_error())),
    }
}

/// Has the kernel write this memory of a process to swap. What is locked stays, which is no error.
pub(crate) fn page_out(pid: u32, start: usize, bytes: usize) -> Result<()> {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: a new descriptor, which is owned from here on, or -1, which is not used.
    let process = unsafe {
        match libc::syscall(libc::SYS_pidfd_open, pid, 0) {
            -1 => return Err(format!("pidfd_open: {}", Error::last_os_error())),
            fd => OwnedFd::from_raw_fd(fd as i32),
        }
    };
    let range = libc::iovec { iov_base: start as *mut libc::c_void, iov_len: bytes };
    // SAFETY: reads one iovec; the advice changes no content of that memory.
    let answer = unsafe {
        let advice = libc::MADV_PAGEOUT;
        libc::syscall(
            libc::SYS_process_madvise,
            process.as_raw_fd(),
            &raw const range,
            1,
            advice,
            0,
        )
    };
    let error = Error::last_os_error();
    match answer {
        // Locked memory is refused.
        -1 if error.raw_os_error() != Some(libc::EINVAL) => {
            Err(format!("process_madvise: {error}"))
        }
        _ => Ok(()),
    }
}

/// `membarrier(2)`.
pub(crate) fn membarrier(command: libc::c_int) -> std::io::Result<()> {
    // SAFETY: no memory is passed.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if answer < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Pins the calling thread to a processor.
pub(crate) fn stay_on(cpu: usize) -> Result<()> {
    pin(0, cpu)
}

/// Pins a thread to a processor; 0 is the calling one.
pub(crate) fn pin(tid: u32, cpu: usize) -> Result<()> {
    // SAFETY: the set is plain memory that lives over the call.
    let answer = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(tid.cast_signed(), size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if answer == 0 { Ok(()) } else { Err(format!("processor {cpu}: {}", Error::last_os_error())) }
}

pub(crate) struct UntouchedMemory {
    start: *mut u8,
    /// From here on it is aligned to a huge page.
    aligned: *mut u8,
    bytes: usize,
}

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;

impl UntouchedMemory {
    /// This number of bytes, with or without huge pages.
    pub(crate) fn new(bytes: usize, huge: bool) -> Result<UntouchedMemory> {
        // SAFETY: a new private mapping; nothing else is changed.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes + HUGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(format!("memory: {}", Error::last_os_error()));
        }
        let start = start.cast::<u8>();
        let aligned = start.wrapping_add(start.align_offset(HUGE));
        let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: the range lies within the mapping. A kernel without huge pages refuses, and has small ones.
        unsafe { libc::madvise(aligned.cast(), bytes, advice) };
        Ok(UntouchedMemory { start, aligned, bytes })
    }

    /// Small pages that stay in use when this program ends: a System V segment that nobody removes.
    #[cfg(target_arch = "aarch64")]
    pub(crate) fn lasting(bytes: usize) -> Result<UntouchedMemory> {
        // SAFETY: a new segment, mapped where nothing else is; where there is none, -1 is refused.
        let start = unsafe {
            let segment = libc::shmget(libc::IPC_PRIVATE, bytes + HUGE, libc::IPC_CREAT | 0o600);
            libc::shmat(segment, std::ptr::null(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(format!("memory that stays: {}", Error::last_os_error()));
        }
        let start = start.cast::<u8>();
        Ok(UntouchedMemory { start, aligned: start, bytes })
    }

    /// Writes a byte in each `step`.
    pub(crate) fn touch(&self, step: usize) {
        for at in (0..self.bytes).step_by(step) {
            // SAFETY: within the mapping, which is this value's alone.
            unsafe { self.aligned.add(at).write_volatile(1) };
        }
    }

    /// Takes the right to write from it, and gives it back.
    pub(crate) fn protect(&self) -> Result<()> {
        for rights in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
            // SAFETY: the range lies within the mapping, which nothing accesses meanwhile.
            if unsafe { libc::mprotect(self.aligned.cast(), self.bytes, rights) } != 0 {
                return Err(format!("mprotect: {}", Error::last_os_error()));
            }
        }
        Ok(())
    }

    /// Gives all of it back but the first `kept` bytes of each `step`.
    pub(crate) fn give_back(&self, kept: usize, step: usize) -> Result<()> {
        for at in (0..self.bytes).step_by(step) {
            let rest = step.min(self.bytes - at).saturating_sub(kept);
            // SAFETY: the range lies within the mapping, whose content nobody reads.
            let answer = unsafe {
                libc::madvise(self.aligned.add(at + kept).cast(), rest, libc::MADV_DONTNEED)
            };
            if answer != 0 {
                return Err(format!("madvise: {}", Error::last_os_error()));
            }
        }
        Ok(())
    }

    /// Whether the kernel uses huge pages for it.
    pub(crate) fn is_huge(&self) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let head = format!("{:x}-", self.aligned as usize);
        let mapping = maps.split_inclusive("VmFlags").find(|part| {
            // The advice splits the mapping where the aligned part begins.
            part.lines().any(|line| line.starts_with(&head))
        });
        mapping.is_some_and(|part| {
            part.lines().any(|line| {
                line.starts_with("AnonHugePages:") && !line.trim_end().ends_with(" 0 kB")
            })
        })
    }
}

impl Drop for UntouchedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing of it is used any more.
        unsafe { libc::munmap(self.start.cast(), self.bytes + HUGE) };
    }
}
