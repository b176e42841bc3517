//! KVM's binary statistics of a VM or vCPU (`KVM_GET_STATS_FD`, Linux 5.14): counters by name.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use vmtax_guest::order::KvmCounters;

/// `_IO(KVMIO, 0xce)`.
const KVM_GET_STATS_FD: libc::Ioctl = 0xaece;
/// Bytes of a descriptor before its name.
const DESCRIPTOR: u64 = 16;
/// Where a descriptor has the place of its value in the data block.
const OFFSET: u64 = 8;
/// Names and counters of KVM stay far below.
const NAME_MOST: u32 = 256;
const COUNTERS_MOST: u32 = 4096;

/// The statistics of one VM or vCPU.
pub(super) struct KvmStats {
    file: File,
    /// Name and place of each.
    counters: Vec<(String, u64)>,
}

impl KvmStats {
    /// Those of a VM's or vCPU's descriptor; `None` where the kernel has none.
    pub(super) fn open(of: &impl AsRawFd) -> Option<KvmStats> {
        // SAFETY: this call takes no argument, and its answer is a new descriptor.
        let file = unsafe {
            match libc::ioctl(of.as_raw_fd(), KVM_GET_STATS_FD, 0) {
                descriptor if descriptor >= 0 => File::from_raw_fd(descriptor),
                _ => return None,
            }
        };
        let word = |at: u64| {
            let mut bytes = [0; 4];
            file.read_exact_at(&mut bytes, at).ok()?;
            Some(u32::from_le_bytes(bytes))
        };
        // Flags, bytes of a name, number of descriptors, and where the id, the descriptors and the data are.
        let (name_size, number) = (word(4)?.min(NAME_MOST), word(8)?.min(COUNTERS_MOST));
        let (descriptors, data) = (u64::from(word(16)?), u64::from(word(20)?));
        let mut counters = Vec::new();
        for index in 0..u64::from(number) {
            let at = descriptors + index * (DESCRIPTOR + u64::from(name_size));
            let mut name = vec![0; name_size as usize];
            file.read_exact_at(&mut name, at + DESCRIPTOR).ok()?;
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            let name = String::from_utf8_lossy(&name[..end]).into_owned();
            counters.push((name, data + u64::from(word(at + OFFSET)?)));
        }
        Some(KvmStats { file, counters })
    }

    pub(super) fn value(&self, name: &str) -> Option<u64> {
        let (_, at) = self.counters.iter().find(|(known, _)| known == name)?;
        self.read(*at)
    }

    /// All counters that are not 0.
    pub(super) fn all(&self) -> Vec<(String, u64)> {
        let value = |(name, at): &(String, u64)| Some((name.clone(), self.read(*at)?));
        self.counters.iter().filter_map(value).filter(|(_, value)| *value > 0).collect()
    }

    fn read(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at).ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

/// Pages that KVM has mapped, by size.
pub(super) fn pages(stats: &KvmStats) -> Option<[u64; 3]> {
    let value = |name| stats.value(name);
    Some([value("pages_4k")?, value("pages_2m")?, value("pages_1g")?])
}

/// Page faults of a vCPU.
pub(super) fn faults(stats: &KvmStats) -> Option<u64> {
    stats.value("pf_taken")
}

/// What KVM counts of a VM with all its vCPUs, from a mark to the next.
pub(super) struct VmTally {
    vm: KvmStats,
    vcpus: Vec<KvmStats>,
    before: Option<KvmCounters>,
}

impl VmTally {
    /// `None` where the kernel has no statistics.
    pub(super) fn open(vm: &impl AsRawFd, vcpus: &[impl AsRawFd]) -> Option<VmTally> {
        let vcpus = vcpus.iter().map(KvmStats::open).collect::<Option<_>>()?;
        Some(VmTally { vm: KvmStats::open(vm)?, vcpus, before: None })
    }

    pub(super) fn start(&mut self) {
        self.before = self.now();
    }

    /// The changes since the start, if there was one. Unmapped pages are no negative number.
    pub(super) fn end(&mut self) -> Option<KvmCounters> {
        let (before, now) = (self.before.take()?, self.now()?);
        let pages = std::array::from_fn(|size| now.pages[size].saturating_sub(before.pages[size]));
        Some(KvmCounters { faults: now.faults.saturating_sub(before.faults), pages })
    }

    fn now(&self) -> Option<KvmCounters> {
        let faults = self.vcpus.iter().map(faults).sum::<Option<u64>>()?;
        Some(KvmCounters { faults, pages: pages(&self.vm)? })
    }
}
