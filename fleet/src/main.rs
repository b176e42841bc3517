//! The `vmtax-fleet` command: flags, dispatch, exit codes.

mod manage;
mod planning;
mod query;
mod show;
mod worker;

use std::process::ExitCode;

use clap::Parser;
use vmtax_cli::{exit, output};
use vmtax_durable::NewFolder;

use vmtax_fleet_flags::{Command, FleetCli};

/// DataFusion plans by recursion, deeper than a thread's usual stack.
const STACK: usize = 16 << 20;
/// Threads that wait for files.
const BLOCKING: usize = 8;

fn main() -> ExitCode {
    let cli = match FleetCli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    let result = match cli.command {
        Command::Query(args) if args.list || args.duckdb => vmtax_questions::print(&args),
        Command::Query(args) => {
            return match worker::spill() {
                Some(spill) => worker::run(args, spill),
                None => worker::supervise(&args).unwrap_or_else(|error| exit::report(&error)),
            };
        }
        Command::Compact(args) => manage::compact(&args),
        #[cfg(feature = "cluster")]
        Command::Check(args) => manage::check(&args),
        #[cfg(feature = "cluster")]
        Command::Scheduler(args) => manage::scheduler(&args),
        #[cfg(feature = "cluster")]
        Command::Executor(args) => manage::executor(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

/// Where queries run.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK)
        .max_blocking_threads(BLOCKING)
        .build()?)
}

/// A private folder in TMPDIR that is removed when it is dropped, or by the next process that asks for one of this name.
fn scratch(name: &str) -> anyhow::Result<NewFolder> {
    let folder = std::env::temp_dir();
    NewFolder::beside(&folder.join(name))
        .map_err(|e| output::cannot_write(&format!("{} (TMPDIR)", folder.display()), &e).into())
}
