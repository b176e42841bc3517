//! [`Sample`]s as columns and back.

use std::sync::Arc;

use arrow_array::builder::{Float64Builder, StringBuilder, UInt32Builder};
use arrow_array::{ArrayRef, Float64Array, StringArray, UInt32Array};
use arrow_schema::{DataType, Field};
use vmtax_events::{Better, Sample};

use crate::Error;
use crate::column::Columns;

/// Names and types, in the order of [`BenchBuilder::take`].
pub(crate) fn fields() -> Vec<Field> {
    let word = |name| Field::new(name, DataType::Utf8, false);
    vec![
        word("workload"),
        word("category"),
        Field::new("repeat", DataType::UInt32, false),
        word("metric"),
        word("unit"),
        Field::new("value", DataType::Float64, false),
        word("better"),
    ]
}

/// Collects samples as columns.
#[derive(Default)]
pub(crate) struct BenchBuilder {
    workload: StringBuilder,
    category: StringBuilder,
    repeat: UInt32Builder,
    metric: StringBuilder,
    unit: StringBuilder,
    value: Float64Builder,
    better: StringBuilder,
}

impl BenchBuilder {
    pub(crate) fn push(&mut self, sample: &Sample) {
        let Sample { workload, category, repeat, metric, unit, value, better } = sample;
        self.workload.append_value(workload);
        self.category.append_value(category);
        self.repeat.append_value(*repeat);
        self.metric.append_value(metric);
        self.unit.append_value(unit);
        self.value.append_value(*value);
        self.better.append_value(better.name());
    }

    /// The columns so far; the builder is empty again.
    pub(crate) fn take(&mut self) -> Vec<ArrayRef> {
        vec![
            Arc::new(self.workload.finish()),
            Arc::new(self.category.finish()),
            Arc::new(self.repeat.finish()),
            Arc::new(self.metric.finish()),
            Arc::new(self.unit.finish()),
            Arc::new(self.value.finish()),
            Arc::new(self.better.finish()),
        ]
    }
}

/// Passes the samples of a batch on.
pub(crate) fn read(columns: Columns<'_>, each: &mut dyn FnMut(&Sample)) -> Result<(), Error> {
    let text = |column| columns.required::<StringArray>(column);
    let workload = text("workload")?;
    let category = text("category")?;
    let repeat: &UInt32Array = columns.required("repeat")?;
    let metric = text("metric")?;
    let unit = text("unit")?;
    let value: &Float64Array = columns.required("value")?;
    let better = columns.words("better", Better::from_name)?;
    for i in 0..columns.batch.num_rows() {
        each(&Sample {
            workload: workload.value(i).to_owned(),
            category: category.value(i).to_owned(),
            repeat: repeat.value(i),
            metric: metric.value(i).to_owned(),
            unit: unit.value(i).to_owned(),
            value: value.value(i),
            better: better.get(i)?,
        });
    }
    Ok(())
}
