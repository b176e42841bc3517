//! VMX basic exit reasons and the flags beside them.
//!
//! Numbers and names are Linux's `arch/x86/include/uapi/asm/vmx.h` (`VMX_EXIT_REASONS`), which is
//! what the tracepoints print. Reasons that Linux has no name for carry the Intel SDM's (volume 3,
//! appendix C, "VMX basic exit reasons") in Linux's spelling: 5, 6, 11, 17, 65, 66, 69, 70, 72, 73,
//! 76 and 78 to 81. What the SDM reserves (35, 38, 42, 71, 82, 83) has no name here, so it shows as a
//! number.

use crate::detail::table::{self, named_codes};

named_codes! {
    /// Every basic exit reason.
    TABLE: u32 {
        0 EXCEPTION_NMI,
        1 EXTERNAL_INTERRUPT,
        2 TRIPLE_FAULT,
        3 INIT_SIGNAL,
        4 SIPI_SIGNAL,
        5 IO_SMI,
        6 OTHER_SMI,
        7 INTERRUPT_WINDOW,
        8 NMI_WINDOW,
        9 TASK_SWITCH,
        10 CPUID,
        11 GETSEC,
        12 HLT,
        13 INVD,
        14 INVLPG,
        15 RDPMC,
        16 RDTSC,
        17 RSM,
        18 VMCALL,
        19 VMCLEAR,
        20 VMLAUNCH,
        21 VMPTRLD,
        22 VMPTRST,
        23 VMREAD,
        24 VMRESUME,
        25 VMWRITE,
        26 VMOFF,
        27 VMON,
        28 CR_ACCESS,
        29 DR_ACCESS,
        30 IO_INSTRUCTION,
        31 MSR_READ,
        32 MSR_WRITE,
        33 INVALID_STATE,
        34 MSR_LOAD_FAIL,
        36 MWAIT_INSTRUCTION,
        37 MONITOR_TRAP_FLAG,
        39 MONITOR_INSTRUCTION,
        40 PAUSE_INSTRUCTION,
        41 MCE_DURING_VMENTRY,
        43 TPR_BELOW_THRESHOLD,
        44 APIC_ACCESS,
        45 EOI_INDUCED,
        46 GDTR_IDTR,
        47 LDTR_TR,
        48 EPT_VIOLATION,
        49 EPT_MISCONFIG,
        50 INVEPT,
        51 RDTSCP,
        52 PREEMPTION_TIMER,
        53 INVVPID,
        54 WBINVD,
        55 XSETBV,
        56 APIC_WRITE,
        57 RDRAND,
        58 INVPCID,
        59 VMFUNC,
        60 ENCLS,
        61 RDSEED,
        62 PML_FULL,
        63 XSAVES,
        64 XRSTORS,
        65 PCONFIG,
        66 SPP_EVENT,
        67 UMWAIT,
        68 TPAUSE,
        69 LOADIWKEY,
        70 ENCLV,
        72 ENQCMD_PASID,
        73 ENQCMDS_PASID,
        74 BUS_LOCK,
        75 NOTIFY,
        76 SEAMCALL,
        77 TDCALL,
        78 RDMSRLIST,
        79 WRMSRLIST,
        80 URDMSR,
        81 UWRMSR,
        84 MSR_READ_IMM,
        85 MSR_WRITE_IMM,
    }
}

/// Spellings that recordings use and the kernel does not, or no longer.
const ALIASES: &[(u32, &str)] = &[
    // Linux before 5.7.
    (INTERRUPT_WINDOW, "PENDING_INTERRUPT"),
    // The dump in "Performance tuning for oneDNN on TDX".
    (EPT_MISCONFIG, "EPT_MISCONF"),
];

/// The entry failed: the guest never ran. Bit 31 of the exit reason.
pub const FAILED_ENTRY: u32 = 1 << 31;
/// The exit came from VMX root operation (SMM dual-monitor treatment). Bit 29.
pub const FROM_VMX_ROOT: u32 = 1 << 29;
/// A monitor-trap-flag exit is pending. Bit 28.
pub const PENDING_MTF: u32 = 1 << 28;
/// The guest was in an SGX enclave. Bit 27.
pub const ENCLAVE_MODE: u32 = 1 << 27;
/// The guest took a bus lock, whatever the reason says. Bit 26.
pub const BUS_LOCK_DETECTED: u32 = 1 << 26;

/// The flags beside the basic reason. Linux prints `FAILED_VMENTRY` alone; the others are SDM
/// volume 3, "Basic VM-Exit Information".
const FLAGS: &[(u32, &str)] = &[
    (FAILED_ENTRY, "FAILED_VMENTRY"),
    (FROM_VMX_ROOT, "FROM_VMX_ROOT"),
    (PENDING_MTF, "PENDING_MTF"),
    (ENCLAVE_MODE, "ENCLAVE_MODE"),
    (BUS_LOCK_DETECTED, "BUS_LOCK_DETECTED"),
];

/// The name of a basic exit reason (without flags), as the kernel prints it.
pub fn name(code: u32) -> Option<&'static str> {
    table::name_of(TABLE, code)
}

/// The basic exit reason of this name. Older and shortened spellings are understood.
pub fn code(name: &str) -> Option<u32> {
    table::key_of(TABLE, name).or_else(|| table::key_of(ALIASES, name))
}

/// The names of the flags that are set, highest bit first. Bits without a name are left out.
pub fn flag_names(flags: u32) -> Vec<&'static str> {
    FLAGS.iter().filter(|&&(bit, _)| flags & bit != 0).map(|&(_, name)| name).collect()
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
    }

    #[test]
    fn reserved_numbers_have_no_name() {
        for reserved in [35, 38, 42, 71, 82, 83, 86, 0xffff] {
            assert_eq!(name(reserved), None, "{reserved}");
        }
    }

    #[test]
    fn aliases_are_read_but_never_shown() {
        assert_eq!(code("EPT_MISCONF"), Some(49));
        assert_eq!(code("PENDING_INTERRUPT"), Some(7));
        for &(number, alias) in ALIASES {
            assert_ne!(name(number), Some(alias));
        }
        assert_eq!(code("ept_violation"), None);
    }

    #[test]
    fn flags() {
        assert_eq!(flag_names(0), Vec::<&str>::new());
        assert_eq!(flag_names(FAILED_ENTRY | ENCLAVE_MODE), ["FAILED_VMENTRY", "ENCLAVE_MODE"]);
        assert_eq!(flag_names(1 << 16), Vec::<&str>::new());
    }
}
