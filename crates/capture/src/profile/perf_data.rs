//! `perf.data` with samples. Addresses become names by way of [`SymbolNames`], which the caller has: this crate opens no files.
//!
//! ```text
//! samples ──> stacks of addresses, added up by thread ──┐
//! mappings, forks, names of threads ────────────────────┴──> at the end: names, stacks of names, added up
//! ```
//!
//! Records of different CPUs are not in time order, and a sample may precede its mapping. So names are looked up at the end, by the mappings
//! at the time of the last sample of a stack.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};

use vmtax_events::{Event, NO_PID, ProfileOrigin};

use super::{ImportedProfile, MOST_BYTES, MOST_STACKS, StackSum, of_file, one_frame};
use crate::import::{ImportSource, perf_data};
use crate::{Error, Feed, Mode, ProfileRecord};

/// More mappings, and more names of threads, than a recording has.
const MOST_MAPPINGS: usize = 1 << 20;
/// Comparisons after which addresses and threads go without a name: lists are searched from their ends, and a real
/// recording needs a thousandth of this.
const MOST_LOOKS: u64 = 1 << 30;
/// Most generations of parents searched for a mapping.
const GENERATIONS: usize = 16;

/// Knows the names of functions.
pub trait SymbolNames {
    /// The kernel's function at this address; `text` is where the recorded kernel's own text began.
    fn kernel(&mut self, address: u64, text: Option<u64>) -> Option<String>;
    /// The function at this place in a file. Hostile path.
    fn file(&mut self, path: &str, offset: u64) -> Option<String>;
}

/// No names at all.
#[derive(Clone, Copy, Debug)]
pub struct NoSymbols;

impl SymbolNames for NoSymbols {
    fn kernel(&mut self, _address: u64, _text: Option<u64>) -> Option<String> {
        None
    }

    fn file(&mut self, _path: &str, _offset: u64) -> Option<String> {
        None
    }
}

pub(super) fn import(
    source: ImportSource<'_>,
    place: ProfileOrigin,
    symbols: &mut dyn SymbolNames,
) -> Result<ImportedProfile, Error> {
    let mut collected = Collected::default();
    let about = match source {
        ImportSource::Random(source) if is_pipe(source)? => {
            let mut input = crate::import::FrontToBack { source, at: 0 };
            perf_data::import_pipe(&mut input, 0, &mut collected)?
        }
        ImportSource::Random(source) => perf_data::import_file(source, 0, &mut collected)?,
        ImportSource::Folder(data, parts) => perf_data::import_folder(data, parts, &mut collected)?,
        ImportSource::Stream(input) => perf_data::import_pipe(input, 0, &mut collected)?,
    };
    let mut sum = StackSum::new(place);
    sum.losses = about.losses;
    collected.fold(symbols, &mut sum);
    Ok(sum.finish())
}

fn is_pipe(source: &dyn crate::source::ReadAt) -> Result<bool, Error> {
    let mut head = [0; 16];
    source.read_at(0, &mut head).map_err(|source| Error::Io { offset: 0, source })?;
    Ok(perf_data::recognise_pipe(&head))
}

/// A stack of addresses of one thread.
#[derive(PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Stack {
    pid: u32,
    tid: u32,
    mode: Mode,
    addresses: Box<[u64]>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct SeenMappings {
    /// Sum of the periods.
    weight: u64,
    /// The last time.
    time_ns: u64,
}

struct CodeMapping {
    time_ns: u64,
    start: u64,
    len: u64,
    offset: u64,
    name: String,
}

#[derive(Default)]
struct Collected {
    stacks: HashMap<Stack, SeenMappings>,
    words: usize,
    dropped: u64,
    mappings: HashMap<u32, Vec<CodeMapping>>,
    mapped: usize,
    parents: HashMap<u32, u32>,
    /// Who began a thread, and when.
    beginners: HashMap<u32, (u32, u64)>,
    names: HashMap<u32, Vec<(u64, String)>>,
    named: usize,
    /// Mappings and names that there was no room for.
    unheld: u64,
    /// Comparisons that were made to find names.
    looks: Cell<u64>,
}

impl Feed for Collected {
    const WANTS_PROFILE: bool = true;

