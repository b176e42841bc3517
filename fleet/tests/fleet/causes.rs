//! The SQL of causes against `vmtax_events::Cause`, which every report of one run uses.

use std::collections::BTreeMap;
use std::process::Command;

use vmtax_events::{
    Cause, Detail, DetailKind, ExitKey, ExitRow, Isa, Losses, Reason, Recording, Tally,
};
use vmtax_store::{CreateOptions, RunWriter};

use crate::recorded::{INTEL, NESTED, PLAIN, import, rows, run, stderr};

/// Exits by cause, as the reports of one run decide it.
fn expected(exits: &[ExitRow]) -> BTreeMap<String, (u64, u64)> {
    let mut causes = BTreeMap::new();
    for ExitRow { key, tally, .. } in exits {
        let cause = Cause::of(key.reason, key.detail, key.ancillary_of.is_some());
        let sum: &mut (u64, u64) = causes.entry(cause.name().to_owned()).or_default();
        *sum = (sum.0 + tally.count, sum.1 + tally.time_ns);
    }
    causes
}

fn found(folder: &std::path::Path) -> BTreeMap<String, (u64, u64)> {
    let rows = rows(folder, &["--question", "top-causes", "run"]);
    rows.iter()
        .map(|row| {
            let ns = (row[4].as_f64().unwrap() * 1e6).round() as u64;
            (row[2].as_str().unwrap().to_owned(), (row[3].as_u64().unwrap(), ns))
        })
        .collect()
}

#[test]
fn causes_of_real_recordings_are_those_of_the_reports() {
    for recording in [NESTED, INTEL] {
        let folder = tempfile::tempdir().unwrap();
        let counted = import(recording, &folder.path().join("run"), PLAIN);
        assert!(counted.exits.len() > 10);
        assert_eq!(found(folder.path()), expected(&counted.exits), "{recording}");
        assert_eq!(words_of_the_view(folder.path()), words(&counted.exits), "{recording}");
    }
}

/// An exit without anything special, not yet counted.
pub(crate) fn exit(vm: u32) -> ExitRow {
    let key = ExitKey::of(vm, Reason { isa: Isa::Vmx, code: 10, flags: 0 });
    ExitRow { interval_start_ns: 0, key, tally: Tally::default() }
}

/// Interrupts on their way to a guest, and what inhibits APICv, are accesses and no details of exits.
const OF_ACCESSES: [DetailKind; 8] = [
    DetailKind::Gsi,
    DetailKind::PicPin,
    DetailKind::IoapicPin,
    DetailKind::MsiVector,
    DetailKind::ApicVector,
    DetailKind::AckedPin,
    DetailKind::ApicvInhibit,
    DetailKind::ApicvChange,
];

