//! What every fuzz target does with its bytes: the whole way from an importer to the tables, in one
//! thread, and what must hold at the end of it whatever the bytes are.
//!
//! ```text
//!  bytes ──> import ──Feed──> order::Sorter ──Sink──> Accountant ──rows──> LedgerBuilder ──> Ledger ──> tables
//!                                       events: sorted          rows: checked            totals: equal
//! ```
//!
//! Left out on purpose: whether the numbers are right. That is what the tests against perf and trace-cmd
//! are for; here nothing may panic, hang, grow without bound or contradict itself.

use std::collections::BTreeMap;
use std::io::Read;

use vmtax_analyse::explain::{Explanation, FindingCost};
use vmtax_analyse::{
    AccountOptions, Accountant, By, DiffSide, Filter, Ledger, LedgerBuilder, Nested, SortedTable,
    TableKind, statistics,
};
use vmtax_capture::import::perf_data::EventsFile;
use vmtax_capture::import::{self, Imported};
use vmtax_capture::order::Sorter;
use vmtax_capture::{Error, ImportFormat, ImportSource, Sink};
use vmtax_events::{
    AccessRow, DetailKind, Event, Exit, ExitRow, Isa, Recording, RowSink, Tally, TimeRow,
};

/// Reads `bytes` as `format` and analyses what comes out.
///
/// # Panics
/// If something does not hold that must hold for any input. An input that is refused is fine.
pub fn check(format: ImportFormat, mut bytes: &[u8]) {
    let mut sorter = Sorter::new(Analysis::new(AccountOptions::default()));
    // The vendor matters for bpftrace alone, and a dump is short: the last byte decides.
    let isa = match bytes.last().map_or(0, |byte| byte & 3) {
        0 | 2 => Isa::Svm,
        1 => Isa::Vmx,
        _ => Isa::Arm,
    };
    let options = import::ImportOptions { isa, ..import::ImportOptions::default() };
    let imported = if format.needs_seeking() {
        let source: &&[u8] = &bytes;
        import::import(format, ImportSource::Random(source), options, &mut sorter)
    } else {
        let mut pieces = Pieces(&mut bytes);
        import::import(format, ImportSource::Stream(&mut pieces), options, &mut sorter)
    };
    check_end(sorter, imported);
}

/// The same for a folder of `perf record --threads`: its file `data` and its parts.
///
/// # Panics
/// As [`check`].
pub fn check_folder(data: &[u8], parts: &[&[u8]]) {
    let mut sorter = Sorter::new(Analysis::new(AccountOptions::default()));
    let parts: Vec<EventsFile<'_>> =
        (0..).zip(parts).map(|(number, source)| EventsFile { number, source }).collect();
    let source = ImportSource::Folder(&data, &parts);
    let imported = import::import(
        ImportFormat::PerfFile,
        source,
        import::ImportOptions::default(),
        &mut sorter,
    );
    check_end(sorter, imported);
}

fn check_end(sorter: Sorter<Analysis>, imported: Result<Imported, Error>) {
    let (late, analysis) = match sorter.finish() {
        Ok((analysis, late)) => (late, analysis),
        Err(error) => panic!("a sink that never stops was stopped: {error}"),
    };
    assert_eq!(late, analysis.late, "events that came too late for the sorter");
    match imported {
        Ok(imported) => analysis.finish(imported),
        Err(Error::Stopped) => panic!("a sink that never stops was stopped"),
        // A sentence that a person can read is all that an error owes.
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A pipe: what is written in one go need not be read in one go.
struct Pieces<'a, 'b>(&'a mut &'b [u8]);

impl Read for Pieces<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let some = buf.len().min(1 + self.0.len() / 2);
        self.0.read(&mut buf[..some])
    }
}

/// The sink behind the sorter: an accounting whose rows build a ledger.
#[derive(Debug)]
struct Analysis {
    accountant: Accountant<Rows>,
    /// The latest time seen, and how many events were earlier than that.
    time_ns: u64,
    late: u64,
    /// Exits that another tool counted and timed: they never ended here.
    counted: u128,
}

impl Analysis {
    fn new(options: AccountOptions) -> Analysis {
        let ledger = LedgerBuilder::new(Filter::default(), options.interval_ns);
        let rows = Rows { ledger, ended: 0, timed: 0 };
        Analysis { accountant: Accountant::new(options, rows), time_ns: 0, late: 0, counted: 0 }
    }

