//! Details: the object of an exit or access.

use std::borrow::Cow;

use crate::arm::{self, registers, smccc};
use crate::words::words;
use crate::{apic, ghcb, interrupt, msr, port, svm, tdx, vmcs};

pub(crate) mod hypercall;
pub(crate) mod table;

words! {
    /// The kind of thing an exit was about. Reads and writes are different kinds. A kind keeps its number.
    #[repr(u8)]
    pub enum DetailKind {
        /// Nothing more is known.
        None = "none",
        /// RDMSR; value: MSR index.
        MsrRead = "msr-read",
        /// WRMSR; value: MSR index.
        MsrWrite = "msr-write",
        /// IN; value: port.
        PortIn = "port-in",
        /// OUT; value: port.
        PortOut = "port-out",
        /// Read of a device register; value: guest-physical address.
        MmioRead = "mmio-read",
        /// Write of a device register; value: guest-physical address.
        MmioWrite = "mmio-write",
        /// Fault on guest memory; value: guest-physical address rounded down to [`PAGE_REGION`].
        PageFault = "page-fault",
        /// KVM hypercall; value: number.
        Hypercall = "hypercall",
        /// Hyper-V hypercall; value: code.
        HypervHypercall = "hyperv-hypercall",
        /// Xen hypercall; value: number.
        XenHypercall = "xen-hypercall",
        /// CPUID; value: leaf << 32 | sub-leaf.
        Cpuid = "cpuid",
        /// Control register read; value: number.
        CrRead = "cr-read",
        /// Control register write; value: number.
        CrWrite = "cr-write",
        /// LAPIC register read; value: offset in the xAPIC page.
        ApicRead = "apic-read",
        /// LAPIC register write; value: offset in the xAPIC page.
        ApicWrite = "apic-write",
        /// GHCB request; value: GHCB exit code.
        Ghcb = "ghcb",
        /// GHCB MSR protocol; value: low 12 bits of the MSR.
        GhcbMsr = "ghcb-msr",
        /// TDVMCALL; value: leaf.
        Tdvmcall = "tdvmcall",
        /// VMREAD/VMWRITE; value: VMCS field encoding.
        VmcsField = "vmcs-field",
        /// More distinct details than the table holds; value 0.
        Overflow = "overflow",
        /// A halt of the vCPU in KVM; value: [`HALT_POLLED`] or [`HALT_BLOCKED`].
        Halt = "halt",
        /// KVM_EXIT_MEMORY_FAULT: the VMM is to make memory private or shared; value: guest-physical address rounded down to
        /// [`PAGE_REGION`], or [`UNKNOWN_REGION`].
        MemoryFault = "memory-fault",
        /// Attributes of guest memory set to private; value: bytes.
        ToPrivate = "to-private",
        /// Attributes of guest memory set to shared; value: bytes.
        ToShared = "to-shared",
        /// A page mapped by KVM_PRE_FAULT_MEMORY, before the guest touches it; value: its size in bytes.
        PreFault = "pre-fault",
        /// Fault on guest memory that is mapped, but not for such an access: most often a write of a page that is write-protected;
        /// value: as for a fault on memory that is not mapped.
        MappedFault = "mapped-fault",
        /// The same for an instruction fetch.
        MappedFetch = "mapped-fetch",
        /// Interrupt of the host; value: vector.
        Interrupt = "interrupt",
        /// MRS of arm64; value: the register, as [`registers::id`] has it.
        SysregRead = "sysreg-read",
        /// MSR or a system instruction of arm64; value: the same.
        SysregWrite = "sysreg-write",
        /// HVC of arm64; value: the function's number (SMCCC), above it the immediate where it is not 0.
        Smccc = "smccc",
        /// A wait of the guest on arm64; value: [`arm::WFI`] or [`arm::WFE`].
        Wait = "wait",
        /// Interrupt of the guest on a line of KVM; value: GSI, with [`interrupt::BY_PIT`] where KVM's PIT raised it.
        Gsi = "gsi",
        /// The same at the 8259s; value: pin.
        PicPin = "pic-pin",
        /// The same at the I/O APIC; value: pin.
        IoapicPin = "ioapic-pin",
        /// Interrupt of the guest by a message; value: vector.
        MsiVector = "msi-vector",
        /// Interrupt that an APIC of the guest takes; value: vector.
        ApicVector = "apic-vector",
        /// Interrupt that the guest acknowledges; value: pin.
        AckedPin = "acked-pin",
        /// What inhibits APICv or AVIC at the end; value: KVM's number of the reason.
        ApicvInhibit = "apicv-inhibit",
        /// What inhibits APICv or AVIC begins or ends to do so; value: as before.
        ApicvChange = "apicv-change",
    }
}

