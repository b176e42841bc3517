//! What was counted in the kernel, as rows.

use std::collections::HashMap;

use vmtax_events::{
    AccessKey, Detail, DetailKind, ExitKey, Isa, Level, Outcome, PreemptedRow, Reason, Tally,
    TimeRow,
};

use crate::layout::{Cell, Key, Spans, Taken};

/// What one interval brought.
#[derive(Debug, Default)]
pub struct IntervalRows {
    pub exits: HashMap<ExitKey, Tally>,
    pub accesses: HashMap<AccessKey, Tally>,
    /// Time of each vCPU; `interval_start_ns` is 0.
    pub times: Vec<TimeRow>,
    /// Which threads had the CPU of preempted vCPUs; `interval_start_ns` is 0.
    pub preempted: Vec<PreemptedRow>,
    /// vCPU threads that were not there before.
    pub appeared: Vec<LiveVcpu>,
}

/// A thread that runs a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveVcpu {
    /// Id of its VM.
    pub vm: u32,
    pub pid: u32,
    pub tid: u32,
    /// KVM cannot read its registers; `None` where the kernel does not say.
    pub state_protected: Option<bool>,
}

/// The detail of a key.
fn detail(key: &Key) -> Detail {
    Detail::new(DetailKind::from_u8(key.kind).unwrap_or(DetailKind::None), key.value)
}

fn level(key: &Key) -> Level {
    if key.flags & Key::NESTED != 0 { Level::L2 } else { Level::L1 }
}

/// A thread that had the CPU of a preempted vCPU.
pub(crate) struct LiveTaker {
    pub(crate) name: String,
    /// The VM and the vCPU that it runs.
    pub(crate) vcpu: Option<(u32, u32)>,
}

/// The reason that the programs give; they make that of arm64 as [`vmtax_events::arm::reason`] does.
pub(crate) fn reason(isa: Isa, raw: u32) -> Reason {
    match isa {
        Isa::Arm => Reason { isa, code: raw, flags: 0 },
        Isa::Vmx | Isa::Svm | Isa::Unknown => Reason::from_trace(isa, raw),
    }
}

pub(crate) fn exit_key(isa: Isa, vm: u32, key: &Key) -> ExitKey {
    let reason = |raw| match raw {
        // The row for the reasons beyond the limit.
        u32::MAX => Reason { isa, code: u32::MAX, flags: 0 },
        raw => reason(isa, raw),
    };
    let outcome = [Outcome::Kernel, Outcome::User, Outcome::Halted, Outcome::L1]
        [usize::from(key.outcome() & 3)];
    let ancillary = key.flags & Key::ANCILLARY != 0;
    ExitKey {
        vm,
        vcpu: key.vcpu(),
        level: level(key),
        reason: reason(key.reason),
        detail: detail(key),
        outcome,
        ancillary_of: ancillary.then(|| reason(key.ancillary)),
    }
}

impl IntervalRows {
    pub fn is_empty(&self) -> bool {
        let IntervalRows { exits, accesses, times, preempted, appeared } = self;
        exits.is_empty()
            && accesses.is_empty()
            && times.is_empty()
            && preempted.is_empty()
            && appeared.is_empty()
    }

    /// Adds what stood in a cell.
    pub(crate) fn add(&mut self, isa: Isa, vm: u32, key: &Key, cell: &Cell) {
        let counted = counted(cell);
        if key.flags & (Key::ACCESS | Key::SOLE) != 0 {
            let key = AccessKey { vm, vcpu: key.vcpu(), level: level(key), detail: detail(key) };
            self.accesses.entry(key).or_default().merge(&counted);
        }
        if key.flags & Key::ACCESS == 0 {
            self.exits.entry(exit_key(isa, vm, key)).or_default().merge(&counted);
        }
    }

    /// Adds the time that a thread had the CPU of preempted exits with this key.
    pub(crate) fn add_taken(&mut self, key: ExitKey, by: LiveTaker, taken: &Taken) {
        let Taken { time: time_ns, count, .. } = *taken;
        let LiveTaker { name, vcpu: by_vcpu } = by;
        self.preempted.push(PreemptedRow {
            interval_start_ns: 0,
            key,
            by: name.into(),
            by_vcpu,
            count,
            time_ns,
        });
    }

