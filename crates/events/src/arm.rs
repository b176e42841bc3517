//! arm64: exception classes, and the exits that are no traps.
//!
//! Numbers and names are Linux's `arch/arm64/include/asm/esr.h` (`ESR_ELx_EC_*`) and `asm/kvm_arm.h`
//! (`kvm_arm_exception_class`, `kvm_arm_exception_type`), which is what `kvm_exit` prints and `perf kvm stat` counts by.
//! Classes that KVM has no name for carry `esr.h`'s. perf has no name for ERET (26).

pub mod registers;
pub(crate) mod smccc;

use crate::cause::CauseRule;
use crate::detail::table::{self, named_codes};
use crate::device;
use crate::isa::{IsaFacts, LevelMarks};
use crate::{Cause, Detail, DetailKind, Device, Reason};

/// The first number of the exits that are no traps: `ret` of `kvm_exit` is added.
const OTHERS: u32 = 0x100;
/// `ret` of a trap, whose class is the reason.
const TRAP: u32 = 2;
/// `ret` that `kvm_call_hyp` gives when EL2's code is gone (`HVC_STUB_ERR`).
const GONE: u32 = 0x0bad_ca11;

named_codes! {
    /// Every exception class (`esr_ec` of `kvm_exit`), then what is no trap (`ret`).
    TABLE: u32 {
        0x00 UNKNOWN,
        0x01 WFX "WFx",
        0x03 CP15_32,
        0x04 CP15_64,
        0x05 CP14_MR,
        0x06 CP14_LS,
        0x07 FP_ASIMD,
        0x08 CP10_ID,
        0x09 PAC,
        0x0a OTHER,
        0x0c CP14_64,
        0x0d BTI,
        0x0e ILL,
        0x11 SVC32,
        0x12 HVC32,
        0x13 SMC32,
        0x15 SVC64,
        0x16 HVC64,
        0x17 SMC64,
        0x18 SYS64,
        0x19 SVE,
        0x1a ERET,
        0x1c FPAC,
        0x1d SME,
        0x1f IMP_DEF,
        0x20 IABT_LOW,
        0x21 IABT_CUR,
        0x22 PC_ALIGN,
        0x24 DABT_LOW,
        0x25 DABT_CUR,
        0x26 SP_ALIGN,
        0x27 MOPS,
        0x28 FP_EXC32,
        0x2c FP_EXC64,
        0x2d GCS,
        // The exit that is no trap has the name `SERROR`, as in perf's tables.
        0x2f SERROR_CLASS "SERROR class",
        0x30 BREAKPT_LOW,
        0x31 BREAKPT_CUR,
        0x32 SOFTSTP_LOW,
        0x33 SOFTSTP_CUR,
        0x34 WATCHPT_LOW,
        0x35 WATCHPT_CUR,
        0x38 BKPT32,
        0x3a VECTOR32,
        0x3c BRK64,
        // `esr_ec` is 0 of all that is no trap, so that a map by it alone does not tell IRQ, SERROR and UNKNOWN apart.
        0xff NO_CLASS "no class",
        0x100 IRQ,
        0x101 SERROR,
        0x103 ILLEGAL,
        0x0bad_ca11 HYP_GONE,
    }
}

const INTERRUPTS: &str = "what interrupted the guest, which exits of arm64 never say: `perf record -a -e irq:irq_handler_entry -e ipi:*` does";
const REGISTERS: &str =
    "which system register, of a timer, an IPI, the GIC or another: kvm:kvm_handle_sys_reg has it";
const ADDRESSES: &str = "which of the data aborts are accesses of devices: kvm:kvm_guest_fault and kvm:kvm_mmio have the addresses";
const FUNCTIONS: &str = "what the guest calls for: kvm:kvm_hvc_arm64 has the function";
const NO_TRAPS: &str =
    "which of the exits without a class are interrupts: a map by args->ret and args->esr_ec tells";
const WAITS: &str =
    "whether the guest waits for an interrupt (WFI) or spins (WFE): kvm:kvm_wfx_arm64 says it";

const fn rule(code: u32, cause: Cause) -> CauseRule {
    CauseRule::new(code, cause)
}

