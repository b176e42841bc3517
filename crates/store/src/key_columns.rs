//! The columns of an [`ExitKey`] and its interval, the same in `exits` and `preempted`.

use std::sync::Arc;

use arrow_array::builder::{StringBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{Array, ArrayRef, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use vmtax_events::{Detail, DetailKind, ExitKey, Isa, Level, NO_VCPU, Outcome, Reason};

use crate::Error;
use crate::column::{Columns, Words};
use crate::words;

/// Names and types, in the order of [`KeyBuilder::take`].
pub(crate) fn fields() -> Vec<Field> {
    vec![
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
    ]
}

/// Collects keys as columns.
#[derive(Default)]
pub(crate) struct KeyBuilder {
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
}

impl KeyBuilder {
    pub(crate) fn push(&mut self, interval_start_ns: u64, key: ExitKey) {
        let ExitKey { vm, vcpu, level, reason, detail, outcome, ancillary_of } = key;
        self.interval_start_ns.append_value(interval_start_ns);
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
    }

    /// The columns so far; the builder is empty again.
    pub(crate) fn take(&mut self) -> Vec<ArrayRef> {
        vec![
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
        ]
    }
}

/// The columns of the keys of a batch.
pub(crate) struct KeyColumns<'a> {
    columns: Columns<'a>,
    interval_start_ns: &'a UInt64Array,
    vm: &'a UInt32Array,
    vcpu: &'a UInt32Array,
    level: Words<'a, Level>,
    isa: Words<'a, Isa>,
    reason: &'a UInt32Array,
    reason_flags: &'a UInt32Array,
    detail_kind: Words<'a, DetailKind>,
    detail: &'a UInt64Array,
    outcome: Words<'a, Outcome>,
    ancillary_isa: Words<'a, Isa>,
    ancillary_of: &'a UInt32Array,
    ancillary_flags: &'a UInt32Array,
}

impl<'a> KeyColumns<'a> {
    pub(crate) fn of(columns: Columns<'a>) -> Result<KeyColumns<'a>, Error> {
        Ok(KeyColumns {
            columns,
            interval_start_ns: columns.required("interval_start_ns")?,
            vm: columns.required("vm")?,
            vcpu: columns.nullable("vcpu")?,
            level: columns.words("level", words::level)?,
            isa: columns.words("isa", Isa::from_name)?,
            reason: columns.required("reason")?,
            reason_flags: columns.required("reason_flags")?,
            detail_kind: columns.words("detail_kind", DetailKind::from_name)?,
            detail: columns.required("detail")?,
            outcome: columns.words("outcome", words::outcome)?,
            ancillary_isa: columns.nullable_words("ancillary_isa", Isa::from_name)?,
            ancillary_of: columns.nullable("ancillary_of")?,
            ancillary_flags: columns.nullable("ancillary_flags")?,
        })
    }

    /// The interval and the key of a row.
    pub(crate) fn get(&self, i: usize) -> Result<(u64, ExitKey), Error> {
        let ancillary_of = match self.ancillary_isa.get_nullable(i)? {
            None => None,
            Some(_) if self.ancillary_of.is_null(i) => {
                return Err(self.columns.bad(i, "ancillary_of", "is null".to_owned()));
            }
            Some(isa) => Some(Reason {
                isa,
                code: self.ancillary_of.value(i),
                flags: if self.ancillary_flags.is_null(i) {
                    0
                } else {
                    self.ancillary_flags.value(i)
                },
            }),
        };
        let key = ExitKey {
            vm: self.vm.value(i),
            vcpu: if self.vcpu.is_null(i) { NO_VCPU } else { self.vcpu.value(i) },
            level: self.level.get(i)?,
            reason: Reason {
                isa: self.isa.get(i)?,
                code: self.reason.value(i),
                flags: self.reason_flags.value(i),
            },
            detail: Detail { kind: self.detail_kind.get(i)?, value: self.detail.value(i) },
            outcome: self.outcome.get(i)?,
            ancillary_of,
        };
        Ok((self.interval_start_ns.value(i), key))
    }
}
