//! Under which conditions a remedy helps.

use vmtax_events::Isa;

use super::context::{Applies, Context, VmKind};

pub(super) fn always(_: &Context) -> Applies {
    Applies::Yes
}

/// Linux 7.3: guest_memfd.c "TODO: Support huge pages"; tdx_gmem_max_mapping_level returns PG_LEVEL_4K.
const PRIVATE_AT_4K: &str = "its memory comes from guest_memfd, which Linux up to 7.3 maps in pages of 4 KiB; no setting changes that";

/// A condition where only the TLB's misses are known.
pub(crate) const IF_MAPPED_SMALL: &str =
    "`vmtax doctor --pages` shows that the host maps this VM in pages of 4 KiB";
/// A condition where only faults are known: they do not tell mapping from tracking of writes.
pub(crate) const IF_NOT_LOGGED: &str = "`vmtax doctor --pages` shows pages of 4 KiB, no migration or checkpoint tracks writes, numa_hint_faults in the host's /proc/vmstat stands still (NUMA balancing takes mapped pages away), and kvm.nx_huge_pages is off, which splits pages that the guest executes";
/// Why the remedy of a less important finding is refused.
pub(crate) const CONTRADICTED: &str = "it contradicts the remedy of a more important finding";
/// Why an option is refused that benchmarks show to cost more.
pub(crate) const COSTS_MORE: &str = "it costs more in one workload than it recovers in another";

/// Memory that pre-faulting maps for good. Of a TD and of SEV-SNP only the first image is built before it runs; KVM takes the ioctl
/// behind that (`pre_fault_allowed`: set by `tdx_td_finalize`, vmx/tdx.c, and by `snp_launch_finish`, svm/sev.c).
pub(super) fn memory_to_map_first(context: &Context) -> Applies {
    match context.kind {
        VmKind::Tdx => Applies::If(
            "the kernel is Linux 6.16 or later, and the VMM calls it once the TD is finalized",
        ),
        VmKind::Snp => Applies::If(
            "the kernel is Linux 6.11 or later, and the VMM calls it once the launch is finished",
        ),
        _ if context.guest_memfd || context.kind == VmKind::Protected => {
            Applies::If("the kernel is Linux 6.11 or later, and the VMM calls it")
        }
        _ => Applies::No(
            "ordinary memory that its host has not touched is mapped as the zero page, and faults again at the first write",
        ),
    }
}

pub(super) fn private_in_large_pages(context: &Context) -> Applies {
    match context.kind {
        VmKind::Tdx => Applies::If("you build the host's kernel with the series"),
        _ => Applies::No("the series is for TDs"),
    }
}

pub(super) fn ordinary_memory(context: &Context) -> Applies {
    match context.kind {
        VmKind::Tdx | VmKind::Snp | VmKind::Protected => Applies::No(PRIVATE_AT_4K),
        _ if context.guest_memfd => Applies::No(PRIVATE_AT_4K),
        _ if context.converts => Applies::If(
            "the regions of 2 MiB that fault have no private page: KVM maps a region that is private in part in pages of 4 KiB",
        ),
        _ if context.may_shadow => Applies::No(
            "the guest runs guests: KVM write-protects their page tables, and faults do not tell that from small pages; `vmtax doctor --pages` does",
        ),
        _ if context.logs_writes => Applies::No(
            "KVM maps memory in pages of 4 KiB while it tracks writes (a migration or a checkpoint)",
        ),
        VmKind::Encrypted => Applies::If(
            "the VM is SEV-ES: memory of SEV-SNP is private, and no setting changes its pages",
        ),
        _ => Applies::Yes,
    }
}

pub(super) fn not_where_contended(context: &Context) -> Applies {
    if context.is_contended {
        return Applies::No("its processors are shared: polling takes time from what runs there");
    }
    Applies::If("the vCPUs have processors of their own: polling keeps them busy")
}

/// What wakes a vCPU that polls in the guest is an interrupt of its host.
pub(super) fn guest_polling(context: &Context) -> Applies {
    match not_where_contended(context) {
        Applies::If(_) => Applies::If(
            "the vCPUs have processors of their own: polling keeps them busy, and for each halt that goes an interrupt of the host comes",
        ),
        other => other,
    }
}

