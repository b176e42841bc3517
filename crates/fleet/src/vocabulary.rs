//! The words that numbers in a run stand for, as tables: reasons, and what causes an exit.
//!
//! The rules are `vmtax_events::Cause`'s alone. Here they are asked, never repeated: which rows there are follows
//! from what it answers, and a test holds the SQL that joins these tables to it, exit by exit.
//!
//! Left out on purpose: names of details (MSRs, ports); they are for the reports of one run.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, RecordBatch, StringViewArray, UInt32Array, UInt64Array,
};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
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

/// The table `details`: values that say something else than their kind does.
pub fn details() -> Result<RecordBatch> {
    let mut rows: Vec<(DetailKind, u64, Cause)> = Vec::new();
    for (kind, ranges) in BY_VALUE.iter().chain(&CALLS) {
        let usual = of_detail(*kind, ORDINARY);
        for value in ranges.iter().flat_map(|&(first, last)| first..=last) {
            rows.extend(
                of_detail(*kind, value).filter(|c| Some(*c) != usual).map(|c| (*kind, value, c)),
            );
        }
    }
    batch(vec![
        (
            "detail_kind",
            Arc::new(StringViewArray::from_iter_values(rows.iter().map(|r| r.0.name()))),
        ),
        ("detail", Arc::new(UInt64Array::from_iter_values(rows.iter().map(|r| r.1)))),
        ("cause", Arc::new(StringViewArray::from_iter_values(rows.iter().map(|r| r.2.name())))),
    ])
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
