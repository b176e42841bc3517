//! How the operations of a lab run are written for people: one spelling for every renderer.

pub mod compared;
pub(crate) mod described;

use vmtax_analyse::operations::Waited;
use vmtax_analyse::{Ledger, OperationExit, OperationRow, Path};
use vmtax_events::{Detail, DetailKind, Level, Reason, Sample};

use crate::names;
use crate::numbers::{count, instructions, ratio};
use crate::table::{Cell, sort_key};

/// Kinds of exit with a smaller share of an operation than this are added up in the list of a row.
const RARE: f64 = 0.1;

/// What an exit is called that only the emulator counted.
pub(crate) const NO_EVENT: &str = "no event";
/// And what it is.
pub(crate) const NO_EVENT_MEANS: &str = "(no event): exits that no tracepoint shows, because code at EL2 handles them without the host's kernel; counted in the emulator.";

/// Whether any operation has exits of these.
pub(crate) fn has_hidden(rows: &[OperationRow]) -> bool {
    rows.iter().any(|row| row.hidden.iter().flatten().next().is_some())
}

/// Whether the ledger is that of a lab run: it knows how often its operations ran.
pub fn is_lab(ledger: &Ledger) -> bool {
    ledger.samples.iter().any(|sample| sample.metric == Sample::OPERATIONS)
}

/// What the numbers of an emulated host are worth, as one sentence; `None` for any other recording.
pub fn emulated(ledger: &Ledger) -> Option<String> {
    let which = names::printable(ledger.recording.emulated.as_ref()?);
    Some(if is_lab(ledger) {
        format!(
            "Emulated ({which}): counts and path lengths are exact; times are instructions of the emulator (1 ns each) and do not reflect hardware."
        )
    } else {
        format!("Recorded on an emulated host ({which}): times do not reflect hardware, counts do.")
    })
}

/// A path, with its tolerance where that is larger than half a percent: `1,368 ±2.7 %`. Every output for people writes a path this way.
pub fn path(path: &Path) -> String {
    let tolerance = path.plus_minus().map(|part| format!(" ±{:.1} %", part * 100.0));
    instructions(path.median) + &tolerance.unwrap_or_default()
}

/// As [`path`], in a table.
pub(crate) fn path_cell(of: &Path) -> Cell {
    Cell::Written(path(of), sort_key(of.median))
}

/// How long a step waited: `5.03 ms`, `14.5 to 38.6 ms, median 22.5`, `-` where it did not.
pub(crate) fn waited(of: &Waited) -> String {
    if !of.is_some() {
        return "-".to_owned();
    }
    let ms = |ns: f64| format!("{:.3}", ns / 1e6);
    if of.min == of.max {
        return format!("{} ms", ms(of.median));
    }
    format!("{} to {} ms, median {}", ms(of.min), ms(of.max), ms(of.median))
}

/// How long a step waited before and now, and where the longer one waits.
pub(crate) fn waits_changed([before, now]: &[Waited; 2]) -> String {
    let longer = if now.median > before.median { now } else { before };
    let place = place(longer).map(|place| format!(" in {place}"));
    format!("waited {}, was {}{}", waited(now), waited(before), place.unwrap_or_default())
}

/// The function that waits longest, and its callers. Printable.
pub(crate) fn place(of: &Waited) -> Option<String> {
    // Another thread that runs meanwhile is no waiting.
    let functions = of.places.first().filter(|_| of.max > 0.0)?.functions.iter();
    Some(functions.map(|name| names::printable(name)).collect::<Vec<_>>().join(" < "))
}

/// A factor: `23.3`, `1,250`.
pub fn factor(n: f64) -> String {
    if n < 999.95 { format!("{n:.1}") } else { count(n.round() as u64) }
}

/// The name of an operation. Printable.
pub fn name(row: &OperationRow) -> String {
    names::printable(&row.name)
}

