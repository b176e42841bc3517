//! Roots of made-up systems: a good one of each kind, and changes to it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use vmtax_analyse::audit::{AuditFinding, AuditInput, CheckVerdict, audit};
use vmtax_events::setting::System;

/// The VM of the good hosts.
pub(crate) const PID: u32 = 4711;

/// Files of a system by path.
#[derive(Clone, Default)]
pub(crate) struct MadeRoot {
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
}

const COMMON: &[(&str, &str)] = &[
    ("/proc/cmdline", "root=/dev/sda1 rcu_nocbs=4-5\n"),
    ("/proc/sys/kernel/osrelease", "6.17.1\n"),
    ("/proc/uptime", "5000.00 39000.00\n"),
    ("/sys/kernel/irq/24/actions", "eth0-rx-0\n"),
    ("/sys/kernel/irq/24/per_cpu_count", "900000,0,0,0,0,0,0,0\n"),
    ("/proc/irq/24/effective_affinity_list", "0\n"),
    ("/proc/sys/kernel/nmi_watchdog", "0\n"),
    ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
    (
        "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled",
        "always [inherit] madvise never\n",
    ),
    ("/sys/kernel/mm/transparent_hugepage/defrag", "always defer defer+madvise [madvise] never\n"),
    (
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        "always within_size [advise] never deny force\n",
    ),
    ("/sys/kernel/mm/ksm/run", "0\n"),
    ("/sys/kernel/mm/ksm/pages_sharing", "0\n"),
    ("/sys/module/kvm/initstate", "live\n"),
    ("/sys/module/kvm/parameters/nx_huge_pages", "N\n"),
    ("/sys/module/kvm/parameters/halt_poll_ns", "200000\n"),
    ("/sys/module/kvm/parameters/enable_pmu", "N\n"),
    ("/sys/module/kvm/parameters/tdp_mmu", "Y\n"),
    ("/sys/devices/system/cpu/online", "0-7\n"),
    ("/sys/devices/system/cpu/nohz_full", "4-5\n"),
    ("/sys/devices/system/cpu/isolated", "4-5\n"),
    ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
    ("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n"),
    ("/sys/devices/system/cpu/cpufreq/boost", "0\n"),
    ("/sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL\n"),
    ("/sys/devices/system/cpu/cpu0/cpuidle/state0/disable", "0\n"),
    ("/sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1\n"),
    ("/sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "1\n"),
    ("/sys/devices/system/cpu/cpuidle/current_driver", "acpi_idle\n"),
    ("/sys/devices/system/cpu/cpuidle/current_governor", "menu\n"),
    ("/sys/devices/system/cpu/vulnerabilities/itlb_multihit", "Not affected\n"),
    ("/sys/devices/system/cpu/vulnerabilities/old_microcode", "Not affected\n"),
    ("/sys/devices/system/cpu/vulnerabilities/spectre_v2", "Mitigation: Retpolines\n"),
    ("/sys/devices/system/node/node0/cpulist", "0-3\n"),
    ("/sys/devices/system/node/node1/cpulist", "4-7\n"),
    ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n"),
];

const INTEL: &[(&str, &str)] = &[
    (
        "/proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Made Up 1\nmicrocode\t: 0x2b\n\
         flags\t\t: fpu vmx tsc\n\
         vmx flags\t: vnmi preemption_timer posted_intr apicv ipi_virt ple shadow_vmcs\n\n\
         processor\t: 1\nvendor_id\t: GenuineIntel\nmicrocode\t: 0x2b\n",
    ),
    ("/sys/module/kvm_intel/initstate", "live\n"),
    ("/sys/module/kvm_intel/parameters/preemption_timer", "Y\n"),
    ("/sys/module/kvm_intel/parameters/ept", "Y\n"),
    ("/sys/module/kvm_intel/parameters/vpid", "Y\n"),
    ("/sys/module/kvm_intel/parameters/enable_apicv", "Y\n"),
    ("/sys/module/kvm_intel/parameters/enable_ipiv", "Y\n"),
    ("/sys/module/kvm_intel/parameters/ple_gap", "128\n"),
    ("/sys/module/kvm_intel/parameters/ple_window", "4096\n"),
    ("/sys/module/kvm_intel/parameters/nested", "Y\n"),
    ("/sys/module/kvm_intel/parameters/enable_shadow_vmcs", "Y\n"),
    ("/sys/module/kvm_intel/parameters/tdx", "N\n"),
];

const AMD: &[(&str, &str)] = &[
    (
        "/proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: Made Up 2\nmicrocode\t: 0xa0011d5\n\
         flags\t\t: fpu svm tsc avic vgif vnmi pausefilter pfthreshold\n",
    ),
    ("/sys/module/kvm_amd/initstate", "live\n"),
    ("/sys/module/kvm_amd/parameters/npt", "Y\n"),
    ("/sys/module/kvm_amd/parameters/avic", "Y\n"),
    ("/sys/module/kvm_amd/parameters/pause_filter_thresh", "128\n"),
    ("/sys/module/kvm_amd/parameters/pause_filter_count", "3000\n"),
    ("/sys/module/kvm_amd/parameters/nested", "1\n"),
    ("/sys/module/kvm_amd/parameters/vls", "1\n"),
    ("/sys/module/kvm_amd/parameters/vgif", "1\n"),
    ("/sys/module/kvm_amd/parameters/vnmi", "Y\n"),
    ("/sys/module/kvm_amd/parameters/sev_snp", "N\n"),
];

/// As Debian's kernel 7.3 for arm64 has it, where KVM is built in and has few parameters.
const ARM64: &[(&str, &str)] = &[
    (
        "/proc/cpuinfo",
        "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics\n\
         CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n\n\
         processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
    ),
    ("/sys/module/kvm/parameters/halt_poll_ns", "200000\n"),
    ("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n"),
    ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "arch_sys_counter\n"),
];

