//! What an exit was about, from the exit's own information words when no other tracepoint tells.

use vmtax_events::detail::PAGE_REGION;
use vmtax_events::{Detail, DetailKind, Isa, Reason, svm, vmx};

/// From the VMX exit qualification (`info1`) or SVM's `exit_info_1` and `exit_info_2`.
///
/// Sources: Intel SDM volume 3, "Exit qualification" (tables for control registers, I/O, APIC accesses);
/// AMD APM volume 2, "SVM IOIO intercept", "Nested table page fault".
pub(crate) fn from_information(reason: Reason, info1: u64, info2: u64) -> Detail {
    let port = |is_in: bool| {
        let kind = if is_in { DetailKind::PortIn } else { DetailKind::PortOut };
        Detail::new(kind, info1 >> 16 & 0xffff)
    };
    match (reason.isa, reason.code) {
        (Isa::Vmx, vmx::IO_INSTRUCTION) => port(info1 & 1 << 3 != 0),
        (Isa::Svm, svm::IOIO) => port(info1 & 1 != 0),
        (Isa::Svm, svm::NPF) => page_fault(info2),
        (Isa::Vmx, vmx::CR_ACCESS) => match info1 >> 4 & 3 {
            0 => Detail::new(DetailKind::CrWrite, info1 & 0xf),
            1 => Detail::new(DetailKind::CrRead, info1 & 0xf),
            // CLTS and LMSW write CR0.
            _ => Detail::new(DetailKind::CrWrite, 0),
        },
        (Isa::Vmx, vmx::APIC_WRITE) => Detail::new(DetailKind::ApicWrite, info1 & 0xfff),
        (Isa::Vmx, vmx::APIC_ACCESS) => match info1 >> 12 & 0xf {
            0 => Detail::new(DetailKind::ApicRead, info1 & 0xfff),
            1 => Detail::new(DetailKind::ApicWrite, info1 & 0xfff),
            _ => Detail::NONE,
        },
        _ => Detail::NONE,
    }
}

/// A fault on guest memory, by its region.
pub(crate) fn page_fault(gpa: u64) -> Detail {
    Detail::new(DetailKind::PageFault, gpa & !(PAGE_REGION - 1))
}

/// The vCPU does nothing until something wakes it.
pub(crate) fn is_halt(reason: Reason, detail: Detail) -> bool {
    match (reason.isa, reason.code) {
        (Isa::Vmx, vmx::HLT) | (Isa::Svm, svm::HLT | svm::IDLE_HLT) => true,
        _ => {
            (detail.kind == DetailKind::Ghcb && detail.value == u64::from(svm::HLT))
                || (detail.kind == DetailKind::Tdvmcall
                    && detail.value == vmtax_events::tdx::LEAF_HLT)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn information_words_are_decoded() {
        let vmx = |code| Reason { isa: Isa::Vmx, code, flags: 0 };
        let svm = |code| Reason { isa: Isa::Svm, code, flags: 0 };
        let cases = [
            // IN AL from 0x71: SVM sets bit 0 for IN, VMX bit 3.
            (svm(svm::IOIO), 0x71 << 16 | 1 << 4 | 1, 0, Detail::new(DetailKind::PortIn, 0x71)),
            (svm(svm::IOIO), 0xcf8 << 16, 0, Detail::new(DetailKind::PortOut, 0xcf8)),
            (vmx(vmx::IO_INSTRUCTION), 0x3f8 << 16 | 8, 0, Detail::new(DetailKind::PortIn, 0x3f8)),
            (vmx(vmx::IO_INSTRUCTION), 0x3f8 << 16, 0, Detail::new(DetailKind::PortOut, 0x3f8)),
            (svm(svm::NPF), 4, 0x1234_5678, Detail::new(DetailKind::PageFault, 0x1220_0000)),
            (vmx(vmx::CR_ACCESS), 0x04, 0, Detail::new(DetailKind::CrWrite, 4)),
            (vmx(vmx::CR_ACCESS), 0x13, 0, Detail::new(DetailKind::CrRead, 3)),
            (vmx(vmx::CR_ACCESS), 0x20, 0, Detail::new(DetailKind::CrWrite, 0)),
            (vmx(vmx::APIC_WRITE), 0x380, 0, Detail::new(DetailKind::ApicWrite, 0x380)),
            (vmx(vmx::APIC_ACCESS), 0x1300, 0, Detail::new(DetailKind::ApicWrite, 0x300)),
            (vmx(vmx::CPUID), 7, 7, Detail::NONE),
        ];
        for (reason, info1, info2, expected) in cases {
            assert_eq!(from_information(reason, info1, info2), expected, "{reason:?} {info1:#x}");
        }
    }
}