/// An exit by reason and the register, field or port that it was about: `MSR_READ IA32_DEBUGCTL`,
/// `VMREAD GUEST_RIP`, `npf`. Addresses and CPUID leaves are left out.
pub fn exit_name(reason: Reason, detail: Detail) -> String {
    use DetailKind as K;
    let name = names::reason(reason);
    let known = || names::detail_name(detail).unwrap_or_else(|| format!("{:#x}", detail.value));
    let port = || format!("{:#x}", detail.value);
    match (detail.kind, name.as_str()) {
        // SVM has one reason for both.
        (K::MsrRead, "msr") => format!("rdmsr {}", known()),
        (K::MsrWrite, "msr") => format!("wrmsr {}", known()),
        (K::MsrRead | K::MsrWrite, _) => format!("{name} {}", known()),
        (K::PortIn, _) => format!("{name} in {}", port()),
        (K::PortOut, _) => format!("{name} out {}", port()),
        (K::CrRead, "CR_ACCESS") => format!("{name} read {}", known()),
        (K::CrWrite, "CR_ACCESS") => format!("{name} write {}", known()),
        (K::Halt, _) => format!("{name} {}", known()),
        (K::ApicRead | K::ApicWrite | K::VmcsField | K::Ghcb | K::GhcbMsr | K::Tdvmcall, _) => {
            format!("{name} {}", known())
        }
        _ => name,
    }
}

/// Whether the exits of some operation were recorded: all of a run are, or none.
pub fn are_recorded(rows: &[OperationRow]) -> bool {
    rows.iter().any(|row| row.recorded)
}

/// The text for an empty list of exits.
pub fn no_exits(row: &OperationRow) -> &'static str {
    if row.recorded { "none" } else { "not recorded" }
}

/// The exits of an operation as words that may be parted at spaces between them:
/// `cpuid 1 →`, `vmload 2,`, `vmsave 1,`, `vmrun 1`. The arrow leads from an exit of L2 to what L1 took for it.
pub fn exit_list(row: &OperationRow) -> Vec<String> {
    let mut rare = 0u64;
    let mut groups: Vec<AncillaryGroup> = Vec::new();
    for exit in &row.exits {
        let of = match exit.level {
            Level::L2 => Some(exit.reason),
            _ => exit.ancillary_of,
        };
        let at = groups.iter().position(|group| group.of == of).unwrap_or_else(|| {
            groups.push(AncillaryGroup { of, own: Vec::new(), ancillary: Vec::new() });
            groups.len() - 1
        });
        let group = &mut groups[at];
        let list = if exit.ancillary_of.is_some() { &mut group.ancillary } else { &mut group.own };
        add(list, exit);
    }
    let mut words = Vec::new();
    let mut keep_frequent = |list: &mut Vec<(String, u64)>| {
        list.retain(|&(_, n)| {
            let is_rare = row.per_operation(n).value().is_some_and(|each| each < RARE);
            rare = rare.saturating_add(if is_rare { n } else { 0 });
            !is_rare
        });
    };
    for mut group in groups {
        // Details that share a name were added up.
        group.own.sort_by_key(|kind| std::cmp::Reverse(kind.1));
        group.ancillary.sort_by_key(|kind| std::cmp::Reverse(kind.1));
        keep_frequent(&mut group.ancillary);
        // An exit of L2 stays with what it led to.
        if group.ancillary.is_empty() {
            keep_frequent(&mut group.own);
        }
        group.write(row, &mut words);
    }
    if rare > 0 {
        end_group(&mut words);
        words.push(format!("others {}", ratio(row.per_operation(rare))));
    }
    for (name, n) in row.hidden.iter().flatten() {
        end_group(&mut words);
        let each = ratio(row.per_operation(*n));
        words.push(format!("{} {each} ({NO_EVENT})", names::printable(name)));
    }
    words
}

/// What one reason of an L2 exit led to, or the exits of L1 on its own account.
struct AncillaryGroup {
    of: Option<Reason>,
    own: Vec<(String, u64)>,
    ancillary: Vec<(String, u64)>,
}