/// Something woke the vCPU while KVM still polled for that, so it never gave up its CPU.
pub const HALT_POLLED: u64 = 0;
/// The vCPU gave up its CPU.
pub const HALT_BLOCKED: u64 = 1;

/// Faults on guest memory are distinguished by 2 MiB region.
pub const PAGE_REGION: u64 = 2 << 20;

/// The recording does not say which.
pub const UNKNOWN_REGION: u64 = u64::MAX;

/// The object of an exit: a kind and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Detail {
    /// What `value` means.
    pub kind: DetailKind,
    /// See [`DetailKind`].
    pub value: u64,
}

/// CPUID leaves whose answer depends on ECX. With the others ECX holds whatever the guest left in it.
///
/// Linux `arch/x86/kvm/cpuid.c`, where `KVM_CPUID_FLAG_SIGNIFCANT_INDEX` is set; 0x80000026 from the AMD APM.
const LEAVES_WITH_SUB_LEAVES: [u32; 17] = [
    0x4,
    0x7,
    0xb,
    0xd,
    0xf,
    0x10,
    0x12,
    0x14,
    0x17,
    0x18,
    0x1d,
    0x1e,
    0x1f,
    0x24,
    0x8000_001d,
    0x8000_0020,
    0x8000_0026,
];

impl Detail {
    pub const NONE: Detail = Detail { kind: DetailKind::None, value: 0 };

    /// A CPUID leaf, with its sub-leaf where it has any.
    pub fn cpuid(leaf: u32, ecx: u32) -> Detail {
        let sub_leaf = if LEAVES_WITH_SUB_LEAVES.contains(&leaf) { ecx } else { 0 };
        Detail::new(DetailKind::Cpuid, u64::from(leaf) << 32 | u64::from(sub_leaf))
    }

    /// An I/O port, where both vendors' information words have it.
    pub(crate) fn port(is_in: bool, information: u64) -> Detail {
        let kind = if is_in { DetailKind::PortIn } else { DetailKind::PortOut };
        Detail::new(kind, information >> 16 & 0xffff)
    }

    /// A fault on guest memory, by the region of its address.
    pub fn in_region(kind: DetailKind, gpa: u64) -> Detail {
        Detail::new(kind, gpa & !(PAGE_REGION - 1))
    }

    /// A guest with encrypted registers requests what HLT is elsewhere.
    pub(crate) fn is_halt_request(self) -> bool {
        match self.kind {
            DetailKind::Ghcb => self.value == u64::from(svm::HLT),
            DetailKind::Tdvmcall => self.value == tdx::LEAF_HLT,
            _ => false,
        }
    }

    /// A detail of this kind.
    pub fn new(kind: DetailKind, value: u64) -> Detail {
        Detail { kind, value }
    }
}

impl DetailKind {
    /// The kind of this number (`kind as u8`).
    pub fn from_u8(number: u8) -> Option<Self> {
        DetailKind::ALL.get(usize::from(number)).copied()
    }

    /// A fault on guest memory, mapped or not.
    pub fn is_fault(self) -> bool {
        matches!(self, DetailKind::PageFault | DetailKind::MappedFault | DetailKind::MappedFetch)
    }
}

