//! How keys are written for people: one spelling for every renderer.

use vmtax_analyse::{By, KeyValue, SortedTable, TableKind};
use vmtax_events::detail::UNKNOWN_REGION;
use vmtax_events::{Coverage, Detail, DetailKind, NO_VCPU, Reason, Recording};
pub use vmtax_events::{is_hidden, printable};

/// A reason with its VMX flags: `EPT_VIOLATION`, `INVALID_STATE FAILED_VMENTRY`.
pub fn reason(reason: Reason) -> String {
    let mut name = reason.name().into_owned();
    for flag in vmtax_events::vmx::flag_names(reason.flags) {
        name.push(' ');
        name.push_str(flag);
    }
    name
}

/// A cell of a table's key.
pub fn value(value: KeyValue) -> String {
    match value {
        KeyValue::Reason(r) => reason(r),
        KeyValue::Level(l) => l.name().to_owned(),
        KeyValue::Cause(c) => c.name().to_owned(),
        KeyValue::Detail(d) => detail(d),
        KeyValue::Outcome(o) => o.name().to_owned(),
        KeyValue::Vm(vm) => vm.to_string(),
        KeyValue::Vcpu(_, vcpu) => vcpu_name(vcpu),
    }
}

/// What an exit or an access was about: `wrmsr 0x6e0 IA32_TSC_DEADLINE`. Empty when nothing is known.
pub fn detail(detail: Detail) -> String {
    use DetailKind as K;
    let what = match detail.kind {
        K::None => return String::new(),
        K::Overflow => return "other details".to_owned(),
        K::MsrRead => "rdmsr",
        K::MsrWrite => "wrmsr",
        K::PortIn => "port in",
        K::PortOut => "port out",
        K::MmioRead => "mmio read",
        K::MmioWrite => "mmio write",
        K::PageFault => "page fault",
        K::MappedFault => "fault on a mapped page",
        K::MappedFetch => "fetch fault on a mapped page",
        K::Hypercall => "hypercall",
        K::HypervHypercall => "Hyper-V hypercall",
        K::XenHypercall => "Xen hypercall",
        K::Cpuid => "cpuid",
        K::CrRead => "read",
        K::CrWrite => "write",
        K::ApicRead => "APIC read",
        K::ApicWrite => "APIC write",
        K::Ghcb => "GHCB",
        K::GhcbMsr => "GHCB MSR",
        K::Tdvmcall => "TDVMCALL",
        K::VmcsField => "VMCS field",
        K::Interrupt => "interrupt",
        K::SysregRead => "sysreg read",
        K::SysregWrite => "sysreg write",
        K::Smccc => "hvc",
        K::Gsi => "gsi",
        K::PicPin => "8259 pin",
        K::IoapicPin => "I/O APIC pin",
        K::MsiVector => "MSI vector",
        K::ApicVector => "vector",
        K::AckedPin => "acknowledged pin",
        K::ApicvInhibit => "APICv inhibited, reason",
        K::ApicvChange => "APICv inhibit changed, reason",
        K::Halt | K::Wait => return detail.label(),
        K::MemoryFault if detail.value == UNKNOWN_REGION => return "memory fault".to_owned(),
        K::MemoryFault => "memory fault",
        K::ToPrivate => return format!("made private, by {}", bytes(detail.value)),
        K::ToShared => return format!("made shared, by {}", bytes(detail.value)),
        K::PreFault => return format!("pre-faulted page of {}", bytes(detail.value)),
    };
    format!("{what} {}", detail.label())
}

/// A size in the largest unit that it is a multiple of: `4 KiB`, `2 MiB`.
fn bytes(value: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.into_iter().find(|(size, _)| value != 0 && value.is_multiple_of(*size)) {
        Some((size, unit)) => format!("{} {unit}", value / size),
        None => format!("{value} bytes"),
    }
}