/// The rules, by code. Others are [`Cause::Other`].
const RULES: &[CauseRule] = &[
    // Spinning (WFE) is idleness too: the guest has nothing to do until someone else acts.
    rule(WFX, Cause::Idle).only().missing(WAITS),
    rule(HVC32, Cause::Hypercall).missing(FUNCTIONS),
    rule(SMC32, Cause::Hypercall),
    rule(HVC64, Cause::Hypercall).missing(FUNCTIONS),
    rule(SMC64, Cause::Hypercall),
    rule(SYS64, Cause::Sysreg).missing(REGISTERS),
    rule(ERET, Cause::NestedEntry).only(),
    rule(IABT_LOW, Cause::MemoryFault),
    rule(DABT_LOW, Cause::MemoryOrDevice).missing(ADDRESSES),
    rule(NO_CLASS, Cause::Other).missing(NO_TRAPS),
    rule(IRQ, Cause::HostInterrupt).only().missing(INTERRUPTS),
];

/// What kinds of access exits of a reason make. (Linux `arch/arm64/kvm/handle_exit.c`: `arm_exit_handlers`.)
const ACCESSES: &[(u32, &[DetailKind])] = &[
    (SYS64, &[DetailKind::SysregRead, DetailKind::SysregWrite]),
    (DABT_LOW, &[DetailKind::MmioRead, DetailKind::MmioWrite]),
];

/// Where QEMU's machine `virt` has its devices: `hw/arm/virt.c`, `base_memmap`. Nothing says that a VM is one, so the names
/// of devices say whose map it is. Sorted.
const ADDRESSES_OF_VIRT: &[(u64, u64, Device)] = &[
    (0x0800_0000, 0x0801_ffff, Device::VirtGic),
    (0x0802_0000, 0x0802_0fff, Device::VirtGicV2m),
    (0x0803_0000, 0x0804_ffff, Device::VirtGic),
    (0x0808_0000, 0x0809_ffff, Device::VirtIts),
    (0x080a_0000, 0x08ff_ffff, Device::VirtGic),
    (0x0900_0000, 0x0900_0fff, Device::VirtUart),
    (0x0901_0000, 0x0901_0fff, Device::VirtRtc),
    (0x0902_0000, 0x0902_0017, Device::VirtFwCfg),
    (0x0903_0000, 0x0903_0fff, Device::VirtGpio),
    (0x0904_0000, 0x0904_0fff, Device::VirtUart),
    (0x0905_0000, 0x0906_ffff, Device::VirtSmmu),
    (0x0907_0000, 0x0909_ffff, Device::VirtAcpi),
    (0x0a00_0000, 0x0a00_3fff, Device::VirtioMmio),
    (0x0c00_0000, 0x0dff_ffff, Device::VirtPlatformBus),
    (0x1000_0000, 0x3efe_ffff, Device::VirtPciMemory),
    (0x3eff_0000, 0x3eff_ffff, Device::VirtPciPorts),
    (0x3f00_0000, 0x3fff_ffff, Device::VirtPciConfig),
];

/// QueueNotify of virtio-mmio (virtio 1.2, 4.2.2), whose register blocks are 0x200 bytes apart on `virt`, and a page in
/// [`IN_FIRECRACKER`].
const QUEUE_NOTIFY: u64 = 0x50;
const VIRTIO_BLOCK: u64 = 0x200;
const PAGE: u64 = 0x1000;

/// Where Firecracker has its devices, from 1 GiB to its memory (`src/vmm/src/arch/aarch64/layout.rs`, `MMIO_MEM_START`, `DRAM_MEM_START`).
/// On `virt` it is memory.
const IN_FIRECRACKER: std::ops::Range<u64> = 0x4000_0000..0x8000_0000;

/// Bits of the syndrome of an abort: Arm ARM, "ISS encoding for an exception from a Data Abort".
const FAULT_STATUS: u64 = 0x3c;
const PERMISSION: u64 = 0xc;

/// arm64's facts.
#[derive(Debug)]
pub(crate) struct Arm;

