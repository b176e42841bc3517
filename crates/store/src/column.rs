//! Columns of the tables: how each kind of value becomes Arrow columns and is read back.
//!
//! A type states its columns once, with [`stored!`]; schema, writing and reading follow from that list.

use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, Float64Builder, Int32Builder, StringBuilder, UInt8Builder, UInt32Builder,
    UInt64Builder,
};
use arrow_array::{
    Array, ArrayRef, Float64Array, Int32Array, RecordBatch, StringArray, UInt8Array, UInt32Array,
    UInt64Array,
};
use arrow_schema::{DataType, Field};
use vmtax_events::{Better, CallKind, DetailKind, Isa, Level, Outcome};

use crate::word::Word;
use crate::{Error, StoredTable};

/// A kind of value, stored as one or several columns.
pub(crate) trait Stored {
    /// What a row holds.
    type Value;
    /// Collects values as columns.
    type Builder: Default;
    /// The columns of a batch.
    type Columns<'a>;

    /// Adds the fields of a value called `name`.
    fn fields(name: &'static str, fields: &mut Vec<Field>);
    /// Adds a value to the columns.
    fn append(builder: &mut Self::Builder, value: &Self::Value);
    /// Moves the columns out; the builder is empty again.
    fn finish(builder: &mut Self::Builder, columns: &mut Vec<ArrayRef>);
    /// Finds the columns in a batch.
    fn open<'a>(batch: BatchColumns<'a>, name: &'static str) -> Result<Self::Columns<'a>, Error>;
    /// The value of a row of the batch.
    fn get(columns: &Self::Columns<'_>, index: usize) -> Result<Self::Value, Error>;
    /// Puts the value of a row of the batch into its place. A large value is moved there piece by piece, not whole several times.
    fn fill(
        columns: &Self::Columns<'_>,
        index: usize,
        place: &mut Self::Value,
    ) -> Result<(), Error> {
        *place = Self::get(columns, index)?;
        Ok(())
    }
}

/// A type whose rows are a table.
pub(crate) trait TableRow: Stored<Value = Self> + Sized {
    const TABLE: StoredTable;
}

/// Names and types of the columns of a table's rows, in order.
pub(crate) fn fields<R: TableRow>() -> Vec<Field> {
    let mut fields = Vec::new();
    R::fields("", &mut fields);
    fields
}

/// Passes the rows of a batch on.
pub(crate) fn read<R: TableRow>(
    batch: BatchColumns<'_>,
    each: &mut dyn FnMut(&R),
) -> Result<(), Error> {
    let columns = R::open(batch, "")?;
    let mut row = None;
    (0..batch.batch.num_rows()).try_for_each(|index| {
        match &mut row {
            Some(row) => R::fill(&columns, index, row)?,
            None => row = Some(R::get(&columns, index)?),
        }
        row.iter().for_each(&mut *each);
        Ok(())
    })
}

/// States the columns of a type, each as `column: Kind = place in the value;`. A kind can be such a type itself: its columns
/// stand in its place. `$blank` is a value to fill in.
macro_rules! stored {
    ($type:ident $(in $table:expr)?, $blank:expr; $($column:ident: $kind:ty = $($place:ident).+;)+) => {
        const _: () = {
            #[derive(Default)]
            pub(crate) struct Builder {
                $($column: <$kind as Stored>::Builder,)+
            }

            pub(crate) struct OpenColumns<'a> {
                $($column: <$kind as Stored>::Columns<'a>,)+
            }

            impl Stored for $type {
                type Value = $type;
                type Builder = Builder;
                type Columns<'a> = OpenColumns<'a>;

                fn fields(_: &'static str, fields: &mut Vec<Field>) {
                    $(<$kind>::fields(stringify!($column), fields);)+
                }
                fn append(builder: &mut Builder, value: &$type) {
                    $(<$kind>::append(&mut builder.$column, &value.$($place).+);)+
                }
                fn finish(builder: &mut Builder, columns: &mut Vec<ArrayRef>) {
                    $(<$kind>::finish(&mut builder.$column, columns);)+
                }
                fn open<'a>(batch: BatchColumns<'a>, _: &'static str) -> Result<OpenColumns<'a>, Error> {
                    Ok(OpenColumns { $($column: <$kind>::open(batch, stringify!($column))?,)+ })
                }
                fn get(columns: &OpenColumns<'_>, index: usize) -> Result<$type, Error> {
                    let blank: fn() -> $type = || $blank;
                    let mut value = blank();
                    Self::fill(columns, index, &mut value)?;
                    Ok(value)
                }
                fn fill(columns: &OpenColumns<'_>, index: usize, place: &mut $type) -> Result<(), Error> {
                    $(<$kind>::fill(&columns.$column, index, &mut place.$($place).+)?;)+
                    Ok(())
                }
            }

            $(impl TableRow for $type {
                const TABLE: StoredTable = $table;
            })?
        };
    };
}

pub(crate) use stored;

/// The columns of one batch of a segment.
#[derive(Clone, Copy)]
pub(crate) struct BatchColumns<'a> {
    pub(crate) path: &'a Path,
    pub(crate) batch: &'a RecordBatch,
    /// Row of the segment that the batch starts with.
    pub(crate) first_row: u64,
}

impl<'a> BatchColumns<'a> {
    /// A column that may hold nulls.
    pub(crate) fn nullable<A: Array + 'static>(
        &self,
        column: &'static str,
    ) -> Result<&'a A, Error> {
        let array = self.batch.column_by_name(column);
        let array = array.ok_or_else(|| self.problem(column, "is missing".to_owned()))?;
        array.as_any().downcast_ref().ok_or_else(|| {
            self.problem(column, format!("has an unexpected type, {}", array.data_type()))
        })
    }

    /// The error of a whole column.
    pub(crate) fn problem(&self, column: &'static str, problem: String) -> Error {
        Error::Column { path: self.path.to_owned(), column, problem }
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

    /// The error of a value at row `index` of the batch.
    pub(crate) fn bad(&self, index: usize, column: &'static str, problem: String) -> Error {
        let row = self.first_row + index as u64;
        Error::Value { path: self.path.to_owned(), row, column, problem }
    }
}

