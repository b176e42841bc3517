//! [`CallRow`]s as columns and back.

use std::sync::Arc;

use arrow_array::builder::{StringBuilder, UInt8Builder, UInt32Builder, UInt64Builder};
use arrow_array::{Array, ArrayRef, StringArray, UInt8Array, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field};
use vmtax_events::{CallKind, CallRow};

use crate::Error;
use crate::column::Columns;

/// Names and types, in the order of [`CallBuilder::take`].
pub(crate) fn fields() -> Vec<Field> {
    let field = |name, kind| Field::new(name, kind, false);
    vec![
        field("workload", DataType::Utf8),
        field("node", DataType::UInt32),
        Field::new("parent", DataType::UInt32, true),
        field("kind", DataType::Utf8),
        field("level", DataType::UInt8),
        field("name", DataType::Utf8),
        field("module", DataType::Utf8),
        field("calls", DataType::UInt64),
        field("instructions", DataType::UInt64),
    ]
}

/// Collects nodes as columns.
#[derive(Default)]
pub(crate) struct CallBuilder {
    workload: StringBuilder,
    node: UInt32Builder,
    parent: UInt32Builder,
    kind: StringBuilder,
    level: UInt8Builder,
    name: StringBuilder,
    module: StringBuilder,
    calls: UInt64Builder,
    instructions: UInt64Builder,
}

impl CallBuilder {
    pub(crate) fn push(&mut self, row: &CallRow) {
        let CallRow { workload, node, parent, kind, level, name, module, calls, instructions } =
            row;
        self.workload.append_value(workload);
        self.node.append_value(*node);
        self.parent.append_option(*parent);
        self.kind.append_value(kind.name());
        self.level.append_value(*level);
        self.name.append_value(name);
        self.module.append_value(module);
        self.calls.append_value(*calls);
        self.instructions.append_value(*instructions);
    }

    /// The columns so far; the builder is empty again.
    pub(crate) fn take(&mut self) -> Vec<ArrayRef> {
        vec![
            Arc::new(self.workload.finish()),
            Arc::new(self.node.finish()),
            Arc::new(self.parent.finish()),
            Arc::new(self.kind.finish()),
            Arc::new(self.level.finish()),
            Arc::new(self.name.finish()),
            Arc::new(self.module.finish()),
            Arc::new(self.calls.finish()),
            Arc::new(self.instructions.finish()),
        ]
    }
}

/// Passes the nodes of a batch on.
pub(crate) fn read(columns: Columns<'_>, each: &mut dyn FnMut(&CallRow)) -> Result<(), Error> {
    let text = |column| columns.required::<StringArray>(column);
    let workload = text("workload")?;
    let node: &UInt32Array = columns.required("node")?;
    let parent: &UInt32Array = columns.nullable("parent")?;
    let kind = columns.words("kind", CallKind::from_name)?;
    let level: &UInt8Array = columns.required("level")?;
    let name = text("name")?;
    let module = text("module")?;
    let calls: &UInt64Array = columns.required("calls")?;
    let instructions: &UInt64Array = columns.required("instructions")?;
    for i in 0..columns.batch.num_rows() {
        each(&CallRow {
            workload: workload.value(i).to_owned(),
            node: node.value(i),
            parent: (!parent.is_null(i)).then(|| parent.value(i)),
            kind: kind.get(i)?,
            level: level.value(i),
            name: name.value(i).to_owned(),
            module: module.value(i).to_owned(),
            calls: calls.value(i),
            instructions: instructions.value(i),
        });
    }
    Ok(())
}
