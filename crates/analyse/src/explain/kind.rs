//! What kind of VM a recording is of, as far as its exits and the host's profile show it.

use vmtax_events::{DetailKind, Isa, Outcome, Sample, svm, vmx};

use super::subject::{Subject, subject_of};
use crate::Ledger;
use crate::remedy::Context;
use crate::vm_facts::{kind, vendor};

/// Synthetic MSRs of Hyper-V's interface (Hyper-V TLFS, "Synthetic MSRs").
const HYPERV_MSRS: std::ops::Range<u64> = 0x4000_0000..0x4000_0200;

/// HV_X64_MSR_STIMER0_CONFIG to HV_X64_MSR_STIMER3_COUNT.
const HYPERV_TIMERS: std::ops::RangeInclusive<u64> = 0x4000_00b0..=0x4000_00b7;

/// The tool that counts exits of bhyve.
const OTHER_HOST: &str = "DTrace";

/// What is known of the VM.
pub(super) fn context(ledger: &Ledger) -> Context {
    let keys = || ledger.exits.keys();
    let has = |isa, code| keys().any(|key| key.reason.isa == isa && key.reason.code == code);
    let has_virtual_apic = has(Isa::Vmx, vmx::APIC_WRITE)
        || has(Isa::Vmx, vmx::EOI_INDUCED)
        || has(Isa::Svm, svm::AVIC_INCOMPLETE_IPI)
        || has(Isa::Svm, svm::AVIC_UNACCELERATED_ACCESS);
    let polls = keys().any(|key| {
        key.outcome == Outcome::Halted
            && key.detail.kind == DetailKind::Halt
            && key.detail.value == vmtax_events::detail::HALT_POLLED
    });
    Context {
        kind: kind(ledger),
        vendor: vendor(ledger),
        has_virtual_apic,
        is_contended: super::findings::lasting_contention(ledger)
            .is_some_and(|share| share >= super::sums::TAX_MATTERS),
        polls,
        guest_memfd: is_guest_memfd(ledger),
        converts: keys().any(|key| subject_of(key) == Subject::Conversions),
        logs_writes: keys().any(|key| key.reason.is(vmx::PML_FULL, None)),
        may_shadow: super::mapping::is_small(ledger).is_none()
            && keys().any(|key| subject_of(key) == Subject::Nesting),
        is_windows: keys().any(|key| match key.detail.kind {
            DetailKind::HypervHypercall => true,
            DetailKind::MsrRead | DetailKind::MsrWrite => HYPERV_MSRS.contains(&key.detail.value),
            _ => false,
        }),
        is_of_other_host: ledger.recording.tool == OTHER_HOST,
        has_hyperv_timer: keys().any(|key| {
            key.detail.kind == DetailKind::MsrWrite && HYPERV_TIMERS.contains(&key.detail.value)
        }),
    }
}

/// Whether the memory of all VMs comes from guest_memfd, by the definition of the lab's operations that they are.
fn is_guest_memfd(ledger: &Ledger) -> bool {
    let mut vms = ledger.recording.vms.iter().filter(|vm| {
        let wanted = &ledger.filter.vms;
        let has_exits = ledger.exits.keys().any(|key| key.vm == vm.id);
        has_exits && (wanted.is_empty() || wanted.contains(&vm.id))
    });
    let is_so = |name: &str| {
        let of_memory = |s: &&Sample| s.metric == Sample::GUEST_MEMFD && s.workload == name;
        ledger.samples.iter().find(of_memory).is_some_and(|sample| sample.value == 1.0)
    };
    let first = vms.next().is_some_and(|vm| is_so(&vm.name));
    first && vms.all(|vm| is_so(&vm.name))
}
