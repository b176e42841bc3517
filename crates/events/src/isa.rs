//! Which vendor's virtualization extension an exit belongs to.

/// The instruction set of an exit, as the `isa` field of `kvm_exit` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Intel VMX (`isa` 1), TDX included.
    Vmx,
    /// AMD SVM (`isa` 2), SEV-SNP included.
    Svm,
    /// Neither was given, or the number is unknown: reasons stay numbers.
    Unknown,
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

    /// `vmx`, `svm` or `unknown`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Vmx => "vmx",
            Isa::Svm => "svm",
            Isa::Unknown => "unknown",
        }
    }

    /// The inverse of [`Isa::name`].
    pub fn from_name(name: &str) -> Option<Isa> {
        [Isa::Vmx, Isa::Svm, Isa::Unknown].into_iter().find(|i| i.name() == name)
    }
}
