//! Raw [`Event`]s as columns and back.
//!
//! One flat table holds every [`EventKind`]: the word in `kind` says what happened and takes in the
//! kind's own small choices (read or write, which interface), and the columns `a`, `b`, `c` hold its
//! numbers. A column that a kind does not use is null. [`kinds`] is the whole conversion, in both directions.

use arrow_array::ArrayRef;
use arrow_schema::Field;
use vmtax_events::event::{HypercallInterface, InterruptAt, MmioAccess};
use vmtax_events::{Event, EventKind, Isa, NO_PID, NO_VCPU, Reason};

use crate::column::{BatchColumns, Stored, TableRow, Unless, stored};
use crate::word::{Word, kinds};
use crate::{Error, StoredTable};

/// What the columns of one event hold, `None` for null.
#[derive(Clone, Copy)]
pub(crate) struct Flat {
    time_ns: u64,
    pid: u32,
    tid: u32,
    cpu: u32,
    vcpu: u32,
    kind: Word,
    isa: Option<Isa>,
    reason: Option<u32>,
    reason_flags: Option<u32>,
    errno: Option<i32>,
    a: Option<u64>,
    b: Option<u64>,
    c: Option<u64>,
}

const BLANK: Flat = Flat {
    time_ns: 0,
    pid: NO_PID,
    tid: 0,
    cpu: 0,
    vcpu: NO_VCPU,
    kind: Word("entry"),
    isa: None,
    reason: None,
    reason_flags: None,
    errno: None,
    a: None,
    b: None,
    c: None,
};

stored! { Flat in StoredTable::Events, BLANK;
    time_ns: u64 = time_ns;
    pid: u32 = pid;
    tid: u32 = tid;
    cpu: u32 = cpu;
    vcpu: Unless<NO_VCPU> = vcpu;
    kind: Word = kind;
    isa: Option<Isa> = isa;
    reason: Option<u32> = reason;
    reason_flags: Option<u32> = reason_flags;
    errno: Option<i32> = errno;
    a: Option<u64> = a;
    b: Option<u64> = b;
    c: Option<u64> = c;
}

impl From<&Event> for Flat {
    fn from(event: &Event) -> Flat {
        let Event { time_ns, pid, tid, cpu, vcpu, kind } = *event;
        Flat { time_ns, pid, tid, cpu, vcpu, ..flatten(kind) }
    }
}

/// The events of a batch.
pub(crate) fn read(batch: BatchColumns<'_>) -> Result<Vec<Event>, Error> {
    let columns = Flat::open(batch, "")?;
    let event = |index| {
        let flat = Flat::get(&columns, index)?;
        let Flat { time_ns, pid, tid, cpu, vcpu, .. } = flat;
        let kind = flat.event_kind().map_err(|(column, what)| batch.bad(index, column, what))?;
        Ok(Event { time_ns, pid, tid, cpu, vcpu, kind })
    };
    (0..batch.batch.num_rows()).map(event).collect()
}

/// The column that a kind cannot do with, and why.
type MissingColumn = (&'static str, String);

/// A field of a kind as a column.
macro_rules! put {
    ($flat:ident, reason, $field:ident) => {
        ($flat.isa, $flat.reason) = (Some($field.isa), Some($field.code));
        $flat.reason_flags = Some($field.flags);
    };
    ($flat:ident, errno, $field:ident) => {
        $flat.errno = Some($field);
    };
    ($flat:ident, $column:ident, $field:ident) => {
        $flat.$column = Some($field.into());
    };
}

/// A column as a field of a kind.
macro_rules! take {
    ($flat:ident, reason) => {
        $flat.exit_reason()?
    };
    ($flat:ident, errno) => {
        $flat.errno.ok_or_else(|| $flat.null("errno"))?
    };
    ($flat:ident, $column:ident) => {
        $flat.number($flat.$column, stringify!($column))?
    };
}

macro_rules! conversions {
    ($($word:literal $kind:ident ($($choice:ident: $($value:ident)::+)?) $($field:ident: $column:ident),*;)*) => {
        fn flatten(kind: EventKind) -> Flat {
            let mut flat = BLANK;
            match kind {
                $(EventKind::$kind { $($choice: $($value)::+,)? $($field),* } => {
                    flat.kind = Word($word);
                    $(put!(flat, $column, $field);)*
                })*
            }
            flat
        }

        impl Flat {
            /// The inverse of [`flatten`].
            fn event_kind(&self) -> Result<EventKind, MissingColumn> {
                Ok(match self.kind.0 {
                    $($word => EventKind::$kind {
                        $($choice: $($value)::+,)?
                        $($field: take!(self, $column)),*
                    },)*
                    word => return Err(("kind", format!("{word:?} is not a word it can hold"))),
                })
            }
        }
    };
}

kinds!(conversions);

impl Flat {
    fn exit_reason(&self) -> Result<Reason, MissingColumn> {
        let (Some(isa), Some(code)) = (self.isa, self.reason) else {
            return Err(self.null("reason"));
        };
        Ok(Reason { isa, code, flags: self.reason_flags.unwrap_or(0) })
    }

    fn null(&self, column: &'static str) -> MissingColumn {
        (column, format!("is null for {}", self.kind.0))
    }

    fn number<T: TryFrom<u64>>(
        &self,
        value: Option<u64>,
        column: &'static str,
    ) -> Result<T, MissingColumn> {
        let value = value.ok_or_else(|| self.null(column))?;
        T::try_from(value)
            .map_err(|_| (column, format!("{value} is too large for {}", self.kind.0)))
    }
}
