//! The words that numbers in a run stand for, as tables: reasons, and what causes an exit.
//!
//! The rules are `vmtax_events::Cause`'s alone. Here they are asked, never repeated: which rows there are follows
//! from what it answers, and a test holds the SQL that joins these tables to it, exit by exit.
//!
//! [`EXITS_NAMED`] puts them together: exits with words for cause, reason and detail. [`duckdb`] writes the same for DuckDB.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, BooleanArray, RecordBatch, StringViewArray, UInt32Array, UInt64Array,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::Result;
use vmtax_events::{Cause, Detail, DetailKind, Isa, Reason};

use crate::schema::Texts;

/// Codes of a reason that can have a name: VMX basic reasons, SVM exit codes, and those of SVM from here.
const CODES: u32 = 0x1000;
const SVM_HIGH: u32 = 0x8000_0000;

/// A detail that says nothing of a cause, and is not the absence of one.
const SILENT: Detail = Detail { kind: DetailKind::Overflow, value: 0 };

/// Kinds of detail whose value can decide the cause, and the values that can.
const BY_VALUE: [(DetailKind, &[(u64, u64)]); 12] = [
    (DetailKind::MsrRead, MSRS),
    (DetailKind::MsrWrite, MSRS),
    (DetailKind::PortOut, &[(0, 0xfff)]),
    (DetailKind::MmioRead, APIC_PAGE),
    (DetailKind::MmioWrite, APIC_PAGE),
    (DetailKind::Hypercall, &[(0, 0xff)]),
    (DetailKind::HypervHypercall, &[(0, 0xfff)]),
    (DetailKind::CrRead, &[(0, 15)]),
    (DetailKind::CrWrite, &[(0, 15)]),
    (DetailKind::ApicRead, &[(0, 0xfff)]),
    (DetailKind::ApicWrite, &[(0, 0xfff)]),
    (DetailKind::GhcbMsr, &[(0, 0xfff)]),
];
const MSRS: &[(u64, u64)] = &[
    (0, 0x1fff),
    (0x4000_0000, 0x4000_0fff),
    (0x4b56_4d00, 0x4b56_4dff),
    (0xc000_0000, 0xc000_0fff),
    (0xc001_0000, 0xc001_1fff),
];
const APIC_PAGE: &[(u64, u64)] = &[(0xfee0_0000, 0xfee0_0fff)];
/// GHCB exit codes and TDVMCALL leaves.
const CALLS: [(DetailKind, &[(u64, u64)]); 2] = [
    // Requests of the host from 2^31 on: those above all mean the same, which the question says itself.
    (DetailKind::Ghcb, &[(0, 0xfff), (0x8000_0000, 0x8000_00ff)]),
    (DetailKind::Tdvmcall, &[(0, 0xff)]),
];

/// Exits with their words: what the view `exits_named` is.
pub const EXITS_NAMED: &str = include_str!("../views/exits_named.sql");

/// Values that can have a name, besides those that can decide a cause.
const NAMED: [(DetailKind, &[(u64, u64)]); 7] = [
    (DetailKind::PortIn, &[(0, 0xffff)]),
    (DetailKind::PortOut, &[(0, 0xffff)]),
    (DetailKind::MmioRead, IO_APIC),
    (DetailKind::MmioWrite, IO_APIC),
    (DetailKind::Tdvmcall, &[(0x1_0000, 0x1_00ff)]),
    (DetailKind::VmcsField, &[(0, 0x7fff)]),
    (DetailKind::Halt, &[(0, 1)]),
];
const IO_APIC: &[(u64, u64)] = &[(0xfec0_0000, 0xfec0_0fff)];

/// What a detail alone says of a cause, if anything: a reason that nobody knows leaves the decision to it.
fn of_detail(kind: DetailKind, value: u64) -> Option<Cause> {
    let nobody = Reason { isa: Isa::Unknown, code: 0, flags: 0 };
    match kind {
        DetailKind::None | DetailKind::Halt | DetailKind::Overflow => None,
        _ => Some(Cause::of(nobody, Detail::new(kind, value), false)),
    }
}

/// A value that no list has: what is true of it is true of the kind.
const ORDINARY: u64 = 0x7777_7777;

/// The table `reasons`: a row for each reason that has a name or a cause.
///
/// `cause` where the detail does not decide, `alone`: the detail plays no part, `bare`: without any detail,
/// `ancillary`: while L1 handled an exit of L2.
pub fn reasons() -> Result<RecordBatch> {
    let codes = |isa| {
        (0..CODES).chain(SVM_HIGH..SVM_HIGH + CODES).chain([u32::MAX]).map(move |code| Reason {
            isa,
            code,
            flags: 0,
        })
    };
    let known = codes(Isa::Vmx)
        .chain(codes(Isa::Svm))
        .filter(|reason| reason.is_known() || Cause::of(*reason, SILENT, false) != Cause::Other);
    let known: Vec<Reason> = known.collect();
    let cause = |reason: &Reason, detail| Cause::of(*reason, detail, false);
    let stands_alone = |reason: &Reason| {
        let probes = [Detail::new(DetailKind::Cpuid, 0), Detail::new(DetailKind::PageFault, 0)];
        // Two details that say different things: who is not moved by either is moved by none.
        probes.iter().all(|probe| cause(reason, *probe) == cause(reason, SILENT))
    };
    let text = |of: &dyn Fn(&Reason) -> String| -> ArrayRef {
        Arc::new(StringViewArray::from_iter_values(known.iter().map(of)))
    };
    batch(vec![
        ("isa", text(&|r| r.isa.name().to_owned())),
        ("reason", Arc::new(UInt32Array::from_iter_values(known.iter().map(|r| r.code)))),
        ("name", text(&|r| r.name().into_owned())),
        ("cause", text(&|r| cause(r, SILENT).name().to_owned())),
        ("alone", Arc::new(BooleanArray::from_iter(known.iter().map(|r| Some(stands_alone(r)))))),
        ("bare", text(&|r| cause(r, Detail::NONE).name().to_owned())),
        ("ancillary", text(&|r| Cause::of(*r, Detail::NONE, true).name().to_owned())),
    ])
}

