//! VMCS field encodings: what VMREAD and VMWRITE of a guest hypervisor were about.
//!
//! Encodings are the Intel SDM's (volume 3, appendix B, "Field Encoding in VMCS"), names those of
//! Linux's `enum vmcs_field` (`arch/x86/include/asm/vmx.h`). Fields that Linux does not use (such as
//! `EXECUTIVE_VMCS_POINTER` or `HLAT_POINTER`) carry the SDM's name in that spelling.

use crate::detail::table;

/// Fields of 16 and 32 bits and of natural width.
const FIELDS: &[(u32, &str)] = &[
    (0x0000, "VIRTUAL_PROCESSOR_ID"),
    (0x0002, "POSTED_INTR_NV"),
    (0x0004, "EPTP_INDEX"),
    (0x0006, "HLAT_PREFIX_SIZE"),
    (0x0008, "LAST_PID_POINTER_INDEX"),
    (0x000a, "GUEST_APIC_TIMER_VECTOR"),
    (0x0800, "GUEST_ES_SELECTOR"),
    (0x0802, "GUEST_CS_SELECTOR"),
    (0x0804, "GUEST_SS_SELECTOR"),
    (0x0806, "GUEST_DS_SELECTOR"),
    (0x0808, "GUEST_FS_SELECTOR"),
    (0x080a, "GUEST_GS_SELECTOR"),
    (0x080c, "GUEST_LDTR_SELECTOR"),
    (0x080e, "GUEST_TR_SELECTOR"),
    (0x0810, "GUEST_INTR_STATUS"),
    (0x0812, "GUEST_PML_INDEX"),
    (0x0814, "GUEST_UINV"),
    (0x0c00, "HOST_ES_SELECTOR"),
    (0x0c02, "HOST_CS_SELECTOR"),
    (0x0c04, "HOST_SS_SELECTOR"),
    (0x0c06, "HOST_DS_SELECTOR"),
    (0x0c08, "HOST_FS_SELECTOR"),
    (0x0c0a, "HOST_GS_SELECTOR"),
    (0x0c0c, "HOST_TR_SELECTOR"),
    (0x4000, "PIN_BASED_VM_EXEC_CONTROL"),
    (0x4002, "CPU_BASED_VM_EXEC_CONTROL"),
    (0x4004, "EXCEPTION_BITMAP"),
    (0x4006, "PAGE_FAULT_ERROR_CODE_MASK"),
    (0x4008, "PAGE_FAULT_ERROR_CODE_MATCH"),
    (0x400a, "CR3_TARGET_COUNT"),
    (0x400c, "VM_EXIT_CONTROLS"),
    (0x400e, "VM_EXIT_MSR_STORE_COUNT"),
    (0x4010, "VM_EXIT_MSR_LOAD_COUNT"),
    (0x4012, "VM_ENTRY_CONTROLS"),
    (0x4014, "VM_ENTRY_MSR_LOAD_COUNT"),
    (0x4016, "VM_ENTRY_INTR_INFO_FIELD"),
    (0x4018, "VM_ENTRY_EXCEPTION_ERROR_CODE"),
    (0x401a, "VM_ENTRY_INSTRUCTION_LEN"),
    (0x401c, "TPR_THRESHOLD"),
    (0x401e, "SECONDARY_VM_EXEC_CONTROL"),
    (0x4020, "PLE_GAP"),
    (0x4022, "PLE_WINDOW"),
    (0x4024, "NOTIFY_WINDOW"),
    (0x4400, "VM_INSTRUCTION_ERROR"),
    (0x4402, "VM_EXIT_REASON"),
    (0x4404, "VM_EXIT_INTR_INFO"),
    (0x4406, "VM_EXIT_INTR_ERROR_CODE"),
    (0x4408, "IDT_VECTORING_INFO_FIELD"),
    (0x440a, "IDT_VECTORING_ERROR_CODE"),
    (0x440c, "VM_EXIT_INSTRUCTION_LEN"),
    (0x440e, "VMX_INSTRUCTION_INFO"),
    (0x4800, "GUEST_ES_LIMIT"),
    (0x4802, "GUEST_CS_LIMIT"),
    (0x4804, "GUEST_SS_LIMIT"),
    (0x4806, "GUEST_DS_LIMIT"),
    (0x4808, "GUEST_FS_LIMIT"),
    (0x480a, "GUEST_GS_LIMIT"),
    (0x480c, "GUEST_LDTR_LIMIT"),
    (0x480e, "GUEST_TR_LIMIT"),
    (0x4810, "GUEST_GDTR_LIMIT"),
    (0x4812, "GUEST_IDTR_LIMIT"),
    (0x4814, "GUEST_ES_AR_BYTES"),
    (0x4816, "GUEST_CS_AR_BYTES"),
    (0x4818, "GUEST_SS_AR_BYTES"),
    (0x481a, "GUEST_DS_AR_BYTES"),
    (0x481c, "GUEST_FS_AR_BYTES"),
    (0x481e, "GUEST_GS_AR_BYTES"),
    (0x4820, "GUEST_LDTR_AR_BYTES"),
    (0x4822, "GUEST_TR_AR_BYTES"),
    (0x4824, "GUEST_INTERRUPTIBILITY_INFO"),
    (0x4826, "GUEST_ACTIVITY_STATE"),
    (0x4828, "GUEST_SMBASE"),
    (0x482a, "GUEST_SYSENTER_CS"),
    (0x482e, "VMX_PREEMPTION_TIMER_VALUE"),
    (0x4c00, "HOST_IA32_SYSENTER_CS"),
    (0x6000, "CR0_GUEST_HOST_MASK"),
    (0x6002, "CR4_GUEST_HOST_MASK"),
    (0x6004, "CR0_READ_SHADOW"),
    (0x6006, "CR4_READ_SHADOW"),
    (0x6008, "CR3_TARGET_VALUE0"),
    (0x600a, "CR3_TARGET_VALUE1"),
    (0x600c, "CR3_TARGET_VALUE2"),
    (0x600e, "CR3_TARGET_VALUE3"),
    (0x6400, "EXIT_QUALIFICATION"),
    (0x6402, "EXIT_IO_RCX"),
    (0x6404, "EXIT_IO_RSI"),
    (0x6406, "EXIT_IO_RDI"),
    (0x6408, "EXIT_IO_RIP"),
    (0x640a, "GUEST_LINEAR_ADDRESS"),
    (0x6800, "GUEST_CR0"),
    (0x6802, "GUEST_CR3"),
    (0x6804, "GUEST_CR4"),
    (0x6806, "GUEST_ES_BASE"),
    (0x6808, "GUEST_CS_BASE"),
    (0x680a, "GUEST_SS_BASE"),
    (0x680c, "GUEST_DS_BASE"),
    (0x680e, "GUEST_FS_BASE"),
    (0x6810, "GUEST_GS_BASE"),
    (0x6812, "GUEST_LDTR_BASE"),
    (0x6814, "GUEST_TR_BASE"),
    (0x6816, "GUEST_GDTR_BASE"),
    (0x6818, "GUEST_IDTR_BASE"),
    (0x681a, "GUEST_DR7"),
    (0x681c, "GUEST_RSP"),
    (0x681e, "GUEST_RIP"),
    (0x6820, "GUEST_RFLAGS"),
    (0x6822, "GUEST_PENDING_DBG_EXCEPTIONS"),
    (0x6824, "GUEST_SYSENTER_ESP"),
    (0x6826, "GUEST_SYSENTER_EIP"),
    (0x6828, "GUEST_S_CET"),
    (0x682a, "GUEST_SSP"),
    (0x682c, "GUEST_INTR_SSP_TABLE"),
    (0x6c00, "HOST_CR0"),
    (0x6c02, "HOST_CR3"),
    (0x6c04, "HOST_CR4"),
    (0x6c06, "HOST_FS_BASE"),
    (0x6c08, "HOST_GS_BASE"),
    (0x6c0a, "HOST_TR_BASE"),
    (0x6c0c, "HOST_GDTR_BASE"),
    (0x6c0e, "HOST_IDTR_BASE"),
    (0x6c10, "HOST_IA32_SYSENTER_ESP"),
    (0x6c12, "HOST_IA32_SYSENTER_EIP"),
    (0x6c14, "HOST_RSP"),
    (0x6c16, "HOST_RIP"),
    (0x6c18, "HOST_S_CET"),
    (0x6c1a, "HOST_SSP"),
    (0x6c1c, "HOST_INTR_SSP_TABLE"),
];

