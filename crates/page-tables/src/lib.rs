//! Page tables of x86-64 with which a machine starts: the boot disk of an emulated host has them, and the VMs inside it.

/// Bytes that the tables take.
pub const BYTES: usize = 6 * 4096;

const PRESENT_WRITABLE: u64 = 3;
const LARGE: u64 = 0x80;

/// Tables of four levels, to be placed at this address, that map the first 4 GiB to themselves in pages of 2 MiB.
pub fn identity_map(at: u64) -> Vec<u8> {
    let mut entries = vec![0_u64; BYTES / 8];
    entries[0] = (at + 0x1000) | PRESENT_WRITABLE;
    for directory in 0..4 {
        entries[512 + directory] = (at + 0x2000 + 0x1000 * directory as u64) | PRESENT_WRITABLE;
    }
    for (index, entry) in entries[1024..].iter_mut().enumerate() {
        *entry = (index as u64) << 21 | PRESENT_WRITABLE | LARGE;
    }
    entries.iter().flat_map(|entry| entry.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the tables at `at` map an address to.
    fn walked(tables: &[u8], at: u64, address: u64) -> u64 {
        let entry = |table: u64, index: u64| {
            let from = (table - at + 8 * index) as usize;
            u64::from_le_bytes(tables[from..from + 8].try_into().expect("eight bytes"))
        };
        let next = |entry: u64| {
            assert_eq!(entry & 0xfff, PRESENT_WRITABLE);
            entry & !0xfff
        };
        let pointers = next(entry(at, address >> 39 & 511));
        let directory = next(entry(pointers, address >> 30 & 511));
        let page = entry(directory, address >> 21 & 511);
        assert_eq!(page & 0x1f_ffff, PRESENT_WRITABLE | LARGE);
        page & !0x1f_ffff | address & 0x1f_ffff
    }

    #[test]
    fn each_address_is_mapped_to_itself() {
        let at = 0x3_0000;
        let tables = identity_map(at);
        assert_eq!(tables.len(), BYTES);
        for address in [0, 0x1234, 0x20_0000, 0x7fff_ffff, 0xc000_0001, u64::from(u32::MAX)] {
            assert_eq!(walked(&tables, at, address), address);
        }
    }
}
