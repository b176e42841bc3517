//! The columns of a [`Tally`], the same in `exits` and `accesses`.

use std::sync::Arc;

use arrow_array::builder::{Decimal128Builder, ListBuilder, UInt64Builder};
use arrow_array::{Array, ArrayRef, Decimal128Array, ListArray, UInt64Array};
use arrow_schema::{DataType, Field, FieldRef};
use vmtax_events::{HIST_BUCKETS, Tally};

use crate::Error;
use crate::column::Columns;

/// `sum_sq` is a decimal of this many digits, the most that every Parquet reader takes.
const SUM_SQ_DIGITS: u8 = 38;
/// Larger sums of squares are stored as this: 10^38 - 1.
const SUM_SQ_MAX: u128 = 10u128.pow(SUM_SQ_DIGITS as u32) - 1;

fn bucket_field() -> FieldRef {
    Arc::new(Field::new("element", DataType::UInt64, false))
}

/// Names and types, in the order of [`TallyBuilder::take`].
pub(crate) fn fields() -> Vec<Field> {
    let number = |name| Field::new(name, DataType::UInt64, false);
    vec![
        number("count"),
        number("timed"),
        number("time_ns"),
        Field::new("min_ns", DataType::UInt64, true),
        number("max_ns"),
        Field::new("sum_sq", DataType::Decimal128(SUM_SQ_DIGITS, 0), false),
        Field::new("hist", DataType::List(bucket_field()), false),
    ]
}

/// Collects tallies as columns.
pub(crate) struct TallyBuilder {
    count: UInt64Builder,
    timed: UInt64Builder,
    time_ns: UInt64Builder,
    min_ns: UInt64Builder,
    max_ns: UInt64Builder,
    sum_sq: Decimal128Builder,
    hist: ListBuilder<UInt64Builder>,
}

impl Default for TallyBuilder {
    fn default() -> Self {
        TallyBuilder {
            count: UInt64Builder::new(),
            timed: UInt64Builder::new(),
            time_ns: UInt64Builder::new(),
            min_ns: UInt64Builder::new(),
            max_ns: UInt64Builder::new(),
            sum_sq: Decimal128Builder::new().with_data_type(DataType::Decimal128(SUM_SQ_DIGITS, 0)),
            hist: ListBuilder::new(UInt64Builder::new()).with_field(bucket_field()),
        }
    }
}

impl TallyBuilder {
    pub(crate) fn push(&mut self, tally: &Tally) {
        let Tally { count, timed, time_ns, min_ns, max_ns, sum_sq, hist } = tally;
        self.count.append_value(*count);
        self.timed.append_value(*timed);
        self.time_ns.append_value(*time_ns);
        // `u64::MAX` is the minimum of nothing; in SQL that is null.
        self.min_ns.append_option((*min_ns != u64::MAX).then_some(*min_ns));
        self.max_ns.append_value(*max_ns);
        let sum_sq = i128::try_from((*sum_sq).min(SUM_SQ_MAX)).unwrap_or(i128::MAX);
        self.sum_sq.append_value(sum_sq);
        let used = hist.iter().rposition(|&n| n != 0).map_or(0, |last| last + 1);
        self.hist.values().append_slice(&hist[..used]);
        self.hist.append(true);
    }

    /// The columns so far; the builder is empty again.
    pub(crate) fn take(&mut self) -> Vec<ArrayRef> {
        vec![
            Arc::new(self.count.finish()),
            Arc::new(self.timed.finish()),
            Arc::new(self.time_ns.finish()),
            Arc::new(self.min_ns.finish()),
            Arc::new(self.max_ns.finish()),
            Arc::new(self.sum_sq.finish()),
            Arc::new(self.hist.finish()),
        ]
    }
}

/// The columns of the tallies of a batch.
pub(crate) struct TallyColumns<'a> {
    columns: Columns<'a>,
    count: &'a UInt64Array,
    timed: &'a UInt64Array,
    time_ns: &'a UInt64Array,
    min_ns: &'a UInt64Array,
    max_ns: &'a UInt64Array,
    sum_sq: &'a Decimal128Array,
    hist: &'a ListArray,
    buckets: &'a UInt64Array,
}

impl<'a> TallyColumns<'a> {
    pub(crate) fn of(columns: Columns<'a>) -> Result<TallyColumns<'a>, Error> {
        let problem = |column, problem: &str| Error::Column {
            path: columns.path.to_owned(),
            column,
            problem: problem.to_owned(),
        };
        let sum_sq: &Decimal128Array = columns.required("sum_sq")?;
        if sum_sq.scale() != 0 {
            return Err(problem("sum_sq", "has decimal places"));
        }
        let hist: &ListArray = columns.required("hist")?;
        let buckets = hist
            .values()
            .as_any()
            .downcast_ref::<UInt64Array>()
            .filter(|buckets| buckets.null_count() == 0)
            .ok_or_else(|| problem("hist", "is not a list of unsigned 64-bit numbers"))?;
        Ok(TallyColumns {
            columns,
            count: columns.required("count")?,
            timed: columns.required("timed")?,
            time_ns: columns.required("time_ns")?,
            min_ns: columns.nullable("min_ns")?,
            max_ns: columns.required("max_ns")?,
            sum_sq,
            hist,
            buckets,
        })
    }

    pub(crate) fn get(&self, i: usize) -> Result<Tally, Error> {
        let sum_sq = self.sum_sq.value(i);
        let sum_sq = u128::try_from(sum_sq)
            .map_err(|_| self.columns.bad(i, "sum_sq", format!("{sum_sq} is negative")))?;
        Ok(Tally {
            count: self.count.value(i),
            timed: self.timed.value(i),
            time_ns: self.time_ns.value(i),
            min_ns: if self.min_ns.is_null(i) { u64::MAX } else { self.min_ns.value(i) },
            max_ns: self.max_ns.value(i),
            sum_sq,
            hist: self.hist(i)?,
        })
    }

    fn hist(&self, i: usize) -> Result<[u64; HIST_BUCKETS], Error> {
        // The list's own slice would allocate for every row.
        let offsets = self.hist.value_offsets();
        let used = &self.buckets.values()[offsets[i] as usize..offsets[i + 1] as usize];
        let mut hist = [0; HIST_BUCKETS];
        hist.get_mut(..used.len())
            .ok_or_else(|| {
                let problem = format!("{} buckets, {HIST_BUCKETS} at most are known", used.len());
                self.columns.bad(i, "hist", problem)
            })?
            .copy_from_slice(used);
        Ok(hist)
    }
}
