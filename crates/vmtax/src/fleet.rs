//! `vmtax query` and `vmtax fleet` execute `vmtax-fleet`, a separate program because of the size of its engine.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use vmtax_cli::exit::{Code, CodedError};

/// The program.
const PROGRAM: &str = "vmtax-fleet";

/// Query the runs of many hosts with SQL, or by a predefined question.
///
/// The flags are those of `vmtax-fleet query`, which is executed. It is looked up in this program's directory, then in PATH.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:
  vmtax query --help
  vmtax query 'SELECT host, sum(count) FROM exits GROUP BY host' fleet/"
)]
pub(crate) struct QueryCommandArgs {
    /// Arguments of `vmtax-fleet query`.
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Manage the runs of many hosts: compact days, check a cluster.
///
/// The commands are those of `vmtax-fleet`, which is executed. It is looked up in this program's directory, then in PATH.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:
  vmtax fleet --help
  vmtax fleet compact fleet/ --date 2026-01-31"
)]
pub(crate) struct FleetArgs {
    /// Arguments of `vmtax-fleet`.
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

pub(crate) fn query(args: &QueryCommandArgs) -> anyhow::Result<()> {
    run(["query".into()].into_iter().chain(args.words.iter().cloned()))
}

pub(crate) fn fleet(args: &FleetArgs) -> anyhow::Result<()> {
    run(args.words.iter().cloned())
}

/// Where the other program is built, if this one was built in a clone: `target/release/vmtax`.
fn built(own: &Path) -> Option<PathBuf> {
    let target = own.parent()?.parent()?;
    let repository =
        target.parent().filter(|_| target.file_name().is_some_and(|n| n == "target"))?;
    Some(repository.join("fleet/target/release").join(PROGRAM))
}

/// Executes the other program; returns only on an error.
fn run(words: impl Iterator<Item = OsString>) -> anyhow::Result<()> {
    let words: Vec<OsString> = words.collect();
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().map(|own| own.with_file_name(PROGRAM));
    let built = own.as_deref().and_then(built);
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    for program in beside.into_iter().chain(built).chain([PathBuf::from(PROGRAM)]) {
        error = Command::new(&program).args(&words).exec();
        if error.kind() != io::ErrorKind::NotFound {
            break;
        }
    }
    let why = match error.kind() {
        io::ErrorKind::NotFound => "is neither beside vmtax nor in PATH; install the package vmtax-fleet, or build it with: cargo build --release --manifest-path fleet/Cargo.toml".to_owned(),
        _ => format!("cannot be started: {error}"),
    };
    Err(CodedError::new(Code::Input, format!("{PROGRAM} {why}")).into())
}