    /// Adds where the time of a vCPU went.
    pub(crate) fn add_time(&mut self, vm: u32, vcpu: u32, spans: &Spans) {
        let Spans { guest, l2, kernel, user, halted, preempted, unknown } = *spans;
        let wall_ns = guest + kernel + user + halted + preempted + unknown;
        if wall_ns == 0 && l2 == 0 {
            return;
        }
        self.times.push(TimeRow {
            vm,
            vcpu,
            wall_ns,
            guest_ns: guest,
            l2_ns: l2,
            exit_kernel_ns: kernel,
            exit_user_ns: user,
            halted_ns: halted,
            preempted_ns: preempted,
            unknown_ns: unknown,
            ..TimeRow::default()
        });
    }
}

fn counted(cell: &Cell) -> Tally {
    let mut tally = Tally {
        time_ns: cell.time,
        // ~0 is the minimum of nothing, in a cell as in a tally.
        min_ns: !cell.not_min,
        max_ns: cell.max,
        sum_sq: u128::from(cell.square_high) << 64 | u128::from(cell.square_low),
        ..Tally::default()
    };
    for (octave, count) in cell.histogram.into_iter().enumerate() {
        tally.durations.add_octave(octave, count.into());
    }
    tally.timed = tally.durations.count();
    tally.count = tally.timed + cell.untimed;
    tally
}

#[cfg(test)]
mod tests {
    use vmtax_events::{Durations, octave};

    use super::*;

    #[test]
    fn a_cell_is_the_tally_that_the_accounting_would_make() {
        let mut expected = Tally::default();
        let mut cell = Cell { untimed: 2, ..Cell::default() };
        for ns in [3_u64, 900, 5_000_000_000] {
            expected.add(ns);
            cell.time += ns;
            cell.not_min = cell.not_min.max(!ns);
            cell.max = cell.max.max(ns);
            cell.histogram[octave(ns)] += 1;
            let durations = std::mem::take(&mut expected.durations);
            expected.durations = Durations::of_octaves(&durations.octaves());
        }
        let squares: u128 = 9 + 810_000 + 25 * 10_u128.pow(18);
        (cell.square_low, cell.square_high) = (squares as u64, (squares >> 64) as u64);
        expected.add_untimed(2);
        let key = Key { reason: 0x72, flags: 2 << 1 | Key::NESTED, vcpu: 3, ..Key::default() };
        let mut rows = IntervalRows::default();
        rows.add(Isa::Svm, 7, &key, &cell);
        let reason = Reason { isa: Isa::Svm, code: 0x72, flags: 0 };
        let key = ExitKey {
            vcpu: 3,
            level: Level::L2,
            outcome: Outcome::Halted,
            ..ExitKey::of(7, reason)
        };
        assert_eq!(rows.exits, HashMap::from([(key, expected)]));
    }

    #[test]
    fn a_taker_has_the_key_of_the_exit_and_the_name_that_the_kernel_gave() {
        let name = |text: &[u8; 16]| {
            let (low, high) = text.split_at(8);
            [low, high].map(|part| part.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b)))
        };
        let taken = Taken { time: 7, count: 2, name: name(b"kworker/u8:12-ev") };
        assert_eq!(taken.name(), "kworker/u8:12-ev");
        assert_eq!(Taken { name: name(b"stress\0leftover\0"), ..taken }.name(), "stress");
        assert_eq!(Taken { name: [0; 2], ..taken }.name(), "");
        let mut rows = IntervalRows::default();
        let key = Key { reason: 0x60, vcpu: 1, ..Key::default() };
        rows.add(Isa::Svm, 7, &key, &Cell { untimed: 1, ..Cell::default() });
        let by = LiveTaker { name: "stress".to_owned(), vcpu: Some((7, 0)) };
        rows.add_taken(exit_key(Isa::Svm, 7, &key), by, &taken);
        let PreemptedRow { key, by, by_vcpu, count, time_ns, .. } = &rows.preempted[0];
        assert!(rows.exits.contains_key(key));
        assert_eq!((&**by, *by_vcpu, *count, *time_ns), ("stress", Some((7, 0)), 2, 7));
    }

    #[test]
    fn an_empty_cell_is_an_empty_tally() {
        assert_eq!(counted(&Cell::default()), Tally::default());
    }

    #[test]
    fn the_failed_entry_flag_stays_apart_from_the_reason() {
        let key =
            Key { reason: 0x8000_0021, ancillary: 18, flags: Key::ANCILLARY, ..Key::default() };
        let mut rows = IntervalRows::default();
        rows.add(Isa::Vmx, 1, &key, &Cell { untimed: 1, ..Cell::default() });
        let key = rows.exits.keys().next().unwrap();
        assert_eq!((key.reason.code, key.reason.flags), (0x21, 0x8000_0000));
        assert_eq!(key.ancillary_of.map(|of| of.code), Some(18));
    }
}
