//! What bpftrace prints of a map of exit counts: `@reason[32]: 143258`, `@[EPT_VIOLATION]: 12`.
//!
//! Such a dump has counts alone, so it becomes rows and no events. Any name of map will do. Keys are
//! reasons by number or by name in either vendor's spelling; of a key with two parts the one that is a
//! name is the reason. Maps that are no counts by reason are left out and named in a note:
//! histograms, maps with keys that are no reasons (leftover time stamps by thread), times.

use std::collections::BTreeMap;
use std::io::Read;

use vmtax_events::{
    Coverage, Detail, ExitKey, ExitRow, Isa, Level, NO_VCPU, Outcome, Reason, Recording, Tally,
    svm, vmx,
};

use super::text::lines::Lines;
use super::text::reason::by_name;
use super::text::words::{
    Words, decimal, number, number_u32, rsplit_once, split_once, trim, trim_start,
};
use super::text::{UNTERMINATED, head_lines, is_text};
use crate::import::Imported;
use crate::{Error, Feed};

/// More maps than this are no dump of exit counts.
const MOST_MAPS: usize = 256;
/// A number above all exit codes is a thread, an address or a time, not a reason.
const HIGHEST_CODE: u32 = 0x4ff;
/// VMX flags that may stand in a raw reason.
const VMX_FLAGS: u32 =
    vmx::FAILED_ENTRY | vmx::FROM_VMX_ROOT | vmx::PENDING_MTF | vmx::ENCLAVE_MODE;
/// Parts of names of maps that hold times or sizes, not counts.
const NO_COUNTS: &[&str] = &[
    "ns", "us", "ms", "time", "lat", "latency", "dur", "duration", "start", "ts", "avg", "max",
    "min", "bytes",
];

/// Whether a file that begins with these bytes is such a dump.
pub fn recognise(head: &[u8]) -> bool {
    is_text(head)
        && head_lines(head)
            .any(|line| matches!(Entry::read(line), Entry::Count { .. }) || is_attaching(line))
}

/// Reads the whole dump. `isa` says whose reasons bare numbers are; names say it themselves.
pub fn import(input: &mut dyn Read, isa: Isa, feed: &mut impl Feed) -> Result<Imported, Error> {
    let mut lines = Lines::new(input);
    let mut dump = Dump { isa, maps: BTreeMap::new(), repeated: false, with_more: false };
    loop {
        let offset = lines.offset();
        let Some(line) = lines.next()? else { break };
        dump.line(line, offset)?;
    }
    let (cut, unterminated) = (lines.cut, lines.unterminated);
    let mut about = Imported {
        recording: Recording {
            format: "bpftrace".to_owned(),
            tool: "bpftrace".to_owned(),
            ..Recording::default()
        },
        ..Imported::default()
    };
    about.losses.undecodable = cut;
    if unterminated {
        about.losses.truncated.push(UNTERMINATED.to_owned());
    }
    dump.deliver(feed, &mut about)?;
    Ok(about)
}

fn is_attaching(line: &[u8]) -> bool {
    line.strip_prefix(b"Attaching ").or_else(|| line.strip_prefix(b"Attached ")).is_some_and(
        |rest| {
            let mut words = Words::new(rest);
            words.next().and_then(decimal).is_some()
                && words.next().is_some_and(|w| w.starts_with(b"probe"))
        },
    )
}

/// What a line of a dump is.
enum Entry<'a> {
    /// `@map[key]: count`
    Count { map: &'a [u8], key: &'a [u8], count: u64 },
    /// The head of a histogram or of a key in several lines, or a map without keys.
    Other { map: &'a [u8] },
    /// Not of a map.
    None,
}