impl Detail {
    /// The number and, where a table knows it, the name: `0x1d9 IA32_DEBUGCTL`,
    /// `0xcf8 PCI config address`, `0xfee00380 xAPIC TMICT`, `GUEST_RIP`.
    ///
    /// The kind is not in it: whether it was read or written, [`DetailKind::name`] says.
    /// Empty for [`DetailKind::None`].
    pub fn label(self) -> String {
        let value = self.value;
        // Numbers that do not fit the register's width have no name, and are shown whole.
        let narrow = u32::try_from(value).ok();
        match self.kind {
            DetailKind::None => String::new(),
            DetailKind::Overflow => "more".to_owned(),
            DetailKind::MsrRead | DetailKind::MsrWrite => hex(value, narrow.and_then(msr::name)),
            DetailKind::PortIn | DetailKind::PortOut => {
                hex(value, u16::try_from(value).ok().and_then(port::name))
            }
            DetailKind::MmioRead | DetailKind::MmioWrite => hex(value, mmio_name(value)),
            DetailKind::PageFault
            | DetailKind::MappedFault
            | DetailKind::MappedFetch
            | DetailKind::MemoryFault => format!("{value:#x} (2 MiB)"),
            DetailKind::ToPrivate | DetailKind::ToShared | DetailKind::PreFault => {
                format!("{value} bytes")
            }
            DetailKind::Hypercall => named(value.to_string(), hypercall::kvm_name(value)),
            DetailKind::HypervHypercall => hex(value, hypercall::hyperv_name(value)),
            DetailKind::XenHypercall => value.to_string(),
            DetailKind::Cpuid => match (value >> 32, value & u64::from(u32::MAX)) {
                (leaf, 0) => format!("{leaf:#x}"),
                (leaf, sub_leaf) => format!("{leaf:#x} sub-leaf {sub_leaf}"),
            },
            DetailKind::CrRead | DetailKind::CrWrite => format!("CR{value}"),
            DetailKind::ApicRead | DetailKind::ApicWrite => {
                hex(value, narrow.and_then(apic::register_name))
            }
            DetailKind::Ghcb => hex(value, ghcb::code_name(value)),
            DetailKind::GhcbMsr => hex(value, ghcb::msr_protocol_name(value)),
            DetailKind::Tdvmcall => hex(value, tdx::leaf_name(value)),
            DetailKind::Interrupt => hex(value, interrupt::name(value)),
            DetailKind::SysregRead | DetailKind::SysregWrite => registers::label(value),
            DetailKind::Smccc => hex(value, smccc::name(value)),
            DetailKind::Wait => match value {
                arm::WFI => "WFI".to_owned(),
                arm::WFE => "WFE".to_owned(),
                other => other.to_string(),
            },
            DetailKind::Gsi => {
                named((value & !interrupt::BY_PIT).to_string(), interrupt::line_name(value))
            }
            DetailKind::PicPin => named(value.to_string(), interrupt::line_name(value)),
            DetailKind::IoapicPin | DetailKind::AckedPin => value.to_string(),
            DetailKind::MsiVector | DetailKind::ApicVector => format!("{value:#x}"),
            DetailKind::ApicvInhibit | DetailKind::ApicvChange => value.to_string(),
            DetailKind::Halt => match value {
                HALT_POLLED => "polled".to_owned(),
                HALT_BLOCKED => "blocked".to_owned(),
                other => other.to_string(),
            },
            DetailKind::VmcsField => match narrow.and_then(vmcs::field_name) {
                Some(name) => name.to_owned(),
                None => format!("{value:#x}"),
            },
        }
    }

    /// Whether the guest asked for memory to become private or shared, or touched memory that had to become so.
    pub fn is_conversion(self) -> bool {
        match self.kind {
            DetailKind::Hypercall => self.value == hypercall::KVM_MAP_GPA_RANGE,
            DetailKind::Ghcb => self.value == u64::from(svm::VMGEXIT_PSC),
            DetailKind::GhcbMsr => self.value == ghcb::PSC_REQ,
            DetailKind::Tdvmcall => self.value == tdx::LEAF_MAP_GPA,
            DetailKind::Smccc => smccc::is_conversion(self.value),
            DetailKind::MemoryFault => true,
            _ => false,
        }
    }

