//! Outputs of benchmark programs -> readings. One parser per program, a function of its output.
//!
//! `parse` and its like read all that is compared, of a program that ended with exit code 0. They accept only the units that the program is
//! known to write, and refuse missing, truncated, unverified and failed results, with the field's name. Nothing is guessed.
//! Where a module has a function for its program's main reading alone, that is what [`crate::import::logs`] reads: the rest
//! of a log may be missing.

pub mod builtin;
pub mod dnn;
pub mod fio;
pub mod iperf;
pub mod npb;
pub mod onnx;
pub mod ping;
pub mod redis;
pub mod sched;
pub mod sysbench;
mod text;
pub mod time;
pub mod wrk;

use std::fmt;

use vmtax_events::Better;

pub(crate) use text::after;
pub use text::number;

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

/// A value that a program reported.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramReading {
    /// Name of the metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// The value.
    pub value: f64,
    /// Whether higher or lower values are better.
    pub better: Better,
}

impl ProgramReading {
    /// A reading in a unit of [`mod@unit`], or of the user's.
    pub fn new(
        metric: impl Into<String>,
        unit: &str,
        value: f64,
        better: Better,
    ) -> ProgramReading {
        ProgramReading { metric: metric.into(), unit: unit.to_owned(), value, better }
    }

    pub(crate) fn lower(metric: impl Into<String>, unit: &str, value: f64) -> ProgramReading {
        ProgramReading::new(metric, unit, value, Better::Lower)
    }

    pub(crate) fn higher(metric: impl Into<String>, unit: &str, value: f64) -> ProgramReading {
        ProgramReading::new(metric, unit, value, Better::Higher)
    }

    /// The reading, unless its value is negative, which none can be.
    pub(crate) fn possible(self) -> Result<ProgramReading, OutputRefusal> {
        if self.value.is_finite() && self.value >= 0.0 { Ok(self) } else { Err(self.impossible()) }
    }

    fn impossible(&self) -> OutputRefusal {
        let value = format!("{} {}", self.value, self.unit);
        OutputRefusal::Unbelievable { what: self.metric.clone(), value }
    }
}

/// Why an output is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutputRefusal {
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

impl OutputRefusal {
    /// A field of this name is missing.
    pub fn missing(what: impl fmt::Display) -> OutputRefusal {
        OutputRefusal::Missing(what.to_string())
    }
}

/// Output of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientOutput<'a> {
    /// Its standard output.
    pub stdout: &'a str,
    /// Its standard error.
    pub stderr: &'a str,
    /// Run time, ns.
    pub elapsed_ns: u64,
}

/// Checks that hold for all programs: there are readings, and all are possible. A speed or latency of zero means that nothing was
/// measured.
pub fn sane(readings: Vec<ProgramReading>) -> Result<Vec<ProgramReading>, OutputRefusal> {
    if readings.is_empty() {
        return Err(OutputRefusal::missing("every value"));
    }
    let check = |reading: ProgramReading| match reading.possible()? {
        zero if zero.value == 0.0 && zero.better == Better::Higher => Err(zero.impossible()),
        reading => Ok(reading),
    };
    readings.into_iter().map(check).collect()
}
