//! A migration whose guest writes memory as fast as it is sent.

use vmtax_events::observed::Observed;

use super::{lines, number};

/// Of a page, where the text does not say (QEMU's targets on x86 and arm64).
const PAGE: f64 = 4096.0;
/// From this part of what is sent on, what is written again keeps a migration from its end.
const BEHIND: f64 = 0.9;

/// The last `info migrate` of QEMU's monitor in a text (migration/migration-hmp-cmds.c), and `downtime-limit` of its parameters. Left out on purpose: a
/// migration that is done, whose rates are those of its last moment, and one of which a rate is missing.
pub(super) fn behind(text: &str) -> Option<Vec<Observed>> {
    let value = |name: &str| {
        let cell = |line: &str| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.split_whitespace().next().and_then(number))?
        };
        lines(text).filter_map(cell).last()
    };
    let dirtied = value("dirty pages rate")?;
    let sent =
        value("throughput")? * 1e6 / 8.0 / value("page size").map_or(PAGE, |kib| kib * 1024.0);
    let is_done = lines(text).any(|line| line.eq_ignore_ascii_case("migration status: completed"));
    let is_behind = !is_done && sent > 0.0 && dirtied >= sent * BEHIND;
    let limit_ms = value("downtime-limit").unwrap_or_default();
    is_behind.then(|| vec![Observed::MigrationBehind { dirtied, sent, limit_ms }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_compared_with_what_is_sent() {
        let text = |rate: &str, status: &str| {
            format!(
                "downtime-limit: 300 milliseconds\nMigration status: {status}\nthroughput: 327.68 mbps\n\
                 page size: 4 kbytes\ndirty pages rate: {rate} pages\n"
            )
        };
        let sent = 10_000.0;
        let found = |rate: &str| {
            let dirtied = rate.parse().unwrap();
            Some(vec![Observed::MigrationBehind { dirtied, sent, limit_ms: 300.0 }])
        };
        assert_eq!(behind(&text("9000", "active")), found("9000"));
        assert_eq!(behind(&text("8999", "active")), None);
        assert_eq!(behind(&text("12000", "completed")), None);
        assert_eq!(behind("dirty pages rate: 12000 pages\n"), None);
    }
}
