//! Recording the instructions that a machine executes, by a vmtax library inside the emulator.
//!
//! The libraries (`recorders/`, compiled by `build.rs`) write a record into a pipe while the machine runs. The reader interprets it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::mailbox::{memory, with_content};
use crate::process::HandedDescriptors;
use crate::programs::unpack;

/// The plugin of QEMU, compressed.
const QEMU: &[u8] = include_bytes!(env!("VMTAX_RECORDER_QEMU"));

/// The library that is loaded into Bochs, compressed.
const BOCHS: &[u8] = include_bytes!(env!("VMTAX_RECORDER_BOCHS"));

/// Size of the pipe, if the system allows it.
const PIPE: usize = 1 << 20;

/// Ports of the machine, or of a guest of it, whose writes are marks in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    pub on: u16,
    pub off: u16,
    /// Nothing is recorded from this one on.
    pub end: u16,
    /// The first and the last of those that are only recorded.
    pub range: (u16, u16),
}

impl Marks {
    /// Whether a write to this port is one.
    pub fn has(&self, port: u16) -> bool {
        let (first, last) = self.range;
        [self.on, self.off, self.end].contains(&port) || (first..=last).contains(&port)
    }
}

/// What a machine is to be recorded with.
#[derive(Debug)]
pub struct MachineRecorder {
    marks: Marks,
    into: OwnedFd,
    /// Of accesses to memory, by code at these addresses, in place of instructions. QEMU alone.
    accesses: Option<Range<u64>>,
    /// Of arm64: where port 0's word is.
    words: Option<u64>,
}

impl MachineRecorder {
    /// A recorder for one machine, and where its record is read. The emulator waits while the pipe is full, and the pipe ends
    /// when the emulator does.
    pub fn new(marks: Marks) -> io::Result<(MachineRecorder, File)> {
        let (from, into) = pipe_with(PipeFlags::CLOEXEC)?;
        // A small pipe works too.
        let _ = fcntl_setpipe_size(&into, PIPE);
        Ok((MachineRecorder { marks, into, accesses: None, words: None }, File::from(from)))
    }

    /// Records accesses to memory by code at these addresses, in place of instructions.
    #[must_use]
    pub fn of_accesses(self, code: Range<u64>) -> MachineRecorder {
        MachineRecorder { accesses: Some(code), ..self }
    }

    /// Of a machine of arm64, whose ports are words at the start of pages: port 0's is at this address.
    #[must_use]
    pub fn with_words(self, words: u64) -> MachineRecorder {
        MachineRecorder { words: Some(words), ..self }
    }

    /// The variables for Bochs, whose processor has SVM or VMX.
    pub(crate) fn preload(
        self,
        handed: &mut HandedDescriptors,
        svm: bool,
    ) -> io::Result<[(&'static str, String); 2]> {
        let Marks { on, off, end, .. } = self.marks;
        let library = handed.give_path(with_content("vmtax-recorder", &unpack(BOCHS)?)?);
        let out = handed.give_path(self.into);
        let svm = u8::from(svm);
        let record = format!("out={out},on={on},off={off},end={end},svm={svm}");
        Ok([("LD_PRELOAD", library), ("VMTAX_RECORD", record)])
    }

    /// The arguments for QEMU, whose machine has so much memory, and vCPUs that take turns where instructions are its clock. A recorder of accesses reads page tables there: then that memory is a file,
    /// with the name that it has in saved states.
    pub(crate) fn plugin(
        self,
        handed: &mut HandedDescriptors,
        memory_mib: u32,
        takes_turns: bool,
    ) -> io::Result<Vec<String>> {
        let Marks { on, off, end, range: (first, last) } = self.marks;
        let library = handed.give_path(with_content("vmtax-recorder", &unpack(QEMU)?)?);
        let out = handed.give_path(self.into);
        let mut argument = format!(
            "file={library},out={out},on={on},off={off},end={end},first={first},last={last}"
        );
        if takes_turns {
            argument.push_str(",turns=on");
        }
        if let Some(words) = self.words {
            argument.push_str(&format!(",words={words}"));
        }
        let Some(Range { start, end }) = self.accesses else {
            return Ok(vec!["-plugin".to_owned(), argument]);
        };
        let ram = memory("vmtax-ram")?;
        ram.set_len(u64::from(memory_mib) << 20)?;
        let ram = handed.give_path(ram);
        argument.push_str(&format!(",ram={ram},code={start}-{end}"));
        let object =
            format!("memory-backend-file,id=pc.ram,size={memory_mib}M,mem-path={ram},share=on");
        let words = ["-plugin", &argument, "-object", &object, "-machine", "memory-backend=pc.ram"];
        Ok(words.map(str::to_owned).to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_recorders_unpack() {
        for packed in [QEMU, BOCHS] {
            assert!(unpack(packed).unwrap().starts_with(b"\x7fELF"));
        }
    }
}
