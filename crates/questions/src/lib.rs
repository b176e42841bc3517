//! What is asked of many runs, apart from the engine that answers: predefined questions, and words for a run's numbers.
//!
//! ```text
//! questions/*.sql ──> question ──> title, parameters, SQL ──┬──> vmtax-fleet: bound and executed
//! events' tables  ──> words ─────> tables of words ─────────┤
//! views/exits_named.sql ────────────────────────────────────┴──> duckdb: the same as SQL for DuckDB
//! ```
//!
//! Left out: execution. `vmtax` lists and prints all of this without the engine.

use vmtax_cli::output;
use vmtax_fleet_flags::QueryArgs;

pub mod duckdb;
pub mod question;
pub mod words;

/// The SQL of the view `exits_named`: exits with words.
pub const EXITS_NAMED: &str = include_str!("../views/exits_named.sql");

/// What `vmtax query` prints without executing anything: the list of questions, or the SQL for DuckDB.
///
/// # Errors
/// When the output cannot be written.
pub fn print(args: &QueryArgs) -> anyhow::Result<()> {
    let text = match args.list {
        true => question::list().map_err(anyhow::Error::msg)?,
        false => duckdb::sql(),
    };
    output::write(args.output.as_deref(), |out| Ok(out.write_all(text.as_bytes())?))
}
