//! `vmtax query` and `vmtax fleet` execute `vmtax-fleet`, a separate program because of the size of its engine. Without it, help, the list of questions
//! and the SQL for DuckDB are printed here.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::{Args, CommandFactory, FromArgMatches};
use vmtax_cli::exit::{self, Code, CodedError};
use vmtax_fleet_flags::FleetCli;

/// The program.
const PROGRAM: &str = "vmtax-fleet";

/// Query the runs of many hosts with SQL, or by a predefined question.
///
/// The flags are those of `vmtax-fleet query`, which is executed. It is looked up in this program's directory, then in PATH. --help,
/// --list and --duckdb work without it.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:
  vmtax query --help
  vmtax query --list
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

pub(crate) fn query(args: &QueryCommandArgs) -> ExitCode {
    run("vmtax", ["query".into()].into_iter().chain(args.words.iter().cloned()).collect())
}

pub(crate) fn fleet(args: &FleetArgs) -> ExitCode {
    run("vmtax fleet", args.words.clone())
}

/// Where the other program is built, if this one was built in a clone: `target/release/vmtax`.
fn built(own: &Path) -> Option<PathBuf> {
    let target = own.parent()?.parent()?;
    let repository =
        target.parent().filter(|_| target.file_name().is_some_and(|n| n == "target"))?;
    Some(repository.join("fleet/target/release").join(PROGRAM))
}

/// Executes the other program; returns only if it cannot. `shown` is what help calls it.
fn run(shown: &'static str, words: Vec<OsString>) -> ExitCode {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().map(|own| own.with_file_name(PROGRAM));
    let built = own.as_deref().and_then(built);
    for program in beside.into_iter().chain(built).chain([PathBuf::from(PROGRAM)]) {
        let error = Command::new(&program).args(&words).exec();
        if error.kind() != io::ErrorKind::NotFound {
            let text = format!("{PROGRAM} cannot be started: {error}");
            return exit::report(&CodedError::new(Code::Input, text).into());
        }
    }
    without_engine(shown, words)
}

/// What needs no engine, or how to get one.
fn without_engine(shown: &'static str, words: Vec<OsString>) -> ExitCode {
    let command = FleetCli::command().bin_name(shown);
    let words = [OsString::from(PROGRAM)].into_iter().chain(words);
    let parsed = command.try_get_matches_from(words);
    let cli = match parsed.and_then(|matches| FleetCli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    let done = match cli.command {
        vmtax_fleet_flags::Command::Query(args) if args.list || args.duckdb => {
            vmtax_questions::print(&args)
        }
        vmtax_fleet_flags::Command::Query(_) => exit::fail(
            Code::Input,
            format!("{MISSING}; or query with DuckDB: vmtax query --duckdb -o words.sql"),
        ),
        _ => exit::fail(Code::Input, MISSING),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

/// How to get the other program. `cargo install` puts it beside a vmtax that it installed.
const MISSING: &str = "vmtax-fleet, the engine of queries, is neither beside vmtax nor in PATH; install the package vmtax-fleet, or build it in a clone of \
                       vmtax: cargo install --locked --path fleet";
