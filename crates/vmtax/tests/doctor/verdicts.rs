//! Every row of the table on made-up systems, good and bad: exact verdicts.

mod arm64;
mod memory;

use std::collections::{BTreeMap, BTreeSet};

use vmtax_analyse::audit::{CheckVerdict, RULES, SeenSetting};
use vmtax_events::Isa;
use vmtax_report::doctor::words;

use crate::root::{MadeRoot, QEMU, verdicts};

const C: CheckVerdict = CheckVerdict::Costs;
const U: CheckVerdict = CheckVerdict::Unknown;
const O: CheckVerdict = CheckVerdict::Ok;
const N: CheckVerdict = CheckVerdict::NotApplicable;
const RELEASE: &str = "/proc/sys/kernel/osrelease";
const CGROUP: &str =
    "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nsdelegate 0 0\n";
const FAVOURED: &str = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,favordynmods 0 0\n";

/// The checks of an ISA.
fn checks_of(isa: Isa) -> BTreeSet<&'static str> {
    let checks = RULES.iter().flat_map(|rule| rule.checks);
    checks.filter(|check| check.isas.have(isa)).map(|check| check.id.name()).collect()
}

/// On the good hosts nothing costs anything, and what is unknown is unknown everywhere.
#[test]
fn good_systems_have_nothing_to_change() {
    let intel = [
        ("avic", N),
        ("avic-inhibit", N),
        ("cgroup-moves", N),
        ("host-pages", U),
        ("hpet", N),
        ("hv-enlightenments", N),
        ("hv-frequencies", N),
        ("kernel", N),
        ("mbec", N),
        ("mediated-pmu", N),
        ("pv-ipi", N),
        ("private-pages", N),
        ("rtc-catch-up", N),
        ("slot-waits", N),
        ("snp-firmware", N),
        ("tdx-module", N),
        ("thp-shmem", N),
        ("vgif", N),
        ("vls", N),
        ("vnmi", N),
        ("windows-cpu", N),
    ];
    let amd = [
        ("apicv", N),
        ("cgroup-moves", N),
        ("host-pages", U),
        ("hpet", N),
        ("hv-enlightenments", N),
        ("hv-frequencies", N),
        ("ipiv", N),
        ("kernel", N),
        ("mbec", N),
        ("mediated-pmu", N),
        ("preemption-timer", N),
        ("private-pages", N),
        ("rtc-catch-up", N),
        ("shadow-vmcs", N),
        ("slot-waits", N),
        ("snp-firmware", N),
        ("tdx-module", N),
        ("thp-shmem", N),
        ("vpid", N),
        ("windows-cpu", N),
    ];
    for (name, host, others) in
        [("intel", MadeRoot::intel(), &intel[..]), ("amd", MadeRoot::amd(), &amd[..])]
    {
        // The guest polls by itself.
        let host = host.with("/sys/module/kvm/parameters/halt_poll_ns", "0\n");
        let found = verdicts(&host, Some(&MadeRoot::guest()));
        let all: BTreeSet<&str> = checks_of(Isa::Vmx);
        assert_eq!(found.keys().copied().collect::<BTreeSet<_>>(), all, "{name}");
        let mut expected: BTreeMap<&str, CheckVerdict> =
            all.into_iter().map(|id| (id, O)).collect();
        expected.extend(others.iter().copied());
        assert_eq!(found, expected, "{name}");
    }
}

/// A check, the host, what is changed of it (`-` removes), and the verdict.
type VerdictCase =
    (&'static str, fn() -> MadeRoot, &'static [(&'static str, &'static str)], CheckVerdict);

const THP: &str = "/sys/kernel/mm/transparent_hugepage/";
const KVM: &str = "/sys/module/kvm/parameters/";
const KVM_INTEL: &str = "/sys/module/kvm_intel/parameters/";
const KVM_AMD: &str = "/sys/module/kvm_amd/parameters/";
const CPU: &str = "/sys/devices/system/cpu/";
const VM: &str = "/proc/4711/";
const COUNTERS: &str = "/sys/kernel/debug/kvm/4711-11/";
const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// The paths in the table begin with one of these words.
fn path(short: &str) -> String {
    let (start, rest) = short.split_once(' ').unwrap_or(("", short));
    let start = match start {
        "thp" => THP,
        "kvm" => KVM,
        "intel" => KVM_INTEL,
        "amd" => KVM_AMD,
        "cpu" => CPU,
        "vm" => VM,
        "count" => COUNTERS,
        _ => "",
    };
    format!("{start}{rest}")
}

fn changed(root: MadeRoot, changes: &[(&str, &str)]) -> MadeRoot {
    changes.iter().fold(root, |root, (short, text)| match *text {
        "-" => root.without(&path(short)),
        text if *short == "vm cmdline" => root.qemu(text),
        text => root.with(&path(short), text),
    })
}

