//! Interrupt controllers, IPIs and spinning.

use vmtax_events::setting::{Fact, Settings, VmProcess, files};

use super::view::{Vendor, View, flag_fact, has_flag};
use super::vmm::{self, is_off, is_on, options, property, said};
use super::{Fix, Found, Verdict};

pub(super) fn x2apic(_: &View, guest: &Settings) -> Found {
    let fact = flag_fact(guest, "x2apic");
    match has_flag(guest, "flags", "x2apic") {
        Ok(true) => Found::ok("the guest has the x2APIC").seen(fact),
        Ok(false) => Found::costs("the guest reaches its APIC through memory: each access that is not virtualized is decoded")
            .seen(fact)
            .remedy("x2apic"),
        Err(_) => Found::unread(fact),
    }
}

/// A parameter that follows a feature of the processor.
struct Feature {
    path: &'static str,
    /// The line of `/proc/cpuinfo` that has the feature, and its word there.
    flag: [&'static str; 2],
    /// What it means that it is on, and that it is off.
    says: [&'static str; 2],
    /// Row of the table of remedies.
    remedy: &'static str,
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
            Ok(false) => Found::not_applicable("the processor does not support it").seen(fact),
            Err(_) => {
                let info = view.host.fact(files::CPUINFO).map(|_| format!("no {list}"));
                let what = "off; it is unknown whether the processor supports it";
                Found::unknown(what).seen(fact).seen(info)
            }
        }
    }
}

/// A VM whose APICs are emulated by the VMM: no virtual APIC of the processor serves it.
fn apic_of_vmm(view: &View) -> Option<Found> {
    let in_vmm = |vm: &&VmProcess| {
        let machines = options(vm, "machine").into_iter().chain(options(vm, "M"));
        let accels = options(vm, "accel");
        vmm::is_qemu(vm)
            && machines.chain(accels).any(|value| {
                let chip = property(value, "kernel-irqchip").or(property(value, "kernel_irqchip"));
                chip.is_some_and(is_off)
            })
    };
    let vm = view.vms.iter().find(in_vmm)?;
    let what = format!(
        "the APICs of VM {} are emulated by the VMM: each interrupt, EOI and access to an APIC goes to it",
        vm.name
    );
    let found = Found::costs(what).seen(said(vm, "kernel-irqchip=off"));
    Some(found.fix(Fix::Vmm("-machine ...,kernel-irqchip=on (the default)")))
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
        says: [
            "interrupts reach vCPUs without exits",
            "each interrupt, EOI and access to the APIC is an exit",
        ],
        remedy: "apicv",
    };
    feature.judge(view)
}

pub(super) fn ipiv(view: &View) -> Found {
    if view.all_tds() {
        return Found::not_applicable("TDs cannot use it").seen(view.host.fact(files::IPIV));
    }
    let feature = Feature {
        path: files::IPIV,
        flag: ["vmx flags", "ipi_virt"],
        says: ["IPIs between vCPUs take no exit", "each IPI between vCPUs is an exit"],
        remedy: "ipiv",
    };
    feature.judge(view)
}

pub(super) fn avic(view: &View) -> Found {
    let sev = view.all_vms(|vm| vmm::kind(vm).is_encrypted());
    if sev && view.vendor == Some(Vendor::Amd) {
        return Found::not_applicable("SEV guests inhibit it").seen(view.host.fact(files::AVIC));
    }
    if view.vendor == Some(Vendor::Amd)
        && let Some(found) = apic_of_vmm(view)
    {
        return found;
    }
    let feature = Feature {
        path: files::AVIC,
        flag: ["flags", "avic"],
        says: [
            "interrupts reach vCPUs without exits, unless a VM inhibits it (avic-inhibit)",
            "each interrupt, EOI and IPI is an exit",
        ],
        remedy: "avic",
    };
    feature.judge(view)
}

