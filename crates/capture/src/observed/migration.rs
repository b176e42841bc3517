//! A migration whose guest writes memory as fast as it is sent.

use vmtax_events::observed::Observed;

use super::{lines, number};

/// Bytes of a page, where the text does not say (QEMU's targets on x86 and arm64).
const PAGE: f64 = 4096.0;
/// From this part of what is sent on, what is written again keeps a migration from its end.
const BEHIND: f64 = 0.9;
/// A migration has sent for so long, in milliseconds, before its mean says how fast it is.
const LONG: f64 = 10_000.0;
/// What remains falls if it is less than this part of what it was.
const FALLS: f64 = 0.5;

/// An answer to `info migrate`.
#[derive(Default)]
struct MigrationState {
    /// Milliseconds, and kbytes that were sent in them.
    total: f64,
    sent: Option<f64>,
    sent_mbps: Option<f64>,
    remaining: Option<f64>,
    page: Option<f64>,
    dirtied: Option<f64>,
}

/// `info migrate` of QEMU's monitor (migration/migration-hmp-cmds.c), and `downtime-limit` of its parameters. Without a throughput what was sent so far
/// tells it. Left out on purpose: a migration that is not active or whose rest falls, one that compresses (its bytes are no pages), other units, and one of
/// which a rate is missing.
pub(super) fn behind(text: &str) -> Option<Vec<Observed>> {
    let mut states: Vec<MigrationState> = Vec::new();
    let mut limit_ms = 0.0;
    let mut is_active = true;
    for line in lines(text) {
        let Some((key, value)) = line.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        let in_unit = |unit: &str| value.strip_suffix(unit).and_then(|found| number(found.trim()));
        if key.to_lowercase().ends_with("status") {
            is_active = value == "active";
            if !is_active && states.is_empty() {
                return None;
            }
            continue;
        }
        let is_packed = key.starts_with("xbzrle")
            || key == "compress" && value == "on"
            || key == "multifd-compression" && value != "none";
        if is_packed {
            return None;
        }
        match key {
            "total time" => {
                let total = value.split(' ').next().and_then(number)?;
                match states.last() {
                    // It took less time than the one before: another migration.
                    Some(before) if !is_active && total < before.total => {
                        is_active = true;
                        break;
                    }
                    _ if !is_active => return None,
                    _ => states.push(MigrationState { total, ..MigrationState::default() }),
                }
            }
            "downtime-limit" => limit_ms = in_unit("milliseconds").unwrap_or_default(),
            _ => {}
        }
        let Some(state) = states.last_mut().filter(|_| is_active) else { continue };
        match key {
            "throughput" => state.sent_mbps = state.sent_mbps.or(Some(in_unit("mbps")?)),
            "transferred ram" => state.sent = in_unit("kbytes"),
            "remaining ram" => state.remaining = in_unit("kbytes"),
            "page size" => state.page = Some(in_unit("kbytes")? * 1024.0),
            "dirty pages rate" => state.dirtied = in_unit("pages"),
            _ => {}
        }
    }
    if !is_active {
        return None;
    }
    let (first, last) = (states.first()?, states.last()?);
    let (was, remains) = (first.remaining?, last.remaining?);
    let is_ending = states.len() > 1 && remains < was * FALLS;
    let bytes = match (last.sent_mbps, last.sent) {
        (Some(mbps), _) => mbps * 1e6 / 8.0,
        (None, sent) if last.total >= LONG => sent? * 1024.0 / (last.total / 1e3),
        _ => return None,
    };
    let (dirtied, sent) = (last.dirtied?, bytes / last.page.unwrap_or(PAGE));
    let is_behind = !is_ending && sent > 0.0 && dirtied >= sent * BEHIND;
    is_behind.then(|| vec![Observed::MigrationBehind { dirtied, sent, limit_ms }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(rate: &str, status: &str) -> String {
        format!(
            "downtime-limit: 300 milliseconds\nMigration status: {status}\ntotal time: 9000 ms\nthroughput: 327.68 mbps\n\
             remaining ram: 4000 kbytes\npage size: 4 kbytes\ndirty pages rate: {rate} pages\n"
        )
    }

    #[test]
    fn what_is_written_is_compared_with_what_is_sent() {
        let sent = 10_000.0;
        let found = |rate: &str| {
            let dirtied = rate.parse().unwrap();
            Some(vec![Observed::MigrationBehind { dirtied, sent, limit_ms: 300.0 }])
        };
        assert_eq!(behind(&text("9000", "active")), found("9000"));
        assert_eq!(behind(&text("8999", "active")), None);
        // Another program's throughput is none of the migration's.
        let other = text("12000", "active") + "throughput: 94.1 mbps\n";
        assert_eq!(behind(&other), found("12000"));
    }

    /// What was sent tells the rate; one that took less time is another migration, and its end is not this one's.
    #[test]
    fn another_migration_does_not_end_the_first() {
        let begun = text("12000", "active")
            .replace("throughput: 327.68 mbps", "transferred ram: 400000 kbytes");
        assert_eq!(behind(&begun), None);
        let first = begun.replace("9000 ms", "10000 ms");
        let sent = 10_000.0;
        let found =
            Some(vec![Observed::MigrationBehind { dirtied: 12_000.0, sent, limit_ms: 300.0 }]);
        assert_eq!(behind(&first), found);
        let ended = |total: &str| text("0", "completed").replace("9000 ms", total);
        assert_eq!(behind(&format!("{first}{}", ended("4000 ms"))), found);
        assert_eq!(behind(&format!("{first}{}", ended("11000 ms"))), None);
        let cut = "Migration status: completed\ndowntime: 34 milliseconds\n";
        assert_eq!(behind(&format!("{first}{cut}")), None);
    }

    #[test]
    fn what_ends_or_is_told_in_other_units_is_left_out() {
        let one = text("12000", "active");
        for status in ["completed", "cancelled", "postcopy-active", "completed (downtime 120 ms)"] {
            assert_eq!(behind(&text("12000", status)), None, "{status}");
        }
        let falls = one.replace("4000 kbytes", "400000 kbytes") + &one;
        for other in [
            "dirty pages rate: 12000 pages\n".to_owned(),
            one.replace("mbps", "gbps"),
            one.replace("4 kbytes", "4096 bytes"),
            one.replace("total time", "VM status: paused\ntotal time"),
            one.clone() + "xbzrle transferred: 900 kbytes\n",
            falls,
        ] {
            assert_eq!(behind(&other), None, "{other}");
        }
    }
}
