//! Reads the record of accesses; `crates/machine/recorders/qemu/memory.rs` documents the format.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufReader, Read};

use vmtax_events::Simulated;
use vmtax_guest::layout;

use super::accessed::{InstructionPaging, Outcome, Paging};
use super::model::{Access, Model};
use super::processor::Processor;
use super::tables::{PAGE, Tables};

const MAGIC: [u8; 8] = *b"VMTAXMEM";
const VERSION: u64 = 3;
const TAG: u64 = 1 << 63;
const BEGIN: u64 = TAG | 1;
const TABLES: u64 = TAG | 2;
const PAGE_OF_TABLES: u64 = TAG | 3;
const FINISH: u64 = TAG | 4;
const LOST: u64 = TAG | 5;
const END: u64 = TAG | 6;
const EXECUTED: u64 = TAG | 7;
const PART: u64 = TAG | 8;
/// Most pages of tables of a batch: those of 64 GiB in pages of 4 KiB.
const PAGES_MOST: usize = 1 << 16;
/// In place of the address of an instruction whose accesses are not counted.
const UNCOUNTED: u64 = u64::MAX;
/// Size of a read.
const PIECE: usize = 1 << 20;

/// The batch that is being read.
struct Batch {
    tables: Tables,
    pages: usize,
    models: Vec<Model>,
    accesses: u64,
    /// What is read is counted, as it is until the first mark of the program's own, which starts the counts anew.
    counts: bool,
    is_marked: bool,
    /// Executions of instructions by address.
    executed: BTreeMap<u64, u64>,
    /// Numbers of instructions that access memory by address, and what each accessed.
    numbers: HashMap<u64, usize>,
    by_number: Vec<(u64, u64)>,
    /// The first access that the tables translate otherwise, and how many do.
    wrong: Option<(String, u64)>,
}

/// Reads a record to its end, which adds what each operation accessed.
pub(super) fn read(
    input: impl Read,
    processors: &'static [Processor],
    found: &mut BTreeMap<u16, Outcome>,
) -> Result<(), String> {
    let mut input = BufReader::with_capacity(PIECE, input);
    let mut head = [0; 16];
    fill(&mut input, &mut head)?;
    if head[..8] != MAGIC || head[8..] != VERSION.to_le_bytes() {
        return Err("it is no record of accesses of this version".to_owned());
    }
    let mut batch = Batch::new(processors);
    loop {
        let mut entry = [0; 24];
        fill(&mut input, &mut entry)?;
        let (words, _) = entry.as_chunks::<8>();
        let [what, first, second] = [0, 1, 2].map(|at| u64::from_le_bytes(words[at]));
        match what {
            address if address & TAG == 0 => batch.access(address, first, second),
            BEGIN => batch = Batch::new(processors),
            TABLES => batch.tables = Tables::new(first, second),
            PAGE_OF_TABLES => {
                let mut page = vec![0; PAGE].into_boxed_slice();
                fill(&mut input, &mut page)?;
                batch.page(first, page)?;
            }
            FINISH => {
                let mark = u16::try_from(first).ok().and_then(layout::mark);
                let (number, _) = mark.ok_or_else(|| format!("{first:#x} is no mark"))?;
                let finished = std::mem::replace(&mut batch, Batch::new(processors));
                found.insert(number, finished.outcome(processors));
            }
            EXECUTED if batch.counts => *batch.executed.entry(first).or_default() += second,
            EXECUTED => {}
            PART => batch.part(first == 1),
            // The accesses behind it are counted as they come.
            LOST => {
                batch.wrong = Some((format!("no VMCB translates {first:#x} to {second:#x}"), 0));
            }
            END => return Ok(()),
            other => return Err(format!("{other:#x} is not a type of entry")),
        }
    }
}

fn fill(input: &mut impl Read, bytes: &mut [u8]) -> Result<(), String> {
    input.read_exact(bytes).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "it ends without an end mark".to_owned(),
        _ => error.to_string(),
    })
}