/// Declares 64-bit fields: each has its own encoding, and the next one reaches its high half.
macro_rules! wide {
    ($($encoding:literal $name:literal),* $(,)?) => {
        &[$(($encoding, [$name, concat!($name, "_HIGH")])),*]
    };
}

/// Fields of 64 bits.
const WIDE_FIELDS: &[(u32, [&str; 2])] = wide![
    0x2000 "IO_BITMAP_A",
    0x2002 "IO_BITMAP_B",
    0x2004 "MSR_BITMAP",
    0x2006 "VM_EXIT_MSR_STORE_ADDR",
    0x2008 "VM_EXIT_MSR_LOAD_ADDR",
    0x200a "VM_ENTRY_MSR_LOAD_ADDR",
    0x200c "EXECUTIVE_VMCS_POINTER",
    0x200e "PML_ADDRESS",
    0x2010 "TSC_OFFSET",
    0x2012 "VIRTUAL_APIC_PAGE_ADDR",
    0x2014 "APIC_ACCESS_ADDR",
    0x2016 "POSTED_INTR_DESC_ADDR",
    0x2018 "VM_FUNCTION_CONTROL",
    0x201a "EPT_POINTER",
    0x201c "EOI_EXIT_BITMAP0",
    0x201e "EOI_EXIT_BITMAP1",
    0x2020 "EOI_EXIT_BITMAP2",
    0x2022 "EOI_EXIT_BITMAP3",
    0x2024 "EPTP_LIST_ADDRESS",
    0x2026 "VMREAD_BITMAP",
    0x2028 "VMWRITE_BITMAP",
    0x202a "VE_INFORMATION_ADDRESS",
    0x202c "XSS_EXIT_BITMAP",
    0x202e "ENCLS_EXITING_BITMAP",
    0x2030 "SPP_TABLE_POINTER",
    0x2032 "TSC_MULTIPLIER",
    0x2034 "TERTIARY_VM_EXEC_CONTROL",
    0x2036 "ENCLV_EXITING_BITMAP",
    0x2038 "LOW_PASID_DIRECTORY_ADDR",
    0x203a "HIGH_PASID_DIRECTORY_ADDR",
    0x203c "SHARED_EPT_POINTER",
    0x203e "PCONFIG_EXITING_BITMAP",
    0x2040 "HLAT_POINTER",
    0x2042 "PID_POINTER_TABLE",
    0x2044 "SECONDARY_VM_EXIT_CONTROLS",
    0x204a "IA32_SPEC_CTRL_MASK",
    0x204c "IA32_SPEC_CTRL_SHADOW",
    0x204e "GUEST_DEADLINE_VIR",
    0x2052 "INJECTED_EVENT_DATA",
    0x2400 "GUEST_PHYSICAL_ADDRESS",
    0x2404 "ORIGINAL_EVENT_DATA",
    0x2800 "VMCS_LINK_POINTER",
    0x2802 "GUEST_IA32_DEBUGCTL",
    0x2804 "GUEST_IA32_PAT",
    0x2806 "GUEST_IA32_EFER",
    0x2808 "GUEST_IA32_PERF_GLOBAL_CTRL",
    0x280a "GUEST_PDPTR0",
    0x280c "GUEST_PDPTR1",
    0x280e "GUEST_PDPTR2",
    0x2810 "GUEST_PDPTR3",
    0x2812 "GUEST_BNDCFGS",
    0x2814 "GUEST_IA32_RTIT_CTL",
    0x2816 "GUEST_IA32_LBR_CTL",
    0x2818 "GUEST_IA32_PKRS",
    0x281a "GUEST_IA32_FRED_CONFIG",
    0x281c "GUEST_IA32_FRED_RSP1",
    0x281e "GUEST_IA32_FRED_RSP2",
    0x2820 "GUEST_IA32_FRED_RSP3",
    0x2822 "GUEST_IA32_FRED_STKLVLS",
    0x2824 "GUEST_IA32_FRED_SSP1",
    0x2826 "GUEST_IA32_FRED_SSP2",
    0x2828 "GUEST_IA32_FRED_SSP3",
    0x2830 "GUEST_DEADLINE_PHY",
    0x2c00 "HOST_IA32_PAT",
    0x2c02 "HOST_IA32_EFER",
    0x2c04 "HOST_IA32_PERF_GLOBAL_CTRL",
    0x2c06 "HOST_IA32_PKRS",
    0x2c08 "HOST_IA32_FRED_CONFIG",
    0x2c0a "HOST_IA32_FRED_RSP1",
    0x2c0c "HOST_IA32_FRED_RSP2",
    0x2c0e "HOST_IA32_FRED_RSP3",
    0x2c10 "HOST_IA32_FRED_STKLVLS",
    0x2c12 "HOST_IA32_FRED_SSP1",
    0x2c14 "HOST_IA32_FRED_SSP2",
    0x2c16 "HOST_IA32_FRED_SSP3",
];

