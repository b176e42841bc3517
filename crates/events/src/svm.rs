//! SVM exit codes, with the requests that an SEV-ES guest makes in the same number space.
//!
//! Numbers and names are Linux's `arch/x86/include/uapi/asm/svm.h` (`SVM_EXIT_REASONS`), which is
//! what the tracepoints print, odd spellings (`read_rt`, `idle-halt`, `buslock`) included.
//! Codes that Linux has no name for carry the AMD APM's (volume 2, appendix C, "SVM Intercept Exit
//! Codes") or the GHCB specification's (0x8000_00xx) in Linux's spelling.

use crate::cause::{CauseRule, MSR_NUMBERS};
use crate::detail::table::{self, named_codes};
use crate::isa::IsaFacts;
use crate::{Cause, Detail, DetailKind};

named_codes! {
    /// Every exit code. Constants are named after the kernel's `SVM_EXIT_*` and `SVM_VMGEXIT_*`.
    pub(crate) TABLE: u32 {
        0x000 READ_CR0 "read_cr0",
        0x001 READ_CR1 "read_cr1",
        0x002 READ_CR2 "read_cr2",
        0x003 READ_CR3 "read_cr3",
        0x004 READ_CR4 "read_cr4",
        0x005 READ_CR5 "read_cr5",
        0x006 READ_CR6 "read_cr6",
        0x007 READ_CR7 "read_cr7",
        0x008 READ_CR8 "read_cr8",
        0x009 READ_CR9 "read_cr9",
        0x00a READ_CR10 "read_cr10",
        0x00b READ_CR11 "read_cr11",
        0x00c READ_CR12 "read_cr12",
        0x00d READ_CR13 "read_cr13",
        0x00e READ_CR14 "read_cr14",
        0x00f READ_CR15 "read_cr15",
        0x010 WRITE_CR0 "write_cr0",
        0x011 WRITE_CR1 "write_cr1",
        0x012 WRITE_CR2 "write_cr2",
        0x013 WRITE_CR3 "write_cr3",
        0x014 WRITE_CR4 "write_cr4",
        0x015 WRITE_CR5 "write_cr5",
        0x016 WRITE_CR6 "write_cr6",
        0x017 WRITE_CR7 "write_cr7",
        0x018 WRITE_CR8 "write_cr8",
        0x019 WRITE_CR9 "write_cr9",
        0x01a WRITE_CR10 "write_cr10",
        0x01b WRITE_CR11 "write_cr11",
        0x01c WRITE_CR12 "write_cr12",
        0x01d WRITE_CR13 "write_cr13",
        0x01e WRITE_CR14 "write_cr14",
        0x01f WRITE_CR15 "write_cr15",
        0x020 READ_DR0 "read_dr0",
        0x021 READ_DR1 "read_dr1",
        0x022 READ_DR2 "read_dr2",
        0x023 READ_DR3 "read_dr3",
        0x024 READ_DR4 "read_dr4",
        0x025 READ_DR5 "read_dr5",
        0x026 READ_DR6 "read_dr6",
        0x027 READ_DR7 "read_dr7",
        0x028 READ_DR8 "read_dr8",
        0x029 READ_DR9 "read_dr9",
        0x02a READ_DR10 "read_dr10",
        0x02b READ_DR11 "read_dr11",
        0x02c READ_DR12 "read_dr12",
        0x02d READ_DR13 "read_dr13",
        0x02e READ_DR14 "read_dr14",
        0x02f READ_DR15 "read_dr15",
        0x030 WRITE_DR0 "write_dr0",
        0x031 WRITE_DR1 "write_dr1",
        0x032 WRITE_DR2 "write_dr2",
        0x033 WRITE_DR3 "write_dr3",
        0x034 WRITE_DR4 "write_dr4",
        0x035 WRITE_DR5 "write_dr5",
        0x036 WRITE_DR6 "write_dr6",
        0x037 WRITE_DR7 "write_dr7",
        0x038 WRITE_DR8 "write_dr8",
        0x039 WRITE_DR9 "write_dr9",
        0x03a WRITE_DR10 "write_dr10",
        0x03b WRITE_DR11 "write_dr11",
        0x03c WRITE_DR12 "write_dr12",
        0x03d WRITE_DR13 "write_dr13",
        0x03e WRITE_DR14 "write_dr14",
        0x03f WRITE_DR15 "write_dr15",
        0x040 DE_EXCP "DE excp",
        0x041 DB_EXCP "DB excp",
        0x043 BP_EXCP "BP excp",
        0x044 OF_EXCP "OF excp",
        0x045 BR_EXCP "BR excp",
        0x046 UD_EXCP "UD excp",
        0x047 NM_EXCP "NM excp",
        0x048 DF_EXCP "DF excp",
        0x04a TS_EXCP "TS excp",
        0x04b NP_EXCP "NP excp",
        0x04c SS_EXCP "SS excp",
        0x04d GP_EXCP "GP excp",
        0x04e PF_EXCP "PF excp",
        0x050 MF_EXCP "MF excp",
        0x051 AC_EXCP "AC excp",
        0x052 MC_EXCP "MC excp",
        0x053 XF_EXCP "XF excp",
        0x055 CP_EXCP "CP excp",
        0x05c HV_EXCP "HV excp",
        0x05d VC_EXCP "VC excp",
        0x05e SX_EXCP "SX excp",
        0x060 INTR "interrupt",
        0x061 NMI "nmi",
        0x062 SMI "smi",
        0x063 INIT "init",
        0x064 VINTR "vintr",
        0x065 CR0_SEL_WRITE "cr0_sel_write",
        0x066 IDTR_READ "read_idtr",
        0x067 GDTR_READ "read_gdtr",
        0x068 LDTR_READ "read_ldtr",
        0x069 TR_READ "read_rt",
        0x06a IDTR_WRITE "write_idtr",
        0x06b GDTR_WRITE "write_gdtr",
        0x06c LDTR_WRITE "write_ldtr",
        0x06d TR_WRITE "write_rt",
        0x06e RDTSC "rdtsc",
        0x06f RDPMC "rdpmc",
        0x070 PUSHF "pushf",
        0x071 POPF "popf",
        0x072 CPUID "cpuid",
        0x073 RSM "rsm",
        0x074 IRET "iret",
        0x075 SWINT "swint",
        0x076 INVD "invd",
        0x077 PAUSE "pause",
        0x078 HLT "hlt",
        0x079 INVLPG "invlpg",
        0x07a INVLPGA "invlpga",
        0x07b IOIO "io",
        0x07c MSR "msr",
        0x07d TASK_SWITCH "task_switch",
        0x07e FERR_FREEZE "ferr_freeze",
        0x07f SHUTDOWN "shutdown",
        0x080 VMRUN "vmrun",
        0x081 VMMCALL "hypercall",
        0x082 VMLOAD "vmload",
        0x083 VMSAVE "vmsave",
        0x084 STGI "stgi",
        0x085 CLGI "clgi",
        0x086 SKINIT "skinit",
        0x087 RDTSCP "rdtscp",
        0x088 ICEBP "icebp",
        0x089 WBINVD "wbinvd",
        0x08a MONITOR "monitor",
        0x08b MWAIT "mwait",
        0x08c MWAIT_COND "mwait_cond",
        0x08d XSETBV "xsetbv",
        0x08e RDPRU "rdpru",
        0x08f EFER_WRITE_TRAP "write_efer_trap",
        0x090 CR0_WRITE_TRAP "write_cr0_trap",
        0x091 CR1_WRITE_TRAP "write_cr1_trap",
        0x092 CR2_WRITE_TRAP "write_cr2_trap",
        0x093 CR3_WRITE_TRAP "write_cr3_trap",
        0x094 CR4_WRITE_TRAP "write_cr4_trap",
        0x095 CR5_WRITE_TRAP "write_cr5_trap",
        0x096 CR6_WRITE_TRAP "write_cr6_trap",
        0x097 CR7_WRITE_TRAP "write_cr7_trap",
        0x098 CR8_WRITE_TRAP "write_cr8_trap",
        0x099 CR9_WRITE_TRAP "write_cr9_trap",
        0x09a CR10_WRITE_TRAP "write_cr10_trap",
        0x09b CR11_WRITE_TRAP "write_cr11_trap",
        0x09c CR12_WRITE_TRAP "write_cr12_trap",
        0x09d CR13_WRITE_TRAP "write_cr13_trap",
        0x09e CR14_WRITE_TRAP "write_cr14_trap",
        0x09f CR15_WRITE_TRAP "write_cr15_trap",
        0x0a0 INVLPGB "invlpgb",
        0x0a1 INVLPGB_ILLEGAL "invlpgb_illegal",
        0x0a2 INVPCID "invpcid",
        0x0a3 MCOMMIT "mcommit",
        0x0a4 TLBSYNC "tlbsync",
        0x0a5 BUS_LOCK "buslock",
        0x0a6 IDLE_HLT "idle-halt",
        0x400 NPF "npf",
        0x401 AVIC_INCOMPLETE_IPI "avic_incomplete_ipi",
        0x402 AVIC_UNACCELERATED_ACCESS "avic_unaccelerated_access",
        0x403 VMGEXIT "vmgexit",
        0x8000_0001 VMGEXIT_MMIO_READ "vmgexit_mmio_read",
        0x8000_0002 VMGEXIT_MMIO_WRITE "vmgexit_mmio_write",
        0x8000_0003 VMGEXIT_NMI_COMPLETE "vmgexit_nmi_complete",
        0x8000_0004 VMGEXIT_AP_HLT_LOOP "vmgexit_ap_hlt_loop",
        0x8000_0005 VMGEXIT_AP_JUMP_TABLE "vmgexit_ap_jump_table",
        0x8000_0010 VMGEXIT_PSC "vmgexit_page_state_change",
        0x8000_0011 VMGEXIT_GUEST_REQUEST "vmgexit_guest_request",
        0x8000_0012 VMGEXIT_EXT_GUEST_REQUEST "vmgexit_ext_guest_request",
        0x8000_0013 VMGEXIT_AP_CREATION "vmgexit_ap_creation",
        0x8000_0014 VMGEXIT_HV_DOORBELL "vmgexit_hv_doorbell",
        0x8000_0015 VMGEXIT_HV_IPI "vmgexit_hv_ipi",
        0x8000_0016 VMGEXIT_HV_TIMER "vmgexit_hv_timer",
        0x8000_0017 VMGEXIT_APIC_ID_LIST "vmgexit_apic_id_list",
        0x8000_0018 VMGEXIT_RUN_VMPL "vmgexit_run_vmpl",
        0x8000_001a VMGEXIT_SAVIC "vmgexit_savic",
        0x8000_fffd VMGEXIT_HV_FEATURES "vmgexit_hypervisor_feature",
        0x8000_fffe VMGEXIT_TERM_REQUEST "vmgexit_term_request",
        0x8000_ffff VMGEXIT_UNSUPPORTED_EVENT "vmgexit_unsupported_event",
        0xffff_ffff INVALID_GUEST_STATE "invalid_guest_state",
    }
}

