//! The kernel of a user's static program in a bare guest: loads it anew for each batch, and carries out the few system calls without which none starts.
//!
//! The program runs in ring 0. Its SYSCALL leads to a payload's `OUT`, at which this sets the registers; the guest itself has no kernel whose accesses
//! to memory would be among the program's. A call that is not here fails with ENOSYS. Left out: files, threads, clocks, giving memory back, and signals but
//! for those that the program raises, which end it.

use std::collections::BTreeSet;

use kvm_bindings::{kvm_fpu, kvm_regs};
use kvm_ioctls::VcpuFd;
use vmtax_guest::layout;
use vmtax_guest::order::UserProgram;

use super::failed;
use super::paging::Paged;
use crate::Result;

/// Bytes of an `OUT` to a port below 256.
const OUT: u64 = 2;
const PAGE: u64 = 4096;
/// Most bytes of output that are read at once, and that a failure tells.
const WRITE_MOST: u64 = 64 << 10;
const SAID_MOST: usize = 200;
/// Most of the calls that it lacks that a failure tells.
const LACKING_MOST: usize = 16;
/// The operation of arch_prctl(2) that sets the base of FS.
const ARCH_SET_FS: u64 = 0x1002;
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_FIXED: u64 = 0x10;

/// What the guest asks for; carried out before it goes on.
enum Asked {
    Start,
    Call,
    /// It raised the exception of this vector.
    Fault(u8),
}

pub(super) struct UserGuest<'a> {
    program: &'a UserProgram,
    memory: &'a mut Paged,
    asked: Option<Asked>,
    /// The payload's state, to which it returns when the program exits.
    payload: Option<(kvm_regs, kvm_fpu)>,
    /// Where the heap ends, and where mapped memory begins.
    heap: (u64, u64),
    /// The end of what the program wrote.
    said: Vec<u8>,
    /// Calls that are not here.
    lacking: BTreeSet<u64>,
}

