//! The columns of every table of rows, each stated once.

use std::sync::Arc;

use arrow_array::builder::{Decimal128Builder, UInt64Builder};
use arrow_array::{Array, ArrayRef, Decimal128Array, ListArray, UInt64Array};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field, FieldRef};
use vmtax_events::{
    AccessKey, AccessRow, Better, CallKind, CallRow, Detail, DetailKind, Durations, ExitKey,
    ExitRow, Isa, Level, NO_VCPU, OCTAVES, Outcome, PreemptedRow, Reason, Sample, Stat, Tally,
    TimeRow,
};

use crate::column::{BatchColumns, ScalarColumn, Stored, TableRow, Unless, stored};
use crate::{Error, StoredTable};

type StoredVcpu = Unless<NO_VCPU>;

/// A key to fill in.
const NO_KEY: ExitKey = ExitKey {
    vm: 0,
    vcpu: NO_VCPU,
    level: Level::L1,
    reason: Reason { isa: Isa::Unknown, code: 0, flags: 0 },
    detail: Detail::NONE,
    outcome: Outcome::Unknown,
    ancillary_of: None,
};

stored! { ExitKey, NO_KEY;
    vm: u32 = vm;
    vcpu: StoredVcpu = vcpu;
    level: Level = level;
    isa: Isa = reason.isa;
    reason: u32 = reason.code;
    reason_flags: u32 = reason.flags;
    detail_kind: DetailKind = detail.kind;
    detail: u64 = detail.value;
    outcome: Outcome = outcome;
    ancillary: Option<Reason> = ancillary_of;
}

stored! { Tally, Tally::default();
    count: u64 = count;
    timed: u64 = timed;
    time_ns: u64 = time_ns;
    min_ns: Minimum = min_ns;
    max_ns: u64 = max_ns;
    sum_sq: SumOfSquares = sum_sq;
    durations: DurationLists = durations;
}

stored! { ExitRow in StoredTable::Exits,
    ExitRow { interval_start_ns: 0, key: NO_KEY, tally: Tally::default() };
    interval_start_ns: u64 = interval_start_ns;
    key: ExitKey = key;
    tally: Tally = tally;
}

stored! { AccessRow in StoredTable::Accesses,
    AccessRow {
        interval_start_ns: 0,
        key: AccessKey { vm: 0, vcpu: NO_VCPU, level: Level::L1, detail: Detail::NONE },
        tally: Tally::default(),
    };
    interval_start_ns: u64 = interval_start_ns;
    vm: u32 = key.vm;
    vcpu: StoredVcpu = key.vcpu;
    level: Level = key.level;
    detail_kind: DetailKind = key.detail.kind;
    detail: u64 = key.detail.value;
    tally: Tally = tally;
}

stored! { PreemptedRow in StoredTable::Preempted,
    PreemptedRow {
        interval_start_ns: 0,
        key: NO_KEY,
        by: Arc::from(""),
        by_vcpu: None,
        count: 0,
        time_ns: 0,
    };
    interval_start_ns: u64 = interval_start_ns;
    key: ExitKey = key;
    by: Arc<str> = by;
    by_vcpu: OfVcpu = by_vcpu;
    count: u64 = count;
    time_ns: u64 = time_ns;
}

stored! { Sample in StoredTable::Bench,
    Sample {
        workload: String::new(),
        category: String::new(),
        repeat: 0,
        metric: String::new(),
        unit: String::new(),
        value: 0.0,
        better: Better::Neither,
    };
    workload: String = workload;
    category: String = category;
    repeat: u32 = repeat;
    metric: String = metric;
    unit: String = unit;
    value: f64 = value;
    better: Better = better;
}

stored! { Stat in StoredTable::Stats,
    Stat { time_ns: 0, vm: Stat::HOST, name: String::new(), unit: String::new(), value: 0.0 };
    time_ns: u64 = time_ns;
    vm: Unless<{ Stat::HOST }> = vm;
    name: String = name;
    unit: String = unit;
    value: f64 = value;
}