/// The first of the codes that stand for a request through the GHCB.
pub const VMGEXIT_FIRST: u32 = 0x8000_0000;

/// The name of an exit code, as the kernel prints it.
pub fn name(code: u32) -> Option<&'static str> {
    table::name_of(TABLE, code)
}

/// The exit code of this name.
pub fn code(name: &str) -> Option<u32> {
    table::key_of(TABLE, name)
}

/// SVM has no "acknowledge interrupt on exit": AMD APM volume 2, "External interrupts".
const VECTORS: &str = "what interrupted the guest, which AMD's exits never say: `perf record -a -e irq_vectors:*,irq:irq_handler_entry` does";
const ADDRESSES: &str = "which of the nested page faults are accesses of devices: kvm:kvm_page_fault and kvm:kvm_mmio have the addresses";

const fn rule(code: u32, cause: Cause) -> CauseRule {
    CauseRule::new(code, cause)
}

/// The rules, by code. Others are [`Cause::Other`] unless the detail decides: exceptions, CR and DR accesses, descriptor tables,
/// cache and TLB instructions, XSETBV, RDTSC, shutdown.
const RULES: &[CauseRule] = &[
    // CR8 is the task priority register.
    rule(READ_CR8, Cause::Apic).only(),
    rule(WRITE_CR8, Cause::Apic).only(),
    rule(INTR, Cause::HostInterrupt).missing(VECTORS),
    rule(VINTR, Cause::IrqWindow).only(),
    rule(RDPMC, Cause::Pmu).only(),
    rule(CPUID, Cause::Cpuid).only(),
    // KVM traps IRET to learn when the next NMI can be delivered: SVM's NMI window.
    rule(IRET, Cause::IrqWindow).only(),
    rule(PAUSE, Cause::Idle).only(),
    rule(HLT, Cause::Idle).only(),
    rule(INVLPGA, Cause::NestedAncillary).only(),
    rule(IOIO, Cause::DevicePio),
    rule(MSR, Cause::Msr).missing(MSR_NUMBERS),
    rule(VMRUN, Cause::NestedEntry).only(),
    rule(VMMCALL, Cause::Hypercall),
    rule(VMLOAD, Cause::NestedAncillary).only(),
    rule(VMSAVE, Cause::NestedAncillary).only(),
    rule(STGI, Cause::NestedAncillary).only(),
    rule(CLGI, Cause::NestedAncillary).only(),
    rule(MONITOR, Cause::Idle).only(),
    rule(MWAIT, Cause::Idle).only(),
    rule(MWAIT_COND, Cause::Idle).only(),
    rule(CR8_WRITE_TRAP, Cause::Apic).only(),
    rule(IDLE_HLT, Cause::Idle).only(),
    // A device's register faults like memory (mmio caching in the MMU marks its entry by a reserved bit).
    rule(NPF, Cause::MemoryOrDevice).missing(ADDRESSES),
    rule(AVIC_INCOMPLETE_IPI, Cause::Ipi).only(),
    rule(AVIC_UNACCELERATED_ACCESS, Cause::Apic),
    rule(VMGEXIT, Cause::Hypercall),
    rule(VMGEXIT_MMIO_READ, Cause::DeviceMmio),
    rule(VMGEXIT_MMIO_WRITE, Cause::DeviceMmio),
    // A vCPU that the guest has parked until it brings it up again.
    rule(VMGEXIT_AP_HLT_LOOP, Cause::Idle),
];