/// The table `detail_kinds`: what each kind of detail says of a cause (null: nothing), and whether its value matters.
pub fn detail_kinds() -> Result<RecordBatch> {
    let kinds: Vec<DetailKind> = DetailKind::all().collect();
    let by_value = |kind| BY_VALUE.iter().chain(&CALLS).any(|(k, _)| *k == kind);
    batch(vec![
        (
            "detail_kind",
            Arc::new(StringViewArray::from_iter_values(kinds.iter().map(|k| k.name()))),
        ),
        ("by_value", Arc::new(BooleanArray::from_iter(kinds.iter().map(|&k| Some(by_value(k)))))),
        (
            "cause",
            Arc::new(StringViewArray::from_iter(
                kinds.iter().map(|&k| of_detail(k, ORDINARY).map(Cause::name)),
            )),
        ),
    ])
}

/// The values of a kind that a table may know something of, each once.
fn candidates(kind: DetailKind) -> BTreeSet<u64> {
    let lists = BY_VALUE.iter().chain(&CALLS).chain(&NAMED).filter(|(k, _)| *k == kind);
    lists.flat_map(|(_, ranges)| ranges.iter()).flat_map(|&(a, b)| a..=b).collect()
}

/// The table `details`: values that say something else of a cause than their kind does, and those that have a name.
pub fn details() -> Result<RecordBatch> {
    let mut rows: Vec<(DetailKind, u64, Option<Cause>, String)> = Vec::new();
    for kind in DetailKind::all() {
        let usual = of_detail(kind, ORDINARY);
        for value in candidates(kind) {
            let decides = BY_VALUE.iter().chain(&CALLS).any(|(k, _)| *k == kind);
            let cause = of_detail(kind, value).filter(|cause| decides && Some(*cause) != usual);
            let detail = Detail::new(kind, value);
            if cause.is_some() || has_name(detail) {
                rows.push((kind, value, cause, detail.label()));
            }
        }
    }
    batch(vec![
        (
            "detail_kind",
            Arc::new(StringViewArray::from_iter_values(rows.iter().map(|r| r.0.name()))),
        ),
        ("detail", Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.1)))),
        ("cause", Arc::new(StringViewArray::from_iter(rows.iter().map(|r| r.2.map(Cause::name))))),
        ("name", Arc::new(StringViewArray::from_iter_values(rows.iter().map(|r| &r.3)))),
    ])
}

/// Its label is more than its number.
fn has_name(detail: Detail) -> bool {
    let label = detail.label();
    match detail.kind {
        // The view writes these itself.
        DetailKind::Cpuid => false,
        DetailKind::Hypercall => label.contains(' '),
        DetailKind::CrRead | DetailKind::CrWrite => false,
        _ => label != format!("{:#x}", detail.value),
    }
}

/// The words as SQL that DuckDB runs: the tables of words, and a macro `exits_named(files)` over Parquet files of exits.
///
/// # Errors
/// Those of Arrow; a test makes it.
pub fn duckdb() -> Result<String> {
    let mut sql = String::new();
    for (name, batch) in tables(Texts::Plain)? {
        let schema = batch.schema();
        let columns: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        let formats = FormatOptions::default().with_null("NULL");
        let cells: Vec<ArrayFormatter<'_>> = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &formats))
            .collect::<Result<_, _>>()?;
        let cell = |column: usize, row: usize| {
            let text = cells[column].value(row).to_string();
            let is_text = *batch.column(column).data_type() == DataType::Utf8;
            match is_text && !batch.column(column).is_null(row) {
                true => format!("'{}'", text.replace('\'', "''")),
                false => text,
            }
        };
        let rows: Vec<String> = (0..batch.num_rows())
            .map(|row| {
                let cells: Vec<String> = (0..columns.len()).map(|i| cell(i, row)).collect();
                format!("({})", cells.join(", "))
            })
            .collect();
        sql += &format!(
            "CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM (VALUES\n{}\n) AS t({});\n",
            rows.join(",\n"),
            columns.join(", ")
        );
    }
    let view = EXITS_NAMED.replace("FROM exits e", "FROM read_parquet(files) e");
    Ok(sql + &format!("CREATE OR REPLACE TEMP MACRO exits_named(files) AS TABLE\n{view};\n"))
}

/// All of them, by name.
///
/// # Errors
/// Those of Arrow; a test makes them all.
pub fn tables(texts: Texts) -> Result<Vec<(&'static str, RecordBatch)>> {
    let tables =
        [("reasons", reasons()?), ("detail_kinds", detail_kinds()?), ("details", details()?)];
    tables.into_iter().map(|(name, batch)| Ok((name, with_texts(batch, texts)?))).collect()
}

fn with_texts(batch: RecordBatch, texts: Texts) -> Result<RecordBatch> {
    if texts == Texts::Views {
        return Ok(batch);
    }
    let names: Vec<String> = batch.schema().fields().iter().map(|f| f.name().clone()).collect();
    let columns = names.iter().zip(batch.columns()).map(|(name, column)| {
        let plain = matches!(column.data_type(), DataType::Utf8View);
        let kind = if plain { texts.data_type() } else { column.data_type().clone() };
        Ok((name.as_str(), cast(column, &kind)?))
    });
    self::batch(columns.collect::<Result<_>>()?)
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> Result<RecordBatch> {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, array)| Field::new(*name, array.data_type().clone(), true))
        .collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}