impl IsaFacts for Arm {
    fn vendor(&self) -> &'static str {
        "arm64"
    }

    fn is_x86(&self) -> bool {
        false
    }

    fn name(&self, code: u32) -> Option<&'static str> {
        table::name_of(TABLE, code)
    }

    fn code(&self, name: &str) -> Option<u32> {
        table::key_of(TABLE, name)
    }

    fn codes(&self) -> &'static [(u32, &'static str)] {
        TABLE
    }

    fn numbers_are_hex(&self) -> bool {
        true
    }

    fn code_of_number(&self, class: u32) -> u32 {
        if class == 0 { NO_CLASS } else { class }
    }

    fn code_of_pair(&self, ret: u32, class: u32) -> Option<u32> {
        Some(reason(ret, class).code)
    }

    /// It times from `kvm_entry` to `kvm_exit`: the guest before each exit. (Linux `tools/perf/util/kvm-stat-arch/kvm-stat-arm64.c`,
    /// `event_begin` and `event_end`.)
    fn perf_times_exits(&self) -> bool {
        false
    }

    /// It has none for ERET, up to Linux 7.3.
    fn perf_names_all(&self) -> bool {
        false
    }

    fn guest_memory_tables(&self) -> &'static str {
        "stage 2"
    }

    /// Linux `arch/arm64/kvm/guest.c`, `kvm_vm_stats_desc`.
    fn counts_pages(&self) -> bool {
        false
    }

    fn rules(&self) -> &'static [CauseRule] {
        RULES
    }

    fn accesses(&self) -> &'static [(u32, &'static [DetailKind])] {
        ACCESSES
    }

    /// The error code is the syndrome (`hsr` of `kvm_guest_fault`). A fault of the access flag is on no page that KVM denies, so
    /// only those of permission are faults on mapped pages.
    fn fault(&self, code: u32, syndrome: u64) -> DetailKind {
        match (code, syndrome & FAULT_STATUS == PERMISSION) {
            (DABT_LOW, true) => DetailKind::MappedFault,
            (IABT_LOW, true) => DetailKind::MappedFetch,
            _ => DetailKind::PageFault,
        }
    }

    fn faults_are_memory(&self) -> bool {
        false
    }

    /// A WFx waits unless the recording says that it is WFE, which lets another thread run and goes on.
    fn is_halt(&self, code: u32, detail: Detail) -> bool {
        let is_wfe = detail.kind == DetailKind::Wait && detail.value == WFE;
        code == WFX && !is_wfe || detail.kind == DetailKind::Smccc && smccc::is_idle(detail.value)
    }

    fn names_vcpus(&self) -> bool {
        false
    }

    fn levels(&self) -> LevelMarks {
        LevelMarks::Delimited
    }

    fn nested_tracepoint(&self) -> &'static str {
        "kvm_nested_eret"
    }

    fn devices(&self) -> &'static [(u64, u64, Device)] {
        ADDRESSES_OF_VIRT
    }

    fn is_notification(&self, detail: Detail) -> bool {
        let at = detail.value;
        detail.kind == DetailKind::MmioWrite
            && match Device::of(crate::Isa::Arm, detail) {
                Some(Device::VirtioMmio) => at % VIRTIO_BLOCK == QUEUE_NOTIFY,
                None if IN_FIRECRACKER.contains(&at) => at % PAGE == QUEUE_NOTIFY,
                None | Some(Device::VirtPciMemory) => device::is_in_bar(at),
                _ => false,
            }
    }
}

/// [`DetailKind::Wait`]: WFI, WFE.
pub const WFI: u64 = 0;
/// See [`WFI`].
pub const WFE: u64 = 1;

/// The value of [`DetailKind::Smccc`], by register 0 and the immediate of an HVC.
pub fn call(r0: u64, immediate: u64) -> u64 {
    smccc::value(r0, immediate)
}

/// The reason by the fields of `kvm_exit`: the class of a trap, or what ended the guest's run otherwise.
pub fn reason(ret: u32, class: u32) -> Reason {
    let code = match ret {
        TRAP => class & 0x3f,
        GONE => GONE,
        other => OTHERS.saturating_add(other),
    };
    Reason { isa: crate::Isa::Arm, code, flags: 0 }
}

/// The reason of an exception that is injected into a hypervisor in the VM (`kvm_inject_nested_exception`): by `type`
/// (`enum exception_type`: `except_type_sync` 0, `_irq` 0x80) and the syndrome that it sees.
pub fn injected(kind: u32, esr: u64) -> Reason {
    match kind {
        0 => reason(TRAP, (esr >> 26) as u32),
        0x80 => reason(0, 0),
        // FIQ and SError.
        _ => reason(1, 0),
    }
}

