//! VMX basic exit reasons and the flags beside them.
//!
//! Numbers and names are Linux's `arch/x86/include/uapi/asm/vmx.h` (`VMX_EXIT_REASONS`), which is
//! what the tracepoints print. Reasons that Linux has no name for carry the Intel SDM's (volume 3,
//! appendix C, "VMX basic exit reasons") in Linux's spelling: 5, 6, 11, 17, 65, 66, 69, 70, 72, 73,
//! 76 and 78 to 81. What the SDM reserves (35, 38, 42, 71, 82, 83) has no name here, so it shows as a
//! number.

use crate::cause::{CauseRule, MSR_NUMBERS};
use crate::detail::table::{self, named_codes};
use crate::isa::IsaFacts;
use crate::{Cause, Detail, DetailKind, interrupt};

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

const VECTORS: &str =
    "what interrupted the guest: intr_info (older kernels: info2) of kvm:kvm_exit has the vector";
const LEAVES: &str = "what the guest requests by TDCALL: kvm:kvm_vm_set_mem_attributes tells MapGPA; before Linux 6.16 kvm:kvm_msr, kvm:kvm_pio, kvm:kvm_mmio and the like tell the rest";

const fn rule(code: u32, cause: Cause) -> CauseRule {
    CauseRule::new(code, cause)
}

/// The rules, by code. Others are [`Cause::Other`] unless the detail decides: exceptions, CR and DR accesses, descriptor tables,
/// cache and TLB instructions, XSETBV, RDTSC, failed entries.
const RULES: &[CauseRule] = &[
    rule(EXTERNAL_INTERRUPT, Cause::HostInterrupt).missing(VECTORS),
    rule(INTERRUPT_WINDOW, Cause::IrqWindow).only(),
    rule(NMI_WINDOW, Cause::IrqWindow).only(),
    rule(CPUID, Cause::Cpuid).only(),
    rule(HLT, Cause::Idle).only(),
    rule(RDPMC, Cause::Pmu).only(),
    rule(VMCALL, Cause::Hypercall),
    rule(VMCLEAR, Cause::NestedAncillary).only(),
    rule(VMLAUNCH, Cause::NestedEntry).only(),
    rule(VMPTRLD, Cause::NestedAncillary).only(),
    rule(VMPTRST, Cause::NestedAncillary).only(),
    rule(VMREAD, Cause::NestedAncillary).only(),
    rule(VMRESUME, Cause::NestedEntry).only(),
    rule(VMWRITE, Cause::NestedAncillary).only(),
    rule(VMOFF, Cause::NestedAncillary).only(),
    rule(VMON, Cause::NestedAncillary).only(),
    rule(IO_INSTRUCTION, Cause::DevicePio),
    rule(MSR_READ, Cause::Msr).missing(MSR_NUMBERS),
    rule(MSR_WRITE, Cause::Msr).missing(MSR_NUMBERS),
    rule(MWAIT_INSTRUCTION, Cause::Idle).only(),
    // MONITOR is the first half of an MWAIT.
    rule(MONITOR_INSTRUCTION, Cause::Idle).only(),
    // Spinning is idleness: the guest has nothing to do until someone else acts.
    rule(PAUSE_INSTRUCTION, Cause::Idle).only(),
    // The task priority register is the APIC's.
    rule(TPR_BELOW_THRESHOLD, Cause::Apic).only(),
    rule(APIC_ACCESS, Cause::Apic),
    rule(EOI_INDUCED, Cause::Apic).only(),
    rule(EPT_VIOLATION, Cause::MemoryFault),
    // KVM makes entries misconfigured for emulated devices only (mmio caching in the MMU), and
    // mainline Linux reports TDVMCALL MMIO under this reason.
    rule(EPT_MISCONFIG, Cause::DeviceMmio),
    rule(INVEPT, Cause::NestedAncillary).only(),
    // KVM runs the guest's own APIC timer on it.
    rule(PREEMPTION_TIMER, Cause::TimerTick).only(),
    rule(INVVPID, Cause::NestedAncillary).only(),
    rule(APIC_WRITE, Cause::Apic),
    rule(UMWAIT, Cause::Idle).only(),
    rule(TPAUSE, Cause::Idle).only(),
    rule(TDCALL, Cause::Hypercall).missing(LEAVES),
    rule(RDMSRLIST, Cause::Msr),
    rule(WRMSRLIST, Cause::Msr),
    rule(URDMSR, Cause::Msr),
    rule(UWRMSR, Cause::Msr),
    rule(MSR_READ_IMM, Cause::Msr).missing(MSR_NUMBERS),
    rule(MSR_WRITE_IMM, Cause::Msr).missing(MSR_NUMBERS),
];

/// What kinds of access exits of a reason make. (Linux `arch/x86/kvm/vmx/vmx.c`: `kvm_vmx_exit_handlers`.)
const ACCESSES: &[(u32, &[DetailKind])] = &[
    (IO_INSTRUCTION, &[DetailKind::PortIn, DetailKind::PortOut]),
    (MSR_READ, &[DetailKind::MsrRead]),
    (MSR_WRITE, &[DetailKind::MsrWrite]),
    (EPT_MISCONFIG, &[DetailKind::MmioRead, DetailKind::MmioWrite]),
];

