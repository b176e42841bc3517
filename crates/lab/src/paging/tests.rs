//! Cases that can be counted by hand, on imagined tables.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::Simulated;

use super::*;

/// Where the imagined tables are, and the first page of data on the host.
const GUEST: u64 = 0x10_0000;
const NESTED: u64 = 0x80_0000;
const HOST: u64 = 0x1000_0000;
const DATA: u64 = 1 << 39;
const PAGE: u64 = 4096;
/// The mark of operation 3.
const BEGIN: u64 = vmtax_guest::layout::begin(3) as u64;
const END_OF_BATCH: u64 = vmtax_guest::layout::end(3) as u64;

/// Kinds of entries, and bits of theirs.
const LOAD: u8 = 0;
const STORE: u8 = 1;
const SPACE: u8 = 3;
const ENTRY: u8 = 4;
const WALK: u8 = 5;
const FLUSH: u8 = 6;
const DROP_PAGE: u8 = 7;
const START: u8 = 8;
const PART: u8 = 9;
const EXECUTED: u8 = 10;
const FINISH: u8 = 11;
const END: u8 = 12;
const COUNTED: u64 = 1;
const HAS_GLOBAL: u64 = 2;
const ALL: u64 = 1;
/// An instruction, and one of a kernel.
const PROGRAM: u64 = 0x10_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;

/// A record that is written by hand.
struct Record {
    bytes: Vec<u8>,
    walked: BTreeSet<u64>,
}

impl Record {
    fn new() -> Record {
        let mut bytes = b"VMTAXMEM".to_vec();
        bytes.extend(4_u64.to_le_bytes());
        Record { bytes, walked: BTreeSet::new() }
    }

    fn entry(&mut self, kind: u8, rest: u64, [second, third]: [u64; 2]) {
        let first = u64::from(kind) << 56 | rest & ((1 << 56) - 1);
        self.bytes.extend([first, second, third].into_iter().flat_map(u64::to_le_bytes));
    }

    /// Tables of a guest and a host with so many pages of 4 KiB each from [`DATA`] on, or of as much memory in pages of 2 MiB. Nested tables have 4 levels.
    /// Guest-physical addresses of tables are their host-physical ones; those of data are a GiB lower than on the host.
    fn tables(&mut self, pages: u64, (guest_large, host_large): (bool, bool)) {
        let mut tables = Imagined::default();
        for table in (GUEST..GUEST + 0x10_0000).step_by(PAGE as usize) {
            tables.map((NESTED, table, table, false), &mut (NESTED + PAGE));
        }
        let (mut next_guest, mut next_nested) = (GUEST + PAGE, NESTED + 0x10_0000);
        let step = |large| if large { 512 } else { 1 };
        for page in (0..pages).step_by(step(guest_large)) {
            let (address, physical) = (DATA + page * PAGE, HOST + page * PAGE - (1 << 27));
            tables.map((GUEST, address, physical, guest_large), &mut next_guest);
        }
        for page in (0..pages).step_by(step(host_large)) {
            let (physical, host) = (HOST + page * PAGE - (1 << 27), HOST + page * PAGE);
            tables.map((NESTED, physical, host, host_large), &mut next_nested);
        }
        self.space(COUNTED);
        for (table, entries) in &tables.0 {
            let present = (0..).zip(entries).filter(|(_, entry)| **entry != 0);
            present.for_each(|(at, entry)| self.entry(ENTRY, 0, [table + 8 * at, *entry]));
        }
    }

    fn space(&mut self, flags: u64) {
        self.walked.clear();
        self.entry(SPACE, flags, [GUEST, NESTED | 4]);
    }

    fn access(&mut self, offset: u64) {
        self.accessed(LOAD, offset, PROGRAM);
    }

