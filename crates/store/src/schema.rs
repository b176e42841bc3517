//! The columns of each table.

use arrow_schema::Field;
use vmtax_events::{AccessRow, CallRow, ExitRow, PreemptedRow, Sample, Stat, TimeRow};

use crate::Table;
use crate::column::fields;
use crate::event_table::Flat;

impl Table {
    /// Names and types of its columns, in order: the schema of the files.
    pub fn fields(self) -> Vec<Field> {
        match self {
            Table::Exits => fields::<ExitRow>(),
            Table::Accesses => fields::<AccessRow>(),
            Table::Time => fields::<TimeRow>(),
            Table::Preempted => fields::<PreemptedRow>(),
            Table::Bench => fields::<Sample>(),
            Table::Stats => fields::<Stat>(),
            Table::Calls => fields::<CallRow>(),
            Table::Events => fields::<Flat>(),
        }
    }
}
