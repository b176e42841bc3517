//! Registers of the interrupt controllers: local APIC (xAPIC page, x2APIC MSRs) and I/O APIC.
//!
//! Offsets are the Intel SDM's (volume 3, table "Local APIC Register Address Map") and, from 0x400 up,
//! the AMD APM's extended registers. Each has the SDM's short name, and where KVM's tracepoints print
//! the register (`kvm_trace_symbol_apic` in Linux `arch/x86/kvm/trace.h`) KVM's name too.

use crate::detail::table;

/// Where the xAPIC page is unless the guest moves it (`IA32_APIC_BASE`). No OS in use moves it.
pub const XAPIC_BASE: u64 = 0xfee0_0000;
/// Where the first I/O APIC is on every PC-like machine.
pub const IOAPIC_BASE: u64 = 0xfec0_0000;
/// The first MSR of the x2APIC: MSR 0x800 + n is the register at offset n * 16.
const X2APIC_BASE: u32 = 0x800;
/// The last MSR that the architecture reserves for the x2APIC.
const X2APIC_LAST: u32 = 0x8ff;
/// Size of each controller's page.
const PAGE: u64 = 0x1000;

/// Task priority.
pub const TPR: u32 = 0x80;
/// End of interrupt.
pub const EOI: u32 = 0xb0;
/// Interrupt command: sends an IPI.
pub const ICR: u32 = 0x300;
/// High half of [`ICR`] in the xAPIC: the destination of the IPI that is about to be sent.
pub const ICR2: u32 = 0x310;
/// Local vector table entry of the timer.
pub const LVTT: u32 = 0x320;
/// Initial count of the timer: writing it arms the timer.
pub const TMICT: u32 = 0x380;
/// Current count of the timer.
pub const TMCCT: u32 = 0x390;
/// Divider of the timer.
pub const TDCR: u32 = 0x3e0;
/// Sends an IPI to itself (x2APIC).
pub const SELF_IPI: u32 = 0x3f0;

/// Offset and short name.
const REGISTERS: &[(u32, &str)] = &[
    (0x020, "ID"),
    (0x030, "LVR"),
    (TPR, "TPR"),
    (0x090, "APR"),
    (0x0a0, "PPR"),
    (EOI, "EOI"),
    (0x0c0, "RRD"),
    (0x0d0, "LDR"),
    (0x0e0, "DFR"),
    (0x0f0, "SVR"),
    (0x100, "ISR0"),
    (0x110, "ISR1"),
    (0x120, "ISR2"),
    (0x130, "ISR3"),
    (0x140, "ISR4"),
    (0x150, "ISR5"),
    (0x160, "ISR6"),
    (0x170, "ISR7"),
    (0x180, "TMR0"),
    (0x190, "TMR1"),
    (0x1a0, "TMR2"),
    (0x1b0, "TMR3"),
    (0x1c0, "TMR4"),
    (0x1d0, "TMR5"),
    (0x1e0, "TMR6"),
    (0x1f0, "TMR7"),
    (0x200, "IRR0"),
    (0x210, "IRR1"),
    (0x220, "IRR2"),
    (0x230, "IRR3"),
    (0x240, "IRR4"),
    (0x250, "IRR5"),
    (0x260, "IRR6"),
    (0x270, "IRR7"),
    (0x280, "ESR"),
    (0x2f0, "LVTCMCI"),
    (ICR, "ICR"),
    (ICR2, "ICR2"),
    (LVTT, "LVTT"),
    (0x330, "LVTTHMR"),
    (0x340, "LVTPC"),
    (0x350, "LVT0"),
    (0x360, "LVT1"),
    (0x370, "LVTERR"),
    (TMICT, "TMICT"),
    (TMCCT, "TMCCT"),
    (TDCR, "TDCR"),
    (SELF_IPI, "SELF_IPI"),
    (0x400, "EFEAT"),
    (0x410, "ECTRL"),
    (0x420, "SEOI"),
    (0x480, "IER0"),
    (0x490, "IER1"),
    (0x4a0, "IER2"),
    (0x4b0, "IER3"),
    (0x4c0, "IER4"),
    (0x4d0, "IER5"),
    (0x4e0, "IER6"),
    (0x4f0, "IER7"),
    (0x500, "EILVT0"),
    (0x510, "EILVT1"),
    (0x520, "EILVT2"),
    (0x530, "EILVT3"),
];

/// Where KVM's name is not the short name behind `APIC_`. The bit arrays are one register to KVM.
const KVM_NAMES: &[(u32, &str)] = &[
    (TPR, "TASKPRI"),
    (0x090, "ARBPRI"),
    (0x0a0, "PROCPRI"),
    (0x0c0, "RRR"),
    (0x0f0, "SPIV"),
    (0x100, "ISR"),
    (0x180, "TMR"),
    (0x200, "IRR"),
];