    /// As the recorder does it: the page is walked before its first access.
    fn accessed(&mut self, kind: u8, offset: u64, instruction: u64) {
        let address = DATA + offset;
        if self.walked.insert(address / PAGE) {
            self.entry(WALK, address, [0, 0]);
        }
        self.entry(kind, address, [HOST + offset, instruction]);
    }

    /// The processor drops what it keeps; pages are walked anew.
    fn drops(&mut self, kind: u8, rest: u64) {
        self.walked.clear();
        self.entry(kind, rest, [0, 0]);
    }

    fn finish(mut self) -> BTreeMap<u16, Outcome> {
        self.entry(FINISH, 0, [END_OF_BATCH, 0]);
        self.entry(END, 0, [0, 0]);
        let mut found = BTreeMap::new();
        record::read(self.bytes.as_slice(), Processor::all(), &mut found).expect("a whole record");
        found
    }

    fn paging(self) -> Paging {
        self.finish().remove(&3).expect("its batch").expect("no difference")
    }

    /// The counts of Zen 4.
    fn zen4(self) -> Simulated {
        zen4(&self.paging())
    }
}

fn zen4(paging: &Paging) -> Simulated {
    paging.simulated.iter().find(|(name, _)| *name == "zen4").expect("it is simulated").1
}

/// Pages of tables by address.
#[derive(Default)]
struct Imagined(BTreeMap<u64, Vec<u64>>);

impl Imagined {
    fn map(&mut self, (root, address, to, large): (u64, u64, u64, bool), next: &mut u64) {
        let mut table = root;
        for level in (if large { 2 } else { 1 }..=4).rev() {
            let entry = &mut self.0.entry(table).or_insert_with(|| vec![0; 512])
                [(address >> (12 + 9 * (level - 1)) & 511) as usize];
            if level == if large { 2 } else { 1 } {
                *entry = to | 3 | if large { 0x80 } else { 0 };
                return;
            }
            if *entry == 0 {
                // Each has a page of its own: those of the first maps are below.
                *entry = *next | 3;
                *next += PAGE;
            }
            table = *entry & !0xfff;
        }
    }
}

fn recorded(pages: u64, large: (bool, bool)) -> Record {
    let mut record = Record::new();
    record.entry(2, 0, [BEGIN, 0]);
    record.tables(pages, large);
    record
}

#[test]
fn a_sequential_scan_walks_once_for_each_page() {
    for (large, walks) in
        [((false, false), 1024), ((false, true), 1024), ((true, false), 1024), ((true, true), 2)]
    {
        let mut record = recorded(1024, large);
        (0..1024 * 512).for_each(|word| record.access(8 * word));
        let counts = record.zen4();
        assert_eq!((counts.l1_misses, counts.walks), (walks, walks), "{large:?}");
        // A line of data comes from memory, and its other words from the L1 cache.
        let data = 1024 * 64 * (275 + 7 * 4);
        assert_eq!(counts.cycles, data + counts.walk_cycles + 7 * walks, "{large:?}");
    }
}

#[test]
fn a_chain_through_more_pages_than_the_second_tlb_has_walks_at_each_load() {
    // 72 and 3,072 entries: within the first, within the second, beyond both.
    for (pages, misses, walks) in [(64, 0, 0), (96, 96, 0), (3072, 3072, 0), (8192, 8192, 8192)] {
        let mut record = recorded(pages, (false, false));
        for _ in 0..3 {
            (0..pages).for_each(|page| record.access(page * PAGE + 64 * (page % 64)));
        }
        let counts = record.zen4();
        // The first round finds nothing.
        assert_eq!(counts.walks, pages + 2 * walks, "{pages}");
        assert_eq!(counts.l1_misses, pages + 2 * misses, "{pages}");
    }
}