pub(super) fn kvm_polling(context: &Context) -> Applies {
    if context.polls {
        return Applies::No("KVM polls already: halts ended while it did");
    }
    not_where_contended(context)
}

pub(super) fn tsc_deadline(context: &Context) -> Applies {
    if context.is_windows {
        return Applies::No("the guest uses Hyper-V's interface: Windows has no driver for it");
    }
    match context.kind {
        VmKind::Snp => Applies::No("QEMU masks the TSC-deadline timer of SEV-SNP guests"),
        VmKind::Encrypted => Applies::If("the VM is not SEV-SNP, from which QEMU masks it"),
        _ => Applies::Yes,
    }
}

pub(super) fn plain_x2apic(context: &Context) -> Applies {
    match context.kind {
        VmKind::SevEs | VmKind::Encrypted | VmKind::Snp => {
            Applies::If("the VMM offers x2APIC to SEV guests")
        }
        VmKind::Tdx => Applies::No("a TD always has x2APIC"),
        _ => Applies::Yes,
    }
}

pub(super) fn intel_virtual_apic(context: &Context) -> Applies {
    match (context.vendor, context.has_virtual_apic) {
        (Isa::Svm, _) => Applies::No("the processor is AMD's"),
        (_, true) => Applies::No("APIC virtualization is at work"),
        _ => Applies::If("the processor has it (`vmx flags: apicv`) and nothing inhibits it"),
    }
}

pub(super) fn amd_virtual_apic(context: &Context) -> Applies {
    match (context.vendor, context.kind, context.has_virtual_apic) {
        (Isa::Vmx, ..) => Applies::No("the processor is Intel's"),
        (_, VmKind::Sev | VmKind::SevEs | VmKind::Encrypted | VmKind::Snp, _) => {
            Applies::No("SEV guests inhibit AVIC")
        }
        (.., true) => Applies::No("AVIC is at work"),
        _ => Applies::If(
            "the processor has it (x2AVIC for x2APIC guests) and nothing inhibits it (PIT reinjection, Hyper-V SynIC, nesting)",
        ),
    }
}

pub(super) fn intel_ipi(context: &Context) -> Applies {
    match (context.vendor, context.kind) {
        (Isa::Svm, _) => Applies::No("the processor is AMD's"),
        (_, VmKind::Tdx) => Applies::No("TDs cannot use it"),
        _ => Applies::If("the processor has it (`vmx flags: ipi_virt`)"),
    }
}

pub(super) fn on_intel(context: &Context) -> Applies {
    if context.vendor == Isa::Svm { Applies::No("the processor is AMD's") } else { Applies::Yes }
}

pub(super) fn on_amd(context: &Context) -> Applies {
    if context.vendor == Isa::Vmx { Applies::No("the processor is Intel's") } else { Applies::Yes }
}

/// Kernels in which registering a device starts a grace period of SRCU (7d9a0273c459). Mended by call_srcu_expedited, if that is merged
/// ("KVM: Expedite SRCU callbacks when freeing objects during I/O bus registration", kvm@vger, 9 March 2026).
pub(super) const GRACE_PERIODS: &str = "the host runs Linux 6.18 or later";

/// The APIC access page is a slot that KVM makes itself with the first vCPU (`kvm_alloc_apic_access_page`: vmx_vcpu_create, and avic_init_backing_page).
pub(super) fn slots_first(context: &Context) -> Applies {
    match context.vendor {
        Isa::Vmx => Applies::No(
            "on Intel the first KVM_CREATE_VCPU makes a slot for the APIC after the irqchip, and waits instead",
        ),
        _ if context.has_virtual_apic => Applies::No(
            "with AVIC the first KVM_CREATE_VCPU makes a slot for the APIC, and waits instead",
        ),
        _ => Applies::If(
            "the host runs Linux 6.18 or later on an AMD processor with kvm_amd.avic=0: on Intel and with AVIC the first KVM_CREATE_VCPU waits instead",
        ),
    }
}

fn on_amd_with(context: &Context, feature: &'static str) -> Applies {
    if context.vendor == Isa::Vmx {
        Applies::No("the processor is Intel's")
    } else {
        Applies::If(feature)
    }
}

