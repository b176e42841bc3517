//! Two recordings side by side: what the other one does more or less often than the base.
//!
//! Recordings differ in length and in work, so counts are put over a unit that both have: a second, an exit of L2, an
//! operation of a lab run. Rows are causes first: the same guest leaves for other reasons on other processors and in
//! confidential VMs ("Performance tuning for oneDNN on TDX"), and causes are what stays comparable.
//!
//! Whether a difference is significant is tested if the recordings have enough intervals
//! ([`crate::confidence`]); otherwise the output says so.
//!
//! Left out on purpose: what follows from a difference.

use std::collections::{BTreeMap, BTreeSet};

use vmtax_events::{Cause, Detail, DetailKind, Level, Tally, words};

use crate::confidence::{self, Interval, MIN_INTERVALS};
use crate::grouped::count;
use crate::timeline::TimelineKey;
use crate::vm_facts::{EncryptedBy, encrypted_by, kind, mapped, vendor};
use crate::{By, KeyValue, Ledger, Operations, SortedTable, TableKind};

/// Rates this much apart, in parts of the larger, are called about equal where nothing tells chance from difference.
pub const ABOUT_EQUAL: f64 = 0.10;
/// Lengths this much apart are a difference of the set-ups.
const SAME_LENGTH: f64 = 0.10;
/// Times this many times as long are longer, whatever the counts.
pub const LONGER: f64 = 1.5;
/// Fewer exits than this have no time that says anything.
const FEW: u64 = 20;

words! {
    /// What counts are put over.
    pub enum Per {
        /// A second of the recording.
        Second = "second",
        /// An exit of L2.
        L2Exit = "l2-exit",
        /// An operation of a lab run.
        Operation = "operation",
        /// Nothing: recordings of the same length, which none of them says.
        Recording = "recording",
    }
}

/// One of the two.
#[derive(Clone, Copy, Debug)]
pub struct DiffSide<'a> {
    /// As the user named it. Hostile text.
    pub source: &'a str,
    pub ledger: &'a Ledger,
    /// Labels of the run; a recording has none.
    pub labels: &'a BTreeMap<String, String>,
    /// Its length where the recording does not say it (a dump of counts), seconds.
    pub seconds: Option<f64>,
}

impl DiffSide<'_> {
    /// Length of the recording, as far as it is known.
    pub fn seconds(&self) -> Option<f64> {
        let of_vcpus = self.ledger.time.values().map(|time| time.sum.wall_ns).max();
        match of_vcpus.filter(|ns| *ns > 0) {
            Some(ns) => Some(ns as f64 / 1e9),
            None => self.seconds,
        }
    }

    /// How many units it holds.
    pub(crate) fn units(&self, per: Per) -> Option<f64> {
        match per {
            Per::Second => self.seconds(),
            Per::L2Exit => {
                let of_l2 = self.ledger.exits.iter().filter(|(key, _)| key.level == Level::L2);
                let count: u64 = of_l2.map(|(_, tally)| tally.count).sum();
                (count > 0).then_some(count as f64)
            }
            Per::Operation => {
                let count: u64 =
                    Operations::new(self.ledger).rows.iter().map(|row| row.count).sum();
                (count > 0).then_some(count as f64)
            }
            Per::Recording => Some(1.0),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Diff {
    /// What the numbers are of.
    pub per: Per,
    pub base_units: f64,
    pub other_units: f64,
    /// What differs between the set-ups.
    pub setup: Vec<SetupDifference>,
    /// What may differ and neither recording says.
    pub unsaid: Vec<&'static str>,
    /// Times are of the same kind, and can stand side by side.
    pub times: bool,
    /// The tables: by cause, by reason, or as asked for.
    pub tables: Vec<DiffTable>,
    /// What the difference comes to.
    pub conclusion: Option<Conclusion>,
}

/// What a difference comes to. Halts are left out: they are waiting.
#[derive(Clone, Debug, PartialEq)]
pub enum Conclusion {
    /// Every cause changed by about this factor: the load did.
    Load(f64),
    /// One cause accounts for most of it.
    Cause {
        cause: Cause,
        /// In the base, of one unit.
        base: DiffCell,
        other: DiffCell,
        /// What most of that is about, if one kind of access is.
        detail: Option<Detail>,
    },
}

/// A fact of the set-up that is not the same in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupDifference {
    pub what: String,
    /// In the base; empty when it is not said. Hostile text.
    pub base: String,
    /// In the other; empty when it is not said. Hostile text.
    pub other: String,
}

/// Rows with the same key columns, largest difference first: of time where both sides have times, else of counts.
#[derive(Clone, Debug, PartialEq)]
pub struct DiffTable {
    pub by: Vec<By>,
    pub rows: Vec<DiffRow>,
}

/// Exits of one kind in both.
#[derive(Clone, Debug, PartialEq)]
pub struct DiffRow {
    /// One value per [`DiffTable::by`].
    pub key: Vec<KeyValue>,
    pub base: DiffCell,
    pub other: DiffCell,
    /// How sure the difference of the rates is.
    pub confidence: Confidence,
}

/// Exits of one kind in one recording.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiffCell {
    /// How many.
    pub count: u64,
    /// Of one unit.
    pub rate: f64,
    /// Time in them of one unit, ns; `None` where there are none, or counts only.
    pub time_ns: Option<f64>,
}