pub(super) fn avic_inhibit(view: &View, vm: &VmProcess) -> Found {
    match view.switch(files::AVIC) {
        Ok((true, _)) => {}
        Ok((false, fact)) => return Found::not_applicable("AVIC is off; see avic").seen(fact),
        Err(found) => return found,
    }
    if !vmm::is_qemu(vm) {
        let what = "the VMM's settings determine whether AVIC is inhibited, and only QEMU's are known; record kvm:kvm_apicv_inhibit_changed";
        return Found::unknown(what).seen(said(vm, "not QEMU"));
    }
    let mut inhibits = Vec::new();
    if vmm::kind(vm).is_encrypted() {
        inhibits.push("SEV");
    }
    let on = |value: &&str| {
        property(value, "hv-synic").or(property(value, "hv_synic")).is_some_and(is_on)
            || value.split(',').any(|word| matches!(word, "hv-synic" | "hv_synic" | "+hv-synic"))
    };
    if options(vm, "cpu").iter().any(on) {
        inhibits.push("Hyper-V's SynIC");
    }
    let pit_off = options(vm, "machine")
        .iter()
        .chain(&options(vm, "M"))
        .any(|value| property(value, "pit").is_some_and(is_off));
    let discards =
        options(vm, "global").iter().any(|v| v.contains("kvm-pit.lost_tick_policy=discard"));
    if !pit_off && !discards {
        inhibits.push("the PIT's reinjection");
    }
    let fact =
        said(vm, if inhibits.is_empty() { "no inhibit".to_owned() } else { inhibits.join(", ") });
    if inhibits.is_empty() {
        return Found::ok("nothing on the command line inhibits AVIC").seen(fact);
    }
    let found = Found::costs(format!("inhibits AVIC: {}", inhibits.join(", "))).seen(fact);
    if inhibits == ["SEV"] {
        found
    } else {
        found.fix(Fix::Vmm("-machine pit=off (or -global kvm-pit.lost_tick_policy=discard), and -cpu without hv-synic"))
    }
}

pub(super) fn pv_ipi(view: &View, vm: &VmProcess) -> Found {
    if !vmm::kind(vm).is_private() {
        match view.switch(files::IPIV) {
            Ok((true, fact)) => {
                return Found::not_applicable("the processor virtualizes IPIs").seen(fact);
            }
            Err(found) if found.verdict == Verdict::Unknown => return found,
            _ => {}
        }
    }
    if !vmm::is_qemu(vm) {
        return Found::unknown(
            "paravirtual IPIs are a setting of the VMM, and only QEMU's are known",
        )
        .seen(said(vm, "not QEMU"));
    }
    let cpu = options(vm, "cpu");
    let off = |value: &&str| {
        property(value, "kvm-pv-ipi").is_some_and(is_off)
            || property(value, "kvm").is_some_and(is_off)
            || value.split(',').any(|word| word == "-kvm-pv-ipi")
    };
    match cpu.iter().find(|value| off(value)) {
        Some(value) => Found::costs("the guest cannot send many IPIs with one hypercall")
            .seen(said(vm, format!("-cpu {value}")))
            .fix(Fix::Vmm("-cpu ...,kvm=on,kvm-pv-ipi=on")),
        None => {
            Found::ok("offered to the guest (QEMU's default); no file shows whether it is used")
                .seen(said(vm, "no kvm-pv-ipi=off"))
        }
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
        _ if !is_number => Found::unknown("the setting has an unknown value"),
        _ if is_default => Found::ok("spinning vCPUs yield, by the kernel's defaults"),
        Ok(false) => Found::not_applicable("the processor cannot detect a spinning vCPU"),
        _ if facts.iter().any(|fact| fact.value.as_deref() == Ok("0")) => {
            let what = "spinning vCPUs do not yield: correct only if each has its own CPU";
            Found::costs(what).fix(Fix::Advice("take ple_gap, ple_window, pause_filter_thresh and pause_filter_count out of modprobe.d"))
        }
        _ => Found::costs("spinning vCPUs do not yield by the kernel's defaults")
            .fix(Fix::Advice("take ple_gap, ple_window, pause_filter_thresh and pause_filter_count out of modprobe.d")),
    };
    facts.into_iter().fold(found, Found::seen)
}