/// A value that is one column: as it is, and with null for `None`.
pub(crate) trait Scalar: Sized {
    type Builder: ArrayBuilder + Default;
    type Array: Array + 'static;
    const KIND: DataType;

    fn put(builder: &mut Self::Builder, value: Option<&Self>);
    /// `Err` is a text that is not a value.
    fn value(array: &Self::Array, index: usize) -> Result<Self, &str>;
}

pub(crate) struct ScalarColumn<'a, T: Scalar> {
    batch: BatchColumns<'a>,
    name: &'static str,
    array: &'a T::Array,
}

impl<T: Scalar> ScalarColumn<'_, T> {
    pub(crate) fn get(&self, index: usize) -> Result<T, Error> {
        T::value(self.array, index).map_err(|word| {
            self.batch.bad(index, self.name, format!("{word:?} is not a word it can hold"))
        })
    }

    pub(crate) fn is_null(&self, index: usize) -> bool {
        self.array.is_null(index)
    }
}

impl<T: Scalar + 'static> Stored for T {
    type Value = T;
    type Builder = T::Builder;
    type Columns<'a> = ScalarColumn<'a, T>;

    fn fields(name: &'static str, fields: &mut Vec<Field>) {
        fields.push(Field::new(name, T::KIND, false));
    }
    fn append(builder: &mut T::Builder, value: &T) {
        T::put(builder, Some(value));
    }
    fn finish(builder: &mut T::Builder, columns: &mut Vec<ArrayRef>) {
        columns.push(ArrayBuilder::finish(builder));
    }
    fn open<'a>(batch: BatchColumns<'a>, name: &'static str) -> Result<ScalarColumn<'a, T>, Error> {
        Ok(ScalarColumn { batch, name, array: batch.required(name)? })
    }
    fn get(column: &ScalarColumn<'_, T>, index: usize) -> Result<T, Error> {
        column.get(index)
    }
}

