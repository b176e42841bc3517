//! Names of exits in tables that other tools print -> codes of either vendor.
//!
//! The kernel's own spelling says whose an exit is (VMX in capitals, SVM in small letters). Tools write both in capitals, and
//! `HLT` or `CPUID` are then names of either vendor: the other names of the table decide, else `--isa`.
//!
//! Spellings beside the kernel's: `tools/kvm/kvm_stat` (Linux), the bpftrace scripts of CVM_eval (TU Munich), perf.

use vmtax_events::{Isa, Reason, ghcb, svm, vmx};

use super::text::reason::{by_name, svm_macro};
use crate::Error;

/// Names of VMX exits that differ from Linux's.
const OTHER_VMX: &[(&str, u32)] = &[
    ("EXCEPTION_OR_NMI", vmx::EXCEPTION_NMI),
    ("EXTERNAL_INT", vmx::EXTERNAL_INTERRUPT),
    ("MOV_CR", vmx::CR_ACCESS),
    ("MOV_DR", vmx::DR_ACCESS),
    ("RDMSR", vmx::MSR_READ),
    ("WRMSR", vmx::MSR_WRITE),
    ("MWAIT", vmx::MWAIT_INSTRUCTION),
    ("MONITOR", vmx::MONITOR_INSTRUCTION),
    ("PAUSE", vmx::PAUSE_INSTRUCTION),
    ("VIRTUALIZED_EOI", vmx::EOI_INDUCED),
    ("ACCESS_GDTR_OR_IDTR", vmx::GDTR_IDTR),
    ("ACCESS_LDTR_OR_TR", vmx::LDTR_TR),
    ("VMX_PREEMPT_TIMER", vmx::PREEMPTION_TIMER),
    ("PM_FULL", vmx::PML_FULL),
    ("BUSLOCK", vmx::BUS_LOCK),
    ("ENTFAIL_GUEST_STATE", vmx::INVALID_STATE),
];

/// The same of SVM.
const OTHER_SVM: &[(&str, u32)] = &[("EXCP_BASE", svm::DE_EXCP), ("LAST_EXCP", svm::DE_EXCP + 31)];

/// Requests of SEV-ES guests that have no number of an exit, as CVM_eval's scripts spell them.
const REQUESTS: &[(&str, u64)] = &[
    ("MMIO_READ", 0x8000_0001),
    ("MMIO_WRITE", 0x8000_0002),
    ("NMI_COMPLETE", 0x8000_0003),
    ("AP_HLT_LOOP", 0x8000_0004),
    ("AP_JUMP_TABLE", 0x8000_0005),
    ("PSC", 0x8000_0010),
    ("GUEST_REQUEST", 0x8000_0011),
    ("EXT_GUEST_REQUEST", 0x8000_0012),
    ("AP_CREATION", 0x8000_0013),
    ("HV_FEATURES", 0x8000_fffd),
    ("TERM_REQUEST", 0x8000_fffe),
    ("UNSUPPORTED_EVENT", 0x8000_ffff),
];

/// Whose exit a name can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Spelled {
    /// One vendor's.
    Sure(Reason),
    /// Either's: the code on VMX and the code on SVM.
    Either(u32, u32),
}

fn of(isa: Isa, code: u32) -> Reason {
    Reason { isa, code, flags: 0 }
}

fn find(table: &[(&str, u32)], name: &str) -> Option<u32> {
    table.iter().find(|(known, _)| *known == name).map(|(_, code)| *code)
}

/// What a name says. Numbers are no names.
pub(crate) fn spelled(name: &str) -> Option<Spelled> {
    let in_capitals = name.bytes().all(|b| !b.is_ascii_lowercase());
    if !in_capitals || name.starts_with("EXIT_") || name.starts_with("SVM_") {
        return by_name(name).map(Spelled::Sure);
    }
    let on_vmx = vmx::code(name).or_else(|| find(OTHER_VMX, name));
    let on_svm = svm_macro(&format!("EXIT_{name}")).or_else(|| find(OTHER_SVM, name));
    match (on_vmx, on_svm) {
        (Some(vmx), Some(svm)) => Some(Spelled::Either(vmx, svm)),
        (Some(vmx), None) => Some(Spelled::Sure(of(Isa::Vmx, vmx))),
        (None, Some(svm)) => Some(Spelled::Sure(of(Isa::Svm, svm))),
        (None, None) => by_name(name).map(Spelled::Sure),
    }
}

