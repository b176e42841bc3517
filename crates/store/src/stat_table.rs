//! [`Stat`]s as columns and back.

use std::sync::Arc;

use arrow_array::builder::{Float64Builder, StringBuilder, UInt32Builder, UInt64Builder};
use arrow_array::{Array, ArrayRef, Float64Array, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use vmtax_events::Stat;

use crate::Error;
use crate::column::Columns;

/// Names and types, in the order of [`StatBuilder::take`].
pub(crate) fn fields() -> Vec<Field> {
    vec![
        Field::new("time_ns", DataType::UInt64, false),
        Field::new("vm", DataType::UInt32, true),
        Field::new("name", DataType::Utf8, false),
        Field::new("unit", DataType::Utf8, false),
        Field::new("value", DataType::Float64, false),
    ]
}

/// Collects counters as columns.
#[derive(Default)]
pub(crate) struct StatBuilder {
    time: UInt64Builder,
    vm: UInt32Builder,
    name: StringBuilder,
    unit: StringBuilder,
    value: Float64Builder,
}

impl StatBuilder {
    pub(crate) fn push(&mut self, stat: &Stat) {
        let Stat { time_ns, vm, name, unit, value } = stat;
        self.time.append_value(*time_ns);
        self.vm.append_option((*vm != Stat::HOST).then_some(*vm));
        self.name.append_value(name);
        self.unit.append_value(unit);
        self.value.append_value(*value);
    }

    /// The columns so far; the builder is empty again.
    pub(crate) fn take(&mut self) -> Vec<ArrayRef> {
        vec![
            Arc::new(self.time.finish()),
            Arc::new(self.vm.finish()),
            Arc::new(self.name.finish()),
            Arc::new(self.unit.finish()),
            Arc::new(self.value.finish()),
        ]
    }
}

/// Passes the counters of a batch on.
pub(crate) fn read(columns: Columns<'_>, each: &mut dyn FnMut(&Stat)) -> Result<(), Error> {
    let time: &UInt64Array = columns.required("time_ns")?;
    let vm: &UInt32Array = columns.nullable("vm")?;
    let name: &StringArray = columns.required("name")?;
    let unit: &StringArray = columns.required("unit")?;
    let value: &Float64Array = columns.required("value")?;
    for i in 0..columns.batch.num_rows() {
        each(&Stat {
            time_ns: time.value(i),
            vm: if vm.is_null(i) { Stat::HOST } else { vm.value(i) },
            name: name.value(i).to_owned(),
            unit: unit.value(i).to_owned(),
            value: value.value(i),
        });
    }
    Ok(())
}