pub(super) fn virtual_vmload(context: &Context) -> Applies {
    on_amd_with(context, "the processor has it (/proc/cpuinfo of L0: v_vmsave_vmload)")
}

pub(super) fn virtual_gif(context: &Context) -> Applies {
    on_amd_with(context, "the processor has it (/proc/cpuinfo of L0: vgif)")
}

pub(super) fn preemption_timer(context: &Context) -> Applies {
    match (context.vendor, context.kind) {
        (Isa::Svm, _) => Applies::No("the processor is AMD's"),
        (_, VmKind::Tdx) => Applies::No("TDs cannot use it"),
        _ => Applies::Yes,
    }
}

pub(super) fn one_task(context: &Context) -> Applies {
    if context.is_contended {
        return Applies::No(
            "several tasks share a processor, and the tick stays where more than one is runnable",
        );
    }
    Applies::If("one task runs on each of these CPUs: else the tick stays")
}

pub(super) fn plain_bounce(context: &Context) -> Applies {
    if context.kind.is_confidential() {
        Applies::No("a confidential VM cannot do without it")
    } else {
        Applies::If("the VM is not confidential and swiotlb=force is on the guest's command line")
    }
}

/// QEMU docs/system/i386/hyperv.rst, recommendations: not without APICv or AVIC.
pub(super) fn beside_virtual_apic(context: &Context) -> Applies {
    match (context.vendor, context.kind) {
        (Isa::Svm, VmKind::Sev | VmKind::SevEs | VmKind::Encrypted | VmKind::Snp) => {
            Applies::No("SEV guests inhibit AVIC, without which it may harm")
        }
        (Isa::Svm, _) => Applies::If(
            "AVIC is on and nothing else inhibits it (kvm_amd.avic, PIT reinjection): without AVIC it may harm",
        ),
        _ => Applies::If("APICv is on (kvm_intel.enable_apicv): without it this may harm"),
    }
}

/// Linux arch/x86/kvm/lapic.c: KVM lets the guest do so for an interrupt that is edge-triggered and the only one, and where no APICv or
/// AVIC ends interrupts without an exit anyway.
pub(super) fn ends_in_memory(context: &Context) -> Applies {
    match context.kind {
        _ if context.has_virtual_apic => Applies::No("the processor virtualizes the APIC"),
        VmKind::Tdx => Applies::No("a TD's interrupts are delivered by the processor"),
        _ => Applies::If(
            "the guest is Linux and sees KVM (not kvm=off), and the VM has kvm-pv-eoi off",
        ),
    }
}

pub(super) fn without_virtual_apic(context: &Context) -> Applies {
    match context.kind {
        _ if context.has_virtual_apic => Applies::No("the processor virtualizes the APIC"),
        VmKind::Tdx => Applies::No("a TD's interrupts are delivered by the processor"),
        _ => Applies::If(
            "the guest is Windows without hv-vapic, and the host has neither APICv nor AVIC on",
        ),
    }
}

pub(super) fn of_windows(context: &Context) -> Applies {
    if context.is_windows {
        Applies::If("the VM does not have it yet")
    } else {
        Applies::If("the guest is Windows, and the VM does not have it yet")
    }
}

pub(super) fn windows_timers(context: &Context) -> Applies {
    if context.has_hyperv_timer {
        return Applies::No("the guest uses Hyper-V's timers already");
    }
    of_windows(context)
}

pub(super) fn ipis_of_windows(context: &Context) -> Applies {
    if context.is_windows {
        Applies::If("the IPIs go to many vCPUs at once: one target costs as much by hypercall")
    } else {
        Applies::No("the guest does not use Hyper-V's interface")
    }
}

pub(super) fn windows_on_intel(context: &Context) -> Applies {
    match (context.vendor, context.is_windows) {
        (Isa::Svm, _) => Applies::No("the processor is AMD's"),
        (_, false) => Applies::No("the guest does not use Hyper-V's interface"),
        _ => Applies::If(
            "Hyper-V runs in the guest (HVCI, VBS, WSL2); it takes posted interrupts away: measure both",
        ),
    }
}
