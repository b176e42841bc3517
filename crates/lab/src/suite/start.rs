//! Steps of a VM's life: what a VMM does to create, run and destroy one.
//!
//! They are calls of the VMM and no code of a guest, so their exits are not recorded. Each life is that of a VM of its own, and what a
//! step takes depends on those before it: an operation is always measured in the whole life ([`Step`] has their order).

use vmtax_guest::order::Step;

use super::definition::{Code, Definition, Kind, line, nothing};

/// Lives that are measured at least. A grace period of RCU takes as long as it takes to the next clock ticks, so that one life says little.
pub(crate) const LIVES_LEAST: u32 = 20;

const fn step(name: &'static str, summary: &'static str, step: Step) -> Definition {
    let code = Code { step: Some(step), ..line(nothing) };
    Definition { name, summary, count: 1, kind: Kind::Measured, code }
}

pub(super) const OPERATIONS: &[Definition] = &[
    step("open-kvm", "open(2) of /dev/kvm", Step::OpenKvm),
    step("supported-cpuid", "KVM_GET_SUPPORTED_CPUID", Step::SupportedCpuid),
    step("create-vm", "KVM_CREATE_VM, by a process in a cgroup", Step::CreateVm),
    step("create-irqchip", "KVM_CREATE_IRQCHIP", Step::CreateIrqchip),
    step("create-pit", "KVM_CREATE_PIT2", Step::CreatePit),
    step("slot-first", "the first memory slot, after the irqchip", Step::SlotFirst),
    step("create-vcpu", "KVM_CREATE_VCPU", Step::VcpuFirst),
    step("create-vcpu-second", "KVM_CREATE_VCPU of a second vCPU", Step::VcpuSecond),
    step("set-cpuid", "KVM_SET_CPUID2 with all that KVM supports", Step::SetCpuid),
    step("set-msrs", "KVM_SET_MSRS with 16 MSRs", Step::SetMsrs),
    step("set-sregs", "KVM_GET_SREGS and KVM_SET_SREGS", Step::SetSregs),
    step("run-first", "the first KVM_RUN, to its first exit to user space", Step::RunFirst),
    step("run-again", "KVM_RUN once more", Step::RunAgain),
    step("run-second-vcpu", "the first KVM_RUN of a second vCPU", Step::RunSecondVcpu),
    step("slot-tenth", "a tenth memory slot, with a running vCPU", Step::SlotTenth),
    step("slot-delete", "an untouched memory slot is deleted", Step::SlotDeleted),
    step("slot-move", "an untouched memory slot gets another address", Step::SlotMoved),
    step("faults-256", "first stores to 256 pages of 4 KiB", Step::Faults),
    step("slot-delete-mapped", "that slot is deleted", Step::SlotDeletedMapped),
    step("irqfd", "KVM_IRQFD", Step::Irqfd),
    step("irqfd-deassign", "KVM_IRQFD, deassigned", Step::IrqfdDeassigned),
    step("ioeventfd", "KVM_IOEVENTFD", Step::Ioeventfd),
    step("ioeventfd-deassign", "KVM_IOEVENTFD, deassigned", Step::IoeventfdDeassigned),
    step("ioeventfd-8-pairs", "eight times KVM_IOEVENTFD and its opposite", Step::IoeventfdPairs),
    step("close-vcpu", "close(2) of a vCPU", Step::CloseVcpu),
    step("destroy-mapped", "close(2) of the VM, with 256 pages mapped", Step::DestroyMapped),
    step("close-kvm", "close(2) of /dev/kvm", Step::CloseKvm),
    step(
        "start-memory-first",
        "whole start to the first exit, memory before irqchip",
        Step::StartMemoryFirst,
    ),
    step(
        "start-irqchip-first",
        "whole start, irqchip before memory, as the next ones",
        Step::StartIrqchipFirst,
    ),
    step("destroy", "close(2) of such a VM, of which one page is mapped", Step::Destroy),
    step("start-root-cgroup", "whole start by a process in the root cgroup", Step::StartRootCgroup),
    step("start-favordynmods", "whole start with cgroup2's favordynmods", Step::StartFavordynmods),
    step("start-rcu-expedited", "whole start with rcu_expedited", Step::StartExpedited),
];