/// The code of a request of an SEV-ES guest: an SVM exit's, or one of GHCB's own.
pub(crate) fn request(name: &str) -> Option<u64> {
    let own = REQUESTS.iter().find(|(known, _)| *known == name).map(|(_, code)| *code);
    let of_exit = || match spelled(name)? {
        Spelled::Either(_, code) => Some(u64::from(code)),
        Spelled::Sure(reason) => (reason.isa == Isa::Svm).then_some(u64::from(reason.code)),
    };
    own.or_else(of_exit).filter(|code| *code <= 0x403 || ghcb::code_name(*code).is_some())
}

/// Whose the names are that either vendor has: the one vendor's that all other names have.
///
/// # Errors
/// [`Error::Vendor`] when no other name tells and `isa` is unknown.
pub(crate) fn vendor(names: impl Iterator<Item = Spelled>, isa: Isa) -> Result<Isa, Error> {
    let (mut is_vmx, mut is_svm, mut is_arm, mut is_either) = (false, false, false, false);
    for name in names {
        match name {
            Spelled::Sure(reason) => {
                is_vmx |= reason.isa == Isa::Vmx;
                is_svm |= reason.isa == Isa::Svm;
                is_arm |= reason.isa == Isa::Arm;
            }
            Spelled::Either(..) => is_either = true,
        }
    }
    match (is_vmx, is_svm, isa) {
        (true, false, _) => Ok(Isa::Vmx),
        (false, true, _) => Ok(Isa::Svm),
        (false, false, _) if is_arm && !is_either => Ok(Isa::Arm),
        (_, _, Isa::Unknown) if is_either => Err(Error::Vendor),
        (_, _, isa) => Ok(isa),
    }
}

impl Spelled {
    /// The reason, where those of either vendor are `isa`'s.
    pub(crate) fn reason(self, isa: Isa) -> Reason {
        match self {
            Spelled::Sure(reason) => reason,
            Spelled::Either(_, code) if isa == Isa::Svm => of(Isa::Svm, code),
            Spelled::Either(code, _) => of(Isa::Vmx, code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_vendor_and_of_both() {
        let sure = |name| match spelled(name) {
            Some(Spelled::Sure(reason)) => (reason.isa, reason.code),
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(sure("npf"), (Isa::Svm, svm::NPF));
        assert_eq!(sure("NPF"), (Isa::Svm, svm::NPF));
        assert_eq!(sure("hlt"), (Isa::Svm, svm::HLT));
        assert_eq!(sure("EXIT_REASON_HLT"), (Isa::Vmx, vmx::HLT));
        assert_eq!(sure("EXTERNAL_INT"), (Isa::Vmx, vmx::EXTERNAL_INTERRUPT));
        assert_eq!(spelled("HLT"), Some(Spelled::Either(vmx::HLT, svm::HLT)));
        assert_eq!(spelled("CPUID"), Some(Spelled::Either(vmx::CPUID, svm::CPUID)));
        assert_eq!(spelled("hello"), None);
        assert_eq!(spelled("12"), None);
    }

    #[test]
    fn the_other_names_decide() {
        let names = |all: &[&str]| all.iter().filter_map(|name| spelled(name)).collect::<Vec<_>>();
        let vendor = |all: &[&str], isa| vendor(names(all).into_iter(), isa);
        assert_eq!(vendor(&["HLT", "MSR"], Isa::Unknown).unwrap(), Isa::Svm);
        assert_eq!(vendor(&["HLT", "MSR_WRITE"], Isa::Svm).unwrap(), Isa::Vmx);
        assert!(matches!(vendor(&["HLT", "CPUID"], Isa::Unknown), Err(Error::Vendor)));
        assert_eq!(vendor(&["HLT"], Isa::Svm).unwrap(), Isa::Svm);
    }

    #[test]
    fn requests_of_guests_with_encrypted_registers() {
        assert_eq!(request("MSR"), Some(0x7c));
        assert_eq!(request("PSC"), Some(0x8000_0010));
        assert_eq!(request("EPT_VIOLATION"), None);
    }
}