    fn event(&mut self, _event: Event) -> Result<(), Error> {
        Ok(())
    }

    fn profiled(&mut self, part: ProfileRecord<'_>) -> Result<(), Error> {
        match part {
            ProfileRecord::Sample { pid, tid, time_ns, period, mode, addresses } => {
                let stack = Stack { pid, tid, mode, addresses: addresses.into() };
                let is_full = self.stacks.len() >= MOST_STACKS || self.words * 8 >= MOST_BYTES;
                if is_full && !self.stacks.contains_key(&stack) {
                    self.dropped = self.dropped.saturating_add(period);
                    return Ok(());
                }
                let words = stack.addresses.len();
                let seen = self.stacks.entry(stack).or_default();
                if *seen == SeenMappings::default() {
                    self.words += words;
                }
                seen.weight = seen.weight.saturating_add(period);
                seen.time_ns = seen.time_ns.max(time_ns);
            }
            ProfileRecord::Mapping { pid, time_ns, start, len, offset, name } => {
                if self.mapped < MOST_MAPPINGS {
                    self.mapped += 1;
                    let mapping =
                        CodeMapping { time_ns, start, len, offset, name: name.to_owned() };
                    self.mappings.entry(pid).or_default().push(mapping);
                } else {
                    self.unheld += 1;
                }
            }
            ProfileRecord::Fork { pid, tid, parent, parent_tid, time_ns } => {
                if self.beginners.len() < MOST_MAPPINGS {
                    self.beginners.insert(tid, (parent_tid, time_ns));
                    if pid != parent {
                        self.parents.insert(pid, parent);
                    }
                } else {
                    self.unheld += 1;
                }
            }
            ProfileRecord::Name { tid, time_ns, name } => {
                if self.named < MOST_MAPPINGS {
                    self.named += 1;
                    self.names.entry(tid).or_default().push((time_ns, name.to_owned()));
                } else {
                    self.unheld += 1;
                }
            }
        }
        Ok(())
    }
}

impl Collected {
    fn fold(&self, symbols: &mut dyn SymbolNames, sum: &mut StackSum) {
        let text = self.kernel_text();
        let mut known: HashMap<(u32, Mode, u64), String> = HashMap::new();
        // In a fixed order, so that the same entries are dropped in every run.
        let stacks: BTreeMap<&Stack, &SeenMappings> = self.stacks.iter().collect();
        for (stack, seen) in stacks {
            let mut mode = stack.mode;
            let mut frames: Vec<String> = Vec::with_capacity(stack.addresses.len());
            for &address in &stack.addresses {
                if address >= ProfileRecord::MODES {
                    mode = Mode::of_context(address);
                    continue;
                }
                let pid = if mode == Mode::User { stack.pid } else { NO_PID };
                let frame = known
                    .entry((pid, mode, address))
                    .or_insert_with(|| self.name(stack.pid, mode, address, seen, text, symbols));
                frames.push(frame.clone());
            }
            let mut folded = one_frame(self.thread(stack, seen));
            for frame in frames.iter().rev() {
                folded.push(';');
                folded.push_str(frame);
            }
            sum.add(&folded, seen.weight);
        }
        sum.dropped = sum.dropped.saturating_add(self.dropped);
        if self.unheld > 0 {
            let note = format!(
                "{} profile: {} mappings and names of threads beyond the first {MOST_MAPPINGS} are left out: names may be missing or wrong",
                sum.profile.place.name(),
                self.unheld
            );
            sum.losses.notes.push(note);
        }
        if self.looks.get() >= MOST_LOOKS {
            let note = format!(
                "{} profile: names were looked for so long that some are left unknown",
                sum.profile.place.name()
            );
            sum.losses.notes.push(note);
        }
    }

    /// Counts a comparison; whether one more may be made.
    fn may_look(&self) -> bool {
        let looks = self.looks.get();
        self.looks.set(looks.saturating_add(1));
        looks < MOST_LOOKS
    }

