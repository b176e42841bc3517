//! Why KVM returned to the VMM: `exit_reason` of `struct kvm_run`, printed by `kvm_userspace_exit`.
//!
//! Numbers and names are Linux's `include/uapi/linux/kvm.h`. Kernels print the names that they know
//! (6.1 stops at 30); the table holds all.

use crate::detail::table::{self, named_codes};

named_codes! {
    /// Every `KVM_EXIT_*`.
    TABLE: u32 {
        0 UNKNOWN "KVM_EXIT_UNKNOWN",
        1 EXCEPTION "KVM_EXIT_EXCEPTION",
        2 IO "KVM_EXIT_IO",
        3 HYPERCALL "KVM_EXIT_HYPERCALL",
        4 DEBUG "KVM_EXIT_DEBUG",
        5 HLT "KVM_EXIT_HLT",
        6 MMIO "KVM_EXIT_MMIO",
        7 IRQ_WINDOW_OPEN "KVM_EXIT_IRQ_WINDOW_OPEN",
        8 SHUTDOWN "KVM_EXIT_SHUTDOWN",
        9 FAIL_ENTRY "KVM_EXIT_FAIL_ENTRY",
        10 INTR "KVM_EXIT_INTR",
        11 SET_TPR "KVM_EXIT_SET_TPR",
        12 TPR_ACCESS "KVM_EXIT_TPR_ACCESS",
        13 S390_SIEIC "KVM_EXIT_S390_SIEIC",
        14 S390_RESET "KVM_EXIT_S390_RESET",
        15 DCR "KVM_EXIT_DCR",
        16 NMI "KVM_EXIT_NMI",
        17 INTERNAL_ERROR "KVM_EXIT_INTERNAL_ERROR",
        18 OSI "KVM_EXIT_OSI",
        19 PAPR_HCALL "KVM_EXIT_PAPR_HCALL",
        20 S390_UCONTROL "KVM_EXIT_S390_UCONTROL",
        21 WATCHDOG "KVM_EXIT_WATCHDOG",
        22 S390_TSCH "KVM_EXIT_S390_TSCH",
        23 EPR "KVM_EXIT_EPR",
        24 SYSTEM_EVENT "KVM_EXIT_SYSTEM_EVENT",
        25 S390_STSI "KVM_EXIT_S390_STSI",
        26 IOAPIC_EOI "KVM_EXIT_IOAPIC_EOI",
        27 HYPERV "KVM_EXIT_HYPERV",
        28 ARM_NISV "KVM_EXIT_ARM_NISV",
        29 X86_RDMSR "KVM_EXIT_X86_RDMSR",
        30 X86_WRMSR "KVM_EXIT_X86_WRMSR",
        31 DIRTY_RING_FULL "KVM_EXIT_DIRTY_RING_FULL",
        32 AP_RESET_HOLD "KVM_EXIT_AP_RESET_HOLD",
        33 X86_BUS_LOCK "KVM_EXIT_X86_BUS_LOCK",
        34 XEN "KVM_EXIT_XEN",
        35 RISCV_SBI "KVM_EXIT_RISCV_SBI",
        36 RISCV_CSR "KVM_EXIT_RISCV_CSR",
        37 NOTIFY "KVM_EXIT_NOTIFY",
        38 LOONGARCH_IOCSR "KVM_EXIT_LOONGARCH_IOCSR",
        39 MEMORY_FAULT "KVM_EXIT_MEMORY_FAULT",
        40 TDX "KVM_EXIT_TDX",
        41 ARM_SEA "KVM_EXIT_ARM_SEA",
        42 ARM_LDST64B "KVM_EXIT_ARM_LDST64B",
        43 SNP_REQ_CERTS "KVM_EXIT_SNP_REQ_CERTS",
    }
}

/// The name of a `KVM_EXIT_*` reason, with that prefix, as the kernel prints it.
pub fn name(reason: u32) -> Option<&'static str> {
    table::name_of(TABLE, reason)
}

/// The reason of this name.
pub fn code(name: &str) -> Option<u32> {
    table::key_of(TABLE, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_one_to_one() {
        table::check::one_to_one(TABLE);
        for &(number, text) in TABLE {
            assert_eq!(code(text), Some(number));
            assert_eq!(name(number), Some(text));
        }
        assert_eq!(name(MMIO), Some("KVM_EXIT_MMIO"));
        assert_eq!(name(44), None);
    }
}