#[test]
fn a_first_walk_reads_every_entry_of_both_tables() {
    // Guest and nested tables of 4 levels: 4 + 5 * 4 entries for small pages, less what the walk itself has read.
    for (large, entries) in
        [((false, false), 24), ((true, false), 19), ((false, true), 23), ((true, true), 18)]
    {
        let mut record = recorded(512, large);
        record.access(0);
        let counts = record.zen4();
        assert_eq!(counts.walks, 1);
        let read = counts.all_references();
        // Tables of the guest have neighbours, whose nested walk finds the upper entries again.
        assert!(read < entries && read >= 8, "{large:?}: {read}");
        assert_eq!(counts.references[0], 0, "the walker reads from the L2 cache on");
    }
}

#[test]
fn an_access_that_the_tables_translate_otherwise_fails_its_operation() {
    let mut record = recorded(512, (false, false));
    record.access(0);
    record.entry(LOAD, DATA + 8, [HOST + 16, 0x10_0007]);
    record.entry(LOAD, DATA + (1 << 30), [HOST, 0x10_0007]);
    let problem = record.finish().remove(&3).expect("its batch").expect_err("it differs");
    assert_eq!(
        problem,
        "2 of 3 accesses differ from the page tables: the tables translate 0x8000000008 to 0x10000008 and the emulator accessed \
         0x10000010, by the instruction at 0x100007"
    );
    let empty = recorded(512, (false, false)).finish().remove(&3).expect("its batch");
    assert_eq!(empty, Err("no access to memory was recorded".to_owned()));
    // Walked with other tables.
    let mut other = recorded(512, (false, false));
    other.access(0);
    other.entry(SPACE, COUNTED, [GUEST + PAGE, NESTED | 4]);
    other.entry(LOAD, DATA, [HOST, PROGRAM]);
    let problem = other.finish().remove(&3).expect("its batch").expect_err("it differs");
    assert!(problem.ends_with("the tables do not map 0x8000000000"), "{problem}");
}

#[test]
fn shadow_page_tables_are_not_walked() {
    let mut record = recorded(8, (false, false));
    record.entry(SPACE, COUNTED, [GUEST, 4]);
    record.access(0);
    let problem = record.finish().remove(&3).expect("its batch").expect_err("it has no tables");
    assert!(problem.ends_with("run it without kvm_amd.npt=0"), "{problem}");
}

#[test]
fn a_record_that_is_cut_or_corrupt_is_rejected() {
    let mut record = recorded(8, (false, false));
    record.access(0);
    record.entry(FINISH, 0, [END_OF_BATCH, 0]);
    let whole = record.bytes;
    let read = |bytes: &[u8]| {
        let mut found = BTreeMap::new();
        record::read(bytes, Processor::all(), &mut found).map(|()| found)
    };
    for length in (0..whole.len()).step_by(7).chain([whole.len()]) {
        assert_eq!(read(&whole[..length]), Err("it ends without an end mark".to_owned()));
    }
    let mut older = whole.clone();
    older[8] = 3;
    assert_eq!(read(&older), Err("it is no record of accesses of this version".to_owned()));
    for (entry, problem) in [
        ([13 << 56, 0, 0], "0xd is not a type of entry"),
        ([u64::from(FINISH) << 56, 1, 0], "0x1 is no mark"),
        ([u64::from(FINISH) << 56, u64::MAX, 0], "0xffffffffffffffff is no mark"),
    ] {
        let bytes = entry.map(u64::to_le_bytes).concat();
        assert_eq!(read(&[&whole[..], &bytes].concat()), Err(problem.to_owned()));
    }
    // Tables that lead to themselves, and levels that there are not.
    for (cr3, ncr3) in [(u64::MAX, u64::MAX), (0, 7), (GUEST, 0), (GUEST, GUEST | 5)] {
        let mut record = Record::new();
        record.entry(SPACE, u64::MAX, [cr3, ncr3]);
        record.entry(ENTRY, 0, [GUEST, GUEST | 3]);
        record.entry(ENTRY, 0, [0, 0x83]);
        record.entry(ENTRY, 0, [u64::MAX, u64::MAX]);
        for address in [0, DATA, u64::MAX] {
            record.entry(WALK, address, [0, 0]);
            record.entry(LOAD, address, [0, 0]);
        }
        assert!(record.finish().contains_key(&3));
    }
}

