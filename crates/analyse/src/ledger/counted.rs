//! A ledger of counts that another tool printed: no single events, so nothing says how long it took, and what exits accessed stands in
//! tables of its own (`perf kvm stat report --event=ioport`).
//!
//! ```text
//! IO_INSTRUCTION   55654   13.63us        exits IO_INSTRUCTION of port-out 0x70   27827
//! 0x70:POUT        27827    5.20us   ──>                      of port-in 0x71    27820
//! 0x71:PIN         27820    0.61us                            without detail         7
//! ```
//!
//! perf times an access from or to its own tracepoint, which is a part of its exit: these times stay in the tables of accesses, and each exit
//! of a reason has the mean of its reason. A note says so.

use std::collections::BTreeMap;

use vmtax_events::{AccessKey, Detail, ExitKey, Isa, Losses, NO_VCPU, Outcome, Reason, Tally};

/// Accesses above the count of their exits that still are of the same recording: some exits make two.
const ABOVE: u64 = 50;

/// Said of tables of accesses without one of exits.
pub const ACCESSES_ALONE: &str = "The tables count accesses and no exits by reason: add the text of `perf kvm stat report --event=vmexit` of the same recording, in the same file or as another file of `vmtax import`.";

/// Gives exits without a detail the details that tables of accesses count.
pub(super) fn split(
    exits: &mut BTreeMap<ExitKey, Tally>,
    accesses: &BTreeMap<AccessKey, Tally>,
    losses: &mut Losses,
) {
    if accesses.is_empty() {
        return;
    }
    if exits.is_empty() {
        losses.missing.push(ACCESSES_ALONE.to_owned());
        return;
    }
    let kinds_of = |isa: Isa| isa.facts().accesses().iter().map(move |row| (isa, row));
    for (isa, (code, kinds)) in Isa::ALL.into_iter().flat_map(kinds_of) {
        let reason = Reason { isa, code: *code, flags: 0 };
        let of_kind = |key: &&AccessKey| kinds.contains(&key.detail.kind);
        let parts: Vec<(Detail, u64)> = accesses
            .iter()
            .filter(|(key, _)| of_kind(key))
            .map(|(k, t)| (k.detail, t.count))
            .collect();
        let key = bare(reason);
        if let Some(all) = exits.get(&key).filter(|_| !parts.is_empty()).cloned() {
            split_one(exits, key, &all, &parts, losses);
        }
    }
}

/// As a table has it: of no VM, vCPU or detail.
fn bare(reason: Reason) -> ExitKey {
    ExitKey { vcpu: NO_VCPU, outcome: Outcome::Unknown, ..ExitKey::of(0, reason) }
}

fn split_one(
    exits: &mut BTreeMap<ExitKey, Tally>,
    key: ExitKey,
    all: &Tally,
    parts: &[(Detail, u64)],
    losses: &mut Losses,
) {
    let name = key.reason.name();
    let told = parts.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
    if told > all.count.saturating_add(all.count / ABOVE) {
        losses.notes.push(format!(
            "the table of accesses counts {told}, more than the {} exits {name}: it is left out of the exits, because it is of another time or of exits of other reasons too",
            all.count
        ));
        return;
    }
    exits.remove(&key);
    let mut left = all.clone();
    for (detail, count) in parts {
        let part = take(&mut left, *count);
        if part.count > 0 {
            exits.entry(ExitKey { detail: *detail, ..key }).or_default().merge(&part);
        }
    }
    if left.count > 0 {
        exits.entry(key).or_default().merge(&left);
    }
    if all.timed > 0 {
        losses.notes.push(format!(
            "exits {name} are told apart by the tables of accesses; their times are not, so each has the mean of all of them"
        ));
    }
}