    /// Whether it was a write. `None` for kinds that are neither read nor written.
    pub fn is_write(self) -> Option<bool> {
        match self.kind {
            DetailKind::MsrWrite
            | DetailKind::PortOut
            | DetailKind::MmioWrite
            | DetailKind::CrWrite
            | DetailKind::ApicWrite
            | DetailKind::SysregWrite => Some(true),
            DetailKind::MsrRead
            | DetailKind::PortIn
            | DetailKind::MmioRead
            | DetailKind::CrRead
            | DetailKind::ApicRead
            | DetailKind::SysregRead => Some(false),
            DetailKind::None
            | DetailKind::PageFault
            | DetailKind::MappedFault
            | DetailKind::MappedFetch
            | DetailKind::Hypercall
            | DetailKind::HypervHypercall
            | DetailKind::XenHypercall
            | DetailKind::Cpuid
            | DetailKind::Ghcb
            | DetailKind::GhcbMsr
            | DetailKind::Tdvmcall
            | DetailKind::VmcsField
            | DetailKind::Halt
            | DetailKind::MemoryFault
            | DetailKind::ToPrivate
            | DetailKind::ToShared
            | DetailKind::PreFault
            | DetailKind::Interrupt
            | DetailKind::Smccc
            | DetailKind::Wait
            | DetailKind::Gsi
            | DetailKind::PicPin
            | DetailKind::IoapicPin
            | DetailKind::MsiVector
            | DetailKind::ApicVector
            | DetailKind::AckedPin
            | DetailKind::ApicvInhibit
            | DetailKind::ApicvChange
            | DetailKind::Overflow => None,
        }
    }
}

/// A number in hexadecimal, then its name if it has one.
fn hex(value: u64, name: Option<impl AsRef<str>>) -> String {
    named(format!("{value:#x}"), name)
}

/// A number, then its name if it has one.
fn named(number: String, name: Option<impl AsRef<str>>) -> String {
    match name {
        Some(name) => format!("{number} {}", name.as_ref()),
        None => number,
    }
}

