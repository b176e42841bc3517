//! Names of model-specific registers.
//!
//! Sources: Intel SDM volume 4 (`IA32_*`, `MSR_*`), AMD APM volume 2 appendix A and the processor
//! programming references (0xc000_xxxx, 0xc001_xxxx), Linux `asm/kvm_para.h` (`MSR_KVM_*`) and the
//! Hyper-V Top-Level Functional Specification (`HV_X64_MSR_*`). Where both vendors have the register
//! and agree on the number, the name without a vendor's prefix is used (`SPEC_CTRL`, `EFER`).
//! Registers that no hypervisor traps in practice are left out: they show as numbers.

use std::borrow::Cow;

use crate::apic;
use crate::detail::table;

/// Stands for the running number in the names of a range.
const NUMBER: &str = "#";

/// First and last MSR, and the names in turn: in a range of several registers per unit the names
/// repeat, and the unit's number replaces `#`. Sorted.
const MSRS: &[(u32, u32, &[&str])] = &[
    (0x000, 0x000, &["IA32_P5_MC_ADDR"]),
    (0x001, 0x001, &["IA32_P5_MC_TYPE"]),
    (0x006, 0x006, &["IA32_MONITOR_FILTER_SIZE"]),
    (0x010, 0x010, &["IA32_TIME_STAMP_COUNTER"]),
    (0x011, 0x011, &["MSR_KVM_WALL_CLOCK"]),
    (0x012, 0x012, &["MSR_KVM_SYSTEM_TIME"]),
    (0x017, 0x017, &["IA32_PLATFORM_ID"]),
    (0x01b, 0x01b, &["IA32_APIC_BASE"]),
    (0x02a, 0x02a, &["MSR_EBL_CR_POWERON"]),
    (0x033, 0x033, &["MSR_TEST_CTRL"]),
    (0x034, 0x034, &["MSR_SMI_COUNT"]),
    (0x035, 0x035, &["MSR_CORE_THREAD_COUNT"]),
    (0x03a, 0x03a, &["IA32_FEATURE_CONTROL"]),
    (0x03b, 0x03b, &["IA32_TSC_ADJUST"]),
    (0x048, 0x048, &["SPEC_CTRL"]),
    (0x049, 0x049, &["PRED_CMD"]),
    (0x079, 0x079, &["IA32_BIOS_UPDT_TRIG"]),
    (0x08b, 0x08b, &["IA32_BIOS_SIGN_ID"]),
    (0x08c, 0x08f, &["IA32_SGXLEPUBKEYHASH#"]),
    (0x0c1, 0x0c8, &["IA32_PMC#"]),
    (0x0ce, 0x0ce, &["MSR_PLATFORM_INFO"]),
    (0x0cf, 0x0cf, &["IA32_CORE_CAPABILITIES"]),
    (0x0e1, 0x0e1, &["IA32_UMWAIT_CONTROL"]),
    (0x0e7, 0x0e7, &["IA32_MPERF"]),
    (0x0e8, 0x0e8, &["IA32_APERF"]),
    (0x0fe, 0x0fe, &["IA32_MTRRCAP"]),
    (0x10a, 0x10a, &["IA32_ARCH_CAPABILITIES"]),
    (0x10b, 0x10b, &["FLUSH_CMD"]),
    (0x122, 0x122, &["IA32_TSX_CTRL"]),
    (0x123, 0x123, &["IA32_MCU_OPT_CTRL"]),
    (0x140, 0x140, &["MSR_MISC_FEATURES_ENABLES"]),
    (0x174, 0x174, &["IA32_SYSENTER_CS"]),
    (0x175, 0x175, &["IA32_SYSENTER_ESP"]),
    (0x176, 0x176, &["IA32_SYSENTER_EIP"]),
    (0x179, 0x179, &["IA32_MCG_CAP"]),
    (0x17a, 0x17a, &["IA32_MCG_STATUS"]),
    (0x17b, 0x17b, &["IA32_MCG_CTL"]),
    (0x186, 0x18d, &["IA32_PERFEVTSEL#"]),
    (0x198, 0x198, &["IA32_PERF_STATUS"]),
    (0x199, 0x199, &["IA32_PERF_CTL"]),
    (0x19a, 0x19a, &["IA32_CLOCK_MODULATION"]),
    (0x19b, 0x19b, &["IA32_THERM_INTERRUPT"]),
    (0x19c, 0x19c, &["IA32_THERM_STATUS"]),
    (0x1a0, 0x1a0, &["IA32_MISC_ENABLE"]),
    (0x1a2, 0x1a2, &["MSR_TEMPERATURE_TARGET"]),
    (0x1a4, 0x1a4, &["MSR_MISC_FEATURE_CONTROL"]),
    (0x1a6, 0x1a7, &["MSR_OFFCORE_RSP_#"]),
    (0x1b0, 0x1b0, &["IA32_ENERGY_PERF_BIAS"]),
    (0x1b1, 0x1b1, &["IA32_PACKAGE_THERM_STATUS"]),
    (0x1b2, 0x1b2, &["IA32_PACKAGE_THERM_INTERRUPT"]),
    (0x1c4, 0x1c4, &["IA32_XFD"]),
    (0x1c5, 0x1c5, &["IA32_XFD_ERR"]),
    (0x1c8, 0x1c8, &["MSR_LBR_SELECT"]),
    (0x1c9, 0x1c9, &["MSR_LASTBRANCH_TOS"]),
    (0x1d9, 0x1d9, &["IA32_DEBUGCTL"]),
    (0x1db, 0x1db, &["MSR_LASTBRANCH_FROM_IP"]),
    (0x1dc, 0x1dc, &["MSR_LASTBRANCH_TO_IP"]),
    (0x1dd, 0x1dd, &["MSR_LER_FROM_IP"]),
    (0x1de, 0x1de, &["MSR_LER_TO_IP"]),
    (0x200, 0x213, &["IA32_MTRR_PHYSBASE#", "IA32_MTRR_PHYSMASK#"]),
    (0x250, 0x250, &["IA32_MTRR_FIX64K_00000"]),
    (0x258, 0x258, &["IA32_MTRR_FIX16K_80000"]),
    (0x259, 0x259, &["IA32_MTRR_FIX16K_A0000"]),
    (0x268, 0x268, &["IA32_MTRR_FIX4K_C0000"]),
    (0x269, 0x269, &["IA32_MTRR_FIX4K_C8000"]),
    (0x26a, 0x26a, &["IA32_MTRR_FIX4K_D0000"]),
    (0x26b, 0x26b, &["IA32_MTRR_FIX4K_D8000"]),
    (0x26c, 0x26c, &["IA32_MTRR_FIX4K_E0000"]),
    (0x26d, 0x26d, &["IA32_MTRR_FIX4K_E8000"]),
    (0x26e, 0x26e, &["IA32_MTRR_FIX4K_F0000"]),
    (0x26f, 0x26f, &["IA32_MTRR_FIX4K_F8000"]),
    (0x277, 0x277, &["IA32_PAT"]),
    (0x280, 0x29f, &["IA32_MC#_CTL2"]),
    (0x2ff, 0x2ff, &["IA32_MTRR_DEF_TYPE"]),
    (0x309, 0x30f, &["IA32_FIXED_CTR#"]),
    (0x329, 0x329, &["IA32_PERF_METRICS"]),
    (0x345, 0x345, &["IA32_PERF_CAPABILITIES"]),
    (0x38d, 0x38d, &["IA32_FIXED_CTR_CTRL"]),
    (0x38e, 0x38e, &["IA32_PERF_GLOBAL_STATUS"]),
    (0x38f, 0x38f, &["IA32_PERF_GLOBAL_CTRL"]),
    (0x390, 0x390, &["IA32_PERF_GLOBAL_STATUS_RESET"]),
    (0x391, 0x391, &["IA32_PERF_GLOBAL_STATUS_SET"]),
    (0x392, 0x392, &["IA32_PERF_GLOBAL_INUSE"]),
    (0x3f1, 0x3f1, &["IA32_PEBS_ENABLE"]),
    (0x3f2, 0x3f2, &["MSR_PEBS_DATA_CFG"]),
    (0x3f6, 0x3f6, &["MSR_PEBS_LD_LAT"]),
    (0x3f7, 0x3f7, &["MSR_PEBS_FRONTEND"]),
    (0x400, 0x47f, &["IA32_MC#_CTL", "IA32_MC#_STATUS", "IA32_MC#_ADDR", "IA32_MC#_MISC"]),
    (0x480, 0x480, &["IA32_VMX_BASIC"]),
    (0x481, 0x481, &["IA32_VMX_PINBASED_CTLS"]),
    (0x482, 0x482, &["IA32_VMX_PROCBASED_CTLS"]),
    (0x483, 0x483, &["IA32_VMX_EXIT_CTLS"]),
    (0x484, 0x484, &["IA32_VMX_ENTRY_CTLS"]),
    (0x485, 0x485, &["IA32_VMX_MISC"]),
    (0x486, 0x487, &["IA32_VMX_CR0_FIXED#"]),
    (0x488, 0x489, &["IA32_VMX_CR4_FIXED#"]),
    (0x48a, 0x48a, &["IA32_VMX_VMCS_ENUM"]),
    (0x48b, 0x48b, &["IA32_VMX_PROCBASED_CTLS2"]),
    (0x48c, 0x48c, &["IA32_VMX_EPT_VPID_CAP"]),
    (0x48d, 0x48d, &["IA32_VMX_TRUE_PINBASED_CTLS"]),
    (0x48e, 0x48e, &["IA32_VMX_TRUE_PROCBASED_CTLS"]),
    (0x48f, 0x48f, &["IA32_VMX_TRUE_EXIT_CTLS"]),
    (0x490, 0x490, &["IA32_VMX_TRUE_ENTRY_CTLS"]),
    (0x491, 0x491, &["IA32_VMX_VMFUNC"]),
    (0x492, 0x492, &["IA32_VMX_PROCBASED_CTLS3"]),
    (0x493, 0x493, &["IA32_VMX_EXIT_CTLS2"]),
    (0x4c1, 0x4c8, &["IA32_A_PMC#"]),
    (0x4d0, 0x4d0, &["IA32_MCG_EXT_CTL"]),
    (0x560, 0x560, &["IA32_RTIT_OUTPUT_BASE"]),
    (0x561, 0x561, &["IA32_RTIT_OUTPUT_MASK_PTRS"]),
    (0x570, 0x570, &["IA32_RTIT_CTL"]),
    (0x571, 0x571, &["IA32_RTIT_STATUS"]),
    (0x572, 0x572, &["IA32_RTIT_CR3_MATCH"]),
    (0x580, 0x587, &["IA32_RTIT_ADDR#_A", "IA32_RTIT_ADDR#_B"]),
    (0x600, 0x600, &["IA32_DS_AREA"]),
    (0x606, 0x606, &["MSR_RAPL_POWER_UNIT"]),
    (0x610, 0x610, &["MSR_PKG_POWER_LIMIT"]),
    (0x611, 0x611, &["MSR_PKG_ENERGY_STATUS"]),
    (0x619, 0x619, &["MSR_DRAM_ENERGY_STATUS"]),
    (0x639, 0x639, &["MSR_PP0_ENERGY_STATUS"]),
    (0x641, 0x641, &["MSR_PP1_ENERGY_STATUS"]),
    (0x6a0, 0x6a0, &["U_CET"]),
    (0x6a2, 0x6a2, &["S_CET"]),
    (0x6a4, 0x6a7, &["PL#_SSP"]),
    (0x6a8, 0x6a8, &["INTERRUPT_SSP_TABLE_ADDR"]),
    (0x6e0, 0x6e0, &["IA32_TSC_DEADLINE"]),
    (0x6e1, 0x6e1, &["IA32_PKRS"]),
    (0x770, 0x770, &["IA32_PM_ENABLE"]),
    (0x771, 0x771, &["IA32_HWP_CAPABILITIES"]),
    (0x774, 0x774, &["IA32_HWP_REQUEST"]),
    (0x777, 0x777, &["IA32_HWP_STATUS"]),
    (0xc80, 0xc80, &["IA32_DEBUG_INTERFACE"]),
    (0xd90, 0xd90, &["IA32_BNDCFGS"]),
    (0xda0, 0xda0, &["XSS"]),
    (0x1200, 0x121f, &["IA32_LBR_#_INFO"]),
    (0x14ce, 0x14ce, &["IA32_LBR_CTL"]),
    (0x14cf, 0x14cf, &["IA32_LBR_DEPTH"]),
    (0x1500, 0x151f, &["IA32_LBR_#_FROM_IP"]),
    (0x1600, 0x161f, &["IA32_LBR_#_TO_IP"]),
    (
        0x1900,
        0x1927,
        &["IA32_PMC_GP#_CTR", "IA32_PMC_GP#_CFG_A", "IA32_PMC_GP#_CFG_B", "IA32_PMC_GP#_CFG_C"],
    ),
    (
        0x1980,
        0x199b,
        &["IA32_PMC_FX#_CTR", "IA32_PMC_FX#_CFG_A", "IA32_PMC_FX#_CFG_B", "IA32_PMC_FX#_CFG_C"],
    ),
    (0x4000_0000, 0x4000_0000, &["HV_X64_MSR_GUEST_OS_ID"]),
    (0x4000_0001, 0x4000_0001, &["HV_X64_MSR_HYPERCALL"]),
    (0x4000_0002, 0x4000_0002, &["HV_X64_MSR_VP_INDEX"]),
    (0x4000_0003, 0x4000_0003, &["HV_X64_MSR_RESET"]),
    (0x4000_0010, 0x4000_0010, &["HV_X64_MSR_VP_RUNTIME"]),
    (0x4000_0020, 0x4000_0020, &["HV_X64_MSR_TIME_REF_COUNT"]),
    (0x4000_0021, 0x4000_0021, &["HV_X64_MSR_REFERENCE_TSC"]),
    (0x4000_0022, 0x4000_0022, &["HV_X64_MSR_TSC_FREQUENCY"]),
    (0x4000_0023, 0x4000_0023, &["HV_X64_MSR_APIC_FREQUENCY"]),
    (0x4000_0070, 0x4000_0070, &["HV_X64_MSR_EOI"]),
    (0x4000_0071, 0x4000_0071, &["HV_X64_MSR_ICR"]),
    (0x4000_0072, 0x4000_0072, &["HV_X64_MSR_TPR"]),
    (0x4000_0073, 0x4000_0073, &["HV_X64_MSR_VP_ASSIST_PAGE"]),
    (0x4000_0080, 0x4000_0080, &["HV_X64_MSR_SCONTROL"]),
    (0x4000_0081, 0x4000_0081, &["HV_X64_MSR_SVERSION"]),
    (0x4000_0082, 0x4000_0082, &["HV_X64_MSR_SIEFP"]),
    (0x4000_0083, 0x4000_0083, &["HV_X64_MSR_SIMP"]),
    (0x4000_0084, 0x4000_0084, &["HV_X64_MSR_EOM"]),
    (0x4000_0090, 0x4000_009f, &["HV_X64_MSR_SINT#"]),
    (0x4000_00b0, 0x4000_00b7, &["HV_X64_MSR_STIMER#_CONFIG", "HV_X64_MSR_STIMER#_COUNT"]),
    (0x4000_00f0, 0x4000_00f0, &["HV_X64_MSR_GUEST_IDLE"]),
    (0x4000_0100, 0x4000_0104, &["HV_X64_MSR_CRASH_P#"]),
    (0x4000_0105, 0x4000_0105, &["HV_X64_MSR_CRASH_CTL"]),
    (0x4000_0106, 0x4000_0106, &["HV_X64_MSR_REENLIGHTENMENT_CONTROL"]),
    (0x4000_0107, 0x4000_0107, &["HV_X64_MSR_TSC_EMULATION_CONTROL"]),
    (0x4000_0108, 0x4000_0108, &["HV_X64_MSR_TSC_EMULATION_STATUS"]),
    (0x4000_0118, 0x4000_0118, &["HV_X64_MSR_TSC_INVARIANT_CONTROL"]),
    (0x4b56_4d00, 0x4b56_4d00, &["MSR_KVM_WALL_CLOCK_NEW"]),
    (0x4b56_4d01, 0x4b56_4d01, &["MSR_KVM_SYSTEM_TIME_NEW"]),
    (0x4b56_4d02, 0x4b56_4d02, &["MSR_KVM_ASYNC_PF_EN"]),
    (0x4b56_4d03, 0x4b56_4d03, &["MSR_KVM_STEAL_TIME"]),
    (0x4b56_4d04, 0x4b56_4d04, &["MSR_KVM_PV_EOI_EN"]),
    (0x4b56_4d05, 0x4b56_4d05, &["MSR_KVM_POLL_CONTROL"]),
    (0x4b56_4d06, 0x4b56_4d06, &["MSR_KVM_ASYNC_PF_INT"]),
    (0x4b56_4d07, 0x4b56_4d07, &["MSR_KVM_ASYNC_PF_ACK"]),
    (0x4b56_4d08, 0x4b56_4d08, &["MSR_KVM_MIGRATION_CONTROL"]),
    (0xc000_0080, 0xc000_0080, &["EFER"]),
    (0xc000_0081, 0xc000_0081, &["STAR"]),
    (0xc000_0082, 0xc000_0082, &["LSTAR"]),
    (0xc000_0083, 0xc000_0083, &["CSTAR"]),
    (0xc000_0084, 0xc000_0084, &["SFMASK"]),
    (0xc000_00e7, 0xc000_00e7, &["MPERF_RO"]),
    (0xc000_00e8, 0xc000_00e8, &["APERF_RO"]),
    (0xc000_00e9, 0xc000_00e9, &["IRPERF"]),
    (0xc000_0100, 0xc000_0100, &["FS_BASE"]),
    (0xc000_0101, 0xc000_0101, &["GS_BASE"]),
    (0xc000_0102, 0xc000_0102, &["KERNEL_GS_BASE"]),
    (0xc000_0103, 0xc000_0103, &["TSC_AUX"]),
    (0xc000_0104, 0xc000_0104, &["TSC_RATIO"]),
    (0xc000_010e, 0xc000_010e, &["LBR_SELECT"]),
    (0xc000_010f, 0xc000_010f, &["DBG_EXTN_CFG"]),
    (0xc000_0300, 0xc000_0300, &["PERF_CNTR_GLOBAL_STATUS"]),
    (0xc000_0301, 0xc000_0301, &["PERF_CNTR_GLOBAL_CTL"]),
    (0xc000_0302, 0xc000_0302, &["PERF_CNTR_GLOBAL_STATUS_CLR"]),
    (0xc000_0303, 0xc000_0303, &["PERF_CNTR_GLOBAL_STATUS_SET"]),
    (0xc001_0000, 0xc001_0003, &["PERF_LEGACY_CTL#"]),
    (0xc001_0004, 0xc001_0007, &["PERF_LEGACY_CTR#"]),
    (0xc001_0010, 0xc001_0010, &["SYSCFG"]),
    (0xc001_0015, 0xc001_0015, &["HWCR"]),
    (0xc001_0016, 0xc001_0019, &["IORR_BASE#", "IORR_MASK#"]),
    (0xc001_001a, 0xc001_001a, &["TOP_MEM"]),
    (0xc001_001d, 0xc001_001d, &["TOP_MEM2"]),
    (0xc001_001f, 0xc001_001f, &["NB_CFG"]),
    (0xc001_0055, 0xc001_0055, &["INT_PENDING"]),
    (0xc001_0058, 0xc001_0058, &["MMIO_CFG_BASE"]),
    (0xc001_0061, 0xc001_0061, &["PSTATE_CUR_LIMIT"]),
    (0xc001_0062, 0xc001_0062, &["PSTATE_CTL"]),
    (0xc001_0063, 0xc001_0063, &["PSTATE_STATUS"]),
    (0xc001_0064, 0xc001_006b, &["PSTATE_DEF#"]),
    (0xc001_0114, 0xc001_0114, &["VM_CR"]),
    (0xc001_0115, 0xc001_0115, &["IGNNE"]),
    (0xc001_0117, 0xc001_0117, &["VM_HSAVE_PA"]),
    (0xc001_0118, 0xc001_0118, &["SVM_KEY"]),
    (0xc001_011e, 0xc001_011e, &["VM_PAGE_FLUSH"]),
    (0xc001_011f, 0xc001_011f, &["VIRT_SPEC_CTRL"]),
    (0xc001_0130, 0xc001_0130, &["GHCB"]),
    (0xc001_0131, 0xc001_0131, &["SEV_STATUS"]),
    (0xc001_0132, 0xc001_0132, &["RMP_BASE"]),
    (0xc001_0133, 0xc001_0133, &["RMP_END"]),
    (0xc001_0134, 0xc001_0134, &["GUEST_TSC_FREQ"]),
    (0xc001_0138, 0xc001_0138, &["SECURE_AVIC_CONTROL"]),
    (0xc001_0140, 0xc001_0140, &["OSVW_ID_LENGTH"]),
    (0xc001_0141, 0xc001_0141, &["OSVW_STATUS"]),
    (0xc001_0200, 0xc001_020b, &["PERF_CTL#", "PERF_CTR#"]),
    (0xc001_0230, 0xc001_023b, &["L3_PMC_CTL#", "L3_PMC_CTR#"]),
    (0xc001_0240, 0xc001_0247, &["NB_PERF_CTL#", "NB_PERF_CTR#"]),
    (0xc001_0299, 0xc001_0299, &["RAPL_PWR_UNIT"]),
    (0xc001_029a, 0xc001_029a, &["CORE_ENERGY_STAT"]),
    (0xc001_029b, 0xc001_029b, &["PKG_ENERGY_STAT"]),
    (0xc001_02b0, 0xc001_02b0, &["CPPC_CAPABILITY_1"]),
    (0xc001_02b1, 0xc001_02b1, &["CPPC_ENABLE"]),
    (0xc001_02b3, 0xc001_02b3, &["CPPC_REQUEST"]),
    (0xc001_02b4, 0xc001_02b4, &["CPPC_STATUS"]),
    (0xc001_02f0, 0xc001_02f0, &["PPIN_CTL"]),
    (0xc001_02f1, 0xc001_02f1, &["PPIN"]),
    (0xc001_1020, 0xc001_1020, &["LS_CFG"]),
    (0xc001_1021, 0xc001_1021, &["IC_CFG"]),
    (0xc001_1022, 0xc001_1022, &["DC_CFG"]),
    (0xc001_1028, 0xc001_1028, &["FP_CFG"]),
    (0xc001_1029, 0xc001_1029, &["DE_CFG"]),
    (0xc001_102a, 0xc001_102a, &["BU_CFG2"]),
    (0xc001_1030, 0xc001_1030, &["IBS_FETCH_CTL"]),
    (0xc001_1031, 0xc001_1031, &["IBS_FETCH_LINADDR"]),
    (0xc001_1032, 0xc001_1032, &["IBS_FETCH_PHYSADDR"]),
    (0xc001_1033, 0xc001_1033, &["IBS_OP_CTL"]),
    (0xc001_1034, 0xc001_1034, &["IBS_OP_RIP"]),
    (0xc001_1035, 0xc001_1035, &["IBS_OP_DATA"]),
    (0xc001_1036, 0xc001_1036, &["IBS_OP_DATA2"]),
    (0xc001_1037, 0xc001_1037, &["IBS_OP_DATA3"]),
    (0xc001_1038, 0xc001_1038, &["IBS_DC_LINADDR"]),
    (0xc001_1039, 0xc001_1039, &["IBS_DC_PHYSADDR"]),
    (0xc001_103a, 0xc001_103a, &["IBS_CTL"]),
    (0xc001_103b, 0xc001_103b, &["IBS_BR_TARGET"]),
    (0xc001_103c, 0xc001_103c, &["IBS_FETCH_CTL_EXT"]),
];

