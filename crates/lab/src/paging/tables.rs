//! The page tables of a guest and of KVM, as they were recorded, and the walk of each page.

use std::collections::HashMap;

/// Bits of an entry.
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// Levels of the guest's tables.
const GUEST_LEVELS: usize = 4;

/// Bits of an address that a table of this level, from 1, does not translate.
pub(super) const fn shift(level: usize) -> u32 {
    12 + 9 * (level as u32 - 1)
}

/// Recorded pages.
#[derive(Default)]
pub(super) struct Tables {
    cr3: u64,
    ncr3: u64,
    /// Of the nested tables.
    levels: usize,
    pages: HashMap<u64, Box<[u8]>>,
    /// By guest-virtual page of 4 KiB; `None` for one that is not mapped.
    walks: HashMap<u64, Option<Box<Walk>>>,
}

/// The walk of a guest-physical address.
#[derive(Clone, Copy, Default)]
pub(super) struct Nested {
    pub(super) address: u64,
    /// Addresses of the entries by level, from 1; up from that of the page.
    pub(super) entries: [u64; 5],
    /// Level of the entry that maps the page: 1 for 4 KiB, 2 for 2 MiB.
    pub(super) leaf: usize,
    /// Levels of the tables.
    pub(super) levels: usize,
    pub(super) physical: u64,
}

/// The walk of a guest-virtual page of 4 KiB.
pub(super) struct Walk {
    /// By level from 1, up from that of the page: where the guest's entry is.
    pub(super) entries: [Nested; GUEST_LEVELS],
    /// Level of the entry that maps the page.
    pub(super) leaf: usize,
    pub(super) page: Nested,
    /// Whether an access is counted that took it.
    is_counted: bool,
}

impl Walk {
    /// `4K on 2M`: the size of the guest's page, and of the host's.
    pub(super) fn sizes(&self) -> String {
        let name = |level: usize| ["4K", "2M", "1G"].get(level - 1).copied().unwrap_or("512G");
        format!("{} on {}", name(self.leaf), name(self.page.leaf))
    }
}

impl Tables {
    /// Without pages yet.
    pub(super) fn new(cr3: u64, ncr3: u64) -> Tables {
        Tables {
            cr3: cr3 & ADDRESS,
            ncr3: ncr3 & ADDRESS,
            levels: ((ncr3 & 7) as usize).clamp(GUEST_LEVELS, 5),
            ..Tables::default()
        }
    }

    pub(super) fn add(&mut self, address: u64, page: Box<[u8]>) {
        self.pages.insert(address, page);
    }

    /// The walk of an address, for an access that is counted or not; `None` if the tables do not map it.
    pub(super) fn walk(&mut self, address: u64, counts: bool) -> Option<&Walk> {
        let page = address >> 12;
        if !self.walks.contains_key(&page) {
            let walk = self.walk_of(page << 12).map(Box::new);
            self.walks.insert(page, walk);
        }
        let walk = self.walks.get_mut(&page)?.as_deref_mut()?;
        walk.is_counted |= counts;
        Some(walk)
    }

    /// The walks of all accesses that were counted.
    pub(super) fn walked(&self) -> impl Iterator<Item = &Walk> {
        self.walks.values().flatten().map(Box::as_ref).filter(|walk| walk.is_counted)
    }

    /// No access so far is counted.
    pub(super) fn forget(&mut self) {
        self.walks.values_mut().flatten().for_each(|walk| walk.is_counted = false);
    }

    fn word(&self, address: u64) -> Option<u64> {
        let page = self.pages.get(&(address & !(PAGE as u64 - 1)))?;
        let offset = address as usize & (PAGE - 1);
        Some(u64::from_le_bytes(page.get(offset..offset + 8)?.try_into().ok()?))
    }

    /// The page that an entry of this level maps, if it maps one.
    fn leaf(entry: u64, level: usize, address: u64) -> Option<u64> {
        let mask = (1 << shift(level)) - 1;
        let is_leaf = level == 1 || (level <= 3 && entry & LARGE != 0);
        is_leaf.then_some(entry & ADDRESS & !mask | address & mask)
    }

    fn nested(&self, address: u64) -> Option<Nested> {
        let mut found = Nested { address, levels: self.levels, ..Nested::default() };
        let mut table = self.ncr3;
        for level in (1..=self.levels).rev() {
            let at = table + 8 * (address >> shift(level) & 511);
            let entry = self.word(at).filter(|entry| entry & PRESENT != 0)?;
            found.entries[level - 1] = at;
            if let Some(physical) = Tables::leaf(entry, level, address) {
                return Some(Nested { leaf: level, physical, ..found });
            }
            table = entry & ADDRESS;
        }
        None
    }

    fn walk_of(&self, address: u64) -> Option<Walk> {
        let mut entries = [Nested::default(); GUEST_LEVELS];
        let mut table = self.cr3;
        for level in (1..=GUEST_LEVELS).rev() {
            let place = self.nested(table + 8 * (address >> shift(level) & 511))?;
            let entry = self.word(place.physical).filter(|entry| entry & PRESENT != 0)?;
            entries[level - 1] = place;
            if let Some(physical) = Tables::leaf(entry, level, address) {
                return Some(Walk {
                    entries,
                    leaf: level,
                    page: self.nested(physical)?,
                    is_counted: false,
                });
            }
            table = entry & ADDRESS;
        }
        None
    }
}