/// What is known of a difference of rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Confidence {
    /// Its simultaneous 95 % confidence interval (of rates) for all rows of the table.
    Interval(Interval),
    /// Why there is none.
    None(&'static str),
}

words! {
    /// The result of a row.
    pub enum DiffVerdict {
        /// More often, and not by chance.
        More = "more",
        /// Less often, and not by chance.
        Fewer = "fewer",
        /// Chance alone explains the difference.
        NoDifference = "no difference shown",
        /// The same number.
        Equal = "equal",
        /// Within [`ABOUT_EQUAL`], and chance was not tested.
        AboutEqual = "about equal, not tested",
        /// Further apart than [`ABOUT_EQUAL`], more often; chance was not tested.
        MoreUntested = "more, not tested",
        /// Further apart than [`ABOUT_EQUAL`], less often; chance was not tested.
        FewerUntested = "fewer, not tested",
        /// Not more often, and at least [`LONGER`] times the time.
        Longer = "longer",
        /// Not less often, and that much less time.
        Shorter = "shorter",
    }
}

impl DiffRow {
    /// Other minus base.
    pub fn difference(&self) -> f64 {
        self.other.rate - self.base.rate
    }

    /// Time, other minus base, ns.
    pub fn time_difference(&self) -> f64 {
        self.other.time_ns.unwrap_or(0.0) - self.base.time_ns.unwrap_or(0.0)
    }

    /// Other over base.
    pub fn ratio(&self) -> Option<f64> {
        (self.base.rate > 0.0).then(|| self.other.rate / self.base.rate)
    }

    /// The result: time comes first where it changed and the counts do not say so.
    pub fn verdict(&self) -> DiffVerdict {
        let of_counts = self.verdict_of_counts();
        let is_idle = self.key.contains(&KeyValue::Cause(Cause::Idle));
        let is_few = self.base.count.min(self.other.count) < FEW;
        let (Some(base), Some(other)) = (self.base.time_ns, self.other.time_ns) else {
            return of_counts;
        };
        match of_counts {
            _ if is_idle || is_few => of_counts,
            DiffVerdict::More | DiffVerdict::MoreUntested if other * LONGER <= base => {
                DiffVerdict::Shorter
            }
            DiffVerdict::More | DiffVerdict::MoreUntested => of_counts,
            _ if other >= base * LONGER => DiffVerdict::Longer,
            DiffVerdict::Fewer | DiffVerdict::FewerUntested => of_counts,
            _ if other * LONGER <= base => DiffVerdict::Shorter,
            _ => of_counts,
        }
    }

    /// The result by counts alone.
    pub(crate) fn verdict_of_counts(&self) -> DiffVerdict {
        let difference = self.difference();
        match self.confidence {
            Confidence::Interval(interval) if interval.differs() && difference > 0.0 => {
                DiffVerdict::More
            }
            Confidence::Interval(interval) if interval.differs() => DiffVerdict::Fewer,
            Confidence::Interval(_) => DiffVerdict::NoDifference,
            Confidence::None(_) => {
                let larger = self.base.rate.max(self.other.rate);
                if difference == 0.0 {
                    DiffVerdict::Equal
                } else if difference.abs() <= larger * ABOUT_EQUAL {
                    DiffVerdict::AboutEqual
                } else if difference > 0.0 {
                    DiffVerdict::MoreUntested
                } else {
                    DiffVerdict::FewerUntested
                }
            }
        }
    }
}

