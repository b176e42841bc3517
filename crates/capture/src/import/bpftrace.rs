//! What bpftrace prints of a map of exit counts: `@reason[32]: 143258`, `@[EPT_VIOLATION]: 12`, also with `-f json`.
//!
//! Such a dump has counts alone, so it becomes rows and no events. Any name of map will do. Keys are
//! reasons by number or by name in either vendor's spelling; of a key with two parts the one that is a
//! name is the reason. Maps that are no counts by reason are left out and named in a note:
//! maps with keys that are no reasons (leftover time stamps by thread), times.
//!
//! A map of `stats()` and one of `hist()` with the same keys (as CVM_eval's scripts of latencies print) give times too. Maps
//! whose name has `vmgexit` count requests of SEV-ES guests: they say what VMGEXIT exits were about.

use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;
use vmtax_events::{Coverage, Detail, HIST_BUCKETS, Isa, Reason, Recording, Tally, svm, vmx};

use super::counts::{row, tell_requests};
use super::spelling::{Spelled, request, spelled, vendor as vendor_of_names};
use super::text::lines::Lines;
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

/// Parts of names of maps that are kept by something else than the reason.
const NO_REASONS: &[&str] =
    &["cpu", "cpus", "tid", "tids", "pid", "pids", "vcpu", "vcpus", "comm", "vm", "vms", "thread"];
/// The highest reason of VMX in Linux 7.2.
const HIGHEST_VMX: u32 = 85;
/// Reasons of VMX that a guest on SVM does not exit by: there they are #GP and #PF, which KVM does not intercept with
/// nested paging.
const VMX_ONLY: &[u32] = &[77, 78];
/// More keys than this are no exit reasons.
const MOST_KEYS: usize = 1 << 16;

/// Whether a file that begins with these bytes is such a dump.
pub fn recognise(head: &[u8]) -> bool {
    is_text(head)
        && head_lines(head).any(|line| {
            matches!(Entry::read(line), Entry::Count { .. }) || is_attaching(line) || is_json(line)
        })
}

