//! Which vendor's virtualization extension an exit belongs to.

use crate::words::words;

words! {
    /// The instruction set of an exit, as the `isa` field of `kvm_exit` gives it.
    pub enum Isa {
        /// Intel VMX (`isa` 1), TDX included.
        Vmx = "vmx",
        /// AMD SVM (`isa` 2), SEV-SNP included.
        Svm = "svm",
        /// Neither was given, or the number is unknown: reasons stay numbers.
        Unknown = "unknown",
    }
}

impl Isa {
    /// The trace's `isa` field: `KVM_ISA_VMX` is 1, `KVM_ISA_SVM` is 2 (Linux `arch/x86/kvm/trace.h`).
    pub fn from_trace(isa: u32) -> Isa {
        match isa {
            1 => Isa::Vmx,
            2 => Isa::Svm,
            _ => Isa::Unknown,
        }
    }

    /// The number of [`Isa::from_trace`], 0 for neither.
    pub fn as_trace(self) -> u32 {
        match self {
            Isa::Vmx => 1,
            Isa::Svm => 2,
            Isa::Unknown => 0,
        }
    }
}
