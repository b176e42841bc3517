//! Kernel interfaces that need `unsafe`: the ioctls and the ring buffer of a perf event, and ptrace. The only unsafe file of this crate.

#![expect(unsafe_code, reason = "ioctl, mmap and ptrace have no safe form")]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::io;
use std::os::fd::AsRawFd;
#[cfg(all(feature = "kvm", target_arch = "x86_64"))]
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(all(feature = "kvm", target_arch = "x86_64"))]
use vmtax_perf_event::{EventAttributes, Of};

/// An ioctl of an open event.
#[derive(Clone, Copy, Debug)]
pub(super) enum EventIoctl {
    Enable,
    Disable,
    Period(u64),
}

/// Sends an ioctl to an event.
pub(super) fn control(fd: &impl AsRawFd, request: EventIoctl) -> io::Result<()> {
    const ENABLE: libc::c_ulong = 0x2400;
    const DISABLE: libc::c_ulong = 0x2401;
    const PERIOD: libc::c_ulong = 0x4008_2404;
    let fd = fd.as_raw_fd();
    let result = match request {
        // SAFETY: takes no pointer.
        EventIoctl::Enable => unsafe { libc::ioctl(fd, ENABLE as _, 0) },
        // SAFETY: takes no pointer.
        EventIoctl::Disable => unsafe { libc::ioctl(fd, DISABLE as _, 0) },
        // SAFETY: the kernel reads one u64 at the pointer.
        EventIoctl::Period(period) => unsafe { libc::ioctl(fd, PERIOD as _, &raw const period) },
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes an event signal a thread when it overflows.
pub(super) fn signal(fd: &impl AsRawFd, signal: i32, thread: i32) -> io::Result<()> {
    /// `struct f_owner_ex`.
    #[repr(C)]
    struct Owner {
        kind: libc::c_int,
        pid: libc::pid_t,
    }
    const F_SETSIG: libc::c_int = 10;
    const F_SETOWN_EX: libc::c_int = 15;
    const F_OWNER_TID: libc::c_int = 0;
    let fd = fd.as_raw_fd();
    let owner = Owner { kind: F_OWNER_TID, pid: thread };
    // SAFETY: the kernel reads one `f_owner_ex` at the pointer; the other two calls take no pointer.
    let results = unsafe {
        [
            libc::fcntl(fd, F_SETOWN_EX, &raw const owner),
            libc::fcntl(fd, F_SETSIG, signal),
            libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK),
        ]
    };
    if results.contains(&-1) { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The calling thread's id.
pub(super) fn this_thread() -> i32 {
    // SAFETY: takes no pointer and cannot fail.
    unsafe { libc::gettid() }
}

/// Signals of a vCPU's thread.
#[cfg(all(feature = "kvm", target_arch = "x86_64"))]
pub(crate) mod vcpu {
    use std::io;
    use std::mem::zeroed;
    use std::os::fd::AsRawFd;
    use std::ptr::null_mut;

    /// Blocks a signal in this thread except during KVM_RUN, which it interrupts. A signal that arrives just before KVM_RUN interrupts it
    /// too.
    pub(crate) fn signal_ends_run(vcpu: &impl AsRawFd, signal: i32) -> io::Result<()> {
        /// `struct kvm_signal_mask` with the kernel's set behind it.
        #[repr(C)]
        struct Mask {
            bytes: u32,
            set: [u8; 8],
        }
        const KVM_SET_SIGNAL_MASK: libc::c_ulong = 0x4004_ae8b;
        let set = only(signal);
        // SAFETY: all zeros is a set, and both calls work on whole ones.
        let (blocked, before) = unsafe {
            let mut before: libc::sigset_t = zeroed();
            (libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before), before)
        };
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        let mut mask = Mask { bytes: 8, set: [0; 8] };
        for number in (1..=64).filter(|number| *number != signal) {
            // SAFETY: reads a set.
            if unsafe { libc::sigismember(&raw const before, number) } == 1 {
                mask.set[(number - 1) as usize / 8] |= 1 << ((number - 1) % 8);
            }
        }
        // SAFETY: the kernel reads the structure, whose set has as many bytes as it says.
        let result =
            unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_SET_SIGNAL_MASK as _, &raw const mask) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Consumes a pending blocked signal, if there is one.
    pub(crate) fn forget(signal: i32) {
        let set = only(signal);
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: reads a set and a time; what came is not asked for.
        unsafe { libc::sigtimedwait(&raw const set, null_mut(), &raw const at_once) };
    }

    fn only(signal: i32) -> libc::sigset_t {
        // SAFETY: all zeros is a set, which the calls make the empty one and add to.
        unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, signal);
            set
        }
    }
}

/// A record of an event's ring buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Records {
    pub(super) overflowed: bool,
    pub(super) throttled: bool,
}

