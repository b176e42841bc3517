//! Which mappings of a process are a VM's memory.

use std::collections::HashSet;

use vmtax_events::size;
use vmtax_machine::maps::Mapping;

use super::given::GivenBlock;

/// Where nothing says how large a VM's memory is, a smaller mapping is none of it.
const LEAST: u64 = 16 << 20;

/// A mapping that is assumed to be a VM's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TakenMapping {
    pub(super) mapping: Mapping,
    pub(super) why: String,
}

/// Shared memory that can be a VM's: a memfd, a file, or anonymous memory of a process and its children. Of devices only those
/// that are file systems of memory.
fn is_shared_memory(mapping: &Mapping) -> bool {
    let path = mapping.path.as_str();
    let is_device = path.starts_with("/dev/")
        && !["/dev/shm/", "/dev/hugepages", "/dev/zero (deleted)"]
            .iter()
            .any(|name| path.starts_with(name));
    let is_buffer = path.starts_with("/dmabuf") || path.starts_with("/drm ");
    mapping.shared
        && mapping.writable
        && mapping.inode != 0
        && path.starts_with('/')
        && !is_device
        && !is_buffer
}

/// Private memory: anonymous, or a private mapping of a file (`share=off`).
fn is_private_memory(mapping: &Mapping) -> bool {
    !mapping.shared && mapping.writable && !mapping.path.starts_with('[')
}

/// Mappings that can be a VM's memory: nothing that is executed there or elsewhere, as an emulator's translations are.
fn candidates(all: &[Mapping]) -> Vec<Mapping> {
    let executed: HashSet<u64> =
        all.iter().filter(|m| m.executable && m.inode != 0).map(|m| m.inode).collect();
    let is_data = |m: &&Mapping| !m.executable && !executed.contains(&m.inode);
    let data: Vec<&Mapping> = all.iter().filter(is_data).collect();
    let mut seen = HashSet::new();
    let shared =
        data.iter().filter(|m| is_shared_memory(m) && seen.insert((m.device, m.inode, m.offset)));
    let private = data.iter().filter(|m| is_private_memory(m));
    shared.chain(private).map(|m| (*m).clone()).collect()
}

/// The mappings that are as large as what the VM was given, one for each block. An error names the block that none fits.
pub(super) fn as_given(all: &[Mapping], given: &[GivenBlock]) -> Result<Vec<TakenMapping>, String> {
    let mut free = candidates(all);
    free.extend(joined(&free));
    let mut taken: Vec<TakenMapping> = Vec::new();
    for block in given {
        let is_free = |m: &Mapping| {
            taken.iter().all(|t| {
                t.mapping.range.end <= m.range.start || m.range.end <= t.mapping.range.start
            })
        };
        let Some(found) = free.iter().find(|m| m.bytes() == block.bytes && is_free(m)) else {
            let (option, bytes) = (&block.option, size(block.bytes));
            return Err(format!(
                "{option} gives it {bytes}, and none of its mappings has that size"
            ));
        };
        let why = format!("as large as {} says", block.option);
        taken.push(TakenMapping { mapping: found.clone(), why });
    }
    Ok(taken)
}

/// Anonymous mappings without a gap between them, which are one that was advised upon in parts.
fn joined(mappings: &[Mapping]) -> Vec<Mapping> {
    let anonymous = mappings.iter().filter(|m| !m.shared && m.inode == 0);
    let mut runs: Vec<Mapping> = Vec::new();
    for mapping in anonymous {
        match runs.last_mut() {
            Some(run) if run.range.end == mapping.range.start => run.range.end = mapping.range.end,
            _ => runs.push(mapping.clone()),
        }
    }
    runs
}

/// Where nothing says what the VM was given: all shared memory, or the largest private mapping.
pub(super) fn by_size(all: &[Mapping]) -> Vec<TakenMapping> {
    let large: Vec<Mapping> = candidates(all).into_iter().filter(|m| m.bytes() >= LEAST).collect();
    let take = |mapping: &Mapping, why: &str| TakenMapping {
        mapping: mapping.clone(),
        why: why.to_owned(),
    };
    let shared: Vec<TakenMapping> = large
        .iter()
        .filter(|m| m.shared)
        .map(|m| take(m, "shared memory; how much the VM was given is not known"))
        .collect();
    if !shared.is_empty() {
        return shared;
    }
    let largest = large.iter().filter(|m| m.inode == 0).max_by_key(|m| m.bytes());
    largest
        .map(|m| take(m, "the largest private mapping; how much a VM was given is not known"))
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    /// QEMU 7.2 with TCG, `-m 64`.
    const TCG: &str = "\
5644e0f9a000-5644e1531000 r-xp 00407000 fe:00 10166328                   /usr/bin/qemu-system-x86_64
56450b695000-56450d5a9000 rw-p 00000000 00:00 0                          [heap]
7ff474021000-7ff478000000 ---p 00000000 00:00 0
7ff47be00000-7ff47fe00000 rw-p 00000000 00:00 0
7ff480000000-7ff4bffff000 rwxp 00000000 00:00 0
";
    /// With `split-wx=on`, and shared anonymous memory.
    const SPLIT: &str = "\
7f834fe00000-7f8353e00000 rw-s 00000000 00:01 41746                      /dev/zero (deleted)
7f8354000000-7f8394000000 r-xs 00000000 00:01 41745                      /memfd:tcg-jit (deleted)
7f8394000000-7f83d3fff000 rw-s 00000000 00:01 41745                      /memfd:tcg-jit (deleted)
7f9394000000-7f9494000000 rw-s 00000000 00:01 5                          anon_inode:[vfio-device]
";

    fn given(bytes: u64) -> GivenBlock {
        GivenBlock { option: format!("-m {bytes}"), bytes }
    }

    #[test]
    fn translations_are_no_memory() {
        for maps in [TCG, SPLIT] {
            let all = Mapping::all(maps);
            for taken in [as_given(&all, &[given(64 * M)]).expect("one fits"), by_size(&all)] {
                let sizes: Vec<u64> = taken.iter().map(|t| t.mapping.bytes()).collect();
                assert_eq!(sizes, [64 * M], "{taken:?}");
            }
            let error = as_given(&all, &[given(1 << 30)]).expect_err("none fits");
            assert!(error.contains("gives it 1.0 GiB, and none"), "{error}");
            // No mapping is two blocks.
            assert!(as_given(&all, &[given(64 * M), given(64 * M)]).is_err());
        }
        assert!(as_given(&Mapping::all(TCG), &[given((1 << 30) - 4096)]).is_err());
    }

    #[test]
    fn memory_in_parts_is_one() {
        let maps = "10000000-12000000 rw-p 0 00:00 0\n12000000-14000000 rw-p 0 00:00 0\n";
        let taken = as_given(&Mapping::all(maps), &[given(64 * M)]).expect("together they fit");
        assert_eq!(taken[0].mapping.range, 0x1000_0000..0x1400_0000);
        let taken =
            as_given(&Mapping::all(maps), &[given(32 * M), given(32 * M)]).expect("they fit");
        assert_eq!(taken[1].mapping.range.start, 0x1200_0000);
    }
}