fn check(cases: &[VerdictCase], with: fn(&MadeRoot) -> BTreeMap<&'static str, CheckVerdict>) {
    let mut wrong = Vec::new();
    for (id, base, changes, expected) in cases {
        let found = with(&changed(base(), changes));
        if found.get(id) != Some(expected) {
            wrong.push(format!("{id} {changes:?}: {:?} and not {expected:?}", found.get(id)));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

const I: fn() -> MadeRoot = MadeRoot::intel;
const A: fn() -> MadeRoot = MadeRoot::amd;

const TD: &str =
    "qemu-system-x86_64 -object tdx-guest,id=t -machine q35,confidential-guest-support=t";
const SNP: &str = r#"qemu-system-x86_64 -object {"qom-type":"sev-snp-guest","id":"s"}"#;
const SEV: &str = "qemu-system-x86_64 -object sev-guest,id=s";
const SHARED: &str = "7f00-7f01 rw-s 0 00:01 1 /memfd:mem (deleted)\nSize: 1048576 kB\nRss: 1048576 kB\nAnonymous: 0 kB\n\
    ShmemPmdMapped: 0 kB\nTHPeligible: 0\n";
const SMALL: &str = "7f00-7f01 rw-p 0 00:00 0\nSize: 1048576 kB\nRss: 1048576 kB\nAnonymous: 1048576 kB\nAnonHugePages: 2048 kB\n";
const HUGETLB: &str = "7f00-7f01 rw-s 0 00:0f 1 /dev/hugepages/x\nSize: 1048576 kB\nRss: 0 kB\nShared_Hugetlb: 1048576 kB\n";
const UNTOUCHED: &str = "7f00-7f01 rw-p 0 00:00 0\nSize: 1048576 kB\nRss: 0 kB\n";

#[test]
fn processors_and_placement() {
    check(
        &[
            ("governor", I, &[], O),
            ("governor", I, &[("cpu cpu1/cpufreq/scaling_governor", "schedutil\n")], C),
            ("governor", I, &[("cpu cpu0/cpufreq", "-"), ("cpu cpu1/cpufreq", "-")], N),
            ("turbo", I, &[("cpu intel_pstate/no_turbo", "0\n")], O),
            ("turbo", I, &[("cpu cpufreq/boost", "1\n")], O),
            ("turbo", I, &[("cpu cpufreq/boost", "x\n")], U),
            ("turbo", I, &[("cpu cpufreq/boost", "-")], N),
            ("idle-states", I, &[], O),
            ("idle-states", I, &[("cpu cpu0/cpuidle/state1/disable", "-")], U),
            ("idle-states", I, &[("cpu cpu0/cpuidle", "-")], N),
            ("vcpu-pinning", I, &[], O),
            (
                "vcpu-pinning",
                I,
                &[("vm task/4713/status", "Name:\tCPU 1/KVM\nCpus_allowed_list:\t4\n")],
                C,
            ),
            (
                "vcpu-pinning",
                I,
                &[("vm task/4713/status", "Name:\tCPU 1/KVM\nCpus_allowed_list:\t5-6\n")],
                C,
            ),
            (
                "vcpu-pinning",
                I,
                &[("vm task/4713/status", "Name:\tCPU 1/KVM\nCpus_allowed_list:\tmany\n")],
                U,
            ),
            ("vcpu-pinning", I, &[("vm task/4712", "-"), ("vm task/4713", "-")], U),
            ("vcpu-pinning", I, &[("vm task", "-")], U),
            ("iothread-pinning", I, &[], O),
            (
                "iothread-pinning",
                I,
                &[("vm task/4714/status", "Name:\tIO io0\nCpus_allowed_list:\t5-6\n")],
                C,
            ),
            (
                "iothread-pinning",
                I,
                &[("vm task/4714/status", "Name:\tIO io0\nCpus_allowed_list:\t?\n")],
                U,
            ),
            ("iothread-pinning", I, &[("vm task/4714", "-")], N),
            ("iothread-pinning", I, &[("vm task", "-")], U),
            ("numa", I, &[], O),
            ("numa", I, &[("vm numa_maps", "7f00 default N0=262144 kernelpagesize_kB=4\n")], C),
            ("numa", I, &[("vm numa_maps", "7f00 default N0=4 N1=96 kernelpagesize_kB=2048\n")], O),
            ("numa", I, &[("vm numa_maps", "7f00 default N0=6 N1=94 kernelpagesize_kB=2048\n")], C),
            ("numa", I, &[("vm task/4713/status", "Name:\tCPU 1/KVM\nCpus_allowed_list:\t0\n")], C),
            ("numa", I, &[("vm numa_maps", "-")], U),
            ("numa", I, &[("/sys/devices/system/node/node1", "-")], N),
            ("numa", I, &[("/sys/devices/system/node/node1/cpulist", "x\n")], U),
            ("nohz-full", I, &[], O),
            ("nohz-full", I, &[("cpu nohz_full", "  (null)\n")], C),
            ("nohz-full", I, &[("cpu nohz_full", "4\n")], C),
            ("nohz-full", I, &[("cpu nohz_full", "-")], C),
            ("nohz-full", I, &[("cpu nohz_full", "x\n")], U),
            (
                "nohz-full",
                I,
                &[("vm task/4713/status", "Name:\tCPU 1/KVM\nCpus_allowed_list:\t0-7\n")],
                N,
            ),
            ("nohz-full", I, &[("vm task", "-")], U),
            ("isolcpus", I, &[], O),
            ("isolcpus", I, &[("cpu isolated", "\n")], C),
            ("rcu-nocbs", I, &[], O),
            ("rcu-nocbs", I, &[("/proc/cmdline", "quiet\n")], C),
            ("rcu-nocbs", I, &[("/proc/cmdline", "rcu_nocbs=all\n")], O),
            ("rcu-nocbs", I, &[("/proc/cmdline", "nohz_full=4-5\n")], O),
            ("rcu-nocbs", I, &[("/proc/cmdline", "-")], C),
            ("host-clocksource", I, &[], O),
            ("host-clocksource", I, &[(CLOCK, "hpet\n")], C),
            ("host-clocksource", I, &[(CLOCK, "sundial\n")], U),
            ("host-clocksource", I, &[(CLOCK, "-")], N),
        ],
        |host| verdicts(host, None),
    );
}

#[test]
fn interrupts_and_timers() {
    const NO_FEATURES: &str = "vendor_id\t: GenuineIntel\nflags\t\t: fpu vmx\nvmx flags\t: vnmi\n";
    const OLD: &str = "vendor_id\t: GenuineIntel\nflags\t\t: fpu vmx\n";
    const AMD_OLD: &str = "vendor_id\t: AuthenticAMD\nflags\t\t: fpu svm\n";
    check(
        &[
            ("preemption-timer", I, &[("intel preemption_timer", "N\n")], C),
            (
                "preemption-timer",
                I,
                &[("intel preemption_timer", "N\n"), ("/proc/cpuinfo", NO_FEATURES)],
                N,
            ),
            ("preemption-timer", I, &[("intel preemption_timer", "N\n"), ("vm cmdline", TD)], N),
            ("preemption-timer", I, &[("intel preemption_timer", "maybe\n")], U),
            ("preemption-timer", A, &[], N),
            ("apicv", I, &[("intel enable_apicv", "N\n")], C),
            ("apicv", I, &[("intel enable_apicv", "N\n"), ("/proc/cpuinfo", NO_FEATURES)], N),
            ("apicv", I, &[("intel enable_apicv", "N\n"), ("/proc/cpuinfo", OLD)], U),
            ("apicv", A, &[], N),
            ("ipiv", I, &[("intel enable_ipiv", "N\n")], C),
            ("ipiv", I, &[("intel enable_ipiv", "N\n"), ("/proc/cpuinfo", NO_FEATURES)], N),
            ("ipiv", I, &[("intel enable_ipiv", "-")], N),
            ("ipiv", I, &[("intel enable_ipiv", "N\n"), ("vm cmdline", TD)], N),
            ("avic", A, &[], O),
            ("avic", A, &[("amd avic", "N\n")], C),
            ("avic", A, &[("amd avic", "0\n"), ("/proc/cpuinfo", AMD_OLD)], N),
            ("avic", A, &[("amd avic", "N\n"), ("vm cmdline", SNP)], N),
            ("avic", I, &[], N),
            ("avic-inhibit", A, &[], O),
            ("avic-inhibit", A, &[("vm cmdline", "qemu-system-x86_64 -cpu host")], C),
            (
                "avic-inhibit",
                A,
                &[("vm cmdline", "qemu-system-x86_64 -global kvm-pit.lost_tick_policy=discard")],
                O,
            ),
            (
                "avic-inhibit",
                A,
                &[("vm cmdline", "qemu-system-x86_64 -machine q35,pit=off -cpu host,hv-synic=on")],
                C,
            ),
            (
                "avic-inhibit",
                A,
                &[("vm cmdline", "qemu-system-x86_64 -machine q35,pit=off -cpu host,hv_synic")],
                C,
            ),
            ("avic-inhibit", A, &[("amd avic", "N\n")], N),
            ("avic-inhibit", A, &[("vm cmdline", "cloud-hypervisor --cpus boot=2")], U),
            ("avic-inhibit", A, &[("vm cmdline", "-")], U),
            ("pv-ipi", I, &[], N),
            ("pv-ipi", I, &[("intel enable_ipiv", "N\n")], O),
            ("pv-ipi", I, &[("intel enable_ipiv", "?\n")], U),
            ("pv-ipi", A, &[], O),
            ("pv-ipi", A, &[("vm cmdline", "qemu-system-x86_64 -cpu host,kvm-pv-ipi=off")], C),
            ("pv-ipi", A, &[("vm cmdline", "qemu-system-x86_64 -cpu host,kvm=off")], C),
            ("pv-ipi", A, &[("vm cmdline", "firecracker --id x")], U),
            ("ple", I, &[], O),
            ("ple", I, &[("intel ple_gap", "0\n")], C),
            ("ple", I, &[("intel ple_window", "9999\n")], C),
            ("ple", I, &[("intel ple_window", "wide\n")], U),
            ("ple", I, &[("intel ple_gap", "0\n"), ("/proc/cpuinfo", NO_FEATURES)], N),
            ("ple", A, &[], O),
            ("ple", A, &[("amd pause_filter_count", "0\n")], C),
            ("ple", A, &[("amd pause_filter_count", "0\n"), ("/proc/cpuinfo", AMD_OLD)], N),
        ],
        |host| verdicts(host, None),
    );
}

#[test]
fn devices_counters_nesting_and_versions() {
    const USER_NET: &str = "qemu-system-x86_64 -netdev user,id=n0 -device virtio-net-pci,netdev=n0";
    check(
        &[
            ("vhost", I, &[], O),
            ("vhost", I, &[("vm fd/14", "-"), ("vm cmdline", USER_NET)], C),
            ("vhost", I, &[("vm fd/14", "-"), ("vm cmdline", QEMU)], C),
            (
                "vhost",
                I,
                &[
                    ("vm fd/14", "-"),
                    (
                        "vm cmdline",
                        "qemu-system-x86_64 -netdev vhost-user,id=n0 -device virtio-net-pci,netdev=n0",
                    ),
                ],
                O,
            ),
            ("vhost", I, &[("vm cmdline", "qemu-system-x86_64 -device e1000")], N),
            ("vhost", I, &[("vm cmdline", "firecracker")], U),
            ("vhost", I, &[("vm cmdline", "-")], U),
            ("ioeventfd", I, &[], O),
            (
                "ioeventfd",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -device virtio-blk-pci,ioeventfd=off")],
                C,
            ),
            (
                "ioeventfd",
                I,
                &[(
                    "vm cmdline",
                    r#"qemu-system-x86_64 -device {"driver":"virtio-blk-pci","ioeventfd":false}"#,
                )],
                C,
            ),
            ("ioeventfd", I, &[("vm cmdline", "qemu-system-x86_64")], N),
            ("iothread", I, &[], O),
            (
                "iothread",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -device virtio-blk-pci,drive=d")],
                C,
            ),
            ("iothread", I, &[("vm cmdline", "qemu-system-x86_64 -device virtio-net-pci")], N),
            ("enable-pmu", I, &[], O),
            ("enable-pmu", I, &[("kvm enable_pmu", "Y\n")], O),
            (
                "enable-pmu",
                I,
                &[("kvm enable_pmu", "Y\n"), ("vm cmdline", "qemu-system-x86_64 -cpu host")],
                U,
            ),
            ("enable-pmu", I, &[("kvm enable_pmu", "x\n")], U),
            ("nmi-watchdog", I, &[("/proc/sys/kernel/nmi_watchdog", "1\n")], C),
            ("nmi-watchdog", I, &[("/proc/sys/kernel/nmi_watchdog", "2\n")], U),
            ("nmi-watchdog", I, &[("/proc/sys/kernel/nmi_watchdog", "-")], N),
            ("nested", I, &[], O),
            ("nested", I, &[("intel nested", "N\n")], N),
            ("nested", A, &[("amd nested", "0\n")], N),
            ("nested", A, &[("amd nested", "x\n")], U),
            (
                "shadow-vmcs",
                I,
                &[("intel enable_shadow_vmcs", "N\n"), ("count nested_run", "9\n")],
                C,
            ),
            ("shadow-vmcs", I, &[("intel enable_shadow_vmcs", "N\n")], N),
            (
                "shadow-vmcs",
                I,
                &[("intel enable_shadow_vmcs", "N\n"), ("/sys/kernel/debug", "-")],
                U,
            ),
            ("vls", A, &[("amd vls", "0\n"), ("count nested_run", "9\n")], C),
            ("vls", A, &[("amd vls", "0\n")], N),
            ("vgif", A, &[("amd vgif", "0\n"), ("count nested_run", "9\n")], C),
            ("vgif", A, &[("amd vgif", "0\n")], N),
            ("vnmi", A, &[("amd vnmi", "N\n"), ("count nested_run", "9\n")], C),
            ("vnmi", A, &[("amd vnmi", "-")], N),
            ("kernel", I, &[], N),
            ("kernel", I, &[("vm cmdline", TD)], O),
            ("kernel", I, &[("vm cmdline", TD), ("/proc/sys/kernel/osrelease", "6.8.0-rc5")], U),
            ("kernel", A, &[("vm cmdline", SNP), ("/proc/sys/kernel/osrelease", "6.10.2")], U),
            ("kernel", I, &[("/proc/sys/kernel/osrelease", "new")], U),
            ("microcode", I, &[], O),
            ("microcode", I, &[("cpu vulnerabilities/old_microcode", "Vulnerable\n")], C),
            (
                "microcode",
                I,
                &[("cpu vulnerabilities/old_microcode", "Unknown: running under hypervisor\n")],
                N,
            ),
            ("microcode", I, &[("cpu vulnerabilities/old_microcode", "-")], U),
            (
                "microcode",
                I,
                &[(
                    "/proc/cpuinfo",
                    "vendor_id\t: GenuineIntel\nmicrocode\t: 1\n\nmicrocode\t: 2\n",
                )],
                C,
            ),
            ("tdx-module", I, &[("intel tdx", "Y\n")], U),
            (
                "tdx-module",
                I,
                &[("intel tdx", "Y\n"), ("/sys/devices/faux/tdx_host/version", "1.5.24\n")],
                U,
            ),
            ("snp-firmware", A, &[("amd sev_snp", "Y\n")], U),
            ("mitigations", I, &[], O),
            ("mitigations", I, &[("cpu vulnerabilities", "-")], U),
        ],
        |host| verdicts(host, None),
    );
}

const WINDOWS: &str = "qemu-system-x86_64 -smp 4 -cpu Skylake-Server,hv_relaxed,hv_vpindex,hv_time";

#[test]
fn windows_guests_and_device_models() {
    const STIMER: &str =
        "qemu-system-x86_64 -cpu host,hv_vpindex,hv_time,hv_synic,hv-stimer=on,hv-tlbflush,hv-ipi";
    const APICV: &str = "qemu-system-x86_64 -cpu host,-md-clear,hv_vpindex,hv_time,hv_synic,hv_stimer,hv-apicv,hv-tlbflush,hv-ipi";
    const NO_IPIS: &str =
        "qemu-system-x86_64 -cpu host,hv_vpindex,hv_time,hv_synic,hv_stimer,hv-apicv";
    const OLD: &str = "qemu-system-x86_64 -name win2008r2 -cpu host,hv_time -drive file=OVMF.fd,if=pflash,format=raw";
    const MITIGATED: &str =
        "vendor_id\t: GenuineIntel\nflags\t\t: fpu vmx md_clear\nvmx flags\t: vnmi apicv\n";
    check(
        &[
            ("hv-enlightenments", I, &[("vm cmdline", WINDOWS)], C),
            // SynIC beside APICv.
            ("hv-enlightenments", I, &[("vm cmdline", STIMER)], C),
            ("hv-enlightenments", I, &[("vm cmdline", STIMER), ("intel enable_apicv", "N\n")], O),
            ("hv-enlightenments", I, &[("vm cmdline", APICV)], O),
            ("hv-enlightenments", I, &[("vm cmdline", NO_IPIS)], C),
            (
                "hv-enlightenments",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -cpu host,hv-passthrough")],
                O,
            ),
            (
                "hv-enlightenments",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -cpu host -rtc base=localtime")],
                U,
            ),
            ("hv-enlightenments", I, &[("vm cmdline", "cloud-hypervisor --cpus boot=2")], U),
            ("hv-frequencies", I, &[("vm cmdline", APICV)], U),
            ("hv-frequencies", I, &[("vm cmdline", OLD)], N),
            ("hv-enlightenments", I, &[("vm cmdline", OLD)], C),
            (
                "rtc-catch-up",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -rtc base=utc,driftfix=slew")],
                U,
            ),
            (
                "rtc-catch-up",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -rtc base=localtime,clock=vm")],
                N,
            ),
            (
                "hv-frequencies",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -cpu host,hv_relaxed,hv_frequencies=on")],
                O,
            ),
            ("hv-frequencies", I, &[("vm cmdline", "cloud-hypervisor --cpus boot=2")], U),
            ("hv-frequencies", I, &[("vm cmdline", "qemu-system-x86_64 -cpu host")], N),
            (
                "hv-enlightenments",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -cpu EPYC,hv_time,hv_stimer -cpu host")],
                C,
            ),
            (
                "split-irqchip",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -M q35,kernel-irqchip=split")],
                C,
            ),
            (
                "split-irqchip",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -M q35,kernel-irqchip=on")],
                O,
            ),
            (
                "split-irqchip",
                I,
                &[(
                    "vm cmdline",
                    "qemu-system-x86_64 -M q35,kernel-irqchip=split -device intel-iommu,intremap=on",
                )],
                O,
            ),
            ("hpet", I, &[("vm cmdline", "qemu-system-x86_64 -machine q35,accel=kvm -m 1G")], U),
            ("hpet", I, &[("vm cmdline", "qemu-system-x86_64 -machine q35,hpet=off -m 1G")], N),
            ("hpet", I, &[("vm cmdline", "qemu-system-x86_64 -M pc -no-hpet -m 1G")], N),
            ("hpet", I, &[("vm cmdline", "qemu-system-x86_64 -M microvm -m 1G")], N),
            ("hpet", I, &[("vm cmdline", WINDOWS)], N),
            (
                "disk-format",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -drive file=a,format=vmdk,if=none")],
                C,
            ),
            (
                "disk-format",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -drive file=a,format=qcow2,if=none")],
                O,
            ),
            ("split-irqchip", I, &[("vm cmdline", TD)], N),
            (
                "split-irqchip",
                I,
                &[(
                    "vm cmdline",
                    "qemu-system-x86_64 -object tdx-guest -M q35,kernel-irqchip=split",
                )],
                N,
            ),
            ("split-irqchip", I, &[("vm cmdline", "cloud-hypervisor --cpus boot=2")], U),
            ("split-irqchip", I, &[("vm cmdline", "-")], U),
            ("windows-cpu", I, &[("vm cmdline", WINDOWS), ("/proc/cpuinfo", MITIGATED)], O),
            ("windows-cpu", I, &[("vm cmdline", STIMER), ("/proc/cpuinfo", MITIGATED)], C),
            ("windows-cpu", I, &[("vm cmdline", APICV), ("/proc/cpuinfo", MITIGATED)], O),
            ("windows-cpu", I, &[("vm cmdline", STIMER)], O),
            ("windows-cpu", I, &[("vm cmdline", STIMER), ("/proc/cpuinfo", "-")], U),
            ("emulated-devices", I, &[("vm cmdline", "qemu-system-x86_64 -device e1000")], C),
            (
                "emulated-devices",
                I,
                &[("vm cmdline", "qemu-system-x86_64 -drive file=disk,format=raw")],
                C,
            ),
            (
                "emulated-devices",
                I,
                &[(
                    "vm cmdline",
                    "qemu-system-x86_64 -drive file=disk,if=none,id=d0 -device ide-cd",
                )],
                O,
            ),
            ("emulated-devices", I, &[("vm cmdline", "firecracker")], U),
            ("nested-paging", I, &[("intel ept", "N\n")], C),
            ("nested-paging", A, &[("amd npt", "0\n")], C),
            ("vpid", I, &[("intel vpid", "N\n")], C),
            ("tdp-mmu", I, &[("kvm tdp_mmu", "N\n")], C),
            ("tdp-mmu", I, &[("kvm tdp_mmu", "-")], N),
            ("tdp-mmu", I, &[("kvm tdp_mmu", "N\n"), ("intel ept", "N\n")], N),
            ("tdp-mmu", A, &[("kvm tdp_mmu", "N\n"), ("amd npt", "0\n")], N),
            ("mbec", I, &[("intel mbec", "Y\n")], O),
            ("mbec", I, &[("intel mbec", "N\n"), ("count nested_run", "9\n")], C),
            ("mbec", A, &[("amd gmet", "N\n")], N),
            ("mediated-pmu", I, &[("intel enable_mediated_pmu", "Y\n")], O),
            ("mediated-pmu", I, &[("intel enable_mediated_pmu", "N\n")], N),
            (
                "swapped",
                I,
                &[(
                    "vm smaps",
                    "7f00-7f01 rw-p 0 00:00 0\nSize: 1048576 kB\nRss: 524288 kB\nSwap: 524288 kB\n",
                )],
                C,
            ),
            ("swapped", I, &[("vm smaps", "-")], U),
            ("cgroup-moves", I, &[(RELEASE, "6.1.0-9-amd64\n"), ("/proc/mounts", CGROUP)], C),
            ("cgroup-moves", I, &[(RELEASE, "6.1.0-9-amd64\n"), ("/proc/mounts", FAVOURED)], O),
            (
                "cgroup-moves",
                I,
                &[(RELEASE, "6.1.0-9-amd64\n"), ("/proc/mounts", "x / ext4 rw 0 0\n")],
                N,
            ),
            ("cgroup-moves", I, &[(RELEASE, "6.1.0-9-amd64\n"), ("/proc/mounts", "-")], U),
            (
                "cgroup-moves",
                I,
                &[(RELEASE, "6.8.0\n"), ("/proc/mounts", CGROUP), ("kvm nx_huge_pages", "never\n")],
                O,
            ),
            ("cgroup-moves", I, &[(RELEASE, "6.12.9\n"), ("/proc/mounts", CGROUP)], U),
            ("cgroup-moves", I, &[(RELEASE, "6.13.0\n"), ("/proc/mounts", CGROUP)], N),
            ("cgroup-moves", I, &[(RELEASE, "5.10.0\n"), ("/proc/mounts", CGROUP)], N),
            (
                "cgroup-moves",
                I,
                &[
                    (RELEASE, "6.8.0\n"),
                    ("/proc/mounts", CGROUP),
                    ("/proc/cmdline", "ro rcupdate.rcu_expedited=1\n"),
                ],
                O,
            ),
            ("slot-waits", I, &[(RELEASE, "6.17.13+deb13-amd64\n")], N),
            ("slot-waits", I, &[(RELEASE, "6.18.15+deb13-amd64\n")], C),
            ("slot-waits", I, &[(RELEASE, "7.3.4+deb13-amd64\n")], C),
            ("slot-waits", I, &[(RELEASE, "7.4.0\n")], U),
            ("slot-waits", I, &[(RELEASE, "-")], U),
        ],
        |host| verdicts(host, None),
    );
}

/// The interrupts of a network card go to CPU 4, where a vCPU is pinned, or to CPU 1.
#[test]
fn device_interrupts_are_part_of_the_map() {
    let host = |counts: &str, goes_to: &str| {
        MadeRoot::intel()
            .with("/proc/uptime", "100.00 700.00\n")
            .with("/sys/kernel/irq/24/actions", "eth0-rx-0\n")
            .with("/sys/kernel/irq/24/per_cpu_count", counts)
            .with("/proc/irq/24/effective_affinity_list", goes_to)
            // Nobody uses this one.
            .with("/sys/kernel/irq/25/actions", "\n")
            .with("/sys/kernel/irq/25/per_cpu_count", "9,9,9,9,90000,9,9,9\n")
            .with("/proc/irq/25/effective_affinity_list", "4\n")
    };
    let often = "0,0,0,0,10000,0,0,0\n";
    for (root, expected) in [
        (host(often, "4\n"), C),
        (host(often, "0-7\n"), C),
        // It went there, and goes elsewhere now.
        (host(often, "1\n"), O),
        (host("0,0,0,0,9999,0,0,0\n", "4\n"), O),
        (host("0,0,0,0,many,0,0,0\n", "4\n"), U),
        (host(often, "4\n").without("/proc/uptime"), U),
        (
            host(often, "4\n")
                .with("/proc/4711/task/4712/status", "Name:\tCPU 0/KVM\nCpus_allowed_list:\t0-7\n"),
            N,
        ),
    ] {
        assert_eq!(verdicts(&root, None)["device-interrupts"], expected);
    }
    let folder = tempfile::tempdir().unwrap();
    host(often, "4\n").write(folder.path());
    let system = vmtax_host::system(folder.path()).unwrap();
    let found = crate::root::findings(&system, None);
    let found = found.into_iter().find(|f| f.check.id.name() == "device-interrupts").unwrap().found;
    assert_eq!(words::found(&found), "devices of the host interrupt the vCPUs on CPUs 4");
    let seen = SeenSetting::Interrupts { devices: "eth0-rx-0".to_owned(), cpu: 4, rate: 100 };
    assert_eq!(found.evidence[1].value, Ok(seen));
}

/// Another VM whose vCPUs are pinned to the same CPUs shares them; one that may run anywhere does not by that.
#[test]
fn cpus_of_several_vms_are_one_map() {
    let other = |cpus: &str| {
        let status = format!("Name:\tCPU 0/KVM\nCpus_allowed_list:\t{cpus}\n");
        MadeRoot::intel()
            .with("/proc/4800/cmdline", "qemu-system-x86_64\0-name\0guest=db,debug-threads=on\0")
            .with("/proc/4800/comm", "qemu-system-x86\n")
            .with("/proc/4800/task/4801/status", &status)
            .link("/proc/4800/fd/9", "/dev/kvm")
            .link("/proc/4800/fd/11", "anon_inode:kvm-vm")
            .link("/proc/4800/fd/12", "anon_inode:kvm-vcpu:0")
    };
    let of_first = |host: &MadeRoot| {
        let folder = tempfile::tempdir().unwrap();
        host.write(folder.path());
        let system = vmtax_host::system(folder.path()).unwrap();
        let found = crate::root::findings(&system, None);
        let is_first = |finding: &vmtax_analyse::audit::AuditFinding| {
            finding.check.id.name() == "vcpu-pinning"
                && finding.subject == vmtax_analyse::audit::AuditSubject::Vm(4711)
        };
        found.into_iter().find(is_first).unwrap().found
    };
    let shared = of_first(&other("4"));
    assert_eq!(shared.verdict, C);
    assert_eq!(words::found(&shared), "CPUs 4 of its vCPUs serve threads of other VMs too: db");
    for cpus in ["0-7", "2", "4-6"] {
        assert_eq!(of_first(&other(cpus)).verdict, O, "{cpus}");
    }
}

/// What is changed of the good guest; the host is a good one.
#[test]
fn guests() {
    const FLAGS: &str =
        "vendor_id\t: AuthenticAMD\nflags\t\t: fpu hypervisor x2apic sev sev_es sev_snp\n";
    const PLAIN: &str = "vendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor\n";
    const SLOTS: &str = "/sys/kernel/debug/swiotlb/io_tlb_nslabs";
    const HIGH: &str = "/sys/kernel/debug/swiotlb/io_tlb_used_hiwater";
    const G: fn() -> MadeRoot = MadeRoot::guest;
    check(
        &[
            ("guest-haltpoll", G, &[], O),
            (
                "guest-haltpoll",
                G,
                &[("/sys/module/haltpoll/parameters/guest_halt_poll_ns", "0\n")],
                C,
            ),
            ("guest-haltpoll", G, &[("cpu cpuidle/current_driver", "none\n")], U),
            (
                "guest-haltpoll",
                G,
                &[("cpu cpuidle/current_driver", "none\n"), ("/proc/cpuinfo", FLAGS)],
                C,
            ),
            ("guest-haltpoll", G, &[("cpu cpuidle", "-"), ("/proc/cpuinfo", FLAGS)], C),
            ("guest-haltpoll", G, &[("/proc/cmdline", "idle=poll\n")], N),
            ("guest-idle-poll", G, &[("/proc/cmdline", "idle=poll\n")], O),
            ("guest-idle-poll", G, &[("/proc/cmdline", "idle=halt\n")], O),
            ("guest-idle-poll", G, &[("/proc/cmdline", "-")], U),
            ("guest-tick", G, &[("/proc/cmdline", "nohz=off\n")], C),
            ("guest-tick", G, &[("/proc/cmdline", "highres=off quiet\n")], C),
            ("guest-tick", G, &[("/proc/cmdline", "nohz=on\n")], O),
            ("guest-tick", G, &[("/proc/cmdline", "-")], U),
            ("tsc-deadline", G, &[("/proc/cpuinfo", PLAIN)], C),
            ("tsc-deadline", G, &[("/proc/cpuinfo", FLAGS)], C),
            ("tsc-deadline", G, &[("/proc/cpuinfo", "nothing\n")], U),
            ("x2apic", G, &[("/proc/cpuinfo", PLAIN)], C),
            ("x2apic", G, &[("/proc/cpuinfo", "-")], U),
            ("swiotlb", G, &[(HIGH, "32768\n")], C),
            ("swiotlb", G, &[(SLOTS, "0\n"), (HIGH, "0\n")], O),
            ("swiotlb", G, &[(HIGH, "18446744073709551615\n")], U),
            ("swiotlb", G, &[(HIGH, "-")], U),
            ("swiotlb", G, &[("/sys/kernel/debug", "-")], U),
            ("guest-clocksource", G, &[(CLOCK, "tsc\n")], O),
            ("guest-clocksource", G, &[(CLOCK, "hpet\n")], C),
            ("guest-clocksource", G, &[(CLOCK, "acpi_pm\n")], C),
            ("guest-nmi-watchdog", G, &[("/proc/sys/kernel/nmi_watchdog", "1\n")], C),
            ("halt-poll", G, &[], C),
            ("halt-poll", G, &[("/proc/cmdline", "-")], U),
            ("halt-poll", G, &[("cpu cpuidle/current_driver", "none\n")], O),
            ("halt-poll", G, &[("/proc/cmdline", "idle=poll\n")], C),
        ],
        |guest| verdicts(&MadeRoot::intel(), Some(guest)),
    );
}

#[test]
fn halt_polling_depends_on_who_polls() {
    let off = ("kvm halt_poll_ns", "0\n");
    let without: &[VerdictCase] = &[
        ("halt-poll", I, &[], O),
        ("halt-poll", I, &[("count halt_poll_fail_ns", "99000\n")], C),
        ("halt-poll", I, &[("/sys/kernel/debug", "-")], U),
        ("halt-poll", I, &[("kvm halt_poll_ns", "0\n")], U),
        ("halt-poll", I, &[("kvm halt_poll_ns", "soon\n")], U),
    ];
    check(without, |host| verdicts(host, None));
    let polls = |host: &MadeRoot| verdicts(host, Some(&MadeRoot::guest()));
    check(&[("halt-poll", I, &[("kvm halt_poll_ns", "0\n")], O)], polls);
    let halts = MadeRoot::guest().with("/sys/devices/system/cpu/cpuidle/current_driver", "none\n");
    let found = verdicts(&changed(MadeRoot::intel(), &[off]), Some(&halts));
    assert_eq!(found["halt-poll"], U);
}

/// idle=poll wants CPUs for the vCPUs alone.
#[test]
fn idle_poll_depends_on_pinning() {
    let guest = MadeRoot::guest().with("/proc/cmdline", "idle=poll\n");
    for (changes, expected) in [
        (&[][..], O),
        (&[("vm task/4713/status", "Name:\tCPU 1/KVM\nCpus_allowed_list:\t0-7\n")][..], C),
        (&[("vm task", "-")][..], U),
        (&[("/proc/4711", "-")][..], U),
    ] {
        let found = verdicts(&changed(MadeRoot::intel(), changes), Some(&guest));
        assert_eq!(found["guest-idle-poll"], expected, "{changes:?}");
    }
}

#[test]
fn nothing_can_be_read_where_there_is_nothing() {
    let found = verdicts(&MadeRoot::default(), Some(&MadeRoot::default()));
    let wrong: Vec<_> = found.iter().filter(|(_, verdict)| **verdict != U).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let checks = RULES.iter().flat_map(|rule| rule.checks);
    // There is no VM, and whether there is one is not known.
    let is_asked = |check: &&vmtax_analyse::audit::Check| {
        check.place() != "VM" && check.isas.have(Isa::Unknown)
    };
    let expected = checks.filter(is_asked).count();
    assert_eq!(found.len(), expected);
}

/// A remedy that is wrong for a VM is not offered for it, by whichever check: the table of remedies decides.
#[test]
fn fixes_are_those_of_this_vm() {
    let fixes = |host: &MadeRoot, check: &str| {
        let folder = tempfile::tempdir().unwrap();
        host.write(folder.path());
        let system = vmtax_host::system(folder.path()).unwrap();
        let found = crate::root::findings(&system, None);
        let one = found.into_iter().find(|finding| finding.check.id.name() == check).unwrap();
        {
            let what = words::found(&one.found);
            (one.found.fix, what)
        }
    };
    // guest_memfd memory of an ordinary VM is mapped in small pages under all settings.
    let small = MadeRoot::intel().with(&path("vm smaps"), SMALL);
    assert!(fixes(&small, "thp-backing").0.is_some());
    for target in ["anon_inode:[kvm-gmem]", "/[kvm-gmem] (deleted)"] {
        let (fix, what) = fixes(&small.clone().link("/proc/4711/fd/20", target), "thp-backing");
        assert!(fix.is_none() && what.contains("guest_memfd"), "{what}");
    }
    // Another VMM has other options than QEMU's.
    let (fix, what) =
        fixes(&small.qemu("cloud-hypervisor --memory size=1G --cpus boot=2"), "thp-backing");
    assert!(fix.is_none() && what.contains("another VMM"), "{what}");
    // isolcpus= is deprecated, and is not advised.
    let (fix, _) = fixes(&MadeRoot::intel().with(&path("cpu isolated"), "\n"), "isolcpus");
    assert!(words::fix_line(&fix.unwrap()).contains("cpuset.cpus.partition"));
}
