//! Calls by HVC: function numbers of Arm's SMC calling convention.
//!
//! Sources: Linux `include/uapi/linux/psci.h` and `include/linux/arm-smccc.h`; Arm DEN0022 (PSCI), DEN0028 (SMCCC), DEN0057
//! (paravirtualized time), DEN0098 (TRNG). A call by SMC64 has bit 30 set.

use crate::detail::table;

/// An HVC with another immediate than 0 is no SMCCC call; its detail's value has the immediate above the number.
pub(crate) const IMMEDIATE: u32 = 32;
const SMC64: u64 = 1 << 30;

/// CPU_SUSPEND: the vCPU waits for an interrupt.
const CPU_SUSPEND: u64 = 0x8400_0001;
const CPU_DEFAULT_SUSPEND: u64 = 0x8400_000c;
const MEM_SHARE: u64 = 0xc600_0003;
const MEM_UNSHARE: u64 = 0xc600_0004;

/// Functions by their number; those of PSCI have one number for both register widths here.
const FUNCTIONS: &[(u64, &str)] = &[
    (0x8000_0000, "SMCCC_VERSION"),
    (0x8000_0001, "SMCCC_ARCH_FEATURES"),
    (0x8000_0002, "SMCCC_ARCH_SOC_ID"),
    (0x8000_3fff, "SMCCC_ARCH_WORKAROUND_3"),
    (0x8000_7fff, "SMCCC_ARCH_WORKAROUND_2"),
    (0x8000_8000, "SMCCC_ARCH_WORKAROUND_1"),
    (0x8400_0000, "PSCI_VERSION"),
    (CPU_SUSPEND, "PSCI_CPU_SUSPEND"),
    (0x8400_0002, "PSCI_CPU_OFF"),
    (0x8400_0003, "PSCI_CPU_ON"),
    (0x8400_0004, "PSCI_AFFINITY_INFO"),
    (0x8400_0005, "PSCI_MIGRATE"),
    (0x8400_0006, "PSCI_MIGRATE_INFO_TYPE"),
    (0x8400_0007, "PSCI_MIGRATE_INFO_UP_CPU"),
    (0x8400_0008, "PSCI_SYSTEM_OFF"),
    (0x8400_0009, "PSCI_SYSTEM_RESET"),
    (0x8400_000a, "PSCI_FEATURES"),
    (0x8400_000b, "PSCI_CPU_FREEZE"),
    (CPU_DEFAULT_SUSPEND, "PSCI_CPU_DEFAULT_SUSPEND"),
    (0x8400_000d, "PSCI_NODE_HW_STATE"),
    (0x8400_000e, "PSCI_SYSTEM_SUSPEND"),
    (0x8400_000f, "PSCI_SET_SUSPEND_MODE"),
    (0x8400_0010, "PSCI_STAT_RESIDENCY"),
    (0x8400_0011, "PSCI_STAT_COUNT"),
    (0x8400_0012, "PSCI_SYSTEM_RESET2"),
    (0x8400_0013, "PSCI_MEM_PROTECT"),
    (0x8400_0014, "PSCI_MEM_PROTECT_CHECK_RANGE"),
    (0x8400_0050, "TRNG_VERSION"),
    (0x8400_0051, "TRNG_FEATURES"),
    (0x8400_0052, "TRNG_GET_UUID"),
    (0x8400_0053, "TRNG_RND"),
    (0x8600_0000, "KVM_FEATURES"),
    (0x8600_0001, "KVM_PTP"),
    (0x8600_ff01, "VENDOR_HYP_CALL_UID"),
    (0xc500_0020, "PV_TIME_FEATURES"),
    (0xc500_0021, "PV_TIME_ST"),
    (0xc600_0002, "KVM_HYP_MEMINFO"),
    (MEM_SHARE, "KVM_MEM_SHARE"),
    (MEM_UNSHARE, "KVM_MEM_UNSHARE"),
    (0xc600_0007, "KVM_MMIO_GUARD"),
];

/// A function's number without the width of its registers, for those of the standard services.
fn narrow(function: u64) -> u64 {
    let is_standard = function >> 24 == (0x8400_0000 | SMC64) >> 24;
    if is_standard { function & !SMC64 } else { function }
}

/// The value of a call's detail.
pub(crate) fn value(r0: u64, immediate: u64) -> u64 {
    immediate << IMMEDIATE | r0 & u64::from(u32::MAX)
}

/// The name of a call by its detail's value.
pub(crate) fn name(value: u64) -> Option<&'static str> {
    table::name_of(FUNCTIONS, narrow(value))
}

/// The guest asks the hypervisor to let it wait.
pub(crate) fn is_idle(value: u64) -> bool {
    matches!(narrow(value), CPU_SUSPEND | CPU_DEFAULT_SUSPEND)
}

/// A protected guest shares memory with the host, or takes it back.
pub(crate) fn is_conversion(value: u64) -> bool {
    matches!(value, MEM_SHARE | MEM_UNSHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions() {
        table::check::one_to_one(FUNCTIONS);
        for (r0, immediate, expected) in [
            (0x8400_0000, 0, Some("PSCI_VERSION")),
            (0xc400_0001, 0, Some("PSCI_CPU_SUSPEND")),
            (0xffff_ffff_c400_0053, 0, Some("TRNG_RND")),
            (0xc600_0003, 0, Some("KVM_MEM_SHARE")),
            (0xc600_0001, 0, None),
            (0x8400_0000, 0x1234, None),
        ] {
            assert_eq!(name(value(r0, immediate)), expected, "{r0:#x} {immediate:#x}");
        }
        assert!(is_idle(0xc400_0001) && is_idle(0x8400_0001) && !is_idle(0x8400_0002));
        assert!(is_conversion(0xc600_0004) && !is_conversion(0xc600_0002));
    }
}