/// An event's ring buffer: the kernel's page and one of records.
#[derive(Debug)]
pub(super) struct Ring {
    base: NonNull<u8>,
    page: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Offsets in `struct perf_event_mmap_page`.
    const HEAD: usize = 1024;
    const TAIL: usize = 1032;

    /// `overwritten`: records are not read, and new ones replace old ones.
    pub(super) fn map(fd: &impl AsRawFd, overwritten: bool) -> io::Result<Ring> {
        // SAFETY: takes no pointer.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        // The kernel does not wait for a reader whose mapping cannot be written.
        let write = if overwritten { 0 } else { libc::PROT_WRITE };
        let protection = libc::PROT_READ | write;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this process.
        let base = unsafe {
            let fd = fd.as_raw_fd();
            libc::mmap(std::ptr::null_mut(), 2 * page, protection, libc::MAP_SHARED, fd, 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Ring { base, page })
    }

    /// Bytes of records that the kernel has written so far.
    fn head(&self) -> u64 {
        self.word(Ring::HEAD).load(Ordering::Acquire)
    }

    /// A word shared with the kernel.
    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the offset is aligned and within the first page, which stays mapped as long as `self`; the kernel
        // accesses it atomically too.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Eight bytes of the records, at a position that only grows.
    fn record(&self, position: u64) -> u64 {
        let offset = self.page + (position as usize % self.page);
        // SAFETY: the offset is aligned, as sizes of records are, and within the second page, which stays mapped as
        // long as `self`. The kernel has written it before it moved the head, and writes it again only after the tail
        // moved.
        unsafe { self.base.as_ptr().add(offset).cast::<u64>().read_volatile() }
    }

    /// Takes all records.
    pub(super) fn take(&self) -> Records {
        const THROTTLE: u64 = 5;
        const LOST: u64 = 2;
        const SAMPLE: u64 = 9;
        let head = self.head();
        let mut tail = self.word(Ring::TAIL).load(Ordering::Relaxed);
        let mut records = Records::default();
        while tail < head {
            // Type in the lower 32 bits, size in the upper 16.
            let header = self.record(tail);
            match header & 0xffff_ffff {
                // Samples that did not fit were overflows too.
                SAMPLE | LOST => records.overflowed = true,
                THROTTLE => records.throttled = true,
                _ => {}
            }
            tail += (header >> 48).next_multiple_of(8).max(8);
        }
        self.word(Ring::TAIL).store(head, Ordering::Release);
        records
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), 2 * self.page) };
    }
}

/// The switches of a thread: an event that counts nothing, whose ring gets a record at each of them.
#[cfg(all(feature = "kvm", target_arch = "x86_64"))]
#[derive(Debug)]
pub(crate) struct ThreadSwitches {
    ring: Ring,
    /// Bytes of records that were seen.
    seen: u64,
    /// Last: the ring is unmapped first.
    _fd: OwnedFd,
}

#[cfg(all(feature = "kvm", target_arch = "x86_64"))]
impl ThreadSwitches {
    pub(crate) fn of_this_thread() -> io::Result<ThreadSwitches> {
        const SOFTWARE: u32 = 1;
        const DUMMY: u64 = 9;
        // exclude_kernel and exclude_hv, so that no privilege is needed; context_switch.
        const FLAGS: u64 = 1 << 5 | 1 << 6 | 1 << 26;
        let attr = EventAttributes {
            kind: SOFTWARE,
            config: DUMMY,
            flags: FLAGS,
            ..EventAttributes::default()
        };
        let fd = vmtax_perf_event::open(&attr, Of::Thread(this_thread()))?;
        let ring = Ring::map(&fd, true)?;
        Ok(ThreadSwitches { seen: ring.head(), ring, _fd: fd })
    }