impl AncillaryGroup {
    fn write(&self, row: &OperationRow, words: &mut Vec<String>) {
        let each = |(name, n): &(String, u64)| match row.count {
            0 => format!("{name} {} in all", count(*n)),
            _ => format!("{name} {}", ratio(row.per_operation(*n))),
        };
        let mut own: Vec<String> = self.own.iter().map(each).collect();
        let ancillary: Vec<String> = self.ancillary.iter().map(each).collect();
        match self.of {
            // Its exits of L2 were not recorded.
            Some(of) if own.is_empty() && !ancillary.is_empty() => own.push(names::reason(of)),
            None if row.level == Level::L2 && !own.is_empty() => own[0].insert_str(0, "L1: "),
            _ => {}
        }
        if own.is_empty() {
            return;
        }
        end_group(words);
        separate(words, own);
        if !ancillary.is_empty() {
            if let Some(last) = words.last_mut() {
                last.push_str(" →");
            }
            separate(words, ancillary);
        }
    }
}

fn separate(words: &mut Vec<String>, list: Vec<String>) {
    let last = list.len().saturating_sub(1);
    words.extend(list.into_iter().enumerate().map(|(i, mut word)| {
        if i < last {
            word.push(',');
        }
        word
    }));
}

fn end_group(words: &mut [String]) {
    if let Some(last) = words.last_mut() {
        last.push(';');
    }
}

/// Counts under the same name are added up: the addresses of page faults, the leaves of CPUID.
fn add(list: &mut Vec<(String, u64)>, exit: &OperationExit) {
    let name = exit_name(exit.reason, exit.detail);
    match list.iter_mut().find(|(other, _)| *other == name) {
        Some((_, n)) => *n = n.saturating_add(exit.count),
        None => list.push((name, exit.count)),
    }
}

/// Where the time of the window went, in whole percent: `98/2` (host, guest), `60/38/2` (host, L1, L2). What
/// would round to nothing but is not is `<1`.
pub fn shares(row: &OperationRow) -> String {
    let digits = |share: Option<f64>| {
        share.map(|s| match s * 100.0 {
            percent if percent > 0.0 && percent < 0.5 => "<1".to_owned(),
            percent => format!("{percent:.0}"),
        })
    };
    let parts: Vec<String> =
        [row.share_l0(), row.share_l1(), row.share_l2()].into_iter().filter_map(digits).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join("/") }
}

#[cfg(test)]
mod tests {
    use vmtax_events::{Isa, TimeRow, svm, vmx};

    use super::*;

    #[test]
    fn exits_are_named_by_what_they_are_about() {
        use DetailKind as K;
        let svm = |code| Reason { isa: Isa::Svm, code, flags: 0 };
        let vmx = |code| Reason { isa: Isa::Vmx, code, flags: 0 };
        for (reason, kind, value, expected) in [
            (svm(svm::CPUID), K::Cpuid, 0xb << 32, "cpuid"),
            (svm(svm::MSR), K::MsrRead, 0x1d9, "rdmsr IA32_DEBUGCTL"),
            (svm(svm::MSR), K::MsrWrite, 0xbad, "wrmsr 0xbad"),
            (vmx(vmx::MSR_READ), K::MsrRead, 0x1d9, "MSR_READ IA32_DEBUGCTL"),
            (vmx(vmx::VMREAD), K::VmcsField, 0x681e, "VMREAD GUEST_RIP"),
            (vmx(vmx::IO_INSTRUCTION), K::PortIn, 0x40, "IO_INSTRUCTION in 0x40"),
            (svm(svm::IOIO), K::PortOut, 0x5f8, "io out 0x5f8"),
            (svm(svm::NPF), K::PageFault, 0x20_0000, "npf"),
            (svm(svm::WRITE_CR4), K::CrWrite, 4, "write_cr4"),
            (vmx(vmx::CR_ACCESS), K::CrWrite, 4, "CR_ACCESS write CR4"),
        ] {
            assert_eq!(exit_name(reason, Detail::new(kind, value)), expected);
        }
    }

