//! Windows guests, by QEMU's command line: Hyper-V's enlightenments (QEMU docs/system/i386/hyperv.rst) and the processor model.

use vmtax_events::setting::{Unknown, VmProcess, files};

use super::view::{AuditView, flag_fact, has_flag};
use super::vmm::{is_off, is_qemu, is_windows, options, property, said};
use super::{CheckFound, FoundSetting, QemuStart, SeenSetting, Vendor};
use crate::remedy::RemedyId;

/// What Windows needs for its timers: without them it uses the HPET or the RTC.
const OF_TIMERS: [&str; 4] = ["hv-vpindex", "hv-synic", "hv-time", "hv-stimer"];
/// What QEMU's document recommends for every guest of several vCPUs besides.
const OF_IPIS: [&str; 2] = ["hv-tlbflush", "hv-ipi"];

/// Whether a VM has an enlightenment, in either spelling.
fn has(vm: &VmProcess, name: &str) -> bool {
    let other = name.replace('-', "_");
    let on = |value: &&str| {
        let named = [name, other.as_str()];
        let switch = named.iter().find_map(|name| property(value, name));
        let bare = value.split(',').any(|word| named.contains(&word.trim_start_matches('+')));
        bare || switch.is_some_and(|switch| !is_off(switch))
    };
    cpus(vm).iter().any(on)
}

/// The value of `-cpu` that is in force: the last, as of each option of QEMU that is no list.
fn cpus(vm: &VmProcess) -> Vec<&str> {
    options(vm, "cpu").pop().into_iter().collect()
}

/// Windows 7 or Server 2008 R2, by its name: they spin at their boot with UEFI firmware and enlightenments (Launchpad bug 1593605).
fn is_windows_7(vm: &VmProcess) -> bool {
    let name = vm.name.to_lowercase().replace([' ', '-', '_', '.'], "");
    ["win7", "windows7", "2008r2", "w2k8r2"].iter().any(|known| name.contains(known))
}

fn has_uefi(vm: &VmProcess) -> bool {
    options(vm, "drive").iter().any(|value| property(value, "if") == Some("pflash"))
        || options(vm, "bios").iter().any(|value| value.contains("OVMF"))
        || options(vm, "machine").iter().any(|value| property(value, "pflash0").is_some())
}

/// Why nothing can be said of a guest; that it is not Windows.
fn other_guest(vm: &VmProcess) -> Option<CheckFound> {
    match &vm.arguments.value {
        Err(_) => Some(CheckFound::unread(said(vm, String::new()))),
        Ok(_) if !is_qemu(vm) => Some(
            CheckFound::unknown(FoundSetting::WindowsOfOtherVmm)
                .seen(said(vm, SeenSetting::NotQemu)),
        ),
        Ok(_) if is_windows(vm) => None,
        // macOS wants this device.
        Ok(_) if options(vm, "device").iter().any(|v| v.starts_with("isa-applesmc")) => {
            Some(CheckFound::not_applicable(FoundSetting::NotWindows))
        }
        Ok(_) => Some(perhaps(vm)),
    }
}

fn perhaps(vm: &VmProcess) -> CheckFound {
    let Some(seen) = like_windows(vm) else {
        return CheckFound::not_applicable(FoundSetting::NotWindows);
    };
    let what = if vm.is_part() {
        FoundSetting::PerhapsWindowsOfPart
    } else {
        FoundSetting::PerhapsWindows
    };
    CheckFound::unknown(what).seen(said(vm, seen)).remedy(RemedyId::HvStimer)
}

/// What suggests Windows: it keeps its clock in local time, and some VMs are named by it. Other guests may have both.
pub(super) fn like_windows(vm: &VmProcess) -> Option<String> {
    if options(vm, "rtc").iter().any(|value| property(value, "base") == Some("localtime")) {
        return Some("-rtc base=localtime".to_owned());
    }
    is_named_windows(&vm.name).then(|| format!("-name {}", vm.name))
}

