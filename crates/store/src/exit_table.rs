//! [`ExitRow`]s as columns and back.

use std::sync::Arc;

use arrow_array::builder::{StringBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{Array, ArrayRef, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use vmtax_events::{Detail, DetailKind, ExitKey, ExitRow, Isa, NO_VCPU, Reason};

use crate::Error;
use crate::column::Columns;
use crate::tally_columns::{self, TallyBuilder, TallyColumns};
use crate::words;

/// Names and types, in the order of [`ExitBuilder::take`].
pub(crate) fn fields() -> Vec<Field> {
    let mut fields = vec![
        Field::new("interval_start_ns", DataType::UInt64, false),
        Field::new("vm", DataType::UInt32, false),
        Field::new("vcpu", DataType::UInt32, true),
        Field::new("level", DataType::Utf8, false),
        Field::new("isa", DataType::Utf8, false),
        Field::new("reason", DataType::UInt32, false),
        Field::new("reason_flags", DataType::UInt32, false),
        Field::new("detail_kind", DataType::Utf8, false),
        Field::new("detail", DataType::UInt64, false),
        Field::new("outcome", DataType::Utf8, false),
        Field::new("ancillary_isa", DataType::Utf8, true),
        Field::new("ancillary_of", DataType::UInt32, true),
        Field::new("ancillary_flags", DataType::UInt32, true),
    ];
    fields.extend(tally_columns::fields());
    fields
}

/// Collects exit rows as columns.
#[derive(Default)]
pub(crate) struct ExitBuilder {
    interval_start_ns: UInt64Builder,
    vm: UInt32Builder,
    vcpu: UInt32Builder,
    level: StringBuilder,
    isa: StringBuilder,
    reason: UInt32Builder,
    reason_flags: UInt32Builder,
    detail_kind: StringBuilder,
    detail: UInt64Builder,
    outcome: StringBuilder,
    ancillary_isa: StringBuilder,
    ancillary_of: UInt32Builder,
    ancillary_flags: UInt32Builder,
    tally: TallyBuilder,
}

impl ExitBuilder {
    pub(crate) fn push(&mut self, row: &ExitRow) {
        let ExitRow { interval_start_ns, key, tally } = row;
        let ExitKey { vm, vcpu, level, reason, detail, outcome, ancillary_of } = *key;
        self.interval_start_ns.append_value(*interval_start_ns);
        self.vm.append_value(vm);
        self.vcpu.append_option((vcpu != NO_VCPU).then_some(vcpu));
        self.level.append_value(level.name());
        self.isa.append_value(reason.isa.name());
        self.reason.append_value(reason.code);
        self.reason_flags.append_value(reason.flags);
        self.detail_kind.append_value(detail.kind.name());
        self.detail.append_value(detail.value);
        self.outcome.append_value(outcome.name());
        self.ancillary_isa.append_option(ancillary_of.map(|r| r.isa.name()));
        self.ancillary_of.append_option(ancillary_of.map(|r| r.code));
        self.ancillary_flags.append_option(ancillary_of.map(|r| r.flags));
        self.tally.push(tally);
    }

    /// The columns so far; the builder is empty again.
    pub(crate) fn take(&mut self) -> Vec<ArrayRef> {
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(self.interval_start_ns.finish()),
            Arc::new(self.vm.finish()),
            Arc::new(self.vcpu.finish()),
            Arc::new(self.level.finish()),
            Arc::new(self.isa.finish()),
            Arc::new(self.reason.finish()),
            Arc::new(self.reason_flags.finish()),
            Arc::new(self.detail_kind.finish()),
            Arc::new(self.detail.finish()),
            Arc::new(self.outcome.finish()),
            Arc::new(self.ancillary_isa.finish()),
            Arc::new(self.ancillary_of.finish()),
            Arc::new(self.ancillary_flags.finish()),
        ];
        columns.extend(self.tally.take());
        columns
    }
}

/// Passes the rows of a batch on.
pub(crate) fn read(columns: Columns<'_>, each: &mut dyn FnMut(&ExitRow)) -> Result<(), Error> {
    let interval_start_ns: &UInt64Array = columns.required("interval_start_ns")?;
    let vm: &UInt32Array = columns.required("vm")?;
    let vcpu: &UInt32Array = columns.nullable("vcpu")?;
    let level = columns.words("level", words::level)?;
    let isa = columns.words("isa", Isa::from_name)?;
    let reason: &UInt32Array = columns.required("reason")?;
    let reason_flags: &UInt32Array = columns.required("reason_flags")?;
    let detail_kind = columns.words("detail_kind", DetailKind::from_name)?;
    let detail: &UInt64Array = columns.required("detail")?;
    let outcome = columns.words("outcome", words::outcome)?;
    let ancillary_isa = columns.nullable_words("ancillary_isa", Isa::from_name)?;
    let ancillary_of: &UInt32Array = columns.nullable("ancillary_of")?;
    let ancillary_flags: &UInt32Array = columns.nullable("ancillary_flags")?;
    let tally = TallyColumns::of(columns)?;
    for i in 0..columns.batch.num_rows() {
        let ancillary_of = match ancillary_isa.get_nullable(i)? {
            None => None,
            Some(_) if ancillary_of.is_null(i) => {
                return Err(columns.bad(i, "ancillary_of", "is null".to_owned()));
            }
            Some(isa) => Some(Reason {
                isa,
                code: ancillary_of.value(i),
                flags: if ancillary_flags.is_null(i) { 0 } else { ancillary_flags.value(i) },
            }),
        };
        each(&ExitRow {
            interval_start_ns: interval_start_ns.value(i),
            key: ExitKey {
                vm: vm.value(i),
                vcpu: if vcpu.is_null(i) { NO_VCPU } else { vcpu.value(i) },
                level: level.get(i)?,
                reason: Reason {
                    isa: isa.get(i)?,
                    code: reason.value(i),
                    flags: reason_flags.value(i),
                },
                detail: Detail { kind: detail_kind.get(i)?, value: detail.value(i) },
                outcome: outcome.get(i)?,
                ancillary_of,
            },
            tally: tally.get(i)?,
        });
    }
    Ok(())
}
