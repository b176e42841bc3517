//! What is to be recorded.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::vmcs::VmcsPlace;

/// What is to be recorded.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// Only VMs of these processes.
    pub processes: Option<BTreeSet<u32>>,
    /// Limit of exact keys of exits, and of accesses; beyond it, details are dropped and counted.
    pub most_keys: u32,
    /// So many vCPU threads at a time.
    pub most_threads: u32,
    /// Where KVM's code has the fields of VMREADs and VMWRITEs, or why that is not known. Of no use with SVM.
    pub vmcs: Result<Vec<VmcsPlace>, String>,
    /// Single events too.
    pub raw: Option<Raw>,
}

#[derive(Clone, Debug)]
pub struct Raw {
    /// One exit in this many of each vCPU is recorded; 1: all.
    pub sample: u32,
    /// Those of exits that took at least so long.
    pub slower: Duration,
    /// Room for those that are on their way, rounded up to a power of two.
    pub buffer: u32,
}

impl Default for Raw {
    /// All; a quarter of a million are on their way at most.
    fn default() -> Self {
        Raw { sample: 1, slower: Duration::ZERO, buffer: 16 << 20 }
    }
}

impl Raw {
    /// Which exits they are of, when not of all.
    pub fn choice(&self) -> Option<String> {
        let sampled = (self.sample > 1).then(|| format!("of one exit in {}", self.sample));
        let slow = (!self.slower.is_zero())
            .then(|| format!("of exits that took at least {:?}", self.slower));
        let which: Vec<String> = [sampled, slow].into_iter().flatten().collect();
        (!which.is_empty()).then(|| which.join(" and "))
    }

    /// What the kernel takes as a size.
    pub(crate) fn buffer_bytes(&self) -> u32 {
        self.buffer.clamp(4096, 1 << 30).next_power_of_two()
    }
}

impl Default for LiveOptions {
    /// All processes, and as many keys as the accounting of recordings has: 37 MB of the kernel's memory.
    fn default() -> Self {
        LiveOptions {
            processes: None,
            most_keys: 16_384,
            most_threads: 4096,
            vmcs: Ok(Vec::new()),
            raw: None,
        }
    }
}