/// What its VM is started with.
const QEMU_ARM64: &str = "/usr/bin/qemu-system-aarch64 -name guest=web,debug-threads=on -machine virt,gic-version=host -accel kvm -cpu host \
    -netdev tap,id=n0,vhost=on,queues=2 -device virtio-net-pci,netdev=n0,mq=on -object iothread,id=io0 \
    -device virtio-blk-pci,drive=d0,iothread=io0";

const GUEST_ARM64: &[(&str, &str)] = &[
    ("/proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"),
    ("/proc/cmdline", "root=/dev/vda1\n"),
    ("/proc/sys/kernel/osrelease", "7.3.4\n"),
    ("/proc/sys/kernel/nmi_watchdog", "0\n"),
    ("/sys/devices/system/cpu/nohz_full", "1-3\n"),
    ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "arch_sys_counter\n"),
    ("/sys/kernel/debug/swiotlb/io_tlb_nslabs", "32768\n"),
    ("/sys/kernel/debug/swiotlb/io_tlb_used_hiwater", "1200\n"),
];

const GUEST: &[(&str, &str)] = &[
    (
        "/proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu hypervisor x2apic tsc_deadline_timer\n",
    ),
    ("/proc/cmdline", "root=/dev/vda1\n"),
    ("/proc/sys/kernel/osrelease", "6.18.1\n"),
    ("/proc/sys/kernel/nmi_watchdog", "0\n"),
    ("/sys/devices/system/cpu/nohz_full", "1-3\n"),
    ("/sys/devices/system/cpu/cpuidle/current_driver", "haltpoll\n"),
    ("/sys/devices/system/cpu/cpuidle/current_governor", "haltpoll\n"),
    ("/sys/module/haltpoll/parameters/guest_halt_poll_ns", "200000\n"),
    ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "kvm-clock\n"),
    ("/sys/kernel/debug/swiotlb/io_tlb_nslabs", "32768\n"),
    ("/sys/kernel/debug/swiotlb/io_tlb_used_hiwater", "1200\n"),
];

/// What the good hosts' VM is started with.
const QEMU: &str = "/usr/bin/qemu-system-x86_64 -name guest=web,debug-threads=on -machine q35,pit=off,hpet=off -cpu host,pmu=off \
    -netdev tap,id=n0,vhost=on,queues=2 -device virtio-net-pci,netdev=n0,mq=on -object iothread,id=io0 \
    -device virtio-blk-pci,drive=d0,iothread=io0";

/// Its memory: a gigabyte, all of it huge pages.
pub(crate) const SMAPS: &str = "7f0000000000-7f0040000000 rw-p 00000000 00:00 0 \nSize: 1048576 kB\nRss: 1048576 kB\n\
    Anonymous: 1048576 kB\nAnonHugePages: 1048576 kB\nShmemPmdMapped: 0 kB\nTHPeligible: 1\n";

impl MadeRoot {
    /// A host with an Intel processor and a VM, everything as wanted.
    pub(crate) fn intel() -> MadeRoot {
        MadeRoot::of(&[COMMON, INTEL]).vm()
    }

    /// The same with an AMD processor.
    pub(crate) fn amd() -> MadeRoot {
        MadeRoot::of(&[COMMON, AMD]).vm()
    }

    /// A host with arm64 processors.
    pub(crate) fn arm64() -> MadeRoot {
        let of_x86 = [
            "/sys/module/kvm/",
            "/sys/devices/system/cpu/vulnerabilities/",
            "/sys/kernel/debug/kvm/4711-11/pages",
        ];
        let root =
            of_x86.iter().fold(MadeRoot::of(&[COMMON]).vm(), |root, start| root.without(start));
        let root = ARM64.iter().fold(root, |root, (path, text)| root.with(path, text));
        root.with("/sys/devices/system/cpu/vulnerabilities/spectre_v2", "Mitigation: CSV2, BHB\n")
            .qemu(QEMU_ARM64)
    }

