//! bpftrace's output of a map of exit counts: `@reason[32]: 143258`, `@[EPT_VIOLATION]: 12`, also with `-f json`.
//!
//! Such a dump has counts only, so it becomes rows and no events. Maps may have any name. Keys are reasons, by number or by name in either
//! vendor's spelling; in a key with two parts, the part that is a name is the reason. Other maps (time stamps by thread, times) are ignored and
//! named in a note.
//!
//! A map of `stats()` and one of `hist()` with the same keys (from CVM_eval's latency scripts) give times too. Maps
//! with `vmgexit` in their name count requests of SEV-ES guests: the details of VMGEXIT exits.

mod choice;
mod line;

use std::collections::BTreeMap;
use std::io::Read;

use serde::Deserialize;
use vmtax_events::{
    Coverage, Detail, Durations, Isa, OCTAVES, Reason, Recording, Tally, octave, octave_bounds,
};

use choice::{choose, names_other, vendor};
use line::{DumpEntry, MapKey, ReasonCode, annotated, has_intel_name, is_of_svm};

use super::counts::{row, tell_requests};
use super::spelling::request;
use super::text::lines::TextLines;
use super::text::words::{TextWords, decimal, number, trim};
use super::text::{UNTERMINATED, head_lines, is_text};
use crate::import::Imported;
use crate::{Error, Feed};

/// Most maps of a dump.
const MOST_MAPS: usize = 256;
/// Most keys of a map of reasons.
const MOST_KEYS: usize = 1 << 16;

/// Whether a file that begins with these bytes is such a dump.
pub fn recognise(head: &[u8]) -> bool {
    is_text(head)
        && head_lines(head).any(|line| {
            let is_map = match DumpEntry::read(line) {
                DumpEntry::Count { .. } => true,
                DumpEntry::Head { key, .. } => {
                    matches!(
                        MapKey::read(key, Isa::Unknown),
                        MapKey::Reason(_) | MapKey::WithMore(_)
                    )
                }
                _ => false,
            };
            is_map || is_attaching(line) || is_json(line)
        })
}

/// Reads a dump. `isa` is the vendor of numeric reasons; names identify their vendor.
pub fn import(input: &mut dyn Read, isa: Isa, feed: &mut impl Feed) -> Result<Imported, Error> {
    let mut lines = TextLines::new(input);
    let mut dump =
        Dump { isa, annotated: [false; 2], maps: BTreeMap::new(), with_more: false, open: None };
    loop {
        let offset = lines.offset();
        let Some(line) = lines.next()? else { break };
        dump.line(line, offset)?;
    }
    let (cut, unterminated) = (lines.cut, lines.is_unterminated());
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
            let mut words = TextWords::new(rest);
            words.next().and_then(decimal).is_some()
                && words.next().is_some_and(|w| w.starts_with(b"probe"))
        },
    )
}

/// One map of a dump. It may be printed more than once.
#[derive(Default)]
struct BpftraceMap {
    /// By the text of the key. bpftrace sorts by count, so the end of a print cannot be recognised.
    counts: BTreeMap<Vec<u8>, KeyCount>,
    /// A key occurs more than once.
    repeated: bool,
    /// A count decreased between prints, so the script clears the map.
    was_cleared: bool,
    /// It is not a map of counts by reason.
    unfit: bool,
    /// Offset of the first key of two numbers.
    ambiguous: Option<u64>,
    /// It has a key for all reasons together, or sums, so it is a map of times.
    has_totals: bool,
    /// Histograms by the text of the key.
    histograms: BTreeMap<Vec<u8>, [u64; OCTAVES]>,
    /// Requests of SEV-ES guests by code.
    requests: BTreeMap<u64, u64>,
    is_of_requests: bool,
}

/// The counts of one key.
struct KeyCount {
    code: ReasonCode,
    last: u64,
    sum: u64,
    /// Sum of the values of a stats() map in the last print.
    total: Option<u64>,
}

impl BpftraceMap {
    fn count(&mut self, key: &[u8], code: ReasonCode, count: u64, total: Option<u64>) {
        self.has_totals |= total.is_some();
        if let Some(known) = self.counts.get_mut(key) {
            self.repeated = true;
            self.was_cleared |= count < known.last;
            known.last = count;
            known.sum = known.sum.saturating_add(count);
            known.total = total;
        } else if self.counts.len() < MOST_KEYS {
            self.counts.insert(key.to_vec(), KeyCount { code, last: count, sum: count, total });
        } else {
            self.unfit = true;
        }
    }