impl<'a> UserGuest<'a> {
    pub(super) fn new((program, memory): (&'a UserProgram, &'a mut Paged)) -> UserGuest<'a> {
        UserGuest {
            program,
            memory,
            asked: None,
            payload: None,
            heap: (0, 0),
            said: Vec::new(),
            lacking: BTreeSet::new(),
        }
    }

    /// A write to a port.
    pub(super) fn asks(&mut self, port: u16, value: &[u8]) {
        self.asked = match u8::try_from(port) {
            Ok(layout::PROGRAM_START) => Some(Asked::Start),
            Ok(layout::PROGRAM_CALL) => Some(Asked::Call),
            Ok(layout::PROGRAM_FAULT) => Some(Asked::Fault(value.first().copied().unwrap_or(0))),
            _ => None,
        };
    }

    /// Carries out what was asked for.
    pub(super) fn enter(&mut self, vcpu: &VcpuFd) -> Result<()> {
        match self.asked.take() {
            None => Ok(()),
            Some(Asked::Start) => self.start(vcpu),
            Some(Asked::Call) => self.call(vcpu),
            Some(Asked::Fault(vector)) => {
                let special = vcpu.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
                let address =
                    if vector == 14 { format!(" at {:#x}", special.cr2) } else { String::new() };
                Err(format!("the program raised exception {vector}{address}{}", self.words()))
            }
        }
    }

    fn start(&mut self, vcpu: &VcpuFd) -> Result<()> {
        let registers = vcpu.get_regs().map_err(failed("KVM_GET_REGS"))?;
        let units = vcpu.get_fpu().map_err(failed("KVM_GET_FPU"))?;
        // Each batch starts with the units of the first one.
        let (_, units) = *self.payload.insert((
            kvm_regs { rip: registers.rip + OUT, ..registers },
            self.payload.map_or(units, |(_, first)| first),
        ));
        vcpu.set_fpu(&units).map_err(failed("KVM_SET_FPU"))?;
        self.memory.load(self.program)?;
        self.heap = (self.program.heap.0.into(), self.program.heap.1.into());
        self.said.clear();
        set_fs(vcpu, 0)?;
        let registers = kvm_regs {
            rip: self.program.entry.into(),
            rsp: self.program.stack.into(),
            rflags: 2,
            ..Default::default()
        };
        vcpu.set_regs(&registers).map_err(failed("KVM_SET_REGS"))
    }

    /// Numbers are those of Linux (arch/x86/entry/syscalls/syscall_64.tbl).
    fn call(&mut self, vcpu: &VcpuFd) -> Result<()> {
        let mut registers = vcpu.get_regs().map_err(failed("KVM_GET_REGS"))?;
        let arguments = [registers.rdi, registers.rsi, registers.rdx, registers.r10];
        let answer = match registers.rax {
            // exit, exit_group.
            60 | 231 => return self.exit(vcpu, registers.rdi as u8),
            // arch_prctl.
            158 if arguments[0] == ARCH_SET_FS => {
                set_fs(vcpu, arguments[1])?;
                Ok(0)
            }
            number => match signal(number, arguments) {
                Some(signal) => {
                    return Err(format!("the program raised signal {signal}{}", self.words()));
                }
                None => self.answer(number, arguments)?,
            },
        };
        registers.rax = answer.unwrap_or_else(|error| i64::from(-error) as u64);
        vcpu.set_regs(&registers).map_err(failed("KVM_SET_REGS"))
    }

    fn answer(
        &mut self,
        number: u64,
        arguments: [u64; 4],
    ) -> Result<std::result::Result<u64, i32>> {
        let [first, second, third, flags] = arguments;
        Ok(match number {
            // write, writev.
            1 | 20 if !matches!(first, 1 | 2) => Err(libc::EBADF),
            1 => Ok(self.write(second, third)?),
            20 => {
                let mut written = 0;
                for part in self.memory.read(second, third.min(1024) as usize * 16)?.chunks(16) {
                    let (words, _) = part.as_chunks::<8>();
                    let [at, bytes] = [words[0], words[1]].map(u64::from_le_bytes);
                    let part = self.write(at, bytes)?;
                    written += part;
                    if part < bytes {
                        break;
                    }
                }
                Ok(written)
            }
            // mmap.
            9 => match mapped(self.heap, second, flags) {
                Ok(from) => {
                    self.heap.1 = from;
                    Ok(from)
                }
                Err(error) => Err(error),
            },
            12 => Ok(self.brk(first)),
            // uname: only its release is looked at.
            63 => {
                const FIELD: u64 = 65;
                self.memory.write(first, &[0; 6 * FIELD as usize])?;
                self.memory.write(first, b"Linux")?;
                self.memory.write(first + 2 * FIELD, b"6.1.0")?;
                Ok(0)
            }
            // getrandom: the same in each run.
            318 => {
                self.memory.write(first, &vec![0x5a; second.min(WRITE_MOST) as usize])?;
                Ok(second.min(WRITE_MOST))
            }
            // getpid, gettid, set_tid_address.
            39 | 186 | 218 => Ok(1),
            // poll, mprotect, munmap, rt_sigaction, rt_sigprocmask, sched_yield, madvise, fcntl, sigaltstack, futex, set_robust_list: nothing to do.
            7 | 10 | 11 | 13 | 14 | 24 | 28 | 72 | 131 | 202 | 273 => Ok(0),
            // open, readlink, openat, readlinkat: there are no files.
            2 | 89 | 257 | 267 => Err(libc::ENOENT),
            // ioctl: no terminal.
            16 => Err(libc::ENOTTY),
            // arch_prctl: shadow stacks.
            158 => Err(libc::EINVAL),
            // fstat, prlimit64, newfstatat, rseq: programs do without.
            5 | 302 | 262 | 334 => Err(libc::ENOSYS),
            // kill, tkill, tgkill of signal 0: it is there.
            62 | 200 | 234 => Ok(0),
            other => {
                if self.lacking.len() < LACKING_MOST {
                    self.lacking.insert(other);
                }
                Err(libc::ENOSYS)
            }
        })
    }

    fn write(&mut self, at: u64, bytes: u64) -> Result<u64> {
        let bytes = bytes.min(WRITE_MOST);
        self.said.extend(self.memory.read(at, bytes as usize)?);
        let most = self.said.len().saturating_sub(SAID_MOST);
        self.said.drain(..most);
        Ok(bytes)
    }

    fn brk(&mut self, end: u64) -> u64 {
        if (u64::from(self.program.heap.0)..=self.heap.1).contains(&end) {
            self.heap.0 = end;
        }
        self.heap.0
    }

    fn exit(&mut self, vcpu: &VcpuFd, code: u8) -> Result<()> {
        if code != 0 {
            return Err(format!("the program exited with code {code}{}", self.words()));
        }
        let (registers, _) = self.payload.as_ref().ok_or("a program ended that was not started")?;
        vcpu.set_regs(registers).map_err(failed("KVM_SET_REGS"))
    }

    /// What may explain a failure.
    pub(super) fn words(&self) -> String {
        let mut words = String::new();
        if !self.lacking.is_empty() {
            let lacking: Vec<String> = self.lacking.iter().map(u64::to_string).collect();
            words =
                format!("; it made system calls that it cannot have here: {}", lacking.join(", "));
        }
        let said = String::from_utf8_lossy(&self.said);
        match said.lines().rfind(|line| !line.trim().is_empty()) {
            Some(line) => format!("{words}; its last line: {}", line.trim()),
            None => words,
        }
    }
}