// Bits of the exit qualification: Intel SDM volume 3, "Exit qualification for EPT violations".
const EPT_FETCH: u64 = 1 << 2;
/// The page may be read, written or executed.
const EPT_MAPPED: u64 = 7 << 3;

/// VMX's facts.
#[derive(Debug)]
pub(crate) struct Vmx;

impl IsaFacts for Vmx {
    fn vendor(&self) -> &'static str {
        "Intel"
    }

    fn name(&self, code: u32) -> Option<&'static str> {
        name(code)
    }

    fn code(&self, name: &str) -> Option<u32> {
        code(name)
    }

    fn codes(&self) -> &'static [(u32, &'static str)] {
        TABLE
    }

    fn flags(&self) -> u32 {
        !0xffff
    }

    fn rules(&self) -> &'static [CauseRule] {
        RULES
    }

    fn accesses(&self) -> &'static [(u32, &'static [DetailKind])] {
        ACCESSES
    }

    /// From the exit qualification. Intel SDM volume 3, "Exit qualification": tables for control registers, I/O, APIC accesses.
    fn information(&self, code: u32, info1: u64, info2: u64) -> Detail {
        match code {
            IO_INSTRUCTION => Detail::port(info1 & 1 << 3 != 0, info1),
            EXTERNAL_INTERRUPT => match interrupt::vector(info2) {
                Some(vector) => Detail::new(DetailKind::Interrupt, vector),
                None => Detail::NONE,
            },
            CR_ACCESS => match info1 >> 4 & 3 {
                0 => Detail::new(DetailKind::CrWrite, info1 & 0xf),
                1 => Detail::new(DetailKind::CrRead, info1 & 0xf),
                // CLTS and LMSW write CR0.
                _ => Detail::new(DetailKind::CrWrite, 0),
            },
            APIC_WRITE => Detail::new(DetailKind::ApicWrite, info1 & 0xfff),
            APIC_ACCESS => match info1 >> 12 & 0xf {
                0 => Detail::new(DetailKind::ApicRead, info1 & 0xfff),
                1 => Detail::new(DetailKind::ApicWrite, info1 & 0xfff),
                _ => Detail::NONE,
            },
            _ => Detail::NONE,
        }
    }

    /// The error code is the exit qualification of an EPT violation; of other exits it is the guest's own.
    fn fault(&self, code: u32, error_code: u64) -> DetailKind {
        let is = |bits: u64| error_code & bits != 0;
        match (code == EPT_VIOLATION && is(EPT_MAPPED), is(EPT_FETCH)) {
            (false, _) => DetailKind::PageFault,
            (true, false) => DetailKind::MappedFault,
            (true, true) => DetailKind::MappedFetch,
        }
    }

    fn is_halt(&self, code: u32, detail: Detail) -> bool {
        code == HLT || detail.is_halt_request()
    }

    /// Linux 5.8 to 6.8: `vmx_exit_handlers_fastpath`.
    fn is_fast_path(&self, code: u32, _: u64) -> bool {
        matches!(code, MSR_WRITE | PREEMPTION_TIMER)
    }

    fn cpuid(&self) -> Option<u32> {
        Some(CPUID)
    }
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

    #[test]
    fn information_words_are_decoded() {
        use DetailKind as K;
        for (code, info1, info2, expected) in [
            (IO_INSTRUCTION, 0x3f8 << 16 | 8, 0, Detail::new(K::PortIn, 0x3f8)),
            (IO_INSTRUCTION, 0x3f8 << 16, 0, Detail::new(K::PortOut, 0x3f8)),
            (EXTERNAL_INTERRUPT, 0, 0x8000_00ec, Detail::new(K::Interrupt, 0xec)),
            (EXTERNAL_INTERRUPT, 0, 0x8000_0b0e, Detail::NONE),
            (EXTERNAL_INTERRUPT, 0, 0, Detail::NONE),
            (CR_ACCESS, 0x04, 0, Detail::new(K::CrWrite, 4)),
            (CR_ACCESS, 0x13, 0, Detail::new(K::CrRead, 3)),
            (CR_ACCESS, 0x20, 0, Detail::new(K::CrWrite, 0)),
            (APIC_WRITE, 0x380, 0, Detail::new(K::ApicWrite, 0x380)),
            (APIC_ACCESS, 0x1300, 0, Detail::new(K::ApicWrite, 0x300)),
            (CPUID, 7, 7, Detail::NONE),
        ] {
            assert_eq!(Vmx.information(code, info1, info2), expected, "{code} {info1:#x}");
        }
    }

    /// Read, write and fetch of what is not mapped; write and fetch of what is. Other exits' codes are the guest's own.
    #[test]
    fn faults_on_mapped_pages_are_told_apart() {
        use DetailKind as K;
        for (code, error_code, kind) in [
            (EPT_VIOLATION, 0x181, K::PageFault),
            (EPT_VIOLATION, 0x182, K::PageFault),
            (EPT_VIOLATION, 0x184, K::PageFault),
            (EPT_VIOLATION, 0x1aa, K::MappedFault),
            (EPT_VIOLATION, 0x19c, K::MappedFetch),
            (EXCEPTION_NMI, 7, K::PageFault),
        ] {
            assert_eq!(Vmx.fault(code, error_code), kind, "{code} {error_code:#x}");
        }
    }
}
