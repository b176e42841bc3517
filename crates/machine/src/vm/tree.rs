//! The memory tree: which guest-physical addresses are memory of which backend, and where QEMU has it mapped; and what else of a machine is no device.
//!
//! QEMU says so in its human monitor only. The forms read here are those of QEMU 7.2 to 11.1.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::hardware::{ANONYMOUS, PERIPHERAL};
use super::{QemuVm, VmError};
use crate::qmp::QmpRequest;

/// Guest-physical addresses that are memory of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryRange {
    /// Id of the backend.
    pub(super) backend: String,
    /// The first guest-physical address.
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Where in the backend it begins.
    pub(super) offset: u64,
}

impl QemuVm {
    /// The parts of the guest's memory that are a backend's and that the guest can write.
    pub(super) fn memory_tree(&mut self) -> Result<Vec<MemoryRange>, VmError> {
        let parts = parts(&self.human("info mtree -f -o")?);
        if parts.is_empty() {
            return Err(self.unfit(
                "QEMU shows no memory backend in the guest's memory (info mtree -f -o), so where that is cannot be told",
            ));
        }
        Ok(parts)
    }

    /// The address in QEMU of a backend's first byte.
    pub(super) fn host_address(&mut self, part: &MemoryRange) -> Result<u64, VmError> {
        let text = self.human(&format!("gpa2hva {:#x}", part.address))?;
        let address = text.rsplit_once(" is 0x").and_then(|(_, hex)| number(hex));
        let start = address.and_then(|address| address.checked_sub(part.offset));
        start.ok_or_else(|| {
            let (backend, text) = (&part.backend, text.trim());
            self.unfit(format!(
                "QEMU does not say where it has the memory backend {backend:?} mapped: {text}"
            ))
        })
    }

    /// The device that has a memory backend, if one has.
    pub(super) fn user_of(&mut self, backend: &str) -> Result<Option<String>, VmError> {
        let mut paths = Vec::new();
        for folder in [PERIPHERAL, ANONYMOUS] {
            let children = self.children(folder)?.into_iter();
            paths.extend(children.map(|child| format!("{folder}/{}", child.name)));
        }
        let ask = |path: &String| -> QmpRequest {
            ("qom-get", json!({ "path": path, "property": "memdev" }))
        };
        let answers = self.qmp.run_all(&paths.iter().map(ask).collect::<Vec<_>>())?;
        let object = format!("/objects/{backend}");
        let is_it =
            |value: &Option<Value>| value.as_ref().and_then(|v| v.as_str()) == Some(&object);
        Ok(answers.iter().position(is_it).map(|at| paths.swap_remove(at)))
    }

    /// Places for vCPUs. How many were there at the start does not matter.
    pub(super) fn processors(&mut self) -> Result<BTreeMap<String, Value>, VmError> {
        let mut places = self.structure("smp")?;
        places.remove("cpus");
        Ok(places)
    }

    /// Places for memory: `slots` and `max-size`, which QEMU does not name if there are none.
    pub(super) fn slots(&mut self) -> Result<BTreeMap<String, Value>, VmError> {
        let mut places = self.structure("memory")?;
        if let Some(size) = places.remove("size") {
            places.entry("slots".to_owned()).or_insert(0.into());
            places.entry("max-size".to_owned()).or_insert(size);
        }
        Ok(places)
    }

    /// A property of the machine that is a structure; empty in a QEMU that has none.
    fn structure(&mut self, name: &str) -> Result<BTreeMap<String, Value>, VmError> {
        let value = self.ask("qom-get", json!({ "path": "/machine", "property": name }))?;
        Ok(value.as_object().cloned().unwrap_or_default().into_iter().collect())
    }

    /// Memory of devices and firmware, and its length: another QEMU must have the same.
    pub(super) fn blocks(&mut self) -> Result<BTreeMap<String, Value>, VmError> {
        Ok(blocks(&self.human("info ramblock")?))
    }

    /// Runs a command of the human monitor.
    fn human(&mut self, line: &str) -> Result<String, VmError> {
        let answer = self.qmp.run("human-monitor-command", json!({ "command-line": line }))?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }
}

/// The blocks in an answer to `info ramblock`. Those of the firmware's tables may grow, and those of backends are compared as such.
fn blocks(text: &str) -> BTreeMap<String, Value> {
    let block = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Name, size of a page with its unit, offset, used, total.
        let [name, _, unit, _, _, total, ..] = words[..] else { return None };
        let is_block = unit.ends_with('B') && !name.starts_with("/rom@");
        let total = number(total.strip_prefix("0x")?).filter(|_| is_block)?;
        Some((name.to_owned(), total.into()))
    };
    text.lines().filter_map(block).collect()
}