stored! { CallRow in StoredTable::Calls,
    CallRow {
        workload: String::new(),
        node: 0,
        parent: None,
        kind: CallKind::Function,
        level: 0,
        name: String::new(),
        module: String::new(),
        calls: 0,
        instructions: 0,
    };
    workload: String = workload;
    node: u32 = node;
    parent: Option<u32> = parent;
    kind: CallKind = kind;
    level: u8 = level;
    name: String = name;
    module: String = module;
    calls: u64 = calls;
    instructions: u64 = instructions;
}

/// `by_vm` and `by_vcpu`: the vCPU that a thread runs; null for other threads, and absent in runs of before these columns.
struct OfVcpu;

impl Stored for OfVcpu {
    type Value = Option<(u32, u32)>;
    type Builder = (<Option<u32> as Stored>::Builder, <StoredVcpu as Stored>::Builder);
    type Columns<'a> = Option<(ScalarColumn<'a, u32>, ScalarColumn<'a, u32>)>;

    fn fields(_: &'static str, fields: &mut Vec<Field>) {
        Option::<u32>::fields("by_vm", fields);
        StoredVcpu::fields("by_vcpu", fields);
    }
    fn append((vm, vcpu): &mut Self::Builder, value: &Self::Value) {
        Option::<u32>::append(vm, &value.map(|(vm, _)| vm));
        StoredVcpu::append(vcpu, &value.map_or(NO_VCPU, |(_, vcpu)| vcpu));
    }
    fn finish((vm, vcpu): &mut Self::Builder, columns: &mut Vec<ArrayRef>) {
        Option::<u32>::finish(vm, columns);
        StoredVcpu::finish(vcpu, columns);
    }
    fn open<'a>(batch: BatchColumns<'a>, _: &'static str) -> Result<Self::Columns<'a>, Error> {
        if batch.batch.column_by_name("by_vm").is_none() {
            return Ok(None);
        }
        Ok(Some((Option::<u32>::open(batch, "by_vm")?, StoredVcpu::open(batch, "by_vcpu")?)))
    }
    fn get(columns: &Self::Columns<'_>, index: usize) -> Result<Self::Value, Error> {
        let Some((vm, vcpu)) = columns else { return Ok(None) };
        let vcpu = StoredVcpu::get(vcpu, index)?;
        Ok(Option::<u32>::get(vm, index)?.map(|vm| (vm, vcpu)))
    }
}

type AncillaryBuilder = (
    <Option<Isa> as Stored>::Builder,
    <Option<u32> as Stored>::Builder,
    <Option<u32> as Stored>::Builder,
);

/// `ancillary_isa`, `ancillary_of` and `ancillary_flags`; all null for `None`.
impl Stored for Option<Reason> {
    type Value = Option<Reason>;
    type Builder = AncillaryBuilder;
    type Columns<'a> =
        (BatchColumns<'a>, ScalarColumn<'a, Isa>, ScalarColumn<'a, u32>, ScalarColumn<'a, u32>);

    fn fields(_: &'static str, fields: &mut Vec<Field>) {
        Option::<Isa>::fields("ancillary_isa", fields);
        Option::<u32>::fields("ancillary_of", fields);
        Option::<u32>::fields("ancillary_flags", fields);
    }
    fn append((isa, of, flags): &mut AncillaryBuilder, value: &Option<Reason>) {
        Option::<Isa>::append(isa, &value.map(|reason| reason.isa));
        Option::<u32>::append(of, &value.map(|reason| reason.code));
        Option::<u32>::append(flags, &value.map(|reason| reason.flags));
    }
    fn finish((isa, of, flags): &mut AncillaryBuilder, columns: &mut Vec<ArrayRef>) {
        Option::<Isa>::finish(isa, columns);
        Option::<u32>::finish(of, columns);
        Option::<u32>::finish(flags, columns);
    }
    fn open<'a>(batch: BatchColumns<'a>, _: &'static str) -> Result<Self::Columns<'a>, Error> {
        Ok((
            batch,
            Option::<Isa>::open(batch, "ancillary_isa")?,
            Option::<u32>::open(batch, "ancillary_of")?,
            Option::<u32>::open(batch, "ancillary_flags")?,
        ))
    }
    fn get((batch, isa, of, flags): &Self::Columns<'_>, i: usize) -> Result<Self, Error> {
        let Some(isa) = Option::<Isa>::get(isa, i)? else { return Ok(None) };
        let Some(code) = Option::<u32>::get(of, i)? else {
            return Err(batch.bad(i, "ancillary_of", "is null".to_owned()));
        };
        Ok(Some(Reason { isa, code, flags: Option::<u32>::get(flags, i)?.unwrap_or(0) }))
    }
}

