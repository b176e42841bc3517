//! The files that are read of a host and of a guest, stated once.
//!
//! In a pattern `#` matches a number and `*` a name, within one component of a path.

macro_rules! files {
    ($($(#[$doc:meta])* $name:ident = $path:literal;)*) => {
        $($(#[$doc])* pub const $name: &str = $path;)*
        pub const FILES: &[&str] = &[$($name),*];
    };
}

files! {
    /// The kernel's command line.
    CMDLINE = "/proc/cmdline";
    /// The processors: vendor, flags, microcode.
    CPUINFO = "/proc/cpuinfo";
    RELEASE = "/proc/sys/kernel/osrelease";
    /// Whether a counter of each CPU keeps watch over hangs.
    NMI_WATCHDOG = "/proc/sys/kernel/nmi_watchdog";
    /// Transparent huge pages of anonymous memory.
    THP = "/sys/kernel/mm/transparent_hugepage/enabled";
    /// The same for pages of 2 MiB, in kernels that tell sizes apart.
    THP_2M = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
    /// Bytes of a transparent huge page.
    THP_SIZE = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
    /// Whether a fault waits for a huge page.
    THP_DEFRAG = "/sys/kernel/mm/transparent_hugepage/defrag";
    /// Transparent huge pages of shared memory.
    THP_SHMEM = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    /// The same for pages of 2 MiB, in kernels that tell sizes apart.
    THP_SHMEM_2M = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";
    KSM_RUN = "/sys/kernel/mm/ksm/run";
    /// Pages that it saves.
    KSM_SHARING = "/sys/kernel/mm/ksm/pages_sharing";
    /// KVM splits huge pages that a guest executes.
    NX_HUGE_PAGES = "/sys/module/kvm/parameters/nx_huge_pages";
    /// How long KVM polls before a halted vCPU sleeps.
    HALT_POLL = "/sys/module/kvm/parameters/halt_poll_ns";
    /// KVM gives guests performance counters.
    ENABLE_PMU = "/sys/module/kvm/parameters/enable_pmu";
    /// KVM runs the guest's timer on VMX's.
    PREEMPTION_TIMER = "/sys/module/kvm_intel/parameters/preemption_timer";
    /// Virtual APICs by VMX.
    APICV = "/sys/module/kvm_intel/parameters/enable_apicv";
    /// IPIs by VMX.
    IPIV = "/sys/module/kvm_intel/parameters/enable_ipiv";
    /// Pause-loop exiting: cycles between two PAUSEs of one loop.
    PLE_GAP = "/sys/module/kvm_intel/parameters/ple_gap";
    /// Pause-loop exiting: cycles of a loop.
    PLE_WINDOW = "/sys/module/kvm_intel/parameters/ple_window";
    EPT = "/sys/module/kvm_intel/parameters/ept";
    /// Tags of TLB entries by VMX.
    VPID = "/sys/module/kvm_intel/parameters/vpid";
    NPT = "/sys/module/kvm_amd/parameters/npt";
    /// The MMU of KVM that handles faults of several vCPUs at once.
    TDP_MMU = "/sys/module/kvm/parameters/tdp_mmu";
    /// Mode-based execute control for guests, Intel.
    MBEC = "/sys/module/kvm_intel/parameters/mbec";
    /// The same of AMD.
    GMET = "/sys/module/kvm_amd/parameters/gmet";
    /// Guests have counters of the processor to themselves, Intel.
    MEDIATED_PMU_INTEL = "/sys/module/kvm_intel/parameters/enable_mediated_pmu";
    /// The same of AMD.
    MEDIATED_PMU_AMD = "/sys/module/kvm_amd/parameters/enable_mediated_pmu";
    NESTED_INTEL = "/sys/module/kvm_intel/parameters/nested";
    /// VMREAD and VMWRITE of L1 without exits.
    SHADOW_VMCS = "/sys/module/kvm_intel/parameters/enable_shadow_vmcs";
    /// KVM can run TDs.
    TDX = "/sys/module/kvm_intel/parameters/tdx";
    /// Virtual APICs by SVM.
    AVIC = "/sys/module/kvm_amd/parameters/avic";
    /// Pause filter: cycles between two PAUSEs of one loop.
    PAUSE_THRESH = "/sys/module/kvm_amd/parameters/pause_filter_thresh";
    /// Pause filter: PAUSEs of a loop.
    PAUSE_COUNT = "/sys/module/kvm_amd/parameters/pause_filter_count";
    NESTED_AMD = "/sys/module/kvm_amd/parameters/nested";
    /// VMLOAD and VMSAVE of L1 without exits.
    VLS = "/sys/module/kvm_amd/parameters/vls";
    /// STGI and CLGI of L1 without exits.
    VGIF = "/sys/module/kvm_amd/parameters/vgif";
    /// NMIs of a guest by SVM.
    VNMI = "/sys/module/kvm_amd/parameters/vnmi";
    /// KVM can run SEV-SNP guests.
    SEV_SNP = "/sys/module/kvm_amd/parameters/sev_snp";
    /// Who puts CPUs to sleep.
    IDLE_DRIVER = "/sys/devices/system/cpu/cpuidle/current_driver";
    /// Who decides how deep.
    IDLE_GOVERNOR = "/sys/devices/system/cpu/cpuidle/current_governor";
    /// How long a guest polls before it halts.
    GUEST_HALT_POLL = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
    /// CPUs without a tick while one task runs.
    NOHZ_FULL = "/sys/devices/system/cpu/nohz_full";
    /// CPUs that the scheduler leaves alone.
    ISOLATED = "/sys/devices/system/cpu/isolated";
    /// CPUs that are on.
    ONLINE = "/sys/devices/system/cpu/online";
    /// The frequency governor of each CPU.
    GOVERNOR = "/sys/devices/system/cpu/cpu#/cpufreq/scaling_governor";
    /// Turbo off on Intel.
    NO_TURBO = "/sys/devices/system/cpu/intel_pstate/no_turbo";
    /// Turbo on elsewhere.
    BOOST = "/sys/devices/system/cpu/cpufreq/boost";
    /// The idle states of the first CPU.
    IDLE_NAME = "/sys/devices/system/cpu/cpu0/cpuidle/state#/name";
    /// CPUs that are offline.
    IDLE_DISABLE = "/sys/devices/system/cpu/cpu0/cpuidle/state#/disable";
    /// Vulnerabilities of the processor.
    VULNERABILITIES = "/sys/devices/system/cpu/vulnerabilities/*";
    /// CPUs of each NUMA node.
    NODE_CPUS = "/sys/devices/system/node/node#/cpulist";
    /// The devices of each interrupt.
    IRQ_ACTIONS = "/sys/kernel/irq/#/actions";
    /// Interrupts since the boot, by CPU.
    IRQ_COUNTS = "/sys/kernel/irq/#/per_cpu_count";
    /// The CPUs to which it goes.
    IRQ_CPUS = "/proc/irq/#/effective_affinity_list";
    /// Seconds since the boot.
    UPTIME = "/proc/uptime";
    /// What is mounted, and how.
    MOUNTS = "/proc/mounts";
    CLOCKSOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    /// Slots of the bounce buffer.
    SWIOTLB_SIZE = "/sys/kernel/debug/swiotlb/io_tlb_nslabs";
    /// The most that were in use.
    SWIOTLB_HIGH = "/sys/kernel/debug/swiotlb/io_tlb_used_hiwater";
    /// Version of the TDX module, in kernels that tell.
    TDX_MODULE = "/sys/devices/faux/tdx_host/version";
}

/// One of [`VULNERABILITIES`]: huge pages that a guest executes may have to be split.
pub const ITLB_MULTIHIT: &str = "/sys/devices/system/cpu/vulnerabilities/itlb_multihit";
/// One of [`VULNERABILITIES`]: the microcode is older than the kernel knows of.
pub const OLD_MICROCODE: &str = "/sys/devices/system/cpu/vulnerabilities/old_microcode";

/// The [`IRQ_CPUS`] of the interrupt of one of [`IRQ_COUNTS`].
pub fn irq_cpus(counts: &str) -> Option<String> {
    let number = counts.strip_prefix("/sys/kernel/irq/")?.split('/').next()?;
    Some(IRQ_CPUS.replace('#', number))
}

/// Most characters of a name that a pattern matches.
const LONGEST: usize = 64;

/// Whether a path is one of a pattern's. The text that `#` and `*` match is plain, so that it can be printed and put
/// into a command.
pub fn fits(pattern: &str, path: &str) -> bool {
    let (mut patterns, mut names) = (pattern.split('/'), path.split('/'));
    loop {
        match (patterns.next(), names.next()) {
            (None, None) => return true,
            (Some(pattern), Some(name)) if name_fits(pattern, name) => {}
            _ => return false,
        }
    }
}

/// The same for one component.
pub fn name_fits(pattern: &str, name: &str) -> bool {
    let Some(at) = pattern.find(['#', '*']) else { return pattern == name };
    let (start, end) = (&pattern[..at], &pattern[at + 1..]);
    let Some(middle) = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end)) else {
        return false;
    };
    let numeric = pattern.as_bytes().get(at) == Some(&b'#');
    let plain =
        |b: u8| b.is_ascii_digit() || (!numeric && (b.is_ascii_alphabetic() || b"_-".contains(&b)));
    !middle.is_empty() && middle.len() <= LONGEST && middle.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_plain_names_alone() {
        for (path, fits_it) in [
            ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", true),
            ("/sys/devices/system/cpu/cpu12/cpufreq/scaling_governor", true),
            ("/sys/devices/system/cpu/cpu/cpufreq/scaling_governor", false),
            ("/sys/devices/system/cpu/cpuidle/cpufreq/scaling_governor", false),
            ("/sys/devices/system/cpu/cpu0;x/cpufreq/scaling_governor", false),
            ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor/x", false),
            ("/sys/devices/system/cpu/cpu0/cpufreq", false),
        ] {
            assert_eq!(fits(GOVERNOR, path), fits_it, "{path}");
        }
        assert!(fits(VULNERABILITIES, OLD_MICROCODE) && fits(VULNERABILITIES, ITLB_MULTIHIT));
        for name in ["..", "a b", "a\nb", "$(x)", ""] {
            assert!(!name_fits("*", name), "{name:?}");
        }
        assert!(!name_fits("#", &"1".repeat(65)));
    }

    #[test]
    fn every_file_is_named_once_and_plainly() {
        let mut sorted = FILES.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), FILES.len());
        let plain = |c: char| c.is_ascii_alphanumeric() || "/_-#*".contains(c);
        assert!(FILES.iter().all(|path| path.starts_with('/') && path.chars().all(plain)));
    }
}
