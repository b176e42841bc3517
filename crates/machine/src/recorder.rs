//! Recording the instructions that a machine executes, by a vmtax library inside the emulator.
//!
//! The libraries (`recorders/`, compiled by `build.rs`) write a record into a pipe while the machine runs. The reader interprets it.

use std::fs::File;
use std::io;
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
    /// Of accesses of guests to memory, in place of instructions; whether they are those of processes of Linux guests. QEMU alone.
    accesses: Option<bool>,
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

    /// Records accesses of guests to memory in place of instructions: all, or those of processes of Linux guests.
    #[must_use]
    pub fn of_accesses(self, of_processes: bool) -> MachineRecorder {
        MachineRecorder { accesses: Some(of_processes), ..self }
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
        let Some(of_processes) = self.accesses else {
            return Ok(vec!["-plugin".to_owned(), argument]);
        };
        let ram = memory("vmtax-ram")?;
        ram.set_len(u64::from(memory_mib) << 20)?;
        let ram = handed.give_path(ram);
        argument.push_str(&format!(",ram={ram}"));
        if of_processes {
            argument.push_str(",processes=on");
        }
        let object =
            format!("memory-backend-file,id=pc.ram,size={memory_mib}M,mem-path={ram},share=on");
        let words = ["-plugin", &argument, "-object", &object, "-machine", "memory-backend=pc.ram"];
        Ok(words.map(str::to_owned).to_vec())
    }
}

/// Part of QEMU's recorder, which is tested here.
#[cfg(test)]
#[path = "../recorders/qemu/special.rs"]
mod special;

#[cfg(test)]
mod tests {
    use super::special::{Change, Operand, change};
    use super::*;

    #[test]
    fn instructions_that_change_translations_are_known() {
        let of_guest = |bytes: &[u8]| change(bytes, true);
        // mov cr3, rdi; mov cr3, r15; of no other register.
        assert_eq!(of_guest(&[0x0f, 0x22, 0xdf]), Some(Change::Cr3));
        assert_eq!(of_guest(&[0x41, 0x0f, 0x22, 0xdf]), Some(Change::Cr3));
        for other in [[0x0f, 0x22, 0xe7], [0x0f, 0x22, 0xc0], [0x0f, 0x20, 0xdf]] {
            assert_eq!(of_guest(&other), None);
        }
        // invpcid rax, [rsp]; invlpga.
        assert_eq!(of_guest(&[0x66, 0x0f, 0x38, 0x82, 0x04, 0x24]), Some(Change::All));
        assert_eq!(change(&[0x0f, 0x01, 0xdf], false), Some(Change::All));
        assert_eq!(of_guest(&[0x0f, 0x01, 0xdf]), None);
        // Of the host, whose entries have another ASID.
        assert_eq!(change(&[0x0f, 0x22, 0xdf], false), None);
        assert_eq!(change(&[0x0f, 0x01, 0x38], false), None);
        // swapgs, vmrun, and what is cut off.
        for other in [&[0x0f, 0x01, 0xf8][..], &[0x0f, 0x01, 0xd8], &[0x0f], &[0x41], &[]] {
            assert_eq!(of_guest(other), None);
        }
    }

    #[test]
    fn operands_of_invlpg_are_decoded() {
        let of = |base, index, offset| Some(Change::Page(Operand { base, index, offset }));
        for (bytes, expected) in [
            // [rax], [r15], [rdi + 8], [rbp - 8], [rdi + 0x12345678].
            (&[0x0f, 0x01, 0x38][..], of(Some(0), None, 0)),
            (&[0x41, 0x0f, 0x01, 0x3f], of(Some(15), None, 0)),
            (&[0x0f, 0x01, 0x7f, 0x08], of(Some(7), None, 8)),
            (&[0x0f, 0x01, 0x7d, 0xf8], of(Some(5), None, -8)),
            (&[0x0f, 0x01, 0xbf, 0x78, 0x56, 0x34, 0x12], of(Some(7), None, 0x1234_5678)),
            // [rsp], [rax + rcx * 8 + 1], [r12 + r9 * 2], [rcx * 4 - 1].
            (&[0x0f, 0x01, 0x3c, 0x24], of(Some(4), None, 0)),
            (&[0x0f, 0x01, 0x7c, 0xc8, 0x01], of(Some(0), Some((1, 3)), 1)),
            (&[0x43, 0x0f, 0x01, 0x3c, 0x4c], of(Some(12), Some((9, 1)), 0)),
            (&[0x0f, 0x01, 0x3c, 0x8d, 0xff, 0xff, 0xff, 0xff], of(None, Some((1, 2)), -1)),
            // Relative to RIP; cut off.
            (&[0x0f, 0x01, 0x3d, 0, 0, 0, 0], Some(Change::All)),
            (&[0x0f, 0x01, 0x7f], Some(Change::All)),
            (&[0x0f, 0x01, 0x3c], Some(Change::All)),
        ] {
            assert_eq!(change(bytes, true), expected, "{bytes:x?}");
        }
        let operand = Operand { base: Some(1), index: Some((2, 3)), offset: -8 };
        assert_eq!(operand.address(|number| u64::from(number) * 0x1000), 0x1000 + 0x10_000 - 8);
    }

    #[test]
    fn both_recorders_unpack() {
        for packed in [QEMU, BOCHS] {
            assert!(unpack(packed).unwrap().starts_with(b"\x7fELF"));
        }
    }
}
