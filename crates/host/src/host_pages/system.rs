//! Whether this system is a VM, and of what kind, by files that every user can read.

use std::fs;
use std::path::Path;

use vmtax_events::setting::cpuinfo::has_flag;
use vmtax_events::setting::files;
use vmtax_events::setting::host_pages::{ConfidentialSigns, SystemKind, VIRTUAL};

const DEVICE_TREE: &str = "/proc/device-tree/hypervisor";
const PRODUCT: &str = "/sys/class/dmi/id/product_name";
const VENDOR: &str = "/sys/class/dmi/id/sys_vendor";

/// A file of a confidential guest, to Linux 6.10 and since.
const SNP: [&str; 2] = ["/sys/devices/platform/sev-guest", "/sys/devices/system/cpu/sev/vmpl"];

/// Whether this system is a VM.
pub(super) fn machine() -> SystemKind {
    let info = fs::read_to_string(files::CPUINFO).unwrap_or_default();
    let dmi = [PRODUCT, VENDOR].map(|path| (path, fs::read_to_string(path).unwrap_or_default()));
    of_texts(&info, Path::new(DEVICE_TREE).exists(), &dmi)
}

fn of_texts(cpuinfo: &str, has_node: bool, dmi: &[(&'static str, String)]) -> SystemKind {
    if has_flag(cpuinfo, "hypervisor") {
        return SystemKind::Vm(files::CPUINFO);
    }
    // x86 alone has flags, and the bit is in CPUID since there are VMs.
    if has_flag(cpuinfo, "fpu") {
        return SystemKind::Bare(files::CPUINFO);
    }
    if has_node {
        return SystemKind::Vm(DEVICE_TREE);
    }
    let is_virtual =
        |text: &str| VIRTUAL.iter().any(|beginning| text.trim().starts_with(beginning));
    match dmi.iter().find(|(_, text)| is_virtual(text)) {
        Some((path, _)) => SystemKind::Vm(path),
        None => SystemKind::Unknown,
    }
}

/// What the guest shows of its confidentiality.
pub(super) fn confidential() -> ConfidentialSigns {
    let info = fs::read_to_string(files::CPUINFO).unwrap_or_default();
    let flag = |flag: &str| has_flag(&info, flag);
    ConfidentialSigns {
        tdx: flag("tdx_guest"),
        snp: SNP.iter().any(|path| Path::new(path).exists()),
        sev_flag: flag("sev") || flag("sev_es") || flag("sev_snp"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_shows_in_flags_device_tree_or_dmi() {
        let x86 = |flags: &str| format!("processor\t: 0\nflags\t\t: fpu {flags}\n");
        let arm = "processor\t: 0\nFeatures\t: fp asimd evtstrm\n".to_owned();
        let none = [(PRODUCT, String::new()), (VENDOR, "Ampere(R)\n".to_owned())];
        let qemu = [(PRODUCT, "KVM Virtual Machine\n".to_owned()), (VENDOR, "QEMU\n".to_owned())];
        let metal = [(PRODUCT, "c7g.metal\n".to_owned()), (VENDOR, "Amazon EC2\n".to_owned())];
        for (cpuinfo, has_node, dmi, expected) in [
            (x86("hypervisor"), false, &none, SystemKind::Vm(files::CPUINFO)),
            (x86("vmx"), false, &none, SystemKind::Bare(files::CPUINFO)),
            (arm.clone(), true, &none, SystemKind::Vm(DEVICE_TREE)),
            (arm.clone(), false, &qemu, SystemKind::Vm(PRODUCT)),
            (arm.clone(), false, &metal, SystemKind::Unknown),
            (arm, false, &none, SystemKind::Unknown),
            (String::new(), false, &none, SystemKind::Unknown),
        ] {
            assert_eq!(of_texts(&cpuinfo, has_node, dmi), expected, "{cpuinfo} {dmi:?}");
        }
    }
}
