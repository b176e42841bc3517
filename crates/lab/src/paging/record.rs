//! Reads the record of accesses; `crates/machine/recorders/qemu/memory.rs` documents the format.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufReader, Read};

use vmtax_events::Simulated;
use vmtax_guest::layout;

use super::accessed::{InstructionPaging, Outcome, Paging};
use super::model::{Access, Dropped, Model};
use super::processor::Processor;
use super::tables::{Leaves, Tables, WALKS_MOST, sizes, within};

const MAGIC: [u8; 8] = *b"VMTAXMEM";
const VERSION: u64 = 4;
const LOAD: u64 = 0;
const STORE: u64 = 1;
const BEGIN: u64 = 2;
const SPACE: u64 = 3;
const ENTRY: u64 = 4;
const WALK: u64 = 5;
const FLUSH: u64 = 6;
const PAGE: u64 = 7;
const START: u64 = 8;
const PART: u64 = 9;
const EXECUTED: u64 = 10;
const FINISH: u64 = 11;
const END: u64 = 12;
/// Bits of the first word of `SPACE` and of `FLUSH`.
const COUNTED: u64 = 1;
const GLOBAL: u64 = 2;
const ALL: u64 = 1;
/// The bits of CR3 and nCR3 that are an address.
const ROOT: u64 = !0xfff;
/// Bits of the first word behind the kind.
const REST: u32 = 56;
/// Set in addresses of a kernel.
const UPPER_HALF: u64 = 1 << 63;
/// In place of the address of an instruction: of those whose accesses are not counted, and of the guest's kernel.
const UNCOUNTED: u64 = u64::MAX;
const KERNEL: u64 = u64::MAX - 1;
/// Most instructions of a batch that are executed, and that access memory: more than a program has.
const INSTRUCTIONS_MOST: usize = 1 << 20;
/// Size of a read.
const PIECE: usize = 1 << 20;

/// The batch that is being read.
struct Batch {
    tables: Tables,
    models: Vec<Model>,
    /// KVM has no nested tables.
    is_shadowed: bool,
    /// The space is the operation's.
    is_own: bool,
    /// Between marks of the program's own. What comes before the first of them counts until it comes.
    is_part: bool,
    is_marked: bool,
    /// Where its process started, if it is one.
    start: Option<u64>,
    /// Executions of instructions by address.
    executed: BTreeMap<u64, u64>,
    /// Of all of them.
    executions: u64,
    /// Numbers of instructions that access memory by address, and what each accessed.
    numbers: HashMap<u64, usize>,
    by_number: Vec<(u64, u64)>,
    /// Sizes of the pages that were accessed and counted, by whether the kernel did and their addresses.
    pages: HashMap<(bool, u64), Leaves>,
    /// All accesses, counted or not.
    accesses: u64,
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
        let [kind, second, third] = [0, 1, 2].map(|at| u64::from_le_bytes(words[at]));
        let (kind, rest) = (kind >> REST, kind & ((1 << REST) - 1));
        match kind {
            LOAD | STORE => batch.access(
                Access { address: extended(rest), physical: second, is_store: kind == STORE },
                third,
            )?,
            BEGIN => batch = Batch::new(processors),
            SPACE => batch.enter(rest, second, third),
            ENTRY => batch.tables.add(second, third)?,
            WALK => batch.translate(extended(rest))?,
            FLUSH if rest & ALL != 0 => batch.drop_kept(Dropped::All),
            FLUSH => batch.drop_kept(Dropped::NotGlobal),
            PAGE => batch.drop_kept(Dropped::Page(extended(rest))),
            START => batch.start = Some(second),
            PART => batch.part(second == 1),
            EXECUTED if batch.is_part => batch.execute(second, third)?,
            EXECUTED => {}
            FINISH => {
                let mark = u16::try_from(second).ok().and_then(layout::mark);
                let (number, _) = mark.ok_or_else(|| format!("{second:#x} is no mark"))?;
                let finished = std::mem::replace(&mut batch, Batch::new(processors));
                found.insert(number, finished.outcome(processors));
            }
            END => return Ok(()),
            other => return Err(format!("{other:#x} is not a type of entry")),
        }
    }
}