/// Whether an ERET that KVM carries out for a hypervisor (`kvm_nested_eret`) enters its guest: to EL1 or EL0, with the guest's
/// stage 2 (HCR_EL2.VM) and without TGE, by which a host's own programs run. The hypervisor itself runs otherwise.
/// The same tells whether an exception (`kvm_inject_nested_exception`) was taken from the guest's guest, by the mode it came from.
pub fn is_of_guest(mode: u64, hcr_el2: u64) -> bool {
    const AARCH32: u64 = 0x10;
    const HYP: u64 = 0x1a;
    const EL: u64 = 0xc;
    const VM: u64 = 1;
    const TGE: u64 = 1 << 27;
    let is_below = if mode & AARCH32 == 0 { mode & EL < 8 } else { mode & 0x1f != HYP };
    is_below && hcr_el2 & VM != 0 && hcr_el2 & TGE == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_one_to_one() {
        table::check::one_to_one(TABLE);
    }

    #[test]
    fn reasons() {
        for (ret, class, name) in [
            (2, 0x24, "DABT_LOW"),
            (2, 0x1a, "ERET"),
            (2, 0x01, "WFx"),
            (2, 0x3e, "0x3e"),
            (0, 0, "IRQ"),
            (1, 0, "SERROR"),
            (3, 0, "ILLEGAL"),
            (0x0bad_ca11, 0, "HYP_GONE"),
            (7, 0, "0x107"),
        ] {
            assert_eq!(reason(ret, class).name(), name, "{ret} {class:#x}");
        }
        assert_eq!(injected(0, 0x5a00_0000).name(), "HVC64");
        assert_eq!(injected(0x80, 0).name(), "IRQ");
        assert_eq!(injected(0x180, 0).name(), "SERROR");
    }

    /// HCR_EL2 of the recording `captures/arm64`, and of hosts that run their own programs.
    #[test]
    fn levels() {
        const OF_GUEST: u64 = 0x2_403c_807d_263f;
        for (mode, hcr, expected) in [
            (5, OF_GUEST, true),
            (0, OF_GUEST, true),
            (0x1f, OF_GUEST, true),
            (0x1a, OF_GUEST, false),
            (9, OF_GUEST, false),
            (0, OF_GUEST | 1 << 27, false),
            (5, OF_GUEST & !1, false),
        ] {
            assert_eq!(is_of_guest(mode, hcr), expected, "{mode} {hcr:#x}");
        }
    }

    #[test]
    fn faults_and_waits() {
        use DetailKind as K;
        for (code, syndrome, kind) in [
            // Translation, access flag, permission.
            (DABT_LOW, 0x9382_0005, K::PageFault),
            (DABT_LOW, 0x9382_000b, K::PageFault),
            (DABT_LOW, 0x9382_004f, K::MappedFault),
            (IABT_LOW, 0x8200_000f, K::MappedFetch),
            (IABT_LOW, 0x8200_0007, K::PageFault),
        ] {
            assert_eq!(Arm.fault(code, syndrome), kind, "{syndrome:#x}");
        }
        let wait = |value| Detail::new(K::Wait, value);
        assert!(Arm.is_halt(WFX, Detail::NONE) && Arm.is_halt(WFX, wait(WFI)));
        assert!(!Arm.is_halt(WFX, wait(WFE)) && !Arm.is_halt(HVC64, Detail::NONE));
        assert!(Arm.is_halt(HVC64, Detail::new(K::Smccc, 0xc400_0001)));
    }

    #[test]
    fn causes() {
        let cause = |code, detail| {
            Cause::of(Reason { isa: crate::Isa::Arm, code, flags: 0 }, detail, false)
        };
        use DetailKind as K;
        for (code, detail, expected) in [
            (WFX, Detail::NONE, Cause::Idle),
            (SYS64, Detail::NONE, Cause::Sysreg),
            (SYS64, Detail::new(K::SysregWrite, registers::id(3, 3, 14, 3, 2)), Cause::TimerArm),
            (SYS64, Detail::new(K::SysregWrite, registers::id(3, 0, 12, 11, 5)), Cause::Ipi),
            (HVC64, Detail::new(K::Smccc, 0x8400_0000), Cause::Hypercall),
            (HVC64, Detail::new(K::Smccc, 0xc400_0001), Cause::Idle),
            (DABT_LOW, Detail::NONE, Cause::MemoryOrDevice),
            (DABT_LOW, Detail::new(K::PageFault, 0x4000_0000), Cause::MemoryFault),
            (DABT_LOW, Detail::new(K::MmioWrite, 0x0a00_0050), Cause::DeviceMmio),
            (IABT_LOW, Detail::NONE, Cause::MemoryFault),
            (ERET, Detail::NONE, Cause::NestedEntry),
            (IRQ, Detail::NONE, Cause::HostInterrupt),
            (FP_ASIMD, Detail::NONE, Cause::Other),
        ] {
            assert_eq!(cause(code, detail), expected, "{code:#x} {detail:?}");
        }
    }
}
