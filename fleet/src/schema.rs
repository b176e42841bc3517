//! The columns of all tables.
//!
//! A table of rows has the columns of its Parquet files (`crates/store/FORMAT.md`), all nullable, because older runs can lack them, followed
//! by the attributes of the run ([`attributes`]).

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use vmtax_store::StoredTable;

/// Placeholder of the type of texts in the lists below.
const TEXT: DataType = DataType::Utf8;

/// Type of texts: views are faster; a cluster needs plain texts, because Ballista does not send views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextType {
    /// `Utf8View`.
    Views,
    /// `Utf8`.
    Plain,
}

impl TextType {
    pub fn data_type(self) -> DataType {
        match self {
            TextType::Views => DataType::Utf8View,
            TextType::Plain => DataType::Utf8,
        }
    }

    fn field(self, name: &str, kind: &DataType) -> FieldRef {
        let kind = if *kind == TEXT { self.data_type() } else { kind.clone() };
        Arc::new(Field::new(name, kind, true))
    }
}

/// The tables of rows, by the name that SQL knows them by. It is the name of their folder.
pub const TABLES: [StoredTable; StoredTable::ALL.len()] = StoredTable::ALL;

/// Columns that every row has of its run.
pub const ATTRIBUTES: [&str; 7] =
    ["run", "host", "date", "kernel", "cpu_model", "labels", "emulated"];

/// [`ATTRIBUTES`] as columns.
pub fn attributes(texts: TextType) -> Vec<FieldRef> {
    let column = |name: &&str| {
        texts.field(name, if *name == "emulated" { &DataType::Boolean } else { &TEXT })
    };
    ATTRIBUTES.iter().map(column).collect()
}

/// The columns of a table's files: the store's, all of which may be null here.
pub fn columns(table: StoredTable, texts: TextType) -> SchemaRef {
    let fields: Vec<FieldRef> =
        table.fields().iter().map(|field| texts.field(field.name(), field.data_type())).collect();
    Arc::new(Schema::new(fields))
}

const U32: DataType = DataType::UInt32;
const U64: DataType = DataType::UInt64;

/// The columns of `runs` in addition to [`ATTRIBUTES`]: a row per run.
pub fn runs(texts: TextType) -> SchemaRef {
    let mut fields = attributes(texts);
    let columns: &[(&str, DataType)] = &[
        ("accelerator", TEXT),
        ("arch", TEXT),
        ("cpus", U32),
        ("created", TEXT),
        ("command", TEXT),
        ("tool_version", TEXT),
        ("recorder", TEXT),
        ("interval_ns", U64),
        ("start_ns", U64),
        ("end_ns", U64),
        ("lost", U64),
        ("exit_rows", U64),
        ("bytes", U64),
    ];
    fields.extend(columns.iter().map(|(name, kind)| texts.field(name, kind)));
    Arc::new(Schema::new(fields))
}

/// The columns of `vms` in addition to [`ATTRIBUTES`]: a row per VM of each run.
pub fn vms(texts: TextType) -> SchemaRef {
    let mut fields = attributes(texts);
    let columns = [("vm", U32), ("name", TEXT), ("inferred", DataType::Boolean)];
    fields.extend(columns.iter().map(|(name, kind)| texts.field(name, kind)));
    Arc::new(Schema::new(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A column of the files with the name of an attribute would hide it.
    #[test]
    fn no_name_is_taken_twice() {
        for table in TABLES {
            let columns = columns(table, TextType::Views);
            assert!(ATTRIBUTES.iter().all(|name| columns.field_with_name(name).is_err()));
        }
    }
}
