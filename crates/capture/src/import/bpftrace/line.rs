//! Lines and keys of a dump.

use vmtax_events::{Isa, Reason, svm, vmx};

use crate::import::spelling::{Spelled, spelled};
use crate::import::text::words::{
    TextWords, decimal, is_space, number, number_u32, rsplit_once, split_once, trim, trim_start,
};

/// The largest exit code; larger numbers are threads, addresses or times.
const HIGHEST_CODE: u32 = 0x4ff;
/// VMX flags of a raw reason.
pub(super) const VMX_FLAGS: u32 =
    vmx::FAILED_ENTRY | vmx::FROM_VMX_ROOT | vmx::PENDING_MTF | vmx::ENCLAVE_MODE;
/// A reason that SVM has and VMX does not.
pub(super) fn is_of_svm(raw: u32) -> bool {
    raw > HIGHEST_VMX && raw & VMX_FLAGS == 0 && svm::name(raw).is_some()
}

/// The highest reason of VMX in Linux 7.2.
pub(super) const HIGHEST_VMX: u32 = 85;

/// A reason in a key. A number stays one until its vendor is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReasonCode {
    Bare(u32),
    Named(Spelled),
}

/// A line of a dump.
pub(super) enum DumpEntry<'a> {
    /// `@map[key]: count`, or `@map[key]: count N, average A, total T`; `said` is what stands behind a plain count.
    Count { map: &'a [u8], key: &'a [u8], count: u64, total: Option<u64>, said: &'a [u8] },
    /// `@map[key]:`, followed by a histogram.
    Head { map: &'a [u8], key: &'a [u8] },
    /// `[1K, 2K)   12 |@@@  |`: the lower bound of a bucket, and its count.
    Bucket { low: u64, count: u64 },
    /// The head of a histogram or of a key in several lines, or a map without keys.
    Other { map: &'a [u8] },
    /// Not a line of a map.
    None,
}

impl<'a> DumpEntry<'a> {
    pub(super) fn read(line: &'a [u8]) -> DumpEntry<'a> {
        let line = trim(line);
        Self::of_map(line).or_else(|| Self::of_bucket(line)).unwrap_or(DumpEntry::None)
    }

    fn of_bucket(line: &'a [u8]) -> Option<DumpEntry<'a>> {
        let (range, rest) = rsplit_once(line.strip_prefix(b"[")?, b"|")
            .and_then(|(line, _)| split_once(line, b"|"))
            .and_then(|(line, _)| split_once(line, b"]").or_else(|| split_once(line, b")")))?;
        let low = split_once(range, b",").map_or(range, |(low, _)| low);
        Some(DumpEntry::Bucket { low: scaled(trim(low))?, count: decimal(trim(rest))? })
    }

    fn of_map(line: &'a [u8]) -> Option<DumpEntry<'a>> {
        let rest = line.strip_prefix(b"@")?;
        let end = rest.iter().position(|b| !b.is_ascii_alphanumeric() && *b != b'_');
        let (map, rest) = rest.split_at_checked(end.unwrap_or(rest.len()))?;
        let Some(keyed) = rest.strip_prefix(b"[") else {
            return rest.starts_with(b":").then_some(DumpEntry::Other { map });
        };
        let Some((key, value)) = rsplit_once(keyed, b"]:") else {
            return Some(DumpEntry::Other { map });
        };
        // A count, or the count of a stats() map: "count 5, average 3, total 15".
        let value = trim(value);
        let total = rsplit_once(value, b"total ").and_then(|(_, total)| decimal(trim(total)));
        if value.is_empty() {
            return Some(DumpEntry::Head { map, key: trim(key) });
        }
        let (value, said) = match value.strip_prefix(b"count ") {
            Some(rest) => {
                (split_once(trim_start(rest), b",").map_or(rest, |(count, _)| count), &[][..])
            }
            // Annotated listings have the reason's name after the count.
            None => {
                let end = value.iter().position(|&b| is_space(b)).unwrap_or(value.len());
                value.split_at_checked(end)?
            }
        };
        Some(match decimal(value) {
            Some(count) => DumpEntry::Count { map, key: trim(key), count, total, said },
            None => DumpEntry::Other { map },
        })
    }
}

/// The meaning of a key.
pub(super) enum MapKey {
    /// An exit reason.
    Reason(ReasonCode),
    /// An exit reason and something else (a thread, a vCPU).
    WithMore(ReasonCode),
    /// All reasons together.
    All,
    /// Two numbers: either may be the reason.
    Ambiguous,
    /// Not an exit reason.
    Foreign,
}

impl MapKey {
    pub(super) fn read(key: &[u8], isa: Isa) -> MapKey {
        if let Some(code) = code(key, isa) {
            return MapKey::Reason(code);
        }
        if key.eq_ignore_ascii_case(b"all") {
            return MapKey::All;
        }
        let Some((first, second)) = split_once(key, b",").map(|(a, b)| (trim(a), trim(b))) else {
            return MapKey::Foreign;
        };
        // A number and its name, as kvmexits.bt has them; none for numbers that its table lacks.
        if number(first).is_some() && (second.is_empty() || of_table(first, second)) {
            return code(first, isa).map_or(MapKey::Foreign, MapKey::Reason);
        }
        match (number(first).is_some(), number(second).is_some()) {
            (true, true) => of_pair(first, second, isa).map_or(MapKey::Ambiguous, MapKey::Reason),
            (_, false) if named(second).is_some() => {
                named(second).map_or(MapKey::Foreign, MapKey::WithMore)
            }
            (false, _) => named(first).map_or(MapKey::Foreign, MapKey::WithMore),
            _ => MapKey::Foreign,
        }
    }
}

/// Whether a name is Intel's for a number, and is written as on Intel: a thread's number beside a name is none of that.
fn of_table(number: &[u8], name: &[u8]) -> bool {
    name.iter().all(|b| b.is_ascii_uppercase() || *b == b'_' || b.is_ascii_digit())
        && annotated(number, name) == Some(Isa::Vmx)
}

/// Whether a key is a number and Intel's name for it.
pub(super) fn has_intel_name(key: &[u8]) -> bool {
    split_once(key, b",").is_some_and(|(number, name)| of_table(trim(number), trim(name)))
}

/// Two numbers, where they are one exit reason together.
fn of_pair(first: &[u8], second: &[u8], isa: Isa) -> Option<ReasonCode> {
    let code = isa.facts().code_of_pair(number_u32(first)?, number_u32(second)?)?;
    Some(ReasonCode::Named(Spelled::Sure(Reason { isa, code, flags: 0 })))
}

fn named(key: &[u8]) -> Option<ReasonCode> {
    spelled(std::str::from_utf8(key).ok()?).map(ReasonCode::Named)
}

/// Whose reason a numeric key is by the name that a listing has behind its count (`@[1]: 5 EXIT_REASON_EXTERNAL_INTERRUPT`).
pub(super) fn annotated(key: &[u8], said: &[u8]) -> Option<Isa> {
    let raw = number_u32(key)?;
    let names = TextWords::new(said).filter_map(|word| {
        let word = std::str::from_utf8(word).ok()?;
        spelled(word.trim_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
    });
    names.into_iter().find_map(|name| match name {
        Spelled::Sure(reason) if reason.code == raw => Some(reason.isa),
        Spelled::Either(vmx, svm) if vmx == raw && svm != raw => Some(Isa::Vmx),
        Spelled::Either(vmx, svm) if svm == raw && vmx != raw => Some(Isa::Svm),
        _ => None,
    })
}

/// A number with bpftrace's suffix K, M, G or T.
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

/// Of exception classes on arm64 (`esr_ec`).
const HIGHEST_CLASS: u32 = 0x3f;

/// The reason of a key, by name or by number.
fn code(key: &[u8], isa: Isa) -> Option<ReasonCode> {
    let Some(raw) = number_u32(key) else { return named(key) };
    let reason = Reason::from_trace(isa, raw);
    let fits = match isa {
        Isa::Vmx => reason.code <= HIGHEST_CODE && reason.flags & !VMX_FLAGS == 0,
        Isa::Unknown if raw & !VMX_FLAGS <= HIGHEST_VMX => true,
        Isa::Arm => raw <= HIGHEST_CLASS,
        _ => reason.code <= HIGHEST_CODE || svm::name(reason.code).is_some(),
    };
    fits.then_some(ReasonCode::Bare(raw))
}