/// Takes so many exits out, with their part of the time.
fn take(from: &mut Tally, count: u64) -> Tally {
    let count = count.min(from.count);
    if count == from.count {
        return std::mem::take(from);
    }
    let timed = count.min(from.timed);
    let share = |sum: u128, of: u64| {
        let part = sum.checked_mul(u128::from(timed)).map(|all| all / u128::from(of.max(1)));
        // Sums of squares of hostile tables are as large as can be.
        part.unwrap_or_else(|| (sum as f64 * timed as f64 / of.max(1) as f64) as u128).min(sum)
    };
    let mut part = Tally { count, ..Tally::default() };
    if timed > 0 {
        let of = from.timed;
        part.timed = timed;
        part.time_ns = u64::try_from(share(u128::from(from.time_ns), of)).unwrap_or(u64::MAX);
        // A table has no histogram that the parts could not share.
        part.sum_sq = share(from.sum_sq, of);
        (part.min_ns, part.max_ns) = (from.min_ns, from.max_ns.min(part.time_ns));
        part.min_ns = part.min_ns.min(part.max_ns);
    }
    from.count -= count;
    from.timed -= timed;
    from.time_ns -= part.time_ns;
    from.sum_sq -= part.sum_sq;
    if from.timed == 0 {
        *from = Tally { count: from.count, ..Tally::default() };
    } else {
        from.max_ns = from.max_ns.min(from.time_ns);
        from.min_ns = from.min_ns.min(from.max_ns);
    }
    part
}

#[cfg(test)]
mod tests {
    use vmtax_events::{DetailKind, Level, svm, vmx};

    use super::*;

    fn tally(count: u64, time_ns: u64) -> Tally {
        let (min_ns, max_ns) = (time_ns / count.max(1) / 2, time_ns);
        Tally { count, timed: count, time_ns, min_ns, max_ns, ..Tally::default() }
    }

    fn access(kind: DetailKind, value: u64, count: u64) -> (AccessKey, Tally) {
        let detail = Detail::new(kind, value);
        (AccessKey { vm: 0, vcpu: NO_VCPU, level: Level::L1, detail }, tally(count, count))
    }

    fn reason(isa: Isa, code: u32) -> Reason {
        Reason { isa, code, flags: 0 }
    }

    fn parts(exits: &BTreeMap<ExitKey, Tally>) -> Vec<(Reason, Detail, u64, u64)> {
        exits.iter().map(|(k, t)| (k.reason, k.detail, t.count, t.time_ns)).collect()
    }

    #[test]
    fn exits_have_the_ports_of_the_other_table() {
        let io = reason(Isa::Vmx, vmx::IO_INSTRUCTION);
        let hlt = reason(Isa::Vmx, vmx::HLT);
        let mut exits = BTreeMap::from([(bare(io), tally(100, 5000)), (bare(hlt), tally(3, 900))]);
        let accesses = BTreeMap::from([
            access(DetailKind::PortOut, 0x70, 49),
            access(DetailKind::PortIn, 0x71, 48),
            access(DetailKind::MsrWrite, 0x6e0, 7),
        ]);
        let mut losses = Losses::default();
        split(&mut exits, &accesses, &mut losses);
        assert_eq!(
            parts(&exits),
            [
                (hlt, Detail::NONE, 3, 900),
                (io, Detail::NONE, 3, 150),
                (io, Detail::new(DetailKind::PortIn, 0x71), 48, 2400),
                (io, Detail::new(DetailKind::PortOut, 0x70), 49, 2450),
            ]
        );
        assert_eq!(losses.notes.len(), 1, "{:?}", losses.notes);
    }

    #[test]
    fn accesses_of_another_time_are_left_out() {
        let msr = reason(Isa::Svm, svm::MSR);
        let mut exits = BTreeMap::from([(bare(msr), tally(100, 5000))]);
        let accesses = BTreeMap::from([access(DetailKind::MsrWrite, 0x6e0, 200)]);
        let mut losses = Losses::default();
        split(&mut exits, &accesses, &mut losses);
        assert_eq!(parts(&exits), [(msr, Detail::NONE, 100, 5000)]);
        assert!(losses.notes[0].contains("more than the 100 exits msr"), "{:?}", losses.notes);
    }

    #[test]
    fn the_largest_sums_are_split() {
        let mut all = Tally { sum_sq: u128::MAX, ..tally(1 << 60, u64::MAX) };
        let part = take(&mut all, 1 << 59);
        assert_eq!((part.count, all.count), (1 << 59, 1 << 59));
        assert!(part.time_ns.checked_add(all.time_ns) == Some(u64::MAX));
        assert!(part.min_ns <= part.max_ns && part.max_ns <= part.time_ns);
    }

    #[test]
    fn accesses_alone_say_what_to_add() {
        let accesses = BTreeMap::from([access(DetailKind::MsrWrite, 0x6e0, 200)]);
        let mut losses = Losses::default();
        split(&mut BTreeMap::new(), &accesses, &mut losses);
        assert!(losses.missing[0].contains("--event=vmexit"), "{:?}", losses.missing);
    }
}