/// Every kind of detail with values that some rule looks at, under every reason.
#[test]
fn causes_of_all_reasons_and_details_are_those_of_the_reports() {
    let values = [
        0,
        1,
        8,
        0x30,
        0x40,
        0x43,
        0x44,
        0xb,
        0x20,
        0x80,
        0x300,
        0x310,
        0x380,
        0x3f0,
        0xfee0_0300,
        0xfee0_0380,
        0xfee0_1000,
        0x6e0,
        0x830,
        0x838,
        0xc1,
        0x38f,
        0xc001_0200,
        0x4000_0070,
        0x4000_0071,
        0x4000_00b0,
        0x4000_00f0,
        0xc000_0080,
        0x72,
        0x78,
        0x7b,
        0x81,
        0x400,
        0x8000_0001,
        0x8000_0004,
        0x21,
        0xec,
        0xfd,
        10,
        12,
        30,
        31,
        32,
        48,
        54,
        0x1_0003,
        // Of arm64: CNTV_CVAL_EL0, ICC_SGI1R_EL1, ICH_MISR_EL2; PSCI_VERSION, CPU_SUSPEND by 32 and 64 bits.
        0xdf1a,
        0xc65d,
        0xe65a,
        0x8400_0000,
        0x8400_0001,
        0xc400_0001,
        u64::MAX,
    ];
    let mut exits = Vec::new();
    for isa in Isa::ALL {
        for code in (0..0x500).filter(|c| *c < 0x90 || *c >= 0x3f0) {
            let kinds = DetailKind::ALL.into_iter().filter(|kind| !OF_ACCESSES.contains(kind));
            for (i, kind) in kinds.enumerate() {
                for (j, &value) in values.iter().enumerate().filter(|(j, _)| {
                    code < 0x90 && (code as usize + i + j).is_multiple_of(7)
                        || matches!(code, 1 | 0x1f)
                }) {
                    let mut row = exit(1);
                    row.key.reason = Reason { isa, code, flags: 0 };
                    row.key.detail = Detail::new(kind, value);
                    row.key.ancillary_of =
                        j.is_multiple_of(5).then_some(Reason { isa, code: 1, flags: 0 });
                    row.tally.add(1 + (j as u64));
                    exits.push(row);
                }
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let mut writer =
        RunWriter::create(&folder.path().join("run"), &CreateOptions::default()).unwrap();
    exits.iter().for_each(|row| writer.exit(row).unwrap());
    writer.finish(&Recording::default(), &Losses::default()).unwrap();
    let expected = expected(&exits);
    assert!(expected.len() >= 14, "{expected:?}");
    assert_eq!(found(folder.path()), expected);
    assert_eq!(words_of_the_view(folder.path()), words(&exits));
    if let Some(rows) = duckdb(folder.path(), WORDS) {
        assert_eq!(rows, words(&exits));
    }
}

/// Exits by cause, reason, detail and what they are ancillary to, in words.
type CauseWords = BTreeMap<[String; 5], u64>;

const WORDS: &str = "SELECT cause, reason, detail_kind, coalesce(detail, '') AS detail, coalesce(ancillary_of, '') AS of, \
    CAST(sum(count) AS BIGINT) AS n FROM exits_named GROUP BY ALL";

fn words(exits: &[ExitRow]) -> CauseWords {
    let mut words = CauseWords::new();
    for ExitRow { key, tally, .. } in exits {
        let Detail { kind, .. } = key.detail;
        let word = [
            Cause::of(key.reason, key.detail, key.ancillary_of.is_some()).name().to_owned(),
            key.reason.name().into_owned(),
            kind.name().to_owned(),
            key.detail.label(),
            key.ancillary_of.map_or_else(String::new, |of| of.name().into_owned()),
        ];
        *words.entry(word).or_default() += tally.count;
    }
    words
}

fn words_of_the_view(folder: &std::path::Path) -> CauseWords {
    let sql = WORDS.replace("GROUP BY ALL", "GROUP BY 1, 2, 3, 4, 5");
    let rows = rows(folder, &[&sql, "run"]);
    let word = |row: &[serde_json::Value]| {
        [0, 1, 2, 3, 4].map(|i| row[i].as_str().unwrap_or_default().to_owned())
    };
    rows.iter().map(|row| (word(row), row[5].as_u64().unwrap())).collect()
}

/// The same from DuckDB, by the SQL that `vmtax query --duckdb` prints.
fn duckdb(folder: &std::path::Path, sql: &str) -> Option<CauseWords> {
    let output = run(folder, &["query", "--duckdb", "-o", "words.sql"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let sql = sql.replace("FROM exits_named", "FROM exits_named('run/exits/*.parquet')");
    let asked = Command::new("duckdb")
        .args(["-init", "words.sql", "-csv", "-noheader", "-c", &sql])
        .current_dir(folder)
        .output();
    let Ok(asked) = asked else {
        vmtax_skipped::system("there is no duckdb on the PATH");
        return None;
    };
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let text = String::from_utf8(asked.stdout).unwrap();
    Some(text.lines().map(csv_words).collect())
}

fn csv_words(line: &str) -> ([String; 5], u64) {
    // No word has a comma or a quotation mark; texts are in quotation marks where they have spaces.
    let cells: Vec<String> = line.split(',').map(|cell| cell.replace('"', "")).collect();
    let [a, b, c, d, e, n] = <[String; 6]>::try_from(cells).unwrap();
    ([a, b, c, d, e], n.parse().unwrap())
}