impl<T: Scalar + 'static> Stored for Option<T> {
    type Value = Option<T>;
    type Builder = T::Builder;
    type Columns<'a> = ScalarColumn<'a, T>;

    fn fields(name: &'static str, fields: &mut Vec<Field>) {
        fields.push(Field::new(name, T::KIND, true));
    }
    fn append(builder: &mut T::Builder, value: &Option<T>) {
        T::put(builder, value.as_ref());
    }
    fn finish(builder: &mut T::Builder, columns: &mut Vec<ArrayRef>) {
        T::finish(builder, columns);
    }
    fn open<'a>(batch: BatchColumns<'a>, name: &'static str) -> Result<ScalarColumn<'a, T>, Error> {
        Ok(ScalarColumn { batch, name, array: batch.nullable(name)? })
    }
    fn get(column: &ScalarColumn<'_, T>, index: usize) -> Result<Option<T>, Error> {
        if column.is_null(index) { Ok(None) } else { column.get(index).map(Some) }
    }
}

/// A `u32` of which one value means that there is none: null in the column.
pub(crate) struct Unless<const NONE: u32>;

impl<const NONE: u32> Stored for Unless<NONE> {
    type Value = u32;
    type Builder = UInt32Builder;
    type Columns<'a> = ScalarColumn<'a, u32>;

    fn fields(name: &'static str, fields: &mut Vec<Field>) {
        Option::<u32>::fields(name, fields);
    }
    fn append(builder: &mut UInt32Builder, value: &u32) {
        builder.append_option((*value != NONE).then_some(*value));
    }
    fn finish(builder: &mut UInt32Builder, columns: &mut Vec<ArrayRef>) {
        u32::finish(builder, columns);
    }
    fn open<'a>(
        batch: BatchColumns<'a>,
        name: &'static str,
    ) -> Result<ScalarColumn<'a, u32>, Error> {
        Option::<u32>::open(batch, name)
    }
    fn get(column: &ScalarColumn<'_, u32>, index: usize) -> Result<u32, Error> {
        Ok(Option::<u32>::get(column, index)?.unwrap_or(NONE))
    }
}

macro_rules! numbers {
    ($($type:ty: $kind:ident, $array:ty, $builder:ty;)+) => {$(
        impl Scalar for $type {
            type Builder = $builder;
            type Array = $array;
            const KIND: DataType = DataType::$kind;

            fn put(builder: &mut $builder, value: Option<&$type>) {
                builder.append_option(value.copied());
            }
            fn value(array: &$array, index: usize) -> Result<$type, &str> {
                Ok(array.value(index))
            }
        }
    )+};
}

numbers! {
    u8: UInt8, UInt8Array, UInt8Builder;
    u32: UInt32, UInt32Array, UInt32Builder;
    u64: UInt64, UInt64Array, UInt64Builder;
    i32: Int32, Int32Array, Int32Builder;
    f64: Float64, Float64Array, Float64Builder;
}

/// Values that are stored as text, with the ways there and back.
macro_rules! texts {
    ($($type:ty: $text:expr, $parse:expr;)+) => {$(
        impl Scalar for $type {
            type Builder = StringBuilder;
            type Array = StringArray;
            const KIND: DataType = DataType::Utf8;

            fn put(builder: &mut StringBuilder, value: Option<&$type>) {
                let text: fn(&$type) -> &str = $text;
                builder.append_option(value.map(text));
            }
            fn value(array: &StringArray, index: usize) -> Result<$type, &str> {
                let parse: fn(&str) -> Option<$type> = $parse;
                parse(array.value(index)).ok_or(array.value(index))
            }
        }
    )+};
}

texts! {
    String: |text| text, |text| Some(text.to_owned());
    Arc<str>: |text| text, |text| Some(Arc::from(text));
    Better: |better| better.name(), Better::from_name;
    CallKind: |kind| kind.name(), CallKind::from_name;
    DetailKind: |kind| kind.name(), DetailKind::from_name;
    Isa: |isa| isa.name(), Isa::from_name;
    Level: |level| level.name(), Level::from_name;
    Outcome: |outcome| outcome.name(), Outcome::from_name;
    Word: |word| word.name(), Word::from_name;
}