#[test]
fn what_a_processor_drops_is_walked_again() {
    // Two pages of 4 KiB, or one of 2 MiB; then something is dropped, and both are accessed again.
    let of = |large, drop: &dyn Fn(&mut Record)| {
        let mut record = recorded(512, large);
        record.access(0);
        record.access(PAGE);
        drop(&mut record);
        record.access(0);
        record.access(PAGE);
        record.zen4().walks
    };
    let inval = |record: &mut Record| record.drops(DROP_PAGE, DATA + PAGE + 5);
    // A large page of the guest on small ones of the host has an entry for each, and all are dropped.
    assert_eq!(of((true, false), &|_| {}), 2);
    assert_eq!(of((true, false), &inval), 4);
    assert_eq!(of((false, true), &inval), 3);
    let walks = |large, drop: &dyn Fn(&mut Record)| of((large, large), drop);
    for large in [false, true] {
        let once = if large { 1 } else { 2 };
        assert_eq!(walks(large, &|_| {}), once);
        // Another entry to the guest, without a flush.
        assert_eq!(walks(large, &|record| record.space(COUNTED)), once);
        assert_eq!(walks(large, &|record| record.drops(FLUSH, 0)), 2 * once);
        assert_eq!(walks(large, &|record| record.drops(FLUSH, ALL)), 2 * once);
        // One entry, whatever its size.
        assert_eq!(walks(large, &inval), once + 1);
    }
}

/// A store to a page that was read-only has faulted, which drops the page.
#[test]
fn a_page_that_becomes_writable_is_walked_again() {
    let walks = |before: u64, after: u64| {
        let mut record = recorded(8, (false, false));
        let at = GUEST + 3 * PAGE;
        let frame = HOST - (1 << 27);
        record.entry(ENTRY, 0, [at, frame | before]);
        record.entry(WALK, DATA, [0, 0]);
        record.access(0);
        record.entry(ENTRY, 0, [at, frame | after]);
        record.entry(WALK, DATA, [0, 0]);
        record.access(0);
        record.zen4().walks
    };
    assert_eq!([walks(1, 3), walks(3, 3), walks(1, 1)], [2, 1, 1]);
}

#[test]
fn instructions_are_not_executed_more_often_than_can_be_counted() {
    let mut record = recorded(8, (false, false));
    record.access(0);
    for _ in 0..2 {
        record.entry(EXECUTED, 0, [PROGRAM, u64::MAX / 2 + 1]);
    }
    let mut found = BTreeMap::new();
    let problem = super::record::read(&record.bytes[..], Processor::all(), &mut found).unwrap_err();
    assert_eq!(problem, "its instructions were executed too often");
}

#[test]
fn a_write_to_cr3_keeps_global_pages() {
    const GLOBAL: u64 = 1 << 8;
    let walks = |has_global, drop: u64| {
        let mut record = recorded(8, (false, false));
        // The first page of data, in the lowest of the guest's tables.
        let entry = (HOST - (1 << 27)) | 3 | GLOBAL;
        record.entry(ENTRY, 0, [GUEST + 3 * PAGE, entry]);
        record.space(COUNTED | if has_global { HAS_GLOBAL } else { 0 });
        for _ in 0..2 {
            record.access(0);
            record.access(PAGE);
            record.drops(FLUSH, drop);
        }
        record.zen4().walks
    };
    assert_eq!([(true, 0), (true, ALL), (false, 0)].map(|(has, drop)| walks(has, drop)), [3, 4, 4]);
}