/// What of the chip set is at a guest-physical address.
fn mmio_name(gpa: u64) -> Option<Cow<'static, str>> {
    if let Some(register) = apic::register_of_gpa(gpa) {
        return Some(match apic::register_name(register) {
            Some(name) => Cow::Owned(format!("xAPIC {name}")),
            None => Cow::Borrowed("xAPIC"),
        });
    }
    apic::ioapic_name(gpa).map(Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip() {
        for (number, kind) in (0u8..).zip(DetailKind::ALL) {
            assert_eq!(kind as u8, number);
            assert_eq!(DetailKind::from_u8(number), Some(kind));
            assert_eq!(DetailKind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(DetailKind::from_u8(DetailKind::ApicvChange as u8 + 1), None);
        assert_eq!(DetailKind::from_name("msr"), None);
    }

    #[test]
    fn labels() {
        use DetailKind as K;
        for (kind, value, label) in [
            (K::None, 0, ""),
            (K::Overflow, 0, "more"),
            (K::MsrRead, 0x1d9, "0x1d9 IA32_DEBUGCTL"),
            (K::MsrWrite, 0x6e0, "0x6e0 IA32_TSC_DEADLINE"),
            (K::MsrWrite, 0x838, "0x838 X2APIC_TMICT"),
            (K::MsrRead, 0xbad, "0xbad"),
            (K::MsrRead, 1 << 40, "0x10000000000"),
            (K::PortIn, 0xcf8, "0xcf8 PCI config address"),
            (K::PortOut, 0xc000, "0xc000"),
            (K::PortOut, 0x10020, "0x10020"),
            (K::MmioWrite, 0xfee0_0380, "0xfee00380 xAPIC TMICT"),
            (K::MmioWrite, 0xfee0_0040, "0xfee00040 xAPIC"),
            (K::MmioRead, 0xfec0_0010, "0xfec00010 IOAPIC IOWIN"),
            (K::MmioRead, 0xfebd_1000, "0xfebd1000"),
            (K::PageFault, 0x7fe0_0000, "0x7fe00000 (2 MiB)"),
            (K::MappedFault, 0x7fe0_0000, "0x7fe00000 (2 MiB)"),
            (K::Hypercall, 10, "10 KVM_HC_SEND_IPI"),
            (K::Hypercall, 99, "99"),
            (K::HypervHypercall, 0x5c, "0x5c HVCALL_POST_MESSAGE"),
            (K::XenHypercall, 29, "29"),
            (K::Cpuid, 4 << 32 | 1, "0x4 sub-leaf 1"),
            (K::Cpuid, 0x4000_0000 << 32, "0x40000000"),
            (K::CrWrite, 4, "CR4"),
            (K::ApicWrite, 0x300, "0x300 ICR"),
            (K::ApicRead, 0x304, "0x304"),
            (K::Ghcb, 0x8000_0001, "0x80000001 mmio_read"),
            (K::Ghcb, 0x7c, "0x7c msr"),
            (K::GhcbMsr, 0x14, "0x14 PSC_REQ"),
            (K::Tdvmcall, 0x20, "0x20 WRMSR"),
            (K::Tdvmcall, 0x1_0002, "0x10002 GetQuote"),
            (K::VmcsField, 0x681e, "GUEST_RIP"),
            (K::VmcsField, 0x7777, "0x7777"),
            (K::Halt, HALT_POLLED, "polled"),
            (K::Halt, HALT_BLOCKED, "blocked"),
            (K::MemoryFault, 0x4000_0000, "0x40000000 (2 MiB)"),
            (K::ToPrivate, 4096, "4096 bytes"),
            (K::PreFault, 2 << 20, "2097152 bytes"),
            (K::Interrupt, 0xfd, "0xfd reschedule"),
            (K::Interrupt, 0x21, "0x21"),
            (K::SysregWrite, registers::id(3, 3, 14, 3, 2), "S3_3_C14_C3_2 CNTV_CVAL_EL0"),
            (K::SysregRead, registers::id(3, 0, 15, 2, 0), "S3_0_C15_C2_0"),
            (K::Smccc, 0x8400_0000, "0x84000000 PSCI_VERSION"),
            (K::Smccc, 0x7_8400_0000, "0x784000000"),
            (K::Wait, arm::WFE, "WFE"),
            (K::Gsi, 0, "0 PIT or HPET"),
            (K::Gsi, interrupt::BY_PIT, "0 PIT"),
            (K::Gsi, 8, "8 RTC"),
            (K::Gsi, 24, "24"),
            (K::PicPin, 8, "8 RTC"),
            (K::MsiVector, 0x41, "0x41"),
        ] {
            assert_eq!(Detail::new(kind, value).label(), label, "{kind:?} {value:#x}");
        }
    }

    #[test]
    fn conversions() {
        use DetailKind as K;
        for (kind, value, expected) in [
            (K::Hypercall, 12, true),
            (K::Hypercall, 10, false),
            (K::HypervHypercall, 12, false),
            (K::Ghcb, 0x8000_0010, true),
            (K::Ghcb, 0x8000_0001, false),
            (K::GhcbMsr, 0x14, true),
            (K::GhcbMsr, 0x15, false),
            (K::Tdvmcall, 0x1_0001, true),
            (K::Tdvmcall, 0x1_0002, false),
            (K::MemoryFault, 0, true),
            (K::PageFault, 0, false),
            // What the VMM does about a request is no further one.
            (K::ToPrivate, 4096, false),
        ] {
            assert_eq!(Detail::new(kind, value).is_conversion(), expected, "{kind:?} {value:#x}");
        }
    }

    #[test]
    fn directions() {
        for (kind, name) in DetailKind::ALL.map(|kind| (kind, kind.name())) {
            let expected = match name.rsplit_once('-') {
                Some((_, "write" | "out")) => Some(true),
                Some((_, "read" | "in")) => Some(false),
                _ => None,
            };
            assert_eq!(Detail::new(kind, 0).is_write(), expected, "{name}");
        }
    }
}
