//! [`PreemptedRow`]s as columns and back.

use std::sync::Arc;

use arrow_array::builder::{StringBuilder, UInt64Builder};
use arrow_array::{ArrayRef, StringArray, UInt64Array};
use arrow_schema::{DataType, Field};
use vmtax_events::PreemptedRow;

use crate::Error;
use crate::column::Columns;
use crate::key_columns::{self, KeyBuilder, KeyColumns};

/// Names and types, in the order of [`PreemptedBuilder::take`].
pub(crate) fn fields() -> Vec<Field> {
    let mut fields = key_columns::fields();
    fields.extend([
        Field::new("by", DataType::Utf8, false),
        Field::new("count", DataType::UInt64, false),
        Field::new("time_ns", DataType::UInt64, false),
    ]);
    fields
}

/// Collects rows as columns.
#[derive(Default)]
pub(crate) struct PreemptedBuilder {
    key: KeyBuilder,
    by: StringBuilder,
    count: UInt64Builder,
    time_ns: UInt64Builder,
}

impl PreemptedBuilder {
    pub(crate) fn push(&mut self, row: &PreemptedRow) {
        let PreemptedRow { interval_start_ns, key, by, count, time_ns } = row;
        self.key.push(*interval_start_ns, *key);
        self.by.append_value(by);
        self.count.append_value(*count);
        self.time_ns.append_value(*time_ns);
    }

    /// The columns so far; the builder is empty again.
    pub(crate) fn take(&mut self) -> Vec<ArrayRef> {
        let mut columns = self.key.take();
        columns.push(Arc::new(self.by.finish()));
        columns.push(Arc::new(self.count.finish()));
        columns.push(Arc::new(self.time_ns.finish()));
        columns
    }
}

/// Passes the rows of a batch on.
pub(crate) fn read(columns: Columns<'_>, each: &mut dyn FnMut(&PreemptedRow)) -> Result<(), Error> {
    let key = KeyColumns::of(columns)?;
    let by: &StringArray = columns.required("by")?;
    let count: &UInt64Array = columns.required("count")?;
    let time_ns: &UInt64Array = columns.required("time_ns")?;
    for i in 0..columns.batch.num_rows() {
        let (interval_start_ns, key) = key.get(i)?;
        let (by, count, time_ns) = (Arc::from(by.value(i)), count.value(i), time_ns.value(i));
        each(&PreemptedRow { interval_start_ns, key, by, count, time_ns });
    }
    Ok(())
}