/// A guest-virtual address from its lower bits.
fn extended(rest: u64) -> u64 {
    const ABOVE: u32 = u64::BITS - REST;
    ((rest << ABOVE).cast_signed() >> ABOVE).cast_unsigned()
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
            models: processors.iter().map(Model::new).collect(),
            is_shadowed: false,
            is_own: false,
            is_part: true,
            is_marked: false,
            start: None,
            executed: BTreeMap::new(),
            executions: 0,
            numbers: HashMap::new(),
            by_number: Vec::new(),
            pages: HashMap::new(),
            accesses: 0,
            wrong: None,
        }
    }

    fn counts(&self) -> bool {
        self.is_own && self.is_part
    }

    fn enter(&mut self, flags: u64, cr3: u64, ncr3: u64) {
        self.is_shadowed |= ncr3 & ROOT == 0;
        self.is_own = flags & COUNTED != 0;
        self.tables.enter(cr3, ncr3, flags & GLOBAL != 0);
    }

    fn drop_kept(&mut self, dropped: Dropped) {
        self.models.iter_mut().for_each(|model| model.drop_kept(dropped));
    }

    /// A page that is translated otherwise was dropped by the processor at the latest when it was accessed: a fault drops what it was for.
    fn translate(&mut self, address: u64) -> Result<(), String> {
        if self.tables.translate(address)? {
            self.drop_kept(Dropped::Page(address));
        }
        Ok(())
    }

    /// What was accessed so far stays in TLBs and caches.
    fn part(&mut self, starts: bool) {
        if !std::mem::replace(&mut self.is_marked, true) {
            self.executed.clear();
            self.executions = 0;
            self.pages.clear();
            self.by_number.iter_mut().for_each(|(_, accesses)| *accesses = 0);
            self.models.iter_mut().for_each(|model| model.counts.fill(Simulated::default()));
        }
        self.is_part = starts;
    }

    /// An instruction was executed so often more.
    fn execute(&mut self, address: u64, times: u64) -> Result<(), String> {
        within(self.executed.len(), INSTRUCTIONS_MOST)?;
        // All together are fewer than a clock counts.
        let all = self.executions.checked_add(times);
        self.executions = all.ok_or("its instructions were executed too often")?;
        *self.executed.entry(address).or_default() += times;
        Ok(())
    }

    fn access(&mut self, access: Access, instruction: u64) -> Result<(), String> {
        let Access { address, physical, .. } = access;
        self.accesses += 1;
        let Some(walk) = self.tables.walk(address) else {
            self.differs(format!("the tables do not map {address:#x}"));
            return Ok(());
        };
        let walked = walk.translated(address);
        if walked != physical {
            self.differs(format!(
                "the tables translate {address:#x} to {walked:#x} and the emulator accessed {physical:#x}, by the instruction at {instruction:#x}"
            ));
            return Ok(());
        }
        // What an instruction of a program accesses there is a frame of its interrupt.
        let is_of_kernel = (instruction | address) & UPPER_HALF != 0;
        let place = match (self.counts(), is_of_kernel) {
            (false, _) => UNCOUNTED,
            (true, true) => KERNEL,
            (true, false) => instruction,
        };
        if place != UNCOUNTED {
            self.pages.insert((is_of_kernel, address >> 12), (walk.leaf, walk.page.leaf));
        }
        let next = self.by_number.len();
        let number = *self.numbers.entry(place).or_insert(next);
        if number == next {
            self.by_number.push((place, 0));
        }
        self.by_number[number].1 += 1;
        self.models.iter_mut().for_each(|model| model.access(number, walk, access));
        within(self.by_number.len(), INSTRUCTIONS_MOST)?;
        within(self.pages.len(), WALKS_MOST)
    }

    fn differs(&mut self, how: String) {
        let (_, times) = self.wrong.get_or_insert((how, 0));
        *times += 1;
    }

    fn outcome(self, processors: &'static [Processor]) -> Outcome {
        if self.is_shadowed {
            return Err("KVM has shadow page tables, and nested ones are walked; run it without kvm_amd.npt=0".to_owned());
        }
        if let Some((first, times)) = &self.wrong {
            let all = self.accesses;
            return Err(format!("{times} of {all} accesses differ from the page tables: {first}"));
        }
        if self.is_marked && self.is_part {
            return Err("the program has no mark behind its last part".to_owned());
        }
        let named = |counts: &dyn Fn(&Model) -> Simulated| {
            let names = processors.iter().map(|processor| processor.name.as_str());
            names.zip(self.models.iter().map(counts)).collect::<Vec<_>>()
        };
        let part = |is_kernel: bool| {
            let is_of = |place: u64| place != UNCOUNTED && (place == KERNEL) == is_kernel;
            let numbers: Vec<usize> =
                (0..self.by_number.len()).filter(|at| is_of(self.by_number[*at].0)).collect();
            let sum = |model: &Model| {
                Simulated::sum(&numbers.iter().map(|at| model.counts[*at]).collect::<Vec<_>>())
            };
            let executed =
                self.executed.iter().filter(|(at, _)| (**at & UPPER_HALF != 0) == is_kernel);
            let mut pages = BTreeMap::new();
            let of = self.pages.iter().filter(|((of_kernel, _), _)| *of_kernel == is_kernel);
            of.for_each(|(_, leaves)| *pages.entry(sizes(*leaves)).or_default() += 1);
            Paging {
                accesses: numbers.iter().map(|at| self.by_number[*at].1).sum(),
                executed: executed.map(|(at, times)| (*at, *times)).collect(),
                pages,
                simulated: named(&sum),
                start: self.start,
                ..Paging::default()
            }
        };
        let (own, kernel) = (part(false), part(true));
        if own.accesses == 0 {
            return Err("no access to memory was recorded".to_owned());
        }
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
        instructions.retain(|one| one.accesses > 0 && one.address < KERNEL);
        let kernel = (kernel.accesses > 0).then(|| Box::new(kernel));
        Ok(Paging { instructions, kernel, ..own })
    }
}
