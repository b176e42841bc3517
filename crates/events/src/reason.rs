//! An exit reason with the flags that travel in the same number.

use std::borrow::Cow;

use crate::{Isa, svm, vmx};

/// Why a vCPU left guest mode. The VMX flags (failed entry, enclave mode) are kept apart from the
/// reason: `code` is the basic reason alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reason {
    /// Whose table `code` indexes.
    pub isa: Isa,
    /// VMX basic reason (16 bits) or SVM exit code. SVM's `VMEXIT_INVALID` (-1) is `u32::MAX`.
    pub code: u32,
    /// VMX bits 16-31 of the reason, in place: [`vmx::FAILED_ENTRY`], [`vmx::ENCLAVE_MODE`], ...
    /// Always 0 for SVM.
    pub flags: u32,
}

impl Reason {
    /// From the raw `exit_reason` of a trace.
    pub fn from_trace(isa: Isa, raw: u32) -> Reason {
        match isa {
            Isa::Vmx => Reason { isa, code: raw & 0xffff, flags: raw & !0xffff },
            _ => Reason { isa, code: raw, flags: 0 },
        }
    }

    /// The name as the kernel prints it (`EPT_VIOLATION`, `npf`), or the number where no table
    /// knows it: decimal for VMX, hexadecimal for SVM and for an unknown vendor as given.
    pub fn name(self) -> Cow<'static, str> {
        let known = match self.isa {
            Isa::Vmx => vmx::name(self.code),
            Isa::Svm => svm::name(self.code),
            Isa::Unknown => None,
        };
        match (known, self.isa) {
            (Some(name), _) => Cow::Borrowed(name),
            (None, Isa::Svm) => Cow::Owned(format!("{:#x}", self.code)),
            (None, _) => Cow::Owned(self.code.to_string()),
        }
    }

    /// A table knows it, and it has no flags.
    pub fn is_known(self) -> bool {
        self.flags == 0 && matches!(self.name(), Cow::Borrowed(_))
    }

    /// The reason that [`Reason::name`] of this vendor calls `name`.
    pub fn from_name(isa: Isa, name: &str) -> Option<Reason> {
        let code = match isa {
            Isa::Vmx => vmx::code(name),
            Isa::Svm => svm::code(name),
            Isa::Unknown => None,
        }?;
        Some(Reason { isa, code, flags: 0 })
    }
}