/// The parts in an answer to `info mtree -f -o`, of the address space `memory`.
fn parts(text: &str) -> Vec<MemoryRange> {
    let mut found = Vec::new();
    let mut is_memory = false;
    for line in text.lines() {
        if line.starts_with("FlatView") {
            is_memory = false;
        }
        is_memory |= line.trim_start().starts_with("AS \"memory\",");
        found.extend(part(line).filter(|_| is_memory));
    }
    found
}

/// What `fuzz/` does with an answer of the monitor.
///
/// # Panics
/// If a part of the memory does not lie within addresses.
#[cfg(feature = "fuzz")]
pub fn check_answer(text: &str) {
    for part in parts(text) {
        assert!(part.bytes > 0 && part.address.checked_add(part.bytes - 1).is_some(), "{part:?}");
    }
    blocks(text);
}

/// A line such as `START-END (prio 0, ram): NAME @OFFSET owner:{obj path=/objects/ID}`; without an offset it is 0.
fn part(line: &str) -> Option<MemoryRange> {
    let (range, rest) = line.trim_start().split_once(" (prio ")?;
    let (_, region) = rest.split_once(", ram): ")?;
    let (region, owner) = region.rsplit_once(" owner:{obj path=/objects/")?;
    let (backend, _) = owner.split_once('}')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (number(first)?, number(last)?);
    Some(MemoryRange {
        backend: backend.to_owned(),
        address: first,
        bytes: last.checked_sub(first)?.checked_add(1)?,
        offset: region.rsplit_once(" @").and_then(|(_, hex)| number(hex)).unwrap_or(0),
    })
}

fn number(hex: &str) -> Option<u64> {
    u64::from_str_radix(hex.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// QEMU 7.2; in 10.0 the views are in another order.
    const TREE: &str = "\
FlatView #0
 AS \"I/O\", root: io
 Root memory region: io
  0000000000000cfa-0000000000000cfb (prio 0, i/o): pci-conf-idx @0000000000000002 owner:{dev path=/machine/q35}

FlatView #1
 AS \"memory\", root: system
 AS \"cpu-memory-0\", root: system
 Root memory region: system
  0000000000000000-00000000000bffff (prio 0, ram): a owner:{obj path=/objects/a} kvm
  00000000000c0000-00000000000dffff (prio 1, rom): pc.rom parent:{obj path=/machine/unattached}
  00000000000e0000-00000000000fffff (prio 1, rom): a @00000000000e0000 owner:{obj path=/objects/a}
  0000000000100000-0000000003ffffff (prio 0, ram): a @0000000000100000 owner:{obj path=/objects/a}
  0000000004000000-0000000007ffffff (prio 0, ram): /objects/b owner:{obj path=/objects/b}
  00000000fee00000-00000000feefffff (prio 4096, i/o): apic-msi owner:{dev path=/machine/unattached/device[0]/lapic}

FlatView #2
 AS \"mch\", root: bus master container
 Root memory region: (none)
  No rendered FlatView

FlatView #3
 AS \"cpu-smm-0\", root: memory
  0000000000000000-00000000000bffff (prio 0, ram): c owner:{obj path=/objects/c}
";

    #[test]
    fn blocks_of_devices_and_firmware() {
        let text = "\
              Block Name    PSize              Offset               Used              Total                HVA  RO
                            4 KiB  0x0000000008000000 0x0000000004000000 0x0000000004000000 0x00007fdee3ffd000  rw
    /rom@etc/acpi/tables    4 KiB  0x0000000010080000 0x0000000000020000 0x0000000000200000 0x00007fdf34800000  ro
                 pc.bios    4 KiB  0x0000000010000000 0x0000000000040000 0x0000000000040000
";
        assert_eq!(blocks(text), BTreeMap::from([("pc.bios".to_owned(), json!(0x40000))]));
    }

    #[test]
    fn parts_of_the_guests_memory() {
        let part = |backend: &str, address, bytes, offset| MemoryRange {
            backend: backend.to_owned(),
            address,
            bytes,
            offset,
        };
        let expected = [
            part("a", 0, 0xc0000, 0),
            part("a", 0x10_0000, 0x3f0_0000, 0x10_0000),
            part("b", 0x400_0000, 0x400_0000, 0),
        ];
        assert_eq!(parts(TREE), expected);
        assert_eq!(parts(&TREE.replace("(prio", "(p")), []);
        // An answer that was cut has fewer parts, and no other; one with wrong bytes is read without a panic.
        for end in 0..TREE.len() {
            assert!(expected.starts_with(&parts(&TREE[..end])), "{end}");
        }
        for at in 0..TREE.len() {
            for wrong in [b'0', b'-', b' ', b'}', b'\n', 0x7f] {
                let mut bytes = TREE.as_bytes().to_vec();
                bytes[at] = wrong;
                let text = String::from_utf8_lossy(&bytes);
                parts(&text);
                blocks(&text);
            }
        }
    }
}
