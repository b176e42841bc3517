//! Interrupt controllers, IPIs and spinning.

use vmtax_events::setting::{Fact, Settings, VmProcess, files};

use super::view::{View, flag_fact, has_flag};
use super::vmm::{self, is_off, is_on, options, property, said};
use super::{Advice, Fix, Found, Inhibit, Seen, Start, Vendor, Verdict, What};
use crate::remedy::{RemedyId, VmKind};

pub(super) fn x2apic(_: &View, guest: &Settings) -> Found {
    let fact = flag_fact(guest, "x2apic");
    match has_flag(guest, "flags", "x2apic") {
        Ok(true) => Found::ok(What::X2apic).seen(fact),
        Ok(false) => Found::costs(What::Xapic).seen(fact).remedy(RemedyId::X2apic),
        Err(_) => Found::unread(fact),
    }
}

/// A parameter that follows a feature of the processor.
struct Feature {
    path: &'static str,
    /// The line of `/proc/cpuinfo` that has the feature, and its word there.
    flag: [&'static str; 2],
    /// What it means that it is on, and that it is off.
    says: [What; 2],
    /// Row of the table of remedies.
    remedy: RemedyId,
}

impl Feature {
    fn judge(self, view: &View) -> Found {
        let (on, fact) = match view.switch(self.path) {
            Ok(found) => found,
            Err(found) => return found,
        };
        let ([ok, costs], [list, flag]) = (self.says, self.flag);
        if on {
            return Found::ok(ok).seen(fact);
        }
        match has_flag(view.host, list, flag) {
            Ok(true) => Found::costs(costs).seen(fact).remedy(self.remedy),
            Ok(false) => Found::not_applicable(What::NoFeature).seen(fact),
            Err(_) => {
                let info = view.host.fact(files::CPUINFO).map(|_| Seen::Without(list));
                Found::unknown(What::OffFeatureUnknown).seen(fact).seen(info)
            }
        }
    }
}

/// A VM whose APICs are emulated by the VMM: no virtual APIC of the processor serves it.
fn apic_of_vmm(view: &View) -> Option<Found> {
    let in_vmm = |vm: &&VmProcess| vmm::is_qemu(vm) && irqchip(vm).is_some_and(is_off);
    let vm = view.vms.iter().find(in_vmm)?;
    let found = Found::costs(What::ApicOfVmm(vm.name.clone()))
        .seen(said(vm, "kernel-irqchip=off".to_owned()));
    Some(found.fix(Fix::Vmm(Start::KernelIrqchip)))
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
pub(super) fn split_irqchip(_: &View, vm: &VmProcess) -> Found {
    if vm.arguments.value.is_err() {
        return Found::unread(said(vm, String::new()));
    }
    if !vmm::is_qemu(vm) {
        return Found::unknown(What::IrqchipOfOtherVmm).seen(said(vm, Seen::NotQemu));
    }
    // QEMU docs/system/i386/tdx.rst, "Restrictions"; it is also what a TD gets without being asked.
    if vmm::kind(vm) == VmKind::Tdx {
        return Found::not_applicable(What::SplitIrqchipOfTd);
    }
    if irqchip(vm) != Some("split") {
        return Found::ok(What::IrqchipInKernel);
    }
    let fact = said(vm, "kernel-irqchip=split".to_owned());
    if options(vm, "device").iter().any(|value| vmm::object_type(value).contains("iommu")) {
        return Found::ok(What::SplitIrqchipForIommu).seen(fact);
    }
    Found::costs(What::SplitIrqchip).seen(fact).fix(Fix::Vmm(Start::KernelIrqchip))
}

pub(super) fn apicv(view: &View) -> Found {
    if view.vendor != Some(Vendor::Amd)
        && let Some(found) = apic_of_vmm(view)
    {
        return found;
    }
    let feature = Feature {
        path: files::APICV,
        flag: ["vmx flags", "apicv"],
        says: [What::ApicVirtual, What::ApicExits],
        remedy: RemedyId::Apicv,
    };
    feature.judge(view)
}

pub(super) fn ipiv(view: &View) -> Found {
    if view.all_tds() {
        return Found::not_applicable(What::NotForTds).seen(view.host.fact(files::IPIV));
    }
    let feature = Feature {
        path: files::IPIV,
        flag: ["vmx flags", "ipi_virt"],
        says: [What::IpisVirtual, What::IpiExits],
        remedy: RemedyId::Ipiv,
    };
    feature.judge(view)
}

pub(super) fn avic(view: &View) -> Found {
    let sev = view.all_vms(|vm| vmm::kind(vm).is_encrypted());
    if sev && view.vendor == Some(Vendor::Amd) {
        return Found::not_applicable(What::InhibitedBySev).seen(view.host.fact(files::AVIC));
    }
    if view.vendor == Some(Vendor::Amd)
        && let Some(found) = apic_of_vmm(view)
    {
        return found;
    }
    let feature = Feature {
        path: files::AVIC,
        flag: ["flags", "avic"],
        says: [What::Avic, What::NoAvic],
        remedy: RemedyId::Avic,
    };
    feature.judge(view)
}

pub(super) fn avic_inhibit(view: &View, vm: &VmProcess) -> Found {
    match view.switch(files::AVIC) {
        Ok((true, _)) => {}
        Ok((false, fact)) => return Found::not_applicable(What::AvicOff).seen(fact),
        Err(found) => return found,
    }
    if !vmm::is_qemu(vm) {
        return Found::unknown(What::AvicOfOtherVmm).seen(said(vm, Seen::NotQemu));
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
    let fact = said(vm, Seen::Inhibits(inhibits.clone()));
    if inhibits.is_empty() {
        return Found::ok(What::AvicNotInhibited).seen(fact);
    }
    let is_sev_alone = inhibits == [Inhibit::Sev];
    let found = Found::costs(What::AvicInhibited(inhibits)).seen(fact);
    if is_sev_alone { found } else { found.fix(Fix::Vmm(Start::WithoutInhibits)) }
}

pub(super) fn pv_ipi(view: &View, vm: &VmProcess) -> Found {
    if !vmm::kind(vm).is_private() {
        match view.switch(files::IPIV) {
            Ok((true, fact)) => {
                return Found::not_applicable(What::IpisOfProcessor).seen(fact);
            }
            Err(found) if found.verdict == Verdict::Unknown => return found,
            _ => {}
        }
    }
    if !vmm::is_qemu(vm) {
        return Found::unknown(What::PvIpisOfOtherVmm).seen(said(vm, Seen::NotQemu));
    }
    let cpu = options(vm, "cpu");
    let off = |value: &&str| {
        property(value, "kvm-pv-ipi").is_some_and(is_off)
            || property(value, "kvm").is_some_and(is_off)
            || value.split(',').any(|word| word == "-kvm-pv-ipi")
    };
    match cpu.iter().find(|value| off(value)) {
        Some(value) => Found::costs(What::NoPvIpis)
            .seen(said(vm, format!("-cpu {value}")))
            .fix(Fix::Vmm(Start::With("-cpu ...,kvm=on,kvm-pv-ipi=on"))),
        None => Found::ok(What::PvIpisOffered).seen(said(vm, Seen::Without("kvm-pv-ipi=off"))),
    }
}

pub(super) fn ple(view: &View) -> Found {
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
        _ if !is_number => Found::unknown(What::Strange),
        _ if is_default => Found::ok(What::SpinningYields),
        Ok(false) => Found::not_applicable(What::SpinningNotDetected),
        _ if facts.iter().any(|fact| fact.value.as_deref() == Ok("0")) => {
            Found::costs(What::SpinningNeverYields).fix(Fix::Advice(Advice::DefaultSpinning))
        }
        _ => Found::costs(What::SpinningChanged).fix(Fix::Advice(Advice::DefaultSpinning)),
    };
    facts.into_iter().fold(found, Found::seen)
}