/// Registers of the I/O APIC (Intel 82093AA data sheet; EOI: version 0x20 and later).
const IOAPIC: &[(u64, &str)] =
    &[(0x00, "IOAPIC IOREGSEL"), (0x10, "IOAPIC IOWIN"), (0x40, "IOAPIC EOI")];

/// The short name of the local APIC register at this offset of the xAPIC page: `TPR`, `TMICT`, ...
pub fn register_name(offset: u32) -> Option<&'static str> {
    table::name_of(REGISTERS, offset)
}

/// The offset of the register that `kvm_apic` text calls `APIC_TASKPRI`, `APIC_TMICT`, ...
pub fn register_of_kvm_name(name: &str) -> Option<u32> {
    let name = name.strip_prefix("APIC_")?;
    table::key_of(KVM_NAMES, name).or_else(|| table::key_of(REGISTERS, name))
}

/// The xAPIC offset of the register behind an x2APIC MSR (0x800 to 0x8ff).
pub fn x2apic_register(msr: u32) -> Option<u32> {
    (X2APIC_BASE..=X2APIC_LAST).contains(&msr).then(|| (msr - X2APIC_BASE) << 4)
}

/// The offset of the register that an access to this guest-physical address reaches, if the address
/// is in the xAPIC page at its usual place. Registers are 16 bytes apart.
pub fn register_of_gpa(gpa: u64) -> Option<u32> {
    let offset = u32::try_from(gpa.checked_sub(XAPIC_BASE).filter(|&o| o < PAGE)?).ok()?;
    Some(offset & !0xf)
}

/// What of the first I/O APIC this guest-physical address is.
pub fn ioapic_name(gpa: u64) -> Option<&'static str> {
    let offset = gpa.checked_sub(IOAPIC_BASE).filter(|&o| o < PAGE)?;
    Some(table::name_of(IOAPIC, offset).unwrap_or("IOAPIC"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted() {
        table::check::one_to_one(REGISTERS);
        table::check::one_to_one(KVM_NAMES);
        table::check::one_to_one(IOAPIC);
        assert!(REGISTERS.iter().all(|(offset, _)| offset % 16 == 0));
    }

    #[test]
    fn addresses() {
        assert_eq!(register_of_gpa(0xfee0_0380), Some(TMICT));
        assert_eq!(register_of_gpa(0xfee0_00b3), Some(EOI));
        assert_eq!(register_of_gpa(0xfee0_0fff), Some(0xff0));
        assert_eq!(register_of_gpa(0xfee0_1000), None);
        assert_eq!(register_of_gpa(0xfedf_ffff), None);
        assert_eq!(register_of_gpa(0), None);
        assert_eq!(ioapic_name(0xfec0_0010), Some("IOAPIC IOWIN"));
        assert_eq!(ioapic_name(0xfec0_0020), Some("IOAPIC"));
        assert_eq!(ioapic_name(0xfec0_1000), None);
    }

    #[test]
    fn x2apic() {
        for (msr, name) in [
            (0x802, "ID"),
            (0x808, "TPR"),
            (0x80b, "EOI"),
            (0x827, "IRR7"),
            (0x830, "ICR"),
            (0x838, "TMICT"),
            (0x83f, "SELF_IPI"),
        ] {
            assert_eq!(x2apic_register(msr).and_then(register_name), Some(name), "{msr:#x}");
        }
        assert_eq!(x2apic_register(0x7ff), None);
        assert_eq!(x2apic_register(0x8ff), Some(0xff0));
        assert_eq!(x2apic_register(0x900), None);
    }

    /// The `print fmt` of `kvm_apic` in Linux 6.1.
    #[test]
    fn kvm_names() {
        for (offset, name) in [
            (0x20, "ID"),
            (0x30, "LVR"),
            (0x80, "TASKPRI"),
            (0x90, "ARBPRI"),
            (0xa0, "PROCPRI"),
            (0xb0, "EOI"),
            (0xc0, "RRR"),
            (0xd0, "LDR"),
            (0xe0, "DFR"),
            (0xf0, "SPIV"),
            (0x100, "ISR"),
            (0x180, "TMR"),
            (0x200, "IRR"),
            (0x280, "ESR"),
            (0x300, "ICR"),
            (0x310, "ICR2"),
            (0x320, "LVTT"),
            (0x330, "LVTTHMR"),
            (0x340, "LVTPC"),
            (0x350, "LVT0"),
            (0x360, "LVT1"),
            (0x370, "LVTERR"),
            (0x380, "TMICT"),
            (0x390, "TMCCT"),
            (0x3e0, "TDCR"),
            (0x3f0, "SELF_IPI"),
            (0x400, "EFEAT"),
            (0x410, "ECTRL"),
        ] {
            assert_eq!(register_of_kvm_name(&format!("APIC_{name}")), Some(offset), "{name}");
        }
        assert_eq!(register_of_kvm_name("TMICT"), None);
        assert_eq!(register_of_kvm_name("APIC_"), None);
    }
}
