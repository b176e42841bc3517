//! `perf_event_open(2)`: the attributes of an event, and opening it; and a loop whose instructions are known.
//!
//! Left out: what an event is for, its ring buffer and its ioctls.

#![expect(unsafe_code, reason = "perf_event_open has no safe form")]
#![warn(clippy::undocumented_unsafe_blocks)]

mod known_loop;

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

pub use known_loop::{BRANCHES_OF_A_TURN, INSTRUCTIONS_OF_A_TURN, known_loop};

/// The first version of `struct perf_event_attr` with a second configuration word
/// (include/uapi/linux/perf_event.h: PERF_ATTR_SIZE_VER1).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EventAttributes {
    /// `PERF_TYPE_*`.
    pub kind: u32,
    /// Bytes of this structure, as `default` says.
    pub size: u32,
    /// The event, by a number of its kind.
    pub config: u64,
    /// Events between two samples.
    pub sample_period: u64,
    /// `PERF_SAMPLE_*`.
    pub sample_type: u64,
    /// `PERF_FORMAT_*`.
    pub read_format: u64,
    /// The bit fields, from `disabled` on.
    pub flags: u64,
    /// Samples between two wake-ups.
    pub wakeup_events: u32,
    pub breakpoint: u32,
    /// A further configuration word.
    pub config1: u64,
    /// A further configuration word.
    pub config2: u64,
}

const _: () = assert!(size_of::<EventAttributes>() == 72);

impl Default for EventAttributes {
    fn default() -> EventAttributes {
        EventAttributes {
            kind: 0,
            size: size_of::<EventAttributes>() as u32,
            config: 0,
            sample_period: 0,
            sample_type: 0,
            read_format: 0,
            flags: 0,
            wakeup_events: 0,
            breakpoint: 0,
            config1: 0,
            config2: 0,
        }
    }
}

/// What an event is counted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The calling thread, on any processor.
    ThisThread,
    /// A thread, on any processor.
    Thread(i32),
    /// A processor, whatever runs there.
    Processor(u32),
}

/// Opens an event. It is not inherited by programs that this one executes.
pub fn open(attributes: &EventAttributes, of: Of) -> io::Result<OwnedFd> {
    const FD_CLOEXEC: libc::c_ulong = 8;
    let (thread, processor): (i32, i32) = match of {
        Of::ThisThread => (0, -1),
        Of::Thread(thread) => (thread, -1),
        Of::Processor(processor) => {
            let number = i32::try_from(processor);
            (-1, number.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?)
        }
    };
    let no_group: libc::c_int = -1;
    // SAFETY: the kernel reads `size` bytes of the structure, which it has, and writes at most into `size` itself.
    let fd = unsafe {
        let attributes: *const EventAttributes = attributes;
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes,
            thread,
            processor,
            no_group,
            FD_CLOEXEC,
        )
    };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just returned this descriptor; nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_of_event_is_refused_and_opens_nothing() {
        let attributes = EventAttributes { kind: u32::MAX, ..EventAttributes::default() };
        for of in [Of::ThisThread, Of::Thread(0), Of::Processor(u32::MAX)] {
            assert!(open(&attributes, of).is_err(), "{of:?}");
        }
    }
}
