//! What an exit was about, from the exit's own information words when no other tracepoint tells.

use vmtax_events::detail::PAGE_REGION;
use vmtax_events::{Detail, DetailKind, Isa, Reason, interrupt, svm, vmx};

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
        (Isa::Vmx, vmx::EXTERNAL_INTERRUPT) => match interrupt::vector(info2) {
            Some(vector) => Detail::new(DetailKind::Interrupt, vector),
            None => Detail::NONE,
        },
        (Isa::Svm, svm::NPF) if is_of_device(reason, info1) => {
            let write = info1 & NPF_WRITE != 0;
            Detail::new(if write { DetailKind::MmioWrite } else { DetailKind::MmioRead }, info2)
        }
        // Without information the recording has no such fields.
        (Isa::Svm, svm::NPF) if (info1, info2) == (0, 0) => Detail::NONE,
        (Isa::Svm, svm::NPF) => fault(reason, info2, info1),
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

/// A fault on guest memory, by its region. The error code is that of `kvm_page_fault`: the exit qualification of an EPT violation,
/// `exit_info_1` of a nested page fault; of other exits it is the guest's own.
pub(crate) fn fault(reason: Reason, gpa: u64, error_code: u64) -> Detail {
    let is = |bits: u64| error_code & bits != 0;
    let (mapped, fetch) = match (reason.isa, reason.code) {
        (Isa::Vmx, vmx::EPT_VIOLATION) => (is(EPT_MAPPED), is(EPT_FETCH)),
        (Isa::Svm, svm::NPF) => (is(NPF_PRESENT) && !is(NPF_RESERVED | NPF_RMP), is(NPF_FETCH)),
        _ => (false, false),
    };
    let kind = match (mapped, fetch) {
        (false, _) => DetailKind::PageFault,
        (true, false) => DetailKind::MappedFault,
        (true, true) => DetailKind::MappedFetch,
    };
    Detail::new(kind, gpa & !(PAGE_REGION - 1))
}

/// A nested page fault on an entry that KVM marked as a device's register (Linux arch/x86/kvm/mmu/spte.c, `make_mmio_spte`).
pub(crate) fn is_of_device(reason: Reason, error_code: u64) -> bool {
    let is_npf = reason.isa == Isa::Svm && reason.code == svm::NPF;
    is_npf && error_code & (NPF_RESERVED | NPF_RMP) == NPF_RESERVED
}

// Bits of the exit qualification: Intel SDM volume 3, "Exit qualification for EPT violations".
const EPT_FETCH: u64 = 1 << 2;
/// The page may be read, written or executed.
const EPT_MAPPED: u64 = 7 << 3;
// Bits of a nested page fault's error code: AMD APM volume 2, "Nested versus guest page faults, fault ordering", and for the reverse
// map table "Page faults" of SEV-SNP. KVM marks the registers of devices by a reserved bit.
const NPF_PRESENT: u64 = 1;
const NPF_WRITE: u64 = 1 << 1;
const NPF_RESERVED: u64 = 1 << 3;
const NPF_FETCH: u64 = 1 << 4;
const NPF_RMP: u64 = 1 << 31;

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
            (svm(svm::NPF), 7, 0x1234_5678, Detail::new(DetailKind::MappedFault, 0x1220_0000)),
            (svm(svm::NPF), 0xd, 0xfe00_3000, Detail::new(DetailKind::MmioRead, 0xfe00_3000)),
            (svm(svm::NPF), 0xf, 0xfe00_3000, Detail::new(DetailKind::MmioWrite, 0xfe00_3000)),
            (svm(svm::NPF), 0, 0, Detail::NONE),
            (
                vmx(vmx::EXTERNAL_INTERRUPT),
                0,
                0x8000_00ec,
                Detail::new(DetailKind::Interrupt, 0xec),
            ),
            (vmx(vmx::EXTERNAL_INTERRUPT), 0, 0x8000_0b0e, Detail::NONE),
            (vmx(vmx::EXTERNAL_INTERRUPT), 0, 0, Detail::NONE),
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

    #[test]
    fn faults_on_mapped_pages_are_told_apart() {
        use DetailKind as K;
        let reason = |isa, code| Reason { isa, code, flags: 0 };
        let ept = reason(Isa::Vmx, vmx::EPT_VIOLATION);
        let npf = reason(Isa::Svm, svm::NPF);
        for (reason, error_code, kind) in [
            // Read, write and fetch of what is not mapped; write and fetch of what is.
            (ept, 0x181, K::PageFault),
            (ept, 0x182, K::PageFault),
            (ept, 0x184, K::PageFault),
            (ept, 0x1aa, K::MappedFault),
            (ept, 0x19c, K::MappedFetch),
            (npf, 0x1_0000_0004, K::PageFault),
            (npf, 0x1_0000_0014, K::PageFault),
            (npf, 0x1_0000_0007, K::MappedFault),
            (npf, 0x1_0000_0015, K::MappedFetch),
            // A device's register, and a page in another state than the guest believes.
            (npf, 0x1_0000_000f, K::PageFault),
            (npf, 0x5_8000_0007, K::PageFault),
            // A fault of the guest's own, with shadow page tables.
            (reason(Isa::Vmx, vmx::EXCEPTION_NMI), 7, K::PageFault),
            (reason(Isa::Svm, svm::PF_EXCP), 7, K::PageFault),
        ] {
            assert_eq!(fault(reason, 0x3f_ffff, error_code), Detail::new(kind, 0x20_0000));
        }
    }
}