/// The name alone, where a table has one: `IA32_TSC_DEADLINE`.
pub fn detail_name(detail: Detail) -> Option<String> {
    use DetailKind as K;
    let label = detail.label();
    match detail.kind {
        K::None
        | K::Overflow
        | K::PageFault
        | K::MappedFault
        | K::MappedFetch
        | K::XenHypercall
        | K::Cpuid
        | K::MemoryFault
        | K::ToPrivate
        | K::ToShared
        | K::PreFault => None,
        K::CrRead | K::CrWrite | K::Halt | K::Wait => Some(label),
        K::VmcsField => (!label.starts_with("0x")).then_some(label),
        // The others are labelled with their number, then the name.
        _ => label.split_once(' ').map(|(_, name)| name.to_owned()),
    }
}

/// A vCPU id, `?` when unknown.
pub fn vcpu_name(vcpu: u32) -> String {
    if vcpu == NO_VCPU { "?".to_owned() } else { vcpu.to_string() }
}

/// The name that the recording gives a VM; hostile text. `None` when it gives none.
pub fn vm_name(recording: &Recording, id: u32) -> Option<&str> {
    let vm = recording.vms.iter().find(|vm| vm.id == id)?;
    (!vm.name.is_empty()).then_some(vm.name.as_str())
}

/// A VM for people: `qemu-system-x86 (1234)`, or its id alone. Printable.
pub fn vm(recording: &Recording, id: u32) -> String {
    match vm_name(recording, id) {
        Some(name) => format!("{} ({id})", printable(name)),
        None => id.to_string(),
    }
}

/// Where the exits were taken: `emulated:<which>`, or `unknown`: no recording proves hardware.
pub fn accelerator(recording: &Recording) -> String {
    match &recording.emulated {
        Some(which) => format!("emulated:{which}"),
        None => "unknown".to_owned(),
    }
}

/// The heading of a key column: the word of `--by`, written as it is in text.
pub fn heading(by: By) -> &'static str {
    match by {
        By::Vm => "VM",
        By::Vcpu => "vCPU",
        other => other.name(),
    }
}

/// What a table is called and what its figures are, for every output and the help.
#[derive(Clone, Copy, Debug)]
pub struct TableWords {
    /// Its rows, in its heading.
    rows: &'static str,
    /// In the navigation of a page.
    pub label: &'static str,
    /// In the help of `--event`.
    pub help: &'static str,
    /// What its times are.
    pub note: &'static str,
    /// The tracepoint that it is made of.
    pub event: &'static str,
    /// Whether a recording has that.
    pub is_covered: fn(&Coverage) -> bool,
}

const ACCESSES: &str =
    "One exit can hold several accesses. Time runs from the access to the next kvm_entry.";

/// The words of a table.
pub fn table_words(kind: TableKind) -> TableWords {
    let exits = TableWords {
        rows: "VM exits",
        label: "Exits",
        help: "Exits by reason.",
        note: "Time runs from kvm_exit to the next kvm_entry.",
        event: "kvm_exit",
        is_covered: |coverage| coverage.exits,
    };
    match kind {
        TableKind::Vmexit => exits,
        TableKind::Cause => TableWords {
            label: "Causes",
            help: "Exits by cause: what the guest was doing.",
            note: "What the guest was doing, in the same words on every vendor. Time runs from kvm_exit to the next kvm_entry.",
            ..exits
        },
        TableKind::Msr => TableWords {
            rows: "MSR accesses",
            label: "MSRs",
            help: "MSR reads and writes.",
            note: ACCESSES,
            event: "kvm_msr",
            is_covered: |coverage| coverage.msr,
        },
        TableKind::Ioport => TableWords {
            rows: "I/O port accesses",
            label: "Ports",
            help: "Port reads and writes.",
            note: ACCESSES,
            event: "kvm_pio",
            is_covered: |coverage| coverage.pio,
        },
        TableKind::Mmio => TableWords {
            rows: "Device register (MMIO) accesses",
            label: "MMIO",
            help: "Device register reads and writes.",
            note: "One exit can hold several accesses. Time runs from the access to the next kvm_entry; for a read from kvm_exit to the access.",
            event: "kvm_mmio",
            is_covered: |coverage| coverage.mmio,
        },
        TableKind::Cpuid => TableWords {
            rows: "CPUID executions",
            label: "CPUID",
            help: "CPUID leaves.",
            note: ACCESSES,
            event: "kvm_cpuid",
            is_covered: |coverage| coverage.cpuid,
        },
        TableKind::Hypercall => TableWords {
            rows: "Hypercalls",
            label: "Hypercalls",
            help: "Hypercalls.",
            note: ACCESSES,
            event: "kvm_hypercall",
            is_covered: |coverage| coverage.hypercall,
        },
        TableKind::Conversion => TableWords {
            rows: "Conversions of memory, and pre-faulted pages",
            label: "Conversions",
            help: "Conversions between private and shared memory, memory-fault exits, pre-faulted pages.",
            note: "Requests of the guest, and what the VMM then did. Time runs from the request to the next kvm_entry. Changes of attributes \
                   need kvm_vm_set_mem_attributes (Linux 6.17), pre-faulted pages kvmmmu:kvm_mmu_spte_requested.",
            event: "kvm_userspace_exit",
            is_covered: |coverage| coverage.userspace,
        },
    }
}

