//! Gaps in the log of a kernel's boot: which subsystem's lines come behind them.

use std::collections::BTreeMap;

use vmtax_events::observed::{Observed, ShortName};

use super::lines;

/// A shorter gap is none to look at.
const GAP: f64 = 0.5;
/// Gaps of one subsystem: a single one may be of lines that were left out.
const GAPS: u32 = 2;
/// All of them, and their part of the time that the lines cover.
const ALL: f64 = 2.0;
const PART: f64 = 0.3;
/// The kernel's boot is over by then, or its log was cut.
const LATEST: f64 = 1800.0;
/// Where the kernel's own boot ends: Linux init/main.c, `kernel_init`, and systemd's first line.
const ENDS: [&str; 4] =
    ["Run /init as init process", "Freeing unused kernel", "Run /sbin/init", "systemd[1]:"];
/// More subsystems than a log names.
const MOST: usize = 1000;

/// The first word of a message without what belongs to one device: `pci 0000:00:01.5:` is `pci`.
fn subsystem(message: &str) -> Option<ShortName> {
    let word = message.split_whitespace().next()?;
    let word = word.trim_end_matches([':', ',']);
    let word = word.split([':', '[', '(']).next()?;
    ShortName::new(word).filter(|name| name.as_str().starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// The gaps between lines that stand below each other.
pub(super) fn gaps(text: &str) -> Option<Vec<Observed>> {
    let mut before: Option<f64> = None;
    let (mut covered, mut count, mut sum) = (0.0, 0u32, 0.0);
    let mut by: BTreeMap<ShortName, (u32, f64)> = BTreeMap::new();
    for line in lines(text) {
        let stamped = line.strip_prefix('[').and_then(|line| line.split_once(']'));
        let stamped = stamped.and_then(|(time, message)| {
            let time = time.trim();
            time.contains('.').then(|| time.parse::<f64>().ok())?.map(|time| (time, message.trim()))
        });
        // Lines that were left out may have taken the time.
        let Some((time, message)) = stamped.filter(|(time, _)| (0.0..LATEST).contains(time)) else {
            before = None;
            continue;
        };
        if ENDS.iter().any(|words| message.contains(words)) {
            break;
        }
        let gap = before.map_or(0.0, |before| time - before);
        before = Some(time);
        if gap < 0.0 {
            return None;
        }
        covered += gap;
        if gap >= GAP {
            count += 1;
            sum += gap;
            if let Some(name) =
                subsystem(message).filter(|name| by.len() < MOST || by.contains_key(name))
            {
                let known = by.entry(name).or_default();
                *known = (known.0 + 1, known.1 + gap);
            }
        }
    }
    let (before, (gaps, of_it)) = by.into_iter().max_by(|a, b| a.1.1.total_cmp(&b.1.1))?;
    let ns = |seconds: f64| (seconds * 1e9).round() as u64;
    (gaps >= GAPS && sum >= ALL && sum >= covered * PART && of_it * 2.0 >= sum)
        .then(|| vec![Observed::BootGaps { count, ns: ns(sum), all_ns: ns(covered), before }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Option<(u32, u64, String)> {
        match gaps(text)?.first()? {
            Observed::BootGaps { count, ns, before, .. } => {
                Some((*count, ns / 100_000_000, before.as_str().to_owned()))
            }
            _ => None,
        }
    }

    #[test]
    fn gaps_are_of_the_lines_behind_them() {
        let acpi = "[    0.10] ACPI: Core revision 20230331\n[    3.30] ACPI: 4 ACPI AML tables successfully acquired and loaded\n[    5.3] ACPI: \\_SB_.LNKA: Enabled\n[    5.4] x86/fpu: x87\n";
        assert_eq!(said(acpi), Some((2, 52, "ACPI".to_owned())));
        let ata = "[    1.0] ata2: SATA max UDMA/133\n[    7.5] ata2.00: qc timeout (cmd 0xa1)\n[   17.9] ata2.00: failed to IDENTIFY\n";
        assert_eq!(said(ata), Some((2, 169, "ata2.00".to_owned())));
        for none in [
            "",
            // An excerpt.
            "[    0.004000] clocksource: hyperv_clocksource_tsc_page: mask\n[   13.259868] clocksource: Switched to clocksource x\n",
            // Lines are left out.
            "[    0.10] ACPI: a\n...\n[    3.30] ACPI: b\n",
            // Behind the kernel's boot.
            "[    1.0] Run /init as init process\n[   30.0] random: crng init done\n",
            "[    1.0] a: b\n[    1.2] c: d\n[    1.3] e: f\n",
            // A log of another time.
            "[14031.1] x: a\n[14093.1] x: b\n",
            "[    5.0] x: a\n[    1.0] x: b\n[    9.0] x: c\n",
        ] {
            assert_eq!(said(none), None, "{none}");
        }
    }
}