impl<'a> Entry<'a> {
    fn read(line: &'a [u8]) -> Entry<'a> {
        Self::of_map(trim(line)).unwrap_or(Entry::None)
    }

    fn of_map(line: &'a [u8]) -> Option<Entry<'a>> {
        let rest = line.strip_prefix(b"@")?;
        let end = rest.iter().position(|b| !b.is_ascii_alphanumeric() && *b != b'_');
        let (map, rest) = rest.split_at_checked(end.unwrap_or(rest.len()))?;
        let Some(keyed) = rest.strip_prefix(b"[") else {
            return rest.starts_with(b":").then_some(Entry::Other { map });
        };
        let Some((key, value)) = rsplit_once(keyed, b"]:") else {
            return Some(Entry::Other { map });
        };
        // A count, or the count of a stats() map: "count 5, average 3, total 15".
        let value = trim(value);
        let value = match value.strip_prefix(b"count ") {
            Some(rest) => split_once(trim_start(rest), b",").map_or(rest, |(count, _)| count),
            // Listings that were annotated have the reason's name behind the count.
            None => split_once(value, b" ").map_or(value, |(count, _)| count),
        };
        Some(match decimal(value) {
            Some(count) => Entry::Count { map, key: trim(key), count },
            None => Entry::Other { map },
        })
    }
}

/// What a key is.
enum Key {
    /// An exit reason.
    Reason(Reason),
    /// An exit reason beside something else (a thread, a vCPU).
    WithMore(Reason),
    /// Two numbers: either may be the reason.
    Ambiguous,
    /// No exit reason.
    Foreign,
}

impl Key {
    fn read(key: &[u8], isa: Isa) -> Key {
        if let Some(reason) = reason(key, isa) {
            return Key::Reason(reason);
        }
        let Some((first, second)) = split_once(key, b",").map(|(a, b)| (trim(a), trim(b))) else {
            return Key::Foreign;
        };
        match (number(first).is_some(), number(second).is_some()) {
            (true, true) => Key::Ambiguous,
            (_, false) if named(second).is_some() => {
                named(second).map_or(Key::Foreign, Key::WithMore)
            }
            (false, _) => named(first).map_or(Key::Foreign, Key::WithMore),
            _ => Key::Foreign,
        }
    }
}

fn named(key: &[u8]) -> Option<Reason> {
    by_name(std::str::from_utf8(key).ok()?)
}

/// One key by name or by number.
fn reason(key: &[u8], isa: Isa) -> Option<Reason> {
    let Some(raw) = number_u32(key) else { return named(key) };
    let reason = Reason::from_trace(isa, raw);
    let fits = match isa {
        Isa::Vmx => reason.code <= HIGHEST_CODE && reason.flags & !VMX_FLAGS == 0,
        _ => reason.code <= HIGHEST_CODE || svm::name(reason.code).is_some(),
    };
    fits.then_some(reason)
}

/// One map of a dump.
#[derive(Default)]
struct Map {
    counts: BTreeMap<Reason, u64>,
    /// It is no map of counts by reason.
    unfit: bool,
    /// Where the first key of two numbers stands.
    ambiguous: Option<u64>,
}

/// The maps of a dump.
struct Dump {
    isa: Isa,
    maps: BTreeMap<Vec<u8>, Map>,
    repeated: bool,
    with_more: bool,
}

impl Dump {
    fn line(&mut self, line: &[u8], offset: u64) -> Result<(), Error> {
        let entry = Entry::read(line);
        let (Entry::Count { map: name, .. } | Entry::Other { map: name }) = entry else {
            return Ok(());
        };
        if !self.maps.contains_key(name) {
            if self.maps.len() >= MOST_MAPS {
                let problem = format!("more than {MOST_MAPS} maps");
                return Err(Error::Unsupported { offset, item: "bpftrace dump", problem });
            }
            self.maps.insert(name.to_vec(), Map { unfit: names_time(name), ..Map::default() });
        }
        let Some(map) = self.maps.get_mut(name) else { return Ok(()) };
        let Entry::Count { key, count, .. } = entry else {
            map.unfit = true;
            return Ok(());
        };
        match Key::read(key, self.isa) {
            Key::Reason(reason) => {
                let total = map.counts.entry(reason).or_insert(0);
                self.repeated |= *total > 0;
                *total = total.saturating_add(count);
            }
            Key::WithMore(reason) => {
                self.with_more = true;
                let total = map.counts.entry(reason).or_insert(0);
                *total = total.saturating_add(count);
            }
            Key::Ambiguous => map.ambiguous = map.ambiguous.or(Some(offset)),
            Key::Foreign => map.unfit = true,
        }
        Ok(())
    }

    fn deliver(self, feed: &mut impl Feed, about: &mut Imported) -> Result<(), Error> {
        let notes = &mut about.losses.notes;
        let (mut used, mut left_out) = (Vec::new(), Vec::new());
        let mut rows = Vec::new();
        for (name, map) in self.maps {
            let shown = format!("@{}", String::from_utf8_lossy(&name));
            if map.unfit {
                left_out.push(shown);
                continue;
            }
            if let Some(offset) = map.ambiguous {
                let problem = format!(
                    "{shown} has keys of two numbers, and either may be the exit reason; count by \
                     the reason alone, as in @[args->exit_reason] = count()"
                );
                return Err(Error::Unsupported { offset, item: "bpftrace map", problem });
            }
            rows.extend(map.counts);
            used.push(shown);
        }
        if used.is_empty() {
            let problem = if left_out.is_empty() {
                "no line of the form @map[reason]: count".to_owned()
            } else {
                format!("no map of counts by exit reason (there is {})", left_out.join(", "))
            };
            return Err(Error::malformed(0, "bpftrace dump", problem));
        }
        for (reason, count) in rows {
            feed.counted(row(reason, count))?;
        }
        if !left_out.is_empty() {
            let names = left_out.join(", ");
            notes.push(format!("maps that hold no counts by exit reason were left out: {names}"));
        }
        if used.len() > 1 {
            notes.push(format!("the counts of several maps were added up: {}", used.join(", ")));
        }
        if self.repeated {
            notes.push(
                "a key stands in the dump more than once and its counts were added up, which is \
                 right only if the script clears the map after each print"
                    .to_owned(),
            );
        }
        if self.with_more {
            notes.push("the part of the keys that is no exit reason is not used".to_owned());
        }
        about.recording.coverage = Coverage { exits: true, ..Coverage::default() };
        Ok(())
    }
}

/// Whether a map's name says that it holds times or sizes.
fn names_time(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    name.split(|&b| b == b'_').any(|part| NO_COUNTS.iter().any(|n| n.as_bytes() == part))
}

fn row(reason: Reason, count: u64) -> ExitRow {
    let key = ExitKey {
        vm: 0,
        vcpu: NO_VCPU,
        level: Level::L1,
        reason,
        detail: Detail::NONE,
        outcome: Outcome::Unknown,
        ancillary_of: None,
    };
    let mut tally = Tally::default();
    tally.add_untimed(count);
    ExitRow { interval_start_ns: 0, key, tally }
}