/// The shortest of some durations: `u64::MAX`, that of none, is null.
struct Minimum;

impl Stored for Minimum {
    type Value = u64;
    type Builder = UInt64Builder;
    type Columns<'a> = ScalarColumn<'a, u64>;

    fn fields(name: &'static str, fields: &mut Vec<Field>) {
        Option::<u64>::fields(name, fields);
    }
    fn append(builder: &mut UInt64Builder, value: &u64) {
        builder.append_option((*value != u64::MAX).then_some(*value));
    }
    fn finish(builder: &mut UInt64Builder, columns: &mut Vec<ArrayRef>) {
        u64::finish(builder, columns);
    }
    fn open<'a>(
        batch: BatchColumns<'a>,
        name: &'static str,
    ) -> Result<ScalarColumn<'a, u64>, Error> {
        Option::<u64>::open(batch, name)
    }
    fn get(column: &ScalarColumn<'_, u64>, index: usize) -> Result<u64, Error> {
        Ok(Option::<u64>::get(column, index)?.unwrap_or(u64::MAX))
    }
}

/// A sum of squares: a decimal of [`SumOfSquares::DIGITS`] digits.
struct SumOfSquares;

impl SumOfSquares {
    /// The most that every Parquet reader takes.
    const DIGITS: u8 = 38;
    const KIND: DataType = DataType::Decimal128(SumOfSquares::DIGITS, 0);
    /// Larger sums are stored as this: 10^38 - 1.
    const MAX: u128 = 10u128.pow(SumOfSquares::DIGITS as u32) - 1;
}

struct SumBuilder(Decimal128Builder);

impl Default for SumBuilder {
    fn default() -> SumBuilder {
        SumBuilder(Decimal128Builder::new().with_data_type(SumOfSquares::KIND))
    }
}

impl Stored for SumOfSquares {
    type Value = u128;
    type Builder = SumBuilder;
    type Columns<'a> = (BatchColumns<'a>, &'static str, &'a Decimal128Array);

    fn fields(name: &'static str, fields: &mut Vec<Field>) {
        fields.push(Field::new(name, SumOfSquares::KIND, false));
    }
    fn append(builder: &mut SumBuilder, value: &u128) {
        let sum = i128::try_from((*value).min(SumOfSquares::MAX)).unwrap_or(i128::MAX);
        builder.0.append_value(sum);
    }
    fn finish(builder: &mut SumBuilder, columns: &mut Vec<ArrayRef>) {
        columns.push(Arc::new(builder.0.finish()));
    }
    fn open<'a>(batch: BatchColumns<'a>, name: &'static str) -> Result<Self::Columns<'a>, Error> {
        let array: &Decimal128Array = batch.required(name)?;
        if array.scale() != 0 {
            return Err(batch.problem(name, "has decimal places".to_owned()));
        }
        Ok((batch, name, array))
    }
    fn get((batch, name, array): &Self::Columns<'_>, index: usize) -> Result<u128, Error> {
        let sum = array.value(index);
        u128::try_from(sum).map_err(|_| batch.bad(index, name, format!("{sum} is negative")))
    }
}

/// Durations: `hist` counts those that are known by their power of 2 alone, up to the last that is not empty; `bins_ns` has
/// where the bins of the others start, ascending, and `bin_counts` how many each has. Runs of version 0.1 have `hist` alone.
struct DurationLists;

