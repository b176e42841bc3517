//! TDVMCALL leaves: requests of a TDX guest to its host.
//!
//! Numbers are Linux's `arch/x86/include/asm/shared/tdx.h` and Intel's Guest-Hypervisor Communication
//! Interface (GHCI). Instructions that the guest cannot execute itself use the VMX exit reason as
//! their leaf; the rest start at 0x10000. The host sees them under exit reason 77 (TDCALL) or, in
//! mainline Linux, remapped to the VMX reason of the instruction.

use crate::detail::table::{self, named_codes};
use crate::vmx;

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

/// Names of leaves in texts of `kvm_tdvmcall`, beside those of VMX reasons: `TDG_VP_VMCALL_EXIT_REASONS` of the series that were not
/// merged (arch/x86/kvm/vmx/tdx_arch.h there).
const NAMES_OF_SERIES: &[(u64, &str)] = &[
    (LEAF_GET_TD_VM_CALL_INFO, "GET_TD_VM_CALL_INFO"),
    (LEAF_MAP_GPA, "MAP_GPA"),
    (LEAF_GET_QUOTE, "GET_QUOTE"),
    (LEAF_SETUP_EVENT_NOTIFY_INTERRUPT, "SETUP_EVENT_NOTIFY_INTERRUPT"),
];

/// The leaf that texts of `kvm_tdvmcall` call so.
pub fn leaf_of_series(name: &str) -> Option<u64> {
    let of_vmx = || vmx::code(name).map(u64::from);
    table::key_of(NAMES_OF_SERIES, name).or_else(of_vmx)
}

/// How a series of kernels reports the exits of a TD.
#[derive(Debug, PartialEq, Eq)]
pub struct Reporting {
    /// Which kernels: `on Linux 6.16 and later`.
    pub kernels: &'static str,
    /// What TDCALL (77) is.
    pub tdcall: &'static str,
    /// TDCALL can be the arming of a timer.
    pub tdcall_arms_timer: bool,
    /// Where that is to be read.
    pub source: &'static str,
}

/// The two ways, the older first. Kernels from 6.9 to 6.15 ran TDs by series of either kind (Ubuntu 24.04's 6.8 by the older, 25.04's 6.14
/// by a later one), so their version does not tell.
pub const REPORTING: [Reporting; 2] = [
    Reporting {
        kernels: "on 6.8 and before (Intel's series, not merged)",
        tdcall: "every request: MSR writes that arm the timer, HLT, I/O and the rest, told apart by kvm_tdvmcall alone",
        tdcall_arms_timer: true,
        source: "KVM TDX basic feature support v19, arch/x86/kvm/vmx/tdx.c, handle_tdvmcall",
    },
    Reporting {
        kernels: "on Linux 6.16 and later",
        tdcall: "what is left over (MapGPA, GetQuote, GetTdVmCallInfo and the like), never a timer",
        tdcall_arms_timer: false,
        source: "arch/x86/kvm/vmx/tdx.c, tdcall_to_vmx_exit_reason",
    },
];

/// Reasons under which mainline reports requests by TDVMCALL, and the leaf of each: `tdcall_to_vmx_exit_reason`. VMCALL is a request
/// of the vendor's own (`tdvmcall_exit_type`).
pub const NATIVE: &[(u32, Option<u64>)] = &[
    (vmx::CPUID, Some(LEAF_CPUID)),
    (vmx::HLT, Some(LEAF_HLT)),
    (vmx::VMCALL, None),
    (vmx::IO_INSTRUCTION, Some(LEAF_IO)),
    (vmx::MSR_READ, Some(LEAF_RDMSR)),
    (vmx::MSR_WRITE, Some(LEAF_WRMSR)),
    (vmx::EPT_MISCONFIG, Some(LEAF_MMIO)),
];

/// Whether a TD has exits of this reason in mainline alone.
pub fn is_native(code: u32) -> bool {
    NATIVE.iter().any(|(native, _)| *native == code)
}

/// How a kernel of this release reports the exits of a TD; `native`: it has exits of a reason of [`NATIVE`]. `None`: not known.
pub fn reporting(release: &str, native: bool) -> Option<&'static Reporting> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let version = numbers.next().and_then(Result::ok).zip(numbers.next().and_then(Result::ok));
    let [old, new] = &REPORTING;
    match version {
        _ if native => Some(new),
        Some(version) if version >= (6, 16) => Some(new),
        Some(version) if version < (6, 9) => Some(old),
        _ => None,
    }
}

/// The name of a TDVMCALL leaf.
pub fn leaf_name(leaf: u64) -> Option<&'static str> {
    table::name_of(TABLE, leaf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_one_to_one() {
        table::check::one_to_one(TABLE);
        assert_eq!(leaf_name(0x1_0001), Some("MapGPA"));
        assert_eq!(leaf_name(0), None);
    }

    #[test]
    fn reporting_follows_the_kernel() {
        let [old, new] = &REPORTING;
        for (release, native, expected) in [
            ("6.8.0-rc5-tdx", false, Some(old)),
            ("6.8.0-1006-intel", false, Some(old)),
            ("6.14.0-1001-intel", false, None),
            ("6.14.0-1001-intel", true, Some(new)),
            ("6.16.3", false, Some(new)),
            ("7.3.4+deb13-amd64", false, Some(new)),
            ("", false, None),
            ("next", true, Some(new)),
        ] {
            assert_eq!(reporting(release, native), expected, "{release} {native}");
        }
        assert!(is_native(vmx::HLT) && !is_native(vmx::TDCALL) && !is_native(vmx::EPT_VIOLATION));
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
