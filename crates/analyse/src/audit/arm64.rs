//! Settings of KVM on arm64. Words of its command line are of Linux Documentation/admin-guide/kernel-parameters.txt.

use vmtax_events::setting::{Unknown, VmProcess, files};

use super::view::{View, argument, argument_fact};
use super::vmm::{is_off, is_qemu, object_type, options, property, said};
use super::{Advice, Fix, Found, Seen, What};

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
pub(super) fn mode(view: &View) -> Found {
    let fact = argument_fact(view.host, MODE);
    let Ok(cmdline) = view.host.text(files::CMDLINE) else { return Found::unread(fact) };
    let without = Fix::Advice(Advice::WithoutWord(MODE));
    match argument(cmdline, MODE) {
        None => Found::ok(What::KvmAtEl2),
        Some("nested") => Found::ok(What::KvmNested),
        Some("nvhe") => Found::costs(What::HostAtEl1).fix(without),
        Some("protected") => {
            Found::costs(What::ProtectedHost).fix(Fix::Advice(Advice::Unprotected))
        }
        Some("none") => Found::not_applicable(What::KvmOff),
        Some(_) => return Found::strange(fact),
    }
    .seen(fact)
}

/// The size of pages, which no file has, follows from that of transparent huge pages.
pub(super) fn page_size(view: &View) -> Found {
    let fact = view.host.fact(files::THP_SIZE);
    let size = match fact.value.as_deref() {
        Ok(text) => text.parse::<u64>().ok(),
        Err(_) => return Found::unread(fact),
    };
    match PMD.into_iter().find(|(huge, _)| Some(*huge) == size) {
        Some((huge, page)) => Found::ok(What::PageSize { page, huge }).seen(fact),
        None => Found::strange(fact),
    }
}

/// From Linux 6.11 on; without the word WFE traps where other tasks wait for the CPU (arch/arm64/kvm/arm.c, `kvm_vcpu_should_clear_twe`).
pub(super) fn wfe_traps(view: &View) -> Found {
    let fact = argument_fact(view.host, WFE);
    let Ok(cmdline) = view.host.text(files::CMDLINE) else { return Found::unread(fact) };
    match argument(cmdline, WFE) {
        None => Found::ok(What::WfeByTasks),
        Some("notrap") => Found::ok(What::WfeNeverTraps),
        Some("trap") => {
            Found::costs(What::WfeAlwaysTraps).fix(Fix::Advice(Advice::WithoutWord(WFE)))
        }
        Some(_) => return Found::strange(fact),
    }
    .seen(fact)
}

pub(super) fn gic_traps(view: &View) -> Found {
    let cmdline = match view.host.text(files::CMDLINE) {
        Ok(cmdline) => cmdline,
        Err(_) => return Found::unread(argument_fact(view.host, GIC_TRAPS[0])),
    };
    let is_on = |word: &&&str| {
        argument(cmdline, word).is_some_and(|value| matches!(value, "1" | "y" | "Y" | "on"))
    };
    match GIC_TRAPS.iter().find(is_on) {
        Some(word) => Found::costs(What::GicTraps)
            .seen(argument_fact(view.host, word))
            .fix(Fix::Advice(Advice::WithoutWord(word))),
        None => Found::ok(What::NoGicTraps).seen(argument_fact(view.host, GIC_TRAPS[0])),
    }
}

/// It is off unless asked for (arch/arm64/kvm/vgic/vgic-v3.c, `gicv4_enable`), and concerns interrupts of passed-through devices.
pub(super) fn gicv4(view: &View) -> Found {
    let fact = argument_fact(view.host, GICV4);
    let Ok(cmdline) = view.host.text(files::CMDLINE) else { return Found::unread(fact) };
    let passes = |vm: &VmProcess| {
        options(vm, "device").iter().any(|value| object_type(value).starts_with("vfio-"))
    };
    match argument(cmdline, GICV4) {
        Some("1" | "y" | "Y" | "on") => Found::ok(What::Gicv4),
        _ if view.vms.iter().any(passes) => {
            Found::unknown(What::NoGicv4).fix(Fix::Kernel(format!("{GICV4}=1")))
        }
        _ if view.all_vms(|vm| vm.arguments.value.is_ok() && !vm.is_part()) => {
            Found::not_applicable(What::NothingPassedThrough)
        }
        _ => Found::unknown(What::PerhapsPassedThrough),
    }
    .seen(fact)
}

/// QEMU docs/system/arm/cpu-features.rst: on by default where the host's kernel has it (Linux 5.10).
pub(super) fn steal_time(_: &View, vm: &VmProcess) -> Found {
    if vm.arguments.value.is_err() {
        return Found::unread(said(vm, String::new()));
    }
    if !is_qemu(vm) {
        return Found::unknown(What::StealTimeOfOtherVmm).seen(said(vm, Seen::NotQemu));
    }
    let cpus = options(vm, "cpu");
    match cpus.iter().find_map(|value| property(value, "kvm-steal-time")) {
        Some(value) if is_off(value) => Found::costs(What::NoStealTime)
            .seen(said(vm, "kvm-steal-time=off".to_owned()))
            .fix(Fix::Vmm(super::Start::With("-cpu ...,kvm-steal-time=on (its default)"))),
        _ if vm.is_part() => Found::unread(vmtax_events::setting::Fact::new(
            vm.arguments.path.clone(),
            Err::<String, _>(Unknown::NotRead),
        )),
        _ => Found::ok(What::StealTime).seen(said(vm, Seen::Without("kvm-steal-time=off"))),
    }
}