/// A word of the name is `windows`, or `win` or `w` with a version: `win10`, `w2k12`.
fn is_named_windows(name: &str) -> bool {
    let name = name.to_lowercase();
    name.split(|letter: char| !letter.is_ascii_alphanumeric()).any(|word| {
        let version = word
            .strip_prefix("windows")
            .or_else(|| word.strip_prefix("win"))
            .or_else(|| word.strip_prefix("w").filter(|rest| rest.starts_with("2k")));
        word == "windows"
            || version
                .is_some_and(|rest| rest == "xp" || rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

pub(super) fn enlightenments(view: &AuditView, vm: &VmProcess) -> CheckFound {
    if let Some(found) = other_guest(vm) {
        return found;
    }
    let is_enlightened = |value: &&str| value.contains("hv-") || value.contains("hv_");
    if is_windows_7(vm) && has_uefi(vm) {
        let fact = said(vm, "OVMF and Hyper-V's enlightenments".to_owned());
        return CheckFound::costs(FoundSetting::OldWindowsOnUefi).seen(fact).fix(super::Fix::Vmm(
            QemuStart::With("-cpu without hv-..., or SeaBIOS in place of OVMF"),
        ));
    }
    if !cpus(vm).iter().any(is_enlightened) {
        let fact = said(vm, "several -cpu".to_owned());
        return CheckFound::costs(FoundSetting::CpuOverridden)
            .seen(fact)
            .fix(super::Fix::Advice(super::ManualAdvice::OneCpuOption));
    }
    let lacks = |names: &[&'static str]| -> Vec<&'static str> {
        names.iter().copied().filter(|name| !has(vm, name)).collect()
    };
    // What a part of a configuration lacks may be in another part, unless it says that it is off.
    let is_said_off = |names: &[&'static str]| {
        let is_off =
            |name: &&str| cpus(vm).iter().any(|value| property(value, name).is_some_and(is_off));
        names.iter().any(is_off)
    };
    let costs = |what, lacking: &[&'static str]| {
        if vm.is_part() && !is_said_off(lacking) {
            CheckFound::unknown(what)
        } else {
            CheckFound::costs(what)
        }
    };
    let all = has(vm, "hv-passthrough");
    let timers = lacks(&OF_TIMERS);
    if !all && !timers.is_empty() {
        let found = costs(FoundSetting::WindowsTimers, &timers);
        return found.seen(said(vm, SeenSetting::Lacks(timers))).remedy(RemedyId::HvStimer);
    }
    let beside_apic = has(vm, "hv-synic") || has(vm, "hv-vapic");
    let (path, apic) = match view.vendor {
        Some(Vendor::Amd) => (files::AVIC, "avic"),
        _ => (files::APICV, "apicv"),
    };
    let virtual_apic = view.switch(path).is_ok_and(|(on, _)| on);
    let deprecates = all || has(vm, "hv-apicv") || has(vm, "hv-avic");
    if beside_apic && virtual_apic && !deprecates {
        let fact = said(vm, SeenSetting::Lacks(vec!["hv-apicv"]));
        return CheckFound::costs(FoundSetting::SynicBesideApic(apic))
            .seen(fact)
            .seen(view.host.fact(path))
            .remedy(RemedyId::HvApicv);
    }
    let ipis = lacks(&OF_IPIS);
    if !all && vm.vcpus > 1 && !ipis.is_empty() {
        let found = costs(FoundSetting::WindowsIpis, &ipis);
        return found.seen(said(vm, SeenSetting::Lacks(ipis))).remedy(RemedyId::HvTlbflush);
    }
    CheckFound::ok(FoundSetting::Enlightened)
}

/// QEMU docs/system/i386/hyperv.rst, "hv-frequencies".
pub(super) fn frequencies(_: &AuditView, vm: &VmProcess) -> CheckFound {
    if let Some(found) = other_guest(vm) {
        return found;
    }
    if is_windows_7(vm) && has_uefi(vm) {
        return CheckFound::not_applicable(FoundSetting::OldWindowsOnUefi);
    }
    if has(vm, "hv-passthrough") || has(vm, "hv-frequencies") {
        return CheckFound::ok(FoundSetting::WindowsReadsFrequencies);
    }
    let fact = said(vm, SeenSetting::Lacks(vec!["hv-frequencies"]));
    // Whether its boots matter is not known.
    CheckFound::unknown(FoundSetting::WindowsCalibrates).seen(fact).remedy(RemedyId::HvFrequencies)
}

/// With `-cpu host` Windows sees flags by which it takes the processor for vulnerable, and mitigates that itself
/// (rebjak.com, "Why host CPU type on Proxmox is slower for Windows VMs"; forum.proxmox.com, thread 136059).
pub(super) fn windows_cpu(view: &AuditView, vm: &VmProcess) -> CheckFound {
    if let Some(found) = other_guest(vm) {
        return found;
    }
    let is_host = |value: &&&str| matches!(value.split(',').next(), Some("host" | "max"));
    let cpus = cpus(vm);
    if cpus.iter().any(|value| value.starts_with(',')) {
        return CheckFound::unknown(FoundSetting::ModelNotSaid);
    }
    let Some(model) = cpus.iter().find(is_host) else {
        return CheckFound::ok(FoundSetting::NamedModel)
            .seen(said(vm, "-cpu of a named model".to_owned()));
    };
    let hides = |flag: &str| {
        let minus = format!("-{flag}");
        property(model, flag).is_some_and(is_off) || model.split(',').any(|word| word == minus)
    };
    let shown: Result<Vec<(&str, &str)>, Unknown> =
        [("md_clear", "md-clear"), ("flush_l1d", "flush-l1d")]
            .into_iter()
            .map(|(flag, name)| Ok((has_flag(view.host, "flags", flag)?, flag, name)))
            .filter(|one| one.as_ref().map_or(true, |(has, _, name)| *has && !hides(name)))
            .map(|one| one.map(|(_, flag, name)| (flag, name)))
            .collect();
    let fix = super::Fix::Vmm(QemuStart::With(
        "-cpu host,-md-clear,-flush-l1d, or a named model as x86-64-v3",
    ));
    match shown {
        // A configuration alone: what its host's processor has is not in it.
        Err(_) if vm.pid == 0 && view.host.fact(files::CPUINFO).value.is_err() => {
            CheckFound::unknown(FoundSetting::WindowsMayMitigate)
                .seen(said(vm, "-cpu host".to_owned()))
                .fix(fix)
        }
        Err(_) => CheckFound::unread(view.host.fact(files::CPUINFO)),
        Ok(shown) if shown.is_empty() => {
            CheckFound::ok(FoundSetting::NothingToMitigate).seen(flag_fact(view.host, "md_clear"))
        }
        Ok(_) => CheckFound::costs(FoundSetting::WindowsMitigates)
            .seen(said(vm, "-cpu host".to_owned()))
            .seen(flag_fact(view.host, "md_clear"))
            .fix(fix),
    }
}
