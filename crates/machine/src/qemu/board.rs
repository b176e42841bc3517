//! The machines that QEMU emulates: what differs between families of processors.

use crate::{Emulator, Error};

/// A program of QEMU's and its machine.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) program: &'static str,
    /// `-machine`, unless the spec has another.
    pub(crate) machine: &'static str,
    pub(crate) disk: &'static str,
    /// Who needs it, in an error.
    need: &'static str,
    packages: &'static str,
}

const PC: Board = Board {
    program: "qemu-system-x86_64",
    machine: "pc",
    disk: "virtio-blk-pci",
    need: "the emulated AMD host",
    packages: "qemu-system-x86 seabios",
};

/// A virtio disk on its own transport: a module of the kernel less than one on PCI.
const VIRT: Board = Board {
    program: "qemu-system-aarch64",
    machine: "virt,virtualization=on,gic-version=3",
    disk: "virtio-blk-device",
    need: "the emulated arm64 host",
    packages: "qemu-system-arm",
};

/// The machine of an emulator; of Bochs it is one that nobody asks for.
pub(crate) fn board(emulator: Emulator) -> &'static Board {
    match emulator {
        Emulator::TcgArm => &VIRT,
        Emulator::Tcg { .. } | Emulator::Kvm | Emulator::Bochs { .. } => &PC,
    }
}

impl Board {
    /// QEMU is not installed.
    pub(crate) fn missing(&self) -> Error {
        Error::Missing {
            program: self.program.to_owned(),
            need: self.need,
            install: format!("apt-get install --no-install-recommends {}", self.packages),
        }
    }
}