/// The signal that a call raises: of kill, tkill, tgkill.
fn signal(number: u64, arguments: [u64; 4]) -> Option<u32> {
    let signal = match number {
        62 | 200 => arguments[1],
        234 => arguments[2],
        _ => return None,
    };
    Some(signal as u32).filter(|signal| *signal > 0)
}

/// Where mmap(2) puts so many bytes, between the end of the heap and what is mapped: from the end down; what is given back is not used again.
fn mapped(heap: (u64, u64), bytes: u64, flags: u64) -> std::result::Result<u64, i32> {
    if bytes == 0 || flags & MAP_ANONYMOUS == 0 || flags & MAP_FIXED != 0 {
        return Err(libc::EINVAL);
    }
    let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(libc::ENOMEM)?;
    heap.1.checked_sub(bytes).filter(|from| *from >= heap.0).ok_or(libc::ENOMEM)
}

fn set_fs(vcpu: &VcpuFd, base: u64) -> Result<()> {
    let mut special = vcpu.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
    special.fs.base = base;
    vcpu.set_sregs(&special).map_err(failed("KVM_SET_SREGS"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_mapped_from_the_end_down() {
        let heap = (0x40_0000, 0x50_0000);
        let of = |bytes| mapped(heap, bytes, MAP_ANONYMOUS);
        assert_eq!([1, PAGE, PAGE + 1].map(of), [0x4f_f000, 0x4f_f000, 0x4f_e000].map(Ok));
        assert_eq!(of(0x10_0000), Ok(0x40_0000));
        assert_eq!([0x10_0001, u64::MAX].map(of), [Err(libc::ENOMEM); 2]);
        assert_eq!(of(0), Err(libc::EINVAL));
        assert_eq!(mapped(heap, 1, 0), Err(libc::EINVAL));
        assert_eq!(mapped(heap, 1, MAP_ANONYMOUS | MAP_FIXED), Err(libc::EINVAL));
    }

    #[test]
    fn calls_that_raise_a_signal_are_known() {
        let of = |number| signal(number, [1, 6, 9, 0]);
        assert_eq!([62, 200, 234, 1].map(of), [Some(6), Some(6), Some(9), None]);
        assert_eq!(signal(62, [1, 0, 0, 0]), None);
    }
}
