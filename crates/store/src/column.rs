//! Columns of a batch by name, with errors that name file, row, column and value.

use std::path::Path;

use arrow_array::{Array, RecordBatch, StringArray};

use crate::Error;

/// The columns of one batch of a segment.
#[derive(Clone, Copy)]
pub(crate) struct Columns<'a> {
    pub(crate) path: &'a Path,
    pub(crate) batch: &'a RecordBatch,
    /// Row of the segment that the batch starts with.
    pub(crate) first_row: u64,
}

impl<'a> Columns<'a> {
    /// A column that may hold nulls.
    pub(crate) fn nullable<A: Array + 'static>(
        &self,
        column: &'static str,
    ) -> Result<&'a A, Error> {
        let problem = |problem| Error::Column { path: self.path.to_owned(), column, problem };
        let array =
            self.batch.column_by_name(column).ok_or_else(|| problem("is missing".to_owned()))?;
        array
            .as_any()
            .downcast_ref()
            .ok_or_else(|| problem(format!("has an unexpected type, {}", array.data_type())))
    }

    /// A column without nulls.
    pub(crate) fn required<A: Array + 'static>(
        &self,
        column: &'static str,
    ) -> Result<&'a A, Error> {
        let array: &'a A = self.nullable(column)?;
        if array.null_count() == 0 {
            return Ok(array);
        }
        let index = (0..array.len()).find(|&i| array.is_null(i)).unwrap_or_default();
        Err(self.bad(index, column, "is null".to_owned()))
    }

    /// A column without nulls that segments of older versions do not have.
    pub(crate) fn optional<A: Array + 'static>(
        &self,
        column: &'static str,
    ) -> Result<Option<&'a A>, Error> {
        match self.batch.column_by_name(column) {
            Some(_) => self.required(column).map(Some),
            None => Ok(None),
        }
    }

    /// A column of words, each of which `parse` knows.
    pub(crate) fn words<T>(
        &self,
        column: &'static str,
        parse: fn(&str) -> Option<T>,
    ) -> Result<Words<'a, T>, Error> {
        Ok(Words { columns: *self, array: self.required(column)?, column, parse })
    }

    /// A column of words and nulls.
    pub(crate) fn nullable_words<T>(
        &self,
        column: &'static str,
        parse: fn(&str) -> Option<T>,
    ) -> Result<Words<'a, T>, Error> {
        Ok(Words { columns: *self, array: self.nullable(column)?, column, parse })
    }

    /// The error of a value at row `index` of the batch.
    pub(crate) fn bad(&self, index: usize, column: &'static str, problem: String) -> Error {
        let row = self.first_row + index as u64;
        Error::Value { path: self.path.to_owned(), row, column, problem }
    }
}

/// A column of words of the vocabulary.
pub(crate) struct Words<'a, T> {
    columns: Columns<'a>,
    array: &'a StringArray,
    column: &'static str,
    parse: fn(&str) -> Option<T>,
}

impl<T> Words<'_, T> {
    /// The word of a row, as what it means.
    pub(crate) fn get(&self, index: usize) -> Result<T, Error> {
        let word = self.array.value(index);
        (self.parse)(word).ok_or_else(|| {
            self.columns.bad(index, self.column, format!("{word:?} is not a word it can hold"))
        })
    }

    /// As [`Words::get`], `None` for null.
    pub(crate) fn get_nullable(&self, index: usize) -> Result<Option<T>, Error> {
        if self.array.is_null(index) { Ok(None) } else { self.get(index).map(Some) }
    }
}