    /// bpftrace keeps counting until the script clears the map, so the last print has all counts.
    fn totals(&self) -> BTreeMap<ReasonCode, u64> {
        let mut totals = BTreeMap::new();
        for KeyCount { code, last, sum, .. } in self.counts.values() {
            let total = totals.entry(*code).or_insert(0u64);
            *total = total.saturating_add(if self.was_cleared { *sum } else { *last });
        }
        totals
    }
}

/// The maps of a dump.
struct Dump {
    isa: Isa,
    /// Vendors of the names behind numeric reasons: VMX, SVM.
    annotated: [bool; 2],
    maps: BTreeMap<Vec<u8>, BpftraceMap>,
    with_more: bool,
    /// Map and key of the histogram that is being read.
    open: Option<(Vec<u8>, Vec<u8>)>,
}

impl Dump {
    fn line(&mut self, line: &[u8], offset: u64) -> Result<(), Error> {
        if trim(line).starts_with(b"{") {
            return self.object(line, offset);
        }
        let isa = self.isa;
        match DumpEntry::read(line) {
            DumpEntry::Count { map, key, count, total, said } => {
                match annotated(key, said) {
                    Some(Isa::Vmx) => self.annotated[0] = true,
                    Some(Isa::Svm) => self.annotated[1] = true,
                    _ => self.annotated[0] |= has_intel_name(key),
                }
                let Some(map) = self.map(map, offset)? else { return Ok(()) };
                self.with_more |= add(map, key, (count, total), offset, isa);
            }
            DumpEntry::Head { map: name, key } => {
                self.annotated[0] |= has_intel_name(key);
                self.open = Some((name.to_vec(), key.to_vec()));
                if let Some(map) = self.map(name, offset)? {
                    // A second print begins the histogram anew.
                    map.histograms.remove(key);
                }
            }
            DumpEntry::Bucket { low, count } => self.bucket(low, count),
            DumpEntry::Other { map } => {
                if let Some(map) = self.map(map, offset)? {
                    map.unfit = true;
                }
            }
            DumpEntry::None => {}
        }
        Ok(())
    }

    fn bucket(&mut self, low: u64, count: u64) {
        let Some((map, key)) = &self.open else { return };
        let Some(map) = self.maps.get_mut(map) else { return };
        if map.histograms.contains_key(key) || map.histograms.len() < MOST_KEYS {
            let buckets = map.histograms.entry(key.clone()).or_insert([0; OCTAVES]);
            if let Some(bucket) = buckets.get_mut(octave(low)) {
                *bucket = bucket.saturating_add(count);
            }
        }
    }

