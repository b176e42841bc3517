//! Requests of SEV-ES and SEV-SNP guests: through the GHCB page, and through the GHCB MSR alone.
//!
//! Source: AMD "SEV-ES Guest-Hypervisor Communication Block Standardization" (publication 56421), and
//! Linux `arch/x86/include/uapi/asm/svm.h` and `asm/sev-common.h`. GHCB exit codes are SVM exit codes
//! (the exit that a plain guest would have had) or 0x8000_00xx; both are in [`crate::svm`].

use crate::detail::table::{self, named_codes};
use crate::{Detail, DetailKind, svm};

named_codes! {
    /// The GHCB MSR protocol: low 12 bits of MSR 0xc001_0130, with Linux's `GHCB_MSR_*` names.
    MSR_PROTOCOL: u64 {
        0x001 SEV_INFO_RESP,
        0x002 SEV_INFO_REQ,
        0x004 CPUID_REQ,
        0x005 CPUID_RESP,
        0x006 AP_RESET_HOLD_REQ,
        0x007 AP_RESET_HOLD_RESP,
        0x010 PREF_GPA_REQ,
        0x011 PREF_GPA_RESP,
        0x012 REG_GPA_REQ,
        0x013 REG_GPA_RESP,
        0x014 PSC_REQ,
        0x015 PSC_RESP,
        0x016 VMPL_REQ,
        0x017 VMPL_RESP,
        0x080 HV_FT_REQ,
        0x081 HV_FT_RESP,
        0x100 TERM_REQ,
    }
}

/// What the kernel puts before the names of the requests that have no exit code of their own.
const PREFIX: &str = "vmgexit_";

/// What a request through the GHCB is about. Registers in memory and ports are in the first information word (AMD 56421, table of
/// NAE events: MMIO has the guest-physical address, IOIO what EXITINFO1 of the exit would have).
pub fn request(code: u64, info1: u64) -> Detail {
    let is = |one: u32| code == u64::from(one);
    if is(svm::VMGEXIT_MMIO_READ) {
        Detail::new(DetailKind::MmioRead, info1)
    } else if is(svm::VMGEXIT_MMIO_WRITE) {
        Detail::new(DetailKind::MmioWrite, info1)
    } else if is(svm::IOIO) {
        let kind = if info1 & 1 != 0 { DetailKind::PortIn } else { DetailKind::PortOut };
        Detail::new(kind, info1 >> 16 & 0xffff)
    } else {
        Detail::new(DetailKind::Ghcb, code)
    }
}

/// The name of a GHCB exit code: `mmio_write`, `page_state_change`, or that of the SVM exit (`msr`).
pub fn code_name(code: u64) -> Option<&'static str> {
    let name = svm::name(u32::try_from(code).ok()?)?;
    Some(name.strip_prefix(PREFIX).unwrap_or(name))
}

/// The name of a request in the GHCB MSR protocol. 0 is the address of a GHCB page: not a request.
pub fn msr_protocol_name(low12: u64) -> Option<&'static str> {
    table::name_of(MSR_PROTOCOL, low12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        table::check::one_to_one(MSR_PROTOCOL);
        for (code, name) in [
            (0x8000_0001, "mmio_read"),
            (0x8000_0010, "page_state_change"),
            (0x8000_0014, "hv_doorbell"),
            (0x8000_001a, "savic"),
            (0x8000_fffd, "hypervisor_feature"),
            (0x8000_fffe, "term_request"),
            (0x78, "hlt"),
            (0x403, "vmgexit"),
        ] {
            assert_eq!(code_name(code), Some(name), "{code:#x}");
        }
        assert_eq!(code_name(0x8000_00ff), None);
        assert_eq!(code_name(1 << 32 | 0x78), None);
        assert_eq!(msr_protocol_name(0x014), Some("PSC_REQ"));
        assert_eq!(msr_protocol_name(0), None);
    }

    #[test]
    fn information_words_have_registers_and_ports() {
        for (code, info1, kind, value) in [
            (0x8000_0002, 0xfee0_0380, DetailKind::MmioWrite, 0xfee0_0380),
            (0x8000_0001, 0xfee0_0390, DetailKind::MmioRead, 0xfee0_0390),
            (0x7b, 0x3f8 << 16 | 0x10, DetailKind::PortOut, 0x3f8),
            (0x7b, 0x71 << 16 | 0x11, DetailKind::PortIn, 0x71),
            (0x7c, 1, DetailKind::Ghcb, 0x7c),
            (0x8000_0010, 0, DetailKind::Ghcb, 0x8000_0010),
        ] {
            assert_eq!(request(code, info1), Detail::new(kind, value), "{code:#x}");
        }
    }
}
