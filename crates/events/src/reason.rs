//! An exit reason with the flags that travel in the same number.

use std::borrow::Cow;

use crate::Isa;

/// Why a vCPU left guest mode. The VMX flags (failed entry, enclave mode) are kept apart from the
/// reason: `code` is the basic reason alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reason {
    /// Whose table `code` indexes.
    pub isa: Isa,
    /// VMX basic reason (16 bits) or SVM exit code; SVM's `VMEXIT_INVALID` (-1) is `u32::MAX`. arm64: see [`arm`](crate::arm).
    pub code: u32,
    /// VMX bits 16-31 of the reason, in place: [`vmx::FAILED_ENTRY`](crate::vmx::FAILED_ENTRY), ... Always 0 elsewhere.
    pub flags: u32,
}

impl Reason {
    /// From the raw `exit_reason` of a trace.
    pub fn from_trace(isa: Isa, raw: u32) -> Reason {
        let facts = isa.facts();
        Reason { isa, code: facts.code_of_number(raw), flags: raw & facts.flags() }
    }

    /// The name as the kernel prints it (`EPT_VIOLATION`, `npf`), or the number where no table
    /// knows it: decimal for VMX and an unknown ISA, hexadecimal elsewhere.
    pub fn name(self) -> Cow<'static, str> {
        let facts = self.isa.facts();
        match (facts.name(self.code), facts.numbers_are_hex()) {
            (Some(name), _) => Cow::Borrowed(name),
            (None, true) => Cow::Owned(format!("{:#x}", self.code)),
            (None, false) => Cow::Owned(self.code.to_string()),
        }
    }

    /// It has this code on VMX or SVM; `None` for a vendor without such an exit.
    pub fn is(self, on_vmx: impl Into<Option<u32>>, on_svm: impl Into<Option<u32>>) -> bool {
        match self.isa {
            Isa::Vmx => on_vmx.into() == Some(self.code),
            Isa::Svm => on_svm.into() == Some(self.code),
            Isa::Arm | Isa::Unknown => false,
        }
    }

    /// A table knows it, and it has no flags.
    pub fn is_known(self) -> bool {
        self.flags == 0 && matches!(self.name(), Cow::Borrowed(_))
    }

    /// The reason that [`Reason::name`] of this vendor calls `name`.
    pub fn from_name(isa: Isa, name: &str) -> Option<Reason> {
        Some(Reason { isa, code: isa.facts().code(name)?, flags: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmx;

    /// SVM's `VMEXIT_INVALID` has the largest number: no number stands for "no such exit".
    #[test]
    fn a_vendor_without_such_an_exit_has_none_of_it() {
        let invalid = Reason { isa: Isa::Svm, code: u32::MAX, flags: 0 };
        assert!(!invalid.is(vmx::VMREAD, None) && invalid.is(None, u32::MAX));
        assert!(!Reason { isa: Isa::Arm, ..invalid }.is(u32::MAX, u32::MAX));
    }
}
