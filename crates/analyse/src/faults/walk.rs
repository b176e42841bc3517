//! How many entries of page tables a processor reads at a TLB miss in a VM: a model, no measurement. Caches of the processor for upper
//! levels, which shorten most walks, are left out.

/// The size of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// As tables name it.
    pub name: &'static str,
    /// Levels of tables that a walk to it does not go down.
    saved: u32,
}

/// The sizes of x86.
pub const SIZES: [Size; 3] =
    [Size { name: "4K", saved: 0 }, Size { name: "2M", saved: 1 }, Size { name: "1G", saved: 2 }];

/// Entries read by a walk with so many levels (4 or 5) in the guest's tables and in the nested ones.
///
/// Each entry of the guest's tables is read, and its address is translated by a nested walk; one more translates the final address.
pub const fn entries(levels: u32, guest: Size, nested: Size) -> u32 {
    let (guest, nested) = (levels - guest.saved, levels - nested.saved);
    guest + (guest + 1) * nested
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of docs/lab-memory.md, row by row.
    #[test]
    fn the_table_of_the_documents_is_computed() {
        let text = include_str!("../../../../docs/lab-memory.md");
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| line.starts_with("| guest pages of "))
            .map(|line| line.trim_matches(['|', ' ']).split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows.len(), 6);
        for (index, row) in rows.iter().enumerate() {
            let (levels, guest) = (4 + index as u32 / 3, SIZES[index % 3]);
            let name = format!("guest pages of {}", guest.name);
            let tables = format!("{levels} levels in both");
            assert!(row[0].starts_with(&name), "{row:?}");
            assert!(index % 3 > 0 || row[0].ends_with(&tables), "{row:?}");
            let wanted = SIZES.map(|nested| entries(levels, guest, nested).to_string());
            assert_eq!(row[1..], wanted, "{name}, {tables}");
        }
    }
}
