//! What a program inside a VM measured of the pages in which the host maps it: times of chains of dependent loads.
//!
//! A TLB entry covers at most the smaller of the guest's and the host's page. So 448 lines in 448 parts of 4 KiB of one
//! huge page of the guest need one entry if the host's page is as large, and 448 if it is of 4 KiB.
//! The room `host` measures, `analyse::audit` judges.

use super::{Known, Unknown};

/// Bytes of the part of a huge page that is measured by itself. Huge pages of some arm64 kernels have several.
pub const REGION: usize = 2 << 20;
/// Bytes between two loads of a fine chain.
pub const FINE: usize = 4 << 10;
/// Bytes between two loads of a coarse chain: the largest page of a host that is not a huge page, and the most that processors
/// are known to join into one TLB entry.
pub const COARSE: usize = 64 << 10;
/// Loads of a fine chain: 7 lines for each of 64 sets of a first-level cache.
pub const LINES: usize = 448;
/// Regions of a coarse chain.
pub const GROUP: usize = 8;
/// Loads of a coarse chain.
pub const GROUP_LINES: usize = GROUP * REGION / COARSE;

/// Beginnings of products and vendors in DMI that are VMs. Source: `dmi_vendor_table` of systemd's src/basic/virt.c. Amazon's and
/// Google's computers without a hypervisor have the same vendor, and are left out.
pub const VIRTUAL: [&str; 10] = [
    "KVM",
    "OpenStack",
    "KubeVirt",
    "QEMU",
    "VMware",
    "VirtualBox",
    "Xen",
    "Parallels",
    "Apple Virtualization",
    "Google Compute Engine",
];

/// Whether a system is a VM, as far as it shows that to every user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemKind {
    /// It is, by this file.
    Vm(&'static str),
    /// The processor would say that it is virtual, and does not.
    Bare(&'static str),
    /// Nothing says so; an arm64 processor would not.
    Unknown,
}

/// A system looked at from inside. Texts in it are hostile.
#[derive(Clone, Debug, PartialEq)]
pub struct HostPages {
    /// Whether it is a VM.
    pub machine: SystemKind,
    /// What was measured, unless there is no VM.
    pub measured: Option<Result<MeasuredChains, NotMeasured>>,
    /// What kind of VM it is, as far as it shows.
    pub confidential: ConfidentialSigns,
    /// From the start to the end, ns.
    pub took_ns: u64,
}

/// What a guest shows of its confidentiality.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfidentialSigns {
    /// `/proc/cpuinfo` has the flag `tdx_guest`.
    pub tdx: bool,
    /// The kernel has a device for the SEV-SNP guest, or a file with its privilege level.
    pub snp: bool,
    /// `/proc/cpuinfo` has a flag of SEV, which does not tell whether it is used.
    pub sev_flag: bool,
}

/// Why nothing was measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotMeasured {
    /// Transparent huge pages are off, and hugetlbfs has none.
    Off {
        /// What `/sys/kernel/mm/transparent_hugepage/enabled` holds.
        thp: Known<String>,
        /// Free pages of hugetlbfs of 2 MiB.
        hugetlb: Known<u64>,
    },
    /// The kernel gave fewer huge pages than were asked for.
    Few {
        /// Regions in huge pages.
        got: usize,
        /// Regions asked for.
        asked: usize,
    },
    /// Too little memory is free, or a control group allows too little.
    Memory {
        /// Bytes that the probe may take.
        room: u64,
    },
    /// The kernel refused memory.
    Refused(Unknown),
}

/// Where huge pages came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePageSource {
    /// Transparent huge pages.
    Thp,
    Hugetlb,
}

/// Repeated measurements of a chain, ns for each load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    pub min: f64,
    pub median: f64,
    /// The 90th percentile.
    pub p90: f64,
}

impl Timing {
    /// Of all repeats; zero of none.
    pub fn of(mut repeats: Vec<f64>) -> Timing {
        repeats.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let last = repeats.len().saturating_sub(1) as f64;
            repeats.get((last * part).round() as usize).copied().unwrap_or_default()
        };
        Timing { min: at(0.0), median: at(0.5), p90: at(0.9) }
    }
}

/// Chains of one length through pages of the guest's smallest size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChainPoint {
    /// Loads.
    pub lines: usize,
    pub packed: Timing,
    /// Each in another page.
    pub spread: Timing,
}

/// A coarse chain: one line in each part of 64 KiB of several regions.
#[derive(Clone, Debug, PartialEq)]
pub struct CoarseChain {
    /// The regions, by their place in [`MeasuredChains::regions`].
    pub regions: Vec<usize>,
    pub timing: Timing,
}

/// Chains that were measured.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredChains {
    /// Bytes of the guest's smallest page.
    pub page: usize,
    /// Bytes of its huge page.
    pub huge: usize,
    /// Where the huge pages came from.
    pub source: HugePageSource,
    /// Times by length, in the guest's smallest pages; [`GROUP_LINES`] and [`LINES`] are among the lengths.
    pub curve: Vec<ChainPoint>,
    /// A fine chain through each region.
    pub regions: Vec<Timing>,
    /// Coarse chains, of regions that are alike in their fine chains.
    pub groups: Vec<CoarseChain>,
    /// Chains of as many loads in the guest's smallest pages, repeated together with the coarse ones.
    pub beside_groups: ChainPoint,
    /// Loads in all regions, as of a program with much data: side by side, and all over.
    pub wide: ChainPoint,
}
