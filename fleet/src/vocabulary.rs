//! Tables of words for a run's numbers ([`vmtax_questions::words`]), as the engine has tables.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, RecordBatch, StringArray, StringViewArray, UInt32Array, UInt64Array,
};
use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::error::Result;
use vmtax_questions::words::{self, WordsColumn, WordsTable};

use crate::schema::TextType;

/// All of them, by name.
///
/// # Errors
/// Those of Arrow; a test makes them all.
pub fn tables(texts: TextType) -> Result<Vec<(&'static str, RecordBatch)>> {
    words::tables().into_iter().map(|table| Ok((table.name, batch(&table, texts)?))).collect()
}

fn batch(table: &WordsTable, texts: TextType) -> Result<RecordBatch> {
    let arrays: Vec<ArrayRef> =
        table.columns.iter().map(|(_, column)| array(column, texts)).collect();
    let fields: Vec<Field> = table
        .columns
        .iter()
        .zip(&arrays)
        .map(|((name, _), array)| Field::new(*name, array.data_type().clone(), true))
        .collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
}

fn array(column: &WordsColumn, texts: TextType) -> ArrayRef {
    match (column, texts) {
        (WordsColumn::Text(values), TextType::Views) => {
            Arc::new(StringViewArray::from_iter(values.iter().map(Option::as_deref)))
        }
        (WordsColumn::Text(values), TextType::Plain) => {
            Arc::new(StringArray::from_iter(values.iter().map(Option::as_deref)))
        }
        (WordsColumn::Number32(values), _) => Arc::new(UInt32Array::from(values.clone())),
        (WordsColumn::Number64(values), _) => Arc::new(UInt64Array::from(values.clone())),
        (WordsColumn::Flag(values), _) => Arc::new(BooleanArray::from(values.clone())),
    }
}