impl Diff {
    /// Compares. An empty `by` gives two tables: by cause, and by cause and reason. `Err` holds the source that has no
    /// such unit.
    pub fn new<'a>(
        base: &DiffSide<'a>,
        other: &DiffSide<'a>,
        per: Per,
        by: &[By],
    ) -> Result<Diff, &'a str> {
        let base_units = base.units(per).ok_or(base.source)?;
        let other_units = other.units(per).ok_or(other.source)?;
        let times = has_times(base, other);
        let wanted: Vec<Vec<By>> = match by {
            [] => vec![vec![By::Cause], vec![By::Cause, By::Reason]],
            by => vec![by.to_vec()],
        };
        let tables = wanted
            .into_iter()
            .map(|by| table(base, other, per, (base_units, other_units), by))
            .collect();
        Ok(Diff {
            per,
            base_units,
            other_units,
            setup: setup(base, other, per),
            unsaid: unsaid(base, other),
            times,
            tables,
            conclusion: conclusion(base, other, per, (base_units, other_units)),
        })
    }
}

/// Times of the two can stand side by side.
fn has_times(base: &DiffSide<'_>, other: &DiffSide<'_>) -> bool {
    base.ledger.recording.emulated == other.ledger.recording.emulated
}

/// The unit that suits both: operations of lab runs, else seconds where both know their length.
pub fn suitable(base: &DiffSide<'_>, other: &DiffSide<'_>) -> Per {
    let both = |per| base.units(per).is_some() && other.units(per).is_some();
    [Per::Operation, Per::Second].into_iter().find(|per| both(*per)).unwrap_or(Per::Recording)
}

fn table(
    base: &DiffSide<'_>,
    other: &DiffSide<'_>,
    per: Per,
    units: (f64, f64),
    by: Vec<By>,
) -> DiffTable {
    let group = |side: &DiffSide<'_>| -> BTreeMap<Vec<KeyValue>, Tally> {
        let table = SortedTable::new(side.ledger, TableKind::Vmexit, &by);
        table.rows.into_iter().map(|row| (row.key, row.tally)).collect()
    };
    let (before, now) = (group(base), group(other));
    let keys: BTreeSet<&Vec<KeyValue>> = before.keys().chain(now.keys()).collect();
    let count = keys.len();
    let times = has_times(base, other);
    let cell = |tally: Option<&Tally>, units: f64| {
        tally.map_or_else(DiffCell::default, |tally| DiffCell {
            count: tally.count,
            rate: tally.count as f64 / units,
            time_ns: (tally.timed > 0 && times).then(|| tally.time_ns as f64 / units),
        })
    };
    let mut rows: Vec<DiffRow> = keys
        .into_iter()
        .map(|key| DiffRow {
            key: key.clone(),
            base: cell(before.get(key), units.0),
            other: cell(now.get(key), units.1),
            confidence: confidence_of(base, other, per, key, count),
        })
        .collect();
    let timed = rows.iter().any(|row| row.base.time_ns.is_some() && row.other.time_ns.is_some());
    let size = |row: &DiffRow| if timed { row.time_difference() } else { row.difference() }.abs();
    rows.sort_by(|a, b| size(b).total_cmp(&size(a)).then_with(|| a.key.cmp(&b.key)));
    DiffTable { by, rows }
}

/// The confidence of one row of so many.
fn confidence_of(
    base: &DiffSide<'_>,
    other: &DiffSide<'_>,
    per: Per,
    key: &[KeyValue],
    rows: usize,
) -> Confidence {
    if per != Per::Second {
        return Confidence::None("it is told of rates per second");
    }
    let told_apart = |value: &KeyValue| {
        matches!(value, KeyValue::Cause(_) | KeyValue::Reason(_) | KeyValue::Detail(_))
    };
    if !key.iter().all(told_apart) {
        return Confidence::None("intervals are kept by cause, reason and detail alone");
    }
    let of_cause = if let [KeyValue::Cause(cause)] = key { Some(*cause) } else { None };
    if of_cause.is_none() && (base.ledger.timeline.more_kinds || other.ledger.timeline.more_kinds) {
        return Confidence::None("there are too many kinds of exits to keep intervals of all");
    }
    let series = |side: &DiffSide<'_>| {
        let timeline = &side.ledger.timeline;
        let seconds = timeline.step_ns as f64 / 1e9;
        let mut series = match of_cause {
            Some(cause) => {
                timeline.series(|slot| slot.by_cause.get(&cause).map_or(0, |(count, _)| *count))
            }
            None => timeline.series_of_kinds(|kind| is_of(kind, key)),
        };
        series.iter_mut().for_each(|count| *count /= seconds);
        series
    };
    confidence::difference(&series(base), &series(other), rows)
        .map_or(Confidence::None(TOO_SHORT), Confidence::Interval)
}