/// How wide a field is (bits 14:13 of its encoding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldWidth {
    /// 16 bits.
    Bits16,
    /// 64 bits.
    Bits64,
    /// 32 bits.
    Bits32,
    /// As wide as a general register.
    Natural,
}

/// Type of a field (bits 11:10 of its encoding).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    Control,
    /// Read-only data: why the last exit happened.
    ExitInformation,
    Guest,
    Host,
}

/// Properties in a field's encoding, for unknown fields too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldLayout {
    pub width: FieldWidth,
    pub kind: FieldKind,
    /// Number within the group of this width and kind.
    pub index: u16,
    /// The high half of a 64-bit field.
    pub high: bool,
}

impl FieldLayout {
    /// Takes an encoding apart. `None` if it sets bits that the SDM reserves (12, 31:15), or asks for
    /// the high half of a field that has none.
    pub fn of(encoding: u32) -> Option<FieldLayout> {
        if encoding & !0x6fff != 0 {
            return None;
        }
        let width = match encoding >> 13 & 3 {
            0 => FieldWidth::Bits16,
            1 => FieldWidth::Bits64,
            2 => FieldWidth::Bits32,
            _ => FieldWidth::Natural,
        };
        let kind = match encoding >> 10 & 3 {
            0 => FieldKind::Control,
            1 => FieldKind::ExitInformation,
            2 => FieldKind::Guest,
            _ => FieldKind::Host,
        };
        let high = encoding & 1 != 0;
        // Nine bits always fit.
        let index = (encoding >> 1 & 0x1ff) as u16;
        (!high || width == FieldWidth::Bits64).then_some(FieldLayout { width, kind, index, high })
    }
}