/// The MSRs of performance counting: event selectors, counters, global control, PEBS and IBS.
/// Branch records (DEBUGCTL, LBR) and processor trace are not among them. Sorted.
const PMU: &[(u32, u32, ())] = &[
    (0x0c1, 0x0c8, ()),
    (0x186, 0x18d, ()),
    (0x1a6, 0x1a7, ()),
    (0x309, 0x30f, ()),
    (0x329, 0x329, ()),
    (0x345, 0x345, ()),
    (0x38d, 0x392, ()),
    (0x3f1, 0x3f7, ()),
    (0x4c1, 0x4c8, ()),
    (0x600, 0x600, ()),
    (0x1900, 0x199b, ()),
    (0xc000_0300, 0xc000_0303, ()),
    (0xc001_0000, 0xc001_0007, ()),
    (0xc001_0200, 0xc001_020b, ()),
    (0xc001_0230, 0xc001_023b, ()),
    (0xc001_0240, 0xc001_0247, ()),
    (0xc001_1030, 0xc001_103c, ()),
];

/// TSC value at which the timer fires: writing it arms the timer.
pub const IA32_TSC_DEADLINE: u32 = 0x6e0;
/// End of interrupt, Hyper-V's.
pub const HV_X64_MSR_EOI: u32 = 0x4000_0070;
/// Interrupt command, Hyper-V's: sends an IPI.
pub const HV_X64_MSR_ICR: u32 = 0x4000_0071;
/// Task priority, Hyper-V's.
pub const HV_X64_MSR_TPR: u32 = 0x4000_0072;
/// The first of the synthetic timers' registers, Hyper-V's; writing them arms a timer.
pub const HV_X64_MSR_STIMER0_CONFIG: u32 = 0x4000_00b0;
/// The last of them.
pub const HV_X64_MSR_STIMER3_COUNT: u32 = 0x4000_00b7;
/// Reading it halts the processor, Hyper-V's.
pub const HV_X64_MSR_GUEST_IDLE: u32 = 0x4000_00f0;

