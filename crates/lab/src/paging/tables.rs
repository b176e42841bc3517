//! The page tables of a guest and of KVM, as far as they were recorded, and the walk of each page.

use std::collections::HashMap;

/// Bits of an entry.
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// The bits of an address within its page.
const IN_PAGE: u64 = 4095;
/// Levels of the guest's tables.
const GUEST_LEVELS: usize = 4;
/// Most entries of tables of a batch, and most pages: those of 16 GiB in pages of 4 KiB, more than a machine has.
const ENTRIES_MOST: usize = 1 << 23;
pub(super) const WALKS_MOST: usize = 1 << 22;

pub(super) fn within(number: usize, most: usize) -> Result<(), String> {
    let is_within = number <= most;
    is_within.then_some(()).ok_or_else(|| "it is of more memory than any guest has".to_owned())
}

/// Bits of an address that a table of this level, from 1, does not translate.
pub(super) const fn shift(level: usize) -> u32 {
    12 + 9 * (level as u32 - 1)
}

/// Recorded entries, and the walks of pages of the guest that executes.
#[derive(Default)]
pub(super) struct Tables {
    cr3: u64,
    ncr3: u64,
    /// Of the nested tables.
    levels: usize,
    /// CR4.PGE.
    has_global: bool,
    /// By host-physical address.
    entries: HashMap<u64, u64>,
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
    /// All entries allow stores.
    is_writable: bool,
}

/// The walk of a guest-virtual page of 4 KiB.
pub(super) struct Walk {
    /// By level from 1, up from that of the page: where the guest's entry is.
    pub(super) entries: [Nested; GUEST_LEVELS],
    /// Level of the entry that maps the page.
    pub(super) leaf: usize,
    pub(super) page: Nested,
    /// A write to CR3 does not drop it.
    pub(super) is_global: bool,
    is_writable: bool,
}

/// Levels of the entries that map a page: of the guest's, and of the host's.
pub(super) type Leaves = (usize, usize);

/// `4K on 2M`: the size of the guest's page, and of the host's.
pub(super) fn sizes((guest, host): Leaves) -> String {
    let name = |level: usize| ["4K", "2M", "1G"].get(level - 1).copied().unwrap_or("512G");
    format!("{} on {}", name(guest), name(host))
}

impl Walk {
    /// Where it leads an address of its page.
    pub(super) fn translated(&self, address: u64) -> u64 {
        self.page.physical & !IN_PAGE | address & IN_PAGE
    }
}

impl Tables {
    /// The guest goes on with these tables: CR3, nCR3 with the number of its levels, CR4.PGE.
    pub(super) fn enter(&mut self, cr3: u64, ncr3: u64, has_global: bool) {
        (self.cr3, self.ncr3, self.has_global) = (cr3 & ADDRESS, ncr3 & ADDRESS, has_global);
        self.levels = ((ncr3 & 7) as usize).clamp(GUEST_LEVELS, 5);
        self.walks.clear();
    }

    /// An entry of tables, as it is from here on.
    pub(super) fn add(&mut self, address: u64, entry: u64) -> Result<(), String> {
        self.entries.insert(address, entry);
        within(self.entries.len(), ENTRIES_MOST)
    }

    /// Translates the page of an address anew. Returns whether it was translated otherwise before, or was read-only and is no longer.
    pub(super) fn translate(&mut self, address: u64) -> Result<bool, String> {
        let page = address & !IN_PAGE;
        let walk = self.walk_of(page).map(Box::new);
        let place = |walk: &Option<Box<Walk>>| {
            walk.as_ref().map(|walk| (walk.translated(page), walk.is_writable))
        };
        let now = place(&walk);
        let before = self.walks.insert(page, walk);
        within(self.walks.len(), WALKS_MOST)?;
        Ok(before.is_some_and(|before| place(&before) != now))
    }

    /// The walk of an address; `None` if the tables do not map it, or it was not translated.
    pub(super) fn walk(&self, address: u64) -> Option<&Walk> {
        self.walks.get(&(address & !IN_PAGE))?.as_deref()
    }

    fn word(&self, address: u64) -> Option<u64> {
        self.entries.get(&address).copied()
    }

    /// The page that an entry of this level maps, if it maps one.
    fn leaf(entry: u64, level: usize, address: u64) -> Option<u64> {
        let mask = (1 << shift(level)) - 1;
        let is_leaf = level == 1 || (level <= 3 && entry & LARGE != 0);
        is_leaf.then_some(entry & ADDRESS & !mask | address & mask)
    }

    fn nested(&self, address: u64) -> Option<Nested> {
        let mut found =
            Nested { address, levels: self.levels, is_writable: true, ..Nested::default() };
        let mut table = self.ncr3;
        for level in (1..=self.levels).rev() {
            let at = table + 8 * (address >> shift(level) & 511);
            let entry = self.word(at).filter(|entry| entry & PRESENT != 0)?;
            found.entries[level - 1] = at;
            found.is_writable &= entry & WRITABLE != 0;
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
        let mut is_writable = true;
        for level in (1..=GUEST_LEVELS).rev() {
            let place = self.nested(table + 8 * (address >> shift(level) & 511))?;
            let entry = self.word(place.physical).filter(|entry| entry & PRESENT != 0)?;
            entries[level - 1] = place;
            is_writable &= entry & WRITABLE != 0;
            if let Some(physical) = Tables::leaf(entry, level, address) {
                let is_global = self.has_global && entry & GLOBAL != 0;
                let page = self.nested(physical)?;
                is_writable &= page.is_writable;
                return Some(Walk { entries, leaf: level, page, is_global, is_writable });
            }
            table = entry & ADDRESS;
        }
        None
    }
}
