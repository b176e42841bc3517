//! Refuses files in which a column has another type than in its table.
//!
//! DataFusion would cast it: a count stored as text would be added up, or become null. A missing column is null, as in older runs.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapter, PhysicalExprAdapterFactory,
};

/// DataFusion's adapter, after a check of the types.
#[derive(Debug)]
pub(crate) struct TypesAgree;

impl PhysicalExprAdapterFactory for TypesAgree {
    fn create(&self, table: SchemaRef, file: SchemaRef) -> Result<Arc<dyn PhysicalExprAdapter>> {
        if let Some(wrong) = disagreement(&table, &file) {
            return Err(DataFusionError::External(Box::new(wrong)));
        }
        DefaultPhysicalExprAdapterFactory.create(table, file)
    }
}

/// The first column whose type differs between file and table.
pub(crate) fn disagreement(table: &SchemaRef, file: &SchemaRef) -> Option<WrongType> {
    table.fields().iter().find_map(|wanted| {
        let found = file.field_with_name(wanted.name()).ok()?;
        (!alike(wanted.data_type(), found.data_type())).then(|| WrongType {
            column: wanted.name().clone(),
            expected: plain(wanted.data_type()),
            found: plain(found.data_type()),
        })
    })
}

/// A column of a file has another type than its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongType {
    pub column: String,
    /// Type in the table.
    pub expected: DataType,
    /// Type in the file.
    pub found: DataType,
}

impl fmt::Display for WrongType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongType { column, expected, found } = self;
        write!(f, "its column {column} is {found}, and {expected} is what a run holds there")
    }
}

impl std::error::Error for WrongType {}

/// Whether two types are the same, independent of their encoding.
fn plain(kind: &DataType) -> DataType {
    match kind {
        DataType::Utf8View | DataType::LargeUtf8 => DataType::Utf8,
        DataType::Dictionary(_, values) => plain(values),
        other => other.clone(),
    }
}

fn alike(a: &DataType, b: &DataType) -> bool {
    match (plain(a), plain(b)) {
        (DataType::List(a), DataType::List(b)) => alike(a.data_type(), b.data_type()),
        (a, b) => a == b,
    }
}