    /// A line of `bpftrace -f json`: one print of a map.
    fn object(&mut self, line: &[u8], offset: u64) -> Result<(), Error> {
        let problem = |problem: String| Error::malformed(offset, "bpftrace dump", problem);
        let object: BpftraceObject = serde_json::from_slice(line)
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

    fn map(&mut self, name: &[u8], offset: u64) -> Result<Option<&mut BpftraceMap>, Error> {
        if !self.maps.contains_key(name) {
            if self.maps.len() >= MOST_MAPS {
                let problem = format!("more than {MOST_MAPS} maps");
                return Err(Error::Unsupported { offset, item: "bpftrace dump", problem });
            }
            let is_of_requests = is_of_requests(name);
            let unfit = names_other(name) && !is_of_requests;
            self.maps.insert(
                name.to_vec(),
                BpftraceMap { unfit, is_of_requests, ..BpftraceMap::default() },
            );
        }
        Ok(self.maps.get_mut(name))
    }

    fn deliver(self, feed: &mut impl Feed, about: &mut Imported) -> Result<(), Error> {
        let mut left_out = Vec::new();
        let mut candidates = Vec::new();
        let mut requests: BTreeMap<u64, u64> = BTreeMap::new();
        let mut histograms = Vec::new();
        let mut of_histograms = Vec::new();
        for (name, mut map) in self.maps {
            let shown = format!("@{}", String::from_utf8_lossy(&name));
            if map.counts.is_empty()
                && let Some(counts) = counts_of_histograms(&map.histograms, self.isa)
            {
                of_histograms.push((name.clone(), shown.clone(), counts));
            }
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
        if candidates.is_empty() && !of_histograms.is_empty() {
            left_out.retain(|name| of_histograms.iter().all(|(_, shown, _)| shown != name));
            about.losses.notes.push(
                "exits were counted by histograms, which have no sums: their times are left out"
                    .to_owned(),
            );
            candidates = of_histograms;
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
        let other = totals.keys().find_map(|code| match code {
            ReasonCode::Bare(raw) if is_of_svm(*raw) => Some(*raw),
            _ => None,
        });
        let isa = match (self.isa, self.annotated) {
            // The script has Intel's table, whatever it runs on.
            (Isa::Unknown, [true, false]) if other.is_some() => {
                let raw = other.unwrap_or_default();
                notes.push(format!(
                    "numeric exit reasons were read as SVM (AMD) reasons, because Intel has no reason {raw}: the names beside them are Intel's and wrong; --isa overrides this"
                ));
                Isa::Svm
            }
            (Isa::Unknown, [true, false]) => Isa::Vmx,
            (Isa::Unknown, [false, true]) => Isa::Svm,
            (Isa::Unknown, _) => vendor(&totals, notes)?,
            (isa, _) => isa,
        };
        let reason = |code| match code {
            ReasonCode::Bare(raw) => Reason::from_trace(isa, raw),
            ReasonCode::Named(name) => name.reason(isa),
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
struct BpftraceObject {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    data: serde_json::Value,
}

/// The buckets of a histogram of `bpftrace -f json`.
fn buckets(value: &serde_json::Value) -> [u64; OCTAVES] {
    let mut buckets = [0u64; OCTAVES];
    for one in value.as_array().into_iter().flatten() {
        let number = |name: &str| one.get(name).and_then(serde_json::Value::as_u64);
        if let (Some(count), Some(bucket)) =
            (number("count"), buckets.get_mut(octave(number("min").unwrap_or(0))))
        {
            *bucket = bucket.saturating_add(count);
        }
    }
    buckets
}

/// Adds the times of a map of stats() to rows whose key has a histogram with the same count.
fn time(
    map: &BpftraceMap,
    histograms: &[BTreeMap<Vec<u8>, [u64; OCTAVES]>],
    rows: &mut BTreeMap<(Reason, Detail), Tally>,
    reason: impl Fn(ReasonCode) -> Reason,
) {
    for (key, count) in &map.counts {
        let holds = |h: &&[u64; OCTAVES]| {
            h.iter().fold(0u64, |sum, n| sum.saturating_add(*n)) == count.last
        };
        let histogram = histograms.iter().filter_map(|all| all.get(key)).find(holds);
        let (Some(total), Some(hist)) = (count.total, histogram) else { continue };
        let Some(tally) = rows.get_mut(&(reason(count.code), Detail::NONE)) else { continue };
        // Minimum and maximum are only known by their buckets.
        let used = |bucket: &usize| hist[*bucket] > 0;
        let first = (0..OCTAVES).find(used).map_or(0, |b| octave_bounds(b).0);
        let last = (0..OCTAVES).rev().find(used).and_then(|b| octave_bounds(b).1);
        if tally.count == count.last && tally.timed == 0 && first <= total && count.last > 0 {
            tally.timed = count.last;
            tally.time_ns = total;
            tally.min_ns = first;
            tally.max_ns = last.map_or(total, |end| (end - 1).min(total)).max(first);
            tally.durations = Durations::of_octaves(hist);
        }
    }
}

/// The counts in a map of hist() alone, if all its keys are reasons (`kvmexits.bt`: `@exit_ns[30, IO_INSTRUCTION]`).
fn counts_of_histograms(
    histograms: &BTreeMap<Vec<u8>, [u64; OCTAVES]>,
    isa: Isa,
) -> Option<BpftraceMap> {
    let mut map = BpftraceMap::default();
    for (key, buckets) in histograms {
        let count = buckets.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
        match MapKey::read(key, isa) {
            MapKey::Reason(code) | MapKey::WithMore(code) => map.count(key, code, count, None),
            MapKey::All | MapKey::Ambiguous | MapKey::Foreign => return None,
        }
    }
    (!map.counts.is_empty()).then_some(map)
}

/// Whether a map counts requests of SEV-ES guests (GHCB), by its name.
fn is_of_requests(name: &[u8]) -> bool {
    name.to_ascii_lowercase().windows(7).any(|part| part == b"vmgexit")
}

/// Adds the count of a key, and its sum in a map of stats(). Returns whether a part of the key is not used.
fn add(
    map: &mut BpftraceMap,
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
    match MapKey::read(key, isa) {
        MapKey::Reason(code) => map.count(key, code, count, total),
        MapKey::WithMore(code) => {
            map.count(key, code, count, total);
            return true;
        }
        MapKey::All => map.has_totals = true,
        MapKey::Ambiguous => map.ambiguous = map.ambiguous.or(Some(offset)),
        MapKey::Foreign => map.unfit = true,
    }
    false
}
