//! Interrupt controllers, IPIs and spinning.

use vmtax_events::Isa;
use vmtax_events::setting::{Fact, Settings, VmProcess, files};

use super::view::{AuditView, flag_fact, has_flag};
use super::vmm::{self, is_off, is_on, options, property, said};
use super::{
    CheckFound, CheckVerdict, Fix, FoundSetting, Inhibit, ManualAdvice, QemuStart, SeenSetting,
    Vendor,
};
use crate::remedy::{RemedyId, VmKind};

pub(super) fn x2apic(_: &AuditView, guest: &Settings) -> CheckFound {
    let fact = flag_fact(guest, "x2apic");
    match has_flag(guest, "flags", "x2apic") {
        Ok(true) => CheckFound::ok(FoundSetting::X2apic).seen(fact),
        Ok(false) => CheckFound::costs(FoundSetting::Xapic).seen(fact).remedy(RemedyId::X2apic),
        Err(_) => CheckFound::unread(fact),
    }
}

/// A parameter that follows a feature of the processor.
struct Feature {
    path: &'static str,
    /// The line of `/proc/cpuinfo` that has the feature, and its word there.
    flag: [&'static str; 2],
    /// What it means that it is on, and that it is off.
    says: [FoundSetting; 2],
    /// Row of the table of remedies.
    remedy: RemedyId,
}

impl Feature {
    fn judge(self, view: &AuditView) -> CheckFound {
        let (on, fact) = match view.switch(self.path) {
            Ok(found) => found,
            Err(found) => return found,
        };
        let ([ok, costs], [list, flag]) = (self.says, self.flag);
        if on {
            return CheckFound::ok(ok).seen(fact);
        }
        match has_flag(view.host, list, flag) {
            Ok(true) => CheckFound::costs(costs).seen(fact).remedy(self.remedy),
            Ok(false) => CheckFound::not_applicable(FoundSetting::NoFeature).seen(fact),
            Err(_) => {
                let info = view.host.fact(files::CPUINFO).map(|_| SeenSetting::Without(list));
                CheckFound::unknown(FoundSetting::OffFeatureUnknown).seen(fact).seen(info)
            }
        }
    }
}

/// A VM whose APICs are emulated by the VMM: no virtual APIC of the processor serves it.
fn apic_of_vmm(view: &AuditView) -> Option<CheckFound> {
    let in_vmm = |vm: &&VmProcess| vmm::is_qemu(vm) && irqchip(vm).is_some_and(is_off);
    let vm = view.vms.iter().find(in_vmm)?;
    let found = CheckFound::costs(FoundSetting::ApicOfVmm(vm.name.clone()))
        .seen(said(vm, "kernel-irqchip=off".to_owned()));
    Some(found.fix(Fix::Vmm(QemuStart::KernelIrqchip)))
}

/// The value of kernel-irqchip that is in force.
fn irqchip(vm: &VmProcess) -> Option<&str> {
    let machines =
        options(vm, "machine").into_iter().chain(options(vm, "M")).chain(options(vm, "accel"));
    let of = |value| property(value, "kernel-irqchip").or(property(value, "kernel_irqchip"));
    machines.filter_map(of).next_back()
}

/// Linux Documentation/virt/kvm/api.rst, KVM_CAP_SPLIT_IRQCHIP: the I/O APIC is the VMM's, so an EOI of a level-triggered interrupt is an
/// exit to it (KVM_EXIT_IOAPIC_EOI). An IOMMU that remaps interrupts needs it (QEMU docs: intel-iommu, intremap=on).
pub(super) fn split_irqchip(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if vm.arguments.value.is_err() {
        return CheckFound::unread(said(vm, String::new()));
    }
    if !vmm::is_qemu(vm) {
        return CheckFound::unknown(FoundSetting::IrqchipOfOtherVmm)
            .seen(said(vm, SeenSetting::NotQemu));
    }
    // QEMU docs/system/i386/tdx.rst, "Restrictions"; it is also what a TD gets without being asked.
    if vmm::kind(vm) == VmKind::Tdx {
        return CheckFound::not_applicable(FoundSetting::SplitIrqchipOfTd);
    }
    // QEMU qemu-options.hx, kernel-irqchip: other architectures than x86 have it on or off.
    if vmm::isa(vm) == Some(Isa::Arm) && irqchip(vm).is_some_and(is_off) {
        return CheckFound::costs(FoundSetting::ApicOfVmm(vm.name.clone()))
            .seen(said(vm, "kernel-irqchip=off".to_owned()))
            .fix(Fix::Vmm(QemuStart::KernelIrqchip));
    }
    if irqchip(vm) != Some("split") {
        return CheckFound::ok(FoundSetting::IrqchipInKernel);
    }
    let fact = said(vm, "kernel-irqchip=split".to_owned());
    if options(vm, "device").iter().any(|value| vmm::object_type(value).contains("iommu")) {
        return CheckFound::ok(FoundSetting::SplitIrqchipForIommu).seen(fact);
    }
    CheckFound::costs(FoundSetting::SplitIrqchip).seen(fact).fix(Fix::Vmm(QemuStart::KernelIrqchip))
}

pub(super) fn apicv(view: &AuditView) -> CheckFound {
    if view.vendor != Some(Vendor::Amd)
        && let Some(found) = apic_of_vmm(view)
    {
        return found;
    }
    let feature = Feature {
        path: files::APICV,
        flag: ["vmx flags", "apicv"],
        says: [FoundSetting::ApicVirtual, FoundSetting::ApicExits],
        remedy: RemedyId::Apicv,
    };
    feature.judge(view)
}

pub(super) fn ipiv(view: &AuditView) -> CheckFound {
    if view.all_tds() {
        return CheckFound::not_applicable(FoundSetting::NotForTds)
            .seen(view.host.fact(files::IPIV));
    }
    let feature = Feature {
        path: files::IPIV,
        flag: ["vmx flags", "ipi_virt"],
        says: [FoundSetting::IpisVirtual, FoundSetting::IpiExits],
        remedy: RemedyId::Ipiv,
    };
    feature.judge(view)
}

pub(super) fn avic(view: &AuditView) -> CheckFound {
    let sev = view.all_vms(|vm| vmm::kind(vm).is_encrypted());
    if sev && view.vendor == Some(Vendor::Amd) {
        return CheckFound::not_applicable(FoundSetting::InhibitedBySev)
            .seen(view.host.fact(files::AVIC));
    }
    if view.vendor == Some(Vendor::Amd)
        && let Some(found) = apic_of_vmm(view)
    {
        return found;
    }
    let feature = Feature {
        path: files::AVIC,
        flag: ["flags", "avic"],
        says: [FoundSetting::Avic, FoundSetting::NoAvic],
        remedy: RemedyId::Avic,
    };
    feature.judge(view)
}

pub(super) fn avic_inhibit(view: &AuditView, vm: &VmProcess) -> CheckFound {
    match view.switch(files::AVIC) {
        Ok((true, _)) => {}
        Ok((false, fact)) => return CheckFound::not_applicable(FoundSetting::AvicOff).seen(fact),
        Err(found) => return found,
    }
    if !vmm::is_qemu(vm) {
        return CheckFound::unknown(FoundSetting::AvicOfOtherVmm)
            .seen(said(vm, SeenSetting::NotQemu));
    }
    let mut inhibits = Vec::new();
    if vmm::kind(vm).is_encrypted() {
        inhibits.push(Inhibit::Sev);
    }
    let on = |value: &&str| {
        property(value, "hv-synic").or(property(value, "hv_synic")).is_some_and(is_on)
            || value.split(',').any(|word| matches!(word, "hv-synic" | "hv_synic" | "+hv-synic"))
    };
    // hv-avic keeps it: QEMU docs/system/i386/hyperv.rst.
    let keeps = |value: &&str| {
        ["hv-avic", "hv_avic", "hv-apicv", "hv_apicv"].iter().any(|name| {
            property(value, name).is_some_and(is_on) || value.split(',').any(|word| word == *name)
        })
    };
    let cpus = options(vm, "cpu");
    if cpus.iter().any(on) && !cpus.iter().any(keeps) {
        inhibits.push(Inhibit::SynIc);
    }
    let pit_off = options(vm, "machine")
        .iter()
        .chain(&options(vm, "M"))
        .any(|value| property(value, "pit").is_some_and(is_off));
    let discards =
        options(vm, "global").iter().any(|v| v.contains("kvm-pit.lost_tick_policy=discard"));
    if !pit_off && !discards {
        inhibits.push(Inhibit::PitReinjection);
    }
    let fact = said(vm, SeenSetting::Inhibits(inhibits.clone()));
    if inhibits.is_empty() {
        return CheckFound::ok(FoundSetting::AvicNotInhibited).seen(fact);
    }
    let is_sev_alone = inhibits == [Inhibit::Sev];
    let found = CheckFound::costs(FoundSetting::AvicInhibited(inhibits)).seen(fact);
    if is_sev_alone { found } else { found.fix(Fix::Vmm(QemuStart::WithoutInhibits)) }
}

pub(super) fn pv_ipi(view: &AuditView, vm: &VmProcess) -> CheckFound {
    if !vmm::kind(vm).is_private() {
        match view.switch(files::IPIV) {
            Ok((true, fact)) => {
                return CheckFound::not_applicable(FoundSetting::IpisOfProcessor).seen(fact);
            }
            Err(found) if found.verdict == CheckVerdict::Unknown => return found,
            _ => {}
        }
    }
    if !vmm::is_qemu(vm) {
        return CheckFound::unknown(FoundSetting::PvIpisOfOtherVmm)
            .seen(said(vm, SeenSetting::NotQemu));
    }
    let cpu = options(vm, "cpu");
    let off = |value: &&str| {
        property(value, "kvm-pv-ipi").is_some_and(is_off)
            || property(value, "kvm").is_some_and(is_off)
            || value.split(',').any(|word| word == "-kvm-pv-ipi")
    };
    match cpu.iter().find(|value| off(value)) {
        Some(value) => CheckFound::costs(FoundSetting::NoPvIpis)
            .seen(said(vm, format!("-cpu {value}")))
            .fix(Fix::Vmm(QemuStart::With("-cpu ...,kvm=on,kvm-pv-ipi=on"))),
        None => CheckFound::ok(FoundSetting::PvIpisOffered)
            .seen(said(vm, SeenSetting::Without("kvm-pv-ipi=off"))),
    }
}

pub(super) fn ple(view: &AuditView) -> CheckFound {
    // Linux arch/x86/kvm/x86.h: KVM_DEFAULT_PLE_GAP, KVM_VMX_DEFAULT_PLE_WINDOW, KVM_SVM_DEFAULT_PLE_WINDOW.
    let intel = ([(files::PLE_GAP, "128"), (files::PLE_WINDOW, "4096")], "vmx flags", "ple");
    let amd =
        ([(files::PAUSE_THRESH, "128"), (files::PAUSE_COUNT, "3000")], "flags", "pausefilter");
    let (wanted, list, flag) = if view.vendor == Some(Vendor::Amd) { amd } else { intel };
    let mut facts: Vec<Fact<String>> = Vec::new();
    for (path, _) in wanted {
        match view.parameter(path) {
            Ok(fact) => facts.push(fact),
            Err(found) => return found,
        }
    }
    let is_default =
        facts.iter().zip(wanted).all(|(fact, (_, value))| fact.value.as_deref() == Ok(value));
    let is_number =
        facts.iter().all(|f| f.value.as_deref().is_ok_and(|v| v.parse::<u64>().is_ok()));
    let found = match has_flag(view.host, list, flag) {
        _ if !is_number => CheckFound::unknown(FoundSetting::Strange),
        _ if is_default => CheckFound::ok(FoundSetting::SpinningYields),
        Ok(false) => CheckFound::not_applicable(FoundSetting::SpinningNotDetected),
        _ if facts.iter().any(|fact| fact.value.as_deref() == Ok("0")) => {
            CheckFound::costs(FoundSetting::SpinningNeverYields)
                .fix(Fix::Advice(ManualAdvice::DefaultSpinning))
        }
        _ => CheckFound::costs(FoundSetting::SpinningChanged)
            .fix(Fix::Advice(ManualAdvice::DefaultSpinning)),
    };
    facts.into_iter().fold(found, CheckFound::seen)
}
