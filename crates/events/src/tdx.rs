//! TDVMCALL leaves: requests of a TDX guest to its host.
//!
//! Numbers are Linux's `arch/x86/include/asm/shared/tdx.h` and Intel's Guest-Hypervisor Communication
//! Interface (GHCI). Instructions that the guest cannot execute itself use the VMX exit reason as
//! their leaf; the rest start at 0x10000. The host sees them under exit reason 77 (TDCALL) or, in
//! mainline Linux, remapped to the VMX reason of the instruction.

use crate::detail::table::{self, named_codes};

named_codes! {
    /// Every leaf. Names of instructions are in capitals, of GHCI services as the GHCI writes them.
    TABLE: u64 {
        0x0a LEAF_CPUID "CPUID",
        0x0c LEAF_HLT "HLT",
        0x1e LEAF_IO "IO",
        0x1f LEAF_RDMSR "RDMSR",
        0x20 LEAF_WRMSR "WRMSR",
        0x30 LEAF_MMIO "MMIO",
        0x36 LEAF_WBINVD "WBINVD",
        0x41 LEAF_PCONFIG "PCONFIG",
        0x1_0000 LEAF_GET_TD_VM_CALL_INFO "GetTdVmCallInfo",
        0x1_0001 LEAF_MAP_GPA "MapGPA",
        0x1_0002 LEAF_GET_QUOTE "GetQuote",
        0x1_0003 LEAF_REPORT_FATAL_ERROR "ReportFatalError",
        0x1_0004 LEAF_SETUP_EVENT_NOTIFY_INTERRUPT "SetupEventNotifyInterrupt",
        0x1_0005 LEAF_SERVICE "Service",
    }
}

/// The name of a TDVMCALL leaf.
pub fn leaf_name(leaf: u64) -> Option<&'static str> {
    table::name_of(TABLE, leaf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmx;

    #[test]
    fn table_is_one_to_one() {
        table::check::one_to_one(TABLE);
        assert_eq!(leaf_name(0x1_0001), Some("MapGPA"));
        assert_eq!(leaf_name(0), None);
    }

    #[test]
    fn instruction_leaves_are_exit_reasons() {
        for (leaf, reason) in [
            (LEAF_CPUID, vmx::CPUID),
            (LEAF_HLT, vmx::HLT),
            (LEAF_IO, vmx::IO_INSTRUCTION),
            (LEAF_RDMSR, vmx::MSR_READ),
            (LEAF_WRMSR, vmx::MSR_WRITE),
            (LEAF_MMIO, vmx::EPT_VIOLATION),
            (LEAF_WBINVD, vmx::WBINVD),
            (LEAF_PCONFIG, vmx::PCONFIG),
        ] {
            assert_eq!(leaf, u64::from(reason));
        }
    }
}
