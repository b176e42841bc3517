//! Settings of KVM on arm64. Words of its command line are of Linux Documentation/admin-guide/kernel-parameters.txt.

use vmtax_events::setting::{Unknown, VmProcess, files};

use super::view::{AuditView, argument, argument_fact};
use super::vmm::{is_off, is_qemu, object_type, options, property, said};
use super::{CheckFound, Fix, FoundSetting, ManualAdvice, SeenSetting};

const MODE: &str = "kvm-arm.mode";
const WFE: &str = "kvm-arm.wfe_trap_policy";
const GICV4: &str = "kvm-arm.vgic_v4_enable";
/// Each lets accesses of some registers of the GIC's CPU interface be exits.
const GIC_TRAPS: [&str; 3] =
    ["kvm-arm.vgic_v3_group0_trap", "kvm-arm.vgic_v3_group1_trap", "kvm-arm.vgic_v3_common_trap"];

/// Bytes that one entry of the second lowest table maps, and the page size with which it is so (Linux
/// Documentation/arch/arm64/hugetlbpage.rst, "PMD").
const PMD: [(u64, u64); 3] = [(2 << 20, 4 << 10), (32 << 20, 16 << 10), (512 << 20, 64 << 10)];

/// The last of several words counts (arch/arm64/kvm/arm.c, `early_kvm_mode_cfg`).
pub(super) fn mode(view: &AuditView) -> CheckFound {
    let fact = argument_fact(view.host, MODE);
    let Ok(cmdline) = view.host.text(files::CMDLINE) else { return CheckFound::unread(fact) };
    let without = Fix::Advice(ManualAdvice::WithoutWord(MODE));
    match argument(cmdline, MODE) {
        None => CheckFound::ok(FoundSetting::KvmAtEl2),
        Some("nested") => CheckFound::ok(FoundSetting::KvmNested),
        Some("nvhe") => CheckFound::costs(FoundSetting::HostAtEl1).fix(without),
        Some("protected") => CheckFound::costs(FoundSetting::ProtectedHost)
            .fix(Fix::Advice(ManualAdvice::Unprotected)),
        Some("none") => CheckFound::not_applicable(FoundSetting::KvmOff),
        Some(_) => return CheckFound::strange(fact),
    }
    .seen(fact)
}

/// The size of pages, which no file has, follows from that of transparent huge pages.
pub(super) fn page_size(view: &AuditView) -> CheckFound {
    let fact = view.host.fact(files::THP_SIZE);
    let size = match fact.value.as_deref() {
        Ok(text) => text.parse::<u64>().ok(),
        Err(_) => return CheckFound::unread(fact),
    };
    match PMD.into_iter().find(|(huge, _)| Some(*huge) == size) {
        Some((huge, page)) => CheckFound::ok(FoundSetting::PageSize { page, huge }).seen(fact),
        None => CheckFound::strange(fact),
    }
}

/// From Linux 6.11 on; without the word WFE traps where other tasks wait for the CPU (arch/arm64/kvm/arm.c, `kvm_vcpu_should_clear_twe`).
pub(super) fn wfe_traps(view: &AuditView) -> CheckFound {
    let fact = argument_fact(view.host, WFE);
    let Ok(cmdline) = view.host.text(files::CMDLINE) else { return CheckFound::unread(fact) };
    match argument(cmdline, WFE) {
        None => CheckFound::ok(FoundSetting::WfeByTasks),
        Some("notrap") => CheckFound::ok(FoundSetting::WfeNeverTraps),
        Some("trap") => CheckFound::costs(FoundSetting::WfeAlwaysTraps)
            .fix(Fix::Advice(ManualAdvice::WithoutWord(WFE))),
        Some(_) => return CheckFound::strange(fact),
    }
    .seen(fact)
}

pub(super) fn gic_traps(view: &AuditView) -> CheckFound {
    let cmdline = match view.host.text(files::CMDLINE) {
        Ok(cmdline) => cmdline,
        Err(_) => return CheckFound::unread(argument_fact(view.host, GIC_TRAPS[0])),
    };
    let is_on = |word: &&&str| {
        argument(cmdline, word).is_some_and(|value| matches!(value, "1" | "y" | "Y" | "on"))
    };
    match GIC_TRAPS.iter().find(is_on) {
        Some(word) => CheckFound::costs(FoundSetting::GicTraps)
            .seen(argument_fact(view.host, word))
            .fix(Fix::Advice(ManualAdvice::WithoutWord(word))),
        None => {
            CheckFound::ok(FoundSetting::NoGicTraps).seen(argument_fact(view.host, GIC_TRAPS[0]))
        }
    }
}

/// It is off unless asked for (arch/arm64/kvm/vgic/vgic-v3.c, `gicv4_enable`), and concerns interrupts of passed-through devices.
pub(super) fn gicv4(view: &AuditView) -> CheckFound {
    let fact = argument_fact(view.host, GICV4);
    let Ok(cmdline) = view.host.text(files::CMDLINE) else { return CheckFound::unread(fact) };
    let passes = |vm: &VmProcess| {
        options(vm, "device").iter().any(|value| object_type(value).starts_with("vfio-"))
    };
    match argument(cmdline, GICV4) {
        Some("1" | "y" | "Y" | "on") => CheckFound::ok(FoundSetting::Gicv4),
        _ if view.vms.iter().any(passes) => {
            CheckFound::unknown(FoundSetting::NoGicv4).fix(Fix::Kernel(format!("{GICV4}=1")))
        }
        _ if view.all_vms(|vm| vm.arguments.value.is_ok() && !vm.is_part()) => {
            CheckFound::not_applicable(FoundSetting::NothingPassedThrough)
        }
        _ => CheckFound::unknown(FoundSetting::PerhapsPassedThrough),
    }
    .seen(fact)
}

/// QEMU docs/system/arm/cpu-features.rst: on by default where the host's kernel has it (Linux 5.10).
pub(super) fn steal_time(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if vm.arguments.value.is_err() {
        return CheckFound::unread(said(vm, String::new()));
    }
    if !is_qemu(vm) {
        return CheckFound::unknown(FoundSetting::StealTimeOfOtherVmm)
            .seen(said(vm, SeenSetting::NotQemu));
    }
    let cpus = options(vm, "cpu");
    match cpus.iter().find_map(|value| property(value, "kvm-steal-time")) {
        Some(value) if is_off(value) => CheckFound::costs(FoundSetting::NoStealTime)
            .seen(said(vm, "kvm-steal-time=off".to_owned()))
            .fix(Fix::Vmm(super::QemuStart::With("-cpu ...,kvm-steal-time=on (its default)"))),
        _ if vm.is_part() => CheckFound::unread(vmtax_events::setting::Fact::new(
            vm.arguments.path.clone(),
            Err::<String, _>(Unknown::NotRead),
        )),
        _ => CheckFound::ok(FoundSetting::StealTime)
            .seen(said(vm, SeenSetting::Without("kvm-steal-time=off"))),
    }
}
