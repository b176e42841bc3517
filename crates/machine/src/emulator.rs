//! Emulators, and their names.

use std::fmt;

/// An emulator, or KVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Emulator {
    /// QEMU's emulator, an AMD processor with SVM and nested paging.
    Tcg {
        /// Instructions are counted: the TSC counts them, one a nanosecond, and path lengths are
        /// exact. Costs half of the speed and allows one thread.
        icount: bool,
    },
    /// QEMU's emulator, an arm64 processor with EL2; instructions are counted as above.
    TcgArm,
    /// QEMU on this computer's own virtualization.
    Kvm,
    /// Bochs; its TSC counts instructions.
    Bochs {
        /// An AMD processor with SVM, nested paging and next-RIP save; otherwise an Intel processor with VMX and EPT.
        svm: bool,
    },
}

impl fmt::Display for Emulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named(None))
    }
}

impl Emulator {
    /// With its version, where that is known: `QEMU TCG 7.2.22 (icount)`.
    pub fn named(self, version: Option<&str>) -> String {
        let (name, how) = match self {
            Emulator::Tcg { icount: true } => ("QEMU TCG", " (icount)"),
            Emulator::Tcg { icount: false } => ("QEMU TCG", ""),
            // The processor's model, as the kernel chooses its code by features.
            Emulator::TcgArm => ("QEMU TCG", " (arm64, max, icount)"),
            Emulator::Kvm => ("QEMU KVM", ""),
            Emulator::Bochs { svm: true } => ("Bochs", " (ryzen)"),
            Emulator::Bochs { svm: false } => ("Bochs", ""),
        };
        match version {
            Some(version) => format!("{name} {version}{how}"),
            None => format!("{name}{how}"),
        }
    }
}