    /// Whether there was a switch since the last call.
    pub(crate) fn happened(&mut self) -> bool {
        let head = self.ring.head();
        std::mem::replace(&mut self.seen, head) != head
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use tracee::{TracedStop, Tracee};

#[cfg(target_arch = "x86_64")]
mod tracee {
    use std::cell::Cell;
    use std::io;
    use std::marker::PhantomData;
    use std::ptr::{NonNull, null_mut};

    /// Why a traced process is stopped.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in super::super) enum TracedStop {
        Trap,
        Signal(i32),
        Exited,
    }

    /// A process that runs a piece of code by single steps. Ends when it is dropped, or with its tracer.
    #[derive(Debug)]
    pub(in super::super) struct Tracee {
        pid: libc::pid_t,
        memory: TracedMemory,
        /// It was reaped, so its process id may be reused.
        gone: Cell<bool>,
        /// The kernel has only the thread that started it trace it.
        here: PhantomData<*const ()>,
    }

    /// Memory at the same address here and there: code, zeros, stack.
    #[derive(Debug)]
    struct TracedMemory {
        base: NonNull<libc::c_void>,
        code: usize,
    }

    const SCRATCH: usize = 64 << 10;
    const STACK: usize = 64 << 10;

    impl TracedMemory {
        fn new(code: &[u8]) -> io::Result<TracedMemory> {
            // Room behind the code, as where the program ends must be an address.
            let room = (code.len() + 1).next_multiple_of(4096);
            let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            let length = room + SCRATCH + STACK;
            // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this process.
            let base = unsafe { libc::mmap(null_mut(), length, protection, flags, -1, 0) };
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let base = NonNull::new(base).ok_or(io::ErrorKind::Other)?;
            // SAFETY: the mapping is longer than the code, and no other code has it yet.
            unsafe { base.as_ptr().cast::<u8>().copy_from(code.as_ptr(), code.len()) };
            Ok(TracedMemory { base, code: room })
        }

        fn address(&self) -> u64 {
            self.base.as_ptr() as u64
        }
    }

    impl Drop for TracedMemory {
        fn drop(&mut self) {
            // SAFETY: the mapping was made with this length, and nothing refers to it any more.
            unsafe { libc::munmap(self.base.as_ptr(), self.code + SCRATCH + STACK) };
        }
    }

    impl Tracee {
        pub(in super::super) fn start(code: &[u8]) -> io::Result<Tracee> {
            let memory = TracedMemory::new(code)?;
            // SAFETY: the child makes system calls only, by functions that may be used between fork and exec.
            let pid = unsafe {
                let pid = libc::fork();
                if pid == 0 {
                    libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                    libc::raise(libc::SIGSTOP);
                    libc::_exit(1);
                }
                pid
            };
            if pid < 0 {
                return Err(io::Error::last_os_error());
            }
            let tracee = Tracee { pid, memory, gone: Cell::new(false), here: PhantomData };
            if tracee.wait()? != TracedStop::Signal(libc::SIGSTOP) {
                return Err(io::Error::other("the process does not stop to be traced"));
            }
            // SAFETY: takes no pointer.
            check(unsafe {
                libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, libc::PTRACE_O_EXITKILL)
            })?;
            let stopped = tracee.registers()?;
            let base = tracee.memory.address();
            let scratch = base + tracee.memory.code as u64;
            // SAFETY: all zeros are registers.
            let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
            registers.rip = base;
            registers.rdi = scratch;
            registers.rsp = scratch + (SCRATCH + STACK) as u64;
            (registers.cs, registers.ss) = (stopped.cs, stopped.ss);
            // Not in a system call, which would be begun again.
            registers.orig_rax = u64::MAX;
            // Bit 1 is always set; bit 9 allows interrupts.
            registers.eflags = 0x202;
            // SAFETY: the kernel reads one structure.
            check(unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, 0, &raw const registers) })?;
            Ok(tracee)
        }

        /// Where it is in its code.
        pub(in super::super) fn offset(&self) -> io::Result<u64> {
            Ok(self.registers()?.rip.wrapping_sub(self.memory.address()))
        }

        /// Has the processor run one instruction, or one repetition.
        pub(in super::super) fn step(&self) -> io::Result<TracedStop> {
            // SAFETY: takes no pointer.
            check(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.pid, 0, 0) })?;
            self.wait()
        }

        fn registers(&self) -> io::Result<libc::user_regs_struct> {
            // SAFETY: all zeros are registers, and the kernel writes one structure.
            unsafe {
                let mut registers: libc::user_regs_struct = std::mem::zeroed();
                check(libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, &raw mut registers))?;
                Ok(registers)
            }
        }

        fn wait(&self) -> io::Result<TracedStop> {
            let mut status = 0;
            // SAFETY: the kernel writes one integer.
            while unsafe { libc::waitpid(self.pid, &raw mut status, 0) } < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
            self.gone.set(!libc::WIFSTOPPED(status));
            Ok(match libc::WSTOPSIG(status) {
                _ if self.gone.get() => TracedStop::Exited,
                libc::SIGTRAP => TracedStop::Trap,
                signal => TracedStop::Signal(signal),
            })
        }
    }

    impl Drop for Tracee {
        fn drop(&mut self) {
            if self.gone.get() {
                return;
            }
            // SAFETY: takes no pointer. The end of the child has not been waited for, so that the number is its own.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, null_mut(), 0);
            }
        }
    }

    fn check(result: libc::c_long) -> io::Result<()> {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(all(test, feature = "kvm", target_arch = "x86_64"))]
mod tests {
    use super::ThreadSwitches;

    #[test]
    fn a_switch_of_the_thread_is_seen_once() {
        let Ok(mut switches) = ThreadSwitches::of_this_thread() else {
            vmtax_skipped::system("perf_event_open is not allowed here");
            return;
        };
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert!(switches.happened());
            // Other threads may take the processor at any time, but not always.
            assert!((0..100_000).any(|_| !switches.happened()));
        }
    }
}