/// See [`MIN_INTERVALS`].
const TOO_SHORT: &str = {
    assert!(MIN_INTERVALS == 30);
    "it takes 30 whole intervals of both recordings"
};

/// Whether exits of this kind are in the row of this key.
fn is_of(kind: &TimelineKey, key: &[KeyValue]) -> bool {
    key.iter().all(|value| match value {
        KeyValue::Cause(cause) => kind.cause == *cause,
        KeyValue::Reason(reason) => kind.reason == *reason,
        KeyValue::Detail(detail) => kind.detail == *detail,
        _ => false,
    })
}

/// A cause's part of all, on either side, from which on it must follow the load.
const PART: f64 = 0.05;
/// How far a cause's ratio may be from that of all.
const AS_ALL: f64 = 1.25;

/// What is compared of a row: its time where both sides have times, else its rate.
fn measures(row: &DiffRow, timed: bool) -> (f64, f64) {
    let of = |cell: &DiffCell| if timed { cell.time_ns.unwrap_or(0.0) } else { cell.rate };
    (of(&row.base), of(&row.other))
}

/// What the difference comes to; `None` where nothing differs by more than [`ABOUT_EQUAL`].
fn conclusion(
    base: &DiffSide<'_>,
    other: &DiffSide<'_>,
    per: Per,
    units: (f64, f64),
) -> Option<Conclusion> {
    let is_busy = |row: &&DiffRow| !row.key.contains(&KeyValue::Cause(Cause::Idle));
    let by_cause = table(base, other, per, units, vec![By::Cause]);
    let rows: Vec<&DiffRow> = by_cause.rows.iter().filter(is_busy).collect();
    let is_timed = |side: &DiffSide<'_>| {
        let total = side.ledger.total();
        u128::from(total.timed) * 10 >= u128::from(total.count) * 9 && total.count > 0
    };
    let timed = has_times(base, other)
        && base.ledger.recording.emulated.is_none()
        && is_timed(base)
        && is_timed(other);
    let pairs: Vec<(f64, f64)> = rows.iter().map(|row| measures(row, timed)).collect();
    let (before, now) = pairs.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
    if before <= 0.0 || now <= 0.0 {
        return None;
    }
    let all = now / before;
    let follows = |(a, b): &(f64, f64)| {
        let matters = *a >= before * PART || *b >= now * PART;
        let as_all = *a > 0.0 && (1.0 / AS_ALL..=AS_ALL).contains(&(b / a / all));
        !matters || as_all
    };
    let is_equal = (1.0 - ABOUT_EQUAL..=1.0 + ABOUT_EQUAL).contains(&all);
    if pairs.iter().all(follows) {
        return (!is_equal).then_some(Conclusion::Load(all));
    }
    let change = |row: &DiffRow| {
        let (a, b) = measures(row, timed);
        (b - a).abs()
    };
    let changed = rows.iter().filter(|row| {
        !matches!(
            row.verdict(),
            DiffVerdict::Equal | DiffVerdict::AboutEqual | DiffVerdict::NoDifference
        )
    });
    let most = changed.max_by(|a, b| change(a).total_cmp(&change(b)))?;
    let (a, b) = measures(most, timed);
    let Some(KeyValue::Cause(cause)) = most.key.first().copied() else { return None };
    Some(Conclusion::Cause {
        cause,
        base: most.base,
        other: most.other,
        detail: detail_of(base, other, (per, units), (cause, b - a, timed)),
    })
}

/// The access that has most of the difference of a cause.
fn detail_of(
    base: &DiffSide<'_>,
    other: &DiffSide<'_>,
    (per, units): (Per, (f64, f64)),
    (cause, difference, timed): (Cause, f64, bool),
) -> Option<Detail> {
    let rows = table(base, other, per, units, vec![By::Cause, By::Detail]).rows;
    let of_cause = rows.iter().filter(|row| row.key.contains(&KeyValue::Cause(cause)));
    of_cause.into_iter().find_map(|row| {
        let detail = row.key.iter().find_map(|value| match value {
            KeyValue::Detail(detail) => Some(*detail),
            _ => None,
        })?;
        let (a, b) = measures(row, timed);
        let is_most = (b - a) * difference.signum() >= difference.abs() / 2.0;
        let is_named = !matches!(detail.kind, DetailKind::None | DetailKind::Overflow);
        (is_most && is_named).then_some(detail)
    })
}

/// What may differ and is not recorded in both.
fn unsaid(base: &DiffSide<'_>, other: &DiffSide<'_>) -> Vec<&'static str> {
    let sizes_known = [base, other].iter().all(|side| mapped(side.ledger).is_some());
    let memory = if sizes_known { "memory backing" } else { "memory backing and page sizes" };
    vec![memory, "pinning", "host settings"]
}