/// The words of a table that is of an ISA's exits.
pub(crate) fn words_of(table: &SortedTable) -> TableWords {
    let words = table_words(table.kind);
    match table.kind {
        TableKind::Msr if !table.isa.facts().is_x86() => TableWords {
            rows: "System register accesses",
            label: "System registers",
            event: "kvm_handle_sys_reg",
            ..words
        },
        _ => words,
    }
}

/// The heading of a table: `VM exits by reason and level`.
pub fn title(table: &SortedTable) -> String {
    let what = words_of(table).rows;
    let by: Vec<&str> = table.by.iter().map(|by| heading(*by)).collect();
    match by.split_last() {
        None => what.to_owned(),
        Some((last, [])) => format!("{what} by {last}"),
        Some((last, first)) => format!("{what} by {} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_named_by_kind() {
        use DetailKind as K;
        for (kind, value, text, name) in [
            (K::None, 0, "", None),
            (K::Overflow, 0, "other details", None),
            (K::MsrWrite, 0x6e0, "wrmsr 0x6e0 IA32_TSC_DEADLINE", Some("IA32_TSC_DEADLINE")),
            (K::MsrRead, 0xbad, "rdmsr 0xbad", None),
            (K::PortIn, 0xcf8, "port in 0xcf8 PCI config address", Some("PCI config address")),
            (K::MmioWrite, 0xfee0_0380, "mmio write 0xfee00380 xAPIC TMICT", Some("xAPIC TMICT")),
            (K::PageFault, 0x7fe0_0000, "page fault 0x7fe00000 (2 MiB)", None),
            (K::MappedFault, 0, "fault on a mapped page 0x0 (2 MiB)", None),
            (K::MappedFetch, 0, "fetch fault on a mapped page 0x0 (2 MiB)", None),
            (K::MemoryFault, 0x4000_0000, "memory fault 0x40000000 (2 MiB)", None),
            (K::MemoryFault, u64::MAX, "memory fault", None),
            (K::ToShared, 4096, "made shared, by 4 KiB", None),
            (K::ToShared, 6 << 20, "made shared, by 6 MiB", None),
            (K::ToPrivate, 100, "made private, by 100 bytes", None),
            (K::ToPrivate, 0, "made private, by 0 bytes", None),
            (K::PreFault, 2 << 20, "pre-faulted page of 2 MiB", None),
            (K::Hypercall, 10, "hypercall 10 KVM_HC_SEND_IPI", Some("KVM_HC_SEND_IPI")),
            (K::Cpuid, 4 << 32 | 1, "cpuid 0x4 sub-leaf 1", None),
            (K::CrWrite, 4, "write CR4", Some("CR4")),
            (K::VmcsField, 0x681e, "VMCS field GUEST_RIP", Some("GUEST_RIP")),
            (K::VmcsField, 0x7777, "VMCS field 0x7777", None),
        ] {
            let given = Detail::new(kind, value);
            assert_eq!((detail(given).as_str(), detail_name(given).as_deref()), (text, name));
        }
    }
}
