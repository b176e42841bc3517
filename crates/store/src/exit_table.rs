//! [`ExitRow`]s as columns and back.

use arrow_array::ArrayRef;
use arrow_schema::Field;
use vmtax_events::ExitRow;

use crate::Error;
use crate::column::Columns;
use crate::key_columns::{self, KeyBuilder, KeyColumns};
use crate::tally_columns::{self, TallyBuilder, TallyColumns};

/// Names and types, in the order of [`ExitBuilder::take`].
pub(crate) fn fields() -> Vec<Field> {
    let mut fields = key_columns::fields();
    fields.extend(tally_columns::fields());
    fields
}

/// Collects exit rows as columns.
#[derive(Default)]
pub(crate) struct ExitBuilder {
    key: KeyBuilder,
    tally: TallyBuilder,
}

impl ExitBuilder {
    pub(crate) fn push(&mut self, row: &ExitRow) {
        let ExitRow { interval_start_ns, key, tally } = row;
        self.key.push(*interval_start_ns, *key);
        self.tally.push(tally);
    }

    /// The columns so far; the builder is empty again.
    pub(crate) fn take(&mut self) -> Vec<ArrayRef> {
        let mut columns = self.key.take();
        columns.extend(self.tally.take());
        columns
    }
}

/// Passes the rows of a batch on.
pub(crate) fn read(columns: Columns<'_>, each: &mut dyn FnMut(&ExitRow)) -> Result<(), Error> {
    let key = KeyColumns::of(columns)?;
    let tally = TallyColumns::of(columns)?;
    for i in 0..columns.batch.num_rows() {
        let (interval_start_ns, key) = key.get(i)?;
        each(&ExitRow { interval_start_ns, key, tally: tally.get(i)? });
    }
    Ok(())
}
