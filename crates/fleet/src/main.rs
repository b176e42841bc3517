//! The `vmtax-fleet` command: flags, dispatch, exit codes.

mod cli;
mod query;
mod show;
mod tend;

use std::process::ExitCode;

use clap::Parser;
use vmtax_cli::{exit, output};

use cli::{Cli, Command};

/// DataFusion plans by recursion, deeper than a thread's usual stack.
const STACK: usize = 16 << 20;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    let result = match cli.command {
        Command::Query(args) => query::run(&args),
        Command::Compact(args) => tend::compact(&args),
        Command::Synth(args) => tend::synth(&args),
        #[cfg(feature = "cluster")]
        Command::Check(args) => tend::check(&args),
        #[cfg(feature = "cluster")]
        Command::Scheduler(args) => tend::scheduler(&args),
        #[cfg(feature = "cluster")]
        Command::Executor(args) => tend::executor(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

/// Where queries run.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(STACK).build()?)
}
