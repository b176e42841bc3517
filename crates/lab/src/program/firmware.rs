//! What a multiboot loader and firmware leave in memory: the multiboot information, and ACPI's tables for the power management
//! timer.
//!
//! Sources: Multiboot Specification 0.6.96, section 3.3; ACPI 1.0, sections 4.7.3.3, 5.2.4 to 5.2.6.

use std::ops::Range;

/// Where ACPI's tables are: in the range that programs search.
pub(super) const ACPI: u32 = 0xf_0000;
/// The first pages may be vectors of real mode and code that starts processors; loaders use this one.
const USUAL: u32 = 0x9000;
/// End of conventional memory, below the extended BIOS data.
const LOW_END: u32 = 0x9_f000;
const HIGH: u32 = 1 << 20;
const PAGE: u32 = 0x1000;

/// The I/O port of the timer.
const PM_TIMER: u32 = 0x608;

/// Offsets in the page: the memory map, the loader's name, the command line.
const MAP: u32 = 0x80;
const LOADER: u32 = 0x100;
const LINE: u32 = 0x200;

/// A page below 640 KiB that no part of the image takes.
pub(super) fn free_page(taken: &[Range<u64>]) -> Option<u32> {
    let free = |page: &u32| {
        let (start, end) = (u64::from(*page), u64::from(page + PAGE));
        taken.iter().all(|range| range.end <= start || end <= range.start)
    };
    (USUAL..LOW_END).step_by(PAGE as usize).chain((PAGE..USUAL).step_by(PAGE as usize)).find(free)
}

/// The multiboot information for a page at this address. The command line fits.
pub(super) fn information(page: u32, line: &str, memory: u32) -> Vec<u8> {
    let mut bytes = vec![0; LINE as usize];
    let mut put = |at: u32, part: &[u8]| {
        bytes[at as usize..at as usize + part.len()].copy_from_slice(part);
    };
    let map: Vec<u8> =
        [(0, LOW_END, 1_u32), (LOW_END, HIGH - LOW_END, 2), (HIGH, memory - HIGH, 1)]
            .into_iter()
            .flat_map(|(start, length, kind)| {
                let mut entry = 20_u32.to_le_bytes().to_vec();
                entry.extend(u64::from(start).to_le_bytes());
                entry.extend(u64::from(length).to_le_bytes());
                entry.extend(kind.to_le_bytes());
                entry
            })
            .collect();
    // It has sizes of memory, a command line, a memory map and the loader's name.
    put(0, &(1_u32 | 1 << 2 | 1 << 6 | 1 << 9).to_le_bytes());
    put(4, &(LOW_END >> 10).to_le_bytes());
    put(8, &((memory - HIGH) >> 10).to_le_bytes());
    put(16, &(page + LINE).to_le_bytes());
    put(44, &(map.len() as u32).to_le_bytes());
    put(48, &(page + MAP).to_le_bytes());
    put(64, &(page + LOADER).to_le_bytes());
    put(MAP, &map);
    put(LOADER, b"vmtax");
    bytes.extend(line.as_bytes());
    bytes.push(0);
    bytes
}

/// ACPI's tables, for [`ACPI`]: the pointer, the list of tables, and the description of fixed hardware.
pub(super) fn acpi() -> Vec<u8> {
    let (list, fixed) = (0x40, 0x80);
    let mut bytes = vec![0; fixed];
    let mut pointer = b"RSD PTR \0VMTAX \0".to_vec();
    pointer.extend((ACPI + list as u32).to_le_bytes());
    balance(&mut pointer, 8);
    bytes[..pointer.len()].copy_from_slice(&pointer);
    let rsdt = table(*b"RSDT", &(ACPI + fixed as u32).to_le_bytes());
    bytes[list..list + rsdt.len()].copy_from_slice(&rsdt);
    // Fields after the header of 36 bytes; all but the timer's are 0: nothing else is there.
    let mut fields = [0; 116 - HEADER];
    fields[76 - HEADER..80 - HEADER].copy_from_slice(&PM_TIMER.to_le_bytes());
    // The length of the timer's block.
    fields[91 - HEADER] = 4;
    bytes.extend(table(*b"FACP", &fields));
    bytes
}

const HEADER: usize = 36;

fn table(signature: [u8; 4], fields: &[u8]) -> Vec<u8> {
    let mut table = signature.to_vec();
    table.extend(((HEADER + fields.len()) as u32).to_le_bytes());
    // Revision, checksum, and who made it.
    table.extend([1, 0]);
    table.extend(b"VMTAX VMTAX   \x01\0\0\0VMTX\x01\0\0\0");
    table.extend(fields);
    balance(&mut table, 9);
    table
}

/// Sets the byte that makes the sum of all zero.
fn balance(bytes: &mut [u8], at: usize) {
    let sum = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    bytes[at] = sum.wrapping_neg();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(bytes: &[u8]) -> u8 {
        bytes.iter().fold(0, |sum, byte| sum.wrapping_add(*byte))
    }

    #[test]
    fn tables_add_up() {
        let acpi = acpi();
        assert_eq!(&acpi[..8], b"RSD PTR ");
        assert_eq!((sum(&acpi[..20]), sum(&acpi[0x40..0x40 + 40])), (0, 0));
        assert_eq!(&acpi[0x80..0x84], b"FACP");
        assert_eq!((acpi.len() - 0x80, sum(&acpi[0x80..])), (116, 0));
        assert_eq!(acpi[0x80 + 76..0x80 + 80], PM_TIMER.to_le_bytes());
    }

    #[test]
    fn information_is_where_no_image_is() {
        assert_eq!(free_page(&[]), Some(USUAL));
        assert_eq!(free_page(&[0x8000..0x9001, 0x10_0000..0x20_0000]), Some(0xa000));
        let one = |range: Range<u64>| free_page(std::slice::from_ref(&range));
        assert_eq!(one(u64::from(USUAL)..u64::from(LOW_END)), Some(PAGE));
        assert_eq!(one(0..u64::from(HIGH)), None);
        let bytes = information(0x9000, "x.flat a b", 128 << 20);
        assert_eq!(&bytes[LINE as usize..], b"x.flat a b\0");
        assert_eq!(bytes[16..20], (0x9000 + LINE).to_le_bytes());
    }
}
