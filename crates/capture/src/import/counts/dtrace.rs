//! Exits of bhyve on illumos, as DTrace scripts of propolis count them.
//!
//! ```text
//!   SVM code  Count
//!         78        16
//!         7b      2611
//! IOIO SVM exits:
//!   Port   Op  OpSz  Addr  Count
//!   b008   in   32b   64b   2611
//! NPF SVM exits:
//!   Guest PA          Guest RIP         #PF flags  Count
//!           fee00300  ffffffffa8065029      D-UR-         8
//! ```
//!
//! Numbers are hexadecimal, counts are not.

use std::collections::BTreeMap;

use vmtax_events::{Detail, DetailKind, Isa, Reason};

use super::{CountsTable, at_line};
use crate::Error;
use crate::import::spelling::Spelled;

/// SVM's codes (Linux arch/x86/include/uapi/asm/svm.h).
const IOIO: u32 = 0x7b;
const NPF: u32 = 0x400;
/// Where a PC has the registers of its I/O APIC, HPET and APICs: a fault there is an access of these, and none of memory.
const REGISTERS: std::ops::Range<u64> = 0xfec0_0000..0xfef0_0000;

/// What the rows below a heading are.
#[derive(Clone, Copy)]
enum Part {
    Codes,
    Ports,
    Faults,
    Other,
}

fn heading(words: &[&str]) -> Option<Part> {
    match words {
        ["SVM", "code", "Count"] => Some(Part::Codes),
        ["Port", "Op", .., "Count"] => Some(Part::Ports),
        ["Guest", "PA", .., "Count"] => Some(Part::Faults),
        [.., last] if last.ends_with(':') || *last == "===" => Some(Part::Other),
        _ => None,
    }
}

pub(super) fn recognise(text: &str) -> bool {
    text.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(heading(&words), Some(Part::Codes))
    })
}

pub(super) fn read(text: &str, table: &mut CountsTable) -> Result<(), Error> {
    let mut part = Part::Other;
    let mut codes: BTreeMap<u32, u64> = BTreeMap::new();
    let mut told: BTreeMap<(u32, Detail), u64> = BTreeMap::new();
    let mut frames = 0u32;
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some(next) = heading(&words) {
            frames += u32::from(matches!(next, Part::Codes));
            part = next;
            continue;
        }
        let Some(count) = words.last().and_then(|word| word.parse::<u64>().ok()) else { continue };
        match (part, words.as_slice()) {
            (Part::Codes, [code, _]) => {
                let code = u32::from_str_radix(code.trim_start_matches("0x"), 16)
                    .map_err(|_| at_line(number, "is no row of the table: CODE COUNT"))?;
                let sum = codes.entry(code).or_default();
                *sum = sum.saturating_add(count);
            }
            (Part::Ports, [port, way, ..]) => {
                let kind = if *way == "in" { DetailKind::PortIn } else { DetailKind::PortOut };
                if let Ok(port) = u64::from_str_radix(port.trim_start_matches("0x"), 16) {
                    let sum = told.entry((IOIO, Detail::new(kind, port))).or_default();
                    *sum = sum.saturating_add(count);
                }
            }
            (Part::Faults, [address, _, flags, _]) => {
                let is_write = flags.contains('W');
                let kind = if is_write { DetailKind::MmioWrite } else { DetailKind::MmioRead };
                match u64::from_str_radix(address, 16) {
                    Ok(address) if REGISTERS.contains(&address) => {
                        let sum = told.entry((NPF, Detail::new(kind, address))).or_default();
                        *sum = sum.saturating_add(count);
                    }
                    _ => {}
                }
            }
            _ => {}
        }
    }
    let reason = |code| Spelled::Sure(Reason { isa: Isa::Svm, code, flags: 0 });
    for (code, all) in codes {
        let mut rest = all;
        for ((_, detail), count) in told.iter().filter(|((of, _), _)| *of == code) {
            let count = rest.min(*count);
            rest -= count;
            table.count(reason(code), *detail, count);
        }
        table.count(reason(code), Detail::NONE, rest);
    }
    if frames > 1 {
        table.notes.push(format!("{frames} summaries of a second each were added up"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_of_a_second() {
        let text = "SVM code  Count\n 78 16\n 7b 11\n 400 5\nIOIO SVM exits:\n Port Op OpSz Addr Count\n b008 in 32b 64b 9\n\
            NPF SVM exits:\n Guest PA Guest RIP #PF flags Count\n fee000b0 ffffffffa806b472 D-UW- 4\n 80011008 ffffffffc02521dd D-UW- 1\n";
        assert!(recognise(text));
        let mut table = CountsTable::default();
        assert!(read(text, &mut table).is_ok());
        let rows: Vec<(u32, Detail, u64)> = table
            .rows
            .iter()
            .map(|((name, detail), tally)| (name.reason(Isa::Svm).code, *detail, tally.count))
            .filter(|(.., count)| *count > 0)
            .collect();
        let of = |kind, value| Detail::new(kind, value);
        for row in [
            (0x78, Detail::NONE, 16),
            (IOIO, of(DetailKind::PortIn, 0xb008), 9),
            (IOIO, Detail::NONE, 2),
            (NPF, of(DetailKind::MmioWrite, 0xfee0_00b0), 4),
            (NPF, Detail::NONE, 1),
        ] {
            assert!(rows.contains(&row), "{row:?} in {rows:?}");
        }
        assert_eq!(rows.len(), 5);
    }
}