    pub(crate) fn guest_arm64() -> MadeRoot {
        MadeRoot::of(&[GUEST_ARM64])
    }

    /// A guest, everything as wanted.
    pub(crate) fn guest() -> MadeRoot {
        MadeRoot::of(&[GUEST])
    }

    fn of(parts: &[&[(&str, &str)]]) -> MadeRoot {
        let mut root = MadeRoot::default();
        for (path, text) in parts.iter().copied().flatten() {
            root.files.insert((*path).to_owned(), (*text).to_owned());
        }
        root
    }

    fn vm(self) -> MadeRoot {
        let status =
            |name: &str, cpus: &str| format!("Name:\t{name}\nCpus_allowed_list:\t{cpus}\n");
        let counter = |name: &str| format!("/sys/kernel/debug/kvm/{PID}-11/{name}");
        let mut root = self
            .with(
                "/proc/4711/cmdline",
                &(QEMU.split_whitespace().collect::<Vec<_>>().join("\0") + "\0"),
            )
            .with("/proc/4711/comm", "qemu-system-x86\n")
            .with("/proc/4711/task/4711/status", &status("qemu-system-x86", "0-7"))
            .with("/proc/4711/task/4712/status", &status("CPU 0/KVM", "4"))
            .with("/proc/4711/task/4713/status", &status("CPU 1/KVM", "5"))
            .with("/proc/4711/task/4714/status", &status("IO io0", "6"))
            .with("/proc/4711/smaps", SMAPS)
            .with(
                "/proc/4711/numa_maps",
                "7f0000000000 default anon=262144 N1=262144 kernelpagesize_kB=4\n",
            );
        for (name, value) in [
            ("pages_4k", "300"),
            ("pages_2m", "500"),
            ("pages_1g", "0"),
            ("halt_poll_success_ns", "9000"),
            ("halt_poll_fail_ns", "1000"),
            ("nested_run", "0"),
        ] {
            root = root.with(&counter(name), &format!("{value}\n"));
        }
        root.link("/proc/4711/fd/11", "anon_inode:kvm-vm")
            .link("/proc/4711/fd/12", "anon_inode:kvm-vcpu:0")
            .link("/proc/4711/fd/13", "anon_inode:kvm-vcpu:1")
            .link("/proc/4711/fd/14", "/dev/vhost-net")
    }

    /// With another file, or another text in it.
    pub(crate) fn with(mut self, path: &str, text: &str) -> MadeRoot {
        self.files.insert(path.to_owned(), text.to_owned());
        self
    }

    /// With the VM started by these words.
    pub(crate) fn qemu(self, words: &str) -> MadeRoot {
        self.with(
            "/proc/4711/cmdline",
            &(words.split_whitespace().collect::<Vec<_>>().join("\0") + "\0"),
        )
    }

    /// Without the files whose path begins so.
    pub(crate) fn without(mut self, start: &str) -> MadeRoot {
        self.files.retain(|path, _| !path.starts_with(start));
        self.links.retain(|path, _| !path.starts_with(start));
        self
    }

    pub(crate) fn link(mut self, path: &str, target: &str) -> MadeRoot {
        self.links.insert(path.to_owned(), target.to_owned());
        self
    }

    /// Writes it below a folder.
    pub(crate) fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        for (path, text) in &self.files {
            let path = place(folder, path);
            fs::write(path, text).unwrap();
        }
        for (path, target) in &self.links {
            symlink(target, place(folder, path)).unwrap();
        }
    }

    /// The paths of its files.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }
}

/// The path below a folder, with its parent folders created.
pub(crate) fn place(folder: &Path, path: &str) -> PathBuf {
    let path = folder.join(path.trim_start_matches('/'));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    path
}

/// A system in a folder, and what the audit says of it.
pub(crate) fn findings(system: &System, guest: Option<&Path>) -> Vec<AuditFinding> {
    let guest = guest.map(|guest| vmtax_host::settings(guest).unwrap());
    audit(AuditInput {
        host: &system.settings,
        kvm: &system.kvm,
        vms: &system.vms,
        complete: system.knows_all_vms(),
        guest: guest.as_ref(),
        inside: None,
        ledger: None,
    })
}

/// Every verdict about a host and, when given, a guest, by check.
pub(crate) fn verdicts(
    host: &MadeRoot,
    guest: Option<&MadeRoot>,
) -> BTreeMap<&'static str, CheckVerdict> {
    let folder = tempfile::tempdir().unwrap();
    let (at_host, at_guest) = (folder.path().join("host"), folder.path().join("guest"));
    host.write(&at_host);
    if let Some(guest) = guest {
        guest.write(&at_guest);
    }
    let system = vmtax_host::system(&at_host).unwrap();
    let found = findings(&system, guest.map(|_| at_guest.as_path()));
    found.iter().map(|finding| (finding.check.id.name(), finding.found.verdict)).collect()
}