impl DurationLists {
    const NAMES: [&'static str; 3] = ["hist", "bins_ns", "bin_counts"];

    fn element() -> FieldRef {
        Arc::new(Field::new("element", DataType::UInt64, false))
    }
}

/// Not a builder of Arrow's: its buffers are copied whenever they grow, and these are the largest.
struct ListBuilder {
    values: Vec<u64>,
    /// Where each row's values end, after a zero.
    ends: Vec<i32>,
}

impl Default for ListBuilder {
    fn default() -> ListBuilder {
        ListBuilder { values: Vec::new(), ends: vec![0] }
    }
}

impl ListBuilder {
    /// The row has no more values.
    fn end(&mut self) {
        let end = i32::try_from(self.values.len());
        self.ends.push(end.expect("a segment has fewer than 2^31 bins"));
    }

    fn finish(&mut self) -> ArrayRef {
        let ListBuilder { values, ends } = std::mem::take(self);
        let values = Arc::new(UInt64Array::from(values));
        Arc::new(ListArray::new(
            DurationLists::element(),
            OffsetBuffer::new(ends.into()),
            values,
            None,
        ))
    }
}

struct ListColumn<'a> {
    lists: &'a ListArray,
    values: &'a UInt64Array,
}

impl<'a> ListColumn<'a> {
    fn open(batch: BatchColumns<'a>, name: &'static str) -> Result<ListColumn<'a>, Error> {
        let lists: &ListArray = batch.required(name)?;
        let values: Option<&UInt64Array> = lists.values().as_any().downcast_ref();
        let values = values.filter(|values| values.null_count() == 0).ok_or_else(|| {
            batch.problem(name, "is not a list of unsigned 64-bit numbers".to_owned())
        })?;
        Ok(ListColumn { lists, values })
    }

    /// The list's own slice would allocate for every row.
    fn get(&self, index: usize) -> &'a [u64] {
        let offsets = self.lists.value_offsets();
        &self.values.values()[offsets[index] as usize..offsets[index + 1] as usize]
    }
}

struct DurationColumns<'a> {
    batch: BatchColumns<'a>,
    octaves: ListColumn<'a>,
    bins: Option<[ListColumn<'a>; 2]>,
}

impl Stored for DurationLists {
    type Value = Durations;
    type Builder = [ListBuilder; 3];
    type Columns<'a> = DurationColumns<'a>;

    fn fields(_: &'static str, fields: &mut Vec<Field>) {
        let lists = DataType::List(DurationLists::element());
        fields.extend(DurationLists::NAMES.map(|name| Field::new(name, lists.clone(), false)));
    }
    fn append([hist, bins, counts]: &mut [ListBuilder; 3], durations: &Durations) {
        let (octaves, of_bins) = durations.parts();
        let used = octaves.iter().rposition(|&n| n != 0).map_or(0, |last| last + 1);
        hist.values.extend_from_slice(&octaves[..used]);
        hist.end();
        for (start, count) in of_bins {
            bins.values.push(start);
            counts.values.push(count);
        }
        bins.end();
        counts.end();
    }
    fn finish(builders: &mut [ListBuilder; 3], columns: &mut Vec<ArrayRef>) {
        columns.extend(builders.iter_mut().map(ListBuilder::finish));
    }
    fn open<'a>(batch: BatchColumns<'a>, _: &'static str) -> Result<DurationColumns<'a>, Error> {
        let [hist, bins, counts] = DurationLists::NAMES;
        let octaves = ListColumn::open(batch, hist)?;
        let bins = match batch.batch.column_by_name(bins) {
            Some(_) => Some([ListColumn::open(batch, bins)?, ListColumn::open(batch, counts)?]),
            None => None,
        };
        Ok(DurationColumns { batch, octaves, bins })
    }
    fn get(columns: &DurationColumns<'_>, index: usize) -> Result<Durations, Error> {
        let mut durations = Durations::default();
        Self::fill(columns, index, &mut durations)?;
        Ok(durations)
    }
    fn fill(
        DurationColumns { batch, octaves, bins }: &DurationColumns<'_>,
        index: usize,
        durations: &mut Durations,
    ) -> Result<(), Error> {
        let [hist_name, bins_name, counts_name] = DurationLists::NAMES;
        durations.clear();
        let octaves = octaves.get(index);
        if octaves.len() > OCTAVES {
            let problem = format!("{} powers of 2, {OCTAVES} at most are known", octaves.len());
            return Err(batch.bad(index, hist_name, problem));
        }
        (0..).zip(octaves).for_each(|(octave, count)| durations.add_octave(octave, *count));
        let Some([starts, counts]) = bins else { return Ok(()) };
        let (starts, counts) = (starts.get(index), counts.get(index));
        if starts.len() != counts.len() {
            let problem = format!("{} counts of {} bins", counts.len(), starts.len());
            return Err(batch.bad(index, counts_name, problem));
        }
        for (start, count) in starts.iter().zip(counts) {
            if !durations.add_bin(*start, *count) {
                return Err(batch.bad(
                    index,
                    bins_name,
                    format!("no bin of {count} starts at {start} ns"),
                ));
            }
        }
        Ok(())
    }
}