/// What kinds of access exits of a code make. (Linux `arch/x86/kvm/svm/svm.c`: `svm_exit_handlers`.)
const ACCESSES: &[(u32, &[DetailKind])] = &[
    (IOIO, &[DetailKind::PortIn, DetailKind::PortOut]),
    (MSR, &[DetailKind::MsrRead, DetailKind::MsrWrite]),
    (NPF, &[DetailKind::MmioRead, DetailKind::MmioWrite]),
];

// Bits of a nested page fault's error code: AMD APM volume 2, "Nested versus guest page faults, fault ordering", and for the reverse
// map table "Page faults" of SEV-SNP. KVM marks the registers of devices by a reserved bit.
const NPF_PRESENT: u64 = 1;
const NPF_WRITE: u64 = 1 << 1;
const NPF_RESERVED: u64 = 1 << 3;
const NPF_FETCH: u64 = 1 << 4;
const NPF_RMP: u64 = 1 << 31;

/// SVM's facts.
#[derive(Debug)]
pub(crate) struct Svm;

impl IsaFacts for Svm {
    fn vendor(&self) -> &'static str {
        "AMD"
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

    fn numbers_are_hex(&self) -> bool {
        true
    }

    fn rules(&self) -> &'static [CauseRule] {
        RULES
    }

    fn accesses(&self) -> &'static [(u32, &'static [DetailKind])] {
        ACCESSES
    }

    /// From `exit_info_1` and `exit_info_2`. AMD APM volume 2, "SVM IOIO intercept", "Nested table page fault".
    fn information(&self, code: u32, info1: u64, info2: u64) -> Detail {
        match code {
            IOIO => Detail::port(info1 & 1 != 0, info1),
            NPF if self.is_of_device(code, info1) => {
                let write = info1 & NPF_WRITE != 0;
                Detail::new(if write { DetailKind::MmioWrite } else { DetailKind::MmioRead }, info2)
            }
            // Without information the recording has no such fields.
            NPF if (info1, info2) == (0, 0) => Detail::NONE,
            NPF => Detail::in_region(self.fault(code, info1), info2),
            _ => Detail::NONE,
        }
    }

    /// The error code is `exit_info_1` of a nested page fault; of other exits it is the guest's own.
    fn fault(&self, code: u32, error_code: u64) -> DetailKind {
        let is = |bits: u64| error_code & bits != 0;
        let mapped = code == NPF && is(NPF_PRESENT) && !is(NPF_RESERVED | NPF_RMP);
        match (mapped, is(NPF_FETCH)) {
            (false, _) => DetailKind::PageFault,
            (true, false) => DetailKind::MappedFault,
            (true, true) => DetailKind::MappedFetch,
        }
    }

    /// Linux arch/x86/kvm/mmu/spte.c, `make_mmio_spte`.
    fn is_of_device(&self, code: u32, error_code: u64) -> bool {
        code == NPF && error_code & (NPF_RESERVED | NPF_RMP) == NPF_RESERVED
    }

    fn is_halt(&self, code: u32, detail: Detail) -> bool {
        matches!(code, HLT | IDLE_HLT) || detail.is_halt_request()
    }

    /// Linux 5.8 to 6.8: `svm_exit_handlers_fastpath`. Writes alone: exit_info_1 is 1.
    fn is_fast_path(&self, code: u32, info1: u64) -> bool {
        code == MSR && info1 != 0
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
    fn spelling() {
        for (number, text) in [
            (0x40, "DE excp"),
            (0x53, "XF excp"),
            (0x69, "read_rt"),
            (0x81, "hypercall"),
            (0xa5, "buslock"),
            (0xa6, "idle-halt"),
            (0x400, "npf"),
            (0x403, "vmgexit"),
            (u32::MAX, "invalid_guest_state"),
        ] {
            assert_eq!(name(number), Some(text), "{number:#x}");
        }
        assert_eq!(name(0x404), None);
    }

    #[test]
    fn information_words_are_decoded() {
        use DetailKind as K;
        for (code, info1, info2, expected) in [
            // IN AL from 0x71.
            (IOIO, 0x71 << 16 | 1 << 4 | 1, 0, Detail::new(K::PortIn, 0x71)),
            (IOIO, 0xcf8 << 16, 0, Detail::new(K::PortOut, 0xcf8)),
            (NPF, 4, 0x1234_5678, Detail::new(K::PageFault, 0x1220_0000)),
            (NPF, 7, 0x1234_5678, Detail::new(K::MappedFault, 0x1220_0000)),
            (NPF, 0xd, 0xfe00_3000, Detail::new(K::MmioRead, 0xfe00_3000)),
            (NPF, 0xf, 0xfe00_3000, Detail::new(K::MmioWrite, 0xfe00_3000)),
            (NPF, 0, 0, Detail::NONE),
        ] {
            assert_eq!(Svm.information(code, info1, info2), expected, "{code:#x} {info1:#x}");
        }
    }

    #[test]
    fn faults_on_mapped_pages_are_told_apart() {
        use DetailKind as K;
        for (code, error_code, kind) in [
            (NPF, 0x1_0000_0004, K::PageFault),
            (NPF, 0x1_0000_0014, K::PageFault),
            (NPF, 0x1_0000_0007, K::MappedFault),
            (NPF, 0x1_0000_0015, K::MappedFetch),
            // A device's register, and a page in another state than the guest believes.
            (NPF, 0x1_0000_000f, K::PageFault),
            (NPF, 0x5_8000_0007, K::PageFault),
            // A fault of the guest's own, with shadow page tables.
            (PF_EXCP, 7, K::PageFault),
        ] {
            assert_eq!(Svm.fault(code, error_code), kind, "{code:#x} {error_code:#x}");
        }
    }
}
