//! Hosts, VMs and guests of arm64: checks of x86 are silent there, and those of arm64 elsewhere.

use super::*;

/// Every check that is asked, and its verdict.
#[test]
fn arm64_systems_have_their_own_checks() {
    let found = verdicts(&MadeRoot::arm64(), Some(&MadeRoot::guest_arm64()));
    let all = checks_of(Isa::Arm);
    assert_eq!(found.keys().copied().collect::<BTreeSet<_>>(), all);
    let mut expected: BTreeMap<&str, CheckVerdict> = all.into_iter().map(|id| (id, O)).collect();
    let others =
        [("disk-cache", N), ("gicv4", N), ("host-pages", U), ("random", N), ("thp-shmem", N)];
    expected.extend(others);
    assert_eq!(found, expected);
    // Of x86 none is left.
    for check in [
        "apicv",
        "avic",
        "ple",
        "nx-huge-pages",
        "hpet",
        "microcode",
        "kernel",
        "nested",
        "tsc-deadline",
    ] {
        assert!(checks_of(Isa::Vmx).contains(check) && !found.contains_key(check), "{check}");
    }
}

#[test]
fn settings_of_kvm_on_arm64_are_judged() {
    let cmdline = "/proc/cmdline";
    let pmd = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    for (check, path, text, expected) in [
        ("kvm-arm-mode", cmdline, "root=/dev/sda1", O),
        ("kvm-arm-mode", cmdline, "kvm-arm.mode=nested", O),
        ("kvm-arm-mode", cmdline, "kvm-arm.mode=nvhe", C),
        ("kvm-arm-mode", cmdline, "kvm-arm.mode=protected", C),
        ("kvm-arm-mode", cmdline, "kvm-arm.mode=protected kvm-arm.mode=nested", O),
        ("kvm-arm-mode", cmdline, "kvm-arm.mode=none", N),
        ("kvm-arm-mode", cmdline, "kvm-arm.mode=vhe", U),
        ("page-size", pmd, "2097152", O),
        ("page-size", pmd, "33554432", O),
        ("page-size", pmd, "536870912", O),
        ("page-size", pmd, "4096", U),
        ("page-size", pmd, "-", U),
        ("wfe-traps", cmdline, "kvm-arm.wfe_trap_policy=trap", C),
        ("wfe-traps", cmdline, "kvm-arm.wfe_trap_policy=notrap", O),
        ("wfe-traps", cmdline, "kvm-arm.wfe_trap_policy=maybe", U),
        ("wfe-traps", cmdline, "quiet", O),
        ("gic-traps", cmdline, "kvm-arm.vgic_v3_group1_trap=1", C),
        ("gic-traps", cmdline, "kvm-arm.vgic_v3_common_trap=0", O),
        ("gicv4", cmdline, "kvm-arm.vgic_v4_enable=1", O),
        ("gicv4", cmdline, "quiet", N),
    ] {
        let found = verdicts(&MadeRoot::arm64().with(path, text), None);
        assert_eq!(found[check], expected, "{check}: {text}");
    }
}

#[test]
fn options_of_vms_of_arm64_are_judged() {
    for (words, check, expected) in [
        ("-device vfio-pci,host=01:00.0", "gicv4", U),
        ("-device virtio-net-pci", "gicv4", N),
        ("-cpu host,kvm-steal-time=off", "steal-time", C),
        ("-cpu host", "steal-time", O),
    ] {
        let host = MadeRoot::arm64().qemu(&format!("qemu-system-aarch64 -accel kvm {words}"));
        assert_eq!(verdicts(&host, None)[check], expected, "{words}");
    }
    // Of another VMM it is not known.
    let other = MadeRoot::arm64().qemu("firecracker --api-sock s");
    assert_eq!(verdicts(&other, None)["steal-time"], U);
}
