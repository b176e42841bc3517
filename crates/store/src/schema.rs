//! The columns of each table.

use arrow_schema::Field;
use vmtax_events::{AccessRow, CallRow, ExitRow, PreemptedRow, Sample, Stat, TimeRow};

use crate::StoredTable;
use crate::column::fields;
use crate::event_table::Flat;

impl StoredTable {
    /// Names and types of its columns, in order: the schema of the files.
    pub fn fields(self) -> Vec<Field> {
        match self {
            StoredTable::Exits => fields::<ExitRow>(),
            StoredTable::Accesses => fields::<AccessRow>(),
            StoredTable::Time => fields::<TimeRow>(),
            StoredTable::Preempted => fields::<PreemptedRow>(),
            StoredTable::Bench => fields::<Sample>(),
            StoredTable::Stats => fields::<Stat>(),
            StoredTable::Calls => fields::<CallRow>(),
            StoredTable::Events => fields::<Flat>(),
        }
    }
}
