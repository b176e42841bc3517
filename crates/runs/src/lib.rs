//! Connects `capture`, `live`, `analyse`, `store` and `lab`, which do not depend on each other: a path or the running kernel -> rows,
//! a run folder or a ledger.
//!
//! ```text
//!   path ──> Input ──┬── Recording ──convert──> rows ──┬──> ToLedger ──> Ledger
//!                    └── Run ──────────────────> rows ─┤──> ToRun ─────> run folder
//!   kernel ──> Recorder ──record──────────────────────┘
//! ```
//!
//! Left out on purpose: flags, and how a ledger is shown.

pub mod budget;
pub mod convert;
pub mod evidence;
pub mod frames;
pub mod host_pages;
pub mod import;
pub mod input;
pub mod kernels;
pub mod lab;
pub mod ledger;
pub mod profiles;
pub mod record;
pub mod selftest;
pub mod series;
pub mod starts;
pub mod timeline;

use std::time::Duration;

use vmtax_cli::exit::{Code, CodedError};
use vmtax_cli::progress::ReadingProgress;
use vmtax_events::Isa;
use vmtax_store::{CreateOptions, Error};

pub use convert::Converted;
pub use import::ToRun;
pub use input::{Input, RecordingInput};
pub use ledger::ToLedger;

/// Options for reading a recording.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Length of the intervals that exits are counted in. [default: 100 ms]
    pub interval: Option<Duration>,
    /// Vendor of numeric exit reasons.
    pub isa: Option<Isa>,
    /// The emulator that the host ran under.
    pub emulated: Option<String>,
    /// Shows how much is read. Clones share it.
    pub progress: ReadingProgress,
}

impl ReadOptions {
    /// Length of the intervals, ns.
    pub fn interval_ns(&self) -> u64 {
        let interval = self.interval.unwrap_or(Duration::from_millis(100));
        u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The first flag that was given. They do not apply to runs, which were read when they were imported.
    pub fn given(&self) -> Option<&'static str> {
        let interval = self.interval.map(|_| "--interval");
        interval.or(self.isa.map(|_| "--isa")).or(self.emulated.as_ref().map(|_| "--emulated"))
    }
}

/// How this command makes a run whose rows are counted in intervals of so many ns, with labels.
pub fn create_options(
    interval_ns: u64,
    labels: impl IntoIterator<Item = (String, String)>,
) -> CreateOptions {
    CreateOptions {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        interval_ns,
        raw_events: false,
        labels: labels.into_iter().collect(),
    }
}

/// An error of reading a run.
pub fn read_fault(error: &Error) -> CodedError {
    match error {
        Error::NotARun { path, .. } => CodedError::new(
            Code::Input,
            format!(
                "{}: is a folder and not a run (it has no run.json); name a recording, or a run that `vmtax import` made",
                path.display()
            ),
        ),
        Error::Io { path, source, .. } => {
            vmtax_cli::output::cannot_read(&path.display().to_string(), source)
        }
        _ => CodedError::new(Code::Data, error.to_string()),
    }
}

/// An error of writing a run.
pub fn write_fault(error: Error) -> CodedError {
    let fault = CodedError::new(Code::Output, error.to_string());
    match &error {
        Error::Io { source, .. } if record::is_full(source.kind()) => fault.answered(source),
        _ => fault,
    }
}