/// The columns before the parts in a row of time.
#[derive(Clone, Copy)]
pub(crate) struct Whose {
    interval_start_ns: u64,
    vm: u32,
    vcpu: u32,
    wall_ns: u64,
}

stored! { Whose, Whose { interval_start_ns: 0, vm: 0, vcpu: NO_VCPU, wall_ns: 0 };
    interval_start_ns: u64 = interval_start_ns;
    vm: u32 = vm;
    vcpu: StoredVcpu = vcpu;
    wall_ns: u64 = wall_ns;
}

impl TableRow for TimeRow {
    const TABLE: StoredTable = StoredTable::Time;
}

/// A column for each of [`TimeRow::PARTS`]; `None` where runs were made before the part was added.
impl Stored for TimeRow {
    type Value = TimeRow;
    type Builder = (<Whose as Stored>::Builder, Vec<UInt64Builder>);
    type Columns<'a> = (<Whose as Stored>::Columns<'a>, Vec<Option<ScalarColumn<'a, u64>>>);

    fn fields(name: &'static str, fields: &mut Vec<Field>) {
        Whose::fields(name, fields);
        TimeRow::PARTS.iter().for_each(|part| u64::fields(part.column, fields));
    }
    fn append((whose, parts): &mut Self::Builder, row: &TimeRow) {
        let TimeRow { interval_start_ns, vm, vcpu, wall_ns, .. } = *row;
        Whose::append(whose, &Whose { interval_start_ns, vm, vcpu, wall_ns });
        parts.resize_with(TimeRow::PARTS.len(), UInt64Builder::new);
        for (column, part) in parts.iter_mut().zip(TimeRow::PARTS) {
            column.append_value((part.of)(row));
        }
    }
    fn finish((whose, parts): &mut Self::Builder, columns: &mut Vec<ArrayRef>) {
        Whose::finish(whose, columns);
        parts.iter_mut().for_each(|part| u64::finish(part, columns));
    }
    fn open<'a>(batch: BatchColumns<'a>, name: &'static str) -> Result<Self::Columns<'a>, Error> {
        let parts = TimeRow::PARTS.iter().map(|part| {
            let is_there = !part.is_later || batch.batch.column_by_name(part.column).is_some();
            is_there.then(|| u64::open(batch, part.column)).transpose()
        });
        Ok((Whose::open(batch, name)?, parts.collect::<Result<_, _>>()?))
    }
    fn get((whose, parts): &Self::Columns<'_>, index: usize) -> Result<TimeRow, Error> {
        let Whose { interval_start_ns, vm, vcpu, wall_ns } = Whose::get(whose, index)?;
        let mut row = TimeRow { interval_start_ns, vm, vcpu, wall_ns, ..TimeRow::default() };
        for (column, part) in parts.iter().zip(TimeRow::PARTS) {
            if let Some(column) = column {
                *(part.of_mut)(&mut row) = column.get(index)?;
            }
        }
        Ok(row)
    }
}