#[test]
fn the_walker_keeps_nested_entries_over_a_write_to_cr3() {
    let references = |drop: Option<(u8, u64)>| {
        let mut record = recorded(512, (false, false));
        record.access(0);
        if let Some((kind, rest)) = drop {
            record.drops(kind, rest);
        }
        record.access(PAGE);
        record.zen4().all_references()
    };
    let [nothing, cr3, page, all] =
        [None, Some((FLUSH, 0)), Some((DROP_PAGE, DATA)), Some((FLUSH, ALL))].map(references);
    // Three entries of the guest's upper tables are read again, their translations are kept.
    assert_eq!((cr3 - nothing, page), (3, cr3));
    assert_eq!(all - cr3, 8, "{nothing} {cr3} {all}");
}

#[test]
fn a_translation_that_changes_is_dropped() {
    let mut record = recorded(8, (false, false));
    record.access(0);
    // Copied on a write: the guest's entry leads to its next page.
    record.entry(ENTRY, 0, [GUEST + 3 * PAGE, (HOST + PAGE - (1 << 27)) | 3]);
    record.entry(WALK, DATA, [0, 0]);
    record.entry(STORE, DATA, [HOST + PAGE, PROGRAM]);
    // Walked again as it is.
    record.entry(WALK, DATA, [0, 0]);
    record.entry(LOAD, DATA, [HOST + PAGE, PROGRAM]);
    assert_eq!(record.zen4().walks, 2);
}

#[test]
fn a_process_and_its_kernel_are_apart_and_others_are_not_counted() {
    let mut record = recorded(64, (false, false));
    record.space(0);
    record.accessed(LOAD, 9 * PAGE, PROGRAM);
    record.space(COUNTED);
    record.entry(START, 0, [PROGRAM, 0]);
    record.access(0);
    record.accessed(STORE, PAGE, KERNEL);
    record.accessed(STORE, 0, KERNEL);
    record.entry(EXECUTED, 0, [PROGRAM, 5]);
    record.entry(EXECUTED, 0, [KERNEL, 7]);
    record.space(0);
    record.accessed(LOAD, 0, PROGRAM);
    let paging = record.paging();
    let kernel = paging.kernel.as_deref().expect("its kernel");
    assert_eq!((paging.accesses, kernel.accesses, paging.start), (1, 2, Some(PROGRAM)));
    assert_eq!((zen4(&paging).walks, zen4(kernel).walks), (1, 1));
    let one = |number| BTreeMap::from([("4K on 4K".to_owned(), number)]);
    assert_eq!((&paging.pages, &kernel.pages), (&one(1), &one(2)));
    assert_eq!(paging.executed, BTreeMap::from([(PROGRAM, 5)]));
    assert_eq!(kernel.executed, BTreeMap::from([(KERNEL, 7)]));
    assert_eq!(paging.instructions.len(), 1);
}

#[test]
fn what_comes_before_the_first_mark_of_a_program_fills_its_tlbs() {
    let mut record = recorded(64, (false, false));
    record.access(0);
    record.entry(EXECUTED, 0, [PROGRAM, 1]);
    record.entry(PART, 0, [1, 0]);
    record.access(0);
    record.access(PAGE);
    record.entry(EXECUTED, 0, [PROGRAM, 2]);
    record.entry(PART, 0, [0, 0]);
    record.access(2 * PAGE);
    let paging = record.paging();
    assert_eq!((paging.accesses, zen4(&paging).walks), (2, 1));
    assert_eq!(paging.executed, BTreeMap::from([(PROGRAM, 2)]));
    let mut open = recorded(64, (false, false));
    open.entry(PART, 0, [1, 0]);
    open.access(0);
    let problem = open.finish().remove(&3).expect("its batch").expect_err("it has no end");
    assert_eq!(problem, "the program has no mark behind its last part");
}

#[test]
fn every_number_of_a_processor_has_a_source() {
    for processor in Processor::all() {
        assert!(!processor.name.is_empty() && !processor.title.is_empty());
        for (part, source) in processor.sources() {
            assert!(source.len() > 20, "{}: {part}: {source:?}", processor.name);
        }
    }
}