/// What is not the same in both.
fn setup(base: &DiffSide<'_>, other: &DiffSide<'_>, per: Per) -> Vec<SetupDifference> {
    let mut facts: Vec<(String, String, String)> = Vec::new();
    let mut fact = |what: &str, of: &dyn Fn(&DiffSide<'_>) -> String| {
        facts.push((what.to_owned(), of(base), of(other)));
    };
    fact("kind of VM", &|side| match kind(side.ledger) {
        crate::remedy::VmKind::Unknown => String::new(),
        kind => match encrypted_by(side.ledger) {
            Some(EncryptedBy::Rip) => format!("{} (encrypted guest, by rip 0)", kind.name()),
            Some(EncryptedBy::State) => {
                format!("{} (encrypted guest, by guest_state_protected)", kind.name())
            }
            None => kind.name().to_owned(),
        },
    });
    // The models say it where they are recorded.
    let has_models = [base, other].iter().all(|side| !side.ledger.recording.cpu.is_empty());
    fact("processor", &|side| match vendor(side.ledger) {
        _ if has_models => String::new(),
        isa => isa.facts().vendor().to_owned(),
    });
    fact("CPU model", &|side| side.ledger.recording.cpu.clone());
    fact("CPUs of the host", &|side| shown(u64::from(side.ledger.recording.cpus)));
    fact("architecture", &|side| side.ledger.recording.arch.clone());
    fact("host kernel", &|side| side.ledger.recording.kernel.clone());
    fact("host", &|side| side.ledger.recording.hostname.clone());
    fact("emulated by", &|side| side.ledger.recording.emulated.clone().unwrap_or_default());
    fact("recorder", &|side| {
        let recording = &side.ledger.recording;
        format!("{} {}", recording.format, recording.tool).trim().to_owned()
    });
    fact("clock", &|side| side.ledger.recording.clock.clone());
    fact("VMs", &|side| {
        shown(vcpus(side).iter().map(|(vm, _)| vm).collect::<BTreeSet<_>>().len() as u64)
    });
    fact("vCPUs", &|side| shown(vcpus(side).len() as u64));
    fact("mapped in pages of 4 KiB", &|side| {
        mapped(side.ledger).map_or_else(String::new, |(small, all)| {
            format!("{:.0} % of {}", small / all * 100.0, vmtax_events::size(all as u64))
        })
    });
    fact("complete", &|side| if side.ledger.complete { "yes" } else { "no" }.to_owned());
    fact("losses", &|side| if side.ledger.losses.is_empty() { "none" } else { "some" }.to_owned());
    fact("operations", &|side| operations(side));
    let names: BTreeSet<&String> = base.labels.keys().chain(other.labels.keys()).collect();
    for name in names {
        let label = |side: &DiffSide<'_>| side.labels.get(name).cloned().unwrap_or_default();
        fact(&format!("label {name}"), &label);
    }
    let length = |side: &DiffSide<'_>| {
        side.seconds().map_or_else(String::new, |seconds| format!("{seconds:.1} s"))
    };
    let differs = match (base.seconds(), other.seconds()) {
        // What took so long is the operations, which are compared one by one.
        _ if per == Per::Operation => false,
        (Some(a), Some(b)) => (a - b).abs() > a.max(b) * SAME_LENGTH,
        (a, b) => a.is_some() != b.is_some(),
    };
    let mut differences: Vec<SetupDifference> = facts
        .into_iter()
        .filter(|(_, base, other)| base != other)
        .map(|(what, base, other)| SetupDifference { what, base, other })
        .collect();
    if differs {
        let what = "length".to_owned();
        differences.push(SetupDifference { what, base: length(base), other: length(other) });
    }
    differences
}

/// The operations of a lab run.
fn operations(side: &DiffSide<'_>) -> String {
    let rows = Operations::new(side.ledger).rows;
    let names: Vec<String> =
        rows.iter().map(|row| format!("{} {}", row.name, row.level.name())).collect();
    names.join(", ")
}

fn shown(number: u64) -> String {
    if number == 0 { String::new() } else { count(number) }
}

/// The vCPUs seen. A dump of counts tells of none.
fn vcpus(side: &DiffSide<'_>) -> BTreeSet<(u32, u32)> {
    side.ledger
        .exits
        .keys()
        .filter(|key| key.vcpu != vmtax_events::NO_VCPU)
        .map(|key| (key.vm, key.vcpu))
        .collect()
}