    /// The thread's name when it was last seen.
    fn thread(&self, stack: &Stack, seen: &SeenMappings) -> &str {
        if stack.pid == 0 && stack.tid == 0 {
            return "swapper";
        }
        // A thread inherits the name of its creator until it gets its own.
        let (mut tid, mut time_ns) = (stack.tid, seen.time_ns);
        for _ in 0..GENERATIONS {
            let names = self.names.get(&tid).map_or(&[][..], Vec::as_slice);
            let mut newest_first = names.iter().rev().take_while(|_| self.may_look());
            if let Some((_, name)) = newest_first.find(|(time, _)| *time <= time_ns) {
                return name;
            }
            match self.beginners.get(&tid) {
                Some((beginner, when)) => (tid, time_ns) = (*beginner, *when),
                None => break,
            }
        }
        let any = |id: u32| Some(self.names.get(&id)?.first()?.1.as_str());
        any(stack.tid).or_else(|| any(stack.pid)).unwrap_or("[unknown]")
    }

    /// Where the kernel's text began: its mapping's place says it, whatever the address space's layout.
    fn kernel_text(&self) -> Option<u64> {
        let kernel = self.mappings.get(&NO_PID)?;
        kernel.iter().find(|m| m.name.starts_with("[kernel.kallsyms]")).map(|m| m.offset)
    }

    fn name(
        &self,
        pid: u32,
        mode: Mode,
        address: u64,
        seen: &SeenMappings,
        text: Option<u64>,
        symbols: &mut dyn SymbolNames,
    ) -> String {
        match mode {
            Mode::Kernel => {
                let name = symbols.kernel(address, text).map(|name| one_frame(&name));
                let module = || self.mapping(NO_PID, address, u64::MAX);
                name.unwrap_or_else(|| module().map_or("[kernel]".to_owned(), |m| of_file(&m.name)))
            }
            Mode::User => {
                let Some(mapping) = self.mapping(pid, address, seen.time_ns) else {
                    return "[unknown]".to_owned();
                };
                let offset = (address - mapping.start).saturating_add(mapping.offset);
                let name = symbols.file(&mapping.name, offset).map(|name| one_frame(&name));
                name.unwrap_or_else(|| of_file(&mapping.name))
            }
            Mode::Guest => "[guest]".to_owned(),
            Mode::Unknown => "[unknown]".to_owned(),
        }
    }

    /// The mapping there: of the process, or of the process that it was forked from.
    fn mapping(&self, mut pid: u32, address: u64, time_ns: u64) -> Option<&CodeMapping> {
        for _ in 0..GENERATIONS {
            let holds =
                |m: &&CodeMapping| address.checked_sub(m.start).is_some_and(|at| at < m.len);
            let newest_first = self.mappings.get(&pid).into_iter().flatten().rev();
            let here = newest_first.take_while(|_| self.may_look()).filter(holds);
            let mut newest = None;
            for mapping in here {
                if mapping.time_ns <= time_ns {
                    return Some(mapping);
                }
                newest = newest.or(Some(mapping));
            }
            if newest.is_some() {
                return newest;
            }
            pid = *self.parents.get(&pid)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bounds the work for hostile files with long lists: beyond it names are unknown, and a loss says so.
    #[test]
    fn names_are_not_looked_for_without_end() {
        for (looks, expected) in [(0, "work;[file]"), (MOST_LOOKS, "work;[unknown]")] {
            let mut collected = Collected { looks: Cell::new(looks), ..Collected::default() };
            let parts = [
                ProfileRecord::Name { tid: 1, time_ns: 0, name: "work" },
                ProfileRecord::Mapping {
                    pid: 1,
                    time_ns: 0,
                    start: 0x1000,
                    len: 0x1000,
                    offset: 0,
                    name: "/bin/file",
                },
                ProfileRecord::Sample {
                    pid: 1,
                    tid: 1,
                    time_ns: 1,
                    period: 1,
                    mode: Mode::User,
                    addresses: &[0x1010],
                },
            ];
            parts.into_iter().for_each(|part| collected.profiled(part).unwrap());
            let mut sum = StackSum::new(ProfileOrigin::Host);
            collected.fold(&mut NoSymbols, &mut sum);
            let imported = sum.finish();
            let stacks: Vec<&str> = imported.profile.stacks.keys().map(|stack| &**stack).collect();
            assert_eq!(stacks, [expected]);
            assert_eq!(imported.losses.notes.len(), usize::from(looks > 0));
        }
    }
}