impl Batch {
    fn new(processors: &'static [Processor]) -> Batch {
        Batch {
            tables: Tables::default(),
            pages: 0,
            models: processors.iter().map(Model::new).collect(),
            accesses: 0,
            counts: true,
            is_marked: false,
            executed: BTreeMap::new(),
            numbers: HashMap::new(),
            by_number: Vec::new(),
            wrong: None,
        }
    }

    fn page(&mut self, address: u64, page: Box<[u8]>) -> Result<(), String> {
        self.pages += 1;
        if self.pages > PAGES_MOST {
            return Err("its tables are larger than those of any guest".to_owned());
        }
        self.tables.add(address, page);
        Ok(())
    }

    /// What was accessed so far stays in TLBs and caches.
    fn part(&mut self, starts: bool) {
        if !std::mem::replace(&mut self.is_marked, true) {
            self.accesses = 0;
            self.executed.clear();
            self.by_number.iter_mut().for_each(|(_, accesses)| *accesses = 0);
            self.models.iter_mut().for_each(|model| model.counts.fill(Simulated::default()));
            self.tables.forget();
        }
        self.counts = starts;
    }

    fn access(&mut self, address: u64, physical: u64, instruction: u64) {
        let (is_store, physical) = (physical & TAG != 0, physical & !TAG);
        self.accesses += u64::from(self.counts);
        let instruction = if self.counts { instruction } else { UNCOUNTED };
        let Some(walk) = self.tables.walk(address, self.counts) else {
            return self.differs(format!("the tables do not map {address:#x}"));
        };
        let walked = walk.page.physical & !(PAGE as u64 - 1) | address & (PAGE as u64 - 1);
        if walked != physical {
            return self.differs(format!(
                "the tables translate {address:#x} to {walked:#x} and the emulator accessed {physical:#x}, by the instruction at {instruction:#x}"
            ));
        }
        let next = self.by_number.len();
        let number = *self.numbers.entry(instruction).or_insert(next);
        if number == next {
            self.by_number.push((instruction, 0));
        }
        self.by_number[number].1 += 1;
        let access = Access { address, physical, is_store };
        self.models.iter_mut().for_each(|model| model.access(number, walk, access));
    }

    fn differs(&mut self, how: String) {
        let (_, times) = self.wrong.get_or_insert((how, 0));
        *times += 1;
    }

    fn outcome(self, processors: &'static [Processor]) -> Outcome {
        if let Some((first, times)) = self.wrong {
            let all = self.accesses;
            return Err(format!("{times} of {all} accesses differ from the page tables: {first}"));
        }
        if self.is_marked && self.counts {
            return Err("the program has no mark behind its last part".to_owned());
        }
        if self.accesses == 0 {
            return Err("no access to memory was recorded".to_owned());
        }
        let mut pages = BTreeMap::new();
        for walk in self.tables.walked() {
            *pages.entry(walk.sizes()).or_default() += 1;
        }
        let named = |counts: &dyn Fn(&Model) -> Simulated| {
            let names = processors.iter().map(|processor| processor.name.as_str());
            names.zip(self.models.iter().map(counts)).collect()
        };
        let instruction = |(number, (address, accesses)): (usize, &(u64, u64))| InstructionPaging {
            address: *address,
            place: 0,
            text: String::new(),
            accesses: *accesses,
            simulated: named(&|model| model.counts[number]),
        };
        let mut instructions: Vec<InstructionPaging> =
            self.by_number.iter().enumerate().map(instruction).collect();
        instructions.sort_by_key(|one| one.address);
        instructions.retain(|one| one.accesses > 0 && one.address != UNCOUNTED);
        let uncounted = self.numbers.get(&UNCOUNTED).copied();
        let counted = |model: &Model| {
            let all = model.counts.iter().enumerate();
            let counted = all.filter(|(number, _)| Some(*number) != uncounted);
            Simulated::sum(&counted.map(|(_, counts)| *counts).collect::<Vec<_>>())
        };
        let simulated = named(&counted);
        Ok(Paging {
            accesses: self.accesses,
            executed: self.executed,
            pages,
            simulated,
            instructions,
            ..Paging::default()
        })
    }
}
