//! Steps of a VM's life: what a VMM does to create, run and destroy one.
//!
//! They are calls of the VMM and no code of a guest, so their exits are not recorded. Each life is that of a VM of its own, and what a
//! step takes depends on those before it: an operation is always measured in the whole life ([`Step`] has their order).

use vmtax_guest::order::LifeStep;

use super::definition::{Definition, ExpectedExits, GuestCode, line, nothing};

/// Lives that are measured at least. A grace period of RCU takes as long as it takes to the next clock ticks, so that one life says little.
pub(crate) const LIVES_LEAST: u32 = 20;

pub(super) const fn step(name: &'static str, summary: &'static str, step: LifeStep) -> Definition {
    let code = GuestCode { step: Some(step), ..line(nothing) };
    Definition { name, summary, count: 1, kind: ExpectedExits::Measured, code }
}

pub(super) const OPERATIONS: &[Definition] = &[
    step("open-kvm", "open(2) of /dev/kvm", LifeStep::OpenKvm),
    step("supported-cpuid", "KVM_GET_SUPPORTED_CPUID", LifeStep::SupportedCpuid),
    step("create-vm", "KVM_CREATE_VM, by a process in a cgroup", LifeStep::CreateVm),
    step("create-irqchip", "KVM_CREATE_IRQCHIP", LifeStep::CreateIrqchip),
    step("create-pit", "KVM_CREATE_PIT2", LifeStep::CreatePit),
    step("slot-first", "the first memory slot, after the irqchip", LifeStep::SlotFirst),
    step("create-vcpu", "KVM_CREATE_VCPU", LifeStep::VcpuFirst),
    step("create-vcpu-second", "KVM_CREATE_VCPU of a second vCPU", LifeStep::VcpuSecond),
    step("vcpu-init", "KVM_ARM_VCPU_INIT", LifeStep::VcpuInit),
    step("create-gic", "KVM_CREATE_DEVICE of the GIC, and its attributes", LifeStep::CreateGic),
    step("set-cpuid", "KVM_SET_CPUID2 with all that KVM supports", LifeStep::SetCpuid),
    step("set-msrs", "KVM_SET_MSRS with 16 MSRs", LifeStep::SetMsrs),
    step("set-sregs", "KVM_GET_SREGS and KVM_SET_SREGS", LifeStep::SetSregs),
    step("run-first", "the first KVM_RUN, to its first exit to user space", LifeStep::RunFirst),
    step("run-again", "KVM_RUN once more", LifeStep::RunAgain),
    step("run-second-vcpu", "the first KVM_RUN of a second vCPU", LifeStep::RunSecondVcpu),
    step("slot-tenth", "a tenth memory slot, with a running vCPU", LifeStep::SlotTenth),
    step("slot-delete", "an untouched memory slot is deleted", LifeStep::SlotDeleted),
    step("slot-move", "an untouched memory slot gets another address", LifeStep::SlotMoved),
    step("faults-256", "first stores to 256 pages of 4 KiB", LifeStep::Faults),
    step("slot-delete-mapped", "that slot is deleted", LifeStep::SlotDeletedMapped),
    step("irqfd", "KVM_IRQFD", LifeStep::Irqfd),
    step("irqfd-deassign", "KVM_IRQFD, deassigned", LifeStep::IrqfdDeassigned),
    step("ioeventfd", "KVM_IOEVENTFD", LifeStep::Ioeventfd),
    step("ioeventfd-deassign", "KVM_IOEVENTFD, deassigned", LifeStep::IoeventfdDeassigned),
    step(
        "ioeventfd-8-pairs",
        "eight times KVM_IOEVENTFD and its opposite",
        LifeStep::IoeventfdPairs,
    ),
    step("close-vcpu", "close(2) of a vCPU", LifeStep::CloseVcpu),
    step("destroy-mapped", "close(2) of the VM, with 256 pages mapped", LifeStep::DestroyMapped),
    step("destroy-empty", "close(2) of an empty VM of 40 bits", LifeStep::DestroyEmpty),
    step("destroy-wide", "close(2) of an empty VM of 44 bits", LifeStep::DestroyWide),
    step("close-kvm", "close(2) of /dev/kvm", LifeStep::CloseKvm),
    step(
        "start-memory-first",
        "whole start to the first exit, memory before irqchip",
        LifeStep::StartMemoryFirst,
    ),
    step(
        "start-irqchip-first",
        "whole start, irqchip before memory, as the next ones",
        LifeStep::StartIrqchipFirst,
    ),
    step("destroy", "close(2) of such a VM, of which one page is mapped", LifeStep::Destroy),
    step(
        "start-root-cgroup",
        "whole start by a process in the root cgroup",
        LifeStep::StartRootCgroup,
    ),
    step(
        "start-favordynmods",
        "whole start with cgroup2's favordynmods",
        LifeStep::StartFavordynmods,
    ),
    step("start-rcu-expedited", "whole start with rcu_expedited", LifeStep::StartExpedited),
];