/// Reads the whole dump. `isa` says whose reasons bare numbers are; names say it themselves.
pub fn import(input: &mut dyn Read, isa: Isa, feed: &mut impl Feed) -> Result<Imported, Error> {
    let mut lines = Lines::new(input);
    let mut dump = Dump { isa, maps: BTreeMap::new(), with_more: false, open: None };
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

/// `{"type": "attached_probes", "data": ...}` or `{"type": "map", "data": {"@...`.
fn is_json(line: &[u8]) -> bool {
    let Some(rest) = trim(line).strip_prefix(b"{\"type\": \"") else { return false };
    [&b"attached_probes\""[..], b"map\"", b"hist\"", b"lhist\"", b"stats\""]
        .iter()
        .any(|kind| rest.starts_with(kind))
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
    /// `@map[key]: count`, or `@map[key]: count N, average A, total T`
    Count { map: &'a [u8], key: &'a [u8], count: u64, total: Option<u64> },
    /// `@map[key]:`, which a histogram follows.
    Head { map: &'a [u8], key: &'a [u8] },
    /// `[1K, 2K)   12 |@@@  |`: the least value of a bucket, and how many are in it.
    Bucket { low: u64, count: u64 },
    /// The head of a histogram or of a key in several lines, or a map without keys.
    Other { map: &'a [u8] },
    /// Not of a map.
    None,
}

impl<'a> Entry<'a> {
    fn read(line: &'a [u8]) -> Entry<'a> {
        let line = trim(line);
        Self::of_map(line).or_else(|| Self::of_bucket(line)).unwrap_or(Entry::None)
    }

    fn of_bucket(line: &'a [u8]) -> Option<Entry<'a>> {
        let (range, rest) = rsplit_once(line.strip_prefix(b"[")?, b"|")
            .and_then(|(line, _)| split_once(line, b"|"))
            .and_then(|(line, _)| split_once(line, b"]").or_else(|| split_once(line, b")")))?;
        let low = split_once(range, b",").map_or(range, |(low, _)| low);
        Some(Entry::Bucket { low: scaled(trim(low))?, count: decimal(trim(rest))? })
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
        let total = rsplit_once(value, b"total ").and_then(|(_, total)| decimal(trim(total)));
        if value.is_empty() {
            return Some(Entry::Head { map, key: trim(key) });
        }
        let value = match value.strip_prefix(b"count ") {
            Some(rest) => split_once(trim_start(rest), b",").map_or(rest, |(count, _)| count),
            // Listings that were annotated have the reason's name behind the count.
            None => split_once(value, b" ").map_or(value, |(count, _)| count),
        };
        Some(match decimal(value) {
            Some(count) => Entry::Count { map, key: trim(key), count, total },
            None => Entry::Other { map },
        })
    }
}

/// What a key is.
enum Key {
    /// An exit reason.
    Reason(Code),
    /// An exit reason beside something else (a thread, a vCPU).
    WithMore(Code),
    /// All reasons together.
    All,
    /// Two numbers: either may be the reason.
    Ambiguous,
    /// No exit reason.
    Foreign,
}

impl Key {
    fn read(key: &[u8], isa: Isa) -> Key {
        if let Some(code) = code(key, isa) {
            return Key::Reason(code);
        }
        if key.eq_ignore_ascii_case(b"all") {
            return Key::All;
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

fn named(key: &[u8]) -> Option<Code> {
    spelled(std::str::from_utf8(key).ok()?).map(Code::Named)
}

/// A number with bpftrace's K, M, G, T.
fn scaled(word: &[u8]) -> Option<u64> {
    let (digits, power) = match word.split_last()? {
        (b'K', digits) => (digits, 10),
        (b'M', digits) => (digits, 20),
        (b'G', digits) => (digits, 30),
        (b'T', digits) => (digits, 40),
        _ => (word, 0),
    };
    decimal(digits)?.checked_mul(1 << power)
}

/// One key by name or by number.
fn code(key: &[u8], isa: Isa) -> Option<Code> {
    let Some(raw) = number_u32(key) else { return named(key) };
    let reason = Reason::from_trace(isa, raw);
    let fits = match isa {
        Isa::Vmx => reason.code <= HIGHEST_CODE && reason.flags & !VMX_FLAGS == 0,
        Isa::Unknown if raw & !VMX_FLAGS <= HIGHEST_VMX => true,
        _ => reason.code <= HIGHEST_CODE || svm::name(reason.code).is_some(),
    };
    fits.then_some(Code::Bare(raw))
}

/// One map of a dump. It may be printed more than once.
#[derive(Default)]
struct Map {
    /// By the key as it stands there: bpftrace sorts by count, so nothing shows where a print ends.
    counts: BTreeMap<Vec<u8>, Count>,
    /// A key stands there more than once.
    repeated: bool,
    /// A count fell from one print to the next, so the script clears the map.
    was_cleared: bool,
    /// It is no map of counts by reason.
    unfit: bool,
    /// Where the first key of two numbers stands.
    ambiguous: Option<u64>,
    /// It has a key for all reasons together, or sums: it is one of times.
    has_totals: bool,
    /// Histograms by key as it stands there.
    histograms: BTreeMap<Vec<u8>, [u64; HIST_BUCKETS]>,
    /// Requests of SEV-ES guests by code.
    requests: BTreeMap<u64, u64>,
    is_of_requests: bool,
}

/// The counts of one key.
struct Count {
    code: Code,
    last: u64,
    sum: u64,
    /// Sum of the values of a stats() map, as it was printed last.
    total: Option<u64>,
}

/// A reason as it stands in a key: a number stays one until its vendor is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Code {
    Bare(u32),
    Named(Spelled),
}

impl Map {
    fn count(&mut self, key: &[u8], code: Code, count: u64, total: Option<u64>) {
        self.has_totals |= total.is_some();
        if let Some(known) = self.counts.get_mut(key) {
            self.repeated = true;
            self.was_cleared |= count < known.last;
            known.last = count;
            known.sum = known.sum.saturating_add(count);
            known.total = total;
        } else if self.counts.len() < MOST_KEYS {
            self.counts.insert(key.to_vec(), Count { code, last: count, sum: count, total });
        } else {
            self.unfit = true;
        }
    }

    /// bpftrace counts on until the script clears the map, so the last print holds them all.
    fn totals(&self) -> BTreeMap<Code, u64> {
        let mut totals = BTreeMap::new();
        for Count { code, last, sum, .. } in self.counts.values() {
            let total = totals.entry(*code).or_insert(0u64);
            *total = total.saturating_add(if self.was_cleared { *sum } else { *last });
        }
        totals
    }
}

/// The maps of a dump.
struct Dump {
    isa: Isa,
    maps: BTreeMap<Vec<u8>, Map>,
    with_more: bool,
    /// The map and the key that the lines of a histogram belong to.
    open: Option<(Vec<u8>, Vec<u8>)>,
}

impl Dump {
    fn line(&mut self, line: &[u8], offset: u64) -> Result<(), Error> {
        if trim(line).starts_with(b"{") {
            return self.object(line, offset);
        }
        let isa = self.isa;
        match Entry::read(line) {
            Entry::Count { map, key, count, total } => {
                let Some(map) = self.map(map, offset)? else { return Ok(()) };
                self.with_more |= add(map, key, (count, total), offset, isa);
            }
            Entry::Head { map: name, key } => {
                self.open = Some((name.to_vec(), key.to_vec()));
                if let Some(map) = self.map(name, offset)? {
                    // A second print begins the histogram anew.
                    map.histograms.remove(key);
                }
            }
            Entry::Bucket { low, count } => self.bucket(low, count),
            Entry::Other { map } => {
                if let Some(map) = self.map(map, offset)? {
                    map.unfit = true;
                }
            }
            Entry::None => {}
        }
        Ok(())
    }

    fn bucket(&mut self, low: u64, count: u64) {
        let Some((map, key)) = &self.open else { return };
        let Some(map) = self.maps.get_mut(map) else { return };
        if map.histograms.contains_key(key) || map.histograms.len() < MOST_KEYS {
            let buckets = map.histograms.entry(key.clone()).or_insert([0; HIST_BUCKETS]);
            if let Some(bucket) = buckets.get_mut(Tally::bucket(low)) {
                *bucket = bucket.saturating_add(count);
            }
        }
    }

    /// A line of `bpftrace -f json`: one print of a map.
    fn object(&mut self, line: &[u8], offset: u64) -> Result<(), Error> {
        let problem = |problem: String| Error::malformed(offset, "bpftrace dump", problem);
        let object: Object = serde_json::from_slice(line)
            .map_err(|e| problem(format!("a line is no JSON of bpftrace ({e})")))?;
        let serde_json::Value::Object(maps) = object.data else { return Ok(()) };
        for (name, value) in &maps {
            let Some(name) = name.strip_prefix('@') else { continue };
            let isa = self.isa;
            let Some(map) = self.map(name.as_bytes(), offset)? else { continue };
            let kind = object.kind.as_str();
            let is_known = matches!(kind, "map" | "stats" | "hist");
            let Some(entries) = value.as_object().filter(|_| is_known) else {
                map.unfit = true;
                continue;
            };
            let mut with_more = false;
            for (key, value) in entries {
                let total = value.get("total").and_then(serde_json::Value::as_u64);
                match value.as_u64().or_else(|| value.get("count")?.as_u64()) {
                    Some(count) => {
                        with_more |= add(map, key.as_bytes(), (count, total), offset, isa);
                    }
                    None if kind == "hist" => {
                        map.histograms.insert(key.as_bytes().to_vec(), buckets(value));
                    }
                    None => map.unfit = true,
                }
            }
            self.with_more |= with_more;
        }
        Ok(())
    }

    fn map(&mut self, name: &[u8], offset: u64) -> Result<Option<&mut Map>, Error> {
        if !self.maps.contains_key(name) {
            if self.maps.len() >= MOST_MAPS {
                let problem = format!("more than {MOST_MAPS} maps");
                return Err(Error::Unsupported { offset, item: "bpftrace dump", problem });
            }
            let is_of_requests = is_of_requests(name);
            let unfit = names_other(name) && !is_of_requests;
            self.maps.insert(name.to_vec(), Map { unfit, is_of_requests, ..Map::default() });
        }
        Ok(self.maps.get_mut(name))
    }

    fn deliver(self, feed: &mut impl Feed, about: &mut Imported) -> Result<(), Error> {
        let mut left_out = Vec::new();
        let mut candidates = Vec::new();
        let mut requests: BTreeMap<u64, u64> = BTreeMap::new();
        let mut histograms = Vec::new();
        for (name, mut map) in self.maps {
            let shown = format!("@{}", String::from_utf8_lossy(&name));
            if !map.histograms.is_empty() {
                histograms.push(std::mem::take(&mut map.histograms));
            }
            if is_of_requests(&name) {
                requests.append(&mut map.requests);
                continue;
            }
            if map.counts.is_empty() && !map.unfit && map.ambiguous.is_none() {
                left_out.push(shown);
            } else if map.unfit {
                left_out.push(shown)
            } else {
                candidates.push((name, shown, map))
            }
        }
        let (shown, map) = choose(candidates, &mut left_out)?;
        if let Some(offset) = map.ambiguous {
            let problem = format!(
                "{shown} has keys of two numbers, and either may be the exit reason; count by \
                 the reason alone, as in @[args->exit_reason] = count()"
            );
            return Err(Error::Unsupported { offset, item: "bpftrace map", problem });
        }
        let totals = map.totals();
        let notes = &mut about.losses.notes;
        let isa = match self.isa {
            Isa::Unknown => vendor(&totals, notes)?,
            isa => isa,
        };
        let reason = |code| match code {
            Code::Bare(raw) => Reason::from_trace(isa, raw),
            Code::Named(name) => name.reason(isa),
        };
        let mut rows: BTreeMap<(Reason, Detail), Tally> = BTreeMap::new();
        for (code, count) in totals {
            rows.entry((reason(code), Detail::NONE)).or_default().add_untimed(count);
        }
        time(&map, &histograms, &mut rows, reason);
        tell_requests(&mut rows, &requests);
        for ((reason, detail), tally) in rows {
            feed.counted(row(reason, detail, tally))?;
        }
        if !left_out.is_empty() {
            let names = left_out.join(", ");
            notes.push(format!("exits were counted by the map {shown}; left out: {names}"));
        }
        if map.repeated {
            notes.push(if map.was_cleared {
                format!("{shown} was printed more than once and cleared in between, for a count falls: the prints were added up")
            } else {
                format!("{shown} was printed more than once: the last count of each reason was taken, which is right unless the script clears the map")
            });
        }
        if self.with_more {
            notes.push("the part of the keys that is no exit reason is not used".to_owned());
        }
        about.recording.coverage = Coverage { exits: true, ..Coverage::default() };
        Ok(())
    }
}

/// A line of `bpftrace -f json`.
#[derive(Deserialize)]
struct Object {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    data: serde_json::Value,
}

/// The buckets of a histogram of `bpftrace -f json`.
fn buckets(value: &serde_json::Value) -> [u64; HIST_BUCKETS] {
    let mut buckets = [0u64; HIST_BUCKETS];
    for one in value.as_array().into_iter().flatten() {
        let number = |name: &str| one.get(name).and_then(serde_json::Value::as_u64);
        if let (Some(count), Some(bucket)) =
            (number("count"), buckets.get_mut(Tally::bucket(number("min").unwrap_or(0))))
        {
            *bucket = bucket.saturating_add(count);
        }
    }
    buckets
}

/// Gives rows the times of a map of stats() whose keys have a histogram that holds as many.
fn time(
    map: &Map,
    histograms: &[BTreeMap<Vec<u8>, [u64; HIST_BUCKETS]>],
    rows: &mut BTreeMap<(Reason, Detail), Tally>,
    reason: impl Fn(Code) -> Reason,
) {
    for (key, count) in &map.counts {
        let holds = |h: &&[u64; HIST_BUCKETS]| {
            h.iter().fold(0u64, |sum, n| sum.saturating_add(*n)) == count.last
        };
        let histogram = histograms.iter().filter_map(|all| all.get(key)).find(holds);
        let (Some(total), Some(hist)) = (count.total, histogram) else { continue };
        let Some(tally) = rows.get_mut(&(reason(count.code), Detail::NONE)) else { continue };
        // Only the buckets bound the shortest and the longest.
        let used = |bucket: &usize| hist[*bucket] > 0;
        let first = (0..HIST_BUCKETS).find(used).map_or(0, |b| Tally::bucket_bounds(b).0);
        let last = (0..HIST_BUCKETS).rev().find(used).and_then(|b| Tally::bucket_bounds(b).1);
        if tally.count == count.last && tally.timed == 0 && first <= total && count.last > 0 {
            tally.timed = count.last;
            tally.time_ns = total;
            tally.min_ns = first;
            tally.max_ns = last.map_or(total, |end| (end - 1).min(total)).max(first);
            tally.hist = *hist;
        }
    }
}

/// Whether a map counts requests of SEV-ES guests (GHCB), by its name.
fn is_of_requests(name: &[u8]) -> bool {
    name.to_ascii_lowercase().windows(7).any(|part| part == b"vmgexit")
}

/// Counts one key of a map: how many, and their sum in a map of stats(). Whether a part of the key is not used.
fn add(
    map: &mut Map,
    key: &[u8],
    (count, total): (u64, Option<u64>),
    offset: u64,
    isa: Isa,
) -> bool {
    if map.is_of_requests {
        let name = std::str::from_utf8(key).unwrap_or_default();
        if let Some(code) = number(key).or_else(|| request(name)) {
            map.requests.insert(code, count);
        }
        return false;
    }
    match Key::read(key, isa) {
        Key::Reason(code) => map.count(key, code, count, total),
        Key::WithMore(code) => {
            map.count(key, code, count, total);
            return true;
        }
        Key::All => map.has_totals = true,
        Key::Ambiguous => map.ambiguous = map.ambiguous.or(Some(offset)),
        Key::Foreign => map.unfit = true,
    }
    false
}

/// The one map of counts by reason. Of several the one whose name says so.
fn choose(
    mut candidates: Vec<(Vec<u8>, String, Map)>,
    left_out: &mut Vec<String>,
) -> Result<(String, Map), Error> {
    if candidates.is_empty() {
        let problem = if left_out.is_empty() {
            "no line of the form @map[reason]: count".to_owned()
        } else {
            format!("no map of counts by exit reason (there is {})", left_out.join(", "))
        };
        return Err(Error::malformed(0, "bpftrace dump", problem));
    }
    if candidates.len() > 1 {
        let named = candidates.iter().filter(|(name, ..)| names_reason(name)).count();
        if named != 1 {
            let names: Vec<String> = candidates.into_iter().map(|(_, shown, _)| shown).collect();
            let problem = format!(
                "the maps {} may all be counts by exit reason: keep one of them",
                names.join(", ")
            );
            return Err(Error::Unsupported { offset: 0, item: "bpftrace dump", problem });
        }
        let (of_reason, others): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(|(name, ..)| names_reason(name));
        left_out.extend(others.into_iter().map(|(_, shown, _)| shown));
        candidates = of_reason;
    }
    let chosen = candidates.pop().map(|(_, shown, map)| (shown, map));
    chosen.ok_or_else(|| Error::malformed(0, "bpftrace dump", "no map"))
}

/// Whose the bare numbers are, where only one vendor has them.
fn vendor(counts: &BTreeMap<Code, u64>, notes: &mut Vec<String>) -> Result<Isa, Error> {
    let bare = || {
        counts.keys().filter_map(|code| if let Code::Bare(raw) = code { Some(*raw) } else { None })
    };
    let names = || {
        counts
            .keys()
            .filter_map(|code| if let Code::Named(name) = code { Some(*name) } else { None })
    };
    let of_names = vendor_of_names(names(), Isa::Unknown)?;
    if bare().next().is_none() {
        return Ok(of_names);
    }
    if of_names != Isa::Unknown {
        return Ok(of_names);
    }
    let of_vmx = |raw: &u32| VMX_ONLY.contains(raw) || raw & VMX_FLAGS != 0 && *raw != u32::MAX;
    let of_svm = |raw: &u32| *raw > HIGHEST_VMX && svm::name(*raw).is_some();
    let (isa, code) = match (bare().find(of_vmx), bare().find(of_svm)) {
        (Some(code), None) if bare().all(|raw| raw <= HIGHEST_VMX || of_vmx(&raw)) => {
            (Isa::Vmx, code)
        }
        (None, Some(code)) => (Isa::Svm, code),
        _ => return Err(Error::Vendor),
    };
    let vendor = if isa == Isa::Vmx { "VMX (Intel)" } else { "SVM (AMD)" };
    notes.push(format!(
        "bare exit numbers were read as {vendor} reasons, because the other vendor's guests do not exit by {code}; --isa says otherwise"
    ));
    Ok(isa)
}

/// Whether a map's name says that its keys are exit reasons.
fn names_reason(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    name.split(|&b| b == b'_')
        .any(|part| matches!(part, b"reason" | b"reasons" | b"exit" | b"exits"))
}

/// Whether a map's name says that it holds times or sizes, or that its keys are no reasons.
fn names_other(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    !names_reason(&name)
        && name
            .split(|&b| b == b'_')
            .any(|part| NO_COUNTS.iter().chain(NO_REASONS).any(|n| n.as_bytes() == part))
        || name.split(|&b| b == b'_').any(|part| NO_COUNTS.iter().any(|n| n.as_bytes() == part))
}
