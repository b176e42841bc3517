//! A sample of a VM's memory, compared with the files that were found for it: what QEMU reads at an address is QEMU's own word on what the
//! guest has there.

use std::fs::File;
use std::os::unix::fs::FileExt;

use serde_json::json;

use super::tree::MemoryRange;
use super::{QemuVm, Ram, VmError};
use crate::qmp::QmpRequest;

const PAGE: usize = 4096;
/// Pages that are looked at in a block, evenly spread.
const CANDIDATES: u64 = 4096;
/// Most pages compared in a block: each takes QEMU a tenth of a millisecond.
const COMPARED: usize = 16;
/// A process beside QEMU may write meanwhile (vhost-user): a page that differs is read so often.
const TRIES: usize = 3;

/// A page of a block.
#[derive(Clone, Copy, Debug)]
struct SamplePage {
    /// Where in the block.
    offset: u64,
    address: u64,
}

impl QemuVm {
    /// An error unless pages that the guest has written are the same in QEMU and in the files. The VM is stopped.
    pub fn check_content(&mut self, ram: &[Ram]) -> Result<(), VmError> {
        let tree = self.memory_tree()?;
        let pagemap = File::open(format!("/proc/{}/pagemap", self.pid)).ok();
        for block in ram {
            let places = sample(block, &tree, pagemap.as_ref());
            let mut differing = self.differing(block, &places)?;
            for _ in 1..TRIES {
                differing = self.differing(block, &differing)?;
            }
            if let Some(place) = differing.first() {
                return Err(self.unfit(format!(
                    "the page at guest-physical address {:#x} is not in the file that was found for the memory backend {:?}; \
                     nothing is done with such a VM",
                    place.address, block.name
                )));
            }
        }
        Ok(())
    }

    /// The pages that differ.
    fn differing(
        &mut self,
        block: &Ram,
        places: &[SamplePage],
    ) -> Result<Vec<SamplePage>, VmError> {
        let ask = |place: &SamplePage| -> QmpRequest {
            let line = format!("xp /{}xg {:#x}", PAGE / 8, place.address);
            ("human-monitor-command", json!({ "command-line": line }))
        };
        let answers = self.qmp.run_all(&places.iter().map(ask).collect::<Vec<_>>())?;
        let differs = |(place, answer): &(&SamplePage, Option<serde_json::Value>)| {
            let text = answer.as_ref().and_then(|value| value.as_str());
            let ours = page(block, place.offset);
            ours.is_none() || ours.map(Vec::from) != text.map(bytes)
        };
        let differing = places.iter().zip(answers).filter(differs);
        Ok(differing.map(|(place, _)| *place).collect())
    }
}

/// Pages of a block that have content, evenly spread: QEMU or a vCPU has touched them, or the file has something there.
fn sample(block: &Ram, tree: &[MemoryRange], pagemap: Option<&File>) -> Vec<SamplePage> {
    let pages = block.bytes / PAGE as u64;
    let of_block = |part: &&MemoryRange| part.backend == block.name;
    let parts: Vec<&MemoryRange> = tree.iter().filter(of_block).collect();
    let place = |offset: u64| {
        let part = parts.iter().find(|p| p.offset <= offset && offset - p.offset < p.bytes)?;
        Some(SamplePage { offset, address: part.address + (offset - part.offset) })
    };
    let count = pages.min(CANDIDATES);
    let all = (0..count).map(|i| u128::from(i) * u128::from(pages) / u128::from(count));
    let has_content = |place: &SamplePage| {
        let mapped = block.mapped.as_ref().map(|mapping| mapping.range.start + place.offset);
        let is_touched = pagemap.zip(mapped).is_some_and(|(file, at)| is_present(file, at));
        is_touched || page(block, place.offset).is_some_and(|page| page.iter().any(|b| *b != 0))
    };
    let offsets = all.map(|page| page as u64 * PAGE as u64);
    let found: Vec<SamplePage> = offsets.filter_map(place).filter(has_content).collect();
    let step = found.len().div_ceil(COMPARED).max(1);
    found.into_iter().step_by(step).collect()
}

/// Whether the process has a page at this address, in RAM or swapped out (Documentation/admin-guide/mm/pagemap.rst).
fn is_present(pagemap: &File, address: u64) -> bool {
    const PRESENT_OR_SWAPPED: u64 = 3 << 62;
    let mut entry = [0; 8];
    let read = pagemap.read_exact_at(&mut entry, address / PAGE as u64 * 8);
    read.is_ok() && u64::from_le_bytes(entry) & PRESENT_OR_SWAPPED != 0
}

/// A page in the file of a block. Reading a hole this way does not allocate it.
fn page(block: &Ram, offset: u64) -> Option<[u8; PAGE]> {
    let mut page = [0; PAGE];
    block.file.read_exact_at(&mut page, block.offset + offset).ok()?;
    Some(page)
}

/// The bytes in an answer to `xp /512xg`: lines of an address and words.
fn bytes(text: &str) -> Vec<u8> {
    let words = text.lines().filter_map(|line| line.split_once(": ")).flat_map(|(_, words)| {
        let words = words.split_ascii_whitespace();
        words.filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
    });
    words.flat_map(u64::to_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_human_monitor() {
        let text = "00000000000ffff0: 0x2f3630f000e05bea 0x00fc0039392f3332\r\n0000000000100000: 0x0000000000000001\r\n";
        let expected =
            b"\xea\x5b\xe0\x00\xf0\x30\x36\x2f\x32\x33\x2f\x39\x39\x00\xfc\x00\x01\0\0\0\0\0\0\0";
        assert_eq!(bytes(text), expected);
        assert!(bytes("Cannot access memory\r\n").is_empty());
    }
}
