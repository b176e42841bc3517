//! Benchmark programs: how each is run, and what its output says.
//!
//! A parser meets the output of a program that ran to its end with success. It knows the units that the program writes
//! and takes no other; what is missing, cut, unverified or failed is refused by name. It never guesses.

mod builtin;
mod dnn;
mod fio;
mod iperf;
mod npb;
mod own;
mod ping;
mod redis;
mod sched;
mod sysbench;
mod table;
mod text;
mod time;
mod wrk;

use std::fmt;

use vmtax_events::Better;

pub use own::{Extract, Own};
pub use table::{ADAPTERS, Adapter};

/// Units that readings have. Whatever a program writes is converted to one of these.
pub mod unit {
    /// Microseconds.
    pub const MICROSECONDS: &str = "us";
    /// Nanoseconds.
    pub const NANOSECONDS: &str = "ns";
    /// Seconds.
    pub const SECONDS: &str = "s";
    /// Operations a second.
    pub const PER_SECOND: &str = "1/s";
    /// Bits a second.
    pub const BITS: &str = "bit/s";
    /// Bytes a second.
    pub const BYTES: &str = "B/s";
    /// Percent.
    pub const PERCENT: &str = "%";
    /// A number of things.
    pub const COUNT: &str = "count";
    /// Kibibytes.
    pub const KIBIBYTES: &str = "KiB";
    /// Millions of operations a second, as NPB counts them.
    pub const MOPS: &str = "Mop/s";
    /// Milliards of floating-point operations a second.
    pub const GFLOPS: &str = "Gflop/s";
}

/// The metric of a built-in workload that says how many operations it did.
pub const ROUNDS: &str = "rounds";

/// A value that a program reported.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// What was measured.
    pub metric: String,
    /// In which unit.
    pub unit: String,
    /// How much.
    pub value: f64,
    /// Which values are good news.
    pub better: Better,
}

impl Reading {
    pub(crate) fn new(
        metric: impl Into<String>,
        unit: &str,
        value: f64,
        better: Better,
    ) -> Reading {
        Reading { metric: metric.into(), unit: unit.to_owned(), value, better }
    }

    pub(crate) fn lower(metric: impl Into<String>, unit: &str, value: f64) -> Reading {
        Reading::new(metric, unit, value, Better::Lower)
    }

    pub(crate) fn higher(metric: impl Into<String>, unit: &str, value: f64) -> Reading {
        Reading::new(metric, unit, value, Better::Higher)
    }
}

/// Why an output is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A field is not there: the output was cut, or is another version's.
    #[error("{0} is missing: the output is cut or of another version")]
    Missing(String),
    /// A value has a unit that the program is not known to write.
    #[error("{what} has the unit {unit:?}, which is not taken")]
    Unit {
        /// Which value.
        what: String,
        /// The unit found.
        unit: String,
    },
    /// A value is no number.
    #[error("{what} is no number: {found:?}")]
    Number {
        /// Which value.
        what: String,
        /// What is there.
        found: String,
    },
    /// The program says that it failed.
    #[error("it reports a failure: {0}")]
    Failed(String),
    /// The program did not verify its result.
    #[error("its result is not verified: {0}")]
    Unverified(String),
    /// A value that cannot be.
    #[error("{what} is {value}, which cannot be")]
    Unbelievable {
        /// Which value.
        what: String,
        /// The value.
        value: String,
    },
}

impl Refusal {
    pub(crate) fn missing(what: impl fmt::Display) -> Refusal {
        Refusal::Missing(what.to_string())
    }
}

/// What a client left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Output<'a> {
    /// Its standard output.
    pub stdout: &'a str,
    /// Its standard error.
    pub stderr: &'a str,
    /// From its start to its end, ns.
    pub elapsed_ns: u64,
}

/// What holds for all: there are readings, and each is a number that can be. No program here reports less than nothing,
/// and nothing at all as a speed or a latency is a measurement that did not take place.
pub(crate) fn sane(readings: Vec<Reading>) -> Result<Vec<Reading>, Refusal> {
    if readings.is_empty() {
        return Err(Refusal::missing("every value"));
    }
    for Reading { metric, value, better, unit } in &readings {
        let possible = value.is_finite() && *value >= 0.0;
        let happened = *value > 0.0 || *better != Better::Higher;
        if !possible || !happened {
            let value = format!("{value} {unit}");
            return Err(Refusal::Unbelievable { what: metric.clone(), value });
        }
    }
    Ok(readings)
}