    fn finish(mut self, imported: Imported) {
        let Imported { mut recording, mut losses, seen: _, rips } = imported;
        rips.threads().for_each(|(tid, rips)| self.accountant.rips(tid, rips));
        let (rows, vms, lost) = self.accountant.finish();
        losses.merge(&lost);
        losses.out_of_order += self.late;
        recording.vms = vms;
        assert_eq!(
            rows.ended + self.counted,
            rows.timed,
            "exits that ended, and exits that are timed"
        );
        let complete = losses.truncated.is_empty();
        check_ledger(&rows.ledger.finish(recording, losses, complete));
    }
}

impl Sink for Analysis {
    fn events(&mut self, events: &[Event]) -> Result<(), Error> {
        assert!(events.is_sorted_by_key(|e| e.time_ns), "the sorter did not sort");
        for event in events {
            self.late += u64::from(event.time_ns < self.time_ns);
            self.accountant.event(event);
        }
        let last = events.last().map_or(0, |e| e.time_ns);
        self.time_ns = self.time_ns.max(last);
        Ok(())
    }

    fn counted(&mut self, row: &ExitRow) -> Result<(), Error> {
        self.counted += u128::from(row.tally.timed);
        self.accountant.counted(row);
        Ok(())
    }

    fn accessed(&mut self, row: &AccessRow) -> Result<(), Error> {
        self.accountant.accessed(row);
        Ok(())
    }

    fn described(&mut self, recording: &Recording) -> Result<(), Error> {
        self.accountant.guests(&recording.together.guests);
        Ok(())
    }

    fn thread_name(&mut self, _: u32, tid: u32, name: &str) -> Result<(), Error> {
        self.accountant.thread_name(tid, name);
        Ok(())
    }
}

/// Checks every row on its way to the ledger.
#[derive(Debug)]
struct Rows {
    ledger: LedgerBuilder,
    ended: u128,
    timed: u128,
}

impl RowSink for Rows {
    fn exit(&mut self, row: &ExitRow) {
        check_tally(&row.tally);
        self.timed += u128::from(row.tally.timed);
        self.ledger.exit(row);
    }

    fn access(&mut self, row: &AccessRow) {
        check_tally(&row.tally);
        self.ledger.access(row);
    }

    fn time(&mut self, row: &TimeRow) {
        check_time(row);
        self.ledger.time(row);
    }

    fn ended(&mut self, exit: &Exit) {
        assert!(exit.start_ns <= exit.end_ns, "an exit ends before it begins: {exit:?}");
        let within = u128::from(exit.halted_ns) + u128::from(exit.preempted_ns);
        assert!(within <= u128::from(exit.duration_ns()), "parts longer than the whole: {exit:?}");
        self.ended += 1;
    }
}

fn check_tally(t: &Tally) {
    assert!(t.count >= t.timed, "more timed than counted: {t:?}");
    let sum: u128 = t.durations.bins().map(|bin| u128::from(bin.count)).sum();
    assert!(sum <= u128::from(t.timed), "the histogram holds more than what is timed: {t:?}");
    if t.timed > 0 {
        assert!(t.min_ns <= t.max_ns && t.max_ns <= t.time_ns, "{t:?}");
        let mean = statistics::mean_ns(t).expect("timed exits have a mean");
        let error = statistics::standard_error_ns(t).unwrap_or(0.0);
        assert!(mean >= 0.0 && error >= 0.0 && error.is_finite(), "{mean} {error}: {t:?}");
        for q in [0.0, 0.5, 0.99, 1.0] {
            // A table that another tool printed has sums alone.
            let Some(quantile) = statistics::quantile(t, q) else { continue };
            assert!(quantile.low_ns <= quantile.high_ns && quantile.high_ns <= t.max_ns, "{t:?}");
        }
    } else {
        assert_eq!((t.min_ns, t.max_ns, t.time_ns, t.sum_sq), (u64::MAX, 0, 0, 0), "{t:?}");
    }
}

