//! The kinds of row a run holds, each in its own folder of segments.

vmtax_events::words! {
    /// A kind of row.
    pub enum StoredTable {
        /// Counted exits ([`vmtax_events::ExitRow`]).
        Exits = "exits",
        /// Counted accesses ([`vmtax_events::AccessRow`]).
        Accesses = "accesses",
        /// The time split per vCPU ([`vmtax_events::TimeRow`]).
        Time = "time",
        /// Who had the CPU of preempted vCPUs ([`vmtax_events::PreemptedRow`]).
        Preempted = "preempted",
        /// Measured values ([`vmtax_events::Sample`]).
        Bench = "bench",
        /// Counters that were read now and then ([`vmtax_events::Stat`]).
        Stats = "stats",
        /// Call trees of a lab run's operations ([`vmtax_events::CallRow`]).
        Calls = "profile",
        /// Raw events ([`vmtax_events::Event`]).
        Events = "events",
    }
}

impl StoredTable {
    /// The tables that [`crate::Run::read`] reads.
    pub const COUNTED: [StoredTable; 7] = [
        StoredTable::Exits,
        StoredTable::Accesses,
        StoredTable::Time,
        StoredTable::Preempted,
        StoredTable::Bench,
        StoredTable::Stats,
        StoredTable::Calls,
    ];

    /// Path of a segment inside the run; the first is 1.
    pub(crate) fn segment_path(self, number: u64) -> String {
        format!("{}/{number:06}.parquet", self.name())
    }

    /// The table of a listed path.
    ///
    /// `Err` for a path that no run folder has: manifests are hostile, and a path in one must not
    /// lead out of the run. `Ok(None)` for a well-formed path of a table unknown to this version.
    pub(crate) fn of_path(path: &str) -> Result<Option<StoredTable>, ()> {
        let (folder, file) = path.split_once('/').ok_or(())?;
        let number = file.strip_suffix(".parquet").ok_or(())?;
        let plain =
            |text: &str, of: fn(&u8) -> bool| !text.is_empty() && text.bytes().all(|b| of(&b));
        if !plain(folder, u8::is_ascii_lowercase) || !plain(number, u8::is_ascii_digit) {
            return Err(());
        }
        Ok(StoredTable::from_name(folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_tables_and_never_out_of_the_run() {
        for table in StoredTable::ALL {
            assert_eq!(StoredTable::of_path(&table.segment_path(7)), Ok(Some(table)));
        }
        assert_eq!(StoredTable::Exits.segment_path(1), "exits/000001.parquet");
        assert_eq!(StoredTable::of_path("later/000001.parquet"), Ok(None));
        for path in [
            "",
            "/",
            "exits",
            "exits/.parquet",
            "exits/../../etc/1.parquet",
            "../000001.parquet",
            "/exits/000001.parquet",
            "exits//000001.parquet",
            "exits/x/000001.parquet",
            "exits/000001.parquet\0",
            "exits/00000a.parquet",
        ] {
            assert_eq!(StoredTable::of_path(path), Err(()), "{path:?}");
        }
    }
}
