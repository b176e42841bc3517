//! Tallies by key: a table of the keys counted lately in front of a hash table.

use std::collections::HashMap;
use std::hash::Hash;

use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use vmtax_events::{AccessKey, Detail, DetailKind, ExitKey, Reason, Tally};

/// Limit of distinct details.
const MAX_KEYS: usize = 16_384;

/// Slots of [`Counts::recent`]: more than a recording has keys that are counted often.
const RECENT: usize = 256;

/// Tallies by key, within one interval.
#[derive(Debug)]
pub(super) struct IntervalCounts<K> {
    index: FxHashMap<K, usize>,
    rows: Vec<(K, Tally)>,
    /// Places in `rows` of keys that were counted lately, by [`Spread`]. A key is compared there faster than it is hashed.
    recent: Box<[usize; RECENT]>,
    /// Every key seen in any interval: up to [`MAX_KEYS`] exact ones, then as many coarse ones.
    known: FxHashSet<K>,
}

/// A number of a few bits that mostly differs where keys do.
pub(super) trait SpreadBits {
    fn spread(&self) -> usize;
}

impl SpreadBits for ExitKey {
    #[inline]
    fn spread(&self) -> usize {
        let ExitKey { vm, vcpu, level, reason, detail, outcome, .. } = self;
        let about = detail.value ^ u64::from(reason.code) << 32 ^ (*outcome as u64) << 48;
        fold(*vm, *vcpu, about ^ (*level as u64) << 56)
    }
}

impl SpreadBits for AccessKey {
    #[inline]
    fn spread(&self) -> usize {
        let AccessKey { vm, vcpu, level, detail } = self;
        fold(*vm, *vcpu, detail.value ^ (detail.kind as u64) << 48 ^ (*level as u64) << 56)
    }
}

#[inline]
fn fold(vm: u32, vcpu: u32, about: u64) -> usize {
    // Multiplied by 2^64 / phi, the upper bits depend on all.
    let who = u64::from(vm) << 32 | u64::from(vcpu);
    let mixed = (about ^ who.rotate_left(20)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize
}

impl<K: Copy + Eq + Hash + SpreadBits> IntervalCounts<K> {
    pub(super) fn new() -> IntervalCounts<K> {
        IntervalCounts {
            index: HashMap::with_hasher(FxBuildHasher),
            rows: Vec::new(),
            recent: Box::new([usize::MAX; RECENT]),
            known: FxHashSet::default(),
        }
    }

    /// Counts one under `key`, or, as `dropped`, under the first key of `coarser` that there is room for.
    #[inline(always)]
    pub(super) fn add(
        &mut self,
        key: &K,
        coarser: fn(&K) -> [K; 2],
        duration: Option<u64>,
        dropped: &mut u64,
    ) {
        let IntervalCounts { rows, recent, .. } = self;
        let tally = match rows.get_mut(recent[key.spread() % RECENT]) {
            Some((known, tally)) if known == key => tally,
            _ => self.find(key, coarser, dropped),
        };
        match duration {
            Some(ns) => tally.add(ns),
            None => tally.add_untimed(1),
        }
    }

    /// Counts several without a time.
    pub(super) fn add_many(
        &mut self,
        key: &K,
        coarser: fn(&K) -> [K; 2],
        count: u64,
        dropped: &mut u64,
    ) {
        self.find(key, coarser, dropped).add_untimed(count);
    }

    /// Looks a key up that was not counted lately.
    #[inline(never)]
    fn find(&mut self, key: &K, coarser: fn(&K) -> [K; 2], dropped: &mut u64) -> &mut Tally {
        let at = match self.index.get(key) {
            Some(&at) => at,
            None => self.insert(key, coarser, dropped),
        };
        self.recent[key.spread() % RECENT] = at;
        &mut self.rows[at].1
    }

    #[cold]
    fn insert(&mut self, exact: &K, coarser: fn(&K) -> [K; 2], dropped: &mut u64) -> usize {
        let mut fits = |key: &K, most: usize| {
            self.known.contains(key) || (self.known.len() < most && self.known.insert(*key))
        };
        let key = if fits(exact, MAX_KEYS) {
            *exact
        } else {
            *dropped += 1;
            let [coarse, coarsest] = coarser(exact);
            // A few more: real recordings have few reasons, however many details.
            if fits(&coarse, 2 * MAX_KEYS) { coarse } else { coarsest }
        };
        if let Some(&at) = self.index.get(&key) {
            return at;
        }
        self.rows.push((key, Tally::default()));
        self.index.insert(key, self.rows.len() - 1);
        self.rows.len() - 1
    }

    /// Hands out the tallies of the interval, and begins another.
    pub(super) fn drain(&mut self) -> std::vec::Drain<'_, (K, Tally)> {
        self.index.clear();
        self.rows.drain(..)
    }
}

/// The exit without its detail, and without its reason too.
pub(super) fn coarser_exits(key: &ExitKey) -> [ExitKey; 2] {
    let without_detail = ExitKey { detail: Detail::new(DetailKind::Overflow, 0), ..*key };
    let reason = Reason { code: u32::MAX, flags: 0, ..key.reason };
    [without_detail, ExitKey { reason, ancillary_of: None, ..without_detail }]
}

/// The access without its object.
pub(super) fn coarser_accesses(key: &AccessKey) -> [AccessKey; 2] {
    [AccessKey { detail: Detail::new(DetailKind::Overflow, 0), ..*key }; 2]
}