fn check_time(t: &TimeRow) {
    let parts =
        [t.guest_ns, t.exit_kernel_ns, t.exit_user_ns, t.halted_ns, t.preempted_ns, t.unknown_ns];
    let sum: u128 = parts.iter().map(|&ns| u128::from(ns)).sum();
    // Sums over threads stop at the largest number.
    if t.wall_ns != u64::MAX {
        assert_eq!(sum, u128::from(t.wall_ns), "the parts are not the whole: {t:?}");
    }
}

fn check_ledger(ledger: &Ledger) {
    let total = ledger.total();
    check_tally(&total);
    for time in ledger.time.values() {
        check_time(&time.sum);
    }
    check_time(&ledger.time_total());
    let tax = ledger.tax();
    assert!(tax.is_none_or(|tax| tax >= 0.0 && tax.is_finite()), "{tax:?}");
    assert_eq!(sum(ledger.causes().iter().map(|(_, tally)| tally)), total, "causes");
    let _ = ledger.has_nesting();

    // Page faults and control registers are details of exits alone; changes of attributes and pre-faults are only in the table of conversions,
    // where other rows are a second time.
    let is_listed = |kind| {
        use DetailKind as K;
        matches!(
            kind,
            K::MsrRead
                | K::MsrWrite
                | K::SysregRead
                | K::SysregWrite
                | K::PortIn
                | K::PortOut
                | K::MmioRead
                | K::MmioWrite
                | K::Cpuid
                | K::Hypercall
                | K::HypervHypercall
                | K::XenHypercall
                | K::Smccc
        )
    };
    let accesses = ledger.accesses.iter().filter(|(key, _)| is_listed(key.detail.kind));
    let accesses = sum(accesses.map(|(_, tally)| tally));
    for by in [&[][..], &By::ALL] {
        let mut of_tables = Tally::default();
        for kind in TableKind::ALL {
            let table = SortedTable::new(ledger, kind, by);
            check_table(&table);
            if kind.is_exits() {
                assert_eq!(table.total, total, "{kind:?} has all exits");
            } else if kind != TableKind::Conversion {
                of_tables.merge(&table.total);
            }
        }
        assert_eq!(of_tables, accesses, "each access is in one table");
    }
    check_nested(ledger, &Nested::new(ledger));
    check_recording(&ledger.recording);
    check_explanation(ledger);
}

/// Whatever was recorded has a verdict, and costs that can be.
fn check_explanation(ledger: &Ledger) {
    let labels = BTreeMap::new();
    let side = DiffSide { source: "fuzzed", ledger, labels: &labels, seconds: None };
    for base in [None, Some(&side)] {
        let explanation = Explanation::new(&side, base);
        assert!(!explanation.verdict.id().is_empty());
        for finding in &explanation.findings {
            if let FindingCost::Time { low_ns, high_ns, .. } = finding.cost {
                assert!(low_ns <= high_ns, "{}: {low_ns} > {high_ns}", finding.id());
            }
            assert!(finding.cost.share().is_none_or(f64::is_finite), "{}", finding.id());
        }
    }
}

fn sum<'a>(tallies: impl Iterator<Item = &'a Tally>) -> Tally {
    tallies.fold(Tally::default(), |mut total, tally| {
        total.merge(tally);
        total
    })
}

fn check_table(table: &SortedTable) {
    assert_eq!(sum(table.rows.iter().map(|row| &row.tally)), table.total, "{:?}", table.kind);
    for row in &table.rows {
        check_tally(&row.tally);
        assert_eq!(row.key.len(), table.by.len(), "{:?}", table.kind);
    }
}

fn check_nested(ledger: &Ledger, nested: &Nested) {
    let all: u128 = ledger.exits.values().map(|t| u128::from(t.count)).sum();
    for row in &nested.rows {
        check_tally(&row.l2);
        assert!(row.to_l1 <= row.l2.count, "{row:?}");
        let _ = row.ancillary_per_exit();
        let ancillary: u128 = row.ancillary.iter().map(|a| u128::from(a.tally.count)).sum();
        assert!(ancillary <= all, "{row:?}");
    }
}

fn check_recording(recording: &Recording) {
    assert!(!recording.format.is_empty());
    let ids = recording.vms.iter().map(|vm| vm.id);
    assert!(ids.is_sorted_by(|a, b| a < b), "two VMs of one id: {:?}", recording.vms);
}
