//! Adapters of benchmark programs: how each is run, and a parser of its output.
//!
//! A parser gets the output of a program that ended with exit code 0. It accepts only the units that the program is known to write.
//! Missing, truncated, unverified and failed results are refused, with the field's name. Nothing is guessed.

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
pub(crate) use table::words;
pub use table::{ADAPTERS, Adapter};

/// Units of readings. The parsers convert all units to these.
pub mod unit {
    /// Microseconds.
    pub const MICROSECONDS: &str = "us";
    /// Nanoseconds.
    pub const NANOSECONDS: &str = "ns";
    /// Seconds.
    pub const SECONDS: &str = "s";
    /// Operations per second.
    pub const PER_SECOND: &str = "1/s";
    /// Bits per second.
    pub const BITS: &str = "bit/s";
    /// Bytes per second.
    pub const BYTES: &str = "B/s";
    /// Percent.
    pub const PERCENT: &str = "%";
    /// A plain number.
    pub const COUNT: &str = "count";
    /// Kibibytes.
    pub const KIBIBYTES: &str = "KiB";
    /// Millions of operations per second, as NPB counts them.
    pub const MOPS: &str = "Mop/s";
    /// 10^9 floating-point operations per second.
    pub const GFLOPS: &str = "Gflop/s";
}

/// The metric of built-in workloads with the number of operations done.
pub const ROUNDS: &str = "rounds";

/// The metric of every workload with the share of the processors that was busy while it ran; idle processors that poll are not.
pub const UTILISATION: &str = "utilisation";

/// A value that a program reported.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Name of the metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The value.
    pub value: f64,
    /// Whether higher or lower values are better.
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

/// Why an output is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A field is missing: the output is truncated or of another version.
    #[error("{0} is missing: the output is truncated or of another version")]
    Missing(String),
    /// A value has an unknown unit.
    #[error("{what} has the unknown unit {unit:?}")]
    Unit {
        /// Name of the value.
        what: String,
        /// The unit found.
        unit: String,
    },
    /// A value is not a number.
    #[error("{what} is not a number: {found:?}")]
    Number {
        /// Name of the value.
        what: String,
        /// The text found.
        found: String,
    },
    /// The program reports a failure.
    #[error("it reports a failure: {0}")]
    Failed(String),
    /// The program did not verify its result.
    #[error("its result is not verified: {0}")]
    Unverified(String),
    /// An impossible value.
    #[error("{what} is {value}, which is impossible")]
    Unbelievable {
        /// Name of the value.
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

/// Output of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Output<'a> {
    /// Its standard output.
    pub stdout: &'a str,
    /// Its standard error.
    pub stderr: &'a str,
    /// Run time, ns.
    pub elapsed_ns: u64,
}

/// Checks that hold for all programs: there are readings, and none is negative. A speed or latency of zero means that nothing was
/// measured.
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