    fn row(level: Level, count: u64, exits: &[(Level, u32, Option<u32>, u64)]) -> OperationRow {
        let svm = |code| Reason { isa: Isa::Svm, code, flags: 0 };
        let exits = exits.iter().map(|&(level, code, of, count)| OperationExit {
            level,
            reason: svm(code),
            detail: Detail::NONE,
            ancillary_of: of.map(svm),
            count,
        });
        OperationRow {
            name: "x".to_owned(),
            vm: None,
            level,
            count,
            recorded: true,
            exits: exits.collect(),
            hidden: None,
            at_el2: None,
            to_l1: 0,
            path: None,
            l2_over_l1: None,
            memory: None,
            paging: None,
            waited: None,
            time: TimeRow::default(),
        }
    }

    #[test]
    fn lists_say_what_an_exit_of_l2_leads_to() {
        use Level::{L1, L2};
        let (cpuid, hlt) = (Some(svm::CPUID), Some(svm::HLT));
        let cases: [(OperationRow, &str); 6] = [
            (row(L1, 200, &[(L1, svm::CPUID, None, 200)]), "cpuid 1"),
            (
                row(
                    L2,
                    100,
                    &[
                        (L2, svm::CPUID, None, 100),
                        (L2, svm::INTR, None, 2),
                        (L1, svm::HLT, None, 50),
                        (L1, svm::VMLOAD, cpuid, 200),
                        (L1, svm::VMRUN, cpuid, 100),
                        (L1, svm::VMRUN, Some(svm::INTR), 2),
                        (L1, svm::VMLOAD, Some(svm::INTR), 9),
                        (L1, svm::MSR, cpuid, 1),
                    ],
                ),
                "cpuid 1 →|vmload 2,|vmrun 1;|L1: hlt 0.50;|others 0.14",
            ),
            (row(L2, 100, &[(L1, svm::VMRUN, hlt, 100)]), "hlt →|vmrun 1"),
            (
                row(
                    L2,
                    100,
                    &[
                        (L2, svm::HLT, None, 9),
                        (L1, svm::VMLOAD, hlt, 18),
                        (L1, svm::VMRUN, hlt, 9),
                    ],
                ),
                "hlt 0.09 →|vmload 0.18;|others 0.09",
            ),
            (row(L1, 0, &[(L1, svm::CPUID, None, 2_000)]), "cpuid 2,000 in all"),
            (row(L1, 100, &[]), ""),
        ];
        for (row, expected) in cases {
            assert_eq!(exit_list(&row).join("|"), expected);
        }
        let hidden = |name: &str, count| Some(vec![(name.to_owned(), count)]);
        let seen = row(L1, 20, &[(L1, svm::CPUID, None, 20)]);
        let row = OperationRow { hidden: hidden("SYS64", 40), ..seen };
        assert_eq!(exit_list(&row).join("|"), "cpuid 1;|SYS64 2 (no event)");
        assert!(has_hidden(std::slice::from_ref(&row)));
        assert!(!has_hidden(&[OperationRow { hidden: Some(Vec::new()), ..row }]));
    }

    #[test]
    fn shares_name_only_those_that_ran() {
        let mut row = row(Level::L1, 1, &[]);
        assert_eq!(shares(&row), "-");
        row.time = TimeRow {
            wall_ns: 1_000,
            exit_kernel_ns: 500,
            exit_user_ns: 100,
            guest_ns: 400,
            l2_ns: 20,
            ..TimeRow::default()
        };
        assert_eq!(shares(&row), "60/38");
        row.level = Level::L2;
        assert_eq!(shares(&row), "60/38/2");
        (row.time.guest_ns, row.time.l2_ns, row.time.halted_ns) = (384, 4, 16);
        assert_eq!(shares(&row), "60/38/<1");
    }
}
