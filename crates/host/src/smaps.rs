//! Parsers of the kernel's files on a process's memory. Functions of text only.

use std::collections::BTreeMap;

use vmtax_events::setting::MemoryBacking;

/// Smaller mappings cannot hold a huge page, and no guest's memory is in them.
const SMALLEST: u64 = 2 << 20;

/// `/proc/PID/smaps`, line by line.
#[derive(Debug, Default)]
pub struct Smaps {
    total: MemoryBacking,
    mapping: MemoryMapping,
    /// There was a mapping at all.
    seen: bool,
}

#[derive(Debug, Default)]
struct MemoryMapping {
    size: u64,
    resident: u64,
    anonymous: u64,
    anon_thp: u64,
    shmem_thp: u64,
    hugetlb: u64,
    swapped: u64,
    eligible: Option<bool>,
}

impl Smaps {
    /// Takes the next line.
    pub fn line(&mut self, line: &str) {
        let Some((key, rest)) = line.split_once(':') else { return };
        // `7f00-7f01 rw-p ...` begins a mapping, and has a colon in its device number.
        if key.contains(' ') {
            self.end();
            self.seen = true;
            return;
        }
        let mut words = rest.split_ascii_whitespace();
        let Some(number) = words.next().and_then(|word| word.parse::<u64>().ok()) else { return };
        let bytes = number.saturating_mul(1024);
        let mapping = &mut self.mapping;
        match key {
            "Size" => mapping.size = bytes,
            "Rss" => mapping.resident = bytes,
            "Anonymous" => mapping.anonymous = bytes,
            "AnonHugePages" => mapping.anon_thp = bytes,
            "ShmemPmdMapped" | "FilePmdMapped" => {
                mapping.shmem_thp = mapping.shmem_thp.saturating_add(bytes);
            }
            "Shared_Hugetlb" | "Private_Hugetlb" => {
                mapping.hugetlb = mapping.hugetlb.saturating_add(bytes);
            }
            "Swap" => mapping.swapped = bytes,
            "THPeligible" => mapping.eligible = Some(number != 0),
            _ => {}
        }
    }

    /// The sum; `None` when there was no mapping in it.
    pub fn finish(mut self) -> Option<MemoryBacking> {
        self.end();
        self.seen.then_some(self.total)
    }

    fn end(&mut self) {
        let mapping = std::mem::take(&mut self.mapping);
        if mapping.size < SMALLEST {
            return;
        }
        let add = |sum: &mut u64, bytes: u64| *sum = sum.saturating_add(bytes);
        let total = &mut self.total;
        // Rss leaves hugetlbfs out.
        add(&mut total.resident, mapping.resident.saturating_add(mapping.hugetlb));
        add(&mut total.anon_thp, mapping.anon_thp);
        add(&mut total.shmem_thp, mapping.shmem_thp);
        add(&mut total.hugetlb, mapping.hugetlb);
        add(&mut total.swapped, mapping.swapped);
        add(&mut total.shared, mapping.resident.saturating_sub(mapping.anonymous));
        if mapping.eligible == Some(false) {
            add(&mut total.not_eligible, mapping.resident);
        }
    }
}

/// A line of `/proc/PID/numa_maps`: adds its bytes to the nodes. Says whether it is such a line.
pub fn numa_line(line: &str, nodes: &mut BTreeMap<u32, u64>) -> bool {
    let page = line
        .split_ascii_whitespace()
        .find_map(|word| word.strip_prefix("kernelpagesize_kB=")?.parse::<u64>().ok());
    let Some(page) = page else { return false };
    for word in line.split_ascii_whitespace() {
        let Some((node, pages)) = word.strip_prefix('N').and_then(|rest| rest.split_once('='))
        else {
            continue;
        };
        if let (Ok(node), Ok(pages)) = (node.parse::<u32>(), pages.parse::<u64>()) {
            let bytes = pages.saturating_mul(page).saturating_mul(1024);
            let sum = nodes.entry(node).or_default();
            *sum = sum.saturating_add(bytes);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a QEMU with anonymous memory, a memfd and a file of hugetlbfs.
    const SMAPS: &str = "\
7f0000000000-7f0040000000 rw-p 00000000 00:00 0
Size:            1048576 kB
KernelPageSize:        4 kB
Rss:              500000 kB
Anonymous:        500000 kB
AnonHugePages:    409600 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:         0 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:       0 kB
THPeligible:           1
VmFlags: rd wr mr mw me ac hg
7f0040000000-7f0080000000 rw-s 00000000 00:01 1024 /memfd:mem: a (deleted)
Size:            1048576 kB
Rss:              200000 kB
Anonymous:             0 kB
AnonHugePages:         0 kB
ShmemPmdMapped:     2048 kB
THPeligible:           0
7f0080000000-7f00c0000000 rw-s 00000000 00:0f 7 /dev/hugepages/x
Size:            1048576 kB
Rss:                   0 kB
Shared_Hugetlb:  1048576 kB
THPeligible:           0
7f00c0000000-7f00c0100000 rw-p 00000000 00:00 0
Size:               1024 kB
Rss:                1024 kB
Anonymous:          1024 kB
";

    #[test]
    fn smaps_add_up_by_kind() {
        let mut smaps = Smaps::default();
        SMAPS.lines().for_each(|line| smaps.line(line));
        let kib = |n: u64| n * 1024;
        let expected = MemoryBacking {
            resident: kib(500_000 + 200_000 + 1_048_576),
            anon_thp: kib(409_600),
            shmem_thp: kib(2048),
            hugetlb: kib(1_048_576),
            shared: kib(200_000),
            swapped: 0,
            not_eligible: kib(200_000),
        };
        assert_eq!(smaps.finish(), Some(expected));
    }

    #[test]
    fn invalid_smaps_give_nothing() {
        let mut smaps = Smaps::default();
        for line in ["", "hello", "Rss: x kB", "Size: 99999999999999999999 kB", ":", "::::"] {
            smaps.line(line);
        }
        assert_eq!(smaps.finish(), None);
        let mut smaps = Smaps::default();
        for line in
            ["1-2 rw-p 0 00:00 0", "Size: 18446744073709551615 kB", "Rss: 18446744073709551615 kB"]
        {
            smaps.line(line);
        }
        assert_eq!(smaps.finish().unwrap().resident, u64::MAX);
    }

    #[test]
    fn numa_maps_count_pages_of_their_size() {
        let mut nodes = BTreeMap::new();
        let lines = [
            ("7f00 default anon=10 dirty=10 N0=6 N1=4 kernelpagesize_kB=4", true),
            ("7f01 bind:0 file=/dev/hugepages/N9=x huge dirty=2 N0=2 kernelpagesize_kB=2048", true),
            ("7f02 default", false),
            ("N0=5", false),
        ];
        for (line, counted) in lines {
            assert_eq!(numa_line(line, &mut nodes), counted, "{line}");
        }
        assert_eq!(nodes, [(0, 6 * 4096 + (4 << 20)), (1, 4 * 4096)].into());
    }
}
