//! Cases that can be counted by hand, on imagined tables.

use std::collections::BTreeMap;

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

/// A record that is written by hand.
struct Record(Vec<u8>);

impl Record {
    fn new() -> Record {
        let mut record = Record(b"VMTAXMEM".to_vec());
        record.0.extend(3_u64.to_le_bytes());
        record
    }

    fn entry(&mut self, words: [u64; 3]) {
        self.0.extend(words.into_iter().flat_map(u64::to_le_bytes));
    }

    fn tagged(&mut self, tag: u64, first: u64, second: u64) {
        self.entry([1 << 63 | tag, first, second]);
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
        self.tagged(2, GUEST, NESTED | 4);
        for (address, table) in &tables.0 {
            self.tagged(3, *address, 0);
            self.0.extend(table.iter().flat_map(|entry| entry.to_le_bytes()));
        }
    }

    fn access(&mut self, offset: u64) {
        self.entry([DATA + offset, HOST + offset, 0x10_0000]);
    }

    fn finish(mut self) -> BTreeMap<u16, Outcome> {
        self.tagged(4, END_OF_BATCH, 0);
        self.tagged(6, 0, 0);
        let mut found = BTreeMap::new();
        record::read(self.0.as_slice(), Processor::all(), &mut found).expect("a whole record");
        found
    }

    /// The counts of Zen 4.
    fn zen4(self) -> Simulated {
        let paging = self.finish().remove(&3).expect("its batch").expect("no difference");
        paging.simulated.iter().find(|(name, _)| *name == "zen4").expect("it is simulated").1
    }
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
    record.tagged(1, BEGIN, 0);
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
    record.entry([DATA + 8, HOST + 16, 0x10_0007]);
    record.entry([DATA + (1 << 30), HOST, 0x10_0007]);
    let problem = record.finish().remove(&3).expect("its batch").expect_err("it differs");
    assert_eq!(
        problem,
        "2 of 3 accesses differ from the page tables: the tables translate 0x8000000008 to 0x10000008 and the emulator accessed \
         0x10000010, by the instruction at 0x100007"
    );
    let empty = recorded(512, (false, false)).finish().remove(&3).expect("its batch");
    assert_eq!(empty, Err("no access to memory was recorded".to_owned()));
    let mut found = BTreeMap::new();
    let cut = recorded(512, (false, false)).0;
    let read = record::read(&cut[..cut.len() - 9], Processor::all(), &mut found);
    assert_eq!(read, Err("it ends without an end mark".to_owned()));
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