/// The name of an MSR. Registers of a range number themselves: `IA32_PMC3`, `X2APIC_TPR`.
pub fn name(index: u32) -> Option<Cow<'static, str>> {
    if let Some(register) = apic::x2apic_register(index).and_then(apic::register_name) {
        return Some(Cow::Owned(format!("X2APIC_{register}")));
    }
    let &(first, last, names) = table::range_of(MSRS, index)?;
    let at = usize::try_from(index - first).ok()?;
    let name = *names.get(at % names.len())?;
    if first == last {
        return Some(Cow::Borrowed(name));
    }
    Some(Cow::Owned(name.replace(NUMBER, &(at / names.len()).to_string())))
}

/// Whether an MSR belongs to the performance monitoring unit.
pub fn is_pmu(index: u32) -> bool {
    table::range_of(PMU, index).is_some()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn tables_are_sorted() {
        table::check::ranges(MSRS);
        table::check::ranges(PMU);
        for &(first, last, names) in MSRS {
            let registers = (last - first + 1) as usize;
            assert_eq!(registers % names.len(), 0, "{names:?}");
            for name in names {
                assert_eq!(name.contains(NUMBER), registers > 1, "{name}");
            }
            assert!(apic::x2apic_register(first).is_none(), "{names:?}");
        }
    }

    #[test]
    fn no_two_registers_share_a_name() {
        let mut seen = BTreeMap::new();
        for &(first, last, _) in MSRS {
            for index in first..=last {
                let previous = seen.insert(name(index).unwrap(), index);
                assert_eq!(previous, None, "{index:#x}");
            }
        }
    }

    #[test]
    fn names() {
        for (index, expected) in [
            (0x10, "IA32_TIME_STAMP_COUNTER"),
            (0x48, "SPEC_CTRL"),
            (0xc1, "IA32_PMC0"),
            (0xc4, "IA32_PMC3"),
            (0x18d, "IA32_PERFEVTSEL7"),
            (0x1d9, "IA32_DEBUGCTL"),
            (0x201, "IA32_MTRR_PHYSMASK0"),
            (0x20e, "IA32_MTRR_PHYSBASE7"),
            (0x30b, "IA32_FIXED_CTR2"),
            (0x405, "IA32_MC1_STATUS"),
            (0x487, "IA32_VMX_CR0_FIXED1"),
            (0x6e0, "IA32_TSC_DEADLINE"),
            (0x808, "X2APIC_TPR"),
            (0x80b, "X2APIC_EOI"),
            (0x830, "X2APIC_ICR"),
            (0x838, "X2APIC_TMICT"),
            (0x83f, "X2APIC_SELF_IPI"),
            (0x4000_00b1, "HV_X64_MSR_STIMER0_COUNT"),
            (0x4b56_4d00, "MSR_KVM_WALL_CLOCK_NEW"),
            (0xc000_0080, "EFER"),
            (0xc001_0130, "GHCB"),
            (0xc001_0201, "PERF_CTR0"),
            (0xc001_020a, "PERF_CTL5"),
        ] {
            assert_eq!(name(index).as_deref(), Some(expected), "{index:#x}");
        }
        for unknown in [0x2, 0xc9, 0x801, 0x900, 0x4000_00b8, u32::MAX] {
            assert_eq!(name(unknown), None, "{unknown:#x}");
        }
    }

    #[test]
    fn constants_agree_with_the_table() {
        for (index, expected) in [
            (IA32_TSC_DEADLINE, "IA32_TSC_DEADLINE"),
            (HV_X64_MSR_EOI, "HV_X64_MSR_EOI"),
            (HV_X64_MSR_ICR, "HV_X64_MSR_ICR"),
            (HV_X64_MSR_TPR, "HV_X64_MSR_TPR"),
            (HV_X64_MSR_STIMER0_CONFIG, "HV_X64_MSR_STIMER0_CONFIG"),
            (HV_X64_MSR_STIMER3_COUNT, "HV_X64_MSR_STIMER3_COUNT"),
            (HV_X64_MSR_GUEST_IDLE, "HV_X64_MSR_GUEST_IDLE"),
        ] {
            assert_eq!(name(index).as_deref(), Some(expected));
        }
    }

    #[test]
    fn pmu() {
        for index in
            [0xc1, 0x186, 0x309, 0x38d, 0x38f, 0x390, 0xc000_0301, 0xc001_0004, 0xc001_020b]
        {
            assert!(is_pmu(index), "{index:#x}");
        }
        for index in [0x1d9, 0x6e0, 0x174, 0xc001_0015, 0xc000_0080, 0x1c8] {
            assert!(!is_pmu(index), "{index:#x}");
        }
    }
}
