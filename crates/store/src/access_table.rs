//! [`AccessRow`]s as columns and back.

use std::sync::Arc;

use arrow_array::builder::{StringBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{Array, ArrayRef, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use vmtax_events::{AccessKey, AccessRow, Detail, DetailKind, NO_VCPU};

use crate::Error;
use crate::column::Columns;
use crate::tally_columns::{self, TallyBuilder, TallyColumns};
use crate::words;

/// Names and types, in the order of [`AccessBuilder::take`].
pub(crate) fn fields() -> Vec<Field> {
    let mut fields = vec![
        Field::new("interval_start_ns", DataType::UInt64, false),
        Field::new("vm", DataType::UInt32, false),
        Field::new("vcpu", DataType::UInt32, true),
        Field::new("level", DataType::Utf8, false),
        Field::new("detail_kind", DataType::Utf8, false),
        Field::new("detail", DataType::UInt64, false),
    ];
    fields.extend(tally_columns::fields());
    fields
}

/// Collects access rows as columns.
#[derive(Default)]
pub(crate) struct AccessBuilder {
    interval_start_ns: UInt64Builder,
    vm: UInt32Builder,
    vcpu: UInt32Builder,
    level: StringBuilder,
    detail_kind: StringBuilder,
    detail: UInt64Builder,
    tally: TallyBuilder,
}

impl AccessBuilder {
    pub(crate) fn push(&mut self, row: &AccessRow) {
        let AccessRow { interval_start_ns, key, tally } = row;
        let AccessKey { vm, vcpu, level, detail } = *key;
        self.interval_start_ns.append_value(*interval_start_ns);
        self.vm.append_value(vm);
        self.vcpu.append_option((vcpu != NO_VCPU).then_some(vcpu));
        self.level.append_value(level.name());
        self.detail_kind.append_value(detail.kind.name());
        self.detail.append_value(detail.value);
        self.tally.push(tally);
    }

    /// The columns so far; the builder is empty again.
    pub(crate) fn take(&mut self) -> Vec<ArrayRef> {
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(self.interval_start_ns.finish()),
            Arc::new(self.vm.finish()),
            Arc::new(self.vcpu.finish()),
            Arc::new(self.level.finish()),
            Arc::new(self.detail_kind.finish()),
            Arc::new(self.detail.finish()),
        ];
        columns.extend(self.tally.take());
        columns
    }
}

/// Passes the rows of a batch on.
pub(crate) fn read(columns: Columns<'_>, each: &mut dyn FnMut(&AccessRow)) -> Result<(), Error> {
    let interval_start_ns: &UInt64Array = columns.required("interval_start_ns")?;
    let vm: &UInt32Array = columns.required("vm")?;
    let vcpu: &UInt32Array = columns.nullable("vcpu")?;
    let level = columns.words("level", words::level)?;
    let detail_kind = columns.words("detail_kind", DetailKind::from_name)?;
    let detail: &UInt64Array = columns.required("detail")?;
    let tally = TallyColumns::of(columns)?;
    for i in 0..columns.batch.num_rows() {
        each(&AccessRow {
            interval_start_ns: interval_start_ns.value(i),
            key: AccessKey {
                vm: vm.value(i),
                vcpu: if vcpu.is_null(i) { NO_VCPU } else { vcpu.value(i) },
                level: level.get(i)?,
                detail: Detail { kind: detail_kind.get(i)?, value: detail.value(i) },
            },
            tally: tally.get(i)?,
        });
    }
    Ok(())
}