/// The name of the field with this encoding.
pub fn field_name(encoding: u32) -> Option<&'static str> {
    let layout = FieldLayout::of(encoding)?;
    if layout.width != FieldWidth::Bits64 {
        return table::name_of(FIELDS, encoding);
    }
    let at = WIDE_FIELDS.binary_search_by_key(&(encoding & !1), |&(e, _)| e).ok()?;
    let [whole, high] = WIDE_FIELDS.get(at)?.1;
    Some(if layout.high { high } else { whole })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_one_to_one() {
        table::check::one_to_one(FIELDS);
        let wide: Vec<_> = WIDE_FIELDS.iter().map(|&(e, [name, _])| (e, name)).collect();
        table::check::one_to_one(&wide);
        assert!(FIELDS.iter().all(|field| wide.iter().all(|w| w.1 != field.1)));
    }

    /// The name says host or guest, and the encoding does: they must agree.
    #[test]
    fn names_agree_with_encodings() {
        let wide = WIDE_FIELDS.iter().map(|&(e, [name, _])| (e, name));
        for (encoding, name) in FIELDS.iter().copied().chain(wide) {
            let layout = FieldLayout::of(encoding).unwrap();
            assert!(!layout.high, "{name}");
            if name.starts_with("HOST_") {
                assert_eq!(layout.kind, FieldKind::Host, "{name}");
            }
            if layout.kind == FieldKind::Host {
                assert!(name.starts_with("HOST_"), "{name}");
            }
            if name.ends_with("_SELECTOR") {
                assert_eq!(layout.width, FieldWidth::Bits16, "{name}");
            }
            if name.ends_with("_BASE") {
                assert_eq!(layout.width, FieldWidth::Natural, "{name}");
            }
            assert_eq!(field_name(encoding), Some(name));
        }
    }

    #[test]
    fn layout() {
        let layout = |width, kind, index, high| Some(FieldLayout { width, kind, index, high });
        for (encoding, expected) in [
            (0x681e, layout(FieldWidth::Natural, FieldKind::Guest, 15, false)),
            (0x4402, layout(FieldWidth::Bits32, FieldKind::ExitInformation, 1, false)),
            (0x2801, layout(FieldWidth::Bits64, FieldKind::Guest, 0, true)),
            (0x0c0c, layout(FieldWidth::Bits16, FieldKind::Host, 6, false)),
            (0x681f, None),
            (0x1000, None),
            (0x8000, None),
            (u32::MAX, None),
        ] {
            assert_eq!(FieldLayout::of(encoding), expected, "{encoding:#x}");
        }
    }

    #[test]
    fn names() {
        for (encoding, name) in [
            (0x0000, Some("VIRTUAL_PROCESSOR_ID")),
            (0x0810, Some("GUEST_INTR_STATUS")),
            (0x0812, Some("GUEST_PML_INDEX")),
            (0x2010, Some("TSC_OFFSET")),
            (0x2011, Some("TSC_OFFSET_HIGH")),
            (0x482e, Some("VMX_PREEMPTION_TIMER_VALUE")),
            (0x681e, Some("GUEST_RIP")),
            (0x6c16, Some("HOST_RIP")),
            (0x7000, None),
            (0x0001, None),
        ] {
            assert_eq!(field_name(encoding), name, "{encoding:#x}");
        }
    }
}
